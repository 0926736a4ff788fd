//! From the topic of a message to the inboxes of the queries that want it.
//!
//! **Invariant:** a message is in every inbox that wants it exactly once, or the caller still holds it and is told so.
//!
//! What a durable input wants goes to the log at the same moment, and gets its position: in each inbox, messages of the log stand in the order
//! of their positions. So such a message goes to all its inboxes or to none ([`Routing::route_logged`]). A result of the engine that is in the log from before
//! a crash and is given once more goes to no durable input: these get it from the log.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::HashSet;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rivulet_dataflow::{Inbox, LogPosition, LoggedEvent, Push, Slot};

use super::index::TopicIndex;
use super::log::{LogMessage, Logged, MessageLog};
use super::repeats::{Repeats, write_origin};
use super::topic::{self, TopicError};

/// How many routes are added or removed while readers wait: about a millisecond.
const ROUTES_AT_ONCE: usize = 4096;

/// A registered inbox. Numbers are used again, but not while a route names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboxId(u32);

/// That messages of a topic, or of all topics that match a filter, go to a slot of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// A topic or a filter.
    pub filter: &'a str,
    /// Whose inbox.
    pub inbox: InboxId,
    /// The query's slot there.
    pub slot: Slot,
}

/// Routes that cannot be added. None of the routes given with it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The filter is none.
    #[error(transparent)]
    Filter(#[from] TopicError),
    /// The inbox is not registered (any more).
    #[error(
        "the inbox of the route for '{filter}' is not registered\nhint: register it before its routes, and remove the routes first"
    )]
    Inbox {
        /// The route's filter.
        filter: String,
    },
}

/// Where a message goes: eight bytes, a million times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Target {
    inbox: u32,
    slot: Slot,
}

struct Registered {
    /// `None` once unregistered.
    inbox: Option<Arc<dyn Inbox>>,
    /// How many routes name it.
    routes: usize,
    /// Whether what it gets has to be in the log.
    is_logged: bool,
}

struct Table {
    index: TopicIndex<Target>,
    inboxes: Vec<Registered>,
    /// How many of them are logged.
    logged_inboxes: usize,
    /// Topics whose results are logged though nobody reads them at present, each with a number of whoever said so.
    kept: TopicIndex<u64>,
    /// Numbers to be used again, the lowest first: inboxes that are registered one behind the other have ascending numbers.
    free: BTreeSet<u32>,
    /// Changes with every change of the routes.
    version: u64,
    /// Targets whose route leads through another inbox now. A message that was under way when that happened still goes to them.
    rerouted: HashSet<Target, foldhash::fast::RandomState>,
}

/// The routes of an engine, shared by everything that receives messages.
///
/// Inboxes are pushed to while the routes are held still, so whoever changes the routes must not hold a lock that
/// [`Inbox::push`] waits for.
pub struct Router {
    table: RwLock<Table>,
    logging: OnceLock<Logging>,
    is_closed: AtomicBool,
    routed: AtomicU64,
    unrouted: AtomicU64,
    pushed: AtomicU64,
    payload_bytes: AtomicU64,
    waits: AtomicU64,
    logged: AtomicU64,
}

/// Where messages for durable inputs go.
struct Logging {
    log: Arc<dyn MessageLog>,
    /// Whether the log is still being replayed: then messages only go to its end, from where they are replayed in their turn.
    is_replaying: AtomicBool,
    /// Results that it has and that may be given once more.
    repeats: Mutex<Repeats>,
    /// Whether there are any.
    expects_repeats: AtomicBool,
}

impl Logging {
    fn new(log: Arc<dyn MessageLog>) -> Self {
        let (is_replaying, expects_repeats) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { log, is_replaying, repeats: Mutex::default(), expects_repeats }
    }

    /// Whether the log has this result, which is given once more; asked once for each.
    fn has(&self, origin: &[u8], topic: &[u8]) -> bool {
        if origin.is_empty() || !self.expects_repeats.load(Ordering::Acquire) {
            return false;
        }
        let mut repeats = self.repeats.lock();
        let is_there = repeats.take(origin, topic);
        self.expects_repeats.store(!repeats.is_empty(), Ordering::Release);
        is_there
    }
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

/// A message under way that not every inbox has taken. Kept by the caller from a [`Push::Full`] to the [`Push::Taken`]
/// that follows it; empty otherwise.
#[derive(Debug, Default)]
pub struct Pending {
    /// Who still has to take it.
    targets: Vec<Target>,
    /// The version of the routes `targets` was found in.
    version: u64,
    /// Whether anybody has taken it.
    delivered: bool,
    /// Where the last message that was taken stands in the log; 0 if in none.
    position: LogPosition,
    /// What a message for the log waits for.
    held_by: Option<HeldBy>,
}

/// What a message for the log waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldBy {
    Inbox,
    Log,
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

impl Table {
    /// Who wants a message of a topic: the inboxes of durable inputs, or all of them. Inboxes of one application were registered in the
    /// order of its inputs, and get it in that order. Returns whether a durable input is among them.
    fn wanted(&self, topic: &[u8], by_all: bool, found: &mut Vec<Target>) -> bool {
        found.clear();
        let mut is_logged = false;
        self.index.for_each(topic, |&target| {
            let registered = &self.inboxes[target.inbox as usize];
            if registered.inbox.is_some() && (by_all || registered.is_logged) {
                is_logged |= registered.is_logged;
                found.push(target);
            }
        });
        found.sort_unstable();
        is_logged
    }
}

impl Table {
    fn keeps_results(&self, topic: &[u8]) -> bool {
        let mut is_kept = false;
        if !self.kept.is_empty() {
            self.kept.for_each(topic, |_| is_kept = true);
        }
        is_kept
    }
}

impl Default for Router {
    fn default() -> Self {
        Self::new()
    }
}

impl Router {
    /// A router without routes.
    pub fn new() -> Self {
        let table = Table {
            index: TopicIndex::new(),
            inboxes: Vec::new(),
            logged_inboxes: 0,
            kept: TopicIndex::new(),
            free: BTreeSet::new(),
            version: 0,
            rerouted: HashSet::default(),
        };
        Self {
            table: RwLock::new(table),
            logging: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            routed: AtomicU64::new(0),
            unrouted: AtomicU64::new(0),
            pushed: AtomicU64::new(0),
            payload_bytes: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            logged: AtomicU64::new(0),
        }
    }

