//! What a client of our broker may have, and what comes to it piece by piece.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rivulet_connectors::mqtt::codec::Publish;
use rivulet_connectors::mqtt::{Route, Router, Version};

use super::probe::{Probe, Request};
use super::support::*;

const VERSIONS: [Version; 2] = [Version::V3, Version::V5];

#[test]
fn a_new_subscriber_gets_all_retained_messages_however_many() {
    const MESSAGES: usize = 300;
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut publisher = Probe::connect(broker.port(), Version::V3, "publisher", |_| {});
    let payload = "x".repeat(60_000);
    for number in 0..MESSAGES {
        publisher.publish(&format!("home/{number:03}"), &payload, 1, true);
    }
    for (version, qos) in VERSIONS.into_iter().flat_map(|version| [(version, 0), (version, 1)]) {
        let mut probe = Probe::connect(broker.port(), version, "reader", |_| {});
        probe.subscribe(&[("home/#", qos)]);
        for number in 0..MESSAGES {
            let seen = probe.next().expect("a message");
            assert!(seen.starts_with(&format!("message home/{number:03} 'xx")), "{version:?} {qos}: {:.40}", seen);
        }
        assert_eq!(probe.take(), [""; 0]);
    }
    let stats = broker.broker().stats();
    assert_eq!(stats.dropped, Default::default());
}

#[test]
fn others_are_served_while_one_looks_through_all_retained_messages() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut publisher = Probe::connect(broker.port(), Version::V5, "publisher", |_| {});
    for number in 0..20_000 {
        publisher.publish(&format!("{number}/x"), "x", if number % 1000 == 0 { 1 } else { 0 }, true);
    }
    let mut greedy = Probe::connect(broker.port(), Version::V5, "greedy", |_| {});
    let filters: Vec<String> = (0..3000).map(|number| format!("+/y{number}")).collect();
    let filters: Vec<(&str, u8)> = filters.iter().map(|filter| (&filter[..], 0)).chain([("0/x", 0)]).collect();
    greedy.subscribe(&filters);
    // Its last filter has its turn when all retained messages were looked at 3000 times.
    for number in 0..100 {
        publisher.subscribe(&[("hello", 0)]);
        publisher.publish("hello", &number.to_string(), 1, false);
        assert_eq!(publisher.take(), [format!("message hello '{number}' qos 0")]);
    }
    assert_eq!(greedy.take(), [""; 0], "it is not through yet");
    assert_eq!(broker.broker().stats().dropped, Default::default());
}

#[test]
fn what_goes_beyond_a_bound_is_refused_with_the_reason() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |options| {
        (options.limits.session_subscriptions_max, options.limits.subscriptions_max, options.limits.sessions_max) =
            (2, 6, 3);
    });
    let port = broker.port();
    let filters = [("a", 0), ("b", 0), ("c", 0)];
    let mut first = Probe::connect(port, Version::V5, "first", |_| {});
    assert_eq!(first.subscribe(&filters), "subscribed [GrantedQos0, GrantedQos0, QuotaExceeded]");
    let mut second = Probe::connect(port, Version::V3, "second", |_| {});
    assert_eq!(second.subscribe(&filters), "subscribed [Success(AtMostOnce), Failure, Failure]", "half for an address");
    let _third = Probe::connect(port, Version::V3, "third", |_| {});
    for (version, answer) in [(Version::V3, "refused 0x3"), (Version::V5, "refused 0x97")] {
        assert_eq!(Probe::try_connect(port, version, "fourth", |_| {}).1, answer);
    }
    assert_eq!(broker.broker().stats().dropped.subscriptions_refused, 3);
}

