//! Rows from pieces of files of lines, one piece after another.
//!
//! What must hold: of many sources only some hold files and buffers while others are read ([`Holding`]); the others go
//! on where they were.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rivulet_dataflow::{Polled, Refusals, Source, SourceError};

use super::chunks::{Chunk, ChunkText};
use crate::connector::intake::Intake;
use crate::connector::lines::{Left, Lines, READ_BYTES, Reading};

/// The number of sources of one statement that hold a file open from one read to the next, with its buffers.
const OPEN_MAX: usize = 64;

/// Whether a source keeps its file open; a limited number of sources do. The others open theirs anew for each read and
/// take little at a time: that much they are ahead of the source that is furthest behind.
#[derive(Debug)]
pub(super) struct Holding {
    /// The number of sources that do; shared by all sources of a statement.
    holders: Arc<AtomicUsize>,
    is_holder: bool,
}

impl Holding {
    /// For one of the sources that share `holders`.
    pub(super) fn new(holders: &Arc<AtomicUsize>) -> Self {
        Self { holders: holders.clone(), is_holder: false }
    }

    /// Whether the file may stay open, from now until it ends.
    pub(super) fn may_hold(&mut self) -> bool {
        let take = |holders: usize| (holders < OPEN_MAX).then_some(holders + 1);
        self.is_holder = self.is_holder || self.holders.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok();
        self.is_holder
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.is_holder {
            self.holders.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The most rows that a source takes at a time if it may not hold its file.
const ROWS_MAX: usize = 1024;

/// One partition: its pieces, first to last.
pub(super) struct LineSource {
    reading: Arc<Reading>,
    holding: Holding,
    /// Empty between polls, and `None` while nothing is held.
    intake: Option<Intake>,
    /// The pieces that are still to be read, last to first.
    waiting: Vec<Chunk>,
    open: Option<(Lines, Chunk)>,
    bytes_done: u64,
    bytes_all: u64,
}

impl LineSource {
    pub(super) fn new(reading: Arc<Reading>, holding: Holding, mut chunks: Vec<Chunk>) -> Self {
        let bytes_all = chunks.iter().map(|chunk| chunk.bytes).sum();
        chunks.reverse();
        Self { reading, holding, intake: None, waiting: chunks, open: None, bytes_done: 0, bytes_all }
    }

    /// Rows of the piece that is open or the next ones.
    fn take(
        &mut self,
        intake: &mut Intake,
        read_bytes: usize,
        rows_max: usize,
        now_us: i64,
        refusals: &mut Refusals,
    ) -> Result<Polled, SourceError> {
        // A header determines the decoder, so payloads of two files are never decoded together. Pieces without rows are
        // skipped, but only so many that a poll stays short.
        for _ in 0..64 {
            if self.open.is_none() {
                let Some(chunk) = self.waiting.pop() else { return Ok(Polled::End) };
                let lines = open_lines(&self.reading, &chunk.path, chunk.start, chunk.end, intake)?;
                self.open = Some((lines.with_read_bytes(read_bytes), chunk));
            }
            let Some((lines, chunk)) = self.open.as_mut() else { return Ok(Polled::End) };
            let left =
                lines.take_into(intake, rows_max, now_us, refusals).map_err(|error| unreadable(&chunk.path, &error))?;
            if left == Left::Nothing {
                lines.take_rest(intake, now_us, refusals);
                self.bytes_done += chunk.bytes;
                self.open = None;
            }
            if intake.payloads() > 0
                && let Some(rows) = intake.decode_for(now_us, refusals)
            {
                return Ok(rows);
            }
        }
        Ok(Polled::Nothing(std::time::Duration::ZERO))
    }

    /// Closes the file; the rest of the piece waits.
    fn close(&mut self) {
        let Some((lines, chunk)) = self.open.take_if(|(lines, _)| lines.can_be_left()) else { return };
        let left = chunk.from(lines.offset());
        self.bytes_done += chunk.bytes - left.bytes;
        self.waiting.push(left);
    }
}

impl Source for LineSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let mut intake = match self.intake.take() {
            Some(intake) => intake,
            None => self.reading.intake().map_err(|error| SourceError(error.to_string()))?,
        };
        if self.holding.may_hold() {
            let polled = self.take(&mut intake, READ_BYTES, rows_max, now_us, refusals);
            self.intake = Some(intake);
            polled
        } else {
            let polled = self.take(&mut intake, READ_BYTES / 4, rows_max.min(ROWS_MAX), now_us, refusals);
            self.close();
            polled
        }
    }

    fn position(&mut self) -> Option<String> {
        let open = self.open.as_ref().map(|(lines, chunk)| chunk.from(lines.offset()));
        let left: Vec<ChunkText> = open.iter().chain(self.waiting.iter().rev()).map(Chunk::to_text).collect();
        serde_json::to_string(&left).ok()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        let open =
            self.open.as_ref().map_or(0, |(lines, chunk)| lines.offset().saturating_sub(chunk.start).min(chunk.bytes));
        Some((self.bytes_done + open, self.bytes_all))
    }
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> SourceError {
    SourceError(format!("cannot read {}: {error}", path.display()))
}

/// Opens a piece of a file, and sets `intake` to its header, if it has one.
pub(super) fn open_lines(
    reading: &Reading,
    path: &Path,
    start: u64,
    end: u64,
    intake: &mut Intake,
) -> Result<Lines, SourceError> {
    let failed = |problem: String| SourceError(format!("cannot read {}: {problem}", path.display()));
    let unreadable = |error: io::Error| failed(error.to_string());
    let open = |start| Lines::open(reading.files.open(path)?, start, end, reading.rule);
    if !reading.format.has_header() {
        return open(start).map_err(unreadable);
    }
    let mut lines = open(0).map_err(unreadable)?;
    let mut rule = reading.rule;
    if let Some(header) = lines.take_first().map_err(unreadable)? {
        rule = reading.follow_header(&header, intake).map_err(failed)?;
    }
    if start > 0 {
        lines = open(start).map_err(unreadable)?;
    }
    lines.set_rule(rule);
    Ok(lines)
}
