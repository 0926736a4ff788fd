//! `rivulet app test`, and `rivulet run` with applications: the real program, on scripts as a user would write them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rivulet::engine::Engine;
use rivulet::trial::{parse_event, parse_time_us};
use rivulet_testing::page::root;
use serde_json::Value;
use tempfile::TempDir;

use crate::engine::configuration;
use crate::server::{Publisher, free_port};
use crate::support::{AsOperator, exchange, request, wait_until};
use crate::tables::said;

/// Runs the program in a folder, with this standard input.
fn rivulet(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rivulet"))
        .current_dir(folder)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    // A program that fails early reads nothing.
    let _ = child.stdin.take().expect("standard input").write_all(input.as_bytes());
    child.wait_with_output().expect("its end")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// What `rivulet app test` tells of these events, as JSON.
fn told(script: &str, parameters: &str, events: &str) -> Vec<Value> {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("app.sql"), script).expect("written");
    let mut arguments = vec!["--json", "app", "test", "app.sql", "--input", "-"];
    if !parameters.is_empty() {
        arguments.extend(["--parameters", parameters]);
    }
    let done = rivulet(folder.path(), &arguments, events);
    assert!(done.status.success(), "{}", text(&done.stderr));
    text(&done.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Every example has events, parameters and expected results. `RIVULET_UPDATE=1` writes the results, for a person to
/// read.
#[test]
fn every_example_gives_what_is_expected() {
    let mut count = 0;
    for folder in ["examples", "examples/recipes"] {
        for entry in fs::read_dir(root().join(folder)).expect("the examples") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|end| end != "sql") {
                continue;
            }
            let name = path.file_stem().expect("a name").to_str().expect("text");
            let of = |what: &str| format!("{folder}/{what}/{name}.ndjson");
            let (script, events, sets, expected) =
                (format!("{folder}/{name}.sql"), of("events"), of("parameters"), of("expected"));
            let mut arguments = vec!["app", "test", &script, "--input", &events, "--parameters", &sets];
            if std::env::var_os("RIVULET_UPDATE").is_some() {
                let done = rivulet(&root(), &[&["--json"], &arguments[..]].concat(), "");
                let results: String = text(&done.stdout)
                    .lines()
                    .filter(|line| line.starts_with("{\"kind\":\"result\""))
                    .map(|line| format!("{line}\n"))
                    .collect();
                fs::write(root().join(&expected), results).expect("written");
            }
            arguments.extend(["--expect", &expected]);
            let done = rivulet(&root(), &arguments, "");
            assert!(done.status.success(), "{script}: {}", text(&done.stderr));
            assert!(!fs::read_to_string(root().join(&expected)).expect("results").is_empty(), "{script} shows nothing");
            count += 1;
        }
    }
    assert!(count >= 30, "only {count} examples");
}

/// A server gives the same results as soon as it has the same events: those that the trial's clock has not brought
/// about behind the last event. Windows that one event closes together may come in another order.
#[test]
fn a_server_gives_what_a_trial_gives() {
    for folder in ["examples", "examples/recipes"] {
        for entry in fs::read_dir(root().join(folder)).expect("the examples") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|end| end == "sql") {
                compare_with_server(&root().join(folder), path.file_stem().expect("a name").to_str().expect("text"));
            }
        }
    }
}

