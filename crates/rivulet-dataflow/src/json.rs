//! The marks of columns that hold JSON as text.
//!
//! The first is Arrow's canonical extension type `arrow.json`. A column with it is written as it is where the format is
//! JSON. The second says what the texts are: arrays, maps (objects with any keys) or rows (objects with these fields),
//! as an Arrow type. A part of it may be any JSON: that is text with the first mark.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};

/// The key of an extension type in the metadata of a field.
const EXTENSION: &str = "ARROW:extension:name";
const JSON: &str = "arrow.json";

/// The key of the type that the texts are of, in the metadata of a field.
const TYPE: &str = "rivulet.type";

/// The name that metadata has for any JSON.
const ANY: &str = "JSON";

/// The types of values without parts, by the names that metadata has for them.
const PLAIN: [(&str, DataType); 4] = [
    ("TEXT", DataType::Utf8),
    ("BIGINT", DataType::Int64),
    ("DOUBLE", DataType::Float64),
    ("BOOLEAN", DataType::Boolean),
];

/// The names of the entries of a map, of their keys and their values.
const ENTRIES: [&str; 3] = ["entries", "key", "value"];

/// The field with the mark; its type is text.
pub fn marked_as_json(field: Field) -> Field {
    field.with_metadata([(EXTENSION.to_owned(), JSON.to_owned())].into())
}

/// The field with the marks of JSON of this type, which is `List`, `Map` or `Struct`; its own type is text. Only the
/// mark of JSON remains if a part is neither JSON nor `Utf8`, `Int64`, `Float64` or `Boolean`.
pub fn marked_as(field: Field, held: &DataType) -> Field {
    let mut name = String::new();
    let of_type = append_name(&Field::new("", held.clone(), true), &mut name).then(|| (TYPE.to_owned(), name));
    field.with_metadata([(EXTENSION.to_owned(), JSON.to_owned())].into_iter().chain(of_type).collect())
}

/// The field with the marks of arrays in JSON whose elements are like the column `element`; its type is text. Only the
/// mark of JSON remains if that is of a type that no part has.
pub fn marked_as_array(field: Field, element: &Field) -> Field {
    match as_part(element, "item") {
        Some(element) => marked_as(field, &DataType::List(Arc::new(element))),
        None => marked_as_json(field),
    }
}

/// The field with the marks of maps in JSON whose values are like the column `value`; its type is text. Values of a
/// type that no part has are any JSON.
pub fn marked_as_map(field: Field, value: &Field) -> Field {
    marked_as(field, &map_of(as_part(value, "").unwrap_or_else(any_json)))
}

/// The field with the marks of rows in JSON whose fields are like these columns, by their names; its type is text.
/// Fields of a type that no part has are any JSON.
pub fn marked_as_row<'f>(field: Field, fields: impl IntoIterator<Item = &'f Field>) -> Field {
    let part = |column: &Field| as_part(column, column.name()).unwrap_or_else(any_json).with_name(column.name());
    marked_as(field, &DataType::Struct(fields.into_iter().map(part).collect()))
}

