//! Equal queries, which are computed once: each gets its results, whatever happens to the others.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet::engine::Engine;
use rivulet_sql::ParamValue;
use rivulet_testing::TestGroup;
use tempfile::TempDir;

use crate::engine::configuration;
use crate::server::Publisher;
use crate::support::AsOperator;

const TOTAL: &str = "CREATE APPLICATION total (source TEXT, who TEXT, least BIGINT DEFAULT 0) INPUT numbers (n BIGINT)
    FROM 'mqtt:in/{source}' FORMAT JSON WITH (dead_letter => 'mqtt:dead/{who}') OUTPUT 'mqtt:out/{who}' FORMAT JSON
    AS SELECT sum(n) AS n FROM numbers WHERE n >= $least GROUP BY count_window(2)";

fn run(engine: &Engine, script: &str) {
    for answer in engine.execute(script) {
        answer.unwrap_or_else(|error| panic!("{script}: {error}"));
    }
}

fn create(engine: &Engine, who: &str) {
    run(engine, &format!("CREATE QUERY {who} FROM APPLICATION total WITH (source => 's', who => '{who}')"));
}

/// How many queries share the slot of another.
fn shared(engine: &Engine) -> u64 {
    let text = engine.metrics();
    let line = text.lines().find(|line| line.starts_with("rivulet_queries_shared{")).expect("the metric");
    line.rsplit(' ').next().expect("a value").parse().expect("a number")
}

/// The next messages, in order of topic.
fn hear(listener: &mut Publisher, count: usize) -> Vec<String> {
    let mut heard: Vec<String> = (0..count)
        .map(|_| {
            let (topic, payload) = listener.next();
            let payload = String::from_utf8(payload).expect("text");
            // A dead letter says when; that is not compared.
            match topic.starts_with("dead/") {
                true => format!("{topic} {}", payload.contains(&format!("\"query\":\"{}\"", &topic[5..]))),
                false => format!("{topic} {payload}"),
            }
        })
        .collect();
    heard.sort();
    heard
}

/// An engine that saves no state.
fn open_unsaved(folder: &Path) -> Arc<Engine> {
    let mut config = configuration(folder);
    config.checkpoint = None;
    Engine::open(config).expect("an engine")
}

#[test]
fn queries_that_share_a_slot_are_paused_and_dropped_one_by_one() {
    let folder = TempDir::new().expect("a folder");
    let engine = open_unsaved(folder.path());
    run(&engine, TOTAL);
    ["a", "b", "c", "d"].iter().for_each(|who| create(&engine, who));
    assert_eq!(shared(&engine), 3);
    let broker = engine.embedded_broker_address().expect("a broker");
    let (mut sender, mut listener) = (Publisher::connect(broker), Publisher::connect(broker));
    listener.subscribe("out/#");
    listener.subscribe("dead/#");
    for payload in ["{\"n\":1}", "{\"n\":2}", "{\"n\":4}", "no"] {
        sender.publish("in/s", payload);
    }
    let sums = |who: &[&str], n: i64| who.iter().map(|who| format!("out/{who} {{\"n\":{n}}}")).collect::<Vec<_>>();
    let letters = ["dead/a true", "dead/b true", "dead/c true", "dead/d true"].map(str::to_owned).to_vec();
    assert_eq!(hear(&mut listener, 8), [letters, sums(&["a", "b", "c", "d"], 3)].concat());
    let status = engine.status();
    assert_eq!((status.total.events, status.total.results), (16, 4), "as of each alone");

    // The one that stands in the row of the slot goes, another is paused with half a window.
    run(&engine, "DROP QUERY a; PAUSE QUERY b;");
    let described = engine.query("b").expect("it is there");
    assert_eq!((described.input_topic.as_str(), described.output_topic.as_str()), ("in/s", "out/b"));
    assert_eq!((shared(&engine), engine.status().queries_running, engine.status().queries_paused), (1, 2, 1));
    // It comes when the others have counted, and so alone.
    create(&engine, "e");
    assert_eq!(shared(&engine), 1);
    sender.publish("in/s", "{\"n\":8}");
    assert_eq!(hear(&mut listener, 2), sums(&["c", "d"], 12));
    run(&engine, "RESUME QUERY b");
    sender.publish("in/s", "{\"n\":16}");
    assert_eq!(hear(&mut listener, 2), [sums(&["b"], 20), sums(&["e"], 24)].concat());
    run(&engine, "DROP QUERY c; PAUSE QUERY d; DROP QUERY b;");
    assert_eq!(shared(&engine), 0);
    drop(engine);

    // After a restart all is new where nothing is saved; who is paused shares with nobody.
    let engine = open_unsaved(folder.path());
    assert_eq!(shared(&engine), 0);
    run(&engine, "RESUME QUERY d");
    create(&engine, "f");
    assert_eq!(shared(&engine), 1);
    let broker = engine.embedded_broker_address().expect("a broker");
    let (mut sender, mut listener) = (Publisher::connect(broker), Publisher::connect(broker));
    listener.subscribe("out/#");
    ["{\"n\":1}", "{\"n\":2}"].iter().for_each(|payload| sender.publish("in/s", payload));
    assert_eq!(hear(&mut listener, 3), sums(&["d", "e", "f"], 3));
    run(&engine, "DROP APPLICATION total CASCADE");
    assert_eq!(engine.status().queries_running, 0);
}

