//! The operator: how batches and ticks are processed.

use std::sync::Arc;

use arrow::row::Rows as KeyRows;
use rivulet_dataflow::times::{at, span};
use rivulet_dataflow::{
    Batch, Context, Control, Element, KeyHash, Operator, OperatorError, Reason, Refused, Slot, StateError, StateFrame,
    StateSelection, fetch, fetch_ahead,
};

use super::output::Matches;
use super::partition::{NEVER, Partition, Scratch, Search};
use super::plan::Plan;
use super::registers::Match;
use super::slots::{Known, Slots};
use super::spec::{MATCH_ROWS_MAX, SLOT_ROWS_MAX};
use super::state;
use crate::history::value::{Value, Values};
use crate::keyed::{Passing, SLOT_KEYS_MAX, late_hint};
use crate::row_bytes::RowBytes;
use crate::window::length::TIME_MAX_US;

/// An instance of [`PatternMatch`](super::PatternMatch).
pub(super) struct PatternOperator {
    plan: Arc<Plan>,
    key_bytes: RowBytes,
    /// The keys of the current batch. The buffer is kept to reuse its memory.
    key_rows: KeyRows,
    slots: Slots,
    matches: Matches,
    scratch: Scratch,
    /// The partitions of a slot while the operator goes through them.
    places: Vec<u32>,
}

/// A row of a batch on its way into a partition.
struct NewRow<'a> {
    index: usize,
    slot: Slot,
    time_us: i64,
    arrival_us: i64,
    key: &'a [u8],
    holds: u64,
}

impl PatternOperator {
    pub(super) fn new(plan: Arc<Plan>) -> Self {
        let key_bytes = RowBytes::new(plan.key_fields.iter().map(|field| field.data_type()))
            .expect("the types of keys are checked when the plan is made");
        Self {
            key_rows: key_bytes.buffer(),
            key_bytes,
            slots: Slots::new(plan.clone()),
            matches: Matches::default(),
            scratch: Scratch::default(),
            places: Vec::new(),
            plan,
        }
    }

    fn add_slots(&mut self, slots: &[Slot], context: &Context<'_>) {
        let within = self.plan.within.as_ref().map(|within| within.evaluate(&context.slots.parameters(slots)));
        for (row, &slot) in slots.iter().enumerate() {
            self.slots.make_room(slot);
            let query = context.slots.query(slot).unwrap_or_default();
            let state = &mut self.slots.states[slot as usize];
            state.key_hash = KeyHash::of(&query.to_le_bytes()).bits();
            (state.known, state.within_us) = match within.as_ref().map(|within| &within[row]) {
                None => (Known::Usable, NEVER),
                Some(Ok(lengths)) => (Known::Usable, lengths.width),
                Some(Err(_)) => (Known::Broken, NEVER),
            };
        }
    }

    /// Processes rows, and between them advances the clocks by the rows of other instances in `passing`.
    fn process_batch(
        &mut self,
        batch: Batch,
        mut passing: Passing<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        self.matches.begin();
        self.slots.update_leaps(context);
        let plan = self.plan.clone();
        let rows = batch.rows();
        let (batch, columns) = plan.expressions.evaluate(batch, context)?;
        if passing.is_any() && batch.rows() != rows {
            return Err(OperatorError::new("a key could be computed once and not again"));
        }
        if batch.is_empty() {
            self.pass_rows(&mut passing, None, context)?;
            return self.matches.emit(&plan, &self.key_bytes, context);
        }
        let (keys, inputs) = plan.inputs(&columns)?;
        let mut key_rows = std::mem::replace(&mut self.key_rows, self.key_bytes.buffer());
        if !keys.is_empty() {
            self.key_bytes.encode(keys, &mut key_rows)?;
        }
        for (index, &slot) in batch.slots.iter().enumerate() {
            let first = |row: usize| {
                self.slots.states.get(batch.slots[row] as usize).into_iter().for_each(fetch);
                self.slots.deadlines_us.get(batch.slots[row] as usize).into_iter().for_each(fetch);
            };
            fetch_ahead(index, batch.rows(), first, |_| {});
            self.pass_rows(&mut passing, Some(index), context)?;
            let row = NewRow {
                index,
                slot,
                time_us: if plan.arrival_time { batch.arrival_us[index] } else { batch.event_time_us[index] },
                arrival_us: batch.arrival_us[index],
                key: if keys.is_empty() { &[] } else { key_rows.row(index).data() },
                holds: inputs.holds(index),
            };
            if !self.is_usable(&batch, &row, context) {
                continue;
            }
            self.process_row(&batch, row, &inputs.values, context);
            self.slots.set_deadline(slot);
            if self.matches.are_many() {
                self.matches.emit(&plan, &self.key_bytes, context)?;
            }
        }
        self.key_rows = key_rows;
        self.pass_rows(&mut passing, None, context)?;
        self.matches.emit(&plan, &self.key_bytes, context)
    }

