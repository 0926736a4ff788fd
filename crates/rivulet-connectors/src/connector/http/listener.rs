//! A small HTTP server that takes posts into a bounded queue.
//!
//! What must hold: a post that was answered with 202 is in the queue; one that finds no room is answered so and leaves nothing. What
//! is held is bounded: bodies that are being read by their number and size, bodies that wait by their bytes.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

/// How many bodies are read at a time; more posts are told to come again.
const READING_MAX: usize = 64;

/// How many connections there are at a time; more wait to be taken.
const CONNECTIONS_MAX: usize = 1_024;

/// How long the head of a request may take, and how long a connection may wait for the next one: whoever sends a byte now and then,
/// or nothing, keeps no connection.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait when a connection cannot be taken, for example for want of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// What the length of a body is taken for at least, so that empty ones are bounded as well.
const BODY_BYTES_MIN: usize = 64;

/// How it listens.
#[derive(Clone, Debug)]
pub(super) struct ListenerOptions {
    pub(super) address: SocketAddr,
    pub(super) path: String,
    pub(super) body_bytes_max: usize,
    pub(super) queue_bytes_max: usize,
    /// Whether all bodies are lines.
    pub(super) is_lines: bool,
    pub(super) token: Option<String>,
    /// How long the head of a request may take.
    pub(super) head_timeout: Duration,
}

/// The body of a post.
#[derive(Clone, Debug)]
pub(super) struct Post {
    pub(super) body: Bytes,
    /// Whether each line is a payload.
    pub(super) is_lines: bool,
}

#[derive(Default)]
struct Queue {
    posts: VecDeque<Post>,
    bytes: usize,
}

struct Shared {
    options: ListenerOptions,
    queue: Mutex<Queue>,
    reading: Semaphore,
}

/// A server that runs until it is dropped.
pub(super) struct Listener {
    shared: Arc<Shared>,
    /// Dropping it stops the server.
    _stop: oneshot::Sender<()>,
}

impl Listener {
    /// Begins to listen, in a thread of its own.
    pub(super) fn start(options: ListenerOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.address)?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared { options, queue: Mutex::default(), reading: Semaphore::new(READING_MAX) });
        let head_timeout = shared.options.head_timeout;
        let router = Router::new().fallback(take).with_state(shared.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("http source".into()).spawn(move || {
            runtime.block_on(async {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!("the HTTP source does not listen: {error}"),
                };
                // Posts under way are given up with the source: nobody takes what they bring.
                tokio::select! {
                    () = serve(listener, router, head_timeout) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { shared, _stop: stop })
    }

    /// The post that waits longest.
    pub(super) fn take(&self) -> Option<Post> {
        let mut queue = self.shared.queue.lock();
        let post = queue.posts.pop_front()?;
        queue.bytes -= weight(&post.body);
        Some(post)
    }
}

/// Takes connections, and serves each in a task of its own.
async fn serve(listener: tokio::net::TcpListener, router: Router, head_timeout: Duration) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(permit) = connections.clone().acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("the HTTP source cannot take a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_timeout)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever breaks a connection off, or takes too long, is gone; what was answered is in the queue.
            let _ = served.await;
            drop(permit);
        });
    }
}

fn weight(body: &Bytes) -> usize {
    body.len().max(BODY_BYTES_MIN)
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let options = &shared.options;
    if request.uri().path() != options.path {
        return StatusCode::NOT_FOUND.into_response();
    }
    if request.method() != Method::POST {
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response();
    }
    if !is_authorized(request.headers(), options.token.as_deref()) {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response();
    }
    // Asked before the body is read, so that what finds no room costs nothing.
    let Ok(_permit) = shared.reading.try_acquire() else { return come_again() };
    if shared.queue.lock().bytes >= options.queue_bytes_max {
        return come_again();
    }
    let is_lines = options.is_lines || says_lines(request.headers());
    let body = to_bytes(request.into_body(), options.body_bytes_max);
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let message = format!("the body is broken or has more than {} bytes\n", options.body_bytes_max);
            return (StatusCode::PAYLOAD_TOO_LARGE, message).into_response();
        }
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    let mut queue = shared.queue.lock();
    // A body that is larger than all the room there is passes when nothing waits.
    if queue.bytes > 0 && queue.bytes + weight(&body) > options.queue_bytes_max {
        return come_again();
    }
    queue.bytes += weight(&body);
    queue.posts.push_back(Post { body, is_lines });
    StatusCode::ACCEPTED.into_response()
}

fn come_again() -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")]).into_response()
}

fn is_authorized(headers: &HeaderMap, token: Option<&str>) -> bool {
    let Some(token) = token else { return true };
    let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    let Some(given) = given.strip_prefix(b"Bearer ") else { return false };
    // Takes as long whichever byte differs.
    let different = given.iter().zip(token.as_bytes()).fold(0, |different, (a, b)| different | (a ^ b));
    given.len() == token.len() && different == 0
}

/// Whether the content type is one of lines.
fn says_lines(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(
        kind.as_str(),
        "application/x-ndjson"
            | "application/ndjson"
            | "application/jsonl"
            | "application/x-jsonlines"
            | "application/jsonlines"
            | "text/csv"
            | "text/plain"
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::thread::sleep;
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn whoever_takes_too_long_with_a_head_is_cut_off_and_others_are_not() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let options = ListenerOptions {
            address: free,
            path: "/in".into(),
            body_bytes_max: 1 << 10,
            queue_bytes_max: 1 << 20,
            is_lines: false,
            token: None,
            head_timeout: Duration::from_millis(300),
        };
        let listener = Listener::start(options).unwrap();
        let connect = || {
            let socket = TcpStream::connect(free).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let (mut slow, mut silent) = (connect(), connect());
        let begun = Instant::now();
        slow.write_all(b"POST /in HTTP/1.1\r\n").unwrap();
        // A byte now and then does not help.
        while slow.write_all(b"x").is_ok() {
            assert!(begun.elapsed() < PATIENCE, "it is never cut off");
            sleep(Duration::from_millis(50));
        }
        let mut answer = Vec::new();
        let _ = silent.read_to_end(&mut answer);
        assert!(begun.elapsed() < PATIENCE && answer.is_empty(), "one that says nothing is cut off too");
        let mut other = connect();
        other.write_all(b"POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}").unwrap();
        other.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 202"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(listener.take().unwrap().body, "{}");
    }
}