/// The type of maps from texts to such values.
pub fn map_of(value: Field) -> DataType {
    let [entries, key, name] = ENTRIES;
    let fields = Fields::from(vec![Field::new(key, DataType::Utf8, false), value.with_name(name)]);
    DataType::Map(Arc::new(Field::new(entries, DataType::Struct(fields), false)), false)
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

/// The type of the values of a column that holds JSON, if it is known: `List`, `Map` or `Struct`.
pub fn held_type(field: &Field) -> Option<DataType> {
    let mut rest = field.metadata().get(TYPE)?.as_str();
    let held = take_type(&mut rest)?;
    rest.is_empty().then(|| held.data_type().clone())
}

/// The type of the elements of a column that holds arrays, if it is known and the elements are values without parts.
pub fn element_type(field: &Field) -> Option<DataType> {
    match held_type(field)? {
        DataType::List(element) if !is_json(&element) && !element.data_type().is_nested() => {
            Some(element.data_type().clone())
        }
        _ => None,
    }
}

/// The column `name` of the elements of an array, with the marks of JSON if they have them. They are texts if the array
/// does not say of which type they are.
pub fn element_field(array: &Field, name: &str) -> Field {
    match held_type(array) {
        Some(DataType::List(element)) => part_field(&element, name),
        _ => Field::new(name, DataType::Utf8, true),
    }
}

/// The column `name` of the members of an object under this key; any of them, if the key is not known. `None` if the
/// object is a row without such a field. They are texts if the object does not say of which type they are.
pub fn member_field(object: &Field, key: Option<&str>, name: &str) -> Option<Field> {
    match (held_type(object), key) {
        (Some(DataType::Map(entries, _)), _) => map_value(&entries).map(|value| part_field(value, name)),
        (Some(DataType::Struct(fields)), Some(key)) => {
            fields.iter().find(|field| field.name() == key).map(|field| part_field(field, name))
        }
        _ => Some(Field::new(name, DataType::Utf8, true)),
    }
}

/// The values of a map, whose entries these are.
pub fn map_value(entries: &Field) -> Option<&Field> {
    match entries.data_type() {
        DataType::Struct(fields) => fields.get(1).map(Arc::as_ref),
        _ => None,
    }
}

/// A part of a type as a column: text with marks if it has parts itself.
pub fn part_field(part: &Field, name: &str) -> Field {
    match part.data_type().is_nested() {
        true => marked_as(Field::new(name, DataType::Utf8, true), part.data_type()),
        false => Field::new(name, part.data_type().clone(), true).with_metadata(part.metadata().clone()),
    }
}

/// A part that may be any JSON.
pub fn any_json() -> Field {
    marked_as_json(Field::new("", DataType::Utf8, true))
}

/// A column as a part of a type; `None` if parts cannot be of its type.
fn as_part(column: &Field, name: &str) -> Option<Field> {
    let is_plain = PLAIN.iter().any(|(_, plain)| plain == column.data_type());
    match held_type(column) {
        Some(held) => Some(Field::new(name, held, true)),
        None if is_json(column) => Some(any_json().with_name(name)),
        None => is_plain.then(|| Field::new(name, column.data_type().clone(), true)),
    }
}

/// Appends the name that metadata has for the type of a field. Returns whether it has one.
fn append_name(field: &Field, out: &mut String) -> bool {
    match field.data_type() {
        _ if is_json(field) => out.push_str(ANY),
        DataType::List(element) => {
            out.push_str("ARRAY<");
            if !append_name(element, out) {
                return false;
            }
            out.push('>');
        }
        DataType::Map(entries, _) => {
            out.push_str("MAP<");
            if !map_value(entries).is_some_and(|value| append_name(value, out)) {
                return false;
            }
            out.push('>');
        }
        DataType::Struct(fields) => {
            out.push_str("ROW<");
            for field in fields {
                // Lengths need no quotes.
                out.push_str(&format!("{}:{}", field.name().len(), field.name()));
                if !append_name(field, out) {
                    return false;
                }
                out.push(',');
            }
            out.push('>');
        }
        other => match PLAIN.iter().find(|(_, plain)| plain == other) {
            Some((name, _)) => out.push_str(name),
            None => return false,
        },
    }
    true
}

/// Takes a type by its name in metadata, as a field without a name.
fn take_type(rest: &mut &str) -> Option<Field> {
    let take = |rest: &mut &str, what: &str| match rest.strip_prefix(what) {
        Some(behind) => {
            *rest = behind;
            true
        }
        None => false,
    };
    let of_type = |data_type| Some(Field::new("", data_type, true));
    if take(rest, ANY) {
        return Some(any_json());
    }
    if let Some((_, plain)) = PLAIN.into_iter().find(|(name, _)| take(rest, name)) {
        return of_type(plain);
    }
    if take(rest, "ARRAY<") {
        let element = take_type(rest)?.with_name("item");
        return take(rest, ">").then(|| of_type(DataType::List(Arc::new(element))))?;
    }
    if take(rest, "MAP<") {
        let value = take_type(rest)?;
        return take(rest, ">").then(|| of_type(map_of(value)))?;
    }
    let mut fields = Vec::new();
    if !take(rest, "ROW<") {
        return None;
    }
    while !take(rest, ">") {
        let (length, behind) = rest.split_once(':')?;
        let (name, behind) = behind.split_at_checked(length.parse().ok()?)?;
        *rest = behind;
        fields.push(take_type(rest)?.with_name(name));
        if !take(rest, ",") {
            return None;
        }
    }
    of_type(DataType::Struct(fields.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(data_type: DataType) -> Field {
        Field::new("column", data_type, true)
    }

    #[test]
    fn the_mark_names_the_type() {
        let text = || column(DataType::Utf8);
        let any = marked_as_json(text());
        let number = column(DataType::Float64).with_name("a,\u{e9}>:1");
        let row = marked_as_row(text(), [&number, &text().with_name(""), &any.clone().with_name("any")]);
        let map = marked_as_map(text(), &row);
        let array = marked_as_array(text(), &map);
        for field in [&row, &map, &array, &marked_as_row(text(), [])] {
            let held = held_type(field).expect("the type is known");
            assert_eq!(marked_as(text(), &held), *field);
            assert!(is_json(field));
        }
        assert_eq!(element_field(&array, "column"), map);
        assert_eq!(member_field(&map, None, "column"), Some(row.clone()));
        assert_eq!(member_field(&row, Some("any"), "column"), Some(any.clone()));
        assert_eq!(member_field(&row, Some(number.name()), "n"), Some(number.clone().with_name("n")));
        assert_eq!(member_field(&row, Some("other"), "column"), None);
        assert_eq!((element_type(&array), element_type(&marked_as_array(text(), &any))), (None, None));
        assert_eq!(element_type(&marked_as_array(text(), &number)), Some(DataType::Float64));
    }

    #[test]
    fn a_type_without_a_name_is_json() {
        let text = || column(DataType::Utf8);
        let dates = marked_as_array(text(), &column(DataType::Date32));
        assert_eq!((&dates, element_field(&dates, "column")), (&marked_as_json(text()), text()));
        let (any, day) = (marked_as_json(text()), column(DataType::Date32));
        assert_eq!(marked_as(text(), &DataType::new_list(DataType::Date32, true)), any);
        assert_eq!(common_marks(dates, &marked_as_array(text(), &text())), any);
        assert_eq!(member_field(&marked_as_row(text(), [&day]), Some("column"), "column"), Some(any));
        for broken in ["", "ROW<", "ROW<9:a>", "ARRAY<TEXT", "ARRAY<TEXT>x", "DATE"] {
            let marks = [(TYPE.to_owned(), broken.to_owned())];
            assert_eq!(held_type(&text().with_metadata(marks.into())), None, "{broken}");
        }
    }
}
