//! Checkpoints of a flow: what all of its tasks hold at one moment of its streams.
//!
//! A checkpoint begins at the sources. Each sends a barrier behind what it has read, and rests. A task that has the barrier from everybody
//! who sends to it has seen all rows before it and none after: it sends what its operators hold back, has its sink prepare, captures their
//! state, and sends the barrier on. When all have, the sources go on. So nothing is under way at the barrier, channels need no state of their own, and
//! a task never has to tell rows before the barrier from rows behind it. The price is that a flow stands still for as long as its
//! slowest task needs to come to the barrier and capture; writing the snapshot is not part of that.
//!
//! What must hold: a [`Snapshot`] is what an undisturbed run would hold had the sources paused there: each row before their positions is
//! in the state, in a sink, or in nothing because it led to nothing; and no row behind them is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_dataflow::{KEY_GROUPS, KeyGroup, Node, NodeId, StateError, StateFrame, StateSelection, Work};

use super::stage::Stage;

/// A flow at a barrier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// For each source of the dataflow its partitions that have not ended.
    pub sources: Vec<Vec<PartitionState>>,
    /// The places of sources that have yet to be opened for the first time. Only a snapshot that was made for another version has any.
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

/// Why there was no checkpoint. The flow goes on as if none had been asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The flow has ended, well or not, or does so now.
    #[error("the query is coming to its end")]
    Ending,
    /// Some task did not come to the barrier.
    #[error("the query did not come to rest within {0:?}: {1}")]
    Slow(Duration, String),
    /// Another one is under way.
    #[error("a checkpoint of the query is being made already")]
    Busy,
    /// State could not be captured.
    #[error("its state cannot be captured: {0}")]
    State(String),
}

/// What a task has at the barrier.
#[derive(Debug, Default)]
pub(super) struct Captured {
    pub(super) partitions: Option<Vec<PartitionState>>,
    pub(super) sink: Option<String>,
    /// Of each operator.
    pub(super) frames: Vec<Option<StateFrame>>,
    pub(super) reached_us: Option<i64>,
    /// It has come to its end before.
    pub(super) has_ended: bool,
}

/// The barriers of a flow. Each has a number that no other has: a checkpoint may be tried again, and what comes late to the barrier of an attempt
/// that was given up must not count for the next.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// The barrier of the checkpoint that is being made; 0 without one.
    wanted: AtomicU64,
    /// That of the newest one that is durable.
    committed: AtomicU64,
    gathering: Mutex<Gathering>,
    gathered: Condvar,
}

/// What all tasks have captured, by stage and instance, or why there is no checkpoint.
pub(super) type Gathered = Result<BTreeMap<(usize, usize), Captured>, CheckpointError>;

/// What tasks have captured.
#[derive(Debug, Default)]
struct Gathering {
    /// The barrier that is gathered; 0 without one.
    number: u64,
    /// The newest barrier, and the checkpoint that it was raised for.
    newest: u64,
    checkpoint: u64,
    /// The newest checkpoint that is durable, which is that of the committed barrier.
    committed: u64,
    /// By stage and instance.
    parts: BTreeMap<(usize, usize), Captured>,
    /// Tasks that have ended. They never come to a barrier.
    ended: Vec<(usize, usize)>,
    failed: Option<String>,
}

impl Barrier {
    /// The barrier at which sources rest; 0 without one.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// The barrier of the newest checkpoint that is durable.
    pub(super) fn committed_barrier(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// The newest checkpoint that is durable. Whoever is still at its barrier keeps a later one from being made, so that for him the two
    /// belong together.
    pub(super) fn committed_checkpoint(&self) -> u64 {
        self.gathering.lock().committed
    }

    /// This checkpoint is durable. Only the one that was gathered last can be: of another nothing is known any more.
    pub(super) fn commit(&self, checkpoint: u64) {
        let mut gathering = self.gathering.lock();
        if gathering.checkpoint == checkpoint {
            gathering.committed = checkpoint;
            self.committed.store(gathering.newest, Ordering::Release);
        }
    }

    /// Has sources rest for this checkpoint, which may be another attempt. Those who wake them do so then.
    pub(super) fn raise(&self, checkpoint: u64) -> Result<(), CheckpointError> {
        let mut gathering = self.gathering.lock();
        if gathering.number != 0 || self.wanted() != 0 {
            return Err(CheckpointError::Busy);
        }
        gathering.newest += 1;
        gathering.number = gathering.newest;
        gathering.checkpoint = checkpoint;
        gathering.parts.clear();
        gathering.failed = None;
        self.wanted.store(gathering.newest, Ordering::Release);
        Ok(())
    }

    /// Lets sources go on.
    pub(super) fn lower(&self) {
        self.wanted.store(0, Ordering::Release);
    }

    /// A task has come to a barrier, which may have been given up.
    pub(super) fn capture(&self, number: u64, task: (usize, usize), captured: Result<Captured, StateError>) {
        let mut gathering = self.gathering.lock();
        if gathering.number != number {
            return;
        }
        match captured {
            Ok(captured) => drop(gathering.parts.insert(task, captured)),
            Err(error) => drop(gathering.failed.get_or_insert(error.to_string())),
        }
        self.gathered.notify_all();
    }

    /// A task has come to its end.
    pub(super) fn end(&self, task: (usize, usize)) {
        self.gathering.lock().ended.push(task);
        self.gathered.notify_all();
    }

    /// Waits until each of `tasks` has come to the barrier or its end. `is_over` says whether the flow has ended.
    pub(super) fn gather(&self, tasks: &[(usize, usize)], timeout: Duration, is_over: impl Fn() -> bool) -> Gathered {
        /// Nobody tells of a flow that has failed.
        const LOOK_PERIOD: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + timeout;
        let mut gathering = self.gathering.lock();
        let outcome = loop {
            if let Some(outcome) = gathering.look(tasks, &is_over) {
                break outcome;
            }
            if Instant::now() >= deadline {
                let missing = tasks.iter().filter(|task| gathering.misses(task));
                let waiting: Vec<String> =
                    missing.map(|(stage, instance)| format!("task {instance} of stage {stage}")).collect();
                break Err(CheckpointError::Slow(timeout, format!("{} did not", waiting.join(", "))));
            }
            self.gathered.wait_for(&mut gathering, LOOK_PERIOD);
        };
        gathering.number = 0;
        outcome
    }

    /// The same without waiting; `None` if some have yet to come.
    pub(super) fn look(&self, tasks: &[(usize, usize)], is_over: impl Fn() -> bool) -> Option<Gathered> {
        let mut gathering = self.gathering.lock();
        let outcome = gathering.look(tasks, &is_over);
        if outcome.is_some() {
            gathering.number = 0;
        }
        outcome
    }

    /// Nothing is gathered any more.
    pub(super) fn abandon(&self) {
        self.gathering.lock().number = 0;
    }
}

impl Gathering {
    fn misses(&self, task: &(usize, usize)) -> bool {
        !self.parts.contains_key(task) && !self.ended.contains(task)
    }

