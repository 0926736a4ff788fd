//! A hash table for exact topics: its keys are hashes already, and a look-up accesses memory once.
//!
//! With a million topics nearly every look-up misses the caches, and a table that keeps its tags apart from its entries
//! misses twice. Here an entry is in the slot that its hash gives or in one of the next slots.

use std::mem;

use rivulet_dataflow::fetch;

/// A hash of 128 bits, two of which are used otherwise: the lowest bit of the first half is always 1 (0 marks an empty
/// slot), the lowest bit of the second half is a flag of the entry.
pub(super) type Key = [u64; 2];

/// The key of a hash.
#[inline]
pub(super) fn key_of(hash: u128) -> Key {
    [hash as u64 | 1, (hash >> 64) as u64 & !1]
}

/// A key with its value and a flag.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry<T> {
    key: Key,
    pub(super) value: T,
}

impl<T> Entry<T> {
    #[inline]
    fn is_empty(&self) -> bool {
        self.key[0] == 0
    }

    #[inline]
    fn has(&self, key: &Key) -> bool {
        self.key[0] == key[0] && self.key[1] & !1 == key[1]
    }

    #[inline]
    pub(super) fn flag(&self) -> bool {
        self.key[1] & 1 != 0
    }

    pub(super) fn set_flag(&mut self, flag: bool) {
        self.key[1] = (self.key[1] & !1) | u64::from(flag);
    }
}

/// Entries by key: open addressing with linear probing, at most four fifths full.
#[derive(Debug)]
pub(super) struct ExactTable<T> {
    places: Vec<Entry<T>>,
    len: usize,
}

impl<T> Default for ExactTable<T> {
    fn default() -> Self {
        Self { places: Vec::new(), len: 0 }
    }
}

impl<T: Copy + Default> ExactTable<T> {
    /// The first slot where an entry may be: the hash as a fraction of the table, so its size need not be a power of
    /// two.
    #[inline]
    fn home(&self, key: &Key) -> usize {
        (((key[0] >> 32) * self.places.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    /// The number of steps from one slot to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }

    /// The slot of a key, or the empty slot where it would be inserted.
    #[inline]
    fn find(&self, key: &Key) -> Result<usize, usize> {
        let mut place = self.home(key);
        loop {
            // An empty slot ends every search: the table is never full.
            match &self.places[place] {
                entry if entry.has(key) => return Ok(place),
                entry if entry.is_empty() => return Err(place),
                _ => place = self.next(place),
            }
        }
    }

    /// Prefetches the memory where the entry of a key should be.
    #[inline]
    pub(super) fn prefetch(&self, key: &Key) {
        self.places.get(self.home(key)).into_iter().for_each(fetch);
    }

    /// The entry of a key.
    #[inline]
    pub(super) fn get(&self, key: &Key) -> Option<&Entry<T>> {
        if self.len == 0 {
            return None;
        }
        self.find(key).ok().map(|place| &self.places[place])
    }

    /// The entry of a key.
    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Entry<T>> {
        if self.len == 0 {
            return None;
        }
        self.find(key).ok().map(|place| &mut self.places[place])
    }

    /// Adds an entry whose key is absent, with its flag cleared.
    pub(super) fn insert(&mut self, key: Key, value: T) {
        self.reserve(1);
        match self.find(&key) {
            Err(place) => {
                self.places[place] = Entry { key, value };
                self.len += 1;
            }
            Ok(_) => debug_assert!(false, "the key is new"),
        }
    }

    /// Removes the entry of a key, if present.
    pub(super) fn remove(&mut self, key: &Key) {
        if self.len == 0 {
            return;
        }
        let Ok(mut hole) = self.find(key) else { return };
        self.len -= 1;
        // Entries that were displaced beyond the hole move up, so that no search ends too early.
        let mut place = hole;
        loop {
            place = self.next(place);
            if self.places[place].is_empty() {
                break;
            }
            let home = self.home(&self.places[place].key);
            if self.distance(home, place) >= self.distance(hole, place) {
                self.places[hole] = self.places[place];
                hole = place;
            }
        }
        self.places[hole] = Entry::default();
    }

    /// Reserves slots for `additional` entries.
    pub(super) fn reserve(&mut self, additional: usize) {
        let needed = self.len + additional;
        if needed * 5 <= self.places.len() * 4 {
            return;
        }
        // As large as requested, and at least so much larger that growing one by one is cheap.
        let size = (needed * 5 / 4 + 4).max(self.places.len() * 7 / 5);
        let old = mem::replace(&mut self.places, vec![Entry::default(); size]);
        for entry in old.into_iter().filter(|entry| !entry.is_empty()) {
            match self.find(&[entry.key[0], entry.key[1] & !1]) {
                Err(place) | Ok(place) => self.places[place] = entry,
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Entry<T>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few hash values and a small table, so that entries are displaced far and around the end.
        #[test]
        fn does_what_a_map_does(changes in proptest::collection::vec((0u64..12, 0u64..3, any::<bool>()), 0..200)) {
            let mut table = ExactTable::<u32>::default();
            let mut model = BTreeMap::new();
            for (index, (home, other, add)) in changes.into_iter().enumerate() {
                let key = key_of(u128::from(home << 32) | u128::from(other << 1) << 64);
                if add {
                    if let Some(entry) = table.get_mut(&key) {
                        entry.value = index as u32;
                        entry.set_flag(true);
                        model.insert(key, (index as u32, true));
                    } else {
                        prop_assert!(model.insert(key, (index as u32, false)).is_none());
                        table.insert(key, index as u32);
                    }
                } else {
                    table.remove(&key);
                    model.remove(&key);
                }
                for home in 0..12u64 {
                    for other in 0..3u64 {
                        let key = key_of(u128::from(home << 32) | u128::from(other << 1) << 64);
                        prop_assert_eq!(table.get(&key).map(|entry| (entry.value, entry.flag())), model.get(&key).copied());
                    }
                }
                prop_assert_eq!(table.len, model.len());
            }
        }
    }
}
