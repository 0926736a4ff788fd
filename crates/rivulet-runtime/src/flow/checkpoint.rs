//! Checkpoints of a flow: the state of all its tasks at one moment of its streams.
//!
//! A checkpoint begins at the sources. Each sends a barrier behind the rows it has read, and rests. A task that has the
//! barrier from all its senders has seen all rows before it and none after it. The task emits what its operators hold
//! back, makes its sink prepare, captures the state, and passes the barrier on. When all tasks have done so, the
//! sources go on. So nothing is in flight at the barrier, channels need no state of their own, and a task never has to
//! tell rows before the barrier from rows behind it. The price is a pause of the flow, as long as its slowest task
//! needs to reach the barrier and to give its state away ([`StateSink`]), part by part. Writing the snapshot is not
//! part of the pause.
//!
//! What must hold: a [`Snapshot`](rivulet_dataflow::Snapshot) is the state that an undisturbed run would have if its
//! sources had paused there. Each row before their positions is in the state or in a sink, or had no effect; no row
//! behind them is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_dataflow::{StageSnapshot, StateError, StateSink};

/// Why there is no checkpoint. The flow goes on as if none had been asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The flow has ended or failed, or is about to.
    #[error("the query is coming to its end")]
    Ending,
    /// A task did not reach the barrier in this time.
    #[error("the query did not come to rest within {0:?}: {1}")]
    Slow(Duration, String),
    /// Another checkpoint is in progress.
    #[error("a checkpoint of the query is being made already")]
    Busy,
    /// State could not be captured.
    #[error("its state cannot be captured: {0}")]
    State(String),
}

/// The barriers of a flow. Each attempt at a checkpoint has a barrier number of its own, so that a task that reaches an
/// abandoned barrier late does not count for the next one.
#[derive(Default)]
pub(super) struct Barrier {
    /// The barrier of the checkpoint in progress; 0 if there is none.
    wanted: AtomicU64,
    /// The barrier of the newest durable checkpoint.
    committed: AtomicU64,
    gathering: Mutex<Gathering>,
    gathered: Condvar,
}

/// The snapshots of all tasks, by stage and instance, or why there is no checkpoint.
pub(super) type Gathered = Result<BTreeMap<(usize, usize), StageSnapshot>, CheckpointError>;

/// What tasks have captured so far.
#[derive(Default)]
struct Gathering {
    /// The barrier of the checkpoint that is gathered; 0 if there is none.
    number: u64,
    /// The newest barrier, and the checkpoint that it was raised for.
    newest: u64,
    checkpoint: u64,
    /// The newest durable checkpoint, which is that of the committed barrier.
    committed: u64,
    /// The snapshots, by stage and instance.
    parts: BTreeMap<(usize, usize), StageSnapshot>,
    /// Where state goes, as long as sources rest.
    into: Option<Arc<dyn StateSink>>,
    /// Tasks that have ended. They never come to a barrier.
    ended: Vec<(usize, usize)>,
    failed: Option<String>,
}

