//! Bursts: tasks of big queries that run on borrowed workers for a while.
//!
//! A worker is a process that dials the server. The server gets places for tasks there, and moves the state of tasks
//! into them and back. In reading order: `moves`: what of a query may go, how it gets there, and whether that pays;
//! `policy`: when the server moves tasks by itself; [`message`]: what both sides say; [`pipe`]: the streams of one
//! task; [`roster`]: the server's side; [`worker`]: the other one; `lambda`: workers that are functions of a cloud.
//!
//! What must hold: there is no thread here. Whoever has one calls `turn` of a roster or a worker, so that a simulation
//! can step them; a call that invokes a function waits for its end.

pub(crate) mod moves;
pub(crate) mod policy;
pub mod message;
pub mod pipe;
pub mod roster;
pub mod worker;
pub(crate) mod lambda;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use parking_lot::Mutex;
use rivulet_dataflow::{Dataflow, EdgeKind, NodeId};

/// The worker that has a task.
#[derive(Clone)]
pub(crate) struct On {
    /// Its number in the roster, and its name.
    pub(crate) worker: u64,
    pub(crate) name: String,
    /// Whether the log says that it comes home.
    pub(crate) comes_home: bool,
    /// Whether the source of the task is being opened on the server, because it comes home.
    pub(crate) reopens: bool,
}

/// Tasks of queries on workers, by query, stage and instance. Those of a flow that has ended stay here.
pub(crate) type OnWorkers = Mutex<BTreeMap<(u64, usize, usize), On>>;

/// The columns of the rows that a stage of these nodes takes, by input, and of those that it gives.
pub fn columns(dataflow: &Dataflow, nodes: &[NodeId]) -> (Vec<SchemaRef>, SchemaRef) {
    let columns = |node: NodeId| dataflow.nodes()[node].schema.clone();
    let mut inputs: Vec<SchemaRef> = Vec::new();
    let edges = dataflow.inputs_of(nodes[0]).filter(|edge| !matches!(edge.kind, EdgeKind::Refused { .. }));
    let mut edges: Vec<_> = edges.collect();
    edges.sort_by_key(|edge| edge.input);
    for edge in edges {
        match inputs.get_mut(edge.input) {
            None => inputs.push(columns(edge.from)),
            // Of several streams into one input, one may have nulls where another has none.
            Some(shared) => {
                let nullable = |field: &Arc<Field>| field.as_ref().clone().with_nullable(true);
                *shared = Arc::new(Schema::new(shared.fields().iter().map(nullable).collect::<Vec<_>>()));
            }
        }
    }
    (inputs, columns(*nodes.last().expect("a stage has a node")))
}
