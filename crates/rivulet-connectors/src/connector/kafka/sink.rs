//! Messages of rows.
//!
//! What must hold: an error of the broker about any message ends the query; nothing is taken for delivered that was not. What waits
//! for the broker is bounded: above a mark there is no room, far below the bound of the library; what it does not take all the same waits here.
//! Nothing here waits for the broker.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use rivulet_dataflow::{Batch, Refusals, Sink, SinkError, SlotTable};

use super::key::KeyEncoder;
use super::newest::{Due, Newest};
use crate::connector::outgoing::Outgoing;
use crate::formats::{FormatError, RowFormat};

/// How many messages and kibibytes may wait in the library.
pub(super) const QUEUE_MESSAGES: usize = 500_000;
pub(super) const QUEUE_KIB: usize = 256 << 10;

/// Above this many messages or bytes there is no room.
const ROOM_MESSAGES: usize = QUEUE_MESSAGES / 4;
const ROOM_BYTES: usize = (QUEUE_KIB << 10) / 4;

/// How long the end may take.
const FINISH_TIMEOUT: Duration = Duration::from_secs(120);

/// What became of messages.
#[derive(Debug, Default)]
struct Deliveries {
    /// On their way, and how much that is.
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    /// The first that failed.
    failed: Mutex<Option<String>>,
}

#[derive(Clone, Default)]
struct Context(Arc<Deliveries>);

impl ClientContext for Context {}

impl ProducerContext for Context {
    /// How many bytes the message has.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, bytes: usize) {
        if let Err((error, _)) = result {
            self.0.failed.lock().get_or_insert_with(|| error.to_string());
        }
        self.0.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why a sink does not open.
pub(super) enum OpenError {
    Format(FormatError),
    Kafka(KafkaError),
}

/// Messages of one instance.
pub(super) struct KafkaSink {
    sender: Sender,
    outgoing: Outgoing,
    key: Option<KeyEncoder>,
    /// Of a changing result, of which only the newest row of each key counts.
    newest: Option<Newest>,
    /// Until when all has to be delivered.
    finish_by: Option<Instant>,
}

/// The way to the broker.
struct Sender {
    /// There until it is dropped.
    producer: Option<ThreadedProducer<Context>>,
    deliveries: Arc<Deliveries>,
    topic: String,
    /// What the library had no room for, in order; looked at again whenever somebody asks whether there is room.
    overflow: RefCell<VecDeque<Held>>,
}

/// A message that is held here.
struct Held {
    key: Option<Box<[u8]>>,
    payload: Option<Box<[u8]>>,
}

impl KafkaSink {
    pub(super) fn open(
        config: &ClientConfig,
        topic: &str,
        format: &RowFormat,
        schema: &SchemaRef,
        changes: bool,
        key: Option<KeyEncoder>,
    ) -> Result<Self, OpenError> {
        // A row that was taken back is a message without value, so none says what it is.
        let outgoing = Outgoing::new(format, schema, false).map_err(OpenError::Format)?;
        let context = Context::default();
        let deliveries = context.0.clone();
        let producer = ThreadedProducer::from_config_and_context(config, context).map_err(OpenError::Kafka)?;
        let overflow = RefCell::default();
        let sender = Sender { producer: Some(producer), deliveries, topic: topic.to_owned(), overflow };
        Ok(Self { sender, outgoing, key, newest: changes.then(Newest::default), finish_by: None })
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
        newest.send(due, |key, value| self.sender.send(Some(key), value))
    }

    fn write_rows(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let keys = self.key.as_mut().map(|key| key.encode(batch));
        let encoded = self.outgoing.encode(batch)?;
        (0..encoded.rows()).try_for_each(|row| self.sender.send(keys.map(|keys| keys.row(row)), Some(encoded.row(row))))
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

    /// Hands one message to the library, which copies it, or holds it until that has room.
    fn send(&self, key: Option<&[u8]>, payload: Option<&[u8]>) -> Result<(), SinkError> {
        let mut overflow = self.overflow.borrow_mut();
        // In order: what is held goes first.
        if !overflow.is_empty() || !self.try_send(key, payload)? {
            overflow.push_back(Held { key: key.map(Box::from), payload: payload.map(Box::from) });
        }
        Ok(())
    }

    /// Hands one message to the library; false if that has no room.
    fn try_send(&self, key: Option<&[u8]>, payload: Option<&[u8]>) -> Result<bool, SinkError> {
        let Some(producer) = &self.producer else { return Err(self.failed("it was given up")) };
        let bytes = key.map_or(0, <[u8]>::len) + payload.map_or(0, <[u8]>::len);
        let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(&self.topic, bytes);
        (record.key, record.payload) = (key, payload);
        // Before it is sent: it may be delivered before this thread goes on.
        self.deliveries.waiting.fetch_add(1, Ordering::AcqRel);
        self.deliveries.bytes.fetch_add(bytes, Ordering::AcqRel);
        let Err((error, _)) = producer.send(record) else { return Ok(true) };
        self.deliveries.waiting.fetch_sub(1, Ordering::AcqRel);
        self.deliveries.bytes.fetch_sub(bytes, Ordering::AcqRel);
        match error {
            KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) => Ok(false),
            error => Err(self.failed(error)),
        }
    }

    /// Hands what is held to the library, as far as that has room.
    fn send_held(&self) -> Result<(), SinkError> {
        let mut overflow = self.overflow.borrow_mut();
        while let Some(held) = overflow.front() {
            if !self.try_send(held.key.as_deref(), held.payload.as_deref())? {
                break;
            }
            overflow.pop_front();
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.overflow.borrow().is_empty() && self.deliveries.waiting.load(Ordering::Acquire) == 0
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // What is on its way is given up; the library takes its time to do so, and nobody waits for it.
        let producer = self.producer.take();
        let given_up = std::thread::Builder::new().name("kafka sink".into()).spawn(move || drop(producer));
        if let Err(error) = given_up {
            tracing::debug!(topic = self.topic, "Kafka: the producer was dropped at once: {error}");
        }
    }
}

impl Sink for KafkaSink {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        self.sender.check()?;
        if self.newest.is_some() { self.write_changes(batch) } else { self.write_rows(batch) }
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        // The library sends by itself, a few milliseconds after it was given the first message of a batch.
        self.sender.check()?;
        self.sender.send_held()?;
        self.send_changes(Due::ValuesAndGone)
    }

    /// All that was written has been taken by the broker.
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        self.sender.check()?;
        self.send_changes(Due::All)?;
        self.sender.send_held()?;
        if !self.sender.is_idle() {
            return Ok(None);
        }
        self.sender.check().map(|()| Some(String::new()))
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.finish_by = Some(Instant::now() + FINISH_TIMEOUT);
        self.sender.check()?;
        self.send_changes(Due::All)
    }

    fn is_finished(&mut self) -> Result<bool, SinkError> {
        self.sender.check()?;
        self.sender.send_held()?;
        if self.sender.is_idle() {
            // The last one may have failed since.
            return self.sender.check().map(|()| true);
        }
        match self.finish_by {
            Some(until) if Instant::now() >= until => Err(self.sender.failed("the broker does not answer")),
            _ => Ok(false),
        }
    }

    fn has_room(&self) -> bool {
        // After a failure there is room: to be told of it.
        if self.sender.send_held().is_err() || self.sender.check().is_err() {
            return true;
        }
        self.sender.overflow.borrow().is_empty()
            && self.sender.deliveries.waiting.load(Ordering::Acquire) < ROOM_MESSAGES
            && self.sender.deliveries.bytes.load(Ordering::Acquire) < ROOM_BYTES
    }
}
