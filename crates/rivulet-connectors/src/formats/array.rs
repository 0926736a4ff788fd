//! Columns of values with parts. They are held as JSON, whatever payloads have.
//!
//! What must hold: each part is of its declared type, or null; a payload with another one is refused.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{DataType, Field};

use rivulet_dataflow::{element_type, held_type, is_json};

use super::fault::{Fault, Problem};
use super::json::Reader;
use super::nested::Buffers;
use super::parts::{Part, PartWriter};
use super::texts::TextValues;

/// The values of a column under construction.
pub(crate) struct NestedValues {
    part: Part,
    texts: TextValues,
    buffers: Buffers,
}

impl NestedValues {
    /// An empty column of values of this type; `None` if it has no parts that are known here.
    pub(crate) fn new(held: &DataType) -> Option<Self> {
        let part = Part::of(&Field::new("", held.clone(), true)).filter(|_| held.is_nested())?;
        Some(Self::of(part))
    }

    /// An empty column of such values.
    pub(super) fn of(part: Part) -> Self {
        Self { part, texts: TextValues::with_capacity(0, 0), buffers: Buffers::default() }
    }

    /// The byte that begins a value, and the problem of another one.
    pub(crate) fn begin(&self) -> (u8, Problem) {
        self.part.begin()
    }

    /// Appends the value that begins here, with [`NestedValues::begin`].
    pub(crate) fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), Fault> {
        let Self { part, texts, buffers } = self;
        texts.push_with(|out| buffers.read(reader, part, out))
    }

    /// Appends the value that `write` writes, from a payload of this many bytes.
    pub(crate) fn push_with(
        &mut self,
        payload_bytes: usize,
        write: impl FnOnce(&Part, &mut PartWriter, &mut Vec<u8>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Self { part, texts, buffers } = self;
        texts.push_with(|out| {
            buffers.writer.begin(payload_bytes, out);
            write(part, &mut buffers.writer, out)
        })
    }

    /// Appends the value that a text is in JSON.
    pub(super) fn push_text(&mut self, text: &[u8]) -> Result<(), Problem> {
        let mut reader = Reader::new(text);
        reader.skip_whitespace();
        let (first, problem) = self.begin();
        if reader.peek() != first {
            return Err(problem);
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

/// What the values of a column are that a format may have as values with parts. JSON of which no more is known may be
/// arrays of any JSON.
pub(crate) fn part_of(column: &Field) -> Option<Part> {
    match held_type(column) {
        Some(_) => Part::of_column(column),
        None => is_json(column).then(|| Part::Array(Box::new(Part::Any))),
    }
}

/// The type of a column in words.
pub(crate) fn type_of(column: &Field) -> String {
    match held_type(column) {
        Some(DataType::List(_)) if let Some(element) = element_type(column) => format!("an array of {element}"),
        Some(DataType::List(_)) => "an array of values with parts".into(),
        Some(DataType::Map(..)) => "a map".into(),
        Some(_) => "a row".into(),
        None => column.data_type().to_string(),
    }
}

/// The values of a type with parts that texts are in JSON, and which of the texts are such values. The others are null.
/// `None` if there is no such type.
pub(crate) fn texts_as_nested(texts: &StringArray, held: &DataType) -> Option<(ArrayRef, BooleanBuffer)> {
    let mut values = NestedValues::new(held)?;
    let read = |row: usize| {
        let is_read = texts.is_valid(row) && values.push_text(texts.value(row).as_bytes()).is_ok();
        if !is_read {
            values.truncate(row);
            values.push_default();
        }
        is_read
    };
    let valid: BooleanBuffer = (0..texts.len()).map(read).collect();
    let fits = match texts.nulls() {
        Some(nulls) => &valid | &!nulls.inner(),
        None => valid.clone(),
    };
    Some((Arc::new(values.finish(Some(NullBuffer::new(valid)))), fits))
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;

    use super::*;

    fn of(element: DataType) -> NestedValues {
        NestedValues::new(&DataType::new_list(element, true)).expect("arrays have these elements")
    }

    fn read(element: DataType, text: &str) -> Result<String, Problem> {
        let mut values = of(element);
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
            (Float64, "[1, 2.50, null]", Ok("[1,2.50,null]")),
            (Float64, r#"[1, "nan"]"#, Err(Problem::NotFinite)),
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

    #[test]
    fn texts_that_are_no_arrays_are_told_apart() {
        let texts = StringArray::from(vec![Some("[1, 2]"), None, Some("[1"), Some("[true]"), Some("[]")]);
        let (arrays, fits) = texts_as_nested(&texts, &DataType::new_list(DataType::Int64, true)).unwrap();
        let arrays: Vec<_> = arrays.as_string::<i32>().iter().collect();
        assert_eq!(arrays, [Some("[1,2]"), None, None, None, Some("[]")]);
        assert_eq!(fits.iter().collect::<Vec<_>>(), [true, true, false, false, true]);
    }
}
