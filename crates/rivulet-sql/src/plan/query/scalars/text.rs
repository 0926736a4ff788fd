//! `split_index(text, delimiter, index)`: a part of a text, counted from 0, null behind the last one; `count_char(text,
//! character)`: the number of times a text contains a character.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringBuilder};
use arrow::datatypes::{DataType, Int64Type};
use datafusion_common::{Result, exec_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion_functions::utils::make_scalar_function;

/// `split_index`, for the catalog.
pub(super) fn split_index() -> Arc<ScalarUDF> {
    let types = vec![DataType::Utf8, DataType::Utf8, DataType::Int64];
    Arc::new(ScalarUDF::from(TextFunction {
        which: Which::SplitIndex,
        signature: Signature::exact(types, Volatility::Immutable),
    }))
}

/// `count_char`, for the catalog.
pub(super) fn count_char() -> Arc<ScalarUDF> {
    let types = vec![DataType::Utf8, DataType::Utf8];
    Arc::new(ScalarUDF::from(TextFunction {
        which: Which::CountChar,
        signature: Signature::exact(types, Volatility::Immutable),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    SplitIndex,
    CountChar,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TextFunction {
    which: Which,
    signature: Signature,
}

impl ScalarUDFImpl for TextFunction {
    fn name(&self) -> &str {
        match self.which {
            Which::SplitIndex => "split_index",
            Which::CountChar => "count_char",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(match self.which {
            Which::SplitIndex => DataType::Utf8,
            Which::CountChar => DataType::Int64,
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let of_columns = |columns: &[ArrayRef]| -> Result<ArrayRef> {
            Ok(match (self.which, columns) {
                (Which::SplitIndex, [text, delimiter, index]) => Arc::new(split(text, delimiter, index)),
                (Which::CountChar, [text, character]) => Arc::new(count(text, character)),
                _ => return exec_err!("{} with other arguments", self.name()),
            })
        };
        make_scalar_function(of_columns, Vec::new())(&arguments.args)
    }
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
