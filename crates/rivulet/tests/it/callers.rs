//! Callers with limited rights: SQL, REST, bulk submission, live results and MQTT refuse the rest, and other callers
//! are not affected.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rivulet::api;
use rivulet::engine::{Engine, Extensions};
use rivulet::service::{
    Access, Action, Authorizer, Caller, Code, Credentials, ErrorKind, Refused, Resource, ResourceKind, Service, Session,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cli::command;
use super::engine::configuration;
use super::support::{TestServer, WAIT_MAX, exchange, request};

pub(super) const APPLICATION: &str = "CREATE APPLICATION doubled (home TEXT) INPUT readings (v BIGINT) FROM 'mqtt:in/{home}' \
     FORMAT JSON OUTPUT 'mqtt:out/{home}' FORMAT JSON AS SELECT v * 2 AS v FROM readings";

/// How many wrong tokens an address has free.
const GUESSES: usize = 5;

/// Knows four tokens. The operator may do everything and a stranger nothing. Ann reads everything but the application
/// `secret`, changes queries and applications whose names begin with `ann_`, publishes to `in/...` and subscribes to
/// `out/...`. Bob does no more than run a SELECT over what he may subscribe to, which is `out/...`.
struct Tokens;

impl Authorizer for Tokens {
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        match credentials.secret {
            Some(b"of-operator") => Ok(Caller::local_operator()),
            Some(b"of-ann") => Ok(Caller::new("default", "ann")),
            Some(b"of-bob") => Ok(Caller::new("default", "bob")),
            Some(b"of-stranger") => Ok(Caller::new("nowhere", "stranger")),
            _ => Err(Refused::default()),
        }
    }

    fn may_everything(&self, caller: &Caller) -> bool {
        *caller == Caller::local_operator()
    }

    fn may(&self, caller: &Caller, action: Action, resource: Resource<'_>) -> Result<(), Refused> {
        let is_own = |name: &str| name.starts_with("ann_");
        let is_allowed = match (action, resource.kind, resource.name) {
            (Action::Read, ResourceKind::Application, Some("secret")) => false,
            (Action::Read, ..) => true,
            (Action::Change, ResourceKind::Query | ResourceKind::Application, name) => name.is_some_and(is_own),
            (Action::Publish, ResourceKind::Topic, topic) => topic.is_some_and(|topic| topic.starts_with("in/")),
            (Action::Subscribe, ResourceKind::Source, _) => caller.name() == "bob",
            (Action::Subscribe, ResourceKind::Topic, filter) => filter.is_some_and(|filter| filter.starts_with("out/")),
            _ => false,
        };
        match is_allowed && caller.tenant().is_default() {
            true => Ok(()),
            false => Err(Refused::with_hint("ask the owner of acme")),
        }
    }
}

fn extensions() -> Extensions {
    Extensions { access: Some(Arc::new(Access::new(Arc::new(Tokens)))), ..Extensions::default() }
}

/// A server whose operator has two applications and a query.
fn server(folder: &Path) -> (TestServer, Arc<dyn Service>) {
    let engine = Engine::open_with(configuration(folder), extensions()).expect("an engine");
    let service: Arc<dyn Service> = engine;
    let operator = operator(&service);
    let secret = APPLICATION.replace("doubled", "secret");
    for statement in [APPLICATION, &secret, "CREATE QUERY q FROM APPLICATION doubled WITH (home => 'a')"] {
        operator.execute(statement).pop().expect("an answer").expect(statement);
    }
    (TestServer::start(service.clone()), service)
}

fn operator(service: &Arc<dyn Service>) -> Session<'_> {
    service.session(Caller::local_operator())
}

/// The status and the error of a request; the answer itself if it is no error.
pub(super) fn ask(server: &TestServer, token: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let headers = match token {
        "" => String::new(),
        token => format!("authorization: Bearer {token}\r\n"),
    };
    let (status, text) = exchange(server.address, &request(method, path, &headers, body));
    // The answers to a bulk submission come in pieces, with the length of each before it.
    let json = text.lines().find(|line| line.starts_with('{')).map(serde_json::from_str);
    let answer: Value = json.and_then(Result::ok).unwrap_or(Value::String(text));
    (status, answer.get("error").cloned().unwrap_or(answer))
}

