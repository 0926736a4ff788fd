//! Messages into rows.
//!
//! The column of each field is determined once; decoding a payload is then one pass over its bytes.

use arrow::datatypes::{DataType, Field as ColumnField, Schema};
use prost_reflect::{Kind, MessageDescriptor};
use rivulet_dataflow::element_type;

use super::field::{DEPTH_MAX, Scalar, WireType, is_timestamp, length_delimited};
use super::format::ProtobufFormat;
use crate::formats::array::{NestedValues, type_of};
use crate::formats::binary::{Bytes, Framing, push_time};
use crate::formats::decode::PayloadParser;
use crate::formats::fault::{Fault, Problem};
use crate::formats::rows::Rows;

/// Reads messages into columns.
pub(crate) struct ProtobufParser {
    framing: Framing,
    root: Message,
}

/// What is done with the fields of a message.
#[derive(Default)]
struct Message {
    /// By number, ascending.
    fields: Vec<(u32, Field)>,
}

enum Field {
    Scalar {
        column: usize,
        scalar: Scalar,
        has_presence: bool,
    },
    Timestamp {
        column: usize,
    },
    /// A repeated field, whose values are the elements of an array.
    List {
        column: usize,
        scalar: Scalar,
    },
    Message(Message),
}

impl ProtobufParser {
    /// A parser into those of the declared columns that are read, in their order.
    pub(super) fn new(format: &ProtobufFormat, declared: &Schema, read: &[usize]) -> Result<Self, String> {
        let mut root = Message::default();
        // Columns that are not read are checked as well.
        let mut unread = Message::default();
        for (index, field) in declared.fields().iter().enumerate() {
            let (into, place) = match read.binary_search(&index) {
                Ok(place) => (&mut root, place),
                Err(_) => (&mut unread, 0),
            };
            into.add(&format.message, field, field.name(), place, 0)?;
        }
        root.sort();
        Ok(Self { framing: format.framing, root })
    }
}

impl Message {
    /// Adds the field for the column `declared`, whose index is `column`; `rest` is the rest of its name.
    fn add(
        &mut self,
        message: &MessageDescriptor,
        declared: &ColumnField,
        rest: &str,
        column: usize,
        depth: usize,
    ) -> Result<(), String> {
        let (name, data_type) = (declared.name(), declared.data_type());
        if let Some(field) = message.get_field_by_name(rest) {
            let unsuitable = || format!("cannot read the field '{name}' as {}", type_of(declared));
            let element = element_type(declared).filter(|_| field.is_list());
            if (field.is_list() && element.is_none()) || field.is_map() {
                return Err(format!("cannot read the field '{name}', which has several values, as {data_type}"));
            }
            let planned = match (Scalar::of(&field), field.kind()) {
                (Some(scalar), _) if element.is_some() => match element.is_some_and(|element| scalar.suits(&element)) {
                    true => Field::List { column, scalar },
                    false => return Err(unsuitable()),
                },
                (Some(scalar), _) if scalar.suits(data_type) => {
                    Field::Scalar { column, scalar, has_presence: field.supports_presence() }
                }
                (None, Kind::Message(inner))
                    if is_timestamp(&inner) && matches!(data_type, DataType::Timestamp(..)) =>
                {
                    Field::Timestamp { column }
                }
                _ => return Err(unsuitable()),
            };
            self.fields.push((field.number(), planned));
            return Ok(());
        }
        let inner = rest.split_once('.').and_then(|(first, inner)| {
            let field = message.get_field_by_name(first).filter(|field| !field.is_list() && !field.is_map())?;
            Some((field.number(), field.kind().as_message()?.clone(), inner))
        });
        let Some((number, descriptor, rest)) = inner.filter(|_| depth < DEPTH_MAX) else {
            let names: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
            return Err(format!("has no field '{name}' in {}; there are {}", message.full_name(), names.join(", ")));
        };
        let known = self.fields.iter_mut().find_map(|(other, field)| match field {
            Field::Message(message) if *other == number => Some(message),
            _ => None,
        });
        match known {
            Some(known) => known.add(&descriptor, declared, rest, column, depth + 1),
            None => {
                let mut added = Self::default();
                added.add(&descriptor, declared, rest, column, depth + 1)?;
                self.fields.push((number, Field::Message(added)));
                Ok(())
            }
        }
    }

    fn sort(&mut self) {
        self.fields.sort_by_key(|(number, _)| *number);
        for (_, field) in &mut self.fields {
            if let Field::Message(message) = field {
                message.sort();
            }
        }
    }

    /// Reads the fields up to the end of `bytes`.
    fn read(&self, bytes: &mut Bytes<'_>, rows: &mut Rows) -> Result<(), Fault> {
        // Writers order fields by their numbers, so the next field is mostly the one behind the last.
        let mut next = 0;
        while !bytes.is_at_end() {
            let at = bytes.at();
            let tag = bytes.varint()?;
            let number = u32::try_from(tag >> 3).map_err(|_| Fault::new(Problem::BinaryNumber, at))?;
            let Some(wire_type) = WireType::of_tag(tag).filter(|_| number > 0) else {
                return Err(Fault::new(Problem::BinaryWireType, at));
            };
            let found = match self.fields.get(next) {
                Some((expected, _)) if *expected == number => Some(next),
                _ => self.fields.binary_search_by_key(&number, |(number, _)| *number).ok(),
            };
            let Some(index) = found else {
                skip(bytes, wire_type, number, 0)?;
                continue;
            };
            next = index + 1;
            // A column may be there twice, as a whole and in part; names are unique, so that a field has one entry.
            let (_, field) = &self.fields[index];
            field.read(bytes, wire_type, rows, at)?;
        }
        for (_, field) in &self.fields {
            if let Field::List { column, .. } = field {
                let opened = rows.open_array(*column).map(drop);
                opened.map_err(|problem| bytes.fault(problem).in_column(*column))?;
            }
            if let Field::Scalar { column, scalar, has_presence: false } = field
                && !rows.is_written(*column)
            {
                let pushed = scalar.push_default(rows.open(*column));
                pushed.map_err(|problem| bytes.fault(problem).in_column(*column))?;
            }
        }
        Ok(())
    }
}

