//! Quotas of tenants: each limit at its value and one above, two tenants beside each other, and what is kept over a
//! restart. Whoever is slowed down loses nothing, and nobody else is.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rivulet::config::Config;
use rivulet::engine::Engine;
use rivulet::service::{AccountAnswer, Caller, Service};
use rivulet_sql::AccountStatement;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::callers::{Mqtt, ask};
use super::engine::configuration;
use super::support::{AsOperator, TestServer, exchange, request, wait_until};

/// Events that one who is over a rate sends: at the rates here they take much longer than any test.
const MANY: u32 = 1_500;

/// A server with an administrator and a tenant, which has an administrator of its own.
struct Fixture {
    folder: TempDir,
    engine: Arc<Engine>,
    server: TestServer,
    admin: String,
    boss: String,
}

fn token(engine: &Engine, user: &str) -> String {
    let answer = engine.operator().execute(&format!("CREATE TOKEN FOR {user}")).pop().expect("an answer");
    answer.expect("a token").rows[0][0].as_str().expect("text").to_owned()
}

fn run(engine: &Engine, script: &str) {
    for answer in engine.operator().execute(script) {
        answer.unwrap_or_else(|error| panic!("{script}: {error}"));
    }
}

/// An application of a tenant, or of the default one, that copies numbers.
fn copy(name: &str, of: &str, options: &str) -> String {
    format!(
        "CREATE APPLICATION {name} (home TEXT) INPUT t (v BIGINT) FROM 'mqtt:{of}/in/{{home}}' FORMAT JSON {options}
         OUTPUT 'mqtt:{of}/out/{{home}}' FORMAT JSON AS SELECT v FROM t"
    )
}

impl Fixture {
    fn new(limits: &str) -> Self {
        Self::with(limits, |_| {})
    }

    fn with(limits: &str, change: impl FnOnce(&mut Config)) -> Self {
        let folder = TempDir::new().expect("a folder");
        let mut config = configuration(folder.path());
        change(&mut config);
        let engine = Engine::open(config).expect("an engine");
        run(&engine, &format!("CREATE TENANT acme {limits}; CREATE USER acme.boss ADMIN; CREATE USER admin ADMIN"));
        // The last one closes the doors.
        let (boss, admin) = (token(&engine, "acme.boss"), token(&engine, "admin"));
        let server = TestServer::start(engine.clone());
        Self { folder, engine, server, admin, boss }
    }

    fn sql(&self, token: &str, script: &str) -> (u16, Value) {
        ask(&self.server, token, "POST", "/api/v1/sql", script)
    }

    fn done(&self, token: &str, script: &str) -> Value {
        let (status, answer) = self.sql(token, script);
        assert_eq!(status, 200, "{script}: {answer}");
        answer
    }

    /// The error of a script that a limit refuses, which names the limit and how to raise it.
    fn over(&self, token: &str, script: &str, limit: &str) -> String {
        let (status, error) = self.sql(token, script);
        is_over(status, &error, limit);
        error["message"].as_str().expect("a message").to_owned()
    }

    fn alter(&self, limits: &str) {
        self.done(&self.admin, &format!("ALTER TENANT acme SET ({limits})"));
    }

    fn broker(&self) -> SocketAddr {
        self.engine.embedded_broker_address().expect("a broker")
    }

    fn client(&self, token: &str, id: &str) -> Mqtt {
        let (client, code) = Mqtt::connect(self.broker(), 4, token, id, None);
        assert_eq!(code, 0);
        client
    }

    /// Events that queries of a caller's tenant have had.
    fn events(&self, token: &str) -> u64 {
        let (status, answer) = ask(&self.server, token, "GET", "/api/v1/status", "");
        assert_eq!(status, 200, "{answer}");
        answer["total"]["events"].as_u64().expect("a number")
    }

    /// How much the tenant uses of a limit, and may use.
    fn used(&self, limit: &str) -> (u64, Option<u64>) {
        let (_, answer) = ask(&self.server, &self.admin, "GET", "/api/v1/tenants", "");
        let limits = answer["limits"].as_array().expect("tenants");
        let acme = limits.iter().find(|one| one["name"] == "acme").expect("the tenant");
        let limit = &acme["limits"][limit];
        (limit["used"].as_u64().expect("how much is used"), limit["most"].as_u64())
    }

