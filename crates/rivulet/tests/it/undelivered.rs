//! Rows of big queries whose receiver is away, on a server that is stopped or killed: they are a part of checkpoints,
//! and are sent after the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::kafka_broker::Broker;
use super::outlets::{Receiver, in_topic};
use super::server::{Publisher, Server, free_port, wait, wait_for};

/// A server that posts to this machine, and makes checkpoints only when it is told to.
fn start(folder: &Path) -> Server {
    let mqtt = free_port();
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "3600".to_owned()),
        ("RIVULET_SINK_HTTP_ALLOW", "127.0.0.1".to_owned()),
    ];
    let server = Server::spawn(folder, mqtt, &settings);
    server.wait_until_ready();
    server
}

/// The big query `q` from a source to a receiver.
fn declare(server: &Server, from: &str, receiver: &Receiver) {
    server.sql_ok(&format!("CREATE SOURCE numbers (n BIGINT) FROM {from}"));
    server.sql_ok(&format!("CREATE SINK hook TO 'http://127.0.0.1:{}/hook' FORMAT JSON", receiver.port));
    server.sql_ok("CREATE QUERY q AS SELECT n FROM numbers INTO hook");
}

/// A server whose query `q` reads all rooms of a house, and its receiver, which refuses every row.
fn start_refused() -> (TempDir, Receiver, Server) {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let server = start(folder.path());
    declare(&server, "'mqtt:in/+' FORMAT JSON", &receiver);
    (folder, receiver, server)
}

/// The health of the sink of the query `q`.
fn sink(server: &Server) -> Value {
    let status = server.status();
    let ends = status["big_queries"][0]["health"].as_array().cloned().unwrap_or_default();
    ends.into_iter().find(|end| end["kind"] == "sink" && end["name"] != "letters").unwrap_or_default()
}

fn publish(server: &Server, numbers: std::ops::RangeInclusive<i64>) {
    let mut publisher = Publisher::connect(server.mqtt);
    numbers.for_each(|n| publisher.publish("in/a", &format!("{{\"n\":{n}}}")));
}

/// The keys with which each number came.
fn arrived(receiver: &Receiver) -> BTreeMap<i64, BTreeSet<String>> {
    let mut found = BTreeMap::<i64, BTreeSet<String>>::new();
    for request in receiver.requests.lock().iter() {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        found.entry(body["n"].as_i64().unwrap()).or_default().insert(request.key.clone());
    }
    found
}

/// All numbers arrive, each with one key.
fn all_arrive(receiver: &Receiver, numbers: i64) {
    receiver.refuses.store(false, Ordering::Release);
    wait_for(Duration::from_secs(300), "all rows", || arrived(receiver).len() == usize::try_from(numbers).unwrap());
    assert!(arrived(receiver).values().all(|keys| keys.len() == 1), "{:?}", arrived(receiver));
}

#[test]
fn a_stop_keeps_the_rows_that_wait_for_a_receiver_that_is_away() {
    let (folder, receiver, mut server) = start_refused();
    publish(&server, 1..=63);
    wait("the rows to wait", || sink(&server)["waiting_rows"] == 63);
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));
    assert_eq!(receiver.count(), 0);
    // A stop in the middle of the outage, before any row has left.
    let mut server = start(folder.path());
    wait("they to wait again", || sink(&server)["waiting_rows"] == 63);
    publish(&server, 64..=70);
    wait("more rows to wait", || sink(&server)["waiting_rows"] == 70);
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));
    let _server = start(folder.path());
    all_arrive(&receiver, 70);
    let bodies: Vec<String> = receiver.requests.lock().iter().map(|one| one.body.clone()).collect();
    assert_eq!(bodies, (1..=70).map(|n| format!("{{\"n\":{n}}}")).collect::<Vec<_>>(), "in their order, each once");
}

#[test]
fn a_crash_keeps_the_rows_that_waited_at_the_last_checkpoint() {
    let (folder, receiver, mut server) = start_refused();
    publish(&server, 1..=63);
    wait("the rows to wait", || sink(&server)["waiting_rows"] == 63);
    server.sql_ok("CHECKPOINT");
    server.kill_9();
    let _server = start(folder.path());
    all_arrive(&receiver, 63);
}

/// More rows than the sink has room for: those in front of it are in the checkpoint too, wherever they wait.
#[test]
fn a_stop_keeps_the_rows_behind_a_sink_without_room() {
    const ROWS: i64 = 9_000;
    let (folder, receiver, mut server) = start_refused();
    let waiting = |server: &Server| sink(server)["waiting_rows"].as_i64().unwrap_or(0);
    // Each third is in the queue of the source when the broker answers the subscription behind it. What a checkpoint
    // lets through is more than there is room for, and nothing more is read then.
    for third in 0..3 {
        let mut publisher = Publisher::connect(server.mqtt);
        let rows = third * ROWS / 3 + 1..=(third + 1) * ROWS / 3;
        rows.for_each(|n| publisher.publish("in/a", &format!("{{\"n\":{n}}}")));
        publisher.subscribe("none");
        wait("rows to wait", || waiting(&server) > 0);
        server.sql_ok("CHECKPOINT");
    }
    assert!(waiting(&server) < ROWS, "the bound of what waits");
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));
    let _server = start(folder.path());
    all_arrive(&receiver, ROWS);
}

