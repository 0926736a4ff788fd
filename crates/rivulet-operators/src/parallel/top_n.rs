//! The first rows of each partition: `ROW_NUMBER() OVER (PARTITION BY .. ORDER BY ..) <= n`, or with `RANK()` or
//! `DENSE_RANK()`.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::keys::{BatchKeys, KeyIndex, KeyPlan, NONE};
use super::order::{Behind, SortKey, compare, compare_keys, order_text};
use super::rows::RowStore;
use super::saved_rows::{PartitionRows, SavedRows, state_keys};
use super::sorted_rows::SortedRows;
use super::time_to_live::{TimeToLive, refuse_forgotten, state_text};
use super::window::{by_text, names};
use super::{OUTPUT_ROWS, check_columns};
use rivulet_dataflow::{
    Address, Batch, Context, Description, Element, Operator, OperatorError, OperatorFactory, StateByKey, StateError,
    StateFrame,
};

use crate::PlanError;
use crate::aggregate::dense::RowSet;
use crate::paged::Paged;

/// The plan of a top-n.
#[derive(Clone, Debug)]
pub struct TopNSpec {
    /// The columns of the input.
    pub input: SchemaRef,
    /// The columns by which rows are divided. Without columns, all rows are one partition.
    pub partition: Vec<usize>,
    /// The order within a partition.
    pub order: Vec<SortKey>,
    /// How rows are ranked.
    pub ranking: Ranking,
    /// The highest rank of an output row.
    pub limit: usize,
    /// Whether the rank is a further column.
    pub with_rank: bool,
    /// Whether the input may have retractions.
    pub input_retracts: bool,
    /// How long a partition is remembered for which no row comes, in microseconds of event time; `None`: for ever.
    /// `Some(0)`: its rows are of one window and have the last microsecond of the window as event time. The partition
    /// is forgotten when the window closes, and rows that come later are refused.
    pub state_ttl_us: Option<i64>,
}

impl TopNSpec {
    /// Whether the rows of a partition come out when its window closes, and are then final.
    fn is_final(&self) -> bool {
        self.state_ttl_us == Some(0) && !self.input_retracts
    }
}

/// How the rows of a partition are ranked, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranking {
    /// One after the other.
    RowNumber,
    /// By the number of rows that come earlier in the order. Rows that are equal in the order have one rank, and the
    /// ranks that they would otherwise have had are left out.
    Rank,
    /// The same without leaving out ranks.
    DenseRank,
}

impl Ranking {
    /// The name of its SQL function, and of the column with the rank.
    pub fn name(self) -> &'static str {
        match self {
            Self::RowNumber => "row_number",
            Self::Rank => "rank",
            Self::DenseRank => "dense_rank",
        }
    }
}

/// Keeps the first rows of each partition; see [`TopNSpec`].
///
/// The output columns are those of the input and, if wanted, the rank (BIGINT). The result changes: a row that is no
/// longer among the first is retracted. If partitions belong to windows and the input has no retractions, the result
/// does not change: rows come out when their window closes ([`TopN::is_final`]). Rows that are equal in the order are
/// ordered by their content, column by column, so that the result does not depend on which came first. When a partition
/// is forgotten, nothing is retracted.
#[derive(Clone)]
pub struct TopN {
    plan: Arc<TopNPlan>,
}

/// The plan that all instances share.
pub(crate) struct TopNPlan {
    spec: TopNSpec,
    is_partial: bool,
    keys: KeyPlan,
    output: SchemaRef,
}

impl TopNPlan {
    fn store(&self) -> Result<RowStore, PlanError> {
        RowStore::new(&self.spec.input, &(0..self.spec.input.fields().len()).collect::<Vec<_>>())
    }
}

impl TopN {
    /// Checks a specification.
    ///
    /// # Errors
    /// Columns that do not exist or cannot be compared, and a limit of zero.
    pub fn new(spec: TopNSpec) -> Result<Self, PlanError> {
        Self::planned(spec, false)
    }

