//! A small service in memory, and a server that offers it over loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rivulet::api;
use rivulet::config::{self, FlagValue, Sources};
use rivulet::http_client::Client;
use rivulet::service::{
    ApplicationInfo, ApplicationStatus, Backup, BigQueryInfo, Caller, CheckpointInfo, Code, ConnectionStatus,
    EndHealth, ErrorKind, LatencyStatus, LiveResult, ParameterInfo, Permit, QueryFilter, QueryInfo, QueryRequest,
    QueryState, Replacement, Selection, Service, ServiceError, Session, StatementResult, Status, TableInfo, WindowWait,
    generated_name,
};
use rivulet_connectors::connector::{Condition, Direction};
use rivulet_sql::StateWish;
use serde_json::json;
use tokio::sync::{broadcast, oneshot};

/// No wait of a test is longer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(300);

/// Knows just enough to tell requests apart: one application form, queries with any parameters.
#[derive(Default)]
pub(crate) struct MemoryService {
    state: Mutex<State>,
    /// The largest batch that was submitted.
    pub(crate) batch_max: AtomicUsize,
    /// How many batches were submitted.
    pub(crate) batches: AtomicUsize,
    /// How long it takes to submit one.
    pub(crate) submit_time: Mutex<Duration>,
}

#[derive(Default)]
struct State {
    applications: BTreeMap<String, ApplicationInfo>,
    queries: BTreeMap<String, QueryInfo>,
    results: BTreeMap<String, broadcast::Sender<Arc<LiveResult>>>,
    next_id: u64,
}

impl MemoryService {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Emits a result of a query to whoever watches it.
    pub(crate) fn emit(&self, query: &str, result: &str) {
        if let Some(results) = self.state().results.get(query) {
            let _ = results.send(Arc::new(result.into()));
        }
    }

    /// How many watch a query.
    pub(crate) fn watchers(&self, query: &str) -> usize {
        self.state().results.get(query).map_or(0, broadcast::Sender::receiver_count)
    }

    pub(crate) fn queries_count(&self) -> usize {
        self.state().queries.len()
    }
}

fn not_found(what: &str, name: &str) -> ServiceError {
    ServiceError::not_found(format!("there is no {what} {name}")).with_hint(format!("`rivulet {what} list` lists them"))
}

impl Service for MemoryService {
    fn execute(&self, _permit: &Permit, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        let mut results = Vec::new();
        for (number, line) in (1..).zip(script.lines()) {
            let result = match line.trim() {
                "" => continue,
                "SHOW QUERIES;" => Ok(StatementResult {
                    columns: vec!["name".into(), "events".into()],
                    rows: vec![vec![json!("kims_ac"), json!(12)], vec![json!("anns_ac"), json!(null)]],
                    message: None,
                }),
                "EXPLAIN;" => Ok(StatementResult {
                    columns: vec!["plan".into()],
                    rows: vec![vec![json!("filter")], vec![json!("  window")]],
                    message: None,
                }),
                "PAUSE;" => {
                    Ok(StatementResult { message: Some("query kims_ac is paused".into()), ..Default::default() })
                }
                "PANIC;" => panic!("a defect that the test asked for"),
                other => Err(ServiceError::invalid(format!("cannot understand {other}"))
                    .at(number, 3)
                    .with_hint("try SHOW QUERIES")),
            };
            let stop = result.is_err();
            results.push(result);
            if stop {
                break;
            }
        }
        results
    }

    fn create_table(&self, _permit: &Permit, _sql: &str) -> Result<TableInfo, ServiceError> {
        Err(ServiceError::invalid("this service has no tables"))
    }

    fn refresh_table(&self, _permit: &Permit, name: &str) -> Result<TableInfo, ServiceError> {
        Err(not_found("table", name))
    }

    fn drop_table(&self, _permit: &Permit, name: &str) -> Result<(), ServiceError> {
        Err(not_found("table", name))
    }

    fn tables(&self, _permit: &Permit) -> Vec<TableInfo> {
        Vec::new()
    }

