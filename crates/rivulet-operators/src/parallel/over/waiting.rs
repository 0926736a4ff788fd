//! Rows in order of event time: each waits until the watermark has passed it, and comes out once.

mod versions;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, Int64Array, UInt8Array, new_null_array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, TimestampMicrosecondType, UInt8Type};
use rivulet_dataflow::{
    Batch, Context, Element, Operator, OperatorError, Reason, Refusals, SlotTable, StateByKey, StateError, StateFrame,
};

use super::plan::{OverFrame, OverPlan};
use crate::aggregate::dense::RowSet;
use crate::paged::Paged;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::frame::Frame;
use crate::parallel::keys::{BatchKeys, KeyIndex, NONE, key_hashes};
use crate::parallel::order::{compare, compare_keys};
use crate::parallel::rows::RowStore;
use crate::parallel::saved_rows::SavedRows;
use crate::parallel::time_to_live::TimeToLive;
use crate::parallel::window::pane::emit_with_failures;

/// The length of the buckets in which rows wait, in microseconds.
const BUCKET_US: i64 = 1 << 14;

pub(super) const STATE: &str = "over, in order";
const STATE_VERSION: u32 = 2;
/// What a row of a saved frame is: a waiting row, a row in the frame of its partition, or a partition's keys with its
/// merged states.
const WAITS: u8 = 0;
const IN_FRAME: u8 = 1;
const TOTAL: u8 = 2;

pub(super) struct WaitingOperator {
    plan: Arc<OverPlan>,
    index: KeyIndex,
    store: RowStore,
    /// By row.
    partition_of: Paged<u32>,
    /// By partition.
    frames: Paged<Frame>,
    waiting: BTreeMap<i64, Vec<u32>>,
    /// By partition: how many of its rows wait. Only counted beside versions.
    waiting_of: Paged<u32>,
    watermark_us: i64,
    /// No more rows come with a time before this. It is the watermark plus the time by which rows are ahead of it.
    passed_us: i64,
    /// When partitions are forgotten.
    ttl: Option<TimeToLive>,
    keys: BatchKeys,
}

impl WaitingOperator {
    pub(super) fn new(plan: Arc<OverPlan>) -> Self {
        Self {
            index: plan.keys.index(0),
            store: plan.store().expect("the store was made when the plan was checked"),
            partition_of: Paged::new(),
            frames: Paged::new(),
            waiting: BTreeMap::new(),
            waiting_of: Paged::new(),
            watermark_us: i64::MIN,
            passed_us: i64::MIN,
            ttl: plan.ttl_us().map(TimeToLive::new),
            keys: BatchKeys::default(),
            plan,
        }
    }

    fn take_in(&mut self, batch: &Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() {
            return Err(OperatorError::new("rows that are taken back came to an aggregation that was promised none"));
        }
        let column = batch.column(self.plan.spec.order[0].column).clone();
        let times = column.as_primitive::<TimestampMicrosecondType>();
        let mut kept = Vec::with_capacity(batch.rows());
        for row in 0..batch.rows() {
            if times.is_null(row) {
                context.refusals.refuse_row(None, batch, row, Reason::Expression, || {
                    "a row without a time has no place in their order".into()
                });
            } else if times.value(row) < self.passed_us {
                context.refusals.refuse_late(batch, row, self.passed_us, "later rows have come out already");
            } else {
                kept.push(row as u32);
            }
        }
        let columns = batch.columns.columns();
        self.keys.read(&self.plan.keys, columns)?;
        let times_of = |row: usize| (batch.event_time_us[row], batch.arrival_us[row]);
        let rows = self.add(columns, &kept, times_of)?;
        for row in rows {
            self.wait(row);
        }
        Ok(())
    }

    /// Makes a stored row wait for its turn.
    fn wait(&mut self, row: u32) {
        self.waiting.entry(self.time_of(row).div_euclid(BUCKET_US)).or_default().push(row);
        if self.plan.versions.is_some() {
            self.waiting_of.grow(self.index.numbers(), 0);
            self.waiting_of[self.partition_of[row as usize] as usize] += 1;
        }
    }

