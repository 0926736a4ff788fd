//! Times and spans of time, in what people read.

use std::time::Duration;

pub(crate) use rivulet_dataflow::times::{at, span};

/// How long ago a time is, in whole seconds or more.
pub(crate) fn ago(now_us: i64, time_us: i64) -> String {
    format!("{} ago", span(now_us.saturating_sub(time_us) / 1_000_000 * 1_000_000))
}

/// A duration as people write it: `500ms`, `10s`, `2m`, `1h`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("'{unit}' is no unit of time; write 500ms, 10s, 2m or 1h")),
    };
    let number: f64 = number.parse().map_err(|_| "write a number and a unit, for example 10s".to_owned())?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("a duration is more than nothing and less than for ever".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_a_second_ago_is_now() {
        assert_eq!(ago(1_900_000, 1_000_000), "0 seconds ago");
        assert_eq!(ago(121_000_000, 500_000), "2 minutes ago");
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        for wrong in ["", "s", "0s", "1d", "-1s", "1e400s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
