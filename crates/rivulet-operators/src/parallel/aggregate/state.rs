//! What belongs to the keys of an aggregation, and its export and import.
//!
//! A row of a frame is a key: `slot`, `key_group`, the key columns, the number of its `rows`, the `latest_us` of their
//! event times, the event time `given_us` of the emitted result, whether there is one (`is_given`), and the states as
//! bytes.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanArray, Int64Array, RecordBatch, UInt16Array, UInt32Array,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use rivulet_dataflow::{StateByKey, StateError, StateFrame, unmarked};

use super::plan::AggregatePlan;
use crate::aggregate::dense::RowSet;
use crate::paged::Paged;
use crate::parallel::groups::GroupStates;
use crate::parallel::groups::distinct::GroupValues;
use crate::parallel::keys::{BatchKeys, KeyIndex, key_hashes};
use crate::parallel::time_to_live::TimeToLive;

pub(super) const OPERATOR: &str = "keyed aggregate";
const VERSION: u32 = 1;
/// The key of the frame's metadata that says what the states mean.
const STATES: &str = "rivulet.states";

fn schema(plan: &AggregatePlan) -> SchemaRef {
    let leading = [Field::new("slot", DataType::UInt32, false), Field::new("key_group", DataType::UInt16, false)];
    let keys = plan.output.fields()[..plan.keys.len()].iter().map(|field| unmarked(field));
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
    keyed: &'a KeyedGroups,
    numbers: Vec<u32>,
    hashes: Vec<u16>,
    sets: Vec<Vec<GroupValues>>,
}

impl StateByKey for ExportedKeys<'_> {
    fn hashes(&self) -> &[u16] {
        &self.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let Self { keyed, sets, .. } = self;
        let plan = &keyed.plan;
        let numbers: Vec<u32> = rows.iter().map(|&row| self.numbers[row as usize]).collect();
        let (mut states, mut bytes) = (BinaryBuilder::new(), Vec::new());
        for &number in &numbers {
            bytes.clear();
            keyed.states.encode(&plan.groups, number, sets, &mut bytes);
            states.append_value(&bytes);
        }
        let groups = || numbers.iter().map(|&number| keyed.groups[number as usize]);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from_value(0, rows.len())), Arc::new(UInt16Array::from(self.hashes_of(rows)))];
        columns.extend(keyed.index.columns(&plan.keys, &numbers)?);
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.rows))));
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.latest_us))));
        columns.push(Arc::new(Int64Array::from_iter_values(groups().map(|group| group.given_us))));
        columns.push(Arc::new(groups().map(|group| Some(group.is_given)).collect::<BooleanArray>()));
        columns.push(Arc::new(states.finish()));
        Ok(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(schema(plan), columns)?))
    }
}

/// All keys, by number.
pub(super) struct KeyedGroups {
    plan: Arc<AggregatePlan>,
    pub(super) index: KeyIndex,
    pub(super) states: GroupStates,
    pub(super) groups: Paged<Group>,
    /// When keys are forgotten.
    pub(super) ttl: Option<TimeToLive>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Group {
    /// The number of rows less the number of retractions.
    pub(super) rows: i64,
    /// The latest event time of a row.
    pub(super) latest_us: i64,
    /// The event time of the emitted result.
    pub(super) given_us: i64,
    pub(super) is_given: bool,
    pub(super) is_touched: bool,
}

impl KeyedGroups {
    pub(super) fn new(plan: Arc<AggregatePlan>) -> Self {
        Self {
            index: plan.keys.index(0),
            states: plan.groups.states(),
            groups: Paged::new(),
            ttl: plan.spec.state_ttl_us.filter(|_| plan.keys.len() > 0).map(TimeToLive::new),
            plan,
        }
    }

    /// Makes room for as many keys.
    pub(super) fn grow(&mut self, groups: usize) {
        self.states.grow(&self.plan.groups, groups);
        self.groups.grow(groups, Group { latest_us: i64::MIN, ..Group::default() });
    }

    /// Forgets a key.
    pub(super) fn clear(&mut self, number: u32) {
        self.states.clear_group(&self.plan.groups, number);
        self.groups[number as usize] = Group { latest_us: i64::MIN, ..Group::default() };
        self.index.remove(number);
    }

    /// Memory held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.states.memory_bytes()
            + self.groups.memory_bytes()
            + self.ttl.as_ref().map_or(0, TimeToLive::memory_bytes)
    }

    /// The keys with their states, to be saved.
    pub(super) fn by_key(&self) -> Result<ExportedKeys<'_>, StateError> {
        let live = |number: &u32| {
            let group = &self.groups[*number as usize];
            group.rows != 0 || group.is_given
        };
        let numbers: Vec<u32> = (0..self.groups.len() as u32).filter(live).collect();
        let hashes = key_hashes(&self.index.columns(&self.plan.keys, &numbers)?, numbers.len())?;
        Ok(ExportedKeys { keyed: self, numbers, hashes, sets: self.states.distinct_values() })
    }

    /// Takes over saved keys.
    pub(super) fn import(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect(OPERATOR, VERSION)?;
        let expected = schema(&self.plan);
        let frame = &*self.plan.clone().groups.brought_up(frame, &expected)?;
        if frame.rows.schema() != expected {
            return Err(StateError::Mismatch("state of an aggregation with other keys or aggregates".into()));
        }
        let plan = self.plan.clone();
        let columns = frame.rows.columns();
        let (keys, rest) = columns[2..].split_at(plan.keys.len());
        if rest.iter().any(|column| column.null_count() > 0) {
            return Err(StateError::Corrupt("an aggregation without its states".into()));
        }
        let mut read = BatchKeys::default();
        read.read_keys(&plan.keys, keys)?;
        let all = RowSet::Range(0..frame.rows.num_rows());
        let mut numbers = Vec::new();
        self.index.assign(&read, &all, &mut numbers);
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
        if let Some(ttl) = &mut self.ttl {
            ttl.touch(&numbers, (0..numbers.len()).map(|row| number(1, row)));
        }
        Ok(())
    }
}
