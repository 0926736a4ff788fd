//! What a message carries in MQTT 5 reaches its subscribers as it was sent, however it reaches them; no client has more
//! messages in flight than it takes; and a client that is thrown out learns why.

use std::thread;
use std::time::Duration;

use rivulet_connectors::mqtt::Version::{self, V3, V5};

use super::probe::Probe;
use super::support::*;

/// User properties, one of them twice, around a payload format, a content type, a response topic and binary data.
const PROPERTIES: &[u8] = b"\x26\0\x01a\0\x012\x01\x01\x26\0\x01c\0\x013\x03\0\x07My name\x08\0\x01r\
    \x09\0\x04\xff\0\x01\xfe\x26\0\x01a\0\x012";

/// A message as a probe describes it.
fn message(topic: &str, payload: &str, rest: &str, properties: &[u8]) -> String {
    let properties = if properties.is_empty() { String::new() } else { format!(" properties {properties:02x?}") };
    format!("message {topic} '{payload}' {rest}{properties}")
}

/// Subscribes with QoS 1 and a subscription identifier.
fn subscribe_as(probe: &mut Probe, filter: &str, identifier: u8) {
    let mut packet = vec![0x82, 8 + filter.len() as u8, 0, 77, 2, 0x0b, identifier, 0, filter.len() as u8];
    packet.extend_from_slice(filter.as_bytes());
    packet.push(1);
    probe.send(&packet);
    assert_eq!(probe.next().as_deref(), Some("subscribed [GrantedQos1]"));
}

#[test]
fn properties_reach_every_subscriber_as_they_were_sent() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let port = broker.port();
    let connect = |version: Version, client_id: &str| Probe::connect(port, version, client_id, |_| {});
    let kept = |client_id: &str| {
        let change = |request: &mut super::probe::Request| (request.clean, request.expiry_s) = (false, 60);
        Probe::connect(port, V5, client_id, change)
    };
    let (mut of_0, mut of_1, mut old) = (connect(V5, "0"), connect(V5, "1"), connect(V3, "old"));
    of_0.subscribe(&[("t", 0)]);
    of_1.subscribe(&[("t", 1)]);
    old.subscribe(&[("t", 1)]);
    let mut identified = connect(V5, "identified");
    subscribe_as(&mut identified, "t", 5);
    let with_identifier = [PROPERTIES, &[0x0b, 5]].concat();
    let mut away = kept("away");
    away.subscribe(&[("t", 1)]);
    away.disconnect();
    let mut publisher = connect(V5, "publisher");
    // An empty payload and one that is text, as the payload format says.
    for (payload, qos) in [("", 0), ("x", 1)] {
        publisher.publish_with("t", payload, qos, false, PROPERTIES);
        let rest = format!("qos {qos}");
        assert_eq!(of_0.take(), [message("t", payload, "qos 0", PROPERTIES)]);
        assert_eq!(of_1.take(), [message("t", payload, &rest, PROPERTIES)]);
        assert_eq!(identified.take(), [message("t", payload, &rest, &with_identifier)]);
        assert_eq!(old.take(), [message("t", payload, &rest, &[])]);
    }
    let mut away = kept("away");
    assert_eq!(away.take(), [message("t", "x", "qos 1", PROPERTIES)], "what waited for a session");
    for (topic, qos) in [("r/0", 0), ("r/1", 1)] {
        publisher.publish_with(topic, "x", qos, true, PROPERTIES);
        of_1.subscribe(&[(topic, 1)]);
        assert_eq!(of_1.take(), [message(topic, "x", &format!("qos {qos} retained"), PROPERTIES)]);
    }
}

#[test]
fn no_client_has_more_in_flight_than_it_takes() {
    const MESSAGES: usize = 6;
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let connect = |receive_max: u16| {
        let mut probe = Probe::connect(broker.port(), V5, "reader", |request| {
            (request.clean, request.expiry_s, request.receive_max) = (false, 60, Some(receive_max));
        });
        probe.acknowledges = false;
        probe
    };
    let mut publisher = Probe::connect(broker.port(), V5, "publisher", |_| {});
    let mut publish = |topic: &str, retain| {
        for number in 0..MESSAGES {
            publisher.publish(&format!("{topic}/{number}"), "x", 1, retain);
        }
    };
    publish("retained", true);
    let mut reader = connect(3);
    reader.subscribe(&[("live/#", 1)]);
    publish("live", false);
    assert_eq!(reader.take().len(), 3, "messages that are published");
    drop(reader);
    let mut reader = connect(2);
    assert_eq!(reader.take().len(), 2, "messages that are sent again, and fewer at a time");
    drop(reader);
    let mut reader = connect(4);
    assert_eq!(reader.take().len(), 4, "and those that waited");
    reader.subscribe(&[("retained/#", 1)]);
    assert_eq!(reader.take().len(), 0, "retained messages wait as others do");
    drop(reader);
    let mut reader = connect(u16::MAX);
    assert_eq!(reader.take().len(), 2 * MESSAGES);
    drop(reader);
    let mut other = Probe::connect(broker.port(), V5, "other", |request| request.receive_max = Some(2));
    other.acknowledges = false;
    other.subscribe(&[("retained/#", 1)]);
    assert_eq!(other.take().len(), 2, "retained messages");
}

#[test]
fn a_client_that_is_thrown_out_while_it_sends_learns_why() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut client = Probe::connect(broker.port(), V5, "client", |_| {});
    // A message to a wildcard, and what its client sends before it reads.
    let publish = [0x30, 5, 0, 1, b'#', 0, b'x'];
    client.send(&publish);
    assert_eq!(client.next().as_deref(), Some("told to go: TopicNameInvalid"));
    for _ in 0..10 {
        client.send(&publish);
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(client.next(), None);
    assert_eq!(broker.broker().stats().dropped.protocol_errors, 1);
}
