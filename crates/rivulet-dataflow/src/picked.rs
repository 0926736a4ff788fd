//! Decoded rows on their way to the queries that read them: each row is held once, with a list of the queries that get
//! it.

use crate::{Batch, LogPosition, Slot};

/// Rows of one batch for queries of a group: row `rows[i]` of the batch is an event for `slots[i]`. A row may be picked
/// for any number of queries and is held once.
#[derive(Clone, Debug)]
pub struct Picked {
    batch: Batch,
    rows: Vec<u32>,
    slots: Vec<Slot>,
    /// The size of a picked row where payload bytes are bounded.
    row_bytes: usize,
}

impl Picked {
    /// Picks the rows `rows` of `batch`, each for the query in the slot at the same index, in the order in which the
    /// queries get them.
    ///
    /// # Panics
    /// If there are not as many slots as rows, or a row is not in the batch.
    pub fn new(batch: &Batch, rows: Vec<u32>, slots: Vec<Slot>) -> Self {
        assert_eq!(rows.len(), slots.len(), "one slot for each picked row");
        let mut picked = Self { batch: batch.clone(), rows, slots, row_bytes: 0 };
        // A few rows must not keep the memory of many.
        if picked.rows.len() * 2 < batch.rows() {
            picked.batch = picked.to_batch();
            picked.rows = (0..picked.slots.len() as u32).collect();
        }
        // Rows are held once, however often they are picked.
        let held = picked.batch.columns.get_array_memory_size();
        picked.row_bytes = size_of::<u32>() + size_of::<Slot>() + held.div_ceil(picked.len().max(1));
        picked
    }

    /// The number of events.
    #[inline]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The slot of each event.
    #[inline]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The size of the events where payload bytes are bounded.
    pub fn bytes(&self) -> usize {
        self.len() * self.row_bytes
    }

    /// How many of the oldest events must go to free `bytes`; all of them if that is not enough.
    pub fn rows_to_free(&self, bytes: usize) -> usize {
        self.rows_of(bytes).min(self.len())
    }

