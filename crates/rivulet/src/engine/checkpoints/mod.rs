//! Checkpoints: the state of queries is saved while they run, and comes back at the next start.
//!
//! One thread makes them, on a timer; so does whoever asks, and the end of the server. A checkpoint goes through all
//! lines of epochs, each by the same steps ([`line`]): that of all applications, that of each big query, and that of
//! the catalog where it is saved too. Groups of applications are captured one after the other, each what changed since
//! the last time, and nobody waits for anybody ([`rivulet_runtime::Group::snapshot`]); on the timer it takes its time,
//! so that events are not late for it. They give one epoch ([`applications`]), written as a whole or not at all. At the
//! start [`recovery`] gives it back, before anything is received, and [`home`] sees to it that these are the
//! checkpoints of this catalog.
//!
//! What must hold: a checkpoint that fails harms nothing. The one before stays in force, it is said, and the next one
//! takes along what this one would have saved.
//!
//! Locks: the lines, for as long as a checkpoint takes; behind it the state of the engine and groups. Never the other
//! way round.

pub(crate) mod applications;
pub(crate) mod catalog;
pub(crate) mod home;
pub(in crate::engine) mod line;
mod moment;
mod recovery;
mod replacement;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_storage::{Place, StorageError, Store};

use super::Engine;
use crate::catalog::{ApplicationNumber, Catalog};
use crate::config::CheckpointConfig;
use crate::service::{CheckpointInfo, CheckpointStatus, ErrorKind, QueryCheckpoint, RecoveryStatus, ServiceError};
use applications::{Applications, Known};
use catalog::CatalogLine;
use line::LineStatus;

pub(super) use recovery::SavedStates;
pub(super) use replacement::Paused;

/// For so many times as long as it took to capture some queries, a checkpoint of the timer leaves the machine to those
/// who work.
const RESTS: u32 = 4;

