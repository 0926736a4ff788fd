//! Finds pairs, and rows that have no partner.
//!
//! The rows of a batch are of one side, so they do not meet each other. Their partners are found first, a chunk of
//! pairs at a time, and the residual decides on a chunk at once. The output is a list of pairs of row numbers, which
//! becomes columns in one step.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::TimestampMicrosecondType;
use rivulet_dataflow::{Batch, Context, Element, Operator, OperatorError, StateByKey, StateError, StateFrame};

use super::plan::{Expiry, JoinPlan, KeyedJoinKind};
use super::side::{Heads, Side, SideRow};
use super::state::{self, ExportedRows};
use crate::aggregate::dense::RowSet;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::keys::{BatchKeys, KeyIndex, NONE};
use crate::parallel::time_to_live::refuse_forgotten;

/// Buckets of expiry, in microseconds: exact ones if rows without partner come out when they expire, rough ones if the
/// output does not depend on when rows are forgotten.
const EXACT_BUCKET_US: i64 = 1 << 16;
const ROUGH_BUCKET_US: i64 = 1 << 17;

/// If the output does not depend on when rows are forgotten: for each row that came, this many expired rows are
/// forgotten, and [`FORGOTTEN_MIN`] more. That is more than come, so that all expired rows go. It is not a whole bucket
/// at once, for which other work would wait.
const FORGOTTEN_A_ROW: usize = 2;
const FORGOTTEN_MIN: usize = 8192;

/// How many pairs of a batch are processed before other work has a turn and the room for more output is checked.
const PAIRS_AT_ONCE: usize = 8 * OUTPUT_ROWS;

pub(super) struct JoinOperator {
    plan: Arc<JoinPlan>,
    /// Whether it saves the side that all instances have.
    saves_everywhere: bool,
    index: KeyIndex,
    heads: Heads,
    sides: [Side; 2],
    watermark_us: i64,
    /// Rows that have come since rows were last forgotten.
    arrived_rows: usize,
    keys: BatchKeys,
    output: Output,
    /// The current batch, if more of its pairs are to come.
    unfinished: Option<Unfinished>,
}

/// A batch whose partners have not all been found.
struct Unfinished {
    side: usize,
    arrived: Vec<Arrived>,
    /// The row whose partners are being found, and its next partner; [`NONE`] if all have been found.
    at: usize,
    partner: u32,
    /// Rows that are not kept.
    removed: Vec<u32>,
    /// Keys that may have no rows any more.
    doubtful: Vec<u32>,
}

/// Output rows: numbers of a left and a right row, and whether they are retractions.
#[derive(Default)]
struct Output {
    rows: [Vec<u32>; 2],
    retracts: Vec<bool>,
    /// Whether any row is a retraction.
    any_retracts: bool,
    event_times_us: Vec<i64>,
    arrivals_us: Vec<i64>,
}

/// A row of the current batch.
struct Arrived {
    /// Its number in the store. For a retraction, the number of the equal row that it retracts.
    row: u32,
    key: u32,
    retracts: bool,
    /// The number of its partners.
    partners: u32,
    /// Its partners are rows that are still needed at this watermark.
    from_us: i64,
}

impl JoinOperator {
    pub(super) fn new(plan: Arc<JoinPlan>, saves_everywhere: bool) -> Self {
        let stores = plan.stores().expect("the stores were made when the plan was checked");
        let mut side = 0;
        let sides = stores.map(|store| {
            let is_exact = plan.pads(side) && plan.spec.expiry[side].is_some();
            let bucket_us = if is_exact { EXACT_BUCKET_US } else { ROUGH_BUCKET_US };
            side += 1;
            Side::new(side - 1, store, bucket_us)
        });
        Self {
            index: plan.keys[0].index(0),
            heads: Heads::new(),
            sides,
            watermark_us: i64::MIN,
            arrived_rows: 0,
            keys: BatchKeys::default(),
            output: Output::default(),
            unfinished: None,
            saves_everywhere,
            plan,
        }
    }

    /// Whether rows of a side that have no partner come out only when they expire.
    fn defers(&self, side: usize) -> bool {
        self.plan.spec.expiry[side].is_some()
    }

