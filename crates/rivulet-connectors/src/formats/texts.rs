//! The texts of a column under construction.

use arrow::array::StringArray;
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use super::fault::{Fault, Problem};

/// Text values end to end, valid UTF-8, with the offset where each begins and the last one ends.
pub(crate) struct TextValues {
    offsets: Vec<i32>,
    bytes: Vec<u8>,
}

impl TextValues {
    pub(super) fn with_capacity(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, bytes: Vec::with_capacity(bytes) }
    }

    /// Appends a value, which must be valid UTF-8.
    #[inline]
    pub(crate) fn push(&mut self, text: &[u8]) -> Result<(), Problem> {
        let pushed = self.push_with(|bytes| {
            bytes.extend_from_slice(text);
            Ok(())
        });
        pushed.map_err(|_| Problem::TooMuchText)
    }

    /// Appends a value unless it is not UTF-8.
    #[inline]
    pub(crate) fn push_checked(&mut self, text: &[u8]) -> Result<(), Problem> {
        if std::str::from_utf8(text).is_err() {
            return Err(Problem::InvalidUtf8);
        }
        self.push(text)
    }

    /// Appends a value that `write` writes. When it returns `Ok`, the appended bytes must be valid UTF-8; after an
    /// error, [`Rows::truncate`] removes them.
    #[inline]
    pub(crate) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), Fault>) -> Result<(), Fault> {
        write(&mut self.bytes)?;
        let end = i32::try_from(self.bytes.len()).map_err(|_| Fault::new(Problem::TooMuchText, 0))?;
        self.offsets.push(end);
        Ok(())
    }

    /// Appends an empty value.
    #[inline]
    pub(super) fn push_empty(&mut self) {
        self.offsets.push(self.offsets[self.offsets.len() - 1]);
    }

    /// The bytes of all values.
    pub(super) fn text_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        self.bytes.truncate(self.offsets[rows] as usize);
    }

    /// The values as a column; none is left here.
    pub(super) fn finish(&mut self, nulls: Option<NullBuffer>) -> StringArray {
        let Self { offsets, bytes } = std::mem::replace(self, Self::with_capacity(0, 0));
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        // Checks once more that all of it is UTF-8 and every offset a boundary; that is one fast pass.
        StringArray::new(offsets, Buffer::from_vec(bytes), nulls)
    }
}
