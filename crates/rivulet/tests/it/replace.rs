//! A new version of an application takes over its queries with their state. No event is lost or doubled, also after a
//! crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rivulet::engine::{Companion, Engine, Extensions};
use rivulet::service::{ErrorKind, ParameterValue, QueryRequest, ServiceError};
use serde_json::Value;
use tempfile::TempDir;

use super::alter::{open, run};
use super::engine::configuration;
use super::server::{Publisher, Server, free_port};
use super::support::AsOperator;

/// How long something may take that takes no time.
const PATIENCE: Duration = Duration::from_secs(300);

/// The steps between numbers, `factor` times.
fn steps(factor: &str) -> String {
    version(
        "id TEXT, output TEXT DEFAULT 'out'",
        "in/{id}",
        &format!("SELECT n, {factor}(n - lag(n)) AS step FROM numbers"),
    )
}

fn version(parameters: &str, input: &str, select: &str) -> String {
    format!(
        "APPLICATION steps ({parameters}) INPUT numbers (n BIGINT) FROM 'mqtt:{input}' FORMAT JSON \
         OUTPUT 'mqtt:{{output}}/{{id}}' FORMAT JSON AS {select}"
    )
}

/// All that is said of an error.
fn text(error: &ServiceError) -> String {
    format!("{error}; hint: {}", error.hint.as_deref().unwrap_or_default())
}

fn replace(engine: &Engine, version: &str) -> Result<String, ServiceError> {
    run(engine, &format!("CREATE OR REPLACE {version}"))
}

fn create(engine: &Engine, id: &str) {
    run(engine, &format!("CREATE QUERY {id} FROM APPLICATION steps WITH (id => '{id}')")).expect("a query");
}

/// Who sends numbers, and reads what comes of them.
struct Client {
    listener: Publisher,
    publisher: Publisher,
}

impl Client {
    fn of(engine: &Engine) -> Self {
        let broker = engine.embedded_broker_address().expect("a broker");
        let mut listener = Publisher::connect(broker);
        listener.subscribe("out/#");
        Self { listener, publisher: Publisher::connect(broker) }
    }

    fn send(&mut self, topic: &str, n: i64) {
        self.publisher.publish(topic, &format!("{{\"n\": {n}}}"));
    }

    fn next(&mut self) -> Value {
        self.listener.next_json().1
    }

    fn step(&mut self, id: &str, n: i64) -> Value {
        self.send(&format!("in/{id}"), n);
        self.next()["step"].clone()
    }
}

#[test]
fn a_new_version_goes_on_with_the_state_of_the_one_before() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        assert_eq!(replace(&engine, &steps("")).expect("a new one"), "application steps created");
        for id in ["a", "b", "c"] {
            create(&engine, id);
        }
        let mut client = Client::of(&engine);
        assert_eq!((client.step("a", 1), client.step("b", 100)), (Value::Null, Value::Null));
        run(&engine, "PAUSE QUERY b").expect("paused");
        let said = replace(&engine, &steps("10 * ")).expect("it can go on");
        assert_eq!(said, "application steps replaced, 3 queries go on");
        assert_eq!(replace(&engine, &steps("10 * ")).expect("the same"), "application steps is registered already");
        assert_eq!(client.step("a", 4), 30, "3 from the one before, 10 times");
        run(&engine, "RESUME QUERY b").expect("resumed");
        assert_eq!(client.step("b", 101), 10);
        let info = engine.application("steps").expect("an application");
        assert_eq!((info.queries_running, info.queries_paused), (3, 0));
        assert!(engine.status().total.events >= 4, "the counters go on");
        engine.shutdown();
    }
    let engine = open(folder.path());
    let mut client = Client::of(&engine);
    assert_eq!((client.step("a", 5), client.step("c", 7)), (10.into(), Value::Null), "also after a restart");
    run(&engine, "DROP APPLICATION steps CASCADE").expect("dropped");
    assert!(engine.applications().is_empty());
}

