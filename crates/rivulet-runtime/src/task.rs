//! A task: queries of a group that one thread at a time processes together.

mod core;
mod cut;
mod order;
mod parts;
mod rest;
mod standstill;
mod tally;

use arrow::array::{ArrayRef, RecordBatch};
use parking_lot::{Mutex, MutexGuard, RwLock};
use rivulet_dataflow::slot_host::{Mark, SlotCopy};
use rivulet_dataflow::{
    Chain, Chunk, Cut, Decoder, Event, GroupSink, LogPosition, Picked, Push, QueryId, Reason, Slot, SlotHost,
    SlotTable, StateError, StateFrame, StateMap,
};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::balance::{LoadMeter, Seen};
use crate::inbox::{Held, InHand, TaskInbox};
use crate::pool::{DeadlineId, Pool};
use crate::scheduler::{Budget, Runnable, Share, Standing};
use crate::{Activation, GroupMetrics, InboxLimits};
use parts::Parts;

pub(crate) use self::core::Core;
pub(crate) use rest::Rest;
pub(crate) use standstill::Standstill;
pub use tally::Examined;

/// How far timers run behind the clock. An event that a source has stamped but not yet delivered must come before a
/// timer for a later time.
pub(crate) const TICK_GRACE_US: i64 = 5_000;

/// The parts of an instance of a group's dataflow.
pub struct TaskParts {
    /// Turns payloads into rows.
    pub decoder: Box<dyn Decoder>,
    /// The application's operators.
    pub chain: Chain,
    /// Takes the results.
    pub sink: Box<dyn GroupSink>,
}

/// A group that passes rows on to others.
pub(crate) trait Upstream: Send + Sync {
    /// The arrival of the oldest event that waits or is still to be passed on; `i64::MAX` if there is none.
    fn oldest_us(&self) -> i64;
}

/// The activation of a spilled task: brings back queries with waiting events or a due timer. `None` once its group is
/// gone.
pub(crate) type Wake = Box<dyn Fn() -> Option<Activation> + Send + Sync>;

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
    /// Whose time its tasks take, if not that which all have together.
    pub(crate) share: OnceLock<Arc<Share>>,
    /// Groups that pass rows on to this one.
    pub(crate) upstream: RwLock<Vec<Weak<dyn Upstream>>>,
    pub(crate) rest: Rest,
    pub(crate) standstill: Standstill,
}

impl TaskSettings {
    /// The standing of a new task of the group.
    pub(crate) fn standing(&self) -> Standing {
        let standing = Standing::default();
        self.share.get().into_iter().for_each(|share| standing.set_share(share.clone()));
        standing
    }

    /// The arrival of the oldest event that is still to be passed on to this group, or that the log keeps for it;
    /// `i64::MAX` if there is none.
    fn oldest_upstream_us(&self) -> i64 {
        let oldest = self.upstream.read().iter().filter_map(Weak::upgrade).map(|one| one.oldest_us()).min();
        oldest.unwrap_or(i64::MAX).min(self.standstill.held_at_us.load(Ordering::Acquire))
    }
}

/// Queries of a group that are processed together: the unit of scheduling. A group has one task until it is split.
pub struct Task {
    myself: Weak<Self>,
    settings: Arc<TaskSettings>,
    inbox: TaskInbox,
    pool: Arc<Pool>,
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
    /// For a spilled task: instead of processing events, it wakes the queries that they are for.
    wake: Option<Wake>,
    /// The wanted number of parts; 1 for a task in one piece.
    parts_wanted: AtomicUsize,
    /// The workers of the wanted further parts.
    wanted_on: Mutex<Vec<usize>>,
    /// Its parts, if it has any. Changed only with the core locked.
    parts: RwLock<Option<Arc<Parts>>>,
    core: Mutex<Core>,
}

