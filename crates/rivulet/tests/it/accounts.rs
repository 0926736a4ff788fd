//! Accounts of a server: who may do what over every route and statement, how tokens begin and end, what of it is kept,
//! and what ends with a right.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use rivulet::api;
use rivulet::config::Config;
use rivulet::engine::Engine;
use rivulet::service::{Caller, Code, Credentials, ErrorKind, Service};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::callers::{APPLICATION, Mqtt, ask};
use super::cli::command;
use super::engine::{configuration, open};
use super::server::{Server, free_port};
use super::support::{AsOperator, TestServer, WAIT_MAX, connect_from, request, wait_until};

/// A server with an administrator, and the administrator's token.
pub(super) struct Fixture {
    pub(super) folder: TempDir,
    pub(super) engine: Arc<Engine>,
    pub(super) server: TestServer,
    pub(super) admin: String,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let config = configuration(folder.path());
        Self::with(folder, config)
    }

    /// The same with this configuration for the folder.
    pub(super) fn with(folder: TempDir, config: Config) -> Self {
        let engine = Engine::open(config).expect("an engine");
        run(&engine, "CREATE USER admin ADMIN");
        let admin = token(&engine.operator().execute("CREATE TOKEN FOR admin"));
        let server = TestServer::start(engine.clone());
        Self { folder, engine, server, admin }
    }

    pub(super) fn sql(&self, token: &str, script: &str) -> (u16, Value) {
        ask(&self.server, token, "POST", "/api/v1/sql", script)
    }

    /// Runs a script as the administrator, and returns the rows of its last statement.
    pub(super) fn done(&self, script: &str) -> Value {
        let (status, answer) = self.sql(&self.admin, script);
        assert_eq!(status, 200, "{script}: {answer}");
        answer["results"].as_array().and_then(|results| results.last()).expect("a result")["rows"].clone()
    }

    /// A user with these rights, and its token.
    pub(super) fn user(&self, name: &str, rights: &[&str]) -> String {
        self.done(&format!("CREATE USER {name}"));
        rights.iter().for_each(|rights| drop(self.done(&format!("GRANT {rights} TO {name}"))));
        self.token(name)
    }

    pub(super) fn token(&self, name: &str) -> String {
        self.done(&format!("CREATE TOKEN FOR {name}"))[0][0].as_str().expect("a token").to_owned()
    }

    pub(super) fn broker(&self) -> SocketAddr {
        self.engine.embedded_broker_address().expect("a broker")
    }
}

fn run(engine: &Arc<Engine>, script: &str) {
    for answer in engine.operator().execute(script) {
        answer.unwrap_or_else(|error| panic!("{script}: {error}"));
    }
}

fn token(answers: &[Result<rivulet::service::StatementResult, rivulet::service::ServiceError>]) -> String {
    let answer = answers.last().expect("an answer").as_ref().expect("a token");
    answer.rows[0][0].as_str().expect("text").to_owned()
}

/// What is shown is of all tenants, so it is for the default one.
const HISTORY: &str = "GET /api/v1/history";

/// The right that each operation of the API needs: an action and a kind, `everything` of the server, or `accounts`.
const OPERATIONS: &[(&str, &str)] = &[
    ("POST /api/v1/sql", "read table"),
    ("GET /api/v1/applications", "read application"),
    ("POST /api/v1/applications", "change application"),
    ("GET /api/v1/applications/{name}", "read application"),
    ("DELETE /api/v1/applications/{name}", "change application"),
    ("GET /api/v1/applications/{name}/explain", "read application"),
    ("POST /api/v1/trial", "administer server"),
    ("GET /api/v1/tables", "read table"),
    ("POST /api/v1/tables", "change table"),
    ("GET /api/v1/tables/{name}", "read table"),
    ("DELETE /api/v1/tables/{name}", "change table"),
    ("POST /api/v1/tables/{name}/refresh", "change table"),
    ("GET /api/v1/queries", "read query"),
    ("POST /api/v1/queries", "change query"),
    ("POST /api/v1/queries/bulk", "change query"),
    ("GET /api/v1/big-queries", "read query"),
    ("POST /api/v1/big-queries", "change query"),
    ("GET /api/v1/big-queries/{name}/dataflow", "read query"),
    ("GET /api/v1/queries/{name}", "read query"),
    ("PATCH /api/v1/queries/{name}", "change query"),
    ("DELETE /api/v1/queries/{name}", "change query"),
    ("POST /api/v1/queries/{name}/pause", "change query"),
    ("POST /api/v1/queries/{name}/resume", "change query"),
    ("GET /api/v1/queries/{name}/results", "subscribe query"),
    ("POST /api/v1/select", "subscribe source"),
    ("GET /api/v1/secrets", "read secret"),
    ("PUT /api/v1/secrets/{name}", "change secret"),
    ("DELETE /api/v1/secrets/{name}", "change secret"),
    ("GET /api/v1/tenants", "everything"),
    ("POST /api/v1/tenants", "everything"),
    ("PATCH /api/v1/tenants/{name}", "everything"),
    ("DELETE /api/v1/tenants/{name}", "everything"),
    ("GET /api/v1/users", "accounts"),
    ("POST /api/v1/users", "accounts"),
    ("DELETE /api/v1/users/{name}", "accounts"),
    ("PUT /api/v1/users/{name}/password", "accounts"),
    ("DELETE /api/v1/users/{name}/password", "accounts"),
    ("GET /api/v1/tokens", "accounts"),
    ("POST /api/v1/tokens", "accounts"),
    ("DELETE /api/v1/tokens/{name}", "accounts"),
    ("POST /api/v1/tokens/{name}/rotate", "accounts"),
    ("GET /api/v1/grants", "accounts"),
    ("POST /api/v1/grants", "accounts"),
    ("POST /api/v1/grants/revoke", "accounts"),
    ("GET /api/v1/audit", "accounts"),
    ("GET /api/v1/status", "read server"),
    ("GET /api/v1/clients", "read server"),
    (HISTORY, "read server"),
    ("POST /api/v1/checkpoint", "administer server"),
    ("POST /api/v1/backup", "administer server"),
    ("GET /metrics", "read server"),
];

/// Whether a client may publish to a topic, with or without a subscriber to it.
pub(super) fn sends(client: &mut Mqtt, topic: &str) -> bool {
    client.publish(topic, "1") < 0x80
}

/// An application whose topics are those of the tenant `acme`.
const OF_ACME: &str = "CREATE APPLICATION a (home TEXT) INPUT t (v BIGINT) FROM 'mqtt:acme/in/{home}' FORMAT JSON \
                       OUTPUT 'mqtt:acme/out/{home}' FORMAT JSON AS SELECT v FROM t";

/// A body with which an operation is not refused for its form before its right is asked for.
fn body(operation: &str) -> &'static str {
    match operation {
        "POST /api/v1/sql" => "SHOW TABLES",
        "POST /api/v1/applications" => OF_ACME,
        "POST /api/v1/queries" | "POST /api/v1/queries/bulk" => r#"{"name":"r","application":"none"}"#,
        "PATCH /api/v1/queries/{name}" => "{}",
        "POST /api/v1/trial" => r#"{"sql":"","events":[]}"#,
        "POST /api/v1/tenants" | "POST /api/v1/users" => r#"{"name":"?"}"#,
        "POST /api/v1/tokens" => r#"{"user":"?"}"#,
        "PUT /api/v1/users/{name}/password" => r#"{"password":"correct horse battery"}"#,
        "POST /api/v1/grants" | "POST /api/v1/grants/revoke" => r#"{"user":"?","actions":["all"]}"#,
        "POST /api/v1/tables" => "CREATE TABLE t (id TEXT) FROM 'file:none.csv' FORMAT CSV",
        "POST /api/v1/big-queries" => "CREATE QUERY b AS SELECT v FROM none INTO nowhere",
        _ => "",
    }
}

