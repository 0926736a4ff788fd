//! Times and spans of time, in what people read.

use arrow::temporal_conversions::timestamp_us_to_datetime;

/// A time of the calendar, in UTC and whole seconds, given in microseconds since the epoch.
pub fn at(time_us: i64) -> String {
    let whole_us = time_us.div_euclid(1_000_000) * 1_000_000;
    timestamp_us_to_datetime(whole_us)
        .map_or_else(|| format!("{time_us} us"), |time| format!("{time}Z").replace(' ', "T"))
}

/// A span of time in microseconds, as a whole number of its largest unit.
pub fn span(span_us: i64) -> String {
    const UNITS: [(i64, &str); 5] =
        [(365 * 86_400_000, "year"), (86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")];
    let span_ms = span_us.max(0) / 1_000;
    let (number, name) = match span_ms {
        1..1_000 => (span_ms, "millisecond"),
        _ => {
            let unit = UNITS.into_iter().find(|(length_ms, _)| span_ms >= 2 * length_ms);
            let (length_ms, name) = unit.unwrap_or((1_000, "second"));
            (span_ms / length_ms, name)
        }
    };
    format!("{number} {name}{}", if number == 1 { "" } else { "s" })
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
        assert_eq!(
            (span(-5), span(1_500), span(999_999)),
            ("0 seconds".into(), "1 millisecond".into(), "999 milliseconds".into())
        );
    }
}
