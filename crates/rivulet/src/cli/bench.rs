//! `rivulet bench`: how much this machine carries.

use std::fs::OpenOptions;
use std::io::{self, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use rivulet_bench::BrokerOptions;
use rivulet_bench::generator::{GeneratorOptions, run_generator};
use rivulet_bench::workload::Distribution;

use crate::bench::{ManyOptions, Model, Variant, many, run_many};

use super::error::CliError;
use super::{Global, duration};

/// What to measure.
#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// How many small queries, at an event a second each
    #[command(after_help = COLUMNS)]
    Many(ManyArguments),
    /// The generator of events, which the other commands start
    #[command(hide = true)]
    Generator(GeneratorArguments),
}

/// What the columns of the table are.
const COLUMNS: &str = "\
The columns of the table:
  sustained  whether p50 <= 100 ms and p99 <= 1 s, and every event is accounted for
  p50 ms     median time from an event's creation in the generator to the end of its processing
  p99 ms     its 99th percentile
  max ms     the longest
  engine     CPU time of the server while events were sent
  gener.     CPU time of the generator meanwhile; both share the machine
  batch      events that were processed together, in the mean
  us/event   CPU time of the server for each event, in microseconds
  B/query    by how much the server's memory has grown since before the first query, divided by the queries;
             of few queries that is mostly what does not grow with them (threads, buffers, code), so look at
             100,000 or more
  submit/s   queries submitted a second";

/// Arguments of `rivulet bench many`.
#[derive(Debug, Args)]
pub(super) struct ManyArguments {
    /// One step with so many events a second, which at --rate 1 is the number of queries; without it, steps until the limit is
    /// found
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    queries: Option<u32>,
    /// How long events are sent in each step
    #[arg(long, default_value = "20s", value_parser = duration)]
    duration: Duration,
    /// Events a second for each query, in the mean; several are compared at the same number of events
    #[arg(long = "rate", value_delimiter = ',', default_value = "1", value_name = "RATES")]
    rates: Vec<f64>,
    /// How queries are executed: group (Rivulet), group-rows (no batches), tp+nc, tp+n (a task for each query, thread pool),
    /// tpq+nc, tpq+n (a thread for each query); several are compared
    #[arg(long, value_delimiter = ',', default_value = "group", value_name = "MODELS")]
    model: Vec<Model>,
    /// Whether load is evened out between workers; both are compared if both are given
    #[arg(long, value_enum, value_delimiter = ',', default_value = "on")]
    balance: Vec<Balance>,
    /// Applications, separated by commas; the four of the demo without
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    applications: Vec<String>,
    /// Copies of each application; to the engine they are different applications
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    copies: u32,
    /// How queries are spread over the applications
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform")]
    distribution: Vec<Spread>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Address of a real broker between generator and engine
    #[arg(long, value_name = "HOST:PORT")]
    external_broker: Option<SocketAddr>,
    /// Write the report as a page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Whether load is evened out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Balance {
    /// As configured
    On,
    /// Never
    Off,
}

/// How queries are spread over applications.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spread {
    /// All applications alike
    Uniform,
    /// Zipf with parameter 1
    Zipf,
}

/// Arguments of the generator.
#[derive(Debug, Args)]
pub(super) struct GeneratorArguments {
    /// Publish to this broker instead of being one
    #[arg(long)]
    broker: Option<SocketAddr>,
}

/// Connections with which the generator publishes to a real broker.
const GENERATOR_CONNECTIONS: usize = 4;

pub(super) fn run(global: Global, command: BenchCommand) -> Result<(), CliError> {
    match command {
        BenchCommand::Many(arguments) => run_many_command(global, arguments),
        BenchCommand::Generator(arguments) => {
            let options = match arguments.broker {
                Some(broker) => GeneratorOptions::Client(BrokerOptions::new(
                    broker.to_string(),
                    GENERATOR_CONNECTIONS,
                    "rivulet-generator",
                )),
                None => GeneratorOptions::Broker(SocketAddr::from(([127, 0, 0, 1], 0))),
            };
            run_generator(options, BufReader::new(io::stdin()), io::stdout())
                .map(drop)
                .map_err(|error| CliError::new(error.to_string()))
        }
    }
}

fn run_many_command(global: Global, arguments: ManyArguments) -> Result<(), CliError> {
    if !arguments.rates.iter().all(|rate| *rate > 0.0 && rate.is_finite()) {
        return Err(CliError::new("a rate is not a positive number").with_hint("--rate 1 is one event a second"));
    }
    let mut variants = Vec::new();
    for &model in &arguments.model {
        for spread in &arguments.distribution {
            let distribution = match spread {
                Spread::Uniform => Distribution::Uniform,
                Spread::Zipf => Distribution::Zipf,
            };
            for &balance in &arguments.balance {
                let balances = balance == Balance::On;
                variants.extend(arguments.rates.iter().map(|&rate_per_query| Variant {
                    model,
                    distribution,
                    balances,
                    rate_per_query,
                }));
            }
        }
    }
    let options = ManyOptions {
        queries: arguments.queries,
        duration: arguments.duration,
        applications: arguments.applications,
        copies: arguments.copies,
        seed: arguments.seed,
        external_broker: arguments.external_broker,
        variants,
    };
    // What cannot be written is found out before the minutes of measuring, not after them.
    if let Some(file) = &arguments.html {
        let opened = OpenOptions::new().create(true).append(true).open(file);
        opened.map_err(|error| cannot_write(file, &error))?;
    }
    let report = run_many(&options, |line| eprintln!("{line}")).map_err(CliError::new)?;
    let text = if global.json { format!("{}\n", report.to_json()) } else { many::table(&report) };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    match &arguments.html {
        Some(file) => std::fs::write(file, many::html(&report)).map_err(|error| cannot_write(file, &error)),
        None => Ok(()),
    }
}

fn cannot_write(file: &Path, error: &io::Error) -> CliError {
    CliError::new(format!("cannot write {}: {error}", file.display()))
}
