//! `date_format(ts, 'yyyy-MM-dd HH:mm')`, and `to_char(ts, '%Y-%m-%d')` or `to_char(ts, 'YYYY-MM-DD')`.
//!
//! The format is read when the query is planned. Rows of a stream follow each other in time, so most of them have the
//! same text as the previous row: the text is made anew only when the smallest unit in the format changes.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray, StringBuilder};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, TimestampMicrosecondType};
use arrow::temporal_conversions::as_datetime;
use datafusion_common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::simplify::ExprSimplifyResult;
use datafusion_expr::{Expr, cast};

use super::function::Function;
use crate::value::TIMESTAMP;

const DAY_US: i64 = 86_400_000_000;

/// A piece of a formatted text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Piece {
    Year,
    Month,
    /// `Jan`
    MonthName,
    Day,
    /// From 001.
    DayOfYear,
    /// `Mon`
    DayName,
    Hour,
    /// From 01 to 12.
    HourOfHalf,
    /// `AM` or `PM`
    Half,
    Minute,
    Second,
    Millisecond,
    Microsecond,
    Text(String),
}

impl Piece {
    /// How long its text stays the same, in microseconds.
    fn unit_us(&self) -> i64 {
        match self {
            Self::Year | Self::Month | Self::MonthName | Self::Day | Self::DayOfYear | Self::DayName => DAY_US,
            Self::Hour | Self::HourOfHalf | Self::Half => 3_600_000_000,
            Self::Minute => 60_000_000,
            Self::Second => 1_000_000,
            Self::Millisecond => 1000,
            Self::Microsecond => 1,
            Self::Text(_) => i64::MAX,
        }
    }
}

/// `date_format`, with a format of letters: `yyyy-MM-dd HH:mm:ss.SSS`.
pub(super) fn date_format() -> Function {
    let arguments = [vec![TIMESTAMP, DataType::Utf8]];
    Function::new("date_format", arguments, DataType::Utf8).rewritten(|arguments, _| match arguments.as_slice() {
        [time, Expr::Literal(ScalarValue::Utf8(Some(format)), _)] => {
            let pieces = Format::Pieces(pieces_of_letters(format)?);
            Ok(ExprSimplifyResult::Simplified(formatted(pieces, time.clone(), "date_format", format)))
        }
        _ => plan_err!("the format of date_format must be a constant text"),
    })
}

/// `to_char`, with a format of percent signs, `%Y-%m-%d`, or of PostgreSQL's words, `YYYY-MM-DD`.
pub(super) fn to_char() -> Function {
    let of = |time: DataType| vec![time, DataType::Utf8];
    let function = Function::new("to_char", [of(TIMESTAMP), of(DataType::Date32)], DataType::Utf8);
    function.computed(texts_of_formats).rewritten(|arguments, context| {
        if let [time, Expr::Literal(ScalarValue::Utf8(Some(format)), _)] = arguments.as_slice() {
            let time = match context.get_data_type(time)? {
                TIMESTAMP => time.clone(),
                _ => cast(time.clone(), TIMESTAMP),
            };
            return Ok(ExprSimplifyResult::Simplified(formatted(Format::of_to_char(format)?, time, "to_char", format)));
        }
        Ok(ExprSimplifyResult::Original(arguments))
    })
}

/// The texts of times, each in a format of its own.
fn texts_of_formats(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [times, formats] = columns else { return internal_err!("to_char with other arguments") };
    let (rows, times) = (times.len(), arrow::compute::cast(times, &TIMESTAMP)?);
    let (times, formats) = (times.as_primitive::<TimestampMicrosecondType>(), formats.as_string::<i32>());
    let mut texts = StringBuilder::with_capacity(rows, rows * 16);
    let mut text = String::new();
    // Rows of one query come one after the other, and have the same format.
    let mut last: Option<(&str, Format)> = None;
    for row in 0..rows {
        if times.is_null(row) || formats.is_null(row) {
            texts.append_null();
            continue;
        }
        let written = formats.value(row);
        let format = match last.take() {
            Some((known, format)) if known == written => format,
            _ => Format::of_to_char(written)?,
        };
        text.clear();
        format.write(times.value(row), &mut text)?;
        texts.append_value(&text);
        last = Some((written, format));
    }
    Ok(Arc::new(texts.finish()))
}

