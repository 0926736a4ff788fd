//! Whether the tasks of a group take events and process them.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

const RUNS: u8 = 0;
const INTAKE_CLOSED: u8 = 1;
const QUIESCED: u8 = 2;
const SUSPENDED: u8 = 3;

/// Whether and how far a group is stopped.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    state: AtomicU8,
    /// How many callers have suspended the group for a moment, whatever the state.
    suspensions: AtomicU32,
}

impl Rest {
    /// Makes events wait at their source.
    pub(crate) fn close_intake(&self) {
        self.state.store(INTAKE_CLOSED, Ordering::Release);
    }

    /// The same if the group runs; whether that is so.
    pub(crate) fn close_intake_first(&self) -> bool {
        self.state.compare_exchange(RUNS, INTAKE_CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// No event is accepted and none processed from the next activation on.
    pub(crate) fn quiesce(&self) {
        self.state.store(QUIESCED, Ordering::Release);
    }

    /// No event is processed from the next activation on.
    pub(crate) fn suspend(&self) {
        self.state.store(SUSPENDED, Ordering::Release);
    }

    /// No event is processed from the next activation on, until [`Rest::resume`]. Callers may be several.
    pub(crate) fn suspend_too(&self) {
        self.suspensions.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends one [`Rest::suspend_too`].
    pub(crate) fn resume(&self) {
        self.suspensions.fetch_sub(1, Ordering::AcqRel);
    }

    /// Ends all of it, except suspensions for a moment.
    pub(crate) fn go_on(&self) {
        self.state.store(RUNS, Ordering::Release);
    }

    /// Whether events must wait at their source.
    #[inline]
    pub(crate) fn has_closed_intake(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), INTAKE_CLOSED | QUIESCED)
    }

    /// Whether the group is stopped in any way, suspensions for a moment excepted.
    pub(crate) fn is_in_force(&self) -> bool {
        self.state.load(Ordering::Acquire) != RUNS
    }

    /// Whether no event is accepted and none processed.
    #[inline]
    pub(crate) fn is_quiesced(&self) -> bool {
        self.state.load(Ordering::Acquire) == QUIESCED
    }

    /// Whether no event is processed.
    #[inline]
    pub(crate) fn is_suspended(&self) -> bool {
        let is_suspended = matches!(self.state.load(Ordering::Acquire), QUIESCED | SUSPENDED);
        is_suspended || self.suspensions.load(Ordering::Acquire) > 0
    }
}