#[test]
fn every_operation_asks_for_its_right_and_for_no_other() {
    let fixture = Fixture::new();
    let document = serde_json::to_value(api::openapi()).expect("a document");
    let mut operations: Vec<String> = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        operations
            .extend(methods.as_object().expect("methods").keys().map(|one| format!("{} {path}", one.to_uppercase())));
    }
    let is_for_all = |one: &str| one.contains(" /health/") || one == "POST /api/v1/login" || one.ends_with("/session");
    operations.retain(|operation| !is_for_all(operation));
    let known: BTreeMap<&str, &str> = OPERATIONS.iter().copied().collect();
    for operation in &operations {
        assert!(known.contains_key(operation.as_str()), "{operation} is new: say here which right it needs");
    }
    assert_eq!(known.len(), operations.len(), "an operation of the table is gone");
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN");
    let boss = fixture.token("acme.boss");
    // Each right alone, and who has all of them.
    let mut rights: Vec<&str> = known.values().copied().filter(|right| right.contains(' ')).collect();
    rights.sort_unstable();
    rights.dedup();
    let mut callers: Vec<(String, String)> = vec![
        ("none".into(), fixture.user("none", &[])),
        ("boss".into(), boss),
        ("admin".into(), fixture.admin.clone()),
    ];
    for right in rights {
        let (action, kind) = right.split_once(' ').expect("two words");
        let name = right.replace(' ', "_");
        callers.push((right.to_owned(), fixture.user(&name, &[&format!("{action} ON {kind}")])));
    }
    for (operation, right) in OPERATIONS {
        let (method, path) = operation.split_once(' ').expect("two words");
        let path = path.replace("{name}", "nothing");
        for (has, token) in &callers {
            let may = match has.as_str() {
                "admin" => true,
                "boss" => !["everything", "administer server"].contains(right) && *operation != HISTORY,
                has => has == *right,
            };
            let (status, answer) = match *operation {
                // Its answer is an archive and no text.
                "POST /api/v1/backup" if may => (200, Value::Null),
                _ => ask(&fixture.server, token, method, &path, body(operation)),
            };
            let is_refused = status == 403 || answer["kind"] == "forbidden";
            assert_eq!(is_refused, !may, "{operation} by one who has {has}: {status} {answer}");
            assert!(status != 401 && status != 429, "{operation} by one who has {has}: {status}");
        }
        assert_eq!(ask(&fixture.server, "", method, &path, body(operation)).0, 401, "{operation}");
    }
}

#[test]
fn a_tenant_sees_its_own_clients_and_its_own_part_of_the_audit() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN; CREATE TENANT zoo; CREATE USER zoo.boss ADMIN");
    let [acme, zoo] = ["acme.boss", "zoo.boss"].map(|user| fixture.token(user));
    let connected = [&fixture.admin, &acme, &zoo].map(|token| Mqtt::connect(fixture.broker(), 4, token, "one", None));
    assert!(connected.iter().all(|(_, code)| *code == 0));
    let clients = |token: &str, with: &str| {
        let (status, answer) = ask(&fixture.server, token, "GET", &format!("/api/v1/clients{with}"), "");
        assert_eq!(status, 200, "{answer}");
        let clients = answer["clients"].as_array().expect("clients").iter();
        let tenants: Vec<String> = clients.map(|one| one["tenant"].as_str().unwrap_or("-").to_owned()).collect();
        (tenants, answer["next"].as_str().map(|next| next.replace('\0', "%00")))
    };
    assert_eq!(clients(&fixture.admin, ""), (["acme", "default", "zoo"].map(String::from).to_vec(), None));
    assert_eq!(clients(&acme, ""), (vec!["acme".to_owned()], None));
    assert_eq!(clients(&acme, "?prefix=two"), (vec![], None));
    let (first, next) = clients(&fixture.admin, "?limit=2");
    assert_eq!(first, ["acme", "default"]);
    let after = next.expect("there is one more");
    assert_eq!(clients(&fixture.admin, &format!("?limit=2&after={after}")), (vec!["zoo".to_owned()], None));

    assert_eq!(fixture.sql(&acme, "CREATE USER ann").0, 200);
    let audit = |token: &str| {
        let (status, answer) = ask(&fixture.server, token, "GET", "/api/v1/audit?limit=1000", "");
        assert_eq!(status, 200, "{answer}");
        answer["entries"].as_array().expect("entries").clone()
    };
    let has = |entries: &[Value], statement: &str| entries.iter().any(|one| one["statement"] == statement);
    wait_until("the audit to be written", || has(&audit(&acme), "CREATE USER ann"));
    assert!(audit(&acme).iter().all(|one| one["tenant"] == "acme"));
    let all = audit(&fixture.admin);
    assert!(has(&all, "CREATE USER ann") && has(&all, "CREATE TENANT zoo"), "{all:?}");
    assert!(!has(&audit(&zoo), "CREATE USER ann"));
    // What was allowed and then failed is told, and whose credentials were wrong.
    assert_eq!(fixture.sql(&fixture.admin, "SHOW QUERIES; CREATE TENANT acme; CREATE TENANT later").0, 409);
    assert_eq!(ask(&fixture.server, &fixture.admin, "DELETE", "/api/v1/users/nobody", "").0, 404);
    let wait = |what: &str, is_it: &dyn Fn(&Value) -> bool| {
        wait_until(what, || audit(&fixture.admin).iter().any(is_it));
    };
    for (name, failed) in [("acme", "already_exists"), ("nobody", "not_found")] {
        wait("what failed", &|one| one["allowed"] == true && one["name"] == name && one["failed"] == failed);
    }
    assert!(!has(&audit(&fixture.admin), "CREATE TENANT later"), "it was not run");
    assert!(!all.iter().any(|one| one["action"] == "read"), "to look at the audit leaves nothing in it: {all:?}");
}

#[test]
fn every_statement_about_accounts_is_for_administrators_of_the_tenant_it_speaks_of() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN; CREATE USER acme.ann; CREATE USER bob");
    let (boss, bob) = (fixture.token("acme.boss"), fixture.token("bob"));
    let own = fixture.done("SHOW TOKENS FOR admin")[0][2].as_str().expect("an id").to_owned();
    for (statement, of_boss) in [
        ("CREATE TENANT t", 403),
        ("DROP TENANT acme", 403),
        ("SHOW TENANTS", 403),
        ("CREATE USER default.x", 403),
        ("CREATE USER other.x", 403),
        ("DROP USER default.admin", 403),
        ("CREATE TOKEN FOR default.admin", 403),
        ("GRANT ALL TO default.bob", 403),
        ("REVOKE ALL FROM default.bob", 403),
        ("SHOW TOKENS FOR default.admin", 403),
        ("SHOW GRANTS FOR default.bob", 403),
        (&format!("DROP TOKEN '{own}'"), 404),
        (&format!("ALTER TOKEN '{own}' ROTATE"), 404),
        ("DROP USER admin", 404),
        ("CREATE TOKEN FOR bob", 404),
        ("GRANT administer ON SERVER TO ann", 400),
        ("GRANT publish ON TOPIC 'home/#' TO ann", 400),
        ("GRANT publish ON TOPIC '+/home' TO ann", 400),
        ("GRANT publish ON TOPIC TO ann", 400),
        ("GRANT publish ON TOPIC 'acme/home/#' TO ann", 200),
        ("GRANT publish ON TOPIC 'acme/home/#' TO acme.ann", 200),
        ("CREATE USER eve; SHOW USERS; SHOW TOKENS; SHOW GRANTS; DROP USER eve", 200),
    ] {
        let (status, answer) = fixture.sql(&boss, statement);
        assert_eq!(status, of_boss, "{statement}: {answer}");
        assert_eq!(fixture.sql(&bob, statement).0, 403, "{statement}");
        assert_eq!(fixture.sql("", statement).0, 401, "{statement}");
    }
    // Nothing of another tenant is in a list.
    for statement in ["SHOW USERS", "SHOW TOKENS", "SHOW GRANTS"] {
        let shown = fixture.sql(&boss, statement).1.to_string();
        assert!(shown.contains("acme") && !shown.contains("default") && !shown.contains("bob"), "{shown}");
        assert!(fixture.sql(&fixture.admin, statement).1.to_string().contains("acme"));
    }
    // A refused statement says where it is refused.
    let (_, error) = fixture.sql(&bob, "SHOW QUERIES;\n  CREATE USER eve");
    assert_eq!((&error["message"], &error["line"]), (&json!("'bob' may not read queries"), &json!(1)));
    let (_, error) = fixture.sql(&boss, "SHOW USERS;\n  GRANT publish ON VIEW 's' TO ann");
    assert_eq!((&error["line"], &error["column"]), (&json!(2), &json!(9)), "{error}");
    assert_eq!(error["message"], "there is no right to publish a view");
    assert_eq!(error["hint"], "rights over a view are read and change and subscribe");
}

