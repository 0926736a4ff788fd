//! The expected results of queries, in plain Rust: for each kind of query its SQL, and beside it a simple function over
//! one event after the other.

use serde_json::{Value, json};

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// The number of the event among those of its device, from 1.
    pub number: i64,
    /// Its time, in seconds since the beginning.
    pub at_s: i64,
    /// The measured value: a whole number, so that sums are exact.
    pub value: f64,
}

/// The kinds of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rows above a bound.
    Filter,
    /// A text that is emitted only when it changes.
    OnChange,
    /// The difference from the previous row.
    Lag,
    /// Rows between reaching a high bound and reaching a low bound.
    Hysteresis,
    /// The count, sum and last number in windows of ten seconds.
    Tumble,
    /// The sum of every three rows.
    CountWindow,
    /// Rows above a bound, from the results of another query.
    Relay,
    /// The sum of every two rows, from the results of another query.
    Sums,
}

impl Kind {
    /// All kinds that read devices.
    pub const ALL: [Self; 6] =
        [Self::Filter, Self::OnChange, Self::Lag, Self::Hysteresis, Self::Tumble, Self::CountWindow];

    /// The name of its application.
    pub fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::OnChange => "on_change",
            Self::Lag => "lag",
            Self::Hysteresis => "hysteresis",
            Self::Tumble => "tumble",
            Self::CountWindow => "count_window",
            Self::Relay => "relay",
            Self::Sums => "sums",
        }
    }

    /// Whether other queries can read its results: numbers and values, at most one for each event.
    pub fn is_chained(self) -> bool {
        matches!(self, Self::Filter | Self::Relay | Self::Sums)
    }

    /// Its application.
    pub fn sql(self) -> String {
        let select = match self {
            Self::Filter => "SELECT n, v FROM readings WHERE v > $low",
            Self::OnChange => {
                "SELECT CASE WHEN v > $low THEN 'high' ELSE 'low' END AS level FROM readings EMIT ON CHANGE"
            }
            Self::Lag => "SELECT n, v - lag(v) AS step FROM readings",
            Self::Hysteresis => "SELECT n FROM readings QUALIFY hysteresis(v, $low, $low + 20)",
            Self::Tumble => {
                "SELECT count(*) AS c, sum(v) AS s, max(n) AS n FROM readings GROUP BY tumble(ts, INTERVAL '10 seconds')"
            }
            Self::CountWindow => "SELECT sum(v) AS s, max(n) AS n FROM readings GROUP BY count_window(3)",
            Self::Relay => "SELECT n, v FROM readings WHERE v > $low",
            Self::Sums => "SELECT sum(v) AS v, max(n) AS n FROM readings GROUP BY count_window(2)",
        };
        if matches!(self, Self::Relay | Self::Sums) {
            return format!(
                "CREATE APPLICATION {}_queries (device TEXT, low DOUBLE, result TEXT) \
                 INPUT readings (n BIGINT, v DOUBLE) FROM 'mqtt:out/{{device}}' FORMAT JSON \
                 OUTPUT 'mqtt:out/{{result}}' FORMAT JSON AS {select}",
                self.name()
            );
        }
        format!(
            "CREATE APPLICATION {}_queries (device TEXT, low DOUBLE, result TEXT) \
             INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT, v DOUBLE) FROM 'mqtt:in/{{device}}' FORMAT JSON \
             WITH (idle_timeout => INTERVAL '100 hours') OUTPUT 'mqtt:out/{{result}}' FORMAT JSON AS {select}",
            self.name()
        )
    }
}

/// A query that processes one event after the other.
#[derive(Clone, Debug)]
pub struct Model {
    kind: Kind,
    low: f64,
    before: Option<f64>,
    level: Option<&'static str>,
    is_high: bool,
    window: Vec<Event>,
}

impl Model {
    /// Makes a query that has processed no event.
    pub fn new(kind: Kind, low: f64) -> Self {
        Self { kind, low, before: None, level: None, is_high: false, window: Vec::new() }
    }

    /// Gives the query another bound. What was decided with the previous one stays decided, and earlier results stay.
    pub fn alter(&mut self, low: f64) {
        self.low = low;
    }

    /// Processes an event; returns its result, if there is one.
    pub fn see(&mut self, event: Event) -> Option<Value> {
        let Event { number, value, .. } = event;
        match self.kind {
            Kind::Filter | Kind::Relay => (value > self.low).then(|| json!({"n": number, "v": value})),
            Kind::OnChange => {
                let level = if value > self.low { "high" } else { "low" };
                (self.level.replace(level) != Some(level)).then(|| json!({"level": level}))
            }
            Kind::Lag => {
                let step = self.before.replace(value).map(|before| value - before);
                Some(json!({"n": number, "step": step}))
            }
            Kind::Hysteresis => {
                self.is_high = match value {
                    high if high >= self.low + 20.0 => true,
                    low if low <= self.low => false,
                    _ => self.is_high,
                };
                self.is_high.then(|| json!({"n": number}))
            }
            Kind::Tumble => {
                let is_over = self.window.first().is_some_and(|first| first.at_s / 10 != event.at_s / 10);
                let closed = is_over.then(|| std::mem::take(&mut self.window));
                self.window.push(event);
                closed.map(|rows| json!({"c": rows.len(), "s": sum(&rows), "n": rows[rows.len() - 1].number}))
            }
            Kind::Sums => {
                self.window.push(event);
                let closed = (self.window.len() == 2).then(|| std::mem::take(&mut self.window));
                closed.map(|rows| json!({"v": sum(&rows), "n": number}))
            }
            Kind::CountWindow => {
                self.window.push(event);
                let closed = (self.window.len() == 3).then(|| std::mem::take(&mut self.window));
                closed.map(|rows| json!({"s": sum(&rows), "n": number}))
            }
        }
    }
}

fn sum(rows: &[Event]) -> f64 {
    rows.iter().map(|row| row.value).sum()
}

/// Whether two results are equal in meaning: `3` and `3.0` are, and so are a null and a missing value.
pub fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Object(one), Value::Object(other)) => {
            let is_in = |name: &String, value: &Value, other: &serde_json::Map<String, Value>| {
                is_same(value, other.get(name).unwrap_or(&Value::Null))
            };
            one.iter().all(|(name, value)| is_in(name, value, other))
                && other.iter().all(|(name, value)| is_in(name, value, one))
        }
        _ => one == other,
    }
}
