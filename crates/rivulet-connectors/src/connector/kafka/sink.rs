//! Writes rows as messages, in transactions if that is requested.
//!
//! What must hold: an error of the broker about any message ends the query; no message counts as delivered unless it
//! was. The messages that wait for the broker are bounded: above a mark, far below the bound of the library, there is
//! no room; messages that the library still refuses wait here. Nothing here waits for the broker.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use rivulet_dataflow::{Batch, Sink, SinkError, TransactionalSink};

use super::key::KeyEncoder;
use super::newest::{Due, Newest};
use super::producer::{Context, Deliveries, OpenError};
use super::transaction::Transactions;
use crate::connector::outgoing::Outgoing;
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
    topic: String,
    /// Messages for which the library had no room, in order; tried again whenever the sink is asked for room.
    overflow: RefCell<VecDeque<Held>>,
}

/// A message that is held here.
struct Held {
    topic: Option<Box<str>>,
    key: Option<Box<[u8]>>,
    payload: Option<Box<[u8]>>,
}

impl KafkaSink {
    #[expect(clippy::too_many_arguments, reason = "each says another thing of the topic")]
    pub(super) fn open(
        config: &ClientConfig,
        topic: &str,
        format: &RowFormat,
        schema: &SchemaRef,
        changes: bool,
        key: Option<KeyEncoder>,
        output: Option<OutputRows>,
        transactions: Option<Arc<Transactions>>,
        health: &Arc<Health>,
    ) -> Result<Self, OpenError> {
        // A retraction is a message without value, or says so itself. No message needs a mark.
        let outgoing = Outgoing::new(format, schema, false).map_err(OpenError::Format)?;
        let producer = match &transactions {
            Some(transactions) => transactions.producer().clone(),
            None => {
                let made =
                    ThreadedProducer::from_config_and_context(config, Context::leaving_out(health, output.is_some()));
                made.map_err(OpenError::Kafka)?
            }
        };
        let deliveries = producer.context().0.clone();
        let overflow = RefCell::default();
        let sender = Sender { producer: Some(producer), transactions, deliveries, topic: topic.to_owned(), overflow };
        let (newest, columns) = ((changes && !format.has_changes()).then(Newest::default), schema.fields().len());
        Ok(Self { sender, outgoing, key, output, columns, newest, finish_by: None, has_left: false })
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
        // To keep the order, held messages go first.
        if !overflow.is_empty() || !self.try_send(topic, key, payload)? {
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
            deliveries.health.stand(problem);
        }
    }

    fn is_idle(&self) -> bool {
        self.overflow.borrow().is_empty() && self.deliveries.waiting.load(Ordering::Acquire) == 0
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Messages on their way are abandoned. The library takes a while for that, and nothing waits for it.
        let (producer, transactions) = (self.producer.take(), self.transactions.take());
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
            tracing::debug!(topic = self.topic, "Kafka: the producer was dropped at once: {error}");
        }
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
    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        if self.sender.transactions.is_some() { Some(self) } else { None }
    }
}

/// Messages of the transaction become visible when it is committed.
impl TransactionalSink for KafkaSink {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        let is_drained = self.drain()?;
        Ok(self.sender.transactions.as_ref().filter(|_| is_drained).map(|transactions| transactions.prepared()))
    }

    fn commit(&mut self, epoch: u64) -> Result<bool, SinkError> {
        let Some(transactions) = &self.sender.transactions else { return Ok(true) };
        transactions.commit(epoch);
        transactions.is_committed().map_err(|problem| self.sender.failed(problem))
    }

    /// Rows written after a checkpoint must not become final with it.
    fn waits_for_commit(&self) -> bool {
        true
    }

    /// A transaction that failed is aborted, by us or by the broker when its time is over.
    fn has_rolled_back(&mut self) -> bool {
        self.sender.check().is_err()
            || self.sender.transactions.as_ref().is_some_and(|transactions| transactions.is_committed().is_err())
    }
}
