//! `rivulet bench many`: how many small queries this machine carries.
//!
//! The step test of the MIST and Pluto papers: submit N queries, give each a Poisson stream of one event a second, and measure
//! the latency from an event's creation in the generator to the end of its processing. N grows until the median passes
//! 100 ms or the 99th percentile passes 1 s; the last N that did not is the capacity. Generator and engine share the
//! machine.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use rivulet_bench::generator::handle::GeneratorHandle;
use rivulet_bench::workload::{Distribution, Workload, WorkloadOptions};
use serde_json::{Value, json};

use super::process::ServerProcess;

/// What is measured.
#[derive(Clone, Debug)]
pub struct ManyOptions {
    /// One step with so many queries; without it steps until the limit is found.
    pub queries: Option<u32>,
    /// How long events are sent in each step.
    pub duration: Duration,
    /// Events a second for each query, in the mean.
    pub rate_per_query: f64,
    /// Base applications; the default four without.
    pub applications: Vec<String>,
    /// Copies of each base application.
    pub copies: u32,
    /// How queries are spread over applications.
    pub distribution: Distribution,
    /// Everything random comes from this.
    pub seed: u64,
    /// A real broker between generator and engine.
    pub external_broker: Option<SocketAddr>,
}

/// The limits of the step test, in microseconds.
const P50_MAX_US: u64 = 100_000;
const P99_MAX_US: u64 = 1_000_000;
/// The first step of the search, in queries.
const FIRST_STEP: u32 = 50_000;
/// The search ends when the capacity is known to this fraction.
const PRECISION: f64 = 0.1;
/// The search ends at so many queries in any case.
const QUERIES_MAX: u32 = 16_000_000;
/// Lines in one bulk request: its answers fit into the buffers of a connection, so that a client which first writes and then
/// reads does not wait for a server that does the same.
const LINES_PER_REQUEST: u64 = 20_000;
/// How long subscriptions may take to reach the generator, and the last events the engine.
const SUBSCRIBE_MAX: Duration = Duration::from_secs(30);
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How long the engine is left alone before its idle memory is read.
const SETTLE: Duration = Duration::from_secs(5);

/// One step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// Queries submitted.
    pub queries: u32,
    /// Queries submitted a second.
    pub submit_per_s: f64,
    /// Resident memory of the engine with all queries and no event yet.
    pub rss_idle_bytes: u64,
    /// Resident memory of the engine at the end.
    pub rss_bytes: u64,
    /// Resident memory at the end above that of an engine with the applications and no queries, for each query.
    pub bytes_per_query: f64,
    /// The same before the first event.
    pub bytes_per_query_idle: f64,
    /// Events the generator sent.
    pub events_sent: u64,
    /// Events the engine processed.
    pub events_processed: u64,
    /// Events that were counted as dropped: lost by the generator or a broker, unrouted, or refused by a full inbox.
    pub events_dropped: u64,
    /// Rows that did not fit, were late, and so on; they are processed events.
    pub rows_refused: u64,
    /// Results the engine emitted.
    pub results: u64,
    /// Mean events in a batch.
    pub batch_events_mean: f64,
    /// From creation in the generator to the end of processing.
    pub latency_us: [Option<u64>; 4],
    /// How far behind its schedule the generator was, 99th percentile.
    pub generator_lateness_us_p99: u64,
    /// CPU time of the engine while events were sent.
    pub engine_cpu_s: f64,
    /// CPU time of the generator meanwhile.
    pub generator_cpu_s: f64,
    /// How long events were sent and processed.
    pub elapsed_s: f64,
}

impl StepReport {
    /// Whether the latencies are within the limits and every event is accounted for.
    pub fn is_sustained(&self) -> bool {
        let within = |value: Option<u64>, max: u64| value.is_some_and(|value| value <= max);
        within(self.latency_us[0], P50_MAX_US) && within(self.latency_us[2], P99_MAX_US) && self.is_accounted()
    }

    /// Whether sent = processed + dropped.
    pub fn is_accounted(&self) -> bool {
        self.events_sent == self.events_processed + self.events_dropped
    }

    fn to_json(&self) -> Value {
        json!({
            "queries": self.queries,
            "is_sustained": self.is_sustained(),
            "is_accounted": self.is_accounted(),
            "submit_per_s": self.submit_per_s.round(),
            "rss_idle_bytes": self.rss_idle_bytes,
            "rss_bytes": self.rss_bytes,
            "bytes_per_query": self.bytes_per_query.round(),
            "bytes_per_query_idle": self.bytes_per_query_idle.round(),
            "events_sent": self.events_sent,
            "events_processed": self.events_processed,
            "events_dropped": self.events_dropped,
            "rows_refused": self.rows_refused,
            "results": self.results,
            "batch_events_mean": self.batch_events_mean,
            "latency_us_p50": self.latency_us[0],
            "latency_us_p95": self.latency_us[1],
            "latency_us_p99": self.latency_us[2],
            "latency_us_max": self.latency_us[3],
            "generator_lateness_us_p99": self.generator_lateness_us_p99,
            "engine_cpu_s": self.engine_cpu_s,
            "generator_cpu_s": self.generator_cpu_s,
            "engine_us_per_event": self.engine_cpu_s * 1e6 / self.events_processed.max(1) as f64,
            "elapsed_s": self.elapsed_s,
        })
    }
}

