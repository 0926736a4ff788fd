//! Avro records into rows.
//!
//! The column of each field is determined once; decoding a payload is then one pass over its bytes.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};

use super::part_decoder::unsuited;
use super::schema::{AvroSchema, Node, TimeUnit};
use super::walk::{DEPTH_MAX, Walk, boolean, branch, symbol, text};
use crate::formats::array::type_of;
use crate::formats::binary::{Bytes, Framing, push_boolean, push_float, push_integer, push_text, push_time};
use crate::formats::decode::PayloadParser;
use crate::formats::exact::CheckedValues;
use crate::formats::fault::{Fault, Problem};
use crate::formats::parts::Part;
use crate::formats::rows::{Rows, Values};

/// Reads Avro records into columns.
pub(crate) struct AvroParser {
    schema: Arc<AvroSchema>,
    framing: Framing,
    /// A step for each field of the root.
    steps: Vec<Step>,
}

/// What is done with a field.
#[derive(Debug)]
enum Step {
    Skip,
    /// Its value goes to this column.
    Column(usize),
    /// It is a record, or a union with records, and some fields of the record with this number have columns.
    Record {
        number: usize,
        steps: Vec<Step>,
        columns: Vec<usize>,
    },
}

impl AvroParser {
    /// A parser into those of the declared columns that are read, in their order.
    pub(super) fn new(
        schema: Arc<AvroSchema>,
        framing: Framing,
        declared: &Schema,
        read: &[usize],
    ) -> Result<Self, String> {
        let mut targets = Vec::with_capacity(read.len());
        for (index, field) in declared.fields().iter().enumerate() {
            check(&schema, field)?;
            if let Ok(place) = read.binary_search(&index) {
                targets.push((field.name().as_str(), place));
            }
        }
        let steps = steps_of(&schema, schema.root(), "", &targets, 0);
        Ok(Self { schema, framing, steps })
    }
}

impl AvroParser {
    /// Reads one record into a row, without a frame and whatever follows.
    pub(super) fn record(&self, bytes: &mut Bytes<'_>, rows: &mut Rows) -> Result<(), Fault> {
        let walk = Walk { schema: &self.schema };
        walk.record(bytes, self.schema.root(), &self.steps, rows, 0)?;
        rows.finish_row()
    }
}

/// Checks that a column has a field, and that its type suits.
fn check(schema: &AvroSchema, column: &Field) -> Result<(), String> {
    let name = column.name();
    let mut fields = schema.root();
    let mut rest = name.as_str();
    loop {
        if let Some((_, node)) = fields.iter().find(|(field, _)| field == rest) {
            let part = Part::of_column(column);
            // A union may have several types, null among them.
            let branches = if let Node::Union(branches) = node { branches } else { std::slice::from_ref(node) };
            for branch in branches.iter().filter(|branch| !suits(branch, column.data_type())) {
                let Some(part) = &part else { return Err(unreadable(column, None)) };
                if let Some(inner) = unsuited(schema, branch, part, name) {
                    return Err(unreadable(column, Some(inner)));
                }
            }
            return Ok(());
        }
        let inner = rest.split_once('.').and_then(|(first, inner)| {
            let (_, node) = fields.iter().find(|(field, _)| field == first)?;
            Some((schema.record(record_in(node)?), inner))
        });
        match inner {
            Some((record, inner)) => (fields, rest) = (record, inner),
            None => {
                let names: Vec<&str> = schema.root().iter().map(|(name, _)| name.as_str()).collect();
                return Err(format!("has no field '{name}' in its schema; there are {}", names.join(", ")));
            }
        }
    }
}

