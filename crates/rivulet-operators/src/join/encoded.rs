//! Rows of both sides as bytes: how they are kept, and how joined rows are built.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray, UInt8Array, new_null_array,
};
use arrow::datatypes::{DataType, Field, UInt8Type};
use arrow::error::ArrowError;
use arrow::row::Rows;
use rivulet_dataflow::{Batch, Context, InputIndex, OperatorError, Reason, Slot};

use super::plan::Plan;
use crate::keyed::key_fields;
use crate::row_bytes::RowBytes;

/// How many joined rows are emitted together.
const BATCH_ROWS: usize = 4_096;

/// From this many bytes on, fewer rows are emitted together. Far below 2 GiB, where the offsets of a column of text
/// end.
const BATCH_BYTES: usize = 4 << 20;

/// The encoders of one operator, and the encoded rows of the current batch.
pub(super) struct Encoded {
    key_bytes: RowBytes,
    key_rows: Rows,
    sides: [RowBytes; 2],
    side_rows: [Rows; 2],
    /// For each side, a row that is null in all columns.
    nulls: [Box<[u8]>; 2],
    /// For each row, whether a key is null. Empty if no key is null.
    null_keys: Vec<bool>,
    inputs: UInt8Array,
}

impl Encoded {
    pub(super) fn new(plan: &Plan) -> Self {
        let made = "the types were checked when the plan was made";
        let key_bytes = RowBytes::new(plan.key_types.iter()).expect(made);
        let sides = [0, 1].map(|side| RowBytes::exact(plan.side_types[side].iter()).expect(made));
        let side_rows = [0, 1].map(|side: usize| sides[side].buffer());
        let nulls = [0, 1].map(|side| {
            let mut row = sides[side].buffer();
            let columns: Vec<ArrayRef> = plan.side_types[side].iter().map(|one| new_null_array(one, 1)).collect();
            sides[side].encode(&columns, &mut row).expect(made);
            row.row(0).data().into()
        });
        let key_rows = key_bytes.buffer();
        let inputs = UInt8Array::from(Vec::<u8>::new());
        Self { key_bytes, key_rows, sides, side_rows, nulls, null_keys: Vec::new(), inputs }
    }

    /// Encodes the computed keys and the sides of a batch.
    pub(super) fn encode(&mut self, plan: &Plan, batch: &Batch, keys: &[ArrayRef]) -> Result<(), OperatorError> {
        self.inputs = batch
            .column(0)
            .as_primitive_opt::<UInt8Type>()
            .ok_or_else(|| OperatorError::new("rows of several inputs without their input"))?
            .clone();
        self.null_keys.clear();
        if keys.iter().any(|key| key.null_count() > 0) {
            self.null_keys.extend((0..batch.rows()).map(|row| keys.iter().any(|key| key.is_null(row))));
        }
        if !keys.is_empty() {
            self.key_bytes.encode(keys, &mut self.key_rows)?;
        }
        for (side, rows) in self.side_rows.iter_mut().enumerate() {
            let columns = plan.sides[side].columns.iter().map(|&column| batch.column(column).clone());
            self.sides[side].encode(&columns.collect::<Vec<_>>(), rows)?;
        }
        Ok(())
    }

    /// The input of a row.
    pub(super) fn input(&self, row: usize) -> InputIndex {
        self.inputs.value(row)
    }

    /// The key of a row; `None` if it is null, for null equals nothing.
    pub(super) fn key(&self, plan: &Plan, row: usize) -> Option<&[u8]> {
        if plan.key_types.is_empty() {
            return Some(&[]);
        }
        let is_null = self.null_keys.get(row) == Some(&true);
        (!is_null).then(|| self.key_rows.row(row).data())
    }

    /// The columns of one side of a row.
    pub(super) fn side(&self, side: usize, row: usize) -> &[u8] {
        self.side_rows[side].row(row).data()
    }

    /// A row of a side that stands for a missing partner: null in all columns.
    pub(super) fn null(&self, side: usize) -> &[u8] {
        &self.nulls[side]
    }

