//! Malicious statements over the SQL endpoint of a real server without a login: code to be run, files of others,
//! devices and brokers that never answer. Each step is refused by itself.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::server::{Publisher, Server, free_port, wait, wait_for};

/// A server that allows what it does by default.
fn server(folder: &Path) -> Server {
    let mqtt = free_port();
    let settings = [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_FILES_ALLOW", String::new())];
    let server = Server::spawn(folder, mqtt, &settings);
    server.wait_until_ready();
    server
}

/// What a refused script is answered with, message and hint.
fn refused(server: &Server, script: &str) -> String {
    let answer: Value = server.sql(script);
    let error = answer.get("error").unwrap_or_else(|| panic!("{script} was not refused: {answer}"));
    format!("{}\nhint: {}", error["message"].as_str().unwrap(), error["hint"].as_str().unwrap_or("(none)"))
}

/// Everything below a folder, by its path.
fn all_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(all_below(&path));
        }
        found.push(path);
    }
    found
}

#[test]
fn no_code_is_written_and_none_is_loaded() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path());
    server.sql_ok("CREATE SOURCE up (bytes TEXT) FROM 'mqtt:up' FORMAT RAW (encoding => 'base64')");
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let files = folder.path().join("data/files");
    std::os::unix::fs::symlink(&outside, files.join("link")).unwrap();
    std::os::unix::fs::symlink(outside.join("plugin.so"), files.join("plugin.so")).unwrap();
    // Where the library would be written: anywhere, over links, and over data of the server itself.
    let data = folder.path().join("data");
    let targets = [
        (outside.join("plugin.so").display().to_string(), "outside of the folders that the server allows"),
        ("../../outside/plugin.so".into(), "outside of the folders"),
        ("link/plugin.so".into(), "outside of the folders"),
        ("plugin.so".into(), "outside of the folders"),
        ("/dev/shm/plugin.so".into(), "outside of the folders"),
        (format!("{}/", outside.display()), "outside of the folders"),
        ("../catalog.redb".into(), "belongs to the server itself"),
        (data.join("checkpoints/x").display().to_string(), "belongs to the server itself"),
        ("../log/".into(), "belongs to the server itself"),
    ];
    for (target, why) in &targets {
        for options in ["", " WITH (append => true)"].iter().filter(|one| one.is_empty() || !target.ends_with('/')) {
            let format = "FORMAT RAW (encoding => 'base64')";
            let script = format!("CREATE SINK library TO 'file:{target}' {format}{options}");
            let said = refused(&server, &script);
            assert!(said.contains(why) && said.contains("hint: "), "{target}: {said}");
        }
    }
    // How it would be loaded.
    for property in [
        "plugin.library.paths",
        "ssl.engine.location",
        "sasl.kerberos.kinit.cmd",
        "sasl.oauthbearer.assertion.file",
        "open_cb",
    ] {
        for name in [format!("\"properties.{property}\""), format!("properties.{property}")] {
            for statement in [
                format!("CREATE SINK k TO 'kafka:127.0.0.1:9/t' WITH ({name} => '/tmp/plugin.so')"),
                format!("CREATE SOURCE k (a TEXT) FROM 'kafka:127.0.0.1:9/t' WITH ({name} => '/tmp/plugin.so')"),
            ] {
                let said = refused(&server, &statement);
                assert!(said.contains(&format!("'properties.{property}'")), "{statement}: {said}");
                assert!(said.contains("is not allowed in a statement") && said.contains("hint: "), "{said}");
            }
        }
    }
    // What may be done still can: a file below the folder that is there for it.
    server.sql_ok(
        "CREATE SINK notes TO 'file:notes.txt' FORMAT RAW WITH (append => true);
         CREATE QUERY keep AS INSERT INTO notes SELECT bytes FROM up",
    );
    let mut publisher = Publisher::connect(server.mqtt);
    publisher.publish("up", "hello");
    let notes = files.join("notes.txt");
    wait("the row to be written", || std::fs::read_to_string(&notes).is_ok_and(|text| text == "aGVsbG8=\n"));
    assert_eq!(all_below(&outside), Vec::<PathBuf>::new());
    assert!(!Path::new("/dev/shm/plugin.so").exists());
}

