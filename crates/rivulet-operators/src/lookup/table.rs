//! Reference tables: the rows in which events are looked up, and their indexes.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::row::Rows;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::places::PlaceIndex;
use crate::row_bytes::RowBytes;

/// A reference table: rows that are replaced as a whole, shared by all operators that look events up in them.
///
/// An operator takes the rows once for each batch, so that all events of a batch see the same rows.
#[derive(Debug)]
pub struct Table {
    name: String,
    schema: SchemaRef,
    rows: RwLock<Arc<TableRows>>,
}

impl Table {
    /// Makes a table with these rows. Columns are of types that can be compared: numbers, text, booleans, times.
    pub fn new(name: impl Into<String>, rows: RecordBatch) -> Self {
        let schema = rows.schema();
        Self { name: name.into(), schema, rows: RwLock::new(Arc::new(TableRows::new(rows))) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The current rows.
    pub fn rows(&self) -> Arc<TableRows> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces all rows. The indexes in use are built first, so that no event waits for them.
    ///
    /// # Panics
    /// If the new rows have other columns.
    pub fn replace(&self, rows: RecordBatch) {
        assert_eq!(*rows.schema(), *self.schema, "the columns of a table stay the same");
        let rows = TableRows::new(rows);
        for (column, index) in self.rows().indexes.iter().enumerate() {
            if index.get().is_some() {
                rows.index(column);
            }
        }
        for (columns, _) in &*self.rows().lock_places() {
            rows.places(*columns);
        }
        *self.rows.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rows);
    }
}

/// The rows of a table at one time.
#[derive(Debug)]
pub struct TableRows {
    columns: RecordBatch,
    /// By column: its index, once an event was looked up by it.
    indexes: Box<[OnceLock<KeyIndex>]>,
    /// By columns of latitude and longitude, once an event was looked up near a place.
    places: Mutex<Vec<([usize; 2], Arc<PlaceIndex>)>>,
}

impl TableRows {
    fn new(columns: RecordBatch) -> Self {
        let indexes = (0..columns.num_columns()).map(|_| OnceLock::new()).collect();
        Self { columns, indexes, places: Mutex::default() }
    }

    /// Memory of the rows and of the indexes that are built, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let indexes = self.indexes.iter().filter_map(OnceLock::get).map(KeyIndex::memory_bytes);
        let places = self.lock_places().iter().map(|(_, index)| index.memory_bytes()).sum::<usize>();
        self.columns.get_array_memory_size() + indexes.sum::<usize>() + places
    }

    /// The rows as columns.
    pub fn columns(&self) -> &RecordBatch {
        &self.columns
    }

    /// The index of the rows by the values of one column.
    pub(super) fn index(&self, column: usize) -> &KeyIndex {
        self.indexes[column].get_or_init(|| KeyIndex::new(self.columns.column(column)))
    }

    /// The index of the rows by the places in two columns, latitude and longitude.
    pub(super) fn places(&self, columns: [usize; 2]) -> Arc<PlaceIndex> {
        let mut all = self.lock_places();
        if let Some((_, known)) = all.iter().find(|(of, _)| *of == columns) {
            return known.clone();
        }
        let index = Arc::new(PlaceIndex::new(&self.columns, columns[0], columns[1]));
        all.push((columns, index.clone()));
        index
    }

