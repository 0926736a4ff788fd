//! Finds pairs, and says which rows have none.
//!
//! The rows of a batch are of one side, so they do not meet each other: their partners are found first, a chunk of pairs at a time, and the
//! residual decides over a chunk at once. What comes out is a list of pairs of row numbers, and becomes columns in one go.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanBufferBuilder, RecordBatch, RecordBatchOptions};
use arrow::datatypes::TimestampMicrosecondType;
use rivulet_dataflow::{Batch, Context, Element, Operator, OperatorError, StateError, StateFrame, StateSelection};

use super::side::{Side, SideRow};
use super::{JoinPlan, KeyedJoinKind};
use crate::aggregate::dense::RowSet;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::keys::{BatchKeys, KeyIndex, NONE};

/// Buckets of expiry, where rows without partner come out when they expire, and where nobody sees when they go.
const EXACT_BUCKET_US: i64 = 1 << 16;
const ROUGH_BUCKET_US: i64 = 1 << 20;

pub(super) struct JoinOperator {
    pub(super) plan: Arc<JoinPlan>,
    pub(super) index: KeyIndex,
    pub(super) sides: [Side; 2],
    pub(super) watermark_us: i64,
    keys: BatchKeys,
    output: Output,
}

/// Rows to come out: numbers of a left and a right row, and whether they are taken back.
#[derive(Default)]
struct Output {
    rows: [Vec<u32>; 2],
    retracts: Vec<bool>,
    event_times_us: Vec<i64>,
    arrivals_us: Vec<i64>,
}

/// A row of the batch at hand.
struct Arrived {
    /// Its number in the store: of a row that is taken back, that of the equal one that was there.
    row: u32,
    key: u32,
    retracts: bool,
    /// How many partners it has.
    partners: u32,
}

impl JoinOperator {
    pub(super) fn new(plan: Arc<JoinPlan>) -> Self {
        let stores = plan.stores().expect("the stores were made when the plan was checked");
        let mut side = 0;
        let sides = stores.map(|store| {
            let bucket_us = if plan.pads(side) { EXACT_BUCKET_US } else { ROUGH_BUCKET_US };
            side += 1;
            Side::new(store, bucket_us)
        });
        Self {
            index: plan.keys[0].index(0),
            sides,
            watermark_us: i64::MIN,
            keys: BatchKeys::default(),
            output: Output::default(),
            plan,
        }
    }

    /// Whether rows of a side come out without partner only when they expire.
    fn defers(&self, side: usize) -> bool {
        self.plan.spec.expiry[side].is_some()
    }

    fn take_in(&mut self, side: usize, batch: &Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        let columns: Vec<ArrayRef> = plan.kept[side].iter().map(|&column| batch.column(column).clone()).collect();
        let key_columns: Vec<&ArrayRef> = plan.keys[side].places().iter().map(|&key| batch.column(key)).collect();
        let has_null = |row: usize| key_columns.iter().any(|column| column.is_null(row));
        let any_null = key_columns.iter().any(|column| column.null_count() > 0);
        // A row with null in its key has no partner: it matters only where such rows come out.
        let all: Vec<u32> =
            (0..batch.rows() as u32).filter(|&row| !any_null || plan.pads(side) || !has_null(row as usize)).collect();
        let keyed: Vec<u32> = all.iter().copied().filter(|&row| !any_null || !has_null(row as usize)).collect();
        self.keys.read(&plan.keys[side], batch.columns.columns())?;
        let mut numbers = Vec::new();
        self.index.assign(&self.keys, &RowSet::List(&keyed), &mut numbers);
        self.sides.iter_mut().for_each(|side| side.grow_keys(self.index.numbers()));
        let mut rows = Vec::new();
        let times = |row: usize| (batch.event_time_us[row], batch.arrival_us[row]);
        self.sides[side].store.add(&columns, &all, times, &mut rows)?;

        let expiry = plan.spec.expiry[side]
            .map(|expiry| (batch.column(expiry.column).as_primitive::<TimestampMicrosecondType>(), expiry.after_us));
        let mut arrived: Vec<Arrived> = Vec::with_capacity(all.len());
        let mut removed = Vec::new();
        let mut numbers = numbers.into_iter();
        for (&at, &row) in all.iter().zip(&rows) {
            let key = match any_null && has_null(at as usize) {
                true => NONE,
                false => numbers.next().unwrap_or(NONE),
            };
            let retracts = batch.is_retraction(at as usize);
            if !retracts {
                let expires_us = match &expiry {
                    Some((times, after_us)) if times.is_valid(at as usize) => {
                        times.value(at as usize).saturating_add(*after_us)
                    }
                    _ => i64::MAX,
                };
                self.sides[side].link(row, key, expires_us);
                arrived.push(Arrived { row, key, retracts, partners: 0 });
                if expires_us < self.watermark_us {
                    removed.push(row);
                }
                continue;
            }
            let known = self.sides[side].find_equal(row);
            self.sides[side].store.remove(row);
            // A row that is not known has expired; what it gave is final.
            if let Some(known) = known {
                self.sides[side].unlink(known);
                arrived.push(Arrived { row: known, key, retracts, partners: 0 });
                removed.push(known);
            }
        }

        self.find_partners(side, &mut arrived, context)?;
        for one in &arrived {
            self.sides[side].rows[one.row as usize].matches = one.partners;
            let is_given = match plan.spec.kind {
                KeyedJoinKind::LeftSemi => side == 0 && one.partners > 0,
                _ => plan.pads(side) && one.partners == 0 && !self.defers(side),
            };
            if is_given {
                self.give_alone(side, one.row, one.retracts, None, context)?;
            }
        }
        // What expired before it came, and comes out for it.
        removed.sort_unstable();
        removed.dedup();
        for &row in &removed {
            let SideRow { expires_us, matches, .. } = self.sides[side].rows[row as usize];
            let is_late = self.sides[side].is_linked(row);
            if is_late {
                if plan.pads(side) && matches == 0 && self.defers(side) {
                    self.give_alone(side, row, false, Some(expires_us), context)?;
                }
                self.sides[side].unlink(row);
            }
        }
        self.emit(context)?;
        for row in removed {
            self.forget(side, row);
        }
        for key in self.unused_keys(&arrived) {
            self.index.remove(key);
        }
        Ok(())
    }

