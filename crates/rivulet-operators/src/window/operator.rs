//! The operator: takes batches, goes through their rows, and emits the windows that they close.

use std::sync::Arc;

use arrow::row::Rows;
use rivulet_dataflow::times::{at, span};
use rivulet_dataflow::{
    Batch, Context, Control, Element, HELD_KEYS_MAX, Holding, KeyHash, Leaps, Operator, OperatorError, Reason, Slot,
    SlotClock, StateError, StateFrame, StateSelection, fetch_ahead,
};

use super::cells::{Cells, NEVER, SlotLengths};
use super::length::{TIME_MAX_US, WindowSpec};
use super::output::{Closed, OUTPUT_ROWS_MAX};
use super::plan::Plan;
use super::rules::{Row, Updates, Verdict, Windows};
use super::state;
use crate::keyed::{Passing, SLOT_KEYS_MAX, late_hint};
use crate::row_bytes::RowBytes;

/// An instance of [`WindowAggregate`](super::WindowAggregate).
pub(crate) struct WindowOperator {
    plan: Arc<Plan>,
    windows: Windows,
    row_bytes: RowBytes,
    /// The keys of the current batch. The buffer is kept to reuse its memory.
    keys: Rows,
    /// The clocks that the last batch has moved.
    clocks: Option<Arc<[SlotClock]>>,
}

