//! Raw events between a source and a group, and the trait of the inboxes between them.

use crate::{LogPosition, Slot};

/// The input of an application by which an event came: the index of its declaration, from 0.
pub type InputIndex = u8;

/// An event as it is put into an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'p> {
    /// The input it came by.
    pub input: InputIndex,
    /// The slot of the query it is for.
    pub slot: Slot,
    /// When it reached the engine, microseconds since the epoch.
    pub arrival_us: i64,
    /// Its position in the log; 0 if it is not in the log.
    pub position: LogPosition,
    /// Its topic, for an input that declares columns of the topic; otherwise empty.
    pub topic: &'p [u8],
    /// Its payload.
    pub payload: &'p [u8],
}

impl Event<'_> {
    /// How many bytes of an arena the event takes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.topic.len() + self.payload.len()
    }
}

/// Raw events in one arena: payload bytes end to end, with the slot and arrival time of each event.
///
/// The inbox of a group fills one arena while a worker empties another. Neither allocates once the arenas have grown to
/// the size of the load.
#[derive(Debug, Default)]
pub struct Events {
    slots: Vec<Slot>,
    /// The input of each event; empty as long as all came by the first input.
    inputs: Vec<InputIndex>,
    /// The position of each event in the log; empty as long as none has any.
    positions: Vec<LogPosition>,
    /// The length of each event's topic, which stands before its payload; empty as long as no event has a topic.
    topic_bytes: Vec<u32>,
    arrival_us: Vec<i64>,
    /// The end of each payload in `bytes`.
    ends: Vec<u32>,
    bytes: Vec<u8>,
    /// The events before this one were taken, and are removed when they are as many as the others.
    from: usize,
}

impl Events {
    /// Appends an event. The caller bounds the arena well below 4 GiB.
    ///
    /// # Panics
    /// If the arena would reach 4 GiB; nothing has been appended then.
    #[inline]
    pub fn push(&mut self, slot: Slot, arrival_us: i64, payload: &[u8]) {
        self.push_from(0, slot, arrival_us, payload);
    }

    /// Appends an event that came by one of several inputs; see [`Events::push`].
    ///
    /// # Panics
    /// If the arena would reach 4 GiB; nothing has been appended then.
    #[inline]
    pub fn push_from(&mut self, input: InputIndex, slot: Slot, arrival_us: i64, payload: &[u8]) {
        self.push_event(Event { input, slot, arrival_us, position: 0, topic: b"", payload });
    }

    /// Appends an event with all its fields; see [`Events::push`].
    ///
    /// # Panics
    /// If the arena would reach 4 GiB; nothing has been appended then.
    #[inline]
    pub fn push_event(&mut self, event: Event<'_>) {
        let Event { input, slot, arrival_us, position, topic, payload } = event;
        // Checked before anything is appended, so that all vectors keep one length.
        let end = end_of(self.bytes.len(), event.bytes()).expect("an arena of events stays below 4 GiB");
        if !topic.is_empty() || !self.topic_bytes.is_empty() {
            self.topic_bytes.resize(self.slots.len(), 0);
            self.topic_bytes.push(topic.len() as u32);
            self.bytes.extend_from_slice(topic);
        }
        self.bytes.extend_from_slice(payload);
        if input != 0 || !self.inputs.is_empty() {
            self.inputs.resize(self.slots.len(), 0);
            self.inputs.push(input);
        }
        if position != 0 || !self.positions.is_empty() {
            self.positions.resize(self.slots.len(), 0);
            self.positions.push(position);
        }
        self.slots.push(slot);
        self.arrival_us.push(arrival_us);
        self.ends.push(end);
    }

    /// The number of events.
    #[inline]
    pub fn rows(&self) -> usize {
        self.slots.len() - self.from
    }

