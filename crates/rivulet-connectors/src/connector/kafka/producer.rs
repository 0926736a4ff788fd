//! The producer of a sink, with transactions and without: what became of its messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdkafka::Message;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use super::client::{Bounded, log};
use crate::connector::Health;
use crate::formats::FormatError;
use crate::reach::AllowedHosts;

/// The deliveries of messages.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// The number of messages on their way, and their bytes.
    pub(super) waiting: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    /// The first failure.
    pub(super) failed: Mutex<Option<String>>,
    /// The last problem of the connections that the library has reported since a message was delivered.
    pub(super) problem: Mutex<Option<String>>,
    pub(super) has_problem: AtomicBool,
    /// Whether a message that the broker refuses is left out and counted, instead of being a failure.
    pub(super) leaves_out: bool,
    /// Whether the messages on their way are being taken back from the library, and those that it has given back.
    pub(super) takes_back: AtomicBool,
    pub(super) taken_back: Mutex<Vec<Held>>,
    pub(super) health: Arc<Health>,
    /// The hosts that the producer may connect to.
    pub(super) reach: AllowedHosts,
}

/// A message that the library does not have.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) topic: Option<Box<str>>,
    pub(super) key: Option<Box<[u8]>>,
    pub(super) payload: Option<Box<[u8]>>,
}

/// Receives a producer's reports on its messages.
#[derive(Clone)]
pub(super) struct Context(pub(super) Arc<Deliveries>);

impl Context {
    pub(super) fn new(health: &Arc<Health>, reach: &AllowedHosts) -> Self {
        Self::leaving_out(health, reach, false)
    }

    /// For a sink that leaves out messages which the broker refuses, if `leaves_out`.
    pub(super) fn leaving_out(health: &Arc<Health>, reach: &AllowedHosts, leaves_out: bool) -> Self {
        let (health, reach) = (health.clone(), reach.clone());
        Self(Arc::new(Deliveries { health, reach, leaves_out, ..Deliveries::default() }))
    }

    pub(super) fn health(&self) -> &Health {
        &self.0.health
    }
}

impl Bounded for Context {
    fn reach(&self) -> &AllowedHosts {
        &self.0.reach
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    /// The library connects again by itself; the sink decides whether messages wait for that.
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!("Kafka: {error}: {reason}");
        let mut problem = self.0.problem.lock();
        // "All brokers are away" says less than the reason why one of them is.
        match error {
            KafkaError::Global(RDKafkaErrorCode::AllBrokersDown) => _ = problem.get_or_insert(reason.to_owned()),
            _ => *problem = Some(reason.to_owned()),
        }
        drop(problem);
        self.0.has_problem.store(true, Ordering::Release);
    }
}

impl ProducerContext for Context {
    /// The size of the message in bytes.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, bytes: usize) {
        match result {
            Ok(_) => {
                if self.0.has_problem.swap(false, Ordering::AcqRel) {
                    *self.0.problem.lock() = None;
                }
                self.0.health.take(1, bytes);
            }
            Err((_, message)) if self.0.takes_back.load(Ordering::Acquire) => {
                let (key, payload) = (message.key().map(Box::from), message.payload().map(Box::from));
                self.0.taken_back.lock().push(Held { topic: Some(message.topic().into()), key, payload });
            }
            Err((error, _)) if self.0.leaves_out => self.0.health.leave_out(1, &error.to_string()),
            Err((error, _)) => _ = self.0.failed.lock().get_or_insert_with(|| error.to_string()),
        }
        self.0.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why a sink cannot be opened.
pub(super) enum OpenError {
    Format(FormatError),
    Kafka(KafkaError),
    /// Transactions are not possible; the text may contain a hint.
    Transaction(String),
}
