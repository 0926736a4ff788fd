//! The part of AWS Lambda that burst workers need: the interface by which functions are invoked, and that for custom
//! runtimes, by which an instance gets its events. For tests and for trying out.
//!
//! What must hold: a refusal looks as that of Lambda does, an instance has one event at a time, and none outlives this.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::SERVICE;
use super::sign::Signed;

/// How often it looks whether instances have ended, or have been idle for too long.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// What is emulated: the arguments of `rivulet burst emulate`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Settings {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:9001")]
    pub(crate) listen: SocketAddr,
    /// The name of the function
    #[arg(long, default_value = "rivulet-burst")]
    function: String,
    /// The zip of the function [default: this program]
    #[arg(long)]
    pub(crate) zip: Option<PathBuf>,
    /// A program that is the function [default: this program]
    #[arg(long, conflicts_with = "zip")]
    pub(crate) program: Option<PathBuf>,
    /// The key that requests have to be signed with; its secret is AWS_SECRET_ACCESS_KEY, or emulated
    #[arg(long, env = "AWS_ACCESS_KEY_ID", default_value = "emulated", hide_env_values = true)]
    access_key_id: String,
    #[arg(skip = std::env::var("AWS_SECRET_ACCESS_KEY").unwrap_or_else(|_| "emulated".into()))]
    secret_access_key: String,
    /// The region that they have to be for
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// How long an instance takes to start
    #[arg(long, default_value_t = 0)]
    cold_ms: u64,
    /// How many events there may be at a time
    #[arg(long, default_value_t = 1_000)]
    concurrency: usize,
    /// Refuses one of so many requests
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    throttle_every: Option<u64>,
    /// How long an event may take before its instance is ended
    #[arg(long, default_value_t = 900)]
    time_limit_s: u64,
    /// Most bytes of an event or an answer
    #[arg(long, default_value_t = 6 << 20)]
    payload_max: usize,
    /// After how long without an event an instance is ended
    #[arg(long, default_value_t = 300)]
    idle_s: u64,
}

struct Emulator {
    settings: Settings,
    program: PathBuf,
    /// Where instances find their interface.
    address: String,
    requests: AtomicU64,
    instances: Mutex<BTreeMap<u64, Instance>>,
}

