//! Small helpers for the tests of this crate.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema};
use rivulet_dataflow::{Batch, Context, Refusals, Slot, SlotTable};

/// A batch of rows given as (slot, time), where event time and arrival are the same; columns are named c0, c1, ...
pub(crate) fn batch(rows: &[(Slot, i64)], columns: Vec<ArrayRef>) -> Batch {
    let fields: Vec<Field> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| Field::new(format!("c{index}"), column.data_type().clone(), true))
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let columns = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options).unwrap();
    Batch::new(
        rows.iter().map(|row| row.0).collect(),
        rows.iter().map(|row| row.1).collect(),
        rows.iter().map(|row| row.1).collect(),
        columns,
    )
}

/// A slot table with one parameter; slot i has value i, query 100 + i.
pub(crate) fn parameter_table(name: &str, values: ArrayRef) -> SlotTable {
    let schema = Arc::new(Schema::new(vec![Field::new(name, values.data_type().clone(), true)]));
    let mut table = SlotTable::new(schema.clone());
    let queries: Vec<u64> = (0..values.len() as u64).map(|slot| 100 + slot).collect();
    table.add(&queries, &RecordBatch::try_new(schema, vec![values]).unwrap());
    table
}

/// A context at time 0.
pub(crate) fn process_context<'a>(
    slots: &'a SlotTable,
    refusals: &'a mut Refusals,
    output: &'a mut Vec<Batch>,
) -> Context<'a> {
    Context::new(0, slots, refusals, output)
}
