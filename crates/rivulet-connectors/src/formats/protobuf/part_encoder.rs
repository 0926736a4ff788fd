//! Values with parts as repeated fields, maps and messages.

use prost_reflect::{Cardinality, FieldDescriptor, Kind};

use super::field::{Scalar, WireType};
use super::scalar_encoder::{append_scalar, append_tag, suits};
use crate::formats::binary::append_varint;
use crate::formats::cells::Cell;
use crate::formats::parts::Part;
use crate::formats::tape::{Held, Value, Values};

/// How a value is written.
#[derive(Debug)]
pub(super) enum Plan {
    Scalar {
        scalar: Scalar,
        has_presence: bool,
    },
    /// Each by itself: readers take that where they expect packed values too. There is no null in a list.
    List(Box<Plan>),
    /// Entries whose keys are texts. There is no null in a map.
    Map(Box<Plan>),
    /// The fields of a row, by their places, with their numbers.
    Message(Vec<(u32, Plan)>),
}

impl Plan {
    /// How values of the part are written as the field, and the part as which they are read for that. The error says
    /// what does not suit; `path` leads to it.
    pub(super) fn new(field: &FieldDescriptor, part: &Part, path: &str) -> Result<(Self, Part), String> {
        match part {
            Part::Map(value) if field.is_map() => {
                let Kind::Message(entry) = field.kind() else { return Err(unsuited(part, path)) };
                if !matches!(Scalar::of(&entry.map_entry_key_field()), Some(Scalar::Text)) {
                    return Err(format!("the keys of '{path}' are no texts in the message"));
                }
                let (value, read) = Self::single(&entry.map_entry_value_field(), value, &format!("{path}['']"))?;
                Ok((Self::Map(Box::new(value)), Part::Map(Box::new(read))))
            }
            Part::Array(element) if field.is_list() => {
                let (element, read) = Self::single(field, element, &format!("{path}[]"))?;
                Ok((Self::List(Box::new(element)), Part::Array(Box::new(read))))
            }
            _ if field.is_map() || field.is_list() => Err(unsuited(part, path)),
            _ => Self::single(field, part, path),
        }
    }

    fn single(field: &FieldDescriptor, part: &Part, path: &str) -> Result<(Self, Part), String> {
        let scalar = |scalar| Self::Scalar { scalar, has_presence: field.supports_presence() };
        match (Scalar::of(field), field.kind(), part) {
            // Values with parts and any JSON may be texts.
            (Some(text @ Scalar::Text), _, Part::Any | Part::Array(_) | Part::Map(_) | Part::Row(_)) => {
                Ok((scalar(text), Part::Any))
            }
            (Some(own), _, _) if part.plain().is_some_and(|plain| suits(&own, &plain)) => {
                Ok((scalar(own), part.clone()))
            }
            (None, Kind::Message(message), Part::Row(row)) => {
                let (mut fields, mut parts) = (Vec::with_capacity(row.len()), Vec::with_capacity(row.len()));
                for (name, part) in row {
                    let path = format!("{path}.{name}");
                    let Some(field) = message.get_field_by_name(name) else {
                        return Err(format!("there is no field '{path}' in {}", message.full_name()));
                    };
                    let (plan, part) = Self::new(&field, part, &path)?;
                    fields.push((field.number(), plan));
                    parts.push((name.clone(), part));
                }
                let is_missing = |field: &FieldDescriptor| {
                    field.cardinality() == Cardinality::Required && !row.iter().any(|(name, _)| name == field.name())
                };
                match message.fields().find(is_missing) {
                    Some(field) => Err(format!("the field '{path}.{}' is required", field.name())),
                    None => Ok((Self::Message(fields), Part::Row(parts))),
                }
            }
            _ => Err(unsuited(part, path)),
        }
    }

    /// Writes a value, unless it is null or the default that a reader assumes for a missing value.
    pub(super) fn append(&self, number: u32, value: Value<'_>, out: &mut Vec<u8>) {
        match (self, value.held()) {
            (_, Held::Null) => {}
            (Self::Scalar { scalar, has_presence }, held) => {
                append_scalar(number, scalar, *has_presence, cell_of(held), out);
            }
            (Self::List(element), Held::Array(_, values)) => {
                values.for_each(|value| element.append_present(number, value, out));
            }
            (Self::Map(plan), Held::Map(_, mut values)) => {
                while let (Some(key), Some(value)) = (values.next(), values.next()) {
                    if !value.is_null() {
                        append_message(number, out, |out| {
                            append_scalar(1, &Scalar::Text, true, cell_of(key.held()), out);
                            plan.append_present(2, value, out);
                        });
                    }
                }
            }
            (Self::Message(fields), Held::Row(values)) => {
                append_message(number, out, |out| append_row(fields, values, out));
            }
            _ => unreachable!("a value is read as the part that is written"),
        }
    }

    /// Writes a value, unless it is null, also if it is the default.
    fn append_present(&self, number: u32, value: Value<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Scalar { scalar, .. } => append_scalar(number, scalar, true, cell_of(value.held()), out),
            _ => self.append(number, value, out),
        }
    }
}

fn unsuited(part: &Part, path: &str) -> String {
    format!("'{path}' is not {} in the message", part.name())
}

fn append_row(fields: &[(u32, Plan)], values: Values<'_>, out: &mut Vec<u8>) {
    fields.iter().zip(values).for_each(|((number, plan), value)| plan.append(*number, value, out));
}

/// Writes a message, whose length stands before it.
fn append_message(number: u32, out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    append_tag(number, WireType::Bytes, out);
    let start = out.len();
    content(out);
    let end = out.len();
    append_varint((end - start) as u64, out);
    let bytes = out.len() - end;
    out[start..].rotate_right(bytes);
}

/// A value without parts as encoders write cells.
fn cell_of(held: Held<'_>) -> Cell<'_> {
    match held {
        Held::Boolean(value) => Cell::Boolean(value),
        Held::Integer(value) => Cell::Int64(value),
        Held::Float(value) => Cell::Float64(value),
        Held::Text(text) => Cell::Text(text),
        Held::Null | Held::Array(..) | Held::Map(..) | Held::Row(_) => Cell::Null,
    }
}
