//! What the handler of a call is given: the service, the caller, the body, and the bounds that all calls keep to.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use rivulet_connectors::http_server::{
    BodyError, Budget, ByAddress, Encrypted, Held, Hosts, bearer, client_address, read_body,
};
use rivulet_connectors::logins::FailedLogins;
use rivulet_connectors::reach::AllowedHosts;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, watch};

use super::cookies;
use super::error::ApiError;
use super::moments::Moments;
use super::turns::Turns;
use super::types::TENANT_HEADER;
use crate::service::{
    Access, AccountAnswer, Caller, Credentials, ErrorKind, Origin, QUERIES_PAGE_MAX, Service, ServiceError, Session,
};

/// The largest body of a request that is read as a whole.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Entries of a page unless the request says otherwise.
const PAGE_LIMIT_DEFAULT: usize = 100;

/// Calls of the service at a time; others wait.
const CALLS_MAX: usize = 64;

/// Those of one tenant: statements that take long leave places to other tenants.
const CALLS_OF_TENANT_MAX: usize = 48;

/// Looks at the state of the service at a time. They have places of their own: who asks how the server is must not wait
/// for statements that take long.
const LOOKS_MAX: usize = 8;

/// Logins at a time; others wait. They may ask a server elsewhere, and keep nothing else from its turn meanwhile.
const LOGINS_MAX: usize = 8;

/// How long a request over the rate of its tenant waits for its refusal.
const REFUSAL_WAIT: Duration = Duration::from_millis(100);

/// Passwords at a time; others wait. Their hashes take much memory, and those who show a token do not wait for them.
const PASSWORDS_MAX: usize = 2;

/// Trials of applications at a time; others are refused. Each has an engine of its own.
const TRIALS_MAX: usize = 1;

/// The largest body of a login. Anybody may send one.
const LOGIN_BYTES_MAX: usize = 16 << 10;

/// Clients that watch results at a time, at most; others are refused.
pub(super) const WATCH_MAX: usize = 1024;

/// How much memory a byte of SQL takes at most while it is read, as tokens and a syntax tree. Measured with lists of
/// numbers of one digit.
const SQL_COST: usize = 700;

/// The longest query; of a longer script one statement is in memory at a time.
const STATEMENT_BYTES_MAX: usize = 256 << 10;

/// How long a script waits for the memory that reading it takes.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// What handlers share.
#[derive(Clone)]
pub(super) struct Api {
    /// Empty while it starts.
    pub(super) service: Arc<OnceLock<Arc<dyn Service>>>,
    pub(super) call_permits: Arc<Semaphore>,
    turns: Turns,
    pub(super) look_permits: Arc<Semaphore>,
    pub(super) login_permits: Arc<Semaphore>,
    pub(super) password_permits: Arc<Semaphore>,
    pub(super) trial_permits: Arc<Semaphore>,
    pub(super) failed_logins: Arc<FailedLogins>,
    pub(super) bounds: Bounds,
    pub(super) hosts: watch::Receiver<Hosts>,
    /// The last hour.
    pub(super) moments: Moments,
    pub(super) stop: Stop,
}

/// What all requests together keep to.
#[derive(Clone)]
pub(super) struct Bounds {
    /// Memory of bodies and of answers that are not yet sent.
    pub(super) budget: Budget,
    /// One for each client that watches results, [`WATCH_MAX`] in all.
    pub(super) watch_permits: Arc<Semaphore>,
    /// How many clients may watch results at present.
    pub(super) watch_max: Arc<AtomicUsize>,
    /// Those of each address, and how many of them it may have, in percent.
    pub(super) watchers: Arc<ByAddress>,
    pub(super) address_share_percent: Arc<AtomicUsize>,
    /// The proxies that say whose requests they pass on.
    pub(super) trusted_proxies: AllowedHosts,
}

impl Api {
    pub(super) fn new(
        service: Arc<OnceLock<Arc<dyn Service>>>,
        hosts: watch::Receiver<Hosts>,
        bounds: Bounds,
        stop: Stop,
    ) -> Self {
        let call_permits = Arc::new(Semaphore::new(CALLS_MAX));
        let look_permits = Arc::new(Semaphore::new(LOOKS_MAX));
        let login_permits = Arc::new(Semaphore::new(LOGINS_MAX));
        let password_permits = Arc::new(Semaphore::new(PASSWORDS_MAX));
        let trial_permits = Arc::new(Semaphore::new(TRIALS_MAX));
        let turns = Turns::new(CALLS_OF_TENANT_MAX);
        let (failed_logins, moments) = (Arc::default(), Moments::default());
        Self {
            service,
            call_permits,
            turns,
            look_permits,
            login_permits,
            password_permits,
            trial_permits,
            failed_logins,
            bounds,
            hosts,
            moments,
            stop,
        }
    }

