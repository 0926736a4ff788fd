//! Spells out expressions that would otherwise be read with a part left out, so that all of it counts: the types of
//! casts with their details. It also spells out expressions that would be read as something else: a regular expression
//! that matches every text, and functions for constructs that have a syntax of their own.
//!
//! A cast to a type that keeps less than the types of columns becomes two. `CAST(n AS SMALLINT)` is a BIGINT that was
//! brought through 16 bits, so a value that does not fit is an error of its row; `CAST(t AS VARCHAR(3))` is the
//! beginning of a TEXT. Details that are not supported are refused.

use datafusion_sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion_sql::sqlparser::ast::{
    self, BinaryOperator, CharacterLength, DataType, ExactNumberInfo, Expr, FunctionArg, FunctionArgExpr,
    UnaryOperator, Value,
};

use crate::clauses::start;
use crate::error::{Problem, RelationalError};
use crate::row_values;
use crate::similar;
use crate::subscripts;
use crate::times;
use crate::walk::{NodeMut, change_expression};
use crate::within_group;

/// What a cast to a type of SQL does.
struct Conversion {
    /// The type of the converted values.
    to: DataType,
    /// The type that integers must fit.
    within: Option<DataType>,
    /// The most characters that are kept of a text.
    characters_max: Option<u64>,
}

/// Spells out the times, the elements of arrays, the comparisons of rows, SIMILAR TO and WITHIN GROUP in an expression
/// of an application.
///
/// # Errors
/// An unknown unit of time, the time of evaluation, a comparison of rows or a pattern that is not supported, or two
/// orders.
pub fn spell_out_times(expression: &mut Expr) -> Result<(), RelationalError> {
    let (mut found, mut copied) = (None, 0);
    change_expression(expression, &mut |node, _| {
        let NodeMut::Expr(part) = node else { return };
        let place = start(part);
        subscripts::spell_out(part);
        let spelled = times::spell_out(part).and_then(|()| row_values::spell_out(part, &mut copied));
        let spelled = spelled.and_then(|()| similar::spell_out(part));
        let spelled = spelled.and_then(|()| match part {
            Expr::Function(function) => within_group::spell_out(function, &name_of(function)),
            _ => Ok(()),
        });
        if let (Err(error), None) = (spelled, &found) {
            found = Some(RelationalError { place, ..error });
        }
    });
    found.map_or(Ok(()), Err)
}

