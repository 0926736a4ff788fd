//! The feed: messages of a source such as Kafka or HTTP on their way into the router.
//!
//! The key of such a message has the role of the topic in MQTT: [`FeedLayout`] makes a topic of it, which begins with
//! [`SOURCE_MARK`], and the routes find the queries by that topic. A source is one of those that big queries read,
//! opened with the format RAW, so that payloads are in inboxes as they were received.
//!
//! What must hold: a message is in all inboxes that want it, or is offered again; while one is full, the source is not
//! asked for more. In the log a message has its position in its source. That position is noted ([`Noted`]) under the
//! same lock under which the message went to the log: code that takes this lock knows of every message that is in the
//! log by then.

mod payload;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit, TimestampMicrosecondType};
use parking_lot::Mutex;
use rivulet_dataflow::{LogPosition, Polled, Reason, Refusals, Source};

use crate::connector::{ConnectorContext, ConnectorError, Connectors, Messages, PayloadCheck, SourceSpec};
use crate::mqtt::Received;
use crate::mqtt::intake::{AHEAD, Stuck, UnderWay};
use crate::mqtt::router::Router;
use crate::mqtt::topic::{SOURCE_MARK, TopicPart, push_level};
use payload::{check_keys, for_each_object, key_in};

/// The most messages asked of a source at once.
const ROWS_AT_ONCE: usize = 4_096;

/// The most messages that are routed under one lock of the routes.
const EVENTS_AT_ONCE: usize = 512;

/// The interval at which a feed checks whether the disk has an event, so that its sender can be told that it is safe.
const CONFIRM_PAUSE: Duration = Duration::from_micros(500);

/// The wait when the source has no messages and names no time.
const IDLE: Duration = Duration::from_millis(5);

/// A longer key goes to no query: with the prefix it would exceed the length of a topic.
const KEY_BYTES_MAX: usize = 16 << 10;

/// The first byte of the position of a message, where the log has a client's name. No text begins with it.
const PLACE: u8 = 0xfe;

/// The origin of a message's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFrom {
    /// Every query reads every message.
    Nothing,
    /// The key that the source gives it.
    Message,
    /// The field with this name of the JSON object that the payload is.
    Field(String),
}

/// The layout of the topics of a source's messages.
#[derive(Clone, Debug)]
pub struct FeedLayout {
    /// The beginning of the topics: [`FeedLayout::prefix`].
    pub prefix: String,
    /// The key that tells queries apart.
    pub key: KeyFrom,
    /// Whether an array of objects counts as that many messages. Not if messages come again after a crash, for an array
    /// has one position.
    pub splits: bool,
    /// Whether topics also have the message's own key, partition, offset and time.
    pub has_columns: bool,
    /// Whether a message without a key of its own, and one without a time, is refused.
    pub needs: (bool, bool),
}

/// The parts of a topic that [`FeedLayout::has_columns`] adds, for columns.
pub const MESSAGE_KEY: TopicPart = TopicPart::Key(3);
/// The partition of a message.
pub const MESSAGE_PARTITION: TopicPart = TopicPart::Level(4);
/// The offset of a message.
pub const MESSAGE_OFFSET: TopicPart = TopicPart::Level(5);
/// When a message was sent, microseconds since the epoch.
pub const MESSAGE_TIME: TopicPart = TopicPart::Level(6);

impl FeedLayout {
    /// The prefix of the topics of an application's input.
    pub fn prefix(application: &str, input: &str) -> String {
        let mut prefix = SOURCE_MARK.as_bytes().to_vec();
        push_level(application, &mut prefix);
        prefix.push(b'/');
        push_level(input, &mut prefix);
        String::from_utf8_lossy(&prefix).into_owned()
    }

    /// The topic or filter that is routed to the query with this `key`, written as a topic level. If queries have no
    /// keys, it is that of every message.
    pub fn route(&self, key: &str) -> String {
        let Self { prefix, has_columns, .. } = self;
        match (&self.key, has_columns) {
            (KeyFrom::Nothing, false) => prefix.clone(),
            (KeyFrom::Nothing, true) => format!("{prefix}/#"),
            (_, false) => format!("{prefix}/{key}"),
            (_, true) => format!("{prefix}/{key}/#"),
        }
    }

