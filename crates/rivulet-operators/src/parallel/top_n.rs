//! The first rows of each partition: `ROW_NUMBER() OVER (PARTITION BY .. ORDER BY ..) <= n`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt16Array, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};

use super::keys::{BatchKeys, KeyIndex, KeyPlan};
use super::order::{Behind, compare};
use super::rows::RowStore;
use super::window::by_text;
use super::{OUTPUT_ROWS, check_columns, key_groups};
use rivulet_dataflow::{
    Batch, Context, Description, Element, Operator, OperatorError, OperatorFactory, StateError, StateFrame,
    StateSelection,
};

use crate::PlanError;
use crate::aggregate::dense::RowSet;

/// The name of the column with the rank.
pub const ROW_NUMBER: &str = "row_number";

/// What a top-n does.
#[derive(Clone, Debug)]
pub struct TopNSpec {
    /// The columns that come in.
    pub input: SchemaRef,
    /// The columns by which rows are divided; none: all are one partition.
    pub partition: Vec<usize>,
    /// The order within a partition.
    pub order: Vec<SortKey>,
    /// How many rows of each partition come out.
    pub limit: usize,
    /// Whether the rank is a further column.
    pub with_rank: bool,
    /// Whether rows may take back others.
    pub input_retracts: bool,
}

/// A column to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The column.
    pub column: usize,
    /// Whether the greatest comes first.
    pub descending: bool,
    /// Whether null comes first, else last, whatever the direction.
    pub nulls_first: bool,
}

/// Keeps the first rows of each partition; see [`TopNSpec`].
///
/// The columns that come out are those that come in and, if wanted, `row_number` (BIGINT). The result changes: a row that is not among the first
/// any more is taken back. Rows that the order does not tell apart are ordered by their content, column by column, so that the result does
/// not depend on which came first.
#[derive(Clone)]
pub struct TopN {
    plan: Arc<TopNPlan>,
}

/// What all instances share.
pub(crate) struct TopNPlan {
    spec: TopNSpec,
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
    /// Columns that are not there or cannot be compared, and a limit of none.
    pub fn new(spec: TopNSpec) -> Result<Self, PlanError> {
        check_columns(&spec.input, spec.partition.iter().copied(), "the partition")?;
        check_columns(&spec.input, spec.order.iter().map(|key| key.column), "the order")?;
        if spec.limit == 0 {
            return Err(PlanError::Operator {
                operator: "top-n",
                problem: "no row is wanted".into(),
                hint: "write for example WHERE row_number <= 10".into(),
            });
        }
        let rank = spec.with_rank.then(|| Arc::new(Field::new(ROW_NUMBER, DataType::Int64, false)));
        let fields: Vec<_> = spec.input.fields().iter().cloned().chain(rank).collect();
        let output = Arc::new(Schema::new(fields));
        let keys = KeyPlan::new(&spec.input, &spec.partition)?;
        let plan = TopNPlan { spec, keys, output };
        plan.store()?;
        Ok(Self { plan: Arc::new(plan) })
    }

    /// The columns that come out.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }
}

/// The order as `EXPLAIN` shows it; `None` without one.
pub(crate) fn order_text(input: &Schema, order: &[SortKey]) -> Option<String> {
    let keys: Vec<String> = order
        .iter()
        .map(|key| format!("{}{}", input.field(key.column).name(), if key.descending { " DESC" } else { "" }))
        .collect();
    (!keys.is_empty()).then(|| format!("order by {}", keys.join(", ")))
}

impl OperatorFactory for TopN {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(TopNOperator::new(self.plan.clone()))
    }

    fn describe(&self) -> Description {
        let spec = &self.plan.spec;
        Description {
            operator: "top-n".into(),
            shared: {
                let mut shared = vec![format!("first {}", spec.limit)];
                shared.extend(by_text(&spec.input, &spec.partition));
                shared.extend(order_text(&spec.input, &spec.order));
                shared
            },
            per_slot: vec![],
        }
    }

    fn is_stateful(&self) -> bool {
        true
    }
}

const STATE: &str = "top-n";
const STATE_VERSION: u32 = 1;

