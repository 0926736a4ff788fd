//! A value as bare text, as in a CSV field, a TEXT payload or a quoted SenML number.

use super::fault::Problem;
use super::number::{Number, no_number};
use super::rows::{Column, Values};

/// Puts `text` into a column that was opened for it.
///
/// White space around anything but text is not part of the value. Numbers may have a `+`, leading zeros or an empty
/// side of the decimal point, and are finite ([`no_number`]); booleans are true/false, on/off or 1/0 in any case; times
/// are epoch milliseconds or ISO 8601.
#[inline]
pub(crate) fn push_bare(column: &mut Column, text: &[u8]) -> Result<(), Problem> {
    let trimmed = text.trim_ascii();
    match column.values() {
        Values::Float64(values) => {
            let number = Number::of(trimmed).map_err(|problem| no_number(trimmed, problem))?;
            values.push(number.to_f64(trimmed)?);
        }
        Values::Int64(values) => values.push(Number::of(trimmed)?.to_i64(trimmed)?),
        Values::Boolean(values) => values.push(boolean(trimmed)?),
        Values::Timestamp(values) => match Number::of(trimmed).ok().filter(|_| values.may_be_number()) {
            Some(number) => values.push_number(number, trimmed)?,
            None => {
                let time_us = values.read(trimmed)?;
                values.push(time_us);
            }
        },
        Values::Text(values) => values.push_checked(text)?,
        Values::Checked(values) => values.push_bare(trimmed)?,
    }
    Ok(())
}

fn boolean(text: &[u8]) -> Result<bool, Problem> {
    let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
    if is("true") || is("on") || is("1") {
        Ok(true)
    } else if is("false") || is("off") || is("0") {
        Ok(false)
    } else {
        Err(Problem::ExpectedBareBoolean)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
    use arrow::util::display::array_value_to_string;

    use super::super::rows::Rows;
    use super::*;

    fn read(data_type: DataType, text: &str) -> Result<String, Problem> {
        let mut rows = Rows::new(Arc::new(Schema::new(vec![Field::new("v", data_type, true)])), None);
        push_bare(rows.open(0), text.as_bytes())?;
        rows.finish_row().unwrap();
        Ok(array_value_to_string(rows.finish().column(0), 0).unwrap())
    }

    #[test]
    fn values_by_type() {
        let microseconds = DataType::Timestamp(TimeUnit::Microsecond, None);
        assert_eq!(read(DataType::Float64, " 21.50\n").unwrap(), "21.5");
        assert_eq!(read(DataType::Int64, "+007").unwrap(), "7");
        assert_eq!(read(DataType::Boolean, "ON").unwrap(), "true");
        assert_eq!(read(DataType::Boolean, "False\r\n").unwrap(), "false");
        assert_eq!(read(DataType::Utf8, " as it is ").unwrap(), " as it is ");
        assert_eq!(read(microseconds.clone(), "86400000.5").unwrap(), "1970-01-02T00:00:00.000500");
        assert_eq!(read(microseconds.clone(), "1970-01-02").unwrap(), "1970-01-02T00:00:00");
        assert_eq!(read(microseconds, "noon"), Err(Problem::ExpectedTimestamp));
        assert_eq!(read(DataType::Float64, "warm"), Err(Problem::ExpectedBareNumber));
        for name in ["NaN", "nan", "inf", "+Infinity", " -INF"] {
            assert_eq!(read(DataType::Float64, name), Err(Problem::NotFinite), "{name}");
        }
        assert_eq!(read(DataType::Float64, "-nan"), Err(Problem::ExpectedBareNumber));
        assert_eq!(read(DataType::Float64, "infinite"), Err(Problem::ExpectedBareNumber));
        assert_eq!(read(DataType::Int64, "NaN"), Err(Problem::ExpectedBareNumber));
        assert_eq!(read(DataType::Float64, "-0").unwrap(), "0.0");
        assert_eq!(read(DataType::Float64, "1e999"), Err(Problem::NumberRange));
        assert_eq!(read(DataType::Float64, "1 2"), Err(Problem::ExpectedBareNumber));
        assert_eq!(read(DataType::Int64, "1.5"), Err(Problem::ExpectedInteger));
        assert_eq!(read(DataType::Boolean, "yes"), Err(Problem::ExpectedBareBoolean));
    }
}
