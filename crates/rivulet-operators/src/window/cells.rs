//! All slots of a window aggregation: their clocks, their keys, and the panes of each.
//!
//! A *cell* is a slot (without keys) or a slot and a key. Without keys the cell is the slot itself and nothing is
//! hashed. With keys, cells are the indices of [`Keyed`], which links the cells of a slot in the order in which they
//! came, because a row of one key may close windows of all other keys.

use std::collections::VecDeque;
use std::mem::size_of;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use rivulet_dataflow::{Slot, fetch};

use super::length::Lengths;
use super::panes::Panes;
use super::shared::Shared;
use crate::aggregate::layout::Layout;
use crate::aggregate::object::{OBJECT_BYTES, Object};
use crate::keyed::{Keyed, grow};

/// A time that never comes.
pub(crate) const NEVER: i64 = i64::MAX;
/// Marks a slot that is not in use: it has no lengths.
const NONE: u32 = u32::MAX;
/// Marks a slot whose window cannot work: its rows are refused.
const BROKEN: u32 = u32::MAX - 1;

/// 64-bit words in a cache line.
const WORDS_PER_LINE: usize = 8;
/// The most cache lines of one slot's panes that are fetched ahead; the hardware follows a longer run by itself.
const FETCHED_LINES_MAX: usize = 16;

/// The objects of a cell's panes: one box for each pane.
pub(crate) type ObjectDeque = VecDeque<Box<[Object]>>;

/// A slot: its clock and, without keys, its panes. It takes one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct SlotState {
    /// The largest accepted event time; `i64::MIN` before the first.
    pub(crate) max_ts_us: i64,
    /// The arrival of the newest accepted row, in microseconds.
    pub(crate) last_arrival_us: i64,
    /// The highest watermark reached. All windows that end by then are closed.
    pub(crate) watermark_us: i64,
    /// No window closes before the watermark reaches this time.
    pub(crate) next_end_us: i64,
    /// Its lengths, as an index of the table of lengths.
    lengths: u32,
    panes: Panes,
}

impl Default for SlotState {
    fn default() -> Self {
        Self {
            max_ts_us: i64::MIN,
            last_arrival_us: i64::MIN,
            watermark_us: i64::MIN,
            next_end_us: NEVER,
            lengths: NONE,
            panes: Panes::default(),
        }
    }
}

/// The parts of a cell, to change them.
pub(crate) struct CellParts<'a> {
    pub(crate) panes: &'a mut Panes,
    /// `None` if no aggregate has objects.
    pub(crate) objects: Option<&'a mut ObjectDeque>,
    /// `None` if the cell's windows share nothing.
    pub(crate) shared: Option<&'a mut Shared>,
    /// The counter of memory.
    pub(crate) heap_bytes: &'a mut usize,
}

/// The lengths of a slot, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotLengths {
    Known(Lengths),
    /// The lengths cannot be computed or cannot work.
    Broken,
    /// The slot is not in use here.
    Absent,
}

/// All slots and cells of an operator.
pub(crate) struct Cells {
    pub(crate) slots: Vec<SlotState>,
    /// By slot: the time of the arrival clock at which a window closes if no row comes. Dense, so that a tick is one
    /// scan.
    pub(crate) deadlines_us: Vec<i64>,
    /// By slot: the key group of the query.
    key_hashes: Vec<u16>,
    keyed: bool,
    /// With keys: the panes of each cell.
    cells: Keyed<Panes>,
    /// By cell. `None` if no aggregate has objects.
    objects: Option<Vec<ObjectDeque>>,
    /// By cell, up to the last cell whose windows share panes.
    shared: Vec<Shared>,
    /// By cell, for count windows: the number of rows so far.
    row_numbers: Option<Vec<u64>>,
    /// Lengths, and how many slots have them. Most applications have only one entry.
    lengths: Vec<(Lengths, u32)>,
    free_lengths: Vec<u32>,
    lengths_index: HashMap<Lengths, u32, RandomState>,
    /// The memory of all panes, in bytes.
    pub(crate) heap_bytes: usize,
    key_bytes: usize,
}

