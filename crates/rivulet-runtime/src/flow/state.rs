//! What all tasks of a flow share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::alignment::Alignment;
use super::checkpoint::Barrier;
use super::idleness::Idleness;
use super::inbox::FlowLimits;
use super::peer::Peer;
use super::throttle::Throttle;

/// What a flow is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Sources are polled.
    Running,
    /// Sources are not polled.
    Paused,
    /// Sources are not polled, and at the next checkpoint sinks close what they would otherwise continue.
    Closing,
    /// Sources end at their next activation, and open windows are emitted.
    Draining,
    /// Sources end at their next activation, and open windows are dropped.
    Stopping,
    /// Processing has stopped for good.
    Cancelled,
}

impl Phase {
    /// All phases, by their discriminant.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Paused, Self::Closing, Self::Draining, Self::Stopping, Self::Cancelled];

    /// Whether sources are not polled until the flow is resumed.
    pub(super) fn is_paused(self) -> bool {
        matches!(self, Self::Paused | Self::Closing)
    }

    /// Whether sources end.
    pub(super) fn ends(self) -> bool {
        matches!(self, Self::Draining | Self::Stopping)
    }

    /// The next phase if `wanted` is asked for: what has begun to end does not go on, and a flow that closes stays so
    /// until it is resumed.
    fn turned(self, wanted: Self) -> Self {
        match (self, wanted) {
            (Self::Cancelled, _) => self,
            (Self::Draining | Self::Stopping, Self::Running | Self::Paused | Self::Closing) => self,
            (Self::Closing, Self::Paused) => self,
            _ => wanted,
        }
    }
}

/// Why a flow has failed.
pub(super) struct Failure {
    pub(super) error: String,
    /// Whether a restart from the last checkpoint is safe: the sink rolled back to it, or nothing was written since
    /// that would come twice.
    pub(super) may_restart: bool,
}

/// State shared by all tasks of a flow.
pub(crate) struct FlowState {
    pub(crate) name: String,
    pub(crate) limits: FlowLimits,
    /// The index of the [`Phase`].
    phase: AtomicUsize,
    /// The number of sinks that were given more than they have room for, so that a barrier could pass. Until they have
    /// room again, sources are not polled: what waits for a sink stays bounded, however many barriers pass.
    pub(super) overfull: AtomicUsize,
    /// How far the tasks that read sources have come.
    pub(super) alignment: Alignment,
    /// Which time idle tasks among them go on to.
    pub(super) idleness: Idleness,
    /// How much its sources read at most.
    pub(super) throttle: Throttle,
    /// The barrier at which all tasks rest for a checkpoint.
    pub(super) barrier: Barrier,
    /// All tasks, to wake them. Set once, before any of them runs.
    pub(super) tasks: OnceLock<Vec<Weak<dyn Peer>>>,
    pub(super) remaining: AtomicUsize,
    pub(super) failure: OnceLock<Failure>,
    pub(super) done: Mutex<Option<Instant>>,
    pub(super) finished: Condvar,
}

impl FlowState {
    /// The state of a flow that begins with these tasks.
    pub(super) fn new(
        name: String,
        limits: FlowLimits,
        (alignment, idleness): (Alignment, Idleness),
        tasks: usize,
    ) -> Self {
        Self {
            name,
            limits,
            phase: AtomicUsize::new(Phase::Running as usize),
            overfull: AtomicUsize::new(0),
            alignment,
            idleness,
            throttle: Throttle::default(),
            barrier: Barrier::default(),
            tasks: OnceLock::new(),
            remaining: AtomicUsize::new(tasks),
            failure: OnceLock::new(),
            done: Mutex::new(None),
            finished: Condvar::new(),
        }
    }

    /// What the flow is to do now.
    pub(crate) fn phase(&self) -> Phase {
        Phase::ALL[self.phase.load(Ordering::Acquire)]
    }

    /// Whether processing has stopped for good.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.phase() == Phase::Cancelled
    }

    /// Goes on to another phase, unless the flow has come further already.
    pub(super) fn turn(&self, wanted: Phase) {
        let turned = |phase: usize| Some(Phase::ALL[phase].turned(wanted) as usize);
        let _ = self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, turned);
    }

    /// Ends everything because of `error`; the first error counts.
    pub(crate) fn fail(&self, error: String, may_restart: bool) {
        let _ = self.failure.set(Failure { error, may_restart });
        self.cancel();
    }

    /// Ends everything. Tasks that wait are run once more, to let go of what they hold: a source that is not asked any
    /// more must hold up nobody.
    pub(super) fn cancel(&self) {
        self.turn(Phase::Cancelled);
        self.note_done();
        self.wake_all();
    }

    /// Makes all tasks check whether they can go on.
    pub(super) fn wake_all(&self) {
        self.tasks().for_each(|task| task.wake());
    }

    /// Makes the tasks that read sources check: one of them has advanced, and others may have waited for it. Tasks that
    /// move, or have a guest, check too.
    pub(super) fn wake_sources(&self) {
        self.tasks().filter(|task| task.rests()).for_each(|task| task.wake());
    }

    /// Whether sources may be polled now.
    pub(super) fn may_poll(&self) -> bool {
        !self.phase().is_paused() && self.overfull.load(Ordering::Acquire) == 0
    }

    fn tasks(&self) -> impl Iterator<Item = Arc<dyn Peer>> {
        self.tasks.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// Whether the sink of results has made final what belongs to the checkpoint of a barrier.
    pub(super) fn has_final_results(&self, barrier: u64) -> bool {
        self.tasks().filter_map(|task| task.results_final_to()).all(|final_to| final_to >= barrier)
    }

    pub(super) fn note_done(&self) {
        self.done.lock().get_or_insert_with(Instant::now);
        self.finished.notify_all();
    }

    /// Called when a task has ended.
    pub(crate) fn task_ended(&self) {
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.note_done();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_ends_does_not_go_on() {
        use Phase::*;
        let after = |asked: &[Phase]| asked.iter().fold(Running, |phase, &wanted| phase.turned(wanted));
        assert_eq!((after(&[Paused, Running]), after(&[Closing, Paused])), (Running, Closing));
        assert_eq!((after(&[Closing, Running]), after(&[Paused, Draining, Running])), (Running, Draining));
        assert_eq!((after(&[Draining, Stopping]), after(&[Stopping, Draining])), (Stopping, Draining));
        for wanted in Phase::ALL {
            assert_eq!((Phase::ALL[wanted as usize], after(&[Cancelled, wanted])), (wanted, Cancelled));
        }
    }
}
