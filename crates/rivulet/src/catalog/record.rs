//! The binary form of a query and of an application on disk.
//!
//! A query: application number, name, number of parameters, then each parameter as name, tag and value; its label, if
//! it has one, is the first of them, a text without a name. Whole numbers are LEB128 varints (signed ones zigzag),
//! texts are a length and UTF-8, floats are 8 bytes little-endian. Readers believe nothing: every length is checked
//! against the bytes that are there.

use std::borrow::Cow;

use crate::service::{Parameter, ParameterValue};

/// An application's short name in records of queries; never given twice.
pub type ApplicationNumber = u32;

/// A query to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewQuery<'a> {
    /// Its application.
    pub application: ApplicationNumber,
    /// Its name; empty if that is the one generated from the id.
    pub name: &'a str,
    /// Its parameter values as written.
    pub parameters: &'a [Parameter<'a>],
    /// Its label; not empty.
    pub label: Option<&'a str>,
}

const TAG_NULL: u8 = 0;
const TAG_FALSE: u8 = 1;
const TAG_TRUE: u8 = 2;
const TAG_INT: u8 = 3;
const TAG_FLOAT: u8 = 4;
const TAG_TEXT: u8 = 5;

/// The name of a label among the parameters. Parameters have other names.
const LABEL: &str = "";

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecordError {
    #[error("a record ends early")]
    Short,
    #[error("a record holds a number that is too large")]
    Number,
    #[error("a record holds text that is not UTF-8")]
    Text,
    #[error("a record holds a value with the unknown tag {0}")]
    Tag(u8),
    #[error("a record is followed by bytes that do not belong to it")]
    Trailing,
}

/// Replaces the content of `buffer` by the record of a query.
pub(super) fn write_query(buffer: &mut Vec<u8>, query: &NewQuery<'_>) {
    buffer.clear();
    write_number(buffer, u64::from(query.application));
    write_text(buffer, query.name);
    write_number(buffer, query.parameters.len() as u64 + u64::from(query.label.is_some()));
    if let Some(label) = query.label {
        write_text(buffer, LABEL);
        buffer.push(TAG_TEXT);
        write_text(buffer, label);
    }
    for (name, value) in query.parameters {
        write_text(buffer, name);
        match value {
            ParameterValue::Null => buffer.push(TAG_NULL),
            ParameterValue::Bool(false) => buffer.push(TAG_FALSE),
            ParameterValue::Bool(true) => buffer.push(TAG_TRUE),
            ParameterValue::Int(value) => {
                buffer.push(TAG_INT);
                write_number(buffer, ((value << 1) ^ (value >> 63)).cast_unsigned());
            }
            ParameterValue::Float(value) => {
                buffer.push(TAG_FLOAT);
                buffer.extend_from_slice(&value.to_le_bytes());
            }
            ParameterValue::Text(text) => {
                buffer.push(TAG_TEXT);
                write_text(buffer, text);
            }
        }
    }
}

/// The record of a query without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryHead<'a> {
    pub(super) application: ApplicationNumber,
    pub(super) name: &'a str,
    pub(super) label: Option<&'a str>,
}

/// Reads the application and the name from the record of a query.
pub(super) fn read_name(bytes: &[u8]) -> Result<(ApplicationNumber, &str), RecordError> {
    let mut reader = Reader { bytes };
    let application = ApplicationNumber::try_from(reader.number()?).map_err(|_| RecordError::Number)?;
    Ok((application, reader.text()?))
}

/// Reads the record of a query; `parameters` is replaced by its parameters.
pub(super) fn read_query<'a>(
    bytes: &'a [u8],
    parameters: &mut Vec<Parameter<'a>>,
) -> Result<QueryHead<'a>, RecordError> {
    parameters.clear();
    let mut reader = Reader { bytes };
    let application = ApplicationNumber::try_from(reader.number()?).map_err(|_| RecordError::Number)?;
    let (name, mut label) = (reader.text()?, None);
    // Nothing is allocated by this count, which may be wrong: then reading ends in `Short`.
    for _ in 0..reader.number()? {
        let parameter = reader.text()?;
        if parameter == LABEL && label.is_none() && parameters.is_empty() {
            match reader.byte()? {
                TAG_TEXT => label = Some(reader.text()?),
                tag => return Err(RecordError::Tag(tag)),
            }
            continue;
        }
        let value = match reader.byte()? {
            TAG_NULL => ParameterValue::Null,
            TAG_FALSE => ParameterValue::Bool(false),
            TAG_TRUE => ParameterValue::Bool(true),
            TAG_INT => {
                let number = reader.number()?;
                ParameterValue::Int((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
            }
            TAG_FLOAT => ParameterValue::Float(f64::from_le_bytes(reader.array()?)),
            TAG_TEXT => ParameterValue::Text(Cow::Borrowed(reader.text()?)),
            tag => return Err(RecordError::Tag(tag)),
        };
        parameters.push((Cow::Borrowed(parameter), value));
    }
    reader.end()?;
    Ok(QueryHead { application, name, label })
}

/// The kind of all code from before the kind was recorded.
const KIND_BEFORE: &str = "sql";

/// The content of an application's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ApplicationRecord<'a> {
    pub(super) number: ApplicationNumber,
    pub(super) id: &'a str,
    pub(super) bytes: &'a [u8],
    pub(super) kind: &'a str,
}