struct TopNOperator {
    plan: Arc<TopNPlan>,
    index: KeyIndex,
    /// By partition: its rows in order. Where no row is taken back no more than can come out.
    partitions: Vec<Vec<u32>>,
    store: RowStore,
    /// Partitions that the batch at hand has changed, and the rows of each that were outside before.
    touched: Vec<(u32, Vec<u32>)>,
    is_touched: Vec<bool>,
    removed: Vec<u32>,
    keys: BatchKeys,
    numbers: Vec<u32>,
}

impl TopNOperator {
    fn new(plan: Arc<TopNPlan>) -> Self {
        Self {
            index: plan.keys.index(0),
            store: plan.store().expect("the store was made when the plan was checked"),
            partitions: Vec::new(),
            touched: Vec::new(),
            is_touched: Vec::new(),
            removed: Vec::new(),
            keys: BatchKeys::default(),
            numbers: Vec::new(),
            plan,
        }
    }

    fn take_in(&mut self, batch: &Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let plan = self.plan.clone();
        let spec = &plan.spec;
        if batch.retracts.is_some() && !spec.input_retracts {
            return Err(OperatorError("rows that are taken back came to a top-n that was promised none".into()));
        }
        let columns = batch.columns.columns();
        self.keys.read(&plan.keys, columns)?;
        let mut numbers = std::mem::take(&mut self.numbers);
        self.index.assign(&self.keys, &RowSet::Range(0..batch.rows()), &mut numbers);
        self.partitions.resize_with(self.index.numbers().max(self.partitions.len()), Vec::new);
        self.is_touched.resize(self.partitions.len(), false);
        // Most rows of a long stream come behind all that are kept, and are not even stored.
        let behind = Behind::new(&spec.order, columns).filter(|_| !spec.input_retracts);
        let is_candidate = |row: &u32| {
            let kept = &self.partitions[numbers[*row as usize] as usize];
            let is_behind = |behind: &Behind| {
                kept.len() >= spec.limit && behind.is_behind(*row as usize, &self.store, kept[spec.limit - 1])
            };
            !behind.as_ref().is_some_and(is_behind)
        };
        let candidates: Vec<u32> = (0..batch.rows() as u32).filter(is_candidate).collect();
        let mut rows = Vec::new();
        let times = |row: usize| (batch.event_time_us[row], batch.arrival_us[row]);
        self.store.add(columns, &candidates, times, &mut rows)?;
        for (&at, &row) in candidates.iter().zip(&rows) {
            let partition = numbers[at as usize];
            self.touch(partition);
            let kept = &mut self.partitions[partition as usize];
            let found = kept.binary_search_by(|&known| compare(&spec.order, &self.store, known, row));
            if batch.is_retraction(at as usize) {
                self.removed.push(row);
                if let Ok(place) = found {
                    self.removed.push(kept.remove(place));
                }
                continue;
            }
            let (Ok(place) | Err(place)) = found;
            kept.insert(place, row);
            if !spec.input_retracts && kept.len() > spec.limit {
                self.removed.extend(kept.pop());
            }
        }
        self.numbers = numbers;
        self.give(context)
    }

    fn touch(&mut self, partition: u32) {
        if !std::mem::replace(&mut self.is_touched[partition as usize], true) {
            let kept = &self.partitions[partition as usize];
            let outside = kept[..kept.len().min(self.plan.spec.limit)].to_vec();
            self.touched.push((partition, outside));
        }
    }

    /// Emits what has changed outside.
    fn give(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for (partition, before) in &self.touched {
            let kept = &self.partitions[*partition as usize];
            let after = &kept[..kept.len().min(self.plan.spec.limit)];
            if self.plan.spec.with_rank {
                for rank in 0..before.len().max(after.len()) {
                    let (old, new) = (before.get(rank), after.get(rank));
                    if old != new {
                        gone.extend(old.map(|&row| (row, rank)));
                        come.extend(new.map(|&row| (row, rank)));
                    }
                }
            } else {
                let (mut old, mut new) = (before.clone(), after.to_vec());
                old.sort_unstable();
                new.sort_unstable();
                gone.extend(before.iter().filter(|row| new.binary_search(row).is_err()).map(|&row| (row, 0)));
                come.extend(after.iter().filter(|row| old.binary_search(row).is_err()).map(|&row| (row, 0)));
            }
        }
        self.emit(&gone, true, context)?;
        self.emit(&come, false, context)?;
        for (partition, _) in self.touched.drain(..) {
            self.is_touched[partition as usize] = false;
            if self.partitions[partition as usize].is_empty() {
                self.index.remove(partition);
            }
        }
        self.removed.drain(..).for_each(|row| self.store.remove(row));
        Ok(())
    }