    /// Stores rows whose keys have been read.
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
        self.frames.grow_with(self.index.numbers(), frame);
        self.store.add(columns, rows, &times, &mut numbers)?;
        if let Some(ttl) = &mut self.ttl {
            ttl.touch(&partitions, rows.iter().map(|&row| times(row as usize).0));
        }
        self.partition_of.grow(self.store.numbers(), 0);
        for (&row, &partition) in numbers.iter().zip(&partitions) {
            self.partition_of[row as usize] = partition;
        }
        Ok(numbers)
    }

    fn pass(&mut self, watermark_us: i64) {
        self.watermark_us = watermark_us;
        self.passed_us = watermark_us.saturating_add(if watermark_us == i64::MIN { 0 } else { self.plan.ahead_us });
    }

    fn time_of(&self, row: u32) -> i64 {
        self.store.word(self.plan.spec.order[0].column, row) as i64
    }

    fn close(&mut self, watermark_us: i64, is_end: bool, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if watermark_us <= self.watermark_us && !is_end {
            return Ok(());
        }
        self.pass(watermark_us);
        let passed_us = self.passed_us;
        let (store, column) = (&self.store, self.plan.spec.order[0].column);
        let mut due = Vec::new();
        while let Some(mut entry) = self.waiting.first_entry() {
            if !is_end && entry.key().saturating_mul(BUCKET_US) >= passed_us {
                break;
            }
            due.extend(entry.get_mut().extract_if(.., |row| is_end || (store.word(column, *row) as i64) < passed_us));
            if !entry.get().is_empty() {
                break;
            }
            entry.remove();
        }
        self.sort(&mut due);
        let plan = self.plan.clone();
        match &plan.versions {
            Some(versions) => self.give_with_versions(&due, versions, context)?,
            None if plan.leads.is_empty() => self.give(&due, context)?,
            None => self.give_led(&due, context)?,
        }
        self.forget(watermark_us, context)?;
        match is_end {
            true => self.give_left((0..self.frames.len() as u32).collect(), context),
            false => Ok(()),
        }
    }

    /// Forgets partitions that no row has touched for the time-to-live. None of their rows waits for its turn, because
    /// the watermark has passed them all.
    fn forget(&mut self, watermark_us: i64, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let expired = self.ttl.as_mut().map_or_else(Vec::new, |ttl| ttl.expired(watermark_us));
        self.give_left(expired.clone(), context)?;
        for partition in expired {
            let frame = Frame::new(&self.plan.groups, self.plan.is_bounded());
            let forgotten = std::mem::replace(&mut self.frames[partition as usize], frame);
            forgotten.entries().for_each(|entry| self.store.remove(entry.row));
            self.index.remove(partition);
        }
        Ok(())
    }

    /// Emits the rows whose last later row has come. `rows` are the rows that have their turn, sorted.
    fn give_led(&mut self, rows: &[u32], context: &mut Context<'_>) -> Result<(), OperatorError> {
        if rows.is_empty() {
            return Ok(());
        }
        let plan = self.plan.clone();
        let mut nothing = plan.groups.states();
        nothing.grow(&plan.groups, 1);
        let most = plan.later_rows() as usize;
        let mut led = Led::new(&plan);
        let mut gone: Vec<u32> = Vec::new();
        for &row in rows {
            let time_us = self.time_of(row);
            let frame = &mut self.frames[self.partition_of[row as usize] as usize];
            frame.push(&plan.groups, row, time_us, &nothing, 0);
            if let Some(complete) = frame.before(most) {
                led.add(&plan, complete.row, |rows| frame.before(most - rows).map(|entry| entry.row));
            }
            while plan.leaves(frame, time_us) {
                gone.extend(frame.pop(&plan.groups));
            }
        }
        self.emit_led(&led, context)?;
        gone.into_iter().for_each(|row| self.store.remove(row));
        Ok(())
    }

    /// Emits the rows of partitions that still wait for later rows, which will not come.
    fn give_left(&mut self, partitions: Vec<u32>, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        if plan.leads.is_empty() || partitions.is_empty() {
            return Ok(());
        }
        let mut led = Led::new(&plan);
        for partition in partitions {
            let empty = Frame::new(&plan.groups, plan.is_bounded());
            let left = std::mem::replace(&mut self.frames[partition as usize], empty);
            let rows: Vec<u32> = left.entries().map(|entry| entry.row).collect();
            for (at, &row) in rows.iter().enumerate() {
                led.add(&plan, row, |later| rows.get(at + later).copied());
            }
        }
        self.emit_led(&led, context)?;
        led.rows.into_iter().for_each(|row| self.store.remove(row));
        Ok(())
    }

    fn emit_led(&self, led: &Led, context: &mut Context<'_>) -> Result<(), OperatorError> {
        for (chunk, rows) in led.rows.chunks(OUTPUT_ROWS).enumerate() {
            let first = chunk * OUTPUT_ROWS;
            let mut columns = self.store.columns(rows)?;
            for (later, lead) in led.later.iter().zip(&self.plan.leads) {
                columns.push(self.store.column(lead.column, &later[first..first + rows.len()])?);
            }
            context.emit(self.store.batch(rows, &self.plan.output, columns)?);
        }
        Ok(())
    }

    fn sort(&self, rows: &mut [u32]) {
        // What tells most rows apart stands beside them. The order begins with their times.
        let key = |&row: &u32| (self.partition_of[row as usize], self.time_of(row), row);
        let mut keyed: Vec<(u32, i64, u32)> = rows.iter().map(key).collect();
        keyed.sort_unstable_by(|a, b| {
            let ahead = (a.0, a.1).cmp(&(b.0, b.1));
            ahead.then_with(|| compare(&self.plan.spec.order, &self.store, a.2, b.2))
        });
        rows.iter_mut().zip(keyed).for_each(|(row, (_, _, sorted))| *row = sorted);
    }

    /// Emits sorted rows with their results.
    fn give(&mut self, rows: &[u32], context: &mut Context<'_>) -> Result<(), OperatorError> {
        if rows.is_empty() {
            return Ok(());
        }
        let plan = self.plan.clone();
        let (entries, kept, given) = plan.entries(&self.store, rows, context)?;
        let mut results = plan.groups.states();
        results.grow_words(&plan.groups, kept.len());
        let mut gone: Vec<u32> = Vec::new();
        // For each value of an earlier row: the rows that hold it.
        let mut earlier = vec![Vec::with_capacity(kept.len()); plan.spec.lags.len()];
        let mut at = 0;
        while at < kept.len() {
            let row = kept[at];
            let partition = self.partition_of[row as usize];
            let time_us = self.time_of(row);
            // Rows of a range that are equal in the order see each other.
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
            for (rows, lag) in earlier.iter_mut().zip(&plan.spec.lags) {
                rows.push(frame.before(lag.rows as usize).map_or(NONE, |entry| entry.row));
            }
            while plan.leaves(frame, time_us) {
                gone.extend(frame.pop(&plan.groups));
            }
            (at..at + peers).for_each(|peer| frame.finish(&plan.groups, &mut results, peer as u32));
            at += peers;
        }
        let groups: Vec<u32> = (0..kept.len() as u32).collect();
        for (rows, groups) in kept.chunks(OUTPUT_ROWS).zip(groups.chunks(OUTPUT_ROWS)) {
            let (mut failed, first) = (Vec::new(), groups[0] as usize);
            let mut columns = given.slice(first, rows.len()).columns().to_vec();
            columns.extend(plan.groups.results(&results, groups, &mut failed)?);
            for (lagged, lag) in earlier.iter().zip(&plan.spec.lags) {
                columns.push(self.store.column(lag.column, &lagged[first..first + rows.len()])?);
            }
            emit_with_failures(self.store.batch(rows, &plan.output, columns)?, failed, context);
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

    fn saved(&self) -> SavedRows {
        let plan = &self.plan;
        let columns = plan.spec.input.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let added = [("what", DataType::UInt8), ("watermark_us", DataType::Int64)];
        let columns = columns.chain([Field::new("states", DataType::Binary, true)]);
        SavedRows::new((STATE, STATE_VERSION), &added, columns, plan.states())
    }

    fn import(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let plan = self.plan.clone();
        let form = self.saved();
        let frame = &*plan.groups.brought_up(frame, form.schema())?;
        let saved = form.read(frame)?;
        let (columns, states) = saved.columns.split_at(plan.spec.input.fields().len());
        let order = &columns[plan.spec.order[0].column];
        let what = saved.added[0].as_primitive::<UInt8Type>();
        let is_whole = |row: usize| what.value(row) == TOTAL || order.is_valid(row);
        if !(0..what.len()).all(is_whole) {
            return Err(StateError::Corrupt("a row without its times".into()));
        }
        let fail = |error: OperatorError| StateError::Corrupt(error.to_string());
        self.keys.read(&plan.keys, columns)?;
        let those =
            |kind: u8| -> Vec<u32> { (0..what.len() as u32).filter(|&row| what.value(row as usize) == kind).collect() };
        let times = |row: usize| saved.times(row);
        for row in self.add(columns, &those(WAITS), times).map_err(fail)? {
            self.wait(row);
        }
        let mut rows = self.add(columns, &those(IN_FRAME), times).map_err(fail)?;
        self.sort(&mut rows);
        let slots = SlotTable::new(Arc::new(Schema::empty()));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let context = &mut Context::new(0, &slots, &mut refusals, &mut output);
        let (entries, kept, _) = plan.entries(&self.store, &rows, context).map_err(fail)?;
        for (at, &row) in kept.iter().enumerate() {
            let (partition, time_us) = (self.partition_of[row as usize], self.time_of(row));
            self.frames[partition as usize].push(&plan.groups, row, time_us, &entries, at as u32);
        }
        let totals = those(TOTAL);
        let mut partitions = Vec::new();
        self.index.assign(&self.keys, &RowSet::List(&totals), &mut partitions);
        if let Some(ttl) = &mut self.ttl {
            ttl.touch(&partitions, totals.iter().map(|&row| saved.times(row as usize).0));
        }
        let frame_of = || Frame::new(&plan.groups, plan.is_bounded());
        self.frames.grow_with(self.index.numbers(), frame_of);
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
        (0..what.len()).for_each(|row| self.pass(self.watermark_us.max(saved.number(1, row))));
        Ok(())
    }
}

/// Output rows, and for each value of a later row the rows that hold it; [`NONE`] if there is none.
struct Led {
    rows: Vec<u32>,
    later: Vec<Vec<u32>>,
}

impl Led {
    fn new(plan: &OverPlan) -> Self {
        Self { rows: Vec::new(), later: vec![Vec::new(); plan.leads.len()] }
    }

    /// Adds a row; `later` returns the row this many rows behind it.
    fn add(&mut self, plan: &OverPlan, row: u32, later: impl Fn(usize) -> Option<u32>) {
        self.rows.push(row);
        for (rows, lead) in self.later.iter_mut().zip(&plan.leads) {
            rows.push(later(lead.rows as usize).unwrap_or(NONE));
        }
    }
}

/// The rows that wait or are in a frame. Behind them, for frames without bound, the partitions.
struct WaitingRows<'a> {
    operator: &'a WaitingOperator,
    /// By row, its number in the store.
    numbers: Vec<u32>,
    /// By number in the store: what the row is.
    what: Vec<u8>,
    partitions: Vec<u32>,
    hashes: Vec<u16>,
}

