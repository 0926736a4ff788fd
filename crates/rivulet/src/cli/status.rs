//! `rivulet status`: what the server is doing.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use rivulet_connectors::connector::Condition;

use crate::api::types::{ApplicationStatus, BigQuery, Checkpoints, Log, Recovery, Status, Worker};
use crate::burst::lambda::budget::in_dollars;
use crate::counted::{counted, noun};
use crate::service::QueryState;

use super::error::CliError;
use super::options::{Connection, Global};
use super::output::{NOTHING, bytes, columns_that_say, duration_us, print_json, render, table, uptime};
use super::usage;

/// How often `--watch` asks.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Moves to the top left and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What the columns of the table are.
pub(super) const COLUMNS: &str = "\
A column is left out where no row has anything in it.
Of each application, since the server started:
  running    queries that run
  events     events received
  results    results sent
  refused    rows refused, for the reasons below the table
  waiting    events that wait to be processed
  p50, p99   median and 99th percentile of the time from an event's arrival to the end of its processing; of an event
             that is replayed, or read later from the log, that has the time in between in it
With --wide also:
  paused     queries that are paused
  rows/batch rows that were processed together, in the mean
  event p50, event p99
             as p50 and p99, from when the event says that it happened
Of each big query, since it was last started:
  rows in    rows read from its sources
  rows out   rows that the receiver behind its sink has acknowledged
  refused    rows refused, for the reasons below the table
  p50, p99   median and 99th percentile of the time from a row's arrival to the handing of what came of it to the
             sink; of a window from its end, and the wait for that is shown by query show
  behind     how far the time of its results is behind the clock
With --wide also:
  tasks      parallel tasks that it runs in
  waiting    rows that wait between them
  state      memory of its operators
And, on a machine with several memory nodes (NUMA), on which core and node each worker stays.
With --operators, of each task of each big query since its start, and of the operators in it:
  queued     how long a row waited in its queue, without the time in which the task waited for a worker
  for worker how long a row waited in its queue while the task waited for a worker
  busy       time in which it ran
  used       the part of the time in which it had work
  at most    rows that ever waited in its queue
And the bottleneck: the task that has work all the time first, and at how many rows a second of its sources.";

/// Arguments of `rivulet status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    connection: Connection,
    /// Show it again every second
    #[arg(long)]
    watch: bool,
    /// Show every column, in a table wider than 80 columns
    #[arg(long)]
    wide: bool,
    /// Show what the operators of big queries do with their time instead
    #[arg(long, conflicts_with = "wide")]
    operators: bool,
}

pub(super) fn run(global: Global, arguments: &StatusArguments) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let clear = arguments.watch && !global.json && io::stdout().is_terminal();
    loop {
        let asked: &[_] = if arguments.operators { &[("operators", "true")] } else { &[] };
        let status: Status = client.get("/api/v1/status", asked)?;
        let mut out = io::stdout().lock();
        if global.json {
            print_json(&mut out, &status)?;
        } else {
            let shown = if arguments.operators { operators_text(&status) } else { text(&status, arguments.wide) };
            write!(out, "{}{shown}", if clear { CLEAR } else { "" })?;
        }
        out.flush()?;
        if !arguments.watch {
            return Ok(());
        }
        thread::sleep(WATCH_INTERVAL);
    }
}