#[test]
fn there_is_always_an_administrator_who_can_log_in() {
    let fixture = Fixture::new();
    let id = fixture.done("SHOW TOKENS")[0][2].as_str().expect("an id").to_owned();
    let last = ["DROP USER admin".to_owned(), "REVOKE ALL FROM admin".to_owned(), format!("DROP TOKEN '{id}'")];
    for statement in &last {
        let (status, error) = fixture.sql(&fixture.admin, statement);
        assert_eq!((status, &error["kind"]), (409, &json!("conflict")), "{statement}: {error}");
        assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("CREATE TOKEN FOR")), "{error}");
    }
    // One who cannot log in does not count, and neither does the administrator of a tenant.
    fixture
        .done("CREATE USER second ADMIN; CREATE TENANT acme; CREATE USER acme.boss ADMIN; CREATE TOKEN FOR acme.boss");
    assert_eq!(fixture.sql(&fixture.admin, &last[0]).0, 409);
    let second = fixture.token("second");
    assert_eq!(fixture.sql(&fixture.admin, &last[0]).0, 200);
    assert_eq!(fixture.sql(&fixture.admin, "SHOW USERS").0, 401);
    assert_eq!(fixture.sql(&second, "SHOW USERS").0, 200);
    assert_eq!(fixture.sql("", "SHOW USERS").0, 401, "every door goes on asking");
}

#[test]
fn tokens_end_when_they_expire_are_rotated_or_dropped() {
    let fixture = Fixture::new();
    let first = fixture.user("ann", &["read ON QUERY"]);
    let show = |token: &str| fixture.sql(token, "SHOW QUERIES").0;
    let id_of = |token: &str| token[4..20].to_owned();
    assert_eq!(show(&first), 200);
    let listed = fixture.done("SHOW TOKENS FOR ann");
    assert!(listed[0][5].is_string(), "its last use: {listed}");
    assert!(!listed.to_string().contains(&first[20..]), "the secret is shown once");
    let rotated = fixture.done(&format!("ALTER TOKEN '{}' ROTATE", id_of(&first)));
    let second = rotated[0][0].as_str().expect("a token").to_owned();
    assert_eq!((show(&first), show(&second)), (401, 200));
    let rotated = fixture.done(&format!("ALTER TOKEN '{}' ROTATE GRACE INTERVAL '1 hour'", id_of(&second)));
    let third = rotated[0][0].as_str().expect("a token").to_owned();
    assert_eq!((show(&second), show(&third)), (200, 200));
    fixture.done(&format!("DROP TOKEN '{}'", id_of(&second)));
    assert_eq!((show(&second), show(&third)), (401, 200));
    let short = fixture.done("CREATE TOKEN FOR ann EXPIRES IN INTERVAL '1 second'")[0][0].as_str().unwrap().to_owned();
    wait_until("the end of the token", || {
        let refused = fixture
            .engine
            .access()
            .authenticate(&Credentials { secret: Some(short.as_bytes()), ..Credentials::default() });
        refused.is_err_and(|error| error.hint.is_some_and(|hint| hint.contains("expired")))
    });
    let shown = fixture.done("SHOW TOKENS FOR ann").to_string();
    assert!(shown.contains("(expired)"), "{shown}");
    let (_, error) = ask(&fixture.server, &third[..90], "GET", "/api/v1/queries", "");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("missing or wrong")), "{error}");
    // Another secret with the id of a token that is there, and a right check sum, is no token.
    fixture.done("DROP USER ann");
    assert_eq!(show(&third), 401);
    fixture.done("CREATE USER ann");
    assert_eq!(show(&third), 401, "a user of the same name is another one");
}

#[test]
fn who_guesses_tokens_has_to_wait() {
    let fixture = Fixture::new();
    let wrong = fixture.user("ann", &[]);
    fixture.done("DROP USER ann");
    let refused = (0..30).find_map(|_| Some(fixture.sql(&wrong, "SHOW QUERIES")).filter(|(status, _)| *status != 401));
    assert_eq!(refused.expect("a pause").0, 429);
    // MQTT counts for itself: `busy` after the guesses.
    let codes: Vec<u8> = (0..30).map(|_| Mqtt::connect(fixture.broker(), 5, &wrong, "d", None).1).collect();
    assert!(codes.starts_with(&[0x86, 0x86]) && codes.contains(&0x97), "{codes:x?}");
}

#[test]
fn who_shows_an_old_token_keeps_nobody_out_behind_its_address() {
    let fixture = Fixture::new();
    let (stale, right) = (fixture.user("old", &[]), fixture.user("ann", &["read ON QUERY"]));
    fixture.done("DROP USER old");
    let (mut http, mut mqtt) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        http.push(fixture.sql(&stale, "SHOW QUERIES").0);
        mqtt.push(Mqtt::connect(fixture.broker(), 5, &stale, "d", None).1);
        assert_eq!(fixture.sql(&right, "SHOW QUERIES").0, 200, "{http:?}");
        assert_eq!(Mqtt::connect(fixture.broker(), 5, &right, "e", None).1, 0, "{mqtt:x?}");
    }
    assert!(http.starts_with(&[401]) && http.contains(&429), "{http:?}");
    assert!(mqtt.starts_with(&[0x86]) && mqtt.contains(&0x97), "{mqtt:x?}");
}

#[test]
fn proxies_say_where_clients_are_and_the_slowing_down_can_be_turned_off() {
    let folder = TempDir::new().expect("a folder");
    first_administrator(&folder.path().join("data"));
    let mqtt = free_port();
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_HTTP_TRUSTED_PROXIES", "127.0.0.1".to_owned()),
        ("RIVULET_MQTT_EMBEDDED_TRUSTED_PROXIES", "127.0.0.0/8".to_owned()),
    ];
    let server =
        Server::spawn_by(super::server::rivulet_by("env", &["--default-signal=HUP"]), folder.path(), mqtt, &settings);
    server.wait_until_ready();
    let by_http = |host: u8, user: &str| {
        let body = json!({ "user": user, "password": "an entirely wrong guess" }).to_string();
        let headers = format!("content-type: application/json\r\nx-forwarded-for: 10.9.9.9, 192.0.2.{host}\r\n");
        super::support::exchange(server.http, &request("POST", "/api/v1/login", &headers, &body)).0
    };
    let by_mqtt = |host: u8| {
        let mut stream = TcpStream::connect(mqtt).expect("a connection");
        stream.write_all(format!("PROXY TCP4 192.0.2.{host} 127.0.0.1 4000 1883\r\n").as_bytes()).expect("a header");
        Mqtt::connect_by(stream, 5, ("nobody", "rvt_of_nobody"), "d", None).1
    };
    let codes: Vec<u16> = (0..12).map(|_| by_http(1, "one")).collect();
    assert!(codes.contains(&429), "{codes:?}");
    assert_eq!(by_http(2, "one"), 401);
    let codes: Vec<u8> = (0..12).map(|_| by_mqtt(1)).collect();
    assert!(codes.contains(&0x97), "{codes:x?}");
    assert_eq!(by_mqtt(2), 0x86);
    std::fs::write(folder.path().join("rivulet.toml"), "logins.slow_down = false\n").expect("a file");
    server.signal("-HUP");
    super::support::wait_until("nobody waits", || by_mqtt(1) == 0x86);
    assert_eq!((0..12).map(|_| by_http(3, "two")).max(), Some(401));
    assert_eq!((0..12).map(|_| by_mqtt(3)).max(), Some(0x86));
}

