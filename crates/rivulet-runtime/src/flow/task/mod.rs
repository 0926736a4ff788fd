//! A task of a big query: one instance of a stage.

mod barrier;
mod checkpoints;
mod ending;
mod guest;
mod moves;
mod moving;
mod operators;
mod report;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arrow::datatypes::Schema;
use parking_lot::Mutex;
use rivulet_dataflow::stage::StageHost;
use rivulet_dataflow::{
    Element, Fault, OperatorError, Reason, Refusal, Refusals, Refused, Seconds, Sink, SlotTable, StageSnapshot,
    StateError, StateFrame, Surroundings, TransactionalSink, Waits, panic_text,
};

use super::exchange::{Letters, Outputs, Tap};
use super::host::Host;
use super::idleness::SourceTime;
use super::inbox::{FlowInbox, Sent};
use super::measure::{OperatorCounters, Times, Turn};
use super::peer::Peer;
use super::pipe::{Waker, Word};
use super::reader::{Partition, Read, Reader};
use super::state::{FlowState, Phase};
use crate::pool::{DeadlineId, Pool};
use crate::scheduler::{Budget, Rank, Runnable, Standing};
use crate::{Activation, Histogram};
use checkpoints::Checkpoints;
pub(super) use moves::Wish;
use moves::{Asked, Outlet};
pub(super) use operators::Operators;

/// How many refusals of a task are kept in words.
const REFUSALS_TOLD_MAX: usize = 5;

/// How often a sink is flushed while no rows come.
const SINK_FLUSH_US: i64 = 1_000_000;

/// How often a sink that has not finished yet is asked again.
const FINISHED_ASKED_US: i64 = 5_000;

/// The time to poll sources that may have rows: at once.
const SOURCES_READY: i64 = i64::MIN;

/// How long a task reads on though its sources give less than half of what they are asked for, microseconds: several
/// may have some rows each.
const CAUGHT_UP_US: i64 = 1_000;

/// Makes rows of refusals, with the sources that the rows of a task come from.
type OwnLetters = (Arc<dyn Letters>, Arc<[usize]>);

/// The parts of a task of a flow.
pub(super) struct FlowTaskParts {
    pub(super) stage: usize,
    pub(super) operators: Operators,
    pub(super) instance: usize,
    pub(super) worker: usize,
    /// The number of stages before it, on the longest way from a source.
    pub(super) depth: usize,
    /// For each channel that leads here, the input of the first operator that its rows are for.
    pub(super) channels: Vec<usize>,
    /// The partitions of the source it begins with, if any.
    pub(super) partitions: Option<Vec<Partition>>,
    /// Its index in the alignment of sources, if it reads any.
    pub(super) aligned: Option<usize>,
    /// Makes rows of its refusals.
    pub(super) letters: Option<OwnLetters>,
    /// Whether its sink takes results, not refused rows.
    pub(super) is_of_results: bool,
    /// Looks at what it writes.
    pub(super) tap: Option<Tap>,
    pub(super) outputs: Outputs,
    pub(super) sink: Option<Box<dyn Sink>>,
    /// Of a guest: what leads to the flow that it works for.
    pub(super) guest: Option<Outlet>,
    /// The snapshot it continues from, and the state of each operator.
    pub(super) restored: StageSnapshot,
    pub(super) state: Vec<Option<StateFrame>>,
}

/// An instance of a stage, with the queue in front of it.
pub(crate) struct FlowTask {
    myself: Weak<Self>,
    stage: usize,
    operators: Operators,
    instance: usize,
    /// The number of inputs of its first operator; none if it reads sources.
    inputs: usize,
    worker: usize,
    depth: usize,
    guest: Option<Outlet>,
    asked: Mutex<Asked>,
    /// Whether a move is wanted, or the task is away.
    is_moving: AtomicBool,
    flow: Arc<FlowState>,
    pool: Arc<Pool>,
    inbox: FlowInbox,
    upstream: OnceLock<Vec<Weak<FlowTask>>>,
    /// Its index in the alignment of sources, if it reads any.
    aligned: Option<usize>,
    /// Whether it ends with a sink.
    writes: bool,
    is_of_results: bool,
    tap: Option<Tap>,
    /// Whether it ends with a sink that waits for each checkpoint to be durable.
    waits_for_commit: bool,
    letters: Option<OwnLetters>,
    /// The newest barrier whose checkpoint its sink has committed; [`u64::MAX`] once the task has ended.
    final_to: AtomicU64,
    standing: Standing,
    deadline: DeadlineId,
    /// When to poll its sources, microseconds since the epoch: [`SOURCES_READY`], or `i64::MAX` if no source is open.
    sources_at_us: AtomicI64,
    /// Rows waiting in its stage after the last run.
    in_stage: AtomicUsize,
    counters: Counters,
    times: Times,
    measured: Vec<Arc<OperatorCounters>>,
    core: Mutex<Core>,
    figures: Mutex<Figures>,
}

