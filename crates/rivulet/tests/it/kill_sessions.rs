//! Sessions and retained messages of the embedded broker outlive the server, killed or stopped: a subscriber that keeps
//! its session gets everything that was acknowledged.
//!
//! `RIVULET_KILLS` is how often the server is killed; a few times by default.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;

use crate::kill::{Device, kills, random};
use crate::kill_mqtt::split;
use crate::server::{Publisher, Server, free_port, wait};

const COPIES: &str = "CREATE APPLICATION copies (device TEXT)
    INPUT readings (n BIGINT) FROM 'mqtt:in/{device}' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:out/{device}' FORMAT JSON
    AS SELECT n FROM readings";

/// What a watcher was sent.
#[derive(Default)]
struct Seen {
    /// The numbers, by topic.
    numbers: BTreeMap<String, BTreeSet<u64>>,
    messages: u64,
    marked_again: u64,
    subscriptions: u64,
    connections: u64,
    /// Connections on which the broker knew the session.
    resumed: u64,
}

/// A client of QoS 1 that keeps its session, and its connection as long as there is a broker.
struct Watcher {
    client_id: &'static str,
    broker: SocketAddr,
    seen: Mutex<Seen>,
    is_over: AtomicBool,
}

impl Watcher {
    fn start(client_id: &'static str, broker: SocketAddr) -> (Arc<Self>, thread::JoinHandle<()>) {
        let (seen, is_over) = (Mutex::default(), AtomicBool::new(false));
        let watcher = Arc::new(Self { client_id, broker, seen, is_over });
        let running = watcher.clone();
        let thread = thread::spawn(move || {
            let mut state = 0x1234_5678_9abc_def1;
            while !running.is_over.load(Ordering::Relaxed) {
                let _ = running.run(&mut state);
                thread::sleep(Duration::from_millis(10));
            }
        });
        (watcher, thread)
    }

    /// One connection to its end. Now and then it ends by itself, with messages that are not acknowledged.
    fn run(&self, state: &mut u64) -> std::io::Result<()> {
        let mut socket = TcpStream::connect(self.broker)?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let mut connect = vec![0x10, 12 + self.client_id.len() as u8];
        connect.extend_from_slice(b"\x00\x04MQTT\x04\x00\x00\x00\x00");
        connect.push(self.client_id.len() as u8);
        connect.extend_from_slice(self.client_id.as_bytes());
        socket.write_all(&connect)?;
        let mut read = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let mut bytes = [0; 16 << 10];
            match socket.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => read.extend_from_slice(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
            let mut answer = Vec::new();
            while let Some((first, body, rest)) = split(&read) {
                self.handle(first, body, &mut answer);
                read = rest.to_vec();
            }
            let is_subscribed = {
                let seen = self.seen.lock();
                seen.subscriptions + seen.resumed > 0
            };
            if is_subscribed && random(state).is_multiple_of(200) {
                return Ok(());
            }
            socket.write_all(&answer)?;
        }
        Ok(())
    }

    fn handle(&self, first: u8, body: &[u8], answer: &mut Vec<u8>) {
        let mut seen = self.seen.lock();
        match first >> 4 {
            // CONNACK
            2 => {
                assert_eq!(body[1], 0, "it is let in");
                seen.connections += 1;
                seen.resumed += u64::from(body[0]);
                assert!(body[0] == 1 || seen.subscriptions == 0, "a session with an acknowledged subscription is kept");
                if body[0] == 0 {
                    answer.extend_from_slice(b"\x82\x11\x00\x01\x00\x04in/#\x01\x00\x05out/#\x01");
                }
            }
            // SUBACK
            9 => {
                assert_eq!(body, [0, 1, 1, 1]);
                seen.subscriptions += 1;
            }
            // PUBLISH
            3 => {
                assert_eq!(first & 0b110, 0b010, "QoS 1");
                let topic_end = 2 + usize::from(body[1]);
                let (id, payload) = body[topic_end..].split_first_chunk::<2>().unwrap();
                let n = serde_json::from_slice::<Value>(payload).unwrap()["n"].as_u64().unwrap();
                let topic = String::from_utf8(body[2..topic_end].to_vec()).unwrap();
                seen.numbers.entry(topic).or_default().insert(n);
                seen.messages += 1;
                seen.marked_again += u64::from(first & 0b1000 != 0);
                answer.extend_from_slice(&[0x40, 2]);
                answer.extend_from_slice(id);
            }
            other => panic!("a packet of type {other}"),
        }
    }
}

fn start(folder: &Path, mqtt: SocketAddr) -> Server {
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned()),
        ("RIVULET_SINK_QOS", "1".to_owned()),
        // The device sends as fast as it can, also while the watcher is away: nothing may be dropped for want of room.
        ("RIVULET_MQTT_EMBEDDED_SESSION_QUEUE_MESSAGES_MAX", "1000000".to_owned()),
        ("RIVULET_MQTT_EMBEDDED_SESSION_QUEUE_BYTES_MAX", "256 MiB".to_owned()),
    ];
    let server = Server::spawn(folder, mqtt, &settings);
    server.wait_until_ready();
    server
}

