//! Delivers messages by their topic to the inboxes of the queries that read them.
//!
//! `router/routes.rs` finds the targets of a message and does nothing else. This file puts the routes behind a lock,
//! and pushes and counts messages. `router/logging.rs` has the log of durable inputs, and `router/replay.rs` replays
//! it.
//!
//! **Invariant:** either a message is exactly once in every inbox that wants it, or the caller still holds the message
//! and is told so.

mod behind;
mod logging;
mod replay;
mod routes;
mod strays;

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rivulet_dataflow::{Inbox, LogPosition, Push, Slot};

use super::log::{Logged, MessageLog};
use super::received::Received;
use super::topic;
pub use behind::Targets;
use logging::{HeldBy, Logging, deliver, find};
use routes::{Delivery, Routes, Target};
pub use routes::{InboxId, Parted, Route, RouteError};
use strays::Strays;

/// The number of routes that are added or removed under one lock. Readers wait about a millisecond for them.
pub const ROUTES_AT_ONCE: usize = 4096;

/// The routes of an engine, shared by everything that receives messages.
///
/// Inboxes are pushed to while the routes are locked. Code that changes the routes must not hold a lock that
/// [`Inbox::push`] waits for.
#[derive(Default)]
pub struct Router {
    routes: RwLock<Routes>,
    logging: Logging,
    is_closed: AtomicBool,
    counts: Mutex<RouterStats>,
    strays: Strays,
}

/// Counts of a router since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterStats {
    /// Messages that went to at least one inbox.
    pub routed_messages: u64,
    /// Messages of a topic that no query reads.
    pub unrouted_messages: u64,
    /// Events put into inboxes: a message that three queries read counts three times.
    pub pushed_events: u64,
    /// Payload bytes of all messages.
    pub payload_bytes: u64,
    /// How often a message was held back because an inbox or the log was full.
    pub full_waits: u64,
    /// Messages that went to the log.
    pub logged_messages: u64,
    /// The number of routes.
    pub routes: usize,
    /// Memory of the routes, in bytes.
    pub routes_bytes: usize,
}

impl AddAssign for RouterStats {
    fn add_assign(&mut self, other: Self) {
        self.routed_messages += other.routed_messages;
        self.unrouted_messages += other.unrouted_messages;
        self.pushed_events += other.pushed_events;
        self.payload_bytes += other.payload_bytes;
        self.full_waits += other.full_waits;
        self.logged_messages += other.logged_messages;
        self.routes += other.routes;
        self.routes_bytes += other.routes_bytes;
    }
}

/// A message under way that not every inbox has taken yet. The caller keeps it from a [`Push::Full`] to the next
/// [`Push::Taken`]; otherwise it is empty.
#[derive(Debug, Default)]
pub struct Pending {
    /// The targets that have not taken it yet.
    targets: Vec<Target>,
    /// The version of the routes in which `targets` was found.
    version: u64,
    /// Whether any inbox has taken it.
    is_delivered: bool,
    /// The position in the log of the last message that was taken; 0 if it is not in the log.
    position: LogPosition,
    /// What a message for the log is waiting for.
    held_by: Option<HeldBy>,
}

impl Pending {
    /// Whether no message is under way.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.held_by.is_none()
    }

    /// The position in the log of the last message that was taken; 0 if it is not in the log.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Whether any inbox has the last message that was taken.
    pub fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// Whether the message waits for room in the log, which only comes when the disk has room.
    pub fn waits_for_log(&self) -> bool {
        self.held_by == Some(HeldBy::Log)
    }

    /// Abandons the targets that have not taken it, and returns the number of events lost by that. The caller counts
    /// them.
    pub fn abandon(&mut self) -> usize {
        let lost = self.targets.len();
        self.targets.clear();
        self.held_by = None;
        lost
    }
}

impl Router {
    /// A router without routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers an inbox, so that routes can name it.
    pub fn register_inbox(&self, inbox: Arc<dyn Inbox>) -> InboxId {
        self.routes.write().register(inbox, false)
    }