impl WindowOperator {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        let row_bytes = RowBytes::new(plan.key_fields.iter().map(|field| field.data_type()))
            .expect("the types of keys are checked when the plan is made");
        let keys = row_bytes.buffer();
        let cells = Cells::new(plan.keys > 0, !plan.layout.objects.is_empty(), !plan.window.is_time());
        let windows = Windows {
            plan: plan.clone(),
            cells,
            closed: Closed::default(),
            deadline_us: NEVER,
            leaps: Leaps::default(),
        };
        Self { plan, windows, row_bytes, keys, clocks: None }
    }

    fn add_slots(&mut self, slots: &[Slot], context: &Context<'_>) {
        let lengths = self.plan.lengths_of(&context.slots.parameters(slots));
        for (&slot, lengths) in slots.iter().zip(lengths) {
            let query = context.slots.query(slot).unwrap_or_default();
            self.windows.cells.add_slot(slot as usize, lengths.ok(), KeyHash::of(&query.to_le_bytes()).bits());
        }
    }

    /// Processes rows, and between them advances the clocks by the rows of other instances in `passing`.
    fn process_batch(
        &mut self,
        batch: Batch,
        mut passing: Passing<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        context.slots.update_leaps(&mut self.windows.leaps);
        let rows = batch.rows();
        // A row whose keys or conditions fail is refused. A row on which an argument fails counts for the other
        // aggregates.
        let required = self.plan.keys + self.plan.conditions;
        let (batch, columns) = self.plan.expressions.evaluate_or_null(required, batch, context)?;
        if passing.is_any() && batch.rows() != rows {
            return Err(OperatorError::new("a key could be computed once and not again"));
        }
        if batch.is_empty() {
            self.pass_rows(&mut passing, None, context)?;
            return self.windows.closed.emit(&self.plan, &self.row_bytes, context);
        }
        let plan = self.plan.clone();
        let (keys, inputs) = columns.split_at(plan.keys);
        let (conditions, inputs) = inputs.split_at(plan.conditions);
        if plan.keys > 0 {
            self.row_bytes.encode(keys, &mut self.keys)?;
        }
        let prepared = plan.layout.prepare(inputs)?;
        let updates = Updates {
            fixed: plan.layout.fixed_updates(&prepared),
            objects: plan.layout.object_updates(&prepared),
            conditions,
        };
        let by_arrival = plan.arrival_time && !plan.over_windows;
        let times_us = if by_arrival { &batch.arrival_us } else { &batch.event_time_us };
        for index in 0..batch.rows() {
            let cells = &self.windows.cells;
            let slot_of = |row: usize| batch.slots[row] as usize;
            let (first, second) = (|row| cells.fetch_slot(slot_of(row)), |row| cells.fetch_panes(slot_of(row)));
            fetch_ahead(index, batch.rows(), first, second);
            self.pass_rows(&mut passing, Some(index), context)?;
            let slot = batch.slots[index];
            let lengths = match self.windows.cells.lengths(slot as usize) {
                SlotLengths::Known(lengths) => lengths,
                SlotLengths::Absent if context.slots.query(slot).is_some() => {
                    // The row came before the announcement of its query, which is in the table already.
                    self.add_slots(&[slot], context);
                    match self.windows.cells.lengths(slot as usize) {
                        SlotLengths::Known(lengths) => lengths,
                        _ => {
                            self.refuse_broken(&batch, index, context);
                            continue;
                        }
                    }
                }
                // The query is gone: its rows are dropped.
                SlotLengths::Absent => continue,
                SlotLengths::Broken => {
                    self.refuse_broken(&batch, index, context);
                    continue;
                }
            };
            let row = Row {
                index,
                slot: slot as usize,
                // The time as of windows that are not shifted.
                time_us: times_us[index].saturating_sub(lengths.offset),
                arrival_us: batch.arrival_us[index],
                key: if plan.keys > 0 { self.keys.row(index).data() } else { &[] },
            };
            if !(-TIME_MAX_US..=TIME_MAX_US).contains(&row.time_us) {
                refuse(&batch, index, Reason::Future, context, || {
                    "the event time is over 9000 years away\nhint: check the unit of the device's timestamps".into()
                });
                continue;
            }
            match self.windows.process_row(row, lengths, &updates) {
                Verdict::Counted => {}
                Verdict::Late => {
                    let watermark_us = self.windows.cells.slots[slot as usize].watermark_us;
                    let by_clock = self.windows.is_late_by_clock(row, lengths);
                    refuse(&batch, index, Reason::Late, context, || {
                        format!(
                            "every window of the row is closed: its event time, {}, is {} behind the watermark\n\
                             hint: {}",
                            at(row.time_us),
                            span(watermark_us.saturating_sub(row.time_us)),
                            late_hint(by_clock)
                        )
                    });
                }
                Verdict::TooManyKeys => refuse(&batch, index, Reason::Expression, context, || {
                    format!(
                        "a query has at most {SLOT_KEYS_MAX} keys at once\nhint: group by a column with fewer values, or use shorter windows"
                    )
                }),
            }
            if self.windows.closed.rows() >= OUTPUT_ROWS_MAX {
                self.windows.closed.emit(&plan, &self.row_bytes, context)?;
            }
        }
        self.pass_rows(&mut passing, None, context)?;
        if plan.tells_clocks && plan.has_clock() {
            // A clock may stand there twice: it is the same.
            let of_slots = batch.slots.chunk_by(|one, other| one == other);
            self.clocks = Some(of_slots.filter_map(|slots| self.windows.clock(slots[0])).collect());
        }
        self.windows.closed.emit(&plan, &self.row_bytes, context)
    }

    /// Passes the rows of other instances that come before the own row `before`, or all that remain.
    fn pass_rows(
        &mut self,
        passing: &mut Passing<'_>,
        before: Option<usize>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let Some(batch) = passing.batch else { return Ok(()) };
        let times_us = if self.plan.arrival_time { &batch.arrival_us } else { &batch.event_time_us };
        for row in passing.rows(before) {
            let slot = batch.slots[row] as usize;
            let SlotLengths::Known(lengths) = self.windows.cells.lengths(slot) else { continue };
            if (-TIME_MAX_US..=TIME_MAX_US).contains(&times_us[row]) {
                self.windows.pass_row(slot, lengths, times_us[row] - lengths.offset, batch.arrival_us[row]);
            }
            if self.windows.closed.rows() >= OUTPUT_ROWS_MAX {
                self.windows.closed.emit(&self.plan, &self.row_bytes, context)?;
            }
        }
        Ok(())
    }

    fn refuse_broken(&self, batch: &Batch, index: usize, context: &mut Context<'_>) {
        let (slots, plan) = (context.slots, &self.plan);
        refuse(batch, index, Reason::Expression, context, || {
            let verdict = plan.lengths_of(&slots.parameters(&[batch.slots[index]])).pop();
            verdict.and_then(Result::err).map_or_else(|| "the window has no length".into(), |error| error.to_string())
        });
    }
}

fn refuse(batch: &Batch, index: usize, reason: Reason, context: &mut Context<'_>, detail: impl FnOnce() -> String) {
    context.refusals.refuse_row(None, batch, index, reason, detail);
}

