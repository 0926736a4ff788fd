//! Replay: events in the log that no checkpoint covers go through the router once more, unchanged.
//!
//! Results that the log has as events of other queries are announced to the router first: the queries that gave them
//! will give them once more.
//!
//! Timers do not run ahead of events that are yet to be replayed: the clock of queries is held at the arrival of the
//! next event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rivulet_connectors::mqtt::Router;
use rivulet_dataflow::{LogPosition, Push};
use rivulet_runtime::Workers;
use rivulet_storage::log::{Log, Read, Record};

use super::{EventLog, Progress, message, unavailable};
use crate::service::{ErrorKind, ServiceError};

/// How long to wait for room in an inbox.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// The most events that are handed over at once at the end of the replay, while nothing is received.
const REST_MAX: u64 = 4_096;

/// How long the disk may take for the newest events.
const DISK_WAIT_MAX: Duration = Duration::from_millis(100);

/// The pause before another attempt after the disk has failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl EventLog {
    /// Begins to replay from a position, in a thread of its own; from 0 it replays everything that was ever received.
    /// If it `asks_for_all`, events that the log no longer has are counted as lost. Holds the timers of the workers.
    /// `change` is called before each event, and `over` at the end.
    ///
    /// # Errors
    /// There can be no more threads, or the log cannot be read.
    pub(in crate::engine) fn replay(
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
        // None of these events is in an inbox yet.
        workers.hold_timers_at(0);
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
    pub(in crate::engine) fn replay_some(&self, events_max: u64, ends: bool) -> bool {
        let Some(stepped) = &self.stepped else { return self.progress.is_over.load(Ordering::Acquire) };
        let mut replay = stepped.lock();
        let is_over = replay.as_mut().is_none_or(|replay| replay.advance(events_max, ends) == Advance::Over);
        if is_over {
            *replay = None;
        }
        is_over
    }
}

/// The outcome of a part of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    /// There are more events.
    GoesOn,
    /// The log could not be read.
    Failed,
    /// All events were handed over.
    Over,
}

/// Makes the changes up to a position of the log before the event at that position is handed over, if all events before
/// it are processed. Returns the position of the next change, or the highest position there can be.
pub(in crate::engine) type Change = Box<dyn Fn(LogPosition) -> LogPosition + Send>;

pub(super) struct Replay {
    /// The workers, whose timers must not run ahead.
    workers: Arc<Workers>,
    change: Change,
    /// Called when all events were handed over.
    over: Box<dyn Fn() + Send>,
    log: Arc<Log>,
    router: Arc<Router>,
    progress: Arc<Progress>,
    /// Where the replay has ended, once it has.
    replayed_to: Arc<AtomicU64>,
    /// Events from this position on were received since the start.
    known_to: LogPosition,
    begun: Instant,
    /// The position of the next event.
    next: LogPosition,
    /// Whether to wait for room in an inbox. Otherwise the caller tries again with the next part.
    waits_for_room: bool,
}

impl Replay {
    fn run(mut self) {
        tracing::info!(from = self.next, to = self.known_to, "events of the log are replayed");
        while !self.is_to_end() {
            match self.advance(u64::MAX, true) {
                Advance::GoesOn => {}
                Advance::Failed => std::thread::sleep(RETRY_PAUSE),
                Advance::Over => return,
            }
        }
    }

