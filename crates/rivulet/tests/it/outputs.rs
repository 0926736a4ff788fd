//! Outputs of applications: how their messages are published.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use rivulet::engine::Engine;
use rivulet::service::ServiceError;
use tempfile::TempDir;

use super::engine::open;
use super::kill_mqtt::split;
use super::server::Publisher;
use super::support::{AsOperator, WAIT_MAX};
use super::tables::said;

pub(super) fn refused(engine: &Engine, script: &str) -> ServiceError {
    engine.execute(script).pop().expect("an answer").expect_err(script)
}

/// A client of MQTT 5 that shows the packets of messages as they come.
struct Listener {
    socket: TcpStream,
    read: Vec<u8>,
}

/// A message as it came.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    topic: String,
    qos: u8,
    retained: bool,
    properties: Vec<u8>,
    payload: String,
}

impl Listener {
    /// Subscribes with QoS 1.
    fn subscribe(broker: SocketAddr, filter: &str) -> Self {
        let mut socket = TcpStream::connect(broker).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        socket.write_all(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00").unwrap();
        let length = u8::try_from(6 + filter.len()).unwrap();
        let packet = [&[0x82, length, 0, 1, 0, 0, filter.len() as u8][..], filter.as_bytes(), &[1]].concat();
        socket.write_all(&packet).unwrap();
        let mut listener = Self { socket, read: Vec::new() };
        for expected in [0x20, 0x90] {
            assert_eq!(listener.packet().0, expected);
        }
        listener
    }

    fn packet(&mut self) -> (u8, Vec<u8>) {
        loop {
            if let Some((first, body, rest)) = split(&self.read) {
                let (packet, rest) = ((first, body.to_vec()), rest.to_vec());
                self.read = rest;
                return packet;
            }
            let mut bytes = [0; 4096];
            let read = self.socket.read(&mut bytes).expect("a packet");
            assert!(read > 0, "the broker has closed the connection");
            self.read.extend_from_slice(&bytes[..read]);
        }
    }

    fn next(&mut self) -> Message {
        let (first, body) = self.packet();
        assert_eq!(first & 0xf0, 0x30, "a PUBLISH");
        let (length, rest) = body.split_first_chunk::<2>().unwrap();
        let (topic, mut rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)));
        let qos = (first >> 1) & 3;
        if qos > 0 {
            self.socket.write_all(&[0x40, 2, rest[0], rest[1]]).unwrap();
            rest = &rest[2..];
        }
        let (properties, payload) = rest[1..].split_at(usize::from(rest[0]));
        Message {
            topic: String::from_utf8(topic.to_vec()).unwrap(),
            qos,
            retained: first & 1 == 1,
            properties: properties.to_vec(),
            payload: String::from_utf8(payload.to_vec()).unwrap(),
        }
    }
}

fn message(topic: &str, qos: u8, retained: bool, properties: &[u8], payload: &str) -> Message {
    Message { topic: topic.into(), qos, retained, properties: properties.to_vec(), payload: payload.into() }
}

const STATES: &str = "CREATE APPLICATION states (room TEXT)
    INPUT readings (n BIGINT) FROM 'mqtt:in/{room}' FORMAT JSON
    OUTPUT kept 'mqtt:out/{room}/kept' FORMAT JSON WITH (retain => true, qos => 1, expiry => INTERVAL '1' HOUR) WHEN n > 1
    OUTPUT plain 'mqtt:out/{room}/plain' FORMAT JSON
    AS SELECT n FROM readings";

