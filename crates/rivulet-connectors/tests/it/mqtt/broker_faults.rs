//! Our broker and clients that misbehave, crowds, and inboxes without room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_connectors::mqtt::codec::Publish;
use rivulet_connectors::mqtt::{
    Broker, BrokerError, BrokerOptions, ClientAuthorizer, ClientLogin, ClientRights, Journal, NotAdmitted, Qos, Version,
};

use rivulet_connectors::reach::AllowedHosts;

use super::probe::Probe;
use super::support::*;

const VERSIONS: [Version; 2] = [Version::V3, Version::V5];

fn message(version: Version, topic: &str, payload: &[u8], qos: Qos, packet_id: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let publish = Publish { topic: topic.as_bytes(), payload, qos, packet_id, ..Publish::default() };
    publish.encode(version, &mut bytes).unwrap();
    bytes
}

#[test]
fn malformed_packets_close_their_connection_and_harm_no_other() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |options| options.packet_bytes_max = 10_000);
    let mut witness = Probe::connect(broker.port(), Version::V5, "witness", |_| {});
    witness.subscribe(&[("#", 1)]);
    for version in VERSIONS {
        let malformed: Vec<Vec<u8>> = vec![
            vec![0xff; 100],
            vec![0x00, 0x00],
            // A message: topic cut short, QoS 3, a wildcard, no topic, packet identifier 0.
            vec![0x30, 4, 0, 9, b't', b'x'],
            vec![0x36, 5, 0, 1, b't', 0, 1],
            message(version, "a/#", b"x", Qos::AtMostOnce, 0),
            message(version, "a\0", b"x", Qos::AtMostOnce, 0),
            vec![0x30, 2, 0, 0],
            message(version, "t", b"x", Qos::AtLeastOnce, 0),
            // The beginnings of such messages that are larger than allowed: what comes behind that is not waited for.
            vec![0x36, 0xa0, 0x9c, 0x01, 0, 1, b't', 0, 1],
            vec![0x32, 0xa0, 0x9c, 0x01, 0, 1, b't', 0, 0],
            vec![0x30, 0xa0, 0x9c, 0x01, 0, 0, 0],
            match version {
                Version::V3 => vec![0x30, 0xa0, 0x9c, 0x01, 0, 1, 0],
                Version::V5 => vec![0x30, 0xa0, 0x9c, 0x01, 0, 1, b't', 0xff, 0xff, 0xff, 0xff],
            },
            // A SUBSCRIBE of 20,000 bytes, which is larger than allowed.
            vec![0x82, 0xa0, 0x9c, 0x01],
            // A second CONNECT, a subscription to nothing, a PUBACK without identifier, packets only brokers send.
            vec![0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 60, 0, 1, b'x'],
            vec![0x82, 2, 0, 1],
            vec![0x40, 1, 0],
            vec![0x20, 2, 0, 0],
            vec![0xd0, 0],
        ];
        for (index, bytes) in malformed.iter().enumerate() {
            let mut probe = Probe::connect(broker.port(), version, &format!("bad-{index}"), |_| {});
            probe.send(bytes);
            let farewell = std::iter::from_fn(|| probe.next()).collect::<Vec<_>>();
            match version {
                Version::V3 => assert_eq!(farewell, Vec::<String>::new(), "{index}"),
                Version::V5 => {
                    assert!(farewell.len() == 1 && farewell[0].starts_with("told to go"), "{index} {farewell:?}")
                }
            }
        }
    }
    // Before a CONNECT nobody is answered.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xc0, 0], &[0x10, 3, 0, 4, b'M'], &[0x10, 0xff, 0xff, 0xff, 0x7f]] {
        let mut probe = Probe::raw(broker.port(), Version::V3);
        probe.send(bytes);
        assert_eq!(probe.next(), None);
    }
    witness.publish("t", "still here", 1, false);
    assert_eq!(witness.take(), ["message t 'still here' qos 1"]);
    assert_eq!(inbox.texts(), ["still here"]);
    let stats = broker.broker().stats();
    assert_eq!(stats.dropped.protocol_errors, 2 * 18 + 4);
    block_until("only the witness is left", || broker.broker().stats().connections == 1);
}

