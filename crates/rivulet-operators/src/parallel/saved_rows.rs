//! Frames of rows that an operator keeps: `slot`, `key_group`, `event_time_us`, `arrival_us`, then the columns that the
//! operator adds, then the row's columns.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use rivulet_dataflow::{StateError, StateFrame, unmarked};

use super::key_hashes;
use super::rows::RowStore;
use super::time_to_live::TimeToLive;

const LEADING: [(&str, DataType); 4] = [
    ("slot", DataType::UInt32),
    ("key_group", DataType::UInt16),
    ("event_time_us", DataType::Int64),
    ("arrival_us", DataType::Int64),
];

/// Returns the columns that are the key of each row of a frame to which the operator has added `added` columns.
pub(crate) fn state_keys(frame: &StateFrame, added: usize, partition: &[usize]) -> Option<Vec<ArrayRef>> {
    let columns = frame.rows.columns().get(LEADING.len() + added..)?;
    partition.iter().map(|&column| columns.get(column).cloned()).collect()
}

/// How the rows of an operator are saved.
pub(crate) struct SavedRows {
    /// The operator's name and the version of its frames.
    operator: &'static str,
    version: u32,
    schema: SchemaRef,
    /// The number of columns that the operator adds.
    added: usize,
}

impl SavedRows {
    /// Describes rows with the columns `added` by the operator, none of them nullable, and their own columns. `states`
    /// names what they mean.
    pub(crate) fn new(
        (operator, version): (&'static str, u32),
        added: &[(&str, DataType)],
        columns: impl Iterator<Item = Field>,
        states: String,
    ) -> Self {
        let leading = LEADING.iter().chain(added).map(|(name, data_type)| Field::new(*name, data_type.clone(), false));
        let fields = leading.chain(columns.map(|column| unmarked(&column)));
        let metadata = HashMap::from([("rivulet.states".to_owned(), states)]);
        let schema = Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), metadata));
        Self { operator, version, schema, added: added.len() }
    }

    /// The columns of a frame.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Makes rows of a frame. `times` gives event times and arrivals, and the columns `partition` are the key.
    pub(crate) fn rows(
        &self,
        partition: &[usize],
        times: impl Iterator<Item = (i64, i64)>,
        added: Vec<ArrayRef>,
        columns: Vec<ArrayRef>,
    ) -> Result<RecordBatch, StateError> {
        let (event_times_us, arrivals_us): (Vec<i64>, Vec<i64>) = times.unzip();
        let rows = event_times_us.len();
        let keys: Vec<ArrayRef> = partition.iter().map(|&column| columns[column].clone()).collect();
        let mut all: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from_value(0, rows)),
            Arc::new(UInt16Array::from(key_hashes(&keys, rows)?)),
            Arc::new(Int64Array::from(event_times_us)),
            Arc::new(Int64Array::from(arrivals_us)),
        ];
        all.extend(added.into_iter().chain(columns));
        Ok(RecordBatch::try_new(self.schema.clone(), all)?)
    }

    /// Makes a frame of such rows.
    pub(crate) fn frame(&self, rows: RecordBatch) -> StateFrame {
        StateFrame::new(self.operator, self.version, rows)
    }

    /// Checks a frame that is to be imported.
    pub(crate) fn read<'f>(&self, frame: &'f StateFrame) -> Result<RestoredRows<'f>, StateError> {
        frame.expect(self.operator, self.version)?;
        if frame.rows.schema() != self.schema {
            let what = format!("state of '{}' with other columns, another order or other frames", self.operator);
            return Err(StateError::Mismatch(what));
        }
        let (leading, columns) = frame.rows.columns().split_at(LEADING.len() + self.added);
        if leading.iter().any(|column| column.null_count() > 0) {
            return Err(StateError::Corrupt(format!("a row of '{}' without its times", self.operator)));
        }
        Ok(RestoredRows { added: &leading[LEADING.len()..], columns, leading })
    }
}

/// The rows of all partitions that are to be saved: partition by partition, each in its order.
pub(crate) struct PartitionRows {
    /// By row, its number in the store.
    numbers: Vec<u32>,
    /// By row, when its partition was last touched.
    touched_us: Vec<i64>,
    /// By row, the hash of its key.
    pub(crate) hashes: Vec<u16>,
}

impl PartitionRows {
    /// Collects the rows of partitions, by number; the columns `key` of the store are their key.
    pub(crate) fn new<R: Iterator<Item = u32>>(
        partitions: impl Iterator<Item = R>,
        ttl: Option<&TimeToLive>,
        store: &RowStore,
        key: &[usize],
    ) -> Result<Self, StateError> {
        let (mut numbers, mut touched_us) = (Vec::new(), Vec::new());
        for (partition, rows) in (0u32..).zip(partitions) {
            numbers.extend(rows);
            touched_us.resize(numbers.len(), ttl.map_or(i64::MIN, |ttl| ttl.touched_us(partition)));
        }
        let key = key.iter().map(|&column| store.column(column, &numbers)).collect::<Result<Vec<_>, _>>()?;
        let hashes = key_hashes(&key, numbers.len())?;
        Ok(Self { numbers, touched_us, hashes })
    }

    /// For some rows, their numbers and when their partitions were last touched.
    pub(crate) fn some(&self, rows: &[u32]) -> (Vec<u32>, ArrayRef) {
        let touched_us = rows.iter().map(|&row| self.touched_us[row as usize]);
        (rows.iter().map(|&row| self.numbers[row as usize]).collect(), Arc::new(touched_us.collect::<Int64Array>()))
    }
}

/// The rows of a checked frame.
pub(crate) struct RestoredRows<'f> {
    leading: &'f [ArrayRef],
    /// The columns that the operator has added.
    pub(crate) added: &'f [ArrayRef],
    /// The columns of the rows.
    pub(crate) columns: &'f [ArrayRef],
}

impl RestoredRows<'_> {
    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.leading[0].len()
    }

    /// The event time and the arrival of a row.
    pub(crate) fn times(&self, row: usize) -> (i64, i64) {
        let time = |column: usize| self.leading[column].as_primitive::<Int64Type>().value(row);
        (time(2), time(3))
    }

    /// A number that the operator has added to a row, of type `Int64`.
    pub(crate) fn number(&self, added: usize, row: usize) -> i64 {
        self.added[added].as_primitive::<Int64Type>().value(row)
    }
}
