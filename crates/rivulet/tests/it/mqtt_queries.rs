//! Big queries over MQTT: through the server's embedded broker, through its one connection to another, and from the
//! command line.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::{Publisher, Server, free_port, mosquitto, rivulet, start_mosquitto, wait};

const DEVICES: usize = 1_000;
const ROUNDS: usize = 20;

const SCRIPT: &str = "\
    CREATE SOURCE readings (device TEXT, topic TEXT, n BIGINT) FROM 'mqtt:device/+/value' FORMAT JSON \
    WITH (level_columns => 'device', topic_column => 'topic');
    CREATE SINK totals TO 'mqtt:total/{device}' FORMAT JSON WITH (retain => true);
    CREATE QUERY sums AS SELECT device, count(*) AS events, sum(n) AS total, min(topic) AS topic FROM readings GROUP BY device \
    INTO totals";

/// Publishes rounds of one event for each device, all through one connection.
fn publish(broker: SocketAddr, rounds: std::ops::Range<usize>) {
    let mut sensors = Publisher::connect(broker);
    for round in rounds {
        for device in 0..DEVICES {
            sensors.publish(&format!("device/{device}/value"), &json!({"n": round}).to_string());
        }
    }
}

fn big_query(server: &Server) -> Value {
    server.status()["big_queries"][0].clone()
}

/// The newest totals of all devices, as a later subscriber gets them.
fn totals(broker: SocketAddr) -> BTreeMap<String, (u64, u64)> {
    let mut listener = Publisher::connect(broker);
    listener.subscribe("total/#");
    let mut totals = BTreeMap::new();
    while totals.len() < DEVICES {
        let (topic, payload) = listener.next();
        let row: Value = serde_json::from_slice(&payload).expect("JSON");
        let device = topic.strip_prefix("total/").expect("the topic of a total").to_owned();
        assert!(row.get("device").is_none(), "what is in the topic is not in the payload: {row}");
        assert_eq!(row["topic"], format!("device/{device}/value"));
        totals.insert(device, (row["events"].as_u64().expect("a count"), row["total"].as_u64().expect("a sum")));
    }
    totals
}

/// Every event of a thousand devices is counted once, through a pause as well.
fn count_all(server: &Server, broker: SocketAddr) {
    server.sql_ok(SCRIPT);
    server.sql_ok(
        "CREATE APPLICATION copy (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n FROM numbers;
         CREATE QUERY other FROM APPLICATION copy WITH (id => 'other')",
    );
    publish(broker, 0..ROUNDS / 2);
    let rows_in = |rounds: usize| big_query(server)["rows_in"] == DEVICES * rounds;
    wait("the first half", || rows_in(ROUNDS / 2));
    // A query that is paused is not asked for, and holds up nobody: more comes than its queue has room for.
    server.sql_ok("PAUSE QUERY sums");
    let mut other = server.watch("other");
    let mut sensor = Publisher::connect(broker);
    for n in 0..20_000 {
        sensor.publish("device/x/value", &json!({"n": n}).to_string());
    }
    sensor.publish("in/other", "{\"n\": 1}");
    assert_eq!(other.next(), Some(json!({"n": 1})));
    server.sql_ok("RESUME QUERY sums");
    wait("messages to come again", || {
        let before = big_query(server)["rows_in"].as_u64();
        sensor.publish("device/x/value", "{\"n\": 1}");
        std::thread::sleep(Duration::from_millis(20));
        big_query(server)["rows_in"].as_u64() > before
    });
    publish(broker, ROUNDS / 2..ROUNDS);
    let expected = (ROUNDS as u64, (0..ROUNDS as u64).sum());
    wait("all totals to be published", || {
        let all = totals(broker);
        (0..DEVICES).all(|device| all.get(&device.to_string()) == Some(&expected))
    });
    let status = big_query(server);
    assert_eq!((status["state"].as_str(), &status["refused"]), (Some("running"), &json!({})), "{status}");
    server.sql_ok("DROP QUERY sums");
}

#[test]
fn a_big_query_counts_every_event_of_the_embedded_broker() {
    let folder = TempDir::new().expect("a folder");
    let server = Server::start(folder.path());
    count_all(&server, server.mqtt);
}

