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
use rivulet_connectors::links::Machine;
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

/// After how many seconds without a task a function ends.
pub(crate) const IDLE_S: u64 = 10;

/// What an invocation costs besides, in 10^-12 dollars.
const REQUEST: u64 = 200_000;

/// The longest time that the start of a function may take, which is paid for.
pub(crate) const START_MAX: Duration = Duration::from_secs(10);

/// How long a function that is only kept warm takes, so that others that are invoked with it are other instances.
pub(crate) const WARM: Duration = Duration::from_millis(500);

/// What a function answers that has done what it should.
pub(crate) const DONE: &str = "rivulet";

/// What a function is invoked with: the burst worker that it shall be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// The version of the server, which has to be that of the function.
    pub(crate) version: String,
    /// The door for links, and whether it speaks TLS.
    pub(crate) connect: (String, bool),
    pub(crate) name: String,
    /// The memory that the budget counts with, in MB.
    pub(crate) memory_mb: usize,
    pub(crate) limit_s: u64,
    /// How long before its end its tasks come back; nothing if it is only to be kept warm.
    pub(crate) margin_s: Option<u64>,
}

/// How many tasks a function with so much memory runs at a time.
pub(crate) fn threads(memory_mb: usize) -> usize {
    (memory_mb / CORE_MB).max(1)
}

/// Whether a request that ended so may have invoked the function: something of it was sent. A name, a route or a
/// certificate that is wrong shows before.
fn may_have_run(error: &ureq::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        ureq::Error::Timeout(reason) => !matches!(reason, Timeout::Resolve | Timeout::Connect),
        ureq::Error::Protocol(_) | ureq::Error::BodyExceedsLimit(_) => true,
        ureq::Error::Io(error) => {
            [ConnectionReset, ConnectionAborted, BrokenPipe, UnexpectedEof].contains(&error.kind())
        }
        _ => false,
    }
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
            // One that Lambda has just closed would fail as one that breaks during a run.
            .max_idle_connections(0)
            .timeout_resolve(Some(CONNECT_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(config.limit + ANSWER_MAX));
        // A proxy of the environment is for what is elsewhere.
        let agent = if config.endpoint.starts_with("https:") { agent } else { agent.proxy(None) };
        Ok(Self { agent: agent.build().new_agent(), config })
    }

    /// What an invocation costs that takes so long, in 10^-12 dollars: each begun millisecond counts.
    pub(crate) fn cost(&self, took: Duration) -> u64 {
        let mb_ms = took.as_micros().div_ceil(1_000).saturating_mul(self.config.memory_mb as u128);
        let cost = mb_ms.saturating_mul(self.config.price_gb_s.into()).div_ceil(1_024 * 1_000);
        u64::try_from(cost).unwrap_or(u64::MAX).saturating_add(REQUEST)
    }

    /// Invokes the function and waits for its end. Tries again until then if Lambda has no room for it.
    ///
    /// Returns how long it took, if it was invoked, the longest of all times if nobody knows; and why it has not done
    /// what it should.
    pub(crate) fn invoke(&self, event: &Event, until: Instant) -> (Option<Duration>, Result<(), String>) {
        let body = serde_json::to_vec(event).unwrap_or_default();
        let (mut pause, random) = (PAUSES.0, Machine::real().random);
        loop {
            let begun = Instant::now();
            let (status, kind, answer) = match self.post(&body) {
                Ok(answer) => answer,
                Err(error) => {
                    let why = format!("{} does not answer: {error}", self.config.endpoint);
                    return (may_have_run(&error).then_some(Duration::MAX), Err(why));
                }
            };
            if status != StatusCode::TOO_MANY_REQUESTS || Instant::now() + pause >= until {
                // A function whose answer was lost may still run. Of errors of other kinds nothing has run.
                let is_lost = status.is_server_error() && ["", "ServiceException"].contains(&&*kind);
                let took = if status == StatusCode::OK { Some(begun.elapsed()) } else { None };
                return (took.or(is_lost.then_some(Duration::MAX)), self.judged(status, &kind, &answer));
            }
            // Others were refused at the same time.
            thread::sleep(pause / 2 + pause * (random() % 512) as u32 / 1_024);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Returns the status, what kind of error it is if it is one, and the answer.
    fn post(&self, body: &[u8]) -> Result<(StatusCode, String, Value), ureq::Error> {
        let LambdaConfig { endpoint, function, region, key: (id, secret, token), .. } = &self.config;
        let path = format!("/2015-03-31/functions/{function}/invocations");
        let now = at(SystemClock.now_us()).replace(['-', ':'], "");
        let host = endpoint.split_once("://").map_or(&**endpoint, |(_, host)| host);
        let mut headers = vec![("host", host), ("x-amz-date", &now)];
        headers.extend(token.as_ref().map(|token| ("x-amz-security-token", token.reveal())));
        let signed = Signed { path: &path, headers: &headers, body };
        let authorization = signed.authorization((id, secret.reveal()), region, SERVICE);
        headers.push(("authorization", &authorization));
        let request = self.agent.post(format!("{endpoint}{path}"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let mut answer = request.send(body)?;
        let kind = ["x-amz-function-error", "x-amzn-errortype"].iter().find_map(|name| answer.headers().get(*name));
        let kind = kind.and_then(|kind| kind.to_str().ok()?.split(':').next()).unwrap_or_default().to_owned();
        let said = serde_json::from_slice(&answer.body_mut().read_to_vec()?).unwrap_or_default();
        Ok((answer.status(), kind, said))
    }

    /// What a function has answered, or why Lambda has not invoked it.
    fn judged(&self, status: StatusCode, kind: &str, answer: &Value) -> Result<(), String> {
        let LambdaConfig { function, region, .. } = &self.config;
        // The time and the number of the request are others each time.
        let is_number =
            |word: &str| word.len() > 19 && word.bytes().all(|b| b.is_ascii_hexdigit() || b"-:.TZ".contains(&b));
        let said = ["errorMessage", "message", "Message"].iter().find_map(|name| answer[*name].as_str());
        let said =
            said.unwrap_or("no reason is given").split(' ').filter(|word| *word != "RequestId:" && !is_number(word));
        let said = said.collect::<Vec<_>>().join(" ");
        Err(match status {
            StatusCode::OK if kind.is_empty() && answer == DONE => return Ok(()),
            StatusCode::OK if kind.is_empty() => format!("the function '{function}' does not answer as a burst worker"),
            StatusCode::OK => format!("the function '{function}' has failed: {said}"),
            StatusCode::NOT_FOUND => format!("there is no function '{function}' in {region}: {said}"),
            StatusCode::FORBIDDEN => format!("AWS refuses the credentials of burst.lambda: {kind}: {said}"),
            StatusCode::TOO_MANY_REQUESTS => format!("AWS has no room for the function '{function}' now: {said}"),
            _ => format!("AWS does not invoke the function '{function}': {status}: {kind}: {said}"),
        })
    }
}
