//! CSV (RFC 4180): one line a row, fields in the order of the declared columns, without a header line.
//!
//! A field may belong to no column; then it is skipped. An empty field is null; `""` is the empty text. A payload may
//! have several lines; the last one need not be ended.

use rivulet_dataflow::Batch;

use super::bare::push_bare;
use super::cells::{Cell, Cells};
use super::decode::PayloadParser;
use super::encode::{EncodedRows, Encoder, append_display};
use super::exact::{append_date, append_scaled, append_time_of_day};
use super::fault::{Fault, Problem};
use super::json::{append_integer, append_json_float, append_json_timestamp};
use super::number::{Number, not_finite_name, scan_short_integer};
use super::rows::{Column, Rows, Values};
use super::separators::Separators;
use super::times::TimeFormat;
use super::timestamp;

/// Whether numbers, booleans and times may contain this character.
fn is_in_numbers(delimiter: u8) -> bool {
    delimiter.is_ascii_alphanumeric() || b"+-.".contains(&delimiter)
}

/// Reads CSV payloads into the declared columns.
pub(crate) struct CsvParser {
    delimiter: u8,
    /// Whether the delimiter cannot be part of a number.
    has_plain_numbers: bool,
    /// The column of each field, if it has one.
    places: Vec<Option<usize>>,
    /// A quoted field with its doubled quotes resolved.
    unquoted: Vec<u8>,
}

impl CsvParser {
    /// A parser of lines with a field for each of `places`, at least one: the column of the field, if it has one.
    pub(crate) fn new(delimiter: u8, places: Vec<Option<usize>>) -> Self {
        Self { delimiter, has_plain_numbers: !is_in_numbers(delimiter), places, unquoted: Vec::new() }
    }

    /// Reads the line at `start` into the open row. Returns where the next line begins.
    fn line(
        &mut self,
        payload: &[u8],
        start: usize,
        separators: &mut Separators<'_>,
        rows: &mut Rows,
    ) -> Result<usize, Fault> {
        let mut at = start;
        for index in 0..self.places.len() {
            let column = self.places[index];
            let field = self.field(payload, at, column, separators, rows).map_err(|fault| within(fault, column))?;
            let is_last = index + 1 == self.places.len();
            match (payload.get(field.separator) == Some(&self.delimiter), is_last) {
                (true, false) => at = field.separator + 1,
                (false, true) => return Ok(field.separator + 1),
                (true, true) => return Err(Fault::new(Problem::TooManyFields, field.end)),
                (false, false) => {
                    let missing = self.places[index + 1..].iter().flatten().next().copied();
                    return Err(within(Fault::new(Problem::TooFewFields, field.end), missing));
                }
            }
        }
        Ok(at)
    }

    /// Reads the field at `start` into its column, if it has one.
    #[inline(always)]
    fn field(
        &mut self,
        payload: &[u8],
        start: usize,
        place: Option<usize>,
        separators: &mut Separators<'_>,
        rows: &mut Rows,
    ) -> Result<Field, Fault> {
        let here = |problem| Fault::new(problem, start);
        if payload.get(start) == Some(&b'"') {
            let end = self.quoted(payload, start)?;
            if let Some(index) = place {
                push_bare(rows.open(index), &self.unquoted).map_err(here)?;
            }
            return Ok(Field { end, separator: end + usize::from(payload.get(end) == Some(&b'\r')) });
        }
        let field = self.end(payload, start, separators)?;
        if let Some(index) = place {
            let column = rows.open(index);
            if field.end == start {
                column.push_null().map_err(here)?;
            } else if !(self.has_plain_numbers && number(payload, start, field.end, column).map_err(here)?) {
                push_bare(column, &payload[start..field.end]).map_err(here)?;
            }
        }
        Ok(field)
    }

    /// Finds the end of the field at `start`, which is not quoted.
    #[inline(always)]
    fn end(&self, payload: &[u8], start: usize, separators: &mut Separators<'_>) -> Result<Field, Fault> {
        let separator = separators.next(start);
        match payload.get(separator) {
            Some(b'"') => Err(Fault::new(Problem::QuoteInField, separator)),
            Some(&byte) if byte == self.delimiter => Ok(Field { end: separator, separator }),
            // A carriage return before the end of the line belongs to it.
            _ => {
                let is_return = separator > start && payload[separator - 1] == b'\r';
                Ok(Field { end: separator - usize::from(is_return), separator })
            }
        }
    }

