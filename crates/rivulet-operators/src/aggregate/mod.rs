//! The aggregate functions of windows: names and types, states, and how states merge.
//!
//! Wherever the function allows it, a state is a few words beside its pane ([`fixed`]): a pane is then one piece of
//! memory, and a sliding window is a merge of adjacent words. Functions that must remember values (median, distinct
//! counts, text) keep an object beside the pane instead ([`object`]). [`plan`] decides which aggregates share states,
//! [`layout`] where states lie, and [`dense`] updates many states at once.

pub(crate) mod dense;
pub(crate) mod earlier;
pub(crate) mod finished;
pub(crate) mod fixed;
pub(crate) mod hyperloglog;
pub(crate) mod layout;
pub(crate) mod list;
pub(crate) mod migration;
pub(crate) mod object;
pub(crate) mod plan;

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Field, Int64Type, Schema};
use arrow::error::ArrowError;
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::marked_as_json;

use crate::PlanError;
use crate::expression::sql;

/// An aggregate function over the rows of a window.
///
/// All functions skip null arguments, and all but the counts give null when no value is left. Types and results are
/// those of DataFusion's functions of the same name, with two deliberate differences: a sum of integers outside the
/// range of BIGINT is an error and not a wrapped number, and `first` and `last` follow event time (among rows of one
/// event time, arrival).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AggregateFunction {
    /// `count(*)` without arguments, `count(x)`: rows, or rows where x is not null.
    Count,
    /// `count(DISTINCT x)`: exact.
    CountDistinct,
    /// `approx_distinct(x)`: HyperLogLog with 4096 registers (standard error 1.6 %), exact up to 256 values.
    ApproxDistinct,
    /// `sum(x)`: BIGINT of integers, DOUBLE of floating point numbers, DECIMAL of decimals.
    Sum,
    /// `avg(x)`: DOUBLE, and DECIMAL of decimals.
    Avg,
    /// `sum(DISTINCT x)`: the sum of the different values.
    SumDistinct,
    /// `avg(DISTINCT x)`: the mean of the different values, in the type of `avg`.
    AvgDistinct,
    /// `min(x)`; NaN is the greatest number.
    Min,
    /// `max(x)`; NaN is the greatest number.
    Max,
    /// `stddev(x)`, `stddev_samp(x)`: null for fewer than two values.
    StddevSamp,
    /// `stddev_pop(x)`.
    StddevPop,
    /// `var(x)`, `var_samp(x)`: null for fewer than two values.
    VarSamp,
    /// `var_pop(x)`.
    VarPop,
    /// `median(x)`: exact; DOUBLE, the mean of the two middle values of an even number.
    Median,
    /// `percentile_cont(x, p)`: exact, interpolated; p is a constant or parameter from 0 to 1.
    PercentileCont,
    /// `covar_samp(y, x)`.
    CovarSamp,
    /// `covar_pop(y, x)`.
    CovarPop,
    /// `corr(y, x)`: Pearson's correlation.
    Corr,
    /// `regr_slope(y, x)` of the least squares line.
    RegrSlope,
    /// `regr_intercept(y, x)` of the least squares line.
    RegrIntercept,
    /// `regr_r2(y, x)`: the coefficient of determination.
    RegrR2,
    /// `first_value(x)`: the value with the earliest event time.
    FirstValue,
    /// `last_value(x)`: the value with the latest event time.
    LastValue,
    /// `kalman(x, q, r)`: the estimate of a scalar Kalman filter, for each row after its value; q is the variance of
    /// the process, r that of the measurement, both constants above 0. The first estimate is 0 with a variance of 30.
    /// Values that are null, NaN or infinite are missing.
    Kalman,
    /// `avg_last(x, n)`: the mean of the last n values, 1 to [`LAST_VALUES_MAX`]. Values that are null, NaN or infinite
    /// are missing.
    AvgLast,
    /// `bool_and(x)`.
    BoolAnd,
    /// `bool_or(x)`.
    BoolOr,
    /// `bit_and(x)`: of integers.
    BitAnd,
    /// `bit_or(x)`: of integers.
    BitOr,
    /// `bit_xor(x)`: of integers.
    BitXor,
    /// `array_agg(x)`: the values as an array in JSON, in order of event time or of keys. The argument is the value in
    /// JSON. A second argument may be the key, which is `Binary` and ordered byte by byte. At most 1 MiB.
    ArrayAgg,
    /// `array_agg(DISTINCT x)`: each different value once, in order of keys, which depend on the value alone.
    ArrayAggDistinct,
    /// `string_agg(x, separator)`: texts joined by a separator, which is a constant or parameter. Order, key and bound
    /// are those of `array_agg`.
    StringAgg,
    /// `string_agg(DISTINCT x, separator)`: order and key are those of `array_agg(DISTINCT x)`.
    StringAggDistinct,
}

