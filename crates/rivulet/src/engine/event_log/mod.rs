//! The log of events: what durable inputs receive is on disk before its sender is told so, and is replayed after a crash.
//!
//! The router puts events into it ([`RouterLog`]). At a start what checkpoints do not cover is replayed ([`replay`]); what is received meanwhile goes to the end of
//! the log and waits for its turn there, so that the order is that of the log and nobody has to wait for the replay.
//!
//! What must hold: an event that was acknowledged is in the log up to where [`EventLog::durable`] says, and is kept there until a
//! checkpoint has it ([`EventLog::forget_before`]).

mod replay;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{LogMessage, Logged, MessageLog};
use rivulet_dataflow::LogPosition;
use rivulet_storage::log::{Appended, Found, Log, LogSettings, LogStats, Record};
use tokio::sync::Notify;

use super::messaging::Messaging;
use crate::config::DurabilityConfig;
use crate::service::{ErrorKind, LogStatus, ServiceError};

/// How far back from the end of the log its messages may not have been acknowledged although they are in it. An acknowledgement follows
/// within milliseconds.
const UNACKNOWLEDGED_US: i64 = 10_000_000;

/// The log of one server.
pub(super) struct EventLog {
    log: Arc<Log>,
    found: Found,
    progress: Arc<Progress>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How far the replay has come.
#[derive(Default)]
struct Progress {
    /// Everything before this is in the inboxes.
    position: AtomicU64,
    /// Events that were replayed.
    events: AtomicU64,
    /// Positions that could not be read.
    lost: AtomicU64,
    /// How long it has taken, milliseconds.
    elapsed_ms: AtomicU64,
    is_over: AtomicBool,
    is_to_end: AtomicBool,
    /// Why it does not go on.
    problem: Mutex<Option<String>>,
}

impl EventLog {
    /// Opens the log in the data folder.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(data_dir: &Path, config: &DurabilityConfig) -> Result<Self, ServiceError> {
        let settings = LogSettings {
            bytes_max: config.log_bytes_max,
            commit_interval: config.commit_interval,
            ..LogSettings::default()
        };
        let opened = Log::open(&data_dir.join("log"), settings);
        let (log, found) =
            opened.map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()))?;
        let progress = Arc::new(Progress { position: AtomicU64::new(found.first), ..Progress::default() });
        Ok(Self { log: Arc::new(log), found, progress, thread: Mutex::default() })
    }

    /// Lets the router log, and tells those who receive what senders may send again. Nothing is received before that.
    ///
    /// # Errors
    /// The end of the log cannot be read.
    pub(super) fn attach(&self, messaging: &Messaging) -> Result<(), ServiceError> {
        let read = self.log.read_end(UNACKNOWLEDGED_US, &mut |record| {
            if record.packet_id != 0 {
                messaging.remember(&message(&record), record.position);
            }
        });
        read.map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()))?;
        messaging.router().log_to(Arc::new(RouterLog(self.log.clone())));
        Ok(())
    }

    /// The lowest position that the log still has.
    pub(super) fn first(&self) -> LogPosition {
        self.found.first
    }

    /// The position of the next event. Whoever knows that nothing waits since before this was asked has all before it.
    pub(super) fn next(&self) -> LogPosition {
        // What is only in the log is in no inbox yet.
        match self.progress.is_over.load(Ordering::Acquire) {
            true => self.log.next(),
            false => self.progress.position.load(Ordering::Acquire),
        }
    }

    /// Waits until everything before `position` is on disk; false if that takes longer than `limit`.
    pub(super) fn wait_durable(&self, position: LogPosition, limit: Duration) -> bool {
        self.log.wait_durable(position, limit)
    }

    /// From now on positions are higher than `position`, up to which a checkpoint has come.
    pub(super) fn pass(&self, position: LogPosition) {
        self.log.pass(position);
    }

    /// No checkpoint that is kept needs what is before `position`.
    pub(super) fn forget_before(&self, position: LogPosition) {
        self.log.forget_before(position);
    }

    /// Ends the replay, if it is still under way: what is left is replayed at the next start.
    pub(super) fn end_replay(&self) {
        self.progress.is_to_end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.lock().take() {
            // It has said itself what went wrong.
            let _ = thread.join();
        }
    }

    /// Writes what has gathered, and ends.
    pub(super) fn close(&self) {
        let left = self.log.close();
        if left > 0 {
            tracing::error!(events = left, "events could not be written to the log; none of them was acknowledged");
        }
    }

    /// What has happened.
    pub(super) fn stats(&self) -> LogStats {
        self.log.stats()
    }

    /// Why events cannot be logged, or are not replayed, at present.
    pub(super) fn problem(&self) -> Option<String> {
        self.log.stats().problem.or_else(|| self.progress.problem.lock().clone())
    }

    /// How it stands, for people.
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
            is_replaying: !progress.is_over.load(Ordering::Acquire),
            replayed_events: progress.events.load(Ordering::Relaxed),
            replay_ms: progress.elapsed_ms.load(Ordering::Relaxed),
            lost_events: progress.lost.load(Ordering::Relaxed),
            problem: self.problem(),
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.end_replay();
    }
}

/// A record as a message of the router.
fn message<'r>(record: &Record<'r>) -> LogMessage<'r> {
    let Record { arrival_us, client, packet_id, topic, payload, .. } = *record;
    LogMessage { arrival_us, client, packet_id, topic, payload }
}

/// The log as the router sees it.
struct RouterLog(Arc<Log>);

impl MessageLog for RouterLog {
    fn append(&self, message: &LogMessage<'_>, take: &mut dyn FnMut(LogPosition) -> bool) -> Logged {
        let LogMessage { arrival_us, client, packet_id, topic, payload } = *message;
        let record = Record { position: 0, arrival_us, client, packet_id, topic, payload };
        match self.0.append(&record, take) {
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
