//! Applications with several inputs and outputs, over MQTT: animal care, and what becomes of broken events, pauses and
//! restarts.

use std::path::Path;

use tempfile::TempDir;

use crate::engine::open;
use crate::server::{Publisher, now_ms};
use crate::support::AsOperator;
use crate::tables::said;

/// Metres between two places given in degrees, on a sphere.
fn metres(one: (f64, f64), other: (f64, f64)) -> f64 {
    let [(lat1, lon1), (lat2, lon2)] = [one, other].map(|(lat, lon)| (lat.to_radians(), lon.to_radians()));
    let half = |one: f64, other: f64| ((one - other) / 2.0).sin().powi(2);
    2.0 * 6_371_008.8 * (half(lat1, lat2) + lat1.cos() * lat2.cos() * half(lon1, lon2)).sqrt().asin()
}

#[test]
fn a_dog_that_strays_from_its_flock_is_told_once_and_so_is_its_return() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let example = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is"))
        .join("../../examples/animal_care.sql");
    said(&engine, &std::fs::read_to_string(example).expect("the example"));
    said(&engine, "CREATE QUERY upper FROM APPLICATION animal_care WITH (herd => 'upper')");
    said(&engine, "CREATE QUERY lower FROM APPLICATION animal_care WITH (herd => 'lower', distance => 100000)");
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut farmer = Publisher::connect(broker);
    farmer.subscribe("herd/+/stray");

    // The flock grazes; the dog runs a kilometre north and comes back, fifteen metres a second.
    let (start_ms, steps) = (now_ms() as i64 - 200_000, 130);
    let flock = |step: i64| (-36.7 + (step % 7) as f64 * 1e-6, 146.7 + (step % 5) as f64 * 1e-6);
    let dog = |step: i64| (-36.7 + (65 - (step - 65).abs()) as f64 * 15.0 / 111_195.0, 146.7);
    let mut expected = vec![];
    let (mut dog_at, mut flock_at, mut state): (_, _, Option<bool>) = (None, None, None);
    let mut collars = Publisher::connect(broker);
    for step in 0..steps {
        let ts = start_ms + step * 1_000;
        for (topic, place) in [("dog", dog(step)), ("animal/dolly", flock(step))] {
            for herd in ["upper", "lower"] {
                collars.publish(
                    &format!("herd/{herd}/{topic}"),
                    &format!("{{\"ts\": {ts}, \"lat\": {}, \"lon\": {}}}", place.0, place.1),
                );
            }
            if topic == "dog" {
                dog_at = Some(place)
            } else {
                flock_at = Some(place)
            }
            let (Some(dog_at), Some(flock_at)) = (dog_at, flock_at) else { continue };
            let apart = metres(dog_at, flock_at);
            let is_astray = apart > 500.0;
            if state.replace(is_astray) != Some(is_astray) {
                expected.push((is_astray, apart));
            }
        }
    }
    assert_eq!(expected.iter().map(|one| one.0).collect::<Vec<_>>(), [false, true, false]);
    let mut found = Vec::new();
    while found.len() < expected.len() {
        let (topic, payload) = farmer.next();
        let row: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
        match topic.as_str() {
            "herd/upper/stray" => {
                found.push((row["stray"].as_bool().expect("stray"), row["metres"].as_f64().expect("metres")))
            }
            _ => assert_eq!((topic.as_str(), row["stray"].as_bool()), ("herd/lower/stray", Some(false))),
        }
    }
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6, "{found:?} instead of {expected:?}");
    }
}

const HOUSE: &str = "CREATE APPLICATION house (home TEXT, limit_ DOUBLE DEFAULT 30)
    INPUT indoor (value DOUBLE) FROM 'mqtt:{home}/indoor' FORMAT JSON WITH (dead_letter => 'mqtt:{home}/dead/indoor')
    INPUT outdoor (value DOUBLE) FORMAT TEXT WITH (dead_letter => 'mqtt:{home}/dead/outdoor')
    OUTPUT hot 'mqtt:{home}/hot' FORMAT JSON WHEN value > $limit_
    OUTPUT every FORMAT CSV
    AS SELECT value, place FROM (SELECT value, 'in' AS place FROM indoor UNION ALL SELECT value, 'out' FROM outdoor) AS both";

