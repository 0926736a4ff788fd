//! How the field of a message and a column fit together.

use std::collections::HashMap;
use std::io::Write;

use arrow::datatypes::DataType;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::formats::binary::{Bytes, push_boolean, push_float, push_integer, push_text, unzigzag};
use crate::formats::encode::append_display;
use crate::formats::fault::{Fault, Problem};
use crate::formats::parts::Part;
use crate::formats::rows::{Column, Values};

/// How deep messages may be nested in columns.
pub(super) const DEPTH_MAX: usize = 64;

/// The ways in which a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint = 0,
    Bits64 = 1,
    Bytes = 2,
    GroupStart = 3,
    GroupEnd = 4,
    Bits32 = 5,
}

impl WireType {
    pub(super) fn of_tag(tag: u64) -> Option<Self> {
        Some(match tag & 7 {
            0 => Self::Varint,
            1 => Self::Bits64,
            2 => Self::Bytes,
            3 => Self::GroupStart,
            4 => Self::GroupEnd,
            5 => Self::Bits32,
            _ => return None,
        })
    }

    /// Reads a tag: the number of a field, and how its value is written.
    #[inline]
    pub(super) fn next(bytes: &mut Bytes<'_>) -> Result<(u32, Self), Fault> {
        let at = bytes.at();
        let tag = bytes.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Fault::new(Problem::BinaryNumber, at))?;
        match Self::of_tag(tag).filter(|_| number > 0) {
            Some(wire_type) => Ok((number, wire_type)),
            None => Err(Fault::new(Problem::BinaryWireType, at)),
        }
    }
}

/// The type of a single value.
#[derive(Clone, Debug)]
pub(super) enum Scalar {
    Boolean,
    /// `int32` and `int64`.
    Signed,
    Unsigned32,
    Unsigned64,
    ZigZag,
    Fixed32,
    Fixed64,
    SignedFixed32,
    SignedFixed64,
    Float,
    Double,
    Text,
    Enum(EnumNames),
}

/// Names of an enum's values, both ways.
#[derive(Clone, Debug)]
pub(super) struct EnumNames {
    by_number: HashMap<i32, String>,
    pub(super) by_name: HashMap<String, i32>,
}

impl Scalar {
    /// The type of a field; `None` if it is a message.
    pub(super) fn of(field: &FieldDescriptor) -> Option<Self> {
        Some(match field.kind() {
            Kind::Bool => Self::Boolean,
            Kind::Int32 | Kind::Int64 => Self::Signed,
            Kind::Uint32 => Self::Unsigned32,
            Kind::Uint64 => Self::Unsigned64,
            Kind::Sint32 | Kind::Sint64 => Self::ZigZag,
            Kind::Fixed32 => Self::Fixed32,
            Kind::Fixed64 => Self::Fixed64,
            Kind::Sfixed32 => Self::SignedFixed32,
            Kind::Sfixed64 => Self::SignedFixed64,
            Kind::Float => Self::Float,
            Kind::Double => Self::Double,
            Kind::String | Kind::Bytes => Self::Text,
            Kind::Enum(names) => {
                let values: Vec<(i32, String)> =
                    names.values().map(|value| (value.number(), value.name().to_owned())).collect();
                let by_name = values.iter().map(|(number, name)| (name.clone(), *number)).collect();
                // If a number has several names, the first counts.
                let by_number = values.into_iter().rev().collect();
                Self::Enum(EnumNames { by_number, by_name })
            }
            Kind::Message(_) => return None,
        })
    }

    /// Whether a column of this type can have it.
    pub(super) fn suits(&self, column: &DataType) -> bool {
        use DataType::{Date32, Decimal128, Float32, Float64, Int8, Int16, Int32, Int64, Time64, Timestamp, Utf8};
        match self {
            Self::Boolean => *column == DataType::Boolean,
            Self::Float | Self::Double => matches!(column, Float64 | Float32),
            Self::Text => matches!(column, Utf8 | Timestamp(..) | Date32 | Time64(_) | Decimal128(..)),
            Self::Enum(_) => matches!(column, Utf8 | Int64 | Int32 | Int16 | Int8),
            _ => matches!(column, Int64 | Int32 | Int16 | Int8 | Float64 | Float32 | Decimal128(..) | Timestamp(..)),
        }
    }

