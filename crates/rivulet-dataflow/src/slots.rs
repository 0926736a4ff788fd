//! The table of queries of a group: a query is a row, its slot; its parameters are columns.
//!
//! A removed slot is first *retired*. It becomes free when the host says that no event of the old query can still be in
//! flight ([`SlotTable::recycle`]), so an event never reaches a query that was created later.
//!
//! Queries that compute the same may share a slot. One of them stands in the row; the further queries stand in a second
//! table, with their own values of those parameters that only name the outputs. The caller guarantees that all other
//! parameters are equal.

mod parameter;
#[cfg(test)]
mod shared_tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;

use crate::clock::{Clock, Leaps};
use crate::fetch;
use parameter::Column;

pub use parameter::Slot;

/// The most slots of one operator. State that names a higher slot is corrupt.
pub const SLOTS_MAX: usize = 1 << 26;

/// A query's number in the catalog, unique for as long as the catalog lives.
pub type QueryId = u64;

/// The query id of an empty slot.
const NOBODY: QueryId = QueryId::MAX;

/// The queries of one group: for each slot the query's id and its parameter values.
#[derive(Debug)]
pub struct SlotTable {
    schema: SchemaRef,
    columns: Vec<Column>,
    queries: Vec<QueryId>,
    retired: Vec<Slot>,
    free: Vec<Slot>,
    live: usize,
    /// The further queries of shared slots. Most groups have none.
    further: Option<Box<Further>>,
    /// Leaps of the clock, as the host has reported them; behind a lock because the table may be shared.
    leaps: Mutex<Leaps>,
    leap_count: AtomicUsize,
}

impl SlotTable {
    /// Makes an empty table for queries with these parameters.
    ///
    /// Parameter types are `Boolean`, `Int64`, `Float64`, `Utf8`, `Timestamp(Microsecond, None)` and
    /// `Interval(MonthDayNano)`.
    ///
    /// # Panics
    /// On any other type: the planner offers no other.
    pub fn new(schema: SchemaRef) -> Self {
        let columns = schema.fields().iter().map(|field| Column::new(field.data_type())).collect();
        Self {
            schema,
            columns,
            queries: Vec::new(),
            retired: Vec::new(),
            free: Vec::new(),
            live: 0,
            further: None,
            leaps: Mutex::default(),
            leap_count: AtomicUsize::new(0),
        }
    }

