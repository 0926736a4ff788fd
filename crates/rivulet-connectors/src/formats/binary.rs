//! The common part of Avro and Protobuf: reading bytes, the frame of a payload, and how values go to columns.

use super::FormatError;
use super::fault::{Fault, Problem};
use super::rows::{Column, Values};
use super::timestamp;

/// The bytes of a payload, from front to back.
pub(crate) struct Bytes<'p> {
    payload: &'p [u8],
    at: usize,
}

impl<'p> Bytes<'p> {
    pub(crate) fn new(payload: &'p [u8], at: usize) -> Self {
        Self { payload, at }
    }

    /// All bytes.
    #[inline]
    pub(crate) fn payload(&self) -> &'p [u8] {
        self.payload
    }

    /// The next `length` bytes, at the offsets that they have here.
    #[inline]
    pub(crate) fn part(&mut self, length: usize) -> Result<Self, Fault> {
        let at = self.at;
        self.take(length)?;
        Ok(Self { payload: &self.payload[..self.at], at })
    }

    /// The offset of the next byte.
    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.payload.len()
    }

    #[inline]
    pub(crate) fn fault(&self, problem: Problem) -> Fault {
        Fault::new(problem, self.at)
    }

    /// The next `length` bytes.
    #[inline]
    pub(crate) fn take(&mut self, length: usize) -> Result<&'p [u8], Fault> {
        match self.payload.get(self.at..).and_then(|rest| rest.get(..length)) {
            Some(bytes) => {
                self.at += length;
                Ok(bytes)
            }
            None => Err(self.fault(Problem::BinaryEnd)),
        }
    }

    /// The next `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| self.fault(Problem::BinaryEnd))
    }

    /// A number of up to 64 bits, seven in a byte, the lowest first.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        let mut shift = 0;
        loop {
            let Some(&byte) = self.payload.get(self.at) else { return Err(self.fault(Problem::BinaryEnd)) };
            // The tenth byte has only one bit left.
            if shift == 63 && byte > 1 {
                return Err(self.fault(Problem::BinaryNumber));
            }
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    /// A number whose sign is its lowest bit.
    #[inline]
    pub(crate) fn zigzag(&mut self) -> Result<i64, Fault> {
        Ok(unzigzag(self.varint()?))
    }
}

#[inline]
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[inline]
pub(crate) fn append_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(crate) fn append_zigzag(value: i64, out: &mut Vec<u8>) {
    append_varint(((value << 1) ^ (value >> 63)) as u64, out);
}

/// The frame of a payload: the bytes before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Nothing.
    #[default]
    None,
    /// The frame that schema registries use: a zero byte and the number of the schema, big-endian. The number is not
    /// looked up: the schema is the one that was given.
    Registry(u32),
}

impl Framing {
    /// The frame of the options `framing` and `schema_id`.
    pub(crate) fn parse(
        format: &'static str,
        framing: Option<&str>,
        schema_id: Option<&str>,
    ) -> Result<Self, FormatError> {
        let setting = |problem: &str, hint: &str| FormatError::setting(format, problem, hint);
        let id = match schema_id {
            None => 0,
            Some(text) => text.trim().parse().map_err(|_| {
                setting(&format!("has an option 'schema_id' that cannot be '{text}'"), "it is a whole number")
            })?,
        };
        match framing.map(|text| text.trim().to_ascii_lowercase()).as_deref() {
            None | Some("none") if schema_id.is_none() => Ok(Self::None),
            None | Some("none") => {
                Err(setting("has a 'schema_id' and no frame to put it in", "add framing => 'registry'"))
            }
            Some("registry" | "confluent") => Ok(Self::Registry(id)),
            Some(other) => {
                let problem = format!("has an option 'framing' that cannot be '{other}'");
                Err(setting(&problem, "it is none or registry"))
            }
        }
    }

