//! What stands in the trace, for whoever computes what must come of it.

use std::sync::LazyLock;

use serde::Deserialize;

/// How many quantities a line has.
pub(super) const QUANTITIES: usize = 5;

/// A line of the trace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    /// The sensor.
    pub(super) source: String,
    /// Temperature, humidity, light, dust, quality of air.
    pub(super) values: [f32; QUANTITIES],
}

/// All lines.
pub(super) static READINGS: LazyLock<Vec<Reading>> =
    LazyLock::new(|| include_str!("../../riot/sys.senml").lines().filter_map(reading).collect());

#[derive(Deserialize)]
struct Pack<'t> {
    #[serde(borrow)]
    e: Vec<Record<'t>>,
}

#[derive(Deserialize)]
struct Record<'t> {
    n: &'t str,
    v: Option<&'t str>,
    sv: Option<&'t str>,
}

fn reading(line: &str) -> Option<Reading> {
    const NAMES: [&str; QUANTITIES] = ["temperature", "humidity", "light", "dust", "airquality_raw"];
    let pack: Pack<'_> = serde_json::from_str(line.split_once(',')?.1).ok()?;
    let record = |name: &str| pack.e.iter().find(|record| record.n == name);
    let mut values = [0.0; QUANTITIES];
    for (value, name) in values.iter_mut().zip(NAMES) {
        *value = record(name)?.v?.parse().ok()?;
    }
    Some(Reading { source: record("source")?.sv?.to_owned(), values })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_trace_is_whole() {
        assert_eq!(READINGS.len(), 1_000);
        assert_eq!(READINGS.iter().map(|reading| &reading.source).collect::<HashSet<_>>().len(), 788);
        assert_eq!(READINGS[0].values, [8.0, 53.7, 0.0, 411.02, 140.0]);
    }
}
