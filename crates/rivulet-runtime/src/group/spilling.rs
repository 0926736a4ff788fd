//! Moves silent queries to the spilled task of their group, and back on their next event. See [`crate::spill`].

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rivulet_dataflow::{Chain, QueryId, Slot, SlotHost, StateError, StateSelection};

use super::Group;
use super::place::SPILLED;
use super::spilled_task::SpilledTask;
use crate::spill::SpillStatus;
use crate::spill::alarms::Alarms;
use crate::spill::file::SpillFile;
use crate::task::{TICK_GRACE_US, Wake};
use crate::{Activation, Task};

/// How many queries are spilled at a time, and how many come back in one activation. The task concerned does not run
/// meanwhile, for a few milliseconds.
const SPILLED_AT_ONCE: usize = 512;

/// How many slots are swept while a task is locked, which takes well below a millisecond.
const SWEPT_AT_ONCE: Slot = 32_768;

impl Group {
    /// One sweep: every query ages by one sweep. Queries move to the spilled task if `sweeps` sweeps have passed since
    /// their last event and nothing is due within `horizon_us`. Returns their number. Does nothing in a group whose
    /// host has no file to spill to, whose operators have no state, or whose tasks have a fixed number of queries.
    ///
    /// # Errors
    /// A disk that is full or fails. The queries concerned stay in memory, and the failure is counted.
    pub fn spill_silent(self: &Arc<Self>, sweeps: u8, horizon_us: i64) -> Result<usize, StateError> {
        let Some(spill) = self.pool.spill.get().filter(|_| self.is_movable()) else { return Ok(0) };
        let until_us = self.pool.clock.now_us().saturating_add(horizon_us);
        let mut spilled = 0;
        for index in 0..self.tasks.count() {
            let silent = self.silent_of(index, sweeps, until_us)?;
            if silent.is_empty() {
                continue;
            }
            self.make_spilled_task(&spill.file)?;
            let (inner, outer) = self.slots_by_place(index);
            let outer_of = |slot| inner.binary_search(&slot).ok().map(|place| outer[place]);
            let slots: Vec<Slot> = silent.into_iter().filter_map(outer_of).collect();
            let spilled_task = self.spilled_task.get().expect("the spilled task was made");
            for slots in slots.chunks(SPILLED_AT_ONCE) {
                let is_silent = |host: &SlotHost, slot| host.is_silent(slot, sweeps, until_us);
                let moved = self.move_queries(slots, index, SPILLED, is_silent).inspect_err(|_| {
                    spilled_task.failures.fetch_add(1, Ordering::Relaxed);
                })?;
                spilled_task.spilled.fetch_add(moved as u64, Ordering::Relaxed);
                spilled += moved;
            }
            if !slots.is_empty() {
                self.compact(index)?;
            }
        }
        Ok(spilled)
    }

    /// The slots of the silent queries in a task. The task is locked several times, each for a short time.
    fn silent_of(&self, index: usize, sweeps: u8, until_us: i64) -> Result<Vec<Slot>, StateError> {
        let task = &self.tasks[index];
        if task.parts() > 1 {
            // A task in parts is busy, so none of its queries is spilled.
            return Ok(Vec::new());
        }
        let slots = {
            let mut core = task.lock();
            core.host.age();
            if !core.host.is_stateful()? {
                return Ok(Vec::new());
            }
            core.host.table().capacity() as Slot
        };
        let ranges = (0..slots).step_by(SWEPT_AT_ONCE as usize).map(|first| first..slots.min(first + SWEPT_AT_ONCE));
        let mut silent: Vec<Slot> = ranges.flat_map(|range| task.lock().host.silent(range, sweeps, until_us)).collect();
        // Waiting events would bring these queries back at once.
        let waiting: HashSet<Slot> = match silent.is_empty() {
            true => HashSet::new(),
            false => task.inbox().lock().slots().collect(),
        };
        silent.retain(|slot| !waiting.contains(slot));
        Ok(silent)
    }

