//! Moments of the last hour.
//!
//! What must hold: they take the same memory however long the server runs and however many queries it has. So there are
//! a fixed number of them, and only sums.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::Clock;

use crate::service::Status;

/// How many there are: those of an hour, 5 s apart.
const MOMENTS_MAX: usize = 720;

/// The moments, oldest first.
pub(super) type Moments = Arc<Mutex<VecDeque<Moment>>>;

/// A moment.
pub(super) struct Moment {
    pub(super) at_ms: i64,
    pub(super) events: u64,
    pub(super) results: u64,
    pub(super) rows: u64,
    pub(super) latency_us: [Option<u64>; 2],
    pub(super) memory_bytes: Option<u64>,
    pub(super) queries: u64,
    pub(super) load: f64,
}

impl Moment {
    pub(super) fn of(status: &Status) -> Self {
        let total = &status.total;
        Self {
            at_ms: SystemClock.now_us() / 1_000,
            events: total.events,
            results: total.results,
            rows: status.big_queries.iter().map(|one| one.rows_in).sum(),
            latency_us: [status.last_minute.p50_us, status.last_minute.p99_us],
            memory_bytes: status.memory_rss_bytes,
            queries: status.queries_running,
            load: status.workers.iter().map(|one| one.load).sum::<f64>() / status.workers.len().max(1) as f64,
        }
    }
}

/// Adds a moment. The oldest goes if there are too many.
pub(super) fn add(moments: &Moments, moment: Moment) {
    let mut moments = moments.lock();
    if moments.len() == MOMENTS_MAX {
        moments.pop_front();
    }
    moments.push_back(moment);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_those_of_an_hour() {
        let moments = Moments::default();
        (0..MOMENTS_MAX + 3).for_each(|_| add(&moments, Moment::of(&Status::default())));
        assert_eq!(moments.lock().len(), MOMENTS_MAX);
    }
}