    /// Passes the rows of other instances that come before the own row `before`, or all that remain. They advance the
    /// clocks of their slots.
    fn pass_rows(
        &mut self,
        passing: &mut Passing<'_>,
        before: Option<usize>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let Some(batch) = passing.batch else { return Ok(()) };
        for row in passing.rows(before) {
            let (slot, arrival_us) = (batch.slots[row], batch.arrival_us[row]);
            let time_us = if self.plan.arrival_time { arrival_us } else { batch.event_time_us[row] };
            let known = self.slots.states.get(slot as usize).map_or(Known::Absent, |state| state.known);
            if known != Known::Usable || !(-TIME_MAX_US..=TIME_MAX_US).contains(&time_us) {
                continue;
            }
            self.advance(slot, self.slots.watermark_us(slot as usize, arrival_us), arrival_us, context);
            let watermark_us = self.slots.states[slot as usize].watermark_us;
            if self.plan.arrival_time || time_us >= watermark_us {
                self.accept(slot, time_us.max(watermark_us), arrival_us, None, context);
            }
            self.slots.set_deadline(slot);
            if self.matches.are_many() {
                self.matches.emit(&self.plan.clone(), &self.key_bytes, context)?;
            }
        }
        Ok(())
    }

    /// Whether the slot and the time of the row are usable. Refuses the row if its `WITHIN` or its time is not.
    fn is_usable(&mut self, batch: &Batch, row: &NewRow<'_>, context: &mut Context<'_>) -> bool {
        self.slots.make_room(row.slot);
        if self.slots.states[row.slot as usize].known == Known::Absent {
            // Rows of a query that is gone must not leave state behind. A query that exists has not been announced yet.
            if context.slots.query(row.slot).is_none() {
                return false;
            }
            self.add_slots(&[row.slot], context);
        }
        if self.slots.states[row.slot as usize].known == Known::Broken {
            let (plan, slots) = (&self.plan, context.slots);
            refuse(batch, row, Reason::Expression, context, || {
                let parameters = slots.parameters(&[row.slot]);
                let verdict = plan.within.as_ref().and_then(|within| within.evaluate(&parameters).pop());
                verdict.and_then(Result::err).map_or_else(|| "WITHIN has no length".into(), |error| error.to_string())
            });
            return false;
        }
        if !(-TIME_MAX_US..=TIME_MAX_US).contains(&row.time_us) {
            refuse(batch, row, Reason::Future, context, || {
                "the event time is over 9000 years away\nhint: check the unit of the device's timestamps".into()
            });
            return false;
        }
        true
    }

    fn process_row(&mut self, batch: &Batch, mut row: NewRow<'_>, values: &[Values], context: &mut Context<'_>) {
        let slot = row.slot as usize;
        self.advance(row.slot, self.slots.watermark_us(slot, row.arrival_us), row.arrival_us, context);
        let watermark_us = self.slots.states[slot].watermark_us;
        if self.plan.arrival_time {
            // The machine's clock may be set back; the order of arrival is not.
            row.time_us = row.time_us.max(watermark_us);
        } else if row.time_us < watermark_us {
            let reached_us = self.slots.states[slot].max_ts_us.saturating_sub(self.plan.lateness_us);
            refuse(batch, &row, Reason::Late, context, || {
                format!(
                    "the event time, {}, is {} behind the clock of the query\nhint: {}",
                    at(row.time_us),
                    span(watermark_us.saturating_sub(row.time_us)),
                    late_hint(row.time_us >= reached_us)
                )
            });
            return;
        }
        let Some(place) = self.take_row(batch, &row, values, context) else { return };
        self.accept(row.slot, row.time_us, row.arrival_us, place, context);
    }

    /// Advances the clock of a slot by a row that is not late. Searches in the row's partition, if it is in one here,
    /// and in partitions where something is due.
    fn accept(&mut self, slot: Slot, time_us: i64, arrival_us: i64, place: Option<u32>, context: &mut Context<'_>) {
        let state = &mut self.slots.states[slot as usize];
        state.max_ts_us = state.max_ts_us.max(time_us);
        state.last_arrival_us = arrival_us;
        state.watermark_us = state.watermark_us.max(state.max_ts_us.saturating_sub(self.plan.lateness_us));
        let watermark_us = state.watermark_us;
        self.matches.begin_group();
        if let Some(place) = place {
            self.run(slot, place, watermark_us, arrival_us, context);
        }
        if watermark_us >= self.slots.states[slot as usize].due_us {
            self.run_due(slot, watermark_us, arrival_us, context);
        }
    }

