//! Values and how often each occurs, for aggregates over rows that may be retracted. When the least value is retracted,
//! the next one is known only if the other values are kept.
//!
//! A group keeps each distinct value of its rows. So its memory is bounded only by the rows that the input keeps valid.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::error::ArrowError;
use datafusion_common::ScalarValue;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Literal;
use rivulet_dataflow::canonical_float;

use super::distinct::place;
use super::{Place, valid_of};
use crate::aggregate::fixed::finish_moments;
use crate::aggregate::object::{Finished, Total, middle_of, sum_of_floats, sum_of_integers};
use crate::aggregate::plan::digits_more;
use crate::aggregate::{Storage, kept};
use crate::{AggregateFunction, AggregateSpec, PlanError};

/// The plan of counted values: an argument and a filter, and whether values are ordered by the event time of their rows
/// first.
#[derive(Debug)]
pub(crate) struct CountedPlan {
    argument: usize,
    filter: Option<usize>,
    storage: Storage,
    is_timed: bool,
}

impl CountedPlan {
    /// Finds the values from which an aggregate's result comes: values that are counted already, or new ones.
    pub(super) fn place(
        plans: &mut Vec<Self>,
        expressions: &mut Vec<Arc<dyn PhysicalExpr>>,
        aggregate: &AggregateSpec,
        (argument_type, result_type): (&DataType, &DataType),
    ) -> Result<Place, PlanError> {
        let function = aggregate.function;
        let divisor = match argument_type {
            DataType::Decimal128(_, scale) => 10_f64.powi(i32::from(*scale).max(0)),
            _ => 1.0,
        };
        let mean = digits_more(argument_type, result_type).map_or(Total::Mean, Total::DecimalMean);
        let fraction = match function {
            AggregateFunction::PercentileCont => fraction_of(aggregate)?,
            _ => 0.5,
        };
        let argument = place(expressions, &aggregate.arguments[0]);
        let filter = aggregate.filter.as_ref().map(|filter| place(expressions, filter));
        let is_timed = matches!(function, AggregateFunction::FirstValue | AggregateFunction::LastValue);
        let same = |plan: &Self| plan.argument == argument && plan.filter == filter && plan.is_timed == is_timed;
        let values = plans.iter().position(same).unwrap_or_else(|| {
            let storage = Storage::of_argument(argument_type).expect("the function takes arguments of this type");
            plans.push(Self { argument, filter, storage, is_timed });
            plans.len() - 1
        });
        Ok(Place::Counted { values, asked: Asked { function, fraction, divisor, mean } })
    }

    /// Reads the values of a batch's rows.
    pub(super) fn read(&self, columns: &[ArrayRef]) -> Result<CountedValues, ArrowError> {
        let argument = &columns[self.argument];
        let valid = valid_of(argument, self.filter.map(|at| &columns[at]));
        let target = self.storage.data_type();
        let argument = kept(argument, &target)?;
        Ok(CountedValues {
            valid,
            values: match self.storage {
                Storage::Text => Values::Texts(argument.as_string::<i32>().clone()),
                Storage::Float => {
                    Values::Words(argument.as_primitive::<Float64Type>().values().iter().map(ordered).collect())
                }
                _ => Values::Words(argument.as_primitive::<Int64Type>().values().to_vec()),
            },
        })
    }

    pub(super) fn empty(&self) -> Counted {
        Counted { is_timed: self.is_timed, is_float: self.storage == Storage::Float, ..Counted::default() }
    }

    pub(super) fn result_storage(&self, asked: Asked) -> Storage {
        use AggregateFunction as F;
        match asked.function {
            F::CountDistinct => Storage::Integer,
            F::AvgDistinct if asked.mean != Total::Mean => Storage::Integer,
            F::AvgDistinct | F::Median | F::PercentileCont => Storage::Float,
            F::StddevSamp | F::StddevPop | F::VarSamp | F::VarPop => Storage::Float,
            _ => self.storage,
        }
    }

    /// Reads what [`Counted::encode`] wrote.
    pub(super) fn decode(&self, bytes: &mut &[u8]) -> Option<Counted> {
        fn take(bytes: &mut &[u8]) -> Option<i64> {
            Some(i64::from_le_bytes(bytes.split_off(..8)?.try_into().ok()?))
        }
        let mut counted = self.empty();
        for _ in 0..take(bytes)? {
            let (time_us, times) = (take(bytes)?, take(bytes)?);
            let value = match self.storage {
                Storage::Text => {
                    let length = usize::try_from(take(bytes)?).ok()?;
                    Value::Text(std::str::from_utf8(bytes.split_off(..length)?).ok()?.into())
                }
                _ => Value::Word(take(bytes)?),
            };
            counted.values.insert((time_us, value), times);
            counted.missing += usize::from(times < 0);
        }
        Some(counted)
    }
}

