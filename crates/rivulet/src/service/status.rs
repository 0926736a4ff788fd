//! What is shown of the server as a whole.

use super::queries::{BigQueryInfo, EndHealth, LatencyStatus};

/// The status of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Version of Rivulet.
    pub version: String,
    /// Time since the start, in milliseconds.
    pub uptime_ms: u64,
    /// The data folder.
    pub data_dir: String,
    /// Queries that run, without the big ones.
    pub queries_running: u64,
    /// Queries that are paused, without the big ones.
    pub queries_paused: u64,
    /// Resident memory of the process; `None` if the system does not give it.
    pub memory_rss_bytes: Option<u64>,
    /// Messages received that no query reads.
    pub messages_unrouted: u64,
    /// The sums over all applications.
    pub total: ApplicationStatus,
    /// Each application, by name.
    pub applications: Vec<ApplicationStatus>,
    /// Each big query, by name.
    pub big_queries: Vec<BigQueryInfo>,
    /// Each worker thread; none where each task has a thread of its own.
    pub workers: Vec<WorkerInfo>,
    /// Each connection to a broker.
    pub connections: Vec<ConnectionStatus>,
    /// The log of events, if anything ever went to it.
    pub log: Option<LogStatus>,
    /// How state is saved, if it is.
    pub checkpoints: Option<CheckpointStatus>,
}

/// A checkpoint that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Its number; the number of the checkpoint before if nothing had changed since.
    pub epoch: u64,
    /// Slots of queries whose state was written; equal queries share one.
    pub queries: u64,
    /// Big queries that were saved, each under a number of its own.
    pub big_queries: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes of all that a restart would read.
    pub live_bytes: u64,
    /// How long it took.
    pub duration_ms: u64,
}

/// How the state of queries is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointStatus {
    /// The place of the checkpoints.
    pub place: String,
    /// The interval of the timer; `None` if checkpoints are made only on request.
    pub interval_ms: Option<u64>,
    /// The newest checkpoint, if one was made since the start.
    pub last: Option<CheckpointInfo>,
    /// How long ago that was.
    pub age_ms: Option<u64>,
    /// The number of checkpoints since the start.
    pub made: u64,
    /// The number of failed ones since the start. Nothing is lost by a failure: the checkpoint before stays in force.
    pub failed: u64,
    /// Why the last attempt failed, if it did.
    pub last_error: Option<String>,
    /// The checkpoints of running big queries when the last checkpoint was made.
    pub big_queries: Vec<QueryCheckpoint>,
    /// The state that was found at the start, if there was any.
    pub recovered: Option<RecoveryStatus>,
}

/// The checkpoints of a big query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryCheckpoint {
    /// Its name.
    pub query: String,
    /// The newest one; `None` if there is none yet.
    pub epoch: Option<u64>,
    /// How long ago it was made, if this process has made it.
    pub age_ms: Option<u64>,
    /// Bytes of all that a restart would read.
    pub live_bytes: u64,
    /// Why there is no newer one, if the last attempt failed.
    pub last_error: Option<String>,
}

/// The state that a server found at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatus {
    /// The checkpoint it was found in; `None` if none could be read.
    pub epoch: Option<u64>,
    /// Slots of queries whose state was restored.
    pub queries: u64,
    /// Slots of queries that began anew because their state could not be read.
    pub lost: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// Problems of the state that was found, in words.
    pub problems: Vec<String>,
}

/// The log of events of durable inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// The lowest position that is kept.
    pub first: u64,
    /// The position of the next event.
    pub next: u64,
    /// The highest position that is on disk.
    pub durable: u64,
    /// Its size on disk, in bytes.
    pub disk_bytes: u64,
    /// The number of its files.
    pub segments: u64,
    /// The number of commits to disk since the start.
    pub commits: u64,
    /// Bytes that were not written completely when the server last ended, and were cut off.
    pub torn_bytes: u64,
    /// Whether events from before the start are still being replayed.
    pub is_replaying: bool,
    /// Events that were replayed since the start.
    pub replayed_events: u64,
    /// How long that took, in milliseconds.
    pub replay_ms: u64,
    /// Events that were lost or damaged on disk, and could not be replayed, as far as their number is known.
    pub lost_events: u64,
    /// Lost parts and missing files of the log, as found at the start.
    pub loss: Option<String>,
    /// Why no events can be logged, or replayed, now. Then nothing is acknowledged.
    pub problem: Option<String>,
}

/// A worker thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerInfo {
    /// Its number.
    pub worker: u64,
    /// The part of its time that the queries of applications need, as last measured; above 1 it cannot keep up.
    pub load: f64,
    /// Tasks that belong to it.
    pub tasks: u64,
    /// The core that it is pinned to, if it is.
    pub core: Option<u64>,
    /// The memory node (NUMA) of that core, if the machine has several.
    pub node: Option<u64>,
}

/// Counters of an application since the start of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ApplicationStatus {
    /// Its name.
    pub name: String,
    /// Queries that run.
    pub queries_running: u64,
    /// Queries that are paused.
    pub queries_paused: u64,
    /// Silent queries, running or paused, whose state waits on disk for their next event.
    pub queries_spilled: u64,
    /// Queries that are registered and cannot run.
    pub queries_not_running: u64,
    /// Why this version cannot run it. Then nothing is counted.
    pub not_running: Option<String>,
    /// Events received.
    pub events: u64,
    /// Batches processed.
    pub batches: u64,
    /// Mean size of a batch, in rows.
    pub batch_rows_mean: f64,
    /// Results emitted.
    pub results: u64,
    /// Refused rows by reason; reasons without refusals may be left out.
    pub refused: Vec<(String, u64)>,
    /// Events waiting.
    pub inbox_rows: u64,
    /// Bytes waiting.
    pub inbox_bytes: u64,
    /// Time from an event's arrival to the end of its processing.
    pub processing: LatencyStatus,
    /// Time from when an event says it happened to the end of its processing; only of inputs with event time.
    pub end_to_end: LatencyStatus,
    /// The last refused row in words: the reason and what was wrong.
    pub last_refusal: Option<String>,
    /// By input, events whose times are most likely seconds that were read as milliseconds.
    pub times_in_seconds: Vec<(String, u64)>,
    /// Warnings for its owner: promises that cannot be kept, times that are probably in another unit.
    pub warnings: Vec<String>,
    /// How what is no topic gets on: the source of each input, and the sink of each output, by its name.
    pub health: Vec<EndHealth>,
}

/// A connection to a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// The broker's address, without a password.
    pub broker: String,
    /// Whether it is up.
    pub connected: bool,
    /// Why it was last lost or could not be made.
    pub last_error: Option<String>,
    /// The number of reconnects.
    pub reconnects: u64,
    /// How often events may have been missed in between.
    pub gaps: u64,
    /// Dropped or refused messages and clients, by reason; every reason, with 0 for those that did not occur.
    pub dropped: Vec<(&'static str, u64)>,
    /// Filters the broker has refused, with its reason; at most 20.
    pub refused_subscriptions: Vec<(String, String)>,
}
