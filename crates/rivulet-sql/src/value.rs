//! The types parameters and columns may have, and single values of them.

use arrow::compute::kernels::cast_utils::{
    IntervalParseConfig, IntervalUnit as ParsedUnit, parse_interval_month_day_nano_config, string_to_timestamp_nanos,
};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalMonthDayNano, IntervalUnit, TimeUnit};
use datafusion_common::ScalarValue;
use rivulet_dataflow::{held_type, is_json, map_value};

pub use rivulet_operators::application::{Literal, interval_text};

/// The type of timestamps: microseconds since the Unix epoch, UTC.
pub(crate) const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
/// The type of intervals.
pub(crate) const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// The names under which types may be declared, for suggestions.
pub(crate) const TYPE_NAMES: [&str; 15] = [
    "TEXT",
    "VARCHAR",
    "STRING",
    "BIGINT",
    "INT",
    "INTEGER",
    "SMALLINT",
    "DOUBLE",
    "FLOAT",
    "REAL",
    "DECIMAL",
    "BOOLEAN",
    "TIMESTAMP",
    "DATE",
    "TIME",
];

/// The type of times of day: nanoseconds since midnight, as in casts and constants.
pub(crate) const TIME: DataType = DataType::Time64(TimeUnit::Nanosecond);

/// Returns the Arrow type of a declared type name, in any case.
pub(crate) fn type_named(name: &str) -> Option<DataType> {
    Some(match name.to_ascii_lowercase().as_str() {
        "text" | "varchar" | "string" => DataType::Utf8,
        "bigint" | "int" | "integer" | "smallint" | "tinyint" | "int8" | "int4" | "int2" => DataType::Int64,
        "double" | "float" | "real" | "float8" | "float4" => DataType::Float64,
        "boolean" | "bool" => DataType::Boolean,
        "timestamp" => TIMESTAMP,
        "interval" => INTERVAL,
        _ => return None,
    })
}

/// Returns the Arrow type of a type name, in any case, as a source or sink of big queries declares it: numbers have as
/// many bits as they say. `DECIMAL` is not included, because it needs its digits.
pub(crate) fn exact_type_named(name: &str) -> Option<DataType> {
    Some(match name.to_ascii_lowercase().as_str() {
        "tinyint" => DataType::Int8,
        "smallint" | "int2" => DataType::Int16,
        "int" | "integer" | "int4" => DataType::Int32,
        "real" | "float" | "float4" => DataType::Float32,
        "date" => DataType::Date32,
        "time" => TIME,
        other => return type_named(other),
    })
}

/// The name of a type in SQL as a source or sink declares it, with bits and digits.
pub fn declared_type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Float32 => "REAL".into(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision}, {scale})"),
        other => type_name(other),
    }
}

/// The name of the type of a column in SQL, as a source or sink declares it.
pub fn column_type_name(column: &Field) -> String {
    match held_type(column) {
        Some(held) => type_name(&held),
        None => declared_type_name(column.data_type()),
    }
}

/// The name of the type of a part of a type in SQL.
fn part_name(part: &Field) -> String {
    if is_json(part) { "JSON".into() } else { type_name(part.data_type()) }
}

/// The name of a type in SQL.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8 => "TEXT".into(),
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => "BIGINT".into(),
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => "BIGINT".into(),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => "DOUBLE".into(),
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Timestamp(..) => "TIMESTAMP".into(),
        DataType::Interval(_) | DataType::Duration(_) => "INTERVAL".into(),
        DataType::Date32 | DataType::Date64 => "DATE".into(),
        DataType::Time32(_) | DataType::Time64(_) => "TIME".into(),
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            "DECIMAL".into()
        }
        DataType::Null => "NULL".into(),
        DataType::List(element) => format!("{} ARRAY", part_name(element)),
        DataType::Map(entries, _) => match map_value(entries) {
            Some(value) => format!("MAP<TEXT, {}>", part_name(value)),
            None => "a map".into(),
        },
        DataType::Struct(fields) => {
            let is_plain = |name: &str| name.chars().all(|one| matches!(one, 'a'..='z' | '0'..='9' | '_'));
            let field = |field: &FieldRef| match is_plain(field.name()) {
                true => format!("{} {}", field.name(), part_name(field)),
                false => format!("\"{}\" {}", field.name().replace('"', "\"\""), part_name(field)),
            };
            format!("ROW<{}>", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        DataType::LargeList(_) | DataType::FixedSizeList(..) => "a list".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "bytes".into()
        }
        DataType::Dictionary(_, values) => type_name(values),
        _ => "a value of a kind that SQL has no name for here".into(),
    }
}

