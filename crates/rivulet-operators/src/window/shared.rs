//! What the windows of a cell have in common, merged once and kept from one closing to the next.
//!
//! A hopping window shares all panes but a few with the previous one. If these are many, the result is not merged from
//! all of them each time. Instead, the panes of the last closed window form two stacks (the queue of two stacks, as in
//! Tangwongsan, Hirzel, Schneider and Wu, "General Incremental Sliding-Window Aggregation", VLDB 2015). Each pane of
//! the *front* holds, in its own place, the merge of itself with the panes behind it up to the end of the front. The
//! panes of the *back* are unchanged, and their merge stands beside them. A closing merges the first pane of the front
//! with the merge of the back. When the front is used up, the back becomes the front. That is a constant number of
//! merges for each pane and closing, for the memory of one more pane. A late row is counted in all merges that its pane
//! is in.
//!
//! The division into front and back follows from the rows and closings alone, so nothing here depends on how rows came
//! in batches.

use super::length::Lengths;
use super::panes::Panes;
use crate::aggregate::layout::{FixedUpdates, Layout};

/// How many panes of a window are merged one by one. Above this number, sharing is faster and worth its memory.
const SINGLE_PANES_MAX: i64 = 32;

/// Whether successive windows of these lengths have enough panes in common for sharing.
pub(crate) fn shares_panes(lengths: Lengths) -> bool {
    lengths.width / lengths.slide > SINGLE_PANES_MAX
}

/// One word with the numbers of panes in front and back, then the merge of the back as an entry. It has no words while
/// nothing is shared: then all panes are unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shared(Box<[u64]>);

impl Shared {
    /// The words, for export.
    pub(crate) fn words(&self) -> &[u64] {
        &self.0
    }

    /// Reads exported words, for a cell with this number of panes; `None` if they do not fit.
    pub(crate) fn from_words(words: &[u64], panes: usize, layout: &Layout) -> Option<Self> {
        let shared = Self(words.into());
        let fits =
            words.is_empty() || (words.len() == 1 + layout.entry_words && shared.front() + shared.back() <= panes);
        fits.then_some(shared)
    }

    /// The number of panes in the front.
    fn front(&self) -> usize {
        self.0.first().map_or(0, |word| *word as u32 as usize)
    }

    /// The number of panes in the back, which are behind the front.
    fn back(&self) -> usize {
        self.0.first().map_or(0, |word| (word >> 32) as usize)
    }

    fn put(&mut self, front: usize, back: usize) {
        self.0[0] = front as u64 | (back as u64) << 32;
    }

    /// Memory held beside the value itself, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.len() * 8
    }

    /// Counts a row in the pane at `index` and in the merges that the pane is in. If the pane is new, it has just been
    /// inserted without rows.
    pub(crate) fn update(
        &mut self,
        panes: &mut Panes,
        (index, is_new): (usize, bool),
        layout: &Layout,
        updates: &FixedUpdates<'_>,
        (row, time_us): (usize, i64),
    ) {
        let words = layout.entry_words;
        let (mut front, mut back) = (self.front(), self.back());
        if index < front {
            if is_new {
                // The new pane begins as the entry with which it will be merged.
                let (pane, next) = panes.entries_mut()[index * words..].split_at_mut(words);
                layout.merge_entry(pane, &next[..words]);
                front += 1;
            }
            (0..index).for_each(|earlier| updates.update(panes.entry_mut(earlier, words), row, time_us));
        } else if index < front + back {
            back += usize::from(is_new);
            updates.update(&mut self.0[1..], row, time_us);
        }
        updates.update(panes.entry_mut(index, words), row, time_us);
        if is_new {
            self.put(front, back);
        }
    }

    /// Makes front and back consist of the first `count` panes.
    pub(crate) fn extend(&mut self, panes: &Panes, count: usize, layout: &Layout) {
        if self.0.is_empty() {
            self.0 = std::iter::once(0).chain(layout.empty_entry.iter().copied()).collect();
        }
        let (front, back) = (self.front(), self.back());
        let words = layout.entry_words;
        let new = &panes.entries()[(front + back).min(count) * words..count * words];
        new.chunks_exact(words).for_each(|pane| layout.merge_entry(&mut self.0[1..], pane));
        self.put(front, count.max(front) - front);
    }

    /// The merges of front and back, as entries to be merged. The first is empty if the front is.
    pub(crate) fn parts<'a>(&'a self, panes: &'a Panes, layout: &Layout) -> [&'a [u64]; 2] {
        [&panes.entries()[..self.front().min(1) * layout.entry_words], &self.0[1..]]
    }

    /// Prepares for the removal of the first `gone` panes.
    pub(crate) fn remove_front(&mut self, panes: &mut Panes, gone: usize, layout: &Layout) {
        let words = layout.entry_words;
        let (front, back) = (self.front(), self.back());
        if gone <= front {
            return self.put(front - gone, back);
        }
        let left = front + back - gone.min(front + back);
        let entries = &mut panes.entries_mut()[gone * words..(gone + left) * words];
        for index in (1..left).rev() {
            let (pane, later) = entries[(index - 1) * words..].split_at_mut(words);
            layout.merge_entry(pane, &later[..words]);
        }
        self.0[1..].copy_from_slice(&layout.empty_entry);
        self.put(left, 0);
    }
}
