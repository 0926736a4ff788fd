//! The program as a user sees it: exit code, standard output and standard error of every command.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use crate::support::{TestServer, wait_until};

/// Runs the program and returns exit code, standard output and standard error.
fn rivulet(server: &TestServer, arguments: &[&str]) -> (i32, String, String) {
    rivulet_with_input(server, arguments, "")
}

pub(crate) fn rivulet_with_input(server: &TestServer, arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut child = command(arguments)
        .env("RIVULET_SERVER", server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    // It may end without reading.
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
    text(child.wait_with_output().expect("its end"))
}

/// The program in an environment and a folder without configuration.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rivulet"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RIVULET_")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(env!("CARGO_TARGET_TMPDIR")).env_remove("NO_COLOR");
    command
}

fn text(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
}

fn done(stdout: &str, stderr: &str) -> (i32, String, String) {
    (0, stdout.into(), stderr.into())
}

fn failed(stderr: &str) -> (i32, String, String) {
    (1, String::new(), stderr.into())
}

#[test]
fn applications() {
    let (server, _) = TestServer::with_memory();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("heart.sql");
    std::fs::write(&file, "CREATE APPLICATION heart (patient BIGINT)\n").expect("a file");
    let file = file.to_str().expect("a path");
    let run = |arguments: &[&str]| rivulet(&server, arguments);
    assert_eq!(run(&["app", "register", file]), done("heart  id-of-heart\n", "application heart is registered\n"));
    std::fs::write(file, "CREATE APPLICATION heart (patient TEXT)\n").expect("a file");
    assert_eq!(
        run(&["app", "register", "--replace", "--discard-state", file]),
        done(
            "heart  id-of-heart\n",
            "application heart replaced, 3 queries go on; state is forgotten: window aggregate\n"
        )
    );
    assert_eq!(
        rivulet_with_input(&server, &["app", "register", "-"], "CREATE NONSENSE"),
        failed("error: expected CREATE APPLICATION\n --> line 1, column 1\n1 | CREATE NONSENSE\n  | ^\n")
    );
    assert_eq!(
        run(&["app", "list"]),
        done(
            "name        state    running  paused  parameters\n\
             ac_control  running        1       0  home TEXT, target DOUBLE DEFAULT 24.0\n\
             heart       running        1       0  home TEXT, target DOUBLE DEFAULT 24.0\n",
            ""
        )
    );
    assert_eq!(
        run(&["app", "show", "heart"]),
        done(
            "name          heart\nid            id-of-heart\nstate         running\nparameters    home TEXT, target DOUBLE DEFAULT 24.0\n\
             input topic   home/{home}/temperature\noutput topic  home/{home}/ac\nrunning       1\npaused        0\n\n\
             CREATE APPLICATION heart (patient TEXT)\n",
            ""
        )
    );
    assert_eq!(run(&["app", "explain", "heart"]), done("dataflow of heart\n  window\n", ""));
    assert_eq!(run(&["app", "drop", "heart"]), done("", "application heart is dropped\n"));
    assert_eq!(
        run(&["app", "show", "heart"]),
        failed("error: there is no app heart\nhint: `rivulet app list` lists them\n")
    );
    let (code, stdout, _) = run(&["--json", "app", "list"]);
    let list: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, list[0]["name"].as_str()), (0, Some("ac_control")));
}

