//! Our client where there is no broker, or one that misbehaves. The other side is written by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_connectors::mqtt::codec::{self, Publish};
use rivulet_connectors::mqtt::{
    Broker, BrokerAddress, BrokerOptions, Client, ClientError, ClientOptions, Qos, Version,
};
use rivulet_dataflow::ManualClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::durable::logged_router;
use super::support::*;

/// Accepts a connection and answers its CONNECT.
async fn accept(listener: &TcpListener, answer: &[u8]) -> TcpStream {
    let (mut stream, _) = tokio::time::timeout(WAIT_MAX, listener.accept()).await.unwrap().unwrap();
    let mut bytes = [0; 1000];
    assert!(stream.read(&mut bytes).await.unwrap() > 0);
    stream.write_all(answer).await.unwrap();
    stream
}

const ACCEPTED_V3: [u8; 4] = [0x20, 2, 0, 0];
/// A CONNECT with the client id `c` and a clean start.
const CONNECT_V5: [u8; 16] = [0x10, 14, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 1, b'c'];
const ACCEPTED_V5: [u8; 5] = [0x20, 3, 0, 0, 0];

fn message(version: Version, qos: Qos, packet_id: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Publish { topic: b"t", payload, qos, packet_id, ..Publish::default() }.encode(version, &mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn starts_without_a_broker_and_connects_when_there_is_one() {
    let port = free_port();
    let (router, inbox) = router(&["t"]);
    let client = client(router.clone(), &format!("mqtt://127.0.0.1:{port}"), |_| {});
    client.subscribe(["t"]).unwrap();
    publish(&client.publisher(), "t", "early", Qos::AtLeastOnce);
    until("the failure is told", || client.status().last_error.is_some()).await;
    let error = client.status().last_error.unwrap();
    assert!(error.contains("cannot connect") && error.contains("hint:"), "{error}");
    assert!(!client.status().connected);
    let broker = broker(router, |options| options.listeners[0].address.set_port(port)).await;
    until("what waited is sent", || client.status().queued_messages == 0).await;
    until_subscribed(&client).await;
    publish(&client.publisher(), "t", "now", Qos::AtMostOnce);
    // Our broker and our client share the router here, so each message comes by both ways.
    until("messages", || inbox.texts().iter().filter(|text| *text == "now").count() == 2).await;
    let status = client.status();
    assert_eq!((status.reconnects, status.gaps), (0, 0), "the first connection is no reconnect");
    drop(broker);
}

#[tokio::test]
async fn a_broker_that_talks_nonsense_is_left_and_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, inbox) = router(&["t"]);
    let _client = client(router, &url(listener.local_addr().unwrap()), |options| options.version = Version::V3);
    let nonsense: [&[u8]; 5] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &[0x20, 2, 0, 5],
        // Accepted, then: a message cut short, one of QoS 2, a packet that only clients send.
        &[0x20, 2, 0, 0, 0x30, 3, 0, 9, b't'],
        &[0x20, 2, 0, 0, 0x34, 6, 0, 1, b't', 0, 1, b'x'],
        &[0x20, 2, 0, 0, 0xc0, 0],
    ];
    for bytes in nonsense {
        let mut stream = accept(&listener, bytes).await;
        // The client closes the connection: a read ends.
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(WAIT_MAX, stream.read_to_end(&mut rest)).await.expect("the client goes");
    }
    let mut stream = accept(&listener, &ACCEPTED_V3).await;
    stream.write_all(&message(Version::V3, Qos::AtMostOnce, 0, b"sense")).await.unwrap();
    until("a message at last", || inbox.contains("sense")).await;
    assert_eq!(inbox.len(), 1);
}

