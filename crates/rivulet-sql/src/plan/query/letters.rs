//! The sinks of the rows that a query refuses: its sources name them (`dead_letter`, `late`).
//!
//! A sink of refused rows is a node of the dataflow behind all others. Each stage sends its refused rows to it along a
//! separate edge, so that back-pressure, checkpoints and the end of input work for these rows as for results.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rivulet_dataflow::{Dataflow, EdgeKind, Work};

use super::planned::PlannedSource;
use crate::SqlError;
use crate::scope::{Scope, SinkDeclaration, SourceDeclaration};
use crate::statement::Name;

/// The columns of a refused row in its sink.
static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let text = |name: &str, is_nullable: bool| Field::new(name, DataType::Utf8, is_nullable);
    Arc::new(Schema::new(vec![
        text("query", false),
        text("source", true),
        text("reason", false),
        text("detail", false),
        Field::new("arrival_ms", DataType::Int64, false),
        text("payload", true),
        text("payload_hex", true),
        text("row", true),
    ]))
});

/// The columns of a refused row in its sink.
pub fn letter_schema() -> SchemaRef {
    SCHEMA.clone()
}

/// Fails if a sink that a source names for its refused rows does not exist, or does not accept them.
pub(crate) fn check(source: &SourceDeclaration, scope: &Scope) -> Result<(), SqlError> {
    for (option, name) in [("late", &source.late), ("dead_letter", &source.dead_letter)] {
        let Some(name) = name else { continue };
        let Some(sink) = scope.sink(&name.text) else {
            let error = SqlError::new(name.position, format!("{option} names no sink that is declared: '{name}'"));
            let names: Vec<&str> = scope.sinks().map(|sink| sink.name.text.as_str()).collect();
            let hint = format!(
                "declare it first, for example CREATE SINK letters TO 'mqtt:dead/letters' FORMAT JSON, and write \
                     {option} => 'letters'"
            );
            return Err(error.suggest(&name.text, names, hint));
        };
        check_columns(option, name, sink)?;
    }
    Ok(())
}

fn check_columns(option: &str, name: &Name, sink: &SinkDeclaration) -> Result<(), SqlError> {
    let Some(schema) = &sink.schema else { return Ok(()) };
    let fits = schema.fields().len() == SCHEMA.fields().len()
        && schema.fields().iter().zip(SCHEMA.fields()).all(|(one, other)| one.data_type() == other.data_type());
    match fits {
        true => Ok(()),
        false => {
            let columns: Vec<&str> = SCHEMA.fields().iter().map(|field| field.name().as_str()).collect();
            Err(SqlError::new(name.position, format!("the sink '{name}' has columns that {option} does not give"))
                .hint(format!("declare the sink without columns; refused rows have {}", columns.join(", "))))
        }
    }
}

/// Whether any of these sources names a sink for refused rows.
pub(super) fn are_kept(sources: &[PlannedSource]) -> bool {
    sources.iter().any(|source| source.declaration.late.is_some() || source.declaration.dead_letter.is_some())
}

/// Adds the sinks of refused rows behind all other nodes, and returns them in the order of their indices.
pub(super) fn add(
    dataflow: &mut Dataflow,
    sources: &[PlannedSource],
    sink: Option<&Name>,
    scope: &Scope,
) -> Result<Vec<Arc<SinkDeclaration>>, SqlError> {
    let mut sinks: Vec<Arc<SinkDeclaration>> = Vec::new();
    if !are_kept(sources) {
        return Ok(sinks);
    }
    for source in sources {
        check(&source.declaration, scope)?;
        // Results cannot go to the same sink: sinks are counted by name, and refused rows have other columns.
        let named = [&source.declaration.late, &source.declaration.dead_letter].into_iter().flatten();
        if let Some(sink) = sink.filter(|sink| named.clone().any(|name| name.text == sink.text)) {
            let source = &source.declaration.name;
            let message = format!("the sink '{sink}' takes the refused rows of the source '{source}'");
            return Err(SqlError::new(sink.position, message)
                .hint("declare another sink for the results; it may have the same address"));
        }
    }
    // For each node, the sources of its rows.
    let mut read: Vec<Vec<usize>> = Vec::new();
    // For each sink, the nodes that send refused rows there, and whether these are late rows, others, or both.
    let mut senders: Vec<Vec<(usize, bool, bool)>> = Vec::new();
    for (id, node) in dataflow.nodes().iter().enumerate() {
        let mut of_node: Vec<usize> = dataflow.inputs_of(id).flat_map(|edge| read[edge.from].iter().copied()).collect();
        if let Work::Source(place) = node.work {
            of_node.push(place);
        }
        of_node.sort_unstable();
        of_node.dedup();
        // If rows of several sources have come together, the first source that names a sink decides, as with the inputs
        // of an application.
        let named = |of: fn(&SourceDeclaration) -> Option<&Name>| {
            of_node.iter().find_map(|&place| of(&sources[place].declaration))
        };
        let dead_letter = named(|source| source.dead_letter.as_ref());
        let late = named(|source| source.late.as_ref()).or(dead_letter);
        if !matches!(node.work, Work::Sink(_)) {
            for (name, is_late) in [(late, true), (dead_letter, false)] {
                let Some(sink) = name.and_then(|name| scope.sink(&name.text)) else { continue };
                let place = sinks.iter().position(|one| one.name.text == sink.name.text).unwrap_or_else(|| {
                    sinks.push(sink.clone());
                    senders.push(Vec::new());
                    sinks.len() - 1
                });
                match senders[place].last_mut().filter(|(sender, ..)| *sender == id) {
                    Some((_, _, others)) => *others |= !is_late,
                    None => senders[place].push((id, is_late, !is_late)),
                }
            }
        }
        read.push(of_node);
    }
    for (place, senders) in senders.into_iter().enumerate() {
        // The first sink is that of results.
        let node = dataflow.add(Work::Sink(place + 1), letter_schema());
        for (sender, late, others) in senders {
            dataflow.connect(sender, node, 0, EdgeKind::Refused { late, others });
        }
    }
    Ok(sinks)
}
