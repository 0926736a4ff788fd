//! The rows that a partition keeps: those of the current match, a few before it, and those that wait for their turn.

use std::collections::VecDeque;
use std::mem::size_of;

use crate::history::value::Value;

/// Room for this many rows is kept, even if there are fewer.
const SPARE_ROWS: usize = 16;

/// Rows by position, which is the number of a row in its partition. All rows of a partition have the same number of
/// values.
#[derive(Debug, Default)]
pub(super) struct Rows {
    first_position: u64,
    /// Event times, ascending.
    times_us: VecDeque<i64>,
    /// For each row, the variables whose conditions over the row alone are true, as bits.
    holds: VecDeque<u64>,
    values: VecDeque<Value>,
    /// The number of values of a row.
    width: usize,
}

impl Rows {
    pub(super) fn new(width: usize) -> Self {
        Self { width, ..Self::default() }
    }

    pub(super) fn first_position(&self) -> u64 {
        self.first_position
    }

    /// One more than the last position.
    pub(super) fn end(&self) -> u64 {
        self.first_position + self.times_us.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.times_us.len()
    }

    fn index(&self, position: u64) -> usize {
        (position - self.first_position) as usize
    }

    pub(super) fn time_us(&self, position: u64) -> i64 {
        self.times_us[self.index(position)]
    }

    pub(super) fn holds(&self, position: u64) -> u64 {
        self.holds[self.index(position)]
    }

    pub(super) fn value(&self, position: u64, value: usize) -> &Value {
        &self.values[self.index(position) * self.width + value]
    }

    /// The row at a position: its time, its bits and its values.
    pub(super) fn row(&self, position: u64) -> (i64, u64, impl Iterator<Item = &Value>) {
        let index = self.index(position);
        (self.times_us[index], self.holds[index], self.values.range(index * self.width..(index + 1) * self.width))
    }

    /// Inserts a row behind all rows that are not later.
    pub(super) fn insert(&mut self, time_us: i64, holds: u64, values: impl Iterator<Item = Value>) {
        let mut index = self.times_us.len();
        while index > 0 && self.times_us[index - 1] > time_us {
            index -= 1;
        }
        self.insert_at(index, time_us, holds, values);
    }

    /// Inserts a row where it belongs by its time, and among rows of that time by its content.
    pub(super) fn insert_by_content(&mut self, time_us: i64, holds: u64, values: Vec<Value>) {
        let mut index = self.times_us.len();
        let is_behind = |index: usize| {
            let (of_time, of_holds, of_values) = self.row(self.first_position + index as u64);
            (of_time, of_holds).cmp(&(time_us, holds)).then_with(|| of_values.cmp(&values)).is_gt()
        };
        while index > 0 && is_behind(index - 1) {
            index -= 1;
        }
        self.insert_at(index, time_us, holds, values.into_iter());
    }

    fn insert_at(&mut self, index: usize, time_us: i64, holds: u64, values: impl Iterator<Item = Value>) {
        if index == self.times_us.len() {
            self.times_us.push_back(time_us);
            self.holds.push_back(holds);
            self.values.extend(values);
            return;
        }
        self.times_us.insert(index, time_us);
        self.holds.insert(index, holds);
        for (offset, value) in values.enumerate() {
            self.values.insert(index * self.width + offset, value);
        }
    }

    /// Forgets all rows before a position.
    pub(super) fn forget_before(&mut self, position: u64) {
        let rows = self.len().min(position.saturating_sub(self.first_position) as usize);
        self.times_us.drain(..rows);
        self.holds.drain(..rows);
        self.values.drain(..rows * self.width);
        self.first_position += rows as u64;
        // After a long match the memory is freed.
        if self.times_us.capacity() > SPARE_ROWS && self.times_us.capacity() > 4 * self.len() {
            let rows = 2 * self.len();
            self.times_us.shrink_to(rows);
            self.holds.shrink_to(rows);
            self.values.shrink_to(rows * self.width);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.times_us.capacity() * size_of::<i64>()
            + self.holds.capacity() * size_of::<u64>()
            + self.values.capacity() * size_of::<Value>()
            + self.values.iter().map(Value::heap_bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_of_time_and_of_arrival_where_that_is_equal() {
        let mut rows = Rows::new(1);
        for (number, time_us) in [10, 30, 20, 20, 5].into_iter().enumerate() {
            rows.insert(time_us, 0, [Value::Word(number as u64)].into_iter());
        }
        let found: Vec<(i64, u64)> = (0..rows.end())
            .map(|position| match rows.value(position, 0) {
                Value::Word(word) => (rows.time_us(position), *word),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(found, [(5, 4), (10, 0), (20, 2), (20, 3), (30, 1)]);
        rows.forget_before(2);
        assert_eq!((rows.first_position(), rows.len(), rows.time_us(2)), (2, 3, 20));
        rows.forget_before(99);
        assert_eq!((rows.first_position(), rows.len()), (5, 0));
    }
}
