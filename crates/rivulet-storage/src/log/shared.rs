//! What the handle of a log and its writer share.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::frame::Frame;
use super::segment::Segment;
use super::stats::Counters;
use crate::Disk;

/// The bounds of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogSettings {
    /// The most bytes on disk. Beyond that nothing is accepted until old records are forgotten.
    pub bytes_max: u64,
    /// The size of a segment, up to one frame more or less.
    pub segment_bytes: u64,
    /// The most bytes pending in memory while the disk is busy or full.
    pub gathered_bytes_max: usize,
    /// The shortest time between two waits for the disk. Under load, records are gathered for this long.
    pub commit_interval: Duration,
}

impl Default for LogSettings {
    /// 8 GiB on disk in segments of 16 MiB, 16 MiB in memory, one millisecond.
    fn default() -> Self {
        Self {
            bytes_max: 8 << 30,
            segment_bytes: 16 << 20,
            gathered_bytes_max: 16 << 20,
            commit_interval: Duration::from_millis(1),
        }
    }
}

/// State shared by the handle and the thread.
pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: PathBuf,
    pub(super) settings: LogSettings,
    /// The seed of the salts of segments.
    pub(super) seed: u64,
    pub(super) gathering: Mutex<Gathering>,
    /// The frame that is being written; empty if there is none. It changes hands with `gathering` locked. Nobody waits
    /// for the disk with it locked for writing.
    pub(super) writing: RwLock<Frame>,
    /// Wakes the thread.
    pub(super) gathered: Condvar,
    /// Wakes threads that wait for a position to be durable.
    pub(super) committed: Condvar,
    /// The same for asynchronous tasks.
    pub(super) notify: Notify,
    /// The position of the next record. It is stored once the record before it is in the frame, and read without a
    /// lock, because the reader may hold a lock that [`Log::append`](super::Log::append) waits for.
    pub(super) next: AtomicU64,
    /// The highest position on disk.
    pub(super) durable: AtomicU64,
    /// Oldest first; the last may be the one being written.
    pub(super) segments: Mutex<VecDeque<Segment>>,
    pub(super) disk_bytes: AtomicU64,
    /// The number of [`HeldLog`](super::HeldLog)s; no file is deleted while there are any. It changes only with
    /// `segments` locked, so that no file is deleted that was just held.
    pub(super) holds: AtomicUsize,
    pub(super) is_closing: AtomicBool,
    /// Whether the last record offered would have exceeded the limit.
    pub(super) is_at_limit: AtomicBool,
    pub(super) counters: Counters,
    /// Why nothing can be written at present, if so.
    pub(super) problem: Mutex<Option<String>>,
}

impl Shared {
    /// The seed of the checksums in the segment with this first position.
    pub(super) fn salt_of(&self, first: u64) -> u64 {
        xxh3_64_with_seed(&first.to_le_bytes(), self.seed)
    }
}

pub(super) struct Gathering {
    pub(super) frame: Frame,
    /// The position of the next record.
    pub(super) next: u64,
}
