//! Sources and sinks by their declarations: a statement becomes the specification for a connector, and an error of the
//! connector gets its position in the script.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use rivulet_connectors::connector::{
    ConnectorContext, ConnectorError, Connectors, Direction, EVENT_TIME_KEY, FinalUpTo, Health, SinkSpec, SourceSpec,
    secret_named,
};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{PartitionState, Sink, Source};
use rivulet_runtime::Partition;
use rivulet_sql::{
    FormatSpec, Literal, Name, PlannedOutput, PlannedSource, Position, SinkDeclaration, SourceDeclaration, SqlError,
    letter_schema,
};

use crate::service::{ErrorKind, ServiceError};

/// The connectors that statements can name: all connectors, with the generators of benchmarks and demonstrations.
pub static CONNECTORS: Connectors = Connectors::with(&rivulet_bench::sources::CONNECTORS);

/// How far ahead of its arrival the time of a row of a live source may be by default, as with applications.
const FUTURE_LIMIT_US: i64 = 5 * 60 * 1_000_000;

/// A source or sink of a running query, by its name, and its health.
#[derive(Clone, Debug)]
pub struct End {
    /// The name that it was declared under.
    pub name: String,
    /// Whether it is a source or a sink.
    pub direction: Direction,
    /// Its health; all its partitions or instances together.
    pub health: Arc<Health>,
}

/// The specification of a source with these columns, for its connector.
fn source_spec(declaration: &SourceDeclaration, columns: Vec<usize>, host: &ConnectorContext) -> SourceSpec {
    let declared = declaration.declared.fields().len();
    SourceSpec {
        connector: declaration.connector(),
        address: declaration.rest().to_owned(),
        format: declaration.format.as_ref().map(format_text),
        schema: declaration.declared.clone(),
        columns,
        event_time_column: declaration.event_time_column.filter(|column| *column < declared),
        has_computed_time: declaration.event_time_column.is_some_and(|column| column >= declared),
        options: options_text(&declaration.options),
        host: host.clone(),
        resume: None,
    }
}

/// The specification of a sink for rows with this schema, for its connector.
fn sink_spec(declaration: &SinkDeclaration, schema: SchemaRef, host: &ConnectorContext) -> SinkSpec {
    SinkSpec {
        connector: declaration.connector(),
        address: declaration.rest().to_owned(),
        format: declaration.format.as_ref().map(format_text),
        schema,
        changes: false,
        key: None,
        options: options_text(&declaration.options),
        host: host.clone(),
        checkpoints: None,
        output: None,
    }
}

/// Fails if it is already evident that a source cannot be opened as it is declared.
pub(crate) fn check_source(declaration: &SourceDeclaration, host: &ConnectorContext) -> Result<(), ServiceError> {
    let columns = (0..declaration.declared.fields().len()).collect();
    CONNECTORS.check_source(&source_spec(declaration, columns, host)).map_err(|error| {
        placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options)
    })
}

/// Fails if it is already evident that a sink cannot be opened as it is declared.
pub(crate) fn check_sink(declaration: &SinkDeclaration, host: &ConnectorContext) -> Result<(), ServiceError> {
    let schema = declaration.schema.clone().unwrap_or_else(|| Arc::new(Schema::empty()));
    CONNECTORS.check_sink(&sink_spec(declaration, schema, host)).map_err(|error| {
        placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options)
    })
}

/// The one file that the result of a query into this sink replaces when the query ends; `None` for other sinks.
pub(crate) fn replaced_file(declaration: &SinkDeclaration, host: &ConnectorContext) -> Option<PathBuf> {
    CONNECTORS.replaced_file(&sink_spec(declaration, Arc::new(Schema::empty()), host))
}

/// The columns and the index of the event time; or why they cannot be read.
pub(crate) type OwnColumns = Result<(SchemaRef, Option<usize>), SqlError>;

