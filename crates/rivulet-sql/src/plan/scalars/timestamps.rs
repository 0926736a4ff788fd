//! Arithmetic over times in whole units: `timestampdiff(unit, from, to)`, `timestampadd(unit, number, time)`; and the
//! local time of a zone: `to_local_time(time, zone)`.
//!
//! Months are added as in a calendar: the 31st becomes the last day of a shorter month. The difference is the greatest
//! number of units that, added to the first time, does not exceed the second.

use std::slice;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, TimestampMicrosecondArray, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, TimestampMicrosecondType};
use datafusion_common::{Result, exec_err, plan_err};
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use datafusion_functions::utils::make_scalar_function;

use super::date_format::{date_of, days_of};
use crate::value::TIMESTAMP;

const DAY_US: i64 = 86_400_000_000;

/// Times further away than this from 1970, about 250,000 years, have no local time, because the calendar below ends.
const ZONED_US_MAX: i64 = 8_000_000_000_000_000_000;

/// All these functions, for the catalog.
pub(super) fn timestamps() -> [Arc<ScalarUDF>; 3] {
    let arithmetic = |which: Which, operands: [DataType; 2]| {
        let [first, second] = operands;
        let signature = Signature::exact(vec![DataType::Utf8, first, second], Volatility::Immutable);
        Arc::new(ScalarUDF::from(Arithmetic { which, signature }))
    };
    let local = vec![TypeSignature::Exact(vec![TIMESTAMP]), TypeSignature::Exact(vec![TIMESTAMP, DataType::Utf8])];
    [
        arithmetic(Which::Difference, [TIMESTAMP, TIMESTAMP]),
        arithmetic(Which::Sum, [DataType::Int64, TIMESTAMP]),
        Arc::new(ScalarUDF::from(LocalTime { signature: Signature::one_of(local, Volatility::Immutable) })),
    ]
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A number of microseconds.
    Fixed(i64),
    /// A number of months.
    Months(i64),
}

/// Returns the unit of a name, which was checked when the call was read.
fn unit_named(name: &str) -> Option<Unit> {
    Some(match name {
        "microsecond" => Unit::Fixed(1),
        "millisecond" => Unit::Fixed(1_000),
        "second" => Unit::Fixed(1_000_000),
        "minute" => Unit::Fixed(60_000_000),
        "hour" => Unit::Fixed(3_600_000_000),
        "day" => Unit::Fixed(DAY_US),
        "week" => Unit::Fixed(7 * DAY_US),
        "month" => Unit::Months(1),
        "quarter" => Unit::Months(3),
        "year" => Unit::Months(12),
        _ => return None,
    })
}

impl Unit {
    /// Adds a number of units to a time; `None` if the result is out of range.
    fn added(self, number: i64, time_us: i64) -> Option<i64> {
        match self {
            Self::Fixed(us) => time_us.checked_add(number.checked_mul(us)?),
            Self::Months(months) => months_later(time_us, number.checked_mul(months)?),
        }
    }

    /// The greatest number of units that, added to `from`, does not exceed `to`; negative if `to` is earlier. `None` if
    /// the two are too far apart.
    fn between(self, from_us: i64, to_us: i64) -> Option<i64> {
        match self {
            Self::Fixed(us) => Some(to_us.checked_sub(from_us)? / us),
            Self::Months(_) if from_us > to_us => self.between(to_us, from_us)?.checked_neg(),
            Self::Months(months) => {
                let month = |time_us: i64| {
                    let (year, month, _) = date_of(time_us.div_euclid(DAY_US));
                    year * 12 + month
                };
                let whole = month(to_us) - month(from_us);
                let reached = months_later(from_us, whole).is_some_and(|reached| reached <= to_us);
                Some((whole - i64::from(!reached)) / months)
            }
        }
    }
}

