//! The part of AWS Lambda that burst workers need: the interface by which functions are invoked, and that for custom
//! runtimes, by which an instance gets its events. For tests and for trying out.
//!
//! What must hold: a refusal looks as that of Lambda does, an instance has one event at a time, and a signal that ends
//! this ends the instances.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::SERVICE;
use super::sign::Signed;

/// How often it looks whether instances have ended.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// How often it looks whether there is an event for an instance that waits for one.
const EVENT_PERIOD: Duration = Duration::from_millis(5);

/// The access key that requests must be signed with: its ID and its secret.
const KEY: (&str, &str) = ("emulated", "emulated");

/// What is emulated: the arguments of `rivulet burst emulate`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Settings {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:9001")]
    pub(crate) listen: SocketAddr,
    /// The name of the function
    #[arg(long, default_value = "rivulet-burst")]
    function: String,
    /// How long an instance takes to start
    #[arg(long, default_value_t = 0)]
    cold_ms: u64,
    /// Refuse every Nth request with 429
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    throttle_every: Option<u64>,
    /// How long an event may take before its instance is ended
    #[arg(long, default_value_t = 900)]
    time_limit_s: u64,
    /// Most bytes of an event or an answer
    #[arg(long, default_value_t = 6 << 20)]
    payload_max: usize,
}

struct Emulator {
    settings: Settings,
    program: PathBuf,
    /// Where instances find their interface.
    address: String,
    /// Numbers requests, which are also the numbers of instances and events: none has that of another.
    requests: AtomicU64,
    instances: Mutex<BTreeMap<u64, Instance>>,
}

type Shared = State<Arc<Emulator>>;

struct Instance {
    child: Child,
    /// An event that it has not got yet, and when its time is over, since the epoch.
    event: Option<(Bytes, Duration)>,
    /// How it knows the last event, and who waits for the answer to it.
    answer: (String, Option<oneshot::Sender<Response>>),
    is_idle: bool,
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Emulates Lambda until `stop` is complete. The function is a program.
///
/// # Errors
/// The listener has no address, or fails.
pub(crate) async fn serve(
    listener: TcpListener,
    (settings, program): (Settings, PathBuf),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (address, payload_max) = (listener.local_addr()?.to_string(), settings.payload_max);
    let (requests, instances) = Default::default();
    let emulator = Arc::new(Emulator { settings, program, address, requests, instances });
    let router = Router::new()
        .route("/2015-03-31/functions/{name}/invocations", post(invoked))
        .route("/{instance}/2018-06-01/runtime/invocation/next", get(next))
        .route("/{instance}/2018-06-01/runtime/invocation/{event}/{way}", post(answered))
        .layer(DefaultBodyLimit::max(payload_max))
        .with_state(emulator.clone());
    let sweep = async {
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            // Who waits for one that has ended is told.
            emulator.instances.lock().retain(|_, one| matches!(one.child.try_wait(), Ok(None)));
        }
    };
    let served = tokio::select! {
        served = axum::serve(listener, router).into_future() => served,
        () = sweep => Ok(()),
        () = stop => Ok(()),
    };
    emulator.instances.lock().clear();
    served
}

/// A request that Lambda refuses, with the kind of error and a text.
fn refusal(status: StatusCode, kind: &'static str, message: &str) -> Response {
    (status, [("x-amzn-errortype", kind)], json!({ "message": message }).to_string()).into_response()
}

/// What a function answers that has failed.
fn failed(error: impl Into<Bytes>) -> Response {
    ([("x-amz-function-error", "Unhandled")], error.into()).into_response()
}

async fn invoked(State(emulator): Shared, Path(name): Path<String>, headers: HeaderMap, body: Bytes) -> Response {
    let event = emulator.requests.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(refusal) = emulator.refusal(event, &name, &headers, &body) {
        return refusal;
    }
    // In a task of its own: an event goes on without who has sent it.
    let run = tokio::spawn(async move { emulator.run(event, body).await });
    run.await.unwrap_or_else(|error| failed(error.to_string()))
}

