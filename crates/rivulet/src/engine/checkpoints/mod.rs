//! Checkpoints: the state of queries is saved while they run, and comes back at the next start.
//!
//! One thread makes them, on a timer; so does whoever asks, and the end of the server. Groups are captured one after the other, each
//! what changed since the last time, and nobody waits for anybody ([`rivulet_runtime::Group::capture`]); on the timer it takes its time, so that
//! events are not late for it. What they give is one epoch of one line
//! ([`line`]), written as a whole or not at all. At the start [`recovery`] gives it back, before anything is received, and [`home`] sees to it that these are the
//! checkpoints of this catalog.
//!
//! What must hold: a checkpoint that fails harms nothing. The one before stays in force, it is said, and the next one takes along
//! what this one would have saved.
//!
//! Locks: the line, for as long as a checkpoint takes; behind it the state of the engine and groups. Never the other way round.

pub(crate) mod catalog;
pub(crate) mod home;
pub(crate) mod line;
mod recovery;
mod replacement;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_dataflow::LogPosition;
use rivulet_runtime::Captured;
use rivulet_storage::{Place, StorageError, Store};

use super::Engine;
use super::big_queries::LineStatus;
use super::running::Running;
use crate::catalog::{ApplicationNumber, Catalog};
use crate::config::CheckpointConfig;
use crate::service::{CheckpointInfo, CheckpointStatus, ErrorKind, QueryCheckpoint, RecoveryStatus, ServiceError};
use catalog::CatalogLine;
use line::{Line, NotReady, Taken};

pub(super) use recovery::SavedStates;

/// How long a checkpoint waits for the log to be on disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long a checkpoint of which a part has to wait looks whether the rest has to wait for the log.
const LOGGED_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long a checkpoint waits for the results of what it has captured to leave.
const WAY_OUT_MAX: Duration = Duration::from_secs(10);

/// For so many times as long as it took to capture some queries, a checkpoint of the timer leaves the machine to those who work.
const RESTS: u32 = 4;

