//! `rivulet bench hibench`: the streaming workloads of HiBench, one after the other, each in a process of its own.

use std::time::Duration;

use rivulet_bench::Circumstances;
use rivulet_bench::hibench::{Visits, Workload};

use super::streams::job::{Job, Settings};
use super::streams::report::StreamsReport;
use super::streams::run_apart;

/// The part of the records that the warm-up has.
const WARM_UP_PART: u64 = 10;
/// And how many at most.
const WARM_UP_EVENTS_MAX: u64 = 1_000_000;

/// What is measured.
#[derive(Clone, Debug)]
pub struct HibenchOptions {
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// The records.
    pub visits: Visits,
    /// Lengths of windows in seconds; workloads with windows run with each.
    pub windows_s: Vec<u32>,
    /// How they are run.
    pub settings: Settings,
    /// After how long a workload is given up.
    pub timeout: Duration,
}

/// Runs the workloads; `progress` gets a line for each. A workload that fails is a row of the report.
pub fn run_hibench(options: &HibenchOptions, mut progress: impl FnMut(&str)) -> StreamsReport {
    let visits = &options.visits;
    let warm_up =
        Visits { events: (visits.events / WARM_UP_PART).clamp(1, WARM_UP_EVENTS_MAX), rate: 0, ..visits.clone() };
    let mut queries = Vec::new();
    for &workload in &options.workloads {
        let windows_s = if workload.has_window() { &options.windows_s[..] } else { &[0][..] };
        for &window_s in windows_s {
            let name = match workload.has_window() {
                true => format!("{} {window_s} s", workload.name()),
                false => workload.name().to_owned(),
            };
            let job = Job {
                script: workload.script(visits, window_s),
                warm_up: Some(workload.script(&warm_up, window_s)),
                settings: options.settings.clone(),
                watch: None,
            };
            let outcome = run_apart(&job, options.timeout);
            progress(&match &outcome {
                Ok(outcome) => format!("{name}: {:.0} records/s per core", outcome.events_per_s_per_core()),
                Err(_) => format!("{name}: failed"),
            });
            queries.push((name, outcome));
        }
    }
    StreamsReport {
        circumstances: Circumstances::now(),
        settings: options.settings.clone(),
        input: format!("{} records, {} addresses, generated beside the query", visits.events, visits.ips),
        queries,
    }
}
