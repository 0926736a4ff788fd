//! A small HTTP server that takes posts into a bounded queue.
//!
//! What must hold: a post that was answered with 202 is in the queue; one that was answered with 200 is safe, if its
//! source was opened for a host that confirms taken events; a post without room, or with a payload that is refused, is
//! answered so and leaves nothing behind. Memory is bounded: bodies that are being read by their number and size,
//! waiting bodies by their bytes. Posts from web pages are refused: this server serves none, so such a page is of
//! another site, or of a name that was made to resolve to this machine.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::connector::PayloadCheck;
use crate::descriptors::OF_HTTP_SOURCES;
use crate::http_server::{self, BodyError, Budget, Encrypted, Hosts, ServerOptions, is_of_other_site, read_body};
use crate::logins::{FailedLogins, is_secret};
use crate::tls::Certificates;

/// The most bytes of bodies that are being read; further posts are told to come again.
const READING_BYTES_MAX: usize = 64 << 20;

/// The bounds of connections. A connection that is silent for longer, or slower, is closed.
pub(super) const BOUNDS: ServerOptions = ServerOptions {
    connections_max: 1_024,
    // Behind a gateway all clients have one address.
    address_share_percent: 100,
    head_timeout: Duration::from_secs(10),
    stall_timeout: Duration::from_secs(30),
    shared: Some(&OF_HTTP_SOURCES),
};

/// The least size that a body counts for, so that empty ones are bounded as well.
const BODY_BYTES_MIN: usize = 64;

/// The options of listening.
#[derive(Clone)]
pub(super) struct ListenerOptions {
    pub(super) address: SocketAddr,
    pub(super) certificates: Arc<Certificates>,
    pub(super) path: String,
    pub(super) body_bytes_max: usize,
    pub(super) queue_bytes_max: usize,
    /// Whether all bodies are lines.
    pub(super) is_lines: bool,
    pub(super) token: Option<String>,
    /// How long an answer waits until the post is confirmed; `None` if it does not.
    pub(super) confirm_max: Option<Duration>,
    /// What payloads have to be; `None` if any will do.
    pub(super) check: Option<PayloadCheck>,
    /// The host names that posts may be for; all if `None`.
    pub(super) hosts: Option<Hosts>,
    pub(super) server: ServerOptions,
}

/// The shortest token that nobody can guess, in bytes.
const UNGUESSED_BYTES_MIN: usize = 32;

/// How long a post waits until it is confirmed.
pub(super) const CONFIRM_MAX: Duration = Duration::from_secs(30);

/// The body of a post.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) body: Bytes,
    /// Whether each line is a payload.
    pub(super) is_lines: bool,
    /// Notified when it is safe, if its sender waits for that.
    pub(super) confirm: Option<oneshot::Sender<()>>,
    /// Its place among all posts of the listener.
    number: u64,
    since: Instant,
}

/// Posts by their numbers.
#[derive(Default)]
struct Queue {
    posts: VecDeque<Post>,
    bytes: usize,
    next: u64,
}

impl Queue {
    /// Whether a post may join it. None may that would wait for its confirmation in vain, because nobody reads.
    fn has_room(&self, options: &ListenerOptions) -> bool {
        let is_in_vain = |max: Duration| self.posts.front().is_some_and(|post| post.since.elapsed() >= max / 6);
        self.bytes < options.queue_bytes_max && !options.confirm_max.is_some_and(is_in_vain)
    }

    fn push(&mut self, body: Bytes, is_lines: bool, confirm: Option<oneshot::Sender<()>>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.bytes += weight(&body);
        self.posts.push_back(Post { body, is_lines, confirm, number, since: Instant::now() });
        number
    }

    /// Takes a post back that the source has not taken; false if it has.
    fn withdraw(&mut self, number: u64) -> bool {
        let place = self.posts.binary_search_by_key(&number, |post| post.number);
        let Some(post) = place.ok().and_then(|place| self.posts.remove(place)) else { return false };
        self.bytes -= weight(&post.body);
        true
    }
}