/// Rows that are read again have the keys that they had, whether they waited at the checkpoint or came behind it.
#[test]
fn rows_of_a_file_come_with_one_key_however_often_the_server_is_killed() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let input = folder.path().join("in.jsonl");
    fs::write(&input, (1..=20).map(|n| format!("{{\"n\":{n}}}\n")).collect::<String>()).unwrap();
    receiver.refuses.store(true, Ordering::Release);
    let mut server = start(folder.path());
    let from = format!("'file:{}' FORMAT JSON WITH (follow => true)", input.display());
    declare(&server, &from, &receiver);
    for round in 1..=3 {
        receiver.refuses.store(true, Ordering::Release);
        let upto = 20 * round;
        let waits = |server: &Server| sink(server)["waiting_rows"].as_i64().unwrap_or(0);
        wait("rows to wait", || waits(&server) > 0);
        server.sql_ok("CHECKPOINT");
        receiver.refuses.store(false, Ordering::Release);
        wait("the rows to leave", || arrived(&receiver).len() as i64 == upto);
        receiver.refuses.store(true, Ordering::Release);
        let more = (upto + 1..=upto + 20).map(|n| format!("{{\"n\":{n}}}\n")).collect::<String>();
        let mut file = fs::OpenOptions::new().append(true).open(&input).unwrap();
        std::io::Write::write_all(&mut file, more.as_bytes()).unwrap();
        wait("more rows to wait", || waits(&server) == 20);
        server.kill_9();
        server = start(folder.path());
    }
    all_arrive(&receiver, 80);
}

/// A query that has given up goes on with what waited at its last checkpoint.
#[test]
fn a_query_that_has_given_up_says_how_to_go_on_and_sends_what_waited() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let server = start(folder.path());
    server.sql_ok("CREATE SOURCE numbers (n BIGINT) FROM 'mqtt:in/+' FORMAT JSON");
    let to = format!("'http://127.0.0.1:{}/hook' FORMAT JSON WITH (retry_for => '3 s')", receiver.port);
    server.sql_ok(&format!("CREATE SINK hook TO {to}"));
    server.sql_ok("CREATE QUERY q AS SELECT n FROM numbers INTO hook");
    publish(&server, 1..=10);
    wait("the rows to wait", || sink(&server)["waiting_rows"] == 10);
    server.sql_ok("CHECKPOINT");
    wait("the query to give up", || server.status()["big_queries"][0]["state"] == "failed");
    let reason = server.status()["big_queries"][0]["reason"].to_string();
    let told = [reason, server.health("ready").unwrap().1, server.sql_ok("DESCRIBE SINK hook").to_string()];
    for told in told {
        assert!(told.contains("RESUME QUERY") && told.contains("retry_for"), "{told}");
    }
    receiver.refuses.store(false, Ordering::Release);
    server.sql_ok("RESUME QUERY q");
    all_arrive(&receiver, 10);
}

/// The end of a query whose receiver never answers: its checkpoint names the sink, and its rows come again.
#[test]
fn a_stop_that_cannot_save_a_query_says_what_becomes_of_its_rows() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let mut server = start(folder.path());
    fs::write(folder.path().join("in.jsonl"), "{\"n\":1}\n{\"n\":2}\n").unwrap();
    declare(&server, "'file:in.jsonl' FORMAT JSON", &receiver);
    wait("the rows to wait", || sink(&server)["waiting_rows"] == 2 && sink(&server)["state"] == "retrying");
    let refused = server.sql("CHECKPOINT").to_string();
    assert!(
        refused.contains("did not come to rest within 4s, because the sink 'hook' is retrying (2 rows"),
        "{refused}"
    );
    let ready: Value = serde_json::from_str(&server.health("ready").unwrap().1).unwrap();
    let problems: Vec<&str> = ready["problems"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert!(problems[0].starts_with("the query 'q' runs, and the sink 'hook' is retrying"), "{problems:?}");
    assert!(problems[1].starts_with("no checkpoint is made of the query 'q'"), "{problems:?}");
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0), "nothing is lost");
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let said =
        "its rows since the last checkpoint, with 2 rows that waited for the sink 'hook', are computed and sent again";
    assert!(log.contains(said), "{log}");
    let _server = start(folder.path());
    all_arrive(&receiver, 2);
}