/// Every function and its SQL name. Names with a space cannot be written: they are of calls with DISTINCT.
const NAMES: [(AggregateFunction, &str); 34] = [
    (AggregateFunction::Count, "count"),
    (AggregateFunction::CountDistinct, "count distinct"),
    (AggregateFunction::ApproxDistinct, "approx_distinct"),
    (AggregateFunction::Sum, "sum"),
    (AggregateFunction::Avg, "avg"),
    (AggregateFunction::SumDistinct, "sum distinct"),
    (AggregateFunction::AvgDistinct, "avg distinct"),
    (AggregateFunction::Min, "min"),
    (AggregateFunction::Max, "max"),
    (AggregateFunction::StddevSamp, "stddev_samp"),
    (AggregateFunction::StddevPop, "stddev_pop"),
    (AggregateFunction::VarSamp, "var_samp"),
    (AggregateFunction::VarPop, "var_pop"),
    (AggregateFunction::Median, "median"),
    (AggregateFunction::PercentileCont, "percentile_cont"),
    (AggregateFunction::CovarSamp, "covar_samp"),
    (AggregateFunction::CovarPop, "covar_pop"),
    (AggregateFunction::Corr, "corr"),
    (AggregateFunction::RegrSlope, "regr_slope"),
    (AggregateFunction::RegrIntercept, "regr_intercept"),
    (AggregateFunction::RegrR2, "regr_r2"),
    (AggregateFunction::FirstValue, "first_value"),
    (AggregateFunction::LastValue, "last_value"),
    (AggregateFunction::Kalman, "kalman"),
    (AggregateFunction::AvgLast, "avg_last"),
    (AggregateFunction::BoolAnd, "bool_and"),
    (AggregateFunction::BoolOr, "bool_or"),
    (AggregateFunction::BitAnd, "bit_and"),
    (AggregateFunction::BitOr, "bit_or"),
    (AggregateFunction::BitXor, "bit_xor"),
    (AggregateFunction::ArrayAgg, "array_agg"),
    (AggregateFunction::ArrayAggDistinct, "array_agg distinct"),
    (AggregateFunction::StringAgg, "string_agg"),
    (AggregateFunction::StringAggDistinct, "string_agg distinct"),
];