/// Figures that can be read while the task runs: those that may only grow must not be missing because a task runs for
/// long.
#[derive(Default)]
struct Figures {
    refused: [u64; Reason::ALL.len()],
    seconds: Seconds,
    told: Vec<String>,
    latency_us: Histogram,
    waits: Waits,
    reached_us: Option<i64>,
    state_bytes: usize,
    /// How long guests of it were busy, in microseconds.
    away_busy_us: u64,
    /// The progress of its sources.
    progress: Option<(u64, u64)>,
}

#[derive(Default)]
struct Counters {
    rows_in: AtomicU64,
    rows_out: AtomicU64,
}

/// The state of a task. The thread that runs the task holds its lock, and a report takes it in between.
struct Core {
    reader: Option<Reader>,
    stage: Host,
    checkpoints: Checkpoints,
    outputs: Outputs,
    sink: Option<Box<dyn Sink>>,
    /// Empty: a big query has no parameters, but operators expect a table.
    slots: SlotTable,
    refusals: Refusals,
    /// Kept to reuse the memory.
    taken: Vec<Sent>,
    turn: Turn,
    /// When its sources may read again if they are throttled, on the steady clock.
    again_us: i64,
    /// Of a guest: when it told its figures, on the steady clock, and how far it told that its source is.
    told_at_us: i64,
    told_reached: Option<SourceTime>,
    /// Whether it has stopped with work left, because there was no room for what comes of it.
    is_held: bool,
    /// Whether the restored task had already ended.
    had_ended: bool,
    /// Whether its sink was given more than it has room for, and has had no room since.
    is_overfull: bool,
    /// Whether all is processed and the sink is making its result final.
    is_finishing: bool,
    has_ended: bool,
}

impl FlowTask {
    /// Makes a task.
    ///
    /// # Errors
    /// The restored state belongs to other operators.
    pub(super) fn new(
        mut parts: FlowTaskParts,
        flow: Arc<FlowState>,
        pool: Arc<Pool>,
    ) -> Result<Arc<Self>, StateError> {
        let (operators, instance) = (parts.operators, parts.instance);
        let measured: Vec<Arc<OperatorCounters>> = operators.nodes.iter().map(|_| Arc::default()).collect();
        let inputs = parts.channels.iter().max().map_or(0, |last| last + 1);
        // The rows of all its sources come by one channel, like those of another stage.
        let channels = if parts.partitions.is_some() { vec![0] } else { parts.channels };
        let mut front = StageHost::new(operators.chain(instance, &measured), channels, flow.limits.batch_rows);
        front.restore(&parts.restored, &parts.state)?;
        let (made, counted) = (operators.clone(), measured.clone());
        let stage = Host::new(front, operators.len(), move || made.chain(instance, &counted));
        if let Some(load) = pool.workers.get(parts.worker) {
            load.flow_tasks.fetch_add(1, Ordering::Relaxed);
        }
        // Where refused rows go to a sink, all are kept until the end of the step; a step refuses no more than it was
        // given.
        let refusals_max = if parts.outputs.take_refused() { usize::MAX } else { REFUSALS_TOLD_MAX };
        Ok(Arc::new_cyclic(|task: &Weak<Self>| Self {
            myself: task.clone(),
            stage: parts.stage,
            operators,
            instance,
            inputs,
            worker: parts.worker,
            depth: parts.depth,
            guest: parts.guest,
            asked: Mutex::default(),
            is_moving: AtomicBool::new(false),
            inbox: FlowInbox::new(flow.limits),
            flow,
            upstream: OnceLock::new(),
            aligned: parts.aligned,
            writes: parts.sink.is_some(),
            is_of_results: parts.is_of_results,
            tap: parts.tap,
            letters: parts.letters.filter(|_| parts.outputs.take_refused()),
            waits_for_commit: transactional(&mut parts.sink).is_some_and(|sink| sink.waits_for_commit()),
            final_to: AtomicU64::new(0),
            standing: Standing::default(),
            deadline: pool.flow_deadlines.register(task.clone()),
            pool,
            sources_at_us: AtomicI64::new(if parts.partitions.is_some() { SOURCES_READY } else { i64::MAX }),
            in_stage: AtomicUsize::new(0),
            counters: Counters::default(),
            times: Times::default(),
            measured,
            figures: Mutex::default(),
            core: Mutex::new(Core {
                reader: parts.partitions.map(Reader::new),
                stage,
                checkpoints: Checkpoints::default(),
                outputs: parts.outputs,
                sink: parts.sink,
                slots: SlotTable::new(Arc::new(Schema::empty())),
                refusals: Refusals::new(refusals_max),
                taken: Vec::new(),
                turn: Turn::default(),
                again_us: 0,
                told_at_us: 0,
                told_reached: None,
                is_held: false,
                had_ended: parts.restored.has_ended,
                is_overfull: false,
                is_finishing: false,
                has_ended: false,
            }),
        }))
    }

