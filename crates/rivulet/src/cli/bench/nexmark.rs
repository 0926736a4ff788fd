//! `rivulet bench nexmark`: the queries of the NEXMark benchmark.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rivulet_bench::nexmark::{FileFormat, QUERIES, Query, Stream, query, write_stream};

use crate::bench::nexmark::{NexmarkOptions, run_nexmark};
use crate::cli::error::CliError;
use crate::cli::options::Global;

use super::streams::{self, RunArguments};

/// Arguments of `rivulet bench nexmark`.
#[derive(Debug, Args)]
pub(in crate::cli) struct NexmarkArguments {
    /// The queries, q0 to q23 and q5_sliding (windows of a minute every second); all of them by default
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = known)]
    query: Vec<&'static Query>,
    /// How many events: persons, auctions and bids together
    #[arg(long, default_value_t = Stream::default().events, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Events for each second of event time; with --rate that
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    event_rate: Option<u64>,
    /// Events a second by the clock, for the latency at that load; by default as fast as they are taken
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), conflicts_with = "source")]
    rate: Option<u64>,
    /// So many events at a time come in a wrong order
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    disorder: u64,
    /// Another seed is another stream
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the events come from
    #[arg(long, value_enum, default_value = "generator")]
    source: Source,
    /// How files are written
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
    /// Write the events to files in this folder, and measure nothing
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["query", "rate"])]
    write: Option<PathBuf>,
    #[command(flatten)]
    run: RunArguments,
}

/// Where events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    /// Generated beside the query, whose processor time they count to
    Generator,
    /// Read from files that are written before
    File,
}

/// How files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Fields with commas between
    Csv,
    /// An object on each line
    Json,
    /// Apache Parquet
    Parquet,
}

impl From<Format> for FileFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Csv => Self::Csv,
            Format::Json => Self::Json,
            Format::Parquet => Self::Parquet,
        }
    }
}

fn known(name: &str) -> Result<&'static Query, String> {
    query(&name.to_ascii_lowercase()).ok_or_else(|| {
        let names: Vec<_> = QUERIES.iter().map(|query| query.name).collect();
        format!("the queries are {}", names.join(", "))
    })
}

pub(super) fn run(global: Global, arguments: NexmarkArguments) -> Result<(), CliError> {
    let defaults = Stream::default();
    let stream = Stream {
        events: arguments.events,
        event_rate: arguments.event_rate.or(arguments.rate).unwrap_or(defaults.event_rate),
        rate: arguments.rate.unwrap_or(0),
        seed: arguments.seed,
        disorder: arguments.disorder,
        ..defaults
    };
    if let Some(folder) = arguments.write {
        let [persons, auctions, bids] = write_stream(&stream, &folder, arguments.format.into())
            .map_err(|error| CliError::new(error.to_string()))?;
        eprintln!("{persons} persons, {auctions} auctions and {bids} bids in {}", folder.display());
        return Ok(());
    }
    let options = NexmarkOptions {
        queries: if arguments.query.is_empty() { QUERIES.iter().collect() } else { arguments.query },
        stream,
        files: (arguments.source == Source::File).then(|| arguments.format.into()),
        settings: arguments.run.settings(),
        timeout: arguments.run.timeout,
    };
    let report = run_nexmark(&options, |line| eprintln!("{line}")).map_err(CliError::new)?;
    streams::print(global, &report)
}
