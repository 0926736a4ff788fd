//! Times and spans of time, in what people read.

use arrow::temporal_conversions::timestamp_us_to_datetime;

use crate::counted::counted;

/// A time of the calendar, in UTC and whole seconds, given in microseconds since the epoch.
pub(crate) fn at(time_us: i64) -> String {
    let whole_us = time_us.div_euclid(1_000_000) * 1_000_000;
    timestamp_us_to_datetime(whole_us)
        .map_or_else(|| format!("{time_us} us"), |time| format!("{time}Z").replace(' ', "T"))
}

/// How long ago a time is.
pub(crate) fn ago(now_us: i64, time_us: i64) -> String {
    format!("{} ago", span(now_us.saturating_sub(time_us)))
}

/// A span of time in its largest unit.
pub(crate) fn span(span_us: i64) -> String {
    const UNITS: [(i64, &str); 5] =
        [(365 * 86_400, "year"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    let seconds = span_us.max(0) / 1_000_000;
    let unit = UNITS.into_iter().find(|(length, _)| seconds >= 2 * length || (*length == 1));
    let (length, name) = unit.unwrap_or((1, "second"));
    counted((seconds / length) as u64, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_spans_read_well() {
        assert_eq!(at(1_769_860_800_500_000), "2026-01-31T12:00:00Z");
        let spans = [(0, "0 seconds"), (1, "1 second"), (119, "119 seconds"), (120, "2 minutes"), (7_200, "2 hours")];
        for (seconds, text) in spans {
            assert_eq!(span(seconds * 1_000_000), text);
        }
        assert_eq!(span(56 * 365 * 86_400 * 1_000_000), "56 years");
        assert_eq!(span(-5), "0 seconds");
    }
}