/// Spells out one expression, whose parts are spelled out already. `copied` counts for all expressions of a query.
///
/// # Errors
/// A cast to a type that is not known, or with details that are not supported.
pub(crate) fn spell_out(expression: &mut Expr, copied: &mut usize) -> Result<(), RelationalError> {
    times::spell_out(expression)?;
    subscripts::spell_out(expression);
    row_values::spell_out(expression, copied)?;
    similar::spell_out(expression)?;
    match expression {
        Expr::Cast { array: true, .. } | Expr::Cast { format: Some(_), .. } => {
            let error = RelationalError::new("this form of CAST is not supported yet");
            return Err(error.hint("write CAST(value AS type)"));
        }
        Expr::Cast { kind, expr, data_type, .. } => {
            let Conversion { to, within, characters_max } = conversion(data_type)?;
            *data_type = to;
            if let Some(within) = within {
                let (kind, written) = (kind.clone(), Box::new(taken(expr)));
                **expr = Expr::Cast { kind, expr: written, data_type: within, array: false, format: None };
            }
            if let Some(characters) = characters_max {
                let text = taken(expression);
                let number = |number: u64| Some(Box::new(Expr::Value(Value::Number(number.to_string(), false).into())));
                *expression = Expr::Substring {
                    expr: Box::new(text),
                    substring_from: number(1),
                    substring_for: number(characters),
                    special: false,
                    shorthand: false,
                };
            }
        }
        Expr::TypedString(typed) => match &typed.data_type {
            DataType::Date | DataType::Timestamp(..) | DataType::Time(..) => {
                typed.data_type = conversion(&typed.data_type)?.to
            }
            other => {
                let error = RelationalError::new(format!("a constant of type {other} is not supported yet"));
                return Err(error.hint("write CAST('...' AS type)"));
            }
        },
        // DataFusion's planner knows no plus for a null without a type, and a plus does nothing.
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } if is_null(expr) => *expression = taken(expr),
        // DataFusion's planner puts the minus in front of the text, where it applies only to the first number.
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } if matches!(**expr, Expr::Interval(_)) => {
            **expr = Expr::Nested(Box::new(taken(expr)));
        }
        Expr::Interval(interval) if matches!(*interval.value, Expr::UnaryOp { op: UnaryOperator::Minus, .. }) => {
            let Expr::UnaryOp { expr: amount, .. } = taken(&mut interval.value) else { return Ok(()) };
            interval.value = amount;
            let interval = Box::new(Expr::Nested(Box::new(taken(expression))));
            *expression = Expr::Nested(Box::new(Expr::UnaryOp { op: UnaryOperator::Minus, expr: interval }));
        }
        // The optimizer takes this one pattern for IS NOT NULL, which is false and not null for null. An empty pattern
        // matches the same texts.
        Expr::BinaryOp { op, right, .. } if is_match(op) => pattern_of_all(right),
        Expr::Function(function) => {
            let name = name_of(function);
            within_group::spell_out(function, &name)?;
            let arguments = match &mut function.args {
                ast::FunctionArguments::List(list) => list.args.iter_mut().filter_map(|argument| match argument {
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(expression)) => Some(expression),
                    _ => None,
                }),
                _ => return Ok(()),
            };
            let arguments: Vec<&mut Expr> = arguments.collect();
            match (name.as_str(), <[&mut Expr; 3]>::try_from(arguments)) {
                ("regexp_like", Ok([_, pattern, _])) => pattern_of_all(pattern),
                ("regexp_like", Err(arguments)) => arguments.into_iter().skip(1).take(1).for_each(pattern_of_all),
                ("encode", Err(mut arguments)) => {
                    if let Some(Expr::Value(value)) = arguments.get_mut(1)
                        && matches!(&value.value, Value::SingleQuotedString(form) if form == "base64")
                    {
                        value.value = Value::SingleQuotedString("base64pad".into());
                    }
                }
                // Syntax of their own gives these functions their types: the results of CASE are brought to one type.
                ("if", Ok([condition, result, other])) => {
                    let [condition, result, other] = [condition, result, other].map(taken);
                    *expression = Expr::Case {
                        case_token: AttachedToken::empty(),
                        end_token: AttachedToken::empty(),
                        operand: None,
                        conditions: vec![ast::CaseWhen { condition, result }],
                        else_result: Some(Box::new(other)),
                    };
                }
                ("mod", Err(arguments)) => {
                    if let Ok([left, right]) = <[&mut Expr; 2]>::try_from(arguments) {
                        let [left, right] = [left, right].map(|side| Box::new(Expr::Nested(Box::new(taken(side)))));
                        let remainder = Expr::BinaryOp { left, op: BinaryOperator::Modulo, right };
                        *expression = Expr::Nested(Box::new(remainder));
                    }
                }
                _ => {}
            }
        }
        _ => {}
    }
    Ok(())
}

/// The name of a function in lower case.
fn name_of(function: &ast::Function) -> String {
    function.name.to_string().trim_matches('"').to_lowercase()
}

/// Whether an expression is the word NULL, also in parentheses.
fn is_null(expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_null(inner),
        Expr::Value(value) => matches!(value.value, Value::Null),
        _ => false,
    }
}

/// Takes the expression out of its place.
fn taken(expression: &mut Expr) -> Expr {
    std::mem::replace(expression, Expr::Value(Value::Null.into()))
}

/// Replaces a regular expression that matches every text by an empty one.
fn pattern_of_all(pattern: &mut Expr) {
    if let Expr::Value(value) = pattern
        && matches!(&value.value, Value::SingleQuotedString(pattern) if pattern == ".*")
    {
        value.value = Value::SingleQuotedString(String::new());
    }
}

fn is_match(operator: &BinaryOperator) -> bool {
    use BinaryOperator::{PGRegexIMatch, PGRegexMatch, PGRegexNotIMatch, PGRegexNotMatch};
    matches!(operator, PGRegexMatch | PGRegexIMatch | PGRegexNotMatch | PGRegexNotIMatch)
}

