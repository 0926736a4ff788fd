//! The MQTT side of the engine: either its own broker or a client of another one, on one thread with one runtime.
//!
//! What must hold: nothing is received before the catalog was loaded. The runtime does not run until
//! [`Messaging::open`]; messages that clients send before wait in the kernel.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::connector::{ConnectorContext, MqttConnection};
use rivulet_connectors::http_server::Hosts;
use rivulet_connectors::mqtt::{
    Broker, BrokerAddress, BrokerError, BrokerOptions, BrokerStats, Client, ClientFilter, ClientInfo, ClientOptions,
    ClientStatus, Linger, Listener, PublishOptions, Publisher, Qos, Received, Router, Version, WebSocketOptions,
};
use rivulet_dataflow::{Clock, LogPosition};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::broker_journal::BrokerJournal;
use crate::config::{BrokerConfig, Config, EmbeddedBrokerConfig};
use crate::service::{Access, BrokerAccess, ConnectionStatus, ErrorKind, ServiceError};

/// How long results may take to leave when the engine stops.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// How often the removal of retained messages waits for room on disk.
const FORGET_WAITS_MAX: usize = 1000;

/// A broker or a client, and the routes of the messages it receives.
pub(super) struct Messaging {
    router: Arc<Router>,
    side: Arc<Side>,
    options: PublishOptions,
    /// The pauses of the thread.
    linger: Arc<Linger>,
    /// The data of the embedded broker that outlives the process, if there is any.
    journal: OnceLock<Arc<BrokerJournal>>,
    /// The runtime until it runs; then the thread on which it does.
    turning: Mutex<Turning>,
}

enum Side {
    Broker(Broker),
    Client(Client, String),
    /// A network that the engine was given.
    Given(Arc<dyn Network>),
}

/// Where messages come from and go to, instead of a broker or a client of the engine's own: it gives messages to the
/// engine's router, and gets results.
pub trait Network: Send + Sync {
    /// Gives it the router. Called once, before everything else.
    ///
    /// # Errors
    /// It cannot work, and the engine does not start.
    fn attach(&self, _router: &Arc<Router>) -> Result<(), ServiceError> {
        Ok(())
    }

    /// The publisher of results.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// The publisher of the results of one more task.
    fn publisher_of_task(&self) -> Arc<dyn Publisher> {
        self.publisher()
    }

    /// An earlier process had a message in its log, and may not have acknowledged it.
    fn remember(&self, _message: &Received<'_>, _position: LogPosition) {}

    /// No messages go out any more.
    fn stop(&self) {}
}

impl Side {
    fn publisher(&self) -> Arc<dyn Publisher> {
        match self {
            Self::Broker(broker) => broker.publisher(),
            Self::Client(client, _) => client.publisher(),
            Self::Given(network) => network.publisher(),
        }
    }

    fn subscribe<'f>(&self, filters: impl IntoIterator<Item = &'f str> + Clone) {
        if let Self::Client(client, _) = self
            && let Err(error) = client.subscribe(filters)
        {
            // Filters were checked together with the application, query or source.
            tracing::error!("a subscription was not made (a defect): {error}");
        }
    }

    fn unsubscribe<'f>(&self, filters: impl IntoIterator<Item = &'f str>) {
        if let Self::Client(client, _) = self {
            client.unsubscribe(filters);
        }
    }
}

/// The connection that all queries share, as big queries see it.
struct CommonConnection {
    router: Arc<Router>,
    side: Arc<Side>,
}

impl MqttConnection for CommonConnection {
    fn router(&self) -> &Arc<Router> {
        &self.router
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        self.side.publisher()
    }

    fn problem(&self) -> Option<String> {
        match &*self.side {
            Side::Client(client, _) => client.status().problem(),
            Side::Broker(broker) => broker.last_panic().filter(|_| !broker.is_running()),
            Side::Given(_) => None,
        }
    }

    fn may_be_away(&self) -> bool {
        matches!(&*self.side, Side::Client(..))
    }

    fn subscribe(&self, filter: &str) {
        self.side.subscribe([filter]);
    }

    fn unsubscribe(&self, filter: &str) {
        self.side.unsubscribe([filter]);
    }

