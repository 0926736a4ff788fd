//! Messages from the router that wait for a query, bounded.
//!
//! What must hold: a message is in the inbox, or the caller keeps it and is told so, or it was dropped as the source
//! declares, and counted; messages of one topic keep their order. A query that keeps others waiting for long is named
//! in the log.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use rivulet_dataflow::{Event, Events, Inbox, LoggedEvent, Push, Slot};

use super::topic::Layout;
use crate::connector::intake::PAYLOAD_BYTES_MAX;

/// The most messages that wait: about as many as one poll asks for, so that a worker takes all of them.
const MESSAGES_MAX: usize = 8_192;

/// How long an inbox is full before that is logged, and the interval at which it is logged again.
const SAID_AFTER: Duration = Duration::from_secs(1);
const SAY_PERIOD: Duration = Duration::from_secs(60);

/// A query that has taken nothing from its full inbox for this long holds up its connection no longer.
const STANDS_AFTER: Duration = Duration::from_secs(5);

/// What happens to a message for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Overflow {
    /// Its connection waits, unless the query stands still: then the message is dropped.
    #[default]
    Block,
    /// All waiting messages are dropped for it: rows are numbered from the first waiting message, so that one cannot be
    /// dropped alone.
    DropOldest,
    /// It is dropped.
    DropNewest,
}

/// The owner of an inbox, and what it does when it is full.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// The bytes that all partitions together may hold, about.
    pub(super) bytes_max: usize,
    pub(super) overflow: Overflow,
    /// The query and its filter, for messages.
    pub(super) query: String,
    pub(super) filter: String,
    /// Set while it has been full for long, for others to see.
    pub(super) holds_up: Arc<AtomicBool>,
}

/// Since when an inbox is full, and when that was last logged.
#[derive(Debug, Default)]
struct Full {
    since: Option<Instant>,
    said: Option<Instant>,
}

/// Messages in one arena.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The messages, with their topics.
    pub(super) events: Events,
    /// Messages that were dropped meanwhile.
    pub(super) dropped: u64,
}

impl Messages {
    fn has_room_for(&self, bytes: usize, bytes_max: usize) -> bool {
        // A message larger than the bound is accepted if nothing waits.
        let held = self.events.payload_bytes();
        self.events.is_empty() || (self.events.rows() < MESSAGES_MAX && held + bytes <= bytes_max)
    }
}

/// The waiting messages of all partitions of a source. A topic always goes to the same partition.
pub(super) struct TopicInbox {
    partitions: Vec<Mutex<Messages>>,
    layout: Arc<Layout>,
    /// The bound of each partition.
    bytes_max: usize,
    queue: Queue,
    full: Mutex<Full>,
    /// Whether it has been full for so long that its query stands still.
    stands: AtomicBool,
    hasher: RandomState,
}

impl TopicInbox {
    /// An inbox without messages.
    pub(super) fn new(layout: Arc<Layout>, partitions: usize, queue: Queue) -> Self {
        let partitions: Vec<Mutex<Messages>> = (0..partitions.max(1)).map(|_| Mutex::default()).collect();
        let bytes_max = (queue.bytes_max / partitions.len()).min(PAYLOAD_BYTES_MAX);
        let (full, stands, hasher) = (Mutex::default(), AtomicBool::new(false), RandomState::default());
        Self { partitions, layout, bytes_max, queue, full, stands, hasher }
    }

    /// Logs now and then that this inbox keeps others waiting, and which query it belongs to.
    fn say_full(&self) {
        let (mut full, now) = (self.full.lock(), Instant::now());
        let for_long = now - *full.since.get_or_insert(now);
        let is_long = for_long >= SAID_AFTER;
        self.stands.store(for_long >= STANDS_AFTER, Ordering::Release);
        self.queue.holds_up.store(is_long, Ordering::Release);
        if is_long && full.said.is_none_or(|said| now - said >= SAY_PERIOD) {
            full.said = Some(now);
            let Queue { query, filter, .. } = &self.queue;
            tracing::warn!(
                query,
                filter,
                "the queue of a source is full: its connection is not read for some seconds, and everybody behind it waits; if the query \
                 takes nothing meanwhile, the newest messages are dropped and counted until it goes on"
            );
        }
    }

    /// The waiting messages of the partition for a topic.
    fn partition(&self, topic: &[u8]) -> &Mutex<Messages> {
        match self.partitions.len() {
            1 => &self.partitions[0],
            several => &self.partitions[(self.hasher.hash_one(topic) % several as u64) as usize],
        }
    }

    /// Whether messages are dropped that find no room.
    fn gives_way(&self) -> bool {
        self.queue.overflow != Overflow::Block || self.stands.load(Ordering::Acquire)
    }

    fn append(&self, messages: &mut Messages, arrival_us: i64, topic: &[u8], payload: &[u8]) {
        let slot = self.layout.slot(messages.events.rows());
        messages.events.push_event(Event { input: 0, slot, arrival_us, position: 0, topic, payload });
    }

