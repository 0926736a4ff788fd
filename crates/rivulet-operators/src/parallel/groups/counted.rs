//! Values with how often they are there, for aggregates over rows that may be taken back: the least value is not known
//! any more once it is gone, unless the others are.
//!
//! A group keeps each distinct value of its rows, so memory is bounded by those rows, which the input keeps valid, and
//! by nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::error::ArrowError;
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::canonical_float;

use super::distinct::place;
use super::{Place, valid_of};
use crate::aggregate::Storage;
use crate::aggregate::object::Finished;
use crate::{AggregateFunction, AggregateSpec};

/// Counted values: an argument and a filter, and whether values are ordered by the event time of their rows first.
#[derive(Debug)]
pub(crate) struct CountedPlan {
    argument: usize,
    filter: Option<usize>,
    storage: Storage,
    is_timed: bool,
}

impl CountedPlan {
    /// Where an aggregate's result comes from: values that are counted already, or new ones.
    pub(super) fn place(
        plans: &mut Vec<Self>,
        expressions: &mut Vec<Arc<dyn PhysicalExpr>>,
        aggregate: &AggregateSpec,
        argument_type: &DataType,
    ) -> Place {
        let function = aggregate.function;
        let argument = place(expressions, &aggregate.arguments[0]);
        let filter = aggregate.filter.as_ref().map(|filter| place(expressions, filter));
        let is_timed = matches!(function, AggregateFunction::FirstValue | AggregateFunction::LastValue);
        let same = |plan: &Self| plan.argument == argument && plan.filter == filter && plan.is_timed == is_timed;
        let values = plans.iter().position(same).unwrap_or_else(|| {
            let storage = Storage::of(argument_type).expect("the function takes arguments of this type");
            plans.push(Self { argument, filter, storage, is_timed });
            plans.len() - 1
        });
        Place::Counted { values, function }
    }

    /// The values of a batch's rows.
    pub(super) fn read(&self, columns: &[ArrayRef]) -> Result<CountedValues, ArrowError> {
        let argument = &columns[self.argument];
        let valid = valid_of(argument, self.filter.map(|at| &columns[at]));
        let target = self.storage.data_type();
        let argument = match *argument.data_type() == target {
            true => argument.clone(),
            false => cast(argument, &target)?,
        };
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

    pub(super) fn result_storage(&self, function: AggregateFunction) -> Storage {
        if function == AggregateFunction::CountDistinct { Storage::Integer } else { self.storage }
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

/// A number as an integer with the same order; NaN is the greatest. The same again gives the number.
fn ordered(value: &f64) -> i64 {
    flipped(canonical_float(*value).to_bits() as i64)
}

fn flipped(bits: i64) -> i64 {
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// The values of a batch's rows.
pub(crate) struct CountedValues {
    values: Values,
    /// Rows that count. `None`: all.
    valid: Option<BooleanBuffer>,
}

enum Values {
    Words(Vec<i64>),
    Texts(StringArray),
}

/// A value; those of one group are of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Word(i64),
    Text(Box<str>),
}

/// The values of one group, in order, and how often each is there.
#[derive(Default)]
pub(crate) struct Counted {
    /// By time (0 where it does not matter) and value. Less than nothing is there of a value that was taken back before
    /// it came.
    values: BTreeMap<(i64, Value), i64>,
    /// How many values are there less than not at all.
    missing: usize,
    is_timed: bool,
    is_float: bool,
}

impl Counted {
    /// Counts the value of a row `times` more, which is 1 or -1.
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

    /// The result of a function over these values.
    pub(super) fn result(&self, function: AggregateFunction) -> Finished {
        use AggregateFunction as F;
        let mut present = self.values.iter().filter(|(_, count)| **count > 0).map(|(key, _)| &key.1);
        let value = match function {
            F::CountDistinct => return Finished::Integer((self.values.len() - self.missing) as i64),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_leaves_the_next_best() {
        let floats = [2.5, f64::NAN, -0.0, -7.0];
        let values = CountedValues { values: Values::Words(floats.iter().map(ordered).collect()), valid: None };
        let mut counted = Counted { is_float: true, ..Counted::default() };
        (0..4).for_each(|row| counted.add(&values, row, 0, 1));
        assert_eq!(counted.result(AggregateFunction::Min), Finished::Float(-7.0));
        assert!(matches!(counted.result(AggregateFunction::Max), Finished::Float(max) if max.is_nan()));
        counted.add(&values, 1, 0, -1);
        counted.add(&values, 3, 0, -1);
        assert_eq!(counted.result(AggregateFunction::Max), Finished::Float(2.5));
        assert_eq!(counted.result(AggregateFunction::Min), Finished::Float(0.0));
        assert_eq!(counted.result(AggregateFunction::CountDistinct), Finished::Integer(2));
        counted.add(&values, 3, 0, -1);
        assert_eq!(
            counted.result(AggregateFunction::CountDistinct),
            Finished::Integer(2),
            "what is missing is not there"
        );
        counted.add(&values, 3, 0, 1);
        assert_eq!(counted.result(AggregateFunction::Min), Finished::Float(0.0));
    }
}
