//! Spilling: the state of queries that have been silent for a while waits on disk for their next event.
//!
//! Beside its tasks a group has a *spilled task*: a task whose queries have their parameters in memory and their state
//! in a file ([`spilled`]). A silent query moves to the spilled task as it would to any other task. An event for it
//! waits in the inbox of that task, and the spilled task's activation is to move the query, with its state and
//! events, back to a task that works. So order is kept by what keeps it whenever queries move, and operators know
//! nothing. Something that is due for a silent query at a known time wakes it like an event ([`alarms`]).
//!
//! A disk that is full or fails costs nothing but memory: the queries stay where they are. State that cannot be read
//! back is lost, logged and counted, and its query starts anew.

pub(crate) mod alarms;
pub(crate) mod file;
pub(crate) mod spilled;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use file::SpillFile;

/// In how many steps the time is measured after which a silent query is spilled. More would cost more sweeps, fewer
/// would spill some queries later than they could be.
pub(crate) const SWEEPS: u8 = 4;

/// How often queries are swept while memory is short.
const SWEEP_PERIOD_PRESSED: Duration = Duration::from_secs(1);

/// Where the state of silent queries goes, and when. One for all groups of a process.
pub struct Spill {
    pub(crate) file: Arc<SpillFile>,
    after: Duration,
    is_pressed: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Spill {
    /// Spills queries that have been silent for `after` (up to a quarter longer) into a file in `folder` of at most
    /// `bytes_max` bytes. While `is_pressed` says that memory is short, those that have been silent for some seconds;
    /// it is asked a few times a second.
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

    /// How long to wait between two sweeps, as things are.
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

/// What became of a group's silent queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillStatus {
    /// Queries whose state is on disk now.
    pub queries: u64,
    /// How often the state of a query went to disk.
    pub spilled: u64,
    /// How often it came back.
    pub woken: u64,
    /// How often spilling had to stop because the disk was full or failed.
    pub failures: u64,
    /// Queries that started anew because their state could not be read back.
    pub lost: u64,
}