    /// The first rows of each instance, of which another top-n takes the first: it keeps none of them over a barrier.
    /// Only for partitions that belong to windows.
    ///
    /// # Errors
    /// Those of [`TopN::new`].
    pub fn partial(spec: TopNSpec) -> Result<Self, PlanError> {
        Self::planned(TopNSpec { with_rank: false, ..spec }, true)
    }

    fn planned(spec: TopNSpec, is_partial: bool) -> Result<Self, PlanError> {
        check_columns(&spec.input, spec.partition.iter().copied(), "the partition")?;
        check_columns(&spec.input, spec.order.iter().map(|key| key.column), "the order")?;
        if spec.limit == 0 {
            let hint = format!("write for example WHERE {} <= 10", spec.ranking.name());
            return Err(PlanError::operator("top-n", "no row is wanted", hint));
        }
        let rank = spec.with_rank.then(|| Arc::new(Field::new(spec.ranking.name(), DataType::Int64, false)));
        let fields: Vec<_> = spec.input.fields().iter().cloned().chain(rank).collect();
        let output = Arc::new(Schema::new(fields));
        let keys = KeyPlan::new(&spec.input, &spec.partition)?;
        let plan = TopNPlan { spec, is_partial, keys, output };
        plan.store()?;
        Ok(Self { plan: Arc::new(plan) })
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }

    /// Whether output rows come out when the window of their partition closes, and are then final. Their event time is
    /// that of the input rows.
    pub fn is_final(&self) -> bool {
        self.plan.spec.is_final()
    }
}

impl OperatorFactory for TopN {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(TopNOperator::new(self.plan.clone()))
    }

    fn describe(&self) -> Description {
        let spec = &self.plan.spec;
        let mut shared = vec![match spec.ranking {
            Ranking::RowNumber => format!("first {}", spec.limit),
            ranking => format!("{} <= {}", ranking.name(), spec.limit),
        }];
        shared.extend(by_text(&spec.input, &spec.partition));
        shared.extend(order_text(&spec.input, &spec.order));
        shared.extend(spec.is_final().then(|| "rows come when their window closes".to_owned()));
        shared.push(state_text(spec.state_ttl_us, "the last row of a partition"));
        let operator = if self.plan.is_partial { "partial top-n" } else { "top-n" };
        Description { operator: operator.into(), shared, per_slot: vec![] }
    }

    fn state(&self) -> Option<Address> {
        let spec = &self.plan.spec;
        let first = format!("{} <= {}", spec.ranking.name(), spec.limit);
        Some(Address {
            keys: names(&spec.input, &spec.partition),
            rest: order_text(&spec.input, &spec.order).into_iter().chain([first]).collect(),
            is_transient: self.plan.is_partial,
            ..Address::of(STATE)
        })
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        state_keys(frame, ADDED, &self.plan.spec.partition)
    }
}

const STATE: &str = "top-n";
const STATE_VERSION: u32 = 2;
/// The number of columns that a saved row has beside its own: when its partition was last touched.
const ADDED: usize = 1;

/// An emitted row and its rank. The rank is always 0 if there is no column for it.
type Ranked = (u32, i64);

struct TopNOperator {
    plan: Arc<TopNPlan>,
    index: KeyIndex,
    /// By partition: its rows in order. If the input has no retractions, only rows that can come out are kept.
    partitions: Paged<SortedRows>,
    /// By partition: the last row that comes out, once no row behind it can come out; [`NONE`] before.
    last: Paged<u32>,
    store: RowStore,
    /// Partitions that the current batch has changed, and the emitted rows of each before the batch.
    touched: Vec<(u32, Vec<Ranked>)>,
    is_touched: Paged<bool>,
    removed: Vec<u32>,
    /// When partitions are forgotten.
    ttl: Option<TimeToLive>,
    keys: BatchKeys,
    numbers: Vec<u32>,
}

impl TopNOperator {
    fn new(plan: Arc<TopNPlan>) -> Self {
        Self {
            index: plan.keys.index(0),
            store: plan.store().expect("the store was made when the plan was checked"),
            partitions: Paged::new(),
            last: Paged::new(),
            touched: Vec::new(),
            is_touched: Paged::new(),
            removed: Vec::new(),
            ttl: plan.spec.state_ttl_us.map(TimeToLive::new),
            keys: BatchKeys::default(),
            numbers: Vec::new(),
            plan,
        }
    }

