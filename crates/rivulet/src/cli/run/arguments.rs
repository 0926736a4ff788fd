//! The arguments of `rivulet run`.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::app_test::End;

use super::writer::Layout;

/// How often a query that runs is looked at.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Shown behind the options.
pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  rivulet run -c \"CREATE SOURCE bids FROM 'nexmark:bid' WITH (events => 1000000);
                  SELECT auction, count(*) AS bids FROM bids GROUP BY auction ORDER BY bids DESC LIMIT 5\"
  rivulet run script.sql --format csv > result.csv
  tail -f events.jsonl | rivulet run script.sql --json        with a source FROM 'stdin:' FORMAT JSON

SELECT and INSERT run to the end of their input, one behind the other; input without an end is read until Ctrl-C.
Over input that ends a SELECT gives its final result, otherwise each change as it comes, with + or - in a column op.

Queries of applications run together, before the next SELECT, INSERT or CREATE QUERY ... AS, or at the end of the
script. They read --input, as rivulet app test does, and each line of a file as an event where an input is
FROM 'file:...'. Their clock follows the events. Results go to standard output, or to a file where an OUTPUT is
'file:...'.";

/// Arguments of `rivulet run`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RunArguments {
    /// Script to run, or a job if the name ends in .json; `-` is standard input
    #[arg(value_name = "FILE", required_unless_present = "command", conflicts_with = "command")]
    pub(super) file: Option<PathBuf>,
    /// SQL to run
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) command: Option<String>,
    /// How rows of a SELECT are written; --json means json
    #[arg(long, value_enum, default_value = "table")]
    pub(super) format: Layout,
    /// Write each change as it comes, also where the input ends
    #[arg(long)]
    pub(super) changes: bool,
    /// Rows of a table that are shown; 0 for all
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub(super) rows: usize,
    /// Events for queries of applications, one a line; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(super) input: Option<PathBuf>,
    #[command(flatten)]
    pub(super) end: End,
    /// Worker threads, and parallel instances of each operator; without, one for each core
    #[arg(short, long, value_name = "COUNT")]
    pub(super) parallelism: Option<usize>,
    /// Print no progress
    #[arg(short, long)]
    pub(super) quiet: bool,
}
