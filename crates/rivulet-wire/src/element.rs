//! The form of an element between processes.
//!
//! A batch is Arrow's message of a record batch without its schema, which both sides know, after the side columns as
//! plain buffers. All parts begin at multiples of 8 bytes, so that the receiver uses them where they lie.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::{BooleanBuffer, Buffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, SchemaRef, ToByteSlice};
use arrow::ipc::reader::RecordBatchDecoder;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use rivulet_dataflow::{Batch, Control, Element, Slot, SlotClock};

use crate::WireError;

/// The first byte of an element.
mod tag {
    pub(super) const BATCH: u8 = 1;
    pub(super) const WATERMARK: u8 = 2;
    pub(super) const BARRIER: u8 = 3;
    pub(super) const CLOCKS: u8 = 4;
    pub(super) const ADD_SLOTS: u8 = 5;
    pub(super) const REMOVE_SLOTS: u8 = 6;
    pub(super) const END: u8 = 7;
}

/// Marks of the second byte of a batch.
const HAS_RETRACTS: u8 = 1;
const HAS_POSITIONS: u8 = 2;

/// All parts begin at multiples of this.
const ALIGNMENT: usize = 8;

/// Writes elements. It keeps what can be used again.
#[derive(Default)]
pub struct Encoder {
    generator: IpcDataGenerator,
    options: IpcWriteOptions,
    context: IpcWriteContext,
}

