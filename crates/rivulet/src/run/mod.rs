//! How a planned big query is run, by a server and by a [script](crate::script): its sources are read and its results
//! are written.
//!
//! In reading order: [`open`]: sources and sinks by their declarations; [`infer`]: files by their paths; [`letters`]:
//! refused rows; [`results`]: where the rows of a `SELECT` go; this file: how a planned query is run.

mod infer;
mod letters;
mod open;
pub mod results;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::connector::{ConnectorContext, Direction, FinalUpTo, Health};
use rivulet_dataflow::stage::sink_instances;
use rivulet_dataflow::{Sink, Snapshot, Source};
use rivulet_runtime::{
    Consume, Flow, FlowLimits, FlowParts, FlowReport, Policy, Share, Tap, WorkerSettings, WorkerStatus, Workers,
};
use rivulet_sql::{PlannedOutput, PlannedSource, QueryPlan, SinkDeclaration};

use crate::service::{ErrorKind, ServiceError};
use letters::QueryLetters;
use results::{Results, SharedResults};

pub(crate) use infer::{create_source, read_models, with_files};
pub use open::{CONNECTORS, End};
pub(crate) use open::{
    bound, check_sink, check_source, format_text, has_columns_of_file, open_partitions, option_text, own_columns,
    placed_at, replaced_file,
};

/// How often a running query is checked.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// How scripts are run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The number of worker threads, and of the instances of operators.
    pub parallelism: usize,
    /// How much may wait before a task.
    pub limits: FlowLimits,
    /// Whether worker threads stay on one core each.
    pub pins: bool,
    /// Which task a worker runs next.
    pub policy: &'static Policy,
    /// How much of what waits a task takes before it returns its worker.
    pub consume: Consume,
}

impl RunOptions {
    /// Options for this many workers.
    pub fn new(parallelism: usize) -> Self {
        Self {
            parallelism: parallelism.max(1),
            limits: FlowLimits::default(),
            pins: false,
            policy: <&Policy>::default(),
            consume: Consume::All,
        }
    }
}

/// The figures of a query that has come to its end.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The counters of the flow.
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
    has_checkpoints: bool,
    comes_again: bool,
    was_stopped: AtomicBool,
    holds_up: Arc<AtomicBool>,
    ends: Vec<End>,
    /// The health of the sink of its results.
    output: Option<Arc<Health>>,
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
            policy: options.policy,
            consume: options.consume,
            ..WorkerSettings::default()
        };
        let workers = Workers::start(settings, Arc::new(SystemClock)).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("no threads can be started: {error}"))
        })?;
        Ok(Self { workers, options })
    }

    /// The cores of its workers, and their load.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.workers.status()
    }

    /// Opens the sources and sinks of a query, with what they find in the process, and starts it. `results` takes its
    /// rows if it has no sink.
    ///
    /// # Errors
    /// A source or sink cannot be opened.
    pub fn start(
        &self,
        host: &ConnectorContext,
        plan: &QueryPlan,
        name: &str,
        results: Option<Box<dyn Results>>,
    ) -> Result<Running, ServiceError> {
        Opened::open(self.options, host, plan, name, results, None, None)?.start(&self.workers)
    }
}

/// Opens a source that belongs to no connector; `None` for other sources.
pub(crate) type Given = dyn Fn(&PlannedSource) -> Option<Result<Box<dyn Source>, ServiceError>> + Send + Sync;

/// The snapshot from which a query with checkpoints continues; without a snapshot it begins.
pub(crate) type Checkpointed = Option<Snapshot>;

/// A query whose sources and sinks are open, and that does not run yet.
pub(crate) struct Opened {
    parts: FlowParts,
    results: Option<Arc<SharedResults>>,
    is_bounded: bool,
    has_checkpoints: bool,
    comes_again: bool,
    holds_up: Arc<AtomicBool>,
    ends: Vec<End>,
    output: Option<Arc<Health>>,
}

