//! Snapshots: the state of a dataflow at one moment of its streams, joined from its stages and divided among new
//! instances.
//!
//! A [`Snapshot`] does not depend on how many instances a stage had: state is by operator and key group. So it can be
//! given to any number of instances ([`Snapshot::divide`]), and to another version of the dataflow
//! ([`Snapshot::succeed`]).

mod migration;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use arrow::compute::not;

pub use migration::HasEnded;

use crate::stage::{PartitionState, Stage, StageInput, StageSnapshot, cut};
use crate::{Dataflow, EdgeKind, Fuse, NodeId, StateError, StateFrame, Work};

/// The state of a dataflow at a barrier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// For each source of the dataflow, its partitions that have not ended.
    pub sources: Vec<Vec<PartitionState>>,
    /// The indices of sources that are yet to be opened for the first time. Only a snapshot that was migrated to
    /// another version has any.
    pub begins: BTreeSet<usize>,
    /// For each sink of the dataflow, what each of its instances needs to make its rows final.
    pub sinks: Vec<Vec<String>>,
    /// The state of operators by node, in one or several frames each. A new snapshot has none: a [`StateSink`] has
    /// taken them.
    pub state: BTreeMap<NodeId, Vec<StateFrame>>,
    /// The watermark at each source and each operator with state, by node. So it does not matter how the dataflow was
    /// cut into stages.
    pub reached_us: BTreeMap<NodeId, i64>,
    /// The sources and operators with state that have ended, by node.
    pub ended: Vec<NodeId>,
}

/// Names one part of the state of a dataflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePart {
    /// The operator.
    pub node: NodeId,
    /// The instance of its stage.
    pub instance: usize,
    /// The index of the range of key groups within the instance.
    pub part: usize,
}

/// Takes the state of a dataflow at a barrier, from all tasks in parallel. A task holds one part of it at a time.
pub trait StateSink: Send + Sync {
    /// State of an operator with more rows than this is given in several parts.
    fn rows_max(&self) -> usize;

    /// Takes a part. Each part is given once.
    ///
    /// # Errors
    /// The part cannot be stored, and there is no snapshot.
    fn take(&self, part: StatePart, frame: StateFrame) -> Result<(), StateError>;
}

/// Collects state in memory, key group by key group: for tests and simulations, which have little of it.
#[derive(Debug, Default)]
pub struct CollectedState(Mutex<BTreeMap<NodeId, Vec<StateFrame>>>);

impl CollectedState {
    /// Takes everything collected, for [`Snapshot::state`].
    pub fn take_all(&self) -> BTreeMap<NodeId, Vec<StateFrame>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StateSink for CollectedState {
    fn rows_max(&self) -> usize {
        0
    }

    fn take(&self, part: StatePart, frame: StateFrame) -> Result<(), StateError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(part.node).or_default().push(frame);
        Ok(())
    }
}

impl Snapshot {
    /// Joins the snapshots of all instances, by stage and instance, without the state of operators. `None` if some
    /// instances of a stage have ended and others have not.
    pub fn of(parts: BTreeMap<(usize, usize), StageSnapshot>, stages: &[Stage], dataflow: &Dataflow) -> Option<Self> {
        let count = |of: fn(&Stage, &Dataflow) -> Option<usize>| {
            stages.iter().filter_map(|stage| of(stage, dataflow)).max().map_or(0, |last| last + 1)
        };
        let mut snapshot = Self {
            sources: vec![Vec::new(); count(Stage::source)],
            sinks: vec![Vec::new(); count(Stage::sink)],
            ..Self::default()
        };
        let (mut ended, mut of_source) = (vec![0; stages.len()], Vec::with_capacity(stages.len()));
        for ((place, _), part) in parts {
            let stage = &stages[place];
            ended[place] += usize::from(part.has_ended);
            if let (Some(source), Some(partitions)) = (stage.source(dataflow), part.partitions) {
                snapshot.sources[source].extend(partitions);
            }
            if let (Some(sink), Some(prepared)) = (stage.sink(dataflow), part.sink) {
                snapshot.sinks[sink].push(prepared);
            }
            let anchors = stage.anchors(dataflow).filter(|_| !part.has_ended);
            for node in anchors {
                let reached_us = part.reached_us.unwrap_or(i64::MIN);
                let lowest = snapshot.reached_us.entry(node).or_insert(reached_us);
                *lowest = reached_us.min(*lowest);
            }
        }
        snapshot.reached_us.retain(|_, reached_us| *reached_us != i64::MIN);
        for (stage, ended) in stages.iter().zip(ended) {
            // An instance that reads only the instance of a source with its number may end before the others.
            let is_fed = |input: &StageInput| input.kind == EdgeKind::Forward && of_source[input.from];
            let is_of_source = stage.source(dataflow).is_some() || stage.inputs.iter().all(is_fed);
            of_source.push(is_of_source);
            if ended == stage.instances {
                snapshot.ended.extend(stage.anchors(dataflow));
            } else if ended > 0 && !is_of_source {
                return None;
            }
        }
        Some(snapshot)
    }

