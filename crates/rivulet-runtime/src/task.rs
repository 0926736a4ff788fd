//! A task: queries of a group that are processed together, by one thread at a time.

mod idle;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rivulet_dataflow::{
    Batch, Chain, Control, Decoder, Element, Events, InputIndex, Push, QueryId, Reason, Refusals, Sink, Slot,
    SlotTable, StateError, StateFrame, StateSelection,
};

use crate::balance::{LoadMeter, Seen};
use crate::host::{DeadlineId, Host};
use crate::inbox::{Chunk, Queue, TaskInbox};
use crate::scheduler::Runnable;
use crate::{Group, GroupMetrics, InboxLimits, Picked, Policy};
use idle::Idle;

/// How far behind the clock timers run. An event that a source has stamped but not yet delivered must not find that a
/// timer for a later instant was served before it.
pub(crate) const TICK_GRACE_US: i64 = 5_000;

/// How many refused rows of one batch keep their content for the dead-letter output; the others are only counted.
const REFUSED_CONTENT_MAX: usize = 256;

/// What an instance of a group's dataflow is made of.
pub struct TaskParts {
    /// Turns payloads into rows.
    pub decoder: Box<dyn Decoder>,
    /// The application's operators.
    pub chain: Chain,
    /// Takes the results.
    pub sink: Box<dyn Sink>,
}

/// What all tasks of a group have in common.
pub(crate) struct TaskSettings {
    /// The application's name, for people.
    pub(crate) name: String,
    pub(crate) limits: InboxLimits,
    pub(crate) batch_rows_max: Option<usize>,
    /// The index of the event-time column, if the input has one.
    pub(crate) event_time_column: Option<usize>,
    /// Whether the sink hands rows on to other groups.
    pub(crate) passes_on: bool,
    /// Groups that hand rows on to this one.
    pub(crate) upstream: RwLock<Vec<Weak<Group>>>,
}

/// Queries of a group that are processed together: what a scheduler picks. A group has one task until it is split.
pub struct Task {
    settings: Arc<TaskSettings>,
    inbox: TaskInbox,
    host: Arc<Host>,
    /// The worker that it belongs to, where the policy knows owners.
    worker: AtomicUsize,
    /// Whether the task waits for a worker or runs. Only the one who turns it from false to true hands it to the scheduler.
    scheduled: AtomicBool,
    deadline: DeadlineId,
    /// Time spent running, microseconds; readable without the core's lock.
    busy_us: AtomicU64,
    queries: AtomicUsize,
    /// When the oldest event came that was taken from the inbox and not handed on yet, in a group that does so; else `i64::MAX`.
    in_hand_us: AtomicI64,
    pub(crate) load: Mutex<LoadMeter>,
    /// Of a shelf, its group: instead of processing events it wakes the queries that they are for.
    shelf_of: Option<Weak<Group>>,
    core: Mutex<Core>,
}

/// What only the thread that runs the task may touch.
pub(crate) struct Core {
    pub(crate) slots: SlotTable,
    decoder: Box<dyn Decoder>,
    chain: Chain,
    sink: Box<dyn Sink>,
    refusals: Refusals,
    metrics: GroupMetrics,
    idle: Idle,
    /// Slots were retired when so many events had been pushed: once all these have left the inbox, none of theirs can come.
    retired_at: Option<u64>,
}

/// What one activation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// It processed this many events, and nothing waited any more.
    Ran(usize),
    /// Its time slice ended before its inbox was empty.
    Yielded(usize),
    /// The sink has no room: events stay in the inbox.
    Blocked,
}

