//! Aggregates over the rows of a table that one event finds.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Float64Builder, Int64Builder, StringBuilder, UInt32Array, make_comparator,
};
use arrow::compute::{SortOptions, take};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion_common::{DataFusionError, Result, exec_err};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::canonical_float;

/// The longest text of one [`TableFunction::StringAgg`], in bytes.
pub const STRING_AGG_BYTES_MAX: usize = 1 << 20;
/// The most text of all events that are looked up together. If there is more, they are looked up in several pieces.
const TEXT_BYTES_MAX: usize = 1 << 30;

/// An aggregate function over the rows that one event finds, in their order. All functions skip nulls, and all but the
/// count return null when no value is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableFunction {
    /// `count(*)` without argument, `count(x)`.
    Count,
    /// `sum(x)`: BIGINT or DOUBLE, like its argument. An integer that leaves the range is an error.
    Sum,
    /// `avg(x)`: DOUBLE. For integers it is the exact sum divided by their number.
    Avg,
    /// `min(x)`; NaN is the greatest number.
    Min,
    /// `max(x)`; NaN is the greatest number.
    Max,
    /// `first_value(x)`: the value of the first row.
    First,
    /// `last_value(x)`: the value of the last row.
    Last,
    /// `string_agg(x, separator)` of a TEXT; at most [`STRING_AGG_BYTES_MAX`] bytes.
    StringAgg {
        /// What stands between two values.
        separator: String,
    },
}

/// An aggregate: a column of the result.
#[derive(Clone, Debug)]
pub struct TableAggregate {
    /// The name of the column.
    pub name: String,
    /// The function.
    pub function: TableFunction,
    /// Its argument, compiled against [`Lookup::evaluation_schema`](super::Lookup::evaluation_schema).
    pub argument: Option<Arc<dyn PhysicalExpr>>,
}

impl TableFunction {
    /// Returns the type of the result for an argument of this type; `None` if the function does not take it.
    pub fn result_type(&self, argument: Option<&DataType>) -> Option<DataType> {
        match (self, argument) {
            (Self::Count, _) => Some(DataType::Int64),
            (Self::Sum, Some(DataType::Int64)) => Some(DataType::Int64),
            (Self::Avg, Some(DataType::Int64)) => Some(DataType::Float64),
            (Self::Sum | Self::Avg, Some(DataType::Float64)) => Some(DataType::Float64),
            (Self::StringAgg { .. }, Some(DataType::Utf8)) => Some(DataType::Utf8),
            (Self::Min | Self::Max | Self::First | Self::Last, Some(found)) => Some(found.clone()),
            _ => None,
        }
    }

    /// Computes one result for each range of values. The ranges end at `ends`; the first begins at 0, and each other
    /// one at the end of the previous one.
    pub(super) fn compute(&self, values: Option<&ArrayRef>, ends: &[usize]) -> Result<ArrayRef> {
        let groups = || ends.iter().scan(0, |start, &end| Some(std::mem::replace(start, end)..end));
        let Some(values) = values else {
            return Ok(Arc::new(groups().map(|group| group.len() as i64).collect::<arrow::array::Int64Array>()));
        };
        let valid = |group: std::ops::Range<usize>| group.filter(|&row| values.is_valid(row));
        Ok(match (self, values.data_type()) {
            (Self::Count, _) => {
                Arc::new(groups().map(|group| valid(group).count() as i64).collect::<arrow::array::Int64Array>())
            }
            (Self::Sum, DataType::Int64) => {
                let numbers = values.as_primitive::<Int64Type>();
                let mut sums = Int64Builder::with_capacity(ends.len());
                for group in groups() {
                    let mut sum: Option<i64> = None;
                    for row in valid(group) {
                        let Some(next) = sum.unwrap_or(0).checked_add(numbers.value(row)) else {
                            return exec_err!("the sum leaves the range of BIGINT");
                        };
                        sum = Some(next);
                    }
                    sums.append_option(sum);
                }
                Arc::new(sums.finish())
            }
            (Self::Sum, _) => Arc::new(sums(values, groups(), |sum, _| sum)),
            (Self::Avg, DataType::Int64) => {
                let numbers = values.as_primitive::<Int64Type>();
                let average = |group| {
                    let numbers = valid(group).map(|row| i128::from(numbers.value(row)));
                    let (sum, count) = numbers.fold((0, 0), |(sum, count), number| (sum + number, count + 1));
                    (count > 0).then(|| canonical_float(sum as f64 / count as f64))
                };
                Arc::new(groups().map(average).collect::<Float64Array>())
            }
            (Self::Avg, _) => Arc::new(sums(values, groups(), |sum, count| sum / count as f64)),
            (Self::First, _) => chosen(values, groups().map(|group| valid(group).next()))?,
            (Self::Last, _) => chosen(values, groups().map(|group| valid(group).next_back()))?,
            (Self::Min | Self::Max, _) => {
                let compare = make_comparator(values, values, SortOptions::default())?;
                let best = |group| match self {
                    Self::Min => valid(group).min_by(|&one, &other| compare(one, other)),
                    _ => valid(group).max_by(|&one, &other| compare(one, other)),
                };
                chosen(values, groups().map(best))?
            }
            (Self::StringAgg { separator }, _) => {
                let texts = values.as_string::<i32>();
                let mut joined = StringBuilder::with_capacity(ends.len(), 0);
                let mut text = String::new();
                for group in groups() {
                    text.clear();
                    let mut is_first = true;
                    for row in valid(group) {
                        if !std::mem::take(&mut is_first) {
                            text.push_str(separator);
                        }
                        text.push_str(texts.value(row));
                        if text.len() > STRING_AGG_BYTES_MAX {
                            return exec_err!("the text of string_agg is longer than {STRING_AGG_BYTES_MAX} bytes");
                        }
                    }
                    if joined.values_slice().len() + text.len() > TEXT_BYTES_MAX {
                        return exec_err!("the texts of string_agg are longer than {TEXT_BYTES_MAX} bytes");
                    }
                    joined.append_option((!is_first).then_some(&text));
                }
                Arc::new(joined.finish())
            }
        })
    }
}

