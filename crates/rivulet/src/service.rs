//! What the server offers, as one trait: the engine implements it. REST, SQL and the command line use it through the
//! [`Session`] of a [`Caller`], which checks what the caller may do.
//!
//! The types here are plain; what goes over the wire is converted in [`crate::api`], what goes to disk in
//! [`crate::catalog`]. Every call may block (a lock, a commit to disk): the API makes them on a thread that may.

mod access;
mod activity;
mod names;
mod session;

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use rivulet_connectors::connector::{Condition, Direction};
use rivulet_dataflow::QueryId;
use serde_json::Value;
use tokio::sync::broadcast;

use crate::config::Config;
use crate::counted::counted;
use crate::data_folder::archive::Backup;
use crate::engine::Waiting;
pub(crate) use access::BrokerAccess;
pub use access::{
    Access, Action, Authorizer, Caller, Credentials, LocalOperator, Permit, Refused, Resource, ResourceKind,
};
pub(crate) use activity::counted_from;
pub use activity::{InputActivity, QueryActivity, QueryRefusal, StepActivity};
pub use names::{FullName, Tenant};
pub use session::Session;

/// The most requests that one call of [`Service::submit`] is given.
pub const SUBMIT_BATCH_MAX: usize = 8192;

/// The most queries on one page of a list; the name of the last one is where the next page begins.
pub const QUERIES_PAGE_MAX: usize = 1000;

