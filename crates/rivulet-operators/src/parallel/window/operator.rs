//! Windows that consist of panes: tumbling, hopping, growing, attached to rows, and by the clock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use rivulet_dataflow::{Batch, Context, Element, Operator, OperatorError, Reason, StateByKey, StateError, StateFrame};

use super::bounds::{Bounds, KeyedWindowKind, TIME_US_MAX};
use super::pane::PaneTable;
use super::partial::{Reduction, pass};
use super::plan::{Phase, WindowPlan};
use super::sliding::Sliding;
use super::state::{ExportedWindows, Part, Restored};
use crate::aggregate::dense::RowSet;
use crate::parallel::keys::BatchKeys;

/// The number of keys from which a partial aggregation emits its states although no pane has closed.
const PARTIAL_KEYS_MAX: usize = 1 << 16;
/// The most runs of one pane in a batch. With more runs, the rows are sorted by pane instead.
const RUNS_MAX: usize = 16;

/// A pane: its end, then its start, so that panes are in order of their closing.
type PaneKey = (i64, i64);

pub(crate) struct WindowOperator {
    plan: Arc<WindowPlan>,
    /// The bounds of windows that follow from a row's time.
    bounds: Option<Bounds>,
    panes: BTreeMap<PaneKey, PaneTable>,
    /// Closed panes that later windows still need.
    sliding: Option<Sliding>,
    /// The watermark. For windows by the clock, the time up to which panes are closed.
    watermark_us: i64,
    /// The previous watermark, as long as windows that close with the current one remain to be emitted.
    closing_from_us: Option<i64>,
    /// The number of keys of the last pane that closed: the next one will have about as many.
    keys_expected: usize,
    /// The state of phase `Partial`: whether it aggregates rows or passes them through.
    reduction: Reduction,
    keys: BatchKeys,
    numbers: Vec<u32>,
    runs: Vec<(PaneKey, Range<usize>)>,
}

/// Whether rows of a pane count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Counts,
    /// The rows are between windows.
    BelongsNowhere,
    Late,
    NoTime,
}

impl WindowOperator {
    pub(crate) fn new(plan: Arc<WindowPlan>) -> Self {
        let bounds = Bounds::of(&plan.spec.window);
        let slides = bounds.filter(|bounds| !bounds.is_tumbling() && plan.spec.phase != Phase::Partial);
        Self {
            sliding: slides.map(|bounds| Sliding::new(&plan, bounds)),
            bounds,
            panes: BTreeMap::new(),
            watermark_us: i64::MIN,
            closing_from_us: None,
            keys_expected: 0,
            reduction: Reduction::default(),
            keys: BatchKeys::default(),
            numbers: Vec::new(),
            runs: Vec::new(),
            plan,
        }
    }

    fn take_in(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() && !self.plan.spec.input_retracts {
            return Err(OperatorError::new("rows that are taken back came to windows that were promised none"));
        }
        let plan = self.plan.clone();
        if plan.spec.phase == Phase::Final {
            return self.take_in_states(&plan, &batch, context);
        }
        let (batch, values) = plan.groups.evaluate(batch, context)?;
        self.find_runs(&plan, &batch, context.now_us);
        let is_partial = plan.spec.phase == Phase::Partial;
        if is_partial && self.reduction.passes(batch.rows()) {
            let (mut rows, mut panes) = (Vec::with_capacity(batch.rows()), Vec::with_capacity(batch.rows()));
            self.for_each_pane(&batch, context, |_, (end_us, start_us), those| {
                those.for_each(|_, row| {
                    rows.push(row as u32);
                    panes.push((start_us, end_us));
                });
            });
            return pass(&plan, &batch, &values, &rows, &panes, context);
        }
        self.keys.read(&plan.keys, batch.columns.columns())?;
        let mut taken = 0;
        self.for_each_pane(&batch, context, |this, pane, rows| {
            taken += rows.len();
            let expected = this.keys_expected;
            let table = this.panes.entry(pane).or_insert_with(|| PaneTable::new(&plan, expected));
            table.update(&plan, &batch, &this.keys, &values, rows, &mut this.numbers);
        });
        if is_partial {
            let mut open: usize = self.panes.values().map(|pane| pane.index.len()).sum();
            if open >= PARTIAL_KEYS_MAX {
                self.give_states(i64::MAX, context)?;
                open = 0;
            }
            self.reduction.took(taken, open);
        }
        Ok(())
    }

