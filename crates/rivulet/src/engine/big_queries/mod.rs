//! Big queries on a server: sources, sinks and views that are remembered, and flows that run again after a restart.
//!
//! The catalog remembers statements as they were written, in their order; a start carries them out again, what is
//! declared before the queries. So what must hold: a statement is remembered only after it was carried out, and nothing
//! is dropped that one which is remembered needs.
//!
//! In reading order: `claim`: who changes a query; `declared`: sources, sinks and views; here: queries, from their
//! creation to their end; `saved`: what outlives the process; `life`: the states of a query; `replace`: another version
//! of a query goes on where one was; `begin`: where one goes on whose results are final by themselves; `info`: what is
//! shown of them; `watch`: what is done about those that fail or do not start; `starts` and `crash`: about those at
//! which the process dies; `memory`: about those that need more than there may be.

mod claim;
mod crash;
mod declared;
mod info;
mod life;
mod memory;
mod replace;
pub(crate) mod saved;
mod begin;
mod starts;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_connectors::connector::Host;
use rivulet_dataflow::Snapshot;
use rivulet_sql::{BigQuery, CreateBigQuery, QueryPlan, Scope, Statement, Stored, explain_query, plan_query};
use rivulet_storage::Store;

use super::Engine;
use super::checkpoints::line::LineStatus;
use super::outside::{OPEN_MAX, START_MAX, START_MIN};
use super::queries::submit::check_free;
use crate::run::{self, RunOptions};
use crate::service::{ErrorKind, ServiceError};
use begin::{Begin, begin_where_final};
use life::Life;
use saved::Saved;
use starts::{Starts, Verdict};

pub(crate) use crash::note_crashes;
pub(super) use declared::Declared;
use declared::{Absence, title};
pub(super) use info::BigQuerySnapshot;
pub(super) use watch::start as watch;

/// How long a dropped query may take to write what it has in hand.
const STOP_MAX: Duration = Duration::from_secs(5);

/// How long whoever looks at the figures of a query may keep what it has opened from being closed.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// What is said of a query that waits because the server died.
const WAITS: &str = "the server died twice in a row soon after it was started with this query and others, so they are started one after \
                     the other";

/// What is said of a query at which the server dies.
const IS_HELD: &str = "the server died twice in a row soon after it was started with this query, by a crash or for want of memory, so it is \
                       not started by itself; RESUME QUERY starts it";

/// How often a query is planned anew because what it reads was declared anew while it was opened.
const PLANS_MAX: usize = 3;

/// What a server knows of big queries.
///
/// Who changes a query claims its name first, for as long as it takes to open a source; then takes `changing`, then
/// `known`. Nothing outside of this process is waited for under the latter two.
#[derive(Default)]
pub(super) struct BigQueries {
    /// Which of them may end the process.
    starts: Starts,
    /// The names of queries that somebody changes now.
    claimed: Mutex<BTreeSet<String>>,
    released: Condvar,
    /// Held by whoever changes what there is, while the catalog is written.
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
    /// Those of them, by number, that no query can use.
    absent: BTreeMap<u64, Absence>,
    queries: BTreeMap<String, OneQuery>,
    /// How often what queries may read or write has changed.
    changes: u64,
}

/// A query, whether it runs or not.
#[derive(Clone)]
struct OneQuery {
    number: u64,
    query: BigQuery,
    /// How it is computed, where it could be planned.
    plan: Option<Arc<QueryPlan>>,
    /// Its checkpoints, where any are made.
    saved: Option<Arc<Mutex<Saved>>>,
    /// Whether it runs, and if not, why.
    life: Life,
}

/// What resuming a query came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resumed {
    /// It went on with what it had, or was not paused.
    GoesOn,
    /// It was started where its last checkpoint was made.
    FromCheckpoint(u64),
    /// It was started anew.
    FromTheStart,
}

/// What starting a query came to.
enum Started {
    Runs(Resumed, Arc<run::Running>),
    /// It has come to the end of its input, which was not known.
    HasEnded,
}

impl Started {
    /// Notes it of the query that was started.
    fn enter(self, life: &mut Life) {
        match self {
            Self::Runs(_, running) => life.start(running),
            Self::HasEnded => life.end(),
        }
    }
}

