//! Big queries on a server: sources, sinks and views that are remembered, and flows that run again after a restart.
//!
//! The catalog remembers statements as they were written, in their order; a start carries them out again. So what must hold: a
//! statement is remembered only after it was carried out, and nothing is dropped that one which is remembered needs.

use std::collections::BTreeMap;
use std::time::Duration;

use rivulet_sql::{
    BigQuery, CreateSink, CreateSource, CreateView, Name, QueryPlan, Scope, Statement, explain_query, plan_query,
};

use super::Engine;
use crate::run::{self, RunOptions, own_columns};
use crate::service::{ErrorKind, ServiceError};

/// How long a dropped query may take to write what it has in hand.
const STOP_MAX: Duration = Duration::from_secs(5);

/// What a server knows of big queries.
#[derive(Default)]
pub(super) struct BigQueries {
    /// Sources, sinks and views. Reference tables are added when something is planned.
    scope: Scope,
    /// What the catalog remembers, by its number there.
    remembered: BTreeMap<u64, Statement>,
    queries: BTreeMap<String, OneQuery>,
}

/// A query, whether it runs or not.
struct OneQuery {
    number: u64,
    sql: String,
    /// The plan and the flow; or why there is none.
    state: Result<(QueryPlan, run::Running), String>,
}

/// A big query as it is shown.
#[derive(Clone, Debug)]
pub(super) struct BigQueryInfo {
    pub(super) name: String,
    /// `running`, `ended`, `failed` or `not running`.
    pub(super) state: &'static str,
    /// Why it failed or does not run.
    pub(super) reason: Option<String>,
    pub(super) sql: String,
    pub(super) rows_in: u64,
    pub(super) rows_out: u64,
    pub(super) rows_refused: u64,
}

impl OneQuery {
    fn info(&self, name: &str) -> BigQueryInfo {
        let (mut state, mut reason, mut report) = ("not running", None, Default::default());
        match &self.state {
            Err(problem) => reason = Some(problem.clone()),
            Ok((_, running)) => {
                report = running.report();
                state = match running.flow().wait(Duration::ZERO) {
                    None => "running",
                    Some(Ok(())) => "ended",
                    Some(Err(error)) => {
                        reason = Some(error.0);
                        "failed"
                    }
                };
            }
        }
        BigQueryInfo {
            name: name.to_owned(),
            state,
            reason,
            sql: self.sql.clone(),
            rows_in: report.rows_in,
            rows_out: report.rows_out,
            rows_refused: report.refused.iter().sum(),
        }
    }
}

impl BigQueries {
    /// The names that exist without the statement with this number; an error says which of the others needs it.
    fn scope_without(&self, number: u64, tables: &Scope) -> Result<Scope, ServiceError> {
        let mut scope = tables.clone();
        for (_, statement) in self.remembered.iter().filter(|(other, _)| **other != number) {
            let (what, done) = match statement {
                Statement::CreateBigQuery { name, query, .. } => (name, plan_query(query, &scope).map(drop)),
                Statement::CreateSource(create) => (&create.name, declare_source(create, &mut scope)),
                Statement::CreateSink(create) => (&create.name, declare_sink(create, &mut scope)),
                Statement::CreateView(create) => (&create.name, scope.add_view(create)),
                _ => continue,
            };
            if done.is_err() {
                return Err(ServiceError::new(ErrorKind::Conflict, format!("'{what}' needs it"))
                    .with_hint(format!("drop '{what}' first")));
            }
        }
        Ok(scope)
    }

    fn number_of(&self, is_wanted: impl Fn(&Statement) -> bool) -> Option<u64> {
        self.remembered.iter().find(|(_, statement)| is_wanted(statement)).map(|(number, _)| *number)
    }
}

fn declare_source(create: &CreateSource, scope: &mut Scope) -> Result<(), rivulet_sql::SqlError> {
    scope.add_source(create.declare(own_columns)?)
}

fn declare_sink(create: &CreateSink, scope: &mut Scope) -> Result<(), rivulet_sql::SqlError> {
    scope.add_sink(create.declare()?)
}

/// What `DROP` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    Source,
    Sink,
    View,
}

impl Dropped {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Sink => "sink",
            Self::View => "view",
        }
    }

    fn is(self, statement: &Statement, name: &str) -> bool {
        match (self, statement) {
            (Self::Source, Statement::CreateSource(create)) => create.name.text == name,
            (Self::Sink, Statement::CreateSink(create)) => create.name.text == name,
            (Self::View, Statement::CreateView(create)) => create.name.text == name,
            _ => false,
        }
    }
}

