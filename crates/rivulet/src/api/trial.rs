//! An application that is tried before it is registered.
//!
//! What must hold: a trial touches nothing of the server and no file, and there is one at a time. What it takes in time
//! and memory depends on its text, so only who administers the server may try.

use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use rivulet_sql::{Statement, parse_script};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::call::Authenticated;
use super::error::ApiError;
use crate::service::{Parameter, ParameterValue, ServiceError};
use crate::trial::{Event, Report, Trial};

/// The most events of a trial, and how long it may take.
const EVENTS_MAX: usize = 1_000;
const TIME_MAX: Duration = Duration::from_secs(5);

/// For how long after the last event timers are looked at, microseconds.
const LATER_US: i64 = 3_600_000_000;
/// The most results of that.
const LATER_MAX: usize = 100;

/// What is tried.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Attempt {
    /// `CREATE APPLICATION`, and perhaps `CREATE QUERY` of it.
    pub sql: String,
    /// The values of one query, if the text creates none.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// The events, at most 1000, in their order. They come a second apart, unless their payloads have times.
    pub events: Vec<AttemptMessage>,
}

/// A message of a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AttemptMessage {
    /// Its topic, or the address of its source.
    #[schema(example = "home/kitchen/temperature")]
    pub topic: String,
    /// Its payload.
    #[schema(example = "{\"celsius\": 21.5}")]
    pub payload: String,
}

/// What became of a trial.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub(super) struct Attempted {
    /// What became of each event.
    pub events: Vec<AttemptedEvent>,
    /// Results that came by the time that passes, within an hour after the last event; at most 100.
    pub later: Vec<AttemptMessage>,
}

/// What became of an event.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub(super) struct AttemptedEvent {
    /// Its topic.
    pub topic: String,
    /// Its payload.
    pub payload: String,
    /// Results that came with it.
    pub results: Vec<AttemptMessage>,
    /// Why it gave none, or what was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Try an application
///
/// Runs it with some events in an engine of its own, and says what became of each. Only for who administers the server.
/// Tables are not looked up.
#[utoipa::path(
    post, path = "/api/v1/trial", tag = "applications",
    request_body = Attempt,
    responses((status = 200, description = "What became of each event", body = Attempted)),
)]
pub(super) async fn try_application(api: Authenticated, body: Body) -> Result<Json<Attempted>, ApiError> {
    api.looking(|session| session.check_administers()).await??;
    let turn = api.trial_permits.clone().try_acquire_owned().map_err(|_| {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", "another application is being tried");
        error.with_hint("try again in a moment")
    })?;
    let text = api.read_sql(body).await?;
    let attempt: Attempt = serde_json::from_str(&text).map_err(|error| ApiError::invalid(error.to_string()))?;
    let tried = api.blocking(move |_| {
        // To the end of the trial, also if nobody waits for it any more.
        let _turn = turn;
        run(attempt)
    });
    Ok(Json(tried.await??))
}

