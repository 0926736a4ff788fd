//! Where the states of a set of aggregates lie in a pane, and how rows and panes go into them.
//!
//! A pane is an *entry*: a header of 32-bit halves, the counts in further halves, then the states in whole words. A
//! window is the same with counts of 64 bits and without header. [`plan`](super::plan) decides what is kept.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::error::ArrowError;
use rivulet_dataflow::canonical_float;

use super::earlier::Earlier;
use super::fixed::{
    FixedKind, FixedValues, SumOverflow, finish_moments, finish_regression, float, quotient, sum, undone_sum,
};
use super::object::{Object, ObjectKind, ObjectUpdate, ObjectValues};
use super::{AggregateFunction, Storage, kept};

/// The count of a pane that has reached what 32 bits hold. It stays there, and the window's results are refused.
const COUNT_FULL: u32 = u32::MAX;
/// The value of such a count in a window.
const COUNT_UNKNOWN: u64 = u64::MAX;

/// The layout of the states of an application's aggregates.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Words of a pane: header, counts and states.
    pub(crate) entry_words: usize,
    /// A pane without rows; its header is zero.
    pub(crate) empty_entry: Vec<u64>,
    /// A window without rows: for each class its count, then the states.
    pub(crate) empty_window: Vec<u64>,
    pub(super) classes: Vec<Class>,
    /// The fixed states, in the order of their classes.
    pub(super) fixed: Vec<FixedState>,
    pub(crate) objects: Vec<ObjectState>,
    /// For each aggregate, where its result is found.
    pub(crate) results: Vec<AggregateResult>,
    /// The inputs of states: an evaluated expression, and the type it is cast to.
    pub(super) arguments: Vec<(usize, DataType)>,
    /// Whether states are merged in the order of their rows.
    pub(crate) in_order: bool,
    /// The layout of earlier versions, if it was different.
    pub(crate) earlier: Option<Earlier>,
}

/// The rows that some states count: those that pass a filter and have some arguments that are not null.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) rows: Rows,
    /// The half of an entry's words in which they are counted, if a count is needed.
    pub(super) count_half: Option<usize>,
    pub(super) states: Range<usize>,
}

/// Which rows count, by the evaluated expressions that decide it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// The expressions that must not be null, ascending.
    pub(super) not_null: Vec<usize>,
    pub(super) filter: Option<usize>,
}

/// A state of fixed size.
#[derive(Debug)]
pub(super) struct FixedState {
    pub(super) kind: FixedKind,
    /// Indices of its arguments in the layout.
    pub(super) arguments: Vec<usize>,
    /// Its offset in an entry.
    pub(super) offset: usize,
}

/// A state kept as an object.
#[derive(Debug)]
pub(crate) struct ObjectState {
    pub(crate) kind: ObjectKind,
    pub(super) arguments: Vec<usize>,
    pub(super) rows: Rows,
}

/// Where the result of an aggregate is found.
#[derive(Debug)]
pub(crate) struct AggregateResult {
    pub(crate) function: AggregateFunction,
    /// The type of the output column.
    pub(crate) data_type: DataType,
    pub(crate) source: Source,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// In the fixed states of the class with this index; numbers are read in this form.
    Fixed { class: usize, form: Form, storage: Storage },
    /// In the object state with this index.
    Object(usize),
}

/// How the result is read from a window; numbers are indices of the window's words.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// The number of rows.
    Count,
    /// One word, if there is at least one row.
    Word(usize),
    /// Two words, if there is at least one row.
    WideSum(usize),
    /// The second of two words, unless the first still has its value without rows.
    Timed(usize),
    /// A sum that can be undone, if there is at least one row.
    Undone(usize),
    /// The same, divided by the number of rows.
    UndoneQuotient(usize),
    /// A sum, divided by the number of rows.
    Quotient(usize),
    /// A sum of integers, divided by the number of rows.
    WideQuotient(usize),
    /// A sum of the digits of decimals by the number of rows, with so many digits more.
    DecimalQuotient(usize, u32),
    /// Mean and centred sum of squares.
    Moments(usize, usize),
    /// The words of a regression.
    Regression(usize),
}

