//! Windows that consist of a number of rows of a key, in the order in which they come to this instance.
//!
//! The first window begins with the first row of a key, and each further one a slide later. A window comes out with the
//! row that completes it. At the end of the input, incomplete windows come out with the rows that they have. The bounds
//! of a window are the event times of its first and last row.
//!
//! Rows are cut into blocks; a window holds a block as a whole or not at all. A block is a group of states, so one
//! update processes a batch, however many blocks its rows complete. The blocks of overlapping windows are merged in a
//! [`Frame`].

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, Int64Array, RecordBatch, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use rivulet_dataflow::{
    Batch, Context, Element, Operator, OperatorError, StateByKey, StateError, StateFrame, unmarked,
};

use super::bounds::divisor;
use super::pane::{Window, emit_windows};
use super::plan::WindowPlan;
use crate::aggregate::dense::RowSet;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::frame::Frame;
use crate::parallel::groups::GroupStates;
use crate::parallel::keys::{BatchKeys, KeyIndex, NONE, key_hashes};
use crate::parallel::time_to_live::TimeToLive;

pub(crate) struct CountOperator {
    plan: Arc<WindowPlan>,
    lengths: Lengths,
    index: KeyIndex,
    /// By key.
    open: Vec<Open>,
    /// By key, if windows overlap: its complete blocks that a window still needs.
    frames: Vec<Frame>,
    /// By block: its states.
    states: GroupStates,
    blocks: u32,
    free: Vec<u32>,
    ttl: Option<TimeToLive>,
    keys: BatchKeys,
    numbers: Vec<u32>,
}

/// Numbers of rows.
#[derive(Clone, Copy)]
struct Lengths {
    /// The rows of a block.
    block: u32,
    /// The number of blocks of a window, and how many blocks later the next window begins.
    window_blocks: usize,
    slide_blocks: usize,
}

/// The incomplete block of a key.
#[derive(Clone, Copy)]
struct Open {
    /// The number of the block; [`NONE`] before its first row.
    block: u32,
    rows: u32,
    first_us: i64,
    /// The event time of the key's last row, and the latest arrival of its rows.
    last_us: i64,
    arrival_us: i64,
}

const NOTHING: Open = Open { block: NONE, rows: 0, first_us: 0, last_us: 0, arrival_us: i64::MIN };

/// Windows to be emitted, with their keys and their groups of states.
#[derive(Default)]
struct Given {
    keys: Vec<u32>,
    groups: Vec<u32>,
    windows: Vec<Window>,
}

impl CountOperator {
    pub(super) fn new(plan: Arc<WindowPlan>, rows: u32, slide_rows: u32) -> Self {
        let block = divisor(i64::from(rows), i64::from(slide_rows)) as u32;
        Self {
            lengths: Lengths {
                block,
                window_blocks: (rows / block) as usize,
                slide_blocks: (slide_rows / block) as usize,
            },
            index: plan.keys.index(0),
            open: Vec::new(),
            frames: Vec::new(),
            states: plan.groups.states(),
            blocks: 0,
            free: Vec::new(),
            ttl: plan.spec.state_ttl_us.filter(|_| plan.keys.len() > 0).map(TimeToLive::new),
            keys: BatchKeys::default(),
            numbers: Vec::new(),
            plan,
        }
    }

    /// Whether a row is in several windows.
    fn overlaps(&self) -> bool {
        self.lengths.window_blocks > 1
    }

    fn take_in(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() {
            return Err(OperatorError::new("rows that are taken back came to a window of so many rows"));
        }
        let plan = self.plan.clone();
        let (batch, values) = plan.groups.evaluate(batch, context)?;
        self.keys.read(&plan.keys, batch.columns.columns())?;
        let all = RowSet::Range(0..batch.rows());
        let mut numbers = std::mem::take(&mut self.numbers);
        self.index.assign(&self.keys, &all, &mut numbers);
        self.grow();
        if let Some(ttl) = &mut self.ttl {
            ttl.touch(&numbers, batch.event_time_us.iter().copied());
        }
        let mut blocks = Vec::with_capacity(batch.rows());
        // Blocks that are now complete, with their keys, in order.
        let mut complete: Vec<(u32, Open)> = Vec::new();
        for (row, &key) in numbers.iter().enumerate() {
            let open = &mut self.open[key as usize];
            let time_us = batch.event_time_us[row];
            if open.block == NONE {
                open.block = self.free.pop().unwrap_or_else(|| {
                    self.blocks += 1;
                    self.blocks - 1
                });
                (open.rows, open.first_us) = (0, time_us);
            }
            open.rows += 1;
            open.last_us = time_us;
            open.arrival_us = open.arrival_us.max(batch.arrival_us[row]);
            blocks.push(open.block);
            if open.rows == self.lengths.block {
                complete.push((key, *open));
                open.block = NONE;
            }
        }
        self.states.grow(&plan.groups, self.blocks as usize);
        self.states.update(&plan.groups, &values, &blocks, &all, &batch.event_time_us);
        self.numbers = numbers;
        match self.overlaps() {
            true => self.slide(&complete, context),
            false => self.tumble(&complete, context),
        }
    }

