//! Checkpoints of big queries in every form that a version has written: each is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rivulet::engine::Engine;
use rivulet::service::QueryState;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::checkpoints::{copy_all, on_demand};
use super::server::Publisher;
use super::support::{AsOperator, wait_until};

/// The version of the form of state.
const SAVED_VERSION: u32 = 2;

const DECLARED: &str = "
    CREATE SINK late TO 'mqtt:late/x' FORMAT JSON;
    CREATE SOURCE readings (room TEXT, ts TIMESTAMP EVENT TIME, v BIGINT) FROM 'mqtt:r/+' FORMAT JSON
      WITH (dead_letter => 'late');
    CREATE SOURCE limits (room TEXT, high BIGINT) FROM 'mqtt:limit/+' FORMAT JSON;
    CREATE SINK totals TO 'mqtt:out/totals/{room}' FORMAT JSON;
    CREATE SINK windows TO 'mqtt:out/windows/{room}' FORMAT JSON;
    CREATE SINK pairs TO 'mqtt:out/pairs/{room}' FORMAT JSON;
    CREATE SINK steps TO 'mqtt:out/steps/{room}' FORMAT JSON;
    CREATE SINK best TO 'mqtt:out/best/{room}/{place}' FORMAT JSON;";

/// A query of each kind of state. Their order gives them always the same numbers.
const QUERIES: [(&str, &str); 6] = [
    ("totals", "SELECT room, sum(v) AS total FROM readings GROUP BY room INTO totals"),
    (
        "windows",
        "SELECT room, sum(v) AS total, window_end FROM readings GROUP BY room, tumble(ts, INTERVAL '10 seconds') \
         INTO windows",
    ),
    (
        "pairs",
        "SELECT r.room AS room, r.v AS v, l.high AS high FROM readings r JOIN limits l ON r.room = l.room INTO pairs",
    ),
    ("steps", "SELECT room, v - LAG(v) OVER (PARTITION BY room ORDER BY ts) AS step FROM readings INTO steps"),
    (
        "best",
        "SELECT room, v, place FROM (SELECT room, v, row_number() OVER (PARTITION BY room ORDER BY v DESC) AS place \
         FROM readings) WHERE place <= 2 INTO best",
    ),
    (
        "all_rooms",
        "SELECT sum(v) AS total, window_end FROM readings GROUP BY tumble(ts, INTERVAL '10 seconds') INTO all_rooms",
    ),
];

fn run(engine: &Engine, script: &str) {
    for answer in engine.execute(script) {
        answer.unwrap_or_else(|error| panic!("{script}: {error}"));
    }
}

fn open(folder: &Path) -> Arc<Engine> {
    Engine::open(on_demand(folder)).expect("an engine")
}

fn publisher(engine: &Engine) -> Publisher {
    Publisher::connect(engine.embedded_broker_address().expect("a broker"))
}

fn rows_in(engine: &Engine) -> u64 {
    engine.status().big_queries.iter().map(|query| query.rows_in).sum()
}

