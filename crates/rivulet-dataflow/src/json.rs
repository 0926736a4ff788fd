//! The mark of columns that hold JSON as text.
//!
//! It is Arrow's canonical extension type `arrow.json`. A column with it is written as it is where the format is JSON.
//! A column of arrays also says the type of their elements.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Field};

/// The key of an extension type in the metadata of a field.
const EXTENSION: &str = "ARROW:extension:name";
const JSON: &str = "arrow.json";

/// The key of the type of elements in the metadata of a field.
const ELEMENT: &str = "rivulet.element";

/// The types of elements, by the names that metadata has for them.
const ELEMENTS: [(&str, DataType); 4] = [
    ("TEXT", DataType::Utf8),
    ("BIGINT", DataType::Int64),
    ("DOUBLE", DataType::Float64),
    ("BOOLEAN", DataType::Boolean),
];

/// The field with the mark; its type is text.
pub fn marked_as_json(field: Field) -> Field {
    field.with_metadata([(EXTENSION.to_owned(), JSON.to_owned())].into())
}

/// The field without any mark. Saved state has such fields: there a mark says nothing.
pub fn unmarked(field: &Field) -> Field {
    field.clone().with_metadata(HashMap::new())
}

/// Whether a field has the mark.
pub fn is_json(field: &Field) -> bool {
    field.metadata().get(EXTENSION).is_some_and(|name| name == JSON)
}

/// The field with the mark of arrays in JSON; its type is text. Their elements are of the type `element`, or null:
/// `Utf8`, `Int64`, `Float64` or `Boolean`. Of any other type only the mark of JSON remains.
pub fn marked_as_array(field: Field, element: &DataType) -> Field {
    let known = ELEMENTS.iter().find(|(_, known)| known == element);
    let of_element = known.map(|(name, _)| (ELEMENT.to_owned(), (*name).to_owned()));
    field.with_metadata([(EXTENSION.to_owned(), JSON.to_owned())].into_iter().chain(of_element).collect())
}

/// The type of the elements of a column that holds arrays, if it is known.
pub fn element_type(field: &Field) -> Option<DataType> {
    let name = field.metadata().get(ELEMENT)?;
    ELEMENTS.into_iter().find(|(known, _)| known == name).map(|(_, element)| element)
}
