//! An application whose output cannot deliver stands still, and holds up no other: not the connection, not the broker,
//! not those that read the same topic, and not the log.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet::config::Config;
use rivulet::engine::Engine;
use rivulet::service::ErrorKind;
use serde_json::Value;
use tempfile::TempDir;

use super::checkpoints::on_demand;
use super::outlets::{Receiver, acknowledged, lines};
use super::server::{Publisher, Server, free_port, wait_for};
use super::support::{AsOperator, exchange, request};
use super::tables::said;

/// A busy machine may need it.
const LONG: Duration = Duration::from_secs(120);

/// More than sink and inbox have room for.
const EVENTS: usize = 6_000;

fn opened(folder: &Path) -> Arc<Engine> {
    let config = Config { inbox_rows_max: 500, ..on_demand(folder) };
    Engine::open(config).expect("an engine")
}

fn connected(engine: &Engine) -> Publisher {
    Publisher::connect(engine.embedded_broker_address().expect("a broker"))
}

/// An application that posts what comes on `x/+`, and another that reads another topic.
fn declare(engine: &Engine, receiver: &Receiver, durability: &str) {
    said(
        engine,
        &format!(
            "CREATE APPLICATION hook () INPUT t (n BIGINT) FROM 'mqtt:x/+' FORMAT JSON WITH (durability => '{durability}')
             OUTPUT 'http://127.0.0.1:{}/hook' FORMAT JSON AS SELECT n FROM t;
             CREATE APPLICATION alarm () INPUT t (n BIGINT) FROM 'mqtt:y/1' FORMAT JSON WITH (durability => '{durability}')
             OUTPUT 'mqtt:alarm' FORMAT JSON AS SELECT n FROM t;
             CREATE QUERY hooked FROM APPLICATION hook; CREATE QUERY alarmed FROM APPLICATION alarm",
            receiver.port
        ),
    );
}

fn number(n: usize) -> String {
    format!("{{\"n\":{n}}}")
}

/// Publishes numbers for the dead receiver, and between them on the other topic; every one of these has to arrive.
fn publish_and_see_alarms(engine: &Engine, numbers: std::ops::Range<usize>) {
    let (mut publisher, mut listener) = (connected(engine), connected(engine));
    listener.subscribe("alarm");
    for n in numbers {
        publisher.publish("x/1", &number(n));
        if n % 500 == 499 {
            publisher.publish("y/1", &number(n));
            assert_eq!(listener.next().1, number(n).into_bytes(), "nobody waits for the other's receiver");
        }
    }
}

fn overflowed(engine: &Engine) -> u64 {
    let status = engine.status();
    let hook = status.applications.iter().find(|one| one.name == "hook").expect("it runs");
    hook.refused.get("overflow").copied().unwrap_or(0)
}

fn arrived(receiver: &Receiver) -> Vec<usize> {
    let number = |body: &str| serde_json::from_str::<Value>(body).expect("JSON")["n"].as_u64().expect("n") as usize;
    receiver.requests.lock().iter().map(|one| number(&one.body)).collect()
}

fn stands_still(engine: &Engine) -> bool {
    engine.problems().iter().any(|problem| problem.contains("the application has stood still for"))
}

/// Whether events that have come are still in the log for an application.
fn is_behind(engine: &Engine) -> bool {
    let mut warnings = engine.status().applications.into_iter().flat_map(|one| one.warnings);
    warnings.any(|warning| warning.starts_with("the application is behind by up to "))
}

