//! The queue of the engine's results on their way out: handed over in batches, bounded in bytes.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::codec::Qos;
use super::linger::Linger;
use super::properties::{MESSAGE_EXPIRY_BYTES, RESULT_ID_BYTES, push_message_expiry, push_result_id, result_id};
use super::topic::{self, TopicError};

/// A batch smaller than this is copied behind the last one in the queue instead of being queued on its own.
const SMALL_BATCH_BYTES: usize = 16 << 10;

/// The number of emptied batches that are kept to reuse their memory.
const SPARE_BATCHES_MAX: usize = 4;

/// The largest arena that is kept to reuse its memory.
const SPARE_BATCH_BYTES_MAX: usize = 1 << 20;

/// The interval at which a waiting caller checks whether results have left.
const LEFT_POLL: Duration = Duration::from_millis(2);

/// How a message is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishOptions {
    /// Quality of service; 2 is treated as 1.
    pub qos: Qos,
    /// Whether the broker retains it for later subscribers.
    pub retain: bool,
    /// After how many seconds at the broker it expires; `None` for never.
    pub expiry_s: Option<u32>,
}

/// The longest identity of a result.
const ID_BYTES_MAX: usize = u8::MAX as usize - RESULT_ID_BYTES - MESSAGE_EXPIRY_BYTES;

/// Messages in one arena: topics, properties and payloads end to end.
#[derive(Clone, Debug, Default)]
pub struct PublishBatch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    topic_end: u32,
    payload_end: u32,
    qos: Qos,
    retain: bool,
    /// The length of the properties, which are between topic and payload.
    properties_bytes: u8,
    /// Whether the last of the properties is an expiry.
    expires: bool,
}

/// A message in a [`PublishBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingMessage<'a> {
    /// A valid topic.
    pub topic: &'a str,
    /// The content.
    pub payload: &'a [u8],
    /// Properties of version 5, as in a packet.
    pub properties: &'a [u8],
    /// How it is published.
    pub options: PublishOptions,
}

impl<'a> OutgoingMessage<'a> {
    /// The identity of the result: unique, and the same when it is published once more; empty for none.
    pub fn id(&self) -> &'a str {
        result_id(self.properties).unwrap_or_default()
    }

    /// The bytes that the message counts against the bound of a queue.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.topic.len() + self.properties.len() + self.payload.len() + size_of::<Entry>()
    }
}

/// Why a message cannot be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The topic is invalid.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The batch has reached the most that its arena can hold.
    #[error("a batch of results has grown to {bytes} bytes\nhint: hand it over before it does")]
    BatchFull {
        /// Its size.
        bytes: usize,
    },
}

