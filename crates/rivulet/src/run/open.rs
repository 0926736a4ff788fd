//! Sources and sinks by their declarations: what stands in the statement becomes what the connector asks for, and what the connector
//! says is wrong gets its place in the script.

use std::sync::Arc;

use rivulet_connectors::connector::{self, ConnectorError, SinkSpec, SourceSpec};
use rivulet_dataflow::{Sink, SinkError};
use rivulet_runtime::Partition;
use rivulet_runtime::flow::MakeSink;
use rivulet_sql::{FormatSpec, Literal, Name, PlannedOutput, PlannedSource, Position, SinkDeclaration};

use crate::engine::literal_text;
use crate::service::{ErrorKind, ServiceError};

/// The partitions of a source that a query reads.
pub(super) fn source(planned: &PlannedSource, partitions_wanted: usize) -> Result<Vec<Partition>, ServiceError> {
    let declaration = &planned.declaration;
    let spec = SourceSpec {
        connector: declaration.connector(),
        address: declaration.rest().to_owned(),
        format: declaration.format.as_ref().map(format_text),
        schema: declaration.schema.clone(),
        columns: planned.columns.clone(),
        event_time_column: declaration.event_time_column,
        options: options_text(&declaration.options),
    };
    let opened = connector::open_source(&spec, partitions_wanted).map_err(|error| {
        placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options)
    })?;
    let partitions = opened.into_iter().map(|source| Partition {
        source,
        event_time_column: planned.event_time,
        lateness_us: declaration.lateness_us,
        idle_timeout_us: declaration.idle_timeout_us,
    });
    Ok(partitions.collect())
}

/// What makes the instances of a sink. The first one is opened now, so that what is wrong is known before anything runs.
pub(super) fn sink(
    declaration: Arc<SinkDeclaration>,
    output: &PlannedOutput,
    parallelism: usize,
) -> Result<MakeSink, ServiceError> {
    let spec = SinkSpec {
        connector: declaration.connector(),
        address: declaration.rest().to_owned(),
        format: declaration.format.as_ref().map(format_text),
        schema: output.schema.clone(),
        changes: output.changes,
        key: output.key.clone(),
        options: options_text(&declaration.options),
    };
    let placed =
        |error| placed(&error, declaration.address_position, declaration.format.as_ref(), &declaration.options);
    // In how many instances it runs is known only when the dataflow is cut; the first is the same either way unless it is alone.
    let mut first = Some((parallelism, connector::open_sink(&spec, 0, parallelism).map_err(placed)?));
    Ok(Box::new(move |instance, instances| match first.take_if(|(of, _)| instance == 0 && *of == instances) {
        Some((_, sink)) => Ok(sink),
        None => {
            let opened = connector::open_sink(&spec, instance, instances);
            opened.map(|sink| sink as Box<dyn Sink>).map_err(|error| SinkError(error.to_string()))
        }
    }))
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
