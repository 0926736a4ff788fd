//! The broker's state without sockets: sessions, windows, wills, bounds.

mod restore;
mod tenants;

use std::sync::atomic::AtomicBool;

use super::super::super::codec::{PacketKind, Publish, split_frame};
use super::super::clients::{ClientFilter, ClientInfo};
use super::super::message::Message;
use super::super::rights::ClientRights;
use super::*;

pub(super) fn core(change: impl FnOnce(&mut BrokerOptions)) -> Core {
    let mut options = BrokerOptions::new("127.0.0.1:0".parse().unwrap());
    change(&mut options);
    Core::new(&options)
}

/// A different address for each number.
fn address(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

fn connect(core: &mut Core, client_id: &str, clean_start: bool, expiry_s: u32) -> (SessionKey, Arc<Outbox>, bool) {
    connect_from(core, 1, client_id, clean_start, expiry_s).expect("there is room")
}

pub(super) fn connect_from(
    core: &mut Core,
    number: u8,
    client_id: &str,
    clean_start: bool,
    expiry_s: u32,
) -> Option<(SessionKey, Arc<Outbox>, bool)> {
    let outbox = Arc::new(Outbox::new(1000, core.share(address(number), client_id)));
    let request = ConnectRequest {
        client_id,
        address: address(number),
        version: Version::V5,
        clean_start,
        expiry_s,
        receive_max: 2,
        packet_bytes_max: usize::MAX,
        topic_aliases_max: 0,
        will: None,
    };
    let mut was_present = false;
    let key = core.connect(request, &outbox, |_, _| {}, |present, _, _| was_present = present, |_, _| {})?;
    core.begin_turn();
    Some((key, outbox, was_present))
}

pub(super) fn subscribe(core: &mut Core, key: SessionKey, filter: &str, qos: Qos) -> u8 {
    subscribe_with(core, key, filter, qos, RetainHandling::Always)
}

pub(super) fn subscribe_with(
    core: &mut Core,
    key: SessionKey,
    filter: &str,
    qos: Qos,
    retain_handling: RetainHandling,
) -> u8 {
    let request = SubscribeRequest {
        filter,
        qos,
        no_local: false,
        retain_as_published: false,
        retain_handling,
        identifier: None,
    };
    let mut code = 0;
    core.subscribe(key, &[request], &None, |codes, _| code = codes[0]);
    code
}

fn publish(core: &mut Core, payload: &[u8], qos: Qos) {
    core.publish(&Publish { topic: b"t", payload, qos, ..Publish::default() }, None, None);
}

/// The payloads sent, with their packet identifiers and whether they are marked as sent again.
pub(super) fn sent(outbox: &Outbox) -> Vec<(Vec<u8>, u16, bool)> {
    let mut bytes = Vec::new();
    outbox.take(&mut bytes);
    let (mut rest, mut sent) = (&bytes[..], Vec::new());
    while let Some(frame) = split_frame(rest, usize::MAX).unwrap() {
        rest = &rest[frame.whole.len()..];
        if frame.kind() == PacketKind::Publish {
            let publish = Publish::decode(Version::V5, frame.first_byte, frame.body).unwrap();
            sent.push((publish.payload.to_vec(), publish.packet_id, publish.duplicate));
        }
    }
    sent
}

#[test]
fn the_window_is_kept_and_a_session_survives_its_connection() {
    let mut core = core(|_| {});
    let (key, outbox, present) = connect(&mut core, "c", false, 60);
    assert!(!present);
    subscribe(&mut core, key, "t", Qos::AtLeastOnce);
    for payload in [b"1", b"2", b"3"] {
        publish(&mut core, payload, Qos::AtLeastOnce);
    }
    let first = sent(&outbox);
    assert_eq!(first.len(), 2, "the client takes two at a time");
    core.acknowledge(key, first[0].1);
    assert_eq!(sent(&outbox)[0].0, b"3");
    assert!(core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None }));
    publish(&mut core, b"4", Qos::AtLeastOnce);
    publish(&mut core, b"lost", Qos::AtMostOnce);
    let (key, outbox, present) = connect(&mut core, "c", false, 60);
    assert!(present);
    let again = sent(&outbox);
    assert_eq!(again, [(b"2".to_vec(), first[1].1, true), (b"3".to_vec(), 3, true)]);
    core.acknowledge(key, again[0].1);
    core.acknowledge(key, again[1].1);
    assert_eq!(sent(&outbox).iter().map(|(payload, _, _)| &payload[..]).collect::<Vec<_>>(), [b"4"]);
    core.acknowledge(key, 4);
    assert_eq!(core.stats(SeatCounts::default()).waiting_messages, 0);
}