impl<'a> From<&'a Literal> for ParamValue<'a> {
    fn from(literal: &'a Literal) -> Self {
        match literal {
            Literal::Null => Self::Null,
            Literal::Boolean(value) => Self::Boolean(*value),
            Literal::Integer(value) => Self::Integer(*value),
            Literal::Float(value) => Self::Float(*value),
            Literal::Text(value) => Self::Text(value),
            Literal::Interval(value) => Self::Interval(*value),
            Literal::Timestamp(value) => Self::Timestamp(*value),
            // The parser makes no parameter of a secret.
            Literal::Secret(name) => Self::Text(name),
        }
    }
}

/// A constant as a scalar of its type `data_type`; null if it has another type.
pub(crate) fn scalar_of(literal: &Literal, data_type: &DataType) -> ScalarValue {
    ParamValue::from(literal).coerce(data_type).unwrap_or(Typed::Null).to_scalar(data_type)
}

/// A value for a parameter, as it comes from SQL, JSON or the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParamValue<'a> {
    /// No value.
    Null,
    /// Yes or no.
    Boolean(bool),
    /// A whole number. Fits DOUBLE, and TIMESTAMP as milliseconds since the epoch.
    Integer(i64),
    /// A number. Fits BIGINT if it is whole.
    Float(f64),
    /// Text. Fits INTERVAL (`5 minutes`) and TIMESTAMP (`2026-11-21T08:30:00Z`).
    Text(&'a str),
    /// An interval.
    Interval(IntervalMonthDayNano),
    /// Microseconds since the epoch.
    Timestamp(i64),
}

/// A value in the type of its parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Typed<'a> {
    Null,
    Boolean(bool),
    Int64(i64),
    Float64(f64),
    Text(&'a str),
    Timestamp(i64),
    Interval(IntervalMonthDayNano),
}

impl<'a> ParamValue<'a> {
    /// Converts the value to `data_type`. The error says what to write instead, where that is known.
    #[inline]
    pub(crate) fn coerce(self, data_type: &DataType) -> Result<Typed<'a>, Option<String>> {
        Ok(match (self, data_type) {
            (Self::Null, _) => Typed::Null,
            (Self::Text(text), DataType::Utf8) => Typed::Text(text),
            (Self::Float(value), DataType::Float64) => Typed::Float64(value),
            (Self::Integer(value), DataType::Float64) => Typed::Float64(value as f64),
            (Self::Integer(value), DataType::Int64) => Typed::Int64(value),
            (Self::Boolean(value), DataType::Boolean) => Typed::Boolean(value),
            (Self::Float(value), DataType::Int64) => {
                /// Up to this number every whole number has a double of its own.
                const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
                if value.fract() == 0.0 && value.abs() <= EXACT_MAX {
                    Typed::Int64(value as i64)
                } else {
                    return Err(Some("give a whole number".into()));
                }
            }
            (Self::Timestamp(value_us), DataType::Timestamp(..)) => Typed::Timestamp(value_us),
            (Self::Integer(value_ms), DataType::Timestamp(..)) => match value_ms.checked_mul(1000) {
                Some(value_us) => Typed::Timestamp(value_us),
                None => return Err(Some("a whole number is taken as milliseconds since 1970".into())),
            },
            (Self::Text(text), DataType::Timestamp(..)) => match parse_timestamp_us(text) {
                Some(value_us) => Typed::Timestamp(value_us),
                None => return Err(Some("write for example '2026-11-21T08:30:00Z'".into())),
            },
            (Self::Interval(value), DataType::Interval(_)) => Typed::Interval(value),
            (Self::Text(text), DataType::Interval(_)) => match parse_interval(text) {
                Some(value) => Typed::Interval(value),
                None => return Err(Some("write for example '30 seconds' or '5 minutes'".into())),
            },
            (Self::Text(text), DataType::Int64 | DataType::Float64)
                if text.parse::<f64>().is_ok_and(f64::is_finite) =>
            {
                return Err(Some("write the number without quotes".into()));
            }
            (Self::Integer(_) | Self::Float(_) | Self::Boolean(_), DataType::Utf8) => {
                return Err(Some(format!("write it as text: '{}'", self.describe())));
            }
            (Self::Integer(_) | Self::Float(_), DataType::Interval(_)) => {
                return Err(Some("give the unit: write for example '30 seconds' or '5 minutes'".into()));
            }
            _ => return Err(None),
        })
    }

    /// The value in the words of messages.
    pub(crate) fn describe(&self) -> String {
        const SHOWN_CHARACTERS_MAX: usize = 40;
        match self {
            Self::Null => "NULL".into(),
            Self::Boolean(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(text) if text.chars().count() > SHOWN_CHARACTERS_MAX => {
                format!("the text '{}...'", text.chars().take(SHOWN_CHARACTERS_MAX).collect::<String>())
            }
            Self::Text(text) => format!("the text '{text}'"),
            Self::Interval(_) => "an interval".into(),
            Self::Timestamp(_) => "a timestamp".into(),
        }
    }
}

