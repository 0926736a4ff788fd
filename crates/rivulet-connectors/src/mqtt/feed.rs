//! The feed: messages of a source, as Kafka and HTTP have them, on their way into the router.
//!
//! What a topic is to a message of MQTT, its key is here: [`FeedLayout`] makes a topic of it, which begins with
//! [`SOURCE_MARK`](super::topic::SOURCE_MARK), and the routes find the queries by that. A source is one of those that
//! big queries read, opened with the format RAW, so that payloads wait in inboxes as they came.
//!
//! What must hold: a message is in all inboxes that want it, or is offered again; while one is full the source is not
//! asked for more. In the log a message stands with its place in its source, and that is noted ([`Noted`]) under the
//! lock under which it went there: whoever takes that lock knows of every message that is in the log by then.

mod payload;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit, TimestampMicrosecondType};
use parking_lot::Mutex;
use rivulet_dataflow::{LogPosition, Polled, Reason, Refusals, Source};

use super::intake::{AHEAD, Stuck, UnderWay};
use super::router::{Received, Router};
use super::topic::{SOURCE_MARK, TopicPart, push_level};
use crate::connector::{ConnectorError, Connectors, Messages, SourceSpec};
use payload::{for_each_object, key_in};

/// How many messages a source is asked for at once.
const ROWS_AT_ONCE: usize = 4_096;

/// So many messages are routed while the routes are held still.
const EVENTS_AT_ONCE: usize = 512;

/// How long to wait for the disk before a sender is told that its event is safe.
const CONFIRM_PAUSE: Duration = Duration::from_micros(500);

/// How long to wait when the source has nothing, and does not say.
const IDLE: Duration = Duration::from_millis(5);

/// A longer key goes to no query: with what stands before it, it would be no topic.
const KEY_BYTES_MAX: usize = 16 << 10;

/// What stands in the log in the place of a client's name before the place of a message: no text does.
const PLACE: u8 = 0xfe;

/// What is the key of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFrom {
    /// Every query reads every message.
    Nothing,
    /// The key that the source gives it.
    Message,
    /// The field with this name of the JSON object that the payload is.
    Field(String),
}

/// What the topics of a source's messages look like.
#[derive(Clone, Debug)]
pub struct FeedLayout {
    /// What they begin with: [`FeedLayout::prefix`].
    pub prefix: String,
    /// What tells queries apart.
    pub key: KeyFrom,
    /// Whether an array of objects is as many messages. Not where a message comes again after a crash, for it has one
    /// place.
    pub splits: bool,
    /// Whether topics say the message's own key, partition, offset and time as well.
    pub has_columns: bool,
    /// Whether a message without a key of its own, or without a time, is refused.
    pub needs: (bool, bool),
}

/// The parts of a topic that [`FeedLayout::has_columns`] adds, for columns.
pub const MESSAGE_KEY: TopicPart = TopicPart::Key(3);
/// The partition of a message.
pub const MESSAGE_PARTITION: TopicPart = TopicPart::Level(4);
/// Its offset.
pub const MESSAGE_OFFSET: TopicPart = TopicPart::Level(5);
/// When it was sent, microseconds since the epoch.
pub const MESSAGE_TIME: TopicPart = TopicPart::Level(6);

impl FeedLayout {
    /// What the topics of an application's input begin with.
    pub fn prefix(application: &str, input: &str) -> String {
        let mut prefix = SOURCE_MARK.as_bytes().to_vec();
        push_level(application, &mut prefix);
        prefix.push(b'/');
        push_level(input, &mut prefix);
        String::from_utf8_lossy(&prefix).into_owned()
    }

    /// The topic or filter that is routed to a query of which `key` is the key, as levels are written; of which every
    /// message is where that is empty.
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

    /// Calls `each` with the messages of a payload: key and payload of each.
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

    /// The messages of a payload with this key of its own, offset and time, as a trial has them: topic and payload.
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

/// What of a source went into the router.
#[derive(Debug, Default)]
pub struct Noted {
    /// Where its partitions began, or went on after a restart.
    begun: Vec<Option<String>>,
    /// By partition the offset behind the last message that is in the router.
    next: Vec<(i64, i64)>,
    counts: FeedCounts,
}

/// What was counted of a source since it was opened first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedCounts {
    /// Messages that went into the router; of an array each object.
    pub events: u64,
    /// Those of them that no query has asked for.
    pub unwanted: u64,
    /// Those that have no key, though queries are told apart by it.
    pub without_key: u64,
    /// Messages that are no text, or lack what a column must have.
    pub refused: u64,
    /// How often the source had to wait, because an inbox was full, or the log.
    pub full_waits: u64,
    /// What was wrong with the message that was refused last.
    pub last_refusal: Option<String>,
    /// When the last one came, microseconds since the epoch; 0 before the first.
    pub last_us: i64,
}

impl Noted {
    /// Of a source that goes on at these positions, or begins.
    pub fn begin(positions: Vec<Option<String>>) -> Self {
        Self { begun: positions, ..Self::default() }
    }

    /// Where its partitions go on: of a source that is opened with these nothing comes twice, and nothing is left out.
    pub fn positions(&self, messages: &Messages) -> Vec<Option<String>> {
        let Some(place) = messages.place else { return Vec::new() };
        let mut positions = self.begun.clone();
        self.next.iter().for_each(|&(partition, offset)| (place.go_on)(&mut positions, partition, offset));
        positions
    }

    /// What was counted.
    pub fn counts(&self) -> FeedCounts {
        self.counts.clone()
    }