#[test]
fn a_message_that_is_too_large_is_refused_and_its_client_stays() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |options| options.packet_bytes_max = 10_000);
    let large = "x".repeat(3_000_000);
    for version in VERSIONS {
        let mut probe = Probe::connect(broker.port(), version, "large", |_| {});
        let refused = if version == Version::V5 { "0x97" } else { "0x0" };
        probe.send(&message(version, "t", large.as_bytes(), Qos::AtMostOnce, 0));
        assert_eq!(probe.publish("t", &large, 1, false), format!("acknowledged {refused}"));
        probe.send(&message(version, "t", large.as_bytes(), Qos::ExactlyOnce, 7));
        assert_eq!(probe.next(), Some(format!("received {refused}")));
        if version == Version::V3 {
            // It cannot be told, and goes on as if the message was taken.
            probe.send(&[0x62, 2, 0, 7]);
            assert_eq!(probe.next().as_deref(), Some("completed 0x0"));
        } else {
            // The topic of a refused message keeps its alias.
            probe.send(&[0x30, 0xa0, 0x9c, 0x01, 0, 1, b't', 3, 0x23, 0, 1]);
            probe.send(&vec![b'x'; 20_000 - 7]);
            probe.send(&[0x30, 9, 0, 0, 3, 0x23, 0, 1, b'o', b'k', b'5']);
        }
        assert_eq!(probe.publish("t", "after", 1, false), "acknowledged 0x0");
        probe.disconnect();
    }
    assert_eq!(inbox.texts(), ["after", "ok5", "after"]);
    let stats = broker.broker().stats();
    assert_eq!((stats.dropped.too_large_received, stats.dropped.protocol_errors), (3 + 4, 0));
    assert!(stats.memory_bytes < 1 << 20, "nothing of it is kept: {}", stats.memory_bytes);
}

#[test]
fn refusals_of_version_5_say_why() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let port = broker.port();
    let mut probe = Probe::connect(port, Version::V5, "a", |_| {});
    assert_eq!(
        probe.subscribe(&[("$share/g", 0), ("a/#/b", 0), ("fine", 2)]),
        "subscribed [TopicFilterInvalid, TopicFilterInvalid, GrantedQos2]"
    );
    let mut probe = Probe::connect(port, Version::V5, "b", |_| {});
    assert_eq!(probe.publish_with("t", "x", 1, false, &[0x23, 0, 17]), "closed");
    assert_eq!(probe.take_seen(), ["told to go: TopicAliasInvalid"]);
    let mut probe = Probe::connect(port, Version::V3, "c", |_| {});
    assert_eq!(probe.subscribe(&[("$share/g", 0), ("fine", 1)]), "subscribed [Failure, Success(AtLeastOnce)]");
    let with_will = |version, topic, qos| {
        Probe::try_connect(port, version, "w", |request| request.will = Some((topic, "x", qos, false))).1
    };
    assert_eq!(with_will(Version::V5, "will/#", 0), "refused 0x90");
    assert_eq!(with_will(Version::V3, "will", 2), "connected");
    let mut raw = Probe::raw(port, Version::V3);
    raw.send(&[0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 9, 2, 0, 60, 0, 1, b'x']);
    assert_eq!(raw.next().unwrap(), "refused 0x1");
}

