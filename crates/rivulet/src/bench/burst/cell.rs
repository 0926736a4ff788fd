//! A query under measurement: a server of its own, burst workers, and its results, which come to this process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow::row::{RowConverter, SortField};
use rivulet_bench::LatencyHistogram;
use rivulet_bench::nexmark::Query;
use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::links::{Links, Listener, Receive};
use rivulet_dataflow::{Batch, Clock};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::limit::Limit;
use super::report::{Baseline, WORKER_CORES};
use crate::bench::process::{ServerProcess, free_port};
use crate::bench::received::{SCOPE, Streams, listen};
use crate::bench::streams::Apart;
use crate::bench::usage::Meter;

const WORKERS: [&str; 2] = ["one", "two"];

/// The event time of the first event, 2015-07-15, in microseconds since the epoch.
const BASE_US: i64 = 1_436_918_400_000_000;

/// By so much the rate is higher within a burst, as the shapes of generators have it by default.
const FACTOR: u64 = 5;

/// The length of a run, in lengths of a burst; the burst is the second.
pub(super) const PARTS: u64 = 4;

/// How long anything may take that is waited for.
const STEP_MAX: Duration = Duration::from_secs(600);

/// How often is looked for results. What lies in between is a part of the latency.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// The events of a query.
#[derive(Clone, Copy)]
pub(super) struct Feed {
    /// Events a second, by event time, without a burst.
    pub(super) rate: u64,
    /// Seconds without a burst, and with one; twice as many follow without one. The seconds of windows.
    pub(super) part_s: u64,
    /// Without a burst there is no end.
    pub(super) has_burst: bool,
    /// Whether they come by the clock.
    pub(super) is_paced: bool,
}

impl Feed {
    /// The length of all of it.
    pub(super) fn total_s(&self) -> u64 {
        PARTS * self.part_s
    }

    fn sources(&self, query: &Query) -> String {
        let Self { rate, part_s, .. } = self;
        let events = rate * part_s * (PARTS - 1 + FACTOR);
        let lengths = ["period", "length"].map(|what| format!("shape_{what} => '{part_s} seconds', ")).concat();
        let shape = match self.has_burst {
            true => format!("events => {events}, shape => 'burst', {lengths}"),
            false => String::new(),
        };
        let paced = if self.is_paced { *rate } else { 0 };
        // Of fewer events than 50 some partitions would never have a person, and hold up all windows.
        let block = (rate / 1_000).max(50);
        // Sources that are polled for every event would use most of the time for that; so events come 10 ms together.
        let source = |stream: &&str| {
            format!(
                "CREATE SOURCE {stream} FROM 'nexmark:{stream}' WITH ({shape}event_rate => {rate}, rate => {paced}, \
                 burst => '10 ms', block => {block}, lateness => INTERVAL '0 seconds');\n"
            )
        };
        query.streams.iter().map(source).collect()
    }
}

/// What has come of a query.
pub(super) struct Seen {
    begun_us: i64,
    /// Rows, and the sum of their hashes: the same for the same rows in any order.
    pub(super) rows: (u64, u64),
    /// The longest latency of what was due in each second, in microseconds.
    pub(super) latest_us: Vec<i64>,
    /// The latencies of rows.
    pub(super) latencies: LatencyHistogram,
}

impl Seen {
    fn new(begun_us: i64, seconds: u64) -> Self {
        let latest_us = vec![0; usize::try_from(seconds).unwrap_or_default()];
        Self { begun_us, rows: (0, 0), latest_us, latencies: LatencyHistogram::new() }
    }

    /// Notes rows that came now. Each was due when the event of its time was, or the last one of its window.
    fn note(&mut self, batch: &Batch) -> Result<(), String> {
        let (columns, now_us) = (batch.columns.columns(), SystemClock.now_us());
        let fields = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let rows = RowConverter::new(fields).and_then(|converter| converter.convert_columns(columns));
        let rows = rows.map_err(|error| error.to_string())?;
        for (row, time_us) in rows.iter().zip(batch.event_time_us.iter()) {
            self.rows = (self.rows.0 + 1, self.rows.1.wrapping_add(xxh3_64(row.as_ref())));
            let due_us = time_us - BASE_US;
            if let Some(latest_us) = self.latest_us.get_mut((due_us / 1_000_000).max(0) as usize) {
                let latency_us = now_us - self.begun_us - due_us;
                *latest_us = latency_us.max(*latest_us);
                self.latencies.record_us(latency_us);
            }
        }
        Ok(())
    }
}

/// What is redirected in a run, as the statements name it, one after the other, from the lines of EXPLAIN about stages.
fn redirected<'l>(baseline: Baseline, lines: impl Iterator<Item = &'l str>) -> Vec<String> {
    let has_state = |line: &str| line.contains("with its state");
    let is_chosen = |line: &&str| match baseline {
        // As the first map operators of the paper, sources and what is computed beside them stay.
        Baseline::Lambda => !line.contains(": source "),
        Baseline::All => !line.contains(": does not pay"),
        _ => false,
    };
    let goes = |line: &&str| line.trim().starts_with("stage ") && !line.contains(" stays: ");
    let mut chosen: Vec<&str> = lines.filter(goes).filter(is_chosen).collect();
    if baseline == Baseline::All {
        // What takes no state along is gone at once, and leaves room for the rest.
        chosen.sort_by_key(|line| has_state(line));
    }
    let numbers = chosen.into_iter().filter_map(|line| line.split_once(" (")?.1.split(['-', ',', ':']).next());
    let chosen: Vec<String> = numbers.map(str::to_owned).collect();
    if chosen.is_empty() { vec!["ALL".into()] } else { chosen }
}

