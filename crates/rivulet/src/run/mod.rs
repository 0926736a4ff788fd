//! Runs scripts of big queries in this process, without a server: sources are read, results written, and that is all.
//!
//! Statements take effect in their order. `SELECT` and `INSERT` run to the end of their input before the next statement; what reads
//! input without an end, and what `CREATE QUERY` starts, goes on beside it until it is stopped.
//!
//! In reading order: [`script`]: statements to planned queries; [`open`]: sources and sinks by their declarations; [`results`]: where
//! the rows of a `SELECT` go; here: how a planned query is run.

mod open;
pub mod results;
mod script;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rivulet_connectors::connector::Host;
use rivulet_dataflow::Sink;
use rivulet_runtime::flow::stage::sink_instances;
use rivulet_runtime::{Flow, FlowLimits, FlowParts, FlowReport, WorkerSettings, WorkerStatus, Workers};
use rivulet_sql::{PlannedOutput, QueryPlan};

use crate::service::{ErrorKind, ServiceError};
use results::{Results, SharedResults};

pub(crate) use script::own_columns;
pub use script::{Planned, Script, Step};

/// How often a query that runs is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// How scripts are run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Worker threads, and in how many instances operators run.
    pub parallelism: usize,
    /// How much may wait in front of a task.
    pub limits: FlowLimits,
    /// Whether rows and time of each operator are counted.
    pub measures: bool,
    /// Whether worker threads stay on one core each.
    pub pins: bool,
}

impl RunOptions {
    /// On so many workers.
    pub fn new(parallelism: usize) -> Self {
        Self { parallelism: parallelism.max(1), limits: FlowLimits::default(), measures: false, pins: false }
    }
}

/// What a query that came to its end did.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// What the flow counted.
    pub flow: FlowReport,
    /// From its start to its end.
    pub elapsed: Duration,
    /// Whether it was stopped before its input ended.
    pub was_stopped: bool,
}

/// Runs queries on workers of its own.
pub struct Runner {
    workers: Workers,
    options: RunOptions,
}

/// A query that runs.
pub struct Running {
    flow: Flow,
    begun: Instant,
    results: Option<Arc<SharedResults>>,
    is_bounded: bool,
    was_stopped: AtomicBool,
}

impl Runner {
    /// Starts the workers.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn new(options: RunOptions) -> Result<Self, ServiceError> {
        let settings = WorkerSettings {
            threads: options.parallelism,
            balance_period: None,
            pins: options.pins,
            ..WorkerSettings::default()
        };
        let workers = Workers::start(settings, Arc::new(crate::engine::SystemClock)).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("no threads can be started: {error}"))
        })?;
        Ok(Self { workers, options })
    }

    /// Where its workers stand, and what they do.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.workers.status()
    }

    /// Opens what a query reads and writes, and lets it run. `results` takes its rows if it has no sink.
    ///
    /// # Errors
    /// A source or sink cannot be opened.
    pub fn start(
        &self,
        plan: &QueryPlan,
        name: &str,
        results: Option<Box<dyn Results>>,
    ) -> Result<Running, ServiceError> {
        start(&self.workers, self.options, &Host::default(), plan, name, results)
    }
}

/// The same on workers that are there already, in a process that has connections.
pub(crate) fn start(
    workers: &Workers,
    options: RunOptions,
    host: &Host,
    plan: &QueryPlan,
    name: &str,
    results: Option<Box<dyn Results>>,
) -> Result<Running, ServiceError> {
    let parallelism = options.parallelism;
    let sources = plan.sources.iter().map(|source| open::source(source, parallelism, host));
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let is_bounded = sources.iter().flatten().all(|partition| partition.source.is_bounded());
    let mut results = results;
    if let Some(results) = &mut results {
        results.begin(is_bounded).map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error))?;
    }
    let results = results.map(SharedResults::new);
    let partitions: Vec<usize> = sources.iter().map(Vec::len).collect();
    let sinks = sink_instances(&plan.dataflow, &partitions, parallelism)
        .into_iter()
        .map(|instances| open_sink(&plan.output, results.as_ref(), instances, host))
        .collect::<Result<Vec<_>, _>>()?;
    let begun = Instant::now();
    let flow = workers.start_flow(FlowParts {
        name: name.to_owned(),
        dataflow: plan.dataflow.clone(),
        sources,
        sinks,
        parallelism,
        limits: options.limits,
        measures: options.measures,
    });
    Ok(Running { flow, begun, results, is_bounded, was_stopped: AtomicBool::new(false) })
}

/// The instances of the sink.
fn open_sink(
    output: &PlannedOutput,
    results: Option<&Arc<SharedResults>>,
    instances: usize,
    host: &Host,
) -> Result<Vec<Box<dyn Sink>>, ServiceError> {
    match (&output.sink, results) {
        (Some(declaration), _) => open::sink(declaration, output, instances, host),
        (None, Some(results)) => Ok((0..instances).map(|_| Box::new(results.instance()) as Box<dyn Sink>).collect()),
        (None, None) => Err(ServiceError::invalid("the query has no sink")
            .with_hint("write INSERT INTO sink SELECT ..., or run it where results are shown")),
    }
}

impl Running {
    /// Whether all of its input has an end.
    pub fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// What it did so far.
    pub fn report(&self) -> FlowReport {
        self.flow.report()
    }

    /// The tasks it runs in.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Waits for its end, at most for `timeout`; `None` if it still runs.
    ///
    /// # Errors
    /// What ended it before its time.
    pub fn wait(&self, timeout: Duration) -> Option<Result<RunReport, ServiceError>> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = self.flow.wait(left.min(LOOK_PERIOD));
            if let Some(results) = &self.results {
                if ended.is_none() && results.has_enough() {
                    self.flow.stop(false);
                }
                results.look();
            }
            match ended {
                None if left.is_zero() => return None,
                None => {}
                Some(ended) => return Some(self.finish(ended)),
            }
        }
    }

    fn finish(&self, ended: Result<(), rivulet_runtime::FlowError>) -> Result<RunReport, ServiceError> {
        let elapsed = self.flow.ended().map_or_else(|| self.begun.elapsed(), |ended| ended - self.begun);
        ended.map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.0))?;
        if let Some(results) = &self.results {
            results.finish().map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error))?;
        }
        let was_stopped = self.was_stopped.load(Ordering::Acquire);
        Ok(RunReport { flow: self.flow.report(), elapsed, was_stopped })
    }

    /// Ends its input now. Windows that are open do not come out: they are not complete.
    pub fn stop(&self) {
        self.was_stopped.store(true, Ordering::Release);
        self.flow.stop(false);
    }
}
