//! `rivulet bench relay`: Neptune's experiments, on one machine. Messages go from this process over relays back to it.
//! All relays are one server with running queries, and both ways are links.
//!
//! - [`report`]: what is done in a run, and what it has found; [`page`]: the same with plots;
//! - [`plain`]: plain sockets, which no relay can outdo, and links of a given rate.

mod report;
mod plain;
mod page;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use parking_lot::Mutex;
use rivulet_bench::{Circumstances, LatencyHistogram};
use rivulet_connectors::links::{Compression, Keep, Links, Outgoing, Receive, SendOptions, Target};
use rivulet_connectors::reach::AllowedHosts;
use rivulet_dataflow::{Batch, Element};

use super::process::{ServerProcess, free_port};
use super::received::{SCOPE, Streams, listen};
pub use page::html;
pub use plain::forward;
use plain::{ceiling, link_to};
pub use report::{Experiment, RelayReport, RelayRun, RelaySample, Setup};

/// The bytes of a message before its filling: its time, and its number.
const HEAD_BYTES: usize = 16;

/// The most messages of a batch of the sender.
const BATCH_ROWS_MAX: usize = 8_192;

/// How long nothing may come back while something is on its way.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// Milliseconds that the receiver takes for a message, one after the other.
const COSTS_MS: [u64; 7] = [0, 1, 2, 3, 2, 1, 0];

/// How often is looked how messages go.
const SAMPLE_PERIOD: Duration = Duration::from_millis(100);

/// So long after the receiver's time for a message has changed, senders should have the receiver's rate.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// What is measured.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// The experiments.
    pub experiments: Vec<Experiment>,
    /// The sizes of messages; if there is none, those of each experiment.
    pub message_bytes: Vec<usize>,
    /// The sizes of buffers, in KiB, 0 for each message by itself; if there is none, those of each experiment.
    pub buffer_kib: Vec<usize>,
    /// How long messages are sent in each run; in `n4`, at each time that the receiver takes.
    pub duration: Duration,
    /// The numbers of relays at once in `n6`.
    pub jobs: Vec<usize>,
    /// What the links of `n5` carry, in megabits a second.
    pub rate_mbit: u32,
}

/// Makes all runs; `progress` gets a line for each.
///
/// # Errors
/// The relay does not start, or messages come back changed, twice or in another order.
pub fn run_relay(options: &RelayOptions, mut progress: impl FnMut(&str)) -> Result<RelayReport, String> {
    let mut report = RelayReport { circumstances: Circumstances::now(), runs: Vec::new() };
    for setup in options.experiments.iter().flat_map(|&experiment| setups(experiment, options)) {
        progress(&format!("{} ...", setup.label()));
        report.runs.push(measure(setup, options.duration)?);
    }
    Ok(report)
}

/// The runs of an experiment.
fn setups(experiment: Experiment, options: &RelayOptions) -> Vec<Setup> {
    let (sizes, buffers): (&[usize], &[usize]) = match experiment {
        Experiment::N1 => (&[50, 100, 200, 400, 1_024, 10_240], &[16, 1_024]),
        Experiment::N2 | Experiment::N3 | Experiment::N6 => (&[50], &[1_024]),
        // What waits on the way is bounded in bytes: of small messages, a slow receiver would take minutes for it.
        Experiment::N4 => (&[10_240], &[16]),
        Experiment::N5 => (&[200], &[1_024]),
    };
    let sizes = if options.message_bytes.is_empty() { sizes } else { &options.message_bytes[..] };
    let buffers = if options.buffer_kib.is_empty() { buffers } else { &options.buffer_kib[..] };
    let mut setups = Vec::new();
    for (message_bytes, buffer_kib) in sizes.iter().flat_map(|size| buffers.iter().map(move |buffer| (*size, *buffer)))
    {
        let setup = Setup { experiment, message_bytes, buffer_kib, jobs: 1, ..Setup::default() };
        match experiment {
            Experiment::N1 | Experiment::N4 => setups.push(setup),
            Experiment::N2 | Experiment::N3 => {
                setups.extend([false, true].map(|is_individual| Setup { is_individual, ..setup }));
            }
            Experiment::N5 => {
                let setup = Setup { rate_mbit: Some(options.rate_mbit), ..setup };
                let cases = [(true, false), (true, true), (false, false), (false, true)];
                setups.extend(cases.map(|(is_debs, compresses)| Setup { is_debs, compresses, ..setup }));
            }
            Experiment::N6 => setups.extend(options.jobs.iter().map(|&jobs| Setup { jobs, ..setup })),
        }
    }
    setups
}

