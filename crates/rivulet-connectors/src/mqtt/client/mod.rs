//! The connection to an external broker; the whole engine shares one.
//!
//! A [`Client`] keeps one connection, and makes it again after any failure. Messages that it receives go to the
//! [`Router`]; messages that the engine publishes wait in a bounded queue. It runs as one task on the tokio runtime
//! that starts it, which may have a single thread.

mod backoff;
mod connect;
mod in_flight;
mod link;
mod options;
mod shared;
mod subscriptions;
mod turn;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_dataflow::{Clock, LogPosition};
use rustls::pki_types::ServerName;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::acknowledge::DedupWindows;
use super::codec::Qos;
use super::publisher::{Outbound, Publisher};
use super::received::Received;
use super::router::Router;
use super::supervise::{Supervisor, catch_panic};
use super::topic::{self, TopicError};
use crate::notices::Notices;
use crate::tls::{self, TlsError};
use backoff::{Backoff, GOOD_CONNECTION};
use in_flight::InFlight;
use link::{End, Outgoing};
use shared::{Count, Counters, Shared};
use subscriptions::Subscriptions;

pub(super) use options::random;
pub use options::{AddressError, BrokerAddress, ClientOptions};

/// The interval at which a lasting failure is logged again.
const REPEAT_WARNING: Duration = Duration::from_secs(60);

/// The most refused filters that a status names.
const REFUSED_SHOWN_MAX: usize = 20;

/// Why a client cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The certificates cannot be read, or are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client id is empty, which only some brokers accept.
    #[error("the client id is empty\nhint: leave it out to get a random one")]
    EmptyClientId,
}

/// The state of a client's connection, and its counts since the client was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientStatus {
    /// Whether there is a connection.
    pub connected: bool,
    /// Since when this has been so, microseconds since the Unix epoch.
    pub since_us: i64,
    /// Why the last connection ended or could not be made, with a hint.
    pub last_error: Option<String>,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Reconnects after which events may be missing: the broker did not keep them.
    pub gaps: u64,
    /// Filters that are or will be subscribed to.
    pub subscriptions: usize,
    /// Whether the broker has agreed to all of them.
    pub subscribed: bool,
    /// Filters that the broker has refused, with the reason; at most 20.
    pub refused_subscriptions: Vec<(String, String)>,
    /// Messages received.
    pub messages_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Messages that wait to be sent or acknowledged.
    pub queued_messages: usize,
    /// Their size in bytes.
    pub queued_bytes: usize,
    /// Messages of QoS 0 that were being written when the connection broke.
    pub lost_messages: u64,
    /// Messages larger than the broker accepts.
    pub too_large_messages: u64,
    /// Messages that the broker has acknowledged with an error.
    pub refused_messages: u64,
    /// Events dropped to break a deadlock of full queues.
    pub deadlock_events: u64,
    /// Messages that were skipped because the broker sent them once for each of several overlapping filters, and one
    /// copy is enough.
    pub copied_messages: u64,
    /// Messages of QoS 0 that came after the router was closed, or for which some inbox had no room before their
    /// connection ended.
    pub unread_messages: u64,
    /// Messages that the broker had retained before they were subscribed to. They go to no query.
    pub retained_messages: u64,
    /// Messages of the broker that were passed over because they are larger than
    /// [`ClientOptions::packet_bytes_max`].
    pub too_large_events: u64,
    /// How often the connection was cut short by a panic of this program.
    pub panics: u64,
    /// Two filters that overlap in part while the broker does not support subscription identifiers: it may send
    /// messages twice that match both. MQTT 5 prevents it.
    pub partial_overlap: Option<(String, String)>,
}

impl ClientStatus {
    /// Why there is no connection, if there is none.
    pub fn problem(&self) -> Option<String> {
        let why = || self.last_error.clone().unwrap_or_else(|| "there is no connection to the broker yet".to_owned());
        (!self.connected).then(why)
    }
}

