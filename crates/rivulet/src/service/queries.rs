//! What is shown of queries, small and big, and of their sources and sinks.

use std::collections::BTreeMap;

use rivulet_connectors::connector::{Condition, Direction};
use rivulet_dataflow::QueryId;
use rivulet_runtime::{FlowReport, TaskReport};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueryState {
    /// It gets events.
    Running,
    /// It gets none, because a user paused it.
    Paused,
    /// It cannot run: this version does not accept its application, or its parameters, or a source or sink of a big
    /// query is missing. It can be dropped.
    #[serde(rename = "not running")]
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

impl std::fmt::Display for QueryState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BigQuery)]
pub struct BigQueryInfo {
    /// Its name.
    #[schema(example = "per_device")]
    pub name: String,
    /// `running`, `paused`, `ended`, `failed` or `not running`.
    #[schema(value_type = String, example = "running")]
    pub state: QueryState,
    /// Why it does not run, if it does not: resuming it tries again, from the start of its sources. Or what is wrong
    /// while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The SQL text it was created with.
    pub sql: String,
    /// Names of the sources that it reads.
    pub sources: Vec<String>,
    /// Name of the sink that it writes.
    pub sink: String,
    /// Rows read from its sources.
    pub rows_in: u64,
    /// Rows that the receiver behind its sink has acknowledged.
    pub rows_out: u64,
    /// How each of its sources and sinks gets on, where they are open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<EndHealth>,
    /// Refused rows by reason.
    pub refused: BTreeMap<String, u64>,
    /// One of the first refused rows in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// By source, rows whose times are most likely seconds that were taken for milliseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times_in_seconds: BTreeMap<String, u64>,
    /// Time from the arrival of the newest row that a result is made of, or from the end of its window, to its handing
    /// to the sink.
    pub latency: LatencyStatus,
    /// Time from the arrival of the newest row of a window to its end.
    #[serde(default)]
    pub window_wait: WindowWait,
    /// Memory of its operators.
    pub state_bytes: u64,
    /// Rows that wait between its tasks.
    pub waiting_rows: u64,
    /// How far the time of its results is, microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark_us: Option<i64>,
    /// How far that is behind the clock while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark_lag_us: Option<u64>,
    /// Parallel tasks that it runs in.
    pub tasks: u64,
    /// What each of them does with its time, where that is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<TaskUsage>,
    /// How unevenly they are used: the standard deviation of their utilisation over its mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation_cv: Option<f64>,
}

/// What a task of a big query has done since its start, and with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskUsage {
    /// The number of its stage, from 1.
    pub stage: u64,
    /// The number of the task among those of its stage, from 1.
    pub instance: u64,
    /// The source, operators and sink that it runs.
    #[schema(example = "window > project")]
    pub operator: String,
    /// Rows received.
    pub rows_in: u64,
    /// Rows sent on or written.
    pub rows_out: u64,
    /// Rows that wait in its queue now.
    pub rows_waiting: u64,
    /// Rows that waited there in the mean.
    pub rows_waiting_mean: f64,
    /// The most rows that ever waited there.
    pub rows_waiting_max: u64,
    /// How long a row waited in its queue in the mean, without the time in which the task waited for a worker,
    /// microseconds; null without a queue or a row.
    pub queued_us: Option<f64>,
    /// How long a row waited in its queue in the mean while the task waited for a worker, microseconds.
    pub scheduling_us: Option<f64>,
    /// How long a row was computed in the mean, microseconds.
    pub computing_us: Option<f64>,
    /// Time in which the task ran, seconds.
    pub busy_s: f64,
    /// Time in which it had work and waited for a worker, seconds.
    pub ready_s: f64,
    /// Time in which it had work and no room for what comes of it, seconds.
    pub blocked_s: f64,
    /// The part of the time in which it had work, from 0 to 1.
    pub utilisation: f64,
    /// The part of a worker that it got while it had work, from 0 to 1.
    pub weight: f64,
    /// Rows a second of computing.
    pub rows_per_s: Option<f64>,
    /// Rows for each row that its sources read.
    pub rows_per_source_row: Option<f64>,
    /// The rows a second of its sources at which it has work all the time. The task with the least is the bottleneck.
    pub source_rows_per_s_max: Option<f64>,
    /// The watermark of its input, microseconds since 1970; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark_us: Option<i64>,
    /// Its operators, of which only these figures are known where several run in one task.
    pub fused: Vec<OperatorUsage>,
}

