//! The log of events that cannot be asked for again: what was received is on disk before its sender is told so.
//!
//! Whoever receives appends records ([`Log::append`]), which takes as long as copying them; a thread of the log's own writes all
//! that has gathered in one frame and waits for the disk once for all of it ([`commit`]). So the busier the machine, the fewer waits a
//! record costs. Files are [`segment`]s, which are deleted when no checkpoint needs them ([`Log::forget_before`]).
//!
//! What must hold:
//! - positions are 1, 2, 3, ... and never used again;
//! - a record at or below [`Log::durable`] is read back after any crash, unless the disk itself loses it, which is said then;
//! - memory and disk are bounded: what finds no room is refused, and the caller keeps it.

mod commit;
mod frame;
mod segment;
mod stats;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::StorageError;
use frame::{Frame, Frames, Part};
use segment::{Open, Segment};
use stats::Counters;

pub use frame::Record;
pub use stats::{LogStats, SYNC_BOUNDS_US};

/// The bounds of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogSettings {
    /// The most bytes on disk; beyond that nothing is taken until something is forgotten.
    pub bytes_max: u64,
    /// How large a segment becomes, give or take a frame.
    pub segment_bytes: u64,
    /// The most bytes that gather in memory while the disk is busy, or full.
    pub gathered_bytes_max: usize,
    /// The least time between two waits for the disk: while much comes, so long is gathered.
    pub commit_interval: Duration,
}

impl Default for LogSettings {
    /// 8 GiB on disk in segments of 16 MiB, 16 MiB in memory, a millisecond.
    fn default() -> Self {
        Self {
            bytes_max: 8 << 30,
            segment_bytes: 16 << 20,
            gathered_bytes_max: 16 << 20,
            commit_interval: Duration::from_millis(1),
        }
    }
}

/// What became of a record that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// It is in the log, and will be on disk.
    At(u64),
    /// The caller did not want it there after all.
    NotTaken,
    /// There is no room, in memory or on disk.
    Full,
}

/// What was found when a log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The lowest position that can be read.
    pub first: u64,
    /// The position of the next record.
    pub next: u64,
    /// Bytes that were being written when the process ended, and were cut off.
    pub torn_bytes: u64,
    /// What is wrong with the files, in words.
    pub problems: Vec<String>,
}

/// What was read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// How many records.
    pub records: u64,
    /// The position behind the last one, or where reading was to end.
    pub next: u64,
    /// Positions that should have been there and could not be read.
    pub lost: u64,
}

