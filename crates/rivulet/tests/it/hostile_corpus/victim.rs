//! A tenant that works all the time: a device that publishes numbers, a client that receives results, and a live
//! stream. Each number must give one result of each query that has it, in order.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::super::callers::Mqtt;
use super::{ANSWER_MAX, MARK, Site};

/// What the queries read, one each.
pub(super) const INPUTS: [&str; 4] = ["a", "b", "c", "d"];

/// The most numbers that are published.
const ROUNDS_MAX: u64 = 100_000;

/// What is published behind the last number.
const LAST: i64 = -1;

/// See the module.
pub(super) struct Victim {
    is_over: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Victim {
    /// Begins to work.
    pub(super) fn start(site: &Site, owner: &str, device: &str) -> Self {
        let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (mut reader, code) = Mqtt::connect(site.mqtt, 5, owner, "reader", None);
        assert_eq!((code, reader.subscribe(["victim/out/#", "victim/big"])), (0, [0, 0]));
        let stream = watch(site, owner);
        let (mut sender, code) = Mqtt::connect(site.mqtt, 5, device, "device", None);
        assert_eq!(code, 0);
        let (until, counted) = (is_over.clone(), rounds.clone());
        let publish = move || {
            let mut send = |number: i64| {
                for input in INPUTS {
                    let code = sender.publish(&format!("victim/device/{input}"), &format!("{{\"n\":{number}}}"));
                    assert!(code < 0x80, "{number} was refused: {code:#x}");
                }
            };
            while !until.load(Ordering::Relaxed) {
                let number = counted.load(Ordering::Relaxed);
                assert!(number < ROUNDS_MAX, "nobody ends it");
                send(number as i64);
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(3));
            }
            send(LAST);
        };
        let threads = vec![
            std::thread::spawn(publish),
            std::thread::spawn(move || receive(&mut reader)),
            std::thread::spawn(move || follow(stream)),
        ];
        Self { is_over, rounds, threads }
    }

    /// How many numbers each input has had so far.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Ends it when all results have come; how many numbers each input had before the last.
    pub(super) fn finish(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("the other tenant worked");
        }
        self.rounds.load(Ordering::Relaxed)
    }
}

/// Checks that results count up, until the last one.
#[derive(Default)]
struct Counting {
    next: i64,
    is_over: bool,
}

impl Counting {
    fn take(&mut self, from: &str, text: &str) {
        let result: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{from}: {error}: {text}"));
        assert_eq!(result["mark"], MARK, "{from}: {text}");
        let number = result["n"].as_i64().expect("a number");
        assert!(!self.is_over, "{from}: {number} came behind the last");
        self.is_over = number == LAST;
        assert!(self.is_over || number == self.next, "{from}: {number} and not {}", self.next);
        self.next += 1;
    }
}

/// Receives the results of all queries, to the last of each.
fn receive(reader: &mut Mqtt) {
    let mut seen: BTreeMap<String, Counting> = BTreeMap::new();
    while seen.values().filter(|one| one.is_over).count() < INPUTS.len() + 1 {
        let (topic, payload) = reader.next();
        seen.entry(topic.clone()).or_default().take(&topic, &payload);
    }
}

/// The live results of a query; it is watched when this returns.
fn watch(site: &Site, owner: &str) -> impl BufRead + use<> {
    let mut stream = TcpStream::connect(site.server.http).expect("a connection");
    stream.set_read_timeout(Some(ANSWER_MAX)).expect("a timeout");
    let head =
        format!("GET /api/v1/queries/q0/results HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {owner}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("a request");
    let mut lines = BufReader::new(stream);
    let mut first = String::new();
    lines.read_line(&mut first).expect("a line");
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    lines
}

fn follow(stream: impl BufRead) {
    let mut seen = Counting::default();
    for line in stream.lines() {
        let line = line.expect("a line of live results");
        assert!(!line.starts_with("event: lost") && !line.starts_with("event: end"), "{line}");
        if let Some(result) = line.strip_prefix("data:").map(str::trim).filter(|result| result.starts_with('{')) {
            seen.take("live results", result);
        }
        if seen.is_over {
            return;
        }
    }
    panic!("the live results have ended");
}
