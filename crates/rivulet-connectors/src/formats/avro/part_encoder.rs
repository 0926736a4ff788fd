//! Values with parts as arrays, maps and records of Avro.

use super::schema::{AvroSchema, Node};
use crate::formats::binary::append_zigzag;
use crate::formats::parts::Part;
use crate::formats::tape::{Held, Value, Values};

/// How a part is written.
#[derive(Debug)]
pub(super) struct Written {
    /// The branches of the union for null and for a value, if the type is a union.
    null: Option<i64>,
    value: Option<i64>,
    may_be_null: bool,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Boolean,
    Integer,
    Float,
    Double,
    Text,
    Array(Box<Written>),
    Map(Box<Written>),
    Record(Vec<Field>),
}

/// A field of a record.
#[derive(Debug)]
enum Field {
    /// The field of the row at this place.
    Of(usize, Written),
    /// The row has none; the branch for null.
    Null(Option<i64>),
}

impl Written {
    /// How values of the part are written as the type, and the part as which they are read for that. The error says
    /// which part does not suit; `path` leads to it.
    pub(super) fn new(schema: &AvroSchema, node: &Node, part: &Part, path: &str) -> Result<(Self, Part), String> {
        let branches = if let Node::Union(branches) = node { branches } else { std::slice::from_ref(node) };
        let number = |index: usize| matches!(node, Node::Union(_)).then_some(index as i64);
        let null = branches.iter().position(|branch| *branch == Node::Null);
        let mut problem = None;
        // A value with parts is a text only where it cannot be itself.
        let is_text = |branch: &Node| matches!(branch, Node::String | Node::Bytes);
        let places = |texts: bool| branches.iter().enumerate().filter(move |(_, branch)| is_text(branch) == texts);
        for (index, branch) in places(false).chain(places(true)) {
            match Form::new(schema, branch, part, path) {
                Ok(Some((form, part))) => {
                    let written =
                        Self { null: null.and_then(number), value: number(index), may_be_null: null.is_some(), form };
                    return Ok((written, part));
                }
                Ok(None) => {}
                Err(error) => problem = Some(error),
            }
        }
        Err(problem.unwrap_or_else(|| format!("'{path}' is not {} in the schema", part.name())))
    }

    /// Writes a value without the branch of a union, if it is not null. Returns whether it is written.
    pub(super) fn append(&self, value: Value<'_>, out: &mut Vec<u8>) -> bool {
        if value.is_null() {
            // Values that may not be null are left out where that is possible, in arrays and maps.
            if let Some(null) = self.null {
                append_zigzag(null, out);
            }
            return self.may_be_null;
        }
        if let Some(branch) = self.value {
            append_zigzag(branch, out);
        }
        self.form.append(value, out);
        true
    }
}

impl Form {
    fn new(schema: &AvroSchema, node: &Node, part: &Part, path: &str) -> Result<Option<(Self, Part)>, String> {
        let form = match (node, part) {
            (Node::Boolean, Part::Boolean) => Self::Boolean,
            (Node::Integer, Part::Integer) => Self::Integer,
            (Node::Float, Part::Integer | Part::Float) => Self::Float,
            (Node::Double, Part::Integer | Part::Float) => Self::Double,
            (Node::String | Node::Bytes, Part::Text) => Self::Text,
            // Values with parts and any JSON may be texts.
            (Node::String | Node::Bytes, Part::Any | Part::Array(_) | Part::Map(_) | Part::Row(_)) => {
                return Ok(Some((Self::Text, Part::Any)));
            }
            (Node::Array(items), Part::Array(element)) => {
                let (items, element) = Written::new(schema, items, element, &format!("{path}[]"))?;
                return Ok(Some((Self::Array(Box::new(items)), Part::Array(Box::new(element)))));
            }
            (Node::Map(values), Part::Map(value)) => {
                let (values, value) = Written::new(schema, values, value, &format!("{path}['']"))?;
                return Ok(Some((Self::Map(Box::new(values)), Part::Map(Box::new(value)))));
            }
            (Node::Record(number), Part::Row(fields)) => {
                return record(schema, schema.record(*number), fields, path).map(Some);
            }
            _ => return Ok(None),
        };
        Ok(Some((form, part.clone())))
    }