    /// From now on messages for durable inputs go to `log`, and to it only until [`Router::end_replay`]. A router has one log; a second is
    /// passed over.
    pub fn log_to(&self, log: Arc<dyn MessageLog>) {
        // Not while anything is routed.
        let _table = self.table.write();
        let _ = self.logging.set(Logging::new(log));
    }

    /// The log has a message of this origin from before the start, behind where queries go on: if it is a result, the query whose it is gives it once more, and
    /// it is not logged then. To be called before anything is routed.
    pub fn expect_repeat(&self, message: &LogMessage<'_>) {
        let Some(logging) = self.logging.get() else { return };
        let mut repeats = logging.repeats.lock();
        repeats.expect(message.client, message.topic);
        logging.expects_repeats.store(!repeats.is_empty(), Ordering::Release);
    }

    /// No result is given once more any more.
    pub fn forget_repeats(&self) {
        if let Some(logging) = self.logging.get() {
            *logging.repeats.lock() = Repeats::default();
            logging.expects_repeats.store(false, Ordering::Release);
        }
    }

    /// The log, if there is one.
    pub fn log(&self) -> Option<&Arc<dyn MessageLog>> {
        self.logging.get().map(|logging| &logging.log)
    }

    /// Stops routing for a moment, in which `rest` hands over what the log has and was not replayed: few messages, for inboxes take
    /// them even beyond their bounds. If it says that this was all, messages go to their inboxes from now on, and true is returned.
    /// Of each message it says whether it is new: see [`Routing::replay`].
    pub fn end_replay(&self, rest: impl FnOnce(&mut dyn FnMut(&LogMessage<'_>, LogPosition, bool)) -> bool) -> bool {
        let Some(logging) = self.logging.get() else { return true };
        let table = self.table.write();
        let mut found = Vec::new();
        let mut pushed = 0;
        let is_all = rest(&mut |message, position, is_new| {
            table.wanted(message.topic, is_new, &mut found);
            deliver(&table, &found, message, position, true);
            pushed += found.len() as u64;
        });
        self.pushed.fetch_add(pushed, Ordering::Relaxed);
        if is_all {
            logging.is_replaying.store(false, Ordering::Release);
        }
        is_all
    }

    /// Makes an inbox known, so that routes can name it.
    pub fn register_inbox(&self, inbox: Arc<dyn Inbox>) -> InboxId {
        self.register(inbox, false)
    }

    /// The same for the inbox of a durable input: what it gets is in the log.
    pub fn register_logged_inbox(&self, inbox: Arc<dyn Inbox>) -> InboxId {
        self.register(inbox, true)
    }

    fn register(&self, inbox: Arc<dyn Inbox>, is_logged: bool) -> InboxId {
        let mut table = self.table.write();
        table.logged_inboxes += usize::from(is_logged);
        let registered = Registered { inbox: Some(inbox), routes: 0, is_logged };
        if let Some(id) = table.free.pop_first() {
            table.inboxes[id as usize] = registered;
            return InboxId(id);
        }
        let id = u32::try_from(table.inboxes.len()).expect("fewer than 2^32 inboxes");
        table.inboxes.push(registered);
        InboxId(id)
    }

    /// From now on results of the engine on these topics are logged, also while no durable input reads them: when they are given once more after a crash, it is
    /// known that they came before whoever reads them then. `number` tells who says so from others.
    pub fn keep_results(&self, filter: &str, number: u64) {
        self.table.write().kept.insert(filter, number);
    }

    /// Takes back [`Router::keep_results`].
    pub fn keep_results_no_more(&self, filter: &str, number: u64) {
        self.table.write().kept.remove(filter, number);
    }

    /// Puts another inbox in the place of one: routes stay, and messages under way go to it.
    pub fn replace_inbox(&self, id: InboxId, inbox: Arc<dyn Inbox>) {
        if let Some(registered) = self.table.write().inboxes.get_mut(id.0 as usize).filter(|one| one.inbox.is_some()) {
            registered.inbox = Some(inbox);
        }
    }

    /// Waits until nobody routes who was at it: what an inbox says from now on is known to everybody.
    pub fn settle(&self) {
        drop(self.table.write());
    }

    /// Forgets an inbox. Messages for routes that still name it count as unrouted; its number is used again when the last
    /// of them is removed.
    pub fn unregister_inbox(&self, id: InboxId) {
        let mut table = self.table.write();
        table.version += 1;
        let Some(registered) = table.inboxes.get_mut(id.0 as usize) else { return };
        if registered.inbox.take().is_none() {
            return;
        }
        let (is_logged, routes) = (registered.is_logged, registered.routes);
        table.logged_inboxes -= usize::from(is_logged);
        if routes == 0 {
            table.free.insert(id.0);
        }
    }

    /// Adds routes. One that is there already stays as it is. Either all are added or none.
    ///
    /// Messages are routed between the pieces of a large addition, so it does not hold up the traffic.
    pub fn add(&self, routes: &[Route<'_>]) -> Result<(), RouteError> {
        for route in routes {
            topic::check_filter(route.filter)?;
        }
        let is_known = |table: &Table, route: &Route<'_>| {
            table.inboxes.get(route.inbox.0 as usize).is_some_and(|registered| registered.inbox.is_some())
        };
        let mut added = 0;
        for chunk in routes.chunks(ROUTES_AT_ONCE) {
            let mut table = self.table.write();
            if let Some(unknown) = chunk.iter().find(|route| !is_known(&table, route)) {
                drop(table);
                self.remove(&routes[..added]);
                return Err(RouteError::Inbox { filter: unknown.filter.to_owned() });
            }
            table.version += 1;
            for route in chunk {
                if table.index.insert(route.filter, Target { inbox: route.inbox.0, slot: route.slot }) {
                    table.inboxes[route.inbox.0 as usize].routes += 1;
                }
            }
            added += chunk.len();
        }
        Ok(())
    }

    /// Which of these topics and filters have at least `routes_min` routes.
    pub fn crowded<'f>(&self, filters: impl IntoIterator<Item = &'f str>, routes_min: usize) -> Vec<&'f str> {
        let table = self.table.read();
        filters.into_iter().filter(|filter| table.index.len_at(filter) >= routes_min).collect()
    }

