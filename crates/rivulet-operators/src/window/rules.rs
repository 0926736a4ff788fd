//! The rules by which windows advance: which windows a row closes, where it counts, and when windows are due.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use rivulet_dataflow::{Leaps, Slot, SlotClock};

use super::cells::{CellParts, Cells, NEVER, SlotLengths, SlotState};
use super::length::{Lengths, TIME_MAX_US, WindowSpec};
use super::output::{Closed, Closing};
use super::panes::{PANES_APART_MAX, PaneNumber};
use super::plan::Plan;
use super::shared::shares_panes;
use crate::aggregate::layout::FixedUpdates;
use crate::aggregate::object::{Object, ObjectUpdate};
use crate::keyed::idle_us;

/// How many entries of memory a cell keeps when a tick has emptied it: a device that fell silent frees the rest.
const SILENT_ENTRIES_MAX: usize = 4;

/// The state of all windows and the rule by which they advance.
pub(crate) struct Windows {
    pub(crate) plan: Arc<Plan>,
    pub(crate) cells: Cells,
    pub(crate) closed: Closed,
    /// No slot has an earlier deadline. Exact after a tick, a lower bound between ticks.
    pub(crate) deadline_us: i64,
    /// The leaps of the arrival clock.
    pub(crate) leaps: Leaps,
}

/// A row on its way into a window.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    /// Its index in the batch.
    pub(crate) index: usize,
    pub(crate) slot: usize,
    pub(crate) time_us: i64,
    pub(crate) arrival_us: i64,
    pub(crate) key: &'a [u8],
}

/// The values of a batch.
pub(crate) struct Updates<'a> {
    pub(crate) fixed: FixedUpdates<'a>,
    pub(crate) objects: Vec<ObjectUpdate<'a>>,
    /// Of windows of a state: which rows open a window, and which are the last of one.
    pub(crate) conditions: &'a [ArrayRef],
}

/// The places of the conditions of windows of a state.
const OPENS: usize = 0;
const IS_LAST: usize = 1;

impl Updates<'_> {
    /// Whether a row meets a condition; null is not met.
    fn holds(&self, condition: usize, row: usize) -> bool {
        let values = self.conditions[condition].as_boolean_opt();
        values.is_some_and(|values| values.is_valid(row) && values.value(row))
    }
}

/// The outcome of a row.
#[derive(PartialEq, Eq)]
pub(crate) enum Verdict {
    Counted,
    Late,
    TooManyKeys,
}

impl Windows {
    /// Processes one row, in the order of steps that the module's documentation gives.
    #[inline]
    pub(crate) fn process_row(&mut self, row: Row<'_>, lengths: Lengths, updates: &Updates<'_>) -> Verdict {
        match self.plan.window {
            WindowSpec::Count { .. } => return self.count_in_block(row, lengths, updates),
            WindowSpec::State => return self.count_in_state(row, updates),
            _ => {}
        }
        let watermark_us = match self.plan.over_windows {
            true => row.time_us,
            false => self.watermark_us(&self.cells.slots[row.slot], lengths, row.arrival_us),
        };
        self.advance(row.slot, lengths, watermark_us, row.arrival_us, false);
        let verdict = match self.plan.window {
            WindowSpec::Session { .. } => self.count_in_session(row, lengths.width, updates),
            _ => self.count_in_pane(row, lengths, updates),
        };
        let slot = &mut self.cells.slots[row.slot];
        // The clock of a slot over earlier windows is theirs, as soon as they have told it.
        let has_clock = self.plan.over_windows && !self.plan.arrival_time && slot.max_ts_us != i64::MIN;
        if verdict == Verdict::Counted && !has_clock {
            slot.max_ts_us = slot.max_ts_us.max(row.time_us);
            slot.last_arrival_us = row.arrival_us;
            if !self.plan.arrival_time {
                let watermark_us = slot.max_ts_us.saturating_sub(self.plan.lateness_us).max(slot.watermark_us);
                self.advance(row.slot, lengths, watermark_us, row.arrival_us, false);
            }
        }
        self.set_deadline(row.slot);
        verdict
    }

