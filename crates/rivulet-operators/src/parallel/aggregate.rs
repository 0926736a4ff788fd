//! GROUP BY without windows: results that change as rows come.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, UInt16Array,
    UInt32Array,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{concat, kernels::cmp::not_distinct, take};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};

use super::groups::{GroupPlan, GroupStates, Mode};
use super::keys::{BatchKeys, KeyIndex, KeyPlan, key_groups};
use super::window::pane::emit_unless_failed;
use super::window::{aggregate_fields, aggregate_text, by_text};
use super::{OUTPUT_ROWS, check_columns};
use rivulet_dataflow::{
    Batch, Context, Description, Element, Operator, OperatorError, OperatorFactory, StateError, StateFrame,
    StateSelection,
};

use crate::aggregate::dense::RowSet;
use crate::{AggregateSpec, PlanError};

/// What an aggregation over keys without windows does.
#[derive(Clone, Debug)]
pub struct KeyedAggregateSpec {
    /// The columns that come in.
    pub input: SchemaRef,
    /// The columns that are the key; none: one row for everything, given at the end of the input even if there was none.
    pub keys: Vec<usize>,
    /// What is computed of each key. None: DISTINCT.
    pub aggregates: Vec<AggregateSpec>,
    /// Whether rows may take back others.
    pub input_retracts: bool,
}

/// Aggregates rows by key; see [`KeyedAggregateSpec`].
///
/// The columns that come out are the keys and the aggregates. When the result of a key changes, its old row is taken back and its new one
/// follows, at most once for each batch that comes in. DISTINCT over rows that are never taken back takes nothing back either.
#[derive(Clone)]
pub struct KeyedAggregate {
    plan: Arc<AggregatePlan>,
}

/// What all instances share.
pub(crate) struct AggregatePlan {
    spec: KeyedAggregateSpec,
    groups: GroupPlan,
    keys: KeyPlan,
    output: SchemaRef,
}

impl KeyedAggregate {
    /// Checks a specification.
    ///
    /// # Errors
    /// Columns that are not there, aggregates that do not fit their arguments, and such as cannot take a row back where rows may be.
    pub fn new(spec: KeyedAggregateSpec) -> Result<Self, PlanError> {
        check_columns(&spec.input, spec.keys.iter().copied(), "the key")?;
        let keys = spec.keys.iter().map(|&key| Arc::new(spec.input.field(key).clone()));
        let results = aggregate_fields(&spec.aggregates, &spec.input)?;
        let output = Arc::new(Schema::new(keys.chain(results).collect::<Vec<_>>()));
        let mode = if spec.input_retracts { Mode::Undoing } else { Mode::Together };
        let groups = GroupPlan::new(&spec.aggregates, &spec.input, mode)?;
        let keys = KeyPlan::new(&spec.input, &spec.keys)?;
        Ok(Self { plan: Arc::new(AggregatePlan { spec, groups, keys, output }) })
    }

    /// The columns that come out.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }

    /// Whether rows that come out may be taken back.
    pub fn output_retracts(&self) -> bool {
        self.plan.spec.input_retracts || !self.plan.spec.aggregates.is_empty()
    }
}

impl OperatorFactory for KeyedAggregate {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(AggregateOperator::new(self.plan.clone()))
    }

    fn describe(&self) -> Description {
        let spec = &self.plan.spec;
        Description {
            operator: "aggregate".into(),
            shared: {
                let mut shared: Vec<String> = by_text(&spec.input, &spec.keys).into_iter().collect();
                shared.extend(spec.aggregates.iter().map(aggregate_text));
                shared
            },
            per_slot: vec![],
        }
    }

    fn is_stateful(&self) -> bool {
        true
    }
}

/// From how many rows on changes are given although no watermark has come. Small batches are taken together until then, so that a key which
/// changes in each of them comes out once.
const PENDING_ROWS_MAX: usize = 4096;

const STATE: &str = "keyed aggregate";
const STATE_VERSION: u32 = 1;
/// Names what the states mean, in the frame's metadata.
const STATES: &str = "rivulet.states";

