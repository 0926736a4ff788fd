//! How windows are saved.
//!
//! A row of a frame is a key in a pane or session: `slot`, `key_group`, the key columns, `window_start`, `window_end`,
//! `arrival_us`, `watermark_us` and the states as bytes. The watermark stands in every row, so that rows can be
//! selected freely. Closed panes that later windows need are panes like others; the watermark says which windows have
//! been emitted already. If the input may have retractions, the number of remaining rows stands behind the states of
//! their key.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt16Array,
    UInt32Array, new_empty_array,
};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimestampMicrosecondType};
use rivulet_dataflow::{StateByKey, StateError, StateFrame, unmarked};

use super::plan::WindowPlan;
use crate::parallel::groups::GroupStates;
use crate::parallel::groups::distinct::GroupValues;
use crate::parallel::keys::{BatchKeys, KeyIndex, key_hashes};

pub(super) const OPERATOR: &str = "keyed window";
const VERSION: u32 = 1;
/// The key of the frame's metadata that says what the states mean.
const STATES: &str = "rivulet.states";

/// The keys of one pane, or of all sessions.
pub(super) struct Part<'a> {
    pub(super) index: &'a KeyIndex,
    /// By row, the number of its key.
    pub(super) keys: Vec<u32>,
    pub(super) states: &'a GroupStates,
    /// By row, the number of its group. If it is empty, the row is the group.
    pub(super) groups: Vec<u32>,
    pub(super) sets: Vec<Vec<GroupValues>>,
    /// By group, if the input may have retractions: the number of remaining rows.
    pub(super) rows: &'a [i64],
    /// Start, end and latest arrival: of each row, or one entry for all rows.
    pub(super) windows: Vec<(i64, i64, i64)>,
}

/// The keys in panes or sessions.
pub(super) struct ExportedWindows<'a> {
    plan: &'a WindowPlan,
    watermark_us: i64,
    parts: Vec<Part<'a>>,
    /// For each row, its part and its index there.
    places: Vec<(u32, u32)>,
    hashes: Vec<u16>,
}

impl<'a> ExportedWindows<'a> {
    pub(super) fn new(plan: &'a WindowPlan, watermark_us: i64, parts: Vec<Part<'a>>) -> Result<Self, StateError> {
        let (mut places, mut hashes) = (Vec::new(), Vec::new());
        for (number, part) in (0u32..).zip(&parts) {
            places.extend((0..part.keys.len() as u32).map(|row| (number, row)));
            hashes.extend(key_hashes(&part.index.columns(&plan.keys, &part.keys)?, part.keys.len())?);
        }
        Ok(Self { plan, watermark_us, parts, places, hashes })
    }
}

impl StateByKey for ExportedWindows<'_> {
    fn hashes(&self) -> &[u16] {
        &self.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let plan = self.plan;
        let places: Vec<(u32, u32)> = rows.iter().map(|&row| self.places[row as usize]).collect();
        let mut keys: Vec<Vec<ArrayRef>> = vec![Vec::new(); plan.keys.len()];
        let (mut windows, mut states, mut bytes) = (Vec::with_capacity(rows.len()), BinaryBuilder::new(), Vec::new());
        for of_part in places.chunk_by(|one, other| one.0 == other.0) {
            let part = &self.parts[of_part[0].0 as usize];
            let numbers: Vec<u32> = of_part.iter().map(|&(_, row)| part.keys[row as usize]).collect();
            let columns = part.index.columns(&plan.keys, &numbers)?;
            keys.iter_mut().zip(columns).for_each(|(parts, column)| parts.push(column));
            for &(_, row) in of_part {
                let group = part.groups.get(row as usize).copied().unwrap_or(row);
                bytes.clear();
                part.states.encode(&plan.groups, group, &part.sets, &mut bytes);
                bytes.extend(part.rows.get(group as usize).iter().flat_map(|rows| rows.to_le_bytes()));
                states.append_value(&bytes);
                windows.push(*part.windows.get(row as usize).unwrap_or(&part.windows[0]));
            }
        }
        let schema = schema(plan);
        let times = |each: fn(&(i64, i64, i64)) -> i64| windows.iter().map(each);
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from_value(0, rows.len())), Arc::new(UInt16Array::from(self.hashes_of(rows)))];
        for (parts, field) in keys.iter().zip(&schema.fields()[2..]) {
            columns.push(match parts.is_empty() {
                true => new_empty_array(field.data_type()),
                false => concat(&parts.iter().map(|part| &**part).collect::<Vec<_>>())?,
            });
        }
        columns.push(Arc::new(TimestampMicrosecondArray::from_iter_values(times(|window| window.0))));
        columns.push(Arc::new(TimestampMicrosecondArray::from_iter_values(times(|window| window.1))));
        columns.push(Arc::new(Int64Array::from_iter_values(times(|window| window.2))));
        columns.push(Arc::new(Int64Array::from_value(self.watermark_us, rows.len())));
        columns.push(Arc::new(states.finish()));
        Ok(StateFrame::new(OPERATOR, VERSION, RecordBatch::try_new(schema, columns)?))
    }
}

