//! Row patterns in big queries: the same search, with the watermark as the clock of all partitions.
//!
//! The rows of a partition come in any order within the watermark, from several instances. They wait until it has
//! passed them, and rows of one time are ordered by what is kept of them. State is exported by the hashes of keys.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchOptions, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::Rows as KeyRows;
use rivulet_dataflow::{
    Address, Batch, Context, Description, Element, Leaps, Operator, OperatorError, OperatorFactory, Reason, StateByKey,
    StateError, StateFrame,
};

use super::output::Matches;
use super::partition::{NEVER, Partition, Scratch, Search};
use super::plan::Plan;
use super::state;
use crate::PlanError;
use crate::history::value::Value;
use crate::keyed::{Keyed, key_fields};
use crate::parallel::key_hashes;
use crate::parallel::time_to_live::{TimeToLive, state_text};
use crate::row_bytes::RowBytes;
use crate::window::length::TIME_MAX_US;

/// The length of the buckets in which partitions wait, in microseconds.
const BUCKET_US: i64 = 1 << 14;

const STATE: &str = "keyed pattern";
const STATE_VERSION: u32 = 1;
/// The key of the frame's metadata that holds the pattern and its conditions.
const PATTERN: &str = "rivulet.states";

/// Finds the matches of a row pattern in each partition of one stream; see [`PatternMatch`](super::PatternMatch).
///
/// The rows are those of a big query, in which none is retracted. A row is refused as late behind the watermark. The
/// bounds of a match are those of [`PatternMatch`](super::PatternMatch); rows that wait for the watermark do not count.
///
/// A partition is forgotten as soon as it has nothing to remember. With a time-to-live it is also forgotten if no row
/// has come for so long, and its match under way ends as at the end of the input.
#[derive(Clone)]
pub struct KeyedPattern {
    plan: Arc<Plan>,
    /// [`NEVER`] without WITHIN.
    within_us: i64,
    state_ttl_us: Option<i64>,
}

impl KeyedPattern {
    pub(super) fn new(plan: Arc<Plan>, state_ttl_us: Option<i64>) -> Result<Self, PlanError> {
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let nothing = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options);
        let nothing = nothing.map_err(|error| PlanError::Pattern { problem: error.to_string() })?;
        let length = plan.within.as_ref().and_then(|within| within.evaluate(&nothing).pop());
        let within_us = match length {
            None => NEVER,
            Some(length) => {
                length.map_err(|error| PlanError::Pattern { problem: format!("WITHIN has no length: {error}") })?.width
            }
        };
        Ok(Self { plan, within_us, state_ttl_us })
    }
}

impl OperatorFactory for KeyedPattern {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(KeyedPatternOperator::new(self))
    }

    fn describe(&self) -> Description {
        let mut shared = self.plan.shared_text();
        let keeps_more = self.plan.rows_before > 0 || self.plan.numbers_matches;
        shared.push(match (self.state_ttl_us, self.within_us) {
            (None, NEVER) if !keeps_more => "state: a match under way, until it is decided".into(),
            (None, _) if !keeps_more => "state: a match under way, until WITHIN is over".into(),
            (state_ttl_us, _) => state_text(state_ttl_us, "the last row of a partition"),
        });
        Description { operator: "pattern".into(), shared, per_slot: vec![] }
    }

    fn state(&self) -> Option<Address> {
        Some(self.plan.address(STATE))
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        (frame.rows.schema() == schema(&self.plan))
            .then(|| frame.rows.columns()[2..2 + self.plan.key_fields.len()].to_vec())
    }
}

struct KeyedPatternOperator {
    plan: Arc<Plan>,
    within_us: i64,
    key_bytes: RowBytes,
    /// The keys of the current batch. The buffer is kept to reuse its memory.
    key_rows: KeyRows,
    /// Of slot 0. A partition that remembers nothing is removed.
    partitions: Keyed<Partition>,
    /// By bucket: the partitions in which something is due.
    due: BTreeMap<i64, Vec<u32>>,
    /// By partition: the first bucket in which it is; [`NEVER`] if it is in none.
    due_in: Vec<i64>,
    /// When partitions are forgotten.
    ttl: Option<TimeToLive>,
    watermark_us: i64,
    matches: Matches,
    scratch: Scratch,
}

impl KeyedPatternOperator {
    fn new(KeyedPattern { plan, within_us, state_ttl_us }: &KeyedPattern) -> Self {
        let key_bytes = RowBytes::new(plan.key_fields.iter().map(Field::data_type))
            .expect("the types of keys are checked when the plan is made");
        Self {
            key_rows: key_bytes.buffer(),
            key_bytes,
            partitions: Keyed::new(true).with_any_number_of_keys(),
            due: BTreeMap::new(),
            due_in: Vec::new(),
            ttl: state_ttl_us.map(TimeToLive::new),
            watermark_us: i64::MIN,
            matches: Matches::default(),
            scratch: Scratch::default(),
            plan: plan.clone(),
            within_us: *within_us,
        }
    }

