//! `rivulet query`: queries.

mod bulk;
mod parameter;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use rivulet_connectors::connector::Direction;
use serde_json::{Map, Value, json};

use crate::api::types::{
    Application, BigQuery, Query, QueryActivity, QueryAltered, QueryCreated, QueryPage, QueryPatch, QuerySubmission,
};
use crate::counted::counted;
use crate::http_client::{Client, WatchEvent, application_path, segment};
use crate::service::{QUERIES_PAGE_MAX, counted_from};
use crate::times::at;

use super::error::CliError;
use super::options::{Connection, Global};
use super::output::{bytes, cell, colours, duration_us, paint, print_json, table};
use bulk::Existing;

pub(super) const EXAMPLES: &str = "\
A query is one use of an application: its values of the parameters. Big queries, which CREATE QUERY name AS SELECT ...
makes, are shown, paused, resumed, dropped and watched by the same commands.

Examples:
  rivulet query submit --application freezer_alarm --name north_1 -p shop=north -p freezer=1
  rivulet query why north_1          why nothing comes of it, or what does
  rivulet query watch north_1        its results as they come
  rivulet query set north_1 warmest=-10
  rivulet query list --application freezer_alarm --like 'north%'
  rivulet query list --label 'home 42'";

/// Arguments of `rivulet query`.
#[derive(Debug, clap::Args)]
pub(super) struct QueryArguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: QueryCommand,
}