impl PublishBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a message.
    ///
    /// Fails, leaving the batch unchanged, if the topic is invalid (parameters may have put anything into it).
    #[inline]
    pub fn push(&mut self, topic: &str, payload: &[u8], options: PublishOptions) -> Result<(), PublishError> {
        self.push_with_id(topic, "", payload, options)
    }

    /// The same for a message with an identity: unique, and the same when it is published once more; empty for none.
    /// With version 5 of the protocol it is sent as the user property `rivulet-id`, if it is not longer than 200 bytes.
    #[inline]
    pub fn push_with_id(
        &mut self,
        topic: &str,
        id: &str,
        payload: &[u8],
        options: PublishOptions,
    ) -> Result<(), PublishError> {
        topic::check_topic(topic.as_bytes())?;
        let has_id = !id.is_empty() && id.len() <= ID_BYTES_MAX;
        let expiry_bytes = if options.expiry_s.is_some() { MESSAGE_EXPIRY_BYTES } else { 0 };
        let properties_bytes = if has_id { RESULT_ID_BYTES + id.len() } else { 0 } + expiry_bytes;
        let topic_end = self.bytes.len() + topic.len();
        let payload_end = topic_end + properties_bytes + payload.len();
        let (Ok(topic_end), Ok(payload_end)) = (u32::try_from(topic_end), u32::try_from(payload_end)) else {
            return Err(PublishError::BatchFull { bytes: self.bytes.len() });
        };
        self.bytes.extend_from_slice(topic.as_bytes());
        if has_id {
            push_result_id(id, &mut self.bytes);
        }
        if let Some(expiry_s) = options.expiry_s {
            push_message_expiry(expiry_s, &mut self.bytes);
        }
        self.bytes.extend_from_slice(payload);
        let properties_bytes = u8::try_from(properties_bytes).expect("it is bounded above");
        let PublishOptions { qos, retain, expiry_s } = options;
        self.entries.push(Entry { topic_end, payload_end, qos, retain, properties_bytes, expires: expiry_s.is_some() });
        Ok(())
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no message.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes that the batch counts against the bound of a queue: topics, payloads, and the entry of each message.
    pub fn queued_bytes(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }

    /// The message at `index`: its entry, its topic, and the bytes behind the topic.
    #[inline]
    fn parts(&self, index: usize) -> Option<(&Entry, &[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        let start = if index == 0 { 0 } else { self.entries[index - 1].payload_end as usize };
        let (topic, rest) = self.bytes[start..entry.payload_end as usize].split_at(entry.topic_end as usize - start);
        Some((entry, topic, rest))
    }

    /// The topic of the message at `index`, as bytes.
    #[inline]
    pub(crate) fn topic(&self, index: usize) -> Option<&[u8]> {
        self.parts(index).map(|(_, topic, _)| topic)
    }

    /// The message at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<OutgoingMessage<'_>> {
        let (entry, topic, rest) = self.parts(index)?;
        let topic = std::str::from_utf8(topic).expect("topics come in as text");
        let (properties, payload) = rest.split_at(usize::from(entry.properties_bytes));
        let &Entry { qos, retain, expires, .. } = entry;
        let expiry_s = properties.last_chunk().filter(|_| expires).map(|seconds| u32::from_be_bytes(*seconds));
        Some(OutgoingMessage { topic, payload, properties, options: PublishOptions { qos, retain, expiry_s } })
    }

    /// Removes all messages and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Appends the messages of another batch; together they have less than 4 GiB.
    pub(crate) fn append(&mut self, other: &Self) {
        let shift = u32::try_from(self.bytes.len()).expect("only small batches are appended to");
        self.bytes.extend_from_slice(&other.bytes);
        self.entries.extend(other.entries.iter().map(|entry| Entry {
            topic_end: entry.topic_end + shift,
            payload_end: entry.payload_end + shift,
            ..*entry
        }));
    }
}

/// Called, on any thread, when there is room again.
pub type RoomCallback = Arc<dyn Fn() + Send + Sync>;

/// Takes results to a broker. It never blocks.
pub trait Publisher: Send + Sync {
    /// Takes all messages of the batch and leaves it empty.
    ///
    /// Always succeeds, so that no computed result is lost. The queue is bounded because a producer asks
    /// [`Publisher::has_room`] before it computes more; it exceeds its mark at most by the results under way.
    fn submit(&self, batch: &mut PublishBatch);

    /// Whether more may be produced. False from the high mark until the queue has shrunk to the low mark.
    fn has_room(&self) -> bool;

    /// Registers a callback that is called each time there is room again. There may be several.
    fn on_room(&self, callback: RoomCallback);

    /// The number of the next message: all before it were submitted.
    fn next(&self) -> u64;

    /// The number of the first message that has not left. A message of QoS 1 has left when the broker has acknowledged
    /// it.
    fn first_left(&self) -> u64;

    /// Waits until all messages before the number `until` have left; an embedded broker has then put them into the
    /// queues of its sessions. Returns false if that takes longer than `limit`, or `is_given_up` returns true.
    fn wait_until_left(&self, until: u64, limit: Duration, is_given_up: &dyn Fn() -> bool) -> bool {
        let deadline = Instant::now() + limit;
        while self.first_left() < until {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() || is_given_up() {
                return false;
            }
            std::thread::sleep(rest.min(LEFT_POLL));
        }
        true
    }
}

/// The queue between producers of results and the task that sends them.
#[derive(Default)]
pub(crate) struct Outbound {
    queue: Mutex<Queue>,
    /// Bytes in the queue, and bytes that the sender has taken but not sent yet.
    bytes: AtomicUsize,
    messages: AtomicUsize,
    /// The number of the first message that has not left.
    first_left: AtomicU64,
    full: AtomicBool,
    bytes_max: usize,
    callbacks: Mutex<Vec<RoomCallback>>,
    /// Wakes the sender.
    pub(crate) wake: Notify,
    /// The pauses of the thread on which the sender is.
    linger: Arc<Linger>,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<PublishBatch>,
    /// The number of the next message to be submitted, and that of the first in the queue.
    next: u64,
    first: u64,
    spare: Vec<PublishBatch>,
}