/// Converts a number to an integer with the same order; NaN is the greatest. `flipped` converts the integer back to the
/// bits of the number.
fn ordered(value: &f64) -> i64 {
    flipped(canonical_float(*value).to_bits() as i64)
}

fn flipped(bits: i64) -> i64 {
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// What is asked of the values of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(super) function: AggregateFunction,
    /// That of a percentile.
    fraction: f64,
    /// What the digits of decimals are divided by, which is 1 for other values.
    divisor: f64,
    /// In which form the mean of different values is.
    mean: Total,
}

/// The values of a batch's rows.
pub(crate) struct CountedValues {
    values: Values,
    /// The rows that count. `None`: all.
    valid: Option<BooleanBuffer>,
}

enum Values {
    Words(Vec<i64>),
    Texts(StringArray),
}

/// A value. All values of a group are of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Word(i64),
    Text(Box<str>),
}

/// The values of one group, in order, and how often each occurs.
#[derive(Default)]
pub(crate) struct Counted {
    /// The count by time (0 if it does not matter) and value. It is negative for a value whose retraction came before
    /// the value.
    values: BTreeMap<(i64, Value), i64>,
    /// The number of values with a negative count.
    missing: usize,
    is_timed: bool,
    is_float: bool,
}

impl Counted {
    /// Adds `times`, which is 1 or -1, to the count of a row's value.
    pub(super) fn add(&mut self, values: &CountedValues, row: usize, time_us: i64, times: i64) {
        if values.valid.as_ref().is_some_and(|valid| !valid.value(row)) {
            return;
        }
        let value = match &values.values {
            Values::Words(words) => Value::Word(words[row]),
            Values::Texts(texts) => Value::Text(texts.value(row).into()),
        };
        let key = (if self.is_timed { time_us } else { 0 }, value);
        let count = self.values.entry(key.clone()).or_insert(0);
        let before = *count;
        *count += times;
        self.missing = self.missing + usize::from(*count < 0) - usize::from(before < 0);
        if *count == 0 {
            self.values.remove(&key);
        }
    }

    /// The values with a positive count, in order, and their counts.
    fn present(&self) -> impl DoubleEndedIterator<Item = (&Value, i64)> + Clone {
        self.values.iter().filter(|(_, count)| **count > 0).map(|(key, count)| (&key.1, *count))
    }

    /// The result of a function over these values. What is not at one of their ends is found by a walk over all of
    /// them, once for each result.
    pub(super) fn result(&self, asked: Asked) -> Finished {
        use AggregateFunction as F;
        let Asked { function, fraction, divisor, .. } = asked;
        let mut present = self.present().map(|(value, _)| value);
        let numbers = self.present().map(|(value, count)| (self.number(value, divisor), count));
        let integers = self.present().map(|(value, count)| (value.word(), count));
        let value = match function {
            F::CountDistinct => return Finished::Integer((self.values.len() - self.missing) as i64),
            F::SumDistinct | F::AvgDistinct => {
                let total = if function == F::AvgDistinct { asked.mean } else { Total::Sum };
                return match self.is_float {
                    true => sum_of_floats(numbers.map(|(number, _)| number), total),
                    false => sum_of_integers(integers.map(|(word, _)| word), total),
                };
            }
            F::Median => return percentile(numbers, 0.5, |lower, upper, _| middle_of(lower, upper)),
            F::PercentileCont => {
                return percentile(numbers, fraction, |lower, upper, weight| lower + (upper - lower) * weight);
            }
            F::StddevSamp | F::StddevPop | F::VarSamp | F::VarPop => return moments(numbers, function),
            F::BitAnd => return bits(integers, |bits, (word, _)| bits & word),
            F::BitOr => return bits(integers, |bits, (word, _)| bits | word),
            F::BitXor => {
                let odd = integers.map(|(word, count)| (if count % 2 == 0 { 0 } else { word }, count));
                return bits(odd, |bits, (word, _)| bits ^ word);
            }
            F::Min | F::BoolAnd | F::FirstValue => present.next(),
            _ => present.next_back(),
        };
        match value {
            None => Finished::Null,
            Some(Value::Word(word)) if self.is_float => Finished::Float(f64::from_bits(flipped(*word) as u64)),
            Some(Value::Word(word)) => Finished::Integer(*word),
            Some(Value::Text(text)) => Finished::Text(text.clone()),
        }
    }

