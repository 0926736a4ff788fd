//! Writes rows as messages, in transactions if that is requested.
//!
//! What must hold: an error of the broker about any message ends the query; no message counts as delivered unless it
//! was. The messages that wait for the broker are bounded: above a mark, far below the bound of the library, there is
//! no room; messages that the library still refuses wait here. Nothing here waits for the broker. While the broker is
//! away, a checkpoint gets the messages that wait: they are taken back from the library, which has the only copy.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer, PurgeConfig, ThreadedProducer};
use rivulet_dataflow::{Batch, Sink, SinkError, TransactionalSink};

use super::client::Settings;
use super::key::KeyEncoder;
use super::newest::{Due, Newest};
use super::producer::{Context, Deliveries, Held, OpenError};
use super::transaction::Transactions;
use crate::connector::outgoing::Outgoing;
use crate::connector::waiting::{self, WaitingMessage};
use crate::connector::{Health, OutputRows};
use crate::formats::RowFormat;

/// The most messages, and the most kibibytes, that may wait in the library.
pub(super) const QUEUE_MESSAGES: usize = 500_000;
pub(super) const QUEUE_KIB: usize = 256 << 10;

/// Above this many messages or bytes there is no room.
const ROOM_MESSAGES: usize = QUEUE_MESSAGES / 4;
const ROOM_BYTES: usize = (QUEUE_KIB << 10) / 4;

/// Messages count as stuck if they wait for this long and the library reports a problem.
const STANDS_AFTER: Duration = Duration::from_secs(1);

/// How long the library keeps a message for its broker if the statement does not say so.
const MESSAGE_TIMEOUT_MS: u64 = 300_000;

/// The time limit for the end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(120);

/// One instance of the sink.
pub(super) struct KafkaSink {
    sender: Sender,
    outgoing: Outgoing,
    key: Option<KeyEncoder>,
    /// The additional columns of rows behind the sink's own, and the number of those.
    output: Option<OutputRows>,
    columns: usize,
    /// For a changing result, of which only the newest row of each key is sent.
    newest: Option<Newest>,
    /// How long a message may wait for its broker; `None` without limit.
    timeout: Option<Duration>,
    /// When all messages must have been delivered.
    finish_by: Option<Instant>,
    /// Whether the other instances were told that this one writes nothing more.
    has_left: bool,
}

/// Sends messages to the broker.
struct Sender {
    /// Present until it is dropped. With transactions all instances share one producer, and wait for all its messages.
    producer: Option<ThreadedProducer<Context>>,
    transactions: Option<Arc<Transactions>>,
    deliveries: Arc<Deliveries>,
    /// With checkpoints and without transactions: how producers are made, so that messages can be taken back from one
    /// whose broker is away.
    takes_back: Option<Settings>,
    topic: String,
    /// Messages for which the library had no room, in order; tried again whenever the sink is asked for room.
    overflow: RefCell<VecDeque<Held>>,
}

impl KafkaSink {
    #[expect(clippy::too_many_arguments, reason = "each says another thing of the topic")]
    pub(super) fn open(
        settings: &Settings,
        topic: &str,
        format: &RowFormat,
        schema: &SchemaRef,
        changes: bool,
        key: Option<KeyEncoder>,
        output: Option<OutputRows>,
        transactions: Option<Arc<Transactions>>,
        waiting: Option<Vec<WaitingMessage>>,
        health: &Arc<Health>,
    ) -> Result<Self, OpenError> {
        // A retraction is a message without value, or says so itself. No message needs a mark.
        let outgoing = Outgoing::new(format, schema, false).map_err(OpenError::Format)?;
        let producer = match &transactions {
            Some(transactions) => transactions.producer().clone(),
            None => {
                let context = Context::leaving_out(health, &settings.reach, output.is_some());
                settings.producer(context).map_err(OpenError::Kafka)?
            }
        };
        let deliveries = producer.context().0.clone();
        let takes_back = waiting.is_some().then(|| settings.clone());
        let waiting = waiting.unwrap_or_default();
        health.hand(waiting.len());
        let held = waiting.iter().map(|message| {
            let (key, payload) =
                (message.key().map(Vec::into_boxed_slice), message.payload().map(Vec::into_boxed_slice));
            Held { topic: message.topic.as_deref().map(Box::from), key, payload }
        });
        let overflow = RefCell::new(held.collect());
        let (producer, topic) = (Some(producer), topic.to_owned());
        let sender = Sender { producer, transactions, deliveries, takes_back, topic, overflow };
        let (newest, columns) = ((changes && !format.has_changes()).then(Newest::default), schema.fields().len());
        let config = &settings.config;
        let timeout_ms = config.get("message.timeout.ms").or_else(|| config.get("delivery.timeout.ms"));
        let timeout_ms = timeout_ms.and_then(|ms| ms.parse().ok()).unwrap_or(MESSAGE_TIMEOUT_MS);
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        Ok(Self { sender, outgoing, key, output, columns, newest, timeout, finish_by: None, has_left: false })
    }

