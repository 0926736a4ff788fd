//! A dataflow as planned: operators and the edges between them. What runs is an instance of it.

use std::fmt;
use std::sync::Arc;

use crate::{Chain, Operator};

/// Makes instances of one operator and says what they do. A plan holds factories, so that one plan serves any number
/// of groups and tasks.
pub trait OperatorFactory: Send + Sync {
    /// A new instance without state.
    fn create(&self) -> Box<dyn Operator>;

    /// What the operator does, for `EXPLAIN`.
    fn describe(&self) -> Description;

    /// Whether instances keep anything between batches. Dataflows are cut at stateful operators.
    fn is_stateful(&self) -> bool;
}

/// What an operator does, in the words of `EXPLAIN`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The operator, for example `window aggregate`.
    pub operator: String,
    /// What exists once for all queries of the group.
    pub shared: Vec<String>,
    /// What each query has of its own.
    pub per_slot: Vec<String>,
}

/// How rows travel between two operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// Point to point; such neighbours fuse into one chain.
    Forward,
    /// To the next target in turn.
    RoundRobin,
    /// By the hash of the key.
    Hash,
    /// To every target.
    Broadcast,
}

impl fmt::Display for EdgeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::RoundRobin => "round-robin",
            Self::Hash => "hash",
            Self::Broadcast => "broadcast",
        })
    }
}

/// An operator in a dataflow.
#[derive(Clone)]
pub struct Node {
    /// Makes the operator.
    pub factory: Arc<dyn OperatorFactory>,
}

/// A connection between two nodes, by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The upstream node.
    pub from: usize,
    /// The downstream node.
    pub to: usize,
    /// How rows travel.
    pub kind: EdgeKind,
}

/// The directed acyclic graph of operators of an application.
#[derive(Clone, Default)]
pub struct Dataflow {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

impl Dataflow {
    /// A straight line of operators, joined by forward edges.
    pub fn linear(factories: Vec<Arc<dyn OperatorFactory>>) -> Self {
        let edges = (1..factories.len()).map(|to| Edge { from: to - 1, to, kind: EdgeKind::Forward }).collect();
        Self { nodes: factories.into_iter().map(|factory| Node { factory }).collect(), edges }
    }

    /// The operators.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The edges.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// A chain that runs the whole dataflow in one task.
    ///
    /// # Panics
    /// If the dataflow is not a straight line of forward edges.
    pub fn chain(&self) -> Chain {
        assert!(
            self.edges
                .iter()
                .enumerate()
                .all(|(index, edge)| { (edge.from, edge.to, edge.kind) == (index, index + 1, EdgeKind::Forward) }),
            "only a straight line fuses into one chain"
        );
        Chain::new(self.nodes.iter().map(|node| node.factory.create()).collect())
    }
}

impl fmt::Debug for Dataflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| node.factory.describe().operator)).finish()
    }
}
