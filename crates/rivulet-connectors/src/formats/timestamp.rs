//! Points in time as text: ISO 8601 in the profile of RFC 3339, a little relaxed, and epoch milliseconds.
//!
//! `2026-11-21T08:30:00.250Z`, `2026-11-21 08:30:00+09:00`, `2026-11-21T08:30` and `2026-11-21` are all accepted; a
//! time without a zone is UTC. Fractions finer than a microsecond are cut off.

use super::fault::Problem;
use super::number::Number;

/// The first instant of year 1, microseconds since the epoch. Times are held between this and [`MAX_US`], so that
/// arithmetic on them with any sensible duration stays far from overflow.
pub(crate) const MIN_US: i64 = -62_135_596_800_000_000;

/// The last instant of year 9999, microseconds since the epoch.
pub(crate) const MAX_US: i64 = 253_402_300_799_999_999;

/// Refuses times outside the years 1 to 9999.
#[inline(always)]
pub(crate) fn check_range(time_us: i64) -> Result<i64, Problem> {
    match time_us {
        MIN_US..=MAX_US => Ok(time_us),
        _ => Err(Problem::TimestampRange),
    }
}

/// The time, in microseconds since the epoch, that `number` gives in milliseconds since the epoch. `text` is what was
/// scanned; digits below a microsecond are rounded.
#[inline(always)]
pub(crate) fn from_epoch_ms(number: Number, text: &[u8]) -> Result<i64, Problem> {
    let time_us = match number.to_whole() {
        Some(time_ms) => time_ms.checked_mul(1000).ok_or(Problem::TimestampRange)?,
        None => number.to_scaled_rounded(text, 3).map_err(|_| Problem::TimestampRange)?,
    };
    check_range(time_us)
}

/// The time that `text` names, in microseconds since the epoch.
pub(crate) fn parse_iso(text: &[u8]) -> Result<i64, Problem> {
    parse(text).ok_or(Problem::ExpectedTimestamp).and_then(check_range)
}

fn parse(text: &[u8]) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let (year, month, day) = match date {
        [year @ .., b'-', m1, m2, b'-', d1, d2] => (digits(year)?, digits(&[*m1, *m2])?, digits(&[*d1, *d2])?),
        _ => return None,
    };
    if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
        return None;
    }
    let midnight_s = days_since_epoch(year, month, day) * 86_400;
    let Some((separator, rest)) = rest.split_first() else {
        return Some(midnight_s * 1_000_000);
    };
    if !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let (of_day_us, zone) = time_of_day(rest)?;
    let offset_s = zone_offset_s(zone)?;
    Some((midnight_s - offset_s) * 1_000_000 + of_day_us)
}

/// The time of day that `text` names, `08:30` or `08:30:00.250`, in microseconds since midnight.
pub(crate) fn parse_time_of_day(text: &[u8]) -> Option<i64> {
    let (of_day_us, rest) = time_of_day(text)?;
    (rest.is_empty() && of_day_us < 86_400_000_000).then_some(of_day_us)
}

/// The time of day at the beginning of `text`, microseconds since midnight, and what follows it.
fn time_of_day(text: &[u8]) -> Option<(i64, &[u8])> {
    let [h1, h2, b':', m1, m2, rest @ ..] = text else { return None };
    let (hour, minute) = (digits(&[*h1, *h2])?, digits(&[*m1, *m2])?);
    let (second, rest) = match rest {
        [b':', s1, s2, rest @ ..] => (digits(&[*s1, *s2])?, rest),
        _ => (0, rest),
    };
    // Second 60 is a leap second; it counts as the first of the next minute.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction_us, rest) = match rest {
        [b'.' | b',', rest @ ..] => fraction_us(rest)?,
        _ => (0, rest),
    };
    Some(((hour * 3600 + minute * 60 + second) * 1_000_000 + fraction_us, rest))
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
}

fn fraction_us(text: &[u8]) -> Option<(i64, &[u8])> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (fraction, rest) = text.split_at(count);
    let kept = &fraction[..count.min(6)];
    let missing = 6 - kept.len() as u32;
    (count > 0).then_some((digits(kept)? * 10i64.pow(missing), rest))
}

fn zone_offset_s(zone: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match zone {
        [] | [b'Z' | b'z'] => return Some(0),
        [sign, h1, h2] => (sign, digits(&[*h1, *h2])?, 0),
        [sign, h1, h2, m1, m2] | [sign, h1, h2, b':', m1, m2] => (sign, digits(&[*h1, *h2])?, digits(&[*m1, *m2])?),
        _ => return None,
    };
    if hours > 23 || minutes > 59 {
        return None;
    }
    match sign {
        b'+' => Some(hours * 3600 + minutes * 60),
        b'-' => Some(-(hours * 3600 + minutes * 60)),
        _ => None,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar. Years are counted from March, so that the leap day is
/// the last day of a year and the days before a month follow one formula.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month_from_march) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    /// Days from 0000-03-01 to 1970-01-01.
    const EPOCH: i64 = 719_468;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - EPOCH
}

#[cfg(test)]
mod tests {
    use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_instants() {
        for (text, time_us) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01", 0),
            ("1969-12-31T23:59:59.999999Z", -1),
            ("2100-02-28T23:59:59Z", 4_107_542_399_000_000),
            ("2000-02-29t12:00z", 951_825_600_000_000),
            ("2026-11-21 08:30:00+09:00", 1_795_217_400_000_000),
            ("2026-11-21 08:30:00-0130", 1_795_255_200_000_000),
            ("2026-11-20T23:30:00.25", 1_795_217_400_250_000),
            ("2026-11-20T23:30:00,1234567891+00", 1_795_217_400_123_456),
            ("0001-01-01T00:00:00Z", MIN_US),
            ("9999-12-31T23:59:59.999999Z", MAX_US),
            ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        ] {
            assert_eq!(parse_iso(text.as_bytes()), Ok(time_us), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "now",
            "2026",
            "2026-11",
            "2026-13-01",
            "2026-00-01",
            "2026-02-29",
            "2100-02-29",
            "2026-04-31",
            "2026-11-21T",
            "2026-11-21T24:00:00",
            "2026-11-21T08:60",
            "2026-11-21T08:30:61",
            "2026-11-21T08:30:00.",
            "2026-11-21T08:30:00X",
            "2026-11-21T08:30:00+25:00",
            "2026-11-21T08:30:00+9",
            "2026-11-21x08:30",
            "+026-11-21",
            "2026-11-21T08:30:00Z ",
            "２０２６-11-21",
            "12345-01-01",
            "2026-11-2１",
        ] {
            assert_eq!(parse_iso(text.as_bytes()), Err(Problem::ExpectedTimestamp), "{text}");
        }
        assert_eq!(parse_iso(b"0001-01-01T00:00:00+01:00"), Err(Problem::TimestampRange));
        assert_eq!(parse_iso(b"0000-12-31"), Err(Problem::TimestampRange));
    }

    proptest! {
        #[test]
        fn agrees_with_arrow(text in "(1[7-9]|20|21)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])?") {
            let expected = string_to_timestamp_nanos(&text).ok().map(|time_ns| time_ns.div_euclid(1000));
            prop_assert_eq!(parse_iso(text.as_bytes()).ok(), expected, "{}", text);
        }

        #[test]
        fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse_iso(&text);
        }
    }
}
