//! Which of many queries a row can concern, without evaluating each query: an index over their parameters.
//!
//! Five thousand queries `WHERE device = $device` on one topic would try every row five thousand times. Instead, the
//! values of `$device` are kept in order, and a row finds its queries by its own value. It finds candidates: every
//! query whose condition is true is among them, and the condition itself is evaluated on them as always.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimestampMicrosecondType};
use rivulet_dataflow::Slot;
use xxhash_rust::xxh3::xxh3_64;

/// A part of WHERE that compares a column of the input with a parameter of the same type. No row passes WHERE without
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The column of the input.
    pub column: usize,
    /// The parameter, as an index of the slot table's schema.
    pub parameter: usize,
    /// How the column must compare to the parameter.
    pub comparison: Comparison,
}

/// How a column must compare to a parameter. Whether equality suffices is left to the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The column equals the parameter.
    Equal,
    /// The column is the parameter or more.
    AtLeast,
    /// The column is the parameter or less.
    AtMost,
}

impl Match {
    /// Whether an index can compare values of this type in this way. Text can only be equal: its order is not kept.
    pub fn supports(data_type: &DataType, comparison: Comparison) -> bool {
        match data_type {
            DataType::Int64 | DataType::Float64 | DataType::Timestamp(..) => true,
            DataType::Utf8 | DataType::Boolean => comparison == Comparison::Equal,
            _ => false,
        }
    }
}

/// The key of a value in an index. Equal values have one key. Where a type can be compared by order, a greater value
/// has a greater key or the same one.
pub type MatchKey = u64;