#[test]
fn what_a_dead_receiver_leaves_waits_in_the_log_and_holds_up_nobody() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let engine = opened(folder.path());
    declare(&engine, &receiver, "log");
    publish_and_see_alarms(&engine, 0..EVENTS);
    wait_for(LONG, "it is told", || stands_still(&engine));
    assert!(engine.ready().is_ok(), "the others go on");
    let why = engine.operator().describe_query("hooked").unwrap().why;
    assert!(why[0].starts_with("its results do not arrive: the application has stood still for"), "{why:?}");
    assert!(why.iter().all(|one| !one.starts_with("it works")), "{why:?}");
    let behind = |texts: &[String]| {
        let text = texts.iter().find_map(|one| one.strip_prefix("the application is behind by up to "))?;
        assert!(text.ends_with(" events in the log: it reads on from there as soon as its output delivers"), "{text}");
        text.split(' ').next()?.parse::<usize>().ok()
    };
    let of_query = || engine.operator().describe_query("hooked").unwrap().why;
    wait_for(LONG, "it is behind", || behind(&of_query()).is_some_and(|left| left > EVENTS / 4));
    assert!(of_query().iter().all(|one| !one.starts_with("no event has come")), "{:?}", of_query());
    let warnings = engine.status().applications.into_iter().flat_map(|one| one.warnings).collect::<Vec<_>>();
    assert!(behind(&warnings) > Some(EVENTS / 4), "{warnings:?}");
    assert!(warnings.iter().any(|one| one.starts_with("the application has stood still for")), "{warnings:?}");
    let line = "rivulet_output_stands_still{application=\"hook\",output=\"output\"} 1";
    assert!(engine.metrics().lines().any(|found| found == line), "{}", engine.metrics());
    // What would have its place among events that are yet to be read has to wait.
    let paused = engine.operator().pause("hooked").expect_err("it has events to read");
    assert_eq!(paused.kind, ErrorKind::Unavailable, "{paused}");
    // A checkpoint waits for no receiver.
    said(&engine, "CHECKPOINT");
    receiver.refuses.store(false, Ordering::Release);
    wait_for(LONG, "all have arrived", || receiver.count() >= EVENTS);
    assert_eq!(arrived(&receiver), (0..EVENTS).collect::<Vec<_>>(), "each once, in their order");
    wait_for(LONG, "it goes on", || engine.problems().is_empty());
    publish_and_see_alarms(&engine, EVENTS..EVENTS + 500);
    wait_for(LONG, "further ones have arrived", || receiver.count() >= EVENTS + 500);
    assert_eq!(arrived(&receiver), (0..EVENTS + 500).collect::<Vec<_>>());
    assert_eq!(overflowed(&engine), 0);
}

#[test]
fn without_a_log_the_newest_are_dropped_and_counted_and_nobody_is_held_up() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let engine = opened(folder.path());
    declare(&engine, &receiver, "checkpoint");
    publish_and_see_alarms(&engine, 0..EVENTS);
    assert!(overflowed(&engine) > 0);
    receiver.refuses.store(false, Ordering::Release);
    wait_for(LONG, "the rest has arrived", || receiver.count() as u64 + overflowed(&engine) == EVENTS as u64);
    let arrived = arrived(&receiver);
    assert_eq!(arrived, (0..arrived.len()).collect::<Vec<_>>(), "the first ones wait");
    wait_for(LONG, "it goes on", || engine.problems().is_empty());
    let lost = format!("{} events were dropped or given up since the application was started", overflowed(&engine));
    let why = engine.operator().describe_query("hooked").unwrap().why;
    assert!(why.iter().any(|one| one.starts_with(&lost)), "{why:?}");
    assert!(why.iter().all(|one| !one.starts_with("no event has come")), "{why:?}");
    let mut warnings = engine.status().applications.into_iter().flat_map(|one| one.warnings);
    assert!(warnings.any(|one| one.starts_with(&lost)), "it is told also when all goes on");
}

#[test]
fn a_restart_goes_on_where_the_application_stood() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    {
        let engine = opened(folder.path());
        declare(&engine, &receiver, "log");
        publish_and_see_alarms(&engine, 0..EVENTS / 2);
        said(&engine, "CHECKPOINT");
        publish_and_see_alarms(&engine, EVENTS / 2..EVENTS);
        engine.shutdown();
    }
    let engine = opened(folder.path());
    publish_and_see_alarms(&engine, EVENTS..EVENTS + 500);
    wait_for(LONG, "it stands still", || stands_still(&engine));
    // A query that is new has no event from before.
    said(&engine, "CREATE QUERY late FROM APPLICATION hook");
    said(&engine, "DROP QUERY late");
    receiver.refuses.store(false, Ordering::Release);
    wait_for(LONG, "all have arrived", || receiver.count() >= EVENTS + 500);
    assert_eq!(arrived(&receiver), (0..EVENTS + 500).collect::<Vec<_>>());
}

