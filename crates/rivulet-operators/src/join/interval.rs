//! The join within an interval of time: the rows of both sides of each query, as long as a row can come that matches
//! them.
//!
//! A query's rows are in order of event time, so what can match is a range, and what is forgotten stands in front.
//! Within a range keys are compared one by one: a small query has few rows and often one key.

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, IntervalMonthDayNanoArray, RecordBatch, UInt8Array, UInt16Array, UInt32Array,
};
use arrow::datatypes::{DataType, Field, Int64Type, IntervalMonthDayNanoType, Schema, SchemaRef, UInt8Type};
use rivulet_dataflow::{
    Batch, Context, Control, Element, Holding, KeyHash, Operator, OperatorError, QueryId, Reason, Slot, StateError,
    StateFrame, StateSelection,
};

use super::encoded::{Encoded, Joined, refuse, state_fields};
use super::{JOIN_ROWS_MAX, JoinKind, Offset, Plan};

/// The most slots of one operator; state that names a higher one is corrupt.
const SLOTS_MAX: usize = 1 << 26;
const OPERATOR: &str = "interval_join";
const VERSION: u32 = 1;
const DAY_US: i64 = 86_400_000_000;

pub(super) struct IntervalJoin {
    plan: Arc<Plan>,
    lateness_us: i64,
    encoded: Encoded,
    joined: Joined,
    slots: Vec<Option<Box<Query>>>,
}

/// What is kept of a query.
struct Query {
    key_hash: u16,
    /// The newest event time.
    clock_us: i64,
    /// Rows by event time, those of the same time in the order in which they came.
    sides: [VecDeque<Kept>; 2],
}

struct Kept {
    time_us: i64,
    /// The key, then the row.
    bytes: Box<[u8]>,
    key_bytes: u32,
}

impl Kept {
    fn new(time_us: i64, key: &[u8], row: &[u8]) -> Self {
        let key_bytes = u32::try_from(key.len()).expect("a key is part of a payload, which is shorter");
        Self { time_us, bytes: [key, row].concat().into(), key_bytes }
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes as usize]
    }

    fn row(&self) -> &[u8] {
        &self.bytes[self.key_bytes as usize..]
    }
}

/// What lies between the event time of a left row and those of the right rows that match it.
#[derive(Clone, Copy)]
struct Interval {
    low_us: i64,
    high_us: i64,
    lateness_us: i64,
}

impl Interval {
    /// The event times on the other side that a row of `side` matches, both included.
    fn matches(self, side: usize, time_us: i64) -> (i64, i64) {
        match side {
            0 => (time_us.saturating_add(self.low_us), time_us.saturating_add(self.high_us)),
            _ => (time_us.saturating_sub(self.high_us), time_us.saturating_sub(self.low_us)),
        }
    }

    /// The oldest event time of `side` that a row can still match which is not older than the lateness allows.
    fn oldest(self, side: usize, clock_us: i64) -> i64 {
        self.matches(1 - side, clock_us.saturating_sub(self.lateness_us)).0
    }
}

