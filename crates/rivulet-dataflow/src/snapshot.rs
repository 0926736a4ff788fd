//! Snapshots: the state of a dataflow at one moment of its streams, joined from its stages and divided among new
//! instances.
//!
//! A [`Snapshot`] does not depend on how many instances a stage had: state is by operator and key group. So it can be
//! given to any number of instances ([`Snapshot::divide`]), and to another version of the dataflow
//! ([`Snapshot::succeed`]).

mod migration;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

pub use migration::HasEnded;

use crate::stage::{PartitionState, Stage, StageSnapshot};
use crate::{Dataflow, NodeId, StateError, StateFrame, Work};

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
    /// The watermark of each stage, by its first node.
    pub reached_us: BTreeMap<NodeId, i64>,
    /// The stages that have ended, by their first nodes.
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
        let mut ended = vec![0; stages.len()];
        for ((place, _), part) in parts {
            let stage = &stages[place];
            ended[place] += usize::from(part.has_ended);
            if let (Some(source), Some(partitions)) = (stage.source(dataflow), part.partitions) {
                snapshot.sources[source].extend(partitions);
            }
            if let (Some(sink), Some(prepared)) = (stage.sink(dataflow), part.sink) {
                snapshot.sinks[sink].push(prepared);
            }
            if !part.has_ended {
                let reached_us = part.reached_us.unwrap_or(i64::MIN);
                let lowest = snapshot.reached_us.entry(stage.nodes[0]).or_insert(reached_us);
                *lowest = reached_us.min(*lowest);
            }
        }
        snapshot.reached_us.retain(|_, reached_us| *reached_us != i64::MIN);
        for (stage, ended) in stages.iter().zip(ended).filter(|(_, ended)| *ended > 0) {
            if ended == stage.instances {
                snapshot.ended.push(stage.nodes[0]);
            } else if stage.source(dataflow).is_none() {
                return None;
            }
        }
        Some(snapshot)
    }

    /// Divides the state of an operator among instances: each gets the state of the keys whose rows it receives. The
    /// edge to the operator may look at a part of the key only, and at another part than when the state was saved, so
    /// the key groups are computed again.
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
        if let (Work::Operator(factory), Some(places)) = (&node.work, &node.divided_by)
            && let Some(keys) = factory.state_keys(&all)
            && let Some(keys) = places.iter().map(|&place| keys.get(place).cloned()).collect::<Option<Vec<_>>>()
        {
            all = all.with_keys(&keys, key_groups)?;
        }
        all.split(instances, |key_group| key_groups.instance(key_group, instances))?
            .map(|part| part.map(Some))
            .collect()
    }
}
