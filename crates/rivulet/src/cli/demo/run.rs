//! The demo: a server, a broker, ten thousand queries and simulated homes, in one process, to look at.
//!
//! Nothing is shortened: the homes publish over MQTT sockets to the embedded broker, and while the demo runs every
//! other command works against its server.

use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rivulet_bench::BrokerOptions;
use rivulet_bench::homes::{HomesOptions, SimulatedHomes};
use rivulet_bench::workload::{Workload, WorkloadOptions};
use tokio::sync::broadcast;

use super::report::DemoReport;
use super::view::View;
use crate::cli::error::CliError;
use crate::cli::logging::start_logging;
use crate::cli::serve::HttpRuntime;
use crate::config::{Config, FlagValue, Sources};
use crate::data_folder::FILES;
use crate::engine::Engine;
use crate::service::{
    Caller, Code, LiveResult, Parameter, ParameterValue, QueryRequest, SUBMIT_BATCH_MAX, Service, ServiceError, Session,
};

/// What the demo is asked for.
#[derive(Clone, Debug)]
pub(super) struct DemoOptions {
    /// How many queries.
    pub(super) queries: u32,
    /// When it ends by itself; until Ctrl-C without.
    pub(super) duration: Option<Duration>,
    /// Whether to print one JSON object at the end instead of a live view.
    pub(super) json: bool,
    /// Whether to open the console in a browser.
    pub(super) open: bool,
}

/// How many connections the homes share: one for each thousand or so would be a gateway's share.
const HOME_CONNECTIONS: usize = 8;
/// How much more often than in life something happens, so that there is something to see.
const EPISODE_FACTOR: f32 = 20.0;
/// How many queries are watched for alerts to show.
const WATCHED_QUERIES: usize = 512;
/// How often the live view is drawn.
const VIEW_PERIOD: Duration = Duration::from_millis(500);
/// How long the end waits for events under way.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Without an end of its own the demo lasts so long.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Opens the console in the browser of whoever sits here. Where there is none, that is said, and the demo goes on.
fn open_browser(address: SocketAddr) {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(opener);
    command.arg(format!("http://{address}")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = command.spawn() {
        eprintln!("{opener} cannot open a browser: {error}");
    }
}

/// Runs the demo until its time is over or `stop` becomes true. Drawing goes to standard output.
///
/// # Errors
/// Ports that cannot be listened on, and whatever keeps a server from starting.
pub(super) fn run(options: &DemoOptions, stop: &AtomicBool) -> Result<DemoReport, CliError> {
    let folder = TemporaryFolder::new();
    let config = configuration(&folder.0)?;
    start_logging(&config);
    let http = HttpRuntime::new()?;
    let listener = http.listen(&config)?;
    let http_address = listener.local_addr().map_err(|error| CliError::new(error.to_string()))?;
    let http_config = config.http.clone();
    let engine = Engine::open(config)?;
    let broker = engine.embedded_broker_address().expect("the demo's configuration has an embedded broker");
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let service: Arc<dyn Service> = engine.clone();
    let session = engine.session(Caller::local_operator());
    let server = std::thread::spawn(move || {
        // A dropped sender ends the server as well.
        http.serve(listener, service, &http_config, async { ended.await.unwrap_or_default() })
    });

    let workload = Workload::new(WorkloadOptions::default()).expect("the default workload is one");
    let files = folder.0.join(FILES);
    for table in workload.tables() {
        let statement = table
            .write(&files)
            .map_err(|error| CliError::new(format!("cannot write to {}: {error}", files.display())))?;
        session.create_table(&statement)?;
    }
    for application in workload.applications() {
        session.create_application(Code::Statement(&application.statement), None)?;
    }
    let begun = Instant::now();
    let ids = submit(&session, &workload, options.queries)?;
    let submit_per_s = f64::from(options.queries) / begun.elapsed().as_secs_f64();
    let mut watched = watch(&session, options.queries);

    let homes = SimulatedHomes::start(
        &workload,
        HomesOptions {
            broker: BrokerOptions::new(broker.to_string(), HOME_CONNECTIONS, "demo-homes"),
            queries: options.queries,
            rate_per_query: 1.0,
            duration: options.duration.unwrap_or(DURATION_MAX),
            episode_factor: EPISODE_FACTOR,
        },
    )
    .map_err(|error| CliError::new(format!("the simulated homes cannot reach the broker: {error}")))?;

    if options.open {
        open_browser(http_address);
    }
    let mut view = (!options.json).then(|| View::new(std::io::stdout().is_terminal(), http_address, broker));
    let started = Instant::now();
    while !stop.load(Ordering::Relaxed) && !homes.progress().is_finished {
        std::thread::sleep(VIEW_PERIOD);
        if let Some(view) = &mut view {
            view.draw(started.elapsed(), &session.status(false)?, alerts(&mut watched));
        }
    }
    let progress = homes.stop();
    let deadline = Instant::now() + DRAIN_MAX;
    while session.status(false)?.total.events < progress.events_sent && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = session.status(false)?;
    drop(end);
    if let Ok(Err(error)) = server.join() {
        return Err(error);
    }
    engine.shutdown()?;
    let report = DemoReport { queries: ids, submit_per_s, events_sent: progress.events_sent, status };
    if let Some(view) = &mut view {
        view.finish(&report);
    }
    Ok(report)
}

/// The demo's configuration: the addresses of the environment, or else the usual ports if they are free and any others
/// if not; and a folder that goes away.
fn configuration(folder: &Path) -> Result<Config, CliError> {
    // Looked at, not kept: the server binds them itself a moment later.
    let free = |port: u16| {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() { address } else { SocketAddr::from(([127, 0, 0, 1], 0)) }
    };
    let given = |variable: &str| std::env::var(variable).ok().filter(|address| !address.is_empty());
    let address = |variable: &str, port| given(variable).unwrap_or_else(|| free(port).to_string());
    let flag = |key: &str, value: String| FlagValue { key: key.into(), value, flag: "rivulet demo".into() };
    let file = folder.join("rivulet.toml");
    let prepared = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, ""));
    prepared.map_err(|error| CliError::new(format!("cannot write to {}: {error}", folder.display())))?;
    let sources = Sources {
        // An empty file of its own, so that the demo does not depend on the folder it is started in.
        file: Some(file),
        environment: Vec::new(),
        flags: vec![
            flag("data_dir", folder.display().to_string()),
            flag("http.address", address("RIVULET_HTTP_ADDRESS", 8080)),
            flag("mqtt.embedded.address", address("RIVULET_MQTT_EMBEDDED_ADDRESS", 1883)),
            flag("log.level", "error".into()),
        ],
    };
    let loaded = crate::config::load(&sources).map_err(|error| CliError::new(error.to_string()))?;
    Ok(loaded.config)
}

