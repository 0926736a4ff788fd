//! Functions whose result can be much longer than what they are given, with a bound: one event must not make the process
//! allocate gigabytes. A row whose text would become too long is refused with the reason, like any row on which an
//! expression fails, before anything is allocated for it.
//!
//! Every other text function gives at most a small multiple of the text that came in, however calls are nested.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion_common::{Result, exec_err};
use datafusion_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// The longest text that such a function makes, in bytes, unless its arguments are longer together. A full inbox of
/// rows at this bound still fits an Arrow column.
const RESULT_BYTES_MAX: u64 = 16 << 10;

/// The function itself, or the same with a bound if its results can grow.
pub(super) fn bounded(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let growth = match function.name() {
        "repeat" => Growth::Repeat,
        "lpad" | "rpad" => Growth::Pad,
        "replace" => Growth::Replace,
        "regexp_replace" => Growth::ReplacePattern,
        "encode" => Growth::Encode,
        _ => return function,
    };
    Arc::new(ScalarUDF::from(Bounded { function, growth }))
}

/// How the result of a function follows from its arguments.
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
    /// `encode(bytes, form)`, which may double them
    Encode,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    function: Arc<ScalarUDF>,
    growth: Growth,
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn aliases(&self) -> &[String] {
        self.function.aliases()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.return_field_from_args(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.inner().coerce_types(types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.function.documentation()
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arguments = Arguments::new(&args)?;
        for row in 0..arguments.rows {
            let bytes = arguments.result_bytes(self.growth, row).unwrap_or(0);
            if bytes > RESULT_BYTES_MAX.max(arguments.bytes(row)) {
                return exec_err!(
                    "the text from {} may have {bytes} bytes, and at most {RESULT_BYTES_MAX} are allowed",
                    self.name()
                );
            }
        }
        if let (Growth::Pad, Some(ColumnarValue::Array(length))) = (self.growth, args.args.get_mut(1)) {
            // DataFusion's padding panics on a batch with a negative length, which means 0.
            let length_min_0: Int64Array = length.as_primitive::<Int64Type>().unary(|characters| characters.max(0));
            *length = Arc::new(length_min_0);
        }
        self.function.invoke_with_args(args)
    }
}

/// The arguments of a call: texts as `Utf8`, numbers and the lengths of bytes as `Int64`. One that is the same for all
/// rows has one row only.
struct Arguments {
    columns: Vec<ArrayRef>,
    rows: usize,
}

impl Arguments {
    fn new(args: &ScalarFunctionArgs) -> Result<Self> {
        let mut rows = 1;
        let mut columns = Vec::with_capacity(args.args.len());
        for argument in &args.args {
            let column = match argument {
                ColumnarValue::Scalar(value) => value.to_array()?,
                ColumnarValue::Array(array) => {
                    rows = args.number_rows;
                    array.clone()
                }
            };
            columns.push(match column.data_type() {
                integer if integer.is_integer() => cast(&column, &DataType::Int64)?,
                bytes if bytes.is_binary() => cast(&length(&column)?, &DataType::Int64)?,
                _ => cast(&column, &DataType::Utf8)?,
            });
        }
        Ok(Self { columns, rows })
    }

    /// The argument, and its row; nothing if it is null or not given.
    fn find(&self, index: usize, row: usize) -> Option<(&ArrayRef, usize)> {
        let column = self.columns.get(index)?;
        let row = if column.len() == 1 { 0 } else { row };
        column.is_valid(row).then_some((column, row))
    }

    fn text(&self, index: usize, row: usize) -> Option<&str> {
        let (column, row) = self.find(index, row)?;
        Some(column.as_string_opt::<i32>()?.value(row))
    }

    /// A number, or the length of a text, at least 0.
    fn number(&self, index: usize, row: usize) -> Option<u64> {
        if let Some(text) = self.text(index, row) {
            return Some(text.len() as u64);
        }
        let (column, row) = self.find(index, row)?;
        Some(column.as_primitive_opt::<Int64Type>()?.value(row).max(0).unsigned_abs())
    }

    /// The length of all texts together.
    fn bytes(&self, row: usize) -> u64 {
        (0..self.columns.len()).filter_map(|index| self.text(index, row)).map(|text| text.len() as u64).sum()
    }

    /// The most bytes that the result may have; nothing if it is null.
    fn result_bytes(&self, growth: Growth, row: usize) -> Option<u64> {
        /// The most bytes of a character.
        const CHARACTER_BYTES: u64 = 4;
        let second = self.number(1, row)?;
        let length = match growth {
            // Room is made for rows without text, too.
            Growth::Pad => self.number(0, row).unwrap_or(0),
            _ => self.number(0, row)?,
        };
        Some(match growth {
            Growth::Repeat => length.saturating_mul(second),
            Growth::Pad => second.saturating_mul(CHARACTER_BYTES),
            Growth::Encode => length.saturating_mul(2),
            Growth::Replace => {
                let to = self.number(2, row)?;
                let at_most = length.saturating_add((length / second.max(1) + 1).saturating_mul(to));
                if at_most <= RESULT_BYTES_MAX {
                    return Some(at_most);
                }
                let found = self.text(0, row)?.matches(self.text(1, row)?).count() as u64;
                length.saturating_add(found.saturating_mul(to))
            }
            Growth::ReplacePattern => {
                let replacement = self.text(2, row)?;
                // Each may stand for the whole text that was found.
                let references = replacement.bytes().filter(|byte| matches!(byte, b'\\' | b'$')).count() as u64;
                let once = (replacement.len() as u64).saturating_add(references.saturating_mul(length));
                let everywhere = self.text(3, row).is_some_and(|flags| flags.contains('g'));
                length.saturating_add(once.saturating_mul(if everywhere { length + 1 } else { 1 }))
            }
        })
    }
}
