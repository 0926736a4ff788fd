//! A task: queries of a group that one thread at a time processes together.

mod cut;
mod idle;
mod order;
mod parts;
mod slots;
mod tally;

use arrow::array::{ArrayRef, RecordBatch};
use parking_lot::{Mutex, MutexGuard, RwLock};
use rivulet_dataflow::slot_host::Progress;
use rivulet_dataflow::{
    Batch, Chain, Chunk, Control, Cut, Decoder, Element, Event, Events, Fault, GroupSink, LogPosition, OperatorError,
    Picked, Push, QueryId, Reason, Refusals, Slot, SlotTable, StateError, StateFrame, StateSelection, Surroundings,
    panic_text,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::balance::{LoadMeter, Seen};
use crate::group::Rest;
use crate::host::{DeadlineId, Host};
use crate::inbox::{Held, InHand, TaskInbox};
use crate::scheduler::{Budget, Runnable, Standing};
use crate::{Group, GroupMetrics, InboxLimits};
use idle::Idle;
use parts::Parts;
use slots::Slots;
pub use tally::Examined;

/// How far timers run behind the clock. An event that a source has stamped but not yet delivered must come before a
/// timer for a later time.
pub(crate) const TICK_GRACE_US: i64 = 5_000;

/// How many refused rows of one batch keep their content for the dead-letter output; the others are only counted.
const REFUSED_CONTENT_MAX: usize = 256;

/// The parts of an instance of a group's dataflow.
pub struct TaskParts {
    /// Turns payloads into rows.
    pub decoder: Box<dyn Decoder>,
    /// The application's operators.
    pub chain: Chain,
    /// Takes the results.
    pub sink: Box<dyn GroupSink>,
}

/// Settings shared by all tasks of a group.
pub(crate) struct TaskSettings {
    /// The application's name, for messages.
    pub(crate) name: String,
    /// Makes an instance of the application's dataflow.
    pub(crate) make: Box<dyn Fn() -> TaskParts + Send + Sync>,
    /// How the dataflow runs as several instances side by side, if it can.
    pub(crate) cut: Cut,
    pub(crate) limits: InboxLimits,
    pub(crate) batch_rows_max: Option<usize>,
    /// The index of the event-time column, if the input has one.
    pub(crate) event_time_column: Option<usize>,
    /// Whether the sink passes rows on to other groups.
    pub(crate) passes_on: bool,
    /// Whether the progress is kept that checkpoints need.
    pub(crate) is_checkpointed: bool,
    /// Whether a task with a few queries counts what becomes of the events of each.
    pub(crate) counts_few: bool,
    /// Groups that pass rows on to this one.
    pub(crate) upstream: RwLock<Vec<Weak<Group>>>,
    pub(crate) rest: Rest,
}

impl TaskSettings {
    /// The arrival of the oldest event that is still to be passed on to this group; `i64::MAX` if there is none.
    fn oldest_upstream_us(&self) -> i64 {
        self.upstream.read().iter().filter_map(Weak::upgrade).map(|one| one.oldest_us()).min().unwrap_or(i64::MAX)
    }
}

/// Queries of a group that are processed together: the unit of scheduling. A group has one task until it is split.
pub struct Task {
    myself: Weak<Self>,
    settings: Arc<TaskSettings>,
    inbox: TaskInbox,
    host: Arc<Host>,
    /// The worker that the task belongs to, where the policy knows owners.
    worker: AtomicUsize,
    standing: Standing,
    deadline: DeadlineId,
    /// Time spent running, microseconds; readable without the core's lock.
    busy_us: AtomicU64,
    queries: AtomicUsize,
    /// Events taken from the inbox and not passed on yet, in a group that passes rows on.
    in_hand: InHand,
    pub(crate) load: Mutex<LoadMeter>,
    /// For a spilled task, its group: instead of processing events, the task wakes the queries that they are for.
    spilled_task_of: Option<Weak<Group>>,
    /// The wanted number of parts; 1 for a task in one piece.
    parts_wanted: AtomicUsize,
    /// The workers of the wanted further parts.
    wanted_on: Mutex<Vec<usize>>,
    /// Its parts, if it has any. Changed only with the core locked.
    parts: RwLock<Option<Arc<Parts>>>,
    core: Mutex<Core>,
}

/// State that only the thread that runs the task touches.
pub(crate) struct Core {
    pub(crate) slots: Slots,
    decoder: Box<dyn Decoder>,
    chain: Chain,
    sink: Box<dyn GroupSink>,
    refusals: Refusals,
    metrics: GroupMetrics,
    idle: Idle,
    /// What checkpoints need, in a group that is checkpointed.
    pub(crate) progress: Option<Box<Progress>>,
    /// The number of pushed events when slots were last retired: once these have left the inbox, no event of a retired
    /// slot can come.
    retired_at: Option<u64>,
}

/// The outcome of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The task processed this many events, and no more waited.
    Ran(usize),
    /// The budget ended before the inbox was empty.
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
        spilled_task_of: Option<Weak<Group>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|task| Self {
            myself: task.clone(),
            inbox: TaskInbox::new(settings.limits, settings.batch_rows_max),
            worker: AtomicUsize::new(host.place()),
            deadline: host.deadlines.register(task.clone()),
            host,
            standing: Standing::default(),
            busy_us: AtomicU64::new(0),
            queries: AtomicUsize::new(0),
            in_hand: InHand::new(),
            load: Mutex::default(),
            spilled_task_of,
            parts_wanted: AtomicUsize::new(1),
            wanted_on: Mutex::default(),
            parts: RwLock::default(),
            core: Mutex::new(Core {
                progress: settings.is_checkpointed.then(Box::default),
                ..Core::new(slots.into(), parts)
            }),
            settings,
        })
    }

    /// Gives the task to another worker. If it waits for the old worker now, it runs there once more.
    pub(crate) fn assign(&self, worker: usize) {
        self.worker.store(worker, Ordering::Relaxed);
    }

    /// The numbers of waiting events and payload bytes.
    pub fn waiting(&self) -> (usize, usize) {
        let (rows, bytes) = self.inbox.lock().waiting();
        (rows + self.rows_in_parts(), bytes)
    }

    /// Events that its parts have taken and not finished.
    fn rows_in_parts(&self) -> usize {
        self.parts.read().as_ref().map_or(0, |parts| parts.rows())
    }

    /// The number of queries.
    pub fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }

    /// Whether this is a spilled task, whose queries only wait for their next event.
    pub(crate) fn is_spilled_task(&self) -> bool {
        self.spilled_task_of.is_some()
    }

    pub(crate) fn inbox(&self) -> &TaskInbox {
        &self.inbox
    }

    /// Locks the task, in one piece.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        let mut core = self.core.lock();
        self.make_whole(&mut core);
        core
    }

    /// Locks the task to read its slots, without joining its parts.
    pub(crate) fn peek(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Locks the task to process elements that may be refused.
    fn lock_to_run(&self) -> MutexGuard<'_, Core> {
        let mut core = self.core.lock();
        let are_shared = core.slots.further() > 0;
        core.refusals.keep_slots(are_shared);
        core
    }

    /// Offers an event to `queue`, the locked queue of this task's inbox, and unlocks it.
    #[inline]
    pub(crate) fn push(self: &Arc<Self>, mut queue: Held<'_>, event: Event<'_>, must_fit: bool) -> Push {
        let pushed = self.inbox.push(&mut queue, event, must_fit);
        drop(queue);
        if pushed.has_risen {
            self.schedule();
        }
        pushed.push
    }

    /// Puts rows into `queue`, the locked queue of this task's inbox, which has room for them, and unlocks it.
    pub(crate) fn push_rows(self: &Arc<Self>, mut queue: Held<'_>, rows: Picked) {
        let has_risen = self.inbox.push_rows(&mut queue, rows);
        drop(queue);
        if has_risen {
            self.schedule();
        }
    }

    /// Tells the scheduler that the task has work: see [`Host::schedule`].
    pub(crate) fn schedule(self: &Arc<Self>) {
        self.host.schedule(self);
    }

    fn schedule_myself(&self) {
        if let Some(task) = self.myself.upgrade() {
            task.schedule();
        }
    }

    /// The arrival of the oldest event that waits or is still to be passed on; `i64::MAX` if there is none.
    pub(crate) fn oldest_us(&self) -> i64 {
        let waiting_us = self.inbox.lock().oldest_arrival_us().unwrap_or(i64::MAX);
        waiting_us.min(self.in_hand.arrival_us.load(Ordering::Acquire))
    }

    /// The lowest log position of the events that wait or are still to be passed on; the highest position if there are
    /// none.
    pub(crate) fn oldest_position(&self) -> LogPosition {
        // In this order: an event is in hand before it stops waiting.
        let waiting = self.inbox.lock().oldest_position().unwrap_or(LogPosition::MAX);
        waiting.min(self.in_hand.position.load(Ordering::Acquire))
    }

    /// Runs the timers due by `now_us`, except those that a waiting event might still precede.
    fn tick(&self, core: &mut Core, now_us: i64) {
        let is_due = |now_us| core.chain.deadline_us().is_some_and(|deadline_us| deadline_us <= now_us);
        if !is_due(now_us) {
            return;
        }
        // Events in flight to this group are checked first: they may arrive in the inbox meanwhile, but not the other
        // way round.
        let upstream_us = self.settings.oldest_upstream_us();
        let oldest_us = self.oldest_us().min(upstream_us);
        // Events that are still to be replayed are in flight too.
        let oldest_us = oldest_us.min(self.host.held_at_us.load(Ordering::Acquire));
        let now_us = now_us.min(oldest_us.saturating_sub(1));
        if is_due(now_us) {
            core.slots.take_leaps(&*self.host.clock);
            core.run_chain(Step::Tick, now_us, &self.settings.name);
            core.finish(&self.settings.name);
        }
    }

    /// Runs one batch of events through the dataflow.
    fn process(&self, core: &mut Core, chunk: &mut Chunk) {
        core.pass_over_repeated(chunk);
        if chunk.rows() == 0 {
            return;
        }
        let now_us = self.host.clock.now_us();
        let events = chunk.rows() as u64;
        core.count_events(chunk, now_us);
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
        core.slots.take_leaps(&*self.host.clock);
        core.idle.note(chunk.slots());
        core.note_progress(chunk);
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

    /// Runs the rows of events that arrived at `arrival_us` through the chain. `batch` is `None` if no event could be
    /// decoded.
    fn process_batch(&self, core: &mut Core, batch: Option<Batch>, arrival_us: &[i64], now_us: i64) {
        core.metrics.waiting_us += (now_us - arrival_us[0]).max(0) as u64;
        let event_times: Option<ArrayRef> =
            self.settings.event_time_column.zip(batch.as_ref()).map(|(column, batch)| batch.column(column).clone());
        if let Some(mut batch) = batch {
            // Only passing rows on needs positions; operators do not use the log.
            if !self.settings.passes_on {
                batch.positions = None;
            }
            core.run_chain(Step::Element(Element::Batch(batch)), now_us, &self.settings.name);
        }
        core.finish(&self.settings.name);
        core.metrics.record_latencies(arrival_us, event_times.as_ref(), self.host.clock.now_us());
    }

    /// Adds queries, one for each row of `parameters`, and returns their slots in this task.
    pub(crate) fn add(&self, core: &mut Core, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Slot> {
        // Routes are removed before slots retire, so an empty inbox holds no event of a retired slot.
        if core.retired_at.is_some() && self.inbox.is_empty() {
            core.slots.recycle();
            core.retired_at = None;
        }
        let slots = core.slots.add(queries, parameters);
        core.idle.note(&slots);
        if let Some(progress) = &mut core.progress {
            progress.reset(&slots);
        }
        if self.settings.counts_few && !self.is_spilled_task() {
            core.tally_new(&slots, self.host.clock.now_us());
        }
        self.control(core, Control::AddSlots(slots.clone()));
        self.queries.store(core.slots.live(), Ordering::Relaxed);
        slots
    }

    /// Removes queries that no event will be pushed to any more. Their waiting events count as refused for
    /// [`Reason::Removed`].
    pub(crate) fn remove(&self, core: &mut Core, slots: &[Slot]) {
        self.control(core, Control::RemoveSlots(slots.to_vec()));
        core.slots.retire(slots);
        core.forget_tallies(slots);
        if let Some(progress) = &mut core.progress {
            progress.reset(slots);
        }
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

    /// Ends the input: closes open windows and hands their results to the sink.
    pub(crate) fn end(&self) {
        let mut core = self.lock_to_run();
        self.make_whole(&mut core);
        core.run_chain(Step::Element(Element::End), self.host.clock.now_us(), &self.settings.name);
        core.finish(&self.settings.name);
        self.note_deadline(&core);
    }

    pub(crate) fn note_deadline(&self, core: &Core) {
        let deadline_us =
            core.chain.deadline_us().map_or(i64::MAX, |deadline_us| deadline_us.saturating_add(TICK_GRACE_US));
        self.host.deadlines.set(self.deadline, deadline_us);
    }

    /// The counters; dropped events count as refused for [`Reason::Overflow`].
    pub(crate) fn metrics(&self) -> GroupMetrics {
        let core = self.core.lock();
        let mut metrics = core.metrics.clone();
        if let Some(parts) = &*self.parts.read() {
            parts.add_metrics(&mut metrics);
        }
        drop(core);
        metrics.refused[Reason::Overflow as usize] += self.inbox.lock().dropped();
        metrics
    }

    /// The load of the task, for the balancer.
    pub(crate) fn seen(&self) -> Seen {
        let in_parts = self.rows_in_parts();
        let queue = self.inbox.lock();
        let waiting = (queue.waiting().0 + in_parts) as u64;
        Seen { arrived: queue.pushed(), waiting, busy_us: self.busy_us.load(Ordering::Relaxed) }
    }

    /// Memory held by parameters, state and waiting events, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let core = self.core.lock();
        core.slots.memory_bytes()
            + core.chain.memory_bytes()
            + core.idle.memory_bytes()
            + core.progress.as_ref().map_or(0, |progress| progress.memory_bytes())
            + self.parts.read().as_ref().map_or(0, |parts| parts.memory_bytes())
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

    fn standing(&self) -> &Standing {
        &self.standing
    }

    fn pending(&self) -> usize {
        self.inbox.pending()
    }

    fn run(&self, budget: Budget) -> Activation {
        if let Some(group) = &self.spilled_task_of {
            if self.settings.rest.is_suspended() {
                return Activation::Blocked;
            }
            let Some(group) = group.upgrade() else {
                // The group and its queries are gone.
                while self.inbox.take(None, None).is_some() {}
                return Activation::Ran(0);
            };
            return group.wake();
        }
        let mut core = self.lock_to_run();
        // Checked under the lock: a caller that suspends the group waits for this lock.
        if self.settings.rest.is_suspended() {
            return Activation::Blocked;
        }
        if let Some(parts) = self.parts_as_wanted(&mut core) {
            return self.run_part(&parts, 0, &mut core, budget);
        }
        let clock = &self.host.clock;
        let (start_us, begun_us) = (clock.now_us(), clock.steady_us());
        let mut done = None;
        let mut rows = 0;
        let outcome = loop {
            if !core.sink.has_room() {
                break Activation::Blocked;
            }
            let in_hand = self.settings.passes_on.then_some(&self.in_hand);
            // The sink had room, so all events taken were passed on.
            in_hand.inspect(|in_hand| in_hand.clear());
            let Some(mut chunk) = self.inbox.take(done.take(), in_hand) else {
                break Activation::Ran(rows);
            };
            rows += chunk.rows();
            self.process(&mut core, &mut chunk);
            done = Some(chunk);
            if budget.is_spent(rows, clock.steady_us() - begun_us) {
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

    fn has_work(&self) -> bool {
        let parts = self.parts.read().clone();
        match parts {
            Some(parts) => parts.has_work(self, 0),
            None => !self.inbox.is_empty(),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.host.deadlines.forget(self.deadline);
        if self.host.policy.has_worker_for_each_task() {
            self.host.scheduler.remove_worker(self.worker());
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task('{}' on worker {})", self.name(), self.worker())
    }
}

enum Step<'a> {
    Element(Element),
    Tick,
    /// Rows for the operator at a place, with those that are the task's own.
    Own {
        place: usize,
        batch: &'a Batch,
        own: &'a [u32],
    },
}

impl Core {
    fn new(slots: Slots, parts: TaskParts) -> Self {
        Self {
            slots,
            decoder: parts.decoder,
            chain: parts.chain,
            sink: parts.sink,
            refusals: Refusals::new(REFUSED_CONTENT_MAX),
            metrics: GroupMetrics::default(),
            idle: Idle::default(),
            progress: None,
            retired_at: None,
        }
    }

    /// Counts taken events, for each query of a shared slot.
    fn count_events(&mut self, chunk: &Chunk, now_us: i64) {
        let events = chunk.rows() as u64;
        self.metrics.events += events + self.slots.further_of(chunk.slots());
        self.metrics.batches += 1;
        self.metrics.count_inputs(events, chunk.inputs());
        self.metrics.batch_events_max = self.metrics.batch_events_max.max(events);
        self.tally_events(chunk, now_us);
    }

    /// The selected state of every operator.
    pub(crate) fn export_state(&self, selection: &StateSelection) -> Result<Vec<Option<StateFrame>>, StateError> {
        self.chain.export_state(selection)
    }

    /// Whether retired slots are not free yet.
    pub(crate) fn has_retired(&self) -> bool {
        self.retired_at.is_some()
    }

    /// Frees retired slots at once: the caller knows that none of their events waits.
    pub(crate) fn recycle(&mut self) {
        self.slots.recycle();
        self.retired_at = None;
    }

    /// Counts events of queries that had been removed.
    pub(crate) fn count_removed(&mut self, events: u64) {
        self.metrics.refused[Reason::Removed as usize] += events;
    }

    /// Adds counts from elsewhere.
    pub(crate) fn count_further(&mut self, metrics: &GroupMetrics) {
        self.metrics.merge(metrics);
    }

    /// Removes events that are already in the state of their slots, and those that fall into an absence of their query:
    /// the log repeats them after a restart.
    fn pass_over_repeated(&mut self, chunk: &mut Chunk) {
        let Some(progress) = &self.progress else { return };
        // Behind the last repeated event, this check is the whole cost.
        if !chunk.has_positions() || !(0..chunk.rows()).any(|row| progress.may_repeat(chunk.stamp(row))) {
            return;
        }
        let is_passed_over = |row| {
            let (slot, stamp) = (chunk.slots()[row], chunk.stamp(row));
            progress.has_applied(slot, stamp) || progress.was_away(self.slots.query(slot), stamp)
        };
        let passed_over: Vec<bool> = (0..chunk.rows()).map(is_passed_over).collect();
        if passed_over.contains(&true) {
            chunk.retain_rows(|row| !passed_over[row]);
        }
    }

    /// Notes that events go into the state of their slots.
    fn note_progress(&mut self, chunk: &Chunk) {
        let Some(progress) = &mut self.progress else { return };
        if !chunk.has_positions() {
            return progress.change_all(chunk.slots().iter().copied());
        }
        for (row, &slot) in chunk.slots().iter().enumerate() {
            progress.note_event(slot, chunk.stamp(row));
        }
    }

    /// Decodes events; `None` if the decoder panics, which costs these events.
    fn decode(&mut self, events: &Events, name: &str) -> Option<Batch> {
        let Self { decoder, refusals, .. } = self;
        match catch_unwind(AssertUnwindSafe(|| decoder.decode(events, refusals))) {
            Ok(batch) => Some(batch),
            Err(panic) => {
                self.failed(events.rows() as u64, panic_text(&*panic), name);
                None
            }
        }
    }

    /// Runs the chain and hands its output to the sink. A failure or panic of an operator costs only this batch: it is
    /// counted and logged, and the task goes on. Failures of user code were refused by the chain, row by row.
    fn run_chain(&mut self, step: Step<'_>, now_us: i64, name: &str) {
        let Self { chain, slots, refusals, sink, metrics, progress, .. } = self;
        let slots: &SlotTable = slots;
        let rows = match &step {
            Step::Element(Element::Batch(batch)) => batch.rows() as u64,
            Step::Own { own, .. } => own.len() as u64,
            _ => 0,
        };
        let mut sink_error = None;
        let mut take = |batch: Batch| {
            metrics.results += batch.rows() as u64 + slots.further_of(&batch.slots);
            let numbers = progress.as_mut().map(|progress| progress.number(&batch.slots));
            if let Err(error) = sink.write(&batch, numbers, slots) {
                sink_error.get_or_insert(error);
            }
        };
        let with = Surroundings { now_us, slots, refusals };
        let outcome = catch_unwind(AssertUnwindSafe(|| match step {
            Step::Element(element) => chain.process(element, with, &mut take),
            Step::Tick => chain.tick(with, &mut take),
            Step::Own { place, batch, own } => chain.process_own(place, batch, own, with, &mut take),
        }));
        if let Some(error) = sink_error {
            tracing::warn!(application = name, %error, "results were not written");
        }
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.fault == Fault::UserCode => self.user_code_failed(&error, name),
            Ok(Err(error)) => self.failed(rows, &error.to_string(), name),
            Err(panic) => self.failed(rows, panic_text(&*panic), name),
        }
    }

    /// Counts and publishes refusals, and flushes the sink.
    fn finish(&mut self, name: &str) {
        let Self { sink, slots, refusals, metrics, .. } = self;
        if !refusals.is_empty() {
            for reason in Reason::ALL {
                metrics.refused[reason as usize] += refusals.counted(reason);
            }
            for &(reason, slot) in refusals.slots() {
                metrics.refused[reason as usize] += slots.further_of(&[slot]);
            }
            let has_told = !refusals.records().is_empty() || !refusals.seconds().is_empty();
            if has_told && let Err(error) = sink.refused(refusals, slots) {
                tracing::warn!(application = name, %error, "dead letters were not written");
            }
            refusals.clear();
        }
        if let Err(error) = sink.flush() {
            tracing::warn!(application = name, %error, "results were not sent");
        }
    }

    /// The application's code failed without rows: in a timer, or when queries were added or removed.
    fn user_code_failed(&mut self, error: &OperatorError, name: &str) {
        self.refusals.count(Reason::UserCode, error.slots.len().max(1) as u64);
        tracing::warn!(application = name, queries = error.slots.len(), "the application's code failed: {error}");
    }

    fn failed(&mut self, rows: u64, failure: &str, name: &str) {
        self.refusals.count(Reason::Internal, rows);
        tracing::error!(application = name, rows, "this batch is lost because of a defect in the engine: {failure}");
    }
}
