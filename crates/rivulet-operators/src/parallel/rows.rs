//! Rows that are kept, in columns of their own, each by its number.
//!
//! Fixed widths are words, texts lie apart ([`texts`](super::texts)); numbers of removed rows are used again. Rows come out as Arrow columns for any
//! list of numbers, in which [`NONE`] is a row of nulls.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, StringArray, make_array};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;

use super::keys::NONE;
use super::texts::Texts;
use super::words::{column_of, width_of, words_of};
use crate::PlanError;

/// Rows by number.
pub(crate) struct RowStore {
    columns: Vec<Column>,
    /// The texts of all rows, if they have any.
    texts: Option<Texts>,
    /// By row: event time and arrival, which are mostly wanted together.
    times_us: Vec<[i64; 2]>,
    is_live: Vec<bool>,
    free: Vec<u32>,
}

struct Column {
    data_type: DataType,
    values: Values,
    /// Which values are null; empty as long as none was.
    nulls: Vec<bool>,
}

enum Values {
    Words(Vec<u64>),
    Wide(Vec<u128>),
    /// The text that so many others of its row stand before.
    Text(usize),
}

impl RowStore {
    /// A store of rows with these columns of `schema`.
    pub(crate) fn new(schema: &Schema, columns: &[usize]) -> Result<Self, PlanError> {
        let mut texts = 0;
        let column = |&index: &usize| {
            let data_type = schema.field(index).data_type().clone();
            let values = match data_type.primitive_width() {
                _ if width_of(&data_type).is_some() => Values::Words(Vec::new()),
                Some(16) => Values::Wide(Vec::new()),
                _ if data_type.is_string() => {
                    texts += 1;
                    Values::Text(texts - 1)
                }
                _ => {
                    let problem = format!("values of type {data_type} cannot be kept");
                    return Err(PlanError::Column { index, what: "rows that are kept", problem });
                }
            };
            Ok(Column { data_type, values, nulls: Vec::new() })
        };
        let columns = columns.iter().map(column).collect::<Result<_, _>>()?;
        Ok(Self {
            columns,
            texts: (texts > 0).then(|| Texts::new(texts)),
            times_us: Vec::new(),
            is_live: Vec::new(),
            free: Vec::new(),
        })
    }

    /// One more than the highest number.
    pub(crate) fn numbers(&self) -> usize {
        self.is_live.len()
    }

    pub(crate) fn is_live(&self, row: u32) -> bool {
        self.is_live[row as usize]
    }

    pub(crate) fn event_time_us(&self, row: u32) -> i64 {
        self.times_us[row as usize][0]
    }

    pub(crate) fn arrival_us(&self, row: u32) -> i64 {
        self.times_us[row as usize][1]
    }

    /// Event time and arrival.
    #[inline]
    pub(crate) fn times_us(&self, row: u32) -> [i64; 2] {
        self.times_us[row as usize]
    }

    /// Adds rows, of which `columns` holds the columns and `times` event time and arrival; their numbers are written to `numbers`.
    pub(crate) fn add(
        &mut self,
        columns: &[ArrayRef],
        rows: &[u32],
        times: impl Fn(usize) -> (i64, i64),
        numbers: &mut Vec<u32>,
    ) -> Result<(), ArrowError> {
        numbers.clear();
        for &row in rows {
            let (event_time_us, arrival_us) = times(row as usize);
            let number = match self.free.pop() {
                Some(number) => {
                    self.times_us[number as usize] = [event_time_us, arrival_us];
                    self.is_live[number as usize] = true;
                    number
                }
                None => {
                    assert!(self.is_live.len() < NONE as usize, "fewer than 2^32 rows in one instance");
                    self.times_us.push([event_time_us, arrival_us]);
                    self.is_live.push(true);
                    self.is_live.len() as u32 - 1
                }
            };
            numbers.push(number);
        }
        let total = self.is_live.len();
        let mut texts = Vec::new();
        for (stored, column) in self.columns.iter_mut().zip(columns) {
            stored.put(column, rows, numbers, total);
            if let Values::Text(_) = stored.values {
                texts.push(cast(column, &DataType::Utf8)?.as_string::<i32>().clone());
            }
        }
        if let Some(stored) = &mut self.texts {
            stored.put(&texts, rows, numbers, total);
        }
        Ok(())
    }