    /// How many events have this size together.
    pub fn rows_of(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.row_bytes)
    }

    /// When each event reached the engine, microseconds since the epoch.
    #[inline]
    pub fn arrival_us(&self) -> impl Iterator<Item = i64> + '_ {
        self.rows.iter().map(|&row| self.batch.arrival_us[row as usize])
    }

    /// The log position of the event at `index`; 0 if it is not in the log.
    #[inline]
    pub fn position(&self, index: usize) -> LogPosition {
        self.batch.position(self.rows[index] as usize)
    }

    /// Whether any event may be in the log.
    #[inline]
    pub fn has_positions(&self) -> bool {
        self.batch.positions.is_some()
    }

    /// The first index from `events` on at which no event of the log is cut in two: the rows of an event are adjacent.
    pub fn end_of_event(&self, events: usize) -> usize {
        let goes_on = |&next: &usize| self.position(next) != 0 && self.position(next) == self.position(next - 1);
        events + (events.max(1)..self.len()).take_while(goes_on).count()
    }

    /// The events as a batch.
    pub fn to_batch(&self) -> Batch {
        let taken = self.batch.take(&self.rows).expect("the picked rows are in the batch");
        Batch { slots: self.slots.clone().into(), ..taken }
    }

    /// Splits off the oldest `events`.
    pub fn split_front(&mut self, events: usize) -> Self {
        let (rows, slots) = (self.rows.split_off(events), self.slots.split_off(events));
        let front = (std::mem::replace(&mut self.rows, rows), std::mem::replace(&mut self.slots, slots));
        Self { batch: self.batch.clone(), rows: front.0, slots: front.1, row_bytes: self.row_bytes }
    }

    /// Keeps only the events whose slot satisfies `keep`, in order.
    pub fn retain_slots(&mut self, keep: impl Fn(Slot) -> bool) {
        let mut kept = self.slots.iter().map(|&slot| keep(slot));
        self.rows.retain(|_| kept.next().expect("one slot for each row"));
        self.slots.retain(|&slot| keep(slot));
    }

    /// Keeps only the events at indices for which `keep` holds, in order.
    pub fn retain_rows(&mut self, keep: impl Fn(usize) -> bool) {
        let (mut of_rows, mut of_slots) = (0.., 0..);
        self.rows.retain(|_| keep(of_rows.next().expect("endless")));
        self.slots.retain(|_| keep(of_slots.next().expect("endless")));
    }

    /// Removes the events for which `place` has another slot, and returns them with that slot.
    pub fn extract(&mut self, place: impl Fn(Slot) -> Option<Slot>) -> Self {
        let (mut rows, mut slots) = (Vec::new(), Vec::new());
        for (&row, &slot) in self.rows.iter().zip(&self.slots) {
            if let Some(slot) = place(slot) {
                rows.push(row);
                slots.push(slot);
            }
        }
        self.retain_slots(|slot| place(slot).is_none());
        Self { batch: self.batch.clone(), rows, slots, row_bytes: self.row_bytes }
    }

    /// Copies the events of one slot for another slot.
    pub fn copied(&self, from: Slot, to: Slot) -> Self {
        let events = self.rows.iter().zip(&self.slots).filter(|(_, slot)| **slot == from);
        let rows: Vec<u32> = events.map(|(row, _)| *row).collect();
        Self { batch: self.batch.clone(), slots: vec![to; rows.len()], rows, row_bytes: self.row_bytes }
    }

    /// Memory held, in bytes. Shared rows count in full.
    pub fn memory_bytes(&self) -> usize {
        let times = self.batch.rows() * (size_of::<Slot>() + 2 * size_of::<i64>());
        self.batch.columns.get_array_memory_size() + times + (self.rows.capacity() + self.slots.capacity()) * 4
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::Int64Type;
    use arrow::{array::ArrayRef, array::AsArray};

    use super::*;

    fn batch() -> Batch {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![10, 11, 12]));
        let columns = RecordBatch::try_from_iter([("v", column)]).unwrap();
        Batch::new(vec![0, 0, 0].into(), vec![1, 2, 3].into(), vec![7, 8, 9].into(), columns)
    }

    fn events(picked: &Picked) -> Vec<(Slot, i64, i64)> {
        let batch = picked.to_batch();
        let values = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
        (0..batch.rows()).map(|row| (batch.slots[row], values[row], batch.arrival_us[row])).collect()
    }

    #[test]
    fn a_row_is_an_event_for_each_query_it_is_picked_for() {
        let picked = Picked::new(&batch(), vec![0, 0, 2], vec![5, 6, 5]);
        assert_eq!(events(&picked), [(5, 10, 7), (6, 10, 7), (5, 12, 9)]);
        // One of three rows is copied, so that the batch is not kept.
        let one = Picked::new(&batch(), vec![1], vec![4]);
        assert_eq!((events(&one), one.batch.rows()), (vec![(4, 11, 8)], 1));
    }

    #[test]
    fn parts_are_taken_in_order() {
        let mut picked = Picked::new(&batch(), vec![0, 1, 1, 2], vec![5, 5, 6, 7]);
        let moved = picked.extract(|slot| (slot == 5).then_some(50));
        assert_eq!((events(&moved), events(&picked)), (vec![(50, 10, 7), (50, 11, 8)], vec![(6, 11, 8), (7, 12, 9)]));
        assert_eq!(events(&picked.copied(6, 60)), [(60, 11, 8)]);
        let front = picked.split_front(1);
        assert_eq!((events(&front), events(&picked)), (vec![(6, 11, 8)], vec![(7, 12, 9)]));
        assert_eq!(picked.arrival_us().collect::<Vec<_>>(), [9]);
        picked.retain_slots(|slot| slot != 7);
        assert!(picked.is_empty());
    }
}
