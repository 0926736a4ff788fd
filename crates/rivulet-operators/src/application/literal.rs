//! Constants as the text of an application has them.

use std::fmt;

use arrow::datatypes::{IntervalMonthDayNano, TimestampMicrosecondType};
use arrow::temporal_conversions::as_datetime;

/// A constant as written in a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// `NULL`.
    Null,
    /// `TRUE` or `FALSE`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a point or an exponent.
    Float(f64),
    /// `'text'`.
    Text(String),
    /// `INTERVAL '5 minutes'`.
    Interval(IntervalMonthDayNano),
    /// `TIMESTAMP '2026-11-21 08:30:00'`, in microseconds since the epoch, UTC.
    Timestamp(i64),
}

/// Writes the constant as SQL.
impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            Self::Interval(value) => write!(f, "INTERVAL '{}'", interval_text(*value)),
            Self::Timestamp(value_us) => match as_datetime::<TimestampMicrosecondType>(*value_us) {
                Some(time) => write!(f, "TIMESTAMP '{time}'"),
                None => write!(f, "TIMESTAMP {value_us}"),
            },
        }
    }
}

/// Returns an interval as SQL writes it: `5 minutes`, `1 day 30 seconds`; each part in its largest whole unit.
pub fn interval_text(interval: IntervalMonthDayNano) -> String {
    const MONTHS: [(i64, &str); 2] = [(12, "year"), (1, "month")];
    const DAYS: [(i64, &str); 1] = [(1, "day")];
    const NANOSECONDS: [(i64, &str); 6] = [
        (3_600_000_000_000, "hour"),
        (60_000_000_000, "minute"),
        (1_000_000_000, "second"),
        (1_000_000, "millisecond"),
        (1000, "microsecond"),
        (1, "nanosecond"),
    ];
    let parts: [(i64, &[(i64, &str)]); 3] =
        [(interval.months.into(), &MONTHS), (interval.days.into(), &DAYS), (interval.nanoseconds, &NANOSECONDS)];
    let words: Vec<String> = parts
        .into_iter()
        .filter(|(amount, _)| *amount != 0)
        .filter_map(|(amount, units)| {
            let (length, unit) = units.iter().find(|(length, _)| amount % length == 0)?;
            let number = amount / length;
            Some(format!("{number} {unit}{}", if number.abs() == 1 { "" } else { "s" }))
        })
        .collect();
    if words.is_empty() { "0 seconds".into() } else { words.join(" ") }
}
