//! The values that an operator remembers for each key of each slot.

use std::hash::BuildHasher;
use std::mem::size_of;
use std::ops::Range;

use arrow::datatypes::{DataType, Field};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use rivulet_dataflow::{Batch, Leaps, Slot, fetch};

/// The most keys remembered for one slot. A query keyed by ever new values loses its own rows, but takes no memory from
/// other queries.
pub(crate) const SLOT_KEYS_MAX: usize = 100_000;

/// The most keys remembered by one operator over all slots.
const KEYS_MAX: usize = 1 << 26;

/// By how much a silent slot's event time goes on by the clock, in microseconds: the length of the silence once that is
/// `idle_timeout_us`, and 0 before. Leaps of the clock do not count as silence.
#[inline]
pub(crate) fn idle_us(leaps: &Leaps, last_arrival_us: i64, now_us: i64, idle_timeout_us: i64) -> i64 {
    if now_us.saturating_sub(last_arrival_us) < idle_timeout_us {
        return 0;
    }
    let silence_us = leaps.passed_us(last_arrival_us, now_us);
    if silence_us >= idle_timeout_us { silence_us } else { 0 }
}

/// The first columns of saved state: the slot, the key group, and a column for each key.
pub(crate) fn key_fields<'a>(types: impl IntoIterator<Item = &'a DataType>) -> Vec<Field> {
    let keys = types.into_iter().enumerate();
    let keys = keys.map(|(index, one)| Field::new(format!("key_{index}"), one.clone(), true));
    let slot = [Field::new("slot", DataType::UInt32, false), Field::new("key_group", DataType::UInt16, false)];
    slot.into_iter().chain(keys).collect()
}

/// What to do about a late row. It is late `by_clock` if no row has brought event time so far.
pub(crate) fn late_hint(by_clock: bool) -> &'static str {
    match by_clock {
        true => {
            "nothing came for the idle_timeout of the input, so time went on by the clock: raise idle_timeout above \
             the time for which readings are held back"
        }
        false => "allow more lateness",
    }
}

/// The rows of other instances in a batch that also has rows of this instance. They only advance the clocks.
#[derive(Default)]
pub(crate) struct Passing<'a> {
    /// All rows; `None` if all rows are this instance's.
    pub(crate) batch: Option<&'a Batch>,
    /// The rows of this instance, ascending.
    own: &'a [u32],
    /// The number of rows that have been passed or were this instance's.
    next: usize,
}

impl<'a> Passing<'a> {
    /// The rows of `batch` that are not in `own`.
    pub(crate) fn of(batch: &'a Batch, own: &'a [u32]) -> Self {
        Self { batch: Some(batch), own, next: 0 }
    }

    /// Whether rows of other instances may exist.
    pub(crate) fn is_any(&self) -> bool {
        self.batch.is_some()
    }

    /// Returns the rows that come before the own row number `before`, or all that remain. Each row is returned once.
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

/// Marks the absence of an index.
const NONE: u32 = u32::MAX;

/// Values by slot and key: the slot is the leading part of the key.
///
/// Without keys the index of a value is its slot: nothing is hashed, and a slot without a value takes as much memory as
/// one with it. With keys a value is found by a hash of slot and key, and the values of a slot are linked in the order
/// in which they came.
pub(crate) struct Keyed<V> {
    has_keys: bool,
    /// Without keys, by slot.
    values: Vec<Option<V>>,
    /// With keys, by index.
    entries: Vec<KeyEntry<V>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: RandomState,
    /// With keys, by slot: its entries.
    slots: Vec<SlotKeys>,
    /// The most keys of a slot: [`SLOT_KEYS_MAX`], except while state is imported.
    slot_keys_max: usize,
}

#[derive(Default)]
struct KeyEntry<V> {
    value: V,
    key: Box<[u8]>,
    slot: Slot,
    /// The next younger entry of the slot.
    next: u32,
    /// The next older entry of the slot; for the oldest entry, the youngest.
    previous: u32,
}

/// The entries of a slot.
#[derive(Clone, Copy)]
struct SlotKeys {
    oldest: u32,
    count: u32,
}

impl<V: Default> Keyed<V> {
    /// Makes a map without values: by slot and key, or by slot alone.
    pub(crate) fn new(has_keys: bool) -> Self {
        Self {
            has_keys,
            values: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            slots: Vec::new(),
            slot_keys_max: SLOT_KEYS_MAX,
        }
    }

    /// Lets a slot have any number of keys: the one slot of a big query.
    pub(crate) fn with_any_number_of_keys(mut self) -> Self {
        self.slot_keys_max = KEYS_MAX;
        self
    }

    /// Lets a slot have more keys while state is imported: the state may come from several instances, and each may have
    /// had as many keys as one instance may have.
    pub(crate) fn begin_import(&mut self) {
        self.slot_keys_max = KEYS_MAX;
    }