#[test]
fn queries() {
    let (server, _) = TestServer::with_memory();
    let run = |arguments: &[&str]| rivulet(&server, arguments);
    assert_eq!(
        run(&[
            "query",
            "submit",
            "--application",
            "ac_control",
            "-p",
            "home=007",
            "-p",
            "target=22.5",
            "--name",
            "kims_ac"
        ]),
        done("kims_ac\n", "query kims_ac runs\n")
    );
    assert_eq!(
        run(&["query", "submit", "-a", "ac_control", "-p", "home=1"]),
        done("query_2\n", "query query_2 runs\n")
    );
    assert_eq!(
        run(&["query", "submit", "-a", "ac_control", "-p", "target=warm"]),
        failed("error: the parameter target is \"warm\", expected a number (DOUBLE)\n")
    );
    assert_eq!(
        run(&["query", "submit", "-a", "nobody"]),
        failed("error: there is no app nobody\nhint: `rivulet app list` lists them\n")
    );
    assert_eq!(
        run(&["query", "list"]),
        done(
            "name     application  state    parameters\n\
             kims_ac  ac_control   running  home=007 target=22.5\n\
             query_2  ac_control   running  home=1\n",
            ""
        )
    );
    assert_eq!(
        run(&["query", "list", "--limit", "1"]),
        done(
            "name     application  state    parameters\nkims_ac  ac_control   running  home=007 target=22.5\n",
            "there are more: --limit shows more of them, --after kims_ac the next ones\n"
        )
    );
    assert_eq!(
        run(&["query", "list", "-a", "nobody"]),
        failed("error: there is no app nobody\nhint: `rivulet app list` lists them\n")
    );
    let (_, of_application, _) = run(&["query", "list", "-a", "id-of-ac_control"]);
    assert_eq!(of_application.lines().count(), 3, "an id is as good as a name: {of_application}");
    assert_eq!(run(&["query", "pause", "kims_ac"]), done("", "query kims_ac is paused\n"));
    assert_eq!(
        run(&["query", "show", "kims_ac"]),
        done(
            "name          kims_ac\nid            1\napplication   ac_control\nstate         paused\n\
             parameters    home=007 target=22.5\ninput topic   home/42/temperature\noutput topic  home/42/ac\n\
             results       3\n",
            ""
        )
    );
    assert_eq!(
        run(&["query", "resume", "nobody", "kims_ac"]),
        failed("error: there is no query nobody\nhint: `rivulet query list` lists them\nquery kims_ac is running\n")
    );
    assert_eq!(
        run(&["query", "drop", "kims_ac", "query_2"]),
        done("", "query kims_ac is dropped\nquery query_2 is dropped\n")
    );
    assert_eq!(run(&["--json", "query", "list"]), done("[]\n", ""));
}

