//! Values with parts: arrays, maps and rows, in each other; what their parts are declared as, and the form in which
//! they are held.
//!
//! What must hold: what is held depends on the value alone. It is JSON without blanks; the keys of a map are in order
//! and each is there once, with its last value, and the fields of a row stand as they are declared, null where the
//! payload has none. Nothing is allocated for a value beyond the buffers, which are kept.

use arrow::datatypes::{DataType, Field};
use rivulet_dataflow::{canonical_float, held_type, is_json, map_value};

use super::fault::Problem;
use super::json::{append_integer, append_json_float, append_json_string};

/// What a part is declared as.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// Any JSON.
    Any,
    Text,
    Integer,
    Float,
    Boolean,
    Array(Box<Part>),
    Map(Box<Part>),
    /// Fields by their names.
    Row(Vec<(String, Part)>),
}

impl Part {
    /// The part that a field of the declared type is; `None` if parts are not of this type.
    pub(crate) fn of(field: &Field) -> Option<Self> {
        Some(match field.data_type() {
            _ if is_json(field) => Self::Any,
            DataType::Utf8 => Self::Text,
            DataType::Int64 => Self::Integer,
            DataType::Float64 => Self::Float,
            DataType::Boolean => Self::Boolean,
            DataType::List(element) => Self::Array(Box::new(Self::of(element)?)),
            DataType::Map(entries, _) => Self::Map(Box::new(Self::of(map_value(entries)?)?)),
            DataType::Struct(fields) => {
                let fields = fields.iter().map(|field| Some((field.name().clone(), Self::of(field)?)));
                Self::Row(fields.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    /// The byte that begins a value with parts, and the problem of another one.
    pub(crate) fn begin(&self) -> (u8, Problem) {
        match self {
            Self::Array(_) => (b'[', Problem::ExpectedArray),
            _ => (b'{', Problem::ExpectedObject),
        }
    }

    /// The part that the values of a column are; `None` if they have no parts that are known here.
    pub(crate) fn of_column(column: &Field) -> Option<Self> {
        Self::of(&Field::new("", held_type(column)?, true))
    }

    /// The type in words.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Any => "JSON",
            Self::Text => "TEXT",
            Self::Integer => "BIGINT",
            Self::Float => "DOUBLE",
            Self::Boolean => "BOOLEAN",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
            Self::Row(_) => "a row",
        }
    }

    /// The type of a column of such values, if they have no parts. Any JSON is text.
    pub(crate) fn plain(&self) -> Option<DataType> {
        match self {
            Self::Any | Self::Text => Some(DataType::Utf8),
            Self::Integer => Some(DataType::Int64),
            Self::Float => Some(DataType::Float64),
            Self::Boolean => Some(DataType::Boolean),
            Self::Array(_) | Self::Map(_) | Self::Row(_) => None,
        }
    }

    /// Appends a truth value.
    pub(crate) fn append_boolean(&self, value: bool, out: &mut Vec<u8>) -> Result<(), Problem> {
        match self {
            Self::Boolean | Self::Any => out.extend_from_slice(if value { b"true" } else { b"false" }),
            _ => return Err(Problem::BinaryWireType),
        }
        Ok(())
    }

    /// Appends a whole number.
    pub(crate) fn append_integer(&self, value: i64, out: &mut Vec<u8>) -> Result<(), Problem> {
        match self {
            Self::Integer | Self::Any => append_integer(value.unsigned_abs(), value < 0, out),
            _ => return self.append_float(value as f64, out),
        }
        Ok(())
    }

    /// Appends a number.
    pub(crate) fn append_float(&self, value: f64, out: &mut Vec<u8>) -> Result<(), Problem> {
        match self {
            Self::Float | Self::Any => append_float(value, out),
            _ => return Err(Problem::BinaryWireType),
        }
        Ok(())
    }

    /// Appends a text, unless it is not UTF-8.
    pub(crate) fn append_text(&self, text: &[u8], out: &mut Vec<u8>) -> Result<(), Problem> {
        match (self, std::str::from_utf8(text)) {
            (Self::Text | Self::Any, Ok(text)) => append_json_string(text, out),
            (Self::Text | Self::Any, Err(_)) => return Err(Problem::InvalidUtf8),
            _ => return Err(Problem::BinaryWireType),
        }
        Ok(())
    }
}

/// Appends a float, by its name if it is not finite.
pub(super) fn append_float(value: f64, out: &mut Vec<u8>) {
    match value {
        _ if value.is_nan() => out.extend_from_slice(b"\"NaN\""),
        f64::INFINITY => out.extend_from_slice(b"\"Infinity\""),
        f64::NEG_INFINITY => out.extend_from_slice(b"\"-Infinity\""),
        _ => append_json_float(canonical_float(value), out),
    }
}

/// A value may be held with this many bytes, or [`GROWTH_MAX`] times as many as its payload has: an empty object
/// becomes a row with all its fields, and an array may have very many of them.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// See [`TEXT_BYTES_MAX`].
const GROWTH_MAX: usize = 8;

/// The text of [`Problem::TooLargeValue`].
pub(crate) fn too_large() -> String {
    let mib = TEXT_BYTES_MAX >> 20;
    format!("with all its fields the value is more than {GROWTH_MAX} times as large as the payload, and than {mib} MiB")
}

/// Puts the members of maps and rows in order. Empty between values.
#[derive(Default)]
pub(crate) struct PartWriter {
    /// The members of objects that are being written, those of inner ones last: where in the output a member begins,
    /// where its value does, and where it ends.
    members: Vec<(usize, usize, usize)>,
    /// An object with its members in order.
    ordered: Vec<u8>,
    /// Where in the output the value that is being written has to end.
    end_max: usize,
}

/// A map that is being written.
pub(crate) struct OpenMap {
    /// Where it begins in the output.
    start: usize,
    /// Its first member.
    first: usize,
    is_ordered: bool,
}

/// A row that is being written.
pub(crate) struct OpenRow {
    start: usize,
    first: usize,
}

/// A member that is not there.
const ABSENT: (usize, usize, usize) = (0, 0, 0);

impl PartWriter {
    /// Begins a value at the end of the output, for a payload of this many bytes.
    pub(crate) fn begin(&mut self, payload_bytes: usize, out: &[u8]) {
        // A value that was refused may have left what was read of it.
        self.members.clear();
        self.end_max = out.len() + TEXT_BYTES_MAX.max(GROWTH_MAX * payload_bytes);
    }

    /// Checks that the value is not too large. Called before each part.
    #[inline]
    pub(crate) fn check(&self, out: &[u8]) -> Result<(), Problem> {
        if out.len() > self.end_max { Err(Problem::TooLargeValue) } else { Ok(()) }
    }

    /// Begins a map.
    pub(crate) fn open_map(&mut self, out: &mut Vec<u8>) -> OpenMap {
        let map = OpenMap { start: out.len(), first: self.members.len(), is_ordered: true };
        out.push(b'{');
        map
    }

    /// Begins a member of a map; its value follows, then [`PartWriter::close_member`].
    pub(crate) fn open_member(&mut self, map: &mut OpenMap, key: &str, out: &mut Vec<u8>) {
        let before = self.members.get(map.first..).and_then(<[_]>::last).copied();
        out.extend_from_slice(if before.is_some() { b"," } else { b"" });
        let begin = out.len();
        append_json_string(key, out);
        if let Some((before, colon, _)) = before {
            map.is_ordered &= out[before..colon] < out[begin..];
        }
        self.members.push((begin, out.len(), begin));
        out.push(b':');
    }

    /// Ends the member that was begun last.
    pub(crate) fn close_member(&mut self, out: &[u8]) {
        if let Some((_, _, end)) = self.members.last_mut() {
            *end = out.len();
        }
    }

    /// Ends a map.
    pub(crate) fn close_map(&mut self, map: OpenMap, out: &mut Vec<u8>) {
        match map.is_ordered {
            true => out.push(b'}'),
            false => self.order(&map, out),
        }
        self.members.truncate(map.first);
    }

    /// Puts the members of a map in the order of their keys. Of several members with one key the last remains.
    fn order(&mut self, map: &OpenMap, out: &mut Vec<u8>) {
        let members = &mut self.members[map.first..];
        members.sort_unstable_by(|one, other| out[one.0..one.1].cmp(&out[other.0..other.1]).then(one.0.cmp(&other.0)));
        self.ordered.clear();
        self.ordered.push(b'{');
        for (place, &(begin, colon, end)) in members.iter().enumerate() {
            let is_last = members.get(place + 1).is_none_or(|next| out[next.0..next.1] != out[begin..colon]);
            if is_last {
                self.ordered.extend_from_slice(if self.ordered.len() > 1 { b"," } else { b"" });
                self.ordered.extend_from_slice(&out[begin..end]);
            }
        }
        self.ordered.push(b'}');
        out.truncate(map.start);
        out.extend_from_slice(&self.ordered);
    }

    /// Begins a row of so many fields, which are written in any order: each value at the end of the output, then
    /// [`PartWriter::set_field`].
    pub(crate) fn open_row(&mut self, fields: usize, out: &[u8]) -> OpenRow {
        let row = OpenRow { start: out.len(), first: self.members.len() };
        self.members.resize(row.first + fields, ABSENT);
        row
    }

    /// Whether the field has a value.
    pub(crate) fn is_set(&self, row: &OpenRow, field: usize) -> bool {
        self.members[row.first + field] != ABSENT
    }

    /// Gives the field the value that begins there and ends the output; one that it had is left out.
    pub(crate) fn set_field(&mut self, row: &OpenRow, field: usize, begin: usize, out: &[u8]) {
        self.members[row.first + field] = (begin, begin, out.len());
    }

    /// Ends a row with these fields.
    pub(crate) fn close_row(&mut self, row: OpenRow, fields: &[(String, Part)], out: &mut Vec<u8>) {
        self.ordered.clear();
        self.ordered.push(b'{');
        for (place, (name, _)) in fields.iter().enumerate() {
            self.ordered.extend_from_slice(if place > 0 { b"," } else { b"" });
            append_json_string(name, &mut self.ordered);
            self.ordered.push(b':');
            match self.members[row.first + place] {
                ABSENT => self.ordered.extend_from_slice(b"null"),
                (begin, _, end) => self.ordered.extend_from_slice(&out[begin..end]),
            }
        }
        self.ordered.push(b'}');
        out.truncate(row.start);
        out.extend_from_slice(&self.ordered);
        self.members.truncate(row.first);
    }
}

/// The field of this name, which mostly is the one at `next`.
pub(crate) fn field_named(fields: &[(String, Part)], name: &[u8], next: usize) -> Option<usize> {
    let is_it = |(other, _): &(String, Part)| other.as_bytes() == name;
    match fields.get(next).is_some_and(is_it) {
        true => Some(next),
        false => fields.iter().position(is_it),
    }
}
