//! `rivulet serve`: the server, until it is told to stop.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rivulet_connectors::tls::{Certificates, TlsError};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api;
use crate::config::{Config, HttpConfig, Loaded};
use crate::engine::{Extensions, note_crashes};
use crate::service::{ErrorKind, Service, ServiceError};

use super::config::Overrides;
use super::error::CliError;
use super::logging::start_logging;
use super::open_files::share_open_files;
use super::reload::{Followed, Reloading};
use super::signals::{Reload, end_at_second_signal, first_signal, say};

/// Starts the engine: opens the catalog, brokers and workers of this configuration.
pub type Start = fn(&Config, Extensions) -> Result<Arc<dyn Service>, ServiceError>;

/// Threads that answer HTTP requests. Few: the work is done by the engine's own threads.
const HTTP_THREADS: usize = 2;

/// Threads for calls that block: more than the API makes at a time, so that none of them waits for another one.
const BLOCKING_THREADS_MAX: usize = 256;

/// How long such a thread waits for more work. Short, because the memory it has freed is given back when it ends.
const BLOCKING_THREAD_KEPT: Duration = Duration::from_secs(1);

/// Arguments of `rivulet serve`.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArguments {
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
    let followed = Arc::new(Followed::of(&config).map_err(unusable)?);
    let scheme = if followed.certificates.are_set() { "https" } else { "http" };
    let listener = http.listen(&config)?;
    let address = listener.local_addr().map_err(failed)?;
    // Whoever watches the process is answered while queries get back their state, which may take a while.
    let started = Arc::new(OnceLock::new());
    let reload = reloading.map(|reloading| {
        let (started, followed) = (started.clone(), followed.clone());
        Arc::new(move || reloading.reload(started.get().map(|service: &Arc<dyn Service>| &**service), &followed))
            as Reload
    });
    let http_configs = followed.http.subscribe();
    let listener = (listener, followed.certificates.clone());
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
        "Rivulet {} is ready at {scheme}://{address} (open it in a browser; its REST API is at /api/docs)",
        env!("CARGO_PKG_VERSION")
    ));
    let done = http.finish(serving);
    say("Rivulet is stopping");
    let stopped = service.shutdown();
    done.and(stopped.map_err(CliError::from))
}

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

/// The threads of the REST API.
#[derive(Debug)]
pub(super) struct HttpRuntime {
    runtime: runtime::Runtime,
}

impl HttpRuntime {
    /// Starts them.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub(super) fn new() -> Result<Self, CliError> {
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
    pub(super) fn listen(&self, config: &Config) -> Result<TcpListener, CliError> {
        Ok(self.runtime.block_on(api::listen(config.http_address))?)
    }

    /// Answers requests until `stop` completes.
    ///
    /// # Errors
    /// If the listener fails for good.
    pub(super) fn serve(
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
        listener: (TcpListener, Arc<Certificates>),
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

fn unusable(error: TlsError) -> CliError {
    ServiceError::from_text(ErrorKind::Invalid, &error.to_string()).into()
}

fn failed(error: io::Error) -> CliError {
    CliError::new(format!("the server failed: {error}"))
}