impl Outbound {
    /// An empty queue with its high mark at `bytes_max` and its low mark at half of it.
    pub(crate) fn new(bytes_max: usize, linger: &Arc<Linger>) -> Self {
        Self { bytes_max, linger: linger.clone(), ..Self::default() }
    }

    /// Takes the next batch to send, and the number of its first message. Its messages count as queued until
    /// [`Outbound::sent`].
    pub(crate) fn take(&self) -> Option<(u64, PublishBatch)> {
        let mut queue = self.queue.lock();
        let Some(batch) = queue.batches.pop_front() else {
            self.linger.note_results(false);
            return None;
        };
        let first = queue.first;
        queue.first += batch.len() as u64;
        Some((first, batch))
    }

    /// Notes that all messages before this one have left.
    pub(crate) fn left(&self, before: u64) {
        self.first_left.fetch_max(before, Ordering::AcqRel);
    }

    /// Notes that messages of a taken batch were sent (or dropped and counted): `bytes` of it are no longer queued.
    pub(crate) fn sent(&self, messages: usize, bytes: usize) {
        self.messages.fetch_sub(messages, Ordering::AcqRel);
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before - bytes <= self.bytes_max / 2 && self.full.swap(false, Ordering::AcqRel) {
            let callbacks = self.callbacks.lock().clone();
            callbacks.iter().for_each(|callback| callback());
        }
    }

    /// Gives back an emptied batch, so that its memory is reused.
    pub(crate) fn give_back(&self, mut batch: PublishBatch) {
        batch.clear();
        let mut queue = self.queue.lock();
        if queue.spare.len() < SPARE_BATCHES_MAX && batch.bytes.capacity() <= SPARE_BATCH_BYTES_MAX {
            queue.spare.push(batch);
        }
    }

    /// Bytes that wait to be sent.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Messages that wait to be sent.
    pub(crate) fn queued_messages(&self) -> usize {
        self.messages.load(Ordering::Acquire)
    }
}

impl Publisher for Outbound {
    fn submit(&self, batch: &mut PublishBatch) {
        if batch.is_empty() {
            return;
        }
        let bytes = batch.queued_bytes();
        self.messages.fetch_add(batch.len(), Ordering::AcqRel);
        // The bytes are counted and the mark is set before the batch is queued: so the sender subtracts them, and
        // resets the mark, only after that.
        let queued = self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        if queued > self.bytes_max {
            self.full.store(true, Ordering::Release);
        }
        let mut queue = self.queue.lock();
        queue.next += batch.len() as u64;
        match queue.batches.back_mut() {
            Some(last) if last.queued_bytes() + bytes <= SMALL_BATCH_BYTES => {
                last.append(batch);
                batch.clear();
            }
            _ => {
                let spare = queue.spare.pop().unwrap_or_default();
                queue.batches.push_back(mem::replace(batch, spare));
            }
        }
        self.linger.note_results(true);
        drop(queue);
        self.wake.notify_one();
        self.linger.wake();
    }

    fn has_room(&self) -> bool {
        !self.full.load(Ordering::Acquire)
    }

    fn on_room(&self, callback: RoomCallback) {
        self.callbacks.lock().push(callback);
    }

    fn next(&self) -> u64 {
        self.queue.lock().next
    }

