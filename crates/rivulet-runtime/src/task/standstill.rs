//! Whether a group stands still because its results find no way out, and what the log keeps for it meanwhile.
//!
//! What must hold: every event at a position from `behind_from` on is left to the reader of the log. One before that
//! which was on its way when the group fell behind lowers it. So nothing is lost, and what comes by two ways is
//! recognised by its position.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rivulet_dataflow::{InputIndex, LogPosition};

#[derive(Debug)]
pub(crate) struct Standstill {
    /// The inputs whose events may not wait at their source, one bit for each; 0 unless the group stands still.
    pub(crate) inputs: AtomicU32,
    /// The first event that the group has to read from the log; the highest position if it has all.
    pub(crate) behind_from: AtomicU64,
    /// The position at which the group fell behind.
    pub(crate) fell_at: AtomicU64,
    /// The arrival of the next event that the group reads from the log: timers must not run ahead of it.
    pub(crate) held_at_us: AtomicI64,
    /// Locked while an event from the log comes into the inbox, unless the group has closed its intake.
    pub(crate) reading: Mutex<()>,
    /// Events that were given up because neither the inbox nor the log had room to keep them.
    pub(crate) given_up: AtomicU64,
}

impl Default for Standstill {
    fn default() -> Self {
        Self {
            inputs: AtomicU32::new(0),
            behind_from: AtomicU64::new(LogPosition::MAX),
            fell_at: AtomicU64::new(0),
            held_at_us: AtomicI64::new(i64::MAX),
            reading: Mutex::default(),
            given_up: AtomicU64::new(0),
        }
    }
}

impl Standstill {
    /// Whether an event of this input that is not in the log gives way if the inbox is full.
    #[inline]
    pub(crate) fn drops(&self, input: InputIndex) -> bool {
        self.inputs.load(Ordering::Acquire).checked_shr(input.into()).is_some_and(|bits| bits & 1 == 1)
    }

    /// Whether events of the log are left to its reader.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.behind_from.load(Ordering::Acquire) != LogPosition::MAX
    }

    /// Whether an event at this position that was decoded for several groups is left to the reader of the log. It may
    /// have been on its way when the group fell behind: then the reader begins with it.
    pub(crate) fn leaves(&self, position: LogPosition) -> bool {
        if position == 0 || !self.is_behind() {
            return false;
        }
        let is_earlier = position < self.fell_at.load(Ordering::Acquire);
        let lowered =
            |from: u64| (from != LogPosition::MAX).then(|| if is_earlier { from.min(position) } else { from });
        self.behind_from.fetch_update(Ordering::AcqRel, Ordering::Acquire, lowered).is_ok()
    }

    /// Nothing from `from` on is read before `to`. Returns false if the place is not `from` any more: an event that was
    /// on its way is left in the log, and the reader begins with it.
    pub(crate) fn pass_over(&self, from: LogPosition, to: LogPosition) -> bool {
        self.behind_from.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Goes on where the group before has come to, which is quiesced: no further event comes from the log to it.
    pub(crate) fn take_over(&self, before: &Self) {
        drop(before.reading.lock());
        self.inputs.store(before.inputs.load(Ordering::Acquire), Ordering::Release);
        self.held_at_us.store(before.held_at_us.load(Ordering::Acquire), Ordering::Release);
        self.fell_at.store(before.fell_at.load(Ordering::Acquire), Ordering::Release);
        self.behind_from.fetch_min(before.behind_from.load(Ordering::Acquire), Ordering::AcqRel);
    }

    pub(crate) fn fall_behind(&self, position: LogPosition) {
        // Until the first event is read nobody knows how old it is: in a replay it may be of an hour ago.
        self.held_at_us.store(0, Ordering::Release);
        self.fell_at.store(position, Ordering::Release);
        self.behind_from.store(position, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_on_its_way_when_the_group_fell_behind_is_read_from_the_log_too() {
        let standstill = Standstill::default();
        let from = || standstill.behind_from.load(Ordering::Acquire);
        assert!(!standstill.is_behind() && !standstill.leaves(7), "it has all");
        standstill.fall_behind(10);
        assert!(standstill.is_behind() && !standstill.drops(0));
        assert_eq!(standstill.held_at_us.load(Ordering::Acquire), 0, "no timer runs ahead of what is left in the log");
        assert!(standstill.leaves(12) && from() == 10);
        assert!(standstill.leaves(7) && standstill.leaves(8) && from() == 7);
        assert!(!standstill.pass_over(10, 20) && from() == 7, "what has come to the log meanwhile is not passed over");
        assert!(standstill.pass_over(7, 9) && standstill.leaves(7) && from() == 7);
        assert!(!standstill.leaves(0), "what is not in the log cannot be left there");
        let next = Standstill::default();
        next.take_over(&standstill);
        assert!(next.leaves(12) && next.leaves(6), "a new version goes on there");
        assert_eq!(
            (next.behind_from.load(Ordering::Acquire), next.fell_at.load(Ordering::Acquire), from()),
            (6, 10, 7)
        );
        standstill.behind_from.store(LogPosition::MAX, Ordering::Release);
        assert!(!standstill.leaves(8) && !standstill.is_behind(), "the reader has come to the end");
        standstill.inputs.store(0b10, Ordering::Release);
        assert!(standstill.drops(1) && !standstill.drops(0) && !standstill.drops(40));
    }
}
