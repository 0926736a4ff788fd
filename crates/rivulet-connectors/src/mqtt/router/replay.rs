//! Connects a router with its log: which topics are logged, and the replay of the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_dataflow::{LogPosition, Push};

use super::super::log::MessageLog;
use super::super::received::Received;
use super::super::repeats::{Repeats, write_origin};
use super::logging::{deliver, find};
use super::{Pending, Router, Routing};

impl Router {
    /// From now on messages for durable inputs go to `log`, and until [`Router::end_replay`] only there. A router has
    /// one log; a second one is ignored.
    pub fn log_to(&self, log: Arc<dyn MessageLog>) {
        // The lock waits until nothing is being routed.
        let _routes = self.routes.write();
        let _ = self.logging.log.set(log);
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