/// Every operation of the API but those of health, with a body for those that take one.
fn operations() -> Vec<(String, String, &'static str)> {
    let document = serde_json::to_value(api::openapi()).expect("a document");
    let paths = document["paths"].as_object().expect("paths");
    let is_for_all = |path: &str| path.starts_with("/health/") || ["/api/v1/login", "/api/v1/session"].contains(&path);
    let operations = paths.iter().filter(|(path, _)| !is_for_all(path)).flat_map(|(path, operations)| {
        operations.as_object().expect("operations").keys().map(|method| {
            let body = match (method.as_str(), path.as_str()) {
                ("post", "/api/v1/sql") => "SHOW TABLES",
                ("post", "/api/v1/trial") => r#"{"sql":"SHOW TABLES","events":[]}"#,
                ("post", "/api/v1/applications") => APPLICATION,
                ("post", "/api/v1/tables") => "CREATE TABLE t (id TEXT) FROM 'file:t.csv' FORMAT CSV",
                ("post", "/api/v1/big-queries") => "CREATE QUERY b AS SELECT v FROM readings INTO counts",
                ("post", "/api/v1/tenants" | "/api/v1/users") => r#"{"name":"ann"}"#,
                ("post", "/api/v1/tokens") => r#"{"user":"ann"}"#,
                ("put", "/api/v1/users/{name}/password") => r#"{"password":"correct horse battery"}"#,
                ("post", "/api/v1/grants" | "/api/v1/grants/revoke") => r#"{"user":"ann","actions":["all"]}"#,
                ("post", "/api/v1/queries" | "/api/v1/queries/bulk") => r#"{"name":"r","application":"doubled"}"#,
                ("patch", _) => "{}",
                _ => "",
            };
            (method.to_uppercase(), path.replace("{name}", "q"), body)
        })
    });
    operations.collect()
}

#[test]
fn every_operation_asks_who_calls_and_what_they_may() {
    let folder = TempDir::new().expect("a folder");
    let (server, service) = server(folder.path());
    let operations = operations();
    assert!(operations.len() >= 24, "{operations:?}");
    let mut counted = 0;
    for (method, path, body) in &operations {
        // An address that guesses on is not answered so.
        let tokens = if counted < GUESSES { &["", "of-nobody"][..] } else { &[""] };
        for token in tokens {
            counted += usize::from(!token.is_empty());
            let (status, error) = ask(&server, token, method, path, body);
            assert_eq!((status, &error["kind"]), (401, &json!("unauthenticated")), "{method} {path}: {error}");
            assert!(error["hint"].is_string(), "{error}");
        }
        let (status, error) = ask(&server, "of-stranger", method, path, body);
        let expected = if path.ends_with("/bulk") { 200 } else { 403 };
        assert_eq!((status, &error["kind"]), (expected, &json!("forbidden")), "{method} {path}: {error}");
        assert_eq!(error["hint"], "ask the owner of acme", "{method} {path}");
    }
    assert_eq!(ask(&server, "", "GET", "/health/ready", "").0, 200, "probes have no token");
    let access = service.access();
    assert_eq!(access.logins_refused(), (operations.len() + GUESSES) as u64);
    assert_eq!(access.requests_refused(), operations.len() as u64);
    let (_, metrics) = ask(&server, "of-operator", "GET", "/metrics", "");
    let counted = format!("rivulet_requests_refused_total {}\n", operations.len());
    assert!(metrics.as_str().is_some_and(|text| text.contains(&counted)), "{metrics}");
    assert_eq!(operator(&service).query("q").expect("the query").state.name(), "running");
}

