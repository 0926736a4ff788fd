//! A group: the queries of one application that run together, as one dataflow over a table of slots.
//!
//! A group has one task until the load is worth more. Then queries are moved to a second task, with their state and
//! their waiting events. Sources notice nothing, because a slot of the group never changes. The task and slot where its
//! query runs is its *place*, and every push looks it up. As long as there never was a second task, the place of a
//! query is its slot, and no lookup is needed.
//!
//! [`moves`] has how queries move between tasks, [`rows`] how decoded rows reach them, [`spilling`] how silent queries
//! leave memory and come back, [`standstill`] what becomes of events while results cannot leave, [`join`] how equal
//! queries share a slot, [`alter`] how their parameters change, [`snapshot`] what a checkpoint saves and restores,
//! [`migration`] how all queries move to the group of a new version of their application.

mod place;
mod shared_slots;
mod spilled_task;
mod join;
mod alter;
mod snapshot;
mod moves;
mod rows;
mod spilling;
mod migration;
mod standstill;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parking_lot::{Mutex, RwLock};
use rivulet_dataflow::slot_host::{Absences, renumber};
use rivulet_dataflow::{
    Clock, Cut, Event, Inbox, InputIndex, LogPosition, LoggedEvent, Push, QueryId, Reason, Slot, SlotTable, StateError,
    StateFrame, StateSelection,
};

use crate::labels::LabelHash;
use crate::pool::Pool;
use crate::scheduler::{Budget, Runnable, Share};
use crate::spill::Spill;
use crate::task::{Rest, Standstill, TaskSettings, Upstream};
use crate::{Activation, Examined, GroupMetrics, InboxLimits, Task, TaskParts};
use place::{Place, SPILLED};
use shared_slots::SharedSlots;
use spilled_task::SpilledTask;

pub use alter::Alter;
pub use join::Joined;
pub use migration::{StateMigration, Suspended};
pub use snapshot::{GroupSnapshot, Restored, Saved};

/// A group's number, unique in the process.
pub type GroupId = u32;

/// The parts of a group.
pub struct GroupParts {
    /// The application's name, for messages.
    pub name: String,
    /// The names and types of the application's parameters.
    pub parameters: SchemaRef,
    /// Makes an instance of the application's dataflow; called for each task.
    pub make: Box<dyn Fn() -> TaskParts + Send + Sync>,
    /// The bounds of the inbox of each task.
    pub limits: InboxLimits,
    /// Which inputs declare columns of the topic: one bit for each, the lowest for the first. Their events wait with
    /// their topics.
    pub topic_inputs: u32,
    /// The index of the event-time column, if the input has one.
    pub event_time_column: Option<usize>,
    /// The most queries of a task, for comparison with engines that do not group; `None` for no bound.
    pub task_queries_max: Option<usize>,
    /// The most events of one batch; `None` for the usual bound.
    pub batch_rows_max: Option<usize>,
    /// The parameters in which queries must be equal to share a slot; `None` if queries never share.
    pub equal_by: Option<Vec<usize>>,
    /// How the dataflow runs as several instances side by side, if it can. Then a single query may use several workers.
    pub cut: Cut,
    /// Whether the sink passes rows on to other groups, by [`Group::push_rows`]. Such a group has one task, whose order
    /// the groups behind it rely on.
    pub passes_on: bool,
    /// Whether the group can be [captured](Group::snapshot); it then keeps some 16 bytes for each query.
    pub is_checkpointed: bool,
}

/// The queries of one application that run together.
pub struct Group {
    id: GroupId,
    settings: Arc<TaskSettings>,
    parameters: SchemaRef,
    topic_inputs: u32,
    task_queries_max: usize,
    pool: Arc<Pool>,
    /// Tasks are never removed: a task that became empty waits for the next split.
    tasks: boxcar::Vec<Arc<Task>>,
    /// The task of silent queries, once there were any.
    spilled_task: OnceLock<SpilledTask>,
    /// The place of each slot's query, once there are several tasks; before that, the same slot of the first task. Made
    /// and changed only with the locks of all inboxes concerned.
    places: OnceLock<boxcar::Vec<AtomicU64>>,
    /// Unused slots of `places`. Its lock is held to add, remove or move queries.
    free: Mutex<Vec<Slot>>,
    /// Finds slots that equal queries may share. Locked only with `free` locked.
    shared_slots: Option<Mutex<SharedSlots>>,
    /// The label of the first queries, until the group has a task.
    label: Mutex<Option<LabelHash>>,
    /// Events of queries that had been removed.
    strays: AtomicU64,
    /// The number of moves of queries, to another task or another slot.
    moves: AtomicU64,
    /// The ranges of the log that are not for some of the queries; each task has them too. Locked before `free`.
    absences: Mutex<Absences>,
}

