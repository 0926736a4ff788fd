//! The calls of the server, as one trait, which the engine implements. REST, SQL and the command line use it through
//! the [`Session`] of a [`Caller`], which checks what the caller may do.
//!
//! What is shown as it is goes over the network as these types are: their JSON is part of the REST API. The types of
//! requests are plain: [`crate::api`] converts them for the network, and [`crate::catalog`] for the disk. Every call
//! may block (for a lock, or a commit to disk), so the API makes the calls on a thread that may block.

mod access;
mod accounts;
mod activity;
mod applications;
mod audit;
mod broker_access;
mod caller;
mod error;
mod link_access;
mod live;
mod names;
mod needed;
mod queries;
mod quotas;
mod requests;
mod resource;
mod rights;
mod session;
mod status;

use std::io;
use std::sync::Arc;

use rivulet_connectors::mqtt::{ClientFilter, ClientInfo};
use rivulet_dataflow::QueryId;
use rivulet_sql::{AccountStatement, StateWish};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::broadcast;
use utoipa::ToSchema;

use crate::config::Config;
pub use access::{Access, Authorizer, Credentials, LocalOperator, Permit, Refused};
pub use accounts::{AccountAnswer, GrantInfo, TokenInfo, UserInfo};
pub(crate) use activity::counted_from;
pub use activity::{InputActivity, NullColumn, QueryActivity, QueryRefusal, StepActivity};
pub use applications::{
    ApplicationInfo, Code, ParameterInfo, QueryReplacement, Replacement, SecretInfo, TableColumn, TableInfo,
};
pub use audit::{AuditEntry, Auditor, without_values};
pub(crate) use broker_access::BrokerAccess;
pub use caller::{Caller, Login, Origin};
pub use error::{ErrorKind, ServiceError};
pub(crate) use link_access::{BURST_STREAMS, LinkAccess};
pub(crate) use live::Waiting;
pub use live::{LiveResult, Selection};
pub use names::{FullName, Tenant};
pub use queries::{
    BigQueryInfo, DataflowInput, DataflowNode, EndHealth, LatencyStatus, OperatorUsage, QueryFilter, QueryInfo,
    QueryState, TaskUsage, WindowWait, generated_id, generated_name,
};
pub use quotas::{LIMIT_MAX, Limit, LimitUse, Limits, LiveStream, Quota, Quotas, TenantInfo};
pub use requests::{Alteration, AlterationEffect, Parameter, ParameterValue, QueryChange, QueryRequest};
pub use resource::{Action, Resource, ResourceKind};
pub use rights::{Grant, LoginProof, LoginToken, Rights};
pub(crate) use rights::{administers_server, has_expired, is_below};
pub use session::Session;
pub use status::{
    ApplicationStatus, BurstWorker, CheckpointInfo, CheckpointStatus, ConnectionStatus, FunctionStatus, LogStatus,
    QueryCheckpoint, RecoveryStatus, Status, WorkerInfo,
};

/// The most requests in one call of [`Service::submit`].
pub const SUBMIT_BATCH_MAX: usize = 8192;

/// The most entries on one page of a list. The next page begins after the name of the last one.
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

    /// Registers an application. The same code again returns the same id. With `replaces`, or if the statement says so,
    /// it takes over the queries of the application of its name; if some of their state cannot be taken over, the error
    /// says what would be lost, unless it may be discarded.
    fn create_application(
        &self,
        permit: &Permit,
        code: Code<'_>,
        replaces: Option<StateWish>,
    ) -> Result<ApplicationInfo, ServiceError>;

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

    /// What big queries can call by a name: a source, a view or a table, and a sink; nothing if nothing has the name.
    fn kinds_of(&self, permit: &Permit, name: &str) -> Vec<ResourceKind> {
        let _ = (permit, name);
        Vec::new()
    }

    /// Every secret, by name, without its value.
    fn secrets(&self, permit: &Permit) -> Vec<SecretInfo> {
        let _ = permit;
        Vec::new()
    }

    /// Gives a secret its value, also one that there is already. Sources and sinks take it when they are opened next,
    /// links when they connect next.
    fn put_secret(&self, permit: &Permit, name: &str, value: String) -> Result<SecretInfo, ServiceError> {
        let _ = (permit, name, value);
        Err(ServiceError::invalid("this server keeps no secrets"))
    }

    /// Drops a secret; it is a conflict if a source, sink or application names it.
    fn drop_secret(&self, permit: &Permit, name: &str) -> Result<(), ServiceError> {
        let _ = permit;
        Err(ServiceError::not_found(format!("there is no secret '{name}'")))
    }

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
        self.status(permit, false).big_queries
    }

    /// The dataflow of a big query, node by node.
    fn dataflow(&self, permit: &Permit, query: &str) -> Result<Vec<DataflowNode>, ServiceError> {
        let _ = permit;
        Err(ServiceError::not_found(format!("there is no big query '{query}'")))
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

    /// The status of the server, for users. With `operators` it says what each task of each big query does with its
    /// time.
    fn status(&self, permit: &Permit, operators: bool) -> Status;

    /// The same for monitoring systems: the Prometheus text format.
    fn metrics(&self, permit: &Permit) -> String;

    /// The clients of the embedded broker that the filter wants, by tenant, user and id; those of the permit's tenant,
    /// and all for the default tenant.
    fn clients(&self, permit: &Permit, filter: ClientFilter) -> Result<Vec<ClientInfo>, ServiceError> {
        let _ = (permit, filter);
        Err(ServiceError::not_found("this server has no broker of its own"))
    }

    /// Live results of a query. A slow reader loses the oldest, and is told how many. If the results that wait for
    /// readers take more memory than allowed, new ones are skipped, and counted as well.
    fn results(&self, permit: &Permit, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError>;

    /// Runs one SELECT for as long as the answer exists, and gives its rows as they come. A slow reader loses some, as
    /// with [`Service::results`].
    fn select(&self, permit: &Permit, sql: &str) -> Result<Selection, ServiceError> {
        let _ = (permit, sql);
        Err(ServiceError::invalid("this server runs no SELECT"))
    }

    /// Carries out a statement about tenants, users, tokens or rights.
    fn account(&self, permit: &Permit, statement: &AccountStatement) -> Result<AccountAnswer, ServiceError> {
        let _ = (permit, statement);
        Err(ServiceError::invalid("this server has no accounts of its own"))
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