    /// Puts a row into its partition and returns the partition's index. The outer `None` is a row that is refused. The
    /// inner `None` is a row that begins no match and is in no partition.
    fn take_row(
        &mut self,
        batch: &Batch,
        row: &NewRow<'_>,
        values: &[Values],
        context: &mut Context<'_>,
    ) -> Option<Option<u32>> {
        let plan = self.plan.clone();
        let place = match self.slots.partitions.find(row.slot, row.key) {
            Some(place) => place,
            None => {
                let may_matter = plan.lateness_us > 0 || plan.rows_before > 0;
                if row.holds & plan.program.first_variables == 0 && !may_matter {
                    return Some(None);
                }
                let Some(place) = self.slots.partitions.create(row.slot, row.key) else {
                    refuse(batch, row, Reason::Expression, context, || {
                        format!(
                            "there are too many partitions: a query has at most {SLOT_KEYS_MAX}\nhint: use a column \
                             with fewer values in PARTITION BY"
                        )
                    });
                    return None;
                };
                self.slots.key_heap_bytes += row.key.len();
                *self.slots.partitions.value_mut(place) = Partition::new(plan.storages.len());
                place
            }
        };
        let is_full = |operator: &mut Self| {
            operator.slots.states[row.slot as usize].rows as usize >= SLOT_ROWS_MAX
                || operator.slots.partitions.value_mut(place).rows.len() >= MATCH_ROWS_MAX + plan.rows_before
        };
        if is_full(self) {
            self.give_up(row.slot, place, row.arrival_us, context);
        }
        if is_full(self) {
            refuse(batch, row, Reason::Overflow, context, || {
                format!(
                    "too many rows wait for their turn: {MATCH_ROWS_MAX} of a partition, or {SLOT_ROWS_MAX} of the \
                     query\nhint: allow less lateness, or use fewer partitions"
                )
            });
            return None;
        }
        self.slots.states[row.slot as usize].rows += 1;
        let partition = self.slots.partitions.value_mut(place);
        let values = values.iter().map(|values| {
            let mut value = Value::Null;
            values.store(row.index, &mut value);
            value
        });
        partition.rows.insert(row.time_us, row.holds, values);
        Some(Some(place))
    }

    /// Advances a slot's watermark to `watermark_us` and does what is due by then.
    fn advance(&mut self, slot: Slot, watermark_us: i64, arrival_us: i64, context: &mut Context<'_>) {
        let state = &mut self.slots.states[slot as usize];
        if watermark_us <= state.watermark_us {
            return;
        }
        state.watermark_us = watermark_us;
        if watermark_us >= state.due_us {
            self.matches.begin_group();
            self.run_due(slot, watermark_us, arrival_us, context);
        }
    }

    /// Searches in the partitions of a slot in which something is due.
    fn run_due(&mut self, slot: Slot, watermark_us: i64, arrival_us: i64, context: &mut Context<'_>) {
        let within_us = self.slots.states[slot as usize].within_us;
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        places.extend(self.slots.partitions.places(slot));
        self.slots.states[slot as usize].due_us = NEVER;
        for &place in &places {
            let due_us = self.slots.partitions.value(place).due_us(within_us, &self.slots.arrival_leaps);
            if due_us <= watermark_us {
                self.run(slot, place, watermark_us, arrival_us, context);
            } else {
                let state = &mut self.slots.states[slot as usize];
                state.due_us = state.due_us.min(due_us);
            }
        }
        self.places = places;
    }

    /// Searches in a partition, and forgets it if nothing is left to remember.
    fn run(&mut self, slot: Slot, place: u32, watermark_us: i64, arrival_us: i64, context: &mut Context<'_>) {
        self.search(slot, place, watermark_us, arrival_us, context, false);
    }

    /// Ends the current match in a partition, to make room.
    fn give_up(&mut self, slot: Slot, place: u32, arrival_us: i64, context: &mut Context<'_>) {
        self.matches.begin_group();
        let watermark_us = self.slots.states[slot as usize].watermark_us;
        self.search(slot, place, watermark_us, arrival_us, context, true);
    }

