//! What a SELECT may read besides sources, views and tables: topics, what applications read and write, and the results
//! of queries. Each becomes a source that exists for that SELECT alone.
//!
//! What must hold: no query waits for a reader. A topic is read by a route of its own, whose queue drops the oldest
//! messages. Results are those that [`Taps`](crate::engine::taps::Taps) give to every reader, and results that a reader
//! misses are counted as refused for that reader alone.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use rivulet_connectors::formats::{Format, InputFormat};
use rivulet_dataflow::{Decoder, Events, Polled, Reason, Refusals, Source, SourceError};
use rivulet_operators::application::{Address, Application, FormatSpec, Output};
use rivulet_sql::{
    BigQuery, Literal, Name, PlannedSource, Position, Scope, SourceDeclaration, name_in_sql, relations_of,
};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use super::BigQueries;
use super::whole::{May, WholeTables};
use crate::engine::prepare::format;
use crate::engine::topics::OutputAddress;
use crate::run::{CONNECTORS, Given};
use crate::service::{ErrorKind, LiveResult, ResourceKind, ServiceError, Tenant};

/// The beginning of the address of a query's results. No statement can name it: it is not a connector.
const RESULTS: &str = "results:";

/// The beginning of the name of a topic.
const TOPIC: &str = "mqtt:";

/// The name of the column with the topic, if no other column has it.
const TOPIC_COLUMN: &str = "topic";

/// The name of an output without one.
const OUTPUT: &str = "output";

/// The format whose texts are read without conversion.
const JSON: &str = "json";

/// How long to wait when there is no result.
const IDLE: Duration = Duration::from_millis(5);

impl BigQueries {
    /// Adds to the scope what a SELECT reads and the scope lacks.
    pub(super) fn add_looked_at(
        &self,
        tenant: &Tenant,
        query: &BigQuery,
        scope: &mut Scope,
        may: May<'_>,
    ) -> Result<(), ServiceError> {
        for (parts, position) in relations_of(query)? {
            let name = Name { text: parts.join("."), position };
            if scope.has_relation(&name.text) {
                continue;
            }
            let found = match parts.as_slice() {
                [topic] if topic.starts_with(TOPIC) => Some(of_topic(&name, &topic[TOPIC.len()..], may)?),
                [query] => self.of_results(tenant, &name, query, may)?,
                [application, part] => self.of_application(tenant, &name, application, part, may)?,
                _ => None,
            };
            if let Some(source) = found {
                scope.add_source(source)?;
            }
        }
        Ok(())
    }

    /// What is said where a SELECT could not be planned: why a table has no rows, and of the name of an application,
    /// what to read in its place.
    pub(super) fn refused_look(&self, tenant: &Tenant, query: &BigQuery, error: ServiceError) -> ServiceError {
        for (parts, position) in relations_of(query).unwrap_or_default() {
            let [text] = parts.as_slice() else { continue };
            let is_about = (error.line, error.column) == (Some(position.line), Some(position.column));
            let name = tenant.named(text);
            let table = self.tables.info(&name).ok().filter(|_| is_about);
            if let Some(reason) = table.and_then(|table| table.not_running) {
                let message = format!("the table '{text}' is not running: {reason}");
                return ServiceError::new(ErrorKind::Conflict, message).at(position.line, position.column);
            }
            let Some(running) = self.queries.applications.find(&name).ok().filter(|_| is_about) else { continue };
            let application = name_in_sql(text);
            let parts = parts_of(&running.application).map(|part| format!("FROM {application}.{}", name_in_sql(part)));
            let parts: Vec<String> = parts.collect();
            return ServiceError::invalid(format!("'{text}' is an application, whose inputs and outputs can be read"))
                .at(position.line, position.column)
                .with_hint(format!("write {}", parts.join(" or ")));
        }
        error
    }

    /// Opens the tables that a SELECT of a tenant reads, and the results of queries.
    pub(super) fn given_to_select(&self, tenant: &Tenant, tables: WholeTables) -> Box<Given> {
        let (queries, tenant) = (self.queries.clone(), tenant.clone());
        Box::new(move |planned: &PlannedSource| {
            if let Some(table) = tables.open(planned) {
                return Some(table);
            }
            let query = planned.declaration.address.strip_prefix(RESULTS)?;
            let open = || -> Result<Box<dyn Source>, ServiceError> {
                let schema = planned.declaration.schema.project(&planned.columns);
                let schema = schema.map_err(|error| ServiceError::new(ErrorKind::Internal, error.to_string()))?;
                let format = planned.declaration.format.as_ref();
                let source = ResultSource::new(queries.watch(&tenant.named(query))?, Arc::new(schema), format)?;
                Ok(Box::new(source))
            };
            Some(open())
        })
    }

