//! `count(DISTINCT x) FILTER (WHERE ..)`: one set for all groups and for all filters over the same argument.
//!
//! An entry is a value of a group with a bit for each filter that it has passed, so a row costs one look-up however
//! many such aggregates there are. The set is forgotten as a whole, with its groups.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use datafusion_physical_expr::PhysicalExpr;
use foldhash::fast::RandomState;
use hashbrown::hash_table::Entry;
use std::hash::BuildHasher;

use super::arguments::{place, valid_of};
use crate::AggregateSpec;
use crate::aggregate::dense::RowSet;
use crate::parallel::keys::{BatchKeys, KeyIndex, KeyPlan};
use crate::parallel::parts::Parts;
use crate::parallel::words::{key_words_of, width_of};

/// The number of filters for which one set has bits.
const FILTERS_MAX: usize = 32;

/// The plan of a set: an argument, and the filters of the aggregates over it.
pub(crate) struct DistinctPlan {
    /// The index of the argument among the expressions, and those of the filters.
    argument: usize,
    filters: Vec<Option<usize>>,
    /// Numbers for texts and other values that are not words.
    texts: Option<Arc<KeyPlan>>,
}

impl std::fmt::Debug for DistinctPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "distinct {} filters, texts: {}", self.filters.len(), self.texts.is_some())
    }
}

impl DistinctPlan {
    /// Finds the set from which an aggregate's result comes, an existing set or a new one, and its filter there.
    /// Returns the indices of both.
    pub(super) fn place(
        sets: &mut Vec<Self>,
        expressions: &mut Vec<Arc<dyn PhysicalExpr>>,
        aggregate: &AggregateSpec,
        argument_type: &DataType,
    ) -> (usize, usize) {
        let argument = place(expressions, &aggregate.arguments[0]);
        let filter = aggregate.filter.as_ref().map(|filter| place(expressions, filter));
        let same = |plan: &Self| {
            plan.argument == argument && (plan.filters.contains(&filter) || plan.filters.len() < FILTERS_MAX)
        };
        let set = sets.iter().position(same).unwrap_or_else(|| {
            let texts = width_of(argument_type).is_none().then(|| {
                let schema = Schema::new(vec![Field::new("value", argument_type.clone(), true)]);
                Arc::new(KeyPlan::new(&schema, &[0]).expect("types of distinct values are those of keys"))
            });
            sets.push(Self { argument, filters: vec![], texts });
            sets.len() - 1
        });
        let filters = &mut sets[set].filters;
        let filter = filters.iter().position(|known| *known == filter).unwrap_or_else(|| {
            filters.push(filter);
            filters.len() - 1
        });
        (set, filter)
    }

    /// Reads the values of a batch's rows.
    pub(super) fn read(&self, columns: &[ArrayRef]) -> Result<DistinctValues, ArrowError> {
        let argument = &columns[self.argument];
        let mut keys = None;
        let mut words = Vec::new();
        match &self.texts {
            Some(plan) => {
                let mut read = BatchKeys::default();
                read.read_keys(plan, std::slice::from_ref(argument))?;
                keys = Some(read);
            }
            None => words = key_words_of(argument).to_vec(),
        }
        let filters = self.filters.iter().map(|filter| valid_of(argument, filter.map(|at| &columns[at]))).collect();
        Ok(DistinctValues { words, keys, filters })
    }

    /// Makes an empty set.
    pub(super) fn set(&self) -> DistinctSet {
        DistinctSet {
            filters: self.filters.len(),
            hasher: RandomState::default(),
            table: Parts::with_capacity(0),
            counts: Vec::new(),
            texts: self.texts.clone().map(|plan| (plan.index(0), plan)),
            numbers: Vec::new(),
        }
    }
}

/// The values of a batch's rows, and for each filter the rows that pass it (`None`: all).
pub(crate) struct DistinctValues {
    words: Vec<u64>,
    keys: Option<BatchKeys>,
    filters: Vec<Option<BooleanBuffer>>,
}

/// The distinct values of all groups.
pub(crate) struct DistinctSet {
    filters: usize,
    hasher: RandomState,
    table: Parts<Value>,
    /// By group and filter: the number of values.
    counts: Vec<i64>,
    texts: Option<(KeyIndex, Arc<KeyPlan>)>,
    numbers: Vec<u32>,
}

/// A value of a group.
struct Value {
    word: u64,
    group: u32,
    /// The filters that it has passed.
    passed: u32,
}