    /// A key that is null in all columns.
    pub(super) fn null_key(&self, plan: &Plan) -> Result<Box<[u8]>, ArrowError> {
        let mut row = self.key_bytes.buffer();
        let columns: Vec<ArrayRef> = plan.key_types.iter().map(|one| new_null_array(one, 1)).collect();
        self.key_bytes.encode(&columns, &mut row)?;
        Ok(row.row(0).data().into())
    }

    /// Decodes the columns of keys, for state.
    pub(super) fn decode_keys<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>, ArrowError> {
        self.key_bytes.decode(keys)
    }

    /// Decodes the columns of a side, for state.
    pub(super) fn decode_side<'a>(
        &self,
        side: usize,
        rows: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        self.sides[side].decode(rows)
    }

    /// Encodes the columns of state: keys and both sides.
    pub(super) fn encode_state(
        &self,
        keys: &[ArrayRef],
        sides: [&[ArrayRef]; 2],
    ) -> Result<(Rows, [Rows; 2]), ArrowError> {
        let mut key_rows = self.key_bytes.buffer();
        if !keys.is_empty() {
            self.key_bytes.encode(keys, &mut key_rows)?;
        }
        let mut side_rows = [0, 1].map(|side: usize| self.sides[side].buffer());
        for (side, rows) in side_rows.iter_mut().enumerate() {
            self.sides[side].encode(sides[side], rows)?;
        }
        Ok((key_rows, side_rows))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.key_bytes.memory_bytes()
            + self.key_rows.size()
            + self.sides.iter().map(RowBytes::memory_bytes).sum::<usize>()
            + self.side_rows.iter().map(Rows::size).sum::<usize>()
            + self.nulls.iter().map(|null| null.len()).sum::<usize>()
    }
}

/// The columns of a join's state, behind `slot` and `key_group`: the keys, the columns in `own`, and the columns of
/// both sides.
pub(super) fn state_fields(plan: &Plan, own: impl IntoIterator<Item = Field>) -> Vec<Field> {
    let named = |name: &'static str, types: &[DataType]| {
        let types = types.iter().enumerate();
        types.map(|(index, one)| Field::new(format!("{name}_{index}"), one.clone(), true)).collect::<Vec<_>>()
    };
    let mut fields = key_fields(&plan.key_types);
    fields.extend(own);
    fields.extend(named("left", &plan.side_types[0]));
    fields.extend(named("right", &plan.side_types[1]));
    fields
}

/// Joined rows that are collected for a batch.
#[derive(Default)]
pub(super) struct Joined {
    slots: Vec<Slot>,
    event_time_us: Vec<i64>,
    arrival_us: Vec<i64>,
    sides: [Cells; 2],
}

/// Encoded rows, end to end.
#[derive(Default)]
struct Cells {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Joined {
    /// Appends a row, and emits all rows once there are many.
    pub(super) fn push(
        &mut self,
        (slot, event_time_us, arrival_us): (Slot, i64, i64),
        sides: [&[u8]; 2],
        plan: &Plan,
        encoded: &Encoded,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        self.slots.push(slot);
        self.event_time_us.push(event_time_us);
        self.arrival_us.push(arrival_us);
        for (cells, bytes) in self.sides.iter_mut().zip(sides) {
            cells.bytes.extend_from_slice(bytes);
            cells.ends.push(cells.bytes.len());
        }
        let bytes: usize = self.sides.iter().map(|cells| cells.bytes.len()).sum();
        if self.slots.len() >= BATCH_ROWS || bytes >= BATCH_BYTES {
            self.finish(plan, encoded, context)
        } else {
            Ok(())
        }
    }

    /// Forgets rows that a failed call has left.
    pub(super) fn begin(&mut self) {
        if !self.slots.is_empty() {
            *self = Self::default();
        }
    }

