//! Rows from messages that the router delivers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_dataflow::{Decoder, Polled, Reason, Refusals, Source, SourceError};

use super::connection::MqttConnection;
use super::inbox::{Messages, Queue, TopicInbox};
use super::topic::{Layout, no_topic};
use crate::connector::{ConnectorError, Health};
use crate::mqtt::{InboxId, Route};

/// The wait when there is no message.
const IDLE: Duration = Duration::from_millis(2);

/// The route of messages from the router to an inbox, until it is dropped.
struct Tap {
    host: Arc<dyn MqttConnection>,
    filter: String,
    inbox: Arc<TopicInbox>,
    /// The router's number of the inbox, while messages come.
    registered: Mutex<Option<InboxId>>,
    health: Arc<Health>,
    /// When the connection was last checked, microseconds since the epoch.
    looked_us: AtomicI64,
}

/// The interval at which the connection is checked while no messages come, microseconds.
const LOOK_US: i64 = 1_000_000;

impl Tap {
    /// Checks now and then whether messages can come.
    fn look(&self, now_us: i64) {
        if now_us.saturating_sub(self.looked_us.load(Ordering::Relaxed)) < LOOK_US {
            return;
        }
        self.looked_us.store(now_us, Ordering::Relaxed);
        match self.host.problem() {
            Some(problem) => self.health.stand(&problem, 1),
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

/// One partition of the messages that match a filter.
struct MqttSource {
    tap: Arc<Tap>,
    partition: usize,
    layout: Arc<Layout>,
    decoder: Box<dyn Decoder>,
    /// The messages that were taken; empty between polls.
    messages: Messages,
}

/// Begins to read the messages that match a filter.
pub(super) fn open(
    host: &Arc<dyn MqttConnection>,
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
        // The oldest counts, so the reported latency is an upper bound.
        let Some(&arrival_us) = events.arrival_us().first() else {
            self.tap.look(now_us);
            return Ok(Polled::Nothing(IDLE));
        };
        // A source that always has messages never checks the connection.
        self.tap.health.recover();
        let (count, bytes) = (events.rows(), events.payload_bytes());
        let batch = self.layout.rows(&mut self.messages.events, &mut *self.decoder, refusals);
        self.messages.events.shrink_for(count, bytes);
        Ok(Polled::rows(batch, arrival_us.min(now_us)))
    }

    fn holds_rows(&self) -> bool {
        self.tap.inbox.has_messages(self.partition)
    }

    /// A full inbox would hold up all others behind the same connection.
    fn set_paused(&mut self, is_paused: bool) {
        if is_paused {
            self.tap.close();
        } else if let Err(error) = self.tap.open() {
            tracing::error!("a source gets no messages any more (a defect): {error}");
        }
    }
}
