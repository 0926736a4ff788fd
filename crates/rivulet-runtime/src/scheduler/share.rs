//! A share of the workers' time. How tasks of several take turns is in [`super::lines`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The weight of a share unless it is set.
pub const WEIGHT: u64 = 100;

/// The highest weight: of a higher one some turns would count nothing.
pub const WEIGHT_MAX: u64 = 10_000;

/// Whose tasks get time together, such as those of a tenant.
#[derive(Debug)]
pub struct Share {
    weight: AtomicU64,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: AtomicU64::new(WEIGHT) }
    }
}

impl Share {
    /// Sets the weight: a share of 200 gets twice the time of one of 100. From 1 to [`WEIGHT_MAX`].
    pub fn set_weight(&self, weight: u64) {
        self.weight.store(weight.clamp(1, WEIGHT_MAX), Ordering::Relaxed);
    }

    /// How much a time counts, in nanoseconds of a share of [`WEIGHT`].
    pub(super) fn weighted_ns(&self, time: Duration) -> u64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        ns.saturating_mul(WEIGHT) / self.weight.load(Ordering::Relaxed)
    }
}