fn run(attempt: Attempt) -> Result<Attempted, ServiceError> {
    let Attempt { sql, parameters, events } = attempt;
    if events.len() > EVENTS_MAX {
        let message = format!("a trial takes {EVENTS_MAX} events, and these are {}", events.len());
        return Err(ServiceError::invalid(message).with_hint("rivulet app test takes any number of them"));
    }
    let (mut trial, begun) = (Trial::without_files()?, Instant::now());
    for (statement, position) in parse_script(&sql).map_err(ServiceError::from)? {
        let done = match statement {
            Statement::CreateApplication(create) => trial.create_application(&create),
            Statement::CreateQuery { .. } => trial.create_query(statement, position),
            _ => Err(ServiceError::invalid("here an application is tried with its queries, and nothing else")
                .with_hint("rivulet app test tries one with its tables")),
        };
        done.map_err(|error| error.or_at(position))?;
    }
    if !trial.has_queries() {
        let names: Vec<String> = trial.applications().map(str::to_owned).collect();
        let parameters = parameters.into_iter().map(parameter).collect::<Result<Vec<_>, _>>()?;
        names.iter().for_each(|name| trial.create_query_with(name, parameters.clone()));
    }
    let mut attempted = Attempted::default();
    for (place, AttemptMessage { topic, payload }) in events.into_iter().enumerate() {
        if begun.elapsed() > TIME_MAX {
            return Err(ServiceError::invalid(format!("the trial takes more than {} s", TIME_MAX.as_secs()))
                .with_hint("try it with fewer events; rivulet app test takes any number of them"));
        }
        let event = Event {
            line: place + 1,
            topic: Some(topic.clone()).filter(|topic| !topic.is_empty()),
            payload: payload.clone().into_bytes(),
            ..Event::default()
        };
        let mut became = AttemptedEvent { topic, payload, ..AttemptedEvent::default() };
        trial.feed(&event, &mut |report| match report {
            Report::Result { topic, payload, .. } => became.results.push(message(topic, &payload)),
            Report::Refused { detail, .. } => became.why = Some(format!("refused: {detail}")),
            Report::Nothing { why, .. } => became.why = became.why.take().or(Some(why)),
        })?;
        attempted.events.push(became);
    }
    let until_us = trial.now_us() + LATER_US;
    let later = &mut attempted.later;
    trial.finish(until_us, &mut |report| {
        if let Report::Result { topic, payload, .. } = report
            && later.len() < LATER_MAX
        {
            later.push(message(topic, &payload));
        }
    })?;
    Ok(attempted)
}

fn message(topic: String, payload: &[u8]) -> AttemptMessage {
    AttemptMessage { topic, payload: String::from_utf8_lossy(payload).into_owned() }
}

fn parameter((name, value): (String, Value)) -> Result<Parameter<'static>, ServiceError> {
    match ParameterValue::of_json(value) {
        Some(value) => Ok((name.into(), value)),
        None => Err(ServiceError::invalid(format!("the value of '{name}' is a list or an object"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attempt(sql: &str, events: Value) -> Result<Attempted, ServiceError> {
        let events = serde_json::from_value(events).expect("events");
        let parameters = json!({"room": "k", "above": 20}).as_object().expect("an object").clone();
        run(Attempt { sql: sql.into(), parameters, events })
    }

    const WARM: &str = "CREATE APPLICATION warm (room TEXT, above DOUBLE)
        INPUT t (celsius DOUBLE) FROM 'mqtt:{room}/t' FORMAT JSON OUTPUT 'mqtt:{room}/warm' FORMAT JSON
        AS SELECT celsius FROM t WHERE celsius > $above";

    #[test]
    fn each_event_says_what_became_of_it() {
        let event = |topic: &str, payload: &str| json!({"topic": topic, "payload": payload});
        let given = [event("k/t", r#"{"celsius": 19}"#), event("k/t", r#"{"celsius": 23}"#), event("k/t", "x")];
        let told = attempt(WARM, json!(given)).expect("a trial");
        let became = |place: usize| (&told.events[place].results, told.events[place].why.clone().unwrap_or_default());
        assert!(became(0).0.is_empty() && became(0).1.contains("celsius > $above"), "{:?}", became(0));
        assert_eq!(became(1).0[0], AttemptMessage { topic: "k/warm".into(), payload: r#"{"celsius":23.0}"#.into() });
        assert!(became(2).1.starts_with("refused: "), "{:?}", became(2));
    }

    #[test]
    fn a_trial_reads_no_files_and_has_an_end() {
        let error =
            attempt("CREATE TABLE t (a TEXT) FROM 'file:/etc/passwd' FORMAT CSV", json!([])).expect_err("a file");
        assert!(error.message.contains("tried with its queries, and nothing else"), "{error}");
        let sql = "CREATE APPLICATION a INPUT t (n BIGINT) FROM 'mqtt:t' FORMAT JSON
            OUTPUT 'kafka:localhost:9/o' FORMAT AVRO (schema_file => '/etc/hostname') AS SELECT n FROM t";
        let error = attempt(sql, json!([])).expect_err("a file").to_string();
        assert!(error.contains("statements may not name files here"), "{error}");
        let many = vec![json!({"topic": "k/t", "payload": ""}); EVENTS_MAX + 1];
        assert!(attempt(WARM, json!(many)).expect_err("too many").message.contains("takes 1000 events"));
    }
}
