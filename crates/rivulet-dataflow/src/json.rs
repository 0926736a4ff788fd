//! The mark of columns that hold JSON as text.
//!
//! It is Arrow's canonical extension type `arrow.json`. A column with it is written as it is where the format is JSON.

use arrow::datatypes::Field;

/// The key of an extension type in the metadata of a field.
const EXTENSION: &str = "ARROW:extension:name";
const JSON: &str = "arrow.json";

/// The field with the mark; its type is text.
pub fn marked_as_json(field: Field) -> Field {
    field.with_metadata([(EXTENSION.to_owned(), JSON.to_owned())].into())
}

/// Whether a field has the mark.
pub fn is_json(field: &Field) -> bool {
    field.metadata().get(EXTENSION).is_some_and(|name| name == JSON)
}