impl Barrier {
    /// The barrier at which sources rest; 0 if they do not.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// The barrier of the newest durable checkpoint.
    pub(super) fn committed_barrier(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// The newest durable checkpoint. A task that is still committing it prevents a later one, so for that task barrier
    /// and checkpoint belong together.
    pub(super) fn committed_checkpoint(&self) -> u64 {
        self.gathering.lock().committed
    }

    /// This checkpoint is durable. Only the checkpoint gathered last can be; others are ignored.
    pub(super) fn commit(&self, checkpoint: u64) {
        let mut gathering = self.gathering.lock();
        if gathering.checkpoint == checkpoint {
            gathering.committed = checkpoint;
            self.committed.store(gathering.newest, Ordering::Release);
        }
    }

    /// Makes sources rest for an attempt at this checkpoint, with state going to `into`. The caller then wakes the
    /// sources.
    pub(super) fn raise(&self, checkpoint: u64, into: Arc<dyn StateSink>) -> Result<(), CheckpointError> {
        let mut gathering = self.gathering.lock();
        if gathering.number != 0 || self.wanted() != 0 {
            return Err(CheckpointError::Busy);
        }
        gathering.newest += 1;
        gathering.number = gathering.newest;
        gathering.checkpoint = checkpoint;
        gathering.parts.clear();
        gathering.failed = None;
        gathering.into = Some(into);
        self.wanted.store(gathering.newest, Ordering::Release);
        Ok(())
    }

    /// Makes a guest rest at a barrier of the flow that it belongs to.
    pub(super) fn rest_at(&self, number: u64) {
        self.wanted.store(number, Ordering::Release);
    }

    /// Lets sources read again.
    pub(super) fn lower(&self) {
        let mut gathering = self.gathering.lock();
        gathering.into = None;
        self.wanted.store(0, Ordering::Release);
    }

    /// Where a task at this barrier exports its state to; `None` if sources have gone on.
    pub(super) fn state_sink(&self, number: u64) -> Option<Arc<dyn StateSink>> {
        let gathering = self.gathering.lock();
        gathering.into.clone().filter(|_| self.wanted() == number)
    }

    /// A task has reached a barrier, which may have been abandoned.
    pub(super) fn capture(&self, number: u64, task: (usize, usize), captured: Result<StageSnapshot, StateError>) {
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

    /// A task has ended.
    pub(super) fn end(&self, task: (usize, usize)) {
        self.gathering.lock().ended.push(task);
        self.gathered.notify_all();
    }

    /// Waits until each of `tasks` has reached the barrier or its end. `is_over` says whether the flow has ended.
    pub(super) fn gather(&self, tasks: &[(usize, usize)], timeout: Duration, is_over: impl Fn() -> bool) -> Gathered {
        /// A flow that fails does not notify the waiter.
        const LOOK_PERIOD: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + timeout;
        let mut gathering = self.gathering.lock();
        let outcome = loop {
            if let Some(outcome) = gathering.look(tasks, &is_over) {
                break outcome;
            }
            if Instant::now() >= deadline {
                let missing = tasks.iter().filter(|task| gathering.misses(task));
                // As EXPLAIN counts them.
                let name = |(stage, instance): &(usize, usize)| format!("task {} of stage {}", instance + 1, stage + 1);
                let waiting: Vec<String> = missing.map(name).collect();
                break Err(CheckpointError::Slow(timeout, format!("{} did not", waiting.join(", "))));
            }
            self.gathered.wait_for(&mut gathering, LOOK_PERIOD);
        };
        gathering.number = 0;
        outcome
    }

    /// The same without waiting; `None` if a task is still missing.
    pub(super) fn look(&self, tasks: &[(usize, usize)], is_over: impl Fn() -> bool) -> Option<Gathered> {
        let mut gathering = self.gathering.lock();
        let outcome = gathering.look(tasks, &is_over);
        if outcome.is_some() {
            gathering.number = 0;
        }
        outcome
    }

    /// Stops gathering.
    pub(super) fn abandon(&self) {
        self.gathering.lock().number = 0;
    }
}

impl Gathering {
    fn misses(&self, task: &(usize, usize)) -> bool {
        !self.parts.contains_key(task) && !self.ended.contains(task)
    }

    /// The snapshots of all tasks, or why there will be none; `None` if a task is still missing.
    fn look(&mut self, tasks: &[(usize, usize)], is_over: &impl Fn() -> bool) -> Option<Gathered> {
        if let Some(problem) = &self.failed {
            return Some(Err(CheckpointError::State(problem.clone())));
        }
        if tasks.iter().any(|task| self.misses(task)) {
            return is_over().then_some(Err(CheckpointError::Ending));
        }
        let mut parts = std::mem::take(&mut self.parts);
        for &task in tasks {
            parts.entry(task).or_insert_with(|| StageSnapshot { has_ended: true, ..StageSnapshot::default() });
        }
        Some(Ok(parts))
    }
}

#[cfg(test)]
mod tests {
    use rivulet_dataflow::CollectedState;

    use super::*;

    #[test]
    fn who_comes_late_to_an_attempt_does_not_count_for_the_next() {
        let (barrier, tasks) = (Barrier::default(), [(0, 0), (1, 0)]);
        barrier.raise(5, Arc::<CollectedState>::default()).unwrap();
        let first = barrier.wanted();
        barrier.capture(first, (0, 0), Ok(StageSnapshot::default()));
        let slow = barrier.gather(&tasks, Duration::ZERO, || false).unwrap_err();
        assert!(matches!(slow, CheckpointError::Slow(..)));
        barrier.lower();
        barrier.raise(5, Arc::<CollectedState>::default()).unwrap();
        barrier.capture(first, (1, 0), Ok(StageSnapshot::default()));
        barrier.capture(barrier.wanted(), (0, 0), Ok(StageSnapshot::default()));
        let slow = barrier.gather(&tasks, Duration::ZERO, || false).unwrap_err();
        assert!(slow.to_string().contains("task 1 of stage 2 did not"), "{slow}");
    }
}
