//! Changes the parameters of queries while their group is suspended.
//!
//! What must hold: an operator whose state depends on a changed parameter begins anew, and no other does. Parameters,
//! state and the number of the change belong to the same moment, so the saved state of a query says which changes it
//! contains.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use rivulet_dataflow::{LogPosition, QueryId, Slot, SlotHost, StateError, StateMap};

use super::Group;
use super::place::{Place, SPILLED};

/// How often to bring back a query that returns to the spilled task at once.
const TRIES_MAX: usize = 8;

/// A change of the parameters of one query.
pub struct Alter<'a> {
    /// Its slot.
    pub slot: Slot,
    /// The query. If others share its slot, only parameters of its outputs may change.
    pub query: QueryId,
    /// The row of its new parameters.
    pub row: usize,
    /// Which operators keep their state; `None` if all do.
    pub map: Option<&'a StateMap>,
    /// The number of the change, higher than that of any earlier one; 0 if a restart need not know it.
    pub number: u64,
}

impl Group {
    /// Whether the group is suspended or takes no events, because another version takes over from it.
    pub fn rests(&self) -> bool {
        self.settings.rest.is_in_force()
    }

    /// Whether events wait for any of these slots, or may be left in the log for them.
    pub fn has_waiting(&self, slots: &[Slot]) -> bool {
        if self.is_behind() {
            return true;
        }
        let _still = self.free.lock();
        let mut places: Vec<u64> = slots.iter().filter_map(|&slot| self.place(slot)).map(Place::pack).collect();
        places.sort_unstable();
        let is_meant = |task: usize, slot| places.binary_search(&Place { task: task as u32, slot }.pack()).is_ok();
        self.all_tasks().any(|(index, task)| task.inbox().lock().slots().any(|slot| is_meant(index, slot)))
    }

    /// The lowest log position of the events that wait for the query in a slot; `None` if none of the log does.
    pub fn waiting_from(&self, slot: Slot) -> Option<LogPosition> {
        self.waiting_positions(slot, |positions| positions.min())
    }

    /// The highest log position of these events.
    pub fn waiting_to(&self, slot: Slot) -> Option<LogPosition> {
        self.waiting_positions(slot, |positions| positions.max())
    }

    fn waiting_positions(
        &self,
        slot: Slot,
        which: fn(&mut dyn Iterator<Item = LogPosition>) -> Option<LogPosition>,
    ) -> Option<LogPosition> {
        let _still = self.free.lock();
        let place = self.place(slot)?;
        let queue = self.task(place.task as usize)?.inbox().lock();
        which(&mut queue.positions_of(place.slot))
    }

    /// Changes the parameters of queries to rows of `parameters`. The group is [suspended](Group::suspend), and no
    /// waiting event belongs before the change.
    ///
    /// # Errors
    /// State that cannot be imported: those queries begin anew. All queries have their new parameters.
    pub fn alter(&self, changes: &[Alter<'_>], parameters: &RecordBatch) -> Result<(), StateError> {
        self.bring_back_altered(changes);
        let _still = self.free.lock();
        let mut placed: Vec<(Place, &Alter<'_>)> =
            changes.iter().filter_map(|change| Some((self.place(change.slot)?, change))).collect();
        placed.sort_by_key(|(place, _)| place.pack());
        let mut done = Ok(());
        for of_task in placed.chunk_by(|(one, _), (other, _)| one.task == other.task) {
            let task = self.task(of_task[0].0.task as usize).expect("a place is in a task");
            let mut core = task.lock();
            // Queries that reset the same operators are changed together.
            let mut resets: BTreeMap<*const StateMap, Vec<(Slot, &Alter<'_>)>> = BTreeMap::new();
            let mut keeps = Vec::new();
            for (place, change) in of_task {
                match change.map {
                    None => keeps.push((place.slot, *change)),
                    Some(map) => resets.entry(map).or_default().push((place.slot, *change)),
                }
            }
            set(&mut core.host, &keeps, parameters);
            for changes in resets.into_values() {
                let map = changes.first().and_then(|(_, change)| change.map).expect("changes of state have a map");
                let mut slots: Vec<Slot> = changes.iter().map(|(slot, _)| *slot).collect();
                slots.sort_unstable();
                done = done.and(task.reset(&mut core, slots, map, |host| set(host, &changes, parameters)));
            }
            let now_us = self.pool.clock.now_us();
            of_task.iter().for_each(|(place, _)| core.host.tally_change(place.slot, now_us));
        }
        done
    }

    /// Brings altered queries back into memory whose state changes.
    fn bring_back_altered(&self, changes: &[Alter<'_>]) {
        let Some(spilled_task) = self.spilled_task.get() else { return };
        let slots: Vec<Slot> = changes.iter().filter(|one| one.map.is_some()).map(|one| one.slot).collect();
        for _ in 0..TRIES_MAX {
            self.bring_back(spilled_task, &slots);
            let _still = self.free.lock();
            if slots.iter().all(|&slot| self.place(slot).is_none_or(|place| place.task as usize != SPILLED)) {
                return;
            }
        }
    }
}

/// Gives queries in these slots of a task their parameters.
fn set(host: &mut SlotHost, changes: &[(Slot, &Alter<'_>)], parameters: &RecordBatch) {
    let rows: Vec<(Slot, QueryId, usize)> = changes.iter().map(|(slot, one)| (*slot, one.query, one.row)).collect();
    let numbers: Vec<u64> = changes.iter().map(|(_, one)| one.number).collect();
    host.set(&rows, &numbers, parameters);
}
