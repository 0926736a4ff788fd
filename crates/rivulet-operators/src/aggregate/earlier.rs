//! Words of states in the layout of earlier versions: averages of integers were sums of floating-point numbers, and are
//! now sums of integers. They are converted before they are read.

use super::fixed::{FixedKind, float, undone_sum};

/// The layout of earlier versions for the same aggregates, and how to convert it.
#[derive(Debug)]
pub(crate) struct Earlier {
    pub(super) fingerprint: String,
    /// The number of words of a pane in those versions.
    pub(crate) entry_words: usize,
    pub(super) dense_words: usize,
    /// The number of words before the states in an entry and in a group's words, the same in both layouts.
    pub(super) entry_header: usize,
    pub(super) dense_header: usize,
    pub(super) states: Vec<Move>,
}

/// A state of this layout, in order, and its source in the earlier layout; offsets count from the first state.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) from: usize,
    pub(super) words: usize,
    /// The earlier kind of the state, if it was different.
    pub(super) was: Option<FixedKind>,
}

impl Earlier {
    /// The name with the earlier fingerprint in place of the present one, `fingerprint`.
    pub(crate) fn named(&self, fingerprint: &str, name: &str) -> String {
        name.replace(fingerprint, &self.fingerprint)
    }

    /// Converts consecutive panes of an earlier version.
    pub(crate) fn entries(&self, entries: &[u64]) -> Vec<u64> {
        entries.chunks_exact(self.entry_words).flat_map(|entry| self.moved(entry, self.entry_header)).collect()
    }

    fn moved(&self, words: &[u64], header: usize) -> Vec<u64> {
        let (header, states) = words.split_at(header);
        let mut now = header.to_vec();
        for Move { from, words, was } in &self.states {
            let state = &states[*from..];
            match was {
                None => now.extend_from_slice(&state[..*words]),
                Some(kind) => {
                    let sum = if *kind == FixedKind::SumUndone { undone_sum(state) } else { float(state[0]) };
                    let sum = sum as i128;
                    now.extend([sum as u64, (sum >> 64) as u64]);
                }
            }
        }
        now
    }

    /// Converts the encoded states of a group, which begin with its words. `None` if there are too few bytes.
    pub(super) fn group(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (words, rest) = bytes.split_at_checked(self.dense_words * 8)?;
        let words: Vec<u64> =
            words.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
        let mut now: Vec<u8> = self.moved(&words, self.dense_header).into_iter().flat_map(u64::to_le_bytes).collect();
        now.extend_from_slice(rest);
        Some(now)
    }
}