#[test]
fn rows_of_all_inputs_reach_the_outputs_that_want_them() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    said(&engine, HOUSE);
    said(
        &engine,
        "CREATE QUERY h FROM APPLICATION house WITH (home => 'h', outdoor => 'mqtt:garden/+', every => 'h/every')",
    );
    let shown = engine.query("h").expect("it is there");
    assert_eq!((shown.input_topic.as_str(), shown.output_topic.as_str()), ("h/indoor, garden/+", "h/hot, h/every"));
    let connect = |engine: &rivulet::engine::Engine| {
        let broker = engine.embedded_broker_address().expect("a broker");
        let mut listener = Publisher::connect(broker);
        ["h/hot", "h/every", "h/dead/+"].into_iter().for_each(|filter| listener.subscribe(filter));
        (Publisher::connect(broker), listener)
    };
    let (mut publisher, mut listener) = connect(&engine);
    publisher.publish("h/indoor", "{\"value\": 20}");
    publisher.publish("garden/north", "31.5");
    publisher.publish("garden/south", "warm");
    publisher.publish("h/indoor", "{\"value\": 40}");
    publisher.publish("h/indoor", "{}");
    publisher.publish("h/indoor", "broken");
    publisher.publish("garden/north", "1");
    let mut seen = Vec::new();
    while seen.len() < 9 {
        let (topic, payload) = listener.next();
        let text = String::from_utf8(payload).expect("text");
        let dead = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON")["payload"].to_string();
        seen.push(if topic.contains("dead") { format!("{topic} {}", dead(&text)) } else { format!("{topic} {text}") });
    }
    // What is published within the same topic keeps its order.
    let of = |topic: &str| seen.iter().filter_map(|one| one.strip_prefix(topic)).map(str::trim).collect::<Vec<_>>();
    assert_eq!(of("h/every "), ["20.0,in", "31.5,out", "40.0,in", ",in", "1.0,out"], "{seen:?}");
    assert_eq!(of("h/hot "), ["{\"value\":31.5,\"place\":\"out\"}", "{\"value\":40.0,\"place\":\"in\"}"]);
    assert_eq!(of("h/dead/outdoor "), ["\"warm\""]);
    assert_eq!(of("h/dead/indoor "), ["\"broken\""]);
    let metrics = engine.metrics();
    for line in ["{application=\"house\",output=\"hot\"} 2", "{application=\"house\",output=\"every\"} 5"] {
        assert!(metrics.contains(&format!("rivulet_output_rows_total{line}")), "{line} in {metrics}");
    }
    let explained = engine.explain("house").expect("words");
    for part in [
        "input outdoor from mqtt:{outdoor}, format text",
        "output hot to mqtt:{home}/hot, format json",
        "when value > $limit_",
    ] {
        assert!(explained.contains(part), "{part} in {explained}");
    }

    // Neither input reaches a paused query; after a restart both do again.
    engine.pause("h").expect("paused");
    publisher.publish("h/indoor", "{\"value\": 99}");
    publisher.publish("garden/north", "99");
    drop(listener);
    engine.resume("h").expect("resumed");
    drop((publisher, engine));
    let engine = open(folder.path());
    let (mut publisher, mut listener) = connect(&engine);
    publisher.publish("garden/north", "2");
    assert_eq!(listener.next().1, b"2.0,out");
    publisher.publish("h/indoor", "{\"value\": 3}");
    assert_eq!(listener.next().1, b"3.0,in");
    said(&engine, "DROP APPLICATION house CASCADE");
    let error =
        engine.create_application(&HOUSE.replace("mqtt:{home}/hot", "kafka:hot")).expect_err("no such connector");
    assert_eq!((error.line, error.column), (Some(4), Some(16)));
}

#[test]
fn an_application_reads_the_windows_of_another_one() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    said(
        &engine,
        "CREATE APPLICATION means (room TEXT)
         INPUT readings (ts TIMESTAMP EVENT TIME, celsius DOUBLE) FROM 'mqtt:in/{room}' FORMAT JSON
         OUTPUT 'mqtt:mean/{room}' FORMAT JSON
         AS SELECT avg(celsius) AS celsius, window_start, window_end FROM readings
            GROUP BY tumble(ts, INTERVAL '1 second');
         CREATE APPLICATION tops (room TEXT)
         INPUT means (window_start TIMESTAMP, window_end TIMESTAMP EVENT TIME, celsius DOUBLE)
         FROM 'mqtt:mean/{room}' FORMAT JSON
         OUTPUT 'mqtt:top/{room}' FORMAT JSON
         AS SELECT max(celsius) AS celsius, min(means.window_start) AS first, window_start, window_end FROM means
            GROUP BY tumble(window_end, INTERVAL '10 seconds');
         CREATE QUERY m FROM APPLICATION means WITH (room => 'hall');
         CREATE QUERY t FROM APPLICATION tops WITH (room => 'hall')",
    );
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(broker);
    listener.subscribe("top/hall");
    let mut device = Publisher::connect(broker);
    let start_ms = (now_ms() as i64 - 60_000) / 10_000 * 10_000;
    for (after_ms, celsius) in [(1_500, 20), (1_600, 30), (4_500, 24), (12_500, 10), (14_500, 10)] {
        device.publish("in/hall", &format!("{{\"ts\": {}, \"celsius\": {celsius}}}", start_ms + after_ms));
    }
    let (_, payload) = listener.next();
    let row: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!(row["celsius"], 25.0, "{row}");
    assert_eq!(row["first"], start_ms + 1_000, "{row}");
    assert_eq!(row["window_start"], start_ms, "{row}");
    assert_eq!(row["window_end"], start_ms + 10_000, "{row}");
}