    fn write_changes(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let (Some(key), Some(newest)) = (&mut self.key, &mut self.newest) else {
            return Err(self.sender.failed("a changing result has no key"));
        };
        let keys = key.encode(batch);
        let encoded = self.outgoing.encode(&Batch { retracts: None, ..batch.clone() })?;
        (0..encoded.rows()).for_each(|row| newest.push(keys.row(row), encoded.row(row), batch.is_retraction(row)));
        if newest.is_large() { self.send_changes(Due::Values) } else { Ok(()) }
    }

    fn send_changes(&mut self, due: Due) -> Result<(), SinkError> {
        let Some(newest) = &mut self.newest else { return Ok(()) };
        newest.send(due, |key, value| {
            // Only the newest row of a key is sent: the others never waited for the broker.
            self.sender.deliveries.health.hand(1);
            self.sender.send(None, Some(key), value)
        })
    }

    fn write_rows(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let split = self.output.map(|output| output.split(batch, self.columns)).transpose()?;
        let (batch, owners) = match &split {
            Some((batch, owners)) => (batch, Some(owners)),
            None => (batch, None),
        };
        let keys = self.key.as_mut().map(|key| key.encode(batch));
        let encoded = self.outgoing.encode(batch)?;
        self.sender.deliveries.health.hand(encoded.rows());
        (0..encoded.rows()).try_for_each(|row| {
            let address = owners.and_then(|owners| owners.address(row));
            let topic = address.and_then(|address| address.rsplit_once('/')).map(|(_, topic)| topic);
            self.sender.send(topic, keys.map(|keys| keys.row(row)), Some(encoded.row(row)))
        })
    }
}

impl Sender {
    fn failed(&self, problem: impl std::fmt::Display) -> SinkError {
        SinkError(format!("cannot write to the topic '{}': {problem}", self.topic))
    }

    fn check(&self) -> Result<(), SinkError> {
        match &*self.deliveries.failed.lock() {
            Some(problem) => Err(self.failed(problem)),
            None => Ok(()),
        }
    }

    /// Hands one message to the library, which copies it; or holds it until the library has room. Without a topic it
    /// goes to the topic of the sink.
    fn send(&self, topic: Option<&str>, key: Option<&[u8]>, payload: Option<&[u8]>) -> Result<(), SinkError> {
        let mut overflow = self.overflow.borrow_mut();
        // To keep the order, held messages go first, and those that are being taken back before them.
        let is_taking = self.deliveries.takes_back.load(Ordering::Acquire);
        if is_taking || !overflow.is_empty() || !self.try_send(topic, key, payload)? {
            let (key, payload) = (key.map(Box::from), payload.map(Box::from));
            overflow.push_back(Held { topic: topic.map(Box::from), key, payload });
        }
        Ok(())
    }

