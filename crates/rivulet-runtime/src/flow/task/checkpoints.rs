//! Which checkpoints a task has taken part in.

use std::time::Instant;

/// The progress of a task through checkpoints.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// The newest barrier at which the task has captured its state.
    pub(super) captured: u64,
    /// The newest barrier whose checkpoint its sink was told to commit, and the number of that checkpoint while the
    /// sink is still committing.
    pub(super) committed: u64,
    pub(super) committing: Option<u64>,
    /// Of a guest: the newest barrier behind which it may go on. It may be known before the barrier comes.
    pub(super) gone_on: u64,
    /// Since when the barrier of the last checkpoint waits for rows of its sources.
    pub(super) last_rows_since: Option<Instant>,
}

impl Checkpoints {
    /// Whether its sink is committing a checkpoint, so that nothing may be written yet.
    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    /// Whether its state is still to be captured at this barrier, the newest.
    pub(super) fn lacks(&self, wanted: u64) -> bool {
        self.captured < wanted
    }

    /// Whether its state was captured at this barrier, the newest.
    pub(super) fn has_captured(&self, wanted: u64) -> bool {
        wanted != 0 && self.captured == wanted
    }
}
