//! SIGHUP: a server that reads its configuration again.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use tempfile::TempDir;

use super::server::{Server, free_port, rivulet_by, wait};
use super::support::{WAIT_MAX, exchange};

/// A server that is configured by `rivulet.toml` in the folder, and by nothing else but its ports.
fn start(folder: &Path, configuration: &str) -> Server {
    start_by("env", folder, configuration)
}

fn start_by(program: &str, folder: &Path, configuration: &str) -> Server {
    fs::write(folder.join("rivulet.toml"), configuration).unwrap();
    let mqtt = free_port();
    let settings = [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string())];
    // Whoever runs the tests may ignore SIGHUP, and children inherit that.
    let arguments: &[&str] = if program == "env" { &["--default-signal=HUP"] } else { &[] };
    let server = Server::spawn_by(rivulet_by(program, arguments), folder, mqtt, &settings);
    server.wait_until_ready();
    server
}

/// Has it read another configuration. Returns what it says about that.
fn reload(server: &Server, folder: &Path, configuration: &str) -> String {
    let log = || fs::read_to_string(folder.join("log")).unwrap();
    let before = log().len();
    fs::write(folder.join("rivulet.toml"), configuration).unwrap();
    server.signal("-HUP");
    // The last thing that is said of a configuration, in these tests, is a key in the last section, or the hint.
    wait("it to say so", || ["log.level", "hint:"].iter().any(|end| log()[before..].contains(end)));
    log()[before..].to_owned()
}

/// A table of some hundred bytes.
fn create_table(server: &Server, name: &str) -> Result<(), String> {
    let rows = "kitchen,21.5%0A".repeat(40);
    let answer = server.sql(&format!("CREATE TABLE {name} (room TEXT, target DOUBLE) FROM 'data:,{rows}' FORMAT CSV"));
    answer.get("error").map_or(Ok(()), |error| Err(error.to_string()))
}

