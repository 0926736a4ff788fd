//! Big queries on a server: sources, sinks and views that are remembered, and flows that run again after a restart.
//!
//! The catalog remembers statements as they were written, in their order; a start carries them out again. So what must hold: a
//! statement is remembered only after it was carried out, and nothing is dropped that one which is remembered needs.
//!
//! In reading order: `declared`: sources, sinks and views; here: queries, from their creation to their end; `info`: what is shown of them.

mod declared;
mod info;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_runtime::Policy;
use rivulet_sql::{BigQuery, Name, QueryPlan, Scope, Statement, explain_query, plan_query};

use super::Engine;
use super::submit::check_free;
use crate::run::{self, RunOptions};
use crate::service::{ErrorKind, QueryState, ServiceError};

pub(super) use declared::Declared;
pub(super) use info::BigQuerySnapshot;

/// How long a dropped query may take to write what it has in hand.
const STOP_MAX: Duration = Duration::from_secs(5);

/// How long whoever looks at the figures of a query may keep what it has opened from being closed.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// What a server knows of big queries.
#[derive(Default)]
pub(super) struct BigQueries {
    /// Held by whoever changes anything, for as long as it takes to open a source. Taken before `known`.
    changing: Mutex<()>,
    /// Locked for moments only: queries can be looked at while another one is started.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Sources, sinks and views. Reference tables are added when something is planned.
    scope: Scope,
    /// What the catalog remembers, by its number there.
    remembered: BTreeMap<u64, Statement>,
    queries: BTreeMap<String, OneQuery>,
}

/// A query, whether it runs or not.
#[derive(Clone)]
struct OneQuery {
    number: u64,
    query: BigQuery,
    /// Whether the catalog has it as paused.
    is_paused: bool,
    /// How it is computed, where it could be planned.
    plan: Option<Arc<QueryPlan>>,
    /// What was started. Neither this nor a problem: it was paused when the server started, and has nothing open.
    running: Option<Arc<run::Running>>,
    /// Why nothing could be started.
    problem: Option<String>,
}

/// What resuming a query came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resumed {
    /// It went on with what it had, or was not paused.
    GoesOn,
    /// It was started anew.
    FromTheStart,
}

impl OneQuery {
    /// Whether it runs, and if not, why.
    fn state(&self) -> (QueryState, Option<String>) {
        match (&self.running, &self.problem) {
            (None, Some(problem)) => (QueryState::NotRunning, Some(problem.clone())),
            (None, None) => (QueryState::Paused, None),
            (Some(running), _) => match running.flow().wait(Duration::ZERO) {
                Some(Err(error)) => (QueryState::Failed, Some(error.0.replace("\nhint: ", "; "))),
                Some(Ok(())) => (QueryState::Ended, None),
                None if self.is_paused => (QueryState::Paused, None),
                None => (QueryState::Running, None),
            },
        }
    }
}

impl Known {
    fn query(&self, name: &str) -> Option<OneQuery> {
        self.queries.get(name).cloned()
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut OneQuery)) {
        if let Some(one) = self.queries.get_mut(name) {
            change(one);
        }
    }
}

impl Engine {
    /// The names that big queries may use: those that were declared, and reference tables.
    fn scope(&self) -> Scope {
        let mut scope = self.big_queries.known.lock().scope.clone();
        self.add_tables(&mut scope);
        scope
    }

    fn add_tables(&self, scope: &mut Scope) {
        let state = self.state.lock();
        for create in state.declared_tables.values() {
            if let Some(Ok(table)) = state.tables.get(&create.name.text) {
                // A source or view of the same name was there first.
                let _ = scope.add_table(&create.name, table.clone());
            }
        }
    }

    /// Plans a query and lets it run; whether it is new.
    pub(super) fn create_big_query(
        &self,
        name: &Name,
        if_not_exists: bool,
        query: BigQuery,
    ) -> Result<bool, ServiceError> {
        let _changing = self.big_queries.changing.lock();
        {
            // The name is taken from here on, so that no query of an application takes it meanwhile.
            let mut state = self.state.lock();
            if if_not_exists && state.has_query(&name.text) {
                return Ok(false);
            }
            check_free(&state, &name.text)?;
            state.big_query_names.insert(name.text.clone());
        }
        let created = self.start_new(name, if_not_exists, query);
        match &created {
            Ok(()) => tracing::info!(query = name.text, "runs"),
            Err(_) => _ = self.state.lock().big_query_names.remove(&name.text),
        }
        created.map(|()| true)
    }

