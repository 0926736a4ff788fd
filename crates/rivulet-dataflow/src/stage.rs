//! Stages: which operators run together, in how many instances, and what steps them.
//!
//! - [`cut`] says which operators are fused into one stage, in how many instances the stage runs, and where it sends;
//! - [`Watermarks`]: the watermark of several inputs together;
//! - [`StageHost`]: what steps one instance of a stage.

mod watermarks;
mod snapshot;
mod host;

use std::sync::Arc;

pub use host::StageHost;
pub use snapshot::{PartitionState, StageSnapshot};
pub use watermarks::Watermarks;

use crate::{Dataflow, Edge, EdgeKind, Fuse, NodeId, OperatorFactory, Work};

/// Nodes that run in one task, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The nodes, first to last.
    pub nodes: Vec<NodeId>,
    /// The number of instances.
    pub instances: usize,
    /// The inputs of the stage; empty if it begins with a source.
    pub inputs: Vec<StageInput>,
}

/// A connection from one stage to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageInput {
    /// The index of the upstream stage.
    pub from: usize,
    /// The input of the first operator that the rows are for.
    pub input: usize,
    /// How rows travel.
    pub kind: EdgeKind,
}

/// Cuts a dataflow into stages; each comes after those that it reads. `partitions` has the number of partitions of each
/// source.
///
/// A cut is made where rows change their partition, where several streams come together, and where several nodes read
/// one. A stage that is connected point to point to a stage with another number of instances distributes its rows in
/// turn. With [`Fuse::None`] a cut is made between all nodes.
pub fn cut(dataflow: &Dataflow, partitions: &[usize], parallelism: usize) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    // The stage of each node.
    let mut places: Vec<usize> = Vec::with_capacity(dataflow.nodes().len());
    for (id, node) in dataflow.nodes().iter().enumerate() {
        let inputs: Vec<_> = dataflow.inputs_of(id).collect();
        if let [edge] = inputs.as_slice()
            && dataflow.fuse() == Fuse::Auto
            && edge.kind == EdgeKind::Forward
            && dataflow.outputs_of(edge.from).filter(|edge| !is_of_refused(edge)).count() == 1
        {
            let stage = places[edge.from];
            stages[stage].nodes.push(id);
            places.push(stage);
            continue;
        }
        let instances = match node.work {
            Work::Source(source) => partitions[source].clamp(1, parallelism),
            _ if inputs.iter().any(|edge| edge.kind == EdgeKind::Gather || is_of_refused(edge)) => 1,
            _ if inputs.iter().all(|edge| edge.kind == EdgeKind::Forward) => {
                inputs.iter().map(|edge| stages[places[edge.from]].instances).max().unwrap_or(1)
            }
            _ => parallelism,
        };
        // A stage refuses rows as a unit: its nodes read the same sources.
        let mut refusing: Vec<usize> = Vec::new();
        let inputs = inputs
            .into_iter()
            .filter(|edge| {
                let from = places[edge.from];
                let is_known = is_of_refused(edge) && refusing.contains(&from);
                refusing.push(from);
                !is_known
            })
            .map(|edge| {
                let from = places[edge.from];
                let kind = match &edge.kind {
                    kind @ EdgeKind::Refused { .. } => kind.clone(),
                    // Between single instances there is only one target, whatever the key.
                    _ if instances == 1 && stages[from].instances == 1 => EdgeKind::Forward,
                    EdgeKind::Forward if stages[from].instances != instances => EdgeKind::RoundRobin,
                    kind => kind.clone(),
                };
                StageInput { from, input: edge.input, kind }
            })
            .collect();
        stages.push(Stage { nodes: vec![id], instances, inputs });
        places.push(stages.len() - 1);
    }
    stages
}

fn is_of_refused(edge: &Edge) -> bool {
    matches!(edge.kind, EdgeKind::Refused { .. })
}

/// The number of instances of each sink of the dataflow.
pub fn sink_instances(dataflow: &Dataflow, partitions: &[usize], parallelism: usize) -> Vec<usize> {
    let stages = cut(dataflow, partitions, parallelism);
    let mut instances: Vec<(usize, usize)> =
        stages.iter().filter_map(|stage| Some((stage.sink(dataflow)?, stage.instances))).collect();
    instances.sort_unstable();
    instances.into_iter().map(|(_, instances)| instances).collect()
}

