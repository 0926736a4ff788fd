//! Queries that are created, paused and resumed, and queries that read the results of others. The server is killed
//! before a checkpoint contains these changes: each query has the same events as before.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kill::{DAY_MS, WINDOW_BEGIN_MS};
use crate::server::{Publisher, Server, free_port, wait};

const SCRIPT: &str = "
    CREATE APPLICATION totals (low BIGINT, name TEXT)
    INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in' FORMAT JSON
    WITH (idle_timeout => INTERVAL '1000 days', durability => 'log')
    OUTPUT 'mqtt:out/{name}' FORMAT JSON
    AS SELECT sum(n) AS total FROM readings WHERE n > $low GROUP BY tumble(ts, INTERVAL '1 day');
    CREATE APPLICATION relays (name TEXT)
    INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in' FORMAT JSON
    WITH (idle_timeout => INTERVAL '1000 days', durability => 'log')
    OUTPUT 'mqtt:between/{name}' FORMAT JSON AS SELECT n FROM readings;
    CREATE APPLICATION sums (name TEXT)
    INPUT numbers (n BIGINT) FROM 'mqtt:between/{name}' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:out/{name}' FORMAT JSON AS SELECT sum(n) AS total FROM numbers GROUP BY count_window(5);
    CREATE QUERY relay FROM APPLICATION relays WITH (name => 'chained');
    CREATE QUERY chained FROM APPLICATION sums WITH (name => 'chained')";

/// As many as share the decoding of their topic, and some more.
const QUERIES: i64 = 20;

fn start(folder: &Path) -> Server {
    let server = Server::start_at(folder, free_port(), 0);
    // A server that has no log says nothing of it.
    wait("the end of the replay", || server.status()["log"]["is_replaying"] != json!(true));
    server
}

/// Sends an event, and waits until it is on disk, with what the relay makes of it.
fn send(server: &Server, ts: u64, n: i64) {
    let durable = || server.status()["log"]["durable"].as_u64().unwrap_or(0);
    let before = durable();
    Publisher::connect(server.mqtt).publish("in", &format!("{{\"ts\":{ts},\"n\":{n}}}"));
    wait("an event and a result in the log", || durable() >= before + 2);
}

fn create(server: &Server, name: &str, low: i64) {
    server.sql_ok(&format!("CREATE QUERY {name} FROM APPLICATION totals WITH (low => {low}, name => '{name}')"));
}

#[test]
fn results_of_before_a_query_was_there_are_not_for_it_when_they_come_again() {
    let folder = TempDir::new().expect("a folder");
    {
        let server = start(folder.path());
        server.sql_ok(SCRIPT);
        server.sql_ok("DROP QUERY chained; CHECKPOINT");
        (0..3).for_each(|n| send(&server, WINDOW_BEGIN_MS, n));
        server.sql_ok("CREATE QUERY chained FROM APPLICATION sums WITH (name => 'chained')");
        send(&server, WINDOW_BEGIN_MS, 100);
        server.sql_ok("PAUSE QUERY chained");
        send(&server, WINDOW_BEGIN_MS, 1_000);
        server.sql_ok("RESUME QUERY chained");
    }
    let server = start(folder.path());
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("out/#");
    (0..4).for_each(|n| send(&server, WINDOW_BEGIN_MS, 200 + n));
    let (_, payload) = listener.next();
    let result: Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!(result["total"], json!(100 + 200 + 201 + 202 + 203), "five events, from when it was there");
}

#[test]
fn a_query_that_is_equal_to_a_paused_one_gets_its_events_after_a_restart() {
    let folder = TempDir::new().expect("a folder");
    {
        let server = start(folder.path());
        server.sql_ok(SCRIPT);
        send(&server, WINDOW_BEGIN_MS, 1);
        create(&server, "paused", -1);
        server.sql_ok("PAUSE QUERY paused");
    }
    let server = start(folder.path());
    create(&server, "equal", -1);
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("out/#");
    send(&server, WINDOW_BEGIN_MS, 2);
    send(&server, WINDOW_BEGIN_MS + DAY_MS, 0);
    let (topic, payload) = listener.next();
    let result: Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!((topic.as_str(), result["total"].as_f64()), ("out/equal", Some(2.0)));
}

#[test]
fn each_query_has_seen_what_came_while_it_was_there() {
    let folder = TempDir::new().expect("a folder");
    {
        let server = start(folder.path());
        server.sql_ok(SCRIPT);
        (0..QUERIES).for_each(|query| create(&server, &format!("q{query}"), -1 - query));
        server.sql_ok("CHECKPOINT");
        send(&server, WINDOW_BEGIN_MS, 1);
        create(&server, "late", -100);
        create(&server, "equal_of_late", -100);
        send(&server, WINDOW_BEGIN_MS, 2);
        server.sql_ok("PAUSE QUERY q0; PAUSE QUERY q1; PAUSE QUERY equal_of_late");
        send(&server, WINDOW_BEGIN_MS, 4);
        server.sql_ok("RESUME QUERY q1");
        send(&server, WINDOW_BEGIN_MS, 8);
        // Dropped is killed: without a word to it.
    }
    drop(start(folder.path()));
    let server = start(folder.path());
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("out/#");
    server.sql_ok("RESUME QUERY q0; RESUME QUERY equal_of_late");
    send(&server, WINDOW_BEGIN_MS, 16);
    send(&server, WINDOW_BEGIN_MS + DAY_MS, 0);
    let mut totals = BTreeMap::new();
    for _ in 0..QUERIES + 3 {
        let (topic, payload) = listener.next();
        let result: Value = serde_json::from_slice(&payload).expect("JSON");
        let name = topic.strip_prefix("out/").expect("a topic of a result").to_owned();
        let total = result["total"].as_f64().expect("a number");
        assert_eq!(totals.insert(name.clone(), total), None, "{name} gives one result");
    }
    let mut expected: BTreeMap<String, f64> = (0..QUERIES).map(|query| (format!("q{query}"), 31.0)).collect();
    expected.extend(
        [("q0", 19.0), ("q1", 27.0), ("late", 30.0), ("equal_of_late", 18.0), ("chained", 31.0)]
            .map(|(name, total)| (name.to_owned(), total)),
    );
    assert_eq!(totals, expected);
    let log = server.status()["log"].clone();
    assert_eq!((log["lost_events"].as_u64(), log["problem"].as_str()), (Some(0), None), "{log}");
}