/// What sharing saves, with ten equal queries of each query:
/// `cargo test --release shared_slots -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures"]
fn ten_equal_queries_cost_little_more_than_one() {
    const KINDS: u64 = 1_000;
    const EQUAL_QUERIES: u64 = 10;
    const EVENTS: i64 = 100;
    const APPLICATIONS: [&str; 2] = [
        "CREATE APPLICATION hot (home TEXT, who TEXT, most DOUBLE)
         INPUT t (ts TIMESTAMP EVENT TIME, value DOUBLE) FROM 'mqtt:home/{home}/t' FORMAT JSON
         OUTPUT 'mqtt:hot/{who}' FORMAT JSON AS SELECT value FROM t WHERE value > $most",
        "CREATE APPLICATION mean (home TEXT, who TEXT, most DOUBLE)
         INPUT t (ts TIMESTAMP EVENT TIME, value DOUBLE) FROM 'mqtt:home/{home}/t' FORMAT JSON
         OUTPUT 'mqtt:hot/{who}' FORMAT JSON
         AS SELECT avg(value) > $most AS hot FROM t GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '30 seconds') EMIT ON CHANGE",
    ];
    let start_us = 1_766_275_200_000_000;
    for sql in APPLICATIONS {
        let mut measured: Vec<(Duration, usize, usize)> = Vec::new();
        for (group, shared_slots) in [
            (TestGroup::sharing(sql, start_us), 1),
            (TestGroup::new(sql, start_us), EQUAL_QUERIES),
            (TestGroup::sharing(sql, start_us), EQUAL_QUERIES),
        ] {
            let mut slots = Vec::new();
            for query in 0..KINDS * shared_slots {
                let (home, who) = ((query % KINDS).to_string(), query.to_string());
                let values = [
                    ("home", ParamValue::Text(&home)),
                    ("who", ParamValue::Text(&who)),
                    ("most", ParamValue::Float(20.0)),
                ];
                let joined = group.join(query, &values);
                if joined.is_new {
                    slots.push(joined.slot);
                }
            }
            let begun = Instant::now();
            for event in 0..EVENTS {
                let at_us = start_us + event * 1_000_000;
                for &slot in &slots {
                    let value = 15 + (u64::from(slot) % KINDS + event as u64 * 7) % 10;
                    group.push(slot, at_us, &format!("{{\"ts\":{},\"value\":{value}}}", at_us / 1000));
                }
                group.run();
            }
            let took = begun.elapsed();
            let results = group.results().values().map(Vec::len).sum();
            measured.push((took, group.memory_bytes(), results));
        }
        assert_eq!(measured[1].2, measured[2].2, "the same results");
        let name = sql.split_whitespace().nth(2).expect("a name");
        for ((took, bytes, results), what) in measured.iter().zip(["one of each", "ten alone", "ten sharing"]) {
            eprintln!("{name}, {what}: {took:?}, {bytes} bytes, {results} results");
        }
    }
}
