//! How long each query of a task has been silent, and the memory of a task once its queries have left.

use std::ops::Range;

use rivulet_dataflow::{Chain, Slot, SlotTable, StateError, StateSelection};

use super::Core;

/// For each slot the number of sweeps since its last event, or since it was added. Empty as long as there are no
/// sweeps.
#[derive(Default)]
pub(super) struct Idle {
    sweeps: Vec<u8>,
}

impl Idle {
    /// Events came for these slots, or the slots were added.
    #[inline]
    pub(super) fn note(&mut self, slots: &[Slot]) {
        if self.sweeps.is_empty() {
            return;
        }
        for &slot in slots {
            if let Some(sweeps) = self.sweeps.get_mut(slot as usize) {
                *sweeps = 0;
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.sweeps.capacity()
    }
}

impl Core {
    /// Whether any operator has state.
    pub(crate) fn is_stateful(&self) -> Result<bool, StateError> {
        Ok(self.chain.export_state(&StateSelection::Slots(Vec::new()))?.iter().any(Option::is_some))
    }

    /// Marks no query as silent.
    pub(super) fn note_all_busy(&mut self) {
        self.idle.sweeps.fill(0);
    }

    /// Counts one more sweep of silence for every query.
    pub(crate) fn age(&mut self) {
        self.idle.sweeps.resize(self.slots.capacity(), 0);
        self.idle.sweeps.iter_mut().for_each(|passed| *passed = passed.saturating_add(1));
    }

    /// The slots in a range whose query [is silent](Core::is_silent).
    pub(crate) fn silent(&self, range: Range<Slot>, sweeps: u8, until_us: i64) -> Vec<Slot> {
        let is_silent = |slot: &Slot| self.is_silent(*slot, sweeps, until_us) && self.slots.query(*slot).is_some();
        range.filter(is_silent).collect()
    }

    /// Whether `sweeps` sweeps have passed since the slot's last event and nothing is due before `until_us`.
    pub(crate) fn is_silent(&self, slot: Slot, sweeps: u8, until_us: i64) -> bool {
        self.idle.sweeps.get(slot as usize).is_some_and(|&passed| passed >= sweeps)
            && self.slot_deadline_us(slot) >= until_us
    }

    /// When the slot's next timer is due; `i64::MAX` for never.
    pub(crate) fn slot_deadline_us(&self, slot: Slot) -> i64 {
        self.chain.slot_deadline_us(slot).unwrap_or(i64::MAX)
    }

    /// Replaces the tables of an empty task by new ones: they do not shrink by themselves.
    pub(crate) fn renew(&mut self, slots: SlotTable, chain: Chain) {
        assert_eq!(self.slots.live(), 0, "a task that is renewed has no queries");
        (self.slots, self.chain, self.idle) = (slots.into(), chain, Idle::default());
        self.progress = self.progress.is_some().then(Box::default);
    }
}