    /// Where each stage continues, however the dataflow was cut when the snapshot was made.
    pub fn of_stages(&self, stages: &[Stage], dataflow: &Dataflow) -> Vec<StageSnapshot> {
        let mut all: Vec<StageSnapshot> = Vec::with_capacity(stages.len());
        for stage in stages {
            // A stage without such nodes gets the watermark from the stages that it reads.
            let reached_us = stage.anchors(dataflow).map(|node| self.reached_us.get(&node).copied()).min().flatten();
            let mut anchors = stage.anchors(dataflow).map(|node| self.ended.contains(&node)).peekable();
            let has_ended = match anchors.peek() {
                Some(_) => anchors.all(|has_ended| has_ended),
                None => stage.inputs.iter().all(|input| all[input.from].has_ended),
            };
            all.push(StageSnapshot { reached_us, has_ended, ..StageSnapshot::default() });
        }
        all
    }

    /// Turns watermarks and ends by the first node of a stage, as they were saved once, into those by node.
    #[must_use]
    pub fn by_node(mut self, dataflow: &Dataflow) -> Self {
        // Operators were fused then, and fusion does not depend on the number of instances.
        let sources = dataflow.nodes().iter().filter(|node| matches!(node.work, Work::Source(_))).count();
        for stage in cut(&dataflow.clone().with_fuse(Fuse::Auto), &vec![1; sources], 1) {
            let first = stage.nodes[0];
            if let Some(reached_us) = self.reached_us.remove(&first) {
                self.reached_us.extend(stage.anchors(dataflow).map(|node| (node, reached_us)));
            }
            if self.ended.contains(&first) {
                self.ended.retain(|node| *node != first);
                self.ended.extend(stage.anchors(dataflow));
            }
        }
        self
    }