/// Commands on queries.
#[derive(Debug, clap::Subcommand)]
enum QueryCommand {
    /// Submit a query
    Submit {
        /// Its application, by name or by the first 8 characters or more of its id
        #[arg(short, long, value_name = "NAME")]
        application: String,
        /// Value of a parameter; give it again for each one
        #[arg(short, long = "parameter", value_name = "NAME=VALUE")]
        parameters: Vec<String>,
        /// Its name; by default one is generated
        #[arg(long)]
        name: Option<String>,
        /// What it belongs to, for example a home: applications whose queries have a label in common are placed
        /// together
        #[arg(long, value_name = "TEXT")]
        label: Option<String>,
    },
    /// Submit many queries from a file, one JSON object a line
    #[command(
        after_help = "A line: {\"name\": \"kims_ac\", \"application\": \"ac_control\", \"parameters\": {\"home\": \"42\"}}"
    )]
    Bulk {
        /// The file; `-` is standard input
        #[arg(value_name = "FILE.ndjson")]
        file: PathBuf,
        /// Print the name of each query that was created
        #[arg(short, long)]
        verbose: bool,
        /// Pass over lines whose name exists: to go on after a submission that broke off
        #[arg(long)]
        skip_existing: bool,
        /// Give queries whose name exists the values and the label of their line; those that have them already are left
        /// as they are
        #[arg(long, conflicts_with = "skip_existing")]
        replace_existing: bool,
    },
    /// Give a query other values while it runs
    ///
    /// Parameters that are not named keep their values. The answer says which state the query keeps, and which begins
    /// anew because it depends on a value that has changed.
    Set {
        /// Its name
        name: String,
        /// Values of parameters
        #[arg(value_name = "NAME=VALUE", required_unless_present_any = ["label", "no_label"])]
        parameters: Vec<String>,
        /// What it belongs to from now on
        #[arg(long, value_name = "TEXT", conflicts_with = "no_label")]
        label: Option<String>,
        /// It belongs to nothing any more
        #[arg(long)]
        no_label: bool,
    },
    /// List queries
    List {
        /// Only those of this application, by name or by the first 8 characters or more of its id
        #[arg(short, long, value_name = "NAME")]
        application: Option<String>,
        /// Only those whose name matches this SQL LIKE pattern
        #[arg(long, value_name = "PATTERN")]
        like: Option<String>,
        /// Only those with this label
        #[arg(long, value_name = "TEXT")]
        label: Option<String>,
        /// Only names after this one
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
        /// At most so many; they are fetched page by page
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
    },
    /// Show a query: its application and parameters, or for a big one what it has read and written
    Show {
        /// Its name
        name: String,
    },
    /// Say why a query gives what it gives: what became of its events, and what it waits for
    Why {
        /// Its name
        name: String,
    },
    /// Pause queries: they keep their state, and get no events until they are resumed; big ones stop reading their
    /// sources
    Pause {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Resume paused queries; a big one that failed goes on from its last checkpoint
    Resume {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Drop queries
    Drop {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Print the results of a query as they come, one JSON object a line
    Watch {
        /// Its name
        name: String,
        /// End after so many results
        #[arg(long, value_name = "COUNT")]
        limit: Option<u64>,
    },
}

pub(super) fn run(global: Global, arguments: QueryArguments) -> Result<(), CliError> {
    let QueryArguments { connection, command } = arguments;
    let client = connection.client()?;
    match command {
        QueryCommand::Submit { application, parameters, name, label } => {
            submit(global, &client, application, &parameters, name, label)
        }
        QueryCommand::Bulk { file, verbose, skip_existing, replace_existing } => {
            let existing = match (skip_existing, replace_existing) {
                (true, _) => Existing::Skip,
                (_, true) => Existing::Replace,
                _ => Existing::Refuse,
            };
            bulk::run(global, &client, &file, verbose, existing)
        }
        QueryCommand::Set { name, parameters, label, no_label } => {
            let label = if no_label { Some(None) } else { label.map(Some) };
            set(global, &client, &name, &parameters, label)
        }
        QueryCommand::List { application, like, label, after, limit } => {
            // Asked for first: a filter by what is not there would find nothing and not say why.
            let application =
                application.map(|name| client.get::<Application>(&application_path(&name), &[])).transpose()?;
            let application = application.map(|application| application.name);
            let filter = [("application", application), ("like", like), ("label", label)];
            list(global, &client, &filter, after, limit)
        }
        QueryCommand::Show { name } => show(global, &client, &name),
        QueryCommand::Why { name } => why(global, &client, &name),
        QueryCommand::Pause { names } => {
            each(global, &names, "paused", |name| Ok(client.post_empty(&format!("{}/pause", path(name)))?))
        }
        QueryCommand::Resume { names } => {
            each(global, &names, "running", |name| Ok(client.post_empty(&format!("{}/resume", path(name)))?))
        }
        QueryCommand::Drop { names } => each(global, &names, "dropped", |name| Ok(client.delete(&path(name), &[])?)),
        QueryCommand::Watch { name, limit } => watch(&client, &name, limit),
    }
}

/// Prints results until there are enough of them. That there will be no more is a failure.
fn watch(client: &Client, name: &str, limit: Option<u64>) -> Result<(), CliError> {
    if io::stderr().is_terminal() {
        eprintln!("waiting for results of {name}; Ctrl-C ends it");
    }
    client.watch(name, limit, |event| match event {
        WatchEvent::Result(result) => {
            let mut out = io::stdout().lock();
            writeln!(out, "{result}")?;
            Ok(out.flush()?)
        }
        WatchEvent::Lost(count) => {
            eprintln!("too slow: {} skipped", counted(count, "result"));
            Ok(())
        }
        WatchEvent::Refused(_) | WatchEvent::End("limit") => Ok(()),
        WatchEvent::End("dropped") => Err(CliError::new(format!("the query {name} was dropped: no more results"))),
        WatchEvent::End(_) => Err(CliError::new("the server is stopping: no more results")
            .with_hint("watch again when it runs; the query is kept")),
    })
}

fn path(name: &str) -> String {
    format!("/api/v1/queries/{}", segment(name))
}

fn submit(
    global: Global,
    client: &Client,
    application: String,
    assignments: &[String],
    name: Option<String>,
    label: Option<String>,
) -> Result<(), CliError> {
    let parameters = assigned(client, &application, assignments)?;
    let submission = QuerySubmission { name, application, parameters, label };
    let created: QueryCreated = client.post_json("/api/v1/queries", &submission)?;
    let mut out = io::stdout().lock();
    if global.json {
        return print_json(&mut out, &created);
    }
    eprintln!("query {} runs", created.name);
    Ok(writeln!(out, "{}", created.name)?)
}

/// The values in assignments, as the application declares its parameters.
fn assigned(client: &Client, application: &str, assignments: &[String]) -> Result<Map<String, Value>, CliError> {
    let declared: Application = client.get(&application_path(application), &[])?;
    let mut parameters = Map::new();
    for assignment in assignments {
        let (name, value) = parameter::parse(assignment, &declared.parameters)?;
        if parameters.insert(name.clone(), value).is_some() {
            return Err(CliError::new(format!("the parameter {name} is given twice")));
        }
    }
    Ok(parameters)
}

fn set(
    global: Global,
    client: &Client,
    name: &str,
    assignments: &[String],
    label: Option<Option<String>>,
) -> Result<(), CliError> {
    let query: Query = client.get(&path(name), &[])?;
    let parameters = match query.big {
        // The server says best what is wrong.
        Some(_) => Map::new(),
        None => assigned(client, &query.application, assignments)?,
    };
    let altered: QueryAltered = client.patch_json(&path(name), &QueryPatch { parameters, label })?;
    if global.json {
        return print_json(&mut io::stdout().lock(), &altered);
    }
    if !altered.changed {
        eprintln!("query {name} has these values already");
        return Ok(());
    }
    eprintln!("query {name} is altered");
    for (what, parameters) in [("kept", &altered.state_kept), ("reset", &altered.state_reset)] {
        if !parameters.is_empty() {
            eprintln!("state {what}: {}", parameters.join(", "));
        }
    }
    altered.begun_anew.iter().for_each(|operator| eprintln!("begins anew: {operator}"));
    if let Some(warning) = &altered.warning {
        eprintln!("{} {warning}", paint("1;33", "warning:", colours(&io::stderr())));
    }
    Ok(())
}

fn list(
    global: Global,
    client: &Client,
    filter: &[(&str, Option<String>)],
    mut after: Option<String>,
    limit: usize,
) -> Result<(), CliError> {
    let mut queries: Vec<Query> = Vec::new();
    while queries.len() < limit {
        let page_limit = (limit - queries.len()).min(QUERIES_PAGE_MAX).to_string();
        let mut parameters = vec![("limit", page_limit.as_str())];
        parameters.extend(filter.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))));
        parameters.extend(after.as_deref().map(|after| ("after", after)));
        let page: QueryPage = client.get("/api/v1/queries", &parameters)?;
        queries.extend(page.queries);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut out = io::stdout().lock();
    if global.json {
        print_json(&mut out, &queries)?;
    } else {
        let rows =
            queries.iter().map(|query| [query.name.clone(), application(query), query.state.clone(), values(query)]);
        writeln!(out, "{}", table(["name", "application", "state", "parameters"], &[], rows))?;
    }
    if let Some(after) = after {
        eprintln!("there are more: --limit shows more of them, --after {after} the next ones");
    }
    Ok(())
}

