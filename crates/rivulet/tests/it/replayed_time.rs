//! After a crash the clock of a query is that of the log until its events are replayed: no timer of a restored query
//! runs before the events behind its state.

use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::server::{Publisher, Server, free_port, now_ms, wait};

const APPLICATIONS: &str = "CREATE APPLICATION silent (device TEXT)
    INPUT readings (ts TIMESTAMP EVENT TIME) FROM 'mqtt:in/{device}' FORMAT JSON
    WITH (idle_timeout => INTERVAL '500 milliseconds', durability => 'log')
    OUTPUT 'mqtt:silent/{device}' FORMAT JSON WITH (retain => true)
    AS SELECT count(*) AS readings FROM readings GROUP BY session(ts, INTERVAL '3 seconds');
    CREATE APPLICATION others (device TEXT)
    INPUT numbers (n BIGINT) FROM 'mqtt:other/{device}' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:negative/{device}' FORMAT JSON
    AS SELECT n FROM numbers WHERE n < 0";

const DEVICES: usize = 20;

/// What the log has to be looked through for, before the first event is replayed.
const OTHERS: usize = 60_000;

#[test]
fn a_silence_that_ended_in_the_log_closes_no_session_at_a_restart() {
    let folder = TempDir::new().unwrap();
    let mut server = Server::start_at(folder.path(), free_port(), 3600);
    server.sql_ok(APPLICATIONS);
    for device in 0..DEVICES {
        server.sql_ok(&format!("CREATE QUERY silent_{device} FROM APPLICATION silent WITH (device => 'd{device}')"));
    }
    server.sql_ok("CREATE QUERY others FROM APPLICATION others WITH (device => 'all')");
    let read = |server: &Server, name: &str| {
        let status = server.status();
        let applications = status["applications"].as_array().cloned().unwrap_or_default();
        let found = applications.into_iter().find(|one| one["name"] == name).unwrap_or_default();
        let refused: u64 =
            found["refused"].as_object().into_iter().flatten().filter_map(|(_, rows)| rows.as_u64()).sum();
        (found["events"].as_u64().unwrap_or(0), refused)
    };
    let mut publisher = Publisher::connect(server.mqtt);
    let publish = |publisher: &mut Publisher| {
        let event = format!("{{\"ts\":{}}}", now_ms());
        (0..DEVICES).for_each(|device| publisher.publish(&format!("in/d{device}"), &event));
    };
    publish(&mut publisher);
    wait("the first events", || read(&server, "silent").0 == DEVICES as u64);
    server.sql_ok("CHECKPOINT");
    publish(&mut publisher);
    (0..OTHERS).for_each(|_| publisher.publish("other/all", "{\"n\":1}"));
    wait("all events", || read(&server, "others").0 == OTHERS as u64);
    let logged = server.status()["log"]["next"].as_u64().unwrap();
    wait("the log to be on disk", || server.status()["log"]["durable"].as_u64() >= Some(logged - 1));
    server.kill_9();
    // Longer than the gap: by the state of the checkpoint alone every session would be over.
    thread::sleep(Duration::from_secs(4));
    let server = Server::start_at(folder.path(), server.mqtt, 3600);
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("silent/+");
    for _ in 0..DEVICES {
        let (topic, result) = listener.next_json();
        assert_eq!(result["readings"], 2, "{topic}");
    }
    assert_eq!(read(&server, "silent").1, 0, "{}", server.status()["applications"]);
}
