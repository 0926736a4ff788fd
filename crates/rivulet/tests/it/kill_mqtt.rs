//! A server between an MQTT broker and itself, both killed at random moments under load: every event comes out at least
//! once, and the results that come more than once are told by their `rivulet-id`.
//!
//! The broker is one of a few lines that keeps the session of its one client as a durable broker does, and breaks down
//! where that is worst: when it has a result and has not acknowledged it, and when it has not even looked at it.
//! `RIVULET_KILLS` says how often the server is killed, and the broker breaks down about as often.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;

use crate::kill::{kills, random};
use crate::server::{Server, free_port, wait};

const DEVICES: u64 = 4;

/// Events that the broker sends before it has an acknowledgement.
const WINDOW: usize = 20;

/// It breaks down after about so many results, and so often at most for each server: a client waits longer and longer
/// for a broker that breaks down whenever it comes.
const RESULTS_BETWEEN_BREAKDOWNS: u64 = 400;
const BREAKDOWNS_PER_SERVER: u64 = 2;

const COPIES: &str = "CREATE APPLICATION copies (device TEXT)
    INPUT readings (n BIGINT) FROM 'mqtt:in/{device}' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:out/{device}' FORMAT JSON
    AS SELECT n, 2 * n AS doubled FROM readings";

/// What survives a breakdown of the broker.
#[derive(Default)]
struct Session {
    /// Packet identifier, number of the event, and whether it was sent before.
    unacknowledged: VecDeque<(u16, u64, bool)>,
    events: u64,
    /// How many filters it was asked for.
    subscriptions: usize,
    /// Identity and number of the event of each result.
    results: Vec<(String, u64)>,
    breakdowns: u64,
}

/// Why a connection has ended.
enum End {
    /// The client has gone.
    Gone,
    /// The broker has broken down.
    Breakdown,
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> Self {
        Self::Gone
    }
}

struct Broker {
    session: Mutex<Session>,
    /// No new events: not yet, or no more.
    is_over: AtomicBool,
    is_closed: AtomicBool,
    /// How often it may break down in all.
    breakdowns_max: AtomicU64,
}

