//! Queries come, pause, resume and go, thousands at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use rivulet_connectors::mqtt::{Direction, Route, Template};
use rivulet_dataflow::{QueryId, Slot};
use rivulet_sql::{Address, Application, BindError, ParamValue, ParameterRows, Part};

use super::output::write_topic;
use super::{Engine, Running, State};
use crate::catalog::{ApplicationNumber, NewQuery};
use crate::service::{ErrorKind, Parameter, ParameterValue, QueryRequest, ServiceError, is_generated_name};

/// The longest name of a query, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// How many queries are started together when the catalog is loaded.
const LOAD_BATCH: usize = 4_096;

/// Where an application's events come from and its rows go to.
#[derive(Clone, Debug)]
pub(super) struct Topics {
    pub(super) input: Template,
    /// The one subscription that serves all queries; `None` where each query names its own input.
    pub(super) input_filter: Option<String>,
    pub(super) output: Template,
    pub(super) late: Option<Template>,
    pub(super) dead_letter: Option<Template>,
}

impl Topics {
    /// Reads the addresses of an application.
    pub(super) fn new(application: &Application) -> Result<Self, ServiceError> {
        let names: Vec<&str> = application.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let output = |address: &Address| template(address, &names, Direction::Output);
        let input = template(&application.input.address, &names, Direction::Input)?;
        Ok(Self {
            input_filter: input.filter(),
            input,
            output: output(&application.output.address)?,
            late: application.input.late.as_ref().map(output).transpose()?,
            dead_letter: application.input.dead_letter.as_ref().map(output).transpose()?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Template> {
        [Some(&self.input), Some(&self.output), self.late.as_ref(), self.dead_letter.as_ref()].into_iter().flatten()
    }
}

fn template(address: &Address, names: &[&str], direction: Direction) -> Result<Template, ServiceError> {
    let at = |error: ServiceError| error.at(address.position.line, address.position.column);
    if address.connector != "mqtt" {
        return Err(at(ServiceError::invalid(format!("unknown connector '{}'", address.connector))
            .with_hint("there is one connector: 'mqtt:topic/{parameter}'")));
    }
    let text: String = address
        .parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Parameter(index) => format!("{{{}}}", names[*index]),
        })
        .collect();
    Template::parse(&text, names, direction).map_err(|error| at(split_hint(&error.to_string())))
}

/// Requests for one application out of a batch.
struct Chunk {
    running: Arc<Running>,
    rows: ParameterRows,
    /// Which request each row came from.
    requests: Vec<usize>,
}

impl Engine {
    /// Submits a batch; see [`crate::service::Service::submit`].
    pub(super) fn submit_batch(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        let mut answers: Vec<Option<Result<QueryId, ServiceError>>> = requests.iter().map(|_| None).collect();
        let chunks = self.bind(requests, &mut answers);
        let mut state = self.state.lock();
        let mut names = HashSet::new();
        for Chunk { running, rows: mut bound, requests: indices } in chunks {
            let rows = bound.finish();
            let keep: Vec<bool> = running
                .application
                .check(&rows)
                .into_iter()
                .enumerate()
                .map(|(row, checked)| {
                    let request = &requests[indices[row]];
                    let outcome = checked
                        .map_err(bind_error)
                        .and_then(|()| running.check_topics(&rows, row))
                        .and_then(|()| check_name(&state, &mut names, request));
                    match outcome {
                        Ok(()) => true,
                        Err(error) => {
                            answers[indices[row]] = Some(Err(error));
                            false
                        }
                    }
                })
                .collect();
            let (rows, indices) = compress(rows, indices, &keep);
            if indices.is_empty() {
                continue;
            }
            match self.start(&mut state, &running, &rows, &indices, requests) {
                Ok(first) => (first..).zip(&indices).for_each(|(id, &index)| answers[index] = Some(Ok(id))),
                Err(error) => indices.iter().for_each(|&index| answers[index] = Some(Err(error.clone()))),
            }
        }
        answers.into_iter().map(|answer| answer.expect("every request was answered")).collect()
    }