    /// The number of bytes of payloads, and of topics where they are kept.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len() - self.start(0)
    }

    /// Whether there are no events.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    /// The slot of each event.
    #[inline]
    pub fn slots(&self) -> &[Slot] {
        &self.slots[self.from..]
    }

    /// The input of each event; empty if all came by the first.
    #[inline]
    pub fn inputs(&self) -> &[InputIndex] {
        self.inputs.get(self.from..).unwrap_or_default()
    }

    /// The input that an event came by.
    #[inline]
    pub fn input(&self, row: usize) -> InputIndex {
        self.inputs.get(self.from + row).copied().unwrap_or(0)
    }

    /// The position of an event in the log; 0 if it is not in the log.
    #[inline]
    pub fn position(&self, row: usize) -> LogPosition {
        self.positions.get(self.from + row).copied().unwrap_or(0)
    }

    /// The position of each event in the log; empty if no event is in the log.
    #[inline]
    pub fn positions(&self) -> &[LogPosition] {
        self.positions.get(self.from..).unwrap_or_default()
    }

    /// One event with all its fields.
    #[inline]
    pub fn event(&self, row: usize) -> Event<'_> {
        Event {
            input: self.input(row),
            slot: self.slots()[row],
            arrival_us: self.arrival_us()[row],
            position: self.position(row),
            topic: self.topic(row),
            payload: self.payload(row),
        }
    }

    /// When each event reached the engine, microseconds since the epoch.
    #[inline]
    pub fn arrival_us(&self) -> &[i64] {
        &self.arrival_us[self.from..]
    }

    /// The payload of event `row`.
    #[inline]
    pub fn payload(&self, row: usize) -> &[u8] {
        &self.bytes[self.start(row) + self.topic_len(row)..self.ends[self.from + row] as usize]
    }

    /// The topic of event `row`; empty where topics are not kept.
    #[inline]
    pub fn topic(&self, row: usize) -> &[u8] {
        let start = self.start(row);
        &self.bytes[start..start + self.topic_len(row)]
    }

    #[inline]
    fn start(&self, row: usize) -> usize {
        match self.from + row {
            0 => 0,
            row => self.ends[row - 1] as usize,
        }
    }

    #[inline]
    fn topic_len(&self, row: usize) -> usize {
        self.topic_bytes.get(self.from + row).map_or(0, |&bytes| bytes as usize)
    }

    /// How many of the oldest events must go to free `payload_bytes`; all of them if that is not enough.
    pub fn rows_to_free(&self, payload_bytes: usize) -> usize {
        match payload_bytes {
            0 => 0,
            bytes => {
                let end = self.start(0) + bytes;
                (self.ends[self.from..].partition_point(|&other| (other as usize) < end) + 1).min(self.rows())
            }
        }
    }

    /// Removes the oldest `rows` events.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn drop_front(&mut self, rows: usize) {
        self.from += rows;
        let rows = std::mem::take(&mut self.from);
        if rows == 0 {
            return;
        }
        let cut = self.ends[rows - 1];
        self.bytes.drain(..cut as usize);
        self.slots.drain(..rows);
        self.inputs.drain(..rows.min(self.inputs.len()));
        self.positions.drain(..rows.min(self.positions.len()));
        self.topic_bytes.drain(..rows.min(self.topic_bytes.len()));
        self.arrival_us.drain(..rows);
        self.ends.drain(..rows);
        self.ends.iter_mut().for_each(|end| *end -= cut);
    }

    /// Moves the oldest `rows` events to the end of `to`. The others stay where they are, but for every so many.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn take_front(&mut self, rows: usize, to: &mut Self) {
        (0..rows).for_each(|row| to.push_event(self.event(row)));
        self.from += rows;
        if self.from >= self.rows() {
            self.drop_front(0);
        }
    }

    /// Keeps only the events whose slot satisfies `keep`, in order.
    pub fn retain_slots(&mut self, keep: impl Fn(Slot) -> bool) {
        if self.slots().iter().all(|&slot| keep(slot)) {
            return;
        }
        let mut kept = Self::default();
        for row in 0..self.rows() {
            if keep(self.slots()[row]) {
                kept.push_event(self.event(row));
            }
        }
        *self = kept;
    }

    /// Removes all events and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.inputs.clear();
        self.positions.clear();
        self.topic_bytes.clear();
        self.arrival_us.clear();
        self.ends.clear();
        self.bytes.clear();
        self.from = 0;
    }

    /// Releases memory far above the need of `rows` events with `payload_bytes`, so that one burst does not hold it for
    /// ever and a steady load never allocates.
    pub fn shrink_for(&mut self, rows: usize, payload_bytes: usize) {
        if self.slots.capacity() > 4 * rows + 64 {
            self.slots.shrink_to(2 * rows);
            self.inputs.shrink_to(2 * rows);
            self.positions.shrink_to(2 * rows);
            self.topic_bytes.shrink_to(2 * rows);
            self.arrival_us.shrink_to(2 * rows);
            self.ends.shrink_to(2 * rows);
        }
        if self.bytes.capacity() > 4 * payload_bytes + 4096 {
            self.bytes.shrink_to(2 * payload_bytes);
        }
    }

    /// Memory held, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.inputs.capacity()
            + self.slots.capacity() * 4
            + self.ends.capacity() * 4
            + self.topic_bytes.capacity() * 4
            + self.arrival_us.capacity() * 8
            + self.positions.capacity() * 8
    }
}