impl Broker {
    fn start(address: SocketAddr) -> (Arc<Self>, thread::JoinHandle<()>) {
        let broker = Arc::new(Self {
            session: Mutex::default(),
            is_over: AtomicBool::new(true),
            is_closed: AtomicBool::new(false),
            breakdowns_max: AtomicU64::new(BREAKDOWNS_PER_SERVER),
        });
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let running = broker.clone();
        let thread = thread::spawn(move || {
            let mut state = 0x2545_f491_4f6c_dd1d;
            while !running.is_closed.load(Ordering::Relaxed) {
                let Ok((socket, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                if let Err(End::Breakdown) = running.serve(socket, &mut state) {
                    running.session.lock().breakdowns += 1;
                    thread::sleep(Duration::from_millis(random(&mut state) % 200));
                }
            }
        });
        (broker, thread)
    }

    /// Serves one connection to its end.
    fn serve(&self, mut socket: TcpStream, state: &mut u64) -> Result<(), End> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(Duration::from_millis(5)))?;
        let (mut read, mut is_connected) = (Vec::new(), false);
        while !self.is_closed.load(Ordering::Relaxed) {
            let mut bytes = [0; 16 << 10];
            match socket.read(&mut bytes) {
                Ok(0) => return Err(End::Gone),
                Ok(count) => read.extend_from_slice(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            let mut answer = Vec::new();
            while let Some((first, body, rest)) = split(&read) {
                is_connected |= first >> 4 == 1;
                let handled = self.handle(first, body, state, &mut answer);
                let rest = rest.to_vec();
                if handled.is_err() {
                    // What was acknowledged before it broke down was on its way.
                    let _ = socket.write_all(&answer);
                }
                handled?;
                read = rest;
            }
            if is_connected {
                self.send_events(&mut answer);
            }
            socket.write_all(&answer)?;
        }
        Ok(())
    }

    fn handle(&self, first: u8, body: &[u8], state: &mut u64, answer: &mut Vec<u8>) -> Result<(), End> {
        let mut session = self.session.lock();
        match first >> 4 {
            // CONNECT
            1 => {
                answer.extend_from_slice(&connack(session.subscriptions > 0));
                session.unacknowledged.iter_mut().for_each(|(_, _, was_sent)| *was_sent = false);
            }
            // PUBLISH: a result.
            3 => {
                let what = random(state) % RESULTS_BETWEEN_BREAKDOWNS;
                let is_allowed = session.breakdowns < self.breakdowns_max.load(Ordering::Relaxed);
                if is_allowed && what == 0 {
                    return Err(End::Breakdown);
                }
                let topic_end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                assert_eq!(first & 0b110, 0b010, "results have QoS 1");
                let (id, rest) = body[topic_end..].split_first_chunk::<2>().unwrap();
                let (properties, payload) = rest[1..].split_at(usize::from(rest[0]));
                let value = properties.strip_prefix(b"\x26\x00\x0arivulet-id").expect("a result says which it is");
                let payload: Value = serde_json::from_slice(payload).unwrap();
                let n = payload["n"].as_u64().unwrap();
                assert_eq!(payload["doubled"], 2 * n);
                assert_eq!(body[2..topic_end], *format!("out/device{}", n % DEVICES).as_bytes());
                session.results.push((String::from_utf8(value[2..].to_vec()).unwrap(), n));
                if is_allowed && what == 1 {
                    return Err(End::Breakdown);
                }
                answer.extend_from_slice(&[0x40, 2]);
                answer.extend_from_slice(id);
            }
            // PUBACK
            4 => {
                let id = u16::from_be_bytes([body[0], body[1]]);
                session.unacknowledged.retain(|(unacknowledged, ..)| *unacknowledged != id);
            }
            // SUBSCRIBE
            8 => {
                let suback = suback(body);
                session.subscriptions += suback.len() - 5;
                answer.extend(suback);
            }
            // PINGREQ
            12 => answer.extend_from_slice(&[0xd0, 0]),
            14 => return Err(End::Gone),
            other => panic!("a packet of type {other}"),
        }
        Ok(())
    }

    /// Sends what was not acknowledged on an earlier connection, and new events.
    fn send_events(&self, out: &mut Vec<u8>) {
        let mut session = self.session.lock();
        while session.unacknowledged.len() < WINDOW
            && session.subscriptions > 0
            && !self.is_over.load(Ordering::Relaxed)
        {
            let (n, id) = (session.events, (session.events % 60_000) as u16 + 1);
            session.events += 1;
            session.unacknowledged.push_back((id, n, false));
            publish(id, n, false, out);
            session.unacknowledged.back_mut().unwrap().2 = true;
        }
        for (id, n, was_sent) in session.unacknowledged.iter_mut().filter(|(.., was_sent)| !was_sent) {
            publish(*id, *n, true, out);
            *was_sent = true;
        }
    }
}

fn publish(id: u16, n: u64, is_repeated: bool, out: &mut Vec<u8>) {
    let topic = format!("in/device{}", n % DEVICES);
    let mut body = (topic.len() as u16).to_be_bytes().to_vec();
    body.extend_from_slice(topic.as_bytes());
    body.extend_from_slice(&id.to_be_bytes());
    body.push(0);
    body.extend_from_slice(format!("{{\"n\":{n}}}").as_bytes());
    out.extend_from_slice(&[0x32 | u8::from(is_repeated) << 3, u8::try_from(body.len()).unwrap()]);
    out.extend(body);
}

/// That a client is let in, and whether its session is known.
pub(crate) fn connack(is_known: bool) -> [u8; 5] {
    [0x20, 3, u8::from(is_known), 0, 0]
}

/// The answer to a SUBSCRIBE with this body: 5 bytes, and one for each filter.
pub(crate) fn suback(body: &[u8]) -> Vec<u8> {
    let mut rest = &body[3 + usize::from(body[2])..];
    let mut codes = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        rest = &after[usize::from(u16::from_be_bytes(*length)) + 1..];
        codes.push(1);
    }
    [&[0x90, 3 + u8::try_from(codes.len()).unwrap(), body[0], body[1], 0][..], &codes].concat()
}

/// The first packet: its first byte and its body; and what is behind it.
pub(crate) fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (mut length, mut at) = (0, 1);
    loop {
        let byte = *bytes.get(at)?;
        length |= usize::from(byte & 0x7f) << (7 * (at - 1));
        at += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some((bytes[0], bytes.get(at..at + length)?, &bytes[at + length..]))
}

#[test]
fn results_that_come_again_are_told_by_their_identity() {
    let kills = kills(3);
    let folder = TempDir::new().unwrap();
    let address = free_port();
    let (broker, thread) = Broker::start(address);
    let settings = [
        ("RIVULET_MQTT_BROKER_URL", format!("mqtt://{address}")),
        ("RIVULET_MQTT_BROKER_CLIENT_ID", "rivulet".to_owned()),
        ("RIVULET_SINK_QOS", "1".to_owned()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned()),
    ];
    let start = || {
        let server = Server::spawn(folder.path(), address, &settings);
        server.wait_until_ready();
        server
    };
    let mut server = start();
    server.sql_ok(COPIES);
    for device in 0..DEVICES {
        server
            .sql_ok(&format!("CREATE QUERY device{device} FROM APPLICATION copies WITH (device => 'device{device}')"));
    }
    // What a query was given before the first checkpoint that knows it is not told apart.
    server.sql_ok("CHECKPOINT");
    broker.is_over.store(false, Ordering::Relaxed);
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..kills {
        let before = broker.session.lock().results.len();
        wait("more results", || broker.session.lock().results.len() > before + 500);
        thread::sleep(Duration::from_millis(random(&mut state) % 700));
        server.kill_9();
        broker.breakdowns_max.fetch_add(BREAKDOWNS_PER_SERVER, Ordering::Relaxed);
        server = start();
    }
    broker.is_over.store(true, Ordering::Relaxed);
    wait("all results", || {
        let session = broker.session.lock();
        let different: BTreeSet<u64> = session.results.iter().map(|(_, n)| *n).collect();
        session.unacknowledged.is_empty() && different.len() as u64 == session.events
    });
    drop(server);
    broker.is_closed.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    let session = broker.session.lock();
    let mut by_id: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, n) in &session.results {
        let first = by_id.entry(id).or_insert(*n);
        assert_eq!(first, n, "two results have the identity {id}");
    }
    assert_eq!(by_id.len() as u64, session.events, "each result has one identity");
    let (events, results, breakdowns) = (session.events, session.results.len(), session.breakdowns);
    println!("{events} events, {results} results, {breakdowns} breakdowns of the broker, {kills} kills");
    assert!(results as u64 > events, "none came again, so nothing was tested");
}