    fn take_in(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() {
            return Err(OperatorError::new("rows that are taken back came to a pattern that was promised none"));
        }
        let plan = self.plan.clone();
        let (batch, columns) = plan.expressions.evaluate(batch, context)?;
        if batch.is_empty() {
            return Ok(());
        }
        let (keys, inputs) = plan.inputs(&columns)?;
        let mut key_rows = std::mem::replace(&mut self.key_rows, self.key_bytes.buffer());
        if !keys.is_empty() {
            self.key_bytes.encode(keys, &mut key_rows)?;
        }
        for (index, &time_us) in batch.event_time_us.iter().enumerate() {
            if !(-TIME_MAX_US..=TIME_MAX_US).contains(&time_us) {
                context.refusals.refuse_row(None, &batch, index, Reason::Future, || {
                    "the event time is over 9000 years away\nhint: check the unit of its column".into()
                });
                continue;
            }
            if time_us < self.watermark_us {
                let what = "later rows have had their turn in the pattern already";
                context.refusals.refuse_late(&batch, index, self.watermark_us, what);
                continue;
            }
            let key = if keys.is_empty() { &[] } else { key_rows.row(index).data() };
            let Some(place) = self.place_of(key) else {
                context.refusals.refuse_row(None, &batch, index, Reason::Overflow, || {
                    "there are too many partitions\nhint: use more instances".into()
                });
                continue;
            };
            let of_row = inputs.values.iter().map(|values| {
                let mut value = Value::Null;
                values.store(index, &mut value);
                value
            });
            self.partitions.value_mut(place).rows.insert_by_content(time_us, inputs.holds(index), of_row.collect());
            self.ttl.iter_mut().for_each(|ttl| ttl.touch(&[place], [time_us]));
            self.wait(place, time_us);
        }
        self.key_rows = key_rows;
        Ok(())
    }

    fn place_of(&mut self, key: &[u8]) -> Option<u32> {
        if let Some(place) = self.partitions.find(0, key) {
            return Some(place);
        }
        let place = self.partitions.create(0, key)?;
        *self.partitions.value_mut(place) = Partition::new(self.plan.storages.len());
        Some(place)
    }

    /// Lets a partition have its turn when the watermark has passed this time.
    fn wait(&mut self, place: u32, time_us: i64) {
        let (at, bucket) = (place as usize, time_us.div_euclid(BUCKET_US));
        if at >= self.due_in.len() {
            self.due_in.resize(at + 1, NEVER);
        }
        if bucket < self.due_in[at] {
            self.due_in[at] = bucket;
            self.due.entry(bucket).or_default().push(place);
        }
    }

    fn advance(&mut self, watermark_us: i64, is_end: bool, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if watermark_us <= self.watermark_us && !is_end {
            return Ok(());
        }
        self.watermark_us = watermark_us;
        // Rows of the watermark's own time may still come.
        let passed_us = if is_end { NEVER } else { watermark_us.saturating_sub(1) };
        // At the end, matches are decided in which nothing else is due.
        let mut places: Vec<u32> = if is_end { self.partitions.places(0).collect() } else { Vec::new() };
        while let Some(entry) = self.due.first_entry()
            && !is_end
            && *entry.key() <= passed_us.div_euclid(BUCKET_US)
        {
            let (bucket, in_bucket) = entry.remove_entry();
            // A partition that has moved to an earlier bucket, or is gone, is in this one in vain.
            places.extend(in_bucket.into_iter().filter(|&place| {
                let due_in = &mut self.due_in[place as usize];
                let is_here = *due_in == bucket;
                if is_here {
                    *due_in = NEVER;
                }
                is_here
            }));
        }
        let plan = self.plan.clone();
        self.matches.begin();
        self.matches.begin_group();
        for place in places {
            self.search(place, passed_us, context);
            if self.matches.are_many() {
                self.matches.emit(&plan, &self.key_bytes, context)?;
            }
        }
        // None of their rows waits for its turn, because the watermark has passed them all.
        let expired = self.ttl.as_mut().filter(|_| !is_end).map_or_else(Vec::new, |ttl| ttl.expired(watermark_us));
        for place in expired {
            if self.search(place, NEVER, context) {
                self.due_in[place as usize] = NEVER;
                self.partitions.remove(place);
            }
        }
        self.matches.emit(&plan, &self.key_bytes, context)
    }

    /// Searches in a partition, and forgets it if nothing is left to remember. Returns whether it is still there.
    fn search(&mut self, place: u32, passed_us: i64, context: &mut Context<'_>) -> bool {
        let Self { plan, partitions, matches, scratch, within_us, .. } = self;
        let (within_us, now_us, leaps) = (*within_us, context.now_us, &Leaps::default());
        let (key, partition) = partitions.entry_mut(place);
        let mut search = Search { plan, slot: 0, within_us, leaps, watermark_us: passed_us, context, scratch };
        partition.run(&mut search, &mut |of, time_us, decided_us| {
            matches.push(plan, of, 0, key, time_us, now_us, decided_us);
        });
        let due_us = partition.due_us(within_us, leaps);
        if partition.is_idle() {
            self.ttl.iter_mut().for_each(|ttl| ttl.remove(place));
            self.partitions.remove(place);
            return false;
        }
        if due_us != NEVER {
            self.wait(place, due_us);
        }
        true
    }

