//! The program as a function of AWS Lambda: a burst worker for each run, behind the interface for custom runtimes.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use serde_json::json;
use ureq::Agent;
use ureq::http::StatusCode;

use crate::burst::lambda::{Event, Run, WARM, other_version};

use super::burst_worker::{self, BurstWorkerArguments};
use super::error::CliError;
use super::signals::say;

/// How long before its time limit a function ends, so that it can still say so.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Parser)]
struct Worker {
    #[command(flatten)]
    arguments: BurstWorkerArguments,
}

/// The address of the interface, if this process is a function: it has no arguments then.
pub(super) fn runtime() -> Option<String> {
    std::env::var("AWS_LAMBDA_RUNTIME_API").ok().filter(|_| std::env::args_os().len() == 1)
}

/// Does what it is invoked for, until the interface is gone.
pub(super) fn run(runtime: &str) -> ExitCode {
    let agent = Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent();
    let base = format!("http://{runtime}/2018-06-01/runtime/invocation");
    loop {
        if let Err(error) = serve_one(&agent, &base) {
            say(&format!("{runtime} does not answer as the interface of a function does: {error}"));
            return ExitCode::FAILURE;
        }
    }
}

fn serve_one(agent: &Agent, base: &str) -> Result<(), ureq::Error> {
    let mut next = agent.get(format!("{base}/next")).call()?;
    if next.status() != StatusCode::OK {
        return Err(ureq::Error::StatusCode(next.status().as_u16()));
    }
    let header = |name: &str| next.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let id = header("lambda-runtime-aws-request-id").to_owned();
    let ends = header("lambda-runtime-deadline-ms").parse().map_or(Duration::MAX, Duration::from_millis);
    let begun = Instant::now();
    let (way, answer) = match act(&next.body_mut().read_to_vec()?, ends) {
        Ok(()) => {
            ("response", json!({ "version": env!("CARGO_PKG_VERSION"), "ms": begun.elapsed().as_millis() as u64 }))
        }
        Err(why) => ("error", json!({ "errorType": "Rivulet", "errorMessage": why })),
    };
    agent.post(format!("{base}/{id}/{way}")).content_type("application/json").send(answer.to_string())?;
    Ok(())
}

/// Does what an event says. `ends` is when the time limit is over, since the epoch.
fn act(event: &[u8], ends: Duration) -> Result<(), String> {
    let event: Event =
        serde_json::from_slice(event).map_err(|error| format!("the event is none of a server: {error}"))?;
    if event.version != env!("CARGO_PKG_VERSION") {
        return Err(other_version(env!("CARGO_PKG_VERSION"), &event.version));
    }
    let Some(run) = event.run else {
        thread::sleep(WARM);
        return Ok(());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Another emulator says how long it takes instead: that is no time of now.
    let left = ends.checked_sub(now).map_or(u64::MAX, |left| left.saturating_sub(FAREWELL).as_secs()).min(run.limit_s);
    if left <= run.margin_s {
        return Err(format!(
            "its time limit leaves {left} s, and tasks come back burst.margin_s before, {} s: give it more time",
            run.margin_s
        ));
    }
    let failed = |error: CliError| error.message().to_owned();
    match work(&run, left).map_err(failed)? {
        None => Ok(()),
        Some(problem) => Err(format!("{} cannot be reached from the function: {problem}", run.connect)),
    }
}

/// Is a burst worker for so long. Whatever else it needs, its token above all, is in the environment of the function.
fn work(run: &Run, limit_s: u64) -> Result<Option<String>, CliError> {
    let numbers = [run.threads.to_string(), run.idle_s.to_string(), limit_s.to_string()];
    let [threads, idle_s, limit_s] = numbers.each_ref().map(String::as_str);
    let mut words = vec!["burst-worker", "--connect", &run.connect, "--name", &run.name];
    words.extend(["--threads", threads, "--idle-s", idle_s, "--limit-s", limit_s]);
    words.extend(run.tls.then_some("--tls"));
    let worker = Worker::try_parse_from(words).map_err(|error| CliError::usage(&error))?;
    burst_worker::work(&worker.arguments, &AtomicBool::new(false))
}
