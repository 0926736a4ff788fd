//! The embedded broker: MQTT 3.1.1 and 5.
//!
//! A message of QoS 2 goes to inboxes and subscribers with its PUBLISH ("method B" of MQTT 5, 4.3.3). Its packet
//! identifier is remembered with the session until the client's PUBREL, so the message counts once, however often it
//! comes.
//!
//! Every message that a client publishes goes to the engine's [`Router`] on the I/O task, before any fan-out to
//! subscribers; a query is never a subscription. When the router reports a full inbox, the broker stops reading the
//! connection of the message until there is room.
//!
//! Sessions and retained messages live in memory. If there is a [`Journal`], it also has the part that outlives the
//! process, as changes in their order ([`Broker::keep_in`]). PUBACKs wait until the journal has on disk what they
//! promise, and so does the report that a result has left.

mod addresses;
mod clients;
mod confirm;
mod connect;
mod connection;
mod core;
mod engine;
mod incoming;
mod journal;
mod link;
mod logins;
mod memory;
mod message;
mod options;
mod outbox;
mod packets;
pub mod proxy;
mod reading;
mod retained;
mod rights;
mod seats;
mod session;
mod shared;
mod slab;
mod stats;
mod subscriptions;
mod system;
mod tenants;
mod turn;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rivulet_dataflow::{Clock, LogPosition};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::core::{Core, Rewritten};
pub use self::core::{JournalContents, JournalSummary};
use super::acknowledge::DedupWindows;
use super::publisher::{Outbound, Publisher};
use super::received::Received;
use super::router::Router;
use super::supervise::{Pauses, Supervisor};
use super::websocket;
use crate::http_server::Encrypted;
use crate::notices::Notices;
use crate::sockets::keep_alive;
use crate::tls::{Acceptor, Certificates, begins_tls};
pub use clients::{ClientFilter, ClientInfo};
pub use journal::{Journal, Room};
use logins::Logins;
pub use options::{BrokerError, BrokerLimits, BrokerOptions, Listener};
pub use rights::{ClientAuthorizer, ClientLogin, ClientRights, NotAdmitted};
use seats::{Seat, Seats};
use shared::Shared;
pub use stats::{BrokerDrops, BrokerStats};

/// The interval at which sessions and wills are checked.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// How long the disk may take for what the broker writes to its journal when it starts.
const SAVED_WITHIN: Duration = Duration::from_secs(30);

/// The pause after a connection could not be accepted, usually because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running broker. Dropped without [`Broker::shutdown`], it ends at once.
pub struct Broker {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    listeners: Mutex<Vec<JoinHandle<()>>>,
    /// The tasks that publish results and do the housekeeping.
    helpers: [JoinHandle<()>; 2],
}