struct AggregateOperator {
    plan: Arc<AggregatePlan>,
    index: KeyIndex,
    states: GroupStates,
    groups: Vec<Group>,
    /// Keys whose rows have changed since the last output.
    touched: Vec<u32>,
    /// Of those that have a result outside: the keys, and the results in pieces.
    given: Vec<u32>,
    given_results: Vec<Vec<ArrayRef>>,
    pending_rows: usize,
    /// When the first of the pending rows came, and the latest arrival of one.
    pending_since_us: i64,
    arrival_us: i64,
    keys: BatchKeys,
    numbers: Vec<u32>,
}

#[derive(Clone, Copy, Default)]
struct Group {
    /// Rows that have come less those taken back.
    rows: i64,
    /// The latest event time of any.
    latest_us: i64,
    /// The event time of the result that is outside.
    given_us: i64,
    is_given: bool,
    is_touched: bool,
}

impl AggregateOperator {
    fn new(plan: Arc<AggregatePlan>) -> Self {
        Self {
            index: plan.keys.index(0),
            states: plan.groups.states(),
            groups: Vec::new(),
            touched: Vec::new(),
            given: Vec::new(),
            given_results: Vec::new(),
            pending_rows: 0,
            pending_since_us: 0,
            arrival_us: i64::MIN,
            keys: BatchKeys::default(),
            numbers: Vec::new(),
            plan,
        }
    }

    fn take_in(&mut self, batch: Batch, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if batch.retracts.is_some() && !self.plan.spec.input_retracts {
            return Err(OperatorError("rows that are taken back came to an aggregation that was promised none".into()));
        }
        let plan = self.plan.clone();
        let (batch, values) = plan.groups.evaluate(batch, context)?;
        if batch.is_empty() {
            return Ok(());
        }
        self.keys.read(&plan.keys, batch.columns.columns())?;
        let rows = RowSet::Range(0..batch.rows());
        let mut numbers = std::mem::take(&mut self.numbers);
        self.index.assign(&self.keys, &rows, &mut numbers);
        self.grow(self.index.numbers());
        if self.pending_rows == 0 {
            self.pending_since_us = context.now_us;
        }
        self.touch(&numbers)?;
        self.states.update(&plan.groups, &values, &numbers, &rows, &batch.event_time_us);
        for (row, &number) in numbers.iter().enumerate() {
            let group = &mut self.groups[number as usize];
            group.rows += if batch.is_retraction(row) { -1 } else { 1 };
            group.latest_us = group.latest_us.max(batch.event_time_us[row]);
            self.arrival_us = self.arrival_us.max(batch.arrival_us[row]);
        }
        self.numbers = numbers;
        self.pending_rows += batch.rows();
        if self.pending_rows >= PENDING_ROWS_MAX { self.give(context) } else { Ok(()) }
    }

    fn grow(&mut self, groups: usize) {
        self.states.grow(&self.plan.groups, groups);
        self.groups.resize(groups.max(self.groups.len()), Group { latest_us: i64::MIN, ..Group::default() });
    }

    /// Remembers which keys change, and the results that they have outside.
    fn touch(&mut self, numbers: &[u32]) -> Result<(), OperatorError> {
        let from = self.given.len();
        for &number in numbers {
            let group = &mut self.groups[number as usize];
            if !group.is_touched {
                group.is_touched = true;
                self.touched.push(number);
                if group.is_given {
                    self.given.push(number);
                }
            }
        }
        if self.given.len() > from {
            // What was given did not fail.
            self.given_results.push(self.plan.groups.results(&self.states, &self.given[from..], &mut Vec::new())?);
        }
        Ok(())
    }