/// Submits the first `queries` queries of the workload.
fn submit(session: &Session<'_>, workload: &Workload, queries: u32) -> Result<u64, ServiceError> {
    let numbers: Vec<u64> = (0..u64::from(queries)).collect();
    for chunk in numbers.chunks(SUBMIT_BATCH_MAX) {
        let specs: Vec<_> = chunk.iter().map(|&number| workload.query(number)).collect();
        let parameters: Vec<Vec<Parameter<'_>>> = specs
            .iter()
            .map(|spec| {
                let given = spec.parameters.as_object().into_iter().flatten();
                given
                    .map(|(name, value)| {
                        (name.as_str().into(), ParameterValue::of_json(value.clone()).unwrap_or(ParameterValue::Null))
                    })
                    .collect()
            })
            .collect();
        let requests: Vec<QueryRequest<'_>> = specs
            .iter()
            .zip(&parameters)
            .map(|(spec, parameters)| QueryRequest {
                name: Some(&spec.name),
                application: &spec.application,
                parameters,
                label: None,
            })
            .collect();
        for answer in session.submit(&requests) {
            answer?;
        }
    }
    Ok(u64::from(queries))
}

/// Readers of the results of some queries, spread over all.
fn watch(session: &Session<'_>, queries: u32) -> Vec<(String, broadcast::Receiver<Arc<LiveResult>>)> {
    let step = (queries as usize / WATCHED_QUERIES).max(1);
    (0..queries as usize)
        .step_by(step)
        .take(WATCHED_QUERIES)
        .filter_map(|number| {
            let info = session.query(&format!("q{number}")).ok()?;
            Some((info.output_topic, session.results(&info.name).ok()?))
        })
        .collect()
}

/// What came since the last time: topic and result.
fn alerts(watched: &mut [(String, broadcast::Receiver<Arc<LiveResult>>)]) -> Vec<(String, Arc<LiveResult>)> {
    let mut alerts = Vec::new();
    for (topic, reader) in watched {
        while let Ok(result) = reader.try_recv() {
            alerts.push((topic.clone(), result));
        }
    }
    alerts
}

/// A folder that is removed at the end.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Self {
        let nanoseconds =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        Self(std::env::temp_dir().join(format!("rivulet-demo-{}-{nanoseconds}", std::process::id())))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's cleaning of its temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
