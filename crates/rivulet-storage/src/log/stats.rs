//! The counters of a log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the classes of commit times, in microseconds; one more class is above all of them.
pub const SYNC_BOUNDS_US: [u64; 10] = [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// Counters of a log since it was opened, and its present state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// The lowest position on disk.
    pub first: u64,
    /// The position of the next record.
    pub next: u64,
    /// The highest position that is on disk.
    pub durable: u64,
    /// The highest durable position.
    pub segments: u64,
    /// Their size, in bytes.
    pub disk_bytes: u64,
    /// Bytes that are not being written yet.
    pub gathered_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The number of commits: how often the disk was waited for.
    pub commits: u64,
    /// The number of commits in each class: at most the bound at the same index of [`SYNC_BOUNDS_US`] and above the one
    /// before it; last, the commits above all bounds.
    pub commits_by_time: [u64; SYNC_BOUNDS_US.len() + 1],
    /// The total time of commits, microseconds.
    pub commits_us: u64,
    /// How often the disk refused a write.
    pub failures: u64,
    /// How often there was no room for a record.
    pub refused: u64,
    /// Why nothing can be written or accepted at present, if so.
    pub problem: Option<String>,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) refused: AtomicU64,
    pub(super) failures: AtomicU64,
    written_bytes: AtomicU64,
    commits_us: AtomicU64,
    by_time: [AtomicU64; SYNC_BOUNDS_US.len() + 1],
}

impl Counters {
    pub(super) fn committed(&self, took: Duration, bytes: usize) {
        let took_us = took.as_micros() as u64;
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.commits_us.fetch_add(took_us, Ordering::Relaxed);
        let class = SYNC_BOUNDS_US.partition_point(|&bound_us| bound_us < took_us);
        self.by_time[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds these counters to `known`.
    pub(super) fn stats(&self, known: LogStats) -> LogStats {
        let commits_by_time = std::array::from_fn(|class| self.by_time[class].load(Ordering::Relaxed));
        LogStats {
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            commits: commits_by_time.iter().sum(),
            commits_by_time,
            commits_us: self.commits_us.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            ..known
        }
    }
}
