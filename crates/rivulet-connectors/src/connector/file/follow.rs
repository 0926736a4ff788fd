//! Files that grow: what is added to them becomes rows, as with `tail -F`.
//!
//! What must hold: a file that is renamed away is read to its end, and the one that takes its name from its beginning; one that is
//! cut short is read again from its beginning. A line counts once it is ended. Each file is a source of its own, with a time of its own; those
//! that are new are found by sources that have no rows ([`Folder`]) and never end.

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

/// How long to wait when nothing was added, for one of a few files.
const IDLE: Duration = Duration::from_millis(20);

/// By how much more for each file there is, so that many silent ones cost little.
const IDLE_PER_FILE: Duration = Duration::from_micros(200);

/// How many files are held open while they are silent. Of more, one that is silent is closed, and when it is renamed away what was added
/// to it since it was looked at last is not read.
const OPEN_MAX: usize = 256;

/// The sources of what an address means: the files that there are, and a source for each reader that finds new ones.
pub(super) fn sources(
    reading: &Arc<Reading>,
    address: String,
    files: Vec<PathBuf>,
    from_end: bool,
    readers: usize,
) -> Vec<Box<dyn Source>> {
    let readers = readers.min(files.len()).max(1);
    let discovery = Arc::new(Mutex::new(Discovery {
        address,
        known: files.iter().cloned().collect(),
        new: (0..readers).map(|_| VecDeque::new()).collect(),
        next: 0,
        last_scan: Instant::now(),
    }));
    let folder = |reader| Folder { reading: reading.clone(), discovery: discovery.clone(), reader };
    let folders = (0..readers).map(|reader| Box::new(folder(reader)) as Box<dyn Source>);
    let tail = |path| Box::new(Tail::new(path, from_end, reading, &discovery)) as Box<dyn Source>;
    folders.chain(files.into_iter().map(tail)).collect()
}

/// The files that an address means, as they come and go; shared by all sources.
struct Discovery {
    address: String,
    known: HashSet<PathBuf>,
    /// New files, by the reader that is to read them.
    new: Vec<VecDeque<PathBuf>>,
    /// The reader that gets the next file.
    next: usize,
    last_scan: Instant,
}

impl Discovery {
    /// Looks for new files, if it is time.
    fn scan(&mut self) {
        if self.last_scan.elapsed() < SCAN_INTERVAL {
            return;
        }
        self.last_scan = Instant::now();
        // What cannot be listed now may be later.
        let Ok(files) = paths::expand(&self.address) else { return };
        for file in files {
            if self.known.insert(file.clone()) {
                self.new[self.next].push_back(file);
                self.next = (self.next + 1) % self.new.len();
            }
        }
    }
}

/// Finds new files for one reader. It has no rows, and nobody waits for it.
struct Folder {
    reading: Arc<Reading>,
    discovery: Arc<Mutex<Discovery>>,
    reader: usize,
}

impl Source for Folder {
    fn poll(&mut self, _: usize, _: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        self.discovery.lock().scan();
        Ok(Polled::Aside(SCAN_INTERVAL))
    }

    fn found(&mut self) -> Vec<Box<dyn Source>> {
        let new = std::mem::take(&mut self.discovery.lock().new[self.reader]);
        // Files that come later are read from their beginnings.
        let tail = |path| Box::new(Tail::new(path, false, &self.reading, &self.discovery)) as Box<dyn Source>;
        new.into_iter().map(tail).collect()
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// A file that is followed, until nothing has its name any more.
struct Tail {
    reading: Arc<Reading>,
    discovery: Arc<Mutex<Discovery>>,
    path: PathBuf,
    /// Not open as long as there is nothing in it, and while it is silent and there are many.
    open: Option<Open>,
    /// Where to go on in a file that was closed.
    closed: Option<Closed>,
    from_end: bool,
}

struct Open {
    identity: (u64, u64),
    lines: Lines,
    intake: Intake,
}

struct Closed {
    identity: (u64, u64),
    /// Where the next line begins, and how far the file had been read.
    offset: u64,
    read_to: u64,
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

impl Source for Tail {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let is_there = self.take_lines(rows_max, now_us, refusals)?;
        let taken = self.open.as_mut().filter(|open| open.intake.payloads() > 0);
        if let Some(open) = taken {
            // Where all were refused it was not silent either.
            return Ok(open.intake.decode_for(now_us, refusals).unwrap_or(Polled::Nothing(Duration::ZERO)));
        }
        if !is_there {
            return Ok(Polled::End);
        }
        let files = self.discovery.lock().known.len();
        if files > OPEN_MAX {
            self.close();
        }
        Ok(Polled::Nothing(IDLE.max(IDLE_PER_FILE.saturating_mul(u32::try_from(files).unwrap_or(u32::MAX)))))
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// Whatever has the name later is a new file.
impl Drop for Tail {
    fn drop(&mut self) {
        self.discovery.lock().known.remove(&self.path);
    }
}

impl Tail {
    fn new(path: PathBuf, from_end: bool, reading: &Arc<Reading>, discovery: &Arc<Mutex<Discovery>>) -> Self {
        Self { reading: reading.clone(), discovery: discovery.clone(), path, open: None, closed: None, from_end }
    }

    /// Takes the lines that were added; false if the file is gone and all of it has been read.
    fn take_lines(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<bool, SourceError> {
        if self.open.is_none() && !self.try_open()? {
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

    /// Opens the file if there is something in it that has not been read.
    fn try_open(&mut self) -> Result<bool, SourceError> {
        let metadata = match fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(unreadable(&self.path, &error)),
        };
        if metadata.len() == 0 || !metadata.is_file() {
            // What is added from now on is new.
            (self.from_end, self.closed) = (false, None);
            return Ok(false);
        }
        let identity = identity(&metadata);
        let start = match &self.closed {
            Some(closed) if closed.identity == identity && closed.read_to == metadata.len() => return Ok(false),
            Some(closed) if closed.identity == identity && closed.read_to < metadata.len() => closed.offset,
            // Another one has its name, or it was cut short.
            Some(_) => 0,
            None if self.from_end => metadata.len(),
            None => 0,
        };
        let mut intake = self.reading.intake().map_err(|error| SourceError(error.to_string()))?;
        let lines = open_lines(&self.reading, &self.path, start, u64::MAX, &mut intake)?;
        (self.from_end, self.closed) = (false, None);
        self.open = Some(Open { identity, lines, intake });
        Ok(true)
    }

    /// Closes the file, all of which has been read up to a line that is not ended.
    fn close(&mut self) {
        let is_at_end = |open: &mut Open| open.lines.can_be_left() && open.lines.has_more().is_ok_and(|more| !more);
        let Some(open) = self.open.take_if(is_at_end) else { return };
        let (offset, read_to) = (open.lines.offset(), open.lines.read_to());
        self.closed = Some(Closed { identity: open.identity, offset, read_to });
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
