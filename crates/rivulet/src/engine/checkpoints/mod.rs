//! Checkpoints: the state of queries is saved while they run, and comes back at the next start.
//!
//! One thread makes them, on a timer; so does whoever asks, and the end of the server. Groups are captured one after the other, each
//! what changed since the last time, and nobody waits for anybody ([`rivulet_runtime::Group::capture`]). What they give is one epoch of one line
//! ([`line`]), written as a whole or not at all. At the start [`recovery`] gives it back, before anything is received.
//!
//! What must hold: a checkpoint that fails harms nothing. The one before stays in force, it is said, and the next one takes along
//! what this one would have saved.
//!
//! Locks: the line, for as long as a checkpoint takes; behind it the state of the engine and groups. Never the other way round.

pub(crate) mod line;
mod recovery;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rivulet_dataflow::LogPosition;
use rivulet_runtime::Group;
use rivulet_storage::StorageError;

use super::{Engine, Running};
use crate::catalog::ApplicationNumber;
use crate::config::CheckpointConfig;
use crate::service::{CheckpointInfo, CheckpointStatus, ErrorKind, RecoveryStatus, ServiceError};
use line::{Line, Taken};

pub(super) use recovery::{Loading, SavedStates, Unrestored};

/// How long a checkpoint waits for the log to be on disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(30);

/// What an engine has for making checkpoints.
pub(super) struct Checkpoints {
    settings: CheckpointConfig,
    /// None once the engine has stopped.
    line: Mutex<Option<Line>>,
    /// Applications of which what is saved does not fit to what they have; the next checkpoint takes everything of them.
    unfit: Mutex<Vec<ApplicationNumber>>,
    report: Mutex<Report>,
    /// Whether the engine runs: what failed half way at its start must not be saved.
    is_active: AtomicBool,
    /// Tells the thread that it is over.
    is_over: Mutex<bool>,
    bell: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What became of checkpoints so far.
#[derive(Debug, Default)]
struct Report {
    last: Option<(CheckpointInfo, Instant)>,
    made: u64,
    failed: u64,
    last_error: Option<String>,
    recovered: Option<RecoveryStatus>,
}

impl Checkpoints {
    /// Looks for what was saved.
    ///
    /// # Errors
    /// A folder that cannot be used, or that a later version wrote.
    pub(super) fn open(settings: &CheckpointConfig) -> Result<Arc<Self>, ServiceError> {
        let line = Line::open(settings).map_err(|error| refused("the checkpoints cannot be opened", &error))?;
        Ok(Arc::new(Self {
            settings: settings.clone(),
            line: Mutex::new(Some(line)),
            unfit: Mutex::default(),
            report: Mutex::default(),
            is_active: AtomicBool::new(false),
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
                // Its failure is in the report and the log.
                let _ = engine.make_checkpoint(&checkpoints);
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

    /// Lets go of the files.
    fn close(&self) {
        self.line.lock().take();
    }

    pub(super) fn status(&self) -> CheckpointStatus {
        let report = self.report.lock();
        CheckpointStatus {
            place: self.settings.folder.display().to_string(),
            interval_ms: self.settings.interval.map(|interval| interval.as_millis() as u64),
            last: report.last.as_ref().map(|(info, _)| info.clone()),
            age_ms: report.last.as_ref().map(|(_, at)| at.elapsed().as_millis() as u64),
            made: report.made,
            failed: report.failed,
            last_error: report.last_error.clone(),
            recovered: report.recovered.clone(),
        }
    }

    /// What an operator of the server should know.
    pub(super) fn problems(&self) -> Vec<String> {
        let report = self.report.lock();
        let failing = report.last_error.iter().map(|error| format!("checkpoints fail: {error}"));
        failing.chain(report.recovered.iter().flat_map(|recovered| recovered.problems.clone())).collect()
    }
}

impl Engine {
    /// Makes a checkpoint now, if the server makes any.
    pub(super) fn checkpoint_now(&self) -> Result<CheckpointInfo, ServiceError> {
        match &self.checkpoints {
            Some(checkpoints) => self.make_checkpoint(checkpoints),
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
                && let Ok(last) = self.make_checkpoint(checkpoints)
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
            self.save_big_queries();
        };
        let _ = std::thread::scope(|scope| scope.spawn(save).join());
    }

    fn make_checkpoint(&self, checkpoints: &Checkpoints) -> Result<CheckpointInfo, ServiceError> {
        let mut line = checkpoints.line.lock();
        let Some(line) = line.as_mut() else {
            return Err(ServiceError::new(ErrorKind::Unavailable, "the server is stopping"));
        };
        let begun = Instant::now();
        checkpoints.unfit.lock().drain(..).for_each(|number| line.want_everything(number));
        // First: what comes from now on may be in what is captured, but need not.
        let position = self.replayed_from();
        let (running, known): (Vec<Arc<Running>>, Vec<ApplicationNumber>) = {
            let state = self.state.lock();
            let known = state.numbered.keys().chain(state.not_running.values().map(|other| &other.stored.number));
            (state.numbered.values().cloned().collect(), known.copied().collect())
        };
        let taken: Vec<Taken> = running
            .iter()
            .filter(|running| running.group.is_captured())
            .filter_map(|running| {
                let captured = running.group.capture(line.wants_everything(running.number));
                Taken::new(running.number, &running.application.id, captured)
            })
            .collect();
        let applied = taken.iter().map(Taken::position).max().unwrap_or(0);
        let committed = match self.event_log.wait_durable(applied, DISK_WAIT_MAX) {
            true => line.commit(taken, &known, position),
            // State may not know of events that the log could still lose.
            false => Err(line.give_up(&taken)),
        };
        if committed.is_ok() {
            self.event_log.forget_before(line.needed_from());
        }
        let (written, live) = self.save_big_queries();
        let mut report = checkpoints.report.lock();
        match committed {
            Ok(info) => {
                let info = CheckpointInfo {
                    written_bytes: info.written_bytes + written,
                    live_bytes: info.live_bytes + live,
                    ..info
                };
                let info = CheckpointInfo { duration_ms: begun.elapsed().as_millis() as u64, ..info };
                tracing::debug!(epoch = info.epoch, queries = info.queries, bytes = info.written_bytes, "checkpoint");
                if report.last_error.take().is_some() {
                    tracing::info!(epoch = info.epoch, "checkpoints work again");
                }
                report.made += 1;
                report.last = Some((info.clone(), Instant::now()));
                Ok(info)
            }
            Err(error) => {
                let text = error.to_string();
                // Said once, not every few seconds.
                if report.last_error.as_ref() != Some(&text) {
                    tracing::error!(
                        "a checkpoint failed; the one before stays in force, and it is tried again: {text}"
                    );
                }
                report.failed += 1;
                report.last_error = Some(text);
                Err(refused("the checkpoint failed", &error))
            }
        }
    }

    /// From where on the log would be replayed after a restart that finds what is captured from now on.
    fn replayed_from(&self) -> LogPosition {
        // In the order in which events go: what has left one place by now is found at the next.
        let next = self.event_log.next();
        let (shared, running): (Vec<Arc<Group>>, Vec<Arc<Running>>) = {
            let state = self.state.lock();
            (state.shared_groups(), state.numbered.values().cloned().collect())
        };
        let groups = shared.iter().chain(running.iter().map(|running| &running.group));
        groups.filter_map(|group| group.oldest_position()).fold(next, LogPosition::min)
    }
}

/// What `error` means to whoever asked; its hint goes along.
fn refused(what: &str, error: &StorageError) -> ServiceError {
    ServiceError::from_text(ErrorKind::Unavailable, &format!("{what}: {error}"))
}
