//! What a checkpoint saves of a group, and how it comes back.
//!
//! A group need not stand still for it: the queries of applications have nothing to do with each other but through
//! topics, so each is saved at a moment of its own, with the position of the last event in its state. Events behind
//! that are replayed by whoever logs them; those before it are known by their position and passed over. So a capture
//! takes some thousand queries at a time, and between two such slices the task goes on. Only what changed since the
//! last capture is taken, so the cost is that of what happened.
//!
//! What is saved is known by the numbers of queries ([`saved`]), for slots and tasks are others after a restart.
//!
//! What must hold: every change that was made before a capture began is in what it returns, wherever queries move
//! meanwhile.

mod saved;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rivulet_dataflow::{
    Control, InputIndex, LogPosition, QueryId, Slot, StateError, StateFrame, StateMap, StateSelection,
};

use super::moves::renumber;
use super::{Group, Place};
use crate::Task;
use crate::task::Core;
use crate::task::progress::{Absences, Mark, position_of, stamp};

pub use saved::Saved;

/// How many queries are taken while their task stands still, which is some hundred microseconds.
const SNAPSHOT_AT_ONCE: usize = 1_024;

/// What a checkpoint saves of a group.
#[derive(Clone, Debug, Default)]
pub struct GroupSnapshot {
    /// The state, in the form that [`Saved`] reads; empty if nothing changed. Several captures may stand behind each
    /// other.
    pub bytes: Vec<u8>,
    /// How many slots are in it.
    pub slots: usize,
    /// The highest position of an event that is in the state of any: the log must be durable up to here before this
    /// counts.
    pub position: u64,
    /// How many slots could not be taken, and why not the first: they are tried again the next time.
    pub failures: (usize, Option<String>),
}

/// What came back of what was saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// How many slots have their state again.
    pub slots: usize,
    /// How many begin anew because theirs could not be read, and why not the first.
    pub lost: usize,
    /// Why not the first of them.
    pub error: Option<String>,
}

/// Queries as they were at one moment, in ascending order of slot.
struct Slice {
    slots: Vec<Slot>,
    marks: Vec<Mark>,
    /// Each query beside the place of its slot in `slots`.
    queries: Vec<(u32, QueryId)>,
    frames: Vec<Option<StateFrame>>,
}

impl Group {
    /// Takes what changed since the last capture, or `everything`. Whoever cannot keep what this returns takes
    /// everything the next time.
    ///
    /// Events go on being processed meanwhile. What came before this call is in the state or still waits. `rest` is
    /// called behind each slice, with how long that took, while nothing is locked: whoever shares the machine with the
    /// group can wait there.
    ///
    /// # Panics
    /// If the group was not made to be captured.
    pub fn snapshot(&self, everything: bool, rest: &mut dyn FnMut(Duration)) -> GroupSnapshot {
        assert!(self.settings.is_checkpointed, "the group keeps what changed");
        let mut captured = GroupSnapshot::default();
        if everything {
            // Nobody slips from a task that is yet to be marked into one that is already.
            let _still = self.free.lock();
            self.all_tasks().for_each(|(_, task)| task.lock().change_all());
        }
        let moves = self.moves.load(Ordering::Acquire);
        self.all_tasks().for_each(|(_, task)| captured.take(task, everything, rest));
        if self.moves.load(Ordering::Acquire) != moves {
            // Who moved may have slipped behind the one who looks: once more, while nobody moves. Few are left.
            let _still = self.free.lock();
            self.all_tasks().for_each(|(_, task)| captured.take(task, everything, &mut |_| {}));
        }
        captured
    }

    /// No event up to this position of the log is any more for the queries that are here.
    pub fn pass(&self, position: LogPosition) {
        let _still = self.free.lock();
        for (_, task) in self.all_tasks() {
            let mut core = task.lock();
            let Core { slots, progress: Some(progress), .. } = &mut *core else { continue };
            progress.pass(slots.slots(), stamp(position, InputIndex::MAX));
        }
    }

