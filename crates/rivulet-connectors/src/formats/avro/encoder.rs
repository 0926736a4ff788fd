//! Rows into Avro records.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use rivulet_dataflow::Batch;

use super::part_encoder::Written;
use super::schema::{AvroSchema, Node};
use crate::formats::array::{part_of, type_of};
use crate::formats::binary::{Framing, append_zigzag};
use crate::formats::cells::{Cell, Cells, written_as};
use crate::formats::csv::append_bare;
use crate::formats::encode::{EncodedRows, Encoder};
use crate::formats::exact::{nearest_float, rescaled};
use crate::formats::parts::Part;
use crate::formats::tape::Tape;

/// How deep records may be nested in each other.
const DEPTH_MAX: usize = 64;

/// Writes each row as one record.
pub(super) struct AvroEncoder {
    framing: Framing,
    /// How each field of the root is written.
    steps: Vec<Step>,
    tape: Tape,
}

/// How a field is written.
enum Step {
    /// The branch of the union that is null.
    Null(Option<i64>),
    /// From a column; the branches of the union for null and for a value.
    Column { column: usize, node: Node, null: Option<i64>, value: Option<i64> },
    /// From a column of values with parts.
    Parts { column: usize, written: Written, part: Part, null: Option<i64> },
    /// A record, perhaps in a union.
    Record { steps: Vec<Step>, value: Option<i64> },
}

impl AvroEncoder {
    pub(super) fn new(schema: Arc<AvroSchema>, framing: Framing, columns: &Schema) -> Result<Self, String> {
        let mut used = vec![false; columns.fields().len()];
        let steps = steps_of(&schema, schema.root(), "", columns, &mut used, 0)?;
        match used.iter().position(|used| !used) {
            Some(column) => Err(format!("has no field '{}' in its schema", columns.field(column).name())),
            None => Ok(Self { framing, steps, tape: Tape::default() }),
        }
    }
}

fn steps_of(
    schema: &AvroSchema,
    fields: &[(String, Node)],
    prefix: &str,
    columns: &Schema,
    used: &mut [bool],
    depth: usize,
) -> Result<Vec<Step>, String> {
    let mut steps = Vec::with_capacity(fields.len());
    for (name, node) in fields {
        let path = format!("{prefix}{name}");
        let below = format!("{path}.");
        let branches: &[Node] = if let Node::Union(branches) = node { branches } else { std::slice::from_ref(node) };
        let number = |index: usize| matches!(node, Node::Union(_)).then_some(index as i64);
        let null = branches.iter().position(|branch| *branch == Node::Null);
        let found = columns.fields().iter().position(|field| *field.name() == path);
        steps.push(if let Some(column) = found {
            used[column] = true;
            let field = columns.field(column);
            // A value with parts is written as one where the field can have it, else as text.
            let has_parts = |branch: &Node| matches!(branch, Node::Array(_) | Node::Map(_) | Node::Record(_));
            let parts = part_of(field).filter(|_| branches.iter().any(has_parts));
            let parts = parts.map(|part| Written::new(schema, node, &part, &path)).transpose();
            let null_branch = null.and_then(number);
            let step = match (parts, branches.iter().position(|branch| suits(branch, field.data_type()))) {
                (Ok(Some((written, part))), _) => Step::Parts { column, written, part, null: null_branch },
                (_, Some(place)) => {
                    Step::Column { column, node: branches[place].clone(), null: null_branch, value: number(place) }
                }
                (parts, None) => {
                    let problem = parts.err().map_or_else(String::new, |problem| format!(": {problem}"));
                    let shown = type_of(field);
                    return Err(format!("cannot write the column '{path}' of type {shown} as its field{problem}"));
                }
            };
            if field.is_nullable() && null.is_none() {
                return Err(format!("cannot write the column '{path}', which may be null, as a field that may not"));
            }
            step
        } else if columns.fields().iter().any(|field| field.name().starts_with(&below)) && depth < DEPTH_MAX {
            let record = branches.iter().enumerate().find_map(|(index, branch)| match branch {
                Node::Record(record) => Some((index, *record)),
                _ => None,
            });
            let Some((index, record)) = record else { return Err(format!("has no record in the field '{path}'")) };
            let inner = steps_of(schema, schema.record(record), &below, columns, used, depth + 1)?;
            Step::Record { steps: inner, value: number(index) }
        } else if let Some(index) = null {
            Step::Null(number(index))
        } else {
            return Err(format!("has a field '{path}' in its schema that is no column"));
        });
    }
    Ok(steps)
}

/// Whether cells of this type can be written as the type.
fn suits(node: &Node, data_type: &DataType) -> bool {
    let written = written_as(data_type);
    if let (Node::Decimal { fixed, precision, scale }, Some(DataType::Decimal128(digits, own))) = (node, &written) {
        // All digits have room on both sides of the point.
        let more = scale - i32::from(*own);
        let needed = i32::from(*digits) + more;
        let held = fixed.is_none_or(|bytes| 10_f64.powi(needed).log2() < 8.0 * bytes as f64 - 1.0);
        return more >= 0 && needed <= 38 && needed <= *precision as i32 && held;
    }
    matches!(
        (node, written),
        (Node::Boolean, Some(DataType::Boolean))
            | (Node::Integer, Some(DataType::Int64 | DataType::UInt64 | DataType::Timestamp(..)))
            | (Node::Double | Node::Float, Some(DataType::Float64 | DataType::Float32 | DataType::Decimal128(..)))
            | (Node::Double | Node::Float, Some(DataType::Int64 | DataType::UInt64))
            | (Node::Time(_), Some(DataType::Timestamp(..) | DataType::Date32))
            | (Node::TimeOfDay(_), Some(DataType::Time64(_) | DataType::Int64))
            | (Node::String | Node::Bytes, Some(DataType::Utf8))
            | (Node::String, Some(DataType::Date32 | DataType::Time64(_) | DataType::Decimal128(..)))
    )
}