#[test]
fn accounts_are_kept_by_restarts() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme");
    let ann = fixture.user("acme.ann", &["read ON QUERY 'home-7-%'", "read ON SERVER"]);
    let Fixture { folder, engine, server, admin } = fixture;
    drop(server);
    AsOperator::shutdown(&*engine);
    drop(engine);
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    assert_eq!(ask(&server, "", "GET", "/api/v1/status", "").0, 401);
    assert_eq!(ask(&server, &ann, "GET", "/api/v1/status", "").0, 200);
    assert_eq!(ask(&server, &ann, "GET", "/api/v1/queries/home-7-a", "").0, 404);
    assert_eq!(ask(&server, &ann, "GET", "/api/v1/queries/home-8-a", "").0, 403);
    let (_, tokens) = ask(&server, &admin, "GET", "/api/v1/tokens?user=ann&tenant=acme", "");
    assert!(tokens["tokens"][0]["last_used_s"].is_u64(), "{tokens}");
    drop(server);
    AsOperator::shutdown(&*engine);
}

#[test]
fn streams_end_with_the_token_and_with_the_right() {
    let fixture = Fixture::new();
    fixture.done(&format!("{APPLICATION}; CREATE QUERY q FROM APPLICATION doubled WITH (home => 'a')"));
    for (number, ending) in
        ["DROP USER ann0", "REVOKE subscribe ON QUERY 'q' FROM ann1", "REVOKE ALL FROM ann2"].into_iter().enumerate()
    {
        let ann = fixture.user(&format!("ann{number}"), &["subscribe ON QUERY 'q'"]);
        let mut socket = TcpStream::connect(fixture.server.address).expect("a connection");
        socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        let head = format!("authorization: Bearer {ann}\r\n");
        socket.write_all(request("GET", "/api/v1/queries/q/results", &head, "").as_bytes()).expect("a request");
        let mut lines = BufReader::new(socket).lines();
        assert!(lines.next().expect("a line").expect("text").starts_with("HTTP/1.1 200"));
        // A right more ends nothing.
        fixture.done(&format!("GRANT read ON QUERY TO ann{number}"));
        fixture.done(ending);
        let end = lines.map_while(Result::ok).find(|line| line.starts_with("data:"));
        assert_eq!(end.as_deref(), Some("data: forbidden"), "{ending}");
    }
}

#[test]
fn clients_of_the_broker_use_their_topics_until_their_token_or_right_ends() {
    let fixture = Fixture::new();
    let broker = fixture.broker();
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN");
    let device = fixture
        .user("d1", &["publish ON TOPIC 'home/%u/#'", "subscribe ON TOPIC 'to/%c/+'", "subscribe ON TOPIC 'all'"]);
    assert_eq!(Mqtt::connect(broker, 5, "", "c1", None).1, 0x86, "nobody comes in without a token");
    let (mut one, code) = Mqtt::connect(broker, 5, &device, "c1", None);
    assert_eq!(code, 0);
    assert_eq!(
        [sends(&mut one, "home/d1/t"), sends(&mut one, "home/d2/t"), sends(&mut one, "other")],
        [true, false, false]
    );
    assert_eq!(one.subscribe(["to/c1/x", "to/c2/x"]), [0, 0x87]);
    assert_eq!(one.subscribe(["to/#", "#"]), [0x87, 0x87]);
    assert_eq!(one.subscribe(["to/+/x", "all"]), [0x87, 0]);
    let (mut admin, code) = Mqtt::connect(broker, 5, &fixture.admin, "c1", None);
    assert_eq!((code, admin.subscribe(["#", "home/+/t"])), (0, [0, 0]), "another session with the same id");
    let (mut boss, code) = Mqtt::connect(broker, 5, &fixture.token("acme.boss"), "c1", None);
    assert_eq!((code, boss.subscribe(["acme/x/#", "#"])), (0, [0, 0x87]));
    assert_eq!([sends(&mut boss, "acme/t"), sends(&mut boss, "home/d1/t")], [true, false]);
    // More rights count at once, and end no connection.
    fixture.done("GRANT publish ON TOPIC 'more' TO d1");
    assert_eq!([sends(&mut one, "more"), sends(&mut one, "home/d1/t")], [true, true]);
    // Fewer end it; with the next one a session has no subscriptions that are not allowed any more.
    fixture.done("REVOKE subscribe ON TOPIC 'all' FROM d1");
    assert!(one.is_closed());
    let (mut one, code) = Mqtt::connect(broker, 5, &device, "c1", None);
    assert_eq!((code, one.subscribe(["to/c1/x", "all"])), (0, [0, 0x87]));
    fixture.done("DROP USER d1");
    assert!(one.is_closed());
    assert_eq!(Mqtt::connect(broker, 5, &device, "c1", None).1, 0x86);
    let (mut other, _) = Mqtt::connect(broker, 5, &fixture.admin, "c2", None);
    assert!(sends(&mut other, "home/d1/t"), "others go on");
}

#[test]
fn a_user_with_the_name_of_a_dropped_one_gets_no_message_of_it_without_the_right() {
    let fixture = Fixture::new();
    let broker = fixture.broker();
    let old = fixture.user("d1", &["subscribe ON TOPIC 'secret/#'", "subscribe ON TOPIC 'open/#'"]);
    let (mut client, is_present) = Mqtt::resume(broker, &old, "c1");
    assert!(!is_present);
    assert_eq!(client.subscribe_with(["secret/#", "open/#"], 1), [1, 1]);
    let (mut admin, _) = Mqtt::connect(broker, 4, &fixture.admin, "a", None);
    for topic in ["secret/x", "open/x"] {
        assert_eq!(admin.publish(topic, "{}"), 0);
        assert_eq!(client.next(), (topic.into(), "{}".into()));
    }
    // The client has both messages and has acknowledged none.
    fixture.done("DROP USER d1");
    assert!(client.is_closed());
    let new = fixture.user("d1", &["subscribe ON TOPIC 'open/#'"]);
    let (mut client, _) = Mqtt::resume(broker, &new, "c1");
    assert_eq!(client.next().0, "open/x", "what it may read comes again");
    assert!(client.has_nothing());
    fixture.done("REVOKE subscribe ON TOPIC 'open/#' FROM d1");
    assert!(client.is_closed());
    let (mut client, _) = Mqtt::resume(broker, &new, "c1");
    assert!(client.has_nothing());
}

#[test]
fn the_first_account_closes_the_door_behind_those_who_came_in_without_one() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let broker = engine.embedded_broker_address().expect("a broker");
    let server = TestServer::start(engine.clone());
    let (mut anonymous, code) = Mqtt::connect(broker, 5, "", "c1", None);
    assert_eq!((code, sends(&mut anonymous, "any")), (0, true));
    run(&engine, "CREATE USER admin ADMIN");
    assert!(sends(&mut anonymous, "any"), "nobody could log in yet");
    assert_eq!(ask(&server, "", "GET", "/api/v1/users", "").0, 200);
    run(&engine, "CREATE TOKEN FOR admin");
    assert!(anonymous.is_closed());
    assert_eq!(ask(&server, "", "GET", "/api/v1/users", "").0, 401);
    let refused = engine.operator().execute("SHOW USERS").pop().expect("an answer").expect_err("no operator any more");
    assert_eq!(refused.kind, ErrorKind::Forbidden);
    assert!(
        !engine.access().authenticate(&Credentials::default()).is_ok_and(|caller| caller == Caller::local_operator())
    );
}

#[test]
fn the_user_in_the_configuration_goes_on_using_every_topic() {
    let folder = TempDir::new().expect("a folder");
    let mut config = configuration(folder.path());
    let credentials = rivulet::config::load(&rivulet::config::Sources {
        environment: vec![
            ("RIVULET_MQTT_EMBEDDED_USERNAME".into(), "user".into()),
            ("RIVULET_MQTT_EMBEDDED_PASSWORD".into(), "rose".into()),
        ],
        ..Default::default()
    });
    let embedded = credentials.expect("a configuration").config.embedded.expect("a broker");
    config.embedded.as_mut().expect("a broker").credentials = embedded.credentials;
    let engine = Engine::open(config).expect("an engine");
    let broker = engine.embedded_broker_address().expect("a broker");
    let codes = |password: &str| Mqtt::connect(broker, 5, password, "c", None).1;
    assert_eq!((codes("rose"), codes("tulip"), codes("")), (0, 0x86, 0x86));
    run(&engine, "CREATE USER admin ADMIN");
    let admin = token(&engine.operator().execute("CREATE TOKEN FOR admin"));
    assert_eq!((codes("rose"), codes(&admin), codes("")), (0, 0, 0x86));
    let (mut configured, _) = Mqtt::connect(broker, 5, "rose", "c", None);
    assert_eq!((sends(&mut configured, "any"), configured.subscribe(["#", "a"])), (true, [0, 0]));
}