struct Shared {
    options: ListenerOptions,
    queue: Mutex<Queue>,
    reading: Budget,
    failed_logins: FailedLogins,
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            http_server::listen(options.address)?
        };
        let shared = Arc::new(Shared {
            options,
            queue: Mutex::default(),
            reading: Budget::new(READING_BYTES_MAX),
            failed_logins: FailedLogins::default(),
        });
        let server = shared.options.server;
        let certificates = shared.options.certificates.clone();
        let router = Router::new().fallback(take).with_state(shared.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("http source".into()).spawn(move || {
            runtime.block_on(async {
                // Posts under way are abandoned with the source: their events would go nowhere.
                tokio::select! {
                    () = http_server::serve(listener, certificates, router, watch::channel(server).1, pending()) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { shared, _stop: stop })
    }

    /// Whether posts wait.
    pub(super) fn has_posts(&self) -> bool {
        !self.shared.queue.lock().posts.is_empty()
    }

    /// Takes the post that has waited longest.
    pub(super) fn take(&self) -> Option<Post> {
        let mut queue = self.shared.queue.lock();
        let post = queue.posts.pop_front()?;
        queue.bytes -= weight(&post.body);
        Some(post)
    }
}

fn weight(body: &Bytes) -> usize {
    body.len().max(BODY_BYTES_MIN)
}

async fn take(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let options = &shared.options;
    if let Some(Err(problem)) = options.hosts.as_ref().map(|hosts| hosts.check(request.uri(), request.headers())) {
        let hint = "the option hosts of the source lists the names that posts may be for";
        return (StatusCode::MISDIRECTED_REQUEST, format!("{problem}\nhint: {hint}\n")).into_response();
    }
    let is_encrypted = request.extensions().get::<Encrypted>().is_some();
    if is_of_other_site(request.method(), request.headers(), is_encrypted) {
        return (StatusCode::FORBIDDEN, "the post comes from a page of another site\n").into_response();
    }
    if request.uri().path() != options.path {
        return StatusCode::NOT_FOUND.into_response();
    }
    if request.method() != Method::POST {
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response();
    }
    let is_right = is_authorized(request.headers(), options.token.as_deref());
    // One sender with an old token makes no other wait, where the token is too long to be guessed.
    let may_be_guessed = options.token.as_ref().is_some_and(|token| token.len() < UNGUESSED_BYTES_MIN);
    if (may_be_guessed || !is_right)
        && let Some(wait) = shared.failed_logins.must_wait(peer.ip(), None)
    {
        return come_again(wait.as_secs() + 1);
    }
    if !is_right {
        shared.failed_logins.note(peer.ip(), None, "the HTTP source");
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response();
    }
    // Asked before the body is read, so that a post without room costs nothing.
    if !shared.queue.lock().has_room(options) {
        return not_read();
    }
    let is_lines = options.is_lines || says_lines(request.headers());
    let (body, _held) = match read_body(request.into_body(), options.body_bytes_max, &shared.reading, 1).await {
        Ok((body, held)) => (Bytes::from(body), held),
        Err(BodyError::NoRoom) => return come_again(1),
        Err(BodyError::Stalled(_)) => return StatusCode::REQUEST_TIMEOUT.into_response(),
        Err(BodyError::TooLarge | BodyError::Broken(_)) => {
            let message = format!("the body is broken or has more than {} bytes\n", options.body_bytes_max);
            return (StatusCode::PAYLOAD_TOO_LARGE, message).into_response();
        }
    };
    if let Err(problem) = check(options, &body, is_lines) {
        return (StatusCode::BAD_REQUEST, problem).into_response();
    }
    let (number, confirmed) = {
        let mut queue = shared.queue.lock();
        // A body larger than the bound is accepted if nothing waits.
        if queue.bytes > 0 && queue.bytes + weight(&body) > options.queue_bytes_max {
            return not_read();
        }
        let (confirm, confirmed) = options.confirm_max.map(|_| oneshot::channel()).unzip();
        (queue.push(body, is_lines, confirm), confirmed)
    };
    let Some((confirmed, max)) = confirmed.zip(options.confirm_max) else {
        return StatusCode::ACCEPTED.into_response();
    };
    let waiting = Waiting(&shared.queue, number);
    match tokio::time::timeout(max, confirmed).await {
        Ok(Ok(())) => StatusCode::OK.into_response(),
        _ if waiting.0.lock().withdraw(number) => not_read(),
        _ => {
            let message = "the events of this post may be in the log or not\nhint: if you post it again, they may count \
                           twice; see with rivulet status what it waits for\n";
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], message).into_response()
        }
    }
}

/// A sender that waits until its post is confirmed. If it breaks off, the post is taken back, unless the source has it.
struct Waiting<'a>(&'a Mutex<Queue>, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().withdraw(self.1);
    }
}