    /// Sets the senders to this task, so that they can be woken. Once, before any of them runs.
    pub(super) fn set_upstream(&self, upstream: Vec<Weak<Self>>) {
        let _ = self.upstream.set(upstream);
    }

    /// Its stage and instance.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.stage, self.instance)
    }

    /// Whether it ends with a sink.
    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// Whether it ends with a sink that waits for each checkpoint to be durable.
    pub(super) fn waits_for_commit(&self) -> bool {
        self.waits_for_commit
    }

    /// The newest barrier whose checkpoint its sink has committed; [`u64::MAX`] once the task has ended.
    pub(super) fn final_to(&self) -> u64 {
        self.final_to.load(Ordering::Acquire)
    }

    /// Schedules the task, also for a first time and while workers stop: see [`Pool::schedule`].
    pub(super) fn begin(self: &Arc<Self>) {
        self.pool.schedule(self);
    }

    /// What makes the task check whether it can go on.
    pub(super) fn waker(&self) -> Waker {
        let task = self.myself.clone();
        Arc::new(move || task.upgrade().iter().for_each(Self::begin))
    }

    fn schedule(&self) {
        if let Some(task) = self.myself.upgrade() {
            self.pool.schedule(&task);
        }
    }

    /// One step: the work in the stage, or else at most `rows_max` rows of a source or of the inbox. `None` if there
    /// was nothing to do.
    fn step(&self, core: &mut Core, rows_max: usize) -> Result<Option<usize>, String> {
        let now_us = self.pool.clock.now_us();
        let mut given = Some(0);
        if !core.stage.has_work() {
            given = match core.reader {
                _ if !core.stage.wants() => None,
                None if self.guest.is_some() => self.give_of_pipe(core, rows_max)?,
                Some(_) => self.give_of_sources(core, now_us, rows_max)?,
                None => self.give_of_inbox(core, rows_max),
            };
            self.note_refusals(core)?;
            // An element taken just now may lie behind a barrier that was committed since the last check.
            self.go_on(core);
        }
        if core.stage.has_work() && !core.checkpoints.is_committing() {
            self.work_off(core, now_us)?;
            if core.stage.away.is_some() {
                given = given.or(Some(0));
            }
        }
        Ok(given)
    }

    /// Gives the stage what its sources have: rows, a watermark, the barrier behind which they rest, or the end.
    /// Returns the number of rows, or `None` if there is nothing.
    fn give_of_sources(&self, core: &mut Core, now_us: i64, rows_max: usize) -> Result<Option<usize>, String> {
        let Core { reader: Some(reader), stage, refusals, checkpoints, again_us, .. } = core else { return Ok(None) };
        // Resting or paused sources need no timer: the call that lets them go on wakes the task, which polls at once.
        self.sources_at_us.store(SOURCES_READY, Ordering::Release);
        let phase = self.flow.phase();
        let wanted = self.flow.barrier.wanted();
        let is_last = self.takes_last_rows(reader, checkpoints);
        if wanted != 0 && !phase.ends() && !is_last {
            let lacks = checkpoints.lacks(wanted);
            if lacks {
                stage.front.give(0, Element::Barrier(wanted));
            }
            return Ok(lacks.then_some(0));
        }
        let fed = if phase.ends() {
            Read::End
        } else if !(is_last || self.flow.may_poll() && self.may_read(reader)) {
            return Ok(None);
        } else {
            let rows_max = self.flow.limits.batch_rows.min(rows_max);
            let times = (now_us, self.pool.clock.steady_us());
            let mut poll = |most: usize| reader.poll(rows_max.min(most), times, refusals);
            // The last rows are few, and a checkpoint waits for them.
            if is_last { poll(rows_max)? } else { self.flow.throttle.pass(again_us, times, poll)? }
        };
        self.note_reached(reader.time_us(), reader.reached());
        let mut rows = Some(0);
        let advanced = reader.advanced(self.time_of_others(reader));
        match fed {
            Read::Rows(batch) => {
                rows = Some(batch.rows());
                self.counters.rows_in.fetch_add(batch.rows() as u64, Ordering::Relaxed);
                stage.front.give(0, Element::Batch(batch));
            }
            Read::Again => {}
            Read::Nothing(until_us) => {
                self.sources_at_us.store(until_us, Ordering::Release);
                rows = None;
            }
            Read::End => {
                self.sources_at_us.store(i64::MAX, Ordering::Release);
                // The task that it works for calls it home, and ends there.
                if self.guest.is_some() {
                    return Ok(None);
                }
                stage.front.give(0, Element::End);
                return Ok(rows);
            }
        }
        if let Some(watermark_us) = advanced {
            stage.front.give(0, Element::Watermark(watermark_us));
        }
        Ok(rows)
    }

    /// Reports how far its sources have come, for tasks that wait for them, and for idle ones.
    fn note_reached(&self, time_us: Option<i64>, time: SourceTime) {
        let Some(place) = self.aligned else { return };
        // Both must be told.
        if self.flow.alignment.reached(place, time_us) | self.flow.idleness.reached(place, time) {
            self.flow.wake_sources();
        }
    }

    /// The time of others that idle sources go on to.
    fn time_of_others(&self, reader: &Reader) -> Option<i64> {
        self.aligned.filter(|_| reader.is_idle()).and_then(|place| self.flow.idleness.time_us(place))
    }

    /// Whether its sources are not too far ahead of others.
    fn may_read(&self, reader: &Reader) -> bool {
        self.aligned.is_none_or(|place| self.flow.alignment.may_read(place, reader.batch_us()))
    }

    /// Gives the stage what waits in the inbox. Returns the number of rows, or `None` if nothing waits.
    fn give_of_inbox(&self, core: &mut Core, rows_max: usize) -> Option<usize> {
        if self.inbox.take(self.flow.limits.batch_rows, rows_max, &mut core.taken) {
            let upstream = self.upstream.get().into_iter().flatten().filter_map(Weak::upgrade);
            upstream.for_each(|task| task.begin());
        }
        if core.taken.is_empty() {
            return None;
        }
        let (mut rows, now_us) = (0, self.pool.clock.steady_us());
        for Sent { channel, element, sent_us, .. } in core.taken.drain(..) {
            if let Element::Batch(batch) = &element {
                rows += batch.rows();
                self.times.take(&core.turn, batch.rows(), sent_us, now_us);
            }
            core.stage.front.give(channel, element);
        }
        self.counters.rows_in.fetch_add(rows as u64, Ordering::Relaxed);
        Some(rows)
    }

    /// Steps the stage until it has no work. Stops earlier when targets have no room, when one element has so much
    /// output that other tasks should have a turn, and at a barrier or the end, where the sink is asked next. What
    /// comes of a guest, and may come for ever, is taken step by step.
    fn work_off(&self, core: &mut Core, now_us: i64) -> Result<(), String> {
        core.stage.front.discard_open(matches!(self.flow.phase(), Phase::Stopping | Phase::Cancelled));
        loop {
            self.run_stage(core, now_us, Host::step)?;
            if core.stage.front.has_ended() {
                Self::finish(core);
                return Ok(());
            }
            let stage = &core.stage;
            let goes_on = stage.away.is_none() && stage.has_work() && !stage.front.has_more();
            if !(goes_on && self.may_write(core) && core.outputs.have_room()) {
                return Ok(());
            }
        }
    }

    /// Runs operators, and sends or writes their output.
    fn run_stage(
        &self,
        core: &mut Core,
        now_us: i64,
        run: impl FnOnce(&mut Host, Surroundings<'_>, &mut dyn FnMut(Element)) -> Result<(), OperatorError>,
    ) -> Result<(), String> {
        let Core { stage, outputs, sink, slots, refusals, .. } = core;
        let clock = &self.pool.clock;
        let mut failed = None;
        let mut rows_out = 0;
        let mut out = |element: Element| {
            let Element::Batch(batch) = element else { return outputs.tell(&element) };
            rows_out += batch.rows() as u64;
            let sent = match sink {
                Some(sink) => {
                    if let Some(tap) = &self.tap {
                        tap(&batch);
                    }
                    let written = sink.write(&batch).map_err(|error| error.0);
                    let now_us = clock.now_us();
                    let latency_us = &mut self.figures.lock().latency_us;
                    batch.arrival_us.iter().for_each(|&arrival_us| latency_us.record(now_us - arrival_us));
                    written
                }
                None => outputs.send(batch),
            };
            if let Err(error) = sent {
                failed.get_or_insert(error);
            }
        };
        let outcome = run(stage, Surroundings { now_us, slots, refusals }, &mut out);
        self.counters.rows_out.fetch_add(rows_out, Ordering::Relaxed);
        match failed {
            Some(error) => Err(error),
            None => outcome.map_err(|error| match error.fault {
                Fault::Engine => format!("an operator failed, which is a defect of the engine: {error}"),
                Fault::UserCode => format!("the code of the query failed: {error}"),
            }),
        }?;
        self.note_refusals(core)
    }

    /// Counts refusals and sends them to their sinks. This happens before the barrier; behind it they would count
    /// twice.
    fn note_refusals(&self, core: &mut Core) -> Result<(), String> {
        if core.refusals.is_empty() {
            return Ok(());
        }
        let mut figures = self.figures.lock();
        for reason in Reason::ALL {
            figures.refused[reason as usize] += core.refusals.counted(reason);
        }
        figures.waits.add(core.refusals.waits());
        core.refusals.seconds().iter().for_each(|seconds| figures.seconds.add(*seconds));
        let places = REFUSALS_TOLD_MAX - figures.told.len().min(REFUSALS_TOLD_MAX);
        let told = core.refusals.records().iter().take(places);
        figures.told.extend(told.map(|record| match &record.content {
            Refused::Payload(payload) => format!("{}: {}", record.detail, excerpt(payload)),
            Refused::Row(_) => record.detail.clone(),
        }));
        drop(figures);
        if let Some((letters, sources)) = &self.letters {
            core.outputs.send_refused(|late, others| {
                let is_taken = |refusal: &&Refusal| if refusal.reason == Reason::Late { late } else { others };
                let taken: Vec<&Refusal> = core.refusals.records().iter().filter(is_taken).collect();
                if taken.is_empty() { Ok(None) } else { letters.rows(&taken, sources).map(Some) }
            })?;
        }
        core.refusals.clear();
        Ok(())
    }

    /// Updates the figures and flushes the sink.
    fn count_and_send(&self, core: &mut Core) -> Result<(), String> {
        self.figures.lock().reached_us = core.stage.front.reached_us();
        if let Some(sink) = core.sink.as_mut().filter(|_| !core.is_finishing) {
            sink.flush().map_err(|error| error.0)?;
        }
        self.note_placement(core);
        self.tell_as_guest(core)
    }

    fn work(&self, core: &mut Core, budget: Budget) -> Result<Activation, String> {
        let clock = &self.pool.clock;
        let begun_us = clock.steady_us();
        self.times.begin(&mut core.turn, self.standing.due_us(), begun_us);
        let mut rows = 0;
        core.is_held = false;
        // What lies in the stage counts before what is taken.
        let held = core.stage.front.rows_waiting();
        // Each pass asks the sink at most once: to commit a checkpoint, to prepare one, or to finish.
        let outcome = loop {
            self.hear_as_guest(core)?;
            self.move_on(core)?;
            self.go_on(core);
            // Before the check for room: paused sources must release what they hold even when no rows move.
            if let Some(reader) = &mut core.reader {
                match self.flow.phase() {
                    Phase::Running => reader.set_paused(false),
                    Phase::Paused | Phase::Closing => reader.set_paused(true),
                    // A source that ends does not listen again before.
                    Phase::Draining | Phase::Stopping | Phase::Cancelled => {}
                }
            }
            if !self.commit(core)? || (core.stage.front.barrier().is_some() && !self.prepare(core)?) {
                break Activation::Ran(rows);
            }
            if core.is_finishing {
                Self::complete(core)?;
                break Activation::Ran(rows);
            }
            if !self.may_write(core) {
                core.is_held = true;
                break Activation::Blocked;
            }
            // A full target wakes this task. After the run, the task checks once more whether it can go on.
            if core.has_ended || self.flow.is_cancelled() {
                break Activation::Ran(rows);
            }
            if !core.outputs.have_room() {
                core.is_held = core.reader.is_some() || core.stage.has_work() || !self.inbox.is_empty();
                break Activation::Ran(rows);
            }
            self.begin_move(core)?;
            let rows_max = budget.left(held + rows);
            let Some(more) = self.step(core, rows_max)? else { break Activation::Ran(rows) };
            rows += more;
            let for_us = clock.steady_us() - begun_us;
            // What its sources get while it reads makes small batches, and all that follows works on each of them.
            let half = self.flow.limits.batch_rows.min(rows_max) / 2;
            let has_caught_up = core.reader.is_some() && (1..half).contains(&more);
            if (has_caught_up && for_us >= CAUGHT_UP_US) || budget.is_spent(held + rows, for_us) {
                break Activation::Yielded(rows);
            }
        };
        // Output of timers after the barrier would count twice, here and in the tasks behind it; and the sink's commit
        // comes first.
        let is_at_barrier = core.checkpoints.has_captured(self.flow.barrier.wanted());
        if !is_at_barrier && self.go_on(core) {
            self.commit(core)?;
        }
        if !core.is_finishing && !is_at_barrier && !core.checkpoints.is_committing() {
            self.run_stage(core, clock.now_us(), |host, with, out| host.front.tick(with, out))?;
        }
        self.count_and_send(core)?;
        self.times.end(&mut core.turn, core.is_held, clock.steady_us());
        Ok(outcome)
    }

    fn note_deadline(&self, core: &Core) {
        let of_operators = core.stage.front.deadline_us().unwrap_or(i64::MAX);
        // Sources that may have rows now need no timer: the task goes on by itself, or when its targets have room.
        let of_sources = match self.sources_at_us.load(Ordering::Acquire) {
            SOURCES_READY => i64::MAX,
            at_us => at_us,
        };
        // A sink that commits now and then is flushed even while no rows come.
        let of_sink = match core.sink {
            Some(_)
                if core.is_finishing || core.stage.front.barrier().is_some() || core.checkpoints.is_committing() =>
            {
                self.pool.clock.now_us() + FINISHED_ASKED_US
            }
            Some(_) => self.pool.clock.now_us() + SINK_FLUSH_US,
            None => i64::MAX,
        };
        self.pool.flow_deadlines.set(self.deadline, of_operators.min(of_sources).min(of_sink));
    }
}

