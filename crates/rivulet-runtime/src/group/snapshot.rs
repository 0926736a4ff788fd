//! What a checkpoint saves of a group, and how it is restored.
//!
//! The group is not suspended for it. Queries of applications interact only through topics, so each is saved at a
//! moment of its own, with the position of the last event in its state. The log replays later events; earlier ones are
//! recognised by their position and skipped. So a capture takes some thousand queries at a time, and between two such
//! slices the task goes on. Only what changed since the last capture is taken, so the cost follows the number of
//! changes.
//!
//! Saved state is identified by the numbers of queries ([`saved`]), because slots and tasks differ after a restart.
//!
//! What must hold: every change made before a capture began is in its result, wherever queries move meanwhile.

mod saved;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rivulet_dataflow::slot_host::{Absences, SlotSnapshot};
use rivulet_dataflow::{Address, LogPosition, QueryId, Slot, StateError, StateMap};

use super::Group;
use super::place::Place;
use crate::Task;

pub use saved::Saved;

/// How many queries are captured while their task is locked, which takes some hundred microseconds.
const SNAPSHOT_AT_ONCE: usize = 1_024;

/// The capture of a group for a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct GroupSnapshot {
    /// The state, in pieces of the form that [`Saved`] reads; none if nothing changed.
    pub pieces: Vec<Vec<u8>>,
    /// A piece ends when it has so many bytes.
    pub piece_bytes: usize,
    /// The number of slots in it.
    pub slots: usize,
    /// The highest position of an event in any state: the log must be durable up to here before the checkpoint counts.
    pub position: u64,
    /// How many slots could not be captured, and the error of the first. The next capture tries them again.
    pub failures: (usize, Option<String>),
}

/// The result of restoring a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// How many slots were restored.
    pub slots: usize,
    /// How many slots begin anew because their state could not be read.
    pub lost: usize,
    /// The error of the first of them.
    pub error: Option<String>,
}

impl Group {
    /// Captures what changed since the last capture, or `everything`. A caller that cannot keep the result captures
    /// everything the next time. A piece of the result ends when it has `piece_bytes`: as one piece, all state of a
    /// large group would be in memory twice while it grows, and once more while it is restored.
    ///
    /// Events are processed meanwhile. An event that came before this call is in the state or still waits. `rest` is
    /// called after each slice, with the time the slice took, while nothing is locked; the caller may wait there to
    /// leave the machine to others.
    ///
    /// # Panics
    /// If the group was not made to be captured.
    pub fn snapshot(&self, everything: bool, piece_bytes: usize, rest: &mut dyn FnMut(Duration)) -> GroupSnapshot {
        assert!(self.settings.is_checkpointed, "the group keeps what changed");
        let mut captured = GroupSnapshot { piece_bytes, ..GroupSnapshot::default() };
        if everything {
            // Locked, so that no query moves from a task that is not marked yet to one that is.
            let _still = self.free.lock();
            self.all_tasks().for_each(|(_, task)| task.lock().host.change_all());
        }
        let moves = self.moves.load(Ordering::Acquire);
        self.all_tasks().for_each(|(_, task)| captured.take(task, everything, rest));
        if self.moves.load(Ordering::Acquire) != moves {
            // Queries that moved may have escaped the pass over tasks: a second pass, while none can move. Few are
            // left.
            let _still = self.free.lock();
            self.all_tasks().for_each(|(_, task)| captured.take(task, everything, &mut |_| {}));
        }
        captured
    }

    /// The present queries get no event up to this position of the log.
    pub fn pass(&self, position: LogPosition) {
        let _still = self.free.lock();
        for (_, task) in self.all_tasks() {
            task.lock().host.pass(position);
        }
    }

    /// The queries in these slots begin behind this position of the log and get no event up to it. Rows passed on to
    /// them may be of earlier events.
    pub fn begin_behind(&self, slots: &[Slot], position: LogPosition) {
        let _still = self.free.lock();
        let mut places: Vec<Place> = slots.iter().filter_map(|&slot| self.place(slot)).collect();
        places.sort_unstable_by_key(|place| place.pack());
        for of_task in places.chunk_by(|one, other| one.task == other.task) {
            let task = self.task(of_task[0].task as usize).expect("a place is in a task");
            let slots: Vec<Slot> = of_task.iter().map(|place| place.slot).collect();
            task.lock().host.begin_behind(&slots, position);
        }
    }

    /// A query that was paused goes on behind this position of the log. Of the events up to there it gets those that
    /// wait for it since before the pause, if any do, the last of them at `waiting_to`. It is alone in its slot.
    pub fn go_on_behind(&self, (slot, query): (Slot, QueryId), waiting_to: Option<LogPosition>, position: LogPosition) {
        let Some(waiting_to) = waiting_to else { return self.begin_behind(&[slot], position) };
        let mut absences = self.absences.lock();
        absences.add(query, waiting_to + 1..position + 1);
        self.spread(&absences);
    }

    /// Sets the absences of queries: ranges of the log that are not for them. Replaces those set before.
    pub fn set_absences(&self, absences: Absences) {
        let mut of_group = self.absences.lock();
        *of_group = absences;
        self.spread(&of_group);
    }

