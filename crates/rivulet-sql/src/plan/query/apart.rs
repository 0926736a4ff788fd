//! An aggregation in two servers: in the first, rows become states of their windows; in the second, states become
//! results. Both plan the same text, and each keeps its part.
//!
//! What must hold: states only meet the operator that they were made for. The name of one of their columns says what
//! that is, so a stream of other states does not fit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use rivulet_dataflow::{Dataflow, Edge, EdgeKind, Node, NodeId, Work, carried};
use sha2::{Digest, Sha256};

use super::builder::Builder;
use super::error::refused;
use super::letters;
use super::planned::{PlannedOutput, PlannedSource};
use crate::scope::SourceDeclaration;
use crate::{Position, SqlError};

/// The part of a query that runs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// From rows to states, for a sink that takes states.
    Rows,
    /// From states to results, of a source that gives states.
    States,
}

/// A window that was divided: the operators from rows to states and from states to results, and the number of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divided {
    pub(super) rows: NodeId,
    pub(super) states: NodeId,
    pub(super) keys: usize,
    /// Whether states have the end of their window in the place of its start.
    pub(super) is_of_end: bool,
}

/// Leaves of a query only the part that runs here.
pub(super) fn cut(
    part: Part,
    divided: &[Divided],
    builder: &mut Builder,
    sources: &mut Vec<PlannedSource>,
    output: &mut PlannedOutput,
) -> Result<(), SqlError> {
    let position = builder.position;
    if part == Part::Whole {
        return Ok(());
    }
    if letters::are_kept(sources) {
        return Err(refused(position, "`partial` does not go with `late` and `dead_letter` of the source"));
    }
    let [Divided { rows, states, keys, is_of_end }] = *divided else {
        return Err(refused(position, "`partial` needs one window that can be computed in two parts")
            .hint("group by TUMBLE, HOP or CUMULATE, with aggregates such as count, sum, avg, min and max, and once"));
    };
    let before = reached(&builder.dataflow, rows, |edge| (edge.to, edge.from));
    let behind = reached(&builder.dataflow, states, |edge| (edge.from, edge.to));
    let schema = schema_of(&builder.dataflow.nodes()[rows].schema, keys, &what(builder, &before));
    if carried(&schema).fields() != schema.fields() {
        return Err(refused(position, "a key of a window in two parts is SMALLINT, INT or REAL")
            .hint("CAST it to BIGINT or DOUBLE"));
    }
    let nodes = builder.dataflow.nodes();
    let is_stateful =
        |node: &NodeId| *node != rows && matches!(&nodes[*node].work, Work::Operator(factory) if factory.is_stateful());
    check(position, !before.iter().any(is_stateful))?;
    match part {
        Part::Rows => {
            let is_source = |node: NodeId| matches!(nodes[node].work, Work::Source(_));
            check(position, (0..nodes.len()).all(|node| before.contains(&node) || !is_source(node)))?;
            let (mut dataflow, new) = keep(builder, &before, Dataflow::default());
            let sink = dataflow.add(Work::Sink(0), schema.clone());
            dataflow.connect(new[&rows], sink, 0, EdgeKind::Forward);
            builder.dataflow = dataflow;
            output.selected = schema.fields().len();
            (output.schema, output.key, output.changes) = (schema, None, false);
        }
        _ => {
            let all = builder.dataflow.edges().iter();
            let (into, others): (Vec<Edge>, Vec<Edge>) =
                all.filter(|edge| behind.contains(&edge.to)).cloned().partition(|edge| edge.to == states);
            let is_alone = sources.len() == 1 && output.sink.as_ref().is_none_or(|sink| !sink.is_partial);
            check(position, is_alone && others.iter().all(|edge| behind.contains(&edge.from)))?;
            let mut dataflow = Dataflow::default();
            let source = dataflow.add(Work::Source(0), schema.clone());
            let (mut dataflow, new) = keep(builder, &behind, dataflow);
            into.iter().for_each(|edge| dataflow.connect(source, new[&states], 0, edge.kind.clone()));
            builder.dataflow = dataflow;
            builder.changes.insert(source, false);
            *sources = vec![source_of(&sources[0].declaration, schema, (keys, is_of_end))];
        }
    }
    Ok(())
}

