//! The report as one page that needs nothing else: a table, capacities and CPU time as bars, latencies as
//! curves.

use std::fmt::Write;

use rivulet_bench::plots::{Axis, Bar, Curve, begin_page, escaped, write_bars, write_curves};

use super::report::{ManyReport, RunReport, StepReport};
use crate::bench::Usage;

/// The page.
pub fn html(report: &ManyReport) -> String {
    let about = "Latency is from the creation of an event in the generator to the end of its processing. A step is \
                 sustained if its median is at most 100 ms, its 99th percentile at most 1 s, and every event is \
                 accounted for. Engine and generator share the machine.";
    let mut page = begin_page("rivulet bench many", "Very many small queries", about, &report.circumstances);
    write_table(report, &mut page);
    page.push_str("<h2>Events a second, largest sustained step</h2>");
    write_capacities(report, &mut page);
    page.push_str(
        "<h2>CPU time of the engine for each event</h2><p>Microseconds, by kind of thread: the one that receives, routes \
         and sends; the workers that decode, evaluate and encode; the one that looks at timers; and others.</p>",
    );
    write_cpu(report, &mut page);
    let stages: Vec<Bar> = measured(report).filter_map(|(run, step)| stages_of(run, step)).collect();
    if !stages.is_empty() {
        page.push_str(
            "<h2>CPU time of the engine by stage</h2><p>Microseconds for each event, from samples of call stacks.</p>",
        );
        write_bars(&stages, &STAGES_SHOWN, &mut page);
    }
    page.push_str(
        "<h2>Latency of all events</h2><p>The part of events that were processed within so much time. Dots are measured; \
         the line between two dots only joins them.</p>",
    );
    write_distribution(report, &mut page);
    let (over_queries, over_rates) = (over_queries(report), over_rates(report));
    if !over_queries.is_empty() {
        page.push_str("<h2>Latency over the number of queries</h2>");
        write_latencies(&over_queries, &mut page);
    }
    if !over_rates.is_empty() {
        page.push_str("<h2>Latency over the events a second of a query</h2>");
        write_latencies(&over_rates, &mut page);
    }
    page.push_str("</html>\n");
    page
}

fn write_table(report: &ManyReport, page: &mut String) {
    page.push_str(
        "<div style=\"overflow-x:auto\"><table><tr><th>run<th>queries<th>sustained<th>p50 ms<th>p95 ms<th>p99 ms<th>engine &micro;s/<wbr>event\
         <th>bytes/<wbr>query<th>context switches<th>page faults<th>cache misses/<wbr>event<th>submitted/<wbr>s</tr>",
    );
    for run in &report.runs {
        for step in &run.steps {
            if let Some(failure) = step.failure_line() {
                let (label, queries, failure) = (run.variant.label(), step.queries, escaped(&failure));
                let _ = write!(
                    page,
                    "<tr><td>{label}<td>{queries}<td>failed<td colspan=\"9\" class=\"text\">{failure}</tr>"
                );
                continue;
            }
            let ms = |us: Option<u64>| us.map_or_else(|| "-".into(), |us| format!("{:.2}", us as f64 / 1e3));
            let _ = write!(
                page,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{:.2}<td>{:.0}<td>{}<td>{}<td>{}<td>{:.0}</tr>",
                run.variant.label(),
                step.queries,
                if step.is_sustained() { "yes" } else { "no" },
                ms(step.latency_us[0]),
                ms(step.latency_us[1]),
                ms(step.latency_us[2]),
                step.engine_cpu_s * 1e6 / step.events_processed.max(1) as f64,
                step.bytes_per_query,
                step.usage.context_switches,
                step.usage.page_faults,
                misses(step),
                step.submit_per_s,
            );
        }
    }
    page.push_str("</table></div>");
}

/// Misses of the last cache for each event; not zero where nobody counted.
fn misses(step: &StepReport) -> String {
    let each = |misses: u64| format!("{:.1}", misses as f64 / step.events_processed.max(1) as f64);
    step.usage.cache_misses.map_or_else(|| "not available".into(), each)
}