struct Instance {
    child: Child,
    events: mpsc::Sender<Event>,
    waits: Arc<tokio::sync::Mutex<mpsc::Receiver<Event>>>,
    /// Who waits for the answer to the event that it has.
    answer: Option<oneshot::Sender<Answer>>,
    /// Since when it has none.
    idle_since: Option<Instant>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An event, and when its time is over, since the epoch.
type Event = (Bytes, Duration);

/// What has come of an event: its kind if it is an error.
type Answer = (Option<&'static str>, Bytes);

type Body = Result<Bytes, BytesRejection>;

/// Emulates Lambda until `stop` is complete. The function is a program.
///
/// # Errors
/// The listener is none.
pub(crate) async fn serve(
    listener: TcpListener,
    (settings, program): (Settings, PathBuf),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (address, payload_max) = (listener.local_addr()?.to_string(), settings.payload_max);
    let (requests, instances) = Default::default();
    let emulator = Arc::new(Emulator { settings, program, address, requests, instances });
    let of_instance = "/{instance}/2018-06-01/runtime";
    let router = Router::new()
        .route("/2015-03-31/functions/{name}/invocations", post(invoked))
        .route(&format!("{of_instance}/invocation/next"), get(next))
        .route(&format!("{of_instance}/invocation/{{event}}/{{way}}"), post(answered))
        .layer(DefaultBodyLimit::max(payload_max))
        .with_state(emulator.clone());
    let sweep = async {
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            emulator.sweep();
        }
    };
    tokio::select! {
        served = axum::serve(listener, router).into_future() => served,
        () = sweep => Ok(()),
        () = stop => Ok(()),
    }
    .inspect(|()| emulator.instances.lock().clear())
}

/// A request that Lambda refuses, with the kind of error and a text.
fn refusal(status: StatusCode, kind: &'static str, message: &str) -> Response {
    let body = json!({ "Type": "User", "message": message }).to_string();
    (status, [("x-amzn-errortype", kind), ("content-type", "application/json")], body).into_response()
}

async fn invoked(
    State(emulator): State<Arc<Emulator>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let body = match emulator.admit(&name, &headers, body) {
        Ok(body) => body,
        Err(refusal) => return *refusal,
    };
    // In a task of its own: an event goes on without who has sent it.
    let run = tokio::spawn(async move { emulator.run(body).await });
    let answer = run.await.unwrap_or_else(|error| Err(error.to_string()));
    match answer {
        Ok((None, body)) => body.into_response(),
        Ok((Some(kind), body)) => ([("x-amz-function-error", kind)], body).into_response(),
        Err(why) => refusal(StatusCode::TOO_MANY_REQUESTS, "TooManyRequestsException", &why),
    }
}

/// The next event of an instance.
async fn next(State(emulator): State<Arc<Emulator>>, Path(instance): Path<u64>) -> Response {
    let waits = emulator.instances.lock().get_mut(&instance).map(|one| one.waits.clone());
    let Some(waits) = waits else { return StatusCode::FORBIDDEN.into_response() };
    let Some((body, ends)) = waits.lock().await.recv().await else { return StatusCode::FORBIDDEN.into_response() };
    let headers = [
        ("lambda-runtime-aws-request-id", instance.to_string()),
        ("lambda-runtime-deadline-ms", ends.as_millis().to_string()),
    ];
    (headers, body).into_response()
}

/// The answer of an instance.
async fn answered(
    State(emulator): State<Arc<Emulator>>,
    Path((instance, _, way)): Path<(u64, u64, String)>,
    body: Body,
) -> StatusCode {
    let answer = match body {
        Ok(body) if way == "response" => (None, body),
        Ok(body) => (Some("Unhandled"), body),
        Err(_) => (Some("Unhandled"), failure("Function.ResponseSizeTooLarge", "the answer is too large")),
    };
    let waits = emulator.instances.lock().get_mut(&instance).and_then(|one| one.answer.take());
    match waits.map(|waits| waits.send(answer)) {
        Some(Ok(())) => StatusCode::ACCEPTED,
        _ => StatusCode::FORBIDDEN,
    }
}

fn failure(kind: &str, message: &str) -> Bytes {
    json!({ "errorType": kind, "errorMessage": message }).to_string().into()
}

impl Emulator {
    /// The body of a request that may be, or its refusal.
    fn admit(&self, name: &str, headers: &HeaderMap, body: Body) -> Result<Bytes, Box<Response>> {
        let Settings { function, region, payload_max, throttle_every, .. } = &self.settings;
        let (id, secret) = (&self.settings.access_key_id, &self.settings.secret_access_key);
        let refuse = |status, kind, message: &str| Err(Box::new(refusal(status, kind, message)));
        let Ok(body) = body else {
            let message = format!("Request must be smaller than {payload_max} bytes for the InvokeFunction operation");
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLargeException", &message);
        };
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let authorization = header("authorization");
        let part = |name: &str| {
            let rest = authorization.split_once(&format!("{name}=")).map_or("", |(_, rest)| rest);
            rest.split(',').next().unwrap_or_default()
        };
        if part("Credential").split('/').next() != Some(id) {
            let message = "The security token included in the request is invalid.";
            return refuse(StatusCode::FORBIDDEN, "UnrecognizedClientException", message);
        }
        let path = format!("/2015-03-31/functions/{name}/invocations");
        let names = part("SignedHeaders").split(';');
        let signed: Vec<_> = names.map(|name| (name, header(name))).collect();
        let signed = Signed { method: "POST", path: &path, headers: &signed, body: &body };
        if authorization != signed.authorization((id, secret), region, SERVICE) {
            let message = "The request signature we calculated does not match the signature you provided.";
            return refuse(StatusCode::FORBIDDEN, "InvalidSignatureException", message);
        }
        if name != function {
            let message = format!("Function not found: arn:aws:lambda:{region}:000000000000:function:{name}");
            return refuse(StatusCode::NOT_FOUND, "ResourceNotFoundException", &message);
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if throttle_every.is_some_and(|every| number.is_multiple_of(every)) {
            return refuse(StatusCode::TOO_MANY_REQUESTS, "TooManyRequestsException", "Rate Exceeded.");
        }
        Ok(body)
    }

    /// Has an instance process an event.
    ///
    /// # Errors
    /// There is no room for it.
    async fn run(&self, body: Bytes) -> Result<Answer, String> {
        let (answer, mut answered) = oneshot::channel();
        let (number, is_new) = self.take(answer)?;
        if is_new {
            tokio::time::sleep(Duration::from_millis(self.settings.cold_ms)).await;
        }
        let limit = Duration::from_secs(self.settings.time_limit_s);
        let ends = UNIX_EPOCH.elapsed().unwrap_or_default() + limit;
        let events = self.instances.lock().get(&number).map(|one| one.events.clone());
        if let Some(events) = events {
            let _ = events.send((body, ends)).await;
        }
        let deadline = tokio::time::sleep(limit);
        let answer = tokio::select! {
            answer = &mut answered => answer.map_err(|_| "the instance has ended".to_owned()),
            () = deadline => Err(format!("Task timed out after {:.2} seconds", limit.as_secs_f64())),
        };
        let mut instances = self.instances.lock();
        match answer {
            Ok(answer) => {
                if let Some(instance) = instances.get_mut(&number) {
                    instance.idle_since = Some(Instant::now());
                }
                Ok(answer)
            }
            Err(why) => {
                let ended = instances.remove(&number);
                drop(instances);
                drop(ended);
                Ok((Some("Unhandled"), failure("Sandbox.Failed", &why)))
            }
        }
    }

    /// An instance without an event, or a new one. Returns its number, and whether it is new.
    fn take(&self, answer: oneshot::Sender<Answer>) -> Result<(u64, bool), String> {
        let mut instances = self.instances.lock();
        if instances.values().filter(|one| one.idle_since.is_none()).count() >= self.settings.concurrency {
            return Err("Rate Exceeded.".into());
        }
        if let Some((&number, idle)) = instances.iter_mut().find(|(_, one)| one.idle_since.is_some()) {
            (idle.idle_since, idle.answer) = (None, Some(answer));
            return Ok((number, false));
        }
        let number = instances.last_key_value().map_or(0, |(number, _)| number + 1);
        let mut command = Command::new(&self.program);
        command.env("AWS_LAMBDA_RUNTIME_API", format!("{}/{number}", self.address)).stdin(Stdio::null());
        command.env("AWS_LAMBDA_FUNCTION_NAME", &self.settings.function);
        let child = command.spawn().map_err(|error| format!("no instance can be started: {error}"))?;
        tracing::info!(instance = number, process = child.id(), "an instance has started");
        let (events, waits) = mpsc::channel(1);
        let waits = Arc::new(tokio::sync::Mutex::new(waits));
        instances.insert(number, Instance { child, events, waits, answer: Some(answer), idle_since: None });
        Ok((number, true))
    }

    /// Ends instances that were idle for long, and forgets those that have ended: who waits for them is told.
    fn sweep(&self) {
        let stays = |one: &mut Instance| {
            let is_old = one.idle_since.is_some_and(|since| since.elapsed().as_secs() >= self.settings.idle_s);
            !is_old && matches!(one.child.try_wait(), Ok(None))
        };
        self.instances.lock().retain(|_, one| stays(one));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

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
        let folder = tempfile::TempDir::new().unwrap();
        let program = folder.path().join("bootstrap");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let Given { mut settings } = Given::parse_from(["emulate"]);
        (settings.function, settings.payload_max) = ("f".into(), 1_000);
        (settings.access_key_id, settings.secret_access_key) = ("id".into(), "secret".into());
        change(&mut settings);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = runtime.spawn(serve(listener, (settings, program), async { _ = stopped.await }));
        let config = config(&[("AWS_ENDPOINT_URL_LAMBDA", &endpoint)]);
        let event = Event { version: "1".into(), run: None };
        let answer = Lambda::new(config).unwrap().invoke(&event, Instant::now());
        drop(stop);
        runtime.block_on(served).unwrap().unwrap();
        answer
    }

    fn config(variables: &[(&str, &str)]) -> LambdaConfig {
        let own = [
            ("RIVULET_BURST_LAMBDA_FUNCTION", "f"),
            ("RIVULET_LINK_ADDRESS", "127.0.0.1:7117"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
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
        let ended = "the function 'f' has failed: the instance has ended";
        assert_eq!((billed.is_some(), answer.unwrap_err().as_str()), (true, ended));
        let (billed, answer) = invoke(long(), |settings| settings.payload_max = 10);
        let too_large = answer.unwrap_err();
        assert!(billed.is_none() && too_large.contains("413") && too_large.contains("RequestTooLarge"), "{too_large}");
        let (billed, answer) = invoke(long(), |settings| settings.concurrency = 0);
        let no_room = "AWS has no room for the function 'f' now: Rate Exceeded.";
        assert_eq!((billed, answer.unwrap_err().as_str()), (None, no_room));
        let (billed, answer) = invoke(long(), |settings| settings.region = "eu-west-1".into());
        assert!(billed.is_none() && answer.unwrap_err().contains("InvalidSignatureException"));
    }

    #[test]
    fn what_a_function_costs_is_its_time_by_its_memory() {
        let lambda = Lambda::new(config(&[("RIVULET_BURST_LAMBDA_MEMORY_MB", "2048")])).unwrap();
        assert_eq!(lambda.threads(), 1);
        // A second with 2 GB, and an invocation.
        assert_eq!(lambda.cost(Duration::from_secs(1)), 2 * 16_666_700 + 200_000);
        assert_eq!(lambda.cost(Duration::from_micros(1)), lambda.cost(Duration::from_millis(1)));
        assert_eq!(lambda.cost(Duration::MAX), u64::MAX);
    }
}
