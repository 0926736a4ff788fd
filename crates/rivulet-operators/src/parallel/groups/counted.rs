//! Values and how often each occurs, for aggregates over rows that may be retracted. When the least value is retracted,
//! the next one is known only if the other values are kept.
//!
//! A group keeps each distinct value of its rows. So its memory is bounded only by the rows that the input keeps valid.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryArray, StringArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::error::ArrowError;
use datafusion_common::ScalarValue;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Literal;
use rivulet_dataflow::canonical_float;

use super::arguments::{place, valid_of};
use crate::aggregate::finished::Finished;
use crate::aggregate::fixed::finish_moments;
use crate::aggregate::list::{LIST_BYTES_MAX, LIST_ITEMS_MAX, ListForm, Listed, TOO_LONG_LIST, Ties};
use crate::aggregate::object::{Total, middle_of, sum_of_floats, sum_of_integers};
use crate::aggregate::plan::digits_more;
use crate::aggregate::{Storage, kept};
use crate::{AggregateFunction, AggregateSpec, PlanError};

/// The most bytes of texts and keys that a list remembers, and the most texts. It is more than a result may have: a
/// text may be retracted a little later.
const LIST_BYTES_KEPT: usize = 2 * LIST_BYTES_MAX;
const LIST_ITEMS_KEPT: usize = 2 * LIST_ITEMS_MAX;

/// The plan of counted values: an argument and a filter, and whether values are ordered by the event time of their rows
/// first.
pub(crate) struct CountedPlan {
    argument: usize,
    filter: Option<usize>,
    storage: Storage,
    is_timed: bool,
    /// For the texts of a list.
    list: Option<ListPlan>,
}

/// What the texts of a list have besides themselves.
#[derive(PartialEq)]
struct ListPlan {
    /// The keys that order them.
    key: Option<usize>,
    separator: Box<str>,
}

/// Part of the names of saved states, so what was saved before there were lists has the same text.
impl fmt::Debug for CountedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { argument, filter, storage, is_timed, list } = self;
        let mut shown = f.debug_struct("CountedPlan");
        shown.field("argument", argument).field("filter", filter).field("storage", storage).field("is_timed", is_timed);
        if let Some(list) = list {
            shown.field("key", &list.key);
        }
        shown.finish()
    }
}

impl CountedPlan {
    /// Finds the values from which an aggregate's result comes: values that are counted already, or new ones. Returns
    /// their index, and what is asked of them.
    pub(super) fn place(
        plans: &mut Vec<Self>,
        expressions: &mut Vec<Arc<dyn PhysicalExpr>>,
        aggregate: &AggregateSpec,
        (arguments, result_type): (&[DataType], &DataType),
    ) -> Result<(usize, Asked), PlanError> {
        let function = aggregate.function;
        let argument_type = &arguments[0];
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
        let list = match function.is_list() {
            true => {
                let key = arguments.iter().position(|argument| *argument == DataType::Binary);
                let key = key.map(|key| place(expressions, &aggregate.arguments[key]));
                Some(ListPlan { key, separator: separator_of(aggregate)? })
            }
            false => None,
        };
        let is_timed = function.goes_by_time();
        let same = |plan: &Self| {
            plan.argument == argument && plan.filter == filter && plan.is_timed == is_timed && plan.list == list
        };
        let values = plans.iter().position(same).unwrap_or_else(|| {
            let storage = Storage::of_argument(argument_type).expect("the function takes arguments of this type");
            plans.push(Self { argument, filter, storage, is_timed, list });
            plans.len() - 1
        });
        Ok((values, Asked { function, fraction, divisor, mean }))
    }

