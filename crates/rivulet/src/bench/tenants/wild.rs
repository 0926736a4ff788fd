//! A tenant that does as much of everything as it can.

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::client::{Client, lines, now_us, write_publish};

/// Messages that are written at once.
const AT_ONCE: u32 = 500;

/// Its queries; beyond its limit they are refused.
const QUERIES: u32 = 1_000;

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How often a statement over the rate of requests is tried, and the pause before it is tried again.
const TRIES: u32 = 600;
const PAUSE: Duration = Duration::from_millis(100);

/// Rows of a reference table.
const TABLE_ROWS: u32 = 2_000;

/// What the wild tenant does. Events come last, because what follows them would be measured beside what they left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// It submits queries in bulk, lists them, and opens streams of their results that it does not read.
    Queries,
    /// It runs big queries that compute all the time.
    BigQueries,
    /// It connects, subscribes and goes.
    Sessions,
    /// It replaces reference tables.
    Tables,
    /// It runs a big query that writes to a file all the time.
    Files,
    /// It publishes as fast as its connections take it. What it sent is read for long after it has gone.
    Events,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no kind is hidden").get_name())
    }
}

/// What the wild tenant did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// Messages that it could send.
    pub messages: u64,
    /// Requests that were answered, and connections.
    pub requests: u64,
    /// Requests and connections that were refused.
    pub refused: u64,
}

impl Deeds {
    pub(super) fn to_json(&self) -> Value {
        let Self { messages, requests, refused } = self;
        json!({ "messages": messages, "requests": requests, "refused": refused })
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.requests += other.requests;
        self.refused += other.refused;
    }
}

#[derive(Default)]
struct Counts {
    is_over: AtomicBool,
    messages: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
}

/// The wild tenant, until it is stopped.
pub(super) struct Wild {
    counts: Arc<Counts>,
    closers: Vec<Box<dyn FnOnce() + Send>>,
    threads: Vec<JoinHandle<()>>,
    /// The address of its statements, and its token.
    statements: (String, String),
    /// What ends its big queries.
    drops: Vec<String>,
}

impl Wild {
    /// Starts so many of a kind.
    pub(super) fn start(kind: Kind, width: u32, broker: SocketAddr, url: &str, token: &str) -> Result<Self, String> {
        let statements = (format!("{url}/api/v1/sql"), format!("Bearer {token}"));
        let (counts, closers, threads, drops) = (Arc::default(), Vec::new(), Vec::new(), Vec::new());
        let mut wild = Self { counts, closers, threads, statements, drops };
        for number in 0..width {
            let counts = wild.counts.clone();
            let (url, bearer) = (url.to_owned(), wild.statements.1.clone());
            match kind {
                Kind::Events => {
                    let client = Client::connect(broker, token, &format!("wild-{number}"))?;
                    wild.closers.push(Box::new(client.closer()?));
                    wild.threads.push(thread::spawn(move || publish(client, &counts)));
                }
                Kind::Queries => wild.threads.push(thread::spawn(move || ask(number, &url, &bearer, &counts))),
                Kind::Tables => wild.threads.push(thread::spawn(move || replace_table(number, &url, &bearer, &counts))),
                Kind::Sessions => {
                    let token = token.to_owned();
                    wild.threads.push(thread::spawn(move || connect(number, broker, &token, &counts)));
                }
                Kind::BigQueries => wild.compute(
                    number,
                    "'blackhole:'",
                    "SELECT auction, count(*) AS n FROM bid GROUP BY auction, tumble(date_time, INTERVAL '1 second')",
                )?,
                Kind::Files if number == 0 => {
                    wild.compute(number, "'file:out.jsonl' FORMAT JSON", "SELECT auction, price FROM bid")?
                }
                Kind::Files => {}
            }
        }
        Ok(wild)
    }

    /// Runs a big query over a generator that gives as much as is taken.
    fn compute(&mut self, number: u32, sink: &str, select: &str) -> Result<(), String> {
        let select = select.replace("bid", &format!("bid{number}"));
        self.drops.push(format!(
            "DROP QUERY IF EXISTS big{number}; DROP SINK IF EXISTS out{number}; DROP SOURCE IF EXISTS bid{number}"
        ));
        self.sql(&format!(
            "CREATE SOURCE bid{number} FROM 'nexmark:bid' WITH (rate => 0); \
             CREATE SINK out{number} TO {sink}; CREATE QUERY big{number} AS {select} INTO out{number}"
        ))
    }