    /// Sets the clock of a slot to that of the earlier windows.
    pub(crate) fn set_clock(&mut self, clock: SlotClock) {
        let slot = clock.slot as usize;
        let SlotLengths::Known(lengths) = self.cells.lengths(slot) else { return };
        let state = &mut self.cells.slots[slot];
        state.max_ts_us = clock.newest_us.saturating_sub(lengths.offset).clamp(-TIME_MAX_US, TIME_MAX_US);
        state.last_arrival_us = clock.arrival_us;
        let watermark_us = clock.watermark_us.saturating_sub(lengths.offset);
        self.advance(slot, lengths, watermark_us, clock.arrival_us, false);
        self.set_deadline(slot);
    }

    /// The clock of a slot, if it has one.
    pub(crate) fn clock(&self, slot: Slot) -> Option<SlotClock> {
        let SlotLengths::Known(lengths) = self.cells.lengths(slot as usize) else { return None };
        let state = &self.cells.slots[slot as usize];
        (state.max_ts_us != i64::MIN).then_some(SlotClock {
            slot,
            newest_us: state.max_ts_us.saturating_add(lengths.offset),
            arrival_us: state.last_arrival_us,
            watermark_us: state.watermark_us.saturating_add(lengths.offset),
        })
    }

    /// Advances the clock by a row whose key another instance has. It closes here what it closes there, and is late
    /// here if it is late there. This does not serve sessions: only the instance that has the key knows whether a row
    /// of a session is late.
    #[inline]
    pub(crate) fn pass_row(&mut self, slot: usize, lengths: Lengths, time_us: i64, arrival_us: i64) {
        if !self.plan.window.is_time() {
            return;
        }
        let watermark_us = self.watermark_us(&self.cells.slots[slot], lengths, arrival_us);
        self.advance(slot, lengths, watermark_us, arrival_us, false);
        let watermark_us = self.cells.slots[slot].watermark_us;
        if lengths.last_end_us(time_us).is_none_or(|end_us| end_us > watermark_us) {
            let slot_state = &mut self.cells.slots[slot];
            slot_state.max_ts_us = slot_state.max_ts_us.max(time_us);
            slot_state.last_arrival_us = arrival_us;
            if !self.plan.arrival_time {
                let watermark_us = slot_state.max_ts_us.saturating_sub(self.plan.lateness_us);
                let watermark_us = watermark_us.max(slot_state.watermark_us);
                self.advance(slot, lengths, watermark_us, arrival_us, false);
            }
        }
        self.set_deadline(slot);
    }

    /// The watermark of a slot when the arrival clock shows `now_us`. Like all times of the slot, it is a time of
    /// windows that are not shifted.
    #[inline]
    fn watermark_us(&self, slot: &SlotState, lengths: Lengths, now_us: i64) -> i64 {
        let by_clock_us = if self.plan.arrival_time {
            now_us - lengths.offset
        } else if slot.max_ts_us == i64::MIN {
            i64::MIN
        } else {
            let idle_us = idle_us(&self.leaps, slot.last_arrival_us, now_us, self.plan.idle_timeout_us);
            slot.max_ts_us.saturating_sub(self.plan.lateness_us).saturating_add(idle_us)
        };
        by_clock_us.max(slot.watermark_us)
    }

    /// Whether a late row would count if the time of its slot had not gone on by the clock.
    pub(crate) fn is_late_by_clock(&self, row: Row<'_>, lengths: Lengths) -> bool {
        let reached_us = self.cells.slots[row.slot].max_ts_us.saturating_sub(self.plan.lateness_us);
        match self.plan.window {
            WindowSpec::Session { .. } => row.time_us + lengths.width > reached_us,
            _ => lengths.last_end_us(row.time_us).is_some_and(|end_us| end_us > reached_us),
        }
    }