impl OneQuery {
    /// Takes note of what has become of it by itself.
    fn look(&mut self) {
        self.life.look(self.saved.is_some());
    }

    /// Whether an error has ended it and took back what was written since its last checkpoint: it may go well from
    /// there.
    fn is_undone(&self) -> bool {
        self.life.flow().is_some_and(|running| running.has_checkpoints() && running.flow().is_undone())
    }

    /// Says of one that has come to its end that its result is not there, as on another machine than it ran on: it does
    /// not run again by itself, for what it has written elsewhere would be there twice.
    fn look_for_result(&mut self, name: &str, is_there: impl FnOnce(String) -> bool) {
        let Life::Ended(end) = &mut self.life else { return };
        let sink = self.plan.as_ref().and_then(|plan| plan.output.sink.as_ref());
        let Some(file) = sink.and_then(|sink| run::CONNECTORS.path_of(&sink.address)) else { return };
        if is_there(file.to_owned()) {
            return;
        }
        let text = format!(
            "its result was written to {file}, which is not there: it is where the query ran before, or was taken away; to compute it once more, drop the query and create it again"
        );
        tracing::warn!(query = name, "a query has come to its end, and {text}");
        end.result_is_elsewhere = Some(text);
    }
}

impl Known {
    /// A query, and what has become of it by now.
    fn query(&mut self, name: &str) -> Option<OneQuery> {
        let one = self.queries.get_mut(name)?;
        one.look();
        Some(one.clone())
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut OneQuery)) {
        if let Some(one) = self.queries.get_mut(name) {
            change(one);
        }
    }

    /// A restart will know that this query has come to its end, unless it was dropped meanwhile.
    fn note_end(&mut self, name: &str, number: u64) {
        if let Some(one) = self.queries.get_mut(name).filter(|one| one.number == number) {
            one.life.end();
        }
    }
}

impl BigQueries {
    /// Before anything runs: with what the last server on this data folder has left of its starts.
    pub(super) fn open(folder: &Path) -> Self {
        Self { starts: Starts::open(folder, Path::new("/")), ..Self::default() }
    }

    /// Saves where a query is, or that it has come to its end. Returns how its line stands; nothing of one that was not
    /// started.
    fn save(&self, name: &str, one: &OneQuery, saved: &mut Saved, is_asked: bool) -> Option<LineStatus> {
        let (plan, running) = (one.plan.as_ref()?, one.life.flow()?);
        // Its failure is in the status and the log.
        let committed = saved.save(plan, running, is_asked).ok().flatten();
        if saved.has_ended() {
            self.known.lock().note_end(name, one.number);
        }
        Some(saved.status(committed.as_ref()))
    }

    /// The server stops: what ends it now is no query.
    pub(super) fn begin_to_stop(&self) {
        self.starts.close();
    }
}

impl Engine {
    /// The names that big queries may use: those that were declared, and reference tables.
    fn scope(&self) -> Scope {
        let mut scope = self.big_queries.known.lock().scope.clone();
        self.tables.add_to(&mut scope, None);
        scope
    }

    /// Plans a query and lets it run; whether it is new.
    pub(super) fn create_big_query(&self, create: CreateBigQuery) -> Result<bool, ServiceError> {
        let _claim = self.big_queries.claim(&create.name.text)?;
        self.create_one(create)
    }

    /// The same for who has claimed the name.
    fn create_one(&self, create: CreateBigQuery) -> Result<bool, ServiceError> {
        let (name, if_not_exists) = (create.name.clone(), create.if_not_exists);
        {
            // The name is taken from here on, so that no query of an application takes it meanwhile.
            let mut state = self.queries.state.lock();
            if if_not_exists && state.has_query(&name.text) {
                return Ok(false);
            }
            check_free(&state, &name.text)?;
            state.big_query_names.insert(name.text.clone());
        }
        let created = self.start_new(create);
        match &created {
            Ok(()) => tracing::info!(query = name.text, "runs"),
            Err(_) => _ = self.queries.state.lock().big_query_names.remove(&name.text),
        }
        created.map(|()| true)
    }