/// Runs the program, with this token if there is one.
fn rivulet(arguments: &[&str], server: &str, token: &str) -> Output {
    let mut command = command(arguments);
    if !token.is_empty() {
        command.env("RIVULET_TOKEN", token);
    }
    command.env("RIVULET_SERVER", server).output().expect("the program")
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text").trim().to_owned()
}

/// The names in a list of tenants.
fn tenant_names(list: &str) -> Vec<String> {
    let list: Vec<Value> = serde_json::from_str(list).expect("a list");
    list.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
}

/// The two commands that make the first administrator of a stopped server; the token.
pub(super) fn first_administrator(data: &Path) -> String {
    let data = data.to_str().expect("a path");
    out(&rivulet(&["user", "create", "admin", "--admin", "--data-dir", data], "http://127.0.0.1:9", ""));
    out(&rivulet(&["token", "create", "admin", "--data-dir", data], "http://127.0.0.1:9", ""))
}

#[test]
fn a_server_for_other_machines_starts_with_an_administrator_only() {
    let folder = TempDir::new().expect("a folder");
    let data = folder.path().join("data");
    let websocket = "RIVULET_MQTT_EMBEDDED_WEBSOCKET_ADDRESS";
    for setting in [
        ("RIVULET_HTTP_ADDRESS", "0.0.0.0:0"),
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", "0.0.0.0:0"),
        (websocket, "0.0.0.0:0"),
    ] {
        let mut command = command(&["serve"]);
        command.current_dir(folder.path()).env("RIVULET_DATA_DIR", &data);
        command.env("RIVULET_HTTP_ADDRESS", "127.0.0.1:0").env("RIVULET_MQTT_EMBEDDED_ADDRESS", "127.0.0.1:0");
        let output = command.env(setting.0, setting.1).output().expect("the program");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{said}");
        for hint in
            ["nobody has to log in", "rivulet user create admin --admin --data-dir", "rivulet token create admin"]
        {
            assert!(said.contains(hint), "{said}");
        }
    }
    let admin = first_administrator(&data);
    let mqtt = free_port();
    let settings =
        [("RIVULET_MQTT_EMBEDDED_ADDRESS", format!("0.0.0.0:{}", mqtt.port())), ("RIVULET_HTTP_HOSTS", "*".to_owned())];
    let server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    let url = server.url();
    assert!(!rivulet(&["status"], &url, "").status.success());
    out(&rivulet(&["status"], &url, &admin));
    // The data folder is the server's as long as it runs.
    let data = data.to_str().expect("a path");
    let locked = rivulet(&["user", "list", "--data-dir", data], &url, "");
    assert!(String::from_utf8_lossy(&locked.stderr).contains("leave out --data-dir"), "{locked:?}");
}

