//! Where a query of a group runs.

use rivulet_dataflow::Slot;

/// The index of the spilled task among the tasks.
pub(super) const SPILLED: usize = u32::MAX as usize - 1;

/// The place of a query: a task (or [`SPILLED`]) and its slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) task: u32,
    pub(super) slot: Slot,
}

impl Place {
    /// The place of a slot without a query.
    pub(super) const NOWHERE: u64 = u64::MAX;

    #[inline]
    pub(super) fn pack(self) -> u64 {
        u64::from(self.task) << 32 | u64::from(self.slot)
    }

    #[inline]
    pub(super) fn unpack(place: u64) -> Option<Self> {
        (place != Self::NOWHERE).then_some(Self { task: (place >> 32) as u32, slot: place as u32 })
    }
}
