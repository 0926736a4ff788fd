//! From the topic of a message to the inboxes of the queries that want it.
//!
//! `router/routes.rs` knows where a message goes, and nothing else. Here the routes are behind a lock, messages are
//! pushed and counted. `router/logged.rs` is around both: the log of durable inputs, and its replay.
//!
//! **Invariant:** a message is in every inbox that wants it exactly once, or the caller still holds it and is told so.

mod logged;
mod routes;
mod strays;

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rivulet_dataflow::{Inbox, LogPosition, Push, Slot};

use super::log::MessageLog;
use super::topic;
use logged::{HeldBy, Logging};
use routes::{Delivery, Routes, Target};
pub use routes::{InboxId, Route, RouteError};
use strays::Strays;

/// How many routes are added or removed while readers wait: about a millisecond.
const ROUTES_AT_ONCE: usize = 4096;

/// A message as it reached the engine: from a client, from the external broker, or as a result of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received<'m> {
    /// When that was, microseconds since the epoch.
    pub arrival_us: i64,
    /// The name of the client that sent it, empty for the external broker; in the log, of the engine's own results
    /// their identity, if they have one, in a form that no name has.
    pub client: &'m [u8],
    /// The packet identifier under which its sender waits for an acknowledgement; 0 if it does not.
    pub packet_id: u16,
    /// Where it was sent to.
    pub topic: &'m [u8],
    /// Its content.
    pub payload: &'m [u8],
}

/// The routes of an engine, shared by everything that receives messages.
///
/// Inboxes are pushed to while the routes are held still, so whoever changes the routes must not hold a lock that
/// [`Inbox::push`] waits for.
#[derive(Default)]
pub struct Router {
    routes: RwLock<Routes>,
    logging: Logging,
    is_closed: AtomicBool,
    counts: Mutex<RouterStats>,
    strays: Strays,
}

/// What a router has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterStats {
    /// Messages that went to at least one inbox.
    pub routed_messages: u64,
    /// Messages of a topic that nobody asked for.
    pub unrouted_messages: u64,
    /// Events put into inboxes: a message wanted by three queries counts three times.
    pub pushed_events: u64,
    /// Payload bytes of all messages.
    pub payload_bytes: u64,
    /// How often a message was held back because an inbox was full, or the log.
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

/// A message under way that not every inbox has taken. Kept by the caller from a [`Push::Full`] to the [`Push::Taken`]
/// that follows it; empty otherwise.
#[derive(Debug, Default)]
pub struct Pending {
    /// Who still has to take it.
    targets: Vec<Target>,
    /// The version of the routes `targets` was found in.
    version: u64,
    /// Whether anybody has taken it.
    is_delivered: bool,
    /// Where the last message that was taken stands in the log; 0 if in none.
    position: LogPosition,
    /// What a message for the log waits for.
    held_by: Option<HeldBy>,
}