    /// Appends the topic of a message to `out`.
    fn write(&self, key: &str, own: &OwnColumns<'_>, row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        if self.key == KeyFrom::Nothing && !self.has_columns {
            return;
        }
        let push_key = |key: &str, out: &mut Vec<u8>| {
            out.push(b'/');
            push_level(if key.len() > KEY_BYTES_MAX { "" } else { key }, out);
        };
        push_key(key, out);
        if self.has_columns {
            push_key(own.key(row).unwrap_or_default(), out);
            let time_us = own.time.filter(|times| times.is_valid(row)).map(|times| times.value(row));
            let (partition, offset) = own.place(row).unzip();
            for number in [partition, offset, time_us] {
                out.push(b'/');
                if let Some(number) = number {
                    push_number(number, out);
                }
            }
        }
    }

    /// Calls `each` with the key and the payload of each message in a payload.
    fn for_each<'p>(&self, payload: &'p str, key: Option<&str>, mut each: impl FnMut(Option<&str>, &'p str)) {
        match &self.key {
            KeyFrom::Nothing => each(None, payload),
            KeyFrom::Message => each(key, payload),
            KeyFrom::Field(name) if self.splits => {
                for_each_object(payload, |object| each(key_in(object, name).as_deref(), object));
            }
            KeyFrom::Field(name) => each(key_in(payload, name).as_deref(), payload),
        }
    }

    /// What payloads have to be so that a query can be found for them; `None` if any will do.
    fn check(&self) -> Option<PayloadCheck> {
        let KeyFrom::Field(name) = &self.key else { return None };
        let name = name.clone();
        Some(Arc::new(move |payload| check_keys(payload, &name)))
    }

    /// The messages of a payload with this key of its own, offset and time, for a trial: topic and payload.
    pub fn messages(&self, payload: &str, key: Option<&str>, offset: i64, time_us: i64) -> Vec<(String, String)> {
        let (keys, time) = (StringArray::from(vec![key]), TimestampMicrosecondArray::from(vec![time_us]));
        let (partition, offset) = (Int64Array::from(vec![0]), Int64Array::from(vec![offset]));
        let own = OwnColumns { keys: Some(&keys), places: Some((&partition, &offset)), time: Some(&time) };
        let mut messages = Vec::new();
        self.for_each(payload, key, |key, payload| {
            let mut topic = Vec::new();
            self.write(key.unwrap_or_default(), &own, 0, &mut topic);
            messages.push((String::from_utf8_lossy(&topic).into_owned(), payload.to_owned()));
        });
        messages
    }
}

/// What is noted of a source: how much of it went into the router.
#[derive(Debug, Default)]
pub struct Noted {
    /// Where its partitions began, or resumed after a restart.
    begun: Vec<Option<String>>,
    /// For each partition the offset behind the last message that is in the router.
    next: Vec<(i64, i64)>,
    counts: FeedCounts,
}

/// The counts of a source since it was first opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedCounts {
    /// Messages that went into the router; each object of an array counts.
    pub events: u64,
    /// Those of them that no query reads.
    pub unwanted: u64,
    /// Those of them without a key, though queries are told apart by it.
    pub without_key: u64,
    /// Messages that are not text, or lack a value that a column needs.
    pub refused: u64,
    /// How often the source had to wait because an inbox or the log was full.
    pub full_waits: u64,
    /// The reason of the last refusal.
    pub last_refusal: Option<String>,
    /// When the last message came, microseconds since the epoch; 0 before the first.
    pub last_us: i64,
}

impl Noted {
    /// The notes of a source that resumes at these positions, or begins.
    pub fn begin(positions: Vec<Option<String>>) -> Self {
        Self { begun: positions, ..Self::default() }
    }

    /// The positions where its partitions go on: a source that is opened with them repeats nothing and leaves nothing
    /// out.
    pub fn positions(&self, messages: &Messages) -> Vec<Option<String>> {
        let Some(place) = messages.place else { return Vec::new() };
        let mut positions = self.begun.clone();
        self.next.iter().for_each(|&(partition, offset)| (place.go_on)(&mut positions, partition, offset));
        positions
    }

    /// Returns the counts.
    pub fn counts(&self) -> FeedCounts {
        self.counts.clone()
    }

    /// Takes over the positions of a source that has ended and that this one replaces.
    pub fn succeed(&mut self, before: &Self) {
        (self.begun, self.next) = (before.begun.clone(), before.next.clone());
    }

    fn went(&mut self, (partition, offset): (i64, i64)) {
        match self.next.iter_mut().find(|(known, _)| *known == partition) {
            Some((_, next)) => *next = offset + 1,
            None => self.next.push((partition, offset + 1)),
        }
    }
}