    fn grow(&mut self) {
        let keys = self.index.numbers().max(self.open.len());
        self.open.resize(keys, NOTHING);
        if self.overlaps() {
            self.frames.resize_with(keys, || Frame::new(&self.plan.groups, true));
        }
    }

    /// Emits windows that are one block each.
    fn tumble(&mut self, complete: &[(u32, Open)], context: &mut Context<'_>) -> Result<(), OperatorError> {
        for complete in complete.chunks(OUTPUT_ROWS) {
            let window = |(_, open): &(u32, Open)| Window {
                start_us: open.first_us,
                end_us: open.last_us,
                arrival_us: open.arrival_us,
            };
            let given = Given {
                keys: complete.iter().map(|one| one.0).collect(),
                groups: complete.iter().map(|one| one.1.block).collect(),
                windows: complete.iter().map(window).collect(),
            };
            self.emit(&given, None, context)?;
            given.groups.iter().for_each(|&block| self.release(block));
        }
        // A key without an open block has nothing to remember.
        for &(key, _) in complete {
            let open = &mut self.open[key as usize];
            if open.block == NONE && open.arrival_us != i64::MIN {
                *open = NOTHING;
                self.remove(key);
            }
        }
        Ok(())
    }

    /// Adds complete blocks to the windows of their keys, and emits the windows that are now complete.
    fn slide(&mut self, complete: &[(u32, Open)], context: &mut Context<'_>) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        let (mut given, mut results) = (Given::default(), self.results());
        for (key, open) in complete {
            let frame = &mut self.frames[*key as usize];
            frame.push(&plan.groups, open.block, open.first_us, &self.states, open.block);
            if frame.len() == self.lengths.window_blocks {
                self.give_first(*key, open, &mut given, &mut results, context)?;
            }
        }
        self.flush(&mut given, &results, context)
    }

    /// Makes groups for the results of overlapping windows.
    fn results(&self) -> GroupStates {
        let mut results = self.plan.groups.states();
        results.grow(&self.plan.groups, OUTPUT_ROWS);
        results
    }

    /// Emits the first window of a key, with the blocks that it has, and goes on to the next window.
    fn give_first(
        &mut self,
        key: u32,
        last: &Open,
        given: &mut Given,
        results: &mut GroupStates,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        let frame = &mut self.frames[key as usize];
        let group = given.groups.len() as u32;
        frame.total(&plan.groups, results, group);
        let start_us = frame.oldest().map_or(last.first_us, |block| block.time_us);
        given.keys.push(key);
        given.groups.push(group);
        given.windows.push(Window { start_us, end_us: last.last_us, arrival_us: last.arrival_us });
        for _ in 0..self.lengths.slide_blocks {
            let Some(block) = self.frames[key as usize].pop(&plan.groups) else { break };
            self.release(block);
        }
        if given.groups.len() == OUTPUT_ROWS { self.flush(given, results, context) } else { Ok(()) }
    }

    fn flush(&self, given: &mut Given, results: &GroupStates, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.emit(given, Some(results), context)?;
        *given = Given::default();
        Ok(())
    }

    /// Emits windows. Their states are in `results`, or are blocks.
    fn emit(
        &self,
        given: &Given,
        results: Option<&GroupStates>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        if given.keys.is_empty() {
            return Ok(());
        }
        let columns = self.index.columns(&self.plan.keys, &given.keys)?;
        emit_windows(&self.plan, columns, results.unwrap_or(&self.states), &given.groups, &given.windows, context)
    }

