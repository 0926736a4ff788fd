//! What goes over the wire. These types are the REST API's contract: they live here and in the client that reads them,
//! and are converted by hand from the plain types of [`crate::service`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::service;

pub use super::accounts::{
    AccountChanged, Grant, GrantList, NewTenant, NewToken, NewUser, Rotation, TenantList, Token, TokenCreated,
    TokenList, User, UserList,
};
pub use super::activity::{QueryActivity, QueryInput, QueryRefusal, QueryStep};

/// The header of an answer that is no JSON, for what whoever asked should know beside it; once for each of such things.
pub const NOTICE_HEADER: &str = "rivulet-notice";

/// The answer to an SQL script: one result for each statement that ran, and the error that stopped it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SqlAnswer {
    /// Results in order of the statements.
    pub results: Vec<StatementResult>,
    /// What was wrong with the next statement; the ones after it did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
    /// How many statements after the wrong one did not run. A script that cannot be read does not run at all, and its
    /// statements are not counted.
    #[serde(default)]
    pub statements_not_run: u64,
}

/// The result of one statement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatementResult {
    /// Names of the columns; empty for a statement without rows.
    pub columns: Vec<String>,
    /// Rows, each with a value for every column.
    pub rows: Vec<Vec<Value>>,
    /// What was done, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The body of every answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorDetail,
}

/// What was wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// `not_found`, `already_exists`, `invalid`, `conflict`, `unavailable`, `limit_reached`, `too_large`,
    /// `method_not_allowed`, `unauthenticated`, `forbidden`, `misdirected`, `timeout` or `internal`;
    /// from the command line also `failed`.
    #[schema(example = "invalid")]
    pub kind: String,
    /// What was wrong.
    #[schema(example = "there is no column temprature")]
    pub message: String,
    /// Line in the text that was sent, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column in that line, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "did you mean temperature?")]
    pub hint: Option<String>,
}

/// Every secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    /// Secrets by name.
    pub secrets: Vec<Secret>,
}

/// A secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// Its name.
    #[schema(example = "kafka_password")]
    pub name: String,
    /// When it got its value, in milliseconds since 1970.
    pub changed_at_ms: i64,
    /// What names it, as `sink 'alarms'` and `application 'floors'`.
    pub used_by: Vec<String>,
}

impl From<service::SecretInfo> for Secret {
    fn from(secret: service::SecretInfo) -> Self {
        let service::SecretInfo { name, changed_at_ms, used_by } = secret;
        Self { name, changed_at_ms, used_by }
    }
}

/// Every reference table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TableList {
    /// Tables by name.
    pub tables: Vec<Table>,
}

/// A reference table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Table {
    /// Its name.
    #[schema(example = "stations")]
    pub name: String,
    /// The SQL text it was created with, without rows that stand in it and are long.
    pub sql: String,
    /// The file its rows are read from, or that there is none.
    #[schema(example = "data/stations.csv")]
    pub file: String,
    /// Its columns.
    pub columns: Vec<TableColumn>,
    /// How many rows it has.
    pub rows: u64,
    /// How many bytes they take in memory.
    pub bytes: u64,
    /// The applications that look events up in it.
    pub applications: Vec<String>,
    /// The views and big queries that cannot exist without it; not in a list of tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<String>,
    /// Why it has no rows; the applications that use it do not run then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_running: Option<String>,
    /// What is wrong with lines of the file that the start of the server could not read, so that the table runs without
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// A column of a reference table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TableColumn {
    /// Its name.
    #[schema(example = "price")]
    pub name: String,
    /// Its SQL type.
    #[serde(rename = "type")]
    #[schema(example = "DOUBLE")]
    pub data_type: String,
}

impl From<service::TableInfo> for Table {
    fn from(table: service::TableInfo) -> Self {
        let service::TableInfo {
            name,
            sql,
            file,
            columns,
            rows,
            bytes,
            applications,
            needed_by,
            not_running,
            left_out,
        } = table;
        let columns = columns.into_iter().map(|(name, data_type)| TableColumn { name, data_type }).collect();
        Self { name, sql, file, columns, rows, bytes, applications, needed_by, not_running, left_out }
    }
}