    fn search(
        &mut self,
        slot: Slot,
        place: u32,
        watermark_us: i64,
        arrival_us: i64,
        context: &mut Context<'_>,
        gives_up: bool,
    ) {
        let Self { plan, slots: Slots { states, partitions, arrival_leaps: leaps, .. }, matches, scratch, .. } = self;
        let state = &mut states[slot as usize];
        let within_us = state.within_us;
        let (key, partition) = partitions.entry_mut(place);
        let rows_before = partition.rows.len();
        let mut search = Search { plan, slot, within_us, leaps, watermark_us, context, scratch };
        let mut found = |of: &Match<'_>, time_us: i64, decided_us: i64| {
            matches.push(plan, of, slot, key, time_us, arrival_us, decided_us);
        };
        if gives_up {
            // The search has not gone through restored rows yet. Only when it has, the length of the match is known.
            partition.run(&mut search, &mut found);
            partition.give_up(&mut search, &mut found);
        }
        partition.run(&mut search, &mut found);
        state.rows = (state.rows + partition.rows.len() as u32).saturating_sub(rows_before as u32);
        state.due_us = state.due_us.min(partition.due_us(within_us, leaps));
        if partition.is_idle() && !gives_up {
            self.slots.key_heap_bytes -= self.slots.partitions.remove(place).0.len();
        }
    }

    /// Decides all open matches at the end of the input.
    fn end(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        for slot in 0..self.slots.states.len() as Slot {
            self.matches.begin_group();
            self.run_due(slot, NEVER, context.now_us, context);
            self.slots.set_deadline(slot);
            if self.matches.are_many() {
                self.matches.emit(&plan, &self.key_bytes, context)?;
            }
        }
        self.matches.emit(&plan, &self.key_bytes, context)
    }
}

fn refuse(batch: &Batch, row: &NewRow<'_>, reason: Reason, context: &mut Context<'_>, detail: impl FnOnce() -> String) {
    context
        .refusals
        .refuse(row.slot, reason, row.arrival_us, || (detail(), Refused::Row(Box::new(batch.slice(row.index, 1)))));
}

impl Operator for PatternOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.process_batch(batch, Passing::default(), context),
            Element::Control(Control::AddSlots(slots)) => {
                self.add_slots(&slots, context);
                Ok(())
            }
            Element::Control(Control::RemoveSlots(slots)) => {
                slots.into_iter().for_each(|slot| self.slots.remove_slot(slot));
                Ok(())
            }
            Element::End => self.end(context),
            // Queries of applications have a clock per slot, and state is exported when the host asks.
            Element::Clocks(_) | Element::Watermark(_) | Element::Barrier(_) => Ok(()),
        }
    }

    fn key_hashes(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(Batch, Vec<u16>), OperatorError> {
        // Evaluates more than the keys: a row on which a condition fails is refused before it advances the clock.
        let (batch, columns) = self.plan.expressions.evaluate(batch, context)?;
        let key_hashes = self.key_bytes.key_hashes(&columns[..self.plan.key_fields.len()], &mut self.key_rows)?;
        Ok((batch, key_hashes))
    }

    fn process_own(&mut self, batch: &Batch, own: &[u32], context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.process_batch(batch.take(own)?, Passing::of(batch, own), context)
    }

    fn deadline_us(&self) -> Option<i64> {
        (self.slots.deadline_us != NEVER).then_some(self.slots.deadline_us)
    }

    fn slot_deadline_us(&self, slot: Slot) -> Option<i64> {
        self.slots.deadlines_us.get(slot as usize).copied().filter(|&deadline_us| deadline_us != NEVER)
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let (now_us, plan) = (context.now_us, self.plan.clone());
        if self.slots.deadline_us > now_us {
            return Ok(());
        }
        self.slots.update_leaps(context);
        self.matches.begin();
        let mut earliest_us = NEVER;
        for slot in 0..self.slots.states.len() {
            if self.slots.deadlines_us[slot] <= now_us {
                self.advance(slot as Slot, self.slots.watermark_us(slot, now_us), now_us, context);
                self.slots.set_deadline(slot as Slot);
                if self.matches.are_many() {
                    self.matches.emit(&plan, &self.key_bytes, context)?;
                }
            }
            earliest_us = earliest_us.min(self.slots.deadlines_us[slot]);
        }
        self.slots.deadline_us = earliest_us;
        self.matches.emit(&plan, &self.key_bytes, context)
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        state::export(&self.slots, &self.key_bytes, selection).map(Some)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.slots.partitions.begin_import();
        let imported = state::import(&mut self.slots, &self.key_bytes, frame);
        self.slots.partitions.end_import();
        imported
    }

    fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes() + self.key_rows.size() + self.key_bytes.memory_bytes()
    }
}