#[test]
fn a_big_query_counts_every_event_of_another_broker() {
    let Some(program) = mosquitto() else { return };
    let (folder, broker) = (TempDir::new().expect("a folder"), free_port());
    let _broker = start_mosquitto(&program, folder.path(), broker);
    let server = Server::spawn(folder.path(), broker, &[("RIVULET_MQTT_BROKER_URL", format!("mqtt://{broker}"))]);
    server.wait_until_ready();
    count_all(&server, broker);
    assert_eq!(server.status()["connections"].as_array().map(Vec::len), Some(1), "there is one connection for all");
}

#[test]
fn rows_go_to_a_broker_and_come_from_one_without_a_server() {
    let folder = TempDir::new().expect("a folder");
    let server = Server::start(folder.path());
    let with = format!("broker => 'mqtt://{}'", server.mqtt);
    let mut reader = rivulet()
        .args(["run", "--json", "-q", "-c"])
        .arg(format!(
            "CREATE SOURCE readings (site TEXT, rest TEXT, n BIGINT) FROM 'mqtt:site/+/#' FORMAT JSON
             WITH ({with}, level_columns => 'site, rest');
             SELECT site, rest, n FROM readings LIMIT 100"
        ))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    // What is sent before the reader listens is not seen by it.
    wait("the reader to have enough", || {
        let writer = rivulet()
            .args(["run", "-q", "-c"])
            .arg(format!(
                "CREATE SOURCE bid FROM 'nexmark:bid' WITH (events => 1000);
                 CREATE SINK out TO 'mqtt:site/{{auction}}/bids/{{bidder}}' FORMAT JSON WITH ({with}, qos => 1);
                 INSERT INTO out SELECT auction, bidder, price AS n FROM bid"
            ))
            .output()
            .expect("the program");
        assert!(writer.status.success(), "{}", String::from_utf8_lossy(&writer.stderr));
        reader.try_wait().expect("its state").is_some()
    });
    let read = reader.wait_with_output().expect("it ends with its limit");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let rows: Vec<Value> = String::from_utf8_lossy(&read.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON lines"))
        .collect();
    assert_eq!(rows.len(), 100);
    for bid in &rows {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        assert!(bid["site"].as_str().is_some_and(is_number), "{bid}");
        let bidder = bid["rest"].as_str().and_then(|rest| rest.strip_prefix("bids/"));
        assert!(bidder.is_some_and(is_number), "{bid}");
    }
}

#[test]
fn what_is_wrong_with_a_topic_or_a_broker_is_said() {
    let run = |script: &str| {
        let output = rivulet().args(["run", "-q", "-c", script]).output().expect("the program");
        assert!(!output.status.success(), "{script}");
        String::from_utf8(output.stderr).expect("text")
    };
    let source = |address: &str, with: &str| {
        run(&format!("CREATE SOURCE s (a TEXT, n BIGINT) FROM 'mqtt:{address}' FORMAT JSON {with}; SELECT n FROM s"))
    };
    let closed = free_port();
    for (error, parts) in [
        (source("home/+", ""), &["the option 'broker' of 'mqtt:' is missing", "mqtt://localhost:1883"][..]),
        (source("home/#/x", ""), &["'mqtt:home/#/x' is not a topic"]),
        (source("home/+", "WITH (level_columns => 'a, n')"), &["has 1 wildcards"]),
        (source("home/+", "WITH (level_columns => 'n')"), &["its type has to be Utf8"]),
        (source("home/+", "WITH (topic_column => 'b')"), &["which is no column"]),
        (source("home/+", "WITH (broker => 'localhost')"), &["is not the address of a broker"]),
        (source("home/+", &format!("WITH (broker => 'mqtt://{closed}')")), &["cannot open 'mqtt:home/+'"]),
    ] {
        assert!(parts.iter().all(|part| error.contains(part)) && error.contains("hint:"), "{error}");
    }
    let sink = |address: &str| {
        run(&format!(
            "CREATE SOURCE bid FROM 'nexmark:bid' WITH (events => 1); CREATE SINK s TO 'mqtt:{address}' FORMAT JSON;
             INSERT INTO s SELECT auction FROM bid"
        ))
    };
    assert!(sink("out/{bidder}").contains("unknown column 'bidder'"));
    assert!(sink("out/{auction}").contains("no column is left for the payload"));
    assert!(sink("out/#").contains("hint:"));
}
