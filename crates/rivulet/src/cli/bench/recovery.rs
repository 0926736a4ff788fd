//! `rivulet bench recovery`: how long a server that was killed takes until it works again.

use crate::bench::recovery::{RecoveryOptions, run_recovery};
use crate::cli::error::CliError;
use crate::cli::options::Global;
use crate::cli::output;

use super::report::print;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  state       what a restart reads
  checkpoint  how long it took to save it, while nothing else was asked of the server
  ready       from the start of the process until it said that it is ready
  working     and until it had processed an event, which come all the time";

pub(super) fn run(global: Global, options: RecoveryOptions) -> Result<(), CliError> {
    let report = run_recovery(&options, |line| eprintln!("{line}"));
    print(global, &report, ["what", "state", "checkpoint", "ready", "working"], &[1, 2, 3, 4], |row| {
        let seconds = |value: f64| format!("{value:.1} s");
        let checkpoint = output::duration_us(row.checkpoint_ms * 1_000);
        [row.what.clone(), output::bytes(row.state_bytes), checkpoint, seconds(row.ready_s), seconds(row.working_s)]
    })
}