impl Group {
    pub(crate) fn new(id: GroupId, parts: GroupParts, pool: Arc<Pool>) -> Arc<Self> {
        let settings = Arc::new(TaskSettings {
            name: parts.name,
            make: parts.make,
            cut: if parts.task_queries_max.is_some() {
                Cut::Never("tasks have a given number of queries")
            } else {
                parts.cut
            },
            limits: parts.limits,
            batch_rows_max: parts.batch_rows_max,
            event_time_column: parts.event_time_column,
            passes_on: parts.passes_on,
            is_checkpointed: parts.is_checkpointed,
            share: OnceLock::new(),
            counts_few: parts.task_queries_max.is_none() && parts.batch_rows_max.is_none(),
            upstream: RwLock::default(),
            rest: Rest::default(),
            standstill: Standstill::default(),
        });
        let shared_slots = parts.equal_by.map(|equal_by| SharedSlots::new(&parts.parameters, equal_by));
        Arc::new(Self {
            id,
            settings,
            shared_slots,
            parameters: parts.parameters,
            topic_inputs: parts.topic_inputs,
            task_queries_max: parts.task_queries_max.unwrap_or(usize::MAX).max(1),
            pool,
            tasks: boxcar::Vec::new(),
            spilled_task: OnceLock::new(),
            places: OnceLock::new(),
            free: Mutex::default(),
            label: Mutex::default(),
            strays: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            absences: Mutex::default(),
        })
    }

    /// A group that no worker runs: the caller calls [`Group::run`].
    pub fn stepped(parts: GroupParts, clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::new(0, parts, Arc::new(Pool::stepped(clock)))
    }

    /// Enables spilling in a [`stepped`](Group::stepped) group, by calls of [`Group::spill_silent`].
    pub fn enable_spilling(&self, spill: Spill) {
        self.pool.enable_spilling(spill);
    }

    /// Does what [`Workers::hold_timers_at`](crate::Workers::hold_timers_at) does, for a [`stepped`](Group::stepped)
    /// group.
    pub fn hold_timers_at(&self, at_us: i64) {
        self.pool.held_at_us.store(at_us, Ordering::Release);
    }

    /// Says whose time its queries take. To be called before there are any; a second call changes nothing.
    pub fn set_share(&self, share: Arc<Share>) {
        let _ = self.settings.share.set(share);
    }

    /// The group's number.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The application's name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Whether the group can be [captured](Group::snapshot).
    pub fn is_checkpointed(&self) -> bool {
        self.settings.is_checkpointed
    }

    /// Whether queries may move between tasks. They may not where the number of queries of a task is fixed, or in a
    /// group that passes rows on.
    pub(crate) fn is_movable(&self) -> bool {
        self.task_queries_max == usize::MAX && !self.settings.passes_on
    }

    /// Makes `upstream`, which passes rows on, pass them to this group too: timers here wait for rows in flight there.
    pub fn follow(&self, upstream: &Arc<Self>) {
        let mut all = self.settings.upstream.write();
        all.retain(|one| one.strong_count() > 0);
        let upstream: Weak<dyn Upstream> = Arc::downgrade(&(upstream.clone() as Arc<dyn Upstream>));
        if !all.iter().any(|one| std::ptr::addr_eq(one.as_ptr(), upstream.as_ptr())) {
            all.push(upstream);
        }
    }

