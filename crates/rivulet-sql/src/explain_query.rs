//! `EXPLAIN` of a big query: what it reads, its operators and how rows travel between them, and what comes out.

use std::fmt::Write;

use arrow::datatypes::Schema;
use rivulet_dataflow::{EdgeKind, Fuse, NodeId, Work};

use crate::plan::query::QueryPlan;
use crate::shown::shown_address;
use crate::value::{column_type_name, format_us};

/// The query in words: sources, operators and edges, output.
pub fn explain_query(plan: &QueryPlan) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(plan, &mut text);
    text
}

fn write(plan: &QueryPlan, out: &mut String) -> std::fmt::Result {
    writeln!(out, "sources")?;
    for source in &plan.sources {
        let declaration = &source.declaration;
        writeln!(out, "  {} from {}", declaration.name, shown_address(&declaration.address))?;
        let name = |column: &usize| declaration.schema.field(*column).name().as_str();
        let all = declaration.declared.fields().len();
        let asked: Vec<&str> = source.asked.iter().map(name).collect();
        writeln!(out, "    reads {} of {all} columns: {}", asked.len(), asked.join(", "))?;
        let computed: Vec<&str> = source.columns.iter().filter(|column| **column >= all).map(name).collect();
        if !computed.is_empty() {
            writeln!(out, "    computes {}", computed.join(", "))?;
        }
        match source.event_time {
            Some(place) => {
                let lateness = format_us(declaration.lateness_us);
                write!(out, "    event time is {}, lateness {lateness}", name(&source.columns[place]))?;
            }
            None => write!(out, "    event time is the arrival")?,
        }
        if let Some(timeout_us) = declaration.idle_timeout_us {
            write!(out, ", idle timeout {}", format_us(timeout_us))?;
        }
        if let Some(limit_us) = declaration.future_limit_us {
            write!(out, ", future limit {}", format_us(limit_us))?;
        }
        writeln!(out)?;
    }
    if !plan.tables.is_empty() {
        writeln!(out, "\ntables")?;
        for table in &plan.tables {
            writeln!(out, "  {}, {} rows", table.name(), table.rows().columns().num_rows())?;
        }
    }

    writeln!(out, "\ndataflow")?;
    for (place, node) in shown_nodes(plan).into_iter().enumerate() {
        let state = if node.has_state { ", with state" } else { "" };
        write!(out, "  {}. {}{state}", place + 1, node.operator)?;
        let edges = node.inputs.iter().map(|(from, how)| format!("{how} from {}", from + 1)).collect::<Vec<_>>();
        writeln!(out, "{}", if edges.is_empty() { String::new() } else { format!(" ({})", edges.join(", ")) })?;
        for line in &node.details {
            writeln!(out, "       {line}")?;
        }
    }

    if plan.is_burst {
        writeln!(out, "  tasks may go to burst workers")?;
    }
    if plan.dataflow.fuse() == Fuse::None {
        writeln!(out, "  each operator runs by itself")?;
    }

    match &plan.output.sink {
        Some(sink) => writeln!(out, "\noutput to {}, {}", sink.name, shown_address(&sink.address))?,
        None => writeln!(out, "\noutput to the caller")?,
    }
    let names = |columns: &[usize]| {
        columns.iter().map(|&column| plan.output.schema.field(column).name().as_str()).collect::<Vec<_>>().join(", ")
    };
    let key = match &plan.output.key {
        Some(key) if key.is_empty() => ", one row".to_owned(),
        Some(key) => format!(", one row for each ({})", names(key)),
        None => String::new(),
    };
    match plan.output.changes {
        true => writeln!(out, "  rows may be taken back{key}")?,
        false => writeln!(out, "  rows are final{key}")?,
    }
    if !plan.output.order.is_empty() {
        let keys: Vec<String> = plan
            .output
            .order
            .iter()
            .map(|key| {
                format!("{}{}", plan.output.schema.field(key.column).name(), if key.descending { " DESC" } else { "" })
            })
            .collect();
        writeln!(out, "  in the end ordered by {}", keys.join(", "))?;
    }
    match (plan.output.limit, plan.output.offset) {
        (Some(limit), 0) => writeln!(out, "  in the end the first {limit}")?,
        (Some(limit), offset) => writeln!(out, "  in the end {limit} behind the first {offset}")?,
        (None, 0) => {}
        (None, offset) => writeln!(out, "  in the end those behind the first {offset}")?,
    }
    let selected = plan.output.selected_schema();
    let width = selected.fields().iter().map(|field| field.name().chars().count()).max().unwrap_or(0);
    for field in selected.fields() {
        writeln!(out, "  {:<width$}  {}", field.name(), column_type_name(field))?;
    }
    Ok(())
}

/// A node of the dataflow of a big query, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownNode {
    /// What it is.
    pub operator: String,
    /// Whether it has state.
    pub has_state: bool,
    /// What it does, a line for each part.
    pub details: Vec<String>,
    /// The nodes that its rows come from, and how: along which side of a join, and by which kind of edge.
    pub inputs: Vec<(NodeId, String)>,
}

/// All nodes of a query, in the order of their numbers.
pub fn shown_nodes(plan: &QueryPlan) -> Vec<ShownNode> {
    let shown = |id: NodeId| {
        let (operator, has_state, details) = match &plan.dataflow.nodes()[id].work {
            Work::Source(source) => (format!("source {}", plan.sources[*source].declaration.name), false, Vec::new()),
            Work::Sink(0) => ("sink".to_owned(), false, Vec::new()),
            Work::Sink(place) => (format!("sink {} of refused rows", plan.letters[place - 1].name), false, Vec::new()),
            Work::Operator(factory) => {
                let description = factory.describe();
                (description.operator, factory.is_stateful(), description.shared)
            }
        };
        ShownNode { operator, has_state, details, inputs: inputs(plan, id) }
    };
    (0..plan.dataflow.nodes().len()).map(shown).collect()
}

/// Where the rows of a node come from, and by which kind of edge.
fn inputs(plan: &QueryPlan, id: NodeId) -> Vec<(NodeId, String)> {
    let edges: Vec<_> = plan.dataflow.inputs_of(id).collect();
    let two_inputs = edges.iter().any(|edge| edge.input > 0);
    let texts = edges.iter().map(|edge| {
        let side = match (two_inputs, edge.input) {
            (false, _) => "",
            (true, 0) => "left: ",
            (true, _) => "right: ",
        };
        let schema: &Schema = &plan.dataflow.nodes()[edge.from].schema;
        let kind = match &edge.kind {
            EdgeKind::Hash(columns) => {
                let names: Vec<&str> = columns.iter().map(|&column| schema.field(column).name().as_str()).collect();
                format!("hash ({})", names.join(", "))
            }
            other => other.to_string(),
        };
        (edge.from, format!("{side}{kind}"))
    });
    texts.collect()
}
