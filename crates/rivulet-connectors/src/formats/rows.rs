//! Typed column vectors that grow row by row and become one Arrow batch.
//!
//! A row is written in any column order; a column that is written twice keeps the last value. Rows after a mark can be
//! taken back, so a payload that turns out to be broken in its middle leaves nothing behind.
//!
//! Arrow owns the memory of a finished batch, so vectors cannot be reused; they are allocated once per batch at the
//! size that the events at hand need.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, Float64Array, Int64Array, RecordBatch, RecordBatchOptions,
    TimestampMicrosecondArray,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use rivulet_dataflow::{canonical_float, carried, held_type};

use super::exact::CheckedValues;
use super::fault::{Fault, Problem};
use super::number::Number;
use super::texts::TextValues;
use super::times::{TimeFormat, Times};
use super::topic::TopicColumns;

/// The most rows that one payload may give. A few bytes (`{}`) can be a whole row, so the bytes of a payload alone do
/// not bound the memory of its rows.
pub(crate) const ROWS_PER_EVENT_MAX: usize = 65_536;

/// The rows of one batch under construction.
pub(crate) struct Rows {
    /// The columns as they are declared, and as batches have them.
    schema: SchemaRef,
    carried: SchemaRef,
    columns: Vec<Column>,
    /// Finished rows.
    rows: usize,
    /// The number of columns of the open row that have a value.
    written: usize,
    /// No payload may go beyond this many rows.
    rows_max: usize,
    /// The finished rows that retract an equal row, ascending.
    retracting: Vec<u32>,
    /// The columns that rows get from the topics of their events.
    topic: Option<TopicColumns>,
}

/// One column under construction.
pub(crate) struct Column {
    values: Values,
    /// The rows that are null, ascending. Null rows hold a default in `values`.
    nulls: Vec<u32>,
    /// Values held: `rows`, or one more when the open row has one.
    filled: usize,
    /// Whether null is refused: declared `NOT NULL`, or the event time.
    required: bool,
    /// Bytes of text in the last batch per 16 rows, to size the next one.
    text_bytes_per_16_rows: usize,
}

/// The values of a column, by type.
pub(crate) enum Values {
    /// `Boolean`.
    Boolean(Vec<bool>),
    /// `Int64`.
    Int64(Vec<i64>),
    /// `Float64`.
    Float64(Vec<f64>),
    /// `Timestamp(Microsecond, None)`, microseconds since the epoch.
    Timestamp(TimeValues),
    /// `Utf8`.
    Text(TextValues),
    /// Values that are checked beyond their form.
    Checked(CheckedValues),
}

/// Times, and how payloads write them.
#[derive(Default)]
pub(crate) struct TimeValues {
    values: Vec<i64>,
    format: TimeFormat,
}

impl TimeValues {
    /// Appends a time in microseconds since the epoch.
    #[inline(always)]
    pub(crate) fn push(&mut self, time_us: i64) {
        self.values.push(time_us);
    }

    /// Appends the time that a number stands for; `text` is the scanned text.
    #[inline(always)]
    pub(crate) fn push_number(&mut self, number: Number, text: &[u8]) -> Result<(), Problem> {
        self.values.push(self.format.number(number, text)?);
        Ok(())
    }

    /// The time that a text names, in microseconds since the epoch.
    pub(crate) fn read(&self, text: &[u8]) -> Result<i64, Problem> {
        self.format.text(text)
    }

    /// Whether numbers count milliseconds.
    #[inline(always)]
    pub(crate) fn is_in_milliseconds(&self) -> bool {
        matches!(self.format, TimeFormat::Milliseconds)
    }

    /// Whether times may be written as numbers, that is, have no pattern.
    #[inline(always)]
    pub(crate) fn may_be_number(&self) -> bool {
        self.format.is_number()
    }
}

impl Values {
    fn truncate(&mut self, rows: usize) {
        match self {
            Self::Boolean(values) => values.truncate(rows),
            Self::Int64(values) => values.truncate(rows),
            Self::Timestamp(times) => times.values.truncate(rows),
            Self::Float64(values) => values.truncate(rows),
            Self::Text(values) => values.truncate(rows),
            Self::Checked(values) => values.truncate(rows),
        }
    }
}

