//! Moves all queries of a group to another group: that of a new version of their application.
//!
//! Slots do not change, so routes, registry and sources notice nothing. The old group is [quiesced](Group::quiesce)
//! meanwhile: it accepts and processes nothing, and a push is told that it is full. So state, parameters and waiting
//! events change hands at one moment, and before that moment nothing has happened: a step that fails leaves the old
//! group as it was, and it [goes on](Group::go_on).
//!
//! The steps: [`Group::migrate_from`] copies queries and state and may fail; [`Group::hand_over`] moves the waiting
//! events and cannot fail; [`Group::retire`] ends the old group.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use rivulet_dataflow::{Chain, QueryId, Slot, StateError, StateMap};

use super::Group;
use super::moves::MOVED_AT_ONCE;
use super::place::Place;
use crate::Task;
use crate::scheduler::Runnable;
use crate::task::Upstream;

/// A group that is suspended until this is dropped.
pub struct Suspended(Arc<Group>);

impl Drop for Suspended {
    fn drop(&mut self) {
        self.0.settings.rest.resume();
        self.0.pool.retry_blocked();
    }
}

/// How queries are migrated to another group.
pub struct StateMigration<'a> {
    /// Which state the operators take over.
    pub state: &'a StateMap,
    /// The parameters of queries in the new group, one row for each. Queries that share a slot are equal there too.
    pub parameters: &'a dyn Fn(&[QueryId]) -> RecordBatch,
}

impl Group {
    /// Closes the intake: events from outside find no room. Waiting events are processed, and rows passed on by other
    /// groups are still accepted. A push may be in progress: see `Router::await_routing` of the connectors.
    pub fn close_intake(&self) {
        self.settings.rest.close_intake();
    }

    /// The same if it does not rest already; whether that is so.
    pub fn close_intake_first(&self) -> bool {
        self.settings.rest.close_intake_first()
    }

    /// Quiesces the group: no event is accepted and none processed. When this returns, nothing is in flight. Workers
    /// treat its tasks as if the sink had no room.
    pub fn quiesce(&self) {
        self.settings.rest.quiesce();
        self.wait_for_activations();
    }

    /// Suspends the group: no event is processed; events wait in the inboxes, as far as these have room. When this
    /// returns, nothing is in flight.
    pub fn suspend(&self) {
        self.settings.rest.suspend();
        self.wait_for_activations();
    }

    /// Suspends the group until the returned value is dropped, whether it rests otherwise or not. When this returns,
    /// nothing is in flight.
    pub fn suspended(self: &Arc<Self>) -> Suspended {
        self.settings.rest.suspend_too();
        self.wait_for_activations();
        Suspended(self.clone())
    }

    /// Waits until the activations that are under way have ended.
    pub fn wait_for_activations(&self) {
        for (_, task) in self.all_tasks() {
            drop(task.inbox().lock());
            drop(task.lock());
        }
    }

    /// Ends [`Group::close_intake`], [`Group::quiesce`] and [`Group::suspend`].
    pub fn go_on(&self) {
        self.settings.rest.go_on();
        // Tasks that were tried meanwhile, and those that pass rows on to this group.
        self.pool.retry_blocked();
    }

    /// Whether no event waits, is still to be passed on, or is left in the log. An activation may be in progress.
    pub fn is_idle(&self) -> bool {
        // Events move with queries: none slips from a task that is yet to be looked at into one that was already.
        let _still = self.free.lock();
        self.waiting().0 == 0 && self.oldest_us() == i64::MAX && !self.is_behind()
    }

    /// Copies the queries of `before`, with their state, into this group, which has had none yet. Each keeps its slot.
    /// Both groups are quiesced: a timer must not run in both. Spilled queries come into memory by this, until they are
    /// found silent again.
    ///
    /// # Errors
    /// State that cannot be read or does not fit. `before` is unchanged; this group cannot be used any more.
    pub fn migrate_from(&self, before: &Self, migration: &StateMigration<'_>) -> Result<(), StateError> {
        let quiesce = before.settings.rest.is_quiesced() && self.settings.rest.is_quiesced();
        assert!(quiesce, "who is taken over stands still, and who takes over too");
        *self.absences.lock() = before.absences.lock().clone();
        let (mut free, _still) = (self.free.lock(), before.free.lock());
        assert_eq!(self.tasks.count(), 0, "who takes over has no queries yet");
        let places = boxcar::Vec::new();
        for _ in 0..before.slots() {
            places.push(AtomicU64::new(Place::NOWHERE));
        }
        for (index, source) in before.all_tasks() {
            let (inner, outer) = before.slots_by_place(index);
            // The first task is always copied: it has the counters of the application, whatever its version.
            if inner.is_empty() && index != 0 {
                continue;
            }
            let target =
                Task::new(self.settings.clone(), self.new_slots(), (self.settings.make)(), self.pool.clone(), None);
            if self.pool.policy.is_balanced() {
                target.assign(source.worker());
            }
            let to = self.tasks.push(target.clone());
            if to == 0 {
                target.lock().count_further(&before.metrics());
            }
            for (inner, outer) in inner.chunks(MOVED_AT_ONCE).zip(outer.chunks(MOVED_AT_ONCE)) {
                let copied = source.lock().host.copy(inner)?;
                let copied = copied.migrate(migration.state, migration.parameters, self.pool.clock.now_us())?;
                let new = target.put(&mut target.lock(), copied)?;
                for (&outer, slot) in outer.iter().zip(new) {
                    places[outer as usize].store(Place { task: to as u32, slot }.pack(), Ordering::Release);
                }
            }
        }
        let is_free = |(_, place): &(usize, &AtomicU64)| place.load(Ordering::Acquire) == Place::NOWHERE;
        free.extend(places.iter().filter(is_free).map(|(slot, _)| slot as Slot));
        assert!(self.places.set(places).is_ok(), "a group without tasks has no places");
        Ok(())
    }

    /// Moves the waiting events to the group that has taken over, in order. What is left in the log is left there for
    /// that group.
    pub fn hand_over(&self, after: &Self) {
        after.settings.standstill.take_over(&self.settings.standstill);
        let (_still, _also) = (after.free.lock(), self.free.lock());
        for (index, source) in self.all_tasks() {
            let (inner, outer) = self.slots_by_place(index);
            for (to, target) in after.tasks.iter() {
                let (mut from_queue, mut to_queue) = (source.inbox().lock(), target.inbox().lock());
                let place = |slot: Slot| {
                    let slot = outer[inner.binary_search(&slot).ok()?];
                    after.place(slot).filter(|place| place.task as usize == to).map(|place| place.slot)
                };
                from_queue.move_events(&mut to_queue, target.inbox().chunk_rows(), place);
                let has_events = to_queue.waiting().0 > 0;
                drop((from_queue, to_queue));
                if has_events {
                    target.schedule();
                }
            }
        }
    }

    /// Drops all queries, which another group has taken over, and all waiting events.
    pub fn retire(&self) {
        let mut free = self.free.lock();
        for (index, task) in self.all_tasks() {
            let inner = self.slots_by_place(index).0;
            let mut core = task.lock();
            while task.inbox().take(None, None, usize::MAX).is_some() {}
            task.remove(&mut core, &inner);
            core.host.renew(self.new_slots(), Chain::new(Vec::new()));
            task.note_deadline(&core);
        }
        self.make_places(&mut free);
        for (_, place) in self.places.get().into_iter().flat_map(|places| places.iter()) {
            place.store(Place::NOWHERE, Ordering::Release);
        }
        // Tasks that wait to be run come to an end.
        self.go_on();
    }
}