    /// The lowest log position of the events that wait or are still to be passed on; `None` if none is in the log. A
    /// caller that asks several groups asks those that pass rows on first.
    pub fn oldest_position(&self) -> Option<LogPosition> {
        // Events move between tasks only together with queries.
        let _still = self.free.lock();
        // In this order: an event that is left in the log comes to an inbox.
        let behind_from = self.settings.standstill.behind_from.load(Ordering::Acquire);
        let waiting = self.all_tasks().map(|(_, task)| task.oldest_position()).min();
        Some(waiting.unwrap_or(LogPosition::MAX).min(behind_from)).filter(|&lowest| lowest < LogPosition::MAX)
    }

    /// How a single query can use several workers, or why it cannot.
    pub fn cut(&self) -> &Cut {
        &self.settings.cut
    }

    /// The number of parts in which the query of a slot runs; 1 for one piece.
    pub fn parts_of(&self, slot: Slot) -> usize {
        let _still = self.free.lock();
        let task = self.place(slot).and_then(|place| self.task(place.task as usize));
        task.map_or(1, |task| task.parts())
    }

    /// Sets the workers of the further parts of one task; without any, the task runs in one piece. Does nothing in a
    /// group whose queries cannot be cut.
    pub fn cut_on(&self, task: &Task, workers: &[usize]) {
        task.cut_on(if self.is_movable() { workers } else { &[] });
    }

    /// The tasks, including empty ones.
    pub fn tasks(&self) -> impl Iterator<Item = &Arc<Task>> {
        self.tasks.iter().map(|(_, task)| task)
    }

    fn new_task(&self, free: &mut Vec<Slot>) -> usize {
        self.make_places(free);
        let task = Task::new(self.settings.clone(), self.new_slots(), (self.settings.make)(), self.pool.clone(), None);
        if let Some(label) = self.label.lock().take() {
            task.assign(self.pool.place_near(label));
        }
        self.tasks.push(task)
    }

    /// The next queries have this label. A group without tasks begins on the worker of other groups with that label,
    /// unless the worker is busy; of several labels the first counts.
    pub fn expect_label(&self, label: &str) {
        if !self.pool.policy.is_balanced() {
            return;
        }
        let label = self.pool.labels.hash(label);
        match self.tasks.get(0) {
            Some(task) => self.pool.labels.note(label, task.worker()),
            None => {
                self.label.lock().get_or_insert(label);
            }
        }
    }

    fn new_slots(&self) -> SlotTable {
        SlotTable::new(self.parameters.clone())
    }

    /// Gives each query a place, if there are queries without places.
    fn make_places(&self, free: &mut Vec<Slot>) {
        if let Some(first) = self.tasks.get(0)
            && self.places.get().is_none()
        {
            let core = first.lock();
            // A push looks up places under this lock.
            let _still = first.inbox().lock();
            let places = boxcar::Vec::new();
            for slot in 0..core.host.table().capacity() as Slot {
                let is_used = core.host.table().query(slot).is_some();
                places.push(AtomicU64::new(if is_used { Place { task: 0, slot }.pack() } else { Place::NOWHERE }));
                if !is_used {
                    free.push(slot);
                }
            }
            self.places.set(places).expect("places are made once, under the lock of the free slots");
        }
    }

    /// A task or the spilled task, by index.
    fn task(&self, index: usize) -> Option<&Arc<Task>> {
        if index == SPILLED {
            self.spilled_task.get().map(|spilled_task| &spilled_task.task)
        } else {
            self.tasks.get(index)
        }
    }

    /// Every task with its index, and the spilled task.
    fn all_tasks(&self) -> impl Iterator<Item = (usize, &Arc<Task>)> {
        self.tasks.iter().chain(self.spilled_task.get().map(|spilled_task| (SPILLED, &spilled_task.task)))
    }

    /// The place of a slot's query. The caller holds `free`, or the lock of the inbox at that place.
    fn place(&self, slot: Slot) -> Option<Place> {
        match self.places.get() {
            Some(places) => Place::unpack(places.get(slot as usize)?.load(Ordering::Acquire)),
            None => Some(Place { task: 0, slot }),
        }
    }

