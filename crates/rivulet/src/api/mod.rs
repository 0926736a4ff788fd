//! The REST API: JSON over HTTP/1.1, described by an OpenAPI document at `/api/openapi.json` and a page to try it at
//! `/api/docs`.
//!
//! What must hold: a request never harms another one. Bodies, batches and waiting answers are bounded; every call of the
//! service runs on a thread that may block; a panic in there is one answer with status 500.

mod applications;
mod backup;
mod bulk;
mod error;
mod lines;
mod queries;
mod results;
mod sql;
mod tables;
mod status;
mod submission;
pub mod types;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Redirect, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::service::Service;

use error::ApiError;

/// The largest body of a request that is read as a whole.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Calls of the service at a time; others wait.
const CALLS_MAX: usize = 64;

/// Looks at the state of the service at a time. They have places of their own: who asks how the server is must not wait
/// for statements that take long.
const LOOKS_MAX: usize = 8;

/// Bulk submissions at a time; others are refused.
const BULK_MAX: usize = 64;

/// Clients that watch results at a time; others are refused.
const WATCH_MAX: usize = 1024;

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
    TcpListener::bind(address).await.map_err(|source| ListenError { address, source })
}

/// Answers requests until `shutdown` completes; then finishes the requests under way, but waits at most 10 s for them.
///
/// # Errors
/// If the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    service: Arc<dyn Service>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_once_started(listener, Arc::new(OnceLock::from(service)), shutdown).await
}

/// The same for a service that is still starting: until it is there, `/health/live` says that the process lives, and every other
/// answer is 503.
///
/// # Errors
/// If the listener fails for good.
pub async fn serve_once_started(
    listener: TcpListener,
    service: Arc<OnceLock<Arc<dyn Service>>>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stop) = watch::channel(false);
    let router = router(service, Stop(stop.clone()));
    // Answers are small and wanted at once.
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        shutdown.await;
        stopping.send_replace(true);
    });
    let mut stop = Stop(stop);
    let give_up = async {
        stop.stopped().await;
        tokio::time::sleep(STOP_WAIT).await;
    };
    tokio::select! {
        done = server => done,
        () = give_up => Ok(()),
    }
}

/// What [`serve`] answers with, for who brings requests without connections; `stopping` is set when the server stops.
pub fn without_listener(service: Arc<dyn Service>, stopping: watch::Receiver<bool>) -> Router {
    router(Arc::new(OnceLock::from(service)), Stop(stopping))
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
    bulk_permits: Arc<Semaphore>,
    watch_permits: Arc<Semaphore>,
    stop: Stop,
}

impl Api {
    /// Calls the service on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Service) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.call(&self.call_permits, call).await
    }

    /// Looks at the state of the service, which takes moments only, on a thread that may block.
    async fn looking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Service) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.call(&self.look_permits, call).await
    }

    async fn call<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        call: impl FnOnce(&dyn Service) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let service = self.service.get().cloned().ok_or_else(ApiError::starting)?;
        let permit = Arc::clone(permits).acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            call(service.as_ref())
        });
        done.await.map_err(|error| {
            tracing::error!(%error, "a call of the service failed");
            ApiError::internal("the request failed inside the server")
        })
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
        (name = "queries", description = "Applications bound to one user's values and topics"),
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
        .routes(routes!(queries::show_query, queries::drop_query))
        .routes(routes!(queries::pause_query))
        .routes(routes!(queries::resume_query))
        .routes(routes!(results::watch_results))
        .routes(routes!(status::show_status))
        .routes(routes!(status::make_checkpoint))
        .routes(routes!(backup::make_backup))
        .routes(routes!(status::show_metrics))
        .routes(routes!(status::live))
        .routes(routes!(status::ready))
}

fn router(service: Arc<OnceLock<Arc<dyn Service>>>, stop: Stop) -> Router {
    let api = Api {
        service,
        call_permits: Arc::new(Semaphore::new(CALLS_MAX)),
        look_permits: Arc::new(Semaphore::new(LOOKS_MAX)),
        bulk_permits: Arc::new(Semaphore::new(BULK_MAX)),
        watch_permits: Arc::new(Semaphore::new(WATCH_MAX)),
        stop,
    };
    let (router, document) = routes().split_for_parts();
    router
        .route("/", get(|| async { Redirect::temporary("/api/docs/") }))
        .merge(SwaggerUi::new("/api/docs").url("/api/openapi.json", document))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn(refuse_other_sites))
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

/// Refuses changes that a page of another site asks for: a browser lets any page post to this machine's ports, and says
/// in `Origin` which page it was. Programs send no `Origin`.
async fn refuse_other_sites(request: Request, next: Next) -> Result<Response, ApiError> {
    let headers = request.headers();
    if let Some(origin) = headers.get(header::ORIGIN)
        && !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
    {
        let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site.as_bytes());
        if site.is_none() || site != headers.get(header::HOST).map(|host| host.as_bytes()) {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "the request comes from a page of another site",
            ));
        }
    }
    Ok(next.run(request).await)
}

/// Reads a body as text, within bounds.
async fn read_text(body: Body) -> Result<String, ApiError> {
    let bytes = to_bytes(body, BODY_BYTES_MAX).await.map_err(|error| {
        // The limit is an error inside the error, and has no type to ask for.
        if error.to_string().contains("length limit") {
            let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
                .with_hint("submit many queries at /api/v1/queries/bulk, which has no limit")
        } else {
            ApiError::invalid(format!("the body could not be read: {error}"))
        }
    })?;
    String::from_utf8(bytes.into()).map_err(|_| ApiError::invalid("the body is not UTF-8 text"))
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