/// Every application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApplicationList {
    /// Applications by name.
    pub applications: Vec<Application>,
}

/// A registered application.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Application {
    /// The hash of its canonical text; the same text has the same id.
    #[schema(example = "5f1c4c2be1f0a0c1")]
    pub id: String,
    /// Its name.
    #[schema(example = "ac_control")]
    pub name: String,
    /// The SQL text it was registered with.
    pub sql: String,
    /// Its parameters.
    pub parameters: Vec<ParameterDeclaration>,
    /// Template of the input topic; of several inputs all, with `, ` between.
    #[schema(example = "home/{home}/temperature")]
    pub input_topic: String,
    /// Template of the output topic; of several outputs all, with `, ` between.
    #[schema(example = "home/{home}/ac")]
    pub output_topic: String,
    /// Queries that run.
    pub queries_running: u64,
    /// Queries that are paused.
    pub queries_paused: u64,
    /// Queries that are registered and cannot run.
    #[serde(default)]
    pub queries_not_running: u64,
    /// Why this version cannot run it; parameters and topics are empty then. It can be dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_running: Option<String>,
    /// What of it is probably a mistake: it runs all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// How what is no topic gets on: the source of each input, and the sink of each output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<EndHealth>,
    /// What became of the application of its name, where it was to be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Replacement>,
}

/// What became of an application of which a new version was registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replacement {
    /// Whether there was none of its name.
    pub is_new: bool,
    /// Whether there was one with another text, which it has replaced.
    pub is_changed: bool,
    /// How many queries it has taken over.
    pub queries: u64,
    /// Parameters that queries had values for and that are no more; the values are forgotten.
    pub parameters_dropped: Vec<String>,
    /// Operators of the version before whose state is forgotten, and why.
    pub state_discarded: Vec<String>,
}

/// A parameter of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ParameterDeclaration {
    /// Its name.
    #[schema(example = "target")]
    pub name: String,
    /// Its SQL type.
    #[serde(rename = "type")]
    #[schema(example = "DOUBLE")]
    pub data_type: String,
    /// The default as SQL text; a parameter without one is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "24.0")]
    pub default: Option<String>,
}

/// The dataflow of an application in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Lines of text.
    pub explanation: String,
}

/// A query to be created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QuerySubmission {
    /// Its name; generated when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "kims_ac")]
    pub name: Option<String>,
    /// Name or id of the application.
    #[schema(example = "ac_control")]
    pub application: String,
    /// Values of its parameters by name.
    #[serde(default)]
    #[schema(example = json!({"home": "42", "target": 22.5}))]
    pub parameters: Map<String, Value>,
    /// What it belongs to, for example a home: applications whose queries have a label in common are placed together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "home 42")]
    pub label: Option<String>,
}

/// A query that was created, and is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryCreated {
    /// Its id.
    pub id: u64,
    /// Its name.
    #[schema(example = "kims_ac")]
    pub name: String,
}

/// Other values for a query. What is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueryPatch {
    /// Values of parameters by name.
    #[serde(default)]
    #[schema(example = json!({"limit": 30}))]
    pub parameters: Map<String, Value>,
    /// What it belongs to from now on; null for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "home 42")]
    pub label: Option<Option<String>>,
}

/// A query that has the values that it was given, which is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueryAltered {
    /// Its id.
    pub id: u64,
    /// Its name.
    #[schema(example = "kims_ac")]
    pub name: String,
    /// Whether it had others before.
    pub changed: bool,
    /// The parameters with other values on which no state depends: the query goes on with its state.
    #[schema(example = json!(["limit"]))]
    pub state_kept: Vec<String>,
    /// Those of which state depends, which has begun anew.
    pub state_reset: Vec<String>,
    /// The operators that have begun anew, in words.
    pub begun_anew: Vec<String>,
    /// Why it is likely to give nothing from now on, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