    /// Registers the inbox of a durable input: all its messages go to the log too.
    pub fn register_logged_inbox(&self, inbox: Arc<dyn Inbox>) -> InboxId {
        self.routes.write().register(inbox, true)
    }

    /// Replaces an inbox by another: its routes stay, and messages under way go to the new inbox.
    pub fn replace_inbox(&self, id: InboxId, inbox: Arc<dyn Inbox>) {
        self.routes.write().replace(id, inbox);
    }

    /// Waits until all routing that was under way has ended. Later routing sees what the inboxes answer from now on.
    pub fn await_routing(&self) {
        drop(self.routes.write());
    }

    /// Unregisters an inbox. Messages for routes that still name it count as unrouted. Its number is reused when the
    /// last of these routes is removed.
    pub fn unregister_inbox(&self, id: InboxId) {
        self.routes.write().unregister(id);
    }

    /// Adds all of these routes, or none. A route that exists already stays as it is. Returns the position of the log
    /// from which on messages find all of them; during a replay, that of the next message that is replayed.
    ///
    /// Of more than [`ROUTES_AT_ONCE`] routes, messages before that position may find some: messages are routed between
    /// the pieces of a large addition, so it does not hold up the traffic.
    pub fn add(&self, routes: &[Route<'_>]) -> Result<LogPosition, RouteError> {
        for route in routes {
            topic::check_route(route.filter)?;
        }
        let (mut added, mut from) = (0, None);
        for chunk in routes.chunks(ROUTES_AT_ONCE) {
            let mut locked = self.routes.write();
            let result = locked.add(chunk);
            // No message is routed, and so none logged, while the routes are locked.
            from = Some(self.log_end());
            drop(locked);
            if let Err(error) = result {
                self.remove(&routes[..added]);
                return Err(error);
            }
            added += chunk.len();
        }
        Ok(from.unwrap_or_else(|| self.log_end()))
    }

    /// Adds the routes of a slot that a query has got for itself, for all inboxes of the query or none; there may be no
    /// routes, if another inbox gets its messages. A message under way that the slot which the query shared is still to
    /// get goes to both slots, and one that the shared slot has goes to neither.
    pub fn add_parted(&self, routes: &[Route<'_>], parted: &[Parted]) -> Result<(), RouteError> {
        for route in routes {
            topic::check_route(route.filter)?;
        }
        let mut locked = self.routes.write();
        locked.add(routes)?;
        parted.iter().for_each(|one| locked.note_parted(one));
        Ok(())
    }

    /// Removes routes. Ignores those that do not exist. Returns the position of the log from which on no message finds
    /// any of them.
    pub fn remove(&self, routes: &[Route<'_>]) -> LogPosition {
        let mut from = None;
        for chunk in routes.chunks(ROUTES_AT_ONCE) {
            let mut locked = self.routes.write();
            locked.remove(chunk);
            from = Some(self.log_end());
        }
        from.unwrap_or_else(|| self.log_end())
    }

    /// The log, if there is one.
    pub fn log(&self) -> Option<&Arc<dyn MessageLog>> {
        self.logging.log.get()
    }

    /// The position of the next message of the log that looks for its targets; 0 if there is no log. The routes are
    /// locked.
    fn log_end(&self) -> LogPosition {
        match self.logging.is_replaying() {
            true => self.logging.replayed_to(),
            false => self.log().map_or(0, |log| log.next()),
        }
    }

    /// Returns those of these topics and filters that have at least `routes_min` routes.
    pub fn crowded<'f>(&self, filters: impl IntoIterator<Item = &'f str>, routes_min: usize) -> Vec<&'f str> {
        let routes = self.routes.read();
        filters.into_iter().filter(|filter| routes.index().len_at(filter) >= routes_min).collect()
    }

    /// The routes of exactly this topic or filter.
    pub fn routes_of(&self, filter: &str) -> Vec<(InboxId, Slot)> {
        self.routes.read().at(filter)
    }

    /// Replaces several routes at one topic or filter by a single one: from now on its inbox gets the messages, and
    /// hands them on. A message under way still goes to the old targets, so that each gets it once.
    ///
    /// # Errors
    /// The inbox of the new route is not registered; nothing has changed then.
    pub fn reroute(&self, others: &[(InboxId, Slot)], through: Route<'_>) -> Result<(), RouteError> {
        self.routes.write().reroute(others, through)
    }

    /// Forgets that routes of these slots were replaced: they read other topics from now on.
    pub fn forget_rerouted(&self, inboxes: &[InboxId], slots: &[Slot]) {
        self.forget_by(inboxes, slots, Routes::forget_rerouted);
    }

    /// Forgets of these slots, too, which ones they continue: they are about to be released.
    pub fn forget(&self, inboxes: &[InboxId], slots: &[Slot]) {
        self.forget_by(inboxes, slots, Routes::forget);
    }

    fn forget_by(&self, inboxes: &[InboxId], slots: &[Slot], forget: impl Fn(&mut Routes, InboxId, &[Slot])) {
        if slots.is_empty() || !self.routes.read().remembers() {
            return;
        }
        for chunk in slots.chunks(ROUTES_AT_ONCE) {
            let mut locked = self.routes.write();
            inboxes.iter().for_each(|&inbox| forget(&mut locked, inbox, chunk));
        }
    }

    /// Reserves memory for `additional` routes of exact topics. With many routes present this takes a while, during
    /// which no message is routed: call it when an engine starts.
    pub fn reserve(&self, additional: usize) {
        self.routes.write().reserve(additional);
    }

    /// Locks the routes while the messages of one read are routed.
    ///
    /// Do not hold it while waiting for anything: code that adds routes waits for it.
    pub fn read(&self) -> Routing<'_> {
        let routes = self.routes.read();
        Routing {
            log: self.log().filter(|_| routes.has_logged()).map(|log| &**log),
            routes,
            router: self,
            origin: Vec::new(),
            found: Vec::new(),
            counts: RouterStats::default(),
            is_input: true,
            is_closed: self.is_closed(),
        }
    }

