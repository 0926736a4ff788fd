//! The REST API: JSON over HTTP/1.1, described by an OpenAPI document at `/api/openapi.json` and a page to try it at
//! `/api/docs`.
//!
//! What must hold: a request never harms another one. Bodies, batches and waiting answers are counted against one bound
//! ([`Budget`]), and a client that is too slow with either is cut off (`rivulet-connectors`, `http_server`); every call
//! of the service runs on a thread that may block; a panic in there is one answer with status 500. A request that was
//! made for another host, or by a page of another site, gets nothing. Handlers reach the service only through the
//! session of the request's caller ([`Authenticated`]).

mod activity;
mod applications;
mod backup;
mod big_queries;
mod bulk;
mod error;
mod lines;
mod metrics;
mod queries;
mod results;
mod sql;
mod tables;
mod status;
mod submission;
pub mod types;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Redirect, Response};
use axum::routing::get;
use rivulet_connectors::http_server::{
    self, BodyError, Budget, Held, Hosts, Keeping, ServerOptions, is_of_other_site, read_body,
};
use rivulet_connectors::logins::FailedLogins;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::config::HttpConfig;
use crate::service::{Caller, Credentials, Service, ServiceError, Session};

use error::ApiError;

/// The largest body of a request that is read as a whole.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Calls of the service at a time; others wait.
const CALLS_MAX: usize = 64;

/// Looks at the state of the service at a time. They have places of their own: who asks how the server is must not wait
/// for statements that take long.
const LOOKS_MAX: usize = 8;

/// Logins at a time; others wait. They may ask a server elsewhere, and keep nothing else from its turn meanwhile.
const LOGINS_MAX: usize = 8;

/// Clients that watch results at a time, at most; others are refused.
const WATCH_MAX: usize = 1024;

/// How much memory a byte of SQL takes at most while it is read, as tokens and a syntax tree. Measured with lists of
/// numbers of one digit.
const SQL_COST: usize = 700;

/// The longest query; of a longer script one statement is in memory at a time.
const STATEMENT_BYTES_MAX: usize = 256 << 10;

/// How long a script waits for the memory that reading it takes.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// How large an answer may be that is not counted.
const ANSWER_FREE_BYTES: u64 = 64 << 10;

/// How long requests under way may take after the server was told to stop.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// How another address is chosen.
const CHOOSE: &str = "choose another address with --http-address, RIVULET_HTTP_ADDRESS or http.address in rivulet.toml";

/// Why the API cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on http://{address}: {source}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// What the system said.
    pub source: io::Error,
}

impl ListenError {
    /// What to do about it, in one sentence.
    pub fn hint(&self) -> String {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                format!("another program (perhaps another Rivulet) uses port {}; {CHOOSE}", self.address.port())
            }
            io::ErrorKind::PermissionDenied => {
                format!("ports below 1024 need privileges; {CHOOSE}")
            }
            io::ErrorKind::AddrNotAvailable => {
                "the address is none of this machine's; 127.0.0.1 is this machine alone, 0.0.0.0 every network".into()
            }
            _ => CHOOSE.into(),
        }
    }
}

/// Takes the address for [`serve`]; port 0 takes any free port.
///
/// # Errors
/// [`ListenError`], mostly because the port is in use.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    http_server::listen(address).map_err(|source| ListenError { address, source })
}

/// Answers requests until `shutdown` completes; then finishes the requests under way, but waits at most 10 s for them.
///
/// # Errors
/// If the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    service: Arc<dyn Service>,
    config: &HttpConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let config = watch::channel(config.clone()).1;
    serve_once_started(listener, Arc::new(OnceLock::from(service)), config, shutdown).await
}

/// The same for a service that is still starting: until it is there, `/health/live` says that the process lives, and
/// every other answer is 503. Hosts, timeouts and the bound on connections may change; the rest of the configuration
/// stays what it was.
///
/// # Errors
/// If the listener fails for good.
pub async fn serve_once_started(
    listener: TcpListener,
    service: Arc<OnceLock<Arc<dyn Service>>>,
    mut configs: watch::Receiver<HttpConfig>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stop) = watch::channel(false);
    let config = configs.borrow_and_update().clone();
    let address = listener.local_addr()?.ip();
    let (hosts, hosts_now) = watch::channel(Hosts::new(&config.hosts, address));
    let bounds = Bounds {
        budget: Budget::new(config.bytes_max),
        watch_permits: Semaphore::new(WATCH_MAX).into(),
        watch_max: Arc::new(watch_max(&config).into()),
    };
    let watch_max_now = bounds.watch_max.clone();
    let router = router(service, hosts_now, bounds, Stop(stop.clone()));
    let (options, options_now) = watch::channel(server_options(&config));
    let server = http_server::serve(listener, router, options_now, async move {
        shutdown.await;
        stopping.send_replace(true);
    });
    let mut stop = Stop(stop);
    let give_up = async {
        stop.stopped().await;
        tokio::time::sleep(STOP_WAIT).await;
    };
    let follow = async {
        while configs.changed().await.is_ok() {
            let config = configs.borrow_and_update().clone();
            hosts.send_replace(Hosts::new(&config.hosts, address));
            watch_max_now.store(watch_max(&config), Ordering::Relaxed);
            options.send_replace(server_options(&config));
        }
        std::future::pending().await
    };
    tokio::select! {
        () = server => {}
        () = give_up => {}
        () = follow => {}
    }
    Ok(())
}

