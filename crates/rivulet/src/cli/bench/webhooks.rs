//! `rivulet bench webhooks`: what one slow receiver of webhooks, and dead ones, cost all others.

use std::time::Duration;

use clap::Args;

use crate::bench::webhooks::{WebhookOptions, run_webhooks};
use crate::cli::error::CliError;
use crate::cli::options::{Global, duration};

use super::report::print;
use super::setting::setting;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  one receiver  what one of the receivers did; all others answered at once. At last also applications that read all
                events, whose receivers are not there
  events        that were sent to all queries
  p50, p99, max from an event's creation in the generator to the arrival of its request, at all other receivers
  again         requests that came twice
  lost          events that did not come, though all receivers answered at last";

/// Arguments of `rivulet bench webhooks`.
#[derive(Debug, Args)]
pub(in crate::cli) struct WebhookArguments {
    /// How many queries, each with a receiver of its own
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    queries: u32,
    /// Events a second for each query, in the mean
    #[arg(long, default_value_t = 0.1)]
    rate: f64,
    /// How long events are sent each time
    #[arg(long, default_value = "20s", value_parser = duration)]
    duration: Duration,
    /// How long the slow receiver takes
    #[arg(long, default_value = "5s", value_parser = duration)]
    slow: Duration,
    /// Configuration of the server that is measured, for example workers=1
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

pub(super) fn run(global: Global, arguments: WebhookArguments) -> Result<(), CliError> {
    let WebhookArguments { queries, rate, duration, slow, settings } = arguments;
    if !(rate > 0.0 && rate.is_finite()) {
        return Err(CliError::new("a rate is not a positive number").with_hint("--rate 1 is one event a second"));
    }
    let options = WebhookOptions { queries, rate_per_query: rate, duration, slow, settings };
    let report = run_webhooks(&options, |line| eprintln!("{line}"));
    let names = ["one receiver", "events", "p50 ms", "p99 ms", "max ms", "again", "lost"];
    print(global, &report, names, &[1, 2, 3, 4, 5, 6], |row| {
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        [
            row.one_receiver.clone(),
            row.events.to_string(),
            ms(row.latency_us_p50),
            ms(row.latency_us_p99),
            ms(row.latency_us_max),
            row.again.to_string(),
            row.lost.to_string(),
        ]
    })
}
