//! A task of a big query: one instance of a stage.

mod barrier;
mod ending;
mod report;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arrow::compute::concat_batches;
use arrow::datatypes::Schema;
use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Chain, Element, Operator, Reason, Refusals, Refused, Seconds, Sink, SlotTable};

use super::FlowState;
use super::exchange::Outputs;
use super::feed::{Fed, Feed, Partition};
use super::inbox::{FlowInbox, Message, Sent};
use super::measure::{Measured, OperatorCounters};
use super::watermark::Watermarks;
use crate::host::{DeadlineId, Host};
use crate::scheduler::Runnable;
use crate::task::panic_text;
use crate::{Activation, Histogram};
use barrier::Checkpoints;

/// How many refusals of a task keep their words.
const REFUSALS_TOLD_MAX: usize = 5;

/// How often a sink is flushed while nothing comes.
const SINK_FLUSH_US: i64 = 1_000_000;

/// How often a sink that takes its time to finish is asked whether it is done.
const FINISHED_ASKED_US: i64 = 5_000;

/// When sources are worth asking that have not said they have nothing.
const SOURCES_READY: i64 = i64::MIN;

/// What a task is made of.
pub(super) struct FlowParts {
    pub(super) stage: usize,
    pub(super) instance: usize,
    pub(super) worker: usize,
    /// For each channel that leads here, the input of the first operator that its rows are for.
    pub(super) channels: Vec<usize>,
    /// The partitions that it reads, if it begins with a source.
    pub(super) partitions: Option<Vec<Partition>>,
    /// Its place in the alignment of sources, if it reads any.
    pub(super) aligned: Option<usize>,
    pub(super) operators: Vec<Box<dyn Operator>>,
    /// What the operators are called.
    pub(super) names: Vec<String>,
    pub(super) outputs: Outputs,
    pub(super) sink: Option<Box<dyn Sink>>,
    pub(super) measures: bool,
    /// The watermark that was reached before, and that operators know.
    pub(super) reached_us: Option<i64>,
    /// It came to its end before.
    pub(super) has_ended: bool,
}

/// An instance of a stage, with the queue in front of it.
pub(crate) struct FlowTask {
    stage: usize,
    instance: usize,
    worker: usize,
    flow: Arc<FlowState>,
    host: Arc<Host>,
    inbox: FlowInbox,
    channels: Vec<usize>,
    upstream: OnceLock<Vec<Weak<FlowTask>>>,
    /// Its place in the alignment of sources, if it reads any.
    aligned: Option<usize>,
    /// Whether it ends with a sink, and with one that waits for each checkpoint to be durable.
    writes: bool,
    waits_for_commit: bool,
    /// The newest barrier of which its sink has made the checkpoint final; [`u64::MAX`] once it has ended.
    final_to: AtomicU64,
    /// Whether it waits for a worker or runs. Only the one who turns it from false to true hands it to the scheduler.
    scheduled: AtomicBool,
    deadline: DeadlineId,
    /// When its sources are worth asking, microseconds since the epoch: [`SOURCES_READY`], or `i64::MAX` if it has none that is
    /// open.
    sources_at_us: AtomicI64,
    counters: Counters,
    names: Vec<String>,
    measured: Vec<Arc<OperatorCounters>>,
    core: Mutex<Core>,
    figures: Mutex<Figures>,
}

/// What is told of a task also while it runs: figures that may only grow must not be left out because it takes its time.
#[derive(Default)]
struct Figures {
    refused: [u64; Reason::ALL.len()],
    seconds: Seconds,
    told: Vec<String>,
    latency_us: Histogram,
    reached_us: Option<i64>,
    state_bytes: usize,
    /// How far the sources were.
    progress: Option<(u64, u64)>,
}

#[derive(Default)]
struct Counters {
    rows_in: AtomicU64,
    rows_out: AtomicU64,
    busy_us: AtomicU64,
}

