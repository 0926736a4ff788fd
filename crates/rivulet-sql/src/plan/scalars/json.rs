//! `json_object(name, value, ...)` and `json_array(value, ...)`: values as JSON text, in the same form as results in
//! JSON; and the lists of `array_agg`.
//!
//! Such a text is marked ([`marked`]). As a value inside another one, or as a column of an output in JSON, it is
//! written as it is and not in quotes.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, StringArray, StringBuilder,
    TimestampMicrosecondArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type, TimestampMicrosecondType};
use datafusion_common::{Result, exec_err, plan_err};
use datafusion_expr::function::Hint;
use datafusion_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion_functions::utils::make_scalar_function;
use rivulet_dataflow::{is_json, marked_as_array, marked_as_json};

use crate::plan::types::{common_field, result_type};

/// The longest text of a row, in bytes.
const RESULT_BYTES_MAX: usize = 1 << 20;
/// The most text of all rows that are evaluated together, in bytes. More text is made in several pieces.
const BATCH_BYTES_MAX: usize = 1 << 30;

/// The functions that queries may call.
pub(super) fn functions() -> [Arc<ScalarUDF>; 2] {
    [JsonFunction::udf(Which::Object), JsonFunction::udf(Which::Array)]
}

/// The function that writes a value as JSON; null stays null. Its column has the mark of a list of such values, so that
/// operators can give it to theirs.
pub(in crate::plan) fn json_of() -> Arc<ScalarUDF> {
    JsonFunction::udf(Which::Value)
}

