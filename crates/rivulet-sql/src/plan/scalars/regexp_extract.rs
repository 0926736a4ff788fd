//! `regexp_extract(text, pattern [, group])`: the text that a group of a pattern matches; null if there is no match.
//!
//! The pattern is compiled when the query is planned. Matching takes time linear in the length of the text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue, internal_err, plan_err};
use datafusion_expr::Expr;
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use regex::Regex;

use super::function::Function;

/// The largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// `regexp_extract`, for the catalog.
pub(super) fn regexp_extract() -> Function {
    let text = || DataType::Utf8;
    let arguments = [vec![text(), text()], vec![text(), text(), DataType::Int64]];
    Function::new("regexp_extract", arguments, DataType::Utf8).rewritten(with_pattern)
}

/// The function of one pattern and group.
fn with_pattern(arguments: Vec<Expr>, _context: &SimplifyContext) -> Result<ExprSimplifyResult> {
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
    let name = format!("regexp_extract '{pattern}' group {group}");
    let function = Function::new(name, [vec![DataType::Utf8]], DataType::Utf8);
    let function = function.computed(move |columns| found(&regex, group, columns));
    let call = ScalarFunction::new_udf(function.into(), vec![text.clone()]);
    Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(call)))
}

fn found(regex: &Regex, group: usize, columns: &[ArrayRef]) -> Result<ArrayRef> {
    let Some(texts) = columns.first() else { return internal_err!("no text to look in") };
    let (rows, texts) = (texts.len(), texts.as_string::<i32>());
    let mut locations = regex.capture_locations();
    let mut found = StringBuilder::with_capacity(rows, rows * 8);
    for row in 0..rows {
        let text = if texts.is_valid(row) { texts.value(row) } else { "" };
        let range = match texts.is_valid(row) && regex.captures_read(&mut locations, text).is_some() {
            true => locations.get(group),
            false => None,
        };
        found.append_option(range.map(|(start, end)| &text[start..end]));
    }
    Ok(Arc::new(found.finish()))
}