    fn emit(&self, rows: &[(u32, usize)], retracts: bool, context: &mut Context<'_>) -> Result<(), OperatorError> {
        for rows in rows.chunks(OUTPUT_ROWS) {
            let numbers: Vec<u32> = rows.iter().map(|row| row.0).collect();
            let mut columns = self.store.columns(&numbers)?;
            if self.plan.spec.with_rank {
                columns.push(Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1 as i64 + 1))));
            }
            let batch = Batch::new(
                vec![0; rows.len()].into(),
                numbers.iter().map(|&row| self.store.event_time_us(row)).collect(),
                numbers.iter().map(|&row| self.store.arrival_us(row)).collect(),
                RecordBatch::try_new(self.plan.output.clone(), columns)?,
            );
            context.emit(batch.with_retracts(retracts.then(|| BooleanBuffer::new_set(rows.len()))));
        }
        Ok(())
    }

    fn frame_schema(&self) -> SchemaRef {
        let leading = [
            Field::new("slot", DataType::UInt32, false),
            Field::new("key_group", DataType::UInt16, false),
            Field::new("event_time_us", DataType::Int64, false),
            Field::new("arrival_us", DataType::Int64, false),
        ];
        let input = self.plan.spec.input.fields().iter().map(|field| field.as_ref().clone());
        let spec = &self.plan.spec;
        let what = format!("{:?} {:?} {} {}", spec.partition, spec.order, spec.limit, spec.input_retracts);
        let metadata = [("rivulet.states".to_owned(), what)].into();
        Arc::new(Schema::new_with_metadata(leading.into_iter().chain(input).collect::<Vec<_>>(), metadata))
    }
}

impl Operator for TopNOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(&batch, context),
            _ => Ok(()),
        }
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let rows = self.store.live();
        let kept = self.store.columns(&rows)?;
        let keys: Vec<ArrayRef> = self.plan.spec.partition.iter().map(|&column| kept[column].clone()).collect();
        let groups = key_groups(&keys, rows.len())?;
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from_value(0, rows.len())),
            Arc::new(UInt16Array::from(groups)),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|&row| self.store.event_time_us(row)))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|&row| self.store.arrival_us(row)))),
        ];
        columns.extend(kept);
        let frame = StateFrame::new(STATE, STATE_VERSION, RecordBatch::try_new(self.frame_schema(), columns)?);
        frame.select(selection).map(Some)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect(STATE, STATE_VERSION)?;
        if frame.rows.schema() != self.frame_schema() {
            return Err(StateError::Mismatch("state of a top-n with other columns or another order".into()));
        }
        let plan = self.plan.clone();
        let (leading, columns) = frame.rows.columns().split_at(4);
        if leading.iter().any(|column| column.null_count() > 0) {
            return Err(StateError::Corrupt("a row of a top-n without its times".into()));
        }
        self.keys.read(&plan.keys, columns)?;
        let all: Vec<u32> = (0..frame.rows.num_rows() as u32).collect();
        let mut numbers = Vec::new();
        self.index.assign(&self.keys, &RowSet::List(&all), &mut numbers);
        self.partitions.resize_with(self.index.numbers().max(self.partitions.len()), Vec::new);
        let mut rows = Vec::new();
        let time = |column: usize, row: usize| leading[column].as_primitive::<Int64Type>().value(row);
        self.store.add(columns, &all, |row| (time(2, row), time(3, row)), &mut rows)?;
        for (&partition, &row) in numbers.iter().zip(&rows) {
            self.partitions[partition as usize].push(row);
        }
        numbers.sort_unstable();
        numbers.dedup();
        for &partition in &numbers {
            self.partitions[partition as usize].sort_by(|&a, &b| compare(&plan.spec.order, &self.store, a, b));
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        let rows: usize = self.partitions.iter().map(|rows| size_of::<Vec<u32>>() + rows.capacity() * 4).sum();
        self.index.memory_bytes() + self.store.memory_bytes() + rows
    }
}
