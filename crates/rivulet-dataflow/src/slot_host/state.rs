//! Queries with all that belongs to them: copied to another host, saved by a checkpoint and restored, or begun anew.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::SlotHost;
use super::progress::{Absences, Mark};
use crate::event::{position_of, stamp};
use crate::{
    Control, GroupSink, InputIndex, LogPosition, QueryId, Slot, StateError, StateFrame, StateMap, StateSelection, Tally,
};

/// Copies of queries: their parameters, state, progress and counts.
#[derive(Clone, Debug)]
pub struct SlotCopy {
    /// Their slots in the host that they are copied from, ascending.
    slots: Vec<Slot>,
    queries: Vec<QueryId>,
    parameters: RecordBatch,
    /// The further queries of shared slots, by slot.
    further: Vec<(Slot, Vec<QueryId>, RecordBatch)>,
    frames: Vec<Option<StateFrame>>,
    /// The progress of each slot, where it is kept.
    marks: Vec<Mark>,
    /// The highest stamp that may be repeated.
    repeats_to: u64,
    /// Absences of queries of the group.
    absences: Option<Arc<Absences>>,
    /// Tallies of their events, where they are counted.
    tallies: Vec<Option<Tally>>,
}

impl SlotCopy {
    /// The same queries for another version of their application: with the state that `map` keeps, and with other
    /// parameters, of which `parameters` returns one row for each query.
    ///
    /// # Errors
    /// State that does not fit.
    pub fn migrate(
        mut self,
        map: &StateMap,
        parameters: &dyn Fn(&[QueryId]) -> RecordBatch,
        now_us: i64,
    ) -> Result<Self, StateError> {
        self.parameters = parameters(&self.queries);
        self.further.iter_mut().for_each(|(_, queries, of_these)| *of_these = parameters(queries));
        self.frames = map.apply(&self.frames)?;
        // The new version may have other operators at the places where tallies counted.
        self.tallies.iter_mut().flatten().for_each(|tally| *tally = tally.anew(now_us));
        Ok(self)
    }

    /// One of the queries that share the only copied slot, with its parameters, for a slot of its own.
    #[must_use]
    pub fn of_one(self, query: QueryId, parameters: RecordBatch) -> Self {
        Self { queries: vec![query], parameters, further: Vec::new(), tallies: Vec::new(), ..self }
    }
}

/// Queries at one moment, by slot, ascending.
#[derive(Clone, Debug)]
pub struct SlotSnapshot {
    /// Their slots.
    pub slots: Vec<Slot>,
    /// The progress of each slot; as of a new one where it is not kept.
    pub marks: Vec<Mark>,
    /// Each query with the index of its slot in `slots`.
    pub queries: Vec<(u32, QueryId)>,
    /// The state of each operator, with these slots.
    pub frames: Vec<Option<StateFrame>>,
}

impl SlotSnapshot {
    /// The highest log position of an event in any state.
    pub fn position(&self) -> LogPosition {
        self.marks.iter().map(|mark| position_of(mark.applied)).max().unwrap_or(0)
    }
}

impl SlotHost {
    /// Copies the queries in these slots, ascending.
    ///
    /// # Errors
    /// State that cannot be exported.
    ///
    /// # Panics
    /// If a slot has no query.
    pub fn copy(&self, slots: &[Slot]) -> Result<SlotCopy, StateError> {
        Ok(SlotCopy {
            slots: slots.to_vec(),
            queries: slots.iter().map(|&slot| self.slots.query(slot).expect("the slot has a query")).collect(),
            parameters: self.slots.parameters(slots),
            further: slots
                .iter()
                .filter_map(|&slot| self.slots.further_queries(slot).map(|(queries, of)| (slot, queries, of)))
                .collect(),
            frames: self.export_state(&StateSelection::Slots(slots.to_vec()))?,
            marks: match &self.progress {
                Some(progress) => slots.iter().map(|&slot| progress.mark(slot)).collect(),
                None => Vec::new(),
            },
            repeats_to: self.progress.as_ref().map_or(0, |progress| progress.repeats_to()),
            absences: self.progress.as_ref().and_then(|progress| progress.absences().cloned()),
            tallies: slots.iter().map(|&slot| self.refusals.tallies()?.get(slot).cloned()).collect(),
        })
    }

    /// Adds copied queries, and returns their slots here.
    ///
    /// # Errors
    /// State that cannot be imported: the queries are removed again.
    pub fn put(&mut self, copy: SlotCopy, now_us: i64, sink: &mut dyn GroupSink) -> Result<Vec<Slot>, StateError> {
        let new = self.add(&copy.queries, &copy.parameters, now_us, sink);
        let imported = with_slots(copy.frames, &copy.slots, &new).and_then(|frames| self.import_state(&frames));
        if let Err(error) = imported {
            self.remove(&new, now_us, sink);
            return Err(error);
        }
        if let Some(progress) = &mut self.progress {
            new.iter().zip(copy.marks).for_each(|(&slot, mark)| progress.set(slot, mark));
            progress.expect_repeats(copy.repeats_to);
            if copy.absences.is_some() {
                progress.set_absences(copy.absences);
            }
        }
        for (slot, queries, parameters) in &copy.further {
            let slot = renumber(&copy.slots, &new)(*slot).expect("the slot was copied");
            self.share(slot, queries, parameters);
        }
        self.put_tallies(&new, copy.tallies);
        Ok(new)
    }