impl Operator for WindowOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.process_batch(batch, Passing::default(), context),
            Element::Control(Control::AddSlots(slots)) => {
                self.add_slots(&slots, context);
                Ok(())
            }
            Element::Control(Control::RemoveSlots(slots)) => {
                slots.into_iter().for_each(|slot| self.windows.cells.remove_slot(slot as usize));
                Ok(())
            }
            Element::End => {
                for slot in 0..self.windows.cells.slots.len() {
                    self.windows.close_all(slot, context.now_us);
                    if self.windows.closed.rows() >= OUTPUT_ROWS_MAX {
                        self.windows.closed.emit(&self.plan, &self.row_bytes, context)?;
                    }
                }
                self.windows.closed.emit(&self.plan, &self.row_bytes, context)
            }
            Element::Clocks(clocks) if self.plan.over_windows && self.plan.has_clock() => {
                context.slots.update_leaps(&mut self.windows.leaps);
                clocks.iter().for_each(|&clock| self.windows.set_clock(clock));
                self.windows.closed.emit(&self.plan, &self.row_bytes, context)
            }
            // Queries of applications have a clock per slot, and state is exported when the host asks.
            Element::Clocks(_) | Element::Watermark(_) | Element::Barrier(_) => Ok(()),
        }
    }

    fn key_hashes(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(Batch, Vec<u16>), OperatorError> {
        let (batch, keys) = self.plan.expressions.evaluate_first(self.plan.keys, batch, context)?;
        let key_hashes = self.row_bytes.key_hashes(&keys, &mut self.keys)?;
        Ok((batch, key_hashes))
    }

    fn process_own(&mut self, batch: &Batch, own: &[u32], context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.process_batch(batch.take(own)?, Passing::of(batch, own), context)
    }

    fn take_clocks(&mut self) -> Option<Arc<[SlotClock]>> {
        self.clocks.take()
    }

    fn deadline_us(&self) -> Option<i64> {
        (self.windows.deadline_us != NEVER).then_some(self.windows.deadline_us)
    }

    fn slot_deadline_us(&self, slot: Slot) -> Option<i64> {
        self.windows.cells.deadlines_us.get(slot as usize).copied().filter(|&deadline_us| deadline_us != NEVER)
    }

    fn holding(&self, slot: Slot) -> Option<Holding> {
        let (slot, cells) = (slot as usize, &self.windows.cells);
        let SlotLengths::Known(lengths) = cells.lengths(slot) else { return None };
        let state = &cells.slots[slot];
        let known = |time_us: i64| (time_us != i64::MIN).then(|| time_us.saturating_add(lengths.offset));
        let mut holding = Holding {
            newest_us: known(state.max_ts_us),
            watermark_us: known(state.watermark_us),
            ..Holding::default()
        };
        let (words, end_us) = (self.plan.layout.entry_words, state.next_end_us);
        // A window of a state has a start and no known end.
        let is_state = matches!(self.plan.window, WindowSpec::State);
        let mut start_us = if end_us == NEVER { NEVER } else { lengths.start_us(end_us) };
        for (looked, cell) in std::iter::successors(cells.first(slot), |&cell| cells.next(cell)).enumerate() {
            if looked == HELD_KEYS_MAX {
                holding.has_more_keys = true;
                break;
            }
            let panes = cells.panes(cell);
            if panes.is_empty() {
                continue;
            }
            holding.open_keys += 1;
            match self.plan.window {
                WindowSpec::Session { .. } => {
                    let session = panes.entry(0, words);
                    if self.windows.session_end_us(session[1] as i64, lengths.width) == end_us {
                        start_us = session[0] as i64;
                    }
                }
                WindowSpec::Count { .. } => {
                    let (rows, width, slide) = (cells.row_number(cell), lengths.width as u64, lengths.slide as u64);
                    let rows_of = if rows < width { (rows, width) } else { ((rows - width) % slide, slide) };
                    holding.rows_of = holding.rows_of.max(Some(rows_of));
                }
                WindowSpec::State => start_us = start_us.min(panes.entry(0, words)[1] as i64),
                _ => {}
            }
        }
        if holding.open_keys > 0 && is_state {
            holding.window = Some((start_us, None));
        }
        if holding.open_keys > 0 && end_us != NEVER {
            holding.window = Some((start_us + lengths.offset, Some(end_us + lengths.offset)));
        }
        Some(holding)
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let now_us = context.now_us;
        if self.windows.deadline_us > now_us {
            return Ok(());
        }
        context.slots.update_leaps(&mut self.windows.leaps);
        let mut earliest_us = NEVER;
        for slot in 0..self.windows.cells.deadlines_us.len() {
            if self.windows.cells.deadlines_us[slot] <= now_us {
                self.windows.advance_by_clock(slot, now_us);
                if self.windows.closed.rows() >= OUTPUT_ROWS_MAX {
                    self.windows.closed.emit(&self.plan, &self.row_bytes, context)?;
                }
            }
            earliest_us = earliest_us.min(self.windows.cells.deadlines_us[slot]);
        }
        self.windows.deadline_us = earliest_us;
        self.windows.closed.emit(&self.plan, &self.row_bytes, context)
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        state::export(&self.windows, &self.row_bytes, selection).map(Some)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.windows.cells.begin_import();
        let imported = state::import(&mut self.windows, &self.row_bytes, frame);
        self.windows.cells.end_import();
        imported
    }

    fn memory_bytes(&self) -> usize {
        self.windows.cells.memory_bytes()
            + self.windows.closed.memory_bytes()
            + self.keys.size()
            + self.row_bytes.memory_bytes()
    }
}
