//! `rivulet app`: applications.

use std::io::{self, Write};

use rivulet_connectors::connector::Direction;
use serde_json::json;

use crate::api::types::{Application, ApplicationList, EndHealth, Explanation, ParameterDeclaration};
use crate::http_client::application_path;

use super::error::CliError;
use super::options::{Connection, Global};
use super::output::{print_json, table};
use super::{app_register, app_test};

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
    /// Register applications from files, with their tables
    Register(app_register::RegisterArguments),
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
    if let AppCommand::Register(arguments) = &command {
        return app_register::run(global, &client, arguments);
    }
    let mut out = io::stdout().lock();
    match command {
        AppCommand::Register(_) | AppCommand::Test(_) => unreachable!("they were run before"),
        AppCommand::List => {
            let ApplicationList { applications } = client.get("/api/v1/applications", &[])?;
            if global.json {
                return print_json(&mut out, &applications);
            }
            let rows = applications.iter().map(|application| {
                let parameters: Vec<String> = application.parameters.iter().map(declaration).collect();
                [
                    application.name.clone(),
                    application.state(),
                    application.queries_running.to_string(),
                    application.queries_paused.to_string(),
                    parameters.join(", "),
                ]
            });
            writeln!(out, "{}", table(["name", "state", "running", "paused", "parameters"], &[2, 3], rows))?;
        }
        AppCommand::Show { name } => {
            let application: Application = client.get(&application_path(&name), &[])?;
            if global.json {
                return print_json(&mut out, &application);
            }
            let parameters: Vec<String> = application.parameters.iter().map(declaration).collect();
            for (label, value) in [
                ("name", &application.name),
                ("id", &application.id),
                ("state", &application.state()),
                ("parameters", &parameters.join(", ")),
                ("input topic", &application.input_topic),
                ("output topic", &application.output_topic),
                ("running", &application.queries_running.to_string()),
                ("paused", &application.queries_paused.to_string()),
            ] {
                let line = format!("{label:13} {value}");
                writeln!(out, "{}", line.trim_end())?;
            }
            for health in &application.health {
                let error =
                    health.last_error.as_ref().map(|error| format!(", last error: {error}")).unwrap_or_default();
                let EndHealth { name, direction, condition, rows, rejected_rows, waiting_rows, .. } = health;
                let counts = match direction {
                    Direction::Source => format!("{rows} messages, {rejected_rows} refused"),
                    Direction::Sink => {
                        format!("{rows} rows acknowledged, {waiting_rows} waiting, {rejected_rows} left out")
                    }
                };
                writeln!(out, "{direction} {name}: {condition}, {counts}{error}")?;
            }
            for warning in &application.warnings {
                writeln!(out, "warning: {warning}")?;
            }
            writeln!(out, "\n{}", application.sql.trim_end())?;
        }
        AppCommand::Explain { name } => {
            let explanation: Explanation = client.get(&format!("{}/explain", application_path(&name)), &[])?;
            if global.json {
                return print_json(&mut out, &explanation);
            }
            writeln!(out, "{}", explanation.explanation.trim_end())?;
        }
        AppCommand::Drop { name, cascade } => {
            client.delete(&application_path(&name), &[("cascade", if cascade { "true" } else { "false" })])?;
            if global.json {
                return print_json(&mut out, &json!({"name": name, "state": "dropped"}));
            }
            eprintln!("application {name} is dropped");
        }
    }
    Ok(())
}

/// A parameter as it is declared.
fn declaration(parameter: &ParameterDeclaration) -> String {
    match &parameter.default {
        Some(default) => format!("{} {} DEFAULT {default}", parameter.name, parameter.data_type),
        None => format!("{} {}", parameter.name, parameter.data_type),
    }
}
