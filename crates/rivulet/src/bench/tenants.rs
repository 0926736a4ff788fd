//! `rivulet bench tenants`: what a tenant that goes wild costs another one.
//!
//! Two tenants of one server publish through its embedded broker to applications of their own. The quiet one sends
//! events at an even rate, first alone; then beside the wild one, which does as much as it can of one kind of thing
//! after the other ([`Kind`]), over its quotas. Each is done several times. Latency is from the intended time of an
//! event to the receipt of its result. All clients are in this process, and share the machine.

mod client;
mod wild;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rivulet_bench::{Circumstances, LatencyHistogram, LatencySummary};
use serde_json::{Value, json};

use super::load::submit_lines;
use super::process::{EMBEDDED_ADDRESS, ServerProcess, free_port};
use super::setting::setting;
use crate::times::duration;
use client::{Client, lines, now_us};
pub use wild::Kind;
use wild::{Deeds, Wild};

/// How long results may take to come once all events are sent.
const REST_MAX: Duration = Duration::from_secs(60);

/// How long events are sent before anything is measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// Limits of the wild tenant.
const LIMITS: &str = "queries => 100, applications => 5, big_queries => 3, streams => 5, requests_per_second => 20, \
                      events_per_second => 1000, bytes_per_second => 100000, bytes_out_per_second => 100000, \
                      file_bytes => 4294967296";

/// What is measured.
#[derive(Clone, Debug, Args)]
pub struct TenantOptions {
    /// Queries of the quiet tenant
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub queries: u32,
    /// Events a second of the quiet tenant, all queries together
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
    /// How long events are sent each time
    #[arg(long, default_value = "20s", value_parser = duration)]
    pub duration: Duration,
    /// How often each is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// What the wild tenant does, one kind after the other: it publishes, submits and watches queries, runs big queries
    /// over a generator that gives as much as is taken, connects and subscribes, replaces reference tables, or writes
    /// files
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS", default_values_t = Kind::value_variants().iter().copied())]
    pub wild: Vec<Kind>,
    /// How often it does that at a time: its connections, or its big queries, of which one writes files. The limits
    /// have to allow as many
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub wild_width: u32,
    /// Limits of the wild tenant, as in CREATE TENANT wild WITH (...); empty for none
    #[arg(long, default_value = LIMITS)]
    pub limits: String,
    /// Configuration of the server that is measured, for example workers=1
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub settings: Vec<(String, String)>,
}

/// What the quiet tenant saw, alone or beside the wild one.
#[derive(Clone, Debug)]
pub struct TenantRow {
    /// What the wild tenant did meanwhile, and how much of it; `None` if there was none.
    pub wild: Option<(Kind, Deeds)>,
    /// Events that the quiet tenant sent.
    pub events: u64,
    /// Of these, events without a result.
    pub lost: u64,
    /// The latencies of its results.
    pub latency: LatencySummary,
}

/// The outcome, or why it came to no end.
#[derive(Clone, Debug)]
pub struct TenantReport {
    /// Where and when.
    pub circumstances: Circumstances,
    /// Alone, and beside the wild one for each kind.
    pub rows: Result<Vec<TenantRow>, String>,
}

impl TenantReport {
    /// The 99th percentile of a row, as a multiple of that alone.
    pub fn ratio(&self, row: &TenantRow) -> Option<f64> {
        let alone = self.rows.as_ref().ok()?.first()?;
        (alone.latency.us_p99 > 0).then(|| row.latency.us_p99 as f64 / alone.latency.us_p99 as f64)
    }

    /// The report as one JSON object.
    pub fn to_json(&self) -> Value {
        let row = |row: &TenantRow| {
            let TenantRow { wild, events, lost, latency } = row;
            json!({
                "wild": wild.as_ref().map(|(kind, _)| kind.to_string()),
                "deeds": wild.as_ref().map(|(_, deeds)| deeds.to_json()),
                "events": events,
                "lost": lost,
                "latency_us_p50": latency.us_p50,
                "latency_us_p99": latency.us_p99,
                "latency_us_max": latency.us_max,
                "p99_ratio": self.ratio(row),
            })
        };
        let outcome = match &self.rows {
            Ok(rows) => json!(rows.iter().map(row).collect::<Vec<_>>()),
            Err(error) => json!([{ "error": error }]),
        };
        json!({ "circumstances": self.circumstances, "rows": outcome })
    }
}

/// Runs the measurement; `progress` is told what is going on. What fails is in the report.
pub fn run_tenants(options: &TenantOptions, mut progress: impl FnMut(&str)) -> TenantReport {
    TenantReport { circumstances: Circumstances::now(), rows: measure(options, &mut progress) }
}

/// The application of a tenant, which passes events on.
fn application(tenant: &str) -> String {
    format!(
        "CREATE APPLICATION pass (home TEXT) INPUT readings (ts BIGINT, v DOUBLE)
         FROM 'mqtt:{tenant}/in/{{home}}' FORMAT JSON
         OUTPUT 'mqtt:{tenant}/out/{{home}}' FORMAT JSON AS SELECT ts, v FROM readings WHERE v >= 0"
    )
}