    fn take_in_states(
        &mut self,
        plan: &WindowPlan,
        batch: &Batch,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let keys = plan.keys.len();
        let columns = batch.columns.columns();
        if columns.len() != plan.partial.fields().len() {
            return Err(OperatorError::new(format!("states of {} columns came to a final aggregation", columns.len())));
        }
        self.keys.read(&plan.keys, columns)?;
        let states: Vec<&[i64]> =
            columns[keys + 2..].iter().map(|column| column.as_primitive::<Int64Type>().values().as_ref()).collect();
        self.find_attached_runs(batch, keys, keys + 1);
        self.for_each_pane(batch, context, |this, pane, rows| {
            let expected = this.keys_expected;
            let table = this.panes.entry(pane).or_insert_with(|| PaneTable::new(plan, expected));
            table.merge(plan, batch, &this.keys, &states, rows, &mut this.numbers);
        });
        Ok(())
    }

    /// Cuts the rows of a batch into runs of one pane.
    fn find_runs(&mut self, plan: &WindowPlan, batch: &Batch, now_us: i64) {
        match (self.bounds, &plan.spec.window) {
            (Some(bounds), _) => {
                self.runs.clear();
                let times = &batch.event_time_us[..];
                let mut row = 0;
                while row < times.len() {
                    let time = times[row];
                    let first = row;
                    if !(-TIME_US_MAX..=TIME_US_MAX).contains(&time) {
                        row += 1;
                        self.runs.push(((i64::MIN, i64::MIN), first..row));
                        continue;
                    }
                    let start = bounds.pane_start(time);
                    let end = start + bounds.pane_us;
                    let same = times[row..].iter().position(|time| *time < start || *time >= end);
                    row = same.map_or(times.len(), |rows| row + rows);
                    self.runs.push(((end, start), first..row));
                }
            }
            (None, KeyedWindowKind::Attached { start, end }) => self.find_attached_runs(batch, *start, *end),
            (None, KeyedWindowKind::ProcessingTumble { width_us }) => {
                let start = now_us - now_us.rem_euclid(*width_us);
                self.runs.clear();
                self.runs.push(((start + width_us, start), 0..batch.rows()));
            }
            (None, _) => unreachable!("sessions and windows that count have an operator of their own"),
        }
    }

    fn find_attached_runs(&mut self, batch: &Batch, start: usize, end: usize) {
        let [starts, ends] = [start, end].map(|column| batch.column(column).as_primitive::<TimestampMicrosecondType>());
        self.runs.clear();
        for row in 0..batch.rows() {
            let pane = match starts.is_null(row) || ends.is_null(row) {
                true => (i64::MIN, i64::MIN),
                false => (ends.value(row), starts.value(row)),
            };
            match self.runs.last_mut() {
                Some((last, rows)) if *last == pane => rows.end = row + 1,
                _ => self.runs.push((pane, row..row + 1)),
            }
        }
    }

