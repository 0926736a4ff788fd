//! Typed access to the cells of a batch, for the encoders.

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int64Array,
    StringArray, Time64NanosecondArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::compute::{can_cast_types, cast};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int64Type, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, UInt64Type,
};

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell<'a> {
    /// No value.
    Null,
    /// `Boolean`.
    Boolean(bool),
    /// Signed integers.
    Int64(i64),
    /// Unsigned integers, which some functions and counts return.
    UInt64(u64),
    /// Floating point numbers, also those that are not finite.
    Float64(f64),
    /// Floating-point numbers of 32 bits.
    Float32(f32),
    /// The digits, and the number of digits behind the point.
    Decimal(i128, u32),
    /// Text.
    Text(&'a str),
    /// Microseconds since the epoch.
    Timestamp(i64),
    /// Days since the epoch.
    Date(i32),
    /// Nanoseconds since midnight.
    Time(i64),
}

/// A column of a batch, converted to one of a few types.
pub(crate) enum Cells {
    Boolean(BooleanArray),
    Int64(Int64Array),
    UInt64(UInt64Array),
    Float64(Float64Array),
    Float32(Float32Array),
    Decimal(Decimal128Array, u32),
    Text(StringArray),
    Timestamp(TimestampMicrosecondArray),
    Date(Date32Array),
    Time(Time64NanosecondArray),
}

/// The type in which cells of a column of type `data_type` are written; `None` if there is no way to write it.
///
/// A query's result may have types that no input column has (what functions return); they are written as the nearest
/// of the types that have a form of their own, or as Arrow prints them.
pub(crate) fn written_as(data_type: &DataType) -> Option<DataType> {
    use DataType::*;
    let microseconds = Timestamp(TimeUnit::Microsecond, None);
    let target = match data_type {
        Boolean => Boolean,
        Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 => Int64,
        UInt64 => UInt64,
        Float16 | Float64 => Float64,
        Float32 => Float32,
        Decimal128(precision, scale) if *scale >= 0 => Decimal128(*precision, *scale),
        Timestamp(..) => microseconds,
        Date32 | Date64 => Date32,
        Time32(_) | Time64(_) => Time64(TimeUnit::Nanosecond),
        _ => Utf8,
    };
    can_cast_types(data_type, &target).then_some(target)
}

impl Cells {
    /// The cells of `column`. A column that cannot be written, which an encoder refuses when it is made, is all null.
    pub(crate) fn new(column: &ArrayRef) -> Self {
        let target = written_as(column.data_type());
        let column = match target {
            Some(target) if target == *column.data_type() => column.clone(),
            Some(target) => {
                cast(column, &target).unwrap_or_else(|_| arrow::array::new_null_array(&target, column.len()))
            }
            None => arrow::array::new_null_array(&DataType::Utf8, column.len()),
        };
        match column.data_type() {
            DataType::Boolean => Self::Boolean(column.as_boolean().clone()),
            DataType::Int64 => Self::Int64(column.as_primitive::<Int64Type>().clone()),
            DataType::UInt64 => Self::UInt64(column.as_primitive::<UInt64Type>().clone()),
            DataType::Float64 => Self::Float64(column.as_primitive::<Float64Type>().clone()),
            DataType::Float32 => Self::Float32(column.as_primitive::<Float32Type>().clone()),
            DataType::Decimal128(_, scale) => {
                Self::Decimal(column.as_primitive::<Decimal128Type>().clone(), u32::try_from(*scale).unwrap_or(0))
            }
            DataType::Timestamp(..) => Self::Timestamp(column.as_primitive::<TimestampMicrosecondType>().clone()),
            DataType::Date32 => Self::Date(column.as_primitive::<Date32Type>().clone()),
            DataType::Time64(_) => Self::Time(column.as_primitive::<Time64NanosecondType>().clone()),
            _ => Self::Text(column.as_string::<i32>().clone()),
        }
    }

    /// The cell of `row`.
    #[inline]
    pub(crate) fn cell(&self, row: usize) -> Cell<'_> {
        match self {
            Self::Boolean(array) if array.is_valid(row) => Cell::Boolean(array.value(row)),
            Self::Int64(array) if array.is_valid(row) => Cell::Int64(array.value(row)),
            Self::UInt64(array) if array.is_valid(row) => Cell::UInt64(array.value(row)),
            Self::Float64(array) if array.is_valid(row) => Cell::Float64(array.value(row)),
            Self::Float32(array) if array.is_valid(row) => Cell::Float32(array.value(row)),
            Self::Decimal(array, scale) if array.is_valid(row) => Cell::Decimal(array.value(row), *scale),
            Self::Date(array) if array.is_valid(row) => Cell::Date(array.value(row)),
            Self::Time(array) if array.is_valid(row) => Cell::Time(array.value(row)),
            Self::Text(array) if array.is_valid(row) => Cell::Text(array.value(row)),
            Self::Timestamp(array) if array.is_valid(row) => Cell::Timestamp(array.value(row)),
            _ => Cell::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int32Array, NullArray, StringViewArray};

    use super::*;

    #[test]
    fn types_of_results_come_down_to_few() {
        let cell = |array: ArrayRef| format!("{:?}", Cells::new(&array).cell(0));
        assert_eq!(cell(Arc::new(Int32Array::from(vec![7]))), "Int64(7)");
        assert_eq!(cell(Arc::new(Float32Array::from(vec![0.5]))), "Float32(0.5)");
        assert_eq!(cell(Arc::new(StringViewArray::from(vec!["a"]))), "Text(\"a\")");
        assert_eq!(cell(Arc::new(Date32Array::from(vec![1]))), "Date(1)");
        assert_eq!(cell(Arc::new(NullArray::new(1))), "Null");
        assert_eq!(cell(Arc::new(Int64Array::from(vec![None, Some(1)]))), "Null");
    }
}