    /// Adds queries, one for each row of `parameters`, and returns their slots. From then on events may be routed to
    /// the slots. Waits for a running activation to end; the other queries are not affected.
    pub fn add(&self, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Slot> {
        self.add_new(&mut self.free.lock(), queries, parameters)
    }

    fn add_new(&self, free: &mut Vec<Slot>, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Slot> {
        let mut slots = Vec::with_capacity(queries.len());
        while slots.len() < queries.len() {
            let start = slots.len();
            let (index, room) = self.task_with_room(free);
            let rows = room.min(queries.len() - start);
            let task = &self.tasks[index];
            let inner = task.add(&mut task.lock(), &queries[start..start + rows], &parameters.slice(start, rows));
            slots.extend(inner.into_iter().map(|slot| self.outer_slot(free, Place { task: index as u32, slot })));
        }
        slots
    }

    /// The group's slot for a query that was added at a place.
    fn outer_slot(&self, free: &mut Vec<Slot>, place: Place) -> Slot {
        let Some(places) = self.places.get() else { return place.slot };
        match free.pop() {
            Some(slot) => {
                places[slot as usize].store(place.pack(), Ordering::Release);
                slot
            }
            None => Slot::try_from(places.push(AtomicU64::new(place.pack()))).expect("fewer than 2^32 slots"),
        }
    }

    /// The task for new queries, and how many it accepts.
    fn task_with_room(&self, free: &mut Vec<Slot>) -> (usize, usize) {
        let with_fewest = if self.task_queries_max == usize::MAX {
            // An empty task lost its queries because they were too few for two tasks; a task in parts is busy.
            let rank = |task: &Task| match task.queries() {
                0 => usize::MAX,
                _ if task.parts() > 1 => usize::MAX - 1,
                queries => queries,
            };
            self.tasks.iter().min_by_key(|(_, task)| rank(task)).map(|(index, task)| (index, task.queries()))
        } else {
            // Tasks are filled one after the other. There may be thousands, and only the last can have room.
            self.tasks.count().checked_sub(1).map(|last| (last, self.tasks[last].queries()))
        };
        match with_fewest {
            Some((index, queries)) if queries < self.task_queries_max => (index, self.task_queries_max - queries),
            _ => (self.new_task(free), self.task_queries_max),
        }
    }

    /// Removes all queries in these slots. Their routes must have been removed: no event is pushed to these slots any
    /// more.
    pub fn remove(&self, slots: &[Slot]) {
        let mut free = self.free.lock();
        let mut places: Vec<(Place, Slot)> =
            slots.iter().filter_map(|&slot| self.place(slot).map(|place| (place, slot))).collect();
        places.sort_unstable_by_key(|(place, _)| place.pack());
        for of_task in places.chunk_by(|(a, _), (b, _)| a.task == b.task) {
            let task = self.task(of_task[0].0.task as usize).expect("a place is in a task");
            let mut core = task.lock();
            if let Some(map) = self.places.get() {
                let _still = task.inbox().lock();
                of_task.iter().for_each(|&(_, slot)| map[slot as usize].store(Place::NOWHERE, Ordering::Release));
            }
            let rows: Vec<Slot> = of_task.iter().map(|(place, _)| place.slot).collect();
            if let Some(shared_slots) = &self.shared_slots {
                shared_slots.lock().forget(of_task.iter().map(|(_, slot)| *slot), core.host.table(), &rows);
            }
            task.remove(&mut core, &rows);
        }
        if self.places.get().is_some() {
            free.extend(places.into_iter().map(|(_, slot)| slot));
        }
    }

    /// Reads the parameters of queries: calls `read` for each of `slots` that has a query, in order, with its table and
    /// its row there. Of several queries in a slot it may be any.
    pub fn with_queries<T>(&self, slots: &[Slot], mut read: impl FnMut(&SlotTable, Slot) -> T) -> Vec<Option<T>> {
        let slots = slots.iter().map(|&slot| (slot, ()));
        self.read_slots(slots, |table, row, ()| table.query(row).map(|_| read(table, row)))
    }

    /// The same for given queries, each with its slot.
    pub fn with_each<T>(
        &self,
        queries: &[(Slot, QueryId)],
        mut read: impl FnMut(&SlotTable, Slot) -> T,
    ) -> Vec<Option<T>> {
        self.read_slots(queries.iter().copied(), |table, row, query| {
            table.find(row, query).map(|(table, row)| read(table, row))
        })
    }

    fn read_slots<Q: Copy, T>(
        &self,
        slots: impl Iterator<Item = (Slot, Q)>,
        mut read: impl FnMut(&SlotTable, Slot, Q) -> Option<T>,
    ) -> Vec<Option<T>> {
        let _still = self.free.lock();
        let places: Vec<(Option<Place>, Q)> = slots.map(|(slot, query)| (self.place(slot), query)).collect();
        let mut values = Vec::with_capacity(places.len());
        for of_task in places.chunk_by(|(a, _), (b, _)| a.map(|place| place.task) == b.map(|place| place.task)) {
            let core = of_task[0].0.and_then(|place| self.task(place.task as usize)).map(|task| task.peek());
            values
                .extend(of_task.iter().map(|(place, query)| read(core.as_ref()?.host.table(), (*place)?.slot, *query)));
        }
        values
    }

    /// Tells what is known of a query in a slot, for users who ask; `None` if it is not there. From now on its events
    /// are counted, until `for_us` after the last question and the next timer. Nothing is told of a query in parts,
    /// which would have to be joined for that. State of a spilled query stays on disk and is not told.
    pub fn examine(&self, slot: Slot, query: QueryId, for_us: i64) -> Option<Examined> {
        let _still = self.free.lock();
        let place = self.place(slot)?;
        self.task(place.task as usize)?.examine(place.slot, query, for_us)
    }

    /// The highest slot ever used, plus one.
    pub fn slots(&self) -> Slot {
        match self.places.get() {
            Some(places) => places.count() as Slot,
            None => self.tasks.get(0).map_or(0, |task| task.peek().host.table().capacity() as Slot),
        }
    }

    /// The query in a slot, if there is one.
    pub fn query(&self, slot: Slot) -> Option<QueryId> {
        let _still = self.free.lock();
        let place = self.place(slot)?;
        self.task(place.task as usize)?.peek().host.table().query(place.slot)
    }

    /// The selected state of every operator in all tasks; slots are those of the group. Empty for a group without
    /// tasks.
    pub fn export_state(&self, selection: &StateSelection) -> Result<Vec<Option<StateFrame>>, StateError> {
        let _still = self.free.lock();
        let mut merged: Vec<Option<StateFrame>> = Vec::new();
        for (index, task) in self.all_tasks() {
            let (inner, outer) = self.slots_by_place(index);
            let selection = match selection {
                StateSelection::Slots(slots) => StateSelection::Slots(
                    inner
                        .iter()
                        .zip(&outer)
                        .filter(|(_, outer)| slots.binary_search(outer).is_ok())
                        .map(|(inner, _)| *inner)
                        .collect(),
                ),
                other => other.clone(),
            };
            for (operator, frame) in task.lock().host.export_state(&selection)?.into_iter().enumerate() {
                let frame = frame.map(|frame| frame.with_slots(renumber(&inner, &outer))).transpose()?;
                if merged.len() <= operator {
                    merged.push(frame);
                    continue;
                }
                match (&mut merged[operator], frame) {
                    (Some(merged), Some(frame)) => merged.append(&frame)?,
                    (merged @ None, frame) => *merged = frame,
                    (Some(_), None) => {}
                }
            }
        }
        Ok(merged)
    }

    /// Imports state that was exported from a group of the same application, with the slots of this group.
    pub fn import_state(&self, frames: &[Option<StateFrame>]) -> Result<(), StateError> {
        let _still = self.free.lock();
        for (index, task) in self.all_tasks() {
            let (inner, mut outer) = self.slots_by_place(index);
            let mut by_outer: Vec<(Slot, Slot)> = outer.iter().copied().zip(inner).collect();
            by_outer.sort_unstable();
            outer = by_outer.iter().map(|(outer, _)| *outer).collect();
            let inner: Vec<Slot> = by_outer.into_iter().map(|(_, inner)| inner).collect();
            let own = StateSelection::Slots(outer.clone());
            let renumbered = frames
                .iter()
                .map(|frame| {
                    frame.as_ref().map(|frame| frame.select(&own)?.with_slots(renumber(&outer, &inner))).transpose()
                })
                .collect::<Result<Vec<_>, _>>()?;
            task.import_state(&mut task.lock(), &renumbered)?;
        }
        Ok(())
    }

    /// The slots of the queries in a task, ascending, and for each the slot in the group.
    fn slots_by_place(&self, task: usize) -> (Vec<Slot>, Vec<Slot>) {
        let Some(places) = self.places.get() else {
            let slots: Vec<Slot> = self.tasks[task].peek().host.table().slots().collect();
            return (slots.clone(), slots);
        };
        let mut slots: Vec<(Slot, Slot)> = places
            .iter()
            .filter_map(|(slot, place)| Some((Place::unpack(place.load(Ordering::Acquire))?, slot as Slot)))
            .filter(|(place, _)| place.task as usize == task)
            .map(|(place, slot)| (place.slot, slot))
            .collect();
        slots.sort_unstable();
        slots.into_iter().unzip()
    }

    /// Runs every task until nothing waits.
    pub fn run(&self) -> Activation {
        let mut rows = 0;
        if let Some(spilled_task) = self.spilled_task.get() {
            while matches!(spilled_task.task.run(Budget::ENDLESS), Activation::Yielded(_)) {}
        }
        for (_, task) in &self.tasks {
            match task.run_all_parts() {
                Activation::Ran(ran) | Activation::Yielded(ran) => rows += ran,
                Activation::Blocked => return Activation::Blocked,
            }
        }
        Activation::Ran(rows)
    }

    /// Ends the group's input: processes waiting events, closes open windows and hands their results to the sink.
    pub fn end(&self) {
        self.wake_all();
        self.run();
        self.tasks.iter().for_each(|(_, task)| task.end());
    }

    /// The counters of all tasks.
    pub fn metrics(&self) -> GroupMetrics {
        let mut metrics = GroupMetrics::default();
        self.all_tasks().for_each(|(_, task)| metrics.merge(&task.metrics()));
        metrics.refused[Reason::Removed as usize] += self.strays.load(Ordering::Relaxed);
        metrics.refused[Reason::Overflow as usize] += self.settings.standstill.given_up.load(Ordering::Relaxed);
        metrics
    }

    /// The numbers of waiting events and payload bytes.
    pub fn waiting(&self) -> (usize, usize) {
        self.all_tasks().map(|(_, task)| task.waiting()).fold((0, 0), |sum, task| (sum.0 + task.0, sum.1 + task.1))
    }

    /// The number of waiting events that are in no log: they end with the process.
    pub fn unlogged(&self) -> usize {
        self.all_tasks().map(|(_, task)| task.inbox().lock().unlogged()).sum()
    }

    /// The number of slots in use. Equal queries may share one.
    pub fn queries(&self) -> usize {
        self.all_tasks().map(|(_, task)| task.queries()).sum()
    }

    /// Memory held by parameters, state and waiting events, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.places.get().map_or(0, |places| places.count() * 8)
            + self.spilled_task.get().map_or(0, SpilledTask::memory_bytes)
            + self.shared_slots.as_ref().map_or(0, |shared_slots| shared_slots.lock().memory_bytes())
            + self.all_tasks().map(|(_, task)| task.memory_bytes()).sum::<usize>()
    }
}

impl Group {
    /// Copies in one event of one of the application's inputs; see [`Inbox::push`]. The events of all inputs wait in
    /// one inbox, which keeps their order.
    #[inline]
    pub fn push_from(&self, input: InputIndex, slot: Slot, arrival_us: i64, topic: &[u8], payload: &[u8]) -> Push {
        match self.settings.rest.has_closed_intake() {
            true => Push::Full,
            false => self.push_event(Event { input, slot, arrival_us, position: 0, topic, payload }, false),
        }
    }