/// The same day and time this many months later, or the last day of the month if the month is too short.
fn months_later(time_us: i64, months: i64) -> Option<i64> {
    let (days, of_day) = (time_us.div_euclid(DAY_US), time_us.rem_euclid(DAY_US));
    let (year, month, day) = date_of(days);
    let month = (year * 12 + month - 1).checked_add(months)?;
    let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
    // All values of a TIMESTAMP are within this.
    if year.abs() > 400_000 {
        return None;
    }
    let length = days_of(year, month + 1, 1) - days_of(year, month, 1);
    days_of(year, month, day.min(length)).checked_mul(DAY_US)?.checked_add(of_day)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    Difference,
    Sum,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Arithmetic {
    which: Which,
    signature: Signature,
}

impl ScalarUDFImpl for Arithmetic {
    fn name(&self) -> &str {
        match self.which {
            Which::Difference => "timestampdiff",
            Which::Sum => "timestampadd",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(match self.which {
            Which::Difference => DataType::Int64,
            Which::Sum => TIMESTAMP,
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [ColumnarValue::Scalar(unit), operands @ ..] = arguments.args.as_slice() else {
            return exec_err!("the unit of {} must be a constant", self.name());
        };
        let Some(unit) = unit.try_as_str().flatten().and_then(unit_named) else {
            return exec_err!("{unit} is no unit of {}", self.name());
        };
        make_scalar_function(|columns| self.computed(unit, columns), Vec::new())(operands)
    }
}

impl Arithmetic {
    fn computed(&self, unit: Unit, columns: &[ArrayRef]) -> Result<ArrayRef> {
        let [first, second] = columns else { return exec_err!("{} takes two operands", self.name()) };
        let (rows, times) = (second.len(), second.as_primitive::<TimestampMicrosecondType>());
        let is_there = |row: usize| first.is_valid(row) && second.is_valid(row);
        Ok(match self.which {
            Which::Difference => {
                let from = first.as_primitive::<TimestampMicrosecondType>();
                let of_row = |row: usize| match unit.between(from.value(row), times.value(row)) {
                    Some(number) => Ok(number),
                    None => exec_err!("the two times are too far apart"),
                };
                let numbers = (0..rows).map(|row| is_there(row).then(|| of_row(row)).transpose());
                Arc::new(numbers.collect::<Result<Int64Array>>()?)
            }
            Which::Sum => {
                let numbers = first.as_primitive::<Int64Type>();
                let of_row = |row: usize| match unit.added(numbers.value(row), times.value(row)) {
                    Some(time_us) => Ok(time_us),
                    None => exec_err!("the time that timestampadd gives is out of range"),
                };
                let found = (0..rows).map(|row| is_there(row).then(|| of_row(row)).transpose());
                Arc::new(found.collect::<Result<TimestampMicrosecondArray>>()?)
            }
        })
    }
}

/// Converts times to local times of a zone. A local time is a TIMESTAMP, which has no zone.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LocalTime {
    signature: Signature,
}

impl ScalarUDFImpl for LocalTime {
    fn name(&self) -> &str {
        "to_local_time"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(TIMESTAMP)
    }

    fn simplify(&self, mut arguments: Vec<Expr>, _context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match arguments.as_slice() {
            [_] => return Ok(ExprSimplifyResult::Simplified(arguments.remove(0))),
            [_, Expr::Literal(zone, _)] => {
                if let Some(zone) = zone.try_as_str().flatten()
                    && local(&TimestampMicrosecondArray::from(vec![0]), zone).is_err()
                {
                    return plan_err!("'{zone}' is no time zone; write for example 'Europe/Berlin' or '+01:00'");
                }
            }
            _ => return plan_err!("the zone of AT TIME ZONE and of to_local_time must be a constant"),
        }
        Ok(ExprSimplifyResult::Original(arguments))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (time, zone) = match arguments.args.as_slice() {
            [time] => return Ok(time.clone()),
            [time, ColumnarValue::Scalar(zone)] => (time, zone.try_as_str().flatten()),
            _ => return exec_err!("the zone of to_local_time must be a constant"),
        };
        let of_columns = |columns: &[ArrayRef]| -> Result<ArrayRef> {
            match (columns, zone) {
                ([times], Some(zone)) => local(times.as_primitive::<TimestampMicrosecondType>(), zone),
                ([times], None) => Ok(new_null_array(&TIMESTAMP, times.len())),
                _ => exec_err!("to_local_time takes one time"),
            }
        };
        make_scalar_function(of_columns, Vec::new())(slice::from_ref(time))
    }
}

/// Converts times in UTC to local times of a zone.
///
/// # Errors
///
/// The zone does not exist, or a time is out of range.
fn local(times: &TimestampMicrosecondArray, zone: &str) -> Result<ArrayRef> {
    let is_far = |time_us: &i64| time_us.unsigned_abs() > ZONED_US_MAX.unsigned_abs();
    if times.iter().flatten().any(|time_us| is_far(&time_us)) {
        return exec_err!("the time is out of range for a time zone");
    }
    let zoned = times.clone().with_timezone(zone);
    let field = |data_type: &DataType| Arc::new(Field::new("time", data_type.clone(), true));
    let (given, given_type) = (times.len(), zoned.data_type().clone());
    let found = datafusion_functions::datetime::to_local_time().invoke_with_args(ScalarFunctionArgs {
        args: vec![ColumnarValue::Array(Arc::new(zoned))],
        arg_fields: vec![field(&given_type)],
        number_rows: given,
        return_field: field(&TIMESTAMP),
        config_options: Arc::default(),
    })?;
    Ok(cast(&found.into_array(given)?, &TIMESTAMP)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn months_end_where_they_end() {
        let at = |year, month, day| days_of(year, month, day) * DAY_US + 5;
        assert_eq!(days_of(1970, 1, 1), 0);
        assert_eq!(Unit::Months(1).added(1, at(2026, 1, 31)), Some(at(2026, 2, 28)));
        assert_eq!(Unit::Months(1).added(-11, at(2025, 1, 31)), Some(at(2024, 2, 29)));
        assert_eq!(Unit::Months(12).added(1, at(2024, 2, 29)), Some(at(2025, 2, 28)));
        assert_eq!(Unit::Months(1).between(at(2026, 1, 31), at(2026, 2, 28)), Some(1));
        assert_eq!(Unit::Months(1).between(at(2026, 1, 31), at(2026, 2, 28) - 1), Some(0));
        assert_eq!(Unit::Months(1).between(at(2026, 3, 1), at(2026, 1, 2)), Some(-1));
        assert_eq!(Unit::Months(12).between(at(2024, 2, 29), at(2026, 2, 27)), Some(1));
        assert_eq!(Unit::Fixed(DAY_US).between(at(2026, 3, 1), at(2026, 2, 28) + 1), Some(0));
        assert_eq!(Unit::Months(1).added(i64::MAX, 0), None);
        assert_eq!(Unit::Fixed(1).between(i64::MIN, i64::MAX), None);
    }

    proptest! {
        #[test]
        fn a_date_is_that_of_its_day(days in -100_000_000_i64..100_000_000) {
            let (year, month, day) = date_of(days);
            prop_assert_eq!(days_of(year, month, day), days);
        }

        /// Follows the definition of the difference, independent of the calendar.
        #[test]
        fn a_difference_is_the_most_that_can_be_added(
            from_us in -4_000_000_000_000_000_i64..4_000_000_000_000_000,
            length_us in 0_i64..400_000_000_000_000,
            unit in prop::sample::select(vec!["second", "hour", "day", "week", "month", "quarter", "year"]),
        ) {
            let unit = unit_named(unit).unwrap();
            let number = unit.between(from_us, from_us + length_us).unwrap();
            prop_assert!(unit.added(number, from_us).unwrap() <= from_us + length_us);
            prop_assert!(unit.added(number + 1, from_us).unwrap() > from_us + length_us);
            prop_assert_eq!(unit.between(from_us + length_us, from_us), Some(-number));
        }
    }
}
