//! REST requests: addresses and bodies, through the router of the server up to the service, which is a double that runs
//! nothing. Every request is answered, in JSON where JSON is promised, and refused for what the sender did, never with
//! an error of the server; a bulk submission has an answer for each line, in order.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, header};
use rivulet::api;
use rivulet::service::{
    ApplicationInfo, Code, ErrorKind, LiveResult, ParameterValue, Permit, QUERIES_PAGE_MAX, QueryFilter, QueryInfo,
    QueryRequest, QueryState, SUBMIT_BATCH_MAX, Service, ServiceError, StatementResult, Status, TableInfo,
    generated_name,
};
use rivulet_dataflow::QueryId;
use rivulet_sql::{Application, ParamValue, ParameterRows, StateWish};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{broadcast, watch};
use tower::ServiceExt;

use crate::Target;
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target {
    name: "rest",
    run,
    words: &[
        "{\"name\":",
        "\"application\":\"a\"",
        "\"parameters\":{",
        "\"label\":",
        "null",
        "\\u00e9",
        "\\ud83d",
        "}\n{",
        "1e999",
        "9223372036854775808",
        "%2F",
        "%00",
        "%ff",
        "?limit=",
        "&after=",
        "&like=",
        "cascade=true",
        "replace=true",
        "/pause",
        "/explain",
        "/results",
        "SHOW QUERIES;",
        "\n",
    ],
    mutations: 2_000,
};

const ANSWER_BYTES_MAX: usize = 16 << 20;

const BULK: &str = "/api/v1/queries/bulk";

/// What an address begins with. Up to the end of the line the input goes on with it; what follows is the body.
const ENDPOINTS: [(Method, &str); 14] = [
    (Method::POST, "/api/v1/queries"),
    (Method::POST, BULK),
    (Method::POST, "/api/v1/sql"),
    (Method::POST, "/api/v1/applications"),
    (Method::POST, "/api/v1/tables"),
    (Method::GET, "/api/v1/queries"),
    (Method::DELETE, "/api/v1/queries"),
    (Method::DELETE, "/api/v1/applications"),
    (Method::GET, "/api/v1/applications"),
    (Method::DELETE, "/api/v1/tables"),
    (Method::GET, "/api/v1/"),
    (Method::POST, "/api/v1/"),
    (Method::GET, "/"),
    (Method::PUT, "/api/"),
];

/// The one application of the double.
const APPLICATION: &str =
    "CREATE APPLICATION a (p DOUBLE DEFAULT 2, w INTERVAL DEFAULT INTERVAL '5 seconds', n BIGINT DEFAULT 0,
    d TEXT, at TIMESTAMP DEFAULT NULL, ok BOOLEAN DEFAULT TRUE)
    INPUT t (ts TIMESTAMP EVENT TIME, v DOUBLE) FROM 'mqtt:{d}/t' FORMAT JSON OUTPUT 'mqtt:{d}/o' FORMAT JSON
    AS SELECT v FROM t WHERE v > $p AND (v > $n OR $ok OR ts > $at) AND ts > ts - $w";

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (method, path) = ENDPOINTS[input.below(ENDPOINTS.len())].clone();
    let content = input.rest();
    let (address, body) = match content.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&content[..end], &content[end + 1..]),
        None => (content, &b""[..]),
    };
    let address = format!("{path}{}", String::from_utf8_lossy(address));
    // What is no address is refused before it comes here.
    let Ok(request) = Request::builder().method(method).uri(&address).body(Body::from(body.to_vec())) else { return };
    let path = request.uri().path().to_owned();
    let is_bulk = path == BULK && request.method() == Method::POST;
    let (status, is_json, answer) = runtime().block_on(async {
        let response = router().oneshot(request).await.unwrap_or_else(|never| match never {});
        let content_type = response.headers().get(header::CONTENT_TYPE).map(|value| value.as_bytes().to_vec());
        let is_json = content_type.is_some_and(|value| value == b"application/json");
        let (status, answer) = (response.status(), to_bytes(response.into_body(), ANSWER_BYTES_MAX).await);
        (status, is_json, answer.expect("the answer has an end"))
    });
    let text = || String::from_utf8_lossy(&answer);
    assert!(!status.is_server_error(), "{status}: {}", text());
    if is_bulk && status.is_success() {
        return check_bulk(body, &answer);
    }
    let is_refused = status.is_client_error() && path.starts_with("/api/v1/");
    if is_json || is_refused {
        let json: Value = serde_json::from_slice(&answer).unwrap_or_else(|error| panic!("{error} in {}", text()));
        assert!(!is_refused || json["error"]["message"].is_string(), "{json}");
    }
}

/// An answer for each line that is not blank.
fn check_bulk(content: &[u8], answer: &[u8]) {
    let lines = (1_u64..).zip(content.split(|&byte| byte == b'\n'));
    let wanted: Vec<u64> = lines.filter(|(_, line)| !line.trim_ascii().is_empty()).map(|(number, _)| number).collect();
    let answers: Vec<Value> = answer
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("an answer is JSON"))
        .collect();
    let numbers: Vec<u64> = answers.iter().filter_map(|answer| answer["line"].as_u64()).collect();
    assert_eq!(numbers, wanted);
    assert!(answers.iter().all(|answer| answer["id"].is_u64() != answer["error"].is_object()), "{answers:?}");
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_current_thread().enable_time().build().expect("no thread is needed yet"))
}

