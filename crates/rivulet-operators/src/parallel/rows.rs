//! Kept rows, in columns of their own, each by its number.
//!
//! Values of fixed width are stored row by row, so that reading a row touches one or two cache lines, however many
//! columns are read. Texts are stored apart ([`texts`](super::texts)). Numbers of removed rows are used again. Rows are
//! read as Arrow columns for any list of numbers, in which [`NONE`] is a row of nulls.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch, StringArray, make_array};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use rivulet_dataflow::Batch;

use super::keys::NONE;
use super::texts::Texts;
use super::words::{column_of, width_of, words_of};
use crate::PlanError;
use crate::paged::{Paged, PagedRows};

/// The index of a row's first value: event time and arrival come before it.
const TIMES: usize = 2;

/// Rows by number.
pub(crate) struct RowStore {
    columns: Vec<Column>,
    /// By row: event time, arrival, and the values of fixed width.
    words: PagedRows,
    /// The texts of all rows, if they have any.
    texts: Option<Texts>,
    is_live: Paged<bool>,
    free: Vec<u32>,
}

struct Column {
    data_type: DataType,
    values: Values,
    /// By row: whether the value is null. Empty until the first null.
    nulls: Paged<bool>,
}

/// Where the values of a column are.
#[derive(Clone, Copy)]
enum Values {
    /// The word at this index of the row.
    Word(usize),
    /// Two words from this index on, the lower one first.
    Wide(usize),
    /// The text with this index among those of the row.
    Text(usize),
}