    /// The same for an event with all its fields; with `must_fit` the event is accepted even if the inbox is full.
    #[inline]
    pub fn push_event(&self, mut event: Event<'_>, must_fit: bool) -> Push {
        let slot = event.slot;
        if !self.keeps_topics(event.input) {
            event.topic = b"";
        }
        loop {
            let places = self.places.get();
            let place = self.place(slot);
            let Some((place, task)) = place.and_then(|place| Some((place, self.task(place.task as usize)?))) else {
                self.strays.fetch_add(1, Ordering::Relaxed);
                return Push::Taken;
            };
            let queue = task.inbox().lock();
            // While this thread waited for the inbox, the query may have been moved, or have been given its first
            // place.
            let is_still = match places {
                None => self.places.get().is_none(),
                Some(_) => self.place(slot) == Some(place),
            };
            if self.settings.rest.is_quiesced() && !must_fit {
                return Push::Full;
            }
            if is_still {
                return task.push(queue, Event { slot: place.slot, ..event }, must_fit);
            }
        }
    }

    /// Whether events of an input wait with their topics.
    #[inline]
    fn keeps_topics(&self, input: InputIndex) -> bool {
        self.topic_inputs.checked_shr(input.into()).is_some_and(|bits| bits & 1 == 1)
    }

    fn push_logged_from(&self, input: InputIndex, event: LoggedEvent<'_>, must_fit: bool) -> Push {
        let LoggedEvent { slot, arrival_us, position, topic, payload } = event;
        if position != 0 && self.settings.standstill.is_behind() {
            return Push::Taken;
        }
        if self.settings.rest.has_closed_intake() && !must_fit {
            return Push::Full;
        }
        self.push_event(Event { input, slot, arrival_us, position, topic, payload }, must_fit)
    }