#[test]
fn commands_change_accounts_and_a_backup_has_them() {
    let folder = TempDir::new().expect("a folder");
    let admin = first_administrator(&folder.path().join("data"));
    let server = Server::start(folder.path());
    let url = server.url();
    let run = |arguments: &[&str]| rivulet(arguments, &url, &admin);
    out(&run(&["tenant", "create", "acme", "queries=7", "state_bytes=1GiB"]));
    out(&run(&["tenant", "set", "acme", "queries=8", "state_bytes=none"]));
    out(&run(&["user", "create", "ann", "--tenant", "acme"]));
    // The hint is one that helps here, and not that of statements.
    let refused = run(&["token", "create", "acme.ann"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("`ann --tenant acme`") && !said.contains("tenant.name"),
        "{said}"
    );
    let refused = run(&["token", "create", "bob"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("needs --tenant"), "{said}");
    out(&run(&["grant", "add", "ann", "read,subscribe", "query", "home-%", "--tenant", "acme"]));
    let grants = out(&run(&["--json", "grant", "list", "--user", "ann", "--tenant", "acme"]));
    let expected = json!([{"user": "ann", "tenant": "acme", "actions": ["read", "subscribe"], "kind": "query",
                           "pattern": "home-%"}]);
    assert_eq!(serde_json::from_str::<Value>(&grants).expect("JSON"), expected);
    let made = out(&run(&["--json", "token", "create", "ann", "--tenant", "acme", "--expires", "90d"]));
    let made: Value = serde_json::from_str(&made).expect("JSON");
    let (ann, id) = (made["token"].as_str().expect("a token"), made["info"]["id"].as_str().expect("an id"));
    assert_eq!(made["info"]["expires_s"].as_u64().unwrap() - made["info"]["created_s"].as_u64().unwrap(), 90 * 86_400);
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{ann}\n")).expect("a file");
    let file = file.to_str().expect("a path");
    let asked = rivulet(&["query", "show", "home-1", "--token-file", file], &url, "");
    assert!(String::from_utf8_lossy(&asked.stderr).contains("home-1"), "it is looked for: {asked:?}");
    let asked = rivulet(&["query", "list", "--token-file", file], &url, "");
    assert!(String::from_utf8_lossy(&asked.stderr).contains("may not read queries"), "{asked:?}");
    let mistyped = rivulet(&["query", "list"], &url, &ann[..80]);
    assert!(String::from_utf8_lossy(&mistyped.stderr).contains("are missing or wrong"), "{mistyped:?}");
    // What a user has logged in with is shown to that server only.
    let home = TempDir::new().expect("a folder");
    let at_home = |arguments: &[&str], input: &str| {
        let mut command = command(arguments);
        command.env("XDG_CONFIG_HOME", home.path()).env("RIVULET_SERVER", &url).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
        let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
        child.wait_with_output().expect("its end")
    };
    assert!(!at_home(&["login"], &ann[..80]).status.success());
    assert!(!at_home(&["tenant", "list"], "").status.success());
    out(&at_home(&["login"], &format!("{admin}\n")));
    out(&at_home(&["tenant", "list"], ""));
    out(&at_home(&["login"], ann));
    assert!(!at_home(&["tenant", "list"], "").status.success(), "another user now");
    out(&at_home(&["logout"], ""));
    assert!(!at_home(&["logout"], "").status.success());
    let table = out(&run(&["token", "list"]));
    assert!(table.contains(id) && !table.contains(&ann[20..]), "{table}");
    let backup = folder.path().join("all.backup");
    let backup = backup.to_str().expect("a path");
    assert!(!rivulet(&["backup", backup, "--server", &url], &url, ann).status.success());
    out(&run(&["backup", backup]));
    out(&run(&["token", "rotate", id]));
    assert!(!rivulet(&["query", "show", "home-1"], &url, ann).status.success());
    out(&run(&["grant", "remove", "ann", "read,subscribe", "query", "home-%", "--tenant", "acme"]));
    out(&run(&["user", "drop", "ann", "--tenant", "acme"]));
    out(&run(&["tenant", "drop", "acme"]));
    assert_eq!(tenant_names(&out(&run(&["--json", "tenant", "list"]))), ["default"]);
    drop(server);
    // What was saved before all that has the user, the right and the token.
    let other = TempDir::new().expect("a folder");
    let data = other.path().join("data");
    out(&rivulet(&["restore", backup, "--keep-tokens", "--data-dir", data.to_str().expect("a path")], &url, ""));
    let server = Server::start(other.path());
    let url = server.url();
    let tenants = out(&rivulet(&["--json", "tenant", "list"], &url, &admin));
    assert_eq!(tenant_names(&tenants), ["default", "acme"]);
    let limits = serde_json::from_str::<Value>(&tenants).expect("a list")[1]["limits"].clone();
    assert_eq!(limits["queries"], json!({"used": 0, "most": 8}), "{limits}");
    assert_eq!(limits["state_bytes"].get("most"), None, "{limits}");
    let asked = rivulet(&["query", "show", "home-1"], &url, ann);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("there is no query"), "{said}");
    drop(server);
    // Otherwise none counts, because some may have been dropped since, and the doors stay closed.
    let third = TempDir::new().expect("a folder");
    let data = third.path().join("data");
    let data = data.to_str().expect("a path");
    let restored = rivulet(&["restore", backup, "--data-dir", data], &url, "");
    let said = String::from_utf8_lossy(&restored.stderr);
    assert!(restored.status.success() && said.contains("2 tokens of the backup do not count any more"), "{said}");
    assert!(said.contains("rivulet token create") && said.contains("--keep-tokens"), "{said}");
    let made = out(&rivulet(&["token", "create", "admin", "--data-dir", data], &url, ""));
    let server = Server::start(third.path());
    let url = server.url();
    for (token, may) in [(ann, false), (&*admin, false), ("", false), (made.trim(), true)] {
        let asked = rivulet(&["tenant", "list"], &url, token);
        assert_eq!(asked.status.success(), may, "{asked:?}");
    }
}

#[test]
fn the_audit_tells_who_did_what_from_where_and_what_was_refused() {
    let fixture = Fixture::new();
    let ann = fixture.user("ann", &["change ON QUERY 'ann_%'", "publish ON TOPIC 'in'"]);
    fixture.done(APPLICATION);
    fixture.sql(&ann, "DROP QUERY IF EXISTS ann_1");
    fixture.sql(&ann, "DROP QUERY IF EXISTS ann_2; CREATE SINK s TO 'http://user:rose@127.0.0.1:1/' FORMAT JSON");
    fixture.sql(&ann, "SHOW QUERIES");
    fixture.sql("rvt_wrong", "SHOW QUERIES");
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN");
    fixture.sql(&fixture.token("acme.boss"), "CREATE SOURCE s (v BIGINT) FROM 'mqtt:bank/in' FORMAT JSON");
    ask(&fixture.server, &ann, "POST", "/api/v1/select", "SELECT * FROM \"mqtt:bank/out\"");
    let lines = ["ann_1", "ann_2", "other"].map(|name| format!(r#"{{"name":"{name}","application":"none"}}"#));
    ask(&fixture.server, &ann, "POST", "/api/v1/queries/bulk", &lines.join("\n"));
    let (mut client, _) = Mqtt::connect(fixture.broker(), 5, &ann, "d1", None);
    assert_eq!([sends(&mut client, "in"), sends(&mut client, "out"), sends(&mut client, "out")], [true, false, false]);
    let Fixture { folder, engine, server, admin } = fixture;
    drop(server);
    AsOperator::shutdown(&*engine);
    let mut text = String::new();
    for of in ["", "logins", "tenants/acme"] {
        let file = folder.path().join("data/audit").join(of).join("audit.jsonl");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).expect("the audit").permissions());
        assert_eq!(mode & 0o777, 0o600);
        text += &std::fs::read_to_string(file).expect("the audit");
    }
    for secret in ["rose", &ann[20..], &admin[20..], "rvt_wrong"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let entries: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let find = |parts: Value| {
        let parts = parts.as_object().expect("an object").clone();
        let is_it = |entry: &&Value| parts.iter().all(|(name, value)| entry[name] == *value);
        let found: Vec<&Value> = entries.iter().filter(is_it).collect();
        assert_eq!(found.len(), 1, "{parts:?} in {text}");
        found[0].clone()
    };
    let id = ann[4..20].to_owned();
    let granted = "GRANT publish ON TOPIC 'in' TO ann";
    find(json!({"user": "admin", "action": "administer", "kind": "user", "name": "ann", "statement": granted}));
    let dropped = find(json!({"user": "ann", "statement": "DROP QUERY IF EXISTS ann_1"}));
    assert_eq!((&dropped["token"], &dropped["door"], &dropped["allowed"]), (&json!(id), &json!("http"), &json!(true)));
    assert_eq!((&dropped["tenant"], &dropped["address"]), (&json!("default"), &json!("127.0.0.1")));
    assert!(!text.contains("ann_2"), "the script was refused as a whole: {text}");
    let sink = find(json!({"user": "ann", "kind": "sink", "name": "s", "allowed": false}));
    assert_eq!(
        (&sink["statement"], &sink["why"]),
        (&json!("CREATE SINK s TO ..."), &json!("'ann' may not change the sink 's'"))
    );
    find(json!({"user": "ann", "action": "read", "kind": "query", "allowed": false}));
    find(json!({"tenant": "acme", "action": "subscribe", "kind": "topic", "name": "bank/in", "allowed": false}));
    find(json!({"user": "ann", "action": "subscribe", "kind": "topic", "name": "bank/out", "allowed": false}));
    find(json!({"action": "login", "allowed": false, "door": "http"}));
    find(
        json!({"user": "ann", "action": "change", "kind": "query", "count": 2, "allowed": true, "failed": "not_found"}),
    );
    find(json!({"user": "ann", "action": "change", "name": "other", "allowed": false}));
    find(json!({"client": "d1", "door": "mqtt", "action": "publish", "name": "out", "allowed": false}));
}

#[test]
fn statements_of_a_tenant_name_topics_of_the_tenant_only() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN");
    let boss = fixture.token("acme.boss");
    let application = |input: &str, output: &str| {
        format!(
            "CREATE APPLICATION a (home TEXT) INPUT t (v BIGINT) FROM 'mqtt:{input}' FORMAT JSON \
             OUTPUT 'mqtt:{output}' FORMAT JSON AS SELECT v FROM t"
        )
    };
    for (statement, what) in [
        (application("in/{home}", "acme/out/{home}"), "subscribe to the topic 'in/{home}'"),
        (application("{home}/in", "acme/out/{home}"), "subscribe to the topic '{home}/in'"),
        (application("acme/in/{home}", "out/{home}"), "publish to the topic 'out/{home}'"),
        (application("acme2/in/{home}", "acme/out/{home}"), "subscribe to the topic 'acme2/in/{home}'"),
        ("CREATE SOURCE s (v BIGINT) FROM 'MQTT:#' FORMAT JSON".into(), "subscribe to the topic '#'"),
        ("CREATE SINK s TO 'mqtt:out' FORMAT JSON".into(), "publish to the topic 'out'"),
    ] {
        let (status, error) = fixture.sql(&boss, &statement);
        assert_eq!((status, &error["message"]), (403, &json!(format!("'boss' may not {what}"))), "{statement}");
        assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("begin with acme/")), "{error}");
        assert!(error["line"].is_u64() && error["column"].as_u64().is_some_and(|column| column > 1), "{error}");
    }
    let (status, error) = ask(&fixture.server, &boss, "POST", "/api/v1/select", "SELECT * FROM \"mqtt:in/a\"");
    assert_eq!(status, 403, "{error}");
    let own = application("acme/in/{home}", "acme/out/{home}");
    let session = fixture.engine.session(
        fixture
            .engine
            .access()
            .authenticate(&Credentials { secret: Some(boss.as_bytes()), ..Credentials::default() })
            .expect("a caller"),
    );
    let foreign = application("in/{home}", "acme/out/{home}");
    let refused =
        session.create_application(Code::Of("sql", foreign.as_bytes()), None).expect_err("a topic of nobody's tenant");
    assert_eq!(refused.kind, ErrorKind::Forbidden);
    drop(session);
    assert_eq!(fixture.sql(&boss, &own).0, 200);
    assert_eq!(fixture.sql(&boss, "DROP APPLICATION a").0, 200);
}

