//! The router: its deliveries, log, repeats and counts.

use parking_lot::Mutex;
use rivulet_dataflow::LoggedEvent;

use super::super::log::Logged;
use super::super::topic::TopicError;
use super::*;

/// Takes `room` events, and is full then.
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

/// An inbox with room for `room` events, and routes from these filters to it.
fn inbox(router: &Router, room: usize, of: &[(&str, Slot)]) -> (Arc<Limited>, InboxId) {
    let inbox = Limited::new(room);
    let id = router.register_inbox(inbox.clone());
    router.add(&routes(id, of)).unwrap();
    (inbox, id)
}

/// The same for a durable input.
fn logged_inbox(router: &Router, room: usize, of: &[(&str, Slot)]) -> (Arc<Limited>, InboxId) {
    let inbox = Limited::new(room);
    let id = router.register_logged_inbox(inbox.clone());
    router.add(&routes(id, of)).unwrap();
    (inbox, id)
}

fn message(topic: &str) -> Received<'_> {
    Received { arrival_us: 7, topic: topic.as_bytes(), payload: b"payload", ..Received::default() }
}

fn push(router: &Router, topic: &str, pending: &mut Pending) -> Push {
    router.read().route(&message(topic), pending)
}

#[test]
fn a_message_under_way_goes_to_the_inbox_that_has_replaced_the_one_it_waited_for() {
    let router = Router::new();
    let empty = Limited::new(10);
    let (full, id) = inbox(&router, 0, &[("a", 7)]);
    let mut pending = Pending::default();
    assert_eq!(push(&router, "a", &mut pending), Push::Full);
    router.replace_inbox(id, empty.clone());
    router.await_routing();
    assert_eq!(push(&router, "a", &mut pending), Push::Taken);
    assert_eq!(push(&router, "a", &mut pending), Push::Taken);
    assert_eq!((full.slots(), empty.slots()), (Vec::new(), vec![7, 7]));
}

#[test]
fn messages_reach_exact_and_wildcard_routes_of_several_inboxes() {
    let router = Router::new();
    let (a, _) = inbox(&router, 9, &[("home/1/t", 1), ("home/2/t", 2), ("home/+/t", 3)]);
    let (b, _) = inbox(&router, 9, &[("home/1/t", 1), ("home/#", 5)]);
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
    let (a, _) = inbox(&router, 1, &[("t", 1), ("t", 2), ("+", 3)]);
    let (b, _) = inbox(&router, 1, &[("#", 1)]);
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
    let (a, _) = inbox(&router, 1, &[("t", 1), ("t", 2)]);
    let pending = &mut Pending::default();
    assert_eq!(push(&router, "t", pending), Push::Full);
    router.close();
    *a.room.lock() = 9;
    assert_eq!(push(&router, "t", pending), Push::Full, "what is under way stays with the sender");
    assert_eq!(push(&router, "t", &mut Pending::default()), Push::Full);
    assert_eq!(push(&router, "nobody's", &mut Pending::default()), Push::Full);
    assert_eq!(a.slots(), [1]);
    let taken = router.read_for_results().route(&message("t"), &mut Pending::default());
    assert_eq!((taken, a.slots()), (Push::Taken, vec![1, 1, 2]));
}

#[test]
fn what_is_pending_follows_changes_of_the_routes() {
    let router = Router::new();
    let (a, id) = inbox(&router, 0, &[("t", 1), ("t", 2), ("t", 3)]);
    let pending = &mut Pending::default();
    assert_eq!(push(&router, "t", pending), Push::Full);
    router.remove(&routes(id, &[("t", 2)]));
    router.add(&routes(id, &[("t", 4)])).unwrap();
    *a.room.lock() = 9;
    assert_eq!(push(&router, "t", pending), Push::Taken);
    assert_eq!(a.slots(), [1, 3], "2 was removed, 4 came later");
}

/// Gives a query a slot for itself: it leaves one that it shared.
fn part(router: &Router, inbox: InboxId, filter: &str, from: Slot, to: Slot) {
    let own = [Route { filter, inbox, slot: to }];
    router.add_parted(&own, &[Parted { inbox, from, to }]).unwrap();
}

