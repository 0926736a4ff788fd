//! The REST API: JSON over HTTP/1.1, described by an OpenAPI document at `/api/openapi.json` and a page to try it at
//! `/api/docs`.
//!
//! What must hold: a request never harms another one. Bodies, batches and waiting answers are counted against one bound
//! ([`Budget`]), and a client that is too slow with either is cut off (`rivulet-connectors`, `http_server`); every call
//! of the service runs on a thread that may block; a panic in there is one answer with status 500. A request that was
//! made for another host, or by a page of another site, gets nothing. Handlers reach the service only through the
//! session of the request's caller ([`call::Authenticated`]).

mod accounts;
mod activity;
mod applications;
mod audit;
mod backup;
mod big_queries;
mod browsers;
mod bulk;
mod call;
mod clients;
mod console;
mod cookies;
mod error;
mod history;
mod lines;
mod metrics;
mod moments;
mod passwords;
mod queries;
mod results;
mod secrets;
mod session;
mod sql;
mod tables;
mod tenants;
mod status;
mod submission;
mod trial;
mod turns;
pub mod types;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use rivulet_connectors::http_server::{self, Budget, Encrypted, Hosts, Keeping, ServerOptions};
use rivulet_connectors::reach::AllowedHosts;
use rivulet_connectors::tls::{Certificates, Prepared};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use utoipa::OpenApi;
use utoipa::openapi::{Content, Ref, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::config::HttpConfig;
use crate::service::Service;

use call::{Api, Bounds, Stop, WATCH_MAX};
use error::ApiError;

/// How large an answer may be that is not counted.
const ANSWER_FREE_BYTES: u64 = 64 << 10;

/// How long requests under way may take after the server was told to stop.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// For a year a browser asks only by HTTPS.
const TLS_ONLY: &str = "max-age=31536000";

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
    let certificates = Certificates::new(LISTENER, Prepared::read(config.tls.as_ref()).map_err(io::Error::other)?);
    let config = watch::channel(config.clone()).1;
    serve_once_started((listener, certificates), Arc::new(OnceLock::from(service)), config, shutdown).await
}

/// The API, as the log calls its listener.
pub const LISTENER: &str = "the REST API";

/// The same for a service that is still starting: until it is there, `/health/live` says that the process lives, and
/// every other answer is 503. Hosts, timeouts, the bound on connections and certificates may change; the rest of the
/// configuration stays what it was.
///
/// # Errors
/// If the listener fails for good.
pub async fn serve_once_started(
    (listener, certificates): (TcpListener, Arc<Certificates>),
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
        watchers: Arc::default(),
        address_share_percent: Arc::new(config.address_share_percent.into()),
        trusted_proxies: config.trusted_proxies.clone(),
    };
    let (watch_max_now, share_now) = (bounds.watch_max.clone(), bounds.address_share_percent.clone());
    let api = Api::new(service, hosts_now, bounds, Stop(stop.clone()));
    let (router, past) = (router(api.clone()), history::note(api));
    let (options, options_now) = watch::channel(server_options(&config));
    let server = http_server::serve(listener, certificates, router, options_now, async move {
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
            share_now.store(config.address_share_percent, Ordering::Relaxed);
            options.send_replace(server_options(&config));
        }
        std::future::pending().await
    };
    tokio::select! {
        () = server => {}
        () = give_up => {}
        () = follow => {}
        () = past => {}
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
        address_share_percent: config.address_share_percent,
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
        watchers: Arc::default(),
        address_share_percent: Arc::new(100.into()),
        trusted_proxies: AllowedHosts::none("http.trusted_proxies"),
    };
    router(Api::new(Arc::new(OnceLock::from(service)), hosts, bounds, Stop(stopping)))
}

/// The OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().1
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
        (name = "secrets", description = "Values that options of sources and sinks name, and that are never shown"),
        (name = "queries", description = "Applications bound to one user's values and topics; and big queries"),
        (name = "accounts", description = "Tenants, users, their passwords, tokens and rights"),
        (name = "server", description = "Status, metrics and health"),
    )
)]
struct Document;