    /// Hands one message to the library; returns false if it has no room.
    fn try_send(&self, topic: Option<&str>, key: Option<&[u8]>, payload: Option<&[u8]>) -> Result<bool, SinkError> {
        let Some(producer) = &self.producer else { return Err(self.failed("it was given up")) };
        if let Some(transactions) = &self.transactions {
            transactions.begin().map_err(|error| self.given_up(&error))?;
        }
        let bytes = key.map_or(0, <[u8]>::len) + payload.map_or(0, <[u8]>::len);
        let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic.unwrap_or(&self.topic), bytes);
        (record.key, record.payload) = (key, payload);
        // Counted before it is sent: it may be delivered before this thread goes on.
        self.deliveries.waiting.fetch_add(1, Ordering::AcqRel);
        self.deliveries.bytes.fetch_add(bytes, Ordering::AcqRel);
        let Err((error, _)) = producer.send(record) else { return Ok(true) };
        self.deliveries.waiting.fetch_sub(1, Ordering::AcqRel);
        self.deliveries.bytes.fetch_sub(bytes, Ordering::AcqRel);
        match error {
            KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) => Ok(false),
            error => Err(self.given_up(&error)),
        }
    }

    /// The error if a message cannot be written, which fails the transaction too.
    fn given_up(&self, error: &KafkaError) -> SinkError {
        let error = self.failed(error);
        self.transactions.iter().for_each(|transactions| transactions.fail(&error.0));
        error
    }

    /// Hands held messages to the library, as far as it has room.
    fn send_held(&self) -> Result<(), SinkError> {
        if self.deliveries.takes_back.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut overflow = self.overflow.borrow_mut();
        while let Some(held) = overflow.front() {
            if !self.try_send(held.topic.as_deref(), held.key.as_deref(), held.payload.as_deref())? {
                break;
            }
            overflow.pop_front();
        }
        Ok(())
    }

    /// Reports the problem of the connections while messages wait for them.
    fn look(&self) {
        let deliveries = &self.deliveries;
        let waits = || deliveries.health.oldest().is_some_and(|oldest| oldest >= STANDS_AFTER);
        if deliveries.has_problem.load(Ordering::Acquire)
            && waits()
            && let Some(problem) = &*deliveries.problem.lock()
        {
            deliveries.health.stand(problem, 1);
        }
    }

    /// Whether messages have waited for a broker that is not there, and can be taken back from the library.
    fn is_away(&self) -> bool {
        let deliveries = &self.deliveries;
        self.takes_back.is_some()
            && deliveries.has_problem.load(Ordering::Acquire)
            && deliveries.health.oldest().is_some_and(|oldest| oldest >= STANDS_AFTER)
    }

    /// Takes all messages on their way back from the library, in front of those that are held here; returns whether it
    /// has given them back. Some of them may have been written.
    fn take_back(&mut self) -> Result<bool, SinkError> {
        let (Some(settings), Some(producer)) = (&self.takes_back, &self.producer) else { return Ok(true) };
        if !self.deliveries.takes_back.swap(true, Ordering::AcqRel) {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
        if self.deliveries.waiting.load(Ordering::Acquire) > 0 {
            return Ok(false);
        }
        // After purged messages an idempotent producer does not go on.
        let Deliveries { health, leaves_out, .. } = &*self.deliveries;
        let context = Context::leaving_out(health, &settings.reach, *leaves_out);
        *context.0.problem.lock() = self.deliveries.problem.lock().clone();
        context.0.has_problem.store(self.deliveries.has_problem.load(Ordering::Acquire), Ordering::Release);
        let made = settings.producer(context).map_err(|error| self.failed(error))?;
        let taken_back = std::mem::take(&mut *self.deliveries.taken_back.lock());
        let mut overflow = self.overflow.borrow_mut();
        taken_back.into_iter().rev().for_each(|held| overflow.push_front(held));
        drop(overflow);
        self.deliveries = made.context().0.clone();
        let_go(&self.topic, self.producer.replace(made), None);
        Ok(true)
    }

    /// The messages that are held here, as a checkpoint stores them.
    fn saved(&self) -> String {
        let overflow = self.overflow.borrow();
        let message = |held: &Held| {
            let topic = held.topic.as_deref().filter(|topic| **topic != *self.topic);
            WaitingMessage::new(topic, held.key.as_deref(), held.payload.as_deref())
        };
        waiting::saved(overflow.iter().map(message).collect())
    }

    fn is_idle(&self) -> bool {
        self.overflow.borrow().is_empty()
            && self.deliveries.waiting.load(Ordering::Acquire) == 0
            && !self.deliveries.takes_back.load(Ordering::Acquire)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let_go(&self.topic, self.producer.take(), self.transactions.take());
    }
}

