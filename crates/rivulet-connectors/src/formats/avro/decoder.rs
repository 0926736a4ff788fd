//! Avro records into rows.
//!
//! The column of each field is determined once; decoding a payload is then one pass over its bytes.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use rivulet_dataflow::element_type;

use super::schema::{AvroSchema, Node, TimeUnit};
use crate::formats::array::{NestedValues, type_of};
use crate::formats::binary::{Bytes, Framing, push_boolean, push_float, push_integer, push_text, push_time};
use crate::formats::decode::PayloadParser;
use crate::formats::exact::CheckedValues;
use crate::formats::fault::{Fault, Problem};
use crate::formats::rows::{Rows, Values};

/// How deep the values of a payload may be nested.
const DEPTH_MAX: usize = 64;

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
            let element = element_type(column);
            let is_read = |node: &Node| suits(node, column.data_type()) || suits_array(node, element.as_ref());
            // A union may have both, null among them.
            let branches = if let Node::Union(branches) = node { branches } else { std::slice::from_ref(node) };
            return match branches.iter().all(is_read) {
                true => Ok(()),
                false => Err(format!("cannot read the field '{name}' as {}", type_of(column))),
            };
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

/// Whether the type is an array whose items may be elements of this type.
fn suits_array(node: &Node, element: Option<&DataType>) -> bool {
    let (Node::Array(items), Some(element)) = (node, element) else { return false };
    let items = if let Node::Union(branches) = &**items { branches } else { std::slice::from_ref(&**items) };
    let suits = |item: &Node| match item {
        Node::Null => true,
        Node::Boolean => *element == DataType::Boolean,
        Node::Integer => matches!(element, DataType::Int64 | DataType::Float64),
        Node::Float | Node::Double => *element == DataType::Float64,
        Node::String | Node::Bytes | Node::Fixed(_) | Node::Enum(_) => *element == DataType::Utf8,
        _ => false,
    };
    items.iter().all(suits)
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

struct Walk<'s> {
    schema: &'s AvroSchema,
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
                    value(bytes, node, *column, rows).map_err(|fault| fault.in_column(*column))?;
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

    /// Skips a value.
    fn skip(&self, bytes: &mut Bytes<'_>, node: &Node, depth: usize) -> Result<(), Fault> {
        if depth > DEPTH_MAX {
            return Err(bytes.fault(Problem::BinaryDepth));
        }
        match node {
            Node::Null => {}
            Node::Boolean => _ = bytes.take(1)?,
            Node::Integer | Node::Time(_) | Node::TimeOfDay(_) | Node::Enum(_) => _ = bytes.varint()?,
            Node::Float => _ = bytes.take(4)?,
            Node::Double => _ = bytes.take(8)?,
            Node::Bytes | Node::String | Node::Decimal { fixed: None, .. } => _ = text(bytes)?,
            Node::Fixed(size) | Node::Decimal { fixed: Some(size), .. } => _ = bytes.take(*size)?,
            Node::Union(_) => {
                let branch = branch(bytes, node)?;
                self.skip(bytes, branch, depth + 1)?;
            }
            Node::Record(number) => {
                for (_, field) in self.schema.record(*number) {
                    self.skip(bytes, field, depth + 1)?;
                }
            }
            Node::Array(items) => self.skip_blocks(bytes, items, false, depth)?,
            Node::Map(values) => self.skip_blocks(bytes, values, true, depth)?,
        }
        Ok(())
    }

    /// Skips the blocks of an array or a map.
    fn skip_blocks(&self, bytes: &mut Bytes<'_>, items: &Node, has_keys: bool, depth: usize) -> Result<(), Fault> {
        loop {
            let count = bytes.zigzag()?;
            if count == 0 {
                return Ok(());
            }
            // A negative count says that the length of the block follows.
            if count < 0 {
                text(bytes)?;
                continue;
            }
            for _ in 0..count {
                let before = bytes.at();
                if has_keys {
                    text(bytes)?;
                }
                self.skip(bytes, items, depth + 1)?;
                // Items without a byte are not skipped one by one: a few bytes could claim any number of them.
                if bytes.at() == before {
                    break;
                }
            }
        }
    }
}

