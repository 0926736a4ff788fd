//! `rivulet bench many`: how many small queries this machine carries.
//!
//! The step test of the MIST and Pluto papers: submit N queries, give each a Poisson stream of one event a second, and
//! measure the latency from an event's creation in the generator to the end of its processing. N grows until the median
//! passes 100 ms or the 99th percentile passes 1 s; the last N that did not is the capacity. Generator and engine share
//! the machine.

mod baselines;
mod doors;
mod html;
mod model;
mod options;
mod own_connections;
mod report;
mod stages;
mod step;

use rivulet_bench::Circumstances;
use rivulet_bench::search::{Bounds, Search};
use rivulet_bench::workload::{Distribution, Workload};

pub use html::html;
pub use model::Model;
pub use options::{Door, ManyOptions, Variant};
pub use report::{ManyReport, RunReport, StepReport, table};
use step::run_step;

/// The first step of the search, in events a second.
const FIRST_STEP: u32 = 50_000;
/// The search ends when the capacity is known to this fraction.
const PRECISION: f64 = 0.1;
/// The search ends where not even so many events a second are sustained.
const SMALLEST_STEP: u32 = 500;
/// The search ends at so many events a second in any case, and at so many queries.
const EVENTS_PER_S_MAX: u32 = 16_000_000;

/// Runs the test; `progress` is told what is going on, line by line. A step that comes to no end (its server ends,
/// refuses queries, or never answers) is in the report with the reason, and the others are made.
///
/// # Errors
/// In words: options that make no workload.
pub fn run_many(options: &ManyOptions, mut progress: impl FnMut(&str)) -> Result<ManyReport, String> {
    Workload::new(options.workload(Distribution::Uniform)).map_err(|error| error.to_string())?;
    let mut report = ManyReport { circumstances: Circumstances::now(), runs: Vec::new() };
    for &variant in &options.variants {
        if options.variants.len() > 1 {
            progress(&variant.label());
        }
        report.runs.push(run_variant(options, variant, &mut progress));
    }
    Ok(report)
}

/// One step, or steps until the limit is known.
fn run_variant(options: &ManyOptions, variant: Variant, progress: &mut impl FnMut(&str)) -> RunReport {
    let mut run = RunReport { variant, steps: Vec::new() };
    let mut step = |run: &mut RunReport, events_per_s: u32| {
        let queries = ((f64::from(events_per_s) / variant.rate_per_query).round() as u32).max(1);
        progress(&format!("{queries} queries for {} s ...", options.duration.as_secs_f64()));
        let done = match run_step(options, variant, queries, progress) {
            Ok(done) => done,
            Err(reason) => {
                let failed = StepReport::failed(queries, reason);
                progress(&format!("{queries} queries: failed: {}", failed.failure_line().unwrap_or_default()));
                run.steps.push(failed);
                return false;
            }
        };
        progress(&format!(
            "{queries} queries: p50 {} us, p99 {} us, engine {:.1} s CPU: {}",
            done.latency_us[0].unwrap_or(0),
            done.latency_us[2].unwrap_or(0),
            done.engine_cpu_s,
            if done.is_sustained() { "sustained" } else { "not sustained" },
        ));
        let is_sustained = done.is_sustained();
        run.steps.push(done);
        is_sustained
    };
    if let Some(queries) = options.queries {
        step(&mut run, queries);
        return run;
    }
    let most = (f64::from(EVENTS_PER_S_MAX) * variant.rate_per_query.min(1.0)) as u32;
    let bounds = Bounds { first: FIRST_STEP, least: SMALLEST_STEP, most, precision: PRECISION };
    let mut search = Search::new(bounds);
    while let Some(next) = search.next() {
        let is_sustained = step(&mut run, next);
        search.tell(is_sustained);
    }
    run
}