#[test]
fn aggregates_over_earlier_rows_go_on_with_these_rows() {
    let folder = TempDir::new().expect("a folder");
    let sums = |factor: &str, rows: usize| {
        let select = format!("SELECT {factor}sum(n) OVER (ROWS {rows} PRECEDING) AS step FROM numbers");
        version("id TEXT, output TEXT DEFAULT 'out'", "in/{id}", &select)
    };
    {
        let engine = open(folder.path());
        replace(&engine, &sums("", 2)).expect("a new one");
        create(&engine, "a");
        let mut client = Client::of(&engine);
        assert_eq!((client.step("a", 1), client.step("a", 2)), (1.into(), 3.into()));
        replace(&engine, &sums("10 * ", 2)).expect("it can go on");
        assert_eq!(client.step("a", 4), 70);
        let text = text(&replace(&engine, &sums("", 3)).expect_err("it sees more rows"));
        assert!(text.contains("state => 'discard'"), "{text}");
        engine.shutdown();
    }
    let engine = open(folder.path());
    assert_eq!(Client::of(&engine).step("a", 8), 140, "also after a restart");
}

#[test]
fn state_that_would_be_lost_is_not_lost_without_a_word() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    replace(&engine, &steps("")).expect("a new one");
    create(&engine, "a");
    let mut client = Client::of(&engine);
    client.step("a", 1);
    let other = version("id TEXT, output TEXT DEFAULT 'out'", "in/{id}", "SELECT n - lag(n, 2) AS step FROM numbers");
    let error = replace(&engine, &other).expect_err("lag reaches further");
    assert_eq!(error.kind, ErrorKind::Conflict);
    let text = text(&error);
    assert!(text.contains("lag(n, 2)") && text.contains("state => 'discard'"), "{text}");
    assert_eq!(client.step("a", 3), 2, "nothing has happened");
    let discarding = other.replacen("steps", "steps WITH (state => 'discard')", 1);
    let said = replace(&engine, &discarding).expect("it is wished");
    assert!(said.contains("state is forgotten") && said.contains("lag"), "{said}");
    assert_eq!(client.step("a", 4), Value::Null, "it begins anew");
    assert_eq!((client.step("a", 5), client.step("a", 6)), (Value::Null, 2.into()));
}

#[test]
fn parameters_go_by_name_and_what_does_not_fit_is_said() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        let scaled = "SELECT $factor * (n - lag(n)) AS step FROM numbers";
        let parameters = "id TEXT, output TEXT DEFAULT 'out', factor BIGINT DEFAULT 2";
        replace(&engine, &version(parameters, "in/{id}", scaled)).expect("a new one");
        create(&engine, "a");
        run(&engine, "CREATE QUERY b FROM APPLICATION steps WITH (id => 'b', factor => 5)").expect("a query");
        let mut client = Client::of(&engine);
        assert_eq!((client.step("a", 1), client.step("b", 1)), (Value::Null, Value::Null));
        let needs = version(&parameters.replace("DEFAULT 2", "DEFAULT 2, room TEXT"), "in/{id}", scaled);
        let text = text(&replace(&engine, &needs).expect_err("nobody gives it"));
        assert!(text.contains("'a'") && text.contains("'room'") && text.contains("DEFAULT"), "{text}");
        // Another order, another default for who gave no value, one more.
        let moved = version(
            "factor BIGINT DEFAULT 3, plus BIGINT DEFAULT 100, output TEXT DEFAULT 'out', id TEXT",
            "in/{id}",
            "SELECT $factor * (n - lag(n)) + $plus AS step FROM numbers",
        );
        replace(&engine, &moved).expect("it fits");
        assert_eq!((client.step("a", 2), client.step("b", 2)), (103.into(), 105.into()));
        let without =
            version("output TEXT DEFAULT 'out', id TEXT", "in/{id}", "SELECT n - lag(n) AS step FROM numbers");
        let said = replace(&engine, &without).expect("it fits");
        assert!(said.contains("their values of factor are forgotten"), "{said}");
        assert_eq!((client.step("a", 4), client.step("b", 5)), (2.into(), 3.into()));
        engine.shutdown();
    }
    let engine = open(folder.path());
    assert_eq!(Client::of(&engine).step("b", 6), 1, "what the catalog has fits the new version");
}

