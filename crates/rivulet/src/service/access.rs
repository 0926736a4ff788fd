//! Callers and what they may do.
//!
//! A client gets a [`Caller`] once, when it connects, by [`Authorizer::authenticate`]. Its later requests go through a
//! [`Session`](super::Session) or, for an MQTT client, through [`BrokerAccess`](super::BrokerAccess); both ask
//! [`Authorizer::may`]. Tenants, a list of tokens or a directory service are implementations of this trait; the server
//! gets one in [`Engine::open_with`](crate::engine::Engine::open_with).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::accounts::AccountAnswer;
use super::audit::{AuditEntry, Auditor};
use super::caller::{Caller, Origin};
use super::quotas::Quotas;
use super::resource::{Action, Resource, ResourceKind};
use super::{ErrorKind, ServiceError, Tenant};

/// What a client of REST or MQTT says about itself when it connects.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// The user's name. A token needs none.
    pub user: Option<&'a str>,
    /// A password, a token, or a JSON Web Token.
    pub secret: Option<&'a [u8]>,
    /// The name in the certificate that the client showed, if TLS has verified one.
    pub certificate: Option<&'a str>,
    /// Where the client is.
    pub origin: Option<Origin>,
}

/// Proof that a caller may make a request, with the tenant of its names. Only a [`Session`](super::Session) has one
/// (and the engine of a simulation, which has no callers), and every request to a [`Service`](super::Service) needs
/// one: no request bypasses the session.
#[derive(Debug)]
pub struct Permit(Caller);

impl Permit {
    pub(super) fn new(caller: Caller) -> Self {
        Self(caller)
    }

    /// The permit of the local operator, for an engine without callers.
    pub(crate) fn of_operator() -> Self {
        Self(Caller::local_operator())
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.0
    }

    /// The tenant to which the names of the request belong.
    pub fn tenant(&self) -> &Tenant {
        self.0.tenant()
    }

    /// Whether the caller may see results and payloads of a query that it may read, or of all queries. A `false` does
    /// not count as a refusal: the caller gets the rest.
    pub fn shows_results(&self, access: &Access, query: Option<&str>) -> bool {
        access.may_still_subscribe(&self.0, Resource { kind: ResourceKind::Query, name: query })
    }
}

/// A refusal of an [`Authorizer`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// What the caller can do about it. Without a hint, the caller is sent to the person who runs the server.
    pub hint: Option<String>,
    /// The credentials were not looked at, because wrong ones were given too often. They are after this time.
    pub wait: Option<Duration>,
    /// The user whose credentials were wrong, for the record and not for the client; `None` if there is no such user.
    pub user: Option<String>,
}

impl Refused {
    /// A refusal with what to do about it.
    pub fn with_hint(hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..Self::default() }
    }
}