/// What only the thread that runs the task may touch.
struct Core {
    feed: Option<Feed>,
    watermarks: Watermarks,
    checkpoints: Checkpoints,
    chain: Chain,
    outputs: Outputs,
    sink: Option<Box<dyn Sink>>,
    /// There are no parameters; operators want the table all the same.
    slots: SlotTable,
    refusals: Refusals,
    /// Kept for its memory.
    taken: Vec<Sent>,
    /// Rows that were taken, with the input that they are for, and whether what came with them is not processed to its end.
    pending: VecDeque<(usize, Batch)>,
    is_unfinished: bool,
    /// The watermark that operators are working off: those behind are told of it when all has come out.
    advancing_us: Option<i64>,
    /// Operators have been told that nothing will follow.
    is_ending: bool,
    /// All is processed, and the sink makes it final.
    is_finishing: bool,
    has_ended: bool,
}

impl Core {
    fn reached_us(&self) -> Option<i64> {
        self.feed.as_ref().map_or(self.watermarks.reached_us(), Feed::reached_us)
    }
}

impl FlowTask {
    pub(super) fn new(parts: FlowParts, flow: Arc<FlowState>, host: Arc<Host>) -> Arc<Self> {
        let measured: Vec<Arc<OperatorCounters>> =
            if parts.measures { parts.operators.iter().map(|_| Arc::default()).collect() } else { Vec::new() };
        let operators = match parts.measures {
            false => parts.operators,
            true => parts
                .operators
                .into_iter()
                .zip(&measured)
                .map(|(operator, counters)| {
                    Box::new(Measured { operator, counters: counters.clone() }) as Box<dyn Operator>
                })
                .collect(),
        };
        if let Some(load) = host.workers.get(parts.worker) {
            load.flow_tasks.fetch_add(1, Ordering::Relaxed);
        }
        Arc::new_cyclic(|task: &Weak<Self>| Self {
            stage: parts.stage,
            instance: parts.instance,
            worker: parts.worker,
            inbox: FlowInbox::new(flow.limits),
            flow,
            upstream: OnceLock::new(),
            aligned: parts.aligned,
            writes: parts.sink.is_some(),
            waits_for_commit: parts.sink.as_ref().is_some_and(|sink| sink.waits_for_commit()),
            final_to: AtomicU64::new(0),
            scheduled: AtomicBool::new(false),
            deadline: host.flow_deadlines.register(task.clone()),
            host,
            sources_at_us: AtomicI64::new(if parts.partitions.is_some() { SOURCES_READY } else { i64::MAX }),
            counters: Counters::default(),
            names: parts.names,
            measured,
            figures: Mutex::default(),
            core: Mutex::new(Core {
                watermarks: Watermarks::new(parts.channels.len()),
                feed: parts.partitions.map(Feed::new),
                checkpoints: Checkpoints::new(parts.channels.len(), parts.reached_us, parts.has_ended),
                chain: Chain::new(operators),
                outputs: parts.outputs,
                sink: parts.sink,
                slots: SlotTable::new(Arc::new(Schema::empty())),
                refusals: Refusals::new(REFUSALS_TOLD_MAX),
                taken: Vec::new(),
                pending: VecDeque::new(),
                is_unfinished: false,
                advancing_us: None,
                is_ending: false,
                is_finishing: false,
                has_ended: false,
            }),
            channels: parts.channels,
        })
    }

    /// Says who sends to this task, so that they can be woken. Once, before anything runs.
    pub(super) fn set_upstream(&self, upstream: Vec<Weak<Self>>) {
        let _ = self.upstream.set(upstream);
    }

    /// Its stage, and which instance of it.
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

    /// The newest barrier of which its sink has made the checkpoint final; [`u64::MAX`] once it has ended.
    pub(super) fn final_to(&self) -> u64 {
        self.final_to.load(Ordering::Acquire)
    }

    /// Whether it reads sources.
    pub(super) fn reads(&self) -> bool {
        self.aligned.is_some()
    }

    /// Lets it look for work.
    pub(super) fn begin(self: &Arc<Self>) {
        self.schedule();
    }