    /// The results of a query as a source, if there is a query of this name.
    fn of_results(
        &self,
        tenant: &Tenant,
        name: &Name,
        query: &str,
        may: May<'_>,
    ) -> Result<Option<SourceDeclaration>, ServiceError> {
        let full_name = tenant.named(query);
        let big = self.known.lock().queries.get(&full_name).map(|one| one.plan.clone());
        let mut format = None;
        let fields: Vec<FieldRef> = match big {
            Some(Some(plan)) => {
                let op = plan.output.changes.then(|| Arc::new(Field::new("op", DataType::Utf8, true)));
                op.into_iter().chain(plan.output.schema.fields().iter().cloned()).collect()
            }
            Some(None) => return Err(not_running(name, query)),
            None if !self.queries.state.lock().has_query(&full_name) => return Ok(None),
            None => {
                let application = self.queries.info(&full_name)?.application;
                let running = self.queries.applications.find(&tenant.named(&application));
                let running = running.map_err(|_| not_running(name, query))?;
                // Readers get the text of the first output, if that is JSON.
                let output = running.application.outputs.first();
                format = output.map(|output| output.format.clone()).filter(|format| format.name == JSON);
                output.map(|output| output.schema.fields().to_vec()).unwrap_or_default()
            }
        };
        may(ResourceKind::Query, query)?;
        let fields: Vec<Field> = fields.iter().map(|field| as_decoded(field)).collect();
        Ok(Some(source(name, format!("{RESULTS}{query}"), Arc::new(Schema::new(fields)), format, Vec::new())))
    }

    /// The events of an input of an application, or the rows of an output, of all its queries and devices.
    fn of_application(
        &self,
        tenant: &Tenant,
        name: &Name,
        application: &str,
        part: &str,
        may: May<'_>,
    ) -> Result<Option<SourceDeclaration>, ServiceError> {
        let Ok(running) = self.queries.applications.find(&tenant.named(application)) else { return Ok(None) };
        let one = &running.application;
        let filter = |filter: Option<String>| {
            let filter = filter.ok_or_else(|| {
                let message = format!("of '{name}' each query has an address of its own");
                ServiceError::invalid(message)
                    .or_at(name.position)
                    .with_hint("read the topic itself: FROM \"mqtt:a/topic\"")
            })?;
            may(ResourceKind::Topic, &filter).map_err(|error| error.or_at(name.position))?;
            Ok::<_, ServiceError>(filter)
        };
        if let Some(place) = one.inputs.iter().position(|input| input.name == part) {
            let (input, topics) = (&one.inputs[place], &running.topics.inputs[place]);
            if topics.source.is_some() {
                // Messages without places come once: nobody else can listen where the application does.
                let messages = CONNECTORS.messages(&input.address.connector);
                let hint = match messages.is_ok_and(|messages| messages.place.is_none()) {
                    true => "read the results of a query by its name: FROM query",
                    false => {
                        "declare a source of the same address and read that, or read the results of a query: FROM query"
                    }
                };
                return Err(no_topic(name, "comes from", &input.address).with_hint(hint));
            }
            let columns = |places: &[usize]| {
                let names = places.iter().map(|&column| input.schema.field(column).name().as_str());
                names.collect::<Vec<_>>().join(", ")
            };
            let mut options = Vec::new();
            if !input.topic.levels.is_empty() {
                options.push(("level_columns", columns(&input.topic.levels)));
            }
            let (schema, topic) = match input.topic.whole {
                Some(column) => (input.schema.clone(), Some(columns(&[column]))),
                None => with_topic(&input.schema),
            };
            options.extend(topic.map(|topic| ("topic_column", topic)));
            let address = format!("{TOPIC}{}", filter(topics.events.filter())?);
            let mut source = source(name, address, schema, Some(input.format.clone()), options);
            source.event_time_column = input.event_time;
            source.lateness_us = input.lateness_us;
            source.idle_timeout_us = Some(input.idle_timeout_us);
            source.future_limit_us = Some(input.future_limit_us);
            return Ok(Some(source));
        }
        let is_meant = |output: &Output| match &output.name {
            Some(name) => name == part,
            None => part == OUTPUT,
        };
        let Some(place) = one.outputs.iter().position(is_meant) else { return Err(no_part(name, one, part)) };
        let output = &one.outputs[place];
        let fields: Vec<Field> = output.schema.fields().iter().map(|field| as_decoded(field)).collect();
        let (schema, topic) = with_topic(&Arc::new(Schema::new(fields)));
        let options = topic.map(|topic| ("topic_column", topic)).into_iter().collect();
        let OutputAddress::Topic(template) = &running.topics.outputs[place] else {
            return Err(no_topic(name, "goes to", &output.address)
                .with_hint("read the results of a query by its name: FROM query"));
        };
        let address = format!("{TOPIC}{}", filter(template.filter())?);
        Ok(Some(source(name, address, schema, Some(output.format.clone()), options)))
    }
}