    /// Forgets the absences of before this position of the log; whether there was any. The group has had all events
    /// before it.
    pub fn forget_absences(&self, position: LogPosition) -> bool {
        let mut absences = self.absences.lock();
        let is_any = absences.forget_before(position);
        if is_any {
            self.spread(&absences);
        }
        is_any
    }

    /// Gives each task the absences of the group.
    fn spread(&self, absences: &Absences) {
        let shared = Arc::new(absences.clone());
        let _still = self.free.lock();
        self.all_tasks().for_each(|(_, task)| task.lock().host.set_absences(&shared));
    }

    /// Restores the saved state of queries. `slot_of` gives the slot of a query that still exists; the group has had no
    /// event yet. Queries whose state cannot be read begin anew.
    ///
    /// `operators` has the addresses of the version that saved it. State of an earlier version of the application is
    /// migrated by `map`. If the saved state is not needed afterwards (`releases`), each part of it leaves memory when
    /// it is restored.
    pub fn restore_from(
        &self,
        saved: &Saved,
        operators: &[Option<Arc<Address>>],
        map: Option<&StateMap>,
        slot_of: &dyn Fn(QueryId) -> Option<Slot>,
        releases: bool,
    ) -> Restored {
        let mut restored = Restored::default();
        let _still = self.free.lock();
        for part in 0..saved.parts() {
            // The target of each query: the task, the index in the part, the slot in the task.
            let mut targets: Vec<(usize, u32, Slot)> = saved
                .newest_of(part)
                .filter_map(|(query, index)| {
                    let place = self.place(slot_of(query)?)?;
                    Some((place.task as usize, index, place.slot))
                })
                .collect();
            targets.sort_unstable();
            targets.dedup();
            let frames = match targets.is_empty() {
                true => Ok(Vec::new()),
                false => saved.frames(part, operators).and_then(|frames| match map {
                    Some(map) => map.apply(&frames),
                    None => Ok(frames),
                }),
            };
            if releases {
                saved.release(part);
            }
            for of_task in targets.chunk_by(|(one, ..), (other, ..)| one == other) {
                let task = self.task(of_task[0].0).expect("a place is in a task");
                let mut left: Vec<(u32, Slot)> = of_task.iter().map(|&(_, index, slot)| (index, slot)).collect();
                // Usually one saved slot goes to one slot; more if queries do not share it any more.
                while !left.is_empty() {
                    let mut last = None;
                    let round: Vec<(u32, Slot)> =
                        left.extract_if(.., |(index, _)| last.replace(*index) != Some(*index)).collect();
                    let (indices, slots): (Vec<u32>, Vec<Slot>) = round.into_iter().unzip();
                    let marks = saved.marks(part, &indices);
                    let read = frames.as_ref().map_err(ToString::to_string);
                    let done = read.and_then(|frames| {
                        task.restore(&slots, &indices, frames, &marks).map_err(|error| error.to_string())
                    });
                    match done {
                        Ok(()) => restored.slots += slots.len(),
                        Err(error) => {
                            restored.lost += slots.len();
                            restored.error.get_or_insert(error);
                        }
                    }
                }
            }
        }
        restored
    }
}

impl GroupSnapshot {
    /// Adds the changes of a task, slice by slice.
    fn take(&mut self, task: &Task, everything: bool, rest: &mut dyn FnMut(Duration)) {
        let (mut from, end) = (0, task.lock().host.table().capacity() as Slot);
        loop {
            let begun = Instant::now();
            let mut core = task.lock();
            let slots = core.host.changed(from, end, SNAPSHOT_AT_ONCE);
            let Some(&last) = slots.last() else { return };
            from = last + 1;
            let slice = core.host.snapshot(slots.clone());
            drop(core);
            // The slice is encoded while the task runs.
            if let Err(error) = slice.and_then(|slice| self.write(slice, everything)) {
                match slots.len() {
                    1 => self.failed(task, &slots, &error),
                    // One of these slots fails; the others must not suffer.
                    _ => slots.iter().for_each(|&slot| self.take_one(task, slot, everything)),
                }
            }
            rest(begun.elapsed());
        }
    }

    fn take_one(&mut self, task: &Task, slot: Slot, everything: bool) {
        let slice = {
            let mut core = task.lock();
            if core.host.table().query(slot).is_none() {
                return;
            }
            core.host.snapshot(vec![slot])
        };
        if let Err(error) = slice.and_then(|slice| self.write(slice, everything)) {
            self.failed(task, &[slot], &error);
        }
    }

    fn failed(&mut self, task: &Task, slots: &[Slot], error: &StateError) {
        task.lock().host.change(slots);
        self.failures.0 += slots.len();
        self.failures.1.get_or_insert_with(|| error.to_string());
    }

    fn write(&mut self, slice: SlotSnapshot, everything: bool) -> Result<(), StateError> {
        let highest = slice.position();
        let mut piece = self.pieces.pop_if(|last| last.len() < self.piece_bytes).unwrap_or_default();
        let written = saved::write(slice, everything, &mut piece);
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
        self.slots += written?;
        self.position = self.position.max(highest);
        Ok(())
    }
}