    fn append(&self, value: Value<'_>, out: &mut Vec<u8>) {
        match (self, value.held()) {
            (Self::Boolean, Held::Boolean(value)) => out.push(u8::from(value)),
            (Self::Integer, Held::Integer(value)) => append_zigzag(value, out),
            (Self::Float, Held::Integer(value)) => out.extend_from_slice(&(value as f32).to_le_bytes()),
            (Self::Float, Held::Float(value)) => out.extend_from_slice(&(value as f32).to_le_bytes()),
            (Self::Double, Held::Integer(value)) => out.extend_from_slice(&(value as f64).to_le_bytes()),
            (Self::Double, Held::Float(value)) => out.extend_from_slice(&value.to_le_bytes()),
            (Self::Text, Held::Text(text)) => append_text(text, out),
            (Self::Array(items), Held::Array(_, values)) => append_array(items, values, out),
            (Self::Map(entries), Held::Map(_, values)) => append_map(entries, values, out),
            (Self::Record(fields), Held::Row(values)) => append_record(fields, values, out),
            _ => unreachable!("a value is read as the part that is written"),
        }
    }
}

/// How a row is written as a record, and its fields as they are read for that.
fn record(
    schema: &AvroSchema,
    inner: &[(String, Node)],
    row: &[(String, Part)],
    path: &str,
) -> Result<(Form, Part), String> {
    if let Some((name, _)) = row.iter().find(|(name, _)| !inner.iter().any(|(field, _)| field == name)) {
        return Err(format!("there is no field '{path}.{name}' in the schema"));
    }
    let (mut fields, mut parts) = (Vec::with_capacity(inner.len()), row.to_vec());
    for (name, node) in inner {
        let path = format!("{path}.{name}");
        let branches = if let Node::Union(branches) = node { branches } else { std::slice::from_ref(node) };
        let null = branches.iter().position(|branch| *branch == Node::Null);
        let place = row.iter().position(|(field, _)| field == name);
        fields.push(match (place, null) {
            (Some(place), Some(_)) => {
                let (written, part) = Written::new(schema, node, &row[place].1, &path)?;
                parts[place].1 = part;
                Field::Of(place, written)
            }
            (Some(_), None) => {
                return Err(format!("'{path}' may be null, and its field may not"));
            }
            (None, Some(null)) => Field::Null(matches!(node, Node::Union(_)).then_some(null as i64)),
            (None, None) => return Err(format!("the field '{path}' may not be null and is no field of the row")),
        });
    }
    Ok((Form::Record(fields), Part::Row(parts)))
}

fn append_text(text: &str, out: &mut Vec<u8>) {
    append_zigzag(text.len() as i64, out);
    out.extend_from_slice(text.as_bytes());
}

/// Writes the values of an array, without those that are null where values may not be.
fn append_array(items: &Written, values: Values<'_>, out: &mut Vec<u8>) {
    let count = values.clone().filter(|value| items.may_be_null || !value.is_null()).count();
    if count > 0 {
        append_zigzag(count as i64, out);
        values.for_each(|value| _ = items.append(value, out));
    }
    append_zigzag(0, out);
}

/// Writes the keys and values of a map, likewise.
fn append_map(entries: &Written, mut values: Values<'_>, out: &mut Vec<u8>) {
    let is_written = |place: usize, value: Value<'_>| place % 2 == 1 && (entries.may_be_null || !value.is_null());
    let count = values.clone().enumerate().filter(|(place, value)| is_written(*place, *value)).count();
    if count > 0 {
        append_zigzag(count as i64, out);
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            let start = out.len();
            if let Held::Text(key) = key.held() {
                append_text(key, out);
            }
            if !entries.append(value, out) {
                out.truncate(start);
            }
        }
    }
    append_zigzag(0, out);
}

fn append_record(fields: &[Field], values: Values<'_>, out: &mut Vec<u8>) {
    let (mut rest, mut next) = (values.clone(), 0);
    for field in fields {
        match field {
            Field::Null(branch) => branch.iter().for_each(|branch| append_zigzag(*branch, out)),
            Field::Of(place, written) => {
                // Mostly the schema has the fields in the order of the row.
                if *place < next {
                    (rest, next) = (values.clone(), 0);
                }
                let value = rest.nth(place - next);
                next = place + 1;
                value.into_iter().for_each(|value| _ = written.append(value, out));
            }
        }
    }
}
