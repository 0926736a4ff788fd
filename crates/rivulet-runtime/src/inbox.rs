//! The bounded queue in front of a task.
//!
//! Sources append to the last of a few arenas while a worker empties the first. So neither waits for the other for
//! longer than a swap, and a worker can stop between two arenas. An event that does not fit is refused to the source,
//! which then stops reading; or it is dropped and counted, where the input says so. Between the arenas there may be
//! decoded rows, which several queries read.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rivulet_dataflow::{Chunk, Event, Events, LogPosition, Picked, Push, Slot};

use crate::scheduler::level;

/// The most events in an arena, and so in a batch. Beyond some thousand rows a batch is not cheaper per row, but
/// occupies its worker for longer.
const CHUNK_ROWS: usize = 4_096;

/// The payload bytes beyond which an arena accepts no further event.
const CHUNK_BYTES: usize = 1 << 20;

/// What happens to an event that finds no room.
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

/// The bounds of an inbox.
#[derive(Clone, Copy, Debug)]
pub struct InboxLimits {
    /// The most events.
    pub rows_max: usize,
    /// The most payload bytes; an empty inbox accepts one larger event.
    pub bytes_max: usize,
    /// What happens beyond these bounds.
    pub overflow: Overflow,
}

impl Default for InboxLimits {
    /// 65,536 events, 16 MiB, and the source waits.
    fn default() -> Self {
        Self { rows_max: 65_536, bytes_max: 16 << 20, overflow: Overflow::Block }
    }
}

/// The inbox of a task.
pub(crate) struct TaskInbox {
    limits: InboxLimits,
    /// The most events in one batch: [`CHUNK_ROWS`], or fewer where that is asked for.
    chunk_rows: usize,
    /// The number of waiting events, readable without the lock.
    pending: AtomicUsize,
    queue: Mutex<Queue>,
}

/// The locked queue of an inbox. Unlocking it publishes the number of waiting events.
pub(crate) struct Held<'a> {
    queue: MutexGuard<'a, Queue>,
    pending: &'a AtomicUsize,
}

impl Deref for Held<'_> {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.pending.store(self.queue.rows, Ordering::Relaxed);
    }
}

/// The content of an inbox. Event numbers count from the creation of the inbox.
#[derive(Default)]
pub(crate) struct Queue {
    chunks: VecDeque<Chunk>,
    /// One empty arena, kept to reuse the memory.
    spare: Option<Events>,
    rows: usize,
    bytes: usize,
    pushed: u64,
    dropped: u64,
}

/// The oldest event that was taken from an inbox and not passed on yet.
pub(crate) struct InHand {
    /// Its arrival; `i64::MAX` if there is none.
    pub(crate) arrival_us: AtomicI64,
    /// The lowest log position; the highest possible position if there is none.
    pub(crate) position: AtomicU64,
}

impl InHand {
    /// No event.
    pub(crate) fn new() -> Self {
        Self { arrival_us: AtomicI64::new(i64::MAX), position: AtomicU64::new(LogPosition::MAX) }
    }

    /// All events have been passed on.
    pub(crate) fn clear(&self) {
        self.arrival_us.store(i64::MAX, Ordering::Release);
        self.position.store(LogPosition::MAX, Ordering::Release);
    }
}

/// The result of offering an event to a [`Queue`].
pub(crate) struct Pushed {
    pub(crate) push: Push,
    /// Whether the order of magnitude of the waiting events has risen, for instance from none to one: the task must be
    /// scheduled.
    pub(crate) has_risen: bool,
}

impl TaskInbox {
    pub(crate) fn new(limits: InboxLimits, batch_rows_max: Option<usize>) -> Self {
        let chunk_rows = batch_rows_max.unwrap_or(CHUNK_ROWS).clamp(1, CHUNK_ROWS);
        Self { limits, chunk_rows, pending: AtomicUsize::new(0), queue: Mutex::default() }
    }

