//! `rivulet serve`: the server, until it is told to stop.

use std::io::{self, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::descriptors;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::api;
use crate::config::{Config, HttpConfig, Loaded};
use crate::engine::{Extensions, note_crashes};
use crate::service::Service;

use super::Start;
use super::config::Overrides;
use super::error::CliError;
use super::reload::Reloading;

/// Threads that answer HTTP requests. Few: the work is done by the engine's own threads.
const HTTP_THREADS: usize = 2;

/// Threads for calls that block: more than the API makes at a time, so that none of them waits for another one.
const BLOCKING_THREADS_MAX: usize = 256;

/// How long such a thread waits for more work. Short, because the memory it has freed is given back when it ends.
const BLOCKING_THREAD_KEPT: Duration = Duration::from_secs(1);

/// Arguments of `rivulet serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArguments {
    /// Start although checkpoint.folder has no checkpoints of this server, as after it was changed: queries begin with
    /// empty state
    #[arg(long)]
    accept_empty_checkpoints: bool,
    #[command(flatten)]
    overrides: Overrides,
}

pub(super) fn run(arguments: &ServeArguments, start: Start) -> Result<(), CliError> {
    let Loaded { mut config, settings, warnings: _ } = arguments.overrides.load()?;
    config.accepts_empty_checkpoints = arguments.accept_empty_checkpoints;
    let reloading = Reloading::new(arguments.overrides.sources()?, settings);
    serve(config, Extensions::default(), start, Some(reloading))
}

/// Serves with this configuration until it is told to stop. SIGHUP has it read its configuration again, if it can.
pub(super) fn serve(
    mut config: Config,
    extensions: Extensions,
    start: Start,
    reloading: Option<Reloading>,
) -> Result<(), CliError> {
    start_logging(&config);
    share_open_files(&mut config);
    let http = HttpRuntime::new()?;
    // First what can fail at once and undoes itself.
    let listener = http.listen(&config)?;
    let address = listener.local_addr().map_err(failed)?;
    // Whoever watches the process is answered while queries get back their state, which may take a while.
    let started = Arc::new(OnceLock::new());
    let followed = Arc::new(Followed::of(&config));
    let reload = reloading.map(|reloading| {
        let (started, followed) = (started.clone(), followed.clone());
        Arc::new(move || reloading.reload(started.get().map(|service: &Arc<dyn Service>| &**service), &followed))
            as Reload
    });
    let http_configs = followed.http.subscribe();
    let stop = stop_when_told(started.clone(), followed, reload);
    let serving = http.begin(listener, started.clone(), http_configs, stop);
    // Where there is no folder yet, no query can end the start.
    if config.data_dir.is_dir() {
        note_crashes(&config.data_dir);
    }
    let service = start(&config, extensions)?;
    note_crashes(&config.data_dir);
    // Nobody else sets it.
    let _ = started.set(service.clone());
    say(&format!(
        "Rivulet {} is ready at http://{address} (try it at http://{address}/api/docs)",
        env!("CARGO_PKG_VERSION")
    ));
    let done = http.finish(serving);
    say("Rivulet is stopping");
    service.shutdown();
    done
}

/// Writes a line to standard error, if there is still anybody to read it: the terminal may be closed.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Lets the process open as many files as the system allows it, and shares them out: what is reserved, at most half, is
/// for checkpoints, the log and queries; of the rest, clients of MQTT may take half, and clients of the REST API and of
/// HTTP sources a quarter each, so that no crowd keeps the others out.
pub(super) fn share_open_files(config: &mut Config) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    // A system that does not allow what it said leaves the limit as it was.
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let quarter = ((limit - config.files_reserved.min(limit / 2)) / 4).max(2);
    // Connections that have given way hold their descriptors until they are closed.
    let (quarter, half) = (descriptors::connections_within(quarter), descriptors::connections_within(2 * quarter));
    descriptors::OF_HTTP_SOURCES.bound(quarter);
    let http = ("http.connections_max", &mut config.http.connections_max, quarter);
    let mqtt = config.embedded.as_mut().map(|mqtt| ("mqtt.embedded.connections_max", &mut mqtt.connections_max, half));
    for (key, connections_max, share) in std::iter::once(http).chain(mqtt) {
        if *connections_max > share {
            tracing::info!("{key} is {share} and not {connections_max}, because this process may open {limit} files");
            *connections_max = share;
        }
    }
}

