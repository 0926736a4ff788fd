//! Checkpoints: the state of queries is saved while they run, and restored at the next start.
//!
//! This file has what was saved and its status; [`coordinator`] makes checkpoints. At the start [`recovery`] restores
//! the saved state before any event is received, and [`home`] makes sure that these are the checkpoints of this
//! catalog.
//!
//! In reading order: [`line`] (a line of epochs), [`applications`] and [`catalog`] (two of them), [`way_out`] (when
//! state may be saved), [`replacement`] (while a new version takes over), [`recovery`].
//!
//! Locks: first the lines, for as long as a checkpoint takes; after them the state of the engine and groups. Never in
//! the opposite order.

pub(crate) mod applications;
mod catalog;
pub(super) mod coordinator;
pub(in crate::engine) mod line;
mod recovery;
mod replacement;
mod way_out;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rivulet_dataflow::LogPosition;
use rivulet_storage::{Place, Store};

use crate::catalog::{ApplicationNumber, Catalog};
use crate::config::CheckpointConfig;
use crate::data_folder::lines::refused;
use crate::data_folder::{home, restored};
use crate::engine::sources::Positions;
use crate::service::{
    CheckpointInfo, CheckpointStatus, ErrorKind, FullName, QueryCheckpoint, RecoveryStatus, ServiceError, Tenant,
};
use applications::{Applications, Known};
use catalog::CatalogLine;
use line::LineStatus;

pub(super) use recovery::SavedStates;
pub(super) use replacement::Paused;
pub(super) use way_out::WayOut;

/// The saved checkpoints, and their status.
pub(super) struct Checkpoints {
    settings: CheckpointConfig,
    store: Arc<Store>,
    /// Locked by code that makes a checkpoint, or prevents others from making one. `None` once the engine has stopped.
    lines: Mutex<Option<Lines>>,
    /// Applications whose saved state does not fit their current state; the next checkpoint saves all of their state.
    unfit: Mutex<Vec<ApplicationNumber>>,
    report: Mutex<Report>,
    /// Whether the engine runs. State of a start that failed half way must not be saved.
    is_active: AtomicBool,
    /// The number of callers that wait for a checkpoint of their own. The checkpoint under way hurries for them.
    waiting: AtomicUsize,
}

/// A caller waits for a checkpoint of its own as long as this exists.
struct Awaited<'a>(&'a AtomicUsize);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The lines of epochs other than those of big queries.
struct Lines {
    applications: Applications,
    /// The line of the catalog, where it is saved too.
    catalog: Option<CatalogLine>,
}

/// The outcome of checkpoints so far.
#[derive(Default)]
struct Report {
    last: Option<(CheckpointInfo, Instant)>,
    made: u64,
    failed: u64,
    last_error: Option<String>,
    /// The status of the lines of big queries at that time, by name.
    big_queries: Vec<(FullName, LineStatus)>,
    recovered: Option<RecoveryStatus>,
}

impl Checkpoints {
    /// Opens the checkpoints and looks for saved state.
    ///
    /// # Errors
    /// The folder cannot be used, or a later version wrote it.
    pub(super) fn open(settings: &CheckpointConfig) -> Result<Arc<Self>, ServiceError> {
        let store =
            Store::open(&settings.place).map_err(|error| refused("the checkpoints cannot be opened", &error))?;
        Self::open_in(Arc::new(store), settings)
    }

