//! `rivulet bench bulk`: how many queries are created and changed in bulk a second.

use clap::Args;
use rivulet_sql::Durability;

use crate::bench::bulk::{BulkOptions, run_bulk};
use crate::cli::error::CliError;
use crate::cli::options::Global;

use super::report::print;
use super::setting::setting;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  durability  of the input of the queries
  queries     what became of all of them in one bulk submission; one by one in the order in which they were created, if
              nothing else is said
  lines/s     from the first line to the last answer
  of created  this rate, divided by that of the creation
  us/line     CPU time of the server for each line, in microseconds";

/// Arguments of `rivulet bench bulk`.
#[derive(Debug, Args)]
pub(in crate::cli) struct BulkArguments {
    /// How many queries
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    queries: u64,
    /// What of the input survives the end of the server: none, checkpoint, log. Several are measured one after the
    /// other
    #[arg(
        long, value_delimiter = ',', value_name = "DURABILITIES", value_parser = durability, default_value = "checkpoint"
    )]
    durability: Vec<Durability>,
    /// Configuration of the server that is measured, for example checkpoint.enabled=false
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

pub(super) fn run(global: Global, arguments: BulkArguments) -> Result<(), CliError> {
    let BulkArguments { queries, durability, settings } = arguments;
    let options = BulkOptions { queries, durabilities: durability, settings };
    let report = run_bulk(&options, |line| eprintln!("{line}"));
    print(global, &report, ["durability", "queries", "lines/s", "of created", "us/line"], &[2, 3, 4], |row| {
        [
            row.durability.to_owned(),
            row.what.to_owned(),
            format!("{:.0}", row.rate),
            format!("{:.2}", row.of_created),
            format!("{:.2}", row.server_us),
        ]
    })
}

/// Reads a durability by its name.
pub(super) fn durability(text: &str) -> Result<Durability, String> {
    let found = Durability::ALL.into_iter().find(|durability| durability.name() == text);
    found.ok_or_else(|| format!("there are {}", Durability::ALL.map(Durability::name).join(", ")))
}