fn show(global: Global, client: &Client, name: &str) -> Result<(), CliError> {
    let query: Query = client.get(&path(name), &[])?;
    let mut out = io::stdout().lock();
    if global.json {
        return print_json(&mut out, &query);
    }
    if let Some(big) = &query.big {
        write!(out, "{}", big_text(big))?;
        return write_why(&mut out, &query.why);
    }
    let mut lines: Vec<(String, String)> = [
        ("name", query.name.clone()),
        ("id", query.id.unwrap_or_default().to_string()),
        ("application", query.application.clone()),
        ("state", query.state.clone()),
        ("parameters", values(&query)),
        ("input topic", query.input_topic.clone()),
        ("output topic", query.output_topic.clone()),
    ]
    .map(|(label, value)| (label.to_owned(), value))
    .into();
    lines.extend(query.label.clone().map(|label| ("label".to_owned(), label)));
    lines.extend(query.parts.map(|parts| ("parts".to_owned(), parts.to_string())));
    let counters = [("events", query.events), ("results", query.results), ("refused", query.refused)];
    lines.extend(counters.into_iter().filter_map(|(label, count)| Some((label.to_owned(), count?.to_string()))));
    lines.extend(query.activity.as_ref().into_iter().flat_map(activity_lines));
    for (label, value) in lines {
        let line = format!("{label:13} {value}");
        writeln!(out, "{}", line.trim_end())?;
    }
    if counters.iter().all(|(_, count)| count.is_none()) {
        eprintln!("events are counted by application: rivulet status");
    }
    write_why(&mut out, &query.why)
}

/// What became of a query's events, beside how many there were: what DESCRIBE QUERY says of it.
fn activity_lines(activity: &QueryActivity) -> Vec<(String, String)> {
    let time = |ms: i64| at(ms.saturating_mul(1_000));
    let from = counted_from(activity.is_from_start, activity.is_from_change);
    let since = time(activity.counted_since_ms);
    let mut lines = vec![("counted since".to_owned(), format!("{since}, {from}"))];
    lines.extend(activity.counted_until_ms.map(|until| ("counted until".to_owned(), time(until))));
    let mut add = |label: &str, value: Option<String>| lines.extend(value.map(|value| (label.to_owned(), value)));
    if activity.inputs.len() > 1 {
        for input in &activity.inputs {
            let last = input.last_ms.map(|ms| format!(", the last one {}", time(ms))).unwrap_or_default();
            add("events of", Some(format!("{}: {}{last}", input.name, input.events)));
        }
    }
    add("last event", activity.inputs.iter().filter_map(|input| input.last_ms).max().map(time));
    for input in &activity.inputs {
        add("on its topic", input.topic_events.map(|events| counted(events, "event")));
    }
    add("waiting", (activity.waiting > 0).then(|| counted(activity.waiting, "event")));
    add("on disk", activity.is_spilled.then(|| "until the next event".to_owned()));
    for (reason, rows) in &activity.refused {
        add("refused by", Some(format!("{reason}: {rows}")));
    }
    let refusal = activity.last_refusal.as_ref();
    add("a refusal", refusal.map(|refusal| format!("{}: {}", refusal.reason, refusal.content)));
    add("its reason", refusal.map(|refusal| refusal.detail.replace('\n', "; ")));
    for (place, step) in (1..).zip(&activity.steps) {
        add(&format!("step {place}"), Some(format!("{}: {}", step.operator, counted(step.rows, "row"))));
    }
    add("always null", (!activity.null_columns.is_empty()).then(|| activity.null_columns.join(", ")));
    add("filtered out", Some(activity.filtered_out.to_string()));
    add("last result", activity.last_result_ms.map(time));
    add("as JSON", activity.last_result.clone());
    add("event time", activity.last_event_time_ms.map(time));
    add("newest time", activity.clock_ms.map(time));
    add("watermark", activity.watermark_ms.map(time));
    let window = activity.window_start_ms.zip(activity.window_end_ms);
    add("open window", window.map(|(start_ms, end_ms)| format!("{} to {}", time(start_ms), time(end_ms))));
    add("next timer", activity.next_timer_ms.map(time));
    lines
}

