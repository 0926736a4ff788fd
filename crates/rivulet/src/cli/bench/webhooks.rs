//! `rivulet bench webhooks`: what one slow receiver of webhooks, and dead ones, cost all others.

use crate::bench::webhooks::{WebhookOptions, run_webhooks};
use crate::cli::error::CliError;
use crate::cli::options::Global;

use super::report::print;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  one receiver  what one of the receivers did; all others answered at once. At last also applications that read all
                events, whose receivers are not there
  events        that were sent to all queries
  p50, p99, max from an event's creation in the generator to the arrival of its request, at all other receivers
  again         requests that came twice
  lost          events that did not come, though all receivers answered at last";

pub(super) fn run(global: Global, options: WebhookOptions) -> Result<(), CliError> {
    if !(options.rate_per_query > 0.0 && options.rate_per_query.is_finite()) {
        return Err(CliError::new("a rate is not a positive number").with_hint("--rate 1 is one event a second"));
    }
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
