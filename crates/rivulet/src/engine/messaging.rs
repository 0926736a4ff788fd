//! The engine's MQTT side: either a broker of its own or the client of another, on one thread with one runtime.
//!
//! What must hold: nothing is received before the catalog was loaded. The runtime does not turn until [`Messaging::open`];
//! what clients send before waits in the kernel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{
    Broker, BrokerAddress, BrokerOptions, Client, ClientOptions, ClientTls, Listener, PublishOptions, Publisher, Qos,
    Router, ServerTls, Version,
};
use rivulet_dataflow::Clock;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::config::{BrokerConfig, Config, EmbeddedBrokerConfig};
use crate::service::{ConnectionStatus, ErrorKind, ServiceError};

/// How long results may take to leave when the engine stops.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// A broker or a client, and the routes of what it receives.
pub(super) struct Messaging {
    router: Arc<Router>,
    side: Arc<Side>,
    options: PublishOptions,
    /// The runtime until it turns; then the thread on which it does.
    turning: Mutex<Turning>,
}

enum Side {
    Broker(Broker),
    Client(Client, String),
}

enum Turning {
    NotYet(Runtime),
    On { thread: JoinHandle<()>, stop: oneshot::Sender<()> },
    Over,
}

impl Messaging {
    /// Binds the embedded broker's address, or prepares the connection to the external broker.
    pub(super) fn start(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, ServiceError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| unavailable(format!("cannot start the MQTT thread: {error}")))?;
        let router = Arc::new(Router::new());
        let side = match (&config.broker, &config.embedded) {
            (Some(broker), _) => {
                let options = client_options(broker, config.outbound_bytes_max);
                let address = options.address.to_string();
                let _entered = runtime.enter();
                let client =
                    Client::start(options, router.clone(), clock).map_err(|error| split(&error.to_string()))?;
                Side::Client(client, address)
            }
            (None, Some(embedded)) => {
                let options = broker_options(embedded, config.outbound_bytes_max);
                let broker = runtime
                    .block_on(Broker::start(options, router.clone(), clock))
                    .map_err(|error| split(&error.to_string()))?;
                Side::Broker(broker)
            }
            (None, None) => {
                return Err(ServiceError::invalid("there is no broker: the embedded one is off and no other is named")
                    .with_hint("set mqtt.embedded.enabled = true, or mqtt.broker.url"));
            }
        };
        let qos = if config.sink_qos == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
        Ok(Self {
            router,
            side: Arc::new(side),
            options: PublishOptions { qos, retain: config.sink_retain },
            turning: Mutex::new(Turning::NotYet(runtime)),
        })
    }

    /// Lets messages come and go.
    pub(super) fn open(&self) -> Result<(), ServiceError> {
        let mut turning = self.turning.lock();
        let Turning::NotYet(runtime) = std::mem::replace(&mut *turning, Turning::Over) else { return Ok(()) };
        let (stop, stopped) = oneshot::channel();
        let side = self.side.clone();
        let thread = std::thread::Builder::new()
            .name("rivulet-mqtt".into())
            .spawn(move || {
                runtime.block_on(async {
                    // A dropped sender means stop as well.
                    let _ = stopped.await;
                    let left = match &*side {
                        Side::Broker(broker) => broker.shutdown(FLUSH_MAX).await,
                        Side::Client(client, _) => client.shutdown(FLUSH_MAX).await,
                    };
                    if left > 0 {
                        tracing::warn!(messages = left, "results were not sent before the end");
                    }
                });
            })
            .map_err(|error| unavailable(format!("cannot start the MQTT thread: {error}")))?;
        *turning = Turning::On { thread, stop };
        Ok(())
    }

    pub(super) fn router(&self) -> &Arc<Router> {
        &self.router
    }

    pub(super) fn publisher(&self) -> Arc<dyn Publisher> {
        match &*self.side {
            Side::Broker(broker) => broker.publisher(),
            Side::Client(client, _) => client.publisher(),
        }
    }

    /// How results are published.
    pub(super) fn publish_options(&self) -> PublishOptions {
        self.options
    }

    /// Asks the external broker for messages; the embedded one sees them all anyway.
    pub(super) fn subscribe<'f>(&self, filters: impl IntoIterator<Item = &'f str> + Clone) {
        if let Side::Client(client, _) = &*self.side
            && let Err(error) = client.subscribe(filters)
        {
            // Filters were checked when the application or query was.
            tracing::error!("a subscription was not made (a defect): {error}");
        }
    }

    /// Takes back [`Messaging::subscribe`].
    pub(super) fn unsubscribe<'f>(&self, filters: impl IntoIterator<Item = &'f str>) {
        if let Side::Client(client, _) = &*self.side {
            client.unsubscribe(filters);
        }
    }

    pub(super) fn embedded_address(&self) -> Option<SocketAddr> {
        match &*self.side {
            Side::Broker(broker) => broker.addresses().first().copied(),
            Side::Client(..) => None,
        }
    }

    pub(super) fn connections(&self) -> Vec<ConnectionStatus> {
        vec![match &*self.side {
            Side::Broker(broker) => ConnectionStatus {
                broker: broker.addresses().first().map_or_else(String::new, |address| format!("embedded, {address}")),
                connected: true,
                ..ConnectionStatus::default()
            },
            Side::Client(client, address) => {
                let status = client.status();
                ConnectionStatus {
                    broker: address.clone(),
                    connected: status.connected,
                    last_error: status.last_error,
                    reconnects: status.reconnects,
                    gaps: status.gaps,
                }
            }
        }]
    }

    /// Messages received that no query asked for.
    pub(super) fn messages_unrouted(&self) -> u64 {
        self.router.stats().unrouted_messages
    }

    /// Stops: sends what is queued, for a bounded time, and ends the thread.
    pub(super) fn stop(&self) {
        if let Turning::On { thread, stop } = std::mem::replace(&mut *self.turning.lock(), Turning::Over) {
            // If nobody listens any more, the thread has ended already.
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

fn client_options(config: &BrokerConfig, outbound_bytes_max: usize) -> ClientOptions {
    let mut options = ClientOptions::new(BrokerAddress {
        tls: config.tls,
        host: config.host.clone(),
        port: config.port,
        user: config.username.clone(),
        password: config.password.as_ref().map(|password| password.reveal().to_owned()),
    });
    options.version = if config.version_5 { Version::V5 } else { Version::V3 };
    options.qos = if config.qos == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
    options.tls = ClientTls { ca_file: config.ca_file.clone(), ..ClientTls::default() };
    options.outbound_bytes_max = outbound_bytes_max;
    if let Some(client_id) = &config.client_id {
        options.client_id.clone_from(client_id);
        // A name of one's own is what makes a session that the broker can keep.
        options.clean_session = config.qos == 0;
    }
    options
}

fn broker_options(config: &EmbeddedBrokerConfig, outbound_bytes_max: usize) -> BrokerOptions {
    let mut options = BrokerOptions::new(config.address);
    let tls = config
        .tls_files
        .as_ref()
        .map(|(certificate, key)| ServerTls { certificate_file: certificate.clone(), key_file: key.clone() });
    options.listeners = vec![Listener { address: config.address, tls }];
    options.users =
        config.credentials.iter().map(|(user, password)| (user.clone(), password.reveal().to_owned())).collect();
    options.connections_max = config.connections_max;
    options.outbound_bytes_max = outbound_bytes_max;
    options
}

/// An error text of a connector, with its hint in the place for hints.
fn split(text: &str) -> ServiceError {
    match text.split_once("\nhint: ") {
        Some((message, hint)) => unavailable(message.to_owned()).with_hint(hint),
        None => unavailable(text.to_owned()),
    }
}

fn unavailable(message: String) -> ServiceError {
    ServiceError::new(ErrorKind::Unavailable, message)
}
