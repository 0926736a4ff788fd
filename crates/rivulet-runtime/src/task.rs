//! A task: queries of a group that are processed together, by one thread at a time.

mod cut;
mod idle;
mod order;
mod parts;
pub(crate) mod progress;
mod slots;
mod tally;

use arrow::array::{ArrayRef, RecordBatch};
use parking_lot::{Mutex, MutexGuard, RwLock};
use rivulet_dataflow::{
    Batch, Chain, Control, Cut, Decoder, Element, Event, Events, Fault, GroupSink, LogPosition, OperatorError, Push,
    QueryId, Reason, Refusals, Slot, SlotTable, StateError, StateFrame, StateSelection, Surroundings, panic_text,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::balance::{LoadMeter, Seen};
use crate::group::Rest;
use crate::host::{DeadlineId, Host};
use crate::inbox::{Chunk, Held, InHand, TaskInbox};
use crate::scheduler::{Budget, Runnable, Standing};
use crate::{Group, GroupMetrics, InboxLimits, Picked};
use idle::Idle;
use parts::Parts;
use progress::Progress;
use slots::Slots;
pub use tally::Examined;

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
    pub sink: Box<dyn GroupSink>,
}

/// What all tasks of a group have in common.
pub(crate) struct TaskSettings {
    /// The application's name, for people.
    pub(crate) name: String,
    /// Makes an instance of the application's dataflow.
    pub(crate) make: Box<dyn Fn() -> TaskParts + Send + Sync>,
    /// How the dataflow runs as several instances side by side, if it can.
    pub(crate) cut: Cut,
    pub(crate) limits: InboxLimits,
    pub(crate) batch_rows_max: Option<usize>,
    /// The index of the event-time column, if the input has one.
    pub(crate) event_time_column: Option<usize>,
    /// Whether the sink hands rows on to other groups.
    pub(crate) passes_on: bool,
    /// Whether it is kept what checkpoints need.
    pub(crate) is_checkpointed: bool,
    /// Whether a task with a few queries counts what becomes of the events of each.
    pub(crate) counts_few: bool,
    /// Groups that hand rows on to this one.
    pub(crate) upstream: RwLock<Vec<Weak<Group>>>,
    pub(crate) rest: Rest,
}

impl TaskSettings {
    /// When the oldest of the events came that are yet to be handed on to this group; `i64::MAX` without any.
    fn oldest_upstream_us(&self) -> i64 {
        self.upstream.read().iter().filter_map(Weak::upgrade).map(|one| one.oldest_us()).min().unwrap_or(i64::MAX)
    }
}

/// Queries of a group that are processed together: what a scheduler picks. A group has one task until it is split.
pub struct Task {
    myself: Weak<Self>,
    settings: Arc<TaskSettings>,
    inbox: TaskInbox,
    host: Arc<Host>,
    /// The worker that it belongs to, where the policy knows owners.
    worker: AtomicUsize,
    standing: Standing,
    deadline: DeadlineId,
    /// Time spent running, microseconds; readable without the core's lock.
    busy_us: AtomicU64,
    queries: AtomicUsize,
    /// What was taken from the inbox and not handed on yet, in a group that does so.
    in_hand: InHand,
    pub(crate) load: Mutex<LoadMeter>,
    /// Of a spilled task, its group: instead of processing events it wakes the queries that they are for.
    spilled_task_of: Option<Weak<Group>>,
    /// In how many parts it is to run: 1 for one piece.
    parts_wanted: AtomicUsize,
    /// The workers of the further parts that it is to have.
    wanted_on: Mutex<Vec<usize>>,
    /// Its parts, if it has any. Changed by whoever holds the core.
    parts: RwLock<Option<Arc<Parts>>>,
    core: Mutex<Core>,
}

/// What only the thread that runs the task may touch.
pub(crate) struct Core {
    pub(crate) slots: Slots,
    decoder: Box<dyn Decoder>,
    chain: Chain,
    sink: Box<dyn GroupSink>,
    refusals: Refusals,
    metrics: GroupMetrics,
    idle: Idle,
    /// What checkpoints need, in a group that is captured.
    pub(crate) progress: Option<Box<Progress>>,
    /// Slots were retired when so many events had been pushed: once all these have left the inbox, none of theirs can
    /// come.
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

    /// Gives the task to another worker. If it waits for the old one now, it is run there once more.
    pub(crate) fn assign(&self, worker: usize) {
        self.worker.store(worker, Ordering::Relaxed);
    }

    /// Events and payload bytes that wait.
    pub fn waiting(&self) -> (usize, usize) {
        let (rows, bytes) = self.inbox.lock().waiting();
        (rows + self.rows_in_parts(), bytes)
    }

    /// Events that its parts have taken and are not done with.
    fn rows_in_parts(&self) -> usize {
        self.parts.read().as_ref().map_or(0, |parts| parts.rows())
    }

    /// The number of queries.
    pub fn queries(&self) -> usize {
        self.queries.load(Ordering::Relaxed)
    }

    /// Whether its queries only wait here for their next event.
    pub(crate) fn is_spilled_task(&self) -> bool {
        self.spilled_task_of.is_some()
    }

    pub(crate) fn inbox(&self) -> &TaskInbox {
        &self.inbox
    }