    /// Removes a row.
    pub(crate) fn remove(&mut self, row: u32) {
        debug_assert!(self.is_live[row as usize], "a row is removed once");
        self.is_live[row as usize] = false;
        self.free.push(row);
        if let Some(texts) = &mut self.texts {
            texts.remove(row, &self.is_live);
        }
    }

    /// The values of a column of these rows.
    pub(crate) fn column(&self, column: usize, rows: &[u32]) -> Result<ArrayRef, ArrowError> {
        self.columns[column].take(rows, self.texts.as_ref())
    }

    /// All columns of these rows.
    pub(crate) fn columns(&self, rows: &[u32]) -> Result<Vec<ArrayRef>, ArrowError> {
        self.columns.iter().map(|column| column.take(rows, self.texts.as_ref())).collect()
    }

    pub(crate) fn is_null(&self, column: usize, row: u32) -> bool {
        self.columns[column].is_null(row as usize)
    }

    /// A value of fixed width as a word; what is behind a null is anything.
    pub(crate) fn word(&self, column: usize, row: u32) -> u64 {
        match &self.columns[column].values {
            Values::Words(words) => words[row as usize],
            _ => 0,
        }
    }

    /// How two values that are not null compare.
    pub(crate) fn compare(&self, column: usize, a: u32, b: u32) -> Ordering {
        let Column { data_type, values, .. } = &self.columns[column];
        let (a, b) = (a as usize, b as usize);
        match (values, data_type) {
            (Values::Words(words), DataType::Float64) => f64::from_bits(words[a]).total_cmp(&f64::from_bits(words[b])),
            (Values::Words(words), DataType::Float32) => {
                f32::from_bits(words[a] as u32).total_cmp(&f32::from_bits(words[b] as u32))
            }
            (Values::Words(words), DataType::UInt64) => words[a].cmp(&words[b]),
            (Values::Words(words), _) => (words[a] as i64).cmp(&(words[b] as i64)),
            (Values::Wide(wide), _) => (wide[a] as i128).cmp(&(wide[b] as i128)),
            (&Values::Text(text), _) => self.text(a, text).cmp(self.text(b, text)),
        }
    }

    fn text(&self, row: usize, text: usize) -> &[u8] {
        self.texts.as_ref().map_or(&[], |texts| texts.get(row, text))
    }

    /// An order of rows by their content alone: column by column, null first.
    pub(crate) fn compare_content(&self, a: u32, b: u32) -> Ordering {
        (0..self.columns.len())
            .map(|column| match (self.is_null(column, a), self.is_null(column, b)) {
                (false, false) => self.compare(column, a, b),
                (a_null, b_null) => b_null.cmp(&a_null),
            })
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    /// A hash of a row's content.
    pub(crate) fn hash(&self, row: u32, hasher: &impl std::hash::BuildHasher) -> u64 {
        use std::hash::Hasher;
        let mut state = hasher.build_hasher();
        for (at, column) in self.columns.iter().enumerate() {
            if self.is_null(at, row) {
                state.write_u8(0);
                continue;
            }
            match &column.values {
                Values::Words(words) => state.write_u64(words[row as usize]),
                Values::Wide(wide) => state.write_u128(wide[row as usize]),
                Values::Text(text) => state.write(self.text(row as usize, *text)),
            }
        }
        state.finish()
    }

    /// The numbers of all rows.
    pub(crate) fn live(&self) -> Vec<u32> {
        (0..self.is_live.len() as u32).filter(|&row| self.is_live[row as usize]).collect()
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let columns: usize = self
            .columns
            .iter()
            .map(|column| {
                column.nulls.capacity()
                    + match &column.values {
                        Values::Words(words) => words.capacity() * 8,
                        Values::Wide(wide) => wide.capacity() * 16,
                        Values::Text(_) => 0,
                    }
            })
            .sum();
        let texts = self.texts.as_ref().map_or(0, Texts::memory_bytes);
        columns + texts + self.is_live.capacity() * (1 + 8 + 8) + self.free.capacity() * 4
    }
}

impl Column {
    #[inline]
    fn is_null(&self, row: usize) -> bool {
        self.nulls.get(row).copied().unwrap_or(false)
    }

