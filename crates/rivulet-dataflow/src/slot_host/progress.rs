//! What a checkpoint needs to know of each slot: whether it changed since the last one, which event it has come to, and
//! how many results it has given.
//!
//! Kept only in groups whose queries outlive the process. What must hold: progress changes under the same lock as the
//! state of the slot, and moves with it. So state, position and number of results always belong to the same moment.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::event::position_of;
use crate::{LogPosition, QueryId, Slot};

/// The progress of a slot, saved with its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Whether the slot changed since the last capture.
    pub changed: bool,
    /// The [stamp](crate::event::stamp) of the last event in the state; 0 if there is none.
    pub applied: u64,
    /// The number of the last result; 0 if there is none.
    pub results: u64,
    /// The number of the last ALTER of a query in the slot; 0 if there is none.
    pub altered: u64,
}

/// Ranges of the log in which a query was paused or did not exist: a replay must not give it those events. Each of
/// these queries is alone in its slot.
#[derive(Clone, Debug, Default)]
pub struct Absences {
    by_query: HashMap<QueryId, Vec<Range<LogPosition>>>,
    /// All absences end before this position.
    end: LogPosition,
}

impl Absences {
    /// The query gets none of the events in this range.
    pub fn add(&mut self, query: QueryId, positions: Range<LogPosition>) {
        self.end = self.end.max(positions.end);
        self.by_query.entry(query).or_default().push(positions);
    }

    /// Ends all absences at this position.
    pub fn end_at(&mut self, position: LogPosition) {
        self.end = self.end.min(position);
        self.by_query.values_mut().flatten().for_each(|away| away.end = away.end.min(position));
    }

    /// Forgets the absences that end at this position or before; whether there was any.
    pub fn forget_before(&mut self, position: LogPosition) -> bool {
        let mut is_any = false;
        self.by_query.retain(|_, ranges| {
            ranges.retain(|away| {
                let stays = away.end > position;
                is_any |= !stays;
                stays
            });
            !ranges.is_empty()
        });
        is_any
    }

    fn has(&self, query: QueryId, position: LogPosition) -> bool {
        self.by_query.get(&query).is_some_and(|ranges| ranges.iter().any(|away| away.contains(&position)))
    }
}

/// The progress of a host's slots, in columns.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// One bit for each slot.
    changed: Vec<u64>,
    /// Empty or short as long as no event has a position.
    applied: Vec<u64>,
    results: Vec<u64>,
    /// Empty as long as no query has been altered.
    altered: Vec<u64>,
    /// The highest stamp of a restored slot: events behind it are new to all slots.
    repeats_to: u64,
    /// Absences of queries of the group, if there are any.
    absences: Option<Arc<Absences>>,
    /// The numbers of the rows that go to the sink; kept to reuse the memory.
    numbers: Vec<u64>,
}

impl Progress {
    /// Resets slots that have new queries.
    pub(super) fn reset(&mut self, slots: &[Slot]) {
        for &slot in slots {
            self.set(slot, Mark::default());
        }
    }

