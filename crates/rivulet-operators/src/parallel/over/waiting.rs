//! Rows in order of event time: each waits until the watermark has passed it, and comes out once.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, Int64Array, RecordBatch, UInt8Array, UInt16Array, UInt32Array,
    new_null_array,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimestampMicrosecondType, UInt8Type};
use rivulet_dataflow::{
    Batch, Context, Element, Operator, OperatorError, Reason, Refusals, SlotTable, StateError, StateFrame,
    StateSelection,
};

use super::frame::Frame;
use super::{OverFrame, OverPlan};
use crate::aggregate::dense::RowSet;
use crate::parallel::keys::{BatchKeys, KeyIndex};
use crate::parallel::order::{compare, compare_keys};
use crate::parallel::rows::RowStore;
use crate::parallel::window::pane::emit_unless_failed;
use crate::parallel::{OUTPUT_ROWS, key_groups};

/// Rows wait in buckets of so many microseconds.
const BUCKET_US: i64 = 1 << 14;

const STATE: &str = "over, in order";
const STATE_VERSION: u32 = 1;
/// What a row of a frame is: a row that waits, one in the frame of its partition, or a row of keys with what its partition comes to.
const WAITS: u8 = 0;
const IN_FRAME: u8 = 1;
const TOTAL: u8 = 2;
/// Columns before those of the input.
const LEADING: usize = 6;

pub(super) struct WaitingOperator {
    plan: Arc<OverPlan>,
    index: KeyIndex,
    store: RowStore,
    /// By row.
    partition_of: Vec<u32>,
    /// By partition.
    frames: Vec<Frame>,
    waiting: BTreeMap<i64, Vec<u32>>,
    watermark_us: i64,
    keys: BatchKeys,
}

impl WaitingOperator {
    pub(super) fn new(plan: Arc<OverPlan>) -> Self {
        Self {
            index: plan.keys.index(0),
            store: plan.store().expect("the store was made when the plan was checked"),
            partition_of: Vec::new(),
            frames: Vec::new(),
            waiting: BTreeMap::new(),
            watermark_us: i64::MIN,
            keys: BatchKeys::default(),
            plan,
        }
    }

