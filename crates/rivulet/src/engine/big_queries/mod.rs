//! Big queries on a server: sources, sinks and views that are recorded, and flows that run again after a restart.
//!
//! The catalog records statements as they were written, in their order. A start carries them out again, declarations
//! before queries. So what must hold: a statement is recorded only after it was carried out, and nothing is dropped
//! that a recorded statement needs.
//!
//! In reading order: `claim`: which caller may change a query; `readers`: who reads the streams of other servers;
//! `opener`: calls that wait for the world outside; `declared`: sources, sinks and views; this file: queries, from
//! their creation to their end; `saved` and `note`: what outlives the process; `ends`: the sources and sinks of a flow;
//! `life`: the states of a query; `begin`: where a query continues; `burst`: tasks on burst workers; `auto_burst`: the
//! server moves them by itself, and `decisions`: what it remembers of that; `load`: start and end of the server;
//! `replace`: another version of a query continues where the query was; `info` and `health`: what is shown of queries;
//! `select`, `select_rows`, `looked_at` and `whole`: readers that watch rows, how they get them, which rows they may
//! watch, and tables; `watch`: what is done about queries that fail or do not start; `starts` and `crash`: about
//! queries with which the process dies; `memory`: about queries that need more memory than allowed.

mod auto_burst;
mod begin;
mod burst;
mod claim;
mod crash;
mod decisions;
mod declared;
mod ends;
mod functions;
mod health;
mod info;
mod life;
mod load;
mod looked_at;
mod memory;
mod note;
mod opener;
mod readers;
mod replace;
pub(crate) mod saved;
mod select;
mod select_rows;
mod selects;
mod starts;
mod watch;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_dataflow::stage::cut;
use rivulet_sql::{BigQuery, CreateBigQuery, QueryPlan, Scope, Statement, explain_query, plan_query, shown_nodes};
use rivulet_storage::Store;

use super::checkpoints::Checkpoints;
use super::checkpoints::line::LineStatus;
use super::memory::MemoryBound;
use super::queries::Queries;
use super::queries::submit::check_free;
use super::tables::ReferenceTables;
use super::taps::Watched;
use super::threads::Bell;
use crate::burst::{OnWorkers, moves};
use crate::catalog::Catalog;
use crate::run::{self, read_models};
use crate::service::{DataflowInput, DataflowNode, ErrorKind, FullName, Limit, ServiceError, Tenant};
use life::{Life, Started};
use saved::Saved;
use selects::Select;

pub(super) use burst::Burst;
pub(crate) use crash::note_crashes;
pub(super) use functions::Functions;
pub(super) use info::BigQuerySnapshot;
pub(super) use life::Resumed;
pub(super) use opener::Opener;
pub(super) use starts::Starts;

/// How long a dropped query may take to write the rows in flight.
const STOP_MAX: Duration = Duration::from_secs(5);

/// How long a reader of a query's figures may delay the closing of what the query has opened.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// How often a query is planned anew because something it reads was declared anew while it was opened.
const PLANS_MAX: usize = 3;

/// What a server knows of big queries.
///
/// Code that changes a query claims its name first, for as long as it takes to open a source; then it takes `changing`,
/// then `known`. No code waits for anything outside of this process while it holds one of the latter two.
pub(super) struct BigQueries {
    opener: Opener,
    catalog: Arc<Catalog>,
    /// The queries of applications, with which big queries share their names.
    queries: Arc<Queries>,
    tables: Arc<ReferenceTables>,
    /// `None` if state is not saved.
    checkpoints: Option<Arc<Checkpoints>>,
    memory: MemoryBound,
    /// The queries that may end the process.
    starts: Starts,
    /// The names of queries that a caller is changing now.
    claimed: Mutex<BTreeSet<FullName>>,
    released: Condvar,
    /// Held by code that changes declarations or queries, while it writes the catalog.
    changing: Mutex<()>,
    /// SELECT queries, each for one reader. Some of them have ended.
    selects: Mutex<Vec<Select>>,
    on_workers: OnWorkers,
    /// Burst workers that the server starts by itself, if it does.
    pub(super) functions: Option<Arc<Functions>>,
    /// Locked for moments only: queries can be read while another one is started.
    known: Mutex<Known>,
    /// Ring when there is a query, for the threads that watch and that make attempts.
    has_some: [Arc<Bell>; 2],
}

#[derive(Default)]
struct Known {
    spaces: BTreeMap<Tenant, Space>,
    /// The statements in the catalog, by their number there.
    remembered: BTreeMap<u64, Remembered>,
    /// The numbers of the statements whose declarations no query can use.
    absent: BTreeMap<u64, Absence>,
    queries: BTreeMap<FullName, OneQuery>,
}