fn compare_with_server(folder: &Path, name: &str) {
    let lines = |what: &str| {
        let text = fs::read_to_string(folder.join(what).join(format!("{name}.ndjson"))).expect("a file");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let data = TempDir::new().expect("a folder");
    let mut config = configuration(data.path());
    config.files.allow = vec![folder.to_owned()];
    let engine = Engine::open(config).expect("an engine");
    let script = fs::read_to_string(folder.join(format!("{name}.sql"))).expect("a script");
    let http = free_port();
    let script = script.replace("127.0.0.1:8090", &http.to_string());
    engine.execute(&script).into_iter().for_each(|answer| drop(answer.expect(name)));
    let application = engine.applications().pop().expect("an application").name;
    for (number, values) in lines("parameters").iter().enumerate() {
        let values: serde_json::Map<String, Value> = serde_json::from_str(values).expect("JSON");
        let value = |(name, value): (&String, &Value)| format!("{name} => {}", value.to_string().replace('"', "'"));
        let values: Vec<String> = values.iter().map(value).collect();
        let with = values.join(", ");
        said(&engine, &format!("CREATE QUERY q{number} FROM APPLICATION {application} WITH ({with})"));
    }
    let only_topic = engine.query("q0").expect("a query").input_topic;
    let events: Vec<_> = lines("events").iter().map(|line| parse_event(line, 1).expect("an event")).collect();
    let time_ms = |payload: &[u8]| serde_json::from_slice::<Value>(payload).ok()?["ts"].as_i64();
    let last_ms = events.iter().filter_map(|event| time_ms(&event.payload)).max().expect("a time");
    let expected: Vec<Value> = lines("expected").iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let is_by_event =
        |one: &&Value| parse_time_us(one["time"].as_str().expect("a time")).expect("a time") <= last_ms * 1_000;
    let shown = |topic: &str, payload: &Value| format!("{topic} {payload}");
    let topic = |one: &Value| one["topic"].as_str().expect("a topic").to_owned();
    let mut by_events: Vec<String> =
        expected.iter().filter(is_by_event).map(|one| shown(&topic(one), &one["payload"])).collect();
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(broker);
    listener.subscribe("#");
    let mut sender = Publisher::connect(broker);
    let is_posted = !engine.applications()[0].health.is_empty();
    if is_posted {
        wait_until("somebody listens", || std::net::TcpStream::connect(http).is_ok());
    }
    for event in &events {
        if is_posted {
            let body = std::str::from_utf8(&event.payload).expect("text");
            assert_eq!(exchange(http, &request("POST", "/readings", "", body)).0, 202);
            continue;
        }
        let topic = event.topic.as_deref().unwrap_or(&only_topic);
        sender.publish(topic, std::str::from_utf8(&event.payload).expect("text"));
    }
    let mut found = Vec::new();
    while found.len() < by_events.len() {
        let (to, payload) = listener.next();
        if expected.iter().any(|one| topic(one) == to) {
            found.push(shown(&to, &serde_json::from_slice(&payload).expect("JSON")));
        }
    }
    by_events.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, by_events, "{name}");
}

/// The page of recipes has the statements that are tested.
#[test]
fn the_page_of_recipes_is_that_of_the_files() {
    let page = fs::read_to_string(root().join("docs/sql/recipes.md")).expect("the page");
    for entry in fs::read_dir(root().join("examples/recipes")).expect("the recipes") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "sql") {
            let text = fs::read_to_string(&path).expect("text");
            let begin = text.find("CREATE APPLICATION").expect("an application");
            let end = begin + text[begin..].find(";\n").expect("its end");
            assert!(page.contains(&text[begin..=end]), "{} is another one on the page", path.display());
        }
    }
}

const LIMIT: &str = "CREATE APPLICATION too_warm (room TEXT, most DOUBLE DEFAULT 25.0)
    INPUT readings (ts TIMESTAMP EVENT TIME, celsius DOUBLE) FROM 'mqtt:room/{room}/celsius' FORMAT JSON
    OUTPUT 'mqtt:room/{room}/warm' FORMAT JSON
    AS SELECT ts, celsius FROM readings WHERE celsius > $most;";