    /// Closes the windows of a slot that are due at `now_us` without a row.
    pub(crate) fn advance_by_clock(&mut self, slot: usize, now_us: i64) {
        let SlotLengths::Known(lengths) = self.cells.lengths(slot) else {
            self.cells.deadlines_us[slot] = NEVER;
            return;
        };
        let watermark_us = self.watermark_us(&self.cells.slots[slot], lengths, now_us);
        self.advance(slot, lengths, watermark_us, now_us, true);
        self.set_deadline(slot);
    }

    /// Sets the time at which a window of this slot closes if no row comes.
    #[inline]
    pub(crate) fn set_deadline(&mut self, slot: usize) {
        let state = &self.cells.slots[slot];
        let deadline_us = if state.next_end_us == NEVER || self.plan.arrival_time {
            match self.cells.lengths(slot) {
                SlotLengths::Known(lengths) => state.next_end_us.saturating_add(lengths.offset),
                _ => state.next_end_us,
            }
        } else {
            let missing_us = state.next_end_us.saturating_sub(state.max_ts_us.saturating_sub(self.plan.lateness_us));
            self.leaps.after_us(state.last_arrival_us, missing_us.max(self.plan.idle_timeout_us))
        };
        self.cells.deadlines_us[slot] = deadline_us;
        self.deadline_us = self.deadline_us.min(deadline_us);
    }

    /// Advances a slot's watermark to `watermark_us` and closes every window that ends by then.
    #[inline]
    fn advance(&mut self, slot: usize, lengths: Lengths, watermark_us: i64, arrival_us: i64, by_tick: bool) {
        let state = &mut self.cells.slots[slot];
        if watermark_us <= state.watermark_us {
            return;
        }
        state.watermark_us = watermark_us;
        if watermark_us >= state.next_end_us {
            self.close(slot, lengths, watermark_us, arrival_us, by_tick);
        }
    }

    /// Closes the windows that end by `watermark_us`, by ascending end and, for one end, from the oldest key to the
    /// youngest. The order is the same whether they close one after the other or all at once.
    fn close(&mut self, slot: usize, lengths: Lengths, watermark_us: i64, arrival_us: i64, by_tick: bool) {
        let mut end_us = self.cells.slots[slot].next_end_us;
        while end_us <= watermark_us && end_us != NEVER {
            let mut next_end_us = NEVER;
            let mut cell = self.cells.first(slot);
            while let Some(place) = cell {
                cell = self.cells.next(place);
                let closing = Closing { slot: slot as Slot, arrival_us, start_us: end_us, end_us };
                let open_end_us = match self.plan.window {
                    WindowSpec::Session { .. } => self.close_session(place, lengths.width, closing),
                    _ => self.close_panes(place, lengths, closing),
                };
                if self.cells.panes(place).is_empty() {
                    self.empty_cell(place, by_tick);
                }
                next_end_us = next_end_us.min(open_end_us);
            }
            end_us = next_end_us;
        }
        self.cells.slots[slot].next_end_us = end_us;
    }

    /// Handles a cell without panes. With keys it is removed. Without keys, a silent slot frees memory that it may not
    /// need again soon.
    fn empty_cell(&mut self, cell: usize, by_tick: bool) {
        let kept_bytes = SILENT_ENTRIES_MAX * self.plan.layout.entry_words * 8;
        if self.plan.keys > 0 || (by_tick && self.cells.panes(cell).capacity_bytes() > kept_bytes) {
            self.cells.remove_cell(cell);
        }
    }