fn sums(
    values: &ArrayRef,
    groups: impl Iterator<Item = std::ops::Range<usize>>,
    finish: impl Fn(f64, usize) -> f64,
) -> Float64Array {
    let numbers = values.as_primitive::<Float64Type>();
    let mut results = Float64Builder::new();
    for group in groups {
        let (mut sum, mut count) = (0.0, 0);
        for row in group.filter(|&row| numbers.is_valid(row)) {
            sum += numbers.value(row);
            count += 1;
        }
        results.append_option((count > 0).then(|| canonical_float(finish(sum, count))));
    }
    results.finish()
}

/// The values at these rows.
fn chosen(values: &ArrayRef, rows: impl Iterator<Item = Option<usize>>) -> Result<ArrayRef, DataFusionError> {
    let rows: UInt32Array = rows.map(|row| row.map(|row| row as u32)).collect();
    Ok(take(values, &rows, None)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn nulls_are_skipped_and_nothing_gives_null() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a"), None]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(5), None, Some(2), None]));
        // Three values, no values, and one null value.
        let ends = [3, 3, 4];
        let of = |function: TableFunction, values: &ArrayRef| function.compute(Some(values), &ends).unwrap();
        let text = |values: [Option<&str>; 3]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
        assert_eq!(&of(TableFunction::StringAgg { separator: "+".into() }, &texts), &text([Some("b+a"), None, None]));
        assert_eq!(&of(TableFunction::Min, &texts), &text([Some("a"), None, None]));
        assert_eq!(&of(TableFunction::Max, &texts), &text([Some("b"), None, None]));
        assert_eq!(&of(TableFunction::Last, &texts), &text([Some("a"), None, None]));
        let number = |values: [Option<i64>; 3]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
        assert_eq!(&of(TableFunction::Sum, &numbers), &number([Some(7), None, None]));
        assert_eq!(&of(TableFunction::Count, &numbers), &number([Some(2), Some(0), Some(0)]));
        let average: ArrayRef = Arc::new(Float64Array::from(vec![Some(3.5), None, None]));
        assert_eq!(&of(TableFunction::Avg, &numbers), &average);
        let all = TableFunction::Count.compute(None, &ends).unwrap();
        assert_eq!(&all, &number([Some(3), Some(0), Some(1)]));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, 1]));
        assert!(TableFunction::Sum.compute(Some(&numbers), &[2]).is_err());
        let long = "x".repeat(STRING_AGG_BYTES_MAX);
        let texts: ArrayRef = Arc::new(StringArray::from(vec![long.as_str(), "y"]));
        assert!(TableFunction::StringAgg { separator: String::new() }.compute(Some(&texts), &[2]).is_err());
    }
}
