//! What an application that reads the log behind the others gets: each event once, by all of its inputs in order, at
//! the time at which it came, and through a kill, a pause and a new version.

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
use super::outlets::{Receiver, acknowledged};
use super::outputs::refused;
use super::server::{Publisher, Server, free_port, wait_for};
use super::support::AsOperator;
use super::tables::said;

/// A busy machine may need it.
const LONG: Duration = Duration::from_secs(120);

/// More than sink and inbox have room for.
const ROWS: usize = 6_000;

fn opened(folder: &Path) -> Arc<Engine> {
    Engine::open(Config { inbox_rows_max: 500, ..on_demand(folder) }).expect("an engine")
}

fn bodies(receiver: &Receiver) -> Vec<Value> {
    receiver.requests.lock().iter().map(|one| serde_json::from_str(&one.body).expect("JSON")).collect()
}

/// Waits until an application with the query `q` has events to read from the log. All events have come.
fn wait_until_behind(engine: &Engine, publisher: &mut Publisher) {
    publisher.wait_until_taken();
    let is_behind = || {
        let paused = engine.operator().pause("q");
        engine.operator().resume("q").expect("it runs");
        paused.is_err_and(|error| error.kind == ErrorKind::Unavailable)
    };
    let stands = || engine.problems().iter().any(|problem| problem.contains("the application has stood still for"));
    wait_for(LONG, "it is behind", || stands() && is_behind());
}

fn number_of_events(engine: &Engine, reason: &str) -> u64 {
    engine.status().applications[0].refused.get(reason).copied().unwrap_or(0)
}

/// Windows close by the clock of the events, not by that of the day on which they are read.
#[test]
fn windows_that_stood_still_have_all_of_their_events() {
    const EACH: usize = 3;
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let engine = opened(folder.path());
    said(
        &engine,
        &format!(
            "CREATE APPLICATION hook () INPUT t (ts TIMESTAMP EVENT TIME) FROM 'mqtt:x' FORMAT JSON
             WITH (durability => 'log', lateness => INTERVAL '0 seconds', idle_timeout => INTERVAL '5 seconds')
             OUTPUT 'http://127.0.0.1:{}/hook' FORMAT JSON
             AS SELECT count(*) AS n, window_end FROM t GROUP BY tumble(ts, INTERVAL '1 millisecond');
             CREATE QUERY q FROM APPLICATION hook",
            receiver.port
        ),
    );
    let mut publisher = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    for n in 0..ROWS * EACH {
        publisher.publish("x", &format!("{{\"ts\":{}}}", 1_763_712_000_000 + n / EACH));
    }
    wait_until_behind(&engine, &mut publisher);
    // Longer than `idle_timeout`.
    std::thread::sleep(Duration::from_secs(7));
    said(&engine, "CHECKPOINT");
    receiver.refuses.store(false, Ordering::Release);
    wait_for(LONG, "all windows", || receiver.count() >= ROWS);
    let ends: Vec<String> = bodies(&receiver).iter().map(|one| one["window_end"].to_string()).collect();
    assert!(ends.windows(2).all(|pair| pair[0] < pair[1]), "each window once, in order");
    assert!(bodies(&receiver).iter().all(|one| one["n"] == EACH), "and whole");
    assert_eq!((number_of_events(&engine, "late"), number_of_events(&engine, "overflow")), (0, 0));
}

/// Events of two inputs keep their order among each other.
#[test]
fn two_inputs_stay_in_order() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let engine = opened(folder.path());
    said(
        &engine,
        &format!(
            "CREATE APPLICATION hook ()
             INPUT a (k BIGINT, n BIGINT) FROM 'mqtt:a' FORMAT JSON WITH (durability => 'log')
             INPUT b (k BIGINT, v BIGINT) FROM 'mqtt:b' FORMAT JSON WITH (durability => 'log')
             OUTPUT 'http://127.0.0.1:{}/hook' FORMAT JSON
             AS SELECT a.n, b.v FROM a JOIN LATEST(b) ON b.k = a.k;
             CREATE QUERY q FROM APPLICATION hook",
            receiver.port
        ),
    );
    let mut publisher = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    let publish = |publisher: &mut Publisher, numbers: std::ops::Range<usize>| {
        for n in numbers {
            publisher.publish("b", &format!("{{\"k\":1,\"v\":{n}}}"));
            publisher.publish("a", &format!("{{\"k\":1,\"n\":{n}}}"));
        }
    };
    publish(&mut publisher, 0..ROWS);
    wait_until_behind(&engine, &mut publisher);
    receiver.refuses.store(false, Ordering::Release);
    // Some while it catches up.
    publish(&mut publisher, ROWS..ROWS + 500);
    wait_for(LONG, "all rows", || receiver.count() >= ROWS + 500);
    let rows: Vec<(u64, u64)> =
        bodies(&receiver).iter().map(|one| (one["n"].as_u64().expect("n"), one["v"].as_u64().expect("v"))).collect();
    assert_eq!(rows, (0..ROWS as u64 + 500).map(|n| (n, n)).collect::<Vec<_>>());
}