impl Task {
    pub(crate) fn new(
        settings: Arc<TaskSettings>,
        slots: SlotTable,
        parts: TaskParts,
        pool: Arc<Pool>,
        wake: Option<Wake>,
    ) -> Arc<Self> {
        let mut slot_host = SlotHost::new(slots, parts.decoder, parts.chain);
        if settings.is_checkpointed {
            slot_host = slot_host.with_progress();
        }
        if settings.counts_few && wake.is_none() {
            slot_host = slot_host.counting_few();
        }
        Arc::new_cyclic(|task| Self {
            myself: task.clone(),
            inbox: TaskInbox::new(settings.limits, settings.batch_rows_max),
            worker: AtomicUsize::new(pool.place()),
            deadline: pool.deadlines.register(task.clone()),
            pool,
            standing: settings.standing(),
            busy_us: AtomicU64::new(0),
            queries: AtomicUsize::new(0),
            in_hand: InHand::new(),
            load: Mutex::default(),
            wake,
            parts_wanted: AtomicUsize::new(1),
            wanted_on: Mutex::default(),
            parts: RwLock::default(),
            core: Mutex::new(Core::new(slot_host, parts.sink)),
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
        self.wake.is_some()
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

    /// Offers an event to `queue`, the locked queue of this task's inbox, and unlocks it.
    #[inline]
    pub(crate) fn push(self: &Arc<Self>, mut queue: Held<'_>, event: Event<'_>, must_fit: bool) -> Push {
        let standstill = &self.settings.standstill;
        let gives_way = event.position == 0 && standstill.drops(event.input);
        if gives_way && !self.inbox.has_room(&queue, event.bytes()) {
            standstill.given_up.fetch_add(1, Ordering::Relaxed);
            return Push::Taken;
        }
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

    /// Tells the scheduler that the task has work: see [`Pool::schedule`].
    pub(crate) fn schedule(self: &Arc<Self>) {
        self.pool.schedule(self);
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

    /// The arrival of the oldest event that may still come to the inbox: from the log, or from another group. Those in
    /// the inbox are looked at after these, for an event may come to the inbox meanwhile, and none goes back.
    fn oldest_under_way_us(&self) -> i64 {
        let replayed_us = self.pool.held_at_us.load(Ordering::Acquire);
        replayed_us.min(self.settings.oldest_upstream_us())
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
        let is_due = |now_us| core.host.deadline_us().is_some_and(|deadline_us| deadline_us <= now_us);
        if !is_due(now_us) {
            return;
        }
        let oldest_us = self.oldest_under_way_us().min(self.oldest_us());
        let now_us = now_us.min(oldest_us.saturating_sub(1));
        if is_due(now_us) {
            core.host.table().take_leaps(&*self.pool.clock);
            core.host.tick(now_us, &mut *core.sink);
            core.finish(&self.settings.name);
        }
    }

    /// Runs one batch of events through the dataflow.
    fn process(&self, core: &mut Core, chunk: &mut Chunk) {
        core.host.skip_repeated(chunk);
        if chunk.rows() == 0 {
            return;
        }
        let now_us = self.pool.clock.now_us();
        core.count_events(chunk, now_us);
        core.host.accept(chunk);
        if core.host.table().has_retired() && self.inbox.lock().left() >= core.retired_at {
            core.host.recycle();
        }
        if chunk.rows() == 0 {
            return core.note(&self.settings.name);
        }
        core.host.table().take_leaps(&*self.pool.clock);
        let batch = core.host.decode(chunk);
        let of_batch = batch.as_ref().map(|batch| batch.arrival_us.clone()).unwrap_or_default();
        let arrival_us = chunk.arrival_us(&of_batch);
        core.metrics.waiting_us += arrival_us.first().map_or(0, |first| (now_us - first).max(0)) as u64;
        let event_times: Option<ArrayRef> =
            self.settings.event_time_column.zip(batch.as_ref()).map(|(column, batch)| batch.column(column).clone());
        if let Some(mut batch) = batch {
            // Only passing rows on needs positions; operators do not use the log.
            if !self.settings.passes_on {
                batch.positions = None;
            }
            core.host.process(batch, now_us, &mut *core.sink);
        }
        core.finish(&self.settings.name);
        core.metrics.record_latencies(arrival_us, event_times.as_ref(), self.pool.clock.now_us());
    }

    /// Adds queries, one for each row of `parameters`, and returns their slots in this task.
    pub(crate) fn add(&self, core: &mut Core, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Slot> {
        self.recycle_unless_waiting(core);
        let slots = core.host.add(queries, parameters, self.pool.clock.now_us(), &mut *core.sink);
        self.changed(core);
        slots
    }

    /// Frees retired slots if no event waits. Routes are removed before slots retire, so an empty inbox holds no event
    /// of a retired slot.
    fn recycle_unless_waiting(&self, core: &mut Core) {
        if core.host.table().has_retired() && self.inbox.is_empty() {
            core.host.recycle();
        }
    }

    /// Removes queries that no event will be pushed to any more. Their waiting events count as refused for
    /// [`Reason::Removed`].
    pub(crate) fn remove(&self, core: &mut Core, slots: &[Slot]) {
        core.host.remove(slots, self.pool.clock.now_us(), &mut *core.sink);
        core.retired_at = self.inbox.lock().pushed();
        self.changed(core);
    }

    /// Adds queries copied from another task, and returns their slots here.
    pub(crate) fn put(&self, core: &mut Core, copy: SlotCopy) -> Result<Vec<Slot>, StateError> {
        self.recycle_unless_waiting(core);
        let put = core.host.put(copy, self.pool.clock.now_us(), &mut *core.sink);
        if put.is_err() {
            // The queries were removed again.
            core.retired_at = self.inbox.lock().pushed();
        }
        self.changed(core);
        put
    }

    /// Changes the queries in these slots: see [`SlotHost::reset`].
    pub(crate) fn reset(
        &self,
        core: &mut Core,
        slots: Vec<Slot>,
        map: &StateMap,
        change: impl FnOnce(&mut SlotHost),
    ) -> Result<(), StateError> {
        let done = core.host.reset(slots, map, change, self.pool.clock.now_us(), &mut *core.sink);
        self.changed(core);
        done
    }

    /// Restores queries: see [`SlotHost::restore`].
    pub(crate) fn restore(
        &self,
        slots: &[Slot],
        saved: &[Slot],
        frames: &[Option<StateFrame>],
        marks: &[Mark],
    ) -> Result<(), StateError> {
        let core = &mut *self.lock();
        let done = core.host.restore(slots, saved, frames, marks, self.pool.clock.now_us(), &mut *core.sink);
        self.changed(core);
        done
    }

    /// Drops all state of these slots, ascending.
    pub(crate) fn begin_anew(&self, core: &mut Core, slots: &[Slot]) {
        core.host.begin_anew(slots, self.pool.clock.now_us(), &mut *core.sink);
        self.changed(core);
    }

    /// Notes what a change of the queries has changed for others.
    fn changed(&self, core: &mut Core) {
        core.note(&self.settings.name);
        self.queries.store(core.host.table().live(), Ordering::Relaxed);
        self.note_deadline(core);
    }

    pub(crate) fn import_state(&self, core: &mut Core, frames: &[Option<StateFrame>]) -> Result<(), StateError> {
        let result = core.host.import_state(frames);
        self.note_deadline(core);
        result
    }

    /// Ends the input: closes open windows and hands their results to the sink.
    pub(crate) fn end(&self) {
        let core = &mut *self.lock();
        core.host.end(self.pool.clock.now_us(), &mut *core.sink);
        core.finish(&self.settings.name);
        self.note_deadline(core);
    }

    pub(crate) fn note_deadline(&self, core: &Core) {
        let deadline_us =
            core.host.deadline_us().map_or(i64::MAX, |deadline_us| deadline_us.saturating_add(TICK_GRACE_US));
        self.pool.deadlines.set(self.deadline, deadline_us);
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
        core.host.memory_bytes()
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
        if let Some(wake) = &self.wake {
            if self.settings.rest.is_suspended() {
                return Activation::Blocked;
            }
            return wake().unwrap_or_else(|| {
                // The group and its queries are gone.
                while self.inbox.take(None, None, usize::MAX).is_some() {}
                Activation::Ran(0)
            });
        }
        let mut core = self.core.lock();
        // Checked under the lock: a caller that suspends the group waits for this lock.
        if self.settings.rest.is_suspended() {
            return Activation::Blocked;
        }
        if let Some(parts) = self.parts_as_wanted(&mut core) {
            return self.run_part(&parts, 0, &mut core, budget);
        }
        let clock = &self.pool.clock;
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
            let Some(mut chunk) = self.inbox.take(done.take(), in_hand, budget.left(rows)) else {
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
            Some(parts) => parts.has_work(&self.inbox, 0),
            None => !self.inbox.is_empty(),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.pool.deadlines.forget(self.deadline);
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task('{}' on worker {})", self.name(), self.worker())
    }
}
