//! What client and broker agree on when they connect: topic aliases and keep alive; and the topics of the broker
//! itself.

use rivulet_connectors::mqtt::Version::{V3, V5};

use super::probe::Probe;
use super::support::*;

/// A packet of at most 127 bytes behind its header.
fn packet(first_byte: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&[first_byte, body.len() as u8][..], &body].concat()
}

/// A PUBLISH of QoS 0 with a topic alias.
fn with_alias(topic: &str, alias: u8, payload: &str) -> Vec<u8> {
    packet(0x30, &[&[0, topic.len() as u8], topic.as_bytes(), &[3, 0x23, 0, alias], payload.as_bytes()])
}

/// A CONNECT of version 5 with a clean start and these properties.
fn connect(keep_alive_s: u8, properties: &[u8]) -> Vec<u8> {
    let start = &[0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, keep_alive_s, properties.len() as u8];
    packet(0x10, &[start, properties, &[0, 1, b'c']])
}

#[test]
fn an_alias_of_a_client_stands_for_a_topic_on_its_connection() {
    let (router, inbox) = router(&["t", "u"]);
    let broker = BrokerThread::start(router, |options| options.limits.topic_aliases_max = 2);
    let mut reader = Probe::connect(broker.port(), V5, "reader", |_| {});
    reader.subscribe(&[("#", 0)]);
    let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
    for (topic, alias, payload) in
        [("t", 1, "1"), ("", 1, "2"), ("u", 2, "3"), ("", 1, "4"), ("u", 1, "5"), ("", 1, "6")]
    {
        sensor.send(&with_alias(topic, alias, payload));
    }
    assert_eq!(sensor.take(), Vec::<String>::new());
    assert_eq!(inbox.texts(), ["1", "2", "3", "4", "5", "6"]);
    assert_eq!(inbox.slots(), [0, 0, 1, 0, 1, 1]);
    // It means nothing to others.
    assert_eq!(reader.take()[..2], ["message t '1' qos 0", "message t '2' qos 0"]);
    drop(sensor);
    for (topic, alias) in [("", 1), ("t", 0), ("t", 3)] {
        let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
        sensor.send(&with_alias(topic, alias, "x"));
        assert_eq!(sensor.next().as_deref(), Some("told to go: TopicAliasInvalid"), "{topic} {alias}");
    }
    assert_eq!(inbox.len(), 6);
}

#[test]
fn the_broker_uses_as_many_aliases_as_the_client_accepts() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |_| {});
    let mut reader = Probe::raw(broker.port(), V5);
    reader.send(&connect(60, &[0x22, 0, 1]));
    assert_eq!(reader.next().as_deref(), Some("connected"));
    reader.subscribe(&[("#", 2)]);
    let mut sensor = Probe::connect(broker.port(), V5, "sensor", |_| {});
    for (qos, topic) in [(0, "t"), (1, "t"), (2, "t"), (0, "u"), (1, "u")] {
        sensor.publish(topic, "x", qos, false);
    }
    let mut seen = reader.take();
    seen.retain(|seen| seen.starts_with("message"));
    assert_eq!(
        seen,
        [
            "message t 'x' qos 0 properties [23, 00, 01]",
            "message  'x' qos 1 properties [23, 00, 01]",
            "message  'x' qos 2 properties [23, 00, 01]",
            "message u 'x' qos 0",
            "message u 'x' qos 1",
        ]
    );
}

#[test]
fn a_keep_alive_beyond_the_longest_is_replaced() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |options| options.limits.keep_alive_s_max = 60);
    // A CONNACK as bytes: a server keep alive of 60 seconds is a property 0x13.
    let answer = |keep_alive_s| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", broker.port())).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        std::io::Write::write_all(&mut stream, &connect(keep_alive_s, &[])).unwrap();
        let mut bytes = [0; 64];
        let count = std::io::Read::read(&mut stream, &mut bytes).unwrap();
        bytes[..count].windows(3).any(|window| window == [0x13, 0, 60])
    };
    assert_eq!([0, 59, 60, 61].map(answer), [true, false, false, true]);
    let broker = BrokerThread::start(support_router(), |options| options.limits.keep_alive_s_max = 1);
    let mut quiet = Probe::connect(broker.port(), V5, "quiet", |request| request.keep_alive_s = 0);
    assert_eq!(quiet.next().as_deref(), Some("told to go: KeepAliveTimeout"));
}

fn support_router() -> std::sync::Arc<rivulet_connectors::mqtt::Router> {
    router(&[]).0
}

#[test]
fn the_broker_tells_of_itself_and_nobody_else_does() {
    for version in [V3, V5] {
        let (router, inbox) = router(&["$SYS/broker/uptime"]);
        let broker = BrokerThread::start(router, |_| {});
        let mut reader = Probe::connect(broker.port(), version, "reader", |_| {});
        reader.subscribe(&[("#", 0), ("+/broker/version", 0)]);
        assert_eq!(reader.take(), Vec::<String>::new(), "no wildcard stands for '$SYS'");
        reader.subscribe(&[("$SYS/broker/clients/#", 1)]);
        let mut seen = Vec::new();
        block_until("the broker tells", || {
            seen.extend(reader.take());
            seen.len() >= 3
        });
        assert!(seen.iter().any(|seen| seen.starts_with("message $SYS/broker/clients/connected '")), "{seen:?}");
        assert_eq!(broker.broker().stats().retained_messages, 0);
        let refused = if version == V5 { "acknowledged 0x87" } else { "acknowledged 0x0" };
        assert_eq!(reader.publish("$SYS/broker/uptime", "for ever", 1, true), refused);
        let with_will = Probe::try_connect(broker.port(), version, "w", |request| {
            request.will = Some(("$SYS/broker/uptime", "for ever", 1, true));
        });
        assert_eq!(with_will.1, if version == V5 { "refused 0x87" } else { "refused 0x5" });
        assert_eq!(inbox.len(), 0);
    }
    let broker = BrokerThread::start(support_router(), |options| options.limits.system_interval_s = 0);
    let mut reader = Probe::connect(broker.port(), V5, "reader", |_| {});
    reader.subscribe(&[("$SYS/#", 0)]);
    assert_eq!(reader.take(), Vec::<String>::new());
}
