//! The bounded queue in front of a task of a big query.
//!
//! Who sends looks whether there is room before it begins a batch, so a batch that is under way always fits: the bound may be exceeded by
//! what comes of one batch of each sender, and by no more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rivulet_dataflow::Batch;

use super::FlowLimits;

/// What travels between two tasks.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// Rows.
    Rows(Batch),
    /// No row older than this will follow by this channel.
    Watermark(i64),
    /// This channel is silent: it holds nobody up until it sends again.
    Idle,
    /// Nothing will follow by this channel.
    End,
}

/// A message and the channel it came by.
pub(super) struct Sent {
    pub(super) channel: usize,
    pub(super) message: Message,
    bytes: usize,
}

/// What waits for a task.
pub(super) struct FlowInbox {
    queue: Mutex<VecDeque<Sent>>,
    rows: AtomicUsize,
    bytes: AtomicUsize,
    rows_most: AtomicUsize,
    /// Somebody wanted to send and found no room.
    is_waited_for: AtomicBool,
    limits: FlowLimits,
}

impl FlowInbox {
    pub(super) fn new(limits: FlowLimits) -> Self {
        Self {
            queue: Mutex::default(),
            rows: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            rows_most: AtomicUsize::new(0),
            is_waited_for: AtomicBool::new(false),
            limits,
        }
    }

    /// Adds a message; whether the queue was empty.
    pub(super) fn push(&self, channel: usize, message: Message) -> bool {
        let mut bytes = 0;
        if let Message::Rows(batch) = &message {
            bytes = bytes_of(batch);
            let rows = self.rows.fetch_add(batch.rows(), Ordering::AcqRel) + batch.rows();
            self.rows_most.fetch_max(rows, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::AcqRel);
        }
        let mut queue = self.queue.lock();
        queue.push_back(Sent { channel, message, bytes });
        queue.len() == 1
    }

    /// Takes the oldest messages, with about `rows_max` rows, into `taken`. Whether those who send should look again: they were
    /// told that there is no room, and now there is.
    pub(super) fn take(&self, rows_max: usize, taken: &mut Vec<Sent>) -> bool {
        let (mut rows, mut bytes) = (0, 0);
        let mut queue = self.queue.lock();
        while rows < rows_max
            && let Some(sent) = queue.pop_front()
        {
            if let Message::Rows(batch) = &sent.message {
                rows += batch.rows();
                bytes += sent.bytes;
            }
            taken.push(sent);
        }
        drop(queue);
        self.rows.fetch_sub(rows, Ordering::AcqRel);
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.is_low() && self.is_waited_for.swap(false, Ordering::AcqRel)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Rows that wait, and the most that ever did.
    pub(super) fn rows(&self) -> (usize, usize) {
        (self.rows.load(Ordering::Acquire), self.rows_most.load(Ordering::Relaxed))
    }

    /// Whether one may send. If not, the receiver wakes those who send as soon as they may.
    pub(super) fn has_room(&self) -> bool {
        if self.is_below_high() {
            return true;
        }
        self.is_waited_for.store(true, Ordering::SeqCst);
        // It may have been emptied before it knew that somebody waits.
        self.is_below_high()
    }

    fn is_below_high(&self) -> bool {
        self.rows.load(Ordering::SeqCst) < self.limits.rows_max
            && self.bytes.load(Ordering::SeqCst) < self.limits.bytes_max
    }

    /// Who waited is woken only when there is room for several batches.
    fn is_low(&self) -> bool {
        self.rows.load(Ordering::SeqCst) <= self.limits.rows_max / 2
            && self.bytes.load(Ordering::SeqCst) <= self.limits.bytes_max / 2
    }
}

/// What a batch counts for where bytes are bounded. Columns that share memory with others count in full: a few too many.
fn bytes_of(batch: &Batch) -> usize {
    batch
        .columns
        .columns()
        .iter()
        .map(|column| column.to_data().get_slice_memory_size().unwrap_or_default())
        .sum::<usize>()
        + batch.rows() * 20
}
