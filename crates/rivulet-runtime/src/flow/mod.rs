//! Big queries: a dataflow cut into tasks that run in parallel.
//!
//! Operators that follow each other without a change of partitioning are fused into a *stage*. A stage runs in one or
//! several instances, the tasks. The same workers run these tasks and those of groups. Rows travel between tasks
//! through bounded inboxes. A task whose targets have no room is not run, and so on up to the sources, so nothing grows
//! and nothing is dropped. Each input of a task has watermarks of its own; the operators see their minimum. A partition
//! of a source that is silent for long becomes idle: its time goes on with that of others, and holds nothing up.
//!
//! What must hold: the rows that one task sends to another arrive in order; a watermark arrives behind all rows that
//! were sent before it; the end comes last, and exactly once.
//!
//! [`rivulet_dataflow::stage`] decides what is fused into a stage and in how many instances it runs. Here, in reading
//! order: [`inbox`]: the queue in front of a task; [`peer`] and [`exchange`]: where rows go; [`alignment`],
//! [`idleness`], [`throttle`] and [`reader`]: sources; [`measure`] and [`report`]: what tasks have done;
//! [`checkpoint`]: the state of all tasks at one moment; [`pipe`] and [`host`]: operators that are elsewhere;
//! [`state`]: what tasks share; [`task`]: one activation; [`guest`]: the operators of a task elsewhere.

mod inbox;
mod peer;
mod exchange;
mod alignment;
mod idleness;
mod throttle;
mod reader;
mod measure;
mod report;
pub mod checkpoint;
pub mod pipe;
mod host;
mod state;
mod task;
mod guest;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rivulet_dataflow::stage::{Stage, cut};
use rivulet_dataflow::{Clock, Dataflow, Sink, Snapshot, StateError, StateSink};

use crate::pool::Pool;
use crate::scheduler::{Runnable, Share};
use alignment::Alignment;
use checkpoint::{CheckpointError, Gathered};
use exchange::Outputs;
use idleness::Idleness;
use peer::Peer;
use state::FlowState;
use task::{FlowTask, FlowTaskParts, Operators, Wish};

pub use exchange::{Letters, Tap};
pub use guest::{Guest, GuestParts};
pub use host::{MoveError, MoveStep, Placement};
pub use idleness::SourceTime;
pub use inbox::FlowLimits;
pub use measure::OperatorReport;
pub use pipe::{GuestFigures, Pipe, PipeError, Waker, Word};
pub use reader::Partition;
pub use report::{FlowReport, TaskReport, Usage};
pub use state::Phase;

/// How long a report waits for a task that runs.
const REPORT_PATIENCE: Duration = Duration::from_millis(100);

/// The parts of a big query.
pub struct FlowParts {
    /// Its name, for messages.
    pub name: String,
    /// Its operators.
    pub dataflow: Dataflow,
    /// For each source of the dataflow, its partitions, at least one.
    pub sources: Vec<Vec<Partition>>,
    /// Makes rows of refusals, for the sinks behind edges of refused rows.
    pub letters: Option<Arc<dyn Letters>>,
    /// Looks at the results on their way to the sink.
    pub tap: Option<Tap>,
    /// For each sink of the dataflow, its instances, as many as
    /// [`sink_instances`](rivulet_dataflow::stage::sink_instances) says.
    pub sinks: Vec<Vec<Box<dyn Sink>>>,
    /// The number of instances of a stage, at least one.
    pub parallelism: usize,
    /// The bounds of inboxes.
    pub limits: FlowLimits,
    /// The state to continue from; sources and sinks were opened there.
    pub restored: Option<Snapshot>,
}

/// A running big query.
pub struct Flow {
    state: Arc<FlowState>,
    tasks: Vec<Arc<FlowTask>>,
    stages: Vec<Stage>,
    /// For each stage the sources of its rows.
    sources_of: Vec<Arc<[usize]>>,
    dataflow: Dataflow,
    clock: Arc<dyn Clock>,
    /// Of the steady clock, microseconds.
    begun_us: i64,
}