impl Field {
    #[inline]
    fn read(&self, bytes: &mut Bytes<'_>, wire_type: WireType, rows: &mut Rows, at: usize) -> Result<(), Fault> {
        match self {
            Self::Scalar { column, scalar, .. } => {
                if scalar.wire_type() != wire_type {
                    return Err(Fault::new(Problem::BinaryWireType, at).in_column(*column));
                }
                scalar.read(bytes, rows.open(*column)).map_err(|fault| fault.in_column(*column))
            }
            Self::Timestamp { column } => {
                let time_us = timestamp(bytes, wire_type, at).map_err(|fault| fault.in_column(*column))?;
                let pushed = push_time(rows.open(*column), time_us);
                pushed.map_err(|problem| Fault::new(problem, at).in_column(*column))
            }
            Self::List { column, scalar } => {
                let arrays = rows.open_array(*column).map_err(|problem| Fault::new(problem, at).in_column(*column))?;
                list(bytes, wire_type, scalar, arrays, at).map_err(|fault| fault.in_column(*column))
            }
            Self::Message(message) => {
                if wire_type != WireType::Bytes {
                    return Err(Fault::new(Problem::BinaryWireType, at));
                }
                let inner = length_delimited(bytes)?;
                // Offsets in it count from its beginning; they are reported from the beginning of the message.
                let start = bytes.at() - inner.len();
                message.read(&mut Bytes::new(inner, 0), rows).map_err(|fault| fault.moved_by(start))
            }
        }
    }
}

/// Reads a value of a repeated field, or several that are packed.
fn list(
    bytes: &mut Bytes<'_>,
    wire_type: WireType,
    scalar: &Scalar,
    arrays: &mut NestedValues,
    at: usize,
) -> Result<(), Fault> {
    if wire_type == scalar.wire_type() {
        return scalar.read(bytes, arrays);
    }
    if wire_type != WireType::Bytes {
        return Err(Fault::new(Problem::BinaryWireType, at));
    }
    let inner = length_delimited(bytes)?;
    let start = bytes.at() - inner.len();
    let mut inner = Bytes::new(inner, 0);
    while !inner.is_at_end() {
        scalar.read(&mut inner, arrays).map_err(|fault| fault.moved_by(start))?;
    }
    Ok(())
}

/// Reads a `google.protobuf.Timestamp` as microseconds since the epoch.
fn timestamp(bytes: &mut Bytes<'_>, wire_type: WireType, at: usize) -> Result<i64, Fault> {
    if wire_type != WireType::Bytes {
        return Err(Fault::new(Problem::BinaryWireType, at));
    }
    let mut inner = Bytes::new(length_delimited(bytes)?, 0);
    let (mut seconds, mut nanos) = (0_i64, 0_i64);
    let moved = |fault: Fault| fault.moved_by(at);
    while !inner.is_at_end() {
        let tag = inner.varint().map_err(moved)?;
        match tag {
            0x08 => seconds = inner.varint().map_err(moved)? as i64,
            0x10 => nanos = inner.varint().map_err(moved)? as i64,
            _ => {
                let number = u32::try_from(tag >> 3).unwrap_or(0);
                let Some(wire_type) = WireType::of_tag(tag) else {
                    return Err(Fault::new(Problem::BinaryWireType, at));
                };
                skip(&mut inner, wire_type, number, 0).map_err(moved)?;
            }
        }
    }
    let seconds_us = seconds.checked_mul(1_000_000);
    seconds_us
        .and_then(|time_us| time_us.checked_add(nanos.div_euclid(1000)))
        .ok_or_else(|| Fault::new(Problem::TimestampRange, at))
}

/// Skips a value.
fn skip(bytes: &mut Bytes<'_>, wire_type: WireType, number: u32, depth: usize) -> Result<(), Fault> {
    match wire_type {
        WireType::Varint => _ = bytes.varint()?,
        WireType::Bits64 => _ = bytes.take(8)?,
        WireType::Bits32 => _ = bytes.take(4)?,
        WireType::Bytes => _ = length_delimited(bytes)?,
        WireType::GroupEnd => return Err(bytes.fault(Problem::BinaryWireType)),
        WireType::GroupStart => {
            if depth >= DEPTH_MAX {
                return Err(bytes.fault(Problem::BinaryDepth));
            }
            loop {
                let at = bytes.at();
                let tag = bytes.varint()?;
                let inner = u32::try_from(tag >> 3).map_err(|_| Fault::new(Problem::BinaryNumber, at))?;
                match WireType::of_tag(tag) {
                    Some(WireType::GroupEnd) if inner == number => return Ok(()),
                    Some(wire_type) => skip(bytes, wire_type, inner, depth + 1)?,
                    None => return Err(Fault::new(Problem::BinaryWireType, at)),
                }
            }
        }
    }
    Ok(())
}

impl PayloadParser for ProtobufParser {
    fn parse(&mut self, payload: &[u8], _arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        let mut bytes = Bytes::new(payload, 0);
        ProtobufFormat::skip_frame(self.framing, &mut bytes)?;
        self.root.read(&mut bytes, rows)?;
        rows.finish_row()
    }

    fn takes_empty(&self) -> bool {
        // A message with all its defaults has no byte.
        true
    }
}
