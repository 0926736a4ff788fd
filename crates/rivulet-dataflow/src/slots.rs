//! The table of queries of a group: a query is a row, its slot; its parameters are columns.
//!
//! A removed slot is first *retired*. It becomes free when the host says that no event of the old query can still be in
//! flight ([`SlotTable::recycle`]), so an event never reaches a query that was created later.
//!
//! Queries that compute the same may share a slot. One of them stands in the row; the further queries stand in a second
//! table, with their own values of those parameters that only name the outputs ([`further`]).

mod further;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, IntervalMonthDayNanoArray, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{
    DataType, Float64Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, SchemaRef,
    TimeUnit, TimestampMicrosecondType,
};

use super::clock::{Clock, Leaps};
use super::fetch;
use further::Further;

/// The row of a query in its group.
pub type Slot = u32;

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
            column.write(&slots, values);
        }
        self.live += slots.len();
        slots
    }

    /// Gives a query in a slot the parameter values of one row of `parameters`. The query may be any of those that
    /// share the slot. Returns whether it was in the slot.
    pub fn set(&mut self, slot: Slot, query: QueryId, parameters: &RecordBatch, row: usize) -> bool {
        let values = parameters.slice(row, 1);
        if self.query(slot) != Some(query) {
            return self.set_further(slot, query, &values);
        }
        for (column, values) in self.columns.iter_mut().zip(values.columns()) {
            column.write(&[slot], values);
        }
        true
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

/// One parameter of all slots. Nulls are a bitmap beside the values, allocated when the first null is written.
#[derive(Debug)]
struct Column {
    values: Values,
    nulls: Vec<bool>,
}

#[derive(Debug)]
enum Values {
    Boolean(Vec<bool>),
    Int64(Vec<i64>),
    Float64(Vec<f64>),
    Timestamp(Vec<i64>),
    Interval(Vec<IntervalMonthDayNano>),
    Text(Vec<Box<str>>),
}

impl Column {
    fn new(data_type: &DataType) -> Self {
        let values = match data_type {
            DataType::Boolean => Values::Boolean(Vec::new()),
            DataType::Int64 => Values::Int64(Vec::new()),
            DataType::Float64 => Values::Float64(Vec::new()),
            DataType::Utf8 => Values::Text(Vec::new()),
            DataType::Timestamp(TimeUnit::Microsecond, None) => Values::Timestamp(Vec::new()),
            DataType::Interval(IntervalUnit::MonthDayNano) => Values::Interval(Vec::new()),
            other => panic!("no parameter has type {other}"),
        };
        Self { values, nulls: Vec::new() }
    }

    fn write(&mut self, slots: &[Slot], array: &ArrayRef) {
        fn put<T: Clone + Default>(values: &mut Vec<T>, slots: &[Slot], value: impl Fn(usize) -> T) {
            for (row, &slot) in slots.iter().enumerate() {
                let slot = slot as usize;
                if slot >= values.len() {
                    values.resize(slot + 1, T::default());
                }
                values[slot] = value(row);
            }
        }
        match &mut self.values {
            Values::Boolean(values) => put(values, slots, |row| array.as_boolean().value(row)),
            Values::Int64(values) => put(values, slots, |row| array.as_primitive::<Int64Type>().value(row)),
            Values::Float64(values) => put(values, slots, |row| array.as_primitive::<Float64Type>().value(row)),
            Values::Timestamp(values) => {
                put(values, slots, |row| array.as_primitive::<TimestampMicrosecondType>().value(row));
            }
            Values::Interval(values) => {
                put(values, slots, |row| array.as_primitive::<IntervalMonthDayNanoType>().value(row));
            }
            Values::Text(values) => put(values, slots, |row| array.as_string::<i32>().value(row).into()),
        }
        if array.null_count() > 0 || !self.nulls.is_empty() {
            put(&mut self.nulls, slots, |row| array.is_null(row));
        }
    }

    fn is_null(&self, slot: usize) -> bool {
        self.nulls.get(slot).copied().unwrap_or(false)
    }

    fn gather(&self, slots: &[Slot]) -> ArrayRef {
        fn pick<'a, T, A>(column: &'a Column, slots: &'a [Slot], value: impl Fn(usize) -> T + 'a) -> A
        where
            A: FromIterator<Option<T>> + From<Vec<T>>,
        {
            if column.nulls.is_empty() {
                A::from(slots.iter().map(|&slot| value(slot as usize)).collect::<Vec<T>>())
            } else {
                slots.iter().map(|&slot| (!column.is_null(slot as usize)).then(|| value(slot as usize))).collect()
            }
        }
        match &self.values {
            Values::Boolean(values) => Arc::new(pick::<_, BooleanArray>(self, slots, |slot| values[slot])),
            Values::Int64(values) => Arc::new(pick::<_, Int64Array>(self, slots, |slot| values[slot])),
            Values::Float64(values) => Arc::new(pick::<_, Float64Array>(self, slots, |slot| values[slot])),
            Values::Timestamp(values) => {
                Arc::new(pick::<_, TimestampMicrosecondArray>(self, slots, |slot| values[slot]))
            }
            Values::Interval(values) => {
                Arc::new(pick::<_, IntervalMonthDayNanoArray>(self, slots, |slot| values[slot]))
            }
            Values::Text(values) => Arc::new(pick::<_, StringArray>(self, slots, |slot| &*values[slot])),
        }
    }

    fn write_text(&self, slot: usize, out: &mut String) {
        use std::fmt::Write;
        if self.is_null(slot) {
            return;
        }
        match &self.values {
            Values::Boolean(values) => write!(out, "{}", values[slot]),
            Values::Int64(values) | Values::Timestamp(values) => write!(out, "{}", values[slot]),
            Values::Float64(values) => write!(out, "{}", values[slot]),
            Values::Interval(values) => write!(out, "{:?}", values[slot]),
            Values::Text(values) => {
                out.push_str(&values[slot]);
                Ok(())
            }
        }
        .expect("writing to a string does not fail");
    }

    fn memory_bytes(&self) -> usize {
        self.nulls.capacity()
            + match &self.values {
                Values::Boolean(values) => values.capacity(),
                Values::Int64(values) | Values::Timestamp(values) => values.capacity() * 8,
                Values::Float64(values) => values.capacity() * 8,
                Values::Interval(values) => values.capacity() * 16,
                Values::Text(values) => {
                    values.capacity() * size_of::<Box<str>>() + values.iter().map(|text| text.len()).sum::<usize>()
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Field, Schema};

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
        assert!(table.set(0, 7, &other, 0) && table.set(1, 8, &other, 1) && !table.set(1, 9, &other, 1));
        assert_eq!(table.parameters(&[0, 1]), other);
        table.share(0, &[10], &rows(&["a"], &[Some(1.0)]));
        assert!(table.set(0, 10, &other, 1));
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
