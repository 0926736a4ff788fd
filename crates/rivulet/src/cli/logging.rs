//! The log of the process.

use std::io;
use std::str::FromStr;
use std::sync::OnceLock;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::config::Config;

use super::paint::colours;

/// What changes the level of the log, once there is a log.
static LOG_LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Logs to standard error as configured. Only the first call in a process has an effect.
pub(super) fn start_logging(config: &Config) {
    // The level was checked when the configuration was read.
    let level = LevelFilter::from_str(&config.log_level).unwrap_or(LevelFilter::INFO);
    let (level, handle) = reload::Layer::new(level);
    // A line that cannot be written, as to a closed terminal, is lost; to complain of it there would panic.
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let lines = lines.with_ansi(colours(&io::stderr()));
    let log = tracing_subscriber::registry().with(level);
    let started = if config.log_json { log.with(lines.json()).try_init() } else { log.with(lines).try_init() };
    // An error means that somebody logs already.
    if started.is_ok() {
        let _ = LOG_LEVEL.set(handle);
    }
}

/// What is logged now.
pub(super) fn log_level() -> LevelFilter {
    LOG_LEVEL.get().and_then(reload::Handle::clone_current).unwrap_or(LevelFilter::OFF)
}

/// Changes what is logged.
pub(super) fn change_log_level(level: LevelFilter) {
    // Where nobody logs, there is nothing to change.
    let _ = LOG_LEVEL.get().map(|handle| handle.reload(level));
}
