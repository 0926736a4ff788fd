//! The searches of all slots, and the clocks of the slots.

use std::mem::size_of;
use std::sync::Arc;

use rivulet_dataflow::{Context, Leaps, Slot};

use super::partition::{NEVER, Partition};
use super::plan::Plan;
use crate::keyed::{Keyed, idle_us};

/// What is known about a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The slot has no query.
    Absent,
    Usable,
    /// Its `WITHIN` is not a valid length.
    Broken,
}

/// The clock of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotState {
    pub(super) max_ts_us: i64,
    pub(super) last_arrival_us: i64,
    pub(super) watermark_us: i64,
    /// [`NEVER`] without `WITHIN`.
    pub(super) within_us: i64,
    /// No partition has anything due before this event time.
    pub(super) due_us: i64,
    /// The number of rows of all partitions.
    pub(super) rows: u32,
    pub(super) key_hash: u16,
    pub(super) known: Known,
}

impl SlotState {
    pub(super) const ABSENT: Self = Self {
        max_ts_us: i64::MIN,
        last_arrival_us: i64::MIN,
        watermark_us: i64::MIN,
        within_us: NEVER,
        due_us: NEVER,
        rows: 0,
        key_hash: 0,
        known: Known::Absent,
    };
}

/// All slots, their clocks and their partitions.
pub(super) struct Slots {
    pub(super) plan: Arc<Plan>,
    pub(super) states: Vec<SlotState>,
    /// By slot, in the time of the arrival clock.
    pub(super) deadlines_us: Vec<i64>,
    /// No slot has an earlier deadline. Exact after a tick, a lower bound between ticks.
    pub(super) deadline_us: i64,
    /// The leaps of the arrival clock.
    pub(super) leaps: Leaps,
    /// The same if rows have their times by that clock, and none otherwise.
    pub(super) arrival_leaps: Leaps,
    /// Without keys there is one partition, with an empty key. Partitions that remember nothing are removed.
    pub(super) partitions: Keyed<Partition>,
    pub(super) key_heap_bytes: usize,
}

impl Slots {
    pub(super) fn new(plan: Arc<Plan>) -> Self {
        Self {
            plan,
            states: Vec::new(),
            deadlines_us: Vec::new(),
            deadline_us: NEVER,
            leaps: Leaps::default(),
            arrival_leaps: Leaps::default(),
            partitions: Keyed::new(true),
            key_heap_bytes: 0,
        }
    }

    pub(super) fn make_room(&mut self, slot: Slot) {
        if slot as usize >= self.states.len() {
            self.states.resize(slot as usize + 1, SlotState::ABSENT);
            self.deadlines_us.resize(slot as usize + 1, NEVER);
        }
    }

    pub(super) fn remove_slot(&mut self, slot: Slot) {
        if let Some(state) = self.states.get_mut(slot as usize) {
            *state = SlotState::ABSENT;
            self.deadlines_us[slot as usize] = NEVER;
        }
        self.partitions.remove_slot(slot, |key, _| self.key_heap_bytes -= key.len());
    }

    /// Takes the leaps of the clock that the host has reported since.
    pub(super) fn update_leaps(&mut self, context: &Context<'_>) {
        context.slots.update_leaps(&mut self.leaps);
        if self.plan.arrival_time {
            context.slots.update_leaps(&mut self.arrival_leaps);
        }
    }

    /// The watermark of a slot when the arrival clock shows `now_us`.
    pub(super) fn watermark_us(&self, slot: usize, now_us: i64) -> i64 {
        let state = &self.states[slot];
        let by_clock_us = if self.plan.arrival_time {
            now_us
        } else if state.max_ts_us == i64::MIN {
            i64::MIN
        } else {
            let idle_us = idle_us(&self.leaps, state.last_arrival_us, now_us, self.plan.idle_timeout_us);
            state.max_ts_us.saturating_sub(self.plan.lateness_us).saturating_add(idle_us)
        };
        by_clock_us.max(state.watermark_us)
    }

    /// Sets the time at which something is due in this slot if no row comes.
    pub(super) fn set_deadline(&mut self, slot: Slot) {
        let state = &self.states[slot as usize];
        let deadline_us = if state.due_us == NEVER || self.plan.arrival_time {
            state.due_us
        } else {
            let missing_us = state.due_us.saturating_sub(state.max_ts_us.saturating_sub(self.plan.lateness_us));
            self.leaps.after_us(state.last_arrival_us, missing_us.max(self.plan.idle_timeout_us))
        };
        self.deadlines_us[slot as usize] = deadline_us;
        self.deadline_us = self.deadline_us.min(deadline_us);
    }

    /// Memory held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let partitions = (0..self.partitions.slots()).flat_map(|slot| self.partitions.of_slot(slot));
        self.states.capacity() * size_of::<SlotState>()
            + self.deadlines_us.capacity() * size_of::<i64>()
            + partitions.map(|(_, partition)| partition.memory_bytes()).sum::<usize>()
            + self.partitions.memory_bytes()
            + self.key_heap_bytes
    }
}