impl Task {
    pub(crate) fn new(
        settings: Arc<TaskSettings>,
        slots: SlotTable,
        parts: TaskParts,
        host: Arc<Host>,
        shelf_of: Option<Weak<Group>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|task| Self {
            inbox: TaskInbox::new(settings.limits, settings.batch_rows_max),
            settings,
            worker: AtomicUsize::new(host.place()),
            deadline: host.deadlines.register(task.clone()),
            host,
            scheduled: AtomicBool::new(false),
            busy_us: AtomicU64::new(0),
            queries: AtomicUsize::new(0),
            in_hand_us: AtomicI64::new(i64::MAX),
            load: Mutex::default(),
            shelf_of,
            core: Mutex::new(Core {
                slots,
                decoder: parts.decoder,
                chain: parts.chain,
                sink: parts.sink,
                refusals: Refusals::new(REFUSED_CONTENT_MAX),
                metrics: GroupMetrics::default(),
                idle: Idle::default(),
                retired_at: None,
            }),
        })
    }

    /// Gives the task to another worker. If it waits for the old one now, it is run there once more.
    pub(crate) fn assign(&self, worker: usize) {
        self.worker.store(worker, Ordering::Relaxed);
    }

    /// Events and payload bytes that wait.
    pub fn waiting(&self) -> (usize, usize) {
        self.inbox.lock().waiting()
    }

    /// The number of queries.
    pub fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }

    /// Whether its queries only wait here for their next event.
    pub(crate) fn is_shelf(&self) -> bool {
        self.shelf_of.is_some()
    }

    pub(crate) fn inbox(&self) -> &TaskInbox {
        &self.inbox
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// The same, to process what may be refused.
    fn lock_to_run(&self) -> MutexGuard<'_, Core> {
        let mut core = self.core.lock();
        let are_shared = core.slots.further() > 0;
        core.refusals.keep_slots(are_shared);
        core
    }

    /// Offers an event to `queue`, the locked queue of this task's inbox, and lets go of it.
    #[inline]
    pub(crate) fn push(
        self: &Arc<Self>,
        mut queue: MutexGuard<'_, Queue>,
        input: InputIndex,
        slot: Slot,
        arrival_us: i64,
        payload: &[u8],
    ) -> Push {
        let pushed = self.inbox.push(&mut queue, input, slot, arrival_us, payload);
        drop(queue);
        if pushed.was_empty {
            self.schedule();
        }
        pushed.push
    }

    /// Puts rows into `queue`, the locked queue of this task's inbox, which has room for them, and lets go of it.
    pub(crate) fn push_rows(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>, rows: Picked) {
        let was_empty = self.inbox.push_rows(&mut queue, rows);
        drop(queue);
        if was_empty {
            self.schedule();
        }
    }

    /// Hands the task to the scheduler unless it has it, or the task runs.
    pub(crate) fn schedule(self: &Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            self.host.scheduled.fetch_add(1, Ordering::AcqRel);
            // Nobody is left who would run it, and what waits has been reported.
            if !self.host.closing.is_over() {
                self.host.scheduler.ready(self.clone());
            }
        }
    }

    /// When the oldest of the events came that wait, or that this task has yet to hand on; `i64::MAX` without any.
    pub(crate) fn oldest_us(&self) -> i64 {
        let waiting_us = self.inbox.lock().oldest_arrival_us().unwrap_or(i64::MAX);
        waiting_us.min(self.in_hand_us.load(Ordering::Acquire))
    }

    /// Does what timers are due by `now_us`, but nothing that an event which still waits might have come in time for.
    fn tick(&self, core: &mut Core, now_us: i64) {
        let is_due = |now_us| core.chain.deadline_us().is_some_and(|deadline_us| deadline_us <= now_us);
        if !is_due(now_us) {
            return;
        }
        // What is under way to this group first: it may arrive in the inbox meanwhile, but not the other way round.
        let upstream = self.settings.upstream.read().iter().filter_map(Weak::upgrade).map(|one| one.oldest_us()).min();
        let oldest_us = self.oldest_us().min(upstream.unwrap_or(i64::MAX));
        let now_us = now_us.min(oldest_us.saturating_sub(1));
        if is_due(now_us) {
            core.run_chain(Step::Tick, now_us, &self.settings.name);
            core.finish(&self.settings.name);
        }
    }

    /// Runs one batch of events through the dataflow.
    fn process(&self, core: &mut Core, chunk: &mut Chunk) {
        let now_us = self.host.clock.now_us();
        let events = chunk.rows() as u64;
        // Counted is what each query got, also where some share a slot.
        core.metrics.events += events + core.slots.further_of(chunk.slots());
        core.metrics.batches += 1;
        core.metrics.batch_events_max = core.metrics.batch_events_max.max(events);
        if let Some(retired_at) = core.retired_at {
            chunk.retain_slots(|slot| core.slots.query(slot).is_some());
            core.metrics.refused[Reason::Removed as usize] += events - chunk.rows() as u64;
            if self.inbox.lock().left() >= retired_at {
                core.slots.recycle();
                core.retired_at = None;
            }
            if chunk.rows() == 0 {
                return;
            }
        }
        core.idle.note(chunk.slots());
        match chunk {
            Chunk::Raw(events) => {
                let batch = core.decode(events, &self.settings.name);
                self.process_batch(core, batch, events.arrival_us(), now_us);
            }
            Chunk::Rows(picked) => {
                let batch = picked.to_batch();
                let arrival_us = batch.arrival_us.clone();
                self.process_batch(core, Some(batch), &arrival_us, now_us);
            }
        }
    }

    /// Runs the rows of events that came at `arrival_us` through the chain; without rows if none could be decoded.
    fn process_batch(&self, core: &mut Core, batch: Option<Batch>, arrival_us: &[i64], now_us: i64) {
        core.metrics.waiting_us += (now_us - arrival_us[0]).max(0) as u64;
        let event_times: Option<ArrayRef> =
            self.settings.event_time_column.zip(batch.as_ref()).map(|(column, batch)| batch.column(column).clone());
        if let Some(batch) = batch {
            core.run_chain(Step::Element(Element::Batch(batch)), now_us, &self.settings.name);
        }
        core.finish(&self.settings.name);
        let end_us = self.host.clock.now_us();
        for &arrival_us in arrival_us {
            core.metrics.processing_latency_us.record(end_us - arrival_us);
        }
        if let Some(times) = event_times {
            for &time_us in times.as_primitive::<TimestampMicrosecondType>().values() {
                core.metrics.record_event_latency(end_us, time_us);
            }
        }
    }

    /// Adds queries, one for each row of `parameters`, and returns their slots in this task.
    pub(crate) fn add(&self, core: &mut Core, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Slot> {
        // The routes of retired slots were removed before they retired, so an empty inbox holds none of their events.
        if core.retired_at.is_some() && self.inbox.is_empty() {
            core.slots.recycle();
            core.retired_at = None;
        }
        let slots = core.slots.add(queries, parameters);
        core.idle.note(&slots);
        self.control(core, Control::AddSlots(slots.clone()));
        self.queries.store(core.slots.live(), Ordering::Relaxed);
        slots
    }

    /// Removes queries of which no event will be pushed any more; those that wait are counted as refused for
    /// [`Reason::Removed`].
    pub(crate) fn remove(&self, core: &mut Core, slots: &[Slot]) {
        self.control(core, Control::RemoveSlots(slots.to_vec()));
        core.slots.retire(slots);
        core.retired_at = Some(self.inbox.lock().pushed());
        self.queries.store(core.slots.live(), Ordering::Relaxed);
    }

    pub(crate) fn control(&self, core: &mut Core, control: Control) {
        let now_us = self.host.clock.now_us();
        core.run_chain(Step::Element(Element::Control(control)), now_us, &self.settings.name);
        self.note_deadline(core);
    }

    pub(crate) fn import_state(&self, core: &mut Core, frames: &[Option<StateFrame>]) -> Result<(), StateError> {
        let result = core.chain.import_state(frames);
        self.note_deadline(core);
        result
    }

    /// Ends the input: closes what is open and hands it to the sink.
    pub(crate) fn end(&self) {
        let mut core = self.lock_to_run();
        core.run_chain(Step::Element(Element::End), self.host.clock.now_us(), &self.settings.name);
        core.finish(&self.settings.name);
        self.note_deadline(&core);
    }

    pub(crate) fn note_deadline(&self, core: &Core) {
        let deadline_us =
            core.chain.deadline_us().map_or(i64::MAX, |deadline_us| deadline_us.saturating_add(TICK_GRACE_US));
        self.host.deadlines.set(self.deadline, deadline_us);
    }

    /// The counters, with dropped events as refused for [`Reason::Overflow`].
    pub(crate) fn metrics(&self) -> GroupMetrics {
        let mut metrics = self.core.lock().metrics.clone();
        metrics.refused[Reason::Overflow as usize] += self.inbox.lock().dropped();
        metrics
    }

    /// What the balancer wants to know.
    pub(crate) fn seen(&self) -> Seen {
        let queue = self.inbox.lock();
        let waiting = queue.waiting().0 as u64;
        Seen { arrived: queue.pushed(), waiting, busy_us: self.busy_us.load(Ordering::Relaxed) }
    }

    /// Memory held by parameters, state and waiting events, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let core = self.core.lock();
        core.slots.memory_bytes()
            + core.chain.memory_bytes()
            + core.idle.memory_bytes()
            + self.inbox.lock().memory_bytes()
    }
}