#[test]
fn other_topics_are_read_from_then_on_and_no_others() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    replace(&engine, &steps("")).expect("a new one");
    create(&engine, "a");
    let mut client = Client::of(&engine);
    client.step("a", 1);
    let parameters = "id TEXT, output TEXT DEFAULT 'out'";
    let elsewhere = version(parameters, "there/{id}", "SELECT n - lag(n) AS step FROM numbers");
    replace(&engine, &elsewhere).expect("it can go on");
    client.send("in/a", 50);
    client.send("there/a", 7);
    assert_eq!(client.next()["step"], 6, "the state is that of before");
    let two = "APPLICATION steps (id TEXT, output TEXT DEFAULT 'out') \
               INPUT numbers (n BIGINT) FROM 'mqtt:there/{id}' FORMAT JSON INPUT more (n BIGINT) FROM 'mqtt:more/{id}' FORMAT JSON \
               OUTPUT 'mqtt:{output}/{id}' FORMAT JSON \
               AS SELECT n - lag(n) AS step FROM (SELECT n FROM numbers UNION ALL SELECT n FROM more) AS numbers";
    replace(&engine, two).expect("one more input");
    client.send("more/a", 10);
    assert_eq!(client.next()["step"], 3);
    client.send("there/a", 20);
    assert_eq!(client.next()["step"], 10);
}

#[test]
fn a_crash_before_the_first_checkpoint_of_the_new_version_keeps_the_state() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        replace(&engine, &steps("")).expect("a new one");
        create(&engine, "a");
        assert_eq!(Client::of(&engine).step("a", 1), Value::Null);
        replace(&engine, &steps("10 * ")).expect("it can go on");
        replace(&engine, &steps("100 * ")).expect("it can go on");
        engine.shutdown();
    }
    // As if none of the checkpoints of the last version had been made.
    let line = folder.path().join("data/checkpoints/applications");
    let mut manifests: Vec<_> =
        std::fs::read_dir(&line).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    manifests.retain(|path| path.extension().is_some_and(|ending| ending == "manifest"));
    manifests.sort();
    assert!(manifests.len() > 1, "{manifests:?}");
    std::fs::write(manifests.pop().expect("the newest"), "torn").expect("a file");
    let engine = open(folder.path());
    let recovered = engine.status().checkpoints.expect("checkpoints are on").recovered.expect("something was found");
    assert_eq!((recovered.queries, recovered.lost), (1, 0), "{:?}", recovered.problems);
    assert_eq!(Client::of(&engine).step("a", 3), 200);
}

#[test]
fn while_events_come_none_is_lost_or_doubled_by_a_replacement() {
    const EVENTS: i64 = 1_500;
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let script = |factor: &str| {
        format!(
            "APPLICATION steps (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:all' FORMAT JSON \
             OUTPUT 'mqtt:out/{{id}}' FORMAT JSON AS SELECT n, {factor}(n - lag(n)) AS step, $id AS id FROM numbers"
        )
    };
    replace(&engine, &script("")).expect("a new one");
    // So many that they read the topic together, and two that are equal but for their output.
    for id in 0..20 {
        create(&engine, &format!("q{id}"));
    }
    let mut client = Client::of(&engine);
    let is_over = AtomicBool::new(false);
    let mut replacements = 0;
    let broker = engine.embedded_broker_address().expect("a broker");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut publisher = Publisher::connect(broker);
            for n in 0..EVENTS {
                publisher.publish("all", &format!("{{\"n\": {n}}}"));
                // Results are for one listener, and must not be too many for it.
                if n % 10 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            is_over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) || replacements < 2 {
                let factor = if replacements % 2 == 0 { "10 * " } else { "" };
                replace(&engine, &script(factor)).expect("it can go on");
                replacements += 1;
            }
        });
        let mut next = [0; 20];
        for _ in 0..EVENTS * 20 {
            let row = client.next();
            let id: usize = row["id"].as_str().and_then(|id| id[1..].parse().ok()).expect("an id");
            assert_eq!(row["n"], next[id], "each event once, and in order");
            let step = row["step"].as_i64();
            assert!(if next[id] == 0 { step.is_none() } else { matches!(step, Some(1 | 10)) }, "{row}");
            next[id] += 1;
        }
    });
    assert!(replacements >= 2 && engine.problems().is_empty());
    let total = engine.status().total;
    assert_eq!((total.queries_running, total.events), (20, EVENTS as u64 * 20));
}

