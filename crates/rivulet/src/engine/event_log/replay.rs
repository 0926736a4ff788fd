//! Replay: events in the log that no checkpoint covers go through the router once more, unchanged.
//!
//! Results that the log has as events of other queries are announced to the router first: the queries that gave them
//! will give them once more.
//!
//! Timers do not run ahead of events that are yet to be replayed: the clock of queries is held at the arrival of the
//! next event.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{Received, Router};
use rivulet_dataflow::{LogPosition, Push};
use rivulet_runtime::Workers;
use rivulet_storage::log::{Log, Read, Record};

/// How long to wait for room in an inbox.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// The most events that are handed over at once at the end of a replay, while nothing is received.
const REST_MAX: u64 = 4_096;

/// How long the disk may take for the newest events.
const DISK_WAIT_MAX: Duration = Duration::from_millis(100);

/// The pause before another attempt after the disk has failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The progress of the replay.
#[derive(Default)]
pub(super) struct Progress {
    /// All events before this position are in the inboxes.
    pub(super) position: AtomicU64,
    /// The number of replayed events.
    pub(super) events: AtomicU64,
    /// The number of positions that could not be read.
    pub(super) lost: AtomicU64,
    /// From the first of these to the position behind the last. Several applications may read there, and each is
    /// counted once; what is found between two that were counted is not.
    pub(super) lost_within: Mutex<Range<LogPosition>>,
    /// The duration of the replay so far, in milliseconds.
    pub(super) elapsed_ms: AtomicU64,
    pub(super) is_over: AtomicBool,
    pub(super) is_to_end: AtomicBool,
    /// Why the replay does not continue.
    pub(super) problem: Mutex<Option<String>>,
}

impl Progress {
    /// Counts what was lost before and behind the positions that were counted.
    pub(super) fn count_lost(&self, &Read { lost, lost_from, lost_to, .. }: &Read) {
        if lost == 0 {
            return;
        }
        let mut within = self.lost_within.lock();
        if within.is_empty() {
            *within = lost_from..lost_from;
        }
        let outside = within.start.saturating_sub(lost_from) + lost_to.saturating_sub(within.end);
        self.lost.fetch_add(lost.min(outside), Ordering::Relaxed);
        *within = within.start.min(lost_from)..within.end.max(lost_to);
    }
}

/// The outcome of a part of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
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
    pub(super) workers: Arc<Workers>,
    pub(super) change: Change,
    /// Called when all events were handed over.
    pub(super) over: Box<dyn Fn() + Send>,
    pub(super) log: Arc<Log>,
    pub(super) router: Arc<Router>,
    pub(super) progress: Arc<Progress>,
    /// Where the replay has ended, once it has.
    pub(super) replayed_to: Arc<AtomicU64>,
    /// Events from this position on were received since the start.
    pub(super) known_to: LogPosition,
    pub(super) begun: Instant,
    /// The position of the next event.
    pub(super) next: LogPosition,
    /// Whether to wait for room in an inbox. Otherwise the caller tries again with the next part.
    pub(super) waits_for_room: bool,
}

impl Replay {
    pub(super) fn run(mut self) {
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
    pub(super) fn advance(&mut self, events_max: u64, ends: bool) -> Advance {
        // Events that are not on disk yet cannot be read; they will be there in a moment.
        let disk_answers = self.log.wait_durable(self.log.next() - 1, DISK_WAIT_MAX);
        let mut left = events_max;
        let read = self.log.read(self.next, LogPosition::MAX, &mut |record| {
            let is_pushed = left > 0 && self.push(&record);
            left -= u64::from(is_pushed);
            is_pushed
        });
        let advance = match read {
            Ok(read) => {
                self.progress.problem.lock().take();
                self.progress.count_lost(&read);
                self.progress.position.fetch_max(read.next, Ordering::AcqRel);
                let is_near = disk_answers && self.log.next() - read.next <= REST_MAX;
                let is_changed = || (self.change)(self.up_to(read.next)) == LogPosition::MAX;
                match ends && is_near && !self.is_to_end() && is_changed() && self.hand_over_rest(read.next) {
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
            self.progress.count_lost(&read);
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

/// A record as a message of the router.
pub(super) fn message<'r>(record: &Record<'r>) -> Received<'r> {
    let Record { arrival_us, client, packet_id, topic, payload, .. } = *record;
    Received { arrival_us, client, packet_id, topic, payload }
}

/// Reports once how many events of the log are lost, if any are.
pub(super) fn say_loss(lost: u64) {
    if lost > 0 {
        tracing::error!(events = lost, "events of the log were lost or damaged, and could not be replayed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_applications_cannot_read_is_counted_once() {
        let progress = Progress::default();
        let count = |lost_from, lost_to, lost| {
            progress.count_lost(&Read { lost, lost_from, lost_to, ..Read::default() });
            progress.lost.load(Ordering::Relaxed)
        };
        assert_eq!(count(0, 0, 0), 0);
        assert_eq!((count(500, 510, 10), count(500, 510, 10)), (10, 10));
        assert_eq!((count(100, 120, 20), count(100, 510, 30)), (30, 30), "a gap before it");
        assert_eq!(count(500, 515, 15), 35);
    }
}
