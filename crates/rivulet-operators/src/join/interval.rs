//! The join within an interval of time. It keeps the rows of both sides of each query as long as a row can come that
//! matches them.
//!
//! A query's rows are in order of event time, so the rows that can match are a range, and the rows to be forgotten are
//! at the front. Within a range, keys are compared one by one: a small query has few rows and often one key.
//!
//! In a LEFT JOIN, a left row without a match comes out when it is forgotten. For this, the time of a silent query goes
//! on by the clock, by the same rule as windows.

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, IntervalMonthDayNanoArray, RecordBatch, UInt8Array,
    UInt16Array, UInt32Array,
};
use arrow::datatypes::{DataType, Field, Int64Type, IntervalMonthDayNanoType, Schema, SchemaRef, UInt8Type};
use rivulet_dataflow::times::{at, span};
use rivulet_dataflow::{
    Batch, Context, Control, Element, Holding, KeyHash, Leaps, Operator, OperatorError, QueryId, Reason, Slot,
    StateError, StateFrame, StateSelection,
};

use super::encoded::{Encoded, Joined, refuse, state_fields};
use super::plan::{JOIN_ROWS_MAX, JoinKind, Offset, Plan};
use crate::keyed::{grow, idle_us, late_hint};

pub(super) const OPERATOR: &str = "interval_join";
/// In version 1 the row of a query has no time: how far it has forgotten is its clock less the lateness.
const VERSION: u32 = 2;
const DAY_US: i64 = 86_400_000_000;
/// A time that never comes.
const NEVER: i64 = i64::MAX;

pub(super) struct IntervalJoin {
    plan: Arc<Plan>,
    lateness_us: i64,
    idle_timeout_us: i64,
    encoded: Encoded,
    joined: Joined,
    slots: Vec<Option<Box<Query>>>,
    /// For a LEFT JOIN, by slot: when a row is forgotten if no other row comes.
    deadlines_us: Vec<i64>,
    /// No slot has an earlier deadline.
    deadline_us: i64,
    leaps: Leaps,
}

/// The kept rows and the clock of a query.
struct Query {
    key_hash: u16,
    /// The newest event time. For a silent query of a LEFT JOIN, the time to which the clock has brought it.
    clock_us: i64,
    /// The clock less the lateness. It never goes back, also where the next version of the application waits longer:
    /// the rows before it are forgotten.
    watermark_us: i64,
    /// For a LEFT JOIN: the values from which the time of a silent query is computed.
    silence: Silence,
    /// Rows by event time; rows of the same time in the order in which they came.
    sides: [VecDeque<Kept>; 2],
}

/// The values from which the clock of a silent query is computed.
#[derive(Clone, Copy)]
struct Silence {
    /// The newest event time.
    newest_us: i64,
    /// When the newest row came.
    last_arrival_us: i64,
    low_us: i64,
    high_us: i64,
}

struct Kept {
    time_us: i64,
    /// The key, then the row.
    bytes: Box<[u8]>,
    key_bytes: u32,
    /// Whether a row of the other side has matched it.
    is_matched: bool,
}

impl Kept {
    fn new(time_us: i64, key: &[u8], row: &[u8], is_matched: bool) -> Self {
        let key_bytes = u32::try_from(key.len()).expect("a key is part of a payload, which is shorter");
        Self { time_us, bytes: [key, row].concat().into(), key_bytes, is_matched }
    }

    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes as usize]
    }

    fn row(&self) -> &[u8] {
        &self.bytes[self.key_bytes as usize..]
    }
}

/// The bounds of the distance from the event time of a left row to those of the right rows that match it.
#[derive(Clone, Copy)]
struct Interval {
    low_us: i64,
    high_us: i64,
}

impl Silence {
    fn interval(self) -> Interval {
        Interval { low_us: self.low_us, high_us: self.high_us }
    }
}

impl Interval {
    /// The event times on the other side that a row of `side` matches: the first and the last.
    fn matches(self, side: usize, time_us: i64) -> (i64, i64) {
        match side {
            0 => (time_us.saturating_add(self.low_us), time_us.saturating_add(self.high_us)),
            _ => (time_us.saturating_sub(self.high_us), time_us.saturating_sub(self.low_us)),
        }
    }