/// What the server offers; the engine implements it. Blocking calls: the API calls them on tokio's blocking pool.
///
/// A method that looks at or changes anything takes the [`Permit`] that only a [`Session`] has. It speaks of what the
/// permit's tenant has: a name of another tenant is not there.
pub trait Service: Send + Sync + 'static {
    /// What callers may do. Without one of its own, a service permits everything.
    fn access(&self) -> Arc<Access> {
        Arc::default()
    }

    /// Runs an SQL script; one result for each statement, stopping at the first error.
    fn execute(&self, permit: &Permit, script: &str) -> Vec<Result<StatementResult, ServiceError>>;

    /// Registers an application from the text of one `CREATE APPLICATION`. The same text again returns the same id.
    fn create_application(&self, permit: &Permit, sql: &str) -> Result<ApplicationInfo, ServiceError>;

    /// Registers an application from its SQL text, or lets it take over the queries of the one that has its name. With
    /// `discards_state` it does so although it cannot go on with all of their state; otherwise it is refused then, with
    /// what would be lost.
    fn replace_application(
        &self,
        permit: &Permit,
        sql: &str,
        discards_state: bool,
    ) -> Result<(ApplicationInfo, Replacement), ServiceError>;

    /// Registers an application from code of some kind: of `sql` the text of one `CREATE APPLICATION`. The same code
    /// again returns the same id.
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

    /// Loads the file of a table again. Queries go on; a file that cannot be read changes nothing.
    fn refresh_table(&self, permit: &Permit, name: &str) -> Result<TableInfo, ServiceError>;

    /// Drops a table; one that applications use is a conflict.
    fn drop_table(&self, permit: &Permit, name: &str) -> Result<(), ServiceError>;

    /// Every reference table, by name.
    fn tables(&self, permit: &Permit) -> Vec<TableInfo>;

    /// One reference table, by its name.
    fn table(&self, permit: &Permit, name: &str) -> Result<TableInfo, ServiceError>;

    /// Every application, by name.
    fn applications(&self, permit: &Permit) -> Vec<ApplicationInfo>;

    /// One application, by its name or its id.
    fn application(&self, permit: &Permit, name_or_id: &str) -> Result<ApplicationInfo, ServiceError>;

    /// Drops an application; with `cascade` its queries too, without it an application with queries is a conflict.
    fn drop_application(&self, permit: &Permit, name: &str, cascade: bool) -> Result<(), ServiceError>;

    /// The dataflow of an application in words: what its queries share and what each has of its own.
    fn explain(&self, permit: &Permit, application: &str) -> Result<String, ServiceError>;

    /// Submits a batch of at most [`SUBMIT_BATCH_MAX`] requests; one answer for each, in order. A query that is
    /// answered with its id is durable. A request without a name gets [`generated_name`] of its id.
    fn submit(&self, permit: &Permit, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>>;

    /// Gives at most [`SUBMIT_BATCH_MAX`] queries of applications other values while they run; one answer for each, in
    /// order. A change that is answered is durable. Events that were received before it are processed with the values
    /// before, those behind it with the others.
    fn alter(&self, permit: &Permit, changes: &[QueryChange<'_>]) -> Vec<Result<Alteration, ServiceError>> {
        let _ = permit;
        let refused = || ServiceError::invalid("this server has no queries whose values change");
        changes.iter().map(|_| Err(refused())).collect()
    }

    /// One query, by name.
    fn query(&self, permit: &Permit, name: &str) -> Result<QueryInfo, ServiceError>;

    /// The same with what became of its events, and why it gives what it gives. For a minute from now on it is counted
    /// what becomes of them, if it is not already. Topics that no query reads are named only if `names_topics`: they
    /// may be those of others. Results and payloads are shown only if [`Permit::shows_results`].
    fn describe_query(&self, permit: &Permit, name: &str, names_topics: bool) -> Result<QueryInfo, ServiceError> {
        let _ = names_topics;
        self.query(permit, name)
    }

    /// The queries that pass the filter, ordered by name. One that is dropped meanwhile may be left out.
    fn queries(&self, permit: &Permit, filter: &QueryFilter) -> Vec<QueryInfo>;

    /// Every big query, by name.
    fn big_queries(&self, permit: &Permit) -> Vec<BigQueryInfo> {
        self.status(permit).big_queries
    }

    /// Creates a big query from the text of one `CREATE [OR REPLACE] QUERY name AS SELECT`; and what was done, in
    /// words. What it reads and writes must be declared.
    fn create_big_query(&self, permit: &Permit, sql: &str) -> Result<(BigQueryInfo, String), ServiceError> {
        let _ = (permit, sql);
        Err(ServiceError::invalid("this server runs no big queries"))
    }

    /// Pauses a query: it keeps its state and gets no events. Of a big query the sources are not asked any more.
    /// Pausing a paused query does nothing; one that does not run is a conflict.
    fn pause(&self, permit: &Permit, query: &str) -> Result<(), ServiceError>;

    /// Resumes a paused query. Resuming a running query does nothing. A big query that was ended by an error, or could
    /// not be started, is tried again: without state, from the start of its sources.
    fn resume(&self, permit: &Permit, query: &str) -> Result<(), ServiceError>;

    /// Drops a query and its state.
    fn drop_query(&self, permit: &Permit, query: &str) -> Result<(), ServiceError>;

    /// What the server is doing, for people.
    fn status(&self, permit: &Permit) -> Status;

    /// The same for monitoring systems: the Prometheus text format.
    fn metrics(&self, permit: &Permit) -> String;

    /// Live results of a query; a slow reader loses the oldest, and is told how many. Where all that waits for readers
    /// is more than allowed, new ones are skipped, and counted as well.
    fn results(&self, permit: &Permit, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError>;

    /// Runs one SELECT for as long as the answer is held, and gives its rows as they come. A slow reader loses some, as
    /// with [`Service::results`].
    fn select(&self, permit: &Permit, sql: &str) -> Result<Selection, ServiceError> {
        let _ = (permit, sql);
        Err(ServiceError::invalid("this server runs no SELECT"))
    }

    /// Saves the state of queries now. When this returns, a restart finds what is saved.
    fn checkpoint(&self, permit: &Permit) -> Result<CheckpointInfo, ServiceError> {
        let _ = permit;
        Err(ServiceError::invalid("this server makes no checkpoints"))
    }

    /// Everything as it is now, ready to be written to one file while the server goes on.
    fn back_up(&self, permit: &Permit) -> Result<Backup, ServiceError> {
        let _ = permit;
        Err(ServiceError::invalid("this server has nothing that could be saved"))
    }

    /// What is wrong although events are being processed, in words: `/health/ready` shows it.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether events are being processed: queries are loaded, workers run, and MQTT is connected (or listens). An
    /// error says what is missing, and `/health/ready` shows it.
    fn ready(&self) -> Result<(), ServiceError> {
        Ok(())
    }

    /// Takes over what of a configuration can change while the server runs ([`Key::reloads`](crate::config::Key)).
    ///
    /// # Errors
    /// What cannot be used; then nothing has changed.
    fn take_over(&self, config: &Config) -> Result<(), ServiceError> {
        let _ = config;
        Ok(())
    }

    /// It will be stopped: from now on it is not ready, but goes on with all that it does.
    fn announce_stop(&self) {}

    /// Stops processing and closes what is open. Called once, after the last request was answered.
    fn shutdown(&self) {}
}

/// A result as it goes to the readers of a query.
#[derive(Debug, Default)]
pub struct LiveResult {
    /// The result as JSON; empty if this only says at the end what was skipped.
    pub text: String,
    /// Results before it that there was no memory for.
    pub skipped: u64,
    /// Whether it is no result, but what a SELECT has refused.
    pub is_note: bool,
    /// What it counts for, until the last reader has it.
    pub(crate) _waiting: Option<Waiting>,
}

/// A SELECT that runs until this is dropped.
pub struct Selection {
    /// Its rows as JSON.
    pub rows: broadcast::Receiver<Arc<LiveResult>>,
    /// Once there will be no more rows, why: `ended`, or `failed: ` and the error.
    pub end: Arc<OnceLock<String>>,
    /// Ends it.
    pub(crate) _running: Box<dyn Any + Send + Sync>,
}

impl From<&str> for LiveResult {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }
}

/// The name of a query that was submitted without one. Names of this form are reserved: see [`is_generated_name`].
pub fn generated_name(id: QueryId) -> String {
    format!("query_{id}")
}

/// Whether a name has the form of [`generated_name`], and of which query. A submitted name of this form is to be
/// refused, so that a generated name is always free (and need not be stored).
pub fn is_generated_name(name: &str) -> Option<QueryId> {
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
    /// What was done, for a person: `application ac_control created`.
    pub message: Option<String>,
}

/// What kind of thing went wrong; it decides the HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// What was named does not exist.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// The request is wrong in itself: SQL, parameters, types.
    Invalid,
    /// The request contradicts the present state, for example dropping an application that has queries.
    Conflict,
    /// Not now: starting, stopping, or the disk refuses.
    Unavailable,
    /// A configured limit is reached.
    LimitReached,
    /// The client's credentials are wrong or missing.
    Unauthenticated,
    /// The caller may not do this.
    Forbidden,
    /// A defect of Rivulet.
    Internal,
}

