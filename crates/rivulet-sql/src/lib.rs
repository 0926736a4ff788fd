//! SQL text to applications and dataflows, with DataFusion's parser and expressions.
//!
//! A script is tokenised once. Our own recursive descent reads the statements and hands the SELECT to DataFusion's
//! parser on the same tokens, so that every error has the line and column of the script. What is not supported is
//! refused by name, and nothing that is written is ignored.
//!
//! The invariant of this crate: it knows no connector and no format. It carries addresses and formats through with
//! their positions, and the engine checks them.
//!
//! In reading order:
//!
//! - [`parse`]: text to [`Statement`]s ([`parse_script`]), by way of [`lexer`], as [`statement`];
//! - [`plan`]: an application's statement to an [`Application`] ([`plan_application`]): names, types, windows,
//!   operators;
//! - [`code`]: applications from the text in the catalog ([`SqlLoader`]);
//! - [`binding`]: given values to parameter columns, in bulk ([`ParameterRows`], [`BindError`]);
//! - [`scope`]: the sources, views, tables and sinks that big queries name ([`Scope`]);
//! - [`plan::query`]: a big query to a parallel dataflow ([`plan_query`]);
//! - `declare`: statements to sources, views and sinks in that scope;
//! - [`functions`]: the functions in words ([`FunctionDescription`]);
//! - `explain` and [`explain_query`]: an application and a big query in words;
//! - [`migration`]: which state the next version of an application or big query takes over ([`StateMigration`],
//!   [`QueryMigration`]);
//! - `shown`: statements and addresses without secrets ([`shown_statement`]);
//! - `reserved`: words that are no names, and names as they are written;
//! - [`address`]: where events come from and go, with placeholders ([`Address`]);
//! - [`value`]: types and single values ([`Literal`], [`ParamValue`]);
//! - [`error`] and `suggest`: what is wrong, where, and what was probably meant ([`SqlError`]).

pub mod parse;
pub mod lexer;
mod reserved;
pub mod statement;
mod alter;
pub mod plan;
pub mod code;
pub mod binding;
mod explain;
pub mod functions;
pub mod address;
pub mod value;
pub mod error;
pub mod scope;
mod declare;
pub mod explain_query;
pub mod migration;
mod shown;

pub use rivulet_operators::application;

pub use address::{Address, DEFAULT_CONNECTOR, Part};
pub use alter::{option_at, with_input_options};
pub use application::{Application, Durability, Input, Output, Overflow, Parameter, TableIndex, TableUse, Tables};
pub use binding::{BindError, ParameterRows};
pub use code::SqlLoader;
pub use error::{Position, SqlError, excerpt};
pub use explain_query::{explain_query, shown_nodes};
pub use functions::{FunctionDescription, function, functions};
pub use migration::{QueryMigration, StateMigration, migration, query_migration};
pub use parse::{Outdated, StatementTexts, Stored, parse_application, parse_script, parse_stored, statements};
pub use plan::query::{
    PlannedOutput, PlannedSource, QueryPlan, SortKey, letter_schema, plan_look, plan_query, relations_of,
};
pub use plan::{SQL, is_input_option, plan_application, plan_application_with};
pub use reserved::name_in_sql;
use rivulet_dataflow::suggest;
pub use rivulet_dataflow::suggest::nearest;
pub use rivulet_operators::model::{MODEL_BYTES_MAX, ModelError};
pub use rivulet_operators::{Match, MatchIndex, MatchKey, Model, Table, match_keys};
pub use scope::{Scope, SinkDeclaration, SourceDeclaration, View};
pub use shown::{shown_address, shown_statement};
pub use statement::{
    AccountStatement, BigQuery, CreateApplication, CreateBigQuery, CreateSecret, CreateSink, CreateSource, CreateTable,
    CreateView, Declared, FormatSpec, GRANT_ACTIONS, GRANT_KINDS, GrantedRights, Name, NamedTopic, ObjectKind,
    Operators, SecretValue, Show, StateWish, Statement, TenantLimit, UserName, limit_of, topic_of,
};
pub use value::{Literal, ParamValue, column_type_name, declared_type_name, interval_text, type_name};
