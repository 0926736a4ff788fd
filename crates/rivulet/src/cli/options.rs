//! Options that commands share, and how their values are read.

use std::io;
use std::time::Duration;

use crate::http_client::{Client, SERVER_DEFAULT, TOKEN_VARIABLE};

use super::error::CliError;
use super::paint::colours;

/// Options of every command.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Global {
    /// Print JSON instead of tables, and errors as JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
}

impl Global {
    /// Prints an error. If standard error is closed too, there is nobody left to tell.
    pub(super) fn report(self, error: &CliError) {
        let mut out = io::stderr().lock();
        let _ = if self.json { error.print_json(&mut out) } else { error.print(&mut out, colours(&io::stderr())) };
    }
}

/// Options of the commands that talk to a server.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Connection {
    /// The server to talk to
    #[arg(long, global = true, env = "RIVULET_SERVER", default_value = SERVER_DEFAULT, value_name = "URL")]
    pub(super) server: String,
}

impl Connection {
    pub(super) fn client(&self) -> Result<Client, CliError> {
        let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
        Ok(Client::with_token(&self.server, token.as_deref())?)
    }
}

/// A duration as people write it: `500ms`, `10s`, `2m`, `1h`; a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
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
}