    /// Lets it look whether it can go on, or has to let go. Where workers are stopping nobody would run it.
    pub(super) fn wake(self: &Arc<Self>) {
        if !self.host.closing.has_begun() {
            self.schedule();
        }
    }

    pub(super) fn push(self: &Arc<Self>, channel: usize, message: Message) {
        if self.inbox.push(channel, message) {
            self.schedule();
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.inbox.has_room()
    }

    /// Hands the task to the scheduler unless it has it, or the task runs.
    pub(crate) fn schedule(self: &Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            self.host.scheduled.fetch_add(1, Ordering::AcqRel);
            if !self.host.closing.is_over() {
                self.host.scheduler.ready(self.clone());
            }
        }
    }

    /// One step: rows of a source, or what waits. `None` if there was nothing.
    fn step(&self, core: &mut Core) -> Result<Option<usize>, String> {
        let now_us = self.host.clock.now_us();
        let rows_max = self.flow.limits.batch_rows;
        if core.feed.is_none() {
            return self.step_messages(core, now_us, rows_max);
        }
        if self.is_resting() && !self.flow.stopping.load(Ordering::Acquire) {
            // Whoever lets sources go on wakes it.
            self.sources_at_us.store(SOURCES_READY, Ordering::Release);
            return self.rest(core, now_us);
        }
        // That they do not rest any more may be because the checkpoint was committed since this was last looked at.
        self.go_on(core)?;
        if core.checkpoints.is_committing() {
            self.sources_at_us.store(SOURCES_READY, Ordering::Release);
            return Ok(None);
        }
        let Some(feed) = &mut core.feed else { return Ok(None) };
        let fed = if self.flow.stopping.load(Ordering::Acquire) {
            Fed::End
        } else if self.flow.paused.load(Ordering::Acquire) {
            // Without a timer: whoever ends the pause wakes it, and it asks at once.
            self.sources_at_us.store(SOURCES_READY, Ordering::Release);
            return Ok(None);
        } else if !self.may_read(feed) {
            // Without a timer as well: those for whom it waits wake it.
            self.sources_at_us.store(SOURCES_READY, Ordering::Release);
            return Ok(None);
        } else {
            feed.poll(rows_max, (now_us, self.host.clock.steady_us()), &mut core.refusals)?
        };
        let time_us = feed.time_us();
        self.note_reached(time_us);
        let advanced = feed.advanced();
        let rows = match fed {
            Fed::Rows(batch) => {
                let rows = batch.rows();
                self.counters.rows_in.fetch_add(rows as u64, Ordering::Relaxed);
                self.process(core, 0, Element::Batch(batch), now_us)?;
                rows
            }
            Fed::Again => 0,
            Fed::Nothing(until_us) => {
                self.sources_at_us.store(until_us, Ordering::Release);
                self.watermark(core, advanced, now_us)?;
                return Ok(None);
            }
            Fed::End => {
                self.sources_at_us.store(i64::MAX, Ordering::Release);
                self.end(core, now_us)?;
                return Ok(None);
            }
        };
        self.sources_at_us.store(SOURCES_READY, Ordering::Release);
        self.watermark(core, advanced, now_us)?;
        Ok(Some(rows))
    }

    /// How far its sources are, for those who wait for them.
    fn note_reached(&self, time_us: Option<i64>) {
        if self.aligned.is_some_and(|place| self.flow.alignment.reached(place, time_us)) {
            self.flow.wake_sources();
        }
    }

    /// Whether its sources are not too far ahead of others.
    fn may_read(&self, feed: &Feed) -> bool {
        self.aligned.is_none_or(|place| self.flow.alignment.may_read(place, feed.batch_us()))
    }