    /// No event up to this position of the log is for the queries in these slots, which come behind it. Events that are
    /// handed on to them may have been received before.
    pub fn begin_behind(&self, slots: &[Slot], position: LogPosition) {
        let stamp = stamp(position, InputIndex::MAX);
        let _still = self.free.lock();
        let mut places: Vec<Place> = slots.iter().filter_map(|&slot| self.place(slot)).collect();
        places.sort_unstable_by_key(|place| place.pack());
        for of_task in places.chunk_by(|one, other| one.task == other.task) {
            let mut core = self.task(of_task[0].task as usize).expect("a place is in a task").lock();
            let Core { progress: Some(progress), .. } = &mut *core else { continue };
            of_task.iter().for_each(|place| progress.begin_behind(place.slot, stamp));
            progress.expect_repeats(stamp);
        }
    }

    /// These queries were away at times: what the log gives of that is not for them. Takes the place of what was said
    /// before.
    pub fn set_absences(&self, absences: &Arc<Absences>) {
        let _still = self.free.lock();
        for (_, task) in self.all_tasks() {
            if let Some(progress) = &mut task.lock().progress {
                progress.set_absences(Some(absences.clone()));
            }
        }
    }

    /// Gives queries back what was saved of them. `slot_of` tells where a query is, if it still is; the group has had
    /// no event yet. What cannot be read is lost for its queries, which begin anew.
    pub fn restore(&self, saved: &Saved<'_>, slot_of: &dyn Fn(QueryId) -> Option<Slot>) -> Restored {
        self.restore_from(saved, None, slot_of)
    }

