//! `json_object(name, value, ...)`, `map(key, value, ...)` and `json_array(value, ...)`: values as JSON text, in the
//! same form as results in JSON; and the lists of `array_agg`.
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
use rivulet_dataflow::{any_json, is_json, marked_as_array, marked_as_json, marked_as_map, marked_as_row};

use crate::plan::types::{common_field, result_type};

/// The longest text of a row, in bytes.
const RESULT_BYTES_MAX: usize = 1 << 20;
/// The most text of all rows that are evaluated together, in bytes. More text is made in several pieces.
const BATCH_BYTES_MAX: usize = 1 << 30;

/// The functions that queries may call.
pub(super) fn functions() -> [Arc<ScalarUDF>; 3] {
    [Which::Object, Which::Map, Which::Array].map(JsonFunction::udf)
}

/// The function that writes a value as JSON; null stays null. Its column has the mark of a list of such values, so that
/// operators can give it to theirs.
pub(in crate::plan) fn json_of() -> Arc<ScalarUDF> {
    JsonFunction::udf(Which::Value)
}

/// The column of arrays of the values of these columns. Nulls have no type.
pub(in crate::plan) fn array_of(arrays: Field, columns: &[FieldRef]) -> Field {
    match common_of(columns.iter()) {
        Some(element) => marked_as_array(arrays, &element),
        None => marked_as_json(arrays),
    }
}

/// The column of the values of these columns, as they are written. Nulls have no type.
fn common_of<'c>(columns: impl Iterator<Item = &'c FieldRef>) -> Option<Field> {
    let mut written = columns.filter(|column| !column.data_type().is_null()).map(|column| written(column));
    let first = written.next()?;
    written.try_fold(first, |one, other| common_field(one, &other))
}

/// The column of the values of a column, as they are written.
fn written(column: &Field) -> Field {
    let data_type = result_type(column.data_type()).unwrap_or(DataType::Utf8);
    column.clone().with_data_type(data_type)
}

/// The column of objects with these names, if each is a constant and there once, and these values.
fn object_of(objects: Field, arguments: &ReturnFieldArgs<'_>) -> Field {
    let names =
        arguments.scalar_arguments.iter().step_by(2).map(|name| name.and_then(|name| name.try_as_str().flatten()));
    let names: Option<Vec<&str>> = names.collect();
    let Some(names) = names else { return marked_as_json(objects) };
    let is_second = |(place, name): (usize, &&str)| names[..place].contains(name);
    if names.iter().enumerate().any(is_second) {
        return marked_as_json(objects);
    }
    let values = arguments.arg_fields.iter().skip(1).step_by(2);
    let fields: Vec<Field> = names.iter().zip(values).map(|(name, value)| written(value).with_name(*name)).collect();
    marked_as_row(objects, &fields)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    Object,
    /// An object whose keys are in order, each of them once.
    Map,
    Array,
    Value,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonFunction {
    which: Which,
    signature: Signature,
    aliases: Vec<String>,
}

impl JsonFunction {
    fn udf(which: Which) -> Arc<ScalarUDF> {
        let aliases = if which == Which::Object { vec!["named_struct".to_owned()] } else { Vec::new() };
        let signature = Signature::variadic_any(Volatility::Immutable);
        Arc::new(ScalarUDF::from(Self { which, signature, aliases }))
    }
}

impl ScalarUDFImpl for JsonFunction {
    fn name(&self) -> &str {
        match self.which {
            Which::Object => "json_object",
            Which::Map => "map",
            Which::Array => "json_array",
            Which::Value => "json_of",
        }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let is_name = |(index, argument): (usize, &DataType)| {
            index % 2 == 1 || *argument == DataType::Null || argument.is_string()
        };
        if matches!(self.which, Which::Object | Which::Map)
            && !(arguments.len().is_multiple_of(2) && arguments.iter().enumerate().all(is_name))
        {
            return plan_err!("{} takes names, which are TEXT, each with a value behind it", self.name());
        }
        match arguments.iter().find(|argument| result_type(argument).is_none()) {
            Some(other) => plan_err!("{} does not take {other}", self.name()),
            None => Ok(DataType::Utf8),
        }
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = arguments.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let field = Field::new(self.name(), self.return_type(&types)?, true);
        Ok(Arc::new(match self.which {
            Which::Object => object_of(field, &arguments),
            Which::Map => {
                let value = common_of(arguments.arg_fields.iter().skip(1).step_by(2));
                marked_as_map(field, &value.unwrap_or_else(any_json))
            }
            Which::Array | Which::Value => array_of(field, arguments.arg_fields),
        }))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = arguments.args.iter().all(|one| matches!(one, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { arguments.number_rows };
        let write = |columns: &[ArrayRef]| -> Result<ArrayRef> {
            // A name is a text, whatever that holds.
            let is_name = |place: usize| matches!(self.which, Which::Object | Which::Map) && place.is_multiple_of(2);
            let fields = columns.iter().zip(&arguments.arg_fields).enumerate();
            let values = fields.map(|(place, (column, field))| Values::new(column, is_json(field) && !is_name(place)));
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
        let mut members = Members::default();
        for row in 0..rows {
            text.clear();
            let is_valid = match (self.which, columns) {
                (Which::Map, columns) => members.append_map(columns, row, &mut text),
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

/// The members of a map that is being written. The buffers are kept.
#[derive(Default)]
struct Members {
    /// Where in the text a member begins, where its value does, and where it ends.
    places: Vec<(usize, usize, usize)>,
    text: String,
}

impl Members {
    /// Appends a map of alternating keys and values; returns `false` if a key is null. Of several values of one key the
    /// last remains.
    fn append_map(&mut self, columns: &[Values], row: usize, out: &mut String) -> bool {
        let Self { places, text } = self;
        places.clear();
        text.clear();
        for pair in columns.chunks_exact(2) {
            let begin = text.len();
            if !pair[0].append(row, text) {
                return false;
            }
            let colon = text.len();
            text.push(':');
            pair[1].append(row, text);
            places.push((begin, colon, text.len()));
        }
        places.sort_unstable_by(|one, other| text[one.0..one.1].cmp(&text[other.0..other.1]).then(one.0.cmp(&other.0)));
        out.push('{');
        for (place, &(begin, colon, end)) in places.iter().enumerate() {
            let is_last = places.get(place + 1).is_none_or(|next| text[next.0..next.1] != text[begin..colon]);
            if is_last {
                out.push_str(if out.len() > 1 { "," } else { "" });
                out.push_str(&text[begin..end]);
            }
        }
        out.push('}');
        true
    }
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
