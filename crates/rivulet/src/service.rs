//! The calls of the server, as one trait, which the engine implements. REST, SQL and the command line use it through
//! the [`Session`] of a [`Caller`], which checks what the caller may do.
//!
//! The types here are plain; [`crate::api`] converts them for the network, and [`crate::catalog`] for the disk. Every
//! call may block (for a lock, or a commit to disk), so the API makes the calls on a thread that may block.

mod access;
mod activity;
mod error;
mod names;
mod session;

use std::any::Any;
use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rivulet_connectors::connector::{Condition, Direction};
use rivulet_dataflow::QueryId;
use serde_json::Value;
use tokio::sync::broadcast;

use crate::config::Config;
use crate::counted::counted;
pub(crate) use access::BrokerAccess;
pub use access::{
    Access, Action, Authorizer, Caller, Credentials, LocalOperator, Permit, Refused, Resource, ResourceKind,
};
pub(crate) use activity::counted_from;
pub use activity::{InputActivity, NullColumn, QueryActivity, QueryRefusal, StepActivity};
pub use error::{ErrorKind, ServiceError};
pub use names::{FullName, Tenant};
pub use session::Session;

/// The most requests in one call of [`Service::submit`].
pub const SUBMIT_BATCH_MAX: usize = 8192;

/// The most queries on one page of a list. The next page begins after the name of the last one.
pub const QUERIES_PAGE_MAX: usize = 1000;