    /// A value as a floating point number; `divisor` is that of the digits of a decimal.
    fn number(&self, value: &Value, divisor: f64) -> f64 {
        match self.is_float {
            true => f64::from_bits(flipped(value.word()) as u64),
            false => value.word() as f64 / divisor,
        }
    }

    /// Appends the values to `out`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend((self.values.len() as i64).to_le_bytes());
        for ((time_us, value), times) in &self.values {
            out.extend(time_us.to_le_bytes());
            out.extend(times.to_le_bytes());
            match value {
                Value::Word(word) => out.extend(word.to_le_bytes()),
                Value::Text(text) => {
                    out.extend((text.len() as i64).to_le_bytes());
                    out.extend_from_slice(text.as_bytes());
                }
            }
        }
    }

    /// About how much memory is held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.values.len() * (size_of::<((i64, Value), i64)>() + 8)
    }
}

impl Value {
    fn word(&self) -> i64 {
        match self {
            Self::Word(word) => *word,
            Self::Text(_) => 0,
        }
    }
}

/// The percentile of numbers in order, each with its count. Between two ranks, `between` computes it from their numbers
/// and the fraction of the distance from the lower to the upper one.
fn percentile(
    numbers: impl Iterator<Item = (f64, i64)> + Clone,
    fraction: f64,
    between: impl Fn(f64, f64, f64) -> f64,
) -> Finished {
    let count: i64 = numbers.clone().map(|(_, times)| times).sum();
    if count == 0 {
        return Finished::Null;
    }
    let rank = fraction * (count - 1) as f64;
    let at = |rank: i64| {
        let mut passed = 0;
        let found = numbers.clone().find(|(_, times)| {
            passed += times;
            passed > rank
        });
        found.map_or(f64::NAN, |(number, _)| number)
    };
    let (lower, weight) = (at(rank.floor() as i64), rank - rank.floor());
    Finished::Float(canonical_float(match weight == 0.0 {
        true => lower,
        false => between(lower, at(rank.floor() as i64 + 1), weight),
    }))
}

/// Mean and variance of numbers, each with its count, in two passes.
fn moments(numbers: impl Iterator<Item = (f64, i64)> + Clone, function: AggregateFunction) -> Finished {
    let count: i64 = numbers.clone().map(|(_, times)| times).sum();
    let sum: f64 = numbers.clone().map(|(number, times)| number * times as f64).sum();
    let mean = sum / count as f64;
    let squares: f64 = numbers.map(|(number, times)| (number - mean) * (number - mean) * times as f64).sum();
    match finish_moments(function, count as u64, mean, squares) {
        Some(found) => Finished::Float(canonical_float(found)),
        None => Finished::Null,
    }
}

/// Combines integers with an operation on bits; null if there are none.
fn bits(mut integers: impl Iterator<Item = (i64, i64)>, join: impl Fn(i64, (i64, i64)) -> i64) -> Finished {
    match integers.next() {
        Some((first, _)) => Finished::Integer(integers.fold(first, join)),
        None => Finished::Null,
    }
}