#[tokio::test]
async fn a_clash_of_client_ids_is_told() {
    // Version 5 says so.
    let (router, _) = router(&["t"]);
    let broker = broker(router.clone(), |_| {}).await;
    let address = url(broker.addresses()[0]);
    let start = || client(router.clone(), &address, |options| options.client_id = "clash".into());
    let (first, second) = (start(), start());
    until("both say so", || {
        [&first, &second].iter().all(|client| client.status().last_error.is_some_and(|error| error.contains("'clash'")))
    })
    .await;
    let error = first.status().last_error.unwrap();
    assert!(error.contains("another client") && error.contains("hint:"), "{error}");
    drop((first, second));
    // Version 3 closes, as a broker may for many reasons; it is told after some times, and forgotten with a good
    // connection.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let third = client(router, &url(listener.local_addr().unwrap()), |options| {
        options.version = Version::V3;
        options.client_id = "triplet".into();
    });
    let error = || third.status().last_error.unwrap_or_default();
    for _ in 0..2 {
        drop(accept(&listener, &ACCEPTED_V3).await);
        until("the end of the connection", || !third.status().connected && !error().is_empty()).await;
        assert!(!error().contains("triplet"), "{}", error());
    }
    drop(accept(&listener, &ACCEPTED_V3).await);
    until("the clash is guessed", || error().contains("'triplet'") && error().contains("hint:")).await;
}

/// What the system says of the timers of a connection: 2 is one that asks whether the other side is still there.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_system_watches_over_both_sides_of_a_connection() {
    let (router, _) = router(&["t"]);
    let broker = broker(router.clone(), |_| {}).await;
    let port = broker.addresses()[0].port();
    let client = client(router, &url(broker.addresses()[0]), |_| {});
    until("the connection", || client.status().connected).await;
    let timers = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let port = format!(":{port:04X}");
        let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let established =
            lines.filter(|line| line[3] == "01" && (line[1].ends_with(&port) || line[2].ends_with(&port)));
        established.map(|line| line[5][..2].to_owned()).collect::<Vec<_>>()
    };
    until("both sides are quiet and watched", || timers() == ["02", "02"]).await;
}

#[tokio::test]
async fn acknowledges_only_what_the_inbox_took() {
    for version in [Version::V3, Version::V5] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (router, inbox) = router(&["t"]);
        inbox.limit(1);
        let _client = client(router, &url(listener.local_addr().unwrap()), |options| options.version = version);
        let answer: &[u8] = if version == Version::V3 { &ACCEPTED_V3 } else { &ACCEPTED_V5 };
        let mut stream = accept(&listener, answer).await;
        let mut bytes = message(version, Qos::AtLeastOnce, 7, b"first");
        bytes.extend(message(version, Qos::AtLeastOnce, 8, b"second"));
        stream.write_all(&bytes).await.unwrap();
        let mut acknowledgement = [0; 4];
        stream.read_exact(&mut acknowledgement).await.unwrap();
        assert_eq!(acknowledgement, [0x40, 2, 0, 7]);
        until("the inbox refuses the second", || inbox.refusals() > 2).await;
        let mut more = [0; 4];
        assert!(
            tokio::time::timeout(Duration::from_millis(20), stream.read_exact(&mut more)).await.is_err(),
            "the second is not acknowledged while nobody has it"
        );
        inbox.limit(1);
        stream.read_exact(&mut more).await.unwrap();
        assert_eq!((more, inbox.texts()), ([0x40, 2, 0, 8], vec!["first".to_owned(), "second".to_owned()]));
    }
}

#[tokio::test]
async fn events_read_before_the_connection_broke_are_not_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, inbox) = router(&["t"]);
    inbox.limit(0);
    let client = client(router, &url(listener.local_addr().unwrap()), |_| {});
    let mut stream = accept(&listener, &ACCEPTED_V5).await;
    stream.write_all(&message(Version::V5, Qos::AtMostOnce, 0, b"rescued")).await.unwrap();
    until("it waits for room", || inbox.refusals() > 0).await;
    // An abrupt end: the client's next write fails while its reader still waits.
    stream.set_zero_linger().unwrap();
    drop(stream);
    publish(&client.publisher(), "out", "x", Qos::AtMostOnce);
    publish(&client.publisher(), "out", "x", Qos::AtMostOnce);
    inbox.limit(10);
    until("the event", || inbox.contains("rescued")).await;
}

#[tokio::test]
async fn a_silent_broker_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, _) = router(&[]);
    let client = client(router, &url(listener.local_addr().unwrap()), |options| options.keep_alive_s = 1);
    let mut stream = accept(&listener, &ACCEPTED_V5).await;
    let mut request = [0; 2];
    stream.read_exact(&mut request).await.unwrap();
    assert_eq!(request, codec::PING_REQUEST);
    until("the silence is noticed", || client.status().last_error.is_some()).await;
    let error = client.status().last_error.unwrap();
    assert!(error.contains("silent"), "{error}");
}

