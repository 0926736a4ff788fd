//! Equal queries are computed once: they share a slot, and each gets its results.
//!
//! Queries are equal if all parameters are that decide what is computed: those used in an expression or in the address
//! of an input. What must hold: sharing has no visible effect. So a query joins a slot only while the slot is as good
//! as new: it has no state, and no waiting event that came before the query. And before a query is paused it gets a
//! slot of its own, with a copy of the state ([`Group::part`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::row::Rows;
use rivulet_dataflow::{QueryId, Slot, StateError, StateSelection};

use super::Group;
use super::place::{Place, SPILLED};
use super::shared_slots::{QUERIES_MAX, SharedSlots, Together, put_together, spread};

/// How often to bring back a query that returns to the spilled task at once.
const TRIES_MAX: usize = 8;

/// The slot of a query that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its slot.
    pub slot: Slot,
    /// Whether the query is the first in it. Only then must events be routed to the slot.
    pub is_new: bool,
}

impl Group {
    /// Adds queries as [`Group::add`] does, but lets equal queries share a slot, with each other and with existing
    /// ones.
    pub fn join(&self, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Joined> {
        self.join_restored(queries, parameters, &|_| None)
    }

    /// The same for queries of which some are about to be [restored](Group::restore_from). Those share a slot only with
    /// queries that shared it when they were captured. For each of them `shared` has a number, equal for those that
    /// shared a slot.
    pub fn join_restored(
        &self,
        queries: &[QueryId],
        parameters: &RecordBatch,
        shared: &dyn Fn(QueryId) -> Option<u64>,
    ) -> Vec<Joined> {
        let Some(shared_slots) = &self.shared_slots else {
            return self.add(queries, parameters).into_iter().map(|slot| Joined { slot, is_new: true }).collect();
        };
        let mut free = self.free.lock();
        let mut shared_slots = shared_slots.lock();
        let keys = shared_slots.keys(parameters);
        let shared: Vec<Option<u64>> = queries.iter().map(|&query| shared(query)).collect();
        let mut kinds = put_together(&shared_slots, &keys, &shared);
        self.share_known(&shared_slots, &keys, &mut kinds, queries, parameters);
        let first_rows = kinds.iter().filter(|kind| kind.shared.is_none());
        let first_rows: UInt32Array = first_rows.flat_map(Together::parts).map(|rows| rows[0]).collect();
        let mut new = match first_rows.len() == queries.len() {
            // The usual case: no two queries are equal.
            true => self.add_new(&mut free, queries, parameters),
            false => {
                let (queries, parameters) = taken(queries, parameters, first_rows);
                self.add_new(&mut free, &queries, &parameters)
            }
        }
        .into_iter();
        let mut joined = vec![Joined { slot: 0, is_new: false }; queries.len()];
        for kind in kinds {
            let mut before = kind.before;
            for rows in kind.parts() {
                let slot = kind.shared.unwrap_or_else(|| new.next().expect("a slot for each that shares none"));
                rows.iter().for_each(|&row| joined[row as usize].slot = slot);
                if kind.shared.is_some() {
                    continue;
                }
                shared_slots.put(kind.hash, slot, before.replace(slot));
                joined[rows[0] as usize].is_new = true;
                if rows.len() > 1 {
                    // The new slot has no route yet, so it is as good as new.
                    let (queries, parameters) = taken(queries, parameters, rows[1..].to_vec().into());
                    self.share_held(slot, &queries, &parameters);
                }
            }
        }
        joined
    }

    /// Adds further queries to a used slot. The caller guarantees that they are equal, and that the slot is as good as
    /// new.
    pub fn share(&self, slot: Slot, queries: &[QueryId], parameters: &RecordBatch) {
        let _still = self.free.lock();
        self.share_held(slot, queries, parameters);
    }

    fn share_held(&self, slot: Slot, queries: &[QueryId], parameters: &RecordBatch) {
        let place = self.place(slot).expect("the slot has a query");
        let task = self.task(place.task as usize).expect("a place is in a task");
        task.lock().host.share(place.slot, queries, parameters);
    }

    /// Finds for each kind of query the slot of that kind, and shares it if it is as good as new.
    fn share_known(
        &self,
        shared_slots: &SharedSlots,
        keys: &Rows,
        kinds: &mut [Together],
        queries: &[QueryId],
        parameters: &RecordBatch,
    ) {
        // For each task: its slot, the group's slot, and the kind that may join it.
        let mut candidates: BTreeMap<usize, Vec<(Slot, Slot, usize)>> = BTreeMap::new();
        // Restored queries have or had state.
        for (kind, Together { hash, .. }) in kinds.iter().enumerate().filter(|(_, kind)| !kind.is_restored) {
            for &(_, slot) in shared_slots.slots.iter_hash(spread(*hash)).filter(|(known, _)| known == hash) {
                if let Some(place) = self.place(slot) {
                    candidates.entry(place.task as usize).or_default().push((place.slot, slot, kind));
                }
            }
        }
        for (index, mut candidates) in candidates {
            let task = self.task(index).expect("a place is in a task");
            // Locked until the end: no event may be processed between the check of a slot and its sharing.
            let mut core = task.lock();
            candidates.sort_unstable();
            let inner: Vec<Slot> = candidates.iter().map(|(inner, ..)| *inner).collect();
            let known = shared_slots.keys(&core.host.table().parameters(&inner));
            let mut place = 0..;
            candidates.retain(|&(_, slot, kind)| {
                let is_of_kind = known.row(place.next().expect("endless")) == keys.row(kinds[kind].rows[0] as usize);
                if is_of_kind {
                    kinds[kind].before = Some(slot);
                }
                is_of_kind && index != SPILLED
            });
            if candidates.is_empty() {
                continue;
            }
            let inner: Vec<Slot> = candidates.iter().map(|(inner, ..)| *inner).collect();
            let waiting = task.inbox().lock();
            let mut used: HashSet<Slot> = waiting.slots().filter(|slot| inner.binary_search(slot).is_ok()).collect();
            drop(waiting);
            // Results are numbered on from those of the slot: a query that joins later would get other numbers after a
            // restart.
            used.extend(
                inner.iter().copied().filter(|&slot| core.host.mark(slot).is_some_and(|mark| mark.results > 0)),
            );
            match core.host.export_state(&StateSelection::Slots(inner)) {
                Ok(frames) => used.extend(frames.iter().flatten().flat_map(|frame| frame.slots())),
                // Sharing only saves memory and time.
                Err(_) => continue,
            }
            for (inner, slot, kind) in candidates {
                let kind = &mut kinds[kind];
                // Queries whose state was restored may have left several slots of one kind.
                let has_room = || core.host.table().queries_in(inner) + kind.rows.len() <= QUERIES_MAX;
                if kind.shared.is_none() && !used.contains(&inner) && has_room() {
                    let (queries, parameters) = taken(queries, parameters, kind.rows.clone().into());
                    core.host.share(inner, &queries, &parameters);
                    kind.shared = Some(slot);
                }
            }
        }
    }

    /// Removes queries from slots that others share. Returns the slots of queries that were alone: they are removed
    /// with [`Group::remove`] once no event is routed to them.
    pub fn leave(&self, queries: &[(Slot, QueryId)]) -> Vec<Slot> {
        if self.shared_slots.is_none() {
            return queries.iter().map(|(slot, _)| *slot).collect();
        }
        let _still = self.free.lock();
        let mut places: Vec<(Place, Slot, QueryId)> =
            queries.iter().filter_map(|&(slot, query)| Some((self.place(slot)?, slot, query))).collect();
        places.sort_by_key(|(place, ..)| place.pack());
        let mut alone = Vec::with_capacity(places.len());
        for of_task in places.chunk_by(|(one, ..), (other, ..)| one.task == other.task) {
            let mut core = self.task(of_task[0].0.task as usize).expect("a place is in a task").lock();
            for &(place, slot, query) in of_task {
                if !core.host.leave(place.slot, query) && core.host.table().query(place.slot) == Some(query) {
                    alone.push(slot);
                }
            }
        }
        alone
    }

    /// Makes sure that a query is alone in its slot and stays so. Returns its slot: a new one, with a copy of state and
    /// waiting events, if the query shared one. No event is routed to a new slot yet.
    ///
    /// # Errors
    /// State that cannot be copied; nothing has changed then.
    pub fn part(&self, slot: Slot, query: QueryId) -> Result<Slot, StateError> {
        let Some(shared_slots) = &self.shared_slots else { return Ok(slot) };
        for _ in 0..TRIES_MAX {
            if let Some(spilled_task) = self.spilled_task.get() {
                // Spilled state is copied in memory.
                self.bring_back(spilled_task, &[slot]);
            }
            let mut free = self.free.lock();
            let Some(place) = self.place(slot) else { return Ok(slot) };
            if place.task as usize == SPILLED {
                continue;
            }
            let task = &self.tasks[place.task as usize];
            let mut core = task.lock();
            if core.host.table().queries_in(place.slot) < 2 {
                if core.host.table().query(place.slot).is_some() {
                    shared_slots.lock().forget(std::iter::once(slot), core.host.table(), &[place.slot]);
                }
                return Ok(slot);
            }
            let Some(parameters) =
                core.host.table().find(place.slot, query).map(|(table, row)| table.parameters(&[row]))
            else {
                return Ok(slot);
            };
            let copied = core.host.copy(&[place.slot])?.of_one(query, parameters);
            let own = task.put(&mut core, copied)?[0];
            // Counted before any other thread can look into the task: see `Group::snapshot`.
            self.moves.fetch_add(1, Ordering::AcqRel);
            core.host.leave(place.slot, query);
            task.inbox().lock().copy_events(place.slot, own, task.inbox().chunk_rows());
            return Ok(self.outer_slot(&mut free, Place { task: place.task, slot: own }));
        }
        Err(StateError::Storage(format!(
            "the query {query} is being spilled again and again\nhint: try again, or raise memory.spill_after_s"
        )))
    }

    /// The same for many queries, most of them alone already. Returns their slots, in order, and the error of the first
    /// query that stays where it is because its state cannot be copied.
    pub fn part_all(&self, queries: &[(Slot, QueryId)]) -> (Vec<Slot>, Result<(), StateError>) {
        let Some(shared_slots) = &self.shared_slots else {
            return (queries.iter().map(|(slot, _)| *slot).collect(), Ok(()));
        };
        let free = self.free.lock();
        let mut places: Vec<(Place, Slot)> =
            queries.iter().filter_map(|(slot, _)| Some((self.place(*slot)?, *slot))).collect();
        places.sort_unstable_by_key(|(place, _)| place.pack());
        let mut alone = HashSet::with_capacity(places.len());
        for of_task in places.chunk_by(|(one, _), (other, _)| one.task == other.task) {
            let core = self.task(of_task[0].0.task as usize).expect("a place is in a task").lock();
            let is_alone = |place: &Place| {
                core.host.table().query(place.slot).is_some() && core.host.table().queries_in(place.slot) == 1
            };
            let (rows, slots): (Vec<Slot>, Vec<Slot>) =
                of_task.iter().filter(|(place, _)| is_alone(place)).map(|(place, slot)| (place.slot, *slot)).unzip();
            shared_slots.lock().forget(slots.iter().copied(), core.host.table(), &rows);
            alone.extend(slots);
        }
        drop(free);
        let mut done = Ok(());
        let part = |&(slot, query): &(Slot, QueryId)| match alone.contains(&slot) {
            true => slot,
            false => self.part(slot, query).unwrap_or_else(|error| {
                done = std::mem::replace(&mut done, Ok(())).and(Err(error));
                slot
            }),
        };
        (queries.iter().map(part).collect(), done)
    }

    /// Whether several queries are in a slot.
    pub fn is_shared(&self, slot: Slot) -> bool {
        let shared = self.with_queries(&[slot], |table, row| table.queries_in(row) > 1);
        shared.into_iter().flatten().any(|is_shared| is_shared)
    }

    /// The number of further queries in shared slots: nothing is computed for them.
    pub fn further_queries(&self) -> usize {
        match self.shared_slots {
            None => 0,
            Some(_) => self.all_tasks().map(|(_, task)| task.peek().host.table().further()).sum(),
        }
    }
}

/// The queries and parameters of some rows.
fn taken(queries: &[QueryId], parameters: &RecordBatch, rows: UInt32Array) -> (Vec<QueryId>, RecordBatch) {
    let parameters = take_record_batch(parameters, &rows).expect("the rows are of this batch");
    (rows.values().iter().map(|&row| queries[row as usize]).collect(), parameters)
}
