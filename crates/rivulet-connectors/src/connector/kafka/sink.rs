//! Messages of rows.
//!
//! What must hold: an error of the broker about any message ends the query; nothing is taken for delivered that was not. What waits
//! for the broker is bounded: above a mark there is no room, far below the bound at which a write would have to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rivulet_dataflow::{Batch, Refusals, Sink, SinkError, SlotTable};

use super::key::{KeyEncoder, newest};
use crate::connector::outgoing::Outgoing;
use crate::formats::{FormatError, RowFormat};

/// How many messages may wait in the library.
pub(super) const QUEUE_MESSAGES: usize = 500_000;

/// Above this many, there is no room.
const ROOM_MESSAGES: usize = QUEUE_MESSAGES / 4;

/// How long a write waits when there is no room all the same, before it gives up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the end waits for the broker.
const FINISH_TIMEOUT: Duration = Duration::from_secs(120);

/// What became of messages.
#[derive(Debug, Default)]
struct Deliveries {
    /// On their way.
    waiting: AtomicUsize,
    /// The first that failed.
    failed: Mutex<Option<String>>,
}

#[derive(Clone, Default)]
struct Context(Arc<Deliveries>);

impl ClientContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            self.0.failed.lock().get_or_insert_with(|| error.to_string());
        }
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
    /// Whether only the newest row of each key counts.
    changes: bool,
}

/// The way to the broker.
struct Sender {
    producer: ThreadedProducer<Context>,
    deliveries: Arc<Deliveries>,
    topic: String,
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
        let sender = Sender { producer, deliveries, topic: topic.to_owned() };
        Ok(Self { sender, outgoing, key, changes })
    }

    fn write_changes(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let Some(key) = &mut self.key else { return Err(self.sender.failed("a changing result has no key")) };
        let keys = key.encode(batch);
        let encoded = self.outgoing.encode(&Batch { retracts: None, ..batch.clone() })?;
        newest(keys).into_iter().try_for_each(|row| {
            let payload = (!batch.is_retraction(row)).then(|| encoded.row(row));
            self.sender.send(Some(keys.row(row)), payload)
        })
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

    /// Hands one message to the library, which copies it.
    fn send(&self, key: Option<&[u8]>, payload: Option<&[u8]>) -> Result<(), SinkError> {
        let mut record = BaseRecord::<[u8], [u8]>::to(&self.topic);
        record.key = key;
        record.payload = payload;
        self.deliveries.waiting.fetch_add(1, Ordering::AcqRel);
        let sent = self.send_patiently(record);
        if sent.is_err() {
            self.deliveries.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        sent
    }

    /// Waits for room, which [`Sink::has_room`] has told the host to do already, within bounds.
    fn send_patiently(&self, mut record: BaseRecord<'_, [u8], [u8]>) -> Result<(), SinkError> {
        let mut deadline = None;
        loop {
            record = match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => back,
                Err((error, _)) => return Err(self.failed(error)),
            };
            if Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + WRITE_TIMEOUT) {
                return Err(self.failed("the broker takes nothing"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Sink for KafkaSink {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        self.sender.check()?;
        if self.changes { self.write_changes(batch) } else { self.write_rows(batch) }
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        // The library sends by itself, a few milliseconds after it was given the first message of a batch.
        self.sender.check()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        let flushed = self.sender.producer.flush(FINISH_TIMEOUT);
        self.sender.check()?;
        flushed.map_err(|error| self.sender.failed(error))?;
        // The callbacks of the last ones run in another thread.
        let deadline = Instant::now() + FINISH_TIMEOUT;
        while self.sender.deliveries.waiting.load(Ordering::Acquire) > 0 {
            if Instant::now() >= deadline {
                return Err(self.sender.failed("the broker does not answer"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.sender.check()
    }

    fn has_room(&self) -> bool {
        self.sender.deliveries.waiting.load(Ordering::Acquire) < ROOM_MESSAGES
    }
}
