//! Replay: what the log has and no checkpoint covers goes through the router once more, as it came.
//!
//! Timers do not run ahead of what is yet to be replayed: the clock of queries is held at the arrival of the next event.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rivulet_connectors::mqtt::Router;
use rivulet_dataflow::{LogPosition, Push};
use rivulet_storage::log::{Log, Read, Record};

use super::{EventLog, Progress, message};
use crate::engine::Engine;
use crate::service::{ErrorKind, ServiceError};

/// How long to wait for room in an inbox.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// How many events are handed over at once at the end of the replay, while nothing is received.
const REST_MAX: u64 = 4_096;

/// How long the disk may take for what has just come.
const DISK_WAIT_MAX: Duration = Duration::from_millis(100);

/// How long to wait before a disk that refuses is asked again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl EventLog {
    /// Begins to replay from a position, in a thread of its own.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(in crate::engine) fn replay(&self, engine: &Arc<Engine>, from: LogPosition) -> Result<(), ServiceError> {
        let router = engine.messaging.router().clone();
        self.progress.position.store(from, Ordering::Release);
        if self.log.next() <= from && router.end_replay(|_| true) {
            self.progress.is_over.store(true, Ordering::Release);
            return Ok(());
        }
        // Nothing of it is in an inbox yet.
        engine.workers.hold_timers_at(0);
        let replay = Replay {
            engine: Arc::downgrade(engine),
            log: self.log.clone(),
            router,
            progress: self.progress.clone(),
            known_to: self.log.next(),
            begun: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("rivulet-replay".into()).spawn(move || replay.run(from));
        let thread = thread.map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("cannot start the thread that replays: {error}"))
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }
}

struct Replay {
    /// Whose timers must not run ahead.
    engine: Weak<Engine>,
    log: Arc<Log>,
    router: Arc<Router>,
    progress: Arc<Progress>,
    /// What came from here on was received since the start.
    known_to: LogPosition,
    begun: Instant,
}

impl Replay {
    fn run(&self, from: LogPosition) {
        let mut next = from;
        tracing::info!(from, to = self.known_to, "events of the log are replayed");
        while !self.is_to_end() {
            // What is not on disk yet is not read, and will be in a moment.
            let disk_answers = self.log.wait_durable(self.log.next() - 1, DISK_WAIT_MAX);
            match self.log.read(next, LogPosition::MAX, &mut |record| self.push(&record)) {
                Ok(Read { next: read, lost, .. }) => {
                    next = read;
                    self.progress.problem.lock().take();
                    self.progress.lost.fetch_add(lost, Ordering::Relaxed);
                    self.progress.position.fetch_max(next, Ordering::AcqRel);
                    let is_near = disk_answers && self.log.next() - next <= REST_MAX;
                    if is_near && !self.is_to_end() && self.hand_over_rest(next) {
                        return self.finish();
                    }
                    next = self.progress.position.load(Ordering::Acquire);
                }
                Err(error) => {
                    let text = error.to_string();
                    tracing::error!("the log cannot be replayed, it is tried again: {text}");
                    next = self.progress.position.load(Ordering::Acquire);
                    *self.progress.problem.lock() = Some(text);
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
    }

    /// Hands over the last events while nothing new is received, so that what comes then goes to its inboxes; false if that was not
    /// possible now.
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
            matches!(read, Some(Ok(read)) if read.next == next)
        })
    }

    fn finish(&self) {
        self.hold_timers_at(i64::MAX);
        self.note_time();
        self.progress.is_over.store(true, Ordering::Release);
        let (events, lost) = (self.progress.events.load(Ordering::Relaxed), self.progress.lost.load(Ordering::Relaxed));
        tracing::info!(events, lost, elapsed_ms = self.begun.elapsed().as_millis() as u64, "the log is replayed");
        if lost > 0 {
            tracing::error!(events = lost, "events of the log are damaged and could not be replayed");
        }
    }

    /// Puts an event into its inboxes; false if the engine stops.
    fn push(&self, record: &Record<'_>) -> bool {
        let message = message(record);
        self.hold_timers_at(record.arrival_us);
        loop {
            if self.is_to_end() {
                return false;
            }
            let pushed = self.router.read().replay(&message, record.position, record.position >= self.known_to);
            if pushed == Push::Taken {
                break;
            }
            self.note_time();
            std::thread::sleep(FULL_PAUSE);
        }
        self.progress.events.fetch_add(1, Ordering::Relaxed);
        self.progress.position.store(record.position + 1, Ordering::Release);
        true
    }

    fn hold_timers_at(&self, at_us: i64) {
        if let Some(engine) = self.engine.upgrade() {
            engine.workers.hold_timers_at(at_us);
        }
    }

    fn note_time(&self) {
        self.progress.elapsed_ms.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn is_to_end(&self) -> bool {
        self.progress.is_to_end.load(Ordering::Acquire)
    }
}