#[tokio::test]
async fn unacknowledged_messages_are_sent_again_after_a_reconnect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, _) = router(&[]);
    let client = client(router, &url(listener.local_addr().unwrap()), |options| options.version = Version::V3);
    let expected = message(Version::V3, Qos::AtLeastOnce, 1, b"payload");
    let mut stream = accept(&listener, &ACCEPTED_V3).await;
    publish(&client.publisher(), "t", "payload", Qos::AtLeastOnce);
    let mut first = vec![0; expected.len()];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(first, expected);
    drop(stream);
    // With the session remembered, it is marked as sent before.
    let mut stream = accept(&listener, &[0x20, 2, 1, 0]).await;
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!((first[0], &first[1..]), (expected[0] | 8, &expected[1..]));
    assert_eq!(client.status().queued_messages, 1);
    stream.write_all(&[0x40, 2, 0, 1]).await.unwrap();
    until("it is done", || client.status().queued_messages == 0).await;
}

#[tokio::test]
async fn a_broker_that_takes_nothing_fills_the_queue_and_no_more() {
    let port = free_port();
    let (router, _) = router(&[]);
    let client = client(router, &format!("mqtt://127.0.0.1:{port}"), |options| options.outbound_bytes_max = 10_000);
    let publisher = client.publisher();
    let woken = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = woken.clone();
    publisher.on_room(std::sync::Arc::new(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }));
    let mut published = 0;
    while publisher.has_room() {
        publish(&publisher, "t", &"x".repeat(1000), Qos::AtMostOnce);
        published += 1;
    }
    assert!((9..=11).contains(&published), "{published}");
    assert_eq!(client.status().queued_messages, published);
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let _stream = accept(&listener, &ACCEPTED_V5).await;
    until("there is room again", || publisher.has_room()).await;
    until("whoever waited is told", || woken.load(std::sync::atomic::Ordering::SeqCst) == 1).await;
    assert_eq!(client.shutdown(WAIT_MAX).await, 0);
}

#[tokio::test]
async fn stopping_is_bounded_and_says_what_was_left() {
    let port = free_port();
    let (router, _) = router(&[]);
    let client = client(router, &format!("mqtt://127.0.0.1:{port}"), |_| {});
    publish(&client.publisher(), "t", "never sent", Qos::AtMostOnce);
    assert_eq!(client.shutdown(Duration::from_millis(10)).await, 1);
    assert_eq!(client.shutdown(WAIT_MAX).await, 1);
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_once() {
    let (router, _) = router(&[]);
    let address: BrokerAddress = "mqtts://localhost".parse().unwrap();
    let mut options = ClientOptions::new(address);
    options.tls.ca_file = Some("/nowhere/authority.pem".into());
    let error = Client::start(options.clone(), router.clone(), clock()).err().unwrap();
    assert!(matches!(&error, ClientError::Tls(_)) && error.to_string().contains("/nowhere/authority.pem"));
    options.client_id.clear();
    assert!(matches!(Client::start(options, router, clock()), Err(ClientError::EmptyClientId)));
}

#[tokio::test]
async fn refused_subscriptions_are_reported_and_the_others_work() {
    let broker = broker(std::sync::Arc::default(), |options| options.limits.subscriptions_max = 1).await;
    for version in [Version::V3, Version::V5] {
        let (router, inbox) = router(&["t"]);
        let client = client(router, &url(broker.addresses()[0]), |options| options.version = version);
        assert!(client.subscribe(["fine", "not/#/fine"]).is_err());
        assert_eq!(client.status().subscriptions, 0);
        client.subscribe(["t"]).unwrap();
        until_subscribed(&client).await;
        client.subscribe(["one/too/many"]).unwrap();
        until("the refusal", || !client.status().refused_subscriptions.is_empty()).await;
        let status = client.status();
        assert_eq!(status.refused_subscriptions[0].0, "one/too/many");
        assert!(status.connected && !status.subscribed);
        publish(&client.publisher(), "t", "works", Qos::AtMostOnce);
        until("a message", || inbox.contains("works")).await;
        // Without that filter nothing is missing any more; and what is unsubscribed does not come any more.
        client.unsubscribe(["one/too/many", "t"]);
        until("the broker forgets", || broker.stats().subscriptions == 0).await;
        publish(&client.publisher(), "t", "unheard", Qos::AtLeastOnce);
        until("it is acknowledged", || client.status().queued_messages == 0).await;
        assert!(client.status().subscribed && !inbox.contains("unheard"));
        client.shutdown(WAIT_MAX).await;
        until("it has left", || broker.stats().connections == 0).await;
    }
}

#[tokio::test]
async fn a_broker_of_the_older_version_is_named_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, _) = router(&[]);
    let client = client(router, &url(listener.local_addr().unwrap()), |_| {});
    let _stream = accept(&listener, &[0x20, 2, 0, 1]).await;
    until("the refusal", || client.status().last_error.is_some()).await;
    let error = client.status().last_error.unwrap();
    assert!(error.contains("does not speak MQTT 5") && error.contains("hint: configure version 3.1.1"), "{error}");
}

