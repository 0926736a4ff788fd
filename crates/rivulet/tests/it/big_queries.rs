//! Big queries on a server: declared, run, shown, kept over restarts, dropped.

use std::fs;
use std::path::Path;

use rivulet::engine::Engine;
use rivulet::service::{ErrorKind, Service, ServiceError, StatementResult};
use tempfile::TempDir;

use super::engine::open;
use super::support::wait_until;
use super::tables::said;

fn run(engine: &Engine, script: &str) -> Result<StatementResult, ServiceError> {
    engine.execute(script).pop().expect("an answer")
}

fn refused(engine: &Engine, script: &str) -> ServiceError {
    run(engine, script).expect_err(script)
}

/// A source that follows a file, and a query that counts its rows by device in windows of ten seconds.
fn declare(engine: &Engine, folder: &Path) {
    let (input, output) = (folder.join("in.jsonl"), folder.join("out.jsonl"));
    fs::write(&input, "").expect("a file");
    said(
        engine,
        &format!(
            "CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, device TEXT, value DOUBLE) FROM 'file:{}' FORMAT JSON \
             WITH (follow => true)",
            input.display()
        ),
    );
    said(engine, &format!("CREATE SINK counts TO 'file:{}' FORMAT JSON", output.display()));
    said(engine, "CREATE VIEW warm AS SELECT ts, device FROM readings WHERE value > 20");
    let query = "CREATE QUERY per_device AS SELECT device, count(*) AS readings, window_end FROM warm \
                 GROUP BY device, tumble(ts, INTERVAL '10 seconds') INTO counts";
    assert_eq!(said(engine, query), "query per_device created");
}

fn append(folder: &Path, lines: &str) {
    use std::io::Write;
    let mut file = fs::OpenOptions::new().append(true).open(folder.join("in.jsonl")).expect("the file");
    file.write_all(lines.as_bytes()).expect("written");
}

fn property(engine: &Engine, query: &str, name: &str) -> String {
    let shown = run(engine, &format!("DESCRIBE QUERY {query}")).expect("described");
    let row = shown.rows.into_iter().find(|row| row[0] == name).expect("the property");
    row[1].as_str().map_or_else(|| row[1].to_string(), str::to_owned)
}

#[test]
fn a_big_query_runs_beside_everything_else_and_again_after_a_restart() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    append(folder.path(), "{\"ts\":1000,\"device\":\"a\",\"value\":21}\n{\"ts\":2000,\"device\":\"a\",\"value\":5}\n");
    append(folder.path(), "{\"ts\":11000,\"device\":\"b\",\"value\":30}\n");
    wait_until("both rows are read", || property(&engine, "per_device", "rows read") == "3");
    assert_eq!(property(&engine, "per_device", "state"), "running");
    let plan = run(&engine, "EXPLAIN QUERY per_device").expect("explained").rows;
    assert!(plan.iter().any(|row| row[0].as_str().is_some_and(|line| line.contains("readings"))), "{plan:?}");
    let shown = run(&engine, "SHOW QUERIES").expect("shown").rows;
    assert_eq!((shown[0][0].as_str(), shown[0][2].as_str()), (Some("per_device"), Some("running")));
    assert_eq!(run(&engine, "SHOW SOURCES LIKE 'read%'").expect("shown").rows.len(), 1);
    drop(engine);

    let engine = open(folder.path());
    assert_eq!(property(&engine, "per_device", "state"), "running", "it is remembered");
    assert_eq!(run(&engine, "SHOW VIEWS").expect("shown").rows[0][0], "warm");
    assert_eq!(said(&engine, "DROP QUERY per_device"), "query per_device dropped");
    drop(engine);
    let engine = open(folder.path());
    assert_eq!(refused(&engine, "DESCRIBE QUERY per_device").kind, ErrorKind::NotFound);
}

#[test]
fn what_a_query_needs_is_not_dropped_before_it() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    for (statement, word) in
        [("DROP SOURCE readings", "'warm'"), ("DROP SINK counts", "'per_device'"), ("DROP VIEW warm", "'per_device'")]
    {
        let error = refused(&engine, statement);
        assert_eq!(error.kind, ErrorKind::Conflict, "{error}");
        assert!(error.message.contains(word), "{}", error.message);
    }
    said(&engine, "DROP QUERY per_device");
    for (statement, answer) in [
        ("DROP VIEW warm", "view warm dropped"),
        ("DROP SOURCE readings", "source readings dropped"),
        ("DROP SINK counts", "sink counts dropped"),
        ("DROP SINK IF EXISTS counts", "there is no sink counts, nothing was done"),
    ] {
        assert_eq!(said(&engine, statement), answer);
    }
    assert_eq!(refused(&engine, "DROP VIEW warm").kind, ErrorKind::NotFound);
}

#[test]
fn what_a_server_cannot_do_with_a_query_is_said() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    let cases = [
        ("SELECT device FROM readings", "CREATE QUERY name AS"),
        ("INSERT INTO counts SELECT device, 1, ts FROM readings", "CREATE QUERY name AS INSERT INTO"),
        ("PAUSE QUERY per_device", "drop it"),
        ("CREATE QUERY per_device AS SELECT device FROM readings INTO counts", "another name"),
        (
            "CREATE SOURCE other (a BIGINT) FROM 'nowhere:x' FORMAT JSON; CREATE QUERY q AS SELECT a FROM other INTO counts",
            "",
        ),
    ];
    for (statement, hint) in cases {
        let error = refused(&engine, statement);
        assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{statement}: {error:?}");
        assert!(error.line.is_some(), "{statement}: {error:?}");
    }
    // One that cannot start leaves nothing behind.
    assert_eq!(refused(&engine, "DESCRIBE QUERY q").kind, ErrorKind::NotFound);
}
