//! The bounded queue in front of a task of a big query.
//!
//! A sender checks for room before it begins a batch, so a batch in flight always fits: the bound may be exceeded by
//! the output of one batch of each sender, and by no more. A batch that becomes very many rows is given in parts
//! (`Operator::has_more`), with a check between them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Element};

use crate::scheduler::level;

/// Bounds of the inbox of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// Rows in the inbox at which senders stop.
    pub rows_max: usize,
    /// Bytes of columns in the inbox at which senders stop.
    pub bytes_max: usize,
    /// Rows in one poll of a source; small batches are joined up to this number.
    pub batch_rows: usize,
}

impl Default for FlowLimits {
    /// 32,768 rows or 16 MiB, in batches of 8,192.
    fn default() -> Self {
        Self { rows_max: 32_768, bytes_max: 16 << 20, batch_rows: 8_192 }
    }
}

/// An element and its channel.
pub(super) struct Sent {
    pub(super) channel: usize,
    pub(super) element: Element,
    bytes: usize,
    /// When it was sent, microseconds of the steady clock.
    pub(super) sent_us: i64,
}

/// The elements that wait for a task.
pub(super) struct FlowInbox {
    queue: Mutex<VecDeque<Sent>>,
    rows: AtomicUsize,
    bytes: AtomicUsize,
    rows_most: AtomicUsize,
    /// Whether a sender found no room and waits.
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

    /// Adds an element that is sent at `now_us`. Returns true if the task must be scheduled: the queue was empty, or
    /// the order of magnitude of its rows has risen.
    pub(super) fn push(&self, channel: usize, element: Element, now_us: i64) -> bool {
        let (mut bytes, mut has_risen) = (0, false);
        let mut queue = self.queue.lock();
        if let Element::Watermark(watermark_us) = element
            && let Some(last) = last_watermark(&mut queue, channel)
        {
            *last = watermark_us.max(*last);
            return false;
        }
        if let Element::Batch(batch) = &element {
            bytes = bytes_of(batch);
            let before = self.rows.fetch_add(batch.rows(), Ordering::AcqRel);
            let rows = before + batch.rows();
            has_risen = level(rows) > level(before);
            self.rows_most.fetch_max(rows, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::AcqRel);
        }
        queue.push_back(Sent { channel, element, bytes, sent_us: now_us });
        queue.len() == 1 || has_risen
    }

    /// Moves the oldest elements, with about `batch_rows` rows and never more than `rows_max`, to `taken`. Returns
    /// whether to wake senders: they found no room, and now there is some.
    pub(super) fn take(&self, batch_rows: usize, rows_max: usize, taken: &mut Vec<Sent>) -> bool {
        let (mut rows, mut bytes) = (0, 0);
        let mut queue = self.queue.lock();
        while rows < batch_rows.min(rows_max)
            && let Some(mut sent) = queue.pop_front()
        {
            if let Element::Batch(batch) = &mut sent.element {
                let most = rows_max - rows;
                if batch.rows() > most {
                    let rest = batch.slice(most, batch.rows() - most);
                    let bytes = sent.bytes * rest.rows() / batch.rows();
                    *batch = batch.slice(0, most);
                    sent.bytes -= bytes;
                    queue.push_front(Sent {
                        channel: sent.channel,
                        element: Element::Batch(rest),
                        bytes,
                        sent_us: sent.sent_us,
                    });
                }
                rows += batch.rows();
                bytes += sent.bytes;
            }
            taken.push(sent);
        }
        drop(queue);
        // Sequentially consistent with `has_room`: either that sees the room, or this sees that a sender waits.
        self.rows.fetch_sub(rows, Ordering::SeqCst);
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.is_low() && self.is_waited_for.swap(false, Ordering::SeqCst)
    }

