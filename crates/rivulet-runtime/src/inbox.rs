//! The bounded queue in front of a task.
//!
//! Sources append to the last of a few arenas while a worker empties the first, so neither waits for the other for
//! longer than a swap, and a worker can stop between two arenas. What does not fit is refused to the source, which then
//! stops reading; or dropped and counted, where the input says so. Between the arenas may stand rows that were decoded
//! already, because several queries read them.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rivulet_dataflow::{Event, Events, InputIndex, LogPosition, Push, Slot};

use crate::Picked;
use crate::scheduler::level;
use crate::task::progress::stamp;

/// The most events in one arena, and so in one batch. Beyond some thousand rows a batch is not cheaper per row, but
/// holds its worker for longer.
const CHUNK_ROWS: usize = 4_096;

/// An arena takes no further event beyond so many payload bytes.
const CHUNK_BYTES: usize = 1 << 20;

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

/// The inbox of a task.
pub(crate) struct TaskInbox {
    limits: InboxLimits,
    /// The most events in one batch: [`CHUNK_ROWS`], or fewer where a baseline asks for it.
    chunk_rows: usize,
    /// How many events wait, for those who do not hold the queue.
    pending: AtomicUsize,
    queue: Mutex<Queue>,
}

/// The queue of an inbox while it stands still. When it is let go of, everybody can see how many events wait.
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

/// What waits in an inbox. Numbers of events count from the creation of the inbox.
#[derive(Default)]
pub(crate) struct Queue {
    chunks: VecDeque<Chunk>,
    /// One empty arena, kept for its memory.
    spare: Option<Events>,
    rows: usize,
    bytes: usize,
    pushed: u64,
    dropped: u64,
}

/// Events that are processed as one batch.
pub(crate) enum Chunk {
    /// Payloads as they came.
    Raw(Events),
    /// Rows that were decoded on the way.
    Rows(Picked),
}

impl Chunk {
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Raw(events) => events.rows(),
            Self::Rows(picked) => picked.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Raw(events) => events.payload_bytes(),
            Self::Rows(picked) => picked.bytes(),
        }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        match self {
            Self::Raw(events) => events.slots(),
            Self::Rows(picked) => picked.slots(),
        }
    }

    /// The input of each event; empty if all came by the first.
    pub(crate) fn inputs(&self) -> &[InputIndex] {
        match self {
            Self::Raw(events) => events.inputs(),
            Self::Rows(_) => &[],
        }
    }

    /// The place of an event among all: see [`stamp`].
    #[inline]
    pub(crate) fn stamp(&self, row: usize) -> u64 {
        match self {
            Self::Raw(events) => stamp(self.position(row), events.input(row)),
            Self::Rows(_) => stamp(self.position(row), 0),
        }
    }

    /// How many of the oldest events hold at least `bytes`; all of them if they hold less.
    fn rows_to_free(&self, bytes: usize) -> usize {
        match self {
            Self::Raw(events) => events.rows_to_free(bytes),
            Self::Rows(picked) => picked.rows_to_free(bytes),
        }
    }

    fn drop_front(&mut self, rows: usize) {
        match self {
            Self::Raw(events) => events.drop_front(rows),
            Self::Rows(picked) => drop(picked.split_front(rows)),
        }
    }

    /// Keeps only the events whose slot satisfies `keep`, in order.
    pub(crate) fn retain_slots(&mut self, keep: impl Fn(Slot) -> bool) {
        match self {
            Self::Raw(events) => events.retain_slots(keep),
            Self::Rows(picked) => picked.retain_slots(keep),
        }
    }

    /// The position in the log of the event at `row`; 0 if it is in none.
    pub(crate) fn position(&self, row: usize) -> LogPosition {
        match self {
            Self::Raw(events) => events.position(row),
            Self::Rows(picked) => picked.position(row),
        }
    }

    /// Whether any of the events may be in the log.
    pub(crate) fn has_positions(&self) -> bool {
        match self {
            Self::Raw(events) => !events.positions().is_empty(),
            Self::Rows(picked) => picked.has_positions(),
        }
    }

    fn oldest_position(&self) -> Option<LogPosition> {
        if !self.has_positions() {
            return None;
        }
        (0..self.rows()).map(|row| self.position(row)).filter(|&position| position > 0).min()
    }

    /// Keeps only the events in rows for which `keep` holds, in order.
    pub(crate) fn retain_rows(&mut self, keep: impl Fn(usize) -> bool) {
        match self {
            Self::Raw(events) => {
                let mut kept = Events::default();
                (0..events.rows()).filter(|&row| keep(row)).for_each(|row| kept.push_event(events.event(row)));
                *events = kept;
            }
            Self::Rows(picked) => picked.retain_rows(keep),
        }
    }

    pub(crate) fn oldest_arrival_us(&self) -> Option<i64> {
        match self {
            Self::Raw(events) => events.arrival_us().iter().copied().min(),
            Self::Rows(picked) => picked.arrival_us().min(),
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Raw(events) => events.memory_bytes(),
            Self::Rows(picked) => picked.memory_bytes(),
        }
    }
}

