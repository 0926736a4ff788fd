//! SIGHUP: the server reads its configuration again.
//!
//! What must hold: a configuration that is wrong changes nothing, and each key that changed is named, with whether it
//! counts from now on or after a restart.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::logins;
use rivulet_connectors::tls::{Certificates, Prepared, TlsError};
use tokio::sync::watch;
use tracing_subscriber::filter::LevelFilter;

use crate::api::LISTENER;
use crate::config::{self, Config, HttpConfig, KEYS, Loaded, Setting, Sources};
use crate::service::{ErrorKind, Service, ServiceError};

use super::logging::{change_log_level, log_level};
use super::open_files::share_open_files;

/// What of the configuration is looked at while the server runs.
pub(super) struct Followed {
    /// How long a server that stops says first that it is not ready, and how long the rest may take, if not as long as
    /// it takes.
    pub(super) stop_times: Mutex<(Duration, Option<Duration>)>,
    /// What the REST API keeps to.
    pub(super) http: watch::Sender<HttpConfig>,
    /// The certificates of the REST API.
    pub(super) certificates: Arc<Certificates>,
}

impl Followed {
    /// What a server begins with.
    ///
    /// # Errors
    /// The certificates of the REST API cannot be used.
    pub(super) fn of(config: &Config) -> Result<Self, TlsError> {
        logins::slow_down(config.slows_logins);
        let stop_times = Mutex::new((config.stop_delay, config.stop_limit));
        let certificates = Certificates::new(LISTENER, Prepared::read(config.http.tls.as_ref())?);
        Ok(Self { stop_times, http: watch::Sender::new(config.http.clone()), certificates })
    }

    /// Takes over another configuration.
    fn change(&self, config: &Config, certificates: Prepared) {
        logins::slow_down(config.slows_logins);
        self.certificates.set(certificates);
        *self.stop_times.lock() = (config.stop_delay, config.stop_limit);
        self.http.send_replace(config.http.clone());
    }
}

/// The configuration of a running server.
pub(super) struct Reloading {
    sources: Sources,
    /// What is in force, in the order of [`KEYS`].
    settings: Mutex<Vec<Setting>>,
}

impl Reloading {
    /// Of a server that was started with these settings.
    pub(super) fn new(sources: Sources, settings: Vec<Setting>) -> Self {
        Self { sources, settings: Mutex::new(settings) }
    }

    /// Reads the configuration again, and has the server take over what it can.
    pub(super) fn reload(&self, service: Option<&dyn Service>, followed: &Followed) {
        let Some(service) = service else {
            tracing::warn!("the configuration was not read again, because the server is still starting");
            return;
        };
        let mut settings = self.settings.lock();
        let Loaded { mut config, settings: read, warnings } = match config::load(&self.sources) {
            Ok(loaded) => loaded,
            Err(error) => return say_unchanged(&error.to_string(), &error.hint()),
        };
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let lowered = share_open_files(&mut config);
        let certificates = match Prepared::read(config.http.tls.as_ref()) {
            Ok(certificates) => certificates,
            Err(error) => {
                let error = ServiceError::from_text(ErrorKind::Invalid, &error.to_string());
                return say_unchanged(&error.message, error.hint.as_deref().unwrap_or_default());
            }
        };
        if let Err(error) = service.take_over(&config) {
            return say_unchanged(&error.message, error.hint.as_deref().unwrap_or_default());
        }
        followed.change(&config, certificates);
        let level = config.log_level.parse().unwrap_or(LevelFilter::INFO);
        // What changed is said at the level that says more.
        change_log_level(level.max(log_level()));
        tracing::info!("the configuration was read again");
        for ((old, new), key) in settings.iter_mut().zip(read).zip(KEYS) {
            if old.value == new.value {
                continue;
            }
            if !key.reloads() {
                tracing::warn!("{} has changed, and counts after a restart only", key.name);
                continue;
            }
            let value = match lowered.iter().find(|(lower, _)| *lower == key.name) {
                Some((_, holds)) => holds.to_string(),
                None => new.value.as_ref().map_or_else(|| "not set".to_owned(), ToString::to_string),
            };
            tracing::info!("{} is now {value}", key.name);
            *old = new;
        }
        change_log_level(level);
    }
}

fn say_unchanged(problem: &str, hint: &str) {
    tracing::error!("the configuration stays as it was: {problem}\nhint: {hint}");
}
