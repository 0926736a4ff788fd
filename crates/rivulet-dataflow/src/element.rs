//! What an edge of a dataflow carries.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, UInt32Array, UInt64Array,
};
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use arrow::compute::{FilterBuilder, concat_batches, prep_null_mask_filter, take_record_batch};
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use arrow::error::ArrowError;

use crate::Slot;

/// The position of an event in the log: 1, 2, 3, ..., never used again; 0 for an event that is not in the log.
///
/// An event that gives several rows, or that a query reads by several inputs, has one position for all of them, and a
/// batch may end between two of these. So a position may be used as "done up to here" only for work before a restart.
pub type LogPosition = u64;

/// Rows of many queries at once.
///
/// `columns` holds the declared (or computed) columns. The three buffers beside it hold, for each row, the slot of its
/// query and its two times. All four have the same length. Cloning shares the buffers.
///
/// Results of big queries may change: a row may retract an equal row that came before ([`Batch::retracts`]). A changed
/// row is two rows: the retraction of the old row, followed by the new row.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The slot of each row's query.
    pub slots: ScalarBuffer<Slot>,
    /// Event time of each row, microseconds since the Unix epoch; equal to `arrival_us` until a time column is
    /// assigned.
    pub event_time_us: ScalarBuffer<i64>,
    /// When each row's event reached the engine, microseconds since the Unix epoch.
    pub arrival_us: ScalarBuffer<i64>,
    /// The columns of the rows. A batch without columns still has a row count.
    pub columns: RecordBatch,
    /// Which rows retract an equal row that came before; `None` if none does, as always in small queries.
    pub retracts: Option<BooleanBuffer>,
    /// Position of each row's event in the log; `None` if no event of the batch is in the log.
    pub positions: Option<ScalarBuffer<LogPosition>>,
}

impl Batch {
    /// Makes a batch from its parts.
    ///
    /// # Panics
    /// If the parts differ in length.
    pub fn new(
        slots: ScalarBuffer<Slot>,
        event_time_us: ScalarBuffer<i64>,
        arrival_us: ScalarBuffer<i64>,
        columns: RecordBatch,
    ) -> Self {
        let rows = columns.num_rows();
        assert!(
            slots.len() == rows && event_time_us.len() == rows && arrival_us.len() == rows,
            "a batch's parts have one length: columns {rows}, slots {}, event times {}, arrivals {}",
            slots.len(),
            event_time_us.len(),
            arrival_us.len()
        );
        Self { slots, event_time_us, arrival_us, columns, retracts: None, positions: None }
    }

    /// The same rows, with marks for those that retract an equal earlier row.
    ///
    /// # Panics
    /// If there is not one mark for each row.
    pub fn with_retracts(self, retracts: Option<BooleanBuffer>) -> Self {
        assert!(retracts.as_ref().is_none_or(|marks| marks.len() == self.rows()), "one mark for each row");
        Self { retracts: retracts.filter(|marks| marks.has_true()), ..self }
    }

    /// The same rows, with the positions of their events in the log.
    ///
    /// # Panics
    /// If there is not one position for each row.
    pub fn with_positions(self, positions: Option<ScalarBuffer<LogPosition>>) -> Self {
        assert!(positions.as_ref().is_none_or(|all| all.len() == self.rows()), "one position for each row");
        Self { positions, ..self }
    }

    /// Position in the log of the event of `row`; 0 if the event is not in the log.
    #[inline]
    pub fn position(&self, row: usize) -> LogPosition {
        self.positions.as_ref().map_or(0, |all| all[row])
    }

    /// Whether `row` retracts an equal earlier row.
    pub fn is_retraction(&self, row: usize) -> bool {
        self.retracts.as_ref().is_some_and(|marks| marks.value(row))
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.columns.num_rows()
    }

    /// Whether the batch has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    /// The column at `index`.
    pub fn column(&self, index: usize) -> &ArrayRef {
        self.columns.column(index)
    }

    /// The same rows with other columns.
    pub fn with_columns(&self, columns: RecordBatch) -> Self {
        Self::new(self.slots.clone(), self.event_time_us.clone(), self.arrival_us.clone(), columns)
            .with_retracts(self.retracts.clone())
            .with_positions(self.positions.clone())
    }

