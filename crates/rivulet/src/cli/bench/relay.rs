//! `rivulet bench relay`: messages over links, through a relay and back.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use crate::bench::relay::{RelayOptions, forward, run_relay};
use crate::cli::error::CliError;
use crate::cli::options::{Global, duration};
use crate::cli::output;

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
The columns of the table:
  bytes, KiB   the size of messages, and of the buffers in which they are sent; 0: each by itself
  messages/s   that came back from the relay, checked one by one
  of ceiling   as a part of what plain sockets carry through three processes
  p50, p99     from the sending of a message to its return, milliseconds
  switches     context switches of the relay for a million messages
  ns           processor time of the relay for a message
  lost         messages that did not come back";

/// Arguments of `rivulet bench relay`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RelayArguments {
    /// The sizes of messages, with their time and number
    #[arg(long, value_delimiter = ',', default_value = "50,100,200,400,1024,10240", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    message_bytes: Vec<u32>,
    /// The sizes of buffers; 0 sends each message by itself
    #[arg(long, value_delimiter = ',', default_value = "16,1024", value_name = "KIB", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    buffer_kib: Vec<u32>,
    /// How long messages are sent in each run
    #[arg(long, default_value = "3s", value_parser = duration)]
    duration: Duration,
}

/// Arguments of `rivulet bench forward`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ForwardArguments {
    from: SocketAddr,
    to: SocketAddr,
}

pub(super) fn run(global: Global, arguments: RelayArguments) -> Result<(), CliError> {
    let sizes = |sizes: Vec<u32>| sizes.into_iter().map(|size| size as usize).collect();
    let options = RelayOptions {
        message_bytes: sizes(arguments.message_bytes),
        buffer_kib: sizes(arguments.buffer_kib),
        duration: arguments.duration,
    };
    let report = run_relay(&options, |line| eprintln!("{line}")).map_err(CliError::new)?;
    let text = if global.json {
        serde_json::to_string(&report).map_err(|error| CliError::new(error.to_string()))? + "\n"
    } else {
        let headers = ["bytes", "KiB", "messages/s", "of ceiling", "p50", "p99", "switches", "ns", "lost"];
        let row = |run: &crate::bench::relay::RelayRun| {
            let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
            [
                run.message_bytes.to_string(),
                run.buffer_kib.to_string(),
                format!("{:.0}", run.messages_per_s),
                format!("{:.2}", run.messages_per_s / run.ceiling_messages_per_s.max(1.0)),
                ms(run.latency_us_p50),
                ms(run.latency_us_p99),
                format!("{:.0}", run.context_switches_per_million),
                format!("{:.0}", run.relay_ns_per_message),
                run.lost.to_string(),
            ]
        };
        output::table(headers, &[0, 1, 2, 3, 4, 5, 6, 7, 8], report.runs.iter().map(row)) + "\n"
    };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    match report.runs.iter().map(|run| run.lost).sum() {
        0_u64 => Ok(()),
        lost => Err(CliError::new(format!("{lost} messages did not come back"))),
    }
}

pub(super) fn run_forward(arguments: &ForwardArguments) -> Result<(), CliError> {
    forward(arguments.from, arguments.to).map_err(|error| CliError::new(error.to_string()))
}
