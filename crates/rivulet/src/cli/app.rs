//! `rivulet app`: applications.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::api::types::{Application, ApplicationList, Explanation, ParameterDeclaration};
use crate::http_client::segment;

use super::error::CliError;
use super::output::{colours, paint, print_json, table};
use super::sql::read_source;
use super::{Connection, Global, app_test};

/// Arguments of `rivulet app`.
#[derive(Debug, clap::Args)]
pub(super) struct AppArguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: AppCommand,
}

/// Commands on applications.
#[derive(Debug, clap::Subcommand)]
enum AppCommand {
    /// Register applications from files, each with one CREATE APPLICATION
    Register {
        /// Files; `-` is standard input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Let them take over the queries of the applications that have their names, with their state
        #[arg(long)]
        replace: bool,
        /// Replace also what cannot go on with all of the state: the rest of it is forgotten
        #[arg(long, requires = "replace")]
        discard_state: bool,
    },
    /// Try an application here, without a server: events from a file, and a clock that follows them
    #[command(after_help = app_test::EXAMPLES)]
    Test(app_test::TestArguments),
    /// List the applications
    List,
    /// Show an application: its parameters, topics and SQL
    Show {
        /// Its name, or its id: the first 8 characters or more of it
        name: String,
    },
    /// Explain how its queries run: what they share, what each has of its own
    Explain {
        /// Its name, or its id: the first 8 characters or more of it
        name: String,
    },
    /// Drop an application
    Drop {
        /// Its name
        name: String,
        /// Drop its queries too
        #[arg(long)]
        cascade: bool,
    },
}

pub(super) fn run(global: Global, arguments: AppArguments) -> Result<(), CliError> {
    let AppArguments { connection, command } = arguments;
    if let AppCommand::Test(arguments) = &command {
        return app_test::run(global, arguments);
    }
    let client = connection.client()?;
    let mut out = io::stdout().lock();
    match command {
        AppCommand::Register { files, replace, discard_state } => {
            let path = match replace {
                true => format!("/api/v1/applications?replace=true&discard_state={discard_state}"),
                false => "/api/v1/applications".into(),
            };
            for file in &files {
                let sql = read_source(file)?;
                let application: Application = client
                    .post_text(&path, &sql)
                    .map_err(|error| in_file(CliError::from(error).in_source(&sql), file, files.len()))?;
                if global.json {
                    print_json(&mut out, &application)?;
                } else {
                    match &application.replacement {
                        Some(replacement) => eprintln!("{}", replacement.text(&application.name)),
                        None => eprintln!("application {} is registered", application.name),
                    }
                    for warning in &application.warnings {
                        eprintln!("{} {warning}", paint("1;33", "warning:", colours(&io::stderr())));
                    }
                    writeln!(out, "{}  {}", application.name, application.id)?;
                }
            }
        }
        AppCommand::Test(_) => unreachable!("it needs no server, and was run before"),
        AppCommand::List => {
            let ApplicationList { applications } = client.get("/api/v1/applications", &[])?;
            if global.json {
                return print_json(&mut out, &applications);
            }
            let rows = applications.iter().map(|application| {
                let parameters: Vec<String> = application.parameters.iter().map(declaration).collect();
                [
                    application.name.clone(),
                    state(application),
                    application.queries_running.to_string(),
                    application.queries_paused.to_string(),
                    parameters.join(", "),
                ]
            });
            writeln!(out, "{}", table(["name", "state", "running", "paused", "parameters"], &[2, 3], rows))?;
        }
        AppCommand::Show { name } => {
            let application: Application = client.get(&path(&name), &[])?;
            if global.json {
                return print_json(&mut out, &application);
            }
            let parameters: Vec<String> = application.parameters.iter().map(declaration).collect();
            for (label, value) in [
                ("name", &application.name),
                ("id", &application.id),
                ("state", &state(&application)),
                ("parameters", &parameters.join(", ")),
                ("input topic", &application.input_topic),
                ("output topic", &application.output_topic),
                ("running", &application.queries_running.to_string()),
                ("paused", &application.queries_paused.to_string()),
            ] {
                let line = format!("{label:13} {value}");
                writeln!(out, "{}", line.trim_end())?;
            }
            writeln!(out, "\n{}", application.sql.trim_end())?;
        }
        AppCommand::Explain { name } => {
            let explanation: Explanation = client.get(&format!("{}/explain", path(&name)), &[])?;
            if global.json {
                return print_json(&mut out, &explanation);
            }
            writeln!(out, "{}", explanation.explanation.trim_end())?;
        }
        AppCommand::Drop { name, cascade } => {
            client.delete(&path(&name), &[("cascade", if cascade { "true" } else { "false" })])?;
            if global.json {
                return print_json(&mut out, &json!({"name": name, "state": "dropped"}));
            }
            eprintln!("application {name} is dropped");
        }
    }
    Ok(())
}

/// The error with the file that it is in, where there are several.
fn in_file(error: CliError, file: &Path, files: usize) -> CliError {
    match files {
        1 => error,
        _ => error
            .with_note(format!("in {}; the files before it are registered, those after it are not", file.display())),
    }
}

/// The path of an application.
pub(super) fn path(name: &str) -> String {
    format!("/api/v1/applications/{}", segment(name))
}

/// Whether an application runs, and why not.
fn state(application: &Application) -> String {
    let reason = application.not_running.as_ref();
    reason.map_or_else(|| "running".into(), |reason| format!("not running: {reason}"))
}

/// A parameter as it is declared.
fn declaration(parameter: &ParameterDeclaration) -> String {
    match &parameter.default {
        Some(default) => format!("{} {} DEFAULT {default}", parameter.name, parameter.data_type),
        None => format!("{} {}", parameter.name, parameter.data_type),
    }
}
