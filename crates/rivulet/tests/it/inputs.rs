//! Inputs of applications that read HTTP and Kafka: real posts, and a real broker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use rivulet::engine::Engine;
use rivulet_connectors::connector::{Condition, ConnectorContext, Connectors, SinkSpec};
use rivulet_dataflow::Batch;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checkpoints::{on_demand, run};
use crate::engine::open;
use crate::kafka_broker::Broker;
use crate::kill::{kills, random};
use crate::server::{Publisher, Server, free_port, rivulet};
use crate::support::{AsOperator, exchange, request, wait_until};

pub(super) const BEGIN_MS: i64 = 1_700_006_400_000;
const HOUR_MS: i64 = 3_600_000;
const PATIENCE: Duration = Duration::from_secs(120);

fn listener(engine: &Engine) -> Publisher {
    let mut listener = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    listener.subscribe("out/#");
    listener
}

/// The status that a post is answered with.
fn post(address: SocketAddr, headers: &str, body: &str) -> u16 {
    exchange(address, &request("POST", "/in", headers, body)).0
}

/// Posts until somebody listens.
fn post_when_open(address: SocketAddr, body: &str) -> u16 {
    wait_until("somebody listens", || std::net::TcpStream::connect(address).is_ok());
    post(address, "", body)
}