#[test]
fn applications_of_a_tenant_have_their_addresses_written() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN");
    let boss = fixture.token("acme.boss");
    let application = |input: &str, output: &str| {
        format!(
            "CREATE OR REPLACE APPLICATION a INPUT t (v BIGINT) {input} FORMAT JSON OUTPUT {output} FORMAT JSON \
             AS SELECT v FROM t"
        )
    };
    let (from, to) = ("FROM 'mqtt:acme/in'", "'mqtt:acme/out'");
    for (statement, what) in [(application("", to), "subscribe to"), (application(from, ""), "publish to")] {
        let first = statement.replace("OR REPLACE ", "");
        for (statement, path) in
            [(&statement, "/api/v1/sql"), (&first, "/api/v1/sql"), (&first, "/api/v1/applications")]
        {
            let (status, error) = ask(&fixture.server, &boss, "POST", path, statement);
            let message = format!("'boss' may not {what} the topic '#'");
            assert_eq!((status, &error["message"]), (403, &json!(message)), "{path} {statement}: {error}");
            assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("'mqtt:acme/...'")), "{error}");
            assert!(error["column"].as_u64().is_some_and(|column| column > 20), "{error}");
        }
    }
    assert_eq!(fixture.sql(&boss, &application(from, to).replace("OR REPLACE ", "")).0, 200);
    // Whoever may name every topic may leave it to the queries.
    let changer = fixture.user("ann", &["change ON APPLICATION"]);
    let (status, answer) = fixture.sql(&changer, &application("", "").replace("OR REPLACE ", ""));
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn an_application_of_a_tenant_that_names_other_topics_does_not_run() {
    let folder = TempDir::new().expect("a folder");
    let without = "CREATE APPLICATION a (n BIGINT) INPUT t (v BIGINT) FORMAT JSON OUTPUT 'mqtt:acme/out' FORMAT JSON \
                   AS SELECT v FROM t";
    let query = "CREATE QUERY q FROM APPLICATION a WITH (n => 1, input => 'mqtt:bank/in')";
    let with = without.replace("(v BIGINT)", "(v BIGINT) FROM 'mqtt:acme/in/{n}'").replace(" a ", " b ");
    let of_boss = |engine: &Arc<Engine>, statement: &str| {
        let service: &dyn Service = &**engine;
        let answer = service.session(Caller::new("acme", "boss")).execute(statement).pop();
        answer.expect("an answer").unwrap_or_else(|error| panic!("{statement}: {error}"))
    };
    let (admin, boss) = {
        // As an earlier version did, which did not check addresses.
        let engine = open(folder.path());
        for statement in [without, query, &with] {
            of_boss(&engine, statement);
        }
        run(&engine, "CREATE TENANT acme; CREATE USER acme.boss ADMIN; CREATE USER admin ADMIN");
        let boss = token(&engine.operator().execute("CREATE TOKEN FOR acme.boss"));
        let admin = token(&engine.operator().execute("CREATE TOKEN FOR admin"));
        Service::shutdown(&*engine).expect("a stop");
        (admin, boss)
    };
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    let fixture = Fixture { folder, engine, server, admin };
    let (_, answer) = fixture.sql(&boss, "SHOW APPLICATIONS");
    let rows = answer["results"][0]["rows"].as_array().expect("rows");
    let runs: Vec<bool> = rows.iter().map(|row| row[1] == "running").collect();
    assert_eq!(runs, [false, true], "{answer}");
    let (status, error) = fixture.sql(&boss, &query.replace(" q ", " r "));
    let message = error["message"].as_str().unwrap_or_default();
    assert_eq!(status, 409, "{error}");
    assert!(message.contains("its topic '{input}' is not one of the tenant 'acme'"), "{error}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("'mqtt:acme/...'")), "{error}");
    let (status, answer) = fixture.sql(&boss, "CREATE QUERY r FROM APPLICATION b WITH (n => 1)");
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn late_events_and_dead_letters_of_a_tenant_go_to_its_topics() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN");
    let boss = fixture.token("acme.boss");
    let application = |options: &str| {
        format!(
            "CREATE OR REPLACE APPLICATION a INPUT t (v BIGINT, ts TIMESTAMP EVENT TIME) FROM 'mqtt:acme/in' \
             FORMAT JSON {options} OUTPUT 'mqtt:acme/out' FORMAT JSON AS SELECT v FROM t"
        )
    };
    assert_eq!(fixture.sql(&boss, &application("").replace("OR REPLACE ", "")).0, 200);
    for option in ["late", "dead_letter"] {
        let refused = [
            application(&format!("WITH ({option} => 'MQTT:bank/letters')")),
            format!("ALTER APPLICATION a SET (lateness => INTERVAL '1 second', {option} => 'mqtt:bank/letters')"),
            format!("ALTER APPLICATION a INPUT t SET ({option} => 'mqtt:bank/letters')"),
        ];
        for statement in refused {
            let (status, error) = fixture.sql(&boss, &statement);
            let message = "'boss' may not publish to the topic 'bank/letters'";
            assert_eq!((status, &error["message"]), (403, &json!(message)), "{statement}: {error}");
            assert!(error["column"].as_u64().is_some_and(|column| column > 20), "{error}");
        }
        let own = format!("ALTER APPLICATION a SET ({option} => 'mqtt:acme/letters')");
        let (status, answer) = fixture.sql(&boss, &own);
        assert_eq!(status, 200, "{own}: {answer}");
    }
}

#[test]
fn an_operator_looks_into_a_tenant_and_drops_it_with_all_that_it_has() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN; CREATE USER acme.ann");
    let boss = fixture.token("acme.boss");
    let own = "CREATE SOURCE numbers FROM 'sensors:' WITH (rate => 10); CREATE SINK none TO 'blackhole:'; \
               CREATE VIEW warm AS SELECT * FROM numbers; CREATE VIEW hot AS SELECT * FROM warm; \
               CREATE TABLE rooms (id TEXT NOT NULL) FROM 'data:,id' FORMAT CSV (header => true); \
               CREATE QUERY big AS SELECT device FROM hot INTO none; \
               CREATE APPLICATION copy (home TEXT) INPUT t (v BIGINT) FROM 'mqtt:acme/in/{home}' FORMAT JSON \
               OUTPUT 'mqtt:acme/out/{home}' FORMAT JSON AS SELECT v FROM t; \
               CREATE QUERY small FROM APPLICATION copy WITH (home => 'a')";
    assert_eq!(fixture.sql(&boss, own).0, 200);
    assert_eq!(ask(&fixture.server, &boss, "PUT", "/api/v1/secrets/key", r#"{"value":"rose"}"#).0, 200);
    let url = fixture.server.url();
    let by = |token: &str, arguments: &[&str]| {
        let output = rivulet(arguments, &url, token);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), format!("{out}{err}"))
    };
    let (is_done, shown) = by(&fixture.admin, &["query", "list", "--as-tenant", "acme"]);
    assert!(is_done && shown.contains("small") && shown.contains("big"), "{shown}");
    let (is_done, said) = by(&fixture.admin, &["query", "pause", "small", "--as-tenant", "acme"]);
    assert!(is_done, "{said}");
    let (_, shown) = by(&fixture.admin, &["user", "list", "--as-tenant", "acme"]);
    assert!(shown.contains("boss") && !shown.contains("default"), "{shown}");
    let (is_done, said) = by(&fixture.admin, &["tenant", "drop", "acme", "--cascade", "--as-tenant", "acme"]);
    assert!(!is_done && said.contains("leave out --as-tenant"), "{said}");
    let (is_done, said) = by(&fixture.admin, &["user", "create", "acme.eve", "--admin"]);
    assert!(!is_done && said.contains("`eve --tenant acme`"), "{said}");
    // A session and a file, which the next tenant of this name must not have.
    let (mut sleeper, _) = Mqtt::resume(fixture.broker(), &boss, "c1");
    assert_eq!(sleeper.subscribe_with(["acme/x", "acme/y"], 1), [1, 1]);
    drop(sleeper);
    let files = fixture.folder.path().join("data/tenants/acme/files");
    std::fs::create_dir_all(&files).expect("its folder");
    std::fs::write(files.join("left.csv"), "a").expect("a file");
    // Nobody else does, and of no other tenant.
    let ann = fixture.token("acme.ann");
    let bob = fixture.user("bob", &["read ON QUERY"]);
    for (token, tenant, why) in [
        (&ann, "default", "may not ask in the place of"),
        (&bob, "acme", "may not ask in the place of"),
        (&boss, "zoo", "may not ask in the place of"),
        (&fixture.admin, "zoo", "there is no tenant 'zoo'"),
    ] {
        let (is_done, said) = by(token, &["query", "list", "--as-tenant", tenant]);
        assert!(!is_done && said.contains(why), "{tenant}: {said}");
    }
    let (status, error) = fixture.sql(&fixture.admin, "DROP TENANT acme");
    assert!(status == 409 && error["hint"].as_str().is_some_and(|hint| hint.contains("CASCADE")), "{error}");
    let dropped = fixture.sql(&fixture.admin, "DROP TENANT acme CASCADE").1.to_string();
    assert!(dropped.contains("acme~1") && fixture.folder.path().join("data/tenants/acme~1/files/left.csv").exists());
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN");
    let next = fixture.token("acme.boss");
    let (_, is_present) = Mqtt::resume(fixture.broker(), &next, "c1");
    assert!(!is_present, "the session of before has ended");
    let (_, audit) = ask(&fixture.server, &next, "GET", "/api/v1/audit?limit=1000", "");
    assert!(!audit.to_string().contains("small"), "{audit}");
    let audit = || ask(&fixture.server, &fixture.admin, "GET", "/api/v1/audit?limit=1000", "").1.to_string();
    wait_until("each drop to be written", || {
        ["DROP USER acme.boss", "DROP QUERY big", "DROP APPLICATION copy CASCADE", "PAUSE QUERY small"]
            .iter()
            .all(|statement| audit().contains(statement))
    });
    for list in ["QUERIES", "APPLICATIONS", "SOURCES", "SINKS", "VIEWS", "TABLES", "SECRETS"] {
        let (status, answer) = fixture.sql(&next, &format!("SHOW {list}"));
        assert_eq!((status, &answer["results"][0]["rows"]), (200, &json!([])), "{list}");
    }
    assert_eq!(fixture.sql(&boss, "SHOW QUERIES").0, 401, "its token is gone");
}