/// What a tenant has declared.
#[derive(Default)]
struct Space {
    /// Sources, sinks and views. Reference tables are added when a query is planned.
    scope: Scope,
    /// How often the declarations have changed that its queries may read or write.
    changes: u64,
}

/// A statement in the catalog.
#[derive(Clone)]
struct Remembered {
    tenant: Tenant,
    statement: Statement,
}

/// Why a declaration is absent.
#[derive(Clone)]
struct Absence {
    problem: String,
    /// The reason may pass.
    is_tried_again: bool,
}

/// A query, whether it runs or not.
#[derive(Clone)]
struct OneQuery {
    number: u64,
    query: BigQuery,
    /// Its plan, if it could be planned.
    plan: Option<Arc<QueryPlan>>,
    /// Its checkpoints, if any are made.
    saved: Option<Arc<Mutex<Saved>>>,
    /// Whether it runs, and if it does not, why.
    life: Life,
    /// What the burst policy remembers of it.
    automatic: Arc<Mutex<decisions::Automatic>>,
}

impl OneQuery {
    /// Enters a state that its flow has reached by itself.
    fn look(&mut self) {
        self.life.look(self.saved.is_some());
    }

    /// Whether an error has ended the query and took back the rows that were written since its last checkpoint: a start
    /// from there may succeed.
    fn is_undone(&self) -> bool {
        self.life.flow().is_some_and(|running| running.has_checkpoints() && running.flow().is_undone())
    }
}

impl Known {
    /// A query in its current state.
    fn query(&mut self, name: &FullName) -> Option<OneQuery> {
        let one = self.queries.get_mut(name)?;
        one.look();
        Some(one.clone())
    }

    fn change(&mut self, name: &FullName, change: impl FnOnce(&mut OneQuery)) {
        if let Some(one) = self.queries.get_mut(name) {
            change(one);
        }
    }

    /// After a restart it will be known that this query has come to its end, unless it was dropped meanwhile.
    fn note_end(&mut self, name: &FullName, number: u64) {
        if let Some(one) = self.queries.get_mut(name).filter(|one| one.number == number) {
            one.life.end();
        }
    }
}

impl BigQueries {
    /// Without queries until [`BigQueries::load`].
    pub(super) fn new(
        opener: Opener,
        catalog: Arc<Catalog>,
        queries: Arc<Queries>,
        tables: Arc<ReferenceTables>,
        checkpoints: Option<Arc<Checkpoints>>,
        memory: MemoryBound,
        (starts, functions): (Starts, Option<Arc<Functions>>),
    ) -> Self {
        let (claimed, released, changing, selects, on_workers, known) = Default::default();
        Self {
            opener,
            catalog,
            queries,
            tables,
            checkpoints,
            memory,
            starts,
            claimed,
            released,
            changing,
            selects,
            on_workers,
            functions,
            known,
            has_some: Default::default(),
        }
    }

    /// Saves the state of a query, or that it has come to its end. Returns the status of its line; `None` for a query
    /// that was not started.
    fn save(&self, name: &FullName, one: &OneQuery, saved: &mut Saved, is_asked: bool) -> Option<LineStatus> {
        let (plan, running) = (one.plan.as_ref()?, one.life.flow()?);
        // A failure is in the status and the log.
        let committed = saved.save(plan, running, is_asked).ok().flatten();
        if saved.has_ended() {
            self.known.lock().note_end(name, one.number);
        }
        Some(saved.status(committed.as_ref()))
    }

    /// The names that a tenant's big queries may use: declared names, and reference tables.
    fn scope(&self, tenant: &Tenant) -> Scope {
        let declared = self.known.lock().spaces.get(tenant).map(|space| space.scope.clone());
        let mut scope = declared.unwrap_or_default();
        self.tables.add_to(tenant, &mut scope, None);
        scope
    }

    /// The same, and the models that a query calls, as their files are now.
    fn scope_of(&self, tenant: &Tenant, query: &BigQuery) -> Result<Scope, ServiceError> {
        let mut scope = self.scope(tenant);
        if !query.models().is_empty() {
            let (query, files) = (query.clone(), self.opener.permitted.files(tenant));
            let read = move || read_models(&query, &files);
            let models = self.opener.call("reading a model", self.opener.limit(), read)?;
            // A start may find another version than the checkpoint was made with.
            models.iter().for_each(|(file, model)| tracing::info!(file, "read the model {:016x}", model.version()));
            scope.add_models(models);
        }
        Ok(scope)
    }