fn measure(options: &TenantOptions, progress: &mut impl FnMut(&str)) -> Result<Vec<TenantRow>, String> {
    let broker = free_port()?;
    let address = broker.to_string();
    let mut settings = vec![(EMBEDDED_ADDRESS, address.as_str())];
    settings.extend(options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let mut server = ServerProcess::start(&["serve"], None, &settings)?;
    let limits = match options.limits.as_str() {
        "" => String::new(),
        limits => format!("WITH ({limits})"),
    };
    server.post(
        "/api/v1/sql",
        format!(
            "CREATE TENANT quiet; CREATE TENANT wild {limits}; CREATE USER admin ADMIN; CREATE USER quiet.boss ADMIN; \
             CREATE USER wild.boss ADMIN"
        )
        .as_bytes(),
    )?;
    // The last one closes the doors.
    let [quiet, wild, admin] = {
        let mut token = |user: &str| {
            let answer = server.post("/api/v1/sql", format!("CREATE TOKEN FOR {user}").as_bytes())?;
            let answer: Value = serde_json::from_str(&answer).map_err(|error| format!("a token: {error}"))?;
            let token = answer["results"][0]["rows"][0][0].as_str().map(str::to_owned);
            token.ok_or_else(|| format!("no token: {answer}"))
        };
        [token("quiet.boss")?, token("wild.boss")?, token("admin")?]
    };
    for (token, tenant) in [(&wild, "wild"), (&quiet, "quiet")] {
        server.log_in(token);
        server.post("/api/v1/sql", application(tenant).as_bytes())?;
    }
    submit_lines(&mut server, lines(options.queries).as_bytes())?;
    progress("the quiet tenant warms up ...");
    let once = TenantOptions { duration: WARM_UP, ..options.clone() };
    let _ = send(&once, broker, &quiet)?;
    let mut alone = Measured::default();
    // What the wild tenant could send stays in the buffers of the system, and is read for long after it has gone: so
    // all that is measured alone comes first.
    for round in 1..=options.rounds {
        progress(&format!("round {round} of {}: the quiet tenant alone ...", options.rounds));
        alone.add(&send(options, broker, &quiet)?);
    }
    let mut rows = vec![alone.row(None)];
    for &kind in &options.wild {
        let (mut beside, mut deeds) = (Measured::default(), Deeds::default());
        for round in 1..=options.rounds {
            progress(&format!("round {round} of {}: beside a tenant wild with {kind} ...", options.rounds));
            let wild = Wild::start(kind, options.wild_width, broker, &server.url(), &wild)?;
            // It has used up what its buckets held.
            thread::sleep(WARM_UP);
            beside.add(&send(options, broker, &quiet)?);
            deeds.add(&wild.stop());
        }
        rows.push(beside.row(Some((kind, deeds))));
    }
    server.log_in(&admin);
    server.get("/health/ready")?;
    Ok(rows)
}

#[derive(Default)]
struct Measured {
    sent: u64,
    latencies: LatencyHistogram,
}

impl Measured {
    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.latencies.merge(&other.latencies);
    }

    fn row(self, wild: Option<(Kind, Deeds)>) -> TenantRow {
        let latency = self.latencies.summary();
        TenantRow { wild, events: self.sent, lost: self.sent.saturating_sub(latency.count), latency }
    }
}

/// The quiet tenant sends its events, evenly over time and queries, and waits for their results.
fn send(options: &TenantOptions, broker: SocketAddr, token: &str) -> Result<Measured, String> {
    let mut results = Client::connect(broker, token, "quiet-results")?;
    results.subscribe("quiet/out/+")?;
    let mut sender = Client::connect(broker, token, "quiet-events")?;
    let all = (u64::from(options.rate) * options.duration.as_millis() as u64 / 1_000).max(1);
    let received = thread::spawn(move || {
        let (mut latencies, mut last) = (LatencyHistogram::new(), Instant::now());
        while latencies.count() < all && last.elapsed() < REST_MAX {
            results.receive(REST_MAX, |payload| {
                if let Some(ts) = client::time_of(payload) {
                    latencies.record_us(now_us() - ts);
                    last = Instant::now();
                }
            })?;
        }
        Ok::<_, String>(latencies)
    });
    let (begun, begun_us) = (Instant::now(), now_us());
    let mut packets = Vec::new();
    let mut sent = 0;
    while sent < all {
        let due = (begun.elapsed().as_micros() as u64 * u64::from(options.rate) / 1_000_000).min(all);
        packets.clear();
        while sent < due {
            // The time at which it was to be sent, whenever it is.
            let ts = begun_us + (sent * 1_000_000 / u64::from(options.rate)) as i64;
            let home = sent % u64::from(options.queries);
            client::write_publish(&mut packets, &format!("quiet/in/{home}"), &format!("{{\"ts\":{ts},\"v\":1.5}}"));
            sent += 1;
        }
        sender.send(&packets)?;
        thread::sleep(Duration::from_millis(1));
    }
    let latencies = received.join().map_err(|_| "the receiver of results failed".to_owned())??;
    Ok(Measured { sent, latencies })
}
