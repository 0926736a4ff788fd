//! `rivulet status`: what the server is doing.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use crate::api::types::Status;

use super::error::CliError;
use super::output::{bytes, duration_us, print_json, table, uptime};
use super::{Connection, Global};

/// How often `--watch` asks.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Moves to the top left and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Arguments of `rivulet status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    connection: Connection,
    /// Show it again every second
    #[arg(long)]
    watch: bool,
}

pub(super) fn run(global: Global, arguments: &StatusArguments) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let clear = arguments.watch && !global.json && io::stdout().is_terminal();
    loop {
        let status: Status = client.get("/api/v1/status", &[])?;
        let mut out = io::stdout().lock();
        if global.json {
            print_json(&mut out, &status)?;
        } else {
            write!(out, "{}{}", if clear { CLEAR } else { "" }, text(&status))?;
        }
        out.flush()?;
        if !arguments.watch {
            return Ok(());
        }
        thread::sleep(WATCH_INTERVAL);
    }
}

fn text(status: &Status) -> String {
    let mut text = String::new();
    let memory = status.memory_rss_bytes.map_or_else(|| "unknown".into(), bytes);
    // Writing to memory does not fail.
    let _ = writeln!(
        text,
        "Rivulet {}, up {}, {memory} of memory, data in {}",
        status.version,
        uptime(status.uptime_ms),
        status.data_dir,
    );
    let not_running: u64 = status.applications.iter().map(|application| application.queries_not_running).sum();
    let not_running = if not_running > 0 { format!(", {not_running} not running") } else { String::new() };
    let queries = if status.queries_running == 1 { "query" } else { "queries" };
    let _ =
        writeln!(text, "{} {queries} running, {} paused{not_running}", status.queries_running, status.queries_paused);
    let running: Vec<_> = status.applications.iter().filter(|application| application.not_running.is_none()).collect();
    if !running.is_empty() {
        let rows = running.iter().map(|application| {
            let percentile = |value: Option<u64>| value.map_or_else(|| "-".into(), duration_us);
            [
                application.name.clone(),
                application.queries_running.to_string(),
                application.queries_paused.to_string(),
                application.events.to_string(),
                format!("{:.1}", application.batch_rows_mean),
                application.results.to_string(),
                refused(application.refused.iter()),
                format!("{} ({})", application.inbox_rows, bytes(application.inbox_bytes)),
                percentile(application.processing.p50_us),
                percentile(application.processing.p99_us),
                percentile(application.end_to_end.p50_us),
                percentile(application.end_to_end.p99_us),
            ]
        });
        let headers = [
            "application",
            "running",
            "paused",
            "events",
            "rows/batch",
            "results",
            "refused",
            "waiting",
            "p50",
            "p99",
            "out p50",
            "out p99",
        ];
        let _ = writeln!(text, "\n{}", table(headers, &[1, 2, 3, 4, 5, 7, 8, 9, 10, 11], rows));
    }
    for application in &status.applications {
        let name = &application.name;
        match (&application.not_running, application.queries_not_running) {
            (Some(reason), _) => {
                let _ = writeln!(text, "{name}: not running: {reason}");
            }
            (None, 0) => {}
            (None, count) => {
                let _ =
                    writeln!(text, "{name}: not running: {count} of its queries, whose parameters do not fit any more");
            }
        }
        if let Some(refusal) = &application.last_refusal {
            let _ = writeln!(text, "{name}: last refused because of {refusal}");
        }
    }
    match status.messages_unrouted {
        0 => {}
        1 => text.push_str("1 message arrived on a topic that no query reads\n"),
        count => {
            let _ = writeln!(text, "{count} messages arrived on topics that no query reads");
        }
    }
    if !status.connections.is_empty() {
        let rows = status.connections.iter().map(|connection| {
            [
                connection.broker.clone(),
                if connection.connected { "connected" } else { "not connected" }.to_owned(),
                connection.reconnects.to_string(),
                connection.gaps.to_string(),
                connection.last_error.clone().unwrap_or_else(|| "-".into()),
            ]
        });
        let headers = ["broker", "state", "reconnects", "gaps", "last error"];
        let _ = writeln!(text, "\n{}", table(headers, &[2, 3], rows));
    }
    for connection in &status.connections {
        if connection.dropped.values().any(|&count| count > 0) {
            let dropped = refused(connection.dropped.iter()).replace('_', " ");
            let _ = writeln!(text, "{}: dropped or turned away: {dropped}", connection.broker);
        }
        for (filter, reason) in &connection.refused_subscriptions {
            let _ = writeln!(text, "{} refuses the subscription '{filter}': {reason}", connection.broker);
        }
    }
    text
}

/// Counts by reason, those without any left out.
fn refused<'a>(reasons: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    let some: Vec<String> =
        reasons.filter(|(_, count)| **count > 0).map(|(reason, count)| format!("{count} {reason}")).collect();
    if some.is_empty() { "0".into() } else { some.join(", ") }
}
