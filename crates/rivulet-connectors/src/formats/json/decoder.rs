//! Objects into rows.

use arrow::datatypes::Schema;

use super::super::decode::PayloadParser;
use super::super::exact::CheckedValues;
use super::super::fault::{Fault, Problem};
use super::super::number::no_number;
use super::super::rows::{Column, Rows, Values};
use super::keys::{KeyTree, Target};
use super::reader::is_number_start;
use super::{DEPTH_MAX, Reader};

/// Reads JSON payloads into the declared columns.
pub(crate) struct JsonParser {
    tree: KeyTree,
    /// Keys and times that are written with escapes, decoded. Empty between uses.
    scratch: Vec<u8>,
}

impl JsonParser {
    /// A parser for the columns of `schema`. `Err` with a column's index if its name is nested too deeply.
    pub(crate) fn new(schema: &Schema) -> Result<Self, usize> {
        let fields = schema.fields();
        match fields.iter().position(|field| field.name().split('.').count() > DEPTH_MAX) {
            Some(column) => Err(column),
            None => {
                let tree = KeyTree::new(fields.iter().map(|field| field.name().as_str()));
                // Column and object numbers are 16 bits wide; the format has bounded the number of columns.
                if tree.len() > usize::from(u16::MAX) { Err(0) } else { Ok(Self { tree, scratch: Vec::new() }) }
            }
        }
    }

    /// Reads the object that begins here into the open row. `depth` counts the containers around it.
    fn object(&mut self, node: usize, reader: &mut Reader<'_>, depth: usize, rows: &mut Rows) -> Result<(), Fault> {
        let mut position = 0;
        loop {
            // As long as the keys are the learned ones and their values go to a column, nothing else is done.
            let mut taken = None;
            for step in self.tree.node(node).steps().get(position..).unwrap_or_default() {
                if !step.take(reader) {
                    break;
                }
                position += 1;
                if let Some(column) = step.column() {
                    read_value(rows.open(column), reader, &mut self.scratch)
                        .map_err(|fault| in_column(fault, column))?;
                } else if step.target() == Target::Skip {
                    reader.skip_value(depth + 1)?;
                } else {
                    taken = Some(step.target());
                    break;
                }
            }
            let target = match taken {
                Some(target) => target,
                None => {
                    position += 1;
                    self.tree.node(node).next_key(reader, position - 1, &mut self.scratch)?
                }
            };
            match target {
                Target::End => return Ok(()),
                Target::Skip => reader.skip_value(depth + 1)?,
                Target::Column(column) => self.value(usize::from(column), reader, rows)?,
                Target::Variant(column) if rows.is_written(usize::from(column)) => reader.skip_value(depth + 1)?,
                Target::Variant(column) => self.value(usize::from(column), reader, rows)?,
                Target::Object(_) | Target::Either(..) => self.nested_value(target, reader, depth + 1, rows)?,
            }
        }
    }

    /// Reads the object that begins here as one row. `depth` counts the containers around it.
    pub(crate) fn row(&mut self, reader: &mut Reader<'_>, depth: usize, rows: &mut Rows) -> Result<(), Fault> {
        self.scratch.clear();
        self.object(0, reader, depth, rows)?;
        rows.finish_row()
    }

    fn value(&mut self, index: usize, reader: &mut Reader<'_>, rows: &mut Rows) -> Result<(), Fault> {
        read_value(rows.open(index), reader, &mut self.scratch).map_err(|fault| in_column(fault, index))
    }

    /// Reads the value of a key that is an object with columns in it.
    #[inline(never)]
    fn nested_value(
        &mut self,
        target: Target,
        reader: &mut Reader<'_>,
        depth: usize,
        rows: &mut Rows,
    ) -> Result<(), Fault> {
        reader.skip_whitespace();
        let node = match target {
            Target::Either(column, _) if reader.peek() != b'{' => return self.value(usize::from(column), reader, rows),
            Target::Object(node) | Target::Either(_, node) => usize::from(node),
            Target::Column(_) | Target::Variant(_) | Target::Skip | Target::End => return reader.skip_value(depth),
        };
        // An object that comes twice counts with its last occurrence, like any key.
        for &column in &self.tree.node(node).columns {
            rows.unset(usize::from(column));
        }
        if reader.take_null() {
            return Ok(());
        }
        if reader.peek() != b'{' {
            let column = usize::from(self.tree.node(node).columns[0]);
            return Err(reader.fault(Problem::ExpectedObject).in_column(column));
        }
        self.object(node, reader, depth, rows)
    }
}

