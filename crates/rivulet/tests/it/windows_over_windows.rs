//! Windows over the results of windows, and windows of a state, of queries whose server is killed: their results are
//! those of a server that was not.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kill::Device;
use crate::server::{Publisher, Server, free_port, wait};

/// The begin of an hour, in milliseconds since 1970.
const BEGIN_MS: u64 = 1_763_712_000_000;
const MINUTE_MS: u64 = 60_000;
const DEVICES: u64 = 3;

const SCRIPT: &str = "
    CREATE APPLICATION hours (device TEXT, least DOUBLE DEFAULT 2)
    INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{device}' FORMAT JSON
    WITH (idle_timeout => INTERVAL '1000 days', durability => 'log')
    OUTPUT 'mqtt:results/{device}/hours' FORMAT JSON
    AS WITH minutes AS (SELECT avg(n) AS mean, window_end FROM readings GROUP BY tumble(ts, INTERVAL '1 minute'))
       SELECT max(mean) AS top, count(*) AS minutes FROM minutes WHERE mean >= $least
       GROUP BY tumble(window_end, INTERVAL '1 hour');
    CREATE APPLICATION runs (device TEXT)
    INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{device}' FORMAT JSON
    WITH (durability => 'log')
    OUTPUT 'mqtt:results/{device}/runs' FORMAT JSON
    AS SELECT count(*) AS readings, sum(n) AS total FROM readings GROUP BY state_window(n = 20, n = 40);";

/// Publishes one event of each device for each of these minutes, and waits until all are acknowledged.
fn publish(publisher: &mut Device, minutes: Range<u64>) {
    for minute in minutes {
        for device in 0..DEVICES {
            let ts = BEGIN_MS + minute * MINUTE_MS + device;
            publisher.publish_to(&format!("in/{device}"), &json!({"ts": ts, "n": minute}).to_string());
        }
    }
    wait("the acknowledgements", || {
        publisher.receive();
        publisher.unacknowledged() == 0
    });
}

#[test]
fn windows_over_windows_and_of_a_state_are_the_same_when_the_server_is_killed() {
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let mut server = Server::start_at(folder.path(), mqtt, 600);
    server.sql_ok(SCRIPT);
    for device in 0..DEVICES {
        server.sql_ok(&format!(
            "CREATE QUERY hours_{device} FROM APPLICATION hours WITH (device => '{device}');
             CREATE QUERY runs_{device} FROM APPLICATION runs WITH (device => '{device}')"
        ));
    }
    let mut publisher = Device::new("source".into(), mqtt);
    publish(&mut publisher, 0..25);
    // State of both windows is in the checkpoint, and the events behind it are in the log.
    server.sql_ok("CHECKPOINT");
    publish(&mut publisher, 25..30);
    server.kill_9();
    server = Server::start_at(folder.path(), mqtt, 600);
    wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
    let mut subscriber = Publisher::connect(mqtt);
    subscriber.subscribe("results/#");
    // With the first event of the next hour, the last minute closes, and the hour with it.
    publish(&mut publisher, 30..61);
    let mut found: BTreeMap<String, Value> = BTreeMap::new();
    for _ in 0..2 * DEVICES {
        let (topic, payload) = subscriber.next();
        let before = found.insert(topic.clone(), serde_json::from_slice(&payload).unwrap());
        assert_eq!(before, None, "{topic} has one result");
    }
    for device in 0..DEVICES {
        let of = |what: &str| &found[&format!("results/{device}/{what}")];
        assert_eq!(*of("runs"), json!({"readings": 21, "total": (20..=40).sum::<u64>()}));
        assert_eq!(*of("hours"), json!({"top": 59.0, "minutes": 58}));
    }
}