    fn take_in(&mut self, side: usize, batch: &Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.arrived_rows += batch.rows();
        let plan = self.plan.clone();
        let columns: Vec<ArrayRef> = plan.kept[side].iter().map(|&column| batch.column(column).clone()).collect();
        let key_columns: Vec<&ArrayRef> = plan.keys[side].places().iter().map(|&key| batch.column(key)).collect();
        let has_null = |row: usize| plan.is_alone(&key_columns, row);
        let any_null = !plan.nulls_are_equal && key_columns.iter().any(|column| column.null_count() > 0);
        // A row with null in its key has no partner. It matters only if such rows come out.
        let is_late = self.late_rows(side, batch, context);
        let matters = |row: usize| !any_null || plan.pads(side) || !has_null(row);
        let all: Vec<u32> = (0..batch.rows() as u32)
            .filter(|&row| matters(row as usize) && !is_late.as_ref().is_some_and(|late| late.value(row as usize)))
            .collect();
        self.keys.read(&plan.keys[side], batch.columns.columns())?;
        let mut numbers = Vec::new();
        match any_null {
            false => self.index.assign(&self.keys, &RowSet::Range(0..batch.rows()), &mut numbers),
            true => {
                let keyed: Vec<u32> = all.iter().copied().filter(|&row| !has_null(row as usize)).collect();
                self.index.assign(&self.keys, &RowSet::List(&keyed), &mut numbers);
            }
        }
        self.grow();
        self.touch(&numbers);
        let mut rows = Vec::new();
        let times = |row: usize| (batch.event_time_us[row], batch.arrival_us[row]);
        self.sides[side].store.add(&columns, &all, times, &mut rows)?;

        let expiry_times =
            plan.spec.expiry[side].map(|expiry| batch.column(expiry.column).as_primitive::<TimestampMicrosecondType>());
        let from_times = plan.reach[side].map(|from| {
            let times = batch.column(from.column).as_primitive::<TimestampMicrosecondType>();
            (times, from.after_us)
        });
        let from_us = |at: usize| match from_times {
            Some((times, after_us)) if times.is_valid(at) => times.value(at).saturating_add(after_us),
            _ => i64::MIN,
        };
        let mut arrived: Vec<Arrived> = Vec::with_capacity(all.len());
        let (mut removed, mut doubtful) = (Vec::new(), Vec::new());
        let mut numbers = numbers.into_iter();
        for (&at, &row) in all.iter().zip(&rows) {
            let key = match any_null && has_null(at as usize) {
                true => NONE,
                false => numbers.next().unwrap_or(NONE),
            };
            let retracts = batch.is_retraction(at as usize);
            if !retracts {
                let time_us =
                    |_| expiry_times.filter(|times| times.is_valid(at as usize)).map(|times| times.value(at as usize));
                let expires_us = plan.expires_us(side, batch.event_time_us[at as usize], time_us);
                let is_late = expires_us < self.watermark_us;
                self.sides[side].link(&mut self.heads, row, key, expires_us, !is_late);
                arrived.push(Arrived { row, key, retracts, partners: 0, from_us: from_us(at as usize) });
                if is_late {
                    removed.push(row);
                    doubtful.push(key);
                }
                continue;
            }
            let known = self.sides[side].find_equal(row);
            self.sides[side].store.remove(row);
            doubtful.push(key);
            // The retracted row is not known: it is forgotten, and its results are final.
            let Some(known) = known else {
                refuse_forgotten(batch, at as usize, context);
                continue;
            };
            self.sides[side].unlink_early(&mut self.heads, known);
            arrived.push(Arrived { row: known, key, retracts, partners: 0, from_us: from_us(at as usize) });
            removed.push(known);
        }

        let partner = self.first_partner(side, arrived.first());
        self.unfinished = Some(Unfinished { side, arrived, at: 0, partner, removed, doubtful });
        self.continue_batch(context)
    }

    /// Finds partners of the current batch. Once all are found, emits rows that have none.
    fn continue_batch(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Some(mut unfinished) = self.unfinished.take() else { return Ok(()) };
        if self.find_partners(&mut unfinished, context)? {
            return self.finish_batch(unfinished, context);
        }
        self.unfinished = Some(unfinished);
        Ok(())
    }

    fn finish_batch(&mut self, batch: Unfinished, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        let Unfinished { side, arrived, mut removed, mut doubtful, .. } = batch;
        for one in arrived.iter().filter(|_| plan.counts(side)) {
            self.sides[side].rows[one.row as usize].matches = one.partners;
            let is_given = match plan.spec.kind {
                KeyedJoinKind::LeftSemi => side == 0 && one.partners > 0,
                _ => plan.pads(side) && one.partners == 0 && !self.defers(side),
            };
            if is_given {
                self.give_alone(side, one.row, one.retracts, None, context)?;
            }
        }
        // These rows had expired before they came although they were not late. They come out now if they have no
        // partner.
        removed.sort_unstable();
        removed.dedup();
        for &row in &removed {
            let SideRow { expires_us, matches, .. } = self.sides[side].rows[row as usize];
            let is_late = self.sides[side].is_linked(row);
            if is_late {
                if plan.pads(side) && matches == 0 && self.defers(side) {
                    self.give_alone(side, row, false, Some(expires_us), context)?;
                }
                self.sides[side].unlink(&mut self.heads, row);
            }
        }
        self.emit(context)?;
        for row in removed {
            self.sides[side].store.remove(row);
        }
        doubtful.sort_unstable();
        doubtful.dedup();
        for key in doubtful {
            if key != NONE && self.heads[key as usize] == [NONE; 2] {
                self.index.remove(key);
            }
        }
        Ok(())
    }