/// A connection to a broker that is made again whenever it fails. Dropped without [`Client::shutdown`], it ends at
/// once.
pub struct Client {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Starts to connect. The broker may be absent: the client tries again and again.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(options: ClientOptions, router: Arc<Router>, clock: Arc<dyn Clock>) -> Result<Self, ClientError> {
        if options.client_id.is_empty() {
            return Err(ClientError::EmptyClientId);
        }
        let tls = match options.address.tls {
            true => Some(tls::connector(&options.tls, &options.address.host)?),
            false => None,
        };
        let shared = Arc::new(Shared {
            outbound: Arc::new(Outbound::new(options.outbound_bytes_max, &options.linger)),
            options,
            router,
            clock,
            subscriptions: Mutex::default(),
            in_flight: Mutex::new(InFlight::new()),
            acknowledgements: Mutex::default(),
            dedup_windows: DedupWindows::default(),
            waits_for_acknowledgements: AtomicBool::new(false),
            has_overlaps: AtomicBool::new(false),
            supervisor: Supervisor::default(),
            notices: Notices::default(),
            stop: watch::Sender::new(None),
            state: Mutex::default(),
            counters: Counters::default(),
        });
        shared.set_state(false, None);
        let task = tokio::spawn(run(shared.clone(), tls));
        Ok(Self { shared, task: Mutex::new(Some(task)) })
    }

