//! Repeated fields, maps and messages as values with parts.
//!
//! The values of a field may be anywhere in a message, and those of a message in several pieces. So all fields that are
//! wanted are found first, then each value is put together from what was found.

use std::ops::Range;

use prost_reflect::{FieldDescriptor, Kind};

use super::field::{PartTarget, Scalar, WireType};
use super::skip::skip;
use crate::formats::binary::Bytes;
use crate::formats::fault::{Fault, Problem};
use crate::formats::json::append_json_string;
use crate::formats::parts::{Part, PartWriter};

/// How a value is read.
#[derive(Debug)]
pub(super) enum Plan {
    /// The last value; the default if there is none, or null if the field can say that it is not there.
    Scalar {
        scalar: Scalar,
        has_presence: bool,
    },
    /// All values.
    List(Box<Plan>),
    Map(Entry),
    Message(Message),
}

/// An entry of a map: a message of a key and a value.
#[derive(Debug)]
pub(super) struct Entry {
    key: Scalar,
    value: Box<Plan>,
}

/// A message and its fields that are parts of a row.
#[derive(Debug)]
pub(super) struct Message {
    /// The numbers, ascending, and which field of the row each is.
    numbers: Vec<(u32, usize)>,
    /// By their places in the row.
    fields: Vec<Named>,
}

#[derive(Debug)]
struct Named {
    /// The name as a key in JSON, with what stands before and behind it.
    key: Vec<u8>,
    plan: Plan,
}

/// Where a value of a field was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Which field, in the order in which they are wanted.
    pub(super) field: usize,
    wire_type: WireType,
    /// Where it begins, with its tag, and ends in the payload. Nothing ends at 0.
    start: usize,
    end: usize,
}

impl Found {
    /// Marks that the message of the field is there, so that a field without values is empty and not null.
    pub(super) fn in_message(field: usize) -> Self {
        Self { field, wire_type: WireType::Bytes, start: 0, end: 0 }
    }

    fn is_value(&self) -> bool {
        self.end > 0
    }

    fn fault(&self) -> Fault {
        Fault::new(Problem::BinaryWireType, self.start)
    }

    /// Takes the value of a field whose tag was read, which begins at `start`.
    pub(super) fn take(
        bytes: &mut Bytes<'_>,
        field: usize,
        (number, wire_type): (u32, WireType),
        start: usize,
    ) -> Result<Self, Fault> {
        skip(bytes, wire_type, number, 0)?;
        Ok(Self { field, wire_type, start, end: bytes.at() })
    }

    /// The bytes behind the tag.
    fn bytes<'p>(&self, payload: &'p [u8]) -> Result<Bytes<'p>, Fault> {
        let mut bytes = Bytes::new(&payload[..self.end], self.start);
        bytes.varint()?;
        Ok(bytes)
    }

    /// The bytes behind the length.
    fn content<'p>(&self, payload: &'p [u8]) -> Result<Bytes<'p>, Fault> {
        if self.wire_type != WireType::Bytes {
            return Err(self.fault());
        }
        let mut bytes = self.bytes(payload)?;
        bytes.varint()?;
        Ok(bytes)
    }
}

/// Puts what was found in the order of the fields and of the payload.
pub(super) fn sort(found: &mut [Found]) {
    found.sort_unstable_by_key(|one| (one.field, one.start));
}

impl Plan {
    /// How a field is read as the part; otherwise the path of what cannot be read as which part.
    pub(super) fn new(field: &FieldDescriptor, part: &Part, path: &str) -> Result<Self, (String, &'static str)> {
        let unsuited = || Err((path.to_owned(), part.name()));
        match part {
            Part::Map(value) if field.is_map() => {
                let Kind::Message(entry) = field.kind() else { return unsuited() };
                let Some(key) = Scalar::of(&entry.map_entry_key_field()) else { return unsuited() };
                let value = Self::single(&entry.map_entry_value_field(), value, &format!("{path}['']"))?;
                Ok(Self::Map(Entry { key, value: Box::new(value) }))
            }
            Part::Array(element) if field.is_list() => {
                Ok(Self::List(Box::new(Self::single(field, element, &format!("{path}[]"))?)))
            }
            Part::Map(_) | Part::Array(_) => unsuited(),
            _ if field.is_map() || field.is_list() => unsuited(),
            _ => Self::single(field, part, path),
        }
    }

    /// How one value of a field is read.
    fn single(field: &FieldDescriptor, part: &Part, path: &str) -> Result<Self, (String, &'static str)> {
        match (Scalar::of(field), field.kind(), part) {
            (Some(scalar), _, Part::Any) => Ok(Self::Scalar { scalar, has_presence: field.supports_presence() }),
            (Some(scalar), _, _) if part.plain().is_some_and(|plain| scalar.suits(&plain)) => {
                Ok(Self::Scalar { scalar, has_presence: field.supports_presence() })
            }
            (None, Kind::Message(message), Part::Row(row)) => {
                let (mut numbers, mut fields) = (Vec::with_capacity(row.len()), Vec::with_capacity(row.len()));
                for (place, (name, part)) in row.iter().enumerate() {
                    let path = format!("{path}.{name}");
                    let Some(field) = message.get_field_by_name(name) else { return Err((path, "field")) };
                    let mut key = if place == 0 { b"{".to_vec() } else { b",".to_vec() };
                    append_json_string(name, &mut key);
                    key.push(b':');
                    numbers.push((field.number(), place));
                    fields.push(Named { key, plan: Self::new(&field, part, &path)? });
                }
                numbers.sort_unstable();
                Ok(Self::Message(Message { numbers, fields }))
            }
            _ => Err((path.to_owned(), part.name())),
        }
    }