    /// Marks all queries as changed, for a snapshot of everything.
    pub fn change_all(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.change_all(self.slots.slots());
        }
    }

    /// Marks the queries in these slots as changed: a snapshot of them is lost.
    pub fn change(&mut self, slots: &[Slot]) {
        if let Some(progress) = &mut self.progress {
            progress.change_all(slots.iter().copied());
        }
    }

    /// The next slots from `from` up to `end` (exclusive) whose query has changed since its last snapshot, ascending,
    /// at most `slots_max`; empty if there are no more.
    pub fn changed(&self, from: Slot, end: Slot, slots_max: usize) -> Vec<Slot> {
        let Some(progress) = &self.progress else { return Vec::new() };
        let (mut from, mut found) = (from, Vec::new());
        // Empty slots are skipped, but must not look like the end.
        while found.is_empty() {
            let changed = progress.changed(from, end, slots_max);
            let Some(&last) = changed.last() else { break };
            from = last + 1;
            found = changed;
            found.retain(|&slot| self.slots.query(slot).is_some());
        }
        found
    }

    /// Snapshots the queries in these slots, ascending, which do not count as changed from now on.
    ///
    /// # Errors
    /// State that cannot be exported; nothing has changed then.
    pub fn snapshot(&mut self, slots: Vec<Slot>) -> Result<SlotSnapshot, StateError> {
        let mut queries = Vec::with_capacity(slots.len());
        for (index, &slot) in (0..).zip(&slots) {
            self.slots.for_each_query(slot, |query, _, _| queries.push((index, query)));
        }
        let frames = self.export_state(&StateSelection::Slots(slots.clone()))?;
        let marks = slots.iter().map(|&slot| self.mark(slot).unwrap_or_default()).collect();
        if let Some(progress) = &mut self.progress {
            slots.iter().for_each(|&slot| progress.clear(slot));
        }
        Ok(SlotSnapshot { slots, marks, queries, frames })
    }

    /// Restores the queries in `slots` from the state and progress that a snapshot has of `saved`, ascending, each of
    /// which goes to the slot at the same index.
    ///
    /// # Errors
    /// State that cannot be imported: these queries begin anew.
    pub fn restore(
        &mut self,
        slots: &[Slot],
        saved: &[Slot],
        frames: &[Option<StateFrame>],
        marks: &[Mark],
        now_us: i64,
        sink: &mut dyn GroupSink,
    ) -> Result<(), StateError> {
        let selection = StateSelection::Slots(saved.to_vec());
        let selected = frames.iter().map(|frame| frame.as_ref().map(|frame| frame.select(&selection)).transpose());
        let own = with_slots(selected.collect::<Result<_, _>>()?, saved, slots)?;
        if let Err(error) = self.import_state(&own) {
            // Drops all state of these slots rather than keeping half of it.
            let mut slots = slots.to_vec();
            slots.sort_unstable();
            self.begin_anew(&slots, now_us, sink);
            return Err(error);
        }
        if let Some(progress) = &mut self.progress {
            for (&slot, &mark) in slots.iter().zip(marks) {
                progress.set(slot, mark);
                progress.expect_repeats(mark.applied);
            }
        }
        Ok(())
    }

    /// Changes the queries in these slots, ascending, so that their operators begin anew but for the state that `map`
    /// keeps. `change` gives the queries their new parameters.
    ///
    /// # Errors
    /// State that cannot be kept: these queries begin anew, with their new parameters.
    pub fn reset(
        &mut self,
        slots: Vec<Slot>,
        map: &StateMap,
        change: impl FnOnce(&mut Self),
        now_us: i64,
        sink: &mut dyn GroupSink,
    ) -> Result<(), StateError> {
        let kept = self.export_state(&StateSelection::Slots(slots.clone())).and_then(|frames| map.apply(&frames));
        self.control(Control::RemoveSlots(slots.clone()), now_us, sink);
        change(self);
        self.control(Control::AddSlots(slots.clone()), now_us, sink);
        kept.and_then(|frames| self.import_state(&frames)).inspect_err(|_| {
            // Drops all state of these queries rather than keeping half of it.
            self.begin_anew(&slots, now_us, sink);
        })
    }

    /// The progress of a slot, where it is kept.
    pub fn mark(&self, slot: Slot) -> Option<Mark> {
        self.progress.as_ref().map(|progress| progress.mark(slot))
    }

    /// The present queries get no event up to this position of the log.
    pub fn pass(&mut self, position: LogPosition) {
        if let Some(progress) = &mut self.progress {
            progress.pass(self.slots.slots(), stamp(position, InputIndex::MAX));
        }
    }

    /// The queries in these slots begin behind this position of the log and get no event up to it.
    pub fn begin_behind(&mut self, slots: &[Slot], position: LogPosition) {
        let Some(progress) = &mut self.progress else { return };
        let stamp = stamp(position, InputIndex::MAX);
        slots.iter().for_each(|&slot| progress.begin_behind(slot, stamp));
        progress.expect_repeats(stamp);
    }

    /// Sets the absences of queries: ranges of the log that are not for them. Replaces those set before.
    pub fn set_absences(&mut self, absences: &Arc<Absences>) {
        if let Some(progress) = &mut self.progress {
            progress.set_absences(Some(absences.clone()));
        }
    }
}

/// Maps the `old` slots, ascending, to the `new` slots at the same indices.
pub fn renumber(old: &[Slot], new: &[Slot]) -> impl Fn(Slot) -> Option<Slot> {
    |slot| old.binary_search(&slot).ok().map(|row| new[row])
}

/// State of each operator with new slots in the place of the `old` ones, ascending.
///
/// # Errors
/// State of a slot that is not among the old ones.
pub fn with_slots(
    frames: Vec<Option<StateFrame>>,
    old: &[Slot],
    new: &[Slot],
) -> Result<Vec<Option<StateFrame>>, StateError> {
    let renumbered = |frame: StateFrame| frame.with_slots(renumber(old, new));
    frames.into_iter().map(|frame| frame.map(renumbered).transpose()).collect()
}
