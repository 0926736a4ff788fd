//! Rows in any order, which may be retracted: a row comes out at once, and changed results are retracted.
//!
//! All rows of a partition are kept in order. A change in the middle affects the rows behind it, as far as frames
//! reach. Only these rows are computed again, and only results that differ come out. If the frame is a range, its reach
//! in rows is not known, so the whole partition is computed again.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::DataType;
use rivulet_dataflow::{Batch, Context, Element, Operator, OperatorError, Reason, StateByKey, StateError, StateFrame};

use super::plan::{OverFrame, OverPlan};
use crate::aggregate::dense::RowSet;
use crate::paged::Paged;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::frame::Frame;
use crate::parallel::keys::{BatchKeys, KeyIndex, NONE};
use crate::parallel::order::{compare, compare_keys};
use crate::parallel::rows::RowStore;
use crate::parallel::saved_rows::{PartitionRows, SavedRows};
use crate::parallel::time_to_live::{TimeToLive, refuse_forgotten};

pub(super) const STATE: &str = "over, changing";
const STATE_VERSION: u32 = 2;

pub(super) struct ChangingOperator {
    plan: Arc<OverPlan>,
    index: KeyIndex,
    store: RowStore,
    /// The emitted results, and for each row the number of its result.
    results: RowStore,
    result_of: Paged<u32>,
    /// By partition: its rows in order.
    partitions: Paged<Vec<u32>>,
    /// When partitions are forgotten.
    ttl: Option<TimeToLive>,
    keys: BatchKeys,
}

/// The rows that a batch has changed in a partition: all but the first `first_rows` and the last `last_rows`.
#[derive(Clone, Copy)]
struct Change {
    partition: u32,
    first_rows: usize,
    last_rows: usize,
}

impl ChangingOperator {
    pub(super) fn new(plan: Arc<OverPlan>) -> Self {
        let made = "the stores were made when the plan was checked";
        Self {
            index: plan.keys.index(0),
            store: plan.store().expect(made),
            results: plan.result_store().expect(made),
            result_of: Paged::new(),
            partitions: Paged::new(),
            ttl: plan.ttl_us().map(TimeToLive::new),
            keys: BatchKeys::default(),
            plan,
        }
    }

    fn take_in(&mut self, batch: &Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() && !self.plan.spec.input_retracts {
            return Err(OperatorError::new("rows that are taken back came to an aggregation that was promised none"));
        }
        let columns = batch.columns.columns();
        self.keys.read(&self.plan.keys, columns)?;
        let all: Vec<u32> = (0..batch.rows() as u32).collect();
        let (mut partitions, mut rows) = (Vec::new(), Vec::new());
        self.index.assign(&self.keys, &RowSet::List(&all), &mut partitions);
        self.partitions.grow_with(self.index.numbers(), Vec::new);
        if let Some(ttl) = &mut self.ttl {
            ttl.touch(&partitions, batch.event_time_us.iter().copied());
        }
        self.store.add(columns, &all, |row| (batch.event_time_us[row], batch.arrival_us[row]), &mut rows)?;
        self.result_of.grow(self.store.numbers(), NONE);
        let mut changes: Vec<Change> = Vec::new();
        let mut change_of = vec![NONE; self.partitions.len()];
        // Rows to be removed, and rows whose results are to be retracted.
        let (mut removed, mut gone) = (Vec::new(), Vec::new());
        for (at, (&partition, &row)) in partitions.iter().zip(&rows).enumerate() {
            let known = &mut self.partitions[partition as usize];
            let found = known.binary_search_by(|&known| compare(&self.plan.spec.order, &self.store, known, row));
            let place = match (batch.is_retraction(at), found) {
                (false, Ok(place) | Err(place)) => {
                    known.insert(place, row);
                    place
                }
                (true, Ok(place)) => {
                    let old = known.remove(place);
                    if self.result_of[old as usize] != NONE {
                        gone.push((old, std::mem::replace(&mut self.result_of[old as usize], NONE)));
                    }
                    removed.extend([old, row]);
                    place
                }
                (true, Err(_)) => {
                    refuse_forgotten(batch, at, context);
                    removed.push(row);
                    continue;
                }
            };
            let last_rows = known.len() - place.min(known.len());
            let last_rows = if batch.is_retraction(at) { last_rows } else { last_rows - 1 };
            match change_of[partition as usize] {
                NONE => {
                    change_of[partition as usize] = changes.len() as u32;
                    changes.push(Change { partition, first_rows: place, last_rows });
                }
                known => {
                    let change = &mut changes[known as usize];
                    change.first_rows = change.first_rows.min(place);
                    change.last_rows = change.last_rows.min(last_rows);
                }
            }
        }
        self.compute(&changes, gone, context)?;
        removed.into_iter().for_each(|row| self.store.remove(row));
        for change in changes {
            if self.partitions[change.partition as usize].is_empty() {
                self.index.remove(change.partition);
                if let Some(ttl) = &mut self.ttl {
                    ttl.remove(change.partition);
                }
            }
        }
        Ok(())
    }

