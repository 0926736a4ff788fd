//! What the engine offers: [`Service`], the trait that the API, the command line and the demo are written against.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_connectors::mqtt::Template;
use rivulet_dataflow::{Cut, QueryId, Slot};
use rivulet_operators::application::Address;
use rivulet_sql::StateWish;
use tokio::sync::broadcast;

use super::output::write_topic;
use super::{Engine, Running, State, exposition, statements};
use crate::data_folder::archive::Backup;
use crate::service::{
    Access, ApplicationInfo, BigQueryInfo, CheckpointInfo, LiveResult, ParameterInfo, QueryFilter, QueryInfo,
    QueryRequest, QueryState, Replacement, Service, ServiceError, StatementResult, Status, TableInfo,
};

impl Service for Engine {
    fn access(&self) -> Arc<Access> {
        self.access.clone()
    }

    fn execute(&self, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        self.execute_script(script)
    }

    fn create_application(&self, sql: &str) -> Result<ApplicationInfo, ServiceError> {
        let (application, replaces) = statements::plan_new(sql, &self.known_tables())?;
        let running = match replaces {
            Some(wish) => self.replace(application, wish)?.0,
            None => self.register(application)?.0,
        };
        Ok(running.info(0))
    }

    fn replace_application(
        &self,
        sql: &str,
        discards_state: bool,
    ) -> Result<(ApplicationInfo, Replacement), ServiceError> {
        let (application, replaces) = statements::plan_new(sql, &self.known_tables())?;
        let wish = if discards_state { StateWish::Discard } else { replaces.unwrap_or_default() };
        let (running, replacement) = self.replace(application, wish)?;
        Ok((running.info(0), replacement))
    }

    fn create_application_of(&self, kind: &str, code: &[u8]) -> Result<ApplicationInfo, ServiceError> {
        let application = self.languages.load_new(kind, code, &self.known_tables())?;
        Ok(self.register(application)?.0.info(0))
    }

    fn replace_application_of(
        &self,
        kind: &str,
        code: &[u8],
        discards_state: bool,
    ) -> Result<(ApplicationInfo, Replacement), ServiceError> {
        let application = self.languages.load_new(kind, code, &self.known_tables())?;
        let wish = if discards_state { StateWish::Discard } else { StateWish::Keep };
        let (running, replacement) = self.replace(application, wish)?;
        Ok((running.info(0), replacement))
    }

    fn create_table(&self, sql: &str) -> Result<TableInfo, ServiceError> {
        let create = statements::parse_table(sql)?;
        let name = create.name.text.clone();
        self.register_table(create)?;
        self.table(&name)
    }

    fn refresh_table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.load_again(name)?;
        self.table(name)
    }

    fn drop_table(&self, name: &str) -> Result<(), ServiceError> {
        self.remove_table(name)
    }

    fn tables(&self) -> Vec<TableInfo> {
        let state = self.state.lock();
        state.declared_tables.values().map(|create| state.table_info(create, &self.languages)).collect()
    }

    fn table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        let state = self.state.lock();
        Ok(state.table_info(state.declared_table(name)?, &self.languages))
    }

    fn applications(&self) -> Vec<ApplicationInfo> {
        let state = self.state.lock();
        let names = state.applications.keys().chain(state.not_running.keys());
        let mut all: Vec<ApplicationInfo> = names.filter_map(|name| state.info(name).ok()).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    fn application(&self, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        self.state.lock().info(name_or_id)
    }

    fn drop_application(&self, name: &str, cascade: bool) -> Result<(), ServiceError> {
        self.drop_registered(name, cascade)
    }

    fn explain(&self, application: &str) -> Result<String, ServiceError> {
        let running = self.state.lock().application(application)?;
        Ok(running.application.explain())
    }

    fn submit(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        self.submit_batch(requests)
    }

    fn query(&self, name: &str) -> Result<QueryInfo, ServiceError> {
        if let Some(big) = self.big_query(name) {
            return Ok(big.into());
        }
        let found = {
            let state = self.state.lock();
            state.find(state.query(name)?)
        };
        let gone = || ServiceError::not_found(format!("the query '{name}' was dropped meanwhile"));
        self.look_up(vec![found]).next().expect("one for each")?.ok_or_else(gone)
    }

    fn queries(&self, filter: &QueryFilter) -> Vec<QueryInfo> {
        // What is read from groups and from disk is read without the lock.
        let found: Vec<Found> = {
            let state = self.state.lock();
            let number = match &filter.application {
                Some(name) => match state.registered(name) {
                    Ok((number, _)) => Some(number),
                    Err(_) => return Vec::new(),
                },
                None => None,
            };
            let page = state.registry.page(filter.after.as_deref(), filter.limit, |name, entry| {
                number.is_none_or(|number| entry.application == number)
                    && filter.like.as_ref().is_none_or(|pattern| super::registry::like(name, pattern))
            });
            page.into_iter().map(|(_, id)| state.find(id)).collect()
        };
        let known = self.look_up(found).filter_map(|query| {
            query.unwrap_or_else(|error| {
                tracing::error!("a query is not listed: {error}");
                None
            })
        });
        let mut all: Vec<QueryInfo> = known.collect();
        let big = self.big_queries_of(filter);
        if !big.is_empty() {
            all.extend(big);
            all.sort_by(|one, other| one.name.cmp(&other.name));
            all.truncate(filter.limit);
        }
        all
    }

    fn big_queries(&self) -> Vec<BigQueryInfo> {
        self.big_query_infos()
    }

    fn create_big_query(&self, sql: &str) -> Result<(BigQueryInfo, String), ServiceError> {
        self.create_big_query_of(sql)
    }

    fn pause(&self, query: &str) -> Result<(), ServiceError> {
        if self.pause_big_query(query)? {
            return Ok(());
        }
        self.set_paused(query, true)
    }

    fn resume(&self, query: &str) -> Result<(), ServiceError> {
        if self.resume_big_query(query)?.is_some() {
            return Ok(());
        }
        self.set_paused(query, false)
    }

    fn drop_query(&self, query: &str) -> Result<(), ServiceError> {
        if self.drop_big_query(query)? {
            return Ok(());
        }
        self.drop_one(query)
    }

    fn status(&self) -> Status {
        let mut status = self.current_status();
        self.state.lock().complete_status(&mut status.applications);
        status
    }

    fn metrics(&self) -> String {
        exposition::text(self.snapshot())
    }

    fn results(&self, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        let state = self.state.lock();
        if state.big_query_names.contains(query) {
            return Err(ServiceError::invalid(format!("'{query}' is a big query, whose rows go to its sink"))
                .with_hint("write them to a sink that can be watched, or run the SELECT with `rivulet run`"));
        }
        let id = state.query(query)?;
        state.place(id)?;
        Ok(self.taps.watch(id))
    }

    fn checkpoint(&self) -> Result<CheckpointInfo, ServiceError> {
        self.checkpoint_now()
    }

    fn back_up(&self) -> Result<Backup, ServiceError> {
        self.begin_backup()
    }

    fn problems(&self) -> Vec<String> {
        let of_checkpoints = self.checkpoints.iter().flat_map(|checkpoints| checkpoints.problems());
        of_checkpoints.chain(self.event_log.loss()).chain(self.failed_big_queries()).collect()
    }

    fn announce_stop(&self) {
        self.stops_soon.store(true, Ordering::Release);
    }

    fn ready(&self) -> Result<(), ServiceError> {
        self.are_events_processed()
    }

    fn shutdown(&self) {
        self.stop();
    }
}

