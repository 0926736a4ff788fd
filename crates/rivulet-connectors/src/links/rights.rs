//! Who may link to this process, and what it may send.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

/// Who wants to link.
pub struct LinkLogin {
    /// The token it has.
    pub token: Option<String>,
    /// The name in its certificate, if it showed one.
    pub certificate: Option<Arc<str>>,
    /// Where it is.
    pub address: IpAddr,
}

/// Decides who may link.
pub trait LinkAuthorizer: Send + Sync {
    /// What a process may send. Called on a thread that may block.
    ///
    /// # Errors
    /// Why it may not link.
    fn admit(&self, login: &LinkLogin) -> Result<Arc<dyn LinkRights>, String>;
}

/// What a process may send.
pub trait LinkRights: Send + Sync {
    /// Whose streams they are: those of one scope meet no others.
    fn scope(&self) -> &str;

    /// Whether it may send a stream of this name.
    ///
    /// # Errors
    /// Why it may not.
    fn may_send(&self, stream: &str) -> Result<(), String>;

    /// Completes when the process is to connect anew: its login does not hold any more, or it may do less or more than
    /// before. Asked once for each connection.
    fn changed(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}