impl ErrorKind {
    /// The name in answers of the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Unavailable => "unavailable",
            Self::LimitReached => "limit_reached",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Internal => "internal",
        }
    }
}

/// A refused request: what was wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ServiceError {
    /// The kind.
    pub kind: ErrorKind,
    /// What was wrong, in one sentence without a full stop.
    pub message: String,
    /// Line in the SQL text, from 1.
    pub line: Option<u32>,
    /// Column in that line in characters, from 1.
    pub column: Option<u32>,
    /// What to do next.
    pub hint: Option<String>,
    /// The parameter of a query that it is about, if it is about one.
    pub parameter: Option<String>,
    /// How many statements of a script stand behind the one that failed.
    pub statements_not_run: usize,
}

impl From<rivulet_sql::SqlError> for ServiceError {
    fn from(error: rivulet_sql::SqlError) -> Self {
        let refused = Self::invalid(error.message).at(error.line, error.column);
        match error.hint {
            Some(hint) => refused.with_hint(hint),
            None => refused,
        }
    }
}

impl ServiceError {
    /// An error without position and hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message, line: None, column: None, hint: None, parameter: None, statements_not_run: 0 }
    }

    /// [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// An error from the text of another crate's: what stands after `\nhint: ` goes to the place for hints.
    pub fn from_text(kind: ErrorKind, text: &str) -> Self {
        match text.split_once("\nhint: ") {
            Some((message, hint)) => Self::new(kind, message).with_hint(hint),
            None => Self::new(kind, text),
        }
    }

    /// The message, with the hint behind `\nhint: `.
    pub fn text(&self) -> String {
        let hint = self.hint.as_ref().map_or_else(String::new, |hint| format!("\nhint: {hint}"));
        format!("{}{hint}", self.message)
    }

    /// The error with a position in the SQL text, both from 1.
    #[must_use]
    pub fn at(mut self, line: u32, column: u32) -> Self {
        self.line = Some(line);
        self.column = Some(column);
        self
    }

    /// The error at a line and column of the text of an application; zeros are no place.
    #[must_use]
    pub fn at_place(self, (line, column): (u32, u32)) -> Self {
        if line == 0 { self } else { self.at(line, column) }
    }

    /// The error with what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
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
    /// Its name; generated when absent.
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
    /// Parameter values by name, in the order written; those that are not named stay.
    pub parameters: &'a [Parameter<'a>],
    /// What it belongs to from now on, `Some(None)` for nothing; `None` if that stays.
    pub label: Option<Option<&'a str>>,
    /// Name or id of the application that it must be one of. These are all its values then, as if it were submitted
    /// anew: parameters that are not named have their default.
    pub whole_of: Option<&'a str>,
}

