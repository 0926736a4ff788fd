//! Files that grow: lines that are added become rows, as with `tail -F`.
//!
//! What must hold: a file that is renamed away is read to its end, and the file that takes its name from its beginning.
//! If the new name also matches the address, it is still the same file, and no row is read twice. Nor is a file read
//! twice that is a copy with the same name as its original, as after a disk was changed. A file that is cut short is
//! read again from its beginning. A line counts when it is ended. Each file is a source of its own, with its own event
//! time; new files are found by sources that have no rows ([`Folder`]) and never end.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_dataflow::{Polled, Refusals, Source, SourceError};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::paths::{self, Identity, identity};
use super::source::{open_lines, unreadable};
use crate::connector::intake::Intake;
use crate::connector::lines::{Left, Lines, Reading};
use crate::connector::{ConnectorError, SourceSpec};
use crate::files::Files;

/// The interval at which new files are searched for.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// The wait when nothing was added, with a few files.
const IDLE: Duration = Duration::from_millis(20);

/// The additional wait for each file, so that many silent files cost little.
const IDLE_PER_FILE: Duration = Duration::from_micros(200);

/// The number of silent files that are held open. If there are more, a silent file is closed; lines added to it between
/// the last look and a renaming are then not read.
const OPEN_MAX: usize = 256;

/// The number of files without their names that are remembered.
const LEFT_MAX: usize = 1024;

/// The number of bytes before the reading offset that distinguish a copy of a file from another file.
const TRACE_BYTES: u64 = 512;

/// The sources of an address: one for each present file, and one for each reader that finds new files.
pub(super) fn sources(
    reading: &Arc<Reading>,
    address: String,
    files: Vec<PathBuf>,
    from_end: bool,
    readers: usize,
) -> Vec<Box<dyn Source>> {
    let readers = readers.min(files.len()).max(1);
    let discovery = Arc::new(Mutex::new(Discovery::new(address, &reading.files, files.iter().cloned(), readers)));
    let folder = |reader| Folder { reading: reading.clone(), discovery: discovery.clone(), reader };
    let folders = (0..readers).map(|reader| Box::new(folder(reader)) as Box<dyn Source>);
    let tail = |path| Box::new(Tail::new(path, from_end, reading, &discovery)) as Box<dyn Source>;
    folders.chain(files.into_iter().map(tail)).collect()
}

/// The same for a query that goes on: each known file at its position, and new files from their beginnings.
pub(super) fn resume(
    reading: &Arc<Reading>,
    spec: &SourceSpec,
    files: Vec<PathBuf>,
    positions: Vec<Option<String>>,
) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    // The sources that search for new files have no position.
    let (folders, mut tails) = (positions.iter().filter(|position| position.is_none()).count(), Vec::new());
    let of_files = SourceSpec {
        resume: Some(positions.iter().filter(|position| position.is_some()).cloned().collect()),
        ..spec.clone()
    };
    let mut resumed = of_files.resumed::<(PathBuf, Option<Closed>)>("file")?.unwrap_or_default();
    paths::locate_all(spec, resumed.iter_mut().map(|(path, _)| path))?;
    let is_new = |file: &PathBuf| !resumed.iter().any(|(path, _)| path == file);
    let new: Vec<PathBuf> = files.into_iter().filter(is_new).collect();
    let readers = folders.max(1);
    let known = resumed.iter().map(|(path, _)| path).chain(&new).cloned();
    let mut discovery = Discovery::new(spec.address.clone(), &reading.files, known, readers);
    // A file that has another name now is found by that name when the old name is given up.
    discovery.followed.extend(resumed.iter().filter_map(|(_, closed)| closed.and_then(|closed| closed.identity)));
    let discovery = Arc::new(Mutex::new(discovery));
    let mut resumed = resumed.into_iter();
    let mut reader = 0..;
    let mut folder = || {
        let reader = reader.next().unwrap_or_default();
        Box::new(Folder { reading: reading.clone(), discovery: discovery.clone(), reader }) as Box<dyn Source>
    };
    for position in &positions {
        match position.as_ref().and_then(|_| resumed.next()) {
            Some((path, closed)) => {
                let mut tail = Tail::new(path, false, reading, &discovery);
                tail.closed = closed;
                tails.push(Box::new(tail) as Box<dyn Source>);
            }
            None => tails.push(folder()),
        }
    }
    if folders == 0 {
        tails.push(folder());
    }
    tails.extend(new.into_iter().map(|path| Box::new(Tail::new(path, false, reading, &discovery)) as Box<dyn Source>));
    Ok(tails)
}

/// The files that an address means, as they come and go; shared by all sources.
struct Discovery {
    address: String,
    files: Files,
    known: HashSet<PathBuf>,
    /// The files that are being followed, by whatever name.
    followed: HashSet<Identity>,
    /// Files that are no longer followed, because their name is gone or changed, each with the offset where it goes on:
    /// the source that finds the file under a new name begins there.
    left: VecDeque<(Identity, u64)>,
    /// New files, by the reader that is to read them.
    new: Vec<VecDeque<PathBuf>>,
    /// The reader that gets the next file.
    next: usize,
    last_scan: Instant,
}