impl Operator for IntervalJoin {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.process_batch(batch, context),
            Element::Control(Control::RemoveSlots(slots)) => {
                slots.into_iter().for_each(|slot| self.remove_slot(slot));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn holding(&self, slot: Slot) -> Option<Holding> {
        let query = self.slots.get(slot as usize)?.as_ref()?;
        let sides = query.sides.each_ref().map(|rows| rows.len() as u64);
        Some(Holding { newest_us: Some(query.clock_us), sides: Some(sides), ..Holding::default() })
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let (mut slots, mut key_hashes, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        let (mut clocks_us, mut numbers, mut times_us) = (Vec::new(), Vec::new(), Vec::new());
        let mut sides: [Vec<&[u8]>; 2] = Default::default();
        let no_key = match self.plan.key_types.is_empty() {
            true => Box::default(),
            false => self.encoded.null_key(&self.plan)?,
        };
        let mut add_slot = |slot: usize| {
            let Some(Some(query)) = self.slots.get(slot) else { return };
            let mut add = |key_hash: u16, kept: Option<(usize, &Kept)>| -> bool {
                if !selection.selects_key(KeyHash::from_bits(key_hash)) {
                    return false;
                }
                slots.push(slot as Slot);
                key_hashes.push(key_hash);
                clocks_us.push(query.clock_us);
                numbers.push(kept.map(|(side, _)| side as u8));
                times_us.push(kept.map(|(_, kept)| kept.time_us));
                true
            };
            // The clock stands in a row of its own too: a query may have nothing else.
            if add(query.key_hash, None) {
                keys.push(None);
                sides[0].push(self.encoded.null(0));
                sides[1].push(self.encoded.null(1));
            }
            for (side, rows) in query.sides.iter().enumerate() {
                for kept in rows {
                    if add(query.key_hash_of(kept), Some((side, kept))) {
                        keys.push(Some(kept.key()));
                        sides[side].push(kept.row());
                        sides[1 - side].push(self.encoded.null(1 - side));
                    }
                }
            }
        };
        match selection {
            StateSelection::Slots(slots) => slots.iter().for_each(|&slot| add_slot(slot as usize)),
            _ => (0..self.slots.len()).for_each(add_slot),
        }
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from(slots)), Arc::new(UInt16Array::from(key_hashes))];
        if !self.plan.key_types.is_empty() {
            columns.extend(self.encoded.decode_keys(keys.into_iter().map(|key| key.unwrap_or(&no_key)))?);
        }
        columns.push(Arc::new(Int64Array::from(clocks_us)));
        columns.push(Arc::new(UInt8Array::from(numbers)));
        columns.push(Arc::new(Int64Array::from(times_us)));
        for (side, rows) in sides.into_iter().enumerate() {
            columns.extend(self.encoded.decode_side(side, rows.into_iter())?);
        }
        Ok(Some(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(self.state_schema(), columns)?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect(OPERATOR, VERSION)?;
        if frame.rows.schema_ref().fields() != self.state_schema().fields() {
            return Err(StateError::Mismatch("the rows belong to another join than this".into()));
        }
        let corrupt = |what: &str| StateError::Corrupt(what.to_owned());
        let columns = frame.rows.columns();
        let keys = self.plan.key_types.len();
        let (own, sides) = columns[2 + keys..].split_at(3);
        if columns[..2].iter().chain(&own[..1]).any(|column| column.null_count() > 0) {
            return Err(corrupt("a slot or its clock is missing"));
        }
        let clocks_us = own[0].as_primitive::<Int64Type>();
        let (numbers, times_us) = (own[1].as_primitive::<UInt8Type>(), own[2].as_primitive::<Int64Type>());
        if frame.slots().iter().any(|&slot| slot as usize >= SLOTS_MAX) || numbers.iter().flatten().any(|one| one > 1) {
            return Err(corrupt("a slot or side has too high a number"));
        }
        let (left, right) = sides.split_at(self.plan.side_types[0].len());
        let (key_rows, side_rows) = self.encoded.encode_state(&columns[2..2 + keys], [left, right])?;
        frame.slots().iter().for_each(|&slot| self.remove_slot(slot));
        for row in 0..frame.rows.num_rows() {
            let (slot, clock_us) = (frame.slots()[row] as usize, clocks_us.value(row));
            if self.slots.len() <= slot {
                self.slots.resize_with(slot + 1, || None);
            }
            let query = self.slots[slot].get_or_insert_with(|| Query::new(frame.key_groups()[row], clock_us));
            query.clock_us = query.clock_us.max(clock_us);
            if numbers.is_null(row) {
                query.key_hash = frame.key_groups()[row];
                continue;
            }
            let side = usize::from(numbers.value(row));
            if times_us.is_null(row) || query.sides[side].len() >= JOIN_ROWS_MAX {
                return Err(corrupt("a row without time, or too many rows"));
            }
            let key: &[u8] = if keys > 0 { key_rows.row(row).data() } else { &[] };
            query.keep(side, Kept::new(times_us.value(row), key, side_rows[side].row(row).data()));
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        let rows = |query: &Query| {
            let of_side = |side: &VecDeque<Kept>| {
                side.capacity() * size_of::<Kept>() + side.iter().map(|kept| kept.bytes.len()).sum::<usize>()
            };
            size_of::<Query>() + query.sides.iter().map(of_side).sum::<usize>()
        };
        self.slots.capacity() * size_of::<Option<Box<Query>>>()
            + self.slots.iter().flatten().map(|query| rows(query)).sum::<usize>()
            + self.encoded.memory_bytes()
    }
}

impl IntervalJoin {
    pub(super) fn new(plan: Arc<Plan>, lateness_us: i64) -> Self {
        let encoded = Encoded::new(&plan);
        Self { plan, lateness_us, encoded, joined: Joined::default(), slots: Vec::new() }
    }

    fn process_batch(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let (batch, columns) = self.plan.expressions.evaluate(batch, context)?;
        if batch.is_empty() {
            return Ok(());
        }
        let Self { plan, lateness_us, encoded, joined, slots } = self;
        let (keys, offsets) = columns.split_at(plan.key_types.len());
        let bounds = Bounds::new(plan, offsets);
        joined.begin();
        encoded.encode(plan, &batch, keys)?;
        for (row, &slot) in batch.slots.iter().enumerate() {
            // Rows of a query that is gone must not leave state behind for the slot's next query.
            let Some(id) = context.slots.query(slot) else { continue };
            let (input, time_us) = (encoded.input(row), batch.event_time_us[row]);
            let side = usize::from(input != plan.sides[0].input);
            let Some((low_us, high_us)) = bounds.of_row(row) else {
                let detail = || "a bound of the join is null, or has months, which differ in length".to_owned();
                refuse(&batch, row, input, Reason::Expression, detail, context);
                continue;
            };
            let interval = Interval { low_us, high_us, lateness_us: *lateness_us };
            let query = query_of(slots, slot, id, time_us);
            query.advance(time_us, interval);
            let (from_us, to_us) = interval.matches(side, time_us);
            if to_us < interval.oldest(1 - side, query.clock_us) && from_us <= to_us {
                refuse(&batch, row, input, Reason::Late, || late(query.clock_us, time_us), context);
                continue;
            }
            // A key that is null equals nothing, and nothing that comes will equal it.
            let Some(key) = encoded.key(plan, row) else { continue };
            let is_kept = time_us >= interval.oldest(side, query.clock_us);
            if is_kept && query.sides[side].len() >= JOIN_ROWS_MAX {
                refuse(&batch, row, input, Reason::Expression, too_many, context);
                continue;
            }
            let bytes = encoded.side(side, row);
            let partners = &query.sides[1 - side];
            let first = partners.partition_point(|kept| kept.time_us < from_us);
            let in_range = partners.iter().skip(first).take_while(|kept| kept.time_us <= to_us);
            for partner in in_range.filter(|kept| kept.key() == key) {
                let sides = if side == 0 { [bytes, partner.row()] } else { [partner.row(), bytes] };
                let times = (slot, time_us.max(partner.time_us), batch.arrival_us[row]);
                joined.push(times, sides, plan, encoded, context)?;
            }
            if is_kept {
                query.keep(side, Kept::new(time_us, key, bytes));
            }
        }
        joined.finish(plan, encoded, context)
    }

    fn remove_slot(&mut self, slot: Slot) {
        if let Some(query) = self.slots.get_mut(slot as usize) {
            *query = None;
        }
    }

    fn state_schema(&self) -> SchemaRef {
        let own = [
            Field::new("clock_us", DataType::Int64, false),
            Field::new("side", DataType::UInt8, true),
            Field::new("time_us", DataType::Int64, true),
        ];
        Arc::new(Schema::new(state_fields(&self.plan, own)))
    }
}

fn query_of(slots: &mut Vec<Option<Box<Query>>>, slot: Slot, id: QueryId, time_us: i64) -> &mut Query {
    if slots.len() <= slot as usize {
        slots.resize_with(slot as usize + 1, || None);
    }
    slots[slot as usize].get_or_insert_with(|| Query::new(KeyHash::of(&id.to_le_bytes()).bits(), time_us))
}

fn late(clock_us: i64, time_us: i64) -> String {
    format!(
        "the row is {} ms behind the newest one, and what it could match is forgotten\nhint: raise lateness",
        clock_us.saturating_sub(time_us) / 1000
    )
}

fn too_many() -> String {
    format!(
        "a query keeps at most {JOIN_ROWS_MAX} rows of each side\nhint: join within a shorter time, or filter before"
    )
}

impl Query {
    fn new(key_hash: u16, clock_us: i64) -> Box<Self> {
        Box::new(Self { key_hash, clock_us, sides: Default::default() })
    }

    /// The key group of a row: that of its key, or without keys of the query.
    fn key_hash_of(&self, kept: &Kept) -> u16 {
        match kept.key() {
            [] => self.key_hash,
            key => KeyHash::of(key).bits(),
        }
    }

    /// Takes note of a row's time, and forgets what nothing can match any more.
    fn advance(&mut self, time_us: i64, interval: Interval) {
        self.clock_us = self.clock_us.max(time_us);
        for (side, rows) in self.sides.iter_mut().enumerate() {
            let oldest_us = interval.oldest(side, self.clock_us);
            while rows.front().is_some_and(|kept| kept.time_us < oldest_us) {
                rows.pop_front();
            }
            if rows.capacity() > 4 * rows.len() + 16 {
                rows.shrink_to(2 * rows.len());
            }
        }
    }

    fn keep(&mut self, side: usize, kept: Kept) {
        let rows = &mut self.sides[side];
        // Nearly always the end.
        let place = match rows.back() {
            Some(last) if last.time_us > kept.time_us => rows.partition_point(|other| other.time_us <= kept.time_us),
            _ => rows.len(),
        };
        rows.insert(place, kept);
    }
}

/// The bounds of each row of a batch, as they were computed.
struct Bounds<'a> {
    low: Option<(&'a IntervalMonthDayNanoArray, bool)>,
    high: Option<(&'a IntervalMonthDayNanoArray, bool)>,
}

impl<'a> Bounds<'a> {
    fn new(plan: &Plan, columns: &'a [ArrayRef]) -> Self {
        let JoinKind::Interval { low, high, .. } = &plan.kind else { return Self { low: None, high: None } };
        let mut columns = columns.iter();
        let mut next = |offset: &Option<Offset>| {
            let offset = offset.as_ref()?;
            Some((columns.next()?.as_primitive::<IntervalMonthDayNanoType>(), offset.is_negative))
        };
        Self { low: next(low), high: next(high) }
    }

    fn of_row(&self, row: usize) -> Option<(i64, i64)> {
        let span_us = |bound: Option<(&IntervalMonthDayNanoArray, bool)>| {
            let Some((intervals, is_negative)) = bound else { return Some(0) };
            let interval = intervals.is_valid(row).then(|| intervals.value(row))?;
            let span_us = i64::from(interval.days).checked_mul(DAY_US)?.checked_add(interval.nanoseconds / 1000)?;
            (interval.months == 0).then_some(if is_negative { -span_us } else { span_us })
        };
        Some((span_us(self.low)?, span_us(self.high)?))
    }
}