impl Cells {
    pub(crate) fn new(keyed: bool, objects: bool, row_numbers: bool) -> Self {
        Self {
            slots: Vec::new(),
            deadlines_us: Vec::new(),
            key_hashes: Vec::new(),
            keyed,
            cells: Keyed::new(true),
            objects: objects.then(Vec::new),
            shared: Vec::new(),
            row_numbers: row_numbers.then(Vec::new),
            lengths: Vec::new(),
            free_lengths: Vec::new(),
            lengths_index: HashMap::default(),
            heap_bytes: 0,
            key_bytes: 0,
        }
    }

    /// Lets a slot have more keys while state is imported: the state may come from several instances, and each may have
    /// had as many keys as one instance may have.
    pub(crate) fn begin_import(&mut self) {
        self.cells.begin_import();
    }

    /// Limits the keys of a slot again.
    pub(crate) fn end_import(&mut self) {
        self.cells.end_import();
    }

    /// Puts a slot into use, or gives other lengths to a slot in use. Its state stays.
    pub(crate) fn add_slot(&mut self, slot: usize, lengths: Option<Lengths>, key_hash: u16) {
        if slot >= self.slots.len() {
            grow(&mut self.slots, slot + 1, SlotState::default);
            grow(&mut self.deadlines_us, slot + 1, || NEVER);
            grow(&mut self.key_hashes, slot + 1, || 0);
            if !self.keyed {
                self.grow_cell_columns(slot + 1);
            }
        }
        let place = match lengths {
            Some(lengths) => self.acquire_lengths(lengths),
            None => BROKEN,
        };
        let before = std::mem::replace(&mut self.slots[slot].lengths, place);
        self.release_lengths(before);
        self.key_hashes[slot] = key_hash;
    }

    /// Forgets a slot and frees its memory. Does nothing for a slot that is not in use.
    pub(crate) fn remove_slot(&mut self, slot: usize) {
        if slot >= self.slots.len() {
            return;
        }
        while let Some(cell) = self.cells.first(slot as Slot) {
            self.remove_cell(cell as usize);
        }
        if !self.keyed {
            self.clear_cell(slot);
        }
        self.release_lengths(self.slots[slot].lengths);
        self.slots[slot] = SlotState::default();
        self.deadlines_us[slot] = NEVER;
    }

    fn acquire_lengths(&mut self, lengths: Lengths) -> u32 {
        let place = *self.lengths_index.entry(lengths).or_insert_with(|| match self.free_lengths.pop() {
            Some(place) => {
                self.lengths[place as usize] = (lengths, 0);
                place
            }
            None => {
                self.lengths.push((lengths, 0));
                self.lengths.len() as u32 - 1
            }
        });
        self.lengths[place as usize].1 += 1;
        place
    }

    fn release_lengths(&mut self, place: u32) {
        if let Some((lengths, users)) = self.lengths.get_mut(place as usize) {
            *users -= 1;
            if *users == 0 {
                self.lengths_index.remove(lengths);
                self.free_lengths.push(place);
            }
        }
    }

    /// Fetches the data of a slot into the cache.
    #[inline]
    pub(crate) fn fetch_slot(&self, slot: usize) {
        self.slots.get(slot).into_iter().for_each(fetch);
        self.deadlines_us.get(slot).into_iter().for_each(fetch);
        self.cells.fetch_slot(slot as Slot);
    }

    /// Fetches the panes of a slot without keys into the cache.
    #[inline]
    pub(crate) fn fetch_panes(&self, slot: usize) {
        let Some(state) = self.slots.get(slot) else { return };
        let entries = state.panes.entries();
        entries.iter().step_by(WORDS_PER_LINE).take(FETCHED_LINES_MAX).for_each(fetch);
        entries.last().into_iter().for_each(fetch);
    }

