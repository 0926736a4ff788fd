//! Export and import of aggregations.
//!
//! A row of a frame is a key: `slot`, `key_group`, the key columns, the number of its `rows`, the `latest_us` of their
//! event times, the event time `given_us` of the emitted result, whether there is one (`is_given`), and the states as
//! bytes.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanArray, Int64Array, RecordBatch, UInt16Array, UInt32Array,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use rivulet_dataflow::{StateByKey, StateError, StateFrame};

use super::AggregatePlan;
use super::operator::{AggregateOperator, Group};
use crate::aggregate::dense::RowSet;
use crate::parallel::groups::distinct::GroupValues;
use crate::parallel::keys::key_hashes;

const OPERATOR: &str = "keyed aggregate";
const VERSION: u32 = 1;
/// The key of the frame's metadata that says what the states mean.
const STATES: &str = "rivulet.states";

fn schema(plan: &AggregatePlan) -> SchemaRef {
    let leading = [Field::new("slot", DataType::UInt32, false), Field::new("key_group", DataType::UInt16, false)];
    let keys = plan.output.fields()[..plan.keys.len()].iter().map(|field| field.as_ref().clone());
    let rest = [
        Field::new("rows", DataType::Int64, false),
        Field::new("latest_us", DataType::Int64, false),
        Field::new("given_us", DataType::Int64, false),
        Field::new("is_given", DataType::Boolean, false),
        Field::new("states", DataType::Binary, false),
    ];
    let fields: Vec<Field> = leading.into_iter().chain(keys).chain(rest).collect();
    Arc::new(Schema::new_with_metadata(fields, [(STATES.to_owned(), plan.groups.fingerprint())].into()))
}

/// The keys of the rows of a frame. The layout of the states does not matter: an earlier layout has the same keys.
pub(super) fn keys(plan: &AggregatePlan, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
    let is_own = frame.rows.schema_ref().fields() == schema(plan).fields();
    is_own.then(|| frame.rows.columns()[2..2 + plan.keys.len()].to_vec())
}

/// The keys of an aggregation.
pub(super) struct ExportedKeys<'a> {
    operator: &'a AggregateOperator,
    numbers: Vec<u32>,
    hashes: Vec<u16>,
    sets: Vec<Vec<GroupValues>>,
}

pub(super) fn by_key(operator: &AggregateOperator) -> Result<ExportedKeys<'_>, StateError> {
    if !operator.touched.is_empty() {
        return Err(StateError::Mismatch("state of an aggregation is saved behind a barrier".into()));
    }
    let live = |number: &u32| {
        let group = &operator.groups[*number as usize];
        group.rows != 0 || group.is_given
    };
    let numbers: Vec<u32> = (0..operator.groups.len() as u32).filter(live).collect();
    let hashes = key_hashes(&operator.index.columns(&operator.plan.keys, &numbers)?, numbers.len())?;
    Ok(ExportedKeys { operator, numbers, hashes, sets: operator.states.distinct_values() })
}

impl StateByKey for ExportedKeys<'_> {
    fn hashes(&self) -> &[u16] {
        &self.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let Self { operator, sets, .. } = self;
        let plan = &operator.plan;
        let numbers: Vec<u32> = rows.iter().map(|&row| self.numbers[row as usize]).collect();
        let (mut states, mut bytes) = (BinaryBuilder::new(), Vec::new());
        for &number in &numbers {
            bytes.clear();
            operator.states.encode(&plan.groups, number, sets, &mut bytes);
            states.append_value(&bytes);
        }
        let groups = || numbers.iter().map(|&number| operator.groups[number as usize]);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from_value(0, rows.len())), Arc::new(UInt16Array::from(self.hashes_of(rows)))];
        columns.extend(operator.index.columns(&plan.keys, &numbers)?);
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.rows))));
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.latest_us))));
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.given_us))));
        columns.push(Arc::new(groups().map(|group| Some(group.is_given)).collect::<BooleanArray>()));
        columns.push(Arc::new(states.finish()));
        Ok(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(schema(plan), columns)?))
    }
}

pub(super) fn import(operator: &mut AggregateOperator, frame: &StateFrame) -> Result<(), StateError> {
    frame.expect(OPERATOR, VERSION)?;
    let expected = schema(&operator.plan);
    let frame = &*operator.plan.clone().groups.brought_up(frame, &expected)?;
    if frame.rows.schema() != expected {
        return Err(StateError::Mismatch("state of an aggregation with other keys or aggregates".into()));
    }
    let plan = operator.plan.clone();
    let columns = frame.rows.columns();
    let (keys, rest) = columns[2..].split_at(plan.keys.len());
    if rest.iter().any(|column| column.null_count() > 0) {
        return Err(StateError::Corrupt("an aggregation without its states".into()));
    }
    operator.keys.read_keys(&plan.keys, keys)?;
    let all = RowSet::Range(0..frame.rows.num_rows());
    let mut numbers = std::mem::take(&mut operator.numbers);
    operator.index.assign(&operator.keys, &all, &mut numbers);
    operator.grow(operator.index.numbers());
    let number = |column: usize, row: usize| rest[column].as_primitive::<Int64Type>().value(row);
    for (row, &at) in numbers.iter().enumerate() {
        operator.groups[at as usize] = Group {
            rows: number(0, row),
            latest_us: number(1, row),
            given_us: number(2, row),
            is_given: rest[3].as_boolean().value(row),
            is_touched: false,
        };
        let mut bytes = rest[4].as_binary::<i32>().value(row);
        let decoded = operator.states.decode(&plan.groups, at, &mut bytes);
        decoded.filter(|()| bytes.is_empty()).ok_or_else(|| StateError::Corrupt("states of an aggregation".into()))?;
    }
    if let Some(ttl) = &mut operator.ttl {
        ttl.touch(&numbers, (0..numbers.len()).map(|row| number(1, row)));
    }
    operator.numbers = numbers;
    Ok(())
}
