//! Answers to statements: small tables and sentences.

use rivulet_connectors::connector::Direction;
use rivulet_sql::FunctionDescription;
use serde_json::{Value, json};

use super::big_queries::Burst;
use crate::counted::counted;
use crate::like;
use crate::service::{
    AccountAnswer, ApplicationInfo, BigQueryInfo, BurstWorker, CheckpointInfo, CheckpointStatus, EndHealth, GrantInfo,
    Limit, QueryActivity, QueryInfo, ServiceError, StatementResult, TableColumn, TableInfo, TenantInfo, TokenInfo,
    UserInfo, counted_from,
};
use crate::times::at;

/// The number of rows of `SHOW` without a `LIMIT`.
const SHOW_ROWS_DEFAULT: usize = 100;

/// The approximate memory of a result.
pub(super) fn result_bytes(result: &StatementResult) -> usize {
    fn of(value: &Value) -> usize {
        size_of::<Value>()
            + match value {
                Value::String(text) => text.len(),
                Value::Array(values) => values.iter().map(of).sum(),
                Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + of(value)).sum(),
                _ => 0,
            }
    }
    let message = result.message.as_ref().map_or(0, String::len);
    size_of::<StatementResult>() + message + result.rows.iter().flatten().map(of).sum::<usize>()
}

pub(super) fn said(message: String) -> StatementResult {
    StatementResult { message: Some(message), ..StatementResult::default() }
}

pub(super) fn table(columns: &[&str], rows: impl Iterator<Item = Vec<Value>>) -> StatementResult {
    StatementResult {
        columns: columns.iter().map(|&name| name.to_owned()).collect(),
        rows: rows.collect(),
        message: None,
    }
}