fn conversion(data_type: &DataType) -> Result<Conversion, RelationalError> {
    let to = |to: DataType| Conversion { to, within: None, characters_max: None };
    let within = |within: DataType| Conversion { within: Some(within), ..to(DataType::BigInt(None)) };
    let refused = |hint: &str| Err(RelationalError::new(format!("the type {data_type} is not supported")).hint(hint));
    Ok(match data_type {
        DataType::Text | DataType::String(None) => to(DataType::Text),
        DataType::Varchar(length) | DataType::CharVarying(length) | DataType::CharacterVarying(length) => {
            match length {
                None | Some(CharacterLength::Max) => to(DataType::Text),
                Some(CharacterLength::IntegerLength { length: characters @ 1.., unit: None }) => {
                    Conversion { characters_max: Some(*characters), ..to(DataType::Text) }
                }
                Some(_) => return refused("give a length in characters, at least 1: VARCHAR(10)"),
            }
        }
        DataType::Char(_) | DataType::Character(_) => {
            return refused("CHAR fills up with blanks, which nothing here does: write TEXT, or VARCHAR(10)");
        }
        DataType::BigInt(None) | DataType::Int8(None) => to(DataType::BigInt(None)),
        DataType::Int(None) | DataType::Integer(None) | DataType::Int4(None) => within(DataType::Int(None)),
        DataType::SmallInt(None) | DataType::Int2(None) => within(DataType::SmallInt(None)),
        DataType::TinyInt(None) => within(DataType::TinyInt(None)),
        DataType::BigInt(_)
        | DataType::Int8(_)
        | DataType::Int(_)
        | DataType::Integer(_)
        | DataType::Int4(_)
        | DataType::SmallInt(_)
        | DataType::Int2(_)
        | DataType::TinyInt(_) => return refused("write the type without a width"),
        DataType::Double(ExactNumberInfo::None)
        | DataType::Float(ExactNumberInfo::None | ExactNumberInfo::Precision(1..=53))
        | DataType::DoublePrecision
        | DataType::Real
        | DataType::Float4
        | DataType::Float8 => to(DataType::Double(ExactNumberInfo::None)),
        DataType::Double(_) | DataType::Float(_) => {
            return refused("write DOUBLE, or DECIMAL(10, 2) for a fixed number of decimals");
        }
        DataType::Boolean | DataType::Bool => to(DataType::Boolean),
        DataType::Date => to(DataType::Date),
        DataType::Timestamp(None | Some(6), ast::TimezoneInfo::None | ast::TimezoneInfo::WithoutTimeZone) => {
            to(DataType::Timestamp(Some(6), ast::TimezoneInfo::None))
        }
        DataType::Timestamp(_, ast::TimezoneInfo::None | ast::TimezoneInfo::WithoutTimeZone) => {
            return refused("TIMESTAMP has six digits of a second; date_trunc('second', ts) leaves them out");
        }
        DataType::Timestamp(..) => {
            let error = RelationalError::new("TIMESTAMP WITH TIME ZONE is not supported yet");
            return Err(error.hint("TIMESTAMP is always in UTC"));
        }
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info) => {
            let (precision, scale) = match *info {
                ExactNumberInfo::None => (38, 10),
                ExactNumberInfo::Precision(precision) => (precision, 0),
                ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
            };
            if !(1..=38).contains(&precision) || !u64::try_from(scale).is_ok_and(|scale| scale <= precision) {
                return refused("DECIMAL has a precision from 1 to 38 and a scale from 0 to the precision");
            }
            to(DataType::Decimal(ExactNumberInfo::PrecisionAndScale(precision, scale)))
        }
        DataType::Interval { fields: None, precision: None } => to(data_type.clone()),
        DataType::Interval { .. } => return refused("write INTERVAL without qualifiers"),
        DataType::Time(None, ast::TimezoneInfo::None | ast::TimezoneInfo::WithoutTimeZone) => {
            to(DataType::Time(None, ast::TimezoneInfo::None))
        }
        DataType::Time(..) => return refused("write TIME, which has no zone and keeps all digits of a second"),
        other => {
            return Err(RelationalError { problem: Problem::UnknownType(other.to_string()), place: None, hint: None });
        }
    })
}
