//! The command line. One command a file.
//!
//! Standard output is data only, messages go to standard error, so that output can be piped. Exit codes: 0 done,
//! 1 failed, 2 wrong usage. Colours only on a terminal, and never with `NO_COLOR`.

mod app;
mod app_register;
mod app_test;
mod backup;
mod bench;
mod checkpoint;
mod complete;
mod completions;
mod config;
mod demo;
mod doctor;
pub mod error;
mod output;
mod query;
mod reload;
mod run;
pub mod serve;
mod sql;
mod status;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::Config;
use crate::engine::Extensions;
use crate::http_client::{Client, SERVER_DEFAULT, TOKEN_VARIABLE};
use crate::service::{Service, ServiceError};

use error::CliError;

/// Starts the engine: opens the catalog, brokers and workers of this configuration.
pub type Start = fn(&Config, Extensions) -> Result<Arc<dyn Service>, ServiceError>;

/// Rivulet: very many small stream queries, and a few big ones, on one machine.
#[derive(Debug, Parser)]
#[command(name = "rivulet", version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Global {
    /// Print JSON instead of tables, and errors as JSON
    #[arg(long, global = true)]
    json: bool,
}

impl Global {
    /// Prints an error. If standard error is closed too, there is nobody left to tell.
    fn report(self, error: &CliError) {
        let mut out = io::stderr().lock();
        let _ =
            if self.json { error.print_json(&mut out) } else { error.print(&mut out, output::colours(&io::stderr())) };
    }
}

/// Options of the commands that talk to a server.
#[derive(Clone, Debug, clap::Args)]
struct Connection {
    /// The server to talk to
    #[arg(long, global = true, env = "RIVULET_SERVER", default_value = SERVER_DEFAULT, value_name = "URL")]
    server: String,
}

impl Connection {
    fn client(&self) -> Result<Client, CliError> {
        let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
        Ok(Client::with_token(&self.server, token.as_deref())?)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::ServeArguments),
    /// See it work: a server, a broker, ten thousand queries and simulated homes
    Demo(demo::DemoArguments),
    /// Run a script of big queries and applications here, without a server
    #[command(after_help = run::EXAMPLES)]
    Run(run::RunArguments),
    /// Run an SQL script on a server, or type SQL
    Sql(sql::SqlArguments),
    /// Register, list, show, explain or drop applications
    #[command(arg_required_else_help = true)]
    App(app::AppArguments),
    /// Submit, list, show, watch, pause, resume or drop queries
    #[command(after_help = query::EXAMPLES, arg_required_else_help = true)]
    Query(query::QueryArguments),
    /// Show what the server is doing
    #[command(after_help = status::COLUMNS)]
    Status(status::StatusArguments),
    /// Save the state of queries now
    Checkpoint(checkpoint::CheckpointArguments),
    /// Look at the data folder of a stopped server, and explain what is there and what is damaged
    Doctor(doctor::DoctorArguments),
    /// Write everything of a server, running (--server) or stopped, to one file
    Backup(backup::BackupArguments),
    /// Make a data folder of a file that backup has written
    Restore(backup::RestoreArguments),
    /// Show the configuration in force and where each value comes from
    Config(config::ConfigArguments),
    /// Measure how much this machine carries
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print a script that completes commands in a shell
    Completions(completions::CompletionsArguments),
}

/// The program: reads the command line, runs the command, prints its error if it fails.
pub fn main(start: Start) -> ExitCode {
    let Arguments { global, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // The help and the version are no errors. What is wrong is JSON for whoever asked for that, wherever it stands.
        Err(error) if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") => {
            Global { json: true }.report(&CliError::usage(&error));
            return ExitCode::from(USAGE_EXIT_CODE);
        }
        Err(error) => error.exit(),
    };
    let done = match command {
        Command::Serve(arguments) => serve::run(&arguments, start),
        Command::Demo(arguments) => demo::run(global, &arguments),
        Command::Run(arguments) => run::run(global, &arguments),
        Command::Sql(arguments) => sql::run(global, &arguments),
        Command::App(arguments) => app::run(global, arguments),
        Command::Query(arguments) => query::run(global, arguments),
        Command::Status(arguments) => status::run(global, &arguments),
        Command::Checkpoint(arguments) => checkpoint::run(global, &arguments),
        Command::Doctor(arguments) => doctor::run(global, &arguments),
        Command::Backup(arguments) => backup::run_backup(global, &arguments),
        Command::Restore(arguments) => backup::run_restore(global, &arguments),
        Command::Config(arguments) => config::run(global, &arguments),
        Command::Bench(command) => bench::run(global, command, start),
        Command::Completions(arguments) => completions::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            global.report(&error);
            error.exit_code()
        }
    }
}

/// The exit code for wrong usage.
const USAGE_EXIT_CODE: u8 = 2;

/// The definition of the command line, from which its reference is written.
pub fn definition() -> clap::Command {
    Arguments::command()
}

/// A duration as people write it: `500ms`, `10s`, `2m`, `1h`; a bare number is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("'{unit}' is no unit of time; write 500ms, 10s, 2m or 1h")),
    };
    let number: f64 = number.parse().map_err(|_| "write a number and a unit, for example 10s".to_owned())?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("a duration is more than nothing and less than for ever".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        for wrong in ["", "s", "0s", "1d", "-1s", "1e400s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