    pub(super) async fn call<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        call: impl FnOnce(&Arc<dyn Service>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let service = self.service.get().cloned().ok_or_else(ApiError::starting)?;
        let permit = Arc::clone(permits).acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            call(&service)
        });
        done.await.map_err(|error| {
            tracing::error!(%error, "a call of the service failed");
            ApiError::internal("the request failed inside the server")
        })
    }

    /// Reads a body, within bounds. It counts as long as the second value is there.
    pub(super) async fn read_bytes(&self, body: Body) -> Result<(Vec<u8>, Held), ApiError> {
        read_body(body, BODY_BYTES_MAX, &self.bounds.budget, 1).await.map_err(|error| unread(error, BODY_BYTES_MAX))
    }

    /// Asks something with credentials, in its turn, so that those who guess at the same time do not pass together.
    /// Wrong ones count against their user at the address that they come from. While these have to wait, `ask` is
    /// called with `true`, and answers right credentials that cannot be guessed; others with `None`.
    async fn log_in<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        (address, user): (Option<IpAddr>, Option<String>),
        ask: impl FnOnce(&Access, bool) -> Result<Option<T>, ServiceError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed_logins = self.failed_logins.clone();
        let in_turn = move |service: &Arc<dyn Service>| {
            let user = user.as_deref();
            let wait = address.and_then(|address| failed_logins.must_wait(address, user));
            let answer = ask(&service.access(), wait.is_some());
            let is_wrong = answer.as_ref().is_err_and(|error| error.kind == ErrorKind::Unauthenticated);
            if let Some(address) = address.filter(|_| is_wrong) {
                failed_logins.note(address, user, "the REST API");
            }
            if let (Some(address), Some(user), Ok(Some(_))) = (address, user, &answer) {
                failed_logins.note_right(address, user);
            }
            answer?.ok_or_else(|| ApiError::after_wrong_ones(wait.unwrap_or_default(), user.is_some()))
        };
        self.call(permits, in_turn).await?
    }

    /// Who shows a token, with the certificate of the connection.
    async fn check_token(
        &self,
        secret: Vec<u8>,
        certificate: Option<Arc<str>>,
        address: Option<IpAddr>,
    ) -> Result<Caller, ApiError> {
        let origin = Some(Origin { address, door: "http" });
        let authenticate = move |access: &Access, waits: bool| {
            let certificate = certificate.as_deref();
            let credentials = Credentials { user: None, secret: Some(&secret), certificate, origin };
            match waits {
                false => access.authenticate(&credentials).map(Some),
                true => Ok(access.authenticate_at_once(&credentials)),
            }
        };
        self.log_in(&self.login_permits, (address, None), authenticate).await
    }

    /// Where a request comes from, of which trusted proxies tell; `None` if it came without a connection.
    fn address_of(&self, parts: &Parts) -> Option<IpAddr> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip();
        Some(client_address(peer, &parts.headers, &self.bounds.trusted_proxies))
    }

    /// Whether a trusted proxy says that it has the request by HTTPS.
    fn is_encrypted_by_proxy(&self, parts: &Parts) -> bool {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip().to_canonical());
        let scheme = parts.headers.get("x-forwarded-proto").and_then(|scheme| scheme.to_str().ok());
        // Of several proxies, the first is that of the browser.
        let is_https = scheme.and_then(|scheme| scheme.split(',').next());
        let is_https = is_https.is_some_and(|scheme| scheme.trim().eq_ignore_ascii_case("https"));
        is_https && peer.is_some_and(|peer| self.bounds.trusted_proxies.has_address(peer))
    }

    /// The same as text.
    pub(super) async fn read_text(&self, body: Body) -> Result<Text, ApiError> {
        let (bytes, held) = self.read_bytes(body).await?;
        Text::of(bytes, held)
    }

    /// The same for SQL, whose reading takes much more than its text.
    pub(super) async fn read_sql(&self, body: Body) -> Result<Text, ApiError> {
        let Text { text, _held: [held, _] } = self.read_text(body).await?;
        let budget = &self.bounds.budget;
        let rest = budget.bytes() - held.as_ref().map_or(0, Held::num_permits);
        let cost = (SQL_COST * text.len().min(STATEMENT_BYTES_MAX)).min(rest);
        // Not for ever: whoever waits holds its text meanwhile, and all of them may hold all there is.
        let room = tokio::time::timeout(ROOM_WAIT, budget.take(cost)).await;
        let room = room.map_err(|_| ApiError::no_room("there is no memory for reading the SQL at present"))?;
        Ok(Text { text, _held: [held, Some(room)] })
    }
}

