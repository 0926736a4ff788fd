//! DataFusion's `round(number, places)` and `trunc(number, places)` of DOUBLE, corrected where a power of ten is out of
//! range and the result would be infinite or lost: the number then stays as it is, or becomes 0 if it has fewer digits
//! than are cut off. And its `floor` and `ceil` of DECIMAL, whose results may have a digit more: `floor(-99.99)`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Float64Type, Int64Type};
use datafusion_common::Result;
use datafusion_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};

use crate::plan::wrapped::{Invoke, Wrapped};

/// Returns the function with its results kept in range.
pub(super) fn rounding(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    Wrapped::around(function, Rounding)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Rounding;

impl Invoke for Rounding {
    fn invoke(&self, function: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let [number, places] = args.args.as_slice() else { return function.invoke_with_args(args) };
        let (number, places) = (number.clone(), places.clone());
        let found = function.invoke_with_args(args)?.into_array(rows)?;
        let Some(rounded) = found.as_primitive_opt::<Float64Type>() else { return Ok(ColumnarValue::Array(found)) };
        if rounded.values().iter().all(|value| value.is_finite()) {
            return Ok(ColumnarValue::Array(found));
        }
        let number = cast(&number.into_array(rows)?, &DataType::Float64)?;
        let places = cast(&places.into_array(rows)?, &DataType::Int64)?;
        let (number, places) = (number.as_primitive::<Float64Type>(), places.as_primitive::<Int64Type>());
        let held = (0..rows).map(|row| {
            let is_lost = !rounded.value(row).is_finite() && number.value(row).is_finite();
            rounded.is_valid(row).then(|| match (is_lost, places.value(row) > 0) {
                (false, _) => rounded.value(row),
                (true, true) => number.value(row),
                (true, false) => 0.0,
            })
        });
        Ok(ColumnarValue::Array(Arc::new(held.collect::<Float64Array>()) as ArrayRef))
    }
}

/// Returns the function with room for all its results of decimals.
pub(super) fn to_whole(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    Wrapped::around(function, ToWhole)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToWhole;

/// The decimal with a digit more in front of the point, for a decimal with digits behind it.
fn wider(data_type: &DataType) -> Option<DataType> {
    match *data_type {
        DataType::Decimal128(precision @ ..38, scale @ 1..) => Some(DataType::Decimal128(precision + 1, scale)),
        _ => None,
    }
}

impl Invoke for ToWhole {
    fn invoke(&self, function: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let [number] = args.args.as_mut_slice()
            && let Some(wider) = wider(&number.data_type())
        {
            *number = number.cast_to(&wider, None)?;
        }
        function.invoke_with_args(args)
    }

    fn returns(&self, function: &ScalarUDF, args: ReturnFieldArgs) -> Result<FieldRef> {
        let found = function.return_field_from_args(args)?;
        Ok(match wider(found.data_type()) {
            Some(wider) => Arc::new(found.as_ref().clone().with_data_type(wider)),
            None => found,
        })
    }
}
