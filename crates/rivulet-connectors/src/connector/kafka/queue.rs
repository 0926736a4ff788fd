//! The messages that wait between the reading thread and the sources: a queue for each partition of the topic.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::block::Block;

/// The bytes that wait in all partitions of a consumer together, unless these are very many; and the most and the least
/// for each. One round of reading may exceed them.
const BYTES_MAX_OF_ALL: usize = 32 << 20;
const BYTES_MAX_OF_ONE: usize = 4 << 20;
const BYTES_MIN_OF_ONE: usize = 256 << 10;

/// Messages of one partition, in order.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) partition: i32,
    /// Whether its messages come to us, and not to another member of the group.
    is_ours: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    blocks: VecDeque<Block>,
    bytes: usize,
    has_ended: bool,
}

/// The next entry of a queue.
pub(super) enum Next {
    Block(Block),
    /// Nothing now.
    Nothing,
    /// Nothing will ever follow.
    End,
}

impl Queue {
    pub(super) fn new(partition: i32, is_ours: bool) -> Arc<Self> {
        Arc::new(Self { partition, is_ours: AtomicBool::new(is_ours), waiting: Mutex::default() })
    }

    /// The bytes that may wait in each of `queues` queues.
    pub(super) fn bytes_max(queues: usize) -> usize {
        (BYTES_MAX_OF_ALL / queues.max(1)).clamp(BYTES_MIN_OF_ONE, BYTES_MAX_OF_ONE)
    }

    pub(super) fn push(&self, block: Block) {
        let mut waiting = self.waiting.lock();
        waiting.bytes += block.weight();
        waiting.blocks.push_back(block);
    }

    pub(super) fn take(&self) -> Next {
        let mut waiting = self.waiting.lock();
        match waiting.blocks.pop_front() {
            Some(block) => {
                waiting.bytes -= block.weight();
                Next::Block(block)
            }
            None if waiting.has_ended => Next::End,
            None => Next::Nothing,
        }
    }

    /// Notes that nothing will follow.
    pub(super) fn end(&self) {
        self.waiting.lock().has_ended = true;
    }

    /// The number of bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.lock().bytes
    }

    pub(super) fn is_ours(&self) -> bool {
        self.is_ours.load(Ordering::Acquire)
    }

    pub(super) fn set_ours(&self, is_ours: bool) {
        self.is_ours.store(is_ours, Ordering::Release);
    }
}

/// The state that the thread and its sources share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The number of sources, and whether there has been any.
    sources: AtomicUsize,
    is_begun: AtomicBool,
    /// Why there will be no more messages.
    failed: Mutex<Option<String>>,
    /// Queues without a source yet.
    new: Mutex<Vec<Arc<Queue>>>,
    /// For each partition the offset behind the last message taken, not stored for the group yet.
    taken: Mutex<HashMap<i32, i64>>,
    /// Whether it is known which partitions are ours.
    is_assigned: AtomicBool,
    /// The number of messages taken.
    pub(super) messages: AtomicU64,
}

impl Shared {
    /// Notes that one more source reads.
    pub(super) fn enter(&self) {
        self.sources.fetch_add(1, Ordering::AcqRel);
        self.is_begun.store(true, Ordering::Release);
    }

    /// Notes that one source fewer reads.
    pub(super) fn leave(&self) {
        self.sources.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether any source wants more.
    pub(super) fn is_wanted(&self) -> bool {
        !self.is_begun.load(Ordering::Acquire) || self.sources.load(Ordering::Acquire) > 0
    }

    /// Notes that it is known which partitions are ours.
    pub(super) fn set_assigned(&self) {
        self.is_assigned.store(true, Ordering::Release);
    }

    pub(super) fn is_assigned(&self) -> bool {
        self.is_assigned.load(Ordering::Acquire)
    }

    pub(super) fn fail(&self, problem: String) {
        self.failed.lock().get_or_insert(problem);
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    /// Adds the queue of a partition that needs a source.
    pub(super) fn add(&self, queue: Arc<Queue>) {
        self.new.lock().push(queue);
    }

    pub(super) fn take_new(&self) -> Vec<Arc<Queue>> {
        std::mem::take(&mut *self.new.lock())
    }

    /// Notes that messages of a partition were taken, up to the one before `offset`.
    pub(super) fn note_taken(&self, partition: i32, offset: i64, messages: u64) {
        self.taken.lock().insert(partition, offset);
        self.messages.fetch_add(messages, Ordering::AcqRel);
    }

    pub(super) fn take_offsets(&self) -> HashMap<i32, i64> {
        std::mem::take(&mut *self.taken.lock())
    }
}
