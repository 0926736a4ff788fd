//! Converts columns of other types to the declared types.
//!
//! What must hold: a value that would not be the same in the declared type is refused, with its row, and never cut or
//! made null: a text that is no number, a number with a fraction as a whole number, a number that is too large. A
//! conversion that only loses precision is allowed: a large whole number or a decimal as a float, nanoseconds as
//! microseconds.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::cmp::eq;
use arrow::compute::{CastOptions, can_cast_types, cast_with_options, filter, is_not_null, is_null};
use arrow::datatypes::{DataType, Field, Float64Type, SchemaRef};
use rivulet_dataflow::{carried_type, held_type};

use crate::formats::{Part, as_json, texts_as_nested, type_of, unsuited};

/// A value that does not fit becomes null at first.
const CAST: CastOptions<'static> =
    CastOptions { safe: true, format_options: arrow::util::display::FormatOptions::new() };

/// Whether a column of a file may be read as a declared one.
pub(in crate::connector) fn is_readable(from: &DataType, declared: &Field) -> bool {
    match Part::of_column(declared) {
        Some(_) if *from == DataType::Utf8 => true,
        Some(part) => unsuited(from, &part, declared.name()).is_none(),
        None => is_possible(from, declared.data_type()),
    }
}

/// Whether some values of one type mean the same in the other. A number that is not a time is not converted to one, nor
/// the other way around: it does not say in which unit it counts.
pub(in crate::connector) fn is_possible(from: &DataType, to: &DataType) -> bool {
    let values_of = |data_type: &DataType| match data_type {
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        other => other.clone(),
    };
    let (from, to) = (&values_of(from), &values_of(to));
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let kinds_agree = match from {
        _ if from == to => true,
        // From a text, digits could be cut off unnoticed; a floating-point number is not the number that was written.
        _ if to.is_decimal() => from.is_decimal() || from.is_integer(),
        _ if *to == DataType::Date32 => matches!(from, DataType::Date64 | DataType::Timestamp(..)),
        _ if matches!(to, DataType::Time64(_)) => matches!(from, DataType::Time32(_) | DataType::Time64(_)),
        _ if is_text(from) || is_text(to) => true,
        DataType::Time32(_) | DataType::Time64(_) => false,
        DataType::Boolean => false,
        _ if from.is_numeric() => to.is_numeric(),
        _ if from.is_temporal() => to.is_temporal(),
        _ => false,
    };
    kinds_agree && can_cast_types(from, to)
}

/// Rows whose columns are being converted to the declared types.
#[derive(Debug)]
pub(in crate::connector) struct Converted {
    rows: usize,
    columns: Vec<ArrayRef>,
    /// The rows that stay; `None` if all do.
    keep: Option<BooleanBuffer>,
    /// Why rows are refused, and how many.
    refused: Vec<(String, u64)>,
}

impl Converted {
    /// Begins with this many rows and no column.
    pub(in crate::connector) fn new(rows: usize) -> Self {
        Self { rows, columns: Vec::new(), keep: None, refused: Vec::new() }
    }

