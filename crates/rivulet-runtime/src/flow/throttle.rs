//! The most that the sources of a flow read while tasks of it move away.
//!
//! A token bucket that all of them share, kept as the moment up to which everything that was read is paid for. A task
//! reads again when its own rows are paid for, so that each task has its turn.
//!
//! What must hold: the bound only rises, and ends by itself. While there is none, a task takes no lock for it.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;

use super::reader::Read;

/// Each second the bound rises by this factor, and ends after this many microseconds.
const RAISE: f64 = 1.4;
const LASTS_US: i64 = 5_000_000;

/// A task reads the rows of this time at once, and may make up for as much, seconds.
const SLICE_S: f64 = 0.05;

/// The longest wait of a task, microseconds: some sources give more rows than they are asked for.
const WAIT_US_MAX: i64 = 1_000_000;

/// A bound on what sources read, if there is one.
#[derive(Default)]
pub(super) struct Throttle {
    /// When it ends, on the steady clock. Set under the lock.
    ends_us: AtomicI64,
    /// The first rows a second of all sources together, and up to when rows are paid for, on the steady clock.
    bound: Mutex<(f64, i64)>,
}

impl Throttle {
    /// Sets the rows a second; `None` for any number. Earlier waits end; the caller wakes the sources.
    pub(super) fn set(&self, rows_per_s: Option<f64>, steady_us: i64) {
        let mut bound = self.bound.lock();
        *bound = (rows_per_s.unwrap_or(1.0).max(1.0), i64::MIN);
        self.ends_us.store(rows_per_s.map_or(0, |_| steady_us + LASTS_US), Ordering::Relaxed);
    }

    /// Has a task read with `poll`, which is told the most rows, unless it has to wait. `again_us` is the task's own:
    /// when it may read again, on the steady clock.
    pub(super) fn pass(
        &self,
        again_us: &mut i64,
        (now_us, steady_us): (i64, i64),
        poll: impl FnOnce(usize) -> Result<Read, String>,
    ) -> Result<Read, String> {
        let left_us = self.ends_us.load(Ordering::Relaxed) - steady_us;
        if left_us <= 0 {
            return poll(usize::MAX);
        }
        let (first, paid_to_us) = *self.bound.lock();
        if *again_us > steady_us && *again_us <= paid_to_us {
            return Ok(Read::Nothing(now_us + *again_us - steady_us));
        }
        let rise = RAISE.powf((LASTS_US - left_us) as f64 / 1e6);
        let read = poll((first * rise * SLICE_S).max(1.0) as usize)?;
        if let Read::Rows(batch) = &read {
            let us = |seconds: f64| (seconds * 1e6) as i64;
            // The bound may have changed meanwhile.
            let (first, paid_to_us) = &mut *self.bound.lock();
            *paid_to_us = (*paid_to_us).max(steady_us - us(SLICE_S)) + us(batch.rows() as f64 / (*first * rise));
            *again_us = (*paid_to_us).min(steady_us + WAIT_US_MAX);
        }
        Ok(read)
    }
}