/// How many clients may watch results.
fn watch_max(config: &HttpConfig) -> usize {
    (config.connections_max / 2).clamp(1, WATCH_MAX)
}

fn server_options(config: &HttpConfig) -> ServerOptions {
    ServerOptions {
        connections_max: config.connections_max,
        head_timeout: config.head_timeout,
        stall_timeout: config.body_timeout,
        shared: None,
    }
}

/// What [`serve`] answers with, for who brings requests without connections; `stopping` is set when the server stops.
pub fn without_listener(service: Arc<dyn Service>, stopping: watch::Receiver<bool>) -> Router {
    let hosts = watch::channel(Hosts::new("*", Ipv4Addr::LOCALHOST.into())).1;
    let bounds = Bounds {
        budget: Budget::new(1 << 30),
        watch_permits: Semaphore::new(WATCH_MAX).into(),
        watch_max: Arc::new(WATCH_MAX.into()),
    };
    router(Arc::new(OnceLock::from(service)), hosts, bounds, Stop(stopping))
}

/// The OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().into_openapi()
}

/// What handlers share.
#[derive(Clone)]
struct Api {
    /// Empty while it starts.
    service: Arc<OnceLock<Arc<dyn Service>>>,
    call_permits: Arc<Semaphore>,
    look_permits: Arc<Semaphore>,
    login_permits: Arc<Semaphore>,
    failed_logins: Arc<FailedLogins>,
    bounds: Bounds,
    hosts: watch::Receiver<Hosts>,
    stop: Stop,
}

/// What all requests together keep to.
#[derive(Clone)]
struct Bounds {
    /// Memory of bodies and of answers that are not yet sent.
    budget: Budget,
    /// One for each client that watches results, [`WATCH_MAX`] in all.
    watch_permits: Arc<Semaphore>,
    /// How many clients may watch results at present.
    watch_max: Arc<AtomicUsize>,
}

impl Api {
    /// Whether events are being processed, and what is wrong although they are. Anybody may know: probes have no name.
    async fn health(&self) -> Result<Result<Vec<String>, ServiceError>, ApiError> {
        self.call(&self.look_permits, |service| service.ready().map(|()| service.problems())).await
    }

    async fn call<T: Send + 'static>(
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
    async fn read_bytes(&self, body: Body) -> Result<(Vec<u8>, Held), ApiError> {
        read_body(body, BODY_BYTES_MAX, &self.bounds.budget, 1).await.map_err(unread)
    }

    /// The same as text.
    async fn read_text(&self, body: Body) -> Result<Text, ApiError> {
        let (bytes, held) = self.read_bytes(body).await?;
        let text = String::from_utf8(bytes).map_err(|_| ApiError::invalid("the body is not UTF-8 text"))?;
        Ok(Text { text, _held: [Some(held), None] })
    }

    /// The same for SQL, whose reading takes much more than its text.
    async fn read_sql(&self, body: Body) -> Result<Text, ApiError> {
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

/// A request of a known caller.
struct Authenticated {
    api: Api,
    caller: Caller,
}

impl FromRequestParts<Api> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let secret =
            parts.headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let caller = match secret.map(<[u8]>::to_vec) {
            None => api.service.get().ok_or_else(ApiError::starting)?.access().authenticate(&Credentials::default()),
            Some(secret) => {
                let address = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
                let failed_logins = api.failed_logins.clone();
                // In its turn, so that those who guess at the same time do not pass together.
                let authenticate = move |service: &Arc<dyn Service>| {
                    if let Some(wait) = address.and_then(|address| failed_logins.must_wait(address)) {
                        return Err(ApiError::after_wrong_tokens(wait));
                    }
                    let caller = service.access().authenticate(&Credentials { user: None, secret: Some(&secret) });
                    if let (Err(_), Some(address)) = (&caller, address) {
                        failed_logins.note(address, "the REST API");
                    }
                    Ok(caller)
                };
                api.call(&api.login_permits, authenticate).await??
            }
        };
        Ok(Self { api: api.clone(), caller: caller? })
    }
}

impl Deref for Authenticated {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Authenticated {
    /// Asks the service on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Session<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.ask(&self.call_permits, ask).await
    }