    /// Runs a script, which the rate of requests may refuse for some time.
    fn sql(&self, script: &str) -> Result<(), String> {
        let (url, token) = &self.statements;
        for _ in 0..TRIES {
            match ureq::post(url).header("authorization", token).send(script) {
                Err(ureq::Error::StatusCode(429)) => thread::sleep(PAUSE),
                answer => {
                    return answer
                        .map(drop)
                        .map_err(|error| format!("a statement of the wild tenant was refused: {error}"));
                }
            }
        }
        Err("statements of the wild tenant are over its rate of requests".into())
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> Deeds {
        self.end();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { messages, requests, refused, .. } = &*self.counts;
        Deeds { messages: of(messages), requests: of(requests), refused: of(refused) }
    }

    fn end(&mut self) {
        self.counts.is_over.store(true, Ordering::Release);
        // Who waits until it is read waits no longer.
        self.closers.drain(..).for_each(|close| close());
        for drops in std::mem::take(&mut self.drops) {
            let _ = self.sql(&drops);
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Wild {
    fn drop(&mut self) {
        self.end();
    }
}

fn publish(mut client: Client, counts: &Counts) {
    let mut packets = Vec::new();
    while !counts.is_over.load(Ordering::Acquire) {
        packets.clear();
        for number in 0..AT_ONCE {
            let topic = format!("wild/in/{}", number % QUERIES);
            write_publish(&mut packets, &topic, &format!("{{\"ts\":{},\"v\":1.5}}", now_us()));
        }
        if client.send(&packets).is_err() {
            return;
        }
        counts.messages.fetch_add(AT_ONCE.into(), Ordering::Relaxed);
    }
}

/// What sends requests, of which some are refused.
fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().timeout_global(Some(ANSWER_MAX)).http_status_as_error(false).build().new_agent()
}

/// Submits queries in bulk, watches results, and asks for lists, one after the other.
fn ask(number: u32, url: &str, token: &str, counts: &Counts) {
    let agent = agent();
    let mut streams = Vec::new();
    let mut turn = u64::from(number);
    while !counts.is_over.load(Ordering::Acquire) {
        turn += 1;
        let answer = match turn % 3 {
            0 => agent.post(format!("{url}/api/v1/queries/bulk")).header("authorization", token).send(lines(QUERIES)),
            1 => agent.get(format!("{url}/api/v1/queries")).header("authorization", token).call(),
            _ => {
                agent.get(format!("{url}/api/v1/queries/q{}/results", turn % 10)).header("authorization", token).call()
            }
        };
        let Ok(mut answer) = answer else { continue };
        let count = if answer.status().is_success() { &counts.requests } else { &counts.refused };
        count.fetch_add(1, Ordering::Relaxed);
        if turn % 3 == 2 && answer.status().is_success() {
            // It stays open, and nobody reads it.
            streams.push(answer);
            continue;
        }
        let mut body = Vec::new();
        let _ = answer.body_mut().as_reader().read_to_end(&mut body);
    }
}

/// Connects, subscribes and goes, again and again.
fn connect(number: u32, broker: SocketAddr, token: &str, counts: &Counts) {
    while !counts.is_over.load(Ordering::Acquire) {
        let connected = Client::connect(broker, token, &format!("wild-{number}"));
        let done = connected.and_then(|mut client| client.subscribe("wild/out/+"));
        let count = if done.is_ok() { &counts.requests } else { &counts.refused };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Replaces a reference table, again and again.
fn replace_table(number: u32, url: &str, token: &str, counts: &Counts) {
    let agent = agent();
    let rows: String = (0..TABLE_ROWS).map(|row| format!("{row},{row}.5%0A")).collect();
    let statement = format!(
        "CREATE OR REPLACE TABLE t{number} (k TEXT NOT NULL, v DOUBLE) FROM 'data:,k,v%0A{rows}' \
         FORMAT CSV (header => true)"
    );
    while !counts.is_over.load(Ordering::Acquire) {
        let answer = agent.post(format!("{url}/api/v1/sql")).header("authorization", token).send(&statement);
        let is_done = answer.is_ok_and(|answer| answer.status().is_success());
        let count = if is_done { &counts.requests } else { &counts.refused };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
