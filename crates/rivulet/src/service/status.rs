//! What is shown of the server as a whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::queries::{BigQueryInfo, EndHealth, LatencyStatus};

/// What the server is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of Rivulet.
    #[schema(example = "0.1.0")]
    pub version: String,
    /// Time since the start, in milliseconds.
    pub uptime_ms: u64,
    /// The data folder.
    pub data_dir: String,
    /// Queries that run, without the big ones.
    pub queries_running: u64,
    /// Queries that are paused, without the big ones.
    pub queries_paused: u64,
    /// Resident memory of the process.
    pub memory_rss_bytes: Option<u64>,
    /// Messages received that no query asked for.
    pub messages_unrouted: u64,
    /// All applications together.
    pub total: ApplicationStatus,
    /// From the own time of an event to the end of its processing, as in `total`, but of the last minute; of a longer
    /// time if nobody has asked within it.
    #[serde(default)]
    pub last_minute: LatencyStatus,
    /// Each application, by name.
    pub applications: Vec<ApplicationStatus>,
    /// Each big query, by name.
    #[serde(default)]
    pub big_queries: Vec<BigQueryInfo>,
    /// Each worker thread.
    #[serde(default)]
    pub workers: Vec<WorkerInfo>,
    /// Each burst worker that is connected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub burst_workers: Vec<BurstWorker>,
    /// Each connection to a broker.
    pub connections: Vec<ConnectionStatus>,
    /// The log of events, if anything ever went to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogStatus>,
    /// How the state of queries is saved; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointStatus>,
    /// Burst workers that the server starts by itself; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub functions: Option<FunctionStatus>,
}

