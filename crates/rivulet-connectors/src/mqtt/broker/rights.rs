//! Which clients the broker serves, and which topics each of them may use.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use crate::rates::Rates;

/// What a client says of itself when it connects.
#[derive(Clone, Debug)]
pub struct ClientLogin {
    /// Its user name.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Vec<u8>>,
    /// The name in its certificate, if TLS has verified one.
    pub certificate: Option<String>,
    /// Its client id; empty if the broker is to choose one.
    pub client_id: String,
    /// Where it connects from.
    pub address: IpAddr,
    /// Whether its user name and password are among [`BrokerOptions::users`](super::BrokerOptions::users); `None` if
    /// these are empty.
    pub is_configured: Option<bool>,
}

/// Decides which clients are served. Without one, every client that
/// [`BrokerOptions::users`](super::BrokerOptions::users) lets in may use every topic.
pub trait ClientAuthorizer: fmt::Debug + Send + Sync {
    /// Lets a client in, and returns its rights; with `None` it may do everything, and is not checked again. Called
    /// once for each connection, on a thread that may block if the client gave a password; without a password it must
    /// answer at once.
    ///
    /// # Errors
    /// [`NotAdmitted`].
    fn admit(&self, login: &ClientLogin) -> Result<Option<Arc<dyn ClientRights>>, NotAdmitted>;

    /// Lets a client in that waits because its user has failed too often at its address, if what it gave is right and
    /// cannot be guessed. What is wrong is not counted as a failure. Called like [`ClientAuthorizer::admit`].
    fn admit_at_once(&self, login: &ClientLogin) -> Option<Option<Arc<dyn ClientRights>>> {
        let _ = login;
        None
    }

    /// Whether what the client gave could be found by guesses, as a password could. Must answer from memory.
    fn may_be_guessed(&self, login: &ClientLogin) -> bool {
        let _ = login;
        true
    }

    /// Whether there is a tenant of this name, which has a share of the bounds of the broker. Clients are of the tenant
    /// that their [scope](ClientRights::session_scope) names before its first `\0`, and topics of the one that is their
    /// first level. Called under the lock of the broker: it must answer from memory.
    fn is_tenant(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Whether [`ClientAuthorizer::admit`] takes long for this client, as for one with a password that must be hashed.
    /// Few of those are checked at a time, and no other client waits for them. Must answer from memory.
    fn takes_long(&self, login: &ClientLogin) -> bool {
        let _ = login;
        false
    }
}

/// What one client may do. Called under the lock of the broker: it must answer from memory.
pub trait ClientRights: Send + Sync {
    /// Names the set of sessions that the client may resume or take over. Clients of other scopes have their own
    /// sessions, even with the same client id. `None` is the scope of clients that may do everything. Asked once for
    /// each connection.
    fn session_scope(&self) -> Option<String>;

    /// Whether the client may publish to a topic. Asked for each message.
    fn may_publish(&self, topic: &str) -> bool;

    /// Whether the client may subscribe to a filter, which may have wildcards.
    fn may_subscribe(&self, filter: &str) -> bool;

    /// The rates of those to whom the client belongs. Asked once for each connection.
    fn rates(&self) -> Option<Arc<Rates>> {
        None
    }

    /// Completes when the client is to be disconnected: its login does not hold any more, or it may do less than before
    /// and is to connect anew. Asked once for each connection.
    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}

impl fmt::Debug for dyn ClientRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientRights")
    }
}

/// Why a client is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// What it gave is not known, and counts as a failure of its user at its address.
    Unknown,
    /// What it gave is not looked at now. It may come again later.
    Busy,
}

/// The rights of a client that is checked; `None` for one that may do everything.
pub(super) type Rights = Option<Arc<dyn ClientRights>>;

/// Whether a client may publish to a topic, which was checked to be valid text.
#[inline]
pub(super) fn may_publish(rights: &Rights, topic: &[u8]) -> bool {
    rights.as_deref().is_none_or(|rights| str::from_utf8(topic).is_ok_and(|topic| rights.may_publish(topic)))
}