impl AggregateFunction {
    /// Every function.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        NAMES.iter().map(|(function, _)| *function)
    }

    /// Returns the function over distinct values only, for a call with DISTINCT; `None` if there is none.
    pub fn over_distinct(self) -> Option<Self> {
        match self {
            Self::Count => Some(Self::CountDistinct),
            Self::Sum => Some(Self::SumDistinct),
            Self::Avg => Some(Self::AvgDistinct),
            Self::ArrayAgg => Some(Self::ArrayAggDistinct),
            Self::StringAgg => Some(Self::StringAggDistinct),
            // For these functions DISTINCT does not change the result.
            Self::Min
            | Self::Max
            | Self::BoolAnd
            | Self::BoolOr
            | Self::BitAnd
            | Self::BitOr
            | Self::ApproxDistinct => Some(self),
            _ => None,
        }
    }

    /// Whether the function can give a result when rows are retracted.
    pub fn takes_back(self) -> bool {
        !matches!(
            self,
            Self::ApproxDistinct
                | Self::CovarSamp
                | Self::CovarPop
                | Self::Corr
                | Self::RegrSlope
                | Self::RegrIntercept
                | Self::RegrR2
                | Self::Kalman
                | Self::AvgLast
        )
    }

    /// Whether the function follows rows one by one in their order, so that groups of rows cannot be merged. It stands
    /// over rows that wait for their turn and stay ([`KeyedOver::waits`](crate::parallel::KeyedOver::waits)).
    pub fn is_sequence(self) -> bool {
        matches!(self, Self::Kalman | Self::AvgLast)
    }

    /// Whether this is the DISTINCT form of a function: SQL calls it by the name of the other form.
    pub fn is_over_distinct(self) -> bool {
        matches!(
            self,
            Self::CountDistinct
                | Self::SumDistinct
                | Self::AvgDistinct
                | Self::ArrayAggDistinct
                | Self::StringAggDistinct
        )
    }

    /// Whether the result is a list of all values.
    pub fn is_list(self) -> bool {
        self.gives_json() || matches!(self, Self::StringAgg | Self::StringAggDistinct)
    }

    /// Whether the result depends on the event times of rows.
    pub fn goes_by_time(self) -> bool {
        matches!(self, Self::FirstValue | Self::LastValue | Self::ArrayAgg | Self::StringAgg)
    }

    /// Whether the result is JSON as text.
    pub fn gives_json(self) -> bool {
        matches!(self, Self::ArrayAgg | Self::ArrayAggDistinct)
    }

    /// Whether the result is one of the values.
    pub fn gives_one_value(self) -> bool {
        matches!(self, Self::FirstValue | Self::LastValue | Self::Min | Self::Max)
    }

    /// Writes a call of the function with these arguments, as in SQL.
    pub fn call(self, arguments: &str) -> String {
        match self.name().split_once(' ') {
            Some((name, _)) => format!("{name}(DISTINCT {arguments})"),
            None => format!("{self}({arguments})"),
        }
    }

    /// Returns the function with this SQL name, in any case. `count(DISTINCT x)` has no name of its own: use
    /// [`AggregateFunction::over_distinct`] if the parser says DISTINCT.
    pub fn from_name(name: &str) -> Option<Self> {
        let written = name.to_ascii_lowercase();
        let name = match written.as_str() {
            "mean" => "avg",
            "stddev" => "stddev_samp",
            "var" | "var_sample" => "var_samp",
            "var_population" => "var_pop",
            "quantile_cont" => "percentile_cont",
            "covar" => "covar_samp",
            "listagg" => "string_agg",
            name if name.contains(' ') => return None,
            name => name,
        };
        NAMES.iter().find(|(_, known)| *known == name).map(|(function, _)| *function)
    }

    /// The SQL name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// Returns the type of the result for arguments of these types, or what is wrong with them.
    ///
    /// Numbers are integers of up to 64 bits (unsigned: 32), floating point numbers and decimals of up to
    /// [`DECIMAL_DIGITS`]; `min`, `max`, `first_value`, `last_value` and the distinct counts also take text, booleans,
    /// timestamps, dates and times of day.
    pub fn result_type(self, arguments: &[DataType]) -> Result<DataType, PlanError> {
        let (expected, example) = match self {
            // count(*) is count without arguments. Both forms are one function.
            Self::Count => (arguments.len().min(1), "count(*)"),
            Self::PercentileCont => (2, "percentile_cont(value, 0.95)"),
            Self::CovarSamp | Self::CovarPop => (2, "covar_samp(y, x)"),
            Self::Corr => (2, "corr(y, x)"),
            Self::Kalman => (3, "kalman(value, 0.125, 0.32)"),
            Self::AvgLast => (2, "avg_last(value, 5)"),
            Self::RegrSlope | Self::RegrIntercept | Self::RegrR2 => (2, "regr_slope(y, x)"),
            // With or without a key.
            Self::ArrayAgg | Self::ArrayAggDistinct => (arguments.len().clamp(1, 2), "array_agg(value)"),
            Self::StringAgg | Self::StringAggDistinct => (arguments.len().clamp(2, 3), "string_agg(name, ', ')"),
            _ => (1, "avg(value)"),
        };
        if arguments.len() != expected {
            return Err(PlanError::ArgumentCount { function: self.name(), expected, found: arguments.len(), example });
        }
        let wrong = |found: &DataType, hint: &'static str| PlanError::ArgumentType {
            function: self.name(),
            found: found.to_string(),
            hint,
        };
        let check = |accepted: fn(Storage) -> bool, hint: &'static str| {
            let refused = arguments.iter().find(|found| !Storage::of_argument(found).is_some_and(accepted));
            refused.map_or(Ok(()), |found| Err(wrong(found, hint)))
        };
        let number = |storage: Storage| matches!(storage, Storage::Float | Storage::Integer);
        // The mean of decimals has a few more digits, as far as there is room.
        if let (
            Self::Avg | Self::AvgDistinct,
            Some(&DataType::Decimal128(precision @ 1..=DECIMAL_DIGITS, scale @ 0..)),
        ) = (self, arguments.first())
        {
            let more = (DECIMAL_DIGITS - precision).min(4);
            return Ok(DataType::Decimal128(precision + more, scale + more as i8));
        }
        Ok(match self {
            Self::Count => DataType::Int64,
            Self::CountDistinct => {
                check(|_| true, "count numbers, text, booleans or times")?;
                DataType::Int64
            }
            Self::ApproxDistinct => {
                check(|_| true, "count numbers, text, booleans or times")?;
                DataType::UInt64
            }
            Self::Sum | Self::SumDistinct => {
                check(number, "cast the argument to DOUBLE or BIGINT")?;
                match (Storage::of(&arguments[0]), &arguments[0]) {
                    (_, DataType::Decimal128(_, scale)) => DataType::Decimal128(DECIMAL_DIGITS, *scale),
                    (Some(Storage::Integer), _) => DataType::Int64,
                    _ => DataType::Float64,
                }
            }
            Self::Min | Self::Max | Self::FirstValue | Self::LastValue => {
                check(|_| true, "cast the argument to DOUBLE, BIGINT, TEXT, BOOLEAN or TIMESTAMP")?;
                arguments[0].clone()
            }
            Self::BitAnd | Self::BitOr | Self::BitXor => {
                let hint = "cast the argument to BIGINT";
                check(|storage| storage == Storage::Integer, hint)?;
                // The digits of a decimal are no number of their own.
                match &arguments[0] {
                    decimal @ DataType::Decimal128(..) => return Err(wrong(decimal, hint)),
                    _ => DataType::Int64,
                }
            }
            Self::BoolAnd | Self::BoolOr => {
                check(|storage| storage == Storage::Boolean, "write a condition, for example value > 3")?;
                DataType::Boolean
            }
            Self::ArrayAgg | Self::ArrayAggDistinct | Self::StringAgg | Self::StringAggDistinct => {
                let is_other = |argument: &&DataType| {
                    **argument != DataType::Binary && Storage::of(argument) != Some(Storage::Text)
                };
                match arguments.iter().find(is_other) {
                    None => DataType::Utf8,
                    Some(found) => return Err(wrong(found, "convert it with CAST(... AS TEXT)")),
                }
            }
            _ => {
                check(number, "cast the argument to DOUBLE")?;
                DataType::Float64
            }
        })
    }
}