    /// Hands over events that are on disk, but at most `events_max`. If it `ends`, it then hands over the rest.
    fn advance(&mut self, events_max: u64, ends: bool) -> Advance {
        // Events that are not on disk yet cannot be read; they will be there in a moment.
        let disk_answers = self.log.wait_durable(self.log.next() - 1, DISK_WAIT_MAX);
        let mut left = events_max;
        let read = self.log.read(self.next, LogPosition::MAX, &mut |record| {
            let is_pushed = left > 0 && self.push(&record);
            left -= u64::from(is_pushed);
            is_pushed
        });
        let advance = match read {
            Ok(Read { next: read, lost, .. }) => {
                self.progress.problem.lock().take();
                self.progress.lost.fetch_add(lost, Ordering::Relaxed);
                self.progress.position.fetch_max(read, Ordering::AcqRel);
                let is_near = disk_answers && self.log.next() - read <= REST_MAX;
                let is_changed = || (self.change)(self.up_to(read)) == LogPosition::MAX;
                match ends && is_near && !self.is_to_end() && is_changed() && self.hand_over_rest(read) {
                    true => {
                        self.finish();
                        Advance::Over
                    }
                    false => Advance::GoesOn,
                }
            }
            Err(error) => {
                let text = error.to_string();
                tracing::error!("the log cannot be replayed, it is tried again: {text}");
                *self.progress.problem.lock() = Some(text);
                Advance::Failed
            }
        };
        self.next = self.progress.position.load(Ordering::Acquire);
        advance
    }

    /// The position up to which changes must be made before events from `next` on are handed over. There are no changes
    /// among events that came since the start.
    fn up_to(&self, next: LogPosition) -> LogPosition {
        if next >= self.known_to { LogPosition::MAX } else { next }
    }

    /// Hands over the last events while nothing new is received, so that later events go directly to their inboxes.
    /// Returns false if that was not possible now.
    ///
    /// All changes of values were made. An application that is started late, because a table was missing, may bring
    /// further ones until the router is locked. They are of before the start of the server, and the replay has come
    /// further, so they are made at once: none belongs between the events that are handed over here.
    fn hand_over_rest(&self, from: LogPosition) -> bool {
        self.router.end_replay(|push| {
            let next = self.log.next();
            let is_durable = self.log.wait_durable(next - 1, DISK_WAIT_MAX);
            let read = is_durable.then(|| {
                self.log.read(from, next, &mut |record| {
                    push(&message(&record), record.position, record.position >= self.known_to);
                    self.progress.events.fetch_add(1, Ordering::Relaxed);
                    self.progress.position.store(record.position + 1, Ordering::Release);
                    true
                })
            });
            let Some(Ok(read)) = read else { return false };
            self.progress.lost.fetch_add(read.lost, Ordering::Relaxed);
            self.progress.position.fetch_max(read.next, Ordering::AcqRel);
            read.next == next
        })
    }

    fn finish(&self) {
        (self.over)();
        self.hold_timers_at(i64::MAX);
        self.note_time();
        self.replayed_to.store(self.log.next(), Ordering::Release);
        self.progress.is_over.store(true, Ordering::Release);
        let (events, lost) = (self.progress.events.load(Ordering::Relaxed), self.progress.lost.load(Ordering::Relaxed));
        tracing::info!(events, lost, elapsed_ms = self.begun.elapsed().as_millis() as u64, "the log is replayed");
        say_loss(lost);
    }

    /// Puts an event into its inboxes. Returns false if the engine stops, or if there is no room and it does not wait
    /// for that.
    fn push(&self, record: &Record<'_>) -> bool {
        let message = message(record);
        loop {
            if self.is_to_end() {
                return false;
            }
            if (self.change)(record.position) > record.position {
                self.hold_timers_at(record.arrival_us);
                let pushed = self.router.read().replay(&message, record.position, record.position >= self.known_to);
                if pushed == Push::Taken {
                    break;
                }
            }
            if !self.waits_for_room {
                return false;
            }
            self.note_time();
            std::thread::sleep(FULL_PAUSE);
        }
        self.progress.events.fetch_add(1, Ordering::Relaxed);
        self.progress.position.store(record.position + 1, Ordering::Release);
        true
    }

    fn hold_timers_at(&self, at_us: i64) {
        self.workers.hold_timers_at(at_us);
    }

    fn note_time(&self) {
        self.progress.elapsed_ms.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn is_to_end(&self) -> bool {
        self.progress.is_to_end.load(Ordering::Acquire)
    }
}

/// Reports once how many events of the log are lost, if any are.
fn say_loss(lost: u64) {
    if lost > 0 {
        tracing::error!(events = lost, "events of the log were lost or damaged, and could not be replayed");
    }
}
