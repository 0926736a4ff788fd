//! The formats of times: the options `timestamp` and `timestamp.column` of the formats JSON, CSV and TEXT.
//!
//! Without an option, a number counts milliseconds since 1970 and a text is ISO 8601. A unit says what numbers count;
//! texts stay ISO 8601. With a pattern, all times are texts.

use std::fmt::Write;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use chrono::format::{Fixed, Item, ParseErrorKind, Parsed, StrftimeItems, parse};
use chrono::{DateTime, NaiveTime};

use super::error::FormatError;
use super::fault::Problem;
use super::number::Number;
use super::timestamp;

/// The longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256;

/// How the times of one column are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TimeFormat {
    /// Milliseconds since 1970, with the microseconds as decimals.
    #[default]
    Milliseconds,
    /// The same, written without decimals: what is below a millisecond is cut off.
    WholeMilliseconds,
    /// Seconds since 1970.
    Seconds,
    /// Microseconds since 1970.
    Microseconds,
    /// Nanoseconds since 1970; digits below a microsecond are cut off.
    Nanoseconds,
    /// A text in a pattern of `strftime`.
    Pattern(Arc<Pattern>),
}

/// A pattern as it is written, and its parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    items: Vec<Item<'static>>,
}

/// How the times of all columns are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    of_all: TimeFormat,
    /// By the name of the column.
    of_columns: Vec<(String, TimeFormat)>,
}

impl TimeFormat {
    fn parse(format: &'static str, key: &str, value: &str) -> Result<Self, FormatError> {
        const HINT: &str = "it is 'seconds', 'milliseconds', 'microseconds', 'nanoseconds', or a pattern such as \
                            '%d.%m.%Y %H:%M:%S'";
        let wrong = |problem: &str| FormatError::setting(format, format!("has '{key}' {problem}"), HINT);
        Ok(match value.to_ascii_lowercase().as_str() {
            "milliseconds" => Self::WholeMilliseconds,
            "seconds" => Self::Seconds,
            "microseconds" => Self::Microseconds,
            "nanoseconds" => Self::Nanoseconds,
            _ if !value.contains('%') => return Err(wrong(&format!("'{value}', which is no unit"))),
            _ if value.len() > PATTERN_BYTES_MAX => return Err(wrong("of more than 256 bytes")),
            _ => {
                let items = StrftimeItems::new(value).parse_to_owned();
                let items = items.map_err(|_| wrong(&format!("'{value}', which is no pattern")))?;
                // A name such as CET can be skipped, but not interpreted.
                if items.contains(&Item::Fixed(Fixed::TimezoneName)) {
                    let problem = format!("has '{key}' '{value}', and names of zones (%Z) cannot be read");
                    let hint = "write %z, which is an offset such as +0100; a time without one is UTC";
                    return Err(FormatError::setting(format, problem, hint));
                }
                let pattern = Self::Pattern(Arc::new(Pattern { text: value.to_owned(), items }));
                // A written time must be read as the same day, so the pattern needs a whole date.
                let mut text = Vec::new();
                pattern.append(0, &mut text);
                let is_escaped = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\');
                match pattern.text(&text) {
                    _ if text.iter().any(is_escaped) => return Err(wrong("with a quote, a backslash or a line break")),
                    Ok(_) if pattern.reads_what_it_writes() => pattern,
                    Ok(_) => {
                        let problem = "which names a part of a time that cannot be read back: an hour needs minutes, \
                                       and one of twelve AM or PM";
                        return Err(wrong(&format!("'{value}', {problem}")));
                    }
                    Err(_) => return Err(wrong(&format!("'{value}', which names no whole date"))),
                }
            }
        })
    }

    /// Whether reading a time that was written with the pattern loses nothing that the pattern writes.
    fn reads_what_it_writes(&self) -> bool {
        /// 2001-02-03 13:04:15.123456, which differs in each part from midnight and from noon.
        const PROBE_US: i64 = 981_205_455_123_456;
        let (mut first, mut again) = (Vec::new(), Vec::new());
        self.append(PROBE_US, &mut first);
        let read = self.text(&first).map(|time_us| self.append(time_us, &mut again));
        read.is_ok() && first == again
    }