impl Pending {
    /// Whether no message is under way.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.held_by.is_none()
    }

    /// Where the message that was taken last stands in the log; 0 if in none.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Whether an inbox has the message that was taken last.
    pub fn is_delivered(&self) -> bool {
        self.is_delivered
    }

    /// Whether the message waits for room in the log, which nothing but room on the disk can give.
    pub fn waits_for_log(&self) -> bool {
        self.held_by == Some(HeldBy::Log)
    }

    /// Gives up on who has not taken it, and returns how many events are lost by that. The caller counts them.
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

    /// Makes an inbox known, so that routes can name it.
    pub fn register_inbox(&self, inbox: Arc<dyn Inbox>) -> InboxId {
        self.routes.write().register(inbox, false)
    }

    /// The same for the inbox of a durable input: what it gets is in the log.
    pub fn register_logged_inbox(&self, inbox: Arc<dyn Inbox>) -> InboxId {
        self.routes.write().register(inbox, true)
    }

    /// Puts another inbox in the place of one: routes stay, and messages under way go to it.
    pub fn replace_inbox(&self, id: InboxId, inbox: Arc<dyn Inbox>) {
        self.routes.write().replace(id, inbox);
    }

    /// Waits until nobody routes who was at it: what an inbox says from now on is known to everybody.
    pub fn await_routing(&self) {
        drop(self.routes.write());
    }

    /// Forgets an inbox. Messages for routes that still name it count as unrouted; its number is used again when the
    /// last of them is removed.
    pub fn unregister_inbox(&self, id: InboxId) {
        self.routes.write().unregister(id);
    }

    /// Adds routes. One that is there already stays as it is. Either all are added or none.
    ///
    /// Messages are routed between the pieces of a large addition, so it does not hold up the traffic.
    pub fn add(&self, routes: &[Route<'_>]) -> Result<(), RouteError> {
        for route in routes {
            topic::check_route(route.filter)?;
        }
        let mut added = 0;
        for chunk in routes.chunks(ROUTES_AT_ONCE) {
            let result = self.routes.write().add(chunk);
            if result.is_err() {
                self.remove(&routes[..added]);
                return result;
            }
            added += chunk.len();
        }
        Ok(())
    }

    /// Removes routes. One that is not there is passed over.
    pub fn remove(&self, routes: &[Route<'_>]) {
        for chunk in routes.chunks(ROUTES_AT_ONCE) {
            self.routes.write().remove(chunk);
        }
    }

    /// Which of these topics and filters have at least `routes_min` routes.
    pub fn crowded<'f>(&self, filters: impl IntoIterator<Item = &'f str>, routes_min: usize) -> Vec<&'f str> {
        let routes = self.routes.read();
        filters.into_iter().filter(|filter| routes.index().len_at(filter) >= routes_min).collect()
    }

    /// The routes of exactly this topic or filter.
    pub fn routes_of(&self, filter: &str) -> Vec<(InboxId, Slot)> {
        self.routes.read().at(filter)
    }

    /// Lets one route stand for those of others at the same topic or filter: from now on its inbox gets the messages,
    /// and hands them on. A message under way still goes where it was going, so that each gets it once.
    ///
    /// # Errors
    /// The inbox of the new route is not registered; nothing has changed then.
    pub fn reroute(&self, others: &[(InboxId, Slot)], through: Route<'_>) -> Result<(), RouteError> {
        self.routes.write().reroute(others, through)
    }

    /// Forgets that routes of this inbox led elsewhere: its slots are about to be given up.
    pub fn forget_rerouted(&self, inbox: InboxId, slots: &[Slot]) {
        self.routes.write().forget_rerouted(inbox, slots);
    }

    /// Makes room for `additional` routes of exact topics ahead of adding them. With many routes there already this
    /// takes a while, in which no message is routed: it is for the start of an engine.
    pub fn reserve(&self, additional: usize) {
        self.routes.write().reserve(additional);
    }

    /// Holds the routes still while the messages of one read are routed.
    ///
    /// Not to be kept while waiting for anything: whoever adds routes waits for it.
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

    /// The same for the engine's own results, which few queries read: one that no query asks for is no message gone
    /// astray.
    pub fn read_for_results(&self) -> Routing<'_> {
        let mut routing = self.read();
        (routing.is_input, routing.is_closed) = (false, false);
        routing
    }

    /// Takes no input any more: every inbox counts as full for what comes from outside, so that nothing is acknowledged
    /// that is in none. When this returns, no input is under way. The engine's own results still find their inboxes.
    pub fn close(&self) {
        // The lock waits for whoever is routing.
        let _routes = self.routes.write();
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether [`Router::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The topics of the last messages that no query asked for, as far as they were looked at: a few, the newest first.
    pub fn strays(&self) -> Vec<String> {
        self.strays.topics()
    }

    /// What happened so far.
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

/// The routes, held still. Counts are handed to the router when it is dropped.
pub struct Routing<'a> {
    routes: RwLockReadGuard<'a, Routes>,
    router: &'a Router,
    /// The log, if anybody wants anything in it.
    log: Option<&'a dyn MessageLog>,
    /// Of a result the identity, as it stands in the log in the place of a client's name.
    origin: Vec<u8>,
    /// Who wants a message; used again for its memory.
    found: Vec<Target>,
    counts: RouterStats,
    /// Whether the messages come from outside.
    is_input: bool,
    /// Whether they are not taken any more.
    is_closed: bool,
}

impl Routing<'_> {
    /// Prepares for a message that will be routed soon: asks for the memory its topic leads to, so that it need not be
    /// waited for then. With a million routes that wait is most of what routing costs.
    #[inline]
    pub fn prefetch(&self, topic: &[u8]) {
        self.routes.index().prefetch(topic);
    }

    /// Puts a message into every inbox that wants it.
    ///
    /// On [`Push::Full`] some inboxes may have it and `pending` says which have not: keep message and `pending`, and
    /// call again with both (through this or a later [`Router::read`]) until it is taken. Routes that were removed
    /// meanwhile do not get it, routes added meanwhile neither.
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
            // Once one is full, nobody after it gets the message: what is left is one list.
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
            self.routes.retain_present(topic, &mut pending.targets);
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

    #[inline]
    fn count_taken(&mut self, message: &Received<'_>, pending: &Pending) {
        if pending.is_delivered {
            self.counts.routed_messages += 1;
        } else if self.is_input && !message.topic.starts_with(topic::SOURCE_MARK.as_bytes()) {
            // What other sources bring is counted with them.
            self.counts.unrouted_messages += 1;
            self.router.strays.note(message.topic, message.arrival_us);
        }
        self.counts.payload_bytes += message.payload.len() as u64;
    }

    /// Whether these messages are not taken any more: see [`Router::close`].
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
