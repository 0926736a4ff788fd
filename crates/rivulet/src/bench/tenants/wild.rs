//! A tenant that does as much of everything as it can.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, lines, now_us, write_publish};

/// Messages that are written at once.
const AT_ONCE: u32 = 500;

/// Its queries; beyond its limit they are refused.
const QUERIES: u32 = 1_000;

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What the wild tenant did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// Messages that it could send.
    pub messages: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that were refused.
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
    /// The address of its statements, its token, and how many big queries it has.
    big: (String, String, u32),
}

impl Wild {
    /// Starts so many connections that publish, and as many that send requests; and so many big queries.
    pub(super) fn start(
        broker: SocketAddr,
        url: &str,
        token: &str,
        [connections, big_queries]: [u32; 2],
    ) -> Result<Self, String> {
        let big = (format!("{url}/api/v1/sql"), format!("Bearer {token}"), 0);
        let mut wild = Self { counts: Arc::default(), closers: Vec::new(), threads: Vec::new(), big };
        for number in 0..big_queries {
            wild.sql(&format!(
                "CREATE SOURCE bid{number} FROM 'nexmark:bid' WITH (rate => 0); CREATE SINK none{number} TO 'blackhole:'; \
                 CREATE QUERY big{number} AS SELECT auction, count(*) AS n FROM bid{number} \
                 GROUP BY auction, tumble(date_time, INTERVAL '1 second') INTO none{number}"
            ))?;
            wild.big.2 += 1;
        }
        for number in 0..connections {
            let client = Client::connect(broker, token, &format!("wild-{number}"))?;
            wild.closers.push(Box::new(client.closer()?));
            let counts = wild.counts.clone();
            wild.threads.push(thread::spawn(move || publish(client, &counts)));
            let (counts, url, token) = (wild.counts.clone(), url.to_owned(), format!("Bearer {token}"));
            wild.threads.push(thread::spawn(move || ask(number, &url, &token, &counts)));
        }
        Ok(wild)
    }

    fn sql(&self, script: &str) -> Result<(), String> {
        let (url, token, _) = &self.big;
        let answer = ureq::post(url).header("authorization", token).send(script);
        answer.map(drop).map_err(|error| format!("a statement of the wild tenant was refused: {error}"))
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
        for number in 0..std::mem::take(&mut self.big.2) {
            let _ = self.sql(&format!("DROP QUERY big{number}; DROP SINK none{number}; DROP SOURCE bid{number}"));
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

/// Submits queries in bulk, watches results, and asks for lists, one after the other.
fn ask(number: u32, url: &str, token: &str, counts: &Counts) {
    let agent =
        ureq::Agent::config_builder().timeout_global(Some(ANSWER_MAX)).http_status_as_error(false).build().new_agent();
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