/// All steps.
#[derive(Clone, Debug, Default)]
pub struct ManyReport {
    /// In the order in which they were made.
    pub steps: Vec<StepReport>,
}

impl ManyReport {
    /// The largest step that was sustained.
    pub fn best(&self) -> Option<&StepReport> {
        self.steps.iter().filter(|step| step.is_sustained()).max_by_key(|step| step.queries)
    }

    /// The report as one JSON object: the figures of the best step (of the last, if none was sustained), and all steps.
    pub fn to_json(&self) -> Value {
        let shown = self.best().or(self.steps.last());
        let mut report = shown.map_or_else(|| json!({}), StepReport::to_json);
        report["queries_capacity"] = json!(self.best().map_or(0, |step| step.queries));
        report["steps"] = json!(self.steps.iter().map(StepReport::to_json).collect::<Vec<_>>());
        report
    }
}

/// Runs the test; `progress` is told what is going on, line by line.
///
/// # Errors
/// In words: a process that does not start, or does not do what it is told.
pub fn run_many(options: &ManyOptions, mut progress: impl FnMut(&str)) -> Result<ManyReport, String> {
    let mut report = ManyReport::default();
    let mut step = |report: &mut ManyReport, queries: u32| -> Result<bool, String> {
        progress(&format!("{queries} queries for {} s ...", options.duration.as_secs_f64()));
        let done = run_step(options, queries, &mut progress)?;
        progress(&format!(
            "{queries} queries: p50 {} us, p99 {} us, engine {:.1} s CPU: {}",
            done.latency_us[0].unwrap_or(0),
            done.latency_us[2].unwrap_or(0),
            done.engine_cpu_s,
            if done.is_sustained() { "sustained" } else { "not sustained" },
        ));
        let is_sustained = done.is_sustained();
        report.steps.push(done);
        Ok(is_sustained)
    };
    if let Some(queries) = options.queries {
        step(&mut report, queries)?;
        return Ok(report);
    }
    let (mut good, mut bad) = (0, None);
    let mut next = FIRST_STEP;
    loop {
        if step(&mut report, next)? {
            good = next;
        } else {
            bad = Some(next);
        }
        next = match bad {
            None if good >= QUERIES_MAX => break,
            None => good * 2,
            Some(bad) if f64::from(bad - good) <= f64::from(bad) * PRECISION => break,
            Some(bad) => good + (bad - good) / 2,
        };
    }
    Ok(report)
}

fn run_step(options: &ManyOptions, queries: u32, progress: &mut impl FnMut(&str)) -> Result<StepReport, String> {
    let workload_options = WorkloadOptions {
        applications: options.applications.clone(),
        copies: options.copies,
        distribution: options.distribution,
        seed: options.seed,
    };
    let workload = Workload::new(workload_options.clone()).map_err(|error| error.to_string())?;
    let mut generator = start_generator(options.external_broker)?;
    let broker =
        options.external_broker.or(generator.address()).ok_or("the generator does not say where it listens")?;
    let server = ServerProcess::start(broker)?;
    for application in workload.applications() {
        server.post("/api/v1/applications", application.statement.as_bytes())?;
    }
    let rss_empty_bytes = server.rss_bytes();
    let begun = Instant::now();
    submit(&server, &workload, u64::from(queries))?;
    let submit_per_s = f64::from(queries) / begun.elapsed().as_secs_f64();
    progress(&format!("  submitted at {submit_per_s:.0} queries a second"));
    generator.prepare(queries, workload_options).map_err(|error| error.to_string())?;
    generator.wait_for_subscriptions(SUBSCRIBE_MAX).map_err(|error| error.to_string())?;
    std::thread::sleep(SETTLE);
    let rss_idle_bytes = server.rss_bytes();

    let (engine_cpu_before_s, started) = (server.cpu_s(), Instant::now());
    generator.start(options.rate_per_query, options.duration, 1.0).map_err(|error| error.to_string())?;
    // A generator that falls behind ends later; its lateness is in the report, and in the latencies.
    let sent = generator.finish(options.duration * 3 + DRAIN_MAX).map_err(|error| error.to_string())?;
    let lost = sent.events_unrouted + sent.events_lost;
    let mut status = server.status()?;
    let deadline = Instant::now() + DRAIN_MAX;
    while processed(&status) + dropped(&status) + lost < sent.events_sent && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        status = server.status()?;
    }
    let total = &status["total"];
    let latency = |name: &str| total["end_to_end"][name].as_u64();
    let rss_bytes = server.rss_bytes();
    let per_query = |bytes: u64| bytes.saturating_sub(rss_empty_bytes) as f64 / f64::from(queries.max(1));
    Ok(StepReport {
        queries,
        submit_per_s,
        rss_idle_bytes,
        rss_bytes,
        bytes_per_query: per_query(rss_bytes),
        bytes_per_query_idle: per_query(rss_idle_bytes),
        events_sent: sent.events_sent,
        events_processed: processed(&status),
        events_dropped: dropped(&status) + lost,
        rows_refused: refused(total, |reason| reason != "overflow"),
        results: total["results"].as_u64().unwrap_or(0),
        batch_events_mean: total["batch_rows_mean"].as_f64().unwrap_or(0.0),
        latency_us: [latency("p50_us"), latency("p95_us"), latency("p99_us"), latency("max_us")],
        generator_lateness_us_p99: sent.lateness_us_p99,
        engine_cpu_s: server.cpu_s() - engine_cpu_before_s,
        generator_cpu_s: sent.cpu_s.unwrap_or(0.0),
        elapsed_s: started.elapsed().as_secs_f64(),
    })
}

