//! `rivulet burst-worker`: runs tasks of a server's big queries for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::connector::{ConnectorContext, Secrets};
use rivulet_connectors::links::{Machine, Target};
use rivulet_connectors::reach::AllowedHosts;
use rivulet_dataflow::{Clock, PartitionState};
use rivulet_runtime::{Waker, WorkerSettings, Workers};
use rivulet_sql::{PlannedSource, Scope, SqlError, Statement, Table, parse_script, plan_query};

use crate::burst::worker::{Me, Opening, PlannedQuery, ServerClock, Worker};
use crate::counted::counted;
use crate::run::{open_partitions, own_columns};
use crate::service::ServiceError;

use super::error::CliError;
use super::options::TokenSource;
use super::signals::{say, stop_on_signal};

/// How often it looks at least whether something is to be done.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// How long the server may take to take its tasks back.
const RETURN_MAX_US: i64 = 20_000_000;

/// How long its last word to the server may take.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// Arguments of `rivulet burst-worker`.
#[derive(Debug, clap::Parser)]
pub(super) struct BurstWorkerArguments {
    /// The door of the server for links: its link.address
    #[arg(long, value_name = "HOST:PORT")]
    connect: String,
    /// Encrypts the connection; --ca and --cert do, too
    #[arg(long)]
    tls: bool,
    /// The name that the server knows it by [default: a random one]
    #[arg(long)]
    name: Option<String>,
    /// Threads that run tasks [default: the cores of this machine]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Ends when it has had no task, or no server, for so many seconds [default: never]
    #[arg(long, value_name = "SECONDS")]
    idle_s: Option<u64>,
    /// Ends after so many seconds. The server knows, and takes its tasks back before
    #[arg(long, value_name = "SECONDS")]
    limit_s: Option<u64>,
    #[command(flatten)]
    token: TokenSource,
}

pub(super) fn run(arguments: &BurstWorkerArguments) -> Result<(), CliError> {
    let stop = Arc::<AtomicBool>::default();
    stop_on_signal(stop.clone())?;
    work(arguments, &stop).map(drop)
}