/// A query at work. Dropping it ends its processes.
pub(super) struct Cell {
    server: ServerProcess,
    /// Whoever clears them ends them.
    pub(super) workers: Vec<Apart>,
    /// Behind the processes, so that it is empty when it is removed.
    server_limit: Option<Limit>,
    workers_limit: Option<Limit>,
    select: String,
    /// How often it was replaced: with the same text it just goes on.
    version: usize,
    /// The door of the server.
    link: SocketAddr,
    _links: (Links, Listener),
    taker: Option<JoinHandle<Result<Seen, String>>>,
    /// Behind the server, which waits at its end for what it has sent to be taken: as long as this is there, it is.
    is_taking: Option<Arc<()>>,
    /// When its creation was asked for: its sources began soon after.
    pub(super) begun: Instant,
}

impl Cell {
    /// Starts a query, and then leaves its server so many cores.
    pub(super) fn start(
        query: &Query,
        feed: Feed,
        is_burst: bool,
        instances: usize,
        cores: Option<f64>,
    ) -> Result<Self, String> {
        let (links, streams) = (Links::new("bench", None, None), Arc::<Streams>::default());
        links.receive(SCOPE, "results", &(streams.clone() as Arc<dyn Receive>))?;
        let (door, link) = (listen(&links)?, free_port()?);
        let (listens, instances) = (link.to_string(), instances.to_string());
        let settings = [
            ("RIVULET_LINK_ADDRESS", listens.as_str()),
            ("RIVULET_HOSTS_ALLOW", "127.0.0.1"),
            ("RIVULET_LOG_LEVEL", "error"),
            ("RIVULET_BURST_INSTANCES", &instances),
            // None within a run: the systems of the paper make none.
            ("RIVULET_CHECKPOINT_INTERVAL_S", "3600"),
        ];
        let mut server = ServerProcess::start(&["serve"], None, &settings)?;
        let text = |text: &str| text.replace("{window}", &feed.part_s.to_string());
        let (sources, views, select) = (feed.sources(query), text(query.views()), text(query.select()));
        let sink = format!("CREATE SINK results TO 'link:{}/results'", door.address());
        let script = format!("{sources}{sink} WITH (delivery => 'none', compression => 'none');\n{views}");
        server.post("/api/v1/sql", script.as_bytes())?;
        let (is_taking, begun) = (Arc::new(()), Instant::now());
        let seen = Seen::new(SystemClock.now_us(), feed.total_s());
        let taker = std::thread::spawn({
            let is_taking = Arc::downgrade(&is_taking);
            move || take(&streams, seen, &is_taking)
        });
        let statement = format!("CREATE QUERY q AS {select} INTO results WITH (burst => {is_burst})");
        let created = server.post("/api/v1/sql", statement.as_bytes());
        let server_limit = cores.and_then(|cores| Limit::new("server", cores).ok());
        let cell = Self {
            server,
            workers: Vec::new(),
            server_limit,
            workers_limit: Limit::new("workers", WORKER_CORES).ok(),
            select,
            version: 0,
            link,
            _links: (links, door),
            taker: Some(taker),
            is_taking: Some(is_taking),
            begun,
        };
        created?;
        cell.server_limit.as_ref().map_or(Ok(()), |limit| limit.add(cell.server.id()))?;
        Ok(cell)
    }

    /// Processor time that the server has used in this time from now on, in cores.
    pub(super) fn cores(&mut self, time: Duration) -> f64 {
        let (used, begun) = (self.server.usage(), Instant::now());
        std::thread::sleep(time);
        (self.server.usage() - used).cpu_s / begun.elapsed().as_secs_f64()
    }

    /// Processor time that the server and the workers have used, in seconds.
    pub(super) fn used_s(&mut self) -> [f64; 2] {
        let workers = self.workers.iter().map(|worker| Meter::new(worker.0.id()).read().cpu_s).sum();
        [self.server.usage().cpu_s, workers]
    }

    /// How far the time of the results is behind that of the events that are due.
    pub(super) fn behind(&mut self) -> Result<Duration, String> {
        let query = &self.server.status()?["big_queries"][0];
        let reached_us = query["watermark_us"].as_i64().map_or(0, |us| us - BASE_US).max(0);
        Ok(self.begun.elapsed().saturating_sub(Duration::from_micros(reached_us as u64)))
    }

