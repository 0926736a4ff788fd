//! A stream that this side sends: what gathers, and what is kept until the other side has taken it.

use std::collections::VecDeque;

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::Element;

use crate::compression::{Compression, Compressor};
use crate::element::Encoder;
use crate::frame::{self, Kind};
use crate::{StreamId, WireError};

/// How a stream is sent.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions {
    /// A buffer is sent when it has so many bytes, and no more than that wait to be sent. A row that is larger is sent
    /// by itself.
    pub buffer_bytes: usize,
    /// A buffer is sent so long after its first row, microseconds.
    pub flush_us: i64,
    /// How buffers are compressed.
    pub compression: Compression,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self { buffer_bytes: 1 << 20, flush_us: 10_000, compression: Compression::default() }
    }
}

/// What the other side has taken of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Rows.
    pub rows: u64,
    /// Bytes, as they were sent.
    pub bytes: u64,
}

/// A buffer as a frame, and its rows.
struct Buffered {
    frame: Vec<u8>,
    rows: u64,
}

pub(crate) struct Outbound {
    pub(crate) name: String,
    pub(crate) schema: SchemaRef,
    id: StreamId,
    options: SendOptions,
    encoder: Encoder,
    compressor: Compressor,
    /// The process that took it last: another one knows nothing of it.
    taker: Option<u64>,
    /// Whether it goes on, on this connection.
    is_open: bool,
    /// Elements that gather, rows among them, and since when.
    gathered: Vec<u8>,
    gathered_rows: u64,
    since_us: i64,
    /// Buffers that the other side is not known to have taken: the first one's number, and how many of them need not be
    /// sent on this connection any more.
    frames: VecDeque<Buffered>,
    first: u64,
    sent: usize,
    /// Bytes of those that were not sent.
    unsent_bytes: usize,
    /// Bytes that were sent on this connection, and that may be.
    sent_bytes: u64,
    granted_bytes: u64,
    taken: Taken,
    /// Memory to be used again.
    spare: Vec<Vec<u8>>,
}

/// So many pieces of memory are kept to be used again.
const SPARE_MAX: usize = 8;

impl Outbound {
    pub(crate) fn new(name: String, schema: SchemaRef, id: StreamId, options: SendOptions) -> Self {
        Self {
            name,
            schema,
            id,
            options,
            encoder: Encoder::default(),
            compressor: Compressor::new(options.compression),
            taker: None,
            is_open: false,
            gathered: Vec::new(),
            gathered_rows: 0,
            since_us: 0,
            frames: VecDeque::new(),
            first: 1,
            sent: 0,
            unsent_bytes: 0,
            sent_bytes: 0,
            granted_bytes: 0,
            taken: Taken::default(),
            spare: Vec::new(),
        }
    }

    /// Whether more may be pushed: not before the other side has taken it a first time.
    pub(crate) fn has_room(&self) -> bool {
        self.taker.is_some() && self.gathered.len() + self.unsent_bytes < self.options.buffer_bytes
    }

    /// What the other side is known to have taken, and whether that is all.
    pub(crate) fn taken(&self) -> (Taken, bool) {
        (self.taken, self.gathered.is_empty() && self.frames.is_empty())
    }

    /// Adds an element. A batch of more than a buffer is cut.
    pub(crate) fn push(&mut self, element: &Element, now_us: i64) -> Result<(), WireError> {
        if let Element::Batch(batch) = element {
            let bytes: usize = batch.columns.get_array_memory_size() + batch.rows() * 20;
            let pieces = bytes.div_ceil(self.options.buffer_bytes).min(batch.rows());
            if pieces > 1 {
                let rows = batch.rows().div_ceil(pieces);
                return (0..batch.rows()).step_by(rows).try_for_each(|from| {
                    let piece = batch.slice(from, rows.min(batch.rows() - from));
                    self.push_whole(&Element::Batch(piece), now_us)
                });
            }
        }
        self.push_whole(element, now_us)
    }