    /// If the broker is not there yet, or refuses, the status shows it, as with small queries.
    fn await_subscription(&self, _filter: &str) -> Result<(), String> {
        Ok(())
    }

    /// The server sends what is left before it ends.
    fn finish(&self) {}

    fn is_finished(&self) -> Result<bool, String> {
        Ok(true)
    }
}

enum Turning {
    NotYet(Runtime),
    On { thread: JoinHandle<usize>, stop: oneshot::Sender<()> },
    Over,
}

impl Messaging {
    /// Binds the embedded broker's address, or prepares the connection to the external one, unless a network is given.
    pub(super) fn start(
        config: &Config,
        access: &Arc<Access>,
        network: Option<Arc<dyn Network>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ServiceError> {
        let linger = Arc::<Linger>::default();
        let of_thread = linger.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(move || of_thread.pause())
            .build()
            .map_err(|error| unavailable(format!("cannot start the MQTT thread: {error}")))?;
        let router = Arc::new(Router::new());
        let side = match (network, &config.broker, &config.embedded) {
            (Some(network), ..) => {
                network.attach(&router)?;
                Side::Given(network)
            }
            (None, Some(broker), _) => {
                let options =
                    ClientOptions { linger: linger.clone(), ..client_options(broker, config.outbound_bytes_max) };
                let address = options.address.to_string();
                let _entered = runtime.enter();
                let client = Client::start(options, router.clone(), clock)
                    .map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()))?;
                Side::Client(client, address)
            }
            (None, None, Some(embedded)) => {
                let options = broker_options(embedded, access, config.outbound_bytes_max);
                let options = BrokerOptions { linger: linger.clone(), ..options };
                let broker = runtime
                    .block_on(Broker::start(options, router.clone(), clock))
                    .map_err(|error| broker_unavailable(&error))?;
                Side::Broker(broker)
            }
            (None, None, None) => {
                return Err(ServiceError::invalid("there is no broker: the embedded one is off and no other is named")
                    .with_hint("set mqtt.embedded.enabled = true, or mqtt.broker.url"));
            }
        };
        let qos = if config.sink_qos == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
        Ok(Self {
            router,
            side: Arc::new(side),
            options: PublishOptions { qos, retain: config.sink_retain, expiry_s: None },
            linger,
            journal: OnceLock::new(),
            turning: Mutex::new(Turning::NotYet(runtime)),
        })
    }

    /// A messaging side whose messages the given network receives and sends.
    pub(super) fn stepped(network: Arc<dyn Network>, config: &Config) -> Self {
        let qos = if config.sink_qos == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
        Self {
            router: Arc::new(Router::new()),
            side: Arc::new(Side::Given(network)),
            options: PublishOptions { qos, retain: config.sink_retain, expiry_s: None },
            linger: Arc::default(),
            journal: OnceLock::new(),
            turning: Mutex::new(Turning::Over),
        }
    }

    /// Takes over certificates, credentials and bounds of the embedded broker, if there is one.
    ///
    /// # Errors
    /// A certificate cannot be used. Then nothing has changed.
    pub(super) fn take_over(&self, config: &Config, access: &Arc<Access>) -> Result<(), ServiceError> {
        let (Side::Broker(broker), Some(embedded)) = (&*self.side, &config.embedded) else { return Ok(()) };
        let options = broker_options(embedded, access, config.outbound_bytes_max);
        let taken = broker.take_over(options);
        taken.map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()))
    }

    /// Restores the embedded broker's sessions and retained messages of an earlier process, and makes it save its own
    /// in the data folder. The log of events has the positions before `log_end`.
    ///
    /// # Errors
    /// The data folder cannot be used.
    pub(super) fn keep_sessions(&self, config: &Config, log_end: LogPosition) -> Result<(), ServiceError> {
        let (Side::Broker(broker), Some(embedded)) = (&*self.side, &config.embedded) else { return Ok(()) };
        if embedded.keeps_sessions {
            let journal = BrokerJournal::open(config, embedded)?;
            broker.keep_in(journal.clone(), log_end).map_err(unavailable)?;
            let _ = self.journal.set(journal);
        }
        Ok(())
    }

    /// Ends the sessions of a tenant at the embedded broker.
    pub(super) fn forget_sessions(&self, tenant: &str) {
        if let Side::Broker(broker) = &*self.side {
            broker.forget_sessions(tenant);
        }
    }

    /// Removes the retained messages of the embedded broker at and below a level of topics, on disk too.
    ///
    /// # Errors
    /// That cannot be saved. A further call goes on.
    pub(super) fn forget_retained(&self, level: &str) -> Result<(), ServiceError> {
        let Side::Broker(broker) = &*self.side else { return Ok(()) };
        let is_durable = || self.journal.get().is_none_or(|journal| journal.wait_all_durable(FLUSH_MAX));
        let mut waits = 0;
        let is_over = loop {
            match broker.forget_retained(level) {
                Some(true) => break is_durable(),
                Some(false) => {}
                // There may be room once what was gathered is on disk.
                None if waits < FORGET_WAITS_MAX && is_durable() => waits += 1,
                None => break false,
            }
        };
        is_over.then_some(()).ok_or_else(|| {
            unavailable(format!("it cannot be saved that there are no retained messages below '{level}/' any more"))
                .with_hint("look at the disk of the data folder, and try again")
        })
    }

    /// The journal of the embedded broker's sessions, if it saves them.
    pub(super) fn journal(&self) -> Option<&Arc<BrokerJournal>> {
        self.journal.get()
    }

    /// Messages come and go from now on.
    pub(super) fn open(&self) -> Result<(), ServiceError> {
        let mut turning = self.turning.lock();
        let Turning::NotYet(runtime) = std::mem::replace(&mut *turning, Turning::Over) else { return Ok(()) };
        let (stop, stopped) = oneshot::channel();
        let side = self.side.clone();
        let thread = std::thread::Builder::new()
            .name("rivulet-mqtt".into())
            .spawn(move || {
                runtime.block_on(async {
                    // A dropped sender also means stop.
                    let _ = stopped.await;
                    let left = match &*side {
                        Side::Broker(broker) => broker.shutdown(FLUSH_MAX).await,
                        Side::Client(client, _) => client.shutdown(FLUSH_MAX).await,
                        Side::Given(network) => {
                            network.stop();
                            0
                        }
                    };
                    if left > 0 {
                        tracing::warn!(messages = left, "results were not sent before the end");
                    }
                    left
                })
            })
            .map_err(|error| unavailable(format!("cannot start the MQTT thread: {error}")))?;
        *turning = Turning::On { thread, stop };
        Ok(())
    }

    pub(super) fn router(&self) -> &Arc<Router> {
        &self.router
    }

    pub(super) fn publisher(&self) -> Arc<dyn Publisher> {
        self.side.publisher()
    }

    /// Gives each task its publisher of results.
    pub(super) fn publishers_of_tasks(&self) -> impl Fn() -> Arc<dyn Publisher> + Send + Sync + 'static {
        let publisher = self.publisher();
        // The network holds the router, and the router holds tasks. Tasks that held the network would keep all three
        // alive for ever.
        let network = match &*self.side {
            Side::Given(network) => Some(Arc::downgrade(network)),
            Side::Broker(_) | Side::Client(..) => None,
        };
        move || match network.as_ref().and_then(Weak::upgrade) {
            Some(network) => network.publisher_of_task(),
            None => publisher.clone(),
        }
    }

    /// What sources and sinks of big queries use of it.
    pub(super) fn host(&self) -> ConnectorContext {
        let common = CommonConnection { router: self.router.clone(), side: self.side.clone() };
        ConnectorContext { mqtt: Some(Arc::new(common)), ..ConnectorContext::default() }
    }

    /// The options for publishing results.
    pub(super) fn publish_options(&self) -> PublishOptions {
        self.options
    }

    /// Subscribes at the external broker; the embedded one sees all messages anyway.
    pub(super) fn subscribe<'f>(&self, filters: impl IntoIterator<Item = &'f str> + Clone) {
        self.side.subscribe(filters);
    }

    /// Takes back [`Messaging::subscribe`].
    pub(super) fn unsubscribe<'f>(&self, filters: impl IntoIterator<Item = &'f str>) {
        self.side.unsubscribe(filters);
    }

    pub(super) fn embedded_address(&self) -> Option<SocketAddr> {
        match &*self.side {
            Side::Broker(broker) => broker.addresses().first().copied(),
            Side::Client(..) | Side::Given(_) => None,
        }
    }

    pub(super) fn connections(&self) -> Vec<ConnectionStatus> {
        let is_turning = self.is_turning();
        vec![match &*self.side {
            Side::Given(_) => ConnectionStatus::default(),
            Side::Broker(broker) => {
                let stats = broker.stats();
                ConnectionStatus {
                    broker: embedded_name(broker),
                    connected: is_turning && stats.running,
                    last_error: broker
                        .last_panic()
                        .or_else(|| self.journal.get().and_then(|journal| journal.problem())),
                    dropped: drops_of_broker(&stats),
                    ..ConnectionStatus::default()
                }
            }
            Side::Client(client, address) => {
                let status = client.status();
                ConnectionStatus {
                    broker: address.clone(),
                    connected: is_turning && status.connected,
                    dropped: drops_of_client(&status),
                    last_error: status.last_error,
                    reconnects: status.reconnects,
                    gaps: status.gaps,
                    refused_subscriptions: status.refused_subscriptions.into_iter().collect(),
                }
            }
        }]
    }

    /// The clients of the embedded broker that the filter wants.
    pub(super) fn clients(&self, filter: &ClientFilter) -> Result<Vec<ClientInfo>, ServiceError> {
        match &*self.side {
            Side::Broker(broker) => Ok(broker.clients(filter)),
            Side::Client(..) | Side::Given(_) => {
                let error = ServiceError::not_found("this server has no broker of its own");
                Err(error.with_hint("ask the broker that it is connected to for its clients"))
            }
        }
    }

    /// Whether the thread that receives and sends is running.
    fn is_turning(&self) -> bool {
        matches!(&*self.turning.lock(), Turning::On { thread, .. } if !thread.is_finished())
    }

    /// Whether messages can come and go; the error says why they cannot.
    pub(super) fn ready(&self) -> Result<(), ServiceError> {
        if !self.is_turning() {
            return Err(unavailable("the MQTT thread does not run".into()));
        }
        match &*self.side {
            Side::Given(_) => Ok(()),
            Side::Broker(broker) if broker.is_running() => Ok(()),
            Side::Broker(broker) => {
                let why = broker.last_panic().unwrap_or_else(|| "it does not listen".into());
                Err(unavailable(format!("the embedded broker ({}) is out of order: {why}", embedded_name(broker))))
            }
            Side::Client(client, address) => {
                let status = client.status();
                match (status.connected, status.last_error) {
                    (true, _) => Ok(()),
                    (false, None) => Err(unavailable(format!("not connected to the broker {address} yet"))),
                    (false, Some(error)) => {
                        let ServiceError { message, hint, .. } =
                            ServiceError::from_text(ErrorKind::Unavailable, &error);
                        let error = unavailable(format!("not connected to the broker {address}: {message}"));
                        Err(ServiceError { hint, ..error })
                    }
                }
            }
        }
    }

    /// Passes on a message that an earlier process had in its log, and may not have acknowledged.
    pub(super) fn remember(&self, message: &Received<'_>, position: LogPosition) {
        match &*self.side {
            Side::Broker(broker) => broker.remember(message, position),
            Side::Client(client, _) => client.remember(message, position),
            Side::Given(network) => network.remember(message, position),
        }
    }

    /// The number of messages received that no query reads.
    pub(super) fn messages_unrouted(&self) -> u64 {
        self.router.stats().unrouted_messages
    }

    /// Takes no more input. Messages that are not in an inbox are not acknowledged. Results still go out.
    pub(super) fn close_input(&self) {
        self.linger.end();
        self.router.close();
    }

    /// Stops: sends what is queued, for a bounded time, and ends the thread. Returns how many results were not sent.
    pub(super) fn stop(&self) -> usize {
        let Turning::On { thread, stop } = std::mem::replace(&mut *self.turning.lock(), Turning::Over) else {
            return 0;
        };
        // If the receiver is gone, the thread has ended already.
        let _ = stop.send(());
        let left = thread.join().unwrap_or_else(|_| match &*self.side {
            Side::Broker(broker) => broker.stats().queued_messages,
            Side::Client(client, _) => client.status().queued_messages,
            Side::Given(_) => 0,
        });
        if let Some(journal) = self.journal.get() {
            journal.close();
        }
        left
    }
}