    /// What all have captured, or why nothing will come of it; `None` if some have yet to come.
    fn look(&mut self, tasks: &[(usize, usize)], is_over: &impl Fn() -> bool) -> Option<Gathered> {
        if let Some(problem) = &self.failed {
            return Some(Err(CheckpointError::State(problem.clone())));
        }
        if tasks.iter().any(|task| self.misses(task)) {
            return is_over().then_some(Err(CheckpointError::Ending));
        }
        let mut parts = std::mem::take(&mut self.parts);
        for &task in tasks {
            parts.entry(task).or_insert_with(|| Captured { has_ended: true, ..Captured::default() });
        }
        Some(Ok(parts))
    }
}

impl Snapshot {
    /// What tasks have captured, put together.
    pub(super) fn of(
        parts: BTreeMap<(usize, usize), Captured>,
        stages: &[Stage],
        dataflow: &rivulet_dataflow::Dataflow,
    ) -> Result<Self, CheckpointError> {
        let count = |of: fn(&Stage, &rivulet_dataflow::Dataflow) -> Option<usize>| {
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
                // Those that are left do so in a moment.
                return Err(CheckpointError::Ending);
            }
        }
        Ok(snapshot)
    }

    /// The state of an operator that one of so many instances is to have: that of the keys whose rows come to it. What
    /// brings rows may look at a part of the key only, and at another part than when the state was saved; so it is
    /// asked now.
    pub(super) fn state_of(
        &self,
        (id, node): (NodeId, &Node),
        instance: usize,
        instances: usize,
    ) -> Result<Option<StateFrame>, StateError> {
        let Some(frames) = self.state.get(&id) else { return Ok(None) };
        let Some(mut all) = StateFrame::concat(frames)? else { return Ok(None) };
        if instances == 1 {
            return Ok(Some(all));
        }
        if let (Work::Operator(factory), Some(places)) = (&node.work, &node.divided_by)
            && let Some(keys) = factory.state_keys(&all)
            && let Some(keys) = places.iter().map(|&place| keys.get(place).cloned()).collect::<Option<Vec<_>>>()
        {
            all = all.with_key_groups(&keys)?;
        }
        let own = (0..KEY_GROUPS).filter(|&group| KeyGroup::from_index(group).instance(instances) == instance);
        let own: Vec<u16> = own.collect();
        let (Some(&first), Some(&last)) = (own.first(), own.last()) else { return Ok(None) };
        all.select(&StateSelection::KeyGroups(first..last + 1)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_late_to_an_attempt_does_not_count_for_the_next() {
        let (barrier, tasks) = (Barrier::default(), [(0, 0), (1, 0)]);
        barrier.raise(5).unwrap();
        let first = barrier.wanted();
        barrier.capture(first, (0, 0), Ok(Captured::default()));
        let slow = barrier.gather(&tasks, Duration::ZERO, || false).unwrap_err();
        assert!(matches!(slow, CheckpointError::Slow(..)));
        barrier.lower();
        barrier.raise(5).unwrap();
        barrier.capture(first, (1, 0), Ok(Captured::default()));
        barrier.capture(barrier.wanted(), (0, 0), Ok(Captured::default()));
        let slow = barrier.gather(&tasks, Duration::ZERO, || false).unwrap_err();
        assert!(slow.to_string().contains("task 0 of stage 1 did not"), "{slow}");
    }
}
