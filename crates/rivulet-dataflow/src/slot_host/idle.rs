//! How long each query of a host has been silent.

use crate::Slot;

/// For each slot the number of sweeps since its last event, or since it was added. Empty as long as there are no
/// sweeps.
#[derive(Debug, Default)]
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

    /// Marks no query as silent.
    pub(super) fn note_all(&mut self) {
        self.sweeps.fill(0);
    }

    /// Counts one more sweep of silence for each of so many slots.
    pub(super) fn age(&mut self, slots: usize) {
        self.sweeps.resize(slots, 0);
        self.sweeps.iter_mut().for_each(|passed| *passed = passed.saturating_add(1));
    }

    /// Whether `sweeps` sweeps have passed since the slot's last event.
    pub(super) fn has_passed(&self, slot: Slot, sweeps: u8) -> bool {
        self.sweeps.get(slot as usize).is_some_and(|&passed| passed >= sweeps)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.sweeps.capacity()
    }
}
