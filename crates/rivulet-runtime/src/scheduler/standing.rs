//! The state of a task between those who give it work, its scheduler and its worker.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Share;

/// No work is known.
const IDLE: u8 = 0;
/// There is work, and the scheduler is about to be told.
const DUE: u8 = 1;
/// The scheduler has the task.
const WAITING: u8 = 2;
/// A worker runs the task, or has run it and its sink has no room.
const RUNNING: u8 = 3;

/// The state of a task. Only the caller that finds the task idle hands it to the scheduler, and the scheduler accepts
/// it only then. So the task waits in one place.
#[derive(Debug, Default)]
pub struct Standing {
    state: AtomicU8,
    /// A note of the scheduler about where it keeps the task. Used under the scheduler's lock only.
    place: AtomicU64,
    /// When it last became due, microseconds of the steady clock, of a task that asks for it. The thread that makes it
    /// due writes it, and tells the scheduler then.
    due_us: AtomicI64,
    /// Whose time the task takes.
    share: OnceLock<Arc<Share>>,
}

impl Standing {
    /// Says whose time the task takes. A second call changes nothing.
    pub(crate) fn set_share(&self, share: Arc<Share>) {
        let _ = self.share.set(share);
    }

    /// Whose time the task takes; `None` for that which all have together who have no share of their own.
    pub fn share(&self) -> Option<&Arc<Share>> {
        self.share.get()
    }

    /// For [`Scheduler::ready`](super::Scheduler::ready): accepts the task; false if it already waits or runs.
    pub fn enter(&self) -> bool {
        self.state.compare_exchange(DUE, WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// For [`Scheduler::next`](super::Scheduler::next): hands the task out.
    pub fn leave(&self) {
        self.state.store(RUNNING, Ordering::Release);
    }

    /// Whether a scheduler has the task.
    pub fn is_waiting(&self) -> bool {
        self.state.load(Ordering::Acquire) == WAITING
    }

    /// The scheduler's last note.
    pub fn place(&self) -> u64 {
        self.place.load(Ordering::Relaxed)
    }

    /// Sets the scheduler's note.
    pub fn set_place(&self, place: u64) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// When the task last became due, microseconds of the steady clock.
    pub(crate) fn due_us(&self) -> i64 {
        self.due_us.load(Ordering::Relaxed)
    }

    /// Notes that the task becomes due, before the scheduler is told.
    pub(crate) fn note_due(&self, now_us: i64) {
        self.due_us.store(now_us, Ordering::Relaxed);
    }

    /// Turns the task from idle to due; false if it was not idle. On true, the caller must call the scheduler.
    ///
    /// The memory order is that of [`Standing::release`] and of the check for work behind it. So either the worker sees
    /// the work, or the caller sees that the task is idle.
    pub fn claim(&self) -> bool {
        self.state.compare_exchange(IDLE, DUE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The worker will hand the task to the scheduler once more.
    pub(crate) fn again(&self) {
        self.state.store(DUE, Ordering::Release);
    }

    /// The worker is done with the task.
    pub(crate) fn release(&self) {
        self.state.store(IDLE, Ordering::SeqCst);
    }

    /// Whether neither a scheduler nor a worker has the task.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Acquire) == IDLE
    }
}