impl Flow {
    /// Makes the tasks and starts the sources.
    ///
    /// # Errors
    /// The restored state is not that of these operators.
    pub(crate) fn start(parts: FlowParts, pool: &Arc<Pool>) -> Result<Self, StateError> {
        let FlowParts { name, dataflow, sources, letters, tap, sinks, parallelism, limits, restored } = parts;
        let restored = restored.unwrap_or_default();
        let partitions: Vec<usize> = sources.iter().map(Vec::len).collect();
        let stages = cut(&dataflow, &partitions, parallelism.max(1));
        let of_stages = restored.of_stages(&stages, &dataflow);
        let tasks_count: usize = stages.iter().map(|stage| stage.instances).sum();
        let sources_of = sources_of(&stages, &dataflow);
        let groups = groups(&stages, &dataflow, &sources_of);
        let depths = depths(&stages);
        // Each source that is read, with its tasks.
        let reading = stages.iter().rev().filter_map(|stage| Some((stage.source(&dataflow)?, stage.instances)));
        let alignment = Alignment::new(reading.clone().map(|(_, tasks)| tasks));
        let idleness = Idleness::new(reading.flat_map(|(source, tasks)| vec![groups[source]; tasks]).collect());
        let state = Arc::new(FlowState::new(name, limits, (alignment, idleness), tasks_count));
        // Instances of different stages with the same number run on one worker, so that what they exchange stays near.
        let workers = pool.place_flow(stages.iter().map(|stage| stage.instances).max().unwrap_or(0));
        let nodes: Vec<Option<usize>> = workers.iter().map(|&worker| pool.node(worker)).collect();
        let mut sources: Vec<Option<Vec<Partition>>> = sources.into_iter().map(Some).collect();
        let mut sinks: Vec<_> = sinks.into_iter().map(Vec::into_iter).collect();
        // Downstream tasks are made first, because a sender holds its receivers.
        let mut made: Vec<Vec<Arc<FlowTask>>> = vec![Vec::new(); stages.len()];
        let mut aligned = 0_usize..;
        for (index, stage) in stages.iter().enumerate().rev() {
            let mut of_source: Vec<Vec<Partition>> = Vec::new();
            if let Some(source) = stage.source(&dataflow) {
                of_source.resize_with(stage.instances, Vec::new);
                let partitions = sources[source].take().expect("a source is the head of one stage");
                partitions
                    .into_iter()
                    .enumerate()
                    .for_each(|(number, partition)| of_source[number % stage.instances].push(partition));
            }
            let operators = Operators::of(stage, &dataflow);
            let divided = |node| restored.divide(&dataflow, node, stage.instances);
            let mut state_of = stage.operator_nodes(&dataflow).map(divided).collect::<Result<Vec<_>, _>>()?;
            for (instance, &worker) in workers.iter().enumerate().take(stage.instances) {
                let sink = stage.sink(&dataflow).map(|sink| sinks[sink].next().expect("a sink for each instance"));
                let outputs = Outputs::new(&stages, index, instance, &made, &nodes, dataflow.key_groups());
                made[index].push(FlowTask::new(
                    FlowTaskParts {
                        stage: index,
                        operators: operators.clone(),
                        instance,
                        worker,
                        depth: depths[index],
                        channels: stage.channels(instance, &stages),
                        partitions: of_source.get_mut(instance).map(std::mem::take),
                        aligned: if of_source.is_empty() { None } else { aligned.next() },
                        letters: letters.clone().map(|letters| (letters, sources_of[index].clone())),
                        is_of_results: stage.sink(&dataflow) == Some(0),
                        tap: tap.clone().filter(|_| stage.sink(&dataflow) == Some(0)),
                        outputs,
                        sink,
                        guest: None,
                        restored: of_stages[index].clone(),
                        state: state_of.iter_mut().map(|frames| frames[instance].take()).collect(),
                    },
                    state.clone(),
                    pool.clone(),
                )?);
            }
        }
        for (index, stage) in stages.iter().enumerate() {
            for (instance, task) in made[index].iter().enumerate() {
                let upstream = stage.upstream(instance, &stages);
                task.set_upstream(upstream.map(|(stage, instance)| Arc::downgrade(&made[stage][instance])).collect());
            }
        }
        let tasks: Vec<Arc<FlowTask>> = made.into_iter().flatten().collect();
        let peer = |task: &Arc<FlowTask>| -> Weak<dyn Peer> { Arc::downgrade(task) as _ };
        let _ = state.tasks.set(tasks.iter().map(peer).collect());
        tasks.iter().for_each(FlowTask::begin);
        let clock = pool.clock.clone();
        let begun_us = clock.steady_us();
        Ok(Self { state, tasks, stages, sources_of, dataflow, clock, begun_us })
    }