/// The router of a server, made once: it describes itself in the documents that it has.
fn router() -> Router {
    static ROUTER: OnceLock<(watch::Sender<bool>, Router)> = OnceLock::new();
    let made = ROUTER.get_or_init(|| {
        let (stopping, is_stopping) = watch::channel(false);
        (stopping, api::without_listener(Arc::new(Double), is_stopping))
    });
    made.1.clone()
}

fn application() -> &'static Application {
    static APPLICATION_PLANNED: OnceLock<Application> = OnceLock::new();
    APPLICATION_PLANNED.get_or_init(|| {
        let create = rivulet_sql::parse_application(APPLICATION);
        let planned = create.and_then(|create| rivulet_sql::plan_application(&create));
        planned.unwrap_or_else(|error| panic!("{}", error.render(APPLICATION)))
    })
}

/// A service that knows one application, and accepts each of its queries whose values fit.
struct Double;

fn info(id: QueryId) -> QueryInfo {
    QueryInfo {
        id: Some(id),
        name: generated_name(id),
        application: application().name.clone(),
        state: QueryState::Running,
        parameters: serde_json::Map::new(),
        label: None,
        input_topic: String::new(),
        output_topic: String::new(),
        events: None,
        results: None,
        refused: None,
        parts: None,
        never_cut: None,
        big: None,
        activity: None,
        why: Vec::new(),
    }
}

/// The id of a query that would be created.
fn bind(request: &QueryRequest<'_>, id: QueryId) -> Result<QueryId, ServiceError> {
    if request.application != application().name {
        return unknown(request.application);
    }
    let values = request.parameters.iter().map(|(name, value)| {
        let value = match value {
            ParameterValue::Null => ParamValue::Null,
            ParameterValue::Bool(value) => ParamValue::Boolean(*value),
            ParameterValue::Int(value) => ParamValue::Integer(*value),
            ParameterValue::Float(value) => ParamValue::Float(*value),
            ParameterValue::Text(value) => ParamValue::Text(value),
        };
        (name.as_ref(), value)
    });
    let mut rows = ParameterRows::new(application());
    rows.push(values).map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error.to_string()))?;
    let checked = application().check(&rows.finish()).pop().expect("one answer for one query");
    checked.map_err(|error| ServiceError::from_text(ErrorKind::Invalid, &error.to_string()))?;
    Ok(id)
}

fn unknown<T>(name: &str) -> Result<T, ServiceError> {
    Err(ServiceError::not_found(format!("there is no '{name}'")))
}

impl Service for Double {
    fn execute(&self, _permit: &Permit, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        match rivulet_sql::parse_script(script) {
            Ok(statements) => statements.iter().map(|_| Ok(StatementResult::default())).collect(),
            Err(error) => vec![Err(error.into())],
        }
    }

    fn create_application(
        &self,
        _permit: &Permit,
        code: Code<'_>,
        _replaces: Option<StateWish>,
    ) -> Result<ApplicationInfo, ServiceError> {
        match code {
            Code::Statement(sql) => unknown(&rivulet_sql::parse_application(sql)?.name.text),
            Code::Of(kind, _) => Err(ServiceError::invalid(format!("no code of the kind '{kind}' is loaded"))),
        }
    }

    fn create_table(&self, _permit: &Permit, sql: &str) -> Result<TableInfo, ServiceError> {
        rivulet_sql::parse_script(sql)?;
        unknown("table")
    }

    fn refresh_table(&self, _permit: &Permit, name: &str) -> Result<TableInfo, ServiceError> {
        unknown(name)
    }

    fn drop_table(&self, _permit: &Permit, name: &str) -> Result<(), ServiceError> {
        unknown(name)
    }

    fn tables(&self, _permit: &Permit) -> Vec<TableInfo> {
        Vec::new()
    }

    fn table(&self, _permit: &Permit, name: &str) -> Result<TableInfo, ServiceError> {
        unknown(name)
    }

    fn applications(&self, _permit: &Permit) -> Vec<ApplicationInfo> {
        Vec::new()
    }

    fn application(&self, _permit: &Permit, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        unknown(name_or_id)
    }

    fn drop_application(&self, _permit: &Permit, name: &str, _cascade: bool) -> Result<(), ServiceError> {
        unknown(name)
    }

    fn explain(&self, _permit: &Permit, application: &str) -> Result<String, ServiceError> {
        unknown(application)
    }

    fn submit(&self, _permit: &Permit, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        assert!(requests.len() <= SUBMIT_BATCH_MAX, "{} requests at once", requests.len());
        (1..).zip(requests).map(|(id, request)| bind(request, id)).collect()
    }

    fn query(&self, _permit: &Permit, name: &str) -> Result<QueryInfo, ServiceError> {
        unknown(name)
    }

    fn queries(&self, _permit: &Permit, filter: &QueryFilter) -> Vec<QueryInfo> {
        assert!(filter.limit <= QUERIES_PAGE_MAX + 1, "{} queries at once", filter.limit);
        (1..=filter.limit as QueryId).map(info).collect()
    }

    fn pause(&self, _permit: &Permit, query: &str) -> Result<(), ServiceError> {
        unknown(query)
    }

    fn resume(&self, _permit: &Permit, query: &str) -> Result<(), ServiceError> {
        unknown(query)
    }

    fn drop_query(&self, _permit: &Permit, query: &str) -> Result<(), ServiceError> {
        unknown(query)
    }

    fn status(&self, _permit: &Permit, _operators: bool) -> Status {
        Status::default()
    }

    fn metrics(&self, _permit: &Permit) -> String {
        String::new()
    }

    fn results(&self, _permit: &Permit, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        unknown(query)
    }
}
