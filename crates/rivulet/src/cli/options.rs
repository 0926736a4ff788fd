//! Options that commands share, and how their values are read.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rivulet_connectors::links::Token;
use rivulet_connectors::tls::ClientTls;

use crate::accounts::token::is_mistyped;
use crate::http_client::{Client, SERVER_DEFAULT, TOKEN_VARIABLE};
pub(super) use crate::times::duration;

use super::error::CliError;
use super::paint::colours;
use super::profile;

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
    #[command(flatten)]
    pub(super) token: TokenSource,
}

impl Connection {
    pub(super) fn client(&self) -> Result<Client, CliError> {
        self.token.client(&self.server)
    }
}

/// Where the token is that a server asks for. It is never an option: everybody on a machine sees those.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TokenSource {
    /// File that holds the token for the server; without it, RIVULET_TOKEN is the token, or `rivulet login` has
    /// remembered it
    #[arg(long, global = true, env = "RIVULET_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Ask in the place of this tenant, as an operator of the server: what is shown and changed is of the tenant
    #[arg(long, global = true, env = "RIVULET_AS_TENANT", value_name = "TENANT")]
    as_tenant: Option<String>,
    #[command(flatten)]
    trust: Trust,
}

impl TokenSource {
    /// Whether an operator asks in the place of a tenant.
    pub(super) fn is_in_tenant(&self) -> bool {
        self.as_tenant.as_deref().is_some_and(|tenant| !tenant.is_empty())
    }

    /// A client of a server, with the token.
    ///
    /// # Errors
    /// The file cannot be read; the address is none; the token has typing errors.
    pub(super) fn client(&self, server: &str) -> Result<Client, CliError> {
        let client = self.trust.client(server, self.token(|| profile::token(server))?.as_deref())?;
        Ok(match self.as_tenant.as_deref().filter(|tenant| !tenant.is_empty()) {
            Some(tenant) => client.in_tenant(tenant)?,
            None => client,
        })
    }

    /// The token for a link to a server, and how it is encrypted, if it is or authorities or a certificate are given.
    ///
    /// # Errors
    /// As [`TokenSource::client`].
    pub(super) fn of_link(&self, is_encrypted: bool) -> Result<(Option<Token>, Option<ClientTls>), CliError> {
        let tls = self.trust.tls()?;
        let token = self.token(|| None)?;
        let token = token.map(|token| Token { name: token.clone(), value: Arc::new(move || Ok(token.clone())) });
        Ok((token, (is_encrypted || tls != ClientTls::default()).then_some(tls)))
    }

    fn token(&self, remembered: impl FnOnce() -> Option<String>) -> Result<Option<String>, CliError> {
        let token = match given(&self.token_file) {
            Some(file) => Some(std::fs::read_to_string(file).map_err(|error| {
                CliError::new(format!("cannot read the token in {}: {error}", file.display()))
                    .with_hint("--token-file and RIVULET_TOKEN_FILE name a file with the token alone")
            })?),
            None => std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()).or_else(remembered),
        };
        let token = token.as_deref().map(str::trim).filter(|token| !token.is_empty());
        if token.is_some_and(is_mistyped) {
            return Err(CliError::new("characters of the token are missing or wrong")
                .with_hint("copy it again as it was shown, or have it rotated: rivulet token rotate ID"));
        }
        Ok(token.map(str::to_owned))
    }
}

/// The authorities that a command trusts, and the certificate that it shows.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Trust {
    /// Authorities to trust on an encrypted connection, in PEM; without it, those that browsers trust
    #[arg(long, global = true, env = "RIVULET_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The client certificate to show on an encrypted connection, in PEM
    #[arg(long, global = true, env = "RIVULET_CERT", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// The private key of the client certificate, in PEM
    #[arg(long, global = true, env = "RIVULET_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
}

impl Trust {
    /// A client of a server that shows this token.
    ///
    /// # Errors
    /// The address or the token is none; a file cannot be read.
    pub(super) fn client(&self, server: &str, token: Option<&str>) -> Result<Client, CliError> {
        Ok(Client::with(server, token, &self.tls()?)?)
    }

    fn tls(&self) -> Result<ClientTls, CliError> {
        let identity = match (given(&self.cert), given(&self.key)) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(CliError::new("only one of --cert and --key is given").with_hint("give both or neither")),
        };
        Ok(ClientTls { ca_file: given(&self.ca).cloned(), identity })
    }
}

/// A file that is named; a variable that is empty names none.
fn given(file: &Option<PathBuf>) -> Option<&PathBuf> {
    file.as_ref().filter(|file| !file.as_os_str().is_empty())
}

/// A lifetime in whole seconds as people write it: as [`duration`], or `90d` for days.
pub(super) fn lifetime(text: &str) -> Result<u64, String> {
    let duration = match text.strip_suffix('d') {
        Some(days) => duration(&format!("{days}h"))?.saturating_mul(24),
        None => duration(text).map_err(|error| error.replace("500ms, 10s, 2m or 1h", "10s, 2m, 1h or 90d"))?,
    };
    match duration.as_secs() {
        0 => Err("a lifetime is a second or more".into()),
        seconds => Ok(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_name_is_none() {
        let empty = Some(PathBuf::new());
        let trust = Trust { ca: empty.clone(), cert: empty.clone(), key: empty.clone() };
        assert!(
            TokenSource { token_file: empty, as_tenant: None, trust: trust.clone() }.client(SERVER_DEFAULT).is_ok()
        );
        let missing =
            TokenSource { token_file: Some("/nowhere".into()), as_tenant: None, trust }.client(SERVER_DEFAULT);
        assert!(missing.is_err_and(|error| format!("{error:?}").contains("/nowhere")));
    }

    #[test]
    fn lifetimes_are_read_as_people_write_them() {
        assert_eq!((lifetime("90d"), lifetime("1h")), (Ok(90 * 86_400), Ok(3600)));
        assert!(lifetime("10ms").is_err() && lifetime("d").is_err() && lifetime("-1d").is_err());
    }
}