/// The calls of the server; the engine implements them. They block: the API makes them on tokio's blocking pool.
///
/// A method that reads or changes anything takes the [`Permit`] that only a [`Session`] has. Its names are those of the
/// permit's tenant: a name of another tenant does not exist for it.
pub trait Service: Send + Sync + 'static {
    /// What callers may do. The default permits everything.
    fn access(&self) -> Arc<Access> {
        Arc::default()
    }

    /// Runs an SQL script. Returns one result for each statement, up to the first error.
    fn execute(&self, permit: &Permit, script: &str) -> Vec<Result<StatementResult, ServiceError>>;

    /// Registers an application from the text of one `CREATE APPLICATION`. The same text again returns the same id.
    fn create_application(&self, permit: &Permit, sql: &str) -> Result<ApplicationInfo, ServiceError>;

    /// Registers an application from its SQL text, or makes it take over the queries of the application of its name. If
    /// some of their state cannot be taken over, `discards_state` allows that; otherwise the error says what would be
    /// lost.
    fn replace_application(
        &self,
        permit: &Permit,
        sql: &str,
        discards_state: bool,
    ) -> Result<(ApplicationInfo, Replacement), ServiceError>;

    /// Registers an application from code of some kind; the code of `sql` is the text of one `CREATE APPLICATION`. The
    /// same code again returns the same id.
    fn create_application_of(&self, permit: &Permit, kind: &str, code: &[u8]) -> Result<ApplicationInfo, ServiceError> {
        let _ = (permit, code);
        Err(ServiceError::invalid(format!("this server loads no code of the kind '{kind}'")))
    }

    /// As [`Service::replace_application`], from code of some kind.
    fn replace_application_of(
        &self,
        permit: &Permit,
        kind: &str,
        code: &[u8],
        discards_state: bool,
    ) -> Result<(ApplicationInfo, Replacement), ServiceError> {
        let _ = (permit, code, discards_state);
        Err(ServiceError::invalid(format!("this server loads no code of the kind '{kind}'")))
    }

    /// Creates a reference table from the text of one `CREATE TABLE`, and loads its file. The same text again does
    /// nothing.
    fn create_table(&self, permit: &Permit, sql: &str) -> Result<TableInfo, ServiceError>;

    /// Loads the file of a table again. Queries continue; a file that cannot be read changes nothing.
    fn refresh_table(&self, permit: &Permit, name: &str) -> Result<TableInfo, ServiceError>;

    /// Drops a table; it is a conflict if applications use it.
    fn drop_table(&self, permit: &Permit, name: &str) -> Result<(), ServiceError>;

    /// Every reference table, by name.
    fn tables(&self, permit: &Permit) -> Vec<TableInfo>;

    /// One reference table, by its name.
    fn table(&self, permit: &Permit, name: &str) -> Result<TableInfo, ServiceError>;

    /// Every application, by name.
    fn applications(&self, permit: &Permit) -> Vec<ApplicationInfo>;

    /// One application, by its name or its id.
    fn application(&self, permit: &Permit, name_or_id: &str) -> Result<ApplicationInfo, ServiceError>;

    /// Drops an application; with `cascade` its queries too. Without `cascade` an application with queries is a
    /// conflict.
    fn drop_application(&self, permit: &Permit, name: &str, cascade: bool) -> Result<(), ServiceError>;

    /// The dataflow of an application in words: what its queries share and what each has of its own.
    fn explain(&self, permit: &Permit, application: &str) -> Result<String, ServiceError>;

    /// Submits a batch of at most [`SUBMIT_BATCH_MAX`] requests. Returns one answer for each, in order. A query that is
    /// answered with its id is durable. A request without a name gets the [`generated_name`] of its id.
    fn submit(&self, permit: &Permit, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>>;

    /// Gives at most [`SUBMIT_BATCH_MAX`] queries of applications other values while they run. Returns one answer for
    /// each, in order. A change that is answered is durable. Events that were received before it are processed with the
    /// values before, later events with the new values.
    fn alter(&self, permit: &Permit, changes: &[QueryChange<'_>]) -> Vec<Result<Alteration, ServiceError>> {
        let _ = permit;
        let refused = || ServiceError::invalid("this server has no queries whose values change");
        changes.iter().map(|_| Err(refused())).collect()
    }

    /// One query, by name.
    fn query(&self, permit: &Permit, name: &str) -> Result<QueryInfo, ServiceError>;

    /// The same with what became of its events, and why it gives its results. For a minute from now on the server
    /// counts what becomes of its events, if it does not already. Topics that no query reads are named only if
    /// `names_topics`: they may be those of others. Results and payloads are shown only if [`Permit::shows_results`].
    fn describe_query(&self, permit: &Permit, name: &str, names_topics: bool) -> Result<QueryInfo, ServiceError> {
        let _ = names_topics;
        self.query(permit, name)
    }

    /// The queries that pass the filter, ordered by name. One that is dropped meanwhile may be missing.
    fn queries(&self, permit: &Permit, filter: &QueryFilter) -> Vec<QueryInfo>;

    /// Every big query, by name.
    fn big_queries(&self, permit: &Permit) -> Vec<BigQueryInfo> {
        self.status(permit).big_queries
    }

    /// Creates a big query from the text of one `CREATE [OR REPLACE] QUERY name AS SELECT`. Returns also what was done,
    /// in words. The sources and sinks of the query must be declared.
    fn create_big_query(&self, permit: &Permit, sql: &str) -> Result<(BigQueryInfo, String), ServiceError> {
        let _ = (permit, sql);
        Err(ServiceError::invalid("this server runs no big queries"))
    }

    /// Pauses a query: it keeps its state and gets no events. The sources of a big query are not read any more. Pausing
    /// a paused query does nothing; one that does not run is a conflict.
    fn pause(&self, permit: &Permit, query: &str) -> Result<(), ServiceError>;

    /// Resumes a paused query. Resuming a running query does nothing. A big query that was ended by an error, or could
    /// not be started, is tried again: without state, from the start of its sources.
    fn resume(&self, permit: &Permit, query: &str) -> Result<(), ServiceError>;

    /// Drops a query and its state.
    fn drop_query(&self, permit: &Permit, query: &str) -> Result<(), ServiceError>;

    /// The status of the server, for users.
    fn status(&self, permit: &Permit) -> Status;

    /// The same for monitoring systems: the Prometheus text format.
    fn metrics(&self, permit: &Permit) -> String;

    /// Live results of a query. A slow reader loses the oldest, and is told how many. If the results that wait for
    /// readers take more memory than allowed, new ones are skipped, and counted as well.
    fn results(&self, permit: &Permit, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError>;

    /// Runs one SELECT for as long as the answer exists, and gives its rows as they come. A slow reader loses some, as
    /// with [`Service::results`].
    fn select(&self, permit: &Permit, sql: &str) -> Result<Selection, ServiceError> {
        let _ = (permit, sql);
        Err(ServiceError::invalid("this server runs no SELECT"))
    }

    /// Saves the state of queries now. When this returns, a restart finds the saved state.
    fn checkpoint(&self, permit: &Permit) -> Result<CheckpointInfo, ServiceError> {
        let _ = permit;
        Err(ServiceError::invalid("this server makes no checkpoints"))
    }

    /// A backup of everything as it is now, ready to be written to one file while the server continues.
    fn back_up(&self, permit: &Permit) -> Result<Box<dyn Backup>, ServiceError> {
        let _ = permit;
        Err(ServiceError::invalid("this server has nothing that could be saved"))
    }

    /// Problems that exist although events are being processed, in words: `/health/ready` shows them.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether events are being processed: queries are loaded, workers run, and MQTT is connected (or listens). The
    /// error says what is missing, and `/health/ready` shows it.
    fn ready(&self) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Applies the keys of a configuration that can change while the server runs
    /// ([`Key::reloads`](crate::config::Key)).
    ///
    /// # Errors
    /// A value that cannot be used. Then nothing has changed.
    fn take_over(&self, config: &Config) -> Result<(), ServiceError> {
        let _ = config;
        Ok(())
    }

    /// The server will be stopped: from now on it is not ready, but continues all its work.
    fn announce_stop(&self) {}

    /// Stops processing and closes what is open. Called once, after the last request was answered.
    ///
    /// # Errors
    /// What is lost.
    fn shutdown(&self) -> Result<(), ServiceError> {
        Ok(())
    }
}

/// A result for the readers of a query.
#[derive(Debug, Default)]
pub struct LiveResult {
    /// The result as JSON; empty if this only tells at the end how many results were skipped.
    pub text: String,
    /// The number of earlier results for which there was no memory.
    pub skipped: u64,
    /// Whether this is not a result, but a note about rows that a SELECT has refused.
    pub is_note: bool,
    /// Its memory counts until the last reader has it.
    pub(crate) _waiting: Option<Waiting>,
}

/// The bytes of a result that waits for readers; they count as long as this exists.
#[derive(Debug)]
pub(crate) struct Waiting {
    bytes: usize,
    of_query: Arc<AtomicUsize>,
    of_all: Arc<AtomicUsize>,
}

impl Waiting {
    pub(crate) fn new(bytes: usize, of_query: &Arc<AtomicUsize>, of_all: &Arc<AtomicUsize>) -> Self {
        for counter in [of_query, of_all] {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
        Self { bytes, of_query: of_query.clone(), of_all: of_all.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for counter in [&self.of_query, &self.of_all] {
            counter.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Everything of a running server at one moment, ready to be written while the server continues.
pub trait Backup: Send {
    /// Notes for the user who asked for it: the backup is complete, but has an older checkpoint of some queries.
    fn notices(&self) -> &[String];

    /// Writes the whole backup. Returns the number of its files, and their bytes.
    ///
    /// # Errors
    /// Something cannot be read or written. The written data is not a complete backup then, and no reader accepts it.
    fn write(&self, out: &mut dyn io::Write) -> io::Result<(u64, u64)>;
}

/// A SELECT that runs until this is dropped.
pub struct Selection {
    /// Its rows as JSON.
    pub rows: broadcast::Receiver<Arc<LiveResult>>,
    /// The reason once there are no more rows: `ended`, or `failed: ` and the error.
    pub end: Arc<OnceLock<String>>,
    /// Ends it.
    pub(crate) _running: Box<dyn Any + Send + Sync>,
}

impl From<&str> for LiveResult {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }
}

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

/// The result of one SQL statement: rows, or a message, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatementResult {
    /// Names of the columns; empty for a statement without rows.
    pub columns: Vec<String>,
    /// Rows, each with a value for every column.
    pub rows: Vec<Vec<Value>>,
    /// What was done, for a user: `application ac_control created`.
    pub message: Option<String>,
}

/// A parameter's value as it was written, before it is converted to the declared type.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue<'a> {
    /// `NULL`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other finite number.
    Float(f64),
    /// Text; also how timestamps and intervals are written.
    Text(Cow<'a, str>),
}

impl ParameterValue<'_> {
    /// The value as JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::from(*value),
            Self::Float(value) => Value::from(*value),
            Self::Text(value) => Value::from(value.as_ref()),
        }
    }
}

/// A parameter's name and value. Borrowed from the request unless it was written with escapes.
pub type Parameter<'a> = (Cow<'a, str>, ParameterValue<'a>);

/// One query to be created.
#[derive(Clone, Copy, Debug)]
pub struct QueryRequest<'a> {
    /// Its name; generated if `None`.
    pub name: Option<&'a str>,
    /// Name or id of the application.
    pub application: &'a str,
    /// Parameter values by name, in the order written.
    pub parameters: &'a [Parameter<'a>],
    /// What it belongs to, for example a home: applications whose queries have a label in common are placed together.
    pub label: Option<&'a str>,
}

