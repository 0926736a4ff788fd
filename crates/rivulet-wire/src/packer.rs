//! What gathers of a stream until it is a buffer, and a buffer as it is sent and stored.

use arrow::array::{Array, ArrayRef};
use rivulet_dataflow::Element;
use xxhash_rust::xxh3::xxh3_64;

use crate::WireError;
use crate::compression::{Codec, Compression, Compressor};
use crate::element::Encoder;

/// How a stream is sent.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions {
    /// A buffer is sent when it has so many bytes. A row that is larger is sent by itself.
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

/// A buffer.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'b> {
    pub(crate) codec: Codec,
    /// The number of bytes before it was compressed.
    pub(crate) raw_bytes: usize,
    /// The rows among its elements.
    pub rows: u64,
    pub(crate) payload: &'b [u8],
}

/// The bytes of a row in the side columns that each batch has.
const SIDE_BYTES: usize = 20;

/// Codec, length before it was compressed, and rows.
const HEAD_BYTES: usize = 13;

impl<'b> Packed<'b> {
    /// A buffer without elements.
    pub const EMPTY: Packed<'static> = Packed { codec: Codec::Plain, raw_bytes: 0, rows: 0, payload: &[] };

    /// What tells it from another one with its number.
    pub fn checksum(&self) -> u64 {
        xxh3_64(self.payload)
    }

    /// Appends it as [`Packed::read`] reads it.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(self.codec as u8);
        out.extend_from_slice(&(self.raw_bytes as u32).to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(self.payload);
    }

    /// Reads what [`Packed::write`] has written.
    ///
    /// # Errors
    /// It is something else.
    pub fn read(bytes: &'b [u8]) -> Result<Self, WireError> {
        let (head, payload) =
            bytes.split_first_chunk::<HEAD_BYTES>().ok_or(WireError::Broken("a buffer that is cut"))?;
        let [codec, raw @ ..] = head;
        let (raw, rows) = raw.split_at(4);
        Ok(Self {
            codec: Codec::of(*codec)?,
            raw_bytes: u32::from_le_bytes(raw.try_into().expect("four bytes")) as usize,
            rows: u64::from_le_bytes(rows.try_into().expect("eight bytes")),
            payload,
        })
    }
}

/// Gathers the elements of a stream, and makes buffers of them. Each method that may complete buffers hands them to
/// `take`.
pub struct Packer {
    options: SendOptions,
    encoder: Encoder,
    compressor: Compressor,
    /// Elements that gather, rows among them, and since when.
    gathered: Vec<u8>,
    rows: u64,
    since_us: i64,
}

impl Packer {
    /// Gathers as these options say.
    pub fn new(options: SendOptions) -> Self {
        Self {
            options,
            encoder: Encoder::default(),
            compressor: Compressor::new(options.compression),
            gathered: Vec::new(),
            rows: 0,
            since_us: 0,
        }
    }

    /// Bytes that gather.
    pub fn bytes(&self) -> usize {
        self.gathered.len()
    }

    /// Adds an element. A batch of more than a buffer is cut.
    ///
    /// # Errors
    /// Columns of a type that no stream has.
    pub fn push(&mut self, element: &Element, now_us: i64, take: &mut dyn FnMut(Packed<'_>)) -> Result<(), WireError> {
        if let Element::Batch(batch) = element {
            // Columns may be parts of larger memory, which does not count.
            let bytes = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or_default();
            let bytes = batch.columns.columns().iter().map(bytes).sum::<usize>() + batch.rows() * SIDE_BYTES;
            let pieces = bytes.div_ceil(self.options.buffer_bytes).min(batch.rows());
            if pieces > 1 {
                let rows = batch.rows().div_ceil(pieces);
                return (0..batch.rows()).step_by(rows).try_for_each(|from| {
                    let piece = batch.slice(from, rows.min(batch.rows() - from));
                    self.push_whole(&Element::Batch(piece), now_us, take)
                });
            }
        }
        self.push_whole(element, now_us, take)
    }

    fn push_whole(
        &mut self,
        element: &Element,
        now_us: i64,
        take: &mut dyn FnMut(Packed<'_>),
    ) -> Result<(), WireError> {
        if self.gathered.is_empty() {
            self.since_us = now_us;
        }
        let before = self.gathered.len();
        if let Err(error) = self.encoder.encode(element, &mut self.gathered) {
            self.gathered.truncate(before);
            return Err(error);
        }
        if let Element::Batch(batch) = element {
            self.rows += batch.rows() as u64;
        }
        // Others wait for these.
        let is_awaited = matches!(element, Element::Barrier(_) | Element::End);
        if is_awaited || self.gathered.len() >= self.options.buffer_bytes {
            self.seal(take);
        }
        Ok(())
    }

    /// Makes a buffer of what has gathered.
    pub fn seal(&mut self, take: &mut dyn FnMut(Packed<'_>)) {
        if self.gathered.is_empty() {
            return;
        }
        let (codec, payload) = self.compressor.compress(&self.gathered);
        take(Packed { codec, raw_bytes: self.gathered.len(), rows: std::mem::take(&mut self.rows), payload });
        self.gathered.clear();
    }

    /// Makes a buffer of what has gathered for long enough.
    pub fn tick(&mut self, now_us: i64, take: &mut dyn FnMut(Packed<'_>)) {
        if self.due_us().is_some_and(|due_us| due_us <= now_us) {
            self.seal(take);
        }
    }

    /// When to call [`Packer::tick`]; `None` if nothing gathers.
    pub fn due_us(&self) -> Option<i64> {
        (!self.gathered.is_empty()).then(|| self.since_us.saturating_add(self.options.flush_us))
    }
}