    /// Looks at the state of the service, which takes moments only, on a thread that may block.
    async fn looking<T: Send + 'static>(
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
struct Text {
    text: String,
    _held: [Option<Held>; 2],
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// Tells streams that the server is stopping.
#[derive(Clone)]
struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Completes when the server is told to stop.
    async fn stopped(&mut self) {
        // An error means that the server is gone altogether.
        let _ = self.0.wait_for(|stopping| *stopping).await;
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Rivulet",
        description = "Register applications, submit queries by the hundred thousand, watch their results."
    ),
    tags(
        (name = "sql", description = "Everything, as SQL"),
        (name = "applications", description = "Registered code with declared parameters"),
        (name = "tables", description = "Rows from files, for applications to look events up in"),
        (name = "queries", description = "Applications bound to one user's values and topics; and big queries"),
        (name = "server", description = "Status, metrics and health"),
    )
)]
struct Document;

fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sql::run_script))
        .routes(routes!(applications::list_applications, applications::create_application))
        .routes(routes!(applications::show_application, applications::drop_application))
        .routes(routes!(applications::explain_application))
        .routes(routes!(tables::list_tables, tables::create_table))
        .routes(routes!(tables::show_table, tables::drop_table))
        .routes(routes!(tables::refresh_table))
        .routes(routes!(queries::list_queries, queries::submit_query))
        .routes(routes!(bulk::submit_bulk))
        .routes(routes!(big_queries::list_big_queries, big_queries::create_big_query))
        .routes(routes!(queries::show_query, queries::alter_query, queries::drop_query))
        .routes(routes!(queries::pause_query))
        .routes(routes!(queries::resume_query))
        .routes(routes!(results::watch_results))
        .routes(routes!(results::watch_select))
        .routes(routes!(status::show_status))
        .routes(routes!(status::make_checkpoint))
        .routes(routes!(backup::make_backup))
        .routes(routes!(metrics::show_metrics))
        .routes(routes!(status::live))
        .routes(routes!(status::ready))
}

fn router(
    service: Arc<OnceLock<Arc<dyn Service>>>,
    hosts: watch::Receiver<Hosts>,
    bounds: Bounds,
    stop: Stop,
) -> Router {
    let call_permits = Arc::new(Semaphore::new(CALLS_MAX));
    let look_permits = Arc::new(Semaphore::new(LOOKS_MAX));
    let login_permits = Arc::new(Semaphore::new(LOGINS_MAX));
    let failed_logins = Arc::default();
    let api = Api { service, call_permits, look_permits, login_permits, failed_logins, bounds, hosts, stop };
    let (router, document) = routes().split_for_parts();
    router
        .route("/", get(|| async { Redirect::temporary("/api/docs/") }))
        .merge(SwaggerUi::new("/api/docs").url("/api/openapi.json", document))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(api.clone(), admit))
        .with_state(api)
}

async fn no_such_path(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", format!("there is no path {}", uri.path()))
        .with_hint("/api/docs shows every path")
}

async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).with_hint("/api/docs shows every path")
}

/// Refuses what is for another host, and changes that a page of another site asks for; and counts what is answered
/// until it is sent.
async fn admit(State(api): State<Api>, request: Request, next: Next) -> Result<Response, ApiError> {
    let is_for_here = api.hosts.borrow().check(request.uri(), request.headers());
    is_for_here.map_err(|problem| {
        ApiError::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", problem)
            .with_hint("http.hosts lists the names under which the server is asked besides localhost and its address")
    })?;
    let is_change = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if is_change && is_of_other_site(request.headers()) {
        let message = "the request comes from a page of another site";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    let answer = next.run(request).await;
    match answer.body().size_hint().exact() {
        Some(bytes) if bytes > ANSWER_FREE_BYTES => {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let held = api.bounds.budget.try_take(bytes).ok_or_else(|| {
                ApiError::no_room("what was asked for was done, and there is no memory for the answer at present")
            })?;
            Ok(answer.map(|body| Body::new(Keeping::new(body, held))))
        }
        _ => Ok(answer),
    }
}

/// Why a body was not read, as an answer.
fn unread(error: BodyError) -> ApiError {
    match error {
        BodyError::TooLarge => {
            let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
                .with_hint("submit many queries at /api/v1/queries/bulk, which has no limit")
        }
        BodyError::NoRoom => ApiError::no_room("there is no memory for the request at present"),
        BodyError::Stalled(problem) => ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", problem)
            .with_hint("send faster; http.body_timeout_s is how long each KiB may take"),
        BodyError::Broken(problem) => ApiError::invalid(format!("the body could not be read: {problem}")),
    }
}

/// The name in a path. One that is no text is refused in JSON, as everything is.
struct Name(String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(rejection) => Err(ApiError::invalid(rejection.body_text())),
        }
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::invalid(rejection.body_text())
    }
}
