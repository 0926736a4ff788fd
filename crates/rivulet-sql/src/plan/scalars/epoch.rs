//! DataFusion's `to_timestamp(number)`, `to_timestamp_seconds`, `to_timestamp_millis` and `to_timestamp_micros`, for
//! numbers with a fraction. Their time is rounded to the next microsecond, half away from zero, as the readers of
//! formats do with the same number. DataFusion cuts it off, or leaves out the fraction altogether.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, TimestampMicrosecondArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Decimal128Type, FieldRef, Float64Type, TimeUnit, TimestampMicrosecondType};
use arrow::util::display::FormatOptions;
use datafusion_common::config::ConfigOptions;
use datafusion_common::{Result, ScalarValue, exec_datafusion_err};
use datafusion_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};
use datafusion_functions::datetime::{to_timestamp, to_timestamp_micros, to_timestamp_millis, to_timestamp_seconds};

use crate::plan::wrapped::{Invoke, Wrapped};
use crate::value::TIMESTAMP;

/// All these functions, for the catalog.
pub(super) fn from_epochs() -> [Arc<ScalarUDF>; 4] {
    let options = ConfigOptions::default();
    [
        (to_timestamp(&options), 6),
        (to_timestamp_seconds(&options), 6),
        (to_timestamp_millis(&options), 3),
        (to_timestamp_micros(&options), 0),
    ]
    .map(|(function, digits)| Wrapped::around(function, FromEpoch { digits }))
}

/// What is out of range is an error, and not null.
const STRICT: CastOptions<'static> = CastOptions { safe: false, format_options: FormatOptions::new() };

/// Reads numbers that have this many digits of microseconds behind the point.
#[derive(Debug, PartialEq, Eq, Hash)]
struct FromEpoch {
    digits: u8,
}

impl Invoke for FromEpoch {
    fn invoke(&self, function: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [number] = args.args.as_slice() else { return function.invoke_with_args(args) };
        if !has_fraction(&number.data_type()) {
            return function.invoke_with_args(args);
        }
        let is_constant = matches!(number, ColumnarValue::Scalar(_));
        let numbers = number.to_array(if is_constant { 1 } else { args.number_rows })?;
        let found = cast_with_options(&self.times(&numbers)?, args.return_field.data_type(), &STRICT)?;
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?),
            false => ColumnarValue::Array(found),
        })
    }

    fn returns(&self, function: &ScalarUDF, args: ReturnFieldArgs) -> Result<FieldRef> {
        let has_fraction = args.arg_fields.first().is_some_and(|number| has_fraction(number.data_type()));
        let found = function.return_field_from_args(args)?;
        Ok(match (has_fraction, found.data_type()) {
            (true, DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, _)) => {
                Arc::new(found.as_ref().clone().with_data_type(TIMESTAMP))
            }
            _ => found,
        })
    }
}

fn has_fraction(number: &DataType) -> bool {
    number.is_floating() || number.is_decimal()
}

impl FromEpoch {
    /// The times of floating point numbers or decimals.
    fn times(&self, numbers: &ArrayRef) -> Result<ArrayRef> {
        let far = || exec_datafusion_err!("the number is no time: it is out of range");
        let found: TimestampMicrosecondArray = if numbers.data_type().is_decimal() {
            let scaled = cast_with_options(numbers, &DataType::Decimal128(38, self.digits as i8), &STRICT)?;
            let time_us = |digits: i128| i64::try_from(digits).map_err(|_| far());
            scaled.as_primitive::<Decimal128Type>().try_unary::<_, TimestampMicrosecondType, _>(time_us)?
        } else {
            let unit_us = 10_f64.powi(i32::from(self.digits));
            let numbers = cast(numbers, &DataType::Float64)?;
            let numbers: &PrimitiveArray<Float64Type> = numbers.as_primitive();
            numbers.try_unary::<_, TimestampMicrosecondType, _>(|number| {
                let time_us = (number * unit_us).round();
                // These bounds are powers of two, which a floating point number can be.
                match (i64::MIN as f64..-(i64::MIN as f64)).contains(&time_us) {
                    true => Ok(time_us as i64),
                    false => Err(far()),
                }
            })?
        };
        Ok(Arc::new(found))
    }
}