    /// Skips the frame, with any number of the schema.
    #[inline]
    pub(crate) fn skip(self, bytes: &mut Bytes<'_>) -> Result<(), Fault> {
        match self {
            Self::None => Ok(()),
            Self::Registry(_) => match bytes.array::<5>() {
                Ok([0, ..]) => Ok(()),
                _ => Err(Fault::new(Problem::BinaryFrame, 0)),
            },
        }
    }

    /// Writes the frame.
    pub(crate) fn append(self, out: &mut Vec<u8>) {
        if let Self::Registry(id) = self {
            out.push(0);
            out.extend_from_slice(&id.to_be_bytes());
        }
    }
}

/// Puts a whole number into a column of numbers, or of times in milliseconds.
#[inline]
pub(crate) fn push_integer(column: &mut Column, value: i64) -> Result<(), Problem> {
    match column.values() {
        Values::Int64(values) => values.push(value),
        Values::Float64(values) => values.push(value as f64),
        Values::Timestamp(_) => {
            return push_time(column, value.checked_mul(1000).ok_or(Problem::TimestampRange)?);
        }
        Values::Checked(values) => return values.push_integer(value),
        Values::Boolean(_) => return Err(Problem::ExpectedBoolean),
        Values::Text(_) => return Err(Problem::ExpectedString),
    }
    Ok(())
}

/// Puts a number into a column of numbers.
#[inline]
pub(crate) fn push_float(column: &mut Column, value: f64) -> Result<(), Problem> {
    match column.values() {
        Values::Float64(values) => values.push(value),
        _ => return Err(Problem::BinaryWireType),
    }
    Ok(())
}

/// Puts a time in microseconds since the epoch into a column of times, or of numbers.
#[inline]
pub(crate) fn push_time(column: &mut Column, time_us: i64) -> Result<(), Problem> {
    match column.values() {
        Values::Timestamp(values) => values.push(timestamp::check_range(time_us)?),
        Values::Int64(values) => values.push(time_us),
        _ => return Err(Problem::BinaryWireType),
    }
    Ok(())
}

/// Puts text into a column of text, or of times, then in ISO 8601.
#[inline]
pub(crate) fn push_text(column: &mut Column, text: &[u8]) -> Result<(), Problem> {
    match column.values() {
        Values::Text(values) => values.push_checked(text),
        Values::Timestamp(values) => {
            values.push(timestamp::parse_iso(text)?);
            Ok(())
        }
        Values::Checked(values) => values.push_text(text),
        _ => Err(Problem::BinaryWireType),
    }
}

/// Puts a truth value into a column of truth values.
#[inline]
pub(crate) fn push_boolean(column: &mut Column, value: bool) -> Result<(), Problem> {
    match column.values() {
        Values::Boolean(values) => values.push(value),
        _ => return Err(Problem::BinaryWireType),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back(value in any::<i64>()) {
            let mut bytes = Vec::new();
            append_zigzag(value, &mut bytes);
            append_varint(value as u64, &mut bytes);
            let mut read = Bytes::new(&bytes, 0);
            prop_assert_eq!(read.zigzag().unwrap(), value);
            prop_assert_eq!(read.varint().unwrap(), value as u64);
            prop_assert!(read.is_at_end());
        }
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        assert!(Bytes::new(&[0x80; 4], 0).varint().is_err());
        assert!(Bytes::new(&[0xff; 10], 0).varint().is_err());
        assert_eq!(
            Bytes::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], 0).varint().unwrap(),
            u64::MAX
        );
    }

    #[test]
    fn frames() {
        let framing = Framing::parse("AVRO", Some("Confluent"), Some("7")).unwrap();
        let mut bytes = Vec::new();
        framing.append(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 7]);
        let mut read = Bytes::new(&bytes, 0);
        framing.skip(&mut read).unwrap();
        assert_eq!(read.at(), 5);
        assert!(framing.skip(&mut Bytes::new(&[1, 0, 0, 0, 7], 0)).is_err());
        assert!(framing.skip(&mut Bytes::new(&[0], 0)).is_err());
        assert!(Framing::parse("AVRO", None, Some("7")).is_err());
        assert!(Framing::parse("AVRO", Some("box"), None).is_err());
    }
}