    /// Locks the inbox, to push or to move events between two inboxes.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_> {
        Held { queue: self.queue.lock(), pending: &self.pending }
    }

    /// The number of events that wait, or waited a moment ago; takes no lock.
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    pub(crate) fn is_full(&self, queue: &Queue, payload_bytes: usize) -> bool {
        queue.rows >= self.limits.rows_max || (queue.rows > 0 && queue.bytes + payload_bytes > self.limits.bytes_max)
    }

    /// Whether at least half of the inbox is free.
    pub(crate) fn is_half_empty(&self, queue: &Queue) -> bool {
        queue.rows <= self.limits.rows_max / 2 && queue.bytes <= self.limits.bytes_max / 2
    }

    /// Whether there is room for an event, or an older one would make room.
    pub(crate) fn has_room(&self, queue: &Queue, payload_bytes: usize) -> bool {
        self.limits.overflow != Overflow::Block || !self.is_full(queue, payload_bytes)
    }

    /// Offers an event to the queue of this inbox. With `must_fit` it is not refused.
    #[inline]
    pub(crate) fn push(&self, queue: &mut Queue, event: Event<'_>, must_fit: bool) -> Pushed {
        if self.is_full(queue, event.bytes()) {
            match self.limits.overflow {
                Overflow::Block if must_fit => {}
                Overflow::Block => return Pushed { push: Push::Full, has_risen: false },
                Overflow::DropNewest => {
                    queue.dropped += 1;
                    return Pushed { push: Push::Taken, has_risen: false };
                }
                Overflow::DropOldest => {
                    // Drops an eighth at a time: a move within the arena for every single event would cost its size
                    // each time.
                    let excess = (queue.bytes + event.bytes()).saturating_sub(self.limits.bytes_max);
                    queue.drop_oldest((queue.rows / 8).max(1), excess);
                }
            }
        }
        queue.append(event, self.chunk_rows);
        // With one more event the level rises at each power of two.
        Pushed { push: Push::Taken, has_risen: queue.rows.is_power_of_two() }
    }

    /// Whether there is room for rows. Decoded rows are accepted as a whole or not at all; an inbox that drops events
    /// when it is full always has room.
    pub(crate) fn has_room_for_rows(&self, queue: &Queue) -> bool {
        let is_full = queue.rows >= self.limits.rows_max || queue.bytes >= self.limits.bytes_max;
        !is_full || self.limits.overflow != Overflow::Block
    }

    /// Puts rows into the queue of this inbox, which has room; returns whether its task must be scheduled.
    pub(crate) fn push_rows(&self, queue: &mut Queue, mut rows: Picked) -> bool {
        let before = queue.rows;
        let excess = |queue: &Queue, rows: &Picked| {
            let bytes = (queue.bytes + rows.bytes()).saturating_sub(self.limits.bytes_max);
            ((queue.rows + rows.len()).saturating_sub(self.limits.rows_max), bytes)
        };
        if self.limits.overflow == Overflow::DropOldest {
            let (events, bytes) = excess(queue, &rows);
            queue.drop_oldest(events, bytes);
        }
        if self.limits.overflow != Overflow::Block {
            // What exceeds the whole inbox is dropped however empty the inbox is, but one event always fits.
            let (events, bytes) = excess(queue, &rows);
            let dropped =
                events.max(rows.rows_of(bytes)).min(rows.len() - usize::from(queue.rows == 0 && !rows.is_empty()));
            queue.dropped += dropped as u64;
            match self.limits.overflow {
                Overflow::DropOldest => drop(rows.split_front(dropped)),
                _ => rows = rows.split_front(rows.len() - dropped),
            }
        }
        queue.pushed += rows.len() as u64;
        queue.append_rows(rows);
        level(queue.rows) > level(before)
    }

    /// Takes the oldest events, one batch of them and at most `rows_max`, and returns the memory of the batch before.
    /// `in_hand` is set before any thread can see that these events no longer wait.
    pub(crate) fn take(&self, done: Option<Chunk>, in_hand: Option<&InHand>, rows_max: usize) -> Option<Chunk> {
        let queue = &mut *self.lock();
        queue.keep(done);
        let rows_max = rows_max.min(self.chunk_rows);
        let chunk = match queue.chunks.front_mut()? {
            Chunk::Rows(rows) if rows.len() > rows_max => {
                let whole_events = rows.end_of_event(rows_max);
                Chunk::Rows(rows.split_front(whole_events))
            }
            Chunk::Raw(arena) if arena.rows() > rows_max => {
                let mut taken = queue.spare.take().unwrap_or_default();
                arena.take_front(rows_max, &mut taken);
                Chunk::Raw(taken)
            }
            _ => queue.chunks.pop_front()?,
        };
        queue.rows -= chunk.rows();
        queue.bytes -= chunk.bytes();
        if let Some(in_hand) = in_hand {
            in_hand.arrival_us.store(chunk.oldest_arrival_us().unwrap_or(i64::MAX), Ordering::Release);
            in_hand.position.store(chunk.oldest_position().unwrap_or(LogPosition::MAX), Ordering::Release);
        }
        Some(chunk)
    }

    /// Whether no event waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().rows == 0
    }

    /// The most events in one batch.
    pub(crate) fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }
}