    /// Adds to `known` the leaps that the host has reported since.
    #[inline]
    pub fn update_leaps(&self, known: &mut Leaps) {
        if self.leap_count.load(Ordering::Acquire) != known.count() {
            known.clone_from(&self.leaps.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Takes the new leaps of a clock. The host calls it before any row is processed that arrived after the leap.
    #[inline]
    pub fn take_leaps(&self, clock: &dyn Clock) {
        if self.leap_count.load(Ordering::Acquire) != clock.leap_count() {
            let mut leaps = self.leaps.lock().unwrap_or_else(PoisonError::into_inner);
            *leaps = clock.leaps();
            self.leap_count.store(leaps.count(), Ordering::Release);
        }
    }

    /// The parameters' names and types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Gives each row of `parameters` a slot and returns the slots in row order.
    ///
    /// # Panics
    /// If the columns do not have the table's schema, or there are not as many queries as rows.
    pub fn add(&mut self, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Slot> {
        assert_eq!(queries.len(), parameters.num_rows(), "one query for each row of parameters");
        assert_eq!(parameters.num_columns(), self.columns.len(), "one column for each parameter");
        let slots: Vec<Slot> = queries
            .iter()
            .map(|&query| match self.free.pop() {
                Some(slot) => {
                    self.queries[slot as usize] = query;
                    slot
                }
                None => {
                    let slot = Slot::try_from(self.queries.len()).expect("fewer than 2^32 slots in a group");
                    self.queries.push(query);
                    slot
                }
            })
            .collect();
        for (column, values) in self.columns.iter_mut().zip(parameters.columns()) {
            column.write(slots.iter().copied().zip(0..), values);
        }
        self.live += slots.len();
        slots
    }

    /// Gives queries the values of rows of `parameters`: each with its slot, its number and the row. A query may be any
    /// of those that share the slot. Returns how many of the queries were in their slots.
    pub fn set(&mut self, changes: &[(Slot, QueryId, usize)], parameters: &RecordBatch) -> usize {
        let is_first = |change: &(Slot, QueryId, usize)| self.query(change.0) == Some(change.1);
        let (first, further): (Vec<_>, Vec<_>) = changes.iter().copied().partition(is_first);
        for (column, values) in self.columns.iter_mut().zip(parameters.columns()) {
            column.write(first.iter().map(|&(slot, _, row)| (slot, row)), values);
        }
        let further = further.into_iter().filter(|&(slot, query, row)| self.set_further(slot, query, parameters, row));
        first.len() + further.count()
    }

    /// Retires slots: all their queries are removed, and their numbers are not free yet.
    ///
    /// # Panics
    /// If a slot is not in use.
    pub fn retire(&mut self, slots: &[Slot]) {
        for &slot in slots {
            let query = &mut self.queries[slot as usize];
            assert_ne!(*query, NOBODY, "slot {slot} is in use when it is retired");
            *query = NOBODY;
        }
        self.forget_further(slots);
        self.live -= slots.len();
        self.retired.extend_from_slice(slots);
    }

    /// Frees the retired slots for new queries. The host calls it when none of their events can be in flight.
    pub fn recycle(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Whether retired slots are not free yet.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// The number of slots in use.
    pub fn live(&self) -> usize {
        self.live
    }

    /// The highest slot ever used, plus one.
    pub fn capacity(&self) -> usize {
        self.queries.len()
    }

    /// The query in a slot, if there is one; of several that share the slot, the query in the table's row.
    pub fn query(&self, slot: Slot) -> Option<QueryId> {
        self.queries.get(slot as usize).copied().filter(|&query| query != NOBODY)
    }

    /// Prefetches what [`SlotTable::query`] reads.
    #[inline]
    pub fn fetch_query(&self, slot: Slot) {
        self.queries.get(slot as usize).into_iter().for_each(fetch);
    }

    /// All slots in use, ascending.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.queries.len() as Slot).filter(|&slot| self.queries[slot as usize] != NOBODY)
    }

    /// The values of one parameter for many slots: an array with one value for each of `slots`.
    pub fn gather(&self, parameter: usize, slots: &[Slot]) -> ArrayRef {
        self.columns[parameter].gather(slots)
    }

    /// Appends the value of one parameter of one slot to `out`, as text in the form used in topics; appends nothing for
    /// null.
    pub fn write_text(&self, parameter: usize, slot: Slot, out: &mut String) {
        self.columns[parameter].write_text(slot as usize, out);
    }

    /// The parameters of the given slots as a batch with the table's schema.
    pub fn parameters(&self, slots: &[Slot]) -> RecordBatch {
        let columns = (0..self.columns.len()).map(|parameter| self.gather(parameter, slots)).collect();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(slots.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .expect("gathered columns have the table's schema")
    }

    /// Memory held, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.columns.iter().map(Column::memory_bytes).sum::<usize>()
            + self.queries.capacity() * size_of::<QueryId>()
            + (self.retired.capacity() + self.free.capacity()) * size_of::<Slot>()
            + self.further.as_ref().map_or(0, |further| further.memory_bytes())
    }
}

// Queries that share a slot: one computation, whose results go to each of them.
impl SlotTable {
    /// Adds further queries to a slot, one for each row of `parameters`.
    ///
    /// # Panics
    /// If the slot is not in use, or as [`SlotTable::add`] does.
    pub fn share(&mut self, slot: Slot, queries: &[QueryId], parameters: &RecordBatch) {
        assert!(self.query(slot).is_some(), "slot {slot} is in use when it is shared");
        let schema = self.schema.clone();
        let further = self
            .further
            .get_or_insert_with(|| Box::new(Further { table: SlotTable::new(schema), rows: HashMap::new() }));
        let rows = further.table.add(queries, parameters);
        if !rows.is_empty() {
            further.rows.entry(slot).or_default().extend(rows);
        }
    }

    /// The number of further queries, over all slots.
    pub fn further(&self) -> usize {
        self.further.as_ref().map_or(0, |further| further.table.live())
    }

    /// The number of queries in a slot.
    pub fn queries_in(&self, slot: Slot) -> usize {
        usize::from(self.query(slot).is_some()) + self.further_in(slot).len()
    }

    /// The number of further queries in the slots of these rows; each query counts once for each of its rows.
    pub fn further_of(&self, slots: &[Slot]) -> u64 {
        match self.further {
            None => 0,
            Some(_) => slots.iter().map(|&slot| self.further_in(slot).len() as u64).sum(),
        }
    }

    fn further_in(&self, slot: Slot) -> &[Slot] {
        self.further.as_ref().and_then(|further| further.rows.get(&slot)).map_or(&[], Vec::as_slice)
    }

    /// Calls `each` for every query in a slot, with its number and the table and row of its parameters.
    #[inline]
    pub fn for_each_query(&self, slot: Slot, mut each: impl FnMut(QueryId, &Self, Slot)) {
        let Some(query) = self.query(slot) else { return };
        each(query, self, slot);
        if let Some(further) = &self.further {
            for &row in self.further_in(slot) {
                each(further.table.queries[row as usize], &further.table, row);
            }
        }
    }

    /// The table and row with the parameters of one query in a slot; `None` if the query is not in the slot.
    pub fn find(&self, slot: Slot, query: QueryId) -> Option<(&Self, Slot)> {
        if self.query(slot)? == query {
            return Some((self, slot));
        }
        let table = &self.further.as_ref()?.table;
        let row = self.further_in(slot).iter().copied().find(|&row| table.query(row) == Some(query))?;
        Some((table, row))
    }

    /// Gives a further query in a slot the values of a row of `parameters`. Returns whether it was in the slot.
    fn set_further(&mut self, slot: Slot, query: QueryId, parameters: &RecordBatch, row: usize) -> bool {
        let Some(further) = &mut self.further else { return false };
        let mut own = further.rows.get(&slot).into_iter().flatten().copied();
        let Some(own) = own.find(|&own| further.table.query(own) == Some(query)) else { return false };
        for (column, values) in further.table.columns.iter_mut().zip(parameters.columns()) {
            column.write(std::iter::once((own, row)), values);
        }
        true
    }

    /// The further queries in a slot and their parameters; `None` if it has none.
    pub fn further_queries(&self, slot: Slot) -> Option<(Vec<QueryId>, RecordBatch)> {
        let table = &self.further.as_ref()?.table;
        let rows = self.further_in(slot);
        let queries = rows.iter().map(|&row| table.queries[row as usize]).collect();
        (!rows.is_empty()).then(|| (queries, table.parameters(rows)))
    }

    /// Removes a query from a slot that several share. If the query stood in the row of the slot, a further query takes
    /// that row. Returns whether the query was in the slot and shared it; if not, nothing changes.
    pub fn leave(&mut self, slot: Slot, query: QueryId) -> bool {
        let Some(mut further) = self.further.take() else { return false };
        let left = self.leave_shared(&mut further, slot, query);
        self.further = Some(further).filter(|further| !further.rows.is_empty());
        left
    }

    fn leave_shared(&mut self, further: &mut Further, slot: Slot, query: QueryId) -> bool {
        let Some(rows) = further.rows.get_mut(&slot) else { return false };
        let place = match self.queries[slot as usize] == query {
            true => Some(0),
            false => rows.iter().position(|&row| further.table.query(row) == Some(query)),
        };
        let Some(place) = place else { return false };
        let row = rows.remove(place);
        if rows.is_empty() {
            further.rows.remove(&slot);
        }
        if self.queries[slot as usize] == query {
            self.queries[slot as usize] = further.table.queries[row as usize];
            for (parameter, column) in self.columns.iter_mut().enumerate() {
                column.write(std::iter::once((slot, 0)), &further.table.gather(parameter, &[row]));
            }
        }
        further.free(row);
        true
    }

    /// Forgets the further queries of slots.
    fn forget_further(&mut self, slots: &[Slot]) {
        let Some(further) = &mut self.further else { return };
        for slot in slots {
            if let Some(rows) = further.rows.remove(slot) {
                debug_assert!(rows.iter().all(|&row| further.table.queries[row as usize] != NOBODY));
                further.table.retire(&rows);
            }
        }
        further.table.recycle();
        if further.rows.is_empty() {
            self.further = None;
        }
    }
}

/// The further queries of shared slots: a table with the same columns as that of the slots, of which only the query's
/// number and the parameters of its output topics are read.
#[derive(Debug)]
struct Further {
    /// One row for each further query, whichever slot it shares.
    table: SlotTable,
    /// The rows of each shared slot, in the order in which the queries were added. No list is empty.
    rows: HashMap<Slot, Vec<Slot>>,
}

impl Further {
    fn memory_bytes(&self) -> usize {
        let lists = self.rows.values().map(|rows| rows.capacity() * size_of::<Slot>()).sum::<usize>();
        self.table.memory_bytes() + self.rows.capacity() * size_of::<(Slot, Vec<Slot>)>() + lists
    }

    /// Frees a row at once: no event can be in flight to it.
    fn free(&mut self, row: Slot) {
        self.table.retire(&[row]);
        self.table.recycle();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, Float64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn table() -> SlotTable {
        SlotTable::new(Arc::new(Schema::new(vec![
            Field::new("home", DataType::Utf8, true),
            Field::new("target", DataType::Float64, true),
        ])))
    }

    fn rows(homes: &[&str], targets: &[Option<f64>]) -> RecordBatch {
        RecordBatch::try_new(
            table().schema,
            vec![Arc::new(StringArray::from(homes.to_vec())), Arc::new(Float64Array::from(targets.to_vec()))],
        )
        .unwrap()
    }

    #[test]
    fn parameters_are_gathered_by_slot() {
        let mut table = table();
        let slots = table.add(&[7, 8, 9], &rows(&["a", "b", "c"], &[Some(1.0), None, Some(3.0)]));
        assert_eq!(slots, [0, 1, 2]);
        let targets = table.gather(1, &[2, 1, 0, 2]);
        assert_eq!(targets.as_ref(), &Float64Array::from(vec![Some(3.0), None, Some(1.0), Some(3.0)]) as &dyn Array);
        let mut topic = String::from("home/");
        table.write_text(0, 1, &mut topic);
        assert_eq!(topic, "home/b");
    }

    #[test]
    fn a_query_that_is_altered_has_other_values_and_nobody_else_does() {
        let mut table = table();
        table.add(&[7, 8], &rows(&["a", "b"], &[None, Some(2.0)]));
        let other = rows(&["a", "c"], &[Some(5.0), None]);
        assert_eq!(table.set(&[(1, 8, 1), (0, 7, 0), (1, 9, 0)], &other), 2, "the third is nowhere");
        assert_eq!(table.parameters(&[0, 1]), other);
        table.share(0, &[10], &rows(&["a"], &[Some(1.0)]));
        assert_eq!(table.set(&[(0, 10, 1)], &other), 1);
        assert_eq!(table.further_queries(0), Some((vec![10], other.slice(1, 1))));
        assert_eq!(table.parameters(&[0]), other.slice(0, 1));
    }

    #[test]
    fn a_retired_slot_comes_back_only_after_recycling() {
        let mut table = table();
        table.add(&[7, 8], &rows(&["a", "b"], &[None, Some(2.0)]));
        table.retire(&[0]);
        assert_eq!((table.live(), table.query(0)), (1, None));
        assert_eq!(table.add(&[9], &rows(&["c"], &[Some(3.0)])), [2]);
        table.recycle();
        assert_eq!(table.add(&[10], &rows(&["d"], &[Some(4.0)])), [0]);
        assert_eq!(table.gather(1, &[0]).as_ref(), &Float64Array::from(vec![4.0]) as &dyn Array);
        assert_eq!(table.slots().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