#[test]
fn clients_are_listed_by_page_and_tenant() {
    let mut core = core(|options| options.limits.sessions_max = 100_000);
    for number in 0..10_000 {
        let scope = if number % 2 == 0 { "" } else { "acme\0anna\0" };
        let (key, outbox, _) = connect(&mut core, &format!("{scope}c{number:05}"), false, 60);
        subscribe(&mut core, key, "t", Qos::AtLeastOnce);
        if number == 6 {
            core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
        }
    }
    publish(&mut core, b"1", Qos::AtLeastOnce);
    let list = |tenant: Option<&str>, prefix: &str, after: &str| {
        let (tenant, prefix) = (tenant.map(str::to_owned), prefix.to_owned());
        let filter = ClientFilter { tenant, prefix, after: after.to_owned(), limit: 2 };
        let (mut page, mut from, mut parts) = (std::collections::BTreeMap::new(), Some(0), 0);
        while let Some(at) = from.filter(|_| parts < 10) {
            (from, parts) = (core.list_clients(&mut page, at, &filter), parts + 1);
        }
        assert_eq!(parts, 3);
        page.into_values().collect::<Vec<ClientInfo>>()
    };
    let ids = |found: &[ClientInfo]| found.iter().map(|one| one.client_id.clone()).collect::<Vec<_>>();
    let all = list(None, "c", "");
    assert_eq!(ids(&all), ["c00001", "c00003"], "by tenant, user and id");
    assert_eq!(all[0].user.as_ref().unwrap(), &["acme", "anna"]);
    assert_eq!(ids(&list(None, "c0000", &all[1].place)), ["c00005", "c00007"]);
    assert_eq!(ids(&list(Some("acme"), "c0999", "")), ["c09991", "c09993"]);
    assert_eq!(ids(&list(Some("other"), "", "")), [""; 0]);
    let away = &list(None, "c00006", "")[0];
    assert_eq!((away.user.clone(), away.is_connected, away.subscriptions, away.waiting_messages), (None, false, 1, 1));
    assert_eq!(away.address, address(1));
}

#[test]
fn a_full_outbox_holds_back_qos_1_and_drops_qos_0() {
    let mut core = core(|options| options.limits.session_queue_messages_max = 3);
    let (key, outbox, _) = connect(&mut core, "c", true, 0);
    subscribe(&mut core, key, "t", Qos::AtLeastOnce);
    let large = [b'x'; 1_000];
    publish(&mut core, &large, Qos::AtMostOnce);
    publish(&mut core, &large, Qos::AtMostOnce);
    assert_eq!(core.counters.drops.slow_subscriber, 1);
    for _ in 0..5 {
        publish(&mut core, &large, Qos::AtLeastOnce);
    }
    assert_eq!(core.counters.drops.session_queue_full, 2);
    assert_eq!(sent(&outbox).len(), 1);
    assert!(outbox.is_starved.load(std::sync::atomic::Ordering::SeqCst));
    core.pump(key, &outbox);
    assert_eq!(sent(&outbox).len(), 1);
    core.pump(key, &outbox);
    assert_eq!(sent(&outbox).len(), 1);
    core.acknowledge(key, 1);
    assert_eq!(sent(&outbox).len(), 1);
}

#[test]
fn sessions_end_in_time_and_take_their_subscriptions_with_them() {
    let mut core = core(|_| {});
    let (key, outbox, _) = connect(&mut core, "c", true, 10);
    subscribe(&mut core, key, "a/#", Qos::AtMostOnce);
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    core.keep_house(Instant::now() + Duration::from_secs(9));
    assert_eq!((core.stats(SeatCounts::default()).sessions, core.subscriptions.len()), (1, 1));
    core.keep_house(Instant::now() + Duration::from_secs(11));
    assert_eq!((core.stats(SeatCounts::default()).sessions, core.subscriptions.len()), (0, 0));
    assert!(core.subscriptions.is_empty());
}

