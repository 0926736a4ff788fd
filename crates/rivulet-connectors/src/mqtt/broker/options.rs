//! The addresses of the embedded broker, the clients that it lets in, and its bounds.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::super::linger::Linger;
use super::super::websocket::WebSocketOptions;
use super::rights::ClientAuthorizer;
use crate::logins::is_secret;
use crate::reach::AllowedHosts;
use crate::tls::{Prepared, ServerTls, TlsError};

/// An address to listen on.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Address and port; port 0 takes any free port.
    pub address: SocketAddr,
    /// The certificate, if connections are encrypted.
    pub tls: Option<ServerTls>,
    /// What is checked of clients that speak MQTT over WebSocket, if that is spoken here.
    pub websocket: Option<WebSocketOptions>,
}

impl Listener {
    /// A listener for MQTT over TCP.
    pub fn new(address: SocketAddr, tls: Option<ServerTls>) -> Self {
        Self { address, tls, websocket: None }
    }
}

/// How much the clients of a broker may take up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerLimits {
    /// The most connections at a time; one more is closed at once. Default: 50,000.
    pub connections_max: usize,
    /// The most sessions, with and without a connection. Default: 100,000.
    pub sessions_max: usize,
    /// The most subscriptions of all sessions together. Default: 1,000,000.
    pub subscriptions_max: usize,
    /// The most subscriptions of one session. Default: 10,000.
    pub session_subscriptions_max: usize,
    /// The most memory of clients, sessions and retained messages, in bytes. Default: 1 GiB.
    pub memory_bytes_max: usize,
    /// The part of the subscriptions and of the memory that the clients of one address may have, in percent. Default:
    /// 50.
    pub address_share_percent: usize,
    /// The part of connections, sessions, subscriptions, memory and retained messages that one tenant may have, in
    /// percent. Default: 50.
    pub tenant_share_percent: usize,
    /// The longest time a session is kept without a connection, in seconds. Default: one day.
    pub session_expiry_s_max: u32,
    /// The most messages of QoS 1 and 2 that wait for one session. Default: 10,000.
    pub session_queue_messages_max: usize,
    /// The most bytes of these messages. Default: 8 MiB.
    pub session_queue_bytes_max: usize,
    /// The most messages of QoS 1 and 2 that may be in flight to one client. Default: 256.
    pub in_flight_max: u16,
    /// The most messages of QoS 2 that one client may have sent and not released; clients of version 5 are told it as
    /// their receive maximum. At least 1. Default: 8192.
    pub receive_max: u16,
    /// The most topic aliases of one client, in each direction. Default: 16.
    pub topic_aliases_max: u16,
    /// The longest keep alive of clients of version 5, in seconds; one that asks for more, or for none, is told this
    /// one. 0 lets clients choose. Default: 0.
    pub keep_alive_s_max: u16,
    /// The time between two messages on the topics below `$SYS`, in seconds; 0 for no such topics. Default: 10.
    pub system_interval_s: u32,
    /// The most retained messages. Default: 1,000,000.
    pub retained_messages_max: usize,
    /// The most bytes of retained messages. Default: 256 MiB.
    pub retained_bytes_max: usize,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            connections_max: 50_000,
            sessions_max: 100_000,
            subscriptions_max: 1_000_000,
            session_subscriptions_max: 10_000,
            memory_bytes_max: 1 << 30,
            address_share_percent: 50,
            tenant_share_percent: 50,
            session_expiry_s_max: 86_400,
            session_queue_messages_max: 10_000,
            session_queue_bytes_max: 8 << 20,
            in_flight_max: 256,
            receive_max: 8192,
            topic_aliases_max: 16,
            keep_alive_s_max: 0,
            system_interval_s: 10,
            retained_messages_max: 1_000_000,
            retained_bytes_max: 256 << 20,
        }
    }
}