/// What of the configuration is looked at here while the server runs.
pub(super) struct Followed {
    /// How long a server that stops says first that it is not ready, and how long the rest may take, if not as long as
    /// it takes.
    stop_times: Mutex<(Duration, Option<Duration>)>,
    /// What the REST API keeps to.
    http: watch::Sender<HttpConfig>,
}

impl Followed {
    fn of(config: &Config) -> Self {
        let stop_times = Mutex::new((config.stop_delay, config.stop_limit));
        Self { stop_times, http: watch::Sender::new(config.http.clone()) }
    }

    /// Takes over another configuration.
    pub(super) fn change(&self, config: &Config) {
        *self.stop_times.lock() = (config.stop_delay, config.stop_limit);
        self.http.send_replace(config.http.clone());
    }
}

/// Has the server read its configuration again.
type Reload = Arc<dyn Fn() + Send + Sync>;

/// Completes when the server is to be stopped: it was told to, has said for a while that it is not ready, and is given
/// a limit for the rest. One that is still starting has nothing to finish and nothing to save: it ends at once.
async fn stop_when_told(started: Arc<OnceLock<Arc<dyn Service>>>, followed: Arc<Followed>, reload: Option<Reload>) {
    first_signal(reload).await;
    end_at_second_signal();
    let Some(service) = started.get() else {
        say("Rivulet was stopped before it was ready");
        std::process::exit(0);
    };
    let (delay, limit) = *followed.stop_times.lock();
    service.announce_stop();
    if !delay.is_zero() {
        say(&format!("Rivulet stops in {} s, and says until then that it is not ready", delay.as_secs()));
        tokio::time::sleep(delay).await;
    }
    if let Some(limit) = limit {
        end_after(limit);
    }
}

/// Ends the process when stopping takes too long. That is a crash for which everything is there: what was acknowledged
/// as durable is not lost.
fn end_after(limit: Duration) {
    let watch = move || {
        thread::sleep(limit);
        say(&format!(
            "Rivulet ends before all was saved, because stopping took longer than {} s; the next start goes on as after a crash\n\
             hint: stop.limit_s says how long it may take",
            limit.as_secs()
        ));
        std::process::exit(1);
    };
    let watching = thread::Builder::new().name("stop-limit".into()).spawn(watch);
    watching.map_or_else(|error| tracing::warn!(%error, "stopping may take as long as it takes"), drop);
}

/// What changes the level of the log, once there is a log.
static LOG_LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Logs to standard error as configured. Only the first call in a process has an effect.
pub fn start_logging(config: &Config) {
    // The level was checked when the configuration was read.
    let level = LevelFilter::from_str(&config.log_level).unwrap_or(LevelFilter::INFO);
    let (level, handle) = reload::Layer::new(level);
    // A line that cannot be written, as to a closed terminal, is lost; to complain of it there would panic.
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let lines = lines.with_ansi(super::output::colours(&io::stderr()));
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

/// The threads of the REST API.
#[derive(Debug)]
pub struct HttpRuntime {
    runtime: runtime::Runtime,
}

impl HttpRuntime {
    /// Starts them.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn new() -> Result<Self, CliError> {
        let runtime = runtime::Builder::new_multi_thread()
            .thread_name("http")
            .worker_threads(HTTP_THREADS)
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_keep_alive(BLOCKING_THREAD_KEPT)
            .enable_all()
            .build()
            .map_err(failed)?;
        Ok(Self { runtime })
    }

    /// Takes the configured address.
    ///
    /// # Errors
    /// Mostly that the port is in use.
    pub fn listen(&self, config: &Config) -> Result<TcpListener, CliError> {
        Ok(self.runtime.block_on(api::listen(config.http_address))?)
    }

    /// Answers requests until `stop` completes.
    ///
    /// # Errors
    /// If the listener fails for good.
    pub fn serve(
        &self,
        listener: TcpListener,
        service: Arc<dyn Service>,
        config: &HttpConfig,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), CliError> {
        self.runtime.block_on(api::serve(listener, service, config, stop)).map_err(failed)
    }
}

