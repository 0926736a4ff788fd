//! What is shown of queries, small and big, and of their sources and sinks.

use rivulet_connectors::connector::{Condition, Direction};
use rivulet_dataflow::QueryId;
use serde_json::Value;

use super::activity::QueryActivity;

/// The name of a query that was submitted without one. Names of this form are reserved: see [`generated_id`].
pub fn generated_name(id: QueryId) -> String {
    format!("query_{id}")
}

/// The id of the query whose [`generated_name`] this is, if the name has that form. A submitted name of this form must
/// be refused, so that a generated name is always free (and need not be stored).
pub fn generated_id(name: &str) -> Option<QueryId> {
    let digits = name.strip_prefix("query_")?;
    let canonical = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if canonical { digits.parse().ok() } else { None }
}

/// Whether a query gets events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryState {
    /// It gets events.
    Running,
    /// It gets none, because a user paused it.
    Paused,
    /// It cannot run: this version does not accept its application, or its parameters, or a source or sink of a big
    /// query is missing. It can be dropped.
    NotRunning,
    /// A big query whose input has come to its end.
    Ended,
    /// A big query that was ended by an error.
    Failed,
}

impl QueryState {
    /// The name in answers of the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::NotRunning => "not running",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// A query. A big one has no number, application, parameters or topics; what it does is in `big`.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryInfo {
    /// Its number.
    pub id: Option<QueryId>,
    /// Its name.
    pub name: String,
    /// Name of its application; empty for a big query.
    pub application: String,
    /// Whether it runs.
    pub state: QueryState,
    /// Its parameter values as written.
    pub parameters: serde_json::Map<String, Value>,
    /// What it belongs to, if it has a label.
    pub label: Option<String>,
    /// The topic it reads; of several inputs all, separated by `, `. Empty if it cannot run.
    pub input_topic: String,
    /// The topic it writes; of several outputs all, separated by `, `. Empty if it cannot run.
    pub output_topic: String,
    /// Events that reached it while they were counted.
    pub events: Option<u64>,
    /// Results it gave while they were counted.
    pub results: Option<u64>,
    /// Rows that were refused while they were counted.
    pub refused: Option<u64>,
    /// The number of parts in which it runs, each on a worker of its own, if it is a small query that runs.
    pub parts: Option<u64>,
    /// Why it is never split into parts, whatever its load; `None` if it may be.
    pub never_cut: Option<&'static str>,
    /// What it does, if it is a big query.
    pub big: Option<BigQueryInfo>,
    /// What became of its events, if the caller asked for that; `None` for a big query.
    pub activity: Option<Box<QueryActivity>>,
    /// Why it gives its results or none, the most likely reason first, if the caller asked for that.
    pub why: Vec<String>,
}

/// A big query, and what it did since it was last started.
#[derive(Clone, Debug, PartialEq)]
pub struct BigQueryInfo {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub state: QueryState,
    /// Why it does not run; or what is wrong while it does.
    pub reason: Option<String>,
    /// The SQL text it was created with.
    pub sql: String,
    /// Names of the sources that it reads.
    pub sources: Vec<String>,
    /// Name of the sink that it writes to.
    pub sink: String,
    /// Rows read from its sources.
    pub rows_in: u64,
    /// Rows that the receiver behind its sink has acknowledged.
    pub rows_out: u64,
    /// The health of each of its sources and sinks, while they are open.
    pub health: Vec<EndHealth>,
    /// Refused rows by reason; reasons without refusals may be left out.
    pub refused: Vec<(String, u64)>,
    /// One of the first refused rows in words.
    pub refusal: Option<String>,
    /// By source, rows whose times are most likely seconds that were read as milliseconds.
    pub times_in_seconds: Vec<(String, u64)>,
    /// The time from the arrival of the newest row of a result, or from the end of its window, until the sink gets the
    /// result.
    pub latency: LatencyStatus,
    /// The time from the arrival of the newest row of a window to the window's end.
    pub window_wait: WindowWait,
    /// Memory of its operators.
    pub state_bytes: u64,
    /// Rows that wait between its tasks.
    pub waiting_rows: u64,
    /// The event time up to which its results are complete, microseconds since the epoch.
    pub watermark_us: Option<i64>,
    /// How far that time is behind the clock while it runs.
    pub watermark_lag_us: Option<u64>,
    /// The number of its parallel tasks; 0 while it does not run.
    pub tasks: u64,
}

/// How long the results of windows waited for the end of their window, after the newest row had come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowWait {
    /// Results.
    pub results: u64,
    /// The sum of their waiting times, in microseconds.
    pub sum_us: u64,
    /// On average; `None` before the first.
    pub mean_us: Option<u64>,
    /// The longest; `None` before the first.
    pub max_us: Option<u64>,
}

/// The health of a source or sink, of a big query or of an input or output of an application: how its device responds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndHealth {
    /// The name of the source or sink; for an application the name of the input or output.
    pub name: String,
    /// Whether it is a source or a sink.
    pub direction: Direction,
    /// Whether it works.
    pub condition: Condition,
    /// Since when, milliseconds since the epoch.
    pub since_ms: i64,
    /// The last error, also after a recovery.
    pub last_error: Option<String>,
    /// Failed attempts since the last success.
    pub retries: u64,
    /// Failed attempts since the query was started.
    pub failures: u64,
    /// For an input, messages that were routed. For a sink, rows that the receiver has acknowledged since the query was
    /// started.
    pub rows: u64,
    /// Their size in bytes as they were sent.
    pub bytes: u64,
    /// For an input, messages that were refused. For a sink, rows that the receiver has rejected and that were dropped.
    pub rejected_rows: u64,
    /// For a sink, rows that it has and the receiver has not acknowledged.
    pub waiting_rows: u64,
    /// How long the oldest of these rows has been waiting.
    pub oldest_ms: Option<u64>,
}

/// Which queries to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryFilter {
    /// Only queries of this application, by name.
    pub application: Option<String>,
    /// Only queries whose name matches this SQL `LIKE` pattern.
    pub like: Option<String>,
    /// Only queries with this label. Big queries have none.
    pub label: Option<String>,
    /// Only names after this one: the last name of the page before.
    pub after: Option<String>,
    /// The most queries; callers bound it by [`QUERIES_PAGE_MAX`].
    pub limit: usize,
}

/// Percentiles of a latency, in microseconds; `None` before the first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyStatus {
    /// The median.
    pub p50_us: Option<u64>,
    /// The 95th percentile.
    pub p95_us: Option<u64>,
    /// The 99th percentile.
    pub p99_us: Option<u64>,
    /// The largest so far.
    pub max_us: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_are_recognised_and_nothing_else() {
        for id in [0, 7, QueryId::MAX] {
            assert_eq!(generated_id(&generated_name(id)), Some(id));
        }
        for name in ["query_", "query_07", "query_+7", "query_7x", "Query_7", "query_18446744073709551616", "kims_ac"] {
            assert_eq!(generated_id(name), None, "{name}");
        }
    }
}