/// What the log has of a message in place of its client's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedPlace<'l> {
    /// The source with this identity began at the positions in the payload.
    Begins(&'l str),
    /// The message of that source in this partition at this offset.
    At(&'l str, i64, i64),
}

impl<'l> LoggedPlace<'l> {
    /// Decodes it; `None` if the message is of no source.
    pub fn read(client: &'l [u8]) -> Option<Self> {
        let (&PLACE, text) = client.split_first()? else { return None };
        let (id, place) = std::str::from_utf8(text).ok()?.split_once('\0')?;
        match place.split_once(':') {
            Some((partition, offset)) => Some(Self::At(id, partition.parse().ok()?, offset.parse().ok()?)),
            None => Some(Self::Begins(id)),
        }
    }

    /// Appends its code, which [`LoggedPlace::read`] decodes.
    fn write(&self, client: &mut Vec<u8>) {
        let (Self::Begins(id) | Self::At(id, ..)) = self;
        client.push(PLACE);
        client.extend_from_slice(id.as_bytes());
        client.push(0);
        if let Self::At(_, partition, offset) = self {
            push_number(*partition, client);
            client.push(b':');
            push_number(*offset, client);
        }
    }
}

/// A source that is read, and its messages that wait for room.
pub struct Feed {
    sources: Vec<Box<dyn Source>>,
    /// The partition that is asked next.
    turn: usize,
    messages: Messages,
    layout: FeedLayout,
    id: String,
    noted: Arc<Mutex<Noted>>,
    /// The rows whose messages are under way.
    rows: Option<RecordBatch>,
    ready: Ready,
    under_way: UnderWay,
    /// Whether senders wait until the messages that were read are safe.
    confirms: bool,
    /// The log's position up to which the messages that were read are in it.
    logged_to: LogPosition,
}

/// The messages of rows, in order.
#[derive(Default)]
struct Ready {
    /// Topics, and the bytes that the log has in place of a client's name.
    bytes: Vec<u8>,
    events: Vec<ReadyEvent>,
    /// The number of them that are in the router.
    at: usize,
}

struct ReadyEvent {
    topic: Range<usize>,
    client: Range<usize>,
    /// Its range in the column of payloads.
    payload: Range<usize>,
    place: Option<(i64, i64)>,
    has_key: bool,
}

/// The result of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turned {
    /// There is more to do.
    GoesOn,
    /// The next turn is worthwhile after this time.
    Waits(Duration),
    /// The source has come to its end.
    Ended,
    /// The source has failed, with this message.
    Failed(String),
}

impl Feed {
    /// Opens a source. It uses the connector, address, options, host and positions of `spec`. `id` identifies the
    /// source in the log. The notes go on from `noted`.
    ///
    /// # Errors
    /// As with [`Connectors::open_source`].
    pub fn open(
        connectors: Connectors,
        spec: SourceSpec,
        layout: FeedLayout,
        id: String,
        noted: &Arc<Mutex<Noted>>,
    ) -> Result<Self, ConnectorError> {
        let messages = connectors.messages(&spec.connector)?;
        let positions = noted.lock().positions(&messages);
        let resume = (!positions.is_empty()).then_some(positions);
        let confirms = spec.host.confirms && messages.is_confirmed;
        let host = ConnectorContext { check: layout.check(), ..spec.host.clone() };
        let spec = of_messages(SourceSpec { resume, host, ..spec }, &messages, layout.needs);
        let mut sources = connectors.open_source(&spec, 1)?;
        if spec.resume.is_none() && messages.place.is_some() {
            noted.lock().begun = sources.iter_mut().map(|source| source.position()).collect();
        }
        Ok(Self {
            sources,
            turn: 0,
            messages,
            layout,
            id,
            noted: noted.clone(),
            rows: None,
            ready: Ready::default(),
            under_way: UnderWay::new(Duration::MAX),
            confirms,
            logged_to: 0,
        })
    }

    /// Checks what [`Feed::open`] would open.
    ///
    /// # Errors
    /// As with [`Connectors::check_source`]; and if inputs of applications cannot read it.
    pub fn check(connectors: Connectors, spec: SourceSpec) -> Result<Messages, ConnectorError> {
        let messages = connectors.messages(&spec.connector)?;
        connectors.check_source(&of_messages(spec, &messages, (false, false))).map(|()| messages)
    }

