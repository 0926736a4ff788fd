//! States that must remember values: medians, distinct counts, and everything over text.
//!
//! They are objects beside the words of panes. Each has a bound on the values it remembers. Beyond it the window's
//! result is refused, never wrong.

use std::borrow::Cow;
use std::mem::size_of;

use arrow::array::{BinaryArray, StringArray};
use arrow::buffer::BooleanBuffer;
use foldhash::fast::RandomState;
use hashbrown::HashSet;
use rivulet_dataflow::canonical_float;

use super::Storage;
use super::finished::Finished;
use super::fixed::quotient;
use super::hyperloglog::{HyperLogLog, hash_text, hash_word};
use super::list::{List, ListForm, Ties};

/// The error of a sum that is too large.
pub(crate) const SUM_OVERFLOW: &str = "sum overflows BIGINT\nhint: sum a DOUBLE instead, sum(CAST(x AS DOUBLE))";

/// The most values that one pane remembers for a median, percentile or exact distinct count.
pub(crate) const VALUES_PER_PANE_MAX: usize = 1 << 20;

/// What an object remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Median,
    Percentile,
    DistinctWords,
    DistinctTexts,
    /// What distinct numbers come to.
    DistinctTotal {
        is_float: bool,
        total: Total,
    },
    Approximate,
    MinText,
    MaxText,
    FirstText,
    LastText,
    /// The texts of `string_agg`, with a separator between them.
    TextList,
    /// The values of `array_agg`, in JSON.
    JsonList,
    /// The same with each different text or value once.
    DistinctTextList,
    DistinctJsonList,
}

/// What numbers come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Total {
    Sum,
    Mean,
    /// The mean of decimals, as a decimal with so many digits more behind the point than they have.
    DecimalMean(u32),
}

/// One object state of one pane.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Object {
    /// Numbers in order of arrival, and for percentiles the requested fraction.
    Numbers { values: Vec<f64>, fraction: f64, full: bool },
    /// Bits of distinct values.
    Words { values: HashSet<u64, RandomState>, full: bool },
    /// Distinct texts.
    Texts { values: HashSet<Box<str>, RandomState>, full: bool },
    /// An approximate set.
    Sketch(HyperLogLog),
    /// One text and its event time.
    Text(Option<(i64, Box<str>)>),
    /// Texts in the order of arrival, each with its key. Boxed, because most objects are of other kinds and smaller.
    List(Box<List>),
}

const TOO_MANY_VALUES: &str = "more than 1048576 values in one pane of the window are too many to remember\nhint: use approx_distinct, avg or a shorter window";
const NO_FRACTION: &str =
    "the fraction of percentile_cont is not between 0 and 1\nhint: write for example percentile_cont(value, 0.95)";

/// Updates an object state with the rows of a batch.
pub(crate) struct ObjectUpdate<'a> {
    pub(crate) kind: ObjectKind,
    pub(crate) values: ObjectValues<'a>,
    /// The rows that count; `None` for all.
    pub(crate) valid: Option<&'a BooleanBuffer>,
}

