//! What a run of the test found, for people and machines.

use std::collections::BTreeMap;
use std::fmt::Write;

use rivulet_bench::Circumstances;
use serde_json::{Value, json};

use crate::bench::Usage;

use super::options::{P50_MAX_US, P99_MAX_US, Variant};

/// One step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    /// Queries submitted.
    pub queries: u32,
    /// Why the step came to no end; the other figures are none then.
    pub failure: Option<String>,
    /// Applications, and how long it took to register them.
    pub applications: usize,
    /// In seconds.
    pub register_s: f64,
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
    /// Events the generator made.
    pub events_sent: u64,
    /// Events the engine processed; of a topic that all queries share, those whose result reached the generator.
    pub events_processed: u64,
    /// Events that were counted as dropped: lost by the generator or a broker, unrouted, or refused by a full inbox.
    pub events_dropped: u64,
    /// Rows that did not fit, were late, and so on; they are processed events.
    pub rows_refused: u64,
    /// Results the engine emitted.
    pub results: u64,
    /// Results that reached the generator.
    pub results_received: u64,
    /// Where results repeat the time of their event: from creation to the receipt of the result, median and 99th
    /// percentile.
    pub result_latency_us: [Option<u64>; 2],
    /// Mean events in a batch.
    pub batch_events_mean: f64,
    /// From creation in the generator to the end of processing: median, 95th and 99th percentile, maximum. Of a topic
    /// that all queries share, to the receipt of the result; of applications with several inputs alone, from the
    /// arrival.
    pub latency_us: [Option<u64>; 4],
    /// How far behind its schedule the generator was, 99th percentile.
    pub generator_lateness_us_p99: u64,
    /// CPU time of the engine while events were sent.
    pub engine_cpu_s: f64,
    /// CPU time of the generator meanwhile.
    pub generator_cpu_s: f64,
    /// How long events were sent and processed.
    pub elapsed_s: f64,
    /// How many events had been processed within so many microseconds of their creation, in all, ascending.
    pub latency_distribution: Vec<(u64, u64)>,
    /// The part of the engine's CPU time (of 1) in each stage of the way of an event, if that was sampled.
    pub stages: Option<Vec<(&'static str, f64)>>,
    /// What the engine used while events were sent.
    pub usage: Usage,
}

impl StepReport {
    /// A step that came to no end.
    pub(super) fn failed(queries: u32, reason: String) -> Self {
        Self { queries, failure: Some(reason), ..Self::default() }
    }

    /// Why the step came to no end, in one line.
    pub(super) fn failure_line(&self) -> Option<String> {
        Some(self.failure.as_ref()?.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Whether the latencies are within the limits, and every event was processed.
    pub fn is_sustained(&self) -> bool {
        let within = |value: Option<u64>, max: u64| value.is_some_and(|value| value <= max);
        self.failure.is_none()
            && within(self.latency_us[0], P50_MAX_US)
            && within(self.latency_us[2], P99_MAX_US)
            && self.is_accounted()
            && self.events_dropped == 0
    }

    /// Whether sent = processed + dropped.
    pub fn is_accounted(&self) -> bool {
        self.events_sent == self.events_processed + self.events_dropped
    }

    /// Which part of the events (of 1) was processed within how many microseconds, where that is known: at the buckets
    /// of the server's metrics, and at the percentiles that it gives. Ascending.
    pub fn latency_points(&self) -> Vec<(u64, f64)> {
        let all = self.events_processed.max(1) as f64;
        let buckets = self.latency_distribution.iter().map(|&(us, count)| (us, (count as f64 / all).min(1.0)));
        let percentiles = self.latency_us.into_iter().zip([0.5, 0.95, 0.99, 1.0]);
        let mut points: Vec<(u64, f64)> =
            buckets.chain(percentiles.filter_map(|(us, share)| Some((us?, share)))).collect();
        points.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        // Percentiles are rounded to the steps of a histogram, so one may seem to be before a bucket that it is after.
        let mut most = 0.0_f64;
        for (_, share) in &mut points {
            most = most.max(*share);
            *share = most;
        }
        points
    }

    fn to_json(&self) -> Value {
        if let Some(failure) = &self.failure {
            return json!({ "queries": self.queries, "is_sustained": false, "failure": failure });
        }
        json!({
            "queries": self.queries,
            "failure": null,
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
            "results_received": self.results_received,
            "result_latency_us_p50": self.result_latency_us[0],
            "result_latency_us_p99": self.result_latency_us[1],
            "applications": self.applications,
            "register_s": self.register_s,
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
            "stages": self.stages.as_ref().map(|stages| stages.iter().copied().collect::<BTreeMap<_, _>>()),
            "context_switches": self.usage.context_switches,
            "page_faults": self.usage.page_faults,
            "cache_misses": self.usage.cache_misses,
            "instructions": self.usage.instructions,
            "mqtt_cpu_s": self.usage.mqtt_cpu_s,
            "workers_cpu_s": self.usage.workers_cpu_s,
            "timer_cpu_s": self.usage.timer_cpu_s,
            "latency_distribution_us": self.latency_distribution,
        })
    }
}

/// The steps of one variant.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// What was run.
    pub variant: Variant,
    /// In the order in which they were made.
    pub steps: Vec<StepReport>,
}

impl RunReport {
    /// The largest step that was sustained.
    pub fn best(&self) -> Option<&StepReport> {
        self.steps.iter().filter(|step| step.is_sustained()).max_by_key(|step| step.queries)
    }

