//! The report as one page that needs nothing else.

use std::fmt::Write;

use super::report::{Curve, RiotReport};
use crate::plots::{self, Axis, Bar, begin_page, escaped, write_bars, write_curves, write_table};

/// Tasks in a plot of what waits; those with the most are taken.
const TASKS_SHOWN: usize = 6;

/// The page.
pub fn html(report: &RiotReport) -> String {
    let about = format!(
        "Latency is from the time of an event in the schedule to its result. The most events a second are those at which its \
         99th percentile keeps the bound: {}. Results are {}golden.",
        report.bound_ms.iter().map(|(topology, bound)| format!("{topology} {bound} ms")).collect::<Vec<_>>().join(", "),
        if report.is_golden { "" } else { "not " },
    );
    let mut page = begin_page("rivulet bench riot", "RIoTBench", &about, &report.circumstances);
    for failure in report.failures() {
        let _ = write!(page, "<p>{}</p>", escaped(&failure));
    }
    let headers = ["topology", "operators", "cores", "events/s", "results/s", "p50 ms", "p99 ms", "us/event", "CV"];
    write_table(headers, report.rows(), &mut page);
    let mut kinds: Vec<(&str, usize)> = report.curves.iter().map(|curve| (curve.topology, curve.cpus)).collect();
    kinds.dedup();
    for (topology, cpus) in kinds {
        let is_of = |curve: &&Curve| (curve.topology, curve.cpus) == (topology, cpus) && curve.failure.is_none();
        let curves: Vec<&Curve> = report.curves.iter().filter(is_of).collect();
        let cores = if cpus == 1 { "core" } else { "cores" };
        let _ = write!(page, "<h2>{topology} on {cpus} {cores}</h2>");
        write_topology(&curves, &mut page);
    }
    page.push_str("</html>\n");
    page
}

fn write_topology(curves: &[&Curve], page: &mut String) {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let across = Axis::decades(points().map(|point| f64::from(point.input_per_s)), |rate| format!("{rate:.0}/s"));
    let mut plot = |title: &str, name: fn(f64) -> String, value: fn(&super::Point) -> f64| {
        let _ = write!(page, "<h3>{title}</h3>");
        let shown = curves.iter().map(|curve| {
            let mut points: Vec<_> =
                curve.points.iter().map(|point| (f64::from(point.input_per_s), value(point))).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            plots::Curve { label: curve.form().to_owned(), points }
        });
        write_curves(&shown.collect::<Vec<_>>(), &across, &Axis::decades(points().map(value), name), page);
    };
    plot("Results a second over events a second", |rate| format!("{rate:.0}/s"), |point| point.sink_per_s);
    plot(
        "99th percentile of latency over events a second",
        |us| format!("{} ms", us / 1e3),
        |point| point.latency_us_p99 as f64,
    );
    page.push_str("<h3>How differently operators are used, at the most events a second (CV of utilisation)</h3>");
    let bar = |curve: &&Curve| Bar {
        label: curve.form().to_owned(),
        parts: vec![curve.point.utilisation_cv],
        text: format!("{:.2}", curve.point.utilisation_cv),
    };
    write_bars(&curves.iter().map(bar).collect::<Vec<_>>(), &[], page);
    for curve in curves {
        write_tasks(curve, page);
    }
}

/// What waited for the tasks of a curve, and where the time of a row went.
fn write_tasks(curve: &Curve, page: &mut String) {
    let at = |sample: &(f64, Vec<u64>), task: usize| sample.1.get(task).copied().unwrap_or(0);
    let mut most: Vec<(u64, usize)> = (0..curve.operators.len())
        .map(|task| (curve.pending.iter().map(|sample| at(sample, task)).max().unwrap_or(0), task))
        .collect();
    most.sort_by(|one, other| other.cmp(one));
    most.truncate(TASKS_SHOWN);
    if !curve.pending.is_empty() && !most.is_empty() {
        let _ = write!(page, "<h3>{}: rows that wait</h3>", curve.form());
        let shown = most.iter().map(|&(_, task)| plots::Curve {
            label: curve.operators[task].operator.clone(),
            points: curve.pending.iter().map(|sample| (sample.0, at(sample, task) as f64)).collect(),
        });
        let last_s = curve.pending.last().map_or(0.0, |sample| sample.0);
        let across = Axis::linear(last_s, |seconds| format!("{seconds} s"));
        let up = Axis::linear(most.first().map_or(1.0, |(rows, _)| *rows as f64), |rows| rows.to_string());
        write_curves(&shown.collect::<Vec<_>>(), &across, &up, page);
    }
    let bars = curve.operators.iter().filter_map(|task| {
        let parts = vec![task.queued_us?, task.scheduling_us?, task.computing_us?];
        let text = parts.iter().map(|us| format!("{us:.1}")).collect::<Vec<_>>().join(" + ");
        Some(Bar { label: task.operator.clone(), parts, text })
    });
    let bars: Vec<Bar> = bars.collect();
    if !bars.is_empty() {
        let _ = write!(page, "<h3>{}: microseconds of a row</h3>", curve.form());
        write_bars(&bars, &["behind other rows", "for a worker", "computing"], page);
    }
}