    fn start_new(&self, name: &Name, if_not_exists: bool, query: BigQuery) -> Result<(), ServiceError> {
        let plan = plan_query(&query, &self.scope())?;
        let running = self.start_flow(&plan, &name.text)?;
        let number = match self.catalog.insert_statement(&query.text) {
            Ok(number) => number,
            Err(error) => {
                running.stop();
                return Err(error.into());
            }
        };
        let statement = Statement::CreateBigQuery { name: name.clone(), if_not_exists, query: query.clone() };
        let (plan, running) = (Some(Arc::new(plan)), Some(Arc::new(running)));
        let one = OneQuery { number, query, is_paused: false, plan, running, problem: None };
        let mut known = self.big_queries.known.lock();
        known.remembered.insert(number, statement);
        known.queries.insert(name.text.clone(), one);
        Ok(())
    }

    fn start_flow(&self, plan: &QueryPlan, name: &str) -> Result<run::Running, ServiceError> {
        if self.config.workers.policy == Policy::Dedicated {
            let message = "big queries need workers that tasks share, and the policy 'dedicated' has a thread for each";
            return Err(ServiceError::new(ErrorKind::Unavailable, message)
                .with_hint("set scheduler.policy to 'group', or run the query with `rivulet run`"));
        }
        let (options, host) = (RunOptions::new(self.config.workers.threads), self.messaging.host());
        run::start(&self.workers, options, &host, plan, name, None)
    }

    /// Has the sources of a big query not be asked any more; whether there is one of that name.
    pub(super) fn pause_big_query(&self, name: &str) -> Result<bool, ServiceError> {
        let _changing = self.big_queries.changing.lock();
        let Some(one) = self.big_queries.known.lock().query(name) else { return Ok(false) };
        match (one.state().0, &one.running) {
            (QueryState::Paused, _) => return Ok(true),
            (QueryState::Running, Some(running)) => {
                self.catalog.set_statement_paused(one.number, true)?;
                running.flow().pause();
            }
            (state, _) => {
                let message = format!("the query '{name}' is {}, so there is nothing to pause", state.name());
                return Err(ServiceError::new(ErrorKind::Conflict, message)
                    .with_hint(format!("DESCRIBE QUERY {} shows more", rivulet_sql::name_in_sql(name))));
            }
        }
        self.big_queries.known.lock().change(name, |one| one.is_paused = true);
        tracing::info!(query = name, "paused");
        Ok(true)
    }

    /// Has a big query go on; `None` if there is none of that name. One that was ended by an error, or could not be started, is
    /// started anew: without state, from the start of its sources.
    pub(super) fn resume_big_query(&self, name: &str) -> Result<Option<Resumed>, ServiceError> {
        let _changing = self.big_queries.changing.lock();
        let Some(one) = self.big_queries.known.lock().query(name) else { return Ok(None) };
        let resumed = match (one.state().0, &one.running) {
            (QueryState::Running, _) => return Ok(Some(Resumed::GoesOn)),
            (QueryState::Ended, _) => {
                let message = format!("the query '{name}' has come to the end of its input");
                return Err(ServiceError::new(ErrorKind::Conflict, message)
                    .with_hint("drop it, and create it again to run it from the start"));
            }
            (QueryState::Paused, Some(running)) => {
                self.catalog.set_statement_paused(one.number, false)?;
                running.flow().resume();
                Resumed::GoesOn
            }
            _ => {
                let number = one.number;
                self.start_anew(name, one)?;
                self.catalog.set_statement_paused(number, false)?;
                Resumed::FromTheStart
            }
        };
        self.big_queries.known.lock().change(name, |one| one.is_paused = false);
        tracing::info!(query = name, "runs again");
        Ok(Some(resumed))
    }

