//! Decides whether a partial aggregation is worth its cost, and passes rows through if it is not.
//!
//! If most rows have keys of their own, a table of states does not reduce their number. So an instance counts the rows
//! that it receives and the states that it emits. If there are too many states, it passes rows through, each as the
//! states of that row alone, and tries again later.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use rivulet_dataflow::{Batch, Context, OperatorError};

use super::plan::WindowPlan;
use crate::aggregate::dense::RowSet;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::groups::GroupRows;

/// The number of rows after which it decides.
const MEASURED_ROWS: u64 = 1 << 16;
/// The number of rows that are then passed through before the next try.
const PASSED_ROWS: u64 = 1 << 20;
/// The fewest rows for each state that are worth a table.
const ROWS_A_STATE_MIN: u64 = 2;

/// Counts the rows and states of a partial aggregation, and decides whether rows are passed through.
#[derive(Default)]
pub(super) struct Reduction {
    rows: u64,
    states: u64,
    /// The states that were open when counting began: those of earlier rows.
    open_before: u64,
    /// The number of rows that are still to be passed through.
    passes: u64,
}

impl Reduction {
    /// Whether the rows of a batch are passed through.
    pub(super) fn passes(&mut self, rows: usize) -> bool {
        let passes = self.passes > 0;
        self.passes = self.passes.saturating_sub(rows as u64);
        passes
    }

    /// Notes that this many states have been emitted.
    pub(super) fn gave(&mut self, states: usize) {
        self.states += states as u64;
    }

    /// Notes that rows have been received and this many states are open.
    pub(super) fn took(&mut self, rows: usize, open_states: usize) {
        self.rows += rows as u64;
        if self.rows >= MEASURED_ROWS {
            let open_states = open_states as u64;
            let states = (self.states + open_states).saturating_sub(self.open_before);
            let passes = if self.rows < states * ROWS_A_STATE_MIN { PASSED_ROWS } else { 0 };
            *self = Self { passes, open_before: open_states, ..Self::default() };
        }
    }
}

/// Emits rows, which belong to these panes (start and end), each as the states of that row alone.
pub(super) fn pass(
    plan: &WindowPlan,
    batch: &Batch,
    values: &GroupRows,
    rows: &[u32],
    panes: &[(i64, i64)],
    context: &mut Context<'_>,
) -> Result<(), OperatorError> {
    for (rows, panes) in rows.chunks(OUTPUT_ROWS).zip(panes.chunks(OUTPUT_ROWS)) {
        let groups: Vec<u32> = (0..rows.len() as u32).collect();
        let mut states = plan.groups.states();
        states.grow(&plan.groups, rows.len());
        states.update(&plan.groups, values, &groups, &RowSet::List(rows), &batch.event_time_us);
        let taken = batch.take(rows)?;
        let mut columns: Vec<ArrayRef> = plan.spec.keys.iter().map(|&key| taken.column(key).clone()).collect();
        columns.push(Arc::new(TimestampMicrosecondArray::from_iter_values(panes.iter().map(|pane| pane.0))));
        columns.push(Arc::new(TimestampMicrosecondArray::from_iter_values(panes.iter().map(|pane| pane.1))));
        for word in 0..plan.groups.layout.dense_words() {
            let values = groups.iter().map(|&group| states.words(&plan.groups, group)[word] as i64);
            columns.push(Arc::new(Int64Array::from_iter_values(values)));
        }
        let columns = RecordBatch::try_new(plan.partial.clone(), columns)?;
        let event_times_us = panes.iter().map(|pane| pane.1 - 1).collect();
        context.emit(Batch::new(vec![0; rows.len()].into(), event_times_us, taken.arrival_us, columns));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_reduce_is_passed_through_for_a_while() {
        let mut reduction = Reduction::default();
        for _ in 0..20 {
            assert!(!reduction.passes(4096));
            reduction.gave(1000);
            reduction.took(4096, 500);
        }
        // A pane whose keys repeat stays open for long.
        let mut reduction = Reduction::default();
        for batch in 1..=100 {
            assert!(!reduction.passes(4096));
            reduction.took(4096, batch * 1000);
        }
        let mut reduction = Reduction::default();
        let mut measured = 0;
        while !reduction.passes(4096) {
            reduction.gave(4000);
            reduction.took(4096, 0);
            measured += 4096;
        }
        assert_eq!(measured, MEASURED_ROWS);
        let passed = (1..).take_while(|_| reduction.passes(4096)).count() as u64 + 1;
        assert_eq!(passed * 4096, PASSED_ROWS, "then it is tried again");
    }
}