fn text(status: &Status, wide: bool) -> String {
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
    let queries = noun(status.queries_running, "query");
    let spilled: u64 = status.applications.iter().map(|application| application.queries_spilled).sum();
    let spilled = if spilled > 0 { format!("; {spilled} silent, their state on disk") } else { String::new() };
    let big = match status.big_queries.len() as u64 {
        0 => String::new(),
        all => {
            let running = status.big_queries.iter().filter(|query| query.state == QueryState::Running).count();
            format!("; {running} of {} running", counted(all, "big query"))
        }
    };
    let lent: u64 = status.burst_workers.iter().map(|one| one.tasks).sum();
    let lent = match status.burst_workers.len() as u64 {
        0 => String::new(),
        all => format!("; {} on {}", counted(lent, "task"), counted(all, "burst worker")),
    };
    let _ = writeln!(
        text,
        "{} {queries} running, {} paused{not_running}{spilled}{big}{lent}",
        status.queries_running, status.queries_paused
    );
    let running: Vec<_> = status.applications.iter().filter(|application| application.not_running.is_none()).collect();
    if !running.is_empty() {
        let _ = writeln!(text, "\n{}", table_of(&OF_APPLICATIONS, wide, running));
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
        let counts = refused(application.refused.iter());
        match &application.last_refusal {
            Some(refusal) => {
                let _ = writeln!(text, "{name}: refused {counts}; the last one because of {refusal}");
            }
            // Events that were given up have no reason of their own.
            None if counts != "0" => {
                let _ = writeln!(text, "{name}: refused {counts}");
            }
            None => {}
        }
        for end in application.health.iter().filter(|end| end.condition != Condition::Ok) {
            let error = end.last_error.as_deref().unwrap_or_default();
            let _ = writeln!(text, "{name}: the {} '{}' is {}: {error}", end.direction, end.name, end.condition);
        }
        for warning in &application.warnings {
            let _ = writeln!(text, "{name}: warning: {warning}");
        }
    }
    if !status.big_queries.is_empty() {
        let _ = writeln!(text, "\n{}", table_of(&OF_BIG_QUERIES, wide, &status.big_queries));
    }
    for query in &status.big_queries {
        if let Some(reason) = &query.reason {
            let _ = writeln!(text, "{}: {}: {reason}", query.name, query.state);
        }
        if let Some(refusal) = &query.refusal {
            let counts = refused(query.refused.iter());
            let _ = writeln!(text, "{}: refused {counts}; one of them because of {refusal}", query.name);
        }
    }
    if wide && status.workers.iter().any(|worker| worker.node.is_some()) {
        let _ = writeln!(text, "\n{}", worker_table(&status.workers));
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
            ]
        });
        let headers = ["broker", "state", "reconnects", "gaps"];
        let _ = writeln!(text, "\n{}", table(headers, &[2, 3], rows));
    }
    if let Some(checkpoints) = &status.checkpoints {
        text.push_str(&checkpoints_text(checkpoints));
    }
    if let Some(log) = &status.log {
        text.push_str(&log_text(log));
    }
    if let Some(one) = &status.functions {
        let (name, running) = (&one.function, one.running);
        let [spent, reserved, max] =
            [one.spent_today_microdollars, one.reserved_microdollars, one.cost_max_microdollars].map(in_dollars);
        let _ = writeln!(
            text,
            "\nfunction {name}: {running} running, {spent} of {max} dollars spent today, {reserved} reserved"
        );
        one.last_error.iter().for_each(|error| _ = writeln!(text, "function {name}: {error}"));
    }
    for connection in &status.connections {
        // One of before the connection was made again is history, and in the log.
        if let Some(error) = connection.last_error.as_ref().filter(|_| !connection.connected) {
            let _ = writeln!(text, "{}: {error}", connection.broker);
        }
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

/// What the tasks of big queries do with their time.
fn operators_text(status: &Status) -> String {
    let texts: Vec<String> = status
        .big_queries
        .iter()
        .filter(|query| !query.operators.is_empty())
        .map(|query| format!("{}\n{}\n", query.name, usage::text(&query.operators, query.utilisation_cv)))
        .collect();
    if texts.is_empty() { "no big query runs\n".into() } else { texts.join("\n") }
}

/// How state is saved, and what was wrong with that.
fn checkpoints_text(checkpoints: &Checkpoints) -> String {
    let mut text = String::new();
    if let (Some(last), Some(age_ms)) = (&checkpoints.last, checkpoints.age_ms) {
        let (live, ago) = (bytes(last.live_bytes), uptime(age_ms));
        // Where no application had anything to save there is none that would have a number.
        let number = if last.epoch == 0 { String::new() } else { format!(" {}", last.epoch) };
        let _ = writeln!(text, "\ncheckpoint{number} made {ago} ago, {live} in {}", checkpoints.place);
    }
    if let Some(error) = &checkpoints.last_error {
        let _ = writeln!(text, "checkpoints fail, {} so far: {error}", checkpoints.failed);
    }
    for one in &checkpoints.big_queries {
        let _ = match (&one.last_error, one.epoch, one.age_ms) {
            (Some(error), ..) => writeln!(text, "no checkpoint is made of the query {}: {error}", one.query),
            (None, Some(epoch), Some(age_ms)) => {
                writeln!(
                    text,
                    "query {}: checkpoint {epoch} made {} ago, {}",
                    one.query,
                    uptime(age_ms),
                    bytes(one.live_bytes)
                )
            }
            _ => Ok(()),
        };
    }
    if let Some(Recovery { epoch, queries, duration_ms, problems, .. }) = &checkpoints.recovered {
        if let Some(epoch) = epoch {
            let queries = counted(*queries, "query");
            let _ =
                writeln!(text, "at the start {queries} got back the state of checkpoint {epoch}, in {duration_ms} ms");
        }
        problems.iter().for_each(|problem| {
            let _ = writeln!(text, "at the start: {problem}");
        });
    }
    text
}

/// How the log of events stands, and what was wrong with it.
fn log_text(log: &Log) -> String {
    let mut text = String::new();
    let (kept, size) = (counted(log.next - log.first, "event"), bytes(log.disk_bytes));
    let _ = writeln!(text, "\nlog of events: {size} on disk, positions {} to {}, {kept}", log.first, log.next - 1);
    let replayed = counted(log.replayed_events, "event");
    if log.is_replaying {
        let _ = writeln!(text, "log of events: being replayed, {replayed} so far");
    } else if log.replayed_events > 0 {
        let _ = writeln!(text, "log of events: {replayed} replayed in {} ms", log.replay_ms);
    }
    if let Some(loss) = &log.loss {
        let _ = writeln!(text, "log of events: {loss}");
    }
    if let Some(problem) = &log.problem {
        let _ = writeln!(text, "log of events: {problem}");
    }
    text
}

/// In which tables a column is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Always,
    /// In the table of at most 80 columns.
    Narrow,
    /// In the table with every column.
    Wide,
}

