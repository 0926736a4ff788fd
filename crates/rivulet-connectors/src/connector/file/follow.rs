//! Files that grow: what is added to them becomes rows, as with `tail -F`.
//!
//! What must hold: a file that is renamed away is read to its end, and the one that takes its name from its beginning; one that is
//! cut short is read again from its beginning. A line counts once it is ended.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_dataflow::{Polled, Refusals, Source, SourceError};

use super::paths;
use super::source::{open_lines, unreadable};
use crate::connector::intake::Intake;
use crate::connector::lines::{Left, Lines, Reading};

/// How often new files are looked for.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait when nothing was added.
const IDLE: Duration = Duration::from_millis(20);

/// The files that an address means, as they come and go; shared by the partitions.
pub(super) struct Discovery {
    address: String,
    known: HashSet<PathBuf>,
    /// New files, by the partition that is to read them.
    new: Vec<VecDeque<PathBuf>>,
    /// The partition that gets the next file.
    next: usize,
    last_scan: Instant,
}

impl Discovery {
    /// Deals the files that there are to so many partitions.
    pub(super) fn new(address: String, files: Vec<PathBuf>, partitions: usize) -> Arc<Mutex<Self>> {
        let new = (0..partitions).map(|_| VecDeque::new()).collect();
        let mut discovery = Self { address, known: HashSet::new(), new, next: 0, last_scan: Instant::now() };
        discovery.add(files);
        Arc::new(Mutex::new(discovery))
    }

    fn add(&mut self, files: Vec<PathBuf>) {
        for file in files {
            if self.known.insert(file.clone()) {
                self.new[self.next].push_back(file);
                self.next = (self.next + 1) % self.new.len();
            }
        }
    }

    /// The next new file of a partition.
    fn take(&mut self, partition: usize) -> Option<PathBuf> {
        if self.new[partition].is_empty() && self.last_scan.elapsed() >= SCAN_INTERVAL {
            self.last_scan = Instant::now();
            // What cannot be listed now may be later.
            if let Ok(files) = paths::expand(&self.address) {
                self.add(files);
            }
        }
        self.new[partition].pop_front()
    }
}

/// One partition: the files that were dealt to it.
pub(super) struct FollowSource {
    reading: Arc<Reading>,
    discovery: Arc<Mutex<Discovery>>,
    partition: usize,
    tails: Vec<Tail>,
    /// The file to look at first, so that one that grows fast does not keep out the others.
    next: usize,
    /// Whether files that are there at the start are read from their ends.
    from_end: bool,
}

/// A file that is followed.
struct Tail {
    path: PathBuf,
    /// Not open as long as there is nothing in it.
    open: Option<Open>,
    from_end: bool,
}

struct Open {
    identity: (u64, u64),
    lines: Lines,
    intake: Intake,
}

/// What became of a file at its end.
enum Fate {
    /// It is there and may grow.
    Same,
    /// Another one has its name, or it was cut short.
    Replaced,
    /// Nothing has its name.
    Gone,
}

impl FollowSource {
    pub(super) fn new(
        reading: Arc<Reading>,
        discovery: Arc<Mutex<Discovery>>,
        partition: usize,
        from_end: bool,
    ) -> Self {
        let mut source = Self { reading, discovery, partition, tails: Vec::new(), next: 0, from_end };
        source.take_new();
        // Files that come later are read from their beginnings.
        source.from_end = false;
        source
    }

    fn take_new(&mut self) {
        let mut discovery = self.discovery.lock();
        while let Some(path) = discovery.take(self.partition) {
            self.tails.push(Tail { path, open: None, from_end: self.from_end });
        }
    }
}

impl Source for FollowSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        self.take_new();
        for _ in 0..self.tails.len() {
            self.next = if self.next + 1 < self.tails.len() { self.next + 1 } else { 0 };
            let tail = &mut self.tails[self.next];
            let is_gone = !tail.take_lines(&self.reading, rows_max, now_us, refusals)?;
            let rows = tail
                .open
                .as_mut()
                .filter(|open| open.intake.payloads() > 0)
                .and_then(|open| open.intake.decode_for(now_us, refusals));
            if is_gone {
                let tail = self.tails.swap_remove(self.next);
                self.discovery.lock().known.remove(&tail.path);
            }
            if let Some(rows) = rows {
                return Ok(rows);
            }
            if is_gone {
                break;
            }
        }
        Ok(Polled::Nothing(IDLE))
    }
}

impl Tail {
    /// Takes the lines that were added; false if the file is gone.
    fn take_lines(
        &mut self,
        reading: &Reading,
        rows_max: usize,
        now_us: i64,
        refusals: &mut Refusals,
    ) -> Result<bool, SourceError> {
        if self.open.is_none() && !self.try_open(reading)? {
            return Ok(self.path.exists());
        }
        let Some(open) = &mut self.open else { return Ok(true) };
        let left = open
            .lines
            .take_into(&mut open.intake, rows_max, now_us, refusals)
            .map_err(|error| unreadable(&self.path, &error))?;
        if left == Left::More || open.intake.payloads() > 0 {
            return Ok(true);
        }
        let fate = open.fate(&self.path).map_err(|error| unreadable(&self.path, &error))?;
        if matches!(fate, Fate::Same) {
            return Ok(true);
        }
        // Lines may have been added after it was read and before it was replaced.
        if open.lines.has_more().map_err(|error| unreadable(&self.path, &error))? {
            return Ok(true);
        }
        open.lines.take_rest(&mut open.intake, now_us, refusals);
        // The rest is decoded with the old file's header before the new file is opened, at the next poll.
        if open.intake.payloads() == 0 {
            self.open = None;
        }
        Ok(matches!(fate, Fate::Replaced))
    }

    /// Opens the file if there is something in it.
    fn try_open(&mut self, reading: &Reading) -> Result<bool, SourceError> {
        let metadata = match fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(unreadable(&self.path, &error)),
        };
        if metadata.len() == 0 || !metadata.is_file() {
            // What is added from now on is new.
            self.from_end = false;
            return Ok(false);
        }
        let mut intake = reading.intake().map_err(|error| SourceError(error.to_string()))?;
        let start = if self.from_end { metadata.len() } else { 0 };
        let lines = open_lines(reading, &self.path, start, u64::MAX, &mut intake)?;
        self.from_end = false;
        self.open = Some(Open { identity: identity(&metadata), lines, intake });
        Ok(true)
    }
}

impl Open {
    fn fate(&self, path: &Path) -> io::Result<Fate> {
        match fs::metadata(path) {
            Ok(metadata) if identity(&metadata) != self.identity || metadata.len() < self.lines.read_to() => {
                Ok(Fate::Replaced)
            }
            Ok(_) => Ok(Fate::Same),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Fate::Gone),
            Err(error) => Err(error),
        }
    }
}

/// What tells a file from another that has the same name.
#[cfg(unix)]
fn identity(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Elsewhere only a file that is cut short is noticed.
#[cfg(not(unix))]
fn identity(_metadata: &Metadata) -> (u64, u64) {
    (0, 0)
}
