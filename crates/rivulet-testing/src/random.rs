//! Random applications, parameters and events: everything from one seed, so that a failure can be had again.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_sql::ParamValue;

/// A random application over the input `readings (ts, value, device)` with the parameters `low`, `width_ms` and `rows`.
pub struct RandomApplication {
    /// The `CREATE APPLICATION`.
    pub sql: String,
}

/// The parameters of one query of a [`RandomApplication`].
#[derive(Clone, Copy, Debug)]
pub struct RandomParameters {
    low: f64,
    width_s: i64,
    rows: i64,
}

/// An event for one of several queries.
#[derive(Clone, Debug)]
pub struct RandomEvent {
    /// Which of the queries, from 0.
    pub query: usize,
    /// When it arrives, microseconds since the epoch.
    pub arrival_us: i64,
    /// Its payload, mostly well-formed.
    pub payload: String,
}

impl RandomApplication {
    /// The application of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut pick = |options: &[&str]| options[random.random_range(0..options.len())].to_owned();
        let window = pick(&[
            "",
            "",
            "tumble(ts, $width)",
            "tumble(ts, INTERVAL '2 seconds')",
            "hop(ts, INTERVAL '1 second', $width)",
            "hop(ts, INTERVAL '1500 milliseconds', INTERVAL '4 seconds')",
            "session(ts, $width)",
            "count_window($rows)",
            "count_window(4, 2)",
        ]);
        let filter = pick(&["", "", "WHERE value > $low", "WHERE device <> 'b' AND value < 90"]);
        let options = pick(&[
            "",
            "WITH (lateness => INTERVAL '2 seconds')",
            "WITH (idle_timeout => INTERVAL '3 seconds', lateness => INTERVAL '500 milliseconds')",
        ]);
        let on_change = pick(&["", "EMIT ON CHANGE"]);
        let over = pick(&["", "OVER (PARTITION BY device)"]);
        let body = if window.is_empty() {
            let columns = pick(&[
                "ts, value * 2 AS twice, device",
                "CASE WHEN value > $low THEN 'high' ELSE 'low' END AS level",
                "upper(device) AS device, CAST(value AS BIGINT) AS whole, value - $low AS above",
                "CAST(round(value) AS BIGINT) % 3 AS kind, $low AS low",
                "value - lag(value, 2) AS step, lag(device) OVER (PARTITION BY value > $low) AS before",
            ]);
            let qualify = pick(&[
                "",
                "",
                "QUALIFY changed(device)",
                "QUALIFY lag(value, 3) < value OR hysteresis(value, $low, $low + 20)",
                "QUALIFY changed(CAST(value AS BIGINT) / 30) OVER (PARTITION BY device)",
            ]);
            format!("SELECT {columns} FROM readings {filter} {qualify} {on_change}")
        } else {
            let aggregates = [
                pick(&["count(*) AS n", "count(device) AS n", "count(DISTINCT device) AS n"]),
                pick(&[
                    "sum(value) AS a",
                    "avg(value) AS a",
                    "min(value) AS a",
                    "max(value) AS a",
                    "median(value) AS a",
                ]),
                pick(&[
                    "stddev(value) AS b",
                    "var_pop(value) AS b",
                    "first_value(value) AS b",
                    "last_value(device) AS b",
                    "sum(value) FILTER (WHERE value > $low) AS b",
                    "regr_slope(value, date_part('epoch', ts)) AS b",
                    "avg(value) > $low AS b",
                ]),
            ]
            .join(", ");
            let bounds = pick(&["", ", window_start", ", window_end"]);
            let (key, key_column) = if pick(&["yes", "no"]) == "yes" { (", device", "device, ") } else { ("", "") };
            let having = pick(&["", "HAVING count(*) > 1", "HAVING max(value) > $low"]);
            let over = if key.is_empty() { "" } else { &over };
            let before = pick(&["", "", &format!(", lag(last_value(device), 2) {over} AS before")]);
            let qualify = pick(&[
                "",
                "",
                &format!("QUALIFY changed(n) {over}"),
                &format!("QUALIFY hysteresis(a, $low, $low + 10) {over} OR lag(a) > a"),
            ]);
            format!(
                "SELECT {key_column}{aggregates}{bounds}{before} FROM readings {filter} \
                 GROUP BY {window}{key} {having} {qualify} {on_change}"
            )
        };
        let sql = format!(
            "CREATE APPLICATION random (low DOUBLE, width INTERVAL, rows BIGINT DEFAULT 3)\n\
             INPUT readings (ts TIMESTAMP EVENT TIME, value DOUBLE, device TEXT) FORMAT JSON {options}\n\
             OUTPUT FORMAT JSON AS {body}"
        );
        Self { sql }
    }
}

impl RandomParameters {
    /// Parameters for one query.
    pub fn new(random: &mut StdRng) -> Self {
        Self {
            low: f64::from(random.random_range(0..100)),
            width_s: random.random_range(1..6),
            rows: random.random_range(1..6),
        }
    }

    /// Hands the parameters, with names and implicit topics, to `bind`.
    pub fn with<T>(self, bind: impl FnOnce(&[(&str, ParamValue<'_>)]) -> T) -> T {
        bind(&[
            ("low", ParamValue::Float(self.low)),
            ("width", ParamValue::Text(&format!("{} seconds", self.width_s))),
            ("rows", ParamValue::Integer(self.rows)),
            ("input", ParamValue::Text("in")),
            ("output", ParamValue::Text("out")),
        ])
    }
}

/// Random events for `queries` queries from `start_us` on: out of order, silent at times, some broken, some from 1970.
pub fn events(random: &mut StdRng, queries: usize, count: usize, start_us: i64) -> Vec<RandomEvent> {
    let mut arrival_us = start_us;
    (0..count)
        .map(|_| {
            arrival_us += match random.random_range(0..40) {
                0 => random.random_range(0..20_000_000),
                _ => random.random_range(0..300_000),
            };
            let behind_us: i64 = match random.random_range(0..10) {
                0 => random.random_range(0..6_000_000),
                _ => random.random_range(0..400_000),
            };
            let time_ms = (arrival_us - behind_us) / 1000;
            let value = random.random_range(0..1000) as f64 / 10.0;
            let device = ["a", "b", "c"][random.random_range(0..3)];
            let payload = match random.random_range(0..60) {
                0 => "{\"ts\": 12".to_owned(),
                1 => format!("{{\"ts\":{time_ms},\"value\":\"hot\",\"device\":\"{device}\"}}"),
                2 => format!("{{\"ts\":5000,\"value\":{value},\"device\":\"{device}\"}}"),
                3 => format!("{{\"ts\":4102444800000,\"value\":{value}}}"),
                4 => format!("{{\"value\":{value}}}"),
                5 => format!("{{\"ts\":{time_ms},\"device\":\"{device}\"}}"),
                6 => String::new(),
                _ => format!("{{\"ts\":{time_ms},\"value\":{value},\"device\":\"{device}\"}}"),
            };
            RandomEvent { query: random.random_range(0..queries), arrival_us, payload }
        })
        .collect()
}