#[test]
fn posts_find_their_queries_by_a_field() {
    let (folder, address) = (TempDir::new().expect("a folder"), free_port());
    let engine = open(folder.path());
    run(
        &engine,
        &format!(
            "CREATE APPLICATION warm (device TEXT, most DOUBLE)
             INPUT readings (device TEXT, celsius DOUBLE) FROM 'http:{address}/in' FORMAT JSON
               WITH (key => '{{device}}', key_field => 'device', token => 'rose', dead_letter => 'mqtt:out/dead')
             OUTPUT 'mqtt:out/result' FORMAT JSON AS SELECT device, celsius FROM readings WHERE celsius > $most"
        ),
    );
    run(&engine, "CREATE QUERY one FROM APPLICATION warm WITH (device => 'a/+1', most => 20)");
    run(&engine, "CREATE QUERY two FROM APPLICATION warm WITH (device => '7', most => 0)");
    let mut listener = listener(&engine);
    assert_eq!(post_when_open(address, "{}"), 401);
    let token = "authorization: Bearer rose\r\n";
    assert_eq!(post(address, token, r#"{"device": "a/+1", "celsius": 21}"#), 202);
    assert_eq!(listener.next_json(), ("out/result".into(), json!({ "device": "a/+1", "celsius": 21.0 })));
    // Each object goes to its query, and a number is a key too.
    let several = r#"[{"device": "7", "celsius": 1}, {"device": "nobody", "celsius": 99},
                      {"device": "a/+1", "celsius": 30}, {"device": "7", "celsius": "hot"}]"#;
    assert_eq!(post(address, token, several), 202);
    let mut heard = [listener.next_json(), listener.next_json(), listener.next_json()];
    heard.sort_by_key(|(topic, row)| (topic.clone(), row["device"].to_string()));
    assert_eq!(heard[0].1["payload"], r#"{"device": "7", "celsius": "hot"}"#, "{heard:?}");
    assert_eq!(heard[1].1, json!({ "device": "7", "celsius": 1.0 }));
    assert_eq!(heard[2].1, json!({ "device": "a/+1", "celsius": 30.0 }));

    // Whoever posts what no query can get is told so, and nothing of it counts.
    for (headers, body, problem) in [
        ("", "warm", "it is no JSON: expected value at line 1 column 1"),
        ("", r#"{"celsius": 99}"#, "it has no field 'device'"),
        ("", r#"[{"device": "7", "celsius": 5}, {"celsius": 99}]"#, "element 2 has no field 'device'"),
        ("content-type: application/x-ndjson\r\n", "{\"device\": 7}\n\n{\"device\": 7", "line 3: it is no JSON: EOF"),
    ] {
        let (status, answer) = exchange(address, &request("POST", "/in", &format!("{token}{headers}"), body));
        assert!(status == 400 && answer.contains(problem) && answer.contains("\nhint: "), "{body}: {status} {answer}");
    }

    let info = engine.applications().remove(0);
    let health = &info.health[0];
    assert_eq!((health.name.as_str(), health.condition, health.rows), ("readings", Condition::Ok, 5));
    assert!(info.sql.contains("token => '***'") && !info.sql.contains("rose"), "{}", info.sql);
    let described = format!("{:?}", run(&engine, "DESCRIBE APPLICATION warm"));
    assert!(described.contains("source readings") && described.contains("5 messages"), "{described}");
    assert!(!described.contains("rose"), "{described}");
    let described = format!("{:?}", run(&engine, "DESCRIBE QUERY one"));
    assert!(described.contains(&format!("http:{address}/in (key a/+1)")), "{described}");
    let metrics = engine.metrics();
    assert!(metrics.contains("rivulet_input_messages_total{application=\"warm\",input=\"readings\"} 5"), "{metrics}");
    assert!(metrics.contains("rivulet_input_unwanted_total{application=\"warm\",input=\"readings\"} 1"), "{metrics}");
    engine.shutdown();
    wait_until("nobody listens any more", || std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_post_is_answered_when_the_log_has_it_and_counts_once_after_a_crash() {
    let (folder, address, mqtt) = (TempDir::new().expect("a folder"), free_port(), free_port());
    let mut server = Server::start_at(folder.path(), mqtt, 0);
    server.sql_ok(&format!(
        "CREATE APPLICATION sums (device TEXT)
         INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'http:{address}/in' FORMAT JSON
           WITH (key => '{{device}}', key_field => 'device', durability => 'log', idle_timeout => INTERVAL '1000 days')
         OUTPUT 'mqtt:out/{{device}}' FORMAT JSON
         AS SELECT sum(n) AS n, count(*) AS events FROM readings GROUP BY tumble(ts, INTERVAL '1 hour');
         CREATE QUERY one FROM APPLICATION sums WITH (device => '1')"
    ));
    let reading = |n: i64, ts: i64| json!({ "device": 1, "n": n, "ts": ts }).to_string();
    assert_eq!(post_when_open(address, &reading(0, BEGIN_MS)), 200);
    for round in 0..3 {
        for n in 1..=5 {
            assert_eq!(post(address, "", &reading(round * 5 + n, BEGIN_MS + n)), 200);
        }
        if round == 1 {
            server.sql_ok("CHECKPOINT");
        }
        server.kill_9();
        server = Server::start_at(folder.path(), mqtt, 0);
        wait_until("somebody listens", || std::net::TcpStream::connect(address).is_ok());
    }
    let mut listener = Publisher::connect(mqtt);
    listener.subscribe("out/#");
    assert_eq!(post(address, "", &reading(0, BEGIN_MS + 2 * HOUR_MS)), 200);
    assert_eq!(listener.next_json(), ("out/1".into(), json!({ "n": 120, "events": 16 })));
    drop(server);
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_place() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    for (input, at, words) in [
        ("(v BIGINT) FROM 'kafka:h:1/t' FORMAT JSON WITH (key => '{b}')", "'{b}'", "unknown parameter '{b}'"),
        ("(v BIGINT) FROM 'http:h:1/t' FORMAT JSON WITH (key => '{a}')", "'{a}')", "key_field => 'device'"),
        ("(v BIGINT) FROM 'http:h:1/t' FORMAT JSON WITH (key_field => 'a')", "'a')", "the input has no key"),
        ("(v TEXT) FROM 'http:h:1/t' FORMAT TEXT WITH (key_field => 'a', key => 'x')", "'a', key", "a field of JSON"),
        ("(v BIGINT, k TEXT) FROM 'http:h:1/t' FORMAT JSON WITH (key_column => 'k')", "'k')", "nothing for key_column"),
        (
            "(v BIGINT, k TEXT) FROM 'kafka:h:1/t' FORMAT JSON WITH (offset_column => 'k')",
            "'k')",
            "declare it as BIGINT",
        ),
        ("(v BIGINT) FROM 'kafka:h:1/t' FORMAT JSON WITH (key_column => 'k')", "'k')", "no such column"),
        ("(k TEXT) FROM 'kafka:h:1/t' FORMAT JSON WITH (key_column => 'k')", "one (k", "come from the source"),
        ("(v BIGINT) FROM 'kafka:h:1/t' FORMAT JSON WITH (strat => 'latest')", "'latest'", "did you mean 'start'?"),
        ("(v BIGINT) FROM 'kafka:h:1/t' FORMAT JSON WITH (start => 'soon')", "'soon'", "earliest, latest or a time"),
        ("(v BIGINT) FROM 'kafka:h:1/t' FORMAT JSON WITH (topic_column => 'v')", "topic_column", "key_column"),
        ("(v BIGINT) FROM 'kafka:{a}:1/t' FORMAT JSON", "'kafka:", "opened once"),
        ("(v BIGINT) FROM 'kafka:h' FORMAT JSON", "'kafka:", "does not say broker and topic"),
        ("(v BIGINT) FROM 'file:x.json' FORMAT JSON", "'file:", "they read mqtt:, kafka:, http:, link:;"),
        ("(v BIGINT) FROM 'kafak:h:1/t' FORMAT JSON", "'kafak:", "did you mean 'kafka:'?"),
        ("(v BIGINT) FROM 'link:t' FORMAT JSON", "'link:", "write WITH (durability => 'log')"),
        ("(v BIGINT) FROM 'link:h:1/t' FORMAT JSON WITH (durability => 'log')", "'link:", "write 'link:readings'"),
        ("(v BIGINT) FROM 'mqtt:t' FORMAT JSON WITH (key => '{a}')", "key =>", "a topic has parameters itself"),
        (
            "(v BIGINT) FROM 'mqtt:t' FORMAT JSON WITH (late => 'kafka:h:1/t')",
            "'kafka:h",
            "dead letters of an input go",
        ),
    ] {
        let text =
            format!("CREATE APPLICATION x (a TEXT) INPUT one {input} OUTPUT 'mqtt:o' FORMAT JSON AS SELECT * FROM one");
        let text = text.replace("SELECT *", if input.contains("(v") { "SELECT v" } else { "SELECT k" });
        let error = engine.execute(&text).pop().expect("an answer").expect_err(&text);
        let shown = format!("{} / {}", error.message, error.hint.clone().unwrap_or_default());
        assert!(shown.contains(words), "{text}\n{shown}");
        let column = text.find(at).map(|byte| byte as u32 + 1);
        assert_eq!((error.line, error.column), (Some(1), column), "{text}\n{shown}");
    }
    engine.shutdown();
}

/// Writes messages with a key into a topic; returns when the broker has them.
pub(super) fn produce(broker: &str, topic: &str, messages: &[(String, i64, i64)]) {
    let fields = [("device", DataType::Utf8), ("n", DataType::Int64), ("ts", DataType::Int64)];
    let schema = Arc::new(Schema::new(fields.map(|(name, of)| Field::new(name, of, true)).to_vec()));
    let spec = SinkSpec {
        connector: "kafka".into(),
        address: format!("{broker}/{topic}"),
        format: None,
        schema: schema.clone(),
        changes: false,
        key: None,
        options: vec![("key".into(), "device".into())],
        host: ConnectorContext::of_user(),
        checkpoints: None,
        output: None,
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(messages.iter().map(|one| &one.0))),
        Arc::new(Int64Array::from_iter_values(messages.iter().map(|one| one.1))),
        Arc::new(Int64Array::from_iter_values(messages.iter().map(|one| one.2))),
    ];
    let zeros = vec![0; messages.len()];
    let columns = RecordBatch::try_new(schema, columns).expect("rows");
    let batch = Batch::new(vec![0; messages.len()].into(), zeros.clone().into(), zeros.into(), columns);
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).expect("a sink");
    sink.write(&batch).expect("written");
    let deadline = Instant::now() + PATIENCE;
    while !sink.finish().expect("written") {
        assert!(Instant::now() < deadline, "the messages are not written");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(super) fn message(device: &str, n: i64, ts: i64) -> (String, i64, i64) {
    (device.to_owned(), n, ts)
}

#[test]
fn messages_find_their_queries_by_their_key_and_go_on_where_they_stood() {
    let Some(broker) = Broker::start_or_skip() else { return };
    let folder = TempDir::new().expect("a folder");
    let topic = format!("kafka:{}/in", broker.address);
    produce(&broker.address, "in", &[message("a/1", 1, BEGIN_MS), message("b", 2, BEGIN_MS), message("nobody", 9, 0)]);
    let create = |what: &str, factor: i64| {
        format!(
            "{what} APPLICATION keyed (device TEXT)
             INPUT numbers (n BIGINT, sent TIMESTAMP, key TEXT, part BIGINT, place BIGINT) FROM '{topic}' FORMAT JSON
               WITH (key => '{{device}}', key_column => 'key', timestamp_column => 'sent', partition_column => 'part',
                     offset_column => 'place')
             OUTPUT 'mqtt:out/{{device}}' FORMAT JSON
             AS SELECT n * {factor} AS n, key, part >= 0 AND place >= 0 AND sent IS NOT NULL AS known FROM numbers"
        )
    };
    let engine = Engine::open(on_demand(folder.path())).expect("an engine");
    run(&engine, &create("CREATE", 1));
    let mut heard = listener(&engine);
    // Nothing is read before anybody may want it.
    run(&engine, "CREATE QUERY b FROM APPLICATION keyed WITH (device => 'b')");
    assert_eq!(heard.next_json(), ("out/b".into(), json!({ "n": 2, "key": "b", "known": true })));
    run(&engine, "CREATE QUERY c FROM APPLICATION keyed WITH (device => 'c')");
    produce(&broker.address, "in", &[message("c", 3, 0), message("b", 4, 0)]);
    let mut both = [heard.next_json(), heard.next_json()];
    both.sort_by_key(|(topic, _)| topic.clone());
    assert_eq!((&both[0].1["n"], &both[1].1["n"]), (&json!(4), &json!(3)));
    // A new version goes on, and so does a server that starts again.
    run(&engine, &create("CREATE OR REPLACE", 10));
    produce(&broker.address, "in", &[message("b", 5, 0)]);
    assert_eq!(heard.next_json().1["n"], 50);
    // The same query is for another key from now on.
    run(&engine, "ALTER QUERY c SET (device => 'd')");
    produce(&broker.address, "in", &[message("c", 0, 0), message("d", 1, 0)]);
    assert_eq!(heard.next_json(), ("out/d".into(), json!({ "n": 10, "key": "d", "known": true })));
    // That of c, which nobody wants any more, may be in another partition, and is read before the end too.
    wait_for_rows(&engine, 8);
    engine.shutdown();
    drop(engine);
    produce(&broker.address, "in", &[message("b", 6, 0)]);
    let engine = Engine::open(on_demand(folder.path())).expect("an engine");
    let mut heard = listener(&engine);
    produce(&broker.address, "in", &[message("b", 7, 0)]);
    // The first may have gone before anybody listened.
    let first = heard.next_json().1["n"].clone();
    assert!(first == 60 || first == 70, "{first}");
    wait_for_rows(&engine, 2);
    engine.shutdown();
}

/// Waits until the input of the only application has had so many messages, and no more.
fn wait_for_rows(engine: &Engine, expected: u64) {
    let rows = || engine.applications()[0].health[0].rows;
    let begun = Instant::now();
    while rows() < expected {
        assert!(begun.elapsed() < PATIENCE, "{} of {expected} messages have come", rows());
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(rows(), expected, "each message counts once");
}

/// One query over all messages of a device in Kafka, each of which counts once.
pub(super) fn sums(broker: &Broker) -> String {
    format!(
        "CREATE APPLICATION sums (device TEXT)
         INPUT numbers (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'kafka:{}/in' FORMAT JSON
           WITH (key => '{{device}}', durability => 'log', idle_timeout => INTERVAL '1000 days')
         OUTPUT 'mqtt:out/{{device}}' FORMAT JSON
         AS SELECT sum(n) AS n, count(*) AS events FROM numbers GROUP BY tumble(ts, INTERVAL '1 hour')",
        broker.address
    )
}

#[test]
fn a_backup_has_where_a_source_stands() {
    let Some(broker) = Broker::start_or_skip() else { return };
    let (folder, elsewhere) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let messages = |from: i64, to: i64| (from..to).map(|n| message("d", n, BEGIN_MS + n)).collect::<Vec<_>>();
    produce(&broker.address, "in", &messages(0, 100));
    let server = Server::start_at(folder.path(), free_port(), 0);
    server.sql_ok(&sums(&broker));
    server.sql_ok("CREATE QUERY one FROM APPLICATION sums WITH (device => 'd')");
    let counted = |server: &Server, wanted: u64| {
        let health = |status: &Value| status["applications"][0]["health"][0]["rows"].as_u64();
        wait_until("the messages have come", || health(&server.status()) == Some(wanted));
    };
    counted(&server, 100);
    let program = |arguments: &[&str]| rivulet().current_dir(elsewhere.path()).args(arguments).output();
    let done = program(&["backup", "all", "--server", &server.url()]).expect("the program");
    assert!(done.status.success(), "{done:?}");
    drop(server);
    produce(&broker.address, "in", &messages(100, 150));
    let done = program(&["restore", "all", "--data-dir", "data"]).expect("the program");
    assert!(done.status.success(), "{done:?}");
    let mqtt = free_port();
    let server = Server::start_at(elsewhere.path(), mqtt, 0);
    counted(&server, 50);
    let mut listener = Publisher::connect(mqtt);
    listener.subscribe("out/#");
    produce(&broker.address, "in", &[message("d", 0, BEGIN_MS + 2 * HOUR_MS)]);
    assert_eq!(listener.next_json().1, json!({ "n": 149 * 150 / 2, "events": 150 }));
}

#[test]
fn a_broker_that_is_away_is_seen_and_waited_for() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let nobody = free_port();
    run(
        &engine,
        &format!(
            "CREATE APPLICATION away INPUT numbers (n BIGINT) FROM 'kafka:{nobody}/in' FORMAT JSON
             WITH (properties.socket.timeout.ms => '1000') OUTPUT 'mqtt:out' FORMAT JSON AS SELECT n FROM numbers;
             CREATE QUERY q FROM APPLICATION away"
        ),
    );
    let trouble = || engine.applications()[0].health[0].clone();
    let begun = Instant::now();
    while trouble().condition == Condition::Ok {
        assert!(begun.elapsed() < PATIENCE, "it is never known that nobody is there");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(trouble().last_error.is_some_and(|error| error.contains("kafka:")), "{:?}", trouble());
    let said = engine.problems().join("\n");
    assert!(said.contains("the source 'numbers' is"), "{said}");
    engine.shutdown();
}

#[test]
#[ignore = "slow"]
fn each_message_counts_once_however_often_the_server_is_killed() {
    const DEVICES: i64 = 20;
    let Some(broker) = Broker::start_or_skip() else { return };
    let folder = TempDir::new().expect("a folder");
    let mqtt = free_port();
    let messages = |from: i64, to: i64| -> Vec<_> {
        (from..to).map(|n| message(&format!("d{}", n % DEVICES), n, BEGIN_MS + n)).collect()
    };
    produce(&broker.address, "in", &messages(0, 100));
    let start = || Server::start_at(folder.path(), mqtt, 1);
    let mut server = start();
    server.sql_ok(&sums(&broker));
    // They are created in one statement, so that none misses what another gets.
    let lines: Vec<String> = (0..DEVICES)
        .map(|n| json!({ "name": format!("q{n}"), "application": "sums", "parameters": { "device": format!("d{n}") } }))
        .map(|line| line.to_string())
        .collect();
    let answer = ureq::post(format!("{}/api/v1/queries/bulk", server.url())).send(lines.join("\n"));
    assert!(answer.is_ok(), "{answer:?}");
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut sent = 100;
    for _ in 0..kills(4) {
        for _ in 0..4 {
            produce(&broker.address, "in", &messages(sent, sent + 250));
            sent += 250;
            thread::sleep(Duration::from_millis(random(&mut state) % 400));
        }
        server.kill_9();
        produce(&broker.address, "in", &messages(sent, sent + 50));
        sent += 50;
        server = start();
    }
    let mut listener = Publisher::connect(mqtt);
    listener.subscribe("out/#");
    let end: Vec<_> = (0..DEVICES).map(|n| message(&format!("d{n}"), 0, BEGIN_MS + 2 * HOUR_MS)).collect();
    produce(&broker.address, "in", &end);
    for _ in 0..DEVICES {
        let (topic, row) = listener.next_json();
        let device: i64 = topic.strip_prefix("out/d").and_then(|n| n.parse().ok()).expect("a device");
        let numbers: Vec<i64> = (0..sent).filter(|n| n % DEVICES == device).collect();
        let expected = json!({ "n": numbers.iter().sum::<i64>(), "events": numbers.len() });
        assert_eq!(row, expected, "{topic} of {sent} messages");
    }
    println!("{sent} messages");
    drop(server);
}