    /// The lengths of a slot.
    #[inline]
    pub(crate) fn lengths(&self, slot: usize) -> SlotLengths {
        match self.slots.get(slot).map(|state| state.lengths) {
            None | Some(NONE) => SlotLengths::Absent,
            Some(BROKEN) => SlotLengths::Broken,
            Some(place) => SlotLengths::Known(self.lengths[place as usize].0),
        }
    }

    /// The key group of the query of a slot.
    pub(crate) fn slot_key_hash(&self, slot: usize) -> u16 {
        self.key_hashes[slot]
    }

    /// Finds the cell of a slot's key. Without keys there always is one.
    #[inline]
    pub(crate) fn find(&self, slot: usize, key: &[u8]) -> Option<usize> {
        if !self.keyed {
            return Some(slot);
        }
        self.cells.find(slot as Slot, key).map(|cell| cell as usize)
    }

    /// Adds a cell for a key that the slot does not have yet; `None` if there are too many keys.
    pub(crate) fn create(&mut self, slot: usize, key: &[u8]) -> Option<usize> {
        debug_assert!(self.keyed);
        let cell = self.cells.create(slot as Slot, key)? as usize;
        self.grow_cell_columns(self.cells.capacity());
        self.key_bytes += key.len();
        Some(cell)
    }

    /// Forgets a cell. Without keys it is emptied; with keys it is removed.
    pub(crate) fn remove_cell(&mut self, cell: usize) {
        self.clear_cell(cell);
        if self.keyed {
            let (key, _) = self.cells.remove(cell as u32);
            self.key_bytes -= key.len();
        }
    }

    /// Frees the memory of a cell's panes and objects and forgets its row number.
    fn clear_cell(&mut self, cell: usize) {
        let CellParts { panes, objects, shared, heap_bytes } = self.parts(cell);
        panes.release(heap_bytes);
        if let Some(objects) = objects {
            *objects = ObjectDeque::new();
        }
        if let Some(shared) = shared {
            *heap_bytes -= std::mem::take(shared).heap_bytes();
        }
        if let Some(row_numbers) = &mut self.row_numbers {
            row_numbers[cell] = 0;
        }
    }

    fn grow_cell_columns(&mut self, cells: usize) {
        if let Some(objects) = &mut self.objects {
            grow(objects, cells, ObjectDeque::new);
        }
        if let Some(row_numbers) = &mut self.row_numbers {
            grow(row_numbers, cells, || 0);
        }
    }

    /// The oldest cell of a slot.
    pub(crate) fn first(&self, slot: usize) -> Option<usize> {
        if !self.keyed {
            return Some(slot);
        }
        self.cells.first(slot as Slot).map(|cell| cell as usize)
    }

    /// The next younger cell of the same slot.
    pub(crate) fn next(&self, cell: usize) -> Option<usize> {
        if !self.keyed {
            return None;
        }
        self.cells.next(cell as u32).map(|cell| cell as usize)
    }

    /// The key of a cell; empty without keys.
    pub(crate) fn key(&self, cell: usize) -> &[u8] {
        if self.keyed { self.cells.key(cell as u32) } else { &[] }
    }

    pub(crate) fn panes(&self, cell: usize) -> &Panes {
        if self.keyed { self.cells.value(cell as u32) } else { &self.slots[cell].panes }
    }