impl Column {
    /// Where to put the open row's value: exactly one, after [`Rows::open`].
    #[inline]
    pub(crate) fn values(&mut self) -> &mut Values {
        &mut self.values
    }

    /// Makes the open row null in this column, after [`Rows::open`]; refuses where null is not allowed.
    #[inline]
    pub(crate) fn push_null(&mut self) -> Result<(), Problem> {
        if self.required {
            return Err(Problem::NullInRequired);
        }
        self.nulls.push((self.filled - 1) as u32);
        match &mut self.values {
            Values::Boolean(values) => values.push(false),
            Values::Int64(values) => values.push(0),
            Values::Timestamp(times) => times.push(0),
            Values::Float64(values) => values.push(0.0),
            Values::Text(values) => values.push_empty(),
            Values::Checked(values) => values.push_default(),
        }
        Ok(())
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        self.filled = rows;
        while self.nulls.last().is_some_and(|&row| row as usize >= rows) {
            self.nulls.pop();
        }
    }

    fn reserve(&mut self, rows: usize) {
        // Twice the last mean, so that one batch of longer texts does not reallocate.
        let text_bytes = rows * self.text_bytes_per_16_rows / 8;
        match &mut self.values {
            Values::Boolean(values) => values.reserve_exact(rows),
            Values::Int64(values) => values.reserve_exact(rows),
            Values::Timestamp(times) => times.values.reserve_exact(rows),
            Values::Float64(values) => values.reserve_exact(rows),
            Values::Text(values) => *values = TextValues::with_capacity(rows, text_bytes),
            Values::Checked(values) => values.reserve(rows),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        let rows = self.filled;
        let nulls = (!self.nulls.is_empty()).then(|| {
            let mut valid = BooleanBufferBuilder::new(rows);
            valid.append_n(rows, true);
            self.nulls.drain(..).for_each(|row| valid.set_bit(row as usize, false));
            NullBuffer::new(valid.finish())
        });
        self.filled = 0;
        match &mut self.values {
            Values::Boolean(values) => {
                let array = BooleanArray::new(values.as_slice().into(), nulls);
                values.clear();
                Arc::new(array)
            }
            Values::Int64(values) => Arc::new(Int64Array::new(std::mem::take(values).into(), nulls)),
            Values::Float64(values) => {
                values.iter_mut().for_each(|value| *value = canonical_float(*value));
                Arc::new(Float64Array::new(std::mem::take(values).into(), nulls))
            }
            Values::Timestamp(times) => {
                Arc::new(TimestampMicrosecondArray::new(std::mem::take(&mut times.values).into(), nulls))
            }
            Values::Text(values) => {
                self.text_bytes_per_16_rows = (values.text_bytes() * 16).div_ceil(rows.max(1));
                Arc::new(values.finish(nulls))
            }
            Values::Checked(values) => values.finish(nulls),
        }
    }
}

impl Rows {
    /// An empty builder for rows of `schema`, whose types must be those of [`is_supported`]. The column
    /// `event_time_column` is never null.
    pub(crate) fn new(schema: SchemaRef, event_time_column: Option<usize>) -> Self {
        let columns = schema
            .fields()
            .iter()
            .enumerate()
            .map(|(index, field)| Column {
                values: match field.data_type() {
                    _ if let Some(values) = held_type(field).and_then(|held| CheckedValues::nested(&held)) => {
                        Values::Checked(values)
                    }
                    DataType::Boolean => Values::Boolean(Vec::new()),
                    DataType::Int64 => Values::Int64(Vec::new()),
                    DataType::Float64 | DataType::Float32 => Values::Float64(Vec::new()),
                    DataType::Utf8 => Values::Text(TextValues::with_capacity(0, 0)),
                    DataType::Timestamp(TimeUnit::Microsecond, None) => Values::Timestamp(TimeValues::default()),
                    other => match CheckedValues::new(other) {
                        Some(values) => Values::Checked(values),
                        None => unreachable!("the format has refused columns of type {other}"),
                    },
                },
                nulls: Vec::new(),
                filled: 0,
                required: !field.is_nullable() || event_time_column == Some(index),
                text_bytes_per_16_rows: 0,
            })
            .collect();
        let carried = Arc::new(carried(&schema));
        Self {
            schema,
            carried,
            columns,
            rows: 0,
            written: 0,
            rows_max: ROWS_PER_EVENT_MAX,
            retracting: Vec::new(),
            topic: None,
        }
    }

