//! A group whose results find no way out holds up no source. Events of the log are left there, and are read from there
//! when results leave again; of others, the newest are dropped when the inbox is full, and counted.

use std::sync::atomic::Ordering;

use rivulet_dataflow::{Event, InputIndex, LogPosition, LoggedEvent, Push, Slot};

use super::Group;

impl Group {
    /// The results of the group find no way out, and nobody knows until when. `inputs` has a bit for each input whose
    /// source must not wait for that; 0 if results leave again.
    pub fn stand_still(&self, inputs: u32) {
        self.settings.standstill.inputs.store(inputs, Ordering::Release);
    }

    /// From this position of the log on, events are left there. The caller sees to it that no message is being routed.
    /// No timer runs before the first of these events is read.
    pub fn fall_behind(&self, position: LogPosition) {
        self.settings.standstill.fall_behind(position);
    }

    /// Whether events are left in the log for the group.
    pub fn is_behind(&self) -> bool {
        self.settings.standstill.is_behind()
    }

    /// The position of the first event that is left in the log, and the position at which the group fell behind: events
    /// before that one may still be on their way to it.
    pub fn behind_from(&self) -> Option<(LogPosition, LogPosition)> {
        let standstill = &self.settings.standstill;
        let from = standstill.behind_from.load(Ordering::Acquire);
        (from != LogPosition::MAX).then(|| (from, standstill.fell_at.load(Ordering::Acquire)))
    }

    /// Events up to this position of the log may come once more: each query skips those that it has.
    pub fn expect_repeats(&self, position: LogPosition) {
        let _still = self.free.lock();
        for (_, task) in self.all_tasks() {
            task.lock().host.begin_behind(&[], position);
        }
    }

    /// Whether so much of the inboxes is free that it is worth reading from the log.
    pub fn has_room_to_catch_up(&self) -> bool {
        self.all_tasks().all(|(_, task)| task.inbox().is_half_empty(&task.inbox().lock()))
    }

    /// Puts an event that was left in the log into the inbox, for each of these queries or for none. Returns whether
    /// there was room.
    pub fn catch_up(&self, targets: &[(InputIndex, Slot)], event: &LoggedEvent<'_>) -> bool {
        let &LoggedEvent { arrival_us, position, topic, payload, .. } = event;
        let _reading = self.settings.standstill.reading.lock();
        self.settings.standstill.held_at_us.store(arrival_us, Ordering::Release);
        let has_room = |slot: Slot| {
            let task = self.place(slot).and_then(|place| self.task(place.task as usize));
            task.is_none_or(|task| !task.inbox().is_full(&task.inbox().lock(), payload.len()))
        };
        if self.settings.rest.has_closed_intake() || !targets.iter().all(|&(_, slot)| has_room(slot)) {
            return false;
        }
        for &(input, slot) in targets {
            // It fits, or may exceed the bound by this one event.
            let _ = self.push_event(Event { input, slot, arrival_us, position, topic, payload }, true);
        }
        self.caught_up_to(position + 1);
        true
    }

    /// Nothing is left in the log before this position. The caller is the only one that reads for this group.
    pub fn caught_up_to(&self, position: LogPosition) {
        self.settings.standstill.behind_from.store(position, Ordering::Release);
    }

    /// The events from `from`, the first that is left in the log, up to `to` are given up; `false` if another is the
    /// first by now.
    pub fn pass_over(&self, from: LogPosition, to: LogPosition) -> bool {
        self.settings.standstill.pass_over(from, to)
    }

    /// The group has all events of the log: from now on it gets them as they come. The caller sees to it that no
    /// message is being routed.
    pub fn end_catch_up(&self) {
        let _reading = self.settings.standstill.reading.lock();
        if self.settings.rest.has_closed_intake() {
            // Another group may have taken over.
            return;
        }
        self.caught_up_to(LogPosition::MAX);
        self.settings.standstill.held_at_us.store(i64::MAX, Ordering::Release);
        self.pool.retry_blocked();
    }

    /// Gives up the events of the log that wait in memory, which are the oldest that the log keeps for the group, and
    /// counts them. Returns their number.
    pub fn give_up_waiting(&self) -> u64 {
        self.all_tasks().map(|(_, task)| task.inbox().lock().drop_logged(task.inbox().chunk_rows())).sum()
    }

    /// Counts events that were left in the log and are given up, or lost there.
    pub fn count_given_up(&self, events: u64) {
        self.settings.standstill.given_up.fetch_add(events, Ordering::Relaxed);
    }

    /// Offers an event that was to be decoded for several groups and could not be.
    pub fn hand_event(&self, event: Event<'_>) -> Push {
        if self.settings.standstill.leaves(event.position) { Push::Taken } else { self.push_event(event, false) }
    }
}
