//! A server that is stopped: it first reports that it is not ready, loses nothing, and does not take longer than
//! allowed.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::kill::{Load, kills, random};
use super::server::{Publisher, Server, free_port, rivulet_by, wait};

const COPY: &str = "CREATE APPLICATION copy (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON \
                    OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n FROM numbers; \
                    CREATE QUERY a FROM APPLICATION copy WITH (id => 'a')";

#[test]
fn it_says_that_it_is_not_ready_before_it_stops_to_work() {
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let settings = [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_STOP_DELAY_S", "3".to_owned())];
    let mut server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    server.sql_ok(COPY);
    let (mut listener, mut publisher) = (Publisher::connect(mqtt), Publisher::connect(mqtt));
    listener.subscribe("out/+");
    server.signal("-TERM");
    wait("it to say so", || {
        server.health("ready").is_some_and(|(code, text)| code == 503 && text.contains("is stopping"))
    });
    publisher.publish("in/a", "{\"n\": 7}");
    assert_eq!(listener.next(), ("out/a".into(), b"{\"n\":7}".to_vec()), "it works on");
    assert_eq!(server.health("live").map(|(code, _)| code), Some(200));
    assert_eq!(server.wait_for_end(), Some(0));
}

/// A terminal that is closed: SIGHUP, and nobody who reads what the server says.
#[test]
fn a_closed_terminal_stops_it_without_loss() {
    if Command::new("script").arg("--version").output().is_err() {
        return eprintln!("skipped: a server at a terminal, because script is missing (apt-get install bsdutils)");
    }
    let before = "CREATE APPLICATION before (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON \
                  OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT lag(n) AS before FROM numbers; \
                  CREATE QUERY a FROM APPLICATION before WITH (id => 'a')";
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let settings =
        [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_CHECKPOINT_INTERVAL_S", "3600".to_owned())];
    // It makes a terminal, which is closed when it is killed. Whoever runs the tests may ignore SIGHUP, and children
    // inherit that.
    let at_terminal = ["--default-signal=HUP", "bash", "-c", "exec script -qec \"exec $0 $1\" /dev/null"];
    let mut server = Server::spawn_by(rivulet_by("env", &at_terminal), folder.path(), mqtt, &settings);
    server.wait_until_ready();
    server.sql_ok(before);
    let mut publisher = Publisher::connect(mqtt);
    publisher.publish("in/a", "{\"n\": 7}");
    wait("the event", || server.status()["total"]["events"].as_u64() == Some(1));
    let children = format!("/proc/{0}/task/{0}/children", server.id());
    let own = std::fs::read_to_string(children).unwrap().trim().to_owned();
    server.kill_9();
    wait("the server to end", || {
        let state = std::fs::read_to_string(format!("/proc/{own}/stat")).unwrap_or_default();
        // What has ended may wait for somebody to ask how.
        state.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
    });
    // What it knew is there.
    let _server = Server::start_at(folder.path(), mqtt, 3600);
    let (mut listener, mut publisher) = (Publisher::connect(mqtt), Publisher::connect(mqtt));
    listener.subscribe("out/+");
    publisher.publish("in/a", "{\"n\": 8}");
    assert_eq!(listener.next(), ("out/a".into(), b"{\"before\":7}".to_vec()));
}

#[test]
fn it_takes_no_longer_than_it_may_and_a_second_signal_ends_it_at_once() {
    for (delay, limit, second, code) in [("0", "1", false, 1), ("3600", "0", true, 130)] {
        let folder = TempDir::new().unwrap();
        let mqtt = free_port();
        let settings = [
            ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
            ("RIVULET_STOP_DELAY_S", delay.to_owned()),
            ("RIVULET_STOP_LIMIT_S", limit.to_owned()),
        ];
        let mut server = Server::spawn(folder.path(), mqtt, &settings);
        server.wait_until_ready();
        // A request that does not come to its end is waited for, longer than the limit.
        let mut request = TcpStream::connect(server.url().trim_start_matches("http://")).unwrap();
        request.write_all(b"POST /api/v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nSHOW").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        server.signal("-TERM");
        if second {
            wait("the first", || server.health("ready").is_some_and(|(code, _)| code == 503));
            server.signal("-TERM");
        }
        assert_eq!(server.wait_for_end(), Some(code));
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert_eq!(log.contains("stop.limit_s"), !second, "{log}");
    }
}

/// Devices of QoS 1 publish all the time, and a big query reads what they publish, while the server is stopped and
/// started.
#[test]
fn every_acknowledged_event_is_counted_once_however_often_the_server_is_stopped() {
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let start = || Server::start_at(folder.path(), mqtt, 3600);
    let mut server = start();
    server.sql_ok("CREATE SOURCE all_events (n BIGINT) FROM 'mqtt:in/+' FORMAT JSON");
    server.sql_ok("CREATE SOURCE bids FROM 'nexmark:bid' WITH (rate => 20000)");
    server.sql_ok("CREATE SINK seen TO 'file:seen/' FORMAT JSON");
    server.sql_ok("CREATE SINK copies TO 'file:copies/' FORMAT JSON");
    server.sql_ok("CREATE QUERY sees AS SELECT n FROM all_events INTO seen");
    server.sql_ok("CREATE QUERY copy AS SELECT auction, price FROM bids INTO copies");
    let load = Load::start(&server, 4);
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..kills(3) {
        load.wait_for_more(200);
        thread::sleep(Duration::from_millis(random(&mut state) % 300));
        server.signal("-TERM");
        assert_eq!(server.wait_for_end(), Some(0));
        server = start();
        wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
        let status = server.status();
        assert_eq!(status["log"]["replayed_events"], json!(0), "all was saved: {}", status["log"]);
        assert_eq!(status["checkpoints"]["recovered"]["lost"], json!(0), "{status}");
    }
    load.finish(mqtt);
}