#[test]
fn one_address_does_not_take_all_connections() {
    const CONNECTIONS: usize = 20;
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |options| options.limits.connections_max = CONNECTIONS);
    let port = broker.port();
    let evicted = || broker.broker().stats().dropped.connections_evicted;
    let refused = || broker.broker().stats().dropped.connections_refused;
    // One client that stays, then others of its address until one is refused.
    let mut stays = Probe::connect(port, Version::V5, "stays", |_| {});
    let mut crowd = Vec::new();
    while refused() == 0 {
        let (probe, answer) = Probe::try_connect(port, Version::V5, &format!("{}", crowd.len()), |_| {});
        assert_eq!(answer == "closed", refused() > 0);
        crowd.push(probe);
    }
    assert_eq!((crowd.len(), evicted()), (CONNECTIONS, 0));
    let mut closed = crowd.pop().unwrap();
    assert_eq!(closed.next(), None);
    // A client of another address gets in, and the newest of the crowd is told why it goes.
    let other = |client_id: &str| {
        let probe = Probe::raw_from("127.0.0.2".parse().unwrap(), port, Version::V5);
        Probe::try_connect_over(probe, client_id, Request::default())
    };
    let (mut first, answer) = other("first");
    assert_eq!((answer.as_str(), evicted()), ("connected", 1));
    assert_eq!(crowd.pop().unwrap().next().as_deref(), Some("told to go: QuotaExceeded"));
    first.subscribe(&[("hello", 1)]);
    stays.publish("hello", "x", 1, false);
    assert_eq!(first.take(), ["message hello 'x' qos 1"]);
    // It may have as many as the others, and no more; and the others do not push it out.
    let more: Vec<_> = (1..CONNECTIONS).map(|number| other(&format!("other {number}"))).collect();
    assert_eq!(more.iter().filter(|(_, answer)| answer == "connected").count(), CONNECTIONS / 2 - 1);
    assert_eq!(evicted(), CONNECTIONS as u64 / 2);
    assert_eq!(Probe::try_connect(port, Version::V5, "late", |_| {}).1, "closed");
    assert_eq!(stays.publish("hello", "y", 1, false), "acknowledged 0x0");
    assert_eq!(first.take(), ["message hello 'y' qos 1"]);
}

/// Two inboxes that want each message on `t`; the second is full.
fn half_full_router() -> (Arc<Router>, [Arc<Collector>; 2]) {
    let (router, first) = router(&["t"]);
    let second = Collector::new();
    let inbox = router.register_inbox(second.clone());
    router.add(&[Route { filter: "+", inbox, slot: 0 }]).unwrap();
    second.limit(0);
    (router, [first, second])
}

/// Sends messages of QoS 0, and waits until the first inbox has the first and the second inbox has refused it.
fn send_half(probe: &mut Probe, [first, second]: &[Arc<Collector>; 2], payloads: &[&str]) {
    let mut bytes = Vec::new();
    for payload in payloads {
        let publish = Publish { topic: b"t", payload: payload.as_bytes(), ..Publish::default() };
        publish.encode(Version::V5, &mut bytes).unwrap();
    }
    let refusals = second.refusals();
    probe.send(&bytes);
    block_until("half is delivered", || first.contains(payloads[0]) && second.refusals() > refusals);
}

fn connect_from(address: &str, port: u16, client_id: &str) -> Probe {
    let probe = Probe::raw_from(address.parse().unwrap(), port, Version::V5);
    let (probe, answer) = Probe::try_connect_over(probe, client_id, Request::default());
    assert_eq!(answer, "connected", "{client_id}");
    probe
}

#[test]
fn what_came_over_a_connection_that_gives_way_is_delivered_or_counted() {
    for has_room in [true, false] {
        let (router, inboxes) = half_full_router();
        let broker = BrokerThread::start(router, |options| options.limits.connections_max = 3);
        let port = broker.port();
        let mut crowd: Vec<Probe> = (0..3).map(|number| connect_from("127.0.0.1", port, &number.to_string())).collect();
        send_half(&mut crowd[2], &inboxes, &["one", "two"]);
        let _other = connect_from("127.0.0.2", port, "other");
        if has_room {
            inboxes[1].limit(9);
        }
        assert_eq!(crowd[2].next().as_deref(), Some("told to go: QuotaExceeded"));
        let dropped = broker.broker().stats().dropped;
        assert_eq!(dropped.connections_evicted, 1);
        // On a machine that is busy the time for it may be over.
        assert_eq!(inboxes[1].len() as u64 + dropped.unread_messages, 2, "room: {has_room}");
        assert_eq!(inboxes[1].texts(), inboxes[0].texts()[..inboxes[1].len()]);
    }
}