/// Is a burst worker until it has ended or is stopped. Returns why it had no server at its end, if that is so.
pub(super) fn work(arguments: &BurstWorkerArguments, stop: &AtomicBool) -> Result<Option<String>, CliError> {
    let usage = || {
        CliError::new(format!("'{}' is no address", arguments.connect)).with_hint("write HOST:PORT, without http://")
    };
    let (host, port) = arguments.connect.rsplit_once(':').ok_or_else(usage)?;
    let port: u16 = port.parse().ok().filter(|_| !host.contains('/')).ok_or_else(usage)?;
    let failed = |error: std::io::Error| CliError::new(format!("the worker failed: {error}"));
    let (token, tls) = arguments.token.of_link(arguments.tls)?;
    let machine = Machine::real();
    let name = arguments.name.clone().unwrap_or_else(|| format!("worker {:016x}", (machine.random)()));
    let threads = arguments.threads.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
    let clock = Arc::new(ServerClock::new(Arc::new(SystemClock)));
    let settings = WorkerSettings { threads, balance_period: None, ..WorkerSettings::default() };
    let workers = Arc::new(Workers::start(settings, clock.clone()).map_err(failed)?);
    let in_us = |seconds: u64| i64::try_from(seconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
    let now_us = || clock.steady_us();
    let ends_us = arguments.limit_s.map(|limit_s| now_us().saturating_add(in_us(limit_s)));
    let reach = AllowedHosts::everything();
    let target = Target { scope: String::new(), host: host.to_owned(), port, tls, token, reach };
    let (me, thread) = (Me { name, threads, ends_us }, thread::current());
    let news = Arc::new(move || thread.unpark());
    let planner = {
        let news: Waker = news.clone();
        Box::new(move |script: &str, query: &str| plan(script, query, &news))
    };
    let mut worker = Worker::join(me, (machine, target), (workers, clock.clone()), planner, news).map_err(failed)?;
    let (mut told, mut stops_us) = (None, None);
    loop {
        let at_us = now_us();
        if stop.load(Ordering::Relaxed) && stops_us.is_none() {
            worker.end(at_us);
            stops_us = Some(at_us.saturating_add(RETURN_MAX_US));
            say(&format!("stops: gives {} back to the server", counted(worker.tasks() as u64, "task")));
        }
        worker.turn(at_us).map_err(|why| CliError::new(format!("the server does not take this worker: {why}")))?;
        let (reaches, server) = (worker.reaches(), &arguments.connect);
        if reaches != told {
            match &reaches {
                Some(Ok(())) => say(&format!("connected to {server}")),
                Some(Err((why, false))) => say(&format!("not connected to {server}: {why}; tries again")),
                Some(Err((why, true))) => return Err(CliError::new(format!("not connected to {server}: {why}"))),
                None => {}
            }
            told = reaches;
        }
        let idle_us = if stops_us.is_some() { Some(0) } else { arguments.idle_s.map(in_us) };
        let is_idle = |since_us: i64| idle_us.is_some_and(|idle_us| at_us - since_us >= idle_us);
        let ends_us = stops_us.or(ends_us);
        if worker.idle_since_us().is_some_and(is_idle) || ends_us.is_some_and(|ends_us| at_us >= ends_us) {
            break;
        }
        thread::park_timeout(LOOK_PERIOD);
    }
    let left = if told == Some(Ok(())) { worker.tasks() as u64 } else { 0 };
    worker.leave();
    let deadline = Instant::now() + FAREWELL_MAX;
    while !worker.is_heard() && Instant::now() < deadline {
        thread::sleep(LOOK_PERIOD / 10);
    }
    if left > 0 {
        let (tasks, why) = (counted(left, "task"), "their queries restart from their last checkpoints");
        return Err(CliError::new(format!("the server did not take back {tasks}; {why}")));
    }
    Ok(match told {
        Some(Ok(())) => None,
        Some(Err((why, _))) => Some(why),
        None => Some("it does not answer".into()),
    })
}

/// Plans the query of this name in a script of a server. Sources and sinks are not checked: their credentials are there
/// only where this process is to read with them. Sources are opened on threads of their own, which call `news` then.
fn plan(script: &str, query: &str, news: &Waker) -> Result<PlannedQuery, String> {
    let failed = |error: SqlError| ServiceError::from(error).message;
    let (mut scope, mut secrets, mut host) = (Scope::new(), HashMap::new(), ConnectorContext::of_user());
    for (statement, _) in parse_script(script).map_err(failed)? {
        let declared = match statement {
            Statement::CreateSecret(create) => {
                secrets.insert(create.name.text, create.value.0);
                Ok(())
            }
            Statement::CreateSource(create) => {
                create.declare(own_columns(&host.files)).and_then(|source| scope.add_source(source))
            }
            Statement::CreateSink(create) => create.declare().and_then(|sink| scope.add_sink(sink)),
            Statement::CreateView(create) => scope.add_view(&create),
            Statement::CreateTable(create) => {
                let table = Table::new(&create.name.text, RecordBatch::new_empty(create.schema));
                scope.add_table(&create.name, Arc::new(table))
            }
            Statement::CreateBigQuery(create) if create.name.text == query => {
                host.secrets = Secrets::found_by(move |name| secrets.get(name).cloned());
                let news = news.clone();
                let open = move |source: PlannedSource, was_at: Vec<PartitionState>| {
                    let (opening, host, news) = (Opening::default(), host.clone(), news.clone());
                    let opened = opening.clone();
                    let open = move || {
                        let partitions = open_partitions(&source, &host, &was_at).map_err(|error| error.message);
                        *opened.lock() = Some(partitions);
                        news();
                    };
                    if let Err(error) = thread::Builder::new().name("open".into()).spawn(open) {
                        *opening.lock() = Some(Err(format!("no thread can be started: {error}")));
                    }
                    opening
                };
                let plan = plan_query(&create.query, &scope).map_err(failed)?;
                return Ok(PlannedQuery { plan, open: Arc::new(open) });
            }
            _ => Ok(()),
        };
        // The text of the query may have the name of something that it does not need.
        if let Err(error) = declared {
            tracing::debug!("a declaration is left out: {}", failed(error));
        }
    }
    Err(format!("the script does not create '{query}'"))
}