#[test]
fn messages_of_a_source_come_by_its_address_and_their_key() {
    let script = "CREATE APPLICATION fast (vehicle TEXT, most DOUBLE DEFAULT 130)
        INPUT speeds (sent TIMESTAMP EVENT TIME, vehicle TEXT, kmh DOUBLE, place BIGINT)
          FROM 'kafka:localhost:9092/speeds' FORMAT JSON
          WITH (key => '{vehicle}', key_column => 'vehicle', timestamp_column => 'sent', offset_column => 'place')
        OUTPUT 'mqtt:vehicle/{vehicle}/fast' FORMAT JSON AS SELECT vehicle, kmh, place FROM speeds WHERE kmh > $most";
    let events = "{\"key\": \"7\", \"payload\": {\"kmh\": 140, \"vehicle\": \"liar\"}}
        {\"topic\": \"kafka:localhost:9092/speeds\", \"key\": \"8\", \"payload\": {\"kmh\": 150}}
        {\"topic\": \"kafka:localhost:9092/speeds\", \"key\": \"7\", \"payload\": {\"kmh\": 131}}";
    let told = told(script, "{\"vehicle\": \"7\"}", events);
    let results: Vec<&Value> = told.iter().filter(|one| one["kind"] == "result").map(|one| &one["payload"]).collect();
    let expected = [(140.0, 1), (131.0, 3)];
    let expected = expected.map(|(kmh, place)| serde_json::json!({ "vehicle": "7", "kmh": kmh, "place": place }));
    assert_eq!(results, expected.iter().collect::<Vec<_>>());
    let other = told.iter().find(|one| one["kind"] == "nothing").expect("the other key");
    assert_eq!(other["topic"], "kafka:localhost:9092/speeds (key 8)", "{other}");
}

#[test]
fn it_is_told_why_an_event_gives_nothing() {
    let minute = "CREATE APPLICATION means (room TEXT)
        INPUT readings (ts TIMESTAMP EVENT TIME, celsius DOUBLE) FROM 'mqtt:room/{room}/celsius' FORMAT JSON
          WITH (late => 'mqtt:room/{room}/late', dead_letter => 'mqtt:room/{room}/refused')
        OUTPUT 'mqtt:room/{room}/mean' FORMAT JSON
        AS SELECT avg(celsius) AS celsius FROM readings GROUP BY tumble(ts, INTERVAL '1 minute')
           HAVING avg(celsius) > 20;";
    let change = "CREATE APPLICATION changes
        INPUT readings (value DOUBLE) FROM 'mqtt:in' FORMAT JSON OUTPUT 'mqtt:out' FORMAT JSON
        AS SELECT value FROM readings EMIT ON CHANGE;";
    let room = "{\"room\": \"a\"}";
    for (script, parameters, events, expected) in [
        (LIMIT, room, r#"{"ts": 1000, "celsius": 20}"#, &["nothing: this is not so: celsius > $most"][..]),
        (LIMIT, room, r#"{"ts": 1000}"#, &["nothing: this is not so: celsius > $most"]),
        (LIMIT, room, r#"{"ts": "x", "celsius": 20}"#, &["refused: decode"]),
        (
            LIMIT,
            room,
            r#"{"topic": "room/b/celsius", "payload": {"ts": 1000, "celsius": 30}}"#,
            &["nothing: no query reads this topic, only room/a/celsius"],
        ),
        (
            LIMIT,
            room,
            r#"{"payload": {"ts": "2026-01-01T01:00:00Z", "celsius": 30}, "arrival": "2026-01-01T00:00:00Z"}"#,
            &["refused: future"],
        ),
        (
            minute,
            room,
            "{\"ts\": 1000, \"celsius\": 21}\n{\"ts\": 61000, \"celsius\": 19}\n{\"ts\": 2000, \"celsius\": 22}\nno",
            &[
                "nothing: it is in a window that a later event closes, or the clock at 1970-01-01T00:01:00.000Z",
                "result: room/a/mean",
                "nothing: it is in a window that a later event closes, or the clock at 1970-01-01T00:02:00.000Z",
                "refused: late",
                "result: room/a/late",
                "refused: decode",
                "result: room/a/refused",
            ],
        ),
        (
            change,
            "",
            "{\"value\": 1}\n{\"value\": 1}",
            &["result: out", "nothing: the result is the one before, and only changes are emitted"],
        ),
    ] {
        let told = told(script, parameters, events);
        let shown: Vec<String> = told
            .iter()
            .map(|one| {
                let what = ["why", "reason", "topic"].into_iter().find_map(|name| match (name, &one["kind"]) {
                    ("topic", Value::String(kind)) if kind != "result" => None,
                    _ => one[name].as_str(),
                });
                format!("{}: {}", one["kind"].as_str().unwrap_or_default(), what.unwrap_or_default())
            })
            .collect();
        let mut sorted: (Vec<&str>, Vec<&str>) = (shown.iter().map(String::as_str).collect(), expected.to_vec());
        // Of one event it does not matter what is told first.
        sorted.0.sort_unstable();
        sorted.1.sort_unstable();
        assert_eq!(sorted.0, sorted.1, "{events}: {told:#?}");
    }
}

#[test]
fn the_clock_follows_the_events_and_then_goes_on() {
    let script = "CREATE APPLICATION counts
        INPUT readings (value DOUBLE) FROM 'mqtt:in' FORMAT JSON OUTPUT 'mqtt:out' FORMAT JSON
        AS SELECT count(*) AS n, window_end FROM readings GROUP BY tumble(arrival_time, INTERVAL '10 seconds');";
    // Without a time an event comes a second after the event before it.
    let events = "{\"value\": 1}\n".repeat(11) + "{\"payload\": {\"value\": 1}, \"arrival\": \"2026-01-01T00:00:25Z\"}";
    let told = told(script, "", &events);
    let results: Vec<(&str, u64)> = told
        .iter()
        .filter(|one| one["kind"] == "result")
        .map(|one| (one["time"].as_str().expect("a time"), one["payload"]["n"].as_u64().expect("a number")))
        .collect();
    assert_eq!(results.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [10, 1, 1], "{told:#?}");
    assert!(results[2].0 > "2026-01-01T00:00:30", "the last window closes by the clock: {results:?}");
}

#[test]
fn queries_read_the_results_of_others_and_several_sets_stand_side_by_side() {
    let script = format!(
        "{LIMIT}
         CREATE APPLICATION counts (room TEXT)
         INPUT warm (celsius DOUBLE) FROM 'mqtt:room/{{room}}/warm' FORMAT JSON
         OUTPUT 'mqtt:room/{{room}}/count' FORMAT JSON
         AS SELECT count(*) AS n FROM warm GROUP BY count_window(2);
         CREATE QUERY a FROM APPLICATION too_warm WITH (room => 'a');
         CREATE QUERY b FROM APPLICATION too_warm WITH (room => 'b', most => 30);
         CREATE QUERY count_a FROM APPLICATION counts WITH (room => 'a');"
    );
    let event = |room: &str, celsius: u32| {
        format!("{{\"topic\": \"room/{room}/celsius\", \"payload\": {{\"ts\": 1000, \"celsius\": {celsius}}}}}\n")
    };
    let told = told(&script, "", &(event("a", 26) + &event("b", 26) + &event("a", 27) + &event("b", 31)));
    let topics: Vec<&str> =
        told.iter().filter(|one| one["kind"] == "result").filter_map(|one| one["topic"].as_str()).collect();
    assert_eq!(topics, ["room/a/warm", "room/a/warm", "room/a/count", "room/b/warm"], "{told:#?}");
}

#[test]
fn other_results_than_expected_are_a_failure_with_the_first_difference() {
    let folder = TempDir::new().expect("a folder");
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).expect("written");
    write("app.sql", LIMIT);
    write("sets.ndjson", "{\"room\": \"a\"}\n\n{\"room\": \"b\"}\n");
    let arguments = ["app", "test", "app.sql", "-i", "-", "-p", "sets.ndjson", "--expect", "expected.ndjson"];
    let event = "{\"topic\": \"room/b/celsius\", \"payload\": {\"ts\": 1000, \"celsius\": 30}}\n";
    write("expected.ndjson", "{\"topic\": \"room/b/warm\", \"payload\": {\"celsius\": 30.0, \"ts\": 1000}}\n");
    let done = rivulet(folder.path(), &arguments, event);
    assert!(done.status.success(), "{}", text(&done.stderr));
    write("expected.ndjson", "{\"topic\": \"room/b/warm\", \"payload\": {\"celsius\": 31, \"ts\": 1000}}\n");
    let done = rivulet(folder.path(), &arguments, event);
    assert_eq!(done.status.code(), Some(1));
    let said = text(&done.stderr);
    assert!(said.contains("result 1 of room/b/warm differs in 'celsius'\n- ") && said.contains("\n+ "), "{said}");
    // Wrong use is refused with a hint.
    for (arguments, input, expected) in [
        (&["app", "test", "app.sql", "-i", "-"][..], event, "--parameters"),
        (&["app", "test", "app.sql", "-i", "-", "-p", "{\"room\": [1]}"], event, "no single value"),
        (&["app", "test", "app.sql", "-i", "-", "-p", "sets.ndjson"], "{\"ts\": 1, \"celsius\": 9}", "has no topic"),
        (&["app", "test", "app.sql", "-i", "-", "-p", "{\"room\": \"a\", \"mots\": 1}"], event, "mots"),
        (&["app", "test", "none.sql", "-i", "-"], event, "none.sql"),
    ] {
        let done = rivulet(folder.path(), arguments, input);
        let said = text(&done.stderr);
        assert!(done.status.code() == Some(1) && said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn run_has_applications_read_and_write_files() {
    let folder = TempDir::new().expect("a folder");
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).expect("written");
    fs::create_dir(folder.path().join("scripts")).expect("made");
    write("scripts/rooms.csv", "room,floor\na,1\nb,2\n");
    write("a.ndjson", "{\"ts\": 1000, \"celsius\": 26}\n{\"ts\": 9000, \"celsius\": 28}\n");
    write("b.ndjson", "{\"ts\": 2000, \"celsius\": 20}\n{\"ts\": 4000, \"celsius\": 27}\n");
    write(
        "scripts/script.sql",
        "CREATE TABLE rooms (room TEXT NOT NULL, floor BIGINT) FROM 'file:rooms.csv' FORMAT CSV (header => true);
         CREATE APPLICATION too_warm (room TEXT, most DOUBLE DEFAULT 25.0)
         INPUT readings (ts TIMESTAMP EVENT TIME, celsius DOUBLE) FROM 'file:{room}.ndjson' FORMAT JSON
         OUTPUT 'file:out/warm.ndjson' FORMAT JSON
         AS SELECT $room AS room, r.floor, celsius FROM readings JOIN rooms AS r ON r.room = $room
            WHERE celsius > $most;
         CREATE QUERY a FROM APPLICATION too_warm WITH (room => 'a');
         CREATE QUERY b FROM APPLICATION too_warm WITH (room => 'b');
         CREATE SOURCE warm (room TEXT, floor BIGINT, celsius DOUBLE) FROM 'file:out/warm.ndjson' FORMAT JSON;
         SELECT room, max(celsius) AS celsius, max(floor) AS floor FROM warm GROUP BY room ORDER BY room;",
    );
    let done = rivulet(folder.path(), &["run", "scripts/script.sql", "--format", "csv"], "");
    assert_eq!(text(&done.stdout), "room,celsius,floor\na,28.0,1\nb,27.0,2\n", "{}", text(&done.stderr));
    let written = fs::read_to_string(folder.path().join("out/warm.ndjson")).expect("results");
    let rooms: Vec<String> =
        written.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["room"].to_string()).collect();
    assert_eq!(rooms, ["\"a\"", "\"b\"", "\"a\""], "the earliest event first: {written}");
    // Topics need events from somewhere.
    let topics = format!("{LIMIT} CREATE QUERY a FROM APPLICATION too_warm WITH (room => 'a');");
    let event = "{\"ts\": 1000, \"celsius\": 30}\n";
    let done = rivulet(folder.path(), &["run", "-c", &topics, "--input", "-", "--json"], event);
    assert!(text(&done.stdout).contains("\"payload\":{\"ts\":1000,\"celsius\":30.0}"), "{}", text(&done.stderr));
    let done = rivulet(folder.path(), &["run", "-c", &topics], event);
    assert!(done.status.code() == Some(1) && text(&done.stderr).contains("--input"), "{}", text(&done.stderr));
    let big = "CREATE SOURCE s (ts TIMESTAMP, celsius DOUBLE) FROM 'mqtt:a' FORMAT JSON; SELECT celsius FROM s";
    let done = rivulet(folder.path(), &["run", "-c", big, "-i", "-"], event);
    assert!(done.status.code() == Some(1), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("nothing reads --input"), "{}", text(&done.stderr));
    // Nothing was right.
    let done = rivulet(folder.path(), &["run", "-c", &topics, "--input", "-"], "{\"ts\": true}\n");
    assert!(done.status.code() == Some(1) && text(&done.stderr).contains("1 row"), "{}", text(&done.stderr));
}

/// The clock of a trial goes by the times in payloads, which are not computed.
#[test]
fn an_event_whose_time_is_computed_needs_an_arrival() {
    let script = "CREATE APPLICATION seconds INPUT t (sec BIGINT, ev AS to_timestamp(sec) EVENT TIME) \
         FROM 'mqtt:in' FORMAT JSON OUTPUT 'mqtt:out' FORMAT JSON AS SELECT sec FROM t; \
         CREATE QUERY q FROM APPLICATION seconds";
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("app.sql"), script).expect("written");
    let run = |events: &str| rivulet(folder.path(), &["app", "test", "app.sql", "--input", "-"], events);
    let done = run("{\"sec\": 1778000000}\n");
    let said = text(&done.stderr);
    assert!(!done.status.success() && said.contains("the event time of input 't' is computed"), "{said}");
    let done = run("{\"payload\": {\"sec\": 1778000000}, \"arrival\": 1778000000000}\n");
    assert!(done.status.success() && text(&done.stdout).contains("1778000000"), "{done:?}");
}

/// The payloads of the results, and why events were refused.
fn results_and_refusals(told: &[Value]) -> (Vec<Value>, Vec<String>) {
    let of = |kind: &'static str| told.iter().filter(move |one| one["kind"] == kind);
    let details = of("refused").map(|one| one["detail"].as_str().unwrap_or_default().to_owned());
    (of("result").map(|one| one["payload"].clone()).collect(), details.collect())
}

#[test]
fn a_sensor_that_says_nan_raises_no_alarm() {
    for (format, payloads) in [
        ("TEXT", [r#""nan""#, r#""Infinity""#, "31.5", "12"]),
        ("JSON", [r#"{"v":"NaN"}"#, r#"{"v":"-inf"}"#, r#"{"v":31.5}"#, r#"{"v":12}"#]),
        ("CSV", [r#""NaN""#, r#""inf""#, r#""31.5""#, r#""12""#]),
    ] {
        let script = format!(
            "CREATE APPLICATION alarm (most DOUBLE DEFAULT 30) INPUT s (v DOUBLE) FROM 'mqtt:state' FORMAT {format} \
             OUTPUT 'mqtt:alarm' FORMAT JSON AS SELECT v FROM s WHERE v > $most OR v < -30"
        );
        let events = payloads.map(|payload| format!("{{\"topic\":\"state\",\"payload\":{payload}}}\n")).concat();
        let (results, refusals) = results_and_refusals(&told(&script, "{}", &events));
        assert_eq!(results, [serde_json::json!({"v": 31.5})], "{format}");
        assert_eq!(refusals.len(), 2, "{format}: {refusals:?}");
        let help = "expected a finite number, found ";
        assert!(refusals.iter().all(|one| one.contains(help) && one.contains("AS DECIMAL(30, 9))")), "{refusals:?}");
    }
    // What the refusals say to write.
    let script = "CREATE APPLICATION alarm (most DOUBLE DEFAULT 30) \
         INPUT s (payload TEXT, v AS TRY_CAST(json_value(payload, '$.v') AS DECIMAL(30, 9))) FROM 'mqtt:state' \
         FORMAT TEXT OUTPUT 'mqtt:alarm' FORMAT JSON AS SELECT v FROM s WHERE v > $most OR v < -30";
    let payloads = [r#"{"v":"NaN"}"#, r#"{"v":"-inf"}"#, r#"{"v":"Infinity"}"#, r#"{"v":31.5}"#, r#"{"v":12}"#];
    let events = payloads.map(|payload| format!("{}\n", serde_json::json!({"topic": "state", "payload": payload})));
    let (results, refusals) = results_and_refusals(&told(script, "{}", &events.concat()));
    assert_eq!((results, refusals), (vec![serde_json::json!({"v": 31.5})], Vec::new()));
}

/// FORMAT RAW is for applications, too.
#[test]
fn a_payload_is_taken_and_given_as_it_is() {
    let script = "CREATE APPLICATION bytes INPUT s (payload TEXT, device TEXT) FROM 'mqtt:up/+' FORMAT RAW \
                  WITH (level_columns => 'device') OUTPUT 'mqtt:down' FORMAT RAW (encoding => 'hex') \
                  AS SELECT encode(payload || device, 'hex') AS payload FROM s";
    let event = serde_json::json!({"topic": "up/7", "payload": "[1, {"});
    let (results, refusals) = results_and_refusals(&told(script, "{}", &format!("{event}\n")));
    assert_eq!((results, refusals), (vec![serde_json::json!("[1, {7")], Vec::new()));
}

#[test]
fn a_column_of_an_input_holds_what_its_type_says() {
    const SCRIPT: &str = "CREATE APPLICATION types INPUT s (a SMALLINT, b TINYINT, c INT, d BIGINT) FROM 'mqtt:s' \
                          FORMAT JSON OUTPUT 'mqtt:o' FORMAT JSON AS SELECT a + a AS a, b * 2 AS b, c + c AS c, d FROM s";
    let fits = r#"{"a":32767,"b":-128,"c":2147483647,"d":1}"#;
    let events =
        [fits, r#"{"a":40000}"#, r#"{"b":128}"#, r#"{"c":-2147483649}"#].map(|one| format!("{one}\n")).concat();
    let (results, refusals) = results_and_refusals(&told(SCRIPT, "{}", &events));
    assert_eq!(results, [serde_json::json!({"a": 65534, "b": -256, "c": 4_294_967_294_i64, "d": 1})]);
    let reasons = ["40000 does not fit SMALLINT", "128 does not fit TINYINT", "-2147483649 does not fit INT"];
    assert_eq!(refusals.len(), reasons.len(), "{refusals:?}");
    for (refusal, reason) in refusals.iter().zip(reasons) {
        assert!(refusal.contains(reason), "{refusal}");
    }
}

/// One device sends seconds that the format reads as its times, the other ones that the application converts.
#[test]
fn seconds_with_a_fraction_are_the_same_time_however_they_are_read() {
    const SCRIPT: &str = "CREATE APPLICATION g \
        INPUT a (ts TIMESTAMP EVENT TIME, x BIGINT) FROM 'mqtt:a' FORMAT JSON (timestamp => 'seconds') \
        INPUT b (t DOUBLE, y BIGINT, ts AS to_timestamp(t) EVENT TIME) FROM 'mqtt:b' FORMAT JSON \
        OUTPUT 'mqtt:o' FORMAT JSON AS SELECT x FROM a JOIN b ON b.y = a.x AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1 second'";
    let times = (0..300).map(|number| format!("1770797494.{:03}", (number * 7 + 270) % 1000));
    let mut events = String::new();
    for (number, seconds) in times.enumerate() {
        let arrival = 1_770_797_500_000_i64 + number as i64;
        for (topic, time, other) in [("a", "ts", "x"), ("b", "t", "y")] {
            let event = format!("{{\"{time}\":{seconds},\"{other}\":{number}}}");
            events += &format!("{{\"topic\":\"{topic}\",\"arrival\":{arrival},\"payload\":{event}}}\n");
        }
    }
    let (results, refusals) = results_and_refusals(&told(SCRIPT, "{}", &events));
    assert_eq!((results.len(), refusals), (300, vec![]));
}

#[test]
fn a_header_with_a_delimiter_in_quotes_is_that_of_its_columns() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("in.csv"), "\"a,b\",c,\" d\"\n1,2,x\n4,5,y\n").expect("written");
    let declared =
        "CREATE SOURCE m (c BIGINT, \" d\" TEXT, \"a,b\" BIGINT) FROM 'file:in.csv' FORMAT CSV (header => true);
        CREATE SINK again TO 'file:again.csv' FORMAT CSV (header => true);
        CREATE TABLE n (\"a,b\" BIGINT, c BIGINT) FROM 'file:in.csv' FORMAT CSV (header => true);";
    let script = format!(
        "{declared} INSERT INTO again SELECT \" d\", \"a,b\" FROM m;
         CREATE SOURCE back (\"a,b\" BIGINT, \" d\" TEXT) FROM 'file:again.csv' FORMAT CSV (header => true);
         SELECT back.\"a,b\" AS ab, back.\" d\" AS d, n.c FROM back JOIN n ON n.\"a,b\" = back.\"a,b\" ORDER BY ab;"
    );
    let done = rivulet(folder.path(), &["run", "-q", "--json", "-c", &script], "");
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout), "{\"ab\":1,\"d\":\"x\",\"c\":2}\n{\"ab\":4,\"d\":\"y\",\"c\":5}\n");
    let described = rivulet(folder.path(), &["run", "-q", "-c", "DESCRIBE 'in.csv'"], "");
    assert!(
        text(&described.stdout).contains("\"a,b\" BIGINT"),
        "{}{}",
        text(&described.stdout),
        text(&described.stderr)
    );
}