    pub(super) fn wire_type(&self) -> WireType {
        match self {
            Self::Boolean | Self::Signed | Self::Unsigned32 | Self::Unsigned64 | Self::ZigZag | Self::Enum(_) => {
                WireType::Varint
            }
            Self::Fixed32 | Self::SignedFixed32 | Self::Float => WireType::Bits32,
            Self::Fixed64 | Self::SignedFixed64 | Self::Double => WireType::Bits64,
            Self::Text => WireType::Bytes,
        }
    }

    /// Reads a value into a column, or into an array of one.
    #[inline]
    pub(super) fn read(&self, bytes: &mut Bytes<'_>, into: &mut impl Target) -> Result<(), Fault> {
        let at = bytes.at();
        let pushed = match self {
            Self::Boolean => into.boolean(bytes.varint()? != 0),
            Self::Signed => into.integer(bytes.varint()? as i64),
            Self::Unsigned32 => into.integer(i64::from(bytes.varint()? as u32)),
            Self::Unsigned64 => into.unsigned(bytes.varint()?),
            Self::ZigZag => into.integer(unzigzag(bytes.varint()?)),
            Self::Fixed32 => into.integer(i64::from(u32::from_le_bytes(bytes.array()?))),
            Self::Fixed64 => into.unsigned(u64::from_le_bytes(bytes.array()?)),
            Self::SignedFixed32 => into.integer(i64::from(i32::from_le_bytes(bytes.array()?))),
            Self::SignedFixed64 => into.integer(i64::from_le_bytes(bytes.array()?)),
            Self::Float => into.float(f64::from(f32::from_le_bytes(bytes.array()?))),
            Self::Double => into.float(f64::from_le_bytes(bytes.array()?)),
            Self::Text => into.text(length_delimited(bytes)?),
            Self::Enum(names) => into.named(names, bytes.varint()? as i32),
        };
        pushed.map_err(|problem| Fault::new(problem, at))
    }

    /// Appends the default of a part.
    pub(super) fn append_default(&self, into: &mut PartTarget<'_>) -> Result<(), Problem> {
        match self {
            Self::Boolean => into.boolean(false),
            Self::Float | Self::Double => into.float(0.0),
            Self::Text => into.text(b""),
            Self::Enum(names) => into.named(names, 0),
            _ => into.integer(0),
        }
    }

