//! The panes of one slot and key, in one piece of memory.
//!
//! An entry is a pane (or session, or block of rows): its bounds, then its states. Entries are sorted, and only entries
//! that hold rows exist. They lie next to each other, so an event touches one or two cache lines, and closing a window
//! reads memory front to back. Entries leave at the front and mostly come at the back. When there is no more space at
//! the back, the entries are moved down to reuse the space that was freed at the front.
//!
//! Memory is taken in the sizes in which allocators give it, four to each power of two, so that all memory that is
//! taken can be used.

use std::mem::size_of;

/// A deque of entries of a fixed number of words. It takes 24 bytes beside the entries themselves.
#[derive(Debug, Default)]
pub(crate) struct Panes {
    words: Box<[u64]>,
    /// Where the first entry begins.
    head: u32,
    /// Words in use.
    used: u32,
}

impl Panes {
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The words of all entries, one entry after the other.
    pub(crate) fn entries(&self) -> &[u64] {
        &self.words[self.head as usize..(self.head + self.used) as usize]
    }

    pub(crate) fn entries_mut(&mut self) -> &mut [u64] {
        &mut self.words[self.head as usize..(self.head + self.used) as usize]
    }

    /// The number of entries.
    pub(crate) fn len(&self, entry_words: usize) -> usize {
        self.used as usize / entry_words
    }

    pub(crate) fn entry(&self, index: usize, entry_words: usize) -> &[u64] {
        &self.entries()[index * entry_words..(index + 1) * entry_words]
    }

    pub(crate) fn entry_mut(&mut self, index: usize, entry_words: usize) -> &mut [u64] {
        let start = self.head as usize + index * entry_words;
        &mut self.words[start..start + entry_words]
    }

    /// The first word of an entry: the number of its pane or block, or the start of its session.
    pub(crate) fn first_word(&self, index: usize, entry_words: usize) -> u64 {
        self.words[self.head as usize + index * entry_words]
    }

    /// The number of entries at the front for whose first word `is_before` holds. It must not hold for any entry behind
    /// them.
    pub(crate) fn count_before(&self, entry_words: usize, is_before: impl Fn(u64) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len(entry_words));
        while low < high {
            let middle = (low + high) / 2;
            if is_before(self.first_word(middle, entry_words)) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Inserts a copy of `entry` before the entry at `index` (or behind the last one).
    pub(crate) fn insert(&mut self, index: usize, entry: &[u64], heap_bytes: &mut usize) {
        let entry_words = entry.len();
        self.make_room(entry_words, heap_bytes);
        let at = self.head as usize + index * entry_words;
        let end = (self.head + self.used) as usize;
        self.words.copy_within(at..end, at + entry_words);
        self.words[at..at + entry_words].copy_from_slice(entry);
        self.used += entry_words as u32;
    }

    /// Removes `count` entries at the front.
    pub(crate) fn remove_front(&mut self, count: usize, entry_words: usize) {
        let words = (count * entry_words) as u32;
        debug_assert!(words <= self.used);
        self.head += words;
        self.used -= words;
        if self.used == 0 {
            self.head = 0;
        }
    }

    /// Removes the entry at `index`.
    pub(crate) fn remove(&mut self, index: usize, entry_words: usize) {
        let at = self.head as usize + index * entry_words;
        let end = (self.head + self.used) as usize;
        self.words.copy_within(at + entry_words..end, at);
        self.used -= entry_words as u32;
    }

    /// Frees the memory.
    pub(crate) fn release(&mut self, heap_bytes: &mut usize) {
        *heap_bytes -= self.capacity_bytes();
        *self = Self::default();
    }

    pub(crate) fn capacity_bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }

    /// Makes room for one more entry at the back. A deque that slides over n entries settles, and then never allocates
    /// again. Short deques are moved down whenever the back is reached. Long ones are moved down once a sixteenth is
    /// free at the front, so that moving stays cheap.
    fn make_room(&mut self, entry_words: usize, heap_bytes: &mut usize) {
        let (head, used) = (self.head as usize, self.used as usize);
        if head + used + entry_words <= self.words.len() {
            return;
        }
        if head >= entry_words && (used <= MOVED_WORDS_MAX || head * 16 >= used) {
            self.words.copy_within(head..head + used, 0);
        } else {
            let capacity = block_words(used + entry_words);
            u32::try_from(capacity).expect("fewer than 2^32 words of panes for one key");
            let mut words = vec![0; capacity].into_boxed_slice();
            words[..used].copy_from_slice(self.entries());
            *heap_bytes += (capacity - self.words.len()) * size_of::<u64>();
            self.words = words;
        }
        self.head = 0;
    }
}