impl Typed<'_> {
    /// The value as a constant.
    pub(crate) fn to_literal(self) -> Literal {
        match self {
            Self::Null => Literal::Null,
            Self::Boolean(value) => Literal::Boolean(value),
            Self::Int64(value) => Literal::Integer(value),
            Self::Float64(value) => Literal::Float(value),
            Self::Text(value) => Literal::Text(value.to_owned()),
            Self::Timestamp(value) => Literal::Timestamp(value),
            Self::Interval(value) => Literal::Interval(value),
        }
    }

    /// The value as a scalar of its type `data_type`.
    fn to_scalar(self, data_type: &DataType) -> ScalarValue {
        match self {
            Self::Null => match data_type {
                DataType::Boolean => ScalarValue::Boolean(None),
                DataType::Int64 => ScalarValue::Int64(None),
                DataType::Float64 => ScalarValue::Float64(None),
                DataType::Timestamp(..) => ScalarValue::TimestampMicrosecond(None, None),
                DataType::Interval(_) => ScalarValue::IntervalMonthDayNano(None),
                _ => ScalarValue::Utf8(None),
            },
            Self::Boolean(value) => ScalarValue::Boolean(Some(value)),
            Self::Int64(value) => ScalarValue::Int64(Some(value)),
            Self::Float64(value) => ScalarValue::Float64(Some(value)),
            Self::Text(value) => ScalarValue::Utf8(Some(value.to_owned())),
            Self::Timestamp(value) => ScalarValue::TimestampMicrosecond(Some(value), None),
            Self::Interval(value) => ScalarValue::IntervalMonthDayNano(Some(value)),
        }
    }
}

/// Parses an interval such as `5 minutes`, `1 hour 30 minutes` or `00:00:30`. A number without a unit is seconds.
pub(crate) fn parse_interval(text: &str) -> Option<IntervalMonthDayNano> {
    if text.trim().is_empty() {
        return None;
    }
    parse_interval_month_day_nano_config(text, IntervalParseConfig::new(ParsedUnit::Second)).ok()
}

/// Parses a date, or a date and time with or without zone (UTC if there is none), to microseconds since the epoch.
pub(crate) fn parse_timestamp_us(text: &str) -> Option<i64> {
    string_to_timestamp_nanos(text).ok().map(|nanoseconds| nanoseconds.div_euclid(1000))
}

/// The length of an interval in microseconds. `None` if it is out of range or has months, whose length depends on the
/// calendar.
pub(crate) fn interval_us(interval: IntervalMonthDayNano) -> Option<i64> {
    const DAY_US: i64 = 24 * 60 * 60 * 1_000_000;
    if interval.months != 0 {
        return None;
    }
    i64::from(interval.days).checked_mul(DAY_US)?.checked_add(interval.nanoseconds.div_euclid(1000))
}

/// How long rows are waited for, in words.
pub(crate) fn format_waits(lateness_us: i64, idle_timeout_us: i64) -> String {
    format!("lateness {}, idle timeout {}", format_us(lateness_us), format_us(idle_timeout_us))
}