    /// The best step; the last one if none was sustained, if possible one that came to its end.
    pub fn shown(&self) -> Option<&StepReport> {
        let measured = || self.steps.iter().rev().find(|step| step.failure.is_none());
        self.best().or_else(measured).or(self.steps.last())
    }

    fn to_json(&self) -> Value {
        let shown = self.shown();
        let mut report = shown.map_or_else(|| json!({}), StepReport::to_json);
        report["queries_capacity"] = json!(self.best().map_or(0, |step| step.queries));
        report["run"] = json!(self.variant.label());
        report["model"] = json!(self.variant.model.name());
        report["rate_per_query"] = json!(self.variant.rate_per_query);
        report["balances"] = json!(self.variant.balances);
        report["door"] = json!(self.variant.door.name());
        report["steps"] = json!(self.steps.iter().map(StepReport::to_json).collect::<Vec<_>>());
        report
    }
}

/// Everything that was run.
#[derive(Clone, Debug, Default)]
pub struct ManyReport {
    /// Where and when.
    pub circumstances: Circumstances,
    /// In the order of the options.
    pub runs: Vec<RunReport>,
}

impl ManyReport {
    /// How many steps came to no end, and how many steps there are.
    pub fn failed_steps(&self) -> (usize, usize) {
        let steps = || self.runs.iter().flat_map(|run| &run.steps);
        (steps().filter(|step| step.failure.is_some()).count(), steps().count())
    }

    /// The report as one JSON object: the figures of the best step (of the last, if none was sustained) of the first
    /// run, all its steps, and all runs.
    pub fn to_json(&self) -> Value {
        let runs: Vec<Value> = self.runs.iter().map(RunReport::to_json).collect();
        let mut report = runs.first().cloned().unwrap_or_else(|| json!({}));
        report["circumstances"] = json!(self.circumstances);
        if runs.len() > 1 {
            report["runs"] = json!(runs);
        }
        report
    }
}

/// The report as a table for people.
pub fn table(report: &ManyReport) -> String {
    let mut text = String::new();
    for run in &report.runs {
        if report.runs.len() > 1 {
            let _ = writeln!(text, "\n{}", run.variant.label());
        }
        write_run(run, &mut text);
    }
    text
}

fn write_run(report: &RunReport, text: &mut String) {
    let _ = writeln!(
        text,
        "{:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8} {:>10} {:>9} {:>10}",
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
        if let Some(failure) = step.failure_line() {
            let _ = writeln!(text, "{:>9} {:>10} {failure}", step.queries, "failed");
            continue;
        }
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
    if let Some(step) = report.shown().filter(|step| step.failure.is_none()) {
        let Usage { mqtt_cpu_s, workers_cpu_s, timer_cpu_s, context_switches, page_faults, cache_misses, .. } =
            step.usage;
        let misses = cache_misses.map_or_else(|| "not available".into(), |misses| misses.to_string());
        let _ = writeln!(
            text,
            "at {} queries: MQTT thread {mqtt_cpu_s:.1} s, workers {workers_cpu_s:.1} s, timers {timer_cpu_s:.1} s; \
             {context_switches} context switches, {page_faults} page faults, cache misses {misses}",
            step.queries,
        );
    }
    for step in &report.steps {
        let Some(stages) = &step.stages else { continue };
        let stages: Vec<String> = stages.iter().map(|(stage, part)| format!("{stage} {:.0} %", part * 100.0)).collect();
        let _ = writeln!(text, "stages at {} queries: {}", step.queries, stages.join(", "));
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
}