    /// Takes what waits, or goes on with what was taken. A watermark between rows is applied behind them all, which only delays it.
    fn step_messages(&self, core: &mut Core, now_us: i64, rows_max: usize) -> Result<Option<usize>, String> {
        let mut rows = 0;
        if !core.is_unfinished {
            let Some(taken) = self.take_messages(core, rows_max) else { return Ok(None) };
            rows = taken;
            // What came just now may lie behind a barrier that was committed since this was last looked at.
            self.go_on(core)?;
            if core.checkpoints.is_committing() {
                core.is_unfinished = true;
                return Ok(Some(rows));
            }
        }
        core.is_unfinished = !self.work_off(core, now_us)?;
        if core.is_unfinished {
            return Ok(Some(rows));
        }
        self.tell_watermark(core);
        if let Some(watermark_us) = core.watermarks.advanced() {
            core.advancing_us = Some(watermark_us);
            self.process_once(core, 0, Element::Watermark(watermark_us), now_us)?;
            core.is_unfinished = core.chain.has_more();
            if core.is_unfinished {
                return Ok(Some(rows));
            }
            self.tell_watermark(core);
        }
        if core.watermarks.has_ended() {
            self.end(core, now_us)?;
        } else if let Some(number) = core.checkpoints.complete(&core.watermarks) {
            // Nothing may come between the barrier and the state that is captured, and nothing is told of it later.
            self.note_silence(core, now_us)?;
            self.reach_barrier(core, number, now_us)?;
        }
        Ok(Some(rows))
    }

    /// How many rows were taken of what waits; `None` if nothing does.
    fn take_messages(&self, core: &mut Core, rows_max: usize) -> Option<usize> {
        if self.inbox.take(rows_max, &mut core.taken) {
            let upstream = self.upstream.get().into_iter().flatten().filter_map(Weak::upgrade);
            upstream.for_each(|task| task.schedule());
        }
        if core.taken.is_empty() {
            return None;
        }
        let mut rows = 0;
        for Sent { channel, message, .. } in core.taken.drain(..) {
            match message {
                Message::Rows(batch) => {
                    core.watermarks.wake(channel);
                    rows += batch.rows();
                    core.pending.push_back((self.channels[channel], batch));
                }
                Message::Watermark(watermark_us) => core.watermarks.advance(channel, watermark_us),
                Message::Idle => core.watermarks.idle(channel),
                Message::Barrier(number) => core.checkpoints.came_by(channel, number),
                Message::End => core.watermarks.end(channel),
            }
        }
        self.counters.rows_in.fetch_add(rows as u64, Ordering::Relaxed);
        Some(rows)
    }

    /// Processes rows that were taken; whether that was all of them. It stops where there is no room for what comes of more, and
    /// where one batch gives so much that somebody else should have a turn.
    fn work_off(&self, core: &mut Core, now_us: i64) -> Result<bool, String> {
        loop {
            if core.chain.has_more() {
                self.run_chain(core, |chain, slots, refusals, take| chain.go_on(now_us, slots, refusals, take))?;
            } else if let Some((input, batch)) = self.next_together(core)? {
                self.process_once(core, input, Element::Batch(batch), now_us)?;
            } else {
                return Ok(true);
            }
            let has_room =
                |core: &Core| core.sink.as_ref().is_none_or(|sink| sink.has_room()) && core.outputs.have_room();
            if core.chain.has_more() || (!core.pending.is_empty() && !has_room(core)) {
                return Ok(false);
            }
        }
    }

    /// The next rows that were taken. Those that came one behind the other by the same input are put together, so that the batch is the larger
    /// the more there is to do.
    fn next_together(&self, core: &mut Core) -> Result<Option<(usize, Batch)>, String> {
        let rows_max = self.flow.limits.batch_rows;
        // Larger batches are worth no copy.
        let rows_min = rows_max / 8;
        let Some((input, first)) = core.pending.pop_front() else { return Ok(None) };
        let mut rows = first.rows();
        let mut batches = vec![first];
        while rows < rows_min
            && let Some((_, batch)) =
                core.pending.pop_front_if(|(next, batch)| *next == input && rows + batch.rows() <= rows_max)
        {
            rows += batch.rows();
            batches.push(batch);
        }
        let batch = concatenated(&batches).map_err(|error| error.to_string())?;
        Ok(Some((input, batch)))
    }