    fn start_new(&self, create: CreateBigQuery) -> Result<(), ServiceError> {
        let CreateBigQuery { name, query, .. } = &create;
        self.memory.admit(1, 0)?;
        let mut plans = 0;
        let (plan, running, changing) = loop {
            let changes = self.declarations();
            let plan = Arc::new(plan_query(query, &self.scope())?);
            let running = self.start_flow(&plan, &name.text, None)?;
            let changing = self.big_queries.changing.lock();
            if self.declarations() == changes && !self.is_stopped.load(Ordering::Acquire) {
                break (plan, running, changing);
            }
            drop(changing);
            running.cancel();
            close(Arc::new(running));
            self.check_not_stopping()?;
            plans += 1;
            if plans == PLANS_MAX {
                let message = "what the query reads or writes was declared anew while it was opened";
                return Err(ServiceError::new(ErrorKind::Conflict, message).with_hint("create it once more"));
            }
        };
        let number = match self.catalog.insert_statement(&query.text) {
            Ok(number) => number,
            Err(error) => {
                running.stop();
                return Err(error.into());
            }
        };
        // From here on nothing that it needs is dropped.
        let remembered = Statement::CreateBigQuery(Box::new(create.clone()));
        self.big_queries.known.lock().remembered.insert(number, remembered);
        drop(changing);
        let saved = match self.new_line(&name.text, number, &query.text) {
            Ok(saved) => saved,
            Err(error) => {
                running.stop();
                self.big_queries.known.lock().remembered.remove(&number);
                self.catalog.remove_statement(number)?;
                return Err(error);
            }
        };
        self.big_queries.starts.begin(number);
        let (name, query) = (name.text.clone(), query.clone());
        let (plan, life) = (Some(plan), Life::Running(Arc::new(running)));
        let one = OneQuery { number, query, plan, saved, life };
        self.big_queries.known.lock().queries.insert(name, one);
        Ok(())
    }

    /// A number that is another one when what queries may read or write has changed.
    fn declarations(&self) -> u64 {
        self.big_queries.known.lock().changes
    }

    /// Where checkpoints lie, and how many are kept, if any are made.
    fn store(&self) -> Option<(&Arc<Store>, usize)> {
        self.checkpoints.as_ref().map(|checkpoints| checkpoints.store())
    }

    /// An empty line of checkpoints, if any are made.
    ///
    /// # Errors
    /// There can be none: a query that would be lost with the process is not taken for one that is not.
    fn new_line(&self, name: &str, number: u64, text: &str) -> Result<Option<Arc<Mutex<Saved>>>, ServiceError> {
        let Some((store, _)) = self.store() else { return Ok(None) };
        // Of a catalog that was restored, which gives numbers out again.
        saved::forget(store, number)?;
        self.line(name, number, text)
    }

    /// The line of checkpoints of a query, if any are made.
    fn line(&self, name: &str, number: u64, text: &str) -> Result<Option<Arc<Mutex<Saved>>>, ServiceError> {
        let Some((store, retained)) = self.store() else { return Ok(None) };
        Saved::open(store, name, number, text, retained).map(|saved| Some(Arc::new(Mutex::new(saved))))
    }

    /// The line of checkpoints of a query that is known, if any are made. It could not be opened when the server
    /// started, perhaps: without it the query would begin anew. For who changes big queries.
    fn saved_of(&self, name: &str) -> Result<Option<Arc<Mutex<Saved>>>, ServiceError> {
        let Some(one) = self.big_queries.known.lock().query(name) else { return Ok(None) };
        if one.saved.is_some() {
            return Ok(one.saved);
        }
        let saved = self.line(name, one.number, &one.query.text)?;
        self.big_queries.known.lock().change(name, |one| one.saved.clone_from(&saved));
        Ok(saved)
    }

    /// Saves where each big query is. Returns how their lines stand, by name.
    pub(super) fn save_big_queries(&self, is_asked: bool) -> Vec<(String, LineStatus)> {
        let all = self.big_queries.that(|_| true).into_iter();
        all.filter_map(|(name, one)| {
            let mut saved = one.saved.as_ref()?.lock();
            let line = self.big_queries.save(&name, &one, &mut saved, is_asked)?;
            Some((name, line))
        })
        .collect()
    }

