//! Moves queries between the tasks of a group: split, merge, and to the spilled task and back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_dataflow::slot_host::renumber;
use rivulet_dataflow::{Slot, SlotHost, StateError};

use super::Group;
use super::place::{Place, SPILLED};
use crate::Task;
use crate::scheduler::Runnable;
use crate::spill::alarms::NEVER;

/// How many queries are moved between two tasks at a time. Neither task runs meanwhile.
pub(super) const MOVED_AT_ONCE: usize = 8_192;

/// A task with at least this many slots that is mostly empty is replaced by a small one.
const COMPACTED_SLOTS_MIN: usize = 1_024;

impl Group {
    /// Moves half of the queries of a task to another task, which is new or empty, and returns that task.
    ///
    /// No event is lost, doubled or reordered within a query. Sources wait for less than the time of one batch.
    pub fn split(&self, task: &Arc<Task>) -> Result<Arc<Task>, StateError> {
        let from = self.index_of(task);
        let to = self.empty_task(from);
        let slots: Vec<Slot> = self.slots_by_place(from).1.into_iter().step_by(2).collect();
        self.move_all(&slots, from, to)?;
        Ok(self.tasks[to].clone())
    }

    /// Moves the busiest query of a task to a task of its own on the same worker, and returns that task; the task
    /// itself if it has no other query. `None` if no query stands out any more.
    pub(crate) fn isolate(&self, task: &Arc<Task>) -> Result<Option<Arc<Task>>, StateError> {
        if task.queries() == 1 {
            return Ok(Some(task.clone()));
        }
        let Some(hottest) = task.hottest() else { return Ok(None) };
        let from = self.index_of(task);
        let (inner, outer) = self.slots_by_place(from);
        let Ok(place) = inner.binary_search(&hottest) else { return Ok(None) };
        let to = self.empty_task(from);
        let alone = &self.tasks[to];
        alone.assign(task.worker());
        self.move_all(&[outer[place]], from, to)?;
        Ok((alone.queries() == 1).then(|| alone.clone()))
    }

    /// Moves all queries of `task` to `into`.
    pub fn merge(&self, task: &Arc<Task>, into: &Arc<Task>) -> Result<(), StateError> {
        let (from, to) = (self.index_of(task), self.index_of(into));
        self.move_all(&self.slots_by_place(from).1, from, to)
    }

    /// Moves the queries of a mostly empty task to a task that is just large enough. Slot tables do not shrink by
    /// themselves.
    pub(super) fn compact(&self, from: usize) -> Result<(), StateError> {
        let task = &self.tasks[from];
        let (live, capacity) = {
            let core = task.lock();
            (core.host.table().live(), core.host.table().capacity())
        };
        if live == 0 || capacity < COMPACTED_SLOTS_MIN || live * 4 > capacity {
            return Ok(());
        }
        let to = self.empty_task(from);
        let other = &self.tasks[to];
        other.assign(task.worker());
        let load = task.load.lock().load();
        self.move_all(&self.slots_by_place(from).1, from, to)?;
        other.load.lock().moved(other.seen(), load);
        Ok(())
    }

    /// A task without queries, other than `besides`.
    fn empty_task(&self, besides: usize) -> usize {
        let found = self.tasks.iter().find(|(index, other)| *index != besides && other.queries() == 0);
        found.map_or_else(|| self.new_task(&mut self.free.lock()), |(index, _)| index)
    }

    fn index_of(&self, task: &Arc<Task>) -> usize {
        self.tasks.iter().find(|(_, own)| Arc::ptr_eq(own, task)).expect("the task belongs to this group").0
    }

    pub(super) fn move_all(&self, slots: &[Slot], from: usize, to: usize) -> Result<(), StateError> {
        slots.chunks(MOVED_AT_ONCE).try_for_each(|slots| self.move_queries(slots, from, to, |_, _| true).map(drop))
    }

    /// Moves queries with their state and waiting events from one task to another: those for which `is_wanted` holds,
    /// given their host and their slot there. Returns their number.
    pub(super) fn move_queries(
        &self,
        slots: &[Slot],
        from: usize,
        to: usize,
        is_wanted: impl Fn(&SlotHost, Slot) -> bool,
    ) -> Result<usize, StateError> {
        // Only the holder of this lock locks two tasks of a group, so the order of locking does not matter.
        let _still = self.free.lock();
        let task = |index| self.task(index).expect("queries move between tasks that are there");
        let (source, target) = (task(from), task(to));
        let places = self.places.get().expect("there are several tasks");
        let mut source_core = source.lock();
        // Some queries may have been removed meanwhile.
        let mut moved: Vec<(Slot, Slot)> = slots
            .iter()
            .filter_map(|&slot| {
                self.place(slot).filter(|place| place.task as usize == from).map(|place| (slot, place.slot))
            })
            .filter(|&(_, old)| is_wanted(&source_core.host, old))
            .collect();
        if moved.is_empty() {
            return Ok(0);
        }
        moved.sort_unstable_by_key(|(_, old)| *old);
        let old: Vec<Slot> = moved.iter().map(|(_, old)| *old).collect();
        // State of the spilled task is read from disk here, before any other thread has to wait.
        let copied = source_core.host.copy(&old)?;
        let mut target_core = target.lock();
        let new = target.put(&mut target_core, copied)?;
        if let (SPILLED, Some(spilled_task)) = (to, self.spilled_task.get()) {
            let mut alarms = spilled_task.alarms.lock();
            for (&(slot, old), &inner) in moved.iter().zip(&new) {
                alarms.set(inner, slot, source_core.host.slot_deadline_us(old).unwrap_or(NEVER));
            }
        }
        let (mut source_queue, mut target_queue) = (source.inbox().lock(), target.inbox().lock());
        source_queue.move_events(&mut target_queue, target.inbox().chunk_rows(), renumber(&old, &new));
        for (&(slot, _), &inner) in moved.iter().zip(&new) {
            places[slot as usize].store(Place { task: to as u32, slot: inner }.pack(), Ordering::Release);
        }
        let has_events = target_queue.waiting().0 > 0;
        drop((source_queue, target_queue));
        // Counted before any other thread can look into the source: see `Group::snapshot`.
        self.moves.fetch_add(1, Ordering::AcqRel);
        target.note_deadline(&target_core);
        drop(target_core);

        let had_retired = source_core.host.table().has_retired();
        source.remove(&mut source_core, &old);
        if !had_retired {
            // The slots are free at once: their events have moved too.
            source_core.host.recycle();
            if source_core.host.table().live() == 0 {
                source_core.host.renew(self.new_slots(), self.new_chain(from));
                source.note_deadline(&source_core);
            }
        }
        drop(source_core);
        if has_events {
            target.schedule();
        }
        Ok(moved.len())
    }
}
