//! What the commands that measure big queries have in common: the process of one query, and the report.

use std::io::{self, Read, Write};

use crate::bench::streams::job::{self, Job};
use crate::bench::streams::report::StreamsReport;
use crate::cli::error::CliError;
use crate::cli::options::Global;
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

/// Worker threads where none are given: the cores.
pub(super) fn parallelism(given: Option<u16>) -> usize {
    given.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
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
        format!("{}, parallelism {}\n\n{table}\n{failures}", report.input, report.parallelism)
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