    fn lock_places(&self) -> std::sync::MutexGuard<'_, Vec<([usize; 2], Arc<PlaceIndex>)>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rows of a table by the values of one column. Null values are not in it.
pub(super) struct KeyIndex {
    encoder: RowBytes,
    keys: Rows,
    /// The first row of each value.
    first: HashTable<u32>,
    /// By row: the next row of the same value, or [`NO_ROW`].
    next: Vec<u32>,
    hasher: RandomState,
}

const NO_ROW: u32 = u32::MAX;

impl KeyIndex {
    fn new(column: &ArrayRef) -> Self {
        let encoder = RowBytes::new([column.data_type()].into_iter()).expect("a table's columns can be compared");
        let mut keys = encoder.buffer();
        encoder.encode(std::slice::from_ref(column), &mut keys).expect("the column has the type of the encoder");
        let hasher = RandomState::default();
        let mut next = vec![NO_ROW; column.len()];
        let mut first: HashTable<u32> = HashTable::with_capacity(column.len());
        // From the last row to the first, so that each chain is in order of rows.
        for row in (0..column.len()).rev().filter(|&row| column.is_valid(row)) {
            let key = keys.row(row).data();
            let same = |&other: &u32| keys.row(other as usize).data() == key;
            let hash = |&other: &u32| hasher.hash_one(keys.row(other as usize).data());
            match first.entry(hasher.hash_one(key), same, hash) {
                Entry::Occupied(mut entry) => next[row] = std::mem::replace(entry.get_mut(), row as u32),
                Entry::Vacant(entry) => {
                    entry.insert(row as u32);
                }
            }
        }
        Self { encoder, keys, first, next, hasher }
    }

    fn memory_bytes(&self) -> usize {
        self.keys.size() + (self.next.capacity() + self.first.capacity()) * size_of::<u32>()
    }

    /// Calls `found` with each index of `keys` and each row of the table with that value, both ascending. If there is
    /// no such row, it calls it once without a row.
    pub(super) fn find(&self, keys: &ArrayRef, mut found: impl FnMut(u32, Option<u32>)) {
        let mut encoded = self.encoder.buffer();
        self.encoder.encode(std::slice::from_ref(keys), &mut encoded).expect("keys have the type of the column");
        for place in 0..keys.len() {
            let key = encoded.row(place).data();
            let same = |&row: &u32| self.keys.row(row as usize).data() == key;
            let first = match keys.is_valid(place) {
                true => self.first.find(self.hasher.hash_one(key), same).copied(),
                false => None,
            };
            let Some(mut row) = first else {
                found(place as u32, None);
                continue;
            };
            while row != NO_ROW {
                found(place as u32, Some(row));
                row = self.next[row as usize];
            }
        }
    }
}

impl std::fmt::Debug for KeyIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyIndex({} values)", self.first.len())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, StringArray};

    use super::*;

    fn found(column: ArrayRef, keys: ArrayRef) -> Vec<(u32, Option<u32>)> {
        let mut found = Vec::new();
        KeyIndex::new(&column).find(&keys, |place, row| found.push((place, row)));
        found
    }

    #[test]
    fn rows_of_one_value_come_in_their_order_and_null_is_no_value() {
        let column = Arc::new(StringArray::from(vec![Some("b"), Some("a"), None, Some("b")]));
        let keys = Arc::new(StringArray::from(vec![Some("b"), None, Some("x"), Some("a")]));
        let expected = [(0, Some(0)), (0, Some(3)), (1, None), (2, None), (3, Some(1))];
        assert_eq!(found(column, keys), expected);
    }

    #[test]
    fn numbers_are_equal_as_in_sql() {
        let column = Arc::new(Float64Array::from(vec![-0.0, f64::NAN, 1.5]));
        let keys = Arc::new(Float64Array::from(vec![0.0, 1.5, -f64::NAN]));
        assert_eq!(found(column, keys), [(0, Some(0)), (1, Some(2)), (2, Some(1))]);
    }

    #[test]
    fn whoever_holds_the_rows_keeps_them_when_they_are_replaced() {
        let rows = |values: Vec<f64>| {
            RecordBatch::try_from_iter([("v", Arc::new(Float64Array::from(values)) as ArrayRef)]).unwrap()
        };
        let table = Table::new("t", rows(vec![1.0, 2.0]));
        let before = table.rows();
        before.index(0);
        table.replace(rows(vec![3.0]));
        assert_eq!((before.columns().num_rows(), table.rows().columns().num_rows()), (2, 1));
        assert!(table.rows().indexes[0].get().is_some(), "the index in use is there before the first event");
    }
}
