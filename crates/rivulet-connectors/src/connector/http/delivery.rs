//! Threads that post requests, again and again if need be.
//!
//! What must hold: a request leaves the queue when its receiver has taken it, or has said that it is wrong and such are
//! skipped; otherwise the delivery has failed, and says so from then on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ureq::Agent;
use ureq::http::{HeaderName, HeaderValue, StatusCode};

use crate::connector::Health;

/// The first pause between two attempts; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest one, also if the receiver asks for more.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How it posts.
#[derive(Clone, Debug)]
pub(super) struct DeliveryOptions {
    pub(super) url: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) content_type: &'static str,
    pub(super) timeout: Duration,
    pub(super) retry_for: Duration,
    pub(super) skips_rejected: bool,
    pub(super) connections: usize,
    pub(super) health: Arc<Health>,
}

/// What is posted.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) body: Vec<u8>,
    pub(super) rows: usize,
    /// The same however often the request is posted, and of no other one.
    pub(super) idempotency_key: String,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Request>,
    /// Bytes in the queue and on their way.
    bytes: usize,
    /// Requests in the queue and on their way.
    requests: usize,
    failed: Option<String>,
    is_closed: bool,
}

struct Shared {
    options: DeliveryOptions,
    state: Mutex<State>,
    /// Something has changed.
    changed: Condvar,
}

/// Requests on their way.
pub(super) struct Delivery {
    shared: Arc<Shared>,
}

/// How an attempt went.
enum Attempt {
    Taken,
    /// Worth another one, after this long if the receiver says so.
    Again(String, Option<Duration>),
    Rejected(String),
}

impl Delivery {
    /// Starts the threads. One that does not start is a failure like any other.
    pub(super) fn start(options: DeliveryOptions) -> Self {
        let connections = options.connections;
        let shared = Arc::new(Shared { options, state: Mutex::default(), changed: Condvar::new() });
        for _ in 0..connections {
            let started = std::thread::Builder::new().name("http sink".into()).spawn({
                let shared = shared.clone();
                move || shared.run()
            });
            if let Err(error) = started {
                shared.state.lock().failed.get_or_insert_with(|| format!("no thread: {error}"));
            }
        }
        Self { shared }
    }

    /// Takes requests to be posted.
    pub(super) fn push(&self, requests: impl Iterator<Item = Request>) {
        let mut state = self.shared.state.lock();
        for request in requests {
            state.bytes += request.body.len();
            state.requests += 1;
            state.queue.push_back(request);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Whether fewer bytes and fewer requests than these wait or are on their way. After a failure there is room: to be
    /// told of it.
    pub(super) fn has_room(&self, bytes: usize, requests: usize) -> bool {
        let state = self.shared.state.lock();
        state.failed.is_some() || (state.bytes < bytes && state.requests < requests)
    }

    /// Fails if a request failed.
    pub(super) fn check(&self) -> Result<(), String> {
        self.shared.state.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// Whether all was taken. Fails if a request failed.
    pub(super) fn is_empty(&self) -> Result<bool, String> {
        let state = self.shared.state.lock();
        state.failed.clone().map_or(Ok(state.requests == 0), Err)
    }
}

/// What is not taken yet is given up: the threads end with the requests that are on their way now.
impl Drop for Delivery {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent("rivulet")
            .timeout_global(Some(self.options.timeout))
            .build()
            .into();
        while let Some(request) = self.next() {
            let outcome = self.deliver(&agent, &request);
            let mut state = self.state.lock();
            match outcome {
                Ok(()) => {
                    state.bytes -= request.body.len();
                    state.requests -= 1;
                }
                Err(problem) => _ = state.failed.get_or_insert(problem),
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The next request; `None` when there will be none, or one has failed.
    fn next(&self) -> Option<Request> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed || state.failed.is_some() {
                return None;
            }
            match state.queue.pop_front() {
                Some(request) => return Some(request),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Posts a request until it is taken, or its time is over.
    fn deliver(&self, agent: &Agent, request: &Request) -> Result<(), String> {
        let deadline = Instant::now() + self.options.retry_for;
        let mut pause = PAUSE_MIN;
        loop {
            let (problem, asked) = match self.attempt(agent, request) {
                Attempt::Taken => {
                    self.options.health.take(request.rows, request.body.len());
                    return Ok(());
                }
                Attempt::Rejected(problem) if self.options.skips_rejected => {
                    self.options.health.leave_out(request.rows, &problem);
                    // The receiver is there and answers, whatever it thinks of this request.
                    self.options.health.recover();
                    return Ok(());
                }
                Attempt::Rejected(problem) => return Err(problem),
                Attempt::Again(problem, asked) => (problem, asked),
            };
            // Up to a quarter more, other for each request, so that those that failed together do not come back
            // together.
            let jitter =
                pause.mul_f64(f64::from(request.idempotency_key.as_bytes().last().copied().unwrap_or(0) % 16) / 64.0);
            let wait = asked.map_or(pause + jitter, |asked| asked.min(PAUSE_MAX));
            if Instant::now() + wait >= deadline {
                return Err(format!("{problem} (tried for {:?})", self.options.retry_for));
            }
            self.options.health.retry(&problem);
            if self.is_closed_within(wait) {
                return Err("given up".into());
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Waits, and tells whether nobody wants the result any more.
    fn is_closed_within(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut state = self.state.lock();
        while !state.is_closed {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return state.is_closed;
            }
        }
        true
    }

    fn attempt(&self, agent: &Agent, request: &Request) -> Attempt {
        let mut post = agent
            .post(&self.options.url)
            .header("content-type", self.options.content_type)
            .header("idempotency-key", &request.idempotency_key);
        for (name, value) in &self.options.headers {
            post = post.header(name, value);
        }
        let response = match post.send(&request.body[..]) {
            Ok(response) => response,
            Err(error @ (ureq::Error::BadUri(_) | ureq::Error::Http(_))) => {
                return Attempt::Rejected(error.to_string());
            }
            Err(error) => return Attempt::Again(error.to_string(), None),
        };
        let status = response.status();
        let asked = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let told = format!("the receiver answers {status}");
        if status.is_success() {
            Attempt::Taken
        } else if status.is_server_error()
            || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
        {
            Attempt::Again(told, asked.map(Duration::from_secs))
        } else {
            Attempt::Rejected(told)
        }
    }
}