impl fmt::Display for AggregateFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An aggregate of a window: a column of its output.
#[derive(Clone, Debug)]
pub struct AggregateSpec {
    /// The name of the output column.
    pub name: String,
    /// The function.
    pub function: AggregateFunction,
    /// Its arguments, compiled against [`Expressions::evaluation_schema`](crate::Expressions::evaluation_schema).
    pub arguments: Vec<Arc<dyn PhysicalExpr>>,
    /// `FILTER (WHERE ...)`: only rows for which this is true count.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
}

impl AggregateSpec {
    /// The column of its results, for input rows with the columns of `schema`. A list has the mark of its values, and
    /// one of the values has theirs.
    pub(crate) fn result_field(&self, data_type: DataType, schema: &Schema) -> Field {
        let field = Field::new(&self.name, data_type, true);
        let values = self.arguments.first().map(|value| value.return_field(schema));
        if self.function.gives_one_value() {
            return match values {
                Some(Ok(value)) => field.with_metadata(value.metadata().clone()),
                _ => field,
            };
        }
        match values.filter(|_| self.function.gives_json()) {
            Some(Ok(value)) => marked_as_json(field).with_metadata(value.metadata().clone()),
            Some(Err(_)) => marked_as_json(field),
            None => field,
        }
    }

    /// The call as `EXPLAIN` shows it.
    pub(crate) fn text(&self) -> String {
        let arguments: Vec<String> = self.arguments.iter().map(sql).collect();
        let mut text = match (self.function, arguments.is_empty()) {
            (function, _) if function.is_over_distinct() => function.call(&arguments.join(", ")),
            (function, true) => format!("{function}(*)"),
            (function, false) => format!("{function}({})", arguments.join(", ")),
        };
        if let Some(filter) = &self.filter {
            text.push_str(&format!(" FILTER (WHERE {})", sql(filter)));
        }
        text
    }
}

/// The most values that `avg_last` keeps.
pub const LAST_VALUES_MAX: usize = 8;

/// The most digits of decimals that are aggregated. This many digits always fit 64 bits.
pub const DECIMAL_DIGITS: u8 = 18;

/// Converts a column of arguments to the form in which states keep values, `target`. Of a decimal this is its digits.
pub(crate) fn kept(column: &ArrayRef, target: &DataType) -> Result<ArrayRef, ArrowError> {
    match (column.data_type(), target) {
        (from, to) if from == to => Ok(column.clone()),
        (DataType::Decimal128(..), DataType::Int64) => {
            let too_long = |_| ArrowError::ComputeError("a decimal of more than 18 digits".into());
            let digits = column.as_primitive::<Decimal128Type>();
            let kept: Int64Array = digits.try_unary(|digits| i64::try_from(digits).map_err(too_long))?;
            Ok(Arc::new(kept))
        }
        (_, to) => cast(column, to),
    }
}