impl<'a> WaitingRows<'a> {
    fn new(operator: &'a WaitingOperator) -> Result<Self, StateError> {
        let WaitingOperator { plan, store, frames, index, ttl, .. } = operator;
        let numbers = store.live();
        let mut what = vec![WAITS; store.numbers()];
        frames.iter().flat_map(Frame::entries).for_each(|entry| what[entry.row as usize] = IN_FRAME);
        let key = plan.spec.partition.iter().map(|&column| store.column(column, &numbers));
        let mut hashes = key_hashes(&key.collect::<Result<Vec<_>, _>>()?, numbers.len())?;
        // A forgotten partition has no number, and nothing to be saved.
        let is_known = |partition: &u32| ttl.as_ref().is_none_or(|ttl| ttl.knows(*partition));
        let partitions: Vec<u32> = match plan.is_bounded() {
            true => Vec::new(),
            false => (0..frames.len() as u32).filter(is_known).collect(),
        };
        hashes.extend(key_hashes(&index.columns(&plan.keys, &partitions)?, partitions.len())?);
        Ok(Self { operator, numbers, what, partitions, hashes })
    }
}

impl StateByKey for WaitingRows<'_> {
    fn hashes(&self) -> &[u16] {
        &self.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let WaitingOperator { plan, store, frames, index, ttl, watermark_us, .. } = self.operator;
        let saved = self.operator.saved();
        let frame_rows = |what: Vec<u8>, times: Vec<(i64, i64)>, mut columns: Vec<ArrayRef>, states: ArrayRef| {
            let watermarks_us = Int64Array::from_value(*watermark_us, what.len());
            columns.push(states);
            let added: Vec<ArrayRef> = vec![Arc::new(UInt8Array::from(what)), Arc::new(watermarks_us)];
            saved.rows(&plan.spec.partition, times.into_iter(), added, columns)
        };
        let (rows, totals) = rows.split_at(rows.partition_point(|&row| (row as usize) < self.numbers.len()));
        let rows: Vec<u32> = rows.iter().map(|&row| self.numbers[row as usize]).collect();
        let what = rows.iter().map(|&row| self.what[row as usize]).collect();
        let times = rows.iter().map(|&row| (store.event_time_us(row), store.arrival_us(row))).collect();
        let no_states = new_null_array(&DataType::Binary, rows.len());
        let mut batches = vec![frame_rows(what, times, store.columns(&rows)?, no_states)?];
        if !totals.is_empty() {
            let partitions: Vec<u32> =
                totals.iter().map(|&row| self.partitions[row as usize - self.numbers.len()]).collect();
            let keys = index.columns(&plan.keys, &partitions)?;
            let columns = (0..plan.spec.input.fields().len())
                .map(|column| match plan.spec.partition.iter().position(|&key| key == column) {
                    Some(at) => keys[at].clone(),
                    None => new_null_array(plan.spec.input.field(column).data_type(), partitions.len()),
                })
                .collect();
            let mut states = plan.groups.states();
            states.grow(&plan.groups, 1);
            let (mut encoded, mut bytes) = (BinaryBuilder::new(), Vec::new());
            for &partition in &partitions {
                frames[partition as usize].total(&plan.groups, &mut states, 0);
                bytes.clear();
                states.encode(&plan.groups, 0, &[], &mut bytes);
                encoded.append_value(&bytes);
            }
            let touched_us = |&partition: &u32| ttl.as_ref().map_or(i64::MIN, |ttl| ttl.touched_us(partition));
            let times = partitions.iter().map(|partition| (touched_us(partition), 0)).collect();
            let states = Arc::new(encoded.finish());
            batches.push(frame_rows(vec![TOTAL; partitions.len()], times, columns, states)?);
        }
        Ok(saved.frame(concat_batches(saved.schema(), &batches)?))
    }
}

impl Operator for WaitingOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(&batch, context),
            Element::Watermark(watermark_us) => self.close(watermark_us, false, context),
            Element::End => self.close(i64::MAX, true, context),
            Element::Barrier(_) | Element::Control(_) | Element::Clocks(_) => Ok(()),
        }
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        WaitingRows::new(self).map(|rows| Some(Box::new(rows) as _))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.import(frame)
    }

    fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.store.memory_bytes()
            + self.partition_of.memory_bytes()
            + self.waiting_of.memory_bytes()
            + self.frames.iter().map(Frame::memory_bytes).sum::<usize>()
            + self.ttl.as_ref().map_or(0, TimeToLive::memory_bytes)
            + self.waiting.values().map(|rows| rows.capacity() * 4).sum::<usize>()
    }
}