    /// The oldest event time of `side` that a future row of the other side, not before the watermark, can match.
    fn oldest(self, side: usize, watermark_us: i64) -> i64 {
        self.matches(1 - side, watermark_us).0
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
            Element::End if self.plan.keeps_unmatched => {
                self.joined.begin();
                for slot in 0..self.slots.len() {
                    self.let_go(slot, true, context)?;
                }
                self.joined.finish(&self.plan, &self.encoded, context)
            }
            _ => Ok(()),
        }
    }

    fn deadline_us(&self) -> Option<i64> {
        (self.deadline_us != NEVER).then_some(self.deadline_us)
    }

    fn slot_deadline_us(&self, slot: Slot) -> Option<i64> {
        self.deadlines_us.get(slot as usize).copied().filter(|&deadline_us| deadline_us != NEVER)
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let now_us = context.now_us;
        if self.deadline_us > now_us {
            return Ok(());
        }
        context.slots.update_leaps(&mut self.leaps);
        self.joined.begin();
        let mut earliest_us = NEVER;
        for slot in 0..self.deadlines_us.len() {
            if self.deadlines_us[slot] <= now_us {
                self.let_go(slot, false, context)?;
            }
            earliest_us = earliest_us.min(self.deadlines_us[slot]);
        }
        self.deadline_us = earliest_us;
        self.joined.finish(&self.plan, &self.encoded, context)
    }

    fn holding(&self, slot: Slot) -> Option<Holding> {
        let query = self.slots.get(slot as usize)?.as_ref()?;
        let sides = query.sides.each_ref().map(|rows| rows.len() as u64);
        Some(Holding { newest_us: Some(query.clock_us), sides: Some(sides), ..Holding::default() })
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let (mut slots, mut key_hashes, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        let (mut clocks_us, mut numbers, mut times_us) = (Vec::new(), Vec::new(), Vec::new());
        let (mut silences, mut are_matched) = (Vec::new(), Vec::new());
        let mut sides: [Vec<&[u8]>; 2] = Default::default();
        let no_key = match self.plan.key_types.is_empty() {
            true => Box::default(),
            false => self.encoded.null_key(&self.plan)?,
        };
        let add_slot = |slot: usize| {
            let Some(Some(query)) = self.slots.get(slot) else { return };
            let mut add = |key_hash: u16, kept: Option<(usize, &Kept)>| -> bool {
                if !selection.selects_key(KeyHash::from_bits(key_hash)) {
                    return false;
                }
                slots.push(slot as Slot);
                key_hashes.push(key_hash);
                clocks_us.push(query.clock_us);
                numbers.push(kept.map(|(side, _)| side as u8));
                times_us.push(Some(kept.map_or(query.watermark_us, |(_, kept)| kept.time_us)));
                silences.push(query.silence);
                are_matched.push(kept.map(|(_, kept)| kept.is_matched));
                true
            };
            // The clock also stands in a row of its own: a query may have no other rows.
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
        selection.for_each_slot(self.slots.len(), add_slot);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from(slots)), Arc::new(UInt16Array::from(key_hashes))];
        if !self.plan.key_types.is_empty() {
            columns.extend(self.encoded.decode_keys(keys.into_iter().map(|key| key.unwrap_or(&no_key)))?);
        }
        columns.push(Arc::new(Int64Array::from(clocks_us)));
        columns.push(Arc::new(UInt8Array::from(numbers)));
        columns.push(Arc::new(Int64Array::from(times_us)));
        if self.plan.keeps_unmatched {
            let parts: [fn(&Silence) -> i64; 4] =
                [|one| one.newest_us, |one| one.last_arrival_us, |one| one.low_us, |one| one.high_us];
            for part in parts {
                columns.push(Arc::new(Int64Array::from_iter_values(silences.iter().map(part))));
            }
            columns.push(Arc::new(BooleanArray::from(are_matched)));
        }
        for (side, rows) in sides.into_iter().enumerate() {
            columns.extend(self.encoded.decode_side(side, rows.into_iter())?);
        }
        Ok(Some(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(self.state_schema(), columns)?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect_rows(OPERATOR, VERSION, &self.state_schema(), "the rows belong to another join than this")?;
        let corrupt = |what: &str| StateError::Corrupt(what.to_owned());
        let columns = frame.rows.columns();
        let keys = self.plan.key_types.len();
        let has_silence = self.plan.keeps_unmatched;
        let (own, sides) = columns[2 + keys..].split_at(if has_silence { 8 } else { 3 });
        let mut required = own[..1].iter().chain(own.get(3..7).unwrap_or_default());
        if required.any(|column| column.null_count() > 0) {
            return Err(corrupt("the clock of a slot is missing"));
        }
        let clocks_us = own[0].as_primitive::<Int64Type>();
        let (numbers, times_us) = (own[1].as_primitive::<UInt8Type>(), own[2].as_primitive::<Int64Type>());
        if numbers.iter().flatten().any(|one| one > 1) {
            return Err(corrupt("a side has too high a number"));
        }
        let (left, right) = sides.split_at(self.plan.side_types[0].len());
        let (key_rows, side_rows) = self.encoded.encode_state(&columns[2..2 + keys], [left, right])?;
        frame.slots().iter().for_each(|&slot| self.remove_slot(slot));
        for row in 0..frame.rows.num_rows() {
            let (slot, clock_us) = (frame.slots()[row] as usize, clocks_us.value(row));
            if self.slots.len() <= slot {
                self.slots.resize_with(slot + 1, || None);
            }
            let silence = Silence { newest_us: clock_us, last_arrival_us: i64::MIN, low_us: 0, high_us: 0 };
            let query = self.slots[slot].get_or_insert_with(|| Query::new(frame.key_groups()[row], clock_us, silence));
            query.clock_us = query.clock_us.max(clock_us);
            query.advance(self.lateness_us);
            if has_silence {
                let integer = |column: usize| own[column].as_primitive::<Int64Type>().value(row);
                let of_row = Silence {
                    newest_us: integer(3),
                    last_arrival_us: integer(4),
                    low_us: integer(5),
                    high_us: integer(6),
                };
                query.silence = of_row;
            }
            if numbers.is_null(row) {
                query.key_hash = frame.key_groups()[row];
                if times_us.is_valid(row) {
                    query.watermark_us = query.watermark_us.max(times_us.value(row));
                }
                continue;
            }
            let side = usize::from(numbers.value(row));
            if times_us.is_null(row) || query.sides[side].len() >= JOIN_ROWS_MAX {
                return Err(corrupt("a row without time, or too many rows"));
            }
            let key: &[u8] = if keys > 0 { key_rows.row(row).data() } else { &[] };
            let is_matched = has_silence && own[7].as_boolean().is_valid(row) && own[7].as_boolean().value(row);
            query.keep(side, Kept::new(times_us.value(row), key, side_rows[side].row(row).data(), is_matched));
        }
        if has_silence {
            frame.slots().iter().for_each(|&slot| self.set_deadline(slot as usize));
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
            + self.deadlines_us.capacity() * size_of::<i64>()
            + self.slots.iter().flatten().map(|query| rows(query)).sum::<usize>()
            + self.encoded.memory_bytes()
    }
}

impl IntervalJoin {
    pub(super) fn new(plan: Arc<Plan>, lateness_us: i64, idle_timeout_us: i64) -> Self {
        let encoded = Encoded::new(&plan);
        Self {
            plan,
            lateness_us,
            idle_timeout_us,
            encoded,
            joined: Joined::default(),
            slots: Vec::new(),
            deadlines_us: Vec::new(),
            deadline_us: NEVER,
            leaps: Leaps::default(),
        }
    }

    /// Advances a slot to the time of the clock, or to the end of all time, and forgets rows that can match nothing any
    /// more.
    fn let_go(&mut self, slot: usize, is_end: bool, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let now_us = context.now_us;
        let Self { plan, lateness_us, idle_timeout_us, encoded, joined, slots, leaps, .. } = self;
        if let Some(Some(query)) = slots.get_mut(slot) {
            match is_end {
                true => query.clock_us = NEVER,
                false => query.be_silent(leaps, now_us, *idle_timeout_us),
            }
            query.advance(*lateness_us);
            let interval = query.silence.interval();
            query.forget(interval, |kept| {
                let times = (slot as Slot, kept.time_us, now_us);
                joined.push(times, [kept.row(), encoded.null(1)], plan, encoded, context)
            })?;
        }
        self.set_deadline(slot);
        Ok(())
    }

    /// Sets the time at which the oldest left row of a slot is forgotten if no other row comes.
    fn set_deadline(&mut self, slot: usize) {
        grow(&mut self.deadlines_us, slot + 1, || NEVER);
        let query = self.slots.get(slot).and_then(Option::as_ref);
        let deadline_us = query.and_then(|query| {
            let Silence { newest_us, last_arrival_us, high_us, .. } = query.silence;
            let oldest = query.sides[0].front()?;
            let behind_us = oldest.time_us.saturating_add(high_us).saturating_add(self.lateness_us).saturating_add(1);
            let missing_us = behind_us.saturating_sub(newest_us).max(self.idle_timeout_us);
            Some(self.leaps.after_us(last_arrival_us, missing_us))
        });
        self.deadlines_us[slot] = deadline_us.unwrap_or(NEVER);
        self.deadline_us = self.deadline_us.min(self.deadlines_us[slot]);
    }

    fn process_batch(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let (batch, columns) = self.plan.expressions.evaluate(batch, context)?;
        if batch.is_empty() {
            return Ok(());
        }
        context.slots.update_leaps(&mut self.leaps);
        let Self { plan, lateness_us, idle_timeout_us, encoded, joined, slots, leaps, .. } = self;
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
            let interval = Interval { low_us, high_us };
            let arrival_us = batch.arrival_us[row];
            let silence = Silence { newest_us: time_us, last_arrival_us: arrival_us, low_us, high_us };
            let query = query_of(slots, slot, id, silence);
            if plan.keeps_unmatched {
                query.be_silent(leaps, arrival_us, *idle_timeout_us);
            }
            query.clock_us = query.clock_us.max(time_us);
            query.advance(*lateness_us);
            query.forget(interval, |kept| match plan.keeps_unmatched {
                true => {
                    let times = (slot, kept.time_us, arrival_us);
                    joined.push(times, [kept.row(), encoded.null(1)], plan, encoded, context)
                }
                false => Ok(()),
            })?;
            let (from_us, to_us) = interval.matches(side, time_us);
            if to_us < interval.oldest(1 - side, query.watermark_us) && from_us <= to_us {
                let by_rows_us = query.silence.newest_us.saturating_sub(*lateness_us);
                let by_clock = to_us >= interval.oldest(1 - side, by_rows_us);
                refuse(&batch, row, input, Reason::Late, || late(query.clock_us, time_us, by_clock), context);
                continue;
            }
            query.silence = Silence { newest_us: query.silence.newest_us.max(time_us), ..silence };
            let keeps_unmatched = plan.keeps_unmatched && side == 0;
            let unmatched = (slot, time_us, arrival_us);
            // A null key equals nothing, and no later row will match it.
            let Some(key) = encoded.key(plan, row) else {
                if keeps_unmatched {
                    joined.push(unmatched, [encoded.side(0, row), encoded.null(1)], plan, encoded, context)?;
                }
                continue;
            };
            let is_kept = time_us >= interval.oldest(side, query.watermark_us);
            if is_kept && query.sides[side].len() >= JOIN_ROWS_MAX {
                refuse(&batch, row, input, Reason::Expression, too_many, context);
                continue;
            }
            let bytes = encoded.side(side, row);
            let partners = &mut query.sides[1 - side];
            let first = partners.partition_point(|kept| kept.time_us < from_us);
            let in_range = partners.range_mut(first..).take_while(|kept| kept.time_us <= to_us);
            let mut is_matched = false;
            for partner in in_range.filter(|kept| kept.key() == key) {
                (is_matched, partner.is_matched) = (true, true);
                let sides = if side == 0 { [bytes, partner.row()] } else { [partner.row(), bytes] };
                let times = (slot, time_us.max(partner.time_us), arrival_us);
                joined.push(times, sides, plan, encoded, context)?;
            }
            if is_kept {
                query.keep(side, Kept::new(time_us, key, bytes, is_matched));
            } else if keeps_unmatched && !is_matched {
                joined.push(unmatched, [bytes, encoded.null(1)], plan, encoded, context)?;
            }
        }
        joined.finish(plan, encoded, context)?;
        if self.plan.keeps_unmatched {
            batch.slots.iter().for_each(|&slot| self.set_deadline(slot as usize));
        }
        Ok(())
    }

    fn remove_slot(&mut self, slot: Slot) {
        if let Some(query) = self.slots.get_mut(slot as usize) {
            *query = None;
        }
        if let Some(deadline_us) = self.deadlines_us.get_mut(slot as usize) {
            *deadline_us = NEVER;
        }
    }

    fn state_schema(&self) -> SchemaRef {
        let own = [
            Field::new("clock_us", DataType::Int64, false),
            Field::new("side", DataType::UInt8, true),
            Field::new("time_us", DataType::Int64, true),
        ];
        // A LEFT JOIN remembers more columns. A frame of another join is unchanged.
        let names = ["newest_us", "last_arrival_us", "low_us", "high_us"];
        let silence = names.map(|name| Field::new(name, DataType::Int64, false)).into_iter();
        let silence = silence.chain([Field::new("is_matched", DataType::Boolean, true)]);
        let silence = silence.filter(|_| self.plan.keeps_unmatched);
        Arc::new(Schema::new(state_fields(&self.plan, own.into_iter().chain(silence))))
    }
}

fn query_of(slots: &mut Vec<Option<Box<Query>>>, slot: Slot, id: QueryId, silence: Silence) -> &mut Query {
    if slots.len() <= slot as usize {
        slots.resize_with(slot as usize + 1, || None);
    }
    let key_hash = || KeyHash::of(&id.to_le_bytes()).bits();
    slots[slot as usize].get_or_insert_with(|| Query::new(key_hash(), silence.newest_us, silence))
}

fn late(clock_us: i64, time_us: i64, by_clock: bool) -> String {
    format!(
        "what the row could match is forgotten: its event time, {}, is {} behind the clock of the query\nhint: {}",
        at(time_us),
        span(clock_us.saturating_sub(time_us)),
        late_hint(by_clock)
    )
}

fn too_many() -> String {
    format!(
        "a query keeps at most {JOIN_ROWS_MAX} rows of each side\nhint: join within a shorter time, or filter before"
    )
}

impl Query {
    fn new(key_hash: u16, clock_us: i64, silence: Silence) -> Box<Self> {
        Box::new(Self { key_hash, clock_us, watermark_us: i64::MIN, silence, sides: Default::default() })
    }

    /// Advances the watermark to the clock.
    fn advance(&mut self, lateness_us: i64) {
        self.watermark_us = self.watermark_us.max(self.clock_us.saturating_sub(lateness_us));
    }

    /// The key group of a row: that of its key, or, without keys, that of the query.
    fn key_hash_of(&self, kept: &Kept) -> u16 {
        match kept.key() {
            [] => self.key_hash,
            key => KeyHash::of(key).bits(),
        }
    }

    /// Advances the query by the clock, which shows `now_us`, if it has been silent for the idle timeout.
    fn be_silent(&mut self, leaps: &Leaps, now_us: i64, idle_timeout_us: i64) {
        let Silence { newest_us, last_arrival_us, .. } = self.silence;
        let silent_us = idle_us(leaps, last_arrival_us, now_us, idle_timeout_us);
        self.clock_us = self.clock_us.max(newest_us.saturating_add(silent_us));
    }

    /// Forgets rows that no later row can match. Calls `unmatched` for each of the left rows that have no match.
    fn forget(
        &mut self,
        interval: Interval,
        mut unmatched: impl FnMut(&Kept) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        for (side, rows) in self.sides.iter_mut().enumerate() {
            let oldest_us = interval.oldest(side, self.watermark_us);
            while rows.front().is_some_and(|kept| kept.time_us < oldest_us) {
                if let Some(kept) = rows.pop_front().filter(|kept| side == 0 && !kept.is_matched) {
                    unmatched(&kept)?;
                }
            }
            if rows.capacity() > 4 * rows.len() + 16 {
                rows.shrink_to(2 * rows.len());
            }
        }
        Ok(())
    }

    fn keep(&mut self, side: usize, kept: Kept) {
        let rows = &mut self.sides[side];
        // Nearly always the row goes to the end.
        let place = match rows.back() {
            Some(last) if last.time_us > kept.time_us => rows.partition_point(|other| other.time_us <= kept.time_us),
            _ => rows.len(),
        };
        rows.insert(place, kept);
    }
}

/// The computed bounds of each row of a batch.
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
