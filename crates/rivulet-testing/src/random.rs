//! Random applications, parameters and events: everything from one seed, so that a failure can be repeated.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::InputIndex;
use rivulet_sql::ParamValue;

/// A random application over the input `readings (ts, value, device, sensors, radio)`, where `sensors` is a map and
/// `radio` a row, or over two inputs with these columns, with the parameters `low`, `width` and `rows`.
pub struct RandomApplication {
    /// The `CREATE APPLICATION`.
    pub sql: String,
    /// How many inputs it has.
    pub inputs: usize,
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
    /// The index of the query, from 0.
    pub query: usize,
    /// The input, if there are two.
    pub input: InputIndex,
    /// When it arrives, in microseconds since the epoch.
    pub arrival_us: i64,
    /// The topic it was sent to.
    pub topic: &'static str,
    /// Its payload, mostly well-formed.
    pub payload: String,
}

/// The columns of each input.
const COLUMNS: &str = "ts TIMESTAMP EVENT TIME, value DOUBLE, device TEXT, sensors MAP<TEXT, DOUBLE>, \
                       radio ROW<rssi BIGINT, gps ROW<lat DOUBLE>>";

/// A row pattern instead of a window.
const PATTERN: &str = "pattern";

impl RandomApplication {
    /// Makes the application of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut pick = |options: &[&str]| options[random.random_range(0..options.len())].to_owned();
        let window = pick(&[
            "",
            "",
            "",
            "tumble(ts, $width)",
            "tumble(ts, INTERVAL '2 seconds')",
            "hop(ts, INTERVAL '1 second', $width)",
            "hop(ts, INTERVAL '1500 milliseconds', INTERVAL '4 seconds')",
            "tumble(ts, $width, INTERVAL '-700 milliseconds')",
            "cumulate(ts, INTERVAL '1 second', INTERVAL '3 seconds', INTERVAL '500 milliseconds')",
            "session(ts, $width)",
            "count_window($rows)",
            "count_window(4, 2)",
            "state_window(value > $low, value < 30)",
            "state_window(device = 'a' OR value > $low, device = 'c')",
            PATTERN,
            PATTERN,
        ]);
        let filter = pick(&[
            "",
            "",
            "WHERE value > $low",
            "WHERE device <> 'b' AND value < 90",
            "WHERE sensors['t'] > 10 OR radio.gps.lat IS NULL",
        ]);
        let options = pick(&[
            "",
            "WITH (lateness => INTERVAL '2 seconds')",
            "WITH (lateness => INTERVAL '1 second', topic_column => 'device')",
            "WITH (idle_timeout => INTERVAL '3 seconds', lateness => INTERVAL '500 milliseconds')",
        ]);
        let on_change = pick(&["", "", "EMIT ON CHANGE"]);
        let over = pick(&["", "OVER (PARTITION BY device)"]);
        let body = if window == PATTERN {
            let partition = pick(&["", "PARTITION BY device", "PARTITION BY device"]);
            let number = pick(&[
                "",
                ", MATCH_NUMBER() AS number",
                ", PREV(sensors['t']) AS before, LAST(A.sensors)['t'] AS t, LAST(radio) AS radio",
            ]);
            let skip = pick(&["", "", "AFTER MATCH SKIP TO NEXT ROW", "AFTER MATCH SKIP TO LAST A"]);
            let within = pick(&["", "WITHIN $width", "WITHIN INTERVAL '2 seconds'"]);
            let pattern = pick(&[
                "(A B+) @ DEFINE B AS B.value < PREV(B.value)",
                "(A+) @ DEFINE A AS value > $low",
                "(A B+) @ DEFINE B AS B.sensors['t'] < PREV(B.sensors['t']) OR B.radio.rssi > A.radio.rssi",
                "(A+? B) @ DEFINE A AS value > $low, B AS B.value > avg(A.value) + 5",
                "((A | B){2,3} C) @ DEFINE A AS device = 'a', B AS LAST(B.value, 1) IS NULL OR value > LAST(B.value, 1)",
                "(A X*? B) @ DEFINE A AS value > $low, B AS B.value > A.value + $low / 10 AND device <> A.device",
                "(A B? A*) @ DEFINE A AS count(*) < $rows OR value < $low, B AS max(A.value) > value",
            ]);
            let pattern = pattern.replace('@', &within);
            let filter = pick(&["", "WHERE n > 1", "WHERE kind <> 'b' AND high > $low"]);
            format!(
                "SELECT * FROM readings MATCH_RECOGNIZE ({partition} MEASURES count(*) AS n, FIRST(ts) AS first, \
                 LAST(A.value) AS a, max(value) AS high, CLASSIFIER() AS who, LAST(device, 1) AS kind{number} \
                 {skip} PATTERN {pattern}) {filter} {on_change}"
            )
        } else if window.is_empty() {
            let columns = pick(&[
                "ts, value * 2 AS twice, device",
                "CASE WHEN value > $low THEN 'high' ELSE 'low' END AS level",
                "upper(device) AS device, CAST(value AS BIGINT) AS whole, value - $low AS above",
                "CAST(round(value) AS BIGINT) % 3 AS kind, $low AS low",
                "value - lag(value, 2) AS step, lag(device) OVER (PARTITION BY value > $low) AS before",
                "sum(value) OVER (PARTITION BY device ORDER BY ts ROWS 2 PRECEDING) AS three, device",
                "avg(value) OVER (ROWS UNBOUNDED PRECEDING) AS mean, max(ts) OVER (ROWS 3 PRECEDING) AS last",
                "max(device) OVER (PARTITION BY radio.rssi ROWS 2 PRECEDING) AS greatest, \
                 min(device) FILTER (WHERE value > $low) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING) AS least",
                "sensors['t'] + $low AS t, radio.rssi, radio.gps.lat AS lat",
                "upper(device) AS device, sensors, radio",
                "lag(sensors)['h'] AS before, lag(radio.rssi) OVER (PARTITION BY sensors['t']) AS rssi",
            ]);
            let qualify = pick(&[
                "",
                "",
                "",
                "QUALIFY changed(device)",
                "QUALIFY changed(sensors) OR radio.rssi > lag(radio.rssi)",
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
                    "max(sensors['t']) AS a",
                    "avg(radio.rssi) AS a",
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
                    "array_agg(value) AS b",
                    "last_value(sensors)['h'] AS b",
                    "array_agg(radio) AS b",
                    "max(sensors) FILTER (WHERE radio.rssi < -60) AS b",
                    "string_agg(device, '+' ORDER BY value DESC) AS b",
                    "json_object('all', array_agg(device), 'n', count(*)) AS b",
                ]),
            ]
            .join(", ");
            // Windows over these windows.
            let around = pick(&[
                "",
                "",
                "",
                "",
                "SELECT @max(n) AS n, count(*) AS windows, max(a) AS a, window_start FROM (",
                "SELECT @n, a, lag(n) AS before FROM (",
            ]);
            let bounds = pick(&["", ", window_start", ", window_end"]);
            let bounds = if around.is_empty() { bounds.as_str() } else { ", window_end" };
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
            let body = format!(
                "SELECT {key_column}{aggregates}{bounds}{before} FROM readings {filter} \
                 GROUP BY {window}{key} {having} {qualify} {on_change}"
            );
            let above = pick(&["", "WHERE n > 1"]);
            let outer = match around.contains("count(*)") {
                true => pick(&[
                    "GROUP BY tumble(window_end, INTERVAL '5 seconds')@",
                    "GROUP BY hop(window_end, $width, INTERVAL '6 seconds')@",
                    "GROUP BY session(window_end, INTERVAL '1500 milliseconds')@",
                    "GROUP BY count_window(2)@",
                    "GROUP BY state_window(n > 1, n < 3)@",
                ]),
                false => String::new(),
            };
            let around = around.replace('@', key_column);
            match around.is_empty() {
                true => body,
                false => format!("{around}{body}) AS windows {above} {}", outer.replace('@', key)),
            }
        };
        if seed.is_multiple_of(3) {
            return Self { sql: with_two_inputs(&body, options, &mut pick), inputs: 2 };
        }
        let sql = format!(
            "CREATE APPLICATION random (low DOUBLE, width INTERVAL, rows BIGINT DEFAULT 3)\n\
             INPUT readings ({COLUMNS}) FORMAT JSON {options}\n\
             OUTPUT FORMAT JSON AS {body}"
        );
        Self { sql, inputs: 1 }
    }
}

