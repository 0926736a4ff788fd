//! From the topic of a message to the inboxes of the queries that want it.
//!
//! **Invariant:** a message is in every inbox that wants it exactly once, or the caller still holds it and is told so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::HashSet;
use parking_lot::{RwLock, RwLockReadGuard};
use rivulet_dataflow::{Inbox, Push, Slot};

use super::index::TopicIndex;
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
}

struct Table {
    index: TopicIndex<Target>,
    inboxes: Vec<Registered>,
    free: Vec<u32>,
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
    is_closed: AtomicBool,
    routed: AtomicU64,
    unrouted: AtomicU64,
    pushed: AtomicU64,
    payload_bytes: AtomicU64,
    waits: AtomicU64,
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
    /// How often a message was held back because an inbox was full.
    pub full_waits: u64,
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
}

impl Pending {
    /// Whether no message is under way.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Gives up on who has not taken it, and returns how many events are lost by that. The caller counts them.
    pub fn abandon(&mut self) -> usize {
        let lost = self.targets.len();
        self.targets.clear();
        lost
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
            free: Vec::new(),
            version: 0,
            rerouted: HashSet::default(),
        };
        Self {
            table: RwLock::new(table),
            is_closed: AtomicBool::new(false),
            routed: AtomicU64::new(0),
            unrouted: AtomicU64::new(0),
            pushed: AtomicU64::new(0),
            payload_bytes: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// Makes an inbox known, so that routes can name it.
    pub fn register_inbox(&self, inbox: Arc<dyn Inbox>) -> InboxId {
        let mut table = self.table.write();
        let registered = Registered { inbox: Some(inbox), routes: 0 };
        if let Some(id) = table.free.pop() {
            table.inboxes[id as usize] = registered;
            return InboxId(id);
        }
        let id = u32::try_from(table.inboxes.len()).expect("fewer than 2^32 inboxes");
        table.inboxes.push(registered);
        InboxId(id)
    }

    /// Forgets an inbox. Messages for routes that still name it count as unrouted; its number is used again when the last
    /// of them is removed.
    pub fn unregister_inbox(&self, id: InboxId) {
        let mut table = self.table.write();
        table.version += 1;
        let Some(registered) = table.inboxes.get_mut(id.0 as usize) else { return };
        if registered.inbox.take().is_some() && registered.routes == 0 {
            table.free.push(id.0);
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
                        table.free.push(route.inbox.0);
                    }
                }
            }
        }
    }

    /// Holds the routes still while the messages of one read are routed.
    ///
    /// Not to be kept while waiting for anything: whoever adds routes waits for it.
    pub fn read(&self) -> Routing<'_> {
        Routing {
            table: self.table.read(),
            router: self,
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

/// The routes, held still. Counts are handed to the router when it is dropped.
pub struct Routing<'a> {
    table: RwLockReadGuard<'a, Table>,
    router: &'a Router,
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

impl Routing<'_> {
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
        if self.is_closed {
            return Push::Full;
        }
        if !pending.is_empty() {
            return self.resume(topic, payload, arrival_us, pending);
        }
        let table = &*self.table;
        let mut pushed = 0;
        let mut push = Push::Taken;
        table.index.for_each(topic, |&target| {
            let Some(inbox) = &table.inboxes[target.inbox as usize].inbox else { return };
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
    }
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
    }

    fn routes<'a>(inbox: InboxId, routes: &[(&'a str, Slot)]) -> Vec<Route<'a>> {
        routes.iter().map(|&(filter, slot)| Route { filter, inbox, slot }).collect()
    }

    fn push(router: &Router, topic: &str, pending: &mut Pending) -> Push {
        router.read().route(topic.as_bytes(), b"payload", 7, pending)
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
}