impl QueryAltered {
    pub(super) fn new(name: &str, altered: &service::Alteration) -> Self {
        let effect = altered.effect.as_deref().cloned().unwrap_or_default();
        let service::AlterationEffect { state_kept, state_reset, begun_anew } = effect;
        let changed = altered.effect.is_some();
        let (id, name, warning) = (altered.id, name.to_owned(), altered.warning.clone());
        Self { id, name, changed, state_kept, state_reset, begun_anew, warning }
    }
}

/// How a bulk submission is carried out.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct BulkParameters {
    /// Give queries whose name exists the values of the line, instead of refusing the line.
    #[serde(default)]
    pub replace_existing: bool,
}

/// What became of the query of a line, where queries that exist are given its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BulkOutcome {
    /// There was none of its name.
    Created,
    /// It had other values.
    Changed,
    /// It has these values already.
    Unchanged,
}

/// The answer to one line of a bulk submission: an id and a name, or an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkAnswer {
    /// Number of the line, from 1; empty lines count.
    pub line: u64,
    /// Id of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Name of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What became of it, if queries that exist are given the values of the line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<BulkOutcome>,
    /// Why there is no query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetail>,
}

/// Some queries, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueryPage {
    /// The queries.
    pub queries: Vec<Query>,
    /// The `after` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A query. A big one has no id, application, parameters and topics; what it does is in `big`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Query {
    /// Its id; a big query has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Its name.
    #[schema(example = "kims_ac")]
    pub name: String,
    /// Its application; empty for a big query.
    #[schema(example = "ac_control")]
    pub application: String,
    /// `running`, `paused` or `not running`; of a big query also `ended` and `failed`.
    #[schema(example = "running")]
    pub state: String,
    /// Values of its parameters as written.
    pub parameters: Map<String, Value>,
    /// What it belongs to, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "home 42")]
    pub label: Option<String>,
    /// Topic it reads; empty if it is not running.
    #[schema(example = "home/42/temperature")]
    pub input_topic: String,
    /// Topic it writes; empty if it is not running.
    #[schema(example = "home/42/ac")]
    pub output_topic: String,
    /// Events that reached it while they were counted; see `activity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    /// Results it gave while they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<u64>,
    /// Rows that were refused while they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// In how many parts it runs, each on a worker of its own; absent for one in one piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<u64>,
    /// What it does, if it is a big query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub big: Option<BigQuery>,
    /// What became of its events; not in lists, and not of a big query or one that runs in parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<QueryActivity>,
    /// Why it gives what it gives, the most likely reason first; not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["no event has come on home/42/temperature since the query was started 5 minutes ago"]))]
    pub why: Vec<String>,
}

/// Every big query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BigQueryList {
    /// Big queries by name.
    pub big_queries: Vec<BigQuery>,
}

/// A big query that was created or replaced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BigQueryCreated {
    /// The query as it is now.
    pub query: BigQuery,
    /// What was done, in words: created, replaced (and with which state it goes on), or nothing.
    #[schema(example = "query per_device created")]
    pub message: String,
}

/// A big query, and what it did since it was last started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BigQuery {
    /// Its name.
    #[schema(example = "per_device")]
    pub name: String,
    /// `running`, `paused`, `ended`, `failed` or `not running`.
    #[schema(example = "running")]
    pub state: String,
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
    pub latency: Latency,
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
}

/// How a source or sink of a big query, or of an input or output of an application, gets on with the device behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndHealth {
    /// The name of the source or sink; of an application that of the input or output.
    #[schema(example = "alarms")]
    pub name: String,
    /// `source` or `sink`.
    #[schema(example = "sink")]
    pub kind: String,
    /// `ok`; `retrying`, when the last attempt failed and another one follows; or `failing`, when that lasts for a
    /// minute or it has given up.
    #[schema(example = "retrying")]
    pub state: String,
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
    /// For how long the oldest of these waits, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<u64>,
}

