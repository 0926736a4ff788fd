//! The table of one pane: from keys to states.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use rivulet_dataflow::{Batch, Context, OperatorError, Reason};

use super::bounds::KeyedWindowKind;
use super::plan::WindowPlan;
use crate::aggregate::dense::RowSet;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::groups::{GroupRows, GroupStates};
use crate::parallel::keys::{BatchKeys, KeyIndex};

/// The keys that have rows in a pane, and their states by number.
pub(crate) struct PaneTable {
    pub(crate) index: KeyIndex,
    pub(crate) states: GroupStates,
    /// By key, if the input may have retractions: the number of remaining rows.
    pub(crate) rows: Vec<i64>,
    /// The latest arrival of a row.
    pub(crate) arrival_us: i64,
}

impl PaneTable {
    /// Makes an empty table with room for about this many keys.
    pub(crate) fn new(plan: &WindowPlan, keys: usize) -> Self {
        Self { index: plan.keys.index(keys), states: plan.groups.states(), rows: Vec::new(), arrival_us: i64::MIN }
    }

    /// Adds rows.
    pub(crate) fn update(
        &mut self,
        plan: &WindowPlan,
        batch: &Batch,
        keys: &BatchKeys,
        values: &GroupRows,
        rows: &RowSet<'_>,
        numbers: &mut Vec<u32>,
    ) {
        self.index.assign(keys, rows, numbers);
        self.states.grow(&plan.groups, self.index.numbers());
        self.states.update(&plan.groups, values, numbers, rows, &batch.event_time_us);
        rows.for_each(|_, row| self.arrival_us = self.arrival_us.max(batch.arrival_us[row]));
        if plan.spec.input_retracts {
            self.rows.resize(self.index.numbers(), 0);
            rows.for_each(|at, row| {
                self.rows[numbers[at] as usize] += if batch.is_retraction(row) { -1 } else { 1 };
            });
        }
    }

    /// The keys that have rows.
    fn present(&self) -> Vec<u32> {
        let has_rows = |number: &u32| self.rows.get(*number as usize).is_none_or(|&rows| rows > 0);
        (0..self.index.numbers() as u32).filter(has_rows).collect()
    }

    /// Merges states that another instance has emitted, in rows of the plan's partial schema.
    pub(crate) fn merge(
        &mut self,
        plan: &WindowPlan,
        batch: &Batch,
        keys: &BatchKeys,
        states: &[&[i64]],
        rows: &RowSet<'_>,
        numbers: &mut Vec<u32>,
    ) {
        self.index.assign(keys, rows, numbers);
        self.states.grow(&plan.groups, self.index.numbers());
        let mut words = vec![0; states.len()];
        rows.for_each(|at, row| {
            words.iter_mut().zip(states).for_each(|(word, state)| *word = state[row] as u64);
            plan.groups.layout.merge_dense(self.states.words_mut(&plan.groups, numbers[at]), &words);
            self.arrival_us = self.arrival_us.max(batch.arrival_us[row]);
        });
    }

    /// Emits the results of all keys for the window `[start_us, end_us)`.
    pub(crate) fn emit(
        &self,
        plan: &WindowPlan,
        start_us: i64,
        end_us: i64,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        for numbers in self.present().chunks(OUTPUT_ROWS) {
            let keys = self.index.columns(&plan.keys, numbers)?;
            let window = Window { start_us, end_us, arrival_us: self.arrival_us };
            emit_results(plan, keys, &self.states, numbers, window, context)?;
        }
        Ok(())
    }

    /// Emits the states of all keys, for an instance that merges them.
    pub(crate) fn emit_states(
        &self,
        plan: &WindowPlan,
        start_us: i64,
        end_us: i64,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let numbers: Vec<u32> = (0..self.index.numbers() as u32).collect();
        for numbers in numbers.chunks(OUTPUT_ROWS) {
            let mut columns = self.index.columns(&plan.keys, numbers)?;
            let rows = numbers.len();
            columns.push(Arc::new(TimestampMicrosecondArray::from_value(start_us, rows)));
            columns.push(Arc::new(TimestampMicrosecondArray::from_value(end_us, rows)));
            for word in 0..plan.groups.layout.dense_words() {
                let values = numbers.iter().map(|&number| self.states.words(&plan.groups, number)[word] as i64);
                columns.push(Arc::new(Int64Array::from_iter_values(values)));
            }
            let columns = RecordBatch::try_new(plan.partial.clone(), columns)?;
            let (slots, arrivals_us) = (vec![0; rows], vec![self.arrival_us; rows]);
            context.emit(Batch::new(slots.into(), vec![end_us - 1; rows].into(), arrivals_us.into(), columns));
        }
        Ok(())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + self.states.memory_bytes() + self.rows.capacity() * 8
    }
}

/// A window that closes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) start_us: i64,
    pub(crate) end_us: i64,
    /// The latest arrival of its rows.
    pub(crate) arrival_us: i64,
}

/// Emits the results of these groups for one window. A result that cannot be computed is null, and counted as refused.
pub(crate) fn emit_results(
    plan: &WindowPlan,
    keys: Vec<ArrayRef>,
    states: &GroupStates,
    groups: &[u32],
    window: Window,
    context: &mut Context<'_>,
) -> Result<(), OperatorError> {
    emit_windows(plan, keys, states, groups, &vec![window; groups.len()], context)
}

/// The same for groups that have a window each.
pub(crate) fn emit_windows(
    plan: &WindowPlan,
    keys: Vec<ArrayRef>,
    states: &GroupStates,
    groups: &[u32],
    windows: &[Window],
    context: &mut Context<'_>,
) -> Result<(), OperatorError> {
    let mut columns = keys;
    let starts = windows.iter().map(|window| window.start_us);
    columns.push(Arc::new(TimestampMicrosecondArray::from_iter_values(starts)));
    let ends = windows.iter().map(|window| window.end_us);
    columns.push(Arc::new(TimestampMicrosecondArray::from_iter_values(ends)));
    // A window that counts rows ends with its last row. Any other window waits for its end. This waiting is measured
    // apart from the time that the work takes, and the result is then as new as the end of its window.
    let waits = !matches!(plan.spec.window, KeyedWindowKind::Count { .. });
    let last_us = i64::from(waits);
    let now_us = context.now_us;
    if waits {
        windows.iter().for_each(|window| context.refusals.note_wait(window.arrival_us, now_us));
    }
    let arrival_us = |window: &Window| if waits { window.arrival_us.max(now_us) } else { window.arrival_us };
    let mut failed = Vec::new();
    columns.extend(plan.groups.results(states, groups, &mut failed)?);
    let batch = Batch::new(
        vec![0; groups.len()].into(),
        windows.iter().map(|window| window.end_us - last_us).collect(),
        windows.iter().map(arrival_us).collect(),
        RecordBatch::try_new(plan.output.clone(), columns)?,
    );
    emit_with_failures(batch, failed, context);
    Ok(())
}

/// Emits a batch, and counts the rows with a result that could not be computed and is null. Such a result must not
/// remove the other results of its row.
pub(crate) fn emit_with_failures(batch: Batch, mut failed: Vec<(usize, &'static str)>, context: &mut Context<'_>) {
    failed.sort_unstable();
    failed.dedup_by_key(|failed| failed.0);
    for (row, why) in failed {
        context.refusals.refuse_row(None, &batch, row, Reason::Expression, || why.to_owned());
    }
    context.emit(batch);
}