    /// Reads the quoted field at `start` into `unquoted`. Returns where it ends.
    fn quoted(&mut self, payload: &[u8], start: usize) -> Result<usize, Fault> {
        self.unquoted.clear();
        let mut at = start + 1;
        loop {
            let rest = payload.get(at..).unwrap_or_default();
            let Some(length) = rest.iter().position(|&byte| byte == b'"') else {
                return Err(Fault::new(Problem::UnterminatedQuote, start));
            };
            self.unquoted.extend_from_slice(&rest[..length]);
            at += length + 1;
            match payload.get(at) {
                Some(b'"') => {
                    self.unquoted.push(b'"');
                    at += 1;
                }
                Some(&byte) if byte != self.delimiter && line_break(payload, at).is_none() => {
                    return Err(Fault::new(Problem::TextAfterQuote, at));
                }
                _ => return Ok(at),
            }
        }
    }
}

/// The end of a field.
#[derive(Clone, Copy)]
struct Field {
    /// Behind its last byte.
    end: usize,
    /// The delimiter or the line feed behind it, or the end of the payload.
    separator: usize,
}

/// Reads the field at `start..end` if its column has numbers and the field is only a number, as most are. Returns
/// whether it was read. Other fields are read in a slower way.
#[inline(always)]
fn number(payload: &[u8], start: usize, end: usize, column: &mut Column) -> Result<bool, Problem> {
    let values = column.values();
    if matches!(values, Values::Text(_) | Values::Boolean(_) | Values::Checked(_)) {
        return Ok(false);
    }
    let is_whole = match values {
        Values::Int64(_) => true,
        Values::Timestamp(values) => values.is_in_milliseconds(),
        _ => false,
    };
    if is_whole
        && let Some((value, found_end)) = scan_short_integer(payload, start)
        && found_end == end
    {
        match values {
            Values::Int64(values) => values.push(value),
            // Below 10^15, so that a thousand times as much is no overflow.
            Values::Timestamp(values) => values.push(timestamp::check_range(value * 1000)?),
            _ => {}
        }
        return Ok(true);
    }
    let Ok((number, found_end)) = Number::scan::<true>(payload, start) else { return Ok(false) };
    if found_end != end {
        return Ok(false);
    }
    let text = &payload[start..end];
    match values {
        Values::Int64(values) => values.push(match number.to_whole() {
            Some(value) => value,
            None => number.to_i64(text)?,
        }),
        Values::Float64(values) => values.push(match number.to_exact_f64() {
            Some(value) => value,
            None => number.to_f64(text)?,
        }),
        Values::Timestamp(values) => values.push_number(number, text)?,
        Values::Text(_) | Values::Boolean(_) | Values::Checked(_) => return Ok(false),
    }
    Ok(true)
}

/// The fault, assigned to the field's column if it has one.
fn within(fault: Fault, column: Option<usize>) -> Fault {
    match column {
        Some(index) => fault.in_column(index),
        None => fault,
    }
}

/// Where the next line begins if one ends at `at`.
fn line_break(payload: &[u8], at: usize) -> Option<usize> {
    match payload.get(at..).unwrap_or_default() {
        [] => Some(at),
        [b'\n', ..] => Some(at + 1),
        [b'\r', b'\n', ..] => Some(at + 2),
        [b'\r'] => Some(at + 1),
        _ => None,
    }
}

impl PayloadParser for CsvParser {
    fn parse(&mut self, payload: &[u8], _arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        let mut at = 0;
        let before = rows.rows();
        let mut separators = Separators::new(payload, self.delimiter);
        while at < payload.len() {
            // With one column an empty line is a null; with more it is only an empty line.
            if self.places.len() > 1
                && let Some(next) = line_break(payload, at)
            {
                at = next;
                continue;
            }
            at = self.line(payload, at, &mut separators, rows)?;
            rows.finish_row()?;
        }
        if rows.rows() == before { Err(Fault::new(Problem::NoRow, 0)) } else { Ok(()) }
    }
}

