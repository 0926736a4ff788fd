//! Who writes, usually a thread: all that has gathered in one frame, and one wait for the disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use super::frame::Frame;
use super::segment::{self, Open, Segment};

/// The pause after the disk has refused, before it is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How often a log that is being closed tries to write what is left.
const LAST_TRIES: u32 = 5;

/// The memory of a frame that is kept between bursts.
const FRAME_BYTES_KEPT: usize = 1 << 20;

/// Who writes what has gathered.
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// The segment that is written to; `None` before the first, and after one that cannot be trusted.
    open: Option<Open>,
    /// What is being written; empty if nothing is.
    frame: Frame,
}

impl Writer {
    /// Goes on with the segment that is `open`.
    pub(super) fn new(shared: Arc<Shared>, open: Option<Open>) -> Self {
        Self { shared, open, frame: Frame::default() }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Writes until the log is closed and nothing is left.
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
                std::mem::swap(&mut gathering.frame, &mut self.frame);
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

    /// Tries once to write what has gathered; whether nothing is left.
    pub(super) fn commit_once(&mut self) -> bool {
        // What could not be written before comes first.
        if !self.frame.is_empty() && !self.write() {
            return false;
        }
        std::mem::swap(&mut self.shared.gathering.lock().frame, &mut self.frame);
        self.frame.is_empty() || self.write()
    }

    /// Writes the frame, however often that has to be tried; false if the log is closed before that has worked.
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

    /// Tries to write the frame, and says so to everybody if that has worked.
    fn write(&mut self) -> bool {
        let begun = Instant::now();
        if let Err(error) = self.write_frame() {
            self.note(&error);
            return false;
        }
        // Before anybody is told: who knows that it is on disk finds the segments as they stay.
        let next = self.frame.next();
        self.go_on_behind_full(next);
        let shared = &self.shared;
        shared.counters.committed(begun.elapsed(), self.frame.len());
        if shared.problem.lock().take().is_some() {
            tracing::info!("the log can be written again");
        }
        // Nobody who saw a frame under way may think it was never there.
        shared.durable.fetch_max(next - 1, Ordering::AcqRel);
        self.frame.clear(FRAME_BYTES_KEPT);
        drop(shared.gathering.lock());
        shared.committed.notify_all();
        shared.notify.notify_waiters();
        true
    }

    /// Says once what is wrong, as long as it is the same.
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
        if self.open.is_none() || self.is_open_full() {
            self.begin_segment(self.frame.first())?;
        }
        let Some(open) = &mut self.open else { return Err(io::Error::other("no segment is open")) };
        let bytes = self.frame.seal(open.salt);
        if let Err(error) = open.write(bytes) {
            if open.cut().is_err() {
                // What is left of the frame stays behind, in a segment that nothing is appended to.
                self.open = None;
            }
            return Err(error);
        }
        if let Err(error) = open.sync(bytes.len()) {
            // Nobody knows what of it is on disk, and asking again may be answered with yes although it is not: it is
            // written once more, elsewhere.
            self.open = None;
            return Err(error);
        }
        let mut segments = self.shared.segments.lock();
        if let Some(last) = segments.back_mut() {
            last.bytes = open.bytes;
        }
        self.shared.disk_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Begins the next segment, if the open one is full: only what stands before another one can be forgotten, and a
    /// log at its limit gets nothing more that would begin one. If that fails, the next frame tries.
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
        // One that begins there too has nothing that counted, and goes before this one has anything: nobody could tell
        // later which of the two counts. Nor may anybody who reads look for it from then on, whatever becomes of this
        // one.
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
