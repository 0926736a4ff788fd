//! What the commands that measure big queries have in common: the process of one query, and the report.

use std::io::{self, Read, Write};
use std::time::Duration;

use clap::Args;
use rivulet_runtime::{Consume, Policy};

use crate::bench::policy;
use crate::bench::streams::job::{self, Job, Settings};
use crate::bench::streams::report::StreamsReport;
use crate::cli::error::CliError;
use crate::cli::options::{Global, duration};
use crate::cli::output;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  events      rows read from the sources
  s, cpu s    from start to end by the clock, and processor time of the query's process meanwhile
  events/s    events by the clock
  per core    events by processor time: what one core carries
  results     rows handed to the sink, those included that took back others
  refused     rows that came too late, or on which an expression failed
  MB          the most memory that was resident
  latency     from the arrival of a row to the writing of its results, median and 99th percentile in milliseconds; at full speed
              that is the time that rows wait in queues

Each query runs in a process of its own, behind a warm-up with a tenth of the events (at most a million), and its results go to a sink
that takes them and keeps nothing.";

/// How queries are run, and for how long at most.
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// Worker threads, and instances of operators; by default one for each core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallelism: Option<u16>,
    /// Which task a worker runs next: group, pinned, congestion as a server does, and in a program that was built with
    /// the feature baselines random, least-latency, least-memory, pool, thread-each as other engines do
    #[arg(long, default_value = <&Policy>::default().name, value_parser = policy)]
    policy: &'static Policy,
    /// How much of what waits for a task it takes in a turn: all, half of it, or at most so many rows
    #[arg(long, default_value_t = Consume::All, value_name = "ROWS")]
    consume: Consume,
    /// After how long one is given up
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub(super) timeout: Duration,
}

impl RunArguments {
    pub(super) fn settings(&self) -> Settings {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Settings {
            parallelism: self.parallelism.map_or_else(cores, usize::from),
            policy: self.policy.name.to_owned(),
            consume: self.consume.to_string(),
        }
    }
}

/// Prints a report; that a query failed is an error behind it.
pub(super) fn print(global: Global, report: &StreamsReport) -> Result<(), CliError> {
    let text = if global.json {
        format!("{}\n", report.to_json())
    } else {
        let headers =
            ["query", "events", "s", "cpu s", "events/s", "per core", "results", "refused", "MB", "latency ms"];
        let table = output::table(headers, &[1, 2, 3, 4, 5, 6, 7, 8, 9], report.rows());
        let failures: String = report.failures().map(|line| format!("{line}\n")).collect();
        let Settings { parallelism, policy, consume } = &report.settings;
        let settings = format!("parallelism {parallelism}, policy {policy}, consume {consume}");
        format!("{}, {settings}\n\n{table}\n{failures}", report.input)
    };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    match report.failed() {
        0 => Ok(()),
        failed => Err(CliError::new(format!("{failed} of {} queries failed", report.queries.len()))
            .with_hint("the report says why; what was measured stands there too")),
    }
}

/// Runs the job that standard input has, and writes what it took to standard output.
pub(super) fn run_job() -> Result<(), CliError> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|error| CliError::new(format!("no job: {error}")))?;
    let job: Job = serde_json::from_str(&text).map_err(|error| CliError::new(format!("this is no job: {error}")))?;
    let outcome = serde_json::to_string(&job::run(&job)?).map_err(|error| CliError::new(error.to_string()))?;
    println!("{outcome}");
    Ok(())
}