/// The values of a batch's rows for one object state.
pub(crate) enum ObjectValues<'a> {
    Floats(&'a [f64]),
    /// Numbers, each with the fraction of the percentile.
    Fractions(&'a [f64], &'a [f64]),
    Integers(&'a [i64]),
    Texts(&'a StringArray),
    /// Texts, and, where they exist, the separators and the keys.
    List(&'a StringArray, Option<&'a StringArray>, Option<&'a BinaryArray>),
}

impl ObjectUpdate<'_> {
    /// Updates an object with the value of `row`, whose event time is `time_us`.
    pub(crate) fn update(&self, object: &mut Object, row: usize, time_us: i64) {
        if self.valid.is_some_and(|valid| !valid.value(row)) {
            return;
        }
        match (object, &self.values) {
            (Object::Numbers { values, full, .. }, ObjectValues::Floats(floats)) => push(values, full, floats[row]),
            (Object::Numbers { values, fraction, full }, ObjectValues::Fractions(floats, fractions)) => {
                *fraction = fractions[row];
                push(values, full, floats[row]);
            }
            (Object::Words { values, full }, ObjectValues::Floats(floats)) => {
                add(values, full, canonical_float(floats[row]).to_bits());
            }
            (Object::Words { values, full }, ObjectValues::Integers(integers)) => {
                add(values, full, integers[row] as u64);
            }
            (Object::Texts { values, full }, ObjectValues::Texts(texts)) => {
                if !values.contains(texts.value(row)) {
                    add(values, full, texts.value(row).into());
                }
            }
            (Object::Sketch(sketch), ObjectValues::Floats(floats)) => {
                sketch.insert(hash_word(canonical_float(floats[row]).to_bits()));
            }
            (Object::Sketch(sketch), ObjectValues::Integers(integers)) => {
                sketch.insert(hash_word(integers[row] as u64));
            }
            (Object::Sketch(sketch), ObjectValues::Texts(texts)) => sketch.insert(hash_text(texts.value(row))),
            (Object::Text(text), ObjectValues::Texts(texts)) => {
                let value = texts.value(row);
                if text.as_ref().is_none_or(|(time, held)| self.kind.replaces(*time, held, time_us, value)) {
                    *text = Some((time_us, value.into()));
                }
            }
            (Object::List(list), ObjectValues::List(texts, separators, keys)) => {
                if let Some(separators) = separators {
                    list.put_separator(separators.value(row));
                }
                let key = keys.map_or(&[][..], |keys| keys.value(row));
                let form = self.kind.list_form().unwrap_or_default();
                list.push(form, time_us, key, texts.value(row).as_bytes());
            }
            _ => debug_assert!(false, "the layout gives each object values of its kind"),
        }
    }
}

fn push(values: &mut Vec<f64>, full: &mut bool, value: f64) {
    match values.len() < VALUES_PER_PANE_MAX {
        true => values.push(value),
        false => *full = true,
    }
}

fn add<T: Eq + std::hash::Hash>(values: &mut HashSet<T, RandomState>, full: &mut bool, value: T) {
    if values.len() < VALUES_PER_PANE_MAX {
        values.insert(value);
    } else if !values.contains(&value) {
        *full = true;
    }
}

impl ObjectKind {
    /// An object without values.
    pub(crate) fn empty(self) -> Object {
        match self {
            Self::Median => Object::Numbers { values: Vec::new(), fraction: 0.5, full: false },
            Self::Percentile => Object::Numbers { values: Vec::new(), fraction: f64::NAN, full: false },
            Self::DistinctWords | Self::DistinctTotal { .. } => {
                Object::Words { values: HashSet::default(), full: false }
            }
            Self::DistinctTexts => Object::Texts { values: HashSet::default(), full: false },
            Self::Approximate => Object::Sketch(HyperLogLog::default()),
            Self::MinText | Self::MaxText | Self::FirstText | Self::LastText => Object::Text(None),
            Self::TextList | Self::JsonList | Self::DistinctTextList | Self::DistinctJsonList => {
                Object::List(Box::default())
            }
        }
    }

    /// The form of the results.
    pub(crate) fn result_storage(self) -> Storage {
        match self {
            Self::Median | Self::Percentile => Storage::Float,
            Self::DistinctTotal { is_float: true, .. } | Self::DistinctTotal { total: Total::Mean, .. } => {
                Storage::Float
            }
            Self::DistinctTotal { .. } => Storage::Integer,
            Self::DistinctWords | Self::DistinctTexts | Self::Approximate => Storage::Integer,
            Self::MinText | Self::MaxText | Self::FirstText | Self::LastText => Storage::Text,
            Self::TextList | Self::JsonList | Self::DistinctTextList | Self::DistinctJsonList => Storage::Text,
        }
    }

    /// The form of the list, if the object is one.
    pub(crate) fn list_form(self) -> Option<ListForm> {
        let form = |is_json, is_distinct| Some(ListForm { is_json, is_distinct });
        match self {
            Self::TextList => form(false, false),
            Self::JsonList => form(true, false),
            Self::DistinctTextList => form(false, true),
            Self::DistinctJsonList => form(true, true),
            _ => None,
        }
    }

    fn replaces(self, held_time_us: i64, held: &str, time_us: i64, text: &str) -> bool {
        match self {
            Self::MinText => text < held,
            Self::MaxText => text > held,
            Self::FirstText => time_us < held_time_us,
            _ => time_us >= held_time_us,
        }
    }

    /// Merges a later object into an earlier one.
    pub(crate) fn merge(self, object: &mut Object, later: Object) {
        match (object, later) {
            (Object::Numbers { values, fraction, full }, Object::Numbers { values: later, fraction: f, full: l }) => {
                if !later.is_empty() {
                    *fraction = f;
                }
                *full |= l;
                later.into_iter().for_each(|value| push(values, full, value));
            }
            (Object::Words { values, full }, Object::Words { values: later, full: l }) => {
                *full |= l;
                later.into_iter().for_each(|value| add(values, full, value));
            }
            (Object::Texts { values, full }, Object::Texts { values: later, full: l }) => {
                *full |= l;
                later.into_iter().for_each(|value| add(values, full, value));
            }
            (Object::Sketch(sketch), Object::Sketch(later)) => sketch.merge(&later),
            (Object::Text(text), Object::Text(Some((time, later)))) => {
                if text.as_ref().is_none_or(|(held_time, held)| self.replaces(*held_time, held, time, &later)) {
                    *text = Some((time, later));
                }
            }
            (Object::Text(_), Object::Text(None)) => {}
            (Object::List(list), Object::List(later)) => {
                list.merge(self.list_form().unwrap_or_default(), &later);
            }
            _ => debug_assert!(false, "objects of one state are of one kind"),
        }
    }

    /// Computes the result over panes in order.
    pub(crate) fn finish<'a>(self, panes: impl Iterator<Item = &'a Object> + Clone) -> Finished {
        let full = panes.clone().any(|object| match object {
            Object::Numbers { full, .. } | Object::Words { full, .. } | Object::Texts { full, .. } => *full,
            Object::List(_) | Object::Sketch(_) | Object::Text(_) => false,
        });
        if full {
            return Finished::Failed(TOO_MANY_VALUES);
        }
        match self {
            Self::Median | Self::Percentile => {
                let (mut all, mut asked) = (Vec::new(), 0.5);
                for object in panes {
                    if let Object::Numbers { values, fraction, .. } = object
                        && !values.is_empty()
                    {
                        all.extend_from_slice(values);
                        asked = *fraction;
                    }
                }
                match all.is_empty() {
                    true => Finished::Null,
                    false if self == Self::Median => Finished::Float(canonical_float(median(&mut all))),
                    false if !(0.0..=1.0).contains(&asked) => Finished::Failed(NO_FRACTION),
                    false => Finished::Float(canonical_float(percentile(&mut all, asked))),
                }
            }
            Self::DistinctWords => {
                let mut sets = panes.filter_map(|object| match object {
                    Object::Words { values, .. } => Some(values),
                    _ => None,
                });
                let Some(first) = sets.next() else { return Finished::Integer(0) };
                let mut rest = sets.peekable();
                if rest.peek().is_none() {
                    return Finished::Integer(first.len() as i64);
                }
                let mut all = first.clone();
                rest.for_each(|values| all.extend(values.iter().copied()));
                Finished::Integer(all.len() as i64)
            }
            Self::DistinctTotal { is_float, total } => {
                let mut all: Vec<u64> = Vec::new();
                panes.for_each(|object| {
                    if let Object::Words { values, .. } = object {
                        all.extend(values.iter().copied());
                    }
                });
                // Sorted, so that sums of equal values are equal to the last digit.
                all.sort_unstable();
                all.dedup();
                match is_float {
                    true => sum_of_floats(all.into_iter().map(f64::from_bits), total),
                    false => sum_of_integers(all.into_iter().map(|word| word as i64), total),
                }
            }
            Self::DistinctTexts => {
                let mut all: HashSet<&str, RandomState> = HashSet::default();
                panes.for_each(|object| {
                    if let Object::Texts { values, .. } = object {
                        all.extend(values.iter().map(|text| &**text));
                    }
                });
                Finished::Integer(all.len() as i64)
            }
            Self::Approximate => {
                let mut sketches = panes.filter_map(|object| match object {
                    Object::Sketch(sketch) => Some(sketch),
                    _ => None,
                });
                // Of one pane nothing is copied.
                let Some(mut all) = sketches.next().map(Cow::Borrowed) else { return Finished::Integer(0) };
                sketches.for_each(|sketch| all.to_mut().merge(sketch));
                Finished::Integer(all.estimate() as i64)
            }
            Self::MinText | Self::MaxText | Self::FirstText | Self::LastText => {
                let mut best: Option<&(i64, Box<str>)> = None;
                panes.for_each(|object| {
                    if let Object::Text(Some(candidate)) = object
                        && best.is_none_or(|best| self.replaces(best.0, &best.1, candidate.0, &candidate.1))
                    {
                        best = Some(candidate);
                    }
                });
                best.map_or(Finished::Null, |(_, text)| Finished::Text(text.clone()))
            }
            Self::TextList | Self::JsonList | Self::DistinctTextList | Self::DistinctJsonList => {
                self.joined(panes, Ties::Arrival)
            }
        }
    }

    /// Computes the result of one object whose rows came from several instances and so in no order of arrival.
    pub(crate) fn finish_unordered(self, object: &Object) -> Finished {
        match object {
            Object::List(_) => self.joined(std::iter::once(object), Ties::Text),
            _ => self.finish(std::iter::once(object)),
        }
    }

    fn joined<'a>(self, panes: impl Iterator<Item = &'a Object>, ties: Ties) -> Finished {
        let lists = panes.filter_map(|object| match object {
            Object::List(list) => Some(&**list),
            _ => None,
        });
        self.list_form().unwrap_or_default().of_lists(lists, ties)
    }
}