#[tokio::test]
async fn a_broker_without_subscription_identifiers_is_asked_only_for_what_is_not_covered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, _) = router(&[]);
    let client = client(router, &url(listener.local_addr().unwrap()), |_| {});
    client.subscribe(["home/1/t", "home/+/t", "home/#", "garden"]).unwrap();
    // Property 41 of the CONNACK: 0.
    let mut stream = accept(&listener, &[0x20, 5, 0, 0, 2, 41, 0]).await;
    let mut bytes = vec![0; 1000];
    let count = stream.read(&mut bytes).await.unwrap();
    let frame = codec::split_frame(&bytes[..count], 1000).unwrap().unwrap();
    let rmqtt_codec::v5::Packet::Subscribe(packet) = codec::decode_v5(&frame).unwrap() else { panic!("{bytes:?}") };
    let filters: Vec<_> = packet.topic_filters.iter().map(|(filter, _)| filter.to_string()).collect();
    assert_eq!((packet.id, filters), (None, vec!["garden".to_owned(), "home/#".to_owned()]));
    let [high, low] = packet.packet_id.get().to_be_bytes();
    stream.write_all(&[0x90, 5, high, low, 0, 0, 0]).await.unwrap();
    until_subscribed(&client).await;
}

#[tokio::test]
async fn a_full_inbox_waits_as_long_as_there_is_room_for_results() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, inbox) = router(&["t"]);
    inbox.limit(0);
    let client = client(router, &url(listener.local_addr().unwrap()), |options| options.deadlock_ms = 1);
    // The broker takes one message of QoS 1 at a time, so the second waits for an acknowledgement.
    let mut stream = accept(&listener, &[0x20, 6, 0, 0, 3, 33, 0, 1]).await;
    publish(&client.publisher(), "out", "one", Qos::AtLeastOnce);
    publish(&client.publisher(), "out", "two", Qos::AtLeastOnce);
    until("one is sent", || client.status().messages_out == 1).await;
    stream.write_all(&message(Version::V5, Qos::AtLeastOnce, 7, b"patient")).await.unwrap();
    until("it waits for a while", || inbox.refusals() > 20).await;
    assert_eq!(client.status().deadlock_events, 0, "there is room for results, so their query is not held up by them");
    inbox.limit(1);
    until("it is taken", || inbox.contains("patient")).await;
}

#[tokio::test]
async fn a_full_log_does_not_keep_acknowledgements_of_results_from_being_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, inbox, log) = logged_router("t");
    log.is_full.store(true, Ordering::Release);
    let client = client(router, &url(listener.local_addr().unwrap()), |options| options.deadlock_ms = 1);
    let mut stream = accept(&listener, &ACCEPTED_V5).await;
    let publisher = client.publisher();
    // However long the log stays full: of each round the acknowledgement comes behind many events.
    for round in 0..3_u64 {
        publish(&publisher, "out", "result", Qos::AtLeastOnce);
        until("it is sent", || client.status().messages_out == round + 1).await;
        let events = (1..=500).flat_map(|_| message(Version::V5, Qos::AtMostOnce, 0, &[b'x'; 1_000]));
        let bytes: Vec<u8> = events.chain([0x40, 2, 0, round as u8 + 1]).collect();
        stream.write_all(&bytes).await.unwrap();
        until("the result has left", || publisher.first_left() == round + 1).await;
        assert_eq!((log.len(), inbox.len()), (0, 0), "the limit holds");
    }
    log.is_full.store(false, Ordering::Release);
    until("there is room again", || inbox.len() == 1_500).await;
    assert_eq!((log.len(), client.status().queued_messages), (1_500, 0));
    // An acknowledgement that was read ahead does not count once more.
    publish(&publisher, "out", "late", Qos::AtLeastOnce);
    until("it is sent", || client.status().messages_out == 4).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(publisher.first_left(), 3);
    stream.write_all(&[0x40, 2, 0, 4]).await.unwrap();
    until("the last has left", || publisher.first_left() == 4).await;
}

