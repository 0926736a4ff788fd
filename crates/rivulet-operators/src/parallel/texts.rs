//! The texts of kept rows.
//!
//! The texts of a row are stored one after the other, each after its length, all of them after their length together.
//! So a row needs one position however many texts it has, and reading it touches memory once. They are in pieces of
//! memory that never move while they are written: a store that grows copies nothing. A piece is freed when all its rows
//! are gone. If rows expire in the order in which they came, that happens piece by piece. If removed rows leave holes
//! instead, everything is compacted once half of it is holes.

use arrow::array::{Array, StringArray};

use crate::paged::Paged;

/// The size of a piece, unless a row needs more, is an eighth of all bytes, within these bounds.
const PIECE_BYTES_MIN: usize = 1 << 12;
const PIECE_BYTES_MAX: usize = 1 << 20;
/// Up to this many bytes, holes are not compacted.
const HOLES_BYTES_MAX: usize = 1 << 16;

/// Texts by row.
pub(crate) struct Texts {
    /// By row: the number of its piece, and its position there, in 32 bits each.
    starts: Paged<u64>,
    pieces: Vec<Piece>,
    /// The piece that is being written.
    open: usize,
    /// Pieces without memory.
    free: Vec<usize>,
    /// The number of bytes written, and how many of them are no longer needed.
    bytes: usize,
    holes: usize,
}

#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    /// The number of bytes that belong to existing rows.
    live: usize,
}

impl Texts {
    /// Makes a store without rows.
    pub(crate) fn new() -> Self {
        let pieces = vec![Piece::default()];
        Self { starts: Paged::new(), pieces, open: 0, free: Vec::new(), bytes: 0, holes: 0 }
    }

    /// Writes the texts of `rows` to the rows `numbers` of the store, which has `total` numbers in all.
    pub(crate) fn put(&mut self, columns: &[StringArray], rows: &[u32], numbers: &[u32], total: usize) {
        self.starts.grow(total, 0);
        for (&row, &number) in rows.iter().zip(numbers) {
            let row = row as usize;
            let text = |column: &StringArray| if column.is_null(row) { 0 } else { column.value_length(row) as usize };
            let length: usize = columns.iter().map(text).map(|length| length_bytes(length) + length).sum();
            let start = self.place(length_bytes(length) + length);
            self.starts[number as usize] = start;
            let piece = &mut self.pieces[(start >> 32) as usize].bytes;
            push_length(piece, length);
            for column in columns {
                let text = if column.is_null(row) { "" } else { column.value(row) };
                push_length(piece, text.len());
                piece.extend_from_slice(text.as_bytes());
            }
        }
    }

    /// Returns the position for `length` bytes, which must be written next.
    fn place(&mut self, length: usize) -> u64 {
        let open = &self.pieces[self.open].bytes;
        if open.capacity() - open.len() < length {
            // All rows of the open piece may be gone: then it is freed.
            self.give_back(self.open);
            self.open = self.free.pop().unwrap_or_else(|| {
                self.pieces.push(Piece::default());
                self.pieces.len() - 1
            });
            let usual = (self.bytes / 8).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
            self.pieces[self.open].bytes = Vec::with_capacity(length.max(usual));
        }
        let piece = &mut self.pieces[self.open];
        piece.live += length;
        self.bytes += length;
        assert!(piece.bytes.len() < 1 << 32 && self.open < 1 << 32, "the texts of a row have less than 4 GiB");
        (self.open as u64) << 32 | piece.bytes.len() as u64
    }

    /// Frees the memory of a piece if it has no rows.
    fn give_back(&mut self, number: usize) {
        let piece = &mut self.pieces[number];
        if piece.live == 0 {
            let bytes = std::mem::take(&mut piece.bytes).len();
            self.bytes -= bytes;
            self.holes -= bytes;
            self.free.push(number);
        }
    }

    /// A text of a row.
    #[inline]
    pub(crate) fn get(&self, row: usize, column: usize) -> &[u8] {
        let mut rest = split(self.onwards(row)).0;
        for _ in 0..column {
            rest = split(rest).1;
        }
        split(rest).0
    }

    /// What is stored of a row, and the bytes after it.
    #[inline]
    fn onwards(&self, row: usize) -> &[u8] {
        let start = self.starts[row];
        &self.pieces[(start >> 32) as usize].bytes[start as u32 as usize..]
    }

    /// The number of bytes that are stored of a row.
    fn length(&self, row: usize) -> usize {
        let from = self.onwards(row);
        from.len() - split(from).1.len()
    }