    /// Starts the burst workers, and waits until the server knows them.
    pub(super) fn start_workers(&mut self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot start a burst worker: {error}");
        for name in WORKERS {
            let mut command = Command::new(std::env::current_exe().map_err(failed)?);
            // One that has nothing to do for as long as anything may take ends, so that nobody waits for it.
            let waits = ["--idle-s", "600", "--connect", &self.link.to_string()];
            command.args(["burst-worker", "--threads", "1", "--name", name]).args(waits);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            self.workers.push(Apart(command.spawn().map_err(failed)?));
        }
        for worker in &mut self.workers {
            self.workers_limit.as_ref().map_or(Ok(()), |limit| limit.add(worker.0.id()))?;
            let lines = worker.0.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
            if !lines.map_while(Result::ok).any(|line| line.starts_with("connected to")) {
                return Err("a burst worker has ended".into());
            }
        }
        Ok(())
    }

    /// Runs a statement, and returns its message, or its rows as lines.
    fn statement(&mut self, statement: &str) -> Result<String, String> {
        let answer = self.server.post("/api/v1/sql", statement.as_bytes())?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| format!("{statement}: {error}"))?;
        let result = &answer["results"][0];
        let rows = result["rows"].as_array().into_iter().flatten().filter_map(|row| row[0].as_str());
        Ok(result["message"].as_str().into_iter().chain(rows).collect::<Vec<_>>().join("\n"))
    }

    /// What is redirected in a run.
    pub(super) fn redirected(&mut self, baseline: Baseline) -> Result<Vec<String>, String> {
        let plan = self.statement("EXPLAIN QUERY q")?;
        Ok(redirected(baseline, plan.lines()))
    }

    /// Sends operators to the workers: stopped from a checkpoint before if they migrate. Returns how long that took,
    /// and what the server said, be it why not.
    pub(super) fn send(&mut self, migrates: bool, operators: &[String]) -> (Duration, Vec<String>) {
        let (begun, mut said) = (Instant::now(), Vec::new());
        if migrates {
            said.push(self.restart().unwrap_or_else(|why| why));
        }
        for operator in operators {
            said.push(self.statement(&format!("ALTER QUERY q REDIRECT {operator} TO BURST")).unwrap_or_else(|why| why));
        }
        (begun.elapsed(), said)
    }

    /// Brings all of it home, in the same way.
    pub(super) fn bring_back(&mut self, migrates: bool) -> Result<String, String> {
        if migrates { self.restart() } else { self.statement("ALTER QUERY q REDIRECT ALL BACK") }
    }

    /// Stops the query from a checkpoint, and starts it there, with all its tasks on the server.
    fn restart(&mut self) -> Result<String, String> {
        let fuse = if self.version.is_multiple_of(2) { ", fuse => 'auto'" } else { "" };
        let Self { select, .. } = &*self;
        let statement = format!("CREATE OR REPLACE QUERY q AS {select} INTO results WITH (burst => true{fuse})");
        let said = self.statement(&statement)?;
        // The same text again would replace nothing.
        self.version += 1;
        Ok(said)
    }

    /// Lets the server have all cores, waits for the end of the query, and returns what has come of it.
    pub(super) fn finish(mut self) -> Result<Seen, String> {
        self.server_limit.as_ref().map_or(Ok(()), |limit| limit.set(None))?;
        let deadline = Instant::now() + STEP_MAX;
        loop {
            let query = &self.server.status()?["big_queries"][0];
            match query["state"].as_str() {
                Some("ended") => break,
                state if state == Some("failed") || Instant::now() >= deadline => {
                    return Err(format!("the query has not ended, and is {}: {}", query["state"], query["reason"]));
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        self.is_taking = None;
        let seen = self.taker.take().and_then(|taker| taker.join().ok());
        seen.unwrap_or_else(|| Err("the thread that takes results has failed".into()))
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // It ends sooner. A limit that cannot be lifted makes that longer.
        let _ = self.server_limit.as_ref().map(|limit| limit.set(None));
    }
}

/// Takes what comes, until that is over and all of it has come.
fn take(streams: &Streams, mut seen: Seen, is_taking: &Weak<()>) -> Result<Seen, String> {
    loop {
        let was_over = is_taking.strong_count() == 0;
        if !streams.take(|batch| seen.note(batch))? {
            if was_over {
                return Ok(seen);
            }
            std::thread::sleep(LOOK_PERIOD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_redirected_depends_on_the_baseline() {
        let plan = "bursts
  stage 1 (1-3: source bid > project > window) in 8 tasks goes with its source, by merging; 1 ns: pays
  stage 2 (4: window) in 8 tasks goes with its state; what a row costs is not known yet
  stage 3 (5-6: project > window) in 8 tasks goes by merging; what a row costs is not known yet
  stage 4 (7: window) in 8 tasks stays: operator 7 looks rows up
  stage 5 (8-10: join > project > sink) in 8 tasks could go with its state; 1 ns: does not pay";
        assert_eq!(redirected(Baseline::R1, plan.lines()), ["ALL"]);
        assert_eq!(redirected(Baseline::Lambda, plan.lines()), ["4", "5", "8"]);
        assert_eq!(redirected(Baseline::All, plan.lines()), ["1", "5", "4"]);
        assert_eq!(redirected(Baseline::Lambda, plan.lines().take(2)), ["ALL"]);
    }
}