/// Two applications share the decoding of one topic; one of them has a dead receiver.
#[test]
fn those_that_read_the_same_topic_go_on() {
    const QUERIES: usize = 20;
    const EVENTS: usize = 600;
    for durability in ["log", "checkpoint"] {
        let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
        receiver.refuses.store(true, Ordering::Release);
        let engine = opened(folder.path());
        let application = |name: &str, output: &str| {
            format!(
                "CREATE APPLICATION {name} (room TEXT) INPUT t (n BIGINT) FROM 'mqtt:x' FORMAT JSON
                 WITH (durability => '{durability}') OUTPUT {output} AS SELECT n, $room AS room FROM t"
            )
        };
        said(&engine, &application("hook", &format!("'http://127.0.0.1:{}/hook' FORMAT JSON", receiver.port)));
        said(&engine, &application("seen", "'mqtt:seen/{room}' FORMAT JSON"));
        for (name, n) in ["hook", "seen"].iter().flat_map(|name| (0..QUERIES).map(move |n| (name, n))) {
            said(&engine, &format!("CREATE QUERY {name}_{n} FROM APPLICATION {name} WITH (room => 'r{n}')"));
        }
        let (mut publisher, mut listener) = (connected(&engine), connected(&engine));
        listener.subscribe("seen/r3");
        for n in 0..EVENTS {
            publisher.publish("x", &number(n));
            if n % 50 == 49 {
                let expected = n - 49..=n;
                expected.for_each(|n| assert_eq!(listener.next_json().1["n"], n as u64, "{durability}"));
            }
        }
        wait_for(LONG, "it stands still", || stands_still(&engine));
        if durability == "log" {
            // A query that comes now has nothing of before.
            said(&engine, "CREATE QUERY late FROM APPLICATION hook WITH (room => 'late')");
        }
        receiver.refuses.store(false, Ordering::Release);
        let all = QUERIES * EVENTS;
        wait_for(LONG, "the rest has arrived", || receiver.count() as u64 + overflowed(&engine) >= all as u64);
        let dropped = overflowed(&engine);
        assert_eq!(dropped > 0, durability == "checkpoint");
        publisher.publish("x", &number(EVENTS));
        let further = QUERIES + usize::from(durability == "log");
        let expected = all - dropped as usize + further;
        wait_for(LONG, "what comes then", || receiver.count() >= expected);
        let requests = receiver.requests.lock();
        let of = |room: &str| -> Vec<u64> {
            let rows = requests.iter().map(|one| serde_json::from_str::<Value>(&one.body).expect("JSON"));
            rows.filter(|row| row["room"] == room).map(|row| row["n"].as_u64().expect("n")).collect()
        };
        for room in (0..QUERIES).map(|n| format!("r{n}")) {
            let rows = of(&room);
            assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "{room}: in their order, none twice");
            assert!(durability == "checkpoint" || rows.len() == EVENTS + 1, "{room}: {}", rows.len());
        }
        assert_eq!(of("late"), if durability == "log" { vec![EVENTS as u64] } else { vec![] });
        assert_eq!(requests.len(), expected, "{durability}");
    }
}

/// The log has a bound for all. What a dead receiver leaves in it gives way before it is full.
#[test]
fn a_full_log_costs_the_dead_receiver_its_oldest_events_and_nobody_else_any() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let mut config = Config { inbox_rows_max: 500, ..on_demand(folder.path()) };
    config.durability.log_bytes_max = 1 << 20;
    let engine = Engine::open(config).expect("an engine");
    declare(&engine, &receiver, "log");
    let mut publisher = connected(&engine);
    // Half as much again as the log may hold.
    let sends = std::thread::spawn(move || {
        for n in 0..4_096 {
            publisher.publish("x/1", &format!("{{\"n\":{n},\"text\":\"{:400}\"}}", ""));
        }
        publisher.publish("y/1", &number(7));
        publisher
    });
    wait_for(2 * LONG, "the last to be received", || {
        // A log that waits for one makes room by it, some seconds later.
        let _ = engine.checkpoint();
        engine.operator().describe_query("alarmed").unwrap().results == Some(1)
    });
    drop(sends.join().expect("all were sent"));
    assert!(overflowed(&engine) > 0, "they are counted");
    receiver.refuses.store(false, Ordering::Release);
    // However slow the machine is, each of them comes some time after the one before.
    let settled = || receiver.count() as u64 + overflowed(&engine);
    let (mut before, mut since) = (settled(), std::time::Instant::now());
    while settled() < 4_096 {
        if settled() > before {
            (before, since) = (settled(), std::time::Instant::now());
        }
        let told = || {
            let gaps: Vec<(usize, usize)> = arrived(&receiver)
                .windows(2)
                .filter(|pair| pair[1] != pair[0] + 1)
                .map(|pair| (pair[0], pair[1]))
                .collect();
            format!("{} have arrived, {} were given up; gaps: {gaps:?}", receiver.count(), overflowed(&engine))
        };
        assert!(since.elapsed() < LONG, "{}", told());
        std::thread::sleep(Duration::from_millis(20));
    }
    let arrived = arrived(&receiver);
    assert!(arrived.windows(2).all(|pair| pair[0] < pair[1]) && arrived.last() == Some(&4_095), "the newest are kept");
    assert_eq!(arrived.len() as u64 + overflowed(&engine), 4_096, "no more is given up than is counted");
    assert!(arrived.len() > 500, "{}: what the log has room for stays", arrived.len());
}

