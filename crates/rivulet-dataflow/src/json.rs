//! The mark of columns that hold JSON as text.
//!
//! It is Arrow's canonical extension type `arrow.json`. A column with it is written as it is where the format is JSON.
//! A column of arrays also says the type of their elements, which may be JSON themselves.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Field};

/// The key of an extension type in the metadata of a field.
const EXTENSION: &str = "ARROW:extension:name";
const JSON: &str = "arrow.json";

/// The key of the type of elements in the metadata of a field.
const ELEMENT: &str = "rivulet.element";

/// The name that metadata has for elements that are JSON.
const JSON_ELEMENT: &str = "JSON";

/// The types of other elements, by the names that metadata has for them.
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

/// The field with the marks that both have: what is known of columns whose values become one.
pub fn common_marks(field: Field, other: &Field) -> Field {
    let marks = field.metadata().iter().filter(|(mark, value)| other.metadata().get(*mark) == Some(value));
    let marks = marks.map(|(mark, value)| (mark.clone(), value.clone())).collect();
    field.with_metadata(marks)
}

/// Whether a field has the mark.
pub fn is_json(field: &Field) -> bool {
    field.metadata().get(EXTENSION).is_some_and(|name| name == JSON)
}

/// The field with the mark of arrays in JSON; its type is text. Their elements are null, or like the column `element`:
/// of type `Utf8`, `Int64`, `Float64` or `Boolean`, or marked as JSON. Of any other type only the mark of JSON remains.
pub fn marked_as_array(field: Field, element: &Field) -> Field {
    let known = match is_json(element) {
        true => Some(JSON_ELEMENT),
        false => ELEMENTS.iter().find(|(_, known)| known == element.data_type()).map(|(name, _)| *name),
    };
    let of_element = known.map(|name| (ELEMENT.to_owned(), name.to_owned()));
    field.with_metadata([(EXTENSION.to_owned(), JSON.to_owned())].into_iter().chain(of_element).collect())
}

/// The type of the elements of a column that holds arrays, if it is known and the elements are values without parts.
pub fn element_type(field: &Field) -> Option<DataType> {
    let name = field.metadata().get(ELEMENT)?;
    ELEMENTS.into_iter().find(|(known, _)| known == name).map(|(_, element)| element)
}

/// The column `name` of the elements of an array, with the mark of JSON if they have it. They are texts if the array
/// does not say of which type they are.
pub fn element_field(array: &Field, name: &str) -> Field {
    let field = Field::new(name, element_type(array).unwrap_or(DataType::Utf8), true);
    match array.metadata().get(ELEMENT).is_some_and(|element| element == JSON_ELEMENT) {
        true => marked_as_json(field),
        false => field,
    }
}