/// Decides which caller a client is, and what a caller may do.
pub trait Authorizer: Send + Sync + 'static {
    /// Returns the caller for a client. Called once for each HTTP request and each MQTT connection, on a thread that
    /// may block if the client gave a secret; without a secret it must answer at once.
    ///
    /// # Errors
    /// The credentials are wrong, or are missing.
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused>;

    /// Whether [`Authorizer::authenticate`] takes long for these credentials, as for a password that is hashed. Few of
    /// those are asked for at a time. It must answer from memory.
    fn takes_long(&self, credentials: &Credentials<'_>) -> bool {
        let _ = credentials;
        false
    }

    /// Whether these credentials could be found by guesses, as a password could, and not a token, a signature or a
    /// certificate. Those that could not are looked at however often wrong ones were given. It must answer from memory.
    fn may_be_guessed(&self, credentials: &Credentials<'_>) -> bool {
        let _ = credentials;
        true
    }

    /// Returns the user of this name and password. Called on a thread that may block.
    ///
    /// # Errors
    /// There is none, or passwords are not what users log in with.
    fn check_password(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        let _ = credentials;
        Err(Refused::with_hint("users of this server do not log in with passwords"))
    }

    /// Makes a token for a caller who has just shown its password. It is that of [`AccountAnswer::Token`].
    ///
    /// # Errors
    /// It cannot be saved, or the password has changed meanwhile.
    fn issue_token(&self, caller: &Caller) -> Result<AccountAnswer, ServiceError> {
        let _ = caller;
        Err(ServiceError::invalid("users of this server do not log in with passwords"))
    }

    /// Ends the token of [`Authorizer::issue_token`] that a caller shows; does nothing if it shows something else.
    ///
    /// # Errors
    /// It cannot be saved.
    fn end_login(&self, caller: &Caller) -> Result<(), ServiceError> {
        let _ = caller;
        Ok(())
    }

    /// Whether [`Authorizer::may`] permits everything to a caller; then it is not called, and costs nothing. Called
    /// once for each HTTP request and each MQTT connection.
    fn may_everything(&self, caller: &Caller) -> bool;

    /// Whether a caller may do something to a resource of its tenant; resources of others do not exist for it. Called
    /// before each request, for each query of a bulk submission, and for each message of an MQTT client: it must answer
    /// from memory. Live results are asked for again after each of [`Authorizer::changes`]. A query reads and writes
    /// topics with the rights of the server, so the right to change queries includes these topics.
    ///
    /// # Errors
    /// The caller may not.
    fn may(&self, caller: &Caller, action: Action, resource: Resource<'_>) -> Result<(), Refused>;

    /// Whether statements of a caller may name a topic, in which `{parameter}` stands for a value.
    ///
    /// # Errors
    /// They may not.
    fn may_name_topic(&self, caller: &Caller, topic: &str) -> Result<(), Refused> {
        let _ = (caller, topic);
        Ok(())
    }

    /// Whether the login of a caller still holds. An MQTT client whose login does not is disconnected. It must answer
    /// from memory.
    fn holds(&self, caller: &Caller) -> bool {
        let _ = caller;
        true
    }

    /// Whether clients have to log in.
    fn has_accounts(&self) -> bool {
        true
    }

    /// Whether there is a tenant of this name. It must answer from memory.
    fn has_tenant(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Tells each time when somebody may do less than before; `None` if that never happens.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// The authorizer of a server that has no other: every client is the local operator, who may do everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalOperator;

impl Authorizer for LocalOperator {
    fn authenticate(&self, _credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        Ok(Caller::local_operator())
    }

    fn may_everything(&self, _caller: &Caller) -> bool {
        true
    }

    fn may(&self, _caller: &Caller, _action: Action, _resource: Resource<'_>) -> Result<(), Refused> {
        Ok(())
    }

    fn has_accounts(&self) -> bool {
        false
    }
}

/// The authorizer of a server, with counters of its refusals.
pub struct Access {
    pub(super) authorizer: Arc<dyn Authorizer>,
    auditor: Option<Arc<dyn Auditor>>,
    quotas: Arc<Quotas>,
    logins_refused: AtomicU64,
    requests_refused: AtomicU64,
}

impl Default for Access {
    fn default() -> Self {
        Self::new(Arc::new(LocalOperator))
    }
}

impl Access {
    /// Nothing is refused yet.
    pub fn new(authorizer: Arc<dyn Authorizer>) -> Self {
        let (logins_refused, requests_refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { authorizer, auditor: None, quotas: Arc::default(), logins_refused, requests_refused }
    }

    /// The same with these quotas of tenants.
    #[must_use]
    pub fn limited(self, quotas: Arc<Quotas>) -> Self {
        Self { quotas, ..self }
    }

    /// What tenants may have and use.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }

    /// The same with a record of what callers do, as far as they have to log in.
    #[must_use]
    pub fn audited(self, auditor: Arc<dyn Auditor>) -> Self {
        Self { auditor: Some(auditor), ..self }
    }

    /// Keeps the record of what callers do, if there is one and they have to log in.
    pub(crate) fn auditor(&self) -> Option<&Arc<dyn Auditor>> {
        self.auditor.as_ref().filter(|_| self.has_accounts())
    }

    /// The number of entries of the record that were lost.
    pub fn audit_lost(&self) -> u64 {
        self.auditor.as_ref().map_or(0, |auditor| auditor.lost())
    }

    /// Has a login recorded, or that one was refused, with the user whose credentials were wrong.
    fn note_login(&self, caller: Option<&Caller>, origin: Option<Origin>, refused: Option<(&str, Option<&str>)>) {
        if let Some(auditor) = self.auditor() {
            let (action, statement, failed) = (None, None, None);
            let user = refused.and_then(|(_, user)| user);
            let resource = user.map(|user| Resource { kind: ResourceKind::User, name: Some(user) });
            let refused = refused.map(|(why, _)| why);
            auditor.note(&AuditEntry { caller, origin, action, resource, count: 1, statement, refused, failed });
        }
    }

    /// [`Authorizer::authenticate`], counted.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`]; [`ErrorKind::LimitReached`] if wrong passwords were given too often.
    pub fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Caller, ServiceError> {
        let caller = self.known(credentials, self.authorizer.authenticate(credentials))?;
        self.note_login(Some(&caller), credentials.origin, None);
        Ok(caller)
    }

    /// The caller of credentials that are right and cannot be guessed, where wrong ones were given too often. Wrong
    /// ones are not counted or recorded here: a device with an old token may give it twice a second.
    pub(crate) fn authenticate_at_once(&self, credentials: &Credentials<'_>) -> Option<Caller> {
        if self.authorizer.may_be_guessed(credentials) {
            return None;
        }
        let caller = self.known(credentials, Ok(self.authorizer.authenticate(credentials).ok()?)).ok()?;
        self.note_login(Some(&caller), credentials.origin, None);
        Some(caller)
    }

    /// Returns the user of this name and password. Called on a thread that may block.
    ///
    /// # Errors
    /// As [`Access::authenticate`].
    pub(crate) fn check_password(&self, credentials: &Credentials<'_>) -> Result<Caller, ServiceError> {
        self.known(credentials, self.authorizer.check_password(credentials))
    }

    /// Makes a token that ends for a caller of [`Access::check_password`]. Called on a thread that may block.
    ///
    /// # Errors
    /// The token cannot be saved, or the password has changed meanwhile.
    pub(crate) fn issue_token(&self, caller: &Caller, origin: Option<Origin>) -> Result<AccountAnswer, ServiceError> {
        self.auditor().iter().try_for_each(|auditor| auditor.admits_changes())?;
        let made = self.authorizer.issue_token(caller);
        self.note_own_token(caller, origin, "CREATE TOKEN", made.as_ref().err());
        made
    }

    /// Records what was done with a token of its caller, who needs no right for that.
    fn note_own_token(&self, caller: &Caller, origin: Option<Origin>, statement: &str, error: Option<&ServiceError>) {
        let Some(auditor) = self.auditor() else { return };
        auditor.note(&AuditEntry {
            caller: Some(caller),
            origin,
            action: Some(Action::Administer),
            resource: Some(Resource { kind: ResourceKind::User, name: Some(caller.name()) }),
            count: 1,
            statement: Some(statement),
            refused: None,
            failed: error.map(|error| error.kind),
        });
    }

    /// Ends the token that a caller shows, if it was made for a password; also while no audit can be written. Called on
    /// a thread that may block.
    ///
    /// # Errors
    /// It cannot be saved.
    pub(crate) fn end_login(&self, caller: &Caller) -> Result<(), ServiceError> {
        let ended = self.authorizer.end_login(caller);
        self.note_own_token(caller, caller.origin(), "END SESSION", ended.as_ref().err());
        ended
    }

    /// The caller, or why there is none, counted and recorded.
    fn known(&self, credentials: &Credentials<'_>, given: Result<Caller, Refused>) -> Result<Caller, ServiceError> {
        let known = given.map(|caller| match credentials.origin {
            Some(origin) if self.auditor.is_some() => caller.at(origin),
            _ => caller,
        });
        known.map_err(|refused| {
            self.logins_refused.fetch_add(1, Ordering::Relaxed);
            let is_link = credentials.origin.is_some_and(|origin| origin.door == "link");
            let (kind, message) = match (refused.wait, credentials.secret) {
                (Some(_), _) => (ErrorKind::LimitReached, "wrong passwords were given for this user too often"),
                (None, Some(_)) if is_link => {
                    (ErrorKind::Unauthenticated, "the server does not know the token, or it has ended")
                }
                (None, Some(_)) => (ErrorKind::Unauthenticated, "the server does not know these credentials"),
                (None, None) => (ErrorKind::Unauthenticated, "the server asks for credentials"),
            };
            match (credentials.secret, self.auditor()) {
                (None, Some(auditor)) => auditor.note_anonymous(credentials.origin, message),
                _ => self.note_login(None, credentials.origin, Some((message, refused.user.as_deref()))),
            }
            let hint = match is_link {
                true => {
                    "make one there (`rivulet token create USER`), and give it to the sink (`token => SECRET NAME`) or \
                     the command (`--token-file FILE`)"
                }
                false => "send `Authorization: Bearer TOKEN`; commands send the token in RIVULET_TOKEN",
            };
            let error = ServiceError::new(kind, message).with_hint(refused.hint.unwrap_or_else(|| hint.to_owned()));
            match refused.wait {
                Some(wait) => error.until(wait),
                None => error,
            }
        })
    }

    /// An operator of the server in the place of a tenant.
    ///
    /// # Errors
    /// [`ErrorKind::Forbidden`] for other callers; [`ErrorKind::NotFound`].
    pub(crate) fn in_tenant(&self, caller: &Caller, tenant: &str) -> Result<Caller, ServiceError> {
        if caller.tenant().as_str() == tenant {
            return Ok(caller.clone());
        }
        if !(caller.tenant().is_default() && self.may_everything(caller)) {
            let message = format!("'{caller}' may not ask in the place of the tenant '{tenant}'");
            let hint = "that is for operators of the server; leave out --as-tenant, the header rivulet-tenant";
            self.requests_refused.fetch_add(1, Ordering::Relaxed);
            let resource = Resource { kind: ResourceKind::Tenant, name: Some(tenant) };
            self.note_refused(caller, Action::Read, resource, &message);
            return Err(ServiceError::new(ErrorKind::Forbidden, message).with_hint(hint));
        }
        match self.has_tenant(tenant) {
            true => Ok(caller.in_tenant(&Tenant::new(tenant))),
            false => {
                Err(ServiceError::not_found(format!("there is no tenant '{tenant}'"))
                    .with_hint("SHOW TENANTS lists them"))
            }
        }
    }

    /// Whether the caller need not be checked.
    pub(super) fn may_everything(&self, caller: &Caller) -> bool {
        self.authorizer.may_everything(caller)
    }

    /// [`Authorizer::may`], counted.
    pub(super) fn may(&self, caller: &Caller, action: Action, resource: Resource<'_>) -> Result<(), ServiceError> {
        let allowed = self.check(caller, action, resource);
        allowed.map_err(|refused| self.refusal(caller, action, resource, refused))
    }

    /// Whether a caller may read future results or messages of a resource that the service itself has found.
    pub(crate) fn may_subscribe(&self, caller: &Caller, resource: Resource<'_>) -> Result<(), ServiceError> {
        if self.may_everything(caller) {
            return Ok(());
        }
        let permitted = self.may(caller, Action::Subscribe, resource);
        permitted.inspect_err(|error| self.note_refused(caller, Action::Subscribe, resource, &error.message))
    }

    /// The same for one who may already, or gets the rest without; a `false` does not count as a refusal.
    pub(crate) fn may_still_subscribe(&self, caller: &Caller, resource: Resource<'_>) -> bool {
        self.allows(caller, Action::Subscribe, resource)
    }

    /// Whether a caller may do something; a `false` does not count as a refusal.
    pub(super) fn allows(&self, caller: &Caller, action: Action, resource: Resource<'_>) -> bool {
        self.may_everything(caller) || self.authorizer.may(caller, action, resource).is_ok()
    }

    /// [`Authorizer::may_name_topic`], counted.
    pub(super) fn may_name_topic(&self, caller: &Caller, action: Action, topic: &str) -> Result<(), ServiceError> {
        self.authorizer.may_name_topic(caller, topic).map_err(|refused| {
            self.requests_refused.fetch_add(1, Ordering::Relaxed);
            let resource = Resource { kind: ResourceKind::Topic, name: Some(topic) };
            let error = self.refusal(caller, action, resource, refused);
            self.note_refused(caller, action, resource, &error.message);
            error
        })
    }

    /// Has a refused request recorded.
    #[cold]
    pub(super) fn note_refused(&self, caller: &Caller, action: Action, resource: Resource<'_>, why: &str) {
        if let Some(auditor) = self.auditor() {
            auditor.note(&AuditEntry {
                caller: Some(caller),
                origin: caller.origin(),
                action: Some(action),
                resource: Some(resource),
                count: 1,
                statement: None,
                refused: Some(why),
                failed: None,
            });
        }
    }

    /// Whether statements of a tenant may name a topic, where clients have to log in. A `false` does not count as a
    /// refusal.
    pub(crate) fn is_topic_of(&self, tenant: &Tenant, topic: &str) -> bool {
        let caller = || Caller::new(tenant.as_str(), "the server");
        tenant.is_default() || !self.has_accounts() || self.authorizer.may_name_topic(&caller(), topic).is_ok()
    }

    fn refusal(&self, caller: &Caller, action: Action, resource: Resource<'_>, refused: Refused) -> ServiceError {
        let verb = action.verb();
        let hint = "ask the person who runs this server for the right";
        ServiceError::new(ErrorKind::Forbidden, format!("'{caller}' may not {verb} {resource}"))
            .with_hint(refused.hint.unwrap_or_else(|| hint.to_owned()))
    }

    pub(super) fn check(&self, caller: &Caller, action: Action, resource: Resource<'_>) -> Result<(), Refused> {
        self.authorizer.may(caller, action, resource).inspect_err(|_| {
            self.requests_refused.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Whether clients have to log in.
    pub fn has_accounts(&self) -> bool {
        self.authorizer.has_accounts()
    }

    /// [`Authorizer::has_tenant`].
    pub(crate) fn has_tenant(&self, name: &str) -> bool {
        self.authorizer.has_tenant(name)
    }

    /// [`Authorizer::holds`].
    pub(crate) fn holds(&self, caller: &Caller) -> bool {
        self.authorizer.holds(caller)
    }

    /// [`Authorizer::changes`].
    pub(crate) fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.authorizer.changes()
    }

    /// The number of refused logins since the start.
    pub fn logins_refused(&self) -> u64 {
        self.logins_refused.load(Ordering::Relaxed)
    }

    /// The number of refused requests of known callers since the start; each query of a bulk submission and each
    /// message of an MQTT client counts.
    pub fn requests_refused(&self) -> u64 {
        self.requests_refused.load(Ordering::Relaxed)
    }
}
