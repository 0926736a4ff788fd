//! Closed windows, collected until they leave as one batch.
//!
//! Closing a window appends its merged states. The results of all windows of a call are computed at the end, one
//! aggregate after the other, into the columns of the output.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
    TimestampMicrosecondArray,
};
use rivulet_dataflow::{Batch, Context, OperatorError, Reason, Slot};

use super::plan::Plan;
use crate::aggregate::finished::Finished;
use crate::aggregate::layout::{AggregateResult, Source};
use crate::aggregate::object::SUM_OVERFLOW;
use crate::aggregate::{Storage, given};
use crate::row_bytes::RowBytes;
use crate::window::cells::ObjectDeque;

/// From this many closed windows on, a batch is emitted in the middle of a call, so that a tick which closes the
/// windows of a million slots does not build one batch of all of them.
pub(crate) const OUTPUT_ROWS_MAX: usize = 1 << 16;

/// The slot and times of a window that closes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    pub(crate) slot: Slot,
    /// The arrival of the row or tick that closes it.
    pub(crate) arrival_us: i64,
    pub(crate) start_us: i64,
    pub(crate) end_us: i64,
}

/// Windows that are closed and not yet emitted.
#[derive(Default)]
pub(crate) struct Closed {
    slots: Vec<Slot>,
    arrivals_us: Vec<i64>,
    starts_us: Vec<i64>,
    ends_us: Vec<i64>,
    /// The merged counts and fixed states of each window.
    states: Vec<u64>,
    /// The results of the objects of each window.
    objects: Vec<Finished>,
    key_bytes: Vec<u8>,
    key_ends: Vec<usize>,
}

impl Closed {
    pub(crate) fn rows(&self) -> usize {
        self.slots.len()
    }

    /// Appends a window: the merge of the entries of all `parts`, and of the objects `first..last` of the cell.
    pub(crate) fn push(
        &mut self,
        plan: &Plan,
        closing: Closing,
        key: &[u8],
        parts: [&[u64]; 2],
        objects: Option<(&ObjectDeque, std::ops::Range<usize>)>,
    ) {
        self.slots.push(closing.slot);
        self.arrivals_us.push(closing.arrival_us);
        self.starts_us.push(closing.start_us);
        self.ends_us.push(closing.end_us);
        let at = self.states.len();
        self.states.extend_from_slice(&plan.layout.empty_window);
        parts.into_iter().for_each(|entries| plan.layout.merge(&mut self.states[at..], entries));
        if let Some((objects, range)) = objects {
            for (index, state) in plan.layout.objects.iter().enumerate() {
                let panes = objects.range(range.clone()).map(move |pane| &pane[index]);
                self.objects.push(state.kind.finish(panes));
            }
        }
        if plan.keys > 0 {
            self.key_bytes.extend_from_slice(key);
            self.key_ends.push(self.key_bytes.len());
        }
    }

    /// Emits the closed windows. A window without a result for an aggregate is refused.
    pub(crate) fn emit(
        &mut self,
        plan: &Plan,
        row_bytes: &RowBytes,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let rows = self.rows();
        if rows == 0 {
            return Ok(());
        }
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(plan.output.fields().len());
        if plan.keys > 0 {
            let starts = std::iter::once(0).chain(self.key_ends.iter().copied());
            let keys = starts.zip(&self.key_ends).map(|(start, &end)| &self.key_bytes[start..end]);
            columns.extend(row_bytes.decode(keys)?);
        }
        columns.push(Arc::new(TimestampMicrosecondArray::from(std::mem::take(&mut self.starts_us))));
        let ends_us = std::mem::take(&mut self.ends_us);
        let last_moment_us = i64::from(plan.window.is_time());
        let event_times_us = ends_us.iter().map(|end_us| end_us - last_moment_us).collect();
        columns.push(Arc::new(TimestampMicrosecondArray::from(ends_us)));
        let uncounted = self.windows(plan).enumerate().filter(|(_, window)| !plan.layout.is_counted(window));
        let mut failures: Vec<(usize, &'static str)> = uncounted.map(|(row, _)| (row, TOO_MANY_ROWS)).collect();
        for result in &plan.layout.results {
            let column = self.results(plan, result, &mut failures);
            columns.push(given(column, &result.data_type)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = Batch::new(
            std::mem::take(&mut self.slots).into(),
            event_times_us,
            std::mem::take(&mut self.arrivals_us).into(),
            RecordBatch::try_new_with_options(plan.output.clone(), columns, &options)?,
        );
        self.clear();
        if failures.is_empty() {
            context.emit(batch);
            return Ok(());
        }
        failures.sort_unstable();
        failures.dedup_by_key(|failure| failure.0);
        let mut keep = vec![true; rows];
        for (row, detail) in failures {
            keep[row] = false;
            context.refusals.refuse_row(None, &batch, row, Reason::Expression, || detail.to_owned());
        }
        context.emit(batch.filter(&BooleanArray::from(keep))?);
        Ok(())
    }

    /// Computes the results of one aggregate for all windows, in the form in which states keep values.
    fn results(&self, plan: &Plan, result: &AggregateResult, failures: &mut Vec<(usize, &'static str)>) -> ArrayRef {
        let rows = self.rows();
        match result.source {
            Source::Fixed { .. } => result.column(self.windows(plan), |row| failures.push((row, SUM_OVERFLOW))),
            Source::Object(index) => {
                let stride = plan.layout.objects.len();
                let values = (0..rows).map(|row| (row, &self.objects[row * stride + index]));
                let mut failed = |row: usize, value: &Finished| {
                    if let Finished::Failed(why) = value {
                        failures.push((row, why));
                    }
                };
                match plan.layout.objects[index].kind.result_storage() {
                    Storage::Float => Arc::new(
                        values
                            .map(|(row, value)| match value {
                                Finished::Float(value) => Some(*value),
                                other => {
                                    failed(row, other);
                                    None
                                }
                            })
                            .collect::<Float64Array>(),
                    ),
                    Storage::Text => Arc::new(
                        values
                            .map(|(row, value)| match value {
                                Finished::Text(text) => Some(&**text),
                                other => {
                                    failed(row, other);
                                    None
                                }
                            })
                            .collect::<StringArray>(),
                    ),
                    _ => Arc::new(
                        values
                            .map(|(row, value)| match value {
                                Finished::Integer(value) => Some(*value),
                                other => {
                                    failed(row, other);
                                    None
                                }
                            })
                            .collect::<Int64Array>(),
                    ),
                }
            }
        }
    }

    /// The words of each window.
    fn windows(&self, plan: &Plan) -> impl Iterator<Item = &[u64]> {
        let words = plan.layout.empty_window.len();
        (0..self.rows()).map(move |row| &self.states[row * words..(row + 1) * words])
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.arrivals_us.clear();
        self.starts_us.clear();
        self.ends_us.clear();
        self.states.clear();
        self.objects.clear();
        self.key_bytes.clear();
        self.key_ends.clear();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.states.capacity() * 8
            + self.key_bytes.capacity()
            + self.key_ends.capacity() * size_of::<usize>()
            + self.objects.capacity() * size_of::<Finished>()
    }
}

const TOO_MANY_ROWS: &str =
    "more than 4294967294 rows in one pane of the window are too many to count\nhint: use a shorter window";
