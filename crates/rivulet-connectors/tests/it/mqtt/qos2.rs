//! QoS 2: each message counts once, whatever is sent again.

use std::sync::Arc;

use rivulet_connectors::mqtt::Version;
use rivulet_connectors::mqtt::Version::{V3, V5};

use super::durable::{HeldLog, logged_router};
use super::probe::Probe;
use super::support::*;

const VERSIONS: [Version; 2] = [V3, V5];

/// A PUBLISH of QoS 2 on `t`.
fn publish(version: Version, packet_id: u8, payload: &[u8], is_again: bool) -> Vec<u8> {
    let properties: &[u8] = if version == V5 { &[0] } else { &[] };
    let body = [&[0, 1, b't', 0, packet_id], properties, payload].concat();
    [&[0x34 | u8::from(is_again) << 3, body.len() as u8][..], &body].concat()
}

/// Connects with a session that outlives the connection.
fn stay(port: u16, version: Version, client_id: &str) -> Probe {
    Probe::connect(port, version, client_id, |request| (request.clean, request.expiry_s) = (false, 60))
}

#[test]
fn a_message_counts_once_until_it_is_released() {
    for version in VERSIONS {
        let (router, inbox) = router(&["t"]);
        let broker = BrokerThread::start(router, |_| {});
        let mut subscriber = Probe::connect(broker.port(), version, "subscriber", |_| {});
        subscriber.subscribe(&[("t", 2)]);
        let mut sensor = stay(broker.port(), version, "sensor");
        let (received, completed) = ("received 0x0", "completed 0x0");
        sensor.send(&publish(version, 7, b"one", false));
        assert_eq!(sensor.take(), [received]);
        // The PUBREC was lost: on this connection, and with it.
        sensor.send(&publish(version, 7, b"one", true));
        assert_eq!(sensor.take(), [received]);
        drop(sensor);
        let mut sensor = stay(broker.port(), version, "sensor");
        sensor.send(&publish(version, 7, b"one", true));
        sensor.second_half(0x62, 7);
        assert_eq!(sensor.take(), [received, completed]);
        // The identifier is free again.
        sensor.send(&publish(version, 7, b"two", false));
        sensor.second_half(0x62, 7);
        sensor.second_half(0x62, 7);
        let unknown = if version == V5 { "completed 0x92" } else { "completed 0x0" };
        assert_eq!(sensor.take(), [received, completed, unknown]);
        assert_eq!(inbox.texts(), ["one", "two"], "{version:?}");
        let messages: Vec<_> = subscriber.take().into_iter().filter(|seen| seen.starts_with("message")).collect();
        assert_eq!(messages, ["message t 'one' qos 2", "message t 'two' qos 2"]);
    }
}

#[test]
fn a_clean_session_knows_nothing_of_the_one_before() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |_| {});
    let mut sensor = stay(broker.port(), V5, "sensor");
    sensor.send(&publish(V5, 7, b"one", false));
    assert_eq!(sensor.take(), ["received 0x0"]);
    drop(sensor);
    let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
    sensor.send(&publish(V5, 7, b"another", false));
    assert_eq!(sensor.take(), ["received 0x0"]);
    assert_eq!(inbox.texts(), ["one", "another"]);
}

#[test]
fn a_message_is_sent_until_it_is_received_and_released_until_that_is_known() {
    for version in VERSIONS {
        let (router, _) = router(&[]);
        let broker = BrokerThread::start(router, |_| {});
        let connect = || {
            let mut reader = stay(broker.port(), version, "reader");
            reader.acknowledges = false;
            reader
        };
        let mut reader = connect();
        reader.subscribe(&[("t", 2)]);
        let mut sensor = Probe::connect(broker.port(), version, "sensor", |_| {});
        assert_eq!(sensor.publish("t", "one", 2, false), "received 0x0");
        assert_eq!(sensor.publish("t", "two", 2, false), "received 0x0");
        assert_eq!(reader.take(), ["message t 'one' qos 2", "message t 'two' qos 2"]);
        drop(reader);
        let mut reader = connect();
        assert_eq!(reader.take(), ["message t 'one' qos 2 again", "message t 'two' qos 2 again"]);
        // It has the first message, and its PUBREC comes twice.
        reader.second_half(0x50, 1);
        reader.second_half(0x50, 1);
        assert_eq!(reader.take(), ["release 1 0x0", "release 1 0x0"]);
        drop(reader);
        let mut reader = connect();
        assert_eq!(reader.take(), ["release 1 0x0", "message t 'two' qos 2 again"]);
        reader.second_half(0x70, 1);
        reader.second_half(0x50, 2);
        reader.second_half(0x70, 2);
        assert_eq!(reader.take(), ["release 2 0x0"]);
        drop(reader);
        let mut reader = connect();
        assert_eq!(reader.take(), Vec::<String>::new());
        assert_eq!(broker.broker().stats().waiting_messages, 0);
        // An identifier that the broker does not know.
        reader.second_half(0x50, 9);
        let expected = if version == V5 { "release 9 0x92" } else { "release 9 0x0" };
        assert_eq!(reader.take(), [expected]);
    }
}