    /// Closes the window of a cell that ends at `closing.end_us`, if it holds a pane; returns the next end.
    fn close_panes(&mut self, cell: usize, lengths: Lengths, closing: Closing) -> i64 {
        let words = self.plan.layout.entry_words;
        let Lengths { slide, pane, offset, .. } = lengths;
        let end_us = closing.end_us;
        let panes = self.cells.panes(cell);
        let end = PaneNumber::at(end_us, pane);
        let count = panes.count_before(words, |word| PaneNumber::of(word).is_before(end));
        if count > 0 {
            let closing = Closing { start_us: lengths.start_us(end_us) + offset, end_us: end_us + offset, ..closing };
            // Panes before the start of the next window are in no open window.
            let next_start = PaneNumber::at(lengths.next_start_us(end_us), pane);
            let gone = panes.count_before(words, |word| PaneNumber::of(word).is_before(next_start)).min(count);
            if shares_panes(lengths) {
                self.cells.share(cell, count, &self.plan.layout);
            }
            self.close_entries(cell, count, closing);
            if let CellParts { panes, shared: Some(shared), .. } = self.cells.parts(cell) {
                shared.remove_front(panes, gone, &self.plan.layout);
            }
            self.remove_front(cell, gone);
        }
        let panes = self.cells.panes(cell);
        if panes.is_empty() {
            return NEVER;
        }
        let first_us = PaneNumber::of(panes.first_word(0, words)).start_us(end_us, pane);
        let next_us = end_us + slide;
        match lengths.start_us(next_us) <= first_us && first_us < next_us {
            true => next_us,
            false => first_open_end_us(first_us, lengths, end_us),
        }
    }

    /// Closes the window that consists of the first `count` panes of a cell.
    fn close_entries(&mut self, cell: usize, count: usize, closing: Closing) {
        let layout = &self.plan.layout;
        let panes = self.cells.panes(cell);
        let parts = match self.cells.shared(cell) {
            Some(shared) => shared.parts(panes, layout),
            None => [&panes.entries()[..count * layout.entry_words], &[]],
        };
        let objects = self.cells.objects(cell).map(|objects| (objects, 0..count));
        self.closed.push(&self.plan, closing, self.cells.key(cell), parts, objects);
    }

    fn remove_front(&mut self, cell: usize, count: usize) {
        let words = self.plan.layout.entry_words;
        let CellParts { panes, objects, .. } = self.cells.parts(cell);
        panes.remove_front(count, words);
        if let Some(objects) = objects {
            objects.drain(..count);
        }
    }

    /// The end of a session whose newest row is of `last_us`. By arrival, the clock may have leapt since then, and what
    /// it has leapt over was no silence.
    #[inline]
    pub(crate) fn session_end_us(&self, last_us: i64, gap_us: i64) -> i64 {
        match self.plan.arrival_time {
            true => self.leaps.after_us(last_us, gap_us),
            false => last_us + gap_us,
        }
    }

    /// Closes the oldest session of a cell if it ends at `closing.end_us`; returns the next end.
    fn close_session(&mut self, cell: usize, gap_us: i64, closing: Closing) -> i64 {
        let words = self.plan.layout.entry_words;
        let panes = self.cells.panes(cell);
        if panes.is_empty() {
            return NEVER;
        }
        let session = panes.entry(0, words);
        if self.session_end_us(session[1] as i64, gap_us) == closing.end_us {
            let closing = Closing { start_us: session[0] as i64, ..closing };
            let objects = self.cells.objects(cell).map(|objects| (objects, 0..1));
            self.closed.push(&self.plan, closing, self.cells.key(cell), [session, &[]], objects);
            self.remove_front(cell, 1);
        }
        let panes = self.cells.panes(cell);
        match panes.is_empty() {
            true => NEVER,
            false => self.session_end_us(panes.entry(0, words)[1] as i64, gap_us),
        }
    }