impl RowStore {
    /// Makes a store of rows with these columns of `schema`.
    pub(crate) fn new(schema: &Schema, columns: &[usize]) -> Result<Self, PlanError> {
        let (mut texts, mut width) = (0, TIMES);
        let column = |&index: &usize| {
            let data_type = schema.field(index).data_type().clone();
            let values = match data_type.primitive_width() {
                _ if width_of(&data_type).is_some() => {
                    width += 1;
                    Values::Word(width - 1)
                }
                Some(16) => {
                    width += 2;
                    Values::Wide(width - 2)
                }
                _ if data_type.is_string() => {
                    texts += 1;
                    Values::Text(texts - 1)
                }
                _ => {
                    let problem = format!("values of type {data_type} cannot be kept");
                    return Err(PlanError::Column { index, what: "rows that are kept", problem });
                }
            };
            Ok(Column { data_type, values, nulls: Paged::new() })
        };
        let columns = columns.iter().map(column).collect::<Result<_, _>>()?;
        Ok(Self {
            columns,
            words: PagedRows::new(width),
            texts: (texts > 0).then(Texts::new),
            is_live: Paged::new(),
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
        self.words.row(row as usize)[0] as i64
    }

    pub(crate) fn arrival_us(&self, row: u32) -> i64 {
        self.words.row(row as usize)[1] as i64
    }

    /// The event time and the arrival of a row.
    #[inline]
    pub(crate) fn times_us(&self, row: u32) -> [i64; 2] {
        let row = self.words.row(row as usize);
        [row[0] as i64, row[1] as i64]
    }

    /// Adds the rows `rows` of `columns`; `times` returns the event time and the arrival of a row. Writes their numbers
    /// to `numbers`.
    pub(crate) fn add(
        &mut self,
        columns: &[ArrayRef],
        rows: &[u32],
        times: impl Fn(usize) -> (i64, i64),
        numbers: &mut Vec<u32>,
    ) -> Result<(), ArrowError> {
        numbers.clear();
        let again = rows.len().min(self.free.len());
        numbers.extend(self.free.drain(self.free.len() - again..).rev());
        let before = self.is_live.len();
        let total = before + rows.len() - again;
        assert!(total < NONE as usize, "fewer than 2^32 rows in one instance");
        numbers.extend(before as u32..total as u32);
        self.is_live.grow(total, true);
        self.words.grow_zeroed(total);
        for (&row, &number) in rows.iter().zip(&*numbers) {
            let (event_time_us, arrival_us) = times(row as usize);
            let words = self.words.row_mut(number as usize);
            (words[0], words[1]) = (event_time_us as u64, arrival_us as u64);
            self.is_live[number as usize] = true;
        }
        let mut texts = Vec::new();
        for (stored, column) in self.columns.iter_mut().zip(columns) {
            stored.put(&mut self.words, column, rows, numbers, total);
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
        self.columns[column].take(rows, &self.words, self.texts.as_ref())
    }

    /// All columns of these rows.
    pub(crate) fn columns(&self, rows: &[u32]) -> Result<Vec<ArrayRef>, ArrowError> {
        self.columns.iter().map(|column| column.take(rows, &self.words, self.texts.as_ref())).collect()
    }

    /// A batch with the times of these rows, and with these columns.
    pub(crate) fn batch(&self, rows: &[u32], schema: &SchemaRef, columns: Vec<ArrayRef>) -> Result<Batch, ArrowError> {
        Ok(Batch::new(
            vec![0; rows.len()].into(),
            rows.iter().map(|&row| self.event_time_us(row)).collect(),
            rows.iter().map(|&row| self.arrival_us(row)).collect(),
            RecordBatch::try_new(schema.clone(), columns)?,
        ))
    }

    pub(crate) fn is_null(&self, column: usize, row: u32) -> bool {
        self.columns[column].is_null(row as usize)
    }

    /// A value of fixed width as a word. The word of a null is undefined.
    pub(crate) fn word(&self, column: usize, row: u32) -> u64 {
        match self.columns[column].values {
            Values::Word(place) => self.words.row(row as usize)[place],
            _ => 0,
        }
    }

    /// Compares two values that are not null.
    pub(crate) fn compare(&self, column: usize, a: u32, b: u32) -> Ordering {
        let Column { data_type, values, .. } = &self.columns[column];
        match *values {
            Values::Word(place) => {
                let [a, b] = [a, b].map(|row| self.words.row(row as usize)[place]);
                match data_type {
                    DataType::Float64 => f64::from_bits(a).total_cmp(&f64::from_bits(b)),
                    DataType::Float32 => f32::from_bits(a as u32).total_cmp(&f32::from_bits(b as u32)),
                    DataType::UInt64 => a.cmp(&b),
                    _ => (a as i64).cmp(&(b as i64)),
                }
            }
            Values::Wide(place) => {
                let [a, b] = [a, b].map(|row| wide_of(self.words.row(row as usize), place));
                a.cmp(&b)
            }
            Values::Text(text) => self.text(a as usize, text).cmp(self.text(b as usize, text)),
        }
    }

    fn text(&self, row: usize, text: usize) -> &[u8] {
        self.texts.as_ref().map_or(&[], |texts| texts.get(row, text))
    }

    /// Compares rows by their content alone: column by column, null first.
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
            let words = self.words.row(row as usize);
            match column.values {
                Values::Word(place) => state.write_u64(words[place]),
                Values::Wide(place) => state.write_u128(wide_of(words, place) as u128),
                Values::Text(text) => state.write(self.text(row as usize, text)),
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
        let nulls: usize = self.columns.iter().map(|column| column.nulls.memory_bytes()).sum();
        let texts = self.texts.as_ref().map_or(0, Texts::memory_bytes);
        nulls + texts + self.words.memory_bytes() + self.is_live.memory_bytes() + self.free.capacity() * 4
    }
}

/// The value of two words from index `place` on.
#[inline]
fn wide_of(words: &[u64], place: usize) -> i128 {
    (u128::from(words[place]) | u128::from(words[place + 1]) << 64) as i128
}

impl Column {
    #[inline]
    fn is_null(&self, row: usize) -> bool {
        self.nulls.get(row).copied().unwrap_or(false)
    }

    /// Writes the values of `rows` to the rows `numbers` of the store, which has `total` numbers in all.
    fn put(&mut self, words: &mut PagedRows, column: &ArrayRef, rows: &[u32], numbers: &[u32], total: usize) {
        let places = || rows.iter().zip(numbers).map(|(&row, &number)| (row as usize, number as usize));
        match self.values {
            Values::Word(place) => {
                let values = words_of(column);
                places().for_each(|(row, number)| words.row_mut(number)[place] = values[row]);
            }
            Values::Wide(place) => {
                let data = column.to_data();
                let values = ScalarBuffer::<i128>::new(data.buffers()[0].clone(), data.offset(), data.len());
                places().for_each(|(row, number)| {
                    let value = values[row] as u128;
                    words.row_mut(number)[place..place + 2].copy_from_slice(&[value as u64, (value >> 64) as u64]);
                });
            }
            // The texts of all columns are written together.
            Values::Text(_) => {}
        }
        let nulls = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        if nulls.is_some() || self.nulls.len() > 0 {
            self.nulls.grow(total, false);
            places().for_each(|(row, number)| {
                self.nulls[number] = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            });
        }
    }

    fn take(&self, rows: &[u32], words: &PagedRows, texts: Option<&Texts>) -> Result<ArrayRef, ArrowError> {
        let has_gaps = rows.contains(&NONE);
        let is_valid = |&row: &u32| row != NONE && !self.is_null(row as usize);
        let nulls = (has_gaps || self.nulls.len() > 0)
            .then(|| rows.iter().map(is_valid).collect::<NullBuffer>())
            .filter(|nulls| nulls.null_count() > 0);
        Ok(match &self.values {
            &Values::Word(place) => {
                let word = |row: u32| words.row(row as usize)[place];
                let values = match has_gaps {
                    false => rows.iter().map(|&row| word(row)).collect(),
                    true => rows.iter().map(|&row| if row == NONE { 0 } else { word(row) }).collect(),
                };
                column_of(&self.data_type, values, nulls)
            }
            &Values::Wide(place) => {
                let wide = |&row: &u32| if row == NONE { 0 } else { wide_of(words.row(row as usize), place) };
                let values: Vec<i128> = rows.iter().map(wide).collect();
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