/// Reads the columns that a source defines itself, perhaps by one of `files`, and which of them is the event time.
pub(crate) fn own_columns(files: &Files) -> impl FnOnce(&str, &str) -> Option<OwnColumns> {
    |connector, address| {
        let schema = match CONNECTORS.declared_schema(connector, address, files) {
            Ok(schema) => schema?,
            Err(error) => return Some(Err(SqlError::without_place(&error.to_string()))),
        };
        let event_time = schema.metadata().get(EVENT_TIME_KEY).and_then(|name| schema.index_of(name).ok());
        let schema = schema.with_metadata(HashMap::new());
        Some(Ok((Arc::new(schema), event_time)))
    }
}

/// Whether the columns of a source are neither declared nor those of its connector: they were read from a file.
pub(crate) fn has_columns_of_file(declaration: &SourceDeclaration) -> bool {
    let own = || own_columns(&Files::default())(&declaration.connector(), declaration.rest());
    !declaration.declares_columns() && !matches!(own(), Some(Ok(_)))
}

/// Why a source only runs in the process that has opened it, in words that follow its name; `None` if its partitions
/// may go on in another process.
pub(crate) fn bound(declaration: &SourceDeclaration) -> Option<String> {
    CONNECTORS.bound(&declaration.connector(), &options_text(&declaration.options))
}

/// The partitions of a source that a query reads.
pub(super) fn source(
    planned: &PlannedSource,
    partitions_wanted: usize,
    host: &ConnectorContext,
    was_at: Option<&[PartitionState]>,
) -> Result<Vec<Partition>, ServiceError> {
    // If all partitions have ended, there is nothing to open.
    if was_at.is_some_and(<[_]>::is_empty) {
        return Ok(Vec::new());
    }
    let declaration = &planned.declaration;
    let spec = SourceSpec {
        resume: was_at.map(|states| states.iter().map(|state| state.position.clone()).collect()),
        ..source_spec(declaration, planned.asked.clone(), host)
    };
    let opened = CONNECTORS.open_source(&spec, partitions_wanted).map_err(|error| {
        placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options)
    })?;
    let mut newest_us = was_at.unwrap_or_default().iter().map(|state| state.newest_us);
    Ok(opened.into_iter().map(|source| partition(source, planned, newest_us.next().flatten())).collect())
}

/// The partitions of a source that a task reads, where they were when it moved.
///
/// # Errors
/// The source cannot be opened, or not there.
pub(crate) fn open_partitions(
    planned: &PlannedSource,
    host: &ConnectorContext,
    was_at: &[PartitionState],
) -> Result<Vec<Partition>, ServiceError> {
    source(planned, was_at.len(), host, Some(was_at))
}

/// A partition of an open source, whose newest row so far has this time.
pub(super) fn partition(source: Box<dyn Source>, planned: &PlannedSource, newest_us: Option<i64>) -> Partition {
    let declaration = &planned.declaration;
    // History may have any time, for example that of a simulation; live rows have times near to now.
    // Of a row that changes, its retraction comes later, and would be taken where the row itself was refused.
    let live_limit = (source.is_live() && !declaration.changes()).then_some(FUTURE_LIMIT_US);
    Partition {
        future_limit_us: declaration.future_limit_us.or(live_limit),
        source: match &planned.computed {
            Some(computed) => computed.over(source),
            None => source,
        },
        event_time_column: planned.event_time,
        lateness_us: declaration.lateness_us,
        idle_timeout_us: declaration.idle_timeout_us,
        newest_us,
    }
}

/// A source or sink of a query, and a host of its own that is used to open it and gets its health.
pub(super) fn end(name: &Name, direction: Direction, host: &ConnectorContext) -> (End, ConnectorContext) {
    let title = match host.query.as_str() {
        "" => format!("{direction} '{name}'"),
        query => format!("{direction} '{name}' of the query '{query}'"),
    };
    let health = Arc::new(Health::new(title));
    let host = ConnectorContext { health: health.clone(), ..host.clone() };
    (End { name: name.text.clone(), direction, health }, host)
}

/// All instances of a sink.
pub(super) fn sink(
    declaration: &SinkDeclaration,
    output: &PlannedOutput,
    instances: usize,
    host: &ConnectorContext,
    prepared: Option<Vec<String>>,
) -> Result<Vec<Box<dyn Sink>>, ServiceError> {
    let spec = SinkSpec {
        changes: output.changes,
        key: output.key.clone(),
        checkpoints: prepared,
        ..sink_spec(declaration, output.schema.clone(), host)
    };
    let placed =
        |error| placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options);
    (0..instances).map(|instance| CONNECTORS.open_sink(&spec, instance, instances).map_err(placed)).collect()
}

