//! A dataflow as planned: operators and the edges between them. What runs is an instance of it.

use std::fmt;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;

use crate::{Chain, KeyGroups, Operator, StateFrame};

/// Makes instances of one operator and says what they do. A plan holds factories, so that one plan serves any number
/// of groups and tasks.
pub trait OperatorFactory: Send + Sync {
    /// A new instance without state.
    fn create(&self) -> Box<dyn Operator>;

    /// What the operator does, for `EXPLAIN`.
    fn describe(&self) -> Description;

    /// Whether instances keep anything between batches. Dataflows are cut at stateful operators.
    fn is_stateful(&self) -> bool;

    /// Whether it compares rows and passes them on as they are, or not at all: with a condition, or with the row that
    /// it passed on before. What it remembers then stays right when a query gets another value that stands in it or
    /// before it, and so does what those behind it remember.
    fn only_compares(&self) -> bool {
        false
    }

    /// Of a frame that its instances have exported, the columns that are the key of each row, in the order of the
    /// operator's keys; `None` of what keeps no state by key, and of a frame that is not its own.
    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        let _ = frame;
        None
    }
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

/// How rows travel between two operators, each of which may have several parallel instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// From each instance to the one beside it; such neighbours fuse into one chain.
    Forward,
    /// To the next instance in turn.
    RoundRobin,
    /// To the instance that has the key: the values of these columns, by place.
    Hash(Vec<usize>),
    /// To the only instance that there is.
    Gather,
    /// To the only instance that there is, and not what leaves the node: rows that are made of those that it refuses.
    /// It does not part the stage of the node.
    Refused {
        /// Those that are late.
        late: bool,
        /// All others.
        others: bool,
    },
}

impl fmt::Display for EdgeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::RoundRobin => "round-robin",
            Self::Hash(_) => "hash",
            Self::Gather => "gather",
            Self::Refused { late: true, others: false } => "late rows",
            Self::Refused { .. } => "refused rows",
        })
    }
}

/// The place of a node in its dataflow.
pub type NodeId = usize;

/// A step of a dataflow, and the columns that leave it.
#[derive(Clone)]
pub struct Node {
    /// What it does.
    pub work: Work,
    /// The columns of the rows that leave it; of a sink, those that it takes.
    pub schema: SchemaRef,
    /// By which of its keys rows are brought to its instances, as places among them and in their order; `None`: by all.
    /// The rows of a key can be together already because those of a part of it are.
    pub divided_by: Option<Vec<usize>>,
}

/// What a node does.
#[derive(Clone)]
pub enum Work {
    /// Gives the rows of a source, by its place in the plan's list.
    Source(usize),
    /// Processes rows.
    Operator(Arc<dyn OperatorFactory>),
    /// Takes the results, by the place of the sink in the plan's list.
    Sink(usize),
}

/// A connection between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The upstream node.
    pub from: NodeId,
    /// The downstream node.
    pub to: NodeId,
    /// Which input of the downstream node it is: 0, or 1 for the right side of a join.
    pub input: usize,
    /// How rows travel.
    pub kind: EdgeKind,
}

/// The directed acyclic graph of operators of an application or big query. Nodes stand behind those that they read.
#[derive(Clone, Default)]
pub struct Dataflow {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    key_groups: KeyGroups,
}

impl Dataflow {
    /// Adds a node that reads nothing yet.
    pub fn add(&mut self, work: Work, schema: SchemaRef) -> NodeId {
        self.nodes.push(Node { work, schema, divided_by: None });
        self.nodes.len() - 1
    }

    /// Connects the node `from` with the input number `input` of `to`.
    ///
    /// # Panics
    /// If one of the nodes is not there, or `to` does not stand behind `from`.
    pub fn connect(&mut self, from: NodeId, to: NodeId, input: usize, kind: EdgeKind) {
        assert!(from < to && to < self.nodes.len(), "an edge leads from node {from} to a later one, not {to}");
        self.edges.push(Edge { from, to, input, kind });
    }

    /// Says by which of its keys rows are brought to the instances of a node; see [`Node::divided_by`].
    ///
    /// # Panics
    /// If the node is not there.
    pub fn divide(&mut self, node: NodeId, keys: Vec<usize>) {
        self.nodes[node].divided_by = Some(keys);
    }

    /// Adds an operator behind `from`, its only input.
    pub fn then(
        &mut self,
        from: NodeId,
        kind: EdgeKind,
        factory: Arc<dyn OperatorFactory>,
        schema: SchemaRef,
    ) -> NodeId {
        let to = self.add(Work::Operator(factory), schema);
        self.connect(from, to, 0, kind);
        to
    }

    /// Divides keys among key groups in another way than by default.
    #[must_use]
    pub fn with_key_groups(self, key_groups: KeyGroups) -> Self {
        Self { key_groups, ..self }
    }

    /// How keys are divided among key groups, by which state is saved and shared out among instances.
    pub fn key_groups(&self) -> KeyGroups {
        self.key_groups
    }

    /// The nodes, each behind those that it reads.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The edges.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// The edges that lead to a node.
    pub fn inputs_of(&self, node: NodeId) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.to == node)
    }

    /// The edges that leave a node.
    pub fn outputs_of(&self, node: NodeId) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.from == node)
    }
}

impl Work {
    /// Makes its operator, if it is one.
    pub fn factory(&self) -> Option<&Arc<dyn OperatorFactory>> {
        match self {
            Self::Operator(factory) => Some(factory),
            Self::Source(_) | Self::Sink(_) => None,
        }
    }

    /// What it does, in one word or two.
    pub fn name(&self) -> String {
        match self {
            Self::Source(_) => "source".into(),
            Self::Operator(factory) => factory.describe().operator,
            Self::Sink(_) => "sink".into(),
        }
    }
}

impl fmt::Debug for Dataflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| node.work.name())).finish()
    }
}

/// The operators of an application in a straight line: they run as one chain in each task of its group.
#[derive(Clone, Default)]
pub struct Line {
    factories: Vec<Arc<dyn OperatorFactory>>,
}

impl Line {
    /// These operators, first to last.
    pub fn new(factories: Vec<Arc<dyn OperatorFactory>>) -> Self {
        Self { factories }
    }

    /// The operators, first to last.
    pub fn operators(&self) -> &[Arc<dyn OperatorFactory>] {
        &self.factories
    }

    /// A chain of new instances.
    pub fn chain(&self) -> Chain {
        Chain::new(self.factories.iter().map(|factory| factory.create()).collect())
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.factories.iter().map(|factory| factory.describe().operator)).finish()
    }
}
