//! Snapshots: what a dataflow holds at one moment of its streams, put together from its stages and divided among
//! others.
//!
//! A [`Snapshot`] knows nothing of how many instances a stage had: state is by operator and key group, so it can be
//! given to any number of instances ([`Snapshot::divide`]), and to another version of the dataflow
//! ([`Snapshot::succeed`]).

mod migration;

use std::collections::{BTreeMap, BTreeSet};

pub use migration::HasEnded;

use crate::stage::Stage;
use crate::{Dataflow, NodeId, StateError, StateFrame, Work};

/// A dataflow at a barrier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// For each source of the dataflow its partitions that have not ended.
    pub sources: Vec<Vec<PartitionState>>,
    /// The places of sources that have yet to be opened for the first time. Only a snapshot that was made for another
    /// version has any.
    pub begins: BTreeSet<usize>,
    /// For each sink of the dataflow what each of its instances says that it needs to make final what was written.
    pub sinks: Vec<Vec<String>>,
    /// The state of operators, by their nodes in the dataflow, in one or several frames each.
    pub state: BTreeMap<NodeId, Vec<StateFrame>>,
    /// The watermark of each stage, by its first node.
    pub reached_us: BTreeMap<NodeId, i64>,
    /// The stages that have come to their end, by their first nodes.
    pub ended: Vec<NodeId>,
}

/// Where a partition of a source stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionState {
    /// In words of its connector; `None` if what was read cannot be read again.
    pub position: Option<String>,
    /// The time of its newest row, microseconds since the epoch.
    pub newest_us: Option<i64>,
}

/// What one instance of a stage holds at a barrier.
#[derive(Debug, Default)]
pub struct StageSnapshot {
    /// Where its partitions stand, if it reads a source.
    pub partitions: Option<Vec<PartitionState>>,
    /// What its sink needs to make final what was written, if it has one.
    pub sink: Option<String>,
    /// The state of each operator.
    pub frames: Vec<Option<StateFrame>>,
    /// Its watermark, microseconds since the epoch; `None` before the first.
    pub reached_us: Option<i64>,
    /// It has come to its end before.
    pub has_ended: bool,
}

impl Snapshot {
    /// What all instances hold, by stage and instance, put together. `None` if some instances of a stage have come to
    /// their end and others have yet to.
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
            for (node, frame) in stage.operator_nodes(dataflow).zip(part.frames) {
                snapshot.state.entry(node).or_default().extend(frame.filter(|frame| frame.rows.num_rows() > 0));
            }
            if !part.has_ended {
                let reached_us = part.reached_us.unwrap_or(i64::MIN);
                let lowest = snapshot.reached_us.entry(stage.nodes[0]).or_insert(reached_us);
                *lowest = reached_us.min(*lowest);
            }
        }
        snapshot.state.retain(|_, frames| !frames.is_empty());
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

    /// The state of an operator, divided among so many instances: each gets that of the keys whose rows come to it.
    /// What brings rows may look at a part of the key only, and at another part than when the state was saved; so the
    /// key groups are computed again.
    ///
    /// # Errors
    /// Frames of different operators, keys of a type that cannot be one, or a key group that the dataflow has not.
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
