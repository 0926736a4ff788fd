//! Queries get other values while they run.
//!
//! The steps are those of an [`Upgrade`](crate::engine::upgrade::Upgrade), for some queries and not for all of a group.
//! First comes everything that can be refused. Then the group of the query is suspended, the catalog gets the values,
//! and at last the query gets them, with the part of its state that does not depend on what has changed
//! ([`alteration`](rivulet_operators::application::alteration)).
//!
//! What must hold: an event that was received before the change is processed with the values before, and one that was
//! received after it with the new values. This holds also where the log is replayed after a crash. So the catalog has
//! the position of the change, and no event waits for the query when the change is made: where events wait, the group
//! closes its intake until they are processed. A replay makes the change at the same position
//! ([`replayed_changes`](super::replayed_changes)).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use foldhash::fast::RandomState;
use rivulet_dataflow::{LogPosition, QueryId, Slot};
use rivulet_operators::application::Application;
use rivulet_sql::ParameterRows;

use super::change::{Change, Effect, for_each_changed};
use super::checked::{Checked, Chunk, bind_error, check_label, param_value};
use super::nulls::{compared_with, silence};
use super::{Queries, State};
use crate::catalog::{AlteredQuery, ApplicationNumber, StoredRecords, StoredValues};
use crate::engine::lifecycle::Lifecycle;
use crate::engine::resting::Resting;
use crate::engine::running::Running;
use crate::service::{Alteration, ErrorKind, Parameter, ParameterValue, QueryChange, ServiceError, Tenant};

/// How long a call waits, in total, for events that are to be processed before queries get other values. All calls
/// about queries wait with it.
const CALL_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long a call waits for one application in any case: as long as results usually need to leave.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// An answer for each change, once it is known.
type Answers = [Option<Result<Alteration, ServiceError>>];

/// Applications that were looked up for changes of one call.
#[derive(Default)]
struct Known<'c> {
    numbered: HashMap<ApplicationNumber, Arc<Running>, RandomState>,
    /// By the name or id that a change gives.
    named: HashMap<&'c str, Arc<Running>, RandomState>,
}

/// A query that is to get other values.
struct Wanted<'c> {
    /// The index of its change among the changes.
    index: usize,
    id: QueryId,
    before: StoredValues<'c>,
    parameters: Cow<'c, [Parameter<'c>]>,
    label: Option<&'c str>,
}

/// Queries of one application whose new values were checked.
struct Altered {
    checked: Checked<usize>,
    /// For each row what changes; `None` if only the notation of values changes, or the label.
    effects: Vec<Option<Arc<Effect>>>,
    /// For each row whether its routes change; known once the group rests.
    reroutes: Vec<bool>,
    /// Whether queries have left slots that they shared.
    has_parted: bool,
    /// Changes of these queries that later changes of the same call replace. They are made or refused together with the
    /// later ones.
    overtaken: Vec<(usize, Option<Arc<Effect>>)>,
    /// By how many bytes the values grow.
    grows_by: usize,
    /// The position of the log from which on the new values count.
    position: LogPosition,
    /// Its group rests until the change is made.
    resting: Option<Resting>,
}

/// How long a call may still wait.
struct Patience(Duration);

impl Patience {
    /// Waits for an application, at most for the time that is left.
    fn wait<T>(&mut self, wait: impl FnOnce(Duration) -> T) -> T {
        let begun = Instant::now();
        let waited = wait(self.0.max(WAIT_MIN));
        self.0 = self.0.saturating_sub(begun.elapsed());
        waited
    }
}