/// The problem of a column whose field has another type: that of the column, or of a part of it, by its path.
fn unreadable(column: &Field, inner: Option<(String, &'static str)>) -> String {
    let name = column.name();
    let inner = inner.filter(|(path, _)| path != name);
    let inner = inner.map_or_else(String::new, |(path, wanted)| format!(": '{path}' is no {wanted} in the schema"));
    format!("cannot read the field '{name}' as {}{inner}", type_of(column))
}

/// The record that a type is, or that is the only one in a union.
fn record_in(node: &Node) -> Option<usize> {
    match node {
        Node::Record(number) => Some(*number),
        Node::Union(branches) => {
            let mut records = branches.iter().filter_map(record_in);
            records.next().filter(|_| records.next().is_none())
        }
        _ => None,
    }
}

fn suits(node: &Node, column: &DataType) -> bool {
    use DataType::{Boolean, Date32, Decimal128, Float32, Float64, Int8, Int16, Int32, Int64, Time64, Timestamp, Utf8};
    let is_integer =
        || matches!(column, Int64 | Int32 | Int16 | Int8 | Float64 | Float32 | Decimal128(..) | Timestamp(..));
    match node {
        Node::Null => true,
        Node::Union(branches) => branches.iter().all(|branch| suits(branch, column)),
        Node::Boolean => *column == Boolean,
        Node::Integer => is_integer(),
        Node::Float | Node::Double => matches!(column, Float64 | Float32),
        Node::Decimal { .. } => matches!(column, Float64 | Float32 | Decimal128(..)),
        Node::Time(TimeUnit::Days) => matches!(column, Timestamp(..) | Int64 | Date32),
        Node::Time(_) => matches!(column, Timestamp(..) | Int64),
        Node::TimeOfDay(_) => is_integer() || matches!(column, Time64(_)),
        Node::String => matches!(column, Utf8 | Timestamp(..) | Date32 | Time64(_) | Decimal128(..)),
        Node::Bytes | Node::Fixed(_) | Node::Enum(_) => *column == Utf8,
        Node::Array(_) | Node::Map(_) | Node::Record(_) => false,
    }
}

fn steps_of(
    schema: &AvroSchema,
    fields: &[(String, Node)],
    prefix: &str,
    targets: &[(&str, usize)],
    depth: usize,
) -> Vec<Step> {
    let step = |(name, node): &(String, Node)| {
        let path = format!("{prefix}{name}");
        if let Some((_, column)) = targets.iter().find(|(target, _)| *target == path) {
            return Step::Column(*column);
        }
        let below = format!("{path}.");
        let columns: Vec<usize> =
            targets.iter().filter(|(target, _)| target.starts_with(&below)).map(|(_, column)| *column).collect();
        match record_in(node) {
            Some(number) if !columns.is_empty() && depth < DEPTH_MAX => {
                let steps = steps_of(schema, schema.record(number), &below, targets, depth + 1);
                Step::Record { number, steps, columns }
            }
            _ => Step::Skip,
        }
    };
    fields.iter().map(step).collect()
}

impl PayloadParser for AvroParser {
    fn parse(&mut self, payload: &[u8], _arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        let mut bytes = Bytes::new(payload, 0);
        self.framing.skip(&mut bytes)?;
        self.record(&mut bytes, rows)?;
        match bytes.is_at_end() {
            true => Ok(()),
            false => Err(bytes.fault(Problem::BinaryTrailing)),
        }
    }

    fn takes_empty(&self) -> bool {
        // A record whose fields are all null has no byte.
        true
    }
}

impl Walk<'_> {
    fn record(
        &self,
        bytes: &mut Bytes<'_>,
        fields: &[(String, Node)],
        steps: &[Step],
        rows: &mut Rows,
        depth: usize,
    ) -> Result<(), Fault> {
        for ((_, node), step) in fields.iter().zip(steps) {
            match step {
                Step::Skip => self.skip(bytes, node, depth)?,
                Step::Column(column) => {
                    self.value(bytes, node, *column, rows).map_err(|fault| fault.in_column(*column))?;
                }
                Step::Record { number, steps, columns } => match branch(bytes, node)? {
                    Node::Record(found) if found == number => {
                        self.record(bytes, self.schema.record(*number), steps, rows, depth + 1)?;
                    }
                    other => {
                        self.skip(bytes, other, depth)?;
                        for &column in columns {
                            let at = bytes.at();
                            let pushed = rows.open(column).push_null();
                            pushed.map_err(|problem| Fault::new(problem, at).in_column(column))?;
                        }
                    }
                },
            }
        }
        Ok(())
    }

    /// Reads a value into a column.
    #[inline]
    fn value(&self, bytes: &mut Bytes<'_>, node: &Node, column: usize, rows: &mut Rows) -> Result<(), Fault> {
        let node = branch(bytes, node)?;
        let at = bytes.at();
        let column = rows.open(column);
        if let (Node::Array(_) | Node::Map(_) | Node::Record(_), Values::Checked(CheckedValues::Nested(values))) =
            (node, column.values())
        {
            let payload_bytes = bytes.payload().len();
            return values.push_with(payload_bytes, |part, writer, out| self.part(bytes, node, part, 0, writer, out));
        }
        let pushed = match node {
            Node::Null => column.push_null(),
            Node::Boolean => push_boolean(column, boolean(bytes)?),
            Node::Integer => push_integer(column, bytes.zigzag()?),
            Node::Float => push_float(column, f64::from(f32::from_le_bytes(bytes.array()?))),
            Node::Double => push_float(column, f64::from_le_bytes(bytes.array()?)),
            Node::Time(unit) => match (column.values(), bytes.zigzag()?) {
                (Values::Checked(values), days) => values.push_days(days),
                (_, time) => match unit.to_us(time) {
                    Some(time_us) => push_time(column, time_us),
                    None => Err(Problem::TimestampRange),
                },
            },
            Node::TimeOfDay(unit) => match (column.values(), bytes.zigzag()?) {
                (Values::Checked(values @ CheckedValues::Time(_)), time) => {
                    let of_day_ns = unit.to_us(time).and_then(|time_us| time_us.checked_mul(1000));
                    of_day_ns.ok_or(Problem::ExpectedTime).and_then(|of_day_ns| values.push_time_of_day(of_day_ns))
                }
                (_, time) => push_integer(column, time),
            },
            Node::String | Node::Bytes => push_text(column, text(bytes)?),
            Node::Fixed(size) => push_text(column, bytes.take(*size)?),
            Node::Enum(symbols) => push_text(column, symbol(bytes, symbols)?.as_bytes()),
            Node::Decimal { fixed, scale, .. } => {
                let digits = match fixed {
                    Some(size) => bytes.take(*size)?,
                    None => text(bytes)?,
                };
                match column.values() {
                    Values::Checked(values) => match integer_of(digits) {
                        Some(digits) => values.push_scaled(digits, *scale),
                        None => Err(Problem::DecimalRange),
                    },
                    _ => push_float(column, decimal(digits, *scale)),
                }
            }
            Node::Array(_) | Node::Map(_) | Node::Record(_) | Node::Union(_) => Err(Problem::BinaryBranch),
        };
        pushed.map_err(|problem| Fault::new(problem, at))
    }
}

