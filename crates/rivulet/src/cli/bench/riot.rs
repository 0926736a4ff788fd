//! `rivulet bench riot`: RIoTBench, fused and operator by operator.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rivulet_bench::riot::{FORMS, Form, RiotOptions, Topology, html};
use rivulet_runtime::Consume;

use crate::bench::policy;
use crate::bench::riot::run_riot;
use crate::cli::error::CliError;
use crate::cli::options::{Global, duration};
use crate::cli::output;

use super::written::{cannot_write, may_write};

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table, all of the most events a second at which the 99th percentile of latencies keeps the bound of the EdgeWise
paper, 50 ms of etl and 100 ms of stats and pred:
  operators   fused as by default, or one by one with this way to choose the next
  cores       cores that the process has, and worker threads
  events/s    events sent
  results/s   results published; etl has two for each event, pred two, stats up to fifteen
  p50, p99    time from the event's place in the schedule to the result, in milliseconds
  us/event    processor time of the whole process, generator included, for each event, in microseconds
  CV          how differently operators are used: the standard deviation of the parts of the time in which each had something to do,
              as a part of their mean

Before anything is measured, each topology has to give its golden results, fused and one by one. Each run is in a process of its own,
behind a warm-up of 50,000 events.";

/// Arguments of `rivulet bench riot`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RiotArguments {
    /// The topologies: etl, stats, pred; all of them by default
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = topology)]
    topology: Vec<Topology>,
    /// How operators are run: fused, or one by one with the policy congestion, random, least-latency, least-memory or
    /// thread-each; by default all that this program has
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = form)]
    curve: Vec<Form>,
    /// Cores of the process, and worker threads; several are measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "CORES", value_parser = clap::value_parser!(u16).range(1..=1024))]
    cpus: Vec<u16>,
    /// Events a second that are measured first; by default three of the paper's
    #[arg(long, value_delimiter = ',', value_name = "RATES", value_parser = clap::value_parser!(u32).range(1..))]
    rates: Option<Vec<u32>>,
    /// Do not look for the most events a second
    #[arg(long)]
    no_search: bool,
    /// How long events come at each rate
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Events come in bursts so far apart, as in the paper those of 100ms; by default each comes at its own time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    burst: Option<Duration>,
    /// How much of what waits an operator takes in a turn where operators run one by one: all, half of it, or at most
    /// so many rows
    #[arg(long, default_value = "50", value_name = "ROWS")]
    consume: Consume,
    /// After how long a run is given up
    #[arg(long, default_value = "10m", value_parser = duration)]
    timeout: Duration,
    /// Write the report as a page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn topology(name: &str) -> Result<Topology, String> {
    let found = Topology::ALL.into_iter().find(|topology| topology.name() == name.to_ascii_lowercase());
    found.ok_or_else(|| format!("the topologies are {}", Topology::ALL.map(Topology::name).join(", ")))
}

fn form(name: &str) -> Result<Form, String> {
    let found = FORMS.into_iter().find(|form| form.name == name);
    let form = found.ok_or_else(|| format!("the curves are {}", FORMS.map(|form| form.name).join(", ")))?;
    policy(form.policy).map(|_| form)
}

pub(super) fn run(global: Global, arguments: RiotArguments) -> Result<(), CliError> {
    let all = || FORMS.into_iter().filter(|form| policy(form.policy).is_ok()).collect();
    let options = RiotOptions {
        topologies: if arguments.topology.is_empty() { Topology::ALL.to_vec() } else { arguments.topology },
        cpus: arguments.cpus.into_iter().map(usize::from).collect(),
        forms: if arguments.curve.is_empty() { all() } else { arguments.curve },
        rates: arguments.rates,
        searches: !arguments.no_search,
        duration: arguments.duration,
        burst_ms: arguments.burst.map_or(0, |burst| burst.as_millis() as u64),
        consume: arguments.consume.to_string(),
    };
    arguments.html.as_deref().map_or(Ok(()), may_write)?;
    let report = run_riot(&options, arguments.timeout, |line| eprintln!("{line}")).map_err(CliError::new)?;
    let text = if global.json {
        serde_json::to_string(&report).map_err(|error| CliError::new(error.to_string()))? + "\n"
    } else {
        let headers = ["topology", "operators", "cores", "events/s", "results/s", "p50", "p99", "us/event", "CV"];
        output::table(headers, &[2, 3, 4, 5, 6, 7, 8], report.rows()) + "\n"
    };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    if let Some(file) = &arguments.html {
        std::fs::write(file, html(&report)).map_err(|error| cannot_write(file, &error))?;
    }
    match report.failures().collect::<Vec<_>>() {
        failures if failures.is_empty() => Ok(()),
        failures => Err(CliError::new(failures.join("; "))),
    }
}
