//! Messages into rows.
//!
//! The column of each field is determined once; decoding a payload is then one pass over its bytes.

use arrow::datatypes::{DataType, Field as ColumnField, Schema};
use prost_reflect::{Kind, MessageDescriptor};

use super::field::{DEPTH_MAX, Scalar, WireType, is_timestamp, length_delimited};
use super::format::ProtobufFormat;
use super::part_decoder::{self, Found, Plan, Reading};
use super::skip::skip;
use crate::formats::array::type_of;
use crate::formats::binary::{Bytes, Framing, push_time};
use crate::formats::decode::PayloadParser;
use crate::formats::exact::CheckedValues;
use crate::formats::fault::{Fault, Problem};
use crate::formats::parts::Part;
use crate::formats::rows::{Rows, Values};

/// Reads messages into columns.
pub(crate) struct ProtobufParser {
    framing: Framing,
    root: Message,
    /// The columns of values with parts.
    parts: Vec<(usize, Plan)>,
    /// Where their values were found; empty between payloads.
    found: Vec<Found>,
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
    /// A value with parts, the one of this index.
    Parts {
        index: usize,
        column: usize,
        is_repeated: bool,
    },
    Message(Message),
}

impl ProtobufParser {
    /// A parser into those of the declared columns that are read, in their order.
    pub(super) fn new(format: &ProtobufFormat, declared: &Schema, read: &[usize]) -> Result<Self, String> {
        let mut root = Message::default();
        // Columns that are not read are checked as well.
        let mut unread = Message::default();
        let (mut parts, mut unread_parts) = (Vec::new(), Vec::new());
        for (index, field) in declared.fields().iter().enumerate() {
            let (into, parts, place) = match read.binary_search(&index) {
                Ok(place) => (&mut root, &mut parts, place),
                Err(_) => (&mut unread, &mut unread_parts, 0),
            };
            into.add(&format.message, field, field.name(), place, parts, 0)?;
        }
        root.sort();
        Ok(Self { framing: format.framing, root, parts, found: Vec::new() })
    }
}

impl ProtobufParser {
    /// Reads the columns of values with parts from where their values were found.
    fn read_parts(&mut self, payload: &[u8], rows: &mut Rows) -> Result<(), Fault> {
        let Self { parts, found, .. } = self;
        part_decoder::sort(found);
        let (mut at, end) = (0, found.len());
        while at < end {
            let field = found[at].field;
            let values = at + found[at..end].iter().take_while(|one| one.field == field).count();
            let (column, plan) = &parts[field];
            let Values::Checked(CheckedValues::Nested(nested)) = rows.open(*column).values() else {
                unreachable!("the column is of values with parts")
            };
            let read = nested.push_with(payload.len(), |part, writer, out| {
                Reading { payload, found: &mut *found, writer }.value(plan, part, at..values, out)
            });
            read.map_err(|fault| fault.in_column(*column))?;
            at = values;
        }
        Ok(())
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
        parts: &mut Vec<(usize, Plan)>,
        depth: usize,
    ) -> Result<(), String> {
        let (name, data_type) = (declared.name(), declared.data_type());
        if let Some(field) = message.get_field_by_name(rest) {
            let unsuitable = || format!("cannot read the field '{name}' as {}", type_of(declared));
            let has_parts = field.is_list() || field.is_map() || Scalar::of(&field).is_none();
            let planned = match (Scalar::of(&field), field.kind()) {
                _ if let Some(part) = Part::of_column(declared).filter(|_| has_parts) => {
                    let plan = Plan::new(&field, &part, name).map_err(|(path, wanted)| match path == *name {
                        true => unsuitable(),
                        false => format!("{}: '{path}' is no {wanted} in the message", unsuitable()),
                    })?;
                    let planned = Field::Parts { index: parts.len(), column, is_repeated: plan.is_repeated() };
                    parts.push((column, plan));
                    planned
                }
                _ if field.is_list() || field.is_map() => {
                    return Err(format!("cannot read the field '{name}', which has several values, as {data_type}"));
                }
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
            Some(known) => known.add(&descriptor, declared, rest, column, parts, depth + 1),
            None => {
                let mut added = Self::default();
                added.add(&descriptor, declared, rest, column, parts, depth + 1)?;
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
    fn read(&self, bytes: &mut Bytes<'_>, rows: &mut Rows, found: &mut Vec<Found>) -> Result<(), Fault> {
        // Writers order fields by their numbers, so the next field is mostly the one behind the last.
        let mut next = 0;
        while !bytes.is_at_end() {
            let at = bytes.at();
            let (number, wire_type) = WireType::next(bytes)?;
            let index = match self.fields.get(next) {
                Some((expected, _)) if *expected == number => Some(next),
                _ => self.fields.binary_search_by_key(&number, |(number, _)| *number).ok(),
            };
            let Some(index) = index else {
                skip(bytes, wire_type, number, 0)?;
                continue;
            };
            next = index + 1;
            // A column may be there twice, as a whole and in part; names are unique, so that a field has one entry.
            let (_, field) = &self.fields[index];
            match field {
                Field::Parts { index, column, .. } => {
                    let one = Found::take(bytes, *index, (number, wire_type), at);
                    found.push(one.map_err(|fault| fault.in_column(*column))?);
                }
                _ => field.read(bytes, wire_type, rows, found, at)?,
            }
        }
        for (_, field) in &self.fields {
            if let Field::Parts { index, is_repeated: true, .. } = field {
                found.push(Found::in_message(*index));
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
    fn read(
        &self,
        bytes: &mut Bytes<'_>,
        wire_type: WireType,
        rows: &mut Rows,
        found: &mut Vec<Found>,
        at: usize,
    ) -> Result<(), Fault> {
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
            Self::Message(message) => {
                if wire_type != WireType::Bytes {
                    return Err(Fault::new(Problem::BinaryWireType, at));
                }
                let length = usize::try_from(bytes.varint()?).map_err(|_| Fault::new(Problem::BinaryLength, at))?;
                message.read(&mut bytes.part(length)?, rows, found)
            }
            Self::Parts { .. } => unreachable!("they are found first"),
        }
    }
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

impl PayloadParser for ProtobufParser {
    fn parse(&mut self, payload: &[u8], _arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        let mut bytes = Bytes::new(payload, 0);
        ProtobufFormat::skip_frame(self.framing, &mut bytes)?;
        self.found.clear();
        self.root.read(&mut bytes, rows, &mut self.found)?;
        if !self.parts.is_empty() {
            self.read_parts(payload, rows)?;
        }
        rows.finish_row()
    }

    fn takes_empty(&self) -> bool {
        // A message with all its defaults has no byte.
        true
    }
}