/// Makes an application over two inputs: `body` over their union, or a join of them.
fn with_two_inputs(body: &str, options: String, pick: &mut impl FnMut(&[&str]) -> String) -> String {
    let body = match pick(&["union", "latest", "interval"]).as_str() {
        "union" => {
            let filter = pick(&["", "WHERE value > $low", "WHERE device <> 'b'", "WHERE sensors['t'] > 10"]);
            let value = pick(&["value", "value + $low", "CAST(value AS BIGINT)"]);
            body.replace(
                "FROM readings",
                &format!(
                    "FROM (SELECT ts, value, device, sensors, radio FROM readings {filter} \
                     UNION ALL SELECT ts, {value}, upper(device), sensors, radio FROM others) AS readings"
                ),
            )
        }
        "latest" => {
            let from = pick(&[
                "readings AS r JOIN LATEST(others) AS o ON o.device = r.device",
                "readings AS r LEFT JOIN LATEST(others) AS o ON o.device = r.device",
                "readings AS r CROSS JOIN LATEST(others) AS o",
            ]);
            let both = pick(&[
                "LATEST(readings) AS r JOIN LATEST(others) AS o ON o.device = r.device",
                "LATEST(readings) AS r LEFT JOIN LATEST(others) AS o ON o.value > $low = (r.value > $low)",
                "LATEST(readings) AS r JOIN others AS o ON o.device = r.device",
            ]);
            pick(&[
                &format!("SELECT r.ts, r.value - o.value AS value, o.device FROM {from}"),
                &format!("SELECT r.ts, r.sensors['t'] - o.radio.rssi AS t, o.sensors, r.radio FROM {from}"),
                &format!("SELECT r.value, o.value AS other, r.device FROM {both} WHERE r.value > $low EMIT ON CHANGE"),
                &format!("SELECT r.value + lag(o.value) AS value, r.device FROM {both} QUALIFY changed(r.device)"),
                &format!(
                    "SELECT count(o.value) AS value, max(r.value) AS most FROM {from} GROUP BY tumble(r.ts, $width)"
                ),
                &format!(
                    "SELECT sum(r.value) AS value, o.device FROM {from} GROUP BY hop(r.ts, INTERVAL '1 second', $width), o.device"
                ),
                &format!("SELECT avg(r.value - o.value) AS value FROM {both} GROUP BY count_window($rows)"),
            ])
        }
        _ => {
            let on = pick(&[
                "o.device = r.device AND o.ts BETWEEN r.ts - $width AND r.ts + $width",
                "o.ts BETWEEN r.ts AND r.ts + INTERVAL '500 milliseconds'",
                "r.device = o.device AND r.ts BETWEEN o.ts - INTERVAL '2 seconds' AND o.ts + $width",
                "o.ts >= r.ts - $width AND o.ts <= r.ts - INTERVAL '100 milliseconds' AND o.device = r.device",
            ]);
            let columns = pick(&[
                "r.ts, o.ts AS other, r.value",
                "r.value - o.value AS value, o.device",
                "r.radio, o.sensors['t'] AS t, o.radio.gps.lat AS lat",
            ]);
            let filter = pick(&["", "WHERE o.value > $low"]);
            let on_change = pick(&["", "EMIT ON CHANGE"]);
            pick(&[
                &format!("SELECT {columns} FROM readings AS r JOIN others AS o ON {on} {filter} {on_change}"),
                &format!(
                    "SELECT count(*) AS value, max(o.value) AS most FROM readings AS r JOIN others AS o ON {on} {filter} GROUP BY count_window($rows)"
                ),
                &format!(
                    "SELECT {columns}, o.device IS NULL AS alone FROM readings AS r LEFT JOIN others AS o ON {on} {on_change}"
                ),
            ])
        }
    };
    let outputs = pick(&[
        "OUTPUT 'mqtt:{output}' FORMAT JSON",
        "OUTPUT high 'mqtt:{output}/high' FORMAT JSON WHEN $low > 50 OUTPUT every 'mqtt:{output}' FORMAT JSON",
        "OUTPUT 'mqtt:{output}' FORMAT JSON WHEN $rows > 1",
    ]);
    format!(
        "CREATE APPLICATION random (low DOUBLE, width INTERVAL, rows BIGINT DEFAULT 3, input TEXT, output TEXT)\n\
         INPUT readings ({COLUMNS}) FROM 'mqtt:{{input}}/readings' FORMAT JSON {options}\n\
         INPUT others ({COLUMNS}) FROM 'mqtt:{{input}}/others' FORMAT JSON\n\
         {outputs} AS {body}"
    )
}