    /// Divides the state of an operator among instances: each gets the state of the keys whose rows it receives, and
    /// what every instance has. The edge to the operator may look at a part of the key only, and at another part than
    /// when the state was saved, so the key groups are computed again.
    ///
    /// # Errors
    /// Frames of different operators, keys of a type that cannot be a key, or a key group that the dataflow does not
    /// have.
    pub fn divide(
        &self,
        dataflow: &Dataflow,
        id: NodeId,
        instances: usize,
    ) -> Result<Vec<Option<StateFrame>>, StateError> {
        let (node, key_groups) = (&dataflow.nodes()[id], dataflow.key_groups());
        let Some(mut all) = self.state.get(&id).map_or(Ok(None), |frames| StateFrame::concat(frames))? else {
            return Ok(vec![None; instances]);
        };
        if instances == 1 {
            return Ok(vec![Some(all)]);
        }
        let factory = node.work.factory();
        let everywhere = match factory.and_then(|factory| factory.everywhere(&all)) {
            Some(is_everywhere) => {
                let everywhere = all.filter(&is_everywhere)?;
                all = all.filter(&not(&is_everywhere)?)?;
                Some(everywhere)
            }
            None => None,
        };
        if let (Some(factory), Some(places)) = (factory, &node.divided_by)
            && let Some(keys) = factory.state_keys(&all)
            && let Some(keys) = places.iter().map(|&place| keys.get(place).cloned()).collect::<Option<Vec<_>>>()
        {
            all = all.with_keys(&keys, key_groups)?;
        }
        let parts = all.split(instances, |key_group| key_groups.instance(key_group, instances))?;
        parts
            .map(|part| {
                let mut part = part?;
                everywhere.iter().try_for_each(|everywhere| part.append(everywhere))?;
                Ok(Some(part))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt16Array, UInt32Array};
    use arrow::datatypes::{Schema, UInt32Type};

    use super::*;
    use crate::{Address, Description, KeyGroups, Operator, OperatorFactory};

    struct Does(bool);

    impl OperatorFactory for Does {
        fn create(&self) -> Box<dyn Operator> {
            unreachable!("only cut")
        }

        fn describe(&self) -> Description {
            Description::default()
        }

        fn state(&self) -> Option<Address> {
            self.0.then(|| Address::of("sum"))
        }
    }

    /// A source (0), a filter (1), a window by key (2), a filter (3), a sink (4).
    fn dataflow() -> Dataflow {
        let columns = || Arc::new(Schema::empty());
        let mut dataflow = Dataflow::default();
        let source = dataflow.add(Work::Source(0), columns());
        let filter = dataflow.then(source, EdgeKind::Forward, Arc::new(Does(false)), columns());
        let window = dataflow.then(filter, EdgeKind::Hash(vec![0]), Arc::new(Does(true)), columns());
        let filter = dataflow.then(window, EdgeKind::Forward, Arc::new(Does(false)), columns());
        let sink = dataflow.add(Work::Sink(0), columns());
        dataflow.connect(filter, sink, 0, EdgeKind::Forward);
        dataflow
    }

    fn parts(stages: &[Stage], of: impl Fn(usize, usize) -> StageSnapshot) -> BTreeMap<(usize, usize), StageSnapshot> {
        let all =
            stages.iter().enumerate().flat_map(|(place, stage)| (0..stage.instances).map(move |one| (place, one)));
        all.map(|(place, one)| ((place, one), of(place, one))).collect()
    }

    fn at(reached_us: i64) -> StageSnapshot {
        StageSnapshot { reached_us: Some(reached_us), ..StageSnapshot::default() }
    }

    #[test]
    fn watermarks_are_found_again_however_the_dataflow_is_cut() {
        let dataflow = dataflow();
        let (fused, single) = (cut(&dataflow, &[2], 2), cut(&dataflow.clone().with_fuse(Fuse::None), &[2], 2));
        let of_stages = |snapshot: &Snapshot, stages: &[Stage]| {
            let all = snapshot.of_stages(stages, &dataflow).into_iter();
            all.map(|one| (one.reached_us, one.has_ended)).collect::<Vec<_>>()
        };
        let of_fused = Snapshot::of(parts(&fused, |stage, one| at([20, 10][stage] + one as i64)), &fused, &dataflow);
        let of_single = Snapshot::of(parts(&single, |stage, _| at([20, 19, 10, 9, 8][stage])), &single, &dataflow);
        for snapshot in [of_fused, of_single] {
            let snapshot = snapshot.unwrap();
            assert_eq!(snapshot.reached_us, [(0, 20), (2, 10)].into());
            assert_eq!(of_stages(&snapshot, &fused), [(Some(20), false), (Some(10), false)]);
            let of_single = of_stages(&snapshot, &single);
            assert_eq!(of_single, [(Some(20), false), (None, false), (Some(10), false), (None, false), (None, false)]);
        }
        // As it was saved once, by the first nodes of stages.
        let earlier = Snapshot { reached_us: [(0, 20), (2, 10)].into(), ended: vec![0], ..Snapshot::default() };
        let earlier = earlier.by_node(&dataflow);
        assert_eq!((earlier.reached_us, earlier.ended), ([(0, 20), (2, 10)].into(), vec![0]));
    }

    #[test]
    fn ends_are_found_again_and_instances_behind_a_source_end_one_by_one() {
        let dataflow = dataflow();
        let (fused, single) = (cut(&dataflow, &[2], 2), cut(&dataflow.clone().with_fuse(Fuse::None), &[2], 2));
        let ends = |has_ended: bool| StageSnapshot { has_ended, ..StageSnapshot::default() };
        let snapshot = Snapshot::of(parts(&single, |stage, _| ends(stage < 2)), &single, &dataflow).unwrap();
        let ended = |stages: &[Stage]| {
            snapshot.of_stages(stages, &dataflow).iter().map(|one| one.has_ended).collect::<Vec<_>>()
        };
        assert_eq!((snapshot.ended.clone(), ended(&single)), (vec![0], vec![true, true, false, false, false]));
        assert_eq!(ended(&fused), [true, false]);
        // The first instance of the source and of its filter.
        let some = Snapshot::of(parts(&single, |stage, one| ends(stage < 2 && one == 0)), &single, &dataflow).unwrap();
        assert_eq!(some.ended, [] as [NodeId; 0]);
        let window =
            Snapshot::of(parts(&single, |stage, one| ends(stage < 2 || (stage == 2 && one == 0))), &single, &dataflow);
        assert_eq!(window, None, "it is about to end");
    }

    /// Keeps numbers by key, and every instance has the numbers from 100 on.
    struct Both;

    impl OperatorFactory for Both {
        fn create(&self) -> Box<dyn Operator> {
            unreachable!("only divided")
        }

        fn describe(&self) -> Description {
            Description::default()
        }

        fn state(&self) -> Option<Address> {
            Some(Address::of("both"))
        }

        fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
            Some(vec![frame.rows.column(2).clone()])
        }

        fn everywhere(&self, frame: &StateFrame) -> Option<BooleanArray> {
            let numbers = frame.rows.column(2).as_primitive::<UInt32Type>().values().iter();
            Some(numbers.map(|&number| Some(number >= 100)).collect())
        }
    }

    #[test]
    fn what_every_instance_has_is_saved_once_and_given_to_all() {
        let columns = || Arc::new(Schema::empty());
        let mut dataflow = Dataflow::default().with_key_groups(KeyGroups::new(8));
        let source = dataflow.add(Work::Source(0), columns());
        let both = dataflow.then(source, EdgeKind::Broadcast, Arc::new(Both), columns());
        dataflow.divide(both, vec![0]);
        let frame = |numbers: &[u32]| {
            let zeros = UInt32Array::from_value(0, numbers.len());
            let key_groups = UInt16Array::from_value(0, numbers.len());
            let columns: [(_, ArrayRef); 3] = [
                ("slot", Arc::new(zeros)),
                ("key_group", Arc::new(key_groups)),
                ("number", Arc::new(UInt32Array::from(numbers.to_vec()))),
            ];
            StateFrame::new("both", 1, RecordBatch::try_from_iter(columns).unwrap())
        };
        let own: Vec<u32> = (0..40).collect();
        let state = [(both, vec![frame(&[&own[..20], &[100, 101]].concat()), frame(&own[20..])])].into();
        let snapshot = Snapshot { state, ..Snapshot::default() };
        for instances in [1, 2, 3] {
            let parts = snapshot.divide(&dataflow, both, instances).unwrap();
            let numbers = parts.iter().map(|part| {
                let rows = &part.as_ref().unwrap().rows;
                rows.column(2).as_primitive::<UInt32Type>().values().to_vec()
            });
            let (mut divided, mut everywhere) = (Vec::new(), Vec::new());
            for part in numbers {
                let (all, own): (Vec<u32>, Vec<u32>) = part.into_iter().partition(|&number| number >= 100);
                assert!(own.len() > 40 / instances / 4, "{instances} instances share the keys");
                divided.extend(own);
                everywhere.push(all);
            }
            divided.sort_unstable();
            assert_eq!((divided, everywhere), (own.clone(), vec![vec![100, 101]; instances]));
        }
    }
}