/// The branch of a union that follows; any other type itself.
#[inline]
fn branch<'n>(bytes: &mut Bytes<'_>, node: &'n Node) -> Result<&'n Node, Fault> {
    let Node::Union(branches) = node else { return Ok(node) };
    let at = bytes.at();
    let index = bytes.zigzag()?;
    usize::try_from(index)
        .ok()
        .and_then(|index| branches.get(index))
        .ok_or_else(|| Fault::new(Problem::BinaryBranch, at))
}

/// Bytes behind their length.
#[inline]
fn text<'p>(bytes: &mut Bytes<'p>) -> Result<&'p [u8], Fault> {
    let at = bytes.at();
    let length = usize::try_from(bytes.zigzag()?).map_err(|_| Fault::new(Problem::BinaryLength, at))?;
    bytes.take(length)
}

/// Reads a value into a column.
#[inline]
fn value(bytes: &mut Bytes<'_>, node: &Node, column: usize, rows: &mut Rows) -> Result<(), Fault> {
    let node = branch(bytes, node)?;
    let at = bytes.at();
    if let Node::Array(items) = node {
        let arrays = rows.open_array(column).map_err(|problem| Fault::new(problem, at))?;
        return array(bytes, items, arrays);
    }
    let column = rows.open(column);
    let pushed = match node {
        Node::Null => column.push_null(),
        Node::Boolean => match bytes.array()? {
            [0] => push_boolean(column, false),
            [1] => push_boolean(column, true),
            _ => Err(Problem::BinaryBranch),
        },
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
        Node::Enum(symbols) => match usize::try_from(bytes.zigzag()?).ok().and_then(|index| symbols.get(index)) {
            Some(symbol) => push_text(column, symbol.as_bytes()),
            None => Err(Problem::BinaryBranch),
        },
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

/// Adds the items of an array to the array that was opened for them.
fn array(bytes: &mut Bytes<'_>, items: &Node, arrays: &mut NestedValues) -> Result<(), Fault> {
    loop {
        let count = bytes.zigzag()?;
        if count == 0 {
            return Ok(());
        }
        // A negative count says that the length of the block follows, for readers that skip it.
        if count < 0 {
            bytes.zigzag()?;
        }
        for _ in 0..count.unsigned_abs() {
            let at = bytes.at();
            item(bytes, items, arrays)?;
            // A few bytes could claim any number of items without a byte.
            if bytes.at() == at {
                return Err(Fault::new(Problem::BinaryLength, at));
            }
        }
    }
}

fn item(bytes: &mut Bytes<'_>, items: &Node, arrays: &mut NestedValues) -> Result<(), Fault> {
    let node = branch(bytes, items)?;
    let at = bytes.at();
    let added = match node {
        Node::Null => arrays.add_null(),
        Node::Boolean => match bytes.array()? {
            [0] => arrays.add_boolean(false),
            [1] => arrays.add_boolean(true),
            _ => Err(Problem::BinaryBranch),
        },
        Node::Integer => arrays.add_integer(bytes.zigzag()?),
        Node::Float => arrays.add_float(f64::from(f32::from_le_bytes(bytes.array()?))),
        Node::Double => arrays.add_float(f64::from_le_bytes(bytes.array()?)),
        Node::String | Node::Bytes => arrays.add_text(text(bytes)?),
        Node::Fixed(size) => arrays.add_text(bytes.take(*size)?),
        Node::Enum(symbols) => match usize::try_from(bytes.zigzag()?).ok().and_then(|index| symbols.get(index)) {
            Some(symbol) => arrays.add_text(symbol.as_bytes()),
            None => Err(Problem::BinaryBranch),
        },
        _ => Err(Problem::BinaryBranch),
    };
    added.map_err(|problem| Fault::new(problem, at))
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