impl Queue {
    #[inline]
    fn append(&mut self, event: Event<'_>, chunk_rows: usize) {
        let arena = match self.chunks.back_mut() {
            Some(Chunk::Raw(arena)) if arena.rows() < chunk_rows && arena.payload_bytes() < CHUNK_BYTES => arena,
            _ => {
                self.chunks.push_back(Chunk::Raw(self.spare.take().unwrap_or_default()));
                let Some(Chunk::Raw(arena)) = self.chunks.back_mut() else { unreachable!("it was put there") };
                arena
            }
        };
        arena.push_event(event);
        self.rows += 1;
        self.bytes += event.bytes();
        self.pushed += 1;
    }

    fn append_rows(&mut self, rows: Picked) {
        if !rows.is_empty() {
            self.rows += rows.len();
            self.bytes += rows.bytes();
            self.chunks.push_back(Chunk::Rows(rows));
        }
    }

    /// Drops and counts at least `rows` events with at least `bytes` of payload, or all.
    pub(crate) fn drop_oldest(&mut self, rows: usize, bytes: usize) {
        let (rows_kept, bytes_kept) = (self.rows.saturating_sub(rows), self.bytes.saturating_sub(bytes));
        while self.rows > rows_kept || self.bytes > bytes_kept {
            let Some(chunk) = self.chunks.front_mut() else { return };
            let excess =
                (self.rows.saturating_sub(rows_kept)).max(chunk.rows_to_free(self.bytes.saturating_sub(bytes_kept)));
            let (cut, before) = (excess.min(chunk.rows()), chunk.bytes());
            chunk.drop_front(cut);
            self.rows -= cut;
            self.bytes -= before - chunk.bytes();
            self.dropped += cut as u64;
            if chunk.rows() == 0 {
                self.chunks.pop_front();
            }
        }
    }

    /// Drops the waiting events that are in the log, and counts them. Returns their number.
    pub(crate) fn drop_logged(&mut self, chunk_rows: usize) -> u64 {
        let (chunks, before) = (std::mem::take(&mut self.chunks), self.rows);
        (self.rows, self.bytes) = (0, 0);
        for chunk in chunks {
            let has_logged = chunk.oldest_position().is_some();
            match chunk {
                // Rows that were decoded together came by one input.
                Chunk::Rows(rows) if !has_logged => self.append_rows(rows),
                Chunk::Rows(_) => {}
                Chunk::Raw(arena) => {
                    for row in (0..arena.rows()).filter(|&row| arena.position(row) == 0) {
                        self.append(arena.event(row), chunk_rows);
                        // The event was counted when it came.
                        self.pushed -= 1;
                    }
                }
            }
        }
        let dropped = (before - self.rows) as u64;
        self.dropped += dropped;
        dropped
    }

    /// Keeps the memory of a processed arena.
    pub(crate) fn keep(&mut self, done: Option<Chunk>) {
        let Some(Chunk::Raw(mut done)) = done else { return };
        let (rows, bytes) = (done.rows(), done.payload_bytes());
        done.clear();
        done.shrink_for(rows, bytes);
        self.spare.get_or_insert(done);
    }

