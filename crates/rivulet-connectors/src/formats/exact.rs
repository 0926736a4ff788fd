//! Columns whose values are checked beyond their form: whole numbers of fewer than 64 bits, dates, times of day and
//! decimals; and how dates, times of day and decimals are written.
//!
//! What must hold: a decimal is made from its digits, never from a floating-point number; a value that does not fit its
//! declared type is refused, never cut or rounded.

use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Decimal128Array, Int64Array, Time64NanosecondArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, TimeUnit};
use chrono::{NaiveDate, NaiveTime};

use super::array::NestedValues;
use super::encode::append_display;
use super::fault::Problem;
use super::number::Number;
use super::times::TimeFormat;
use super::timestamp;

const DAY_US: i64 = 86_400_000_000;
const DAY_NS: i64 = 1000 * DAY_US;
/// Days from the first of year 1 to 1970-01-01, by which the calendar counts.
const EPOCH_DAYS: i32 = 719_163;

/// The values of a column under construction.
pub(crate) enum CheckedValues {
    /// Whole numbers of `bits` bits, as `Int64`.
    Whole { values: Vec<i64>, bits: u32 },
    /// Days since 1970, and the format of their texts if it is not ISO 8601.
    Date { values: Vec<i32>, format: Option<TimeFormat> },
    /// Nanoseconds since midnight.
    Time(Vec<i64>),
    /// Numbers times `10^scale`, of at most `precision` digits.
    Decimal { values: Vec<i128>, precision: u8, scale: i8 },
    /// Arrays, maps and rows in JSON.
    Nested(Box<NestedValues>),
}

impl CheckedValues {
    /// An empty column that is declared as `data_type`; `None` if values of this type need no check.
    pub(crate) fn new(data_type: &DataType) -> Option<Self> {
        let whole = |bits| Some(Self::Whole { values: Vec::new(), bits });
        match *data_type {
            DataType::Int8 => whole(8),
            DataType::Int16 => whole(16),
            DataType::Int32 => whole(32),
            DataType::Date32 => Some(Self::Date { values: Vec::new(), format: None }),
            DataType::Time64(TimeUnit::Nanosecond) => Some(Self::Time(Vec::new())),
            DataType::Decimal128(precision, scale) if scale >= 0 => {
                Some(Self::Decimal { values: Vec::new(), precision, scale })
            }
            _ => None,
        }
    }

    /// An empty column of values of this type, which has parts.
    pub(crate) fn nested(held: &DataType) -> Option<Self> {
        NestedValues::new(held).map(|values| Self::Nested(Box::new(values)))
    }

    /// The problem of a value that is neither a number nor a text.
    pub(crate) fn expected(&self) -> Problem {
        match self {
            Self::Whole { .. } | Self::Decimal { .. } => Problem::ExpectedNumber,
            Self::Date { .. } => Problem::ExpectedDate,
            Self::Time(_) => Problem::ExpectedTime,
            Self::Nested(values) => values.begin().1,
        }
    }

    /// Appends the value that a number stands for; `text` is the scanned text.
    pub(crate) fn push_number(&mut self, number: Number, text: &[u8]) -> Result<(), Problem> {
        match self {
            Self::Whole { .. } => self.push_integer(number.to_i64(text)?),
            Self::Decimal { values, precision, scale } => {
                let digits = number.to_scaled_exactly(text, i32::from(*scale)).map_err(|problem| match problem {
                    Problem::ExpectedInteger => Problem::DecimalDigits,
                    _ => Problem::DecimalRange,
                })?;
                values.push(within(digits, *precision)?);
                Ok(())
            }
            Self::Date { format: Some(_), .. } => self.push_text(text),
            Self::Date { .. } => Err(Problem::ExpectedDate),
            Self::Time(_) => Err(Problem::ExpectedTime),
            Self::Nested(values) => Err(values.begin().1),
        }
    }