    /// The time that a number stands for. `text` is the scanned text; digits below a microsecond are rounded.
    #[inline(always)]
    pub(crate) fn number(&self, number: Number, text: &[u8]) -> Result<i64, Problem> {
        match self {
            Self::Milliseconds => timestamp::from_epoch_ms(number, text),
            other => other.other_number(number, text),
        }
    }

    #[inline(never)]
    fn other_number(&self, number: Number, text: &[u8]) -> Result<i64, Problem> {
        let scaled = |scale: i32| number.to_scaled_rounded(text, scale).map_err(|_| Problem::TimestampRange);
        let time_us = match self {
            Self::Milliseconds | Self::WholeMilliseconds => scaled(3)?,
            Self::Seconds => scaled(6)?,
            Self::Microseconds => scaled(0)?,
            Self::Nanoseconds => scaled(0)?.div_euclid(1000),
            Self::Pattern(_) => return self.text(text),
        };
        timestamp::check_range(time_us)
    }

    /// The time of a text.
    pub(crate) fn text(&self, text: &[u8]) -> Result<i64, Problem> {
        let Self::Pattern(pattern) = self else { return timestamp::parse_iso(text) };
        let time_us = std::str::from_utf8(text).ok().and_then(|text| {
            let mut parsed = Parsed::new();
            parse(&mut parsed, text.trim(), pattern.items.iter()).ok()?;
            match parsed.timestamp().is_some() || parsed.offset().is_some() {
                true => parsed.to_datetime().ok().map(|time| time.timestamp_micros()),
                // Without a zone it is UTC, and without a time of day midnight.
                false => {
                    let time = parsed.to_naive_time().or_else(|error| match error.kind() {
                        ParseErrorKind::NotEnough => Ok(NaiveTime::MIN),
                        _ => Err(error),
                    });
                    let time = time.ok()?;
                    Some(parsed.to_naive_date().ok()?.and_time(time).and_utc().timestamp_micros())
                }
            }
        });
        time_us.ok_or(Problem::ExpectedTimestamp).and_then(timestamp::check_range)
    }

    /// A description of the expected text, for messages.
    pub(crate) fn in_words(&self) -> String {
        match (self, self.unit()) {
            (Self::Pattern(pattern), _) => format!("as '{}'", pattern.text),
            (_, unit) => format!("{} or ISO 8601", unit.unwrap_or("epoch milliseconds")),
        }
    }

    /// The unit of numbers, if an option gives it.
    pub(crate) fn unit(&self) -> Option<&'static str> {
        match self {
            Self::Seconds => Some("epoch seconds"),
            Self::Microseconds => Some("epoch microseconds"),
            Self::Nanoseconds => Some("epoch nanoseconds"),
            Self::Milliseconds | Self::WholeMilliseconds | Self::Pattern(_) => None,
        }
    }

    /// Whether a time is written as a number.
    pub(crate) fn is_number(&self) -> bool {
        !matches!(self, Self::Pattern(_))
    }

    /// Appends a time: a number, or a text without quotes.
    pub(crate) fn append(&self, time_us: i64, out: &mut Vec<u8>) {
        let decimals = match self {
            Self::Milliseconds => 3,
            Self::WholeMilliseconds => return super::json::append_decimal(time_us.div_euclid(1000), 0, out),
            Self::Seconds => 6,
            Self::Microseconds => 0,
            Self::Nanoseconds => {
                super::json::append_decimal(time_us, 0, out);
                return out.extend_from_slice(if time_us == 0 { b"" } else { b"000" });
            }
            Self::Pattern(pattern) => {
                // Times are within the years 1 to 9999, and the pattern was tried.
                if let Some(time) = DateTime::from_timestamp_micros(time_us) {
                    let mut text = Text(out);
                    let _ = write!(text, "{}", time.format_with_items(pattern.items.iter()));
                }
                return;
            }
        };
        super::json::append_decimal(time_us, decimals, out);
    }
}