/// The next event of an instance.
async fn next(State(emulator): Shared, Path(instance): Path<u64>) -> Response {
    loop {
        let event = emulator.instances.lock().get_mut(&instance).map(|one| (one.event.take(), one.answer.0.clone()));
        match event {
            Some((Some((body, ends)), id)) => {
                let id = ("lambda-runtime-aws-request-id", id);
                return ([id, ("lambda-runtime-deadline-ms", ends.as_millis().to_string())], body).into_response();
            }
            Some((None, _)) => tokio::time::sleep(EVENT_PERIOD).await,
            None => return StatusCode::FORBIDDEN.into_response(),
        }
    }
}

/// The answer of an instance.
async fn answered(State(all): Shared, Path((one, id, way)): Path<(u64, String, String)>, body: Bytes) -> StatusCode {
    let mut instances = all.instances.lock();
    let one = instances.get_mut(&one).filter(|one| one.answer.0 == id);
    let answer = if way == "response" { body.into_response() } else { failed(body) };
    match one.and_then(|one| one.answer.1.take()).map(|waits| waits.send(answer).is_ok()) {
        Some(true) => StatusCode::ACCEPTED,
        _ => StatusCode::BAD_REQUEST,
    }
}

impl Emulator {
    /// Refuses a request, if it is to be.
    fn refusal(&self, number: u64, name: &str, headers: &HeaderMap, body: &[u8]) -> Option<Response> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let authorization = header("authorization");
        let part =
            |name: &str| authorization.split_once(name).map_or("", |(_, rest)| rest.split(',').next().unwrap_or(rest));
        let region = part("Credential=").split('/').nth(2).unwrap_or_default();
        let signed: Vec<_> = part("SignedHeaders=").split(';').map(|name| (name, header(name))).collect();
        let path = format!("/2015-03-31/functions/{name}/invocations");
        if authorization != (Signed { path: &path, headers: &signed, body }).authorization(KEY, region, SERVICE) {
            let message = "The request signature we calculated does not match the signature you provided.";
            return Some(refusal(StatusCode::FORBIDDEN, "InvalidSignatureException", message));
        }
        if name != self.settings.function {
            let message = format!("Function not found: arn:aws:lambda:{region}:000000000000:function:{name}");
            return Some(refusal(StatusCode::NOT_FOUND, "ResourceNotFoundException", &message));
        }
        let is_throttled = self.settings.throttle_every.is_some_and(|every| number.is_multiple_of(every));
        is_throttled.then(|| refusal(StatusCode::TOO_MANY_REQUESTS, "TooManyRequestsException", "Rate Exceeded."))
    }

    /// Has an instance process an event.
    async fn run(&self, event: u64, body: Bytes) -> Response {
        let (answer, answered) = oneshot::channel();
        // As Lambda names it, for the runtime and in messages.
        let id = format!("00000000-0000-4000-8000-{event:012}");
        let (number, is_new) = match self.take(event, (id.clone(), Some(answer))) {
            Ok(taken) => taken,
            Err(error) => return failed(json!({ "errorMessage": error.to_string() }).to_string()),
        };
        if is_new {
            tokio::time::sleep(Duration::from_millis(self.settings.cold_ms)).await;
        }
        let limit = Duration::from_secs(self.settings.time_limit_s);
        let ends = UNIX_EPOCH.elapsed().unwrap_or_default() + limit;
        self.instances.lock().entry(number).and_modify(|one| one.event = Some((body, ends)));
        let why = match tokio::time::timeout(limit, answered).await {
            Ok(Ok(answer)) => {
                self.instances.lock().entry(number).and_modify(|one| one.is_idle = true);
                return answer;
            }
            Ok(Err(_)) => format!("RequestId: {id} Error: Runtime exited"),
            Err(_) => format!("{id} Task timed out after {:.2} seconds", limit.as_secs_f64()),
        };
        self.instances.lock().remove(&number);
        failed(json!({ "errorMessage": why }).to_string())
    }

    /// The number of an instance without an event, or of a new one, and whether it is new. It has this event now.
    fn take(&self, event: u64, answer: (String, Option<oneshot::Sender<Response>>)) -> io::Result<(u64, bool)> {
        let mut instances = self.instances.lock();
        if let Some((&number, idle)) = instances.iter_mut().find(|(_, one)| one.is_idle) {
            (idle.is_idle, idle.answer) = (false, answer);
            return Ok((number, false));
        }
        let mut command = Command::new(&self.program);
        command.env("AWS_LAMBDA_RUNTIME_API", format!("{}/{event}", self.address)).stdin(Stdio::null());
        let child = command.spawn()?;
        instances.insert(event, Instance { child, event: None, answer, is_idle: false });
        Ok((event, true))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use std::time::Instant;

    use clap::Parser;

    use super::super::{Event, Lambda};
    use super::*;
    use crate::config::{Config, LambdaConfig, Sources};

    #[derive(clap::Parser)]
    struct Given {
        #[command(flatten)]
        settings: Settings,
    }

    /// What a function says of an event, if this shell script is the function; `change` changes what is emulated.
    fn invoke(script: &str, change: impl FnOnce(&mut Settings)) -> (Option<Duration>, Result<(), String>) {
        invoke_as("emulated", script, change).remove(0)
    }

    /// The same of two events, one after the other, with this secret.
    fn invoke_as(
        secret: &str,
        script: &str,
        change: impl FnOnce(&mut Settings),
    ) -> Vec<(Option<Duration>, Result<(), String>)> {
        let folder = tempfile::TempDir::new().unwrap();
        let program = folder.path().join("bootstrap");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let Given { mut settings } = Given::parse_from(["emulate"]);
        (settings.function, settings.payload_max) = ("f".into(), 1_000);
        change(&mut settings);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = runtime.spawn(serve(listener, (settings, program), async { _ = stopped.await }));
        let lambda =
            Lambda::new(config(&[("AWS_ENDPOINT_URL", &endpoint), ("AWS_SECRET_ACCESS_KEY", secret)])).unwrap();
        let event = Event { version: "1".into(), ..Event::default() };
        let answers = vec![lambda.invoke(&event, Instant::now()), lambda.invoke(&event, Instant::now())];
        drop(stop);
        runtime.block_on(served).unwrap().unwrap();
        answers
    }

    fn config(variables: &[(&str, &str)]) -> LambdaConfig {
        let own = [
            ("RIVULET_BURST_LAMBDA_FUNCTION", "f"),
            ("RIVULET_LINK_ADDRESS", "0.0.0.0:7117"),
            ("RIVULET_BURST_LAMBDA_CONNECT", "server.example:7117"),
            ("AWS_ACCESS_KEY_ID", "emulated"),
        ];
        let environment = own.iter().chain(variables).map(|(name, value)| (name.into(), value.into())).collect();
        let loaded = crate::config::load(&Sources { environment, ..Sources::default() }).unwrap();
        let Config { burst, .. } = loaded.config;
        burst.lambda.unwrap()
    }

    #[test]
    fn functions_that_fail_are_told_as_lambda_tells_it() {
        let long = || "exec sleep 600";
        let (billed, answer) = invoke(long(), |settings| settings.time_limit_s = 1);
        let timed_out = "the function 'f' has failed: Task timed out after 1.00 seconds";
        assert_eq!((billed >= Some(Duration::from_secs(1)), answer.unwrap_err().as_str()), (true, timed_out));
        let (billed, answer) = invoke("exit 1", |_| ());
        let ended = "the function 'f' has failed: Error: Runtime exited";
        assert_eq!((billed.is_some(), answer.unwrap_err().as_str()), (true, ended));
        let (billed, answer) = invoke(long(), |settings| settings.payload_max = 10);
        let too_large = answer.unwrap_err();
        assert!(billed.is_none() && too_large.contains("413 Payload Too Large"), "{too_large}");
        let (billed, answer) = invoke(long(), |settings| settings.throttle_every = Some(1));
        let no_room = "AWS has no room for the function 'f' now: Rate Exceeded.";
        assert_eq!((billed, answer.unwrap_err().as_str()), (None, no_room));
        let (billed, answer) = invoke_as("another", long(), |_| ()).remove(0);
        assert!(billed.is_none() && answer.unwrap_err().contains("InvalidSignatureException"));
        let (_, answer) = invoke("", |settings| settings.function = "other".into());
        assert!(answer.unwrap_err().starts_with("there is no function 'f' in us-east-1: Function not found"));
    }

    #[test]
    fn an_answer_counts_for_its_own_event_and_once() {
        // Answers the first event twice, and the second one with the number of the first.
        let script = r#"
            api="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation"
            number=$(curl -s -D - -o /dev/null "$api/next" | tr -d '\r' | sed -n 's/^lambda-runtime-aws-request-id: //p')
            curl -s -d '"rivulet"' "$api/$number/response"
            curl -s -d '"rivulet"' "$api/$number/response"
            curl -s -o /dev/null "$api/next"
            curl -s -d '"rivulet"' "$api/$number/response"
            exit 1"#;
        let answers = invoke_as("emulated", script, |_| ()).into_iter().map(|(_, answer)| answer);
        let ended = "the function 'f' has failed: Error: Runtime exited".to_owned();
        assert_eq!(answers.collect::<Vec<_>>(), [Ok(()), Err(ended)]);
    }

    #[test]
    fn what_never_reached_lambda_costs_nothing() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // The name is not resolved, nobody listens, and this is no TLS.
        let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let no_tls = format!("https://{}", plain.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = plain.accept().unwrap();
            io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            // Until the other side has read it and is gone.
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        for endpoint in ["https://nowhere.invalid", &format!("http://{closed}"), &no_tls] {
            let lambda =
                Lambda::new(config(&[("AWS_ENDPOINT_URL", endpoint), ("AWS_SECRET_ACCESS_KEY", "s")])).unwrap();
            let (billed, answer) = lambda.invoke(&Event { version: "1".into(), ..Event::default() }, Instant::now());
            assert_eq!(billed, None, "{answer:?}");
        }
        // Lambda says that nothing ran, and something between here and there says nothing.
        for (kind, is_billed) in [("EC2ThrottledException", false), ("ServiceException", true), ("", true)] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let endpoint = format!("http://{}", listener.local_addr().unwrap());
            let answer = format!("HTTP/1.1 502 Bad Gateway\r\nx-amzn-errortype: {kind}\r\ncontent-length: 0\r\n\r\n");
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut request, mut byte) = (Vec::new(), [0]);
                while !request.ends_with(b"null}") && io::Read::read(&mut stream, &mut byte).unwrap_or(0) == 1 {
                    request.push(byte[0]);
                }
                io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
            });
            let lambda =
                Lambda::new(config(&[("AWS_ENDPOINT_URL", &endpoint), ("AWS_SECRET_ACCESS_KEY", "s")])).unwrap();
            let (billed, answer) = lambda.invoke(&Event { version: "1".into(), ..Event::default() }, Instant::now());
            assert_eq!(billed.is_some(), is_billed, "{kind}: {answer:?}");
        }
    }

    #[test]
    fn what_a_function_costs_is_its_time_by_its_memory() {
        let lambda =
            Lambda::new(config(&[("RIVULET_BURST_LAMBDA_MEMORY_MB", "2048"), ("AWS_SECRET_ACCESS_KEY", "s")])).unwrap();
        assert_eq!([2_048, 3_538, 128].map(super::super::threads), [1, 2, 1]);
        // A second with 2 GB, and an invocation.
        assert_eq!(lambda.cost(Duration::from_secs(1)), 2 * 16_666_700 + 200_000);
        assert_eq!(lambda.cost(Duration::from_micros(1)), lambda.cost(Duration::from_millis(1)));
        assert_eq!(lambda.cost(Duration::MAX), u64::MAX);
    }
}
