//! Cuts a stream of bytes into batches of lines, with bounded memory however the bytes arrive.

use crate::service::SUBMIT_BATCH_MAX;

/// The longest line that is read; the rest of a longer one is thrown away, and the line refused.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// A batch is full at so many bytes, even if it has few lines.
const BATCH_BYTES_MAX: usize = 2 << 20;

/// Whole lines of a stream, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LineBatch {
    /// Number of the first line, from 1.
    pub(super) first_line: u64,
    /// The lines, each ended by a line feed, the last one of a stream perhaps not.
    bytes: Vec<u8>,
}

impl LineBatch {
    /// The lines that are not blank, with their numbers. A line longer than [`LINE_BYTES_MAX`] was cut just above it.
    pub(super) fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let numbered = (self.first_line..).zip(self.bytes.split(|&byte| byte == b'\n'));
        numbered.map(|(number, line)| (number, line.trim_ascii())).filter(|(_, line)| !line.is_empty())
    }
}

/// Collects bytes until there is a batch.
#[derive(Debug)]
pub(super) struct LineCutter {
    bytes: Vec<u8>,
    /// End of the last whole line in `bytes`.
    whole: usize,
    /// Whole lines in `bytes`.
    lines: usize,
    /// Whether the rest of an overlong line is being thrown away.
    discarding: bool,
    first_line: u64,
}

impl LineCutter {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), whole: 0, lines: 0, discarding: false, first_line: 1 }
    }

    /// Takes bytes until there is a full batch and returns how many it took.
    pub(super) fn push(&mut self, input: &[u8]) -> usize {
        let mut taken = 0;
        while taken < input.len() && !self.is_full() {
            let rest = &input[taken..];
            let end = rest.iter().position(|&byte| byte == b'\n');
            let piece = &rest[..end.unwrap_or(rest.len())];
            let room = (LINE_BYTES_MAX + 1).saturating_sub(self.bytes.len() - self.whole);
            if !self.discarding {
                self.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
                self.discarding = piece.len() > room;
            }
            taken += piece.len();
            if end.is_some() {
                taken += 1;
                self.bytes.push(b'\n');
                self.whole = self.bytes.len();
                self.lines += 1;
                self.discarding = false;
            }
        }
        taken
    }

    /// Whether the batch must be taken before more bytes are pushed.
    pub(super) fn is_full(&self) -> bool {
        self.lines == SUBMIT_BATCH_MAX || self.whole >= BATCH_BYTES_MAX
    }

    /// Whether there is a whole line.
    pub(super) fn has_lines(&self) -> bool {
        self.lines > 0
    }

    /// The number of the first line that was not taken.
    pub(super) fn next_line(&self) -> u64 {
        self.first_line
    }

    /// Takes the whole lines; a line that has begun stays.
    pub(super) fn take(&mut self) -> LineBatch {
        let begun = self.bytes.split_off(self.whole);
        let batch = LineBatch { first_line: self.first_line, bytes: std::mem::replace(&mut self.bytes, begun) };
        self.first_line += self.lines as u64;
        self.whole = 0;
        self.lines = 0;
        batch
    }

    /// Takes everything at the end of the stream, where the last line needs no line feed.
    pub(super) fn finish(mut self) -> LineBatch {
        self.whole = self.bytes.len();
        self.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Cuts `chunks` as the bulk endpoint does and returns the lines with their numbers.
    fn cut(chunks: &[&[u8]]) -> Vec<(u64, Vec<u8>)> {
        let mut cutter = LineCutter::new();
        let mut lines = Vec::new();
        let mut keep = |batch: LineBatch| {
            let batch: Vec<_> = batch.lines().map(|(number, line)| (number, line.to_vec())).collect();
            assert!(batch.len() <= SUBMIT_BATCH_MAX);
            lines.extend(batch);
        };
        for chunk in chunks {
            let mut rest = *chunk;
            while !rest.is_empty() {
                let taken = cutter.push(rest);
                assert!(taken > 0, "no progress");
                rest = &rest[taken..];
                if cutter.is_full() {
                    keep(cutter.take());
                }
            }
        }
        keep(cutter.finish());
        lines
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_the_bytes_arrive(
            text in "[ab\r\n]{0,60}",
            sizes in proptest::collection::vec(1_usize..9, 1..20),
        ) {
            let expected: Vec<(u64, Vec<u8>)> = (1..)
                .zip(text.split('\n'))
                .map(|(number, line)| (number, line.trim_ascii().as_bytes().to_vec()))
                .filter(|(_, line)| !line.is_empty())
                .collect();
            let mut rest = text.as_bytes();
            let mut chunks = Vec::new();
            for size in sizes.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, other) = rest.split_at(rest.len().min(*size));
                chunks.push(chunk);
                rest = other;
            }
            prop_assert_eq!(cut(&chunks), expected);
        }
    }

    #[test]
    fn batches_are_bounded_in_lines() {
        let text = "x\n".repeat(3 * SUBMIT_BATCH_MAX + 5);
        let mut cutter = LineCutter::new();
        let taken = cutter.push(text.as_bytes());
        assert_eq!(taken, 2 * SUBMIT_BATCH_MAX);
        assert!(cutter.is_full());
        assert_eq!(cut(&[text.as_bytes()]).len(), 3 * SUBMIT_BATCH_MAX + 5);
    }

    #[test]
    fn an_overlong_line_is_cut_and_the_next_one_is_whole() {
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        let lines = cut(&[b"a\n", &long, &long, b"\nb\n"]);
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[1].0, lines[1].1.len()), (2, LINE_BYTES_MAX + 1));
        assert_eq!(lines[2], (3, b"b".to_vec()));
        // A line of the greatest length is not cut.
        let lines = cut(&[&long[..LINE_BYTES_MAX], b"\n"]);
        assert_eq!(lines[0].1.len(), LINE_BYTES_MAX);
    }
}