    /// Says whose time it takes. A second call changes nothing.
    pub fn set_share(&self, share: &Arc<Share>) {
        self.tasks.iter().for_each(|task| task.standing().set_share(share.clone()));
    }

    /// Makes a snapshot of all tasks; the state of operators goes to `into`, from each task when it reaches the
    /// barrier. Sources rest until then, at most for `timeout`; the rest of the flow works on. If a sink waits for the
    /// commit, sources rest until [`Flow::committed`] or [`Flow::give_up`]. The checkpoint with this number may have
    /// been tried before.
    ///
    /// # Errors
    /// Why there is no snapshot; the flow goes on.
    pub fn checkpoint(
        &self,
        number: u64,
        timeout: Duration,
        into: Arc<dyn StateSink>,
    ) -> Result<Snapshot, CheckpointError> {
        self.begin_checkpoint(number, into)?;
        self.snapshot(self.state.barrier.gather(&self.places(), timeout, || self.ended().is_some()))
    }

    /// The first half of [`Flow::checkpoint`], for a caller that runs the tasks itself and so cannot wait. The second
    /// half is [`Flow::look_at_checkpoint`].
    ///
    /// # Errors
    /// The flow has ended, or another checkpoint is in progress.
    pub fn begin_checkpoint(&self, number: u64, into: Arc<dyn StateSink>) -> Result<(), CheckpointError> {
        if self.ended().is_some() {
            return Err(CheckpointError::Ending);
        }
        self.state.barrier.raise(number, into)?;
        self.state.wake_sources();
        Ok(())
    }

    /// The outcome of the checkpoint that was begun; `None` while a task has not reached the barrier.
    pub fn look_at_checkpoint(&self) -> Option<Result<Snapshot, CheckpointError>> {
        let gathered = self.state.barrier.look(&self.places(), || self.ended().is_some())?;
        Some(self.snapshot(gathered))
    }

    /// Abandons the checkpoint that was begun.
    pub fn abandon_checkpoint(&self) {
        self.state.barrier.abandon();
        self.give_up();
    }

    fn places(&self) -> Vec<(usize, usize)> {
        self.tasks.iter().map(|task| task.place()).collect()
    }

    /// Joins what was gathered. Sources go on, unless a sink waits for the commit.
    fn snapshot(&self, gathered: Gathered) -> Result<Snapshot, CheckpointError> {
        // If some instances of a stage have ended, the others are about to. Tasks of a flow that is cancelled let go of
        // what they have, and look as if they had ended; this is known before any of them does.
        let together = |parts| Snapshot::of(parts, &self.stages, &self.dataflow).filter(|_| !self.state.is_cancelled());
        let snapshot = gathered.and_then(|parts| together(parts).ok_or(CheckpointError::Ending));
        if snapshot.is_err() || !self.tasks.iter().any(|task| task.waits_for_commit()) {
            self.give_up();
        }
        snapshot
    }

    /// The checkpoint with this number is durable: sinks commit it.
    pub fn committed(&self, number: u64) {
        self.state.barrier.commit(number);
        self.tasks.iter().filter(|task| task.writes()).for_each(FlowTask::begin);
        self.give_up();
    }

    /// Whether sinks have committed all durable checkpoints.
    pub fn is_committed(&self) -> bool {
        let committed = self.state.barrier.committed_barrier();
        self.tasks.iter().filter(|task| task.writes()).all(|task| task.final_to() >= committed)
    }

    /// Waits for [`Flow::is_committed`], at most for `timeout`; returns whether it is.
    pub fn wait_committed(&self, timeout: Duration) -> bool {
        /// As often as sinks are asked.
        const LOOK_PERIOD: Duration = Duration::from_millis(2);
        let deadline = Instant::now() + timeout;
        while !self.is_committed() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        true
    }

    /// Whether a restart from the last checkpoint is safe behind the error that ended the flow: its sink rolled back to
    /// it, or a guest was lost, which is as a crash.
    pub fn is_undone(&self) -> bool {
        self.state.failure.get().is_some_and(|failure| failure.may_restart)
    }