    /// The rows for which `keep` is true (null counts as false), in order.
    pub fn filter(&self, keep: &BooleanArray) -> Result<Self, ArrowError> {
        let without_nulls;
        let keep = match keep.null_count() {
            0 => keep,
            _ => {
                without_nulls = prep_null_mask_filter(keep);
                &without_nulls
            }
        };
        // The predicate is prepared once and applied to all columns.
        let predicate = FilterBuilder::new(keep).optimize().build();
        let times = |times_us: &ScalarBuffer<i64>| -> Result<ScalarBuffer<i64>, ArrowError> {
            let kept = predicate.filter(&Int64Array::new(times_us.clone(), None))?;
            Ok(kept.as_primitive::<Int64Type>().values().clone())
        };
        let slots = predicate.filter(&UInt32Array::new(self.slots.clone(), None))?;
        let marks = self.retracts.as_ref().map(|marks| predicate.filter(&BooleanArray::new(marks.clone(), None)));
        let positions = self.positions.as_ref().map(|all| predicate.filter(&UInt64Array::new(all.clone(), None)));
        Ok(Self::new(
            slots.as_primitive::<UInt32Type>().values().clone(),
            times(&self.event_time_us)?,
            times(&self.arrival_us)?,
            predicate.filter_record_batch(&self.columns)?,
        )
        .with_retracts(marks.transpose()?.map(|marks| marks.as_boolean().values().clone()))
        .with_positions(positions.transpose()?.map(|kept| kept.as_primitive::<UInt64Type>().values().clone())))
    }

    /// The rows at `rows`, in that order.
    pub fn take(&self, rows: &[u32]) -> Result<Self, ArrowError> {
        let indices = UInt32Array::from(rows.to_vec());
        // A batch without columns has only its number of rows to keep.
        let columns = match self.columns.num_columns() {
            0 => {
                let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
                RecordBatch::try_new_with_options(self.columns.schema(), Vec::new(), &options)?
            }
            _ => take_record_batch(&self.columns, &indices)?,
        };
        Ok(Self::new(
            rows.iter().map(|&row| self.slots[row as usize]).collect(),
            rows.iter().map(|&row| self.event_time_us[row as usize]).collect(),
            rows.iter().map(|&row| self.arrival_us[row as usize]).collect(),
            columns,
        )
        .with_retracts(self.retracts.as_ref().map(|marks| rows.iter().map(|&row| marks.value(row as usize)).collect()))
        .with_positions(self.positions.as_ref().map(|all| rows.iter().map(|&row| all[row as usize]).collect())))
    }

    /// Concatenates batches with the same columns.
    ///
    /// # Panics
    /// If `batches` is empty.
    pub fn concat(mut batches: Vec<Self>) -> Result<Self, ArrowError> {
        if let [_] = batches[..] {
            return Ok(batches.remove(0));
        }
        let columns = concat_batches(batches[0].columns.schema_ref(), batches.iter().map(|batch| &batch.columns))?;
        let is_marked = batches.iter().any(|batch| batch.retracts.is_some());
        let has_positions = batches.iter().any(|batch| batch.positions.is_some());
        let rows = || batches.iter().flat_map(|batch| (0..batch.rows()).map(move |row| (batch, row)));
        Ok(Self::new(
            batches.iter().flat_map(|batch| batch.slots.iter().copied()).collect(),
            batches.iter().flat_map(|batch| batch.event_time_us.iter().copied()).collect(),
            batches.iter().flat_map(|batch| batch.arrival_us.iter().copied()).collect(),
            columns,
        )
        .with_retracts(is_marked.then(|| rows().map(|(batch, row)| batch.is_retraction(row)).collect()))
        .with_positions(has_positions.then(|| rows().map(|(batch, row)| batch.position(row)).collect())))
    }

    /// `rows` rows from `offset`, sharing the buffers.
    pub fn slice(&self, offset: usize, rows: usize) -> Self {
        Self::new(
            self.slots.slice(offset, rows),
            self.event_time_us.slice(offset, rows),
            self.arrival_us.slice(offset, rows),
            self.columns.slice(offset, rows),
        )
        .with_retracts(self.retracts.as_ref().map(|marks| marks.slice(offset, rows)))
        .with_positions(self.positions.as_ref().map(|all| all.slice(offset, rows)))
    }
}

/// A change to the set of queries a dataflow serves. It travels in band, so it is ordered with the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// These slots are new; their parameters are in the slot table.
    AddSlots(Vec<Slot>),
    /// These slots are removed: operators forget all their state. The slot numbers may be used again by other queries.
    RemoveSlots(Vec<Slot>),
}

