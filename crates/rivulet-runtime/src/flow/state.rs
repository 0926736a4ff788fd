//! What all tasks of a flow share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::alignment::Alignment;
use super::checkpoint::Barrier;
use super::inbox::FlowLimits;
use super::peer::Peer;

/// State shared by all tasks of a flow.
pub(crate) struct FlowState {
    pub(crate) name: String,
    pub(crate) limits: FlowLimits,
    /// Whether sources end at their next activation.
    pub(crate) stopping: AtomicBool,
    /// Whether open windows are emitted when sources are stopped before their end.
    pub(crate) drains: AtomicBool,
    /// Whether sources are not polled.
    pub(crate) paused: AtomicBool,
    /// Whether sinks close what they would otherwise continue, at the next checkpoint.
    pub(crate) closing: AtomicBool,
    /// Whether processing has stopped for good.
    pub(crate) cancelled: AtomicBool,
    /// How far the tasks that read sources have come.
    pub(super) alignment: Alignment,
    /// The barrier at which all tasks rest for a checkpoint.
    pub(super) barrier: Barrier,
    /// All tasks, to wake them. Set once, before any of them runs.
    pub(super) tasks: OnceLock<Vec<Weak<dyn Peer>>>,
    pub(super) remaining: AtomicUsize,
    pub(super) error: OnceLock<String>,
    /// Whether the error rolled back to the last checkpoint.
    pub(super) is_undone: AtomicBool,
    pub(super) done: Mutex<Option<Instant>>,
    pub(super) finished: Condvar,
}

impl FlowState {
    /// Ends everything because of `error`; the first error counts.
    pub(crate) fn fail(&self, error: String, is_undone: bool) {
        if self.error.set(error).is_ok() {
            self.is_undone.store(is_undone, Ordering::Release);
        }
        self.cancel();
    }

    /// Ends everything. Tasks that wait are run once more, to let go of what they hold: a source that is not asked any
    /// more must hold up nobody.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.note_done();
        self.wake_all();
    }

    /// Makes all tasks check whether they can go on.
    pub(super) fn wake_all(&self) {
        self.tasks().for_each(|task| task.wake());
    }

    /// Makes the tasks that read sources check: one of them has advanced, and others may have waited for it.
    pub(super) fn wake_sources(&self) {
        self.tasks().filter(|task| task.reads()).for_each(|task| task.wake());
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