    /// Whether messages of a partition wait.
    pub(super) fn has_messages(&self, partition: usize) -> bool {
        !self.partitions[partition].lock().events.is_empty()
    }

    /// Swaps the waiting messages of a partition with `empty`.
    pub(super) fn take(&self, partition: usize, empty: &mut Messages) {
        debug_assert!(empty.events.is_empty(), "what was taken is gone");
        let mut messages = self.partitions[partition].lock();
        if !messages.events.is_empty() {
            std::mem::swap(&mut *messages, empty);
            drop(messages);
            if self.full.lock().since.take().is_some() {
                self.queue.holds_up.store(false, Ordering::Release);
                self.stands.store(false, Ordering::Release);
            }
        }
    }
}

impl Inbox for TopicInbox {
    fn push(&self, slot: Slot, arrival_us: i64, payload: &[u8]) -> Push {
        self.push_message(slot, arrival_us, b"", payload)
    }

    fn push_message(&self, _slot: Slot, arrival_us: i64, topic: &[u8], payload: &[u8]) -> Push {
        let mut messages = self.partition(topic).lock();
        if !messages.has_room_for(topic.len() + payload.len(), self.bytes_max) {
            match self.queue.overflow {
                Overflow::Block if !self.stands.load(Ordering::Acquire) => {
                    drop(messages);
                    self.say_full();
                    return Push::Full;
                }
                Overflow::Block | Overflow::DropNewest => {
                    messages.dropped += 1;
                    return Push::Taken;
                }
                Overflow::DropOldest => {
                    messages.dropped += messages.events.rows() as u64;
                    let waiting = messages.events.rows();
                    messages.events.drop_front(waiting);
                }
            }
        }
        self.append(&mut messages, arrival_us, topic, payload);
        Push::Taken
    }

    /// Whether every partition has room, or messages are dropped that find none: which one it would be is not known
    /// here.
    fn has_room(&self, _slot: Slot, payload_bytes: usize) -> bool {
        self.gives_way() || self.partitions.iter().all(|one| one.lock().has_room_for(payload_bytes, self.bytes_max))
    }