    /// Sorts requests by application and binds their parameters; what cannot be bound is answered.
    fn bind(&self, requests: &[QueryRequest<'_>], answers: &mut [Option<Result<QueryId, ServiceError>>]) -> Vec<Chunk> {
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut by_name: HashMap<&str, Result<usize, ServiceError>> = HashMap::new();
        for (index, request) in requests.iter().enumerate() {
            let chunk = by_name.entry(request.application).or_insert_with(|| {
                let running = self.state.lock().application(request.application)?;
                let rows = ParameterRows::new(&running.application);
                chunks.push(Chunk { running, rows, requests: Vec::new() });
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
            match chunk.rows.push(values) {
                Ok(()) => chunk.requests.push(index),
                Err(error) => answers[index] = Some(Err(bind_error(error))),
            }
        }
        chunks
    }

    /// Remembers queries of one application, then lets them run. Returns the first of their consecutive numbers.
    fn start(
        &self,
        state: &mut State,
        running: &Arc<Running>,
        rows: &RecordBatch,
        indices: &[usize],
        requests: &[QueryRequest<'_>],
    ) -> Result<QueryId, ServiceError> {
        if !state.numbered.contains_key(&running.number) {
            let name = &running.application.name;
            return Err(ServiceError::not_found(format!("the application '{name}' was dropped meanwhile")));
        }
        let stored: Vec<NewQuery<'_>> = indices
            .iter()
            .map(|&index| NewQuery {
                application: running.number,
                name: requests[index].name.unwrap_or_default(),
                parameters: requests[index].parameters,
            })
            .collect();
        let first = self.catalog.insert_queries(&stored)?;
        let queries: Vec<QueryId> = (first..).take(indices.len()).collect();
        let slots = running.group.add(&queries, rows);
        self.add_routes(running, &slots);
        for ((&id, &slot), &index) in queries.iter().zip(&slots).zip(indices) {
            state.registry.insert(id, requests[index].name, running.number, slot, false);
        }
        running.queries_running.fetch_add(slots.len() as u64, Ordering::Relaxed);
        Ok(first)
    }

    fn add_routes(&self, running: &Running, slots: &[Slot]) {
        let topics = self.topics_of(running, slots);
        if running.topics.input_filter.is_none() {
            self.messaging.subscribe(topics.iter().map(String::as_str));
        }
        // Topics were checked when the query was bound, and the inbox is registered as long as the application runs.
        if let Err(error) = self.messaging.router().add(&routes(running, slots, &topics)) {
            tracing::error!(application = running.application.name, "queries get no events (a defect): {error}");
        }
    }

    fn remove_routes(&self, running: &Running, slots: &[Slot]) {
        let topics = self.topics_of(running, slots);
        self.messaging.router().remove(&routes(running, slots, &topics));
        if running.topics.input_filter.is_none() {
            self.messaging.unsubscribe(topics.iter().map(String::as_str));
        }
    }

    fn topics_of(&self, running: &Running, slots: &[Slot]) -> Vec<String> {
        running.group.with_slots(|table| {
            slots
                .iter()
                .map(|&slot| {
                    let mut topic = String::new();
                    write_topic(&running.topics.input, table, slot, &mut topic);
                    topic
                })
                .collect()
        })
    }

    /// Ends queries of one application that the catalog has forgotten already.
    pub(super) fn stop_queries(&self, state: &mut State, running: &Running, queries: &[QueryId]) {
        let (mut slots, mut routed) = (Vec::new(), Vec::new());
        for &id in queries {
            if let Some(entry) = state.registry.remove(id) {
                slots.push(entry.slot);
                if entry.is_paused {
                    running.queries_paused.fetch_sub(1, Ordering::Relaxed);
                } else {
                    routed.push(entry.slot);
                    running.queries_running.fetch_sub(1, Ordering::Relaxed);
                }
            }
            self.taps.forget(id);
        }
        self.remove_routes(running, &routed);
        running.group.remove(&slots);
    }

    /// Drops one query.
    pub(super) fn drop_one(&self, name: &str) -> Result<(), ServiceError> {
        let mut state = self.state.lock();
        let id = state.query(name)?;
        let running = state.of_query(id);
        self.catalog.remove_queries(&[id])?;
        self.stop_queries(&mut state, &running, &[id]);
        Ok(())
    }

    /// Pauses or resumes one query; doing so twice does nothing.
    pub(super) fn set_paused(&self, name: &str, is_paused: bool) -> Result<(), ServiceError> {
        let mut state = self.state.lock();
        let id = state.query(name)?;
        let running = state.of_query(id);
        let entry = state.registry.get(id).expect("the query was found by name");
        if entry.is_paused == is_paused {
            return Ok(());
        }
        let slot = entry.slot;
        self.catalog.set_paused(&[id], is_paused)?;
        let (from, to) = if is_paused {
            self.remove_routes(&running, &[slot]);
            (&running.queries_running, &running.queries_paused)
        } else {
            self.add_routes(&running, &[slot]);
            (&running.queries_paused, &running.queries_running)
        };
        from.fetch_sub(1, Ordering::Relaxed);
        to.fetch_add(1, Ordering::Relaxed);
        state.registry.get_mut(id).expect("the query was found by name").is_paused = is_paused;
        Ok(())
    }

    /// Lets all queries run that the catalog remembers. Returns how many.
    pub(super) fn load_queries(&self, state: &mut State) -> Result<u64, ServiceError> {
        let mut waiting: HashMap<ApplicationNumber, Loading> = HashMap::new();
        let (mut loaded, mut failed) = (0, 0u64);
        self.catalog.scan_queries(|query| {
            let Some(running) = state.numbered.get(&query.application) else {
                failed += 1;
                return;
            };
            let loading = waiting.entry(query.application).or_insert_with(|| Loading {
                running: running.clone(),
                rows: ParameterRows::new(&running.application),
                queries: Vec::new(),
            });
            let values = query.parameters.iter().map(|(name, value)| (name.as_ref(), param_value(value)));
            if let Err(error) = loading.rows.push(values) {
                tracing::error!(query = query.id, "a registered query does not run: {error}");
                failed += 1;
                return;
            }
            let name = (!query.name.is_empty()).then_some(query.name);
            // In order of number, as the registry wants it; the slot follows with those of its application.
            state.registry.insert(query.id, name, query.application, 0, query.paused);
            loading.queries.push(query.id);
            loaded += 1;
            if loading.queries.len() == LOAD_BATCH {
                self.start_loaded(&mut state.registry, loading);
            }
        })?;
        for loading in waiting.values_mut() {
            self.start_loaded(&mut state.registry, loading);
        }
        if failed > 0 {
            tracing::error!(queries = failed, "registered queries do not run; they stay in the catalog");
        }
        Ok(loaded)
    }

    fn start_loaded(&self, registry: &mut super::Registry, loading: &mut Loading) {
        let running = &loading.running;
        let rows = loading.rows.finish();
        let queries = std::mem::take(&mut loading.queries);
        let slots = running.group.add(&queries, &rows);
        let mut routed = Vec::with_capacity(slots.len());
        for (&id, &slot) in queries.iter().zip(&slots) {
            let entry = registry.get_mut(id).expect("the query was inserted when it was read");
            entry.slot = slot;
            if !entry.is_paused {
                routed.push(slot);
            }
        }
        self.add_routes(running, &routed);
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

impl State {
    /// The application of a query that is in the registry.
    pub(super) fn of_query(&self, id: QueryId) -> Arc<Running> {
        let entry = self.registry.get(id).expect("the query is in the registry");
        self.numbered[&entry.application].clone()
    }
}

impl Running {
    /// Whether the parameters in `row` give usable topics.
    fn check_topics(&self, rows: &RecordBatch, row: usize) -> Result<(), ServiceError> {
        let used: Vec<(usize, String)> = self
            .topics
            .all()
            .flat_map(Template::parameters)
            .map(|parameter| (parameter, parameter_text(rows.column(parameter), row)))
            .collect();
        for template in self.topics.all() {
            template
                .bind(|parameter| used.iter().find(|(index, _)| *index == parameter).map_or("", |(_, text)| text))
                .map_err(|error| split_hint(&error.to_string()))?;
        }
        Ok(())
    }
}

/// A parameter's value as [`SlotTable::write_text`](rivulet_dataflow::SlotTable::write_text) writes it.
fn parameter_text(column: &ArrayRef, row: usize) -> String {
    if column.is_null(row) {
        return String::new();
    }
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value(row).to_owned(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float64 => column.as_primitive::<Float64Type>().value(row).to_string(),
        DataType::Boolean => column.as_boolean().value(row).to_string(),
        _ => arrow::util::display::array_value_to_string(column, row).unwrap_or_default(),
    }
}

/// An error text of a connector, with its hint in the place for hints.
fn split_hint(text: &str) -> ServiceError {
    match text.split_once("\nhint: ") {
        Some((message, hint)) => ServiceError::invalid(message).with_hint(hint),
        None => ServiceError::invalid(text),
    }
}

fn check_name<'a>(state: &State, names: &mut HashSet<&'a str>, request: &QueryRequest<'a>) -> Result<(), ServiceError> {
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

/// The rows to keep, and the requests they came from.
fn compress(rows: RecordBatch, indices: Vec<usize>, keep: &[bool]) -> (RecordBatch, Vec<usize>) {
    if keep.iter().all(|&keep| keep) {
        return (rows, indices);
    }
    let rows =
        filter_record_batch(&rows, &BooleanArray::from(keep.to_vec())).expect("the mask has a value for each row");
    (rows, indices.into_iter().zip(keep).filter(|(_, keep)| **keep).map(|(index, _)| index).collect())
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