/// The record of an application.
pub(super) fn write_application(application: ApplicationRecord<'_>) -> Vec<u8> {
    let ApplicationRecord { number, id, bytes, kind } = application;
    let mut buffer = Vec::with_capacity(id.len() + bytes.len() + kind.len() + 16);
    write_number(&mut buffer, u64::from(number));
    write_text(&mut buffer, id);
    write_bytes(&mut buffer, bytes);
    write_text(&mut buffer, kind);
    buffer
}

/// Reads the record of an application. One that was written before format 7 ends with the text of the statement.
pub(super) fn read_application(bytes: &[u8]) -> Result<ApplicationRecord<'_>, RecordError> {
    let mut reader = Reader { bytes };
    let number = ApplicationNumber::try_from(reader.number()?).map_err(|_| RecordError::Number)?;
    let id = reader.text()?;
    let bytes = reader.bytes()?;
    let kind = if reader.bytes.is_empty() { KIND_BEFORE } else { reader.text()? };
    reader.end()?;
    Ok(ApplicationRecord { number, id, bytes, kind })
}

fn write_number(buffer: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        buffer.push((number as u8) | 0x80);
        number >>= 7;
    }
    buffer.push(number as u8);
}

fn write_text(buffer: &mut Vec<u8>, text: &str) {
    write_bytes(buffer, text.as_bytes());
}

fn write_bytes(buffer: &mut Vec<u8>, bytes: &[u8]) {
    write_number(buffer, bytes.len() as u64);
    buffer.extend_from_slice(bytes);
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, RecordError> {
        let (&first, rest) = self.bytes.split_first().ok_or(RecordError::Short)?;
        self.bytes = rest;
        Ok(first)
    }

    fn number(&mut self) -> Result<u64, RecordError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            // The tenth byte has room for one bit.
            if shift == 63 && byte > 1 {
                return Err(RecordError::Number);
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RecordError::Number)
    }

    fn text(&mut self) -> Result<&'a str, RecordError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| RecordError::Text)
    }

    fn bytes(&mut self) -> Result<&'a [u8], RecordError> {
        let length = usize::try_from(self.number()?).map_err(|_| RecordError::Short)?;
        let (bytes, rest) = self.bytes.split_at_checked(length).ok_or(RecordError::Short)?;
        self.bytes = rest;
        Ok(bytes)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], RecordError> {
        let (array, rest) = self.bytes.split_first_chunk().ok_or(RecordError::Short)?;
        self.bytes = rest;
        Ok(*array)
    }

    fn end(&self) -> Result<(), RecordError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(RecordError::Trailing) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = ParameterValue<'static>> {
        prop_oneof![
            Just(ParameterValue::Null),
            any::<bool>().prop_map(ParameterValue::Bool),
            any::<i64>().prop_map(ParameterValue::Int),
            any::<f64>().prop_map(ParameterValue::Float),
            ".*".prop_map(|text| ParameterValue::Text(text.into())),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            application: u32,
            name in ".*",
            parameters in proptest::collection::vec((".+".prop_map(Cow::from), value()), 0..5),
            label in proptest::option::of(".+"),
        ) {
            let mut buffer = vec![1, 2, 3];
            let label = label.as_deref();
            write_query(&mut buffer, &NewQuery { application, name: &name, parameters: &parameters, label });
            let mut read = Vec::new();
            prop_assert_eq!(read_query(&buffer, &mut read), Ok(QueryHead { application, name: &name, label }));
            prop_assert_eq!(&read, &parameters);

            // Every truncation and every addition is noticed.
            for length in 0..buffer.len() {
                prop_assert!(read_query(&buffer[..length], &mut Vec::new()).is_err());
            }
            buffer.push(0);
            prop_assert_eq!(read_query(&buffer, &mut Vec::new()), Err(RecordError::Trailing));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            // This must not panic; any result is fine.
            let _ = read_query(&bytes, &mut Vec::new());
            let _ = read_application(&bytes);
        }
    }

    #[test]
    fn an_application_is_read_as_written() {
        let application = ApplicationRecord { number: 300, id: "ab12", bytes: b"\xff\x00code", kind: "wasm" };
        let bytes = write_application(application);
        assert_eq!(read_application(&bytes), Ok(application));
        assert_eq!(read_application(&bytes[..bytes.len() - 1]), Err(RecordError::Short));
    }

    #[test]
    fn an_application_of_a_format_without_kinds_is_in_sql() {
        let mut bytes = Vec::new();
        write_number(&mut bytes, 300);
        write_text(&mut bytes, "ab12");
        write_text(&mut bytes, "CREATE APPLICATION …");
        let application =
            ApplicationRecord { number: 300, id: "ab12", bytes: "CREATE APPLICATION …".as_bytes(), kind: "sql" };
        assert_eq!(read_application(&bytes), Ok(application));
        assert_eq!(read_application(&bytes[..bytes.len() - 1]), Err(RecordError::Short));
    }

    #[test]
    fn numbers_have_their_limits() {
        let largest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Reader { bytes: &largest }.number(), Ok(u64::MAX));
        let larger = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(Reader { bytes: &larger }.number(), Err(RecordError::Number));
        for value in [i64::MIN, -1, 0, 1, i64::MAX] {
            let parameters = [(Cow::from("x"), ParameterValue::Int(value))];
            let mut buffer = Vec::new();
            write_query(&mut buffer, &NewQuery { application: 0, name: "", parameters: &parameters, label: None });
            let mut read = Vec::new();
            read_query(&buffer, &mut read).expect("a record just written");
            assert_eq!(read, parameters);
        }
    }
}
