//! How queries are shown: the lock is held while the registry is read, and released before the rest is read.

use std::collections::{BTreeMap, HashSet};
use std::iter::repeat;
use std::sync::Arc;

use parking_lot::MutexGuard;
use rivulet_connectors::mqtt::Template;
use rivulet_dataflow::{Cut, QueryId, Slot};
use rivulet_sql::shown_address;
use serde_json::Value;

use super::nulls::compared_with;
use super::why::{Facts, ServerFacts, why};
use super::{Queries, State};
use crate::catalog::CatalogError;
use crate::counted::counted;
use crate::engine::registry::Entry;
use crate::engine::running::Running;
use crate::engine::topics::write_topic;
use crate::like::like;
use crate::service::{FullName, QueryFilter, QueryInfo, QueryState, ServiceError, Tenant};

/// How many more queries are looked for than a list is to have: some may be dropped before all were looked at.
const SPARE: usize = 64;

/// A query as it was found in the engine's state; the rest is read after the lock is released.
struct Found {
    id: QueryId,
    name: String,
    application: String,
    state: QueryState,
    /// Its group and its slot, if it runs.
    place: Option<Place>,
}

/// What the group knows of a query.
#[derive(Default)]
struct Bound {
    /// The query that is in the slot now.
    id: Option<QueryId>,
    input_topic: String,
    output_topic: String,
}

/// Reads the topics of queries; none for queries that do not run. A group may be busy, so each is waited for only once.
fn read_bound(found: &[Found]) -> Vec<Bound> {
    let places = found.iter().enumerate().filter_map(|(index, one)| one.place.as_ref().map(|place| (index, place)));
    let mut places: Vec<(usize, &(Arc<Running>, Slot))> = places.collect();
    places.sort_unstable_by_key(|(_, (running, slot))| (running.number, *slot));
    let mut bound: Vec<Bound> = found.iter().map(|_| Bound::default()).collect();
    for of_group in places.chunk_by(|(_, (one, _)), (_, (other, _))| one.number == other.number) {
        let (running, _) = of_group[0].1;
        let queries: Vec<(Slot, QueryId)> =
            of_group.iter().map(|(index, (_, slot))| (*slot, found[*index].id)).collect();
        let read = running.group.with_each(&queries, |table, slot| {
            let mut bound = Bound { id: table.query(slot), ..Bound::default() };
            let topic = |template: &Template| {
                let mut topic = String::new();
                write_topic(template, table, slot, &mut topic);
                topic
            };
            let inputs = running.topics.inputs.iter().zip(&running.application.inputs);
            let inputs = inputs.map(|(topics, input)| topics.shown(input, topic(&topics.events)));
            bound.input_topic = inputs.collect::<Vec<_>>().join(", ");
            let outputs =
                running.topics.outputs.iter().map(|output| shown_address(&output.text(table, slot)).into_owned());
            bound.output_topic = outputs.collect::<Vec<_>>().join(", ");
            bound
        });
        for ((index, _), read) in of_group.iter().zip(read) {
            bound[*index] = read.unwrap_or_default();
        }
    }
    bound
}

/// The application of a query, and its slot there.
type Place = (Arc<Running>, Slot);

impl Queries {
    /// A query by name.
    pub(in crate::engine) fn info(&self, name: &FullName) -> Result<QueryInfo, ServiceError> {
        Ok(self.info_and_place(name)?.0)
    }

    /// A query by name, and where it is if it runs.
    fn info_and_place(&self, name: &FullName) -> Result<(QueryInfo, Option<Place>), ServiceError> {
        let found = {
            let state = self.state.lock();
            self.find(&state, state.query(name)?)
        };
        let place = found.place.clone();
        let gone = || ServiceError::not_found(format!("the query '{name}' was dropped meanwhile"));
        let info = self.look_up(vec![found]).next().expect("one for each")?.ok_or_else(gone)?;
        Ok((info, place))
    }

    /// The same with what became of its events, and why it gives its results. With `shows_results` it has the last
    /// result and the last refusal.
    pub(in crate::engine) fn described(
        &self,
        name: &FullName,
        server: ServerFacts,
        shows_results: bool,
    ) -> Result<QueryInfo, ServiceError> {
        let (mut info, place) = self.info_and_place(name)?;
        let of_query = place.as_ref().zip(info.id);
        let mut activity = of_query.and_then(|((running, slot), id)| self.activity(running, *slot, id));
        // Before sentences are made of them.
        if let Some(activity) = activity.as_mut().filter(|_| !shows_results) {
            activity.last_result = None;
            activity.last_refusal = None;
            activity.null_columns.iter_mut().for_each(|column| column.instead.clear());
        }
        let is_null = |name: &str| info.parameters.get(name).is_some_and(Value::is_null);
        let compared_nulls = place.as_ref().map(|(running, _)| compared_with(&running.application, is_null));
        let restored_to = self.state.lock().restored_to;
        let (mut receiver_problems, mut left_out) = (Vec::new(), Vec::new());
        for (outlet, id) in of_query.iter().flat_map(|((running, _), id)| running.outputs.outlets().zip(repeat(*id))) {
            receiver_problems.extend(outlet.health.problem_of_query(id).map(|(problem, requests)| {
                let waited = format!("{} waited for it when it was tried last", counted(requests as u64, "request"));
                format!("its results wait for their receiver: {problem}; {waited}")
            }));
            left_out.extend(outlet.health.left_out_of_query(id).map(|(rows, why)| {
                let were = if rows == 1 { "was" } else { "were" };
                format!("{rows} of its results {were} left out since the server was started; the last because {why}")
            }));
        }
        left_out.extend(place.iter().flat_map(|(running, _)| running.outputs.left_out()));
        let metrics = place.as_ref().map(|(running, _)| running.group.metrics());
        info.why = why(&Facts {
            name: &name.name,
            state: info.state,
            server,
            application: place.iter().map(|(running, _)| &running.application).zip(&metrics).next(),
            sources: place.iter().flat_map(|(running, _)| running.sources()).filter_map(|one| one.concern()).collect(),
            outputs: place.iter().flat_map(|(running, _)| running.outputs.problems()).collect(),
            all_arrive: receiver_problems.is_empty() && left_out.is_empty(),
            behind: place.as_ref().and_then(|(running, _)| running.behind()),
            is_restored: info.id.is_some_and(|id| id <= restored_to),
            parts: info.parts.unwrap_or(1),
            activity: activity.as_ref(),
            compared_nulls: compared_nulls.unwrap_or_default(),
        });
        // What went wrong stands first: it is why nothing arrives, whatever became of the last events.
        info.why.splice(0..0, receiver_problems.into_iter().chain(left_out));
        if let Some(activity) = &activity {
            info.events = Some(activity.events());
            info.results = Some(activity.results);
            info.refused = Some(activity.refused_rows());
        }
        info.activity = activity.map(Box::new);
        Ok(info)
    }