    /// Appends the value that a text stands for, in formats where numbers are not texts.
    pub(crate) fn push_text(&mut self, text: &[u8]) -> Result<(), Problem> {
        match self {
            Self::Whole { .. } => Err(Problem::ExpectedNumber),
            Self::Date { values, format } => {
                values.push(date(text, format.as_ref())?);
                Ok(())
            }
            Self::Time(values) => {
                let of_day_us = timestamp::parse_time_of_day(text).ok_or(Problem::ExpectedTime)?;
                values.push(of_day_us * 1000);
                Ok(())
            }
            Self::Decimal { .. } => {
                let number = Number::of(text).map_err(|_| Problem::ExpectedNumber)?;
                self.push_number(number, text)
            }
            Self::Nested(values) => values.push_text(text),
        }
    }

    /// Appends the value of a bare text: of a line, or a payload.
    pub(crate) fn push_bare(&mut self, text: &[u8]) -> Result<(), Problem> {
        match self {
            Self::Whole { .. } | Self::Decimal { .. } => self.push_number(Number::of(text)?, text),
            Self::Date { .. } | Self::Time(_) | Self::Nested(_) => self.push_text(text),
        }
    }

    /// Appends a whole number.
    pub(crate) fn push_integer(&mut self, value: i64) -> Result<(), Problem> {
        match self {
            Self::Whole { values, bits } => {
                let bound = 1_i64 << (*bits - 1);
                if !(-bound..bound).contains(&value) {
                    return Err(Problem::WholeRange);
                }
                values.push(value);
                Ok(())
            }
            Self::Decimal { .. } => self.push_scaled(i128::from(value), 0),
            Self::Date { .. } => Err(Problem::ExpectedDate),
            Self::Time(_) => Err(Problem::ExpectedTime),
            Self::Nested(values) => Err(values.begin().1),
        }
    }

    /// Appends the number `digits / 10^scale`.
    pub(crate) fn push_scaled(&mut self, digits: i128, scale: i32) -> Result<(), Problem> {
        let Self::Decimal { values, precision, scale: own } = self else { return Err(Problem::BinaryWireType) };
        let digits = rescaled(digits, scale, i32::from(*own))?;
        values.push(within(digits, *precision)?);
        Ok(())
    }

    /// Appends a day, counted from 1970.
    pub(crate) fn push_days(&mut self, days: i64) -> Result<(), Problem> {
        let Self::Date { values, .. } = self else { return Err(Problem::BinaryWireType) };
        let time_us = days.checked_mul(DAY_US).ok_or(Problem::TimestampRange)?;
        values.push(days_of(timestamp::check_range(time_us)?));
        Ok(())
    }

    /// Appends a time of day, nanoseconds since midnight.
    pub(crate) fn push_time_of_day(&mut self, of_day_ns: i64) -> Result<(), Problem> {
        let Self::Time(values) = self else { return Err(Problem::BinaryWireType) };
        if !(0..DAY_NS).contains(&of_day_ns) {
            return Err(Problem::ExpectedTime);
        }
        values.push(of_day_ns);
        Ok(())
    }

    /// Appends the placeholder under a null.
    pub(super) fn push_default(&mut self) {
        match self {
            Self::Whole { values, .. } | Self::Time(values) => values.push(0),
            Self::Date { values, .. } => values.push(0),
            Self::Decimal { values, .. } => values.push(0),
            Self::Nested(values) => values.push_default(),
        }
    }

    pub(super) fn truncate(&mut self, rows: usize) {
        match self {
            Self::Whole { values, .. } | Self::Time(values) => values.truncate(rows),
            Self::Date { values, .. } => values.truncate(rows),
            Self::Decimal { values, .. } => values.truncate(rows),
            Self::Nested(values) => values.truncate(rows),
        }
    }

    pub(super) fn reserve(&mut self, rows: usize) {
        match self {
            Self::Whole { values, .. } | Self::Time(values) => values.reserve_exact(rows),
            Self::Date { values, .. } => values.reserve_exact(rows),
            Self::Decimal { values, .. } => values.reserve_exact(rows),
            // Their lengths are not known.
            Self::Nested(_) => {}
        }
    }