impl Runnable for Task {
    fn name(&self) -> &str {
        &self.settings.name
    }

    fn worker(&self) -> usize {
        self.worker.load(Ordering::Relaxed)
    }

    fn waiting_rows(&self) -> usize {
        self.inbox.lock().waiting().0
    }

    fn run(&self, slice: Duration) -> Activation {
        if let Some(group) = &self.shelf_of {
            let Some(group) = group.upgrade() else {
                // The group is gone, and its queries with it.
                while self.inbox.take(None, None).is_some() {}
                return Activation::Ran(0);
            };
            return group.wake();
        }
        let mut core = self.lock_to_run();
        let clock = &self.host.clock;
        let (start_us, begun_us) = (clock.now_us(), clock.steady_us());
        let slice_us = i64::try_from(slice.as_micros()).unwrap_or(i64::MAX);
        let mut done = None;
        let mut rows = 0;
        let outcome = loop {
            if !core.sink.has_room() {
                break Activation::Blocked;
            }
            let taken_us = self.settings.passes_on.then_some(&self.in_hand_us);
            // The sink had room, so all is handed on that was taken.
            taken_us.inspect(|taken_us| taken_us.store(i64::MAX, Ordering::Release));
            let Some(mut chunk) = self.inbox.take(done.take(), taken_us) else {
                break Activation::Ran(rows);
            };
            rows += chunk.rows();
            self.process(&mut core, &mut chunk);
            done = Some(chunk);
            if clock.steady_us() - begun_us >= slice_us {
                break Activation::Yielded(rows);
            }
        };
        if done.is_some() {
            self.inbox.lock().keep(done);
        }
        if outcome != Activation::Blocked {
            self.tick(&mut core, start_us - TICK_GRACE_US);
        }
        let busy_us = (clock.steady_us() - begun_us).max(0) as u64;
        core.metrics.activations += 1;
        core.metrics.busy_us += busy_us;
        self.busy_us.fetch_add(busy_us, Ordering::Relaxed);
        self.note_deadline(&core);
        outcome
    }

