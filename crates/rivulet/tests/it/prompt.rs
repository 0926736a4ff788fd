//! The prompt of `rivulet sql`, at a terminal.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::server::{Publisher, Server, wait};

/// What the prompt writes when it begins to read.
const READS: &str = "\x1b[?2004h";

const INTERRUPT: &str = "\x03";

/// What is shown at a terminal where these lines were typed at the prompt, each when it reads the next one; nothing if
/// no terminal can be made. A line that is Ctrl-C alone is typed when a row is shown.
fn typed(server: &Server, lines: &[&str]) -> Option<String> {
    let program = env!("CARGO_BIN_EXE_rivulet");
    let mut command = Command::new("script");
    command.args(["-qec", &format!("exec {program} sql --server {}", server.url()), "/dev/null"]);
    command.env("TERM", "xterm").env("RIVULET_HISTORY", "");
    let Ok(mut terminal) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("skipped: the prompt at a terminal, because script is missing (apt-get install bsdutils)");
        return None;
    };
    let shown = Arc::new(Mutex::new(Vec::new()));
    let (mut keyboard, mut screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let written = shown.clone();
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = screen.read(&mut bytes) {
            written.lock().unwrap().extend_from_slice(&bytes[..length]);
        }
    });
    let text = || String::from_utf8_lossy(&shown.lock().unwrap()).into_owned();
    let mut prompts = 0;
    for line in lines {
        if *line == INTERRUPT {
            wait("a row", || text().contains("\r\n{\""));
            keyboard.write_all(INTERRUPT.as_bytes()).unwrap();
            continue;
        }
        prompts += 1;
        wait("the prompt", || text().matches(READS).count() >= prompts);
        keyboard.write_all(format!("{line}\r").as_bytes()).unwrap();
    }
    wait("the end", || terminal.try_wait().unwrap().is_some());
    reader.join().unwrap();
    Some(text())
}

#[test]
fn tab_completes_keywords_and_what_the_server_has() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION copy (id TEXT, least DOUBLE DEFAULT 1) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' \
         FORMAT JSON OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n FROM numbers WHERE n > $least;
         CREATE SOURCE bids FROM 'nexmark:bid'",
    );
    let lines = [
        "desc\t appl\t cop\t;",
        "CREATE QUERY kims_copy FROM APP\t cop\t WITH (i\t'kim', le\t2);",
        "DESC\t QUE\t kim\t;",
        "ALTER QUERY ki\t SET (le\t3);",
        "EXP\t SEL\t ab\tprice) FROM bi\t;",
        "\\q",
    ];
    let Some(shown) = typed(&server, &lines) else { return };
    assert!(!shown.contains("error"), "{shown}");
    for part in ["in/{id}", "in/kim", "kims_copy"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    let answer = server.sql_ok("DESCRIBE QUERY kims_copy").to_string();
    assert!(answer.contains("least") && answer.contains('3'), "{answer}");
}

#[test]
fn an_interrupt_ends_a_select_and_gives_the_prompt_back() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    // Rows are rare, so that the SELECT waits for the next one when it is ended.
    server.sql_ok(
        "CREATE APPLICATION a (id TEXT) INPUT n (v BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON \
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT v FROM n",
    );
    let mut publisher = Publisher::connect(server.mqtt);
    let stop = Arc::new(AtomicBool::new(false));
    let publishing = thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Ordering::Relaxed) {
                publisher.publish("in/1", "{\"v\": 1}");
                thread::sleep(Duration::from_millis(300));
            }
        }
    });
    let shown = typed(&server, &["SELECT * FROM \"mqtt:in/1\";", INTERRUPT, "SHOW APPLICATIONS;", "\\q"]);
    stop.store(true, Ordering::Relaxed);
    publishing.join().unwrap();
    let Some(shown) = shown else { return };
    assert!(shown.contains("(1 row)") && !shown.contains("error"), "{shown}");
}