/// The event clock of a slot: its watermark, and what later watermarks follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotClock {
    /// The slot.
    pub slot: Slot,
    /// Its latest event time, in microseconds since the Unix epoch.
    pub newest_us: i64,
    /// The arrival of its newest row, in microseconds since the Unix epoch.
    pub arrival_us: i64,
    /// Its watermark, in microseconds since the Unix epoch. It may be ahead of what follows from the newest row: a
    /// silence that is over may have brought it there.
    pub watermark_us: i64,
}

/// What an edge carries.
#[derive(Clone, Debug)]
pub enum Element {
    /// Rows.
    Batch(Batch),
    /// No row older than this event time (microseconds since the epoch) will follow from any input; a row that is older
    /// is late. Only big queries have watermarks: in small queries each slot has an event clock, kept by the operator
    /// that needs it.
    Watermark(i64),
    /// The state before this element belongs to the checkpoint with this number.
    Barrier(u64),
    /// Event clocks of slots have moved. A window tells them to the windows over its results, behind the results that
    /// it has given by then.
    Clocks(Arc<[SlotClock]>),
    /// Queries are added or removed.
    Control(Control),
    /// Nothing will follow: operators emit their open windows and end.
    End,
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn batch() -> Batch {
        let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, true)]));
        let columns = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(vec![10, 11, 12]))]).unwrap();
        Batch::new(vec![1, 2, 3].into(), vec![100, 200, 300].into(), vec![7, 8, 9].into(), columns)
    }

    #[test]
    fn filter_keeps_rows_and_their_times_together() {
        let keep = BooleanArray::from(vec![Some(true), None, Some(true)]);
        let kept = batch().filter(&keep).unwrap();
        assert_eq!(kept.slots.as_ref(), &[1, 3]);
        assert_eq!(kept.event_time_us.as_ref(), &[100, 300]);
        assert_eq!(kept.arrival_us.as_ref(), &[7, 9]);
        assert_eq!(kept.rows(), 2);
    }

    #[test]
    fn take_reorders() {
        let taken = batch().take(&[2, 0]).unwrap();
        assert_eq!(taken.slots.as_ref(), &[3, 1]);
        assert_eq!(taken.columns.column(0).as_ref(), &Int64Array::from(vec![12, 10]) as &dyn Array);
    }

    #[test]
    fn rows_without_columns_are_counted() {
        let batch = batch();
        let bare = batch.with_columns(batch.columns.project(&[]).unwrap());
        assert_eq!((bare.take(&[2]).unwrap().rows(), bare.take(&[]).unwrap().rows()), (1, 0));
        assert_eq!(bare.filter(&BooleanArray::from(vec![true, false, true])).unwrap().rows(), 2);
        assert_eq!(Batch::concat(vec![bare.clone(), bare]).unwrap().rows(), 6);
    }

    #[test]
    fn marks_stay_with_their_rows() {
        let marked = batch().with_retracts(Some(vec![false, true, false].into()));
        assert!(!marked.is_retraction(0) && marked.is_retraction(1));
        assert!(marked.take(&[1]).unwrap().is_retraction(0));
        assert!(marked.slice(1, 2).is_retraction(0));
        let both = Batch::concat(vec![batch(), marked.clone()]).unwrap();
        assert!(both.is_retraction(4) && both.retracts.unwrap().count_set_bits() == 1);
        let keep = BooleanArray::from(vec![true, true, false]);
        assert!(marked.filter(&keep).unwrap().is_retraction(1));
        assert!(marked.filter(&BooleanArray::from(vec![true, false, true])).unwrap().retracts.is_none());
        assert!(marked.with_columns(marked.columns.clone()).is_retraction(1));
    }

    #[test]
    fn positions_stay_with_their_rows() {
        let batch = batch().with_positions(Some(vec![4, 5, 6].into()));
        assert_eq!(batch.take(&[2, 0]).unwrap().positions.unwrap().as_ref(), &[6, 4]);
        assert_eq!(batch.slice(1, 2).position(0), 5);
        let keep = BooleanArray::from(vec![true, false, true]);
        assert_eq!(batch.filter(&keep).unwrap().position(1), 6);
        assert_eq!(batch.with_columns(batch.columns.clone()).position(2), 6);
        let both = Batch::concat(vec![batch.slice(1, 2), self::batch()]).unwrap();
        assert_eq!((both.rows(), both.positions.unwrap().as_ref()), (5, &[5, 6, 0, 0, 0][..]));
    }

    #[test]
    #[should_panic(expected = "one length")]
    fn parts_of_different_length_are_refused() {
        let b = batch();
        Batch::new(vec![1].into(), b.event_time_us, b.arrival_us, b.columns);
    }
}