/// The oldest of the events that were taken from an inbox and not handed on yet.
pub(crate) struct InHand {
    /// When it came; `i64::MAX` without any.
    pub(crate) arrival_us: AtomicI64,
    /// The lowest position in the log; the highest there can be without any.
    pub(crate) position: AtomicU64,
}

impl InHand {
    /// Nothing.
    pub(crate) fn new() -> Self {
        Self { arrival_us: AtomicI64::new(i64::MAX), position: AtomicU64::new(LogPosition::MAX) }
    }

    /// Everything was handed on.
    pub(crate) fn clear(&self) {
        self.arrival_us.store(i64::MAX, Ordering::Release);
        self.position.store(LogPosition::MAX, Ordering::Release);
    }
}

/// What became of an event that was offered to a [`Queue`].
pub(crate) struct Pushed {
    pub(crate) push: Push,
    /// Whether the order of magnitude of what waits has risen, as from nothing to one event: its task has to be
    /// scheduled.
    pub(crate) has_risen: bool,
}

impl TaskInbox {
    pub(crate) fn new(limits: InboxLimits, batch_rows_max: Option<usize>) -> Self {
        let chunk_rows = batch_rows_max.unwrap_or(CHUNK_ROWS).clamp(1, CHUNK_ROWS);
        Self { limits, chunk_rows, pending: AtomicUsize::new(0), queue: Mutex::default() }
    }

