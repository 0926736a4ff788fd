//! Rows that wait in front of a sink that is not open, as a checkpoint has them: a state frame in base64. Sinks look at
//! nothing but the columns, so these have no times.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema, UInt32Type};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rivulet_dataflow::{Batch, StateError, StateFrame};

const KIND: &str = "rows that wait for a sink";
const VERSION: u32 = 1;

/// The rows of a batch as text.
pub(super) fn encode(batch: &Batch) -> Result<String, StateError> {
    let slots: ArrayRef = Arc::new(UInt32Array::new(batch.slots.clone(), None));
    let columns = [slots, Arc::new(UInt16Array::from(vec![0; batch.rows()]))];
    let own = [("slot", DataType::UInt32), ("key_group", DataType::UInt16)];
    let own = own.map(|(name, data_type)| Arc::new(Field::new(name, data_type, false)));
    let fields: Vec<_> = own.iter().chain(batch.columns.schema_ref().fields()).cloned().collect();
    let columns = columns.iter().chain(batch.columns.columns()).cloned().collect();
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?;
    Ok(BASE64_STANDARD.encode(StateFrame::new(KIND, VERSION, rows).to_bytes()?))
}

/// The rows in such a text.
///
/// # Errors
/// It is no such text, or of a later version.
pub(super) fn decode(text: &str) -> Result<Batch, StateError> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|error| StateError::Corrupt(error.to_string()))?;
    let frame = StateFrame::from_bytes(&bytes)?;
    frame.expect(KIND, VERSION)?;
    let slots = frame.rows.column(0).as_primitive::<UInt32Type>().values().clone();
    let columns = frame.rows.project(&(2..frame.rows.num_columns()).collect::<Vec<_>>())?;
    let times = vec![0; columns.num_rows()];
    Ok(Batch::new(slots, times.clone().into(), times.into(), columns))
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;

    use super::*;

    #[test]
    fn rows_come_back_as_they_were() {
        let schema = Arc::new(Schema::new(vec![Field::new("name", DataType::Utf8, true)]));
        let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        let columns = RecordBatch::try_new(schema, vec![names]).expect("a batch");
        let before = Batch::new(vec![7, 9].into(), vec![1, 2].into(), vec![3, 4].into(), columns);
        let text = encode(&before).expect("a text");
        let after = decode(&text).expect("rows");
        assert_eq!((after.slots, after.columns), (before.slots, before.columns));
        for wrong in ["", "?", &text[..40], &text.replace('A', "B")] {
            assert!(decode(wrong).is_err(), "{wrong}");
        }
    }
}