fn schema(plan: &WindowPlan) -> SchemaRef {
    let leading = [Field::new("slot", DataType::UInt32, false), Field::new("key_group", DataType::UInt16, false)];
    let keys = plan.output.fields()[..plan.keys.len() + 2].iter().map(|field| unmarked(field));
    let rest = [
        Field::new("arrival_us", DataType::Int64, false),
        Field::new("watermark_us", DataType::Int64, false),
        Field::new("states", DataType::Binary, false),
    ];
    let fields: Vec<Field> = leading.into_iter().chain(keys).chain(rest).collect();
    let changes = if plan.spec.input_retracts { " over changes" } else { "" };
    let states = format!("{:?} {}{changes}", plan.spec.window, plan.groups.fingerprint());
    Arc::new(Schema::new_with_metadata(fields, [(STATES.to_owned(), states)].into()))
}

/// The rows of a checked frame.
pub(super) struct Restored<'a> {
    frame: Cow<'a, StateFrame>,
    pub(super) keys: BatchKeys,
    states_at: usize,
}

impl<'a> Restored<'a> {
    pub(super) fn new(plan: &WindowPlan, frame: &'a StateFrame) -> Result<Self, StateError> {
        let expected = schema(plan);
        let frame = plan.groups.brought_up(frame, &expected)?;
        frame.expect(OPERATOR, VERSION)?;
        if frame.rows.schema_ref() != &expected {
            return Err(StateError::Mismatch("state of windows with other keys, lengths or aggregates".into()));
        }
        let mut keys = BatchKeys::default();
        keys.read_keys(&plan.keys, &frame.rows.columns()[2..2 + plan.keys.len()])?;
        if frame.rows.columns()[2 + plan.keys.len()..].iter().any(|column| column.null_count() > 0) {
            return Err(StateError::Corrupt("a window without bounds or states".into()));
        }
        Ok(Self { frame, keys, states_at: 6 + plan.keys.len() })
    }

    pub(super) fn rows(&self) -> usize {
        self.frame.rows.num_rows()
    }

    /// Start, end, arrival and watermark of a row.
    pub(super) fn times(&self, row: usize) -> [i64; 4] {
        let time = |at: usize| self.frame.rows.column(at).as_primitive::<TimestampMicrosecondType>().value(row);
        let number = |at: usize| self.frame.rows.column(at).as_primitive::<Int64Type>().value(row);
        let first = self.states_at - 4;
        [time(first), time(first + 1), number(first + 2), number(first + 3)]
    }

    fn states(&self, row: usize) -> &[u8] {
        self.frame.rows.column(self.states_at).as_binary::<i32>().value(row)
    }

    /// Reads the states of a group, and returns the number of its remaining rows, if it is known.
    pub(super) fn decode(
        &self,
        plan: &WindowPlan,
        states: &mut GroupStates,
        group: u32,
        row: usize,
    ) -> Result<i64, StateError> {
        let mut bytes = self.states(row);
        let decoded = states.decode(&plan.groups, group, &mut bytes);
        let rows = match plan.spec.input_retracts {
            true => bytes.split_off(..8).and_then(|rows| Some(i64::from_le_bytes(rows.try_into().ok()?))),
            false => Some(0),
        };
        let rows = decoded.and(rows).filter(|_| bytes.is_empty());
        rows.ok_or_else(|| StateError::Corrupt("states of a window".into()))
    }
}