#[test]
fn with_json_everything_is_an_object() {
    let (server, _) = TestServer::with_memory();
    let run = |arguments: &[&str]| rivulet(&server, arguments);
    run(&["query", "submit", "-a", "ac_control", "--name", "kims_ac"]);
    for (command, state) in [("pause", "paused"), ("resume", "running"), ("drop", "dropped")] {
        let object = format!("{{\"name\":\"kims_ac\",\"state\":\"{state}\"}}\n");
        assert_eq!(run(&["--json", "query", command, "kims_ac"]), done(&object, ""));
    }
    let error = |kind: &str, message: &str, hint: &str| {
        format!("{{\"error\":{{\"kind\":\"{kind}\",\"message\":\"{message}\",\"hint\":\"{hint}\"}}}}\n")
    };
    assert_eq!(
        run(&["--json", "query", "drop", "kims_ac"]),
        failed(&error("not_found", "there is no query kims_ac", "`rivulet query list` lists them"))
    );
    assert_eq!(
        run(&["--json", "app", "drop", "ac_control"]),
        done("{\"name\":\"ac_control\",\"state\":\"dropped\"}\n", "")
    );
    let (code, stdout, stderr) = run(&["--json", "query", "bulk", "no/such/file"]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    let object: serde_json::Value = serde_json::from_str(&stderr).expect("JSON");
    assert_eq!(object["error"]["kind"], "failed");
    let registered = rivulet_with_input(&server, &["--json", "app", "register", "-"], "CREATE APPLICATION heart ()");
    let object: serde_json::Value = serde_json::from_str(&registered.1).expect("JSON");
    assert_eq!((object["name"].as_str(), registered.2.as_str()), (Some("heart"), ""));
}

#[test]
fn queries_in_bulk() {
    let (server, service) = TestServer::with_memory();
    let lines = "{\"application\":\"ac_control\",\"name\":\"a\"}\n{\"application\":\"nobody\"}\n{\"application\":\"ac_control\"}\n";
    let (code, stdout, stderr) = rivulet_with_input(&server, &["query", "bulk", "--verbose", "-"], lines);
    assert_eq!((code, stdout.as_str()), (1, "a\nquery_2\n"));
    assert!(
        stderr.starts_with(
            "error: line 2: there is no app nobody\nhint: `rivulet app list` lists them\n2 queries created, 1 refused, "
        ),
        "{stderr}"
    );
    let (code, stdout, _) =
        rivulet_with_input(&server, &["--json", "query", "bulk", "-"], "{\"application\":\"ac_control\"}");
    assert_eq!((code, stdout.as_str()), (0, "{\"line\":1,\"id\":3,\"name\":\"query_3\"}\n"));
    assert_eq!(service.queries_count(), 3);
    let line = "{\"application\":\"ac_control\"}\nnonsense\n";
    let (code, stdout, stderr) = rivulet_with_input(&server, &["query", "bulk", "-"], line);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(
        stderr.starts_with(
            "error: line 2: not JSON: expected value\nhint: the text must be one JSON object\n1 query created, 1 refused, "
        ),
        "{stderr}"
    );
    let lines = "{\"application\":\"ac_control\",\"name\":\"a\"}\n{\"application\":\"ac_control\",\"name\":\"b\"}\n";
    let (code, _, stderr) = rivulet_with_input(&server, &["query", "bulk", "--skip-existing", "-"], lines);
    assert_eq!((code, stderr.starts_with("1 query created, 1 skipped, 0 refused, ")), (0, true), "{stderr}");
    let (code, _, stderr) = rivulet(&server, &["query", "bulk", "no/such/file"]);
    assert_eq!((code, stderr.starts_with("error: cannot read no/such/file: ")), (1, true), "{stderr}");
}

#[test]
fn a_server_that_dies_during_a_bulk_submission() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let mut child = command(&["query", "bulk", "-", "--server", &url])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let (mut connection, _) = listener.accept().expect("a connection");
    // The head is read, so that the end of the connection does not throw the answer away.
    let mut head = BufReader::new(connection.try_clone().expect("a socket")).lines();
    while !head.next().expect("a line").expect("text").is_empty() {}
    let line = "{\"line\":1,\"id\":7,\"name\":\"a\"}\n";
    let answer = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n", line.len());
    connection.write_all(answer.as_bytes()).expect("an answer");
    connection.shutdown(std::net::Shutdown::Write).expect("a connection");
    drop(child.stdin.take());
    let (code, _, stderr) = text(child.wait_with_output().expect("its end"));
    assert_eq!((code, stderr.starts_with("1 query created, 0 refused, ")), (1, true), "{stderr}");
    assert!(
        stderr.ends_with(&format!(
            "error: the connection to the server at {url} was lost\n\
             hint: 1 is created; when the server runs again, run this again with --skip-existing\n"
        )),
        "{stderr}"
    );
}

