//! One query that is too much for a worker, in the real server: it runs in parts, and its results do not show that.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::{Publisher, Server, free_port, wait_for};

/// How many keys the events have.
const KEYS: u64 = 7;

/// How long a query may take to be cut or joined, and its events to be taken. The balancer looks every second; how much
/// of a second the server has depends on what else the machine does.
const LONGEST: Duration = Duration::from_secs(180);

const APPLICATIONS: &str = "
    CREATE APPLICATION plain (topic TEXT) INPUT numbers (n BIGINT, device TEXT) FROM 'mqtt:in/{topic}' FORMAT JSON
    OUTPUT 'mqtt:out/{topic}' FORMAT JSON AS SELECT n FROM numbers WHERE n % 10 = 0;
    CREATE APPLICATION keyed (topic TEXT) INPUT numbers (n BIGINT, device TEXT) FROM 'mqtt:in/{topic}' FORMAT JSON
    OUTPUT 'mqtt:out/{topic}' FORMAT JSON
    AS SELECT device, count(*) AS events, max(n) AS last FROM numbers GROUP BY count_window(10), device;
    CREATE APPLICATION whole (topic TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{topic}' FORMAT JSON
    OUTPUT 'mqtt:out/{topic}' FORMAT JSON AS SELECT n - lag(n) AS step FROM numbers QUALIFY n % 10 = 0";

/// A server that cuts whatever needs a hundredth of a worker.
fn server(folder: &TempDir) -> Server {
    let mqtt = free_port();
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_WORKERS", "2".to_owned()),
        ("RIVULET_SCHEDULER_BALANCE_PERIOD_S", "1".to_owned()),
        ("RIVULET_SCHEDULER_CUT_ABOVE_PERCENT", "1".to_owned()),
    ];
    let server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    server.sql_ok(APPLICATIONS);
    server
}

/// What DESCRIBE says about the parts of a query.
fn parts(server: &Server, query: &str) -> String {
    let answer = server.sql_ok(&format!("DESCRIBE QUERY {query}"));
    let rows = answer["results"][0]["rows"].as_array().expect("rows").clone();
    let row = rows.into_iter().find(|row| row[0] == "parts").unwrap_or_else(|| panic!("no parts in {answer}"));
    row[1].as_str().expect("text").to_owned()
}

fn event(n: u64) -> String {
    json!({"n": n, "device": format!("d{}", n % KEYS)}).to_string()
}

/// Publishes events until the query runs in two parts, then a few more. Returns how many there were.
fn publish_until_cut(server: &Server, sensor: &mut Publisher, query: &str) -> u64 {
    let (mut n, begun) = (0, Instant::now());
    let mut publish = |events: u64| {
        for _ in 0..events {
            sensor.publish(&format!("in/{query}"), &event(n));
            n += 1;
        }
        n
    };
    while parts(server, query) != "2" {
        assert!(begun.elapsed() < LONGEST, "{query} runs in {} parts", parts(server, query));
        // Enough to be busy with for more than a hundredth of the time that asking takes.
        publish(20_000);
    }
    publish(50_000)
}

/// Reads the results of a query on its topic while it works; ends with the first one for which `is_last` holds.
fn read_results(
    server: &Server,
    query: &str,
    is_last: impl Fn(&Value) -> bool + Send + 'static,
) -> JoinHandle<Vec<Value>> {
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe(&format!("out/{query}"));
    std::thread::spawn(move || {
        let mut results = Vec::new();
        loop {
            let row: Value = serde_json::from_slice(&listener.next().1).expect("JSON");
            if is_last(&row) {
                return results;
            }
            results.push(row);
        }
    })
}

#[test]
fn a_query_without_state_is_cut_and_its_results_stay_in_order() {
    let folder = TempDir::new().expect("a folder");
    let server = server(&folder);
    server.sql_ok("CREATE QUERY plain FROM APPLICATION plain WITH (topic => 'plain')");
    assert_eq!(parts(&server, "plain"), "1");
    let results = read_results(&server, "plain", |row| row["n"].as_u64() >= Some(1_000_000_000));
    let mut sensor = Publisher::connect(server.mqtt);
    let events = publish_until_cut(&server, &mut sensor, "plain");
    // By the same connection: by another the last event could overtake those that wait in the first one.
    sensor.publish("in/plain", &event(1_000_000_000));
    let results = results.join().expect("results");
    let numbers = results.iter().map(|row| row["n"].as_u64().expect("a number"));
    assert!(numbers.eq((0..events).step_by(10)), "results come in the order of the events, and all do");
    // Nothing comes any more: in a while it is in one piece again.
    wait_for(LONGEST, "the query to be joined", || parts(&server, "plain") == "1");
}

#[test]
fn a_query_by_key_is_cut_and_paused_and_nothing_is_lost() {
    let folder = TempDir::new().expect("a folder");
    let server = server(&folder);
    server.sql_ok("CREATE QUERY keyed FROM APPLICATION keyed WITH (topic => 'keyed')");
    let results = read_results(&server, "keyed", |row| row["device"] == "the last");
    let mut sensor = Publisher::connect(server.mqtt);
    let events = publish_until_cut(&server, &mut sensor, "keyed");
    let metrics = ureq::get(format!("{}/metrics", server.url())).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(metrics.contains("rivulet_parts{application=\"keyed\"} 2"), "{metrics}");
    // Whoever pauses a query needs it in one piece: what it has taken is done then.
    let pause_when_done = |events: u64| {
        wait_for(LONGEST, "everything to be taken", || server.status()["total"]["events"].as_u64() == Some(events));
        server.sql_ok("PAUSE QUERY keyed; RESUME QUERY keyed");
    };
    pause_when_done(events);
    (events..events + 10 * KEYS).for_each(|n| sensor.publish("in/keyed", &event(n)));
    let events = events + 10 * KEYS;
    pause_when_done(events);
    (0..10).for_each(|n| sensor.publish("in/keyed", &json!({"n": n, "device": "the last"}).to_string()));
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let results = results.join().expect("results");
    for row in &results {
        let key = row["device"].as_str().and_then(|device| device[1..].parse().ok()).expect("a key");
        let n = row["last"].as_u64().expect("a number");
        assert_eq!(row["events"], 10, "{row}");
        let before = last.insert(key, n);
        assert_eq!(n, before.map_or(key + 9 * KEYS, |before| before + 10 * KEYS), "the windows of a key, in order");
    }
    let windows = (0..KEYS).map(|key| (events + KEYS - 1 - key) / KEYS / 10).sum::<u64>();
    assert_eq!(results.len() as u64, windows, "of {events} events");
    server.sql_ok("DROP QUERY keyed");
}

#[test]
fn a_query_that_cannot_be_cut_says_why() {
    let folder = TempDir::new().expect("a folder");
    let server = server(&folder);
    server.sql_ok("CREATE QUERY whole FROM APPLICATION whole WITH (topic => 'whole')");
    assert!(parts(&server, "whole").starts_with("1, never more: "), "{}", parts(&server, "whole"));
}