    /// Holds the task still, and in one piece.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        let mut core = self.core.lock();
        self.make_whole(&mut core);
        core
    }

    /// Holds it still for a look at its slots, in however many pieces it is.
    pub(crate) fn peek(&self) -> MutexGuard<'_, Core> {
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
    pub(crate) fn push(self: &Arc<Self>, mut queue: Held<'_>, event: Event<'_>, must_fit: bool) -> Push {
        let pushed = self.inbox.push(&mut queue, event, must_fit);
        drop(queue);
        if pushed.has_risen {
            self.schedule();
        }
        pushed.push
    }

    /// Puts rows into `queue`, the locked queue of this task's inbox, which has room for them, and lets go of it.
    pub(crate) fn push_rows(self: &Arc<Self>, mut queue: Held<'_>, rows: Picked) {
        let has_risen = self.inbox.push_rows(&mut queue, rows);
        drop(queue);
        if has_risen {
            self.schedule();
        }
    }

    /// Lets the scheduler know that it has work: see [`Host::schedule`].
    pub(crate) fn schedule(self: &Arc<Self>) {
        self.host.schedule(self);
    }

    fn schedule_myself(&self) {
        if let Some(task) = self.myself.upgrade() {
            task.schedule();
        }
    }

    /// When the oldest of the events came that wait, or that this task has yet to hand on; `i64::MAX` without any.
    pub(crate) fn oldest_us(&self) -> i64 {
        let waiting_us = self.inbox.lock().oldest_arrival_us().unwrap_or(i64::MAX);
        waiting_us.min(self.in_hand.arrival_us.load(Ordering::Acquire))
    }

    /// The lowest position in the log of the events that wait, or that this task has yet to hand on; the highest there
    /// can be without any.
    pub(crate) fn oldest_position(&self) -> LogPosition {
        // In this order: what is taken is in hand before it does not wait any more.
        let waiting = self.inbox.lock().oldest_position().unwrap_or(LogPosition::MAX);
        waiting.min(self.in_hand.position.load(Ordering::Acquire))
    }

    /// Does what timers are due by `now_us`, but nothing that an event which still waits might have come in time for.
    fn tick(&self, core: &mut Core, now_us: i64) {
        let is_due = |now_us| core.chain.deadline_us().is_some_and(|deadline_us| deadline_us <= now_us);
        if !is_due(now_us) {
            return;
        }
        // What is under way to this group first: it may arrive in the inbox meanwhile, but not the other way round.
        let upstream_us = self.settings.oldest_upstream_us();
        let oldest_us = self.oldest_us().min(upstream_us);
        // What is yet to be replayed is under way too.
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

    /// Runs the rows of events that came at `arrival_us` through the chain; without rows if none could be decoded.
    fn process_batch(&self, core: &mut Core, batch: Option<Batch>, arrival_us: &[i64], now_us: i64) {
        core.metrics.waiting_us += (now_us - arrival_us[0]).max(0) as u64;
        let event_times: Option<ArrayRef> =
            self.settings.event_time_column.zip(batch.as_ref()).map(|(column, batch)| batch.column(column).clone());
        if let Some(mut batch) = batch {
            // Operators know nothing of the log; only the queries that rows are handed on to do.
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
        // The routes of retired slots were removed before they retired, so an empty inbox holds none of their events.
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

    /// Removes queries of which no event will be pushed any more; those that wait are counted as refused for
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

    /// Ends the input: closes what is open and hands it to the sink.
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

    /// The counters, with dropped events as refused for [`Reason::Overflow`].
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

    /// What the balancer wants to know.
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
                // The group is gone, and its queries with it.
                while self.inbox.take(None, None).is_some() {}
                return Activation::Ran(0);
            };
            return group.wake();
        }
        let mut core = self.lock_to_run();
        // Looked at under the lock: whoever has it stand still waits for the lock then.
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
            // The sink had room, so all is handed on that was taken.
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
    /// Rows that reach the operator at a place, of which these are the task's own.
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

    /// Counts events that were taken: what each query got, also where some share a slot.
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

    /// Adds what was counted elsewhere.
    pub(crate) fn count_further(&mut self, metrics: &GroupMetrics) {
        self.metrics.merge(metrics);
    }

    /// Takes out the events that are in the state of their slots already, and those that came while their query was
    /// away: the log gives them after a restart.
    fn pass_over_repeated(&mut self, chunk: &mut Chunk) {
        let Some(progress) = &self.progress else { return };
        // Behind the last of them this is all that it costs.
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

    /// Events go into the state of their slots.
    fn note_progress(&mut self, chunk: &Chunk) {
        let Some(progress) = &mut self.progress else { return };
        if !chunk.has_positions() {
            return progress.change_all(chunk.slots().iter().copied());
        }
        for (row, &slot) in chunk.slots().iter().enumerate() {
            progress.note_event(slot, chunk.stamp(row));
        }
    }

    /// Decodes events; nothing if the decoder fails on them, which costs them.
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

    /// Runs the chain and hands what comes out to the sink. A failure or panic of an operator costs this batch and
    /// nothing else: it is counted, logged, and the task goes on. What code of users costs, the chain has refused row
    /// by row.
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

    /// The application's code failed where it had no rows: in a timer, or when queries came or went.
    fn user_code_failed(&mut self, error: &OperatorError, name: &str) {
        self.refusals.count(Reason::UserCode, error.slots.len().max(1) as u64);
        tracing::warn!(application = name, queries = error.slots.len(), "the application's code failed: {error}");
    }

    fn failed(&mut self, rows: u64, failure: &str, name: &str) {
        self.refusals.count(Reason::Internal, rows);
        tracing::error!(application = name, rows, "this batch is lost because of a defect in the engine: {failure}");
    }
}