impl Discovery {
    fn new(address: String, files: &Files, known: impl Iterator<Item = PathBuf>, readers: usize) -> Self {
        Self {
            address,
            files: files.clone(),
            known: known.collect(),
            followed: HashSet::new(),
            left: VecDeque::new(),
            new: (0..readers).map(|_| VecDeque::new()).collect(),
            next: 0,
            last_scan: Instant::now(),
        }
    }

    /// The offset at which to begin in a file that is to be followed; `None` while it is still followed by its earlier
    /// name.
    fn begin(&mut self, identity: Option<Identity>) -> Option<u64> {
        let Some(identity) = identity else { return Some(0) };
        if !self.followed.insert(identity) {
            return None;
        }
        let known = self.left.iter().position(|(left, _)| *left == identity);
        Some(known.and_then(|place| self.left.remove(place)).map_or(0, |(_, offset)| offset))
    }

    /// Notes that a file is not followed any more; a source that finds it again goes on at `offset`.
    fn leave(&mut self, identity: Option<Identity>, offset: u64) {
        let Some(identity) = identity else { return };
        if self.followed.remove(&identity) && offset > 0 {
            self.left.truncate(LEFT_MAX - 1);
            self.left.push_front((identity, offset));
        }
    }

    /// Searches for new files, if it is time.
    fn scan(&mut self) {
        if self.last_scan.elapsed() < SCAN_INTERVAL {
            return;
        }
        self.last_scan = Instant::now();
        // A folder that cannot be listed now may be later.
        let Ok(found) = paths::expand(&self.address, &self.files) else { return };
        for file in found.files {
            if self.known.insert(file.clone()) {
                self.new[self.next].push_back(file);
                self.next = (self.next + 1) % self.new.len();
            }
        }
    }
}

/// Finds new files for one reader. It has no rows, and no watermark waits for it.
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
        // Files that are created later are read from their beginnings.
        let tail = |path| Box::new(Tail::new(path, false, &self.reading, &self.discovery)) as Box<dyn Source>;
        new.into_iter().map(tail).collect()
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// A followed file, until no file has its name any more.
struct Tail {
    reading: Arc<Reading>,
    discovery: Arc<Mutex<Discovery>>,
    path: PathBuf,
    /// `None` while the file is empty, and while it is silent and there are many.
    open: Option<Open>,
    /// Where to go on in a file that was closed.
    closed: Option<Closed>,
    /// The offset of the last requested position, and the hash of the bytes before it.
    trace: Option<(u64, u64)>,
    from_end: bool,
}

