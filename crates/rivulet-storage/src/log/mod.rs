//! The log of events that no source can repeat: an event is on disk before its sender is told so.
//!
//! A receiver appends records ([`Log::append`]), which takes as long as copying them. A thread of the log writes all
//! pending records in one frame and waits for the disk once for all of them ([`commit`]). So the busier the machine,
//! the fewer waits a record costs. The files are [`segment`]s, which are deleted when no checkpoint needs them
//! ([`Log::forget_before`]). A [`stepped`](Log::stepped) log has no thread and writes when it is told to.
//!
//! What must hold:
//! - Positions are 1, 2, 3, ... and never used again.
//! - A record at or below [`Log::durable`] is read back after any crash, unless the disk itself loses it, which is then
//!   reported.
//! - Memory and disk are bounded: a record that finds no room is refused, and the caller keeps it.

mod commit;
mod frame;
mod segment;
mod shared;
mod stats;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::Notify;

use crate::{Disk, RealDisk, StorageError};
use commit::Writer;
use frame::{Frame, Part};
use segment::{Open, Segment};
use shared::{Gathering, Shared};
use stats::Counters;

pub use frame::Record;
pub use segment::VERSION as FORMAT;
pub use shared::LogSettings;
pub use stats::{LogStats, SYNC_BOUNDS_US};

/// The position of the first record of a log.
const FIRST: u64 = 1;

/// How far beyond its limit a log grows for records that may exceed it: more than the size of all results in flight.
const EXCESS_BYTES_MAX: u64 = 256 << 20;

/// The answer to an offered record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// The record is in the log at this position, and will be on disk.
    At(u64),
    /// The caller declined the position.
    NotTaken,
    /// There is no room in memory or on disk.
    Full,
}

/// The findings when a log is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The lowest position that can be read.
    pub first: u64,
    /// The position of the next record.
    pub next: u64,
    /// Bytes at the end that the process had not written in full; they were cut off.
    pub torn_bytes: u64,
    /// What is wrong with the files, in words.
    pub problems: Vec<String>,
}

/// The result of reading a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// The number of records.
    pub records: u64,
    /// The position behind the last record read, or the end of the range, or the end of the durable records.
    pub next: u64,
    /// Positions that should exist and could not be read.
    pub lost: u64,
    /// The first of these.
    pub lost_from: u64,
    /// The position behind the last of these.
    pub lost_to: u64,
}

impl Read {
    /// The next record that can be read is at `position`, or behind the range that is read.
    fn lose_to(&mut self, position: u64) {
        if position > self.next {
            if self.lost == 0 {
                self.lost_from = self.next;
            }
            self.lost += position - self.next;
            (self.next, self.lost_to) = (position, position);
        }
    }
}

/// A log in a folder. When it is dropped, it writes the pending records.
pub struct Log {
    shared: Arc<Shared>,
    writing: Writing,
}

/// What writes the pending records.
enum Writing {
    /// A thread, until the log is closed.
    Thread(Mutex<Option<JoinHandle<()>>>),
    /// The caller of [`Log::commit`], or of a method that would wait for the thread.
    Stepped(Box<Mutex<Writer>>),
}

/// The files of a log at one moment, to be copied while the log goes on.
pub struct HeldLog {
    shared: Arc<Shared>,
    files: Vec<(PathBuf, u64)>,
}

impl HeldLog {
    /// The files, oldest first, each with its size at that moment.
    pub fn files(&self) -> &[(PathBuf, u64)] {
        &self.files
    }
}