    fn watermark(&self, core: &mut Core, advanced: Option<i64>, now_us: i64) -> Result<(), String> {
        let Some(watermark_us) = advanced else { return Ok(()) };
        core.advancing_us = Some(watermark_us);
        self.process(core, 0, Element::Watermark(watermark_us), now_us)?;
        self.tell_watermark(core);
        Ok(())
    }

    /// Tells those behind of the watermark that operators have worked off.
    fn tell_watermark(&self, core: &mut Core) {
        if let Some(watermark_us) = core.advancing_us.take() {
            core.outputs.tell(&Message::Watermark(watermark_us));
        }
    }

    fn process(&self, core: &mut Core, input: usize, element: Element, now_us: i64) -> Result<(), String> {
        self.process_once(core, input, element, now_us)?;
        while core.chain.has_more() {
            self.run_chain(core, |chain, slots, refusals, take| chain.go_on(now_us, slots, refusals, take))?;
        }
        Ok(())
    }

    /// The same, of which more may come.
    fn process_once(&self, core: &mut Core, input: usize, element: Element, now_us: i64) -> Result<(), String> {
        let is_batch = matches!(element, Element::Batch(_));
        self.run_chain(core, |chain, slots, refusals, take| {
            chain.process_input(input, element, now_us, slots, refusals, take)
        })?;
        if is_batch {
            core.outputs.tell_awake(core.reached_us());
        }
        Ok(())
    }

    /// Says so where nothing comes for now, behind all that was sent and all that operators held back, which nobody would wait for.
    fn note_silence(&self, core: &mut Core, now_us: i64) -> Result<(), String> {
        if core.has_ended || core.is_finishing || core.is_unfinished {
            return Ok(());
        }
        let is_idle = core.feed.as_ref().map_or(core.watermarks.is_idle(), Feed::is_idle);
        if !is_idle {
            core.outputs.tell_awake(core.reached_us());
        } else if !core.outputs.is_idle() {
            self.run_chain(core, |chain, slots, refusals, take| chain.fall_silent(now_us, slots, refusals, take))?;
            core.outputs.tell_idle();
        }
        Ok(())
    }

    fn tick(&self, core: &mut Core, now_us: i64) -> Result<(), String> {
        if core.has_ended || core.chain.deadline_us().is_none_or(|deadline_us| deadline_us > now_us) {
            return Ok(());
        }
        self.run_chain(core, |chain, slots, refusals, take| chain.tick(now_us, slots, refusals, take))
    }

    /// Runs operators and sends on or writes what comes out.
    fn run_chain(
        &self,
        core: &mut Core,
        run: impl FnOnce(
            &mut Chain,
            &SlotTable,
            &mut Refusals,
            &mut dyn FnMut(Batch),
        ) -> Result<(), rivulet_dataflow::OperatorError>,
    ) -> Result<(), String> {
        let Core { chain, outputs, sink, slots, refusals, .. } = core;
        let clock = &self.host.clock;
        let mut failed = None;
        let mut rows_out = 0;
        let mut take = |batch: Batch| {
            rows_out += batch.rows() as u64;
            let sent = match sink {
                Some(sink) => {
                    let written = sink.write(&batch, slots).map_err(|error| error.0);
                    let now_us = clock.now_us();
                    let latency_us = &mut self.figures.lock().latency_us;
                    batch.arrival_us.iter().for_each(|&arrival_us| latency_us.record(now_us - arrival_us));
                    written
                }
                None => outputs.send(batch).map_err(|error| error.to_string()),
            };
            if let Err(error) = sent {
                failed.get_or_insert(error);
            }
        };
        let outcome = run(chain, slots, refusals, &mut take);
        self.counters.rows_out.fetch_add(rows_out, Ordering::Relaxed);
        match failed {
            Some(error) => Err(error),
            None => outcome.map_err(|error| format!("an operator failed, which is a defect of the engine: {error}")),
        }
    }