#[test]
fn a_client_of_3_1_marks_packets_as_sent_again_and_later_versions_have_no_such_mark() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |_| {});
    let packets: [&[u8]; 3] = [&[0x8a, 6, 0, 1, 0, 1, b't', 1], &[0xaa, 5, 0, 2, 0, 1, b't'], &[0x6a, 2, 0, 7]];
    let answers = ["subscribed [Success(AtLeastOnce)]", "unsubscribed", "completed 0x0"];
    for (packet, answer) in packets.into_iter().zip(answers) {
        let mut old = Probe::raw(broker.port(), Version::V3);
        old.send(b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x3c\0\x01a");
        assert!(old.next().unwrap().starts_with("connected"));
        old.send(&message(Version::V3, "t", b"x", Qos::ExactlyOnce, 7));
        assert_eq!(old.next().as_deref(), Some("received 0x0"));
        old.send(packet);
        assert_eq!(old.next().as_deref(), Some(answer));
        let mut newer = Probe::connect(broker.port(), Version::V3, "b", |_| {});
        newer.send(packet);
        assert_eq!(newer.next(), None, "{answer}");
    }
    assert_eq!(inbox.len(), 3);
}

#[tokio::test]
async fn after_an_orderly_restart_nothing_is_marked_as_sent_again_that_was_not_sent() {
    let journal = Arc::<super::durable::HeldLog>::default();
    journal.commit(u64::MAX);
    let seen = |address: std::net::SocketAddr| {
        tokio::task::spawn_blocking(move || {
            let keeps = |request: &mut super::probe::Request| (request.clean, request.expiry_s) = (false, 60);
            let mut reader = Probe::connect(address.port(), Version::V5, "reader", keeps);
            let mut seen = reader.take();
            reader.subscribe(&[("t", 1)]);
            seen.extend(reader.take());
            reader.disconnect();
            let mut sender = Probe::connect(address.port(), Version::V5, "sender", |_| {});
            sender.send(&message(Version::V5, "t", b"x", Qos::AtMostOnce, 0));
            sender.send(&message(Version::V5, "t", b"y", Qos::AtLeastOnce, 1));
            sender.disconnect();
            seen
        })
    };
    let mut all = Vec::new();
    for _ in 0..2 {
        let broker = broker(router(&[]).0, |_| {}).await;
        broker.keep_in(journal.clone(), 0).unwrap();
        all.push(seen(broker.addresses()[0]).await.unwrap());
        until("it waits", || broker.stats().waiting_messages == 1).await;
        broker.shutdown(WAIT_MAX).await;
    }
    assert_eq!(all[1], ["message t 'y' qos 1"]);
}

#[tokio::test]
async fn a_start_waits_until_a_kill_cannot_look_like_the_stop_before_it() {
    let journal = Arc::<super::durable::HeldLog>::default();
    let first = broker(router(&[]).0, |_| {}).await;
    first.keep_in(journal.clone(), 0).unwrap();
    first.shutdown(WAIT_MAX).await;
    let stopped = journal.len() as u64;
    journal.commit(stopped);
    let (second, its_journal) = (broker(router(&[]).0, |_| {}).await, journal.clone());
    let started = tokio::task::spawn_blocking(move || {
        second.keep_in(its_journal.clone(), 0).unwrap();
        Journal::durable(&*its_journal)
    });
    until("the start is recorded", || journal.len() as u64 > stopped).await;
    // Long enough for a start that does not wait.
    tokio::time::sleep(Duration::from_millis(100)).await;
    journal.commit(stopped + 1);
    assert_eq!(started.await.unwrap(), stopped + 1);
}

#[test]
fn silence_beyond_the_keep_alive_ends_a_connection_and_publishes_its_will() {
    let (router, inbox) = router(&["will"]);
    let broker = BrokerThread::start(router, |options| options.connect_timeout_ms = 300);
    for version in VERSIONS {
        let before = inbox.len();
        let mut probe = Probe::connect(broker.port(), version, "quiet", |request| {
            request.keep_alive_s = 1;
            request.will = Some(("will", "gone", 0, false));
        });
        let farewell = probe.next();
        assert_eq!(
            farewell.as_deref(),
            if version == Version::V5 { Some("told to go: KeepAliveTimeout") } else { None }
        );
        block_until("the will", || inbox.len() == before + 1);
    }
    let mut never_connects = Probe::raw(broker.port(), Version::V3);
    assert_eq!(never_connects.next(), None);
}