    /// Counts a row in its pane of tumbling, hopping or cumulating windows.
    #[inline]
    fn count_in_pane(&mut self, row: Row<'_>, lengths: Lengths, updates: &Updates<'_>) -> Verdict {
        let words = self.plan.layout.entry_words;
        let Lengths { slide, pane, .. } = lengths;
        let newest = row.time_us.div_euclid(slide);
        let newest_start_us = newest * slide;
        let Some(last_end_us) = lengths.last_end_us(row.time_us) else {
            // The row is between two windows: it is in none, and so it is not late either.
            return Verdict::Counted;
        };
        let watermark_us = self.cells.slots[row.slot].watermark_us;
        if last_end_us <= watermark_us {
            return Verdict::Late;
        }
        // The windows that the row closes do not hold it. They are closed first to make room for its pane. Also, after
        // a leap in time, panes on both sides could not be told apart. With keys, and without such a leap, they close
        // after the row: a key that goes on counting keeps its age.
        let leap_us = row.time_us.saturating_sub(self.cells.slots[row.slot].max_ts_us);
        if leap_us > 0 && (self.plan.keys == 0 || leap_us / pane > PANES_APART_MAX) {
            self.advance(row.slot, lengths, row.time_us.saturating_sub(self.plan.lateness_us), row.arrival_us, false);
        }
        let (start_us, number) = match pane == slide {
            true => (newest_start_us, PaneNumber(newest as u32)),
            false => {
                let start_us = newest_start_us + (row.time_us - newest_start_us) / pane * pane;
                (start_us, PaneNumber::at(start_us, pane))
            }
        };
        let Some(cell) = self.cells.find(row.slot, row.key).or_else(|| self.cells.create(row.slot, row.key)) else {
            return Verdict::TooManyKeys;
        };
        let CellParts { panes, objects, shared, heap_bytes } = self.cells.parts(cell);
        let mut index = panes.len(words);
        // Almost every row belongs to the newest pane or begins one.
        if index > 0 && !PaneNumber::of(panes.first_word(index - 1, words)).is_before(number) {
            index = panes.count_before(words, |word| PaneNumber::of(word).is_before(number));
        }
        let is_new = index == panes.len(words) || PaneNumber::of(panes.first_word(index, words)) != number;
        if is_new {
            panes.insert(index, &self.plan.layout.empty_entry, heap_bytes);
            number.put(panes.entry_mut(index, words));
        }
        match shared {
            Some(shared) => {
                let layout = &self.plan.layout;
                shared.update(panes, (index, is_new), layout, &updates.fixed, (row.index, row.time_us));
            }
            None => updates.fixed.update(panes.entry_mut(index, words), row.index, row.time_us),
        }
        if let Some(objects) = objects {
            if is_new {
                objects.insert(index, self.plan.layout.empty_objects());
            }
            update_objects(&mut objects[index], updates, row);
        }
        if is_new {
            let slot = &mut self.cells.slots[row.slot];
            // No window with this pane ends before the pane ends.
            if slot.next_end_us > start_us + pane {
                slot.next_end_us = slot.next_end_us.min(first_open_end_us(start_us, lengths, watermark_us));
            }
        }
        Verdict::Counted
    }

    /// Counts a row in its session: a session that it extends, two that it joins, or a new one.
    fn count_in_session(&mut self, row: Row<'_>, gap_us: i64, updates: &Updates<'_>) -> Verdict {
        let words = self.plan.layout.entry_words;
        let time_us = row.time_us;
        let found = self.cells.find(row.slot, row.key);
        // The first `behind` sessions begin before the time of the row plus the gap.
        let behind =
            found.map_or(0, |cell| self.cells.panes(cell).count_before(words, |word| (word as i64) < time_us + gap_us));
        let reached = |cell: usize, index: usize| {
            let last_us = self.cells.panes(cell).entry(index, words)[1] as i64;
            time_us < self.session_end_us(last_us, gap_us)
        };
        let (cell, index) = match found {
            Some(cell) if behind > 0 && reached(cell, behind - 1) => (cell, behind - 1),
            _ if time_us + gap_us <= self.cells.slots[row.slot].watermark_us => return Verdict::Late,
            _ => {
                let Some(cell) = found.or_else(|| self.cells.create(row.slot, row.key)) else {
                    return Verdict::TooManyKeys;
                };
                let CellParts { panes, objects, heap_bytes, .. } = self.cells.parts(cell);
                panes.insert(behind, &self.plan.layout.empty_entry, heap_bytes);
                let entry = panes.entry_mut(behind, words);
                (entry[0], entry[1]) = (time_us as u64, time_us as u64);
                if let Some(objects) = objects {
                    objects.insert(behind, self.plan.layout.empty_objects());
                }
                (cell, behind)
            }
        };
        // A row that reaches back to the previous session joins both. It cannot reach a third session, which ended
        // before the first of the two began.
        let joins = index > 0 && {
            let last_us = self.cells.panes(cell).entry(index - 1, words)[1] as i64;
            time_us < last_us + gap_us
        };
        let CellParts { panes, mut objects, .. } = self.cells.parts(cell);
        let entry = panes.entry_mut(index, words);
        entry[0] = (entry[0] as i64).min(time_us) as u64;
        entry[1] = (entry[1] as i64).max(time_us) as u64;
        updates.fixed.update(entry, row.index, time_us);
        if let Some(objects) = &mut objects {
            update_objects(&mut objects[index], updates, row);
        }
        if joins {
            let later = panes.entry(index, words).to_vec();
            panes.remove(index, words);
            let entry = panes.entry_mut(index - 1, words);
            entry[1] = later[1];
            self.plan.layout.merge_entry(entry, &later);
            if let Some(objects) = objects
                && let Some(later) = objects.remove(index)
            {
                let pane = &mut objects[index - 1];
                for ((state, object), later) in self.plan.layout.objects.iter().zip(pane.iter_mut()).zip(later) {
                    state.kind.merge(object, later);
                }
            }
        }
        let first_end_us = self.session_end_us(self.cells.panes(cell).entry(0, words)[1] as i64, gap_us);
        let slot = &mut self.cells.slots[row.slot];
        // With keys, another cell may end first. Then this stays a lower bound, and closing looks at all cells.
        slot.next_end_us = match self.plan.keys {
            0 => first_end_us,
            _ => slot.next_end_us.min(first_end_us),
        };
        Verdict::Counted
    }

