//! The thread that writes: all that has gathered in one frame, and one wait for the disk.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use super::frame::Frame;
use super::segment::{Open, Segment};

/// The pause after the disk has refused, before it is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How often a log that is being closed tries to write what is left.
const LAST_TRIES: u32 = 5;

/// The memory of a frame that is kept between bursts.
const FRAME_BYTES_KEPT: usize = 1 << 20;

/// Writes until the log is closed and nothing is left.
pub(super) fn run(shared: &Shared, open: Option<Open>) {
    let mut writer = Writer { shared, open };
    let mut frame = Frame::default();
    loop {
        {
            let mut gathering = shared.gathering.lock();
            while gathering.frame.is_empty() {
                if shared.is_closing.load(Ordering::Acquire) {
                    return;
                }
                shared.gathered.wait(&mut gathering);
            }
            std::mem::swap(&mut gathering.frame, &mut frame);
        }
        let begun = Instant::now();
        if !writer.commit_until_done(&mut frame) {
            return;
        }
        // Nobody who saw a frame under way may think it was never there.
        shared.durable.fetch_max(frame.next() - 1, Ordering::AcqRel);
        frame.clear(FRAME_BYTES_KEPT);
        drop(shared.gathering.lock());
        shared.committed.notify_all();
        shared.notify.notify_waiters();
        let is_closing = shared.is_closing.load(Ordering::Acquire);
        if let Some(pause) = shared.settings.commit_interval.checked_sub(begun.elapsed()).filter(|_| !is_closing) {
            std::thread::sleep(pause);
        }
    }
}

struct Writer<'s> {
    shared: &'s Shared,
    /// The segment that is written to; `None` before the first, and after one that cannot be trusted.
    open: Option<Open>,
}

impl Writer<'_> {
    /// Writes a frame, however often that has to be tried; false if the log is closed before that has worked.
    fn commit_until_done(&mut self, frame: &mut Frame) -> bool {
        let mut tries_left = LAST_TRIES;
        loop {
            let begun = Instant::now();
            match self.commit(frame) {
                Ok(()) => {
                    let counters = &self.shared.counters;
                    counters.committed(begun.elapsed(), frame.len());
                    if self.shared.problem.lock().take().is_some() {
                        tracing::info!("the log can be written again");
                    }
                    return true;
                }
                Err(error) => self.note(&error),
            }
            if self.shared.is_closing.load(Ordering::Acquire) {
                tries_left -= 1;
                if tries_left == 0 {
                    return false;
                }
            }
            std::thread::sleep(RETRY_PAUSE);
        }
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

    fn commit(&mut self, frame: &mut Frame) -> io::Result<()> {
        let segment_bytes = self.shared.settings.segment_bytes;
        if self.open.as_ref().is_none_or(|open| open.bytes >= segment_bytes) {
            self.open = None;
            self.begin_segment(frame.first())?;
        }
        let Some(open) = &mut self.open else { return Err(io::Error::other("no segment is open")) };
        let bytes = frame.seal();
        if let Err(error) = open.write(bytes) {
            if open.cut().is_err() {
                // What is left of the frame stays behind, in a segment that nothing is appended to.
                self.open = None;
            }
            return Err(error);
        }
        if let Err(error) = open.sync(bytes.len()) {
            // Nobody knows what of it is on disk, and asking again may be answered with yes although it is not: it is written
            // once more, elsewhere.
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

    fn begin_segment(&mut self, first: u64) -> io::Result<()> {
        let open = Open::create(&self.shared.folder, first)?;
        let mut segments = self.shared.segments.lock();
        // One of the same name had nothing that counted.
        if let Some(same) = segments.pop_back_if(|last| last.first == first) {
            self.shared.disk_bytes.fetch_sub(same.bytes, Ordering::Relaxed);
        }
        segments.push_back(Segment { path: open.path.clone(), first: open.first, bytes: open.bytes });
        self.shared.disk_bytes.fetch_add(open.bytes, Ordering::Relaxed);
        self.open = Some(open);
        Ok(())
    }
}
