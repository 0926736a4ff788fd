//! The HTTP request that begins a WebSocket.
//!
//! What must hold: a browser lets every page open a WebSocket to every host, and no rule of same origin stops it. So
//! the listener itself checks that the request is for it, and that its page may connect.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncWrite};

use super::WebSocket;
use crate::http_server::{Hosts, Origins};

/// The paths of the listener; clients ask for the first one by habit.
const PATHS: [&str; 2] = ["/mqtt", "/"];

/// The subprotocol of MQTT 3.1.1 and 5.
const SUBPROTOCOL: &str = "mqtt";

/// The version of WebSocket in RFC 6455.
const VERSION: &str = "13";

/// What is hashed behind the client's key (RFC 6455, 1.3).
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The largest head of the request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What a listener for WebSockets checks of its clients.
#[derive(Clone, Debug)]
pub struct WebSocketOptions {
    /// The names under which it is asked.
    pub hosts: Hosts,
    /// The pages of other sites that may connect.
    pub origins: Origins,
}

/// Answers the request that begins a connection. Returns the WebSocket if it is one; any other request is answered with
/// what was wrong. Takes as long as the client takes, but no longer than `limit` for the request. `is_encrypted` says
/// whether the stream is within TLS.
pub(in crate::mqtt) async fn accept(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    options: &WebSocketOptions,
    is_encrypted: bool,
    limit: Duration,
) -> Option<WebSocket<TokioIo<Upgraded>>> {
    let upgrade: Mutex<Option<OnUpgrade>> = Mutex::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let answer = match check(&request, options, is_encrypted) {
            Ok(key) => {
                *upgrade.lock() = Some(hyper::upgrade::on(&mut request));
                accepted(&key)
            }
            Err((status, problem)) => refused(status, problem),
        };
        async { Ok::<_, Infallible>(answer) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limit).max_buf_size(HEAD_BYTES_MAX);
    // The connection ends with the first answer, whatever it is.
    builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await.ok()?;
    let upgraded = upgrade.into_inner()?.await.ok()?;
    Some(WebSocket::new(TokioIo::new(upgraded)))
}

/// The key of a request for a WebSocket, or why it is refused.
fn check(
    request: &Request<Incoming>,
    options: &WebSocketOptions,
    is_encrypted: bool,
) -> Result<HeaderValue, (StatusCode, String)> {
    let headers = request.headers();
    let refuse = |status, problem: &str| Err((status, problem.to_owned()));
    options.hosts.check(request.uri(), headers).map_err(|problem| (StatusCode::MISDIRECTED_REQUEST, problem))?;
    if !options.origins.admit(request.method(), headers, is_encrypted) {
        let problem = "pages of this site may not connect; mqtt.embedded.websocket.origins lists those that may";
        return refuse(StatusCode::FORBIDDEN, problem);
    }
    if request.method() != Method::GET || !PATHS.contains(&request.uri().path()) {
        return refuse(StatusCode::NOT_FOUND, "here is MQTT over WebSocket, at the path /mqtt");
    }
    if !has_word(headers, header::CONNECTION, "upgrade") || !has_word(headers, header::UPGRADE, "websocket") {
        return refuse(StatusCode::UPGRADE_REQUIRED, "here is MQTT over WebSocket");
    }
    if !has_word(headers, header::SEC_WEBSOCKET_VERSION, VERSION) {
        return refuse(StatusCode::UPGRADE_REQUIRED, "here is version 13 of WebSocket");
    }
    if !has_word(headers, header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
        return refuse(StatusCode::BAD_REQUEST, "the request does not offer the subprotocol mqtt");
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    match key.filter(|key| STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16)) {
        Some(key) => Ok(key.clone()),
        None => refuse(StatusCode::BAD_REQUEST, "the request has no valid Sec-WebSocket-Key"),
    }
}

/// Whether a header that is a list has a word.
fn has_word(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let lists = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
}

fn accepted(key: &HeaderValue) -> Response<Body> {
    let hashed = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), KEY_SUFFIX].concat());
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    if let Ok(accept) = HeaderValue::try_from(STANDARD.encode(hashed)) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    answer
}

fn refused(status: StatusCode, problem: String) -> Response<Body> {
    let mut answer = Response::new(Body::from(problem + "\n"));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if status == StatusCode::UPGRADE_REQUIRED {
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
    }
    answer
}