/// Events a second of the largest step that was sustained, for each run.
fn write_capacities(report: &ManyReport, page: &mut String) {
    let bars: Vec<Bar> = report
        .runs
        .iter()
        .map(|run| {
            let rate = run.best().map_or(0.0, |step| f64::from(step.queries) * run.variant.rate_per_query);
            Bar { label: run.variant.label(), parts: vec![rate], text: format!("{rate:.0}") }
        })
        .collect();
    write_bars(&bars, &[], page);
}

/// CPU time of the engine for each event, by kind of thread.
fn write_cpu(report: &ManyReport, page: &mut String) {
    let bars: Vec<Bar> = measured(report)
        .map(|(run, step)| {
            let events = step.events_processed.max(1) as f64 / 1e6;
            let Usage { cpu_s, mqtt_cpu_s, workers_cpu_s, timer_cpu_s, .. } = step.usage;
            let others_s = (cpu_s - mqtt_cpu_s - workers_cpu_s - timer_cpu_s).max(0.0);
            Bar {
                label: run.variant.label(),
                parts: [mqtt_cpu_s, workers_cpu_s, timer_cpu_s, others_s].map(|cpu_s| cpu_s / events).into(),
                text: format!("{:.2} us ({} queries)", cpu_s / events, step.queries),
            }
        })
        .collect();
    write_bars(&bars, &["input and output", "workers", "timers", "others"], page);
}

/// The stages that have a part of a bar, in the order of an event's way; the others are the last part.
const STAGES_SHOWN: [&str; 9] =
    ["receive", "route", "queue", "decode", "evaluate", "state", "emit", "send", "schedule and others"];

fn stages_of(run: &RunReport, step: &StepReport) -> Option<Bar> {
    let stages = step.stages.as_ref()?;
    let us = step.usage.cpu_s * 1e6 / step.events_processed.max(1) as f64;
    let part = |shown: &str| stages.iter().find(|(stage, _)| *stage == shown).map_or(0.0, |(_, part)| part * us);
    let mut parts = STAGES_SHOWN.map(part);
    parts[8] = us - parts[..8].iter().sum::<f64>();
    Some(Bar { label: run.variant.label(), parts: parts.into(), text: format!("{us:.2} us") })
}

/// The shown step of each run, if it came to its end.
fn measured(report: &ManyReport) -> impl Iterator<Item = (&RunReport, &StepReport)> {
    let shown = report.runs.iter().filter_map(|run| Some((run, run.shown()?)));
    shown.filter(|(_, step)| step.failure.is_none())
}

/// Cumulative share of events over latency, on a logarithmic axis from 100 us to 100 s.
fn write_distribution(report: &ManyReport, page: &mut String) {
    let curves: Vec<Curve> = measured(report)
        .map(|(run, step)| Curve {
            label: format!("{}: {} queries", run.variant.label(), step.queries),
            points: step.latency_points().into_iter().map(|(us, share)| (us as f64, share)).collect(),
        })
        .collect();
    let across = Axis { from: 1e2, to: 1e8, ..Axis::decades([1e2, 1e8].into_iter(), time) };
    let marks = [0.0, 0.5, 0.95, 1.0].map(|share| (share, format!("{:.0} %", share * 100.0))).into();
    write_curves(&curves, &across, &Axis { from: 0.0, to: 1.0, marks, is_logarithmic: false }, page);
}

/// Median and 99th percentile over what a run varies: the number of queries, or between runs the events of a query.
fn write_latencies(curves: &[Curve], page: &mut String) {
    let across = Axis::decades(curves.iter().flat_map(|curve| &curve.points).map(|point| point.0), count);
    let up = Axis::decades(curves.iter().flat_map(|curve| &curve.points).map(|point| point.1), time);
    write_curves(curves, &across, &up, page);
}

