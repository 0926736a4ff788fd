//! The report as one page that needs nothing else.

use std::fmt::Write;

use rivulet_bench::plots::{Axis, Curve, begin_page, escaped, write_curves, write_table};

use super::cell::PARTS;
use super::report::{BurstReport, BurstRun};

/// The page.
pub fn html(report: &BurstReport) -> String {
    let about = "The rate rises to five times for the second quarter of each run. Latency is from when the last event \
                 of a window is due by the schedule to when its result comes; the longest of each second is shown. What \
                 generates events counts as a part of the query.";
    let mut page = begin_page("rivulet bench burst", "Bursts on borrowed workers", about, &report.circumstances);
    write_table(BurstRun::HEADERS, report.runs.iter().map(BurstRun::cells), &mut page);
    report.lines().iter().for_each(|line| _ = write!(page, "<p>{}</p>", escaped(line)));
    for runs in report.runs.chunk_by(|one, next| one.query == next.query) {
        let curve = |run: &BurstRun| {
            let points = run.latency_ms.iter().enumerate().map(|(second, ms)| (second as f64, ms.max(1.0)));
            Curve { label: run.baseline.name(), points: points.collect() }
        };
        let curves: Vec<Curve> = runs.iter().map(curve).collect();
        let up = Axis::decades(curves.iter().flat_map(|curve| &curve.points).map(|one| one.1), |ms| format!("{ms} ms"));
        let across = Axis::linear((PARTS * report.part_s) as f64, |second| format!("{second} s"));
        let _ = write!(page, "<h2>{}, {} events/s</h2>", runs[0].query, runs[0].rate);
        write_curves(&curves, &across, &up, &mut page);
        for run in runs.iter().filter(|run| !run.moves.is_empty()) {
            let _ = write!(page, "<p>{}: {}</p>", run.baseline.name(), escaped(&run.moves.join("; ")));
        }
    }
    page.push_str("</html>\n");
    page
}