/// Rows wait for a Kafka that is away: the query goes on with them when it is back, and so does the next start.
#[test]
fn rows_that_wait_for_kafka_are_in_checkpoints() {
    let Some(mut broker) = Broker::start_or_skip() else { return };
    let folder = TempDir::new().unwrap();
    let mut server = start(folder.path());
    // Refused rows may go to a Kafka without transactions too.
    server.sql_ok(&format!("CREATE SINK letters TO 'kafka:{}/letters' FORMAT JSON", broker.address));
    server.sql_ok("CREATE SOURCE numbers (n BIGINT) FROM 'mqtt:in/+' FORMAT JSON WITH (dead_letter => 'letters')");
    server.sql_ok(&format!("CREATE SINK away TO 'kafka:{}/out' FORMAT JSON", broker.address));
    server.sql_ok("CREATE QUERY q AS SELECT n FROM numbers INTO away");
    let numbers =
        |broker: &Broker| -> BTreeSet<i64> { in_topic(&broker.address, "out").into_iter().map(|(_, n)| n).collect() };
    let arrive = |broker: &Broker, upto: i64| {
        let long = Duration::from_secs(90);
        wait_for(long, "the rows in Kafka", || numbers(broker) == (1..=upto).collect());
    };
    let wait_away = |server: &Server, rows: i64| {
        wait("rows to wait", || sink(server)["waiting_rows"] == rows && sink(server)["state"] == "retrying");
    };
    publish(&server, 1..=10);
    arrive(&broker, 10);
    broker.kill();
    publish(&server, 11..=30);
    wait_away(&server, 20);
    server.sql_ok("CHECKPOINT");
    publish(&server, 31..=35);
    wait_away(&server, 25);
    server.sql_ok("CHECKPOINT");
    broker.start_again();
    arrive(&broker, 35);
    wait("all to be acknowledged", || sink(&server)["waiting_rows"] == 0);
    broker.kill();
    publish(&server, 36..=60);
    wait_away(&server, 25);
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));
    let server = start(folder.path());
    wait_away(&server, 25);
    broker.start_again();
    arrive(&broker, 60);
}

/// Rows wait for a broker of their own that is away: they are in the last checkpoint, and in the next start's first
/// messages.
#[test]
fn rows_that_wait_for_another_broker_are_in_checkpoints() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let at = free_port();
    let mut broker = Server::start_at(other.path(), at, 3600);
    let mut server = start(folder.path());
    server.sql_ok("CREATE SOURCE numbers (n BIGINT) FROM 'mqtt:in/+' FORMAT JSON");
    let options = format!("broker => 'mqtt://{at}', qos => 1");
    server.sql_ok(&format!("CREATE SINK away TO 'mqtt:out/all' FORMAT JSON WITH ({options})"));
    server.sql_ok("CREATE QUERY q AS SELECT n FROM numbers INTO away");
    let listen = || {
        let mut listener = Publisher::connect(at);
        listener.subscribe("out/+");
        listener
    };
    let next = |listener: &mut Publisher| listener.next_json().1["n"].as_i64().unwrap();
    let mut listener = listen();
    publish(&server, 1..=5);
    (1..=5).for_each(|n| assert_eq!(next(&mut listener), n));
    wait("all to be acknowledged", || sink(&server)["waiting_rows"] == 0);
    broker.kill_9();
    publish(&server, 6..=30);
    wait("rows to wait", || sink(&server)["waiting_rows"] == 25 && sink(&server)["state"] == "retrying");
    server.sql_ok("CHECKPOINT");
    publish(&server, 31..=35);
    wait("more rows to wait", || sink(&server)["waiting_rows"] == 30);
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));
    let _broker = Server::start_at(other.path(), at, 3600);
    let mut listener = listen();
    let _server = start(folder.path());
    (6..=35).for_each(|n| assert_eq!(next(&mut listener), n));
}

/// A transaction cannot be secured while Kafka is away: what is lost is said, and the exit code is not 0.
#[test]
fn a_stop_that_loses_rows_of_a_transaction_says_so() {
    let Some(mut broker) = Broker::start_or_skip() else { return };
    let folder = TempDir::new().unwrap();
    let mut server = start(folder.path());
    server.sql_ok("CREATE SOURCE numbers (n BIGINT) FROM 'mqtt:in/+' FORMAT JSON");
    let options = "delivery => 'exactly_once'";
    // A topic that is not there yet is made by the first row for it.
    server.sql_ok(&format!("CREATE SINK first TO 'kafka:{}/out' FORMAT JSON", broker.address));
    server.sql_ok("CREATE QUERY makes AS SELECT n FROM numbers INTO first");
    publish(&server, 0..=0);
    wait_for(Duration::from_secs(300), "the topic", || in_topic(&broker.address, "out").len() == 1);
    server.sql_ok("DROP QUERY makes");
    server.sql_ok(&format!("CREATE SINK away TO 'kafka:{}/out' FORMAT JSON WITH ({options})", broker.address));
    server.sql_ok("CREATE QUERY q AS SELECT n FROM numbers INTO away");
    publish(&server, 1..=10);
    wait("the rows to be read", || server.status()["big_queries"][0]["rows_in"] == 10);
    server.sql_ok("CHECKPOINT");
    wait_for(Duration::from_secs(300), "the first rows", || in_topic(&broker.address, "out").len() == 11);
    broker.kill();
    publish(&server, 11..=30);
    wait("rows to wait", || sink(&server)["waiting_rows"] == 20 && sink(&server)["state"] == "retrying");
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(1));
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let said = "its rows since the last checkpoint, with 20 rows that waited for the sink 'away', are lost";
    assert!(log.contains(said) && log.contains("rows were lost when the server stopped"), "{log}");
}