impl Queries {
    /// Gives queries other values; see [`crate::service::Service::alter`].
    pub(in crate::engine) fn alter(
        &self,
        tenant: &Tenant,
        changes: &[QueryChange<'_>],
    ) -> Vec<Result<Alteration, ServiceError>> {
        let (mut answers, mut rest) = (Vec::with_capacity(changes.len()), changes);
        let mut patience = Patience(CALL_WAIT_MAX);
        let keeps_none = |change: &QueryChange<'_>| change.whole_of.is_some() && change.label.is_some();
        let keep_none = changes.iter().all(keeps_none);
        while !rest.is_empty() {
            let mut names: HashSet<&str, RandomState> = HashSet::default();
            // A change that keeps some values of its query waits until earlier changes of the same query are made: only
            // then the kept values are known.
            let known = rest.iter().take_while(|change| keep_none || names.insert(change.name) || keeps_none(change));
            let (now, later) = rest.split_at(known.count());
            answers.extend(self.alter_known(tenant, now, &mut patience));
            rest = later;
        }
        answers
    }

    fn alter_known(
        &self,
        tenant: &Tenant,
        changes: &[QueryChange<'_>],
        patience: &mut Patience,
    ) -> Vec<Result<Alteration, ServiceError>> {
        let mut answers: Vec<Option<Result<Alteration, ServiceError>>> = changes.iter().map(|_| None).collect();
        let mut found: BTreeMap<ApplicationNumber, Vec<(usize, QueryId)>> = BTreeMap::new();
        {
            let state = self.state.lock();
            let mut known = Known::default();
            for (index, change) in changes.iter().enumerate() {
                match self.find_altered(tenant, &state, &mut known, change) {
                    Ok((id, application)) => found.entry(application).or_default().push((index, id)),
                    Err(error) => answers[index] = Some(Err(error)),
                }
            }
        }
        // No group is suspended while another application is waited for, and other calls get their turn in between.
        for (application, found) in found {
            self.alter_some(application, changes, &found, patience, &mut answers);
        }
        answers.into_iter().map(|answer| answer.expect("every change was answered")).collect()
    }

    /// Makes changes of queries of one application. Each comes with its index among the changes, and its query.
    fn alter_some(
        &self,
        application: ApplicationNumber,
        changes: &[QueryChange<'_>],
        found: &[(usize, QueryId)],
        patience: &mut Patience,
        answers: &mut Answers,
    ) {
        let state = &mut *self.state.lock();
        let stored = self.catalog.read_records(found.iter().map(|(_, id)| *id));
        let made = stored.map_err(ServiceError::from).and_then(|stored| {
            let (wanted, chunk) = self.wanted(application, state, changes, found, &stored, answers)?;
            if wanted.is_empty() {
                return Ok(());
            }
            let mut altered = self.check(chunk, &wanted, answers);
            self.admit(&altered)?;
            self.bring_to_rest(state, &mut altered, &wanted, patience)?;
            self.store_and_make(state, &altered, &wanted, answers)
        });
        if let Err(error) = made {
            for &(index, _) in found {
                answers[index].get_or_insert_with(|| Err(error.clone()));
            }
        }
    }

    /// Binds the values that these queries are to have. Queries that have them already are answered.
    fn wanted<'c>(
        &self,
        application: ApplicationNumber,
        state: &State,
        changes: &[QueryChange<'c>],
        found: &[(usize, QueryId)],
        stored: &'c StoredRecords,
        answers: &mut Answers,
    ) -> Result<(Vec<Wanted<'c>>, Chunk<usize>), ServiceError> {
        let gone = |what: &str, shown: &str| {
            ServiceError::not_found(format!("the {what} was dropped meanwhile"))
                .with_hint(format!("SHOW {shown} lists them"))
        };
        let running = self.applications.numbered(application).ok_or_else(|| gone("application", "APPLICATIONS"))?;
        let mut times: HashMap<QueryId, usize, RandomState> = HashMap::default();
        found.iter().for_each(|(_, id)| *times.entry(*id).or_default() += 1);
        let (mut wanted, mut chunk) = (Vec::with_capacity(found.len()), Chunk::new(running));
        for (&(index, id), before) in found.iter().zip(stored.values()) {
            let has_slot = state.registry.get(id).is_some_and(|entry| entry.life.slot().is_some());
            let Some(before) = before.filter(|_| has_slot) else {
                answers[index] = Some(Err(gone(&format!("query '{}'", changes[index].name), "QUERIES")));
                continue;
            };
            let change = &changes[index];
            let parameters = match change.whole_of {
                Some(_) => Cow::Borrowed(change.parameters),
                None => merged(&before.parameters, change.parameters).into(),
            };
            let label = change.label.unwrap_or(before.label);
            // A query that is named more than once may have others by then.
            if times[&id] == 1 && label == before.label && are_same(&before.parameters, &parameters) {
                answers[index] = Some(Ok(Alteration { id, effect: None, warning: None }));
                continue;
            }
            let values = parameters.iter().map(|(name, value)| (name.as_ref(), param_value(value)));
            match chunk.values.push(values) {
                Ok(()) => {
                    chunk.queries.push(wanted.len());
                    wanted.push(Wanted { index, id, before, parameters, label });
                }
                Err(error) => answers[index] = Some(Err(bind_error(error))),
            }
        }
        Ok((wanted, chunk))
    }

    fn find_altered<'c>(
        &self,
        tenant: &Tenant,
        state: &State,
        known: &mut Known<'c>,
        change: &QueryChange<'c>,
    ) -> Result<(QueryId, ApplicationNumber), ServiceError> {
        let name = change.name;
        if !state.big_query_names.is_empty() && state.big_query_names.contains(&tenant.named(name)) {
            return Err(ServiceError::invalid(format!("'{name}' is a big query, which has no values")).with_hint(
                format!("CREATE OR REPLACE QUERY {} AS ... gives it another text", rivulet_sql::name_in_sql(name)),
            ));
        }
        let id = match state.registry.id_of(tenant, name) {
            Some(id) => id,
            None => state.query(&tenant.named(name))?,
        };
        let entry = state.registry.get(id).expect("the query was found by name");
        let application = entry.application;
        if entry.life.slot().is_none() || !known.numbered.contains_key(&application) {
            known.numbered.insert(application, self.place(state, id)?.0);
        }
        check_label(change.label.flatten())?;
        let Some(given) = change.whole_of else { return Ok((id, application)) };
        if !known.named.contains_key(given) {
            known.named.insert(given, self.applications.find(&tenant.named(given))?);
        }
        let (running, other) = (&known.numbered[&application], &known.named[given]);
        if other.number != application {
            let (own, other) = (&running.application.name, &other.application.name);
            let message = format!("the query '{name}' is one of the application '{own}', not of '{other}'");
            return Err(ServiceError::new(ErrorKind::Conflict, message)
                .with_hint(format!("drop it first: DROP QUERY {}", rivulet_sql::name_in_sql(name))));
        }
        Ok((id, application))
    }

    /// Checks values, and finds out what they change.
    fn check(&self, mut chunk: Chunk<usize>, wanted: &[Wanted<'_>], answers: &mut Answers) -> Altered {
        let mut refuse = |place: usize, error| answers[wanted[place].index] = Some(Err(error));
        let mut checked = chunk.take_checked(&mut refuse);
        let running = checked.running.clone();
        // If a query is named more than once, the last values that fit count: no event comes between two of its
        // changes.
        let ids: Vec<QueryId> = checked.queries.iter().map(|&place| wanted[place].id).collect();
        let last: HashMap<QueryId, usize, RandomState> = ids.iter().enumerate().map(|(row, id)| (*id, row)).collect();
        let mut overtaken = checked.take_out(|row| last[&ids[row]] != row);
        let mut known: HashMap<Vec<usize>, Arc<Effect>, RandomState> = HashMap::default();
        let new = |changed: &[usize]| Arc::new(Effect::new(&running, changed));
        let mut effects_of = |checked: &mut Checked<usize>| {
            let mut before = ParameterRows::new(&running.application);
            let bind = |_, place: usize, _: &mut Vec<String>| {
                let values = wanted[place].before.parameters.iter();
                before.push(values.map(|(name, value)| (name.as_ref(), param_value(value)))).map_err(bind_error)
            };
            checked.retain(bind, &mut refuse);
            let before = before.finish();
            let grows_by = value_bytes(&checked.rows).saturating_sub(value_bytes(&before));
            let mut effects = Vec::with_capacity(checked.queries.len());
            for_each_changed(&before, &checked.rows, |changed| {
                if !known.contains_key(changed) && !changed.is_empty() {
                    known.insert(changed.to_vec(), new(changed));
                }
                effects.push(known.get(changed).cloned());
            });
            (effects, grows_by)
        };
        let (effects, grows_by) = effects_of(&mut checked);
        let of_overtaken = if overtaken.queries.is_empty() { Vec::new() } else { effects_of(&mut overtaken).0 };
        let overtaken = overtaken.queries.into_iter().zip(of_overtaken).collect();
        let (reroutes, position) = (Vec::new(), 0);
        Altered { checked, effects, reroutes, has_parted: false, overtaken, grows_by, position, resting: None }
    }

    /// Fails if there is no memory for the values.
    fn admit(&self, altered: &Altered) -> Result<(), ServiceError> {
        // A change that takes no more memory than before is allowed even where memory is used up.
        if altered.grows_by == 0 { Ok(()) } else { self.memory.admit(0, altered.grows_by) }
    }

    /// Brings a group to rest between two events of the queries that change.
    fn bring_to_rest(
        &self,
        state: &mut State,
        altered: &mut Altered,
        wanted: &[Wanted<'_>],
        patience: &mut Patience,
    ) -> Result<(), ServiceError> {
        if altered.effects.iter().all(Option::is_none) {
            return Ok(());
        }
        let running = &altered.checked.running;
        check_not_replaced(running)?;
        self.check_replayed(state, running)?;
        let effects = altered.checked.queries.iter().zip(&altered.effects);
        let queries: Vec<(QueryId, &Effect)> =
            effects.filter_map(|(&place, effect)| Some((wanted[place].id, effect.as_deref()?))).collect();
        let slot_of = |state: &State, query| state.registry.get(query).and_then(|entry| entry.life.slot());
        let parted = queries.iter().filter(|(_, effect)| effect.computes_else);
        let parted: Vec<(Slot, QueryId)> =
            parted.filter_map(|(query, _)| Some((slot_of(state, *query)?, *query))).collect();
        let slots: Vec<Slot> = queries.iter().filter_map(|(query, _)| slot_of(state, *query)).collect();
        let mut resting = Resting::new(running.group.clone());
        running.group.suspend();
        // Events with a lower position are in the inboxes then, if they are not processed yet.
        altered.position = self.event_log.end();
        self.routing.await_routing();
        // Which topics are shared stays as it is until the change is made: only code that holds this lock changes it.
        let are_shared = self.routing.are_shared(running, &altered.checked.inputs);
        let reroutes = altered.effects.iter().zip(are_shared);
        let reroutes = reroutes.map(|(effect, is_shared)| effect.as_ref().is_some_and(|one| one.reroutes(is_shared)));
        altered.reroutes = reroutes.collect();
        let reroutes = altered.reroutes.contains(&true);
        let have_other_keys = queries.iter().any(|(_, effect)| effect.has_other_key);
        // Where routes change, or a slot that a query gets for itself needs one, no event may come before that is done.
        let gets_routes = reroutes || (!parted.is_empty() && running.group.further_queries() > 0);
        if gets_routes || !self.routing.is_at_rest(running, &slots) {
            // Waiting events are processed first: rows that were decoded for many queries would find no room in a
            // suspended group.
            running.group.close_intake();
            patience.wait(|wait_max| self.routing.let_rest(running, &mut resting, wait_max))?;
            running.group.quiesce();
            altered.position = self.event_log.end();
        }
        altered.has_parted = self.part(state, running, &parted, reroutes || have_other_keys)?;
        if reroutes {
            // An event of a topic that the queries read afterwards counts for them if its position is not lower. So
            // from that position on each event finds a route, and is refused until the group continues.
            let (slots, topics) = altered.moved(state, wanted);
            self.routing.open_routes(running, &slots, &topics);
            self.routing.await_routing();
            altered.position = self.event_log.end();
        }
        altered.resting = Some(resting);
        Ok(())
    }

    /// Writes the values to the catalog, and then gives them to the queries.
    fn store_and_make(
        &self,
        state: &mut State,
        altered: &Altered,
        wanted: &[Wanted<'_>],
        answers: &mut Answers,
    ) -> Result<(), ServiceError> {
        let Altered { checked: Checked { running, rows, inputs, queries }, effects, overtaken, position, .. } = altered;
        // If no events are replayed and all state stays, the new values may count from the start after a restart.
        let must_be_noted = |effect: &Effect| running.reads_log() || effect.state.map.is_some();
        let is_noted = |effect: &Option<Arc<Effect>>| {
            running.group.is_checkpointed() && effect.as_deref().is_some_and(must_be_noted)
        };
        let records: Vec<AlteredQuery<'_>> = queries
            .iter()
            .zip(effects)
            .map(|(&place, effect)| AlteredQuery {
                id: wanted[place].id,
                parameters: &wanted[place].parameters,
                label: wanted[place].label,
                noted_at: is_noted(effect).then_some(*position),
            })
            .collect();
        if records.is_empty() {
            return Ok(());
        }
        let mut number = self.catalog.alter_queries(&records).inspect_err(|_| {
            let (slots, topics) = altered.moved(state, wanted);
            self.routing.close_routes(running, &slots, &topics);
        })?;
        let mut answer = |place: usize, effect: &Option<Arc<Effect>>| {
            let told = effect.as_ref().map_or_else(Arc::default, |effect| effect.told.clone());
            let Wanted { index, id, .. } = wanted[place];
            let warning = wanted[place].silence(&running.application);
            answers[index] = Some(Ok(Alteration { id, effect: Some(told), warning }));
        };
        overtaken.iter().for_each(|(place, effect)| answer(*place, effect));
        let mut changes = Vec::with_capacity(queries.len());
        for (row, ((&place, effect), record)) in queries.iter().zip(effects).zip(&records).enumerate() {
            let Wanted { id, before, label, .. } = &wanted[place];
            let is_noted = record.noted_at.is_some();
            answer(place, effect);
            if let Some(label) = label.filter(|_| *label != before.label) {
                running.group.expect_label(label);
            }
            let slot = state.registry.get(*id).and_then(|entry| entry.life.slot());
            if let Some((effect, slot)) = effect.as_deref().zip(slot) {
                let number = if is_noted { number } else { 0 };
                changes.push(Change { query: *id, slot, row, effect, number, reroutes: altered.reroutes[row] });
            }
            number += u64::from(is_noted);
        }
        self.make(state, running, rows, inputs, &changes, true);
        if altered.has_parted {
            self.routing.share_crowded(running, inputs);
        }
        Ok(())
    }
}

impl Altered {
    /// The slots of queries that get events and whose routes change, and the topics that they read afterwards.
    fn moved(&self, state: &State, wanted: &[Wanted<'_>]) -> (Vec<Slot>, Vec<Vec<String>>) {
        let Checked { queries, inputs, .. } = &self.checked;
        let moved = queries.iter().zip(inputs).zip(&self.reroutes).filter(|(_, reroutes)| **reroutes);
        let slot_of = |place: usize| match state.registry.get(wanted[place].id)?.life {
            Lifecycle::Running(slot) => Some(slot),
            _ => None,
        };
        moved.filter_map(|((&place, topics), _)| Some((slot_of(place)?, topics.clone()))).unzip()
    }
}

/// Fails if another version is about to take over from an application: its group rests.
pub(super) fn check_not_replaced(running: &Running) -> Result<(), ServiceError> {
    if !running.group.rests() {
        return Ok(());
    }
    let message = format!("the application '{}' is being replaced", running.application.name);
    Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint("try again in a moment"))
}

impl Wanted<'_> {
    /// A warning if a condition compares with parameters that have become null.
    fn silence(&self, application: &Application) -> Option<String> {
        let is_null = |values: &[Parameter<'_>], name: &str| {
            values.iter().any(|(other, value)| other == name && matches!(value, ParameterValue::Null))
        };
        let is_new = |(name, value): &&Parameter<'_>| {
            matches!(value, ParameterValue::Null) && !is_null(&self.before.parameters, name)
        };
        let nulls: Vec<&str> = self.parameters.iter().filter(is_new).map(|(name, _)| name.as_ref()).collect();
        if nulls.is_empty() {
            return None;
        }
        silence(&compared_with(application, |name| nulls.contains(&name)))
    }
}

/// The number of bytes that values take.
fn value_bytes(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

/// The values before, each replaced by the given one of that name. Further given values come after them.
fn merged<'c>(before: &[Parameter<'c>], given: &[Parameter<'c>]) -> Vec<Parameter<'c>> {
    let mut parameters: Vec<Parameter<'c>> = before.to_vec();
    for (name, value) in given {
        match parameters.iter_mut().find(|(other, _)| other == name) {
            Some((_, other)) => *other = value.clone(),
            None => parameters.push((name.clone(), value.clone())),
        }
    }
    parameters
}

/// Whether values are the same as written, in any order.
fn are_same(one: &[Parameter<'_>], other: &[Parameter<'_>]) -> bool {
    let is_in = |place: usize, (name, value): &Parameter<'_>| {
        let found = other.get(place).filter(|(other, _)| other == name);
        let found = found.or_else(|| other.iter().find(|(other, _)| other == name));
        found.is_some_and(|(_, other)| value == other)
    };
    one.len() == other.len() && one.iter().enumerate().all(|(place, parameter)| is_in(place, parameter))
}
