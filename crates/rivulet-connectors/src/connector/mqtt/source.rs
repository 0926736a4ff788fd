//! Rows of messages that the router brings.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_dataflow::{Decoder, Polled, Reason, Refusals, Source, SourceError};

use super::host::MqttHost;
use super::inbox::{Messages, Queue, TopicInbox};
use super::no_topic;
use super::topic::Layout;
use crate::connector::{ConnectorError, Health};
use crate::mqtt::{InboxId, Route};

/// How long to wait when there is nothing.
const IDLE: Duration = Duration::from_millis(2);

/// The way of messages from the router to an inbox, until it is dropped.
struct Tap {
    host: Arc<dyn MqttHost>,
    filter: String,
    inbox: Arc<TopicInbox>,
    /// The inbox as the router knows it, while messages come.
    registered: Mutex<Option<InboxId>>,
    health: Arc<Health>,
    /// When it was last looked whether there is a connection, microseconds since the epoch.
    looked_us: AtomicI64,
}

/// How often it is looked whether there is a connection while nothing comes, microseconds.
const LOOK_US: i64 = 1_000_000;

impl Tap {
    /// Looks now and then whether messages can come.
    fn look(&self, now_us: i64) {
        if now_us.saturating_sub(self.looked_us.load(Ordering::Relaxed)) < LOOK_US {
            return;
        }
        self.looked_us.store(now_us, Ordering::Relaxed);
        match self.host.problem() {
            Some(problem) => self.health.stand(&problem),
            None => self.health.recover(),
        }
    }

    fn open(&self) -> Result<(), String> {
        let mut registered = self.registered.lock();
        if registered.is_some() {
            return Ok(());
        }
        let router = self.host.router();
        let inbox = router.register_inbox(self.inbox.clone());
        if let Err(error) = router.add(&[Route { filter: &self.filter, inbox, slot: 0 }]) {
            router.unregister_inbox(inbox);
            return Err(error.to_string());
        }
        self.host.subscribe(&self.filter);
        *registered = Some(inbox);
        Ok(())
    }

    fn close(&self) {
        if let Some(inbox) = self.registered.lock().take() {
            let router = self.host.router();
            self.host.unsubscribe(&self.filter);
            router.remove(&[Route { filter: &self.filter, inbox, slot: 0 }]);
            router.unregister_inbox(inbox);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.close();
    }
}

/// One partition of what matches a filter.
struct MqttSource {
    tap: Arc<Tap>,
    partition: usize,
    layout: Arc<Layout>,
    decoder: Box<dyn Decoder>,
    /// What was taken; empty between polls.
    messages: Messages,
}

/// Begins to read what matches a filter.
pub(super) fn open(
    host: &Arc<dyn MqttHost>,
    filter: &str,
    layout: Layout,
    partitions: usize,
    queue: Queue,
    health: &Arc<Health>,
) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let layout = Arc::new(layout);
    let inbox = Arc::new(TopicInbox::new(layout.clone(), partitions, queue));
    let tap = Arc::new(Tap {
        host: host.clone(),
        filter: filter.to_owned(),
        inbox,
        registered: Mutex::new(None),
        health: health.clone(),
        looked_us: AtomicI64::new(0),
    });
    tap.open().map_err(|problem| no_topic(filter, &problem))?;
    let partition = |partition| -> Result<Box<dyn Source>, ConnectorError> {
        let (tap, layout, decoder) = (tap.clone(), layout.clone(), layout.decoder()?);
        Ok(Box::new(MqttSource { tap, partition, layout, decoder, messages: Messages::default() }))
    };
    (0..partitions.max(1)).map(partition).collect()
}

impl Source for MqttSource {
    fn is_live(&self) -> bool {
        true
    }

    fn poll(&mut self, _rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        self.tap.inbox.take(self.partition, &mut self.messages);
        refusals.count(Reason::Overflow, std::mem::take(&mut self.messages.dropped));
        let events = &self.messages.events;
        // The oldest counts: what is said of latency is at least what it was.
        let Some(&arrival_us) = events.arrival_us().first() else {
            self.tap.look(now_us);
            return Ok(Polled::Nothing(IDLE));
        };
        // One that always has messages never comes to look.
        self.tap.health.recover();
        let (count, bytes) = (events.rows(), events.payload_bytes());
        let columns = self.layout.rows(&mut self.messages, &mut *self.decoder, refusals);
        self.messages.events.shrink_for(count, bytes);
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(Duration::ZERO),
            _ => Polled::Rows { columns, arrival_us: arrival_us.min(now_us) },
        })
    }

    /// A full inbox would hold up everybody behind the same connection.
    fn set_paused(&mut self, is_paused: bool) {
        if is_paused {
            self.tap.close();
        } else if let Err(error) = self.tap.open() {
            tracing::error!("a source gets no messages any more (a defect): {error}");
        }
    }
}
