//! A group: the queries of one application that run together, as one dataflow over a table of slots.
//!
//! A group has one task until load makes it worth more: then queries are moved to a second one, with their state and their
//! waiting events. The sources notice nothing, for a slot of the group stays what it is; where its query runs is its
//! *place*, and every push looks there. As long as there never was a second task a query's place is its slot, and nobody
//! has to look.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use rivulet_dataflow::{Clock, Inbox, Push, QueryId, Reason, Slot, SlotTable, StateError, StateFrame, StateSelection};

use crate::host::Host;
use crate::task::{Core, TaskSettings};
use crate::{Activation, GroupMetrics, InboxLimits, Task, TaskParts};

/// How many queries are moved between two tasks at once. The two do not run meanwhile.
const MOVED_AT_ONCE: usize = 8_192;

/// A group's number, unique in the process.
pub type GroupId = u32;

/// What a group is made of.
pub struct GroupParts {
    /// The application's name, for people.
    pub name: String,
    /// The names and types of the application's parameters.
    pub parameters: SchemaRef,
    /// Makes an instance of the application's dataflow; called for each task.
    pub make: Box<dyn Fn() -> TaskParts + Send + Sync>,
    /// The bounds of the inbox of each task.
    pub limits: InboxLimits,
    /// The index of the event-time column, if the input has one.
    pub event_time_column: Option<usize>,
    /// The most queries of one task, for comparison with engines that do not group; `None` for no bound.
    pub task_queries_max: Option<usize>,
    /// The most events of one batch, for comparison with engines that do not batch; `None` for the usual bound.
    pub batch_rows_max: Option<usize>,
}

/// The queries of one application that run together.
pub struct Group {
    id: GroupId,
    settings: Arc<TaskSettings>,
    parameters: SchemaRef,
    make: Box<dyn Fn() -> TaskParts + Send + Sync>,
    task_queries_max: usize,
    host: Arc<Host>,
    /// Never shrinks: a task whose queries went back to another one stays for the next split.
    tasks: boxcar::Vec<Arc<Task>>,
    /// Where the query of each slot is, once there are several tasks; before, it is in the same slot of the first. Made, and
    /// changed, only under the locks of the inboxes concerned.
    places: OnceLock<boxcar::Vec<AtomicU64>>,
    /// Slots without a query, of those in `places`. Held by whoever changes which queries there are and where.
    free: Mutex<Vec<Slot>>,
    /// Events that came for a query that was gone already.
    strays: AtomicU64,
}

/// Where a query is: a task, and its slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    task: u32,
    slot: Slot,
}

impl Place {
    /// Of a slot that has no query.
    const NOWHERE: u64 = u64::MAX;

    fn pack(self) -> u64 {
        u64::from(self.task) << 32 | u64::from(self.slot)
    }

    fn unpack(place: u64) -> Option<Self> {
        (place != Self::NOWHERE).then_some(Self { task: (place >> 32) as u32, slot: place as u32 })
    }
}

impl Group {
    pub(crate) fn new(id: GroupId, parts: GroupParts, host: Arc<Host>) -> Arc<Self> {
        let settings = Arc::new(TaskSettings {
            name: parts.name,
            limits: parts.limits,
            batch_rows_max: parts.batch_rows_max,
            event_time_column: parts.event_time_column,
        });
        Arc::new(Self {
            id,
            settings,
            parameters: parts.parameters,
            make: parts.make,
            task_queries_max: parts.task_queries_max.unwrap_or(usize::MAX).max(1),
            host,
            tasks: boxcar::Vec::new(),
            places: OnceLock::new(),
            free: Mutex::default(),
            strays: AtomicU64::new(0),
        })
    }

    /// A group that no worker runs: whoever has it calls [`Group::run`].
    pub fn by_hand(parts: GroupParts, clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::new(0, parts, Arc::new(Host::by_hand(clock)))
    }

    /// The group's number.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The application's name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Whether queries may move between tasks; not where the number of queries of a task is given.
    pub(crate) fn is_movable(&self) -> bool {
        self.task_queries_max == usize::MAX
    }

    /// The tasks, those without queries included.
    pub fn tasks(&self) -> impl Iterator<Item = &Arc<Task>> {
        self.tasks.iter().map(|(_, task)| task)
    }

