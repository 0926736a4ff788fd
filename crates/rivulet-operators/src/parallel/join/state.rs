//! Export and import of joins.
//!
//! A row of a frame is a row of a side: `slot`, `key_group`, `side` (0 left, 1 right), `event_time_us`, `arrival_us`,
//! `matches`, `watermark_us`, then the kept columns of left and those of right. The columns of the other side are null.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, UInt8Array, UInt16Array, UInt32Array,
    new_null_array,
};
use arrow::compute::concat_batches;
use arrow::compute::kernels::zip::zip;
use arrow::datatypes::{
    DataType, Field, Int64Type, Schema, SchemaRef, TimestampMicrosecondType, UInt8Type, UInt32Type,
};
use rivulet_dataflow::{StateByKey, StateError, StateFrame};

use super::plan::JoinPlan;
use super::side::{Heads, Side};
use crate::aggregate::dense::RowSet;
use crate::parallel::key_hashes;
use crate::parallel::keys::{BatchKeys, KeyIndex, NONE};

pub(super) const OPERATOR: &str = "keyed join";
const VERSION: u32 = 1;
/// The number of columns before those of the sides.
const LEADING: usize = 7;

fn schema(plan: &JoinPlan) -> SchemaRef {
    let leading = [
        ("slot", DataType::UInt32),
        ("key_group", DataType::UInt16),
        ("side", DataType::UInt8),
        ("event_time_us", DataType::Int64),
        ("arrival_us", DataType::Int64),
        ("matches", DataType::UInt32),
        ("watermark_us", DataType::Int64),
    ];
    let leading = leading.into_iter().map(|(name, data_type)| Field::new(name, data_type, false));
    let kept = [&plan.spec.left, &plan.spec.right].into_iter().zip(&plan.kept).zip(["left", "right"]);
    let kept = kept.flat_map(|((schema, kept), side)| {
        kept.iter().map(move |&column| {
            let field = schema.field(column);
            Field::new(format!("{side} {}", field.name()), field.data_type().clone(), true)
        })
    });
    let what = format!("{:?} {:?} {:?}", plan.spec.kind, plan.spec.keys, plan.spec.expiry);
    let metadata = [("rivulet.states".to_owned(), what)].into();
    Arc::new(Schema::new_with_metadata(leading.chain(kept).collect::<Vec<_>>(), metadata))
}

/// Which rows of a frame are of a side.
fn are_of(side: usize, frame: &StateFrame) -> BooleanArray {
    let sides = frame.rows.column(2).as_primitive::<UInt8Type>().iter();
    sides.map(|one| Some(one.is_some_and(|one| usize::from(one) == side))).collect()
}

/// Which rows of a frame all instances have.
pub(super) fn everywhere(plan: &JoinPlan, frame: &StateFrame) -> Option<BooleanArray> {
    let (side, _) = plan.everywhere.as_ref().filter(|_| frame.rows.schema() == schema(plan))?;
    Some(are_of(*side, frame))
}

/// The columns by which the rows of a frame are divided, each taken from the columns of its side.
pub(super) fn keys(plan: &JoinPlan, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
    if frame.rows.schema() != schema(plan) {
        return None;
    }
    let columns = frame.rows.columns();
    let is_left = are_of(0, frame);
    let place = |side: usize, column: usize| {
        let first = LEADING + if side == 0 { 0 } else { plan.kept[0].len() };
        plan.kept[side].binary_search(&column).ok().map(|at| &columns[first + at])
    };
    let key = |&(left, right): &(usize, usize)| zip(&is_left, place(0, left)?, place(1, right)?).ok();
    if let Some((side, divided_by)) = &plan.everywhere {
        return divided_by.iter().map(|&column| place(1 - side, column).cloned()).collect();
    }
    plan.spec.keys.iter().map(key).collect()
}

/// The rows of both sides of a join, or of the one that is divided among the instances.
pub(super) struct ExportedRows<'a> {
    plan: &'a JoinPlan,
    sides: &'a [Side; 2],
    watermark_us: i64,
    /// For each row, its side and its number there. All rows of the left side come first.
    places: Vec<(usize, u32)>,
    hashes: Vec<u16>,
}

impl<'a> ExportedRows<'a> {
    pub(super) fn new(
        plan: &'a JoinPlan,
        sides: &'a [Side; 2],
        watermark_us: i64,
        saves_everywhere: bool,
    ) -> Result<Self, StateError> {
        let (mut places, mut hashes) = (Vec::new(), Vec::new());
        for (number, side) in sides.iter().enumerate() {
            let divided_by = plan.divided_by(number);
            if divided_by.is_none() && !saves_everywhere {
                continue;
            }
            let live = side.store.live();
            let keys = divided_by.unwrap_or_default().iter();
            let keys = keys.filter_map(|key| plan.kept[number].binary_search(key).ok());
            let keys = keys.map(|column| side.store.column(column, &live)).collect::<Result<Vec<_>, _>>()?;
            hashes.extend(key_hashes(&keys, live.len())?);
            places.extend(live.into_iter().map(|row| (number, row)));
        }
        Ok(Self { plan, sides, watermark_us, places, hashes })
    }
}

