//! Columns of arrays. They are read from arrays in JSON, and held as JSON without blanks.
//!
//! What must hold: each element is of the declared type, or null; a payload with another one is refused.

use arrow::array::StringArray;
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

use super::fault::{Fault, Problem};
use super::json::{Reader, append_integer};
use super::number::not_finite;
use super::rows::TextValues;

/// The values of a column under construction.
pub(crate) struct ArrayValues {
    /// `Utf8`, `Int64`, `Float64` or `Boolean`.
    element: DataType,
    texts: TextValues,
    /// Strings that are written with escapes, decoded. Empty between uses.
    scratch: Vec<u8>,
}

impl ArrayValues {
    pub(super) fn new(element: DataType) -> Self {
        Self { element, texts: TextValues::with_capacity(0, 0), scratch: Vec::new() }
    }

    /// Appends the array that begins here with its bracket.
    pub(crate) fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), Fault> {
        let Self { element, texts, scratch } = self;
        texts.push_with(|out| {
            out.push(b'[');
            let mut another = reader.enter(b']');
            while another {
                append_element(reader, element, scratch, out)?;
                another = reader.another(b']')?;
                out.extend_from_slice(if another { b"," } else { b"" });
            }
            out.push(b']');
            Ok(())
        })
    }

    /// Appends the array that a text is.
    pub(super) fn push_text(&mut self, text: &[u8]) -> Result<(), Problem> {
        let mut reader = Reader::new(text);
        reader.skip_whitespace();
        if reader.peek() != b'[' {
            return Err(Problem::ExpectedArray);
        }
        self.read(&mut reader).and_then(|()| reader.finish()).map_err(|fault| fault.problem())
    }

    pub(super) fn push_default(&mut self) {
        self.texts.push_empty();
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        self.texts.truncate(rows);
    }

    pub(super) fn finish(&mut self, nulls: Option<NullBuffer>) -> StringArray {
        self.texts.finish(nulls)
    }
}

/// Takes an element, and appends it to `out`.
fn append_element(
    reader: &mut Reader<'_>,
    element: &DataType,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let at = reader.offset();
    if reader.take_null() {
        out.extend_from_slice(b"null");
        return Ok(());
    }
    let refused = |problem| Fault::new(problem, at);
    match element {
        DataType::Int64 => {
            let (number, text) = reader.number(Problem::ExpectedNumber)?;
            let value = number.to_i64(text).map_err(refused)?;
            append_integer(value.unsigned_abs(), value < 0, out);
            return Ok(());
        }
        DataType::Float64 if reader.peek() == b'"' => {
            let span = reader.string_span(scratch)?;
            let value = not_finite(span.of(reader.payload(), scratch));
            scratch.clear();
            let value = value.ok_or(refused(Problem::ExpectedNumber))?;
            out.extend_from_slice(match value {
                _ if value.is_nan() => b"\"NaN\"",
                _ if value > 0.0 => b"\"Infinity\"",
                _ => b"\"-Infinity\"",
            });
            return Ok(());
        }
        DataType::Float64 => {
            let (number, text) = reader.number(Problem::ExpectedNumber)?;
            number.to_f64(text).map_err(refused)?;
        }
        DataType::Boolean => {
            reader.boolean()?;
        }
        _ if reader.peek() != b'"' => return Err(refused(Problem::ExpectedString)),
        _ => {
            reader.string_span(scratch)?;
            scratch.clear();
        }
    }
    out.extend_from_slice(reader.since(at));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(element: DataType, text: &str) -> Result<String, Problem> {
        let mut values = ArrayValues::new(element);
        values.push_text(text.as_bytes())?;
        Ok(values.finish(None).value(0).to_owned())
    }

    #[test]
    fn arrays_are_checked_and_written_without_blanks() {
        use DataType::{Boolean, Float64, Int64, Utf8};
        for (element, text, expected) in [
            (Utf8, r#" [ "a" , "\"b\u0041, " ,null ] "#, Ok(r#"["a","\"b\u0041, ",null]"#)),
            (Utf8, "[]", Ok("[]")),
            (Utf8, "[1]", Err(Problem::ExpectedString)),
            (Int64, "[1, -2, 3e2, 4.0]", Ok("[1,-2,300,4]")),
            (Int64, "[1.5]", Err(Problem::ExpectedInteger)),
            (Int64, "[[1]]", Err(Problem::ExpectedNumber)),
            (Float64, r#"[1, 2.50, "nan", "-inf"]"#, Ok(r#"[1,2.50,"NaN","-Infinity"]"#)),
            (Float64, r#"["x"]"#, Err(Problem::ExpectedNumber)),
            (Boolean, "[true,false]", Ok("[true,false]")),
            (Boolean, "[tru]", Err(Problem::ExpectedBoolean)),
            (Utf8, "", Err(Problem::ExpectedArray)),
            (Utf8, "[\"a\"", Err(Problem::ExpectedCommaOrBracket)),
            (Utf8, "[\"a\"] x", Err(Problem::TrailingBytes)),
        ] {
            assert_eq!(read(element, text), expected.map(str::to_owned), "{text}");
        }
    }
}