    fn release(&mut self, block: u32) {
        self.states.clear_group(&self.plan.groups, block);
        self.free.push(block);
    }

    fn remove(&mut self, key: u32) {
        self.index.remove(key);
        if let Some(ttl) = &mut self.ttl {
            ttl.remove(key);
        }
    }

    /// Forgets keys for which no row has come for the time-to-live, with the rows of their windows.
    fn forget(&mut self, watermark_us: i64) {
        for key in self.ttl.as_mut().map_or_else(Vec::new, |ttl| ttl.expired(watermark_us)) {
            let open = std::mem::replace(&mut self.open[key as usize], NOTHING);
            if open.block != NONE {
                self.release(open.block);
            }
            if self.overlaps() {
                let empty = Frame::new(&self.plan.groups, true);
                let forgotten = std::mem::replace(&mut self.frames[key as usize], empty);
                forgotten.entries().for_each(|entry| self.release(entry.row));
            }
            self.index.remove(key);
        }
    }

    /// Emits the windows that have begun.
    fn end(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        let open = |(key, open): (usize, &Open)| (open.block != NONE).then_some((key as u32, *open));
        let blocks: Vec<(u32, Open)> = self.open.iter().enumerate().filter_map(open).collect();
        blocks.iter().for_each(|&(key, _)| self.open[key as usize].block = NONE);
        if !self.overlaps() {
            return self.tumble(&blocks, context);
        }
        for (key, open) in &blocks {
            self.frames[*key as usize].push(&plan.groups, open.block, open.first_us, &self.states, open.block);
        }
        let (mut given, mut results) = (Given::default(), self.results());
        for key in 0..self.frames.len() as u32 {
            while self.frames[key as usize].len() > 0 {
                let last = self.open[key as usize];
                self.give_first(key, &last, &mut given, &mut results, context)?;
            }
        }
        self.flush(&mut given, &results, context)
    }

    /// A row of a frame of state is a block: `slot`, `key_group`, the key columns, the event times of its first row and
    /// of the key's last one, `arrival_us`, when the key was last touched, the index of the block among those of its
    /// key, its `rows`, and its states.
    fn schema(&self) -> SchemaRef {
        let leading = [Field::new("slot", DataType::UInt32, false), Field::new("key_group", DataType::UInt16, false)];
        let keys = self.plan.output.fields()[..self.plan.keys.len()].iter().map(|field| unmarked(field));
        let numbers = ["first_us", "last_us", "arrival_us", "touched_us", "place", "rows"]
            .map(|name| Field::new(name, DataType::Int64, false));
        let states = Field::new("states", DataType::Binary, false);
        let fields: Vec<Field> = leading.into_iter().chain(keys).chain(numbers).chain([states]).collect();
        let what = format!("{:?} {}", self.plan.spec.window, self.plan.groups.fingerprint());
        Arc::new(Schema::new_with_metadata(fields, [("rivulet.states".to_owned(), what)].into()))
    }

