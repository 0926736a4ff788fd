//! Which clients the broker serves, and which topics each of them may use.

use std::fmt;
use std::sync::Arc;

/// Decides which clients are served. Without one, every client that
/// [`BrokerOptions::users`](super::BrokerOptions::users) lets in may use every topic.
pub trait ClientAuthorizer: fmt::Debug + Send + Sync {
    /// Lets a client in, and returns its rights; with `None` it may do everything, and is not checked again.
    /// `certificate` is the name in the client's certificate, if TLS has verified one. Called once for each connection,
    /// on a thread that may block if the client gave a password; without a password it must answer at once.
    ///
    /// # Errors
    /// [`NotAdmitted`].
    fn admit(
        &self,
        user: Option<&str>,
        password: Option<&[u8]>,
        certificate: Option<&str>,
    ) -> Result<Option<Arc<dyn ClientRights>>, NotAdmitted>;
}

/// What one client may do. Called under the lock of the broker: it must answer from memory.
pub trait ClientRights: Send + Sync {
    /// Names the set of sessions that the client may resume or take over. Clients of other scopes have their own
    /// sessions, even with the same client id. Asked once for each connection.
    fn session_scope(&self) -> String;

    /// Whether the client may publish to a topic. Asked for each message.
    fn may_publish(&self, topic: &str) -> bool;

    /// Whether the client may subscribe to a filter, which may have wildcards.
    fn may_subscribe(&self, filter: &str) -> bool;
}

/// The client is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAdmitted;

/// The rights of a client that is checked; `None` for one that may do everything.
pub(super) type Rights = Option<Arc<dyn ClientRights>>;

/// Whether a client may publish to a topic, which was checked to be valid text.
#[inline]
pub(super) fn may_publish(rights: &Rights, topic: &[u8]) -> bool {
    rights.as_deref().is_none_or(|rights| str::from_utf8(topic).is_ok_and(|topic| rights.may_publish(topic)))
}