    /// Records in the log where the source begins, so that it begins there after a crash as well.
    pub fn log_begin(&self, router: &Router, now_us: i64) {
        let positions = serde_json::to_vec(&self.noted.lock().positions(&self.messages)).unwrap_or_default();
        let mut client = Vec::new();
        LoggedPlace::Begins(&self.id).write(&mut client);
        // No query is routed to the mark alone.
        let topic = SOURCE_MARK.as_bytes();
        let message = Received { arrival_us: now_us, client: &client, packet_id: 0, topic, payload: &positions };
        if let Some(log) = router.log() {
            let _ = log.append(&message, true, &mut |_| true);
        }
    }

    /// Routes the messages under way, or asks the source for more.
    pub fn turn(&mut self, router: &Router, now_us: i64) -> Turned {
        if self.rows.is_some() {
            return match self.route(router, now_us) {
                Some(wait) => Turned::Waits(wait),
                None => Turned::GoesOn,
            };
        }
        match self.confirm(router) {
            true => self.ask(now_us),
            false => Turned::Waits(CONFIRM_PAUSE),
        }
    }

    /// Tells senders that the messages that were read are safe, unless some are under way. Returns false if the disk
    /// does not have them yet: then nothing was told.
    pub fn confirm(&mut self, router: &Router) -> bool {
        if !self.confirms || self.rows.is_some() {
            return true;
        }
        let is_safe = router.log().is_none_or(|log| log.durable() >= self.logged_to);
        if is_safe {
            self.sources.iter_mut().for_each(|source| source.confirm());
        }
        is_safe
    }

    fn ask(&mut self, now_us: i64) -> Turned {
        let mut refusals = Refusals::new(1);
        let mut turned = Turned::Waits(IDLE);
        for _ in 0..self.sources.len() {
            self.turn %= self.sources.len().max(1);
            let Some(source) = self.sources.get_mut(self.turn) else { break };
            match source.poll(ROWS_AT_ONCE, now_us, &mut refusals) {
                Ok(Polled::Rows { columns, .. }) => {
                    self.turn += 1;
                    self.ready(&columns);
                    self.rows = Some(columns);
                    turned = Turned::GoesOn;
                    break;
                }
                Ok(Polled::Nothing(wait) | Polled::Aside(wait)) => {
                    self.turn += 1;
                    let least = if let Turned::Waits(least) = turned { least.min(wait) } else { wait };
                    turned = Turned::Waits(least);
                }
                Ok(Polled::End) => drop(self.sources.remove(self.turn)),
                Err(error) => return Turned::Failed(error.0),
            }
        }
        let new: Vec<_> = self.sources.iter_mut().flat_map(|source| source.found()).collect();
        self.sources.extend(new);
        let refused = refusals.counted(Reason::Decode);
        if refused > 0 {
            let counts = &mut self.noted.lock().counts;
            counts.refused += refused;
            counts.last_refusal = refusals.records().first().map(|one| one.detail.clone());
        }
        if self.sources.is_empty() { Turned::Ended } else { turned }
    }

    /// Prepares the messages of rows.
    fn ready(&mut self, rows: &RecordBatch) {
        let Self { ready, layout, messages, id, .. } = self;
        ready.at = 0;
        ready.events.clear();
        ready.bytes.clear();
        let payloads = rows.column(0).as_string::<i32>();
        let own = OwnColumns::of(rows, messages);
        let start = payloads.value_data().as_ptr() as usize;
        for row in 0..rows.num_rows() {
            let payload = payloads.value(row);
            layout.for_each(payload, own.key(row), |key, payload| {
                let topic_from = ready.bytes.len();
                layout.write(key.unwrap_or_default(), &own, row, &mut ready.bytes);
                let (topic, place) = (topic_from..ready.bytes.len(), own.place(row));
                if let Some((partition, offset)) = place {
                    LoggedPlace::At(id, partition, offset).write(&mut ready.bytes);
                }
                let client = topic.end..ready.bytes.len();
                let from = (payload.as_ptr() as usize).wrapping_sub(start);
                let has_key = layout.key == KeyFrom::Nothing || key.is_some_and(|key| !key.is_empty());
                let payload = from..from + payload.len();
                ready.events.push(ReadyEvent { topic, client, payload, place, has_key });
            });
        }
    }

