//! `rivulet secret`: values that options of sources and sinks name. A value comes from a file or from standard input:
//! arguments of a command are seen by every user of the machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde_json::json;

use crate::api::types::{Secret, SecretList};
use crate::http_client::segment;
use crate::times::at;

use super::error::CliError;
use super::options::{Connection, Global};
use super::output::{print_json, table};

/// The most bytes that are read of a value; the server takes fewer.
const VALUE_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `rivulet secret`.
#[derive(Debug, clap::Args)]
pub(super) struct SecretArguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: SecretCommand,
}

/// Commands on secrets.
#[derive(Debug, clap::Subcommand)]
enum SecretCommand {
    /// Create a secret, or give it another value
    Create {
        /// Its name
        name: String,
        /// The file with the value; without it, the value is read from standard input. A line break at its end does
        /// not count
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
    },
    /// List the secrets: their names and what uses them, never their values
    List,
    /// Drop a secret that nothing uses
    Drop {
        /// Its name
        name: String,
    },
}

pub(super) fn run(global: Global, arguments: SecretArguments) -> Result<(), CliError> {
    let SecretArguments { connection, command } = arguments;
    let client = connection.client()?;
    let mut out = io::stdout().lock();
    match command {
        SecretCommand::Create { name, from_file } => {
            let value = match &from_file {
                Some(path) => File::open(path)
                    .and_then(read)
                    .map_err(|error| CliError::new(format!("cannot read {}: {error}", path.display())))?,
                None => read(io::stdin().lock())
                    .map_err(|error| CliError::new(format!("cannot read standard input: {error}")))?,
            };
            let secret: Secret = client.put_text(&path(&name), &value)?;
            if global.json {
                return print_json(&mut out, &secret);
            }
            eprintln!(
                "secret {name} has its value; sources and sinks take it when opened next, links when they connect"
            );
        }
        SecretCommand::List => {
            let SecretList { secrets } = client.get("/api/v1/secrets", &[])?;
            if global.json {
                return print_json(&mut out, &secrets);
            }
            let rows = secrets
                .iter()
                .map(|one| [one.name.clone(), at(one.changed_at_ms.saturating_mul(1_000)), one.used_by.join(", ")]);
            writeln!(out, "{}", table(["name", "changed", "used by"], &[], rows))?;
        }
        SecretCommand::Drop { name } => {
            client.delete(&path(&name), &[])?;
            if global.json {
                return print_json(&mut out, &json!({"name": name, "state": "dropped"}));
            }
            eprintln!("secret {name} is dropped");
        }
    }
    Ok(())
}

fn path(name: &str) -> String {
    format!("/api/v1/secrets/{}", segment(name))
}

/// Reads a value. Editors and `echo` end a file with a line break.
fn read(from: impl Read) -> io::Result<String> {
    let mut value = String::new();
    from.take(VALUE_BYTES_MAX).read_to_string(&mut value)?;
    let end = value.strip_suffix('\n').map_or(value.len(), |rest| rest.strip_suffix('\r').unwrap_or(rest).len());
    value.truncate(end);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_at_the_end_does_not_count() {
        for (given, value) in [("rose\n", "rose"), ("rose\r\n", "rose"), ("rose", "rose"), ("a\nb\n\n", "a\nb\n")] {
            assert_eq!(read(given.as_bytes()).unwrap(), value);
        }
        assert!(read(&b"\xff"[..]).is_err());
    }
}