    /// Whether an event of an input finds room, or need not: it is left in the log, or gives way.
    fn has_room_for(&self, input: InputIndex, slot: Slot, payload_bytes: usize) -> bool {
        let (is_left, gives_way) = (self.is_behind(), self.settings.standstill.drops(input));
        if self.settings.rest.has_closed_intake() {
            return is_left && !gives_way;
        }
        if is_left || gives_way {
            return true;
        }
        let task = self.place(slot).and_then(|place| self.task(place.task as usize));
        task.is_none_or(|task| task.inbox().has_room(&task.inbox().lock(), payload_bytes))
    }
}

impl Upstream for Group {
    fn oldest_us(&self) -> i64 {
        self.tasks.iter().map(|(_, task)| task.oldest_us()).min().unwrap_or(i64::MAX)
    }
}

impl Inbox for Group {
    #[inline]
    fn push(&self, slot: Slot, arrival_us: i64, payload: &[u8]) -> Push {
        self.push_from(0, slot, arrival_us, b"", payload)
    }

    #[inline]
    fn push_message(&self, slot: Slot, arrival_us: i64, topic: &[u8], payload: &[u8]) -> Push {
        self.push_from(0, slot, arrival_us, topic, payload)
    }

    fn has_room(&self, slot: Slot, payload_bytes: usize) -> bool {
        self.has_room_for(0, slot, payload_bytes)
    }