impl StateByKey for ExportedRows<'_> {
    fn hashes(&self) -> &[u16] {
        &self.hashes
    }

    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError> {
        let plan = self.plan;
        let schema = schema(plan);
        let mut batches = Vec::new();
        for rows in rows.chunk_by(|&one, &other| self.places[one as usize].0 == self.places[other as usize].0) {
            let number = self.places[rows[0] as usize].0;
            let side = &self.sides[number];
            let numbers: Vec<u32> = rows.iter().map(|&row| self.places[row as usize].1).collect();
            let kept = side.store.columns(&numbers)?;
            let mut columns: Vec<ArrayRef> = vec![
                Arc::new(UInt32Array::from_value(0, rows.len())),
                Arc::new(UInt16Array::from(self.hashes_of(rows))),
                Arc::new(UInt8Array::from_value(number as u8, rows.len())),
                Arc::new(Int64Array::from_iter_values(numbers.iter().map(|&row| side.store.event_time_us(row)))),
                Arc::new(Int64Array::from_iter_values(numbers.iter().map(|&row| side.store.arrival_us(row)))),
                Arc::new(UInt32Array::from_iter_values(numbers.iter().map(|&row| side.rows[row as usize].matches))),
                Arc::new(Int64Array::from_value(self.watermark_us, rows.len())),
            ];
            let before = if number == 0 { 0 } else { plan.kept[0].len() };
            let places = LEADING..schema.fields().len();
            columns.extend(places.map(
                |place| match (place - LEADING).checked_sub(before).and_then(|at| kept.get(at)) {
                    Some(column) => column.clone(),
                    None => new_null_array(schema.field(place).data_type(), rows.len()),
                },
            ));
            batches.push(RecordBatch::try_new(schema.clone(), columns)?);
        }
        Ok(StateFrame::new(OPERATOR, VERSION, concat_batches(&schema, &batches)?))
    }
}

/// Takes over saved rows, and returns their watermark.
pub(super) fn import(
    plan: &JoinPlan,
    index: &mut KeyIndex,
    heads: &mut Heads,
    sides: &mut [Side; 2],
    frame: &StateFrame,
) -> Result<i64, StateError> {
    frame.expect(OPERATOR, VERSION)?;
    if frame.rows.schema() != schema(plan) {
        return Err(StateError::Mismatch("state of a join with other keys, columns or expiry".into()));
    }
    let columns = frame.rows.columns();
    if columns[..LEADING].iter().any(|column| column.null_count() > 0) {
        return Err(StateError::Corrupt("a row of a join without its times".into()));
    }
    let side_of = columns[2].as_primitive::<UInt8Type>();
    let number = |column: usize, row: usize| columns[column].as_primitive::<Int64Type>().value(row);
    let matches = columns[5].as_primitive::<UInt32Type>();
    let mut watermark_us = i64::MIN;
    for side in 0..2 {
        let first = LEADING + if side == 0 { 0 } else { plan.kept[0].len() };
        let kept = &columns[first..first + plan.kept[side].len()];
        let place_of = |column: &usize| plan.kept[side].binary_search(column).ok();
        let keys: Vec<ArrayRef> =
            plan.keys[side].places().iter().filter_map(place_of).map(|at| kept[at].clone()).collect();
        let key_columns: Vec<&ArrayRef> = keys.iter().collect();
        let mut read = BatchKeys::default();
        read.read_keys(&plan.keys[side], &keys)?;
        let all: Vec<u32> =
            (0..frame.rows.num_rows() as u32).filter(|&row| usize::from(side_of.value(row as usize)) == side).collect();
        let (mut rows, mut numbers) = (Vec::new(), Vec::new());
        sides[side].store.add(kept, &all, |row| (number(3, row), number(4, row)), &mut rows)?;
        for (&at, &row) in all.iter().zip(&rows) {
            let at = at as usize;
            let key = match plan.is_alone(&key_columns, at) {
                true => NONE,
                false => {
                    index.assign(&read, &RowSet::Range(at..at + 1), &mut numbers);
                    numbers[0]
                }
            };
            heads.grow(index.numbers(), [NONE; 2]);
            let time_us = |column: usize| {
                let times = kept[place_of(&column)?].as_primitive::<TimestampMicrosecondType>();
                times.is_valid(at).then(|| times.value(at))
            };
            let expires_us = plan.expires_us(side, number(3, at), time_us);
            sides[side].link(heads, row, key, expires_us, true);
            sides[side].rows[row as usize].matches = matches.value(at);
            watermark_us = watermark_us.max(number(6, at));
        }
    }
    Ok(watermark_us)
}
