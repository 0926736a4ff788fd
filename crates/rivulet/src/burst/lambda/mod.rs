//! Burst workers that are functions of AWS Lambda: how one is invoked, and what that costs.
//!
//! A function is a process of this program that dials the server as any burst worker, and ends its run when it has had
//! no task for a while. In reading order: here: what a server says to a function, and hears of Lambda; [`sign`]: how
//! requests are signed; [`budget`]: what may be spent; [`emulator`]: the part of Lambda that this needs, for tests and
//! for trying out.

pub(crate) mod budget;
pub(crate) mod emulator;
pub(crate) mod sign;

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::tls::ClientTls;
use rivulet_dataflow::Clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use ureq::http::StatusCode;
use ureq::{Agent, Timeout};

use crate::config::LambdaConfig;
use crate::times::at;
use sign::Signed;

/// The name by which signatures are for Lambda.
pub(crate) const SERVICE: &str = "lambda";

/// The memory that comes with a core, in MB.
const CORE_MB: usize = 1_769;

/// How much longer than a function may take is waited for its answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How long it may take to find Lambda, and to be connected.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The first pause before a refused invocation is tried again, and the longest; each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The longest time that the start of a function may take, which is paid for.
pub(crate) const START_MAX: Duration = Duration::from_secs(10);

/// How long a function that is only kept warm takes, so that others that are invoked with it are other instances.
pub(crate) const WARM: Duration = Duration::from_millis(75);

/// What a function is invoked with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// The version of the server, which has to be that of the function.
    pub(crate) version: String,
    /// Nothing if it is only to be kept warm.
    pub(crate) run: Option<Run>,
}

/// A worker that a function shall be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The door for links, and whether it speaks TLS.
    pub(crate) connect: String,
    pub(crate) tls: bool,
    pub(crate) name: String,
    pub(crate) threads: usize,
    pub(crate) idle_s: u64,
    pub(crate) limit_s: u64,
    /// How long before its end its tasks come back.
    pub(crate) margin_s: u64,
}

/// The words about two versions that differ.
pub(crate) fn other_version(function: &str, server: &str) -> String {
    format!(
        "the function is version {function}, and the server {server}: give it the zip of `rivulet burst package` of \
         the server's version"
    )
}

/// A function, and how it is invoked.
pub(crate) struct Lambda {
    pub(crate) config: LambdaConfig,
    agent: Agent,
}

impl Lambda {
    /// # Errors
    /// This machine cannot speak TLS.
    pub(crate) fn new(config: LambdaConfig) -> Result<Self, String> {
        let tls = ClientTls::default().for_requests().map_err(|error| error.to_string())?;
        let agent = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(CONNECT_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(config.limit + ANSWER_MAX));
        // A proxy of the environment is for what is elsewhere.
        let agent = if config.endpoint.starts_with("https:") { agent } else { agent.proxy(None) };
        Ok(Self { agent: agent.build().new_agent(), config })
    }

    /// How many tasks a function runs at a time.
    pub(crate) fn threads(&self) -> usize {
        (self.config.memory_mb / CORE_MB).max(1)
    }

    /// What an invocation costs that takes so long, in 10^-12 dollars: each begun millisecond counts.
    pub(crate) fn cost(&self, took: Duration) -> u64 {
        let mb_ms = took.as_micros().div_ceil(1_000).saturating_mul(self.config.memory_mb as u128);
        let cost = mb_ms.saturating_mul(self.config.price_gb_s.into()).div_ceil(1_024 * 1_000);
        u64::try_from(cost).unwrap_or(u64::MAX).saturating_add(self.config.price_request)
    }