fn start_generator(external_broker: Option<SocketAddr>) -> Result<GeneratorHandle, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(["bench", "generator"]);
    if let Some(broker) = external_broker {
        command.args(["--broker", &broker.to_string()]);
    }
    GeneratorHandle::spawn(command).map_err(|error| error.to_string())
}

fn submit(server: &ServerProcess, workload: &Workload, queries: u64) -> Result<(), String> {
    let mut body = Vec::new();
    for first in (0..queries).step_by(LINES_PER_REQUEST as usize) {
        body.clear();
        for number in first..queries.min(first + LINES_PER_REQUEST) {
            workload.write_query_line(number, &mut body);
        }
        let answers = server.post("/api/v1/queries/bulk", &body)?;
        if let Some(refused) = answers.lines().find(|line| line.contains("\"error\"")) {
            return Err(format!("a query was refused: {refused}"));
        }
    }
    Ok(())
}

fn processed(status: &Value) -> u64 {
    status["total"]["events"].as_u64().unwrap_or(0)
}

/// Events that reached the engine and were counted as dropped.
fn dropped(status: &Value) -> u64 {
    status["messages_unrouted"].as_u64().unwrap_or(0) + refused(&status["total"], |reason| reason == "overflow")
}

fn refused(total: &Value, of: impl Fn(&str) -> bool) -> u64 {
    let Some(reasons) = total["refused"].as_object() else { return 0 };
    reasons.iter().filter(|(reason, _)| of(reason)).filter_map(|(_, count)| count.as_u64()).sum()
}

/// The report as a table for people.
pub fn table(report: &ManyReport) -> String {
    use std::fmt::Write;
    let mut text = format!(
        "{:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8} {:>10} {:>9} {:>10}\n",
        "queries",
        "sustained",
        "p50 ms",
        "p99 ms",
        "max ms",
        "engine",
        "gener.",
        "batch",
        "us/event",
        "B/query",
        "submit/s"
    );
    for step in &report.steps {
        let ms = |us: Option<u64>| us.map_or_else(|| "-".into(), |us| format!("{:.2}", us as f64 / 1e3));
        let _ = writeln!(
            text,
            "{:>9} {:>10} {:>10} {:>10} {:>10} {:>7.1}s {:>7.1}s {:>8.1} {:>10.2} {:>9.0} {:>10.0}",
            step.queries,
            if step.is_sustained() { "yes" } else { "no" },
            ms(step.latency_us[0]),
            ms(step.latency_us[2]),
            ms(step.latency_us[3]),
            step.engine_cpu_s,
            step.generator_cpu_s,
            step.batch_events_mean,
            step.engine_cpu_s * 1e6 / step.events_processed.max(1) as f64,
            step.bytes_per_query,
            step.submit_per_s,
        );
        if !step.is_accounted() {
            let _ = writeln!(
                text,
                "          not accounted for: {} sent, {} processed, {} dropped",
                step.events_sent, step.events_processed, step.events_dropped
            );
        }
    }
    match report.best() {
        Some(best) if report.steps.len() == 1 => {
            let _ = writeln!(text, "{} queries are sustained; one step says nothing of the limit", best.queries);
        }
        Some(best) => {
            let _ = writeln!(text, "capacity: {} queries at p50 <= 100 ms and p99 <= 1 s", best.queries);
        }
        None => text.push_str("no step was sustained\n"),
    }
    text
}