#[test]
fn a_client_id_is_taken_over_and_the_old_connection_told() {
    let mut core = core(|_| {});
    let (key, old, _) = connect(&mut core, "c", false, 60);
    subscribe(&mut core, key, "t", Qos::AtMostOnce);
    let (new_key, new, present) = connect(&mut core, "c", false, 60);
    assert!(present && new_key == key);
    assert!(old.take(&mut Vec::new()), "the old connection is closed");
    assert!(!core.disconnected(key, &old, Goodbye { is_graceful: false, expiry_s: None }));
    publish(&mut core, b"x", Qos::AtMostOnce);
    assert_eq!((sent(&new).len(), core.stats(SeatCounts::default()).connections), (1, 1));
}

#[test]
fn a_delayed_will_waits_for_its_time_or_the_end_of_the_session() {
    let message = Arc::new(Message::of(&Publish { topic: b"will", ..Publish::default() }, None));
    for (delay_s, expiry_s, due_after_s) in [(0, 60, 0), (5, 60, 5), (60, 5, 5), (5, 0, 0)] {
        let mut core = core(|_| {});
        let (key, outbox, _) = connect(&mut core, "c", true, expiry_s);
        let will = Will { message: message.clone(), delay_s, message_expiry_s: None, rights: None };
        core.sessions.get_mut(key).unwrap().set_will(Some(will));
        core.disconnected(key, &outbox, Goodbye { is_graceful: false, expiry_s: None });
        if due_after_s > 0 {
            core.keep_house(Instant::now() + Duration::from_secs(due_after_s - 1));
            assert!(core.wills.is_empty(), "{delay_s} {expiry_s}");
            core.keep_house(Instant::now() + Duration::from_secs(due_after_s + 1));
        }
        assert_eq!(core.wills.len(), 1, "{delay_s} {expiry_s}");
    }
}

/// Rights that may end.
#[derive(Default)]
struct Ending(AtomicBool);

impl ClientRights for Ending {
    fn session_scope(&self) -> Option<String> {
        None
    }