/// A log in a folder. Dropped, it writes what has gathered.
pub struct Log {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the handle and the thread share.
struct Shared {
    folder: PathBuf,
    settings: LogSettings,
    gathering: Mutex<Gathering>,
    /// Wakes the thread.
    gathered: Condvar,
    /// Wakes who waits for a position to be durable.
    committed: Condvar,
    /// The same for those who do not wait in a thread of their own.
    notify: Notify,
    /// The position of the next record. Stored when the record before it is in the frame, and read without a lock: whoever asks may hold one
    /// that [`Log::append`] waits for.
    next: AtomicU64,
    /// The highest position on disk.
    durable: AtomicU64,
    /// Oldest first; the last may be the one that is written to.
    segments: Mutex<VecDeque<Segment>>,
    disk_bytes: AtomicU64,
    is_closing: AtomicBool,
    counters: Counters,
    /// Why nothing can be written at present.
    problem: Mutex<Option<String>>,
}

struct Gathering {
    frame: Frame,
    /// The position of the next record.
    next: u64,
}

impl Log {
    /// Opens the log in `folder`, which is made if need be. Bytes at its end that were not written in full are cut off.
    ///
    /// # Errors
    /// The folder cannot be used, or a file in it is of a later version.
    pub fn open(folder: &Path, settings: LogSettings) -> Result<(Self, Found), StorageError> {
        let place = folder.display().to_string();
        let failed = |what: &str, error| StorageError::from_io(format!("{what} {place}"), &place, error);
        fs::create_dir_all(folder).map_err(|error| failed("cannot make the folder of the log,", error))?;
        let mut segments = segment::list(folder)?;
        let mut found = Found { next: 1, ..Found::default() };
        let mut open = None;
        // The last segment is looked through; the others are when they are read.
        while let Some(last) = segments.pop() {
            let path = &last.path;
            let bytes = fs::read(path).map_err(|error| failed("cannot read the log in", error))?;
            let contents = segment::look_through(path, &bytes)?;
            if contents.damaged_bytes > 0 {
                found.problems.push(format!("{}: {} bytes are damaged", path.display(), contents.damaged_bytes));
            }
            found.torn_bytes += last.bytes.saturating_sub(contents.end as u64);
            found.next = contents.next.unwrap_or(last.first).max(1);
            if bytes.len() < segment::HEADER_BYTES {
                // It was being begun.
                fs::remove_file(path).map_err(|error| failed("cannot tidy up the log in", error))?;
                continue;
            }
            let end = contents.end as u64;
            open = Some(Open::resume(&last, end).map_err(|error| failed("cannot write the log in", error))?);
            segments.push(Segment { bytes: end, ..last });
            break;
        }
        found.first = segments.first().map_or(found.next, |segment| segment.first);
        if found.torn_bytes > 0 {
            tracing::warn!(bytes = found.torn_bytes, "the end of the log was not written in full, and is cut off");
        }
        found.problems.iter().for_each(|problem| tracing::error!("the log is damaged: {problem}"));
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            settings,
            gathering: Mutex::new(Gathering { frame: Frame::default(), next: found.next }),
            gathered: Condvar::new(),
            committed: Condvar::new(),
            notify: Notify::new(),
            next: AtomicU64::new(found.next),
            durable: AtomicU64::new(found.next - 1),
            disk_bytes: AtomicU64::new(segments.iter().map(|segment| segment.bytes).sum()),
            segments: Mutex::new(segments.into()),
            is_closing: AtomicBool::new(false),
            counters: Counters::default(),
            problem: Mutex::default(),
        });
        let of_thread = shared.clone();
        let thread =
            std::thread::Builder::new().name("rivulet-log".into()).spawn(move || commit::run(&of_thread, open));
        let thread = thread.map_err(|error| failed("cannot start the thread that writes", error))?;
        Ok((Self { shared, thread: Mutex::new(Some(thread)) }, found))
    }

    /// Offers a record; its position in `record` does not count. If there is room, `take` is told the position that it would get: if it says
    /// yes the record is in the log. Nothing is appended meanwhile, so whoever hands records on from `take` does so in
    /// the order of the log.
    pub fn append(&self, record: &Record<'_>, take: impl FnOnce(u64) -> bool) -> Appended {
        let shared = &*self.shared;
        let bytes = record.logged_bytes();
        let mut gathering = shared.gathering.lock();
        let on_disk = shared.disk_bytes.load(Ordering::Relaxed) + (gathering.frame.len() + bytes) as u64;
        if !gathering.frame.has_room(bytes, shared.settings.gathered_bytes_max)
            || on_disk > shared.settings.bytes_max
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

    /// The position that the next record gets. All before it have been handed on when this returns.
    pub fn next(&self) -> u64 {
        self.shared.next.load(Ordering::Acquire)
    }

    /// From now on positions are higher than `position`: some that high are known elsewhere, although the log does not have them.
    pub fn pass(&self, position: u64) {
        let mut gathering = self.shared.gathering.lock();
        if gathering.next <= position {
            // Positions in a frame follow one another.
            while !gathering.frame.is_empty() && !self.shared.is_closing.load(Ordering::Acquire) {
                self.shared.committed.wait(&mut gathering);
            }
            gathering.next = gathering.next.max(position + 1);
            self.shared.next.store(gathering.next, Ordering::Release);
            self.shared.durable.fetch_max(position, Ordering::AcqRel);
        }
    }

    /// The highest position that is on disk, with all before it.
    pub fn durable(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Told each time [`Log::durable`] has grown.
    pub fn committed(&self) -> &Notify {
        &self.shared.notify
    }

    /// Waits until all up to `position` is on disk; returns whether it is.
    pub fn wait_durable(&self, position: u64, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut gathering = self.shared.gathering.lock();
        while self.durable() < position {
            if self.shared.committed.wait_until(&mut gathering, deadline).timed_out() {
                return self.durable() >= position;
            }
        }
        true
    }

    /// Reads the records from the position `from` up to, and not including, `until`, in order, while `take` says yes. Those
    /// that are not durable yet are not read.
    ///
    /// # Errors
    /// A file cannot be read. What is damaged is passed over, and counted.
    pub fn read(&self, from: u64, until: u64, take: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Read, StorageError> {
        let until = until.min(self.durable() + 1);
        let segments: Vec<Segment> = self.shared.segments.lock().iter().cloned().collect();
        read_segments(&segments, from, until, take)
    }

    /// Reads the end of the log, oldest first: the records that came in the last `window_us` of it.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read_end(&self, window_us: i64, take: &mut dyn FnMut(Record<'_>)) -> Result<(), StorageError> {
        let segments: Vec<Segment> = self.shared.segments.lock().iter().cloned().collect();
        let until = self.durable() + 1;
        let (mut from, mut newest_us) = (segments.len(), i64::MIN);
        while from > 0 {
            from -= 1;
            let mut oldest_us = i64::MAX;
            read_segments(&segments[from..=from], 0, until, &mut |record| {
                (oldest_us, newest_us) = (oldest_us.min(record.arrival_us), newest_us.max(record.arrival_us));
                true
            })?;
            if oldest_us < newest_us.saturating_sub(window_us) {
                break;
            }
        }
        read_segments(&segments[from..], 0, until, &mut |record| {
            if record.arrival_us >= newest_us.saturating_sub(window_us) {
                take(record);
            }
            true
        })?;
        Ok(())
    }

    /// Deletes segments in which all positions are lower than `position`.
    pub fn forget_before(&self, position: u64) {
        let mut segments = self.shared.segments.lock();
        while let Some(next) = segments.get(1).filter(|next| next.first <= position) {
            let upto = next.first;
            let oldest = &segments[0];
            if let Err(error) = fs::remove_file(&oldest.path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(upto, "{} cannot be deleted, it is tried again: {error}", oldest.path.display());
                return;
            }
            self.shared.disk_bytes.fetch_sub(oldest.bytes, Ordering::Relaxed);
            segments.pop_front();
        }
    }

    /// What has happened, and why nothing can be written at present, if so.
    pub fn stats(&self) -> LogStats {
        let (next, gathered_bytes) = (self.next(), self.shared.gathering.lock().frame.len() as u64);
        let segments = self.shared.segments.lock();
        let disk_bytes = self.shared.disk_bytes.load(Ordering::Relaxed);
        let is_full = disk_bytes + gathered_bytes >= self.shared.settings.bytes_max;
        let at_bound = || {
            let bound = self.shared.settings.bytes_max;
            format!("the log has {disk_bytes} bytes and may have {bound}")
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

    /// Writes what has gathered, and ends. A second call does nothing. Returns how many records could not be written.
    pub fn close(&self) -> u64 {
        self.shared.is_closing.store(true, Ordering::Release);
        {
            let _gathering = self.shared.gathering.lock();
            self.shared.gathered.notify_one();
        }
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the log has panicked (a defect)");
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
    segments: &[Segment],
    from: u64,
    until: u64,
    take: &mut dyn FnMut(Record<'_>) -> bool,
) -> Result<Read, StorageError> {
    let mut read = Read { next: from, ..Read::default() };
    // Below the first segment nothing was lost: it was not needed any more.
    read.next = read.next.max(segments.first().map_or(from, |segment| segment.first));
    for (index, segment) in segments.iter().enumerate() {
        if segments.get(index + 1).is_some_and(|next| next.first <= from) || segment.first >= until {
            continue;
        }
        let path = &segment.path;
        let bytes = fs::read(path)
            .map_err(|error| StorageError::from_io(format!("cannot read {}", path.display()), "", error))?;
        let known = bytes.len().min(usize::try_from(segment.bytes).unwrap_or(usize::MAX));
        for part in Frames::new(segment::frames(path, &bytes[..known])?) {
            let Part::Frame(frame) = part else { continue };
            if frame.next() <= read.next {
                continue;
            }
            for record in frame.records() {
                if record.position < read.next {
                    continue;
                }
                if record.position >= until {
                    return Ok(read);
                }
                read.lost += record.position - read.next;
                read.next = record.position;
                if !take(record) {
                    return Ok(read);
                }
                read.next += 1;
                read.records += 1;
            }
        }
    }
    Ok(read)
}

/// Looks through the log in a folder that no process has open, and changes nothing.
///
/// # Errors
/// The folder or a file cannot be read.
pub fn inspect(folder: &Path) -> Result<Found, StorageError> {
    let mut found = Found { first: 1, next: 1, ..Found::default() };
    for (index, segment) in segment::list(folder)?.iter().enumerate() {
        let path = &segment.path;
        let bytes = fs::read(path)
            .map_err(|error| StorageError::from_io(format!("cannot read {}", path.display()), "", error))?;
        let contents = segment::look_through(path, &bytes)?;
        if index == 0 {
            found.first = segment.first;
        }
        found.torn_bytes = bytes.len().saturating_sub(contents.end) as u64;
        found.next = contents.next.unwrap_or(segment.first).max(found.next);
        if contents.damaged_bytes > 0 {
            found.problems.push(format!("{}: {} bytes are damaged", path.display(), contents.damaged_bytes));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