#[test]
fn a_full_inbox_pushes_back_and_nothing_is_lost_or_doubled() {
    const MESSAGES: usize = 20_000;
    for version in VERSIONS {
        let (router, inbox) = router(&["t", "+"]);
        let broker = BrokerThread::start(router, |_| {});
        inbox.limit(1001);
        let mut other = Probe::connect(broker.port(), version, "other", |_| {});
        let port = broker.port();
        let sender = std::thread::spawn(move || {
            let mut probe = Probe::connect(port, version, "sender", |_| {});
            for number in 0..MESSAGES {
                let qos = if number % 2 == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
                let payload = format!("{number:>0100}");
                probe.send(&message(
                    version,
                    "t",
                    payload.as_bytes(),
                    qos,
                    if number % 2 == 0 { 0 } else { number as u16 },
                ));
            }
            // Behind all of them.
            probe.take().len()
        });
        block_until("the inbox is full for a while", || inbox.refusals() > 3);
        assert_eq!(inbox.len(), 1001);
        // Whoever does not publish to that inbox is served as ever.
        assert_eq!(
            other.publish("elsewhere/x", "y", 1, false),
            if version == Version::V5 { "acknowledged 0x10" } else { "acknowledged 0x0" }
        );
        inbox.limit(usize::MAX);
        block_until("all of it", || inbox.len() == 2 * MESSAGES);
        assert_eq!(sender.join().unwrap(), MESSAGES / 2, "acknowledgements");
        for slot in 0..2 {
            let slots = inbox.slots();
            let numbers = inbox.texts().into_iter().zip(slots).filter(|(_, of)| *of == slot);
            assert!(numbers.enumerate().all(|(index, (text, _))| text.parse::<usize>() == Ok(index)));
        }
    }
}

#[test]
fn events_of_a_connection_that_was_closed_meanwhile_still_arrive() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |_| {});
    inbox.limit(0);
    let mut first = Probe::connect(broker.port(), Version::V5, "closed-meanwhile", |_| {});
    first.send(&message(Version::V5, "t", b"before", Qos::AtMostOnce, 0));
    block_until("it waits for room", || inbox.refusals() > 0);
    let _second = Probe::connect(broker.port(), Version::V5, "closed-meanwhile", |_| {});
    assert_eq!(first.next().unwrap(), "told to go: SessionTakenOver");
    inbox.limit(1);
    block_until("the event", || inbox.contains("before"));
}

#[test]
fn a_takeover_publishes_the_will_of_the_old_connection_in_both_versions() {
    let (router, inbox) = router(&["will"]);
    let broker = BrokerThread::start(router, |_| {});
    for (index, version) in VERSIONS.into_iter().enumerate() {
        let with_will = |request: &mut super::probe::Request| request.will = Some(("will", "taken over", 1, false));
        let mut old = Probe::connect(broker.port(), version, "taken-over", with_will);
        let new = Probe::connect(broker.port(), version, "taken-over", |_| {});
        let farewell = old.next();
        assert_eq!(
            farewell.as_deref(),
            if version == Version::V5 { Some("told to go: SessionTakenOver") } else { None }
        );
        block_until("the will", || inbox.len() == index + 1);
        new.disconnect();
    }
}