/// Text that is appended to bytes.
struct Text<'a>(&'a mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Times {
    /// Takes an option of a format if it is about times. Returns whether it is.
    pub(super) fn take(&mut self, format: &'static str, key: &str, value: &str) -> Result<bool, FormatError> {
        let (name, column) = key.split_once('.').map_or((key, None), |(name, column)| (name, Some(column)));
        if !name.eq_ignore_ascii_case("timestamp") {
            return Ok(false);
        }
        let time = TimeFormat::parse(format, key, value)?;
        match column {
            None => self.of_all = time,
            Some(column) => self.of_columns.push((column.to_owned(), time)),
        }
        Ok(true)
    }

    /// Checks that the named columns exist and hold times.
    pub(super) fn check(&self, format: &'static str, schema: &Schema) -> Result<(), FormatError> {
        for (column, time) in &self.of_columns {
            let found = schema.fields().iter().find(|field| field.name() == column);
            let problem = match found.map(|field| field.data_type()) {
                Some(DataType::Timestamp(..)) => continue,
                Some(DataType::Date32) if matches!(time, TimeFormat::Pattern(_)) => continue,
                Some(DataType::Date32) => {
                    format!("has 'timestamp.{column}' with a unit, and that column is a DATE, which is a text")
                }
                Some(other) => format!("has 'timestamp.{column}', and that column is {other}"),
                None => format!("has 'timestamp.{column}', and there is no such column"),
            };
            let hint =
                "name a column of type TIMESTAMP, or write timestamp alone for all of them; of a DATE, a pattern \
                        such as '%d.%m.%Y'"
                    .into();
            return Err(FormatError::Setting { format, problem, hint });
        }
        Ok(())
    }

    /// The format of each column, by its index. Dates are ISO 8601 unless an option gives a pattern for the column
    /// itself.
    pub(crate) fn of_fields(&self, schema: &Schema) -> Vec<TimeFormat> {
        let of = |field: &Field| match field.data_type() {
            DataType::Date32 => self.of_date(field.name()).unwrap_or_default(),
            _ => self.of(field.name()),
        };
        schema.fields().iter().map(|field| of(field)).collect()
    }

    /// The pattern of a column of dates, if an option gives one for the column itself.
    pub(crate) fn of_date(&self, column: &str) -> Option<TimeFormat> {
        let own = self.of_columns.iter().find(|(name, _)| name == column);
        own.map(|(_, time)| time.clone()).filter(|time| matches!(time, TimeFormat::Pattern(_)))
    }

    /// How the times of a column are written.
    pub(crate) fn of(&self, column: &str) -> TimeFormat {
        let own = self.of_columns.iter().find(|(name, _)| name == column);
        own.map_or(&self.of_all, |(_, time)| time).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, RecordBatch};
    use arrow::datatypes::{SchemaRef, TimeUnit, TimestampMicrosecondType};
    use proptest::prelude::*;
    use rivulet_dataflow::{Batch, Events, Refusals};

    use super::super::{EncodedRows, Format, InputFormat};
    use super::*;

    fn schema() -> SchemaRef {
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        Arc::new(Schema::new(vec![Field::new("ts", time.clone(), true), Field::new("radio.at", time, true)]))
    }

    fn input(format: &str, options: &[(&str, &str)]) -> InputFormat {
        let (format, times) = Format::parse(format, options.iter().copied()).unwrap();
        InputFormat { format, times, schema: schema(), event_time_column: None, topic_columns: Vec::new() }
    }

    fn read(input: &InputFormat, payload: &str) -> Result<[i64; 2], String> {
        let mut events = Events::default();
        events.push(0, 0, payload.as_bytes());
        let mut refusals = Refusals::new(1);
        let batch = input.decoder().unwrap().decode(&events, &mut refusals);
        match refusals.records().first() {
            Some(refused) => Err(refused.detail.clone()),
            None => Ok([0, 1].map(|column| batch.column(column).as_primitive::<TimestampMicrosecondType>().value(0))),
        }
    }