    fn start_anew(&self, name: &str, one: OneQuery) -> Result<(), ServiceError> {
        let plan = Arc::new(plan_query(&one.query, &self.scope())?);
        let before = one.state().1;
        if let Some(running) = one.running {
            // What it has opened is closed first: a port that it listens on is free then.
            self.big_queries.known.lock().change(name, |one| {
                one.running = None;
                one.problem.clone_from(&before);
            });
            close(running);
        }
        let started = self.start_flow(&plan, name);
        self.big_queries.known.lock().change(name, |one| one.plan = Some(plan));
        match started {
            Ok(running) => self.big_queries.known.lock().change(name, |one| {
                one.running = Some(Arc::new(running));
                one.problem = None;
            }),
            Err(error) => {
                let before = before.map_or_else(String::new, |before| format!(" (before that: {before})"));
                let problem = format!("{}{before}", error.message);
                self.big_queries.known.lock().change(name, |one| one.problem = Some(problem));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stops and forgets a big query; whether there was one. What its windows have gathered is lost.
    pub(super) fn drop_big_query(&self, name: &str) -> Result<bool, ServiceError> {
        let _changing = self.big_queries.changing.lock();
        let Some(one) = self.big_queries.known.lock().query(name) else { return Ok(false) };
        self.catalog.remove_statement(one.number)?;
        {
            let mut known = self.big_queries.known.lock();
            known.remembered.remove(&one.number);
            known.queries.remove(name);
        }
        self.state.lock().big_query_names.remove(name);
        if let Some(running) = one.running {
            running.stop();
            if running.wait(STOP_MAX).is_none() {
                tracing::warn!(query = name, "dropped before all of it was written");
            }
        }
        tracing::info!(query = name, "dropped");
        Ok(true)
    }

    /// How a big query is computed.
    pub(super) fn explain_big_query(&self, name: &str) -> Option<Result<String, ServiceError>> {
        let one = self.big_queries.known.lock().query(name)?;
        Some(match &one.plan {
            Some(plan) => Ok(explain_query(plan) + &one.placement()),
            None => {
                let message = format!("'{name}' is not running: {}", one.problem.as_deref().unwrap_or_default());
                Err(ServiceError::new(ErrorKind::Unavailable, message))
            }
        })
    }

    /// How a query would be computed that is not there.
    pub(super) fn explain_query_text(&self, query: &BigQuery) -> Result<String, ServiceError> {
        Ok(explain_query(&plan_query(query, &self.scope())?))
    }

    /// The big queries that look rows up in a reference table.
    pub(super) fn big_queries_with_table(&self, table: &str) -> Vec<String> {
        let known = self.big_queries.known.lock();
        let uses =
            |one: &OneQuery| one.plan.as_ref().is_some_and(|plan| plan.tables.iter().any(|used| used.name() == table));
        known.queries.iter().filter(|(_, one)| uses(one)).map(|(name, _)| name.clone()).collect()
    }

    /// Carries out what the catalog remembers. What cannot be carried out any more is said, and the rest runs.
    pub(super) fn load_big_queries(&self) -> Result<(), ServiceError> {
        let _changing = self.big_queries.changing.lock();
        for stored in self.catalog.statements()? {
            let Some((statement, _)) = rivulet_sql::parse_script(&stored.sql).ok().and_then(|mut one| one.pop()) else {
                tracing::error!(sql = stored.sql, "a remembered statement is not understood by this version");
                continue;
            };
            match &statement {
                Statement::CreateBigQuery { name, query, .. } => {
                    self.state.lock().big_query_names.insert(name.text.clone());
                    let one = self.load_one(&name.text, query, stored.number, stored.paused);
                    self.big_queries.known.lock().queries.insert(name.text.clone(), one);
                }
                _ => {
                    if let Err(error) = self.enter(&statement) {
                        tracing::error!("a remembered statement cannot be carried out: {error}");
                    }
                }
            }
            self.big_queries.known.lock().remembered.insert(stored.number, statement);
        }
        Ok(())
    }

    /// A query as a start of the server leaves it: running, paused with nothing open, or with what is wrong.
    fn load_one(&self, name: &str, query: &BigQuery, number: u64, is_paused: bool) -> OneQuery {
        let query = query.clone();
        let mut one = OneQuery { number, query, is_paused, plan: None, running: None, problem: None };
        let planned = plan_query(&one.query, &self.scope()).map_err(ServiceError::from);
        let loaded = planned.and_then(|plan| {
            one.plan = Some(Arc::new(plan));
            match (&one.plan, is_paused) {
                (Some(plan), false) => self.start_flow(plan, name).map(Some),
                _ => Ok(None),
            }
        });
        match loaded {
            Ok(running) => one.running = running.map(Arc::new),
            Err(error) => {
                tracing::error!(query = name, "a registered query is not running: {error}");
                one.problem = Some(error.message);
            }
        }
        one
    }

    /// Ends the input of all big queries, and gives them time to write what they have in hand.
    pub(super) fn stop_big_queries(&self) {
        let running: Vec<Arc<run::Running>> = {
            let known = self.big_queries.known.lock();
            known.queries.values().filter_map(|one| one.running.clone()).collect()
        };
        running.iter().for_each(|one| one.stop());
        for one in running {
            if one.wait(STOP_MAX).is_none() {
                tracing::warn!("a big query did not come to its end");
            }
        }
    }
}

/// Lets go of what a flow has opened. Whoever looks at its figures may hold it for a moment.
fn close(running: Arc<run::Running>) {
    let (held, deadline) = (Arc::downgrade(&running), Instant::now() + CLOSE_MAX);
    drop(running);
    while held.strong_count() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}
