//! Queries come, pause, resume and go, thousands at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use foldhash::fast::RandomState;
use rivulet_connectors::mqtt::Route;
use rivulet_dataflow::{QueryId, Slot};
use rivulet_sql::{BindError, ParamValue, ParameterRows};

use super::output::write_topic;
use super::registry::{Entry, Registry};
use super::{Engine, Running, State};
use crate::catalog::{ApplicationNumber, NewQuery};
use crate::service::{ErrorKind, Parameter, ParameterValue, QueryRequest, ServiceError, is_generated_name};

/// The longest name of a query, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// How many queries are started together when the catalog is loaded.
const LOAD_BATCH: usize = 4_096;

/// Requests for one application out of a batch, whose values were bound.
struct Chunk {
    running: Arc<Running>,
    values: ParameterRows,
    /// Which request each row came from.
    requests: Vec<usize>,
}

/// Requests for one application that only their names can still be wrong with.
struct Checked {
    running: Arc<Running>,
    rows: RecordBatch,
    /// For each row the topic that its query reads, and the request it came from.
    inputs: Vec<String>,
    requests: Vec<usize>,
}

/// An answer for each request, once it is known.
type Answers = [Option<Result<QueryId, ServiceError>>];

impl Engine {
    /// Submits a batch; see [`crate::service::Service::submit`].
    pub(super) fn submit_batch(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        let mut answers: Vec<Option<Result<QueryId, ServiceError>>> = requests.iter().map(|_| None).collect();
        // Everything that can be checked is, before others have to wait for the state.
        let mut chunks: Vec<Checked> =
            self.bind(requests, &mut answers).into_iter().map(|chunk| chunk.check(&mut answers)).collect();
        let mut state = self.state.lock();
        let mut names = HashSet::default();
        for chunk in &mut chunks {
            let running = chunk.running.clone();
            let is_there = state.numbered.contains_key(&running.number);
            chunk.retain(&mut answers, |_, index, _| {
                if !is_there {
                    let name = &running.application.name;
                    return Err(ServiceError::not_found(format!("the application '{name}' was dropped meanwhile")));
                }
                check_name(&state, &mut names, &requests[index])
            });
        }
        self.start(&mut state, &chunks, requests, &mut answers);
        answers.into_iter().map(|answer| answer.expect("every request was answered")).collect()
    }