/// A query that was given values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alteration {
    /// Its number.
    pub id: QueryId,
    /// What changed; `None` if it had these values already.
    pub effect: Option<Arc<AlterationEffect>>,
    /// Why it is likely to give nothing from now on, if so.
    pub warning: Option<String>,
}

/// What changed with the values of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlterationEffect {
    /// The parameters with other values on which no state depends.
    pub state_kept: Vec<String>,
    /// Those of which state depends, which has begun anew.
    pub state_reset: Vec<String>,
    /// The operators that have begun anew, in words.
    pub begun_anew: Vec<String>,
}

impl Alteration {
    /// In a sentence, for people.
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
    /// The SQL text it was created with, without rows that stand in it and are long.
    pub sql: String,
    /// The file its rows are read from, as written; or that there is none.
    pub file: String,
    /// Its columns: name and SQL type.
    pub columns: Vec<(String, String)>,
    /// How many rows it has.
    pub rows: u64,
    /// How many bytes they take in memory.
    pub bytes: u64,
    /// Names of the applications that look events up in it.
    pub applications: Vec<String>,
    /// Why it has no rows, and the applications that use it do not run.
    pub not_running: Option<String>,
    /// What is wrong with lines of the file that the start of the server could not read, so that the table runs without
    /// them.
    pub left_out: Option<String>,
}

impl TableInfo {
    /// `running`, or `not running: ` and the reason; and what it runs without.
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
    /// Its declared parameters, in order, with the implicit `input` and `output` where it has them.
    pub parameters: Vec<ParameterInfo>,
    /// Template of the input topic; of several inputs all, with `, ` between.
    pub input_topic: String,
    /// Template of the output topic; of several outputs all, with `, ` between.
    pub output_topic: String,
    /// Queries that run.
    pub queries_running: u64,
    /// Queries that are paused.
    pub queries_paused: u64,
    /// Queries that are registered and cannot run.
    pub queries_not_running: u64,
    /// Why this version cannot run it; its parameters and topics are not known then. It can be dropped.
    pub not_running: Option<String>,
    /// What of it is probably a mistake: it runs all the same.
    pub warnings: Vec<String>,
    /// How what is no topic gets on: the source of each input, and the sink of each output, by its name.
    pub health: Vec<EndHealth>,
}

/// What became of an application of which a new version was registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// What became of a big query of which a new version was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryReplacement {
    /// Whether there was none of its name.
    pub is_new: bool,
    /// Whether there was one with another text, which it has replaced.
    pub is_changed: bool,
    /// The checkpoint of the version before with which it goes on; without one it begins anew.
    pub epoch: Option<u64>,
    /// Whether it is paused, as the version before was.
    pub is_paused: bool,
    /// Operators of the version before whose state it has taken over.
    pub state_kept: Vec<String>,
    /// Operators of the version before whose state is forgotten, and why.
    pub state_discarded: Vec<String>,
    /// Sources that the version before did not read.
    pub sources_new: Vec<String>,
    /// Sources that it does not read any more.
    pub sources_gone: Vec<String>,
    /// Sources of which it does not get what came between the two versions: nobody can be asked for it again.
    pub sources_not_repeated: Vec<String>,
}

impl QueryReplacement {
    /// In a sentence, for people.
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

