//! The thread that reads messages and hands them over in blocks.
//!
//! What must hold: at most so many blocks wait, and while they do the consumer is paused, not silent, so that its group does not
//! think it dead; an offset is stored for the group when the block that has it was taken, not before.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};

use super::start::{CLOSE_TIMEOUT, Reading};
use crate::connector::intake::BYTES_AT_ONCE;

/// How many messages are in a block.
const BLOCK_MESSAGES: usize = 8192;

/// How many blocks wait.
const BLOCKS_MAX: usize = 4;

/// How long the library is asked to wait for a message, and so how long stopping takes.
const POLL: Duration = Duration::from_millis(50);

/// Messages end to end.
#[derive(Debug, Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    messages: Vec<Place>,
}

/// A message in a block.
#[derive(Clone, Copy, Debug)]
struct Place {
    key_end: u32,
    payload_end: u32,
    has_key: bool,
    has_payload: bool,
    partition: i32,
    offset: i64,
    /// Milliseconds since the epoch; `i64::MIN` if the message has no time.
    time_ms: i64,
}

/// A message, where it lies in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received<'b> {
    pub(super) key: Option<&'b [u8]>,
    pub(super) payload: Option<&'b [u8]>,
    pub(super) partition: i32,
    pub(super) offset: i64,
    /// Milliseconds since the epoch.
    pub(super) time_ms: Option<i64>,
}

impl Block {
    fn push(&mut self, message: &BorrowedMessage<'_>) {
        let key = message.key();
        self.bytes.extend_from_slice(key.unwrap_or_default());
        let key_end = self.bytes.len() as u32;
        let payload = message.payload();
        self.bytes.extend_from_slice(payload.unwrap_or_default());
        self.messages.push(Place {
            key_end,
            // A block is full long before this does not fit: messages have at most 1 GB.
            payload_end: self.bytes.len() as u32,
            has_key: key.is_some(),
            has_payload: payload.is_some(),
            partition: message.partition(),
            offset: message.offset(),
            time_ms: message.timestamp().to_millis().unwrap_or(i64::MIN),
        });
    }

    fn is_full(&self) -> bool {
        self.messages.len() >= BLOCK_MESSAGES || self.bytes.len() >= BYTES_AT_ONCE
    }

    fn is_overfull(&self) -> bool {
        self.messages.len() >= 2 * BLOCK_MESSAGES || self.bytes.len() >= 64 * BYTES_AT_ONCE
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many messages there are.
    pub(super) fn messages(&self) -> usize {
        self.messages.len()
    }

    /// The message at `index`.
    pub(super) fn message(&self, index: usize) -> Received<'_> {
        let start = if index == 0 { 0 } else { self.messages[index - 1].payload_end };
        let place = self.messages[index];
        let key = &self.bytes[start as usize..place.key_end as usize];
        let payload = &self.bytes[place.key_end as usize..place.payload_end as usize];
        Received {
            key: place.has_key.then_some(key),
            payload: place.has_payload.then_some(payload),
            partition: place.partition,
            offset: place.offset,
            time_ms: (place.time_ms != i64::MIN).then_some(place.time_ms),
        }
    }
}

/// What the thread and the source have in common.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Nobody wants more.
    pub(super) stop: AtomicBool,
    /// The offset behind the last message taken, by partition, not yet stored for the group.
    pub(super) taken: Mutex<HashMap<i32, i64>>,
    /// How many messages were taken.
    pub(super) messages: AtomicU64,
}

/// What comes from the thread: messages, or why there will be none. It hangs up at the end of bounded reading.
pub(super) type Handed = Result<Block, String>;

/// Begins to read in a thread of its own.
pub(super) fn start(reading: Reading) -> (Receiver<Handed>, Arc<Shared>) {
    let (sender, receiver) = sync_channel(BLOCKS_MAX);
    let shared = Arc::<Shared>::default();
    let started = std::thread::Builder::new().name("kafka source".into()).spawn({
        let (sender, shared) = (sender.clone(), shared.clone());
        let block = Block::default();
        move || {
            Fetcher { reading, sender, shared, block, handed: 0, is_paused: false, is_pause_complete: false }.run();
        }
    });
    if let Err(error) = started {
        // There is room: nothing has been sent yet.
        let _ = sender.try_send(Err(error.to_string()));
    }
    (receiver, shared)
}

struct Fetcher {
    reading: Reading,
    sender: SyncSender<Handed>,
    shared: Arc<Shared>,
    /// Being filled.
    block: Block,
    /// How many messages were handed over.
    handed: u64,
    /// Whether some partitions may be paused, and whether all are.
    is_paused: bool,
    is_pause_complete: bool,
}

/// What follows from something that happened.
enum Then {
    GoOn,
    Stop,
}

impl Fetcher {
    fn run(mut self) {
        loop {
            self.store_offsets();
            if self.shared.stop.load(Ordering::Acquire) {
                break;
            }
            if self.is_done() {
                // The last block waits for its turn like any other, but no one waits for the broker any more.
                match self.hand_over() {
                    Then::Stop => break,
                    Then::GoOn if self.block.is_empty() => break,
                    Then::GoOn => std::thread::sleep(POLL),
                }
                continue;
            }
            match self.fill() {
                Ok(()) => {}
                Err(problem) => {
                    // Blocks that wait are not overtaken; nobody there to hear it is as good.
                    let _ = self.sender.send(Err(problem));
                    break;
                }
            }
            if matches!(self.hand_over(), Then::Stop) {
                break;
            }
        }
        let Self { sender, reading, shared, handed, .. } = self;
        // Whoever waits knows now that there will be no more; the consumer may take its time to leave.
        drop(sender);
        finish(&reading, &shared, handed);
    }

