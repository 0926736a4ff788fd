//! The elements of an array in JSON and the members of an object: read one by one, and put into a column of their type.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow::datatypes::{DataType, Field};
use rivulet_dataflow::{canonical_float, is_json};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Calls `take` with each element of an array in JSON, in order, as it is written there. Returns whether the text is
/// such an array; if it is not, `take` may have been called for some elements.
pub fn each_element<'t>(text: &'t str, take: impl FnMut(&'t str)) -> bool {
    struct Elements<F>(F);
    impl<'t, F: FnMut(&'t str)> Visitor<'t> for Elements<F> {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'t>>(mut self, mut elements: A) -> Result<(), A::Error> {
            while let Some(element) = elements.next_element::<&RawValue>()? {
                (self.0)(element.get());
            }
            Ok(())
        }
    }
    let mut read = serde_json::Deserializer::from_str(text);
    read.deserialize_seq(Elements(take)).and_then(|()| read.end()).is_ok()
}

/// Calls `take` with each key of an object in JSON and with its value as it is written there, in order. Returns whether
/// the text is such an object; if it is not, `take` may have been called for some members.
pub fn each_member<'t>(text: &'t str, take: impl FnMut(Cow<'t, str>, &'t str)) -> bool {
    struct Members<F>(F);
    impl<'t, F: FnMut(Cow<'t, str>, &'t str)> Visitor<'t> for Members<F> {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'t>>(mut self, mut members: A) -> Result<(), A::Error> {
            while let Some(key) = members.next_key_seed(Key)? {
                (self.0)(key, members.next_value::<&RawValue>()?.get());
            }
            Ok(())
        }
    }
    let mut read = serde_json::Deserializer::from_str(text);
    read.deserialize_map(Members(take)).and_then(|()| read.end()).is_ok()
}

/// A key, copied only if it is written with escapes.
struct Key;

impl<'t> DeserializeSeed<'t> for Key {
    type Value = Cow<'t, str>;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'t> Visitor<'t> for Key {
    type Value = Cow<'t, str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'t str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

/// An element as text: a string without its quotes, anything else as it is written; `None` for null.
pub fn element_text(element: &str) -> Option<Cow<'_, str>> {
    match element.as_bytes().first() {
        Some(b'n') => None,
        Some(b'"') if !element.contains('\\') => element.get(1..element.len() - 1).map(Cow::Borrowed),
        Some(b'"') => String::deserialize(&mut serde_json::Deserializer::from_str(element)).ok().map(Cow::Owned),
        _ => Some(Cow::Borrowed(element)),
    }
}

/// An element as number; `None` if it is none. A number that is not finite is written as a string.
pub fn element_number(element: &str) -> Option<f64> {
    let found = match element {
        "\"NaN\"" => f64::NAN,
        "\"Infinity\"" => f64::INFINITY,
        "\"-Infinity\"" => f64::NEG_INFINITY,
        number => number.parse().ok()?,
    };
    Some(canonical_float(found))
}

/// A column of elements under construction.
#[derive(Debug)]
pub enum ElementColumn {
    /// Of type `Utf8`.
    Text(StringBuilder),
    /// Of type `Utf8`, marked as JSON: as it is written.
    Json(StringBuilder),
    /// Of type `Int64`.
    Integer(Int64Builder),
    /// Of type `Float64`.
    Float(Float64Builder),
    /// Of type `Boolean`.
    Boolean(BooleanBuilder),
}

impl ElementColumn {
    /// An empty column like `element`. Elements of a type that arrays do not have are texts.
    pub fn new(element: &Field) -> Self {
        match element.data_type() {
            _ if is_json(element) => Self::Json(StringBuilder::new()),
            DataType::Int64 => Self::Integer(Int64Builder::new()),
            DataType::Float64 => Self::Float(Float64Builder::new()),
            DataType::Boolean => Self::Boolean(BooleanBuilder::new()),
            _ => Self::Text(StringBuilder::new()),
        }
    }