#[test]
fn no_statement_reads_a_file_of_the_server_or_of_others() {
    let folder = TempDir::new().unwrap();
    let secret = folder.path().join("secret.proto");
    std::fs::write(&secret, "syntax = \"proto3\"; message Secret { string rose = 1; }").unwrap();
    let server = server(folder.path());
    let files = folder.path().join("data/files");
    std::fs::write(
        files.join("imports.proto"),
        "syntax = \"proto3\"; import \"link.proto\"; message M { string a = 1; }",
    )
    .unwrap();
    std::os::unix::fs::symlink(&secret, files.join("link.proto")).unwrap();
    let secret = secret.display();
    for path in [secret.to_string().as_str(), "../../secret.proto", "link.proto", "/etc/passwd", "../catalog.redb"] {
        for statement in [
            format!("CREATE SOURCE s (a TEXT) FROM 'file:{path}' FORMAT RAW"),
            format!("CREATE TABLE s (a TEXT) FROM 'file:{path}' FORMAT CSV"),
            format!("CREATE SINK s TO 'mqtt:x' FORMAT AVRO (schema_file => '{path}')"),
            format!("CREATE SOURCE s (a TEXT) FROM 'mqtt:x' FORMAT PROTOBUF (schema_file => '{path}')"),
            format!("CREATE SOURCE s (a TEXT) FROM 'kafka:127.0.0.1:9/t' FORMAT AVRO (schema_file => '{path}')"),
            format!("CREATE SINK s TO 'mqtt:x' WITH (broker => 'mqtts://127.0.0.1:9', ca_file => '{path}')"),
            format!("CREATE SINK s TO 'kafka:127.0.0.1:9/t' WITH (properties.ssl.ca.location => '{path}')"),
            format!("CREATE SINK s TO 'kafka:127.0.0.1:9/t' WITH (properties.ssl.key.location => '{path}')"),
        ] {
            let said = refused(&server, &statement);
            assert!(said.contains("may not be used: ") && said.contains("hint: "), "{statement}: {said}");
            assert!(!said.contains("rose") && !said.contains("root:"), "{said}");
        }
    }
    let imports = "CREATE SOURCE s (a TEXT) FROM 'mqtt:x' FORMAT PROTOBUF (schema_file => 'imports.proto')";
    let said = refused(&server, imports);
    assert!(said.contains("may not be used"), "imports are files as well: {said}");
    // Nobody learns from an error what is there.
    let said = |path: &str| refused(&server, &format!("CREATE TABLE s (a TEXT) FROM 'file:{path}' FORMAT CSV"));
    let without = |path: &str| said(path).replace(path, "PATH");
    assert_eq!(without("/etc/passwd"), without("/etc/no-such-file"));
    assert_eq!(without("/etc/passwd"), without("/root/.ssh/id_rsa"));
    assert_eq!(without("../../../etc/passwd"), without("../../../no/../such"));
}

#[test]
fn a_pipe_is_no_file_and_holds_up_nobody() {
    let folder = TempDir::new().unwrap();
    let mut server = server(folder.path());
    let pipe = folder.path().join("data/files/pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    server.sql_ok(
        "CREATE SOURCE up (a TEXT) FROM 'mqtt:up' FORMAT RAW;
         CREATE SINK piped TO 'file:pipe' FORMAT RAW WITH (append => true)",
    );
    for statement in [
        "CREATE QUERY q AS INSERT INTO piped SELECT a FROM up",
        "CREATE SINK s TO 'mqtt:x' FORMAT AVRO (schema_file => 'pipe')",
        "CREATE SOURCE s (a TEXT) FROM 'mqtt:x' FORMAT PROTOBUF (schema_file => 'pipe')",
        "CREATE SINK s TO 'mqtt:x' WITH (broker => 'mqtts://127.0.0.1:9', ca_file => 'pipe')",
        "CREATE SINK s TO 'kafka:127.0.0.1:9/t' WITH (properties.ssl.ca.location => 'pipe')",
        "CREATE TABLE s (a TEXT) FROM 'file:pipe' FORMAT CSV",
        "CREATE SOURCE s FROM 'file:pipe' FORMAT PARQUET",
    ] {
        let said = refused(&server, statement);
        let has_words = said.contains("is not a file") || said.contains("neither a file nor a folder");
        assert!(has_words || statement.contains("PARQUET"), "{statement}: {said}");
    }
    assert_eq!(server.status()["queries_running"], 0);
    server.signal("-TERM");
    wait_for(STOP_MAX, "the server to end", || server.has_ended());
}