    #[inline]
    pub(crate) fn parts(&mut self, cell: usize) -> CellParts<'_> {
        CellParts {
            panes: match self.keyed {
                true => self.cells.value_mut(cell as u32),
                false => &mut self.slots[cell].panes,
            },
            objects: self.objects.as_mut().map(|objects| &mut objects[cell]),
            shared: self.shared.get_mut(cell).filter(|shared| !shared.words().is_empty()),
            heap_bytes: &mut self.heap_bytes,
        }
    }

    /// Extends the shared merges of a cell's windows to its first `panes` panes.
    pub(crate) fn share(&mut self, cell: usize, panes: usize, layout: &Layout) {
        let mut shared = std::mem::take(self.shared_mut(cell));
        self.heap_bytes -= shared.heap_bytes();
        shared.extend(self.panes(cell), panes, layout);
        self.put_shared(cell, shared);
    }

    /// Sets what the windows of a cell share. They must have shared nothing before.
    pub(crate) fn put_shared(&mut self, cell: usize, shared: Shared) {
        self.heap_bytes += shared.heap_bytes();
        *self.shared_mut(cell) = shared;
    }

    fn shared_mut(&mut self, cell: usize) -> &mut Shared {
        grow(&mut self.shared, cell + 1, Shared::default);
        &mut self.shared[cell]
    }

    /// What the windows of a cell share; `None` if they share nothing.
    pub(crate) fn shared(&self, cell: usize) -> Option<&Shared> {
        self.shared.get(cell).filter(|shared| !shared.words().is_empty())
    }

    pub(crate) fn objects(&self, cell: usize) -> Option<&ObjectDeque> {
        self.objects.as_ref().map(|objects| &objects[cell])
    }

    /// The number of rows of a cell so far, for count windows.
    pub(crate) fn row_number(&self, cell: usize) -> u64 {
        self.row_numbers.as_ref().map_or(0, |numbers| numbers[cell])
    }

    pub(crate) fn set_row_number(&mut self, cell: usize, number: u64) {
        if let Some(numbers) = &mut self.row_numbers {
            numbers[cell] = number;
        }
    }

    /// Memory held, in bytes. It takes time linear in the number of panes if aggregates have objects, otherwise
    /// constant time.
    pub(crate) fn memory_bytes(&self) -> usize {
        let objects = self.objects.as_ref().map_or(0, |objects| {
            let panes: usize = objects
                .iter()
                .flatten()
                .map(|pane| pane.len() * OBJECT_BYTES + pane.iter().map(Object::memory_bytes).sum::<usize>())
                .sum();
            let deques: usize = objects.iter().map(|deque| deque.capacity() * size_of::<Box<[Object]>>()).sum();
            objects.capacity() * size_of::<ObjectDeque>() + panes + deques
        });
        self.slots.capacity() * size_of::<SlotState>()
            + self.deadlines_us.capacity() * size_of::<i64>()
            + self.key_hashes.capacity() * size_of::<u16>()
            + self.cells.memory_bytes()
            + self.row_numbers.as_ref().map_or(0, |numbers| numbers.capacity() * 8)
            + self.shared.capacity() * size_of::<Shared>()
            + self.lengths.capacity() * size_of::<(Lengths, u32)>()
            + self.lengths_index.allocation_size()
            + self.heap_bytes
            + self.key_bytes
            + objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(width: i64) -> Lengths {
        Lengths::new(width, width, false).unwrap()
    }

    #[test]
    fn a_slot_is_one_cache_line() {
        assert_eq!(size_of::<SlotState>(), 64);
    }

    #[test]
    fn a_slot_that_leaves_takes_its_cells_with_it() {
        let mut cells = Cells::new(true, false, false);
        for slot in [0, 1] {
            cells.add_slot(slot, Some(lengths(5)), 0);
            (0..3u8).for_each(|key| assert!(cells.create(slot, &[key]).is_some()));
        }
        cells.remove_slot(0);
        assert_eq!((cells.first(0), cells.key_bytes, cells.lengths(0)), (None, 3, SlotLengths::Absent));
        assert!(cells.find(1, &[2]).is_some());
    }

    #[test]
    fn lengths_are_shared_and_given_back() {
        let mut cells = Cells::new(false, false, false);
        for slot in 0..100 {
            cells.add_slot(slot, Some(lengths(1 + slot as i64 % 2)), 0);
        }
        assert_eq!(cells.lengths.len(), 2);
        (0..100).filter(|slot| slot % 2 == 0).for_each(|slot| cells.remove_slot(slot));
        cells.add_slot(0, Some(lengths(77)), 0);
        assert_eq!((cells.lengths.len(), cells.lengths(0)), (2, SlotLengths::Known(lengths(77))));
        assert_eq!(cells.lengths(1), SlotLengths::Known(lengths(2)));
        cells.add_slot(4, None, 0);
        assert_eq!(cells.lengths(4), SlotLengths::Broken);
    }
}