/// The error of an embedded broker that cannot be started. If that is because of its address, the hint names the
/// configuration key.
fn broker_unavailable(error: &BrokerError) -> ServiceError {
    let refused = ServiceError::from_text(ErrorKind::Unavailable, &error.to_string());
    match (error, refused.hint.clone()) {
        (BrokerError::PortInUse { .. } | BrokerError::Listen { .. }, Some(hint)) => refused.with_hint(format!(
            "{hint}; it is set with --mqtt-address, RIVULET_MQTT_EMBEDDED_ADDRESS or mqtt.embedded.address in \
             rivulet.toml"
        )),
        _ => refused,
    }
}

fn embedded_name(broker: &Broker) -> String {
    broker.addresses().first().map_or_else(String::new, |address| format!("embedded, {address}"))
}

fn drops_of_broker(stats: &BrokerStats) -> BTreeMap<String, u64> {
    let mut drops = stats.dropped.by_reason();
    drops.insert("panics".to_owned(), stats.panics);
    drops
}

fn drops_of_client(status: &ClientStatus) -> BTreeMap<String, u64> {
    [
        ("lost_messages", status.lost_messages),
        ("too_large_messages", status.too_large_messages),
        ("refused_messages", status.refused_messages),
        ("deadlock_events", status.deadlock_events),
        ("copied_messages", status.copied_messages),
        ("unread_messages", status.unread_messages),
        ("retained_messages", status.retained_messages),
        ("too_large_events", status.too_large_events),
        ("panics", status.panics),
    ]
    .map(|(reason, count)| (reason.to_owned(), count))
    .into()
}

