//! `date_format(ts, 'yyyy-MM-dd HH:mm')`, and `to_char(ts, '%Y-%m-%d')` where the format is as simple.
//!
//! The format is read when the query is planned. Rows of a stream follow each other in time, so most of them have the text of the one
//! before: it is made anew only when the smallest unit in the format changes.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, AsArray, StringBuilder};
use arrow::datatypes::{DataType, TimestampMicrosecondType};
use datafusion_common::{Result, ScalarValue, internal_err, plan_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use crate::value::TIMESTAMP;

const DAY_US: i64 = 86_400_000_000;

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Piece {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
    Text(String),
}

impl Piece {
    /// How long it stays the same, microseconds.
    fn unit_us(&self) -> i64 {
        match self {
            Self::Year | Self::Month | Self::Day => DAY_US,
            Self::Hour => 3_600_000_000,
            Self::Minute => 60_000_000,
            Self::Second => 1_000_000,
            Self::Millisecond => 1000,
            Self::Text(_) => i64::MAX,
        }
    }
}

/// `date_format`, with a format of letters: `yyyy-MM-dd HH:mm:ss.SSS`.
pub(super) fn date_format() -> Arc<ScalarUDF> {
    let signature = Signature::exact(vec![TIMESTAMP, DataType::Utf8], Volatility::Immutable);
    Arc::new(ScalarUDF::from(DateFormat { signature }))
}

/// `to_char`, which is `function` where the format is not as simple.
pub(super) fn to_char(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(ToChar { function }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DateFormat {
    signature: Signature,
}

impl ScalarUDFImpl for DateFormat {
    fn name(&self) -> &str {
        "date_format"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn simplify(&self, arguments: Vec<Expr>, _context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match arguments.as_slice() {
            [time, Expr::Literal(ScalarValue::Utf8(Some(format)), _)] => {
                let pieces = pieces_of_letters(format)?;
                Ok(ExprSimplifyResult::Simplified(formatted(pieces, time.clone(), "date_format", format)))
            }
            _ => plan_err!("the format of date_format must be a constant text"),
        }
    }

    fn invoke_with_args(&self, _arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("date_format is another function in the plan")
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToChar {
    function: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for ToChar {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.function.return_type(arguments)
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        if let [time, Expr::Literal(ScalarValue::Utf8(Some(format)), _)] = arguments.as_slice()
            && context.get_data_type(time).is_ok_and(|data_type| data_type == TIMESTAMP)
            && let Some(pieces) = pieces_of_percents(format)
        {
            return Ok(ExprSimplifyResult::Simplified(formatted(pieces, time.clone(), "to_char", format)));
        }
        self.function.simplify(arguments, context)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.function.invoke_with_args(arguments)
    }
}

fn formatted(pieces: Vec<Piece>, time: Expr, name: &str, format: &str) -> Expr {
    let unit_us = pieces.iter().map(Piece::unit_us).min().unwrap_or(i64::MAX);
    let signature = Signature::exact(vec![TIMESTAMP], Volatility::Immutable);
    let function = Formatted { pieces, unit_us, name: format!("{name} '{format}'"), signature };
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::from(function)), vec![time]))
}

/// The format in letters, as Java has it.
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
                return plan_err!("'{letters}' in the format '{format}' is not supported yet");
            }
            text => Piece::Text(text.to_owned()),
        });
        rest = after;
    }
    Ok(pieces)
}

/// The format with percent signs, if it has no others than these.
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

/// The text of times in a format that is known.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Formatted {
    pieces: Vec<Piece>,
    unit_us: i64,
    name: String,
    signature: Signature,
}

impl ScalarUDFImpl for Formatted {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = matches!(arguments.args.as_slice(), [ColumnarValue::Scalar(_)]);
        let rows = if is_constant { 1 } else { arguments.number_rows };
        let Some(times) = arguments.args.into_iter().next() else { return internal_err!("no time to format") };
        let times = times.into_array(rows)?;
        let times = times.as_primitive::<TimestampMicrosecondType>();
        let mut text = String::new();
        let mut texts = StringBuilder::with_capacity(rows, rows * 16);
        let mut last = None;
        for row in 0..rows {
            if times.is_null(row) {
                texts.append_null();
                continue;
            }
            let unit = times.value(row).div_euclid(self.unit_us);
            if last != Some(unit) {
                text.clear();
                self.write(times.value(row), &mut text);
                last = Some(unit);
            }
            texts.append_value(&text);
        }
        let texts = texts.finish();
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&texts, 0)?),
            false => ColumnarValue::Array(Arc::new(texts)),
        })
    }
}

impl Formatted {
    fn write(&self, time_us: i64, text: &mut String) {
        let (year, month, day) = date_of(time_us.div_euclid(DAY_US));
        let in_day = time_us.rem_euclid(DAY_US);
        for piece in &self.pieces {
            // Writing to a string does not fail.
            let _ = match piece {
                Piece::Year => write!(text, "{year:04}"),
                Piece::Month => write!(text, "{month:02}"),
                Piece::Day => write!(text, "{day:02}"),
                Piece::Hour => write!(text, "{:02}", in_day / 3_600_000_000),
                Piece::Minute => write!(text, "{:02}", in_day / 60_000_000 % 60),
                Piece::Second => write!(text, "{:02}", in_day / 1_000_000 % 60),
                Piece::Millisecond => write!(text, "{:03}", in_day / 1000 % 1000),
                Piece::Text(piece) => {
                    text.push_str(piece);
                    Ok(())
                }
            };
        }
    }
}

/// Year, month and day of a day since 1970, in the calendar of today (Hinnant, "chrono-compatible low-level date algorithms").
fn date_of(days: i64) -> (i64, i64, i64) {
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
    use arrow::temporal_conversions::as_datetime;
    use proptest::prelude::*;

    use super::*;

    fn text(format: &str, time_us: i64) -> String {
        let pieces = pieces_of_letters(format).unwrap();
        let signature = Signature::exact(vec![TIMESTAMP], Volatility::Immutable);
        let mut text = String::new();
        Formatted { pieces, unit_us: 1, name: String::new(), signature }.write(time_us, &mut text);
        text
    }

    proptest! {
        #[test]
        fn dates_are_those_of_the_calendar(time_us in -10_000_000_000_000_000_i64..100_000_000_000_000_000) {
            let expected = as_datetime::<TimestampMicrosecondType>(time_us).unwrap();
            prop_assert_eq!(text("yyyy-MM-dd HH:mm:ss.SSS", time_us), expected.format("%Y-%m-%d %H:%M:%S%.3f").to_string());
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
    }
}
