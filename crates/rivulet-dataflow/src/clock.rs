//! Time, as a trait, so that the same engine runs on the machine's clock and in a simulation.

use std::sync::atomic::{AtomicI64, Ordering};

/// Microseconds since the Unix epoch.
///
/// The host reads it once for each activation of a task and passes it down in the [`Context`](crate::Context);
/// operators never see the clock itself.
pub trait Clock: Send + Sync {
    /// The present, in microseconds since the Unix epoch. May step backwards when the machine's clock is set.
    fn now_us(&self) -> i64;

    /// Microseconds since some moment, for durations: goes on evenly when the machine's clock is set. The same as
    /// [`Clock::now_us`] on a clock that nobody sets.
    fn steady_us(&self) -> i64 {
        self.now_us()
    }
}

/// A clock that stands still until it is told otherwise; for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `now_us`.
    pub fn new(now_us: i64) -> Self {
        Self(AtomicI64::new(now_us))
    }

    /// Sets the clock.
    pub fn set_us(&self, now_us: i64) {
        self.0.store(now_us, Ordering::SeqCst);
    }

    /// Moves the clock forward by `by_us`.
    pub fn advance_us(&self, by_us: i64) {
        self.0.fetch_add(by_us, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}
