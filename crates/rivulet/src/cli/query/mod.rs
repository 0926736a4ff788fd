//! `rivulet query`: queries.

mod bulk;
mod parameter;

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::Map;

use crate::api::types::{Application, Query, QueryCreated, QueryPage, QuerySubmission};
use crate::http_client::{Client, WatchEvent, segment};

use super::Global;
use super::app;
use super::error::CliError;
use super::output::{cell, print_json, table};

/// Queries that the server gives at a time.
const PAGE_LIMIT: usize = 1000;

/// Commands on queries.
#[derive(Debug, clap::Subcommand)]
pub(super) enum QueryCommand {
    /// Submit a query
    Submit {
        /// Its application, by name or id
        #[arg(short, long, value_name = "NAME")]
        application: String,
        /// Value of a parameter; give it again for each one
        #[arg(short, long = "parameter", value_name = "NAME=VALUE")]
        parameters: Vec<String>,
        /// Its name; generated without
        #[arg(long)]
        name: Option<String>,
    },
    /// Submit many queries from a file, one JSON object a line
    #[command(
        after_help = "A line: {\"name\": \"kims_ac\", \"application\": \"ac_control\", \"parameters\": {\"home\": \"42\"}}"
    )]
    Bulk {
        /// The file; `-` is standard input
        #[arg(value_name = "FILE.ndjson")]
        file: PathBuf,
    },
    /// List queries
    List {
        /// Only those of this application
        #[arg(short, long, value_name = "NAME")]
        application: Option<String>,
        /// Only those whose name matches this SQL LIKE pattern
        #[arg(long, value_name = "PATTERN")]
        like: Option<String>,
        /// Only names after this one
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
    },
    /// Show a query
    Show {
        /// Its name
        name: String,
    },
    /// Pause queries: they keep their state and get no events
    Pause {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Resume paused queries
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

pub(super) fn run(global: &Global, command: QueryCommand) -> Result<(), CliError> {
    let client = global.client()?;
    match command {
        QueryCommand::Submit { application, parameters, name } => {
            submit(global, &client, application, &parameters, name)
        }
        QueryCommand::Bulk { file } => bulk::run(global, &client, &file),
        QueryCommand::List { application, like, after, limit } => {
            let filter = [("application", application), ("like", like)];
            list(global, &client, &filter, after, limit)
        }
        QueryCommand::Show { name } => show(global, &client, &name),
        QueryCommand::Pause { names } => {
            each(&names, "paused", |name| Ok(client.post_empty(&format!("{}/pause", path(name)))?))
        }
        QueryCommand::Resume { names } => {
            each(&names, "running", |name| Ok(client.post_empty(&format!("{}/resume", path(name)))?))
        }
        QueryCommand::Drop { names } => each(&names, "dropped", |name| Ok(client.delete(&path(name), &[])?)),
        QueryCommand::Watch { name, limit } => client.watch(&name, limit, |event| {
            match event {
                WatchEvent::Result(result) => {
                    let mut out = io::stdout().lock();
                    writeln!(out, "{result}")?;
                    out.flush()?;
                }
                WatchEvent::Lost(count) => eprintln!("{count} results were skipped: too slow"),
            }
            Ok::<_, CliError>(())
        }),
    }
}

fn path(name: &str) -> String {
    format!("/api/v1/queries/{}", segment(name))
}

fn submit(
    global: &Global,
    client: &Client,
    application: String,
    assignments: &[String],
    name: Option<String>,
) -> Result<(), CliError> {
    let declared: Application = client.get(&app::path(&application), &[])?;
    let mut parameters = Map::new();
    for assignment in assignments {
        let (name, value) = parameter::parse(assignment, &declared.parameters)?;
        if parameters.insert(name.clone(), value).is_some() {
            return Err(CliError::new(format!("the parameter {name} is given twice")));
        }
    }
    let submission = QuerySubmission { name, application, parameters };
    let created: QueryCreated = client.post_json("/api/v1/queries", &submission)?;
    let mut out = io::stdout().lock();
    if global.json {
        return print_json(&mut out, &created);
    }
    eprintln!("query {} runs", created.name);
    Ok(writeln!(out, "{}", created.name)?)
}

fn list(
    global: &Global,
    client: &Client,
    filter: &[(&str, Option<String>)],
    mut after: Option<String>,
    limit: usize,
) -> Result<(), CliError> {
    let mut queries: Vec<Query> = Vec::new();
    while queries.len() < limit {
        let page_limit = (limit - queries.len()).min(PAGE_LIMIT).to_string();
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
        let rows = queries
            .iter()
            .map(|query| [query.name.clone(), query.application.clone(), query.state.clone(), values(query)]);
        writeln!(out, "{}", table(["name", "application", "state", "parameters"], &[], rows))?;
    }
    if let Some(after) = after {
        eprintln!("there are more: --limit shows more of them, --after {after} the next ones");
    }
    Ok(())
}

fn show(global: &Global, client: &Client, name: &str) -> Result<(), CliError> {
    let query: Query = client.get(&path(name), &[])?;
    let mut out = io::stdout().lock();
    if global.json {
        return print_json(&mut out, &query);
    }
    let count = |count: Option<u64>| count.map_or_else(|| "not counted by query".into(), |count| count.to_string());
    for (label, value) in [
        ("name", query.name.clone()),
        ("id", query.id.to_string()),
        ("application", query.application.clone()),
        ("state", query.state.clone()),
        ("parameters", values(&query)),
        ("input topic", query.input_topic.clone()),
        ("output topic", query.output_topic.clone()),
        ("events", count(query.events)),
        ("results", count(query.results)),
        ("refused", count(query.refused)),
    ] {
        writeln!(out, "{label:13} {value}")?;
    }
    Ok(())
}

/// Parameter values on a line.
fn values(query: &Query) -> String {
    let values: Vec<String> = query.parameters.iter().map(|(name, value)| format!("{name}={}", cell(value))).collect();
    values.join(" ")
}

/// Does something to each of the queries; goes on after a failure, and fails in the end.
fn each(names: &[String], done: &str, act: impl Fn(&str) -> Result<(), CliError>) -> Result<(), CliError> {
    let mut failed = false;
    for name in names {
        match act(name) {
            Ok(()) => eprintln!("query {name} is {done}"),
            Err(error) => {
                error.print(&mut io::stderr().lock(), super::output::colours(&io::stderr()))?;
                failed = true;
            }
        }
    }
    if failed { Err(CliError::reported()) } else { Ok(()) }
}