    fn take_in(&mut self, batch: &Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        let spec = &plan.spec;
        if batch.retracts.is_some() && !spec.input_retracts {
            return Err(OperatorError::new("rows that are taken back came to a top-n that was promised none"));
        }
        let columns = batch.columns.columns();
        self.keys.read(&plan.keys, columns)?;
        let mut numbers = std::mem::take(&mut self.numbers);
        self.index.assign(&self.keys, &RowSet::Range(0..batch.rows()), &mut numbers);
        self.partitions.grow_with(self.index.numbers(), SortedRows::default);
        if let Some(ttl) = &mut self.ttl {
            ttl.touch(&numbers, batch.event_time_us.iter().copied());
        }
        self.is_touched.grow(self.partitions.len(), false);
        self.last.grow(self.partitions.len(), NONE);
        // Most rows of a long stream come behind all kept rows, and are not even stored.
        let behind = Behind::new(&spec.order, columns).filter(|_| !spec.input_retracts);
        let is_candidate = |row: &u32| {
            let last = self.last[numbers[*row as usize] as usize];
            !behind.as_ref().is_some_and(|behind| last != NONE && behind.is_behind(*row as usize, &self.store, last))
        };
        let candidates: Vec<u32> = (0..batch.rows() as u32).filter(is_candidate).collect();
        let mut rows = Vec::new();
        let times = |row: usize| (batch.event_time_us[row], batch.arrival_us[row]);
        self.store.add(columns, &candidates, times, &mut rows)?;
        for (&at, &row) in candidates.iter().zip(&rows) {
            let partition = numbers[at as usize];
            self.touch(partition);
            let kept = &mut self.partitions[partition as usize];
            let found = kept.search(|known| compare(&spec.order, &self.store, known, row));
            if batch.is_retraction(at as usize) {
                self.removed.push(row);
                match found {
                    Ok(place) => self.removed.push(kept.remove(place)),
                    Err(_) => refuse_forgotten(batch, at as usize, context),
                }
                continue;
            }
            let (Ok(place) | Err(place)) = found;
            kept.insert(place, row);
            if !spec.input_retracts && spec.ranking == Ranking::RowNumber && kept.len() > spec.limit {
                kept.truncate(spec.limit, &mut self.removed);
            }
        }
        self.numbers = numbers;
        match spec.is_final() {
            true => self.keep(),
            false => self.give(context)?,
        }
        Ok(())
    }

    fn touch(&mut self, partition: u32) {
        if !std::mem::replace(&mut self.is_touched[partition as usize], true) {
            let outside = match self.plan.spec.is_final() {
                true => Vec::new(),
                false => self.outside(&self.partitions[partition as usize]),
            };
            self.touched.push((partition, outside));
        }
    }

    /// The number of rows from `first` on that are equal to it in the order, including `first`.
    fn peers(&self, kept: &SortedRows, first: usize) -> usize {
        let first_row = kept.get(first);
        let is_behind = |row: u32| compare_keys(&self.plan.spec.order, &self.store, first_row, row).is_lt();
        kept.partition_point(|row| !is_behind(row)) - first
    }

    /// How many of the rows of a partition come out, and whether no further row behind them can come out.
    fn visible(&self, kept: &SortedRows) -> (usize, bool) {
        let limit = self.plan.spec.limit;
        match self.plan.spec.ranking {
            Ranking::RowNumber => (kept.len().min(limit), kept.len() >= limit),
            Ranking::Rank if kept.len() < limit => (kept.len(), false),
            Ranking::Rank => (limit - 1 + self.peers(kept, limit - 1), true),
            Ranking::DenseRank => {
                let (mut rows, mut ranks) = (0, 0);
                while ranks < limit && rows < kept.len() {
                    rows += self.peers(kept, rows);
                    ranks += 1;
                }
                (rows, ranks == limit)
            }
        }
    }

