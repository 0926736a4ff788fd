//! Attacks on the HTTP side of a real server with small limits. Each of them once stopped the server, or blocked all
//! other users.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::server::{Publisher, Server, free_port, now_ms, rivulet, rivulet_by, wait};
use crate::support::{WAIT_MAX, request};

/// A server whose shell has had this command first.
fn start_under(folder: &Path, shell: &str, settings: &[(&str, &str)]) -> Server {
    let mqtt = free_port();
    let command = rivulet_by("sh", &["-c", &format!("{shell}; exec \"$0\" \"$@\"")]);
    let mut all = vec![("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string())];
    all.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
    let server = Server::spawn_by(command, folder, mqtt, &all);
    server.wait_until_ready();
    server
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
    stream
}

/// All that comes until the server closes the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(error) => {
                let is_timeout = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
                assert!(!is_timeout, "it is never cut off");
                break;
            }
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn ask(address: SocketAddr, text: &str) -> String {
    let mut stream = connect(address);
    // A server that has seen enough may close before all is sent.
    let _ = stream.write_all(text.as_bytes());
    rest(&mut stream)
}

fn is_told(folder: &Path, what: &str) -> bool {
    std::fs::read_to_string(folder.join("log")).unwrap().contains(what)
}

#[test]
fn a_page_whose_name_leads_here_gets_nothing() {
    let folder = TempDir::new().unwrap();
    let server = start_under(folder.path(), ":", &[("RIVULET_HTTP_HOSTS", "gateway.example, other")]);
    let status =
        |host: &str| ask(server.http, &format!("GET /api/v1/status HTTP/1.1\r\n{host}Connection: close\r\n\r\n"));
    let port = server.http.port();
    for host in ["Host: evil.example\r\n", "Host: evil.example:80\r\n", "", "Host: localhost\r\nHost: evil.example\r\n"]
    {
        let answer = status(host);
        // A second Host is refused where the request is read.
        assert!(answer.starts_with("HTTP/1.1 421") || answer.starts_with("HTTP/1.1 400"), "{host}: {answer}");
        assert!(!answer.contains("uptime"), "{answer}");
    }
    assert!(status("Host: evil.example\r\n").contains("http.hosts lists"), "the hint names the key");
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), "gateway.example".into(), "OTHER:1".into()] {
        let answer = status(&format!("Host: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
    // Of the same origin as its own page, and a change.
    let rebound = request("POST", "/api/v1/sql", "origin: http://evil.example\r\n", "SHOW QUERIES")
        .replace("host: localhost", "host: evil.example");
    assert!(ask(server.http, &rebound).starts_with("HTTP/1.1 421"));
    let absolute = "GET http://evil.example/api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(ask(server.http, absolute).starts_with("HTTP/1.1 421"));
    let folder = TempDir::new().unwrap();
    let output = rivulet().args(["config", "--set", "http.hosts=http://a:80"]).current_dir(folder.path()).output();
    assert!(!output.unwrap().status.success(), "a list of names has no scheme and no port");
}

#[test]
fn a_crowd_that_sends_nothing_keeps_nobody_out() {
    let folder = TempDir::new().unwrap();
    // Of 240 files 100 are reserved; the REST API may take a quarter of the rest.
    let settings = [("RIVULET_CONNECTIONS_FILES_RESERVED", "100"), ("RIVULET_CHECKPOINT_INTERVAL_S", "0")];
    let server = start_under(folder.path(), "ulimit -n 240", &settings);
    server.sql_ok(
        "CREATE APPLICATION copy (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n FROM numbers",
    );
    let half = [
        "",
        "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n",
        "POST /api/v1/queries/bulk HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
        "POST /api/v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nSHOW",
    ];
    let mut crowd = Vec::new();
    for number in 0..400 {
        let mut stream = connect(server.http);
        let _ = stream.write_all(half[number % half.len()].as_bytes());
        crowd.push(stream);
    }
    // Each of these needs a connection or a file.
    let bulk =
        request("POST", "/api/v1/queries/bulk", "", "{\"application\":\"copy\",\"parameters\":{\"id\":\"a\"}}\n");
    for _ in 0..3 {
        let answer = ask(server.http, &bulk);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"id\":"), "{answer}");
        server.status();
        Publisher::connect(server.mqtt).publish("in/a", "{\"n\":1}");
        let answer = ask(server.http, &request("POST", "/api/v1/checkpoint", "", ""));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count();
    assert!(open < 140, "{open} files are open");
}

#[test]
fn whoever_is_too_slow_is_cut_off_and_slow_is_not_too_slow() {
    let folder = TempDir::new().unwrap();
    let settings = [("RIVULET_HTTP_HEAD_TIMEOUT_S", "1"), ("RIVULET_HTTP_BODY_TIMEOUT_S", "1")];
    let server = start_under(folder.path(), ":", &settings);
    let (mut silent, mut half_head) = (connect(server.http), connect(server.http));
    half_head.write_all(b"GET / HTTP/1.1\r\nHost: local").unwrap();
    let (mut half_body, mut half_bulk) = (connect(server.http), connect(server.http));
    half_body.write_all(b"POST /api/v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nS").unwrap();
    half_bulk
        .write_all(b"POST /api/v1/queries/bulk HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nx\n{")
        .unwrap();
    // A kilobyte now and then is enough, in the middle of a line or not; the whole takes longer than the limit.
    let mut slow = connect(server.http);
    let rounds = 12;
    let line = format!("{{\"application\":\"nobody\"{}}}\n", " ".repeat(1500));
    let length = rounds * line.len();
    write!(
        slow,
        "POST /api/v1/queries/bulk HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )
    .unwrap();
    for _ in 0..rounds {
        slow.write_all(line.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(150));
    }
    let answer = rest(&mut slow);
    assert_eq!(answer.matches("there is no application").count(), rounds, "{answer}");
    assert_eq!(rest(&mut silent), "");
    assert_eq!(rest(&mut half_head), "");
    let answer = rest(&mut half_body);
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("http.body_timeout_s"), "{answer}");
    let answer = rest(&mut half_bulk);
    assert!(answer.contains("\"line\":1") && answer.contains("\"line\":2") && answer.contains("timeout"), "{answer}");
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let folder = TempDir::new().unwrap();
    let server =
        start_under(folder.path(), "ulimit -Sn 200 && ulimit -Hn 900", &[("RIVULET_HTTP_CONNECTIONS_MAX", "2000")]);
    let limits = server.process("limits", "Max open files");
    let limits: Vec<&str> = limits.split_whitespace().collect();
    assert_eq!(limits[3..5], ["900", "900"], "{limits:?}");
    assert!(is_told(folder.path(), "http.connections_max is 141 and not 2000"));
}

#[test]
fn heads_of_too_many_or_too_long_lines_are_refused() {
    let folder = TempDir::new().unwrap();
    let server = start_under(folder.path(), ":", &[]);
    let lines = |count: usize| (0..count).map(|n| format!("x-{n}: 1\r\n")).collect::<String>();
    let get = |path: &str, lines: &str| {
        ask(server.http, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n"))
    };
    let path = format!("/{}", "x".repeat(200_000));
    for (what, answer) in [
        ("many lines", get("/api/v1/status", &lines(1_000))),
        ("a long line", get("/api/v1/status", &format!("x: {}\r\n", "x".repeat(200_000)))),
        ("a long path", get(&path, "")),
        ("no head", ask(server.http, &"\r\n".repeat(100_000))),
        ("a space in a name", get("/api/v1/status", "x y: 1\r\n")),
        ("two lengths", get("/api/v1/status", "content-length: 1\r\ncontent-length: 2\r\n")),
    ] {
        let start = &answer[..answer.len().min(100)];
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{what}: {start}");
    }
    assert!(get("/api/v1/status", &lines(50)).starts_with("HTTP/1.1 200"));
}

#[test]
fn scripts_of_signs_take_little_memory() {
    let folder = TempDir::new().unwrap();
    let server = start_under(folder.path(), ":", &[("RIVULET_HTTP_BYTES_MAX", "64 MiB")]);
    let before = server.memory_mib_max();
    let length = 4 << 20;
    let scripts = [";", "(", "( ", " ", "+", "+ ", "SELECT 1;", "a,"].map(|sign| sign.repeat(length / sign.len()));
    std::thread::scope(|scope| {
        for script in scripts.iter().cycle().take(16) {
            let server = &server;
            scope.spawn(move || {
                let answer = ask(server.http, &request("POST", "/api/v1/sql", "", script));
                let code = answer.split(' ').nth(1).unwrap_or_default().to_owned();
                // What there is no memory for is refused by name, and may be asked again.
                assert!(["200", "400", "503"].contains(&&*code), "{}: {answer}", &script[..2]);
                let is_named = answer.contains("retry-after: 1") && answer.contains("http.bytes_max");
                assert!(code != "503" || is_named, "{answer}");
            });
        }
    });
    let taken = server.memory_mib_max() - before;
    assert!(taken < 400, "{taken} MiB");
    assert!(ask(server.http, &request("POST", "/api/v1/sql", "", "SHOW QUERIES")).starts_with("HTTP/1.1 200"));
}

#[test]
fn readers_that_do_not_read_hold_little_memory_and_are_cut_off() {
    let folder = TempDir::new().unwrap();
    let settings = [("RIVULET_HTTP_RESULTS_BYTES_MAX", "1 MiB"), ("RIVULET_HTTP_BODY_TIMEOUT_S", "5")];
    let server = start_under(folder.path(), ":", &settings);
    server.sql_ok(
        "CREATE APPLICATION copy (id TEXT) INPUT texts (t TEXT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT t FROM texts",
    );
    let names: Vec<String> = (0..20).map(|number| format!("q{number}")).collect();
    for name in &names {
        server.sql_ok(&format!("CREATE QUERY {name} FROM APPLICATION copy WITH (id => '{name}')"));
    }
    let mut sleepers: Vec<TcpStream> = names
        .iter()
        .map(|name| {
            let mut stream = connect(server.http);
            write!(stream, "GET /api/v1/queries/{name}/results HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut head = [0; 12];
            stream.read_exact(&mut head).unwrap();
            assert_eq!(&head, b"HTTP/1.1 200");
            stream
        })
        .collect();
    let before = server.memory_mib_max();
    let payload = json!({"t": "x".repeat(16 << 10)}).to_string();
    let mut sensor = Publisher::connect(server.mqtt);
    let mut sent = 0_u64;
    let begun = now_ms();
    wait("results to be skipped", || {
        for name in &names {
            sensor.publish(&format!("in/{name}"), &payload);
            sent += 1;
        }
        // At least 100 MiB.
        sent > 6_400 && is_told(folder.path(), "live results are skipped")
    });
    wait("all to be processed", || server.status()["total"]["events"] == sent);
    let taken = server.memory_mib_max() - before;
    assert!(taken < 100, "{taken} MiB for {sent} events in {} ms", now_ms() - begun);
    // Those that take nothing are cut off; what the system had of theirs is read to the end.
    for sleeper in &mut sleepers {
        let got = rest(sleeper);
        assert!(!got.contains("event: end"), "the server has not ended it in words");
    }
}