    /// Counts a row in its block of rows and closes the window that it completes.
    fn count_in_block(&mut self, row: Row<'_>, lengths: Lengths, updates: &Updates<'_>) -> Verdict {
        let words = self.plan.layout.entry_words;
        let (width, slide, block_rows) = (lengths.width as u64, lengths.slide as u64, lengths.pane as u64);
        let Some(cell) = self.cells.find(row.slot, row.key).or_else(|| self.cells.create(row.slot, row.key)) else {
            return Verdict::TooManyKeys;
        };
        let number = self.cells.row_number(cell);
        if number % slide < width {
            let block = number / block_rows;
            let CellParts { panes, objects, heap_bytes, .. } = self.cells.parts(cell);
            let blocks = panes.len(words);
            let is_new = blocks == 0 || panes.first_word(blocks - 1, words) != block;
            let index = if is_new { blocks } else { blocks - 1 };
            if is_new {
                panes.insert(index, &self.plan.layout.empty_entry, heap_bytes);
                let entry = panes.entry_mut(index, words);
                (entry[0], entry[1]) = (block, row.time_us as u64);
            }
            let entry = panes.entry_mut(index, words);
            entry[2] = row.time_us as u64;
            updates.fixed.update(entry, row.index, row.time_us);
            if let Some(objects) = objects {
                if is_new {
                    objects.push_back(self.plan.layout.empty_objects());
                }
                update_objects(&mut objects[index], updates, row);
            }
        }
        let rows = number + 1;
        self.cells.set_row_number(cell, rows);
        if rows >= width && (rows - width).is_multiple_of(slide) {
            let first_block = (rows - width) / block_rows;
            self.close_blocks(cell, row.slot, first_block, rows.div_ceil(block_rows), row.arrival_us);
            let panes = self.cells.panes(cell);
            let gone = panes.count_before(words, |block| block < (rows - width + slide) / block_rows);
            self.remove_front(cell, gone);
        }
        if rows.is_multiple_of(slide) && self.cells.panes(cell).is_empty() {
            // The next row is the first of a window, like the very first row, so with keys the cell may be removed.
            self.cells.set_row_number(cell, 0);
            self.empty_cell(cell, false);
        }
        Verdict::Counted
    }