/// The log is shortened by checkpoints, and by the clock there is none for an hour.
#[test]
fn a_log_that_is_nearly_full_does_not_wait_for_the_timer() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let mut config = Config { inbox_rows_max: 500, ..on_demand(folder.path()) };
    config.checkpoint.as_mut().expect("checkpoints are on by default").interval = Some(Duration::from_secs(3_600));
    config.durability.log_bytes_max = 1 << 20;
    let engine = Engine::open(config).expect("an engine");
    declare(&engine, &receiver, "log");
    let mut publisher = connected(&engine);
    let sends = std::thread::spawn(move || {
        for n in 0..4_096 {
            publisher.publish("x/1", &format!("{{\"n\":{n},\"text\":\"{:400}\"}}", ""));
        }
        publisher.publish("y/1", &number(7));
        publisher
    });
    let is_last = || engine.operator().describe_query("alarmed").unwrap().results == Some(1);
    wait_for(2 * LONG, "the last to be received", is_last);
    drop(sends.join().expect("all were sent"));
}

#[test]
fn a_stop_says_which_events_end_with_the_process_because_an_output_cannot_deliver() {
    for (durability, is_lost) in [("checkpoint", true), ("log", false)] {
        let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
        receiver.refuses.store(true, Ordering::Release);
        let engine = opened(folder.path());
        declare(&engine, &receiver, durability);
        publish_and_see_alarms(&engine, 0..3_000);
        let told = rivulet::service::Service::shutdown(&*engine);
        let words = told.as_ref().err().map_or("", |error| &error.message);
        let is_told = words.starts_with("rows were lost") && words.contains("that wait for the application 'hook'");
        assert_eq!((told.is_err(), is_told), (is_lost, is_lost), "{durability}: {words}");
    }
}