impl PayloadParser for JsonParser {
    #[inline]
    fn parse(&mut self, payload: &[u8], _arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        let mut reader = Reader::new(payload);
        self.scratch.clear();
        if reader.peek() != b'{' {
            reader.skip_whitespace();
        }
        match reader.peek() {
            b'{' => {
                self.object(0, &mut reader, 0, rows)?;
                rows.finish_row()?;
            }
            b'[' => {
                let mut another = reader.enter(b']');
                if !another {
                    return Err(reader.fault(Problem::NoRow));
                }
                while another {
                    if reader.peek() != b'{' {
                        return Err(reader.fault(Problem::ExpectedRecord));
                    }
                    self.object(0, &mut reader, 1, rows)?;
                    rows.finish_row()?;
                    another = reader.another(b']')?;
                }
            }
            _ => return Err(reader.fault(Problem::ExpectedRoot)),
        }
        reader.finish()
    }
}

/// Out of line, so that the path of valid values stays short.
#[cold]
#[inline(never)]
fn in_column(fault: Fault, column: usize) -> Fault {
    fault.in_column(column)
}

/// Reads one value into a column that was opened for it.
#[inline(always)]
fn read_value(column: &mut Column, reader: &mut Reader<'_>, scratch: &mut Vec<u8>) -> Result<(), Fault> {
    let at = reader.offset();
    let first = reader.peek();
    match column.values() {
        Values::Float64(values) if is_number_start(first) => {
            let number = reader.scan_number()?;
            values.push(match number.to_exact_f64() {
                Some(value) => value,
                None => number.to_f64(reader.since(at)).map_err(|problem| Fault::new(problem, at))?,
            });
        }
        Values::Timestamp(values) if is_number_start(first) => {
            let number = reader.scan_number()?;
            values.push_number(number, reader.since(at)).map_err(|problem| Fault::new(problem, at))?;
        }
        Values::Int64(values) if is_number_start(first) => {
            let number = reader.scan_number()?;
            values.push(match number.to_whole() {
                Some(value) => value,
                None => number.to_i64(reader.since(at)).map_err(|problem| Fault::new(problem, at))?,
            });
        }
        Values::Text(values) if first == b'"' => values.push_with(|bytes| reader.string_into(bytes))?,
        Values::Boolean(values) if matches!(first, b't' | b'f') => values.push(reader.boolean()?),
        _ => return read_other_value(column, reader, scratch),
    }
    Ok(())
}

/// Reads a null, a time written as text, or a value with more white space before it than was learned; refuses
/// everything else.
#[inline(never)]
fn read_other_value(column: &mut Column, reader: &mut Reader<'_>, scratch: &mut Vec<u8>) -> Result<(), Fault> {
    let begin = reader.offset();
    reader.skip_whitespace();
    let at = reader.offset();
    if reader.take_null() {
        return column.push_null().map_err(|problem| Fault::new(problem, at));
    }
    let first = reader.peek();
    let expected = match column.values() {
        Values::Checked(CheckedValues::Nested(values)) if first == values.begin().0 => return values.read(reader),
        Values::Checked(CheckedValues::Nested(values)) => values.begin().1,
        Values::Checked(values) if is_number_start(first) => {
            let number = reader.scan_number()?;
            return values.push_number(number, reader.since(at)).map_err(|problem| Fault::new(problem, at));
        }
        Values::Checked(values) if first == b'"' => {
            return text_value(reader, scratch, |text| values.push_text(text));
        }
        Values::Checked(values) => values.expected(),
        Values::Timestamp(values) if first == b'"' => {
            let time_us = text_value(reader, scratch, |text| values.read(text))?;
            values.push(time_us);
            return Ok(());
        }
        Values::Float64(values) if first == b'"' => {
            let refused = |text: &[u8]| Err(no_number(text, Problem::ExpectedNumber));
            values.push(text_value(reader, scratch, refused)?);
            return Ok(());
        }
        Values::Float64(_) | Values::Int64(_) => Problem::ExpectedNumber,
        Values::Timestamp(_) => Problem::ExpectedTimestamp,
        Values::Text(_) => Problem::ExpectedString,
        Values::Boolean(_) => Problem::ExpectedBoolean,
    };
    // After white space, the value may be of the column's type after all.
    if at > begin { read_value_after_space(column, reader, scratch) } else { Err(Fault::new(expected, at)) }
}

/// [`read_value`] once more, out of line, where no white space is left and so no third time can follow.
#[inline(never)]
fn read_value_after_space(column: &mut Column, reader: &mut Reader<'_>, scratch: &mut Vec<u8>) -> Result<(), Fault> {
    read_value(column, reader, scratch)
}

/// Takes a value that is written as text.
fn text_value<T>(
    reader: &mut Reader<'_>,
    scratch: &mut Vec<u8>,
    parse: impl FnOnce(&[u8]) -> Result<T, Problem>,
) -> Result<T, Fault> {
    let at = reader.offset();
    let kept = scratch.len();
    let span = reader.string_span(scratch)?;
    let value = parse(span.of(reader.payload(), scratch));
    scratch.truncate(kept);
    value.map_err(|problem| Fault::new(problem, at))
}