/// Which queries to list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListParameters {
    /// Only those of this application.
    pub application: Option<String>,
    /// Only those whose name matches this SQL LIKE pattern.
    pub like: Option<String>,
    /// Only those with this label.
    pub label: Option<String>,
    /// Only names after this one.
    pub after: Option<String>,
    /// At most so many: 100 unless told, 1000 at most.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
}

/// How to register an application.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RegisterParameters {
    /// Whether it takes over the queries of the application that has its name, as CREATE OR REPLACE APPLICATION does.
    #[serde(default)]
    pub replace: bool,
    /// Whether it does so although it cannot go on with all of their state.
    #[serde(default)]
    pub discard_state: bool,
    /// The language of the code in the body, if it is not SQL. The program `rivulet` knows SQL only; a program that
    /// embeds Rivulet may add languages.
    pub language: Option<String>,
}

/// How to drop an application.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DropParameters {
    /// Whether to drop its queries too.
    #[serde(default)]
    pub cascade: bool,
}

/// How to watch results.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WatchParameters {
    /// End after so many results, at once for 0; without it, when the client goes away.
    pub limit: Option<u64>,
}

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
    /// Each application, by name.
    pub applications: Vec<ApplicationStatus>,
    /// Each big query, by name.
    #[serde(default)]
    pub big_queries: Vec<BigQuery>,
    /// Each worker thread.
    #[serde(default)]
    pub workers: Vec<Worker>,
    /// Each connection to a broker.
    pub connections: Vec<ConnectionStatus>,
    /// The log of events, if anything ever went to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Log>,
    /// How the state of queries is saved; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
}