/// The most words that are moved down for one free entry.
const MOVED_WORDS_MAX: usize = 256;

/// The smallest size in which an allocator gives at least `words` words: four sizes to each power of two.
fn block_words(words: usize) -> usize {
    let step = (words.next_power_of_two() / 8).max(1);
    words.next_multiple_of(step)
}

/// How many panes may lie between any two panes of a slot. With this bound, half of the range of 32-bit numbers
/// suffices to tell which pane comes first.
pub(crate) const PANES_APART_MAX: i64 = 1 << 29;

/// The low 32 bits of the number of a pane, which is its start divided by its length. It takes half a word; a count
/// fits beside it. Panes of one slot are never so far apart that it is in doubt which comes first (see
/// [`PANES_APART_MAX`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PaneNumber(pub(super) u32);

impl PaneNumber {
    /// The pane that begins at `start_us`, which is a multiple of the length of panes.
    #[inline]
    pub(crate) fn at(start_us: i64, pane_us: i64) -> Self {
        Self((start_us / pane_us) as u32)
    }

    /// The pane whose entry begins with this word.
    #[inline]
    pub(crate) fn of(word: u64) -> Self {
        Self(word as u32)
    }

    /// Writes the number into an entry.
    #[inline]
    pub(super) fn put(self, entry: &mut [u64]) {
        entry[0] = entry[0] & !u64::from(u32::MAX) | u64::from(self.0);
    }

    #[inline]
    pub(super) fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// The start of the pane, given any time of the same slot.
    #[inline]
    pub(crate) fn start_us(self, near_us: i64, pane_us: i64) -> i64 {
        let near = near_us.div_euclid(pane_us);
        (near + i64::from(self.0.wrapping_sub(near as u32) as i32)).saturating_mul(pane_us)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_deque(operations in prop::collection::vec((0..6u8, any::<prop::sample::Index>()), 0..200)) {
            let (mut panes, mut model, mut heap_bytes) = (Panes::default(), VecDeque::new(), 0);
            for (number, (operation, index)) in operations.into_iter().enumerate() {
                let entry = [number as u64, 7, number as u64 * 2];
                match operation {
                    0..=2 => {
                        panes.insert(model.len(), &entry, &mut heap_bytes);
                        model.push_back(entry);
                    }
                    3 => {
                        let index = index.index(model.len() + 1);
                        panes.insert(index, &entry, &mut heap_bytes);
                        model.insert(index, entry);
                    }
                    4 => {
                        let count = index.index(model.len() + 1);
                        panes.remove_front(count, 3);
                        model.drain(..count);
                    }
                    _ if !model.is_empty() => {
                        let index = index.index(model.len());
                        panes.remove(index, 3);
                        model.remove(index);
                    }
                    _ => {}
                }
                prop_assert_eq!(panes.len(3), model.len());
                prop_assert_eq!(panes.entries().to_vec(), model.iter().flatten().copied().collect::<Vec<_>>());
                prop_assert_eq!(heap_bytes, panes.capacity_bytes());
            }
            panes.release(&mut heap_bytes);
            prop_assert_eq!(heap_bytes, 0);
        }
    }

    #[test]
    fn a_sliding_window_settles_and_allocates_no_more() {
        for (entries, bytes_max) in [(6, 96), (20, 320), (30, 512), (1000, 20_480)] {
            let (mut panes, mut heap_bytes) = (Panes::default(), 0);
            let mut settled_bytes = 0;
            for number in 0..100_000u64 {
                panes.insert(panes.len(2), &[number, 0], &mut heap_bytes);
                if panes.len(2) == entries {
                    panes.remove_front(1, 2);
                }
                if number == 10_000 {
                    settled_bytes = heap_bytes;
                }
            }
            assert_eq!(heap_bytes, settled_bytes);
            assert!(heap_bytes <= bytes_max, "{heap_bytes} bytes for {entries} entries of 16");
        }
    }

    #[test]
    fn blocks_waste_less_than_a_quarter() {
        for words in 1..5000 {
            let block = block_words(words);
            assert!((words..words + words.div_ceil(4)).contains(&block), "{block} for {words}");
        }
        assert_eq!([8, 9, 17, 150, 161].map(block_words), [8, 10, 20, 160, 192]);
    }
}