impl Encoder {
    /// Appends an element to `out`, whose length is a multiple of 8 before and after.
    ///
    /// # Errors
    /// A column of a type that no stream of elements has, as a dictionary.
    pub fn encode(&mut self, element: &Element, out: &mut Vec<u8>) -> Result<(), WireError> {
        debug_assert!(out.len().is_multiple_of(ALIGNMENT));
        match element {
            Element::Batch(batch) => return self.batch(batch, out),
            Element::Watermark(at_us) => head(out, tag::WATERMARK, 0, [0, 0], at_us.cast_unsigned()),
            Element::Barrier(number) => head(out, tag::BARRIER, 0, [0, 0], *number),
            Element::Clocks(clocks) => {
                head(out, tag::CLOCKS, 0, [0, 0], clocks.len() as u64);
                let words = |clock: &SlotClock| {
                    [i64::from(clock.slot), clock.newest_us, clock.arrival_us, clock.watermark_us].map(i64::to_le_bytes)
                };
                out.extend(clocks.iter().flat_map(words).flatten());
            }
            Element::Control(control) => {
                let (tag, slots) = match control {
                    Control::AddSlots(slots) => (tag::ADD_SLOTS, slots),
                    Control::RemoveSlots(slots) => (tag::REMOVE_SLOTS, slots),
                };
                head(out, tag, 0, [0, 0], slots.len() as u64);
                plain(out, slots);
            }
            Element::End => head(out, tag::END, 0, [0, 0], 0),
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Batch, out: &mut Vec<u8>) -> Result<(), WireError> {
        let mut dictionaries = DictionaryTracker::new(true);
        let encoded = self.generator.encode(&batch.columns, &mut dictionaries, &self.options, &mut self.context);
        let (of_dictionaries, columns) = encoded.map_err(|error| WireError::Columns(error.to_string()))?;
        if !of_dictionaries.is_empty() {
            return Err(WireError::Columns("a column is a dictionary".into()));
        }
        let marks =
            (HAS_RETRACTS * u8::from(batch.retracts.is_some())) | (HAS_POSITIONS * u8::from(batch.positions.is_some()));
        let lengths = [columns.ipc_message.len() as u32, columns.arrow_data.len() as u32];
        head(out, tag::BATCH, marks, lengths, batch.rows() as u64);
        plain(out, &batch.slots);
        plain(out, &batch.event_time_us);
        plain(out, &batch.arrival_us);
        if let Some(retracts) = &batch.retracts {
            plain(out, retracts.sliced().as_slice());
        }
        if let Some(positions) = &batch.positions {
            plain(out, positions);
        }
        plain(out, &columns.ipc_message);
        plain(out, &columns.arrow_data);
        Ok(())
    }
}

/// The beginning of an element: its tag, its marks, the lengths of the two parts of Arrow's message, and a number.
fn head(out: &mut Vec<u8>, tag: u8, marks: u8, lengths: [u32; 2], number: u64) {
    out.extend_from_slice(&[tag, marks, 0, 0, 0, 0, 0, 0]);
    lengths.iter().for_each(|length| out.extend_from_slice(&length.to_le_bytes()));
    out.extend_from_slice(&number.to_le_bytes());
}

/// Values as they lie in memory, up to a multiple of 8 bytes.
fn plain<T: ArrowNativeType>(out: &mut Vec<u8>, values: &[T]) {
    out.extend_from_slice(values.to_byte_slice());
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

/// Reads the elements of a stream whose rows have this schema, one after the other. Batches share the memory.
pub struct Decoder {
    bytes: Buffer,
    schema: SchemaRef,
    at: usize,
}

impl Decoder {
    /// Begins to read what [`Encoder::encode`] has written. `bytes` should begin at a multiple of 8.
    pub fn new(bytes: Buffer, schema: SchemaRef) -> Self {
        Self { bytes, schema, at: 0 }
    }

    /// The next element; `None` after the last one.
    ///
    /// # Errors
    /// The bytes are no elements, or of rows with other columns.
    pub fn next_element(&mut self) -> Result<Option<Element>, WireError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let head = self.take(24)?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let number = u64::from_le_bytes(head[16..].try_into().expect("eight bytes"));
        Ok(Some(match head[0] {
            tag::BATCH => Element::Batch(self.batch(head[1], [word(8), word(12)], number)?),
            tag::WATERMARK => Element::Watermark(number.cast_signed()),
            tag::BARRIER => Element::Barrier(number),
            tag::CLOCKS => Element::Clocks(self.clocks(number)?),
            tag::ADD_SLOTS => Element::Control(Control::AddSlots(self.column::<Slot>(number)?.to_vec())),
            tag::REMOVE_SLOTS => Element::Control(Control::RemoveSlots(self.column::<Slot>(number)?.to_vec())),
            tag::END => Element::End,
            _ => return Err(WireError::Broken("an element of no known kind")),
        }))
    }

    fn batch(&mut self, marks: u8, [message, data]: [u32; 2], rows: u64) -> Result<Batch, WireError> {
        let slots = self.column::<Slot>(rows)?;
        let event_time_us = self.column::<i64>(rows)?;
        let arrival_us = self.column::<i64>(rows)?;
        let retracts = match marks & HAS_RETRACTS {
            0 => None,
            _ => Some(BooleanBuffer::new(self.take(rows.div_ceil(8))?, 0, rows as usize)),
        };
        let positions = match marks & HAS_POSITIONS {
            0 => None,
            _ => Some(self.column::<u64>(rows)?),
        };
        let (message, data) = (self.take(u64::from(message))?, self.take(u64::from(data))?);
        let columns = columns(&message, &data, &self.schema)?;
        if columns.num_rows() as u64 != rows {
            return Err(WireError::Broken("a batch with another number of rows than it says"));
        }
        let batch = Batch::new(slots, event_time_us, arrival_us, columns);
        Ok(batch.with_retracts(retracts).with_positions(positions))
    }

    fn clocks(&mut self, clocks: u64) -> Result<Arc<[SlotClock]>, WireError> {
        let words = self.column::<i64>(clocks.saturating_mul(4))?;
        let clock = |words: &[i64]| {
            let slot = Slot::try_from(words[0]).map_err(|_| WireError::Broken("a clock of no slot"))?;
            Ok(SlotClock { slot, newest_us: words[1], arrival_us: words[2], watermark_us: words[3] })
        };
        words.chunks_exact(4).map(clock).collect()
    }

    /// So many values.
    fn column<T: ArrowNativeType>(&mut self, values: u64) -> Result<ScalarBuffer<T>, WireError> {
        let bytes = self.take(values.saturating_mul(size_of::<T>() as u64))?;
        // Memory that does not begin at a multiple of 8 is copied.
        let bytes = match bytes.as_ptr().align_offset(align_of::<T>()) {
            0 => bytes,
            _ => Buffer::from(bytes.as_slice()),
        };
        Ok(ScalarBuffer::new(bytes, 0, values as usize))
    }

    /// So many bytes, and what fills them up to a multiple of 8.
    fn take(&mut self, length: u64) -> Result<Buffer, WireError> {
        let left = self.bytes.len() - self.at;
        let padded = length.checked_next_multiple_of(ALIGNMENT as u64).filter(|padded| *padded <= left as u64);
        let padded = padded.ok_or(WireError::Broken("an element that is cut"))?;
        let taken = self.bytes.slice_with_length(self.at, length as usize);
        self.at += padded as usize;
        Ok(taken)
    }
}

fn columns(message: &[u8], data: &Buffer, schema: &SchemaRef) -> Result<RecordBatch, WireError> {
    let no_columns = WireError::Broken("a batch whose columns cannot be read");
    let message = root_as_message(message).map_err(|_| no_columns.clone())?;
    let batch = message.header_as_record_batch().ok_or_else(|| no_columns.clone())?;
    // Frames are compressed as a whole. A buffer that says so of itself could say that it becomes anything.
    let is_within = |buffer: &arrow::ipc::Buffer| {
        let end = buffer.offset().checked_add(buffer.length());
        buffer.offset() >= 0 && buffer.length() >= 0 && end.is_some_and(|end| end as u64 <= data.len() as u64)
    };
    let is_plain = batch.compression().is_none() && batch.variadicBufferCounts().is_none_or(|counts| counts.is_empty());
    if !is_plain || !batch.buffers().is_some_and(|buffers| buffers.iter().all(is_within)) {
        return Err(no_columns);
    }
    // Arrow panics at lengths that do not fit each other.
    let read = catch_unwind(AssertUnwindSafe(|| {
        let none = HashMap::new();
        let version = message.version();
        RecordBatchDecoder::try_new(data, batch, schema.clone(), &none, &version)
            .and_then(RecordBatchDecoder::read_record_batch)
    }));
    read.map_err(|_| no_columns)?.map_err(|error| WireError::Columns(error.to_string()))
}