/// The end of a payload of `payload_bytes` that begins at `bytes`; `None` if it does not fit.
fn end_of(bytes: usize, payload_bytes: usize) -> Option<u32> {
    u32::try_from(bytes.checked_add(payload_bytes)?).ok()
}

/// The order of an event among all: its position in the log and its input. One message may be an event of several
/// inputs of a query, which get it in their order. 0 for an event that is not in the log.
pub(crate) fn stamp(position: u64, input: InputIndex) -> u64 {
    if position == 0 { 0 } else { position << InputIndex::BITS | u64::from(input) }
}

/// The log position of an event with this stamp.
pub(crate) fn position_of(stamp: u64) -> u64 {
    stamp >> InputIndex::BITS
}

/// The bounded queue in front of a task, as a source sees it.
pub trait Inbox: Send + Sync {
    /// Copies one event in. Never blocks, and never drops without counting.
    fn push(&self, slot: Slot, arrival_us: i64, payload: &[u8]) -> Push;

    /// The same for a message with a topic. Most inboxes ignore the topic.
    #[inline]
    fn push_message(&self, slot: Slot, arrival_us: i64, topic: &[u8], payload: &[u8]) -> Push {
        let _ = topic;
        self.push(slot, arrival_us, payload)
    }

    /// Whether the inbox has room now for an event of this size.
    fn has_room(&self, slot: Slot, payload_bytes: usize) -> bool {
        let _ = (slot, payload_bytes);
        true
    }

    /// Copies an event of the log in. An event for several inboxes is offered when all of them have room, with
    /// `must_fit`: if another source was faster, the inbox takes it nevertheless and exceeds its bound by this one
    /// event. The default is to push it like any other event.
    fn push_logged(&self, event: LoggedEvent<'_>, must_fit: bool) -> Push {
        let _ = must_fit;
        self.push_message(event.slot, event.arrival_us, event.topic, event.payload)
    }
}

/// An event of the log as it is offered to an [`Inbox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedEvent<'p> {
    /// The slot of the query it is for.
    pub slot: Slot,
    /// When it reached the engine, microseconds since the epoch.
    pub arrival_us: i64,
    /// Its position in the log.
    pub position: LogPosition,
    /// Its topic.
    pub topic: &'p [u8],
    /// Its payload.
    pub payload: &'p [u8],
}

