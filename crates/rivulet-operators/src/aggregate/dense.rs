//! States of very many groups, each a row of words, updated a column at a time.
//!
//! Big queries count the rows of a batch in states that are known by number. The choice of the aggregate is outside the
//! loop over the batch, so each aggregate is a loop without branches. The words are those of a window (see
//! [`layout`](super::layout)): counts of 64 bits, then the states. [`fixed`](super::fixed) defines what an aggregate
//! does with a value. Only `first` and `last` differ here: of rows with one event time they choose by value, because
//! rows of several instances have no order.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::DataType;

use super::fixed::{FixedKind, FixedValues};
use super::layout::{AggregateResult, Form, Layout, Prepared, Source};
use super::{DECIMAL_DIGITS, Storage};
use crate::paged::PagedRows;

/// Some rows of a batch, in order.
#[derive(Clone, Debug)]
pub(crate) enum RowSet<'a> {
    /// Adjacent rows.
    Range(Range<usize>),
    /// Any rows.
    List(&'a [u32]),
}

impl RowSet<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Range(range) => range.len(),
            Self::List(rows) => rows.len(),
        }
    }

    /// Calls `each` with the index in the set and the row.
    #[inline(always)]
    pub(crate) fn for_each(&self, mut each: impl FnMut(usize, usize)) {
        match self {
            Self::Range(range) => range.clone().enumerate().for_each(|(at, row)| each(at, row)),
            Self::List(rows) => rows.iter().enumerate().for_each(|(at, &row)| each(at, row as usize)),
        }
    }
}

/// Updates states with the rows of a batch.
pub(crate) struct DenseUpdates<'a> {
    classes: Vec<ClassUpdate<'a>>,
}

struct ClassUpdate<'a> {
    valid: Option<&'a BooleanBuffer>,
    /// Whether values and counts must be updated together, row by row.
    by_row: bool,
    /// For each state its offset and its values.
    states: Vec<(usize, FixedValues<'a>)>,
}

impl Layout {
    /// The number of words of a group's states.
    pub(crate) fn dense_words(&self) -> usize {
        self.empty_window.len()
    }

    /// The number of counts among a group's words; they come first.
    pub(crate) fn dense_counts(&self) -> usize {
        self.classes.len()
    }

    /// The offset of each fixed state in a group's words.
    fn dense_offset(&self, state: usize) -> usize {
        self.classes.len() + self.fixed[state].offset - self.fixed[0].offset
    }

    /// The updates for the rows of a prepared batch.
    pub(crate) fn dense_updates<'a>(&self, prepared: &'a Prepared) -> DenseUpdates<'a> {
        let mut values = self.fixed_values(prepared);
        let classes = self.classes.iter().enumerate().map(|(class, layout)| ClassUpdate {
            valid: prepared.valid(class),
            by_row: self.fixed[layout.states.clone()]
                .iter()
                .any(|state| matches!(state.kind, FixedKind::Variance | FixedKind::Regression)),
            states: layout
                .states
                .clone()
                .map(|state| (self.dense_offset(state), values.next().expect("values for each state")))
                .collect(),
        });
        DenseUpdates { classes: classes.collect() }
    }

    /// Merges the words of a group into those of another. Of rows with one event time, the least value is first and the
    /// greatest is last, unless groups are merged in the order of their rows.
    pub(crate) fn merge_dense(&self, words: &mut [u64], other: &[u64]) {
        let (counts, _) = other.split_at(self.classes.len());
        for (class, layout) in self.classes.iter().enumerate() {
            for index in layout.states.clone() {
                let kind = self.fixed[index].kind;
                let at = self.dense_offset(index);
                let place = at..at + kind.words();
                match kind {
                    FixedKind::First | FixedKind::Last if self.in_order => {
                        kind.merge(&mut words[place], 0, std::iter::once(other), at, |_| 0);
                    }
                    FixedKind::First if timed(&other[place.clone()]) < timed(&words[place.clone()]) => {
                        words[place.clone()].copy_from_slice(&other[place]);
                    }
                    FixedKind::Last if timed(&other[place.clone()]) > timed(&words[place.clone()]) => {
                        words[place.clone()].copy_from_slice(&other[place]);
                    }
                    FixedKind::First | FixedKind::Last => {}
                    _ => {
                        let count = words[class];
                        let others = std::iter::once(other);
                        kind.merge(&mut words[place], count, others, at, |_| counts[class]);
                    }
                }
            }
            words[class] = words[class].wrapping_add(counts[class]);
        }
    }
}

/// Time and value of a state that keeps both.
fn timed(state: &[u64]) -> (i64, i64) {
    (state[0] as i64, state[1] as i64)
}