#[test]
fn what_is_pending_follows_a_query_that_gets_a_slot_for_itself() {
    let router = Router::new();
    let (a, id) = inbox(&router, 0, &[("t", 1), ("t", 2)]);
    // What has come since the last call.
    let came = || {
        let slots = a.slots();
        a.taken.lock().clear();
        slots
    };
    let pending = &mut Pending::default();
    assert_eq!(push(&router, "t", pending), Push::Full);
    part(&router, id, "t", 1, 3);
    part(&router, id, "t", 1, 4);
    part(&router, id, "t", 4, 5);
    assert_eq!(push(&router, "t", pending), Push::Full);
    *a.room.lock() = 2;
    assert_eq!(push(&router, "t", pending), Push::Full, "some of them have it");
    // Nobody gets it twice, however often routes change.
    router.add(&routes(id, &[("other", 9)])).unwrap();
    *a.room.lock() = 99;
    assert_eq!((push(&router, "t", pending), pending.is_empty()), (Push::Taken, true));
    assert_eq!(came(), [1, 2, 3, 4, 5]);
    assert_eq!(push(&router, "t", pending), Push::Taken);
    assert_eq!(came(), [1, 2, 3, 4, 5]);

    // One of the two has it, whichever comes first.
    router.remove(&routes(id, &[("t", 3), ("t", 4), ("t", 5)]));
    router.forget(&[id], &[3, 4, 5]);
    assert!(!router.routes.read().remembers());
    *a.room.lock() = 1;
    assert_eq!(push(&router, "t", pending), Push::Full);
    let (has, waits) = if came() == [1] { (1, 2) } else { (2, 1) };
    part(&router, id, "t", has, 6);
    part(&router, id, "t", waits, 7);
    *a.room.lock() = 99;
    assert_eq!(push(&router, "t", pending), Push::Taken);
    assert_eq!(came(), [waits, 7], "a query that left a slot that has it has it too");

    // The slot that was shared goes; the query that left it has its messages all the same, unless it goes too.
    for (is_there, expected) in [(true, vec![1, 7]), (false, vec![1])] {
        *a.room.lock() = 0;
        router.add(&routes(id, &[("t", 2)])).unwrap();
        router.remove(&routes(id, &[("t", 6), ("t", 7)]));
        assert_eq!(push(&router, "t", pending), Push::Full);
        part(&router, id, "t", 2, 7);
        router.remove(&routes(id, &[("t", 2)]));
        router.forget(&[id], &[2]);
        if !is_there {
            router.remove(&routes(id, &[("t", 7)]));
            router.forget(&[id], &[7]);
        }
        *a.room.lock() = 99;
        assert_eq!(push(&router, "t", pending), Push::Taken);
        assert_eq!(came(), expected);
    }
}

#[test]
fn what_is_pending_for_a_route_that_was_replaced_follows_a_query_that_gets_a_slot_for_itself() {
    let router = Router::new();
    let (a, id) = inbox(&router, 0, &[("t", 1), ("t", 2)]);
    let (shared, shared_id) = inbox(&router, 9, &[]);
    let pending = &mut Pending::default();
    assert_eq!(push(&router, "t", pending), Push::Full);
    let through = Route { filter: "t", inbox: shared_id, slot: 7 };
    router.reroute(&[(id, 1)], through).unwrap();
    // Events of one come by the shared inbox; the other gets a route, which is replaced at once.
    router.add_parted(&[], &[Parted { inbox: id, from: 1, to: 3 }]).unwrap();
    part(&router, id, "t", 2, 4);
    router.reroute(&[(id, 2), (id, 4)], through).unwrap();
    *a.room.lock() = 9;
    assert_eq!(push(&router, "t", pending), Push::Taken);
    assert_eq!((a.slots(), shared.slots()), (vec![1, 2, 3, 4], vec![]));
    assert_eq!(push(&router, "t", pending), Push::Taken);
    assert_eq!((a.slots(), shared.slots()), (vec![1, 2, 3, 4], vec![7]));
}

#[test]
fn one_route_stands_for_many_and_what_is_under_way_arrives_once() {
    let router = Router::new();
    let (a, a_id) = inbox(&router, 1, &[("t", 1), ("t", 2), ("+", 3)]);
    let (b, b_id) = inbox(&router, 9, &[("t", 1)]);
    let (shared, shared_id) = inbox(&router, 9, &[]);
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
    router.forget_rerouted(&[a_id], &[3]);
    assert_eq!(push(&router, "t", pending), Push::Taken, "its slot may be another query's by now");
    assert_eq!(a.slots(), [1, 2, 3, 3]);
}

