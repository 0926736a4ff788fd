//! Columns of generated text: adjacent bytes, written eight letters at a time.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};

use super::random::{Draws, Words};

/// The texts of one column of a batch.
#[derive(Debug, Default)]
pub(super) struct TextColumn {
    bytes: Vec<u8>,
    ends: Vec<i32>,
}

impl TextColumn {
    /// Makes room for this number of texts of about this length.
    pub(super) fn with_capacity(rows: usize, bytes_per_row: usize) -> Self {
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Self { bytes: Vec::with_capacity(rows * bytes_per_row), ends }
    }

    /// Appends to the current text.
    #[inline(always)]
    pub(super) fn push(&mut self, part: &str) {
        self.bytes.extend_from_slice(part.as_bytes());
    }

    /// Appends small letters.
    #[inline(always)]
    pub(super) fn push_letters(&mut self, words: &mut Words, mut length: usize) {
        while length >= 8 {
            self.bytes.extend_from_slice(&letters(words.bits()));
            length -= 8;
        }
        if length > 0 {
            self.bytes.extend_from_slice(&letters(words.bits())[..length]);
        }
    }

    /// Appends small letters, with a space for every thirteenth on average, but neither at the beginning nor at the
    /// end.
    pub(super) fn push_prose(&mut self, words: &mut Words, length: usize) {
        let start = self.bytes.len();
        self.push_letters(words, length);
        let text = &mut self.bytes[start..];
        for inner in text.iter_mut().take(length.saturating_sub(1)).skip(1) {
            if Draws::of_word(words).below(13) == 0 {
                *inner = b' ';
            }
        }
    }

    /// Appends a whole number, with leading zeros up to `width` digits.
    #[inline]
    pub(super) fn push_number(&mut self, mut number: u64, width: usize) {
        let mut digits = [b'0'; 20];
        let mut start = digits.len();
        while number > 0 || digits.len() - start < width.max(1) {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        self.bytes.extend_from_slice(&digits[start..]);
    }

    /// The length of the current text, in bytes.
    pub(super) fn length(&self) -> usize {
        self.bytes.len() - self.ends.last().map_or(0, |&end| end as usize)
    }

    /// Cuts the current text.
    pub(super) fn truncate(&mut self, length: usize) {
        let start = self.bytes.len() - self.length();
        self.bytes.truncate(start + length);
    }

    /// Ends the text of a row.
    #[inline(always)]
    pub(super) fn end(&mut self) {
        // Batches are far smaller than 2 GiB.
        self.ends.push(self.bytes.len() as i32);
    }

    /// Returns the column.
    pub(super) fn finish(self) -> ArrayRef {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.ends));
        Arc::new(StringArray::new(offsets, Buffer::from_vec(self.bytes), None))
    }
}

/// Eight small letters from 64 random bits: each byte times 26, divided by 256. Some letters get ten of the 256 bytes
/// and the others nine.
#[inline(always)]
fn letters(bits: u64) -> [u8; 8] {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    let even = (((bits & EVEN) * 26) >> 8) & EVEN;
    let odd = (((bits >> 8) & EVEN) * 26) & !EVEN;
    ((even | odd) + 0x6161_6161_6161_6161).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;

    use super::super::random::Seed;
    use super::*;

    #[test]
    fn letters_are_letters_and_nearly_uniform() {
        let mut column = TextColumn::with_capacity(1, 260_000);
        column.push_letters(&mut Seed::new(1).draws(0, 0).words(), 260_001);
        column.end();
        let array = column.finish();
        let text = array.as_string::<i32>().value(0);
        assert_eq!(text.len(), 260_001);
        let mut counts = [0u32; 26];
        text.bytes().for_each(|letter| counts[usize::from(letter - b'a')] += 1);
        assert!(counts.iter().all(|count| (8_700..10_700).contains(count)), "{counts:?}");
    }

    #[test]
    fn prose_has_spaces_inside_only() {
        let mut column = TextColumn::with_capacity(1, 100);
        let mut words = Seed::new(1).draws(0, 0).words();
        for length in 0..200 {
            column.push_prose(&mut words, length);
            column.end();
        }
        let array = column.finish();
        let texts = array.as_string::<i32>();
        assert!(texts.iter().flatten().enumerate().all(|(length, text)| text.len() == length && text.trim() == text));
        let spaces = texts.value_data().iter().filter(|&&byte| byte == b' ').count();
        assert!((1_350..1_700).contains(&spaces), "{spaces} of 19,900 characters");
    }

    #[test]
    fn numbers_are_padded() {
        let mut column = TextColumn::with_capacity(4, 8);
        for (number, width) in [(0, 0), (7, 4), (12_345, 4), (u64::MAX, 1)] {
            column.push_number(number, width);
            column.end();
        }
        column.push("abcdef");
        column.truncate(2);
        column.end();
        let array = column.finish();
        let texts: Vec<_> = array.as_string::<i32>().iter().flatten().collect();
        assert_eq!(texts, ["0", "0007", "12345", "18446744073709551615", "ab"]);
    }
}