fn schema() -> SchemaRef {
    let field = |name, data_type| Field::new(name, data_type, false);
    Arc::new(Schema::new(vec![
        field("at", DataType::Int64),
        field("number", DataType::Int64),
        field("filling", DataType::Utf8),
    ]))
}

/// Texts of so many bytes: random ones cannot be compressed well; readings are lines like those of the DEBS 2012
/// challenge, whose powers and voltages change little, and its bits hardly ever.
fn fillings(bytes: usize, rows: usize, is_debs: bool) -> StringArray {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut filling = || {
        if !is_debs {
            return (0..bytes).map(|_| char::from(b'0' + random(64) as u8)).collect::<String>();
        }
        let powers = [13_000, 14_400, 8_100].map(|power| format!("{}\t", power + random(60))).concat();
        let voltages = [70, 190, 150].map(|voltage| format!("{:04}\t", voltage + random(5))).concat();
        let line = format!("{powers}{voltages}0000\t0000\t0000\t0000{}\n", "\t0\t0\t0\t1".repeat(11));
        line.chars().cycle().take(bytes).collect()
    };
    (0..rows).map(|_| Some(filling())).collect()
}

/// The messages of one relay: those that are sent, and those that come back.
struct Job {
    start: Instant,
    fillings: StringArray,
    streams: Arc<Streams>,
    sent: AtomicU64,
    came: AtomicU64,
    /// Milliseconds that each message takes that comes back.
    cost_ms: AtomicU64,
    /// Latencies since messages are counted.
    latencies: Mutex<LatencyHistogram>,
}

impl Job {
    fn new(start: Instant, fillings: StringArray) -> Self {
        let (sent, came, cost_ms) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let latencies = Mutex::new(LatencyHistogram::new());
        Self { start, fillings, streams: Arc::default(), sent, came, cost_ms, latencies }
    }

    /// The next messages, as many as there are fillings, sent now.
    fn messages(&self) -> Batch {
        let (at, rows) = (self.start.elapsed().as_micros() as i64, self.fillings.len());
        let from = self.sent.load(Ordering::Relaxed);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![at; rows])),
            Arc::new(Int64Array::from_iter_values((from..from + rows as u64).map(|number| number as i64))),
            Arc::new(self.fillings.clone()),
        ];
        let columns = RecordBatch::try_new(schema(), columns).expect("they have one length");
        Batch::new(vec![0; rows].into(), vec![at; rows].into(), vec![at; rows].into(), columns)
    }

    /// Takes messages one by one, and checks that they are the next, as they were sent.
    fn take(&self, columns: &RecordBatch) -> Result<(), String> {
        let mut now_us = self.start.elapsed().as_micros() as i64;
        let [at, numbers] = [0, 1].map(|column| columns.column(column).as_primitive::<Int64Type>().values());
        let texts = columns.column(2).as_string::<i32>();
        let mut latencies = self.latencies.lock();
        let before = self.came.load(Ordering::Relaxed);
        for (row, (at, number)) in at.iter().zip(numbers).enumerate() {
            let next = before + row as u64;
            if *number as u64 != next {
                return Err(format!("message {number} came where {next} was next"));
            }
            if texts.value(row) != self.fillings.value(next as usize % self.fillings.len()) {
                return Err(format!("message {number} has changed"));
            }
            latencies.record_us(now_us - at);
            self.came.store(next + 1, Ordering::Release);
            match self.cost_ms.load(Ordering::Relaxed) {
                0 => {}
                cost_ms => {
                    thread::sleep(Duration::from_millis(cost_ms));
                    now_us = self.start.elapsed().as_micros() as i64;
                }
            }
        }
        Ok(())
    }
}

/// Sends to each relay as much as it takes, until that is enough.
fn send_all(outgoing: &[Outgoing], jobs: &[Arc<Job>], is_enough: &AtomicBool) -> Result<(), String> {
    while !is_enough.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for (outgoing, job) in outgoing.iter().zip(jobs).filter(|(outgoing, _)| outgoing.has_room()) {
            outgoing.push(&Element::Batch(job.messages())).map_err(|error| error.to_string())?;
            job.sent.fetch_add(job.fillings.len() as u64, Ordering::Release);
            is_idle = false;
        }
        if is_idle {
            thread::sleep(Duration::from_micros(20));
        }
    }
    outgoing.iter().for_each(Outgoing::flush);
    Ok(())
}