    fn write(input: &InputFormat, times_us: [i64; 2]) -> String {
        let columns = times_us
            .map(|time_us| -> ArrayRef { Arc::new(arrow::array::TimestampMicrosecondArray::from(vec![time_us])) });
        let columns = RecordBatch::try_new(input.schema.clone(), columns.to_vec()).unwrap();
        let batch = Batch::new(vec![0].into(), vec![0].into(), vec![0].into(), columns);
        let mut rows = EncodedRows::default();
        input.format.encoder_of(input.schema.clone(), &input.times).unwrap().encode(&batch, &mut rows);
        String::from_utf8(rows.row(0).to_vec()).unwrap()
    }

    /// An object as it is read: what is written is flat.
    fn nested(written: &str) -> String {
        written.replace("\"radio.at\":", "\"radio\":{\"at\":").replace('}', "}}")
    }

    #[test]
    fn times_are_read_and_written_as_declared() {
        let json = |options| input("JSON", options);
        let time_us = 1_700_000_000_250_000;
        for (options, payload) in [
            (&[][..], r#"{"ts":1700000000250,"radio.at":1700000000250}"#),
            (&[("timestamp", "seconds")], r#"{"ts":1700000000.25,"radio.at":1700000000.25}"#),
            (&[("timestamp", "Microseconds")], r#"{"ts":1700000000250000,"radio.at":1700000000250000}"#),
            (&[("timestamp", "nanoseconds")], r#"{"ts":1700000000250000000,"radio.at":1700000000250000000}"#),
            (
                &[("timestamp", "seconds"), ("timestamp.radio.at", "%d.%m.%Y %H:%M:%S%.3f")],
                r#"{"ts":1700000000.25,"radio.at":"14.11.2023 22:13:20.250"}"#,
            ),
        ] {
            let input = json(options);
            assert_eq!(read(&input, &nested(payload)), Ok([time_us; 2]), "{payload}");
            assert_eq!(write(&input, [time_us; 2]), payload);
        }
        // Milliseconds that are asked for are whole; otherwise no digit is lost.
        for (options, payload) in [
            (&[][..], r#"{"ts":1700000000250.503,"radio.at":-0.001}"#),
            (&[("timestamp", "milliseconds")], r#"{"ts":1700000000250,"radio.at":-1}"#),
        ] {
            assert_eq!(write(&json(options), [time_us + 503, -1]), payload);
        }
        // A text is ISO 8601 whatever numbers count, and a number may be what a pattern describes.
        let seconds = json(&[("timestamp", "seconds"), ("timestamp.radio.at", "%Y%m%d")]);
        let found = read(&seconds, r#"{"ts":"2023-11-14T22:13:20.250Z","radio":{"at":20231114}}"#);
        assert_eq!(found, Ok([time_us, 1_699_920_000_000_000]));
        let csv = input("CSV", &[("timestamp.ts", "%Y-%m-%d, %H:%M %z"), ("timestamp.radio.at", "seconds")]);
        assert_eq!(write(&csv, [0, -1_500_000]), "\"1970-01-01, 00:00 +0000\",-1.5");
        assert_eq!(read(&csv, "\"1970-01-01, 02:00 +0200\",-1.5"), Ok([0, -1_500_000]));
        let refused = read(&csv, "yesterday,3").unwrap_err();
        assert!(refused.contains("'ts'") && refused.contains("yesterday"), "{refused}");
    }

    #[test]
    fn a_time_that_does_not_fit_is_told_with_what_was_declared() {
        for (option, payload, expected) in [
            (None, r#"{"ts": "soon"}"#, "expected a time (epoch milliseconds or ISO 8601), found \"soon\""),
            (Some("seconds"), r#"{"ts": "soon"}"#, "expected a time (epoch seconds or ISO 8601), found \"soon\""),
            (Some("microseconds"), r#"{"ts": true}"#, "expected a time (epoch microseconds or ISO 8601), found true"),
            (Some("nanoseconds"), r#"{"ts": [1]}"#, "expected a time (epoch nanoseconds or ISO 8601), found an array"),
            (Some("%d.%m.%Y"), r#"{"ts": "2026-11-21"}"#, "expected a time (as '%d.%m.%Y'), found \"2026-11-21\""),
            (Some("%d.%m.%Y"), r#"{"ts": 5}"#, "expected a time (as '%d.%m.%Y'), found 5"),
            (
                Some("seconds"),
                r#"{"ts": 1700000000000}"#,
                "time 1700000000000 as epoch seconds is out of range (years 0001 to 9999)",
            ),
            (None, r#"{"ts": 1e18}"#, "time 1e18 is out of range (years 0001 to 9999)"),
        ] {
            let options: Vec<_> = option.map(|option| ("timestamp", option)).into_iter().collect();
            let refused = read(&input("JSON", &options), payload).unwrap_err();
            assert_eq!(refused, format!("field 'ts' at byte 7: {expected}"), "{option:?}");
        }
        let refused = read(&input("CSV", &[("timestamp.radio.at", "seconds")]), "0,soon").unwrap_err();
        assert_eq!(refused, "field 'radio.at' at byte 2: expected a time (epoch seconds or ISO 8601), found soon");
    }

    #[test]
    fn wrong_options_are_refused_with_what_to_write() {
        for (option, expected) in [
            (("timestamp", "fortnights"), "'fortnights', which is no unit"),
            (("timestamp", "%H:%M"), "'%H:%M', which names no whole date"),
            (("timestamp", "%Q"), "which is no pattern"),
            (("timestamp", "%Y-%m-%d%n"), "a line break"),
            (("timestamp", "%Y-%m-%d %H"), "'%Y-%m-%d %H', which names a part of a time that cannot be read back"),
            (("timestamp", "%Y-%m-%d %I:%M"), "a part of a time that cannot be read back"),
            (("timestamp", "%Y-%m-%d %H:%M%.f"), "a part of a time that cannot be read back"),
            (("timestamp", "%Y-%m-%d %p"), "a part of a time that cannot be read back"),
        ] {
            let error = Format::parse("JSON", [option]).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("hint: it is 'seconds'"), "{error}");
        }
        for pattern in ["%Y-%m-%d %I:%M %p", "%Y-%m-%d %H:%M", "%d.%m.%y", "%s%.f", "%Y-%j %T", "%c", "%+"] {
            assert_eq!(Format::parse("JSON", [("timestamp", pattern)]).map(drop), Ok(()), "{pattern}");
        }
        let error = Format::parse("JSON", [("timestamp", "%Y-%m-%d %H:%M %Z")]).unwrap_err().to_string();
        assert!(error.contains("names of zones (%Z) cannot be read") && error.contains("write %z"), "{error}");
        assert!(Format::parse("SENML", [("timestamp", "seconds")]).is_err());
        let (_, times) = Format::parse("JSON", [("timestamp.other", "seconds")]).unwrap();
        let error = Format::Json.encoder_of(schema(), &times).map(drop).unwrap_err().to_string();
        assert!(error.contains("has 'timestamp.other', and there is no such column"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(time_us in timestamp::MIN_US..=timestamp::MAX_US, kind in 0..5usize) {
            let units = ["milliseconds", "seconds", "microseconds"];
            let option = units.get(kind).copied().unwrap_or(["%Y-%m-%d %H:%M:%S%.6f", "%d.%m.%Y %T%.f %z"][kind % 2]);
            for format in ["JSON", "CSV"] {
                let input = input(format, &[("timestamp", option)]);
                let written = nested(&write(&input, [time_us, 0]));
                let kept_us = if option == "milliseconds" { time_us.div_euclid(1000) * 1000 } else { time_us };
                prop_assert_eq!(read(&input, &written), Ok([kept_us, 0]), "{}", written);
            }
        }

        #[test]
        fn no_text_panics(pattern in "(%[a-zA-Z.:#0-9+-]{1,3}|[ a-z,./-]){0,6}", text in ".{0,30}") {
            if let Ok(time) = TimeFormat::parse("JSON", "timestamp", &pattern) {
                let _ = time.text(text.as_bytes());
                time.append(timestamp::MAX_US, &mut Vec::new());
            }
        }
    }
}
