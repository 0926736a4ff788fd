//! All queries of a group go over to another one: that of a new version of their application.
//!
//! Slots stay what they are, so routes, registry and whoever pushes know nothing of it. The group before [stands
//! still](Group::quiesce) meanwhile: it takes nothing in and processes nothing, and whoever pushes is told that it is
//! full. So there is one moment at which state, parameters and waiting events change hands, and as long as it has not
//! come nothing has happened: a step that fails leaves the group as it was, to [go on](Group::go_on).
//!
//! The steps: [`Group::migrate_from`] copies queries and state and may fail; [`Group::hand_over`] moves the waiting
//! events and cannot; [`Group::retire`] ends the group before.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use arrow::array::RecordBatch;
use rivulet_dataflow::{Chain, QueryId, Slot, StateError, StateMap};

use super::moves::{Copied, MOVED_AT_ONCE};
use super::{Group, Place};
use crate::Task;
use crate::scheduler::Runnable;

const RUNS: u8 = 0;
const INTAKE_CLOSED: u8 = 1;
const QUIESCED: u8 = 2;
const SUSPENDED: u8 = 3;

/// Whether a group does less than usual.
#[derive(Debug, Default)]
pub(crate) struct Rest(AtomicU8);

impl Rest {
    /// Whether events are to wait where they come from.
    #[inline]
    pub(crate) fn has_closed_intake(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), INTAKE_CLOSED | QUIESCED)
    }

    /// Whether it does less than usual.
    pub(crate) fn is_in_force(&self) -> bool {
        self.0.load(Ordering::Acquire) != RUNS
    }

    /// Whether nothing is taken in and nothing processed.
    #[inline]
    pub(crate) fn is_quiesced(&self) -> bool {
        self.0.load(Ordering::Acquire) == QUIESCED
    }

    /// Whether nothing is processed.
    #[inline]
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), QUIESCED | SUSPENDED)
    }
}

/// What queries become in the group that takes them over.
pub struct StateMigration<'a> {
    /// Whose state the operators take over.
    pub state: &'a StateMap,
    /// The parameters that queries have there, a row for each. Queries that share a slot are equal there too.
    pub parameters: &'a dyn Fn(&[QueryId]) -> RecordBatch,
}

impl Group {
    /// From now on every event from outside is told that there is no room; what waits is processed, and rows that are
    /// handed on still come. A push may be half way: see `Router::await_routing` of the connectors.
    pub fn close_intake(&self) {
        self.settings.rest.0.store(INTAKE_CLOSED, Ordering::Release);
    }

    /// The same if it does not rest already; whether that is so.
    pub fn close_intake_first(&self) -> bool {
        let rest = &self.settings.rest.0;
        rest.compare_exchange(RUNS, INTAKE_CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// From now on nothing is processed and no event taken in; when this returns nothing is under way. Workers come
    /// back to its tasks as they do where results find no room.
    pub fn quiesce(&self) {
        self.rest(QUIESCED);
    }

    /// From now on nothing is processed; events wait in the inboxes, as far as these have room. When this returns
    /// nothing is under way.
    pub fn suspend(&self) {
        self.rest(SUSPENDED);
    }

    fn rest(&self, how: u8) {
        self.settings.rest.0.store(how, Ordering::Release);
        for (_, task) in self.all_tasks() {
            drop(task.inbox().lock());
            // An activation that was under way ends first.
            drop(task.lock());
        }
    }

    /// Takes back [`Group::close_intake`], [`Group::quiesce`] and [`Group::suspend`].
    pub fn go_on(&self) {
        self.settings.rest.0.store(RUNS, Ordering::Release);
    }

    /// Whether nothing waits, nor is yet to be handed on. An activation may still be under way.
    pub fn is_idle(&self) -> bool {
        // Events move with queries: none slips from a task that is yet to be looked at into one that was already.
        let _still = self.free.lock();
        self.waiting().0 == 0 && self.oldest_us() == i64::MAX
    }

    /// Copies the queries of `before`, with their state, into this group, which has had none yet. Each gets the slot
    /// that it has there. Both stand still: a timer must not be served by both.
    ///
    /// Silent queries whose state is on disk come into memory by this, until they are found silent again.
    ///
    /// # Errors
    /// State that cannot be read or does not fit. `before` is as it was; this group is of no use any more.
    pub fn migrate_from(&self, before: &Self, migration: &StateMigration<'_>) -> Result<(), StateError> {
        let quiesce = before.settings.rest.is_quiesced() && self.settings.rest.is_quiesced();
        assert!(quiesce, "who is taken over stands still, and who takes over too");
        let (mut free, _still) = (self.free.lock(), before.free.lock());
        assert_eq!(self.tasks.count(), 0, "who takes over has no queries yet");
        let places = boxcar::Vec::new();
        for _ in 0..before.slots() {
            places.push(AtomicU64::new(Place::NOWHERE));
        }
        for (index, source) in before.all_tasks() {
            let (inner, outer) = before.slots_by_place(index);
            // The first one is there for the counters at least, which are of the application, whatever its version.
            if inner.is_empty() && index != 0 {
                continue;
            }
            let target =
                Task::new(self.settings.clone(), self.new_slots(), (self.settings.make)(), self.host.clone(), None);
            if self.host.policy.is_balanced() {
                target.assign(source.worker());
            }
            let to = self.tasks.push(target.clone());
            if to == 0 {
                target.lock().count_further(&before.metrics());
            }
            for (inner, outer) in inner.chunks(MOVED_AT_ONCE).zip(outer.chunks(MOVED_AT_ONCE)) {
                let copied = Copied::new(&source.lock(), inner)?.translate(migration, self.host.clock.now_us())?;
                let new = copied.put(&mut target.lock(), &target, inner)?;
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

    /// Gives the events that wait to the group that has taken over, in their order.
    pub fn hand_over(&self, after: &Self) {
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

    /// Forgets all queries, which another group has, and events that wait: nothing of them is done here any more.
    pub fn retire(&self) {
        let mut free = self.free.lock();
        for (index, task) in self.all_tasks() {
            let inner = self.slots_by_place(index).0;
            let mut core = task.lock();
            while task.inbox().take(None, None).is_some() {}
            task.remove(&mut core, &inner);
            core.renew(self.new_slots(), Chain::new(Vec::new()));
            core.recycle();
            task.note_deadline(&core);
        }
        self.make_places(&mut free);
        for (_, place) in self.places.get().into_iter().flat_map(|places| places.iter()) {
            place.store(Place::NOWHERE, Ordering::Release);
        }
        // So that its tasks come to an end where they wait to be run.
        self.go_on();
    }
}

impl Copied {
    /// What is copied as the new version has it.
    fn translate(mut self, migration: &StateMigration<'_>, now_us: i64) -> Result<Self, StateError> {
        let parameters = migration.parameters;
        self.parameters = parameters(&self.queries);
        self.further.iter_mut().for_each(|(_, queries, of_these)| *of_these = parameters(queries));
        self.frames = migration.state.apply(&self.frames)?;
        // Other operators may stand where it was counted what reaches them.
        self.tallies.iter_mut().flatten().for_each(|tally| *tally = tally.anew(now_us));
        Ok(self)
    }
}