/// The token that a request shows: by itself, or by the session of a browser.
fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    bearer(headers).or_else(|| cookies::token(headers).filter(|_| !headers.contains_key(header::AUTHORIZATION)))
}

/// A request of a known caller.
pub(super) struct Authenticated {
    api: Api,
    access: Arc<Access>,
    caller: Caller,
    address: Option<IpAddr>,
}

impl FromRequestParts<Api> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let address = api.address_of(parts);
        let secret = shown(&parts.headers);
        let certificate = parts.extensions.get::<Encrypted>().and_then(|encrypted| encrypted.certificate.clone());
        let access = api.service.get().ok_or_else(ApiError::starting)?.access();
        let origin = Some(Origin { address, door: "http" });
        let caller = match secret.map(<[u8]>::to_vec) {
            None => {
                let certificate = certificate.as_deref();
                access.authenticate(&Credentials { certificate, origin, ..Credentials::default() })?
            }
            Some(secret) => api.check_token(secret, certificate, address).await?,
        };
        count_request(&access, &caller).await?;
        let caller = match parts.headers.get(TENANT_HEADER) {
            Some(tenant) => {
                let tenant = str::from_utf8(tenant.as_bytes());
                access.in_tenant(&caller, tenant.map_err(|_| ApiError::invalid("rivulet-tenant is not UTF-8"))?)?
            }
            None => caller,
        };
        Ok(Self { api: api.clone(), access, caller, address })
    }
}

/// A request of anybody: probes have no name.
pub(super) enum MaybeAuthenticated {
    Known(Authenticated),
    Stranger(Api),
}

impl FromRequestParts<Api> for MaybeAuthenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let access = api.service.get().ok_or_else(ApiError::starting)?.access();
        if !access.has_accounts()
            || parts.headers.contains_key(header::AUTHORIZATION)
            || shown(&parts.headers).is_some()
        {
            return Authenticated::from_request_parts(parts, api).await.map(Self::Known);
        }
        // A certificate may name a user, and is no reason to refuse a probe if it names none.
        let certificate = parts.extensions.get::<Encrypted>().and_then(|encrypted| encrypted.certificate.clone());
        let credentials = Credentials { certificate: certificate.as_deref(), ..Credentials::default() };
        match certificate.is_some() && access.authenticate_at_once(&credentials).is_some() {
            true => Authenticated::from_request_parts(parts, api).await.map(Self::Known),
            false => Ok(Self::Stranger(api.clone())),
        }
    }
}

impl MaybeAuthenticated {
    /// Whether events are being processed, and what is wrong although they are; and whether the client may be told.
    pub(super) async fn health(self) -> Result<(Result<Vec<String>, ServiceError>, bool), ApiError> {
        let (api, caller) = match self {
            Self::Known(Authenticated { api, caller, .. }) => (api, Some(caller)),
            Self::Stranger(api) => (api, None),
        };
        let look = move |service: &Arc<dyn Service>| {
            let is_told = caller.is_some_and(|caller| service.session(caller).sees_problems());
            (service.ready().map(|()| service.problems()), is_told)
        };
        api.call(&api.look_permits, look).await
    }
}

/// Counts a request for the rate of its caller's tenant.
async fn count_request(access: &Access, caller: &Caller) -> Result<(), ApiError> {
    if let Err(error) = access.quotas().of(caller.tenant()).request() {
        // A client that asks again at once is slowed down with that.
        tokio::time::sleep(REFUSAL_WAIT).await;
        return Err(error.into());
    }
    Ok(())
}

/// A request of somebody who is to be found out.
pub(super) struct Visitor {
    api: Api,
    address: Option<IpAddr>,
    is_encrypted: bool,
}

impl FromRequestParts<Api> for Visitor {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let is_encrypted = parts.extensions.get::<Encrypted>().is_some() || api.is_encrypted_by_proxy(parts);
        Ok(Self { api: api.clone(), address: api.address_of(parts), is_encrypted })
    }
}

impl Visitor {
    /// Reads the small body of a login.
    pub(super) async fn read_text(&self, body: Body) -> Result<Text, ApiError> {
        let read = read_body(body, LOGIN_BYTES_MAX, &self.api.bounds.budget, 1).await;
        let (bytes, held) = read.map_err(|error| unread(error, LOGIN_BYTES_MAX))?;
        Text::of(bytes, held)
    }