/// Converts a column of results from the form of states to its type.
pub(crate) fn given(column: ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    match (column.data_type(), data_type) {
        (from, to) if from == to => Ok(column),
        (DataType::Int64, DataType::Decimal128(precision, scale)) => {
            let digits: Decimal128Array = column.as_primitive::<Int64Type>().unary(i128::from);
            Ok(Arc::new(digits.with_precision_and_scale(*precision, *scale)?))
        }
        (_, to) => cast(&column, to),
    }
}

/// The form in which values of a type are kept in states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// As the bits of a 64-bit floating point number.
    Float,
    /// As a 64-bit integer.
    Integer,
    /// As the integer 0 or 1.
    Boolean,
    /// As a 64-bit integer in the unit of its type.
    Time,
    /// As text, outside the words.
    Text,
}

impl Storage {
    pub(crate) fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Float16 | DataType::Float32 | DataType::Float64 => Some(Self::Float),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Some(Self::Integer),
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => Some(Self::Integer),
            DataType::Boolean => Some(Self::Boolean),
            DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 | DataType::Time64(_) => Some(Self::Time),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(Self::Text),
            _ => None,
        }
    }

    /// The same for arguments of aggregates, which may also be decimals. Their digits are kept as an integer.
    pub(crate) fn of_argument(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Decimal128(1..=DECIMAL_DIGITS, 0..) => Some(Self::Integer),
            other => Self::of(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_found_by_its_name() {
        for function in AggregateFunction::all().filter(|one| !one.is_over_distinct()) {
            assert_eq!(AggregateFunction::from_name(function.name()), Some(function));
            assert_eq!(AggregateFunction::from_name(&function.name().to_uppercase()), Some(function));
        }
        assert_eq!(AggregateFunction::from_name("group_concat"), None);
    }

    #[test]
    fn wrong_arguments_are_refused_with_a_hint() {
        let error = AggregateFunction::RegrSlope.result_type(&[DataType::Float64]).unwrap_err().to_string();
        assert!(error.contains("2 argument(s), not 1") && error.contains("hint:"), "{error}");
        let error = AggregateFunction::Avg.result_type(&[DataType::Utf8]).unwrap_err().to_string();
        assert!(error.contains("avg does not take an argument of type Utf8") && error.contains("hint:"), "{error}");
        let error = AggregateFunction::Count.result_type(&[DataType::Utf8, DataType::Utf8]).unwrap_err().to_string();
        assert!(error.contains("1 argument(s), not 2"), "{error}");
        assert!(AggregateFunction::BoolAnd.result_type(&[DataType::Int64]).is_err());
        assert!(AggregateFunction::Sum.result_type(&[DataType::UInt64]).is_err());
    }

    #[test]
    fn types_follow_the_arguments() {
        let of = |function: AggregateFunction, argument: DataType| function.result_type(&[argument]).unwrap();
        assert_eq!(of(AggregateFunction::Sum, DataType::Int32), DataType::Int64);
        assert_eq!(of(AggregateFunction::Sum, DataType::Float32), DataType::Float64);
        let decimal = DataType::Decimal128;
        assert_eq!(of(AggregateFunction::Sum, decimal(10, 2)), decimal(18, 2));
        assert_eq!(of(AggregateFunction::Avg, decimal(10, 2)), decimal(14, 6));
        assert_eq!(of(AggregateFunction::Avg, decimal(17, 2)), decimal(18, 3));
        assert_eq!(of(AggregateFunction::AvgDistinct, decimal(10, 2)), decimal(14, 6));
        assert_eq!(of(AggregateFunction::SumDistinct, decimal(10, 2)), decimal(18, 2));
        assert!(AggregateFunction::BitOr.result_type(&[decimal(10, 2)]).is_err());
        assert_eq!(of(AggregateFunction::Max, decimal(10, 2)), decimal(10, 2));
        assert_eq!(of(AggregateFunction::StddevSamp, decimal(10, 2)), DataType::Float64);
        assert!(AggregateFunction::Sum.result_type(&[decimal(19, 2)]).is_err());
        assert_eq!(of(AggregateFunction::Avg, DataType::Int64), DataType::Float64);
        assert_eq!(of(AggregateFunction::Max, DataType::Utf8), DataType::Utf8);
        assert_eq!(AggregateFunction::Count.result_type(&[]).unwrap(), DataType::Int64);
    }
}