/// Burst workers that are functions of a cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Functions)]
pub struct FunctionStatus {
    /// The name of the function.
    pub function: String,
    /// How many run.
    pub running: u64,
    /// How often it was invoked since the start.
    pub invoked: u64,
    /// What is spent today, in UTC, in millionths of a dollar.
    pub spent_today_microdollars: u64,
    /// The most that those that run can cost besides.
    pub reserved_microdollars: u64,
    /// The most that may be spent on a day.
    pub cost_max_microdollars: u64,
    /// What went wrong since functions were invoked last, or why they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// A checkpoint that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Checkpoint)]
pub struct CheckpointInfo {
    /// Its number; that of the one before if nothing had changed since.
    pub epoch: u64,
    /// Queries whose state was written; equal ones that share it count once.
    pub queries: u64,
    /// Big queries that were saved, each under a number of its own.
    #[serde(default)]
    pub big_queries: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes of all that a restart would read.
    pub live_bytes: u64,
    /// How long it took.
    pub duration_ms: u64,
}

/// How the state of queries is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Checkpoints)]
pub struct CheckpointStatus {
    /// Where; empty for tenants.
    pub place: String,
    /// How often; absent for only when asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// The newest one that was made since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<CheckpointInfo>,
    /// How long ago that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// How many were made since the start.
    pub made: u64,
    /// How many failed since the start; the one before stays in force then.
    pub failed: u64,
    /// Why the last attempt failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// How checkpoints of the big queries that run stood when the last one was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub big_queries: Vec<QueryCheckpoint>,
    /// What was found at the start, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered: Option<RecoveryStatus>,
}

/// How the checkpoints of a big query stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryCheckpoint {
    /// Its name.
    pub query: String,
    /// The newest one; absent if there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// How long ago it was made, if this process has made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Bytes of all that a restart would read.
    pub live_bytes: u64,
    /// Why there is none that is newer, if the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// What a server found at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Recovery)]
pub struct RecoveryStatus {
    /// The checkpoint it was found in; absent if none could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Queries that have their state again; equal ones that share it count once.
    pub queries: u64,
    /// Queries that began anew because theirs could not be read.
    pub lost: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// What was wrong with what was found.
    pub problems: Vec<String>,
}

/// The log of events of durable inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Log)]
pub struct LogStatus {
    /// The lowest position that is kept.
    pub first: u64,
    /// The position of the next event.
    pub next: u64,
    /// The highest position that is on disk.
    pub durable: u64,
    /// Its size on disk, in bytes.
    pub disk_bytes: u64,
    /// Its files.
    pub segments: u64,
    /// How often the disk was waited for since the start.
    pub commits: u64,
    /// Bytes that were not written in full when the server ended the last time, and were cut off.
    pub torn_bytes: u64,
    /// Whether events of before the start are still being replayed.
    pub is_replaying: bool,
    /// Events that were replayed since the start.
    pub replayed_events: u64,
    /// How long that took, in milliseconds.
    pub replay_ms: u64,
    /// Events that were lost or damaged on disk, as far as their number is known.
    pub lost_events: u64,
    /// What was lost of the log, or is missing of its files, as the start has found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Why nothing can be logged, or replayed, at present. Nothing is acknowledged then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A worker thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Worker)]
pub struct WorkerInfo {
    /// Its number.
    pub worker: u64,
    /// Which part of its time the queries of applications need, as last measured; above 1 it cannot keep up.
    pub load: f64,
    /// Tasks that belong to it.
    pub tasks: u64,
    /// The core that it stays on, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u64>,
    /// The memory node (NUMA) of that core, where the machine has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
}

/// A process that runs tasks of big queries for a while.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BurstWorker {
    /// Its name.
    pub name: String,
    /// The address from which it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How many tasks it runs at a time.
    pub threads: u64,
    /// Tasks that it has.
    pub tasks: u64,
    /// When its life ends, if that has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// Counters of an application since the start of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApplicationStatus {
    /// Its name.
    #[schema(example = "ac_control")]
    pub name: String,
    /// Queries that run.
    pub queries_running: u64,
    /// Queries that are paused.
    pub queries_paused: u64,
    /// Silent queries, of those that run or are paused, whose state waits on disk for their next event.
    #[serde(default)]
    pub queries_spilled: u64,
    /// Queries that are registered and cannot run.
    #[serde(default)]
    pub queries_not_running: u64,
    /// Why this version cannot run it; nothing is counted then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_running: Option<String>,
    /// Events received.
    pub events: u64,
    /// Batches processed.
    pub batches: u64,
    /// Mean size of a batch, in rows.
    pub batch_rows_mean: f64,
    /// Results emitted.
    pub results: u64,
    /// Refused rows by reason.
    pub refused: BTreeMap<String, u64>,
    /// Events waiting.
    pub inbox_rows: u64,
    /// Bytes waiting.
    pub inbox_bytes: u64,
    /// Time from an event's arrival to the end of its processing.
    pub processing: LatencyStatus,
    /// Time from when an event says it happened to the end of its processing; only of inputs with event time.
    pub end_to_end: LatencyStatus,
    /// The last refused row in words: the reason and what was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<String>,
    /// By input, events whose times are most likely seconds that were taken for milliseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times_in_seconds: BTreeMap<String, u64>,
    /// What its owner should know: what is promised and cannot be kept, times that are probably of another unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// How what is no topic gets on: the source of each input, and the sink of each output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<EndHealth>,
}

/// A connection to a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionStatus {
    /// The broker's address.
    #[schema(example = "mqtt://127.0.0.1:1883")]
    pub broker: String,
    /// Whether it is up.
    pub connected: bool,
    /// Why it was last lost or could not be made.
    pub last_error: Option<String>,
    /// How often it was made again.
    pub reconnects: u64,
    /// How often events may have been missed in between.
    pub gaps: u64,
    /// What was dropped or turned away, by reason.
    #[serde(default)]
    pub dropped: BTreeMap<String, u64>,
    /// Filters the broker has refused, with its reason; at most 20.
    #[serde(default)]
    pub refused_subscriptions: BTreeMap<String, String>,
}