    /// The same as rows: what became of something, and of what.
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
    /// In a sentence, for people.
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

    /// How many queries it has, in words.
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
    /// It does.
    Running,
    /// It does not.
    Paused,
    /// It cannot: this version does not understand its application, or its parameters, or what a big query reads is not
    /// there. It can be dropped.
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
    /// What it belongs to, if that was said.
    pub label: Option<String>,
    /// Topic it reads; of several inputs all, with `, ` between. Empty if it cannot run.
    pub input_topic: String,
    /// Topic it writes; of several outputs all, with `, ` between. Empty if it cannot run.
    pub output_topic: String,
    /// Events that reached it while they were counted.
    pub events: Option<u64>,
    /// Results it gave while they were counted.
    pub results: Option<u64>,
    /// Rows that were refused while they were counted.
    pub refused: Option<u64>,
    /// In how many parts it runs, each on a worker of its own, if it is no big query and runs.
    pub parts: Option<u64>,
    /// Why it runs in one piece however much it has to do, if so.
    pub never_cut: Option<&'static str>,
    /// What it does, if it is a big query.
    pub big: Option<BigQueryInfo>,
    /// What became of its events, if that was asked for; of a big query nothing.
    pub activity: Option<Box<QueryActivity>>,
    /// Why it gives what it gives, the most likely reason first, if that was asked for.
    pub why: Vec<String>,
}

/// A big query, and what it did since it was last started.
#[derive(Clone, Debug, PartialEq)]
pub struct BigQueryInfo {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub state: QueryState,
    /// Why it does not run, if it does not; or what is wrong while it does.
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
    pub health: Vec<EndHealth>,
    /// Refused rows by reason; reasons without refusals may be left out.
    pub refused: Vec<(String, u64)>,
    /// One of the first refused rows in words.
    pub refusal: Option<String>,
    /// By source, rows whose times are most likely seconds that were taken for milliseconds.
    pub times_in_seconds: Vec<(String, u64)>,
    /// From the arrival of the newest row that a result is made of, or from the end of its window, to its handing to
    /// the sink.
    pub latency: LatencyStatus,
    /// From the arrival of the newest row of a window to its end.
    pub window_wait: WindowWait,
    /// Memory of its operators.
    pub state_bytes: u64,
    /// Rows that wait between its tasks.
    pub waiting_rows: u64,
    /// How far the time of its results is, microseconds since the epoch.
    pub watermark_us: Option<i64>,
    /// How far that is behind the clock while it runs.
    pub watermark_lag_us: Option<u64>,
    /// Parallel tasks that it runs in; none while it does not run.
    pub tasks: u64,
}

/// How long the results of windows waited for the end of their window, after the newest row had come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowWait {
    /// Results.
    pub results: u64,
    /// All that they waited, in microseconds.
    pub sum_us: u64,
    /// On average; `None` before the first.
    pub mean_us: Option<u64>,
    /// The longest; `None` before the first.
    pub max_us: Option<u64>,
}

/// How a source or sink of a big query, or of an input or output of an application, gets on with the device behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndHealth {
    /// The name of the source or sink; of an application that of the input.
    pub name: String,
    /// Which of the two.
    pub direction: Direction,
    /// How it gets on.
    pub condition: Condition,
    /// Since when, milliseconds since the epoch.
    pub since_ms: i64,
    /// What went wrong the last time, also after a recovery.
    pub last_error: Option<String>,
    /// Attempts that failed since the last one that went well.
    pub retries: u64,
    /// Attempts that failed since the query was started.
    pub failures: u64,
    /// Of an input, messages that were routed. Of a sink, rows that the receiver has acknowledged since then.
    pub rows: u64,
    /// Their size in bytes as they were sent.
    pub bytes: u64,
    /// Of an input, messages that were refused. Of a sink, rows that the receiver has rejected and that were left out.
    pub rejected_rows: u64,
    /// Of a sink, rows that it has and the receiver has not acknowledged.
    pub waiting_rows: u64,
    /// For how long the oldest of these waits.
    pub oldest_ms: Option<u64>,
}