    /// The rows of a partition that should be in the output, with their ranks.
    fn outside(&self, kept: &SortedRows) -> Vec<Ranked> {
        let spec = &self.plan.spec;
        let rows = self.visible(kept).0;
        let visible = kept.iter().take(rows);
        if !spec.with_rank {
            return visible.map(|row| (row, 0)).collect();
        }
        if spec.ranking == Ranking::RowNumber {
            return visible.zip(1..).collect();
        }
        let mut outside = Vec::with_capacity(rows);
        let (mut peers_end, mut rank, mut groups) = (0, 0, 0);
        for (place, row) in visible.enumerate() {
            if place == peers_end {
                groups += 1;
                rank = if spec.ranking == Ranking::Rank { place as i64 + 1 } else { groups };
                peers_end += self.peers(kept, place);
            }
            outside.push((row, rank));
        }
        outside
    }

    /// Removes rows that can never come out, and remembers the last row that does.
    fn trim(&mut self, partition: u32) {
        let (rows, is_full) = self.visible(&self.partitions[partition as usize]);
        let kept = &mut self.partitions[partition as usize];
        if !self.plan.spec.input_retracts {
            kept.truncate(rows, &mut self.removed);
        }
        self.last[partition as usize] = if is_full { kept.get(rows - 1) } else { NONE };
    }

    /// In the partitions that have changed, keeps only the rows that can come out at the end.
    fn keep(&mut self) {
        for (partition, _) in std::mem::take(&mut self.touched) {
            self.trim(partition);
            self.is_touched[partition as usize] = false;
        }
        self.removed.drain(..).for_each(|row| self.store.remove(row));
    }

    /// Emits the changes of the result.
    fn give(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let touched = std::mem::take(&mut self.touched);
        for (partition, before) in &touched {
            self.trim(*partition);
            let after = self.outside(&self.partitions[*partition as usize]);
            let (before, after) = without_common_ends(before, &after);
            let (mut old, mut new) = (before.to_vec(), after.to_vec());
            old.sort_unstable();
            new.sort_unstable();
            gone.extend(before.iter().copied().filter(|one| new.binary_search(one).is_err()));
            come.extend(after.iter().copied().filter(|one| old.binary_search(one).is_err()));
        }
        self.emit(&gone, true, context)?;
        self.emit(&come, false, context)?;
        for (partition, _) in touched {
            self.is_touched[partition as usize] = false;
            if self.partitions[partition as usize].len() == 0 {
                self.index.remove(partition);
                if let Some(ttl) = &mut self.ttl {
                    ttl.remove(partition);
                }
            }
        }
        self.removed.drain(..).for_each(|row| self.store.remove(row));
        Ok(())
    }

    /// Forgets partitions that no row has touched for the time-to-live, and emits the rows of those whose window
    /// closes.
    fn forget(&mut self, watermark_us: i64, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let expired = self.ttl.as_mut().map_or_else(Vec::new, |ttl| ttl.expired(watermark_us));
        self.close(expired, context)
    }

    /// Emits the rows of these partitions, if they belong to windows, and forgets them.
    fn close(&mut self, expired: Vec<u32>, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if self.plan.spec.is_final() {
            let of = |&partition: &u32| self.outside(&self.partitions[partition as usize]);
            let rows: Vec<Ranked> = expired.iter().flat_map(of).collect();
            self.emit(&rows, false, context)?;
        }
        for partition in expired {
            std::mem::take(&mut self.partitions[partition as usize]).iter().for_each(|row| self.store.remove(row));
            self.last[partition as usize] = NONE;
            self.index.remove(partition);
        }
        Ok(())
    }

    fn emit(&self, rows: &[Ranked], retracts: bool, context: &mut Context<'_>) -> Result<(), OperatorError> {
        for rows in rows.chunks(OUTPUT_ROWS) {
            let numbers: Vec<u32> = rows.iter().map(|row| row.0).collect();
            let mut columns = self.store.columns(&numbers)?;
            if self.plan.spec.with_rank {
                columns.push(Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))));
            }
            let batch = self.store.batch(&numbers, &self.plan.output, columns)?;
            context.emit(batch.with_retracts(retracts.then(|| BooleanBuffer::new_set(rows.len()))));
        }
        Ok(())
    }

    fn saved(&self) -> SavedRows {
        let spec = &self.plan.spec;
        let columns = spec.input.fields().iter().map(|field| field.as_ref().clone());
        let TopNSpec { partition, order, ranking, limit, input_retracts, .. } = spec;
        let states = format!("{partition:?} {order:?} {ranking:?} {limit} {input_retracts}");
        SavedRows::new((STATE, STATE_VERSION), &[("touched_us", DataType::Int64)], columns, states)
    }
}