    fn table(&self, _permit: &Permit, name: &str) -> Result<TableInfo, ServiceError> {
        Err(not_found("table", name))
    }

    fn create_application(
        &self,
        _permit: &Permit,
        code: Code<'_>,
        replaces: Option<StateWish>,
    ) -> Result<ApplicationInfo, ServiceError> {
        let Code::Statement(sql) = code else { return Err(ServiceError::invalid("it loads no such code")) };
        let Some(name) = sql.strip_prefix("CREATE APPLICATION ").and_then(|rest| rest.split_whitespace().next()) else {
            return Err(ServiceError::invalid("expected CREATE APPLICATION").at(1, 1));
        };
        let replacement = replaces.map(|wish| {
            let before = self.state().applications.remove(name);
            let is_new = before.is_none();
            let (is_changed, queries) = (before.is_some_and(|before| before.sql != sql), 3);
            let discards_state = wish == StateWish::Discard;
            let state_discarded = if discards_state { vec!["window aggregate".into()] } else { Vec::new() };
            Replacement { is_new, is_changed, queries, state_discarded, ..Replacement::default() }
        });
        let parameter = |name: &str, data_type: &str, default: Option<&str>| ParameterInfo {
            name: name.into(),
            data_type: data_type.into(),
            default: default.map(str::to_owned),
        };
        let application = ApplicationInfo {
            id: format!("id-of-{name}"),
            name: name.into(),
            sql: sql.into(),
            parameters: vec![parameter("home", "TEXT", None), parameter("target", "DOUBLE", Some("24.0"))],
            input_topic: "home/{home}/temperature".into(),
            output_topic: "home/{home}/ac".into(),
            queries_running: 1,
            ..ApplicationInfo::default()
        };
        let mut state = self.state();
        match state.applications.get(name) {
            Some(existing) if existing.sql != sql => {
                Err(ServiceError::new(ErrorKind::AlreadyExists, format!("there is another application {name}")))
            }
            _ => {
                state.applications.insert(name.into(), application.clone());
                Ok(ApplicationInfo { replacement, ..application })
            }
        }
    }

    fn applications(&self, _permit: &Permit) -> Vec<ApplicationInfo> {
        self.state().applications.values().cloned().collect()
    }

    fn application(&self, _permit: &Permit, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        let state = self.state();
        let found = state
            .applications
            .values()
            .find(|application| [&application.name, &application.id].contains(&&name_or_id.to_owned()));
        found.cloned().ok_or_else(|| not_found("app", name_or_id))
    }

    fn drop_application(&self, _permit: &Permit, name: &str, cascade: bool) -> Result<(), ServiceError> {
        let mut state = self.state();
        let queries = state.queries.values().filter(|query| query.application == name).count();
        if queries > 0 && !cascade {
            return Err(
                ServiceError::new(ErrorKind::Conflict, format!("{name} has {queries} queries")).with_hint("--cascade")
            );
        }
        state.queries.retain(|_, query| query.application != name);
        state.applications.remove(name).map(drop).ok_or_else(|| not_found("app", name))
    }

    fn explain(&self, permit: &Permit, application: &str) -> Result<String, ServiceError> {
        Service::application(self, permit, application)
            .map(|application| format!("dataflow of {}\n  window", application.name))
    }

