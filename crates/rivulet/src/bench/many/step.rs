//! One step: a server and a generator in processes of their own, so many queries, so many seconds.

use std::time::{Duration, Instant};

use rivulet_bench::workload::Workload;

use super::doors;
use super::model::Model;
use super::options::{ManyOptions, Variant};
use super::report::StepReport;
use super::stages::Profiler;
use crate::bench::load::{dropped, processed, refused, register, submit};

/// How long subscriptions may take to reach the generator, and the last events the engine.
const SUBSCRIBE_MAX: Duration = Duration::from_secs(30);
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How long the engine is left alone before its idle memory is read; no longer than events are sent.
const WARM_UP: Duration = Duration::from_secs(5);

/// Runs one step.
pub(super) fn run_step(
    options: &ManyOptions,
    variant: Variant,
    queries: u32,
    progress: &mut impl FnMut(&str),
) -> Result<StepReport, String> {
    let workload_options = options.workload(variant.distribution);
    let workload = Workload::new(workload_options.clone()).map_err(|error| error.to_string())?;
    let cut_above = options.cut_above_percent.map(|percent| percent.to_string());
    let mut settings: Vec<(&str, &str)> = Vec::new();
    let mut command = vec!["serve"];
    if variant.model != Model::Group {
        command = vec!["bench", "server", "--model", variant.model.name()];
        // Engines like these save nothing.
        settings.push(("RIVULET_CHECKPOINT_ENABLED", "false"));
    }
    if !variant.balances {
        settings.push(("RIVULET_SCHEDULER_BALANCE_PERIOD_S", "0"));
    }
    if let Some(durability) = variant.durability {
        settings.push(("RIVULET_DURABILITY_DEFAULT", durability.name()));
        // A name of its own, as whoever wants events to survive gives it.
        settings.push(("RIVULET_MQTT_BROKER_CLIENT_ID", "rivulet-bench"));
    }
    if let Some(cut_above) = &cut_above {
        settings.push(("RIVULET_SCHEDULER_CUT_ABOVE_PERCENT", cut_above));
        if variant.balances {
            // Early enough that most of a step is measured in parts.
            settings.push(("RIVULET_SCHEDULER_BALANCE_PERIOD_S", "1"));
        }
    }
    settings.extend(options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let (mut generator, mut server) = doors::start(options, variant, &workload, &command, &settings)?;
    let begun = Instant::now();
    register(&mut server, &workload)?;
    let register_s = begun.elapsed().as_secs_f64();
    let rss_empty_bytes = server.rss_bytes();
    let begun = Instant::now();
    submit(&mut server, &workload, u64::from(queries))?;
    let submit_per_s = f64::from(queries) / begun.elapsed().as_secs_f64();
    progress(&format!("  {} applications registered in {register_s:.1} s", workload.application_count()));
    progress(&format!("  submitted at {submit_per_s:.0} queries a second"));
    generator.prepare(queries, workload_options).map_err(|error| error.to_string())?;
    generator.wait_for_subscriptions(SUBSCRIBE_MAX).map_err(|error| error.to_string())?;
    std::thread::sleep(WARM_UP.min(options.duration));
    let rss_idle_bytes = server.rss_bytes();

    let profiler = match options.profiles.then(|| Profiler::start(server.id(), server.folder())) {
        Some(Ok(profiler)) => Some(profiler),
        Some(Err(reason)) => {
            progress(&format!("  {reason}"));
            None
        }
        None => None,
    };
    let (before, started) = (server.usage(), Instant::now());
    generator.start(variant.rate_per_query, options.duration, 1.0).map_err(|error| error.to_string())?;
    // A generator that falls behind ends later; its lateness is in the report, and in the latencies.
    let sent = generator.finish(options.duration * 3 + DRAIN_MAX).map_err(|error| error.to_string())?;
    // What the generator could not send it has counted beside what it sent.
    let lost = sent.events_unrouted + sent.events_lost;
    let events_sent = sent.events_sent + lost;
    let shares_topic = workload.shares_topic();
    let deadline = Instant::now() + DRAIN_MAX;
    let (status, came) = loop {
        let status = server.status()?;
        let came = generator.report().map_err(|error| error.to_string())?;
        // Of a topic that all queries read every event is in every inbox, and one of them sends it on.
        let (done, dropped) = match shares_topic {
            true => (came.results_received, 0),
            false => (processed(&status), dropped(&status)),
        };
        if done + dropped + lost >= events_sent || Instant::now() >= deadline {
            break (status, came);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let (rss_bytes, usage, elapsed_s) = (server.rss_bytes(), server.usage() - before, started.elapsed().as_secs_f64());
    let stages = profiler.map(Profiler::finish).transpose()?;
    let total = &status["total"];
    // Events of several inputs have no event time before the inputs come together: then it is from the arrival on.
    let latency = |name: &str| total["end_to_end"][name].as_u64().or_else(|| total["processing"][name].as_u64());
    let (latency_us, latency_distribution) = if shares_topic {
        let latencies = [
            came.result_latency_us_p50,
            came.result_latency_us_p95,
            came.result_latency_us_p99,
            came.result_latency_us_max,
        ];
        (latencies, Vec::new())
    } else {
        let latencies = [latency("p50_us"), latency("p95_us"), latency("p99_us"), latency("max_us")];
        (latencies, latency_distribution(&server.get("/metrics")?))
    };
    let per_query = |bytes: u64| bytes.saturating_sub(rss_empty_bytes) as f64 / f64::from(queries.max(1));
    Ok(StepReport {
        queries,
        failure: None,
        applications: workload.application_count(),
        register_s,
        submit_per_s,
        rss_idle_bytes,
        rss_bytes,
        bytes_per_query: per_query(rss_bytes),
        bytes_per_query_idle: per_query(rss_idle_bytes),
        events_sent,
        events_processed: if shares_topic { came.results_received } else { processed(&status) },
        events_dropped: if shares_topic { lost } else { dropped(&status) + lost },
        rows_refused: refused(total, |reason| reason != "overflow"),
        results: total["results"].as_u64().unwrap_or(0),
        batch_events_mean: total["batch_rows_mean"].as_f64().unwrap_or(0.0),
        results_received: came.results_received,
        result_latency_us: [came.result_latency_us_p50, came.result_latency_us_p99],
        latency_us,
        generator_lateness_us_p99: sent.lateness_us_p99,
        engine_cpu_s: usage.cpu_s,
        usage,
        generator_cpu_s: sent.cpu_s.unwrap_or(0.0),
        elapsed_s,
        stages,
        latency_distribution,
    })
}

/// The buckets of the latency from creation to the end of processing, over all applications, from Prometheus metrics.
fn latency_distribution(metrics: &str) -> Vec<(u64, u64)> {
    let mut buckets = std::collections::BTreeMap::new();
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix("rivulet_event_latency_seconds_bucket{le=\"") else { continue };
        let Some((bound, rest)) = rest.split_once('"') else { continue };
        let count = rest.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
        if let Ok(bound_s) = bound.parse::<f64>()
            && bound_s.is_finite()
        {
            *buckets.entry((bound_s * 1e6).round() as u64).or_insert(0) += count;
        }
    }
    buckets.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_all_applications_are_added() {
        let metrics = "# HELP x\n\
            rivulet_event_latency_seconds_bucket{le=\"0.001\",application=\"a\"} 3\n\
            rivulet_event_latency_seconds_bucket{le=\"+Inf\",application=\"a\"} 5\n\
            rivulet_event_latency_seconds_bucket{le=\"0.0001\",application=\"b\"} 1\n\
            rivulet_event_latency_seconds_bucket{le=\"0.001\",application=\"b\"} 4\n";
        assert_eq!(latency_distribution(metrics), [(100, 1), (1_000, 7)]);
    }
}