/// A checkpoint that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
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
pub struct Checkpoints {
    /// Where.
    pub place: String,
    /// How often; absent for only when asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// The newest one that was made since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Checkpoint>,
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
    pub recovered: Option<Recovery>,
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
pub struct Recovery {
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
pub struct Log {
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
    /// Events that were lost or damaged on disk, and could not be replayed, as far as their number is known.
    pub lost_events: u64,
    /// What was lost of the log, or is missing of its files, as the start has found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Why nothing can be logged, or replayed, at present. Nothing is acknowledged then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A worker thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
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
    pub processing: Latency,
    /// Time from when an event says it happened to the end of its processing; only of inputs with event time.
    pub end_to_end: Latency,
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

/// How long the results of windows waited for the end of their window, in microseconds; null before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WindowWait {
    /// On average.
    pub mean_us: Option<u64>,
    /// The longest.
    pub max_us: Option<u64>,
}

/// Percentiles of a latency, in microseconds; null before the first event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    /// The median.
    pub p50_us: Option<u64>,
    /// The 95th percentile.
    pub p95_us: Option<u64>,
    /// The 99th percentile.
    pub p99_us: Option<u64>,
    /// The largest so far.
    pub max_us: Option<u64>,
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

/// Whether the server is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`; or `degraded`, when something is wrong although events are being processed.
    #[schema(example = "ok")]
    pub status: String,
    /// How many things are wrong.
    #[serde(default)]
    #[schema(example = 0)]
    pub problem_count: usize,
    /// What is wrong, in words: sinks that cannot deliver, queries that failed, checkpoints that fail, state that was
    /// lost. Left out for clients that have not logged in where they have to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl From<service::LogStatus> for Log {
    fn from(status: service::LogStatus) -> Self {
        Self {
            first: status.first,
            next: status.next,
            durable: status.durable,
            disk_bytes: status.disk_bytes,
            segments: status.segments,
            commits: status.commits,
            torn_bytes: status.torn_bytes,
            is_replaying: status.is_replaying,
            replayed_events: status.replayed_events,
            replay_ms: status.replay_ms,
            lost_events: status.lost_events,
            loss: status.loss,
            problem: status.problem,
        }
    }
}

impl From<service::StatementResult> for StatementResult {
    fn from(result: service::StatementResult) -> Self {
        let service::StatementResult { columns, rows, message } = result;
        Self { columns, rows, message }
    }
}

impl From<service::ServiceError> for ErrorDetail {
    fn from(error: service::ServiceError) -> Self {
        let service::ServiceError { kind, message, line, column, hint, .. } = error;
        Self { kind: kind.name().to_owned(), message, line, column, hint }
    }
}

impl From<service::ApplicationInfo> for Application {
    fn from(info: service::ApplicationInfo) -> Self {
        let parameters = info
            .parameters
            .into_iter()
            .map(|service::ParameterInfo { name, data_type, default }| ParameterDeclaration {
                name,
                data_type,
                default,
            })
            .collect();
        Self {
            id: info.id,
            name: info.name,
            sql: info.sql,
            parameters,
            input_topic: info.input_topic,
            output_topic: info.output_topic,
            queries_running: info.queries_running,
            queries_paused: info.queries_paused,
            queries_not_running: info.queries_not_running,
            not_running: info.not_running,
            warnings: info.warnings,
            health: info.health.into_iter().map(EndHealth::from).collect(),
            replacement: None,
        }
    }
}

impl Replacement {
    /// In a sentence, for people.
    pub fn text(&self, name: &str) -> String {
        let Self { is_new, is_changed, queries, parameters_dropped, state_discarded } = self.clone();
        service::Replacement { is_new, is_changed, queries, parameters_dropped, state_discarded }.text(name)
    }
}

impl From<service::Replacement> for Replacement {
    fn from(replacement: service::Replacement) -> Self {
        let service::Replacement { is_new, is_changed, queries, parameters_dropped, state_discarded } = replacement;
        Self { is_new, is_changed, queries, parameters_dropped, state_discarded }
    }
}

impl From<service::QueryInfo> for Query {
    fn from(info: service::QueryInfo) -> Self {
        Self {
            id: info.id,
            name: info.name,
            application: info.application,
            state: info.state.name().to_owned(),
            parameters: info.parameters,
            label: info.label,
            input_topic: info.input_topic,
            output_topic: info.output_topic,
            events: info.events,
            results: info.results,
            refused: info.refused,
            parts: info.parts.filter(|&parts| parts > 1),
            big: info.big.map(BigQuery::from),
            activity: info.activity.map(|activity| QueryActivity::from(*activity)),
            why: info.why,
        }
    }
}

impl From<service::BigQueryInfo> for BigQuery {
    fn from(info: service::BigQueryInfo) -> Self {
        Self {
            name: info.name,
            state: info.state.name().to_owned(),
            reason: info.reason,
            sql: info.sql,
            sources: info.sources,
            sink: info.sink,
            rows_in: info.rows_in,
            rows_out: info.rows_out,
            health: info.health.into_iter().map(EndHealth::from).collect(),
            refused: info.refused.into_iter().collect(),
            refusal: info.refusal,
            times_in_seconds: info.times_in_seconds.into_iter().collect(),
            latency: info.latency.into(),
            window_wait: WindowWait { mean_us: info.window_wait.mean_us, max_us: info.window_wait.max_us },
            state_bytes: info.state_bytes,
            waiting_rows: info.waiting_rows,
            watermark_us: info.watermark_us,
            watermark_lag_us: info.watermark_lag_us,
            tasks: info.tasks,
        }
    }
}

impl From<service::EndHealth> for EndHealth {
    fn from(health: service::EndHealth) -> Self {
        Self {
            name: health.name,
            kind: health.direction.to_string(),
            state: health.condition.name().to_owned(),
            since_ms: health.since_ms,
            last_error: health.last_error,
            retries: health.retries,
            failures: health.failures,
            rows: health.rows,
            bytes: health.bytes,
            rejected_rows: health.rejected_rows,
            waiting_rows: health.waiting_rows,
            oldest_ms: health.oldest_ms,
        }
    }
}

impl From<service::LatencyStatus> for Latency {
    fn from(latency: service::LatencyStatus) -> Self {
        let service::LatencyStatus { p50_us, p95_us, p99_us, max_us } = latency;
        Self { p50_us, p95_us, p99_us, max_us }
    }
}

impl From<service::Status> for Status {
    fn from(status: service::Status) -> Self {
        Self {
            version: status.version,
            uptime_ms: status.uptime_ms,
            data_dir: status.data_dir,
            queries_running: status.queries_running,
            queries_paused: status.queries_paused,
            memory_rss_bytes: status.memory_rss_bytes,
            messages_unrouted: status.messages_unrouted,
            total: status.total.into(),
            applications: status.applications.into_iter().map(ApplicationStatus::from).collect(),
            big_queries: status.big_queries.into_iter().map(BigQuery::from).collect(),
            workers: status.workers.into_iter().map(Worker::from).collect(),
            connections: status.connections.into_iter().map(ConnectionStatus::from).collect(),
            checkpoints: status.checkpoints.map(Checkpoints::from),
            log: status.log.map(Log::from),
        }
    }
}

impl From<service::CheckpointInfo> for Checkpoint {
    fn from(info: service::CheckpointInfo) -> Self {
        let service::CheckpointInfo { epoch, queries, big_queries, written_bytes, live_bytes, duration_ms } = info;
        Self { epoch, queries, big_queries, written_bytes, live_bytes, duration_ms }
    }
}

impl From<service::CheckpointStatus> for Checkpoints {
    fn from(status: service::CheckpointStatus) -> Self {
        Self {
            place: status.place,
            interval_ms: status.interval_ms,
            last: status.last.map(Checkpoint::from),
            age_ms: status.age_ms,
            made: status.made,
            failed: status.failed,
            last_error: status.last_error,
            big_queries: status.big_queries.into_iter().map(QueryCheckpoint::from).collect(),
            recovered: status.recovered.map(Recovery::from),
        }
    }
}

impl From<service::QueryCheckpoint> for QueryCheckpoint {
    fn from(status: service::QueryCheckpoint) -> Self {
        let service::QueryCheckpoint { query, epoch, age_ms, live_bytes, last_error } = status;
        Self { query, epoch, age_ms, live_bytes, last_error }
    }
}

impl From<service::RecoveryStatus> for Recovery {
    fn from(status: service::RecoveryStatus) -> Self {
        let service::RecoveryStatus { epoch, queries, lost, duration_ms, problems } = status;
        Self { epoch, queries, lost, duration_ms, problems }
    }
}

impl From<service::WorkerInfo> for Worker {
    fn from(info: service::WorkerInfo) -> Self {
        let service::WorkerInfo { worker, load, tasks, core, node } = info;
        Self { worker, load, tasks, core, node }
    }
}

impl From<service::ApplicationStatus> for ApplicationStatus {
    fn from(status: service::ApplicationStatus) -> Self {
        Self {
            name: status.name,
            queries_running: status.queries_running,
            queries_paused: status.queries_paused,
            queries_spilled: status.queries_spilled,
            queries_not_running: status.queries_not_running,
            not_running: status.not_running,
            events: status.events,
            batches: status.batches,
            batch_rows_mean: status.batch_rows_mean,
            results: status.results,
            refused: status.refused.into_iter().collect(),
            inbox_rows: status.inbox_rows,
            inbox_bytes: status.inbox_bytes,
            processing: status.processing.into(),
            end_to_end: status.end_to_end.into(),
            last_refusal: status.last_refusal,
            times_in_seconds: status.times_in_seconds.into_iter().collect(),
            warnings: status.warnings,
            health: status.health.into_iter().map(EndHealth::from).collect(),
        }
    }
}

impl From<service::ConnectionStatus> for ConnectionStatus {
    fn from(status: service::ConnectionStatus) -> Self {
        let service::ConnectionStatus {
            broker,
            connected,
            last_error,
            reconnects,
            gaps,
            dropped,
            refused_subscriptions,
        } = status;
        Self {
            broker,
            connected,
            last_error,
            reconnects,
            gaps,
            dropped: dropped.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect(),
            refused_subscriptions: refused_subscriptions.into_iter().collect(),
        }
    }
}
