//! Sources and sinks by their declarations: what stands in the statement becomes what the connector asks for, and what the connector
//! says is wrong gets its place in the script.

use rivulet_connectors::connector::{self, ConnectorError, Host, SinkSpec, SourceSpec};
use rivulet_dataflow::{Sink, Source};
use rivulet_runtime::Partition;
use rivulet_sql::{FormatSpec, Literal, Name, PlannedOutput, PlannedSource, Position, SinkDeclaration};

use crate::engine::literal_text;
use crate::service::{ErrorKind, ServiceError};

/// How far ahead of its arrival the time of a row of a live source may be if nothing is said, as with applications.
const FUTURE_LIMIT_US: i64 = 5 * 60 * 1_000_000;

/// The partitions of a source that a query reads.
pub(super) fn source(
    planned: &PlannedSource,
    partitions_wanted: usize,
    host: &Host,
) -> Result<Vec<Partition>, ServiceError> {
    let declaration = &planned.declaration;
    let spec = SourceSpec {
        connector: declaration.connector(),
        address: declaration.rest().to_owned(),
        format: declaration.format.as_ref().map(format_text),
        schema: declaration.schema.clone(),
        columns: planned.columns.clone(),
        event_time_column: declaration.event_time_column,
        options: options_text(&declaration.options),
        host: host.clone(),
    };
    let opened = connector::open_source(&spec, partitions_wanted).map_err(|error| {
        placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options)
    })?;
    // History may have any time, as that of a simulation; what comes as it happens has none that is far from now.
    let live_limit = |source: &dyn Source| source.is_live().then_some(FUTURE_LIMIT_US);
    let partitions = opened.into_iter().map(|source| Partition {
        future_limit_us: declaration.future_limit_us.or_else(|| live_limit(&*source)),
        source,
        event_time_column: planned.event_time,
        lateness_us: declaration.lateness_us,
        idle_timeout_us: declaration.idle_timeout_us,
    });
    Ok(partitions.collect())
}

/// All instances of a sink.
pub(super) fn sink(
    declaration: &SinkDeclaration,
    output: &PlannedOutput,
    instances: usize,
    host: &Host,
) -> Result<Vec<Box<dyn Sink>>, ServiceError> {
    let spec = SinkSpec {
        connector: declaration.connector(),
        address: declaration.rest().to_owned(),
        format: declaration.format.as_ref().map(format_text),
        schema: output.schema.clone(),
        changes: output.changes,
        key: output.key.clone(),
        options: options_text(&declaration.options),
        host: host.clone(),
    };
    let placed =
        |error| placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options);
    (0..instances).map(|instance| connector::open_sink(&spec, instance, instances).map_err(placed)).collect()
}

fn format_text(format: &FormatSpec) -> (String, Vec<(String, String)>) {
    let options = format.options.iter().map(|(name, value)| (name.clone(), literal_text(value)));
    (format.name.clone(), options.collect())
}

fn options_text(options: &[(Name, Literal, Position)]) -> Vec<(String, String)> {
    options.iter().map(|(name, value, _)| (name.text.clone(), literal_text(value))).collect()
}

/// The connector's error at the place in the script that it is about.
fn placed(
    error: &ConnectorError,
    address: Position,
    format: Option<&FormatSpec>,
    options: &[(Name, Literal, Position)],
) -> ServiceError {
    let of_option =
        |wanted: &str| options.iter().find(|(name, ..)| name.text == *wanted).map(|(name, ..)| name.position);
    let position = match error {
        ConnectorError::UnknownOption { option, .. } | ConnectorError::Option { option, .. } => of_option(option),
        ConnectorError::Format(_) | ConnectorError::FormatUse { .. } => format.map(|format| format.position),
        _ => None,
    };
    let position = position.unwrap_or(address);
    ServiceError::from_text(ErrorKind::Invalid, &error.to_string()).at(position.line, position.column)
}