    /// The same in a store.
    ///
    /// # Errors
    /// As [`Checkpoints::open`] has.
    pub(super) fn open_in(store: Arc<Store>, settings: &CheckpointConfig) -> Result<Arc<Self>, ServiceError> {
        let opened = Applications::open(store.clone(), settings.retained).and_then(|applications| {
            // A folder is lost or kept together with the data folder, which has the catalog; a bucket outlives the
            // machine.
            let catalog = match &settings.place {
                Place::S3(_) => Some(CatalogLine::open(store.clone(), settings.retained)?),
                Place::Folder(_) => None,
            };
            Ok(Lines { applications, catalog })
        });
        let lines = opened.map_err(|error| refused("the checkpoints cannot be opened", &error))?;
        Ok(Arc::new(Self {
            settings: settings.clone(),
            store,
            lines: Mutex::new(Some(lines)),
            unfit: Mutex::default(),
            report: Mutex::default(),
            is_active: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// The engine runs: from now on there is state to save. Returns the interval of the timer, if there is one.
    fn begin(&self) -> Option<Duration> {
        self.is_active.store(true, Ordering::Release);
        self.settings.interval
    }

    /// Makes the checkpoint under way hurry as long as the returned value exists.
    fn await_one(&self) -> Awaited<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Awaited(&self.waiting)
    }

    /// Whether the checkpoint under way should hurry.
    fn are_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for the checkpoint under way. No other is made while the lock is held.
    fn lock(&self) -> MutexGuard<'_, Option<Lines>> {
        self.lines.lock()
    }

    /// The positions at which sources of inputs continue, and the position from which on the log may have events beyond
    /// these.
    pub(super) fn sources(&self) -> (Positions, LogPosition) {
        self.lock().as_ref().map(|lines| lines.applications.known.sources()).unwrap_or_default()
    }

    /// Whether there is any state to save at the end.
    fn are_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Whether there are checkpoints, but no usable catalog saved with them: they belong to a catalog elsewhere.
    pub(super) fn has_orphans(&self) -> Result<bool, ServiceError> {
        let lines = self.lines.lock();
        if lines.as_ref().and_then(|lines| lines.catalog.as_ref()).is_some_and(CatalogLine::has_any) {
            return Ok(false);
        }
        home::has_epochs(&self.store)
    }

    /// Takes the catalog from the store, if the one in the data folder is new and the store has one.
    pub(super) fn restore_catalog(&self, catalog: &Catalog, data_dir: &Path) -> Result<(), ServiceError> {
        match self.lines.lock().as_ref().and_then(|lines| lines.catalog.as_ref()) {
            Some(line) if catalog.is_new()? && line.has_any() => {
                // Before the catalog: a start that ends between the two begins anew.
                restored::note(data_dir).map_err(|error| {
                    let message = format!("cannot write to {}: {error}", data_dir.display());
                    ServiceError::new(ErrorKind::Unavailable, message)
                })?;
                line.restore(&self.store, catalog)
            }
            _ => Ok(()),
        }
    }

    /// Checks whether these are the checkpoints of this catalog, and records it; `usual` and `accepts_empty` as in
    /// [`home::find`].
    pub(super) fn claim_place(&self, catalog: &Catalog, usual: &Path, accepts_empty: bool) -> Result<(), ServiceError> {
        home::find((Some(&*self.store), &self.settings.place), catalog, usual, accepts_empty)?
            .note(&self.store, catalog)
    }

    /// Closes the files.
    fn close(&self) {
        self.lines.lock().take();
    }

    /// Makes the next checkpoint save all state of applications whose saved state does not fit.
    fn take_unfit(&self, known: &mut Known) {
        self.unfit.lock().drain(..).for_each(|number| known.want_everything(number));
    }

    /// The store of the checkpoints, and the number that are retained.
    pub(super) fn store(&self) -> (&Arc<Store>, usize) {
        (&self.store, self.settings.retained)
    }

    /// The status of the checkpoints, as a tenant sees it: figures of the whole server are for the default tenant.
    pub(super) fn status(&self, tenant: &Tenant) -> CheckpointStatus {
        let report = self.report.lock();
        let is_of_tenant = |(query, _): &&(FullName, LineStatus)| query.tenant == *tenant;
        // An error may name files of the server.
        let for_tenant = |mut one: QueryCheckpoint| {
            let is_hidden = !tenant.is_default() && one.last_error.is_some();
            one.last_error = if is_hidden { Some("the log of the server says why".into()) } else { one.last_error };
            one
        };
        CheckpointStatus {
            place: if tenant.is_default() { self.store.place().to_owned() } else { String::new() },
            interval_ms: self.settings.interval.map(|interval| interval.as_millis() as u64),
            last: report.last.as_ref().map(|(info, _)| info.clone()).filter(|_| tenant.is_default()),
            age_ms: report.last.as_ref().map(|(_, at)| at.elapsed().as_millis() as u64),
            made: report.made,
            failed: report.failed,
            last_error: report.last_error.clone().filter(|_| tenant.is_default()),
            big_queries: report.big_queries.iter().filter(is_of_tenant).map(of_query).map(for_tenant).collect(),
            recovered: report.recovered.clone().filter(|_| tenant.is_default()),
        }
    }

    /// Records that some saved state is damaged. This was found while something was started.
    pub(super) fn note_damage(&self, problem: String) {
        let mut report = self.report.lock();
        let problems = &mut report.recovered.get_or_insert_default().problems;
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// Problems that an operator of the server should know.
    pub(super) fn problems(&self) -> Vec<String> {
        let report = self.report.lock();
        let failing = report.last_error.iter().map(|error| format!("checkpoints fail: {error}"));
        let failing = failing.chain(report.big_queries.iter().filter_map(failure_of));
        failing.chain(report.recovered.iter().flat_map(|recovered| recovered.problems.clone())).collect()
    }
}

/// Why there is no newer checkpoint of a big query, if there should be one, in words that any user may read.
fn failure_of((query, line): &(FullName, LineStatus)) -> Option<String> {
    let (query, is_public) = (query.in_public(), query.tenant.is_default());
    line.failure.as_ref().map(|failure| match is_public {
        true => format!("no checkpoint is made of the query {query}: {failure}"),
        false => format!("no checkpoint is made of the query {query}"),
    })
}

/// The status of the checkpoints of a big query.
fn of_query((query, line): &(FullName, LineStatus)) -> QueryCheckpoint {
    QueryCheckpoint {
        query: query.name.clone(),
        epoch: line.epoch,
        age_ms: line.made.map(|made| made.elapsed().as_millis() as u64),
        live_bytes: line.live_bytes,
        last_error: line.failure.clone(),
    }
}

impl Report {
    /// Records a checkpoint that has gone through the lines `of_server` and those of `big_queries`. Returns its
    /// description, and why there is none of some big queries.
    ///
    /// # Errors
    /// One of the server's lines has failed.
    fn enter(
        &mut self,
        info: CheckpointInfo,
        of_server: &[LineStatus],
        big_queries: Vec<(FullName, LineStatus)>,
    ) -> Result<(CheckpointInfo, Vec<String>), ServiceError> {
        let failures: Vec<String> = big_queries.iter().filter_map(failure_of).collect();
        let lines = || of_server.iter().chain(big_queries.iter().map(|(_, line)| line));
        let info = CheckpointInfo {
            big_queries: big_queries.iter().filter(|(_, line)| line.written_bytes.is_some()).count() as u64,
            written_bytes: lines().filter_map(|line| line.written_bytes).sum(),
            live_bytes: lines().map(|line| line.live_bytes).sum(),
            ..info
        };
        self.big_queries = big_queries;
        self.last_error = of_server.iter().find_map(|line| line.failure.clone());
        if let Some(error) = &self.last_error {
            self.failed += 1;
            return Err(ServiceError::from_text(ErrorKind::Unavailable, &format!("the checkpoint failed: {error}")));
        }
        self.made += 1;
        self.failed += u64::from(!failures.is_empty());
        self.last = Some((info.clone(), Instant::now()));
        Ok((info, failures))
    }
}