/// What an engine has for making checkpoints.
pub(super) struct Checkpoints {
    settings: CheckpointConfig,
    store: Arc<Store>,
    /// Held by who makes a checkpoint, or keeps others from making one. None once the engine has stopped.
    lines: Mutex<Option<Lines>>,
    /// Applications of which what is saved does not fit to what they have; the next checkpoint takes everything of
    /// them.
    unfit: Mutex<Vec<ApplicationNumber>>,
    report: Mutex<Report>,
    /// Whether the engine runs: what failed half way at its start must not be saved.
    is_active: AtomicBool,
    /// How many wait for a checkpoint of their own: the one that is being made hurries.
    waiting: AtomicUsize,
    /// Tells the thread that it is over.
    is_over: Mutex<bool>,
    bell: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The lines of epochs beside those of big queries.
struct Lines {
    applications: Applications,
    /// Where the catalog is saved too.
    catalog: Option<CatalogLine>,
}

/// What became of checkpoints so far.
#[derive(Default)]
struct Report {
    last: Option<(CheckpointInfo, Instant)>,
    made: u64,
    failed: u64,
    last_error: Option<String>,
    /// How the lines of big queries stood then, by name.
    big_queries: Vec<(String, LineStatus)>,
    recovered: Option<RecoveryStatus>,
}

impl Checkpoints {
    /// Looks for what was saved.
    ///
    /// # Errors
    /// A folder that cannot be used, or that a later version wrote.
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
            // A folder is lost or kept with the data folder, where the catalog is; a bucket outlives the machine.
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
            is_over: Mutex::new(false),
            bell: Condvar::new(),
            thread: Mutex::default(),
        }))
    }

    /// Makes checkpoints of `engine` on the timer, until [`Checkpoints::end`].
    pub(super) fn start(self: &Arc<Self>, engine: Weak<Engine>) -> Result<(), ServiceError> {
        self.is_active.store(true, Ordering::Release);
        let Some(interval) = self.settings.interval else { return Ok(()) };
        let checkpoints = self.clone();
        let keep_on = move || {
            while !checkpoints.is_over_within(interval) {
                let Some(engine) = engine.upgrade() else { return };
                // Half of the time at most, so that the next one has as much to save as this one.
                let mut left = interval / 2;
                let mut rest = |worked: Duration| {
                    if checkpoints.waiting.load(Ordering::Relaxed) == 0 {
                        let rest = left.min(worked * RESTS);
                        left -= rest;
                        checkpoints.is_over_within(rest);
                    }
                };
                // Its failure is in the report and the log.
                let _ = engine.make_checkpoint(&checkpoints, &mut rest, false);
            }
        };
        let thread = std::thread::Builder::new().name("rivulet-checkpoint".into()).spawn(keep_on);
        let failed = |error| {
            ServiceError::new(ErrorKind::Unavailable, format!("cannot start the thread of checkpoints: {error}"))
        };
        *self.thread.lock() = Some(thread.map_err(failed)?);
        Ok(())
    }

    fn is_over_within(&self, interval: Duration) -> bool {
        let deadline = Instant::now() + interval;
        let mut is_over = self.is_over.lock();
        while !*is_over && !self.bell.wait_until(&mut is_over, deadline).timed_out() {}
        *is_over
    }

    /// Whether there is anything to save at the end.
    pub(super) fn are_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Ends the thread; a checkpoint that it makes is waited for.
    pub(super) fn end(&self) {
        *self.is_over.lock() = true;
        self.bell.notify_all();
        let thread = self.thread.lock().take();
        // The engine may be dropped by this very thread, which cannot wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    /// Whether there are checkpoints and no catalog saved with them that can be used: they belong to one elsewhere.
    pub(super) fn has_orphans(&self) -> Result<bool, ServiceError> {
        let lines = self.lines.lock();
        if lines.as_ref().and_then(|lines| lines.catalog.as_ref()).is_some_and(CatalogLine::has_any) {
            return Ok(false);
        }
        home::has_epochs(&self.store)
    }

    /// Takes the catalog from the store, if that of the data folder is new and there is one.
    pub(super) fn restore_catalog(&self, catalog: &Catalog) -> Result<(), ServiceError> {
        match self.lines.lock().as_ref().and_then(|lines| lines.catalog.as_ref()) {
            Some(line) if catalog.is_new()? => line.restore(&self.store, catalog),
            _ => Ok(()),
        }
    }

    /// Looks whether these are the checkpoints of this catalog, and notes it; `usual` and `accepts_empty` as
    /// [`home::find`] has them.
    pub(super) fn claim_place(&self, catalog: &Catalog, usual: &Path, accepts_empty: bool) -> Result<(), ServiceError> {
        home::find((Some(&*self.store), &self.settings.place), catalog, usual, accepts_empty)?
            .note(&self.store, catalog)
    }

    /// Lets go of the files.
    fn close(&self) {
        self.lines.lock().take();
    }

    /// Has everything taken of applications of which what is saved does not fit to what they have.
    fn take_unfit(&self, known: &mut Known) {
        self.unfit.lock().drain(..).for_each(|number| known.want_everything(number));
    }

    /// Where they lie, and how many are kept.
    pub(super) fn store(&self) -> (&Arc<Store>, usize) {
        (&self.store, self.settings.retained)
    }

    pub(super) fn status(&self) -> CheckpointStatus {
        let report = self.report.lock();
        CheckpointStatus {
            place: self.store.place().to_owned(),
            interval_ms: self.settings.interval.map(|interval| interval.as_millis() as u64),
            last: report.last.as_ref().map(|(info, _)| info.clone()),
            age_ms: report.last.as_ref().map(|(_, at)| at.elapsed().as_millis() as u64),
            made: report.made,
            failed: report.failed,
            last_error: report.last_error.clone(),
            big_queries: report.big_queries.iter().map(of_query).collect(),
            recovered: report.recovered.clone(),
        }
    }

    /// Something of what was saved is damaged, which was found while something was started.
    pub(super) fn note_damage(&self, problem: String) {
        let mut report = self.report.lock();
        let problems = &mut report.recovered.get_or_insert_default().problems;
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// What an operator of the server should know.
    pub(super) fn problems(&self) -> Vec<String> {
        let report = self.report.lock();
        let failing = report.last_error.iter().map(|error| format!("checkpoints fail: {error}"));
        let failing = failing.chain(report.big_queries.iter().filter_map(failure_of));
        failing.chain(report.recovered.iter().flat_map(|recovered| recovered.problems.clone())).collect()
    }
}

/// Why there is no newer checkpoint of a big query, if there should be.
fn failure_of((query, line): &(String, LineStatus)) -> Option<String> {
    line.failure.as_ref().map(|failure| format!("no checkpoint is made of the query '{query}': {failure}"))
}

/// How the checkpoints of a big query stand.
fn of_query((query, line): &(String, LineStatus)) -> QueryCheckpoint {
    QueryCheckpoint {
        query: query.clone(),
        epoch: line.epoch,
        age_ms: line.made.map(|made| made.elapsed().as_millis() as u64),
        live_bytes: line.live_bytes,
        last_error: line.failure.clone(),
    }
}

impl Report {
    /// Enters a checkpoint that has gone through the lines `of_server` and those of `big_queries`. Returns what it
    /// says, and why there is none of some big queries.
    ///
    /// # Errors
    /// One of the server's lines has failed.
    fn enter(
        &mut self,
        info: CheckpointInfo,
        of_server: &[LineStatus],
        big_queries: Vec<(String, LineStatus)>,
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

impl Engine {
    /// Makes a checkpoint now, if the server makes any, and of everything.
    pub(super) fn checkpoint_now(&self) -> Result<CheckpointInfo, ServiceError> {
        let (info, failures) = self.checkpoint_of_most()?;
        if failures.is_empty() {
            return Ok(info);
        }
        let message = format!("the checkpoint is not whole: {}", failures.join("; "));
        Err(ServiceError::new(ErrorKind::Unavailable, message)
            .with_hint("everything else is saved; see with DESCRIBE QUERY whether its sink takes what it has"))
    }

    /// The same for whom an older one will do of big queries of which none can be made now; says why of each.
    pub(super) fn checkpoint_of_most(&self) -> Result<(CheckpointInfo, Vec<String>), ServiceError> {
        match &self.checkpoints {
            Some(checkpoints) => {
                checkpoints.waiting.fetch_add(1, Ordering::Relaxed);
                let made = self.make_checkpoint(checkpoints, &mut |_| {}, true);
                checkpoints.waiting.fetch_sub(1, Ordering::Relaxed);
                made
            }
            None => Err(ServiceError::new(ErrorKind::Conflict, "this server makes no checkpoints")
                .with_hint("set checkpoint.enabled to true")),
        }
    }

    /// Makes the last checkpoint. In a thread of its own: an engine may be dropped by a task of an asynchronous
    /// runtime, in which nobody may wait for the disk.
    pub(super) fn end_checkpoints(&self) {
        let Some(checkpoints) = &self.checkpoints else { return };
        checkpoints.end();
        let save = || {
            if checkpoints.are_active()
                && let Ok((last, _)) = self.make_checkpoint(checkpoints, &mut |_| {}, true)
            {
                tracing::info!(epoch = last.epoch, elapsed_ms = last.duration_ms, "state is saved");
            }
            checkpoints.close();
        };
        // A panic was reported where it happened; there is nothing left that could be done about it.
        let _ = std::thread::scope(|scope| scope.spawn(save).join());
    }

    /// Saves big queries for the last time. In a thread of its own, as [`Engine::end_checkpoints`].
    pub(super) fn save_big_queries_at_the_end(&self) {
        let Some(checkpoints) = &self.checkpoints else { return };
        let save = || {
            // One that is being made is waited for.
            let _lines = checkpoints.lines.lock();
            checkpoints.report.lock().big_queries = self.save_big_queries(true);
        };
        let _ = std::thread::scope(|scope| scope.spawn(save).join());
    }

    /// Makes a checkpoint; `rest` as in [`rivulet_runtime::Group::snapshot`]. Who asks for it wants all queries to be
    /// in it; says of which big queries none could be made.
    fn make_checkpoint(
        &self,
        checkpoints: &Checkpoints,
        rest: &mut dyn FnMut(Duration),
        is_asked: bool,
    ) -> Result<(CheckpointInfo, Vec<String>), ServiceError> {
        let mut lines = checkpoints.lines.lock();
        let Some(Lines { applications, catalog }) = lines.as_mut() else {
            return Err(ServiceError::new(ErrorKind::Unavailable, "the server is stopping"));
        };
        let begun = Instant::now();
        let catalog = catalog.as_mut().map(|line| line.save(&self.catalog, is_asked));
        let (of_applications, queries) = self.save_applications(checkpoints, applications, rest, is_asked);
        let of_big = self.save_big_queries(is_asked);
        let epoch = of_applications.epoch.unwrap_or(0);
        let of_server: Vec<LineStatus> = [of_applications].into_iter().chain(catalog).collect();
        let duration_ms = begun.elapsed().as_millis() as u64;
        let info = CheckpointInfo { epoch, queries, duration_ms, ..CheckpointInfo::default() };
        checkpoints.report.lock().enter(info, &of_server, of_big)
    }
}

/// What `error` means to whoever asked; its hint goes along.
fn refused(what: &str, error: &StorageError) -> ServiceError {
    ServiceError::from_text(ErrorKind::Unavailable, &format!("{what}: {error}"))
}