impl DenseUpdates<'_> {
    /// Updates the states with rows: `rows[i]` belongs to the group `groups[i]`.
    pub(crate) fn update(&self, states: &mut PagedRows, groups: &[u32], rows: &RowSet<'_>, times_us: &[i64]) {
        for (place, class) in self.classes.iter().enumerate() {
            if class.by_row {
                let moments =
                    |values: &FixedValues<'_>| matches!(values, FixedValues::Variance(_) | FixedValues::Regression(..));
                each(groups, rows, class.valid, |group, row| {
                    let entry = states.row_mut(group);
                    entry[place] += 1;
                    let count = entry[place];
                    for (offset, values) in class.states.iter().filter(|(_, values)| moments(values)) {
                        values.update(&mut entry[*offset..], count, row, times_us[row]);
                    }
                });
            } else {
                each(groups, rows, class.valid, |group, _| states.row_mut(group)[place] += 1);
            }
            for (offset, values) in &class.states {
                // The kind is matched outside the loop, so that the loop has no branch.
                macro_rules! column {
                    ($($kind:ident),*) => {
                        match values {
                            $(FixedValues::$kind(values) => each(groups, rows, class.valid, |group, row| {
                                let kind = FixedValues::$kind(values);
                                kind.update(&mut states.row_mut(group)[*offset..*offset + kind.words()], 0, row, 0);
                            }),)*
                            FixedValues::FirstFloat(_) | FixedValues::FirstInteger(_) => {
                                each(groups, rows, class.valid, |group, row| {
                                    let state = &mut states.row_mut(group)[*offset..*offset + 2];
                                    let candidate = (times_us[row], values.bits(row) as i64);
                                    if candidate < timed(state) {
                                        state.copy_from_slice(&[candidate.0 as u64, candidate.1 as u64]);
                                    }
                                });
                            }
                            FixedValues::LastFloat(_) | FixedValues::LastInteger(_) => {
                                each(groups, rows, class.valid, |group, row| {
                                    let state = &mut states.row_mut(group)[*offset..*offset + 2];
                                    let candidate = (times_us[row], values.bits(row) as i64);
                                    if candidate > timed(state) {
                                        state.copy_from_slice(&[candidate.0 as u64, candidate.1 as u64]);
                                    }
                                });
                            }
                            FixedValues::Kalman(_) | FixedValues::AvgLast(_) => {
                                each(groups, rows, class.valid, |group, row| {
                                    values.update(&mut states.row_mut(group)[*offset..], 0, row, 0);
                                });
                            }
                            // These are updated together with their counts.
                            FixedValues::Variance(_) | FixedValues::Regression(..) => {}
                        }
                    };
                }
                column!(
                    SumFloat, SumInteger, SumUndone, MinFloat, MaxFloat, MinInteger, MaxInteger, BitAnd, BitOr, BitXor
                );
            }
        }
    }

    /// Removes rows from the states, which are counts and sums.
    pub(crate) fn undo(&self, states: &mut PagedRows, groups: &[u32], rows: &RowSet<'_>) {
        for (place, class) in self.classes.iter().enumerate() {
            each(groups, rows, class.valid, |group, row| {
                let entry = states.row_mut(group);
                entry[place] = entry[place].wrapping_sub(1);
                for (offset, values) in &class.states {
                    values.undo(&mut entry[*offset..], row);
                }
            });
        }
    }
}

/// Calls `update` with the group and row of every row that counts.
#[inline(always)]
fn each(groups: &[u32], rows: &RowSet<'_>, valid: Option<&BooleanBuffer>, mut update: impl FnMut(usize, usize)) {
    match valid {
        None => rows.for_each(|at, row| update(groups[at] as usize, row)),
        Some(valid) => rows.for_each(|at, row| {
            if valid.value(row) {
                update(groups[at] as usize, row);
            }
        }),
    }
}

impl AggregateResult {
    /// The results of this aggregate, whose state is words, for these windows. Results outside BIGINT are null, and
    /// their indices are given to `failed`.
    pub(crate) fn column<'a>(
        &self,
        windows: impl Iterator<Item = &'a [u64]>,
        mut failed: impl FnMut(usize),
    ) -> ArrayRef {
        let Source::Fixed { class, form, storage } = self.source else {
            unreachable!("objects have results of their own")
        };
        if storage == Storage::Float && !matches!(form, Form::Count) {
            return Arc::new(windows.map(|window| self.float(class, form, window)).collect::<Float64Array>());
        }
        if let Form::Count = form {
            return Arc::new(Int64Array::from_iter_values(windows.map(|window| window[class] as i64)));
        }
        // A decimal has at most its digits, which are fewer than those of a BIGINT.
        let bound = matches!(self.data_type, DataType::Decimal128(..)).then(|| 10_u64.pow(DECIMAL_DIGITS.into()));
        let integers = windows.enumerate().map(|(row, window)| {
            let found = self.integer(class, form, window).ok();
            let is_beyond = |value: i64| bound.is_some_and(|bound| value.unsigned_abs() >= bound);
            found.filter(|found| !found.is_some_and(is_beyond)).unwrap_or_else(|| {
                failed(row);
                None
            })
        });
        match storage {
            Storage::Boolean => Arc::new(integers.map(|value| value.map(|value| value != 0)).collect::<BooleanArray>()),
            _ => Arc::new(integers.collect::<Int64Array>()),
        }
    }
}