    /// The same rows with times in another format.
    pub(super) fn with_times(mut self, times: &Times) -> Self {
        for (column, field) in self.columns.iter_mut().zip(self.schema.fields()) {
            match &mut column.values {
                Values::Timestamp(values) => values.format = times.of(field.name()),
                Values::Checked(CheckedValues::Date { format, .. }) => *format = times.of_date(field.name()),
                _ => {}
            }
        }
        self
    }

    /// How the times of a column are written; `None` if it has none, or dates in ISO 8601.
    pub(super) fn time_format(&self, column: usize) -> Option<&TimeFormat> {
        match &self.columns[column].values {
            Values::Timestamp(values) => Some(&values.format),
            Values::Checked(CheckedValues::Date { format, .. }) => format.as_ref(),
            _ => None,
        }
    }

    /// The same rows with columns that come from topics.
    pub(super) fn with_topic(self, topic: TopicColumns) -> Self {
        Self { topic: Some(topic), ..self }
    }

    /// The columns of payloads, as they are declared.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The number of finished rows.
    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Makes room for a batch of about `rows` rows.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.columns.iter_mut().for_each(|column| column.reserve(rows));
    }

    /// Begins the rows of the next event; returns the mark to give to [`Rows::truncate`].
    #[inline]
    pub(crate) fn begin_event(&mut self) -> usize {
        self.rows_max = self.rows + ROWS_PER_EVENT_MAX;
        self.rows
    }

    /// Ends an event: its rows are those from `before` on, and it was sent to `topic`.
    #[inline]
    pub(super) fn end_event(&mut self, before: usize, topic: &[u8]) -> Result<(), Fault> {
        match &mut self.topic {
            Some(columns) => columns.append(topic, self.rows - before),
            None => Ok(()),
        }
    }

    /// The column `index`, ready for the open row's value, which the caller must push before anything else.
    #[inline]
    pub(crate) fn open(&mut self, index: usize) -> &mut Column {
        let column = &mut self.columns[index];
        if column.filled == self.rows {
            self.written += 1;
        } else {
            column.truncate(self.rows);
        }
        column.filled = self.rows + 1;
        column
    }

    /// Whether the open row has a value, or null, in column `index`.
    #[inline]
    pub(crate) fn is_written(&self, index: usize) -> bool {
        self.columns[index].filled > self.rows
    }

    /// Takes back the open row's value of column `index`, if it has one.
    pub(crate) fn unset(&mut self, index: usize) {
        let column = &mut self.columns[index];
        if column.filled > self.rows {
            column.truncate(self.rows);
            self.written -= 1;
        }
    }

    /// Completes the open row: columns without a value become null, or the row is refused where null is not allowed.
    #[inline]
    pub(crate) fn finish_row(&mut self) -> Result<(), Fault> {
        if self.written != self.columns.len() {
            self.fill_missing()?;
        }
        if self.rows >= self.rows_max {
            return Err(Fault::new(Problem::TooManyRows, 0));
        }
        self.rows += 1;
        self.written = 0;
        Ok(())
    }

    /// Makes the row that was finished last one that retracts an equal row.
    pub(crate) fn retract(&mut self) {
        self.retracting.push((self.rows - 1) as u32);
    }

    /// The marks of the finished rows that retract an equal row, if there are any. They are removed.
    pub(crate) fn take_retracts(&mut self) -> Option<BooleanBuffer> {
        if self.retracting.is_empty() {
            return None;
        }
        let mut marks = BooleanBufferBuilder::new(self.rows);
        marks.append_n(self.rows, false);
        self.retracting.drain(..).for_each(|row| marks.set_bit(row as usize, true));
        Some(marks.finish())
    }

    #[cold]
    fn fill_missing(&mut self) -> Result<(), Fault> {
        for (index, column) in self.columns.iter_mut().enumerate() {
            if column.filled == self.rows {
                column.filled += 1;
                column.push_null().map_err(|_| Fault::new(Problem::Missing, 0).in_column(index))?;
            }
        }
        Ok(())
    }

