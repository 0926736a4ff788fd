//! The parts of a task that is cut ([`cut`](super::cut)): what each of them holds, how they find work, and who wakes
//! whom.
//!
//! What must hold: a part that is not scheduled has nothing to do. So whoever makes work for a part schedules it, and a
//! part that has run looks once more.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use arrow::array::ArrayRef;
use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Cut, KeyGroup, KeyGroups};

use super::order::Order;
use super::{Core, Task};
use crate::host::Host;
use crate::inbox::Chunk;
use crate::scheduler::{Budget, Runnable, Standing};
use crate::{Activation, GroupMetrics};

/// The parts of a task.
pub(super) struct Parts {
    pub(super) task: Weak<Task>,
    pub(super) cut: Cut,
    pub(super) key_groups: KeyGroups,
    /// All but the first, which is the task itself.
    pub(super) others: Vec<Arc<Part>>,
    pub(super) order: Mutex<Order<Block, Times>>,
    /// By part: when its operators next want to be run, in clock time.
    pub(super) deadlines_us: Vec<AtomicI64>,
    /// The latest instant up to which any of them was.
    pub(super) ticked_us: AtomicI64,
    /// Whether the task is whole again.
    pub(super) is_over: AtomicBool,
}

/// One of the further parts of a task.
pub(super) struct Part {
    pub(super) parts: Weak<Parts>,
    pub(super) host: Arc<Host>,
    /// Its number; the task itself is number 0.
    pub(super) number: usize,
    pub(super) name: Arc<str>,
    pub(super) worker: usize,
    pub(super) standing: Standing,
    /// Nothing once the task is whole again.
    pub(super) core: Mutex<Option<Core>>,
}

/// Rows on their way to all parts.
pub(super) struct Block {
    /// With the key group of each row.
    pub(super) batches: Vec<(Batch, Vec<KeyGroup>)>,
    pub(super) times: Times,
    pub(super) events: usize,
    /// How many parts have yet to process it.
    pub(super) missing: AtomicUsize,
}

/// When events came and, where they say so, happened: for the latencies, which are known when all has been done.
pub(super) struct Times {
    pub(super) arrival_us: Vec<i64>,
    pub(super) event_times: Option<ArrayRef>,
}

impl Times {
    pub(super) fn record(&self, metrics: &mut GroupMetrics, end_us: i64) {
        metrics.record_latencies(&self.arrival_us, self.event_times.as_ref(), end_us);
    }
}

/// What a part does next.
pub(super) enum Work {
    Nothing,
    /// It is the turn of the block whose results it has.
    Send(u64, Times),
    /// Rows of all parts' keys, among them its own.
    Own(Arc<Block>),
    /// Events nobody has looked at, with their number.
    Prepare(u64, Chunk),
}

impl Parts {
    /// Whether operators keep anything between rows.
    pub(super) fn has_state(&self) -> bool {
        matches!(self.cut, Cut::ByKey(_))
    }

    /// How many there are, the task itself among them.
    pub(super) fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The workers of the further parts.
    pub(super) fn workers(&self) -> impl Iterator<Item = usize> + '_ {
        self.others.iter().map(|part| part.worker())
    }

    /// Events that were taken from the inbox and are not done.
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

    /// Memory that the further parts hold, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let of_part = |part: &Arc<Part>| part.core.lock().as_ref().map_or(0, |core| core.chain.memory_bytes());
        self.others.iter().map(of_part).sum()
    }

    /// What a part is to do now: what others wait for comes first.
    pub(super) fn next(&self, task: &Task, number: usize, spare: Option<Chunk>) -> Work {
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
        // Under the lock of the order, so that at any time an event is seen in one of the two.
        let Some(chunk) = task.inbox.take(spare, None) else { return Work::Nothing };
        let oldest_us = chunk.oldest_arrival_us().unwrap_or(i64::MAX);
        let block = order.take(chunk.rows(), oldest_us);
        drop(order);
        if !task.inbox.is_empty() {
            self.wake_one(task);
        }
        Work::Prepare(block, chunk)
    }

    /// Whether there is something that the part could do.
    pub(super) fn has_work(&self, task: &Task, number: usize) -> bool {
        let order = self.order.lock();
        order.is_turn_of(number) || order.has_next(number) || (order.may_take(number) && !task.inbox.is_empty())
    }

    /// Has one more part look for work, if one does not.
    fn wake_one(&self, task: &Task) {
        if task.standing.is_idle() {
            return task.schedule_myself();
        }
        if let Some(part) = self.others.iter().find(|part| part.standing.is_idle()) {
            part.schedule();
        }
    }

    /// Has a part look for work.
    pub(super) fn wake(&self, task: &Task, number: usize) {
        match number.checked_sub(1) {
            None => task.schedule_myself(),
            Some(other) => self.others[other].schedule(),
        }
    }

    /// Hands a block over, or lets it be forgotten, and wakes whoever gets something to do by that.
    pub(super) fn hand_over(&self, task: &Task, number: u64, block: Option<Arc<Block>>) {
        let (is_any, next) = {
            let mut order = self.order.lock();
            (order.hand_over(number, block), order.next_in_turn())
        };
        if is_any {
            (0..self.count()).for_each(|part| self.wake(task, part));
        }
        if let Some(part) = next {
            self.wake(task, part);
        }
    }

    /// The rows of a batch that are a part's own.
    pub(super) fn own(&self, key_groups: &[KeyGroup], number: usize) -> Vec<u32> {
        let range = self.key_groups.range_of(number, self.count());
        let rows = key_groups.iter().zip(0u32..).filter(|(key_group, _)| range.contains(&key_group.index()));
        rows.map(|(_, row)| row).collect()
    }

    /// The first of all deadlines.
    pub(super) fn deadline_us(&self) -> i64 {
        self.deadlines_us.iter().map(|one| one.load(Ordering::Acquire)).min().unwrap_or(i64::MAX)
    }
}

impl Part {
    fn schedule(self: &Arc<Self>) {
        self.host.schedule(self);
    }
}

impl Runnable for Part {
    fn name(&self) -> &str {
        &self.name
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn standing(&self) -> &Standing {
        &self.standing
    }

    /// That of the task: its parts take from one inbox.
    fn pending(&self) -> usize {
        let task = self.parts.upgrade().and_then(|parts| parts.task.upgrade());
        task.map_or(0, |task| task.pending())
    }

    fn run(&self, budget: Budget) -> Activation {
        let Some(parts) = self.parts.upgrade() else { return Activation::Ran(0) };
        let Some(task) = parts.task.upgrade() else { return Activation::Ran(0) };
        match self.core.lock().as_mut() {
            Some(core) => task.run_part(&parts, self.number, core, budget),
            None => Activation::Ran(0),
        }
    }

    fn has_work(&self) -> bool {
        let parts = self.parts.upgrade().filter(|parts| !parts.is_over.load(Ordering::Acquire));
        let with_task = parts.and_then(|parts| Some((parts.task.upgrade()?, parts)));
        with_task.is_some_and(|(task, parts)| parts.has_work(&task, self.number))
    }
}

/// A block that a part has taken: if preparing it fails altogether, those behind it must not wait for it.
pub(super) struct UnderWay<'a> {
    pub(super) task: &'a Task,
    pub(super) parts: &'a Parts,
    pub(super) block: Option<u64>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block {
            self.parts.hand_over(self.task, block, None);
        }
    }
}

/// A block that a part is done with when this goes, even if it has failed.
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

    /// The part is done with it. Whether all parts are.
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