impl Opened {
    /// Opens the sources of a query, except those that are `given`, and its sinks, in a process that has connections,
    /// and may make checkpoints. This waits for the world outside.
    pub(crate) fn open(
        options: RunOptions,
        host: &ConnectorContext,
        plan: &QueryPlan,
        name: &str,
        results: Option<Box<dyn Results>>,
        given: Option<&Given>,
        checkpoints: Option<Checkpointed>,
    ) -> Result<Self, ServiceError> {
        let parallelism = options.parallelism;
        let (holds_up, makes_checkpoints) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let host = &ConnectorContext {
            query: name.to_owned(),
            holds_up: holds_up.clone(),
            makes_checkpoints: makes_checkpoints.clone(),
            ..host.clone()
        };
        let snapshot = checkpoints.as_ref().and_then(Option::as_ref);
        let was_at = |place: usize| {
            let snapshot = snapshot.filter(|snapshot| !snapshot.begins.contains(&place))?;
            Some(snapshot.sources.get(place).map_or(&[][..], Vec::as_slice))
        };
        let mut ends = Vec::new();
        let sources = plan.sources.iter().enumerate().map(|(place, source)| {
            let (end, host) = open::end(&source.declaration.name, Direction::Source, host);
            ends.push(end);
            match given.and_then(|given| given(source)) {
                Some(given) => Ok(vec![open::partition(given?, source, None)]),
                None => open::source(source, parallelism, &host, was_at(place)),
            }
        });
        let mut sources = sources.collect::<Result<Vec<_>, _>>()?;
        let comes_again = sources.iter_mut().flatten().all(|partition| partition.source.position().is_some());
        let host = &ConnectorContext { comes_again, ..host.clone() };
        let is_bounded = sources.iter().flatten().all(|partition| partition.source.is_bounded());
        let mut results = results;
        if let Some(results) = &mut results {
            results.begin(is_bounded).map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error))?;
        }
        let results = results.map(SharedResults::new);
        let partitions: Vec<usize> = sources.iter().map(Vec::len).collect();
        // One entry for all its instances.
        let mut open_end = |sink: &SinkDeclaration| {
            let (end, host) = open::end(&sink.name, Direction::Sink, host);
            ends.push(end);
            host
        };
        let mut hosts = vec![plan.output.sink.as_deref().map_or_else(|| host.clone(), &mut open_end)];
        hosts.extend(plan.letters.iter().map(|sink| open::of_letters(sink, open_end(sink))));
        let sinks = sink_instances(&plan.dataflow, &partitions, parallelism)
            .into_iter()
            .enumerate()
            .map(|(place, instances)| {
                let prepared = snapshot.and_then(|snapshot| snapshot.sinks.get(place)).cloned().unwrap_or_default();
                let prepared = checkpoints.is_some().then_some(prepared);
                match place {
                    0 => open_sink(&plan.output, results.as_ref(), instances, &hosts[0], prepared),
                    place => open::letters(&plan.letters[place - 1], instances, &hosts[place], prepared),
                }
            })
            .collect::<Result<Vec<Vec<Box<dyn Sink>>>, _>>()?;
        let has_checkpoints = checkpoints.is_some() && sinks.iter().flatten().all(|sink| sink.can_resume());
        makes_checkpoints.store(has_checkpoints, Ordering::Release);
        let parts = FlowParts {
            name: name.to_owned(),
            dataflow: plan.dataflow.clone(),
            sources,
            letters: Some(QueryLetters::of(plan, name)),
            tap: None,
            sinks,
            parallelism,
            limits: options.limits,
            restored: checkpoints.flatten(),
        };
        let output = plan.output.sink.is_some().then(|| hosts[0].health.clone());
        Ok(Self { parts, results, is_bounded, has_checkpoints, comes_again, holds_up, ends, output })
    }

    /// Makes `tap` see its results.
    pub(crate) fn with_tap(mut self, tap: Tap) -> Self {
        self.parts.tap = Some(tap);
        self
    }

    /// Starts it on these workers.
    pub(crate) fn start(self, workers: &Workers) -> Result<Running, ServiceError> {
        let Self { parts, results, is_bounded, has_checkpoints, comes_again, holds_up, ends, output } = self;
        let begun = Instant::now();
        let flow = workers.start_flow(parts).map_err(|error| {
            let problem = format!("it cannot go on from its checkpoint: {error}");
            ServiceError::from_text(ErrorKind::Unavailable, &problem)
        })?;
        let was_stopped = AtomicBool::new(false);
        Ok(Running {
            flow,
            begun,
            results,
            is_bounded,
            has_checkpoints,
            comes_again,
            was_stopped,
            holds_up,
            ends,
            output,
        })
    }
}

impl Running {
    /// Says whose time it takes.
    pub(crate) fn set_share(&self, share: &Arc<Share>) {
        self.flow.set_share(share);
    }
}