    fn blocks(&self) -> Result<ExportedBlocks<'_>, StateError> {
        let mut keys = Vec::new();
        let mut blocks = Vec::new();
        for (key, open) in self.open.iter().enumerate() {
            let closed = self.frames.get(key).into_iter().flat_map(Frame::entries);
            let closed = closed.map(|entry| (entry.row, entry.time_us, self.lengths.block));
            let begun = (open.block != NONE).then_some((open.block, open.first_us, open.rows));
            let touched_us = self.ttl.as_ref().map_or(i64::MIN, |ttl| ttl.touched_us(key as u32));
            for (place, (block, first_us, rows)) in closed.chain(begun).enumerate() {
                keys.push(key as u32);
                let numbers = [first_us, open.last_us, open.arrival_us, touched_us, place as i64, i64::from(rows)];
                blocks.push((block, numbers));
            }
        }
        let hashes = key_hashes(&self.index.columns(&self.plan.keys, &keys)?, keys.len())?;
        Ok(ExportedBlocks { operator: self, keys, blocks, hashes })
    }

    fn import(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect(STATE, STATE_VERSION)?;
        let expected = self.schema();
        let groups = self.plan.clone();
        let frame = &*groups.groups.brought_up(frame, &expected)?;
        if frame.rows.schema() != expected {
            return Err(StateError::Mismatch("state of windows with other keys, lengths or aggregates".into()));
        }
        let plan = self.plan.clone();
        let (keys, rest) = frame.rows.columns()[2..].split_at(plan.keys.len());
        if rest.iter().any(|column| column.null_count() > 0) {
            return Err(StateError::Corrupt("rows of a window without their states".into()));
        }
        self.keys.read_keys(&plan.keys, keys)?;
        let mut numbers = Vec::new();
        self.index.assign(&self.keys, &RowSet::Range(0..frame.rows.num_rows()), &mut numbers);
        self.grow();
        let number = |column: usize, row: usize| rest[column].as_primitive::<Int64Type>().value(row);
        let mut rows: Vec<usize> = (0..numbers.len()).collect();
        rows.sort_by_key(|&row| number(4, row));
        for row in rows {
            let key = numbers[row];
            let block = self.blocks;
            self.blocks += 1;
            self.states.grow(&plan.groups, self.blocks as usize);
            let mut bytes = rest[NUMBERS].as_binary::<i32>().value(row);
            let decoded = self.states.decode(&plan.groups, block, &mut bytes).filter(|()| bytes.is_empty());
            let rows = u32::try_from(number(5, row)).ok().filter(|rows| (1..=self.lengths.block).contains(rows));
            let (Some(()), Some(rows)) = (decoded, rows) else {
                return Err(StateError::Corrupt("states of a window".into()));
            };
            let is_complete = rows == self.lengths.block;
            let open = &mut self.open[key as usize];
            (open.first_us, open.last_us, open.arrival_us) = (number(0, row), number(1, row), number(2, row));
            match (is_complete, self.frames.get_mut(key as usize)) {
                (true, Some(frame)) => frame.push(&plan.groups, block, number(0, row), &self.states, block),
                (true, None) => return Err(StateError::Corrupt("a window that is complete".into())),
                (false, _) => (open.block, open.rows) = (block, rows),
            }
            if let Some(ttl) = &mut self.ttl {
                ttl.touch(&[key], [number(3, row).max(number(1, row))]);
            }
        }
        Ok(())
    }
}

pub(super) const STATE: &str = "count window";
const STATE_VERSION: u32 = 1;
/// The number of numbers in a row of a frame.
const NUMBERS: usize = 6;

/// The blocks of all keys.
struct ExportedBlocks<'a> {
    operator: &'a CountOperator,
    keys: Vec<u32>,
    /// The blocks, each with its numbers.
    blocks: Vec<(u32, [i64; NUMBERS])>,
    hashes: Vec<u16>,
}

impl StateByKey for ExportedBlocks<'_> {
    fn hashes(&self) -> &[u16] {
        &self.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let CountOperator { plan, index, states, .. } = self.operator;
        let blocks = || rows.iter().map(|&row| &self.blocks[row as usize]);
        let (mut encoded, mut bytes) = (BinaryBuilder::new(), Vec::new());
        for (block, _) in blocks() {
            bytes.clear();
            states.encode(&plan.groups, *block, &[], &mut bytes);
            encoded.append_value(&bytes);
        }
        let keys: Vec<u32> = rows.iter().map(|&row| self.keys[row as usize]).collect();
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from_value(0, rows.len())), Arc::new(UInt16Array::from(self.hashes_of(rows)))];
        columns.extend(index.columns(&plan.keys, &keys)?);
        columns
            .extend((0..NUMBERS).map(|at| {
                Arc::new(Int64Array::from_iter_values(blocks().map(|(_, numbers)| numbers[at]))) as ArrayRef
            }));
        columns.push(Arc::new(encoded.finish()));
        Ok(StateFrame::new(STATE, STATE_VERSION, RecordBatch::try_new(self.operator.schema(), columns)?))
    }
}

impl Operator for CountOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(batch, context),
            Element::Watermark(watermark_us) => {
                self.forget(watermark_us);
                Ok(())
            }
            Element::End => self.end(context),
            Element::Barrier(_) | Element::Control(_) | Element::Clocks(_) => Ok(()),
        }
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        Ok(Some(Box::new(self.blocks()?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.import(frame)
    }

    fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.states.memory_bytes()
            + self.open.capacity() * size_of::<Open>()
            + self.free.capacity() * 4
            + self.frames.iter().map(Frame::memory_bytes).sum::<usize>()
            + self.ttl.as_ref().map_or(0, TimeToLive::memory_bytes)
    }
}