    fn submit(&self, _permit: &Permit, requests: &[QueryRequest<'_>]) -> Vec<Result<u64, ServiceError>> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.batch_max.fetch_max(requests.len(), Ordering::Relaxed);
        let submit_time = *self.submit_time.lock().unwrap_or_else(PoisonError::into_inner);
        thread::sleep(submit_time);
        let mut state = self.state();
        let create = |request: &QueryRequest<'_>| {
            if !state.applications.contains_key(request.application) {
                return Err(not_found("app", request.application));
            }
            let id = state.next_id + 1;
            let name = request.name.map_or_else(|| generated_name(id), str::to_owned);
            if state.queries.contains_key(&name) {
                return Err(ServiceError::new(ErrorKind::AlreadyExists, format!("there is a query {name}")));
            }
            state.next_id = id;
            let info = QueryInfo {
                id: Some(id),
                name: name.clone(),
                application: request.application.into(),
                state: QueryState::Running,
                parameters: request
                    .parameters
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.to_json()))
                    .collect(),
                label: request.label.map(str::to_owned),
                input_topic: "home/42/temperature".into(),
                output_topic: "home/42/ac".into(),
                events: None,
                results: Some(3),
                refused: None,
                parts: None,
                never_cut: None,
                big: None,
                activity: None,
                why: Vec::new(),
            };
            state.queries.insert(name.clone(), info);
            // Small, so that a test can overrun it.
            state.results.insert(name, broadcast::channel(4).0);
            Ok(id)
        };
        requests.iter().map(create).collect()
    }

    fn query(&self, _permit: &Permit, name: &str) -> Result<QueryInfo, ServiceError> {
        self.state().queries.get(name).cloned().ok_or_else(|| not_found("query", name))
    }

    fn queries(&self, _permit: &Permit, filter: &QueryFilter) -> Vec<QueryInfo> {
        let like = filter.like.as_deref().map(|like| like.trim_end_matches('%').to_owned());
        self.state()
            .queries
            .values()
            .filter(|query| filter.application.as_ref().is_none_or(|application| query.application == *application))
            .filter(|query| like.as_ref().is_none_or(|like| query.name.starts_with(like)))
            .filter(|query| filter.after.as_ref().is_none_or(|after| query.name > *after))
            .take(filter.limit)
            .cloned()
            .collect()
    }

    fn pause(&self, _permit: &Permit, query: &str) -> Result<(), ServiceError> {
        let mut state = self.state();
        state
            .queries
            .get_mut(query)
            .map(|query| query.state = QueryState::Paused)
            .ok_or_else(|| not_found("query", query))
    }

    fn resume(&self, _permit: &Permit, query: &str) -> Result<(), ServiceError> {
        let mut state = self.state();
        state
            .queries
            .get_mut(query)
            .map(|query| query.state = QueryState::Running)
            .ok_or_else(|| not_found("query", query))
    }

    fn drop_query(&self, _permit: &Permit, query: &str) -> Result<(), ServiceError> {
        let mut state = self.state();
        state.results.remove(query);
        state.queries.remove(query).map(drop).ok_or_else(|| not_found("query", query))
    }

    fn status(&self, _permit: &Permit, _operators: bool) -> Status {
        Status {
            version: "0.1.0".into(),
            uptime_ms: 61_000,
            data_dir: "rivulet-data".into(),
            queries_running: 2,
            queries_paused: 1,
            last_minute: LatencyStatus::default(),
            memory_rss_bytes: Some(64 << 20),
            burst_workers: vec![],
            applications: vec![
                ApplicationStatus {
                    name: "ac_control".into(),
                    queries_running: 2,
                    queries_paused: 1,
                    queries_spilled: 0,
                    queries_not_running: 0,
                    not_running: None,
                    events: 1000,
                    batches: 10,
                    batch_rows_mean: 100.0,
                    results: 7,
                    refused: [("decode".into(), 2), ("late".into(), 0)].into(),
                    inbox_rows: 3,
                    inbox_bytes: 2048,
                    processing: LatencyStatus {
                        p50_us: Some(420),
                        p95_us: Some(1_000),
                        p99_us: Some(2_500),
                        max_us: Some(3_000),
                    },
                    last_refusal: Some("decode: the payload is no JSON".into()),
                    times_in_seconds: [].into(),
                    warnings: vec![],
                    health: vec![],
                    end_to_end: LatencyStatus::default(),
                },
                ApplicationStatus {
                    name: "heart".into(),
                    queries_not_running: 5,
                    not_running: Some("unknown function beat".into()),
                    ..ApplicationStatus::default()
                },
            ],
            big_queries: vec![BigQueryInfo {
                window_wait: WindowWait::default(),
                name: "per_device".into(),
                state: QueryState::Failed,
                reason: Some("the disk is full".into()),
                sql: "CREATE QUERY per_device AS ...".into(),
                sources: vec!["readings".into()],
                sink: "counts".into(),
                rows_in: 12_000,
                rows_out: 340,
                health: vec![EndHealth {
                    name: "counts".into(),
                    direction: Direction::Sink,
                    condition: Condition::Failing,
                    since_ms: 1_700_000_000_000,
                    last_error: Some("the disk is full".into()),
                    retries: 0,
                    failures: 1,
                    rows: 340,
                    bytes: 6_800,
                    rejected_rows: 0,
                    waiting_rows: 12,
                    waiting_bytes: None,
                    oldest_ms: Some(250),
                    stands_still_since_ms: None,
                }],
                refused: [("decode".into(), 2)].into(),
                refusal: Some("line 7: no JSON".into()),
                times_in_seconds: [("readings".into(), 3)].into(),
                latency: LatencyStatus { p50_us: Some(900), p99_us: Some(12_000), ..LatencyStatus::default() },
                state_bytes: 4096,
                waiting_rows: 17,
                watermark_us: Some(1_700_000_000_000_000),
                watermark_lag_us: Some(1_500_000),
                tasks: 4,
                operators: Vec::new(),
                utilisation_cv: None,
            }],
            workers: Vec::new(),
            messages_unrouted: 1,
            total: ApplicationStatus::default(),
            connections: vec![ConnectionStatus {
                broker: "mqtt://127.0.0.1:1883".into(),
                connected: true,
                last_error: None,
                reconnects: 1,
                gaps: 0,
                dropped: [("deadlock_events", 0), ("lost_messages", 3), ("too_large_messages", 2)]
                    .map(|(reason, count)| (reason.into(), count))
                    .into(),
                refused_subscriptions: [("secret/#".into(), "NotAuthorized".into())].into(),
            }],
            functions: None,
            log: None,
            checkpoints: None,
        }
    }

    fn metrics(&self, _permit: &Permit) -> String {
        "# TYPE events counter\nevents_total 1000\n# EOF\n".into()
    }

    fn results(&self, _permit: &Permit, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        self.state().results.get(query).map(broadcast::Sender::subscribe).ok_or_else(|| not_found("query", query))
    }

    fn ready(&self) -> Result<(), ServiceError> {
        if self.state().applications.contains_key("broken") {
            return Err(ServiceError::new(ErrorKind::Unavailable, "the broker is not connected"));
        }
        Ok(())
    }
}