/// The messages of a topic, or of all topics that match a filter: topic and payload.
fn of_topic(name: &Name, filter: &str, may: May<'_>) -> Result<SourceDeclaration, ServiceError> {
    may(ResourceKind::Topic, filter).map_err(|error| error.or_at(name.position))?;
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let schema = Arc::new(Schema::new(vec![text(TOPIC_COLUMN), text("payload")]));
    let format = FormatSpec { name: "raw".into(), options: Vec::new(), position: (0, 0) };
    let options = vec![("topic_column", TOPIC_COLUMN.to_owned())];
    Ok(source(name, format!("{TOPIC}{filter}"), schema, Some(format), options))
}

/// A source that no statement has declared.
fn source(
    name: &Name,
    address: String,
    schema: SchemaRef,
    format: Option<FormatSpec>,
    options: Vec<(&str, String)>,
) -> SourceDeclaration {
    let position = name.position;
    let option = |(option, value): (&str, String)| {
        (Name { text: option.to_owned(), position }, Literal::Text(value), Position::default())
    };
    let mut source = SourceDeclaration::undeclared(name.clone(), schema, address);
    source.format = format;
    source.options = options.into_iter().map(option).collect();
    source
}

/// The columns, followed by the topic unless one of them has its name.
fn with_topic(schema: &SchemaRef) -> (SchemaRef, Option<String>) {
    if schema.index_of(TOPIC_COLUMN).is_ok() {
        return (schema.clone(), None);
    }
    let topic = Arc::new(Field::new(TOPIC_COLUMN, DataType::Utf8, true));
    let fields: Vec<_> = schema.fields().iter().cloned().chain([topic]).collect();
    (Arc::new(Schema::new(fields)), Some(TOPIC_COLUMN.to_owned()))
}

/// A column of a result with the type that is read from the result's text.
fn as_decoded(field: &Field) -> Field {
    let data_type = match field.data_type() {
        known @ (DataType::Int64 | DataType::Float64 | DataType::Boolean | DataType::Timestamp(..)) => known.clone(),
        number if number.is_numeric() => DataType::Float64,
        _ => DataType::Utf8,
    };
    Field::new(field.name(), data_type, true)
}

fn not_running(name: &Name, query: &str) -> ServiceError {
    let error = ServiceError::new(ErrorKind::Conflict, format!("the query '{query}' is not running"));
    error.or_at(name.position).with_hint("it has results again when it runs")
}

/// An input or output whose rows do not pass a topic, so that nobody can read beside it.
fn no_topic(name: &Name, how: &str, address: &Address) -> ServiceError {
    let message = format!("'{name}' {how} '{}:', and only topics can be read beside", address.connector);
    ServiceError::invalid(message).or_at(name.position)
}

/// The names of its inputs and outputs.
fn parts_of(application: &Application) -> impl Iterator<Item = &str> {
    let inputs = application.inputs.iter().map(|input| input.name.as_str());
    inputs.chain(application.outputs.iter().map(|output| output.name.as_deref().unwrap_or(OUTPUT)))
}

fn no_part(name: &Name, application: &Application, part: &str) -> ServiceError {
    let known: Vec<&str> = parts_of(application).collect();
    let message = format!("the application '{}' has no input or output '{part}'", application.name);
    ServiceError::not_found(message).or_at(name.position).with_hint(format!("there are {}", known.join(", ")))
}

/// The results of a query as rows.
struct ResultSource {
    results: Receiver<Arc<LiveResult>>,
    decoder: Box<dyn Decoder>,
    /// Results that wait to be decoded.
    events: Events,
}

impl ResultSource {
    fn new(
        results: Receiver<Arc<LiveResult>>,
        schema: SchemaRef,
        written: Option<&FormatSpec>,
    ) -> Result<Self, ServiceError> {
        let times = written.map(format).transpose()?.map(|(_, times)| times).unwrap_or_default();
        let (format, topic_columns) = (Format::Json, Vec::new());
        let format = InputFormat { format, times, schema, event_time_column: None, topic_columns };
        let decoder = format.decoder().map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error.to_string()));
        Ok(Self { results, decoder: decoder?, events: Events::default() })
    }
}

impl Source for ResultSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let mut is_over = false;
        while self.events.rows() < rows_max.max(1) {
            match self.results.try_recv() {
                Ok(result) => {
                    refusals.count(Reason::Overflow, result.skipped);
                    self.events.push(0, now_us, result.text.as_bytes());
                }
                Err(TryRecvError::Lagged(count)) => refusals.count(Reason::Overflow, count),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Closed) => {
                    is_over = true;
                    break;
                }
            }
        }
        if self.events.is_empty() {
            return Ok(if is_over { Polled::End } else { Polled::Nothing(IDLE) });
        }
        let columns = self.decoder.decode(&self.events, refusals).columns;
        self.events.clear();
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(Duration::ZERO),
            _ => Polled::Rows { columns, retracts: None, arrival_us: now_us },
        })
    }

    fn is_live(&self) -> bool {
        true
    }
}