    /// Counts what was refused, and sends what the sink has buffered on its way.
    fn settle(&self, core: &mut Core) -> Result<(), String> {
        let mut figures = self.figures.lock();
        figures.reached_us = core.reached_us();
        if !core.refusals.is_empty() {
            for reason in Reason::ALL {
                figures.refused[reason as usize] += core.refusals.counted(reason);
            }
            core.refusals.seconds().iter().for_each(|seconds| figures.seconds.add(*seconds));
            let places = REFUSALS_TOLD_MAX - figures.told.len().min(REFUSALS_TOLD_MAX);
            let told = core.refusals.records().iter().take(places);
            figures.told.extend(told.map(|record| match &record.content {
                Refused::Payload(payload) => format!("{}: {}", record.detail, excerpt(payload)),
                Refused::Row(_) => record.detail.clone(),
            }));
            core.refusals.clear();
        }
        drop(figures);
        match &mut core.sink {
            Some(sink) if !core.is_finishing => sink.flush().map_err(|error| error.0),
            _ => Ok(()),
        }
    }

    fn work(&self, core: &mut Core, slice: Duration) -> Result<Activation, String> {
        let clock = &self.host.clock;
        let begun_us = clock.steady_us();
        let slice_us = i64::try_from(slice.as_micros()).unwrap_or(i64::MAX);
        let mut rows = 0;
        let outcome = loop {
            self.go_on(core)?;
            // Before it is looked whether there is room: sources let go of what they hold up also where nothing moves.
            if let Some(feed) = &mut core.feed {
                feed.set_paused(self.flow.paused.load(Ordering::Acquire));
            }
            if !self.commit(core)? || (core.checkpoints.is_preparing() && !self.prepare(core)?) {
                break Activation::Ran(rows);
            }
            if core.is_finishing {
                Self::complete(core)?;
                break Activation::Ran(rows);
            }
            if core.sink.as_ref().is_some_and(|sink| !sink.has_room()) {
                break Activation::Blocked;
            }
            // Whoever is full wakes this task; that it can go on is looked at once more when it has been run.
            if core.has_ended || !core.outputs.have_room() || self.flow.cancelled.load(Ordering::Acquire) {
                break Activation::Ran(rows);
            }
            match self.step(core)? {
                Some(more) => rows += more,
                None => break Activation::Ran(rows),
            }
            if clock.steady_us() - begun_us >= slice_us {
                break Activation::Yielded(rows);
            }
        };
        // What timers bring about after the barrier would be counted twice, here and by those behind it; and what the sink makes final comes first.
        let is_at_barrier = core.checkpoints.has_captured(self.flow.barrier.wanted());
        if !is_at_barrier {
            self.go_on(core)?;
        }
        if !core.is_finishing && !is_at_barrier && !core.checkpoints.is_committing() {
            self.tick(core, clock.now_us())?;
            self.note_silence(core, clock.now_us())?;
        }
        self.settle(core)?;
        self.counters.busy_us.fetch_add((clock.steady_us() - begun_us).max(0) as u64, Ordering::Relaxed);
        Ok(outcome)
    }

    fn note_deadline(&self, core: &Core) {
        let of_operators = core.chain.deadline_us().unwrap_or(i64::MAX);
        // Sources that may have something now need no timer: the task goes on by itself, or when its targets have room.
        let of_sources = match self.sources_at_us.load(Ordering::Acquire) {
            SOURCES_READY => i64::MAX,
            at_us => at_us,
        };
        // A sink that commits now and then is flushed also while nothing comes.
        let of_sink = match core.sink {
            Some(_) if core.is_finishing || core.checkpoints.is_preparing() || core.checkpoints.is_committing() => {
                self.host.clock.now_us() + FINISHED_ASKED_US
            }
            Some(_) => self.host.clock.now_us() + SINK_FLUSH_US,
            None => i64::MAX,
        };
        self.host.flow_deadlines.set(self.deadline, of_operators.min(of_sources).min(of_sink));
    }