    /// Plans and starts a query of a tenant. Returns whether it is new.
    pub(super) fn create(&self, tenant: &Tenant, create: CreateBigQuery) -> Result<bool, ServiceError> {
        let name = tenant.named(&create.name.text);
        let _claim = self.claim(&name)?;
        self.create_one(&name, create)
    }

    /// The same for a caller that has claimed the name.
    fn create_one(&self, name: &FullName, create: CreateBigQuery) -> Result<bool, ServiceError> {
        {
            // The name is taken from here on, so that no query of an application takes it meanwhile.
            let mut state = self.queries.state.lock();
            if create.if_not_exists && state.has_query(name) {
                return Ok(false);
            }
            check_free(&state, &name.tenant, &name.name)?;
            let quota = self.queries.quotas.of(&name.tenant);
            quota.admit(Limit::BigQueries, state.big_queries(&name.tenant) as u64)?;
            quota.admit_measured(Limit::StateBytes)?;
            state.big_query_names.insert(name.clone());
        }
        let created = self.start_new(name, create);
        match &created {
            Ok(()) => tracing::info!(query = name.in_log(), "runs"),
            Err(_) => _ = self.queries.state.lock().big_query_names.remove(name),
        }
        created.map(|()| true)
    }

    fn start_new(&self, name: &FullName, create: CreateBigQuery) -> Result<(), ServiceError> {
        let (tenant, query) = (&name.tenant, &create.query);
        self.memory.admit(1, 0)?;
        // One of that name may have been dropped by a process that was killed.
        self.opener.forget_links(name);
        let mut plans = 0;
        let (plan, running, changing) = loop {
            let changes = self.declarations(tenant);
            let plan = Arc::new(plan_query(query, &self.scope_of(tenant, query)?)?);
            self.check_query(name, &plan)?;
            let running = self.opener.start(&plan, name, None, self.tap_of(name, &plan))?;
            let changing = self.changing.lock();
            if self.declarations(tenant) == changes && !self.opener.is_stopped() {
                break (plan, running, changing);
            }
            drop(changing);
            running.cancel();
            close(Arc::new(running));
            self.opener.check_not_stopping()?;
            plans += 1;
            if plans == PLANS_MAX {
                let message = "what the query reads or writes was declared anew while it was opened";
                return Err(ServiceError::new(ErrorKind::Conflict, message).with_hint("create it once more"));
            }
        };
        let number = match self.catalog.insert_statement(tenant, &query.text) {
            Ok(number) => number,
            Err(error) => {
                running.stop();
                return Err(error.into());
            }
        };
        // From here on nothing that the query needs can be dropped.
        let statement = Statement::CreateBigQuery(Box::new(create.clone()));
        let remembered = Remembered { tenant: tenant.clone(), statement };
        self.known.lock().remembered.insert(number, remembered);
        drop(changing);
        let saved = match self.new_line(name, number, &query.text) {
            Ok(saved) => saved,
            Err(error) => {
                running.stop();
                self.known.lock().remembered.remove(&number);
                self.catalog.remove_statement(number)?;
                return Err(error);
            }
        };
        self.starts.begin(number);
        let (name, query) = (name.clone(), query.clone());
        let (plan, life) = (Some(plan), Life::Running(Arc::new(running)));
        let one = OneQuery { number, query, plan, saved, life, automatic: Default::default() };
        self.known.lock().queries.insert(name, one);
        self.has_some.iter().for_each(|bell| bell.ring());
        Ok(())
    }

    /// A number that changes when the declarations change that queries of a tenant may read or write.
    fn declarations(&self, tenant: &Tenant) -> u64 {
        self.known.lock().spaces.get(tenant).map_or(0, |space| space.changes)
    }

    /// The store of the checkpoints, and the number that are retained, if any are made.
    fn store(&self) -> Option<(&Arc<Store>, usize)> {
        self.checkpoints.as_ref().map(|checkpoints| checkpoints.store())
    }

    /// An empty line of checkpoints, if any are made.
    ///
    /// # Errors
    /// The line cannot be made. The query is refused: a query that would be lost with the process must not look like
    /// one that is saved.
    fn new_line(&self, name: &FullName, number: u64, text: &str) -> Result<Option<Arc<Mutex<Saved>>>, ServiceError> {
        let Some((store, _)) = self.store() else { return Ok(None) };
        // Checkpoints from before the catalog was restored: a restored catalog gives numbers out again.
        saved::forget(store, number)?;
        self.line(name, number, text)
    }