/// A query as it was found in the engine's state; the rest is read after the lock.
struct Found {
    id: QueryId,
    name: String,
    application: String,
    state: QueryState,
    /// Its group and its slot, if it runs.
    place: Option<(Arc<Running>, Slot)>,
}

/// What the group knows of a query.
#[derive(Default)]
struct Bound {
    /// The query that is in the slot now.
    id: Option<QueryId>,
    input_topic: String,
    output_topic: String,
}

/// Reads the topics of queries; nothing of those that do not run. A group may be at work, and is waited for once only.
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
            let topics = |templates: Vec<&Template>| {
                let topic = |template: &Template| {
                    let mut topic = String::new();
                    write_topic(template, table, slot, &mut topic);
                    topic
                };
                templates.into_iter().map(topic).collect::<Vec<_>>().join(", ")
            };
            bound.input_topic = topics(running.topics.inputs.iter().map(|input| &input.events).collect());
            bound.output_topic = topics(running.topics.outputs.iter().collect());
            bound
        });
        for ((index, _), read) in of_group.iter().zip(read) {
            bound[*index] = read.unwrap_or_default();
        }
    }
    bound
}

impl Engine {
    /// Topics and parameters of queries that were found; `None` for each that was dropped meanwhile.
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
        }))
    }
}

impl State {
    /// What the state knows of a query that is in the registry.
    fn find(&self, id: QueryId) -> Found {
        let entry = self.registry.get(id).expect("the query is in the registry");
        let application = match self.numbered.get(&entry.application) {
            Some(running) => running.application.name.clone(),
            None => {
                let other = self.not_running.values().find(|other| other.stored.number == entry.application);
                other.map_or_else(String::new, |other| other.stored.name.clone())
            }
        };
        let name = self.registry.name(id);
        Found { id, name, application, state: entry.life.state(), place: self.place(id).ok() }
    }

    /// An application, whether it runs or not, by name or by id.
    fn info(&self, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        match self.not_running(name_or_id) {
            Some(other) => Ok(other.info(self.queries_not_running(other.stored.number))),
            None => self.application(name_or_id).map(|running| running.info(self.queries_not_running(running.number))),
        }
    }
}

impl Running {
    fn info(&self, queries_not_running: u64) -> ApplicationInfo {
        let application = &self.application;
        ApplicationInfo {
            id: application.id.clone(),
            name: application.name.clone(),
            sql: application.text().into_owned(),
            parameters: application
                .parameters
                .iter()
                .map(|parameter| ParameterInfo {
                    name: parameter.name.clone(),
                    data_type: rivulet_sql::type_name(&parameter.data_type),
                    default: parameter.default.as_ref().map(ToString::to_string),
                })
                .collect(),
            input_topic: listed(application.inputs.iter().map(|input| &input.address)),
            output_topic: listed(application.outputs.iter().map(|output| &output.address)),
            queries_running: self.queries_running.load(Ordering::Relaxed),
            queries_paused: self.queries_paused.load(Ordering::Relaxed),
            queries_not_running,
            not_running: None,
            warnings: self.warnings(),
        }
    }
}

/// The templates of addresses, with commas between.
fn listed<'a>(addresses: impl Iterator<Item = &'a Address>) -> String {
    addresses.map(|address| address.template.as_str()).collect::<Vec<_>>().join(", ")
}