fn check(position: Position, is_right: bool) -> Result<(), SqlError> {
    match is_right {
        true => Ok(()),
        false => Err(refused(position, "`partial` goes with one window over rows that are only filtered and computed")
            .hint("make joins, OVER and DISTINCT in another query, before it or over its result")),
    }
}

/// A node, and all that edges lead to from there.
fn reached(dataflow: &Dataflow, node: NodeId, ends: impl Fn(&Edge) -> (NodeId, NodeId)) -> BTreeSet<NodeId> {
    let (mut reached, mut left) = (BTreeSet::from([node]), vec![node]);
    while let Some(node) = left.pop() {
        let next = dataflow.edges().iter().map(&ends).filter(|(from, _)| *from == node);
        left.extend(next.map(|(_, to)| to).filter(|to| reached.insert(*to)));
    }
    reached
}

/// Adds these nodes, with the edges between them, to a dataflow, and what is known of them under their new numbers.
fn keep(
    builder: &mut Builder,
    nodes: &BTreeSet<NodeId>,
    mut dataflow: Dataflow,
) -> (Dataflow, BTreeMap<NodeId, NodeId>) {
    let old = &builder.dataflow;
    let mut new = BTreeMap::new();
    for &node in nodes {
        let Node { work, schema, divided_by } = old.nodes()[node].clone();
        new.insert(node, dataflow.add(work, schema));
        divided_by.into_iter().for_each(|keys| dataflow.divide(new[&node], keys));
    }
    for edge in old.edges() {
        if let (Some(from), Some(to)) = (new.get(&edge.from), new.get(&edge.to)) {
            dataflow.connect(*from, *to, edge.input, edge.kind.clone());
        }
    }
    let renumber = |(node, value): (&NodeId, &String)| Some((*new.get(node)?, value.clone()));
    builder.identities = builder.identities.iter().filter_map(renumber).collect();
    builder.changes = builder.changes.iter().filter_map(|(node, value)| Some((*new.get(node)?, *value))).collect();
    (dataflow, new)
}

/// What these operators do, over columns of which types, as a number.
fn what(builder: &Builder, nodes: &BTreeSet<NodeId>) -> String {
    let mut digest = Sha256::new();
    for node in nodes {
        let fields = builder.dataflow.nodes()[*node].schema.fields();
        let types: Vec<_> = fields.iter().map(|field| field.data_type()).collect();
        let identity = builder.identities.get(node).map_or("", String::as_str);
        digest.update(format!("{identity} {types:?}\n"));
    }
    digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The columns of states between two servers. Names of keys may be those of other columns.
fn schema_of(states: &Schema, keys: usize, what: &str) -> SchemaRef {
    let named = |(place, field): (usize, &Arc<Field>)| {
        let name = match place {
            place if place < keys => format!("key_{place}"),
            place if place == keys => "start".to_owned(),
            place if place == keys + 1 => format!("end_{what}"),
            _ => field.name().clone(),
        };
        field.as_ref().clone().with_name(name)
    };
    Arc::new(Schema::new(states.fields().iter().enumerate().map(named).collect::<Vec<_>>()))
}

/// The source that gives states. Their time is the start of their piece of time, so that no window closes before the
/// states of those that end earlier have come.
fn source_of(declared: &SourceDeclaration, schema: SchemaRef, (keys, is_of_end): (usize, bool)) -> PlannedSource {
    let columns: Vec<usize> = (0..schema.fields().len()).collect();
    let declaration = SourceDeclaration {
        schema: schema.clone(),
        declared: schema,
        computed: Vec::new(),
        key: None,
        event_time_column: Some(keys),
        // The window that has just come is not over with it.
        lateness_us: declared.lateness_us.saturating_add(i64::from(is_of_end)),
        ..declared.clone()
    };
    PlannedSource {
        declaration: Arc::new(declaration),
        columns: columns.clone(),
        event_time: Some(keys),
        asked: columns,
        computed: None,
    }
}