/// Makes the queries and sends them the first half of their rows.
fn first_half(folder: &Path) {
    let engine = open(folder);
    run(&engine, DECLARED);
    for (name, select) in QUERIES {
        if name == "all_rooms" {
            run(&engine, "CREATE SINK all_rooms TO 'mqtt:out/all' FORMAT JSON");
        }
        run(&engine, &format!("CREATE QUERY {name} AS {select}"));
    }
    let mut publisher = publisher(&engine);
    publisher.publish("limit/a", r#"{"room":"a","high":100}"#);
    publisher.publish("limit/b", r#"{"room":"b","high":200}"#);
    wait_until("the limits", || rows_in(&engine) == 2);
    for (row, reading) in (1..).zip([
        r#"{"room":"a","ts":1000,"v":1}"#,
        r#"{"room":"a","ts":12000,"v":4}"#,
        r#"{"room":"b","ts":13000,"v":7}"#,
    ]) {
        publisher.publish("r/x", reading);
        wait_until("the reading", || rows_in(&engine) == 2 + row * QUERIES.len() as u64);
    }
    engine.shutdown();
}

/// Waits for these messages, and no others, in any order. Refused rows are told by their query.
fn expect(listener: &mut Publisher, expected: &[(&str, Value)]) {
    let mut expected: Vec<(String, Value)> = expected.iter().map(|(to, row)| ((*to).to_owned(), row.clone())).collect();
    while !expected.is_empty() {
        let (topic, payload) = listener.next_json();
        let message = match topic.strip_prefix("out/") {
            Some(to) => (to.to_owned(), payload),
            None => (topic, json!([payload["query"], payload["reason"]])),
        };
        let place = expected.iter().position(|one| *one == message);
        expected.remove(place.unwrap_or_else(|| panic!("{message:?} came, and not {expected:?}")));
    }
}

fn saved_by_version(version: u32) -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    Path::new(&package).join(format!("tests/data/checkpoints-of-big-queries-{version}"))
}

/// The files of version 1 were written by the program that had it. This test writes those of the present version, with
/// `RIVULET_WRITE_SAVED=1`; whoever changes the form of state adds files of another version, and leaves these.
#[test]
fn what_earlier_versions_saved_of_big_queries_is_read() {
    (1..=SAVED_VERSION).for_each(read_what_was_saved_by);
}

fn read_what_was_saved_by(version: u32) {
    let folder = TempDir::new().expect("a folder");
    first_half(folder.path());
    let saved = folder.path().join("data/checkpoints");
    if version == SAVED_VERSION && std::env::var_os("RIVULET_WRITE_SAVED").is_some() {
        copy_all(&saved.join("queries"), &saved_by_version(version).join("queries"));
    }
    // The same catalog, with the checkpoint of then.
    std::fs::remove_dir_all(&saved).expect("removed");
    copy_all(&saved_by_version(version), &saved);
    let engine = open(folder.path());
    for (name, _) in QUERIES {
        wait_until("it runs", || engine.query(name).expect("a query").state == QueryState::Running);
    }
    assert_eq!(engine.problems(), [""; 0]);
    let mut listener = publisher(&engine);
    listener.subscribe("out/#");
    listener.subscribe("late/#");
    let mut publisher = publisher(&engine);
    // Behind the watermarks of then.
    publisher.publish("r/x", r#"{"room":"a","ts":2000,"v":2}"#);
    expect(
        &mut listener,
        &[
            ("totals/a", json!({"op": "-", "total": 5})),
            ("totals/a", json!({"op": "+", "total": 7})),
            ("pairs/a", json!({"v": 2, "high": 100})),
            ("best/a/2", json!({"op": "-", "v": 1})),
            ("best/a/2", json!({"op": "+", "v": 2})),
            ("late/x", json!(["windows", "late"])),
            ("late/x", json!(["steps", "late"])),
            ("late/x", json!(["all_rooms", "late"])),
        ],
    );
    publisher.publish("r/x", r#"{"room":"a","ts":21000,"v":5}"#);
    expect(
        &mut listener,
        &[
            ("totals/a", json!({"op": "-", "total": 7})),
            ("totals/a", json!({"op": "+", "total": 12})),
            ("pairs/a", json!({"v": 5, "high": 100})),
            ("best/a/1", json!({"op": "-", "v": 4})),
            ("best/a/1", json!({"op": "+", "v": 5})),
            ("best/a/2", json!({"op": "-", "v": 2})),
            ("best/a/2", json!({"op": "+", "v": 4})),
            ("windows/a", json!({"total": 4, "window_end": 20_000})),
            ("windows/b", json!({"total": 7, "window_end": 20_000})),
            ("steps/b", json!({"step": null})),
            ("all", json!({"total": 11, "window_end": 20_000})),
        ],
    );
    engine.shutdown();
}