/// What an engine has for making checkpoints.
pub(super) struct Checkpoints {
    settings: CheckpointConfig,
    store: Arc<Store>,
    /// None once the engine has stopped.
    line: Mutex<Option<Line>>,
    /// The catalog, where it is saved too. Taken behind the line.
    catalog: Mutex<Option<CatalogLine>>,
    /// Applications of which what is saved does not fit to what they have; the next checkpoint takes everything of them.
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

/// What became of checkpoints so far.
#[derive(Default)]
struct Report {
    last: Option<(CheckpointInfo, Instant)>,
    made: u64,
    failed: u64,
    last_error: Option<String>,
    /// How those of big queries stood then.
    big_queries: Vec<LineStatus>,
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
        let opened = Line::open(store.clone(), settings.retained).and_then(|line| {
            // A folder is lost or kept with the data folder, where the catalog is; a bucket outlives the machine.
            let catalog = match &settings.place {
                Place::S3(_) => Some(CatalogLine::open(store.clone(), settings.retained)?),
                Place::Folder(_) => None,
            };
            Ok((line, catalog))
        });
        let (line, catalog) = opened.map_err(|error| refused("the checkpoints cannot be opened", &error))?;
        Ok(Arc::new(Self {
            settings: settings.clone(),
            store,
            line: Mutex::new(Some(line)),
            catalog: Mutex::new(catalog),
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
        if self.catalog.lock().as_ref().is_some_and(CatalogLine::has_any) {
            return Ok(false);
        }
        home::has_epochs(&self.store)
    }

    /// Takes the catalog from the store, if that of the data folder is new and there is one.
    pub(super) fn restore_catalog(&self, catalog: &Catalog) -> Result<(), ServiceError> {
        match self.catalog.lock().as_ref() {
            Some(line) if catalog.is_new()? => line.restore(&self.store, catalog),
            _ => Ok(()),
        }
    }

    /// Looks whether these are the checkpoints of this catalog, and notes it; `usual` and `accepts_empty` as [`home::find`] has them.
    pub(super) fn settle(&self, catalog: &Catalog, usual: &Path, accepts_empty: bool) -> Result<(), ServiceError> {
        home::find((Some(&*self.store), &self.settings.place), catalog, usual, accepts_empty)?
            .note(&self.store, catalog)
    }

    /// Lets go of the files.
    fn close(&self) {
        self.line.lock().take();
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
            big_queries: report.big_queries.iter().map(QueryCheckpoint::from).collect(),
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
        let failing = failing.chain(report.big_queries.iter().filter_map(LineStatus::failure));
        failing.chain(report.recovered.iter().flat_map(|recovered| recovered.problems.clone())).collect()
    }
}

impl LineStatus {
    /// Why there is no newer checkpoint of a big query, if there should be.
    fn failure(&self) -> Option<String> {
        self.problem.as_ref().map(|problem| format!("no checkpoint is made of the query '{}': {problem}", self.query))
    }
}

impl From<&LineStatus> for QueryCheckpoint {
    fn from(status: &LineStatus) -> Self {
        Self {
            query: status.query.clone(),
            epoch: status.epoch,
            age_ms: status.made.map(|made| made.elapsed().as_millis() as u64),
            live_bytes: status.live_bytes,
            last_error: status.problem.clone(),
        }
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

    /// Makes the last checkpoint. In a thread of its own: an engine may be dropped by a task of an asynchronous runtime, in which nobody may
    /// wait for the disk.
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
            let _line = checkpoints.line.lock();
            checkpoints.report.lock().big_queries = self.save_big_queries(true);
        };
        let _ = std::thread::scope(|scope| scope.spawn(save).join());
    }

    /// Makes a checkpoint; `rest` as in [`rivulet_runtime::Group::capture`]. Who asks for it wants all queries to be in it; says of which big queries none could be
    /// made.
    fn make_checkpoint(
        &self,
        checkpoints: &Checkpoints,
        rest: &mut dyn FnMut(Duration),
        is_asked: bool,
    ) -> Result<(CheckpointInfo, Vec<String>), ServiceError> {
        let mut line = checkpoints.line.lock();
        let Some(line) = line.as_mut() else {
            return Err(ServiceError::new(ErrorKind::Unavailable, "the server is stopping"));
        };
        let begun = Instant::now();
        let catalog = checkpoints.catalog.lock().as_mut().map_or(Ok((0, 0)), |line| line.save(&self.catalog));
        // First: what comes from now on may be in what is captured, but need not.
        let position = self.replayed_from();
        let (running, known) = self.applications.all();
        // Of those that run it was noted before they did.
        checkpoints.unfit.lock().drain(..).for_each(|number| line.want_everything(number));
        let taken: Vec<Taken> = running
            .iter()
            .filter(|running| running.group.is_captured())
            .filter_map(|running| self.take(running, running.group.capture(line.wants_all_of(running), rest)))
            .collect();
        let committed = match self.wait_for_both_ends(&taken, position) {
            Ok(()) => line.commit(taken, &known, position),
            Err(not_ready) => {
                // What gave nothing behind durable events, and what was captured before anything got stuck, is saved. The others lack what they lacked before: the log is replayed from there.
                let (ready, waiting) = self.divide(taken);
                let error = line.give_up(&waiting, not_ready);
                let position = line.position();
                line.commit(ready, &known, position).and(Err(error))
            }
        };
        if committed.is_ok() {
            let needed_from = line.needed_from();
            self.event_log.forget_before(needed_from);
            self.event_log.forget_repeats_at(position, &self.messaging);
            if let Err(error) = self.catalog.forget_attendance(needed_from) {
                tracing::warn!("the catalog keeps what no replay needs any more, and it is tried again: {error}");
            }
        }
        let of_big = self.save_big_queries(is_asked);
        // What could not be saved of one does not keep the other from being saved.
        let committed = committed.map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()));
        let committed = committed.and_then(|info| {
            let (of_catalog, live_of_catalog) = catalog?;
            let (written_bytes, live_bytes) = (info.written_bytes + of_catalog, info.live_bytes + live_of_catalog);
            Ok(CheckpointInfo { written_bytes, live_bytes, ..info })
        });
        let mut report = checkpoints.report.lock();
        let failures: Vec<String> = of_big.iter().filter_map(LineStatus::failure).collect();
        let written: Vec<u64> = of_big.iter().filter_map(|one| one.written_bytes).collect();
        let live: u64 = of_big.iter().map(|one| one.live_bytes).sum();
        report.big_queries = of_big;
        match committed {
            Ok(info) => {
                let info = CheckpointInfo {
                    big_queries: written.len() as u64,
                    written_bytes: info.written_bytes + written.iter().sum::<u64>(),
                    live_bytes: info.live_bytes + live,
                    ..info
                };
                let info = CheckpointInfo { duration_ms: begun.elapsed().as_millis() as u64, ..info };
                tracing::debug!(epoch = info.epoch, queries = info.queries, bytes = info.written_bytes, "checkpoint");
                if report.last_error.take().is_some() {
                    tracing::info!(epoch = info.epoch, "checkpoints work again");
                }
                report.made += 1;
                report.failed += u64::from(!failures.is_empty());
                report.last = Some((info.clone(), Instant::now()));
                Ok((info, failures))
            }
            Err(error) => {
                let hint = error.hint.as_ref().map_or_else(String::new, |hint| format!("\nhint: {hint}"));
                let text = format!("{}{hint}", error.message);
                // Said once, not every few seconds with the number of another file.
                if report.last_error.as_deref().is_none_or(|before| !is_the_same(before, &text)) {
                    tracing::error!(
                        "a checkpoint failed; the one before stays in force, and it is tried again: {text}"
                    );
                }
                report.failed += 1;
                report.last_error = Some(text);
                Err(ServiceError { message: format!("the checkpoint failed: {}", error.message), ..error })
            }
        }
    }

