//! One row for a whole pack: each column takes the value of the record of its name, whose full name (base name
//! included) or own name may be the column's. Other records are passed over; a column without a record is null; of
//! several records of one name the last one counts.
//!
//! The event time column, whatever its name, is the latest time of the pack's records.

use arrow::datatypes::Schema;
use hashbrown::HashMap;

use super::super::bare;
use super::super::decode::PayloadParser;
use super::super::fault::{Fault, Problem};
use super::super::rows::{Column, Rows, Values};
use super::super::timestamp;
use super::pack::{Pack, Record, Value};
use super::rows::numeric;

/// Reads packs into one row each.
pub(crate) struct PivotParser {
    columns: HashMap<Box<[u8]>, u16, foldhash::fast::RandomState>,
    event_time_column: Option<usize>,
    scratch: Vec<u8>,
    full_name: Vec<u8>,
}

impl PivotParser {
    /// A parser for the columns of `schema`.
    pub(crate) fn new(schema: &Schema, event_time_column: Option<usize>) -> Self {
        let columns = schema.fields().iter().enumerate().filter(|&(index, _)| event_time_column != Some(index));
        Self {
            columns: columns.map(|(index, field)| (field.name().as_bytes().into(), index as u16)).collect(),
            event_time_column,
            scratch: Vec::new(),
            full_name: Vec::new(),
        }
    }
}

impl PayloadParser for PivotParser {
    fn parse(&mut self, payload: &[u8], arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        let mut pack = Pack::open(payload, arrival_us, &mut self.scratch)?;
        let mut latest_us = None;
        while let Some(record) = pack.next()? {
            latest_us = latest_us.max(Some(record.time_us));
            let (base_name, name) = (pack.text(record.base_name), pack.text(record.name));
            let full = if base_name.is_empty() {
                name
            } else {
                self.full_name.clear();
                self.full_name.extend_from_slice(base_name);
                self.full_name.extend_from_slice(name);
                &self.full_name
            };
            let column = self.columns.get(full).or_else(|| self.columns.get(name));
            if let Some(index) = column.copied().map(usize::from) {
                put(&record, &pack, rows.open(index))
                    .map_err(|problem| Fault::new(problem, record.at).in_column(index))?;
            }
        }
        let latest_us = latest_us.ok_or(Fault::new(Problem::NoRow, 0))?;
        if let Some(index) = self.event_time_column
            && let Values::Timestamp(values) = rows.open(index).values()
        {
            values.push(latest_us);
        }
        rows.finish_row()
    }
}

fn put(record: &Record<'_>, pack: &Pack<'_, '_>, column: &mut Column) -> Result<(), Problem> {
    match (column.values(), record.value) {
        (_, Value::None) => column.push_null(),
        (Values::Boolean(values), Value::Flag(flag)) => {
            values.push(flag);
            Ok(())
        }
        (Values::Float64(values), Value::Number(..) | Value::NumberText(_)) => {
            // Of these two kinds, `numeric` gives a number or an error.
            values.push(numeric(record, pack)?.ok_or(Problem::ExpectedBareNumber)?);
            Ok(())
        }
        (Values::Int64(values), Value::Number(number, text)) if record.base_value == 0.0 => {
            values.push(number.to_i64(text)?);
            Ok(())
        }
        (Values::Int64(values), Value::Number(..) | Value::NumberText(_)) if record.base_value != 0.0 => {
            let sum = numeric(record, pack)?.ok_or(Problem::ExpectedBareNumber)?;
            values.push(whole(sum)?);
            Ok(())
        }
        (Values::Timestamp(values), Value::Number(number, text)) => {
            values.push(timestamp::from_epoch_ms(number, text)?);
            Ok(())
        }
        // A base value is a floating point number.
        (Values::Checked(values), Value::Number(number, text)) if record.base_value == 0.0 => {
            values.push_number(number, text)
        }
        (Values::Checked(values), Value::Number(..) | Value::NumberText(_)) if record.base_value != 0.0 => {
            let sum = numeric(record, pack)?.ok_or(Problem::ExpectedBareNumber)?;
            values.push_integer(whole(sum)?)
        }
        (_, Value::NumberText(span) | Value::Text(span)) => bare::push_bare(column, pack.text(span)),
        (Values::Checked(values), _) => Err(values.expected()),
        (Values::Boolean(_), _) => Err(Problem::ExpectedBoolean),
        (Values::Text(_), _) => Err(Problem::ExpectedString),
        (Values::Timestamp(_), _) => Err(Problem::ExpectedTimestamp),
        (Values::Float64(_) | Values::Int64(_), _) => Err(Problem::ExpectedNumber),
    }
}

fn whole(value: f64) -> Result<i64, Problem> {
    /// 2^63 as a double; every whole double below it in magnitude is a 64-bit integer.
    const BOUND: f64 = 9_223_372_036_854_775_808.0;
    if value.fract() != 0.0 {
        Err(Problem::ExpectedInteger)
    } else if value.abs() >= BOUND {
        Err(Problem::NumberRange)
    } else {
        Ok(value as i64)
    }
}