    fn first_left(&self) -> u64 {
        self.first_left.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(messages: &[(&str, &[u8])]) -> PublishBatch {
        let mut batch = PublishBatch::new();
        for (topic, payload) in messages {
            batch.push(topic, payload, PublishOptions::default()).unwrap();
        }
        batch
    }

    #[test]
    fn messages_keep_their_bounds_and_small_batches_are_joined() {
        let outbound = Outbound::new(1 << 20, &Arc::default());
        let mut first = batch(&[("a", b"1"), ("b/c", b"")]);
        let mut second = batch(&[("d", b"two")]);
        outbound.submit(&mut first);
        outbound.submit(&mut second);
        assert!(first.is_empty() && second.is_empty());
        let (number, taken) = outbound.take().unwrap();
        assert!(outbound.take().is_none());
        assert_eq!((number, outbound.next(), outbound.first_left()), (0, 3, 0));
        let messages: Vec<_> = (0..taken.len()).map(|index| taken.get(index).unwrap()).collect();
        assert_eq!(messages.iter().map(|message| message.topic).collect::<Vec<_>>(), ["a", "b/c", "d"]);
        assert_eq!(messages.iter().map(|message| message.payload).collect::<Vec<_>>(), [&b"1"[..], b"", b"two"]);
        assert_eq!(outbound.queued_bytes(), taken.queued_bytes());
        outbound.submit(&mut batch(&[("e", b"")]));
        assert_eq!(outbound.take().unwrap().0, 3);
        outbound.left(3);
        outbound.left(2);
        assert_eq!((outbound.next(), outbound.first_left()), (4, 3), "what has left does not come back");
        let has_left = |until, limit| outbound.wait_until_left(until, limit, &|| true);
        assert!(has_left(3, Duration::ZERO) && !has_left(4, Duration::ZERO) && !has_left(4, Duration::from_secs(3600)));
    }

    #[test]
    fn an_identity_goes_along_as_a_property() {
        let mut batch = PublishBatch::new();
        let options = PublishOptions::default();
        batch.push_with_id("a", "one-1-2", b"x", options).unwrap();
        batch.push_with_id("b", &"x".repeat(ID_BYTES_MAX + 1), b"y", options).unwrap();
        let first = batch.get(0).unwrap();
        assert_eq!((first.topic, first.payload), ("a", &b"x"[..]));
        assert_eq!(first.properties, b"\x26\x00\x0arivulet-id\x00\x07one-1-2");
        let second = batch.get(1).unwrap();
        assert_eq!((second.topic, second.payload, second.properties), ("b", &b"y"[..], &b""[..]));
        assert_eq!((first.id(), second.id()), ("one-1-2", ""));
        let each = first.queued_bytes() + second.queued_bytes();
        assert_eq!(batch.queued_bytes(), each);
    }

    #[test]
    fn an_expiry_goes_along_as_a_property() {
        let mut batch = PublishBatch::new();
        let options = PublishOptions { qos: Qos::AtLeastOnce, retain: true, expiry_s: Some(90) };
        batch.push_with_id("a", "one-1-2", b"x", options).unwrap();
        batch.push("b", b"y", options).unwrap();
        batch.push("c", b"z", PublishOptions::default()).unwrap();
        let message = |index: usize| batch.get(index).unwrap();
        assert_eq!(message(0).properties, b"\x26\x00\x0arivulet-id\x00\x07one-1-2\x02\x00\x00\x00\x5a");
        assert_eq!((message(0).id(), message(0).payload, message(0).options), ("one-1-2", &b"x"[..], options));
        assert_eq!((message(1).id(), message(1).payload, message(1).options), ("", &b"y"[..], options));
        assert_eq!(message(2).options, PublishOptions::default());
    }

    #[test]
    fn room_goes_at_the_high_mark_and_comes_back_at_the_low_mark() {
        let outbound = Outbound::new(10_000, &Arc::default());
        let called = Arc::new(AtomicUsize::new(0));
        let count = called.clone();
        outbound.on_room(Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let payload = [0u8; 3000];
        for expected in [true, true, true, false] {
            outbound.submit(&mut batch(&[("t", &payload)]));
            assert_eq!(outbound.has_room(), expected);
        }
        outbound.sent(1, 3000);
        assert!(!outbound.has_room() && called.load(Ordering::SeqCst) == 0);
        outbound.sent(2, 6000);
        assert!(outbound.has_room() && called.load(Ordering::SeqCst) == 1);
    }

    #[test]
    fn topics_that_parameters_have_broken_are_refused() {
        let mut batch = PublishBatch::new();
        for topic in ["", "a/+", "a/#", "a\0"] {
            assert!(batch.push(topic, b"x", PublishOptions::default()).is_err(), "{topic:?}");
        }
        assert!(batch.is_empty() && batch.queued_bytes() == 0);
    }
}