    fn import(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect(STATE, STATE_VERSION)?;
        let plan = self.plan.clone();
        if frame.rows.schema() != schema(&plan) {
            return Err(StateError::Mismatch("the state belongs to another pattern than this".into()));
        }
        let columns = frame.rows.columns();
        let keys = 2..2 + plan.key_fields.len();
        let mut key_rows = self.key_bytes.buffer();
        if !keys.is_empty() {
            self.key_bytes.encode(&columns[keys.clone()], &mut key_rows)?;
        }
        for row in 0..frame.rows.num_rows() {
            let partition = state::read_partition(&plan, &columns[keys.end + 1..], row, usize::MAX)?;
            let key = if keys.is_empty() { &[] } else { key_rows.row(row).data() };
            let place = self.place_of(key).filter(|&place| self.partitions.value(place).is_idle());
            let place = place.ok_or_else(|| StateError::Corrupt("a partition is there twice".into()))?;
            let due_us = partition.due_us(self.within_us, &Leaps::default());
            // A partition without rows was touched before the watermark at the latest.
            let touched_us = partition.last_us().unwrap_or(columns[keys.end].as_primitive::<Int64Type>().value(row));
            self.ttl.iter_mut().for_each(|ttl| ttl.touch(&[place], [touched_us]));
            *self.partitions.value_mut(place) = partition;
            if due_us != NEVER {
                self.wait(place, due_us);
            }
            let watermark_us = columns[keys.end].as_primitive::<Int64Type>().value(row);
            self.watermark_us = self.watermark_us.max(watermark_us);
        }
        Ok(())
    }
}

/// A frame has a row for each partition: `slot`, `key_group`, the key columns, `watermark_us`, and the search.
fn schema(plan: &Plan) -> SchemaRef {
    let mut fields = key_fields(plan.key_fields.iter().map(Field::data_type));
    fields.push(Field::new("watermark_us", DataType::Int64, false));
    fields.extend(state::search_fields(plan));
    Arc::new(Schema::new_with_metadata(fields, [(PATTERN.to_owned(), plan.text.clone())].into()))
}

/// The partitions of an operator.
struct Exported<'a> {
    operator: &'a KeyedPatternOperator,
    places: Vec<u32>,
    hashes: Vec<u16>,
}

impl<'a> Exported<'a> {
    fn new(operator: &'a KeyedPatternOperator) -> Result<Self, StateError> {
        let places: Vec<u32> = operator.partitions.places(0).collect();
        let hashes = key_hashes(&operator.keys_of(&places)?, places.len())?;
        Ok(Self { operator, places, hashes })
    }
}

impl KeyedPatternOperator {
    fn keys_of(&self, places: &[u32]) -> Result<Vec<ArrayRef>, ArrowError> {
        match self.plan.key_fields.is_empty() {
            true => Ok(Vec::new()),
            false => self.key_bytes.decode(places.iter().map(|&place| self.partitions.key(place))),
        }
    }
}

impl StateByKey for Exported<'_> {
    fn hashes(&self) -> &[u16] {
        &self.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let operator = self.operator;
        let places: Vec<u32> = rows.iter().map(|&row| self.places[row as usize]).collect();
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from_value(0, rows.len())), Arc::new(UInt16Array::from(self.hashes_of(rows)))];
        columns.extend(operator.keys_of(&places)?);
        columns.push(Arc::new(Int64Array::from_value(operator.watermark_us, rows.len())));
        let partitions: Vec<_> = places.iter().map(|&place| Some(operator.partitions.value(place))).collect();
        columns.extend(state::search_columns(&operator.plan, &partitions)?);
        Ok(StateFrame::new(STATE, STATE_VERSION, RecordBatch::try_new(schema(&operator.plan), columns)?))
    }
}

impl Operator for KeyedPatternOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(batch, context),
            Element::Watermark(watermark_us) => self.advance(watermark_us, false, context),
            Element::End => self.advance(i64::MAX, true, context),
            Element::Barrier(_) | Element::Control(_) | Element::Clocks(_) => Ok(()),
        }
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        Exported::new(self).map(|exported| Some(Box::new(exported) as _))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.import(frame)
    }

    fn memory_bytes(&self) -> usize {
        let of_partitions = |(key, partition): (&[u8], &Partition)| key.len() + partition.memory_bytes();
        self.partitions.memory_bytes()
            + self.partitions.of_slot(0).map(of_partitions).sum::<usize>()
            + self.due.values().map(|places| places.capacity() * size_of::<u32>()).sum::<usize>()
            + self.due_in.capacity() * size_of::<i64>()
            + self.ttl.as_ref().map_or(0, TimeToLive::memory_bytes)
            + self.key_rows.size()
            + self.key_bytes.memory_bytes()
    }
}
