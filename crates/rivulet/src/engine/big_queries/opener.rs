//! Opens the sources and sinks of big queries, and asks them questions: all calls that wait for the world outside.
//!
//! What must hold: nothing here is called under a lock, and each call returns within a bounded time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rivulet_connectors::connector::ConnectorContext;
use rivulet_dataflow::Snapshot;
use rivulet_runtime::{Tap, Workers};
use rivulet_sql::QueryPlan;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{BurstConfig, Config};
use crate::engine::messaging::Messaging;
use crate::engine::outside::{OPEN_MAX, Outside, START_MAX, START_MIN};
use crate::engine::permitted::Permitted;
use crate::run::results::Results;
use crate::run::{self, Given, Opened, RunOptions};
use crate::service::{ErrorKind, FullName, ServiceError};

/// What is needed to open sources and sinks.
pub(in crate::engine) struct Opener {
    pub(super) config: Arc<Config>,
    /// What statements may reach.
    pub(super) permitted: Arc<Permitted>,
    messaging: Arc<Messaging>,
    pub(super) workers: Arc<Workers>,
    outside: Arc<Outside>,
    /// Distinguishes this server from others.
    server_id: String,
    is_stopped: Arc<AtomicBool>,
    /// Until when calls may last while the server starts; `has_started` says whether the start is over.
    start_ends: OnceLock<Instant>,
    has_started: AtomicBool,
}

impl Opener {
    pub(in crate::engine) fn new(
        config: Arc<Config>,
        permitted: Arc<Permitted>,
        messaging: Arc<Messaging>,
        workers: Arc<Workers>,
        outside: Arc<Outside>,
        server_id: String,
        is_stopped: Arc<AtomicBool>,
    ) -> Self {
        let (start_ends, has_started) = (OnceLock::new(), AtomicBool::new(false));
        Self { config, permitted, messaging, workers, outside, server_id, is_stopped, start_ends, has_started }
    }

    /// Whether checkpoints are made without being asked for.
    pub(super) fn makes_checkpoints(&self) -> bool {
        self.config.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.interval.is_some())
    }

    /// How tasks go to burst workers.
    pub(super) fn burst(&self) -> &BurstConfig {
        &self.config.burst
    }

    /// Whether the server is stopping.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Fails if the server is stopping: a query would run after its last checkpoint.
    pub(super) fn check_not_stopping(&self) -> Result<(), ServiceError> {
        match self.is_stopped() {
            true => Err(ServiceError::new(ErrorKind::Unavailable, "the server is stopping")),
            false => Ok(()),
        }
    }

    /// The server starts. A source or sink that is not open in time is tried again later.
    pub(super) fn begin_start(&self) {
        let _ = self.start_ends.set(Instant::now() + START_MAX);
    }

    /// The server has started. From now on opening may take longer.
    pub(super) fn end_start(&self) {
        self.has_started.store(true, Ordering::Release);
    }

    /// How long opening may take now.
    pub(super) fn limit(&self) -> Duration {
        match self.start_ends.get() {
            Some(ends) if !self.has_started.load(Ordering::Acquire) => {
                ends.saturating_duration_since(Instant::now()).max(START_MIN)
            }
            _ => OPEN_MAX,
        }
    }

    /// Makes a call that waits for the world outside: see [`Outside::call`].
    pub(super) fn call<T: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        call: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        self.outside.call(what, limit, &self.is_stopped, call)
    }

    /// What a query finds in this process. To the world outside each tenant looks like a server of its own, so that
    /// queries of the same name do not use the same name there.
    pub(super) fn host_of(&self, FullName { tenant, name }: &FullName) -> ConnectorContext {
        let server = match tenant.is_default() {
            true => self.server_id.clone(),
            false => format!("{:016x}", xxh3_64(format!("{}\0{tenant}", self.server_id).as_bytes())),
        };
        let ConnectorContext { mqtt, .. } = self.messaging.host();
        ConnectorContext { mqtt, server, query: name.clone(), ..self.permitted.host(tenant) }
    }

    /// Forgets what waits to be sent to other servers of a query that is gone, or that is about to be created.
    pub(super) fn forget_links(&self, name: &FullName) {
        let ConnectorContext { server, query, .. } = self.host_of(name);
        self.permitted.links().forget(&server, &query);
    }

    /// Opens the sources and sinks of a query and starts it, from a snapshot or from the start. `tap` gets its results.
    pub(super) fn start(
        &self,
        plan: &Arc<QueryPlan>,
        name: &FullName,
        snapshot: Option<Snapshot>,
        tap: Tap,
    ) -> Result<run::Running, ServiceError> {
        let checkpoints = self.config.checkpoint.is_some().then_some(snapshot);
        let opened = self.open(plan, name, self.host_of(name), None, checkpoints)?;
        self.run(opened.with_tap(tap), name)
    }

    /// Opens the sources of a SELECT, except those that are `given`, and starts it for its reader alone.
    pub(super) fn start_select(
        &self,
        plan: &Arc<QueryPlan>,
        name: &FullName,
        results: Box<dyn Results>,
        given: Box<Given>,
    ) -> Result<run::Running, ServiceError> {
        let host = ConnectorContext { only_looks: true, ..self.host_of(name) };
        let opened = self.open(plan, name, host, Some((results, given)), None)?;
        self.run(opened, name)
    }

    fn run(&self, opened: run::Opened, name: &FullName) -> Result<run::Running, ServiceError> {
        let running = opened.start(&self.workers).map_err(without_place)?;
        self.permitted.share(&name.tenant).into_iter().for_each(|share| running.set_share(&share));
        Ok(running)
    }

    fn open(
        &self,
        plan: &Arc<QueryPlan>,
        name: &FullName,
        host: ConnectorContext,
        look: Option<(Box<dyn Results>, Box<Given>)>,
        checkpoints: Option<Option<Snapshot>>,
    ) -> Result<Opened, ServiceError> {
        let workers = self.permitted.quota(&name.tenant).workers(self.config.workers.threads);
        // What is to move has to be in parts before. A tenant that may not use all workers keeps to their number.
        let is_burst = plan.is_burst && workers == self.config.workers.threads;
        let options = RunOptions::new(if is_burst { self.config.burst.instances.max(workers) } else { workers });
        let (plan, query) = (plan.clone(), name.name.clone());
        let (results, given) = look.unzip();
        let open = move || Opened::open(options, &host, &plan, &query, results, given.as_deref(), checkpoints);
        let opened = self.call(&format!("opening what '{name}' reads and writes"), self.limit(), open);
        opened.map_err(without_place)
    }
}

/// An error without its position: sources and sinks were declared in other scripts, to which the position refers.
fn without_place(error: ServiceError) -> ServiceError {
    ServiceError { line: None, column: None, ..error }
}
