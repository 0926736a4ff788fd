//! The log of events: events of durable inputs are on disk before their sender gets an acknowledgement, and are
//! replayed after a crash.
//!
//! The router writes events into it ([`RouterLog`]). A start replays the events that checkpoints do not cover
//! ([`replay`]). Events that are received meanwhile go to the end of the log and wait for their turn there, so that the
//! order is that of the log and no sender has to wait for the replay.
//!
//! What must hold: an event that was acknowledged is in the log up to the position that [`EventLog::durable`] returns,
//! and is kept there until a checkpoint has it ([`EventLog::forget_before`]).

mod replay;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{Logged, MessageLog, REMEMBERED_FOR, Received, Router};
use rivulet_dataflow::{Clock, LogPosition};
use rivulet_runtime::Workers;
use rivulet_storage::log::{Appended, Found, HeldLog, Log, LogSettings, LogStats, Read, Record};
use rivulet_storage::{Disk, StorageError};
use tokio::sync::Notify;

use super::messaging::Messaging;
use crate::config::DurabilityConfig;
use crate::counted::counted;
use crate::data_folder::LOG;
use crate::service::{ErrorKind, LogStatus, ServiceError};
use replay::{Advance, Change, Progress, Replay, message, say_loss};

/// How long messages stay in the log in any case, because their senders may not have the acknowledgement yet. An
/// acknowledgement follows within milliseconds.
const UNACKNOWLEDGED_US: i64 = 10_000_000;

/// The most messages at the end of the log that may be sent again.
const UNACKNOWLEDGED_MAX: u64 = 1_000_000;

/// The least number of segments of a full log.
const SEGMENTS_MIN: u64 = 8;

/// The least time between two positions that are kept with their time.
const SETTLING_STEP_US: i64 = 1_000_000;

/// The log of one server.
pub(super) struct EventLog {
    log: Arc<Log>,
    clock: Arc<dyn Clock>,
    /// The recent ends of the log, with their times, oldest first.
    recent: Mutex<VecDeque<(i64, LogPosition)>>,
    /// Events before this position are not needed any more.
    forgotten: AtomicU64,
    found: Found,
    /// The problem, if the log ends before the events that checkpoints have.
    cut: Mutex<Option<String>>,
    /// Why an application cannot read on.
    unread: Mutex<Option<String>>,
    progress: Arc<Progress>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Where the replay ended; 0 before that, and once no result of replayed events can come any more.
    replayed_to: Arc<AtomicU64>,
    /// The replay of a stepped log, which has no thread for it, until it is over.
    stepped: Option<Mutex<Option<Replay>>>,
}

impl EventLog {
    /// Opens the log in the data folder.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(
        data_dir: &Path,
        config: &DurabilityConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ServiceError> {
        let settings = LogSettings {
            bytes_max: config.log_bytes_max,
            commit_interval: config.commit_interval,
            ..LogSettings::default()
        };
        // Only complete segments are deleted, so there must be several of them. What is written at once goes to one of
        // them: on a slow disk it could be all that the log may have, and nothing could be deleted.
        let segment_bytes = settings.segment_bytes.min(settings.bytes_max / SEGMENTS_MIN);
        let gathered_bytes_max = settings.gathered_bytes_max.min(usize::try_from(segment_bytes).unwrap_or(usize::MAX));
        let opened = Log::open(&data_dir.join(LOG), LogSettings { segment_bytes, gathered_bytes_max, ..settings });
        let opened = opened.map_err(|error| unavailable(&error))?;
        Ok(Self::new(opened, clock, None))
    }

    fn new((log, found): (Log, Found), clock: Arc<dyn Clock>, stepped: Option<Mutex<Option<Replay>>>) -> Self {
        let progress = Arc::new(Progress { position: AtomicU64::new(found.first), ..Progress::default() });
        let (recent, replayed_to) = (Mutex::default(), Arc::default());
        let (thread, cut, unread) = (Mutex::default(), Mutex::default(), Mutex::default());
        let forgotten = AtomicU64::new(0);
        Self {
            log: Arc::new(log),
            clock,
            recent,
            forgotten,
            found,
            cut,
            unread,
            progress,
            thread,
            replayed_to,
            stepped,
        }
    }

