//! The types in which values leave the engine, what two columns have in common, and casts.

use arrow::datatypes::{DataType, Field};
use datafusion_expr::{Expr, cast};
use rivulet_dataflow::common_marks;

use crate::value::{TIME, TIMESTAMP};

/// The type in which values of `data_type` leave the engine: one of the few types that formats know. `None` if there is
/// none.
pub(super) fn result_type(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Boolean => DataType::Boolean,
        DataType::Timestamp(..) => TIMESTAMP,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            DataType::Float64
        }
        number if number.is_integer() => DataType::Int64,
        number if number.is_floating() => DataType::Float64,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => DataType::Utf8,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => DataType::Utf8,
        DataType::Interval(_) | DataType::Duration(_) => DataType::Utf8,
        _ => return None,
    })
}

/// The type in which values of `data_type` leave a big query if no other type is declared: as in [`result_type`], but
/// decimals, dates and times of day keep their type.
pub(super) fn outgoing_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Decimal128(_, scale) if *scale >= 0 => Some(data_type.clone()),
        DataType::Date32 | DataType::Date64 => Some(DataType::Date32),
        DataType::Time32(_) | DataType::Time64(_) => Some(TIME),
        other => result_type(other),
    }
}

/// The column that holds the values of two columns without a loss, with the name of the first; `None` if there is none.
pub(super) fn common_field(one: Field, other: &Field) -> Option<Field> {
    match (one.data_type(), other.data_type()) {
        (found, of_other) if found == of_other => Some(common_marks(one, other)),
        (found, of_other) if found.is_numeric() && of_other.is_numeric() => Some(one.with_data_type(DataType::Float64)),
        _ => None,
    }
}

/// Casts `expression` from the type `from` to the type `to`.
pub(super) fn cast_to(expression: Expr, from: &DataType, to: &DataType) -> Expr {
    if from == to { expression } else { cast(expression, to.clone()) }
}
