//! Clients of the embedded broker, who are callers too.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rivulet_connectors::mqtt::{ClientAuthorizer, ClientLogin, ClientRights, NotAdmitted};
use rivulet_connectors::rates::Rates;

use super::access::{Access, Credentials};
use super::caller::{Caller, Origin};
use super::quotas::Quota;
use super::resource::{Action, Resource, ResourceKind};
use super::rights::is_below;
use super::{ErrorKind, Tenant};

/// Decides for the embedded broker what its clients may do.
#[derive(Clone)]
pub(crate) struct BrokerAccess(pub(crate) Arc<Access>);

impl fmt::Debug for BrokerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrokerAccess")
    }
}

/// What a client of the broker says of itself.
fn credentials(login: &ClientLogin) -> Credentials<'_> {
    Credentials {
        user: login.user.as_deref(),
        secret: login.password.as_deref(),
        certificate: login.certificate.as_deref(),
        origin: Some(Origin { address: Some(login.address), door: "mqtt" }),
    }
}

impl BrokerAccess {
    /// The rights of a client that has logged in.
    fn rights_of(&self, caller: Caller, login: &ClientLogin) -> Arc<dyn ClientRights> {
        let access = self.0.clone();
        let caller = caller.with_client_id(&login.client_id);
        let quota = access.quotas().of(caller.tenant());
        if access.may_everything(&caller) && access.changes().is_none() {
            return Arc::new(EveryTopic(quota));
        }
        let publishes_below = caller.login().and_then(|login| login.rights.publishes_below()).map(Box::from);
        Arc::new(TopicRights { access, caller, quota, publishes_below, has_told: Default::default() })
    }
}

impl ClientAuthorizer for BrokerAccess {
    fn admit(&self, login: &ClientLogin) -> Result<Option<Arc<dyn ClientRights>>, NotAdmitted> {
        let access = &self.0;
        match login.is_configured {
            // The user in the configuration belongs to the person who writes it.
            Some(true) => return Ok(Some(Arc::new(EveryTopic(access.quotas().of(&Tenant::default()))))),
            Some(false) if !access.has_accounts() => return Err(NotAdmitted::Unknown),
            _ => {}
        }
        let caller = access.authenticate(&credentials(login)).map_err(|error| match error.kind {
            ErrorKind::LimitReached => NotAdmitted::Busy,
            _ => NotAdmitted::Unknown,
        })?;
        Ok(Some(self.rights_of(caller, login)))
    }

    fn admit_at_once(&self, login: &ClientLogin) -> Option<Option<Arc<dyn ClientRights>>> {
        let caller = (!self.may_be_guessed(login)).then(|| self.0.authenticate_at_once(&credentials(login)))??;
        Some(Some(self.rights_of(caller, login)))
    }

    fn may_be_guessed(&self, login: &ClientLogin) -> bool {
        // The password in the configuration may be a word.
        let is_of_configuration = login.is_configured.is_some() && !self.0.has_accounts();
        is_of_configuration || self.0.authorizer.may_be_guessed(&credentials(login))
    }

    fn is_tenant(&self, name: &str) -> bool {
        name != Tenant::of_operator().as_str() && self.0.has_tenant(name)
    }

    fn takes_long(&self, login: &ClientLogin) -> bool {
        login.is_configured != Some(true) && self.0.authorizer.takes_long(&credentials(login))
    }
}

/// The rights of a client that may do everything, and whose rates count all the same.
struct EveryTopic(Arc<Quota>);

impl ClientRights for EveryTopic {
    fn session_scope(&self) -> Option<String> {
        None
    }

    fn may_publish(&self, _topic: &str) -> bool {
        true
    }

    fn may_subscribe(&self, _filter: &str) -> bool {
        true
    }

    fn rates(&self) -> Option<Arc<Rates>> {
        Some(self.0.rates().clone())
    }
}

/// The rights of a caller that is a client of the embedded broker.
struct TopicRights {
    access: Arc<Access>,
    caller: Caller,
    quota: Arc<Quota>,
    /// The level below which the rights of the login let it publish everything: most messages need no other check.
    publishes_below: Option<Box<str>>,
    /// Whether a refused message and a refused subscription were recorded: a client may send any number of them.
    has_told: [AtomicBool; 2],
}

impl TopicRights {
    /// Whether a topic is below that level, and the rights of the login are the present ones.
    #[inline]
    fn publishes_below_level(&self, topic: &str) -> bool {
        let (Some(level), Some(login)) = (&self.publishes_below, self.caller.login()) else { return false };
        is_below(topic, level) && !login.rights.is_outdated() && !login.token.has_ended()
    }

    fn may(&self, action: Action, topic: &str) -> bool {
        let resource = Resource { kind: ResourceKind::Topic, name: Some(topic) };
        let is_allowed = self.access.check(&self.caller, action, resource).is_ok();
        if !is_allowed && !self.has_told[usize::from(action == Action::Subscribe)].swap(true, Ordering::Relaxed) {
            self.access.note_refused(&self.caller, action, resource, "it has no such right");
        }
        is_allowed
    }
}

impl ClientRights for TopicRights {
    fn session_scope(&self) -> Option<String> {
        let is_operator = self.caller == Caller::local_operator() && self.caller.login().is_none();
        (!is_operator).then(|| format!("{}\0{}", self.caller.tenant(), self.caller.name()))
    }

    fn may_publish(&self, topic: &str) -> bool {
        self.publishes_below_level(topic) || self.may(Action::Publish, topic)
    }

    fn may_subscribe(&self, filter: &str) -> bool {
        self.may(Action::Subscribe, filter)
    }

    fn rates(&self) -> Option<Arc<Rates>> {
        Some(self.quota.rates().clone())
    }

    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            match (self.caller.login(), self.access.changes()) {
                (Some(login), _) => {
                    tokio::select! {
                        () = login.token.ended() => {}
                        () = login.rights.lessened() => {}
                    }
                }
                (None, Some(mut changes)) => {
                    while self.access.holds(&self.caller) && changes.changed().await.is_ok() {}
                }
                (None, None) => std::future::pending().await,
            }
        })
    }
}