/// A time span as users write it: `30 s`, `5 min`, `1.5 s`.
pub(crate) fn format_us(span_us: i64) -> String {
    const UNITS: [(i64, &str); 6] =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1000, "ms"), (1, "us")];
    if span_us == 0 {
        return "0 s".into();
    }
    let whole = UNITS.iter().find(|(length_us, _)| span_us % length_us == 0);
    whole.map_or_else(String::new, |(length_us, unit)| format!("{} {unit}", span_us / length_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_with_and_without_units() {
        let seconds = |text: &str| parse_interval(text).and_then(interval_us).map(|us| us as f64 / 1e6);
        assert_eq!(seconds("5 minutes"), Some(300.0));
        assert_eq!(seconds("1 hour 30 minutes"), Some(5400.0));
        assert_eq!(seconds("1.5 seconds"), Some(1.5));
        assert_eq!(seconds("1 day"), Some(86_400.0));
        assert_eq!(seconds("30"), Some(30.0));
        assert_eq!(seconds("1 month"), None);
        assert!(parse_interval("soon").is_none() && parse_interval("").is_none());
    }

    #[test]
    fn timestamps_are_utc_unless_they_say_otherwise() {
        assert_eq!(parse_timestamp_us("1970-01-01T00:00:01Z"), Some(1_000_000));
        assert_eq!(parse_timestamp_us("1970-01-01 00:00:01.5"), Some(1_500_000));
        assert_eq!(parse_timestamp_us("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(parse_timestamp_us("yesterday"), None);
    }

    #[test]
    fn values_change_type_only_without_loss() {
        let coerce = |value: ParamValue<'static>, to: DataType| value.coerce(&to);
        assert_eq!(coerce(ParamValue::Integer(3), DataType::Float64), Ok(Typed::Float64(3.0)));
        assert_eq!(coerce(ParamValue::Float(3.0), DataType::Int64), Ok(Typed::Int64(3)));
        assert!(coerce(ParamValue::Float(3.5), DataType::Int64).is_err());
        assert!(coerce(ParamValue::Float(f64::NAN), DataType::Int64).is_err());
        assert!(coerce(ParamValue::Float(1e300), DataType::Int64).is_err());
        assert_eq!(coerce(ParamValue::Integer(2), TIMESTAMP), Ok(Typed::Timestamp(2000)));
        assert!(coerce(ParamValue::Integer(i64::MAX), TIMESTAMP).is_err());
        assert_eq!(
            coerce(ParamValue::Text("22.5"), DataType::Float64),
            Err(Some("write the number without quotes".into()))
        );
        assert_eq!(coerce(ParamValue::Integer(42), DataType::Utf8), Err(Some("write it as text: '42'".into())));
        assert_eq!(coerce(ParamValue::Boolean(true), DataType::Int64), Err(None));
    }

    #[test]
    fn constants_are_shown_as_they_are_written_in_sql() {
        let interval = |months, days, nanoseconds| {
            Literal::Interval(IntervalMonthDayNano { months, days, nanoseconds }).to_string()
        };
        assert_eq!(interval(0, 0, 300_000_000_000), "INTERVAL '5 minutes'");
        assert_eq!(interval(0, 0, 1_000_000_000), "INTERVAL '1 second'");
        assert_eq!(interval(0, 0, 1_500_000_000), "INTERVAL '1500 milliseconds'");
        assert_eq!(interval(24, 1, -90_000_000_000), "INTERVAL '2 years 1 day -90 seconds'");
        assert_eq!(interval(0, 0, 0), "INTERVAL '0 seconds'");
        assert_eq!(Literal::Text("it's".into()).to_string(), "'it''s'");
        assert_eq!(Literal::Float(24.0).to_string(), "24.0");
        assert_eq!(Literal::Timestamp(1_500_000).to_string(), "TIMESTAMP '1970-01-01 00:00:01.500'");
        assert_eq!(Literal::Null.to_string(), "NULL");
    }

    #[test]
    fn what_is_shown_of_an_interval_reads_back_as_the_same() {
        for months in [0, 1, -13, 24] {
            for days in [0, 1, -30] {
                for nanoseconds in [0, 1, 1001, -1_500_000_000, 5_400_000_000_000, 3_600_000_000_001, i64::MAX / 2] {
                    let interval = IntervalMonthDayNano { months, days, nanoseconds };
                    let text = interval_text(interval);
                    assert_eq!(parse_interval(&text), Some(interval), "{text}");
                }
            }
        }
    }

    #[test]
    fn types_have_their_names_in_sql() {
        for (data_type, name) in [
            (DataType::Utf8, "TEXT"),
            (DataType::Float64, "DOUBLE"),
            (DataType::Int64, "BIGINT"),
            (TIMESTAMP, "TIMESTAMP"),
            (INTERVAL, "INTERVAL"),
            (DataType::Boolean, "BOOLEAN"),
            (DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), "TEXT"),
        ] {
            assert_eq!(type_name(&data_type), name);
        }
    }

    #[test]
    fn spans_are_shown_in_their_largest_whole_unit() {
        assert_eq!(format_us(30_000_000), "30 s");
        assert_eq!(format_us(300_000_000), "5 min");
        assert_eq!(format_us(1_500_000), "1500 ms");
        assert_eq!(format_us(0), "0 s");
    }
}