/// The most rows of SHOW.
pub(super) fn rows_max(limit: Option<u64>) -> usize {
    limit.map_or(SHOW_ROWS_DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// The first rows, and the number of further rows.
pub(super) fn first(limit: usize, columns: &[&str], mut rows: impl Iterator<Item = Vec<Value>>) -> StatementResult {
    let shown = table(columns, rows.by_ref().take(limit));
    StatementResult { message: more(rows.count()), ..shown }
}

/// The note about rows that are omitted.
pub(super) fn more(count: usize) -> Option<String> {
    (count > 0).then(|| format!("and {count} more; LIMIT says how many are shown"))
}

pub(super) fn lines(column: &str, text: &str) -> StatementResult {
    table(&[column], text.lines().map(|line| vec![json!(line)]))
}

/// The functions whose names match a pattern.
pub(super) fn functions(like: Option<&str>, limit: usize) -> StatementResult {
    // Names of functions may be written in any case.
    let like = like.map(str::to_lowercase);
    let is_like = |one: &&FunctionDescription| {
        let mut names = one.other_names.iter().chain([&one.name]);
        like.as_ref().is_none_or(|pattern| names.any(|name| like::like(name, pattern)))
    };
    let row = |one: &FunctionDescription| {
        vec![json!(one.name), json!(one.kind), json!(one.calls.join(" | ")), json!(one.description)]
    };
    first(limit, &["name", "kind", "call", "description"], rivulet_sql::functions().iter().filter(is_like).map(row))
}

/// What is on burst workers, of queries whose names match a pattern.
pub(super) fn bursts(bursts: Vec<Burst>, like: Option<&str>, limit: usize) -> StatementResult {
    const COLUMNS: [&str; 10] =
        ["query", "stage", "operators", "tasks", "away", "workers", "since", "state_bytes", "in_flight_rows", "why"];
    let is_like = |one: &Burst| like.is_none_or(|pattern| like::like(&one.query, pattern));
    let row = |one: Burst| {
        vec![
            json!(one.query),
            json!(one.stage),
            json!(one.operators),
            json!(one.tasks),
            json!(one.away),
            json!(one.workers.join(", ")),
            json!(one.since_us.map(at)),
            json!(one.state_bytes),
            json!(one.in_flight_rows),
            json!(one.why),
        ]
    };
    first(limit, &COLUMNS, bursts.into_iter().filter(is_like).map(row))
}

/// The burst workers whose names match a pattern.
pub(super) fn burst_workers(workers: Vec<BurstWorker>, like: Option<&str>, limit: usize) -> StatementResult {
    let shown = workers.into_iter().filter(|one| like.is_none_or(|pattern| like::like(&one.name, pattern)));
    let row = |one: BurstWorker| {
        vec![json!(one.name), json!(one.address), json!(one.threads), json!(one.tasks), json!(one.until)]
    };
    first(limit, &["name", "address", "threads", "tasks", "until"], shown.map(row))
}

/// The description of one function.
///
/// # Errors
/// There is no function of this name.
pub(super) fn describe_function(name: &str) -> Result<StatementResult, ServiceError> {
    let Some(one) = rivulet_sql::function(&name.to_lowercase()) else {
        let error = ServiceError::not_found(format!("there is no function '{name}'"));
        let names = rivulet_sql::functions().iter().map(|one| one.name.as_str());
        return Err(error.suggesting(name, names, "SHOW FUNCTIONS lists them"));
    };
    let property = |name: &str, value: &str| vec![json!(name), json!(value)];
    let mut rows = vec![property("name", &one.name), property("kind", &one.kind)];
    rows.extend((!one.other_names.is_empty()).then(|| property("other names", &one.other_names.join(", "))));
    rows.extend(one.calls.iter().map(|call| property("call", call)));
    rows.push(property("description", &one.description));
    rows.extend(one.examples.iter().map(|example| property("example", example)));
    Ok(table(&["property", "value"], rows.into_iter()))
}

/// The answer to a statement about accounts.
pub(super) fn account(answer: AccountAnswer) -> StatementResult {
    // Of the local time of whoever reads it nothing is known.
    let time =
        |seconds: Option<u64>| seconds.and_then(|s| i64::try_from(s).ok()).map(|s| at(s.saturating_mul(1_000_000)));
    let token = |one: &TokenInfo| {
        let expires = match (one.has_expired, time(one.expires_s)) {
            (true, Some(expires)) => json!(format!("{expires} (expired)")),
            (_, expires) => json!(expires),
        };
        vec![
            json!(one.tenant),
            json!(one.user),
            json!(one.id),
            json!(time(Some(one.created_s))),
            expires,
            json!(time(one.last_used_s)),
        ]
    };
    const OF_TOKEN: [&str; 6] = ["tenant", "user", "id", "created", "expires", "last_used"];
    match answer {
        AccountAnswer::Done(message) => said(message),
        AccountAnswer::Token { text, info } => StatementResult {
            message: Some("this is the only time that the token is shown".into()),
            ..table(
                &["token", "id", "user", "expires"],
                std::iter::once(vec![json!(text), json!(info.id), json!(info.user), json!(time(info.expires_s))]),
            )
        },
        AccountAnswer::Tenants(tenants) => {
            let columns: Vec<&str> = std::iter::once("name").chain(Limit::ALL.map(Limit::name)).collect();
            let row = |one: TenantInfo| {
                let limits = one.limits.iter().map(|limit| json!(limit.text()));
                std::iter::once(json!(one.name)).chain(limits).collect()
            };
            table(&columns, tenants.into_iter().map(row))
        }
        AccountAnswer::Users(users) => {
            let row = |one: UserInfo| {
                let created = time(Some(one.created_s));
                vec![
                    json!(one.tenant),
                    json!(one.name),
                    json!(one.is_admin),
                    json!(one.tokens),
                    json!(one.grants),
                    json!(one.has_password),
                    json!(created),
                ]
            };
            let columns = ["tenant", "name", "admin", "tokens", "grants", "password", "created"];
            table(&columns, users.into_iter().map(row))
        }
        AccountAnswer::Tokens(tokens) => table(&OF_TOKEN, tokens.iter().map(token)),
        AccountAnswer::Grants(grants) => {
            let row = |one: GrantInfo| {
                let actions = one.actions.join(", ");
                vec![json!(one.tenant), json!(one.user), json!(actions), json!(one.kind), json!(one.pattern)]
            };
            table(&["tenant", "user", "actions", "kind", "pattern"], grants.into_iter().map(row))
        }
    }
}

pub(super) fn describe_application(one: ApplicationInfo) -> StatementResult {
    let mut rows = vec![
        vec![json!("name"), json!(one.name)],
        vec![json!("id"), json!(one.id)],
        vec![json!("state"), json!(one.state())],
        vec![json!("input"), json!(one.input_topic)],
        vec![json!("output"), json!(one.output_topic)],
        vec![json!("queries"), json!(one.queries())],
    ];
    for parameter in one.parameters {
        let default = parameter.default.map_or_else(|| "required".to_owned(), |default| format!("DEFAULT {default}"));
        rows.push(vec![
            json!(format!("parameter {}", parameter.name)),
            json!(format!("{} {default}", parameter.data_type)),
        ]);
    }
    let described =
        |health: EndHealth| vec![json!(format!("{} {}", health.direction, health.name)), json!(health.description())];
    rows.extend(one.health.into_iter().map(described));
    rows.extend(one.warnings.into_iter().map(|warning| vec![json!("warning"), json!(warning)]));
    rows.push(vec![json!("sql"), json!(one.sql)]);
    table(&["property", "value"], rows.into_iter())
}

pub(super) fn describe_table(one: TableInfo) -> StatementResult {
    let mut rows = vec![
        vec![json!("name"), json!(one.name)],
        vec![json!("state"), json!(one.state())],
        vec![json!("file"), json!(one.file)],
        vec![json!("rows"), json!(one.rows)],
        vec![json!("bytes"), json!(one.bytes)],
        vec![json!("applications"), json!(one.applications.join(", "))],
        vec![json!("needed by"), json!(one.needed_by.join(", "))],
    ];
    for TableColumn { name, data_type } in one.columns {
        rows.push(vec![json!(format!("column {name}")), json!(data_type)]);
    }
    rows.push(vec![json!("sql"), json!(one.sql)]);
    table(&["property", "value"], rows.into_iter())
}

pub(super) fn describe_query(one: QueryInfo) -> StatementResult {
    let why = one.why.into_iter().map(|why| vec![json!("why"), json!(why)]);
    if let Some(big) = one.big {
        let mut described = describe_big_query(big);
        described.rows.extend(why);
        return described;
    }
    let mut rows = vec![
        vec![json!("name"), json!(one.name)],
        vec![json!("id"), json!(one.id)],
        vec![json!("application"), json!(one.application)],
        vec![json!("state"), json!(one.state.name())],
        vec![json!("input"), json!(one.input_topic)],
        vec![json!("output"), json!(one.output_topic)],
    ];
    rows.extend(one.label.map(|label| vec![json!("label"), json!(label)]));
    if let Some(parts) = one.parts {
        let parts = one.never_cut.map_or_else(|| parts.to_string(), |why| format!("{parts}, never more: {why}"));
        rows.push(vec![json!("parts"), json!(parts)]);
    }
    for (name, value) in one.parameters {
        rows.push(vec![json!(format!("parameter {name}")), value]);
    }
    if let Some(activity) = one.activity {
        rows.extend(activity_rows(*activity));
    }
    table(&["property", "value"], rows.into_iter().chain(why))
}

/// What became of the events of a query, one row for each fact.
fn activity_rows(activity: QueryActivity) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    let mut add = |property: &str, value: Value| rows.push(vec![json!(property), value]);
    let from = counted_from(activity.is_from_start, activity.is_from_change);
    add("counted since", json!(format!("{}, {from}", at(activity.counted_since_us))));
    let several = activity.inputs.len() > 1;
    for input in activity.inputs {
        let of_input = if several { format!(" of {}", input.name) } else { String::new() };
        add(&format!("events{of_input}"), json!(input.events));
        add(&format!("last event{of_input}"), json!(input.last_us.map(at)));
        if let Some(events) = input.topic_events {
            add("events of the topic", json!(events));
        }
    }
    add("events waiting", json!(activity.waiting));
    if activity.is_spilled {
        add("on disk", json!("until the next event"));
    }
    for (reason, count) in activity.refused {
        add(&format!("refused: {reason}"), json!(count));
    }
    if let Some(refusal) = activity.last_refusal {
        let text = format!("{}: {}\npayload: {}", refusal.reason, refusal.detail, refusal.content);
        add("last refusal", json!(text));
    }
    for (place, step) in (1..).zip(activity.steps) {
        add(&format!("step {place}: {}", step.operator), json!(step.rows));
    }
    add("filtered out", json!(activity.filtered_out));
    add("results", json!(activity.results));
    add("last result", json!(activity.last_result_us.map(at)));
    if let Some(result) = activity.last_result {
        add("last result as JSON", json!(result));
    }
    let times = [
        ("time of the last event", activity.last_event_time_us.map(|(time_us, _)| time_us)),
        ("newest event time", activity.clock_us),
        ("watermark", activity.watermark_us),
        ("first open window begins", activity.window_us.map(|(start_us, _)| start_us)),
        ("first open window ends", activity.window_us.and_then(|(_, end_us)| end_us)),
        ("next timer", activity.next_timer_us),
    ];
    for (property, time_us) in times.into_iter().filter_map(|(property, time_us)| Some((property, time_us?))) {
        add(property, json!(at(time_us)));
    }
    rows
}

/// How state is saved, one row for each fact.
pub(super) fn checkpoints(status: Option<CheckpointStatus>) -> StatementResult {
    let Some(status) = status else {
        return said("this server makes no checkpoints: checkpoint.enabled is false".into());
    };
    let of_last = |value: fn(&CheckpointInfo) -> u64| json!(status.last.as_ref().map(value));
    let recovered = status.recovered.as_ref();
    let rows = [
        ("place", json!(Some(status.place).filter(|place| !place.is_empty()))),
        ("interval_ms", json!(status.interval_ms)),
        ("made", json!(status.made)),
        ("failed", json!(status.failed)),
        ("last_error", json!(status.last_error)),
        ("epoch", of_last(|last| last.epoch)),
        ("age_ms", json!(status.age_ms)),
        ("queries", of_last(|last| last.queries)),
        ("big_queries", of_last(|last| last.big_queries)),
        ("written_bytes", of_last(|last| last.written_bytes)),
        ("live_bytes", of_last(|last| last.live_bytes)),
        ("duration_ms", of_last(|last| last.duration_ms)),
        ("recovered_epoch", json!(recovered.and_then(|found| found.epoch))),
        ("recovered_queries", json!(recovered.map(|found| found.queries))),
        ("lost_queries", json!(recovered.map(|found| found.lost))),
        ("recovery_ms", json!(recovered.map(|found| found.duration_ms))),
        ("problems", json!(recovered.map(|found| found.problems.join("; ")).filter(|text| !text.is_empty()))),
    ];
    let of_big = status.big_queries.into_iter().map(|one| {
        let epoch = one.epoch.map_or_else(|| "none yet".into(), |epoch| format!("epoch {epoch}"));
        let age = one.age_ms.map(|age_ms| format!(", made {age_ms} ms ago")).unwrap_or_default();
        let error = one.last_error.map(|error| format!("; none since then: {error}")).unwrap_or_default();
        let bytes = counted(one.live_bytes, "byte");
        vec![json!(format!("query {}", one.query)), json!(format!("{epoch}{age}, {bytes}{error}"))]
    });
    let rows = rows.into_iter().map(|(name, value)| vec![json!(name), value]);
    table(&["property", "value"], rows.chain(of_big))
}

fn describe_big_query(one: BigQueryInfo) -> StatementResult {
    let mut rows = vec![vec![json!("name"), json!(one.name)], vec![json!("state"), json!(one.state.name())]];
    let mut add = |property: &str, value: Value| rows.push(vec![json!(property), value]);
    if let Some(reason) = one.reason {
        add("reason", json!(reason));
    }
    add("sources", json!(one.sources.join(", ")));
    add("sink", json!(one.sink));
    add("rows read", json!(one.rows_in));
    add("rows acknowledged by the sink", json!(one.rows_out));
    for end in &one.health {
        add(&format!("{} {}", end.direction, end.name), json!(end.condition.name()));
        if let Some(error) = &end.last_error {
            add(&format!("{} {}: last error", end.direction, end.name), json!(error));
        }
        if end.direction == Direction::Sink {
            add(&format!("sink {}: rows waiting", end.name), json!(end.waiting_rows));
            end.waiting_bytes.iter().for_each(|bytes| add(&format!("sink {}: bytes on disk", end.name), json!(bytes)));
            end.oldest_ms.iter().for_each(|ms| add(&format!("sink {}: oldest waits for (ms)", end.name), json!(ms)));
        }
    }
    add("rows refused", json!(one.refused.values().sum::<u64>()));
    for (reason, count) in one.refused {
        add(&format!("refused: {reason}"), json!(count));
    }
    if let Some(refusal) = one.refusal {
        add("a refusal", json!(refusal));
    }
    add("rows waiting", json!(one.waiting_rows));
    add("from arrival or end of window to sink, p50, us", json!(one.latency.p50_us));
    add("from arrival or end of window to sink, p99, us", json!(one.latency.p99_us));
    if one.window_wait.mean_us.is_some() {
        add("wait for the end of a window, mean, us", json!(one.window_wait.mean_us));
        add("wait for the end of a window, max, us", json!(one.window_wait.max_us));
    }
    add("watermark lag, us", json!(one.watermark_lag_us));
    add("state, bytes", json!(one.state_bytes));
    add("tasks", json!(one.tasks));
    add("sql", json!(one.sql));
    table(&["property", "value"], rows.into_iter())
}