impl Stage {
    /// The index in the plan of the source that the stage begins with, if any.
    pub fn source(&self, dataflow: &Dataflow) -> Option<usize> {
        match dataflow.nodes()[self.nodes[0]].work {
            Work::Source(source) => Some(source),
            _ => None,
        }
    }

    /// The index in the plan of the sink that the stage ends with, if any.
    pub fn sink(&self, dataflow: &Dataflow) -> Option<usize> {
        match self.nodes.last().map(|&node| &dataflow.nodes()[node].work) {
            Some(Work::Sink(sink)) => Some(*sink),
            _ => None,
        }
    }

    /// The nodes of the stage by which its watermark and its end are found again: sources and operators with state.
    pub fn anchors(&self, dataflow: &Dataflow) -> impl Iterator<Item = NodeId> {
        let is_anchor = |work: &Work| work.factory().map_or(matches!(work, Work::Source(_)), |one| one.is_stateful());
        self.nodes.iter().copied().filter(move |&node| is_anchor(&dataflow.nodes()[node].work))
    }

    /// The nodes of the stage that are operators.
    pub fn operator_nodes(&self, dataflow: &Dataflow) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().copied().filter(|&node| dataflow.nodes()[node].work.factory().is_some())
    }

    /// The operators of the stage.
    pub fn operators<'d>(&'d self, dataflow: &'d Dataflow) -> impl Iterator<Item = &'d Arc<dyn OperatorFactory>> {
        self.nodes.iter().filter_map(|&node| dataflow.nodes()[node].work.factory())
    }

    /// The senders to `instance`, input by input: the input, and the instance of its upstream stage.
    fn senders(&self, instance: usize, stages: &[Self]) -> impl Iterator<Item = (&StageInput, usize)> {
        self.inputs.iter().flat_map(move |input| {
            let senders = match input.kind {
                EdgeKind::Forward => instance..instance + 1,
                _ => 0..stages[input.from].instances,
            };
            senders.map(move |sender| (input, sender))
        })
    }

    /// For each channel to `instance`, the input of the first operator that its rows are for.
    pub fn channels(&self, instance: usize, stages: &[Self]) -> Vec<usize> {
        self.senders(instance, stages).map(|(input, _)| input.input).collect()
    }

    /// The senders to `instance`: stage and instance.
    pub fn upstream(&self, instance: usize, stages: &[Self]) -> impl Iterator<Item = (usize, usize)> {
        self.senders(instance, stages).map(|(input, sender)| (input.from, sender))
    }

    /// The channel by which instance `sender` sends to `instance` along the input at index `input_place`; `None` if it
    /// does not send there.
    pub fn channel(&self, input_place: usize, sender: usize, instance: usize, stages: &[Self]) -> Option<usize> {
        self.senders(instance, stages)
            .position(|(input, from)| std::ptr::eq(input, &raw const self.inputs[input_place]) && from == sender)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Address, Description, Operator};
    use arrow::datatypes::{Schema, SchemaRef};

    use super::*;

    struct Nothing;

    impl OperatorFactory for Nothing {
        fn create(&self) -> Box<dyn Operator> {
            unreachable!("only cut")
        }

        fn describe(&self) -> Description {
            Description::default()
        }

        fn state(&self) -> Option<Address> {
            None
        }
    }

    fn columns() -> SchemaRef {
        Arc::new(Schema::empty())
    }

    #[test]
    fn edges_of_refused_rows_part_no_stage_and_lead_from_each_once() {
        let columns = || Arc::new(Schema::empty());
        let mut dataflow = Dataflow::default();
        let source = dataflow.add(Work::Source(0), columns());
        let filter = dataflow.then(source, EdgeKind::Forward, Arc::new(Nothing), columns());
        let window = dataflow.then(filter, EdgeKind::Hash(vec![0]), Arc::new(Nothing), columns());
        let sink = dataflow.add(Work::Sink(0), columns());
        dataflow.connect(window, sink, 0, EdgeKind::Forward);
        let without = cut(&dataflow, &[3], 2);
        let letters = dataflow.add(Work::Sink(1), columns());
        let kind = EdgeKind::Refused { late: true, others: true };
        [source, filter, window].into_iter().for_each(|node| dataflow.connect(node, letters, 0, kind.clone()));
        let with = cut(&dataflow, &[3], 2);
        assert_eq!(with[..2], without, "what is fused stays so");
        let input = |from| StageInput { from, input: 0, kind: kind.clone() };
        assert_eq!(with[2], Stage { nodes: vec![letters], instances: 1, inputs: vec![input(0), input(1)] });
        assert_eq!(sink_instances(&dataflow, &[3], 2), [2, 1]);
        assert_eq!(with[2].channels(0, &with).len(), 4, "one from each task");
    }

    #[test]
    fn operators_that_are_not_fused_are_stages_of_their_own() {
        let mut dataflow = Dataflow::default();
        let source = dataflow.add(Work::Source(0), columns());
        let filter = dataflow.then(source, EdgeKind::Forward, Arc::new(Nothing), columns());
        let window = dataflow.then(filter, EdgeKind::Hash(vec![0]), Arc::new(Nothing), columns());
        let (sink, letters) = (dataflow.add(Work::Sink(0), columns()), dataflow.add(Work::Sink(1), columns()));
        dataflow.connect(window, sink, 0, EdgeKind::Forward);
        let kind = EdgeKind::Refused { late: true, others: true };
        [source, filter, window].into_iter().for_each(|node| dataflow.connect(node, letters, 0, kind.clone()));
        let stages = cut(&dataflow.with_fuse(Fuse::None), &[3], 2);
        assert_eq!(stages.iter().map(|stage| stage.nodes.clone()).collect::<Vec<_>>(), [[0], [1], [2], [3], [4]]);
        assert_eq!(stages.iter().map(|stage| stage.instances).collect::<Vec<_>>(), [2, 2, 2, 2, 1]);
        let kinds =
            |stage: usize| stages[stage].inputs.iter().map(|input| (input.from, &input.kind)).collect::<Vec<_>>();
        assert_eq!(kinds(1), [(0, &EdgeKind::Forward)]);
        assert_eq!(kinds(2), [(1, &EdgeKind::Hash(vec![0]))]);
        assert_eq!(kinds(3), [(2, &EdgeKind::Forward)]);
        assert_eq!(kinds(4), [(0, &kind), (1, &kind), (2, &kind)]);
        assert_eq!((stages[1].channels(1, &stages).len(), stages[4].channels(0, &stages).len()), (1, 6));
    }

    #[test]
    fn a_side_that_is_broadcast_comes_to_all_instances_and_the_other_in_turn() {
        let mut dataflow = Dataflow::default();
        let (source, small) = (dataflow.add(Work::Source(0), columns()), dataflow.add(Work::Source(1), columns()));
        let sum = dataflow.then(small, EdgeKind::Gather, Arc::new(Nothing), columns());
        let join = dataflow.add(Work::Operator(Arc::new(Nothing)), columns());
        dataflow.connect(source, join, 0, EdgeKind::RoundRobin);
        dataflow.connect(sum, join, 1, EdgeKind::Broadcast);
        let sink = dataflow.add(Work::Sink(0), columns());
        dataflow.connect(join, sink, 0, EdgeKind::Forward);
        for fuse in [Fuse::Auto, Fuse::None] {
            let stages = cut(&dataflow.clone().with_fuse(fuse), &[1, 1], 3);
            assert_eq!(stages[3].instances, 3);
            let kinds: Vec<&EdgeKind> = stages[3].inputs.iter().map(|input| &input.kind).collect();
            assert_eq!(kinds, [&EdgeKind::RoundRobin, &EdgeKind::Broadcast]);
            assert!((0..3).all(|instance| stages[3].channels(instance, &stages) == [0, 1]));
        }
        let one = cut(&dataflow, &[1, 1], 1);
        assert!(one.iter().flat_map(|stage| &stage.inputs).all(|input| input.kind == EdgeKind::Forward));
    }

    #[test]
    fn what_is_connected_point_to_point_is_one_stage() {
        let mut dataflow = Dataflow::default();
        let source = dataflow.add(Work::Source(0), columns());
        let filter = dataflow.then(source, EdgeKind::Forward, Arc::new(Nothing), columns());
        let window = dataflow.then(filter, EdgeKind::Hash(vec![0]), Arc::new(Nothing), columns());
        let sink = dataflow.add(Work::Sink(0), columns());
        dataflow.connect(window, sink, 0, EdgeKind::Forward);
        let stages = cut(&dataflow, &[2], 2);
        assert_eq!(stages.iter().map(|stage| stage.nodes.clone()).collect::<Vec<_>>(), [vec![0, 1], vec![2, 3]]);
        assert_eq!(stages.iter().map(|stage| stage.instances).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(stages[1].inputs, [StageInput { from: 0, input: 0, kind: EdgeKind::Hash(vec![0]) }]);
        // Both instances send to both.
        assert_eq!(stages[1].channels(0, &stages), [0, 0]);
        assert_eq!(stages[1].upstream(1, &stages).collect::<Vec<_>>(), [(0, 0), (0, 1)]);
        assert_eq!(stages[1].channel(0, 1, 0, &stages), Some(1));
        assert_eq!((stages[0].source(&dataflow), stages[1].sink(&dataflow)), (Some(0), Some(0)));
    }

    #[test]
    fn a_stream_that_two_read_is_cut_and_joined_again() {
        let mut dataflow = Dataflow::default();
        let source = dataflow.add(Work::Source(0), columns());
        let left = dataflow.then(source, EdgeKind::Forward, Arc::new(Nothing), columns());
        let right = dataflow.then(source, EdgeKind::Forward, Arc::new(Nothing), columns());
        let join = dataflow.add(Work::Operator(Arc::new(Nothing)), columns());
        dataflow.connect(left, join, 0, EdgeKind::Hash(vec![0]));
        dataflow.connect(right, join, 1, EdgeKind::Hash(vec![1]));
        let stages = cut(&dataflow, &[3], 2);
        assert_eq!(stages.iter().map(|stage| stage.nodes.clone()).collect::<Vec<_>>(), [[0], [1], [2], [3]]);
        assert_eq!(stages.iter().map(|stage| stage.instances).collect::<Vec<_>>(), [2, 2, 2, 2]);
        assert_eq!(stages[3].channels(0, &stages), [0, 0, 1, 1]);
        assert_eq!(stages[1].channels(1, &stages), [0]);
        assert_eq!((stages[1].channel(0, 1, 1, &stages), stages[1].channel(0, 0, 1, &stages)), (Some(0), None));
    }

    #[test]
    fn streams_of_different_width_come_together_in_turn() {
        let mut dataflow = Dataflow::default();
        let (one, two) = (dataflow.add(Work::Source(0), columns()), dataflow.add(Work::Source(1), columns()));
        let both = dataflow.add(Work::Operator(Arc::new(Nothing)), columns());
        dataflow.connect(one, both, 0, EdgeKind::Forward);
        dataflow.connect(two, both, 0, EdgeKind::Forward);
        let all = dataflow.then(both, EdgeKind::Gather, Arc::new(Nothing), columns());
        let sink = dataflow.add(Work::Sink(0), columns());
        dataflow.connect(all, sink, 0, EdgeKind::Forward);
        let stages = cut(&dataflow, &[1, 2], 2);
        let kinds: Vec<&EdgeKind> = stages[2].inputs.iter().map(|input| &input.kind).collect();
        assert_eq!((stages[2].instances, kinds), (2, vec![&EdgeKind::RoundRobin, &EdgeKind::Forward]));
        assert_eq!((stages[3].instances, stages[3].nodes.len()), (1, 2));
        // With one instance nothing is sent by key.
        let serial = cut(&dataflow, &[1, 2], 1);
        assert!(serial.iter().flat_map(|stage| &stage.inputs).all(|input| input.kind == EdgeKind::Forward));
    }
}
