//! Threads that post requests, repeatedly if necessary.
//!
//! What must hold: a request leaves its queue when its receiver has accepted it, or when it is left out and counted. It
//! is left out if the receiver has rejected it and rejected requests are skipped, or if it belongs to one of many
//! receivers and its time is over. Otherwise the delivery has failed, and reports it from then on.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{HeaderName, HeaderValue, StatusCode, Uri};
use ureq::tls::TlsConfig;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::address::host_of;
use super::receivers::{Change, PAUSE_MAX, Receivers, Request, TOO_MUCH, Waiting};
use crate::connector::{Health, Secrets};
use crate::reach::{AllowedHosts, check_port};
use crate::tls::Fault;

/// A thread that has been idle for this long ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// What a user can do when the time of a request is over.
const HOW_TO_GO_ON: &str = "\nhint: when the receiver works, RESUME QUERY goes on, and sends what waited at the last \
                            checkpoint; the option retry_for of the sink says how long a request is tried";

/// The options of posting.
#[derive(Clone, Debug)]
pub(super) struct DeliveryOptions {
    /// Each with the text of its option, if that names a secret.
    pub(super) headers: Vec<(HeaderName, HeaderValue, Option<String>)>,
    pub(super) secrets: Secrets,
    /// The beginning of the URLs that the headers are for, up to the host and port; `None` if each row names its host.
    pub(super) origin: Option<String>,
    pub(super) content_type: &'static str,
    pub(super) timeout: Duration,
    pub(super) retry_for: Duration,
    pub(super) skips_rejected: bool,
    pub(super) connections: usize,
    /// Whether each row has its own address: then no single receiver is waited for.
    pub(super) has_many_receivers: bool,
    /// Whether requests whose time is over are left out and counted, instead of being a failure.
    pub(super) leaves_out: bool,
    /// Whether the query can go on from a checkpoint after a failure.
    pub(super) resumes: bool,
    pub(super) reach: AllowedHosts,
    /// The authorities to trust, and the certificate to show.
    pub(super) tls: TlsConfig,
    pub(super) health: Arc<Health>,
}

impl DeliveryOptions {
    /// Whether a URL leads to the host that the headers are for.
    fn is_for(&self, url: &str) -> bool {
        let Some(origin) = &self.origin else { return true };
        url.strip_prefix(origin.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    }
}

struct State {
    receivers: Receivers,
    /// The number of threads, and of those that wait for a request.
    threads: usize,
    idle: usize,
    failed: Option<String>,
    is_closed: bool,
}

struct Shared {
    options: DeliveryOptions,
    agent: Agent,
    state: Mutex<State>,
    /// Notified when the state has changed.
    changed: Condvar,
}

/// Requests on their way.
pub(super) struct Delivery {
    shared: Arc<Shared>,
}

/// The result of an attempt.
enum Attempt {
    Taken,
    /// Another attempt is worthwhile, after this long if the receiver says so.
    Again(String, Option<Duration>),
    Rejected(String),
}

/// Resolves names, and returns no address that may not be reached.
#[derive(Debug)]
struct WithinReach {
    names: DefaultResolver,
    reach: AllowedHosts,
}

impl Resolver for WithinReach {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        check_port(uri).map_err(ureq::Error::BadUri)?;
        let found = self.names.resolve(uri, config, timeout)?;
        let host = uri.host().unwrap_or_default();
        // The operator of the server has configured the proxy.
        let is_proxy = config.proxy().is_some_and(|proxy| proxy.uri().authority() == uri.authority());
        let (mut within, mut refused) = (self.empty(), None);
        for address in found.iter() {
            match self.reach.check(host, address.ip()) {
                Err(why) if !is_proxy => refused = Some(why),
                _ => within.push(*address),
            }
        }
        match refused {
            Some(why) if within.is_empty() => Err(ureq::Error::Io(why.into())),
            _ => Ok(within),
        }
    }
}

