//! The order of rows within a partition: by the sort keys, then by content, so that it does not depend on which row
//! came first.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Schema};

use super::rows::RowStore;
use super::words::words_of;

/// A column to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The column.
    pub column: usize,
    /// Whether the greatest comes first.
    pub descending: bool,
    /// Whether null comes first; otherwise it comes last, whatever the direction.
    pub nulls_first: bool,
}

/// The order as `EXPLAIN` shows it; `None` without one.
pub(crate) fn order_text(input: &Schema, order: &[SortKey]) -> Option<String> {
    let keys: Vec<String> = order
        .iter()
        .map(|key| format!("{}{}", input.field(key.column).name(), if key.descending { " DESC" } else { "" }))
        .collect();
    (!keys.is_empty()).then(|| format!("order by {}", keys.join(", ")))
}

/// Compares two rows of a store, whose columns are those of the input, by the sort keys alone.
pub(crate) fn compare_keys(order: &[SortKey], store: &RowStore, a: u32, b: u32) -> Ordering {
    for key in order {
        let ordering = match (store.is_null(key.column, a), store.is_null(key.column, b)) {
            (false, false) => {
                let ordering = store.compare(key.column, a, b);
                if key.descending { ordering.reverse() } else { ordering }
            }
            (a_null, b_null) => {
                let null_last = a_null.cmp(&b_null);
                if key.nulls_first { null_last.reverse() } else { null_last }
            }
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}

/// Compares two rows. Only rows with equal columns are equal.
pub(crate) fn compare(order: &[SortKey], store: &RowStore, a: u32, b: u32) -> Ordering {
    compare_keys(order, store, a, b).then_with(|| store.compare_content(a, b))
}

/// Tells quickly, by the first sort key alone, that rows of a batch come behind a kept row.
pub(crate) struct Behind {
    key: SortKey,
    words: ScalarBuffer<u64>,
    nulls: Option<NullBuffer>,
}

impl Behind {
    /// Looks at the first sort key; `None` unless its words have the order of its values.
    pub(crate) fn new(order: &[SortKey], columns: &[ArrayRef]) -> Option<Self> {
        let key = *order.first()?;
        let column = &columns[key.column];
        let is_ordered = matches!(
            column.data_type(),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Timestamp(..)
        );
        is_ordered.then(|| Self { key, words: words_of(column), nulls: column.nulls().cloned() })
    }

    /// Whether a row comes behind a kept row. False may also mean that this is not known.
    #[inline]
    pub(crate) fn is_behind(&self, row: usize, store: &RowStore, kept: u32) -> bool {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) || store.is_null(self.key.column, kept) {
            return false;
        }
        let (word, kept) = (self.words[row] as i64, store.word(self.key.column, kept) as i64);
        if self.key.descending { word < kept } else { word > kept }
    }
}