    /// The values as a column; none is left here.
    pub(super) fn finish(&mut self, nulls: Option<NullBuffer>) -> ArrayRef {
        match self {
            Self::Whole { values, .. } => Arc::new(Int64Array::new(std::mem::take(values).into(), nulls)),
            Self::Date { values, .. } => Arc::new(Date32Array::new(std::mem::take(values).into(), nulls)),
            Self::Time(values) => Arc::new(Time64NanosecondArray::new(std::mem::take(values).into(), nulls)),
            Self::Nested(values) => Arc::new(values.finish(nulls)),
            Self::Decimal { values, precision, scale } => {
                let array = Decimal128Array::new(std::mem::take(values).into(), nulls);
                Arc::new(array.with_precision_and_scale(*precision, *scale).expect("the type was declared"))
            }
        }
    }
}

/// The day that a text names.
fn date(text: &[u8], format: Option<&TimeFormat>) -> Result<i32, Problem> {
    let time_us = match format {
        Some(format) => format.text(text),
        None => timestamp::parse_iso(text),
    };
    match time_us {
        Ok(time_us) if time_us.rem_euclid(DAY_US) == 0 => Ok(days_of(time_us)),
        Err(Problem::TimestampRange) => Err(Problem::TimestampRange),
        _ => Err(Problem::ExpectedDate),
    }
}

/// The day of a time within the years 1 to 9999, whose days fit.
fn days_of(time_us: i64) -> i32 {
    time_us.div_euclid(DAY_US) as i32
}

/// `digits / 10^from` as digits times `10^-to`, if that is exact.
pub(crate) fn rescaled(digits: i128, from: i32, to: i32) -> Result<i128, Problem> {
    let power = 10_i128.checked_pow(from.abs_diff(to));
    if to >= from {
        return power.and_then(|power| digits.checked_mul(power)).ok_or(Problem::DecimalRange);
    }
    match power {
        _ if digits == 0 => Ok(0),
        Some(power) if digits % power == 0 => Ok(digits / power),
        _ => Err(Problem::DecimalDigits),
    }
}

/// The digits, if there are at most `precision`.
fn within(digits: i128, precision: u8) -> Result<i128, Problem> {
    match 10_u128.checked_pow(u32::from(precision)) {
        Some(bound) if digits.unsigned_abs() >= bound => Err(Problem::DecimalRange),
        _ => Ok(digits),
    }
}

/// Appends a day as `2026-11-21`, or in its pattern.
pub(crate) fn append_date(days: i32, format: &TimeFormat, out: &mut Vec<u8>) {
    if let TimeFormat::Pattern(_) = format {
        return format.append(i64::from(days).saturating_mul(DAY_US), out);
    }
    // Beyond the calendar there is no other word for it.
    match NaiveDate::from_num_days_from_ce_opt(days.saturating_add(EPOCH_DAYS)) {
        Some(date) => append_display(out, format_args!("{date}")),
        None => append_display(out, format_args!("{days} days")),
    }
}

/// Appends a time of day as `08:30:00` or `08:30:00.250`.
pub(crate) fn append_time_of_day(of_day_ns: i64, out: &mut Vec<u8>) {
    let of_day_ns = of_day_ns.rem_euclid(DAY_NS);
    let (seconds, rest) = (of_day_ns / 1_000_000_000, of_day_ns % 1_000_000_000);
    if let Some(time) = NaiveTime::from_num_seconds_from_midnight_opt(seconds as u32, rest as u32) {
        append_display(out, format_args!("{time}"));
    }
}

/// Appends `digits / 10^scale` with all its digits: `12.50`.
pub(crate) fn append_scaled(digits: i128, scale: u32, out: &mut Vec<u8>) {
    let sign = if digits < 0 { "-" } else { "" };
    let magnitude = digits.unsigned_abs();
    match 10_u128.checked_pow(scale) {
        _ if scale == 0 => append_display(out, format_args!("{sign}{magnitude}")),
        Some(power) => {
            let (whole, fraction, width) = (magnitude / power, magnitude % power, scale as usize);
            append_display(out, format_args!("{sign}{whole}.{fraction:0width$}"));
        }
        None => append_display(out, format_args!("{sign}{magnitude}e-{scale}")),
    }
}