    /// Drops all elements: the task will not take them.
    pub(super) fn clear(&self) {
        self.queue.lock().clear();
        self.rows.store(0, Ordering::SeqCst);
        self.bytes.store(0, Ordering::SeqCst);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// The number of waiting rows, and the most there ever were.
    pub(super) fn rows(&self) -> (usize, usize) {
        (self.rows.load(Ordering::Acquire), self.rows_most.load(Ordering::Relaxed))
    }

    /// Whether there is room. If not, the receiver wakes the senders as soon as there is.
    pub(super) fn has_room(&self) -> bool {
        if self.is_below_high() {
            return true;
        }
        self.is_waited_for.store(true, Ordering::SeqCst);
        // The inbox may have been emptied before the receiver could see that a sender waits.
        self.is_below_high()
    }

    fn is_below_high(&self) -> bool {
        self.rows.load(Ordering::SeqCst) < self.limits.rows_max
            && self.bytes.load(Ordering::SeqCst) < self.limits.bytes_max
    }

    /// Waiting senders are woken only when there is room for several batches.
    fn is_low(&self) -> bool {
        self.rows.load(Ordering::SeqCst) <= self.limits.rows_max / 2
            && self.bytes.load(Ordering::SeqCst) <= self.limits.bytes_max / 2
    }
}

/// The watermark of a channel that waits behind all rows, if there is one. A later watermark replaces it, so that
/// senders of watermarks alone do not fill the queue of a task that is not run.
fn last_watermark(queue: &mut VecDeque<Sent>, channel: usize) -> Option<&mut i64> {
    let behind_rows = queue.iter_mut().rev().take_while(|sent| !matches!(sent.element, Element::Batch(_)));
    // Other elements that the channel sent since then must stay behind it.
    match behind_rows.into_iter().find(|sent| sent.channel == channel)? {
        Sent { element: Element::Watermark(watermark_us), .. } => Some(watermark_us),
        _ => None,
    }
}

/// The size of a batch where bytes are bounded. Memory shared with other batches counts in full, which overestimates.
fn bytes_of(batch: &Batch) -> usize {
    batch
        .columns
        .columns()
        .iter()
        .map(|column| column.to_data().get_slice_memory_size().unwrap_or_default())
        .sum::<usize>()
        + batch.rows() * 20
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatch};

    use super::*;

    /// Rows with these numbers and event times.
    fn batch(numbers: std::ops::Range<i64>) -> Batch {
        let columns: Int64Array = numbers.clone().collect();
        let columns = RecordBatch::try_from_iter([("n", Arc::new(columns) as _)]).unwrap();
        let times: Vec<i64> = numbers.collect();
        Batch::new(vec![0; times.len()].into(), times.clone().into(), times.into(), columns)
    }

    #[test]
    fn of_a_batch_no_more_is_taken_than_asked_for() {
        let inbox = FlowInbox::new(FlowLimits::default());
        inbox.push(0, Element::Batch(batch(0..100)), 0);
        inbox.push(1, Element::Watermark(50), 0);
        inbox.push(0, Element::Batch(batch(100..110)), 0);
        let bytes = inbox.bytes.load(Ordering::Relaxed);
        let (mut times, mut left) = (Vec::new(), 110);
        for (rows_max, elements) in [(30, 1), (70, 1), (7, 2), (50, 1)] {
            let mut taken = Vec::new();
            inbox.take(1_000, rows_max, &mut taken);
            assert_eq!(taken.len(), elements, "at most {rows_max}");
            let rows = taken.iter().filter_map(|sent| match &sent.element {
                Element::Batch(batch) => Some(batch.event_time_us.to_vec()),
                _ => None,
            });
            let rows = rows.collect::<Vec<_>>().concat();
            left -= rows.len();
            assert!(rows.len() <= rows_max && inbox.rows().0 == left, "{rows:?}");
            assert_eq!(inbox.bytes.load(Ordering::Relaxed) > 0, left > 0);
            times.extend(rows);
        }
        assert!(times.into_iter().eq(0..110) && inbox.is_empty());
        // A batch that is larger than what is asked for at a time is taken as a whole, if it may be.
        inbox.push(0, Element::Batch(batch(0..110)), 0);
        assert_eq!(inbox.bytes.load(Ordering::Relaxed), bytes);
        let mut taken = Vec::new();
        inbox.take(10, usize::MAX, &mut taken);
        assert_eq!((taken.len(), inbox.rows().0, inbox.bytes.load(Ordering::Relaxed)), (1, 0, 0));
    }

    #[test]
    fn watermarks_of_a_channel_do_not_pile_up() {
        let inbox = FlowInbox::new(FlowLimits::default());
        let elements = [
            (0, Element::Watermark(1)),
            (1, Element::Watermark(5)),
            (0, Element::Watermark(2)),
            (0, Element::Batch(batch(0..1))),
            (0, Element::Watermark(3)),
            (1, Element::Watermark(6)),
            (1, Element::Barrier(1)),
            (1, Element::Watermark(7)),
            (0, Element::Watermark(4)),
        ];
        for (channel, element) in elements {
            inbox.push(channel, element, 0);
        }
        let mut taken = Vec::new();
        inbox.take(10, usize::MAX, &mut taken);
        let told: Vec<(usize, Option<i64>)> = taken
            .iter()
            .map(|sent| match sent.element {
                Element::Watermark(watermark_us) => (sent.channel, Some(watermark_us)),
                _ => (sent.channel, None),
            })
            .collect();
        assert_eq!(told, [(0, Some(2)), (1, Some(5)), (0, None), (0, Some(4)), (1, Some(6)), (1, None), (1, Some(7))]);
    }
}