    /// Whether all that is to be read has been read.
    fn is_done(&self) -> bool {
        self.reading.ends.as_ref().is_some_and(HashMap::is_empty)
    }

    /// Takes messages until there are none or the block is full. Waits for the first one alone: asking for the time and waiting costs
    /// more than a message.
    fn fill(&mut self) -> Result<(), String> {
        let mut wait = POLL;
        // A full block waits for room. The library gets its turn all the same, and its group hears from it; what it gives nevertheless, as
        // of a partition that is new to us, is taken within bounds.
        let limit = if self.block.is_full() { 1 } else { BLOCK_MESSAGES };
        if self.block.is_overfull() {
            std::thread::sleep(POLL);
            return Ok(());
        }
        for _ in 0..limit {
            match self.reading.consumer.poll(wait) {
                None => return Ok(()),
                Some(Ok(message)) => {
                    let (partition, offset) = (message.partition(), message.offset());
                    let is_wanted = match &mut self.reading.ends {
                        None => true,
                        Some(ends) => match ends.get(&partition) {
                            None => false,
                            Some(&end) => {
                                if offset + 1 >= end {
                                    ends.remove(&partition);
                                }
                                offset < end
                            }
                        },
                    };
                    if is_wanted {
                        self.block.push(&message);
                    }
                    // While paused, one comes of a partition that is new to us: pausing is due again.
                    self.is_pause_complete = false;
                    wait = Duration::ZERO;
                    if self.block.is_full() || self.is_done() {
                        return Ok(());
                    }
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    // All that was there at the start lies before what is the end now; the last of it may have been no message.
                    if let Some(ends) = &mut self.reading.ends {
                        ends.remove(&partition);
                    }
                }
                Some(Err(error)) => match is_final(&error) {
                    true => return Err(error.to_string()),
                    false => {
                        tracing::warn!(topic = self.reading.topic, "Kafka: {error}; trying again");
                        return Ok(());
                    }
                },
            }
        }
        Ok(())
    }

    /// Hands over what there is if there is room; pauses when a full block has to wait, and resumes when it has gone.
    fn hand_over(&mut self) -> Then {
        if self.block.is_empty() {
            self.resume();
            return Then::GoOn;
        }
        let messages = self.block.messages() as u64;
        match self.sender.try_send(Ok(std::mem::take(&mut self.block))) {
            Ok(()) => {
                self.handed += messages;
                self.resume();
                Then::GoOn
            }
            Err(TrySendError::Disconnected(_)) => Then::Stop,
            Err(TrySendError::Full(Ok(block))) => {
                if block.is_full() {
                    self.pause();
                }
                self.block = block;
                Then::GoOn
            }
            Err(TrySendError::Full(Err(_))) => Then::Stop,
        }
    }

    fn pause(&mut self) {
        if self.is_paused && self.is_pause_complete {
            return;
        }
        self.is_paused = true;
        let consumer = &self.reading.consumer;
        match consumer.assignment().and_then(|assignment| consumer.pause(&assignment)) {
            Ok(()) => self.is_pause_complete = true,
            // Tried again at the next poll, which takes no more than one message meanwhile.
            Err(error) => tracing::debug!(topic = self.reading.topic, "Kafka: not paused: {error}"),
        }
    }

    fn resume(&mut self) {
        if !self.is_paused {
            return;
        }
        let consumer = &self.reading.consumer;
        match consumer.assignment().and_then(|assignment| consumer.resume(&assignment)) {
            Ok(()) => (self.is_paused, self.is_pause_complete) = (false, false),
            // Tried again at the next poll.
            Err(error) => tracing::debug!(topic = self.reading.topic, "Kafka: not resumed: {error}"),
        }
    }

    fn store_offsets(&self) {
        store_offsets(&self.reading, &self.shared);
    }
}

/// Stores the offsets of what was taken, so that the library commits them.
fn store_offsets(reading: &Reading, shared: &Shared) {
    if !reading.has_group {
        return;
    }
    let taken = std::mem::take(&mut *shared.taken.lock());
    for (partition, offset) in taken {
        // A partition that went to somebody else meanwhile has nothing to store; they read it again from what was committed.
        if let Err(error) = reading.consumer.store_offset(&reading.topic, partition, offset - 1) {
            tracing::debug!(topic = reading.topic, partition, "Kafka: offset not stored: {error}");
        }
    }
}

/// Commits what was taken last, of the messages that were handed over.
fn finish(reading: &Reading, shared: &Shared, handed: u64) {
    if !reading.has_group {
        return;
    }
    // What was handed over last may still be taken.
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    let is_taken = || shared.stop.load(Ordering::Acquire) || shared.messages.load(Ordering::Acquire) >= handed;
    while !is_taken() && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
    store_offsets(reading, shared);
    match reading.consumer.commit_consumer_state(CommitMode::Sync) {
        Ok(()) | Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
        Err(error) => tracing::warn!(topic = reading.topic, "Kafka: offsets not committed: {error}"),
    }
}

/// Whether trying again will not help.
fn is_final(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::*;
    match error {
        KafkaError::MessageConsumptionFatal(_) => true,
        KafkaError::MessageConsumption(code) | KafkaError::Global(code) => matches!(
            code,
            UnknownTopicOrPartition
                | UnknownTopic
                | UnknownPartition
                | TopicAuthorizationFailed
                | GroupAuthorizationFailed
                | ClusterAuthorizationFailed
                | SaslAuthenticationFailed
                | Authentication
                | UnsupportedSASLMechanism
                | Fatal
        ),
        _ => false,
    }
}
