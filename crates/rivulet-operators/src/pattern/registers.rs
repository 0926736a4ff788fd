//! What a partial match remembers of its rows: a fixed number of words, however long it grows.
//!
//! The planner says which earlier rows are read (`LAST(B.value, 1)`, `FIRST(A.ts)`) and what is aggregated
//! (`avg(B.value)`). Each of these has its words, which are updated when a row joins the match. The words that
//! conditions read come first. Two partial matches in the same state with the same such words have the same future, so
//! the better one stands for both.

use rivulet_dataflow::canonical_float;

use super::rows::Rows;
use super::spec::{Aggregate, Navigation, Source};
use crate::aggregate::Storage;
use crate::aggregate::fixed::{put_sum, sum};
use crate::history::value::Value;

/// The word for a row that does not exist.
const NONE: u64 = u64::MAX;

/// The variable whose rows count; `None` for all rows of a match.
type Variable = Option<usize>;

/// The layout of the words of a partial match.
#[derive(Debug, Default)]
pub(super) struct Layout {
    navigations: Vec<Navigated>,
    aggregates: Vec<Aggregated>,
    /// The word with the variable of the last row, if it is kept.
    classifier: Option<usize>,
    words: usize,
    /// The number of words that conditions read.
    pub(super) condition_words: usize,
}

/// The first or the last rows of a variable, as positions: one word for each row.
#[derive(Clone, Debug)]
struct Navigated {
    variable: Variable,
    is_first: bool,
    word: usize,
    rows: usize,
}

/// The value of an aggregate, and behind it a word with the number of values.
#[derive(Clone, Debug)]
struct Aggregated {
    variable: Variable,
    aggregate: Aggregate,
    value: Option<usize>,
    storage: Storage,
    word: usize,
}

/// The number of words of an aggregate's value. The sum behind an average of integers has two: in 64 bits, or as a
/// floating point number, it would not be exact.
fn value_words(aggregate: Aggregate, storage: Storage) -> usize {
    if aggregate == Aggregate::Avg && storage == Storage::Integer { 2 } else { 1 }
}

/// How to read a source from the words, determined once.
#[derive(Clone, Debug)]
pub(super) enum Read {
    /// A value of the row that lies this many rows before the row whose position is in this word.
    Row {
        word: usize,
        before: u64,
        value: usize,
    },
    Aggregate {
        word: usize,
        aggregate: Aggregate,
        storage: Storage,
    },
    Classifier {
        word: usize,
    },
    MatchNumber,
}

/// A match: its words, its rows, its number and the names of the variables.
pub(super) struct Match<'a> {
    pub(super) words: &'a [u64],
    pub(super) rows: &'a Rows,
    /// The number of the match, from 1.
    pub(super) number: u64,
    /// The names of the variables.
    pub(super) names: &'a [String],
}

impl Layout {
    /// Makes room for the words that a source needs: first for sources of conditions, then, after
    /// [`Layout::end_of_conditions`], for those of results.
    pub(super) fn add(&mut self, source: &Source, storages: &[Storage]) {
        match source {
            Source::Value { variable, navigation, .. } => {
                let (is_first, rows) = match navigation {
                    Navigation::First(rows) => (true, rows + 1),
                    Navigation::Last(rows) => (false, rows + 1),
                    Navigation::Previous(_) => (false, 1),
                };
                self.navigate(*variable, is_first, rows);
            }
            Source::Aggregate { aggregate, variable, value } => {
                let storage = value.map_or(Storage::Integer, |value| storages[value]);
                if self.aggregated(*aggregate, *variable, *value).is_none() {
                    let word = self.take_words(value_words(*aggregate, storage) + 1);
                    let (aggregate, variable, value) = (*aggregate, *variable, *value);
                    self.aggregates.push(Aggregated { variable, aggregate, value, storage, word });
                }
            }
            Source::Classifier => {
                if self.classifier.is_none() {
                    self.classifier = Some(self.take_words(1));
                }
            }
            Source::MatchNumber => {}
        }
    }

    /// Marks the words added until now as those that conditions read.
    pub(super) fn end_of_conditions(&mut self) {
        self.condition_words = self.words;
    }

    /// Makes room for the positions of the first or last rows of a variable.
    pub(super) fn navigate(&mut self, variable: Variable, is_first: bool, rows: usize) {
        let known = self.navigated(variable, is_first).is_some_and(|known| known.rows >= rows);
        if !known {
            // Shorter words of the same navigation stay where they are: conditions may read them.
            let word = self.take_words(rows);
            self.navigations.insert(0, Navigated { variable, is_first, word, rows });
        }
    }

    fn take_words(&mut self, words: usize) -> usize {
        self.words += words;
        self.words - words
    }

    fn navigated(&self, variable: Variable, is_first: bool) -> Option<&Navigated> {
        // The longest one comes first.
        self.navigations.iter().find(|one| one.variable == variable && one.is_first == is_first)
    }

    fn aggregated(&self, aggregate: Aggregate, variable: Variable, value: Option<usize>) -> Option<&Aggregated> {
        let same = |one: &&Aggregated| (one.aggregate, one.variable, one.value) == (aggregate, variable, value);
        self.aggregates.iter().find(same)
    }