    /// The line of checkpoints of a query, if any are made.
    fn line(&self, name: &FullName, number: u64, text: &str) -> Result<Option<Arc<Mutex<Saved>>>, ServiceError> {
        let Some((store, retained)) = self.store() else { return Ok(None) };
        Saved::open(store, &name.in_log(), number, text, retained).map(|saved| Some(Arc::new(Mutex::new(saved))))
    }

    /// The line of checkpoints of a known query, if any are made. The line may have failed to open when the server
    /// started: without it the query would begin anew. For code that changes big queries.
    fn saved_of(&self, name: &FullName) -> Result<Option<Arc<Mutex<Saved>>>, ServiceError> {
        let Some(one) = self.known.lock().query(name) else { return Ok(None) };
        if one.saved.is_some() {
            return Ok(one.saved);
        }
        let saved = self.line(name, one.number, &one.query.text)?;
        self.known.lock().change(name, |one| one.saved.clone_from(&saved));
        Ok(saved)
    }

    /// Saves the state of each big query. Returns the status of their lines, by name.
    pub(super) fn save_all(&self, is_asked: bool) -> Vec<(FullName, LineStatus)> {
        let all = self.that(|_| true).into_iter();
        all.filter_map(|(name, one)| {
            let mut saved = one.saved.as_ref()?.lock();
            let line = self.save(&name, &one, &mut saved, is_asked)?;
            Some((name, line))
        })
        .collect()
    }

    /// Stops reading the sources of a big query. Returns whether there is one of that name.
    pub(super) fn pause(&self, name: &FullName) -> Result<bool, ServiceError> {
        let _claim = self.claim(name)?;
        let Some(one) = self.known.lock().query(name) else { return Ok(false) };
        match &one.life {
            Life::Paused(_) => return Ok(true),
            Life::Running(running) => {
                self.catalog.set_statement_paused(one.number, true)?;
                running.flow().pause();
            }
            Life::Ending(_) => return Err(has_come_to_its_end(name)),
            other => {
                let state = match other.state().name() {
                    "failed" => "has failed".to_owned(),
                    state => format!("is {state}"),
                };
                let message = format!("the query '{name}' {state}, so there is nothing to pause");
                return Err(ServiceError::new(ErrorKind::Conflict, message)
                    .with_hint(format!("DESCRIBE QUERY {} shows more", rivulet_sql::name_in_sql(&name.name))));
            }
        }
        self.known.lock().change(name, |one| one.life.pause());
        tracing::info!(query = name.in_log(), "paused");
        Ok(true)
    }

    /// Resumes a big query; `None` if there is none of that name. A query that was ended by an error, or could not be
    /// started, is started from its last checkpoint. Without a checkpoint it is started anew: without state, from the
    /// start of its sources.
    pub(super) fn resume(&self, name: &FullName) -> Result<Option<Resumed>, ServiceError> {
        let _claim = self.claim(name)?;
        self.opener.check_not_stopping()?;
        let Some(one) = self.known.lock().query(name) else { return Ok(None) };
        let resumed = match &one.life {
            Life::Running(_) | Life::Ending(_) => return Ok(Some(Resumed::GoesOn)),
            Life::Ended(_) => return Err(has_come_to_its_end(name)),
            Life::Paused(Some(running)) => {
                self.catalog.set_statement_paused(one.number, false)?;
                running.flow().resume();
                self.known.lock().change(name, |one| one.life.resume());
                Resumed::GoesOn
            }
            Life::Paused(None) | Life::NotRunning { .. } | Life::Failed { .. } => {
                let (number, had_failed) = (one.number, matches!(one.life, Life::Failed { .. }));
                let resumed = self.start_once_more(name, one)?;
                self.catalog.set_statement_paused(number, false)?;
                if had_failed {
                    self.catalog.set_statement_failure(number, None)?;
                }
                resumed
            }
        };
        tracing::info!(query = name.in_log(), "runs again");
        Ok(Some(resumed))
    }

    fn start_once_more(&self, name: &FullName, one: OneQuery) -> Result<Resumed, ServiceError> {
        let plan = Arc::new(plan_query(&one.query, &self.scope_of(&name.tenant, &one.query)?)?);
        if let Some(running) = one.life.into_flow() {
            // What the query has opened is closed first: a port that it listens on is free then.
            self.known.lock().change(name, |one| one.life.forget_flow());
            close(running);
        }
        let saved = self.saved_of(name)?;
        self.starts.begin(one.number);
        let started = self.start_saved(name, &one.query.text, &plan, saved.as_ref());
        let mut known = self.known.lock();
        known.change(name, |one| one.plan = Some(plan));
        match started {
            Ok(Started::Runs(resumed, running)) => {
                known.change(name, |one| (one.life, one.automatic) = (Life::Running(running), Default::default()));
                Ok(resumed)
            }
            Ok(Started::HasEnded) => {
                known.change(name, |one| one.life.end());
                Err(has_come_to_its_end(name))
            }
            Err(error) => {
                known.change(name, |one| one.life.hinder(error.message.clone()));
                Err(error)
            }
        }
    }