impl Peer for FlowTask {
    fn push(&self, channel: usize, element: Element) {
        // Only rows are asked how long they waited.
        let now_us = if matches!(element, Element::Batch(_)) { self.pool.clock.steady_us() } else { 0 };
        if self.inbox.push(channel, element, now_us) {
            self.schedule();
        }
    }

    fn has_room(&self) -> bool {
        self.inbox.has_room()
    }

    fn wake(&self) {
        if !self.pool.closing.has_begun() {
            self.schedule();
        }
    }

    fn rests(&self) -> bool {
        self.aligned.is_some() || self.is_moving.load(Ordering::Acquire)
    }

    fn results_final_to(&self) -> Option<u64> {
        (self.writes && self.is_of_results).then(|| self.final_to())
    }
}

impl Runnable for FlowTask {
    fn name(&self) -> &str {
        &self.flow.name
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn standing(&self) -> &Standing {
        &self.standing
    }

    fn pending(&self) -> usize {
        self.inbox.rows().0 + self.in_stage.load(Ordering::Relaxed)
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn rank(&self) -> Rank {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let Counters { rows_in, rows_out } = &self.counters;
        let rank = Rank { depth: self.depth, ..Rank::default() };
        match of(rows_in) {
            0.0 => rank,
            rows => Rank {
                ns_per_row: (of(&self.times.busy_us) * 1e3 / rows).max(1.0),
                selectivity: of(rows_out) / rows,
                ..rank
            },
        }
    }

    fn run(&self, budget: Budget) -> Activation {
        let mut core = self.core.lock();
        if core.has_ended {
            return Activation::Ran(0);
        }
        if self.flow.is_cancelled() {
            self.let_go(&mut core);
            return Activation::Ran(0);
        }
        let worked = catch_unwind(AssertUnwindSafe(|| self.work(&mut core, budget)))
            .unwrap_or_else(|panic| Err(format!("a defect of the engine: {}", panic_text(&*panic))));
        let outcome = worked.unwrap_or_else(|error| {
            if let Some((pipe, _)) = &self.guest {
                // Who is not there does not hear it.
                let _ = pipe.say(Word::Failed(error.clone()));
                pipe.flush();
            }
            self.flow.fail(error, transactional(&mut core.sink).is_some_and(|sink| sink.has_rolled_back()));
            Activation::Ran(0)
        });
        if core.has_ended || self.flow.is_cancelled() {
            self.let_go(&mut core);
        } else {
            self.note_deadline(&core);
        }
        self.in_stage.store(core.stage.front.rows_waiting(), Ordering::Relaxed);
        outcome
    }

    fn has_work(&self) -> bool {
        let core = match self.core.try_lock() {
            Some(core) => core,
            // Another worker runs the task already, and checks again when it is done.
            None if !self.standing.is_idle() => return false,
            // A report is being made of the task.
            None => self.core.lock(),
        };
        if self.flow.is_cancelled() {
            // The task must release its resources.
            return !core.has_ended;
        }
        if !core.has_ended && self.moves_on(&core) {
            return true;
        }
        // A task that waits for a device is run by the timer.
        let waits = core.is_finishing || core.stage.front.barrier().is_some() || core.checkpoints.is_committing();
        if core.has_ended || waits || !core.outputs.have_room() {
            return false;
        }
        if self.may_begin_move(&core) {
            return true;
        }
        if core.stage.away.is_some() {
            return core.stage.has_work() || !self.inbox.is_empty() && core.stage.wants();
        }
        let phase = self.flow.phase();
        let has_to_end = core.reader.is_some() && phase.ends();
        let may_ask = || {
            self.flow.barrier.wanted() == 0
                && self.flow.may_poll()
                && (self.sources_at_us.load(Ordering::Acquire) <= self.pool.clock.now_us()
                    || core.reader.as_ref().is_some_and(|reader| reader.lags(self.time_of_others(reader))))
                && core.reader.as_ref().is_none_or(|reader| self.may_read(reader))
        };
        let has_to_rest = || core.reader.is_some() && core.checkpoints.lacks(self.flow.barrier.wanted());
        let has_come = || self.guest.as_ref().is_some_and(|(pipe, _)| pipe.has_some());
        has_to_end || core.stage.has_work() || !self.inbox.is_empty() || has_come() || has_to_rest() || may_ask()
    }
}

impl Drop for FlowTask {
    fn drop(&mut self) {
        if let Some(load) = self.pool.workers.get(self.worker) {
            load.flow_tasks.fetch_sub(1, Ordering::Relaxed);
        }
        self.pool.flow_deadlines.forget(self.deadline);
    }
}

/// The sink, if it is transactional.
fn transactional(sink: &mut Option<Box<dyn Sink>>) -> Option<&mut dyn TransactionalSink> {
    sink.as_mut()?.transactional()
}

/// The beginning of a payload, for messages.
fn excerpt(payload: &[u8]) -> String {
    const BYTES_MAX: usize = 80;
    let text = String::from_utf8_lossy(&payload[..payload.len().min(BYTES_MAX)]);
    if payload.len() > BYTES_MAX { format!("{text}...") } else { text.into_owned() }
}