    /// What was captured of an application just now.
    fn take(&self, running: &Running, captured: Captured) -> Option<Taken> {
        // What it has given until then was submitted before it was captured.
        let results_to = self.messaging.publisher().next();
        Taken::new(running.number, &running.application.id, captured, results_to)
    }

    /// Waits for what was taken to be true after a restart that replays the log from `position` on: state may not know of events that
    /// the log could still lose and would give their positions to others, nor have given results that nobody would compute again and that are still
    /// on their way.
    fn wait_for_both_ends(&self, taken: &[Taken], position: LogPosition) -> Result<(), NotReady> {
        let applied = taken.iter().map(Taken::position).fold(position.saturating_sub(1), LogPosition::max);
        if !self.event_log.wait_durable(applied, DISK_WAIT_MAX) {
            return Err(NotReady::disk());
        }
        self.wait_for_way_out(taken.iter().map(Taken::results_to).max().unwrap_or(0))
    }

    /// Waits until results with numbers below `until` have left.
    fn wait_for_way_out(&self, until: u64) -> Result<(), NotReady> {
        // While the server stops, what could be sent is sent.
        let is_stopped = || self.is_stopped.load(Ordering::Acquire);
        if self.messaging.publisher().wait_until_left(until, WAY_OUT_MAX, &is_stopped) {
            // Where one query's result is another's event, it has left when the log has it.
            return match until == 0 || self.event_log.wait_all_durable(DISK_WAIT_MAX) {
                true => Ok(()),
                false => Err(NotReady::disk()),
            };
        }
        let connection = self.messaging.ready().err().map_or_else(String::new, |error| format!(": {}", error.message));
        Err(NotReady {
            what: "results of durable events have not left, and saved state would not give them again",
            why: format!(
                "the broker does not take them{connection}\nhint: look whether it is there; the log keeps the events until it does"
            ),
        })
    }

    /// Divides what was taken into what is true after a restart, as things are now, and what is not.
    fn divide(&self, taken: Vec<Taken>) -> (Vec<Taken>, Vec<Taken>) {
        let first_left = self.messaging.publisher().first_left();
        // What has left by then may be an event itself.
        let is_logged = self.event_log.wait_all_durable(LOGGED_WAIT_MAX);
        let is_ready = |one: &Taken| one.position() == 0 || (is_logged && one.results_to() <= first_left);
        taken.into_iter().partition(is_ready)
    }

    /// From where on the log would be replayed after a restart that finds what is captured from now on.
    fn replayed_from(&self) -> LogPosition {
        // In the order in which events go: what has left one place by now is found at the next.
        let next = self.event_log.next();
        let (shared, running) = (self.routing.shared_groups(), self.applications.running());
        let groups = shared.iter().chain(running.iter().map(|running| &running.group));
        groups.filter_map(|group| group.oldest_position()).fold(next, LogPosition::min)
    }
}

/// Whether two texts say the same, but for the numbers in them.
fn is_the_same(one: &str, other: &str) -> bool {
    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|character: char| character.is_ascii_digit()).filter(|part| !part.is_empty())
    }
    words(one).eq(words(other))
}

/// What `error` means to whoever asked; its hint goes along.
fn refused(what: &str, error: &StorageError) -> ServiceError {
    ServiceError::from_text(ErrorKind::Unavailable, &format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::is_the_same;

    #[test]
    fn an_error_that_names_another_file_is_no_news() {
        let full = "the disk is full: cannot write applications/000000000009.pack in c";
        assert!(is_the_same(full, &full.replace("09", "10")) && is_the_same(full, full));
        assert!(!is_the_same(full, "the disk is full: cannot write applications/000000000009.manifest in c"));
        assert!(!is_the_same(full, ""));
    }
}
