//! A hash table that grows a part at a time.
//!
//! A table that doubles moves all its entries at once: with some million keys, no row goes on for a tenth of a second.
//! So a large table is many small tables, and some bits of the hash choose between them. If these had equal limits, all
//! would be full at the same time. So each doubles at a load of its own, spread evenly between half full and full.
//! While the number of entries doubles, they double one after the other, as in linear hashing (Litwin, "Linear hashing:
//! a new tool for file and table addressing", 1980).

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// The number of parts of a large table.
const PARTS: usize = 256;
/// From this many entries on a table is large: moving them takes about a millisecond.
const LARGE: usize = 1 << 15;

/// Entries by hash.
pub(crate) struct Parts<T> {
    /// One, or [`PARTS`].
    parts: Vec<HashTable<T>>,
}

impl<T> Parts<T> {
    /// Makes a table without entries, with room for about this many.
    pub(crate) fn with_capacity(entries: usize) -> Self {
        let parts = if entries < LARGE { 1 } else { PARTS };
        Self { parts: (0..parts).map(|_| HashTable::with_capacity(entries / parts)).collect() }
    }

    /// The entry with this hash for which `is_equal` holds, or its free place. `hash_of` returns the hash of an entry.
    #[inline]
    pub(crate) fn entry(
        &mut self,
        hash: u64,
        is_equal: impl FnMut(&T) -> bool,
        hash_of: impl Fn(&T) -> u64,
    ) -> Entry<'_, T> {
        self.make_room(hash, &hash_of);
        let part = self.part_of(hash);
        self.parts[part].entry(hash, is_equal, hash_of)
    }

    /// The entry with this hash for which `is_equal` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_equal: impl FnMut(&T) -> bool) -> Option<&T> {
        self.parts[self.part_of(hash)].find(hash, is_equal)
    }

    /// Adds an entry that is not in the table.
    pub(crate) fn insert_unique(&mut self, hash: u64, entry: T, hash_of: impl Fn(&T) -> u64) {
        self.make_room(hash, &hash_of);
        let part = self.part_of(hash);
        self.parts[part].insert_unique(hash, entry, hash_of);
    }

    /// Removes the entry with this hash for which `is_equal` holds, if there is one.
    pub(crate) fn remove(&mut self, hash: u64, is_equal: impl FnMut(&T) -> bool) {
        let part = self.part_of(hash);
        if let Ok(entry) = self.parts[part].find_entry(hash, is_equal) {
            entry.remove();
        }
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flatten()
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tables: usize = self.parts.iter().map(HashTable::allocation_size).sum();
        tables + self.parts.capacity() * size_of::<HashTable<T>>()
    }

    /// Uses bits from the middle of the hash: a table takes its positions from the lower bits and its tags from the
    /// upper ones.
    #[inline]
    fn part_of(&self, hash: u64) -> usize {
        (hash >> 40) as usize & (self.parts.len() - 1)
    }

    /// Makes the part of this hash grow if it has reached its load, before it gets one more entry.
    #[inline]
    fn make_room(&mut self, hash: u64, hash_of: &impl Fn(&T) -> u64) {
        let number = self.part_of(hash);
        let part = &self.parts[number];
        let (entries, capacity) = (part.len(), part.capacity());
        if entries + capacity * number / (2 * PARTS) >= capacity {
            self.grow(number, hash_of);
        }
    }

    #[cold]
    fn grow(&mut self, number: usize, hash_of: &impl Fn(&T) -> u64) {
        if self.parts.len() == 1 && self.parts[0].len() >= LARGE {
            let small = std::mem::replace(self, Self::with_capacity(2 * LARGE));
            for entry in small.parts.into_iter().flatten() {
                let hash = hash_of(&entry);
                let part = self.part_of(hash);
                self.parts[part].insert_unique(hash, entry, hash_of);
            }
            return;
        }
        let part = &mut self.parts[number];
        let more = (part.capacity() + 1).saturating_sub(part.len());
        part.reserve(more, hash_of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(entry: &u64) -> u64 {
        let product = u128::from(*entry ^ 0x9e37_79b9_7f4a_7c15) * 0xbf58_476d_1ce4_e5b9_94d0_49bb_1331_11eb_u128;
        (product >> 64) as u64 ^ product as u64
    }

    #[test]
    fn entries_are_found_however_many_there_are() {
        for entries in [0, 1, 100, LARGE as u64 - 1, 5 * LARGE as u64] {
            let mut parts = Parts::with_capacity(0);
            for entry in 0..entries {
                assert!(parts.find(hash_of(&entry), |&known| known == entry).is_none());
                match parts.entry(hash_of(&entry), |&known| known == entry, hash_of) {
                    Entry::Vacant(vacant) => drop(vacant.insert(entry)),
                    Entry::Occupied(_) => panic!("{entry} is new"),
                }
            }
            (0..entries).step_by(3).for_each(|entry| parts.remove(hash_of(&entry), |&known| known == entry));
            (0..entries).step_by(6).for_each(|entry| parts.insert_unique(hash_of(&entry), entry, hash_of));
            for entry in 0..entries {
                let is_there = entry % 3 != 0 || entry % 6 == 0;
                assert_eq!(parts.find(hash_of(&entry), |&known| known == entry).is_some(), is_there, "{entry}");
            }
            let there = (0..entries).filter(|entry| entry % 3 != 0 || entry % 6 == 0).count();
            assert_eq!(parts.iter().count(), there);
        }
    }

    #[test]
    fn a_large_table_never_grows_at_once() {
        let mut parts = Parts::with_capacity(0);
        let mut moved_most = 0;
        let mut bytes = 0;
        for entry in 0..30 * LARGE as u64 {
            let before = parts.memory_bytes();
            parts.insert_unique(hash_of(&entry), entry, hash_of);
            bytes = parts.memory_bytes();
            // The first table, which is a single part, is divided when it is full.
            if entry > 2 * LARGE as u64 {
                moved_most = moved_most.max(bytes - before);
            }
        }
        assert!(bytes > 30 * LARGE * 9 && bytes < 30 * LARGE * 32, "{bytes} bytes");
        assert!(moved_most < bytes / PARTS * 2, "{moved_most} of {bytes} bytes at once");
    }
}