/// A format of times.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Format {
    /// Piece by piece.
    Pieces(Vec<Piece>),
    /// With percent signs and letters other than the most common ones.
    Percents(String),
}

impl Format {
    /// Reads the format of `to_char`: with percent signs as in C (`%Y-%m-%d`), or with the words of PostgreSQL
    /// (`YYYY-MM-DD`).
    fn of_to_char(format: &str) -> Result<Self> {
        if !format.contains('%') {
            return pieces_of_words(format).map(Self::Pieces);
        }
        if let Some(pieces) = pieces_of_percents(format) {
            return Ok(Self::Pieces(pieces));
        }
        let format = Self::Percents(format.to_owned());
        format.write(0, &mut String::new()).map(|()| format)
    }

    /// How long the text stays the same, in microseconds.
    fn unit_us(&self) -> i64 {
        match self {
            Self::Pieces(pieces) => pieces.iter().map(Piece::unit_us).min().unwrap_or(i64::MAX),
            Self::Percents(_) => 1,
        }
    }

    fn write(&self, time_us: i64, text: &mut String) -> Result<()> {
        match self {
            Self::Pieces(pieces) => write_pieces(pieces, time_us, text),
            Self::Percents(format) => {
                let Some(time) = as_datetime::<TimestampMicrosecondType>(time_us) else {
                    return exec_err!("the time {time_us} is out of range");
                };
                if write!(text, "{}", time.format(format)).is_err() {
                    return exec_err!("'{format}' is not a format of to_char");
                }
            }
        }
        Ok(())
    }
}

fn formatted(format: Format, time: Expr, name: &str, written: &str) -> Expr {
    let unit_us = format.unit_us();
    let function = Function::new(format!("{name} '{written}'"), [vec![TIMESTAMP]], DataType::Utf8);
    let function = function.computed(move |columns| texts(&format, unit_us, columns));
    Expr::ScalarFunction(ScalarFunction::new_udf(function.into(), vec![time]))
}

/// Reads a format of letters, as in Java.
fn pieces_of_letters(format: &str) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut rest = format;
    while let Some(first) = rest.chars().next() {
        if first == '\'' {
            let Some((text, after)) = rest[1..].split_once('\'') else {
                return plan_err!("the quoted text in the format '{format}' is not closed");
            };
            pieces.push(Piece::Text(if text.is_empty() { "'".to_owned() } else { text.to_owned() }));
            rest = after;
            continue;
        }
        let length = rest.chars().take_while(|next| *next == first).map(char::len_utf8).sum();
        let (same, after) = rest.split_at(length);
        pieces.push(match same {
            "yyyy" | "uuuu" => Piece::Year,
            "MM" => Piece::Month,
            "dd" => Piece::Day,
            "HH" => Piece::Hour,
            "mm" => Piece::Minute,
            "ss" => Piece::Second,
            "SSS" => Piece::Millisecond,
            letters if first.is_ascii_alphabetic() => {
                return plan_err!(
                    "'{letters}' in the format '{format}' is not supported yet; date_format has yyyy, MM, dd, HH, \
                     mm, ss and SSS, and text in single quotes"
                );
            }
            text => Piece::Text(text.to_owned()),
        });
        rest = after;
    }
    Ok(pieces)
}

