//! `rivulet bench burst`: bursts of five times the rate, on borrowed workers and without them.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rivulet_bench::nexmark::{BURST_QUERIES, Query};

use crate::bench::burst::{Baseline, BurstOptions, BurstRun, html, run_burst};
use crate::cli::error::CliError;
use crate::cli::options::{Global, duration};
use crate::cli::output;

use super::written::{cannot_write, may_write};

/// What the columns of the tables are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  baseline     what was done about the burst
  rate         events a second before and after the burst; within it five times as many
  cpu          processor time of the server before the burst, as a part of the 0.3 cores that it may use (static: 1.2)
  peak ms      the longest latency of what was due from the beginning of the burst on: from when the last event of a
               window is due by the schedule to when the result has come. What has not come at the end of the schedule
               then gets all cores, and would have taken longer than is shown
  p99 ms       the 99th percentile of all rows
  recovered s  so long after the burst latencies were as before it; -: not until the end
  equal        whether the results are those of a run without scaling over the same events
  USD          what the run would cost: a core of a virtual machine 0.063 an hour, of a function 0.1037
  move ms      how long it took to move tasks, without the start of workers";

/// Arguments of `rivulet bench burst`.
#[derive(Debug, Args)]
pub(in crate::cli) struct BurstArguments {
    /// The queries, q1, q4, q5, q6, q7 and q8; all of them by default
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = known)]
    query: Vec<&'static Query>,
    /// What is done about the burst
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "none,vm,lambda,r1,r2,all,static",
        value_name = "NAMES"
    )]
    baselines: Vec<Baseline>,
    /// How long the burst lasts, and as long before and after it; in whole seconds, at least 2. Windows are as long
    #[arg(long, default_value = "60s", value_parser = duration)]
    duration: Duration,
    /// Events a second without the burst; by default so many that the server uses 0.6 to 0.8 of its time
    #[arg(long, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    rate: Option<u64>,
    /// Write the report as a page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn known(name: &str) -> Result<&'static Query, String> {
    let names = || BURST_QUERIES.map(|query| query.name).join(", ");
    let found = BURST_QUERIES.iter().find(|query| query.name == name.to_ascii_lowercase());
    found.ok_or_else(|| format!("the queries are {}", names()))
}

pub(super) fn run(global: Global, arguments: BurstArguments) -> Result<(), CliError> {
    let options = BurstOptions {
        queries: if arguments.query.is_empty() { BURST_QUERIES.iter().collect() } else { arguments.query },
        baselines: arguments.baselines,
        part_s: arguments.duration.as_secs().max(2),
        rate: arguments.rate,
    };
    arguments.html.as_deref().map_or(Ok(()), may_write)?;
    let report = run_burst(&options, |line| eprintln!("{line}"));
    let text = if global.json {
        serde_json::to_string(&report).map_err(|error| CliError::new(error.to_string()))? + "\n"
    } else {
        let runs = output::table(BurstRun::HEADERS, &[2, 3, 4, 5, 6, 8, 9], report.runs.iter().map(BurstRun::cells));
        format!("{runs}\n{}\n", report.lines().join("\n"))
    };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    if let Some(file) = &arguments.html {
        std::fs::write(file, html(&report)).map_err(|error| cannot_write(file, &error))?;
    }
    match report.failures.is_empty() {
        true => Ok(()),
        false => Err(CliError::new(report.failures.join("; "))),
    }
}