    /// Of a source that takes the place of one that has ended.
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

/// What the log says of a message in the place of its client's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedPlace<'l> {
    /// The source with this identity began at the positions that the payload says.
    Begins(&'l str),
    /// It is the message of that source in this partition at this offset.
    At(&'l str, i64, i64),
}

impl<'l> LoggedPlace<'l> {
    /// Reads it; `None` if it is that of no source.
    pub fn read(client: &'l [u8]) -> Option<Self> {
        let (&PLACE, text) = client.split_first()? else { return None };
        let (id, place) = std::str::from_utf8(text).ok()?.split_once('\0')?;
        match place.split_once(':') {
            Some((partition, offset)) => Some(Self::At(id, partition.parse().ok()?, offset.parse().ok()?)),
            None => Some(Self::Begins(id)),
        }
    }
}

/// A source that is read, and what of it waits for room.
pub struct Feed {
    sources: Vec<Box<dyn Source>>,
    /// The one that is asked next.
    turn: usize,
    messages: Messages,
    layout: FeedLayout,
    id: String,
    noted: Arc<Mutex<Noted>>,
    /// The rows whose messages are under way.
    rows: Option<RecordBatch>,
    ready: Ready,
    under_way: UnderWay,
    /// Whether senders wait until what was asked for is safe.
    confirms: bool,
    /// Up to where the log has what was asked for.
    logged_to: LogPosition,
}

/// Messages of rows, in order.
#[derive(Default)]
struct Ready {
    /// Topics, and what stands in the log for a client.
    bytes: Vec<u8>,
    events: Vec<ReadyEvent>,
    /// How many of them are in the router.
    at: usize,
}

struct ReadyEvent {
    topic: Range<usize>,
    client: Range<usize>,
    /// Within the column of payloads.
    payload: Range<usize>,
    place: Option<(i64, i64)>,
    has_key: bool,
}

/// What has come of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turned {
    /// There is more to do.
    GoesOn,
    /// It is worth another turn after this long.
    Waits(Duration),
    /// The source has come to its end.
    Ended,
    /// The source is broken, in words.
    Failed(String),
}

impl Feed {
    /// Opens a source: connector, address, options, host and positions of `spec` count. `id` tells it from all others
    /// in the log. What is noted goes on.
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
        let spec = of_messages(SourceSpec { resume, ..spec }, &messages, layout.needs);
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

    /// Looks at what [`Feed::open`] would open.
    ///
    /// # Errors
    /// As with [`Connectors::check_source`]; and if inputs of applications cannot read it.
    pub fn check(connectors: Connectors, spec: SourceSpec) -> Result<Messages, ConnectorError> {
        let messages = connectors.messages(&spec.connector)?;
        connectors.check_source(&of_messages(spec, &messages, (false, false))).map(|()| messages)
    }

    /// Puts down in the log where the source begins, so that it begins there after a crash as well.
    pub fn log_begin(&self, router: &Router, now_us: i64) {
        let positions = serde_json::to_vec(&self.noted.lock().positions(&self.messages)).unwrap_or_default();
        let mut client = vec![PLACE];
        client.extend_from_slice(self.id.as_bytes());
        client.push(0);
        // Nothing is routed to the mark alone.
        let topic = SOURCE_MARK.as_bytes();
        let message = Received { arrival_us: now_us, client: &client, packet_id: 0, topic, payload: &positions };
        if let Some(log) = router.log() {
            let _ = log.append(&message, true, &mut |_| true);
        }
    }

    /// Routes what is under way, or asks the source for more.
    pub fn turn(&mut self, router: &Router, now_us: i64) -> Turned {
        if self.rows.is_some() {
            return match self.route(router, now_us) {
                Some(wait) => Turned::Waits(wait),
                None => Turned::GoesOn,
            };
        }
        if self.confirms {
            if router.log().is_some_and(|log| log.durable() < self.logged_to) {
                return Turned::Waits(CONFIRM_PAUSE);
            }
            self.sources.iter_mut().for_each(|source| source.confirm());
        }
        self.ask(now_us)
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

    /// Makes messages of rows.
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
                    ready.bytes.push(PLACE);
                    ready.bytes.extend_from_slice(id.as_bytes());
                    ready.bytes.push(0);
                    push_number(partition, &mut ready.bytes);
                    ready.bytes.push(b':');
                    push_number(offset, &mut ready.bytes);
                }
                let client = topic.end..ready.bytes.len();
                let from = (payload.as_ptr() as usize).wrapping_sub(start);
                let has_key = layout.key == KeyFrom::Nothing || key.is_some_and(|key| !key.is_empty());
                let payload = from..from + payload.len();
                ready.events.push(ReadyEvent { topic, client, payload, place, has_key });
            });
        }
    }

    /// Puts some of the messages into the router; how long to wait if there is no room.
    fn route(&mut self, router: &Router, now_us: i64) -> Option<Duration> {
        let Self { ready, rows, under_way, noted, logged_to, .. } = self;
        let payloads = rows.as_ref().expect("rows are under way").column(0).as_string::<i32>().value_data();
        // Under this lock what goes to the log is noted.
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

/// The columns of a batch that messages have beside their payload.
struct OwnColumns<'r> {
    keys: Option<&'r StringArray>,
    places: Option<(&'r Int64Array, &'r Int64Array)>,
    time: Option<&'r TimestampMicrosecondArray>,
}

/// The names under which they are asked for.
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

/// The source of `spec` as one of whole payloads, with what messages have beside them.
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
    // Memory takes everything.
    let _ = write!(out, "{number}");
}

#[cfg(test)]
mod tests;