#[test]
fn queries_that_are_equal_no_more_go_their_own_ways_with_the_same_state() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let to_rooms = |select: &str| {
        format!(
            "APPLICATION steps (id TEXT, room TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{{id}}' FORMAT JSON \
             OUTPUT 'mqtt:out/{{room}}' FORMAT JSON AS SELECT {select} FROM numbers"
        )
    };
    replace(&engine, &to_rooms("n - lag(n) AS step")).expect("a new one");
    for room in ["hall", "attic"] {
        let query = format!("CREATE QUERY {room} FROM APPLICATION steps WITH (id => 'a', room => '{room}')");
        run(&engine, &query).expect("a query");
    }
    let mut client = Client::of(&engine);
    client.step("a", 1);
    client.next();
    replace(&engine, &to_rooms("n - lag(n) AS step, $room AS room")).expect("it can go on");
    client.send("in/a", 4);
    let mut rows = [client.next(), client.next()].map(|row| row.to_string());
    rows.sort_unstable();
    assert_eq!(rows, [r#"{"room":"attic","step":3}"#, r#"{"room":"hall","step":3}"#]);
}

#[test]
fn a_crash_at_any_moment_of_a_replacement_finds_one_of_the_two_versions_with_its_state() {
    const CRASHES: u64 = 5;
    let folder = TempDir::new().expect("a folder");
    let settings = |mqtt: std::net::SocketAddr| {
        [
            ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
            ("RIVULET_CHECKPOINT_INTERVAL_S", "1".into()),
            ("RIVULET_DURABILITY_DEFAULT", "log".into()),
        ]
    };
    for crash in 0..=CRASHES {
        let mqtt = free_port();
        let mut server = Server::spawn(folder.path(), mqtt, &settings(mqtt));
        server.wait_until_ready();
        if crash == 0 {
            server.sql_ok(&format!("CREATE OR REPLACE {}", steps("")));
            server.sql_ok("CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')");
        }
        let mut listener = Publisher::connect(mqtt);
        listener.subscribe("out/#");
        let mut client = Client { listener, publisher: Publisher::connect(mqtt) };
        let n = i64::try_from(crash).expect("a few") * 10;
        // Results that were on their way when the server was killed may come again.
        let mut step = |n: i64| {
            client.send("in/a", n);
            let row = std::iter::repeat_with(|| client.next()).find(|row| row["n"] == n);
            row.and_then(|row| row["step"].as_i64())
        };
        let found = step(n);
        assert!(if crash == 0 { found.is_none() } else { matches!(found, Some(9 | 90)) }, "crash {crash}: {found:?}");
        let found = step(n + 1);
        assert!(matches!(found, Some(1 | 10)), "crash {crash}: {found:?}");
        if crash == CRASHES {
            break;
        }
        std::thread::scope(|scope| {
            let url = server.url();
            scope.spawn(move || {
                // Until the server is gone.
                let factors = ["10 * ", ""].into_iter().cycle();
                for factor in factors {
                    let script = format!("CREATE OR REPLACE {}", steps(factor));
                    if ureq::post(format!("{url}/api/v1/sql")).send(script).is_err() {
                        break;
                    }
                }
            });
            // What was processed is in the file of the log by then.
            std::thread::sleep(Duration::from_millis(60 + crash * 17));
            server.kill_9();
        });
    }
}

/// What has to be there for each query, and is told of none that changes.
struct Beside;

impl Companion for Beside {
    fn admit(&self, _: usize) -> Result<(), ServiceError> {
        Ok(())
    }

    fn begin(&self, _: &[u64], _: &[Vec<String>]) {}

    fn end(&self, _: &[u64]) {}
}

#[test]
fn an_application_with_a_companion_is_not_replaced() {
    let folder = TempDir::new().expect("a folder");
    let extensions = Extensions { companion: Some(Arc::new(Beside)), ..Extensions::default() };
    let engine = Engine::open_with(configuration(folder.path()), extensions).expect("an engine");
    assert_eq!(replace(&engine, &steps("")).expect("a new one"), "application steps created");
    create(&engine, "a");
    let mut client = Client::of(&engine);
    assert_eq!((client.step("a", 1), client.step("a", 4)), (Value::Null, 3.into()));
    let error = replace(&engine, &steps("10 * ")).expect_err("nobody tells it of the topics that are read then");
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.message.contains("'steps' stays as it was") && error.hint.is_some(), "{}", text(&error));
    assert_eq!(replace(&engine, &steps("")).expect("the same"), "application steps is registered already");
    assert_eq!(client.step("a", 5), 1, "the version before goes on");
}