/// How a client of the external broker connects.
pub(crate) fn client_options(config: &BrokerConfig, outbound_bytes_max: usize) -> ClientOptions {
    let mut options = ClientOptions::new(BrokerAddress {
        tls: config.tls.is_some(),
        host: config.host.clone(),
        port: config.port,
        user: config.username.clone(),
        password: config.password.as_ref().map(|password| password.reveal().to_owned()),
    });
    options.version = if config.version_5 { Version::V5 } else { Version::V3 };
    options.qos = if config.qos == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
    options.tls = config.tls.clone().unwrap_or_default();
    options.outbound_bytes_max = outbound_bytes_max;
    options.packet_bytes_max = config.message_bytes_max;
    if let Some(client_id) = &config.client_id {
        options.client_id.clone_from(client_id);
        // With a fixed client id the broker can keep the session.
        options.clean_session = config.qos == 0;
    }
    options
}

fn broker_options(config: &EmbeddedBrokerConfig, access: &Arc<Access>, outbound_bytes_max: usize) -> BrokerOptions {
    let mut options = BrokerOptions::new(config.address);
    options.listeners = vec![Listener::new(config.address, config.tls.clone())];
    options.listeners.extend(config.websocket.as_ref().map(|websocket| {
        let hosts = Hosts::new(&websocket.hosts, websocket.address.ip());
        let checked = WebSocketOptions { hosts, origins: websocket.origins.clone() };
        Listener { websocket: Some(checked), ..Listener::new(websocket.address, config.tls.clone()) }
    }));
    options.users =
        config.credentials.iter().map(|(user, password)| (user.clone(), password.reveal().to_owned())).collect();
    options.authorizer = Some(Arc::new(BrokerAccess(access.clone())));
    options.limits = config.limits.clone();
    options.packet_bytes_max = config.message_bytes_max;
    options.trusted_proxies = config.trusted_proxies.clone();
    options.outbound_bytes_max = outbound_bytes_max;
    options
}

fn unavailable(message: String) -> ServiceError {
    ServiceError::new(ErrorKind::Unavailable, message)
}
