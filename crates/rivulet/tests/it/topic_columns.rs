//! Columns of an application's input that come from the topic of an event.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checkpoints::run;
use crate::engine::open;
use crate::json_results::clients;
use crate::server::{Publisher, Server, free_port};
use crate::support::{AsOperator, wait_until};

/// A result of a device, behind an open front door.
fn row(device: &str, topic: &str, rest: &str, celsius: f64) -> Value {
    json!({ "device": device, "topic": topic, "rest": rest, "celsius": celsius, "door": "front" })
}

#[test]
fn a_query_knows_which_device_spoke() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(
        &engine,
        "CREATE APPLICATION warm (site TEXT, most DOUBLE)
         INPUT readings (device TEXT, celsius DOUBLE, topic TEXT, rest TEXT) FROM 'mqtt:in/{site}/+/celsius/#'
           FORMAT JSON WITH (topic_column => 'topic', level_columns => 'device, rest', dead_letter => 'mqtt:out/dead')
         INPUT doors (door TEXT, is_open BOOLEAN) FROM 'mqtt:doors/{site}/+' FORMAT JSON WITH (level_columns => 'Door')
         OUTPUT 'mqtt:out/{site}' FORMAT JSON
         AS SELECT readings.device, topic, rest, celsius, doors.door
            FROM readings CROSS JOIN LATEST(doors) AS doors WHERE celsius > $most",
    );
    run(&engine, "CREATE QUERY one FROM APPLICATION warm WITH (site => 'a', most => 20)");
    let (mut sender, mut listener) = clients(&engine);
    sender.publish("doors/a/front", "{\"is_open\": true}");
    // What the payload says of a column of the topic does not count.
    sender.publish("in/a/7/celsius/mean/hour", "{\"celsius\": 21, \"device\": \"liar\"}");
    assert_eq!(listener.next_json(), ("out/a".into(), row("7", "in/a/7/celsius/mean/hour", "mean/hour", 21.0)));
    sender.publish("in/a/8/celsius", "[{\"celsius\": 22}, {\"celsius\": 3}, {\"celsius\": 23}]");
    assert_eq!(listener.next_json().1, row("8", "in/a/8/celsius", "", 22.0));
    assert_eq!(listener.next_json().1, row("8", "in/a/8/celsius", "", 23.0));
    sender.publish("in/a/9/celsius", "broken");
    let (topic, letter) = listener.next_json();
    assert_eq!((topic.as_str(), letter["payload"].as_str()), ("out/dead", Some("broken")), "{letter}");
    let explained = run(&engine, "EXPLAIN APPLICATION warm");
    let text = format!("{explained:?}");
    assert!(text.contains("a level of the topic") && text.contains("the topic"), "{text}");
    engine.shutdown();
}

#[test]
fn many_queries_on_one_filter_know_it_too() {
    const QUERIES: usize = 20;
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    for (name, column, option, device) in
        [("a", "device", "level_columns", "device"), ("b", "topic", "topic_column", "split_part(topic, '/', 2)")]
    {
        run(
            &engine,
            &format!(
                "CREATE APPLICATION {name} (who TEXT) INPUT numbers ({column} TEXT, n BIGINT) FROM 'mqtt:in/+' \
                 FORMAT JSON WITH ({option} => '{column}') OUTPUT 'mqtt:out/{name}/{{who}}' FORMAT JSON \
                 AS SELECT {column}, n FROM numbers WHERE {device} = $who"
            ),
        );
        for query in 0..QUERIES {
            run(&engine, &format!("CREATE QUERY {name}{query} FROM APPLICATION {name} WITH (who => '{query}')"));
        }
    }
    assert!(engine.metrics().contains("rivulet_shared_topics 2\n"), "{}", engine.metrics());
    let (mut sender, mut listener) = clients(&engine);
    for n in 0..QUERIES {
        sender.publish(&format!("in/{n}"), &format!("{{\"n\": {n}}}"));
    }
    let mut heard = BTreeMap::new();
    while heard.len() < 2 * QUERIES {
        let (topic, row) = listener.next_json();
        heard.insert(topic, row);
    }
    for n in 0..QUERIES {
        assert_eq!(heard[&format!("out/a/{n}")], json!({ "device": n.to_string(), "n": n }));
        assert_eq!(heard[&format!("out/b/{n}")], json!({ "topic": format!("in/{n}"), "n": n }));
    }
    engine.shutdown();
}