    /// Limits the keys of a slot again.
    pub(crate) fn end_import(&mut self) {
        self.slot_keys_max = SLOT_KEYS_MAX;
    }

    /// The value of a slot, without keys.
    #[inline]
    pub(crate) fn of_slot_alone(&self, slot: Slot) -> Option<&V> {
        self.values.get(slot as usize)?.as_ref()
    }

    /// Fetches the data of a slot into the cache: its value, or with keys the links to its entries.
    #[inline]
    pub(crate) fn fetch_slot(&self, slot: Slot) {
        self.values.get(slot as usize).into_iter().for_each(fetch);
        self.slots.get(slot as usize).into_iter().for_each(fetch);
    }

    /// The index of a slot's key, if the key is known.
    #[inline]
    pub(crate) fn find(&self, slot: Slot, key: &[u8]) -> Option<u32> {
        if !self.has_keys {
            return self.of_slot_alone(slot).map(|_| slot);
        }
        let same = |&entry: &u32| {
            let entry = &self.entries[entry as usize];
            entry.slot == slot && *entry.key == *key
        };
        self.index.find(self.hasher.hash_one((slot, key)), same).copied()
    }

    /// Adds a key that is not known yet; `None` if there are too many keys, in the slot ([`SLOT_KEYS_MAX`]) or
    /// altogether.
    pub(crate) fn create(&mut self, slot: Slot, key: &[u8]) -> Option<u32> {
        if !self.has_keys {
            grow(&mut self.values, slot as usize + 1, || None);
            self.values[slot as usize] = Some(V::default());
            return Some(slot);
        }
        debug_assert!(self.find(slot, key).is_none());
        grow(&mut self.slots, slot as usize + 1, || SlotKeys { oldest: NONE, count: 0 });
        let of_slot = &mut self.slots[slot as usize];
        if of_slot.count as usize >= self.slot_keys_max {
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
        of_slot.count += 1;
        let previous = if of_slot.oldest == NONE {
            of_slot.oldest = place;
            place
        } else {
            let youngest = std::mem::replace(&mut self.entries[of_slot.oldest as usize].previous, place);
            self.entries[youngest as usize].next = place;
            youngest
        };
        self.entries[place as usize] = KeyEntry { value: V::default(), key: key.into(), slot, next: NONE, previous };
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index.insert_unique(hasher.hash_one((slot, key)), place, |&entry| {
            let entry = &entries[entry as usize];
            hasher.hash_one((entry.slot, &*entry.key))
        });
        Some(place)
    }

    /// The value at an index that [`Keyed::find`] or [`Keyed::create`] returned.
    #[inline]
    pub(crate) fn value(&self, place: u32) -> &V {
        match self.has_keys {
            true => &self.entries[place as usize].value,
            false => self.values[place as usize].as_ref().expect("a place has a value"),
        }
    }

    /// The value at an index, to change it.
    #[inline]
    pub(crate) fn value_mut(&mut self, place: u32) -> &mut V {
        self.entry_mut(place).1
    }

    /// The key and the value at an index.
    #[inline]
    pub(crate) fn entry_mut(&mut self, place: u32) -> (&[u8], &mut V) {
        if !self.has_keys {
            return (&[], self.values[place as usize].as_mut().expect("a place has a value"));
        }
        let entry = &mut self.entries[place as usize];
        (&entry.key, &mut entry.value)
    }

    /// The key at an index; empty without keys.
    pub(crate) fn key(&self, place: u32) -> &[u8] {
        if self.has_keys { &self.entries[place as usize].key } else { &[] }
    }

    /// The index of a slot's oldest key.
    #[inline]
    pub(crate) fn first(&self, slot: Slot) -> Option<u32> {
        if !self.has_keys {
            return self.find(slot, &[]);
        }
        self.slots.get(slot as usize).map(|of_slot| of_slot.oldest).filter(|&place| place != NONE)
    }

    /// The index of the next younger key of the same slot.
    #[inline]
    pub(crate) fn next(&self, place: u32) -> Option<u32> {
        if !self.has_keys {
            return None;
        }
        Some(self.entries[place as usize].next).filter(|&next| next != NONE)
    }

    /// The indices of a slot's keys, in the order in which they came.
    pub(crate) fn places(&self, slot: Slot) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(slot), |&place| self.next(place))
    }

    /// One more than the highest index that was ever in use.
    pub(crate) fn capacity(&self) -> usize {
        if self.has_keys { self.entries.len() } else { self.values.len() }
    }