/// Other values for a query that runs.
#[derive(Clone, Copy, Debug)]
pub struct QueryChange<'a> {
    /// Its name.
    pub name: &'a str,
    /// Parameter values by name, in the order written. Parameters that are not named keep their values.
    pub parameters: &'a [Parameter<'a>],
    /// What it belongs to from now on, `Some(None)` for nothing; `None` to keep the label.
    pub label: Option<Option<&'a str>>,
    /// Name or id of the application that it must belong to. If given, these are all its values, as if it were
    /// submitted anew: parameters that are not named get their default.
    pub whole_of: Option<&'a str>,
}

/// A query whose values were changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alteration {
    /// Its number.
    pub id: QueryId,
    /// What changed; `None` if it had these values already.
    pub effect: Option<Arc<AlterationEffect>>,
    /// Why it will probably give no results from now on; `None` if it will.
    pub warning: Option<String>,
}

/// What changed with the values of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlterationEffect {
    /// The changed parameters on which no state depends.
    pub state_kept: Vec<String>,
    /// The changed parameters on which state depends. That state has begun anew.
    pub state_reset: Vec<String>,
    /// The operators that have begun anew, in words.
    pub begun_anew: Vec<String>,
}

impl Alteration {
    /// In a sentence, for users.
    pub fn text(&self, name: &str) -> String {
        let Some(effect) = &self.effect else {
            return format!("query {name} has these values already, nothing was done");
        };
        let mut text = format!("query {name} altered");
        if !effect.state_kept.is_empty() {
            text += &format!("; state is kept: {}", effect.state_kept.join(", "));
        }
        match (effect.state_reset.is_empty(), effect.begun_anew.is_empty()) {
            (true, _) => {}
            (false, true) => text += &format!("; reads other events: {}", effect.state_reset.join(", ")),
            (false, false) => {
                let (reset, begun) = (effect.state_reset.join(", "), effect.begun_anew.join("; "));
                text += &format!("; state begins anew: {reset} ({begun})");
            }
        }
        if let Some(warning) = &self.warning {
            text += &format!("\nwarning: {warning}");
        }
        text
    }
}