    /// A query of each of the two tenants that counts what comes.
    fn with_queries(self, options: &str) -> Self {
        self.done(&self.boss, &copy("copy", "acme", options));
        self.done(&self.boss, "CREATE QUERY q FROM APPLICATION copy WITH (home => 'a')");
        self.done(&self.admin, &copy("copy", "own", options));
        self.done(&self.admin, "CREATE QUERY q FROM APPLICATION copy WITH (home => 'a')");
        self
    }

    /// Another tenant sends and gets as ever.
    fn others_are_not_slowed_down(&self) {
        let before = self.events(&self.admin);
        self.client(&self.admin, "quiet").flood("own/in/a", MANY);
        wait_until("the events of another tenant", || self.events(&self.admin) == before + u64::from(MANY));
    }
}

fn is_over(status: u16, error: &Value, limit: &str) {
    assert_eq!((status, &error["kind"]), (429, &json!("limit_reached")), "{error}");
    let hint = error["hint"].as_str().expect("a hint");
    assert!(hint.contains(&format!("ALTER TENANT acme SET ({limit} => ...)")), "{hint}");
}

const SOURCE: &str = "CREATE SOURCE numbers FROM 'sensors:' WITH (rate => 10); CREATE SINK nowhere TO 'blackhole:'";

/// A big query with a stage that runs in several tasks.
fn big(name: &str) -> String {
    format!(
        "CREATE QUERY {name} AS SELECT device, count(*) AS n FROM numbers \
         GROUP BY device, tumble(ts, INTERVAL '1 second') INTO nowhere"
    )
}

#[test]
fn a_tenant_has_as_many_things_as_its_limits_say_and_not_one_more() {
    let fixture = Fixture::new("WITH (applications => 1, queries => 2, big_queries => 1)");
    let boss = fixture.boss.as_str();
    fixture.done(boss, &copy("one", "acme", ""));
    fixture.done(boss, &copy("one", "acme", ""));
    let message = fixture.over(boss, &copy("two", "acme", ""), "applications");
    assert_eq!(message, "the tenant 'acme' has 1 application, and may have 1");
    // An upgrade is no other application.
    fixture.done(
        boss,
        &copy("one", "acme", "").replace("CREATE", "CREATE OR REPLACE").replace("SELECT v", "SELECT v + 1 AS v"),
    );
    let create = |name: &str| format!("CREATE QUERY {name} FROM APPLICATION one WITH (home => '{name}')");
    fixture.done(boss, &format!("{}; {}", create("a"), create("b")));
    let message = fixture.over(boss, &create("c"), "queries");
    assert_eq!(message, "the tenant 'acme' has 2 queries, and may have 2");
    assert_eq!(fixture.used("queries"), (2, Some(2)));
    fixture.done(boss, &format!("DROP QUERY a; {}", create("c")));
    fixture.over(boss, &create("d"), "queries");
    fixture.done(boss, SOURCE);
    fixture.done(boss, &big("big"));
    let message = fixture.over(boss, &big("bigger"), "big_queries");
    assert_eq!(message, "the tenant 'acme' has 1 big query, and may have 1");
    assert_eq!((fixture.used("applications"), fixture.used("big_queries")), ((1, Some(1)), (1, Some(1))));
    // Of a submission in bulk as many are created as there is room for.
    fixture.alter("queries => 4");
    let line = |name: u32| {
        format!("{{\"name\":\"m{name}\",\"application\":\"one\",\"parameters\":{{\"home\":\"{name}\"}}}}\n")
    };
    let body: String = (0..5).map(line).collect();
    let headers = format!("authorization: Bearer {boss}\r\n");
    let (status, answers) = exchange(fixture.server.address, &request("POST", "/api/v1/queries/bulk", &headers, &body));
    assert_eq!(
        (status, answers.matches("limit_reached").count(), answers.matches("\"id\"").count()),
        (200, 3, 2),
        "{answers}"
    );
    // Others are not concerned.
    let admin = fixture.admin.as_str();
    for number in 0..3 {
        fixture.done(admin, &copy(&format!("a{number}"), "own", ""));
        fixture.done(admin, &format!("CREATE QUERY q{number} FROM APPLICATION a0 WITH (home => 'a')"));
    }
    fixture.done(admin, &format!("{SOURCE}; {}; {}", big("big"), big("bigger")));
    fixture.alter("queries => NULL, applications => NULL");
    fixture.done(admin, "ALTER TENANT acme RESET (big_queries)");
    fixture.done(boss, &format!("{}; {}; {}", create("d"), copy("two", "acme", ""), big("bigger")));
    let (_, metrics) = exchange(
        fixture.server.address,
        &request("GET", "/metrics", &format!("authorization: Bearer {admin}\r\n"), ""),
    );
    assert!(metrics.contains("rivulet_tenant_used{tenant=\"acme\",limit=\"queries\"} 5"), "{metrics}");
    assert!(metrics.contains("rivulet_tenant_limit_reached_total{tenant=\"acme\",limit=\"queries\"} 5"), "{metrics}");
}