#[tokio::test]
async fn one_large_event_in_front_of_an_acknowledgement_is_not_too_much_to_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, inbox, log) = logged_router("t");
    log.is_full.store(true, Ordering::Release);
    let client = client(router, &url(listener.local_addr().unwrap()), |options| {
        (options.deadlock_ms, options.packet_bytes_max) = (1, 64 << 20);
    });
    let mut stream = accept(&listener, &ACCEPTED_V5).await;
    let publisher = client.publisher();
    publish(&publisher, "out", "result", Qos::AtLeastOnce);
    until("it is sent", || client.status().messages_out == 1).await;
    stream.write_all(&message(Version::V5, Qos::AtMostOnce, 0, &vec![b'x'; 20 << 20])).await.unwrap();
    until("it is read", || client.status().bytes_in > 20 << 20).await;
    stream.write_all(&[0x40, 2, 0, 1]).await.unwrap();
    until("the result has left", || publisher.first_left() == 1).await;
    assert_eq!((log.len(), inbox.len()), (0, 0), "the limit holds");
    log.is_full.store(false, Ordering::Release);
    until("there is room again", || inbox.len() == 1).await;
}

#[tokio::test]
async fn a_large_message_that_would_not_be_taken_is_handled_like_a_small_one() {
    for version in [Version::V3, Version::V5] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (router, inbox) = router(&["t"]);
        let client = client(router, &url(listener.local_addr().unwrap()), |options| {
            (options.version, options.packet_bytes_max) = (version, 1_000);
        });
        let accepted = if version == Version::V3 { &ACCEPTED_V3[..] } else { &ACCEPTED_V5 };
        let mut stream = accept(&listener, accepted).await;
        let mut retained = message(version, Qos::AtLeastOnce, 7, &[b'x'; 20_000]);
        retained[0] |= 1;
        stream.write_all(&retained).await.unwrap();
        let mut answer = [0; 4];
        tokio::time::timeout(WAIT_MAX, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, [0x40, 2, 0, 7]);
        until("it is counted", || client.status().messages_in == 1).await;
        assert_eq!((client.status().retained_messages, client.status().too_large_events), (1, 0));
        // QoS 2 was not asked for.
        stream.write_all(&message(version, Qos::ExactlyOnce, 8, &[b'x'; 20_000])).await.unwrap();
        until("it is refused", || client.status().last_error.is_some_and(|error| error.contains("QoS 2"))).await;
        assert_eq!((client.status().too_large_events, inbox.len()), (0, 0));
    }
}

#[tokio::test]
async fn events_in_front_of_an_acknowledgement_exceed_a_full_log_where_they_are_too_much_to_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, inbox, log) = logged_router("t");
    log.is_full.store(true, Ordering::Release);
    let client = client(router, &url(listener.local_addr().unwrap()), |options| options.deadlock_ms = 1);
    let mut stream = accept(&listener, &ACCEPTED_V5).await;
    let publisher = client.publisher();
    publish(&publisher, "out", "result", Qos::AtLeastOnce);
    until("it is sent", || client.status().messages_out == 1).await;
    // Much more than is read ahead: what a socket holds may come at once, with the acknowledgement in it.
    const EVENTS: usize = 60;
    let event = message(Version::V5, Qos::AtMostOnce, 0, &vec![b'x'; 500_000]);
    for _ in 0..EVENTS {
        stream.write_all(&event).await.unwrap();
    }
    stream.write_all(&[0x40, 2, 0, 1]).await.unwrap();
    until("the result has left", || publisher.first_left() == 1).await;
    let exceeded = log.len();
    assert!(exceeded > 0 && exceeded < EVENTS, "{exceeded}");
    // Nothing waits any more: now the limit holds.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(log.len(), exceeded);
    log.is_full.store(false, Ordering::Release);
    until("there is room again", || inbox.len() == EVENTS).await;
}

