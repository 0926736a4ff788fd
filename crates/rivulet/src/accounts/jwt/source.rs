//! Where the keys of an issuer come from: a file, or a URL.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rivulet_connectors::tls::ClientTls;
use ureq::tls::TlsConfig;
use ureq::{Agent, http::StatusCode};

use super::keys::BYTES_MAX;
use crate::config::JwtKeys;
use crate::service::{ErrorKind, ServiceError};

/// How long a request may take in all.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// What of a file shows that it has changed.
pub(super) type Stamp = (u64, u64, i64, i64);

/// Where keys come from.
pub(super) enum Source {
    File(std::path::PathBuf),
    Url { agent: Agent, url: String },
}

impl Source {
    /// # Errors
    /// The authorities of the URL cannot be read.
    pub(super) fn of(keys: &JwtKeys) -> Result<Self, ServiceError> {
        let (url, ca_file) = match keys {
            JwtKeys::File(path) => return Ok(Self::File(path.clone())),
            JwtKeys::Url { url, ca_file } => (url.clone(), ca_file.clone()),
        };
        let is_encrypted = url.starts_with("https:");
        let tls = match is_encrypted {
            true => ClientTls { ca_file, identity: None }
                .for_requests()
                .map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error.to_string()))?,
            false => TlsConfig::builder().build(),
        };
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .timeout_global(Some(REQUEST_MAX))
            // The keys are those of the URL that is configured, and of no other.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(0);
        // A proxy of the environment is for what is elsewhere.
        let config = if is_encrypted { config } else { config.proxy(None) };
        Ok(Self::Url { agent: config.build().new_agent(), url })
    }

    /// The text of the keys. It waits for the answer of a URL.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::File(path) => read_file(path),
            Self::Url { agent, url } => {
                let mut answer = agent.get(url).call().map_err(|error| error.to_string())?;
                if answer.status() != StatusCode::OK {
                    return Err(format!("the answer has status {}", answer.status()));
                }
                let body = answer.body_mut().with_config().limit(BYTES_MAX as u64);
                body.read_to_vec().map_err(|error| match error {
                    ureq::Error::BodyExceedsLimit(_) => format!("the answer has more than {BYTES_MAX} bytes"),
                    error => error.to_string(),
                })
            }
        }
    }

    /// What shows that the keys have changed; `None` where only asking tells.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let Self::File(path) = self else { return None };
        let seen = path.metadata().ok()?;
        Some((seen.ino(), seen.len(), seen.mtime(), seen.mtime_nsec()))
    }

    /// As it is named in the log.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Url { url, .. } => url.clone(),
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    if !path.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("it is no file".into());
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}
