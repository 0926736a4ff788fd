//! Times with a syntax of their own, spelled out as calls: `TIMESTAMPDIFF(DAY, a, b)`, whose unit is a word,
//! `FLOOR(ts TO HOUR)`, `CEIL(ts TO MONTH)`, `ts AT TIME ZONE 'Europe/Berlin'`, `FROM_UNIXTIME(n, 'yyyy-MM-dd')`.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion_sql::sqlparser::ast::{
    self, BinaryOperator, CeilFloorKind, DateTimeField, Expr, FunctionArg, FunctionArgExpr, Spanned, Value,
};

use crate::error::RelationalError;

/// The type of timestamps: microseconds, without a zone.
pub(crate) const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// The units of time, and the interval of one of each.
const UNITS: [(&str, &str); 10] = [
    ("microsecond", "1 microsecond"),
    ("millisecond", "1 millisecond"),
    ("second", "1 second"),
    ("minute", "1 minute"),
    ("hour", "1 hour"),
    ("day", "1 day"),
    ("week", "7 days"),
    ("month", "1 month"),
    ("quarter", "3 months"),
    ("year", "1 year"),
];

/// Spells out one expression, whose parts are spelled out already.
pub(crate) fn spell_out(expression: &mut Expr) -> Result<(), RelationalError> {
    match expression {
        Expr::Floor { expr, field: CeilFloorKind::DateTimeField(field) } if *field != DateTimeField::NoDateTime => {
            let (unit, _) = unit_named(&field.to_string(), "FLOOR")?;
            *expression = call("date_trunc", vec![text(unit), taken(expr)]);
        }
        // The end of the unit that ends at this time or after it.
        Expr::Ceil { expr, field: CeilFloorKind::DateTimeField(field) } if *field != DateTimeField::NoDateTime => {
            let (unit, length) = unit_named(&field.to_string(), "CEIL")?;
            let before = joined(taken(expr), BinaryOperator::Minus, interval("1 microsecond"));
            let begin = call("date_trunc", vec![text(unit), before]);
            *expression = joined(begin, BinaryOperator::Plus, interval(length));
        }
        Expr::AtTimeZone { timestamp, time_zone } => {
            *expression = call("to_local_time", vec![taken(timestamp), taken(time_zone)]);
        }
        Expr::Function(function) => {
            let name = function.name.to_string().trim_matches('"').to_lowercase();
            if !["timestampdiff", "timestampadd", "unix_timestamp", "from_unixtime"].contains(&name.as_str()) {
                return Ok(());
            }
            let ast::FunctionArguments::List(list) = &mut function.args else { return Ok(()) };
            let arguments = list.args.iter_mut().filter_map(|argument| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expression)) => Some(expression),
                _ => None,
            });
            let mut arguments: Vec<&mut Expr> = arguments.collect();
            match (name.as_str(), arguments.as_mut_slice()) {
                ("timestampdiff" | "timestampadd", [unit, _, _]) => {
                    let written = match &**unit {
                        Expr::Identifier(word) => word.value.clone(),
                        Expr::Value(value) => value.value.clone().into_string().unwrap_or_else(|| value.to_string()),
                        other => other.to_string(),
                    };
                    let (known, _) = unit_named(&written, &name.to_uppercase())?;
                    **unit = text(known);
                }
                ("timestampdiff" | "timestampadd", _) => {
                    let example = match name.as_str() {
                        "timestampdiff" => "TIMESTAMPDIFF(MINUTE, one, other)",
                        _ => "TIMESTAMPADD(HOUR, 2, ts)",
                    };
                    let error = RelationalError::new(format!("{} takes a unit and two values", name.to_uppercase()));
                    return Err(error.hint(format!("write for example {example}")));
                }
                ("unix_timestamp", []) => {
                    let why = "asks for the time of evaluation, which would make results depend on load";
                    let error = RelationalError::new(format!("UNIX_TIMESTAMP() {why}"));
                    return Err(error.hint("give it a time: UNIX_TIMESTAMP(ts)"));
                }
                ("unix_timestamp", [_, _, ..]) => {
                    let error = RelationalError::new("a format in UNIX_TIMESTAMP is not supported yet");
                    return Err(error.hint("write to_unixtime(text, '%Y-%m-%d %H:%M:%S'), with percent signs"));
                }
                ("from_unixtime", [seconds, format]) => {
                    let time = timestamp(call("from_unixtime", vec![taken(seconds)]));
                    *expression = call("date_format", vec![time, taken(format)]);
                }
                _ => {}
            }
        }
        _ => {}
    }
    Ok(())
}

/// The unit with this name and the interval of one, in words.
fn unit_named(written: &str, called: &str) -> Result<(&'static str, &'static str), RelationalError> {
    let written = written.to_lowercase();
    let known = UNITS.into_iter().find(|(unit, _)| *unit == written || written.strip_suffix('s') == Some(*unit));
    known.ok_or_else(|| {
        let names = UNITS.map(|(unit, _)| unit);
        let (last, others) = names.split_last().expect("there are units");
        RelationalError::new(format!("'{written}' is no unit of {called}"))
            .hint(format!("the units are {} and {last}", others.join(", ")))
    })
}

/// Takes the expression out of its place.
pub(crate) fn taken(expression: &mut Expr) -> Expr {
    std::mem::replace(expression, Expr::Value(Value::Null.into()))
}

pub(crate) fn text(text: &str) -> Expr {
    Expr::Value(Value::SingleQuotedString(text.to_owned()).into())
}

pub(crate) fn interval(length: &str) -> Expr {
    Expr::Interval(ast::Interval {
        value: Box::new(text(length)),
        leading_field: None,
        leading_precision: None,
        last_field: None,
        fractional_seconds_precision: None,
    })
}

/// Converts a time in seconds to a TIMESTAMP like all others.
fn timestamp(time: Expr) -> Expr {
    let data_type = ast::DataType::Timestamp(Some(6), ast::TimezoneInfo::None);
    Expr::Cast { kind: ast::CastKind::Cast, expr: Box::new(time), data_type, array: false, format: None }
}

pub(crate) fn joined(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    let left = Box::new(Expr::Nested(Box::new(left)));
    Expr::Nested(Box::new(Expr::BinaryOp { left, op, right: Box::new(right) }))
}

/// Makes a call. Its place is that of its first argument that has one.
pub(crate) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let span = arguments.iter().map(Spanned::span).find(|span| span.start.line > 0);
    let name = match span {
        Some(span) => ast::Ident::with_span(span, name),
        None => ast::Ident::new(name),
    };
    let argument = |one| FunctionArg::Unnamed(FunctionArgExpr::Expr(one));
    Expr::Function(ast::Function {
        name: ast::ObjectName::from(vec![name]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: arguments.into_iter().map(argument).collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}