/// Reads a format of PostgreSQL's words, in any case. Other text is in double quotes.
fn pieces_of_words(format: &str) -> Result<Vec<Piece>> {
    /// Longer words come before their own beginnings.
    const WORDS: [(&str, Piece); 14] = [
        ("YYYY", Piece::Year),
        ("HH24", Piece::Hour),
        ("HH12", Piece::HourOfHalf),
        ("MON", Piece::MonthName),
        ("DDD", Piece::DayOfYear),
        ("HH", Piece::HourOfHalf),
        ("MM", Piece::Month),
        ("DD", Piece::Day),
        ("DY", Piece::DayName),
        ("MI", Piece::Minute),
        ("SS", Piece::Second),
        ("MS", Piece::Millisecond),
        ("US", Piece::Microsecond),
        ("AM", Piece::Half),
    ];
    /// Other words, which begin with a word above.
    const OTHERS: [&str; 5] = ["MONTH", "SSSS", "MMM", "DDDD", "YYYYY"];
    let mut pieces = Vec::new();
    let mut rest = format;
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            let Some((text, after)) = rest[1..].split_once('"') else {
                return plan_err!("the quoted text in the format '{format}' is not closed");
            };
            pieces.push(Piece::Text(text.to_owned()));
            rest = after;
            continue;
        }
        if !first.is_ascii_alphabetic() {
            pieces.push(Piece::Text(first.to_string()));
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let begins = |word: &str| rest.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
        let known = WORDS.iter().find(|(word, _)| begins(word)).filter(|_| !OTHERS.iter().any(|word| begins(word)));
        let Some((word, piece)) = known else {
            let letters: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
            return plan_err!(
                "'{letters}' in the format '{format}' of to_char is not supported; it has YYYY, MM, DD, HH24, MI, SS, MS, US, HH12, AM, Mon, Dy \
                 and DDD, text in double quotes, or percent signs as in '%Y-%m-%d'"
            );
        };
        // The case of the word decides the case of the name.
        pieces.push(match piece {
            Piece::MonthName | Piece::DayName | Piece::Half if rest[..word.len()] != **word => match piece {
                Piece::MonthName if rest.starts_with("Mon") => Piece::MonthName,
                Piece::DayName if rest.starts_with("Dy") => Piece::DayName,
                _ => {
                    let letters = &rest[..word.len()];
                    return plan_err!("'{letters}' in the format '{format}' is not supported; write Mon, Dy or AM");
                }
            },
            Piece::MonthName | Piece::DayName => {
                return plan_err!("'{word}' in the format '{format}' is not supported; write Mon or Dy");
            }
            other => other.clone(),
        });
        rest = &rest[word.len()..];
    }
    Ok(pieces)
}

/// Reads a format with percent signs, if it has only these ones.
fn pieces_of_percents(format: &str) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            pieces.push(Piece::Text(character.to_string()));
            continue;
        }
        match characters.next()? {
            'Y' => pieces.push(Piece::Year),
            'm' => pieces.push(Piece::Month),
            'd' => pieces.push(Piece::Day),
            'H' => pieces.push(Piece::Hour),
            'M' => pieces.push(Piece::Minute),
            'S' => pieces.push(Piece::Second),
            'F' => pieces.extend([Piece::Year, dash(), Piece::Month, dash(), Piece::Day]),
            'R' => pieces.extend([Piece::Hour, colon(), Piece::Minute]),
            'T' => pieces.extend([Piece::Hour, colon(), Piece::Minute, colon(), Piece::Second]),
            _ => return None,
        }
    }
    Some(pieces)
}

fn dash() -> Piece {
    Piece::Text("-".into())
}

fn colon() -> Piece {
    Piece::Text(":".into())
}

/// The texts of times in a format, which are the same within each `unit_us`.
fn texts(format: &Format, unit_us: i64, columns: &[ArrayRef]) -> Result<ArrayRef> {
    let Some(times) = columns.first() else { return internal_err!("no time to format") };
    let (rows, times) = (times.len(), times.as_primitive::<TimestampMicrosecondType>());
    let (mut text, mut texts) = (String::new(), Vec::with_capacity(rows * 16));
    let mut ends = Vec::with_capacity(rows + 1);
    ends.push(0);
    // The times that have the current text.
    let mut unit = 0..0;
    for (row, &time_us) in times.values().iter().enumerate() {
        if times.is_valid(row) {
            if !unit.contains(&time_us) {
                text.clear();
                format.write(time_us, &mut text)?;
                let start_us = time_us.saturating_sub(time_us.rem_euclid(unit_us));
                unit = start_us..start_us.saturating_add(unit_us);
            }
            texts.extend_from_slice(text.as_bytes());
        }
        let Ok(end) = i32::try_from(texts.len()) else {
            return exec_err!("the times of a batch have 2 GiB of text");
        };
        ends.push(end);
    }
    let ends = OffsetBuffer::new(ScalarBuffer::from(ends));
    Ok(Arc::new(StringArray::try_new(ends, Buffer::from_vec(texts), times.nulls().cloned())?))
}