/// A reference table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// The SQL text it was created with, without long rows in it.
    pub sql: String,
    /// The file its rows are read from, as written; or a note that there is none.
    pub file: String,
    /// Its columns: name and SQL type.
    pub columns: Vec<(String, String)>,
    /// The number of its rows.
    pub rows: u64,
    /// The memory of its rows, in bytes.
    pub bytes: u64,
    /// Names of the applications that look events up in it.
    pub applications: Vec<String>,
    /// Why it has no rows, so that the applications that use it do not run.
    pub not_running: Option<String>,
    /// The problem of the lines of the file that the start of the server could not read. The table runs without them.
    pub left_out: Option<String>,
}

impl TableInfo {
    /// `running`, or `not running: ` and the reason; and the lines it runs without.
    pub fn state(&self) -> String {
        match (&self.not_running, &self.left_out) {
            (Some(reason), _) => format!("not running: {reason}"),
            (None, Some(left_out)) => format!("running without lines that cannot be read: {left_out}"),
            (None, None) => "running".into(),
        }
    }
}

/// A registered application.
#[derive(Clone, Debug, PartialEq)]
pub struct ApplicationInfo {
    /// The hash of its canonical text, in hexadecimal.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The SQL text it was registered with.
    pub sql: String,
    /// Its declared parameters, in order, with the implicit `input` and `output` if it has them.
    pub parameters: Vec<ParameterInfo>,
    /// Template of the input topic; of several inputs all, separated by `, `.
    pub input_topic: String,
    /// Template of the output topic; of several outputs all, separated by `, `.
    pub output_topic: String,
    /// Queries that run.
    pub queries_running: u64,
    /// Queries that are paused.
    pub queries_paused: u64,
    /// Queries that are registered and cannot run.
    pub queries_not_running: u64,
    /// Why this version cannot run it. Then its parameters and topics are unknown, and it can be dropped.
    pub not_running: Option<String>,
    /// Probable mistakes in it: it runs all the same.
    pub warnings: Vec<String>,
    /// How what is no topic gets on: the source of each input, and the sink of each output, by its name.
    pub health: Vec<EndHealth>,
}