impl Layout {
    /// The layout as text: state fits an operator only if their fingerprints are equal.
    pub(crate) fn fingerprint(&self) -> String {
        let counts = self.classes.iter().filter_map(|class| class.count_half).map(|half| format!("Count@{half}"));
        let fixed = self.fixed.iter().map(|state| format!("{:?}@{}", state.kind, state.offset));
        let objects = self.objects.iter().map(|state| format!("{:?}", state.kind));
        counts.chain(fixed).chain(objects).collect::<Vec<_>>().join(" ")
    }

    /// A new pane's objects.
    pub(crate) fn empty_objects(&self) -> Box<[Object]> {
        self.objects.iter().map(|state| state.kind.empty()).collect()
    }

    /// Merges consecutive panes into a window.
    pub(crate) fn merge(&self, window: &mut [u64], entries: &[u64]) {
        let (counts, states) = window.split_at_mut(self.classes.len());
        let mut start = 0;
        for (class, count) in self.classes.iter().zip(counts) {
            for state in &self.fixed[class.states.clone()] {
                let words = state.kind.words();
                let entries = entries.chunks_exact(self.entry_words);
                let count_of = |entry: &[u64]| class.count(entry);
                state.kind.merge(&mut states[start..start + words], *count, entries, state.offset, count_of);
                start += words;
            }
            let entries = entries.chunks_exact(self.entry_words);
            *count = entries.fold(*count, |count, entry| count.saturating_add(class.count(entry)));
        }
    }

    /// Merges a later pane into an earlier one, which keeps its header.
    pub(crate) fn merge_entry(&self, entry: &mut [u64], later: &[u64]) {
        for class in &self.classes {
            let (count, other) = (class.count(entry), class.count(later));
            for state in &self.fixed[class.states.clone()] {
                let place = state.offset..state.offset + state.kind.words();
                state.kind.merge(&mut entry[place], count, std::iter::once(later), state.offset, |_| other);
            }
            if let Some(half) = class.count_half {
                put_half(entry, half, u32::try_from(count.saturating_add(other)).unwrap_or(COUNT_FULL));
            }
        }
    }

    /// Whether the counts of a window are exact.
    pub(crate) fn is_counted(&self, window: &[u64]) -> bool {
        window[..self.classes.len()].iter().all(|&count| count != COUNT_UNKNOWN)
    }

    /// Casts evaluated expressions to the types in which they are counted.
    pub(crate) fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, ArrowError> {
        self.prepare_rows(columns, None)
    }

    /// The same for the marked rows only.
    pub(crate) fn prepare_rows(
        &self,
        columns: &[ArrayRef],
        marked: Option<&BooleanBuffer>,
    ) -> Result<Prepared, ArrowError> {
        let arguments = self
            .arguments
            .iter()
            .map(|(expression, target)| kept(&columns[*expression], target))
            .collect::<Result<_, _>>()?;
        Ok(Prepared {
            arguments,
            fixed_valid: self.classes.iter().map(|class| valid_rows(&class.rows, columns, marked)).collect(),
            object_valid: self.objects.iter().map(|state| valid_rows(&state.rows, columns, marked)).collect(),
        })
    }