impl Delivery {
    pub(super) fn new(options: DeliveryOptions) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent("rivulet")
            .tls_config(options.tls.clone())
            .timeout_global(Some(options.timeout))
            .max_idle_connections(options.connections)
            .max_idle_connections_per_host(options.connections)
            .build();
        let resolver = WithinReach { names: DefaultResolver::default(), reach: options.reach.clone() };
        let agent = Agent::with_parts(config, DefaultConnector::new(), resolver);
        let receivers = Receivers::new(options.connections, options.has_many_receivers);
        let state = State { receivers, threads: 0, idle: 0, failed: None, is_closed: false };
        Self { shared: Arc::new(Shared { options, agent, state: Mutex::new(state), changed: Condvar::new() }) }
    }

    /// Adds requests to be posted.
    pub(super) fn push(&self, requests: impl Iterator<Item = Arc<Request>>) {
        let (shared, now) = (&self.shared, Instant::now());
        let mut state = shared.state.lock();
        for request in requests {
            let gone = state.receivers.push(request, now);
            shared.leave_out(&gone, TOO_MUCH);
        }
        shared.start_threads(&mut state);
        drop(state);
        shared.changed.notify_all();
    }

    /// Whether fewer than this many bytes and requests wait or are on their way. After a failure there is room, so that
    /// the failure is reported with the next write.
    pub(super) fn has_room(&self, bytes: usize, requests: usize) -> bool {
        let state = self.shared.state.lock();
        let (waiting_bytes, waiting_requests) = state.receivers.room_taken();
        state.failed.is_some() || (waiting_bytes < bytes && waiting_requests < requests)
    }

    /// Fails if a request failed.
    pub(super) fn check(&self) -> Result<(), String> {
        self.shared.state.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// Whether all requests were accepted. Fails if a request failed.
    pub(super) fn is_empty(&self) -> Result<bool, String> {
        let state = self.shared.state.lock();
        state.failed.clone().map_or(Ok(state.receivers.are_idle()), Err)
    }

    /// The requests that no receiver has accepted.
    pub(super) fn undelivered(&self) -> Vec<Arc<Request>> {
        self.shared.state.lock().receivers.undelivered()
    }
}

/// Requests that were not accepted yet are abandoned: the threads end after the requests that are on their way now.
impl Drop for Delivery {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Starts a thread if a request waits for one: for a connection, the thread waits. If it cannot be started and
    /// there is no other, that is a failure like any other.
    fn start_threads(self: &Arc<Self>, state: &mut State) {
        if !state.receivers.is_ready() || state.idle > 0 || state.threads >= state.receivers.on_their_way_max() {
            return;
        }
        let shared = self.clone();
        let started = std::thread::Builder::new().name("http sink".into()).spawn(move || shared.run());
        match started {
            Ok(_) => state.threads += 1,
            Err(error) if state.threads == 0 && !self.options.leaves_out => {
                state.failed.get_or_insert_with(|| format!("no thread: {error}"));
            }
            Err(error) => self.options.health.retry(&format!("no thread: {error}")),
        }
    }

    fn run(self: Arc<Self>) {
        while let Some(waiting) = self.next() {
            let begun = Instant::now();
            let attempt = self.attempt(&waiting.request);
            self.settle(waiting, attempt, begun.elapsed());
        }
    }