/// How long a server may take to stop that waits for nothing.
const STOP_MAX: Duration = Duration::from_secs(120);

#[test]
fn what_never_answers_holds_up_only_who_asked_for_it() {
    let folder = TempDir::new().unwrap();
    let mut server = server(folder.path());
    // A broker that takes connections and never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    server.sql_ok(&format!(
        "CREATE SOURCE hangs (a TEXT) FROM 'kafka:{address}/t' FORMAT RAW;
         CREATE SINK too TO 'kafka:{address}/t' FORMAT RAW WITH (delivery => 'exactly_once');
         CREATE SOURCE up (a TEXT) FROM 'mqtt:up' FORMAT RAW;
         CREATE SINK out TO 'mqtt:out' FORMAT RAW"
    ));
    // More clients than the API answers at a time.
    let asking: Vec<_> = (0..80)
        .map(|number| {
            let (url, text) = (server.url(), format!("CREATE QUERY q{number} AS INSERT INTO out SELECT a FROM hangs"));
            std::thread::spawn(move || drop(ureq::post(format!("{url}/api/v1/sql")).send(text)))
        })
        .collect();
    wait("somebody to ask the broker", || {
        silent.set_nonblocking(true).unwrap();
        silent.accept().is_ok()
    });
    // Who asks how the server is gets an answer, and so does Prometheus.
    for path in ["api/v1/status", "health/ready", "metrics"] {
        let agent = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(5))).build().new_agent();
        let answer = agent.get(format!("{}/{path}", server.url())).call();
        assert!(answer.is_ok(), "{path}: {answer:?}");
    }
    assert_eq!(server.status()["queries_running"], 0);
    // The server ends, whatever it waits for.
    server.signal("-TERM");
    wait_for(STOP_MAX, "the server to end", || server.has_ended());
    asking.into_iter().for_each(|one| one.join().unwrap());
}

#[test]
fn other_queries_are_changed_while_one_waits_for_its_broker() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    server.sql_ok(&format!(
        "CREATE SOURCE hangs (a TEXT) FROM 'kafka:{address}/t' FORMAT RAW;
         CREATE SOURCE up (a TEXT) FROM 'mqtt:up' FORMAT RAW;
         CREATE SINK out TO 'mqtt:out' FORMAT RAW"
    ));
    let url = server.url();
    let asking = std::thread::spawn(move || {
        let waits = "CREATE QUERY waits AS INSERT INTO out SELECT a FROM hangs";
        let answer = ureq::post(format!("{url}/api/v1/sql")).config().http_status_as_error(false).build().send(waits);
        answer.unwrap().status().as_u16()
    });
    let (_connection, _) = silent.accept().unwrap();
    server.sql_ok("CREATE QUERY works AS INSERT INTO out SELECT a FROM up");
    server.sql_ok("CREATE SINK more TO 'mqtt:more' FORMAT RAW; DROP SINK more; PAUSE QUERY works; RESUME QUERY works");
    server.sql_ok("DESCRIBE SINK out; DESCRIBE SOURCE hangs; SHOW QUERIES; DROP QUERY works");
    assert!(!asking.is_finished(), "it still waits");
    // The broker does not answer at all, so it is refused in the end.
    assert_ne!(asking.join().unwrap(), 200);
    let again = refused(&server, "DROP QUERY waits");
    assert!(again.contains("no query 'waits'"), "{again}");
}