    /// Whether there is anything that it could do now.
    fn can_go_on(&self) -> bool {
        let core = match self.core.try_lock() {
            Some(core) => core,
            // Another worker runs it already, and looks again when it has.
            None if self.scheduled.load(Ordering::Acquire) => return false,
            // Somebody takes its figures.
            None => self.core.lock(),
        };
        if self.flow.cancelled.load(Ordering::Acquire) {
            // It has to let go.
            return !core.has_ended;
        }
        // Who waits for a device is run by the timer.
        let waits = core.is_finishing || core.checkpoints.is_preparing() || core.checkpoints.is_committing();
        if core.has_ended || waits || !core.outputs.have_room() {
            return false;
        }
        let is_stopping = core.feed.is_some() && self.flow.stopping.load(Ordering::Acquire);
        let may_ask = || {
            !self.is_resting()
                && !self.flow.paused.load(Ordering::Acquire)
                && self.sources_at_us.load(Ordering::Acquire) <= self.host.clock.now_us()
                && core.feed.as_ref().is_none_or(|feed| self.may_read(feed))
        };
        let has_to_rest = || core.feed.is_some() && core.checkpoints.lacks(self.flow.barrier.wanted());
        is_stopping || core.is_unfinished || !self.inbox.is_empty() || has_to_rest() || may_ask()
    }
}

impl Runnable for FlowTask {
    fn name(&self) -> &str {
        &self.flow.name
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn waiting_rows(&self) -> usize {
        self.inbox.rows().0
    }

    fn run(&self, slice: Duration) -> Activation {
        let mut core = self.core.lock();
        if core.has_ended {
            return Activation::Ran(0);
        }
        if self.flow.cancelled.load(Ordering::Acquire) {
            self.let_go(&mut core);
            return Activation::Ran(0);
        }
        let worked = catch_unwind(AssertUnwindSafe(|| self.work(&mut core, slice)))
            .unwrap_or_else(|panic| Err(format!("a defect of the engine: {}", panic_text(&*panic))));
        let outcome = worked.unwrap_or_else(|error| {
            self.flow.fail(error, core.sink.as_ref().is_some_and(|sink| sink.is_undone()));
            Activation::Ran(0)
        });
        if core.has_ended || self.flow.cancelled.load(Ordering::Acquire) {
            self.let_go(&mut core);
        } else {
            self.note_deadline(&core);
        }
        outcome
    }

    fn ran(self: Arc<Self>) {
        self.scheduled.store(false, Ordering::Release);
        self.host.scheduled.fetch_sub(1, Ordering::AcqRel);
        if self.can_go_on() {
            self.schedule();
        }
    }
}

impl Drop for FlowTask {
    fn drop(&mut self) {
        if let Some(load) = self.host.workers.get(self.worker) {
            load.flow_tasks.fetch_sub(1, Ordering::Relaxed);
        }
        self.host.flow_deadlines.forget(self.deadline);
    }
}

/// Batches one behind the other as one.
fn concatenated(batches: &[Batch]) -> Result<Batch, arrow::error::ArrowError> {
    let [first, others @ ..] = batches else { unreachable!("there is at least one batch") };
    if others.is_empty() {
        return Ok(first.clone());
    }
    let columns = concat_batches(first.columns.schema_ref(), batches.iter().map(|batch| &batch.columns))?;
    let marked = batches.iter().any(|batch| batch.retracts.is_some());
    let marks = marked
        .then(|| batches.iter().flat_map(|batch| (0..batch.rows()).map(move |row| batch.is_retraction(row))).collect());
    Ok(Batch::new(
        batches.iter().flat_map(|batch| batch.slots.iter().copied()).collect(),
        batches.iter().flat_map(|batch| batch.event_time_us.iter().copied()).collect(),
        batches.iter().flat_map(|batch| batch.arrival_us.iter().copied()).collect(),
        columns,
    )
    .with_retracts(marks))
}

/// The beginning of a payload, for people.
fn excerpt(payload: &[u8]) -> String {
    const BYTES_MAX: usize = 80;
    let text = String::from_utf8_lossy(&payload[..payload.len().min(BYTES_MAX)]);
    if payload.len() > BYTES_MAX { format!("{text}...") } else { text.into_owned() }
}