    /// The values of a prepared batch for each fixed state.
    pub(super) fn fixed_values<'a>(&self, prepared: &'a Prepared) -> impl Iterator<Item = FixedValues<'a>> {
        self.fixed.iter().map(|state| {
            let argument = |index: usize| &prepared.arguments[state.arguments[index]];
            let floats = |index: usize| -> &'a [f64] { argument(index).as_primitive::<Float64Type>().values() };
            let integers = || -> &'a [i64] { argument(0).as_primitive::<Int64Type>().values() };
            let is_float = || *argument(0).data_type() == DataType::Float64;
            match state.kind {
                FixedKind::SumFloat => FixedValues::SumFloat(floats(0)),
                FixedKind::SumInteger => FixedValues::SumInteger(integers()),
                FixedKind::SumUndone => FixedValues::SumUndone(floats(0)),
                FixedKind::MinFloat => FixedValues::MinFloat(floats(0)),
                FixedKind::MaxFloat => FixedValues::MaxFloat(floats(0)),
                FixedKind::MinInteger => FixedValues::MinInteger(integers()),
                FixedKind::MaxInteger => FixedValues::MaxInteger(integers()),
                FixedKind::BitAnd => FixedValues::BitAnd(integers()),
                FixedKind::BitOr => FixedValues::BitOr(integers()),
                FixedKind::BitXor => FixedValues::BitXor(integers()),
                FixedKind::Variance => FixedValues::Variance(floats(0)),
                // The argument order in SQL is (y, x).
                FixedKind::Regression => FixedValues::Regression(floats(1), floats(0)),
                FixedKind::First if is_float() => FixedValues::FirstFloat(floats(0)),
                FixedKind::First => FixedValues::FirstInteger(integers()),
                FixedKind::Last if is_float() => FixedValues::LastFloat(floats(0)),
                FixedKind::Last => FixedValues::LastInteger(integers()),
                FixedKind::Kalman => FixedValues::Kalman([0, 1, 2].map(floats)),
                FixedKind::AvgLast => FixedValues::AvgLast([0, 1].map(floats)),
            }
        })
    }

    /// The updates of fixed states for a prepared batch.
    pub(crate) fn fixed_updates<'a>(&self, prepared: &'a Prepared) -> FixedUpdates<'a> {
        let states = self.fixed.iter().map(|state| state.offset).zip(self.fixed_values(prepared));
        let classes = self.classes.iter().zip(&prepared.fixed_valid).map(|(class, valid)| ClassUpdate {
            valid: valid.as_ref(),
            count_half: class.count_half,
            states: class.states.clone(),
        });
        FixedUpdates { classes: classes.collect(), states: states.collect() }
    }

    /// The updates of object states for a prepared batch.
    pub(crate) fn object_updates<'a>(&self, prepared: &'a Prepared) -> Vec<ObjectUpdate<'a>> {
        self.objects
            .iter()
            .zip(&prepared.object_valid)
            .map(|(state, valid)| {
                let argument = &prepared.arguments[state.arguments[0]];
                let values = match argument.data_type() {
                    DataType::Utf8 if state.kind.list_form().is_some() => {
                        let others = || state.arguments[1..].iter().map(|&other| &prepared.arguments[other]);
                        let separators = others().find_map(|other| other.as_string_opt::<i32>());
                        let keys = others().find_map(|other| other.as_binary_opt::<i32>());
                        ObjectValues::List(argument.as_string::<i32>(), separators, keys)
                    }
                    DataType::Float64 => {
                        let values: &'a [f64] = argument.as_primitive::<Float64Type>().values();
                        match state.arguments.get(1) {
                            Some(&fraction) => {
                                let fractions = prepared.arguments[fraction].as_primitive::<Float64Type>();
                                ObjectValues::Fractions(values, fractions.values())
                            }
                            None => ObjectValues::Floats(values),
                        }
                    }
                    DataType::Utf8 => ObjectValues::Texts(argument.as_string::<i32>()),
                    _ => ObjectValues::Integers(argument.as_primitive::<Int64Type>().values()),
                };
                ObjectUpdate { kind: state.kind, values, valid: valid.as_ref() }
            })
            .collect()
    }
}

impl Class {
    /// The number of rows in an entry; [`COUNT_UNKNOWN`] if there were too many to count, 0 if no aggregate needs it.
    #[inline]
    fn count(&self, entry: &[u64]) -> u64 {
        match self.count_half.map(|half| half_of(entry, half)) {
            None => 0,
            Some(COUNT_FULL) => COUNT_UNKNOWN,
            Some(count) => u64::from(count),
        }
    }
}