/// The values of one group, for export.
#[derive(Clone, Default)]
pub(crate) struct GroupValues {
    words: Vec<(u64, u32)>,
    texts: Vec<(Box<[u8]>, u32)>,
}

impl DistinctSet {
    pub(super) fn grow(&mut self, groups: usize) {
        self.counts.resize(groups * self.filters, 0);
    }

    /// Adds rows: the row at `rows[i]` to the group `groups[i]`.
    pub(super) fn update(&mut self, values: &DistinctValues, groups: &[u32], rows: &RowSet<'_>) {
        if let (Some(keys), Some((index, _))) = (&values.keys, &mut self.texts) {
            index.assign(keys, rows, &mut self.numbers);
        }
        let is_text = values.keys.is_some();
        rows.for_each(|at, row| {
            let mut passed = 0u32;
            for (filter, valid) in values.filters.iter().enumerate() {
                passed |= u32::from(valid.as_ref().is_none_or(|valid| valid.value(row))) << filter;
            }
            if passed != 0 {
                let word = if is_text { u64::from(self.numbers[at]) } else { values.words[row] };
                self.add(groups[at], word, passed);
            }
        });
    }

    #[inline]
    fn add(&mut self, group: u32, word: u64, passed: u32) {
        let hasher = &self.hasher;
        let hash = |group: u32, word: u64| hasher.hash_one((word, group));
        let entry = self.table.entry(
            hash(group, word),
            |value| value.word == word && value.group == group,
            |value| hash(value.group, value.word),
        );
        let mut added = match entry {
            Entry::Occupied(mut entry) => {
                let value = entry.get_mut();
                let added = passed & !value.passed;
                value.passed |= passed;
                added
            }
            Entry::Vacant(entry) => {
                entry.insert(Value { word, group, passed });
                passed
            }
        };
        while added != 0 {
            self.counts[group as usize * self.filters + added.trailing_zeros() as usize] += 1;
            added &= added - 1;
        }
    }

    /// The number of values of each of these groups that have passed a filter.
    pub(super) fn counts(&self, groups: &[u32], filter: usize) -> Int64Array {
        Int64Array::from_iter_values(groups.iter().map(|&group| self.counts[group as usize * self.filters + filter]))
    }

    /// The values of all groups, by group.
    pub(super) fn by_group(&self, groups: usize) -> Vec<GroupValues> {
        let mut all = vec![GroupValues::default(); groups];
        for value in self.table.iter() {
            let group = &mut all[value.group as usize];
            match &self.texts {
                None => group.words.push((value.word, value.passed)),
                Some((index, _)) => group.texts.push((index.key_bytes(value.word as u32), value.passed)),
            }
        }
        all
    }

    /// Adds the encoded values of a group. `None` if the bytes are not such values.
    pub(super) fn decode(&mut self, group: u32, bytes: &mut &[u8]) -> Option<()> {
        let length = u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?);
        for _ in 0..length {
            let passed = u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?);
            let word = match &mut self.texts {
                None => u64::from_le_bytes(bytes.split_off(..8)?.try_into().ok()?),
                Some((index, plan)) => {
                    let size = u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?) as usize;
                    let text = std::str::from_utf8(bytes.split_off(..size)?).ok()?;
                    let column: ArrayRef = Arc::new(StringArray::from(vec![text]));
                    let mut keys = BatchKeys::default();
                    keys.read_keys(plan, &[column]).ok()?;
                    index.assign(&keys, &RowSet::Range(0..1), &mut self.numbers);
                    u64::from(self.numbers[0])
                }
            };
            if passed.checked_shr(self.filters as u32).unwrap_or(0) != 0 {
                return None;
            }
            self.add(group, word, passed);
        }
        Some(())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
            + self.counts.capacity() * 8
            + self.texts.as_ref().map_or(0, |(index, _)| index.memory_bytes())
    }
}

impl GroupValues {
    /// Appends the values to `out`, in order, so that equal states have equal bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(((self.words.len() + self.texts.len()) as u32).to_le_bytes());
        let mut words = self.words.clone();
        words.sort_unstable();
        for (word, passed) in words {
            out.extend(passed.to_le_bytes());
            out.extend(word.to_le_bytes());
        }
        let mut texts: Vec<_> = self.texts.iter().collect();
        texts.sort_unstable();
        for (text, passed) in texts {
            out.extend(passed.to_le_bytes());
            out.extend((text.len() as u32).to_le_bytes());
            out.extend_from_slice(text);
        }
    }
}
