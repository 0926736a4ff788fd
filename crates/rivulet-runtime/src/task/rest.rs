//! Whether the tasks of a group take events and process them.

use std::sync::atomic::{AtomicU8, Ordering};

const RUNS: u8 = 0;
const INTAKE_CLOSED: u8 = 1;
const QUIESCED: u8 = 2;
const SUSPENDED: u8 = 3;

/// Whether and how far a group is stopped.
#[derive(Debug, Default)]
pub(crate) struct Rest(AtomicU8);

impl Rest {
    /// Makes events wait at their source.
    pub(crate) fn close_intake(&self) {
        self.0.store(INTAKE_CLOSED, Ordering::Release);
    }

    /// The same if the group runs; whether that is so.
    pub(crate) fn close_intake_first(&self) -> bool {
        self.0.compare_exchange(RUNS, INTAKE_CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// No event is accepted and none processed from the next activation on.
    pub(crate) fn quiesce(&self) {
        self.0.store(QUIESCED, Ordering::Release);
    }

    /// No event is processed from the next activation on.
    pub(crate) fn suspend(&self) {
        self.0.store(SUSPENDED, Ordering::Release);
    }

    /// Ends all of it.
    pub(crate) fn go_on(&self) {
        self.0.store(RUNS, Ordering::Release);
    }

    /// Whether events must wait at their source.
    #[inline]
    pub(crate) fn has_closed_intake(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), INTAKE_CLOSED | QUIESCED)
    }

    /// Whether the group is stopped in any way.
    pub(crate) fn is_in_force(&self) -> bool {
        self.0.load(Ordering::Acquire) != RUNS
    }

    /// Whether no event is accepted and none processed.
    #[inline]
    pub(crate) fn is_quiesced(&self) -> bool {
        self.0.load(Ordering::Acquire) == QUIESCED
    }

    /// Whether no event is processed.
    #[inline]
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), QUIESCED | SUSPENDED)
    }
}
