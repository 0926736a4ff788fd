//! The command line. One command a file.
//!
//! Standard output is data only, messages go to standard error, so that output can be piped. Exit codes: 0 done,
//! 1 failed, 2 wrong usage. Colours only on a terminal, and never with `NO_COLOR`.

mod account;
mod app;
mod app_register;
mod app_test;
mod backup;
mod bench;
mod burst;
mod burst_function;
mod burst_worker;
mod checkpoint;
mod complete;
mod completions;
mod config;
mod demo;
mod doctor;
pub mod error;
mod logging;
mod login;
mod open_files;
mod options;
mod output;
mod paint;
mod password;
mod profile;
mod query;
mod reload;
mod run;
mod secret;
mod serve;
mod signals;
mod sql;
mod status;
mod usage;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use error::CliError;
use options::Global;
pub use serve::Start;

/// Rivulet: very many small stream queries, and a few big ones, on one machine.
#[derive(Debug, Parser)]
#[command(name = "rivulet", version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
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
    /// Create, list or drop secrets, which options of sources and sinks name
    #[command(arg_required_else_help = true)]
    Secret(secret::SecretArguments),
    /// Remember the token for a server, read from standard input
    Login(login::LoginArguments),
    /// Forget the token for a server
    Logout(login::LogoutArguments),
    /// Create, drop or list tenants
    #[command(arg_required_else_help = true)]
    Tenant(account::TenantArguments),
    /// Create, drop or list users
    #[command(arg_required_else_help = true)]
    User(account::UserArguments),
    /// Create, rotate, drop or list tokens of users
    #[command(arg_required_else_help = true)]
    Token(account::TokenArguments),
    /// Give rights to users, take or list them
    #[command(after_help = account::EXAMPLES, arg_required_else_help = true)]
    Grant(account::GrantArguments),
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
    /// Run tasks of a server's big queries here for a while
    BurstWorker(burst_worker::BurstWorkerArguments),
    /// Package burst workers for AWS Lambda, or emulate Lambda
    #[command(subcommand)]
    Burst(burst::BurstCommand),
    /// Print a script that completes commands in a shell
    Completions(completions::CompletionsArguments),
}

/// The program: reads the command line, runs the command, prints its error if it fails.
pub fn main(start: Start) -> ExitCode {
    if let Some(code) = burst_function::run() {
        return code;
    }
    let Arguments { global, command } = match Arguments::try_parse().map_err(placed) {
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
        Command::Secret(arguments) => secret::run(global, arguments),
        Command::Login(arguments) => login::log_in(global, &arguments),
        Command::Logout(arguments) => login::log_out(global, &arguments),
        Command::Tenant(arguments) => account::run_tenant(global, arguments),
        Command::User(arguments) => account::run_user(global, arguments),
        Command::Token(arguments) => account::run_token(global, arguments),
        Command::Grant(arguments) => account::run_grant(global, arguments),
        Command::Status(arguments) => status::run(global, &arguments),
        Command::Checkpoint(arguments) => checkpoint::run(global, &arguments),
        Command::Doctor(arguments) => doctor::run(global, &arguments),
        Command::Backup(arguments) => backup::run_backup(global, &arguments),
        Command::Restore(arguments) => backup::run_restore(global, &arguments),
        Command::Config(arguments) => config::run(global, &arguments),
        Command::Bench(command) => bench::run(global, command, start),
        Command::BurstWorker(arguments) => burst_worker::run(&arguments),
        Command::Burst(command) => burst::run(command),
        Command::Completions(arguments) => completions::run(&arguments, &mut definition()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            global.report(&error);
            error.exit_code()
        }
    }
}

/// An error of the command line, with a tip if an option of a command stands in front of the command.
fn placed(mut error: clap::Error) -> clap::Error {
    let option = std::env::args_os().nth(1).unwrap_or_default();
    let option = option.to_str().and_then(|option| option.split('=').next()).unwrap_or_default();
    if error.kind() == ErrorKind::UnknownArgument && option.starts_with("--") {
        let tip = format!("options of a command stand behind it: rivulet COMMAND {option} ...");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The exit code for wrong usage.
const USAGE_EXIT_CODE: u8 = 2;

/// The definition of the command line, from which its reference is written.
pub fn definition() -> clap::Command {
    Arguments::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
