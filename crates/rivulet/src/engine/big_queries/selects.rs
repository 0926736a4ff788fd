//! The SELECT queries that run for a reader alone.

use std::sync::{Arc, OnceLock, Weak};

use crate::run::Running;
use crate::service::FullName;

/// A SELECT that runs, or has run: what is needed to end it for its memory.
pub(super) struct Select {
    pub(super) name: FullName,
    pub(super) running: Weak<Running>,
    pub(super) end: Arc<OnceLock<String>>,
}

impl Select {
    /// The memory of its operators, while it runs.
    pub(super) fn state_bytes(&self) -> u64 {
        self.running.upgrade().map_or(0, |running| running.report().state_bytes as u64)
    }

    /// Ends it, and tells its reader why.
    pub(super) fn end(&self, reason: &str) {
        let Some(running) = self.running.upgrade() else { return };
        tracing::error!(query = self.name.in_log(), "a SELECT is ended: {reason}");
        let _ = self.end.set(format!("failed: {reason}"));
        running.cancel();
    }
}