    /// Holds the inbox still: to push, or to move events between two of them.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_> {
        Held { queue: self.queue.lock(), pending: &self.pending }
    }

    /// How many events wait, or did a moment ago: nothing is locked for it.
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    fn is_full(&self, queue: &Queue, payload_bytes: usize) -> bool {
        queue.rows >= self.limits.rows_max || (queue.rows > 0 && queue.bytes + payload_bytes > self.limits.bytes_max)
    }

    /// Whether an event finds room, or an older one makes it.
    pub(crate) fn has_room(&self, queue: &Queue, payload_bytes: usize) -> bool {
        self.limits.overflow != Overflow::Block || !self.is_full(queue, payload_bytes)
    }

    /// Offers an event to the queue of this inbox. One that `must_fit` is not refused.
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
                    // An eighth at a time: moving an arena for every single event would cost its size each time.
                    let excess = (queue.bytes + event.bytes()).saturating_sub(self.limits.bytes_max);
                    queue.drop_oldest((queue.rows / 8).max(1), excess);
                }
            }
        }
        queue.append(event, self.chunk_rows);
        // One more event makes it rise at each power of two.
        Pushed { push: Push::Taken, has_risen: queue.rows.is_power_of_two() }
    }

    /// Whether rows find room. Rows are decoded already, so they are taken as a whole or not at all; but what drops
    /// events when it is full always has room for them.
    pub(crate) fn has_room_for_rows(&self, queue: &Queue) -> bool {
        let is_full = queue.rows >= self.limits.rows_max || queue.bytes >= self.limits.bytes_max;
        !is_full || self.limits.overflow != Overflow::Block
    }

    /// Offers rows to the queue of this inbox, which has room; returns whether its task has to be scheduled.
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
            // More than an inbox can hold is too much however empty it is, but one event always fits.
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

    /// Takes the oldest events, one batch of them, and gives back those that were taken before. `in_hand` is told of
    /// them before anybody can see that they do not wait any more.
    pub(crate) fn take(&self, done: Option<Chunk>, in_hand: Option<&InHand>) -> Option<Chunk> {
        let mut queue = self.lock();
        queue.keep(done);
        let chunk = match queue.chunks.front_mut()? {
            Chunk::Rows(rows) if rows.len() > self.chunk_rows => {
                let whole_events = rows.end_of_event(self.chunk_rows);
                Chunk::Rows(rows.split_front(whole_events))
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

    /// Whether nothing waits.
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

    /// Drops at least `rows` events with at least `bytes` of payload, or all.
    fn drop_oldest(&mut self, rows: usize, bytes: usize) {
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

    /// Keeps the memory of an arena that was processed.
    pub(crate) fn keep(&mut self, done: Option<Chunk>) {
        let Some(Chunk::Raw(mut done)) = done else { return };
        let (rows, bytes) = (done.rows(), done.payload_bytes());
        done.clear();
        done.shrink_for(rows, bytes);
        self.spare.get_or_insert(done);
    }

    /// Moves the events for which `place` knows another slot to the end of `to`, in order. Bounds are not looked at:
    /// what was taken once is not refused later.
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
                        // It was counted when it came.
                        self.pushed -= 1;
                    }
                }
            }
        }
    }

    /// Copies the events of a slot, in order, for another one; bounds are not looked at.
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

    /// Keeps only the events whose slot satisfies `keep`, and returns how many others there were.
    pub(crate) fn retain_slots(&mut self, keep: impl Fn(Slot) -> bool) -> usize {
        let before = self.rows;
        self.chunks.iter_mut().for_each(|chunk| chunk.retain_slots(&keep));
        self.chunks.retain(|chunk| chunk.rows() > 0);
        self.rows = self.chunks.iter().map(Chunk::rows).sum();
        self.bytes = self.chunks.iter().map(Chunk::bytes).sum();
        before - self.rows
    }

    /// Events and payload bytes waiting.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.rows, self.bytes)
    }

    /// When the oldest of the waiting events came.
    pub(crate) fn oldest_arrival_us(&self) -> Option<i64> {
        // Moved events stand behind others that came later, so every one is looked at.
        self.chunks.iter().filter_map(Chunk::oldest_arrival_us).min()
    }

    /// The lowest position in the log of the waiting events; `None` if none is in one.
    pub(crate) fn oldest_position(&self) -> Option<LogPosition> {
        self.chunks.iter().filter_map(Chunk::oldest_position).min()
    }

    /// How many events were ever taken in.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// How many events have left again, one way or another.
    pub(crate) fn left(&self) -> u64 {
        self.pushed - self.rows as u64
    }

    /// How many events were dropped because there was no room.
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

    /// Takes everything, as slots by batch.
    fn take_all(inbox: &TaskInbox) -> Vec<Vec<Slot>> {
        let (mut done, mut batches) = (None, Vec::new());
        while let Some(chunk) = inbox.take(done, None) {
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
        // A row that is picked often is held once.
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
            while let Some(chunk) = inbox.take(None, None) {
                all.extend((0..chunk.rows()).map(|row| (chunk.slots()[row], chunk.position(row))));
            }
            all
        };
        assert_eq!((positions(&from), positions(&to)), (vec![(1, 0), (1, 5), (3, 4), (3, 6)], vec![(7, 4), (7, 6)]));
        assert_eq!(from.lock().oldest_position(), None);

        // Two rows for two queries from the event at 8, one from that at 9: no batch ends within an event.
        let column: ArrayRef = std::sync::Arc::new(Int64Array::from(vec![1, 2, 3]));
        let columns = RecordBatch::try_from_iter([("v", column)]).unwrap();
        let zeros = vec![0; 3];
        let rows = rivulet_dataflow::Batch::new(vec![0; 3].into(), zeros.clone().into(), zeros.into(), columns)
            .with_positions(Some(vec![8, 8, 9].into()));
        from.push_rows(&mut from.lock(), Picked::new(&rows, vec![0, 0, 1, 1, 2, 2], vec![1, 2, 1, 2, 1, 2]));
        let mut done = None;
        let mut batches = Vec::new();
        while let Some(chunk) = from.take(done, None) {
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