    fn push_logged(&self, event: LoggedEvent<'_>, must_fit: bool) -> Push {
        self.push_logged_from(0, event, must_fit)
    }
}

/// The inbox of a group for one of the further inputs of its application.
pub struct GroupInput {
    group: Arc<Group>,
    input: InputIndex,
}

impl GroupInput {
    /// The inbox of `group` for events of `input`.
    pub fn new(group: Arc<Group>, input: InputIndex) -> Self {
        Self { group, input }
    }
}

impl Inbox for GroupInput {
    #[inline]
    fn push(&self, slot: Slot, arrival_us: i64, payload: &[u8]) -> Push {
        self.group.push_from(self.input, slot, arrival_us, b"", payload)
    }

    #[inline]
    fn push_message(&self, slot: Slot, arrival_us: i64, topic: &[u8], payload: &[u8]) -> Push {
        self.group.push_from(self.input, slot, arrival_us, topic, payload)
    }

    fn has_room(&self, slot: Slot, payload_bytes: usize) -> bool {
        self.group.has_room_for(self.input, slot, payload_bytes)
    }

    fn push_logged(&self, event: LoggedEvent<'_>, must_fit: bool) -> Push {
        self.group.push_logged_from(self.input, event, must_fit)
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} '{}')", self.id, self.name())
    }
}