    /// The next request; `None` when the thread is not needed any more.
    fn next(self: &Arc<Self>) -> Option<Waiting> {
        let mut state = self.state.lock();
        let idle_until = Instant::now() + IDLE_MAX;
        loop {
            if state.is_closed || state.failed.is_some() {
                state.threads -= 1;
                return None;
            }
            let now = Instant::now();
            let until = match state.receivers.next(now) {
                Ok(waiting) => {
                    // There may be more requests than threads that are awake.
                    self.start_threads(&mut state);
                    return Some(waiting);
                }
                Err(until) => until,
            };
            // The others may have requests that hang.
            if now >= idle_until && (state.idle > 0 || state.receivers.have_no_queue()) {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let until = until.map_or(idle_until.max(now + IDLE_MAX / 10), |until| until.min(now + IDLE_MAX));
            self.changed.wait_until(&mut state, until);
            state.idle -= 1;
        }
    }

    /// Decides what becomes of a request after an attempt.
    fn settle(&self, waiting: Waiting, attempt: Attempt, took: Duration) {
        let Self { options, .. } = self;
        let (health, request, now) = (&options.health, waiting.request.clone(), Instant::now());
        let mut state = self.state.lock();
        match attempt {
            Attempt::Taken => {
                health.take_some(request.rows, request.body.len());
                if state.receivers.done(&waiting, took) == Change::Recovered {
                    request.query.inspect(|query| health.recover_query(*query));
                }
            }
            Attempt::Rejected(problem) if options.skips_rejected => {
                let problem = format!("{} rejects rows: {problem}", host_of(&request.url));
                self.leave_out(std::slice::from_ref(&request), &problem);
                // The receiver answers, so it works, whatever it says about this request.
                if state.receivers.done(&waiting, took) == Change::Recovered {
                    request.query.inspect(|query| health.recover_query(*query));
                }
            }
            Attempt::Rejected(problem) => _ = state.failed.get_or_insert(problem),
            Attempt::Again(problem, asked) => {
                let pause = state.receivers.pause_of(&request.url);
                // Up to a quarter more, different for each request, so that requests that failed together do not come
                // back together.
                let last = request.idempotency_key.as_bytes().last().copied().unwrap_or(0);
                let jitter = pause.mul_f64(f64::from(last % 16) / 64.0);
                let wait = asked.map_or(pause + jitter, |asked| asked.min(PAUSE_MAX));
                let tried = (now + wait).saturating_duration_since(waiting.begun(options.leaves_out));
                let is_over = tried >= options.retry_for;
                let told = format!("{} does not take rows: {problem}", host_of(&request.url));
                match (is_over, options.leaves_out) {
                    (true, false) => {
                        let mut problem = format!("{problem} (tried for {:?})", options.retry_for);
                        if options.resumes {
                            problem.push_str(HOW_TO_GO_ON);
                        }
                        state.failed.get_or_insert(problem);
                    }
                    (true, true) => {
                        let begin = now.checked_sub(options.retry_for);
                        let gone = state.receivers.give_up(&waiting, begin);
                        self.leave_out(&gone, &format!("{told} (tried for {:?})", options.retry_for));
                        request.query.inspect(|query| health.recover_query(*query));
                    }
                    (false, _) => {
                        state.receivers.again(waiting, wait, now);
                        health.retry(&told);
                        let requests = state.receivers.requests_of(&request.url);
                        request.query.inspect(|query| health.fail_query(*query, &told, requests));
                    }
                }
            }
        }
        if state.receivers.failing() == 0 && state.failed.is_none() {
            health.recover();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Counts requests that were left out.
    fn leave_out(&self, gone: &[Arc<Request>], problem: &str) {
        let health = &self.options.health;
        if !gone.is_empty() {
            health.leave_out(gone.iter().map(|request| request.rows).sum(), problem);
        }
        for request in gone {
            request.query.inspect(|query| health.leave_out_of(*query, request.rows, problem));
        }
    }

    fn attempt(&self, request: &Request) -> Attempt {
        let mut post = self
            .agent
            .post(&*request.url)
            .header("content-type", self.options.content_type)
            .header("idempotency-key", &request.idempotency_key);
        // A request that was saved for another host has none of the secrets in the headers.
        let headers = if self.options.is_for(&request.url) { &self.options.headers[..] } else { &[] };
        for (name, value, secret) in headers {
            // It may have another value by now.
            let present = match secret {
                None => Some(value.clone()),
                Some(secret) => self.options.secrets.value_of(secret).and_then(|value| value.parse().ok()),
            };
            let Some(present) = present else {
                return Attempt::Again(format!("the secret of headers.{name} is gone, or no value of a header"), None);
            };
            post = post.header(name, present);
        }
        let response = match post.send(&request.body[..]) {
            Ok(response) => response,
            Err(error @ (ureq::Error::BadUri(_) | ureq::Error::Http(_))) => {
                return Attempt::Rejected(error.to_string());
            }
            Err(ureq::Error::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Attempt::Rejected(error.to_string());
            }
            Err(ureq::Error::Timeout(_)) => {
                return Attempt::Again(format!("no answer within {:?}", self.options.timeout), None);
            }
            Err(ureq::Error::Io(error)) => {
                let told = Fault::of(&error).map(|fault| {
                    format!("{}; {}", fault.problem(), fault.hint("ca_file", "certificate_file and key_file"))
                });
                return Attempt::Again(told.unwrap_or_else(|| error.to_string()), None);
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