    /// Forgets the open row and every row from `rows` on.
    #[cold]
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.columns.iter_mut().for_each(|column| column.truncate(rows));
        self.rows = rows;
        self.written = 0;
        while self.retracting.last().is_some_and(|&row| row as usize >= rows) {
            self.retracting.pop();
        }
    }

    /// The finished rows as a batch; the builder is empty afterwards. Their marks are taken before.
    pub(crate) fn finish(&mut self) -> RecordBatch {
        debug_assert!(self.retracting.is_empty(), "marks are taken before their rows");
        debug_assert_eq!(self.written, 0, "a row is finished or taken back before the batch is");
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let arrays = self.columns.iter_mut().map(Column::finish).collect();
        self.rows = 0;
        let of_payloads = RecordBatch::try_new_with_options(self.carried.clone(), arrays, &options)
            .expect("every column has the declared type, one value a row, and null only where it may be");
        match &mut self.topic {
            Some(columns) => columns.finish(&of_payloads),
            None => of_payloads,
        }
    }
}

/// Whether columns of this type can be decoded.
pub(crate) fn is_supported(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Boolean
            | DataType::Int64
            | DataType::Float64
            | DataType::Float32
            | DataType::Utf8
            | DataType::Timestamp(TimeUnit::Microsecond, None)
    ) || CheckedValues::new(data_type).is_some()
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Field, Float64Type, Schema};

    use super::*;

    fn rows() -> Rows {
        Rows::new(
            Arc::new(Schema::new(vec![
                Field::new("text", DataType::Utf8, true),
                Field::new("value", DataType::Float64, false),
            ])),
            None,
        )
    }

    fn put(rows: &mut Rows, text: Option<&str>, value: f64) {
        if let Some(text) = text {
            let Values::Text(values) = rows.open(0).values() else { panic!("text") };
            values.push(text.as_bytes()).unwrap();
        }
        let Values::Float64(values) = rows.open(1).values() else { panic!("float") };
        values.push(value);
    }

    #[test]
    fn the_last_value_wins_and_missing_columns_are_null() {
        let mut rows = rows();
        put(&mut rows, Some("first"), 1.0);
        put(&mut rows, Some("second"), 2.0);
        rows.finish_row().unwrap();
        put(&mut rows, None, 3.0);
        rows.finish_row().unwrap();
        let batch = rows.finish();
        assert_eq!(batch.column(0).as_string::<i32>().iter().collect::<Vec<_>>(), [Some("second"), None]);
        assert_eq!(batch.column(1).as_primitive::<Float64Type>().values().as_ref(), [2.0, 3.0]);
    }

    #[test]
    fn a_row_taken_back_leaves_nothing() {
        let mut rows = rows();
        put(&mut rows, None, 1.0);
        rows.finish_row().unwrap();
        let mark = rows.begin_event();
        put(&mut rows, None, 2.0);
        rows.finish_row().unwrap();
        rows.open(0).push_null().unwrap();
        assert_eq!(rows.finish_row(), Err(Fault::new(Problem::Missing, 0).in_column(1)));
        rows.truncate(mark);
        put(&mut rows, Some("after"), 4.0);
        rows.finish_row().unwrap();
        let batch = rows.finish();
        assert_eq!(batch.column(0).as_string::<i32>().iter().collect::<Vec<_>>(), [None, Some("after")]);
        assert_eq!(batch.column(0).null_count(), 1);
        assert_eq!(batch.column(1).as_primitive::<Float64Type>().values().as_ref(), [1.0, 4.0]);
        assert_eq!(rows.finish().num_rows(), 0);
    }

    #[test]
    fn the_rows_of_one_event_are_bounded() {
        let mut rows = Rows::new(Arc::new(Schema::empty()), None);
        rows.begin_event();
        (0..ROWS_PER_EVENT_MAX).for_each(|_| rows.finish_row().unwrap());
        assert_eq!(rows.finish_row(), Err(Fault::new(Problem::TooManyRows, 0)));
        rows.begin_event();
        rows.finish_row().unwrap();
    }
}