    /// A log without threads: its caller calls [`EventLog::commit`] and [`EventLog::replay_some`].
    ///
    /// # Errors
    /// As [`EventLog::open`] has.
    pub(super) fn stepped(
        disk: Arc<dyn Disk>,
        folder: &Path,
        settings: LogSettings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ServiceError> {
        let opened = Log::stepped(disk, folder, settings).map_err(|error| unavailable(&error))?;
        Ok(Self::new(opened, clock, Some(Mutex::default())))
    }

    /// Tries to write the waiting records of a stepped log. Returns whether none is left.
    pub(super) fn commit(&self) -> bool {
        self.log.commit()
    }

    /// Gives the router the log, and tells the messaging side which messages senders may send again. Nothing is
    /// received before that.
    ///
    /// # Errors
    /// The end of the log cannot be read.
    pub(super) fn attach(&self, messaging: &Messaging) -> Result<(), ServiceError> {
        // As long as a client that has gone is remembered: the log may have grown since by messages of others.
        let window_us = REMEMBERED_FOR.as_micros() as i64;
        let read = self.log.read_end(window_us, UNACKNOWLEDGED_MAX, &mut |record| {
            if record.packet_id != 0 {
                messaging.remember(&message(&record), record.position);
            }
        });
        read.map_err(|error| unavailable(&error))?;
        messaging.router().log_to(Arc::new(RouterLog(self.log.clone())));
        Ok(())
    }

    /// Calls `each` with every message in the log from a position on.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(super) fn look_through(
        &self,
        from: LogPosition,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<(), ServiceError> {
        let read = self.log.read(from.max(self.first()), self.log.next(), &mut |record| {
            each(&message(&record));
            true
        });
        read.map(drop).map_err(|error| unavailable(&error))
    }

    /// Calls `take` with the messages from a position on and before `until`, until it returns false. The `next` that is
    /// returned is the position of the message that it did not take, or of the end. What is `lost` is counted once,
    /// however many applications read there.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(super) fn read(
        &self,
        from: LogPosition,
        until: LogPosition,
        take: &mut dyn FnMut(&Received<'_>, LogPosition) -> bool,
    ) -> Result<Read, ServiceError> {
        let read = self.log.read(from, until, &mut |record| take(&message(&record), record.position));
        let mut read = read.map_err(|error| unavailable(&error))?;
        self.progress.count_lost(&read);
        read.next = self.read_pending(read.next, until, take);
        Ok(read)
    }

    /// The same of messages that are not on disk yet, and waits for no disk. Returns the position `next`.
    pub(super) fn read_pending(
        &self,
        from: LogPosition,
        until: LogPosition,
        take: &mut dyn FnMut(&Received<'_>, LogPosition) -> bool,
    ) -> LogPosition {
        self.log.read_pending(from, until, &mut |record| take(&message(&record), record.position))
    }

    /// A checkpoint has all events before this position, and their results have left. If these are all replayed events,
    /// no result is given once more.
    pub(super) fn forget_repeats_at(&self, position: LogPosition, messaging: &Messaging) {
        let replayed_to = self.replayed_to.load(Ordering::Acquire);
        if replayed_to > 0 && position >= replayed_to {
            self.replayed_to.store(0, Ordering::Release);
            messaging.router().forget_repeats();
        }
    }

    /// The position up to which the log was on disk when it was opened.
    pub(super) fn found_to(&self) -> LogPosition {
        self.found.next - 1
    }

    /// The lowest position that the log still has.
    fn first(&self) -> LogPosition {
        self.found.first
    }

    /// The position of the next event. If no event that came before this call is still waiting, all events before the
    /// position are processed.
    pub(super) fn next(&self) -> LogPosition {
        // During a replay, later events are only in the log and not in an inbox yet.
        match self.progress.is_over.load(Ordering::Acquire) {
            true => self.log.next(),
            false => self.progress.position.load(Ordering::Acquire),
        }
    }

    /// The position of the next event that is received.
    pub(super) fn end(&self) -> LogPosition {
        self.log.next()
    }

    /// Whether the events that were in the log at the start are still being replayed.
    pub(super) fn is_replaying(&self) -> bool {
        !self.progress.is_over.load(Ordering::Acquire)
    }

    /// How many events are in the log that an application has yet to get, if they are left there for it from
    /// `left_from` on, or if the log is being replayed; at most, because others' are among them.
    pub(super) fn left(&self, left_from: Option<LogPosition>) -> Option<u64> {
        let from = left_from.or_else(|| self.is_replaying().then(|| self.next()))?;
        Some(self.end().saturating_sub(from.max(self.first())))
    }

    /// Waits until all events before `position` are on disk; false if that takes longer than `limit`.
    pub(super) fn wait_durable(&self, position: LogPosition, limit: Duration) -> bool {
        self.log.wait_durable(position, limit)
    }

    /// Makes new positions higher than `position`, up to which a checkpoint has events. If the log ended before that,
    /// its end was lost.
    pub(super) fn pass(&self, position: LogPosition) {
        let end = self.found_to();
        if position > end {
            let text = format!(
                "the log ends at position {end}, and a checkpoint has events up to {position}: files of the log are missing, and what was \
                 received behind that checkpoint is lost"
            );
            tracing::error!("{text}");
            *self.cut.lock() = Some(text);
        }
        self.log.pass(position);
    }

    /// Waits until all events that were received by now are on disk; false if that takes longer than `limit`.
    pub(super) fn wait_all_durable(&self, limit: Duration) -> bool {
        self.log.wait_durable(self.log.next() - 1, limit)
    }

    /// Its current files. None is deleted as long as the returned value exists.
    pub(super) fn hold(&self) -> HeldLog {
        self.log.hold()
    }

    /// No retained checkpoint needs events before `position`. Events that may be sent again, because their sender has
    /// no acknowledgement, are kept nevertheless: after a restart only the log recognizes the repeat.
    pub(super) fn forget_before(&self, position: LogPosition) {
        let (now_us, next) = (self.clock.steady_us(), self.log.next());
        let mut recent = self.recent.lock();
        if recent.back().is_none_or(|(at_us, _)| now_us - at_us >= SETTLING_STEP_US) {
            recent.push_back((now_us, next));
        }
        let is_committed = |(at_us, _): &(i64, LogPosition)| now_us - at_us >= UNACKNOWLEDGED_US;
        while recent.get(1).is_some_and(is_committed) {
            recent.pop_front();
        }
        let final_up_to = recent.front().filter(|one| is_committed(one)).map_or(0, |(_, next)| *next);
        let position = position.min(final_up_to);
        self.forgotten.fetch_max(position, Ordering::AcqRel);
        self.log.forget_before(position);
    }

    /// The position before which no event is needed any more; 0 if that is not known yet.
    pub(super) fn forgotten(&self) -> LogPosition {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Ends the replay, if it is still under way. The remaining events are replayed at the next start.
    pub(super) fn end_replay(&self) {
        self.progress.is_to_end.store(true, Ordering::Release);
        let thread = self.thread.lock().take();
        // The engine may be dropped by this very thread, which cannot wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // The thread has reported its error itself.
            let _ = thread.join();
        }
    }

    /// Writes the waiting records, and ends.
    pub(super) fn close(&self) {
        let left = self.log.close();
        if left > 0 {
            tracing::error!(events = left, "events could not be written to the log; none of them was acknowledged");
        }
    }

    /// The counters of the log.
    pub(super) fn stats(&self) -> LogStats {
        self.log.stats()
    }

    /// The position behind the last event of the file that has this position.
    pub(super) fn file_end(&self, position: LogPosition) -> LogPosition {
        self.log.file_end(position)
    }

    /// Whether three quarters of the log are full.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.log.is_nearly_full()
    }

    /// Notes why an application cannot read on, or that all can.
    pub(super) fn note_unread(&self, problem: Option<String>) {
        *self.unread.lock() = problem;
    }

    /// Why events cannot be logged, or are not replayed, now.
    pub(super) fn problem(&self) -> Option<String> {
        self.log.stats().problem.or_else(|| self.progress.problem.lock().clone())
    }

    /// What an operator of the server should know about lost parts of the log, and those that cannot be read.
    pub(super) fn loss(&self) -> Option<String> {
        let lost = self.progress.lost.load(Ordering::Relaxed);
        let lost =
            (lost > 0).then(|| format!("{} of the log could not be read: lost or damaged", counted(lost, "event")));
        let all: Vec<String> = (lost.into_iter().chain(self.unread.lock().clone()).chain(self.cut.lock().clone()))
            .chain(self.found.problems.iter().cloned())
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The status of the log, for users.
    pub(super) fn status(&self) -> LogStatus {
        let stats = self.log.stats();
        let progress = &self.progress;
        LogStatus {
            first: stats.first,
            next: stats.next,
            durable: stats.durable,
            disk_bytes: stats.disk_bytes,
            segments: stats.segments,
            commits: stats.commits,
            torn_bytes: self.found.torn_bytes,
            is_replaying: self.is_replaying(),
            replayed_events: progress.events.load(Ordering::Relaxed),
            replay_ms: progress.elapsed_ms.load(Ordering::Relaxed),
            lost_events: progress.lost.load(Ordering::Relaxed),
            loss: self.loss(),
            problem: self.problem(),
        }
    }

    /// Begins to replay from a position, in a thread of its own; from 0 it replays everything that was ever received.
    /// If it `asks_for_all`, events that the log no longer has are counted as lost. The timers of the workers, which
    /// the caller holds, go on at the end. `change` is called before each event, and `over` at the end.
    ///
    /// # Errors
    /// There can be no more threads, or the log cannot be read.
    pub(super) fn replay(
        &self,
        from: LogPosition,
        asks_for_all: bool,
        router: Arc<Router>,
        workers: Arc<Workers>,
        change: Change,
        over: Box<dyn Fn() + Send>,
    ) -> Result<(), ServiceError> {
        let wanted = if asks_for_all { from.max(1) } else { from.max(self.first()) };
        let from = wanted.max(self.first());
        self.progress.lost.store(from - wanted, Ordering::Relaxed);
        self.progress.position.store(from, Ordering::Release);
        let is_empty = self.log.next() <= from;
        if is_empty && change(LogPosition::MAX) == LogPosition::MAX && router.end_replay(|_| true) {
            say_loss(self.progress.lost.load(Ordering::Relaxed));
            over();
            workers.hold_timers_at(i64::MAX);
            self.progress.is_over.store(true, Ordering::Release);
            return Ok(());
        }
        let known = self.log.read(from, self.log.next(), &mut |record| {
            // Results have no packet id: a client that waits for an acknowledgement is not a query.
            if record.packet_id == 0 {
                router.expect_repeat(&message(&record));
            }
            true
        });
        known.map_err(|error| unavailable(&error))?;
        let replay = Replay {
            workers,
            change,
            over,
            log: self.log.clone(),
            router,
            progress: self.progress.clone(),
            replayed_to: self.replayed_to.clone(),
            known_to: self.log.next(),
            begun: Instant::now(),
            next: from,
            waits_for_room: self.stepped.is_none(),
        };
        if let Some(stepped) = &self.stepped {
            *stepped.lock() = Some(replay);
            return Ok(());
        }
        let thread = std::thread::Builder::new().name("rivulet-replay".into()).spawn(move || replay.run());
        let thread = thread.map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("cannot start the thread that replays: {error}"))
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Without a replay thread, hands over at most `events_max` events. If it `ends`, it also hands over all that are
    /// left, if they are few. Returns whether the replay is over.
    pub(super) fn replay_some(&self, events_max: u64, ends: bool) -> bool {
        let Some(stepped) = &self.stepped else { return self.progress.is_over.load(Ordering::Acquire) };
        let mut replay = stepped.lock();
        let is_over = replay.as_mut().is_none_or(|replay| replay.advance(events_max, ends) == Advance::Over);
        if is_over {
            *replay = None;
        }
        is_over
    }

    /// Whether nothing is accepted until a checkpoint lets the log be shortened: it is full, and the disk takes writes.
    pub(super) fn waits_for_checkpoint(&self) -> bool {
        !self.log.is_broken() && self.log.stats().problem.is_some()
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.end_replay();
    }
}

fn unavailable(error: &StorageError) -> ServiceError {
    ServiceError::from_text(ErrorKind::Unavailable, &error.to_string())
}

/// The log, as the router uses it.
struct RouterLog(Arc<Log>);

impl MessageLog for RouterLog {
    fn append(&self, message: &Received<'_>, may_exceed: bool, take: &mut dyn FnMut(LogPosition) -> bool) -> Logged {
        let Received { arrival_us, client, packet_id, topic, payload } = *message;
        let record = Record { position: 0, arrival_us, client, packet_id, topic, payload };
        match self.0.append(&record, may_exceed, take) {
            Appended::At(position) => Logged::At(position),
            Appended::NotTaken => Logged::NotTaken,
            Appended::Full => Logged::Full,
        }
    }

    fn next(&self) -> LogPosition {
        self.0.next()
    }

    fn durable(&self) -> LogPosition {
        self.0.durable()
    }

    fn committed(&self) -> &Notify {
        self.0.committed()
    }
}