    /// Calls `take` for the rows of each pane that counts. Refuses late rows and rows without a valid time.
    fn for_each_pane(
        &mut self,
        batch: &Batch,
        context: &mut Context<'_>,
        mut take: impl FnMut(&mut Self, PaneKey, &RowSet<'_>),
    ) {
        let runs = std::mem::take(&mut self.runs);
        let mut visit = |this: &mut Self, pane: PaneKey, rows: RowSet<'_>| match this.fate(pane) {
            Fate::Counts => take(this, pane, &rows),
            Fate::BelongsNowhere => {}
            Fate::Late => rows.for_each(|_, row| {
                context.refusals.refuse_late(batch, row, this.watermark_us, "the row's window is closed");
                context.refusals.count(Reason::Late, this.stands_for(batch, row) - 1);
            }),
            Fate::NoTime => rows.for_each(|_, row| {
                context.refusals.refuse_row(None, batch, row, Reason::Expression, || {
                    "the row has no window: its time is null or beyond all times".into()
                });
            }),
        };
        if runs.len() <= RUNS_MAX {
            runs.iter().for_each(|(pane, rows)| visit(self, *pane, RowSet::Range(rows.clone())));
        } else {
            let mut by_pane: BTreeMap<PaneKey, Vec<u32>> = BTreeMap::new();
            for (pane, rows) in &runs {
                by_pane.entry(*pane).or_default().extend(rows.start as u32..rows.end as u32);
            }
            by_pane.iter().for_each(|(pane, rows)| visit(self, *pane, RowSet::List(rows)));
        }
        self.runs = runs;
    }

    /// How many rows a row stands for. A row of a partial aggregation stands for all rows that it counted, as far as an
    /// aggregate needs their count.
    fn stands_for(&self, batch: &Batch, row: usize) -> u64 {
        if self.plan.spec.phase != Phase::Final {
            return 1;
        }
        let first = self.plan.keys.len() + 2;
        let counts = &batch.columns.columns()[first..first + self.plan.groups.layout.dense_counts()];
        let counted = counts.iter().map(|count| count.as_primitive::<Int64Type>().value(row) as u64);
        counted.max().map_or(1, |rows| rows.max(1))
    }

    /// Decides what becomes of the rows of a pane, by the watermark alone.
    fn fate(&self, (end_us, start_us): PaneKey) -> Fate {
        if start_us == i64::MIN {
            return Fate::NoTime;
        }
        let Some(bounds) = self.bounds else {
            return if end_us <= self.watermark_us { Fate::Late } else { Fate::Counts };
        };
        let first_end_us = bounds.first_end(start_us);
        match () {
            () if bounds.start_of(first_end_us) > start_us => Fate::BelongsNowhere,
            () if first_end_us <= self.watermark_us => Fate::Late,
            () => Fate::Counts,
        }
    }

    /// Closes the windows that end at `watermark_us` or before.
    fn close(&mut self, watermark_us: i64, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if watermark_us <= self.watermark_us {
            return Ok(());
        }
        let closed_us = std::mem::replace(&mut self.watermark_us, watermark_us);
        if self.plan.spec.phase == Phase::Partial {
            return self.give_states(watermark_us, context);
        }
        if self.sliding.is_some() {
            self.closing_from_us = Some(closed_us);
            return self.continue_closing(context);
        }
        while let Some(entry) = self.panes.first_entry() {
            let (end_us, start_us) = *entry.key();
            if end_us > watermark_us {
                break;
            }
            let pane = entry.remove();
            self.keys_expected = pane.index.len();
            pane.emit(&self.plan, start_us, end_us, context)?;
        }
        Ok(())
    }

    /// Emits more of the overlapping windows that close with the last watermark: a row may be in very many of them.
    fn continue_closing(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        // Taken first: after an error nothing more must be emitted.
        let Some(closed_us) = self.closing_from_us.take() else { return Ok(()) };
        let Some(sliding) = &mut self.sliding else { return Ok(()) };
        if !sliding.close(&self.plan, &mut self.panes, closed_us, self.watermark_us, context)? {
            self.closing_from_us = Some(closed_us);
        }
        Ok(())
    }

