//! `split_index(text, delimiter, index)`: a part of a text, counted from 0, null behind the last one; `count_char(text,
//! character)`: the number of times a text contains a character.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringBuilder};
use arrow::datatypes::{DataType, Int64Type};
use datafusion_common::{Result, exec_err};

use super::function::Function;

/// These functions, for the catalog.
pub(super) fn functions() -> [Function; 2] {
    let split_index = |columns: &[ArrayRef]| -> Result<ArrayRef> {
        let [text, delimiter, index] = columns else { return exec_err!("split_index takes three arguments") };
        Ok(Arc::new(split(text, delimiter, index)))
    };
    let count_char = |columns: &[ArrayRef]| -> Result<ArrayRef> {
        let [text, character] = columns else { return exec_err!("count_char takes two arguments") };
        Ok(Arc::new(count(text, character)))
    };
    let two = vec![DataType::Utf8, DataType::Utf8];
    let three = vec![DataType::Utf8, DataType::Utf8, DataType::Int64];
    [
        Function::new("split_index", [three], DataType::Utf8).computed(split_index),
        Function::new("count_char", [two], DataType::Int64).computed(count_char),
    ]
}

fn split(text: &ArrayRef, delimiter: &ArrayRef, index: &ArrayRef) -> arrow::array::StringArray {
    let (text, delimiter) = (text.as_string::<i32>(), delimiter.as_string::<i32>());
    let index = index.as_primitive::<Int64Type>();
    let rows = text.len();
    let mut parts = StringBuilder::with_capacity(rows, rows * 8);
    for row in 0..rows {
        let is_valid = text.is_valid(row) && delimiter.is_valid(row) && index.is_valid(row);
        let part = is_valid.then(|| {
            let index = usize::try_from(index.value(row)).ok()?;
            match delimiter.value(row) {
                "" => None,
                delimiter => text.value(row).split(delimiter).nth(index),
            }
        });
        parts.append_option(part.flatten());
    }
    parts.finish()
}

fn count(text: &ArrayRef, character: &ArrayRef) -> Int64Array {
    let (text, character) = (text.as_string::<i32>(), character.as_string::<i32>());
    let count = |row: usize| {
        let wanted = character.value(row);
        match (wanted.len(), wanted.is_empty()) {
            (_, true) => 0,
            (1, _) => text.value(row).bytes().filter(|byte| *byte == wanted.as_bytes()[0]).count(),
            _ => text.value(row).matches(wanted).count(),
        }
    };
    (0..text.len()).map(|row| (text.is_valid(row) && character.is_valid(row)).then(|| count(row) as i64)).collect()
}