    fn push_whole(&mut self, element: &Element, now_us: i64) -> Result<(), WireError> {
        if self.gathered.is_empty() {
            self.since_us = now_us;
        }
        let before = self.gathered.len();
        if let Err(error) = self.encoder.encode(element, &mut self.gathered) {
            self.gathered.truncate(before);
            return Err(error);
        }
        if let Element::Batch(batch) = element {
            self.gathered_rows += batch.rows() as u64;
        }
        // Others wait for these.
        let is_awaited = matches!(element, Element::Barrier(_) | Element::End);
        if is_awaited || self.gathered.len() >= self.options.buffer_bytes {
            self.seal();
        }
        Ok(())
    }

    /// Makes a frame of what has gathered.
    pub(crate) fn seal(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let number = self.first + self.frames.len() as u64;
        let mut frame = self.spare.pop().unwrap_or_default();
        let Self { id, compressor, gathered, .. } = self;
        frame::write(&mut frame, Kind::Data, *id, number, |out| (compressor.append(gathered, out), gathered.len()));
        self.gathered.clear();
        self.unsent_bytes += frame.len();
        self.frames.push_back(Buffered { frame, rows: std::mem::take(&mut self.gathered_rows) });
    }

    /// Makes a frame of what has gathered for long enough.
    pub(crate) fn tick(&mut self, now_us: i64) {
        if self.due_us().is_some_and(|due_us| due_us <= now_us) {
            self.seal();
        }
    }

    /// When to call [`Outbound::tick`].
    pub(crate) fn due_us(&self) -> Option<i64> {
        (!self.gathered.is_empty()).then(|| self.since_us.saturating_add(self.options.flush_us))
    }

    /// The next frame to be sent, if the other side has given room for it.
    pub(crate) fn next_frame(&mut self) -> Option<&[u8]> {
        if !self.is_open || self.sent_bytes >= self.granted_bytes {
            return None;
        }
        let Buffered { frame, .. } = self.frames.get(self.sent)?;
        self.sent += 1;
        self.sent_bytes += frame.len() as u64;
        self.unsent_bytes -= frame.len();
        Some(frame)
    }

    /// The other side does not take it, or the connection is gone. What is kept stays.
    pub(crate) fn interrupt(&mut self) {
        self.is_open = false;
        self.resume_at(0);
        (self.sent_bytes, self.granted_bytes) = (0, 0);
    }

    /// Forgets what was pushed and not taken.
    pub(crate) fn forget(&mut self) {
        self.first += self.frames.len() as u64;
        self.gathered.clear();
        self.gathered_rows = 0;
        self.frames.clear();
        self.resume_at(0);
    }

    /// So many of the frames need not be sent.
    fn resume_at(&mut self, sent: usize) {
        self.sent = sent;
        self.unsent_bytes = self.frames.iter().skip(sent).map(|buffered| buffered.frame.len()).sum();
    }

    /// A process takes the stream, and wants this buffer next; 0 if that may be any. True if it knew nothing of it.
    pub(crate) fn accept(&mut self, taker: u64, next: u64) -> Result<bool, WireError> {
        let sent = match next {
            0 => 0,
            _ => self.place_of(next)?,
        };
        self.interrupt();
        self.resume_at(sent);
        self.is_open = true;
        Ok(self.taker.replace(taker) != Some(taker))
    }

    /// The other side has taken all buffers before this one; 0 if it has taken none. So many bytes may be sent on this
    /// connection.
    pub(crate) fn grant(&mut self, untaken: u64, bytes: u64) -> Result<(), WireError> {
        self.granted_bytes = self.granted_bytes.max(bytes);
        let taken = if untaken == 0 { 0 } else { self.place_of(untaken)? };
        if taken > self.sent {
            return Err(WireError::Broken("that it has taken a buffer which was not sent"));
        }
        self.first += taken as u64;
        self.sent -= taken;
        for Buffered { mut frame, rows } in self.frames.drain(..taken) {
            self.taken.rows += rows;
            self.taken.bytes += frame.len() as u64;
            if self.spare.len() < SPARE_MAX {
                frame.clear();
                self.spare.push(frame);
            }
        }
        Ok(())
    }

    /// The place of a buffer among those that are kept, or after them.
    fn place_of(&self, number: u64) -> Result<usize, WireError> {
        let place = number.checked_sub(self.first).filter(|place| *place <= self.frames.len() as u64);
        place.map(|place| place as usize).ok_or(WireError::Broken("that it wants a buffer which is not there"))
    }
}