/// Up to where the results of a query are final, whose newest checkpoint this is.
pub(crate) fn final_up_to(
    plan: &QueryPlan,
    host: &ConnectorContext,
    snapshot: &Snapshot,
) -> Result<FinalUpTo, ServiceError> {
    let Some(sink) = &plan.output.sink else { return Ok(FinalUpTo::Any) };
    let prepared = snapshot.sinks.first().cloned().unwrap_or_default();
    // The positions in its errors refer to another script.
    open::final_up_to(sink, &plan.output, host, prepared).map_err(|error| ServiceError {
        line: None,
        column: None,
        ..error
    })
}

/// Makes final what a query has written up to a checkpoint to the sinks with these indexes. The query writes no more to
/// them after that. Sinks with transactions make their rows final by themselves.
pub(crate) fn finish_sinks(
    plan: &QueryPlan,
    places: &[usize],
    host: &ConnectorContext,
    snapshot: &Snapshot,
) -> Result<(), ServiceError> {
    /// The most time that a device may take.
    const FINISH_MAX: Duration = Duration::from_secs(5);
    const PERIOD: Duration = Duration::from_millis(5);
    let prepared = |place: usize| Some(snapshot.sinks.get(place).cloned().unwrap_or_default());
    let mut opened: Vec<(&SinkDeclaration, Box<dyn Sink>)> = Vec::new();
    let without_place = |error| ServiceError { line: None, column: None, ..error };
    if let Some(declaration) = plan.output.sink.as_ref().filter(|_| places.contains(&0)) {
        let sinks = open::sink(declaration, &plan.output, 1, host, prepared(0)).map_err(without_place)?;
        opened.extend(sinks.into_iter().map(|sink| (&**declaration, sink)));
    }
    for (place, declaration) in (1..).zip(&plan.letters).filter(|(place, _)| places.contains(place)) {
        let host = open::of_letters(declaration, host.clone());
        let sinks = open::letters(declaration, 1, &host, prepared(place)).map_err(without_place)?;
        opened.extend(sinks.into_iter().map(|sink| (&**declaration, sink)));
    }
    let failed = |error: String| ServiceError::from_text(ErrorKind::Unavailable, &error);
    for (declaration, mut sink) in opened {
        if !sink.hands_over() && sink.transactional().is_some_and(|sink| sink.waits_for_commit()) {
            continue;
        }
        let deadline = Instant::now() + FINISH_MAX;
        while !sink.finish().map_err(|error| failed(error.0))? {
            if Instant::now() >= deadline {
                return Err(failed(format!("what was written to '{}' is not final yet", declaration.name)));
            }
            std::thread::sleep(PERIOD);
        }
    }
    Ok(())
}

/// The instances of the sink.
fn open_sink(
    output: &PlannedOutput,
    results: Option<&Arc<SharedResults>>,
    instances: usize,
    host: &ConnectorContext,
    prepared: Option<Vec<String>>,
) -> Result<Vec<Box<dyn Sink>>, ServiceError> {
    match (&output.sink, results) {
        (Some(declaration), _) => open::sink(declaration, output, instances, host, prepared),
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

    /// Whether it can continue from a checkpoint.
    pub(crate) fn has_checkpoints(&self) -> bool {
        self.has_checkpoints
    }

    /// Whether all that it has read since its last checkpoint can be read again.
    pub(crate) fn comes_again(&self) -> bool {
        self.comes_again
    }

    /// Its figures so far. Rows count as written when the receiver behind the sink has acknowledged them.
    pub fn report(&self) -> FlowReport {
        let mut report = self.flow.report();
        if let Some(sink) = &self.output {
            report.rows_out = sink.report().rows;
        }
        report
    }

    /// Its sources and its sink, and their health.
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// Whether it is so far behind that other readers of the same connection wait.
    pub fn holds_up_others(&self) -> bool {
        self.holds_up.load(Ordering::Acquire)
    }

    /// The tasks it runs in.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Waits for its end, at most for `timeout`; `None` if it still runs.
    ///
    /// # Errors
    /// The error that ended it early.
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
        Ok(RunReport { flow: self.report(), elapsed, was_stopped })
    }

    /// Ends it as a crash would, after its last checkpoint.
    pub(crate) fn cancel(&self) {
        self.was_stopped.store(true, Ordering::Release);
        self.flow.cancel();
    }

    /// Whether it was stopped before the end of its input.
    pub(crate) fn was_stopped(&self) -> bool {
        self.was_stopped.load(Ordering::Acquire)
    }

    /// Ends its input now. Open windows give no results: they are not complete.
    pub fn stop(&self) {
        self.was_stopped.store(true, Ordering::Release);
        self.flow.stop(false);
    }
}
