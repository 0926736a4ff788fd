//! A real server explains why a query has no results: one sentence for each reason.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{Publisher, Server, free_port, now_ms, rivulet, said, wait};

const MEANS: &str = "CREATE APPLICATION means (home TEXT, warm DOUBLE DEFAULT 0.0)
     INPUT readings (ts TIMESTAMP EVENT TIME, v DOUBLE) FROM 'mqtt:home/{home}/temperature' FORMAT JSON
       WITH (idle_timeout => INTERVAL '1 hour')
     OUTPUT 'mqtt:home/{home}/mean' FORMAT JSON
     AS SELECT avg(v) AS v, window_end FROM readings WHERE v > $warm GROUP BY tumble(ts, INTERVAL '5 minutes')";

/// A query as REST shows it.
fn shown(server: &Server, query: &str) -> Value {
    let answer = ureq::get(format!("{}/api/v1/queries/{query}", server.url())).call();
    serde_json::from_str(&answer.unwrap().body_mut().read_to_string().unwrap()).unwrap()
}

/// Why it gives what it gives, a sentence a line.
fn why(server: &Server, query: &str) -> String {
    let shown = shown(server, query);
    let sentences = shown["why"].as_array().unwrap_or_else(|| panic!("no sentences in {shown}"));
    sentences.iter().map(|sentence| sentence.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

fn expect(server: &Server, query: &str, part: &str) {
    let mut last = String::new();
    wait(&format!("'{part}' of {query}, instead of {}", why(server, query)), || {
        last = why(server, query);
        last.contains(part)
    });
}

/// A server with these statements, and somebody who publishes there.
fn with(script: &str) -> (TempDir, Server, Publisher) {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(script);
    let publisher = Publisher::connect(server.mqtt);
    (folder, server, publisher)
}

#[test]
fn each_step_of_an_event_has_its_sentence() {
    let (_folder, server, mut publisher) = with(&format!(
        "{MEANS}; CREATE QUERY seven FROM APPLICATION means WITH (home => '7');
         CREATE QUERY other FROM APPLICATION means WITH (home => '8')"
    ));
    expect(&server, "seven", "no event has come on home/7/temperature since the query was started");
    publisher.publish("home/8/temperature", &json!({"ts": now_ms() as u64, "v": 1.0}).to_string());
    expect(&server, "seven", "other queries of means had 1 event: compare the topics");
    publisher.publish("home/7/temprature", "{}");
    expect(&server, "seven", "messages that no query reads came on home/7/temprature");

    publisher.publish("home/7/temperature", "{\"ts\": 1, \"v\": \"hot\"}");
    publisher.publish("home/7/temperature", "{\"ts\": 1, \"v\": \"hotter\"}");
    expect(&server, "seven", "all 2 events were refused (decode): ");
    expect(&server, "seven", "last payload: {\"ts\": 1, \"v\": \"hotter\"}");

    for _ in 0..3 {
        publisher.publish("home/7/temperature", &json!({"ts": now_ms() as u64 / 1_000, "v": -1.0}).to_string());
    }
    expect(&server, "seven", "3 events came, WHERE kept none");
    expect(&server, "seven", "is 56 years behind the clock: a TIMESTAMP that is a number counts milliseconds");
    let activity = &shown(&server, "seven")["activity"];
    assert_eq!((&activity["filtered_out"], &activity["refused"]["decode"]), (&json!(3), &json!(2)), "{activity}");
    assert_eq!(activity["inputs"][0]["events"], 5, "{activity}");

    let begin_ms = now_ms() as u64 / 300_000 * 300_000;
    publisher.publish("home/7/temperature", &json!({"ts": begin_ms, "v": 20.0}).to_string());
    expect(&server, "seven", "a window is open, from ");
    expect(&server, "seven", "it closes when an event comes with a time from ");
    expect(&server, "seven", "or when none has come for 60 minutes");
    let activity = &shown(&server, "seven")["activity"];
    assert_eq!(activity["window_start_ms"], begin_ms, "{activity}");
    assert_eq!(activity["window_end_ms"], begin_ms + 300_000, "{activity}");
    assert!(activity["next_timer_ms"].as_u64() > Some(begin_ms), "{activity}");
    // A late row, and the one that closes the window.
    publisher.publish("home/7/temperature", &json!({"ts": begin_ms + 299_999, "v": 22.0}).to_string());
    publisher.publish("home/7/temperature", &json!({"ts": begin_ms + 300_000, "v": 30.0}).to_string());
    expect(&server, "seven", "it works: a result came ");
    expect(&server, "seven", "the last one {\"v\":21");

    let described = server.sql_ok("DESCRIBE QUERY seven").to_string();
    for part in ["\"filtered out\",3", "\"refused: decode\",2", "\"why\",\"it works", "\"last result as JSON\""] {
        assert!(described.contains(part), "{part} in {described}");
    }
    let command = |arguments: &[&str]| {
        let output =
            rivulet().args(["query", "why", "seven", "--server", &server.url()]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(command(&[]).starts_with("it works: a result came "), "{}", command(&[]));
    let answer: Value = serde_json::from_str(&command(&["--json"])).unwrap();
    assert!(
        answer["why"][0].as_str().unwrap().starts_with("it works") && answer["activity"]["results"] == 1,
        "{answer}"
    );

    let output = rivulet().args(["query", "show", "seven", "--server", &server.url()]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    for part in
        ["events        8", "refused       2", "filtered out  3", "a refusal     decode: {\"ts\": 1", "open window   "]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }

    server.sql_ok("PAUSE QUERY seven");
    expect(&server, "seven", "the query is paused, and gets no events; RESUME QUERY seven lets it go on");
}

#[test]
fn silence_since_a_restart_is_told_as_such() {
    let (folder, mut server, _publisher) =
        with(&format!("{MEANS}; CREATE QUERY seven FROM APPLICATION means WITH (home => '7')"));
    expect(&server, "seven", "no event has come on home/7/temperature since the query was started");
    server.kill_9();
    let server = Server::start_at(folder.path(), server.mqtt, 3600);
    expect(&server, "seven", "no event has come on home/7/temperature since the server was started");
    server.sql_ok("CREATE QUERY new FROM APPLICATION means WITH (home => '8')");
    expect(&server, "new", "no event has come on home/8/temperature since the query was started");
}

#[test]
fn a_window_that_is_longer_than_the_idle_timeout_closes_when_its_time_has_passed() {
    let (_folder, server, mut publisher) = with(
        "CREATE APPLICATION long (home TEXT)
         INPUT readings (ts TIMESTAMP EVENT TIME, v DOUBLE) FROM 'mqtt:home/{home}' FORMAT JSON
           WITH (idle_timeout => INTERVAL '5 seconds', lateness => INTERVAL '1 hour')
         OUTPUT 'mqtt:home/{home}/mean' FORMAT JSON
         AS SELECT avg(v) AS v, window_end FROM readings GROUP BY tumble(ts, INTERVAL '10 hours');
         CREATE QUERY seven FROM APPLICATION long WITH (home => '7')",
    );
    let hour_ms = 3_600_000;
    let begin_ms = now_ms() as u64 / (10 * hour_ms) * (10 * hour_ms) - 10 * hour_ms;
    publisher.publish("home/7", &json!({"ts": begin_ms + 6 * hour_ms, "v": 1.0}).to_string());
    // Four hours to its end, and one in which rows may come late.
    expect(&server, "seven", "or when none has come for 5 hours, which is at ");
}

#[test]
fn counts_begin_anew_with_other_values_and_reasons_are_told_apart() {
    let (_folder, server, mut publisher) =
        with(&format!("{MEANS}; CREATE QUERY seven FROM APPLICATION means WITH (home => '7', warm => 0)"));
    let begin_ms = now_ms() as u64 / 300_000 * 300_000;
    let event = |ts: u64, v: f64| json!({"ts": ts, "v": v}).to_string();
    publisher.publish("home/7/temperature", &event(begin_ms, 1.0));
    for payload in ["{\"ts\": 1, \"v\": \"hot\"}".to_owned(), "warm".into(), event(begin_ms + 86_400_000, 1.0)] {
        publisher.publish("home/7/temperature", &payload);
    }
    expect(&server, "seven", "3 of 4 events were refused (2 decode, 1 future): the last one, future: ");
    let described = server.sql_ok("DESCRIBE QUERY seven").to_string();
    for part in ["step 1: assign time", "step 2: filter", "\"refused: decode\",2"] {
        assert!(described.contains(part), "{part} in {described}");
    }
    let output = rivulet().args(["query", "show", "seven", "--server", &server.url()]).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    for part in ["step 1        assign time: 2 rows", "refused by    decode: 2", "refused by    future: 1"] {
        assert!(lines.contains(part), "{part} in {lines}");
    }

    server.sql_ok("ALTER QUERY seven SET (warm => 5)");
    expect(&server, "seven", "no event has come on home/7/temperature since the query got other values ");
    let activity = &shown(&server, "seven")["activity"];
    assert_eq!((&activity["is_from_change"], &activity["refused"]), (&json!(true), &json!({})), "{activity}");
    publisher.publish("home/7/temperature", &event(begin_ms, 4.0));
    expect(&server, "seven", "1 event came, WHERE kept none");
    server.sql_ok("ALTER QUERY seven SET (warm => NULL)");
    publisher.publish("home/7/temperature", &event(begin_ms, 40.0));
    expect(&server, "seven", "the parameter warm is NULL, and no comparison with NULL is true");
}

#[test]
fn an_input_without_events_is_named_and_a_join_without_partners() {
    let (_folder, server, mut publisher) = with(
        "CREATE APPLICATION pairs (id TEXT)
         INPUT a (ts TIMESTAMP EVENT TIME, k BIGINT) FROM 'mqtt:a/{id}' FORMAT JSON
         INPUT b (ts TIMESTAMP EVENT TIME, k BIGINT) FROM 'mqtt:b/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON
         AS SELECT a.k FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1 minute';
         CREATE QUERY q FROM APPLICATION pairs WITH (id => '1')",
    );
    let now = now_ms() as u64;
    publisher.publish("a/1", &json!({"ts": now, "k": 1}).to_string());
    expect(&server, "q", "the input b has had no event on b/1 since the query was started");
    expect(&server, "q", "and what comes of both inputs waits for it");
    publisher.publish("b/1", &json!({"ts": now, "k": 2}).to_string());
    expect(&server, "q", "2 rows came to the join, and none has found a partner (1 and 1 wait): compare the keys");
    publisher.publish("b/1", &json!({"ts": now, "k": 1}).to_string());
    expect(&server, "q", "it works: a result came ");
}

#[test]
fn what_waits_for_rows_changes_and_matches_says_so() {
    let input = "INPUT readings (v BIGINT) FROM 'mqtt:in' FORMAT JSON OUTPUT 'mqtt:out' FORMAT JSON AS SELECT";
    let (_folder, server, mut publisher) = with(&format!(
        "CREATE APPLICATION three () {input} sum(v) AS v FROM readings GROUP BY count_window(3);
         CREATE APPLICATION hour () {input} sum(v) AS v FROM readings GROUP BY tumble(arrival_time, INTERVAL '1 hour');
         CREATE APPLICATION high () {input} sum(v) AS v FROM readings GROUP BY count_window(1) HAVING sum(v) > 100;
         CREATE QUERY three FROM APPLICATION three; CREATE QUERY hour FROM APPLICATION hour;
         CREATE QUERY high FROM APPLICATION high;
         CREATE APPLICATION rises () {input} v FROM readings QUALIFY v < lag(v);
         CREATE QUERY rises FROM APPLICATION rises;
         CREATE APPLICATION run () {input} sum(v) AS v FROM readings GROUP BY state_window(v > 1, v > 2);
         CREATE QUERY run FROM APPLICATION run;
         CREATE APPLICATION outer () {input} v FROM
           (SELECT sum(v) AS v FROM readings GROUP BY count_window(1)) AS sums WHERE v > 100;
         CREATE QUERY outer FROM APPLICATION outer"
    ));
    publisher.publish("in", "{\"v\": 1}");
    expect(&server, "run", "1 row came to state_window(v > 1, v > 2), and none has opened a window");
    publisher.publish("in", "{\"v\": 2}");
    expect(&server, "run", "a window is open since ");
    expect(&server, "run", "it closes with a row for which the second condition of state_window is true");
    expect(&server, "outer", "2 rows came from the inner SELECT, and the outer one kept none");
    expect(&server, "three", "2 of 3 rows have come that make the window close");
    expect(&server, "hour", "it closes when the server's clock has come to its end, which is at ");
    expect(&server, "high", "2 rows came to HAVING, which kept none");
    expect(&server, "rises", "2 events came, QUALIFY kept none");
}

#[test]
fn a_query_of_very_many_keys_is_not_looked_through() {
    let (_folder, server, mut publisher) = with(
        "CREATE APPLICATION per_key (id TEXT)
         INPUT t (k BIGINT) FROM 'mqtt:other/{id}' FORMAT JSON
         INPUT u (k BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON
         AS SELECT t.k FROM t JOIN LATEST(u) AS v ON t.k = v.k;
         CREATE QUERY joined FROM APPLICATION per_key WITH (id => '1');
         CREATE APPLICATION windows (id TEXT)
         INPUT t (ts TIMESTAMP EVENT TIME, k BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON
         AS SELECT k, count(*) AS n FROM t GROUP BY k, tumble(ts, INTERVAL '1 day');
         CREATE QUERY windowed FROM APPLICATION windows WITH (id => '1')",
    );
    let now = now_ms() as u64;
    publisher.publish("other/1", "{\"k\": -1}");
    for from in (0..10_001).step_by(100) {
        let rows: Vec<String> = (from..from + 100).map(|k| format!("{{\"ts\": {now}, \"k\": {k}}}")).collect();
        publisher.publish("in/1", &format!("[{}]", rows.join(",")));
    }
    expect(&server, "windowed", "windows of at least 10000 keys are open");
    expect(&server, "joined", "(at least ");
    assert_eq!(shown(&server, "windowed")["activity"]["has_more_keys"], true);
}

#[test]
fn of_many_queries_those_are_counted_that_somebody_asks_about() {
    let (_folder, server, mut publisher) = with(MEANS);
    for home in 0..40 {
        server.sql_ok(&format!("CREATE QUERY q{home} FROM APPLICATION means WITH (home => '{home}')"));
    }
    let event = json!({"ts": now_ms() as u64, "v": -1.0}).to_string();
    publisher.publish("home/3/temperature", &event);
    publisher.publish("home/3/temprature", "{}");
    wait("the event", || server.status()["total"]["events"] == 1);
    let first = why(&server, "q3");
    let expected = "its events are counted from this question on, for its application has many queries: what came on \
                    home/3/temperature before is not known\nask again after the next events; events are counted until ";
    assert!(first.starts_with(expected) && !first.contains("temprature"), "{first}");
    expect(&server, "q3", "no event has come on home/3/temperature since counting began ");
    expect(&server, "q3", "ask again after the next events; events are counted until ");
    publisher.publish("home/3/temperature", &event);
    expect(&server, "q3", "1 event came, WHERE kept none");
    let activity = &shown(&server, "q3")["activity"];
    assert_eq!(
        (&activity["is_from_start"], &activity["inputs"][0]["events"]),
        (&json!(false), &json!(1)),
        "{activity}"
    );
}

#[test]
fn a_column_that_no_payload_has_is_named() {
    let (_folder, server, mut publisher) = with(
        "CREATE APPLICATION hot (home TEXT, warm DOUBLE DEFAULT 30)
         INPUT readings (ts TIMESTAMP EVENT TIME, celsius DOUBLE, room TEXT) FROM 'mqtt:home/{home}' FORMAT JSON
         OUTPUT 'mqtt:hot/{home}' FORMAT JSON
         AS SELECT room, avg(celsius) AS mean, count(*) AS n FROM readings
            GROUP BY tumble(ts, INTERVAL '1 second'), room HAVING avg(celsius) > $warm;
         CREATE APPLICATION plain (home TEXT)
         INPUT readings (celsius DOUBLE, room TEXT) FROM 'mqtt:home/{home}' FORMAT JSON
         OUTPUT 'mqtt:plain/{home}' FORMAT JSON AS SELECT room, celsius FROM readings WHERE room IS NULL;
         CREATE APPLICATION full (home TEXT)
         INPUT readings (ts BIGINT, temp DOUBLE, celsius DOUBLE, room TEXT) FROM 'mqtt:home/{home}' FORMAT JSON
         OUTPUT 'mqtt:full/{home}' FORMAT JSON AS SELECT room, celsius FROM readings WHERE room IS NULL;
         CREATE QUERY full FROM APPLICATION full WITH (home => '1');
         CREATE QUERY hot FROM APPLICATION hot WITH (home => '1');
         CREATE QUERY plain FROM APPLICATION plain WITH (home => '1')",
    );
    let start_ms = now_ms() as u64;
    for after_ms in [0, 2_000, 4_000] {
        publisher.publish("home/1", &json!({"ts": start_ms + after_ms, "temp": 30, "room": "attic"}).to_string());
    }
    let text = "celsius was null in all 3 events: the last payload has no field 'celsius', but room, temp, ts";
    expect(&server, "hot", text);
    assert!(!why(&server, "hot").contains("room was null"));
    // What is only selected may be null, unless payloads have a field that is no column.
    expect(&server, "plain", "3 events came, WHERE kept none");
    expect(&server, "plain", text);
    assert!(!why(&server, "full").contains("was null"), "{}", why(&server, "full"));
    assert_eq!(shown(&server, "hot")["activity"]["null_columns"], json!(["celsius"]));
    publisher.publish("home/1", &json!({"ts": start_ms + 4_000, "celsius": null, "room": "attic"}).to_string());
    wait("the null", || why(&server, "hot").contains("celsius was null in all 4 events\n"));
    publisher.publish("home/1", &json!({"ts": start_ms + 4_000, "celsius": 30, "room": "attic"}).to_string());
    wait("the value", || !why(&server, "hot").contains("celsius was null"));
}

#[test]
fn of_many_queries_one_is_counted_until_its_window_has_closed() {
    let (_folder, server, mut publisher) = with(MEANS);
    for home in 0..40 {
        server.sql_ok(&format!("CREATE QUERY q{home} FROM APPLICATION means WITH (home => '{home}')"));
    }
    expect(&server, "q3", "no event has come on home/3/temperature since counting began");
    publisher.publish("home/3/temperature", &json!({"ts": now_ms() as u64, "v": 1.0}).to_string());
    expect(&server, "q3", "when the window closes; events are counted until ");
    let activity = &shown(&server, "q3")["activity"];
    let ms = |field: &str| activity[field].as_i64().unwrap_or_else(|| panic!("no {field} in {activity}"));
    // The timer is an hour ahead, by the idle timeout.
    assert!(ms("next_timer_ms") > ms("now_ms") + 3_000_000, "{activity}");
    assert_eq!(ms("counted_until_ms") - ms("next_timer_ms"), 600_000, "{activity}");
}

#[test]
fn of_a_topic_that_many_read_it_is_said_that_where_lets_nothing_through() {
    let (_folder, server, mut publisher) = with(
        "CREATE APPLICATION alarms (device TEXT, out TEXT)
         INPUT readings (device TEXT, v DOUBLE) FROM 'mqtt:fleet' FORMAT JSON
         OUTPUT 'mqtt:alarm/{out}' FORMAT JSON
         AS SELECT device, v FROM readings WHERE device = $device",
    );
    for device in 0..20 {
        let query =
            format!("CREATE QUERY q{device} FROM APPLICATION alarms WITH (device => 'd{device}', out => '{device}')");
        server.sql_ok(&query);
    }
    expect(&server, "q1", "no event has come on fleet");
    for _ in 0..3 {
        publisher.publish("fleet", "{\"device\": \"d2\", \"v\": 1.0}");
    }
    expect(&server, "q1", "3 events came on fleet, and WHERE lets none of them through for this query");
    publisher.publish("fleet", "{\"device\": \"d1\", \"v\": 1.0}");
    expect(&server, "q1", "it works: a result came ");
}

#[test]
fn a_big_query_answers_too() {
    let (_folder, server, mut publisher) = with(
        "CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/+' FORMAT JSON;
         CREATE SINK nowhere TO 'blackhole:';
         CREATE QUERY big AS SELECT count(*) AS c FROM readings GROUP BY tumble(ts, INTERVAL '1 minute') INTO nowhere",
    );
    expect(&server, "big", "no row has come from readings since the query was started");
    let now = now_ms() as u64;
    publisher.publish("in/1", &json!({"ts": now, "n": 1}).to_string());
    expect(&server, "big", "1 row came and none has given a result");
    publisher.publish("in/1", &json!({"ts": now + 120_000, "n": 1}).to_string());
    expect(&server, "big", "it works: 1 row went to nowhere");
}

#[test]
fn an_application_warns_of_what_its_owner_would_wait_for() {
    let (folder, server, mut publisher) = with(&format!(
        "{MEANS}; CREATE QUERY seven FROM APPLICATION means WITH (home => '7');
         CREATE APPLICATION plain () INPUT readings (v BIGINT) FROM 'mqtt:plain' FORMAT JSON
         OUTPUT 'mqtt:out' FORMAT JSON AS SELECT v FROM readings; CREATE QUERY plain FROM APPLICATION plain"
    ));
    let warnings = || {
        let status = server.status();
        ["means", "plain"].map(|name| {
            let of_name = |one: &&Value| one["name"] == name;
            status["applications"].as_array().unwrap().iter().find(of_name).unwrap()["warnings"].to_string()
        })
    };
    assert_eq!(warnings(), ["null", "null"]);
    for _ in 0..2 {
        publisher.publish("home/7/temperature", "{\"ts\": 1600000000000, \"v\": 1.0}");
    }
    publisher.publish("plain", "{\"v\": \"one\"}");
    let clocks = "2 of 2 events have times more than an hour from the server's clock";
    wait("both warnings", || {
        let [means, plain] = warnings();
        means.contains(clocks) && plain.contains("the only event was refused; the last one because of decode")
    });
    let described = server.sql_ok("DESCRIBE APPLICATION plain").to_string();
    assert!(described.contains("the only event was refused"), "{described}");
    let log = || std::fs::read_to_string(folder.path().join("log")).unwrap();
    wait("the log to say it", || log().contains(clocks) && log().contains("the only event was refused"));
    assert_eq!(log().matches(clocks).count(), 1);
}

#[test]
fn a_silent_query_says_that_its_state_is_on_disk_and_is_counted_on() {
    let (folder, mqtt) = (TempDir::new().unwrap(), free_port());
    let settings =
        [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_MEMORY_SPILL_AFTER_S", "1".to_owned())];
    let server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    server.sql_ok(&format!("{MEANS}; CREATE QUERY seven FROM APPLICATION means WITH (home => '7')"));
    let mut publisher = Publisher::connect(mqtt);
    let event = json!({"ts": now_ms() as u64, "v": 1.0}).to_string();
    publisher.publish("home/7/temperature", &event);
    expect(&server, "seven", "a window is open, from ");
    expect(&server, "seven", "no event has come for so long that its state waits on disk");
    assert_eq!(shown(&server, "seven")["activity"]["inputs"][0]["events"], 1);
    publisher.publish("home/7/temperature", &event);
    expect(&server, "seven", "a window is open, from ");
    let activity = &shown(&server, "seven")["activity"];
    assert_eq!((&activity["inputs"][0]["events"], &activity["is_from_start"]), (&json!(2), &json!(true)), "{activity}");
}