/// The rows of all partitions.
struct TopNRows<'a>(&'a TopNOperator, PartitionRows);

impl StateByKey for TopNRows<'_> {
    fn hashes(&self) -> &[u16] {
        &self.1.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let TopNOperator { plan, store, .. } = self.0;
        let (numbers, touched_us) = self.1.some(rows);
        let times = numbers.iter().map(|&row| (store.event_time_us(row), store.arrival_us(row)));
        let saved = self.0.saved();
        Ok(saved.frame(saved.rows(&plan.spec.partition, times, vec![touched_us], store.columns(&numbers)?)?))
    }
}

/// Returns both without their common beginning and end: mostly one row among many has come or gone.
fn without_common_ends<'a>(one: &'a [Ranked], other: &'a [Ranked]) -> (&'a [Ranked], &'a [Ranked]) {
    let begin = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    let (one, other) = (&one[begin..], &other[begin..]);
    let end = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    (&one[..one.len() - end], &other[..other.len() - end])
}

impl Operator for TopNOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => {
                let batch = match &self.ttl {
                    Some(ttl) => ttl.without_late(batch, context)?,
                    None => batch,
                };
                self.take_in(&batch, context)
            }
            Element::Watermark(watermark_us) => self.forget(watermark_us, context),
            Element::End if self.plan.spec.is_final() => self.forget(i64::MAX, context),
            // Several instances have rows of a partition, and only one of them could restore them. So they are emitted.
            Element::Barrier(_) if self.plan.is_partial => {
                let open = self.ttl.as_mut().map_or_else(Vec::new, TimeToLive::take_all);
                self.close(open, context)
            }
            Element::Barrier(_) | Element::Control(_) | Element::Clocks(_) | Element::End => Ok(()),
        }
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        let partitions = self.partitions.iter().map(SortedRows::iter);
        let rows = PartitionRows::new(partitions, self.ttl.as_ref(), &self.store, &self.plan.spec.partition)?;
        Ok(Some(Box::new(TopNRows(self, rows))))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let saved = self.saved().read(frame)?;
        let plan = self.plan.clone();
        self.keys.read(&plan.keys, saved.columns)?;
        let all: Vec<u32> = (0..saved.len() as u32).collect();
        let mut numbers = Vec::new();
        self.index.assign(&self.keys, &RowSet::List(&all), &mut numbers);
        self.partitions.grow_with(self.index.numbers(), SortedRows::default);
        self.last.grow(self.partitions.len(), NONE);
        let mut rows = Vec::new();
        self.store.add(saved.columns, &all, |row| saved.times(row), &mut rows)?;
        let mut partitions: Vec<(u32, u32)> = numbers.iter().copied().zip(rows).collect();
        if let Some(ttl) = &mut self.ttl {
            // For state that was saved without a time-to-live, the event times of the rows are used.
            ttl.touch(&numbers, (0..saved.len()).map(|row| saved.number(0, row).max(saved.times(row).0)));
        }
        partitions.sort_unstable();
        for rows in partitions.chunk_by(|one, other| one.0 == other.0) {
            let kept = &mut self.partitions[rows[0].0 as usize];
            let mut all: Vec<u32> = kept.iter().chain(rows.iter().map(|row| row.1)).collect();
            all.sort_by(|&a, &b| compare(&plan.spec.order, &self.store, a, b));
            *kept = all.into();
            self.trim(rows[0].0);
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        let rows: usize = self.partitions.iter().map(SortedRows::memory_bytes).sum();
        let ttl = self.ttl.as_ref().map_or(0, TimeToLive::memory_bytes);
        self.index.memory_bytes() + self.store.memory_bytes() + self.partitions.memory_bytes() + rows + ttl
    }
}
