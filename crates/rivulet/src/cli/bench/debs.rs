//! `rivulet bench debs`: the job of the DEBS 2012 challenge.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;

use crate::bench::debs::{DebsOptions, DebsRun, run_debs};
use crate::cli::error::CliError;
use crate::cli::options::{Global, duration};
use crate::cli::output;

use super::streams::RunArguments;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  jobs        how many run at once, in one process
  readings/s  readings that their sources gave, all together, and for each job
  per core    readings by processor time: what one core carries, the generators included
  us          processor time for a reading
  MB          the most memory that was resident
  alarms      alarms of all jobs, and how many there must be
  equal       whether all answers of all jobs are those that must come out";

/// Arguments of `rivulet bench debs`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DebsArguments {
    /// How many jobs run at once; each number is measured by itself
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,50", value_name = "NUMBERS", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    jobs: Vec<u16>,
    /// About how long each run takes
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    #[command(flatten)]
    run: RunArguments,
}

pub(super) fn run(global: Global, arguments: DebsArguments) -> Result<(), CliError> {
    let options = DebsOptions {
        jobs: arguments.jobs.into_iter().map(usize::from).collect(),
        duration: arguments.duration,
        settings: arguments.run.settings(),
        timeout: arguments.run.timeout,
    };
    let report = run_debs(&options, |line| eprintln!("{line}")).map_err(CliError::new)?;
    let text = if global.json {
        serde_json::to_string(&report).map_err(|error| CliError::new(error.to_string()))? + "\n"
    } else {
        let headers = ["jobs", "readings/s", "per job", "per core", "us", "MB", "alarms", "of", "equal"];
        let row = |run: &DebsRun| {
            [
                run.jobs.to_string(),
                format!("{:.0}", run.readings_per_s),
                format!("{:.0}", run.readings_per_s_per_job),
                format!("{:.0}", run.readings_per_s_per_core),
                format!("{:.2}", run.cpu_us_per_reading),
                (run.rss_peak_bytes >> 20).to_string(),
                run.alarms.to_string(),
                run.alarms_expected.to_string(),
                run.is_equal.to_string(),
            ]
        };
        output::table(headers, &[0, 1, 2, 3, 4, 5, 6, 7], report.runs.iter().map(row)) + "\n"
    };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    match report.is_golden && report.runs.iter().all(|run| run.is_equal) {
        true => Ok(()),
        false => Err(CliError::new("mean powers or answers are not those that must come out")),
    }
}