/// What numbers come to; null of none.
pub(crate) fn sum_of_floats(numbers: impl Iterator<Item = f64>, total: Total) -> Finished {
    let (count, sum) = numbers.fold((0_u64, 0.0), |(count, sum), number| (count + 1, sum + number));
    match count {
        0 => Finished::Null,
        _ => Finished::Float(canonical_float(if total == Total::Sum { sum } else { sum / count as f64 })),
    }
}

/// The same of integers, which the digits of decimals are as well.
pub(crate) fn sum_of_integers(numbers: impl Iterator<Item = i64>, total: Total) -> Finished {
    let (count, sum) = numbers.fold((0_u64, 0_i128), |(count, sum), number| (count + 1, sum + i128::from(number)));
    let exact = match total {
        _ if count == 0 => return Finished::Null,
        Total::Mean => return Finished::Float(sum as f64 / count as f64),
        Total::Sum => i64::try_from(sum).ok(),
        Total::DecimalMean(digits) => quotient(sum, digits, count).ok().flatten(),
    };
    exact.map_or(Finished::Failed(SUM_OVERFLOW), Finished::Integer)
}

/// NaN is the greatest number.
fn order(a: &f64, b: &f64) -> std::cmp::Ordering {
    canonical_float(*a).total_cmp(&canonical_float(*b))
}