#[test]
fn results_are_watched() {
    let (mut server, service) = TestServer::with_memory();
    rivulet(&server, &["query", "submit", "-a", "ac_control", "--name", "kims_ac"]);
    let mut child = command(&["query", "watch", "kims_ac", "--limit", "2"])
        .env("RIVULET_SERVER", server.url())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    wait_until("somebody watches", || service.watchers("kims_ac") == 1);
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    for result in ["{\"action\":\"cool\"}", "{\"action\":\"off\"}"] {
        service.emit("kims_ac", result);
        // Each comes at once, not when the stream ends.
        assert_eq!(lines.next().expect("a line").expect("text"), result);
    }
    assert!(child.wait().expect("its end").success());

    let watch = || {
        let mut command = command(&["query", "watch", "kims_ac"]);
        command.env("RIVULET_SERVER", server.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the program");
        wait_until("somebody watches", || service.watchers("kims_ac") == 1);
        child
    };
    let child = watch();
    rivulet(&server, &["query", "drop", "kims_ac"]);
    assert_eq!(
        text(child.wait_with_output().expect("its end")),
        failed("error: the query kims_ac was dropped: no more results\n")
    );
    rivulet(&server, &["query", "submit", "-a", "ac_control", "--name", "kims_ac"]);
    let child = watch();
    server.stop();
    assert_eq!(
        text(child.wait_with_output().expect("its end")),
        failed("error: the server is stopping: no more results\nhint: watch again when it runs; the query is kept\n")
    );
}

#[test]
fn a_server_that_dies_is_told_to_who_watches() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let mut child = command(&["query", "watch", "kims_ac", "--server", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let (mut connection, _) = listener.accept().expect("a connection");
    let event = "event: result\ndata: {\"n\":1}\n\n";
    let answer = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n", event.len());
    connection.write_all(answer.as_bytes()).expect("an answer");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "{\"n\":1}");
    drop(connection);
    assert_eq!(
        text(child.wait_with_output().expect("its end")),
        failed(&format!(
            "error: the connection to the server at {url} was lost\n\
             hint: perhaps it was stopped; `rivulet status` says whether it is there\n"
        ))
    );
}

#[test]
fn sql_scripts() {
    let (server, _) = TestServer::with_memory();
    assert_eq!(
        rivulet(&server, &["sql", "-c", "SHOW QUERIES;\nPAUSE;"]),
        done("name     events\nkims_ac      12\nanns_ac       -\n", "(2 rows)\nquery kims_ac is paused\n")
    );
    assert_eq!(rivulet_with_input(&server, &["sql"], "EXPLAIN;"), done("filter\n  window\n", ""));
    assert_eq!(
        rivulet_with_input(&server, &["sql", "-"], "PAUSE;\n  NONSENSE;\nPAUSE;"),
        failed(
            "query kims_ac is paused\nerror: cannot understand NONSENSE;\n --> line 2, column 3\n2 |   NONSENSE;\n  |   ^\n\
             hint: try SHOW QUERIES\nnote: 1 statement before it ran\n"
        )
    );
    let (code, stdout, _) = rivulet(&server, &["sql", "--json", "-c", "PAUSE;"]);
    assert_eq!(
        (code, stdout.as_str()),
        (
            0,
            "{\"results\":[{\"columns\":[],\"rows\":[],\"message\":\"query kims_ac is paused\"}],\"statements_not_run\":0}\n"
        )
    );
    // A script may begin like an option: with a comment.
    let (code, _, stderr) = rivulet(&server, &["sql", "-c", "--NONSENSE"]);
    assert_eq!((code, stderr.starts_with("error: cannot understand --NONSENSE\n")), (1, true), "{stderr}");
    // The results are on standard output, the error is on the other one only.
    let (code, stdout, stderr) = rivulet(&server, &["--json", "sql", "-c", "PAUSE;\nNONSENSE;"]);
    let (answer, error): (serde_json::Value, serde_json::Value) =
        (serde_json::from_str(&stdout).expect("JSON"), serde_json::from_str(&stderr).expect("JSON"));
    assert_eq!((code, answer["results"].as_array().map(Vec::len), answer.get("error")), (1, Some(1), None));
    assert_eq!(error["error"]["message"], "cannot understand NONSENSE;");
    let (code, _, stderr) = rivulet(&server, &["sql", "no/such/file.sql"]);
    assert_eq!((code, stderr.starts_with("error: cannot read no/such/file.sql: ")), (1, true), "{stderr}");
}

#[test]
fn status() {
    let (server, _) = TestServer::with_memory();
    assert_eq!(
        rivulet(&server, &["status"]),
        done(
            "Rivulet 0.1.0, up 1m 1s, 64.0 MiB of memory, data in rivulet-data\n2 queries running, 1 paused, 5 not running; 0 of 1 big query running\n\n\
             application  running  events  results  refused  waiting     p50     p99\n\
             ac_control         2    1000        7        2        3  420 us  2.5 ms\n\
             ac_control: refused 2 decode; the last one because of decode: the payload is no JSON\n\
             heart: not running: unknown function beat\n\n\
             big query   state   rows in  rows out  refused     p50      p99  behind\n\
             per_device  failed    12000       340        2  900 us  12.0 ms   1.5 s\n\
             per_device: failed: the disk is full\n\
             per_device: refused 2 decode; one of them because of line 7: no JSON\n\
             1 message arrived on a topic that no query reads\n\n\
             broker                 state      reconnects  gaps\n\
             mqtt://127.0.0.1:1883  connected           1     0\n\
             mqtt://127.0.0.1:1883: dropped or turned away: 3 lost messages, 2 too large messages\n\
             mqtt://127.0.0.1:1883 refuses the subscription 'secret/#': NotAuthorized\n",
            ""
        )
    );
    let (_, stdout, _) = rivulet(&server, &["status", "--wide"]);
    for line in [
        "application  running  paused  events  rows/batch  results  refused       waiting     p50     p99",
        "ac_control         2       1    1000       100.0        7  2 decode  3 (2.0 KiB)  420 us  2.5 ms",
        "per_device  failed      4    12000       340  2 decode       17      4.0 KiB  900 us  12.0 ms   1.5 s",
    ] {
        assert!(stdout.lines().any(|shown| shown == line), "{line} in\n{stdout}");
    }
    let (code, stdout, _) = rivulet(&server, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, status["queries_running"].as_u64()), (0, Some(2)));
    assert_eq!(status["connections"][0]["dropped"]["deadlock_events"], 0, "JSON has every reason");
    assert_eq!(status["big_queries"][0]["refused"]["decode"], 2);
}