    /// The same with what was saved by an earlier version of the application, whose state goes where `map` says.
    pub fn restore_from(
        &self,
        saved: &Saved<'_>,
        map: Option<&StateMap>,
        slot_of: &dyn Fn(QueryId) -> Option<Slot>,
    ) -> Restored {
        let mut restored = Restored::default();
        let _still = self.free.lock();
        for part in 0..saved.parts() {
            // Where each goes: the task, the place in the part, the slot in the task.
            let mut targets: Vec<(usize, u32, Slot)> = saved
                .newest_of(part)
                .filter_map(|(query, index)| {
                    let place = self.place(slot_of(query)?)?;
                    Some((place.task as usize, index, place.slot))
                })
                .collect();
            targets.sort_unstable();
            targets.dedup();
            if targets.is_empty() {
                continue;
            }
            let frames = saved.frames(part).and_then(|frames| match map {
                Some(map) => map.apply(&frames),
                None => Ok(frames),
            });
            for of_task in targets.chunk_by(|(one, ..), (other, ..)| one == other) {
                let task = self.task(of_task[0].0).expect("a place is in a task");
                let mut left: Vec<(u32, Slot)> = of_task.iter().map(|&(_, index, slot)| (index, slot)).collect();
                // Usually one slot goes to one; more if those who shared it do not any more.
                while !left.is_empty() {
                    let mut last = None;
                    let round: Vec<(u32, Slot)> =
                        left.extract_if(.., |(index, _)| last.replace(*index) != Some(*index)).collect();
                    let (indices, slots): (Vec<u32>, Vec<Slot>) = round.into_iter().unzip();
                    let marks = saved.marks(part, &indices);
                    let read = frames.as_ref().map_err(ToString::to_string);
                    let done = read.and_then(|frames| {
                        task.restore(frames, &indices, &slots, &marks).map_err(|error| error.to_string())
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
    /// Adds what changed in a task, slice by slice.
    fn take(&mut self, task: &Task, everything: bool, rest: &mut dyn FnMut(Duration)) {
        let (mut from, end) = (0, task.lock().slots.capacity() as Slot);
        loop {
            let begun = Instant::now();
            let mut core = task.lock();
            let slots = core.changed(from, end);
            let Some(&last) = slots.last() else { return };
            from = last + 1;
            let slice = core.slice(slots.clone());
            drop(core);
            // What it says is written while the task runs.
            if let Err(error) = slice.and_then(|slice| self.write(slice, everything)) {
                match slots.len() {
                    1 => self.failed(task, &slots, &error),
                    // Whoever it is, the others are not to suffer.
                    _ => slots.iter().for_each(|&slot| self.take_one(task, slot, everything)),
                }
            }
            rest(begun.elapsed());
        }
    }

    fn take_one(&mut self, task: &Task, slot: Slot, everything: bool) {
        let slice = {
            let mut core = task.lock();
            if core.slots.query(slot).is_none() {
                return;
            }
            core.slice(vec![slot])
        };
        if let Err(error) = slice.and_then(|slice| self.write(slice, everything)) {
            self.failed(task, &[slot], &error);
        }
    }

    fn failed(&mut self, task: &Task, slots: &[Slot], error: &StateError) {
        if let Some(progress) = &mut task.lock().progress {
            progress.change_all(slots.iter().copied());
        }
        self.failures.0 += slots.len();
        self.failures.1.get_or_insert_with(|| error.to_string());
    }

    fn write(&mut self, slice: Slice, everything: bool) -> Result<(), StateError> {
        let highest = slice.marks.iter().map(|mark| position_of(mark.applied)).max().unwrap_or(0);
        self.slots += saved::write(slice, everything, &mut self.bytes)?;
        self.position = self.position.max(highest);
        Ok(())
    }
}

impl Core {
    fn change_all(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.change_all(self.slots.slots());
        }
    }

    /// The next slots with a query that have changed.
    fn changed(&self, from: Slot, end: Slot) -> Vec<Slot> {
        let Some(progress) = &self.progress else { return Vec::new() };
        let (mut from, mut found) = (from, Vec::new());
        // Those that are gone are of no interest, but they must not look like the end either.
        while found.is_empty() {
            let changed = progress.changed(from, end, SNAPSHOT_AT_ONCE);
            let Some(&last) = changed.last() else { break };
            from = last + 1;
            found = changed;
            found.retain(|&slot| self.slots.query(slot).is_some());
        }
        found
    }

    /// Queries as they are; from now on they have not changed.
    fn slice(&mut self, slots: Vec<Slot>) -> Result<Slice, StateError> {
        let mut queries = Vec::with_capacity(slots.len());
        for (index, &slot) in (0..).zip(&slots) {
            self.slots.for_each_query(slot, |query, _, _| queries.push((index, query)));
        }
        let frames = self.export_state(&StateSelection::Slots(slots.clone()))?;
        let progress = self.progress.as_mut().expect("a group that is captured keeps what changed");
        let marks = slots.iter().map(|&slot| progress.mark(slot)).collect();
        slots.iter().for_each(|&slot| progress.clear(slot));
        Ok(Slice { slots, marks, queries, frames })
    }
}

impl Task {
    /// Gives slots the state that stands in frames under the numbers `indices`, ascending.
    fn restore(
        &self,
        frames: &[Option<StateFrame>],
        indices: &[u32],
        slots: &[Slot],
        marks: &[Mark],
    ) -> Result<(), StateError> {
        let selection = StateSelection::Slots(indices.to_vec());
        let own: Vec<Option<StateFrame>> = frames
            .iter()
            .map(|frame| {
                frame.as_ref().map(|frame| frame.select(&selection)?.with_slots(renumber(indices, slots))).transpose()
            })
            .collect::<Result<_, _>>()?;
        let mut core = self.lock();
        if let Err(error) = self.import_state(&mut core, &own) {
            // None of it rather than half of it.
            let mut slots = slots.to_vec();
            slots.sort_unstable();
            self.control(&mut core, Control::RemoveSlots(slots.clone()));
            self.control(&mut core, Control::AddSlots(slots));
            return Err(error);
        }
        if let Some(progress) = &mut core.progress {
            for (&slot, &mark) in slots.iter().zip(marks) {
                progress.set(slot, mark);
                progress.expect_repeats(mark.applied);
            }
        }
        Ok(())
    }
}