fn write_pieces(pieces: &[Piece], time_us: i64, text: &mut String) {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    /// The first day of 1970 was a Thursday.
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let days = time_us.div_euclid(DAY_US);
    let (year, month, day) = date_of(days);
    let in_day = time_us.rem_euclid(DAY_US);
    let hour = in_day / 3_600_000_000;
    for piece in pieces {
        // Writing to a string does not fail.
        let _ = match piece {
            Piece::Year => write!(text, "{year:04}"),
            Piece::Month => write!(text, "{month:02}"),
            Piece::MonthName => write!(text, "{}", MONTHS[(month - 1) as usize]),
            Piece::Day => write!(text, "{day:02}"),
            Piece::DayOfYear => write!(text, "{:03}", days - days_of(year, 1, 1) + 1),
            Piece::DayName => write!(text, "{}", DAYS[days.rem_euclid(7) as usize]),
            Piece::Hour => write!(text, "{hour:02}"),
            Piece::HourOfHalf => write!(text, "{:02}", (hour + 11) % 12 + 1),
            Piece::Half => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Piece::Minute => write!(text, "{:02}", in_day / 60_000_000 % 60),
            Piece::Second => write!(text, "{:02}", in_day / 1_000_000 % 60),
            Piece::Millisecond => write!(text, "{:03}", in_day / 1000 % 1000),
            Piece::Microsecond => write!(text, "{:06}", in_day % 1_000_000),
            Piece::Text(piece) => {
                text.push_str(piece);
                Ok(())
            }
        };
    }
}

/// The day of a date, counted from 1970 (Hinnant, "chrono-compatible low-level date algorithms"). Month 13 is the first
/// of the next year.
pub(super) fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Years begin with March, so that the leap day is their last day.
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of a day since 1970, in the Gregorian calendar (Hinnant, "chrono-compatible low-level date
/// algorithms").
pub(super) fn date_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn to_char(format: &str, time_us: i64) -> String {
        let mut text = String::new();
        Format::of_to_char(format).unwrap().write(time_us, &mut text).unwrap();
        text
    }

    fn text(format: &str, time_us: i64) -> String {
        let mut text = String::new();
        write_pieces(&pieces_of_letters(format).unwrap(), time_us, &mut text);
        text
    }

    proptest! {
        #[test]
        fn dates_are_those_of_the_calendar(time_us in -10_000_000_000_000_000_i64..100_000_000_000_000_000) {
            let expected = as_datetime::<TimestampMicrosecondType>(time_us).unwrap();
            prop_assert_eq!(text("yyyy-MM-dd HH:mm:ss.SSS", time_us), expected.format("%Y-%m-%d %H:%M:%S%.3f").to_string());
            prop_assert_eq!(
                to_char("Dy DD Mon YYYY DDD HH12:MI:SS.US AM", time_us),
                expected.format("%a %d %b %Y %j %I:%M:%S%.6f %p").to_string()
            );
        }
    }

    #[test]
    fn formats_are_read_or_refused() {
        assert_eq!(text("HH'h'mm", 3_660_000_000), "01h01");
        assert!(pieces_of_letters("yyyy-EEE").unwrap_err().to_string().contains("'EEE'"));
        assert!(pieces_of_letters("'open").is_err());
        assert_eq!(pieces_of_percents("%Y-%m").unwrap().len(), 3);
        assert_eq!(pieces_of_percents("%A"), None);
        assert_eq!(pieces_of_percents("%"), None);
        assert_eq!(to_char("yyyy-mm-dd\"T\"HH24:MI:SS.MS", 3_661_002_000), "1970-01-01T01:01:01.002");
        assert_eq!(to_char("%A", 0), "Thursday");
        for (format, letters) in
            [("YYYY-MM-DDTHH24", "'THH'"), ("MONTH", "'MONTH'"), ("yyyy-MMM", "'MMM'"), ("DAY", "'DAY'")]
        {
            let error = Format::of_to_char(format).unwrap_err().to_string();
            assert!(error.contains(letters), "{error}");
        }
        for format in ["%Q", "%", "MON", "\"open"] {
            assert!(Format::of_to_char(format).is_err(), "{format}");
        }
    }
}