    /// Subscribes to filters and counts the users of each. Takes effect when there is a connection.
    ///
    /// Fails, and changes nothing, if one of them is no filter.
    pub fn subscribe<'f>(&self, filters: impl IntoIterator<Item = &'f str> + Clone) -> Result<(), TopicError> {
        filters.clone().into_iter().try_for_each(topic::check_filter)?;
        self.change(filters, Subscriptions::add);
        Ok(())
    }

    /// Takes back [`Client::subscribe`]; the broker is told when the last user of a filter is gone.
    pub fn unsubscribe<'f>(&self, filters: impl IntoIterator<Item = &'f str>) {
        self.change(filters, Subscriptions::remove);
    }

    fn change<'f>(&self, filters: impl IntoIterator<Item = &'f str>, change: fn(&mut Subscriptions, &str) -> bool) {
        let mut subscriptions = self.shared.subscriptions.lock();
        let had_partial_overlap = subscriptions.partial_overlap().is_some();
        let changes = filters.into_iter().filter(|filter| change(&mut subscriptions, filter)).count();
        // Stored while the lock is held, so that the last value stored is the current one.
        self.shared.has_overlaps.store(subscriptions.has_overlaps(), Ordering::Relaxed);
        if !had_partial_overlap {
            self.shared.warn_of_overlap(&subscriptions);
        }
        drop(subscriptions);
        if changes > 0 {
            self.shared.outbound.wake.notify_one();
        }
    }

    /// Notes a message that an earlier process had in its log and may not have acknowledged. If it comes again, it is
    /// only acknowledged.
    pub fn remember(&self, message: &Received<'_>, position: LogPosition) {
        self.shared.dedup_windows.remember(message, position);
    }

    /// The publisher of results.
    pub fn publisher(&self) -> Arc<dyn Publisher> {
        self.shared.outbound.clone()
    }

    /// The state and the counts of the client.
    pub fn status(&self) -> ClientStatus {
        let shared = &self.shared;
        let count = |what| shared.counters.get(what);
        let mut status = ClientStatus {
            reconnects: count(Count::Connections).saturating_sub(1),
            gaps: count(Count::Gaps),
            messages_in: count(Count::MessagesIn),
            bytes_in: count(Count::BytesIn),
            messages_out: count(Count::MessagesOut),
            bytes_out: count(Count::BytesOut),
            queued_messages: shared.outbound.queued_messages(),
            queued_bytes: shared.outbound.queued_bytes(),
            lost_messages: count(Count::LostMessages),
            too_large_messages: count(Count::TooLargeMessages),
            refused_messages: count(Count::RefusedMessages),
            deadlock_events: count(Count::DeadlockEvents),
            copied_messages: count(Count::CopiedMessages),
            unread_messages: count(Count::UnreadMessages),
            retained_messages: count(Count::RetainedMessages),
            too_large_events: count(Count::TooLargeEvents),
            panics: shared.supervisor.panics(),
            ..ClientStatus::default()
        };
        {
            let state = shared.state.lock();
            status.connected = state.connected;
            status.since_us = state.since_us;
            status.last_error.clone_from(&state.last_error);
        }
        let subscriptions = shared.subscriptions.lock();
        status.subscriptions = subscriptions.len();
        status.subscribed = status.connected && subscriptions.all_granted();
        status.refused_subscriptions = subscriptions.refused(REFUSED_SHOWN_MAX);
        status.partial_overlap = subscriptions.partial_overlap().map(|(a, b)| (a.to_owned(), b.to_owned()));
        status
    }

    /// Stops: sends queued messages for at most `limit`, then disconnects. Returns the number of messages that were
    /// left. A second call returns at once.
    pub async fn shutdown(&self, limit: Duration) -> usize {
        let Some(mut task) = self.task.lock().take() else { return self.shared.outbound.queued_messages() };
        self.shared.stop.send_replace(Some(Instant::now() + limit));
        // The task keeps to the limit unless the socket accepts no byte; then it is ended here.
        let grace = limit + Duration::from_millis(500);
        if tokio::time::timeout(grace, &mut task).await.is_err() {
            task.abort();
            let _ = task.await;
        }
        self.shared.set_state(false, None);
        self.shared.outbound.queued_messages()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

/// Connects, works the connection, and connects again, until it is told to stop.
async fn run(shared: Arc<Shared>, tls: Option<(TlsConnector, ServerName<'static>)>) {
    let broker = &shared.options.address;
    let mut stop = shared.stop.subscribe();
    let mut outgoing = Outgoing::default();
    let mut backoff = Backoff::new(&shared.options);
    let mut warnings = Warnings::default();
    while stop.borrow_and_update().is_none() {
        let connecting = pin!(connect::connect(&shared.options, tls.as_ref()));
        let connected = tokio::select! {
            connected = catch_panic(connecting) => {
                connected.unwrap_or_else(|panic| Err(shared.defect(panic)))
            }
            _ = stop.changed() => break,
        };
        let error = match connected {
            Err(error) => error,
            Ok(connection) => {
                let started = Instant::now();
                let session_present = connection.terms.session_present;
                let is_first = shared.counters.get(Count::Connections) == 0;
                // Without a session the broker has kept nothing; with a session it keeps only events of QoS 1.
                let has_kept = session_present && shared.options.qos > Qos::AtMostOnce;
                let is_gap = !is_first && !has_kept;
                shared.counters.add(Count::Connections, 1);
                shared.counters.add(Count::Gaps, u64::from(is_gap));
                {
                    let mut subscriptions = shared.subscriptions.lock();
                    subscriptions.connected(session_present, connection.terms.subscription_identifiers);
                    shared.warn_of_overlap(&subscriptions);
                }
                shared.in_flight.lock().connected();
                shared.acknowledgements.lock().clear();
                shared.set_state(true, None);
                tracing::info!(%broker, session_present, gap = is_gap, "connected to the broker");
                let end = catch_panic(pin!(link::run(&shared, connection, &mut outgoing))).await;
                let end = end.unwrap_or_else(|panic| End::Failed(shared.defect(panic)));
                let lived = started.elapsed();
                if lived >= GOOD_CONNECTION {
                    warnings.clear();
                }
                match end {
                    End::Stopped => break,
                    End::Failed(error) => backoff.connection_ended(lived, error),
                }
            }
        };
        let error = error.to_string();
        warnings.warn(&shared, &error);
        shared.set_state(false, Some(error));
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            _ = stop.changed() => break,
        }
    }
    shared.set_state(false, None);
}

/// Logs each failure once, and again from time to time while it lasts.
#[derive(Default)]
struct Warnings {
    last: Option<(String, Instant)>,
}

impl Warnings {
    fn clear(&mut self) {
        self.last = None;
    }

    fn warn(&mut self, shared: &Shared, error: &str) {
        let broker = &shared.options.address;
        match &self.last {
            Some((text, at)) if text == error && at.elapsed() < REPEAT_WARNING => {
                tracing::debug!(%broker, error, "still no connection to the broker");
            }
            _ => {
                tracing::warn!(%broker, error, "no connection to the broker; trying again until there is one");
                self.last = Some((error.to_owned(), Instant::now()));
            }
        }
    }
}