/// The outcome of registering a new version of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replacement {
    /// Whether there was no application of its name.
    pub is_new: bool,
    /// Whether it has replaced an application with another text.
    pub is_changed: bool,
    /// The number of queries that it has taken over.
    pub queries: u64,
    /// Parameters that queries had values for and that no longer exist; the values are deleted.
    pub parameters_dropped: Vec<String>,
    /// Operators of the version before whose state is discarded, and why.
    pub state_discarded: Vec<String>,
}

/// The outcome of giving a new version of a big query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryReplacement {
    /// Whether there was no query of its name.
    pub is_new: bool,
    /// Whether it has replaced a query with another text.
    pub is_changed: bool,
    /// The checkpoint of the version before from which it continues; without one it begins anew.
    pub epoch: Option<u64>,
    /// Whether it is paused, as the version before was.
    pub is_paused: bool,
    /// Operators of the version before whose state it has taken over.
    pub state_kept: Vec<String>,
    /// Operators of the version before whose state is discarded, and why.
    pub state_discarded: Vec<String>,
    /// Sources that the version before did not read.
    pub sources_new: Vec<String>,
    /// Sources that it no longer reads.
    pub sources_gone: Vec<String>,
    /// Sources whose rows between the two versions it does not get, because these sources cannot repeat rows.
    pub sources_not_repeated: Vec<String>,
}

impl QueryReplacement {
    /// In a sentence, for users.
    pub fn text(&self, name: &str) -> String {
        if !self.is_changed {
            return match self.is_new {
                true => format!("query {name} created"),
                false => format!("query {name} has this text already, nothing was done"),
            };
        }
        let mut text = match self.epoch {
            Some(epoch) => format!("query {name} replaced, goes on from its checkpoint {epoch}"),
            None => format!("query {name} replaced, begins anew"),
        };
        let mut add = |what: &str, named: &[String]| {
            if !named.is_empty() {
                text += &format!("; {what}: {}", named.join("; "));
            }
        };
        add("state is taken over", &self.state_kept);
        add("state is forgotten", &self.state_discarded);
        add("begins with", &self.sources_new);
        add("does not read any more", &self.sources_gone);
        add("not read is what came meanwhile by", &self.sources_not_repeated);
        if self.is_paused {
            text += "; it is paused";
        }
        text
    }

    /// The same as rows: what happened, and to what.
    pub fn rows(&self) -> Vec<[&str; 2]> {
        let kinds: [(&[String], &str); 5] = [
            (&self.state_kept, "state taken over"),
            (&self.state_discarded, "state forgotten"),
            (&self.sources_new, "source begins"),
            (&self.sources_gone, "source not read any more"),
            (&self.sources_not_repeated, "what came meanwhile is not read"),
        ];
        kinds.into_iter().flat_map(|(named, became)| named.iter().map(move |one| [became, one.as_str()])).collect()
    }
}

impl Replacement {
    /// In a sentence, for users.
    pub fn text(&self, name: &str) -> String {
        if !self.is_changed {
            return match self.is_new {
                true => format!("application {name} created"),
                false => format!("application {name} is registered already"),
            };
        }
        let go = if self.queries == 1 { "goes" } else { "go" };
        let mut text = format!("application {name} replaced, {} {go} on", counted(self.queries, "query"));
        if !self.parameters_dropped.is_empty() {
            text += &format!("; their values of {} are forgotten", self.parameters_dropped.join(", "));
        }
        if !self.state_discarded.is_empty() && self.queries > 0 {
            text += &format!("; state is forgotten: {}", self.state_discarded.join("; "));
        }
        text
    }
}

impl ApplicationInfo {
    /// `running`, or `not running: ` and the reason.
    pub fn state(&self) -> String {
        self.not_running.as_ref().map_or_else(|| "running".into(), |reason| format!("not running: {reason}"))
    }

    /// The number of its queries, in words.
    pub fn queries(&self) -> String {
        let mut text = format!("{} running, {} paused", self.queries_running, self.queries_paused);
        if self.queries_not_running > 0 {
            text.push_str(&format!(", {} not running", self.queries_not_running));
        }
        text
    }
}

/// A declared parameter of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterInfo {
    /// Its name.
    pub name: String,
    /// Its SQL type: `TEXT`, `BIGINT`, `DOUBLE`, `BOOLEAN`, `TIMESTAMP` or `INTERVAL`.
    pub data_type: String,
    /// The default as SQL text; a parameter without one is required.
    pub default: Option<String>,
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
    /// Only names after this one: the last name of the page before.
    pub after: Option<String>,
    /// The most queries; callers bound it by [`QUERIES_PAGE_MAX`].
    pub limit: usize,
}

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