    /// The position of this source does not depend on positions of the log.
    fn push_logged(&self, event: LoggedEvent<'_>, must_fit: bool) -> Push {
        if !must_fit || self.gives_way() {
            return self.push_message(event.slot, event.arrival_us, event.topic, event.payload);
        }
        self.append(&mut self.partition(event.topic).lock(), event.arrival_us, event.topic, event.payload);
        Push::Taken
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use rivulet_dataflow::Refusals;

    use super::super::CONNECTOR;
    use super::*;
    use crate::connector::{ConnectorContext, Direction, SourceSpec};
    use crate::files::Files;
    use crate::formats::RowFormat;

    /// An inbox of `room/+`: the level is in the column `room`, and the payload has `n`.
    fn inbox(partitions: usize, bytes_max: usize) -> (TopicInbox, Arc<Layout>) {
        overflowing(partitions, bytes_max, Overflow::Block)
    }

    fn overflowing(partitions: usize, bytes_max: usize, overflow: Overflow) -> (TopicInbox, Arc<Layout>) {
        let fields = vec![Field::new("room", DataType::Utf8, false), Field::new("n", DataType::Int64, true)];
        let given = vec![("level_columns".to_owned(), "room".to_owned())];
        let spec = SourceSpec {
            connector: "mqtt".into(),
            address: "room/+".into(),
            format: None,
            schema: Arc::new(Schema::new(fields)),
            columns: vec![0, 1],
            event_time_column: None,
            has_computed_time: false,
            options: given.clone(),
            host: ConnectorContext::default(),
            resume: None,
        };
        let options = CONNECTOR.check_options(Direction::Source, &given).unwrap();
        let format = RowFormat::parse("JSON", [], &Files::default()).unwrap();
        let layout = Arc::new(Layout::new(&spec, &options, "room/+", &format).unwrap());
        let queue = Queue { bytes_max, overflow, ..Queue::default() };
        (TopicInbox::new(layout.clone(), partitions, queue), layout)
    }

    fn push(inbox: &TopicInbox, room: &str, n: usize) -> Push {
        inbox.push_message(0, 7, format!("room/{room}").as_bytes(), format!("{{\"n\":{n}}}").as_bytes())
    }

    fn rows(layout: &Layout, messages: &mut Messages) -> Vec<(String, i64)> {
        let rows = layout.rows(&mut messages.events, &mut *layout.decoder().unwrap(), &mut Refusals::new(0));
        let numbers = rows.column(1).as_primitive::<Int64Type>().values().to_vec();
        rows.column(0).as_string::<i32>().iter().map(|room| room.unwrap().to_owned()).zip(numbers).collect()
    }

    #[test]
    fn what_finds_no_room_is_not_taken_and_what_waits_comes_in_order() {
        let (inbox, layout) = inbox(1, 100);
        let mut taken = Messages::default();
        for round in 0..3 {
            let pushed = (0..).take_while(|&n| push(&inbox, "bath", n) == Push::Taken).count();
            assert!((2..100 / 16 + 1).contains(&pushed), "{pushed}");
            inbox.take(0, &mut taken);
            let expected: Vec<(String, i64)> = (0..pushed as i64).map(|n| ("bath".into(), n)).collect();
            assert_eq!(rows(&layout, &mut taken), expected, "{round}");
            assert!(taken.events.is_empty());
        }
        let large = format!("{{\"n\":1,\"text\":\"{}\"}}", "x".repeat(1_000));
        assert_eq!(inbox.push_message(0, 7, b"room/bath", large.as_bytes()), Push::Taken, "one that fits nowhere else");
        assert_eq!(push(&inbox, "bath", 1), Push::Full);
        inbox.take(0, &mut taken);
        assert_eq!(rows(&layout, &mut taken).len(), 1);
        let (many, _) = self::inbox(1, 1 << 30);
        assert_eq!((0..).take_while(|&n| push(&many, "x", n) == Push::Taken).count(), MESSAGES_MAX);
    }

    #[test]
    fn a_topic_that_is_too_long_for_so_many_rows_is_refused_and_others_are_not() {
        let (inbox, layout) = inbox(1, 1 << 30);
        let many = format!("[{}{{\"n\":1}}]", "{\"n\":1},".repeat(99));
        let room = "x".repeat(50_000);
        assert_eq!(push(&inbox, "before", 1), Push::Taken);
        assert_eq!(inbox.push_message(0, 7, format!("room/{room}").as_bytes(), many.as_bytes()), Push::Taken);
        assert_eq!(push(&inbox, &room, 2), Push::Taken);
        let mut taken = Messages::default();
        inbox.take(0, &mut taken);
        let mut refusals = Refusals::new(2);
        let decoded = layout.rows(&mut taken.events, &mut *layout.decoder().unwrap(), &mut refusals);
        assert_eq!(decoded.column(1).as_primitive::<Int64Type>().values().as_ref(), [1, 2]);
        let details: Vec<&str> = refusals.records().iter().map(|one| one.detail.as_str()).collect();
        assert_eq!(details, ["the topic is too long for so many rows (4 MiB of it in one column)"]);
    }

    #[test]
    fn a_query_that_takes_nothing_for_long_holds_up_nobody() {
        let (inbox, _) = overflowing(1, 100, Overflow::Block);
        let push = || inbox.push_message(0, 0, b"a", &[b'x'; 60]);
        assert_eq!((push(), push()), (Push::Taken, Push::Full));
        inbox.full.lock().since = Some(Instant::now() - STANDS_AFTER);
        assert!(!inbox.has_room(0, 60) && push() == Push::Full, "the last that waits");
        assert!(push() == Push::Taken && inbox.has_room(0, 60));
        let event = LoggedEvent { slot: 0, arrival_us: 0, position: 7, topic: b"a", payload: &[b'x'; 60] };
        assert_eq!(inbox.push_logged(event, true), Push::Taken);
        let mut taken = Messages::default();
        inbox.take(0, &mut taken);
        assert_eq!((taken.events.rows(), taken.dropped), (1, 2));
        assert_eq!((push(), push()), (Push::Taken, Push::Full), "it takes again");
    }

    #[test]
    fn what_overflows_is_dropped_as_asked_and_counted() {
        for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
            let (inbox, layout) = overflowing(1, 100, overflow);
            assert!((0..20).all(|n| push(&inbox, "bath", n) == Push::Taken));
            let mut taken = Messages::default();
            inbox.take(0, &mut taken);
            let numbers: Vec<i64> = rows(&layout, &mut taken).into_iter().map(|(_, n)| n).collect();
            let kept = numbers.len() as i64;
            let expected: Vec<i64> = match overflow {
                Overflow::DropNewest => (0..kept).collect(),
                _ => (20 - kept..20).collect(),
            };
            assert_eq!((numbers, taken.dropped as i64), (expected, 20 - kept), "{overflow:?}");
            assert!(kept > 0);
        }
    }

    #[test]
    fn a_topic_is_in_one_partition() {
        let (inbox, layout) = inbox(4, 1 << 20);
        for n in 0..1_000 {
            assert_eq!(push(&inbox, &(n % 50).to_string(), n), Push::Taken);
        }
        let mut seen = std::collections::BTreeMap::<String, Vec<(usize, i64)>>::new();
        for partition in 0..4 {
            let mut taken = Messages::default();
            inbox.take(partition, &mut taken);
            for (room, n) in rows(&layout, &mut taken) {
                seen.entry(room).or_default().push((partition, n));
            }
        }
        assert_eq!(seen.len(), 50);
        for (room, rows) in seen {
            assert!(rows.iter().all(|(partition, _)| *partition == rows[0].0), "{room}: {rows:?}");
            let numbers: Vec<i64> = rows.iter().map(|(_, n)| *n).collect();
            let first: i64 = room.parse().unwrap();
            assert_eq!(numbers, (0..20).map(|round| first + round * 50).collect::<Vec<_>>());
        }
    }
}