#[test]
fn limits_that_are_none_are_refused_with_their_place() {
    let fixture = Fixture::new("");
    for (statement, status, message) in [
        ("ALTER TENANT acme SET (querys => 1)", 400, "there is no limit 'querys'"),
        ("ALTER TENANT acme SET (events_per_second => 0)", 400, "a whole number from 1 to"),
        ("ALTER TENANT acme SET (queries => 9007199254740993)", 400, "a whole number from 0 to"),
        ("ALTER TENANT zoo SET (queries => 1)", 404, "there is no tenant 'zoo'"),
        ("CREATE TENANT zoo WITH (quarks => 1)", 400, "there is no limit 'quarks'"),
    ] {
        let (found, error) = fixture.sql(&fixture.admin, statement);
        assert_eq!(found, status, "{statement}: {error}");
        assert!(error["message"].as_str().expect("a message").contains(message), "{error}");
        assert!(error["column"].as_u64().is_some(), "{error}");
    }
    let (status, _) = fixture.sql(&fixture.boss, "ALTER TENANT acme SET (queries => 1)");
    assert_eq!(status, 403, "a tenant does not raise its own limits");
    let patch = |body: &str| ask(&fixture.server, &fixture.admin, "PATCH", "/api/v1/tenants/acme", body);
    assert_eq!(patch(r#"{"queries": 7, "streams": 1}"#).0, 200);
    assert_eq!(patch(r#"{"streams": null}"#).0, 200);
    assert_eq!((fixture.used("queries"), fixture.used("streams")), ((0, Some(7)), (0, None)));
    assert_eq!(patch(r#"{"queries": -1}"#).0, 400);
}

#[test]
fn limits_are_there_after_a_restart_and_go_with_their_tenant() {
    let folder = TempDir::new().expect("a folder");
    let open = || Engine::open(configuration(folder.path())).expect("an engine");
    let limits = |engine: &Engine| match engine.operator().account(&AccountStatement::ShowTenants) {
        Ok(AccountAnswer::Tenants(tenants)) => {
            let limited = |one: &rivulet::service::TenantInfo| {
                let limits = one.limits.iter().filter_map(|one| Some(format!("{}={}", one.limit.name(), one.most?)));
                format!("{}: {}", one.name, limits.collect::<Vec<_>>().join(" "))
            };
            tenants.iter().map(limited).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let expected = ["default: streams=7", "acme: queries=2 state_bytes=1048576", "zoo: "];
    {
        let engine = open();
        run(&engine, "CREATE TENANT acme WITH (queries => 2, state_bytes => '1 MiB', streams => 3); CREATE TENANT zoo");
        run(&engine, "ALTER TENANT default SET (streams => 7); ALTER TENANT acme RESET (streams)");
        assert_eq!(limits(&engine), expected);
    }
    let engine = open();
    assert_eq!(limits(&engine), expected);
    run(&engine, "DROP TENANT acme; CREATE TENANT acme");
    assert_eq!(limits(&engine), ["default: streams=7", "acme: ", "zoo: "]);
    drop(engine);
    assert_eq!(limits(&open()), ["default: streams=7", "acme: ", "zoo: "]);
}

#[test]
fn limits_of_all_tenants_come_from_the_configuration_and_change_with_it() {
    let fixture =
        Fixture::with("WITH (streams => 5)", |config| config.tenant_limits = vec![("queries", 1), ("streams", 2)]);
    assert_eq!((fixture.used("queries").1, fixture.used("streams").1), (Some(1), Some(5)));
    let boss = fixture.boss.as_str();
    fixture.done(boss, &copy("copy", "acme", ""));
    let create = |name: &str| format!("CREATE QUERY {name} FROM APPLICATION copy WITH (home => '{name}')");
    fixture.done(boss, &create("a"));
    fixture.over(boss, &create("b"), "queries");
    let mut config = configuration(fixture.folder.path());
    config.tenant_limits = vec![("queries", 2)];
    fixture.engine.take_over(&config).expect("a configuration");
    fixture.done(boss, &create("b"));
    fixture.over(boss, &create("c"), "queries");
    // The tenant of the person who runs the server has none of these.
    fixture.done(
        &fixture.admin,
        &format!("{}; {}; {}; {}", copy("copy", "own", ""), create("a"), create("b"), create("c")),
    );
}

#[test]
fn a_big_query_runs_on_as_many_workers_as_its_tenant_may_use() {
    let fixture = Fixture::with("WITH (workers => 1)", |config| config.workers.threads = 4);
    let tasks = |token: &str| {
        fixture.done(token, &format!("{SOURCE}; {}", big("big")));
        let (_, answer) = ask(&fixture.server, token, "GET", "/api/v1/queries/big", "");
        answer["big"]["tasks"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    let (limited, free) = (tasks(&fixture.boss), tasks(&fixture.admin));
    assert!(limited < free, "{limited} and {free} tasks");
    assert_eq!(fixture.used("workers"), (1, Some(1)));
}

#[test]
fn a_tenant_watches_as_many_streams_as_its_limit_says() {
    let fixture = Fixture::new("WITH (streams => 1)").with_queries("");
    let watch = |token: &str| {
        let headers = format!("authorization: Bearer {token}\r\n");
        let mut stream = TcpStream::connect(fixture.server.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(300))).expect("a timeout");
        stream.write_all(request("GET", "/api/v1/queries/q/results", &headers, "").as_bytes()).expect("a request");
        let mut head = [0; 12];
        stream.read_exact(&mut head).expect("an answer");
        (String::from_utf8_lossy(&head[9..]).into_owned(), stream)
    };
    let (status, first) = watch(&fixture.boss);
    assert_eq!((status.as_str(), fixture.used("streams")), ("200", (1, Some(1))));
    let (status, error) = ask(&fixture.server, &fixture.boss, "GET", "/api/v1/queries/q/results", "");
    is_over(status, &error, "streams");
    let (status, error) = ask(&fixture.server, &fixture.boss, "POST", "/api/v1/select", "SELECT 1 AS one");
    is_over(status, &error, "streams");
    let others: Vec<_> = (0..3).map(|_| watch(&fixture.admin)).collect();
    assert!(others.iter().all(|(status, _)| status == "200"));
    drop(first);
    wait_until("the place of the first", || fixture.used("streams").0 == 0);
    assert_eq!(watch(&fixture.boss).0, "200");
}

#[test]
fn requests_over_the_rate_are_answered_with_429_and_when_to_come_again() {
    let fixture = Fixture::new("WITH (requests_per_second => 1)");
    let ask_as = |token: &str| {
        let headers = format!("authorization: Bearer {token}\r\n");
        exchange(fixture.server.address, &request("GET", "/api/v1/applications", &headers, ""))
    };
    let (status, text) = (0..50).map(|_| ask_as(&fixture.boss)).find(|(status, _)| *status != 200).expect("too many");
    assert_eq!(status, 429, "{text}");
    let head_of = |_| {
        let mut stream = TcpStream::connect(fixture.server.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(300))).expect("a timeout");
        let headers = format!("authorization: Bearer {}\r\n", fixture.boss);
        stream.write_all(request("GET", "/api/v1/applications", &headers, "").as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.to_lowercase()
    };
    let refused = (0..50).map(head_of).find(|answer| answer.starts_with("http/1.1 429")).expect("too many");
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    assert!(text.contains("the tenant 'acme' may send 1 request a second"), "{text}");
    assert!(text.contains("ALTER TENANT acme SET (requests_per_second => ...)"), "{text}");
    assert!((0..50).all(|_| ask_as(&fixture.admin).0 == 200), "another tenant asks as often as it likes");
    fixture.alter("requests_per_second => NULL");
    assert!((0..50).all(|_| ask_as(&fixture.boss).0 == 200));
}

#[test]
fn a_script_counts_as_its_statements() {
    // A second is enough for no more than a few requests, however slow the machine is.
    let fixture = Fixture::new("WITH (requests_per_second => 1)");
    let script = "SHOW QUERIES;".repeat(1_000);
    let answer = (0..50).map(|_| fixture.sql(&fixture.boss, &script)).find(|(status, _)| *status != 429);
    let (status, answer) = answer.expect("a script is not refused for its length");
    assert_eq!((status, answer["results"].as_array().map(Vec::len)), (200, Some(1_000)), "{answer}");
    let (status, text) = fixture.sql(&fixture.boss, "SHOW QUERIES");
    assert_eq!(status, 429, "{text}");
    assert_eq!(fixture.sql(&fixture.admin, &script).0, 200, "another tenant has no limit");
    assert_eq!(fixture.sql(&fixture.admin, &script).0, 200);
}

#[test]
fn a_tenant_has_a_weight_which_is_no_limit() {
    let fixture = Fixture::new("WITH (weight => 200)");
    let weight = || {
        let (_, answer) = ask(&fixture.server, &fixture.admin, "GET", "/api/v1/tenants", "");
        let tenants = answer["limits"].as_array().expect("tenants").iter();
        tenants.filter(|one| one["name"] == "acme").map(|one| one["limits"]["weight"].clone()).next()
    };
    assert_eq!(weight(), Some(json!({ "most": 200 })));
    fixture.alter("weight => NULL");
    assert_eq!(weight(), Some(json!({})));
    for (weight, status) in [(0, 400), (10_000, 200), (10_001, 400)] {
        assert_eq!(fixture.sql(&fixture.admin, &format!("ALTER TENANT acme SET (weight => {weight})")).0, status);
    }
}

#[test]
fn a_publisher_over_its_rate_is_slowed_down_loses_nothing_and_slows_down_nobody_else() {
    let fixture = Fixture::new("WITH (events_per_second => 100)").with_queries("");
    let mut one = fixture.client(&fixture.boss, "one");
    let mut other = fixture.client(&fixture.boss, "other");
    one.flood("acme/in/a", MANY);
    other.flood("acme/in/a", MANY);
    // One that has gone does not lose what it has sent.
    drop(one);
    fixture.others_are_not_slowed_down();
    let so_far = fixture.events(&fixture.boss);
    assert!(so_far < u64::from(2 * MANY), "{so_far} events within the time of those of another tenant");
    wait_until("the bucket to be used up", || fixture.events(&fixture.boss) >= 100);
    fixture.alter("events_per_second => NULL");
    wait_until("all events", || fixture.events(&fixture.boss) == u64::from(2 * MANY));
    assert_eq!(other.publish("acme/in/a", "{\"v\": 1}"), 0);
    wait_until("the last event", || fixture.events(&fixture.boss) == u64::from(2 * MANY) + 1);
}

#[test]
fn a_publisher_over_its_bytes_is_slowed_down_and_loses_nothing() {
    let fixture = Fixture::new("WITH (bytes_per_second => 1000)").with_queries("");
    fixture.client(&fixture.boss, "one").flood("acme/in/a", MANY);
    fixture.others_are_not_slowed_down();
    assert!(fixture.events(&fixture.boss) < u64::from(MANY));
    fixture.alter("bytes_per_second => NULL");
    wait_until("all events", || fixture.events(&fixture.boss) == u64::from(MANY));
}

#[test]
fn a_subscriber_over_its_rate_gets_later_what_others_get_at_once() {
    const MESSAGES: u32 = 500;
    let fixture = Fixture::new("WITH (bytes_out_per_second => 100)");
    let mut slow = fixture.client(&fixture.boss, "slow");
    let mut quick = fixture.client(&fixture.admin, "quick");
    assert_eq!(slow.subscribe(["acme/a", "acme/b"]), [0, 0]);
    assert_eq!(quick.subscribe(["acme/a", "acme/b"]), [0, 0]);
    fixture.client(&fixture.admin, "sender").flood("acme/a", MESSAGES);
    let payload = |number: u32| ("acme/a".to_owned(), format!("{{\"v\": {number}}}"));
    (0..MESSAGES).for_each(|number| assert_eq!(quick.next(), payload(number)));
    fixture.alter("bytes_out_per_second => NULL");
    (0..MESSAGES).for_each(|number| assert_eq!(slow.next(), payload(number)));
}

#[test]
fn a_tenant_whose_queries_hold_too_much_memory_creates_nothing_and_loses_no_event() {
    let fixture = Fixture::new("").with_queries("");
    fixture.alter("state_bytes => 1");
    let create = "CREATE QUERY r FROM APPLICATION copy WITH (home => 'b')";
    wait_until("a look at its memory", || {
        fixture.sql(&fixture.boss, create).0 == 429 || {
            fixture.done(&fixture.boss, "DROP QUERY r");
            false
        }
    });
    let message = fixture.over(&fixture.boss, create, "state_bytes");
    assert!(message.contains("bytes, and may hold 1"), "{message}");
    fixture.client(&fixture.boss, "one").flood("acme/in/a", MANY);
    fixture.others_are_not_slowed_down();
    assert_eq!(fixture.events(&fixture.boss), 0, "it is not read");
    fixture.alter("state_bytes => '1 GiB'");
    wait_until("all events", || fixture.events(&fixture.boss) == u64::from(MANY));
    fixture.done(&fixture.boss, create);
}

#[test]
fn tables_of_a_tenant_count_as_its_memory() {
    let fixture = Fixture::new("WITH (state_bytes => '1 GiB')").with_queries("");
    wait_until("a look at its memory", || fixture.used("state_bytes").0 > 0);
    let (boss, of_queries) = (&fixture.boss, fixture.used("state_bytes").0);
    fixture.alter(&format!("state_bytes => {}", of_queries + (1 << 20)));
    // Some 250 KB each.
    let rows: String = (0..8_000).map(|room| format!("{room},floor {room}\n")).collect();
    let table = |name: &str| format!("CREATE TABLE {name} (room BIGINT, floor TEXT) FROM 'data:,{rows}' FORMAT CSV");
    let created = (0..20).take_while(|n| fixture.sql(boss, &table(&format!("t{n}"))).0 == 200).count();
    assert!((3..=5).contains(&created), "{created}");
    let message = fixture.over(boss, &table("more"), "state_bytes");
    assert!(message.contains("the table 'more' takes") && message.contains("may have"), "{message}");
    wait_until("a look at its memory", || fixture.used("state_bytes").0 > of_queries + (700 << 10));
    // One that takes the place of another one needs no more than the difference.
    let other = table("t0").replace("CREATE", "CREATE OR REPLACE").replace("7999,floor 7999", "7999,floor");
    fixture.done(boss, &other);
    // Above the limit because of tables: no more is created, and events are read.
    fixture.alter(&format!("state_bytes => {}", of_queries + (600 << 10)));
    let create = "CREATE QUERY r FROM APPLICATION copy WITH (home => 'b')";
    wait_until("a look at its memory", || {
        fixture.sql(boss, create).0 == 429 || {
            fixture.done(boss, "DROP QUERY r");
            false
        }
    });
    fixture.client(boss, "one").flood("acme/in/a", MANY);
    wait_until("all events", || fixture.events(boss) == u64::from(MANY));
    (0..created).for_each(|n| drop(fixture.done(boss, &format!("DROP TABLE t{n}"))));
    wait_until("a look at its memory", || fixture.sql(boss, create).0 == 200);
}

#[test]
fn a_tenant_with_too_much_in_the_log_waits_and_loses_nothing() {
    let fixture = Fixture::new("WITH (log_bytes => 2000)").with_queries("WITH (durability => 'log')");
    fixture.client(&fixture.boss, "one").flood("acme/in/a", MANY);
    wait_until("the log has as much as it may", || fixture.used("log_bytes").0 >= 2_000);
    fixture.others_are_not_slowed_down();
    let (used, most) = fixture.used("log_bytes");
    assert!(used < 2_100 && most == Some(2_000), "{used}");
    assert!(fixture.events(&fixture.boss) < u64::from(MANY));
    fixture.alter("log_bytes => NULL");
    wait_until("all events", || fixture.events(&fixture.boss) == u64::from(MANY));
}

#[test]
fn files_of_a_tenant_take_no_more_than_its_limit_and_leave_room_on_the_disk() {
    const MOST: u64 = 1 << 20;
    let fixture = Fixture::with(&format!("WITH (file_bytes => {MOST})"), |config| config.files.allow.clear());
    let boss = fixture.boss.as_str();
    fixture.done(boss, "CREATE SOURCE numbers FROM 'sensors:'; CREATE SINK out TO 'file:out.jsonl' FORMAT JSON");
    fixture.done(boss, "CREATE QUERY writes AS SELECT device FROM numbers INTO out");
    let query = |fixture: &Fixture| {
        let (status, answer) = ask(&fixture.server, boss, "GET", "/api/v1/queries/writes", "");
        assert_eq!(status, 200, "{answer}");
        (
            answer["state"].as_str().unwrap_or_default().to_owned(),
            answer["big"]["reason"].as_str().unwrap_or_default().to_owned(),
        )
    };
    wait_until("the query fails", || query(&fixture).0 == "failed");
    let reason = query(&fixture).1;
    assert!(reason.contains("the folders of the tenant 'acme' have") && reason.contains("file_bytes"), "{reason}");
    let (used, most) = fixture.used("file_bytes");
    assert!(used <= MOST && most == Some(MOST), "{used}");
    let folder = fixture.folder.path().join("data/tenants/acme/files");
    let bytes = |folder: &Path| {
        let files = std::fs::read_dir(folder).expect("its folder").flatten();
        files.map(|file| file.metadata().map_or(0, |known| known.len())).sum::<u64>()
    };
    assert!(bytes(&folder) <= MOST, "{}", bytes(&folder));
    // Another tenant writes as ever.
    fixture
        .done(&fixture.admin, "CREATE SOURCE numbers FROM 'sensors:'; CREATE SINK out TO 'file:out.jsonl' FORMAT JSON");
    fixture.done(&fixture.admin, "CREATE QUERY writes AS SELECT device FROM numbers INTO out");
    let other = fixture.folder.path().join("data/files");
    wait_until("a file of another tenant", || bytes(&other) > MOST);
    fixture.done(&fixture.admin, "DROP QUERY writes");
    // Files that are removed count no more.
    fixture.alter(&format!("file_bytes => {}", 4 * MOST));
    fixture.done(boss, "RESUME QUERY writes");
    wait_until("the query fails again", || query(&fixture).0 == "failed");
    assert!(bytes(&folder) <= 4 * MOST, "{}", bytes(&folder));
}

#[test]
fn files_leave_room_on_the_disk_for_the_server() {
    let fixture = Fixture::with("", |config| {
        config.files.allow.clear();
        config.files.free_bytes_min = 1 << 60;
    });
    let boss = fixture.boss.as_str();
    fixture.done(boss, "CREATE SOURCE numbers FROM 'sensors:'; CREATE SINK out TO 'file:out.jsonl' FORMAT JSON");
    fixture.done(boss, "CREATE QUERY writes AS SELECT device FROM numbers INTO out");
    let query = || ask(&fixture.server, boss, "GET", "/api/v1/queries/writes", "").1;
    wait_until("the query fails", || query()["state"] == "failed");
    let reason = query()["big"]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("files.free_bytes_min keeps") && reason.contains("; make room"), "{reason}");
}

#[test]
fn without_accounts_the_limits_of_the_default_tenant_count() {
    let folder = TempDir::new().expect("a folder");
    let engine = Engine::open(configuration(folder.path())).expect("an engine");
    run(&engine, &format!("{}; ALTER TENANT default SET (queries => 1)", copy("copy", "own", "")));
    let operator = engine.session(Caller::local_operator());
    let create =
        |name: &str| operator.execute(&format!("CREATE QUERY {name} FROM APPLICATION copy WITH (home => 'a')")).pop();
    assert!(create("a").is_some_and(|answer| answer.is_ok()));
    let error = create("b").expect("an answer").expect_err("one more");
    assert!(error.hint.expect("a hint").contains("ALTER TENANT default SET (queries => ...)"));
}