    /// Emits the states of panes that end at `until_us` or before.
    fn give_states(&mut self, until_us: i64, context: &mut Context<'_>) -> Result<(), OperatorError> {
        while let Some(entry) = self.panes.first_entry() {
            let (end_us, start_us) = *entry.key();
            if end_us > until_us {
                break;
            }
            let pane = entry.remove();
            self.keys_expected = pane.index.len();
            self.reduction.gave(pane.index.len());
            pane.emit_states(&self.plan, start_us, end_us, context)?;
        }
        Ok(())
    }

    fn is_by_clock(&self) -> bool {
        matches!(self.plan.spec.window, KeyedWindowKind::ProcessingTumble { .. })
    }
}

impl Operator for WindowOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        // The rest of the closed windows is emitted before anything else.
        while self.has_more() {
            self.continue_closing(context)?;
        }
        match element {
            Element::Batch(batch) => {
                if self.is_by_clock() {
                    self.close(context.now_us, context)?;
                }
                self.take_in(batch, context)
            }
            Element::Watermark(_) if self.is_by_clock() => self.close(context.now_us, context),
            Element::Watermark(watermark_us) => self.close(self.plan.passed_us(watermark_us), context),
            Element::End => self.close(i64::MAX, context),
            // Several instances have parts of a key's state, and only one of them could restore it. So the states are
            // emitted.
            Element::Barrier(_) if self.plan.spec.phase == Phase::Partial => self.give_states(i64::MAX, context),
            Element::Barrier(_) | Element::Control(_) | Element::Clocks(_) => Ok(()),
        }
    }

    fn has_more(&self) -> bool {
        self.closing_from_us.is_some()
    }

    fn go_on(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.continue_closing(context)
    }

    fn deadline_us(&self) -> Option<i64> {
        self.is_by_clock().then(|| self.panes.first_key_value().map(|((end_us, _), _)| *end_us)).flatten()
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if self.is_by_clock() { self.close(context.now_us, context) } else { Ok(()) }
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        let mut parts = Vec::new();
        for (&(end_us, start_us), pane) in &self.panes {
            let keys = (0..pane.index.numbers() as u32).collect();
            let windows = vec![(start_us, end_us, pane.arrival_us)];
            let (states, sets) = (&pane.states, pane.states.distinct_values());
            parts.push(Part { index: &pane.index, keys, states, groups: Vec::new(), sets, rows: &pane.rows, windows });
        }
        if let Some(sliding) = &self.sliding {
            for (start_us, end_us, arrival_us, keys, states) in sliding.closed() {
                let windows = vec![(start_us, end_us, arrival_us)];
                let (keys, sets) = (keys.to_vec(), states.distinct_values());
                parts.push(Part { index: sliding.index(), keys, states, groups: Vec::new(), sets, rows: &[], windows });
            }
        }
        Ok(Some(Box::new(ExportedWindows::new(&self.plan, self.watermark_us, parts)?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let plan = self.plan.clone();
        if self.sliding.as_ref().is_some_and(|sliding| !sliding.is_empty()) {
            return Err(StateError::Mismatch("windows take over state before their first row".into()));
        }
        let restored = Restored::new(&plan, frame)?;
        let mut numbers = Vec::new();
        for row in 0..restored.rows() {
            let [start_us, end_us, arrival_us, watermark_us] = restored.times(row);
            let pane = self.panes.entry((end_us, start_us)).or_insert_with(|| PaneTable::new(&plan, 0));
            pane.index.assign(&restored.keys, &RowSet::Range(row..row + 1), &mut numbers);
            pane.states.grow(&plan.groups, pane.index.numbers());
            pane.arrival_us = pane.arrival_us.max(arrival_us);
            let rows = restored.decode(&plan, &mut pane.states, numbers[0], row)?;
            if plan.spec.input_retracts {
                pane.rows.resize(pane.index.numbers(), 0);
                pane.rows[numbers[0] as usize] = rows;
            }
            self.watermark_us = self.watermark_us.max(watermark_us);
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.panes.values().map(PaneTable::memory_bytes).sum::<usize>()
            + self.sliding.as_ref().map_or(0, Sliding::memory_bytes)
    }
}
