//! `rivulet bench riot`: each run of RIoTBench in a process of its own.

use std::time::Duration;

use rivulet_bench::riot::{Measured, RiotOptions, RiotReport, Run};

use super::streams::job::{Job, Settings, Watch};
use super::streams::{Folder, run_apart};

/// Makes all runs, each given up after `timeout`; `progress` gets a line for each.
///
/// # Errors
/// There is no folder for files.
pub fn run_riot(options: &RiotOptions, timeout: Duration, progress: impl FnMut(&str)) -> Result<RiotReport, String> {
    let folder = Folder::new("riot")?;
    rivulet_bench::riot::run_riot(options, &folder.0, |run| measure(run, timeout), progress)
}

fn measure(run: &Run, timeout: Duration) -> Result<Measured, String> {
    let job = Job {
        script: run.script.clone(),
        warm_up: run.warm_up.clone(),
        settings: Settings { parallelism: run.cpus, policy: run.policy.clone(), consume: run.consume.clone() },
        watch: Some(Watch { cores: run.cpus, elapsed_max: run.elapsed_max }),
    };
    let outcome = run_apart(&job, timeout)?;
    Ok(Measured {
        events: outcome.events,
        results: outcome.results,
        elapsed_s: outcome.elapsed_s,
        cpu_s: outcome.cpu_s,
        latency_us: outcome.latency_us.unwrap_or_default(),
        tasks: outcome.tasks,
        pending: outcome.pending,
    })
}