/// The host of a sink of refused rows: its output has another name than the results of the query.
pub(super) fn of_letters(declaration: &SinkDeclaration, host: ConnectorContext) -> ConnectorContext {
    ConnectorContext { query: format!("{}/{}", host.query, declaration.name), ..host }
}

/// All instances of a sink of refused rows, with a host from [`of_letters`].
pub(super) fn letters(
    declaration: &SinkDeclaration,
    instances: usize,
    host: &ConnectorContext,
    prepared: Option<Vec<String>>,
) -> Result<Vec<Box<dyn Sink>>, ServiceError> {
    let spec = SinkSpec { checkpoints: prepared, ..sink_spec(declaration, letter_schema(), host) };
    let placed =
        |error| placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options);
    let opened = (0..instances).map(|instance| CONNECTORS.open_sink(&spec, instance, instances).map_err(placed));
    let mut opened = opened.collect::<Result<Vec<_>, _>>()?;
    // The sink of its results decides from where the query continues. Two deciding sinks might not agree.
    let waits = |sink: &mut Box<dyn Sink>| sink.transactional().is_some_and(|sink| sink.waits_for_commit());
    if CONNECTORS.may_decide_begin(&spec) && opened.iter_mut().any(waits) {
        let name = &declaration.name;
        let message =
            format!("the sink '{name}' is exactly once in transactions of its own, and takes no refused rows");
        return Err(
            ServiceError::invalid(message).with_hint("declare a sink for them with delivery => 'at_least_once'")
        );
    }
    Ok(opened)
}

/// Up to where the results of a query are final. `prepared` is what the instances of its sink have prepared for its
/// newest checkpoint.
pub(super) fn final_up_to(
    declaration: &SinkDeclaration,
    output: &PlannedOutput,
    host: &ConnectorContext,
    prepared: Vec<String>,
) -> Result<FinalUpTo, ServiceError> {
    let spec = SinkSpec { checkpoints: Some(prepared), ..sink_spec(declaration, output.schema.clone(), host) };
    CONNECTORS.final_up_to(&spec).map_err(|error| {
        placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options)
    })
}

/// The name and the options of a format, as connectors take them.
pub(crate) fn format_text(format: &FormatSpec) -> (String, Vec<(String, String)>) {
    let options = format.options.iter().map(|(name, value)| (name.clone(), value.plain_text()));
    (format.name.clone(), options.collect())
}

fn options_text(options: &[(Name, Literal, Position)]) -> Vec<(String, String)> {
    options.iter().map(|(name, value, _)| (name.text.clone(), option_text(value))).collect()
}

/// The value of an option, as connectors take it.
pub(crate) fn option_text(value: &Literal) -> String {
    match value {
        Literal::Secret(name) => secret_named(name),
        other => other.plain_text(),
    }
}

/// The connector's error with its position in the script.
fn placed(
    error: &ConnectorError,
    address: Position,
    format: Option<&FormatSpec>,
    options: &[(Name, Literal, Position)],
) -> ServiceError {
    let of_option = |wanted: &str| options.iter().find(|(name, ..)| name.text == *wanted);
    let of_option = |wanted: &str| of_option(wanted).map(|(name, ..)| name.position.into());
    placed_at(error, address.into(), format.map(|format| format.position), of_option)
}

/// The same with the positions of the address, of the format, and of the names of options, by line and column.
pub(crate) fn placed_at(
    error: &ConnectorError,
    address: (u32, u32),
    format: Option<(u32, u32)>,
    of_option: impl Fn(&str) -> Option<(u32, u32)>,
) -> ServiceError {
    let place = match error {
        ConnectorError::UnknownOption { option, .. } | ConnectorError::Option { option, .. } => of_option(option),
        ConnectorError::Format(_) | ConnectorError::FormatUse { .. } => format,
        _ => None,
    };
    ServiceError::from_text(ErrorKind::Invalid, &error.to_string()).at_place(place.unwrap_or(address))
}
