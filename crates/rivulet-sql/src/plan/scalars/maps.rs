//! Functions of maps, which are JSON as text: `map_keys`, `map_values` and `map_contains_key`. A text that is no object
//! has no keys: results are null.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanBuilder, StringArray, StringBuilder};
use arrow::datatypes::{DataType, Field};
use datafusion_common::Result;
use rivulet_dataflow::{held_type, map_value, marked_as_array, marked_as_json, part_field};
use rivulet_operators::each_member;

use super::function::Function;
use super::json::append_string;

/// The functions.
pub(super) fn functions() -> [Function; 3] {
    use DataType::{Boolean, Utf8};
    [
        Function::new("map_keys", [vec![Utf8]], Utf8)
            .returning(|field, _| marked_as_array(field.clone(), &field))
            .computed(|columns| {
                // Writing to memory does not fail.
                Ok(arrays(columns[0].as_string(), |key, _, array| append_string(key, array).unwrap_or_default()))
            }),
        Function::new("map_values", [vec![Utf8]], Utf8)
            .returning(|field, arguments| match arguments.first().and_then(|map| value_of(map)) {
                Some(value) => marked_as_array(field, &value),
                None => marked_as_json(field),
            })
            .computed(|columns| Ok(arrays(columns[0].as_string(), |_, value, array| array.push_str(value)))),
        Function::new("map_contains_key", [vec![Utf8, Utf8]], Boolean)
            .computed(|columns| contain(columns[0].as_string(), columns[1].as_string())),
    ]
}

/// The column of the values of a map.
fn value_of(map: &Field) -> Option<Field> {
    match held_type(map)? {
        DataType::Map(entries, _) => map_value(&entries).map(|value| part_field(value, "value")),
        _ => None,
    }
}

/// Arrays of what `append` writes of each member.
fn arrays(texts: &StringArray, append: impl Fn(&str, &str, &mut String)) -> ArrayRef {
    let mut arrays = StringBuilder::with_capacity(texts.len(), texts.len() * 16);
    let mut array = String::new();
    for text in texts {
        array.clear();
        array.push('[');
        let is_object = text.is_some_and(|text| {
            each_member(text, |key, value| {
                array.push_str(if array.len() > 1 { "," } else { "" });
                append(&key, value, &mut array);
            })
        });
        array.push(']');
        arrays.append_option(is_object.then_some(&array));
    }
    Arc::new(arrays.finish())
}

fn contain(texts: &StringArray, keys: &StringArray) -> Result<ArrayRef> {
    let mut results = BooleanBuilder::with_capacity(texts.len());
    for pair in texts.iter().zip(keys) {
        let mut is_found = false;
        let is_object = match pair {
            (Some(text), Some(key)) => each_member(text, |one, _| is_found |= one == key),
            _ => false,
        };
        results.append_option(is_object.then_some(is_found));
    }
    Ok(Arc::new(results.finish()))
}