#[test]
fn results_that_feed_a_full_query_wait_and_a_deadlock_is_broken_and_counted() {
    let (router, inbox) = router(&["loop"]);
    let broker = BrokerThread::start(router, |options| {
        options.outbound_bytes_max = 10_000;
        options.deadlock_ms = 100;
    });
    inbox.limit(0);
    let publisher = broker.broker().publisher();
    publish(&publisher, "loop", "first", Qos::AtMostOnce);
    block_until("it waits", || inbox.refusals() > 20);
    assert!(publisher.has_room());
    assert_eq!(broker.broker().stats().dropped.deadlock_events, 0, "waiting is no deadlock while there is room");
    inbox.limit(1);
    block_until("it is taken", || inbox.contains("first"));
    // Now the results fill their queue, as they do when the full query is the one whose results have no room.
    let mut published = 0;
    while publisher.has_room() {
        publish(&publisher, "loop", &"x".repeat(1000), Qos::AtMostOnce);
        published += 1;
    }
    block_until("the circle is broken", || publisher.has_room());
    let dropped = broker.broker().stats().dropped.deadlock_events as usize;
    assert!(dropped > 0 && dropped <= published, "{dropped} of {published}");
    inbox.limit(usize::MAX);
    block_until("the rest is taken", || broker.broker().stats().queued_messages == 0);
    let dropped = broker.broker().stats().dropped.deadlock_events as usize;
    assert_eq!(inbox.len(), 1 + published - dropped, "each is taken or counted");
    // The I/O thread was never blocked.
    Probe::connect(broker.port(), Version::V5, "alive", |_| {}).publish("x", "y", 1, false);
}

#[test]
fn a_slow_subscriber_loses_qos_0_and_is_counted_while_others_lose_nothing() {
    const MESSAGES: usize = 3000;
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |options| {
        // Both readers may be behind for long where many tests run at a time.
        (options.connection_bytes_max, options.limits.session_queue_bytes_max) = (100_000, 64 << 20);
    });
    let mut slow = Probe::connect(broker.port(), Version::V3, "slow", |_| {});
    slow.subscribe(&[("t", 0)]);
    let port = broker.port();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut quick = Probe::connect(port, Version::V5, "quick", |_| {});
        quick.subscribe(&[("t", 1)]);
        ready.send(()).unwrap();
        (0..MESSAGES).filter(|_| quick.next().is_some_and(|seen| seen.starts_with("message"))).count()
    });
    is_ready.recv_timeout(WAIT_MAX).unwrap();
    let mut sender = Probe::connect(broker.port(), Version::V3, "sender", |_| {});
    let payload = "x".repeat(10_000);
    for _ in 0..MESSAGES {
        sender.publish("t", &payload, 1, false);
    }
    assert_eq!(reader.join().unwrap(), MESSAGES);
    let received = slow.take().len();
    let dropped = broker.broker().stats().dropped;
    assert!(dropped.slow_subscriber > 0, "30 MB do not fit into the sockets");
    assert_eq!(received + dropped.slow_subscriber as usize, MESSAGES);
    assert_eq!(dropped.session_queue_full, 0);
}

#[test]
fn connections_beyond_the_limit_are_closed_and_counted() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |options| options.limits.connections_max = 2);
    let first = Probe::connect(broker.port(), Version::V3, "1", |_| {});
    let _second = Probe::connect(broker.port(), Version::V3, "2", |_| {});
    let mut third = Probe::raw(broker.port(), Version::V3);
    assert_eq!(third.next(), None);
    assert_eq!(broker.broker().stats().dropped.connections_refused, 1);
    first.disconnect();
    block_until("the first has gone", || broker.broker().stats().connections == 1);
    // The place is free as soon as the connection's task has ended.
    block_until("there is room", || {
        let mut probe = Probe::raw(broker.port(), Version::V3);
        probe.send(&[0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 60, 0, 1, b'4']);
        probe.next().is_some()
    });
}

#[tokio::test]
async fn a_port_in_use_is_said_so() {
    let (router, _) = router(&[]);
    let first = broker(router.clone(), |_| {}).await;
    let address = first.addresses()[0];
    let error = Broker::start(BrokerOptions::new(address), router.clone(), clock()).await.err().unwrap();
    assert!(matches!(error, BrokerError::PortInUse { address: found } if found == address));
    assert!(error.to_string().contains("hint:"));
    let nowhere = BrokerOptions::new("192.0.2.1:0".parse().unwrap());
    assert!(matches!(Broker::start(nowhere, router, clock()).await, Err(BrokerError::Listen { .. })));
}