    /// Converts a column to its declared type, as rows carry it, and adds it. Fails if there is no such conversion.
    pub(in crate::connector) fn push(&mut self, declared: &Field, column: &ArrayRef) -> Result<(), String> {
        let checked = self.checked(declared, column)?;
        let carried = cast_with_options(&checked, carried_type(declared.data_type()), &CAST);
        self.columns.push(carried.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// The column in its declared type; rows with values that would change are not retained.
    fn checked(&mut self, declared: &Field, column: &ArrayRef) -> Result<ArrayRef, String> {
        if let Some(held) = held_type(declared) {
            if let Some(texts) = column.as_string_opt::<i32>()
                && let Some((values, fits)) = texts_as_nested(texts, &held)
            {
                if fits.count_set_bits() < fits.len() {
                    self.retain(fits, || format!("field '{}': a text is not {}", declared.name(), type_of(declared)));
                }
                return Ok(values);
            }
            if let Some(part) = Part::of_column(declared) {
                return as_json(column, &part).map_err(|error| error.to_string());
            }
        }
        let (from, to) = (column.data_type(), declared.data_type());
        // These numbers are widened again later, and so lose nothing on the way.
        let to = if *to == DataType::Float32 { &DataType::Float64 } else { to };
        if from == to {
            return Ok(column.clone());
        }
        let failed = |error: arrow::error::ArrowError| error.to_string();
        let cast = cast_with_options(column, to, &CAST).map_err(failed)?;
        if cast.logical_null_count() > column.logical_null_count() {
            let fits = !&(is_null(&cast).map_err(failed)?.values() & is_not_null(column).map_err(failed)?.values());
            self.retain(fits, || format!("field '{}': a value of type {from} is no {to}", declared.name()));
        }
        if (from.is_floating() || from.is_decimal()) && to.is_integer() {
            let is_whole = match from.is_floating() {
                true => {
                    let floats = cast_with_options(column, &DataType::Float64, &CAST).map_err(failed)?;
                    floats.as_primitive::<Float64Type>().values().iter().map(|value| value.fract() == 0.0).collect()
                }
                // A whole number is the same number when converted back; a number with a fraction is not.
                false => {
                    let back = cast_with_options(&cast, from, &CAST).map_err(failed)?;
                    eq(&back, column).map_err(failed)?.values().clone()
                }
            };
            let fits = &is_whole | is_null(&cast).map_err(failed)?.values();
            self.retain(fits, || format!("field '{}': a number with a fraction is no {to}", declared.name()));
        }
        // A value with fewer digits or without a time of day is the same when converted back; otherwise something was
        // cut off.
        let is_cut = match to {
            DataType::Decimal128(_, to) => match from {
                DataType::Decimal32(_, from) | DataType::Decimal64(_, from) => from > to,
                DataType::Decimal128(_, from) | DataType::Decimal256(_, from) => from > to,
                _ => false,
            },
            DataType::Date32 => matches!(from, DataType::Timestamp(..) | DataType::Date64),
            _ => false,
        };
        if is_cut {
            let back = cast_with_options(&cast, from, &CAST).map_err(failed)?;
            let is_same = eq(&back, column).map_err(failed)?.values().clone();
            let fits = &is_same | is_null(&cast).map_err(failed)?.values();
            self.retain(fits, || format!("field '{}': a value of type {from} is no {to}", declared.name()));
        }
        Ok(cast)
    }

    /// Refuses rows with a null in a column that was added.
    pub(in crate::connector) fn refuse_nulls(&mut self, column: usize, name: &str) {
        if self.columns[column].logical_null_count() > 0 {
            let fits = is_not_null(&self.columns[column]).expect("any column tells where it is null");
            self.retain(fits.values().clone(), || format!("field '{name}' may not be null"));
        }
    }

    /// Keeps the rows that fit, of those that are left.
    fn retain(&mut self, fits: BooleanBuffer, why: impl FnOnce() -> String) {
        let before = self.keep.as_ref().map_or(self.rows, BooleanBuffer::count_set_bits);
        let keep = match &self.keep {
            Some(keep) => keep & &fits,
            None => fits,
        };
        let refused = before - keep.count_set_bits();
        if refused > 0 {
            self.refused.push((why(), refused as u64));
        }
        self.keep = Some(keep);
    }

    /// The rows that are left; `refuse` gets the reasons for the others with their numbers, each at least one.
    pub(in crate::connector) fn finish(self, schema: &SchemaRef, mut refuse: impl FnMut(String, u64)) -> RecordBatch {
        self.refused.into_iter().for_each(|(why, rows)| refuse(why, rows));
        let (rows, columns) = match self.keep {
            None => (self.rows, self.columns),
            Some(keep) => {
                let (rows, keep) = (keep.count_set_bits(), BooleanArray::from(keep));
                let kept = |column: &ArrayRef| filter(column, &keep).expect("one mark for each row");
                (rows, self.columns.iter().map(kept).collect())
            }
        };
        let count = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(schema), columns, &count)
            .expect("the declared types, and null only where it may be")
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Decimal128Array, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray, UInt64Array,
    };
    use arrow::datatypes::{Date32Type, Decimal128Type, Int64Type, Schema, TimeUnit};

    use super::*;

    /// The remaining values of a column declared BIGINT, and the reasons for the others.
    fn whole(column: ArrayRef) -> (Vec<Option<i64>>, Vec<(String, u64)>) {
        let field = Field::new("n", DataType::Int64, true);
        let mut converted = Converted::new(column.len());
        converted.push(&field, &column).unwrap();
        let mut refused = Vec::new();
        let rows = converted.finish(&Arc::new(Schema::new(vec![field])), |why, rows| refused.push((why, rows)));
        (rows.column(0).as_primitive::<Int64Type>().iter().collect(), refused)
    }

    #[test]
    fn what_does_not_fit_is_refused_and_null_stays_null() {
        let (left, refused) = whole(Arc::new(StringArray::from(vec![Some("7"), Some("abc"), None, Some("007")])));
        assert_eq!(left, [Some(7), None, Some(7)]);
        assert_eq!(refused, [("field 'n': a value of type Utf8 is no Int64".to_owned(), 1)]);
        let (left, refused) =
            whole(Arc::new(Float64Array::from(vec![Some(-0.0), Some(2.7), None, Some(1e300), Some(f64::NAN)])));
        assert_eq!(left, [Some(0), None]);
        assert_eq!(refused.iter().map(|(_, rows)| rows).sum::<u64>(), 3);
        assert!(refused.iter().any(|(why, rows)| why.contains("a fraction") && *rows == 1), "{refused:?}");
        let (left, refused) = whole(Arc::new(UInt64Array::from(vec![u64::MAX, 5])));
        assert_eq!((left, refused[0].1), (vec![Some(5)], 1));
        let decimals = Decimal128Array::from(vec![Some(250), Some(200), None]).with_precision_and_scale(10, 2).unwrap();
        assert_eq!(whole(Arc::new(decimals)).0, [Some(2), None]);
    }

    #[test]
    fn declared_types_that_keep_less_refuse_what_they_would_cut() {
        let rows = |declared: DataType, column: ArrayRef| {
            let field = Field::new("v", declared, true);
            let mut converted = Converted::new(column.len());
            converted.push(&field, &column).unwrap();
            let (mut refused, schema) = (0, Arc::new(rivulet_dataflow::carried(&Schema::new(vec![field]))));
            (converted.finish(&schema, |_, rows| refused += rows).column(0).clone(), refused)
        };
        let (column, refused) =
            rows(DataType::Int16, Arc::new(Int64Array::from(vec![Some(32_767), Some(32_768), None])));
        assert_eq!(column.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(32_767), None]);
        assert_eq!(refused, 1);
        let (column, refused) = rows(DataType::Float32, Arc::new(Float64Array::from(vec![0.1])));
        assert_eq!((column.as_primitive::<Float64Type>().value(0), refused), (0.1, 0));
        let decimals = Decimal128Array::from(vec![Some(12_500), Some(12_505), None]).with_precision_and_scale(10, 3);
        let (column, refused) = rows(DataType::Decimal128(5, 2), Arc::new(decimals.unwrap()));
        assert_eq!(column.as_primitive::<Decimal128Type>().iter().collect::<Vec<_>>(), [Some(1250), None]);
        assert_eq!(refused, 1);
        let times = TimestampMicrosecondArray::from(vec![86_400_000_000, 86_400_000_001]);
        let (column, refused) = rows(DataType::Date32, Arc::new(times));
        assert_eq!((column.as_primitive::<Date32Type>().values().as_ref(), refused), (&[1][..], 1));
        let decimal = DataType::Decimal128(5, 2);
        assert!(!is_possible(&DataType::Float64, &decimal) && !is_possible(&DataType::Utf8, &decimal));
        assert!(is_possible(&DataType::Int64, &decimal) && is_possible(&DataType::Date32, &DataType::Date32));
    }

    #[test]
    fn nulls_are_refused_where_they_may_not_be() {
        let field = Field::new("n", DataType::Int64, false);
        let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let mut converted = Converted::new(3);
        converted.push(&field, &column).unwrap();
        converted.refuse_nulls(0, "n");
        let mut refused = 0;
        let rows = converted.finish(&Arc::new(Schema::new(vec![field])), |_, rows| refused += rows);
        assert_eq!((rows.num_rows(), refused), (2, 1));
    }

    #[test]
    fn a_number_is_no_time() {
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        assert!(!is_possible(&DataType::Int64, &time) && !is_possible(&time, &DataType::Int64));
        assert!(
            !is_possible(&DataType::Int64, &DataType::Boolean) && !is_possible(&DataType::Boolean, &DataType::Float64)
        );
        assert!(is_possible(&DataType::Date32, &time) && is_possible(&DataType::Utf8, &time));
        assert!(is_possible(&DataType::Float64, &DataType::Int64) && is_possible(&time, &DataType::Utf8));
    }
}