    /// Moves the events for which `place` has another slot to the end of `to`, in order. Bounds are ignored: an
    /// accepted event is not refused later.
    pub(crate) fn move_events(&mut self, to: &mut Self, chunk_rows: usize, place: impl Fn(Slot) -> Option<Slot>) {
        if !self.chunks.iter().any(|chunk| chunk.slots().iter().any(|&slot| place(slot).is_some())) {
            return;
        }
        let chunks = std::mem::take(&mut self.chunks);
        (self.rows, self.bytes) = (0, 0);
        for chunk in chunks {
            let arena = match chunk {
                Chunk::Raw(arena) => arena,
                Chunk::Rows(mut rows) => {
                    let moved = rows.extract(&place);
                    to.pushed += moved.len() as u64;
                    to.append_rows(moved);
                    self.append_rows(rows);
                    continue;
                }
            };
            for row in 0..arena.rows() {
                let event = arena.event(row);
                match place(event.slot) {
                    Some(slot) => to.append(Event { slot, ..event }, chunk_rows),
                    None => {
                        self.append(event, chunk_rows);
                        // The event was counted when it came.
                        self.pushed -= 1;
                    }
                }
            }
        }
    }

    /// Copies the events of a slot, in order, to another slot; bounds are ignored.
    pub(crate) fn copy_events(&mut self, from: Slot, to: Slot, chunk_rows: usize) {
        for index in 0..self.chunks.len() {
            match &self.chunks[index] {
                Chunk::Rows(rows) => {
                    let copied = rows.copied(from, to);
                    self.pushed += copied.len() as u64;
                    self.append_rows(copied);
                }
                Chunk::Raw(events) => {
                    let mut copied = Events::default();
                    for row in (0..events.rows()).filter(|&row| events.slots()[row] == from) {
                        copied.push_event(Event { slot: to, ..events.event(row) });
                    }
                    for row in 0..copied.rows() {
                        self.append(copied.event(row), chunk_rows);
                    }
                }
            }
        }
    }