    /// Computes changed results again, and emits them. `gone` are retracted rows, with their results.
    fn compute(
        &mut self,
        changes: &[Change],
        mut gone: Vec<(u32, u32)>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        // The rows that frames need, and for each whether its result may have changed.
        let mut rows: Vec<u32> = Vec::new();
        let mut wanted: Vec<bool> = Vec::new();
        let mut starts: Vec<usize> = Vec::new();
        for change in changes {
            let known = &self.partitions[change.partition as usize];
            let (first, from, to) = match plan.spec.frame {
                OverFrame::Rows { preceding: Some(reach) } => {
                    let reach = usize::try_from(reach).unwrap_or(usize::MAX);
                    let to = (known.len() - change.last_rows.min(known.len())).saturating_add(reach).min(known.len());
                    (change.first_rows.saturating_sub(reach), change.first_rows, to)
                }
                OverFrame::Rows { preceding: None } => (0, change.first_rows, known.len()),
                OverFrame::Range { .. } => (0, 0, known.len()),
            };
            starts.push(rows.len());
            rows.extend_from_slice(&known[first.min(to)..to]);
            wanted.extend((first.min(to)..to).map(|at| at >= from));
        }
        let (entries, kept, _) = plan.entries(&self.store, &rows, context)?;
        let mut totals = plan.groups.states();
        totals.grow_words(&plan.groups, kept.len());
        // Rows on which an expression failed are not in `kept`.
        let mut places = Vec::with_capacity(kept.len());
        let mut next = 0;
        for &row in &kept {
            while rows[next] != row {
                next += 1;
            }
            places.push(next);
            next += 1;
        }
        let mut starts = starts.into_iter().peekable();
        let mut frame = Frame::new(&plan.groups, plan.is_bounded());
        let mut at = 0;
        while at < kept.len() {
            while starts.next_if(|start| *start <= places[at]).is_some() {
                frame = Frame::new(&plan.groups, plan.is_bounded());
            }
            let end = starts.peek().copied().unwrap_or(usize::MAX);
            let peers = match plan.spec.frame {
                OverFrame::Rows { .. } => 1,
                OverFrame::Range { .. } => (at..kept.len())
                    .take_while(|&other| {
                        places[other] < end
                            && compare_keys(&plan.spec.order, &self.store, kept[at], kept[other]).is_eq()
                    })
                    .count(),
            };
            let time_us = plan.spec.order.first().map_or(0, |key| self.store.word(key.column, kept[at]) as i64);
            for (peer, &row) in kept.iter().enumerate().skip(at).take(peers) {
                frame.push(&plan.groups, row, time_us, &entries, peer as u32);
            }
            while plan.leaves(&frame, time_us) {
                frame.pop(&plan.groups);
            }
            (at..at + peers).for_each(|peer| frame.finish(&plan.groups, &mut totals, peer as u32));
            at += peers;
        }

        let given: Vec<u32> = (0..kept.len() as u32).filter(|&at| wanted[places[at as usize]]).collect();
        let mut failed = Vec::new();
        let columns = plan.groups.results(&totals, &given, &mut failed)?;
        let mut come = Vec::new();
        let all: Vec<u32> = (0..given.len() as u32).collect();
        let mut numbers = Vec::new();
        self.results.add(&columns, &all, |_| (0, 0), &mut numbers)?;
        failed.sort_unstable();
        for (at, (&place, &result)) in given.iter().zip(&numbers).enumerate() {
            let row = kept[place as usize];
            let old = self.result_of[row as usize];
            if old != NONE && self.results.compare_content(old, result).is_eq() {
                self.results.remove(result);
                continue;
            }
            if old != NONE {
                gone.push((row, old));
            }
            if let Ok(why) = failed.binary_search_by_key(&at, |failed| failed.0) {
                let batch = self.batch(&[(row, result)])?;
                // The result is null: the row, and the results beside it, must not be lost.
                context.refusals.refuse_row(None, &batch, 0, Reason::Expression, || failed[why].1.to_owned());
            }
            self.result_of[row as usize] = result;
            come.push((row, result));
        }
        for rows in gone.chunks(OUTPUT_ROWS) {
            let marks = BooleanBuffer::new_set(rows.len());
            context.emit(self.batch(rows)?.with_retracts(Some(marks)));
        }
        for rows in come.chunks(OUTPUT_ROWS) {
            context.emit(self.batch(rows)?);
        }
        gone.into_iter().for_each(|(_, result)| self.results.remove(result));
        Ok(())
    }