    /// Has a query run from its last checkpoint on, or from the start if it has none. With `text` it was planned;
    /// another version may have taken over since.
    fn start_saved(
        &self,
        name: &str,
        text: &str,
        plan: &Arc<QueryPlan>,
        saved: Option<&Arc<Mutex<Saved>>>,
    ) -> Result<Started, ServiceError> {
        let mut found = None;
        if let Some(saved) = saved {
            let mut saved = saved.lock();
            if !saved.is_of(text) {
                let message = format!("another version of '{name}' has taken over");
                return Err(ServiceError::new(ErrorKind::Conflict, message));
            }
            let (newest, problems) = saved.restore(plan)?;
            let begin = self.begin_where_final(plan, name, &mut saved, newest);
            self.note_damage(name, &problems, &begin);
            found = match begin? {
                Begin::At(found) => found,
                Begin::HasEnded => return Ok(Started::HasEnded),
            };
        }
        let (resumed, snapshot) = match found {
            Some((epoch, snapshot)) => (Resumed::FromCheckpoint(epoch), Some(snapshot)),
            None => (Resumed::FromTheStart, None),
        };
        let running = Arc::new(self.start_flow(plan, name, snapshot)?);
        if let Resumed::FromCheckpoint(epoch) = resumed {
            tracing::info!(query = name, epoch, "goes on from its checkpoint");
        }
        Ok(Started::Runs(resumed, running))
    }

    /// Says that checkpoints of a query are damaged, if any are, and what that means for how it begins.
    fn note_damage(&self, name: &str, problems: &[String], begin: &Result<Begin, ServiceError>) {
        if problems.is_empty() {
            return;
        }
        let goes_on = match begin {
            Ok(Begin::At(Some((epoch, _)))) => {
                format!("it goes on from checkpoint {epoch}, and what was written since then may come twice")
            }
            Ok(Begin::At(None)) => "it begins anew, and what was written before may come twice".to_owned(),
            Ok(Begin::HasEnded) => "it has come to the end of its input all the same".to_owned(),
            Err(_) => "it does not run".to_owned(),
        };
        let problem = format!("checkpoints of the query '{name}' are damaged: {}; {goes_on}", problems.join("; "));
        tracing::error!("{problem}");
        self.checkpoints.iter().for_each(|checkpoints| checkpoints.note_damage(problem.clone()));
    }

    /// What a query finds in this process.
    fn host_of(&self, name: &str) -> Host {
        Host {
            files: self.files.clone(),
            server: self.server_id.clone(),
            query: name.to_owned(),
            ..self.messaging.host()
        }
    }

    /// How long something may take that is opened now.
    fn open_limit(&self) -> Duration {
        match self.start_ends.get() {
            Some(ends) if !self.has_started.load(Ordering::Acquire) => {
                ends.saturating_duration_since(Instant::now()).max(START_MIN)
            }
            _ => OPEN_MAX,
        }
    }

    /// Where a query goes on of which `found` is the newest checkpoint.
    fn begin_where_final(
        &self,
        plan: &Arc<QueryPlan>,
        name: &str,
        saved: &mut Saved,
        found: Option<(u64, Snapshot)>,
    ) -> Result<Begin, ServiceError> {
        begin_where_final(plan, name, saved, found, &|snapshot| {
            let (plan, host, snapshot) = (plan.clone(), self.host_of(name), snapshot.clone());
            let what = format!("asking the sink of '{name}' where it is");
            self.outside
                .call(&what, self.open_limit(), &self.is_stopped, move || run::final_up_to(&plan, &host, &snapshot))
        })
    }

