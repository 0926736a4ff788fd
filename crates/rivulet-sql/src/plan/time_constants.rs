//! Checks of constants of time.

use datafusion_sql::sqlparser::ast::{self, Expr, Value};

use crate::value::{parse_interval, parse_timestamp_us};
use crate::{Position, SqlError};

/// Returns the constant of an INTERVAL with its unit, such as `5 minutes`; `None` if it is not a constant.
fn interval_text(interval: &ast::Interval) -> Option<String> {
    let Expr::Value(value) = interval.value.as_ref() else { return None };
    let (Value::SingleQuotedString(amount) | Value::Number(amount, _)) = &value.value else { return None };
    Some(match &interval.leading_field {
        Some(unit) => format!("{amount} {unit}"),
        None => amount.clone(),
    })
}

pub(super) fn check_interval(interval: &ast::Interval, position: Position) -> Result<(), SqlError> {
    let example = "write for example INTERVAL '5 minutes'";
    if interval.leading_precision.is_some()
        || interval.last_field.is_some()
        || interval.fractional_seconds_precision.is_some()
    {
        return Err(SqlError::new(position, "this form of INTERVAL is not supported yet").hint(example));
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

pub(super) fn check_typed_string(typed: &ast::TypedString, position: Position) -> Result<(), SqlError> {
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
        ast::DataType::Time(_, zone) if !is_zoned(*zone) => {
            if parse_timestamp_us(&format!("1970-01-01T{text}")).is_none() {
                return Err(SqlError::new(position, format!("'{text}' is not a time of day"))
                    .hint("write for example TIME '08:30:00'"));
            }
        }
        other => return Err(SqlError::new(position, format!("a constant of type {other} is not supported yet"))),
    }
    Ok(())
}

fn is_zoned(zone: ast::TimezoneInfo) -> bool {
    matches!(zone, ast::TimezoneInfo::WithTimeZone | ast::TimezoneInfo::Tz)
}