/// The receiver comes and goes while events come, by a topic of one query and by one that many read: however often the
/// application falls behind and catches up, each query gets each event once, in their order.
#[test]
fn whoever_falls_behind_again_and_again_gets_each_event_once() {
    const QUERIES: usize = 18;
    const EVENTS: usize = 1_500;
    const ROUNDS: usize = 5;
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let config = Config { inbox_rows_max: 100, ..on_demand(folder.path()) };
    let engine = Engine::open(config).expect("an engine");
    said(
        &engine,
        &format!(
            "CREATE APPLICATION hook (topic TEXT, room TEXT) INPUT t (n BIGINT) FROM 'mqtt:{{topic}}' FORMAT JSON
             WITH (durability => 'log')
             OUTPUT 'http://127.0.0.1:{}/hook' FORMAT JSON AS SELECT n, $room AS room FROM t",
            receiver.port
        ),
    );
    for n in 0..QUERIES {
        let topic = if n < 16 { "shared" } else { "own" };
        said(
            &engine,
            &format!("CREATE QUERY q{n} FROM APPLICATION hook WITH (topic => '{topic}{}', room => 'r{n}')", n / 16 * n),
        );
    }
    let mut publisher = connected(&engine);
    let mut publish = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            ["shared0", "own16", "own17"].iter().for_each(|topic| publisher.publish(topic, &number(n)));
        }
    };
    for round in 0..ROUNDS {
        let of_round = EVENTS / ROUNDS * round..EVENTS / ROUNDS * (round + 1);
        let late = of_round.end - 50;
        receiver.refuses.store(true, Ordering::Release);
        publish(of_round.start..late);
        wait_for(LONG, "it is behind", || stands_still(&engine) && is_behind(&engine));
        let room = format!("late{round}");
        said(
            &engine,
            &format!("CREATE QUERY {room} FROM APPLICATION hook WITH (topic => 'shared0', room => '{room}')"),
        );
        receiver.refuses.store(false, Ordering::Release);
        // While it catches up.
        publish(late..of_round.end);
        wait_for(LONG, "its output delivers", || !stands_still(&engine));
        said(&engine, &format!("DROP QUERY {room}"));
        if round % 2 == 1 {
            wait_for(LONG, "it has read all", || !is_behind(&engine));
        }
    }
    let rows_of = |room: &str| -> Vec<u64> {
        let requests = receiver.requests.lock();
        let rows = requests.iter().map(|one| serde_json::from_str::<Value>(&one.body).expect("JSON"));
        rows.filter(|row| row["room"] == room).map(|row| row["n"].as_u64().expect("n")).collect()
    };
    let of_all = || -> Vec<Vec<u64>> { (0..QUERIES).map(|n| rows_of(&format!("r{n}"))).collect() };
    // To read them all takes long, and the receiver takes none meanwhile: not before there are enough.
    wait_for(4 * LONG, "as many as were sent", || receiver.count() >= QUERIES * EVENTS);
    wait_for(LONG, "the last ones", || of_all().iter().all(|rows| rows.last() == Some(&(EVENTS as u64 - 1))));
    for (query, rows) in of_all().into_iter().enumerate() {
        assert_eq!(rows, (0..EVENTS as u64).collect::<Vec<_>>(), "q{query}");
    }
    for rows in (0..ROUNDS).map(|round| rows_of(&format!("late{round}"))) {
        assert!(rows.windows(2).all(|pair| pair[1] == pair[0] + 1), "without a gap: {rows:?}");
    }
}

/// Rows that an output has and cannot write are saved with checkpoints: meanwhile others' events go through the log,
/// more than it holds, and every row is written in the end, also after a kill.
#[test]
fn a_file_that_cannot_be_written_keeps_no_place_in_the_log_and_gets_its_rows() {
    const OTHERS: usize = 4_096;
    let written = ("results/' FORMAT JSON WITH (partition_by => 'room')", "n, 'r' AS room", "results/room=r", true);
    let opened = ("results/all' FORMAT JSON WITH (append => true)", "n", "results", false);
    for (file, columns, blocked, is_killed) in [written, opened] {
        let folder = TempDir::new().unwrap();
        // A file stands where a folder should be.
        let blocked = folder.path().join(blocked);
        std::fs::create_dir_all(blocked.parent().unwrap()).unwrap();
        std::fs::write(&blocked, "").unwrap();
        let mqtt = free_port();
        let settings = [
            ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
            ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned()),
            ("RIVULET_DURABILITY_LOG_BYTES_MAX", "1 MiB".to_owned()),
        ];
        let start = || {
            let server = Server::spawn(folder.path(), mqtt, &settings);
            server.wait_until_ready();
            server
        };
        let mut server = start();
        let application = |name: &str, topic: &str, output: &str, columns: &str| {
            server.sql_ok(&format!(
                "CREATE APPLICATION {name} () INPUT t (n BIGINT) FROM 'mqtt:{topic}' FORMAT JSON
                 WITH (durability => 'log') OUTPUT {output} AS SELECT {columns} FROM t;
                 CREATE QUERY q_{name} FROM APPLICATION {name}"
            ));
        };
        application("kept", "x", &format!("'file:{file}"), columns);
        application("alarm", "y", "'mqtt:alarm' FORMAT JSON", "n");
        let of = |server: &Server, name: &str| -> Value {
            let status = server.status();
            let all = status["applications"].as_array().expect("applications").clone();
            all.into_iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name} in {status}"))
        };
        acknowledged(mqtt, "x", &number(0));
        wait_for(LONG, "it stands still", || !of(&server, "kept")["health"][0]["stands_still_since_ms"].is_null());
        let sends = std::thread::spawn(move || {
            let mut publisher = Publisher::connect(mqtt);
            for n in 0..OTHERS {
                publisher.publish("y", &format!("{{\"n\":{n},\"text\":\"{:400}\"}}", ""));
            }
            publisher
        });
        wait_for(LONG, "the other gets all of its events", || of(&server, "alarm")["results"] == OTHERS);
        drop(sends.join().expect("all were sent"));
        let first = || server.status()["log"]["first"].as_u64();
        wait_for(LONG, "the log to be shortened", || first() > Some(OTHERS as u64 / 4));
        assert_eq!(server.status()["checkpoints"]["last_error"], Value::Null);
        let left_out = &of(&server, "kept")["health"][0]["rejected_rows"];
        assert!(left_out == 0, "what waits is not lost: {left_out}");
        // Nothing more is given up then.
        let is_nearly_full = || server.status()["log"]["disk_bytes"].as_u64() >= Some((1 << 20) / 4 * 3);
        wait_for(LONG, "room in the log", || !is_nearly_full());
        (1..6).for_each(|n| acknowledged(mqtt, "x", &number(n)));
        let given_up = of(&server, "kept")["refused"]["overflow"].as_u64().unwrap_or(0);
        if is_killed {
            assert_eq!(given_up, 0, "nothing of it was in the way");
            wait_for(LONG, "a checkpoint has it", || server.status()["checkpoints"]["age_ms"].as_u64() < Some(500));
            server.kill_9();
            server = start();
        }
        std::fs::remove_file(&blocked).unwrap();
        std::fs::create_dir(&blocked).unwrap();
        let rows: Vec<String> = (given_up as usize..6).map(number).collect();
        let of_kept = || of(&server, "kept")["health"][0]["rows"].as_u64();
        wait_for(LONG, "all rows are written", || of_kept() == Some(rows.len() as u64));
        server.signal("-TERM");
        server.wait_for_end();
        assert_eq!(lines(&blocked), rows, "{file}: each once");
    }
}

