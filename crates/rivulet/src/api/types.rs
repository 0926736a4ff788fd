//! What goes over the wire: the REST API's contract, for the server and for the client. What the server shows as its
//! service has it is a type of [`crate::service`].

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::service;

pub use super::accounts::{
    AccountChanged, Grant, GrantList, NewToken, NewUser, Rotation, TokenCreated, TokenList, UserList,
};
pub use super::activity::{QueryActivity, QueryInput, QueryRefusal};
pub use super::passwords::{NewLogin, NewPassword};
pub use super::tenants::{LimitChanges, LimitUsed, NewTenant, TenantLimits, TenantList};
pub use crate::service::{
    ApplicationInfo as Application, ApplicationStatus, BigQueryInfo as BigQuery, CheckpointInfo as Checkpoint,
    CheckpointStatus as Checkpoints, DataflowNode, EndHealth, LogStatus as Log, ParameterInfo as ParameterDeclaration,
    RecoveryStatus as Recovery, SecretInfo as Secret, StatementResult, Status, StepActivity as QueryStep,
    TableInfo as Table, TokenInfo as Token, UserInfo as User, WorkerInfo as Worker,
};

/// The header in which an operator of the server says in the place of which tenant it asks.
pub const TENANT_HEADER: &str = "rivulet-tenant";

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

/// Every reference table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TableList {
    /// Tables by name.
    pub tables: Vec<Table>,
}

/// Every application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApplicationList {
    /// Applications by name.
    pub applications: Vec<Application>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// The parameters with other values on which state depends, which has begun anew; left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["width"]))]
    pub state_reset: Vec<String>,
    /// The operators that have begun anew, in words; left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begun_anew: Vec<String>,
    /// Why it is likely to give nothing from now on, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
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

/// The dataflow of a big query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dataflow {
    /// Its nodes, in the order of their numbers.
    pub nodes: Vec<DataflowNode>,
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

/// What the status is to have.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StatusParameters {
    /// Whether it says what each task of each big query does with its time.
    #[serde(default)]
    pub operators: bool,
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

/// How to drop an application, or a tenant.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DropParameters {
    /// Whether to drop its queries too; with a tenant, its users and all that it has.
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

impl From<service::ServiceError> for ErrorDetail {
    fn from(error: service::ServiceError) -> Self {
        let service::ServiceError { kind, message, line, column, hint, .. } = error;
        Self { kind: kind.name().to_owned(), message, line, column, hint }
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
            big: info.big,
            activity: info.activity.map(|activity| QueryActivity::from(*activity)),
            why: info.why,
        }
    }
}
