//! `rivulet bench recovery`: how long a server that was killed takes until it works again.

use clap::Args;

use crate::bench::recovery::{RecoveryOptions, run_recovery};
use crate::cli::error::CliError;
use crate::cli::options::Global;
use crate::cli::output;

use super::report::print;
use super::setting::setting;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  state       what a restart reads
  checkpoint  how long it took to save it, while nothing else was asked of the server
  ready       from the start of the process until it said that it is ready
  working     and until it had processed an event, which come all the time";

/// Arguments of `rivulet bench recovery`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RecoveryArguments {
    /// How many small queries; 0 for none
    #[arg(long, default_value_t = 1_000_000)]
    queries: u32,
    /// How many keys the window of a big query has; 0 for no such query
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    /// Configuration of the server that is measured, for example checkpoint.folder=/mnt/other
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

pub(super) fn run(global: Global, arguments: RecoveryArguments) -> Result<(), CliError> {
    let RecoveryArguments { queries, keys, settings } = arguments;
    let report = run_recovery(&RecoveryOptions { queries, keys, settings }, |line| eprintln!("{line}"));
    print(global, &report, ["what", "state", "checkpoint", "ready", "working"], &[1, 2, 3, 4], |row| {
        let seconds = |value: f64| format!("{value:.1} s");
        let checkpoint = output::duration_us(row.checkpoint_ms * 1_000);
        [row.what.clone(), output::bytes(row.state_bytes), checkpoint, seconds(row.ready_s), seconds(row.working_s)]
    })
}