    fn start_flow(
        &self,
        plan: &Arc<QueryPlan>,
        name: &str,
        snapshot: Option<Snapshot>,
    ) -> Result<run::Running, ServiceError> {
        let policy = self.config.workers.policy;
        if policy.has_worker_for_each_task() {
            let name = policy.name;
            let message =
                format!("big queries need workers that tasks share, and the policy '{name}' has a thread for each");
            return Err(
                ServiceError::new(ErrorKind::Unavailable, message).with_hint("run the query with `rivulet run`")
            );
        }
        let (options, host) = (RunOptions::new(self.config.workers.threads), self.host_of(name));
        let checkpoints = self.config.checkpoint.is_some().then_some(snapshot);
        let (of_plan, query) = (plan.clone(), name.to_owned());
        let open = move || run::Opened::open(options, &host, &of_plan, &query, None, checkpoints);
        let what = format!("opening what '{name}' reads and writes");
        let opened = self.outside.call(&what, self.open_limit(), &self.is_stopped, open);
        // Sources and sinks were declared in other scripts, in which the places of their errors are.
        let without_place = |error| ServiceError { line: None, column: None, ..error };
        opened.and_then(|opened| opened.start(&self.workers)).map_err(without_place)
    }

    /// Has the sources of a big query not be asked any more; whether there is one of that name.
    pub(super) fn pause_big_query(&self, name: &str) -> Result<bool, ServiceError> {
        let _claim = self.big_queries.claim(name)?;
        let Some(one) = self.big_queries.known.lock().query(name) else { return Ok(false) };
        match &one.life {
            Life::Paused(_) => return Ok(true),
            Life::Running(running) => {
                self.catalog.set_statement_paused(one.number, true)?;
                running.flow().pause();
            }
            Life::Ending(_) => return Err(has_come_to_its_end(name)),
            other => {
                let message = format!("the query '{name}' is {}, so there is nothing to pause", other.state().name());
                return Err(ServiceError::new(ErrorKind::Conflict, message)
                    .with_hint(format!("DESCRIBE QUERY {} shows more", rivulet_sql::name_in_sql(name))));
            }
        }
        self.big_queries.known.lock().change(name, |one| one.life.pause());
        tracing::info!(query = name, "paused");
        Ok(true)
    }

    /// Refuses what would run behind the last checkpoint of a server that stops.
    fn check_not_stopping(&self) -> Result<(), ServiceError> {
        match self.is_stopped.load(Ordering::Acquire) {
            true => Err(ServiceError::new(ErrorKind::Unavailable, "the server is stopping")),
            false => Ok(()),
        }
    }