    fn take_in(&mut self, batch: &Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() {
            return Err(OperatorError("rows that are taken back came to an aggregation that was promised none".into()));
        }
        let column = batch.column(self.plan.spec.order[0].column).clone();
        let times = column.as_primitive::<TimestampMicrosecondType>();
        let mut kept = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            if times.is_null(row) {
                context.refusals.refuse_row(None, batch, row, Reason::Expression, || {
                    "a row without a time has no place in their order".into()
                });
            } else if times.value(row) < self.watermark_us {
                context.refusals.refuse_row(None, batch, row, Reason::Late, || {
                    "later rows have come out already\nhint: allow more lateness where the source is declared".into()
                });
            } else {
                kept.push(row as u32);
            }
        }
        let columns = batch.columns.columns();
        self.keys.read(&self.plan.keys, columns)?;
        let times_of = |row: usize| (batch.event_time_us[row], batch.arrival_us[row]);
        let rows = self.add(columns, &kept, times_of)?;
        for (&at, row) in kept.iter().zip(rows) {
            self.waiting.entry(times.value(at as usize).div_euclid(BUCKET_US)).or_default().push(row);
        }
        Ok(())
    }

    /// Stores rows, whose keys have been read.
    fn add(
        &mut self,
        columns: &[ArrayRef],
        rows: &[u32],
        times: impl Fn(usize) -> (i64, i64),
    ) -> Result<Vec<u32>, OperatorError> {
        let (mut partitions, mut numbers) = (Vec::new(), Vec::new());
        self.index.assign(&self.keys, &RowSet::List(rows), &mut partitions);
        let plan = &self.plan;
        let frame = || Frame::new(&plan.groups, plan.is_bounded());
        self.frames.resize_with(self.index.numbers().max(self.frames.len()), frame);
        self.store.add(columns, rows, times, &mut numbers)?;
        self.partition_of.resize(self.store.numbers(), 0);
        for (&row, &partition) in numbers.iter().zip(&partitions) {
            self.partition_of[row as usize] = partition;
        }
        Ok(numbers)
    }

    fn time_of(&self, row: u32) -> i64 {
        self.store.word(self.plan.spec.order[0].column, row) as i64
    }

    fn close(&mut self, watermark_us: i64, is_end: bool, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if watermark_us <= self.watermark_us && !is_end {
            return Ok(());
        }
        self.watermark_us = watermark_us;
        let mut due = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            let bucket = *entry.key();
            if !is_end && bucket.saturating_mul(BUCKET_US) >= watermark_us {
                break;
            }
            let rows = entry.remove();
            let (passed, waiting): (Vec<u32>, Vec<u32>) =
                rows.into_iter().partition(|&row| is_end || self.time_of(row) < watermark_us);
            due.extend(passed);
            if !waiting.is_empty() {
                self.waiting.insert(bucket, waiting);
                break;
            }
        }
        self.sort(&mut due);
        self.give(&due, context)
    }

    fn sort(&self, rows: &mut [u32]) {
        rows.sort_unstable_by(|&a, &b| {
            let partitions = self.partition_of[a as usize].cmp(&self.partition_of[b as usize]);
            partitions.then_with(|| compare(&self.plan.spec.order, &self.store, a, b))
        });
    }

    /// Gives rows, which are sorted, with their results.
    fn give(&mut self, rows: &[u32], context: &mut Context<'_>) -> Result<(), OperatorError> {
        if rows.is_empty() {
            return Ok(());
        }
        let plan = self.plan.clone();
        let (entries, kept) = plan.entries(&self.store, rows, context)?;
        let mut results = plan.groups.states();
        results.grow(&plan.groups, kept.len());
        let mut gone: Vec<u32> = Vec::new();
        let mut at = 0;
        while at < kept.len() {
            let row = kept[at];
            let partition = self.partition_of[row as usize];
            let time_us = self.time_of(row);
            // Rows of a range that the order does not tell apart see each other.
            let peers = match plan.spec.frame {
                OverFrame::Rows { .. } => 1,
                OverFrame::Range { .. } => kept[at..]
                    .iter()
                    .take_while(|&&other| {
                        self.partition_of[other as usize] == partition
                            && compare_keys(&plan.spec.order, &self.store, row, other).is_eq()
                    })
                    .count(),
            };
            let frame = &mut self.frames[partition as usize];
            for (peer, &row) in kept.iter().enumerate().skip(at).take(peers) {
                frame.push(&plan.groups, row, time_us, &entries, peer as u32);
            }
            while plan.leaves(frame, time_us) {
                gone.extend(frame.pop(&plan.groups));
            }
            (at..at + peers).for_each(|peer| frame.total(&plan.groups, &mut results, peer as u32));
            at += peers;
        }
        let groups: Vec<u32> = (0..kept.len() as u32).collect();
        for (rows, groups) in kept.chunks(OUTPUT_ROWS).zip(groups.chunks(OUTPUT_ROWS)) {
            let mut failed = Vec::new();
            let mut columns = self.store.columns(rows)?;
            columns.extend(plan.groups.results(&results, groups, &mut failed)?);
            let batch = Batch::new(
                vec![0; rows.len()].into(),
                rows.iter().map(|&row| self.store.event_time_us(row)).collect(),
                rows.iter().map(|&row| self.store.arrival_us(row)).collect(),
                RecordBatch::try_new(plan.output.clone(), columns)?,
            );
            emit_unless_failed(batch, failed, context)?;
        }
        if plan.is_bounded() {
            // Rows on which an expression failed are in no frame.
            if kept.len() < rows.len() {
                let mut known = kept.clone();
                known.sort_unstable();
                gone.extend(rows.iter().filter(|row| known.binary_search(row).is_err()));
            }
            gone.into_iter().for_each(|row| self.store.remove(row));
        } else {
            rows.iter().for_each(|&row| self.store.remove(row));
        }
        Ok(())
    }

    fn frame_schema(&self) -> SchemaRef {
        let leading = [
            ("slot", DataType::UInt32),
            ("key_group", DataType::UInt16),
            ("event_time_us", DataType::Int64),
            ("arrival_us", DataType::Int64),
            ("what", DataType::UInt8),
            ("watermark_us", DataType::Int64),
        ];
        let leading = leading.into_iter().map(|(name, data_type)| Field::new(name, data_type, false));
        let input = self.plan.spec.input.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let fields = leading.chain(input).chain([Field::new("states", DataType::Binary, true)]);
        Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), self.plan.metadata()))
    }

    /// Rows of a frame: what they are, their times, their columns, and states.
    fn frame_rows(
        &self,
        what: Vec<u8>,
        times: Vec<(i64, i64)>,
        columns: Vec<ArrayRef>,
        states: ArrayRef,
    ) -> Result<RecordBatch, StateError> {
        let rows = what.len();
        let keys: Vec<ArrayRef> = self.plan.spec.partition.iter().map(|&column| columns[column].clone()).collect();
        let groups = key_groups(&keys, rows)?;
        let mut all: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from_value(0, rows)),
            Arc::new(UInt16Array::from(groups)),
            Arc::new(Int64Array::from_iter_values(times.iter().map(|times| times.0))),
            Arc::new(Int64Array::from_iter_values(times.iter().map(|times| times.1))),
            Arc::new(UInt8Array::from(what)),
            Arc::new(Int64Array::from_value(self.watermark_us, rows)),
        ];
        all.extend(columns);
        all.push(states);
        Ok(RecordBatch::try_new(self.frame_schema(), all)?)
    }

    fn export(&self) -> Result<StateFrame, StateError> {
        let plan = &self.plan;
        let rows = self.store.live();
        let mut in_frame = vec![WAITS; self.store.numbers()];
        self.frames.iter().flat_map(Frame::entries).for_each(|entry| in_frame[entry.row as usize] = IN_FRAME);
        let what = rows.iter().map(|&row| in_frame[row as usize]).collect();
        let times = rows.iter().map(|&row| (self.store.event_time_us(row), self.store.arrival_us(row))).collect();
        let no_states = new_null_array(&DataType::Binary, rows.len());
        let mut batches = vec![self.frame_rows(what, times, self.store.columns(&rows)?, no_states)?];
        if !plan.is_bounded() {
            let partitions: Vec<u32> = (0..self.frames.len() as u32).collect();
            let keys = self.index.columns(&plan.keys, &partitions)?;
            let columns = (0..plan.spec.input.fields().len())
                .map(|column| match plan.spec.partition.iter().position(|&key| key == column) {
                    Some(at) => keys[at].clone(),
                    None => new_null_array(plan.spec.input.field(column).data_type(), partitions.len()),
                })
                .collect();
            let mut states = plan.groups.states();
            states.grow(&plan.groups, 1);
            let (mut encoded, mut bytes) = (BinaryBuilder::new(), Vec::new());
            for frame in &self.frames {
                frame.total(&plan.groups, &mut states, 0);
                bytes.clear();
                states.encode(&plan.groups, 0, &[], &mut bytes);
                encoded.append_value(&bytes);
            }
            let times = vec![(0, 0); partitions.len()];
            let states = Arc::new(encoded.finish());
            batches.push(self.frame_rows(vec![TOTAL; partitions.len()], times, columns, states)?);
        }
        Ok(StateFrame::new(STATE, STATE_VERSION, concat_batches(&self.frame_schema(), &batches)?))
    }

    fn import(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect(STATE, STATE_VERSION)?;
        if frame.rows.schema() != self.frame_schema() {
            return Err(StateError::Mismatch("state of an aggregation over other columns, orders or frames".into()));
        }
        let plan = self.plan.clone();
        let (leading, rest) = frame.rows.columns().split_at(LEADING);
        let (columns, states) = rest.split_at(plan.spec.input.fields().len());
        let order = &columns[plan.spec.order[0].column];
        let what = leading[4].as_primitive::<UInt8Type>();
        let is_whole = |row: usize| what.value(row) == TOTAL || order.is_valid(row);
        if leading.iter().any(|column| column.null_count() > 0) || !(0..what.len()).all(is_whole) {
            return Err(StateError::Corrupt("a row without its times".into()));
        }
        let fail = |error: OperatorError| StateError::Corrupt(error.to_string());
        self.keys.read(&plan.keys, columns)?;
        let number = |column: usize, row: usize| leading[column].as_primitive::<Int64Type>().value(row);
        let those =
            |kind: u8| -> Vec<u32> { (0..what.len() as u32).filter(|&row| what.value(row as usize) == kind).collect() };
        let times = |row: usize| (number(2, row), number(3, row));
        for row in self.add(columns, &those(WAITS), times).map_err(fail)? {
            self.waiting.entry(self.time_of(row).div_euclid(BUCKET_US)).or_default().push(row);
        }
        let mut rows = self.add(columns, &those(IN_FRAME), times).map_err(fail)?;
        self.sort(&mut rows);
        let slots = SlotTable::new(Arc::new(Schema::empty()));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let context = &mut Context::new(0, &slots, &mut refusals, &mut output);
        let (entries, kept) = plan.entries(&self.store, &rows, context).map_err(fail)?;
        for (at, &row) in kept.iter().enumerate() {
            let (partition, time_us) = (self.partition_of[row as usize], self.time_of(row));
            self.frames[partition as usize].push(&plan.groups, row, time_us, &entries, at as u32);
        }
        let totals = those(TOTAL);
        let mut partitions = Vec::new();
        self.index.assign(&self.keys, &RowSet::List(&totals), &mut partitions);
        let frame_of = || Frame::new(&plan.groups, plan.is_bounded());
        self.frames.resize_with(self.index.numbers().max(self.frames.len()), frame_of);
        let mut decoded = plan.groups.states();
        decoded.grow(&plan.groups, 1);
        for (&row, &partition) in totals.iter().zip(&partitions) {
            let mut bytes = states[0].as_binary::<i32>().value(row as usize);
            decoded
                .decode(&plan.groups, 0, &mut bytes)
                .filter(|()| bytes.is_empty())
                .ok_or_else(|| StateError::Corrupt("states of a partition".into()))?;
            self.frames[partition as usize].restore(&plan.groups, &decoded, 0);
        }
        (0..what.len()).for_each(|row| self.watermark_us = self.watermark_us.max(number(5, row)));
        Ok(())
    }
}

impl Operator for WaitingOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(&batch, context),
            Element::Watermark(watermark_us) => self.close(watermark_us, false, context),
            Element::End => self.close(i64::MAX, true, context),
            Element::Barrier(_) | Element::Control(_) => Ok(()),
        }
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        self.export()?.select(selection).map(Some)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.import(frame)
    }

    fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.store.memory_bytes()
            + self.partition_of.capacity() * 4
            + self.frames.iter().map(Frame::memory_bytes).sum::<usize>()
            + self.waiting.values().map(|rows| rows.capacity() * 4).sum::<usize>()
    }
}
