//! Computes results by key, and retracts results that have changed.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{concat, kernels::cmp::not_distinct, take};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use rivulet_dataflow::{Batch, Context, Element, Operator, OperatorError, StateByKey, StateError, StateFrame};

use super::plan::AggregatePlan;
use super::state::KeyedGroups;
use crate::aggregate::dense::RowSet;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::keys::BatchKeys;
use crate::parallel::time_to_live::refuse_forgotten;
use crate::parallel::window::pane::emit_with_failures;

/// From this many rows on, changes are emitted without a watermark. Until then small batches are collected, so that a
/// key that changes in each of them comes out once.
const PENDING_ROWS_MAX: usize = 4096;

pub(super) struct AggregateOperator {
    plan: Arc<AggregatePlan>,
    keyed: KeyedGroups,
    /// Keys whose rows have changed since the last output.
    touched: Vec<u32>,
    /// The changed keys that have an emitted result, and these results in pieces.
    given: Vec<u32>,
    given_results: Vec<Vec<ArrayRef>>,
    pending_rows: usize,
    /// When the first of the pending rows came, and the latest arrival of a pending row.
    pending_since_us: i64,
    arrival_us: i64,
    keys: BatchKeys,
    numbers: Vec<u32>,
}

impl AggregateOperator {
    pub(super) fn new(plan: Arc<AggregatePlan>) -> Self {
        Self {
            keyed: KeyedGroups::new(plan.clone()),
            touched: Vec::new(),
            given: Vec::new(),
            given_results: Vec::new(),
            pending_rows: 0,
            pending_since_us: 0,
            arrival_us: i64::MIN,
            keys: BatchKeys::default(),
            numbers: Vec::new(),
            plan,
        }
    }

    fn take_in(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() && !self.plan.spec.input_retracts {
            return Err(OperatorError::new("rows that are taken back came to an aggregation that was promised none"));
        }
        let plan = self.plan.clone();
        let batch = self.without_forgotten(batch, context)?;
        let (batch, values) = plan.groups.evaluate(batch, context)?;
        if batch.is_empty() {
            return Ok(());
        }
        self.keys.read(&plan.keys, batch.columns.columns())?;
        let rows = RowSet::Range(0..batch.rows());
        let mut numbers = std::mem::take(&mut self.numbers);
        self.keyed.index.assign(&self.keys, &rows, &mut numbers);
        self.keyed.grow(self.keyed.index.numbers());
        if self.pending_rows == 0 {
            self.pending_since_us = context.now_us;
        }
        self.touch(&numbers)?;
        self.keyed.states.update(&plan.groups, &values, &numbers, &rows, &batch.event_time_us);
        for (row, &number) in numbers.iter().enumerate() {
            let group = &mut self.keyed.groups[number as usize];
            group.rows += if batch.is_retraction(row) { -1 } else { 1 };
            group.latest_us = group.latest_us.max(batch.event_time_us[row]);
            self.arrival_us = self.arrival_us.max(batch.arrival_us[row]);
        }
        if let Some(ttl) = &mut self.keyed.ttl {
            ttl.touch(&numbers, batch.event_time_us.iter().copied());
        }
        self.numbers = numbers;
        self.pending_rows += batch.rows();
        if self.pending_rows >= PENDING_ROWS_MAX { self.give(context) } else { Ok(()) }
    }

