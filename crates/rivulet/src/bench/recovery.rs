//! `rivulet bench recovery`: how long a server that was killed takes until it works again.
//!
//! A server gets state, saves it when asked, and is killed as the loss of power would. It is started on what is left,
//! while events come; the time until it has processed the first of them is what a user waits. Small queries with an
//! event each, and one big query with a window that stays open, are measured on servers of their own.

use std::time::{Duration, Instant};

use clap::Args;
use rivulet_bench::workload::{Workload, WorkloadOptions};
use rivulet_connectors::mqtt::codec::Qos;
use serde::Serialize;
use serde_json::Value;

use super::load::{dropped, processed, register, start_generator, submit};
use super::process::ServerProcess;
use super::report::Report;
use super::setting::setting;

/// How long small queries get their events before they are saved, of which each has about one a second.
const FILL: Duration = Duration::from_secs(5);
/// So many bids for each key: all but some hundredths of the keys come up.
const BIDS_PER_KEY: u64 = 3;
/// How long anything may take.
const STEP_MAX: Duration = Duration::from_secs(300);
/// How often is looked whether something has come about.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// What is measured.
#[derive(Clone, Debug, Args)]
pub struct RecoveryOptions {
    /// How many small queries; 0 for none
    #[arg(long, default_value_t = 1_000_000)]
    pub queries: u32,
    /// How many keys the window of a big query has; 0 for no such query
    #[arg(long, default_value_t = 10_000_000)]
    pub keys: u64,
    /// Configuration of the server that is measured, for example checkpoint.folder=/mnt/other
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub settings: Vec<(String, String)>,
}

/// What one server took.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryRow {
    /// What had state.
    pub what: String,
    /// Bytes of state that a restart reads.
    pub state_bytes: u64,
    /// How long the checkpoint took, while nothing else was asked.
    pub checkpoint_ms: u64,
    /// From the start of the process until it said that it is ready.
    pub ready_s: f64,
    /// And until it had processed an event.
    pub working_s: f64,
}

/// Runs the measurement; `progress` is told what is going on. What fails is in the report.
pub fn run_recovery(options: &RecoveryOptions, mut progress: impl FnMut(&str)) -> Report<RecoveryRow> {
    let mut report = Report::begin(None);
    if options.queries > 0 {
        report.rows.push(small_queries(options, &mut progress));
    }
    if options.keys > 0 {
        report.rows.push(big_query(options, &mut progress));
    }
    report
}

fn small_queries(options: &RecoveryOptions, progress: &mut impl FnMut(&str)) -> Result<RecoveryRow, String> {
    let of_generator = |error: rivulet_bench::generator::handle::HandleError| error.to_string();
    let workload_options = WorkloadOptions::default();
    let workload = Workload::new(workload_options.clone()).map_err(|error| error.to_string())?;
    let mut generator = start_generator(None, false, Qos::AtMostOnce, &[])?;
    let mut server = start(options, generator.address())?;
    progress(&format!("{} small queries ...", options.queries));
    register(&mut server, &workload)?;
    submit(&mut server, &workload, u64::from(options.queries))?;
    generator.prepare(options.queries, workload_options).map_err(of_generator)?;
    generator.wait_for_subscriptions(STEP_MAX).map_err(of_generator)?;
    generator.start(1.0, FILL, 1.0).map_err(of_generator)?;
    let sent = generator.finish(STEP_MAX).map_err(of_generator)?.events_sent;
    wait_for("the events", || {
        let status = server.status()?;
        Ok(processed(&status) + dropped(&status) >= sent)
    })?;
    let saved = save(&mut server, progress)?;
    generator.start(1.0, STEP_MAX, 1.0).map_err(of_generator)?;
    let begun = Instant::now();
    let ready = server.kill_and_start()?;
    wait_for("an event after the restart", || Ok(processed(&server.status()?) > 0))?;
    let working = begun.elapsed();
    let recovered = server.status()?["checkpoints"]["recovered"]["queries"].as_u64().unwrap_or(0);
    generator.stop().map_err(of_generator)?;
    let what = format!("{} small queries, {recovered} of them with state", options.queries);
    Ok(saved.row(what, ready, working))
}