    /// Counts a row in the open window of its cell, which it may open and close.
    fn count_in_state(&mut self, row: Row<'_>, updates: &Updates<'_>) -> Verdict {
        let words = self.plan.layout.entry_words;
        let found = self.cells.find(row.slot, row.key);
        let is_open = found.is_some_and(|cell| !self.cells.panes(cell).is_empty());
        if !is_open && !updates.holds(OPENS, row.index) {
            // The row is in no window.
            return Verdict::Counted;
        }
        let Some(cell) = found.or_else(|| self.cells.create(row.slot, row.key)) else {
            return Verdict::TooManyKeys;
        };
        let CellParts { panes, objects, heap_bytes, .. } = self.cells.parts(cell);
        if !is_open {
            panes.insert(0, &self.plan.layout.empty_entry, heap_bytes);
            panes.entry_mut(0, words)[1] = row.time_us as u64;
        }
        let entry = panes.entry_mut(0, words);
        entry[2] = row.time_us as u64;
        updates.fixed.update(entry, row.index, row.time_us);
        if let Some(objects) = objects {
            if !is_open {
                objects.push_back(self.plan.layout.empty_objects());
            }
            update_objects(&mut objects[0], updates, row);
        }
        self.cells.set_row_number(cell, self.cells.row_number(cell) + 1);
        if updates.holds(IS_LAST, row.index) {
            self.close_state(cell, row.slot, row.arrival_us);
        }
        Verdict::Counted
    }

    /// Closes the window of a state of a cell, if one is open.
    fn close_state(&mut self, cell: usize, slot: usize, arrival_us: i64) {
        if self.cells.panes(cell).is_empty() {
            return;
        }
        self.close_blocks(cell, slot, 0, 1, arrival_us);
        self.remove_front(cell, 1);
        self.cells.set_row_number(cell, 0);
        self.empty_cell(cell, false);
    }

    /// Closes the window of a cell that consists of the blocks `first..last`, if it holds a row.
    fn close_blocks(&mut self, cell: usize, slot: usize, first: u64, last: u64, arrival_us: i64) {
        let words = self.plan.layout.entry_words;
        let panes = self.cells.panes(cell);
        let range = panes.count_before(words, |block| block < first)..panes.count_before(words, |block| block < last);
        if range.is_empty() {
            return;
        }
        let closing = Closing {
            slot: slot as Slot,
            arrival_us,
            start_us: panes.entry(range.start, words)[1] as i64,
            end_us: panes.entry(range.end - 1, words)[2] as i64,
        };
        let entries = &panes.entries()[range.start * words..range.end * words];
        let objects = self.cells.objects(cell).map(|objects| (objects, range));
        self.closed.push(&self.plan, closing, self.cells.key(cell), [entries, &[]], objects);
    }

    /// Closes all open windows of a slot, full or not.
    pub(crate) fn close_all(&mut self, slot: usize, arrival_us: i64) {
        let SlotLengths::Known(lengths) = self.cells.lengths(slot) else { return };
        if self.plan.window.is_time() {
            self.advance(slot, lengths, NEVER, arrival_us, true);
            return self.set_deadline(slot);
        }
        let (width, slide, block_rows) = (lengths.width as u64, lengths.slide as u64, lengths.pane as u64);
        let mut cell = self.cells.first(slot);
        while let Some(place) = cell {
            cell = self.cells.next(place);
            if matches!(self.plan.window, WindowSpec::State) {
                self.close_state(place, slot, arrival_us);
                continue;
            }
            let rows = self.cells.row_number(place);
            // Windows that begin before `rows` and end after it.
            let mut start = if rows < width { 0 } else { ((rows - width) / slide + 1) * slide };
            while start < rows {
                self.close_blocks(place, slot, start / block_rows, (start + width).div_ceil(block_rows), arrival_us);
                start += slide;
            }
            self.cells.remove_cell(place);
        }
    }
}

fn update_objects(objects: &mut [Object], updates: &Updates<'_>, row: Row<'_>) {
    for (object, update) in objects.iter_mut().zip(&updates.objects) {
        update.update(object, row.index, row.time_us);
    }
}