    /// The routes of exactly this topic or filter.
    pub fn routes_of(&self, filter: &str) -> Vec<(InboxId, Slot)> {
        let values = self.table.read().index.values_at(filter);
        values.into_iter().map(|target| (InboxId(target.inbox), target.slot)).collect()
    }

    /// Lets one route stand for those of others at the same topic or filter: from now on its inbox gets the messages, and hands
    /// them on. A message under way still goes where it was going, so that each gets it once.
    ///
    /// # Errors
    /// The inbox of the new route is not registered; nothing has changed then.
    pub fn reroute(&self, others: &[(InboxId, Slot)], through: Route<'_>) -> Result<(), RouteError> {
        let mut guard = self.table.write();
        let table = &mut *guard;
        let own = Target { inbox: through.inbox.0, slot: through.slot };
        let registered = table.inboxes.get_mut(through.inbox.0 as usize).filter(|one| one.inbox.is_some());
        let Some(registered) = registered else {
            return Err(RouteError::Inbox { filter: through.filter.to_owned() });
        };
        table.version += 1;
        registered.routes += usize::from(table.index.insert(through.filter, own));
        for &(inbox, slot) in others {
            let target = Target { inbox: inbox.0, slot };
            if table.index.remove(through.filter, target) {
                table.inboxes[inbox.0 as usize].routes -= 1;
                table.rerouted.insert(target);
            }
        }
        Ok(())
    }

    /// Forgets that routes of this inbox led elsewhere: its slots are about to be given up.
    pub fn forget_rerouted(&self, inbox: InboxId, slots: &[Slot]) {
        let mut table = self.table.write();
        table.version += 1;
        for &slot in slots {
            table.rerouted.remove(&Target { inbox: inbox.0, slot });
        }
    }

    /// Makes room for `additional` routes of exact topics ahead of adding them. With many routes there already this takes
    /// a while, in which no message is routed: it is for the start of an engine.
    pub fn reserve(&self, additional: usize) {
        self.table.write().index.reserve(additional);
    }

    /// Removes routes. One that is not there is passed over.
    pub fn remove(&self, routes: &[Route<'_>]) {
        for chunk in routes.chunks(ROUTES_AT_ONCE) {
            let mut guard = self.table.write();
            let table = &mut *guard;
            table.version += 1;
            for route in chunk {
                if table.index.remove(route.filter, Target { inbox: route.inbox.0, slot: route.slot }) {
                    let registered = &mut table.inboxes[route.inbox.0 as usize];
                    registered.routes -= 1;
                    if registered.routes == 0 && registered.inbox.is_none() {
                        table.free.insert(route.inbox.0);
                    }
                }
            }
        }
    }

    /// Holds the routes still while the messages of one read are routed.
    ///
    /// Not to be kept while waiting for anything: whoever adds routes waits for it.
    pub fn read(&self) -> Routing<'_> {
        let table = self.table.read();
        Routing {
            logging: self.logging.get().filter(|_| table.logged_inboxes > 0),
            table,
            router: self,
            client: b"",
            origin: Vec::new(),
            found: Vec::new(),
            logged: 0,
            routed: 0,
            unrouted: 0,
            pushed: 0,
            payload_bytes: 0,
            waits: 0,
            is_input: true,
            is_closed: self.is_closed(),
        }
    }

    /// The same for the engine's own results, which few queries read: one that no query asks for is no message gone astray.
    pub fn read_for_results(&self) -> Routing<'_> {
        let mut routing = self.read();
        (routing.is_input, routing.is_closed) = (false, false);
        routing
    }