#[inline]
fn half_of(entry: &[u64], half: usize) -> u32 {
    (entry[half / 2] >> (half % 2 * 32)) as u32
}

#[inline]
fn put_half(entry: &mut [u64], half: usize, value: u32) {
    let shift = half % 2 * 32;
    let word = &mut entry[half / 2];
    *word = *word & !(u64::from(u32::MAX) << shift) | u64::from(value) << shift;
}

impl AggregateResult {
    /// The result of a window as a floating-point number.
    pub(crate) fn float(&self, class: usize, form: Form, window: &[u64]) -> Option<f64> {
        let count = window[class];
        let found = match form {
            Form::Quotient(word) => (count > 0).then(|| float(window[word]) / count as f64),
            Form::WideQuotient(word) => (count > 0).then(|| sum(&window[word..]) as f64 / count as f64),
            Form::Undone(word) => (count > 0).then(|| undone_sum(&window[word..])),
            Form::UndoneQuotient(word) => (count > 0).then(|| undone_sum(&window[word..]) / count as f64),
            Form::Moments(mean, squares) => {
                finish_moments(self.function, count, float(window[mean]), float(window[squares]))
            }
            Form::Regression(word) => finish_regression(self.function, count, &window[word..]),
            _ => self.word(class, form, window).map(float),
        };
        found.map(canonical_float)
    }

    /// The result of a window that is an integer, or is kept as one.
    pub(crate) fn integer(&self, class: usize, form: Form, window: &[u64]) -> Result<Option<i64>, SumOverflow> {
        match form {
            Form::Count => Ok(Some(window[class] as i64)),
            Form::WideSum(word) if window[class] > 0 => {
                i64::try_from(sum(&window[word..])).map(Some).map_err(|_| SumOverflow)
            }
            Form::WideSum(_) | Form::DecimalQuotient(..) if window[class] == 0 => Ok(None),
            Form::DecimalQuotient(word, digits) => quotient(sum(&window[word..]), digits, window[class]),
            _ => Ok(self.word(class, form, window).map(|word| word as i64)),
        }
    }

    fn word(&self, class: usize, form: Form, window: &[u64]) -> Option<u64> {
        match form {
            Form::Word(word) => (window[class] > 0).then(|| window[word]),
            Form::Timed(word) => {
                let nothing = if self.function == AggregateFunction::FirstValue { i64::MAX } else { i64::MIN };
                (window[word] != nothing as u64).then(|| window[word + 1])
            }
            _ => unreachable!("other forms are no words"),
        }
    }
}

/// A batch's arguments, cast to the types in which they are counted.
pub(crate) struct Prepared {
    arguments: Vec<ArrayRef>,
    fixed_valid: Vec<Option<BooleanBuffer>>,
    object_valid: Vec<Option<BooleanBuffer>>,
}

impl Prepared {
    /// The rows that count for a class; `None` for all.
    pub(super) fn valid(&self, class: usize) -> Option<&BooleanBuffer> {
        self.fixed_valid[class].as_ref()
    }
}

/// Updates the fixed states of panes with the rows of a batch.
pub(crate) struct FixedUpdates<'a> {
    classes: Vec<ClassUpdate<'a>>,
    /// For each state its offset in an entry, and its values.
    states: Vec<(usize, FixedValues<'a>)>,
}

struct ClassUpdate<'a> {
    /// The rows that count; `None` for all.
    valid: Option<&'a BooleanBuffer>,
    count_half: Option<usize>,
    states: Range<usize>,
}

