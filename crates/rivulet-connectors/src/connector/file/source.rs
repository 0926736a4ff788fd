//! Rows from pieces of files of lines, one piece after another.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rivulet_dataflow::{Polled, Refusals, Source, SourceError};

use super::chunks::Chunk;
use crate::connector::intake::Intake;
use crate::connector::lines::{Left, Lines, Reading};
use crate::formats::FormatError;

/// One partition: its pieces, first to last.
pub(super) struct LineSource {
    reading: Arc<Reading>,
    intake: Intake,
    /// The pieces that are still to be read, last to first.
    waiting: Vec<Chunk>,
    open: Option<(Lines, Chunk)>,
    bytes_done: u64,
    bytes_all: u64,
}

impl LineSource {
    pub(super) fn new(reading: Arc<Reading>, mut chunks: Vec<Chunk>) -> Result<Self, FormatError> {
        let bytes_all = chunks.iter().map(|chunk| chunk.bytes).sum();
        chunks.reverse();
        let intake = reading.intake()?;
        Ok(Self { reading, intake, waiting: chunks, open: None, bytes_done: 0, bytes_all })
    }

    /// The piece to read from; `None` if all are done.
    fn current(&mut self) -> Result<Option<&mut (Lines, Chunk)>, SourceError> {
        if self.open.is_none() {
            let Some(chunk) = self.waiting.pop() else { return Ok(None) };
            let lines = open_lines(&self.reading, &chunk.path, chunk.start, chunk.end, &mut self.intake)?;
            self.open = Some((lines, chunk));
        }
        Ok(self.open.as_mut())
    }
}

impl Source for LineSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        // A header decides on the decoder, so payloads of two files are never decoded together; pieces without rows are passed by, but
        // not so many that a poll would take long.
        for _ in 0..64 {
            if self.current()?.is_none() {
                return Ok(Polled::End);
            }
            let Some((lines, chunk)) = self.open.as_mut() else { return Ok(Polled::End) };
            let left = lines
                .take_into(&mut self.intake, rows_max, now_us, refusals)
                .map_err(|error| unreadable(&chunk.path, &error))?;
            if left == Left::Nothing {
                lines.take_rest(&mut self.intake, now_us, refusals);
                self.bytes_done += chunk.bytes;
                self.open = None;
            }
            if self.intake.payloads() > 0
                && let Some(rows) = self.intake.decode_for(now_us, refusals)
            {
                return Ok(rows);
            }
        }
        Ok(Polled::Nothing(std::time::Duration::ZERO))
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

/// Opens a piece of a file; `intake` is then set to its header, if it has one.
pub(super) fn open_lines(
    reading: &Reading,
    path: &Path,
    start: u64,
    end: u64,
    intake: &mut Intake,
) -> Result<Lines, SourceError> {
    let failed = |problem: String| SourceError(format!("cannot read {}: {problem}", path.display()));
    let unreadable = |error: io::Error| failed(error.to_string());
    let open = |start| Lines::open(File::open(path)?, start, end, reading.rule);
    if !reading.format.has_header() {
        return open(start).map_err(unreadable);
    }
    let mut lines = open(0).map_err(unreadable)?;
    if let Some(header) = lines.take_first().map_err(unreadable)? {
        reading.follow_header(&header, intake).map_err(failed)?;
    }
    if start == 0 { Ok(lines) } else { open(start).map_err(unreadable) }
}
