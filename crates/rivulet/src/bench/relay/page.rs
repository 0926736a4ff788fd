//! The report as one page that needs nothing else.

use std::fmt::Write;

use clap::ValueEnum;
use rivulet_bench::plots::{Axis, Bar, Curve, begin_page, escaped, write_bars, write_curves, write_table};

use super::report::{Experiment, RelayReport, RelayRun, RelaySample};

/// The page.
pub fn html(report: &RelayReport) -> String {
    let about = "Messages go over a link to a relay, which is a server with a running query, and over another one \
                 back. Latency is from the sending of a message to its return. The ceiling is what plain sockets carry \
                 through three processes. The links of n5 are token buckets.";
    let mut page = begin_page("rivulet bench relay", "A relay over links", about, &report.circumstances);
    write_table(RelayRun::HEADERS, report.runs.iter().map(RelayRun::cells), &mut page);
    for experiment in Experiment::value_variants() {
        let of_it = report.runs.iter().filter(|run| run.setup.experiment == *experiment);
        let runs: Vec<&RelayRun> = of_it.collect();
        if !runs.is_empty() {
            let (name, words) = experiment.words();
            let _ = write!(page, "<h2>{name}</h2><p>{}</p>", escaped(&words));
            write_runs(&runs, &mut page);
        }
    }
    page.push_str("</html>\n");
    page
}

fn write_runs(runs: &[&RelayRun], page: &mut String) {
    let mut plot = |title: &str, parts: fn(&RelayRun) -> Vec<f64>, legend: &[&str]| {
        let _ = write!(page, "<h3>{title}</h3>");
        let bars = runs.iter().map(|run| {
            let (label, parts) = (run.setup.label(), parts(run));
            let text = parts.iter().map(|part| format!("{part:.0}")).collect::<Vec<_>>().join(" + ");
            Bar { label, parts, text }
        });
        write_bars(&bars.collect::<Vec<_>>(), legend, page);
    };
    plot("Messages a second", |run| vec![run.messages_per_s], &[]);
    plot("99th percentile of latency, microseconds", |run| vec![run.latency_us_p99 as f64], &[]);
    plot(
        "Context switches of the relay for a million messages",
        |run| vec![run.voluntary_switches_per_million, run.nonvoluntary_switches_per_million],
        &["voluntary", "forced"],
    );
    runs.iter().filter(|run| !run.samples.is_empty()).for_each(|run| write_samples(&run.samples, page));
}

/// What was seen while the receiver took longer, and less long again.
fn write_samples(samples: &[RelaySample], page: &mut String) {
    let curve = |label: &str, value: fn(&RelaySample) -> f64| Curve {
        label: label.into(),
        points: samples.iter().map(|sample| (sample.at_s, value(sample))).collect(),
    };
    let across = Axis::linear(samples.last().map_or(0.0, |sample| sample.at_s), |at_s| format!("{at_s} s"));
    let curves = [
        curve("messages sent a second", |sample| sample.sent_per_s),
        curve("messages that came back a second", |sample| sample.came_per_s),
        curve("resident memory of the relay, MiB", |sample| (sample.relay_rss_bytes >> 20) as f64),
    ];
    let up = Axis::decades(curves.iter().flat_map(|curve| &curve.points).map(|point| point.1), |one| one.to_string());
    page.push_str("<h3>From moment to moment</h3>");
    write_curves(&curves, &across, &up, page);
}