/// What an operator of a task has done since its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperatorUsage {
    /// Its number in the plan, as EXPLAIN shows it.
    pub node: u64,
    /// The operator.
    pub operator: String,
    /// Rows received.
    pub rows_in: u64,
    /// Rows emitted.
    pub rows_out: u64,
    /// Batches received.
    pub batches: u64,
    /// Time in which it ran, seconds.
    pub busy_s: f64,
}

impl TaskUsage {
    /// What each task of a big query has done.
    pub fn all(report: &FlowReport) -> Vec<Self> {
        report.tasks.iter().map(|task| Self::of(task, report.window_us)).collect()
    }

    fn of(task: &TaskReport, window_us: u64) -> Self {
        let usage = task.usage(window_us);
        let seconds = |time_us: u64| time_us as f64 / 1e6;
        let fused = task.operators.iter().map(|one| OperatorUsage {
            node: one.node as u64,
            operator: one.operator.clone(),
            rows_in: one.rows_in,
            rows_out: one.rows_out,
            batches: one.batches,
            busy_s: one.busy_ns as f64 / 1e9,
        });
        Self {
            stage: task.stage as u64 + 1,
            instance: task.instance as u64 + 1,
            operator: task.name.to_string(),
            rows_in: task.rows_in,
            rows_out: task.rows_out,
            rows_waiting: task.waiting_rows as u64,
            rows_waiting_mean: usage.waiting_rows_mean,
            rows_waiting_max: task.waiting_rows_max as u64,
            queued_us: usage.queued_us,
            scheduling_us: usage.scheduling_us,
            computing_us: usage.computing_us,
            busy_s: seconds(task.busy_us),
            ready_s: seconds(task.ready_us),
            blocked_s: seconds(task.blocked_us),
            utilisation: usage.utilisation,
            weight: usage.weight,
            rows_per_s: usage.rows_per_s,
            rows_per_source_row: usage.rows_per_source_row,
            source_rows_per_s_max: usage.source_rows_per_s_max,
            watermark_us: task.watermark_us,
            fused: fused.collect(),
        }
    }
}

/// How long the results of windows waited for the end of their window, in microseconds; null before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WindowWait {
    /// Results.
    #[serde(skip)]
    pub results: u64,
    /// The sum of their waiting times, in microseconds.
    #[serde(skip)]
    pub sum_us: u64,
    /// On average.
    pub mean_us: Option<u64>,
    /// The longest.
    pub max_us: Option<u64>,
}

/// A node of the dataflow of a big query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DataflowNode {
    /// Its number, from 1, as EXPLAIN shows it.
    pub number: u64,
    /// What it is.
    #[schema(example = "window")]
    pub operator: String,
    /// Whether it has state.
    pub has_state: bool,
    /// What it does, a line for each part.
    pub details: Vec<String>,
    /// Where its rows come from.
    pub inputs: Vec<DataflowInput>,
}

/// Where rows of a node of a dataflow come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DataflowInput {
    /// The number of the node.
    pub from: u64,
    /// How they travel: `forward` within a task, or to which other one.
    #[schema(example = "hash (device)")]
    pub how: String,
}

/// How a source or sink of a big query, or of an input or output of an application, gets on with the device behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndHealth {
    /// The name of the source or sink; of an application that of the input or output.
    #[schema(example = "alarms")]
    pub name: String,
    /// `source` or `sink`.
    #[serde(rename = "kind")]
    #[schema(value_type = String, example = "sink")]
    pub direction: Direction,
    /// `ok`; `retrying`, when the last attempt failed and another one follows; or `failing`, when that lasts for a
    /// minute or it has given up.
    #[serde(rename = "state")]
    #[schema(value_type = String, example = "retrying")]
    pub condition: Condition,
    /// Since when, milliseconds since 1970.
    pub since_ms: i64,
    /// What went wrong the last time, also after a recovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Attempts that failed since the last one that went well.
    pub retries: u64,
    /// Attempts that failed since the query was started.
    pub failures: u64,
    /// Of an input, messages that were routed. Of a sink, rows that the receiver has acknowledged since the query was
    /// started.
    pub rows: u64,
    /// Their size in bytes as they were sent.
    pub bytes: u64,
    /// Of an input, messages that were refused. Of a sink, rows that the receiver has rejected and that were left out.
    pub rejected_rows: u64,
    /// Of a sink, rows that it has and the receiver has not acknowledged.
    pub waiting_rows: u64,
    /// Of a sink that keeps these on disk, their size there in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_bytes: Option<u64>,
    /// For how long the oldest of these waits, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<u64>,
    /// Of an output of an application: since when the application stands still on account of it, milliseconds since
    /// 1970. There is no room, and the receiver takes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands_still_since_ms: Option<i64>,
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

/// Percentiles of a latency, in microseconds; null before the first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Latency)]
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