    /// Forgets the key at an index. Returns the key, for callers that count its bytes, and its value.
    pub(crate) fn remove(&mut self, place: u32) -> (Box<[u8]>, V) {
        if !self.has_keys {
            return (Box::default(), self.values[place as usize].take().unwrap_or_default());
        }
        let KeyEntry { value, slot, key, next, previous } = std::mem::take(&mut self.entries[place as usize]);
        if let Ok(entry) = self.index.find_entry(self.hasher.hash_one((slot, &*key)), |&known| known == place) {
            entry.remove();
        }
        let of_slot = &mut self.slots[slot as usize];
        of_slot.count -= 1;
        if of_slot.oldest == place {
            of_slot.oldest = next;
        } else {
            self.entries[previous as usize].next = next;
        }
        // The next entry's link to the older entry changes. If there is no next entry, the oldest entry's link to the
        // youngest changes.
        let follower = if next == NONE { of_slot.oldest } else { next };
        if follower != NONE {
            self.entries[follower as usize].previous = previous;
        }
        self.free.push(place);
        (key, value)
    }

    /// One more than the highest slot that ever had a key.
    pub(crate) fn slots(&self) -> usize {
        if self.has_keys { self.slots.len() } else { self.values.len() }
    }

    /// The keys of a slot and their values, in the order in which they came.
    pub(crate) fn of_slot(&self, slot: usize) -> impl Iterator<Item = (&[u8], &V)> {
        self.places(slot as Slot).map(|place| (self.key(place), self.value(place)))
    }

    /// Forgets a slot, showing each key and value to `removed`.
    pub(crate) fn remove_slot(&mut self, slot: Slot, mut removed: impl FnMut(&[u8], V)) {
        while let Some(place) = self.first(slot) {
            let (key, value) = self.remove(place);
            removed(&key, value);
        }
    }

    /// Memory held, in bytes, without the memory that keys and values hold themselves.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.values.capacity() * size_of::<Option<V>>()
            + self.entries.capacity() * size_of::<KeyEntry<V>>()
            + self.free.capacity() * size_of::<u32>()
            + self.index.allocation_size()
            + self.slots.capacity() * size_of::<SlotKeys>()
    }
}

/// Grows to `len` items, with room for an eighth more: a million slots must not hold memory for a second million.
pub(crate) fn grow<T>(items: &mut Vec<T>, len: usize, item: impl FnMut() -> T) {
    if len > items.capacity() {
        items.reserve_exact(len - items.len() + items.len() / 8);
    }
    if len > items.len() {
        items.resize_with(len, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_with_too_many_keys_takes_none_away_from_others() {
        let mut keyed = Keyed::<u32>::new(true);
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
        let mut keyed = Keyed::<u32>::new(true);
        let places = [b"a", b"b", b"c"].map(|key| keyed.create(1, key).unwrap());
        assert_eq!(*keyed.remove(places[0]).0, *b"a");
        assert!(keyed.find(1, b"a").is_none());
        assert_eq!((keyed.find(1, b"b"), keyed.find(1, b"c")), (Some(places[1]), Some(places[2])));
        keyed.remove(places[2]);
        assert!(keyed.places(1).eq([places[1]]));
        assert!(keyed.create(1, b"a").is_some());
        assert_eq!(keyed.places(1).count(), 2);
    }

    #[test]
    fn the_keys_of_a_slot_stay_in_the_order_in_which_they_came() {
        let keys_of = |keyed: &Keyed<u8>, slot| keyed.of_slot(slot).map(|(key, _)| key[0]).collect::<Vec<_>>();
        let mut keyed = Keyed::new(true);
        for key in [1, 2, 3, 4] {
            keyed.create(3, &[key]).unwrap();
            keyed.create(0, &[key + 10]).unwrap();
        }
        for (removed, left) in [(2, vec![1, 3, 4]), (1, vec![3, 4]), (4, vec![3]), (3, vec![])] {
            let place = keyed.find(3, &[removed]).unwrap();
            keyed.remove(place);
            assert_eq!(keys_of(&keyed, 3), left);
            assert!(keyed.find(3, &[removed]).is_none());
        }
        for key in [9, 8, 7] {
            keyed.create(3, &[key]).unwrap();
        }
        assert_eq!(keys_of(&keyed, 3), [9, 8, 7]);
        assert_eq!(keys_of(&keyed, 0), [11, 12, 13, 14]);
        assert_eq!(keyed.capacity(), 8, "places are used again");
    }

    #[test]
    fn without_keys_the_place_is_the_slot() {
        let mut keyed = Keyed::<u32>::new(false);
        assert_eq!(keyed.create(5, &[]), Some(5));
        *keyed.value_mut(5) = 7;
        assert_eq!((keyed.find(5, &[]), keyed.find(4, &[]), keyed.find(9, &[])), (Some(5), None, None));
        assert!(keyed.of_slot(5).eq([(&[][..], &7)]));
        let mut removed = Vec::new();
        (0..9).for_each(|slot| keyed.remove_slot(slot, |key, value| removed.push((key.to_vec(), value))));
        assert_eq!(removed, [(vec![], 7)]);
        assert_eq!((keyed.first(5), keyed.slots()), (None, 6));
    }
}