/// The end of the earliest window that holds the pane from `start_us` and ends after `closed_us`; [`NEVER`] if none
/// does.
pub(crate) fn first_open_end_us(start_us: i64, lengths: Lengths, closed_us: i64) -> i64 {
    let Lengths { width, slide, pane, .. } = lengths;
    if lengths.cumulates {
        let behind_us = closed_us.max(start_us).div_euclid(slide).saturating_mul(slide).saturating_add(slide);
        let end_us = behind_us.max(start_us + pane);
        return if lengths.start_us(end_us) <= start_us { end_us } else { NEVER };
    }
    // Among the windows that hold the pane, the first one is the first that ends no earlier than the pane.
    let first_us = -(width - pane - start_us).div_euclid(slide) * slide + width;
    if first_us > closed_us {
        return first_us;
    }
    let open_us = ((closed_us - width).div_euclid(slide) + 1) * slide + width;
    if open_us - width <= start_us { open_us } else { NEVER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pane_numbers_wrap_and_keep_their_order() {
        for (pane, near) in [(1, 0), (1_000_000, 1_763_712_345_678_000), (7, -(1 << 40)), (1, (1 << 32) - 3), (3, -1)] {
            let start = |offset: i64| (i64::div_euclid(near, pane) + offset) * pane;
            let offsets = [-PANES_APART_MAX, -5, -1, 0, 1, 5, PANES_APART_MAX];
            for (a, b) in offsets.iter().flat_map(|a| offsets.map(|b| (*a, b))) {
                let (first, second) = (PaneNumber::at(start(a), pane), PaneNumber::at(start(b), pane));
                assert_eq!(first.is_before(second), a < b);
                assert_eq!(first.start_us(near, pane), start(a));
            }
        }
    }

    #[test]
    fn the_first_open_window_of_a_pane() {
        let hop = Lengths::new(30, 10, false).unwrap();
        assert_eq!(first_open_end_us(0, hop, i64::MIN), 10);
        assert_eq!(first_open_end_us(20, hop, i64::MIN), 30);
        assert_eq!(first_open_end_us(20, hop, 30), 40);
        assert_eq!(first_open_end_us(20, hop, 49), 50);
        assert_eq!(first_open_end_us(20, hop, 50), NEVER);
        assert_eq!(first_open_end_us(-10, hop, i64::MIN), 0);
        let gaps = Lengths::new(10, 25, false).unwrap();
        assert_eq!(first_open_end_us(25, gaps, i64::MIN), 35);
        assert_eq!(first_open_end_us(30, gaps, i64::MIN), 35);
        assert_eq!(first_open_end_us(25, gaps, 35), NEVER);
        // Windows that cumulate by 10 to 30.
        let grow = hop.cumulating().unwrap();
        let ends = |start: i64| [i64::MIN, 9, 10, 29, 30, 59].map(|closed| first_open_end_us(start, grow, closed));
        assert_eq!(ends(0), [10, 10, 20, 30, NEVER, NEVER]);
        assert_eq!(ends(20), [30, 30, 30, 30, NEVER, NEVER]);
        assert_eq!(ends(30), [40, 40, 40, 40, 40, 60]);
        assert_eq!(ends(-10), [0, NEVER, NEVER, NEVER, NEVER, NEVER]);
        // Compares with brute force over the definition.
        for (width, slide) in [(6, 4), (4, 6), (5, 5), (9, 3), (7, 2)] {
            let lengths = Lengths::new(width, slide, false).unwrap();
            for pane in -10..10 {
                let start = pane * lengths.pane;
                for closed in -40..40 {
                    let expected = (-50..50)
                        .map(|k| k * slide)
                        .filter(|window| *window <= start && start + lengths.pane <= window + width)
                        .map(|window| window + width)
                        .find(|end| *end > closed)
                        .unwrap_or(NEVER);
                    let in_any = (-50..50).any(|k| k * slide <= start && start + lengths.pane <= k * slide + width);
                    if in_any {
                        assert_eq!(first_open_end_us(start, lengths, closed), expected, "{lengths:?} {start} {closed}");
                    }
                }
            }
        }
    }
}
