//! `rivulet demo`: everything at once, to look at.

mod report;
mod run;
mod view;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::error::CliError;
use super::options::{Global, duration};
use super::signals::stop_on_signal;
use run::DemoOptions;

/// Arguments of `rivulet demo`.
#[derive(Debug, clap::Args)]
pub(super) struct DemoArguments {
    /// How many queries
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    queries: u32,
    /// After how long it ends by itself, for example 10s; by default it runs until Ctrl-C
    #[arg(long, value_parser = duration)]
    duration: Option<Duration>,
    /// Open the console in a browser; its address is 127.0.0.1:8080 if that is free, or RIVULET_HTTP_ADDRESS
    #[arg(long)]
    open: bool,
}

pub(super) fn run(global: Global, arguments: &DemoArguments) -> Result<(), CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signal(stop.clone())?;
    let options = DemoOptions {
        queries: arguments.queries,
        duration: arguments.duration,
        json: global.json,
        open: arguments.open,
    };
    let report = run::run(&options, &stop)?;
    if global.json {
        // A reader that went away does not want the report any more.
        let _ = writeln!(io::stdout(), "{}", report.to_json());
    }
    Ok(())
}