    /// Routes some of the messages. Returns how long to wait if there is no room.
    fn route(&mut self, router: &Router, now_us: i64) -> Option<Duration> {
        let Self { ready, rows, under_way, noted, logged_to, .. } = self;
        let payloads = rows.as_ref().expect("rows are under way").column(0).as_string::<i32>().value_data();
        // Messages go to the log and are noted under this lock.
        let noted = &mut *noted.lock();
        let mut routing = router.read();
        let end = (ready.at + EVENTS_AT_ONCE).min(ready.events.len());
        for ahead in ready.events[ready.at..end].iter().take(AHEAD) {
            routing.prefetch(&ready.bytes[ahead.topic.clone()]);
        }
        while ready.at < end {
            if let Some(ahead) = ready.events.get(ready.at + AHEAD) {
                routing.prefetch(&ready.bytes[ahead.topic.clone()]);
            }
            let event = &ready.events[ready.at];
            let message = Received {
                arrival_us: now_us,
                client: &ready.bytes[event.client.clone()],
                packet_id: 0,
                topic: &ready.bytes[event.topic.clone()],
                payload: &payloads[event.payload.clone()],
            };
            if under_way.offer(&mut routing, &message, |_| Stuck::Waits).is_none() {
                noted.counts.full_waits += 1;
                return Some(under_way.next_wait());
            }
            *logged_to = under_way.position().max(*logged_to);
            noted.counts.events += 1;
            noted.counts.unwanted += u64::from(!under_way.is_delivered());
            noted.counts.without_key += u64::from(!event.has_key);
            noted.counts.last_us = now_us;
            if let Some(place) = event.place {
                noted.went(place);
            }
            ready.at += 1;
        }
        if ready.at == ready.events.len() {
            *rows = None;
        }
        None
    }
}

/// The columns that messages have beside their payload.
struct OwnColumns<'r> {
    keys: Option<&'r StringArray>,
    places: Option<(&'r Int64Array, &'r Int64Array)>,
    time: Option<&'r TimestampMicrosecondArray>,
}

/// The names by which these columns are requested.
const PAYLOAD_COLUMN: &str = "payload";
const KEY_COLUMN: &str = "key";
const TIME_COLUMN: &str = "time";
const PARTITION_COLUMN: &str = "partition";
const OFFSET_COLUMN: &str = "offset";

impl<'r> OwnColumns<'r> {
    fn of(rows: &'r RecordBatch, messages: &Messages) -> Self {
        let named = |name| rows.column_by_name(name);
        let number = |name| named(name).and_then(|column| column.as_primitive_opt::<Int64Type>());
        Self {
            keys: messages.key.and_then(|_| named(KEY_COLUMN)?.as_string_opt()),
            places: messages.place.and_then(|_| Some((number(PARTITION_COLUMN)?, number(OFFSET_COLUMN)?))),
            time: messages.time.and_then(|_| named(TIME_COLUMN)?.as_primitive_opt::<TimestampMicrosecondType>()),
        }
    }

    fn key(&self, row: usize) -> Option<&'r str> {
        self.keys.filter(|keys| keys.is_valid(row)).map(|keys| keys.value(row))
    }

    fn place(&self, row: usize) -> Option<(i64, i64)> {
        self.places.map(|(partitions, offsets)| (partitions.value(row), offsets.value(row)))
    }
}

/// The source of `spec` as one of whole payloads, with the other columns of its messages.
fn of_messages(spec: SourceSpec, messages: &Messages, (needs_key, needs_time): (bool, bool)) -> SourceSpec {
    let mut fields = vec![Field::new(PAYLOAD_COLUMN, DataType::Utf8, false)];
    let mut options = spec.options;
    let mut add = |option: Option<&str>, name: &str, data_type: DataType, is_nullable: bool| {
        if let Some(option) = option {
            fields.push(Field::new(name, data_type, is_nullable));
            options.push((option.to_owned(), name.to_owned()));
        }
    };
    let place = messages.place;
    add(messages.key, KEY_COLUMN, DataType::Utf8, !needs_key);
    add(messages.time, TIME_COLUMN, DataType::Timestamp(TimeUnit::Microsecond, None), !needs_time);
    add(place.map(|place| place.partition), PARTITION_COLUMN, DataType::Int64, false);
    add(place.map(|place| place.offset), OFFSET_COLUMN, DataType::Int64, false);
    let columns = (0..fields.len()).collect();
    let format = Some(("RAW".to_owned(), Vec::new()));
    SourceSpec { schema: Arc::new(Schema::new(fields)), columns, event_time_column: None, format, options, ..spec }
}

fn push_number(number: i64, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to memory does not fail.
    let _ = write!(out, "{number}");
}

#[cfg(test)]
mod tests;
