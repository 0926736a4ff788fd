//! Results with parts: nested objects, lists and JSON, over MQTT and through a restart.

use rivulet::engine::Engine;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checkpoints::run;
use crate::engine::open;
use crate::server::{Publisher, wait};
use crate::support::AsOperator;

const BEACONS: &str = "CREATE APPLICATION beacons (site TEXT, between TEXT DEFAULT ' > ')
    INPUT beacons (device TEXT, \"radio.rssi\" DOUBLE) FROM 'mqtt:in/{site}' FORMAT JSON
    OUTPUT objects 'mqtt:out/{site}/objects' FORMAT JSON (nested => true)
    OUTPUT fields 'mqtt:out/{site}/fields' FORMAT JSON
    OUTPUT texts 'mqtt:out/{site}/texts' FORMAT CSV
    AS SELECT max(\"radio.rssi\") AS \"radio.rssi\", array_agg(device) AS \"radio.devices\",
              string_agg(device, $between ORDER BY \"radio.rssi\" DESC) AS path,
              json_object('n', count(*), 'site', $site) AS about
       FROM beacons GROUP BY count_window(3)";

/// A client that publishes, and one that hears all results.
pub(crate) fn clients(engine: &Engine) -> (Publisher, Publisher) {
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(broker);
    listener.subscribe("out/#");
    (Publisher::connect(broker), listener)
}

#[test]
fn json_is_written_as_it_is_and_names_with_dots_as_objects_where_asked() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, BEACONS);
    run(&engine, "CREATE QUERY q FROM APPLICATION beacons WITH (site => 's')");
    let (mut sender, listener) = clients(&engine);
    for (device, rssi) in [("a", -70), ("say \\\"b\\\"", -60)] {
        sender.publish("in/s", &format!("{{\"device\": \"{device}\", \"radio\": {{\"rssi\": {rssi}}}}}"));
    }
    // What is still on its way when the server stops is lost.
    wait("both events", || engine.status().applications[0].events == 2);
    // The list is kept.
    run(&engine, "CHECKPOINT");
    drop((sender, listener));
    engine.shutdown();
    drop(engine);
    let engine = open(folder.path());
    let (mut sender, mut listener) = clients(&engine);
    sender.publish("in/s", "{\"device\": \"c\", \"radio\": {\"rssi\": -80}}");
    let mut heard: Vec<(String, String)> = Vec::new();
    while heard.len() < 3 {
        let (topic, payload) = listener.next();
        heard.push((topic, String::from_utf8(payload).expect("text")));
    }
    let of = |topic: &str| heard.iter().find(|one| one.0 == topic).expect("a result of each output").1.clone();
    let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let devices = json!(["a", "say \"b\"", "c"]);
    let path = "say \"b\" > a > c";
    let about = json!({ "n": 3, "site": "s" });
    let objects = json!({ "radio": { "rssi": -60.0, "devices": devices }, "path": path, "about": about });
    assert_eq!(read(&of("out/s/objects")), objects);
    let fields = json!({ "radio.rssi": -60.0, "radio.devices": devices, "path": path, "about": about });
    assert_eq!(read(&of("out/s/fields")), fields);
    assert!(of("out/s/texts").starts_with("-60.0,\"[\"\"a\"\""), "{}", of("out/s/texts"));
    engine.shutdown();
}

#[test]
fn wrong_nesting_is_refused_where_it_stands() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    for (format, columns, expected) in [
        ("JSON (nested => true)", "n AS a, n AS \"a.b\"", "cannot write the column 'a' as an object and as a value"),
        ("JSON (nested => 'deep')", "n", "has 'nested' 'deep'"),
        ("CSV (nested => true)", "n", "nested"),
    ] {
        let text = format!(
            "CREATE APPLICATION a INPUT t (n BIGINT) FROM 'mqtt:in' FORMAT JSON\n\
             OUTPUT 'mqtt:out' FORMAT {format}\nAS SELECT {columns} FROM t"
        );
        let error = engine.create_application(&text).expect_err(&text);
        assert!(error.message.contains(expected) && error.hint.is_some(), "{error}");
        assert_eq!(error.line, Some(2), "{error}");
    }
    engine.shutdown();
}

#[test]
fn arrays_of_events_have_elements_and_come_out_as_arrays() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(
        &engine,
        "CREATE APPLICATION packs (site TEXT)
         INPUT packs (tags TEXT ARRAY, readings DOUBLE[]) FROM 'mqtt:in/{site}' FORMAT JSON
         OUTPUT 'mqtt:out/{site}' FORMAT JSON
         AS SELECT tags, tags[1] AS first, reading * 2 AS double, number, cardinality(readings) AS n
            FROM packs CROSS JOIN UNNEST(readings) WITH ORDINALITY AS r (reading, number)
            WHERE array_contains(tags, 'hot')",
    );
    run(&engine, "CREATE QUERY q FROM APPLICATION packs WITH (site => 's')");
    let (mut sender, mut listener) = clients(&engine);
    sender.publish("in/s", r#"{"tags": ["cold"], "readings": [1]}"#);
    sender.publish("in/s", r#"{"tags": ["hot"], "readings": ["warm"]}"#);
    sender.publish("in/s", r#"{"tags": ["hot", "new"], "readings": [1.5, 4]}"#);
    let mut next = || serde_json::from_slice::<Value>(&listener.next().1).expect("JSON");
    let of = |double: f64, number: i64| json!({ "tags": ["hot", "new"], "first": "hot", "double": double, "number": number, "n": 2 });
    assert_eq!([next(), next()], [of(3.0, 1), of(8.0, 2)]);
    engine.shutdown();
}
