//! `regexp_extract(text, pattern [, group])`: the text that a group of a pattern matches; null if there is no match.
//!
//! The pattern is compiled when the query is planned. Matching takes time linear in the length of the text.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue, internal_err, plan_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use datafusion_functions::utils::make_scalar_function;
use regex::Regex;

/// The largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The function, for the catalog.
pub(super) fn regexp_extract() -> Arc<ScalarUDF> {
    let text = || DataType::Utf8;
    let signature = Signature::one_of(
        vec![TypeSignature::Exact(vec![text(), text()]), TypeSignature::Exact(vec![text(), text(), DataType::Int64])],
        Volatility::Immutable,
    );
    Arc::new(ScalarUDF::from(RegexpExtract { signature }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RegexpExtract {
    signature: Signature,
}

impl ScalarUDFImpl for RegexpExtract {
    fn name(&self) -> &str {
        "regexp_extract"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn simplify(&self, arguments: Vec<Expr>, _context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let (text, pattern, group) = match arguments.as_slice() {
            [text, Expr::Literal(ScalarValue::Utf8(Some(pattern)), _)] => (text, pattern, 0),
            [
                text,
                Expr::Literal(ScalarValue::Utf8(Some(pattern)), _),
                Expr::Literal(ScalarValue::Int64(Some(group)), _),
            ] => (text, pattern, *group),
            _ => return plan_err!("the pattern and the group of regexp_extract must be constants"),
        };
        let compiled = regex::RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build();
        let Ok(regex) = compiled else {
            return plan_err!("'{pattern}' is not a regular expression that can be matched");
        };
        let Some(group) = usize::try_from(group).ok().filter(|group| *group < regex.captures_len()) else {
            return plan_err!("the pattern '{pattern}' has no group {group}");
        };
        let signature = Signature::exact(vec![DataType::Utf8], Volatility::Immutable);
        let name = format!("regexp_extract '{pattern}' group {group}");
        let function = Extract { regex, group, name, signature };
        let call = ScalarFunction::new_udf(Arc::new(ScalarUDF::from(function)), vec![text.clone()]);
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(call)))
    }

    fn invoke_with_args(&self, _arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("regexp_extract is another function in the plan")
    }
}

/// Extracts a group of a compiled pattern.
#[derive(Debug)]
struct Extract {
    regex: Regex,
    group: usize,
    name: String,
    signature: Signature,
}

impl PartialEq for Extract {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Extract {}

impl Hash for Extract {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Extract {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        make_scalar_function(|columns| self.found(columns), Vec::new())(&arguments.args)
    }
}

impl Extract {
    fn found(&self, columns: &[ArrayRef]) -> Result<ArrayRef> {
        let Some(texts) = columns.first() else { return internal_err!("no text to look in") };
        let (rows, texts) = (texts.len(), texts.as_string::<i32>());
        let mut locations = self.regex.capture_locations();
        let mut found = StringBuilder::with_capacity(rows, rows * 8);
        for row in 0..rows {
            let text = if texts.is_valid(row) { texts.value(row) } else { "" };
            let range = match texts.is_valid(row) && self.regex.captures_read(&mut locations, text).is_some() {
                true => locations.get(self.group),
                false => None,
            };
            found.append_option(range.map(|(start, end)| &text[start..end]));
        }
        Ok(Arc::new(found.finish()))
    }
}