/// Events of a source stand in the log before those of others, which a replay gives in their order.
#[test]
fn what_was_posted_for_a_dead_receiver_holds_up_no_replay_of_others() {
    const POSTED: usize = 6_000;
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let (mqtt, posts) = (free_port(), free_port());
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_INBOX_ROWS_MAX", "500".to_owned()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "3600".to_owned()),
        ("RIVULET_HOSTS_ALLOW", "127.0.0.1".to_owned()),
    ];
    let mut server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    server.sql_ok(&format!(
        "CREATE APPLICATION hook () INPUT t (n BIGINT) FROM 'http:{posts}/in' FORMAT JSON WITH (durability => 'log')
         OUTPUT 'http://127.0.0.1:{}/hook' FORMAT JSON AS SELECT n FROM t;
         CREATE APPLICATION alarm () INPUT t (n BIGINT) FROM 'mqtt:y' FORMAT JSON WITH (durability => 'log')
         OUTPUT 'mqtt:alarm' FORMAT JSON AS SELECT n FROM t;
         CREATE QUERY hooked FROM APPLICATION hook; CREATE QUERY alarmed FROM APPLICATION alarm",
        receiver.port
    ));
    wait_for(LONG, "somebody listens", || std::net::TcpStream::connect(posts).is_ok());
    for first in (0..POSTED).step_by(250) {
        let lines: String = (first..first + 250).map(|n| number(n) + "\n").collect();
        let (status, answer) =
            exchange(posts, &request("POST", "/in", "content-type: application/x-ndjson\r\n", &lines));
        assert_eq!(status, 200, "{answer}");
    }
    wait_for(LONG, "all are delivered", || receiver.count() == POSTED);
    receiver.refuses.store(true, Ordering::Release);
    server.kill_9();
    receiver.requests.lock().clear();
    let server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    acknowledged(mqtt, "y", &number(7));
    let results = |server: &Server| {
        let status = server.status();
        let all = status["applications"].as_array().expect("applications").clone();
        all.into_iter().find(|one| one["name"] == "alarm").map(|one| one["results"].clone())
    };
    wait_for(LONG, "the other gets its event", || results(&server) == Some(1.into()));
    assert_eq!(receiver.count(), 0);
    receiver.refuses.store(false, Ordering::Release);
    // What it had taken before comes again with the same keys.
    wait_for(LONG, "all have arrived", || receiver.count() >= POSTED);
    let arrived: std::collections::BTreeSet<usize> = arrived(&receiver).into_iter().collect();
    assert_eq!(arrived, (0..POSTED).collect());
}
