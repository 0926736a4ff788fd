//! `rivulet bench relay`: messages over links, through a relay and back.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bench::relay::{Experiment, RelayOptions, RelayRun, RelaySample, forward, html, run_relay};
use crate::cli::error::CliError;
use crate::cli::options::{Global, duration};
use crate::cli::output;

use super::written::{cannot_write, may_write};

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  run          the experiment, bytes of a message, KiB of a buffer (0: each message is sent by itself), and what else
               tells a run from others
  messages/s   that came back from the relay, checked one by one
  of ceiling   as a part of what plain sockets carry through three processes
  p50, p99     from the sending of a message to its return, milliseconds
  voluntary    context switches of the relay for a million messages, where it waited for something
  forced       context switches that the kernel forced, for a million messages
  ns           processor time of the relay for a message
  allocations  of memory by the relay for a message, in a program that was built with the feature baselines
  MiB          the most resident memory of the relay
  lost         messages that did not come back
Below it, of n4, for each time that the receiver takes for a message: messages a second that were sent and that came
back, from two seconds on (--duration should be 4s or more), and whether both differ by at most a tenth. The links of n5
are token buckets in this process.";

/// Arguments of `rivulet bench relay`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RelayArguments {
    /// Experiments of the Neptune paper, on one machine
    #[arg(long, value_enum, value_delimiter = ',', default_value = "n1", value_name = "NAMES")]
    experiment: Vec<Experiment>,
    /// The sizes of messages, with their time and number; by default those of each experiment
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    message_bytes: Vec<u32>,
    /// The sizes of buffers; 0 sends each message by itself; by default those of each experiment
    #[arg(long, value_delimiter = ',', value_name = "KIB", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    buffer_kib: Vec<u32>,
    /// How long messages are sent in each run; in n4, for each time that the receiver takes
    #[arg(long, default_value = "3s", value_parser = duration)]
    duration: Duration,
    /// How many relays there are at once in n6
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_name = "COUNTS", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    jobs: Vec<u32>,
    /// What the links of n5 carry in each direction, in megabits a second
    #[arg(long, default_value_t = 100, value_name = "MBIT", value_parser = clap::value_parser!(u32).range(1..))]
    rate_mbit: u32,
    /// Write the report as a page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Arguments of `rivulet bench forward`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ForwardArguments {
    from: SocketAddr,
    to: SocketAddr,
}

pub(super) fn run(global: Global, arguments: RelayArguments) -> Result<(), CliError> {
    let counts = |counts: Vec<u32>| counts.into_iter().map(|count| count as usize).collect();
    let options = RelayOptions {
        experiments: arguments.experiment,
        message_bytes: counts(arguments.message_bytes),
        buffer_kib: counts(arguments.buffer_kib),
        duration: arguments.duration,
        jobs: counts(arguments.jobs),
        rate_mbit: arguments.rate_mbit,
    };
    arguments.html.as_deref().map_or(Ok(()), may_write)?;
    let report = run_relay(&options, |line| eprintln!("{line}")).map_err(CliError::new)?;
    let text = if global.json {
        serde_json::to_string(&report).map_err(|error| CliError::new(error.to_string()))? + "\n"
    } else {
        let numeric: Vec<usize> = (1..RelayRun::HEADERS.len()).collect();
        let runs = output::table(RelayRun::HEADERS, &numeric, report.runs.iter().map(RelayRun::cells)) + "\n";
        let steps = report.runs.iter().flat_map(|run| &run.steps).map(|step| {
            let RelaySample { cost_ms, sent_per_s, came_per_s, is_settled, .. } = step;
            let settled = if *is_settled { "settled" } else { "not settled" };
            format!("at {cost_ms} ms a message: {sent_per_s}/s sent, {came_per_s}/s came back, {settled}\n")
        });
        runs + &steps.collect::<String>()
    };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    if let Some(file) = &arguments.html {
        std::fs::write(file, html(&report)).map_err(|error| cannot_write(file, &error))?;
    }
    match report.runs.iter().map(|run| run.lost).sum() {
        0_u64 => Ok(()),
        lost => Err(CliError::new(format!("{lost} messages did not come back"))),
    }
}

pub(super) fn run_forward(arguments: &ForwardArguments) -> Result<(), CliError> {
    forward(arguments.from, arguments.to).map_err(|error| CliError::new(error.to_string()))
}