    /// Stops and drops a big query. Returns whether there was one. The content of its open windows is lost.
    pub(super) fn drop_query(&self, name: &FullName) -> Result<bool, ServiceError> {
        let _claim = self.claim(name)?;
        let Some(one) = self.known.lock().query(name) else { return Ok(false) };
        {
            let _changing = self.changing.lock();
            self.catalog.remove_statement(one.number)?;
            let mut known = self.known.lock();
            known.remembered.remove(&one.number);
            known.queries.remove(name);
        }
        self.queries.state.lock().big_query_names.remove(name);
        self.queries.taps.forget(&Watched::BigQuery(name.clone()));
        if let Some(running) = one.life.into_flow() {
            running.stop();
            if running.wait(STOP_MAX).is_none() {
                tracing::warn!(query = name.in_log(), "dropped before all of it was written");
            }
            close(running);
        }
        self.opener.forget_links(name);
        if let (Some(saved), Some((store, _))) = (&one.saved, self.store()) {
            let _saves_no_more = saved.lock();
            if let Err(error) = saved::forget(store, one.number) {
                tracing::warn!(query = name.in_log(), "checkpoints of a query that is gone are left for now: {error}");
            }
        }
        tracing::info!(query = name.in_log(), "dropped");
        Ok(true)
    }

    /// The plan of a big query, as text.
    pub(super) fn explain(&self, name: &FullName) -> Option<Result<String, ServiceError>> {
        let one = self.known.lock().query(name)?;
        Some(plan_of(name, &one).map(|plan| {
            let stays = self.stays(&name.tenant, one.life.flow().map(|running| &**running));
            explain_query(plan) + &one.placement(plan, stays)
        }))
    }

    /// The plan of a big query, node by node.
    pub(super) fn dataflow(&self, name: &FullName) -> Result<Vec<DataflowNode>, ServiceError> {
        let one = self.known.lock().query(name);
        let one = one.ok_or_else(|| ServiceError::not_found(format!("there is no big query '{name}'")))?;
        let input = |(from, how): (usize, String)| DataflowInput { from: from as u64 + 1, how };
        let nodes = shown_nodes(plan_of(name, &one)?).into_iter().enumerate().map(|(place, node)| DataflowNode {
            number: place as u64 + 1,
            operator: node.operator,
            has_state: node.has_state,
            details: node.details,
            inputs: node.inputs.into_iter().map(input).collect(),
        });
        Ok(nodes.collect())
    }

    /// The plan that a query of a tenant would have, without creating it.
    pub(super) fn explain_text(&self, tenant: &Tenant, query: &BigQuery) -> Result<String, ServiceError> {
        let plan = plan_query(query, &self.scope_of(tenant, query)?)?;
        // In how many instances they run is known when the sources are open.
        let stages = cut(&plan.dataflow, &vec![1; plan.sources.len()], 1);
        Ok(explain_query(&plan) + &moves::explain(&plan, &stages, &[], self.stays(tenant, None)))
    }
}

/// The plan of a query, which has one while it can run.
fn plan_of<'q>(name: &FullName, one: &'q OneQuery) -> Result<&'q QueryPlan, ServiceError> {
    let missing = || {
        let message = format!("'{name}' is not running: {}", one.life.problem());
        ServiceError::new(ErrorKind::Unavailable, message)
    };
    one.plan.as_deref().ok_or_else(missing)
}

/// The error for resuming a query whose input has ended.
fn has_come_to_its_end(name: &FullName) -> ServiceError {
    let message = format!("the query '{name}' has come to the end of its input");
    ServiceError::new(ErrorKind::Conflict, message).with_hint("drop it, and create it again to run it from the start")
}

/// Closes what a flow has opened that has come to its end, well or not. A reader of its figures may hold it for a
/// moment.
fn close(running: Arc<run::Running>) {
    running.flow().wait_closed(CLOSE_MAX);
    let (held, deadline) = (Arc::downgrade(&running), Instant::now() + CLOSE_MAX);
    // Closing a file, too, waits for a file system that may never answer.
    let dropped = std::thread::Builder::new().name("rivulet-close".into()).spawn(move || drop(running));
    if let Err(error) = dropped {
        tracing::warn!("no thread can be started to close what a query has opened: {error}");
    }
    while held.strong_count() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}