    /// Rows with their results.
    fn batch(&self, rows: &[(u32, u32)]) -> Result<Batch, OperatorError> {
        let (rows, results): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
        let mut columns = self.store.columns(&rows)?;
        columns.extend(self.results.columns(&results)?);
        Ok(self.store.batch(&rows, &self.plan.output, columns)?)
    }

    /// Forgets partitions that no row has touched for the time-to-live.
    fn forget(&mut self, watermark_us: i64) {
        for partition in self.ttl.as_mut().map_or_else(Vec::new, |ttl| ttl.expired(watermark_us)) {
            for row in std::mem::take(&mut self.partitions[partition as usize]) {
                self.store.remove(row);
                let result = std::mem::replace(&mut self.result_of[row as usize], NONE);
                if result != NONE {
                    self.results.remove(result);
                }
            }
            self.index.remove(partition);
        }
    }

    fn saved(&self) -> SavedRows {
        let columns = self.plan.output.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let added = [("has_result", DataType::Boolean), ("touched_us", DataType::Int64)];
        SavedRows::new((STATE, STATE_VERSION), &added, columns, self.plan.states())
    }
}

/// The rows of all partitions, with their results.
struct ChangingRows<'a>(&'a ChangingOperator, PartitionRows);

impl StateByKey for ChangingRows<'_> {
    fn hashes(&self) -> &[u16] {
        &self.1.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let ChangingOperator { plan, store, results, result_of, .. } = self.0;
        let (numbers, touched_us) = self.1.some(rows);
        let of_rows: Vec<u32> = numbers.iter().map(|&row| result_of[row as usize]).collect();
        let has_result = of_rows.iter().map(|&result| Some(result != NONE)).collect::<BooleanArray>();
        let times = numbers.iter().map(|&row| (store.event_time_us(row), store.arrival_us(row)));
        let mut columns = store.columns(&numbers)?;
        columns.extend(results.columns(&of_rows)?);
        let saved = self.0.saved();
        let added = vec![Arc::new(has_result) as ArrayRef, touched_us];
        Ok(saved.frame(saved.rows(&plan.spec.partition, times, added, columns)?))
    }
}

impl Operator for ChangingOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => {
                let batch = match &self.ttl {
                    Some(ttl) => ttl.without_late(batch, context)?,
                    None => batch,
                };
                self.take_in(&batch, context)
            }
            Element::Watermark(watermark_us) => {
                self.forget(watermark_us);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        // In their order: equal rows may have different results, by their positions.
        let partitions = self.partitions.iter().map(|rows| rows.iter().copied());
        let rows = PartitionRows::new(partitions, self.ttl.as_ref(), &self.store, &self.plan.spec.partition)?;
        Ok(Some(Box::new(ChangingRows(self, rows))))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let plan = self.plan.clone();
        let form = self.saved();
        let frame = &*plan.groups.brought_up(frame, form.schema())?;
        let saved = form.read(frame)?;
        let (columns, results) = saved.columns.split_at(plan.spec.input.fields().len());
        self.keys.read(&plan.keys, columns)?;
        let all: Vec<u32> = (0..saved.len() as u32).collect();
        let (mut partitions, mut rows, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        self.index.assign(&self.keys, &RowSet::List(&all), &mut partitions);
        self.partitions.grow_with(self.index.numbers(), Vec::new);
        self.store.add(columns, &all, |row| saved.times(row), &mut rows)?;
        self.result_of.grow(self.store.numbers(), NONE);
        let has_result = saved.added[0].as_boolean();
        let with: Vec<u32> = all.iter().copied().filter(|&row| has_result.value(row as usize)).collect();
        self.results.add(results, &with, |_| (0, 0), &mut numbers)?;
        for (&at, &result) in with.iter().zip(&numbers) {
            self.result_of[rows[at as usize] as usize] = result;
        }
        for (&partition, &row) in partitions.iter().zip(&rows) {
            self.partitions[partition as usize].push(row);
        }
        if let Some(ttl) = &mut self.ttl {
            // For state that was saved without a time-to-live, the event times of the rows are used.
            ttl.touch(&partitions, (0..saved.len()).map(|row| saved.number(1, row).max(saved.times(row).0)));
        }
        partitions.sort_unstable();
        partitions.dedup();
        for partition in partitions {
            self.partitions[partition as usize].sort_by(|&a, &b| compare(&plan.spec.order, &self.store, a, b));
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        let rows: usize = self.partitions.iter().map(|rows| rows.capacity() * 4).sum();
        self.index.memory_bytes()
            + self.store.memory_bytes()
            + self.results.memory_bytes()
            + self.result_of.memory_bytes()
            + self.ttl.as_ref().map_or(0, TimeToLive::memory_bytes)
            + self.partitions.memory_bytes()
            + rows
    }
}