    /// The slot of each waiting event.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.chunks.iter().flat_map(Chunk::slots).copied()
    }

    /// Keeps only the events whose slot satisfies `keep`, and returns the number of others.
    pub(crate) fn retain_slots(&mut self, keep: impl Fn(Slot) -> bool) -> usize {
        let before = self.rows;
        self.chunks.iter_mut().for_each(|chunk| chunk.retain_slots(&keep));
        self.chunks.retain(|chunk| chunk.rows() > 0);
        self.rows = self.chunks.iter().map(Chunk::rows).sum();
        self.bytes = self.chunks.iter().map(Chunk::bytes).sum();
        before - self.rows
    }

    /// The numbers of waiting events and payload bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.rows, self.bytes)
    }

    /// The arrival of the oldest waiting event.
    pub(crate) fn oldest_arrival_us(&self) -> Option<i64> {
        // Moved events may stand behind later ones, so all are compared.
        self.chunks.iter().filter_map(Chunk::oldest_arrival_us).min()
    }

    /// The lowest log position of the waiting events; `None` if none is in the log.
    pub(crate) fn oldest_position(&self) -> Option<LogPosition> {
        self.chunks.iter().filter_map(Chunk::oldest_position).min()
    }

    /// The log positions of the events that wait for a slot and are in the log.
    pub(crate) fn positions_of(&self, slot: Slot) -> impl Iterator<Item = LogPosition> {
        let of_chunk = move |chunk| {
            let rows = Chunk::slots(chunk).iter().enumerate().filter(move |(_, of)| **of == slot);
            rows.map(|(row, _)| chunk.position(row)).filter(|&position| position > 0)
        };
        self.chunks.iter().flat_map(of_chunk)
    }

    /// The number of waiting events that are not in the log.
    pub(crate) fn unlogged(&self) -> usize {
        let of = |chunk: &Chunk| match chunk {
            Chunk::Raw(arena) => (0..arena.rows()).filter(|&row| arena.position(row) == 0).count(),
            Chunk::Rows(rows) if chunk.oldest_position().is_none() => rows.len(),
            Chunk::Rows(_) => 0,
        };
        self.chunks.iter().map(of).sum()
    }

    /// The number of all events ever accepted.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The number of events that have left the inbox in any way.
    pub(crate) fn left(&self) -> u64 {
        self.pushed - self.rows as u64
    }

    /// The number of events dropped because there was no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Memory held by the waiting events, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::memory_bytes).sum::<usize>() + self.spare.as_ref().map_or(0, Events::memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(overflow: Overflow) -> TaskInbox {
        TaskInbox::new(InboxLimits { rows_max: 8, bytes_max: 100, overflow }, Some(3))
    }

    fn event(slot: Slot, position: LogPosition, payload: &[u8]) -> Event<'_> {
        Event { input: 0, slot, arrival_us: 0, position, topic: b"", payload }
    }

    fn push(inbox: &TaskInbox, slot: Slot, payload: &[u8]) -> Push {
        inbox.push(&mut inbox.lock(), event(slot, 0, payload), false).push
    }

    fn fill(inbox: &TaskInbox, events: u32) -> Vec<Push> {
        (0..events).map(|slot| push(inbox, slot, b"x")).collect()
    }

    /// Takes all events; returns the slots of each batch.
    fn take_all(inbox: &TaskInbox) -> Vec<Vec<Slot>> {
        let (mut done, mut batches) = (None, Vec::new());
        while let Some(chunk) = inbox.take(done, None, usize::MAX) {
            batches.push(chunk.slots().to_vec());
            done = Some(chunk);
        }
        batches
    }

    #[test]
    fn a_full_inbox_refuses_and_takes_again_once_emptied() {
        let inbox = inbox(Overflow::Block);
        let pushed = fill(&inbox, 9);
        assert_eq!(pushed.iter().filter(|push| **push == Push::Taken).count(), 8);
        assert_eq!(pushed[8], Push::Full);
        assert_eq!(take_all(&inbox), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(push(&inbox, 8, b"x"), Push::Taken);
        assert_eq!(take_all(&inbox), [[8]]);
        assert!(inbox.is_empty());
    }

    #[test]
    fn of_a_batch_no_more_is_taken_than_asked_for() {
        let limits = InboxLimits { rows_max: 1_000, bytes_max: 1 << 20, overflow: Overflow::Block };
        let inbox = TaskInbox::new(limits, None);
        for slot in 0..100 {
            let payload = vec![b'x'; slot as usize];
            inbox.push(&mut inbox.lock(), event(slot, u64::from(slot) + 7, &payload), false);
        }
        let (mut done, mut taken, mut left) = (None, 0, (100, 4_950));
        for rows_max in [1, 50, 2, 40, 50] {
            let chunk = inbox.take(done, None, rows_max).expect("some wait");
            assert!(chunk.rows() <= rows_max);
            for row in 0..chunk.rows() {
                assert_eq!((chunk.slots()[row], chunk.position(row)), (taken as Slot, taken as u64 + 7));
                let Chunk::Raw(arena) = &chunk else { unreachable!("it is raw") };
                assert_eq!(arena.payload(row).len(), taken);
                (taken, left) = (taken + 1, (left.0 - 1, left.1 - taken));
            }
            assert_eq!((inbox.pending(), inbox.lock().waiting()), (left.0, left));
            done = Some(chunk);
        }
        assert!(inbox.take(done, None, 1).is_none() && taken == 100);
    }

    #[test]
    fn arenas_are_as_large_as_ever_where_one_event_is_taken_at_a_time() {
        let limits = InboxLimits { rows_max: 20_000, ..InboxLimits::default() };
        let inbox = TaskInbox::new(limits, None);
        assert!(fill(&inbox, 10_000).iter().all(|push| *push == Push::Taken));
        assert_eq!(inbox.lock().chunks.len(), 10_000_usize.div_ceil(CHUNK_ROWS));
        let (memory_bytes, mut done) = (inbox.lock().memory_bytes(), None);
        for slot in 0..10_000 {
            let chunk = inbox.take(done, None, 1).expect("it waits");
            assert_eq!(chunk.slots(), [slot]);
            assert_eq!(push(&inbox, slot, b"x"), Push::Taken);
            done = Some(chunk);
        }
        assert!(inbox.lock().memory_bytes() < 3 * memory_bytes, "{memory_bytes}");
    }

    #[test]
    fn drops_are_counted_and_keep_order() {
        let oldest = inbox(Overflow::DropOldest);
        fill(&oldest, 12);
        assert_eq!(oldest.lock().dropped(), 4);
        assert_eq!(take_all(&oldest).concat(), [4, 5, 6, 7, 8, 9, 10, 11]);
        let newest = inbox(Overflow::DropNewest);
        fill(&newest, 10);
        assert_eq!(newest.lock().dropped(), 2);
        assert_eq!(take_all(&newest).concat(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn only_events_of_the_log_are_given_up() {
        let inbox = inbox(Overflow::Block);
        for slot in 0..7 {
            let position = if slot % 3 == 0 { 0 } else { 10 + LogPosition::from(slot) };
            assert_eq!(inbox.push(&mut inbox.lock(), event(slot, position, b"x"), false).push, Push::Taken);
        }
        inbox.lock().drop_logged(inbox.chunk_rows());
        let queue = inbox.lock();
        assert_eq!((queue.dropped(), queue.waiting(), queue.oldest_position()), (4, (3, 3), None));
        assert_eq!((queue.pushed(), queue.left(), inbox.pending()), (7, 4, 3));
        drop(queue);
        assert_eq!(take_all(&inbox), [[0, 3, 6]]);
    }

    #[test]
    fn bytes_are_bounded_but_one_event_always_fits() {
        let inbox = inbox(Overflow::Block);
        assert_eq!(push(&inbox, 0, &[b'x'; 1000]), Push::Taken);
        assert_eq!(push(&inbox, 0, b"y"), Push::Full);
        let oldest = self::inbox(Overflow::DropOldest);
        for slot in 0..6 {
            assert_eq!(push(&oldest, slot, &[b'x'; 20]), Push::Taken);
        }
        assert_eq!(push(&oldest, 6, &[b'x'; 90]), Push::Taken);
        let (dropped, waiting) = {
            let queue = oldest.lock();
            (queue.dropped(), queue.waiting())
        };
        assert_eq!((dropped, waiting), (6, (1, 90)));
        assert_eq!(take_all(&oldest), [[6]]);
    }

    #[test]
    fn of_rows_as_many_are_taken_as_fit() {
        use arrow::array::{ArrayRef, Int64Array, RecordBatch};
        let column: ArrayRef = std::sync::Arc::new(Int64Array::from(vec![1]));
        let columns = RecordBatch::try_from_iter([("v", column)]).unwrap();
        let row = rivulet_dataflow::Batch::new(vec![0].into(), vec![0].into(), vec![0].into(), columns);
        let limits = |overflow| InboxLimits { rows_max: 8, bytes_max: 1 << 20, overflow };
        let picked = |slots: std::ops::Range<Slot>| Picked::new(&row, vec![0; slots.len()], slots.collect());
        for (overflow, first, then) in [
            (Overflow::DropNewest, (0..8).collect::<Vec<Slot>>(), vec![10, 11, 12, 13, 14, 15, 20, 21]),
            (Overflow::DropOldest, (4..12).collect(), vec![12, 13, 14, 15, 20, 21, 22, 23]),
        ] {
            let inbox = TaskInbox::new(limits(overflow), Some(3));
            assert!(inbox.has_room_for_rows(&inbox.lock()));
            assert!(inbox.push_rows(&mut inbox.lock(), picked(0..12)), "more than it holds, into an empty one");
            assert_eq!(inbox.lock().dropped(), 4);
            assert_eq!(take_all(&inbox).concat(), first);
            assert!(inbox.push_rows(&mut inbox.lock(), picked(10..16)));
            assert_eq!(inbox.pending(), 6);
            assert!(
                inbox.push_rows(&mut inbox.lock(), picked(20..24)),
                "8 events are another order of magnitude than 6"
            );
            assert_eq!(inbox.pending(), 8);
            let counts = {
                let queue = inbox.lock();
                (queue.dropped(), queue.waiting().0)
            };
            assert_eq!((counts, take_all(&inbox).concat()), ((6, 8), then));
        }
        // A row that is picked several times is held once.
        let bytes = picked(0..1000).bytes();
        assert!(bytes < 1000 * 16, "{bytes}");
    }

    #[test]
    fn copied_events_keep_their_order_and_count_as_pushed() {
        let inbox = inbox(Overflow::Block);
        for (slot, payload) in [(1, "a"), (2, "b"), (1, "c"), (1, "d")] {
            assert_eq!(push(&inbox, slot, payload.as_bytes()), Push::Taken);
        }
        inbox.lock().copy_events(1, 5, 3);
        let (waiting, pushed) = {
            let queue = inbox.lock();
            (queue.waiting(), queue.pushed())
        };
        assert_eq!((waiting, pushed, take_all(&inbox).concat()), ((7, 7), 7, vec![1, 2, 1, 1, 5, 5, 5]));
    }

    #[test]
    fn positions_stay_with_their_events_and_events_stay_whole() {
        use arrow::array::{ArrayRef, Int64Array, RecordBatch};
        let (from, to) = (inbox(Overflow::Block), inbox(Overflow::Block));
        for (slot, position) in [(1, 0), (2, 4), (1, 5), (2, 6)] {
            assert_eq!(from.push(&mut from.lock(), event(slot, position, b"x"), false).push, Push::Taken);
        }
        assert_eq!(from.lock().oldest_position(), Some(4));
        from.lock().copy_events(2, 3, 3);
        from.lock().move_events(&mut to.lock(), 3, |slot| (slot == 2).then_some(7));
        let positions = |inbox: &TaskInbox| {
            let mut all = Vec::new();
            while let Some(chunk) = inbox.take(None, None, usize::MAX) {
                all.extend((0..chunk.rows()).map(|row| (chunk.slots()[row], chunk.position(row))));
            }
            all
        };
        assert_eq!((positions(&from), positions(&to)), (vec![(1, 0), (1, 5), (3, 4), (3, 6)], vec![(7, 4), (7, 6)]));
        assert_eq!(from.lock().oldest_position(), None);

        // The event at 8 gives two rows for two queries, the event at 9 one: no batch ends within an event.
        let column: ArrayRef = std::sync::Arc::new(Int64Array::from(vec![1, 2, 3]));
        let columns = RecordBatch::try_from_iter([("v", column)]).unwrap();
        let zeros = vec![0; 3];
        let rows = rivulet_dataflow::Batch::new(vec![0; 3].into(), zeros.clone().into(), zeros.into(), columns)
            .with_positions(Some(vec![8, 8, 9].into()));
        from.push_rows(&mut from.lock(), Picked::new(&rows, vec![0, 0, 1, 1, 2, 2], vec![1, 2, 1, 2, 1, 2]));
        let mut done = None;
        let mut batches = Vec::new();
        while let Some(chunk) = from.take(done, None, usize::MAX) {
            batches.push((0..chunk.rows()).map(|row| chunk.position(row)).collect::<Vec<_>>());
            done = Some(chunk);
        }
        assert_eq!(batches, [vec![8, 8, 8, 8], vec![9, 9]]);
    }

    #[test]
    fn one_that_must_fit_does() {
        let inbox = inbox(Overflow::Block);
        assert!(inbox.has_room(&inbox.lock(), 1000), "one event always fits");
        fill(&inbox, 8);
        assert!(!inbox.has_room(&inbox.lock(), 0));
        assert_eq!(inbox.push(&mut inbox.lock(), event(9, 1, b"x"), false).push, Push::Full);
        assert_eq!(inbox.push(&mut inbox.lock(), event(9, 1, b"x"), true).push, Push::Taken);
        assert_eq!(inbox.lock().waiting(), (9, 9));
    }

    #[test]
    fn moved_events_keep_their_order_and_counts() {
        let (from, to) = (inbox(Overflow::Block), inbox(Overflow::Block));
        for slot in [1, 2, 3, 2, 1, 2] {
            assert_eq!(push(&from, slot, slot.to_string().as_bytes()), Push::Taken);
        }
        assert_eq!(push(&to, 0, b"0"), Push::Taken);
        from.lock().move_events(&mut to.lock(), 3, |slot| (slot == 2).then_some(7));
        let counts = |inbox: &TaskInbox| {
            let queue = inbox.lock();
            (queue.waiting(), queue.pushed(), queue.left())
        };
        assert_eq!((counts(&from), counts(&to)), (((3, 3), 6, 3), ((4, 4), 4, 0)));
        assert_eq!(take_all(&from), [[1, 3, 1]]);
        assert_eq!(take_all(&to).concat(), [0, 7, 7, 7]);
    }
}
