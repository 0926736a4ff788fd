//! The log of messages for durable inputs, around the routes, and its replay.
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
use super::super::log::{Logged, MessageLog};
use super::super::repeats::{Repeats, write_origin};
use super::routes::{Delivery, Routes, Target};
use super::{Pending, Received, Router, Routing};

/// The log, and the router's knowledge of it.
pub(super) struct Logging {
    log: OnceLock<Arc<dyn MessageLog>>,
    /// Whether the log is still being replayed.
    is_replaying: AtomicBool,
    /// The position behind the last message that was replayed.
    replayed_to: AtomicU64,
    /// Results that are in the log and may be given once more.
    repeats: Mutex<Repeats>,
    /// Whether there are such results.
    expects_repeats: AtomicBool,
    /// Topics whose results are logged even while no query reads them, each with the number of the caller that asked
    /// for it.
    kept: RwLock<TopicIndex<u64>>,
    /// Topics that durable inputs are about to read before the log is replayed, each with a number of whoever said so.
    awaited: RwLock<TopicIndex<u64>>,
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
    fn change_repeats<R>(&self, change: impl FnOnce(&mut Repeats) -> R) -> R {
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
    fn keeps(&self, topic: &[u8], is_result: bool, is_replaying: bool) -> bool {
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

impl Router {
    /// From now on messages for durable inputs go to `log`, and until [`Router::end_replay`] only there. A router has
    /// one log; a second one is ignored.
    pub fn log_to(&self, log: Arc<dyn MessageLog>) {
        // The lock waits until nothing is being routed.
        let _routes = self.routes.write();
        let _ = self.logging.log.set(log);
    }

    /// The log, if there is one.
    pub fn log(&self) -> Option<&Arc<dyn MessageLog>> {
        self.logging.log.get()
    }

    /// Notes a message that is in the log from before the start, behind the position where queries go on. If it is a
    /// result, its query gives it once more, and then it is not logged again. To be called before anything is routed.
    pub fn expect_repeat(&self, message: &Received<'_>) {
        self.logging.change_repeats(|repeats| repeats.expect(message.client, message.topic));
    }

    /// From now on no result is given once more.
    pub fn forget_repeats(&self) {
        self.logging.change_repeats(|repeats| *repeats = Repeats::default());
    }

    /// From now on results of the engine on these topics are logged, even while no durable input reads them. When they
    /// are given once more after a crash, it is then known that they are older than the queries that read them by then.
    /// `number` identifies the caller that asks for this.
    pub fn keep_results(&self, filter: &str, number: u64) {
        self.logging.kept.write().insert(filter, number);
    }

    /// Takes back [`Router::keep_results`].
    pub fn keep_results_no_more(&self, filter: &str, number: u64) {
        self.logging.kept.write().remove(filter, number);
    }

    /// Durable inputs are about to read this topic or filter before the log is replayed: what comes on it until then is
    /// logged, and goes to those who read it when it is replayed in its turn. `number` tells who says so from others.
    pub fn await_routes(&self, filter: &str, number: u64) {
        self.logging.awaited.write().insert(filter, number);
    }

    /// Takes back [`Router::await_routes`].
    pub fn await_routes_no_more(&self, filter: &str, number: u64) {
        self.logging.awaited.write().remove(filter, number);
    }

    /// Stops routing for a moment, in which `rest` hands over the messages of the log that were not replayed. They must
    /// be few, for inboxes take them even beyond their bounds. `rest` says of each message whether it is new: see
    /// [`Routing::replay`]. If it returns true, these were all: messages go to their inboxes from now on. Returns the
    /// same.
    pub fn end_replay(&self, rest: impl FnOnce(&mut dyn FnMut(&Received<'_>, LogPosition, bool)) -> bool) -> bool {
        if self.log().is_none() {
            return true;
        }
        let routes = self.routes.write();
        let mut found = Vec::new();
        let mut pushed = 0;
        let is_all = rest(&mut |message, position, is_new| {
            find(&routes, message.topic, is_new, &mut found);
            deliver(&routes, &found, message, position, true);
            pushed += found.len() as u64;
            self.logging.replayed_to.store(position + 1, Ordering::Release);
        });
        self.counts.lock().pushed_events += pushed;
        if is_all {
            self.logging.is_replaying.store(false, Ordering::Release);
        }
        is_all
    }
}

impl Routing<'_> {
    /// The messages from here on are the result of the engine with this identity, which stays the same when the result
    /// is given once more. An empty `id` stands for a result without identity.
    pub fn of_result(&mut self, id: &str) {
        self.origin.clear();
        if !id.is_empty() && self.log.is_some() {
            write_origin(id, &mut self.origin);
        }
    }

    /// Puts a message that a durable input reads into the log and into all inboxes that want it, or nowhere. `None` if
    /// no durable input reads it. With `must_fit` no inbox refuses it.
    pub(super) fn route_logged(
        &mut self,
        message: &Received<'_>,
        pending: &mut Pending,
        must_fit: bool,
    ) -> Option<Push> {
        let log = self.log?;
        let (routes, logging) = (&*self.routes, &self.router.logging);
        let found = &mut self.found;
        let is_replaying = logging.is_replaying();
        let is_wanted = find(routes, message.topic, true, found);
        if !is_wanted && !logging.keeps(message.topic, !self.origin.is_empty(), is_replaying) {
            return None;
        }
        let client = if self.origin.is_empty() { message.client } else { &self.origin };
        let of_log = Received { client, ..*message };
        // The log is shortened when the results of its events have left. A result that is itself an event leaves by
        // going into the log, so it may exceed the bound.
        let may_exceed = must_fit || !self.is_input;
        let logged = log.append(&of_log, may_exceed, &mut |position| {
            is_replaying || deliver(routes, found, message, position, must_fit)
        });
        (pending.position, pending.held_by) = match logged {
            Logged::At(position) => (position, None),
            Logged::NotTaken => (0, Some(HeldBy::Inbox)),
            Logged::Full => (0, Some(HeldBy::Log)),
        };
        if pending.held_by.is_some() {
            self.counts.full_waits += 1;
            return Some(Push::Full);
        }
        let targets = self.found.len() as u64;
        self.counts.logged_messages += 1;
        self.counts.pushed_events += if is_replaying { 0 } else { targets };
        // Who gets a message that waits in the log is known when it is replayed.
        pending.is_delivered = targets > 0 || (is_replaying && self.is_input);
        self.count_taken(message, pending);
        Some(Push::Taken)
    }

    /// Breaks a deadlock in which a message waits for room that only comes when the message is out of the way. A
    /// message for a durable input exceeds the bounds of its inbox and of the log, for it must not get lost. Of any
    /// other message, the events that were not taken are abandoned. Returns their number. `None` if nothing can be
    /// done, because the message waits for the disk.
    pub fn break_circle(&mut self, message: &Received<'_>, pending: &mut Pending) -> Option<usize> {
        if pending.held_by.is_none() {
            return Some(pending.abandon());
        }
        match self.route_logged(message, pending, true) {
            Some(Push::Taken) => Some(0),
            Some(Push::Full) => None,
            // No durable input reads it any more.
            None => {
                pending.held_by = None;
                None
            }
        }
    }

    /// Puts a message of the log into the inboxes of the durable inputs that want it. If it `is_new`, that is, in the
    /// log only since the replay began, it goes into all inboxes that want it.
    pub fn replay(&mut self, message: &Received<'_>, position: LogPosition, is_new: bool) -> Push {
        find(&self.routes, message.topic, is_new, &mut self.found);
        if !deliver(&self.routes, &self.found, message, position, false) {
            return Push::Full;
        }
        self.counts.pushed_events += self.found.len() as u64;
        self.router.logging.replayed_to.store(position + 1, Ordering::Release);
        Push::Taken
    }
}

/// What a message for the log is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldBy {
    Inbox,
    Log,
}

/// Finds the targets of a message of a topic: of durable inputs, or all. Returns whether a durable input is among them.
fn find(routes: &Routes, topic: &[u8], by_all: bool, found: &mut Vec<Target>) -> bool {
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
fn deliver(routes: &Routes, targets: &[Target], message: &Received<'_>, position: LogPosition, must_fit: bool) -> bool {
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
