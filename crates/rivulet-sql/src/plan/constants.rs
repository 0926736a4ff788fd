//! Constants in expressions. Arithmetic over them is computed when the query is planned. Constant arguments with which
//! a call would fail at every row are refused: an unknown unit of time, or a regular expression that cannot be read.

use std::ops::Range;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{ColumnarValue, Expr, Operator, lit};
use regex::Regex;
use rivulet_dataflow::canonical_float;
use rivulet_relational::{Problem, RelationalError};

use super::arithmetic::compile;
use super::message::plain_message;
use crate::address::list;
use crate::suggest;

/// A function with an argument that is a name, and the names that exist.
struct Naming {
    function: &'static str,
    /// The word for the argument in messages.
    what: &'static str,
    /// The index of the argument; the other argument is the value.
    place: usize,
    names: &'static [&'static str],
}

const NAMING: [Naming; 5] = [
    Naming {
        function: "date_trunc",
        what: "unit",
        place: 0,
        names: &["year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"],
    },
    Naming {
        function: "date_part",
        what: "unit",
        place: 0,
        names: &[
            "year",
            "isoyear",
            "quarter",
            "month",
            "week",
            "day",
            "dow",
            "isodow",
            "doy",
            "hour",
            "minute",
            "second",
            "millisecond",
            "microsecond",
            "epoch",
        ],
    },
    Naming { function: "encode", what: "form", place: 1, names: &["hex", "base64"] },
    Naming { function: "decode", what: "form", place: 1, names: &["hex", "base64"] },
    Naming { function: "digest", what: "method", place: 1, names: &["md5", "sha224", "sha256", "sha384", "sha512"] },
];

/// The functions that take only a constant as an argument: the places of such arguments, what they are, and an example.
/// Their value goes into the plan, or is used for all rows of a batch at once.
const CONSTANT: [(&[&str], Range<usize>, &str, &str); 13] = [
    (&["date_bin"], 0..1, "interval", "date_bin(INTERVAL '15 minutes', ts)"),
    (&["date_bin"], 2..3, "origin", "date_bin(INTERVAL '1 day', ts, TIMESTAMP '2026-01-01 06:00:00')"),
    (&["date_trunc"], 0..1, "unit", "date_trunc('hour', ts)"),
    (&["date_part"], 0..1, "unit", "date_part('hour', ts)"),
    (&["date_format"], 1..2, "format", "date_format(ts, 'yyyy-MM-dd')"),
    (&["encode"], 1..2, "form", "encode(x, 'hex')"),
    (&["decode"], 1..2, "form", "CAST(decode(x, 'hex') AS TEXT)"),
    (&["json_exists", "json_length", "json_query", "json_value"], 1..2, "path", "json_value(x, '$.radio.rssi')"),
    (&["regexp_extract"], 1..2, "pattern", "regexp_extract(x, 'a(b+)', 1)"),
    (&["regexp_extract"], 2..3, "group", "regexp_extract(x, 'a(b+)', 1)"),
    (&["to_local_time"], 1..2, "zone", "ts AT TIME ZONE 'Europe/Berlin'"),
    (&["to_date", "to_time"], 1..usize::MAX, "format", "to_date(x, '%d.%m.%Y')"),
    (
        &[
            "to_timestamp",
            "to_timestamp_seconds",
            "to_timestamp_millis",
            "to_timestamp_micros",
            "to_timestamp_nanos",
            "to_unixtime",
        ],
        1..usize::MAX,
        "format",
        "to_timestamp(x, '%d.%m.%Y %H:%M')",
    ),
];

/// The functions whose second argument is a regular expression.
const MATCHING: [&str; 6] =
    ["regexp_like", "regexp_match", "regexp_replace", "regexp_count", "regexp_instr", "regexp_extract"];

/// Computes arithmetic over constants in an expression, with the same result as row by row: the optimizer would let it
/// wrap around. Types must be coerced already.
///
/// # Errors
///
/// A constant does not fit its type, or makes a call fail at every row ([`check`]).
pub(super) fn fold_constants(expression: Expr) -> Result<Transformed<Expr>> {
    check(&expression)?;
    // Most expressions have nothing to fold, and looking through them takes less stack than transforming them.
    if !expression.exists(|node| Ok(matches!(node, Expr::Literal(ScalarValue::Float64(_), _)) || is_folded(node)))? {
        return Ok(Transformed::no(expression));
    }
    expression.transform_up(|node| {
        if let Expr::Literal(ScalarValue::Float64(Some(value)), metadata) = &node {
            let value = ScalarValue::Float64(Some(canonical_float(*value)));
            return Ok(Transformed::yes(Expr::Literal(value, metadata.clone())));
        }
        if is_folded(&node) { fold(node) } else { Ok(Transformed::no(node)) }
    })
}

/// Whether an expression is arithmetic over constants.
fn is_folded(expression: &Expr) -> bool {
    use Operator::{Divide, Minus, Modulo, Multiply, Plus};
    let is_constant = |expression: &Expr| matches!(expression, Expr::Literal(..));
    match expression {
        Expr::BinaryExpr(binary) => {
            matches!(binary.op, Plus | Minus | Multiply | Divide | Modulo)
                && is_constant(&binary.left)
                && is_constant(&binary.right)
        }
        Expr::Negative(inner) => is_constant(inner),
        Expr::Cast(cast) => is_constant(&cast.expr),
        _ => false,
    }
}