/// Fails if a sender has to be told that a body will lead to nothing. The error is the text of the answer.
fn check(options: &ListenerOptions, body: &[u8], is_lines: bool) -> Result<(), String> {
    if options.confirm_max.is_none() && options.check.is_none() {
        return Ok(());
    }
    let text = std::str::from_utf8(body).map_err(|_| "the body is not UTF-8\n".to_owned())?;
    let Some(check) = &options.check else { return Ok(()) };
    let checked = match is_lines {
        true => (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim_ascii_start().is_empty())
            .try_for_each(|(number, line)| check(line).map_err(|problem| format!("line {number}: {problem}"))),
        false => check(text),
    };
    checked
        .map_err(|problem| format!("{problem}\nhint: nothing of this post was taken; post all of it again, mended\n"))
}

fn not_read() -> Response {
    let message = "what was posted here has to wait, and nothing of this post was taken\nhint: post it again; see with \
                   rivulet status what it waits for\n";
    (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")], message).into_response()
}

fn come_again(after_s: u64) -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, after_s.to_string())]).into_response()
}

fn is_authorized(headers: &HeaderMap, token: Option<&str>) -> bool {
    let Some(token) = token else { return true };
    http_server::bearer(headers).is_some_and(|given| is_secret(given, token.as_bytes()))
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
    use std::net::{TcpListener, TcpStream};
    use std::thread::{self, sleep};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn options() -> ListenerOptions {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        ListenerOptions {
            certificates: Certificates::new("a test", crate::tls::Prepared::default()),
            address,
            path: "/in".into(),
            body_bytes_max: 1 << 10,
            queue_bytes_max: 1 << 20,
            is_lines: false,
            token: None,
            confirm_max: None,
            check: None,
            hosts: Some(Hosts::new("", address.ip())),
            server: BOUNDS,
        }
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Reads everything until the connection is closed.
    fn rest(socket: &mut TcpStream) -> String {
        let mut answer = Vec::new();
        let begun = Instant::now();
        let _ = socket.read_to_end(&mut answer);
        assert!(begun.elapsed() < PATIENCE, "it is never cut off");
        String::from_utf8(answer).unwrap()
    }

    /// The status and the text of the answer to a post with these headers.
    fn post(address: SocketAddr, headers: &str) -> (u16, String) {
        let mut socket = connect(address);
        write!(socket, "POST /in HTTP/1.1\r\n{headers}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}").unwrap();
        let answer = rest(&mut socket);
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }

    #[test]
    fn whoever_takes_too_long_is_cut_off_and_others_are_not() {
        let mut options = options();
        let free = options.address;
        let short = Duration::from_millis(300);
        options.server = ServerOptions { head_timeout: short, stall_timeout: short, ..BOUNDS };
        let listener = Listener::start(options).unwrap();
        let (mut slow, mut silent, mut half) = (connect(free), connect(free), connect(free));
        half.write_all(b"POST /in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{").unwrap();
        let begun = Instant::now();
        slow.write_all(b"POST /in HTTP/1.1\r\n").unwrap();
        // A byte now and then does not keep the connection open.
        while slow.write_all(b"x").is_ok() {
            assert!(begun.elapsed() < PATIENCE, "it is never cut off");
            sleep(Duration::from_millis(50));
        }
        assert_eq!(rest(&mut silent), "", "one that says nothing is cut off too");
        let answer = rest(&mut half);
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert_eq!(post(free, "Host: localhost\r\n").0, 202);
        assert_eq!(listener.take().unwrap().body, "{}");
    }

    #[test]
    fn pages_of_other_sites_and_other_names_post_nothing() {
        let options = options();
        let free = options.address;
        let listener = Listener::start(options.clone()).unwrap();
        let (status, answer) = post(free, "Host: evil.example\r\n");
        assert!(status == 421 && answer.contains("hint: the option hosts"), "{answer}");
        assert_eq!(post(free, "").0, 421);
        assert_eq!(post(free, &format!("Host: {free}\r\nOrigin: http://evil.example\r\n")).0, 403);
        assert_eq!(post(free, &format!("Host: {free}\r\nOrigin: null\r\n")).0, 403);
        let form = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
        assert_eq!(post(free, &format!("Host: {free}\r\n{form}")).0, 403);
        assert!(listener.take().is_none());
        assert_eq!(post(free, &format!("Host: {free}\r\n")).0, 202);
        assert!(listener.take().is_some());
    }

    #[test]
    fn a_payload_that_is_refused_is_answered_with_its_line() {
        let mut options = options();
        let is_short = |payload: &str| if payload.len() < 3 { Ok(()) } else { Err("it is too long".to_owned()) };
        options.check = Some(Arc::new(is_short));
        assert_eq!(check(&options, b"{}", false), Ok(()));
        assert_eq!(check(&options, b"1\r\n\n22\n", true), Ok(()));
        let refused = |body: &[u8], is_lines| check(&options, body, is_lines).unwrap_err();
        assert!(refused(b"333", false).starts_with("it is too long\nhint: nothing of this post"));
        assert!(refused(b"1\n\n333\n4", true).starts_with("line 3: it is too long\nhint: "));
        assert_eq!(refused(b"\xff", false), "the body is not UTF-8\n");
        options.check = None;
        assert_eq!(check(&options, b"\xff", false), Ok(()), "each query refuses it in its own way");
    }

    #[test]
    fn a_post_that_is_not_confirmed_is_taken_back_or_answered_with_what_may_be() {
        let mut options = options();
        options.confirm_max = Some(Duration::from_millis(900));
        let (free, host) = (options.address, "Host: localhost\r\n");
        let listener = Listener::start(options.clone()).unwrap();
        let (status, answer) = post(free, host);
        assert_eq!((status, listener.has_posts()), (429, false), "nobody read it, so nothing of it is taken");
        assert!(answer.contains("nothing of this post was taken\nhint: post it again"), "{answer}");
        drop(listener);

        options.confirm_max = Some(Duration::from_secs(6));
        options.address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (free, listener) = (options.address, Listener::start(options.clone()).unwrap());
        let until = |is_so: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is_so() {
                assert!(begun.elapsed() < PATIENCE, "the queue stays as it is");
                sleep(Duration::from_millis(1));
            }
        };
        let mut gone = connect(free);
        write!(gone, "POST /in HTTP/1.1\r\n{host}Content-Length: 2\r\n\r\n{{}}").unwrap();
        until(&|| listener.has_posts());
        drop(gone);
        until(&|| !listener.has_posts());

        let sender = thread::spawn(move || post(free, host));
        until(&|| listener.has_posts());
        let taken = listener.take().unwrap();
        let (status, answer) = sender.join().unwrap();
        assert!(status == 503 && answer.contains("they may count twice"), "{answer}");
        assert!(taken.confirm.unwrap().send(()).is_err(), "its sender was told otherwise");

        let mut queue = listener.shared.queue.lock();
        assert!(queue.has_room(&options));
        queue.push(Bytes::from_static(b"{}"), false, None);
        let number = queue.push(Bytes::from_static(b"{}"), false, None);
        queue.posts[0].since -= Duration::from_secs(3);
        assert!(!queue.has_room(&options), "the next would wait in vain");
        options.confirm_max = None;
        assert!(queue.has_room(&options), "it need not wait");
        assert!(queue.withdraw(number) && !queue.withdraw(number));
        assert_eq!((queue.posts.len(), queue.bytes), (1, BODY_BYTES_MIN));
    }

    #[test]
    fn guesses_of_the_token_are_slowed_down() {
        let mut options = options();
        options.token = Some("rose".into());
        let free = options.address;
        let listener = Listener::start(options).unwrap();
        let guess = |token: &str| post(free, &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n"));
        let statuses: Vec<u16> = (0..20).map(|_| guess("lily").0).collect();
        assert_eq!(statuses[..6], [401; 6]);
        let looked_at = statuses.iter().filter(|status| **status == 401).count();
        assert!(looked_at < 12, "{statuses:?}");
        // The right token has to wait as well, or guessing would still find it.
        let mut answers = std::iter::from_fn(|| {
            sleep(Duration::from_millis(100));
            Some(guess("rose"))
        });
        let (_, answer) = answers.find(|(status, _)| *status != 429).unwrap();
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
        assert!(listener.take().is_some());
    }

    #[test]
    fn a_sender_with_an_old_token_makes_no_other_wait_where_the_token_is_long() {
        let mut options = options();
        let token = "r".repeat(UNGUESSED_BYTES_MIN);
        options.token = Some(token.clone());
        let free = options.address;
        let _listener = Listener::start(options).unwrap();
        let send = |token: &str| post(free, &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n")).0;
        let old: Vec<u16> = (0..12).map(|_| send("old")).collect();
        assert!(old.starts_with(&[401; 6]) && old.contains(&429), "{old:?}");
        assert_eq!(send(&token), 202);
    }
}
