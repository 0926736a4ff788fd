//! An application that takes posts and posts its results: no end of it is a topic, through a change of values, another
//! version, a crash, a backup and a restore.

use std::fs;
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use serde_json::Value;
use tempfile::TempDir;

use crate::outlets::Receiver;
use crate::server::{Server, free_port, rivulet, wait};
use crate::support::{exchange, request};

#[test]
fn what_is_posted_goes_on_through_a_change_a_replacement_a_backup_and_a_kill() {
    let (folder, elsewhere, receiver) = (TempDir::new().unwrap(), TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let (mqtt, address) = (free_port(), free_port());
    let settings =
        [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_SINK_HTTP_ALLOW", "127.0.0.1".to_owned())];
    let start = |folder: &TempDir| {
        let server = Server::spawn(folder.path(), mqtt, &settings);
        server.wait_until_ready();
        server
    };
    let text = |factor: i64| {
        format!(
            "CREATE OR REPLACE APPLICATION relay (device TEXT)
             INPUT readings (n BIGINT) FROM 'http:{address}/in' FORMAT JSON
               WITH (key => '{{device}}', key_field => 'device', token => 'rose', durability => 'log')
             OUTPUT 'http://127.0.0.1:{}/{{device}}' FORMAT JSON WITH (headers.authorization => 'Bearer lily')
             AS SELECT n * {factor} AS n FROM readings",
            receiver.port
        )
    };
    let post = |device: &str, n: i64| {
        let body = format!(r#"{{"device": "{device}", "n": {n}}}"#);
        wait("somebody listens", || TcpStream::connect(address).is_ok());
        // The log has it when it is answered.
        assert_eq!(exchange(address, &request("POST", "/in", "authorization: Bearer rose\r\n", &body)).0, 200);
    };
    let mut server = start(&folder);
    server.sql_ok(&text(1));
    server.sql_ok("CREATE QUERY q FROM APPLICATION relay WITH (device => 'a')");
    post("a", 1);
    server.sql_ok("ALTER QUERY q SET (device => 'b')");
    // No query reads it any more.
    post("a", 99);
    post("b", 2);
    server.sql_ok(&text(10));
    post("b", 3);
    let health = |server: &Server| server.status()["applications"][0]["health"].clone();
    let kinds = |health: &Value| {
        let ends = health.as_array().unwrap().iter();
        ends.map(|end| (end["kind"].to_string(), end["name"].to_string())).collect::<Vec<_>>()
    };
    let pair = |kind: &str, name: &str| (format!("\"{kind}\""), format!("\"{name}\""));
    assert_eq!(kinds(&health(&server)), [pair("source", "readings"), pair("sink", "output")]);
    let shown = server.sql_ok("DESCRIBE APPLICATION relay; SHOW APPLICATIONS; EXPLAIN APPLICATION relay").to_string();
    let status = server.status().to_string();
    for secret in ["rose", "lily"] {
        assert!(!shown.contains(secret) && !status.contains(secret), "{shown} {status}");
    }
    server.kill_9();
    server = start(&folder);
    post("b", 4);
    let program = |arguments: &[&str]| rivulet().current_dir(elsewhere.path()).args(arguments).output().unwrap();
    let done = program(&["backup", "all", "--server", &server.url()]);
    assert!(done.status.success(), "{done:?}");
    drop(server);
    let done = program(&["restore", "all", "--data-dir", "data"]);
    assert!(done.status.success(), "{done:?}");
    let _server = start(&elsewhere);
    post("b", 5);
    receiver.refuses.store(false, Ordering::Release);
    wait("all of them", || receiver.requests.lock().iter().any(|request| request.body.contains("50")));
    wait("all of them", || receiver.count() >= 5);
    let mut came = receiver.sorted();
    came.dedup();
    let of = |path: &str, n: i64| (path.to_owned(), format!(r#"{{"n":{n}}}"#));
    let mut expected = vec![of("/a", 1), of("/b", 2), of("/b", 30), of("/b", 40), of("/b", 50)];
    came.sort();
    expected.sort();
    assert_eq!(came, expected);
}

#[test]
fn a_trial_has_both_ends_and_reaches_neither() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let script = format!(
        "CREATE APPLICATION relay (device TEXT)
         INPUT readings (n BIGINT) FROM 'kafka:127.0.0.1:9/in' FORMAT JSON WITH (key => '{{device}}')
         OUTPUT 'http://127.0.0.1:{}/{{device}}' FORMAT JSON AS SELECT n * 2 AS n FROM readings",
        receiver.port
    );
    fs::write(folder.path().join("app.sql"), script).unwrap();
    let event = r#"{"topic": "kafka:127.0.0.1:9/in", "key": "a 1", "payload": {"n": 1}}"#;
    fs::write(folder.path().join("events"), format!("{event}\n")).unwrap();
    let arguments = ["--json", "app", "test", "app.sql", "--input", "events", "--parameters", r#"{"device": "a 1"}"#];
    let done = rivulet().current_dir(folder.path()).args(arguments).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let lines = String::from_utf8(done.stdout).unwrap();
    let results: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let results: Vec<&Value> = results.iter().filter(|one| one["kind"] == "result").collect();
    assert_eq!(results.len(), 1, "{lines}");
    assert_eq!(results[0]["payload"]["n"], 2);
    assert!(results[0]["topic"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{lines}");
    assert_eq!(receiver.count(), 0);
}
