//! A row for each record. The columns are chosen by their names, any of them in any order: `name` and `unit` (TEXT),
//! `value` (DOUBLE), `text` (TEXT), `flag` (BOOLEAN) and `time` (TIMESTAMP).

use arrow::datatypes::{DataType, Schema, TimeUnit};

use super::super::bare;
use super::super::decode::PayloadParser;
use super::super::fault::{Fault, Problem};
use super::super::number::Number;
use super::super::rows::{Column, Rows, Values};
use super::pack::{Pack, Record, Value};

/// What a column of a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Name,
    Unit,
    Value,
    Text,
    Flag,
    Time,
}

/// The columns that a record has, by name and SQL type, for messages.
pub(crate) const COLUMNS: &str = "name TEXT, unit TEXT, value DOUBLE, text TEXT, flag BOOLEAN, time TIMESTAMP";

impl Part {
    fn of(name: &str, data_type: &DataType) -> Option<Self> {
        let (part, wanted) = match name {
            "name" => (Self::Name, DataType::Utf8),
            "unit" => (Self::Unit, DataType::Utf8),
            "value" => (Self::Value, DataType::Float64),
            "text" => (Self::Text, DataType::Utf8),
            "flag" => (Self::Flag, DataType::Boolean),
            "time" => (Self::Time, DataType::Timestamp(TimeUnit::Microsecond, None)),
            _ => return None,
        };
        (wanted == *data_type).then_some(part)
    }
}

/// Reads packs into a row for each record.
pub(crate) struct RecordParser {
    parts: Vec<Part>,
    scratch: Vec<u8>,
}

impl RecordParser {
    /// A parser for the columns of `schema`. `Err` with the index of a column that records do not have.
    pub(crate) fn new(schema: &Schema) -> Result<Self, usize> {
        let part = |(index, field): (usize, &arrow::datatypes::FieldRef)| {
            Part::of(field.name(), field.data_type()).ok_or(index)
        };
        let parts = schema.fields().iter().enumerate().map(part).collect::<Result<_, _>>()?;
        Ok(Self { parts, scratch: Vec::new() })
    }
}

impl PayloadParser for RecordParser {
    fn parse(&mut self, payload: &[u8], arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        let before = rows.rows();
        let mut pack = Pack::open(payload, arrival_us, &mut self.scratch)?;
        while let Some(record) = pack.next()? {
            for (index, &part) in self.parts.iter().enumerate() {
                put(part, &record, &pack, rows.open(index))
                    .map_err(|problem| Fault::new(problem, record.at).in_column(index))?;
            }
            rows.finish_row()?;
        }
        if rows.rows() == before { Err(Fault::new(Problem::NoRow, 0)) } else { Ok(()) }
    }
}

fn put(part: Part, record: &Record<'_>, pack: &Pack<'_, '_>, column: &mut Column) -> Result<(), Problem> {
    match (part, column.values()) {
        (Part::Name, Values::Text(values)) => values
            .push_with(|bytes| {
                bytes.extend_from_slice(pack.text(record.base_name));
                bytes.extend_from_slice(pack.text(record.name));
                Ok(())
            })
            .map_err(|_| Problem::TooMuchText),
        (Part::Unit, Values::Text(_)) => match record.unit {
            Some(unit) => bare::push_bare(column, pack.text(unit)),
            None => column.push_null(),
        },
        (Part::Text, Values::Text(_)) => match record.value {
            Value::Text(text) => bare::push_bare(column, pack.text(text)),
            _ => column.push_null(),
        },
        (Part::Value, Values::Float64(values)) => match numeric(record, pack)? {
            Some(value) => {
                values.push(value);
                Ok(())
            }
            None => column.push_null(),
        },
        (Part::Flag, Values::Boolean(values)) => match record.value {
            Value::Flag(flag) => {
                values.push(flag);
                Ok(())
            }
            _ => column.push_null(),
        },
        (Part::Time, Values::Timestamp(values)) => {
            values.push(record.time_us);
            Ok(())
        }
        // The parser was made for columns of these types.
        _ => column.push_null(),
    }
}

/// The numeric value with the base value added; `None` for a record with another kind of value.
pub(super) fn numeric(record: &Record<'_>, pack: &Pack<'_, '_>) -> Result<Option<f64>, Problem> {
    let value = match record.value {
        Value::Number(number, text) => number.to_f64(text)?,
        Value::NumberText(span) => {
            let text = pack.text(span).trim_ascii();
            Number::of(text)?.to_f64(text)?
        }
        _ => return Ok(None),
    } + record.base_value;
    if value.is_finite() { Ok(Some(value)) } else { Err(Problem::NumberRange) }
}