/// Returns the key of each row of a column; `None` for null, for which no comparison is true.
///
/// # Panics
/// If [`Match::supports`] no comparison of the column's type.
pub fn match_keys(column: &dyn Array) -> impl Fn(usize) -> Option<MatchKey> + '_ {
    const SIGN: u64 = 1 << 63;
    enum Values<'a> {
        Int(&'a [i64]),
        Float(&'a [f64]),
        Text(&'a arrow::array::StringArray),
        Bool(&'a arrow::array::BooleanArray),
    }
    let values = match column.data_type() {
        DataType::Int64 => Values::Int(column.as_primitive::<Int64Type>().values()),
        DataType::Timestamp(..) => Values::Int(column.as_primitive::<TimestampMicrosecondType>().values()),
        DataType::Float64 => Values::Float(column.as_primitive::<Float64Type>().values()),
        DataType::Utf8 => Values::Text(column.as_string::<i32>()),
        DataType::Boolean => Values::Bool(column.as_boolean()),
        other => panic!("no index is planned over values of type {other}"),
    };
    move |row| {
        if column.is_null(row) {
            return None;
        }
        Some(match &values {
            Values::Int(values) => values[row] as u64 ^ SIGN,
            Values::Float(values) => {
                // Zero has one key, whatever its sign. NaN is above everything, as in SQL's order.
                let bits = (values[row] + 0.0).to_bits();
                if values[row].is_nan() {
                    u64::MAX
                } else if bits & SIGN == 0 {
                    bits | SIGN
                } else {
                    !bits
                }
            }
            Values::Text(values) => xxh3_64(values.value(row).as_bytes()),
            Values::Bool(values) => u64::from(values.value(row)),
        })
    }
}

/// The queries that read one topic, by the parameter that decides which rows concern them.
///
/// Finding the candidates of a row takes time logarithmic in the number of queries, plus the number of candidates.
#[derive(Debug)]
pub struct MatchIndex {
    comparison: Option<Comparison>,
    queries: BTreeSet<(MatchKey, Slot)>,
    /// The queries whose parameter is null.
    unmatched: BTreeSet<Slot>,
}

impl MatchIndex {
    /// Makes an empty index. Without a comparison every query is a candidate for every row.
    pub fn new(comparison: Option<Comparison>) -> Self {
        Self { comparison, queries: BTreeSet::new(), unmatched: BTreeSet::new() }
    }

    /// Adds a query with the key of its parameter. If there is a comparison, a query whose parameter is null is a
    /// candidate for no row.
    pub fn insert(&mut self, slot: Slot, key: Option<MatchKey>) {
        match self.key(key) {
            Some(key) => self.queries.insert((key, slot)),
            None => self.unmatched.insert(slot),
        };
    }

    /// Removes a query that was added with this key.
    pub fn remove(&mut self, slot: Slot, key: Option<MatchKey>) {
        match self.key(key) {
            Some(key) => self.queries.remove(&(key, slot)),
            None => self.unmatched.remove(&slot),
        };
    }

    /// All queries.
    pub fn all(&self) -> impl Iterator<Item = Slot> + '_ {
        self.queries.iter().map(|&(_, slot)| slot).chain(self.unmatched.iter().copied())
    }

    /// Whether there is no query.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty() && self.unmatched.is_empty()
    }

    /// Returns the candidates for a row, given the key of its column.
    pub fn candidates(&self, key: Option<MatchKey>) -> impl Iterator<Item = Slot> + '_ {
        let bounds: Option<RangeInclusive<MatchKey>> = match (self.comparison, key) {
            (None, _) => Some(0..=0),
            (Some(_), None) => None,
            (Some(Comparison::Equal), Some(key)) => Some(key..=key),
            (Some(Comparison::AtLeast), Some(key)) => Some(0..=key),
            (Some(Comparison::AtMost), Some(key)) => Some(key..=u64::MAX),
        };
        let found = bounds.map(|keys| self.queries.range((*keys.start(), 0)..=(*keys.end(), Slot::MAX)));
        found.into_iter().flatten().map(|&(_, slot)| slot)
    }

    fn key(&self, key: Option<MatchKey>) -> Option<MatchKey> {
        if self.comparison.is_some() { key } else { Some(0) }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
    use arrow::compute::kernels::cmp;
    use std::sync::Arc;

    use super::*;

    /// Checks for all pairs of values that every query whose comparison is true is a candidate. Other candidates may
    /// only be queries with an equal value.
    fn check(values: &ArrayRef) {
        let keys = match_keys(values);
        for comparison in [Comparison::Equal, Comparison::AtLeast, Comparison::AtMost] {
            if !Match::supports(values.data_type(), comparison) {
                continue;
            }
            let mut index = MatchIndex::new(Some(comparison));
            (0..values.len()).for_each(|row| index.insert(row as Slot, keys(row)));
            for row in 0..values.len() {
                let found: Vec<Slot> = index.candidates(keys(row)).collect();
                let column = arrow::compute::take(
                    values,
                    &arrow::array::UInt32Array::from(vec![row as u32; values.len()]),
                    None,
                );
                let column = column.unwrap();
                let is_true = match comparison {
                    Comparison::Equal => cmp::eq(&column, values),
                    Comparison::AtLeast => cmp::gt_eq(&column, values),
                    Comparison::AtMost => cmp::lt_eq(&column, values),
                }
                .unwrap();
                for other in 0..values.len() {
                    let is_match = is_true.is_valid(other) && is_true.value(other);
                    assert!(!is_match || found.contains(&(other as Slot)), "{comparison:?}: {row} and {other}");
                }
                assert!(found.len() <= is_true.true_count() + 1, "{comparison:?}: {found:?} for row {row}");
            }
            (0..values.len()).for_each(|row| index.remove(row as Slot, keys(row)));
            assert_eq!(index.all().count(), 0);
        }
    }

    #[test]
    fn candidates_are_those_whose_comparison_holds() {
        let floats = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1e-300, 2.0, f64::INFINITY, f64::NAN];
        check(&(Arc::new(Float64Array::from_iter(floats.map(Some).into_iter().chain([None]))) as ArrayRef));
        check(&(Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(-1), None, Some(0), Some(i64::MAX)])) as ArrayRef));
        check(&(Arc::new(StringArray::from(vec![Some("a"), Some("b"), None, Some("")])) as ArrayRef));
        check(&(Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])) as ArrayRef));
    }

    #[test]
    fn without_a_comparison_every_query_is_a_candidate() {
        let mut index = MatchIndex::new(None);
        index.insert(7, None);
        index.insert(3, Some(9));
        assert_eq!(index.candidates(None).collect::<Vec<_>>(), [3, 7]);
        index.remove(7, None);
        assert_eq!(index.all().collect::<Vec<_>>(), [3]);
    }
}
