//! Columns of values with parts. They are held as JSON, whatever payloads have: JSON ([`nested`](super::nested)), or
//! the elements of arrays one by one.
//!
//! What must hold: each element is of the declared type, or null; a payload with another one is refused.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use arrow::error::ArrowError;

use rivulet_dataflow::{element_type, held_type, is_json};

use super::cells::Cell;
use super::fault::{Fault, Problem};
use super::json::{Reader, append_integer, append_json_string};
use super::nested::{Buffers, Part, append_float};
use super::number::not_finite;
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
        Some(Self { part, texts: TextValues::with_capacity(0, 0), buffers: Buffers::default() })
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

    /// Appends an array without elements.
    pub(crate) fn push_list(&mut self) -> Result<(), Problem> {
        self.texts.push(b"[]")
    }

    /// Adds null to the array that was pushed last.
    pub(crate) fn add_null(&mut self) -> Result<(), Problem> {
        self.add(|out| out.extend_from_slice(b"null"))
    }

    /// Adds a truth value to the array that was pushed last.
    pub(crate) fn add_boolean(&mut self, value: bool) -> Result<(), Problem> {
        match self.element() {
            Some(Part::Boolean) => self.add(|out| out.extend_from_slice(if value { b"true" } else { b"false" })),
            _ => Err(Problem::BinaryWireType),
        }
    }

    /// Adds a whole number to the array that was pushed last.
    pub(crate) fn add_integer(&mut self, value: i64) -> Result<(), Problem> {
        match self.element() {
            Some(Part::Integer) => self.add(|out| append_integer(value.unsigned_abs(), value < 0, out)),
            _ => self.add_float(value as f64),
        }
    }

    /// Adds a number to the array that was pushed last.
    pub(crate) fn add_float(&mut self, value: f64) -> Result<(), Problem> {
        match self.element() {
            Some(Part::Float) => self.add(|out| append_float(value, out)),
            _ => Err(Problem::BinaryWireType),
        }
    }

    /// Adds a text, unless it is not UTF-8, to the array that was pushed last.
    pub(crate) fn add_text(&mut self, text: &[u8]) -> Result<(), Problem> {
        match (self.element(), std::str::from_utf8(text)) {
            (Some(Part::Text), Ok(text)) => self.add(|out| append_json_string(text, out)),
            (Some(Part::Text), Err(_)) => Err(Problem::InvalidUtf8),
            _ => Err(Problem::BinaryWireType),
        }
    }

    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Problem> {
        self.texts.extend(|out| {
            out.pop();
            // No element ends with the bracket that begins an array.
            if out.last() != Some(&b'[') {
                out.push(b',');
            }
            write(out);
            out.push(b']');
        })
    }

    /// What the elements of an array are.
    fn element(&self) -> Option<&Part> {
        match &self.part {
            Part::Array(element) => Some(element),
            _ => None,
        }
    }

    /// Whether the values are arrays of texts.
    pub(crate) fn are_texts(&self) -> bool {
        self.element() == Some(&Part::Text)
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

/// Gives each element of an array in JSON to the caller as a cell of the type `element`, which is `Utf8`, `Int64`,
/// `Float64` or `Boolean`. Values that are no texts are given as they are written where texts are wanted.
///
/// # Errors
/// The text is no array, or an element is of another type. Elements before it were given.
pub(crate) fn each_element(text: &str, element: &DataType, mut each: impl FnMut(Cell<'_>)) -> Result<(), Fault> {
    let (mut reader, mut scratch) = (Reader::new(text.as_bytes()), Vec::new());
    if reader.peek() != b'[' {
        return Err(reader.fault(Problem::ExpectedArray));
    }
    let mut another = reader.enter(b']');
    while another {
        let at = reader.offset();
        let refused = |problem| Fault::new(problem, at);
        if reader.take_null() {
            each(Cell::Null);
        } else if reader.peek() == b'"' {
            scratch.clear();
            let span = reader.string_span(&mut scratch)?;
            let text = span.of(reader.payload(), &scratch);
            match element {
                DataType::Utf8 => {
                    each(Cell::Text(std::str::from_utf8(text).map_err(|_| refused(Problem::InvalidUtf8))?))
                }
                DataType::Float64 => each(Cell::Float64(not_finite(text).ok_or(refused(Problem::ExpectedNumber))?)),
                _ => return Err(refused(Problem::ExpectedNumber)),
            }
        } else {
            match element {
                DataType::Boolean => each(Cell::Boolean(reader.boolean()?)),
                DataType::Utf8 => {
                    reader.skip_value(1)?;
                    let text = std::str::from_utf8(reader.since(at)).map_err(|_| refused(Problem::InvalidUtf8))?;
                    each(Cell::Text(text));
                }
                _ => {
                    let (number, text) = reader.number(Problem::ExpectedNumber)?;
                    each(match element {
                        DataType::Int64 => Cell::Int64(number.to_i64(text).map_err(refused)?),
                        _ => Cell::Float64(number.to_f64(text).map_err(refused)?),
                    });
                }
            }
        }
        another = reader.another(b']')?;
    }
    reader.finish()
}

/// Whether the values of a column are JSON that may be arrays.
pub(crate) fn may_be_array(column: &Field) -> bool {
    is_json(column) && matches!(held_type(column), None | Some(DataType::List(_)))
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

/// Whether arrays of one type may be read as arrays whose elements are of another: the same, with fewer bits.
pub(crate) fn are_arrays_of(found: &DataType, element: &DataType) -> bool {
    let DataType::List(values) = found else { return false };
    match (values.data_type(), element) {
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, DataType::Utf8) => true,
        (whole, DataType::Int64) => whole.is_integer() && *whole != DataType::UInt64,
        (number, DataType::Float64) => number.is_floating() || number.is_integer(),
        (found, element) => found == element,
    }
}

/// A column of lists, for which [`are_arrays_of`] holds, as arrays in JSON.
///
/// # Errors
/// The texts are too long for one column.
pub(crate) fn lists_as_json(lists: &ArrayRef, element: &DataType) -> Result<ArrayRef, ArrowError> {
    let lists = lists.as_list::<i32>();
    let values = cast(lists.values(), element)?;
    let mut texts = TextValues::with_capacity(lists.len(), lists.len() * 16);
    for row in 0..lists.len() {
        let (start, end) = (lists.value_offsets()[row] as usize, lists.value_offsets()[row + 1] as usize);
        let places = if lists.is_valid(row) { start..end } else { 0..0 };
        let written = texts.push_with(|out| {
            out.push(b'[');
            for place in places.clone() {
                out.extend_from_slice(if place > places.start { b"," } else { b"" });
                append_value(&values, place, out);
            }
            out.push(b']');
            Ok(())
        });
        written.map_err(|_| ArrowError::ComputeError("the arrays of a batch are too long".into()))?;
    }
    Ok(Arc::new(texts.finish(lists.nulls().cloned())))
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

fn append_value(values: &ArrayRef, place: usize, out: &mut Vec<u8>) {
    if values.is_null(place) {
        return out.extend_from_slice(b"null");
    }
    match values.data_type() {
        DataType::Int64 => {
            let value = values.as_primitive::<Int64Type>().value(place);
            append_integer(value.unsigned_abs(), value < 0, out);
        }
        DataType::Float64 => append_float(values.as_primitive::<Float64Type>().value(place), out),
        DataType::Boolean => out.extend_from_slice(values.as_boolean().value(place).to_string().as_bytes()),
        _ => append_json_string(values.as_string::<i32>().value(place), out),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ListArray, ListBuilder, StringBuilder};
    use arrow::datatypes::Int32Type;

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

    #[test]
    fn elements_are_added_one_by_one_and_given_again() {
        let mut values = of(DataType::Utf8);
        values.push_list().unwrap();
        values.add_text("[\"é\n".as_bytes()).unwrap();
        values.add_null().unwrap();
        assert_eq!(values.add_integer(1), Err(Problem::BinaryWireType));
        assert_eq!(values.add_text(b"\xff"), Err(Problem::InvalidUtf8));
        values.push_list().unwrap();
        let texts = values.finish(None);
        assert_eq!((texts.value(0), texts.value(1)), ("[\"[\\\"é\\n\",null]", "[]"));
        let mut numbers = of(DataType::Float64);
        numbers.push_list().unwrap();
        [1.5, f64::NAN, -0.0].into_iter().for_each(|value| numbers.add_float(value).unwrap());
        numbers.add_integer(-3).unwrap();
        assert_eq!(numbers.finish(None).value(0), r#"[1.5,"NaN",0.0,-3.0]"#);
        let given = |text: &str, element| {
            let mut given = Vec::new();
            let read = each_element(text, &element, |cell| given.push(format!("{cell:?}")));
            read.map(|()| given.join(" ")).map_err(Fault::problem)
        };
        assert_eq!(given(texts.value(0), DataType::Utf8), Ok("Text(\"[\\\"é\\n\") Null".into()));
        assert_eq!(
            given(r#"["a",{"b":[1]},2]"#, DataType::Utf8),
            Ok(r#"Text("a") Text("{\"b\":[1]}") Text("2")"#.into())
        );
        assert_eq!(given(r#"[1,"-Infinity"]"#, DataType::Float64), Ok("Float64(1.0) Float64(-inf)".into()));
        assert_eq!(given("[1,-2]", DataType::Int64), Ok("Int64(1) Int64(-2)".into()));
        assert_eq!(given("[true]", DataType::Boolean), Ok("Boolean(true)".into()));
        for (text, element, expected) in [
            ("{}", DataType::Utf8, Problem::ExpectedArray),
            ("[1.5]", DataType::Int64, Problem::ExpectedInteger),
            ("[1", DataType::Int64, Problem::ExpectedCommaOrBracket),
            (r#"["x"]"#, DataType::Float64, Problem::ExpectedNumber),
        ] {
            assert_eq!(given(text, element), Err(expected), "{text}");
        }
    }

    #[test]
    fn lists_are_written_as_arrays() {
        let numbers = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None, Some(-3)]),
            None,
            Some(vec![]),
        ]);
        assert!(are_arrays_of(numbers.data_type(), &DataType::Int64));
        assert!(!are_arrays_of(numbers.data_type(), &DataType::Utf8));
        let numbers: ArrayRef = Arc::new(numbers);
        let found = lists_as_json(&numbers, &DataType::Float64).unwrap();
        let found: Vec<_> = found.as_string::<i32>().iter().collect();
        assert_eq!(found, [Some("[1.0,null,-3.0]"), None, Some("[]")]);
        let floats: ArrayRef =
            Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>([Some(vec![Some(f64::NAN), Some(-0.0)])]));
        assert_eq!(lists_as_json(&floats, &DataType::Float64).unwrap().as_string::<i32>().value(0), r#"["NaN",0.0]"#);
        let mut words = ListBuilder::new(StringBuilder::new());
        words.values().append_value("a\"b");
        words.append(true);
        let words: ArrayRef = Arc::new(words.finish());
        let found = lists_as_json(&words, &DataType::Utf8).unwrap();
        assert_eq!(found.as_string::<i32>().value(0), r#"["a\"b"]"#);
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