    /// Moves a task, by its stage and instance, to a guest at the other end of `pipe`. [`Flow::placements`] tells how
    /// that goes; if it cannot begin, or has more than `bytes_max` bytes of state, the task stays. The guest gives its
    /// state in parts of up to `rows_max` rows. Who makes the pipe wakes the task with [`Flow::waker`]. Whoever has
    /// redirected a task brings it home when its state ([`Placement::figures`]) outgrows the bound there.
    ///
    /// # Errors
    /// The task does not move.
    pub fn redirect(
        &self,
        place: (usize, usize),
        pipe: Arc<dyn Pipe>,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<(), MoveError> {
        self.task(place)?.redirect(Wish::Out(pipe, rows_max, bytes_max))
    }

    /// Brings a task home. A task with a source comes only when [`Flow::reopened`] was called.
    ///
    /// # Errors
    /// The task is at home.
    pub fn bring_back(&self, place: (usize, usize)) -> Result<(), MoveError> {
        self.task(place)?.bring_back()
    }

    /// The partitions of a task that comes home were opened again, where [`Placement::reopens`] says.
    ///
    /// # Errors
    /// There is no such task.
    pub fn reopened(&self, place: (usize, usize), partitions: Vec<Partition>) -> Result<(), MoveError> {
        self.task(place).map(|task| task.ask(|asked| asked.reopened = Some(partitions)))
    }

    /// The guest of a task is lost. If it has not begun, the task goes on here; otherwise the flow fails, and may be
    /// restarted from its last checkpoint ([`Flow::is_undone`]).
    ///
    /// # Errors
    /// There is no such task.
    pub fn lose(&self, place: (usize, usize), why: &str) -> Result<(), MoveError> {
        self.task(place).map(|task| task.ask(|asked| asked.lost = Some(why.to_owned())))
    }

    /// Where tasks run that were ever moved.
    pub fn placements(&self) -> Vec<Placement> {
        self.tasks.iter().filter_map(|task| task.placement()).collect()
    }

    /// What wakes a task when something has come by its pipe, or when there is room again.
    ///
    /// # Errors
    /// There is no such task.
    pub fn waker(&self, place: (usize, usize)) -> Result<Waker, MoveError> {
        self.task(place).map(|task| task.waker())
    }

    fn task(&self, place: (usize, usize)) -> Result<&Arc<FlowTask>, MoveError> {
        self.tasks.iter().find(|task| task.place() == place).ok_or(MoveError::Unknown(place.0, place.1))
    }

    /// Abandons the checkpoint in progress: sources go on.
    pub fn give_up(&self) {
        self.state.barrier.lower();
        self.state.wake_sources();
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Waits until everything is processed and written, at most for `timeout`. `None` if the flow still runs then.
    ///
    /// # Errors
    /// What ended the flow early.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), FlowError>> {
        let deadline = Instant::now() + timeout;
        let mut done = self.state.done.lock();
        while done.is_none() {
            if self.state.finished.wait_until(&mut done, deadline).timed_out() && done.is_none() {
                return None;
            }
        }
        Some(match self.state.failure.get() {
            Some(failure) => Err(FlowError(failure.error.clone())),
            None => Ok(()),
        })
    }

    /// When the flow ended.
    pub fn ended(&self) -> Option<Instant> {
        *self.state.done.lock()
    }

    /// Makes the sources end now. What was read is processed and written. With `drains`, open windows are emitted as at
    /// the end of the input; otherwise they are dropped. [`Flow::wait`] tells when that is done.
    pub fn stop(&self, drains: bool) {
        self.state.turn(if drains { Phase::Draining } else { Phase::Stopping });
        self.tasks.iter().for_each(FlowTask::begin);
    }

    /// Stops polling sources until [`Flow::resume`]. What was read is processed and written, and operators keep their
    /// state. The bounds of the sources push senders back. Windows that close by the clock still do.
    pub fn pause(&self) {
        self.hold(Phase::Paused);
    }

    /// Pauses before a last checkpoint: it has the rows that wait in sources which cannot be read again, and sinks
    /// close what they would otherwise continue. [`Flow::resume`] undoes it.
    pub fn close(&self) {
        self.hold(Phase::Closing);
    }

    fn hold(&self, phase: Phase) {
        self.state.turn(phase);
        // A paused source stops listening.
        self.state.wake_sources();
    }

    /// Polls sources again, also after a [`Flow::close`] that was abandoned.
    pub fn resume(&self) {
        self.state.turn(Phase::Running);
        self.tasks.iter().for_each(FlowTask::begin);
    }

    /// Bounds what all sources read here together: first to this many rows a second, 40 % more each second; after 5 s
    /// the bound ends. `None` ends it at once.
    pub fn throttle(&self, rows_per_s: Option<f64>) {
        self.state.throttle.set(rows_per_s, self.clock.steady_us());
        self.state.wake_sources();
    }

    /// Ends the flow as a crash would: nothing more is processed, and what it has opened is released.
    pub fn cancel(&self) {
        self.state.cancel();
    }

    /// Waits until all tasks have closed what they opened, at most for `timeout`; returns whether they have. They do so
    /// at their end, and soon after an error or [`Flow::cancel`].
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        /// The last task of a cancelled flow does not notify the waiter.
        const LOOK_PERIOD: Duration = Duration::from_millis(1);
        let deadline = Instant::now() + timeout;
        while self.state.remaining.load(Ordering::Acquire) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        true
    }