    /// Makes room for all numbers of keys.
    pub(super) fn grow(&mut self) {
        self.heads.grow(self.index.numbers(), [NONE; 2]);
    }

    /// Refuses the rows that come too late and returns which they are; `None` if there are none.
    fn late_rows(&self, side: usize, batch: &Batch, context: &mut Context<'_>) -> Option<BooleanBuffer> {
        let Expiry { column, after_us } = self.plan.late[side]?;
        let column = batch.column(column).as_primitive::<TimestampMicrosecondType>();
        let limit_us = self.watermark_us.saturating_sub(after_us);
        // A pass over the values alone suffices for nearly every batch.
        if self.watermark_us == i64::MIN || column.values().iter().all(|&time_us| time_us >= limit_us) {
            return None;
        }
        let is_late = |row: usize| column.is_valid(row) && column.value(row) < limit_us && !batch.is_retraction(row);
        let late = BooleanBuffer::collect_bool(batch.rows(), is_late);
        for row in late.set_indices() {
            let what = "rows that it might have met are forgotten";
            context.refusals.refuse_late(batch, row, self.watermark_us, what);
        }
        Some(late)
    }

    /// Reads the memory that the rows of these keys need next. The processor does so for many rows at once. Later, with
    /// decisions in between, it would wait for the memory of each row.
    fn touch(&self, keys: &[u32]) {
        let read = |side: usize, row: u32| self.sides[side].rows.get(row as usize).map_or(0, |row| row.matches);
        let heads = |key: u32| self.heads.get(key as usize).copied().unwrap_or([NONE; 2]);
        let first = keys.iter().fold(0, |seen, &key| seen ^ heads(key)[0]);
        let rows = keys.iter().fold(0, |seen, &key| {
            let [left, right] = heads(key);
            seen ^ read(0, left) ^ read(1, right)
        });
        std::hint::black_box(first ^ rows);
    }

    /// The newest partner of a row; [`NONE`] if it has none.
    fn first_partner(&self, side: usize, row: Option<&Arrived>) -> u32 {
        row.filter(|row| row.key != NONE).map_or(NONE, |row| self.heads[row.key as usize][1 - side])
    }

    /// Finds partners of rows, and emits the pairs and the changes for the partners. Returns whether all partners have
    /// been found.
    fn find_partners(&mut self, batch: &mut Unfinished, context: &mut Context<'_>) -> Result<bool, OperatorError> {
        let side = batch.side;
        let mut left = PAIRS_AT_ONCE;
        // Indices of `arrived`, and partners.
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(OUTPUT_ROWS);
        while batch.at < batch.arrived.len() {
            let from_us = batch.arrived[batch.at].from_us;
            // Rows that expire too early for this row lie behind those that it can meet.
            while batch.partner != NONE && self.sides[1 - side].reaches(batch.partner, from_us) {
                if left == 0 {
                    self.take_pairs(side, &mut batch.arrived, &mut pairs, context)?;
                    return Ok(false);
                }
                left -= 1;
                pairs.push((batch.at as u32, batch.partner));
                batch.partner = self.sides[1 - side].next(batch.partner);
                if pairs.len() >= OUTPUT_ROWS {
                    self.take_pairs(side, &mut batch.arrived, &mut pairs, context)?;
                }
            }
            batch.at += 1;
            batch.partner = self.first_partner(side, batch.arrived.get(batch.at));
        }
        self.take_pairs(side, &mut batch.arrived, &mut pairs, context)?;
        Ok(true)
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
        for &(at, _) in pairs.iter().filter(|_| plan.counts(side)) {
            arrived[at as usize].partners += 1;
        }
        for &(at, partner) in pairs.iter().filter(|_| plan.counts(other)) {
            let Arrived { row, retracts, .. } = arrived[at as usize];
            let matches = &mut self.sides[other].rows[partner as usize].matches;
            *matches = if retracts { *matches - 1 } else { *matches + 1 };
            let has_changed = *matches == u32::from(!retracts);
            if has_changed {
                match plan.spec.kind {
                    KeyedJoinKind::LeftSemi => {
                        // If rows expire, they are final, and come out with the later event time of the pair.
                        let time_us = self.defers(other).then(|| self.pair_times(side, row, partner)[0]);
                        self.give_alone(other, partner, retracts, time_us, context)?;
                    }
                    _ if self.defers(other) => {}
                    _ => self.give_alone(other, partner, !retracts, None, context)?,
                }
            }
        }
        if plan.gives_pairs() {
            self.output.rows[side].extend(pairs.iter().map(|&(at, _)| arrived[at as usize].row));
            self.output.rows[other].extend(pairs.iter().map(|pair| pair.1));
            for &(at, partner) in pairs.iter() {
                let Arrived { row, retracts, .. } = arrived[at as usize];
                let [event_time_us, arrival_us] = self.pair_times(side, row, partner);
                self.output.retracts.push(retracts);
                self.output.any_retracts |= retracts;
                self.output.event_times_us.push(event_time_us);
                self.output.arrivals_us.push(arrival_us);
            }
            if self.output.retracts.len() >= OUTPUT_ROWS {
                self.emit(context)?;
            }
        }
        pairs.clear();
        Ok(())
    }

