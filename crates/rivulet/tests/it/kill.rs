//! The server under load over MQTT QoS 1, killed at random moments: every event that was acknowledged is counted once.
//!
//! `RIVULET_KILLS` says how often; a few times by default.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{Publisher, Server, free_port, wait};

/// How long a client goes on without an answer before the test fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// Messages that a client sends before it has an acknowledgement.
pub(super) const WINDOW: usize = 32;

/// All events lie in one window of time, which an event behind it closes.
pub(super) const WINDOW_BEGIN_MS: u64 = 1_700_006_400_000;
pub(super) const DAY_MS: u64 = 86_400_000;

pub(crate) const TOTALS: &str = "CREATE APPLICATION totals (device TEXT)
    INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{device}' FORMAT JSON
    WITH (idle_timeout => INTERVAL '1000 days', durability => 'log')
    OUTPUT 'mqtt:out/{device}' FORMAT JSON
    AS SELECT count(*) AS events, sum(n) AS total FROM readings GROUP BY tumble(ts, INTERVAL '1 day')";

/// How often a test kills: what `RIVULET_KILLS` says, or so often.
pub(crate) fn kills(otherwise: u32) -> u32 {
    std::env::var("RIVULET_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(otherwise)
}

/// A device: publishes numbered events, remembers which were acknowledged, and sends the others again on each
/// connection.
pub(super) struct Device {
    name: String,
    broker: SocketAddr,
    socket: Option<TcpStream>,
    read: Vec<u8>,
    /// Packet identifier and packet of what was sent and not acknowledged.
    unacknowledged: VecDeque<(u16, Vec<u8>)>,
    pub(super) sent: u64,
    repeated: u64,
}

impl Device {
    pub(super) fn new(name: String, broker: SocketAddr) -> Self {
        Self { name, broker, socket: None, read: Vec::new(), unacknowledged: VecDeque::new(), sent: 0, repeated: 0 }
    }

    /// Connects with the session of before, and sends again what was not acknowledged.
    fn connect(&mut self) -> std::io::Result<()> {
        let mut socket = TcpStream::connect(self.broker)?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        socket.set_nodelay(true)?;
        let mut body = b"\x00\x04MQTT\x04\x00\x00\x00".to_vec();
        body.extend_from_slice(&(self.name.len() as u16).to_be_bytes());
        body.extend_from_slice(self.name.as_bytes());
        let mut packet = vec![0x10, body.len() as u8];
        packet.extend(body);
        for (_, unacknowledged) in &self.unacknowledged {
            packet.extend_from_slice(unacknowledged);
            let begin = packet.len() - unacknowledged.len();
            packet[begin] |= 0x08;
            self.repeated += 1;
        }
        socket.write_all(&packet)?;
        self.read.clear();
        self.socket = Some(socket);
        Ok(())
    }

    fn publish(&mut self, payload: &str) {
        self.publish_to(&format!("in/{}", self.name), payload);
    }

    pub(super) fn publish_to(&mut self, topic: &str, payload: &str) {
        let id = (self.sent % 65_535) as u16 + 1;
        self.sent += 1;
        let mut body = (topic.len() as u16).to_be_bytes().to_vec();
        body.extend_from_slice(topic.as_bytes());
        body.extend_from_slice(&id.to_be_bytes());
        body.extend_from_slice(payload.as_bytes());
        assert!(body.len() < 128, "its length is one byte");
        let mut packet = vec![0x32, body.len() as u8];
        packet.extend(body);
        if self.socket.as_mut().is_some_and(|socket| socket.write_all(&packet).is_err()) {
            self.socket = None;
        }
        self.unacknowledged.push_back((id, packet));
    }

    /// How much of what was sent is not acknowledged.
    pub(super) fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Reads what has come, and connects if need be; acknowledgements come in the order of what they acknowledge.
    pub(super) fn receive(&mut self) {
        if self.socket.is_none() && self.connect().is_err() {
            thread::sleep(Duration::from_millis(10));
            return;
        }
        let Some(socket) = &mut self.socket else { return };
        let mut bytes = [0; 4096];
        match socket.read(&mut bytes) {
            Ok(count) if count > 0 => self.read.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            _ => self.socket = None,
        }
        while self.read.len() >= 4 {
            let packet: Vec<u8> = self.read.drain(..4).collect();
            match packet[..] {
                [0x20, 2, _, 0] => {}
                [0x40, 2, high, low] => {
                    let expected = self.unacknowledged.pop_front().map(|(id, _)| id);
                    assert_eq!(expected, Some(u16::from_be_bytes([high, low])), "in order, and each once");
                }
                _ => panic!("{packet:?} came"),
            }
        }
    }

    /// Publishes until told to stop, and then until everything is acknowledged. Returns the sum of the numbers.
    pub(super) fn run(&mut self, is_over: &AtomicBool, acknowledged: &AtomicU64) -> u64 {
        let (mut total, mut last) = (0, Instant::now());
        loop {
            let is_over = is_over.load(Ordering::Relaxed);
            if is_over && self.unacknowledged.is_empty() {
                return total;
            }
            while !is_over && self.socket.is_some() && self.unacknowledged.len() < WINDOW {
                let n = self.sent + 1;
                total += n;
                self.publish(&json!({"ts": WINDOW_BEGIN_MS + n, "n": n}).to_string());
            }
            let before = self.unacknowledged.len();
            self.receive();
            if self.unacknowledged.len() < before {
                acknowledged.fetch_add((before - self.unacknowledged.len()) as u64, Ordering::Relaxed);
                last = Instant::now();
            }
            assert!(last.elapsed() < PATIENCE, "{} waits for {} acknowledgements", self.name, before);
        }
    }
}

/// Devices under load, each in a thread.
pub(crate) struct Load {
    devices: Vec<String>,
    running: Vec<thread::JoinHandle<Sent>>,
    is_over: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
}

/// What a device has sent: how many events, the sum of their numbers, and how many it sent again.
struct Sent {
    events: u64,
    total: u64,
    repeated: u64,
}

impl Load {
    /// So many devices begin to publish, and a query for each counts their events.
    pub(crate) fn start(server: &Server, devices: usize) -> Self {
        server.sql_ok(TOTALS);
        let devices: Vec<String> = (0..devices).map(|n| format!("device{n}")).collect();
        for device in &devices {
            server.sql_ok(&format!("CREATE QUERY {device} FROM APPLICATION totals WITH (device => '{device}')"));
        }
        let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let start = |name: &String| {
            let (is_over, acknowledged) = (is_over.clone(), acknowledged.clone());
            let mut device = Device::new(name.clone(), server.mqtt);
            thread::spawn(move || {
                let total = device.run(&is_over, &acknowledged);
                Sent { events: device.sent, total, repeated: device.repeated }
            })
        };
        let running = devices.iter().map(start).collect();
        Self { devices, running, is_over, acknowledged }
    }

    /// How many events were acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until so many more are.
    pub(crate) fn wait_for_more(&self, events: u64) {
        let before = self.acknowledged();
        wait("more acknowledgements", || self.acknowledged() > before + events);
    }

    /// Ends it, and makes sure that each event was counted once.
    pub(crate) fn finish(self, mqtt: SocketAddr) {
        self.is_over.store(true, Ordering::Relaxed);
        let sent: Vec<Sent> = self.running.into_iter().map(|device| device.join().unwrap()).collect();
        let repeated: u64 = sent.iter().map(|sent| sent.repeated).sum();
        println!("{} events, {repeated} sent again", self.acknowledged.load(Ordering::Relaxed));
        let mut listener = Publisher::connect(mqtt);
        listener.subscribe("out/+");
        let mut last = Publisher::connect(mqtt);
        for device in &self.devices {
            last.publish(&format!("in/{device}"), &json!({"ts": WINDOW_BEGIN_MS + DAY_MS, "n": 0}).to_string());
        }
        let next = |_: &String| {
            let (topic, payload) = listener.next();
            (topic, serde_json::from_slice(&payload).unwrap())
        };
        let mut results: Vec<(String, Value)> = self.devices.iter().map(next).collect();
        results.sort_by(|(one, _), (other, _)| one.cmp(other));
        for ((device, Sent { events, total, .. }), (topic, result)) in self.devices.iter().zip(&sent).zip(&results) {
            assert_eq!(*topic, format!("out/{device}"));
            assert_eq!(*result, json!({"events": events, "total": total}), "{device} has sent {events}");
        }
    }
}

/// Numbers that look random, the same in each run.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn every_acknowledged_event_is_counted_once_however_often_the_server_is_killed() {
    let kills = kills(4);
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let start = || Server::start_at(folder.path(), mqtt, 1);
    let mut server = start();
    let load = Load::start(&server, 6);
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut replayed = 0;
    for kill in 0..kills {
        load.wait_for_more(200);
        if kill % 2 == 1 {
            // In the middle of the load; what comes behind it is replayed.
            server.sql_ok("CHECKPOINT");
        }
        thread::sleep(Duration::from_millis(random(&mut state) % 400));
        server.kill_9();
        server = start();
        wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
        let log = server.status()["log"].clone();
        assert_eq!((log["lost_events"].as_u64(), log["problem"].as_str()), (Some(0), None), "{log}");
        replayed += log["replayed_events"].as_u64().unwrap();
    }
    println!("{replayed} events replayed");
    assert!(replayed > 0, "what was acknowledged before a kill is replayed behind it");
    load.finish(mqtt);
}