    /// Has a big query go on; `None` if there is none of that name. One that was ended by an error, or could not be
    /// started, is started from its last checkpoint; without one anew: without state, from the start of its sources.
    pub(super) fn resume_big_query(&self, name: &str) -> Result<Option<Resumed>, ServiceError> {
        let _claim = self.big_queries.claim(name)?;
        self.check_not_stopping()?;
        let Some(one) = self.big_queries.known.lock().query(name) else { return Ok(None) };
        let resumed = match &one.life {
            Life::Running(_) | Life::Ending(_) => return Ok(Some(Resumed::GoesOn)),
            Life::Ended(_) => return Err(has_come_to_its_end(name)),
            Life::Paused(Some(running)) => {
                self.catalog.set_statement_paused(one.number, false)?;
                running.flow().resume();
                self.big_queries.known.lock().change(name, |one| one.life.resume());
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
        tracing::info!(query = name, "runs again");
        Ok(Some(resumed))
    }

    fn start_once_more(&self, name: &str, one: OneQuery) -> Result<Resumed, ServiceError> {
        let plan = Arc::new(plan_query(&one.query, &self.scope())?);
        if let Some(running) = one.life.into_flow() {
            // What it has opened is closed first: a port that it listens on is free then.
            self.big_queries.known.lock().change(name, |one| one.life.forget_flow());
            close(running);
        }
        let saved = self.saved_of(name)?;
        self.big_queries.starts.begin(one.number);
        let started = self.start_saved(name, &one.query.text, &plan, saved.as_ref());
        let mut known = self.big_queries.known.lock();
        known.change(name, |one| one.plan = Some(plan));
        match started {
            Ok(Started::Runs(resumed, running)) => {
                known.change(name, |one| one.life = Life::Running(running));
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

    /// Stops and forgets a big query; whether there was one. What its windows have gathered is lost.
    pub(super) fn drop_big_query(&self, name: &str) -> Result<bool, ServiceError> {
        let _claim = self.big_queries.claim(name)?;
        let Some(one) = self.big_queries.known.lock().query(name) else { return Ok(false) };
        {
            let _changing = self.big_queries.changing.lock();
            self.catalog.remove_statement(one.number)?;
            let mut known = self.big_queries.known.lock();
            known.remembered.remove(&one.number);
            known.queries.remove(name);
        }
        self.queries.state.lock().big_query_names.remove(name);
        if let Some(running) = one.life.into_flow() {
            running.stop();
            if running.wait(STOP_MAX).is_none() {
                tracing::warn!(query = name, "dropped before all of it was written");
            }
            close(running);
        }
        if let (Some(saved), Some((store, _))) = (&one.saved, self.store()) {
            let _saves_no_more = saved.lock();
            if let Err(error) = saved::forget(store, one.number) {
                tracing::warn!(query = name, "checkpoints of a query that is gone are left for now: {error}");
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
                let message = format!("'{name}' is not running: {}", one.life.problem());
                Err(ServiceError::new(ErrorKind::Unavailable, message))
            }
        })
    }

    /// How a query would be computed that is not there.
    pub(super) fn explain_query_text(&self, query: &BigQuery) -> Result<String, ServiceError> {
        Ok(explain_query(&plan_query(query, &self.scope())?))
    }

    /// Carries out what the catalog remembers. What cannot be carried out any more is said, and the rest runs.
    pub(super) fn load_big_queries(&self) -> Result<(), ServiceError> {
        let statements = self.catalog.statements()?;
        // What is not opened by then is tried again later.
        let _ = self.start_ends.set(Instant::now() + START_MAX);
        if let Some((store, _)) = self.store() {
            if let Err(error) = store.remove_unfinished() {
                tracing::warn!("checkpoints that were not written in full are left: {error}");
            }
            // Of those that were dropped while no checkpoints were made.
            let known = statements.iter().map(|stored| stored.number).collect();
            saved::forget_dropped(store, self.catalog.statement_next()?, &known);
        }
        // Those that were replaced may need what was declared after them.
        let mut queries = Vec::new();
        for stored in statements {
            let Ok(Stored { statement, outdated, error }) = rivulet_sql::parse_stored(&stored.sql) else {
                // It may have secrets in it.
                tracing::error!(number = stored.number, "a remembered statement is not understood by this version");
                continue;
            };
            let title = title(&statement);
            outdated.iter().for_each(|one| tracing::warn!("the {title} was created by an earlier version: {one}"));
            if let Some(error) = &error {
                tracing::error!("the {title} is not understood by this version; drop it, and create it anew: {error}");
            }
            self.big_queries.known.lock().remembered.insert(stored.number, statement.clone());
            match &statement {
                Statement::CreateBigQuery(create) => {
                    self.queries.state.lock().big_query_names.insert(create.name.text.clone());
                    queries.push((create.clone(), stored.number, stored.paused, stored.failure));
                }
                _ => {
                    let is_tried_again = error.is_none();
                    let entered = self.enter_remembered(stored.number, &statement, is_tried_again, self.open_limit());
                    if let (Err(error), true) = (entered, is_tried_again) {
                        tracing::error!("the {title} is not in use, and is tried again until it is: {error}");
                    }
                }
            }
        }
        for (create, number, is_paused, failure) in queries {
            let one = self.load_one(&create.name.text, &create.query, number, is_paused, failure);
            self.big_queries.known.lock().queries.insert(create.name.text.clone(), one);
        }
        self.has_started.store(true, Ordering::Release);
        let known = self.big_queries.known.lock();
        if !known.queries.is_empty() {
            let running = known.queries.values().filter(|one| one.life.flow().is_some()).count();
            tracing::info!(
                queries = known.queries.len(),
                running,
                "big queries run again, but those that were paused, have failed or wait"
            );
        }
        Ok(())
    }

    /// A query as a start of the server leaves it: running, paused with nothing open, ended or failed as it was before,
    /// or with what is wrong.
    fn load_one(
        &self,
        name: &str,
        query: &BigQuery,
        number: u64,
        is_paused: bool,
        failure: Option<String>,
    ) -> OneQuery {
        let (query, life) = (query.clone(), Life::stored(is_paused, failure));
        let mut one = OneQuery { number, query, plan: None, saved: None, life };
        let planned = plan_query(&one.query, &self.scope()).map_err(ServiceError::from);
        let loaded = planned.and_then(|plan| {
            let plan = one.plan.insert(Arc::new(plan)).clone();
            one.saved = self.line(name, number, &one.query.text)?;
            if one.saved.as_ref().is_some_and(|saved| saved.lock().has_ended()) {
                one.life.end();
            }
            if !one.life.waits_to_start() || self.may_end_the_server(name, &mut one) {
                return Ok(());
            }
            self.big_queries.starts.begin(number);
            let started = self.start_saved(name, &one.query.text, &plan, one.saved.as_ref());
            started.map(|started| started.enter(&mut one.life))
        });
        match loaded {
            Ok(()) => one.look_for_result(name, |file| {
                let files = self.files.clone();
                let look = move || Ok(files.locate(file).is_ok_and(|path| path.exists()));
                // A file system that does not answer may well have it.
                let looked = self.outside.call("looking for a result", self.open_limit(), &self.is_stopped, look);
                looked.unwrap_or(true)
            }),
            Err(error) => {
                tracing::error!(query = name, "a registered query is not running: {error}");
                one.life.hinder(error.message);
            }
        }
        one
    }

    /// Whether a query is not started now because it may be the one at which the server has died, which is said and
    /// remembered.
    fn may_end_the_server(&self, name: &str, one: &mut OneQuery) -> bool {
        let problem = match self.big_queries.starts.verdict(one.number) {
            Verdict::Starts => return false,
            Verdict::Waits => {
                one.life.hinder(WAITS.to_owned());
                WAITS
            }
            Verdict::IsHeld => {
                one.life.fail(IS_HELD.to_owned());
                if let Err(error) = self.catalog.set_statement_failure(one.number, Some(IS_HELD)) {
                    tracing::warn!(query = name, "after a restart the query will run again: {error}");
                }
                IS_HELD
            }
        };
        tracing::error!(query = name, "a query is not running: {problem}");
        true
    }

    /// Ends the input of all big queries, and gives them time to write what they have in hand.
    pub(super) fn stop_big_queries(&self) {
        self.note_failures();
        let running: Vec<Arc<run::Running>> = {
            // Whoever puts one in the place of another is to have come to an end of it.
            self.big_queries.wait_unclaimed(STOP_MAX);
            let known = self.big_queries.known.lock();
            known.queries.values().filter_map(|one| one.life.flow().cloned()).collect()
        };
        // What has checkpoints goes on from the last one, which is made now that nothing comes any more. What was
        // written after it would come twice, so nothing is.
        let (saved, running): (Vec<_>, Vec<_>) = running.into_iter().partition(|one| one.has_checkpoints());
        saved.iter().for_each(|one| one.flow().close());
        if !saved.is_empty() {
            self.save_big_queries_at_the_end();
        }
        // Their sinks are told to make final what belongs to it, and may have to wait for others.
        let deadline = Instant::now() + STOP_MAX;
        for one in &saved {
            one.flow().wait_committed(deadline.saturating_duration_since(Instant::now()));
        }
        saved.iter().for_each(|one| one.cancel());
        running.iter().for_each(|one| one.stop());
        // All of them together: each may wait for a device that does not answer.
        let deadline = Instant::now() + STOP_MAX;
        for one in running {
            if one.wait(deadline.saturating_duration_since(Instant::now())).is_none() {
                tracing::warn!("a big query did not come to its end");
            }
        }
    }
}

/// Why a query is not resumed that has nothing left to do.
fn has_come_to_its_end(name: &str) -> ServiceError {
    let message = format!("the query '{name}' has come to the end of its input");
    ServiceError::new(ErrorKind::Conflict, message).with_hint("drop it, and create it again to run it from the start")
}

/// Lets go of what a flow has opened that has come to its end, well or not. Whoever looks at its figures may hold it
/// for a moment.
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