#[test]
fn a_number_is_not_used_again_while_routes_name_it() {
    let router = Router::new();
    let (a, a_id) = inbox(&router, 9, &[("t", 1)]);
    router.unregister_inbox(a_id);
    let (b, b_id) = inbox(&router, 9, &[]);
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
    let ((_, id), (_, gone)) = (inbox(&router, 9, &[]), inbox(&router, 9, &[]));
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

/// The number of messages beyond its limit that a log takes, if they may exceed it.
const EXCESS: usize = 2;

/// A log in memory with room for a number of messages.
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
    fn append(&self, message: &Received<'_>, may_exceed: bool, take: &mut dyn FnMut(LogPosition) -> bool) -> Logged {
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
    let (durable, durable_id) = logged_inbox(&router, 9, &[("both", 1), ("mine", 2)]);
    let (other, _) = inbox(&router, 1, &[("both", 3), ("its", 4)]);
    let log = Memory::new(3);
    router.log_to(log.clone());
    let pending = &mut Pending::default();
    assert_eq!((push(&router, "mine", pending), pending.position()), (Push::Taken, 1));
    assert!(durable.slots().is_empty(), "what is in the log is replayed first");
    assert!(!router.end_replay(|_| false));
    let mine = message("mine");
    assert_eq!(router.read().replay(&mine, 1, true), Push::Taken);
    assert_eq!(durable.slots(), [2]);
    let rest = message("both");
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
    let of_kim = Received { client: b"kim", packet_id: 5, ..message("both") };
    let taken = router.read().route(&of_kim, pending);
    assert_eq!((taken, pending.position(), pending.is_empty()), (Push::Taken, 2, true));
    assert_eq!((durable.slots(), other.slots()), (vec![1, 1, 2], vec![3, 3, 4]));
    assert_eq!(log.messages.lock()[1], (b"kim".to_vec(), 5, b"both".to_vec()));

    assert_eq!(push(&router, "mine", pending), Push::Taken);
    assert_eq!(push(&router, "mine", pending), Push::Full);
    assert!(pending.waits_for_log());
    assert_eq!(push(&router, "its", &mut Pending::default()), Push::Taken, "others go on");
    let result = router.read_for_results().route(&message("mine"), &mut Pending::default());
    assert_eq!(result, Push::Taken, "the log waits for it to be out of the way");
    assert_eq!(router.read().break_circle(&message("mine"), pending), Some(0));
    assert!(!pending.waits_for_log() && log.messages.lock().len() == 3 + EXCESS);
    assert_eq!(push(&router, "mine", pending), Push::Full);
    assert_eq!(router.read().break_circle(&message("mine"), pending), None, "there is a bound to that");
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
    let (durable, _) = logged_inbox(&router, 9, &[("t", 1)]);
    let (other, _) = inbox(&router, 9, &[("t", 2)]);
    let log = Memory::new(9);
    router.log_to(log.clone());
    assert!(router.end_replay(|_| true));
    let give = |id: &str| {
        let mut routing = router.read_for_results();
        routing.of_result(id);
        routing.route(&message("t"), &mut Pending::default())
    };
    assert_eq!((give("s-1-1"), give("")), (Push::Taken, Push::Taken));
    let logged = log.messages.lock().clone();
    assert_eq!((&logged[0].0[1..], &logged[1].0[..]), (&b"s-1-1"[..], &b""[..]));

    let expect = |client| {
        router.expect_repeat(&Received { client, ..message("t") });
    };
    logged.iter().for_each(|(client, ..)| expect(client));
    assert_eq!((give("s-1-1"), durable.slots(), other.slots()), (Push::Taken, vec![1, 1], vec![2, 2, 2]));
    assert_eq!((give("s-1-1"), log.next()), (Push::Taken, 4), "what comes a third time is another one");
    expect(&logged[0].0);
    router.forget_repeats();
    assert_eq!((give("s-1-1"), durable.slots().len()), (Push::Taken, 4));
    let from_client = router.read().route(&Received { client: b"kim", ..message("t") }, &mut Pending::default());
    assert_eq!((from_client, log.messages.lock()[4].0.as_slice()), (Push::Taken, &b"kim"[..]));
}

#[test]
fn what_comes_on_a_topic_that_is_about_to_be_read_waits_in_the_log_until_it_is_replayed() {
    let router = Router::new();
    let (durable, id) = logged_inbox(&router, 9, &[("before", 1)]);
    let log = Memory::new(9);
    router.log_to(log.clone());
    let pending = &mut Pending::default();
    assert_eq!((push(&router, "after", pending), pending.position()), (Push::Taken, 0), "nobody asks for it");
    router.await_routes("after", 7);
    assert_eq!((push(&router, "after", pending), pending.position()), (Push::Taken, 1));
    assert_eq!((router.stats().unrouted_messages, durable.slots()), (1, vec![]));
    router.await_routes_no_more("after", 7);
    assert_eq!((push(&router, "after", pending), pending.position()), (Push::Taken, 0));
    router.await_routes("after", 7);
    router.add(&routes(id, &[("after", 1)])).unwrap();
    assert!(router.end_replay(|push| {
        push(&message("after"), 1, true);
        true
    }));
    assert_eq!(durable.slots(), [1]);
    router.remove(&routes(id, &[("after", 1)]));
    assert_eq!((push(&router, "after", pending), pending.position()), (Push::Taken, 0), "the log is replayed");
}