    /// The later event time and the later arrival of a pair.
    #[inline]
    fn pair_times(&self, side: usize, row: u32, partner: u32) -> [i64; 2] {
        let (one, other) = (self.sides[side].store.times_us(row), self.sides[1 - side].store.times_us(partner));
        [one[0].max(other[0]), one[1].max(other[1])]
    }

    /// Keeps only the pairs for which the residual is true.
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
        // The event time of a row holds the number of its pair, because a pair on which the residual fails is refused
        // and missing afterwards.
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

    /// Emits a row without partner, with its own event time unless another is given.
    fn give_alone(
        &mut self,
        side: usize,
        row: u32,
        retracts: bool,
        time_us: Option<i64>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let [event_time_us, arrival_us] = self.sides[side].store.times_us(row);
        let event_time_us = time_us.unwrap_or(event_time_us);
        self.output.rows[side].push(row);
        self.output.rows[1 - side].push(NONE);
        self.output.retracts.push(retracts);
        self.output.any_retracts |= retracts;
        self.output.event_times_us.push(event_time_us);
        self.output.arrivals_us.push(arrival_us);
        if self.output.retracts.len() >= OUTPUT_ROWS { self.emit(context) } else { Ok(()) }
    }

    /// Emits the collected output rows.
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
        let retracts = std::mem::take(&mut output.any_retracts).then(|| BooleanBuffer::from(&output.retracts[..]));
        context.emit(
            Batch::new(
                vec![0; rows].into(),
                std::mem::take(&mut output.event_times_us).into(),
                std::mem::take(&mut output.arrivals_us).into(),
                RecordBatch::try_new_with_options(self.plan.output.clone(), columns, &options)?,
            )
            .with_retracts(retracts),
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
        let rows_max = std::mem::take(&mut self.arrived_rows) * FORGOTTEN_A_ROW + FORGOTTEN_MIN;
        for side in 0..2 {
            let pads = self.plan.pads(side) && self.defers(side);
            let expired = self.sides[side].expired(watermark_us, pads, rows_max);
            for &row in &expired {
                let SideRow { matches, expires_us, .. } = self.sides[side].rows[row as usize];
                if pads && matches == 0 {
                    self.give_alone(side, row, false, Some(expires_us), context)?;
                }
            }
            self.emit(context)?;
            for rows in expired.chunks(OUTPUT_ROWS) {
                let keys: Vec<u32> = rows.iter().map(|&row| self.sides[side].rows[row as usize].key).collect();
                self.touch(&keys);
                self.drop_rows(side, rows);
            }
        }
        Ok(())
    }

    /// Forgets expired rows, and keys whose last row was among them.
    fn drop_rows(&mut self, side: usize, rows: &[u32]) {
        for &row in rows {
            let key = self.sides[side].rows[row as usize].key;
            self.sides[side].unlink(&mut self.heads, row);
            self.sides[side].store.remove(row);
            if key != NONE && self.heads[key as usize] == [NONE; 2] {
                self.index.remove(key);
            }
        }
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
        // The rest of an unfinished batch is processed before anything else.
        while self.unfinished.is_some() {
            self.continue_batch(context)?;
        }
        match element {
            Element::Batch(batch) => self.take_in(input, &batch, context),
            Element::Watermark(watermark_us) => self.expire(watermark_us, context),
            Element::End => self.end(context),
            Element::Barrier(_) | Element::Control(_) | Element::Clocks(_) => Ok(()),
        }
    }

    fn has_more(&self) -> bool {
        self.unfinished.is_some()
    }

    fn go_on(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.continue_batch(context)
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        let rows = ExportedRows::new(&self.plan, &self.sides, self.watermark_us, self.saves_everywhere)?;
        Ok(Some(Box::new(rows)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let watermark_us = state::import(&self.plan, &mut self.index, &mut self.heads, &mut self.sides, frame)?;
        self.watermark_us = self.watermark_us.max(watermark_us);
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + self.heads.memory_bytes() + self.sides.iter().map(Side::memory_bytes).sum::<usize>()
    }
}
