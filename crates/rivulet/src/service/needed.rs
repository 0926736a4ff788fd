//! The rights that statements require: over what they are about, and over what they read and write.

use rivulet_sql::{BigQuery, Name, Statement, relations_of};

use super::resource::Action::{self, Administer, Change, Read};
use super::resource::ResourceKind::{self, Application, Query, Secret, Server, Sink, Source, Table, User, View};

/// The right over what a statement is about.
pub(super) fn needed(statement: &Statement) -> (Action, ResourceKind, Option<&Name>) {
    match statement {
        Statement::CreateApplication(create) => (Change, Application, Some(&create.name)),
        Statement::CreateTable(create) => (Change, Table, Some(&create.name)),
        Statement::CreateSecret(create) => (Change, Secret, Some(&create.name)),
        Statement::DropSecret { name, .. } => (Change, Secret, Some(name)),
        Statement::ShowSecrets { .. } => (Read, Secret, None),
        Statement::CreateSource(create) => (Change, Source, Some(&create.name)),
        Statement::CreateSink(create) => (Change, Sink, Some(&create.name)),
        Statement::CreateView(create) => (Change, View, Some(&create.name)),
        Statement::CreateBigQuery(create) => (Change, Query, Some(&create.name)),
        Statement::CreateQuery { name, .. }
        | Statement::AlterQuery { name, .. }
        | Statement::RedirectQuery { name, .. }
        | Statement::PauseQuery(name)
        | Statement::ResumeQuery(name) => (Change, Query, Some(name)),
        Statement::AlterApplication { name, .. } => (Change, Application, Some(name)),
        Statement::RefreshTable(name) => (Change, Table, Some(name)),
        Statement::Drop { kind, name, .. } => (Change, (*kind).into(), Some(name)),
        Statement::Show(show) => (Read, show.kind.into(), None),
        Statement::Describe(kind, name) => (Read, (*kind).into(), Some(name)),
        Statement::Checkpoint => (Administer, Server, None),
        Statement::ShowCheckpoints | Statement::ShowBursts { of_workers: true, .. } => (Read, Server, None),
        // The documentation has the same content.
        Statement::ShowFunctions { .. } | Statement::DescribeFunction(_) => (Read, Application, None),
        // A server refuses to run a query without a name, for any caller.
        Statement::ExplainBigQuery { .. }
        | Statement::RunQuery(_)
        | Statement::ShowBursts { of_workers: false, .. } => (Read, Query, None),
        Statement::ExplainCreate(create) => (Read, Application, Some(&create.name)),
        Statement::ExplainApplication(name) => (Read, Application, Some(name)),
        Statement::ExplainQuery(name) => (Read, Query, Some(name)),
        // A caller who may declare a source may read any file that the server may read.
        Statement::DescribeFile { .. } => (Change, Source, None),
        // Checked by `permit_account`, which knows the tenant.
        Statement::Account(_) => (Administer, User, None),
    }
}

/// The names whose rows a statement reads, or explains how to read: those of tables, sources and views, and those that
/// it defines in WITH. A plan, and why there is none, tell of their columns.
pub(super) fn read_by(statement: &Statement) -> Vec<Name> {
    match statement {
        Statement::CreateView(create) => relations(&create.query),
        Statement::CreateBigQuery(create) => relations(&create.query),
        Statement::RunQuery(query) | Statement::ExplainBigQuery { query, .. } => relations(query),
        Statement::CreateApplication(create) | Statement::ExplainCreate(create) => {
            create.table_names().into_iter().cloned().collect()
        }
        _ => Vec::new(),
    }
}

fn relations(query: &BigQuery) -> Vec<Name> {
    let named = |(parts, position): (Vec<String>, _)| Name { text: parts.join("."), position };
    relations_of(query).unwrap_or_default().into_iter().map(named).collect()
}

/// Whether a statement reads files of models.
pub(super) fn calls_models(statement: &Statement) -> bool {
    match statement {
        Statement::CreateView(create) => !create.query.models().is_empty(),
        Statement::CreateBigQuery(create) => !create.query.models().is_empty(),
        Statement::RunQuery(query) | Statement::ExplainBigQuery { query, .. } => !query.models().is_empty(),
        _ => false,
    }
}

/// The names of the sinks to which a statement writes, or explains how to write.
pub(super) fn written_by(statement: &Statement) -> Vec<Name> {
    match statement {
        Statement::CreateBigQuery(create) => create.query.sink.iter().cloned().collect(),
        Statement::ExplainBigQuery { query, .. } => query.sink.iter().cloned().collect(),
        Statement::CreateSource(create) => create.sinks().collect(),
        _ => Vec::new(),
    }
}

/// What a statement declares that later ones may read or write, and its name.
pub(super) fn declared_by(statement: &Statement) -> Option<(ResourceKind, &Name)> {
    match needed(statement) {
        (Change, kind @ (Table | Source | Sink | View), Some(name)) => Some((kind, name)),
        _ => None,
    }
}