#[test]
fn no_result_is_in_the_log_that_the_new_version_does_not_get() {
    /// So many that it takes a while until the last of them is routed to.
    const QUERIES: usize = 40_000;
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let durable = "FORMAT JSON WITH (durability => 'log')";
    let source = format!(
        "CREATE APPLICATION source (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{{id}}' {durable} \
         OUTPUT 'mqtt:fed/{{id}}' FORMAT JSON AS SELECT n FROM numbers"
    );
    run(&engine, &source).expect("an application");
    let last = QUERIES - 1;
    run(&engine, &format!("CREATE QUERY fed FROM APPLICATION source WITH (id => '{last}')")).expect("a query");
    let reader = |input: &str| {
        format!(
            "APPLICATION reader (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:{input}/{{id}}' {durable} \
             OUTPUT 'mqtt:none' FORMAT JSON AS SELECT n FROM numbers WHERE n < 0"
        )
    };
    replace(&engine, &reader("nothing")).expect("a new one");
    let parameters: Vec<_> =
        (0..QUERIES).map(|id| [("id".into(), ParameterValue::Text(id.to_string().into()))]).collect();
    let requests: Vec<QueryRequest<'_>> = parameters
        .iter()
        .map(|parameters| QueryRequest { name: None, application: "reader", parameters, label: None })
        .collect();
    assert!(engine.submit(&requests).iter().all(Result::is_ok));
    let broker = engine.embedded_broker_address().expect("a broker");
    let is_over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut publisher = Publisher::connect(broker);
            let mut sent = 0_u64;
            while !is_over.load(Ordering::Acquire) {
                publisher.publish(&format!("in/{last}"), "{\"n\": 1}");
                sent += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
            sent
        });
        let replaced = replace(&engine, &reader("fed"));
        // Some come behind it in any case.
        std::thread::sleep(Duration::from_millis(100));
        is_over.store(true, Ordering::Release);
        replaced.expect("it can go on");
        sending.join().expect("it has sent")
    });
    let events = |name: &str| {
        let applications = engine.status().applications;
        applications.iter().find(|one| one.name == name).expect("it runs").events
    };
    // All that is in the log beside what was sent are results.
    let logged = || engine.status().log.map_or(0, |log| log.next - 1).saturating_sub(sent);
    let deadline = Instant::now() + PATIENCE;
    while (events("source") < sent || events("reader") != logged()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(events("source"), sent);
    assert!(events("reader") > 0);
    assert_eq!(events("reader"), logged(), "what is in the log and was given to nobody would come after a crash");
}