/// Latencies over queries, of runs with several steps.
fn over_queries(report: &ManyReport) -> Vec<Curve> {
    let mut curves = Vec::new();
    for run in report.runs.iter().filter(|run| run.steps.len() > 1) {
        for (index, name) in [(0, "median"), (2, "99th percentile")] {
            let steps = run.steps.iter().filter_map(|step| Some((step.queries.into(), step.latency_us[index]? as f64)));
            let mut points: Vec<(f64, f64)> = steps.collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            curves.push(Curve { label: format!("{}, {name}", run.variant.label()), points });
        }
    }
    curves
}

/// Latencies over the events a second of a query, where runs of a model differ in it.
fn over_rates(report: &ManyReport) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for (run, step) in measured(report) {
        for (index, name) in [(0, "median"), (2, "99th percentile")] {
            let label = format!("{}, {name}", run.variant.label_without_rate());
            let Some(us) = step.latency_us[index] else { continue };
            let point = (run.variant.rate_per_query, us as f64);
            match curves.iter_mut().find(|curve| curve.label == label) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { label, points: vec![point] }),
            }
        }
    }
    curves.retain(|curve| curve.points.len() > 1);
    curves.iter_mut().for_each(|curve| curve.points.sort_by(|one, other| one.0.total_cmp(&other.0)));
    curves
}

/// Microseconds, with a unit that suits them.
fn time(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us} us"),
        _ if us < 1e6 => format!("{} ms", us / 1e3),
        _ => format!("{} s", us / 1e6),
    }
}

/// A large number, short.
fn count(number: f64) -> String {
    match number {
        _ if number < 1e3 => format!("{number}"),
        _ if number < 1e6 => format!("{} k", number / 1e3),
        _ => format!("{} M", number / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use rivulet_bench::Circumstances;
    use rivulet_bench::workload::Distribution;

    use super::*;
    use crate::bench::many::{Door, Model, Variant};

    #[test]
    fn a_page_shows_every_run_and_needs_nothing_from_outside() {
        let variant = |model| Variant {
            model,
            distribution: Distribution::Uniform,
            balances: true,
            door: Door::Client,
            durability: None,
            rate_per_query: 1.0,
        };
        let step = StepReport {
            queries: 1_000,
            events_sent: 10,
            events_processed: 10,
            latency_us: [Some(500), Some(600), Some(900), Some(1_000)],
            latency_distribution: vec![(100, 0), (316, 2), (1_000, 10)],
            ..StepReport::default()
        };
        let runs =
            [Model::Group, Model::PoolNc].map(|model| RunReport { variant: variant(model), steps: vec![step.clone()] });
        let failed =
            RunReport { variant: variant(Model::Thread), steps: vec![StepReport::failed(5, "no <server>".into())] };
        let runs: Vec<RunReport> = runs.into_iter().chain([failed]).collect();
        let circumstances = Circumstances { command: "rivulet bench many --html <a>".into(), ..Circumstances::now() };
        let page = html(&ManyReport { circumstances, runs });
        assert!(page.contains("many --html &lt;a&gt;</code>") && page.contains(env!("CARGO_PKG_VERSION")));
        // The buckets and the percentiles, in order.
        assert_eq!(page.matches("<circle").count(), 2 * (3 + 4));
        let shares: Vec<f64> = step.latency_points().into_iter().map(|(_, share)| share).collect();
        assert_eq!(shares, [0.0, 0.2, 0.5, 0.95, 0.99, 1.0, 1.0]);
        assert_eq!(page.matches("<polyline").count(), 2);
        assert!(page.contains("tp+nc uniform 1/s") && page.contains(">1000</text>"));
        assert!(page.contains("<td>not available") && page.contains("workers</text>"));
        assert!(page.contains("<td>failed<td colspan=\"9\" class=\"text\">no &lt;server&gt;</tr>"));
        assert!(!page.contains("http") && !page.contains("<script"));
    }
}
