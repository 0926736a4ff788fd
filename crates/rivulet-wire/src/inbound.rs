//! A stream that this side receives: what waits to be taken, and how much more the other side may send.

use std::collections::VecDeque;

use arrow::datatypes::SchemaRef;
use xxhash_rust::xxh3::xxh3_64;

use crate::compression::decompress;
use crate::element::Decoder;
use crate::frame::Frame;
use crate::{StreamId, WireError};

/// How much of a stream may wait to be taken.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveOptions {
    /// While so many bytes wait, the other side may send no more.
    pub high_bytes: u64,
    /// When no more than so many do, it may again.
    pub low_bytes: u64,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self { high_bytes: 4 << 20, low_bytes: 2 << 20 }
    }
}

/// So many buffers of the size of the largest may wait, whatever the marks are, or so many bytes of smaller ones.
const BUFFERS_MAX: u64 = 16;
const HIGH_BYTES_MIN: u64 = 256 << 10;

/// The streams of one peer share so many times the high mark of one.
const FULL_STREAMS_MAX: u64 = 16;

/// A buffer that was received.
#[derive(Debug)]
pub struct Buffer {
    frame: Frame,
    schema: SchemaRef,
}

impl Buffer {
    /// Its place in the stream: 1, 2, 3, ...
    pub fn number(&self) -> u64 {
        self.frame.number
    }

    /// What tells it from another one with its number: that of the sender is [`crate::Packed::checksum`].
    pub fn checksum(&self) -> u64 {
        xxh3_64(&self.frame.payload)
    }

    /// Reads its elements.
    ///
    /// # Errors
    /// It is not what it says.
    pub fn elements(self) -> Result<Decoder, WireError> {
        let Frame { codec, payload, raw_bytes, .. } = self.frame;
        Ok(Decoder::new(decompress(codec, payload, raw_bytes)?, self.schema))
    }
}

pub(crate) struct Inbound {
    /// The process that sends it, and what it calls it.
    pub(crate) incarnation: (u64, u64),
    pub(crate) name: String,
    pub(crate) schema: SchemaRef,
    /// The sender's number of it on this connection; `None` before it goes on there.
    pub(crate) id: Option<StreamId>,
    /// Whether it does not go on.
    pub(crate) is_closed: bool,
    /// How many times the sender was told on this connection that it is taken, and has not heard it. Buffers that come
    /// meanwhile were sent before, and come again if they are needed.
    pub(crate) unheard: u32,
    /// What it keeps to if somebody takes it; otherwise why nobody does, if the sender was told.
    pub(crate) taker: Result<ReceiveOptions, Option<String>>,
    /// Buffers that wait, as they came: what was compressed takes no more memory than that.
    waiting: VecDeque<Frame>,
    waiting_bytes: u64,
    /// The number of the next buffer; `None` if it begins with any.
    next: Option<u64>,
    /// The number of the buffer that was handed out and is not taken yet.
    handed: Option<u64>,
    /// The number after the last buffer that was taken, and what the sender knows of that; 0 if none was.
    untaken: u64,
    told: u64,
    /// The last buffer that is durable here, and what the sender knows of that on this connection.
    pub(crate) durable: u64,
    told_durable: u64,
    /// Bytes that came on this connection, and that may come.
    came_bytes: u64,
    granted_bytes: u64,
    /// The bytes of the largest buffer.
    largest_bytes: u64,
}

impl Inbound {
    pub(crate) fn new(incarnation: (u64, u64), name: String, schema: SchemaRef) -> Self {
        Self {
            incarnation,
            name,
            schema,
            id: None,
            is_closed: false,
            unheard: 0,
            taker: Err(None),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            next: None,
            handed: None,
            untaken: 0,
            told: 0,
            durable: 0,
            told_durable: 0,
            came_bytes: 0,
            granted_bytes: 0,
            largest_bytes: 0,
        }
    }

    /// The number of the buffer that comes next; 0 if that may be any.
    pub(crate) fn next(&self) -> u64 {
        self.next.unwrap_or(0)
    }

    /// Bytes that wait to be taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Whether a buffer was handed out and is not taken yet.
    pub(crate) fn is_handed(&self) -> bool {
        self.handed.is_some()
    }

    /// Whether nothing of it will be needed any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed && self.waiting.is_empty() && self.handed.is_none()
    }

    /// Begins or goes on, on this connection.
    pub(crate) fn open(&mut self, id: StreamId) {
        (self.id, self.came_bytes, self.granted_bytes) = (Some(id), 0, 0);
        (self.is_closed, self.told_durable) = (false, 0);
    }

    /// Goes on with this buffer, or with any: what came is forgotten.
    pub(crate) fn go_on_at(&mut self, next: Option<u64>) {
        self.waiting.clear();
        (self.waiting_bytes, self.handed, self.next) = (0, None, next);
        (self.untaken, self.told) = (0, 0);
    }

    /// The last buffer that is durable, if the sender has to be told.
    pub(crate) fn tell_durable(&mut self) -> Option<u64> {
        let is_news = self.id.is_some() && self.durable > self.told_durable;
        is_news.then(|| {
            self.told_durable = self.durable;
            self.durable
        })
    }

    /// Takes in a buffer.
    pub(crate) fn receive(&mut self, frame: Frame) -> Result<(), WireError> {
        if self.unheard > 0 {
            return Ok(());
        }
        if self.came_bytes >= self.granted_bytes {
            return Err(WireError::Broken("more of a stream than it may"));
        }
        if self.next.is_some_and(|next| next != frame.number) {
            return Err(WireError::Broken("the buffers of a stream in another order"));
        }
        self.next = Some(frame.number.checked_add(1).ok_or(WireError::Broken("a number that is too large"))?);
        self.came_bytes += frame.bytes();
        self.largest_bytes = self.largest_bytes.max(frame.bytes());
        self.waiting_bytes += frame.bytes();
        self.waiting.push_back(frame);
        Ok(())
    }

    /// The next buffer. The one before counts as taken.
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        if let Some(number) = self.handed.take() {
            self.untaken = number + 1;
        }
        let frame = self.waiting.pop_front()?;
        self.waiting_bytes -= frame.bytes();
        self.handed = Some(frame.number);
        Some(Buffer { frame, schema: self.schema.clone() })
    }

    /// Up to which buffer all was taken, and how many bytes the other side may send on this connection, if it has to be
    /// told. So many streams are open.
    pub(crate) fn grant(&mut self, streams: usize) -> Option<(u64, u64)> {
        let (Some(_), Ok(ReceiveOptions { high_bytes, low_bytes })) = (self.id, &self.taker) else { return None };
        // Who sends small buffers wants little delay, and what waits is delay.
        let high_bytes = (BUFFERS_MAX * self.largest_bytes).max(HIGH_BYTES_MIN).min(*high_bytes);
        let share = |bytes: u64| bytes * FULL_STREAMS_MAX / FULL_STREAMS_MAX.max(streams as u64);
        let (high_bytes, low_bytes) = (share(high_bytes), share((high_bytes / 2).min(*low_bytes)));
        let mut granted = self.granted_bytes;
        if self.waiting_bytes <= low_bytes {
            granted = granted.max(self.came_bytes + high_bytes.saturating_sub(self.waiting_bytes).max(1));
        }
        // Not for each buffer of many.
        let is_more = granted >= self.granted_bytes + (high_bytes.saturating_sub(low_bytes) / 2).max(1);
        let is_all_taken = self.untaken != self.told && self.waiting.is_empty();
        (is_more || is_all_taken).then(|| {
            (self.granted_bytes, self.told) = (granted, self.untaken);
            (self.untaken, granted)
        })
    }
}