/// Which queries to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryFilter {
    /// Only those of this application, by name.
    pub application: Option<String>,
    /// Only those whose name matches this SQL `LIKE` pattern.
    pub like: Option<String>,
    /// Only names after this one: the last name of the page before.
    pub after: Option<String>,
    /// At most so many; callers bound it by [`QUERIES_PAGE_MAX`].
    pub limit: usize,
}

/// What the server is doing.
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
    /// Resident memory of the process; `None` where the system does not tell.
    pub memory_rss_bytes: Option<u64>,
    /// Messages received that no query asked for.
    pub messages_unrouted: u64,
    /// All applications together.
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
    /// Its number. That of the one before if nothing had changed since.
    pub epoch: u64,
    /// Slots of queries whose state is in what was written; equal queries share one.
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
    /// Where.
    pub place: String,
    /// How often; `None` for only when asked.
    pub interval_ms: Option<u64>,
    /// The newest checkpoint, if one was made since the start.
    pub last: Option<CheckpointInfo>,
    /// How long ago that was.
    pub age_ms: Option<u64>,
    /// How many were made since the start.
    pub made: u64,
    /// How many failed since the start. Nothing is lost by that: the one before stays in force.
    pub failed: u64,
    /// Why the last attempt failed, if it did.
    pub last_error: Option<String>,
    /// How checkpoints of the big queries that run stood when the last one was made.
    pub big_queries: Vec<QueryCheckpoint>,
    /// What was found at the start, if anything was.
    pub recovered: Option<RecoveryStatus>,
}

/// How the checkpoints of a big query stand.
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
    /// Why there is none that is newer, if the last attempt failed.
    pub last_error: Option<String>,
}

/// What a server found at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatus {
    /// The checkpoint it was found in; `None` if none could be read.
    pub epoch: Option<u64>,
    /// Slots of queries that have their state again.
    pub queries: u64,
    /// Slots of queries that began anew because theirs could not be read.
    pub lost: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// What was wrong with what was found, in words.
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
    pub loss: Option<String>,
    /// Why nothing can be logged, or replayed, at present. Nothing is acknowledged then.
    pub problem: Option<String>,
}

/// A worker thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerInfo {
    /// Its number.
    pub worker: u64,
    /// Which part of its time the queries of applications need, as last measured; above 1 it cannot keep up.
    pub load: f64,
    /// Tasks that belong to it.
    pub tasks: u64,
    /// The core that it stays on, if it does.
    pub core: Option<u64>,
    /// The memory node (NUMA) of that core, where the machine has several.
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
    /// Silent queries, of those that run or are paused, whose state waits on disk for their next event.
    pub queries_spilled: u64,
    /// Queries that are registered and cannot run.
    pub queries_not_running: u64,
    /// Why this version cannot run it; nothing is counted then.
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
    /// By input, events whose times are most likely seconds that were taken for milliseconds.
    pub times_in_seconds: Vec<(String, u64)>,
    /// What its owner should know: what is promised and cannot be kept, times that are probably of another unit.
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
    /// How often it was made again.
    pub reconnects: u64,
    /// How often events may have been missed in between.
    pub gaps: u64,
    /// What was dropped or turned away, by reason; every reason, with 0 for those that did not occur.
    pub dropped: Vec<(&'static str, u64)>,
    /// Filters the broker has refused, with its reason; at most 20.
    pub refused_subscriptions: Vec<(String, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_in_a_text_goes_to_its_place() {
        let error = ServiceError::from_text(ErrorKind::Invalid, "no such format 'XML'\nhint: write JSON");
        assert_eq!(error, ServiceError::invalid("no such format 'XML'").with_hint("write JSON"));
        let error = ServiceError::from_text(ErrorKind::Unavailable, "the port is in use");
        assert_eq!(error, ServiceError::new(ErrorKind::Unavailable, "the port is in use"));
    }

    #[test]
    fn generated_names_are_recognised_and_nothing_else() {
        for id in [0, 7, QueryId::MAX] {
            assert_eq!(is_generated_name(&generated_name(id)), Some(id));
        }
        for name in ["query_", "query_07", "query_+7", "query_7x", "Query_7", "query_18446744073709551616", "kims_ac"] {
            assert_eq!(is_generated_name(name), None, "{name}");
        }
    }
}