#[test]
fn stopping_sends_what_is_queued_and_tells_the_clients() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut probe = Probe::connect(broker.port(), Version::V5, "p", |_| {});
    probe.subscribe(&[("t", 0)]);
    for number in 0..100 {
        publish(&broker.broker().publisher(), "t", &number.to_string(), Qos::AtMostOnce);
    }
    let handle: Arc<Broker> = broker.broker().clone();
    let port = broker.port();
    // The shutdown may be waited for on any thread.
    let left =
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(handle.shutdown(WAIT_MAX));
    assert_eq!(left, 0);
    let seen: Vec<String> = std::iter::from_fn(|| probe.next()).collect();
    assert_eq!(seen.len(), 101);
    assert_eq!(seen[100], "told to go: ServerShuttingDown");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "nobody listens any more");
}

#[test]
fn a_message_expires_while_it_waits() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let kept = |request: &mut super::probe::Request| {
        request.clean = false;
        request.expiry_s = 60;
    };
    let mut away = Probe::connect(broker.port(), Version::V5, "away", kept);
    away.subscribe(&[("t", 1)]);
    away.disconnect();
    let mut sender = Probe::connect(broker.port(), Version::V5, "sender", |_| {});
    let started = Instant::now();
    let [.., low] = 1u32.to_be_bytes();
    sender.publish_with("t", "short-lived", 1, false, &[2, 0, 0, 0, low]);
    sender.publish_with("t", "long-lived", 1, false, &[2, 0, 0, 1, 0]);
    while started.elapsed() < Duration::from_millis(1010) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut back = Probe::connect(broker.port(), Version::V5, "away", kept);
    let seen = back.take();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].starts_with("message t 'long-lived' qos 1 properties [02, 00, 00, 00, f"), "{seen:?}");
    assert_eq!(broker.broker().stats().dropped.expired, 1);
}

#[test]
fn a_connection_that_lost_its_session_does_not_act_on_the_next_one() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |_| {});
    inbox.limit(0);
    let mut old = Probe::connect(broker.port(), Version::V5, "lost-session", |_| {});
    // A message that waits for room, and a SUBSCRIBE to 'x' behind it.
    let mut bytes = message(Version::V5, "t", b"before", Qos::AtMostOnce, 0);
    bytes.extend([0x82, 7, 0, 1, 0, 0, 1, b'x', 0]);
    old.send(&bytes);
    block_until("it waits for room", || inbox.refusals() > 0);
    let mut new = Probe::connect(broker.port(), Version::V5, "lost-session", |_| {});
    inbox.limit(1);
    block_until("the event", || inbox.contains("before"));
    // Both packets were processed in one go.
    assert_eq!(broker.broker().stats().subscriptions, 0);
    assert_eq!(new.take(), Vec::<String>::new());
}

#[test]
fn a_closed_router_leaves_messages_with_their_senders_and_lets_results_out() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router.clone(), |_| {});
    let mut subscriber = Probe::connect(broker.port(), Version::V5, "subscriber", |_| {});
    subscriber.subscribe(&[("#", 1)]);
    let mut sensor = Probe::connect(broker.port(), Version::V5, "sensor", |_| {});
    router.close();
    sensor.send(&message(Version::V5, "t", b"too late", Qos::AtLeastOnce, 9));
    // Long enough for the broker to read it.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(inbox.len(), 0);
    inbox.limit(0);
    publish(&broker.broker().publisher(), "t", "a query reads it too, but has no room", Qos::AtMostOnce);
    publish(&broker.broker().publisher(), "out", "result", Qos::AtMostOnce);
    block_until("results are published", || broker.broker().stats().queued_messages == 0);
    let seen = subscriber.take();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!((inbox.len(), broker.broker().stats().dropped.deadlock_events), (0, 1), "it is counted");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(broker.broker().shutdown(WAIT_MAX)), 0);
    assert_eq!(sensor.next().as_deref(), Some("told to go: ServerShuttingDown"), "and no acknowledgement before it");
    assert!(!broker.broker().is_running());
}