impl Drop for HeldLog {
    fn drop(&mut self) {
        self.shared.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Log {
    /// Opens the log in `folder`, and makes the folder if it does not exist. A record at the end that was not written
    /// in full is cut off.
    ///
    /// # Errors
    /// The folder cannot be used, or a file in it is of a later version.
    pub fn open(folder: &Path, settings: LogSettings) -> Result<(Self, Found), StorageError> {
        let seed = RandomState::new().build_hasher().finish();
        let (writer, found) = Self::recover(Arc::new(RealDisk), folder, settings, seed)?;
        let shared = writer.shared().clone();
        let thread = std::thread::Builder::new().name("rivulet-log".into()).spawn(move || writer.run());
        let thread = thread.map_err(|error| {
            let place = folder.display().to_string();
            StorageError::from_io(format!("cannot start the thread that writes {place}"), &place, error)
        })?;
        Ok((Self { shared, writing: Writing::Thread(Mutex::new(Some(thread))) }, found))
    }

    /// Opens a log on any disk and without a thread: pending records are written by [`Log::commit`], and by calls that
    /// would wait for them. The same calls write the same bytes.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn stepped(disk: Arc<dyn Disk>, folder: &Path, settings: LogSettings) -> Result<(Self, Found), StorageError> {
        let (writer, found) = Self::recover(disk, folder, settings, 0)?;
        let shared = writer.shared().clone();
        Ok((Self { shared, writing: Writing::Stepped(Box::new(Mutex::new(writer))) }, found))
    }

    /// For a [stepped](Log::stepped) log: tries once to write the pending records. Returns whether none are left; for
    /// other logs, whether there are none.
    pub fn commit(&self) -> bool {
        match &self.writing {
            Writing::Stepped(writer) => writer.lock().commit_once(),
            Writing::Thread(_) => self.next() - 1 == self.durable(),
        }
    }

    /// Inspects the existing segments and cuts off what is unusable.
    fn recover(
        disk: Arc<dyn Disk>,
        folder: &Path,
        settings: LogSettings,
        seed: u64,
    ) -> Result<(Writer, Found), StorageError> {
        let place = folder.display().to_string();
        let failed = |what: &str, error| StorageError::from_io(format!("{what} {place}"), &place, error);
        disk.make_folder(folder).map_err(|error| failed("cannot make the folder of the log,", error))?;
        let mut segments = segment::list(&*disk, folder)?;
        let mut found = Found { next: FIRST, ..Found::default() };
        let missing = segment::missing_newest(&*disk, folder, &segments);
        let mut open = None;
        // The last segment is checked now, the others when they are read.
        while let Some(last) = segments.pop() {
            let path = &last.path;
            let bytes = disk.read(path).map_err(|error| failed("cannot read the log in", error))?;
            let contents = segment::look_through(&last, &bytes)?;
            if contents.damaged_bytes > 0 {
                found.problems.push(format!("{}: {} bytes are damaged", path.display(), contents.damaged_bytes));
            }
            found.torn_bytes += last.bytes.saturating_sub(contents.end as u64);
            // A file may have been copied over another; positions are never used again.
            found.next = contents.next.unwrap_or(1).max(last.first).max(1);
            if !segment::is_begun(&last, &bytes) {
                // The process had only begun to make this segment.
                disk.remove(path).map_err(|error| failed("cannot tidy up the log in", error))?;
                continue;
            }
            let end = contents.end as u64;
            let resumed = Open::resume(&*disk, &last, contents.salt, end);
            open = Some(resumed.map_err(|error| failed("cannot write the log in", error))?);
            segments.push(Segment { bytes: end, ..last });
            break;
        }
        if let Some((first, problem)) = missing {
            found.next = found.next.max(first);
            found.problems.push(problem);
            // The problem is reported once.
            segment::note_newest(&*disk, folder, segments.last().map_or(0, |last| last.first));
        }
        found.first = segments.first().map_or(found.next, |segment| segment.first);
        if found.torn_bytes > 0 {
            tracing::warn!(bytes = found.torn_bytes, "the end of the log was not written in full, and is cut off");
        }
        found.problems.iter().for_each(|problem| tracing::error!("the log is damaged: {problem}"));
        let shared = Arc::new(Shared {
            disk,
            folder: folder.to_owned(),
            settings,
            seed,
            gathering: Mutex::new(Gathering { frame: Frame::default(), next: found.next }),
            writing: RwLock::default(),
            gathered: Condvar::new(),
            committed: Condvar::new(),
            notify: Notify::new(),
            next: AtomicU64::new(found.next),
            durable: AtomicU64::new(found.next - 1),
            disk_bytes: AtomicU64::new(segments.iter().map(|segment| segment.bytes).sum()),
            segments: Mutex::new(segments.into()),
            holds: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            is_at_limit: AtomicBool::new(false),
            counters: Counters::default(),
            problem: Mutex::default(),
        });
        Ok((Writer::new(shared, open), found))
    }

    /// Offers a record; the position in `record` is ignored. If there is room, `take` gets the position that the record
    /// would have. If `take` returns true, the record is in the log. Nothing is appended meanwhile, so if `take` hands
    /// the record on, records are handed on in the order of the log. A record that `may_exceed` the limit is one that
    /// must be written before anything can be forgotten.
    pub fn append(&self, record: &Record<'_>, may_exceed: bool, take: impl FnOnce(u64) -> bool) -> Appended {
        let shared = &*self.shared;
        let bytes = record.logged_bytes();
        let mut gathering = shared.gathering.lock();
        let on_disk = shared.disk_bytes.load(Ordering::Relaxed) + (gathering.frame.len() + bytes) as u64;
        let excess_max = if may_exceed { EXCESS_BYTES_MAX } else { 0 };
        let is_at_limit = on_disk > shared.settings.bytes_max;
        if is_at_limit != shared.is_at_limit.load(Ordering::Relaxed) {
            shared.is_at_limit.store(is_at_limit, Ordering::Relaxed);
        }
        if !gathering.frame.has_room(bytes, shared.settings.gathered_bytes_max)
            || on_disk > shared.settings.bytes_max.saturating_add(excess_max)
            || !record.is_writable()
            || shared.is_closing.load(Ordering::Relaxed)
        {
            shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return Appended::Full;
        }
        let position = gathering.next;
        if !take(position) {
            return Appended::NotTaken;
        }
        let was_empty = gathering.frame.is_empty();
        gathering.frame.push(&Record { position, ..*record });
        gathering.next = position + 1;
        shared.next.store(position + 1, Ordering::Release);
        drop(gathering);
        if was_empty {
            shared.gathered.notify_one();
        }
        Appended::At(position)
    }

    /// The position of the next record. All records before it have been handed on when this returns.
    pub fn next(&self) -> u64 {
        self.shared.next.load(Ordering::Acquire)
    }

    /// Makes all new positions higher than `position`, which is known elsewhere although the log does not have it.
    pub fn pass(&self, position: u64) {
        if matches!(self.writing, Writing::Stepped(_)) && !self.commit() {
            // A stepped log has no thread that would write the pending records.
            return;
        }
        let mut gathering = self.shared.gathering.lock();
        if gathering.next <= position {
            // Positions within a frame are consecutive, so the pending frame must be written first.
            while !gathering.frame.is_empty() && !self.shared.is_closing.load(Ordering::Acquire) {
                self.shared.committed.wait(&mut gathering);
            }
            gathering.next = gathering.next.max(position + 1);
            self.shared.next.store(gathering.next, Ordering::Release);
            self.shared.durable.fetch_max(position, Ordering::AcqRel);
        }
    }

    /// The highest position on disk; all positions before it are on disk too.
    pub fn durable(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Notified each time [`Log::durable`] has grown.
    pub fn committed(&self) -> &Notify {
        &self.shared.notify
    }

    /// Waits until all records up to `position` are on disk; returns whether they are.
    pub fn wait_durable(&self, position: u64, limit: Duration) -> bool {
        if let Writing::Stepped(_) = &self.writing {
            return self.durable() >= position || (self.commit() && self.durable() >= position);
        }
        let deadline = Instant::now() + limit;
        let mut gathering = self.shared.gathering.lock();
        while self.durable() < position {
            if self.shared.committed.wait_until(&mut gathering, deadline).timed_out() {
                return self.durable() >= position;
            }
        }
        true
    }

    /// Reads the records from position `from` up to `until` (exclusive), in order, while `take` returns true. Records
    /// that are not durable yet are not read.
    ///
    /// # Errors
    /// A file cannot be read. Damaged parts are skipped and counted.
    pub fn read(&self, from: u64, until: u64, take: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Read, StorageError> {
        let until = until.min(self.durable() + 1);
        let segments: Vec<Segment> = self.shared.segments.lock().iter().cloned().collect();
        read_segments(&*self.shared.disk, &segments, from, until, take)
    }

    /// Reads, as [`Log::read`] does, the records that are not durable yet, and waits for no disk. Returns the position
    /// behind the last record read. That is `from` if this record is on disk already.
    pub fn read_pending(&self, from: u64, until: u64, take: &mut dyn FnMut(Record<'_>) -> bool) -> u64 {
        let frames: Vec<Frame> = {
            let gathering = self.shared.gathering.lock();
            let writing = self.shared.writing.read();
            [&*writing, &gathering.frame].into_iter().filter(|frame| frame.next() > from).cloned().collect()
        };
        let mut next = from;
        for record in frames.iter().flat_map(Frame::records).skip_while(|record| record.position < from) {
            if record.position != next || next >= until || !take(record) {
                break;
            }
            next += 1;
        }
        next
    }

    /// Reads the end of the log, oldest first: the records of its last `window_us`, from the segments that hold the
    /// last `records_max`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read_end(
        &self,
        window_us: i64,
        records_max: u64,
        take: &mut dyn FnMut(Record<'_>),
    ) -> Result<(), StorageError> {
        let segments: Vec<Segment> = self.shared.segments.lock().iter().cloned().collect();
        let until = self.durable() + 1;
        let disk = &*self.shared.disk;
        let (mut from, mut newest_us, mut records) = (segments.len(), i64::MIN, 0);
        while from > 0 && records < records_max {
            from -= 1;
            let mut oldest_us = i64::MAX;
            let read = read_segments(disk, &segments[from..=from], 0, until, &mut |record| {
                (oldest_us, newest_us) = (oldest_us.min(record.arrival_us), newest_us.max(record.arrival_us));
                true
            })?;
            records += read.records;
            if oldest_us < newest_us.saturating_sub(window_us) {
                break;
            }
        }
        read_segments(disk, &segments[from..], 0, until, &mut |record| {
            if record.arrival_us >= newest_us.saturating_sub(window_us) {
                take(record);
            }
            true
        })?;
        Ok(())
    }

    /// Whether the log accepts nothing until old records are forgotten, as the last offer has shown.
    pub fn is_full(&self) -> bool {
        self.shared.is_at_limit.load(Ordering::Relaxed)
            || self.shared.disk_bytes.load(Ordering::Relaxed) >= self.shared.settings.bytes_max
    }

    /// Bytes in memory that are not being written yet.
    pub fn gathered_bytes(&self) -> usize {
        self.shared.gathering.lock().frame.len()
    }

    /// Bytes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.shared.disk_bytes.load(Ordering::Relaxed)
    }

    /// Whether the disk refused the last write.
    pub fn is_broken(&self) -> bool {
        self.shared.problem.lock().is_some()
    }

    /// The files with all durable records, each with its length now. As long as the answer is held, they do not change
    /// up to that length.
    pub fn hold(&self) -> HeldLog {
        let segments = self.shared.segments.lock();
        self.shared.holds.fetch_add(1, Ordering::AcqRel);
        let files = segments.iter().map(|segment| (segment.path.clone(), segment.bytes)).collect();
        HeldLog { shared: self.shared.clone(), files }
    }

    /// Deletes the segments whose positions are all lower than `position`. Segments that are held, or that the disk
    /// does not delete, are left to the next call. Returns whether all are deleted.
    pub fn forget_before(&self, position: u64) -> bool {
        let mut segments = self.shared.segments.lock();
        if self.shared.holds.load(Ordering::Acquire) > 0 {
            return false;
        }
        while let Some(next) = segments.get(1).filter(|next| next.first <= position) {
            let upto = next.first;
            let oldest = &segments[0];
            if let Err(error) = self.shared.disk.remove(&oldest.path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(upto, "{} cannot be deleted, it is tried again: {error}", oldest.path.display());
                return false;
            }
            self.shared.disk_bytes.fetch_sub(oldest.bytes, Ordering::Relaxed);
            self.shared.is_at_limit.store(false, Ordering::Relaxed);
            segments.pop_front();
        }
        true
    }

    /// The position behind the last record of the file that has this position.
    pub fn file_end(&self, position: u64) -> u64 {
        let segments = self.shared.segments.lock();
        let behind = segments.partition_point(|one| one.first <= position);
        segments.get(behind).map_or_else(|| self.next(), |after| after.first)
    }

    /// Whether three quarters of the room on disk are taken.
    pub fn is_nearly_full(&self) -> bool {
        self.shared.disk_bytes.load(Ordering::Relaxed) >= self.shared.settings.bytes_max / 4 * 3
    }

    /// The counts of the log, and why nothing can be written at present, if so.
    pub fn stats(&self) -> LogStats {
        let (next, gathered_bytes) = (self.next(), self.shared.gathering.lock().frame.len() as u64);
        let segments = self.shared.segments.lock();
        let disk_bytes = self.shared.disk_bytes.load(Ordering::Relaxed);
        let is_full = self.is_full() || disk_bytes + gathered_bytes >= self.shared.settings.bytes_max;
        let at_bound = || {
            let bound = self.shared.settings.bytes_max;
            format!(
                "the log has {disk_bytes} bytes and may have {bound}: it waits for a checkpoint, which lets it be shortened"
            )
        };
        self.shared.counters.stats(LogStats {
            first: segments.front().map_or(next, |segment| segment.first),
            next,
            durable: self.durable(),
            segments: segments.len() as u64,
            disk_bytes,
            gathered_bytes,
            problem: self.shared.problem.lock().clone().or_else(|| is_full.then(at_bound)),
            ..LogStats::default()
        })
    }

    /// Writes the pending records and ends. A second call does nothing. Returns how many records could not be written.
    pub fn close(&self) -> u64 {
        self.shared.is_closing.store(true, Ordering::Release);
        {
            let _gathering = self.shared.gathering.lock();
            self.shared.gathered.notify_one();
        }
        match &self.writing {
            Writing::Thread(thread) => {
                if thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
                    tracing::error!("the thread of the log has panicked (a defect)");
                }
            }
            Writing::Stepped(_) => drop(self.commit()),
        }
        self.next() - 1 - self.durable()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("folder", &self.shared.folder).field("stats", &self.stats()).finish()
    }
}

fn read_segments(
    disk: &dyn Disk,
    segments: &[Segment],
    from: u64,
    until: u64,
    take: &mut dyn FnMut(Record<'_>) -> bool,
) -> Result<Read, StorageError> {
    // Positions below the first segment are not lost: they were forgotten.
    let next = from.max(segments.first().map_or(FIRST, |segment| segment.first));
    let mut read = Read { next, ..Read::default() };
    for (index, segment) in segments.iter().enumerate() {
        if segments.get(index + 1).is_some_and(|next| next.first <= from) || segment.first >= until {
            continue;
        }
        let path = &segment.path;
        let bytes = disk
            .read(path)
            .map_err(|error| StorageError::from_io(format!("cannot read {}", path.display()), "", error))?;
        let known = bytes.len().min(usize::try_from(segment.bytes).unwrap_or(usize::MAX));
        let body = match segment::body(segment, &bytes[..known]) {
            Err(error @ StorageError::Damaged { .. }) => {
                tracing::error!("what {} had is lost: {error}", path.display());
                continue;
            }
            other => other?,
        };
        // The records here from the first position of the next segment on were abandoned: their frame could not be made
        // durable, and was written to that segment again, maybe with more records.
        let end = segments.get(index + 1).map_or(u64::MAX, |next| next.first);
        for part in body.frames() {
            let Part::Frame(frame) = part else { continue };
            if frame.next() <= read.next {
                continue;
            }
            for record in frame.records().take_while(|record| record.position < end) {
                if record.position < read.next {
                    continue;
                }
                if record.position >= until {
                    return Ok(read);
                }
                read.lose_to(record.position);
                if !take(record) {
                    return Ok(read);
                }
                read.next += 1;
                read.records += 1;
            }
        }
    }
    // All records before `until` should have been found.
    read.lose_to(until);
    Ok(read)
}

/// Reads a log that no process has open, from its beginning up to `until` (exclusive), and changes nothing.
///
/// # Errors
/// The folder or a file cannot be read. Damaged parts are skipped and counted.
pub fn read_closed(folder: &Path, until: u64, take: &mut dyn FnMut(Record<'_>)) -> Result<Read, StorageError> {
    let segments = segment::list(&RealDisk, folder)?;
    read_segments(&RealDisk, &segments, 0, until, &mut |record| {
        take(record);
        true
    })
}

/// The result of [`inspect`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspected {
    /// What opening the log would find.
    pub found: Found,
    /// The number of files.
    pub segments: u64,
    /// Their size, in bytes.
    pub bytes: u64,
    /// How many records can be read.
    pub records: u64,
    /// Gaps: first and last position of each run of positions that cannot be read, though later ones can.
    pub gaps: Vec<(u64, u64)>,
    /// Findings that look like a loss and are none, in words.
    pub notices: Vec<String>,
}

/// Inspects the log in a folder that no process has open, and changes nothing.
///
/// # Errors
/// The folder or a file cannot be read.
pub fn inspect(folder: &Path) -> Result<Inspected, StorageError> {
    let segments = segment::list(&RealDisk, folder)?;
    let mut all = Inspected { found: Found { first: 1, next: 1, ..Found::default() }, ..Inspected::default() };
    let missing = segment::missing_newest(&RealDisk, folder, &segments);
    for (index, segment) in segments.iter().enumerate() {
        let path = &segment.path;
        let bytes = RealDisk
            .read(path)
            .map_err(|error| StorageError::from_io(format!("cannot read {}", path.display()), "", error))?;
        let contents = segment::look_through(segment, &bytes)?;
        let found = &mut all.found;
        if index == 0 {
            found.first = segment.first;
        } else if segment.first > found.next {
            all.gaps.push((found.next, segment.first - 1));
        }
        let behind = bytes.len().saturating_sub(contents.end) as u64;
        match index + 1 == segments.len() {
            true => found.torn_bytes = behind,
            // After a write that failed the log goes on in the next file, with the same records.
            false if behind > 0 => {
                let text = format!("{}: {behind} bytes at its end were not written in full", path.display());
                all.notices.push(text);
            }
            false => {}
        }
        found.next = contents.next.unwrap_or(segment.first).max(found.next);
        if contents.damaged_bytes > 0 {
            found.problems.push(format!("{}: {} bytes are damaged", path.display(), contents.damaged_bytes));
        }
        all.segments += 1;
        all.bytes += bytes.len() as u64;
        all.records += contents.records;
    }
    if let Some((first, problem)) = missing {
        if all.found.next < first {
            all.gaps.push((all.found.next, first - 1));
        }
        all.found.next = all.found.next.max(first);
        all.found.problems.push(problem);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