    /// The key of a map that is left out.
    pub(super) fn default_key(&self) -> &'static str {
        match self {
            Self::Text => "",
            Self::Boolean => "false",
            _ => "0",
        }
    }

    /// Calls `with` with the text of a key of a map.
    pub(super) fn with_key(&self, bytes: &mut Bytes<'_>, with: impl FnOnce(&str)) -> Result<(), Fault> {
        let at = bytes.at();
        match self {
            Self::Text => {
                with(std::str::from_utf8(length_delimited(bytes)?).map_err(|_| Fault::new(Problem::InvalidUtf8, at))?);
            }
            Self::Boolean => with(if bytes.varint()? != 0 { "true" } else { "false" }),
            _ => {
                let mut number = WholeNumber(0);
                self.read(bytes, &mut number)?;
                let mut digits = [0; 24];
                let mut rest = &mut digits[..];
                // A number of 64 bits has room.
                let _ = write!(rest, "{}", number.0);
                let length = 24 - rest.len();
                with(std::str::from_utf8(&digits[..length]).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Puts the default into a column, for a message that has no value.
    pub(super) fn push_default(&self, column: &mut Column) -> Result<(), Problem> {
        match self {
            Self::Boolean => push_boolean(column, false),
            Self::Float | Self::Double => push_float(column, 0.0),
            // An empty text is no time, date or decimal.
            Self::Text if matches!(column.values(), Values::Timestamp(_) | Values::Checked(_)) => column.push_null(),
            Self::Text => push_text(column, b""),
            Self::Enum(names) => names.push(column, 0),
            _ => push_integer(column, 0),
        }
    }
}

/// Where a value goes.
pub(super) trait Target {
    fn boolean(&mut self, value: bool) -> Result<(), Problem>;
    fn integer(&mut self, value: i64) -> Result<(), Problem>;
    fn unsigned(&mut self, value: u64) -> Result<(), Problem>;
    fn float(&mut self, value: f64) -> Result<(), Problem>;
    fn text(&mut self, value: &[u8]) -> Result<(), Problem>;
    fn named(&mut self, names: &EnumNames, number: i32) -> Result<(), Problem>;
}

impl Target for Column {
    #[inline]
    fn boolean(&mut self, value: bool) -> Result<(), Problem> {
        push_boolean(self, value)
    }

    #[inline]
    fn integer(&mut self, value: i64) -> Result<(), Problem> {
        push_integer(self, value)
    }

    #[inline]
    fn unsigned(&mut self, value: u64) -> Result<(), Problem> {
        push_unsigned(self, value)
    }

    #[inline]
    fn float(&mut self, value: f64) -> Result<(), Problem> {
        push_float(self, value)
    }

    #[inline]
    fn text(&mut self, value: &[u8]) -> Result<(), Problem> {
        push_text(self, value)
    }

    fn named(&mut self, names: &EnumNames, number: i32) -> Result<(), Problem> {
        names.push(self, number)
    }
}

/// The value is a part, which is appended to what was written.
pub(super) struct PartTarget<'t> {
    pub(super) part: &'t Part,
    pub(super) out: &'t mut Vec<u8>,
}

impl Target for PartTarget<'_> {
    fn boolean(&mut self, value: bool) -> Result<(), Problem> {
        self.part.append_boolean(value, self.out)
    }

    fn integer(&mut self, value: i64) -> Result<(), Problem> {
        self.part.append_integer(value, self.out)
    }

    fn unsigned(&mut self, value: u64) -> Result<(), Problem> {
        match i64::try_from(value) {
            Ok(value) => self.integer(value),
            // Only a floating point number can have it.
            Err(_) => self.float(value as f64).map_err(|_| Problem::BinaryIntegerRange),
        }
    }

    fn float(&mut self, value: f64) -> Result<(), Problem> {
        self.part.append_float(value, self.out)
    }

    fn text(&mut self, value: &[u8]) -> Result<(), Problem> {
        self.part.append_text(value, self.out)
    }

    fn named(&mut self, names: &EnumNames, number: i32) -> Result<(), Problem> {
        match (self.part, names.by_number.get(&number)) {
            (Part::Text | Part::Any, Some(name)) => self.text(name.as_bytes()),
            // A number without a known name is written as a number.
            (Part::Text, None) => {
                append_display(self.out, format_args!("\"{number}\""));
                Ok(())
            }
            _ => self.integer(i64::from(number)),
        }
    }
}

/// A whole number alone.
struct WholeNumber(i128);

impl Target for WholeNumber {
    fn boolean(&mut self, _value: bool) -> Result<(), Problem> {
        Err(Problem::BinaryWireType)
    }

    fn integer(&mut self, value: i64) -> Result<(), Problem> {
        self.0 = value.into();
        Ok(())
    }

    fn unsigned(&mut self, value: u64) -> Result<(), Problem> {
        self.0 = value.into();
        Ok(())
    }

    fn float(&mut self, _value: f64) -> Result<(), Problem> {
        Err(Problem::BinaryWireType)
    }

    fn text(&mut self, _value: &[u8]) -> Result<(), Problem> {
        Err(Problem::BinaryWireType)
    }

    fn named(&mut self, _names: &EnumNames, number: i32) -> Result<(), Problem> {
        self.integer(number.into())
    }
}

impl EnumNames {
    fn push(&self, column: &mut Column, number: i32) -> Result<(), Problem> {
        match (column.values(), self.by_number.get(&number)) {
            (Values::Text(_), Some(name)) => push_text(column, name.as_bytes()),
            // A number without a known name is written as a number.
            (Values::Text(values), None) => {
                let pushed = values.push_with(|bytes| {
                    append_display(bytes, format_args!("{number}"));
                    Ok(())
                });
                pushed.map_err(|_| Problem::TooMuchText)
            }
            _ => push_integer(column, i64::from(number)),
        }
    }
}

/// Puts a number without sign into a column.
fn push_unsigned(column: &mut Column, value: u64) -> Result<(), Problem> {
    match (column.values(), i64::try_from(value)) {
        (Values::Float64(values), _) => {
            values.push(value as f64);
            Ok(())
        }
        (_, Ok(value)) => push_integer(column, value),
        (_, Err(_)) => Err(Problem::BinaryIntegerRange),
    }
}

/// Bytes behind their length.
#[inline]
pub(super) fn length_delimited<'p>(bytes: &mut Bytes<'p>) -> Result<&'p [u8], Fault> {
    let at = bytes.at();
    let length = usize::try_from(bytes.varint()?).map_err(|_| Fault::new(Problem::BinaryLength, at))?;
    bytes.take(length)
}

/// Whether the message is a point in time.
pub(super) fn is_timestamp(message: &MessageDescriptor) -> bool {
    message.full_name() == "google.protobuf.Timestamp"
}
