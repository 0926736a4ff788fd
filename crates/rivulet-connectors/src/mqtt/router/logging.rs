//! The log of messages for durable inputs, around the routes.
//!
//! A message for a durable input goes to the log and into the inboxes at the same moment, and gets its position: each
//! inbox has the messages of the log in the order of their positions. So such a message goes to all its inboxes or to
//! none. During the replay, messages only go to the end of the log, and are replayed from there in their turn. After a
//! crash the engine gives some results again that are in the log already. Such a result goes to no durable input: these
//! inputs get it from the log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use rivulet_dataflow::{LogPosition, LoggedEvent, Push};

use super::super::index::TopicIndex;
use super::super::log::MessageLog;
use super::super::received::Received;
use super::super::repeats::Repeats;
use super::routes::{Delivery, Routes, Target};

/// The log, and the router's knowledge of it.
pub(super) struct Logging {
    pub(super) log: OnceLock<Arc<dyn MessageLog>>,
    /// Whether the log is still being replayed.
    pub(super) is_replaying: AtomicBool,
    /// The position behind the last message that was replayed.
    pub(super) replayed_to: AtomicU64,
    /// Results that are in the log and may be given once more.
    repeats: Mutex<Repeats>,
    /// Whether there are such results.
    expects_repeats: AtomicBool,
    /// Topics whose results are logged even while no query reads them, each with the number of the caller that asked
    /// for it.
    pub(super) kept: RwLock<TopicIndex<u64>>,
    /// Topics that durable inputs are about to read before the log is replayed, each with a number of whoever said so.
    pub(super) awaited: RwLock<TopicIndex<u64>>,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            log: OnceLock::new(),
            is_replaying: AtomicBool::new(true),
            replayed_to: AtomicU64::new(0),
            repeats: Mutex::default(),
            expects_repeats: AtomicBool::new(false),
            kept: RwLock::default(),
            awaited: RwLock::default(),
        }
    }
}

impl Logging {
    /// Changes the set of results that are expected once more.
    pub(super) fn change_repeats<R>(&self, change: impl FnOnce(&mut Repeats) -> R) -> R {
        let mut repeats = self.repeats.lock();
        let result = change(&mut repeats);
        self.expects_repeats.store(!repeats.is_empty(), Ordering::Release);
        result
    }

    /// Whether messages only go to the log, from which they are replayed.
    pub(super) fn is_replaying(&self) -> bool {
        self.is_replaying.load(Ordering::Acquire)
    }

    /// The position behind the last message that was replayed; it does not change while the routes are locked.
    pub(super) fn replayed_to(&self) -> LogPosition {
        self.replayed_to.load(Ordering::Acquire)
    }

    /// Whether the log has this result, which is given once more. To be asked once for each result.
    pub(super) fn has(&self, origin: &[u8], topic: &[u8]) -> bool {
        !origin.is_empty()
            && self.expects_repeats.load(Ordering::Acquire)
            && self.change_repeats(|repeats| repeats.take(origin, topic))
    }

    /// Whether a message on this topic is logged though no durable input reads it now.
    pub(super) fn keeps(&self, topic: &[u8], is_result: bool, is_replaying: bool) -> bool {
        let mut is_kept = false;
        if is_replaying {
            self.awaited.read().for_each(topic, |_| is_kept = true);
        }
        if is_result && !is_kept {
            self.kept.read().for_each(topic, |_| is_kept = true);
        }
        is_kept
    }
}

/// What a message for the log is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldBy {
    Inbox,
    Log,
}

/// Finds the targets of a message of a topic: of durable inputs, or all. Returns whether a durable input is among them.
#[inline]
pub(super) fn find(routes: &Routes, topic: &[u8], by_all: bool, found: &mut Vec<Target>) -> bool {
    found.clear();
    let mut is_logged = false;
    routes.for_each(topic, |delivery| {
        if by_all || delivery.is_logged {
            is_logged |= delivery.is_logged;
            found.push(delivery.target);
        }
    });
    found.sort_unstable();
    is_logged
}

/// Puts a message of the log into all of these inboxes, or into none if one has no room and `must_fit` is false.
#[inline]
pub(super) fn deliver(
    routes: &Routes,
    targets: &[Target],
    message: &Received<'_>,
    position: LogPosition,
    must_fit: bool,
) -> bool {
    let Received { arrival_us, topic, payload, .. } = *message;
    let has_room = |Delivery { target, inbox, .. }: Delivery<'_>| inbox.has_room(target.slot, payload.len());
    // A single inbox need not be asked for room first: it takes the message or refuses it.
    let is_single = targets.len() == 1;
    if !is_single && !must_fit && !targets.iter().all(|&target| routes.delivery(target).is_none_or(has_room)) {
        return false;
    }
    let must_fit = must_fit || !is_single;
    let mut is_taken = true;
    for Delivery { target, inbox, is_logged } in targets.iter().filter_map(|&target| routes.delivery(target)) {
        let position = if is_logged { position } else { 0 };
        let event = LoggedEvent { slot: target.slot, arrival_us, position, topic, payload };
        is_taken &= inbox.push_logged(event, must_fit) == Push::Taken;
    }
    is_taken || must_fit
}
