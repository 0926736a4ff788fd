//! The frame around every encoder: rows of a batch in, one payload for each row out, in one arena.

use std::fmt;
use std::io::Write;

use rivulet_dataflow::Batch;

/// Encoded rows end to end. Keeps its memory when cleared, so that encoding allocates nothing once it has grown.
#[derive(Debug, Default)]
pub struct EncodedRows {
    bytes: Vec<u8>,
    /// Where each row ends in `bytes`.
    ends: Vec<usize>,
}

impl EncodedRows {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The number of bytes of all rows.
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The payload of row `row`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.bytes[start..self.ends[row]]
    }

    /// The payloads, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.rows()).map(|row| self.row(row))
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Gives back memory above these sizes, so that one burst does not hold it for ever.
    pub fn shrink_to(&mut self, rows: usize, payload_bytes: usize) {
        self.bytes.shrink_to(payload_bytes);
        self.ends.shrink_to(rows);
    }

    /// Memory held, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// Where to write the row that [`EncodedRows::end_row`] will end.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Ends the row that was written.
    #[inline]
    pub(crate) fn end_row(&mut self) {
        self.ends.push(self.bytes.len());
    }
}

/// Turns rows into payloads.
pub trait Encoder: Send {
    /// Appends one payload for each row of `batch`, in order. The batch has the schema the encoder was made for. Never
    /// fails: a float that is not finite is written by its name (`NaN`) where the format has no number for it, and left
    /// out in SenML, which has no place for it.
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows);
}

/// Appends what `text` displays.
pub(crate) fn append_display(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_bounds() {
        let mut rows = EncodedRows::default();
        for text in ["first", "", "third"] {
            rows.bytes_mut().extend_from_slice(text.as_bytes());
            rows.end_row();
        }
        assert_eq!(rows.iter().collect::<Vec<_>>(), [&b"first"[..], b"", b"third"]);
        assert_eq!((rows.rows(), rows.payload_bytes(), rows.is_empty()), (3, 10, false));
        assert!(rows.memory_bytes() >= 10);
        rows.clear();
        assert!(rows.is_empty());
        rows.shrink_to(0, 0);
        assert_eq!(rows.memory_bytes(), 0);
    }
}
