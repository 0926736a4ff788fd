//! Constants as the text of an application has them.

use std::fmt;

use arrow::array::TimestampMicrosecondArray;
use arrow::datatypes::{IntervalMonthDayNano, TimestampMicrosecondType};
use arrow::temporal_conversions::as_datetime;
use arrow::util::display::array_value_to_string;

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
    /// `SECRET name`: a value that the statement does not contain. Only options of sources, sinks, inputs and outputs
    /// have such values.
    Secret(String),
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
            Self::Secret(name) => write!(f, "SECRET \"{}\"", name.replace('"', "\"\"")),
        }
    }
}

impl Literal {
    /// The constant as plain text: text without quotes, no value as an empty text, and a secret by its name.
    pub fn plain_text(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Boolean(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(value) => value.clone(),
            Self::Interval(value) => interval_text(*value),
            Self::Timestamp(us) => {
                let array = TimestampMicrosecondArray::from(vec![*us]);
                array_value_to_string(&array, 0).unwrap_or_else(|_| us.to_string())
            }
            Self::Secret(_) => self.to_string(),
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

#[cfg(test)]
mod tests {
    use arrow::datatypes::IntervalMonthDayNano;

    use super::*;

    #[test]
    fn intervals_are_written_as_text_that_reads_back_as_the_same_value() {
        for (months, days, nanoseconds) in
            [(0, 0, 90_000_000_000), (1, 2, 1), (0, -3, -500_000_000), (0, 0, -1_500_000_000), (0, 0, 0)]
        {
            let value = IntervalMonthDayNano::new(months, days, nanoseconds);
            let text = Literal::Interval(value).plain_text();
            let array = arrow::array::StringArray::from(vec![text.as_str()]);
            let read = arrow::compute::cast(
                &array,
                &arrow::datatypes::DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano),
            )
            .unwrap();
            let read = arrow::array::AsArray::as_primitive::<arrow::datatypes::IntervalMonthDayNanoType>(&read);
            assert_eq!(read.value(0), value, "{text}");
        }
    }
}
