//! The report as one page that needs nothing else: a table, capacities as bars, latencies as curves.

use std::fmt::Write;

use super::{Circumstances, ManyReport, RunReport, StepReport};

/// Size of a plot, in pixels, and of its margins: left and below for labels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const BELOW: f64 = 40.0;

/// Colours that remain apart for people who see fewer of them.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// The page.
pub fn html(report: &ManyReport) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>rivulet bench many</title>\
         <style>body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}\
         table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .7em;text-align:right;\
         border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}svg{max-width:100%}\
         text{font:12px system-ui,sans-serif}</style>\
         <h1>Very many small queries</h1>\
         <p>Latency is from the creation of an event in the generator to the end of its processing. A step is sustained if \
         its median is at most 100 ms, its 99th percentile at most 1 s, and every event is accounted for. Engine and \
         generator share the machine.</p>",
    );
    write_circumstances(&report.circumstances, &mut page);
    write_table(report, &mut page);
    page.push_str("<h2>Events a second, largest sustained step</h2>");
    write_bars(report, &mut page);
    page.push_str(
        "<h2>Latency of all events</h2><p>The part of events that were processed within so much time. Dots are measured; \
         the line between two dots only joins them.</p>",
    );
    let curves: Vec<(String, &StepReport)> =
        report.runs.iter().filter_map(|run| Some((run.variant.label(), run.shown()?))).collect();
    write_distribution(&curves, &mut page);
    page.push_str("</html>\n");
    page
}

fn write_circumstances(circumstances: &Circumstances, page: &mut String) {
    let Circumstances { began, version, command, cores, processor, kernel } = circumstances;
    let (command, processor, kernel) = (escaped(command), escaped(processor), escaped(kernel));
    let _ = write!(
        page,
        "<p>{began} UTC, Rivulet {version}, {cores} cores ({processor}), kernel {kernel}<br><code>{command}</code></p>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn write_table(report: &ManyReport, page: &mut String) {
    page.push_str(
        "<table><tr><th>run<th>queries<th>sustained<th>p50 ms<th>p95 ms<th>p99 ms<th>engine &micro;s/event\
         <th>bytes/query<th>context switches<th>submitted/s</tr>",
    );
    for run in &report.runs {
        for step in &run.steps {
            let ms = |us: Option<u64>| us.map_or_else(|| "-".into(), |us| format!("{:.2}", us as f64 / 1e3));
            let _ = write!(
                page,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{:.2}<td>{:.0}<td>{}<td>{:.0}</tr>",
                run.variant.label(),
                step.queries,
                if step.is_sustained() { "yes" } else { "no" },
                ms(step.latency_us[0]),
                ms(step.latency_us[1]),
                ms(step.latency_us[2]),
                step.engine_cpu_s * 1e6 / step.events_processed.max(1) as f64,
                step.bytes_per_query,
                step.context_switches,
                step.submit_per_s,
            );
        }
    }
    page.push_str("</table>");
}

fn write_bars(report: &ManyReport, page: &mut String) {
    let rate = |run: &RunReport| run.best().map_or(0.0, |step| f64::from(step.queries) * run.variant.rate_per_query);
    let most = report.runs.iter().map(rate).fold(1.0, f64::max);
    let (row, label) = (26.0, 200.0);
    let _ = write!(page, "<svg viewBox=\"0 0 {WIDTH} {}\" width=\"{WIDTH}\">", row * report.runs.len() as f64 + 10.0);
    for (index, run) in report.runs.iter().enumerate() {
        let (y, value) = (index as f64 * row, rate(run));
        let length = (WIDTH - label - 90.0) * value / most;
        let _ = write!(
            page,
            "<text x=\"0\" y=\"{:.0}\">{}</text><rect x=\"{label}\" y=\"{:.0}\" width=\"{length:.0}\" height=\"18\" \
             fill=\"{}\"/><text x=\"{:.0}\" y=\"{:.0}\">{value:.0}</text>",
            y + 17.0,
            run.variant.label(),
            y + 3.0,
            COLOURS[index % COLOURS.len()],
            label + length + 6.0,
            y + 17.0,
        );
    }
    page.push_str("</svg>");
}

/// Cumulative share of events over latency, on a logarithmic axis from 100 us to 100 s.
fn write_distribution(curves: &[(String, &StepReport)], page: &mut String) {
    let (from, decades) = (2.0, 6.0);
    let x = |us: u64| LEFT + ((us.max(1) as f64).log10() - from).clamp(0.0, decades) / decades * (WIDTH - LEFT - 10.0);
    let y = |share: f64| 10.0 + (1.0 - share) * (HEIGHT - BELOW - 10.0);
    let full = HEIGHT + 18.0 * curves.len() as f64;
    let _ = write!(page, "<svg viewBox=\"0 0 {WIDTH} {full}\" width=\"{WIDTH}\">");
    for (power, name) in
        [(2, "0.1 ms"), (3, "1 ms"), (4, "10 ms"), (5, "100 ms"), (6, "1 s"), (7, "10 s"), (8, "100 s")]
    {
        let at = x(10_u64.pow(power));
        let _ = write!(
            page,
            "<line x1=\"{at:.0}\" x2=\"{at:.0}\" y1=\"10\" y2=\"{:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{name}</text>",
            y(0.0),
            y(0.0) + 18.0,
        );
    }
    for share in [0.0, 0.5, 0.95, 1.0] {
        let at = y(share);
        let _ = write!(
            page,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{at:.0}\" y2=\"{at:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{:.0} %</text>",
            LEFT - 6.0,
            at + 4.0,
            share * 100.0,
        );
    }
    for (index, (label, step)) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<(f64, f64)> = step.latency_points().into_iter().map(|(us, share)| (x(us), y(share))).collect();
        for (x, y) in &points {
            let _ = write!(page, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(
            page,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{LEFT}\" y=\"{:.0}\" fill=\"{colour}\">{label}: {} queries</text>",
            points.join(" "),
            HEIGHT + 14.0 + 18.0 * index as f64,
            step.queries,
        );
    }
    page.push_str("</svg>");
}

#[cfg(test)]
mod tests {
    use rivulet_bench::workload::Distribution;

    use super::*;
    use crate::bench::many::{Model, Variant};

    #[test]
    fn a_page_shows_every_run_and_needs_nothing_from_outside() {
        let variant =
            |model| Variant { model, distribution: Distribution::Uniform, balances: true, rate_per_query: 1.0 };
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
        let circumstances = Circumstances { command: "rivulet bench many --html <a>".into(), ..Circumstances::now() };
        let page = html(&ManyReport { circumstances, runs: runs.into() });
        assert!(page.contains("many --html &lt;a&gt;</code>") && page.contains(env!("CARGO_PKG_VERSION")));
        // The buckets and the percentiles, in order.
        assert_eq!(page.matches("<circle").count(), 2 * (3 + 4));
        let shares: Vec<f64> = step.latency_points().into_iter().map(|(_, share)| share).collect();
        assert_eq!(shares, [0.0, 0.2, 0.5, 0.95, 0.99, 1.0, 1.0]);
        assert_eq!(page.matches("<polyline").count(), 2);
        assert!(page.contains("tp+nc uniform 1/s") && page.contains(">1000</text>"));
        assert!(!page.contains("http") && !page.contains("<script"));
    }
}