/// A service as its operator asks it: the methods of [`Service`], without permits and rights.
pub(crate) trait AsOperator {
    fn operator(&self) -> Session<'_>;
    fn ready(&self) -> Result<(), ServiceError>;
    fn problems(&self) -> Vec<String>;
    fn shutdown(&self);

    fn execute(&self, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        self.operator().execute(script)
    }

    fn create_application(&self, sql: &str) -> Result<ApplicationInfo, ServiceError> {
        self.operator().create_application(Code::Statement(sql), None)
    }

    fn create_application_of(&self, kind: &str, code: &[u8]) -> Result<ApplicationInfo, ServiceError> {
        self.operator().create_application(Code::Of(kind, code), None)
    }

    fn replace_application_of(
        &self,
        kind: &str,
        code: &[u8],
        discards_state: bool,
    ) -> Result<ApplicationInfo, ServiceError> {
        let wish = if discards_state { StateWish::Discard } else { StateWish::Keep };
        self.operator().create_application(Code::Of(kind, code), Some(wish))
    }

    fn tables(&self) -> Vec<TableInfo> {
        self.operator().tables().expect("the operator may do everything")
    }

    fn table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.operator().table(name)
    }

    fn applications(&self) -> Vec<ApplicationInfo> {
        self.operator().applications().expect("the operator may do everything")
    }

    fn application(&self, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        self.operator().application(name_or_id)
    }

    fn drop_application(&self, name: &str, cascade: bool) -> Result<(), ServiceError> {
        self.operator().drop_application(name, cascade)
    }

    fn explain(&self, application: &str) -> Result<String, ServiceError> {
        self.operator().explain(application)
    }

    fn submit(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<u64, ServiceError>> {
        self.operator().submit(requests)
    }

    fn query(&self, name: &str) -> Result<QueryInfo, ServiceError> {
        self.operator().query(name)
    }

    fn queries(&self, filter: &QueryFilter) -> Vec<QueryInfo> {
        self.operator().queries(filter).expect("the operator may do everything")
    }

    fn pause(&self, query: &str) -> Result<(), ServiceError> {
        self.operator().pause(query)
    }

    fn resume(&self, query: &str) -> Result<(), ServiceError> {
        self.operator().resume(query)
    }

    fn drop_query(&self, query: &str) -> Result<(), ServiceError> {
        self.operator().drop_query(query)
    }

    fn status(&self) -> Status {
        self.operator().status(true).expect("the operator may do everything")
    }

    fn metrics(&self) -> String {
        self.operator().metrics().expect("the operator may do everything")
    }

    fn results(&self, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        self.operator().results(query)
    }

    fn checkpoint(&self) -> Result<CheckpointInfo, ServiceError> {
        self.operator().checkpoint()
    }

    fn select(&self, sql: &str) -> Result<Selection, ServiceError> {
        self.operator().select(sql)
    }

    fn back_up(&self) -> Result<Box<dyn Backup>, ServiceError> {
        self.operator().back_up()
    }
}