#[test]
fn configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("rivulet.toml"), "# mine\n[log]\nlevel = \"warn\"\n").expect("a file");
    let run = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.current_dir(folder.path()).env("RIVULET_HTTP_ADDRESS", "127.0.0.1:9999").env("RIVULET_PORT", "tcp://x");
        text(command.output().expect("the program"))
    };
    let (code, stdout, stderr) = run(&[
        "config",
        "--workers",
        "3",
        "--set",
        "mqtt.embedded.password=rose",
        "--set",
        "mqtt.embedded.username=kim",
    ]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stderr, "warning: the environment variable RIVULET_PORT is no configuration key and is not used\n");
    let shown: Vec<String> = stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for expected in [
        "data_dir = \"rivulet-data\" # default",
        "http.address = \"127.0.0.1:9999\" # RIVULET_HTTP_ADDRESS",
        "log.level = \"warn\" # rivulet.toml:3:1, read again on SIGHUP",
        "workers = 3 # --workers",
        "mqtt.embedded.password = \"(hidden)\" # --set, read again on SIGHUP",
        "# mqtt.broker.url # not set",
        "inbox.bytes_max = \"16 MiB\" # default",
    ] {
        assert!(shown.iter().any(|line| line == expected), "{expected} is not in\n{stdout}");
    }
    assert!(!stdout.contains("rose"));
    // What is printed can be read again.
    std::fs::write(folder.path().join("rivulet.toml"), &stdout).expect("a file");
    let (code, again, stderr) = run(&["config", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let again: serde_json::Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!((&again["workers"]["value"], &again["workers"]["reloads"]), (&3.into(), &false.into()));

    let (code, stdout, stderr) = run(&["config", "--set", "log.level=loud"]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.ends_with(
        "error: --set: log.level is \"loud\", expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\"\n\
         hint: `rivulet config --keys` lists every key\n"
    ), "{stderr}");
    std::fs::write(folder.path().join("rivulet.toml"), "").expect("a file");
    // What is right by itself is shown, and what is wrong with the whole is said.
    let (code, stdout, stderr) =
        run(&["config", "--set", "mqtt.embedded.username=kim", "--set", "mqtt.embedded.password_file=/no/such/file"]);
    assert_eq!((code, stdout.contains("mqtt.embedded.username = \"kim\"")), (1, true), "{stdout}");
    assert!(stderr.contains("error: cannot read /no/such/file of mqtt.embedded.password_file: "), "{stderr}");
    let (code, stdout, _) = run(&["config", "--keys"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("RIVULET_MQTT_BROKER_PASSWORD_FILE"), "{stdout}");
}

/// Starts a server on free ports and waits until it is ready; returns it and its address.
fn serve(data_dir: &std::path::Path) -> (std::process::Child, String) {
    let mut child = command(&["serve", "--http-address", "127.0.0.1:0", "--mqtt-address", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut lines = BufReader::new(child.stderr.take().expect("its messages")).lines();
    let address = loop {
        let line = lines.next().expect("the server ended").expect("text");
        if let Some((_, rest)) = line.split_once(" is ready at ") {
            break rest.split(' ').next().expect("an address").to_owned();
        }
    };
    // Nobody must block on messages that are not read.
    std::thread::spawn(move || lines.for_each(drop));
    (child, address)
}

#[test]
fn a_server_runs_until_it_is_told_to_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut child, address) = serve(folder.path());
    let mut status = command(&["status", "--server", &address]);
    let (code, stdout, stderr) = text(status.output().expect("the program"));
    assert_eq!((code, stdout.contains("0 queries running")), (0, true), "{stdout}{stderr}");

    let second = command(&["serve", "--http-address", "127.0.0.1:0", "--mqtt-address", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path())
        .output();
    let (code, stdout, stderr) = text(second.expect("the program"));
    assert_eq!((code, stdout.as_str()), (1, ""));
    let folder_name = folder.path().display().to_string();
    assert!(
        stderr.contains(&format!("error: the catalog in {folder_name} is in use by another Rivulet server")),
        "{stderr}"
    );
    assert!(stderr.contains("hint: stop the other server"), "{stderr}");

    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    let mut ended = None;
    wait_until("the server ends", || {
        ended = child.try_wait().expect("its state");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    // Everything is free again.
    let (mut child, _) = serve(folder.path());
    child.kill().expect("SIGKILL");
    child.wait().expect("its end");
}

#[test]
fn a_port_in_use_stops_the_server_before_it_touches_anything() {
    let (server, _) = TestServer::with_memory();
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = folder.path().join("data");
    let serve =
        command(&["serve", "--http-address", &server.address.to_string(), "--data-dir"]).arg(&data_dir).output();
    let (code, stdout, stderr) = text(serve.expect("the program"));
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains(&format!("error: cannot listen on http://{}: ", server.address)), "{stderr}");
    assert!(stderr.contains("hint: another program (perhaps another Rivulet) uses port"), "{stderr}");
    assert!(!data_dir.exists());
}

#[test]
fn a_server_that_is_not_there() {
    let server = {
        let (server, _) = TestServer::with_memory();
        server.url()
    };
    for arguments in [&["status"][..], &["query", "list"], &["sql", "-c", "SHOW QUERIES;"]] {
        let mut command = command(arguments);
        let (code, stdout, stderr) = text(command.args(["--server", &server]).output().expect("the program"));
        assert_eq!((code, stdout.as_str()), (1, ""));
        assert!(stderr.starts_with(&format!("error: cannot reach a Rivulet server at {server}: ")), "{stderr}");
        assert!(stderr.contains("hint: start one with `rivulet serve`"), "{stderr}");
    }
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    for arguments in
        [&["nonsense"][..], &[], &["query", "pause"], &["sql", "file", "-c", "x"], &["completions", "dosh"]]
    {
        let (code, stdout, stderr) = text(command(arguments).output().expect("the program"));
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains("Usage:") || stderr.contains("--help"), "{stderr}");
    }
}

#[test]
fn an_option_in_front_of_its_command_gets_a_tip() {
    let (code, _, stderr) = text(command(&["--server", "http://127.0.0.1:1", "status"]).output().expect("the program"));
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("options of a command stand behind it: rivulet COMMAND --server ..."), "{stderr}");
    let (_, _, stderr) = text(command(&["status", "--sever", "x"]).output().expect("the program"));
    assert!(!stderr.contains("stand behind it"), "{stderr}");
}

#[test]
fn wrong_usage_is_json_for_whoever_asked_for_json() {
    for (arguments, message) in [
        (&["--json", "nonsense"][..], "unrecognized subcommand 'nonsense'"),
        (&["query", "pause", "--json"], "the following required arguments were not provided: <NAME>..."),
    ] {
        let (code, stdout, stderr) = text(command(arguments).output().expect("the program"));
        let object: serde_json::Value = serde_json::from_str(&stderr).expect("JSON");
        assert_eq!((code, stdout.as_str(), object["error"]["message"].as_str()), (2, "", Some(message)), "{stderr}");
        assert_eq!(object["error"]["kind"], "usage");
    }
    let (code, stdout, stderr) = text(command(&["--json", "--help"]).output().expect("the program"));
    assert_eq!((code, stdout.contains("Usage:"), stderr.as_str()), (0, true, ""), "help is no error");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let (code, stdout, stderr) =
        text(command(&["bench", "many", "--html", "no/such/folder/x.html"]).output().expect("the program"));
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.starts_with("error: cannot write no/such/folder/x.html: "), "{stderr}");
}

#[test]
fn completions() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, stdout, stderr) = text(command(&["completions", shell]).output().expect("the program"));
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.contains("rivulet") && stdout.contains("serve"), "{shell}");
    }
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let mut child =
        command(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    drop(child.stdout.take());
    assert_eq!(text(child.wait_with_output().expect("its end")), done("", ""));
}