    /// Sorts requests by application and binds their parameters; what cannot be bound is answered.
    fn bind(&self, requests: &[QueryRequest<'_>], answers: &mut Answers) -> Vec<Chunk> {
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut by_name: HashMap<&str, Result<usize, ServiceError>, RandomState> = HashMap::default();
        for (index, request) in requests.iter().enumerate() {
            let chunk = by_name.entry(request.application).or_insert_with(|| {
                let running = self.state.lock().application(request.application)?;
                let values = ParameterRows::new(&running.application);
                chunks.push(Chunk { running, values, requests: Vec::new() });
                Ok(chunks.len() - 1)
            });
            let chunk = match chunk {
                Ok(chunk) => &mut chunks[*chunk],
                Err(error) => {
                    answers[index] = Some(Err(error.clone()));
                    continue;
                }
            };
            let values = request.parameters.iter().map(|(name, value)| (name.as_ref(), param_value(value)));
            match chunk.values.push(values) {
                Ok(()) => chunk.requests.push(index),
                Err(error) => answers[index] = Some(Err(bind_error(error))),
            }
        }
        chunks
    }

    /// Remembers queries, all in one transaction, then lets them run.
    fn start(&self, state: &mut State, chunks: &[Checked], requests: &[QueryRequest<'_>], answers: &mut Answers) {
        let stored: Vec<NewQuery<'_>> = chunks
            .iter()
            .flat_map(|chunk| chunk.requests.iter().map(|&index| (chunk.running.number, &requests[index])))
            .map(|(application, request)| NewQuery {
                application,
                name: request.name.unwrap_or_default(),
                parameters: request.parameters,
            })
            .collect();
        if stored.is_empty() {
            return;
        }
        let mut next = match self.catalog.insert_queries(&stored) {
            Ok(first) => first,
            Err(error) => {
                let error = ServiceError::from(error);
                let indices = chunks.iter().flat_map(|chunk| &chunk.requests);
                indices.for_each(|&index| answers[index] = Some(Err(error.clone())));
                return;
            }
        };
        for Checked { running, rows, inputs, requests: indices } in chunks.iter().filter(|one| !one.requests.is_empty())
        {
            let queries: Vec<QueryId> = (next..).take(indices.len()).collect();
            next += queries.len() as u64;
            let slots = running.group.add(&queries, rows);
            self.add_routes(running, &slots, inputs);
            for ((&id, &slot), &index) in queries.iter().zip(&slots).zip(indices) {
                state.registry.insert(id, requests[index].name, running.number, Some(slot), false);
                answers[index] = Some(Ok(id));
            }
            running.queries_running.fetch_add(slots.len() as u64, Ordering::Relaxed);
        }
    }

    /// Lets events of the topics reach the slots, a topic for each slot.
    fn add_routes(&self, running: &Running, slots: &[Slot], topics: &[String]) {
        if running.topics.input_filter.is_none() {
            self.messaging.subscribe(topics.iter().map(String::as_str));
        }
        // Topics were checked when the query was bound, and the inbox is registered as long as the application runs.
        if let Err(error) = self.messaging.router().add(&routes(running, slots, topics)) {
            tracing::error!(application = running.application.name, "queries get no events (a defect): {error}");
        }
    }

    fn remove_routes(&self, running: &Running, slots: &[Slot]) {
        let topics = topics_of(running, slots);
        self.messaging.router().remove(&routes(running, slots, &topics));
        if running.topics.input_filter.is_none() {
            self.messaging.unsubscribe(topics.iter().map(String::as_str));
        }
    }

    /// Ends queries of one application that the catalog has forgotten already.
    pub(super) fn stop_queries(&self, state: &mut State, application: ApplicationNumber, queries: &[QueryId]) {
        let (mut slots, mut routed, mut not_running) = (Vec::new(), Vec::new(), 0);
        for &id in queries {
            match state.registry.remove(id) {
                Some(Entry { slot: Some(slot), is_paused, .. }) => {
                    slots.push(slot);
                    if !is_paused {
                        routed.push(slot);
                    }
                }
                Some(_) => not_running += 1,
                None => {}
            }
            self.taps.forget(id);
        }
        if let Some(count) = state.queries_not_running.get_mut(&application) {
            *count -= not_running;
        }
        if let Some(running) = state.numbered.get(&application) {
            running.queries_running.fetch_sub(routed.len() as u64, Ordering::Relaxed);
            running.queries_paused.fetch_sub((slots.len() - routed.len()) as u64, Ordering::Relaxed);
            self.remove_routes(running, &routed);
            running.group.remove(&slots);
        }
    }

    /// Drops one query.
    pub(super) fn drop_one(&self, name: &str) -> Result<(), ServiceError> {
        let mut state = self.state.lock();
        let id = state.query(name)?;
        let application = state.registry.get(id).expect("the query was found by name").application;
        self.catalog.remove_queries(&[id])?;
        self.stop_queries(&mut state, application, &[id]);
        Ok(())
    }

    /// Pauses or resumes one query; doing so twice does nothing.
    pub(super) fn set_paused(&self, name: &str, is_paused: bool) -> Result<(), ServiceError> {
        let mut state = self.state.lock();
        let id = state.query(name)?;
        let (running, slot) = state.place(id)?;
        let entry = state.registry.get(id).expect("the query was found by name");
        if entry.is_paused == is_paused {
            return Ok(());
        }
        self.catalog.set_paused(&[id], is_paused)?;
        let (from, to) = if is_paused {
            self.remove_routes(&running, &[slot]);
            (&running.queries_running, &running.queries_paused)
        } else {
            self.add_routes(&running, &[slot], &topics_of(&running, &[slot]));
            (&running.queries_paused, &running.queries_running)
        };
        from.fetch_sub(1, Ordering::Relaxed);
        to.fetch_add(1, Ordering::Relaxed);
        state.registry.get_mut(id).expect("the query was found by name").is_paused = is_paused;
        Ok(())
    }

    /// Lets all queries run that the catalog remembers, and returns how many do. The others stay in the registry, so that
    /// they are listed and their names are taken.
    pub(super) fn load_queries(&self, state: &mut State) -> Result<u64, ServiceError> {
        let mut waiting: HashMap<ApplicationNumber, Loading> = HashMap::new();
        let mut loaded = 0;
        self.catalog.scan_queries(|query| {
            let name = (!query.name.is_empty()).then_some(query.name);
            // In order of number, as the registry wants it; the slot follows with those of its application.
            state.registry.insert(query.id, name, query.application, None, query.paused);
            let Some(running) = state.numbered.get(&query.application) else {
                *state.queries_not_running.entry(query.application).or_default() += 1;
                return;
            };
            let loading = waiting.entry(query.application).or_insert_with(|| Loading {
                running: running.clone(),
                rows: ParameterRows::new(&running.application),
                queries: Vec::new(),
            });
            let values = query.parameters.iter().map(|(name, value)| (name.as_ref(), param_value(value)));
            if let Err(error) = loading.rows.push(values) {
                tracing::error!(query = query.id, "a registered query is not running: {error}");
                *state.queries_not_running.entry(query.application).or_default() += 1;
                return;
            }
            loading.queries.push(query.id);
            loaded += 1;
            if loading.queries.len() == LOAD_BATCH {
                self.start_loaded(&mut state.registry, loading);
            }
        })?;
        for loading in waiting.values_mut() {
            self.start_loaded(&mut state.registry, loading);
        }
        Ok(loaded)
    }

    fn start_loaded(&self, registry: &mut Registry, loading: &mut Loading) {
        let running = &loading.running;
        let rows = loading.rows.finish();
        let queries = std::mem::take(&mut loading.queries);
        let slots = running.group.add(&queries, &rows);
        let mut routed = Vec::with_capacity(slots.len());
        for (&id, &slot) in queries.iter().zip(&slots) {
            let entry = registry.get_mut(id).expect("the query was inserted when it was read");
            entry.slot = Some(slot);
            if !entry.is_paused {
                routed.push(slot);
            }
        }
        self.add_routes(running, &routed, &topics_of(running, &routed));
        running.queries_running.fetch_add(routed.len() as u64, Ordering::Relaxed);
        running.queries_paused.fetch_add((slots.len() - routed.len()) as u64, Ordering::Relaxed);
    }
}

/// Queries of one application that are about to run again.
struct Loading {
    running: Arc<Running>,
    rows: ParameterRows,
    queries: Vec<QueryId>,
}

impl Chunk {
    /// Checks the values together and binds the topics; what does not fit is answered.
    fn check(mut self, answers: &mut Answers) -> Checked {
        let Self { running, requests, .. } = self;
        let rows = self.values.finish();
        let mut values = running.application.check(&rows).into_iter();
        let topics = running.topics.bind(&rows);
        let inputs = vec![String::new(); requests.len()];
        let mut checked = Checked { running: running.clone(), rows: rows.clone(), inputs, requests };
        checked.retain(answers, |row, _, input| {
            values.next().expect("a check of each row").map_err(bind_error)?;
            *input = topics(row)?;
            Ok(())
        });
        checked
    }
}

impl Checked {
    /// Keeps the queries that pass `check` (given row, request and input topic), and answers the others.
    fn retain(
        &mut self,
        answers: &mut Answers,
        mut check: impl FnMut(usize, usize, &mut String) -> Result<(), ServiceError>,
    ) {
        let mut keep = Vec::with_capacity(self.requests.len());
        for (row, (&index, input)) in self.requests.iter().zip(&mut self.inputs).enumerate() {
            let outcome = check(row, index, input);
            keep.push(outcome.is_ok());
            if let Err(error) = outcome {
                answers[index] = Some(Err(error));
            }
        }
        if keep.iter().all(|&keep| keep) {
            return;
        }
        let mut kept = keep.iter().copied();
        self.inputs.retain(|_| kept.next().expect("a bit for each row"));
        let mut kept = keep.iter().copied();
        self.requests.retain(|_| kept.next().expect("a bit for each row"));
        self.rows = filter_record_batch(&self.rows, &BooleanArray::from(keep)).expect("a bit for each row");
    }
}

impl State {
    /// Group and slot of a query; one that does not run has none.
    pub(super) fn place(&self, id: QueryId) -> Result<(Arc<Running>, Slot), ServiceError> {
        let entry = self.registry.get(id).expect("the query is in the registry");
        match (self.numbered.get(&entry.application), entry.slot) {
            (Some(running), Some(slot)) => Ok((running.clone(), slot)),
            _ => {
                let name = self.registry.name(id);
                Err(ServiceError::new(ErrorKind::Conflict, format!("the query '{name}' is not running"))
                    .with_hint(format!("SHOW APPLICATIONS and the server's log say why; DROP QUERY {name} removes it")))
            }
        }
    }
}

/// The topics that queries read.
fn topics_of(running: &Running, slots: &[Slot]) -> Vec<String> {
    let topics = running.group.with_queries(slots, |table, slot| {
        let mut topic = String::new();
        write_topic(&running.topics.input, table, slot, &mut topic);
        topic
    });
    topics.into_iter().map(Option::unwrap_or_default).collect()
}

fn check_name<'a>(
    state: &State,
    names: &mut HashSet<&'a str, RandomState>,
    request: &QueryRequest<'a>,
) -> Result<(), ServiceError> {
    let Some(name) = request.name else { return Ok(()) };
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(ServiceError::invalid(format!(
            "a query's name has 1 to {NAME_BYTES_MAX} bytes and no control characters"
        )));
    }
    if is_generated_name(name).is_some() {
        return Err(ServiceError::invalid(format!("'{name}' has the form of a generated name"))
            .with_hint("choose another name, or none to have one generated"));
    }
    if state.registry.contains(name) || !names.insert(name) {
        return Err(ServiceError::new(ErrorKind::AlreadyExists, format!("a query '{name}' exists"))
            .with_hint(format!("choose another name, or drop it first: DROP QUERY {name}")));
    }
    Ok(())
}

