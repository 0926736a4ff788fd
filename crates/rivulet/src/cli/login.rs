//! `rivulet login` and `rivulet logout`: the token that commands show to a server from then on.

use std::io::{self, IsTerminal};

use serde_json::{Value, json};

use crate::accounts::token::is_mistyped;
use crate::http_client::{ClientError, SERVER_DEFAULT};

use super::error::CliError;
use super::options::{Global, Trust};
use super::output::print_json;
use super::profile;

/// Arguments of `rivulet login` and `rivulet logout`.
#[derive(Debug, clap::Args)]
pub(super) struct LoginArguments {
    /// The server
    #[arg(long, env = "RIVULET_SERVER", default_value = SERVER_DEFAULT, value_name = "URL")]
    server: String,
    #[command(flatten)]
    trust: Trust,
}

pub(super) fn log_in(global: Global, arguments: &LoginArguments) -> Result<(), CliError> {
    let server = &arguments.server;
    if io::stdin().is_terminal() {
        eprintln!("the token for {server}:");
    }
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let token = line.trim();
    if token.is_empty() || is_mistyped(token) {
        return Err(CliError::new("this is no token: characters are missing or wrong")
            .with_hint("an administrator makes one with `rivulet token create USER`"));
    }
    // What the user may do is not asked: a refusal for another reason shows that the server knows the token.
    match arguments.trust.client(server, Some(token))?.get::<Value>("/api/v1/status", &[]) {
        Err(ClientError::Refused(error)) if error.kind == "forbidden" => {}
        answer => drop(answer?),
    }
    set(server, Some(token))?;
    say(global, server, "logged in")
}

pub(super) fn log_out(global: Global, arguments: &LoginArguments) -> Result<(), CliError> {
    let server = &arguments.server;
    match set(server, None)? {
        true => say(global, server, "logged out"),
        false => Err(CliError::new(format!("there is no token for {server}"))),
    }
}

fn set(server: &str, token: Option<&str>) -> Result<bool, CliError> {
    let path = profile::path().ok_or_else(|| {
        CliError::new("there is no folder for tokens: neither XDG_CONFIG_HOME nor HOME is set")
            .with_hint("commands take the token from --token-file and RIVULET_TOKEN too")
    })?;
    profile::set_token(&path, server, token)
        .map_err(|error| CliError::new(format!("cannot write {}: {error}", path.display())))
}

fn say(global: Global, server: &str, state: &str) -> Result<(), CliError> {
    if global.json {
        return print_json(&mut io::stdout().lock(), &json!({ "server": server, "state": state }));
    }
    eprintln!("{state}: {server}");
    Ok(())
}
