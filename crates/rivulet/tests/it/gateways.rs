//! Applications whose results go to another server: that one is away, and this one is killed meanwhile.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::server::{Server, free_port, wait_for};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// A server with these settings, and a checkpoint each second.
fn start(folder: &Path, mqtt: SocketAddr, settings: &[(&str, String)]) -> Server {
    let own = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned()),
        ("RIVULET_HOSTS_ALLOW", "127.0.0.1".to_owned()),
    ];
    let server = Server::spawn(folder, mqtt, &[&own[..], settings].concat());
    server.wait_until_ready();
    server
}

/// An application whose durable events give a result each.
fn copies(output: &str) -> String {
    format!(
        "APPLICATION copies (room TEXT)
         INPUT readings (n BIGINT) FROM 'mqtt:in/{{room}}' FORMAT JSON WITH (durability => 'log')
         OUTPUT {output} AS SELECT n, $room AS room FROM readings"
    )
}

/// Registers it, with a query.
fn register(gateway: &Server, output: &str) {
    gateway.sql_ok(&format!("CREATE {}", copies(output)));
    gateway.sql_ok("CREATE QUERY q FROM APPLICATION copies WITH (room => 'a')");
}

/// Publishes with QoS 1, and waits for all acknowledgements: the events are in the log.
fn publish(broker: SocketAddr, numbers: RangeInclusive<u16>) {
    let mut socket = TcpStream::connect(broker).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut packets = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00".to_vec();
    for n in numbers.clone() {
        let body = [&b"\x00\x04in/a"[..], &n.to_be_bytes(), format!("{{\"n\":{n}}}").as_bytes()].concat();
        packets.extend([0x32, u8::try_from(body.len()).unwrap()]);
        packets.extend(body);
    }
    socket.write_all(&packets).unwrap();
    let mut answers = vec![0; 4 + 4 * numbers.len()];
    socket.read_exact(&mut answers).unwrap();
    assert!(answers[..4] == [0x20, 2, 0, 0] && answers[4..].chunks(4).all(|answer| answer[..2] == [0x40, 2]));
}

/// Waits until all these numbers are in the lines of a file.
fn expect(file: &Path, numbers: RangeInclusive<u16>) {
    let number = |line: &str| serde_json::from_str::<Value>(line).ok()?["n"].as_u64();
    let found =
        || -> BTreeSet<u64> { std::fs::read_to_string(file).unwrap_or_default().lines().filter_map(number).collect() };
    let expected: BTreeSet<u64> = numbers.map(u64::from).collect();
    wait_for(WAIT_MAX, "all results", || found() == expected);
}

#[test]
fn a_broker_that_is_away_gets_what_a_killed_gateway_has_acknowledged() {
    let (cloud_folder, gateway_folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (at, mqtt) = (free_port(), free_port());
    let file = cloud_folder.path().join("all.jsonl");
    let mut cloud = start(cloud_folder.path(), at, &[]);
    cloud.sql_ok(&format!(
        "CREATE APPLICATION arrived
         INPUT results (n BIGINT) FROM 'mqtt:out/+' FORMAT JSON WITH (durability => 'log')
         OUTPUT 'file:{}' FORMAT JSON WITH (append => true) AS SELECT n FROM results;
         CREATE QUERY q FROM APPLICATION arrived",
        file.display()
    ));
    let mut gateway = start(gateway_folder.path(), mqtt, &[]);
    register(&gateway, &format!("'mqtt:out/{{room}}' FORMAT JSON WITH (broker => 'mqtt://{at}', qos => 1)"));
    publish(mqtt, 1..=10);
    expect(&file, 1..=10);
    // From now on rows wait in the sink that is open, then in front of one that cannot be opened.
    cloud.kill_9();
    publish(mqtt, 11..=260);
    gateway.kill_9();
    gateway = start(gateway_folder.path(), mqtt, &[]);
    publish(mqtt, 261..=500);
    gateway.kill_9();
    let _gateway = start(gateway_folder.path(), mqtt, &[]);
    let _cloud = start(cloud_folder.path(), at, &[]);
    expect(&file, 1..=500);
}

#[test]
fn a_server_that_is_away_gets_what_a_killed_gateway_has_acknowledged_over_a_link() {
    let (cloud_folder, gateway_folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (link, mqtt) = (free_port(), free_port());
    let file = cloud_folder.path().join("all.jsonl");
    let mut gateway = start(gateway_folder.path(), mqtt, &[]);
    let output = format!("up 'link:{link}/copies'");
    let refused = gateway.sql(&format!("CREATE {}", copies(&format!("{output} FORMAT JSON"))));
    assert!(refused["error"]["hint"].to_string().contains("leave FORMAT out"), "{refused}");
    let exactly = format!("{output} WITH (delivery => 'exactly_once')");
    let refused = gateway.sql(&format!("CREATE {}", copies(&exactly)));
    assert!(refused["error"]["message"].to_string().contains("is for sinks of big queries"), "{refused}");
    register(&gateway, &output);
    publish(mqtt, 1..=250);
    gateway.kill_9();
    gateway = start(gateway_folder.path(), mqtt, &[]);
    publish(mqtt, 251..=500);
    gateway.kill_9();
    let gateway = start(gateway_folder.path(), mqtt, &[]);
    // A new version goes on with what waits on disk.
    gateway.sql_ok(&format!("CREATE OR REPLACE {} WHERE n > 0", copies(&output)));
    publish(mqtt, 501..=510);
    let cloud = start(cloud_folder.path(), free_port(), &[("RIVULET_LINK_ADDRESS", link.to_string())]);
    cloud.sql_ok("CREATE SOURCE up (n BIGINT, room TEXT) FROM 'link:copies'");
    cloud.sql_ok(&format!("CREATE SINK there TO 'file:{}' FORMAT JSON WITH (append => true)", file.display()));
    cloud.sql_ok("CREATE QUERY q AS SELECT n, room FROM up INTO there");
    expect(&file, 1..=510);
    gateway.sql_ok("DROP APPLICATION copies CASCADE");
    let left = || std::fs::read_dir(gateway_folder.path().join("data/links")).map_or(0, Iterator::count);
    wait_for(WAIT_MAX, "nothing to be left on disk", || left() == 0);
}
