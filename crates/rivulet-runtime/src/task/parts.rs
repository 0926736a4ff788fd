//! What the parts of a task that is cut ([`cut`](super::cut)) share: their blocks, their cores, and which of them to
//! wake.
//!
//! What must hold: a part that is not scheduled has nothing to do. So the code that makes work for a part schedules it,
//! and a part that has run checks once more.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use arrow::array::ArrayRef;
use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Chunk, Cut, KeyGroup, KeyGroups};

use super::core::Core;
use super::order::Order;
use crate::GroupMetrics;
use crate::inbox::TaskInbox;
use crate::pool::Pool;
use crate::scheduler::Runnable;

/// The parts of a task.
pub(super) struct Parts {
    pub(super) pool: Arc<Pool>,
    /// The first part: the task itself.
    pub(super) first: Weak<dyn Runnable>,
    pub(super) cut: Cut,
    pub(super) key_groups: KeyGroups,
    /// All parts but the first.
    pub(super) others: Vec<OtherPart>,
    pub(super) order: Mutex<Order<Block, Times>>,
    /// For each part: when its operators next want to be run, in clock time.
    pub(super) deadlines_us: Vec<AtomicI64>,
    /// The latest time up to which any part has ticked.
    pub(super) ticked_us: AtomicI64,
    /// Whether the task is whole again.
    pub(super) is_over: AtomicBool,
}

/// One of the further parts of a task.
pub(super) struct OtherPart {
    /// What the scheduler runs.
    pub(super) runnable: Arc<dyn Runnable>,
    pub(super) core: PartCore,
}

/// The core of a further part; `None` once the task is whole again.
pub(super) type PartCore = Arc<Mutex<Option<Core>>>;

/// Rows that go to all parts.
pub(super) struct Block {
    /// The rows, with the key group of each.
    pub(super) batches: Vec<(Batch, Vec<KeyGroup>)>,
    pub(super) times: Times,
    pub(super) events: usize,
    /// How many parts have not processed the block yet.
    pub(super) missing: AtomicUsize,
}

/// The arrival times and, where they are known, event times of a block, for the latency counted when the block is done.
pub(super) struct Times {
    pub(super) arrival_us: Vec<i64>,
    pub(super) event_times: Option<ArrayRef>,
}

impl Times {
    pub(super) fn record(&self, metrics: &mut GroupMetrics, end_us: i64) {
        metrics.record_latencies(&self.arrival_us, self.event_times.as_ref(), end_us);
    }
}

/// The next work of a part.
pub(super) enum Work {
    Nothing,
    /// Send the results of its parked block, whose turn it is.
    Send(u64, Times),
    /// Process its own keys of a block.
    Own(Arc<Block>),
    /// Prepare a block of events, with its number.
    Prepare(u64, Chunk),
}

impl Parts {
    /// Whether operators have state between rows.
    pub(super) fn has_state(&self) -> bool {
        matches!(self.cut, Cut::ByKey(_))
    }