#[test]
fn a_connection_whose_session_was_taken_over_gives_way_at_once_when_others_do_so() {
    let (router, inboxes) = half_full_router();
    let broker = BrokerThread::start(router, |options| options.limits.connections_max = 6);
    let port = broker.port();
    let mut crowd: Vec<Probe> =
        ["a", "b", "c", "d"].iter().map(|client_id| connect_from("127.0.0.1", port, client_id)).collect();
    send_half(&mut crowd[2], &inboxes, &["of c"]);
    send_half(&mut crowd[3], &inboxes, &["of d", "of d, too"]);
    // From now on it waits for room, although its session is another connection's.
    let _same = connect_from("127.0.0.2", port, "c");
    // The first has a place that is free, the second that of 'd', which has some time, and the third that of 'c'.
    let _others = [3, 4, 5].map(|host| connect_from(&format!("127.0.0.{host}"), port, &format!("of {host}")));
    let unread = || broker.broker().stats().dropped.unread_messages;
    let mut first = 0;
    block_until("one has gone", || {
        first = unread();
        first > 0
    });
    assert_ne!(first, 2, "'d' has not gone first");
    block_until("both have gone", || unread() == 3);
}

#[test]
fn connections_on_which_nothing_is_said_give_way_too() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |options| options.limits.connections_max = 4);
    let mut crowd: Vec<Probe> = (0..5).map(|_| Probe::raw(broker.port(), Version::V3)).collect();
    block_until("one is refused", || broker.broker().stats().dropped.connections_refused == 1);
    let probe = Probe::raw_from("127.0.0.2".parse().unwrap(), broker.port(), Version::V3);
    assert_eq!(Probe::try_connect_over(probe, "other", Request::default()).1, "connected");
    assert_eq!(crowd[3].next(), None);
}

#[test]
fn large_packets_that_do_not_come_to_their_end_keep_to_the_memory_of_clients() {
    let (router, _) = router(&[]);
    // Half of it is for one address.
    let broker = BrokerThread::start(router, |options| options.limits.memory_bytes_max = 512 << 10);
    let port = broker.port();
    let mut small = Probe::connect(port, Version::V5, "small", |_| {});
    // The begin of a PUBLISH of a million bytes.
    let begin = |bytes: usize| [&[0x30, 0xc0, 0x84, 0x3d, 0, 1, b'a'][..], &vec![b'x'; bytes]].concat();
    let mut large = Probe::connect(port, Version::V5, "large", |_| {});
    large.send(&begin(300_000));
    assert_eq!(large.next().as_deref(), Some("told to go: QuotaExceeded"));
    let connect = |number: usize| Probe::connect(port, Version::V5, &format!("large-{number}"), |_| {});
    let mut crowd: Vec<Probe> = (0..12).map(connect).collect();
    crowd.iter_mut().for_each(|probe| probe.send(&begin(100_000)));
    block_until("most are closed", || broker.broker().stats().connections <= 4);
    assert_eq!(small.publish("t", &"x".repeat(30_000), 1, false), "acknowledged 0x10");
    drop(crowd);
    block_until("what they held is free", || broker.broker().stats().connections == 1);
    let mut again = Probe::connect(port, Version::V5, "again", |_| {});
    assert_eq!(again.publish("t", &"x".repeat(100_000), 1, false), "acknowledged 0x10");
}

#[test]
fn large_packets_before_the_login_keep_to_a_memory_of_their_own() {
    let (router, _) = router(&[]);
    // A sixteenth of it is for all that have not logged in.
    let broker = BrokerThread::start(router, |options| {
        (options.limits.memory_bytes_max, options.connect_timeout_ms) = (8 << 20, 600_000);
    });
    // The begin of a CONNECT of a million bytes.
    let begin = [&[0x10, 0xc0, 0x84, 0x3d][..], &vec![0; 200_000]].concat();
    let mut crowd: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", broker.port())).unwrap();
            // It may be closed before all is sent.
            let _ = stream.write_all(&begin);
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    let is_closed = |stream: &mut TcpStream| match stream.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    block_until("most are closed", || crowd.iter_mut().filter_map(|one| is_closed(one).then_some(())).count() >= 8);
    let mut probe = Probe::connect(broker.port(), Version::V3, "ordinary", |_| {});
    assert_eq!(probe.publish("t", "x", 1, false), "acknowledged 0x0");
}