#[tokio::test]
async fn a_closed_router_takes_and_acknowledges_nothing_while_results_go_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, inbox) = router(&["t"]);
    let client = client(router.clone(), &url(listener.local_addr().unwrap()), |_| {});
    let mut stream = accept(&listener, &ACCEPTED_V5).await;
    until("the connection", || client.status().connected).await;
    router.close();
    publish(&client.publisher(), "t", "result", Qos::AtLeastOnce);
    let expected = message(Version::V5, Qos::AtLeastOnce, 1, b"result");
    let mut result = vec![0; expected.len()];
    stream.read_exact(&mut result).await.unwrap();
    assert_eq!(result, expected);
    // The acknowledgement comes behind two events.
    let mut bytes = message(Version::V5, Qos::AtLeastOnce, 7, b"too late");
    bytes.extend(message(Version::V5, Qos::AtMostOnce, 0, b"too late"));
    bytes.extend([0x40, 2, 0, 1]);
    stream.write_all(&bytes).await.unwrap();
    assert_eq!(client.shutdown(WAIT_MAX).await, 0, "the last result is acknowledged");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!((rest[0], rest.len(), inbox.len()), (0xe0, 2 + usize::from(rest[1]), 0), "a goodbye and nothing else");
    assert_eq!(client.status().unread_messages, 1, "what nobody will send again is counted");
}

#[tokio::test]
async fn a_connection_that_a_defect_cuts_short_is_told_and_made_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (router, inbox) = router(&["t"]);
    inbox.panic(1);
    let client = client(router, &url(listener.local_addr().unwrap()), |options| {
        options.reconnect_wait_ms_min = 200;
        options.reconnect_wait_ms_max = 200;
    });
    let mut stream = accept(&listener, &ACCEPTED_V5).await;
    stream.write_all(&message(Version::V5, Qos::AtLeastOnce, 7, b"again")).await.unwrap();
    until("it is told", || !client.status().connected && client.status().panics == 1).await;
    let error = client.status().last_error.unwrap();
    assert!(error.contains("a defect, for the test"), "{error}");
    let mut stream = accept(&listener, &ACCEPTED_V5).await;
    stream.write_all(&message(Version::V5, Qos::AtLeastOnce, 7, b"again")).await.unwrap();
    until("the event", || inbox.contains("again")).await;
    assert!(client.status().connected);
}

#[tokio::test]
async fn what_waited_for_room_arrives_after_the_wait() {
    let start_us = 1_000_000;
    let clocks = [(); 2].map(|()| Arc::new(ManualClock::new(start_us)));
    let sides = [(); 2].map(|()| router(&["t"]));
    let [(for_client, client_inbox), (for_broker, broker_inbox)] = sides;
    // Ours reads from a broker, and from a client.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = client_with_clock(for_client, &url(listener.local_addr().unwrap()), clocks[0].clone(), |_| {});
    let from_broker = accept(&listener, &ACCEPTED_V5).await;
    let options = BrokerOptions::new("127.0.0.1:0".parse().unwrap());
    let broker = Broker::start(options, for_broker, clocks[1].clone()).await.unwrap();
    let mut from_client = TcpStream::connect(broker.addresses()[0]).await.unwrap();
    from_client.write_all(&CONNECT_V5).await.unwrap();
    for ((mut stream, inbox), clock) in
        [(from_broker, client_inbox), (from_client, broker_inbox)].into_iter().zip(clocks)
    {
        inbox.limit(1);
        let message = message(Version::V5, Qos::AtMostOnce, 0, b"x");
        stream.write_all(&message.repeat(2)).await.unwrap();
        until("the second waits", || inbox.refusals() > 0).await;
        // Windows over arrival time go by the clock, and may close while it waits.
        clock.advance_us(1);
        let refusals = inbox.refusals();
        until("it is tried again", || inbox.refusals() > refusals + 1).await;
        inbox.limit(1);
        until("the second is taken", || inbox.len() == 2).await;
        assert_eq!(inbox.arrivals_us(), [start_us, start_us + 1]);
    }
}
