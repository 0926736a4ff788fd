//! Limits for functions whose result can be much longer than their arguments: one event must not make the process
//! allocate gigabytes. A row whose text would become too long is refused with the reason, before anything is allocated
//! for it, like any row on which an expression fails.
//!
//! The same holds for the operator `||`: each view over a view could double a text.
//!
//! Functions that compare each character of two texts have a limit as well: two long texts in one event must not block
//! a worker for minutes.
//!
//! Every other text function returns at most a small multiple of its text arguments, however calls are nested.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::compute::kernels::concat_elements::concat_elements_dyn;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Int64Type};
use datafusion_common::{Result, exec_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use super::wrapped::{Invoke, Wrapped};

/// The longest text that such a function makes, in bytes, unless one of its arguments is longer already. A full inbox
/// of rows with such texts still fits an Arrow column.
const RESULT_BYTES_MAX: u64 = 16 << 10;
/// How much longer than its longest argument a longer text may be: room for a name or a mark around a long body.
const ADDED_BYTES_MAX: u64 = 1 << 10;

/// The most pairs of bytes of two texts that may have to be compared.
const STEPS_MAX: u64 = 1 << 24;

/// Returns the function itself, or the function with a limit if its results can grow.
pub(super) fn bounded(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let growth = match function.name() {
        "repeat" => Growth::Repeat,
        "lpad" | "rpad" => Growth::Pad,
        "replace" => Growth::Replace,
        "regexp_replace" => Growth::ReplacePattern,
        "encode" => Growth::Encode,
        "concat" => Growth::Join,
        "concat_ws" => Growth::JoinWith,
        "overlay" => Growth::Overlay,
        "levenshtein" | "btrim" | "ltrim" | "rtrim" => Growth::Steps,
        _ => return function,
    };
    Wrapped::around(function, growth)
}

/// How the length of a function's result follows from its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Growth {
    /// `repeat(text, times)`
    Repeat,
    /// `lpad(text, characters [, fill])`
    Pad,
    /// `replace(text, from, to)`
    Replace,
    /// `regexp_replace(text, pattern, replacement [, flags])`
    ReplacePattern,
    /// `encode(bytes, form)`, which may double the length
    Encode,
    /// `concat(text, ...)`
    Join,
    /// `concat_ws(between, text, ...)`
    JoinWith,
    /// `overlay(text, other, from [, length])`
    Overlay,
    /// No growth, but each character of one text may be compared with each of the other: `levenshtein(text, other)`,
    /// `btrim(text, characters)`
    Steps,
}

/// Computes the operator `||`, if no row's text becomes too long.
pub(super) fn concatenated(left: ArrayRef, right: ArrayRef) -> Result<ArrayRef> {
    let rows = left.len();
    let sides = Arguments::of([&left, &right], rows)?;
    let is_text = |row: &usize| left.is_valid(*row) && right.is_valid(*row);
    (0..rows).filter(is_text).try_for_each(|row| sides.check(Growth::Join, row, "||"))?;
    Ok(concat_elements_dyn(&left, &right)?)
}

impl Invoke for Growth {
    fn invoke(&self, function: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arguments = Arguments::new(&args)?;
        (0..arguments.rows).try_for_each(|row| arguments.check(*self, row, function.name()))?;
        if let (Self::Pad, Some(ColumnarValue::Array(length))) = (self, args.args.get_mut(1)) {
            // DataFusion's padding panics on a batch with a negative length, which means 0.
            let length_min_0: Int64Array = length.as_primitive::<Int64Type>().unary(|characters| characters.max(0));
            *length = Arc::new(length_min_0);
        }
        function.invoke_with_args(args)
    }
}

/// The arguments of a call: texts as `Utf8`, numbers and the lengths of binary values as `Int64`. An argument that is
/// the same for all rows has only one row.
struct Arguments {
    columns: Vec<ArrayRef>,
    rows: usize,
}