#[test]
fn a_session_misses_nothing_that_was_acknowledged_however_often_the_server_is_killed() {
    let kills = kills(4);
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let mut server = start(folder.path(), mqtt);
    server.sql_ok(COPIES);
    server.sql_ok("CREATE QUERY device0 FROM APPLICATION copies WITH (device => 'device0')");
    server.sql_ok("CHECKPOINT");
    let (watcher, watching) = Watcher::start("watcher", mqtt);
    wait("the subscription", || watcher.seen.lock().subscriptions > 0);
    let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let device = {
        let (is_over, acknowledged) = (is_over.clone(), acknowledged.clone());
        thread::spawn(move || {
            let mut device = Device::new("device0".into(), mqtt);
            device.run(&is_over, &acknowledged);
            device.sent
        })
    };
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for kill in 0..kills {
        let before = acknowledged.load(Ordering::Relaxed);
        wait("more acknowledgements", || acknowledged.load(Ordering::Relaxed) > before + 300);
        thread::sleep(Duration::from_millis(random(&mut state) % 400));
        if kill % 4 == 3 {
            // Stopped, as an update does it.
            server.signal("-TERM");
            assert_eq!(server.wait_for_end(), Some(0));
        } else {
            server.kill_9();
        }
        server = start(folder.path(), mqtt);
    }
    is_over.store(true, Ordering::Relaxed);
    let sent = device.join().unwrap();
    let missing = || -> Vec<(String, u64)> {
        let seen = watcher.seen.lock();
        let missing_of = |topic: &str| {
            let numbers = seen.numbers.get(topic);
            let missing = (1..=sent).filter(|n| !numbers.is_some_and(|numbers| numbers.contains(n))).take(10);
            missing.map(|n| (topic.to_owned(), n)).collect::<Vec<_>>()
        };
        [missing_of("in/device0"), missing_of("out/device0")].concat()
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(300);
    while !missing().is_empty() && std::time::Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(missing(), [], "of {sent}");
    watcher.is_over.store(true, Ordering::Relaxed);
    watching.join().unwrap();
    let seen = watcher.seen.lock();
    assert_eq!(seen.subscriptions, 1, "the session was always there");
    assert_eq!(seen.connections, seen.resumed + 1);
    println!(
        "{sent} events, {} messages, {} of them marked as sent again, {} connections",
        seen.messages, seen.marked_again, seen.connections
    );
}

#[test]
fn retained_messages_and_what_waits_for_a_session_are_there_after_a_stop_and_after_a_kill() {
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let mut server = start(folder.path(), mqtt);
    let (watcher, watching) = Watcher::start("watcher", mqtt);
    wait("the subscription", || watcher.seen.lock().subscriptions > 0);
    watcher.is_over.store(true, Ordering::Relaxed);
    watching.join().unwrap();
    for round in 0..2 {
        // A retained message, one that takes one away, and one that waits; each is acknowledged.
        let mut client = Acknowledged::connect(mqtt);
        client.publish(0x33, "state/kept", &format!("{{\"n\":{round}}}"));
        client.publish(0x33, "state/gone", "{}");
        client.publish(0x33, "state/gone", "");
        client.publish(0x32, "in/x", &format!("{{\"n\":{round}}}"));
        if round == 0 {
            server.signal("-TERM");
            assert_eq!(server.wait_for_end(), Some(0));
        } else {
            server.kill_9();
        }
        server = start(folder.path(), mqtt);
        let mut reader = Publisher::connect(mqtt);
        reader.subscribe("state/#");
        reader.publish("state/last", "");
        assert_eq!(reader.next(), ("state/kept".into(), format!("{{\"n\":{round}}}").into_bytes()));
        assert_eq!(reader.next(), ("state/last".into(), Vec::new()));
    }
    let (watcher, watching) = Watcher::start("watcher", mqtt);
    wait("what waits", || watcher.seen.lock().numbers.get("in/x") == Some(&BTreeSet::from([0, 1])));
    watcher.is_over.store(true, Ordering::Relaxed);
    watching.join().unwrap();
    assert_eq!(watcher.seen.lock().subscriptions, 0, "its subscription was there too");
}

/// A client whose messages are each acknowledged before the next.
struct Acknowledged(TcpStream);

impl Acknowledged {
    fn connect(broker: SocketAddr) -> Self {
        let mut socket = TcpStream::connect(broker).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        socket.write_all(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00").unwrap();
        let mut answer = [0; 4];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x20, 2, 0, 0]);
        Self(socket)
    }

    fn publish(&mut self, first: u8, topic: &str, payload: &str) {
        let mut packet = vec![first, (4 + topic.len() + payload.len()) as u8, 0, topic.len() as u8];
        packet.extend_from_slice(topic.as_bytes());
        packet.extend_from_slice(&[0, 7]);
        packet.extend_from_slice(payload.as_bytes());
        self.0.write_all(&packet).unwrap();
        let mut answer = [0; 4];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x40, 2, 0, 7]);
    }
}