    /// Appends an element as it is written in JSON; null if there is none, or if it is not of the type.
    pub fn push(&mut self, element: Option<&str>) {
        match self {
            Self::Text(texts) => texts.append_option(element.and_then(element_text)),
            Self::Json(texts) => texts.append_option(element.filter(|element| *element != "null")),
            Self::Integer(numbers) => numbers.append_option(element.and_then(|element| element.parse().ok())),
            Self::Float(numbers) => numbers.append_option(element.and_then(element_number)),
            Self::Boolean(values) => values.append_option(element.and_then(|element| element.parse().ok())),
        }
    }

    /// Appends a text to a column of texts, and null to another one.
    pub fn push_text(&mut self, text: &str) {
        match self {
            Self::Text(texts) | Self::Json(texts) => texts.append_value(text),
            other => other.push(None),
        }
    }

    /// The column; none of it is left here.
    pub fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Text(texts) | Self::Json(texts) => Arc::new(texts.finish()),
            Self::Integer(numbers) => Arc::new(numbers.finish()),
            Self::Float(numbers) => Arc::new(numbers.finish()),
            Self::Boolean(values) => Arc::new(values.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Float64Type, Int64Type};

    use super::*;

    fn elements(text: &str) -> Option<Vec<&str>> {
        let mut found = Vec::new();
        each_element(text, |element| found.push(element)).then_some(found)
    }

    #[test]
    fn elements_are_as_they_are_written() {
        assert_eq!(
            elements(r#" [1, "a,]" ,[2,3], {"b":[4]},null ] "#).unwrap(),
            ["1", "\"a,]\"", "[2,3]", "{\"b\":[4]}", "null"]
        );
        assert_eq!(elements("[]"), Some(vec![]));
        for text in ["", "1", "{}", "[1", "[1]]", "[1,]", "[a]", "null", &"[".repeat(10_000)] {
            assert_eq!(elements(text), None, "{text}");
        }
    }

    #[test]
    fn members_are_as_they_are_written() {
        let members = |text: &str| {
            let mut found = String::new();
            each_member(text, |key, value| found.push_str(&format!("{key}={value};"))).then_some(found)
        };
        let text = r#" {"a": 1, "b\u0063": {"d": [2]}, "a": "x", "": null} "#;
        assert_eq!(members(text).as_deref(), Some(r#"a=1;bc={"d": [2]};a="x";=null;"#));
        assert_eq!(members("{}").as_deref(), Some(""));
        for text in ["", "[]", "null", "{", "{1:2}", "{\"a\"}", "{\"a\":1}}", "{\"a\":1,}", "{\"a\":x}"] {
            assert_eq!(members(text), None, "{text}");
        }
    }

    #[test]
    fn elements_have_values_of_their_type() {
        let column = |element: DataType, of: &[Option<&str>]| {
            let mut column = ElementColumn::new(&Field::new("element", element, true));
            of.iter().for_each(|one| column.push(*one));
            column.finish()
        };
        let texts = column(DataType::Utf8, &[Some(r#""a\u0062\"""#), Some("null"), Some("1.50"), None]);
        let texts: Vec<_> = texts.as_string::<i32>().iter().collect();
        assert_eq!(texts, [Some("ab\""), None, Some("1.50"), None]);
        let numbers = column(DataType::Int64, &[Some("-7"), Some("1.5"), Some("null")]);
        assert_eq!((numbers.as_primitive::<Int64Type>().value(0), numbers.null_count()), (-7, 2));
        let numbers = column(DataType::Float64, &[Some("1e3"), Some("\"Infinity\""), Some("\"x\"")]);
        assert_eq!(numbers.as_primitive::<Float64Type>().values()[..2], [1000.0, f64::INFINITY]);
        assert_eq!(numbers.null_count(), 1);
        assert_eq!(column(DataType::Boolean, &[Some("true"), Some("1")]).null_count(), 1);
    }
}