#[test]
fn an_address_that_guesses_tokens_has_to_wait_and_others_have_not() {
    let folder = TempDir::new().expect("a folder");
    let (server, _service) = server(folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ask = |host: [u8; 4], token: &str| {
        let socket = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((host, 0).into())?;
            socket.connect(server.address).await?.into_std()
        });
        let mut socket = socket.expect("a connection from that address");
        socket.set_nonblocking(false).expect("a socket that blocks");
        socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        let head = format!("authorization: Bearer {token}\r\n");
        socket.write_all(request("GET", "/api/v1/status", &head, "").as_bytes()).expect("a request");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let (guesser, other) = ([127, 0, 0, 2], [127, 0, 0, 3]);
    for number in 0..GUESSES {
        let answer = ask(guesser, &format!("guess-{number}"));
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    assert!(ask(guesser, "of-operator").starts_with("HTTP/1.1 200"), "so many are free");
    // The pause doubles with each guess: on a slow machine, too, a request falls into one of them.
    let limited = (0..12).find_map(|number| {
        ask(guesser, &format!("further-{number}"));
        let answer = ask(guesser, "of-operator");
        answer.starts_with("HTTP/1.1 429").then_some(answer)
    });
    let limited = limited.expect("a right token waits as well");
    assert!(limited.contains("retry-after: ") && limited.contains("\"hint\""), "{limited}");
    assert!(ask(other, "of-operator").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_script_with_a_forbidden_statement_is_refused_as_a_whole() {
    let folder = TempDir::new().expect("a folder");
    let (_server, service) = server(folder.path());
    let ann = service.session(Caller::new("default", "ann"));
    for (statement, what) in [
        (APPLICATION, "change the application 'doubled'"),
        ("DROP APPLICATION doubled CASCADE", "change the application 'doubled'"),
        ("CREATE QUERY r FROM APPLICATION doubled WITH (home => 'b')", "change the query 'r'"),
        ("ALTER QUERY q SET (home => 'b')", "change the query 'q'"),
        ("ALTER QUERY q REDIRECT ALL TO BURST", "change the query 'q'"),
        ("ALTER QUERY q REDIRECT ALL BACK", "change the query 'q'"),
        ("ALTER APPLICATION doubled SET (overflow => 'block')", "change the application 'doubled'"),
        ("PAUSE QUERY q", "change the query 'q'"),
        ("RESUME QUERY q", "change the query 'q'"),
        ("DROP QUERY q", "change the query 'q'"),
        ("CREATE TABLE t (id TEXT) FROM 'file:t.csv' FORMAT CSV", "change the table 't'"),
        ("REFRESH TABLE t", "change the table 't'"),
        ("DROP TABLE IF EXISTS t", "change the table 't'"),
        ("CREATE SOURCE s (v BIGINT) FROM 'file:s.csv' FORMAT CSV", "change the source 's'"),
        (
            "CREATE APPLICATION ann_p INPUT t (v BIGINT) FROM 'HTTP:127.0.0.1:1/in' FORMAT JSON OUTPUT 'mqtt:out/p' \
             FORMAT JSON AS SELECT v FROM t",
            "change sources",
        ),
        ("DROP SOURCE IF EXISTS s", "change the source 's'"),
        ("DROP SINK IF EXISTS s", "change the sink 's'"),
        ("DROP VIEW IF EXISTS s", "change the view 's'"),
        ("DESCRIBE 'data/secret.csv'", "change sources"),
        ("CHECKPOINT", "administer the server"),
        ("DESCRIBE APPLICATION secret", "read the application 'secret'"),
    ] {
        let mut answers =
            ann.execute(&format!("CREATE QUERY ann_q FROM APPLICATION doubled WITH (home => 'x');\n {statement}"));
        assert_eq!(answers.len(), 1, "{statement}: {answers:?}");
        let error = answers.pop().expect("an answer").expect_err(statement);
        assert_eq!((error.kind, error.message), (ErrorKind::Forbidden, format!("'ann' may not {what}")));
        assert_eq!(error.line, Some(2), "{statement}");
        assert_eq!(error.hint.as_deref(), Some("ask the owner of acme"));
        assert_eq!(ann.query("ann_q").expect_err("nothing was run").kind, ErrorKind::NotFound);
    }
    // What code in any language is called and reads is known only when it is loaded.
    let error = ann.create_application(Code::Of("sql", APPLICATION.as_bytes()), None).expect_err("too much");
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Forbidden, "'ann' may not change sources"));
    let answers = ann.execute(
        "CREATE QUERY ann_q FROM APPLICATION doubled WITH (home => 'x'); PAUSE QUERY ann_q; SHOW APPLICATIONS; \
         SHOW QUERIES; DESCRIBE QUERY q; SHOW BURSTS; SHOW CHECKPOINTS; EXPLAIN APPLICATION doubled; DROP QUERY ann_q",
    );
    assert!(answers.len() == 9 && answers.iter().all(Result::is_ok), "{answers:?}");
}

#[test]
fn rules_about_names_hold_for_ids_and_for_each_query_of_a_bulk_submission() {
    let folder = TempDir::new().expect("a folder");
    let (server, service) = server(folder.path());
    let id = operator(&service).application("secret").expect("the application").id;
    for name in ["secret", &id, &id[..12]] {
        for path in [format!("/api/v1/applications/{name}"), format!("/api/v1/applications/{name}/explain")] {
            let (status, error) = ask(&server, "of-ann", "GET", &path, "");
            assert_eq!((status, &error["message"]), (403, &json!("'ann' may not read the application 'secret'")));
        }
    }
    let line = |name: &str| format!(r#"{{{name}"application":"doubled","parameters":{{"home":"b"}}}}"#);
    let lines = [line(r#""name":"ann_1","#), line(r#""name":"r","#), line(""), line(r#""name":"ann_2","#)].join("\n");
    let headers = "authorization: Bearer of-ann\r\n";
    let (status, text) = exchange(server.address, &request("POST", "/api/v1/queries/bulk", headers, &lines));
    assert_eq!(status, 200);
    let answers =
        text.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str::<Value>(line).expect(line));
    let answers: Vec<(Value, Value)> =
        answers.map(|answer| (answer["name"].clone(), answer["error"]["message"].clone())).collect();
    assert_eq!(
        answers,
        [
            (json!("ann_1"), Value::Null),
            (Value::Null, json!("'ann' may not change the query 'r'")),
            (Value::Null, json!("'ann' may not change queries")),
            (json!("ann_2"), Value::Null),
        ]
    );
    let (status, error) = ask(&server, "of-ann", "GET", "/api/v1/queries/ann_1/results", "");
    assert_eq!((status, &error["message"]), (403, &json!("'ann' may not subscribe to the query 'ann_1'")));
    assert_eq!(ask(&server, "of-operator", "DELETE", "/api/v1/queries/ann_1", "").0, 204);
}

#[test]
fn commands_show_the_token_of_the_environment() {
    let folder = TempDir::new().expect("a folder");
    let (server, _service) = server(folder.path());
    let lines = folder.path().join("queries");
    std::fs::write(&lines, r#"{"name":"ann_1","application":"doubled","parameters":{"home":"b"}}"#).expect("a file");
    let lines = lines.to_str().expect("a path");
    let run = |token: &str, arguments: &[&str]| {
        let mut command = command(arguments);
        let output = command.env("RIVULET_SERVER", server.url()).env("RIVULET_TOKEN", token).output();
        let output = output.expect("the program");
        (output.status.success(), String::from_utf8(output.stderr).expect("text"))
    };
    for arguments in [&["query", "bulk", lines][..], &["query", "list"], &["sql", "-c", "SHOW QUERIES"]] {
        let (is_done, said) = run("", arguments);
        assert!(!is_done && said.contains("error: the server asks for credentials\nhint: send"), "{said}");
        let (is_done, said) = run("of-nobody", arguments);
        assert!(!is_done && said.contains("error: the server does not know these credentials"), "{said}");
        let (is_done, said) = run("a\nb", arguments);
        assert!(!is_done && said.contains("error: the token in RIVULET_TOKEN has characters"), "{said}");
        let (is_done, said) = run("of-ann", arguments);
        assert!(is_done, "{arguments:?}: {said}");
    }
    let (is_done, said) = run("of-ann", &["query", "drop", "q"]);
    assert!(!is_done);
    assert_eq!(said, "error: 'ann' may not change the query 'q'\nhint: ask the owner of acme\n");
}

#[test]
fn without_an_authorizer_every_client_is_the_operator() {
    let folder = TempDir::new().expect("a folder");
    let service: Arc<dyn Service> = Engine::open(configuration(folder.path())).expect("an engine");
    let server = TestServer::start(service.clone());
    for token in ["", "of-nobody"] {
        assert_eq!(ask(&server, token, "POST", "/api/v1/applications", APPLICATION).0, 200);
    }
    assert_eq!(ask(&server, "", "DELETE", "/api/v1/applications/doubled", "").0, 204);
    assert_eq!((service.access().logins_refused(), service.access().requests_refused()), (0, 0));
}

/// Ann reads the query, with its counters, and may not subscribe to it.
#[test]
fn who_may_only_read_sees_no_result_and_no_payload() {
    let folder = TempDir::new().expect("a folder");
    let engine = Engine::open_with(configuration(folder.path()), extensions()).expect("an engine");
    let broker = engine.embedded_broker_address().expect("a broker");
    let service: Arc<dyn Service> = engine;
    let server = TestServer::start(service.clone());
    let operator = operator(&service);
    for statement in [APPLICATION, "CREATE QUERY q FROM APPLICATION doubled WITH (home => 'a')"] {
        operator.execute(statement).pop().expect("an answer").expect(statement);
    }
    let shown = |token: &str| {
        let described = ask(&server, token, "POST", "/api/v1/sql", "DESCRIBE QUERY q").1;
        format!("{}{described}", ask(&server, token, "GET", "/api/v1/queries/q", "").1)
    };
    // The content of results and refusals is kept from the first question on.
    shown("of-operator");
    let (mut publisher, code) = Mqtt::connect(broker, 5, "of-ann", "publisher", None);
    assert_eq!(code, 0);
    assert_eq!(publisher.publish("in/a", r#"{"v":13.31}"#), 0);
    let of_application = |token: &str| {
        let described = ask(&server, token, "POST", "/api/v1/sql", "DESCRIBE APPLICATION doubled").1;
        let paths = ["/api/v1/status", "/api/v1/applications", "/api/v1/applications/doubled"];
        paths.map(|path| ask(&server, token, "GET", path, "").1.to_string()).concat() + &described.to_string()
    };
    let is_told = |text: &String| text.matches("because of decode: ").count() == 4 && text.contains("13.31");
    wait_for(|| Some(of_application("of-operator")).filter(is_told));
    let told = of_application("of-ann");
    assert!(told.matches("because of decode").count() == 4 && !told.contains("13.31"), "{told}");
    assert_eq!(publisher.publish("in/a", r#"{"v":2121}"#), 0);
    wait_for(|| {
        let parts = ["13.31", "4242", "last result as JSON"];
        Some(shown("of-operator")).filter(|text| parts.iter().all(|part| text.contains(part)))
    });
    let before = service.access().requests_refused();
    let told = shown("of-ann");
    assert!(told.contains("it works: a result came") && told.contains("1 of 2 events were refused"), "{told}");
    assert!(!told.contains("13.31") && !told.contains("4242") && !told.contains("as JSON"), "{told}");
    assert_eq!(service.access().requests_refused(), before);
}

/// What there is at last.
fn wait_for<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let begin = std::time::Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begin.elapsed() < WAIT_MAX, "waited too long");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// A client of the embedded broker, packet by packet; none is longer than 127 bytes.
pub(super) struct Mqtt {
    stream: TcpStream,
    /// 4 is MQTT 3.1.1.
    version: u8,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

impl Mqtt {
    /// Connects with a password, if it is not empty; also returns the code in the CONNACK.
    pub(super) fn connect(
        address: SocketAddr,
        version: u8,
        password: &str,
        id: &str,
        will: Option<&str>,
    ) -> (Self, u8) {
        Self::connect_over(TcpStream::connect(address).expect("a connection"), version, password, id, will)
    }

    /// The same over a connection that there is.
    pub(super) fn connect_over(
        stream: TcpStream,
        version: u8,
        password: &str,
        id: &str,
        will: Option<&str>,
    ) -> (Self, u8) {
        Self::connect_by(stream, version, ("user", password), id, will)
    }

    /// The same as this user, by this connection.
    pub(super) fn connect_by(
        stream: TcpStream,
        version: u8,
        (user, password): (&str, &str),
        id: &str,
        will: Option<&str>,
    ) -> (Self, u8) {
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        let mut client = Self { stream, version };
        let login = if password.is_empty() { 0 } else { 0xc0 };
        // No keep alive: a test on a busy machine may say nothing for longer than any bound.
        let flags = 2 | login | if will.is_some() { 4 } else { 0 };
        let mut body = [&text("MQTT")[..], &[version, flags, 0, 0], client.properties()].concat();
        body.extend(text(id));
        if let Some(topic) = will {
            body.extend([client.properties(), &text(topic), &text("gone")].concat());
        }
        if !password.is_empty() {
            body.extend([text(user), text(password)].concat());
        }
        client.send(0x10, &body);
        let (_, answer) = client.receive();
        (client, answer[1])
    }

    /// Connects with MQTT 3.1.1 to a session that outlives the connection; also returns whether there was one.
    pub(super) fn resume(address: SocketAddr, password: &str, id: &str) -> (Self, bool) {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        let mut client = Self { stream, version: 4 };
        let head = [&text("MQTT")[..], &[4, 0xc0, 0, 0]].concat();
        client.send(0x10, &[head, text(id), text("user"), text(password)].concat());
        let (_, answer) = client.receive();
        assert_eq!(answer[1], 0, "the client is let in");
        (client, answer[0] == 1)
    }

    /// No properties, where the version has any.
    fn properties(&self) -> &'static [u8] {
        if self.version == 5 { &[0] } else { &[] }
    }

    /// Its connection, for other packets.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    fn send(&mut self, first: u8, body: &[u8]) {
        let mut packet = vec![first];
        let mut left = body.len();
        while left > 0x7f {
            packet.push(left as u8 | 0x80);
            left >>= 7;
        }
        packet.push(left as u8);
        packet.extend_from_slice(body);
        self.stream.write_all(&packet).expect("a packet is sent");
    }

    fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).expect("a packet");
        let mut body = vec![0; head[1].into()];
        self.stream.read_exact(&mut body).expect("its body");
        (head[0], body)
    }

    /// Publishes with QoS 1; the reason in the PUBACK, 0 if there is none.
    pub(super) fn publish(&mut self, topic: &str, payload: &str) -> u8 {
        self.send(0x32, &[&text(topic)[..], &[0, 7], self.properties(), payload.as_bytes()].concat());
        let (first, answer) = self.receive();
        assert_eq!((first, &answer[..2]), (0x40, &[0, 7][..]));
        answer.get(2).copied().unwrap_or(0)
    }

    /// Publishes a message that is retained, with QoS 1.
    pub(super) fn retain(&mut self, topic: &str, payload: &str) {
        self.send(0x33, &[&text(topic)[..], &[0, 7], self.properties(), payload.as_bytes()].concat());
        let (first, answer) = self.receive();
        assert_eq!((first, &answer[..2]), (0x40, &[0, 7][..]));
    }

    /// Publishes so many messages with QoS 0, numbered from 0 on, as fast as the server reads them.
    pub(super) fn flood(&mut self, topic: &str, count: u32) {
        let mut packets = Vec::new();
        for number in 0..count {
            let body = [&text(topic)[..], self.properties(), format!("{{\"v\": {number}}}").as_bytes()].concat();
            packets.extend([0x30, body.len() as u8]);
            packets.extend(body);
        }
        self.stream.write_all(&packets).expect("the messages are sent");
    }

    /// Subscribes to two filters with QoS 0; the codes in the SUBACK.
    pub(super) fn subscribe(&mut self, filters: [&str; 2]) -> [u8; 2] {
        self.subscribe_with(filters, 0)
    }

    /// The same with another QoS.
    pub(super) fn subscribe_with(&mut self, filters: [&str; 2], qos: u8) -> [u8; 2] {
        let [one, other] = filters.map(text);
        self.send(0x82, &[&[0, 9], self.properties(), &one, &[qos], &other, &[qos]].concat());
        let (first, answer) = self.receive();
        assert_eq!(first, 0x90);
        [answer[answer.len() - 2], answer[answer.len() - 1]]
    }

    /// Whether the server ends the connection, whatever it sends before.
    pub(super) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        !self.stream.read_to_end(&mut rest).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Whether no message was sent to the client, up to now.
    pub(super) fn has_nothing(&mut self) -> bool {
        self.send(0xc0, &[]);
        self.receive().0 == 0xd0
    }

    /// The topic and the payload of the next message, which is not acknowledged.
    pub(super) fn next(&mut self) -> (String, String) {
        let (first, body) = self.receive();
        assert_eq!(first & 0xf0, 0x30, "a message is awaited");
        let (topic, rest) = body[2..].split_at(body[1].into());
        let packet_id_bytes = if first & 6 > 0 { 2 } else { 0 };
        let payload = &rest[packet_id_bytes + self.properties().len()..];
        (String::from_utf8_lossy(topic).into(), String::from_utf8_lossy(payload).into())
    }
}

#[test]
fn clients_of_the_embedded_broker_use_the_topics_that_they_may() {
    let folder = TempDir::new().expect("a folder");
    let engine = Engine::open_with(configuration(folder.path()), extensions()).expect("an engine");
    let broker = engine.embedded_broker_address().expect("a broker");
    for statement in [APPLICATION, "CREATE QUERY q FROM APPLICATION doubled WITH (home => 'a')"] {
        let done = engine.session(Caller::local_operator()).execute(statement).pop();
        done.expect("an answer").expect(statement);
    }
    let (mut operator, code) = Mqtt::connect(broker, 5, "of-operator", "home", None);
    assert_eq!((code, operator.subscribe(["in/#", "private/#"])), (0, [0, 0]));
    // What the versions have: for a wrong login, a will that is not allowed, a message and a subscription.
    for (version, codes) in [(5, [0x86, 0x87, 0x87, 0x87]), (4, [4, 5, 0, 0x80])] {
        let [login, will, message, subscription] = codes;
        assert_eq!(Mqtt::connect(broker, version, "", "home", None).1, login);
        assert_eq!(Mqtt::connect(broker, version, "of-nobody", "home", None).1, login);
        assert_eq!(Mqtt::connect(broker, version, "of-ann", "home", Some("private/w")).1, will);
        // The operator, who has the same client id, keeps the session.
        let (mut ann, code) = Mqtt::connect(broker, version, "of-ann", "home", None);
        assert_eq!((code, ann.subscribe(["out/a", "private/#"])), (0, [0, subscription]));
        let (mut publisher, code) = Mqtt::connect(broker, version, "of-ann", "publisher", Some("in/w"));
        assert_eq!((code, publisher.publish("private/x", "{}"), publisher.publish("in/b", "{}")), (0, message, 0));
        // What was refused went nowhere: the first message is the one behind it.
        assert_eq!(operator.next(), ("in/b".into(), "{}".into()));
        assert_eq!(publisher.publish("in/a", "{\"v\":4}"), 0);
        assert_eq!(ann.next(), ("out/a".into(), "{\"v\":8}".into()));
        assert_eq!(operator.next().0, "in/a");
        publisher.send(0xe0, &[]);
    }
    let access = engine.access();
    assert_eq!((access.logins_refused(), access.requests_refused()), (4, 6));
}

#[test]
fn a_select_reads_nothing_that_its_caller_may_not_subscribe_to() {
    let folder = TempDir::new().expect("a folder");
    let (_server, service) = server(folder.path());
    let table = "CREATE TABLE rooms (id TEXT) FROM 'data:,id%0Aattic' FORMAT CSV (header => true)";
    operator(&service).execute(table).pop().expect("an answer").expect(table);
    let bob = service.session(Caller::new("default", "bob"));
    for (relation, may) in [
        ("rooms", false),
        ("\"mqtt:out/a\" AS o JOIN rooms AS r ON r.id = o.payload", false),
        ("rooms AS r JOIN \"mqtt:out/a\" AS o ON r.id = o.payload", false),
        ("\"mqtt:out/a\"", true),
        ("\"mqtt:in/a\"", false),
        ("\"mqtt:#\"", false),
        ("doubled.output", true),
        ("doubled.readings", false),
        ("q", false),
    ] {
        let refused = bob.select(&format!("SELECT * FROM {relation}")).map(drop).err();
        let is_forbidden = refused.as_ref().is_some_and(|error| error.kind == ErrorKind::Forbidden);
        assert_eq!(is_forbidden, !may, "{relation}: {refused:?}");
    }
}