struct Open {
    identity: Option<Identity>,
    lines: Lines,
    intake: Intake,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Closed {
    identity: Option<Identity>,
    /// Where the next line begins, and how far the file had been read.
    offset: u64,
    read_to: u64,
    /// A hash of the bytes before `offset`, in positions that outlive the process.
    #[serde(default)]
    trace: Option<u64>,
}

/// The state of a file whose end was reached.
enum Fate {
    /// It is present and may grow.
    Same,
    /// It was cut short.
    Cut,
    /// Another file has its name.
    Replaced,
    /// No file has its name.
    Gone,
}

impl Source for Tail {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let is_there = self.take_lines(rows_max, now_us, refusals)?;
        let taken = self.open.as_mut().filter(|open| open.intake.payloads() > 0);
        if let Some(open) = taken {
            // If all lines were refused, the file was not silent either.
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

    fn position(&mut self) -> Option<String> {
        // Bytes that were read beyond the lines that were taken are read again.
        let open = self.open.as_ref().map(|open| {
            let offset = open.lines.offset();
            Closed { identity: open.identity, offset, read_to: offset, trace: None }
        });
        let mut closed = open.or(self.closed);
        if let Some(closed) = &mut closed
            && closed.trace.is_none()
        {
            closed.trace = self.trace_before(closed.offset, closed.identity);
        }
        // If nothing of the file was read yet, everything that is added counts.
        serde_json::to_string(&(&self.path, closed)).ok()
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// A file that gets the name later is new, unless it had another name before.
impl Drop for Tail {
    fn drop(&mut self) {
        self.leave_open();
        self.leave_closed();
        self.discovery.lock().known.remove(&self.path);
    }
}

impl Tail {
    fn new(path: PathBuf, from_end: bool, reading: &Arc<Reading>, discovery: &Arc<Mutex<Discovery>>) -> Self {
        Self {
            reading: reading.clone(),
            discovery: discovery.clone(),
            path,
            open: None,
            closed: None,
            trace: None,
            from_end,
        }
    }

    /// Takes the lines that were added; returns false if the file is gone and all of it has been read.
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
        // Lines may have been added after the file was read and before it was replaced.
        if open.lines.has_more().map_err(|error| unreadable(&self.path, &error))? {
            return Ok(true);
        }
        open.lines.take_rest(&mut open.intake, now_us, refusals);
        // The rest is decoded with the old file's header before the new file is opened, at the next poll.
        if open.intake.payloads() == 0 {
            match fate {
                Fate::Cut => self.forget(),
                _ => self.leave_open(),
            }
        }
        Ok(!matches!(fate, Fate::Gone))
    }

    /// Leaves the open file: all of it has been read, and it does not have this name any more.
    fn leave_open(&mut self) {
        if let Some(open) = self.open.take() {
            self.discovery.lock().leave(open.identity, open.lines.read_to());
        }
    }

    /// The same for a file that was closed.
    fn leave_closed(&mut self) {
        if let Some(closed) = self.closed.take() {
            self.discovery.lock().leave(closed.identity, closed.offset);
        }
    }

    /// Begins anew, because the content of the file is gone.
    fn forget(&mut self) {
        let identities = [self.open.take().map(|open| open.identity), self.closed.take().map(|closed| closed.identity)];
        identities.into_iter().flatten().for_each(|identity| self.discovery.lock().leave(identity, 0));
    }

    /// Opens the file if it has content that has not been read.
    fn try_open(&mut self) -> Result<bool, SourceError> {
        let metadata = match fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(unreadable(&self.path, &error)),
        };
        if metadata.len() == 0 || !metadata.is_file() {
            // Everything that is added from now on is new.
            self.from_end = false;
            self.forget();
            return Ok(false);
        }
        let identity = identity(&metadata);
        if let Some(closed) = self.closed.filter(|closed| closed.identity != identity)
            && self.is_copy(&closed, &metadata)
        {
            let mut discovery = self.discovery.lock();
            discovery.leave(closed.identity, 0);
            if discovery.begin(identity).is_none() {
                return Ok(false);
            }
            self.closed = Some(Closed { identity, ..closed });
        }
        let start = match &self.closed {
            Some(closed) if closed.identity == identity && closed.read_to == metadata.len() => return Ok(false),
            Some(closed) if closed.identity == identity && closed.read_to < metadata.len() => closed.offset,
            closed => {
                let is_cut = closed.is_some_and(|closed| closed.identity == identity);
                if is_cut {
                    self.forget()
                } else {
                    self.leave_closed()
                }
                match self.discovery.lock().begin(identity) {
                    None => return Ok(false),
                    // The file was cut short since it had its other name.
                    Some(offset) if offset > metadata.len() => 0,
                    Some(0) if self.from_end && !is_cut => metadata.len(),
                    Some(offset) => offset,
                }
            }
        };
        let mut intake = self.reading.intake().map_err(|error| SourceError(error.to_string()))?;
        let lines = open_lines(&self.reading, &self.path, start, u64::MAX, &mut intake)?;
        (self.from_end, self.closed) = (false, None);
        self.open = Some(Open { identity, lines, intake });
        Ok(true)
    }

    /// Closes the file, of which everything up to an unended line has been read.
    fn close(&mut self) {
        let is_at_end = |open: &mut Open| open.lines.can_be_left() && open.lines.has_more().is_ok_and(|more| !more);
        let Some(open) = self.open.take_if(is_at_end) else { return };
        let (offset, read_to) = (open.lines.offset(), open.lines.read_to());
        self.closed = Some(Closed { identity: open.identity, offset, read_to, trace: None });
    }

    /// A hash of the bytes before `offset`, if the file with the name is still the one with this identity.
    fn trace_before(&mut self, offset: u64, of: Option<Identity>) -> Option<u64> {
        if let Some((_, trace)) = self.trace.filter(|(known, _)| *known == offset) {
            return Some(trace);
        }
        let is_it = fs::metadata(&self.path).is_ok_and(|metadata| identity(&metadata) == of);
        let trace = is_it.then(|| trace(&self.reading.files, &self.path, offset).ok()).flatten()?;
        self.trace = Some((offset, trace));
        Some(trace)
    }

    /// Whether the file that has the name now is a copy of the one that was closed.
    fn is_copy(&self, closed: &Closed, metadata: &Metadata) -> bool {
        let is_long_enough = closed.offset > 0 && closed.read_to <= metadata.len();
        is_long_enough
            && closed
                .trace
                .is_some_and(|was| trace(&self.reading.files, &self.path, closed.offset).is_ok_and(|is| is == was))
    }
}

impl Open {
    fn fate(&self, path: &Path) -> io::Result<Fate> {
        match fs::metadata(path) {
            Ok(metadata) if identity(&metadata) != self.identity => Ok(Fate::Replaced),
            Ok(metadata) if metadata.len() < self.lines.read_to() => Ok(Fate::Cut),
            Ok(_) => Ok(Fate::Same),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Fate::Gone),
            Err(error) => Err(error),
        }
    }
}

/// A hash of the bytes before `offset` in a file.
fn trace(files: &Files, path: &Path, offset: u64) -> io::Result<u64> {
    let from = offset.saturating_sub(TRACE_BYTES);
    let mut bytes = vec![0; (offset - from) as usize];
    let mut file = files.open(path)?;
    file.seek(SeekFrom::Start(from))?;
    file.read_exact(&mut bytes)?;
    Ok(xxh3_64(&bytes))
}