impl Arguments {
    fn new(args: &ScalarFunctionArgs) -> Result<Self> {
        let mut rows = 1;
        let columns = args.args.iter().map(|argument| match argument {
            ColumnarValue::Scalar(value) => value.to_array(),
            ColumnarValue::Array(array) => {
                rows = args.number_rows;
                Ok(array.clone())
            }
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Self::of(&columns, rows)
    }

    fn of<'a>(arguments: impl IntoIterator<Item = &'a ArrayRef>, rows: usize) -> Result<Self> {
        let measured = arguments.into_iter().map(|column| match column.data_type() {
            integer if integer.is_integer() => cast(column, &DataType::Int64),
            bytes if bytes.is_binary() => cast(&length(column)?, &DataType::Int64),
            _ => cast(column, &DataType::Utf8),
        });
        Ok(Self { columns: measured.collect::<Result<Vec<_>, _>>()?, rows })
    }

    /// Fails if the result of a row may be too long.
    fn check(&self, growth: Growth, row: usize, name: &str) -> Result<()> {
        let bytes = self.result_bytes(growth, row).unwrap_or(0);
        if growth == Growth::Steps {
            return match bytes > STEPS_MAX {
                true => {
                    exec_err!("{name} compares {bytes} pairs of bytes of its texts, and at most {STEPS_MAX} may be")
                }
                false => Ok(()),
            };
        }
        if bytes <= RESULT_BYTES_MAX {
            return Ok(());
        }
        let bytes_max = RESULT_BYTES_MAX.max(self.longest(growth, row) + ADDED_BYTES_MAX);
        match bytes > bytes_max {
            true => exec_err!("the text from {name} may have {bytes} bytes, and at most {bytes_max} are allowed"),
            false => Ok(()),
        }
    }

    /// Returns an argument and the index of its row; `None` if it is null or not given.
    fn find(&self, index: usize, row: usize) -> Option<(&ArrayRef, usize)> {
        let column = self.columns.get(index)?;
        let row = if column.len() == 1 { 0 } else { row };
        column.is_valid(row).then_some((column, row))
    }

    fn text(&self, index: usize, row: usize) -> Option<&str> {
        let (column, row) = self.find(index, row)?;
        Some(column.as_string_opt::<i32>()?.value(row))
    }

    /// Returns a number, or the length of a text; at least 0.
    fn number(&self, index: usize, row: usize) -> Option<u64> {
        if let Some(text) = self.text(index, row) {
            return Some(text.len() as u64);
        }
        let (column, row) = self.find(index, row)?;
        Some(column.as_primitive_opt::<Int64Type>()?.value(row).max(0).unsigned_abs())
    }

    /// The lengths of the texts of a row. For concatenation, lengths of binary values are included.
    fn lengths(&self, growth: Growth, row: usize) -> impl Iterator<Item = u64> {
        (0..self.columns.len()).filter_map(move |index| match growth {
            Growth::Join | Growth::JoinWith => self.number(index, row),
            _ => self.text(index, row).map(|text| text.len() as u64),
        })
    }

    fn longest(&self, growth: Growth, row: usize) -> u64 {
        self.lengths(growth, row).max().unwrap_or(0)
    }

    /// The most bytes that the result may have; `None` if the result is null.
    fn result_bytes(&self, growth: Growth, row: usize) -> Option<u64> {
        /// The most bytes of a character.
        const CHARACTER_BYTES: u64 = 4;
        let together = || self.lengths(growth, row).sum::<u64>();
        let first = || self.number(0, row);
        let second = || self.number(1, row);
        Some(match growth {
            Growth::Join | Growth::Overlay => together(),
            Growth::JoinWith => {
                // The separator stands between every two texts; `together` counts it once.
                let further = self.columns.len().saturating_sub(3) as u64;
                together().saturating_add(first()?.saturating_mul(further))
            }
            Growth::Repeat | Growth::Steps => first()?.saturating_mul(second()?),
            // Room is also made for rows without text.
            Growth::Pad => second()?.saturating_mul(CHARACTER_BYTES),
            Growth::Encode => second().and(first())?.saturating_mul(2),
            Growth::Replace => {
                let (length, from, to) = (first()?, second()?, self.number(2, row)?);
                let at_most = length.saturating_add((length / from.max(1) + 1).saturating_mul(to));
                if at_most <= RESULT_BYTES_MAX {
                    return Some(at_most);
                }
                let found = self.text(0, row)?.matches(self.text(1, row)?).count() as u64;
                length.saturating_add(found.saturating_mul(to))
            }
            Growth::ReplacePattern => {
                let (length, replacement) = (second().and(first())?, self.text(2, row)?);
                // Each reference may stand for the whole text that was found.
                let references = replacement.bytes().filter(|byte| matches!(byte, b'\\' | b'$')).count() as u64;
                let once = (replacement.len() as u64).saturating_add(references.saturating_mul(length));
                let everywhere = self.text(3, row).is_some_and(|flags| flags.contains('g'));
                length.saturating_add(once.saturating_mul(if everywhere { length + 1 } else { 1 }))
            }
        })
    }
}
