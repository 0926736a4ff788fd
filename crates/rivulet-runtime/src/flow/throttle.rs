//! How much the sources of a flow read at most while tasks of it move away.
//!
//! A token bucket that all of them share, kept as the moment up to which everything that was read is paid for. A task
//! reads again when its own rows are paid for, so that each task has its turn.
//!
//! What must hold: the bound only rises, and ends by itself.

use parking_lot::Mutex;

use super::reader::Read;

/// Each second the bound rises by this factor, and after so many microseconds there is none.
const RAISE: f64 = 1.4;
const LASTS_US: i64 = 5_000_000;

/// A task reads the rows of this time at once, and may make up for as much, seconds.
const SLICE_S: f64 = 0.05;

/// The longest wait of a task, microseconds: some sources give more rows than they are asked for.
const WAIT_US_MAX: i64 = 1_000_000;

/// A bound on what sources read, if there is one: the first rows a second of all sources together, since when, and up
/// to when rows are paid for, on the steady clock.
#[derive(Default)]
pub(super) struct Throttle(Mutex<Option<(f64, i64, i64)>>);

impl Throttle {
    /// Sets the rows a second; `None` for any number. Waits of before count no more; the caller wakes the sources.
    pub(super) fn set(&self, rows_per_s: Option<f64>, steady_us: i64) {
        *self.0.lock() = rows_per_s.map(|rows| (rows.max(1.0), steady_us, i64::MIN));
    }

    /// Has a task read with `poll`, which is told the most rows, unless it has to wait. `again_us` is the task's own:
    /// when it may read again, on the steady clock.
    pub(super) fn pass(
        &self,
        again_us: &mut i64,
        (now_us, steady_us): (i64, i64),
        poll: impl FnOnce(usize) -> Result<Read, String>,
    ) -> Result<Read, String> {
        let bound = self.0.lock().filter(|(_, since_us, _)| steady_us - since_us < LASTS_US);
        let Some((first, since_us, paid_to_us)) = bound else { return poll(usize::MAX) };
        if *again_us > steady_us && *again_us <= paid_to_us {
            return Ok(Read::Nothing(now_us + *again_us - steady_us));
        }
        let rows_per_s = first * RAISE.powf((steady_us - since_us) as f64 / 1e6);
        let read = poll((rows_per_s * SLICE_S).max(1.0) as usize)?;
        if let (Read::Rows(batch), Some((.., paid_to_us))) = (&read, &mut *self.0.lock()) {
            let us = |seconds: f64| (seconds * 1e6) as i64;
            *paid_to_us = (*paid_to_us).max(steady_us - us(SLICE_S)) + us(batch.rows() as f64 / rows_per_s);
            *again_us = (*paid_to_us).min(steady_us + WAIT_US_MAX);
        }
        Ok(read)
    }
}