/// The header of a column, where it is shown, whether it is aligned right as numbers are, and its cell.
type Column<T> = (&'static str, Shown, bool, fn(&T) -> String);

const OF_APPLICATIONS: [Column<ApplicationStatus>; 14] = [
    ("application", Shown::Always, false, |one| one.name.clone()),
    ("running", Shown::Always, true, |one| one.queries_running.to_string()),
    ("paused", Shown::Wide, true, |one| one.queries_paused.to_string()),
    ("events", Shown::Always, true, |one| one.events.to_string()),
    ("rows/batch", Shown::Wide, true, |one| format!("{:.1}", one.batch_rows_mean)),
    ("results", Shown::Always, true, |one| one.results.to_string()),
    ("refused", Shown::Narrow, true, |one| one.refused.values().sum::<u64>().to_string()),
    ("refused", Shown::Wide, false, |one| refused(one.refused.iter())),
    ("waiting", Shown::Narrow, true, |one| one.inbox_rows.to_string()),
    ("waiting", Shown::Wide, true, |one| format!("{} ({})", one.inbox_rows, bytes(one.inbox_bytes))),
    ("p50", Shown::Always, true, |one| percentile(one.processing.p50_us)),
    ("p99", Shown::Always, true, |one| percentile(one.processing.p99_us)),
    ("event p50", Shown::Wide, true, |one| percentile(one.end_to_end.p50_us)),
    ("event p99", Shown::Wide, true, |one| percentile(one.end_to_end.p99_us)),
];

const OF_BIG_QUERIES: [Column<BigQuery>; 12] = [
    ("big query", Shown::Always, false, |one| one.name.clone()),
    ("state", Shown::Always, false, big_state),
    ("tasks", Shown::Wide, true, |one| one.tasks.to_string()),
    ("rows in", Shown::Always, true, |one| one.rows_in.to_string()),
    ("rows out", Shown::Always, true, |one| one.rows_out.to_string()),
    ("refused", Shown::Narrow, true, |one| one.refused.values().sum::<u64>().to_string()),
    ("refused", Shown::Wide, false, |one| refused(one.refused.iter())),
    ("waiting", Shown::Wide, true, |one| one.waiting_rows.to_string()),
    ("state bytes", Shown::Wide, true, |one| bytes(one.state_bytes)),
    ("p50", Shown::Always, true, |one| percentile(one.latency.p50_us)),
    ("p99", Shown::Always, true, |one| percentile(one.latency.p99_us)),
    ("behind", Shown::Always, true, |one| percentile(one.watermark_lag_us)),
];

/// The wide table, or what fits into 80 columns; without columns of which no row says anything.
fn table_of<'t, T: 't>(columns: &[Column<T>], wide: bool, rows: impl IntoIterator<Item = &'t T>) -> String {
    let other = if wide { Shown::Narrow } else { Shown::Wide };
    let columns: Vec<&Column<T>> = columns.iter().filter(|(_, shown, ..)| *shown != other).collect();
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| columns.iter().map(|(.., cell)| cell(row)).collect()).collect();
    let said = columns_that_say(columns.len(), &rows, |cell| cell == NOTHING);
    let numeric: Vec<usize> = (0..said.len()).filter(|&place| columns[said[place]].2).collect();
    let rows = rows.into_iter().map(|row| said.iter().map(|&place| row[place].clone()).collect());
    render(said.iter().map(|&place| columns[place].0.to_owned()).collect(), &numeric, rows)
}

/// The state of a query, and what of it does not work though it runs: `running, sink retrying`.
fn big_state(query: &BigQuery) -> String {
    let worst = query.health.iter().filter(|end| end.condition != Condition::Ok).max_by_key(|end| end.condition);
    match worst.filter(|_| query.state == QueryState::Running) {
        Some(end) => format!("running, {} {}", end.direction, end.condition),
        None => query.state.to_string(),
    }
}

/// Where workers stand on a machine with several memory nodes.
fn worker_table(workers: &[Worker]) -> String {
    let number = |value: Option<u64>| value.map_or_else(|| NOTHING.into(), |value| value.to_string());
    let rows = workers.iter().map(|worker| {
        [
            worker.worker.to_string(),
            number(worker.core),
            number(worker.node),
            worker.tasks.to_string(),
            format!("{:.2}", worker.load),
        ]
    });
    table(["worker", "core", "node", "tasks", "load"], &[0, 1, 2, 3, 4], rows)
}

fn percentile(value: Option<u64>) -> String {
    value.map_or_else(|| NOTHING.into(), duration_us)
}

/// Counts by reason, those without any left out.
fn refused<'a>(reasons: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    let some: Vec<String> =
        reasons.filter(|(_, count)| **count > 0).map(|(reason, count)| format!("{count} {reason}")).collect();
    if some.is_empty() { "0".into() } else { some.join(", ") }
}