/// The column of arrays of the values of these columns. Nulls have no type.
pub(in crate::plan) fn array_of(arrays: Field, columns: &[FieldRef]) -> Field {
    let columns = columns.iter().filter(|column| !column.data_type().is_null());
    let mut written = columns.map(|column| {
        let data_type = result_type(column.data_type()).unwrap_or(DataType::Utf8);
        column.as_ref().clone().with_data_type(data_type)
    });
    let common = written.next().and_then(|first| written.try_fold(first, |one, other| common_field(one, &other)));
    match common {
        Some(element) => marked_as_array(arrays, &element),
        None => marked_as_json(arrays),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    Object,
    Array,
    Value,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonFunction {
    which: Which,
    signature: Signature,
}

impl JsonFunction {
    fn udf(which: Which) -> Arc<ScalarUDF> {
        Arc::new(ScalarUDF::from(Self { which, signature: Signature::variadic_any(Volatility::Immutable) }))
    }
}

impl ScalarUDFImpl for JsonFunction {
    fn name(&self) -> &str {
        match self.which {
            Which::Object => "json_object",
            Which::Array => "json_array",
            Which::Value => "json_of",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let is_name = |(index, argument): (usize, &DataType)| {
            index % 2 == 1 || *argument == DataType::Null || argument.is_string()
        };
        if self.which == Which::Object
            && !(arguments.len().is_multiple_of(2) && arguments.iter().enumerate().all(is_name))
        {
            return plan_err!("json_object takes names, which are TEXT, each with a value behind it");
        }
        match arguments.iter().find(|argument| result_type(argument).is_none()) {
            Some(other) => plan_err!("{} does not take {other}", self.name()),
            None => Ok(DataType::Utf8),
        }
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = arguments.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let field = Field::new(self.name(), self.return_type(&types)?, true);
        Ok(Arc::new(match (self.which, arguments.arg_fields) {
            (Which::Object, _) => marked_as_json(field),
            (Which::Array | Which::Value, columns) => array_of(field, columns),
        }))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = arguments.args.iter().all(|one| matches!(one, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { arguments.number_rows };
        let write = |columns: &[ArrayRef]| -> Result<ArrayRef> {
            let values =
                columns.iter().zip(&arguments.arg_fields).map(|(column, field)| Values::new(column, is_json(field)));
            Ok(Arc::new(self.write(&values.collect::<Result<Vec<_>>>()?, rows)?))
        };
        // A value that is the same for all rows is kept once.
        make_scalar_function(write, vec![Hint::AcceptsSingular; arguments.args.len()])(&arguments.args)
    }
}

impl JsonFunction {
    fn write(&self, columns: &[Values], rows: usize) -> Result<StringArray> {
        let mut all = StringBuilder::with_capacity(rows, rows * 16);
        let mut text = String::new();
        for row in 0..rows {
            text.clear();
            let is_valid = match (self.which, columns) {
                (Which::Object, columns) => append_object(columns, row, &mut text),
                (Which::Array, columns) => {
                    text.push('[');
                    for (index, column) in columns.iter().enumerate() {
                        text.push_str(if index == 0 { "" } else { "," });
                        column.append(row, &mut text);
                    }
                    text.push(']');
                    true
                }
                (Which::Value, columns) => columns.iter().all(|column| column.append(row, &mut text)),
            };
            if text.len() > RESULT_BYTES_MAX {
                return exec_err!("the text from {} has more than {RESULT_BYTES_MAX} bytes", self.name());
            }
            if all.values_slice().len() + text.len() > BATCH_BYTES_MAX {
                return exec_err!("the texts from {} have more than {BATCH_BYTES_MAX} bytes", self.name());
            }
            all.append_option(is_valid.then_some(&text));
        }
        Ok(all.finish())
    }
}

/// Appends an object of alternating names and values; returns `false` if a name is null.
fn append_object(columns: &[Values], row: usize, out: &mut String) -> bool {
    out.push('{');
    for (index, pair) in columns.chunks_exact(2).enumerate() {
        out.push_str(if index == 0 { "" } else { "," });
        if !pair[0].append(row, out) {
            return false;
        }
        out.push(':');
        pair[1].append(row, out);
    }
    out.push('}');
    true
}

/// The values of an argument. An argument that is the same for all rows has only one row.
enum Values {
    Boolean(BooleanArray),
    Integer(Int64Array),
    Float(Float64Array),
    Time(TimestampMicrosecondArray),
    Text(StringArray),
    /// Values that are JSON already.
    Json(StringArray),
}

impl Values {
    fn new(column: &ArrayRef, is_json: bool) -> Result<Self> {
        let Some(kept) = result_type(column.data_type()) else {
            return exec_err!("{} has no form in JSON", column.data_type());
        };
        // A decimal is written with its digits.
        if matches!(column.data_type(), DataType::Decimal128(_, 0..)) {
            return Ok(Self::Json(cast(column, &DataType::Utf8)?.as_string::<i32>().clone()));
        }
        let column = cast(column, &kept)?;
        Ok(match kept {
            DataType::Boolean => Self::Boolean(column.as_boolean().clone()),
            DataType::Int64 => Self::Integer(column.as_primitive::<Int64Type>().clone()),
            DataType::Float64 => Self::Float(column.as_primitive::<Float64Type>().clone()),
            DataType::Timestamp(..) => Self::Time(column.as_primitive::<TimestampMicrosecondType>().clone()),
            _ if is_json => Self::Json(column.as_string::<i32>().clone()),
            _ => Self::Text(column.as_string::<i32>().clone()),
        })
    }

    fn array(&self) -> &dyn Array {
        match self {
            Self::Boolean(values) => values,
            Self::Integer(values) => values,
            Self::Float(values) => values,
            Self::Time(values) => values,
            Self::Text(values) | Self::Json(values) => values,
        }
    }

    /// Appends the value of a row; returns whether it is not null.
    fn append(&self, row: usize, out: &mut String) -> bool {
        let row = if self.array().len() == 1 { 0 } else { row };
        if self.array().is_null(row) {
            out.push_str("null");
            return false;
        }
        // Writing to memory does not fail.
        let _ = match self {
            Self::Boolean(values) => write!(out, "{}", values.value(row)),
            Self::Integer(values) => write!(out, "{}", values.value(row)),
            Self::Float(values) => match values.value(row) {
                value if value.is_nan() => out.write_str("\"NaN\""),
                value if value.is_infinite() => {
                    out.write_str(if value > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" })
                }
                // The shortest digits that read back as the same value.
                value => write!(out, "{value:?}"),
            },
            Self::Time(values) => append_milliseconds(values.value(row), out),
            Self::Text(values) => append_string(values.value(row), out),
            Self::Json(values) => out.write_str(values.value(row)),
        };
        true
    }
}

/// Appends milliseconds since 1970, with a fraction if there is one.
fn append_milliseconds(time_us: i64, out: &mut String) -> std::fmt::Result {
    let (milliseconds, rest) = (time_us.unsigned_abs() / 1000, time_us.unsigned_abs() % 1000);
    write!(out, "{}{milliseconds}", if time_us < 0 { "-" } else { "" })?;
    match rest {
        0 => Ok(()),
        rest => out.write_str(format!(".{rest:03}").trim_end_matches('0')),
    }
}

/// Appends a text in quotes.
pub(super) fn append_string(text: &str, out: &mut String) -> std::fmt::Result {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if (control as u32) < 0x20 => write!(out, "\\u{:04x}", control as u32)?,
            other => out.push(other),
        }
    }
    out.push('"');
    Ok(())
}