#[test]
fn tasks_that_a_defect_cuts_short_are_told_and_begin_again() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |_| {});
    assert!(broker.broker().is_running());
    inbox.panic(1);
    publish(&broker.broker().publisher(), "t", "lost", Qos::AtMostOnce);
    block_until("it is told", || broker.broker().stats().panics == 1);
    assert!(broker.broker().last_panic().unwrap().contains("publishing results"));
    let publisher = broker.broker().publisher();
    assert_eq!(publisher.first_left(), publisher.next(), "nobody waits for what will never leave");
    publish(&broker.broker().publisher(), "t", "next", Qos::AtMostOnce);
    block_until("the next result", || inbox.contains("next"));
    assert!(broker.broker().is_running());
    let stats = broker.broker().stats();
    assert_eq!((stats.dropped.lost_results, stats.queued_messages), (1, 0));
    // A client's connection ends, with all that belongs to it.
    inbox.panic(1);
    let mut sensor = Probe::connect(broker.port(), Version::V5, "sensor", |_| {});
    sensor.send(&message(Version::V5, "t", b"x", Qos::AtLeastOnce, 1));
    while sensor.next().is_some() {}
    block_until("it is forgotten", || broker.broker().stats().connections == 0);
    assert_eq!(broker.broker().stats().panics, 2);
    Probe::connect(broker.port(), Version::V5, "sensor", |_| {}).publish("t", "works", 1, false);
    assert!(inbox.contains("works"));
}

/// What a client of 3.1.1 is answered: 0 for welcome, 4 for a wrong password, 3 for come again.
fn log_in(broker: &BrokerThread, password: &[u8; 4]) -> u8 {
    log_in_as(broker, "kim", password)
}

/// The same of a user whose name has three letters.
fn log_in_as(broker: &BrokerThread, user: &str, password: &[u8; 4]) -> u8 {
    let mut socket = std::net::TcpStream::connect(("127.0.0.1", broker.port())).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    let head = b"\x10\x17\x00\x04MQTT\x04\xc2\x00\x3c\x00\x00\x00\x03";
    std::io::Write::write_all(&mut socket, &[&head[..], user.as_bytes(), b"\x00\x04", password].concat()).unwrap();
    let mut answer = [0; 4];
    std::io::Read::read_exact(&mut socket, &mut answer).unwrap();
    answer[3]
}

/// Lets in whoever the configuration lets in, and nobody else.
#[derive(Debug)]
struct AsConfigured;

impl ClientAuthorizer for AsConfigured {
    fn admit(&self, login: &ClientLogin) -> Result<Option<Arc<dyn ClientRights>>, NotAdmitted> {
        // As long as a server elsewhere takes to answer.
        std::thread::sleep(Duration::from_millis(2));
        if login.is_configured == Some(true) { Ok(None) } else { Err(NotAdmitted::Unknown) }
    }
}

#[test]
fn guesses_by_clients_that_connect_together_are_counted() {
    const GUESSES: usize = 100;
    let (router, _inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |options| {
        options.users = vec![("kim".into(), "rose".into())];
        options.authorizer = Some(Arc::new(AsConfigured));
    });
    let (broker, barrier) = (&broker, &std::sync::Barrier::new(GUESSES));
    let guess = || {
        barrier.wait();
        log_in(broker, b"lily")
    };
    let codes: Vec<u8> = std::thread::scope(|scope| {
        let guesses: Vec<_> = (0..GUESSES).map(|_| scope.spawn(guess)).collect();
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect()
    });
    // Five are free, eight are looked at at a time, and a slow machine sees the end of a pause or two.
    let looked_at = codes.iter().filter(|code| **code == 4).count();
    assert!((6..20).contains(&looked_at) && codes.iter().all(|code| [3, 4].contains(code)), "{codes:?}");
}