    fn may_publish(&self, _: &str) -> bool {
        !self.0.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn may_subscribe(&self, _: &str) -> bool {
        true
    }
}

#[test]
fn a_will_whose_right_has_ended_is_not_published() {
    let message = Arc::new(Message::of(&Publish { topic: b"will", ..Publish::default() }, None));
    // It is due at once, later, or with the end of its session.
    for (delay_s, expiry_s) in [(0, 60), (5, 60), (60, 5)] {
        for ends in [false, true] {
            let mut core = core(|_| {});
            let (key, outbox, _) = connect(&mut core, "c", true, expiry_s);
            let rights = Arc::<Ending>::default();
            let will = Will { message: message.clone(), delay_s, message_expiry_s: None, rights: Some(rights.clone()) };
            core.sessions.get_mut(key).unwrap().set_will(Some(will));
            let end = || rights.0.store(ends, std::sync::atomic::Ordering::SeqCst);
            if delay_s == 0 {
                end();
            }
            core.disconnected(key, &outbox, Goodbye { is_graceful: false, expiry_s: None });
            end();
            core.keep_house(Instant::now() + Duration::from_secs(6));
            let found = (core.wills.len(), core.counters.drops.rights_ended);
            assert_eq!(found, if ends { (0, 1) } else { (1, 0) }, "{delay_s} {expiry_s}");
        }
    }
}

#[test]
fn wills_that_find_no_place_are_counted() {
    let mut core = core(|_| {});
    let large =
        Arc::new(Message::of(&Publish { topic: b"will", payload: &[b'x'; 1 << 20], ..Publish::default() }, None));
    for _ in 0..100 {
        core.push_will(Will { message: large.clone(), delay_s: 0, message_expiry_s: None, rights: None });
    }
    assert_eq!((core.wills.len(), core.counters.drops.wills_full), (63, 37), "63 MiB and some bytes each");
    while core.take_will().is_some() {}
    assert_eq!(core.will_bytes, 0);
    let small = Arc::new(Message::of(&Publish { topic: b"will", ..Publish::default() }, None));
    for _ in 0..=WILLS_MAX {
        core.push_will(Will { message: small.clone(), delay_s: 0, message_expiry_s: None, rights: None });
    }
    assert_eq!((core.wills.len(), core.counters.drops.wills_full), (WILLS_MAX, 38));
}

#[test]
fn a_session_whose_time_is_over_is_not_resumed() {
    let mut core = core(|_| {});
    let (key, outbox, _) = connect(&mut core, "c", false, 60);
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    // Before the next housekeeping.
    core.sessions.get_mut(key).unwrap().ends_at = Some(Instant::now());
    assert!(!connect(&mut core, "c", false, 60).2);
}

#[test]
fn broken_filters_and_too_many_are_refused() {
    let mut core = core(|options| options.limits.subscriptions_max = 1);
    let (key, _, _) = connect(&mut core, "c", true, 0);
    assert_eq!(subscribe(&mut core, key, "$share/g", Qos::AtMostOnce), suback::FILTER_INVALID);
    assert_eq!(subscribe(&mut core, key, "a/#/b", Qos::AtMostOnce), suback::FILTER_INVALID);
    assert_eq!(subscribe(&mut core, key, "a", Qos::ExactlyOnce), 2);
    assert_eq!(subscribe(&mut core, key, "b", Qos::AtMostOnce), suback::QUOTA_EXCEEDED);
    assert!(core.unsubscribe(key, "a").is_some() && core.unsubscribe(key, "a").is_none());
    assert_eq!(subscribe(&mut core, key, "b", Qos::AtMostOnce), 0);
}

#[test]
fn when_sessions_are_full_the_oldest_without_connection_goes() {
    let mut core = core(|options| options.limits.sessions_max = 2);
    let (first, outbox, _) = connect(&mut core, "first", false, 60);
    core.disconnected(first, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    let _second = connect(&mut core, "second", false, 60);
    let _third = connect(&mut core, "third", false, 60);
    assert_eq!(core.counters.drops.sessions_evicted, 1);
    assert!(connect_from(&mut core, 1, "fourth", true, 0).is_none());
}

#[test]
fn other_bounds_count_from_then_on_and_throw_nothing_out() {
    let mut core = core(|_| {});
    let (key, _, _) = connect(&mut core, "first", false, 60);
    let _second = connect(&mut core, "second", false, 60);
    assert_eq!(subscribe(&mut core, key, "a", Qos::AtMostOnce), 0);
    publish_to(&mut core, "a", b"1", Qos::AtMostOnce, true);
    let mut options = BrokerOptions::new("127.0.0.1:0".parse().unwrap());
    (options.limits.sessions_max, options.limits.session_subscriptions_max, options.limits.retained_messages_max) =
        (1, 1, 1);
    core.set_bounds(&options);
    assert_eq!((core.sessions.len(), core.retained.len()), (2, 1));
    assert!(connect_from(&mut core, 1, "third", true, 0).is_none());
    assert_eq!(subscribe(&mut core, key, "b", Qos::AtMostOnce), suback::QUOTA_EXCEEDED);
    publish_to(&mut core, "b", b"1", Qos::AtMostOnce, true);
    assert_eq!((core.retained.len(), core.counters.drops.retained_full), (1, 1));
    core.set_bounds(&BrokerOptions::new("127.0.0.1:0".parse().unwrap()));
    assert_eq!(subscribe(&mut core, key, "b", Qos::AtMostOnce), 0);
    assert!(connect_from(&mut core, 1, "third", true, 0).is_some());
}

fn retain(core: &mut Core, topic: &str, payload: &[u8], qos: Qos) {
    publish_to(core, topic, payload, qos, true);
}

pub(super) fn publish_to(core: &mut Core, topic: &str, payload: &[u8], qos: Qos, retain: bool) {
    core.publish(&Publish { topic: topic.as_bytes(), payload, qos, retain, ..Publish::default() }, None, None);
}

#[test]
fn all_retained_messages_come_as_the_client_reads() {
    for qos in [Qos::AtMostOnce, Qos::AtLeastOnce] {
        let mut core = core(|_| {});
        let topics: Vec<String> = (0..500).map(|number| format!("home/{number:03}")).collect();
        topics.iter().for_each(|topic| retain(&mut core, topic, topic.as_bytes(), qos));
        let (key, outbox, _) = connect(&mut core, "c", false, 60);
        subscribe(&mut core, key, "home/#", qos);
        let mut received = Vec::new();
        let is_starved = || outbox.is_starved.swap(false, std::sync::atomic::Ordering::SeqCst);
        loop {
            let packets = sent(&outbox);
            let asks = is_starved();
            if packets.is_empty() && !asks {
                break;
            }
            for (payload, packet_id, _) in packets {
                received.push(String::from_utf8(payload).unwrap());
                core.acknowledge(key, packet_id);
            }
            core.pump(key, &outbox);
        }
        assert_eq!(received, topics, "{qos:?}");
        assert_eq!(core.stats(SeatCounts::default()).dropped, Default::default());
    }
}

#[test]
fn new_subscriptions_look_at_few_retained_messages_in_a_turn() {
    let mut core = core(|_| {});
    for number in 0..20_000 {
        retain(&mut core, &format!("{number}/x"), b"x", Qos::AtMostOnce);
    }
    let (key, outbox, _) = connect(&mut core, "c", false, 60);
    let filters: Vec<String> = (0..5000).map(|number| format!("+/y{number}")).collect();
    let request = |filter| SubscribeRequest {
        filter,
        qos: Qos::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Always,
        identifier: None,
    };
    let requests: Vec<_> = filters.iter().map(|filter| request(&filter[..])).collect();
    for _ in 0..2 {
        core.subscribe(key, &requests, &None, |_, _| {});
        assert_eq!(core.retained_steps, 0, "they are used up, and the rest waits for another turn");
    }
    assert!(core.pump(key, &outbox), "it goes on");
    // The same with filters that match nothing at all, in many SUBSCRIBEs of one turn.
    core.begin_turn();
    filters.iter().for_each(|filter| core.subscribe(key, &[request(&filter[1..])], &None, |_, _| {}));
    assert_eq!(core.retained_steps, 0);
    assert!(filters.iter().all(|filter| core.unsubscribe(key, filter).is_some()));
}

#[test]
fn a_walk_goes_on_when_the_client_is_back() {
    let mut core = core(|_| {});
    let large = [b'x'; 1_000];
    ["a", "b", "c"].iter().for_each(|topic| retain(&mut core, topic, &large, Qos::AtMostOnce));
    let (key, outbox, _) = connect(&mut core, "c", false, 60);
    subscribe(&mut core, key, "#", Qos::AtMostOnce);
    assert_eq!(sent(&outbox).len(), 1, "the connection has room for one");
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    let (key, outbox, present) = connect(&mut core, "c", false, 60);
    assert!(present && outbox.is_starved.load(std::sync::atomic::Ordering::SeqCst));
    let mut received = 0;
    while core.pump(key, &outbox) || !outbox_is_empty(&outbox, &mut received) {}
    assert_eq!(received, 2);
}

fn outbox_is_empty(outbox: &Outbox, received: &mut usize) -> bool {
    let packets = sent(outbox).len();
    *received += packets;
    packets == 0
}

#[test]
fn nobody_has_more_subscriptions_than_its_part() {
    let mut core =
        core(|options| (options.limits.subscriptions_max, options.limits.session_subscriptions_max) = (100, 20));
    let (key, _, _) = connect(&mut core, "greedy", true, 0);
    let granted = |core: &mut Core, key| {
        (0..200).filter(|number| subscribe(core, key, &format!("t{number}"), Qos::AtMostOnce) == 0).count()
    };
    assert_eq!(granted(&mut core, key), 20);
    let others: Vec<_> = (0..9).map(|number| connect(&mut core, &format!("greedy{number}"), true, 0)).collect();
    assert_eq!(others.iter().map(|(key, ..)| granted(&mut core, *key)).sum::<usize>(), 30, "half for one address");
    let (modest, _, _) = connect_from(&mut core, 2, "modest", true, 0).unwrap();
    assert_eq!(granted(&mut core, modest), 20);
    assert!(core.counters.drops.subscriptions_refused > 0);
    // Its existing subscriptions may be changed, and ended ones make room.
    assert_eq!(subscribe(&mut core, key, "t0", Qos::AtLeastOnce), 1);
    assert!(core.unsubscribe(key, "t0").is_some());
    assert_eq!(subscribe(&mut core, key, "other", Qos::AtMostOnce), 0);
}

#[test]
fn who_opens_many_sessions_pushes_out_its_own() {
    let mut core = core(|options| options.limits.sessions_max = 10);
    let open = |core: &mut Core, number, client_id: &str| {
        let (key, outbox, present) = connect_from(core, number, client_id, false, 60).unwrap();
        core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
        present
    };
    for number in 0..3 {
        open(&mut core, 2, &format!("modest{number}"));
    }
    for number in 0..1000 {
        open(&mut core, 1, &format!("greedy{number}"));
    }
    // There is still room for other addresses, and their sessions are still present.
    open(&mut core, 3, "late");
    assert!((0..3).all(|number| open(&mut core, 2, &format!("modest{number}"))));
    assert!(open(&mut core, 3, "late") && open(&mut core, 1, "greedy999"));
    assert_eq!((core.stats(SeatCounts::default()).sessions, core.counters.drops.sessions_evicted), (10, 994));
}

#[test]
fn sessions_that_are_away_take_no_more_memory_than_their_part() {
    let mut core = core(|options| options.limits.memory_bytes_max = 10 << 20);
    let before = core.stats(SeatCounts::default()).memory_bytes;
    let away = |core: &mut Core, number, client_id: &str| {
        let (key, outbox, _) = connect_from(core, number, client_id, false, 60).unwrap();
        subscribe(core, key, &format!("{number}/{client_id}"), Qos::AtLeastOnce);
        core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    };
    let publish = |core: &mut Core, topic: &str| {
        let payload = [b'x'; 100_000];
        core.publish(
            &Publish { topic: topic.as_bytes(), payload: &payload, qos: Qos::AtLeastOnce, ..Publish::default() },
            None,
            None,
        );
    };
    for number in 0..10 {
        away(&mut core, 1, &format!("greedy{number}"));
        (0..60).for_each(|_| publish(&mut core, &format!("1/greedy{number}")));
    }
    let held = core.stats(SeatCounts::default()).memory_bytes;
    assert!((5 << 20..6 << 20).contains(&held), "half of the memory is for one address: {held}");
    assert!(core.counters.drops.memory_full > 0 && core.counters.drops.session_queue_full == 0);
    away(&mut core, 2, "modest");
    (0..20).for_each(|_| publish(&mut core, "2/modest"));
    assert!(core.stats(SeatCounts::default()).memory_bytes > held + 2_000_000);
    // A session of the same address displaces the oldest one of that address.
    let evicted = core.counters.drops.sessions_evicted;
    let _ = connect_from(&mut core, 1, "one more", false, 60).unwrap();
    assert_eq!(core.counters.drops.sessions_evicted, evicted + 1);
    core.keep_house(Instant::now() + Duration::from_secs(61));
    let (key, outbox, _) = connect_from(&mut core, 1, "one more", true, 0).unwrap();
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    drop(outbox);
    assert_eq!(
        (core.stats(SeatCounts::default()).sessions, core.stats(SeatCounts::default()).memory_bytes),
        (0, before)
    );
}

#[test]
fn while_memory_is_used_up_those_who_read_go_on() {
    let mut core = core(|options| options.limits.memory_bytes_max = 300_000);
    let (hog, hog_outbox, _) = connect_from(&mut core, 1, "hog", false, 60).unwrap();
    subscribe(&mut core, hog, "hog", Qos::AtLeastOnce);
    core.disconnected(hog, &hog_outbox, Goodbye { is_graceful: true, expiry_s: None });
    for topic in ["r0", "r1"] {
        retain(&mut core, topic, &[b'x'; 150_000], Qos::AtMostOnce);
    }
    assert!(core.memory.is_full());
    core.publish(&Publish { topic: b"hog", payload: b"x", qos: Qos::AtLeastOnce, ..Publish::default() }, None, None);
    assert_eq!((core.counters.drops.memory_full, core.stats(SeatCounts::default()).waiting_messages), (1, 0));
    retain(&mut core, "r2", b"x", Qos::AtMostOnce);
    retain(&mut core, "r1", b"newer", Qos::AtMostOnce);
    assert_eq!(core.stats(SeatCounts::default()).retained_messages, 1, "neither a new one nor an old value");
    assert!(!core.memory.is_full(), "which has made room");
    retain(&mut core, "r1", &[b'x'; 150_000], Qos::AtMostOnce);
    // When memory is used up, no new client is let in; connected clients are served as long as they read.
    let (key, outbox, _) = connect_from(&mut core, 1, "hog", false, 60).unwrap();
    subscribe(&mut core, key, "hog", Qos::AtLeastOnce);
    for _ in 0..10 {
        let publish = Publish { topic: b"hog", payload: b"x", qos: Qos::AtLeastOnce, ..Publish::default() };
        core.publish(&publish, None, None);
        let packets = sent(&outbox);
        assert_eq!(packets.len(), 1);
        core.acknowledge(key, packets[0].1);
    }
    assert!(core.memory.is_full());
    assert!(connect_from(&mut core, 2, "new", true, 0).is_none());
}

/// May subscribe to one filter only.
pub(super) struct MaySubscribe(pub(super) &'static str);

impl ClientRights for MaySubscribe {
    fn session_scope(&self) -> Option<String> {
        None
    }

    fn may_publish(&self, _: &str) -> bool {
        true
    }

    fn may_subscribe(&self, filter: &str) -> bool {
        filter == self.0
    }
}

#[test]
fn permitted_subscriptions_stay_shared_or_not() {
    let mut core = core(|_| {});
    let (key, _, _) = connect(&mut core, "c", false, 60);
    for filter in ["t", "$share/g/t", "u", "$share/g/u"] {
        subscribe(&mut core, key, filter, Qos::AtLeastOnce);
    }
    let rights: Rights = Some(Arc::new(MaySubscribe("t")));
    core.keep_permitted("c", &rights);
    let mut left: Vec<&str> = core.sessions.get(key).unwrap().subscriptions.keys().map(|filter| &**filter).collect();
    left.sort_unstable();
    assert_eq!(left, ["$share/g/t", "t"]);
}

#[test]
fn what_no_other_member_takes_stays_with_its_session() {
    let mut core = core(|_| {});
    let (key, outbox, _) = connect(&mut core, "a", false, 60);
    subscribe(&mut core, key, "$share/g/t", Qos::AtLeastOnce);
    for payload in [b"1", b"2", b"3", b"4", b"5"] {
        publish(&mut core, payload, Qos::AtLeastOnce);
    }
    assert_eq!(sent(&outbox).len(), 2);
    let payloads = |outbox: &Outbox| sent(outbox).into_iter().map(|(payload, ..)| payload).collect::<Vec<_>>();
    let goodbye = Goodbye { is_graceful: true, expiry_s: None };
    // A member of QoS 0 could lose them.
    let (other, other_outbox, _) = connect(&mut core, "b", true, 0);
    subscribe(&mut core, other, "$share/g/t", Qos::AtMostOnce);
    core.disconnected(key, &outbox, goodbye);
    assert_eq!(payloads(&other_outbox), [b""; 0]);
    let (key, outbox, _) = connect(&mut core, "a", false, 60);
    assert_eq!(payloads(&outbox), [b"1", b"2"]);
    // A member whose queue is full takes no more.
    subscribe(&mut core, other, "$share/g/t", Qos::AtLeastOnce);
    let mut options = BrokerOptions::new("127.0.0.1:0".parse().unwrap());
    options.limits.session_queue_messages_max = 1;
    core.set_bounds(&options);
    core.disconnected(key, &outbox, goodbye);
    assert_eq!(payloads(&other_outbox), [b"1", b"2"]);
    let (_, outbox, _) = connect(&mut core, "a", false, 60);
    assert_eq!(payloads(&outbox), [b"4", b"5"]);
    assert_eq!(core.counters.drops.session_queue_full, 0);
    assert_eq!(core.stats(SeatCounts::default()).waiting_messages, 5);
}

#[test]
fn what_waits_for_a_revoked_subscription_is_dropped() {
    let mut core = core(|_| {});
    let (key, outbox, _) = connect(&mut core, "c", false, 60);
    subscribe(&mut core, key, "t", Qos::AtLeastOnce);
    subscribe(&mut core, key, "u", Qos::AtLeastOnce);
    core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
    publish(&mut core, b"1", Qos::AtLeastOnce);
    core.publish(&Publish { topic: b"u", payload: b"2", qos: Qos::AtLeastOnce, ..Publish::default() }, None, None);
    let rights: Rights = Some(Arc::new(MaySubscribe("u")));
    core.keep_permitted("c", &rights);
    let (_, outbox, present) = connect(&mut core, "c", false, 60);
    assert!(present);
    assert_eq!(sent(&outbox).into_iter().map(|(payload, ..)| payload).collect::<Vec<_>>(), [b"2"]);
    assert_eq!((core.counters.drops.rights_ended, core.stats(SeatCounts::default()).waiting_messages), (1, 1));
}