impl<T: Service> AsOperator for T {
    fn operator(&self) -> Session<'_> {
        (self as &dyn Service).session(Caller::local_operator())
    }

    fn ready(&self) -> Result<(), ServiceError> {
        Service::ready(self)
    }

    fn problems(&self) -> Vec<String> {
        Service::problems(self)
    }

    fn shutdown(&self) {
        // What is lost is in the log, and in the exit code of the program.
        let _ = Service::shutdown(self);
    }
}

/// The API of a service on a free port, until dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub(crate) fn start(service: Arc<dyn Service>) -> Self {
        Self::start_with(service, &[])
    }

    /// The same with these configuration keys.
    pub(crate) fn start_with(service: Arc<dyn Service>, settings: &[(&str, &str)]) -> Self {
        let flags = settings.iter().map(|(key, value)| FlagValue {
            key: (*key).into(),
            value: (*value).into(),
            flag: "--set".into(),
        });
        let sources = Sources { flags: flags.collect(), ..Sources::default() };
        let http = config::load(&sources).expect("a configuration").config.http;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(api::listen(([127, 0, 0, 1], 0).into())).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let stopped = async {
                let _ = stopped.await;
            };
            runtime.block_on(api::serve(listener, service, &http, stopped)).expect("the server");
        });
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    /// A server of an empty [`MemoryService`] with the application `ac_control`.
    pub(crate) fn with_memory() -> (Self, Arc<MemoryService>) {
        let service = Arc::new(MemoryService::default());
        AsOperator::create_application(&*service, "CREATE APPLICATION ac_control (home TEXT)").expect("an application");
        (Self::start(Arc::clone(&service) as Arc<dyn Service>), service)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url()).expect("an address")
    }

    /// Tells the server to stop; it ends the requests under way.
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !is_so() {
        assert!(started.elapsed() < WAIT_MAX, "{what} did not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

/// One HTTP request as text, one answer as status and body. Closes the connection.
pub(crate) fn exchange(address: SocketAddr, request: &str) -> (u16, String) {
    exchange_by(std::net::TcpStream::connect(address).expect("a connection"), request)
}

/// A connection from this address of the machine, 127.0.0.x.
pub(crate) fn connect_from(from: [u8; 4], address: SocketAddr) -> std::net::TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address of this machine");
    socket.connect(&address.into()).expect("a connection");
    socket.into()
}

/// The same as [`exchange`] by this connection.
pub(crate) fn exchange_by(mut stream: std::net::TcpStream, request: &str) -> (u16, String) {
    use std::io::{Read, Write};
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// A request with a body, its length and `connection: close`.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}