/// The median of at least one value. For an even number of values it is the mean of the two middle ones.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(middle, order);
    if !even {
        return *upper;
    }
    let lower = below.iter().copied().max_by(order).expect("an even number of values has two middle ones");
    middle_of(lower, *upper)
}

/// The mean of two numbers.
pub(crate) fn middle_of(lower: f64, upper: f64) -> f64 {
    // Each number is halved first if the sum would leave the range.
    if (lower + upper).is_finite() { (lower + upper) / 2.0 } else { lower / 2.0 + upper / 2.0 }
}

/// The percentile of at least one value, linearly interpolated between the two nearest ranks.
fn percentile(values: &mut [f64], fraction: f64) -> f64 {
    let rank = fraction * (values.len() - 1) as f64;
    let (_, lower, above) = values.select_nth_unstable_by(rank.floor() as usize, order);
    let lower = *lower;
    let weight = rank - rank.floor();
    if weight == 0.0 {
        return lower;
    }
    let upper = above.iter().copied().min_by(order).expect("a rank between two values has one above");
    lower + (upper - lower) * weight
}

impl Object {
    /// Memory held beside the object itself, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Numbers { values, .. } => values.capacity() * 8,
            Self::Words { values, .. } => values.allocation_size(),
            Self::Texts { values, .. } => {
                values.allocation_size() + values.iter().map(|text| text.len()).sum::<usize>()
            }
            Self::Sketch(sketch) => sketch.memory_bytes(),
            Self::Text(text) => text.as_ref().map_or(0, |(_, text)| text.len()),
            Self::List(list) => list.memory_bytes(),
        }
    }

    /// Appends the object to `out`. Sets are written in order, so that equal objects have equal bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let put_length = |out: &mut Vec<u8>, length: usize| out.extend((length as u32).to_le_bytes());
        match self {
            Self::Numbers { values, fraction, full } => {
                out.push(u8::from(*full));
                out.extend(fraction.to_le_bytes());
                put_length(out, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            Self::Words { values, full } => {
                out.push(u8::from(*full));
                put_length(out, values.len());
                let mut words: Vec<u64> = values.iter().copied().collect();
                words.sort_unstable();
                words.iter().for_each(|word| out.extend(word.to_le_bytes()));
            }
            Self::Texts { values, full } => {
                out.push(u8::from(*full));
                put_length(out, values.len());
                let mut texts: Vec<&str> = values.iter().map(|text| &**text).collect();
                texts.sort_unstable();
                for text in texts {
                    put_length(out, text.len());
                    out.extend_from_slice(text.as_bytes());
                }
            }
            Self::Sketch(sketch) => sketch.encode(out),
            Self::Text(None) => out.push(0),
            Self::Text(Some((time, text))) => {
                out.push(1);
                out.extend(time.to_le_bytes());
                put_length(out, text.len());
                out.extend_from_slice(text.as_bytes());
            }
            Self::List(list) => {
                out.push(u8::from(list.is_full()));
                put_length(out, list.separator().len());
                out.extend_from_slice(list.separator().as_bytes());
                put_length(out, list.len());
                for (key, time_us, text) in list.iter() {
                    out.extend(time_us.to_le_bytes());
                    for bytes in [key, text] {
                        put_length(out, bytes.len());
                        out.extend_from_slice(bytes);
                    }
                }
            }
        }
    }

    /// Reads an object of this kind from the front of `bytes`; `None` if the bytes are not such an object. It allocates
    /// no more memory than the bytes need.
    pub(crate) fn decode(kind: ObjectKind, bytes: &mut &[u8]) -> Option<Self> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            bytes.split_off(..N)?.try_into().ok()
        }
        fn take_length(bytes: &mut &[u8], unit: usize) -> Option<usize> {
            let length = u32::from_le_bytes(take(bytes)?) as usize;
            (length.checked_mul(unit)? <= bytes.len()).then_some(length)
        }
        fn take_text(bytes: &mut &[u8]) -> Option<Box<str>> {
            let length = take_length(bytes, 1)?;
            Some(std::str::from_utf8(bytes.split_off(..length)?).ok()?.into())
        }
        fn take_flag(bytes: &mut &[u8]) -> Option<bool> {
            match take::<1>(bytes)? {
                [0] => Some(false),
                [1] => Some(true),
                _ => None,
            }
        }
        Some(match kind.empty() {
            Self::Numbers { .. } => {
                let full = take_flag(bytes)?;
                let fraction = f64::from_le_bytes(take(bytes)?);
                let length = take_length(bytes, 8)?;
                let values = (0..length).map(|_| take(bytes).map(f64::from_le_bytes)).collect::<Option<_>>()?;
                Self::Numbers { values, fraction, full }
            }
            Self::Words { .. } => {
                let full = take_flag(bytes)?;
                let length = take_length(bytes, 8)?;
                let values = (0..length).map(|_| take(bytes).map(u64::from_le_bytes)).collect::<Option<_>>()?;
                Self::Words { values, full }
            }
            Self::Texts { .. } => {
                let full = take_flag(bytes)?;
                let length = take_length(bytes, 4)?;
                let values = (0..length).map(|_| take_text(bytes)).collect::<Option<_>>()?;
                Self::Texts { values, full }
            }
            Self::Sketch(_) => Self::Sketch(HyperLogLog::decode(bytes)?),
            Self::Text(_) => match take_flag(bytes)? {
                true => Self::Text(Some((i64::from_le_bytes(take(bytes)?), take_text(bytes)?))),
                false => Self::Text(None),
            },
            Self::List(_) => {
                let full = take_flag(bytes)?;
                let separator = take_text(bytes)?;
                let length = take_length(bytes, 16)?;
                let form = kind.list_form()?;
                let mut list = List::with_separator(&separator);
                for _ in 0..length {
                    let time_us = i64::from_le_bytes(take(bytes)?);
                    let key_bytes = take_length(bytes, 1)?;
                    let key = bytes.split_off(..key_bytes)?;
                    // If the list is longer than a list may be, the bytes are corrupt.
                    if !list.restore(form, time_us, key, take_text(bytes)?.as_bytes()) {
                        return None;
                    }
                }
                Self::List(Box::new(list.filled(full)))
            }
        })
    }
}