    /// Whether what is answered cannot be read on its way.
    pub(super) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether somebody has this token.
    pub(super) async fn check_token(&self, token: Vec<u8>) -> Result<(), ApiError> {
        self.api.check_token(token, None, self.address).await.map(drop)
    }

    /// Exchanges the name and the password of a user for a token. It is a request of the user's tenant once the
    /// password is right: guesses use up no rate of a tenant.
    pub(super) async fn log_in(&self, user: String, password: String) -> Result<AccountAnswer, ApiError> {
        let access = self.api.service.get().ok_or_else(ApiError::starting)?.access();
        let origin = Some(Origin { address: self.address, door: "http" });
        let pair = (self.address, Some(user.clone()));
        let check = move |access: &Access, waits: bool| {
            let secret = Some(password.as_bytes());
            let credentials = Credentials { user: Some(&user), secret, origin, ..Credentials::default() };
            if waits { Ok(None) } else { access.check_password(&credentials).map(Some) }
        };
        let caller = self.api.log_in(&self.api.password_permits, pair, check).await?;
        count_request(&access, &caller).await?;
        let issue = move |service: &Arc<dyn Service>| service.access().issue_token(&caller, origin);
        Ok(self.api.call(&self.api.login_permits, issue).await??)
    }
}

impl Deref for Authenticated {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Authenticated {
    /// Who asks.
    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// What decides what the caller may do.
    pub(super) fn access(&self) -> Arc<Access> {
        self.access.clone()
    }

    /// The address that the request comes from; `None` if it came without a connection.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Asks the service on a thread that may block.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Session<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.turns.take(self.caller.tenant()).await;
        self.ask(&self.call_permits, move |session| {
            // To the end of the call, also if nobody waits for its answer any more.
            let _turn = turn;
            ask(session)
        })
        .await
    }

    /// Looks at the state of the service, which takes moments only, on a thread that may block.
    pub(super) async fn looking<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Session<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.ask(&self.look_permits, ask).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        ask: impl FnOnce(&Session<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let caller = self.caller.clone();
        self.call(permits, move |service| ask(&service.session(caller))).await
    }
}

/// The text of a body, with the memory that it counts for.
pub(super) struct Text {
    text: String,
    _held: [Option<Held>; 2],
}

impl Text {
    fn of(bytes: Vec<u8>, held: Held) -> Result<Self, ApiError> {
        let text = String::from_utf8(bytes).map_err(|_| ApiError::invalid("the body is not UTF-8 text"))?;
        Ok(Self { text, _held: [Some(held), None] })
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// Tells streams that the server is stopping.
#[derive(Clone)]
pub(super) struct Stop(pub(super) watch::Receiver<bool>);

impl Stop {
    /// Completes when the server is told to stop.
    pub(super) async fn stopped(&mut self) {
        // An error means that the server is gone altogether.
        let _ = self.0.wait_for(|stopping| *stopping).await;
    }
}

/// Why a body was not read, as an answer.
fn unread(error: BodyError, bytes_max: usize) -> ApiError {
    match error {
        BodyError::TooLarge => {
            let message = format!("the body is larger than {bytes_max} bytes");
            let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message);
            match bytes_max {
                BODY_BYTES_MAX => error.with_hint("submit many queries at /api/v1/queries/bulk, which has no limit"),
                _ => error.with_hint("send the user and the password alone"),
            }
        }
        BodyError::NoRoom => ApiError::no_room("there is no memory for the request at present"),
        BodyError::Stalled(problem) => ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", problem)
            .with_hint("send faster; http.body_timeout_s is how long each KiB may take"),
        BodyError::Broken(problem) => ApiError::invalid(format!("the body could not be read: {problem}")),
    }
}

/// The name in a path. One that is no text is refused in JSON, as everything is.
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(rejection) => Err(ApiError::invalid(rejection.body_text())),
        }
    }
}

/// How many entries a page has.
///
/// # Errors
/// Outside of 1 to [`QUERIES_PAGE_MAX`].
pub(super) fn page_limit(limit: Option<usize>) -> Result<usize, ApiError> {
    let limit = limit.unwrap_or(PAGE_LIMIT_DEFAULT);
    if !(1..=QUERIES_PAGE_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit is {limit}, expected 1 to {QUERIES_PAGE_MAX}")));
    }
    Ok(limit)
}

/// The parameters behind the path of a request.
pub(super) struct Parameters<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(parameters)) => Ok(Self(parameters)),
            Err(rejection) => {
                Err(ApiError::invalid(rejection.body_text()).with_hint("/api/docs shows the parameters of each path"))
            }
        }
    }
}