    /// Forgets the texts of a row, which is no longer among the `live` ones.
    pub(crate) fn remove(&mut self, row: u32, live: &Paged<bool>) {
        let (length, piece) = (self.length(row as usize), (self.starts[row as usize] >> 32) as usize);
        self.pieces[piece].live -= length;
        self.holes += length;
        if piece != self.open {
            self.give_back(piece);
        }
        if self.holes > HOLES_BYTES_MAX && self.holes * 2 > self.bytes {
            self.close_holes(live);
        }
    }

    fn close_holes(&mut self, live: &Paged<bool>) {
        let old = std::mem::replace(self, Self::new());
        self.starts.grow(old.starts.len(), 0);
        for (row, _) in live.iter().enumerate().filter(|(_, is_live)| **is_live) {
            let texts = &old.onwards(row)[..old.length(row)];
            let start = self.place(texts.len());
            self.starts[row] = start;
            self.pieces[(start >> 32) as usize].bytes.extend_from_slice(texts);
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let pieces: usize = self.pieces.iter().map(|piece| piece.bytes.capacity()).sum();
        self.starts.memory_bytes() + pieces + self.pieces.capacity() * size_of::<Piece>()
    }
}

/// The number of bytes of an encoded length: seven bits each, the lowest first.
fn length_bytes(length: usize) -> usize {
    (usize::BITS - (length | 1).leading_zeros()).div_ceil(7) as usize
}

fn push_length(bytes: &mut Vec<u8>, mut length: usize) {
    while length > 127 {
        bytes.push(length as u8 | 128);
        length >>= 7;
    }
    bytes.push(length as u8);
}

/// The bytes that the length in front is that of, and those after them.
#[inline]
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (mut length, mut shift, mut at) = (0, 0, 0);
    loop {
        let byte = bytes[at];
        at += 1;
        length |= usize::from(byte & 127) << shift;
        if byte < 128 {
            return bytes[at..].split_at(length);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn columns(rows: &[(String, Option<String>)]) -> [StringArray; 2] {
        [rows.iter().map(|row| Some(row.0.as_str())).collect(), rows.iter().map(|row| row.1.as_deref()).collect()]
    }

    proptest! {
        /// Compares with a list of texts, with rows that are removed in any order.
        #[test]
        fn texts_come_back_as_they_were(
            steps in prop::collection::vec((0..400usize, prop::option::of(0..200usize), any::<prop::sample::Index>(), 0..3u8), 1..400),
        ) {
            let mut texts = Texts::new();
            let mut live: Paged<bool> = Paged::new();
            let mut known: Vec<(u32, String, Option<String>)> = Vec::new();
            let mut free: Vec<u32> = Vec::new();
            for (long, other, which, what) in steps {
                if what == 0 && !known.is_empty() {
                    let (number, ..) = known.swap_remove(which.index(known.len()));
                    live[number as usize] = false;
                    texts.remove(number, &live);
                    free.push(number);
                } else {
                    let row = ("long ".repeat(long), other.map(|length| "é".repeat(length)));
                    let number = free.pop().unwrap_or(live.len() as u32);
                    live.grow(number as usize + 1, false);
                    live[number as usize] = true;
                    texts.put(&columns(std::slice::from_ref(&row)), &[0], &[number], live.len());
                    known.push((number, row.0, row.1));
                }
                prop_assert!(texts.holes <= texts.bytes);
            }
            for (number, one, other) in &known {
                prop_assert_eq!(texts.get(*number as usize, 0), one.as_bytes());
                prop_assert_eq!(texts.get(*number as usize, 1), other.as_deref().unwrap_or("").as_bytes());
            }
        }
    }

    #[test]
    fn rows_that_go_in_their_order_give_their_memory_back() {
        let mut texts = Texts::new();
        let row = ("a text of some length ".repeat(20), None);
        let columns = columns(std::slice::from_ref(&row));
        let mut live = Paged::new();
        live.grow(20_000, false);
        for number in 0..20_000u32 {
            live[number as usize] = true;
            texts.put(&columns, &[0], &[number], number as usize + 1);
            if let Some(old) = number.checked_sub(5000) {
                live[old as usize] = false;
                texts.remove(old, &live);
            }
        }
        assert!(texts.memory_bytes() < 5000 * 445 + 3 * PIECE_BYTES_MAX, "{} bytes", texts.memory_bytes());
        assert_eq!(texts.get(19_999, 0), row.0.as_bytes());
        assert_eq!([0, 127, 128, 16_383, 16_384].map(length_bytes), [1, 1, 2, 2, 3]);
    }
}