impl RandomParameters {
    /// Makes parameters for one query.
    pub fn new(random: &mut StdRng) -> Self {
        Self {
            low: f64::from(random.random_range(0..100)),
            width_s: random.random_range(1..6),
            rows: random.random_range(1..6),
        }
    }

    /// Returns the same parameters with the threshold of `other`.
    #[must_use]
    pub fn with_low(self, other: Self) -> Self {
        Self { low: other.low, ..self }
    }

    /// Passes the parameters, with names and implicit topics, to `bind`.
    pub fn with<T>(self, bind: impl FnOnce(&[(&str, ParamValue<'_>)]) -> T) -> T {
        self.with_topics("in", "out", bind)
    }

    /// Does the same with other topics.
    pub fn with_topics<T>(self, input: &str, output: &str, bind: impl FnOnce(&[(&str, ParamValue<'_>)]) -> T) -> T {
        bind(&[
            ("low", ParamValue::Float(self.low)),
            ("width", ParamValue::Text(&format!("{} seconds", self.width_s))),
            ("rows", ParamValue::Integer(self.rows)),
            ("input", ParamValue::Text(input)),
            ("output", ParamValue::Text(output)),
        ])
    }
}

/// Makes random events for `queries` queries from `start_us` on: out of order, with silences, some broken, some from
/// 1970.
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
                7 => format!("{{\"ts\":{time_ms},\"device\":\"{device}\",\"sensors\":{{\"t\":\"warm\"}}}}"),
                _ => {
                    let parts = parts(random);
                    format!("{{\"ts\":{time_ms},\"value\":{value},\"device\":\"{device}\"{parts}}}")
                }
            };
            RandomEvent {
                query: random.random_range(0..queries),
                input: random.random_range(0..2),
                arrival_us,
                topic: device,
                payload,
            }
        })
        .collect()
}

/// The map and the row of an event, each often missing in part or as a whole, with few different values.
fn parts(random: &mut StdRng) -> String {
    let t = random.random_range(0..40);
    let sensors = match random.random_range(0..6) {
        0 => String::new(),
        1 => ",\"sensors\":{}".to_owned(),
        2 => format!(",\"sensors\":{{\"h\":{t}}}"),
        _ => format!(",\"sensors\":{{\"t\":{t},\"h\":0.5}}"),
    };
    let rssi = -50 - 10 * random.random_range(0..4);
    let radio = match random.random_range(0..6) {
        0 => String::new(),
        1 => format!(",\"radio\":{{\"rssi\":{rssi}}}"),
        _ => format!(",\"radio\":{{\"gps\":{{\"lat\":48.5}},\"rssi\":{rssi}}}"),
    };
    sensors + &radio
}