/// The paths, and the document of them.
fn routes() -> (Router<Api>, utoipa::openapi::OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sql::run_script))
        .routes(routes!(applications::list_applications, applications::create_application))
        .routes(routes!(applications::show_application, applications::drop_application))
        .routes(routes!(applications::explain_application))
        .routes(routes!(trial::try_application))
        .routes(routes!(tables::list_tables, tables::create_table))
        .routes(routes!(tables::show_table, tables::drop_table))
        .routes(routes!(tables::refresh_table))
        .routes(routes!(secrets::list_secrets))
        .routes(routes!(secrets::put_secret, secrets::drop_secret))
        .routes(routes!(queries::list_queries, queries::submit_query))
        .routes(routes!(bulk::submit_bulk))
        .routes(routes!(big_queries::list_big_queries, big_queries::create_big_query))
        .routes(routes!(big_queries::show_dataflow))
        .routes(routes!(queries::show_query, queries::alter_query, queries::drop_query))
        .routes(routes!(queries::pause_query))
        .routes(routes!(queries::resume_query))
        .routes(routes!(results::watch_results))
        .routes(routes!(results::watch_select))
        .routes(routes!(tenants::list_tenants, tenants::create_tenant))
        .routes(routes!(tenants::alter_tenant, tenants::drop_tenant))
        .routes(routes!(accounts::list_users, accounts::create_user))
        .routes(routes!(accounts::drop_user))
        .routes(routes!(passwords::put_password, passwords::drop_password))
        .routes(routes!(passwords::log_in))
        .routes(routes!(session::show_session, session::begin_session, session::end_session))
        .routes(routes!(accounts::list_tokens, accounts::create_token))
        .routes(routes!(accounts::drop_token))
        .routes(routes!(accounts::rotate_token))
        .routes(routes!(accounts::list_grants, accounts::grant))
        .routes(routes!(accounts::revoke))
        .routes(routes!(audit::show_audit))
        .routes(routes!(status::show_status))
        .routes(routes!(clients::list_clients))
        .routes(routes!(history::show_history))
        .routes(routes!(status::make_checkpoint))
        .routes(routes!(backup::make_backup))
        .routes(routes!(metrics::show_metrics))
        .routes(routes!(status::live))
        .routes(routes!(status::ready))
        .split_for_parts();
    // Any answer of the API may be an error. Only errors with more to say are described at their paths.
    let content = Content::new(Some(Ref::from_schema_name("ErrorAnswer")));
    let error = ResponseBuilder::new().description("An error").content("application/json", content).build();
    for (_, item) in document.paths.paths.iter_mut().filter(|(path, _)| path.starts_with("/api/")) {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            responses.entry("default".into()).or_insert_with(|| error.clone().into());
        }
    }
    (router, document)
}

fn router(api: Api) -> Router {
    let (router, document) = routes();
    console::routes(router)
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

/// Whether a browser is to ask this host by HTTPS only, from now on: if it has just done so. `localhost` stays as it
/// is, because the browser would do that with all that is developed on its machine.
fn asks_for_tls_only(request: &Request) -> bool {
    let host = request.headers().get(header::HOST).map_or(&[][..], HeaderValue::as_bytes);
    request.extensions().get::<Encrypted>().is_some() && !host.starts_with(b"localhost")
}

/// Protects every answer, refusals too, from pages of other sites.
async fn admit(State(api): State<Api>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut answer = answer_of(&api, request, next).await.into_response();
    browsers::protect(&path, answer.headers_mut());
    answer
}

/// Refuses what is for another host, and what a page of another site asks for; and counts what is answered until it is
/// sent.
async fn answer_of(api: &Api, request: Request, next: Next) -> Result<Response, ApiError> {
    let is_for_here = api.hosts.borrow().check(request.uri(), request.headers());
    is_for_here.map_err(|problem| {
        ApiError::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", problem)
            .with_hint("http.hosts lists the names under which the server is asked besides localhost and its address")
    })?;
    browsers::check(&request)?;
    let needs_tls = asks_for_tls_only(&request);
    let mut answer = next.run(request).await;
    if needs_tls {
        answer.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(TLS_ONLY));
    }
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