/// Memory of one object in its place, in bytes.
pub(crate) const OBJECT_BYTES: usize = size_of::<Object>();

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ObjectKind; 15] = [
        ObjectKind::Median,
        ObjectKind::Percentile,
        ObjectKind::DistinctWords,
        ObjectKind::DistinctTexts,
        ObjectKind::DistinctTotal { is_float: true, total: Total::Sum },
        ObjectKind::DistinctTotal { is_float: true, total: Total::Mean },
        ObjectKind::Approximate,
        ObjectKind::MinText,
        ObjectKind::MaxText,
        ObjectKind::FirstText,
        ObjectKind::LastText,
        ObjectKind::TextList,
        ObjectKind::JsonList,
        ObjectKind::DistinctTextList,
        ObjectKind::DistinctJsonList,
    ];

    fn object(kind: ObjectKind, rows: std::ops::Range<usize>) -> Object {
        let floats: Vec<f64> = (0..100).map(|n| f64::from(n * 7 % 31)).collect();
        let fractions = vec![0.25; 100];
        let texts: StringArray = (0..100).map(|n| Some(format!("t{}", n * 7 % 31))).collect();
        let separators: StringArray = (0..100).map(|_| Some("; ")).collect();
        let keys: BinaryArray = (0..100u8).map(|n| Some(vec![n % 3])).collect();
        let own_keys: BinaryArray = texts.iter().map(|text| text.map(|text| text.as_bytes().to_vec())).collect();
        let values = match kind {
            ObjectKind::TextList => ObjectValues::List(&texts, Some(&separators), None),
            ObjectKind::JsonList => ObjectValues::List(&texts, None, Some(&keys)),
            ObjectKind::DistinctTextList => ObjectValues::List(&texts, Some(&separators), Some(&own_keys)),
            ObjectKind::DistinctJsonList => ObjectValues::List(&texts, None, Some(&own_keys)),
            ObjectKind::Median | ObjectKind::DistinctWords | ObjectKind::Approximate => ObjectValues::Floats(&floats),
            ObjectKind::DistinctTotal { .. } => ObjectValues::Floats(&floats),
            ObjectKind::Percentile => ObjectValues::Fractions(&floats, &fractions),
            _ => ObjectValues::Texts(&texts),
        };
        let mut object = kind.empty();
        let update = ObjectUpdate { kind, values, valid: None };
        rows.for_each(|row| update.update(&mut object, row, row as i64 % 40));
        object
    }

    #[test]
    fn merging_gives_the_result_of_all_values_together() {
        for kind in KINDS {
            let (first, second) = (object(kind, 0..40), object(kind, 40..100));
            let separate = kind.finish([&first, &second].into_iter());
            let mut merged = first;
            kind.merge(&mut merged, second);
            assert_eq!(kind.finish([&merged].into_iter()), separate, "{kind:?}");
            assert_eq!(kind.finish([&object(kind, 0..100)].into_iter()), separate, "{kind:?}");
        }
    }

    #[test]
    fn bytes_round_trip_and_broken_bytes_are_refused() {
        for kind in KINDS {
            for object in [object(kind, 0..0), object(kind, 0..100)] {
                let mut bytes = Vec::new();
                object.encode(&mut bytes);
                let mut rest = bytes.as_slice();
                let decoded = Object::decode(kind, &mut rest).unwrap();
                let mut again = Vec::new();
                decoded.encode(&mut again);
                assert_eq!((again, rest.len()), (bytes.clone(), 0), "{kind:?}");
                for cut in 0..bytes.len() {
                    assert!(Object::decode(kind, &mut &bytes[..cut]).is_none(), "{kind:?} cut at {cut}");
                }
            }
            assert!(Object::decode(kind, &mut [0xfe; 64].as_slice()).is_none(), "{kind:?}");
        }
    }

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut [f64::MAX, f64::MAX]), f64::MAX);
        assert_eq!(percentile(&mut [10.0, 20.0, 30.0, 40.0, 50.0], 0.25), 20.0);
        assert_eq!(percentile(&mut [50.0, 10.0], 0.9), 46.0);
        assert_eq!(percentile(&mut [7.0], 1.0), 7.0);
    }

    #[test]
    fn different_values_are_summed_once() {
        let integers = [5, -2, 5, i64::MAX, 5];
        let finish = |kind: ObjectKind, rows: std::ops::Range<usize>| {
            let mut object = kind.empty();
            let update = ObjectUpdate { kind, values: ObjectValues::Integers(&integers), valid: None };
            rows.for_each(|row| update.update(&mut object, row, 0));
            kind.finish([&object].into_iter())
        };
        let of = |total| ObjectKind::DistinctTotal { is_float: false, total };
        let (sum, mean) = (of(Total::Sum), of(Total::Mean));
        assert_eq!(finish(sum, 0..3), Finished::Integer(3));
        assert_eq!(finish(mean, 0..3), Finished::Float(1.5));
        assert_eq!(finish(sum, 0..0), Finished::Null);
        assert_eq!(finish(sum, 2..5), Finished::Failed(SUM_OVERFLOW));
        assert_eq!(
            object(ObjectKind::DistinctTotal { is_float: true, total: Total::Sum }, 0..100),
            object(ObjectKind::DistinctWords, 0..100)
        );
    }

    #[test]
    fn a_fraction_beyond_one_is_refused() {
        let mut object = ObjectKind::Percentile.empty();
        let values = ObjectValues::Fractions(&[1.0, 2.0], &[1.5, 1.5]);
        ObjectUpdate { kind: ObjectKind::Percentile, values, valid: None }.update(&mut object, 1, 0);
        assert_eq!(ObjectKind::Percentile.finish([&object].into_iter()), Finished::Failed(NO_FRACTION));
    }

    #[test]
    fn lists_are_in_order_of_key_time_and_arrival() {
        let texts = StringArray::from(vec!["d", "b", "c", "a"]);
        let separators = StringArray::from(vec![", "; 4]);
        let keys = BinaryArray::from(vec![&[1u8][..], &[1], &[0], &[1]]);
        let finish = |kind: ObjectKind, values: ObjectValues<'_>| {
            let mut object = kind.empty();
            let update = ObjectUpdate { kind, values, valid: None };
            [7, 5, 9, 5].into_iter().enumerate().for_each(|(row, time_us)| update.update(&mut object, row, time_us));
            kind.finish([&object].into_iter())
        };
        let text = |text: &str| Finished::Text(text.into());
        let (list, json) = (ObjectKind::TextList, ObjectKind::JsonList);
        assert_eq!(finish(list, ObjectValues::List(&texts, Some(&separators), None)), text("b, a, d, c"));
        assert_eq!(finish(json, ObjectValues::List(&texts, None, Some(&keys))), text("[c,b,a,d]"));
        assert_eq!(json.finish([&json.empty()].into_iter()), Finished::Null);
    }

    #[test]
    fn too_many_values_are_refused_not_forgotten() {
        let mut object = ObjectKind::DistinctWords.empty();
        let integers: Vec<i64> = (0..VALUES_PER_PANE_MAX as i64 + 1).collect();
        let update =
            ObjectUpdate { kind: ObjectKind::DistinctWords, values: ObjectValues::Integers(&integers), valid: None };
        (0..VALUES_PER_PANE_MAX).for_each(|row| update.update(&mut object, row, 0));
        let finish = |object: &Object| ObjectKind::DistinctWords.finish([object].into_iter());
        assert_eq!(finish(&object), Finished::Integer(VALUES_PER_PANE_MAX as i64));
        update.update(&mut object, VALUES_PER_PANE_MAX, 0);
        assert_eq!(finish(&object), Finished::Failed(TOO_MANY_VALUES));
    }
}
