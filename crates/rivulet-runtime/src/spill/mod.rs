//! Spilling: the state of queries that have been silent for a while waits on disk for their next event.
//!
//! Beside its tasks a group has a *spilled task*. Its queries have their parameters in memory and their state in a file
//! ([`spilled`]). A silent query moves to the spilled task as it would move to any other task. An event for it waits in
//! the inbox of that task. An activation of the spilled task moves the query, with its state and events, back to a
//! working task. So order is kept by the same code as for every move of a query, and operators know nothing of
//! spilling. A due timer wakes a silent query like an event ([`alarms`]).
//!
//! A disk that is full or fails costs only memory: the queries stay where they are. State that cannot be read back is
//! lost, logged and counted, and its query begins anew.

pub(crate) mod alarms;
pub(crate) mod file;
pub(crate) mod spilled;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use file::SpillFile;

/// The number of sweeps in the time after which a silent query is spilled. More sweeps cost more; with fewer, some
/// queries are spilled later than they could be.
pub(crate) const SWEEPS: u8 = 4;

/// How often queries are swept while memory is short.
const SWEEP_PERIOD_PRESSED: Duration = Duration::from_secs(1);

/// Settings of spilling, and the file. One for all groups of a process.
pub struct Spill {
    pub(crate) file: Arc<SpillFile>,
    after: Duration,
    is_pressed: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Spill {
    /// Spills queries that have been silent for `after` (up to a quarter longer) into a file in `folder` of at most
    /// `bytes_max` bytes. While `is_pressed` says that memory is short, some seconds of silence are enough; it is
    /// called a few times a second.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(
        folder: &Path,
        after: Duration,
        bytes_max: u64,
        is_pressed: impl Fn() -> bool + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let file = Arc::new(SpillFile::create(folder, bytes_max)?);
        Ok(Self { file, after, is_pressed: Box::new(is_pressed) })
    }

    /// How many bytes of the file are in use.
    pub fn file_bytes(&self) -> u64 {
        self.file.used_bytes()
    }

    /// The present time between two sweeps.
    pub(crate) fn sweep_period(&self) -> Duration {
        let period = self.after / u32::from(SWEEPS);
        if period > SWEEP_PERIOD_PRESSED && (self.is_pressed)() { SWEEP_PERIOD_PRESSED } else { period }
    }
}

impl std::fmt::Debug for Spill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Spill(after {:?}, {} bytes)", self.after, self.file_bytes())
    }
}

/// Counts of a group's silent queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillStatus {
    /// Queries whose state is spilled now.
    pub queries: u64,
    /// How often the state of a query was spilled.
    pub spilled: u64,
    /// How often the state of a query came back.
    pub woken: u64,
    /// How often spilling stopped because the disk was full or failed.
    pub failures: u64,
    /// Queries that began anew because their state could not be read back.
    pub lost: u64,
}