    /// Returns how to read a source that was added. For sources of conditions this is called before sources of results
    /// are added, so that they are read from the words of conditions.
    pub(super) fn read(&self, source: &Source) -> Read {
        let row = |variable: Variable, is_first: bool, index: usize, before: usize, value: usize| {
            let navigated = self.navigated(variable, is_first).expect("every source was added");
            Read::Row { word: navigated.word + index, before: before as u64, value }
        };
        match *source {
            Source::Value { value, variable, navigation } => match navigation {
                Navigation::First(index) => row(variable, true, index, 0, value),
                Navigation::Last(index) => row(variable, false, index, 0, value),
                Navigation::Previous(before) => row(variable, false, 0, before, value),
            },
            Source::Aggregate { aggregate, variable, value } => {
                let one = self.aggregated(aggregate, variable, value).expect("every source was added");
                Read::Aggregate { word: one.word, aggregate, storage: one.storage }
            }
            Source::Classifier => Read::Classifier { word: self.classifier.expect("every source was added") },
            Source::MatchNumber => Read::MatchNumber,
        }
    }

    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Appends the words of a match without rows.
    pub(super) fn push_empty(&self, words: &mut Vec<u64>) {
        let start = words.len();
        words.resize(start + self.words, NONE);
        for aggregated in &self.aggregates {
            words[start + aggregated.word..][..aggregated.words()].fill(0);
        }
    }

    /// Adds the row at `position` to the match, as a row of `variable`.
    pub(super) fn update(&self, words: &mut [u64], variable: usize, position: u64, rows: &Rows) {
        let concerns = |one: Variable| one.is_none_or(|one| one == variable);
        for navigated in self.navigations.iter().filter(|one| concerns(one.variable)) {
            let positions = &mut words[navigated.word..navigated.word + navigated.rows];
            if navigated.is_first {
                if let Some(free) = positions.iter_mut().find(|position| **position == NONE) {
                    *free = position;
                }
            } else {
                positions.copy_within(..navigated.rows - 1, 1);
                positions[0] = position;
            }
        }
        for aggregated in self.aggregates.iter().filter(|one| concerns(one.variable)) {
            let words = &mut words[aggregated.word..][..aggregated.words()];
            let (count, value) = words.split_last_mut().expect("a value and its count");
            match aggregated.value.map(|index| rows.value(position, index)) {
                None => *count += 1,
                Some(Value::Null) => {}
                Some(Value::Text(_)) => *count += 1,
                Some(Value::Word(_)) if *count == OVERFLOWN => {}
                Some(Value::Word(word)) => match aggregated.add(value, *count == 0, *word) {
                    true => *count += 1,
                    false => *count = OVERFLOWN,
                },
            }
        }
        if let Some(word) = self.classifier {
            words[word] = variable as u64;
        }
    }

    /// The position of the last row of a match.
    pub(super) fn last_position(&self, words: &[u64]) -> u64 {
        words[self.navigated(None, false).expect("the last row of a match is always kept").word]
    }

    /// The position of the first or last row of a variable.
    pub(super) fn position(&self, words: &[u64], variable: usize, is_first: bool) -> Option<u64> {
        let navigated = self.navigated(Some(variable), is_first)?;
        Some(words[navigated.word]).filter(|&position| position != NONE)
    }
}

/// Marks the count of a sum of integers that does not fit. The sum is null from then on.
const OVERFLOWN: u64 = u64::MAX;

impl Aggregated {
    fn words(&self) -> usize {
        value_words(self.aggregate, self.storage) + 1
    }

    /// Adds a value; `is_first` says that there was none before. Returns whether the result fits.
    fn add(&self, value: &mut [u64], is_first: bool, word: u64) -> bool {
        if let [value] = value {
            let added = self.added(*value, is_first, word);
            *value = added.unwrap_or(*value);
            return added.is_some();
        }
        // A match has far too few rows for a sum to leave 128 bits.
        put_sum(value, sum(value) + i128::from(word as i64));
        true
    }

    /// Returns the one-word value with another value added, if it fits.
    fn added(&self, value: u64, is_first: bool, word: u64) -> Option<u64> {
        let is_float = self.storage == Storage::Float;
        let (float, added) = (f64::from_bits(value), f64::from_bits(word));
        Some(match self.aggregate {
            Aggregate::Count => 0,
            _ if is_first => word,
            Aggregate::Avg => (float + added).to_bits(),
            Aggregate::Sum if is_float => canonical_float(float + added).to_bits(),
            Aggregate::Sum => (value as i64).checked_add(word as i64)? as u64,
            Aggregate::Min | Aggregate::Max => {
                let order = match is_float {
                    true => added.total_cmp(&float),
                    false => (word as i64).cmp(&(value as i64)),
                };
                let is_better = if self.aggregate == Aggregate::Min { order.is_lt() } else { order.is_gt() };
                if is_better { word } else { value }
            }
        })
    }
}

impl Read {
    /// Reads the value for a match.
    pub(super) fn value(&self, of: &Match<'_>) -> Value {
        match *self {
            Self::Row { word, before, value } => {
                let position = of.words[word];
                match position != NONE && position >= of.rows.first_position() + before {
                    true => of.rows.value(position - before, value).clone(),
                    false => Value::Null,
                }
            }
            Self::Aggregate { word, aggregate, storage } => {
                let words = value_words(aggregate, storage);
                let (value, count) = (of.words[word], of.words[word + words]);
                let average = |sum: f64| Value::Word(canonical_float(sum / count as f64).to_bits());
                match aggregate {
                    Aggregate::Count => Value::Word(count),
                    _ if count == 0 || count == OVERFLOWN => Value::Null,
                    Aggregate::Avg if words == 2 => average(sum(&of.words[word..]) as f64),
                    Aggregate::Avg => average(f64::from_bits(value)),
                    _ => Value::Word(value),
                }
            }
            Self::Classifier { word } => match of.names.get(of.words[word] as usize) {
                Some(name) => Value::Text(name.clone()),
                None => Value::Null,
            },
            Self::MatchNumber => Value::Word(of.number),
        }
    }
}