/// The fraction of a percentile, which is a constant here.
fn fraction_of(aggregate: &AggregateSpec) -> Result<f64, PlanError> {
    let constant = aggregate.arguments.get(1).and_then(|fraction| fraction.downcast_ref::<Literal>());
    let number = constant.and_then(|constant| match constant.value().cast_to(&DataType::Float64) {
        Ok(ScalarValue::Float64(number)) => number,
        _ => None,
    });
    number.filter(|number| (0.0..=1.0).contains(number)).ok_or_else(|| PlanError::Operator {
        operator: "aggregate",
        problem: "the fraction of percentile_cont is no constant between 0 and 1".into(),
        hint: "write for example percentile_cont(value, 0.95)".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(function: AggregateFunction, fraction: f64) -> Asked {
        Asked { function, fraction, divisor: 1.0, mean: Total::Mean }
    }

    /// What is asked of decimals with two digits behind the point is asked of them and not of their digits.
    #[test]
    fn digits_of_decimals_are_no_numbers() {
        use AggregateFunction as F;
        let values = CountedValues { values: Values::Words(vec![150, 250, 250, 1000]), valid: None };
        let mut counted = Counted::default();
        (0..4).for_each(|row| counted.add(&values, row, 0, 1));
        counted.add(&values, 3, 0, -1);
        let of = |function, mean| counted.result(Asked { divisor: 100.0, mean, ..asked(function, 0.75) });
        assert_eq!(of(F::Median, Total::Mean), Finished::Float(2.5));
        assert_eq!(of(F::PercentileCont, Total::Mean), Finished::Float(2.5));
        assert_eq!(of(F::SumDistinct, Total::Mean), Finished::Integer(400));
        assert_eq!(of(F::AvgDistinct, Total::DecimalMean(4)), Finished::Integer(2_000_000));
        let Finished::Float(variance) = of(F::VarPop, Total::Mean) else { panic!("a number") };
        assert!((variance - 2.0 / 9.0).abs() < 1e-12, "{variance}");
    }

    #[test]
    fn what_is_taken_back_leaves_the_next_best() {
        let floats = [2.5, f64::NAN, -0.0, -7.0];
        let values = CountedValues { values: Values::Words(floats.iter().map(ordered).collect()), valid: None };
        let mut counted = Counted { is_float: true, ..Counted::default() };
        (0..4).for_each(|row| counted.add(&values, row, 0, 1));
        assert_eq!(counted.result(asked(AggregateFunction::Min, 0.5)), Finished::Float(-7.0));
        assert!(matches!(counted.result(asked(AggregateFunction::Max, 0.5)), Finished::Float(max) if max.is_nan()));
        counted.add(&values, 1, 0, -1);
        counted.add(&values, 3, 0, -1);
        assert_eq!(counted.result(asked(AggregateFunction::Max, 0.5)), Finished::Float(2.5));
        assert_eq!(counted.result(asked(AggregateFunction::Min, 0.5)), Finished::Float(0.0));
        assert_eq!(counted.result(asked(AggregateFunction::CountDistinct, 0.5)), Finished::Integer(2));
        counted.add(&values, 3, 0, -1);
        assert_eq!(
            counted.result(asked(AggregateFunction::CountDistinct, 0.5)),
            Finished::Integer(2),
            "what is missing is not there"
        );
        counted.add(&values, 3, 0, 1);
        assert_eq!(counted.result(asked(AggregateFunction::Min, 0.5)), Finished::Float(0.0));
    }

    /// Compares the walk over counted values with a computation over the single values.
    #[test]
    fn every_function_is_that_of_the_values_that_are_left() {
        use AggregateFunction as F;
        let taken = [3, -4, 3, 7, 12, 7, 3];
        let values = CountedValues { values: Values::Words(taken.to_vec()), valid: None };
        let mut counted = Counted::default();
        let nothing = counted.result(asked(F::Median, 0.5));
        assert_eq!((nothing, counted.result(asked(F::SumDistinct, 0.5))), (Finished::Null, Finished::Null));
        assert_eq!(
            (counted.result(asked(F::VarPop, 0.5)), counted.result(asked(F::BitXor, 0.5))),
            (Finished::Null, Finished::Null)
        );
        (0..7).for_each(|row| counted.add(&values, row, 0, 1));
        counted.add(&values, 4, 0, -1);
        // The remaining values: -4, 3, 3, 3, 7, 7.
        for (function, fraction, expected) in [
            (F::Median, 0.5, Finished::Float(3.0)),
            (F::PercentileCont, 0.7, Finished::Float(5.0)),
            (F::PercentileCont, 1.0, Finished::Float(7.0)),
            (F::PercentileCont, 0.0, Finished::Float(-4.0)),
            (F::SumDistinct, 0.5, Finished::Integer(6)),
            (F::AvgDistinct, 0.5, Finished::Float(2.0)),
            (F::BitAnd, 0.5, Finished::Integer(0)),
            (F::BitOr, 0.5, Finished::Integer(-4 | 3 | 7)),
            (F::BitXor, 0.5, Finished::Integer(-4 ^ 3)),
        ] {
            assert_eq!(counted.result(asked(function, fraction)), expected, "{function}");
        }
        let left = [-4.0, 3.0, 3.0, 3.0, 7.0, 7.0];
        let mean = left.iter().sum::<f64>() / 6.0;
        let variance = left.iter().map(|one: &f64| (one - mean).powi(2)).sum::<f64>() / 5.0;
        let Finished::Float(found) = counted.result(asked(F::VarSamp, 0.5)) else { panic!("a number") };
        assert!((found - variance).abs() < 1e-12, "{found} {variance}");
    }
}