    pub(super) fn mark(&self, slot: Slot) -> Mark {
        let place = slot as usize;
        Mark {
            changed: self.changed.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1),
            applied: self.applied.get(place).copied().unwrap_or(0),
            results: self.results.get(place).copied().unwrap_or(0),
            altered: self.altered.get(place).copied().unwrap_or(0),
        }
    }

    pub(super) fn set(&mut self, slot: Slot, mark: Mark) {
        let place = slot as usize;
        match mark.changed {
            true => self.note_change(slot),
            false => self.clear(slot),
        }
        if mark.applied != 0 || place < self.applied.len() {
            *grown(&mut self.applied, place) = mark.applied;
        }
        if mark.results != 0 || place < self.results.len() {
            *grown(&mut self.results, place) = mark.results;
        }
        if mark.altered != 0 || place < self.altered.len() {
            *grown(&mut self.altered, place) = mark.altered;
        }
    }

    /// Slots were restored up to this stamp: events up to it may be repeated.
    pub(super) fn expect_repeats(&mut self, stamp: u64) {
        self.repeats_to = self.repeats_to.max(stamp);
    }

    /// The highest stamp that may be repeated.
    pub(super) fn repeats_to(&self) -> u64 {
        self.repeats_to
    }

    #[inline]
    fn note_change(&mut self, slot: Slot) {
        let place = slot as usize;
        *grown(&mut self.changed, place / 64) |= 1 << (place % 64);
    }

    /// Marks the slot as captured.
    pub(super) fn clear(&mut self, slot: Slot) {
        let place = slot as usize;
        if let Some(word) = self.changed.get_mut(place / 64) {
            *word &= !(1 << (place % 64));
        }
    }

    /// Replaces the absences of the group's queries.
    pub(super) fn set_absences(&mut self, absences: Option<Arc<Absences>>) {
        self.absences = absences;
    }

    pub(super) fn absences(&self) -> Option<&Arc<Absences>> {
        self.absences.as_ref()
    }

    /// Whether an event with this stamp may already be in the state of its slot, or may fall into an absence.
    #[inline]
    pub(super) fn may_repeat(&self, stamp: u64) -> bool {
        let end = self.absences.as_ref().map_or(0, |absences| absences.end);
        stamp != 0 && (stamp <= self.repeats_to || position_of(stamp) < end)
    }

    /// Whether a query was absent when the event with this stamp came.
    pub(super) fn was_away(&self, query: Option<QueryId>, stamp: u64) -> bool {
        let is_away = |absences: &Arc<Absences>| query.is_some_and(|query| absences.has(query, position_of(stamp)));
        self.absences.as_ref().is_some_and(is_away)
    }

    /// Whether an event is already in the state of its slot.
    #[inline]
    pub(super) fn has_applied(&self, slot: Slot, stamp: u64) -> bool {
        stamp != 0 && self.applied.get(slot as usize).is_some_and(|&applied| stamp <= applied)
    }

    /// Notes that an event goes into the state of its slot.
    #[inline]
    pub(super) fn note_event(&mut self, slot: Slot, stamp: u64) {
        self.note_change(slot);
        if stamp != 0 {
            let applied = grown(&mut self.applied, slot as usize);
            // The stamp never goes back: a restart would process the events in between once more.
            *applied = stamp.max(*applied);
        }
    }

    /// Numbers results; numbers of a slot are consecutive.
    pub(super) fn number(&mut self, slots: &[Slot]) -> &[u64] {
        self.numbers.clear();
        for &slot in slots {
            self.note_change(slot);
            let results = grown(&mut self.results, slot as usize);
            *results += 1;
            let number = *results;
            self.numbers.push(number);
        }
        &self.numbers
    }

    /// The first `slots_max` changed slots from `from` up to `end` (exclusive), ascending.
    pub(super) fn changed(&self, from: Slot, end: Slot, slots_max: usize) -> Vec<Slot> {
        let mut changed = Vec::new();
        let words = (from as usize / 64)..self.changed.len().min((end as usize).div_ceil(64));
        for index in words {
            let mut word = self.changed[index];
            while word != 0 {
                let slot = (index * 64) as Slot + word.trailing_zeros();
                word &= word - 1;
                if slot < from || slot >= end {
                    continue;
                }
                if changed.len() == slots_max {
                    return changed;
                }
                changed.push(slot);
            }
        }
        changed
    }

    /// Raises the stamp of these slots to at least this one.
    pub(super) fn pass(&mut self, slots: impl Iterator<Item = Slot>, stamp: u64) {
        for slot in slots {
            let mark = self.mark(slot);
            self.set(slot, Mark { changed: true, applied: mark.applied.max(stamp), ..mark });
        }
    }

    /// The slot gets no event up to this stamp. This is not a change that must be saved.
    pub(super) fn begin_behind(&mut self, slot: Slot, stamp: u64) {
        let Mark { applied, .. } = self.mark(slot);
        *grown(&mut self.applied, slot as usize) = applied.max(stamp);
    }

    /// Notes that a query in the slot was altered.
    pub(super) fn alter(&mut self, slot: Slot, number: u64) {
        let mark = self.mark(slot);
        self.set(slot, Mark { changed: true, altered: mark.altered.max(number), ..mark });
    }

    /// Marks all these slots as changed.
    pub(super) fn change_all(&mut self, slots: impl Iterator<Item = Slot>) {
        slots.for_each(|slot| self.note_change(slot));
    }

    /// Memory held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        [&self.changed, &self.applied, &self.results, &self.altered, &self.numbers]
            .map(Vec::capacity)
            .iter()
            .sum::<usize>()
            * 8
    }
}