    /// Reads the values of a batch's rows.
    pub(super) fn read(&self, columns: &[ArrayRef]) -> Result<CountedValues, ArrowError> {
        let argument = &columns[self.argument];
        let valid = valid_of(argument, self.filter.map(|at| &columns[at]));
        let target = self.storage.data_type();
        let argument = kept(argument, &target)?;
        let key = self.list.as_ref().and_then(|list| list.key);
        Ok(CountedValues {
            valid,
            keys: key.map(|key| columns[key].as_binary::<i32>().clone()),
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
        Counted {
            is_timed: self.is_timed,
            is_float: self.storage == Storage::Float,
            list_bytes: self.list.as_ref().map(|_| 0),
            ..Counted::default()
        }
    }

    /// The result of a function over the values of a group.
    pub(super) fn result(&self, counted: &Counted, asked: Asked) -> Finished {
        let function = asked.function;
        match &self.list {
            Some(list) => {
                let form = ListForm { is_json: function.gives_json(), is_distinct: function.is_over_distinct() };
                counted.joined(form, &list.separator)
            }
            None => counted.result(asked),
        }
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
        fn take_bytes<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
            let length = usize::try_from(take(bytes)?).ok()?;
            bytes.split_off(..length)
        }
        let mut counted = self.empty();
        let values = take(bytes)?;
        counted.is_full = self.list.is_some() && values == FULL;
        for _ in 0..values {
            let (time_us, times) = (take(bytes)?, take(bytes)?);
            let value = match (self.storage, &self.list) {
                (Storage::Text, Some(ListPlan { key: Some(_), .. })) => {
                    let key = take_bytes(bytes)?.into();
                    Value::Keyed(key, std::str::from_utf8(take_bytes(bytes)?).ok()?.into())
                }
                (Storage::Text, _) => Value::Text(std::str::from_utf8(take_bytes(bytes)?).ok()?.into()),
                _ => Value::Word(take(bytes)?),
            };
            if let Some(held) = &mut counted.list_bytes {
                *held += value.bytes();
            }
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

/// In the place of the number of values: the list was longer than may be remembered.
const FULL: i64 = -1;

/// The values of a batch's rows.
pub(crate) struct CountedValues {
    values: Values,
    /// The keys that order the texts of a list.
    keys: Option<BinaryArray>,
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
    /// A text behind the key that orders it.
    Keyed(Box<[u8]>, Box<str>),
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
    /// For a list: the bytes of its texts and keys.
    list_bytes: Option<usize>,
    /// Whether the list was longer than may be remembered. Then nothing is.
    is_full: bool,
}

impl Counted {
    /// Adds `times`, which is 1 or -1, to the count of a row's value.
    pub(super) fn add(&mut self, values: &CountedValues, row: usize, time_us: i64, times: i64) {
        if self.is_full || values.valid.as_ref().is_some_and(|valid| !valid.value(row)) {
            return;
        }
        let value = match (&values.values, &values.keys) {
            (Values::Words(words), _) => Value::Word(words[row]),
            (Values::Texts(texts), None) => Value::Text(texts.value(row).into()),
            (Values::Texts(texts), Some(keys)) => Value::Keyed(keys.value(row).into(), texts.value(row).into()),
        };
        let key = (if self.is_timed { time_us } else { 0 }, value);
        let count = self.values.entry(key.clone()).or_insert(0);
        let before = *count;
        *count += times;
        self.missing = self.missing + usize::from(*count < 0) - usize::from(before < 0);
        let is_gone = *count == 0;
        if is_gone {
            self.values.remove(&key);
        }
        if let Some(held) = &mut self.list_bytes {
            match (before, is_gone) {
                (0, _) => *held += key.1.bytes(),
                (_, true) => *held -= key.1.bytes(),
                _ => {}
            }
            if *held > LIST_BYTES_KEPT || self.values.len() > LIST_ITEMS_KEPT {
                (self.values, self.missing, self.is_full) = (BTreeMap::new(), 0, true);
            }
        }
    }

    /// The texts as a list.
    fn joined(&self, form: ListForm, separator: &str) -> Finished {
        let (mut all, mut bytes): (Vec<Listed<'_>>, usize) = (Vec::new(), 0);
        for ((time_us, value), &count) in self.values.iter().filter(|(_, count)| **count > 0) {
            let (key, text) = match value {
                Value::Keyed(key, text) => (&**key, text.as_bytes()),
                Value::Text(text) => (&[][..], text.as_bytes()),
                Value::Word(_) => continue,
            };
            let times = if form.is_distinct { 1 } else { usize::try_from(count).unwrap_or(usize::MAX) };
            // An empty text counts too: one may be there very often.
            bytes = (text.len() + 1).checked_mul(times).map_or(usize::MAX, |more| bytes.saturating_add(more));
            if bytes > LIST_BYTES_MAX + LIST_ITEMS_MAX || all.len() + times > LIST_ITEMS_MAX {
                return Finished::Failed(TOO_LONG_LIST);
            }
            all.extend(std::iter::repeat_n((key, *time_us, text), times));
        }
        match self.is_full {
            true => Finished::Failed(TOO_LONG_LIST),
            false => form.of_texts(all, separator, Ties::Text),
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
            Some(Value::Text(text) | Value::Keyed(_, text)) => Finished::Text(text.clone()),
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
        let put_bytes = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend((bytes.len() as i64).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        out.extend((if self.is_full { FULL } else { self.values.len() as i64 }).to_le_bytes());
        for ((time_us, value), times) in &self.values {
            out.extend(time_us.to_le_bytes());
            out.extend(times.to_le_bytes());
            match value {
                Value::Word(word) => out.extend(word.to_le_bytes()),
                Value::Text(text) => put_bytes(out, text.as_bytes()),
                Value::Keyed(key, text) => {
                    put_bytes(out, key);
                    put_bytes(out, text.as_bytes());
                }
            }
        }
    }

    /// About how much memory is held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.values.len() * (size_of::<((i64, Value), i64)>() + 8)
            + self.list_bytes.unwrap_or_default()
    }
}

impl Value {
    fn word(&self) -> i64 {
        match self {
            Self::Word(word) => *word,
            Self::Text(_) | Self::Keyed(..) => 0,
        }
    }

    /// The bytes of a text and its key.
    fn bytes(&self) -> usize {
        match self {
            Self::Word(_) => 8,
            Self::Text(text) => text.len(),
            Self::Keyed(key, text) => key.len() + text.len(),
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

/// The separator of a list, which is a constant here; an array in JSON has its own.
fn separator_of(aggregate: &AggregateSpec) -> Result<Box<str>, PlanError> {
    if aggregate.function.gives_json() {
        return Ok("".into());
    }
    let constant = aggregate.arguments.get(1).and_then(|separator| separator.downcast_ref::<Literal>());
    match constant.and_then(|constant| constant.value().try_as_str()) {
        Some(Some(separator)) => Ok(separator.into()),
        _ => {
            let problem = "the separator of string_agg is no constant text";
            Err(PlanError::operator("aggregate", problem, "write for example string_agg(name, ', ')"))
        }
    }
}

/// The fraction of a percentile, which is a constant here.
fn fraction_of(aggregate: &AggregateSpec) -> Result<f64, PlanError> {
    let constant = aggregate.arguments.get(1).and_then(|fraction| fraction.downcast_ref::<Literal>());
    let number = constant.and_then(|constant| match constant.value().cast_to(&DataType::Float64) {
        Ok(ScalarValue::Float64(number)) => number,
        _ => None,
    });
    number.filter(|number| (0.0..=1.0).contains(number)).ok_or_else(|| {
        let problem = "the fraction of percentile_cont is no constant between 0 and 1";
        PlanError::operator("aggregate", problem, "write for example percentile_cont(value, 0.95)")
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
        let values = CountedValues { values: Values::Words(vec![150, 250, 250, 1000]), valid: None, keys: None };
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
        let values =
            CountedValues { values: Values::Words(floats.iter().map(ordered).collect()), valid: None, keys: None };
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

    #[test]
    fn a_list_is_of_the_texts_that_are_left() {
        let plan = |key: Option<usize>, is_distinct: bool| CountedPlan {
            argument: 0,
            filter: None,
            storage: Storage::Text,
            is_timed: !is_distinct,
            list: Some(ListPlan { key, separator: "+".into() }),
        };
        let texts = StringArray::from(vec!["b", "c", "a", "b", "d"]);
        let keys = BinaryArray::from(vec![&[3_u8][..], &[2], &[4], &[3], &[1]]);
        let values = |keys| CountedValues { values: Values::Texts(texts.clone()), valid: None, keys };
        let text = |text: &str| Finished::Text(text.into());
        let (timed, keyed, distinct) = (plan(None, false), plan(Some(1), false), plan(Some(1), true));
        for (plan, keys, before, after) in [
            // Event times are 9, 8, 7, 6 and 5.
            (&timed, None, "d+b+a+c+b", "b+a+b"),
            (&keyed, Some(keys.clone()), "d+c+b+b+a", "b+b+a"),
            (&distinct, Some(keys), "d+c+b+a", "b+a"),
        ] {
            let function = match std::ptr::eq(plan, &distinct) {
                true => AggregateFunction::StringAggDistinct,
                false => AggregateFunction::StringAgg,
            };
            let (values, asked, mut counted) = (values(keys), asked(function, 0.5), plan.empty());
            assert_eq!(plan.result(&counted, asked), Finished::Null);
            // A retraction may come before its row.
            counted.add(&values, 4, 5, -1);
            (0..5).for_each(|row| counted.add(&values, row, 9 - row as i64, 1));
            counted.add(&values, 4, 5, 1);
            assert_eq!(plan.result(&counted, asked), text(before));
            let mut bytes = Vec::new();
            counted.encode(&mut bytes);
            let mut counted = plan.decode(&mut bytes.as_slice()).unwrap();
            [1, 4].into_iter().for_each(|row| counted.add(&values, row, 9 - row as i64, -1));
            assert_eq!(plan.result(&counted, asked), text(after));
            [0, 2, 3].into_iter().for_each(|row| counted.add(&values, row, 9 - row as i64, -1));
            assert_eq!((plan.result(&counted, asked), counted.list_bytes), (Finished::Null, Some(0)));
        }
    }

    #[test]
    fn a_list_that_is_too_long_stays_refused_and_is_not_kept() {
        let list = ListPlan { key: None, separator: "".into() };
        let plan = CountedPlan { argument: 0, filter: None, storage: Storage::Text, is_timed: true, list: Some(list) };
        let long = "x".repeat(LIST_BYTES_MAX - 100);
        let values = CountedValues { values: Values::Texts(StringArray::from(vec![long; 3])), valid: None, keys: None };
        let (asked, mut counted) = (asked(AggregateFunction::StringAgg, 0.5), plan.empty());
        counted.add(&values, 0, 0, 1);
        counted.add(&values, 1, 1, 1);
        assert_eq!(plan.result(&counted, asked), Finished::Failed(TOO_LONG_LIST));
        counted.add(&values, 1, 1, -1);
        assert!(matches!(plan.result(&counted, asked), Finished::Text(_)), "one of them is not too long");
        (1..4).for_each(|time_us| counted.add(&values, 2, time_us, 1));
        let mut bytes = Vec::new();
        counted.encode(&mut bytes);
        let mut counted = plan.decode(&mut bytes.as_slice()).unwrap();
        (1..4).for_each(|time_us| counted.add(&values, 2, time_us, -1));
        assert_eq!(plan.result(&counted, asked), Finished::Failed(TOO_LONG_LIST));
        assert!(counted.memory_bytes() < 1 << 10 || counted.values.is_empty());
    }

    /// Compares the walk over counted values with a computation over the single values.
    #[test]
    fn every_function_is_that_of_the_values_that_are_left() {
        use AggregateFunction as F;
        let taken = [3, -4, 3, 7, 12, 7, 3];
        let values = CountedValues { values: Values::Words(taken.to_vec()), valid: None, keys: None };
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