    fn make_spilled_task(self: &Arc<Self>, file: &Arc<SpillFile>) -> Result<(), StateError> {
        let mut free = self.free.lock();
        if self.spilled_task.get().is_some() {
            return Ok(());
        }
        let mut parts = (self.settings.make)();
        let operators = parts.chain.export_state(&StateSelection::Slots(Vec::new()))?.len();
        let addresses = parts.chain.addresses().to_vec();
        let alarms = Arc::default();
        parts.chain = SpilledTask::chain(file, operators, &addresses, &alarms);
        let group = Arc::downgrade(self);
        let wake: Wake = Box::new(move || Some(group.upgrade()?.wake()));
        let task = Task::new(self.settings.clone(), self.new_slots(), parts, self.pool.clone(), Some(wake));
        let spilled_task = SpilledTask {
            task,
            alarms,
            file: file.clone(),
            operators,
            addresses,
            spilled: AtomicU64::new(0),
            woken: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        // Code that finds a spilled task looks up places.
        self.make_places(&mut free);
        // Set with the free slots locked, so no other thread has set it.
        let _ = self.spilled_task.set(spilled_task);
        Ok(())
    }

    /// A chain without state, for a task that has become empty.
    pub(super) fn new_chain(&self, index: usize) -> Chain {
        match self.spilled_task.get().filter(|_| index == SPILLED) {
            Some(spilled_task) => {
                *spilled_task.alarms.lock() = Alarms::default();
                let SpilledTask { file, operators, addresses, alarms, .. } = spilled_task;
                SpilledTask::chain(file, *operators, addresses, alarms)
            }
            None => (self.settings.make)().chain,
        }
    }

    /// The activation of the spilled task: brings back queries with waiting events or a due timer.
    fn wake(&self) -> Activation {
        let Some(spilled_task) = self.spilled_task.get() else { return Activation::Ran(0) };
        let now_us = self.pool.clock.now_us() - TICK_GRACE_US;
        let mut slots = {
            let mut core = spilled_task.task.lock();
            let mut queue = spilled_task.task.inbox().lock();
            if core.host.table().has_retired() {
                // Events of removed queries; no more are pushed.
                let strays = queue.retain_slots(|slot| core.host.table().query(slot).is_some());
                core.count_removed(strays as u64);
                core.host.recycle();
            }
            let mut slots: Vec<Slot> = queue.slots().collect();
            drop(queue);
            let mut alarms = spilled_task.alarms.lock();
            slots.extend(alarms.due(now_us));
            slots.sort_unstable();
            slots.dedup();
            let outer: Vec<Slot> = slots.iter().filter_map(|&slot| alarms.outer(slot)).collect();
            drop(alarms);
            // The earliest timer may have belonged to a query that has left.
            spilled_task.task.note_deadline(&core);
            outer
        };
        let is_all = slots.len() <= SPILLED_AT_ONCE;
        slots.truncate(SPILLED_AT_ONCE);
        self.bring_back(spilled_task, &slots);
        if is_all { Activation::Ran(0) } else { Activation::Yielded(0) }
    }

    /// Brings back all queries.
    pub(super) fn wake_all(&self) {
        if let Some(spilled_task) = self.spilled_task.get() {
            let slots = self.slots_by_place(SPILLED).1;
            slots.chunks(SPILLED_AT_ONCE).for_each(|slots| self.bring_back(spilled_task, slots));
        }
    }

    pub(super) fn bring_back(&self, spilled_task: &SpilledTask, slots: &[Slot]) {
        if slots.is_empty() {
            return;
        }
        let to = self.task_with_room(&mut self.free.lock()).0;
        let woken = self.move_queries(slots, SPILLED, to, |_, _| true).unwrap_or_else(|_| {
            // Some of the state cannot be read: the queries come back one by one, so that the others keep theirs.
            slots.iter().map(|&slot| self.bring_back_one(spilled_task, slot, to)).sum()
        });
        spilled_task.woken.fetch_add(woken as u64, Ordering::Relaxed);
    }

    fn bring_back_one(&self, spilled_task: &SpilledTask, slot: Slot, to: usize) -> usize {
        self.move_queries(&[slot], SPILLED, to, |_, _| true).unwrap_or_else(|error| {
            let Some(query) = self.forget_state(spilled_task, slot) else { return 0 };
            spilled_task.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!(application = self.name(), query, "a query starts anew, for its state is lost: {error}");
            // Without state, nothing is left that could fail.
            self.move_queries(&[slot], SPILLED, to, |_, _| true).unwrap_or(0)
        })
    }

    /// Drops the state of a query in the spilled task, and returns the query; `None` if it is not there any more.
    fn forget_state(&self, spilled_task: &SpilledTask, slot: Slot) -> Option<QueryId> {
        // Locked, so that no query is removed or moved: its slot in the spilled task could become that of another.
        let _still = self.free.lock();
        let place = self.place(slot).filter(|place| place.task as usize == SPILLED)?;
        let mut core = spilled_task.task.lock();
        let query = core.host.table().query(place.slot)?;
        spilled_task.task.begin_anew(&mut core, &[place.slot]);
        Some(query)
    }

    /// The number of spilled queries, and counts of what became of others.
    pub fn spill_status(&self) -> SpillStatus {
        self.spilled_task.get().map_or_else(SpillStatus::default, |spilled_task| SpillStatus {
            queries: spilled_task.task.queries() as u64,
            spilled: spilled_task.spilled.load(Ordering::Relaxed),
            woken: spilled_task.woken.load(Ordering::Relaxed),
            failures: spilled_task.failures.load(Ordering::Relaxed),
            lost: spilled_task.lost.load(Ordering::Relaxed),
        })
    }
}