    /// Takes back the results that have changed, and gives the new ones.
    fn give(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if self.touched.is_empty() {
            return Ok(());
        }
        let plan = self.plan.clone();
        let is_unit = plan.keys.len() == 0;
        let touched = std::mem::take(&mut self.touched);
        let given = std::mem::take(&mut self.given);
        let pieces = std::mem::take(&mut self.given_results);
        let olds = (0..plan.spec.aggregates.len())
            .map(|column| concat(&pieces.iter().map(|piece| piece[column].as_ref()).collect::<Vec<_>>()))
            .collect::<Result<Vec<_>, _>>();
        let olds = if given.is_empty() { Vec::new() } else { olds? };
        let present: Vec<u32> =
            touched.iter().copied().filter(|&number| is_unit || self.groups[number as usize].rows > 0).collect();
        let mut failed = Vec::new();
        let news = plan.groups.results(&self.states, &present, &mut failed)?;

        // Of keys that are on both sides, whether anything has changed.
        let mut place_of_new = vec![u32::MAX; self.groups.len().min(self.index.numbers().max(1))];
        present.iter().enumerate().for_each(|(at, &number)| place_of_new[number as usize] = at as u32);
        failed.iter().for_each(|&(at, _)| place_of_new[present[at] as usize] = u32::MAX);
        let both: Vec<(u32, u32)> = given
            .iter()
            .enumerate()
            .map(|(at, &number)| (at as u32, place_of_new[number as usize]))
            .filter(|pair| pair.1 != u32::MAX)
            .collect();
        let mut same = BooleanBuffer::new_set(both.len());
        let [old_places, new_places] = [
            UInt32Array::from_iter_values(both.iter().map(|pair| pair.0)),
            UInt32Array::from_iter_values(both.iter().map(|pair| pair.1)),
        ];
        if !both.is_empty() {
            for (old, new) in olds.iter().zip(&news) {
                let equal = not_distinct(&take(old, &old_places, None)?, &take(new, &new_places, None)?)?;
                same = &same & equal.values();
            }
        }
        let (mut keep_old, mut keep_new) = (vec![true; given.len()], vec![true; present.len()]);
        same.set_indices().for_each(|at| {
            keep_old[both[at].0 as usize] = false;
            keep_new[both[at].1 as usize] = false;
        });

        let times = given.iter().map(|&number| self.groups[number as usize].given_us).collect();
        self.emit(&given, &olds, &keep_old, times, true, Vec::new(), context)?;
        let times: Vec<i64> = present.iter().map(|&number| self.groups[number as usize].latest_us).collect();
        self.emit(&present, &news, &keep_new, times, false, failed.clone(), context)?;

        for &number in &touched {
            let group = &mut self.groups[number as usize];
            group.is_touched = false;
            group.is_given = false;
        }
        for (at, &number) in present.iter().enumerate() {
            let group = &mut self.groups[number as usize];
            group.is_given = true;
            if keep_new[at] {
                group.given_us = group.latest_us;
            }
        }
        failed.iter().for_each(|&(at, _)| self.groups[present[at] as usize].is_given = false);
        for &number in &touched {
            if self.groups[number as usize].rows == 0 && !is_unit {
                self.states.clear_group(&plan.groups, number);
                self.groups[number as usize] = Group { latest_us: i64::MIN, ..Group::default() };
                self.index.remove(number);
            }
        }
        self.pending_rows = 0;
        Ok(())
    }

