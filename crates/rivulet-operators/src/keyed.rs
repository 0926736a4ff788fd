//! What an operator remembers for each key of each slot.

use std::hash::BuildHasher;
use std::mem::size_of;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use rivulet_dataflow::{Batch, Leaps, Slot};

/// The most keys remembered for one slot: a query keyed by something ever new costs itself its rows, and nobody else memory.
pub(crate) const SLOT_KEYS_MAX: usize = 100_000;

/// The most keys remembered by one operator over all slots.
const KEYS_MAX: usize = 1 << 26;

/// How far a silent slot's event time goes on by the clock, microseconds: as long as it has been silent, once that is
/// `idle_timeout_us`. What the clock has leapt over was no silence.
#[inline]
pub(crate) fn idle_us(leaps: &Leaps, last_arrival_us: i64, now_us: i64, idle_timeout_us: i64) -> i64 {
    if now_us.saturating_sub(last_arrival_us) < idle_timeout_us {
        return 0;
    }
    let silence_us = leaps.passed_us(last_arrival_us, now_us);
    if silence_us >= idle_timeout_us { silence_us } else { 0 }
}

/// The rows of other instances in a batch of which this one has some, on their way past it.
#[derive(Default)]
pub(crate) struct Passing<'a> {
    /// All rows; nothing where all are this instance's.
    pub(crate) batch: Option<&'a Batch>,
    /// Those of this instance, ascending.
    own: &'a [u32],
    /// How many have been passed, or were this instance's.
    next: usize,
}

impl<'a> Passing<'a> {
    /// The rows of `batch` besides `own`.
    pub(crate) fn of(batch: &'a Batch, own: &'a [u32]) -> Self {
        Self { batch: Some(batch), own, next: 0 }
    }

    /// Whether there may be any.
    pub(crate) fn is_any(&self) -> bool {
        self.batch.is_some()
    }

    /// Those that come before the own row number `before`, or all that are left; each is given once.
    pub(crate) fn rows(&mut self, before: Option<usize>) -> Range<usize> {
        let end = match before {
            Some(own) => self.own.get(own).map_or(self.next, |&row| row as usize),
            None => self.batch.map_or(self.next, Batch::rows),
        };
        let rows = self.next..end;
        self.next = if before.is_some() { end + 1 } else { end };
        rows
    }
}

/// Values by slot and key.
pub(crate) struct Keyed<V> {
    entries: Vec<KeyEntry<V>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: RandomState,
    /// By slot: its entries.
    slots: Vec<Vec<u32>>,
    /// The most keys of a slot: [`SLOT_KEYS_MAX`], but for keys that were taken in elsewhere.
    slot_keys_max: usize,
}

#[derive(Default)]
struct KeyEntry<V> {
    slot: Slot,
    /// Its place among the entries of its slot.
    number: u32,
    key: Box<[u8]>,
    value: V,
}

impl<V> Default for Keyed<V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            slots: Vec::new(),
            slot_keys_max: SLOT_KEYS_MAX,
        }
    }
}

impl<V: Default> Keyed<V> {
    /// While state is imported a slot may have more keys: of several instances each may have had as many as one has.
    pub(crate) fn begin_import(&mut self) {
        self.slot_keys_max = KEYS_MAX;
    }

    /// From now on further keys are refused as ever.
    pub(crate) fn end_import(&mut self) {
        self.slot_keys_max = SLOT_KEYS_MAX;
    }

    /// The place of a slot's key, if it is known.
    pub(crate) fn find(&self, slot: Slot, key: &[u8]) -> Option<u32> {
        let same = |&entry: &u32| {
            let entry = &self.entries[entry as usize];
            entry.slot == slot && *entry.key == *key
        };
        self.index.find(self.hasher.hash_one((slot, key)), same).copied()
    }

    /// Adds a key that is not there; `None` if there are too many, of the slot ([`SLOT_KEYS_MAX`]) or altogether.
    pub(crate) fn create(&mut self, slot: Slot, key: &[u8]) -> Option<u32> {
        if self.slots.get(slot as usize).is_some_and(|places| places.len() >= self.slot_keys_max) {
            return None;
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.entries.len() >= KEYS_MAX => return None,
            None => {
                self.entries.push(KeyEntry::default());
                self.entries.len() as u32 - 1
            }
        };
        let number = self.slots.get(slot as usize).map_or(0, Vec::len) as u32;
        self.entries[place as usize] = KeyEntry { slot, number, key: key.into(), value: V::default() };
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index.insert_unique(hasher.hash_one((slot, key)), place, |&entry| {
            let entry = &entries[entry as usize];
            hasher.hash_one((entry.slot, &*entry.key))
        });
        if slot as usize >= self.slots.len() {
            self.slots.resize_with(slot as usize + 1, Vec::new);
        }
        self.slots[slot as usize].push(place);
        Some(place)
    }