impl Engine {
    /// The names that big queries may use: those that were declared, and reference tables.
    fn scope(&self, declared: &Scope) -> Scope {
        let mut scope = declared.clone();
        let state = self.state.lock();
        for create in state.declared_tables.values() {
            if let Some(Ok(table)) = state.tables.get(&create.name.text) {
                // A source or view of the same name was there first.
                let _ = scope.add_table(&create.name, table.clone());
            }
        }
        scope
    }

    /// Declares a source; whether it is new.
    pub(super) fn create_source(&self, create: CreateSource) -> Result<bool, ServiceError> {
        let mut big = self.big_queries.lock();
        if create.if_not_exists && big.scope.source(&create.name.text).is_some() {
            return Ok(false);
        }
        declare_source(&create, &mut self.scope(&big.scope))?;
        let number = self.catalog.insert_statement(&create.text)?;
        declare_source(&create, &mut big.scope)?;
        big.remembered.insert(number, Statement::CreateSource(Box::new(create)));
        Ok(true)
    }

    /// Declares a sink; whether it is new.
    pub(super) fn create_sink(&self, create: CreateSink) -> Result<bool, ServiceError> {
        let mut big = self.big_queries.lock();
        if create.if_not_exists && big.scope.sink(&create.name.text).is_some() {
            return Ok(false);
        }
        declare_sink(&create, &mut big.scope.clone())?;
        let number = self.catalog.insert_statement(&create.text)?;
        declare_sink(&create, &mut big.scope)?;
        big.remembered.insert(number, Statement::CreateSink(Box::new(create)));
        Ok(true)
    }

    /// Declares a view; whether it is new.
    pub(super) fn create_view(&self, create: CreateView) -> Result<bool, ServiceError> {
        let mut big = self.big_queries.lock();
        if create.if_not_exists && big.scope.view(&create.name.text).is_some() {
            return Ok(false);
        }
        let mut with_tables = self.scope(&big.scope);
        with_tables.add_view(&create)?;
        let number = self.catalog.insert_statement(&create.text)?;
        let view = with_tables.view(&create.name.text).expect("it was just added").clone();
        big.scope.add_planned_view(view);
        big.remembered.insert(number, Statement::CreateView(Box::new(create)));
        Ok(true)
    }

    /// Forgets a source, sink or view that nothing needs; whether there was one.
    pub(super) fn drop_declared(&self, what: Dropped, name: &Name) -> Result<bool, ServiceError> {
        let mut big = self.big_queries.lock();
        let Some(number) = big.number_of(|statement| what.is(statement, &name.text)) else { return Ok(false) };
        let tables = self.scope(&Scope::new());
        big.scope_without(number, &tables).map_err(|error| ServiceError {
            message: format!("the {} '{name}' cannot be dropped: {}", what.word(), error.message),
            ..error
        })?;
        self.catalog.remove_statement(number)?;
        match what {
            Dropped::Source => big.scope.drop_source(&name.text),
            Dropped::Sink => big.scope.drop_sink(&name.text),
            Dropped::View => big.scope.drop_view(&name.text),
        };
        big.remembered.remove(&number);
        Ok(true)
    }

    /// Plans a query and lets it run; whether it is new.
    pub(super) fn create_big_query(
        &self,
        name: &Name,
        if_not_exists: bool,
        query: BigQuery,
    ) -> Result<bool, ServiceError> {
        let mut big = self.big_queries.lock();
        let is_known = big.queries.contains_key(&name.text) || self.state.lock().registry.contains(&name.text);
        if is_known {
            return match if_not_exists {
                true => Ok(false),
                false => Err(ServiceError::new(ErrorKind::AlreadyExists, format!("a query '{name}' exists"))
                    .with_hint("give it another name, or drop the old one first")),
            };
        }
        let plan = plan_query(&query, &self.scope(&big.scope))?;
        let running = self.start_flow(&plan, &name.text)?;
        let number = match self.catalog.insert_statement(&query.text) {
            Ok(number) => number,
            Err(error) => {
                running.stop();
                return Err(error.into());
            }
        };
        let sql = query.text.clone();
        big.remembered.insert(number, Statement::CreateBigQuery { name: name.clone(), if_not_exists, query });
        big.queries.insert(name.text.clone(), OneQuery { number, sql, state: Ok((plan, running)) });
        tracing::info!(query = name.text, "runs");
        Ok(true)
    }

    fn start_flow(&self, plan: &QueryPlan, name: &str) -> Result<run::Running, ServiceError> {
        run::start(&self.workers, RunOptions::new(self.config.workers.threads), plan, name, None)
    }