    /// Emits the rows of these keys that are kept.
    #[allow(clippy::too_many_arguments)] // The parts of rows, which exist here only.
    fn emit(
        &self,
        numbers: &[u32],
        results: &[ArrayRef],
        keep: &[bool],
        times_us: Vec<i64>,
        retracts: bool,
        failed: Vec<(usize, &'static str)>,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let kept: Vec<u32> = (0..numbers.len() as u32).filter(|&at| keep[at as usize]).collect();
        for kept in kept.chunks(OUTPUT_ROWS) {
            let rows = kept.len();
            let keys: Vec<u32> = kept.iter().map(|&at| numbers[at as usize]).collect();
            let mut columns = self.index.columns(&self.plan.keys, &keys)?;
            let places = UInt32Array::from(kept.to_vec());
            for result in results {
                columns.push(take(result, &places, None)?);
            }
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let batch = Batch::new(
                vec![0; rows].into(),
                kept.iter().map(|&at| times_us[at as usize]).collect(),
                vec![self.arrival_us; rows].into(),
                RecordBatch::try_new_with_options(self.plan.output.clone(), columns, &options)?,
            )
            .with_retracts(retracts.then(|| BooleanBuffer::new_set(rows)));
            let place = |at: usize| kept.binary_search(&(at as u32)).ok();
            let failed = failed.iter().filter_map(|&(at, why)| Some((place(at)?, why))).collect();
            emit_unless_failed(batch, failed, context)?;
        }
        Ok(())
    }

    fn end(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if self.plan.keys.len() == 0 && !self.groups.first().is_some_and(|group| group.is_given || group.is_touched) {
            // Nothing has come: that is a result too.
            self.grow(1);
            self.groups[0].latest_us = self.groups[0].latest_us.max(0);
            self.arrival_us = self.arrival_us.max(context.now_us);
            self.touch(&[0])?;
        }
        self.give(context)
    }

    fn frame_schema(&self) -> SchemaRef {
        let leading = [Field::new("slot", DataType::UInt32, false), Field::new("key_group", DataType::UInt16, false)];
        let keys = self.plan.output.fields()[..self.plan.keys.len()].iter().map(|field| field.as_ref().clone());
        let rest = [
            Field::new("rows", DataType::Int64, false),
            Field::new("latest_us", DataType::Int64, false),
            Field::new("given_us", DataType::Int64, false),
            Field::new("is_given", DataType::Boolean, false),
            Field::new("states", DataType::Binary, false),
        ];
        let fields: Vec<Field> = leading.into_iter().chain(keys).chain(rest).collect();
        Arc::new(Schema::new_with_metadata(fields, [(STATES.to_owned(), self.plan.groups.fingerprint())].into()))
    }
}

impl Operator for AggregateOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.take_in(batch, context),
            Element::Watermark(_) | Element::Barrier(_) => self.give(context),
            Element::End => self.end(context),
            Element::Control(_) => Ok(()),
        }
    }

    fn deadline_us(&self) -> Option<i64> {
        (self.pending_rows > 0).then_some(self.pending_since_us)
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.give(context)
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        if !self.touched.is_empty() {
            return Err(StateError::Mismatch("state of an aggregation is saved behind a barrier".into()));
        }
        let live = |number: &u32| {
            let group = &self.groups[*number as usize];
            group.rows != 0 || group.is_given
        };
        let numbers: Vec<u32> = (0..self.groups.len() as u32).filter(live).collect();
        let keys = self.index.columns(&self.plan.keys, &numbers)?;
        let key_groups = key_groups(&keys, numbers.len())?;
        let sets = self.states.distinct_values();
        let (mut states, mut bytes) = (BinaryBuilder::new(), Vec::new());
        for &number in &numbers {
            bytes.clear();
            self.states.encode(&self.plan.groups, number, &sets, &mut bytes);
            states.append_value(&bytes);
        }
        let groups = || numbers.iter().map(|&number| self.groups[number as usize]);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from_value(0, numbers.len())), Arc::new(UInt16Array::from(key_groups))];
        columns.extend(keys);
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.rows))));
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.latest_us))));
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.given_us))));
        columns.push(Arc::new(groups().map(|group| Some(group.is_given)).collect::<BooleanArray>()));
        columns.push(Arc::new(states.finish()));
        let frame = StateFrame::new(STATE, STATE_VERSION, RecordBatch::try_new(self.frame_schema(), columns)?);
        frame.select(selection).map(Some)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect(STATE, STATE_VERSION)?;
        if frame.rows.schema() != self.frame_schema() {
            return Err(StateError::Mismatch("state of an aggregation with other keys or aggregates".into()));
        }
        let plan = self.plan.clone();
        let columns = frame.rows.columns();
        let (keys, rest) = columns[2..].split_at(plan.keys.len());
        if rest.iter().any(|column| column.null_count() > 0) {
            return Err(StateError::Corrupt("an aggregation without its states".into()));
        }
        self.keys.read_keys(&plan.keys, keys)?;
        let all = RowSet::Range(0..frame.rows.num_rows());
        let mut numbers = std::mem::take(&mut self.numbers);
        self.index.assign(&self.keys, &all, &mut numbers);
        self.grow(self.index.numbers());
        let number = |column: usize, row: usize| rest[column].as_primitive::<Int64Type>().value(row);
        for (row, &at) in numbers.iter().enumerate() {
            self.groups[at as usize] = Group {
                rows: number(0, row),
                latest_us: number(1, row),
                given_us: number(2, row),
                is_given: rest[3].as_boolean().value(row),
                is_touched: false,
            };
            let mut bytes = rest[4].as_binary::<i32>().value(row);
            let decoded = self.states.decode(&plan.groups, at, &mut bytes);
            decoded
                .filter(|()| bytes.is_empty())
                .ok_or_else(|| StateError::Corrupt("states of an aggregation".into()))?;
        }
        self.numbers = numbers;
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + self.states.memory_bytes() + self.groups.capacity() * size_of::<Group>()
    }
}