/// The answer of an inbox to a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Push {
    /// The inbox has the event, or has dropped and counted it where the input asks for that.
    Taken,
    /// The inbox is full and does **not** have the event: stop reading from its source, and offer it again later.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_keep_their_bounds() {
        let mut events = Events::default();
        events.push(3, 10, b"first");
        events.push(4, 11, b"");
        events.push(5, 12, b"third");
        assert_eq!((events.payload(0), events.payload(1), events.payload(2)), (&b"first"[..], &b""[..], &b"third"[..]));
        assert_eq!((events.rows(), events.payload_bytes()), (3, 10));
        events.clear();
        assert!(events.is_empty());
    }

    #[test]
    fn what_is_taken_at_the_front_is_gone_for_every_look() {
        let events = |range: std::ops::Range<u32>| {
            let mut events = Events::default();
            for row in range {
                let topic = vec![b't'; row as usize % 3];
                let payload = vec![b'p'; row as usize];
                let (input, slot, arrival_us, position) = (row as u8 % 2, row, row.into(), u64::from(row) + 5);
                events.push_event(Event { input, slot, arrival_us, position, topic: &topic, payload: &payload });
            }
            events
        };
        let is = |found: &Events, expected: &Events| {
            let all =
                |events: &Events| (0..events.rows()).map(|row| format!("{:?}", events.event(row))).collect::<Vec<_>>();
            assert_eq!(all(found), all(expected));
            assert_eq!(
                (found.slots(), found.inputs(), found.positions()),
                (expected.slots(), expected.inputs(), expected.positions())
            );
            assert_eq!((found.arrival_us(), found.payload_bytes()), (expected.arrival_us(), expected.payload_bytes()));
            for bytes in 0..expected.payload_bytes() + 2 {
                assert_eq!(found.rows_to_free(bytes), expected.rows_to_free(bytes), "{bytes}");
            }
        };
        let (mut left, mut taken) = (events(0..20), Events::default());
        for (from, rows) in [(0, 1), (1, 2), (3, 4), (7, 4), (11, 1), (12, 8)] {
            taken.clear();
            left.take_front(rows, &mut taken);
            is(&taken, &events(from..from + rows as u32));
            is(&left, &events(from + rows as u32..20));
        }
        assert!(left.is_empty());
        let (mut left, mut cut) = (events(0..9), events(3..9));
        left.take_front(3, &mut taken);
        left.retain_slots(|slot| slot != 5);
        cut.retain_slots(|slot| slot != 5);
        is(&left, &cut);
    }

    #[test]
    fn inputs_are_kept_only_once_there_are_several() {
        let mut events = Events::default();
        events.push(1, 0, b"a");
        events.push(2, 0, b"b");
        assert_eq!(events.inputs.capacity(), 0);
        events.push_from(2, 3, 0, b"c");
        events.push(4, 0, b"d");
        let inputs = |events: &Events| (0..events.rows()).map(|row| events.input(row)).collect::<Vec<_>>();
        assert_eq!(inputs(&events), [0, 0, 2, 0]);
        events.retain_slots(|slot| slot != 2);
        assert_eq!(inputs(&events), [0, 2, 0]);
        events.drop_front(1);
        assert_eq!(inputs(&events), [2, 0]);
        events.clear();
        events.push(1, 0, b"a");
        assert_eq!(inputs(&events), [0]);
    }

    #[test]
    fn positions_are_kept_only_once_there_are_any() {
        let mut events = Events::default();
        let event = |slot, position, payload| Event { input: 0, slot, arrival_us: 0, position, topic: b"", payload };
        events.push_event(event(1, 0, b"a"));
        assert!(events.positions().is_empty() && events.positions.capacity() == 0);
        events.push_event(event(2, 7, b"b"));
        events.push_event(event(3, 0, b"c"));
        events.push_event(event(2, 9, b"d"));
        assert_eq!(events.positions(), [0, 7, 0, 9]);
        events.retain_slots(|slot| slot != 3);
        assert_eq!((events.positions(), events.event(2)), (&[0, 7, 9][..], event(2, 9, b"d")));
        events.drop_front(2);
        assert_eq!((events.positions(), events.position(0)), (&[9][..], 9));
        events.clear();
        events.push(1, 0, b"a");
        assert_eq!((events.position(0), events.positions().len()), (0, 0));
    }

    #[test]
    fn topics_are_kept_only_once_there_are_any() {
        let mut events = Events::default();
        let event = |slot, topic, payload| Event { input: 0, slot, arrival_us: 0, position: 0, topic, payload };
        events.push_event(event(1, b"", b"a"));
        assert_eq!((events.topic_bytes.capacity(), events.topic(0)), (0, &b""[..]));
        events.push_event(event(2, b"home/7", b"bb"));
        events.push_event(event(3, b"", b""));
        events.push_event(event(2, b"x", b""));
        let all = |events: &Events| -> Vec<(String, String)> {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            (0..events.rows()).map(|row| (text(events.topic(row)), text(events.payload(row)))).collect()
        };
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(topic, payload)| ((*topic).into(), (*payload).into())).collect()
        };
        assert_eq!(all(&events), pairs(&[("", "a"), ("home/7", "bb"), ("", ""), ("x", "")]));
        assert_eq!((events.payload_bytes(), events.event(1).bytes()), (10, 8));
        events.retain_slots(|slot| slot != 3);
        events.drop_front(1);
        assert_eq!(all(&events), pairs(&[("home/7", "bb"), ("x", "")]));
        events.clear();
        events.push(1, 0, b"a");
        assert_eq!((events.topic_bytes.len(), events.topic(0), events.payload(0)), (0, &b""[..], &b"a"[..]));
    }

    #[test]
    fn a_payload_beyond_4_gib_is_noticed_before_it_is_appended() {
        assert_eq!(end_of(10, 5), Some(15));
        assert_eq!(end_of(u32::MAX as usize - 5, 5), Some(u32::MAX));
        assert_eq!(end_of(u32::MAX as usize - 5, 6), None);
        assert_eq!(end_of(usize::MAX, 1), None);
    }

    #[test]
    fn dropping_and_retaining_keep_the_rest_whole() {
        let mut events = Events::default();
        for (slot, payload) in [(1, "a"), (2, "bb"), (3, "ccc"), (2, "dddd")] {
            events.push(slot, i64::from(slot), payload.as_bytes());
        }
        let freed: Vec<usize> = [0, 1, 2, 3, 10, 11].into_iter().map(|bytes| events.rows_to_free(bytes)).collect();
        assert_eq!(freed, [0, 1, 2, 2, 4, 4]);
        events.drop_front(1);
        assert_eq!((events.rows(), events.payload(0), events.payload(2)), (3, &b"bb"[..], &b"dddd"[..]));
        events.retain_slots(|slot| slot != 2);
        assert_eq!((events.slots(), events.payload(0), events.arrival_us()), (&[3][..], &b"ccc"[..], &[3][..]));
    }
}