    /// The same for the engine's own results, which few queries read: a result that no query reads does not count as
    /// unrouted.
    pub fn read_for_results(&self) -> Routing<'_> {
        let mut routing = self.read();
        (routing.is_input, routing.is_closed) = (false, false);
        routing
    }

    /// Stops taking input: for messages from outside every inbox counts as full, so that none is acknowledged without
    /// being in an inbox. When this returns, no input is under way. The engine's own results still reach their inboxes.
    pub fn close(&self) {
        // The lock waits for all routing under way.
        let _routes = self.routes.write();
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether [`Router::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The topics of the last messages that no query reads, of those messages that were looked at: a few topics, the
    /// newest first.
    pub fn strays(&self) -> Vec<String> {
        self.strays.topics()
    }

    /// The counts so far.
    pub fn stats(&self) -> RouterStats {
        let routes = self.routes.read();
        let (len, bytes) = (routes.index().len(), routes.index().memory_bytes());
        RouterStats { routes: len, routes_bytes: bytes, ..*self.counts.lock() }
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("stats", &self.stats()).finish()
    }
}

/// The routes, locked. Its counts are added to those of the router when it is dropped.
pub struct Routing<'a> {
    routes: RwLockReadGuard<'a, Routes>,
    router: &'a Router,
    /// The log, if there is a durable input.
    log: Option<&'a dyn MessageLog>,
    /// The identity of a result, as it is written in the log in place of a client's name.
    origin: Vec<u8>,
    /// The targets of a message; kept so that the memory is reused.
    found: Vec<Target>,
    counts: RouterStats,
    /// Whether the messages come from outside.
    is_input: bool,
    /// Whether such messages are no longer taken.
    is_closed: bool,
}

impl Routing<'_> {
    /// Prefetches the memory that the topic of a message leads to, for a message that will be routed soon. With a
    /// million routes, waiting for that memory is most of the cost of routing.
    #[inline]
    pub fn prefetch(&self, topic: &[u8]) {
        self.routes.index().prefetch(topic);
    }

    /// Puts a message into every inbox that wants it.
    ///
    /// On [`Push::Full`] some inboxes may have it, and `pending` says which have not. Keep the message and `pending`,
    /// and call again with both (through this or a later [`Router::read`]) until it is taken. Routes that were removed
    /// or added meanwhile do not get it, except by [`Router::add_parted`].
    #[inline]
    pub fn route(&mut self, message: &Received<'_>, pending: &mut Pending) -> Push {
        (pending.position, pending.held_by) = (0, None);
        if self.is_closed {
            return Push::Full;
        }
        if !pending.targets.is_empty() {
            return self.resume(message, pending);
        }
        let mut is_repeat = false;
        if self.log.is_some() {
            is_repeat = self.router.logging.has(&self.origin, message.topic);
            if !is_repeat && let Some(push) = self.route_logged(message, pending, false) {
                return push;
            }
        }
        let Received { arrival_us, topic, payload, .. } = *message;
        let mut pushed = 0;
        let mut push = Push::Taken;
        self.routes.for_each(topic, |Delivery { target, inbox, is_logged }| {
            if is_repeat && is_logged {
                return;
            }
            // After the first full inbox no target gets the message, so the remaining targets are one list.
            if push == Push::Taken {
                push = inbox.push_message(target.slot, arrival_us, topic, payload);
                if push == Push::Taken {
                    pushed += 1;
                    return;
                }
            }
            pending.targets.push(target);
        });
        self.counts.pushed_events += pushed;
        pending.is_delivered = pushed > 0;
        match push {
            Push::Taken => self.count_taken(message, pending),
            Push::Full => {
                pending.version = self.routes.version();
                self.counts.full_waits += 1;
            }
        }
        push
    }

    #[cold]
    fn resume(&mut self, message: &Received<'_>, pending: &mut Pending) -> Push {
        let Received { arrival_us, topic, payload, .. } = *message;
        if pending.version != self.routes.version() {
            self.routes.bring_up_to_date(topic, pending.version, &mut pending.targets);
            pending.version = self.routes.version();
        }
        while let Some(&target) = pending.targets.last() {
            if let Some(Delivery { inbox, .. }) = self.routes.delivery(target) {
                if inbox.push_message(target.slot, arrival_us, topic, payload) == Push::Full {
                    return Push::Full;
                }
                self.counts.pushed_events += 1;
                pending.is_delivered = true;
            }
            pending.targets.pop();
        }
        self.count_taken(message, pending);
        Push::Taken
    }

    /// Puts a message that a durable input reads into the log and into all inboxes that want it, or nowhere. `None` if
    /// no durable input reads it. With `must_fit` no inbox refuses it.
    fn route_logged(&mut self, message: &Received<'_>, pending: &mut Pending, must_fit: bool) -> Option<Push> {
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

    #[inline]
    fn count_taken(&mut self, message: &Received<'_>, pending: &Pending) {
        if pending.is_delivered {
            self.counts.routed_messages += 1;
        } else if self.is_input && !message.topic.starts_with(topic::SOURCE_MARK.as_bytes()) {
            // Messages of other sources are counted there.
            self.counts.unrouted_messages += 1;
            self.router.strays.note(message.topic, message.arrival_us);
        }
        self.counts.payload_bytes += message.payload.len() as u64;
    }

    /// Whether these messages are no longer taken: see [`Router::close`].
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl Drop for Routing<'_> {
    fn drop(&mut self) {
        if self.counts != RouterStats::default() {
            *self.router.counts.lock() += self.counts;
        }
    }
}

#[cfg(test)]
mod tests;