    /// The keys of these rows that no row has any more.
    fn unused_keys(&self, arrived: &[Arrived]) -> Vec<u32> {
        let mut keys: Vec<u32> = arrived.iter().map(|one| one.key).filter(|&key| key != NONE).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|&key| self.sides.iter().all(|side| side.lacks(key)));
        keys
    }

    /// Removes a row that is not linked any more.
    fn forget(&mut self, side: usize, row: u32) {
        self.sides[side].store.remove(row);
    }

    /// Finds the partners of rows, gives the pairs, and what changes for the partners.
    fn find_partners(
        &mut self,
        side: usize,
        arrived: &mut [Arrived],
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        // Places in `arrived`, and partners.
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(OUTPUT_ROWS);
        for at in 0..arrived.len() {
            let key = arrived[at].key;
            if key == NONE {
                continue;
            }
            let mut partner = self.sides[1 - side].first(key);
            while partner != NONE {
                pairs.push((at as u32, partner));
                partner = self.sides[1 - side].next(partner);
                if pairs.len() >= OUTPUT_ROWS {
                    self.take_pairs(side, arrived, &mut pairs, context)?;
                }
            }
        }
        self.take_pairs(side, arrived, &mut pairs, context)
    }

    fn take_pairs(
        &mut self,
        side: usize,
        arrived: &mut [Arrived],
        pairs: &mut Vec<(u32, u32)>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        self.filter_pairs(side, arrived, pairs, context)?;
        let plan = self.plan.clone();
        let other = 1 - side;
        for &(at, partner) in pairs.iter() {
            let one = &mut arrived[at as usize];
            one.partners += 1;
            let (row, retracts) = (one.row, one.retracts);
            if plan.counts(other) {
                let matches = &mut self.sides[other].rows[partner as usize].matches;
                *matches = if retracts { *matches - 1 } else { *matches + 1 };
                let has_changed = *matches == u32::from(!retracts);
                if has_changed {
                    match plan.spec.kind {
                        KeyedJoinKind::LeftSemi => {
                            // Where rows expire they are final, and come out with the later time of the pair.
                            let time_us = self.defers(other).then(|| self.pair_time(side, row, partner));
                            self.give_alone(other, partner, retracts, time_us, context)?;
                        }
                        _ if self.defers(other) => {}
                        _ => self.give_alone(other, partner, !retracts, None, context)?,
                    }
                }
            }
            if plan.gives_pairs() {
                let event_time_us = self.pair_time(side, row, partner);
                let arrival_us =
                    self.sides[side].store.arrival_us(row).max(self.sides[other].store.arrival_us(partner));
                self.output.rows[side].push(row);
                self.output.rows[other].push(partner);
                self.output.retracts.push(retracts);
                self.output.event_times_us.push(event_time_us);
                self.output.arrivals_us.push(arrival_us);
                if self.output.retracts.len() >= OUTPUT_ROWS {
                    self.emit(context)?;
                }
            }
        }
        pairs.clear();
        Ok(())
    }

    fn pair_time(&self, side: usize, row: u32, partner: u32) -> i64 {
        self.sides[side].store.event_time_us(row).max(self.sides[1 - side].store.event_time_us(partner))
    }

    /// Leaves the pairs for which the residual is true.
    fn filter_pairs(
        &self,
        side: usize,
        arrived: &[Arrived],
        pairs: &mut Vec<(u32, u32)>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let Some((residual, places)) = &self.plan.residual else { return Ok(()) };
        if pairs.is_empty() {
            return Ok(());
        }
        let mut rows = [Vec::new(), Vec::new()];
        rows[side] = pairs.iter().map(|pair| arrived[pair.0 as usize].row).collect();
        rows[1 - side] = pairs.iter().map(|pair| pair.1).collect();
        let columns = places
            .iter()
            .map(|&(side, column)| self.sides[side].store.column(column, &rows[side]))
            .collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(pairs.len()));
        let columns = RecordBatch::try_new_with_options(residual.input_schema().clone(), columns, &options)?;
        // The event time of a row says which pair it is: a pair on which the residual fails is refused and missing.
        let numbers = (0..pairs.len() as i64).collect();
        let arrivals = vec![context.now_us; pairs.len()].into();
        let batch = Batch::new(vec![0; pairs.len()].into(), numbers, arrivals, columns);
        let (batch, results) = residual.evaluate(batch, context)?;
        let kept = match results[0].as_boolean_opt() {
            Some(kept) => kept,
            None => {
                pairs.clear();
                return Ok(());
            }
        };
        let mut is_kept = vec![false; pairs.len()];
        for (at, &pair) in batch.event_time_us.iter().enumerate() {
            is_kept[pair as usize] = kept.is_valid(at) && kept.value(at);
        }
        let mut is_kept = is_kept.into_iter();
        pairs.retain(|_| is_kept.next().unwrap_or(false));
        Ok(())
    }

    /// Gives a row without partner, with its own event time unless another is given.
    fn give_alone(
        &mut self,
        side: usize,
        row: u32,
        retracts: bool,
        time_us: Option<i64>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let store = &self.sides[side].store;
        let (event_time_us, arrival_us) = (time_us.unwrap_or_else(|| store.event_time_us(row)), store.arrival_us(row));
        self.output.rows[side].push(row);
        self.output.rows[1 - side].push(NONE);
        self.output.retracts.push(retracts);
        self.output.event_times_us.push(event_time_us);
        self.output.arrivals_us.push(arrival_us);
        if self.output.retracts.len() >= OUTPUT_ROWS { self.emit(context) } else { Ok(()) }
    }

    /// Emits what is in the list.
    fn emit(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let output = &mut self.output;
        let rows = output.retracts.len();
        if rows == 0 {
            return Ok(());
        }
        let columns = (self.plan.columns.iter())
            .map(|&(side, column)| self.sides[side].store.column(column, &output.rows[side]))
            .collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let mut retracts = BooleanBufferBuilder::new(rows);
        retracts.append_slice(&output.retracts);
        context.emit(
            Batch::new(
                vec![0; rows].into(),
                std::mem::take(&mut output.event_times_us).into(),
                std::mem::take(&mut output.arrivals_us).into(),
                RecordBatch::try_new_with_options(self.plan.output.clone(), columns, &options)?,
            )
            .with_retracts(Some(retracts.finish())),
        );
        output.retracts.clear();
        output.rows.iter_mut().for_each(Vec::clear);
        Ok(())
    }

    fn expire(&mut self, watermark_us: i64, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if watermark_us <= self.watermark_us {
            return Ok(());
        }
        self.watermark_us = watermark_us;
        for side in 0..2 {
            let pads = self.plan.pads(side) && self.defers(side);
            let expired = self.sides[side].expired(watermark_us, pads);
            for &row in &expired {
                let SideRow { matches, expires_us, .. } = self.sides[side].rows[row as usize];
                if pads && matches == 0 {
                    self.give_alone(side, row, false, Some(expires_us), context)?;
                }
            }
            self.emit(context)?;
            for row in expired {
                let key = self.sides[side].rows[row as usize].key;
                self.sides[side].unlink(row);
                self.forget(side, row);
                if key != NONE && self.sides.iter().all(|side| side.lacks(key)) {
                    self.index.remove(key);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.expire(i64::MAX, context)?;
        // Rows whose expiry is null are needed to the end.
        for side in 0..2 {
            if self.plan.pads(side) && self.defers(side) {
                for row in self.sides[side].store.live() {
                    if self.sides[side].rows[row as usize].matches == 0 {
                        self.give_alone(side, row, false, None, context)?;
                    }
                }
            }
        }
        self.emit(context)
    }
}

impl Operator for JoinOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.process_input(0, element, context)
    }

    fn process_input(
        &mut self,
        input: usize,
        element: Element,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(input, &batch, context),
            Element::Watermark(watermark_us) => self.expire(watermark_us, context),
            Element::End => self.end(context),
            Element::Barrier(_) | Element::Control(_) => Ok(()),
        }
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        super::state::export(self, selection).map(Some)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        super::state::import(self, frame)
    }

    fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + self.sides.iter().map(Side::memory_bytes).sum::<usize>()
    }
}