impl HttpRuntime {
    /// Begins to answer requests, until `stop` completes, of a service that is about to start.
    fn begin(
        &self,
        listener: TcpListener,
        service: Arc<OnceLock<Arc<dyn Service>>>,
        configs: watch::Receiver<HttpConfig>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<io::Result<()>> {
        self.runtime.spawn(api::serve_once_started(listener, service, configs, stop))
    }

    /// Waits for the end of what [`HttpRuntime::begin`] began.
    fn finish(&self, serving: JoinHandle<io::Result<()>>) -> Result<(), CliError> {
        let ended = self.runtime.block_on(serving);
        ended.map_err(io::Error::other).and_then(|done| done).map_err(failed)
    }
}

/// Sets `stop` at the first [`stop_signal`].
pub(super) fn stop_on_signal(stop: Arc<AtomicBool>) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::new(format!("cannot listen for Ctrl-C: {error}"));
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let listen = move || {
        runtime.block_on(stop_signal());
        stop.store(true, Ordering::Relaxed);
    };
    thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
    Ok(())
}

/// Completes when the user (Ctrl-C), the system (SIGTERM) or the end of the terminal (SIGHUP) asks the server to stop.
/// A second Ctrl-C or SIGTERM ends it at once; a terminal that is closed may send SIGHUP twice.
pub async fn stop_signal() {
    first_signal(None).await;
    end_at_second_signal();
}

fn end_at_second_signal() {
    thread::Builder::new()
        .name("second-signal".into())
        .spawn(|| {
            let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(next_signal());
            say("stopped at once");
            std::process::exit(130);
        })
        .map_or_else(|error| tracing::warn!(%error, "a second signal will not end the server at once"), drop);
}

/// Completes at Ctrl-C, at SIGTERM, and at SIGHUP; but if the process can read its configuration again, SIGHUP means
/// that, unless it comes because the terminal is closed.
async fn first_signal(reload: Option<Reload>) {
    #[cfg(unix)]
    {
        let (outlives_terminal, had_terminal) = (ignores_hangup(), has_terminal());
        if (reload.is_some() || !outlives_terminal)
            && let Ok(mut hangup) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())
        {
            let ended = async {
                while hangup.recv().await.is_some() {
                    let Some(reload) = reload.clone() else { return };
                    if had_terminal && !has_terminal() && !outlives_terminal {
                        return;
                    }
                    // A defect is logged where it is; the server goes on.
                    let _ = tokio::task::spawn_blocking(move || reload()).await;
                }
                std::future::pending().await
            };
            tokio::select! {
                () = next_signal() => {}
                () = ended => {}
            }
            return;
        }
    }
    next_signal().await;
}

/// Whether a terminal controls the process. The kernel takes it away before it says that it is closed.
#[cfg(unix)]
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether the process was started to outlive its terminal, as `nohup` does: then it does.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    // Linux tells which signals are ignored, a bit for each, SIGHUP in the lowest. Where nobody tells, none is.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).is_some_and(|bits| bits & 1 != 0)
}

async fn next_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without signals the server ends with the process.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn failed(error: io::Error) -> CliError {
    CliError::new(format!("the server failed: {error}"))
}
