//! Matches, collected until they leave as one batch.

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use rivulet_dataflow::{Batch, Context, OperatorError, Slot};

use super::Plan;
use super::registers::Match;
use crate::history::value::{Builder, Value};
use crate::row_bytes::RowBytes;

/// Matches found and not yet emitted.
#[derive(Default)]
pub(super) struct Matches {
    slots: Vec<Slot>,
    times_us: Vec<i64>,
    arrivals_us: Vec<i64>,
    /// For each the group it belongs to and when it was decided.
    order: Vec<(u64, i64)>,
    group: u64,
    key_bytes: Vec<u8>,
    key_ends: Vec<usize>,
    /// The results, one match after the other.
    values: Vec<Value>,
}

impl Matches {
    /// What is found from now on, until the next group, comes out in order of decision, however partitions are gone
    /// through.
    pub(super) fn begin_group(&mut self) {
        self.group += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    #[allow(clippy::too_many_arguments)] // Each of them is a column.
    pub(super) fn push(
        &mut self,
        plan: &Plan,
        of: &Match<'_>,
        slot: Slot,
        key: &[u8],
        time_us: i64,
        arrival_us: i64,
        decided_us: i64,
    ) {
        self.slots.push(slot);
        self.times_us.push(time_us);
        self.arrivals_us.push(arrival_us);
        self.order.push((self.group, decided_us));
        self.key_bytes.extend_from_slice(key);
        self.key_ends.push(self.key_bytes.len());
        self.values.extend(plan.results.iter().map(|(read, _)| read.value(of)));
    }

    fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.key_ends[before]);
        &self.key_bytes[start..self.key_ends[index]]
    }

    /// Emits what was found.
    pub(super) fn emit(
        &mut self,
        plan: &Plan,
        key_bytes: &RowBytes,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        if self.slots.is_empty() {
            return Ok(());
        }
        let mut rows: Vec<usize> = (0..self.len()).collect();
        let keyed = !plan.key_fields.is_empty();
        if keyed {
            // Stable: the matches of one partition stay in order.
            rows.sort_by(|&one, &other| {
                self.order[one].cmp(&self.order[other]).then_with(|| self.key(one).cmp(self.key(other)))
            });
        }
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(plan.output.fields().len());
        if keyed {
            columns.extend(key_bytes.decode(rows.iter().map(|&row| self.key(row)))?);
        }
        let results = plan.results.len();
        for (index, ((_, storage), field)) in
            plan.results.iter().zip(&plan.output.fields()[plan.key_fields.len()..]).enumerate()
        {
            let mut builder = Builder::values(*storage, rows.len());
            rows.iter().for_each(|row| builder.push(&self.values[row * results + index]));
            let column = builder.finish();
            columns.push(match column.data_type() == field.data_type() {
                true => column,
                false => cast(&column, field.data_type())?,
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = Batch::new(
            rows.iter().map(|&row| self.slots[row]).collect(),
            rows.iter().map(|&row| self.times_us[row]).collect(),
            rows.iter().map(|&row| self.arrivals_us[row]).collect(),
            RecordBatch::try_new_with_options(plan.output.clone(), columns, &options)?,
        );
        *self = Self::default();
        context.emit(batch);
        Ok(())
    }
}
