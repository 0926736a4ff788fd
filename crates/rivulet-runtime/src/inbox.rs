//! The bounded queue in front of a group.
//!
//! Sources append to one arena while a worker empties another, so neither waits for the other for longer than a swap.
//! What does not fit is refused to the source, which then stops reading; or dropped and counted, where the input says so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rivulet_dataflow::{Events, Inbox, Push, Slot};

use crate::{Group, ReadyQueue};

/// What happens to an event for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The source stops until there is room: nothing is lost.
    #[default]
    Block,
    /// The oldest waiting events are dropped and counted.
    DropOldest,
    /// The new event is dropped and counted.
    DropNewest,
}

/// How much an inbox holds.
#[derive(Clone, Copy, Debug)]
pub struct InboxLimits {
    /// Most events.
    pub rows_max: usize,
    /// Most payload bytes; an inbox that is empty takes one larger event.
    pub bytes_max: usize,
    /// What happens beyond.
    pub overflow: Overflow,
}

impl Default for InboxLimits {
    /// 65,536 events, 16 MiB, and the source waits.
    fn default() -> Self {
        Self { rows_max: 65_536, bytes_max: 16 << 20, overflow: Overflow::Block }
    }
}

/// The inbox of a [`Group`].
pub struct GroupInbox {
    limits: InboxLimits,
    waiting: Mutex<Events>,
    dropped: AtomicU64,
    /// Whether the group stands in the ready queue or runs. Only the one who turns it from false to true enqueues.
    scheduled: AtomicBool,
    ready: Arc<ReadyQueue>,
    group: OnceLock<Weak<Group>>,
}

impl GroupInbox {
    pub(crate) fn new(limits: InboxLimits, ready: Arc<ReadyQueue>) -> Self {
        Self {
            limits,
            waiting: Mutex::new(Events::default()),
            dropped: AtomicU64::new(0),
            scheduled: AtomicBool::new(false),
            ready,
            group: OnceLock::new(),
        }
    }

    pub(crate) fn belongs_to(&self, group: &Arc<Group>) {
        self.group.set(Arc::downgrade(group)).expect("an inbox belongs to one group");
    }

    /// Events and payload bytes waiting.
    pub fn waiting(&self) -> (usize, usize) {
        let waiting = self.waiting.lock();
        (waiting.rows(), waiting.payload_bytes())
    }

    /// Memory held by the waiting events, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.waiting.lock().memory_bytes()
    }

    /// Events dropped because there was no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Takes all waiting events in exchange for `spare`, which must be empty.
    pub(crate) fn take(&self, spare: Events) -> Events {
        debug_assert!(spare.is_empty());
        std::mem::replace(&mut *self.waiting.lock(), spare)
    }

    /// Puts the group on the ready queue unless it is there or runs.
    pub fn schedule(&self) {
        if !self.scheduled.swap(true, Ordering::AcqRel)
            && let Some(group) = self.group.get().and_then(Weak::upgrade)
        {
            self.ready.push(group);
        }
    }

    /// The group has been run: from here on a push schedules it again. Schedules it at once if events came meanwhile.
    pub(crate) fn ran(&self) {
        self.scheduled.store(false, Ordering::Release);
        if !self.waiting.lock().is_empty() {
            self.schedule();
        }
    }
}

impl Inbox for GroupInbox {
    fn push(&self, slot: Slot, arrival_us: i64, payload: &[u8]) -> Push {
        let mut waiting = self.waiting.lock();
        let was_empty = waiting.is_empty();
        let is_full = waiting.rows() >= self.limits.rows_max
            || (!was_empty && waiting.payload_bytes() + payload.len() > self.limits.bytes_max);
        if is_full {
            match self.limits.overflow {
                Overflow::Block => return Push::Full,
                Overflow::DropNewest => {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                    return Push::Taken;
                }
                Overflow::DropOldest => {
                    // An eighth at a time: moving the arena for every single event would cost its size each time.
                    let excess = (waiting.payload_bytes() + payload.len()).saturating_sub(self.limits.bytes_max);
                    let rows = (waiting.rows() / 8).max(1).max(waiting.rows_to_free(excess));
                    waiting.drop_front(rows);
                    self.dropped.fetch_add(rows as u64, Ordering::Relaxed);
                }
            }
        }
        waiting.push(slot, arrival_us, payload);
        drop(waiting);
        if was_empty {
            self.schedule();
        }
        Push::Taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(overflow: Overflow) -> GroupInbox {
        GroupInbox::new(InboxLimits { rows_max: 8, bytes_max: 100, overflow }, Arc::new(ReadyQueue::default()))
    }

    fn fill(inbox: &GroupInbox, events: u32) -> Vec<Push> {
        (0..events).map(|slot| inbox.push(slot, 0, b"0123456789")).collect()
    }

    #[test]
    fn a_full_inbox_blocks_and_has_not_taken_the_event() {
        let inbox = inbox(Overflow::Block);
        assert_eq!(fill(&inbox, 9).last(), Some(&Push::Full));
        assert_eq!(inbox.waiting(), (8, 80));
        assert_eq!(inbox.dropped(), 0);
        assert_eq!(inbox.take(Events::default()).slots(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(inbox.push(8, 0, b"x"), Push::Taken);
    }

    #[test]
    fn drops_are_counted_and_keep_order() {
        let oldest = inbox(Overflow::DropOldest);
        fill(&oldest, 10);
        assert_eq!((oldest.dropped(), oldest.take(Events::default()).slots()), (2, &[2, 3, 4, 5, 6, 7, 8, 9][..]));
        let newest = inbox(Overflow::DropNewest);
        fill(&newest, 10);
        assert_eq!((newest.dropped(), newest.take(Events::default()).slots()), (2, &[0, 1, 2, 3, 4, 5, 6, 7][..]));
    }

    #[test]
    fn bytes_are_bounded_but_one_event_always_fits() {
        let inbox = inbox(Overflow::Block);
        assert_eq!(inbox.push(0, 0, &[b'x'; 1000]), Push::Taken);
        assert_eq!(inbox.push(0, 0, b"y"), Push::Full);
    }
}