    /// Whether the field is empty, and not null, in a message without a value of it.
    pub(super) fn is_repeated(&self) -> bool {
        matches!(self, Self::List(_) | Self::Map(_))
    }
}

/// A payload that is read, and what was found in it.
pub(super) struct Reading<'r> {
    pub(super) payload: &'r [u8],
    pub(super) found: &'r mut Vec<Found>,
    pub(super) writer: &'r mut PartWriter,
}

impl Reading<'_> {
    /// Appends the value that was found there, of one field.
    pub(super) fn value(
        &mut self,
        plan: &Plan,
        part: &Part,
        found: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let last = (!found.is_empty()).then(|| self.found[found.end - 1]);
        let at = last.map_or(0, |last| last.start);
        self.writer.check(out).map_err(|problem| Fault::new(problem, at))?;
        match (plan, part) {
            (Plan::Scalar { scalar, has_presence }, _) => match last {
                Some(last) if last.wire_type != scalar.wire_type() => Err(last.fault()),
                Some(last) => scalar.read(&mut last.bytes(self.payload)?, &mut PartTarget { part, out }),
                None if *has_presence => {
                    out.extend_from_slice(b"null");
                    Ok(())
                }
                None => {
                    let appended = scalar.append_default(&mut PartTarget { part, out });
                    appended.map_err(|problem| Fault::new(problem, at))
                }
            },
            (Plan::List(plan), Part::Array(element)) => self.list(plan, element, found, out),
            (Plan::Map(entry), Part::Map(value)) => self.map(entry, value, found, out),
            (Plan::Message(_), _) if found.is_empty() => {
                out.extend_from_slice(b"null");
                Ok(())
            }
            (Plan::Message(message), Part::Row(fields)) => self.message(message, fields, found, out),
            _ => unreachable!("the plan is that of the part"),
        }
    }

    fn list(&mut self, plan: &Plan, element: &Part, found: Range<usize>, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.push(b'[');
        // No element ends with the bracket that begins an array.
        let separate = |out: &mut Vec<u8>| {
            if out.last() != Some(&b'[') {
                out.push(b',');
            }
        };
        for at in found {
            let one = self.found[at];
            match plan {
                _ if !one.is_value() => {}
                // Several values that are packed.
                Plan::Scalar { scalar, .. } if one.wire_type != scalar.wire_type() => {
                    let mut bytes = one.content(self.payload)?;
                    while !bytes.is_at_end() {
                        self.writer.check(out).map_err(|problem| bytes.fault(problem))?;
                        separate(out);
                        scalar.read(&mut bytes, &mut PartTarget { part: element, out })?;
                    }
                }
                _ => {
                    separate(out);
                    self.value(plan, element, at..at + 1, out)?;
                }
            }
        }
        out.push(b']');
        Ok(())
    }

    fn map(&mut self, entry: &Entry, value: &Part, found: Range<usize>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let mut map = self.writer.open_map(out);
        for at in found {
            let one = self.found[at];
            if !one.is_value() {
                continue;
            }
            let first = self.found.len();
            self.find(one, |number| (number == 1 || number == 2).then_some(number as usize))?;
            let keys = self.found[first..].iter().take_while(|one| one.field == 1).count();
            match keys {
                0 => self.writer.open_member(&mut map, entry.key.default_key(), out),
                _ => {
                    let key = self.found[first + keys - 1];
                    if key.wire_type != entry.key.wire_type() {
                        return Err(key.fault());
                    }
                    let open = |key: &str| self.writer.open_member(&mut map, key, out);
                    entry.key.with_key(&mut key.bytes(self.payload)?, open)?;
                }
            }
            let values = first + keys..self.found.len();
            match (&*entry.value, value) {
                // A message without a byte may be left out.
                (Plan::Message(message), Part::Row(fields)) => self.message(message, fields, values, out)?,
                (plan, value) => self.value(plan, value, values, out)?,
            }
            self.found.truncate(first);
            self.writer.close_member(out);
        }
        self.writer.close_map(map, out);
        Ok(())
    }

    fn message(
        &mut self,
        message: &Message,
        row: &[(String, Part)],
        found: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let first = self.found.len();
        for at in found {
            self.find(self.found[at], |number| {
                let place = message.numbers.binary_search_by_key(&number, |(number, _)| *number).ok()?;
                Some(message.numbers[place].1)
            })?;
        }
        sort(&mut self.found[first..]);
        let (mut at, end) = (first, self.found.len());
        for (place, (Named { key, plan }, (_, part))) in message.fields.iter().zip(row).enumerate() {
            let fields = self.found[at..end].iter().take_while(|one| one.field == place).count();
            out.extend_from_slice(key);
            self.value(plan, part, at..at + fields, out)?;
            at += fields;
        }
        out.extend_from_slice(if row.is_empty() { b"{}" } else { b"}" });
        self.found.truncate(first);
        Ok(())
    }

    /// Finds the fields of a message for which there is a place. They stand behind what was found, in order.
    fn find(&mut self, message: Found, place: impl Fn(u32) -> Option<usize>) -> Result<(), Fault> {
        let first = self.found.len();
        let mut bytes = message.content(self.payload)?;
        while !bytes.is_at_end() {
            let at = bytes.at();
            let (number, wire_type) = WireType::next(&mut bytes)?;
            match place(number) {
                Some(field) => self.found.push(Found::take(&mut bytes, field, (number, wire_type), at)?),
                None => skip(&mut bytes, wire_type, number, 0)?,
            }
        }
        sort(&mut self.found[first..]);
        Ok(())
    }
}
