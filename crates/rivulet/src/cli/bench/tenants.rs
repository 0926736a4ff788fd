//! `rivulet bench tenants`: what a tenant that goes wild costs another one.

use std::io::{self, Write};

use crate::bench::tenants::{TenantOptions, TenantRow, run_tenants};
use crate::cli::error::CliError;
use crate::cli::options::Global;
use crate::cli::output;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  quiet tenant  whether it was alone on the server, or what a wild tenant did beside it
  events        that the quiet tenant sent
  p50, p99, max from the intended time of its events to the receipt of their results
  lost          its events without a result
  p99 / alone   its 99th percentile, as a multiple of that alone
  wild sent     messages that the wild tenant could send, in all rounds
  answered      its requests that were answered, and its connections
  refused       its requests and connections that were refused
All clients share the machine with the server.";

pub(super) fn run(global: Global, options: TenantOptions) -> Result<(), CliError> {
    let report = run_tenants(&options, |line| eprintln!("{line}"));
    let text = match &report.rows {
        _ if global.json => format!("{}\n", report.to_json()),
        Ok(rows) => {
            let row = |row: &TenantRow| {
                let ms = |us: u64| format!("{:.2}", us as f64 / 1e3);
                let TenantRow { wild, events, lost, latency } = row;
                let of_wild = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
                let ratio = report.ratio(row).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
                let (kind, wild) = wild.as_ref().map_or((None, None), |(kind, wild)| (Some(kind), Some(wild)));
                [
                    kind.map_or_else(|| "alone".to_owned(), |kind| format!("beside {kind}")),
                    events.to_string(),
                    ms(latency.us_p50),
                    ms(latency.us_p99),
                    ms(latency.us_max),
                    lost.to_string(),
                    ratio,
                    of_wild(wild.map(|wild| wild.messages)),
                    of_wild(wild.map(|wild| wild.requests)),
                    of_wild(wild.map(|wild| wild.refused)),
                ]
            };
            let names = [
                "quiet tenant",
                "events",
                "p50 ms",
                "p99 ms",
                "max ms",
                "lost",
                "p99 / alone",
                "wild sent",
                "answered",
                "refused",
            ];
            format!("{}\n", output::table(names, &[1, 2, 3, 4, 5, 6, 7, 8, 9], rows.iter().map(row)))
        }
        Err(_) => String::new(),
    };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    report.rows.map(drop).map_err(CliError::new)
}
