//! `rivulet login` and `rivulet logout`: the token that commands show to a server from then on.

use std::io::{self, IsTerminal};

use serde_json::{Value, json};

use crate::accounts::token::is_mistyped;
use crate::api::types::{NewLogin, TokenCreated};
use crate::http_client::{ClientError, SERVER_DEFAULT};

use super::error::CliError;
use super::options::{Global, Trust};
use super::output::print_json;
use super::{password, profile};

/// Arguments of `rivulet login`.
#[derive(Debug, clap::Args)]
pub(super) struct LoginArguments {
    #[command(flatten)]
    place: LogoutArguments,
    /// Log in as this user with its password, which is read from the terminal or from standard input; the token that
    /// is given for it ends after 12 hours
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The tenant of the user, if it is not the default one
    #[arg(long, value_name = "NAME", requires = "user")]
    tenant: Option<String>,
}

/// Arguments of `rivulet logout`.
#[derive(Debug, clap::Args)]
pub(super) struct LogoutArguments {
    /// The server
    #[arg(long, env = "RIVULET_SERVER", default_value = SERVER_DEFAULT, value_name = "URL")]
    server: String,
    #[command(flatten)]
    trust: Trust,
}

pub(super) fn log_in(global: Global, arguments: &LoginArguments) -> Result<(), CliError> {
    let LogoutArguments { server, trust } = &arguments.place;
    if let Some(user) = &arguments.user {
        let password = password::read(&format!("the password of {user} at {server}: "))?;
        let login = NewLogin { user: user.clone(), tenant: arguments.tenant.clone(), password };
        let TokenCreated { token, .. } = trust.client(server, None)?.post_json("/api/v1/login", &login)?;
        set(server, Some(&token))?;
        return say(global, server, "logged in");
    }
    if io::stdin().is_terminal() {
        eprintln!("the token for {server}:");
    }
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let token = line.trim();
    if token.is_empty() || is_mistyped(token) {
        return Err(CliError::new("this is no token: characters are missing or wrong")
            .with_hint("an administrator makes one with `rivulet token create USER`; with a password, give --user"));
    }
    // What the user may do is not asked: a refusal for another reason shows that the server knows the token.
    match trust.client(server, Some(token))?.get::<Value>("/api/v1/status", &[]) {
        Err(ClientError::Refused(error)) if error.kind == "forbidden" => {}
        answer => drop(answer?),
    }
    set(server, Some(token))?;
    say(global, server, "logged in")
}

pub(super) fn log_out(global: Global, arguments: &LogoutArguments) -> Result<(), CliError> {
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