    /// Writes the values of `rows` to `numbers`, of so many rows in all.
    fn put(&mut self, column: &ArrayRef, rows: &[u32], numbers: &[u32], total: usize) {
        let places = || rows.iter().zip(numbers).map(|(&row, &number)| (row as usize, number as usize));
        match &mut self.values {
            Values::Words(words) => {
                let values = words_of(column);
                words.resize(total, 0);
                places().for_each(|(row, number)| words[number] = values[row]);
            }
            Values::Wide(wide) => {
                let data = column.to_data();
                let values = ScalarBuffer::<i128>::new(data.buffers()[0].clone(), data.offset(), data.len());
                wide.resize(total, 0);
                places().for_each(|(row, number)| wide[number] = values[row] as u128);
            }
            // Those of all columns are put together.
            Values::Text(_) => {}
        }
        let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        if nulls.is_some() || !self.nulls.is_empty() {
            self.nulls.resize(total, false);
            places().for_each(|(row, number)| {
                self.nulls[number] = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            });
        }
    }

    fn take(&self, rows: &[u32], texts: Option<&Texts>) -> Result<ArrayRef, ArrowError> {
        let has_gaps = rows.contains(&NONE);
        let is_valid = |&row: &u32| row != NONE && !self.is_null(row as usize);
        let nulls = (has_gaps || !self.nulls.is_empty())
            .then(|| rows.iter().map(is_valid).collect::<NullBuffer>())
            .filter(|nulls| nulls.null_count() > 0);
        Ok(match &self.values {
            Values::Words(words) => {
                let values = match has_gaps {
                    false => rows.iter().map(|&row| words[row as usize]).collect(),
                    true => rows.iter().map(|&row| words.get(row as usize).copied().unwrap_or(0)).collect(),
                };
                column_of(&self.data_type, values, nulls)
            }
            Values::Wide(wide) => {
                let values: Vec<i128> =
                    rows.iter().map(|&row| wide.get(row as usize).copied().unwrap_or(0) as i128).collect();
                let data = ArrayData::builder(self.data_type.clone()).len(rows.len()).nulls(nulls);
                make_array(data.add_buffer(Buffer::from_vec(values)).build()?)
            }
            Values::Text(text) => {
                let mut bytes = Vec::with_capacity(rows.len() * 16);
                let mut ends = Vec::with_capacity(rows.len() + 1);
                ends.push(0);
                for &row in rows {
                    if let (true, Some(texts)) = (row != NONE, texts) {
                        bytes.extend_from_slice(texts.get(row as usize, *text));
                    }
                    let end = i32::try_from(bytes.len());
                    ends.push(end.map_err(|_| ArrowError::ComputeError("texts of a batch reach 2 GiB".into()))?);
                }
                let texts: ArrayRef =
                    Arc::new(StringArray::try_new(OffsetBuffer::new(ends.into()), bytes.into(), nulls)?);
                match &self.data_type {
                    DataType::Utf8 => texts,
                    other => cast(&texts, other)?,
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal128Array, Int64Array};
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn rows_come_back_as_they_were() {
        let long = "a text whose length takes two bytes ".repeat(10);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![Some(3), None, Some(-1)])),
            Arc::new(StringArray::from(vec![Some("a text"), Some(""), None])),
            Arc::new(Decimal128Array::from(vec![Some(7), Some(-7), None])),
            Arc::new(StringArray::from(vec![None, Some("x"), Some(long.as_str())])),
        ];
        let fields: Vec<Field> =
            columns.iter().map(|column| Field::new("c", column.data_type().clone(), true)).collect();
        let mut store = RowStore::new(&Schema::new(fields), &[0, 1, 2, 3]).unwrap();
        let mut numbers = Vec::new();
        for _ in 0..3000 {
            store.add(&columns, &[2, 0, 1], |row| (row as i64, 0), &mut numbers).unwrap();
            let back = store.columns(&[numbers[1], numbers[2], numbers[0]]).unwrap();
            assert_eq!(back, columns);
            assert_eq!(store.event_time_us(numbers[0]), 2);
            assert_eq!(store.compare_content(numbers[0], numbers[1]), Ordering::Less);
            numbers.iter().for_each(|&number| store.remove(number));
        }
        assert!(store.memory_bytes() < 200_000 && store.live().is_empty(), "{}", store.memory_bytes());
        assert!(store.column(1, &[NONE]).unwrap().is_null(0));
    }
}
