//! Servers that link to this one, which are callers too.

use std::pin::Pin;
use std::sync::Arc;

use rivulet_connectors::links::{LinkAuthorizer, LinkLogin, LinkRights};

use super::Tenant;
use super::access::{Access, Credentials};
use super::caller::{Caller, Origin};
use super::resource::{Action, Resource, ResourceKind};

/// The name of all streams between a server and its burst workers, up to the `#`.
pub(crate) const BURST_STREAMS: &str = "$burst";

/// Decides for the door of links who may send streams, and to which tenant.
pub(crate) struct LinkAccess(pub(crate) Arc<Access>);

impl LinkAuthorizer for LinkAccess {
    fn admit(&self, login: &LinkLogin) -> Result<Arc<dyn LinkRights>, String> {
        let credentials = Credentials {
            secret: login.token.as_deref().map(str::as_bytes),
            certificate: login.certificate.as_deref(),
            origin: Some(Origin { address: Some(login.address), door: "link" }),
            ..Credentials::default()
        };
        let caller = self.0.authenticate(&credentials).map_err(|error| {
            let hint = error.hint.map_or_else(String::new, |hint| format!(": {hint}"));
            format!("{}{hint}", error.message)
        })?;
        let scope = caller.tenant().to_string();
        Ok(Arc::new(StreamRights { access: self.0.clone(), caller, scope }))
    }
}

/// The rights of a server that has logged in.
struct StreamRights {
    access: Arc<Access>,
    caller: Caller,
    scope: String,
}

impl LinkRights for StreamRights {
    fn scope(&self) -> &str {
        &self.scope
    }

    fn may_send(&self, stream: &str) -> Result<(), String> {
        if stream == BURST_STREAMS {
            // It gets rows of queries, and what they read with.
            let resource = Resource { kind: ResourceKind::Server, name: None };
            let refused = |_| "the user of the token may not administer the server, which a burst worker needs".into();
            return self.access.check(&self.caller, Action::Administer, resource).map_err(refused);
        }
        // A stream is to its tenant what a topic is.
        let topic = match *self.caller.tenant() == Tenant::default() {
            true => format!("link/{stream}"),
            false => format!("{}/link/{stream}", self.scope),
        };
        let resource = Resource { kind: ResourceKind::Topic, name: Some(&topic) };
        let refused = |_| format!("the user of the token may not publish to '{topic}', which sending the stream needs");
        self.access.check(&self.caller, Action::Publish, resource).map_err(refused)
    }

    fn changed(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let Some(mut changes) = self.access.changes() else { return std::future::pending().await };
            let is_as_before = || match self.caller.login() {
                Some(login) => !login.rights.is_outdated() && !login.token.has_ended(),
                None => self.access.holds(&self.caller),
            };
            while is_as_before() && changes.changed().await.is_ok() {}
        })
    }
}