/// A wrong address is put right: the new version reads on, whatever the receiver of before does.
#[test]
fn a_new_version_goes_on_where_the_application_stood() {
    let (folder, receiver, right) = (TempDir::new().unwrap(), Receiver::start(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let engine = opened(folder.path());
    let application = |topic: &str, receiver: &Receiver| {
        format!(
            "CREATE OR REPLACE APPLICATION hook (room TEXT) INPUT t (n BIGINT) FROM 'mqtt:{topic}' FORMAT JSON
             WITH (durability => 'log') OUTPUT 'http://127.0.0.1:{}/hook' FORMAT JSON
             AS SELECT n, $room AS room FROM t",
            receiver.port
        )
    };
    said(&engine, &application("x", &receiver));
    said(&engine, "CREATE QUERY q FROM APPLICATION hook WITH (room => 'q')");
    let mut publisher = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    (0..ROWS).for_each(|n| publisher.publish("x", &format!("{{\"n\":{n}}}")));
    wait_until_behind(&engine, &mut publisher);
    said(&engine, "CREATE QUERY late FROM APPLICATION hook WITH (room => 'late')");
    let error = refused(&engine, &application("y", &right));
    assert!(error.kind == ErrorKind::Unavailable && error.message.contains("events to read from the log"), "{error}");
    said(&engine, &application("x", &right));
    (ROWS..ROWS + 10).for_each(|n| publisher.publish("x", &format!("{{\"n\":{n}}}")));
    let of = |receiver: &Receiver, room: &str| -> Vec<u64> {
        let all = bodies(receiver);
        all.iter().filter(|one| one["room"] == room).filter_map(|one| one["n"].as_u64()).collect()
    };
    let last = Some(ROWS as u64 + 9);
    wait_for(LONG, "rows of the new one", || ["q", "late"].iter().all(|room| of(&right, room).last().copied() == last));
    assert!(of(&right, "q").len() > ROWS / 4, "what was left in the log");
    assert_eq!(of(&right, "late"), (ROWS as u64..ROWS as u64 + 10).collect::<Vec<_>>());
    // What the output of before has, its receiver gets.
    receiver.refuses.store(false, Ordering::Release);
    wait_for(LONG, "all rows", || receiver.count() + of(&right, "q").len() >= ROWS + 10);
    let all: Vec<u64> = of(&receiver, "q").into_iter().chain(of(&right, "q")).collect();
    assert_eq!(all, (0..ROWS as u64 + 10).collect::<Vec<_>>(), "each once, in their order");
    wait_for(LONG, "it has read all", || engine.operator().pause("q").is_ok());
}

/// After a kill the receiver is away, so that the application falls behind while the log is replayed. A query that was
/// paused since the last checkpoint gets what came before it was paused, and nothing of later.
#[test]
fn a_paused_query_has_all_of_before_though_its_application_was_behind_at_the_end_of_the_replay() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let mqtt = free_port();
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "0".to_owned()),
        ("RIVULET_INBOX_ROWS_MAX", "500".to_owned()),
        ("RIVULET_SINK_HTTP_ALLOW", "127.0.0.1".to_owned()),
    ];
    let start = || {
        let server = Server::spawn(folder.path(), mqtt, &settings);
        server.wait_until_ready();
        server
    };
    let mut server = start();
    server.sql_ok(&format!(
        "CREATE APPLICATION hook (room TEXT) INPUT t (n BIGINT) FROM 'mqtt:x' FORMAT JSON WITH (durability => 'log')
         OUTPUT 'http://127.0.0.1:{}/hook' FORMAT JSON AS SELECT n, $room AS room FROM t;
         CREATE QUERY q FROM APPLICATION hook WITH (room => 'q');
         CREATE QUERY p FROM APPLICATION hook WITH (room => 'p')",
        receiver.port
    ));
    let numbers = |room: &str| -> Vec<u64> {
        let all = bodies(&receiver);
        let mut of_room: Vec<u64> =
            all.iter().filter(|one| one["room"] == room).map(|one| one["n"].as_u64().expect("n")).collect();
        of_room.dedup();
        of_room
    };
    let mut publisher = Publisher::connect(mqtt);
    (0..ROWS).for_each(|n| publisher.publish("x", &format!("{{\"n\":{n}}}")));
    wait_for(LONG, "all rows", || receiver.count() >= 2 * ROWS);
    server.sql_ok("PAUSE QUERY p");
    acknowledged(mqtt, "x", &format!("{{\"n\":{ROWS}}}"));
    wait_for(LONG, "the last one", || receiver.count() > 2 * ROWS);
    server.kill_9();
    receiver.refuses.store(true, Ordering::Release);
    receiver.requests.lock().clear();
    server = start();
    wait_for(LONG, "it is behind", || {
        let is_over = server.status()["log"]["is_replaying"] == false;
        let paused = server.sql("PAUSE QUERY q").to_string();
        server.sql_ok("RESUME QUERY q");
        is_over && paused.contains("events to read from the log")
    });
    acknowledged(mqtt, "x", &format!("{{\"n\":{}}}", ROWS + 1));
    receiver.refuses.store(false, Ordering::Release);
    wait_for(LONG, "all rows of one", || receiver.count() >= ROWS && numbers("q").last() == Some(&(ROWS as u64 + 1)));
    wait_for(LONG, "it may run again", || server.sql("RESUME QUERY p").get("error").is_none());
    acknowledged(mqtt, "x", &format!("{{\"n\":{}}}", ROWS + 2));
    wait_for(LONG, "both go on", || ["p", "q"].iter().all(|room| numbers(room).last() == Some(&(ROWS as u64 + 2))));
    assert_eq!(numbers("q"), (0..ROWS as u64 + 3).collect::<Vec<_>>());
    let without_pause = (0..ROWS as u64).chain([ROWS as u64 + 2]).collect::<Vec<_>>();
    assert_eq!(numbers("p").len(), without_pause.len(), "what came before it was paused");
    assert_eq!(numbers("p"), without_pause);
}