#[test]
fn bounds_and_the_log_level_change_while_it_runs_and_other_keys_are_named() {
    let folder = TempDir::new().unwrap();
    let server = start(folder.path(), "table.bytes_max = \"256 MiB\"\n");
    create_table(&server, "before").unwrap();
    let said = reload(
        &server,
        folder.path(),
        "workers = 7\ntable.bytes_max = 1024\nmemory.bytes_max = \"64 GiB\"\nlog.level = \"debug\"\n",
    );
    for line in [
        "the configuration was read again",
        "table.bytes_max is now \"1 KiB\"",
        "memory.bytes_max is now \"64 GiB\"",
        "log.level is now \"debug\"",
        "workers has changed, and counts after a restart only",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    let error = create_table(&server, "after").unwrap_err();
    assert!(error.contains("more than 1024 bytes"), "{error}");
    let metrics = ureq::get(format!("{}/metrics", server.url())).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(metrics.contains(&format!("\nrivulet_memory_bytes_max {}\n", 64_u64 << 30)), "{metrics}");
    // A key that is gone has its default again. What does not count yet is named each time.
    let said = reload(&server, folder.path(), "workers = 7\nlog.level = \"info\"\n");
    assert!(said.contains("table.bytes_max is now \"256 MiB\"") && said.contains("workers has changed"), "{said}");
    assert!(said.contains("memory.bytes_max is now not set"), "{said}");
    create_table(&server, "after").unwrap();
}

#[cfg(unix)]
#[test]
fn of_a_bound_that_open_files_lower_the_log_says_what_holds() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let limited = folder.path().join("limited");
    fs::write(&limited, "#!/bin/sh\nulimit -n 1000\nexec env --default-signal=HUP \"$@\"\n").unwrap();
    fs::set_permissions(&limited, fs::Permissions::from_mode(0o755)).unwrap();
    let server = start_by(limited.to_str().unwrap(), folder.path(), "");
    let bounds = "http.connections_max = 9000\nmqtt.embedded.connections_max = 9000\nlog.level = \"debug\"\n";
    let said = reload(&server, folder.path(), bounds);
    let held =
        said.split("mqtt.embedded.connections_max is now ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let held: usize = held.expect("it is told").parse().expect("a number");
    assert!(held < 1000 && !said.contains("is now 9000"), "{said}");
}

#[test]
fn the_rest_api_is_asked_under_another_name_from_then_on() {
    let folder = TempDir::new().unwrap();
    let server = start(folder.path(), "");
    let asked = || {
        let request = "GET /health/live HTTP/1.1\r\nhost: rivulet.example\r\nconnection: close\r\n\r\n";
        exchange(server.http, request).0
    };
    assert_eq!(asked(), 421);
    let said = reload(&server, folder.path(), "http.hosts = \"rivulet.example\"\nlog.level = \"debug\"\n");
    assert!(said.contains("http.hosts is now \"rivulet.example\""), "{said}");
    wait("the name to be known", || asked() == 200);
}

/// Begins to watch the results of a query. Returns the status, and the connection, which goes on watching.
fn watch(server: &Server) -> (String, TcpStream) {
    let mut connection = TcpStream::connect(server.http).unwrap();
    connection.set_read_timeout(Some(WAIT_MAX)).unwrap();
    write!(connection, "GET /api/v1/queries/q/results HTTP/1.1\r\nhost: {}\r\n\r\n", server.http).unwrap();
    let mut status = [0; 12];
    connection.read_exact(&mut status).unwrap();
    (String::from_utf8(status.to_vec()).unwrap(), connection)
}

#[test]
fn half_of_the_connections_may_watch_results_also_of_those_that_were_added() {
    let folder = TempDir::new().unwrap();
    let server = start(folder.path(), "http.connections_max = 4\n");
    server.sql_ok(
        "CREATE APPLICATION a INPUT t (v DOUBLE) FROM 'mqtt:t' FORMAT JSON OUTPUT 'mqtt:o' FORMAT JSON \
         AS SELECT v FROM t; CREATE QUERY q FROM APPLICATION a",
    );
    let mut watching = Vec::new();
    let mut watch_one_more = |expected: &str| {
        let (status, connection) = watch(&server);
        assert_eq!(status, format!("HTTP/1.1 {expected}"));
        watching.push(connection);
    };
    ["200", "200", "429"].into_iter().for_each(&mut watch_one_more);
    let said = reload(&server, folder.path(), "http.connections_max = 10\nlog.level = \"debug\"\n");
    assert!(said.contains("http.connections_max is now 10"), "{said}");
    ["200", "200", "200", "429"].into_iter().for_each(&mut watch_one_more);
    let said = reload(&server, folder.path(), "http.connections_max = 8\nlog.level = \"info\"\n");
    assert!(said.contains("http.connections_max is now 8"), "{said}");
    watching.truncate(1);
    wait("a place to be free", || watch(&server).0 == "HTTP/1.1 200");
}

#[test]
fn a_configuration_that_is_wrong_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let server = start(folder.path(), "");
    for (wrong, said_of_it) in [
        ("table.bytes_max = 1024\nlog = = 3", "rivulet.toml:2:7: "),
        ("table.bytes_max = 1024\nlog.level = \"loud\"", "rivulet.toml:2:5: log.level is \"loud\""),
        (
            "table.bytes_max = 1024\nmqtt.embedded.tls = { certificate_file = \"a.pem\", key_file = \"a.key\" }",
            "'a.pem' cannot be read",
        ),
    ] {
        let said = reload(&server, folder.path(), wrong);
        assert!(said.contains("the configuration stays as it was: ") && said.contains(said_of_it), "{said}");
        assert!(!said.contains(" is now "), "{said}");
    }
    create_table(&server, "as_before").unwrap();
}

#[test]
fn a_server_that_outlives_its_terminal_reads_its_configuration_again_too() {
    let folder = TempDir::new().unwrap();
    let mut server = start_by("nohup", folder.path(), "");
    let said = reload(&server, folder.path(), "log.level = \"warn\"\n");
    assert!(said.contains("log.level is now \"warn\""), "{said}");
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));
}
