//! Functions of arrays, which are JSON as text: `string_to_array`, `array_element` (`array[1]`, and `map['key']` of
//! maps and rows), `cardinality`, `array_contains` and `array_to_string`.
//!
//! An element has the type that the column of the array says ([`element_field`]), or is a text, and so is a member of a
//! map or row ([`member_field`]). A text that is no array has no elements: results are null.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanBuilder, Int64Builder, StringArray, StringBuilder};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use datafusion_common::{Result, exec_err};
use datafusion_expr::ReturnFieldArgs;
use rivulet_dataflow::{element_field, held_type, marked_as_array, member_field};
use rivulet_operators::{ElementColumn, each_element, each_member, element_number, element_text};
use rivulet_relational::RelationalError;

use super::function::Function;
use super::json::append_string;
use crate::value::type_name;

/// The longest array or text of a row, in bytes.
const RESULT_BYTES_MAX: usize = 1 << 20;

/// The functions.
pub(super) fn functions() -> [Function; 5] {
    use DataType::{Boolean, Float64, Int64, Utf8};
    let values = [Utf8, Int64, Float64, Boolean];
    [
        Function::new("string_to_array", [vec![Utf8, Utf8]], Utf8)
            .returning(|field, _| marked_as_array(field.clone(), &field))
            .computed(|columns| split(columns[0].as_string(), columns[1].as_string())),
        Function::new("array_element", [vec![Utf8, Int64], vec![Utf8, Utf8]], Utf8)
            .also("element_at")
            .returning_by(|field, arguments| part_of(&field, arguments))
            .computed_as(|columns, part| match columns[1].as_string_opt() {
                Some(keys) => Ok(members(columns[0].as_string(), keys, part)),
                None => Ok(elements(columns[0].as_string(), &columns[1], part)),
            }),
        Function::new("cardinality", [vec![Utf8]], Int64)
            .also("array_length")
            .computed(|columns| Ok(lengths(columns[0].as_string()))),
        Function::new("array_contains", values.map(|value| vec![Utf8, value]), Boolean)
            .also("array_has")
            .computed(|columns| contain(columns[0].as_string(), &columns[1])),
        Function::new("array_to_string", [vec![Utf8, Utf8]], Utf8)
            .also("array_join")
            .computed(|columns| joined(columns[0].as_string(), columns[1].as_string())),
    ]
}

/// The parts of each text as an array. An empty text has none, and an empty delimiter splits nothing.
fn split(texts: &StringArray, delimiters: &StringArray) -> Result<ArrayRef> {
    let mut arrays = StringBuilder::with_capacity(texts.len(), texts.len() * 16);
    let mut array = String::new();
    for pair in texts.iter().zip(delimiters) {
        let (Some(text), Some(delimiter)) = pair else {
            arrays.append_null();
            continue;
        };
        array.clear();
        array.push('[');
        let whole = (delimiter.is_empty() && !text.is_empty()).then_some(text);
        let parts = (!delimiter.is_empty() && !text.is_empty()).then(|| text.split(delimiter));
        for (number, part) in whole.into_iter().chain(parts.into_iter().flatten()).enumerate() {
            array.push_str(if number == 0 { "" } else { "," });
            // Writing to memory does not fail.
            let _ = append_string(part, &mut array);
            if array.len() > RESULT_BYTES_MAX {
                return exec_err!("the array from string_to_array has more than {RESULT_BYTES_MAX} bytes");
            }
        }
        let _ = array.write_char(']');
        arrays.append_value(&array);
    }
    Ok(Arc::new(arrays.finish()))
}

fn lengths(texts: &StringArray) -> ArrayRef {
    let mut lengths = Int64Builder::with_capacity(texts.len());
    for text in texts {
        let mut length = 0;
        let has_parts = text.is_some_and(|text| match is_object(text) {
            true => each_member(text, |_, _| length += 1),
            false => each_element(text, |_| length += 1),
        });
        lengths.append_option(has_parts.then_some(length));
    }
    Arc::new(lengths.finish())
}

fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The column of a part: of an element of an array, or of a member of a map or row.
fn part_of(field: &Field, arguments: &ReturnFieldArgs<'_>) -> Result<Field> {
    let [whole, key] = arguments.arg_fields else { return Ok(field.clone()) };
    let constant = arguments.scalar_arguments.get(1).copied().flatten().and_then(|key| key.try_as_str().flatten());
    match (held_type(whole), key.data_type().is_string()) {
        (Some(DataType::List(_)), true) => {
            refuse("elements of an array have numbers and no names", "write array[1] for the first one")
        }
        (Some(DataType::Map(..)), false) => refuse("the keys of a map are TEXT", "write map['key']"),
        (Some(DataType::Struct(_)), false) => refuse("the fields of a row have names", "write row['field']"),
        (Some(row @ DataType::Struct(_)), true) => match constant {
            Some(name) => member_field(whole, constant, field.name()).map_or_else(
                || refuse(&format!("there is no field '{name}'"), &format!("this is {}", type_name(&row))),
                Ok,
            ),
            None => refuse("the name of a field is a constant", "write row['field']; a map has any keys"),
        },
        (_, true) => Ok(member_field(whole, constant, field.name()).unwrap_or_else(|| field.clone())),
        (_, false) => Ok(element_field(whole, field.name())),
    }
}

fn refuse(what: &str, hint: &str) -> Result<Field> {
    Err(RelationalError::new(what).hint(hint).boxed())
}

/// The members with these keys. Of several with one key it is the last.
fn members(texts: &StringArray, keys: &StringArray, member: &Field) -> ArrayRef {
    let mut column = ElementColumn::new(member);
    for (text, key) in texts.iter().zip(keys) {
        let mut found = None;
        if let (Some(text), Some(key)) = (text, key)
            && !each_member(text, |one, value| found = if one == key { Some(value) } else { found })
        {
            found = None;
        }
        column.push(found);
    }
    column.finish()
}

/// The elements at these places, which begin with 1; negative places count from the end.
fn elements(texts: &StringArray, places: &ArrayRef, element: &Field) -> ArrayRef {
    let (mut column, places) = (ElementColumn::new(element), places.as_primitive::<Int64Type>());
    for (text, place) in texts.iter().zip(places) {
        let (mut found, mut number) = (None, 0);
        if let (Some(text), Some(mut place)) = (text, place) {
            if place < 0 {
                each_element(text, |_| number += 1);
                place += std::mem::take(&mut number) + 1;
            }
            let is_array = each_element(text, |element| {
                number += 1;
                if number == place {
                    found = Some(element);
                }
            });
            found = found.filter(|_| is_array);
        }
        column.push(found);
    }
    column.finish()
}

fn contain(texts: &StringArray, values: &ArrayRef) -> Result<ArrayRef> {
    let mut results = BooleanBuilder::with_capacity(texts.len());
    for (row, text) in texts.iter().enumerate() {
        let (Some(text), true) = (text, values.is_valid(row)) else {
            results.append_null();
            continue;
        };
        let mut is_found = false;
        let is_array = match values.data_type() {
            DataType::Int64 => {
                let value = values.as_primitive::<Int64Type>().value(row);
                // A number beyond 2^53 has no neighbour of its own as a floating point number.
                let is_equal = |element: &str| match element.parse::<i64>() {
                    Ok(element) => element == value,
                    Err(_) => element_number(element) == Some(value as f64),
                };
                each_element(text, |element| is_found |= is_equal(element))
            }
            DataType::Float64 => {
                let value = values.as_primitive::<Float64Type>().value(row);
                let is_equal = |number: f64| number == value || number.is_nan() && value.is_nan();
                each_element(text, |element| is_found |= element_number(element).is_some_and(is_equal))
            }
            DataType::Boolean => {
                let value = values.as_boolean().value(row).to_string();
                each_element(text, |element| is_found |= element == value)
            }
            _ => {
                let value = values.as_string::<i32>().value(row);
                each_element(text, |element| {
                    is_found |= element.starts_with('"') && element_text(element).is_some_and(|text| text == value);
                })
            }
        };
        results.append_option(is_array.then_some(is_found));
    }
    Ok(Arc::new(results.finish()))
}

/// The elements as texts with a separator between two of them, without those that are null.
fn joined(texts: &StringArray, separators: &StringArray) -> Result<ArrayRef> {
    let mut results = StringBuilder::with_capacity(texts.len(), texts.len() * 16);
    let mut all = String::new();
    for pair in texts.iter().zip(separators) {
        let (Some(text), Some(separator)) = pair else {
            results.append_null();
            continue;
        };
        all.clear();
        let mut is_first = true;
        let is_array = each_element(text, |element| {
            if let Some(element) = element_text(element).filter(|_| all.len() <= RESULT_BYTES_MAX) {
                all.push_str(if std::mem::take(&mut is_first) { "" } else { separator });
                all.push_str(&element);
            }
        });
        if all.len() > RESULT_BYTES_MAX {
            return exec_err!("the text from array_to_string has more than {RESULT_BYTES_MAX} bytes");
        }
        results.append_option(is_array.then_some(&all));
    }
    Ok(Arc::new(results.finish()))
}