    /// Emits all rows.
    pub(super) fn finish(
        &mut self,
        plan: &Plan,
        encoded: &Encoded,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        if self.slots.is_empty() {
            return Ok(());
        }
        // Taken before anything can fail: rows that cannot be decoded must not come out again.
        let Self { slots, event_time_us, arrival_us, mut sides } = std::mem::take(self);
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(plan.output.fields().len());
        for (side, cells) in sides.iter_mut().enumerate() {
            let starts = std::iter::once(0).chain(cells.ends.iter().copied());
            let rows = starts.zip(&cells.ends).map(|(start, &end)| &cells.bytes[start..end]);
            columns.extend(encoded.decode_side(side, rows)?);
            cells.bytes.clear();
            cells.ends.clear();
        }
        if plan.append_arrival_column {
            columns.push(Arc::new(TimestampMicrosecondArray::from(arrival_us.clone())));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(slots.len()));
        let columns = RecordBatch::try_new_with_options(plan.output.clone(), columns, &options)?;
        context.emit(Batch::new(slots.into(), event_time_us.into(), arrival_us.into(), columns));
        // Kept to reuse their memory.
        self.sides = sides;
        Ok(())
    }
}

/// Refuses a row of a join.
pub(super) fn refuse(
    batch: &Batch,
    row: usize,
    input: InputIndex,
    reason: Reason,
    detail: impl FnOnce() -> String,
    context: &mut Context<'_>,
) {
    context.refusals.refuse_row(Some(input), batch, row, reason, detail);
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use arrow::array::StringArray;
    use arrow::datatypes::Schema;
    use datafusion_physical_expr::PhysicalExpr;
    use rivulet_dataflow::{Refusals, SlotTable};

    use super::*;
    use crate::join::{Join, JoinKind, JoinSide, JoinSpec};
    use crate::testing::process_context;

    fn plan() -> Arc<Plan> {
        let side = |input: InputIndex| JoinSide { input, columns: vec![1] };
        let keys: Vec<Arc<dyn PhysicalExpr>> = vec![];
        let fields = vec![Field::new("input", DataType::UInt8, false), Field::new("text", DataType::Utf8, true)];
        let spec = JoinSpec {
            input: Arc::new(Schema::new(fields)),
            parameter_schema: Arc::new(Schema::empty()),
            parameters: vec![],
            sides: [side(0), side(1)],
            keys,
            kind: JoinKind::Latest { drives: [true, true] },
            keeps_unmatched: false,
            append_arrival_column: true,
        };
        Join::new(spec).unwrap().plan
    }

    /// The bytes of a row of a side with this text.
    fn bytes(encoded: &Encoded, text: &str) -> Vec<u8> {
        let mut rows = encoded.sides[0].buffer();
        encoded.sides[0].encode(&[Arc::new(StringArray::from(vec![text]))], &mut rows).unwrap();
        rows.row(0).data().to_vec()
    }

    #[test]
    fn rows_that_cannot_be_decoded_do_not_come_again() {
        let plan = plan();
        let (encoded, mut joined) = (Encoded::new(&plan), Joined::default());
        let (table, mut refusals, mut output) =
            (SlotTable::new(Arc::new(Schema::empty())), Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        let good = bytes(&encoded, "a");
        // Bytes that are no row make the decoder panic.
        joined.push((0, 1, 1), [&good, &[]], &plan, &encoded, &mut context).unwrap();
        let failed = catch_unwind(AssertUnwindSafe(|| joined.finish(&plan, &encoded, &mut context).is_err()));
        assert!(failed.unwrap_or(true));
        joined.push((0, 2, 2), [&good, &good], &plan, &encoded, &mut context).unwrap();
        joined.finish(&plan, &encoded, &mut context).unwrap();
        let times: Vec<_> = output.iter().map(|batch| batch.event_time_us.to_vec()).collect();
        assert_eq!(times, [[2]]);
    }

    #[test]
    fn long_rows_go_on_before_they_are_many() {
        let plan = plan();
        let (encoded, mut joined) = (Encoded::new(&plan), Joined::default());
        let (table, mut refusals, mut output) =
            (SlotTable::new(Arc::new(Schema::empty())), Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        let long = bytes(&encoded, &"x".repeat(1 << 20));
        for time_us in 0..9 {
            joined.push((0, time_us, 0), [&long, &long], &plan, &encoded, &mut context).unwrap();
        }
        joined.finish(&plan, &encoded, &mut context).unwrap();
        assert_eq!(output.iter().map(Batch::rows).collect::<Vec<_>>(), [2, 2, 2, 2, 1]);
    }
}