#[test]
fn an_output_says_how_its_messages_are_published() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    said(&engine, STATES);
    said(&engine, "CREATE QUERY q FROM APPLICATION states WITH (room => 'a')");
    let broker = engine.embedded_broker_address().unwrap();
    let mut listener = Listener::subscribe(broker, "out/#");
    let mut sender = Publisher::connect(broker);
    sender.publish("in/a", r#"{"n": 1}"#);
    assert_eq!(listener.next(), message("out/a/plain", 0, false, &[], r#"{"n":1}"#));
    sender.publish("in/a", r#"{"n": 2}"#);
    // Results of one batch leave output by output.
    assert_eq!(listener.next(), message("out/a/kept", 1, false, &[2, 0, 0, 0x0e, 0x10], r#"{"n":2}"#));
    assert_eq!(listener.next(), message("out/a/plain", 0, false, &[], r#"{"n":2}"#));
    let late = Listener::subscribe(broker, "out/#").next();
    assert_eq!((late.topic.as_str(), late.qos, late.retained), ("out/a/kept", 1, true));
    // What is left of the hour.
    assert!(matches!(late.properties[..], [2, 0, 0, 0x0d | 0x0e, _]), "{:?}", late.properties);
    let explained = engine.explain("states").unwrap();
    assert!(
        explained
            .contains("output kept to mqtt:out/{room}/kept, format json\n  with retain, qos, expiry\n  when n > 1")
    );
    engine.shutdown();
    drop(engine);
    // What was retained is kept for its time, and the output goes on as it was.
    let engine = open(folder.path());
    let broker = engine.embedded_broker_address().unwrap();
    let mut listener = Listener::subscribe(broker, "out/a/kept");
    assert!(listener.next().retained);
    Publisher::connect(broker).publish("in/a", r#"{"n": 3}"#);
    assert_eq!(listener.next(), message("out/a/kept", 1, false, &[2, 0, 0, 0x0e, 0x10], r#"{"n":3}"#));
}

#[test]
fn results_go_to_a_broker_of_their_own() {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (engine, other) = (open(folder.path()), open(elsewhere.path()));
    let broker = other.embedded_broker_address().unwrap();
    let to = format!("broker => 'mqtt://{broker}', qos => 1");
    let application = format!(
        "CREATE APPLICATION copies (room TEXT)
         INPUT readings (n BIGINT) FROM 'mqtt:in/{{room}}' FORMAT JSON WITH (durability => 'log')
         OUTPUT fixed 'mqtt:out/{{room}}/n' FORMAT JSON WITH ({to})
         OUTPUT named FORMAT CSV WITH ({to}, retain => true) WHEN n > 1
         AS SELECT n FROM readings"
    );
    said(&engine, &application);
    let query = |named: &str| format!("CREATE QUERY q FROM APPLICATION copies WITH (room => 'a', named => '{named}')");
    let error = refused(&engine, &query("mqtt:plant/7/#"));
    assert!(error.message.contains("plant/7/#"), "{error}");
    said(&engine, &query("mqtt:plant/7/n"));
    assert_eq!(engine.query("q").unwrap().output_topic, "mqtt:out/a/n, mqtt:plant/7/n");
    let mut listener = Listener::subscribe(broker, "+/+/n");
    let mut sender = Publisher::connect(engine.embedded_broker_address().unwrap());
    sender.publish("in/a", r#"{"n": 1}"#);
    let first = listener.next();
    assert_eq!((first.topic.as_str(), first.qos, first.payload.as_str()), ("out/a/n", 1, r#"{"n":1}"#));
    let is_id = |bytes: &[u8]| bytes == b"rivulet-id";
    assert!(first.properties.windows(10).any(is_id), "{:?}", first.properties);
    sender.publish("in/a", r#"{"n": 2}"#);
    let mut both = [listener.next(), listener.next()].map(|one| (one.topic, one.payload));
    both.sort();
    let text = |topic: &str, payload: &str| (topic.to_owned(), payload.to_owned());
    assert_eq!(both, [text("out/a/n", r#"{"n":2}"#), text("plant/7/n", "2")]);
    assert!(Listener::subscribe(broker, "plant/7/n").next().retained);
    let error = refused(&engine, &application.replace("copies", "wrong").replace("out/{room}/n", "out/{room}/#"));
    assert_eq!((error.line, error.message.contains("wildcard")), (Some(3), true), "{error}");
    said(
        &engine,
        "CREATE APPLICATION hidden INPUT t (n BIGINT) FROM 'mqtt:x' FORMAT JSON
         OUTPUT FORMAT JSON WITH (broker => 'mqtt://kim:rose@127.0.0.1:1') AS SELECT n FROM t",
    );
    let shown = engine.application("hidden").unwrap().sql;
    assert!(shown.contains("mqtt://kim:***@127.0.0.1:1") && !shown.contains("rose"), "{shown}");
}

#[test]
fn options_of_an_output_that_are_none_are_refused_at_their_place() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    for (options, column, message, hint) in [
        ("retian => true", 7, "the option 'retian' of 'mqtt:' is unknown", "did you mean 'retain'?"),
        ("qos => 2", 7, "the option 'qos' of 'mqtt:' cannot be '2'", "it is a whole number from 0 to 1"),
        ("qos => 1, retain => 7", 17, "the option 'retain' of 'mqtt:' cannot be '7'", "it is true or false"),
        ("expiry => 'soon'", 7, "the option 'expiry' of 'mqtt:' cannot be 'soon'", "it is a time span"),
        ("expiry => '1500 ms'", 7, "the option 'expiry' of 'mqtt:' is no number of whole seconds", "for example"),
        ("broker => 'x'", 7, "the option 'broker' of 'mqtt:' is not the address of a broker", "mqtt://"),
        (
            "on_bad_topic => 'skip'",
            7,
            "the option 'on_bad_topic' of 'mqtt:' is one of sinks of big queries",
            "retain and expiry",
        ),
    ] {
        let script = format!(
            "CREATE APPLICATION a INPUT t (n BIGINT) FROM 'mqtt:in' FORMAT JSON OUTPUT 'mqtt:out' FORMAT JSON\nWITH ({options})\n\
             AS SELECT n FROM t"
        );
        let error = refused(&engine, &script);
        assert!(error.message.starts_with(message), "{options}: {error}");
        assert!(error.hint.as_deref().is_some_and(|said| said.contains(hint)), "{options}: {error:?}");
        assert_eq!((error.line, error.column), (Some(2), Some(column)), "{options}: {error}");
    }
}