/// The value at an index; the vector grows if needed.
#[inline]
fn grown(values: &mut Vec<u64>, place: usize) -> &mut u64 {
    if place >= values.len() {
        values.resize(place + 1, 0);
    }
    &mut values[place]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::stamp;

    #[test]
    fn marks_go_with_their_slot_and_are_found_in_order() {
        let mut progress = Progress::default();
        for slot in [200, 3, 64, 63, 3] {
            progress.note_event(slot, stamp(u64::from(slot) + 1, 0));
        }
        assert_eq!(progress.changed(0, 1_000, 10), [3, 63, 64, 200]);
        assert_eq!(progress.changed(4, 200, 10), [63, 64]);
        assert_eq!(progress.changed(0, 1_000, 2), [3, 63]);
        let mark = Mark { changed: true, applied: stamp(201, 0), ..Mark::default() };
        assert_eq!(progress.mark(200), mark);
        progress.clear(63);
        progress.set(500, progress.mark(200));
        progress.reset(&[200, 7]);
        assert_eq!(progress.changed(0, 1_000, 10), [3, 64, 500]);
        assert_eq!(
            (progress.mark(500), progress.mark(200), progress.mark(9_999)),
            (mark, Mark::default(), Mark::default())
        );
    }

    #[test]
    fn a_slot_has_come_as_far_as_its_furthest_event() {
        let mut progress = Progress::default();
        for position in [4, 6, 5] {
            progress.note_event(2, stamp(position, 0));
        }
        assert_eq!(progress.mark(2).applied, stamp(6, 0));
    }

    #[test]
    fn results_are_numbered_by_slot() {
        let mut progress = Progress::default();
        assert_eq!(progress.number(&[1, 1, 0, 1]), [1, 2, 1, 3]);
        assert_eq!(progress.number(&[0, 2]), [2, 1]);
        assert_eq!((progress.mark(1).results, progress.mark(1).changed), (3, true));
    }

    #[test]
    fn who_was_away_gets_nothing_of_that_time() {
        let mut progress = Progress::default();
        let mut absences = Absences::default();
        absences.add(7, 10..20);
        absences.add(7, 30..LogPosition::MAX);
        progress.set_absences(Some(Arc::new(absences.clone())));
        let away = |progress: &Progress, query| -> Vec<u64> {
            (1..50).filter(|&at| progress.may_repeat(stamp(at, 1)) && progress.was_away(query, stamp(at, 1))).collect()
        };
        assert_eq!(away(&progress, Some(7)), (10..20).chain(30..50).collect::<Vec<_>>());
        assert!(away(&progress, Some(8)).is_empty() && away(&progress, None).is_empty());
        absences.end_at(40);
        progress.set_absences(Some(Arc::new(absences.clone())));
        assert_eq!(away(&progress, Some(7)), (10..20).chain(30..40).collect::<Vec<_>>());
        assert!(!absences.forget_before(19) && absences.forget_before(20) && !absences.forget_before(20));
        assert!(!progress.may_repeat(stamp(40, 0)) && !progress.may_repeat(0));
    }

    #[test]
    fn only_what_was_restored_can_repeat() {
        let mut progress = Progress::default();
        progress.note_event(0, stamp(10, 0));
        assert!(!progress.may_repeat(stamp(10, 0)), "events come once as long as nothing was restored");
        progress.set(1, Mark { applied: stamp(20, 1), results: 4, ..Mark::default() });
        progress.expect_repeats(stamp(20, 1));
        assert!(progress.may_repeat(stamp(20, 1)) && !progress.may_repeat(stamp(20, 2)) && !progress.may_repeat(0));
        assert!(progress.has_applied(1, stamp(20, 0)) && progress.has_applied(1, stamp(20, 1)));
        assert!(!progress.has_applied(1, stamp(20, 2)), "the same message by a further input is another event");
        assert!(!progress.has_applied(2, stamp(1, 0)) && !progress.has_applied(1, 0));
        assert_eq!(progress.changed(0, 10, 10), [0]);
    }
}
