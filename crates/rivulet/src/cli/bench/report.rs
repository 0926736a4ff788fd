//! Prints the report of a measurement of rows.

use std::io::{self, Write};

use serde::Serialize;

use crate::bench::report::Report;
use crate::cli::error::CliError;
use crate::cli::options::Global;
use crate::cli::output;

/// Prints a report as JSON, or as a table of its rows with their cells. That a row failed is an error behind it.
pub(super) fn print<Row: Serialize, const COLUMNS: usize>(
    global: Global,
    report: &Report<Row>,
    headers: [&str; COLUMNS],
    numeric: &[usize],
    cells: impl Fn(&Row) -> [String; COLUMNS],
) -> Result<(), CliError> {
    let text = match global.json {
        true => format!("{}\n", report.to_json()),
        false => output::table(headers, numeric, report.rows.iter().flatten().map(cells)),
    };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    let failures: Vec<&str> = report.rows.iter().filter_map(|row| row.as_ref().err()).map(String::as_str).collect();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(CliError::new(failures.join("; "))),
    }
}