#[test]
fn statements_that_grow_when_they_are_planned_are_refused() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path());
    server.sql_ok("CREATE SOURCE s (id TEXT, n BIGINT) FROM 'mqtt:s' FORMAT JSON; CREATE VIEW v0 AS SELECT n FROM s");
    let doubled = |name: &str, from: &str| format!("{name} AS (SELECT n FROM {from} UNION ALL SELECT n FROM {from})");
    let tables = (1..=14).map(|level| doubled(&format!("a{level}"), &format!("a{}", level - 1)));
    let tables = std::iter::once("a0 AS (SELECT n FROM s)".to_owned()).chain(tables).collect::<Vec<_>>().join(", ");
    let cases: String = (0..8_000).map(|n| format!(" WHEN n = {n} THEN {n}")).collect();
    let columns = (0..10_000).map(|n| format!("n + {n} AS c{n}")).collect::<Vec<_>>().join(", ");
    for statement in [
        format!("EXPLAIN WITH {tables} SELECT n FROM a14"),
        format!("EXPLAIN SELECT CASE{cases} END AS x FROM s"),
        format!("EXPLAIN SELECT {columns} FROM s"),
        format!("EXPLAIN SELECT {} AS x FROM s", ["n"; 30_000].join(" + ")),
        format!("EXPLAIN {}", ["SELECT n FROM s"; 3_000].join(" UNION ALL ")),
    ] {
        let said = refused(&server, &statement);
        let words = ["more than 20000 steps", "at most 200 operators", "at most 15 UNION ALL"];
        assert!(words.iter().any(|words| said.contains(words)), "{}: {said}", &statement[..60]);
    }
    // A view is as large as what it is made of.
    let view =
        |level: usize| format!("CREATE VIEW v{level} AS SELECT n FROM v{0} UNION ALL SELECT n FROM v{0}", level - 1);
    let first_refused = (1..40).find(|level| server.sql(&view(*level)).get("error").is_some());
    assert!(first_refused.is_some_and(|level| level < 20), "{first_refused:?}");
}

#[test]
fn regular_expressions_that_are_huge_are_refused() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path());
    server.sql_ok("CREATE SOURCE s (id TEXT) FROM 'mqtt:s' FORMAT JSON");
    for expression in ["(a{1000}){1000}", "(((a{100}){100}){100})", "((((x*){99}){99}){99}){99}"] {
        let said = refused(&server, &format!("EXPLAIN SELECT id FROM s WHERE regexp_like(id, '{expression}')"));
        assert!(said.contains("too large for a regular expression"), "{expression}: {said}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let folder = TempDir::new().unwrap();
    let server = server(folder.path());
    server.sql_ok(
        "CREATE SINK hook TO 'https://example.org/x' WITH (headers.authorization => 'Bearer rose', batch_rows => 7);
         CREATE SINK queue TO 'kafka:127.0.0.1:9/t'
           WITH (properties.security.protocol => 'plaintext',
                 properties.sasl.username => 'kim', properties.sasl.password => 'rose');
         CREATE SINK topic TO 'mqtt:x' WITH (broker => 'mqtt://kim:rose@127.0.0.1:9');
         CREATE SOURCE posts (a TEXT) FROM 'http:127.0.0.1:9/x' WITH (token => 'rose', idle_timeout => INTERVAL '5 s')",
    );
    for (statement, expected) in [
        ("DESCRIBE SINK hook", "headers.authorization => '***', batch_rows => 7)"),
        ("DESCRIBE SINK queue", "properties.sasl.username => 'kim', properties.sasl.password => '***')"),
        ("DESCRIBE SINK topic", "broker => 'mqtt://kim:***@127.0.0.1:9')"),
        ("DESCRIBE SOURCE posts", "token => '***', idle_timeout => INTERVAL '5 s')"),
        ("SHOW SINKS", "https://example.org/x"),
        ("SHOW SOURCES", "http:127.0.0.1:9/x"),
    ] {
        let answer = server.sql_ok(statement).to_string();
        assert!(!answer.contains("rose") && answer.contains(expected), "{statement}: {answer}");
    }
    for header in ["content-length", "Host", "transfer-encoding", "connection"] {
        let sink = format!("CREATE SINK s TO 'http://127.0.0.1:9/x' WITH (\"headers.{header}\" => '1')");
        let said = refused(&server, &sink);
        assert!(
            said.contains(&format!("'headers.{}'", header.to_lowercase())) && said.contains("may not give"),
            "{said}"
        );
    }
    // Whatever has them on disk belongs to the owner alone.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o077;
        assert_eq!(mode(&folder.path().join("data/catalog.redb")), 0);
        let backup = folder.path().join("backup");
        let made = super::server::rivulet().args(["backup", "--server", &server.url()]).arg(&backup).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        assert_eq!(mode(&backup), 0);
    }
}