/// Abandons the messages on their way. The library takes a while for that, and nothing waits for it.
fn let_go(topic: &str, producer: Option<ThreadedProducer<Context>>, transactions: Option<Arc<Transactions>>) {
    if let Some(transactions) = &transactions {
        transactions.give_up();
    }
    // A transaction is aborted before its producer is dropped.
    let give_up = move || {
        drop(transactions);
        drop(producer);
    };
    let given_up = std::thread::Builder::new().name("kafka sink".into()).spawn(give_up);
    if let Err(error) = given_up {
        tracing::debug!(topic, "Kafka: the producer was dropped at once: {error}");
    }
}

impl Sink for KafkaSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.sender.check()?;
        if self.newest.is_some() { self.write_changes(batch) } else { self.write_rows(batch) }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        // The library sends by itself, a few milliseconds after it was given the first message of a batch.
        self.sender.check()?;
        if self.sender.deliveries.takes_back.load(Ordering::Acquire) {
            self.sender.take_back()?;
        }
        self.sender.look();
        self.sender.send_held()?;
        self.send_changes(Due::ValuesAndGone)
    }

    /// Returns whether the broker has accepted all messages that were written.
    fn drain(&mut self) -> Result<bool, SinkError> {
        self.sender.check()?;
        self.send_changes(Due::All)?;
        self.sender.send_held()?;
        self.sender.look();
        if !self.sender.is_idle() {
            return Ok(false);
        }
        // The last message may have failed since.
        self.sender.check().map(|()| true)
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        let Some(transactions) = self.sender.transactions.clone() else {
            let finish_by = *self.finish_by.get_or_insert_with(|| Instant::now() + FINISH_TIMEOUT);
            return match self.drain()? {
                false if Instant::now() >= finish_by => Err(self.sender.failed("the broker does not answer")),
                is_done => Ok(is_done),
            };
        };
        self.sender.check()?;
        self.send_changes(Due::All)?;
        self.sender.send_held()?;
        // Other instances may still write in the same transaction, so the producer is never idle; the commit awaits
        // what was written. A transaction waits for its broker until the broker has aborted it.
        if !self.has_left && self.sender.overflow.borrow().is_empty() {
            transactions.finish();
            self.has_left = true;
        }
        let is_done = self.has_left && transactions.is_committed().map_err(|problem| self.sender.failed(problem))?;
        self.sender.check().map(|()| is_done)
    }

    fn has_room(&self) -> bool {
        // After a failure there is room, so that the failure is reported with the next write.
        if self.sender.send_held().is_err() || self.sender.check().is_err() {
            return true;
        }
        self.sender.overflow.borrow().is_empty()
            && self.sender.deliveries.waiting.load(Ordering::Acquire) < ROOM_MESSAGES
            && self.sender.deliveries.bytes.load(Ordering::Acquire) < ROOM_BYTES
    }

    fn hands_over(&self) -> bool {
        self.sender.is_away()
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        if self.sender.transactions.is_some() || self.sender.takes_back.is_some() { Some(self) } else { None }
    }
}

/// Messages of the transaction become visible when it is committed. Without transactions a checkpoint waits for the
/// broker, and gets the messages that wait if that is away.
impl TransactionalSink for KafkaSink {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        let is_drained = self.drain()?;
        if let Some(transactions) = &self.sender.transactions {
            return Ok(is_drained.then(|| transactions.prepared()));
        }
        if is_drained {
            return Ok(Some(String::new()));
        }
        // Messages that are taken back and given to a new producer have their time once more there.
        if let Some(timeout) = self.timeout
            && self.sender.deliveries.health.oldest().is_some_and(|oldest| oldest >= timeout)
        {
            return Err(self.sender.failed(format!("the broker has taken nothing for {timeout:?}")));
        }
        if self.sender.is_away() && self.sender.take_back()? { Ok(Some(self.sender.saved())) } else { Ok(None) }
    }

    fn commit(&mut self, epoch: u64) -> Result<bool, SinkError> {
        let Some(transactions) = &self.sender.transactions else { return Ok(true) };
        transactions.commit(epoch);
        transactions.is_committed().map_err(|problem| self.sender.failed(problem))
    }

    /// Rows written after a checkpoint must not become final with it.
    fn waits_for_commit(&self) -> bool {
        self.sender.transactions.is_some()
    }

    /// A transaction that failed is aborted, by us or by the broker when its time is over.
    fn has_rolled_back(&mut self) -> bool {
        let Some(transactions) = &self.sender.transactions else { return false };
        self.sender.check().is_err() || transactions.is_committed().is_err()
    }
}