    /// Refuses retractions for keys that have no rows, because they are forgotten or never had any. Returns the other
    /// rows.
    fn without_forgotten(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<Batch, OperatorError> {
        if self.keyed.ttl.is_none() || batch.retracts.is_none() {
            return Ok(batch);
        }
        self.keys.read(&self.plan.keys, batch.columns.columns())?;
        self.keyed.index.assign(&self.keys, &RowSet::Range(0..batch.rows()), &mut self.numbers);
        self.keyed.grow(self.keyed.index.numbers());
        let mut rows_of: HashMap<u32, i64, RandomState> = HashMap::default();
        let known: BooleanBuffer = (self.numbers.iter().enumerate())
            .map(|(row, &number)| {
                let rows = rows_of.entry(number).or_insert(self.keyed.groups[number as usize].rows);
                let is_known = !batch.is_retraction(row) || *rows > 0;
                *rows += i64::from(is_known) * if batch.is_retraction(row) { -1 } else { 1 };
                is_known
            })
            .collect();
        if known.count_set_bits() == known.len() {
            return Ok(batch);
        }
        (!&known).set_indices().for_each(|row| refuse_forgotten(&batch, row, context));
        // Keys that have only had such retractions give their number back.
        for (&number, &rows) in &rows_of {
            let group = self.keyed.groups[number as usize];
            if rows == 0 && group.rows == 0 && !group.is_given && !group.is_touched {
                self.keyed.index.remove(number);
            }
        }
        Ok(batch.filter(&known.into())?)
    }

    /// Remembers which keys change, and their emitted results.
    fn touch(&mut self, numbers: &[u32]) -> Result<(), OperatorError> {
        let from = self.given.len();
        for &number in numbers {
            let group = &mut self.keyed.groups[number as usize];
            if !group.is_touched {
                group.is_touched = true;
                self.touched.push(number);
                if group.is_given {
                    self.given.push(number);
                }
            }
        }
        if self.given.len() > from {
            // A result that was emitted has not failed.
            self.given_results.push(self.plan.groups.results(
                &self.keyed.states,
                &self.given[from..],
                &mut Vec::new(),
            )?);
        }
        Ok(())
    }

    /// Retracts the results that have changed, and emits the new ones.
    fn give(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if self.touched.is_empty() {
            return Ok(());
        }
        let plan = self.plan.clone();
        let is_unit = plan.keys.len() == 0;
        let touched = std::mem::take(&mut self.touched);
        let given = std::mem::take(&mut self.given);
        let pieces = std::mem::take(&mut self.given_results);
        let olds = (0..plan.spec.aggregates.len())
            .map(|column| concat(&pieces.iter().map(|piece| piece[column].as_ref()).collect::<Vec<_>>()))
            .collect::<Result<Vec<_>, _>>();
        let olds = if given.is_empty() { Vec::new() } else { olds? };
        let present: Vec<u32> =
            touched.iter().copied().filter(|&number| is_unit || self.keyed.groups[number as usize].rows > 0).collect();
        let mut failed = Vec::new();
        let news = plan.groups.results(&self.keyed.states, &present, &mut failed)?;

        // For keys on both sides, finds out whether anything has changed.
        let both = places_of_both(&touched, &given, &present);
        let mut same = BooleanBuffer::new_set(both.len());
        let [old_places, new_places] = [
            UInt32Array::from_iter_values(both.iter().map(|pair| pair.0)),
            UInt32Array::from_iter_values(both.iter().map(|pair| pair.1)),
        ];
        if !both.is_empty() {
            for (old, new) in olds.iter().zip(&news) {
                let equal = not_distinct(&take(old, &old_places, None)?, &take(new, &new_places, None)?)?;
                same = &same & equal.values();
            }
        }
        let (mut keep_old, mut keep_new) = (vec![true; given.len()], vec![true; present.len()]);
        same.set_indices().for_each(|at| {
            keep_old[both[at].0 as usize] = false;
            keep_new[both[at].1 as usize] = false;
        });

        let times = given.iter().map(|&number| self.keyed.groups[number as usize].given_us).collect();
        self.emit(&given, &olds, &keep_old, times, true, Vec::new(), context)?;
        let times: Vec<i64> = present.iter().map(|&number| self.keyed.groups[number as usize].latest_us).collect();
        self.emit(&present, &news, &keep_new, times, false, failed, context)?;

        for &number in &touched {
            let group = &mut self.keyed.groups[number as usize];
            group.is_touched = false;
            group.is_given = false;
        }
        for (at, &number) in present.iter().enumerate() {
            let group = &mut self.keyed.groups[number as usize];
            group.is_given = true;
            if keep_new[at] {
                group.given_us = group.latest_us;
            }
        }
        for &number in &touched {
            if self.keyed.groups[number as usize].rows == 0 && !is_unit {
                self.keyed.clear(number);
                if let Some(ttl) = &mut self.keyed.ttl {
                    ttl.remove(number);
                }
            }
        }
        self.pending_rows = 0;
        Ok(())
    }

    /// Forgets keys that no row has touched for the time-to-live. All changes have been emitted.
    fn forget(&mut self, watermark_us: i64) {
        let expired = self.keyed.ttl.as_mut().map_or_else(Vec::new, |ttl| ttl.expired(watermark_us));
        for number in expired {
            self.keyed.clear(number);
        }
    }

    /// Emits the rows of these keys that are kept.
    #[allow(clippy::too_many_arguments)] // The parts of rows, which exist here only.
    fn emit(
        &self,
        numbers: &[u32],
        results: &[ArrayRef],
        keep: &[bool],
        times_us: Vec<i64>,
        retracts: bool,
        failed: Vec<(usize, &'static str)>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let kept: Vec<u32> = (0..numbers.len() as u32).filter(|&at| keep[at as usize]).collect();
        for kept in kept.chunks(OUTPUT_ROWS) {
            let rows = kept.len();
            let keys: Vec<u32> = kept.iter().map(|&at| numbers[at as usize]).collect();
            let mut columns = self.keyed.index.columns(&self.plan.keys, &keys)?;
            let places = UInt32Array::from(kept.to_vec());
            for result in results {
                columns.push(take(result, &places, None)?);
            }
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let batch = Batch::new(
                vec![0; rows].into(),
                kept.iter().map(|&at| times_us[at as usize]).collect(),
                vec![self.arrival_us; rows].into(),
                RecordBatch::try_new_with_options(self.plan.output.clone(), columns, &options)?,
            )
            .with_retracts(retracts.then(|| BooleanBuffer::new_set(rows)));
            let place = |at: usize| kept.binary_search(&(at as u32)).ok();
            let failed = failed.iter().filter_map(|&(at, why)| Some((place(at)?, why))).collect();
            emit_with_failures(batch, failed, context);
        }
        Ok(())
    }

    /// Whether the row for no rows at all is still to come.
    fn lacks_first(&self) -> bool {
        self.plan.keys.len() == 0 && !self.keyed.groups.get(0).is_some_and(|group| group.is_given || group.is_touched)
    }

    /// Emits all results. That no row has come is a result, too.
    fn give_all(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if self.lacks_first() {
            self.keyed.grow(1);
            self.keyed.groups[0].latest_us = self.keyed.groups[0].latest_us.max(0);
            self.arrival_us = self.arrival_us.max(context.now_us);
            self.touch(&[0])?;
        }
        self.give(context)
    }
}

/// Finds the keys that are in two lists, and returns their index in each. Both lists are parts of `all`, in its order,
/// so the cost depends on these keys and not on all keys of the operator.
fn places_of_both(all: &[u32], some: &[u32], others: &[u32]) -> Vec<(u32, u32)> {
    let mut both = Vec::with_capacity(some.len().min(others.len()));
    let (mut one, mut other) = (0, 0);
    for number in all {
        let is_in = [some.get(one) == Some(number), others.get(other) == Some(number)];
        if is_in == [true; 2] {
            both.push((one as u32, other as u32));
        }
        one += usize::from(is_in[0]);
        other += usize::from(is_in[1]);
    }
    both
}

impl Operator for AggregateOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(batch, context),
            Element::Watermark(watermark_us) => {
                self.give(context)?;
                self.forget(watermark_us);
                Ok(())
            }
            Element::Barrier(_) => self.give(context),
            Element::End => self.give_all(context),
            Element::Control(_) | Element::Clocks(_) => Ok(()),
        }
    }

    fn deadline_us(&self) -> Option<i64> {
        match self.plan.gives_at_once && self.lacks_first() {
            true => Some(i64::MIN),
            false => (self.pending_rows > 0).then_some(self.pending_since_us),
        }
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if self.plan.gives_at_once { self.give_all(context) } else { self.give(context) }
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        if !self.touched.is_empty() {
            return Err(StateError::Mismatch("state of an aggregation is saved behind a barrier".into()));
        }
        Ok(Some(Box::new(self.keyed.by_key()?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.keyed.import(frame)
    }

    fn memory_bytes(&self) -> usize {
        self.keyed.memory_bytes()
    }
}