#[test]
fn a_release_waits_for_the_journal_also_on_the_next_connection() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let journal = Arc::<HeldLog>::default();
    broker.broker().keep_in(journal.clone(), 0).unwrap();
    let commit = || journal.commit(journal.len() as u64);
    let connect = || {
        let mut reader = stay(broker.port(), V5, "reader");
        reader.acknowledges = false;
        reader
    };
    // Answers wait for the disk, which is not waited for here.
    journal.commit(u64::MAX);
    let mut reader = connect();
    reader.subscribe(&[("t", 2)]);
    let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
    assert_eq!(sensor.publish("t", "one", 2, false), "received 0x0");
    assert_eq!(reader.take(), ["message t 'one' qos 2"]);
    commit();
    reader.second_half(0x50, 1);
    assert_eq!(reader.take(), Vec::<String>::new(), "it is not on disk that the message was received");
    drop(reader);
    let mut reader = connect();
    assert_eq!(reader.take(), Vec::<String>::new(), "it still is not");
    commit();
    assert_eq!(reader.next().as_deref(), Some("release 1 0x0"));
}

#[test]
fn messages_in_flight_are_bounded_both_ways() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |options| options.limits.receive_max = 2);
    let mut reader = Probe::connect(broker.port(), V5, "reader", |request| request.receive_max = Some(1));
    reader.acknowledges = false;
    reader.subscribe(&[("t", 2)]);
    let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
    for packet_id in [1, 2, 2] {
        sensor.send(&publish(V5, packet_id, b"x", false));
        assert_eq!(sensor.take(), ["received 0x0"]);
    }
    sensor.second_half(0x62, 1);
    sensor.send(&publish(V5, 3, b"x", false));
    assert_eq!(sensor.take(), ["completed 0x0", "received 0x0"]);
    sensor.send(&publish(V5, 4, b"too many", false));
    assert_eq!(sensor.next().as_deref(), Some("told to go: ReceiveMaximumExceeded"));
    assert_eq!(inbox.len(), 3);
    // The reader has one in flight, from its PUBLISH to its PUBCOMP.
    assert_eq!(reader.take().len(), 1);
    reader.second_half(0x50, 1);
    assert_eq!(reader.take(), ["release 1 0x0"]);
    reader.second_half(0x70, 1);
    assert_eq!(reader.take(), ["message t 'x' qos 2"]);
}

#[test]
fn a_message_for_a_durable_input_is_received_when_it_is_on_disk() {
    let (router, inbox, log) = logged_router("t");
    let broker = BrokerThread::start(router, |_| {});
    let mut sensor = stay(broker.port(), V5, "sensor");
    sensor.send(&publish(V5, 7, b"same", false));
    assert_eq!(sensor.take(), Vec::<String>::new());
    // A repeat waits as the first did, on this connection and on the next.
    sensor.send(&publish(V5, 7, b"same", true));
    assert_eq!(sensor.take(), Vec::<String>::new());
    drop(sensor);
    let mut sensor = stay(broker.port(), V5, "sensor");
    sensor.send(&publish(V5, 7, b"same", true));
    assert_eq!(sensor.take(), Vec::<String>::new());
    log.commit(1);
    assert_eq!(sensor.next().as_deref(), Some("received 0x0"));
    sensor.second_half(0x62, 7);
    assert_eq!(sensor.next().as_deref(), Some("completed 0x0"));
    // An equal message under the same identifier is a new one, even if its first PUBLISH was lost on its way.
    sensor.send(&publish(V5, 7, b"same", true));
    log.commit(2);
    assert_eq!(sensor.next().as_deref(), Some("received 0x0"));
    assert_eq!((inbox.texts(), log.len()), (vec!["same".to_owned(), "same".to_owned()], 2));
}

#[test]
fn each_step_of_a_session_that_is_saved_waits_for_the_journal_and_so_does_its_repeat() {
    let (router, inbox) = router(&["t"]);
    let broker = BrokerThread::start(router, |_| {});
    let journal = Arc::<HeldLog>::default();
    broker.broker().keep_in(journal.clone(), 0).unwrap();
    let mut sensor = stay(broker.port(), V5, "sensor");
    for is_again in [false, true] {
        sensor.send(&publish(V5, 7, b"x", is_again));
    }
    assert_eq!(sensor.take(), Vec::<String>::new());
    journal.commit(journal.len() as u64);
    assert_eq!([sensor.next(), sensor.next()], [Some("received 0x0".to_owned()), Some("received 0x0".to_owned())]);
    sensor.second_half(0x62, 7);
    sensor.second_half(0x62, 7);
    assert_eq!(sensor.take(), Vec::<String>::new());
    journal.commit(journal.len() as u64);
    assert_eq!([sensor.next(), sensor.next()], [Some("completed 0x0".to_owned()), Some("completed 0x92".to_owned())]);
    assert_eq!(inbox.texts(), ["x"]);
}