/// Lets in whoever has the password, which cannot be guessed.
#[derive(Debug)]
struct ByToken;

impl ClientAuthorizer for ByToken {
    fn admit(&self, login: &ClientLogin) -> Result<Option<Arc<dyn ClientRights>>, NotAdmitted> {
        self.admit_at_once(login).ok_or(NotAdmitted::Unknown)
    }

    fn admit_at_once(&self, login: &ClientLogin) -> Option<Option<Arc<dyn ClientRights>>> {
        (login.password.as_deref() == Some(b"rose")).then_some(None)
    }
}

#[test]
fn one_client_with_an_old_token_keeps_nobody_out_behind_its_address() {
    let (router, _inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |options| options.authorizer = Some(Arc::new(ByToken)));
    let mut stale = Vec::new();
    for _ in 0..20 {
        stale.push(log_in(&broker, b"lily"));
        assert_eq!(log_in(&broker, b"rose"), 0, "{stale:?}");
    }
    assert!(stale.starts_with(&[4; 6]) && stale.contains(&3), "{stale:?}");
}

#[test]
fn a_guesser_with_ever_new_names_has_few_of_them_looked_at() {
    let (router, _inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |options| options.authorizer = Some(Arc::new(ByToken)));
    let codes: Vec<u8> = (0..400).map(|number| log_in_as(&broker, &format!("{number:03}"), b"lily")).collect();
    // Each of them may cost a hash. A slow machine sees the end of some pauses.
    let looked_at = codes.iter().filter(|code| **code == 4).count();
    assert!((240..260).contains(&looked_at) && codes.contains(&3), "{looked_at}");
    assert_eq!(log_in_as(&broker, "new", b"rose"), 0, "it cannot be guessed");
}

#[test]
fn a_proxy_says_where_clients_are_and_must_say_it() {
    let (router, _inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |options| {
        options.users = vec![("kim".into(), "rose".into())];
        options.trusted_proxies = AllowedHosts::listed("10.0.0.0/8, 127.0.0.1", "proxies").unwrap();
    });
    let connect = |header: &[u8], password| {
        let mut probe = Probe::raw(broker.port(), Version::V3);
        probe.send(header);
        let request = super::probe::Request { login: Some(("kim", password)), ..Default::default() };
        Probe::try_connect_over(probe, "c", request).1
    };
    let from = |host: u8| format!("PROXY TCP4 192.0.2.{host} 127.0.0.1 4000 1883\r\n").into_bytes();
    let codes: Vec<String> = (0..20).map(|_| connect(&from(1), "lily")).collect();
    assert!(codes.iter().any(|code| code == "refused 0x3"), "{codes:?}");
    let from_two =
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[192, 0, 2, 2, 127, 0, 0, 1, 0x0f, 0xa0, 0x07, 0x5b]].concat();
    assert_eq!([connect(&from(2), "lily"), connect(&from_two, "rose")], ["refused 0x4", "connected"]);
    assert_eq!(connect(b"", "rose"), "closed");
    assert_eq!(connect(b"PROXY TCP4 here there\r\n", "rose"), "closed");
}

#[test]
fn guesses_of_a_password_are_slowed_down() {
    let (router, _inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |options| options.users = vec![("kim".into(), "rose".into())]);
    let log_in = |password: &[u8; 4]| log_in(&broker, password);
    let codes: Vec<u8> = (0..20).map(|_| log_in(b"lily")).collect();
    assert_eq!(codes[..6], [4; 6]);
    assert!(codes.iter().filter(|code| **code == 4).count() < 12, "{codes:?}");
    // The right one waits as well, or a guesser would find it all the same.
    let codes = std::iter::from_fn(|| {
        std::thread::sleep(Duration::from_millis(100));
        Some(log_in(b"rose"))
    });
    assert_eq!(codes.take(200).find(|code| *code != 3), Some(0));
}