#[test]
fn the_log_keeps_the_topic_through_a_crash() {
    let folder = TempDir::new().expect("a folder");
    let minute = |n: i64| 1_700_006_400_000 + n * 60_000;
    let mqtt = free_port();
    let mut server = Server::start_at(folder.path(), mqtt, 0);
    server.sql_ok(
        "CREATE APPLICATION of_devices INPUT readings (ts TIMESTAMP EVENT TIME, device TEXT, n BIGINT) \
         FROM 'mqtt:in/+' FORMAT JSON \
         WITH (level_columns => 'device', durability => 'log', idle_timeout => INTERVAL '1000 days') \
         OUTPUT 'mqtt:out/devices' FORMAT JSON \
         AS SELECT device, sum(n) AS n FROM readings GROUP BY tumble(ts, INTERVAL '1 minute'), device; \
         CREATE QUERY q FROM APPLICATION of_devices",
    );
    let mut sender = Publisher::connect(mqtt);
    for n in 0..10 {
        let payload = json!({ "ts": minute(0) + n, "n": n });
        sender.publish(&format!("in/d{}", n % 2), &payload.to_string());
    }
    wait_until("the log has all", || server.status()["log"]["durable"].as_u64() >= Some(10));
    server.kill_9();
    let server = Server::start_at(folder.path(), mqtt, 0);
    let (mut sender, mut listener) = (Publisher::connect(mqtt), Publisher::connect(mqtt));
    listener.subscribe("out/#");
    assert!(server.status()["log"]["durable"].as_u64() >= Some(10));
    sender.publish("in/d0", &json!({ "ts": minute(2), "n": 0 }).to_string());
    let mut rows = [listener.next_json().1, listener.next_json().1];
    rows.sort_by_key(Value::to_string);
    assert_eq!(rows, [json!({ "device": "d0", "n": 20 }), json!({ "device": "d1", "n": 25 })]);
}

#[test]
fn wrong_columns_of_topics_are_refused_where_they_stand() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let refused = |from: &str, with: &str| {
        let text = format!(
            "CREATE APPLICATION a (p TEXT)\nINPUT t (a TEXT, b TEXT, n BIGINT) {from} FORMAT JSON\nWITH ({with})\n\
             OUTPUT 'mqtt:out/{{p}}' FORMAT JSON AS SELECT n FROM t"
        );
        let error = engine.create_application(&text).expect_err(&text);
        (error.line, error.column, format!("{}\n{}", error.message, error.hint.unwrap_or_default()))
    };
    for (from, with, column, expected) in [
        ("FROM 'mqtt:in/+'", "topic_column => 'c'", 23, "no such column\ndeclare it as well: c TEXT"),
        ("FROM 'mqtt:in/+'", "topic_column => 'n'", 23, "which is BIGINT\ndeclare it as TEXT"),
        ("FROM 'mqtt:in/+'", "topic_column => 'a', level_columns => 'a'", 45, "a second time"),
        ("FROM 'mqtt:in/+'", "level_columns => 'a, b'", 24, "names 2 columns, and 'in/+' has 1 wildcards"),
        ("FROM 'mqtt:in/{p}'", "level_columns => 'a'", 24, "has 0 wildcards"),
        ("", "level_columns => 'a'", 24, "each query gives its own address\nuse topic_column"),
    ] {
        let (line, at, text) = refused(from, with);
        assert!(text.contains(expected), "{with}: {text}");
        assert_eq!((line, at), (Some(3), Some(column)), "{with}: {text}");
    }
    engine.shutdown();
}

#[test]
fn times_are_read_and_written_as_formats_say_and_functions_are_listed() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(
        &engine,
        "CREATE APPLICATION meter INPUT readings (ts TIMESTAMP EVENT TIME, day TIMESTAMP, n BIGINT) FROM 'mqtt:in/m' \
         FORMAT JSON (timestamp => 'seconds', timestamp.day => '%d.%m.%Y') \
         OUTPUT 'mqtt:out/m' FORMAT JSON (timestamp => 'seconds', timestamp.day => '%Y/%m/%d') \
         AS SELECT ts, day, n FROM readings; CREATE QUERY q FROM APPLICATION meter",
    );
    let (mut sender, mut listener) = clients(&engine);
    sender.publish("in/m", "{\"ts\": 1700000000, \"day\": \"14.11.2023\", \"n\": 1}");
    assert_eq!(listener.next_json().1, json!({ "ts": 1_700_000_000, "day": "2023/11/14", "n": 1 }));
    for (option, expected) in [
        ("timestamp => 'weeks'", "'weeks', which is no unit"),
        ("timestamp.n => 'seconds'", "that column is Int64"),
        ("timestamp.m => 'seconds'", "there is no such column"),
    ] {
        let text = format!(
            "CREATE APPLICATION wrong INPUT t (ts TIMESTAMP, n BIGINT) FROM 'mqtt:t' FORMAT JSON ({option}) \
             OUTPUT 'mqtt:o' FORMAT JSON AS SELECT n FROM t"
        );
        let error = engine.create_application(&text).expect_err(option);
        assert!(error.message.contains(expected) && error.line == Some(1) && error.hint.is_some(), "{error}");
    }
    let shown = run(&engine, "SHOW FUNCTIONS LIKE 'sha%' LIMIT 2");
    assert_eq!(shown.rows.len(), 2);
    assert_eq!(shown.rows[0][..2], [json!("sha224"), json!("Hashing")]);
    let described = run(&engine, "DESCRIBE FUNCTION MEAN");
    assert_eq!(described.rows[0], [json!("name"), json!("avg")]);
    let described = run(&engine, "DESCRIBE FUNCTION now");
    assert!(described.rows.iter().any(|row| row[1].as_str().is_some_and(|text| text.contains("arrival_time"))));
    let error = engine.execute("DESCRIBE FUNCTION sha265").pop().expect("an answer").expect_err("there is none");
    assert_eq!((error.column, error.hint.as_deref()), (Some(19), Some("did you mean 'sha256'?")));
    engine.shutdown();
}