fn routes<'a>(running: &Running, slots: &[Slot], topics: &'a [String]) -> Vec<Route<'a>> {
    slots.iter().zip(topics).map(|(&slot, topic)| Route { filter: topic, inbox: running.inbox, slot }).collect()
}

fn param_value<'a>(value: &'a ParameterValue<'_>) -> ParamValue<'a> {
    match value {
        ParameterValue::Null => ParamValue::Null,
        ParameterValue::Bool(value) => ParamValue::Boolean(*value),
        ParameterValue::Int(value) => ParamValue::Integer(*value),
        ParameterValue::Float(value) => ParamValue::Float(*value),
        ParameterValue::Text(value) => ParamValue::Text(value),
    }
}

fn bind_error(error: BindError) -> ServiceError {
    let refused = ServiceError::invalid(error.message);
    match error.hint {
        Some(hint) => refused.with_hint(hint),
        None => refused,
    }
}

/// Parameter values given in SQL, as the catalog and the API know them.
pub(super) fn parameters_of(
    values: &[(rivulet_sql::Name, rivulet_sql::Literal, rivulet_sql::Position)],
) -> Vec<Parameter<'_>> {
    values
        .iter()
        .map(|(name, literal, _)| (name.text.as_str().into(), super::statements::as_written(literal)))
        .collect()
}