fn write_why(out: &mut impl Write, why: &[String]) -> Result<(), CliError> {
    for sentence in why {
        writeln!(out, "{:13} {sentence}", "why")?;
    }
    Ok(())
}

fn why(global: Global, client: &Client, name: &str) -> Result<(), CliError> {
    let query: Query = client.get(&path(name), &[])?;
    let mut out = io::stdout().lock();
    if global.json {
        return print_json(&mut out, &json!({"name": query.name, "why": query.why, "activity": query.activity}));
    }
    for sentence in &query.why {
        writeln!(out, "{sentence}")?;
    }
    Ok(())
}

/// A big query belongs to no application.
fn application(query: &Query) -> String {
    if query.big.is_some() { "-".into() } else { query.application.clone() }
}

/// How its sinks get on.
fn delivery(query: &BigQuery) -> Option<String> {
    let sinks = query.health.iter().filter(|end| end.direction == Direction::Sink);
    let texts = sinks.map(|end| {
        let error = end.last_error.as_ref().map(|error| format!(", last error: {error}")).unwrap_or_default();
        let failures = counted(end.failures, "failed attempt");
        format!("{} {}, {} waiting, {failures}{error}", end.name, end.condition, end.waiting_rows)
    });
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// What a big query does, a line for each thing.
fn big_text(query: &BigQuery) -> String {
    let or_dash = |value: Option<u64>| value.map_or_else(|| "-".into(), duration_us);
    let refused: Vec<String> = query.refused.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let lines = [
        ("name", Some(query.name.clone())),
        ("state", Some(query.state.to_string())),
        ("reason", query.reason.clone()),
        ("sources", Some(query.sources.join(", "))),
        ("sink", Some(query.sink.clone())),
        ("rows in", Some(query.rows_in.to_string())),
        ("rows out", Some(query.rows_out.to_string())),
        ("to the sink", delivery(query)),
        ("refused", Some(if refused.is_empty() { "0".into() } else { refused.join(", ") })),
        ("a refusal", query.refusal.clone()),
        ("waiting", Some(query.waiting_rows.to_string())),
        ("latency", Some(format!("p50 {}, p99 {}", or_dash(query.latency.p50_us), or_dash(query.latency.p99_us)))),
        (
            "window wait",
            query.window_wait.mean_us.map(|mean_us| {
                let max = or_dash(query.window_wait.max_us);
                format!("mean {}, max {max}, from the newest row of a window to its end", duration_us(mean_us))
            }),
        ),
        ("behind", Some(or_dash(query.watermark_lag_us))),
        ("state bytes", Some(bytes(query.state_bytes))),
        ("tasks", Some(query.tasks.to_string())),
        ("sql", Some(query.sql.clone())),
    ];
    let mut text = String::new();
    for (label, value) in lines.into_iter().filter_map(|(label, value)| Some((label, value?))) {
        text.push_str(format!("{label:13} {value}").trim_end());
        text.push('\n');
    }
    text
}

/// Parameter values on a line.
fn values(query: &Query) -> String {
    let values: Vec<String> = query.parameters.iter().map(|(name, value)| format!("{name}={}", cell(value))).collect();
    values.join(" ")
}

/// Does something to each of the queries; goes on after a failure, and fails in the end.
fn each(
    global: Global,
    names: &[String],
    done: &str,
    act: impl Fn(&str) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut failed = false;
    for name in names {
        match act(name) {
            Ok(()) if global.json => print_json(&mut io::stdout().lock(), &json!({"name": name, "state": done}))?,
            Ok(()) => eprintln!("query {name} is {done}"),
            Err(error) => {
                global.report(&error);
                failed = true;
            }
        }
    }
    if failed { Err(CliError::reported()) } else { Ok(()) }
}
