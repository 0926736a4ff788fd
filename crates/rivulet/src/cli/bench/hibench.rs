//! `rivulet bench hibench`: the streaming workloads of HiBench.

use clap::Args;
use rivulet_bench::hibench::{Visits, Workload};

use crate::bench::hibench::{HibenchOptions, run_hibench};
use crate::cli::error::CliError;
use crate::cli::options::Global;

use super::streams::{self, RunArguments};

/// Arguments of `rivulet bench hibench`.
#[derive(Debug, Args)]
pub(in crate::cli) struct HibenchArguments {
    /// The workloads: identity, repartition, wordcount, fixwindow; all of them by default
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = known)]
    workload: Vec<Workload>,
    /// How many records
    #[arg(long, default_value_t = Visits::default().events, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Records for each second of event time; with --rate that
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    event_rate: Option<u64>,
    /// Records a second by the clock, for the latency at that load; by default as fast as they are taken
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    rate: Option<u64>,
    /// Different addresses that visitors have
    #[arg(long, default_value_t = Visits::default().ips, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    ips: u64,
    /// Lengths of windows in seconds
    #[arg(long, value_delimiter = ',', default_value = "10,30", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    window: Vec<u32>,
    #[command(flatten)]
    run: RunArguments,
}

fn known(name: &str) -> Result<Workload, String> {
    let found = Workload::ALL.into_iter().find(|workload| workload.name() == name.to_ascii_lowercase());
    found.ok_or_else(|| format!("the workloads are {}", Workload::ALL.map(Workload::name).join(", ")))
}

pub(super) fn run(global: Global, arguments: HibenchArguments) -> Result<(), CliError> {
    let defaults = Visits::default();
    let options = HibenchOptions {
        workloads: if arguments.workload.is_empty() { Workload::ALL.to_vec() } else { arguments.workload },
        visits: Visits {
            events: arguments.events,
            event_rate: arguments.event_rate.or(arguments.rate).unwrap_or(defaults.event_rate),
            rate: arguments.rate.unwrap_or(0),
            ips: arguments.ips,
        },
        windows_s: arguments.window,
        settings: arguments.run.settings(),
        timeout: arguments.run.timeout,
    };
    streams::print(global, &run_hibench(&options, |line| eprintln!("{line}")))
}