    fn ran(self: Arc<Self>) {
        self.scheduled.store(false, Ordering::Release);
        self.host.scheduled.fetch_sub(1, Ordering::AcqRel);
        if !self.inbox.is_empty() {
            self.schedule();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.host.deadlines.forget(self.deadline);
        if self.host.policy == Policy::Dedicated {
            self.host.scheduler.remove_worker(self.worker());
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task('{}' on worker {})", self.name(), self.worker())
    }
}

enum Step {
    Element(Element),
    Tick,
}

impl Core {
    /// The selected state of every operator.
    pub(crate) fn export_state(&self, selection: &StateSelection) -> Result<Vec<Option<StateFrame>>, StateError> {
        self.chain.export_state(selection)
    }

    /// Whether no slot waits for being free again.
    pub(crate) fn has_retired(&self) -> bool {
        self.retired_at.is_some()
    }

    /// Frees retired slots at once: the caller knows that no event of theirs waits.
    pub(crate) fn recycle(&mut self) {
        self.slots.recycle();
        self.retired_at = None;
    }

    /// Counts events that came for a query that was gone already.
    pub(crate) fn count_removed(&mut self, events: u64) {
        self.metrics.refused[Reason::Removed as usize] += events;
    }

    /// Decodes events; nothing if the decoder fails on them, which costs them.
    fn decode(&mut self, events: &Events, name: &str) -> Option<Batch> {
        let Self { decoder, refusals, .. } = self;
        match catch_unwind(AssertUnwindSafe(|| decoder.decode(events, refusals))) {
            Ok(batch) => Some(batch),
            Err(panic) => {
                self.failed(events.rows() as u64, &panic_text(&*panic), name);
                None
            }
        }
    }

    /// Runs the chain and hands what comes out to the sink. A failure or panic of an operator costs this batch and
    /// nothing else: it is counted, logged, and the task goes on.
    fn run_chain(&mut self, step: Step, now_us: i64, name: &str) {
        let Self { chain, slots, refusals, sink, metrics, .. } = self;
        let rows = match &step {
            Step::Element(Element::Batch(batch)) => batch.rows() as u64,
            _ => 0,
        };
        let mut sink_error = None;
        let mut take = |batch: Batch| {
            metrics.results += batch.rows() as u64 + slots.further_of(&batch.slots);
            if let Err(error) = sink.write(&batch, slots) {
                sink_error.get_or_insert(error);
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| match step {
            Step::Element(element) => chain.process(element, now_us, slots, refusals, &mut take),
            Step::Tick => chain.tick(now_us, slots, refusals, &mut take),
        }));
        if let Some(error) = sink_error {
            tracing::warn!(application = name, %error, "results were not written");
        }
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed(rows, &error.to_string(), name),
            Err(panic) => self.failed(rows, &panic_text(&*panic), name),
        }
    }

    /// Counts and hands over what was refused, and sends what the sink has buffered on its way.
    fn finish(&mut self, name: &str) {
        let Self { sink, slots, refusals, metrics, .. } = self;
        if !refusals.is_empty() {
            for reason in Reason::ALL {
                metrics.refused[reason as usize] += refusals.counted(reason);
            }
            for &(reason, slot) in refusals.slots() {
                metrics.refused[reason as usize] += slots.further_of(&[slot]);
            }
            if !refusals.records().is_empty()
                && let Err(error) = sink.refused(refusals, slots)
            {
                tracing::warn!(application = name, %error, "dead letters were not written");
            }
            refusals.clear();
        }
        if let Err(error) = sink.flush() {
            tracing::warn!(application = name, %error, "results were not sent");
        }
    }

    fn failed(&mut self, rows: u64, failure: &str, name: &str) {
        self.refusals.count(Reason::Internal, rows);
        tracing::error!(application = name, rows, "this batch is lost because of a defect in the engine: {failure}");
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic")
        .to_owned()
}
