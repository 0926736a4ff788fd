//! The program as a function of AWS Lambda: one burst worker for each invocation, through the
//! custom runtime interface.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use clap::Parser;
use serde_json::json;
use ureq::Agent;

use crate::burst::lambda::{DONE, Event, IDLE_S, WARM, threads};

use super::burst_worker::{self, BurstWorkerArguments};
use super::signals::say;

/// How long before its time limit a function ends, so that it can still say so.
const FAREWELL: Duration = Duration::from_secs(2);

/// Does what it is invoked for, until the interface is gone, if this process is a function: it has no arguments then.
pub(super) fn run() -> Option<ExitCode> {
    let runtime = std::env::var("AWS_LAMBDA_RUNTIME_API").ok().filter(|_| std::env::args_os().len() == 1)?;
    let agent = Agent::config_builder().proxy(None).build().new_agent();
    let base = format!("http://{runtime}/2018-06-01/runtime/invocation");
    loop {
        if let Err(error) = serve_one(&agent, &base) {
            say(&format!("{runtime} does not answer as the interface of a function does: {error}"));
            return Some(ExitCode::FAILURE);
        }
    }
}

fn serve_one(agent: &Agent, base: &str) -> Result<(), ureq::Error> {
    let mut next = agent.get(format!("{base}/next")).call()?;
    let header = |name: &str| next.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let id = header("lambda-runtime-aws-request-id").to_owned();
    let ends = header("lambda-runtime-deadline-ms").parse().map_or(Duration::MAX, Duration::from_millis);
    let (way, answer) = match act(&next.body_mut().read_to_vec()?, ends) {
        Ok(()) => ("response", json!(DONE)),
        Err(why) => ("error", json!({ "errorType": "Rivulet", "errorMessage": why })),
    };
    agent.post(format!("{base}/{id}/{way}")).content_type("application/json").send(answer.to_string())?;
    Ok(())
}

/// Does what an event says. `ends` is when the time limit is over, since the epoch.
fn act(event: &[u8], ends: Duration) -> Result<(), String> {
    let event: Event =
        serde_json::from_slice(event).map_err(|error| format!("the event is not from a Rivulet server: {error}"))?;
    let own = env!("CARGO_PKG_VERSION");
    if event.version != own {
        let (server, what) = (&event.version, "give it the zip of `rivulet burst package` of the server's version");
        return Err(format!("it is version {own}, and the server {server}: {what}"));
    }
    let Event { connect: (connect, is_tls), name, memory_mb, limit_s, margin_s, .. } = event;
    let Some(margin_s) = margin_s else {
        thread::sleep(WARM);
        return Ok(());
    };
    let has_mb = std::env::var("AWS_LAMBDA_FUNCTION_MEMORY_SIZE").unwrap_or_else(|_| memory_mb.to_string());
    if has_mb != memory_mb.to_string() {
        return Err(format!("it has {has_mb} MB, and burst.lambda.memory_mb is {memory_mb}"));
    }
    let left = ends.saturating_sub(UNIX_EPOCH.elapsed().unwrap_or_default()).saturating_sub(FAREWELL).as_secs();
    let limit_s = left.min(limit_s);
    if limit_s <= margin_s {
        return Err(format!(
            "{limit_s} s of its timeout are left, less than burst.margin_s ({margin_s} s): raise the timeout of the function"
        ));
    }
    let (threads, tls) = (threads(memory_mb), if is_tls { " --tls" } else { "" });
    let words = format!(
        "burst-worker --connect {connect} --name {name} --threads {threads} --idle-s {IDLE_S} --limit-s {limit_s}{tls}"
    );
    // Whatever else it needs, its token above all, is in the environment of the function.
    let arguments = BurstWorkerArguments::try_parse_from(words.split(' ')).map_err(|error| error.to_string())?;
    match burst_worker::work(&arguments, &AtomicBool::new(false)).map_err(|error| error.message().to_owned())? {
        None => Ok(()),
        Some(problem) => Err(format!("{connect} cannot be reached from the function: {problem}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_it_cannot_be_a_worker_for_is_refused() {
        let given = Event { memory_mb: 1_769, limit_s: 9, margin_s: Some(9), ..Event::default() };
        let event = |version: &str| serde_json::to_vec(&Event { version: version.into(), ..given.clone() }).unwrap();
        let refused = |event: &[u8]| act(event, Duration::MAX).unwrap_err();
        assert!(refused(b"{}").starts_with("the event is not from a Rivulet server: "));
        let other = refused(&event("0.0.0"));
        let words = concat!(
            "it is version ",
            env!("CARGO_PKG_VERSION"),
            ", and the server 0.0.0: give it the zip of `rivulet burst"
        );
        assert!(other.starts_with(words), "{other}");
        let short = refused(&event(env!("CARGO_PKG_VERSION")));
        assert!(short.starts_with("9 s of its timeout are left, less than burst.margin_s (9 s)"), "{short}");
        let warm = Event { version: env!("CARGO_PKG_VERSION").into(), ..Event::default() };
        let warm = serde_json::to_vec(&warm).unwrap();
        assert_eq!(act(&warm, Duration::ZERO), Ok(()));
    }
}
