//! Keeps clients from filling the log.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The least time between two log lines about clients that misbehave.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// Says something at most every ten seconds.
#[derive(Default)]
pub(crate) struct Notices {
    last: Mutex<Option<Instant>>,
}

impl Notices {
    /// Calls `say`, unless something was logged a moment ago.
    pub(crate) fn say(&self, say: impl FnOnce()) {
        let mut last = self.last.lock();
        if last.is_none_or(|at| at.elapsed() >= NOTICE_INTERVAL) {
            *last = Some(Instant::now());
            say();
        }
    }
}