impl Encoder for AvroEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        let columns: Vec<Cells> = batch.columns.columns().iter().map(Cells::new).collect();
        for row in 0..batch.rows() {
            let bytes = out.bytes_mut();
            self.framing.append(bytes);
            append_record(&self.steps, &columns, row, &mut self.tape, bytes);
            out.end_row();
        }
    }
}

fn append_record(steps: &[Step], columns: &[Cells], row: usize, tape: &mut Tape, out: &mut Vec<u8>) {
    let branch = |number: &Option<i64>, out: &mut Vec<u8>| {
        if let Some(number) = number {
            append_zigzag(*number, out);
        }
    };
    for step in steps {
        match step {
            Step::Null(number) => branch(number, out),
            Step::Record { steps, value } => {
                branch(value, out);
                append_record(steps, columns, row, tape, out);
            }
            Step::Parts { column, written, part, null } => match columns[*column].cell(row) {
                Cell::Text(text) => _ = written.append(tape.read(text, part), out),
                _ => branch(null, out),
            },
            Step::Column { column, node, null, value } => match columns[*column].cell(row) {
                // The column has no null if the union has no branch for it.
                Cell::Null => branch(null, out),
                cell => {
                    branch(value, out);
                    append_value(node, cell, out);
                }
            },
        }
    }
}

fn append_value(node: &Node, cell: Cell<'_>, out: &mut Vec<u8>) {
    match (node, cell) {
        (Node::Boolean, Cell::Boolean(value)) => out.push(u8::from(value)),
        (Node::Integer, Cell::Int64(value)) => append_zigzag(value, out),
        // Larger values become the largest number.
        (Node::Integer, Cell::UInt64(value)) => append_zigzag(i64::try_from(value).unwrap_or(i64::MAX), out),
        (Node::Integer, Cell::Timestamp(time_us)) => append_zigzag(time_us.div_euclid(1000), out),
        (Node::Time(unit), Cell::Timestamp(time_us)) => append_zigzag(unit.of_us(time_us), out),
        (Node::Time(unit), Cell::Date(days)) => append_zigzag(unit.of_us(i64::from(days) * 86_400_000_000), out),
        (Node::TimeOfDay(unit), Cell::Time(of_day_ns)) => append_zigzag(unit.of_us(of_day_ns / 1000), out),
        (Node::TimeOfDay(_), Cell::Int64(value)) => append_zigzag(value, out),
        (Node::Decimal { fixed, scale, .. }, Cell::Decimal(digits, own)) => {
            append_decimal(rescaled(digits, own as i32, *scale).unwrap_or(digits), *fixed, out);
        }
        (Node::Double, Cell::Float32(value)) => out.extend_from_slice(&f64::from(value).to_le_bytes()),
        (Node::Float, Cell::Float32(value)) => out.extend_from_slice(&value.to_le_bytes()),
        (Node::Double, Cell::Decimal(digits, scale)) => {
            out.extend_from_slice(&nearest_float(digits, scale).to_le_bytes());
        }
        (Node::Float, Cell::Decimal(digits, scale)) => {
            out.extend_from_slice(&(nearest_float(digits, scale) as f32).to_le_bytes());
        }
        (Node::String, Cell::Date(_) | Cell::Time(_) | Cell::Decimal(..)) => {
            // Of at most 64 characters, whose number is one byte.
            let length_at = out.len();
            out.push(0);
            append_bare(cell, out);
            out[length_at] = 2 * (out.len() - length_at - 1) as u8;
        }
        (Node::Double, Cell::Float64(value)) => out.extend_from_slice(&value.to_le_bytes()),
        (Node::Double, Cell::Int64(value)) => out.extend_from_slice(&(value as f64).to_le_bytes()),
        (Node::Double, Cell::UInt64(value)) => out.extend_from_slice(&(value as f64).to_le_bytes()),
        (Node::Float, Cell::Float64(value)) => out.extend_from_slice(&(value as f32).to_le_bytes()),
        (Node::Float, Cell::Int64(value)) => out.extend_from_slice(&(value as f32).to_le_bytes()),
        (Node::Float, Cell::UInt64(value)) => out.extend_from_slice(&(value as f32).to_le_bytes()),
        (Node::String | Node::Bytes, Cell::Text(text)) => {
            append_zigzag(text.len() as i64, out);
            out.extend_from_slice(text.as_bytes());
        }
        (node, cell) => unreachable!("{node:?} does not suit {cell:?}, which was checked"),
    }
}

/// Writes an integer in big-endian two's complement: behind its length, or in so many bytes, which hold it.
fn append_decimal(digits: i128, fixed: Option<usize>, out: &mut Vec<u8>) {
    let bytes = digits.to_be_bytes();
    let sign = if digits < 0 { 0xff } else { 0 };
    // Without the bytes that only repeat the sign.
    let is_said = |at: &usize| bytes[*at] != sign || (bytes[at + 1] >= 0x80) != (digits < 0);
    let said = &bytes[(0..15).find(is_said).unwrap_or(15)..];
    match fixed {
        Some(size) => {
            out.extend(std::iter::repeat_n(sign, size.saturating_sub(said.len())));
            out.extend_from_slice(&said[said.len().saturating_sub(size)..]);
        }
        None => {
            append_zigzag(said.len() as i64, out);
            out.extend_from_slice(said);
        }
    }
}