    fn new_task(&self, free: &mut Vec<Slot>) -> usize {
        if let Some(first) = self.tasks.get(0)
            && self.places.get().is_none()
        {
            let core = first.lock();
            // Whoever pushes looks for places under this lock.
            let _still = first.inbox().lock();
            let places = boxcar::Vec::new();
            for slot in 0..core.slots.capacity() as Slot {
                let is_used = core.slots.query(slot).is_some();
                places.push(AtomicU64::new(if is_used { Place { task: 0, slot }.pack() } else { Place::NOWHERE }));
                if !is_used {
                    free.push(slot);
                }
            }
            self.places.set(places).expect("places are made once, under the lock of the free slots");
        }
        let slots = SlotTable::new(self.parameters.clone());
        self.tasks.push(Task::new(self.settings.clone(), slots, (self.make)(), self.host.clone()))
    }

    /// Where the query of a slot is. The caller holds `free`, or the lock of the inbox where it turns out to be.
    fn place(&self, slot: Slot) -> Option<Place> {
        match self.places.get() {
            Some(places) => Place::unpack(places.get(slot as usize)?.load(Ordering::Acquire)),
            None => Some(Place { task: 0, slot }),
        }
    }

    /// Adds queries, one for each row of `parameters`, and returns their slots. Events may be routed to the slots from
    /// then on. Waits for a running activation to end; the other queries notice nothing.
    pub fn add(&self, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Slot> {
        let mut free = self.free.lock();
        let mut slots = Vec::with_capacity(queries.len());
        while slots.len() < queries.len() {
            let start = slots.len();
            let (index, room) = self.task_with_room(&mut free);
            let rows = room.min(queries.len() - start);
            let task = &self.tasks[index];
            let inner = task.add(&mut task.lock(), &queries[start..start + rows], &parameters.slice(start, rows));
            let Some(places) = self.places.get() else {
                slots.extend(inner);
                continue;
            };
            slots.extend(inner.into_iter().map(|slot| {
                let place = Place { task: index as u32, slot }.pack();
                match free.pop() {
                    Some(slot) => {
                        places[slot as usize].store(place, Ordering::Release);
                        slot
                    }
                    None => Slot::try_from(places.push(AtomicU64::new(place))).expect("fewer than 2^32 slots"),
                }
            }));
        }
        slots
    }

    /// The task for new queries, and how many it takes.
    fn task_with_room(&self, free: &mut Vec<Slot>) -> (usize, usize) {
        let with_fewest = if self.task_queries_max == usize::MAX {
            // One without queries had them taken away because they were too few for two tasks.
            let rank = |queries: usize| if queries == 0 { usize::MAX } else { queries };
            self.tasks.iter().min_by_key(|(_, task)| rank(task.queries())).map(|(index, task)| (index, task.queries()))
        } else {
            // Tasks are filled one after the other; with thousands of them the last is the only one worth a look.
            self.tasks.count().checked_sub(1).map(|last| (last, self.tasks[last].queries()))
        };
        match with_fewest {
            Some((index, queries)) if queries < self.task_queries_max => (index, self.task_queries_max - queries),
            _ => (self.new_task(free), self.task_queries_max),
        }
    }

    /// Removes queries. Their routes must be gone already: nothing pushes events for these slots any more.
    pub fn remove(&self, slots: &[Slot]) {
        let mut free = self.free.lock();
        let mut places: Vec<(Place, Slot)> =
            slots.iter().filter_map(|&slot| self.place(slot).map(|place| (place, slot))).collect();
        places.sort_unstable_by_key(|(place, _)| place.pack());
        for of_task in places.chunk_by(|(a, _), (b, _)| a.task == b.task) {
            let task = &self.tasks[of_task[0].0.task as usize];
            let mut core = task.lock();
            if let Some(map) = self.places.get() {
                let _still = task.inbox().lock();
                of_task.iter().for_each(|&(_, slot)| map[slot as usize].store(Place::NOWHERE, Ordering::Release));
            }
            task.remove(&mut core, &of_task.iter().map(|(place, _)| place.slot).collect::<Vec<_>>());
        }
        if self.places.get().is_some() {
            free.extend(places.into_iter().map(|(_, slot)| slot));
        }
    }

    /// Reads the parameters of queries: calls `read` for each of `slots` in which there is a query, in order, with the table
    /// where it is and its row there.
    pub fn with_queries<T>(&self, slots: &[Slot], mut read: impl FnMut(&SlotTable, Slot) -> T) -> Vec<Option<T>> {
        let _still = self.free.lock();
        let places: Vec<Option<Place>> = slots.iter().map(|&slot| self.place(slot)).collect();
        let mut values = Vec::with_capacity(places.len());
        for of_task in places.chunk_by(|a, b| a.map(|place| place.task) == b.map(|place| place.task)) {
            let core = of_task[0].and_then(|place| self.tasks.get(place.task as usize)).map(|task| task.lock());
            values.extend(of_task.iter().map(|place| {
                let (table, row) = (&core.as_ref()?.slots, (*place)?.slot);
                table.query(row).map(|_| read(table, row))
            }));
        }
        values
    }

    /// One more than the highest slot ever used.
    pub fn slots(&self) -> Slot {
        match self.places.get() {
            Some(places) => places.count() as Slot,
            None => self.tasks.get(0).map_or(0, |task| task.lock().slots.capacity() as Slot),
        }
    }

    /// The query in a slot, if there is one.
    pub fn query(&self, slot: Slot) -> Option<QueryId> {
        let _still = self.free.lock();
        let place = self.place(slot)?;
        self.tasks.get(place.task as usize)?.lock().slots.query(place.slot)
    }

    /// The selected state of every operator, wherever it is; slots are those of the group. Empty for a group without tasks.
    pub fn export_state(&self, selection: &StateSelection) -> Result<Vec<Option<StateFrame>>, StateError> {
        let _still = self.free.lock();
        let mut merged: Vec<Option<StateFrame>> = Vec::new();
        for (index, task) in &self.tasks {
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
            for (operator, frame) in task.lock().export_state(&selection)?.into_iter().enumerate() {
                let frame = frame.map(|frame| frame.with_slots(renumber(&inner, &outer))).transpose()?;
                if merged.len() <= operator {
                    merged.push(frame);
                } else if let (Some(merged), Some(frame)) = (&mut merged[operator], frame) {
                    merged.append(&frame)?;
                }
            }
        }
        Ok(merged)
    }

    /// Takes over state that was exported from a group of the same application; slots as in this group.
    pub fn import_state(&self, frames: &[Option<StateFrame>]) -> Result<(), StateError> {
        let _still = self.free.lock();
        for (index, task) in &self.tasks {
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

    /// The slots of the queries in a task, ascending, and beside each the query's slot in the group.
    fn slots_by_place(&self, task: usize) -> (Vec<Slot>, Vec<Slot>) {
        let Some(places) = self.places.get() else {
            let slots: Vec<Slot> = self.tasks[task].lock().slots.slots().collect();
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

    /// Moves half of the queries of a task to another one, which is new or has none, and returns that.
    ///
    /// No event is lost, doubled or reordered within a query. Sources wait for less than the time of one batch.
    pub fn split(&self, task: &Arc<Task>) -> Result<Arc<Task>, StateError> {
        let from = self.index_of(task);
        let other = self.tasks.iter().find(|(index, other)| *index != from && other.queries() == 0);
        let to = other.map_or_else(|| self.new_task(&mut self.free.lock()), |(index, _)| index);
        let slots: Vec<Slot> = self.slots_by_place(from).1.into_iter().step_by(2).collect();
        self.move_all(&slots, from, to)?;
        Ok(self.tasks[to].clone())
    }

    /// Moves all queries of `task` to `into`.
    pub fn merge(&self, task: &Arc<Task>, into: &Arc<Task>) -> Result<(), StateError> {
        let (from, to) = (self.index_of(task), self.index_of(into));
        self.move_all(&self.slots_by_place(from).1, from, to)
    }

    fn index_of(&self, task: &Arc<Task>) -> usize {
        self.tasks.iter().find(|(_, own)| Arc::ptr_eq(own, task)).expect("the task belongs to this group").0
    }

    fn move_all(&self, slots: &[Slot], from: usize, to: usize) -> Result<(), StateError> {
        slots.chunks(MOVED_AT_ONCE).try_for_each(|slots| self.move_queries(slots, from, to))
    }

    /// Moves queries, their state and their waiting events from one task to another.
    fn move_queries(&self, slots: &[Slot], from: usize, to: usize) -> Result<(), StateError> {
        let _still = self.free.lock();
        let (source, target) = (&self.tasks[from], &self.tasks[to]);
        let places = self.places.get().expect("there are several tasks");
        // In order of index, as everybody who locks two.
        let (mut source_core, mut target_core) = if from < to {
            let source_core = source.lock();
            (source_core, target.lock())
        } else {
            let target_core = target.lock();
            (source.lock(), target_core)
        };
        // Some may have been removed meanwhile.
        let mut moved: Vec<(Slot, Slot)> = slots
            .iter()
            .filter_map(|&slot| {
                self.place(slot).filter(|place| place.task as usize == from).map(|place| (slot, place.slot))
            })
            .collect();
        moved.sort_unstable_by_key(|(_, old)| *old);
        let old: Vec<Slot> = moved.iter().map(|(_, old)| *old).collect();
        let new = copy(&source_core, &mut target_core, target, &old)?;
        let (mut source_queue, mut target_queue) = if from < to {
            let source_queue = source.inbox().lock();
            (source_queue, target.inbox().lock())
        } else {
            let target_queue = target.inbox().lock();
            (source.inbox().lock(), target_queue)
        };
        source_queue.move_events(&mut target_queue, target.inbox().chunk_rows(), renumber(&old, &new));
        for (&(slot, _), &inner) in moved.iter().zip(&new) {
            places[slot as usize].store(Place { task: to as u32, slot: inner }.pack(), Ordering::Release);
        }
        let has_events = target_queue.waiting().0 > 0;
        drop((source_queue, target_queue));

        let had_retired = source_core.has_retired();
        source.remove(&mut source_core, &old);
        if !had_retired {
            // Their events went with them.
            source_core.recycle();
        }
        drop((source_core, target_core));
        if has_events {
            target.schedule();
        }
        Ok(())
    }

    /// Runs every task until nothing waits.
    pub fn run(&self) -> Activation {
        let mut rows = 0;
        for (_, task) in &self.tasks {
            match task.run(Duration::MAX) {
                Activation::Ran(ran) | Activation::Yielded(ran) => rows += ran,
                Activation::Blocked => return Activation::Blocked,
            }
        }
        Activation::Ran(rows)
    }

    /// Ends the group's input: processes what waits, closes what is open and hands it to the sink.
    pub fn end(&self) {
        self.run();
        self.tasks.iter().for_each(|(_, task)| task.end());
    }

    /// The counters of all tasks.
    pub fn metrics(&self) -> GroupMetrics {
        let mut metrics = GroupMetrics::default();
        self.tasks.iter().for_each(|(_, task)| metrics.merge(&task.metrics()));
        metrics.refused[Reason::Removed as usize] += self.strays.load(Ordering::Relaxed);
        metrics
    }

    /// Events and payload bytes waiting.
    pub fn waiting(&self) -> (usize, usize) {
        self.tasks.iter().map(|(_, task)| task.waiting()).fold((0, 0), |sum, task| (sum.0 + task.0, sum.1 + task.1))
    }

    /// The number of queries.
    pub fn queries(&self) -> usize {
        self.tasks.iter().map(|(_, task)| task.queries()).sum()
    }

    /// Memory held by parameters, state and waiting events, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.places.get().map_or(0, |places| places.count() * 8)
            + self.tasks.iter().map(|(_, task)| task.memory_bytes()).sum::<usize>()
    }
}

/// From `old` slots, ascending, to the `new` ones beside them.
fn renumber(old: &[Slot], new: &[Slot]) -> impl Fn(Slot) -> Option<Slot> {
    |slot| old.binary_search(&slot).ok().map(|row| new[row])
}

/// Copies queries with their parameters and state into another task, and returns their slots there.
fn copy(source: &Core, target_core: &mut Core, target: &Task, slots: &[Slot]) -> Result<Vec<Slot>, StateError> {
    let queries: Vec<QueryId> =
        slots.iter().map(|&slot| source.slots.query(slot).expect("a place holds a query")).collect();
    let frames = source.export_state(&StateSelection::Slots(slots.to_vec()))?;
    let new = target.add(target_core, &queries, &source.slots.parameters(slots));
    let taken = frames
        .into_iter()
        .map(|frame| frame.map(|frame| frame.with_slots(renumber(slots, &new))).transpose())
        .collect::<Result<Vec<_>, _>>()
        .and_then(|renumbered| target.import_state(target_core, &renumbered));
    if let Err(error) = taken {
        // The queries stay where they were.
        target.remove(target_core, &new);
        return Err(error);
    }
    Ok(new)
}

impl Inbox for Group {
    #[inline]
    fn push(&self, slot: Slot, arrival_us: i64, payload: &[u8]) -> Push {
        loop {
            let places = self.places.get();
            let place = self.place(slot);
            let Some((place, task)) = place.and_then(|place| Some((place, self.tasks.get(place.task as usize)?)))
            else {
                self.strays.fetch_add(1, Ordering::Relaxed);
                return Push::Taken;
            };
            let queue = task.inbox().lock();
            // While this thread waited for the inbox the query may have been moved, if only by giving it a place.
            let is_still = match places {
                None => self.places.get().is_none(),
                Some(_) => self.place(slot) == Some(place),
            };
            if is_still {
                return task.push(queue, place.slot, arrival_us, payload);
            }
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} '{}')", self.id, self.name())
    }
}
