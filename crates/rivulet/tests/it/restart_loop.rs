//! A server that dies again and again: a big query that causes this is found and held. If the server is killed from
//! outside, no query is held.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::server::{Server, free_port, rivulet, wait};

/// A server whose queries make no checkpoint by themselves.
fn start(folder: &Path) -> Server {
    Server::start_at(folder, free_port(), 3_600)
}

/// A server with two big queries that go on for ever, stopped in order.
fn with_queries(folder: &Path) {
    let mut server = start(folder);
    server.sql_ok(
        "CREATE SOURCE bids FROM 'nexmark:bid' WITH (rate => 100); CREATE SINK a TO 'blackhole:'; CREATE SINK b TO 'blackhole:'; \
         CREATE QUERY first AS SELECT auction, price FROM bids INTO a; CREATE QUERY second AS SELECT auction FROM bids INTO b",
    );
    server.signal("-TERM");
    server.wait_for_end();
}

/// State and reason of a query.
fn state(server: &Server, query: &str) -> (String, String) {
    let shown = server.status()["big_queries"].clone();
    let one = shown.as_array().unwrap().iter().find(|one| one["name"] == query).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&one["state"]), text(&one["reason"]))
}

fn die(mut server: Server, signal: &str) {
    server.signal(signal);
    server.wait_for_end();
}

#[test]
fn a_query_at_which_the_server_dies_is_not_started_by_itself() {
    let folder = TempDir::new().unwrap();
    with_queries(folder.path());
    for _ in 0..2 {
        let server = start(folder.path());
        assert_eq!(state(&server, "first").0, "running");
        assert_eq!(state(&server, "second").0, "running");
        die(server, "-ABRT");
    }
    // Which one it is nobody knows: one of them is started, the other waits.
    let server = start(folder.path());
    let states = || ["first", "second"].map(|query| state(&server, query).0);
    wait("one of them to run", || states().iter().any(|state| state == "running"));
    let waits = if states()[0] == "running" { 1 } else { 0 };
    let (held, other) = if waits == 1 { ("first", "second") } else { ("second", "first") };
    assert_eq!(state(&server, other).0, "not running");
    assert!(state(&server, other).1.contains("one after the other"), "{}", state(&server, other).1);
    die(server, "-ABRT");

    let mut server = start(folder.path());
    assert_eq!(state(&server, other).0, "running");
    let (is, reason) = state(&server, held);
    assert_eq!(is, "failed");
    assert!(reason.contains("died twice in a row"), "{reason}");
    let (_, said) = server.health("ready").unwrap();
    assert!(said.contains(held) && said.contains("died twice in a row"), "{said}");
    server.signal("-TERM");
    server.wait_for_end();
    let doctor = rivulet().arg("doctor").env("RIVULET_DATA_DIR", folder.path().join("data")).output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned() + &String::from_utf8_lossy(&doctor.stderr);
    assert!(said.contains(&format!("query '{held}' does not run")), "{said}");

    let server = start(folder.path());
    assert_eq!(state(&server, held).0, "failed", "it stays so over an orderly stop");
    server.sql_ok(&format!("RESUME QUERY {held}"));
    assert_eq!(state(&server, held).0, "running");
}

#[test]
fn whoever_kills_a_server_holds_no_query() {
    let folder = TempDir::new().unwrap();
    with_queries(folder.path());
    for _ in 0..4 {
        let server = start(folder.path());
        assert_eq!(state(&server, "first").0, "running");
        assert_eq!(state(&server, "second").0, "running");
        die(server, "-KILL");
    }
}

#[test]
fn queries_that_wait_are_started_when_the_others_have_made_a_checkpoint() {
    let folder = TempDir::new().unwrap();
    with_queries(folder.path());
    for _ in 0..2 {
        die(start(folder.path()), "-ABRT");
    }
    let server = Server::start_at(folder.path(), free_port(), 1);
    wait("both to run", || ["first", "second"].iter().all(|query| state(&server, query).0 == "running"));
    // Each shows by a checkpoint that it can run; then nothing is held against them.
    wait("the note to be empty", || {
        std::fs::read_to_string(folder.path().join("data/starts")).is_ok_and(|note| note.contains("\"starts\":{}"))
    });
    die(server, "-ABRT");
    let server = start(folder.path());
    assert_eq!(state(&server, "first").0, "running");
}