#[test]
fn a_tenant_with_secrets_is_not_dropped() {
    let fixture = Fixture::new();
    fixture.done("CREATE TENANT acme; CREATE USER acme.boss ADMIN");
    let boss = fixture.token("acme.boss");
    assert_eq!(fixture.sql(&boss, "CREATE SECRET hook_token AS 'rose'").0, 200);
    let (status, error) = fixture.sql(&fixture.admin, "DROP TENANT acme");
    assert_eq!((status, &error["message"]), (409, &json!("the tenant 'acme' has the secret 'hook_token'")), "{error}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("CASCADE drops all")), "{error}");
    assert_eq!(fixture.sql(&boss, "DROP SECRET hook_token").0, 200);
    fixture.done("DROP USER acme.boss; DROP TENANT acme");
}

#[test]
fn the_next_tenant_of_a_name_gets_no_file_and_no_retained_message() {
    let folder = TempDir::new().expect("a folder");
    let mut config = configuration(folder.path());
    config.files.allow = vec![folder.path().join("own/{tenant}/in"), folder.path().join("all")];
    std::fs::create_dir(folder.path().join("all")).expect("a folder");
    std::fs::write(folder.path().join("all/rows.csv"), "1").expect("a file");
    let fixture = Fixture::with(folder, config);
    fixture.done("CREATE TENANT acme; CREATE TENANT acme_2");
    let (mut client, code) = Mqtt::connect(fixture.broker(), 5, &fixture.admin, "c", None);
    assert_eq!(code, 0);
    // More than are removed in one go.
    let topics = (0..300).map(|number| format!("acme/a/{number}"));
    topics.chain(["acme", "acme_2/a", "acme2"].map(Into::into)).for_each(|topic| client.retain(&topic, "1"));
    let path = fixture.folder.path();
    for used in [path.join("own/acme/in"), path.join("data/tenants/acme/files")] {
        std::fs::create_dir_all(used.join("below")).expect("a folder");
        let (status, error) = fixture.sql(&fixture.admin, "DROP TENANT acme");
        let message = format!("the tenant 'acme' has files in {}", used.display());
        assert_eq!((status, &error["message"], &error["column"]), (409, &json!(message), &json!(13)), "{error}");
        assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("move all that is in")), "{error}");
        std::fs::remove_dir(used.join("below")).expect("an empty folder");
    }
    // What there is below the name of no tenant is of the default one.
    fixture.done("DROP TENANT IF EXISTS acme2; DROP TENANT acme; CREATE TENANT acme");
    let (mut reader, _) = Mqtt::connect(fixture.broker(), 5, &fixture.admin, "r", None);
    reader.subscribe(["acme/#", "acme_2/#"]);
    assert_eq!(reader.next().0, "acme_2/a");
    reader.subscribe(["acme2", "none"]);
    assert_eq!(reader.next().0, "acme2");
}

#[test]
fn one_tenant_leaves_half_of_the_broker_to_others() {
    let folder = TempDir::new().expect("a folder");
    let mut config = configuration(folder.path());
    let limits = &mut config.embedded.as_mut().expect("a broker").limits;
    (limits.connections_max, limits.subscriptions_max, limits.retained_messages_max) = (8, 8, 8);
    let fixture = Fixture::with(folder, config);
    fixture.done("CREATE TENANT acme; CREATE TENANT other; CREATE USER acme.eve ADMIN; CREATE USER other.bob ADMIN");
    let [eve, bob] = ["acme.eve", "other.bob"].map(|name| fixture.token(name));
    let connect = |host: u8, token: &str| {
        let stream = connect_from([127, 0, 0, host], fixture.broker());
        Mqtt::connect_by(stream, 5, ("user", token), &format!("c{host}"), None)
    };
    // From twelve addresses.
    let (mut clients, codes): (Vec<Mqtt>, Vec<u8>) = (1..=12).map(|host| connect(host, &eve)).unzip();
    assert_eq!(codes, [&[0; 4][..], &[0x97; 8]].concat());
    let granted = |client: &mut Mqtt, tenant: &str| client.subscribe([&format!("{tenant}/+"), &format!("{tenant}/#")]);
    assert_eq!([0, 1, 2].map(|place| granted(&mut clients[place], "acme")), [[0, 0], [0, 0], [0x97, 0x97]]);
    (0..20).for_each(|number| clients[3].retain(&format!("acme/{number}"), "1"));
    let (mut bobs, code) = connect(1, &bob);
    assert_eq!((code, granted(&mut bobs, "other")), (0, [0, 0]));
    let (mut reader, code) = connect(2, &bob);
    reader.retain("other/1", "1");
    assert_eq!((code, reader.subscribe(["other/1", "other/none"])), (0, [0, 0]));
    assert_eq!(reader.next().0, "other/1");
}

#[test]
fn strangers_are_told_the_state_of_the_server_and_no_names() {
    let fixture = Fixture::new();
    let rows = fixture.folder.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"n\":1}\n").expect("a file");
    // Nobody listens there.
    fixture.done(&format!(
        "CREATE SOURCE rows (n BIGINT) FROM 'file:{}' FORMAT JSON;
         CREATE SINK away TO 'http:127.0.0.1:1/hook' FORMAT JSON;
         CREATE QUERY billing AS SELECT n FROM rows INTO away;
         CREATE TENANT acme; CREATE USER acme.boss ADMIN",
        rows.display()
    ));
    let (looker, other) = (fixture.user("looker", &["read ON SERVER"]), fixture.user("other", &["read ON QUERY"]));
    let boss = fixture.token("acme.boss");
    let ready = |token: &str| ask(&fixture.server, token, "GET", "/health/ready", "");
    wait_until("the sink does not work", || ready("").1["status"] == "degraded");
    for (token, is_told) in [("", false), (&*other, false), (&*boss, false), (&*looker, true), (&*fixture.admin, true)]
    {
        let (status, health) = ready(token);
        assert_eq!(
            (status, &health["status"], &health["problem_count"]),
            (200, &json!("degraded"), &json!(1)),
            "{health}"
        );
        assert_eq!(health.to_string().contains("billing"), is_told, "{health}");
    }
    assert_eq!(ready("rvt_nobodys").0, 401);
    let refused = fixture.engine.access().requests_refused();
    assert_eq!(refused, 0, "who is told less is not refused");
    // Why it is not ready is not for strangers either.
    fixture.engine.announce_stop();
    let (status, error) = ready("");
    assert_eq!((status, &error["message"]), (503, &json!("events are not being processed")), "{error}");
    assert_eq!(ready(&looker).1["message"], "the server is stopping");
}