impl Broker {
    /// Listens on every address of the options, and serves the clients.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(
        options: BrokerOptions,
        router: Arc<Router>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BrokerError> {
        let mut sockets = Vec::new();
        let certificates = options.certificates()?.into_iter();
        let certificates = certificates.map(|one| Certificates::new("the embedded broker", one)).collect();
        for listener in &options.listeners {
            let address = listener.address;
            let failed = |error: io::Error| match error.kind() {
                io::ErrorKind::AddrInUse => BrokerError::PortInUse { address },
                _ => BrokerError::Listen { address, error },
            };
            let socket = TcpListener::bind(address).await.map_err(failed)?;
            let bound = socket.local_addr().map_err(failed)?;
            sockets.push((socket, bound));
        }
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(&options)),
            outbound: Arc::new(Outbound::new(options.outbound_bytes_max, &options.linger)),
            dedup_windows: DedupWindows::default(),
            journal: OnceLock::new(),
            seats: Seats::new(options.limits.connections_max, options.needs_login()),
            users: RwLock::new(options.users.clone()),
            certificates,
            options,
            router,
            clock,
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            supervisor: Supervisor::default(),
            login_memory: Default::default(),
            logins: Logins::default(),
            notices: Notices::default(),
        });
        shared.login_memory.set_bound(shared.options.limits.memory_bytes_max);
        let stop = watch::Sender::new(false);
        let mut addresses = Vec::new();
        let mut listeners = Vec::new();
        for (place, (socket, bound)) in sockets.into_iter().enumerate() {
            let Listener { tls, websocket, .. } = &shared.options.listeners[place];
            let (tls, websocket) = (tls.is_some(), websocket.is_some());
            tracing::info!(address = %bound, tls, websocket, "the embedded broker listens");
            addresses.push(bound);
            listeners.push(tokio::spawn(accept(shared.clone(), socket, place, stop.subscribe())));
        }
        let (for_results, for_house) = (shared.clone(), shared.clone());
        let helpers = [
            tokio::spawn(async move {
                let (shared, mut pauses) = (&*for_results, Pauses::default());
                let name = "publishing results";
                while shared.supervisor.run(name, &mut pauses, engine::publish_results(shared)).await.is_none() {}
            }),
            tokio::spawn(async move {
                let (shared, mut pauses) = (&*for_house, Pauses::default());
                while shared.supervisor.run("keeping house", &mut pauses, keep_house(shared)).await.is_none() {}
            }),
        ];
        Ok(Self { shared, addresses, stop, listeners: Mutex::new(listeners), helpers })
    }

    /// Takes over certificates, users and bounds of other options; the other options count only at a start. Connected
    /// clients stay, even if they could no longer connect, and so does what exceeds a new bound.
    ///
    /// # Errors
    /// A certificate that cannot be used; then nothing has changed.
    pub fn take_over(&self, options: BrokerOptions) -> Result<(), BrokerError> {
        let shared = &self.shared;
        for (certificates, prepared) in shared.certificates.iter().zip(options.certificates()?) {
            certificates.set(prepared);
        }
        shared.seats.set_connections_max(options.limits.connections_max);
        shared.core.lock().set_bounds(&options);
        shared.login_memory.set_bound(options.limits.memory_bytes_max);
        *shared.users.write() = options.users;
        Ok(())
    }

    /// The addresses it listens on, in the order of the options, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves a client over a stream that did not come through a listener, such as one in memory, until the client
    /// disconnects.
    pub fn serve(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let shared = self.shared.clone();
        let seat = shared.seats.add(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        async move { connection::serve(&shared, &seat, &mut stream, None).await }
    }

    /// The publisher of results. They reach subscribers and, like every published message, the router, so that a query
    /// may read the results of another.
    pub fn publisher(&self) -> Arc<dyn Publisher> {
        self.shared.outbound.clone()
    }

    /// Takes over the sessions and retained messages that an earlier process left in a journal, and keeps its own
    /// there. The log of events has the positions before `log_end`. To be called before any client connects. Blocks
    /// until the journal has on disk what that changes.
    ///
    /// # Errors
    /// Why the journal cannot be read or written.
    pub fn keep_in(&self, journal: Arc<dyn Journal>, log_end: LogPosition) -> Result<(), String> {
        self.shared.core.lock().restore(journal.clone(), self.shared.clock.clone(), log_end)?;
        // After a kill from here on, the journal must not end with the stop of the earlier process: clients may get
        // messages.
        let (end, deadline) = (journal.next().saturating_sub(1), Instant::now() + SAVED_WITHIN);
        while journal.durable() < end {
            if Instant::now() > deadline {
                return Err("the journal of the embedded broker does not get onto the disk".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_first = self.shared.journal.set(journal).is_ok();
        debug_assert!(is_first, "there is one journal");
        Ok(())
    }

    /// Notes a message that an earlier process had in its log and may not have acknowledged. If it comes again, it is
    /// only acknowledged. To be called behind [`Broker::keep_in`].
    pub fn remember(&self, message: &Received<'_>, position: LogPosition) {
        if self.shared.core.lock().is_done(message.client, message.packet_id, position) {
            return;
        }
        self.shared.dedup_windows.remember(message, position);
    }

    /// Ends the sessions of a tenant, those with a connection when it ends.
    pub fn forget_sessions(&self, tenant: &str) {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.shared.core.lock().forget_sessions(tenant, from);
        }
    }

    /// Removes some retained messages at and below a level of topics, as if each was replaced by an empty one. To be
    /// called until it returns true: none is left, and the journal has it. `None` if the journal has no room now.
    pub fn forget_retained(&self, level: &str) -> Option<bool> {
        self.shared.core.lock().forget_retained(level)
    }

    /// The state and the counts of the broker.
    pub fn stats(&self) -> BrokerStats {
        BrokerStats { running: self.is_running(), ..self.shared.stats() }
    }

    /// The first clients of those that the filter wants, by tenant, user and id.
    pub fn clients(&self, filter: &ClientFilter) -> Vec<ClientInfo> {
        let (mut page, mut from) = (BTreeMap::new(), Some(0));
        while let Some(at) = from {
            let core = self.shared.core.lock();
            from = core.list_clients(&mut page, at, filter);
            MutexGuard::unlock_fair(core);
        }
        page.into_values().collect()
    }

    /// Whether it listens and all its own tasks run; false after [`Broker::shutdown`].
    pub fn is_running(&self) -> bool {
        let listeners = self.listeners.lock();
        let has_ended = listeners.is_empty() || listeners.iter().chain(&self.helpers).any(JoinHandle::is_finished);
        self.shared.supervisor.is_up() && !has_ended
    }

    /// The message of the last panic that cut a task short.
    pub fn last_panic(&self) -> Option<String> {
        self.shared.supervisor.last()
    }

    /// Stops: publishes the results that are queued, tells the clients, and closes their connections, all within
    /// `limit`. Returns how many results were left. A second call returns at once.
    pub async fn shutdown(&self, limit: Duration) -> usize {
        let deadline = tokio::time::Instant::now() + limit;
        while self.shared.outbound.queued_messages() > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.stop.send_replace(true);
        self.shared
            .core
            .lock()
            .close_all(|version, out| packets::disconnect(version, packets::Reason::ServerShuttingDown, out));
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for mut listener in listeners {
            if tokio::time::timeout_at(deadline, &mut listener).await.is_err() {
                listener.abort();
                let _ = listener.await;
            }
        }
        self.helpers.iter().for_each(JoinHandle::abort);
        // The housekeeping task has ended.
        self.shared.core.lock().save_stopped();
        self.shared.outbound.queued_messages()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.listeners.lock().iter().for_each(JoinHandle::abort);
        self.helpers.iter().for_each(JoinHandle::abort);
    }
}

/// Accepts connections until told to stop, then waits for them to end. They end with this task.
async fn accept(shared: Arc<Shared>, socket: TcpListener, place: usize, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut pauses = Pauses::default();
    loop {
        let task = accept_until_stopped(&shared, &socket, place, &mut stop, &mut connections);
        if shared.supervisor.run("accepting connections", &mut pauses, task).await.is_some() {
            break;
        }
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

async fn accept_until_stopped(
    shared: &Arc<Shared>,
    socket: &TcpListener,
    place: usize,
    stop: &mut watch::Receiver<bool>,
    connections: &mut JoinSet<()>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            _ = stop.changed() => break,
        };
        match accepted {
            Ok((stream, from)) => {
                shared.seats.wait_closed().await;
                let Some(seat) = shared.seats.take(from.ip()) else {
                    let limit = shared.seats.connections_max();
                    shared.notices.say(|| {
                        tracing::warn!(
                            limit,
                            "a connection was refused: there are as many as allowed, by \
                             mqtt.embedded.connections_max and by how many files the process may open"
                        );
                    });
                    continue;
                };
                connections.spawn(serve(shared.clone(), seat, stream, place));
            }
            Err(error) => {
                shared.notices.say(|| tracing::warn!(%error, "a connection could not be accepted"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a client of the listener at this place of the options. Thousands of clients wait here at a time, so what most
/// of them do not need is boxed.
fn serve(
    shared: Arc<Shared>,
    mut seat: Seat,
    mut stream: TcpStream,
    place: usize,
) -> impl Future<Output = ()> + Send + 'static {
    let proxy = seat.address();
    // Not an async function, which would have room for its arguments twice.
    async move {
        let shared = &*shared;
        if shared.options.trusted_proxies.has_address(proxy) {
            let header = Box::pin(in_time(shared, &seat, proxy::read_header(&mut stream, proxy)));
            let Some(address) = header.await else {
                return shared.notices.say(|| {
                    tracing::warn!(%proxy, "a connection was closed: it is of mqtt.embedded.trusted_proxies, and does \
                        not begin with a header of the PROXY protocol");
                });
            };
            seat.move_to(address);
        }
        // Messages are written together where there are several; a single message should not wait.
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        match shared.certificates[place].acceptor() {
            Some(acceptor) => Box::pin(serve_encrypted(shared, &seat, stream, place, acceptor)).await,
            None if shared.options.listeners[place].websocket.is_some() => {
                Box::pin(serve_stream(shared, &seat, stream, place, None)).await;
            }
            None => connection::serve(shared, &seat, &mut stream, None).await,
        }
    }
}

/// Serves a client after a handshake of TLS.
async fn serve_encrypted(shared: &Shared, seat: &Seat, stream: TcpStream, place: usize, acceptor: Acceptor) {
    let handshake = async {
        if !begins_tls(&stream).await.ok()? {
            acceptor.failed("it does not speak TLS");
            return None;
        }
        acceptor.accept(stream).await
    };
    if let Some((stream, certificate)) = Box::pin(in_time(shared, seat, handshake)).await {
        serve_stream(shared, seat, stream, place, Some(Encrypted { certificate })).await;
    }
}

/// Serves a client whose connection is as its listener has it, encrypted or not.
async fn serve_stream(
    shared: &Shared,
    seat: &Seat,
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    place: usize,
    encrypted: Option<Encrypted>,
) {
    let certificate = encrypted.as_ref().and_then(|encrypted| encrypted.certificate.as_deref());
    let Some(options) = &shared.options.listeners[place].websocket else {
        return connection::serve(shared, seat, &mut stream, certificate).await;
    };
    let limit = Duration::from_millis(shared.options.connect_timeout_ms);
    let accepted = in_time(shared, seat, websocket::accept(stream, options, encrypted.is_some(), limit));
    if let Some(mut stream) = Box::pin(accepted).await {
        connection::serve(shared, seat, &mut stream, certificate).await;
    }
}

/// What a handshake results in; `None` if it takes too long, or the connection gives way to another one.
async fn in_time<T>(shared: &Shared, seat: &Seat, handshake: impl Future<Output = Option<T>>) -> Option<T> {
    let limit = Duration::from_millis(shared.options.connect_timeout_ms);
    tokio::select! {
        done = tokio::time::timeout(limit, handshake) => done.ok().flatten(),
        () = seat.gives_way() => None,
    }
}

async fn keep_house(shared: &Shared) {
    let mut interval = tokio::time::interval(HOUSEKEEPING);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let begun = Instant::now();
    let system_interval = Duration::from_secs(shared.options.limits.system_interval_s.into());
    let mut tells_at = (!system_interval.is_zero()).then_some(begun);
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = keep_journal_short(shared) => {}
        }
        let has_wills = {
            let mut core = shared.core.lock();
            core.keep_house(Instant::now());
            core.has_wills()
        };
        shared.dedup_windows.keep_house(Instant::now());
        if has_wills {
            shared.outbound.wake.notify_one();
        }
        if let Some(at) = tells_at.as_mut().filter(|at| **at <= Instant::now()) {
            *at += system_interval;
            let topics = system::topics(&shared.stats(), begun.elapsed());
            let mut core = shared.core.lock();
            topics.iter().for_each(|(topic, text)| core.tell(topic, text));
        }
    }
}

/// Rewrites the journal when it has become long, for as long as it is polled.
async fn keep_journal_short(shared: &Shared) {
    loop {
        let Some(journal) = shared.journal.get() else { return std::future::pending().await };
        let mut committed = std::pin::pin!(journal.committed().notified());
        // Enabled before looking, so that no commit from here on is missed.
        committed.as_mut().enable();
        let rewritten = shared.core.lock().rewrite_some();
        match rewritten {
            Rewritten::Nothing => std::future::pending().await,
            Rewritten::More => tokio::task::yield_now().await,
            Rewritten::Waits => committed.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_task<F>(_: impl FnOnce(Arc<Shared>, Seat, TcpStream, usize) -> F) -> usize {
        size_of::<F>()
    }

    /// With 160 bytes of tokio beside it, a task is an allocation of 2 KiB.
    #[test]
    fn a_connection_takes_little_memory() {
        let bytes = size_of_task(serve);
        assert!(bytes <= 2048 - 160, "{bytes} bytes");
    }
}