/// An integer in big-endian two's complement, if it has at most 128 bits.
fn integer_of(digits: &[u8]) -> Option<i128> {
    let sign = if digits.first().is_some_and(|&byte| byte >= 0x80) { -1_i128 } else { 0 };
    // Leading bytes that only repeat the sign carry no information.
    let said = digits.iter().position(|&byte| byte != sign as u8).unwrap_or(digits.len());
    let said = &digits[said..];
    let fits = said.len() < 16 || (said.len() == 16 && (said[0] >= 0x80) == (sign < 0));
    fits.then(|| said.iter().fold(sign, |value, &byte| value << 8 | i128::from(byte)))
}

/// A decimal as the nearest float.
fn decimal(digits: &[u8], scale: i32) -> f64 {
    let is_negative = digits.first().is_some_and(|&byte| byte >= 0x80);
    let start = if is_negative { -1.0 } else { 0.0 };
    let unscaled = if digits.len() <= 16 {
        // Exact, and rounded once.
        let sign = if is_negative { -1_i128 } else { 0 };
        digits.iter().fold(sign, |value, &byte| value << 8 | i128::from(byte)) as f64
    } else {
        digits.iter().fold(start, |value: f64, &byte| value * 256.0 + f64::from(byte))
    };
    unscaled / 10_f64.powi(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals() {
        assert_eq!(decimal(&[0x30, 0x39], 2), 123.45);
        assert_eq!(decimal(&[0xff], 0), -1.0);
        assert_eq!(decimal(&[0x80, 0], 0), -32768.0);
        assert_eq!(decimal(&[], 5), 0.0);
        assert_eq!([integer_of(&[0x30, 0x39]), integer_of(&[0xff; 20]), integer_of(&[])], [12345, -1, 0].map(Some));
        assert_eq!(integer_of(&i128::MIN.to_be_bytes()), Some(i128::MIN));
        assert_eq!(integer_of(&[&[0xff][..], &i128::MAX.to_be_bytes()].concat()), None);
    }
}