/// The configuration of a [`Broker`](super::Broker). Every store has a bound.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// The addresses to listen on; at least one.
    pub listeners: Vec<Listener>,
    /// Users and passwords; if empty, every client is let in without credentials.
    pub users: Vec<(String, String)>,
    /// What clients that `users` lets in may do; `None` for everything.
    pub authorizer: Option<Arc<dyn ClientAuthorizer>>,
    /// Proxies whose connections begin with a header of the PROXY protocol, which names the client's address; others
    /// have none. Default: none.
    pub trusted_proxies: AllowedHosts,
    /// How much clients may take up.
    pub limits: BrokerLimits,
    /// When so many bytes wait to be written to one connection, messages of QoS 0 are dropped. The last one before may
    /// have any size. Default: 4 MiB.
    pub connection_bytes_max: usize,
    /// The largest packet accepted, in bytes. Larger messages are refused and counted, and their clients stay. Default:
    /// 4 MiB.
    pub packet_bytes_max: usize,
    /// The most bytes read from a socket at a time. Default: 256 KiB.
    pub read_buffer_bytes: usize,
    /// How long a client may take from connecting to the end of its CONNECT, in milliseconds. Default: 10,000.
    pub connect_timeout_ms: u64,
    /// The high mark of the queue of the engine's results, in bytes. Default: 8 MiB.
    pub outbound_bytes_max: usize,
    /// The pauses of the thread on which it runs. Whoever starts that thread makes it pause.
    pub linger: Arc<Linger>,
    /// How long results for other queries may be stuck in a circle of full queues before an event is dropped to break
    /// it, in milliseconds. Default: 1000.
    pub deadlock_ms: u64,
}

impl BrokerOptions {
    /// The defaults, listening on one address without encryption.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            listeners: vec![Listener::new(address, None)],
            users: Vec::new(),
            authorizer: None,
            trusted_proxies: AllowedHosts::none("mqtt.embedded.trusted_proxies"),
            limits: BrokerLimits::default(),
            connection_bytes_max: 4 << 20,
            packet_bytes_max: 4 << 20,
            read_buffer_bytes: 256 << 10,
            connect_timeout_ms: 10_000,
            outbound_bytes_max: 8 << 20,
            linger: Arc::default(),
            deadlock_ms: 1000,
        }
    }

    /// The receive maximum that clients of version 5 are told.
    pub(super) fn receive_max(&self) -> NonZeroU16 {
        NonZeroU16::new(self.limits.receive_max).unwrap_or(NonZeroU16::MIN)
    }

    /// Whether clients need credentials.
    pub(super) fn needs_login(&self) -> bool {
        !self.users.is_empty() || self.authorizer.is_some()
    }

    /// The certificates of each listener, read anew.
    pub(super) fn certificates(&self) -> Result<Vec<Prepared>, TlsError> {
        self.listeners.iter().map(|listener| Prepared::read(listener.tls.as_ref())).collect()
    }
}

/// Whether this user may log in with this password; without users, every client may.
pub(super) fn allows(users: &[(String, String)], user: Option<&str>, password: Option<&[u8]>) -> bool {
    if users.is_empty() {
        return true;
    }
    let (Some(user), Some(password)) = (user, password) else { return false };
    // Every entry is compared, and every byte of it, so that the time taken says nothing about the passwords.
    users.iter().fold(false, |allowed, (known, expected)| {
        allowed | (is_secret(user.as_bytes(), known.as_bytes()) & is_secret(password, expected.as_bytes()))
    })
}

/// Why a broker cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The port is in use.
    #[error(
        "the embedded broker cannot listen on {address}: the port is in use\nhint: another MQTT broker or another Rivulet is running; stop it, or configure another port"
    )]
    PortInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The broker cannot listen on the address.
    #[error(
        "the embedded broker cannot listen on {address}: {error}\nhint: the address must be one of this machine, and ports below 1024 need privileges"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_asked_for_their_own_password() {
        assert!(allows(&[], None, None));
        let users = [("kim".to_owned(), "secret".to_owned()), ("alex".to_owned(), "geheim".to_owned())];
        let allowed = |user, password| allows(&users, user, password);
        assert!(allowed(Some("kim"), Some(b"secret")));
        assert!(allowed(Some("alex"), Some(b"geheim")));
        for (user, password) in [("kim", "geheim"), ("kim", ""), ("kim", "secret2"), ("", "secret"), ("eve", "secret")]
        {
            assert!(!allowed(Some(user), Some(password.as_bytes())), "{user} {password}");
        }
        assert!(!allowed(None, None) && !allowed(Some("kim"), None));
    }
}