    /// Whether its sources are not polled.
    pub fn is_paused(&self) -> bool {
        self.state.phase().is_paused()
    }

    /// The stages, with the number of instances of each.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The operators.
    pub fn dataflow(&self) -> &Dataflow {
        &self.dataflow
    }

    /// What the flow has done so far.
    pub fn report(&self) -> FlowReport {
        self.report_within(REPORT_PATIENCE)
    }

    /// The same, waiting at most for `patience` for each task that runs: its state and progress are those of its last
    /// rest if it goes on.
    pub fn report_within(&self, patience: Duration) -> FlowReport {
        let mut report = FlowReport::default();
        let mut progress = Some((0, 0));
        for task in &self.tasks {
            let source = self.stages[task.place().0].source(&self.dataflow);
            task.add_to((source, patience), &mut report, &mut progress);
        }
        report.progress = progress.filter(|&(_, all)| all > 0);
        report.window_us = u64::try_from(self.clock.steady_us() - self.begun_us).unwrap_or(0);
        let read = |source: usize| {
            let reads = |task: &&TaskReport| self.stages[task.stage].source(&self.dataflow) == Some(source);
            report.tasks.iter().filter(reads).map(|task| task.rows_in).sum::<u64>()
        };
        let rows: Vec<u64> =
            self.sources_of.iter().map(|sources| sources.iter().map(|&source| read(source)).sum()).collect();
        report.tasks.iter_mut().for_each(|task| task.source_rows = rows[task.stage]);
        report
    }
}

/// For each stage the sources of its rows, by their indices in the plan.
fn sources_of(stages: &[Stage], dataflow: &Dataflow) -> Vec<Arc<[usize]>> {
    let mut all: Vec<Arc<[usize]>> = Vec::with_capacity(stages.len());
    for stage in stages {
        let read = stage.inputs.iter().flat_map(|input| all[input.from].iter().copied());
        let read: BTreeSet<usize> = read.chain(stage.source(dataflow)).collect();
        all.push(read.into_iter().collect());
    }
    all
}

/// For each stage the number of stages before it, on the longest way from a source.
fn depths(stages: &[Stage]) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(stages.len());
    for stage in stages {
        depths.push(stage.inputs.iter().map(|input| depths[input.from] + 1).max().unwrap_or(0));
    }
    depths
}

/// For each source the number of its group: sources have the same number if their rows meet in a stage that keeps
/// state.
fn groups(stages: &[Stage], dataflow: &Dataflow, sources_of: &[Arc<[usize]>]) -> Vec<usize> {
    let sources = sources_of.iter().flat_map(|sources| sources.iter()).max().map_or(0, |last| last + 1);
    let mut groups: Vec<usize> = (0..sources).collect();
    for (stage, met) in stages.iter().zip(sources_of) {
        if stage.operators(dataflow).any(|operator| operator.is_stateful()) {
            let joined: BTreeSet<usize> = met.iter().map(|&source| groups[source]).collect();
            let Some(&first) = joined.first() else { continue };
            groups.iter_mut().filter(|group| joined.contains(&**group)).for_each(|group| *group = first);
        }
    }
    groups
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.state.cancel();
    }
}

/// Why a flow ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FlowError(pub String);