    /// The first queries of a tenant, by name, that pass the filter.
    pub(in crate::engine) fn infos(&self, tenant: &Tenant, filter: &QueryFilter) -> Vec<QueryInfo> {
        // Groups and the disk are read without the lock.
        let labelled = match &filter.label {
            Some(label) => match self.with_label(label) {
                Ok(labelled) => Some(labelled),
                Err(error) => {
                    tracing::error!("the queries with a label are not listed: {error}");
                    return Vec::new();
                }
            },
            None => None,
        };
        let number = match &filter.application {
            Some(name) => match self.applications.registered(&tenant.named(name)) {
                Ok((number, _)) => Some(number),
                Err(_) => return Vec::new(),
            },
            None => None,
        };
        let keep = |name: &str, entry: &Entry| {
            number.is_none_or(|number| entry.application == number)
                && labelled.as_ref().is_none_or(|labelled| labelled.contains(&entry.id))
                && filter.like.as_ref().is_none_or(|pattern| like(name, pattern))
        };
        let (mut page, mut from) = (BTreeMap::new(), Some(0));
        while let Some(id) = from {
            // In parts: others need the lock, and there may be a million queries.
            let state = self.state.lock();
            from = state.registry.look(&mut page, id, tenant, (filter.after.as_deref(), filter.limit + SPARE), keep);
            MutexGuard::unlock_fair(state);
        }
        let found: Vec<Found> = {
            let state = self.state.lock();
            let are_there = page.into_values().filter(|&id| state.registry.get(id).is_some());
            are_there.take(filter.limit).map(|id| self.find(&state, id)).collect()
        };
        let known = self.look_up(found).filter_map(|query| {
            query.unwrap_or_else(|error| {
                tracing::error!("a query is not listed: {error}");
                None
            })
        });
        known.collect()
    }

    /// The queries of all tenants with a label. Only the catalog has labels, and this reads all of it.
    fn with_label(&self, label: &str) -> Result<HashSet<QueryId>, CatalogError> {
        let mut labelled = HashSet::new();
        self.catalog.scan_queries(|query| {
            if query.label == Some(label) {
                labelled.insert(query.id);
            }
        })?;
        Ok(labelled)
    }

    /// What is known of a query in the registry.
    fn find(&self, state: &State, id: QueryId) -> Found {
        let entry = state.registry.get(id).expect("the query is in the registry");
        let application = match self.applications.numbered(entry.application) {
            Some(running) => running.application.name.clone(),
            None => self.applications.name_not_running(entry.application).unwrap_or_default(),
        };
        let name = state.registry.name(id);
        Found { id, name, application, state: entry.life.state(), place: self.place(state, id).ok() }
    }

    /// Reads topics and parameters of queries that were found; `None` for each query that was dropped meanwhile.
    fn look_up(&self, found: Vec<Found>) -> impl Iterator<Item = Result<Option<QueryInfo>, ServiceError>> {
        let bound = read_bound(&found);
        found.into_iter().zip(bound).map(|(found, bound)| self.complete(found, bound))
    }

    fn complete(&self, found: Found, bound: Bound) -> Result<Option<QueryInfo>, ServiceError> {
        let Found { id, name, application, state, place } = found;
        if place.is_some() && bound.id != Some(id) {
            return Ok(None);
        }
        let Bound { input_topic, output_topic, .. } = bound;
        let parts = place.as_ref().map(|(running, slot)| running.group.parts_of(*slot) as u64);
        let never_cut = place.as_ref().and_then(|(running, _)| match running.group.cut() {
            Cut::Never(why) => Some(*why),
            _ => None,
        });
        let stored = self.catalog.read_query(id, |stored| {
            let parameters = stored.parameters.iter();
            let parameters = parameters.map(|(name, value)| (name.clone().into_owned(), value.to_json())).collect();
            (parameters, stored.label.map(str::to_owned))
        })?;
        Ok(stored.map(|(parameters, label)| QueryInfo {
            id: Some(id),
            name,
            application,
            state,
            parameters,
            label,
            input_topic,
            output_topic,
            events: None,
            results: None,
            refused: None,
            parts,
            never_cut,
            big: None,
            activity: None,
            why: Vec::new(),
        }))
    }
}