/// Writes each row as one line without a line break, fields in column order, null as an empty field, timestamps as
/// epoch milliseconds or as they were declared.
pub(crate) struct CsvEncoder {
    delimiter: u8,
    /// How the times of each column are written.
    times: Vec<TimeFormat>,
    /// The text of a time while it is written.
    scratch: Vec<u8>,
    /// Whether the delimiter can be part of what is written without quotes.
    is_in_numbers: bool,
}

impl CsvEncoder {
    /// An encoder with this delimiter.
    pub(crate) fn new(delimiter: u8, times: Vec<TimeFormat>) -> Self {
        Self { delimiter, times, scratch: Vec::new(), is_in_numbers: is_in_numbers(delimiter) }
    }

    /// Appends a cell that is not text. If the delimiter is a letter, a digit or a point, the cell may need quotes.
    fn bare(&self, cell: Cell<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        append_bare(cell, out);
        if self.is_in_numbers && out[start..].contains(&self.delimiter) {
            out.insert(start, b'"');
            out.push(b'"');
        }
    }

    fn text(&self, text: &str, out: &mut Vec<u8>) {
        let needs_quotes = |byte: u8| byte == self.delimiter || matches!(byte, b'"' | b'\n' | b'\r');
        // Without quotes, an empty text would be read as null.
        if !text.is_empty() && !text.bytes().any(needs_quotes) {
            out.extend_from_slice(text.as_bytes());
            return;
        }
        out.push(b'"');
        for part in text.split_inclusive('"') {
            out.extend_from_slice(part.as_bytes());
            if part.ends_with('"') {
                out.push(b'"');
            }
        }
        out.push(b'"');
    }
}

impl Encoder for CsvEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        let columns: Vec<Cells> = batch.columns.columns().iter().map(Cells::new).collect();
        for row in 0..batch.rows() {
            let bytes = out.bytes_mut();
            for (index, cells) in columns.iter().enumerate() {
                if index > 0 {
                    bytes.push(self.delimiter);
                }
                match cells.cell(row) {
                    Cell::Text(text) => self.text(text, bytes),
                    Cell::Timestamp(time_us) if self.times[index] != TimeFormat::Milliseconds => {
                        self.scratch.clear();
                        self.times[index].append(time_us, &mut self.scratch);
                        self.text(std::str::from_utf8(&self.scratch).unwrap_or_default(), bytes);
                    }
                    Cell::Date(days) => {
                        self.scratch.clear();
                        append_date(days, &self.times[index], &mut self.scratch);
                        self.text(std::str::from_utf8(&self.scratch).unwrap_or_default(), bytes);
                    }
                    Cell::Time(of_day_ns) => {
                        self.scratch.clear();
                        append_time_of_day(of_day_ns, &mut self.scratch);
                        self.text(std::str::from_utf8(&self.scratch).unwrap_or_default(), bytes);
                    }
                    cell => self.bare(cell, bytes),
                }
            }
            out.end_row();
        }
    }
}

/// Appends a cell as bare text: nothing for null.
pub(crate) fn append_bare(cell: Cell<'_>, out: &mut Vec<u8>) {
    match cell {
        Cell::Null => {}
        Cell::Boolean(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Cell::Int64(value) => append_integer(value.unsigned_abs(), value < 0, out),
        Cell::UInt64(value) => append_integer(value, false, out),
        Cell::Float64(value) => match not_finite_name(value) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => append_json_float(value, out),
        },
        Cell::Float32(value) => match not_finite_name(f64::from(value)) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => append_display(out, format_args!("{value:?}")),
        },
        Cell::Decimal(digits, scale) => append_scaled(digits, scale, out),
        Cell::Text(text) => out.extend_from_slice(text.as_bytes()),
        Cell::Timestamp(time_us) => append_json_timestamp(time_us, out),
        Cell::Date(days) => append_date(days, &TimeFormat::default(), out),
        Cell::Time(of_day_ns) => append_time_of_day(of_day_ns, out),
    }
}