/// `digits / 10^scale` as the nearest floating point number, for fields that are declared as such.
pub(crate) fn nearest_float(digits: i128, scale: u32) -> f64 {
    let mut text = Vec::new();
    append_scaled(digits, scale, &mut text);
    std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use arrow::util::display::array_value_to_string;

    use super::*;

    fn read(data_type: &DataType, text: &str) -> Result<String, Problem> {
        let mut values = CheckedValues::new(data_type).unwrap();
        values.push_bare(text.as_bytes())?;
        Ok(array_value_to_string(&values.finish(None), 0).unwrap())
    }

    #[test]
    fn values_that_fit_are_kept_and_others_refused_with_the_reason() {
        use Problem as P;
        let time = DataType::Time64(TimeUnit::Nanosecond);
        let decimal = DataType::Decimal128(5, 2);
        for (data_type, text, expected) in [
            (DataType::Int8, "127", Ok("127")),
            (DataType::Int8, "-129", Err(P::WholeRange)),
            (DataType::Int16, "-32768", Ok("-32768")),
            (DataType::Int16, "32768", Err(P::WholeRange)),
            (DataType::Int32, "2147483647.0", Ok("2147483647")),
            (DataType::Int32, "2147483648", Err(P::WholeRange)),
            (DataType::Int32, "1.5", Err(P::ExpectedInteger)),
            (DataType::Int32, "one", Err(P::ExpectedBareNumber)),
            (DataType::Date32, "2024-02-29", Ok("2024-02-29")),
            (DataType::Date32, "0001-01-01", Ok("0001-01-01")),
            (DataType::Date32, "2026-11-21T00:00:00Z", Ok("2026-11-21")),
            (DataType::Date32, "2026-11-21T08:30:00Z", Err(P::ExpectedDate)),
            (DataType::Date32, "2026-02-29", Err(P::ExpectedDate)),
            (DataType::Date32, "20778", Err(P::ExpectedDate)),
            (time.clone(), "08:30", Ok("08:30:00")),
            (time.clone(), "23:59:59.999999", Ok("23:59:59.999999")),
            (time.clone(), "24:00", Err(P::ExpectedTime)),
            (time.clone(), "08:30:00Z", Err(P::ExpectedTime)),
            (time, "8", Err(P::ExpectedTime)),
            (decimal.clone(), "-0.05", Ok("-0.05")),
            (decimal.clone(), "12.5", Ok("12.50")),
            (decimal.clone(), "12.500", Ok("12.50")),
            (decimal.clone(), "1e2", Ok("100.00")),
            (decimal.clone(), "999.99", Ok("999.99")),
            (decimal.clone(), "1000", Err(P::DecimalRange)),
            (decimal.clone(), "0.005", Err(P::DecimalDigits)),
            (decimal.clone(), "1e400", Err(P::DecimalRange)),
            (decimal, "NaN", Err(P::ExpectedBareNumber)),
            (DataType::Decimal128(38, 0), &"9".repeat(38), Ok(&*"9".repeat(38))),
            (DataType::Decimal128(38, 37), "0.1", Ok("0.1000000000000000000000000000000000000")),
        ] {
            let found = read(&data_type, text);
            assert_eq!(found.as_deref(), expected.as_ref().map(|text| *text), "{text} as {data_type}");
        }
    }

    #[test]
    fn what_is_written_has_all_its_digits() {
        let scaled = |digits, scale| {
            let mut out = Vec::new();
            append_scaled(digits, scale, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!([scaled(-5, 2), scaled(1250, 2), scaled(7, 0), scaled(0, 3)], ["-0.05", "12.50", "7", "0.000"]);
        let whole = scaled(i128::from(i64::MAX) * 1_000_000_000, 9);
        assert_eq!(whole, "9223372036854775807.000000000");
        let mut out = Vec::new();
        append_date(-1, &TimeFormat::default(), &mut out);
        append_time_of_day(30_600_250_000_000, &mut out);
        assert_eq!(out, b"1969-12-3108:30:00.250");
        assert_eq!(nearest_float(123_456_789_012_345_678, 2), 1_234_567_890_123_456.8);
        assert_eq!([rescaled(150, 2, 1), rescaled(15, 1, 3), rescaled(0, 40, 0)], [Ok(15), Ok(1500), Ok(0)]);
        assert_eq!(rescaled(155, 2, 1), Err(Problem::DecimalDigits));
    }
}
