//! One parameter of a group's queries: a column with a value for each slot.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, IntervalMonthDayNanoArray, StringArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{
    DataType, Float64Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
    TimestampMicrosecondType,
};

/// The row of a query in its group.
pub type Slot = u32;

/// One parameter of all slots. Nulls are a bitmap beside the values, allocated when the first null is written.
#[derive(Debug)]
pub(super) struct Column {
    values: Values,
    nulls: Vec<bool>,
}

#[derive(Debug)]
enum Values {
    Boolean(Vec<bool>),
    Int64(Vec<i64>),
    Float64(Vec<f64>),
    Timestamp(Vec<i64>),
    Interval(Vec<IntervalMonthDayNano>),
    Text(Vec<Box<str>>),
}

impl Column {
    pub(super) fn new(data_type: &DataType) -> Self {
        let values = match data_type {
            DataType::Boolean => Values::Boolean(Vec::new()),
            DataType::Int64 => Values::Int64(Vec::new()),
            DataType::Float64 => Values::Float64(Vec::new()),
            DataType::Utf8 => Values::Text(Vec::new()),
            DataType::Timestamp(TimeUnit::Microsecond, None) => Values::Timestamp(Vec::new()),
            DataType::Interval(IntervalUnit::MonthDayNano) => Values::Interval(Vec::new()),
            other => panic!("no parameter has type {other}"),
        };
        Self { values, nulls: Vec::new() }
    }

    /// Writes values of an array: for each its slot and its row in the array.
    pub(super) fn write(&mut self, places: impl Iterator<Item = (Slot, usize)> + Clone, array: &ArrayRef) {
        fn put<T: Clone + Default>(
            values: &mut Vec<T>,
            places: impl Iterator<Item = (Slot, usize)>,
            value: impl Fn(usize) -> T,
        ) {
            for (slot, row) in places {
                let slot = slot as usize;
                if slot >= values.len() {
                    values.resize(slot + 1, T::default());
                }
                values[slot] = value(row);
            }
        }
        match &mut self.values {
            Values::Boolean(values) => put(values, places.clone(), |row| array.as_boolean().value(row)),
            Values::Int64(values) => put(values, places.clone(), |row| array.as_primitive::<Int64Type>().value(row)),
            Values::Float64(values) => {
                put(values, places.clone(), |row| array.as_primitive::<Float64Type>().value(row))
            }
            Values::Timestamp(values) => {
                put(values, places.clone(), |row| array.as_primitive::<TimestampMicrosecondType>().value(row));
            }
            Values::Interval(values) => {
                put(values, places.clone(), |row| array.as_primitive::<IntervalMonthDayNanoType>().value(row));
            }
            Values::Text(values) => put(values, places.clone(), |row| array.as_string::<i32>().value(row).into()),
        }
        if array.null_count() > 0 || !self.nulls.is_empty() {
            put(&mut self.nulls, places, |row| array.is_null(row));
        }
    }

    fn is_null(&self, slot: usize) -> bool {
        self.nulls.get(slot).copied().unwrap_or(false)
    }

    pub(super) fn gather(&self, slots: &[Slot]) -> ArrayRef {
        fn pick<'a, T, A>(column: &'a Column, slots: &'a [Slot], value: impl Fn(usize) -> T + 'a) -> A
        where
            A: FromIterator<Option<T>> + From<Vec<T>>,
        {
            if column.nulls.is_empty() {
                A::from(slots.iter().map(|&slot| value(slot as usize)).collect::<Vec<T>>())
            } else {
                slots.iter().map(|&slot| (!column.is_null(slot as usize)).then(|| value(slot as usize))).collect()
            }
        }
        match &self.values {
            Values::Boolean(values) => Arc::new(pick::<_, BooleanArray>(self, slots, |slot| values[slot])),
            Values::Int64(values) => Arc::new(pick::<_, Int64Array>(self, slots, |slot| values[slot])),
            Values::Float64(values) => Arc::new(pick::<_, Float64Array>(self, slots, |slot| values[slot])),
            Values::Timestamp(values) => {
                Arc::new(pick::<_, TimestampMicrosecondArray>(self, slots, |slot| values[slot]))
            }
            Values::Interval(values) => {
                Arc::new(pick::<_, IntervalMonthDayNanoArray>(self, slots, |slot| values[slot]))
            }
            Values::Text(values) => Arc::new(pick::<_, StringArray>(self, slots, |slot| &*values[slot])),
        }
    }

    pub(super) fn write_text(&self, slot: usize, out: &mut String) {
        use std::fmt::Write;
        if self.is_null(slot) {
            return;
        }
        match &self.values {
            Values::Boolean(values) => write!(out, "{}", values[slot]),
            Values::Int64(values) | Values::Timestamp(values) => write!(out, "{}", values[slot]),
            Values::Float64(values) => write!(out, "{}", values[slot]),
            Values::Interval(values) => write!(out, "{:?}", values[slot]),
            Values::Text(values) => {
                out.push_str(&values[slot]);
                Ok(())
            }
        }
        .expect("writing to a string does not fail");
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.nulls.capacity()
            + match &self.values {
                Values::Boolean(values) => values.capacity(),
                Values::Int64(values) | Values::Timestamp(values) => values.capacity() * 8,
                Values::Float64(values) => values.capacity() * 8,
                Values::Interval(values) => values.capacity() * 16,
                Values::Text(values) => {
                    values.capacity() * size_of::<Box<str>>() + values.iter().map(|text| text.len()).sum::<usize>()
                }
            }
    }
}
