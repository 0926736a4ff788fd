//! A dataflow as planned: operators and the edges between them. Tasks run instances of it.

mod addresses;

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::datatypes::SchemaRef;

use crate::{Address, Chain, KeyGroups, Operator, StateFrame};

/// Makes instances of one operator and describes it. A plan holds factories, so that one plan serves any number of
/// groups and tasks.
pub trait OperatorFactory: Send + Sync {
    /// Makes a new instance without state.
    fn create(&self) -> Box<dyn Operator>;

    /// Makes the instance with this number of those that share the keys. Only one of them saves what all of them have
    /// ([`OperatorFactory::everywhere`]).
    fn create_instance(&self, instance: usize) -> Box<dyn Operator> {
        let _ = instance;
        self.create()
    }

    /// What the operator does, for `EXPLAIN`.
    fn describe(&self) -> Description;

    /// The address of the state that instances keep between batches, without what depends on other operators; `None`
    /// if they keep none. It is saved with the state, so it stays as it is from version to version of the program.
    fn state(&self) -> Option<Address>;

    /// Whether instances keep state between batches: their state is saved, and is looked for when a version is
    /// replaced.
    fn is_stateful(&self) -> bool {
        self.state().is_some()
    }

    /// Whether the operator only compares rows and passes each on unchanged or drops it: it compares them with a
    /// condition, or with the row that it passed on before. When a parameter of the condition or of an operator before
    /// it changes, its state stays valid, and so does the state of the operators behind it.
    fn only_compares(&self) -> bool {
        false
    }

    /// Whether all that the operator remembers and that depends on this parameter are decisions: conditions that were
    /// true or not. When the parameter changes, its own state stays valid: what was decided stays decided.
    fn only_decides_by(&self, parameter: &str) -> bool {
        let _ = parameter;
        false
    }

    /// The key columns of a frame that an instance has exported, in the order of the operator's keys. `None` if the
    /// operator has no state by key, or the frame belongs to another operator.
    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        let _ = frame;
        None
    }

    /// For each row of a saved frame, whether every instance has it: it came along an edge that is
    /// [broadcast](EdgeKind::Broadcast). `None` if each row belongs to one instance.
    fn everywhere(&self, frame: &StateFrame) -> Option<BooleanArray> {
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
    /// What each query has for itself.
    pub per_slot: Vec<String>,
}

/// How rows travel between two operators, each of which may have several parallel instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// From each instance to the instance with the same number; such neighbours fuse into one chain.
    Forward,
    /// To the next instance in turn.
    RoundRobin,
    /// To the instance that has the key: the values of the columns at these indices.
    Hash(Vec<usize>),
    /// To the single instance of the downstream node.
    Gather,
    /// To every instance of the downstream node.
    Broadcast,
    /// To the single instance of the downstream node: rows made of the refusals of the upstream node, instead of its
    /// output. Such an edge does not end the stage of the upstream node.
    Refused {
        /// Whether late rows are sent.
        late: bool,
        /// Whether rows refused for other reasons are sent.
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
            Self::Broadcast => "broadcast",
            Self::Refused { late: true, others: false } => "late rows",
            Self::Refused { .. } => "refused rows",
        })
    }
}

/// The index of a node in its dataflow.
pub type NodeId = usize;

/// A step of a dataflow, and the columns of its output.
#[derive(Clone)]
pub struct Node {
    /// What the node does.
    pub work: Work,
    /// The columns of the node's output; of a sink, the columns of its input.
    pub schema: SchemaRef,
    /// The keys by which rows are distributed to the instances of the node, as indices into its keys, in order; `None`
    /// for all keys. Distributing by a part of the key is enough to bring all rows of a key together.
    pub divided_by: Option<Vec<usize>>,
}

/// What a node does.
#[derive(Clone)]
pub enum Work {
    /// Emits the rows of a source, given by its index in the plan's list.
    Source(usize),
    /// Processes rows.
    Operator(Arc<dyn OperatorFactory>),
    /// Writes the results to a sink, given by its index in the plan's list.
    Sink(usize),
}

/// A connection between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The upstream node.
    pub from: NodeId,
    /// The downstream node.
    pub to: NodeId,
    /// The input of the downstream node: 0, or 1 for the right side of a join.
    pub input: usize,
    /// How rows travel.
    pub kind: EdgeKind,
}

/// Which operators run together in one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fuse {
    /// Those between which rows keep their partition.
    #[default]
    Auto,
    /// None: each operator is a stage of its own.
    None,
}

/// The directed acyclic graph of operators of an application or big query. A node comes after all nodes that it reads.
#[derive(Clone, Default)]
pub struct Dataflow {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    key_groups: KeyGroups,
    fuse: Fuse,
    /// For each node the address of its state. Empty if nothing is saved.
    addresses: Vec<Option<Arc<Address>>>,
}

impl Dataflow {
    /// Adds a node without inputs.
    pub fn add(&mut self, work: Work, schema: SchemaRef) -> NodeId {
        self.nodes.push(Node { work, schema, divided_by: None });
        self.nodes.len() - 1
    }

    /// Connects the node `from` with input number `input` of `to`.
    ///
    /// # Panics
    /// If one of the nodes does not exist, or `to` does not come after `from`.
    pub fn connect(&mut self, from: NodeId, to: NodeId, input: usize, kind: EdgeKind) {
        assert!(from < to && to < self.nodes.len(), "an edge leads from node {from} to a later one, not {to}");
        self.edges.push(Edge { from, to, input, kind });
    }

    /// Sets the keys by which rows are distributed to the instances of a node; see [`Node::divided_by`].
    ///
    /// # Panics
    /// If the node does not exist.
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

    /// Sets how keys are divided among key groups.
    #[must_use]
    pub fn with_key_groups(self, key_groups: KeyGroups) -> Self {
        Self { key_groups, ..self }
    }

    /// How keys are divided among key groups, the unit in which state is saved and divided among instances.
    pub fn key_groups(&self) -> KeyGroups {
        self.key_groups
    }

    /// Sets which operators run together.
    #[must_use]
    pub fn with_fuse(self, fuse: Fuse) -> Self {
        Self { fuse, ..self }
    }

    /// Which operators run together.
    pub fn fuse(&self) -> Fuse {
        self.fuse
    }

    /// The address of a node's state, if it has any and the dataflow was given addresses.
    pub fn address(&self, node: NodeId) -> Option<&Arc<Address>> {
        self.addresses.get(node)?.as_ref()
    }

    /// For each node the address of its state; empty if the dataflow was given none.
    pub fn addresses(&self) -> &[Option<Arc<Address>>] {
        &self.addresses
    }

    /// The nodes; each comes after all nodes that it reads.
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
    /// The factory of the node's operator, if the node is an operator.
    pub fn factory(&self) -> Option<&Arc<dyn OperatorFactory>> {
        match self {
            Self::Operator(factory) => Some(factory),
            Self::Source(_) | Self::Sink(_) => None,
        }
    }

    /// What the node does, in one or two words.
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
    addresses: Vec<Option<Arc<Address>>>,
}

impl Line {
    /// The operators, first to last.
    pub fn operators(&self) -> &[Arc<dyn OperatorFactory>] {
        &self.factories
    }

    /// For each operator the address of its state.
    pub fn addresses(&self) -> &[Option<Arc<Address>>] {
        &self.addresses
    }

    /// Makes a chain of new instances.
    pub fn chain(&self) -> Chain {
        let operators = self.factories.iter().map(|factory| factory.create()).collect();
        Chain::new(operators).with_addresses(self.addresses.clone())
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.factories.iter().map(|factory| factory.describe().operator)).finish()
    }
}