/// Computes arithmetic over constants. A division by 0 and a failing conversion stay, and fail when they are evaluated,
/// if they ever are.
#[inline(never)]
fn fold(node: Expr) -> Result<Transformed<Expr>> {
    let value = evaluated(&node).and_then(|value| match value {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0),
    });
    let may_fail = match &node {
        Expr::BinaryExpr(binary) => matches!(binary.op, Operator::Divide | Operator::Modulo),
        Expr::Cast(_) => true,
        _ => false,
    };
    match value {
        Ok(value) => Ok(Transformed::yes(lit(value))),
        Err(_) if may_fail => Ok(Transformed::no(node)),
        Err(error) => Err(error),
    }
}

/// Fails if the constants of a call would make it fail at every row. Reports the first such call.
fn check(expression: &Expr) -> Result<()> {
    check_constant_arguments(expression)?;
    expression.apply(|node| check_one(node).map(|()| TreeNodeRecursion::Continue)).map(drop)
}

/// Fails if a call has a column or a parameter where its function takes only a constant.
pub(super) fn check_constant_arguments(expression: &Expr) -> Result<()> {
    let check = |node: &Expr| {
        let Expr::ScalarFunction(call) = node else { return Ok(TreeNodeRecursion::Continue) };
        for (_, places, what, example) in CONSTANT.iter().filter(|(names, ..)| names.contains(&call.func.name())) {
            let mut arguments = call.args.iter().enumerate().filter(|(place, _)| places.contains(place));
            if arguments.any(|(_, argument)| !argument.column_refs().is_empty()) {
                let function = call.func.name();
                let naming = NAMING.iter().find(|one| one.function == function && places.contains(&one.place));
                let hint = match naming {
                    Some(naming) => format!("the {what}s are {}", list(naming.names)),
                    None => format!("write for example {example}"),
                };
                let message = format!("the {what} of {function} must be a constant");
                return Err(refused(message, Some(format!("{hint}; CASE chooses among several"))));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    };
    expression.apply(check).map(drop)
}

fn check_one(node: &Expr) -> Result<()> {
    use Operator::{RegexIMatch, RegexMatch, RegexNotIMatch, RegexNotMatch};
    match node {
        Expr::BinaryExpr(binary) if matches!(binary.op, RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch) => {
            check_pattern(&binary.right)
        }
        Expr::ScalarFunction(call) if MATCHING.contains(&call.func.name()) => {
            // Flags may change the meaning of the pattern.
            if call.args.len() <= arguments_without_flags(call.func.name()) {
                call.args.get(1).map_or(Ok(()), check_pattern)?;
            }
            // This tries the flags, if there are any. The third argument of regexp_extract is a number.
            let is_constant = call.args.iter().skip(1).all(|argument| matches!(argument, Expr::Literal(..)));
            if is_constant && call.func.name() != "regexp_extract" { try_over(call, 0, lit("a")) } else { Ok(()) }
        }
        Expr::ScalarFunction(call) => match NAMING.iter().find(|naming| naming.function == call.func.name()) {
            Some(naming) => check_name(call, naming),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The most arguments that a function of regular expressions has without flags.
fn arguments_without_flags(function: &str) -> usize {
    match function {
        "regexp_like" | "regexp_match" => 2,
        "regexp_instr" => 5,
        _ => 3,
    }
}

fn check_pattern(pattern: &Expr) -> Result<()> {
    let Some(text) = text_of(pattern) else { return Ok(()) };
    match Regex::new(text) {
        Ok(_) => Ok(()),
        Err(error @ regex::Error::Syntax(_)) => Err(refused(
            plain_message(&DataFusionError::Plan(error.to_string())),
            Some("a backslash makes a character an ordinary one: '\\(' finds a parenthesis".into()),
        )),
        Err(_) => Err(refused(format!("'{text}' is too large for a regular expression"), None)),
    }
}

fn check_name(call: &ScalarFunction, naming: &Naming) -> Result<()> {
    let Naming { function, what, place, names } = naming;
    let (Some(name), 2) = (call.args.get(*place), call.args.len()) else { return Ok(()) };
    let all = format!("the {what}s are {}", list(names));
    if !matches!(name, Expr::Literal(..)) {
        return Ok(());
    }
    let is_known = match *what {
        // Units have more spellings than are listed here.
        "unit" => try_over(call, 1 - place, lit(ScalarValue::TimestampMicrosecond(Some(0), None))).is_ok(),
        "method" => text_of(name).is_none_or(|name| names.iter().any(|known| known.eq_ignore_ascii_case(name))),
        _ => text_of(name).is_none_or(|name| names.contains(&name) || name == "base64pad"),
    };
    if is_known {
        return Ok(());
    }
    let Some(name) = text_of(name) else {
        return Err(refused(format!("the {what} of {function} must be a text"), Some(all)));
    };
    let hint = match suggest::nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean '{near}'? {all}"),
        None => all,
    };
    Err(refused(format!("'{name}' is no {what} of {function}"), Some(hint)))
}

/// Calls the function with `value` as its argument at index `place`, to see whether it fails.
fn try_over(call: &ScalarFunction, place: usize, value: Expr) -> Result<()> {
    let mut tried = call.clone();
    tried.args[place] = value;
    evaluated(&Expr::ScalarFunction(tried)).map(drop)
}

/// Evaluates an expression without columns.
fn evaluated(expression: &Expr) -> Result<ColumnarValue> {
    let one_row = RecordBatchOptions::new().with_row_count(Some(1));
    let none = RecordBatch::try_new_with_options(Schema::empty().into(), vec![], &one_row)?;
    compile(expression, &DFSchema::empty())?.evaluate(&none)
}

fn text_of(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    }
}

fn refused(message: String, hint: Option<String>) -> DataFusionError {
    let error = RelationalError { problem: Problem::Other(message), place: None, hint };
    DataFusionError::External(Box::new(error))
}