impl FixedUpdates<'_> {
    /// Counts `row`, whose event time is `time_us`, in an entry.
    #[inline]
    pub(crate) fn update(&self, entry: &mut [u64], row: usize, time_us: i64) {
        for class in &self.classes {
            if class.valid.is_some_and(|valid| !valid.value(row)) {
                continue;
            }
            let count = class.count_half.map_or(0, |half| {
                let count = half_of(entry, half).saturating_add(1);
                put_half(entry, half, count);
                count
            });
            for (offset, values) in &self.states[class.states.clone()] {
                values.update(&mut entry[*offset..], u64::from(count), row, time_us);
            }
        }
    }
}

/// The rows that count; `None` for all.
pub(super) fn valid_rows(rows: &Rows, columns: &[ArrayRef], marked: Option<&BooleanBuffer>) -> Option<BooleanBuffer> {
    let mut valid: Option<BooleanBuffer> = marked.cloned();
    let mut restrict = |rows: BooleanBuffer| {
        valid = Some(match valid.take() {
            Some(valid) => &valid & &rows,
            None => rows,
        });
    };
    for &column in &rows.not_null {
        if let Some(nulls) = columns[column].logical_nulls().filter(|nulls| nulls.null_count() > 0) {
            restrict(nulls.inner().clone());
        }
    }
    if let Some(filter) = rows.filter {
        let filter = columns[filter].as_boolean();
        restrict(filter.values().clone());
        if let Some(nulls) = filter.nulls() {
            restrict(nulls.inner().clone());
        }
    }
    valid
}

impl Storage {
    /// The Arrow type in which values of this form are counted.
    pub(crate) fn data_type(self) -> DataType {
        match self {
            Self::Float => DataType::Float64,
            Self::Integer | Self::Boolean | Self::Time => DataType::Int64,
            Self::Text => DataType::Utf8,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Float64Array;
    use arrow::datatypes::{Field, Schema};

    use super::*;

    #[test]
    fn means_of_decimals_are_rounded_half_away_from_zero() {
        for (sum, digits, count, expected) in [
            (1, 0, 2, 1),
            (-1, 0, 2, -1),
            (1, 0, 3, 0),
            (2, 0, 3, 1),
            (-2, 2, 3, -67),
            (0, 4, 7, 0),
            (10, 4, 4, 25_000),
        ] {
            assert_eq!(quotient(sum, digits, count), Ok(Some(expected)), "{sum} / {count}");
        }
        assert_eq!(quotient(i128::from(i64::MAX) * 2, 0, 1), Err(SumOverflow));
    }
    use crate::AggregateSpec;
    use crate::expression::column;

    #[test]
    fn more_rows_than_a_count_holds_are_noticed() {
        let schema = Schema::new(vec![Field::new("x", DataType::Float64, true)]);
        let of = |function, arguments| AggregateSpec { name: "a".into(), function, arguments, filter: None };
        let specs = [of(AggregateFunction::Count, vec![]), of(AggregateFunction::Avg, vec![column(&schema, 0)])];
        let (layout, _) = Layout::new(&specs, &schema, 1).unwrap();
        let prepared = layout.prepare(&[Arc::new(Float64Array::from(vec![1.0]))]).unwrap();
        let updates = layout.fixed_updates(&prepared);
        let mut entry = layout.empty_entry.clone();
        let half = layout.classes[0].count_half.unwrap();
        put_half(&mut entry, half, COUNT_FULL - 2);
        let window = |entries: &[&[u64]]| {
            let mut window = layout.empty_window.clone();
            layout.merge(&mut window, &entries.concat());
            window
        };
        updates.update(&mut entry, 0, 0);
        assert!(layout.is_counted(&window(&[&entry, &entry])), "windows count in 64 bits");
        let mut joined = entry.clone();
        layout.merge_entry(&mut joined, &entry);
        assert!(!layout.is_counted(&window(&[&joined])));
        updates.update(&mut entry, 0, 0);
        updates.update(&mut entry, 0, 0);
        assert_eq!(half_of(&entry, half), COUNT_FULL);
        assert!(!layout.is_counted(&window(&[&layout.empty_entry, &entry, &entry])));
    }
}
