//! Rows of given columns, to run what was planned from any bytes: few rows, the same each time, with nulls, extreme
//! numbers and equal keys among them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// The event time of the first row, in microseconds since the epoch.
pub(crate) const BEGIN_US: i64 = 1_766_275_200_000_000;

/// The time between two rows, in microseconds.
pub(crate) const STEP_US: i64 = 700_000;

const FLOATS: [Option<f64>; 7] = [Some(1.5), Some(-2.25), None, Some(0.0), Some(4096.0), Some(20.5), Some(-0.5)];
const INTEGERS: [Option<i64>; 7] = [Some(3), Some(100), Some(0), None, Some(-1), Some(7), Some(3)];
const TEXTS: [Option<&str>; 7] = [Some("a"), Some("b"), Some(""), Some("a"), None, Some("é\u{10348}"), Some("20.5")];
/// The numbers instead of these for [`Values::Ends`].
const FLOATS_AT_ENDS: [f64; 4] = [f64::MAX, f64::MIN, f64::MIN_POSITIVE, -0.0];
const INTEGERS_AT_ENDS: [i64; 4] = [i64::MAX, i64::MIN, i64::MIN + 1, -1];

/// The kind of values in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Values such as devices send; sums of them are exact.
    Usual,
    /// Values at which computations overflow.
    Ends,
}

/// Returns `count` rows of these columns; `None` if a column has a type that no source has. Columns declared without
/// nulls have none, and times only grow.
pub(crate) fn sample(schema: &SchemaRef, count: usize, values: Values) -> Option<RecordBatch> {
    let columns = schema.fields().iter().zip(0..).map(|(field, place)| column(field, place, count, values));
    let columns = columns.collect::<Option<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).ok()
}

fn column(field: &Field, place: usize, count: usize, values: Values) -> Option<ArrayRef> {
    // Makes columns of the same type differ.
    let rows = (0..count).map(|row| row * (1 + place % 3) + place);
    let is_at_end = |row: usize| values == Values::Ends && row.is_multiple_of(3);
    let is_required = !field.is_nullable();
    Some(match field.data_type() {
        DataType::Float64 => Arc::new(Float64Array::from_iter(rows.map(|row| match is_at_end(row) {
            true => Some(FLOATS_AT_ENDS[row % FLOATS_AT_ENDS.len()]),
            false => FLOATS[row % FLOATS.len()].or(is_required.then_some(2.0)),
        }))),
        DataType::Int64 => Arc::new(Int64Array::from_iter(rows.map(|row| match is_at_end(row) {
            true => Some(INTEGERS_AT_ENDS[row % INTEGERS_AT_ENDS.len()]),
            false => INTEGERS[row % INTEGERS.len()].or(is_required.then_some(2)),
        }))),
        DataType::Utf8 => Arc::new(StringArray::from_iter(
            rows.map(|row| TEXTS[row % TEXTS.len()].or(is_required.then_some("required"))),
        )),
        DataType::Boolean => Arc::new(BooleanArray::from_iter(
            rows.map(|row| [Some(true), Some(false), None][row % 3].or(is_required.then_some(true))),
        )),
        DataType::Timestamp(TimeUnit::Microsecond, None) => {
            Arc::new(TimestampMicrosecondArray::from_iter_values((0..count as i64).map(|row| BEGIN_US + row * STEP_US)))
        }
        _ => return None,
    })
}

/// Returns each row as text, without the digits of floating-point numbers: the last one may depend on the order in
/// which a sum is computed.
///
/// # Panics
///
/// If a column has a type that cannot be shown.
pub(crate) fn in_words(rows: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::new().with_null("null");
    let columns: Vec<ArrayFormatter<'_>> = rows
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column, &options).expect("every column can be shown"))
        .collect();
    let cell = |column: usize, row: usize| match rows.column(column).data_type() {
        DataType::Float64 if rows.column(column).is_valid(row) => "number".to_owned(),
        _ => columns[column].value(row).to_string(),
    };
    (0..rows.num_rows())
        .map(|row| (0..columns.len()).map(|column| cell(column, row)).collect::<Vec<_>>().join(" | "))
        .collect()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Schema;

    use super::*;

    #[test]
    fn rows_fit_their_columns() {
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        for (is_nullable, values) in [(true, Values::Usual), (false, Values::Usual), (false, Values::Ends)] {
            let types = [DataType::Float64, DataType::Int64, DataType::Utf8, DataType::Boolean, time.clone()];
            let fields = types.into_iter().enumerate();
            let fields = fields.map(|(place, of)| Field::new(format!("c{place}"), of, is_nullable));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            let rows = sample(&schema, 30, values).unwrap();
            assert_eq!(in_words(&rows).len(), 30);
        }
        assert_eq!(sample(&Arc::new(Schema::empty()), 3, Values::Usual).map(|rows| rows.num_rows()), Some(3));
        let unknown = Schema::new(vec![Field::new("c", DataType::Date32, true)]);
        assert!(sample(&Arc::new(unknown), 1, Values::Usual).is_none());
    }
}