/// Takes what comes back, until all of it has.
fn take_all(jobs: &[Arc<Job>], is_over: &AtomicBool) -> Result<(), String> {
    while !is_over.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for job in jobs {
            is_idle &= !job.streams.take(|batch| job.take(&batch.columns))?;
        }
        if is_idle {
            thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}

/// How many messages were sent and came back until when.
#[derive(Clone, Copy)]
struct Count {
    at: Instant,
    sent: u64,
    came: u64,
}

impl Count {
    fn of(jobs: &[Arc<Job>]) -> Self {
        let sent = jobs.iter().map(|job| job.sent.load(Ordering::Acquire)).sum();
        let came = jobs.iter().map(|job| job.came.load(Ordering::Acquire)).sum();
        Self { at: Instant::now(), sent, came }
    }

    /// What was seen since an earlier count, of a run that has begun at this time.
    fn since(&self, earlier: &Self, begun: Instant, cost_ms: u64, relay: &ServerProcess) -> RelaySample {
        let per_s = |count: u64| (count as f64 / (self.at - earlier.at).as_secs_f64().max(1e-6)).round();
        let (sent_per_s, came_per_s) = (per_s(self.sent - earlier.sent), per_s(self.came - earlier.came));
        RelaySample {
            at_s: (self.at - begun).as_secs_f64(),
            cost_ms,
            sent_per_s,
            came_per_s,
            is_settled: (sent_per_s - came_per_s).abs() <= came_per_s / 10.0,
            relay_rss_bytes: relay.rss_bytes(),
        }
    }
}

/// Waits for what is on its way, as long as something comes.
fn settle(jobs: &[Arc<Job>], is_broken: impl Fn() -> bool) {
    let (mut last, mut now) = (Count::of(jobs), Count::of(jobs));
    while now.came < now.sent && !is_broken() && now.at - last.at < SETTLE_MAX {
        thread::sleep(Duration::from_millis(1));
        now = Count::of(jobs);
        if now.came > last.came {
            last = now;
        }
    }
}

/// The allocations of a server so far; `None` if it does not count them.
fn allocations(server: &mut ServerProcess) -> Result<Option<u64>, String> {
    let metrics = server.get("/metrics")?;
    let count = metrics.lines().find_map(|line| line.strip_prefix("rivulet_memory_allocations_total "));
    Ok(count.and_then(|count| count.trim().parse().ok()))
}

fn measure(setup: Setup, duration: Duration) -> Result<RelayRun, String> {
    let ceiling_messages_per_s = ceiling(&setup, duration)?.round();
    let failed = |error: std::io::Error| error.to_string();
    let buffer_bytes = (setup.buffer_kib << 10).max(1);
    let rows = (buffer_bytes / (setup.message_bytes + 24)).clamp(1, BATCH_ROWS_MAX);
    let (rows, consume) = if setup.is_individual { (1, "1") } else { (rows, "all") };
    let (compression, named) = if setup.compresses { (Compression::Auto, "auto") } else { (Compression::None, "none") };
    let fillings = fillings(setup.message_bytes.saturating_sub(HEAD_BYTES), rows, setup.is_debs);
    let start = Instant::now();
    let jobs: Vec<Arc<Job>> = (0..setup.jobs).map(|_| Arc::new(Job::new(start, fillings.clone()))).collect();
    let links = Links::new("bench", None, None);
    for (number, job) in jobs.iter().enumerate() {
        let receiver: Arc<dyn Receive> = job.streams.clone();
        links.receive(SCOPE, &format!("down{number}"), &receiver)?;
    }
    let door = listen(&links)?;
    let address = free_port()?;
    let link = |address: SocketAddr| link_to(address, setup.rate_mbit).map_err(failed);
    let (up, down) = (link(address)?, link(door.address())?);
    let listens = address.to_string();
    let settings = [
        ("RIVULET_LINK_ADDRESS", listens.as_str()),
        ("RIVULET_HOSTS_ALLOW", "127.0.0.1"),
        ("RIVULET_SCHEDULER_CONSUME", consume),
    ];
    let mut relay = ServerProcess::start(&["serve"], None, &settings)?;
    let statements = |number: usize| {
        format!(
            "CREATE SOURCE up{number} (at BIGINT NOT NULL, number BIGINT NOT NULL, filling TEXT NOT NULL)
               FROM 'link:up{number}';
             CREATE SINK down{number} TO 'link:{down}/down{number}'
               WITH (compression => '{named}', buffer_bytes => {buffer_bytes}, delivery => 'none');
             CREATE QUERY relay{number} AS SELECT at, number, filling FROM up{number} INTO down{number};\n"
        )
    };
    relay.post("/api/v1/sql", (0..setup.jobs).map(statements).collect::<String>().as_bytes())?;
    let target = Target {
        scope: String::new(),
        host: up.ip().to_string(),
        port: up.port(),
        tls: None,
        token: None,
        reach: AllowedHosts::everything(),
    };
    let options = SendOptions { buffer_bytes, flush_us: 10_000, compression };
    let open = |number| links.send(target.clone(), format!("up{number}"), schema(), Keep::InMemory(options));
    let outgoing = (0..setup.jobs).map(open);
    let outgoing = outgoing.collect::<Result<Vec<Outgoing>, _>>().map_err(failed)?;
    let (is_enough, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut run = thread::scope(|scope| {
        let taker = scope.spawn(|| take_all(&jobs, &is_over));
        let sender = scope.spawn(|| send_all(&outgoing, &jobs, &is_enough));
        let is_broken = || taker.is_finished() || sender.is_finished();
        let observed = observe(setup, duration, &jobs, &outgoing, &mut relay, is_broken);
        is_enough.store(true, Ordering::Relaxed);
        let joined = |outcome: thread::Result<Result<(), String>>| {
            outcome.unwrap_or_else(|_| Err("a thread of the benchmark has failed".into()))
        };
        let sent = joined(sender.join());
        settle(&jobs, || taker.is_finished());
        is_over.store(true, Ordering::Relaxed);
        joined(taker.join()).and(sent).and(observed)
    })?;
    let mut latencies = LatencyHistogram::new();
    jobs.iter().for_each(|job| latencies.merge(&job.latencies.lock()));
    run.ceiling_messages_per_s = ceiling_messages_per_s;
    (run.latency_us_p50, run.latency_us_p99) = (latencies.percentile_us(50.0), latencies.percentile_us(99.0));
    let count = Count::of(&jobs);
    run.lost = count.sent.saturating_sub(count.came);
    Ok(run)
}

/// Looks how messages go for as long as is measured. What is known only at the end is missing.
fn observe(
    setup: Setup,
    duration: Duration,
    jobs: &[Arc<Job>],
    outgoing: &[Outgoing],
    relay: &mut ServerProcess,
    is_broken: impl Fn() -> bool,
) -> Result<RelayRun, String> {
    // What is made once is no part of what each message takes.
    let waits = Instant::now();
    while jobs.iter().any(|job| job.came.load(Ordering::Acquire) == 0) && !is_broken() {
        if waits.elapsed() > SETTLE_MAX {
            let problem = outgoing.iter().find_map(Outgoing::problem);
            return Err(problem.unwrap_or_else(|| "no message comes back from the relay".into()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(duration / 10);
    let allocated = allocations(relay)?;
    jobs.iter().for_each(|job| job.latencies.lock().clear());
    let (relay_rss_bytes, used, begun) = (relay.rss_bytes(), relay.usage(), Count::of(jobs));
    let (mut samples, mut steps, mut last) = (Vec::new(), Vec::new(), begun);
    let costs_ms: &[u64] = if setup.experiment == Experiment::N4 { &COSTS_MS } else { &[0] };
    for &cost_ms in costs_ms {
        jobs.iter().for_each(|job| job.cost_ms.store(cost_ms, Ordering::Relaxed));
        let (step, mut settled) = (last, last);
        while last.at - step.at < duration && !is_broken() {
            thread::sleep(SAMPLE_PERIOD.min(duration));
            let count = Count::of(jobs);
            samples.push(count.since(&last, begun.at, cost_ms, relay));
            if count.at - step.at <= SETTLED_AFTER.min(duration / 2) {
                settled = count;
            }
            last = count;
        }
        steps.push(last.since(&settled, begun.at, cost_ms, relay));
    }
    let used = relay.usage() - used;
    let allocated = allocations(relay)?.zip(allocated).map(|(now, before)| now - before);
    let relay_rss_bytes_max = samples.iter().map(|sample| sample.relay_rss_bytes).max().unwrap_or(0);
    let messages_per_s = last.since(&begun, begun.at, 0, relay).came_per_s;
    if setup.experiment != Experiment::N4 {
        (samples, steps) = (Vec::new(), Vec::new());
    }
    let messages = (last.came - begun.came).max(1) as f64;
    let per_million = |count: u64| (count as f64 * 1e6 / messages).round();
    Ok(RelayRun {
        setup,
        messages_per_s,
        allocations_per_message: allocated.map(|count| count as f64 / messages),
        context_switches_per_million: per_million(used.context_switches),
        voluntary_switches_per_million: per_million(used.context_switches.saturating_sub(used.involuntary_switches)),
        nonvoluntary_switches_per_million: per_million(used.involuntary_switches),
        relay_ns_per_message: (used.cpu_s * 1e9 / messages).round(),
        relay_rss_bytes,
        relay_rss_bytes_max,
        samples,
        steps,
        ..RelayRun::default()
    })
}