fn big_query(options: &RecoveryOptions, progress: &mut impl FnMut(&str)) -> Result<RecoveryRow, String> {
    let mut server = start(options, None)?;
    progress(&format!("a window of {} keys ...", options.keys));
    // Without an end, and slowly enough by event time that the window stays open. What a bid has together is as good as
    // random.
    let script = format!(
        "CREATE SOURCE bid FROM 'nexmark:bid' WITH (event_rate => 1000000, lateness => INTERVAL '0 seconds');
         CREATE VIEW keyed AS
         SELECT (price * 31 + bidder * 7919 + auction) % {} AS k, price, date_time FROM bid;
         CREATE SINK nowhere TO 'blackhole:';
         CREATE QUERY bids_of_the_day AS
         SELECT k, count(*) AS bids, max(price) AS highest, min(date_time) AS first_bid, window_end
         FROM TABLE(TUMBLE(TABLE keyed, DESCRIPTOR(date_time), INTERVAL '1' DAY))
         GROUP BY k, window_start, window_end INTO nowhere;",
        options.keys
    );
    server.post("/api/v1/sql", script.as_bytes())?;
    wait_for("the rows of the window", || Ok(rows_in(&server.status()?)? >= options.keys * BIDS_PER_KEY))?;
    let in_memory = server.status()?["big_queries"][0]["state_bytes"].as_u64().unwrap_or(0);
    let saved = save(&mut server, progress)?;
    let begun = Instant::now();
    let ready = server.kill_and_start()?;
    let at_first = rows_in(&server.status()?)?;
    wait_for("a row after the restart", || Ok(rows_in(&server.status()?)? > at_first))?;
    let what = format!("a window of {} keys, {} MB in memory", options.keys, in_memory / 1_000_000);
    Ok(saved.row(what, ready, begun.elapsed()))
}

/// A checkpoint that was made.
struct Saved {
    state_bytes: u64,
    checkpoint_ms: u64,
}

impl Saved {
    fn row(self, what: String, ready: Duration, working: Duration) -> RecoveryRow {
        let Self { state_bytes, checkpoint_ms } = self;
        RecoveryRow { what, state_bytes, checkpoint_ms, ready_s: ready.as_secs_f64(), working_s: working.as_secs_f64() }
    }
}

/// A server that saves only when asked, so that it is known what a restart finds.
fn start(options: &RecoveryOptions, broker: Option<std::net::SocketAddr>) -> Result<ServerProcess, String> {
    let mut settings = vec![("RIVULET_CHECKPOINT_INTERVAL_S", "0")];
    settings.extend(options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    ServerProcess::start(&["serve"], broker, &settings)
}

fn save(server: &mut ServerProcess, progress: &mut impl FnMut(&str)) -> Result<Saved, String> {
    let answer = server.post("/api/v1/checkpoint", b"")?;
    let answer: Value = serde_json::from_str(&answer).map_err(|error| format!("a checkpoint's answer: {error}"))?;
    let number = |name: &str| answer[name].as_u64().unwrap_or(0);
    let saved = Saved { state_bytes: number("live_bytes"), checkpoint_ms: number("duration_ms") };
    progress(&format!("  saved {} MB in {} ms; killing it", saved.state_bytes / 1_000_000, saved.checkpoint_ms));
    Ok(saved)
}

/// The rows that the only big query has read.
fn rows_in(status: &Value) -> Result<u64, String> {
    let query = &status["big_queries"][0];
    match query["reason"].as_str() {
        Some(reason) => Err(format!("the query does not run: {reason}")),
        None => Ok(query["rows_in"].as_u64().unwrap_or(0)),
    }
}

fn wait_for(what: &str, mut has_come: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let deadline = Instant::now() + STEP_MAX;
    while !has_come()? {
        if Instant::now() >= deadline {
            return Err(format!("{what} did not come within {} s", STEP_MAX.as_secs()));
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    Ok(())
}
