//! Constants and the types of casts: numbers, intervals, times.

use datafusion_sql::sqlparser::ast::{self, Expr, Value};

use super::not_yet;
use crate::value::{parse_interval, parse_timestamp_us, type_named};
use crate::{Position, SqlError, suggest};

pub(super) fn check_number(digits: &str, position: Position) -> Result<(), SqlError> {
    let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    let fits = if is_whole { digits.parse::<i64>().is_ok() } else { digits.parse::<f64>().is_ok_and(f64::is_finite) };
    if fits {
        return Ok(());
    }
    Err(SqlError::new(position, format!("the number {digits} is out of range")))
}

/// The constant of an INTERVAL with its unit, `5 minutes`; nothing if it is not a constant.
pub(in crate::plan) fn interval_text(interval: &ast::Interval) -> Option<String> {
    let Expr::Value(value) = interval.value.as_ref() else { return None };
    let (Value::SingleQuotedString(amount) | Value::Number(amount, _)) = &value.value else { return None };
    Some(match &interval.leading_field {
        Some(unit) => format!("{amount} {unit}"),
        None => amount.clone(),
    })
}

pub(super) fn check_interval(interval: &mut ast::Interval, position: Position) -> Result<(), SqlError> {
    let example = "write for example INTERVAL '5 minutes'";
    if interval.leading_precision.is_some()
        || interval.last_field.is_some()
        || interval.fractional_seconds_precision.is_some()
    {
        return Err(not_yet(position, "this form of INTERVAL").hint(example));
    }
    if let Expr::Value(value) = interval.value.as_ref()
        && let Value::Placeholder(placeholder) = &value.value
    {
        return Err(SqlError::new(position, format!("INTERVAL takes a constant, not '{placeholder}'"))
            .hint(format!("declare the parameter as INTERVAL and write {placeholder} alone")));
    }
    let Some(text) = interval_text(interval) else {
        return Err(SqlError::new(position, "INTERVAL takes a string").hint(example));
    };
    match parse_interval(&text) {
        Some(_) => Ok(()),
        None => Err(SqlError::new(position, format!("'{text}' is not an interval")).hint(example)),
    }
}

pub(super) fn check_typed_string(typed: &mut ast::TypedString, position: Position) -> Result<(), SqlError> {
    let Value::SingleQuotedString(text) = &typed.value.value else {
        return Err(SqlError::new(position, "expected a string in single quotes"));
    };
    match &typed.data_type {
        ast::DataType::Timestamp(_, zone) if !is_zoned(*zone) => {
            if parse_timestamp_us(text).is_none() {
                return Err(SqlError::new(position, format!("'{text}' is not a timestamp"))
                    .hint("write for example TIMESTAMP '2026-11-21 08:30:00'"));
            }
        }
        ast::DataType::Date => {
            if parse_timestamp_us(text).is_none() {
                return Err(SqlError::new(position, format!("'{text}' is not a date"))
                    .hint("write for example DATE '2026-11-21'"));
            }
        }
        other => return Err(not_yet(position, &format!("a constant of type {other}"))),
    }
    typed.data_type = cast_type(&typed.data_type, position)?;
    Ok(())
}

fn is_zoned(zone: ast::TimezoneInfo) -> bool {
    matches!(zone, ast::TimezoneInfo::WithTimeZone | ast::TimezoneInfo::Tz)
}

/// The type that a cast to `data_type` has in the language: the same as that of a column declared so. DataFusion would
/// take FLOAT as a number of 32 bits and TIMESTAMP as nanoseconds.
pub(super) fn cast_type(data_type: &ast::DataType, position: Position) -> Result<ast::DataType, SqlError> {
    use ast::DataType;
    Ok(match data_type {
        DataType::Timestamp(_, zone) if !is_zoned(*zone) => DataType::Timestamp(Some(6), ast::TimezoneInfo::None),
        DataType::Timestamp(..) => {
            return Err(not_yet(position, "TIMESTAMP WITH TIME ZONE").hint("TIMESTAMP is always in UTC"));
        }
        DataType::DoublePrecision => DataType::Double(ast::ExactNumberInfo::None),
        DataType::Date | DataType::Numeric(_) | DataType::Decimal(_) | DataType::Interval { fields: None, .. } => {
            data_type.clone()
        }
        other => {
            let name = other.to_string();
            let word: String = name.chars().take_while(|character| character.is_alphanumeric()).collect();
            let known = type_named(&word).filter(|_| !name.contains(['<', '[']) && !name.contains("UNSIGNED"));
            match known {
                Some(arrow::datatypes::DataType::Utf8) => DataType::Text,
                Some(arrow::datatypes::DataType::Int64) => DataType::BigInt(None),
                Some(arrow::datatypes::DataType::Float64) => DataType::Double(ast::ExactNumberInfo::None),
                Some(arrow::datatypes::DataType::Boolean) => DataType::Boolean,
                _ => {
                    let error = SqlError::new(position, format!("unknown type '{name}'"));
                    return Err(match suggest::nearest(&name, crate::value::TYPE_NAMES) {
                        Some(near) => error.did_you_mean(Some(near)),
                        None => error.hint("types are TEXT, BIGINT, DOUBLE, BOOLEAN, TIMESTAMP, DATE and INTERVAL"),
                    });
                }
            }
        }
    })
}
