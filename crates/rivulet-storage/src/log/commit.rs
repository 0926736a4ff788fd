//! The writer of the log, usually a thread: it writes all pending records in one frame and waits for the disk once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::segment::{self, Open, Segment};
use super::shared::Shared;

/// The pause before another attempt after the disk has refused.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How often a log that is being closed tries to write the pending records.
const LAST_TRIES: u32 = 5;

/// How much memory of a frame is kept between bursts.
const FRAME_BYTES_KEPT: usize = 1 << 20;

/// Writes the pending records.
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// The segment being written; `None` before the first, and after one that cannot be trusted.
    open: Option<Open>,
}

impl Writer {
    /// A writer that continues the segment `open`.
    pub(super) fn new(shared: Arc<Shared>, open: Option<Open>) -> Self {
        Self { shared, open }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Writes until the log is closed and nothing is pending.
    pub(super) fn run(mut self) {
        loop {
            {
                let mut gathering = self.shared.gathering.lock();
                while gathering.frame.is_empty() {
                    if self.shared.is_closing.load(Ordering::Acquire) {
                        return;
                    }
                    self.shared.gathered.wait(&mut gathering);
                }
                std::mem::swap(&mut gathering.frame, &mut self.shared.writing.write());
            }
            let begun = Instant::now();
            if !self.write_until_done() {
                return;
            }
            let shared = &self.shared;
            let is_closing = shared.is_closing.load(Ordering::Acquire);
            if let Some(pause) = shared.settings.commit_interval.checked_sub(begun.elapsed()).filter(|_| !is_closing) {
                std::thread::sleep(pause);
            }
        }
    }

    /// Tries once to write the pending records; returns whether none are left.
    pub(super) fn commit_once(&mut self) -> bool {
        // A frame that could not be written before goes first.
        if self.has_frame() && !self.write() {
            return false;
        }
        std::mem::swap(&mut self.shared.gathering.lock().frame, &mut self.shared.writing.write());
        !self.has_frame() || self.write()
    }

    fn has_frame(&self) -> bool {
        !self.shared.writing.read().is_empty()
    }

    /// Tries to write the frame until it works; false if the log is closed first.
    fn write_until_done(&mut self) -> bool {
        let mut tries_left = LAST_TRIES;
        while !self.write() {
            if self.shared.is_closing.load(Ordering::Acquire) {
                tries_left -= 1;
                if tries_left == 0 {
                    return false;
                }
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        true
    }

    /// Tries to write the frame. If that works, notifies all waiters.
    fn write(&mut self) -> bool {
        let begun = Instant::now();
        if let Err(error) = self.write_frame() {
            self.note(&error);
            return false;
        }
        // Before the notification: a waiter must find the segments in their final form.
        let (next, bytes) = {
            let frame = self.shared.writing.read();
            (frame.next(), frame.len())
        };
        self.go_on_behind_full(next);
        let shared = &self.shared;
        shared.counters.committed(begun.elapsed(), bytes);
        if shared.problem.lock().take().is_some() {
            tracing::info!("the log can be written again");
        }
        // `durable` rises before the frame is cleared, so no observer misses records that were in flight.
        shared.durable.fetch_max(next - 1, Ordering::AcqRel);
        shared.writing.write().clear(FRAME_BYTES_KEPT);
        drop(shared.gathering.lock());
        shared.committed.notify_all();
        shared.notify.notify_waiters();
        true
    }

    /// Reports a problem once, as long as it stays the same.
    fn note(&self, error: &io::Error) {
        self.shared.counters.failures.fetch_add(1, Ordering::Relaxed);
        let folder = self.shared.folder.display();
        let text = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                format!("there is no room for the log in {folder}: {error}")
            }
            _ => format!("the log in {folder} cannot be written: {error}"),
        };
        let mut problem = self.shared.problem.lock();
        if problem.as_deref() != Some(&*text) {
            tracing::error!(
                "{text}; nothing is acknowledged until it can be\nhint: free space on its disk, or check it"
            );
            *problem = Some(text);
        }
    }

    fn write_frame(&mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        if self.open.is_none() || self.is_open_full() {
            let first = shared.writing.read().first();
            self.begin_segment(first)?;
        }
        let Some(open) = &mut self.open else { return Err(io::Error::other("no segment is open")) };
        shared.writing.write().seal(open.salt);
        let frame = shared.writing.read();
        let bytes = frame.bytes();
        if let Err(error) = open.write(bytes) {
            if open.cut().is_err() {
                // The rest of the frame stays in a segment that gets no more frames.
                self.open = None;
            }
            return Err(error);
        }
        if let Err(error) = open.sync(bytes.len()) {
            // After a failed sync it is unknown which bytes are on disk, and a second sync may succeed although they
            // are not. So the frame is written once more, in another segment.
            self.open = None;
            return Err(error);
        }
        let mut segments = shared.segments.lock();
        if let Some(last) = segments.back_mut() {
            last.bytes = open.bytes;
        }
        shared.disk_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Begins the next segment if the open one is full: only segments that have a successor can be forgotten, and a log
    /// at its limit gets no records that would begin one. If it fails, the next frame tries again.
    fn go_on_behind_full(&mut self, first: u64) {
        if self.is_open_full()
            && let Err(error) = self.begin_segment(first)
        {
            tracing::debug!("the next segment of the log is begun later: {error}");
        }
    }

    fn is_open_full(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.bytes >= self.shared.settings.segment_bytes)
    }

    fn begin_segment(&mut self, first: u64) -> io::Result<()> {
        let Shared { disk, folder, segments, disk_bytes, .. } = &*self.shared;
        let open = Open::create(&**disk, folder, first, self.shared.salt_of(first))?;
        // A segment that begins at the same position has no live record. It is removed before this one has any, because
        // later nobody could tell which of the two counts. It leaves the list too, so that no reader looks for it,
        // whatever becomes of the new one.
        let mut listed = segments.lock();
        if let Some(same) = listed.back().filter(|last| last.first == first) {
            if same.path != open.path
                && let Err(error) = disk.remove(&same.path)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            disk_bytes.fetch_sub(same.bytes, Ordering::Relaxed);
            listed.pop_back();
        }
        drop(listed);
        disk.sync_folder(folder)?;
        segment::note_newest(&**disk, folder, first);
        let (path, salt) = (open.path.clone(), Some(open.salt));
        segments.lock().push_back(Segment { path, first: open.first, salt, bytes: open.bytes });
        disk_bytes.fetch_add(open.bytes, Ordering::Relaxed);
        self.open = Some(open);
        Ok(())
    }
}