    /// Invokes the function and waits for its end. Tries again until then if Lambda has no room for it.
    ///
    /// Returns how long it took, if it was invoked, the longest of all times if nobody knows; and why it has not done
    /// what it should.
    pub(crate) fn invoke(&self, event: &Event, until: Instant) -> (Option<Duration>, Result<(), String>) {
        let body = serde_json::to_vec(event).unwrap_or_default();
        let mut pause = PAUSES.0;
        loop {
            let begun = Instant::now();
            let (status, kind, body) = match self.post(&body) {
                Ok(answer) => answer,
                Err(error) => {
                    let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                    let has_reached = match &error {
                        ureq::Error::Io(error) => !is_refused(error),
                        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => false,
                        ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => false,
                        _ => true,
                    };
                    let why = format!("{} does not answer: {error}", self.config.endpoint);
                    return (has_reached.then_some(Duration::MAX), Err(why));
                }
            };
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            if status == StatusCode::OK {
                return (Some(begun.elapsed()), self.judged(kind.as_deref(), &answer));
            }
            if status != StatusCode::TOO_MANY_REQUESTS || Instant::now() + pause >= until {
                // A function whose answer was lost may have run, and may still do.
                let billed = status.is_server_error().then_some(Duration::MAX);
                return (billed, Err(self.refused(status, kind.as_deref().unwrap_or_default(), &answer)));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Returns the status, what kind of error it is if it is one, and the body.
    fn post(&self, body: &[u8]) -> Result<(StatusCode, Option<String>, Vec<u8>), ureq::Error> {
        let LambdaConfig { endpoint, function, region, key: (id, secret, token), .. } = &self.config;
        let path = format!("/2015-03-31/functions/{function}/invocations");
        let now = at(SystemClock.now_us()).replace(['-', ':'], "");
        let host = endpoint.split_once("://").map_or(&**endpoint, |(_, host)| host);
        let mut headers = vec![("host", host), ("x-amz-date", &now)];
        headers.extend(token.as_ref().map(|token| ("x-amz-security-token", token.reveal())));
        let signed = Signed { method: "POST", path: &path, headers: &headers, body };
        let authorization = signed.authorization((id, secret.reveal()), region, SERVICE);
        headers.push(("authorization", &authorization));
        let request = self.agent.post(format!("{endpoint}{path}"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let mut answer = request.send(body)?;
        let kinds = ["x-amz-function-error", "x-amzn-errortype"].map(|name| answer.headers().get(name).cloned());
        let kind = kinds.into_iter().flatten().next().and_then(|kind| kind.to_str().ok().map(str::to_owned));
        Ok((answer.status(), kind, answer.body_mut().read_to_vec()?))
    }

    /// What a function has answered.
    fn judged(&self, error: Option<&str>, answer: &Value) -> Result<(), String> {
        let function = &self.config.function;
        let text = |name: &str| answer[name].as_str();
        match (error, text("version")) {
            (Some(error), _) => {
                Err(format!("the function '{function}' has failed: {}", text("errorMessage").unwrap_or(error)))
            }
            (None, Some(env!("CARGO_PKG_VERSION"))) => Ok(()),
            (None, Some(version)) => {
                let why = other_version(version, env!("CARGO_PKG_VERSION"));
                Err(format!("the function '{function}' is not used: {why}"))
            }
            (None, None) => Err(format!("the function '{function}' does not answer as a burst worker does")),
        }
    }

    /// Why Lambda has not invoked it.
    fn refused(&self, status: StatusCode, kind: &str, answer: &Value) -> String {
        let LambdaConfig { function, region, .. } = &self.config;
        let said =
            ["message", "Message"].iter().find_map(|name| answer[*name].as_str()).unwrap_or("no reason is given");
        let kind = kind.split(':').next().unwrap_or_default();
        match status {
            StatusCode::NOT_FOUND => format!("there is no function '{function}' in {region}: {said}"),
            StatusCode::FORBIDDEN => format!("AWS refuses the credentials of burst.lambda: {kind}: {said}"),
            StatusCode::TOO_MANY_REQUESTS => format!("AWS has no room for the function '{function}' now: {said}"),
            _ => format!("AWS does not invoke the function '{function}': {status}: {kind}: {said}"),
        }
    }
}