    /// The number of parts, including the task itself.
    pub(super) fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The workers of the further parts.
    pub(super) fn workers(&self) -> impl Iterator<Item = usize> + '_ {
        self.others.iter().map(|part| part.runnable.worker())
    }

    /// Events taken from the inbox and not done yet.
    pub(super) fn rows(&self) -> usize {
        self.order.lock().rows()
    }

    /// Adds the counters of the further parts.
    pub(super) fn add_metrics(&self, metrics: &mut GroupMetrics) {
        self.others
            .iter()
            .filter_map(|part| part.core.lock().as_ref().map(|core| core.metrics.clone()))
            .for_each(|of_part| metrics.merge(&of_part));
    }

    /// Memory of the further parts, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let of_part = |part: &OtherPart| part.core.lock().as_ref().map_or(0, |core| core.host.state_bytes());
        self.others.iter().map(of_part).sum()
    }

    /// The next work of a part; work that others wait for goes first.
    pub(super) fn next(&self, inbox: &TaskInbox, number: usize, spare: Option<Chunk>, rows_max: usize) -> Work {
        let mut order = self.order.lock();
        if let Some((block, times)) = order.turn_of(number) {
            return Work::Send(block, times);
        }
        if let Some(block) = order.next_of(number) {
            return Work::Own(block);
        }
        if !order.may_take(number) {
            return Work::Nothing;
        }
        // Taken under the lock of the order, so that an event is always counted in the inbox or in the order.
        let Some(chunk) = inbox.take(spare, None, rows_max) else { return Work::Nothing };
        let oldest_us = chunk.oldest_arrival_us().unwrap_or(i64::MAX);
        let block = order.take(chunk.rows(), oldest_us);
        drop(order);
        if !inbox.is_empty() {
            self.wake_one();
        }
        Work::Prepare(block, chunk)
    }

    /// Whether the part has work.
    pub(super) fn has_work(&self, inbox: &TaskInbox, number: usize) -> bool {
        let order = self.order.lock();
        order.is_turn_of(number) || order.has_next(number) || (order.may_take(number) && !inbox.is_empty())
    }

    /// Wakes one idle part, if there is one.
    fn wake_one(&self) {
        let first = self.first.upgrade().filter(|part| part.standing().is_idle());
        let idle = || self.others.iter().find(|part| part.runnable.standing().is_idle());
        if let Some(part) = first.or_else(|| Some(idle()?.runnable.clone())) {
            self.pool.tell(part);
        }
    }

    /// Wakes a part.
    pub(super) fn wake(&self, number: usize) {
        let part = match number.checked_sub(1) {
            None => self.first.upgrade(),
            Some(other) => Some(self.others[other].runnable.clone()),
        };
        if let Some(part) = part {
            self.pool.tell(part);
        }
    }

    /// Hands a block over, or with `None` skips it, and wakes the parts that get work by that.
    pub(super) fn hand_over(&self, number: u64, block: Option<Arc<Block>>) {
        let (is_any, next) = {
            let mut order = self.order.lock();
            (order.hand_over(number, block), order.next_in_turn())
        };
        if is_any {
            (0..self.count()).for_each(|part| self.wake(part));
        }
        if let Some(part) = next {
            self.wake(part);
        }
    }

    /// The rows of a batch that belong to a part.
    pub(super) fn own(&self, key_groups: &[KeyGroup], number: usize) -> Vec<u32> {
        let range = self.key_groups.range_of(number, self.count());
        let rows = key_groups.iter().zip(0u32..).filter(|(key_group, _)| range.contains(&key_group.index()));
        rows.map(|(_, row)| row).collect()
    }

    /// The earliest deadline of all parts.
    pub(super) fn deadline_us(&self) -> i64 {
        self.deadlines_us.iter().map(|one| one.load(Ordering::Acquire)).min().unwrap_or(i64::MAX)
    }
}

/// Guards a block that a part has taken: if preparing it panics, the block is skipped, so that later ones do not wait.
pub(super) struct UnderWay<'a> {
    pub(super) parts: &'a Parts,
    pub(super) block: Option<u64>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block {
            self.parts.hand_over(block, None);
        }
    }
}

/// Guards a block that a part processes: when dropped, the part counts as done with it, even after a panic.
pub(super) struct ProcessedByPart<'a> {
    pub(super) parts: &'a Parts,
    pub(super) block: &'a Block,
}

impl ProcessedByPart<'_> {
    fn count(&self) -> bool {
        let is_last = self.block.missing.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.parts.order.lock().done(self.block.events);
        }
        is_last
    }

    /// Marks the block as done by this part. Returns whether all parts are done with it.
    pub(super) fn finish(self) -> bool {
        let is_last = self.count();
        std::mem::forget(self);
        is_last
    }
}

impl Drop for ProcessedByPart<'_> {
    fn drop(&mut self) {
        self.count();
    }
}
