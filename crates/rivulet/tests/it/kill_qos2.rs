//! Messages of QoS 2 for a durable input count once, however often the server is killed, even if all are equal and use
//! few packet identifiers: nothing but the state of the session tells one from a repeat of another.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kill::{DAY_MS, TOTALS, WINDOW_BEGIN_MS, kills, random};
use crate::server::{Publisher, Server, free_port, wait};

/// The packet identifiers of the sensor are those up to this one.
const IDENTIFIERS: u16 = 8;

/// How long the sensor waits for anything.
const PATIENCE: Duration = Duration::from_secs(300);

/// A client of version 3.1.1 that keeps its session and publishes equal messages.
struct Sensor {
    broker: SocketAddr,
    socket: Option<TcpStream>,
    read: Vec<u8>,
    /// The exchanges under way: the packet identifier, and whether the PUBREC has come.
    exchanges: VecDeque<(u16, bool)>,
    sent: u64,
    repeated: u64,
}

impl Sensor {
    fn publish(packet_id: u16, is_again: bool) -> Vec<u8> {
        let payload = json!({"ts": WINDOW_BEGIN_MS + 1, "n": 1}).to_string();
        let body = [&b"\x00\x09in/sensor"[..], &packet_id.to_be_bytes(), payload.as_bytes()].concat();
        [&[0x34 | u8::from(is_again) << 3, body.len() as u8][..], &body].concat()
    }

    fn release(packet_id: u16) -> [u8; 4] {
        let [high, low] = packet_id.to_be_bytes();
        [0x62, 2, high, low]
    }

    fn connect(&mut self) -> std::io::Result<()> {
        let mut socket = TcpStream::connect(self.broker)?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        socket.set_nodelay(true)?;
        let mut packets = b"\x10\x12\x00\x04MQTT\x04\x00\x00\x00\x00\x06sensor".to_vec();
        for &(packet_id, is_received) in &self.exchanges {
            match is_received {
                true => packets.extend(Self::release(packet_id)),
                false => packets.extend(Self::publish(packet_id, true)),
            }
            self.repeated += 1;
        }
        socket.write_all(&packets)?;
        self.read.clear();
        self.socket = Some(socket);
        Ok(())
    }

    fn send(&mut self, packet: &[u8]) {
        if self.socket.as_mut().is_some_and(|socket| socket.write_all(packet).is_err()) {
            self.socket = None;
        }
    }

    /// Reads what has come, and answers it. Returns how many messages are complete with it.
    fn receive(&mut self) -> u64 {
        if self.socket.is_none() && self.connect().is_err() {
            thread::sleep(Duration::from_millis(10));
            return 0;
        }
        let Some(socket) = &mut self.socket else { return 0 };
        let mut bytes = [0; 4096];
        match socket.read(&mut bytes) {
            Ok(count) if count > 0 => self.read.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => self.socket = None,
        }
        let mut completed = 0;
        while self.read.len() >= 4 {
            let packet: Vec<u8> = self.read.drain(..4).collect();
            let packet_id = u16::from_be_bytes([packet[2], packet[3]]);
            match packet[0] {
                0x20 => assert_eq!(packet[3], 0, "it is let in"),
                0x50 => {
                    let exchange = self.exchanges.iter_mut().find(|(id, _)| *id == packet_id);
                    exchange.expect("a PUBREC is for a message").1 = true;
                    self.send(&Self::release(packet_id));
                }
                0x70 => {
                    let place = self.exchanges.iter().position(|exchange| *exchange == (packet_id, true));
                    self.exchanges.remove(place.expect("a PUBCOMP is for a PUBREL"));
                    completed += 1;
                }
                other => panic!("{other:#x} came"),
            }
        }
        completed
    }

    /// Publishes until told to stop, and then until all is complete.
    fn run(&mut self, is_over: &AtomicBool, completed: &AtomicU64) {
        let mut last = Instant::now();
        loop {
            let is_over = is_over.load(Ordering::Relaxed);
            if is_over && self.exchanges.is_empty() {
                return;
            }
            let is_free = |id: &u16| !self.exchanges.iter().any(|(used, _)| used == id);
            if !is_over
                && self.socket.is_some()
                && let Some(packet_id) = (1..=IDENTIFIERS).find(is_free)
            {
                self.sent += 1;
                self.exchanges.push_back((packet_id, false));
                self.send(&Self::publish(packet_id, false));
                if self.exchanges.len() < usize::from(IDENTIFIERS) {
                    continue;
                }
            }
            let count = self.receive();
            if count > 0 {
                completed.fetch_add(count, Ordering::Relaxed);
                last = Instant::now();
            }
            assert!(last.elapsed() < PATIENCE, "the sensor waits: {:?}", self.exchanges);
        }
    }
}

#[test]
fn equal_messages_of_qos_2_count_once_each_however_often_the_server_is_killed() {
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let start = || Server::start_at(folder.path(), mqtt, 1);
    let mut server = start();
    server.sql_ok(TOTALS);
    server.sql_ok("CREATE QUERY sensor FROM APPLICATION totals WITH (device => 'sensor')");
    let (is_over, completed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let sensor = {
        let (is_over, completed) = (is_over.clone(), completed.clone());
        thread::spawn(move || {
            let (socket, read, exchanges) = (None, Vec::new(), VecDeque::new());
            let mut sensor = Sensor { broker: mqtt, socket, read, exchanges, sent: 0, repeated: 0 };
            sensor.run(&is_over, &completed);
            (sensor.sent, sensor.repeated)
        })
    };
    let mut state = 0x2545_f491_4f6c_dd1d;
    for _ in 0..kills(6) {
        let before = completed.load(Ordering::Relaxed);
        wait("more complete messages", || completed.load(Ordering::Relaxed) > before + 100);
        thread::sleep(Duration::from_millis(random(&mut state) % 200));
        server.kill_9();
        server = start();
        wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
    }
    is_over.store(true, Ordering::Relaxed);
    let (sent, repeated) = sensor.join().unwrap();
    println!("{sent} messages, {repeated} packets sent again");
    assert!(repeated > 0);
    let mut listener = Publisher::connect(mqtt);
    listener.subscribe("out/sensor");
    Publisher::connect(mqtt).publish("in/sensor", &json!({"ts": WINDOW_BEGIN_MS + DAY_MS, "n": 0}).to_string());
    let (_, payload) = listener.next();
    assert_eq!(serde_json::from_slice::<Value>(&payload).unwrap(), json!({"events": sent, "total": sent}));
}
