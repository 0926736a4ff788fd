//! `rivulet bench bulk`: how many queries are created and changed in bulk a second.

use crate::bench::bulk::{BulkOptions, run_bulk};
use crate::cli::error::CliError;
use crate::cli::options::Global;

use super::report::print;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  durability  of the input of the queries
  queries     what became of all of them in one bulk submission; one by one in the order in which they were created, if
              nothing else is said
  lines/s     from the first line to the last answer
  of created  this rate, divided by that of the creation
  us/line     CPU time of the server for each line, in microseconds";

pub(super) fn run(global: Global, options: BulkOptions) -> Result<(), CliError> {
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
