//! Matches, collected until they leave as one batch.

use std::mem::size_of;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use rivulet_dataflow::{Batch, Context, OperatorError, Slot};

use super::plan::Plan;
use super::registers::Match;
use crate::history::value::{Builder, Value};
use crate::row_bytes::RowBytes;

/// From this many matches on, a batch is emitted in the middle of a call.
const OUTPUT_ROWS_MAX: usize = 1 << 14;

/// From this many bytes on, a batch is emitted. Far below 2 GiB, where the offsets of a column of text end.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Matches that are found and not yet emitted.
#[derive(Default)]
pub(super) struct Matches {
    slots: Vec<Slot>,
    times_us: Vec<i64>,
    arrivals_us: Vec<i64>,
    /// For each match, its group and the time at which it was decided.
    order: Vec<(u64, i64)>,
    group: u64,
    key_bytes: Vec<u8>,
    key_ends: Vec<usize>,
    /// The results, one match after the other.
    values: Vec<Value>,
    /// About how many bytes the results have, with the keys.
    bytes: usize,
}

impl Matches {
    /// Begins a group. Matches of one group come out in order of decision, whatever the order in which partitions are
    /// searched.
    pub(super) fn begin_group(&mut self) {
        self.group += 1;
    }

    /// Whether there are so many matches that they are emitted in the middle of a call.
    pub(super) fn are_many(&self) -> bool {
        self.slots.len() >= OUTPUT_ROWS_MAX || self.bytes >= OUTPUT_BYTES_MAX
    }

    /// Forgets matches that a failed call has left.
    pub(super) fn begin(&mut self) {
        if !self.slots.is_empty() {
            *self = Self::default();
        }
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
        let first = self.values.len();
        self.values.extend(plan.results.iter().map(|(read, _)| read.value(of)));
        let heap_bytes: usize = self.values[first..].iter().map(Value::heap_bytes).sum();
        self.bytes += key.len() + heap_bytes + plan.results.len() * size_of::<Value>();
    }

    fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.key_ends[before]);
        &self.key_bytes[start..self.key_ends[index]]
    }

    /// Emits the matches.
    pub(super) fn emit(
        &mut self,
        plan: &Plan,
        key_bytes: &RowBytes,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        if self.slots.is_empty() {
            return Ok(());
        }
        // Taken before anything can fail: matches that cannot be decoded must not come out again.
        std::mem::take(self).into_batch(plan, key_bytes).map(|batch| context.emit(batch))
    }

    fn into_batch(self, plan: &Plan, key_bytes: &RowBytes) -> Result<Batch, OperatorError> {
        let mut rows: Vec<usize> = (0..self.slots.len()).collect();
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
        Ok(Batch::new(
            rows.iter().map(|&row| self.slots[row]).collect(),
            rows.iter().map(|&row| self.times_us[row]).collect(),
            rows.iter().map(|&row| self.arrivals_us[row]).collect(),
            RecordBatch::try_new_with_options(plan.output.clone(), columns, &options)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion_physical_expr::expressions::Column;
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::NamedExpression;
    use crate::pattern::{Pattern, PatternMatch, PatternSpec, PatternVariable, Skip};
    use crate::testing::{parameter_table, process_context};

    /// One match with a key of these bytes.
    fn one_match(key_bytes: &[u8], time_us: i64) -> Matches {
        Matches {
            slots: vec![0],
            times_us: vec![time_us],
            arrivals_us: vec![0],
            order: vec![(0, 0)],
            key_ends: vec![key_bytes.len()],
            key_bytes: key_bytes.to_vec(),
            ..Matches::default()
        }
    }

    #[test]
    fn matches_that_cannot_be_decoded_do_not_come_again() {
        let spec = PatternSpec {
            input: Arc::new(Schema::new(vec![Field::new("key", DataType::Utf8, true)])),
            parameter_schema: Arc::new(Schema::empty()),
            parameters: vec![],
            keys: vec![NamedExpression::new("key", Arc::new(Column::new("key", 0)))],
            values: vec![],
            variables: vec![PatternVariable { name: "a".into(), row_condition: None, match_condition: None }],
            pattern: Pattern::Variable(0),
            results: vec![],
            skip: Skip::PastLastRow,
            within: None,
            lateness_us: 0,
            idle_timeout_us: 0,
            arrival_time: false,
        };
        let plan = PatternMatch::new(spec).unwrap().plan;
        let encoder = RowBytes::new([DataType::Utf8].iter()).unwrap();
        let mut good = encoder.buffer();
        encoder.encode(&[Arc::new(StringArray::from(vec!["k"]))], &mut good).unwrap();
        let table = parameter_table("unused", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        // Bytes that are no key make the decoder panic.
        let mut matches = one_match(&[], 1);
        let failed = catch_unwind(AssertUnwindSafe(|| matches.emit(&plan, &encoder, &mut context).is_err()));
        assert!(failed.unwrap_or(true));
        matches.emit(&plan, &encoder, &mut context).unwrap();
        one_match(good.row(0).data(), 2).emit(&plan, &encoder, &mut context).unwrap();
        let times: Vec<_> = output.iter().map(|batch| batch.event_time_us.to_vec()).collect();
        assert_eq!(times, [[2]]);
    }
}
