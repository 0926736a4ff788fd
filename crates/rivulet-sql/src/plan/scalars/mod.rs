//! Scalar functions besides those of DataFusion: names of other engines, and functions that are slow or wrong in
//! DataFusion.

mod arrays;
mod date_format;
mod epoch;
mod function;
mod hashes;
mod json;
mod json_path;
mod list_key;
mod maps;
mod predict;
mod regexp_extract;
mod rounding;
mod text;
mod timestamps;

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{Result, internal_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility, lit,
};

use crate::value::TIMESTAMP;

pub(in crate::plan) use function::Function;
pub(in crate::plan) use json::{array_of, json_of};
pub(in crate::plan) use list_key::list_key;
pub(in crate::plan) use predict::predict;

/// All these functions.
pub(in crate::plan) fn scalars() -> Vec<Arc<ScalarUDF>> {
    let short = [
        (Short::Mod, "mod"),
        (Short::If, "if"),
        (Short::DatePart("year"), "year"),
        (Short::DatePart("month"), "month"),
        (Short::DatePart("day"), "dayofmonth"),
        (Short::DatePart("hour"), "hour"),
        (Short::DatePart("minute"), "minute"),
        (Short::DatePart("second"), "second"),
    ];
    let short = short.into_iter().map(|(short, name)| Arc::new(ScalarUDF::from(Shorthand::new(short, name))));
    let mut all: Vec<Arc<ScalarUDF>> = short.collect();
    let functions = [date_format::date_format(), date_format::to_char(), regexp_extract::regexp_extract()];
    let functions =
        functions.into_iter().chain(text::functions()).chain(hashes::hashes()).chain(json_path::functions());
    let functions = functions.chain(arrays::functions()).chain(maps::functions());
    all.extend(functions.map(Into::into));
    all.extend(json::functions());
    all.extend(timestamps::timestamps());
    all.extend(other_names());
    all.extend([datafusion_functions::math::round(), datafusion_functions::math::trunc()].map(rounding::rounding));
    all.extend([datafusion_functions::math::floor(), datafusion_functions::math::ceil()].map(rounding::to_whole));
    all.extend(epoch::from_epochs());
    all
}

/// Functions of DataFusion with their names in other engines.
fn other_names() -> [Arc<ScalarUDF>; 2] {
    let named = |function: Arc<ScalarUDF>, name: &'static str| Arc::new((*function).clone().with_aliases([name]));
    [
        named(datafusion_functions::math::signum(), "sign"),
        named(datafusion_functions::datetime::to_unixtime(), "unix_timestamp"),
    ]
}

/// A short form of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Short {
    /// `mod(a, b)`: `a % b`
    Mod,
    /// `if(condition, one, other)`: CASE
    If,
    /// `hour(ts)`: `date_part('hour', ts)`
    DatePart(&'static str),
}

/// A function that is replaced in the plan by the expression it stands for.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Shorthand {
    short: Short,
    name: &'static str,
    signature: Signature,
}

impl Shorthand {
    fn new(short: Short, name: &'static str) -> Self {
        let signature = match short {
            Short::Mod => Signature::numeric(2, Volatility::Immutable),
            Short::If => Signature::any(3, Volatility::Immutable),
            Short::DatePart(_) => Signature::one_of(
                vec![TypeSignature::Exact(vec![TIMESTAMP]), TypeSignature::Exact(vec![DataType::Date32])],
                Volatility::Immutable,
            ),
        };
        Self { short, name, signature }
    }
}

impl ScalarUDFImpl for Shorthand {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match (self.short, arguments) {
            (Short::Mod, [first, ..]) => Ok(first.clone()),
            (Short::If, [_, DataType::Null, other]) => Ok(other.clone()),
            (Short::If, [_, one, _]) => Ok(one.clone()),
            (Short::DatePart(_), _) => Ok(DataType::Int32),
            _ => internal_err!("{} without arguments", self.name),
        }
    }

    fn simplify(&self, arguments: Vec<Expr>, _context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let mut given = arguments.into_iter();
        Ok(ExprSimplifyResult::Simplified(match (self.short, given.next(), given.next(), given.next()) {
            (Short::Mod, Some(one), Some(other), None) => one % other,
            (Short::If, Some(condition), Some(one), Some(other)) => {
                datafusion_expr::when(condition, one).otherwise(other)?
            }
            (Short::DatePart(part), Some(time), None, None) => {
                let function = datafusion_functions::datetime::date_part();
                Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![lit(part), time]))
            }
            _ => return internal_err!("{} with other arguments", self.name),
        }))
    }

    fn invoke_with_args(&self, _arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} is another expression in the plan", self.name)
    }
}
