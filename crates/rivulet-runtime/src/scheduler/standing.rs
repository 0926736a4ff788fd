//! Where a task stands between those who give it work, its scheduler and its worker.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Nothing is known to wait for it.
const IDLE: u8 = 0;
/// It has work, and its scheduler is about to be told.
const DUE: u8 = 1;
/// Its scheduler has it.
const WAITING: u8 = 2;
/// A worker has it, or had it and its sink has no room.
const RUNNING: u8 = 3;

/// Where a task stands. The caller that finds it idle hands it to the scheduler, and a scheduler takes it in only then.
/// So it waits once.
#[derive(Debug, Default)]
pub struct Standing {
    state: AtomicU8,
    /// Where the scheduler keeps it. Read and written under the scheduler's lock only.
    place: AtomicU64,
}

impl Standing {
    /// For [`Scheduler::ready`](super::Scheduler::ready): takes the task in; false if it waits or runs already.
    pub fn enter(&self) -> bool {
        self.state.compare_exchange(DUE, WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// For [`Scheduler::next`](super::Scheduler::next): hands the task out.
    pub fn leave(&self) {
        self.state.store(RUNNING, Ordering::Release);
    }

    /// Whether a scheduler has it.
    pub fn is_waiting(&self) -> bool {
        self.state.load(Ordering::Acquire) == WAITING
    }

    /// Where its scheduler keeps it: what that has noted last.
    pub fn place(&self) -> u64 {
        self.place.load(Ordering::Relaxed)
    }

    /// Notes where its scheduler keeps it.
    pub fn set_place(&self, place: u64) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// Turns it from idle to due; false if it is not idle. Whoever does is to call the scheduler.
    ///
    /// It is in one order with [`Standing::release`] and the look at the work behind that. So either the worker sees
    /// the work, or the caller sees that the task is idle.
    pub(crate) fn claim(&self) -> bool {
        self.state.compare_exchange(IDLE, DUE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// It is to be handed to the scheduler once more by its worker.
    pub(crate) fn again(&self) {
        self.state.store(DUE, Ordering::Release);
    }

    /// It has been run to its end.
    pub(crate) fn release(&self) {
        self.state.store(IDLE, Ordering::SeqCst);
    }

    /// Whether nobody has it.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Acquire) == IDLE
    }
}