    /// Takes no input any more: every inbox counts as full for what comes from outside, so that nothing is acknowledged that
    /// is in none. When this returns, no input is under way. The engine's own results still find their inboxes.
    pub fn close(&self) {
        // The lock waits for whoever is routing.
        let _table = self.table.write();
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether [`Router::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// What happened so far.
    pub fn stats(&self) -> RouterStats {
        let (routes, routes_bytes) = {
            let table = self.table.read();
            (table.index.len(), table.index.memory_bytes())
        };
        RouterStats {
            routed_messages: self.routed.load(Ordering::Relaxed),
            unrouted_messages: self.unrouted.load(Ordering::Relaxed),
            pushed_events: self.pushed.load(Ordering::Relaxed),
            payload_bytes: self.payload_bytes.load(Ordering::Relaxed),
            full_waits: self.waits.load(Ordering::Relaxed),
            logged_messages: self.logged.load(Ordering::Relaxed),
            routes,
            routes_bytes,
        }
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("stats", &self.stats()).finish()
    }
}

/// A message as it is routed.
#[derive(Clone, Copy)]
struct Sent<'m> {
    packet_id: u16,
    topic: &'m [u8],
    payload: &'m [u8],
    arrival_us: i64,
}

/// The routes, held still. Counts are handed to the router when it is dropped.
pub struct Routing<'a> {
    table: RwLockReadGuard<'a, Table>,
    router: &'a Router,
    /// The log, if anybody wants anything in it.
    logging: Option<&'a Logging>,
    /// Who sends the messages.
    client: &'a [u8],
    /// Of a result the identity, as it stands in the log in the place of that.
    origin: Vec<u8>,
    /// Who wants a message; used again for its memory.
    found: Vec<Target>,
    logged: u64,
    routed: u64,
    unrouted: u64,
    pushed: u64,
    payload_bytes: u64,
    waits: u64,
    /// Whether the messages come from outside.
    is_input: bool,
    /// Whether they are not taken any more.
    is_closed: bool,
}

impl<'a> Routing<'a> {
    /// Prepares for a message that will be routed soon: asks for the memory its topic leads to, so that it need not be waited for
    /// then. With a million routes that wait is most of what routing costs.
    #[inline]
    pub fn prefetch(&self, topic: &[u8]) {
        self.table.index.prefetch(topic);
    }

    /// Puts a message into every inbox that wants it.
    ///
    /// On [`Push::Full`] some inboxes may have it and `pending` says which have not: keep message and `pending`, and call
    /// again with both (through this or a later [`Router::read`]) until it is taken. Routes that were removed meanwhile do not get
    /// it, routes added meanwhile neither.
    #[inline]
    pub fn route(&mut self, topic: &[u8], payload: &[u8], arrival_us: i64, pending: &mut Pending) -> Push {
        self.route_numbered(0, topic, payload, arrival_us, pending)
    }

    /// The same for a message that its sender knows by `packet_id`, where it is not 0.
    #[inline]
    pub fn route_numbered(
        &mut self,
        packet_id: u16,
        topic: &[u8],
        payload: &[u8],
        arrival_us: i64,
        pending: &mut Pending,
    ) -> Push {
        (pending.position, pending.held_by) = (0, None);
        if self.is_closed {
            return Push::Full;
        }
        if !pending.targets.is_empty() {
            return self.resume(topic, payload, arrival_us, pending);
        }
        let mut is_repeat = false;
        if let Some(logging) = self.logging {
            is_repeat = logging.has(&self.origin, topic);
            let message = Sent { packet_id, topic, payload, arrival_us };
            if !is_repeat && let Some(push) = self.route_logged(logging, message, pending, false) {
                return push;
            }
        }
        let table = &*self.table;
        let mut pushed = 0;
        let mut push = Push::Taken;
        table.index.for_each(topic, |&target| {
            let Registered { inbox: Some(inbox), is_logged, .. } = &table.inboxes[target.inbox as usize] else {
                return;
            };
            if is_repeat && *is_logged {
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
        self.pushed += pushed;
        pending.delivered = pushed > 0;
        match push {
            Push::Taken => self.count_taken(payload, pending.delivered),
            Push::Full => {
                pending.version = table.version;
                self.waits += 1;
            }
        }
        push
    }

    /// Puts a message for which any durable input asks into the log and into all inboxes that want it, or nowhere; `None` if no
    /// durable input does. With `must_fit` no inbox refuses it.
    fn route_logged(
        &mut self,
        logging: &Logging,
        sent: Sent<'_>,
        pending: &mut Pending,
        must_fit: bool,
    ) -> Option<Push> {
        let table = &*self.table;
        let found = &mut self.found;
        let client = if self.origin.is_empty() { self.client } else { &self.origin };
        let Sent { packet_id, topic, payload, arrival_us } = sent;
        let message = &LogMessage { arrival_us, client, packet_id, topic, payload };
        if !table.wanted(topic, true, found) && (self.origin.is_empty() || !table.keeps_results(topic)) {
            return None;
        }
        let is_routed = !found.is_empty();
        let is_replaying = logging.is_replaying.load(Ordering::Acquire);
        // A log is shortened when what comes of its events has left, and where that is an event itself it leaves into the log.
        let may_exceed = must_fit || !self.is_input;
        let logged = logging.log.append(message, may_exceed, &mut |position| {
            is_replaying || deliver(table, found, message, position, must_fit)
        });
        (pending.position, pending.held_by) = match logged {
            Logged::At(position) => (position, None),
            Logged::NotTaken => (0, Some(HeldBy::Inbox)),
            Logged::Full => (0, Some(HeldBy::Log)),
        };
        if pending.held_by.is_some() {
            self.waits += 1;
            return Some(Push::Full);
        }
        self.logged += 1;
        self.pushed += if is_replaying { 0 } else { self.found.len() as u64 };
        self.count_taken(payload, is_routed);
        Some(Push::Taken)
    }

    /// Breaks a circle in which a message waits for room that only comes when it is out of the way. One for a durable input exceeds the bounds
    /// of its inbox and of the log, for it must not get lost; of others those events are given up that were not taken, and counted in
    /// the answer. `None` if nothing can be done, for it waits for the disk.
    pub fn break_circle(
        &mut self,
        packet_id: u16,
        topic: &[u8],
        payload: &[u8],
        arrival_us: i64,
        pending: &mut Pending,
    ) -> Option<usize> {
        if pending.held_by.is_none() {
            return Some(pending.abandon());
        }
        let message = Sent { packet_id, topic, payload, arrival_us };
        let routed = self.logging.and_then(|logging| self.route_logged(logging, message, pending, true));
        match routed {
            Some(Push::Taken) => Some(0),
            Some(Push::Full) => None,
            // Nobody wants it durable any more.
            None => {
                pending.held_by = None;
                None
            }
        }
    }

    /// Puts a message that the log has into the inboxes of the durable inputs that want it; if it `is_new`, in the log only since the
    /// replay began, into all that want it.
    pub fn replay(&mut self, message: &LogMessage<'_>, position: LogPosition, is_new: bool) -> Push {
        let table = &*self.table;
        let found = &mut self.found;
        table.wanted(message.topic, is_new, found);
        if !deliver(table, found, message, position, false) {
            return Push::Full;
        }
        self.pushed += found.len() as u64;
        Push::Taken
    }

    /// The messages from here on are the engine's result with this identity, the same when it is given once more; without one if it is empty.
    pub fn of_result(&mut self, id: &str) {
        self.origin.clear();
        if !id.is_empty() && self.logging.is_some() {
            write_origin(id, &mut self.origin);
        }
    }

    /// Messages come from this client.
    pub fn from_client(mut self, client: &'a [u8]) -> Self {
        self.client = client;
        self
    }

    #[cold]
    fn resume(&mut self, topic: &[u8], payload: &[u8], arrival_us: i64, pending: &mut Pending) -> Push {
        let table = &*self.table;
        if pending.version != table.version {
            // A slot may have gone, and its number may belong to another query by now.
            pending.targets.sort_unstable();
            let mut present = Vec::new();
            table.index.for_each(topic, |target| {
                if pending.targets.binary_search(target).is_ok() {
                    present.push(*target);
                }
            });
            present.extend(pending.targets.iter().filter(|target| table.rerouted.contains(*target)));
            present.sort_unstable();
            present.dedup();
            pending.targets = present;
            pending.version = table.version;
        }
        while let Some(&target) = pending.targets.last() {
            if let Some(inbox) = &table.inboxes[target.inbox as usize].inbox {
                if inbox.push_message(target.slot, arrival_us, topic, payload) == Push::Full {
                    return Push::Full;
                }
                self.pushed += 1;
                pending.delivered = true;
            }
            pending.targets.pop();
        }
        self.count_taken(payload, pending.delivered);
        Push::Taken
    }

    #[inline]
    fn count_taken(&mut self, payload: &[u8], delivered: bool) {
        if delivered {
            self.routed += 1;
        } else if self.is_input {
            self.unrouted += 1;
        }
        self.payload_bytes += payload.len() as u64;
    }

    /// Whether these messages are not taken any more: see [`Router::close`].
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// How many messages went to at least one inbox under this guard.
    pub fn routed(&self) -> u64 {
        self.routed
    }
}

impl Drop for Routing<'_> {
    fn drop(&mut self) {
        let add = |counter: &AtomicU64, count: u64| {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        };
        add(&self.router.routed, self.routed);
        add(&self.router.unrouted, self.unrouted);
        add(&self.router.pushed, self.pushed);
        add(&self.router.payload_bytes, self.payload_bytes);
        add(&self.router.waits, self.waits);
        add(&self.router.logged, self.logged);
    }
}

/// Puts a message of the log into all of these inboxes or, if one has no room and it need not fit, into none.
fn deliver(table: &Table, targets: &[Target], message: &LogMessage<'_>, position: LogPosition, must_fit: bool) -> bool {
    let LogMessage { arrival_us, topic, payload, .. } = *message;
    let inbox = |target: &Target| {
        let Registered { inbox, is_logged, .. } = &table.inboxes[target.inbox as usize];
        inbox.as_ref().map(|inbox| (inbox, if *is_logged { position } else { 0 }))
    };
    // With a single one there is nothing to ask: it takes the message or does not.
    let is_single = targets.len() == 1;
    let has_room = |target: &Target| inbox(target).is_none_or(|(inbox, _)| inbox.has_room(target.slot, payload.len()));
    if !is_single && !must_fit && !targets.iter().all(has_room) {
        return false;
    }
    let must_fit = must_fit || !is_single;
    let mut is_taken = true;
    for target in targets {
        let Some((inbox, position)) = inbox(target) else { continue };
        let event = LoggedEvent { slot: target.slot, arrival_us, position, topic, payload };
        is_taken &= inbox.push_logged(event, must_fit) == Push::Taken;
    }
    is_taken || must_fit
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Takes `room` events and is full then.
    #[derive(Default)]
    struct Limited {
        room: Mutex<usize>,
        taken: Mutex<Vec<(Slot, Vec<u8>)>>,
    }

    impl Limited {
        fn new(room: usize) -> Arc<Self> {
            Arc::new(Self { room: Mutex::new(room), ..Self::default() })
        }

        fn slots(&self) -> Vec<Slot> {
            let mut slots: Vec<Slot> = self.taken.lock().iter().map(|(slot, _)| *slot).collect();
            slots.sort_unstable();
            slots
        }
    }

    impl Inbox for Limited {
        fn push(&self, slot: Slot, _arrival_us: i64, payload: &[u8]) -> Push {
            let mut room = self.room.lock();
            if *room == 0 {
                return Push::Full;
            }
            *room -= 1;
            self.taken.lock().push((slot, payload.to_vec()));
            Push::Taken
        }

        fn has_room(&self, _slot: Slot, _payload_bytes: usize) -> bool {
            *self.room.lock() > 0
        }

        fn push_logged(&self, event: LoggedEvent<'_>, must_fit: bool) -> Push {
            if must_fit {
                *self.room.lock() += 1;
            }
            self.push(event.slot, event.arrival_us, event.payload)
        }
    }

    fn routes<'a>(inbox: InboxId, routes: &[(&'a str, Slot)]) -> Vec<Route<'a>> {
        routes.iter().map(|&(filter, slot)| Route { filter, inbox, slot }).collect()
    }

    fn push(router: &Router, topic: &str, pending: &mut Pending) -> Push {
        router.read().route(topic.as_bytes(), b"payload", 7, pending)
    }

    #[test]
    fn a_message_under_way_goes_to_the_inbox_that_has_replaced_the_one_it_waited_for() {
        let router = Router::new();
        let (full, empty) = (Limited::new(0), Limited::new(10));
        let inbox = router.register_inbox(full.clone());
        router.add(&[Route { filter: "a", inbox, slot: 7 }]).expect("a route");
        let mut pending = Pending::default();
        assert_eq!(router.read().route(b"a", b"1", 0, &mut pending), Push::Full);
        router.replace_inbox(inbox, empty.clone());
        router.settle();
        assert_eq!(router.read().route(b"a", b"1", 0, &mut pending), Push::Taken);
        assert_eq!(router.read().route(b"a", b"2", 0, &mut pending), Push::Taken);
        assert_eq!((full.slots(), empty.slots()), (Vec::new(), vec![7, 7]));
    }

    #[test]
    fn messages_reach_exact_and_wildcard_routes_of_several_inboxes() {
        let router = Router::new();
        let (a, b) = (Limited::new(9), Limited::new(9));
        let (a_id, b_id) = (router.register_inbox(a.clone()), router.register_inbox(b.clone()));
        router.add(&routes(a_id, &[("home/1/t", 1), ("home/2/t", 2), ("home/+/t", 3)])).unwrap();
        router.add(&routes(b_id, &[("home/1/t", 1), ("home/#", 5)])).unwrap();
        let pending = &mut Pending::default();
        assert_eq!(push(&router, "home/1/t", pending), Push::Taken);
        assert_eq!(push(&router, "garden", pending), Push::Taken);
        assert_eq!((a.slots(), b.slots()), (vec![1, 3], vec![1, 5]));
        let stats = router.stats();
        assert_eq!((stats.routed_messages, stats.unrouted_messages, stats.pushed_events), (1, 1, 4));
        assert_eq!((stats.payload_bytes, stats.routes), (14, 5));
    }

    #[test]
    fn a_full_inbox_holds_the_message_back_and_nobody_gets_it_twice() {
        let router = Router::new();
        let (a, b) = (Limited::new(1), Limited::new(1));
        let (a_id, b_id) = (router.register_inbox(a.clone()), router.register_inbox(b.clone()));
        router.add(&routes(a_id, &[("t", 1), ("t", 2), ("+", 3)])).unwrap();
        router.add(&routes(b_id, &[("#", 1)])).unwrap();
        let pending = &mut Pending::default();
        assert_eq!(push(&router, "t", pending), Push::Full);
        assert_eq!(push(&router, "t", pending), Push::Full);
        *a.room.lock() = 1;
        assert_eq!(push(&router, "t", pending), Push::Full);
        *a.room.lock() = 5;
        assert_eq!(push(&router, "t", pending), Push::Taken);
        assert!(pending.is_empty());
        assert_eq!((a.slots(), b.slots()), (vec![1, 2, 3], vec![1]));
        assert_eq!(router.stats().routed_messages, 1);
        assert_eq!(router.stats().full_waits, 1);
    }

    #[test]
    fn a_closed_router_takes_results_only() {
        let router = Router::new();
        let a = Limited::new(1);
        let id = router.register_inbox(a.clone());
        router.add(&routes(id, &[("t", 1), ("t", 2)])).unwrap();
        let pending = &mut Pending::default();
        assert_eq!(push(&router, "t", pending), Push::Full);
        router.close();
        *a.room.lock() = 9;
        assert_eq!(push(&router, "t", pending), Push::Full, "what is under way stays with the sender");
        assert_eq!(push(&router, "t", &mut Pending::default()), Push::Full);
        assert_eq!(push(&router, "nobody's", &mut Pending::default()), Push::Full);
        assert_eq!(a.slots(), [1]);
        let taken = router.read_for_results().route(b"t", b"payload", 7, &mut Pending::default());
        assert_eq!((taken, a.slots()), (Push::Taken, vec![1, 1, 2]));
    }

    #[test]
    fn what_is_pending_follows_changes_of_the_routes() {
        let router = Router::new();
        let a = Limited::new(0);
        let id = router.register_inbox(a.clone());
        router.add(&routes(id, &[("t", 1), ("t", 2), ("t", 3)])).unwrap();
        let pending = &mut Pending::default();
        assert_eq!(push(&router, "t", pending), Push::Full);
        router.remove(&routes(id, &[("t", 2)]));
        router.add(&routes(id, &[("t", 4)])).unwrap();
        *a.room.lock() = 9;
        assert_eq!(push(&router, "t", pending), Push::Taken);
        assert_eq!(a.slots(), [1, 3], "2 was removed, 4 came later");
    }

    #[test]
    fn one_route_stands_for_many_and_what_is_under_way_arrives_once() {
        let router = Router::new();
        let (a, b, shared) = (Limited::new(1), Limited::new(9), Limited::new(9));
        let (a_id, b_id) = (router.register_inbox(a.clone()), router.register_inbox(b.clone()));
        let shared_id = router.register_inbox(shared.clone());
        router.add(&routes(a_id, &[("t", 1), ("t", 2), ("+", 3)])).unwrap();
        router.add(&routes(b_id, &[("t", 1)])).unwrap();
        assert_eq!((router.crowded(["t", "+", "u"], 2), router.crowded(["t", "+"], 4)), (vec!["t"], vec![]));
        let mut of_t = router.routes_of("t");
        of_t.sort_unstable();
        assert_eq!(of_t, [(a_id, 1), (a_id, 2), (b_id, 1)]);
        assert_eq!((router.routes_of("+"), router.routes_of("a/#")), (vec![(a_id, 3)], vec![]));

        let pending = &mut Pending::default();
        assert_eq!(push(&router, "t", pending), Push::Full);
        router.reroute(&of_t, Route { filter: "t", inbox: shared_id, slot: 7 }).unwrap();
        *a.room.lock() = 9;
        assert_eq!(push(&router, "t", pending), Push::Taken, "where it was going when it was held back");
        assert_eq!((a.slots(), b.slots(), shared.slots()), (vec![1, 2, 3], vec![1], vec![]));
        assert_eq!(push(&router, "t", pending), Push::Taken);
        assert_eq!((a.slots(), b.slots(), shared.slots()), (vec![1, 2, 3, 3], vec![1], vec![7]));
        assert_eq!(router.stats().routes, 2);

        *a.room.lock() = 0;
        let gone = router.register_inbox(shared.clone());
        router.unregister_inbox(gone);
        assert!(router.reroute(&[(a_id, 3)], Route { filter: "+", inbox: gone, slot: 7 }).is_err());
        assert_eq!(push(&router, "t", pending), Push::Full);
        router.reroute(&[(a_id, 3)], Route { filter: "+", inbox: shared_id, slot: 8 }).unwrap();
        router.forget_rerouted(a_id, &[3]);
        assert_eq!(push(&router, "t", pending), Push::Taken, "its slot may be another query's by now");
        assert_eq!(a.slots(), [1, 2, 3, 3]);
    }

    #[test]
    fn a_number_is_not_used_again_while_routes_name_it() {
        let router = Router::new();
        let (a, b) = (Limited::new(9), Limited::new(9));
        let a_id = router.register_inbox(a.clone());
        router.add(&routes(a_id, &[("t", 1)])).unwrap();
        router.unregister_inbox(a_id);
        let b_id = router.register_inbox(b.clone());
        assert_ne!(a_id, b_id);
        assert_eq!(push(&router, "t", &mut Pending::default()), Push::Taken);
        assert_eq!((a.slots(), b.slots()), (vec![], vec![]));
        assert_eq!(router.stats().unrouted_messages, 1);
        router.remove(&routes(a_id, &[("t", 1)]));
        assert_eq!(router.register_inbox(a), a_id);
    }

    #[test]
    fn either_all_routes_are_added_or_none() {
        let router = Router::new();
        let id = router.register_inbox(Limited::new(9));
        let gone = router.register_inbox(Limited::new(9));
        router.unregister_inbox(gone);
        let error = router.add(&routes(id, &[("fine", 1), ("a/#/b", 2)])).unwrap_err();
        assert!(matches!(error, RouteError::Filter(TopicError::HashNotLast { .. })));
        let topics: Vec<String> = (0..ROUTES_AT_ONCE + 1).map(|n| n.to_string()).collect();
        let mut many: Vec<Route<'_>> = topics.iter().map(|filter| Route { filter, inbox: id, slot: 1 }).collect();
        many.push(Route { filter: "lost", inbox: gone, slot: 1 });
        assert_eq!(router.add(&many), Err(RouteError::Inbox { filter: "lost".into() }));
        assert_eq!(router.stats().routes, 0);
    }

    /// Client, packet and payload of a message.
    type Kept = (Vec<u8>, u16, Vec<u8>);

    /// So many more messages a log takes of those that may exceed its limit.
    const EXCESS: usize = 2;

    /// A log in memory with room for so many messages.
    struct Memory {
        room: Mutex<usize>,
        messages: Mutex<Vec<Kept>>,
        committed: tokio::sync::Notify,
    }

    impl Memory {
        fn new(room: usize) -> Arc<Self> {
            Arc::new(Self { room: Mutex::new(room), messages: Mutex::default(), committed: tokio::sync::Notify::new() })
        }
    }

    impl MessageLog for Memory {
        fn append(
            &self,
            message: &LogMessage<'_>,
            may_exceed: bool,
            take: &mut dyn FnMut(LogPosition) -> bool,
        ) -> Logged {
            let mut messages = self.messages.lock();
            let room = *self.room.lock();
            if messages.len() >= if may_exceed { room + EXCESS } else { room } {
                return Logged::Full;
            }
            let position = messages.len() as u64 + 1;
            if !take(position) {
                return Logged::NotTaken;
            }
            messages.push((message.client.to_vec(), message.packet_id, message.topic.to_vec()));
            Logged::At(position)
        }

        fn next(&self) -> LogPosition {
            self.messages.lock().len() as u64 + 1
        }

        fn durable(&self) -> LogPosition {
            self.next() - 1
        }

        fn committed(&self) -> &tokio::sync::Notify {
            &self.committed
        }
    }

    #[test]
    fn a_message_of_the_log_goes_to_all_inboxes_or_to_none() {
        let router = Router::new();
        let (durable, other) = (Limited::new(9), Limited::new(1));
        let (durable_id, other_id) =
            (router.register_logged_inbox(durable.clone()), router.register_inbox(other.clone()));
        router.add(&routes(durable_id, &[("both", 1), ("mine", 2)])).unwrap();
        router.add(&routes(other_id, &[("both", 3), ("its", 4)])).unwrap();
        let log = Memory::new(3);
        router.log_to(log.clone());
        let pending = &mut Pending::default();
        assert_eq!((push(&router, "mine", pending), pending.position()), (Push::Taken, 1));
        assert!(durable.slots().is_empty(), "what is in the log is replayed first");
        assert!(!router.end_replay(|_| false));
        let message = LogMessage { arrival_us: 7, client: b"", packet_id: 0, topic: b"mine", payload: b"" };
        assert_eq!(router.read().replay(&message, 1, true), Push::Taken);
        assert_eq!(durable.slots(), [2]);
        let rest = LogMessage { topic: b"both", ..message };
        *durable.room.lock() = 0;
        assert!(router.end_replay(|push| {
            push(&rest, 2, true);
            true
        }));
        assert_eq!((other.slots(), router.stats().pushed_events), (vec![3], 3));
        *durable.room.lock() = 9;

        assert_eq!((push(&router, "its", pending), pending.position()), (Push::Taken, 0));
        assert_eq!(push(&router, "both", pending), Push::Full, "the other is full");
        assert!(!pending.is_empty() && !pending.waits_for_log());
        assert_eq!((durable.slots(), log.next()), (vec![1, 2], 2));
        *other.room.lock() = 9;
        let taken = router.read().from_client(b"kim").route_numbered(5, b"both", b"", 7, pending);
        assert_eq!((taken, pending.position(), pending.is_empty()), (Push::Taken, 2, true));
        assert_eq!((durable.slots(), other.slots()), (vec![1, 1, 2], vec![3, 3, 4]));
        assert_eq!(log.messages.lock()[1], (b"kim".to_vec(), 5, b"both".to_vec()));

        assert_eq!(push(&router, "mine", pending), Push::Taken);
        assert_eq!(push(&router, "mine", pending), Push::Full);
        assert!(pending.waits_for_log());
        assert_eq!(push(&router, "its", &mut Pending::default()), Push::Taken, "others go on");
        let result = router.read_for_results().route(b"mine", b"", 7, &mut Pending::default());
        assert_eq!(result, Push::Taken, "the log waits for it to be out of the way");
        assert_eq!(router.read().break_circle(0, b"mine", b"", 7, pending), Some(0));
        assert!(!pending.waits_for_log() && log.messages.lock().len() == 3 + EXCESS);
        assert_eq!(push(&router, "mine", pending), Push::Full);
        assert_eq!(router.read().break_circle(0, b"mine", b"", 7, pending), None, "there is a bound to that");
        pending.abandon();
        *durable.room.lock() = 0;
        *log.room.lock() = 9;
        assert_eq!(push(&router, "mine", pending), Push::Full);
        assert!(!pending.waits_for_log());
        assert_eq!(router.stats().logged_messages, 3 + EXCESS as u64);
        router.unregister_inbox(durable_id);
        assert_eq!(push(&router, "mine", pending), Push::Taken, "nobody wants it");
    }

    #[test]
    fn a_result_that_the_log_has_goes_to_no_durable_input_once_more() {
        let router = Router::new();
        let (durable, other) = (Limited::new(9), Limited::new(9));
        let (durable_id, other_id) =
            (router.register_logged_inbox(durable.clone()), router.register_inbox(other.clone()));
        router.add(&routes(durable_id, &[("t", 1)])).unwrap();
        router.add(&routes(other_id, &[("t", 2)])).unwrap();
        let log = Memory::new(9);
        router.log_to(log.clone());
        assert!(router.end_replay(|_| true));
        let give = |id: &str| {
            let mut routing = router.read_for_results();
            routing.of_result(id);
            routing.route(b"t", b"", 7, &mut Pending::default())
        };
        assert_eq!((give("s-1-1"), give("")), (Push::Taken, Push::Taken));
        let logged = log.messages.lock().clone();
        assert_eq!((&logged[0].0[1..], &logged[1].0[..]), (&b"s-1-1"[..], &b""[..]));

        let expect = |client| {
            router.expect_repeat(&LogMessage { arrival_us: 7, client, packet_id: 0, topic: b"t", payload: b"" });
        };
        logged.iter().for_each(|(client, ..)| expect(client));
        assert_eq!((give("s-1-1"), durable.slots(), other.slots()), (Push::Taken, vec![1, 1], vec![2, 2, 2]));
        assert_eq!((give("s-1-1"), log.next()), (Push::Taken, 4), "what comes a third time is another one");
        expect(&logged[0].0);
        router.forget_repeats();
        assert_eq!((give("s-1-1"), durable.slots().len()), (Push::Taken, 4));
        let from_client = router.read().from_client(b"kim").route(b"t", b"", 7, &mut Pending::default());
        assert_eq!((from_client, log.messages.lock()[4].0.as_slice()), (Push::Taken, &b"kim"[..]));
    }
}