    /// The value at a place that [`Keyed::find`] or [`Keyed::create`] gave.
    pub(crate) fn value(&self, place: u32) -> &V {
        &self.entries[place as usize].value
    }

    /// The value at a place, to change it.
    pub(crate) fn value_mut(&mut self, place: u32) -> &mut V {
        &mut self.entries[place as usize].value
    }

    /// The key and the value at such a place.
    pub(crate) fn entry_mut(&mut self, place: u32) -> (&[u8], &mut V) {
        let entry = &mut self.entries[place as usize];
        (&entry.key, &mut entry.value)
    }

    /// The places of a slot's keys, in the order in which they came if none was forgotten.
    pub(crate) fn places(&self, slot: Slot) -> &[u32] {
        self.slots.get(slot as usize).map_or(&[], Vec::as_slice)
    }

    /// Forgets the key at such a place; gives it, for those who count its bytes.
    pub(crate) fn remove(&mut self, place: u32) -> Box<[u8]> {
        let KeyEntry { slot, number, key, .. } = std::mem::take(&mut self.entries[place as usize]);
        if let Ok(entry) = self.index.find_entry(self.hasher.hash_one((slot, &*key)), |&known| known == place) {
            entry.remove();
        }
        let places = &mut self.slots[slot as usize];
        places.swap_remove(number as usize);
        if let Some(&moved) = places.get(number as usize) {
            self.entries[moved as usize].number = number;
        }
        self.free.push(place);
        key
    }

    /// One more than the highest slot that ever had a key.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The keys of a slot and their values, in the order in which they came.
    pub(crate) fn of_slot(&self, slot: usize) -> impl Iterator<Item = (&[u8], &V)> {
        let places = self.slots.get(slot).into_iter().flatten();
        places.map(|&place| &self.entries[place as usize]).map(|entry| (&*entry.key, &entry.value))
    }

    /// Forgets a slot, showing each key and value to `removed`.
    pub(crate) fn remove_slot(&mut self, slot: Slot, mut removed: impl FnMut(&[u8], V)) {
        let Some(places) = self.slots.get_mut(slot as usize) else { return };
        for place in std::mem::take(places) {
            let KeyEntry { slot, key, value, .. } = std::mem::take(&mut self.entries[place as usize]);
            if let Ok(entry) = self.index.find_entry(self.hasher.hash_one((slot, &*key)), |&known| known == place) {
                entry.remove();
            }
            removed(&key, value);
            self.free.push(place);
        }
    }

    /// Memory held, without what keys and values hold themselves. Linear in the number of slots.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<KeyEntry<V>>()
            + self.free.capacity() * size_of::<u32>()
            + self.index.allocation_size()
            + self.slots.iter().map(|slot| size_of::<Vec<u32>>() + slot.capacity() * 4).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_too_many_keys_takes_none_away_from_others() {
        let mut keyed = Keyed::<u32>::default();
        for key in 0..SLOT_KEYS_MAX {
            assert!(keyed.create(1, &key.to_le_bytes()).is_some());
        }
        assert!(keyed.create(1, b"one more").is_none() && keyed.find(1, b"one more").is_none());
        assert!(keyed.find(1, &7_usize.to_le_bytes()).is_some(), "those that are known stay");
        assert!(keyed.create(2, b"one more").is_some());
        keyed.remove_slot(1, |_, _| {});
        assert!(keyed.create(1, b"one more").is_some());
    }

    #[test]
    fn a_key_that_is_forgotten_takes_no_other_with_it() {
        let mut keyed = Keyed::<u32>::default();
        let places = [b"a", b"b", b"c"].map(|key| keyed.create(1, key).unwrap());
        assert_eq!(*keyed.remove(places[0]), *b"a");
        assert!(keyed.find(1, b"a").is_none());
        assert_eq!((keyed.find(1, b"b"), keyed.find(1, b"c")), (Some(places[1]), Some(places[2])));
        keyed.remove(places[2]);
        assert_eq!(keyed.places(1), [places[1]]);
        assert!(keyed.create(1, b"a").is_some());
        assert_eq!(keyed.places(1).len(), 2);
    }
}