    /// Stops and forgets a big query; whether there was one. What its windows have gathered is lost.
    pub(super) fn drop_big_query(&self, name: &str) -> Result<bool, ServiceError> {
        let mut big = self.big_queries.lock();
        let Some(number) = big.queries.get(name).map(|one| one.number) else { return Ok(false) };
        self.catalog.remove_statement(number)?;
        big.remembered.remove(&number);
        if let Some(OneQuery { state: Ok((_, running)), .. }) = big.queries.remove(name) {
            drop(big);
            running.stop();
            if running.wait(STOP_MAX).is_none() {
                tracing::warn!(query = name, "dropped before all of it was written");
            }
        }
        tracing::info!(query = name, "dropped");
        Ok(true)
    }

    /// Every big query, by name.
    pub(super) fn big_queries(&self) -> Vec<BigQueryInfo> {
        self.big_queries.lock().queries.iter().map(|(name, one)| one.info(name)).collect()
    }

    /// One big query.
    pub(super) fn big_query(&self, name: &str) -> Option<BigQueryInfo> {
        self.big_queries.lock().queries.get(name).map(|one| one.info(name))
    }

    /// How a big query is computed.
    pub(super) fn explain_big_query(&self, name: &str) -> Option<Result<String, ServiceError>> {
        let big = self.big_queries.lock();
        big.queries.get(name).map(|one| match &one.state {
            Ok((plan, _)) => Ok(explain_query(plan)),
            Err(reason) => Err(ServiceError::new(ErrorKind::Unavailable, format!("'{name}' is not running: {reason}"))),
        })
    }

    /// How a query would be computed that is not there.
    pub(super) fn explain_query_text(&self, query: &BigQuery) -> Result<String, ServiceError> {
        let scope = self.scope(&self.big_queries.lock().scope);
        Ok(explain_query(&plan_query(query, &scope)?))
    }

    /// Name and address, or text, of the sources, sinks or views.
    pub(super) fn declared(&self, what: Dropped) -> Vec<(String, String)> {
        let big = self.big_queries.lock();
        match what {
            Dropped::Source => big.scope.sources().map(|one| (one.name.text.clone(), one.address.clone())).collect(),
            Dropped::Sink => big.scope.sinks().map(|one| (one.name.text.clone(), one.address.clone())).collect(),
            Dropped::View => big.scope.views().map(|one| (one.name.text.clone(), one.text.clone())).collect(),
        }
    }

    /// The big queries that look rows up in a reference table.
    pub(super) fn big_queries_with_table(&self, table: &str) -> Vec<String> {
        let big = self.big_queries.lock();
        let uses = |one: &OneQuery| {
            one.state.as_ref().is_ok_and(|(plan, _)| plan.tables.iter().any(|used| used.name() == table))
        };
        big.queries.iter().filter(|(_, one)| uses(one)).map(|(name, _)| name.clone()).collect()
    }

    /// Carries out what the catalog remembers. What cannot be carried out any more is said, and the rest runs.
    pub(super) fn load_big_queries(&self) -> Result<(), ServiceError> {
        let mut big = self.big_queries.lock();
        for (number, sql) in self.catalog.statements()? {
            let Some((statement, _)) = rivulet_sql::parse_script(&sql).ok().and_then(|mut one| one.pop()) else {
                tracing::error!(sql, "a remembered statement is not understood by this version");
                continue;
            };
            let done = match &statement {
                Statement::CreateSource(create) => declare_source(create, &mut big.scope),
                Statement::CreateSink(create) => declare_sink(create, &mut big.scope),
                Statement::CreateView(create) => {
                    let mut scope = self.scope(&big.scope);
                    scope.add_view(create).map(|()| {
                        let view = scope.view(&create.name.text).expect("it was just added").clone();
                        big.scope.add_planned_view(view);
                    })
                }
                Statement::CreateBigQuery { name, query, .. } => {
                    let scope = self.scope(&big.scope);
                    let state = plan_query(query, &scope).map_err(ServiceError::from).and_then(|plan| {
                        let running = self.start_flow(&plan, &name.text)?;
                        Ok((plan, running))
                    });
                    let state = state.map_err(|error| {
                        tracing::error!(query = name.text, "a registered query is not running: {error}");
                        error.message
                    });
                    big.queries.insert(name.text.clone(), OneQuery { number, sql, state });
                    Ok(())
                }
                _ => continue,
            };
            if let Err(error) = done {
                tracing::error!("a remembered statement cannot be carried out: {error}");
            }
            big.remembered.insert(number, statement);
        }
        Ok(())
    }

    /// Ends the input of all big queries, and gives them time to write what they have in hand.
    pub(super) fn stop_big_queries(&self) {
        let big = self.big_queries.lock();
        let running = || big.queries.values().filter_map(|one| one.state.as_ref().ok().map(|(_, running)| running));
        running().for_each(run::Running::stop);
        for one in running() {
            if one.wait(STOP_MAX).is_none() {
                tracing::warn!("a big query did not come to its end");
            }
        }
    }
}
