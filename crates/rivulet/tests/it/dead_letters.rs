//! Rows that big queries refuse: dead letters and late rows, in the sinks that sources name.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rivulet::engine::Engine;
use rivulet::service::ServiceError;
use serde_json::Value;
use tempfile::TempDir;

use super::engine::configuration;
use super::server::{Server, free_port, wait};
use super::support::{AsOperator, wait_until};
use super::tables::said;

/// An engine that makes checkpoints when asked and at the end.
fn open(folder: &Path) -> Arc<Engine> {
    let mut config = configuration(folder);
    config.checkpoint.as_mut().expect("checkpoints are on by default").interval = None;
    Engine::open(config).expect("an engine")
}

fn stop(engine: Arc<Engine>) {
    engine.shutdown();
    drop(engine);
}

fn refused(engine: &Engine, script: &str) -> ServiceError {
    engine.execute(script).pop().expect("an answer").expect_err(script)
}

/// The rows in the whole files of a folder.
fn rows(folder: &Path, name: &str) -> Vec<Value> {
    let Ok(entries) = fs::read_dir(folder.join(name)) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let whole = paths.filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.'));
    let texts: Vec<String> = whole.map(|path| fs::read_to_string(path).unwrap()).collect();
    texts.iter().flat_map(|text| text.lines()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn append(folder: &Path, lines: &str) {
    use std::io::Write;
    let mut file = fs::OpenOptions::new().append(true).create(true).open(folder.join("in.jsonl")).unwrap();
    file.write_all(lines.as_bytes()).unwrap();
}

fn refusals(engine: &Engine) -> u64 {
    engine.status().big_queries[0].refused.values().sum()
}

/// What is declared, with these options of the source; paths are those of the folder.
fn declarations(options: &str) -> Vec<String> {
    let sinks =
        ["counts", "letters", "too_late"].map(|sink| format!("CREATE SINK {sink} TO 'file:{sink}/' FORMAT JSON"));
    let source = format!(
        "CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, device TEXT, value DOUBLE) FROM 'file:in.jsonl' FORMAT JSON \
         WITH (follow => true, {options})"
    );
    let query = "CREATE QUERY per_device AS SELECT device, count(*) AS n, window_end FROM readings \
                 GROUP BY device, tumble(ts, INTERVAL '10 seconds') INTO counts";
    sinks.into_iter().chain([source, query.to_owned()]).collect()
}

fn declare(engine: &Engine, folder: &Path, options: &str) {
    append(folder, "");
    declarations(options).iter().for_each(|sql| _ = said(engine, sql));
}

fn reading(s: i64, device: &str) -> String {
    format!("{{\"ts\":{},\"device\":\"{device}\",\"value\":1}}\n", s * 1_000)
}

#[test]
fn what_a_query_refuses_is_in_the_sinks_once_over_checkpoints_and_restarts() {
    let folder = TempDir::new().unwrap();
    let start = || Server::start_at(folder.path(), free_port(), 3600);
    let mut server = start();
    append(folder.path(), "");
    declarations("dead_letter => 'letters', late => 'too_late'").iter().for_each(|sql| _ = server.sql_ok(sql));
    let refused = |server: &Server| -> u64 {
        let status = server.status();
        let refused = status["big_queries"][0]["refused"].as_object().unwrap();
        refused.values().map(|count| count.as_u64().unwrap()).sum()
    };
    append(folder.path(), &(reading(1, "a") + "no JSON\n" + &reading(21, "a") + "\u{1}\n"));
    wait("two are refused", || refused(&server) == 2);
    // Behind the watermark of what came before.
    append(folder.path(), &reading(2, "b"));
    wait("one is late", || refused(&server) == 3);
    server.sql_ok("CHECKPOINT");
    append(folder.path(), "behind the checkpoint\n");
    wait("one more is refused", || refused(&server) == 4);
    // What was written behind the checkpoint is taken back and written again.
    server.kill_9();
    let mut server = start();
    wait("it is refused once more", || refused(&server) == 1);
    append(folder.path(), &reading(3, "c"));
    wait("another is late", || refused(&server) == 2);
    server.signal("-TERM");
    assert_eq!(server.wait_for_end(), Some(0));

    let letters = rows(folder.path(), "letters");
    let mut payloads: Vec<&str> = letters.iter().map(|letter| letter["payload"].as_str().unwrap()).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, ["\u{1}", "behind the checkpoint", "no JSON"], "{letters:?}");
    for letter in &letters {
        assert_eq!((&letter["query"], &letter["source"]), (&"per_device".into(), &"readings".into()));
        assert_eq!(letter["reason"], "decode");
        assert!(letter["detail"].is_string() && letter["arrival_ms"].is_i64(), "{letter}");
    }
    let late = rows(folder.path(), "too_late");
    let mut devices: Vec<String> = late
        .iter()
        .map(|letter| {
            assert_eq!((&letter["reason"], &letter["source"]), (&"late".into(), &"readings".into()), "{letter}");
            let detail = letter["detail"].as_str().unwrap();
            assert!(detail.starts_with("the row's window is closed: its event time, ") && detail.contains("Z, is "));
            assert!(
                detail.contains(" behind the watermark; allow more lateness") && !detail.contains('\n'),
                "{detail}"
            );
            let row: Value = serde_json::from_str(letter["row"].as_str().unwrap()).unwrap();
            // The window reads only the time of a row, and not its column.
            assert!(row["ts"] == 2_000 || row["ts"] == 3_000, "{row}");
            row["device"].as_str().unwrap().to_owned()
        })
        .collect();
    devices.sort_unstable();
    assert_eq!(devices, ["b", "c"]);
}

#[test]
fn late_rows_are_dead_letters_where_nothing_else_is_said() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    declare(&engine, folder.path(), "dead_letter => 'letters'");
    let plan = engine.execute("EXPLAIN QUERY per_device").pop().unwrap().unwrap().rows;
    assert!(plan.iter().any(|row| row[0].as_str().unwrap().contains("sink letters of refused rows")), "{plan:?}");
    append(folder.path(), &(reading(1, "a") + &reading(21, "a")));
    wait_until("they are read", || engine.status().big_queries[0].rows_in == 2);
    append(folder.path(), &(reading(2, "b") + "{\"ts\":null,\"device\":\"d\"}\n"));
    wait_until("they are refused", || refusals(&engine) == 2);
    stop(engine);
    let mut reasons: Vec<String> =
        rows(folder.path(), "letters").iter().map(|letter| letter["reason"].as_str().unwrap().to_owned()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["decode", "late"]);
    assert!(rows(folder.path(), "too_late").is_empty());
}

#[test]
fn a_select_writes_nothing_to_the_sinks_of_its_sources() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    append(folder.path(), &("{\"ts\":null,\"device\":\"d\"}\n".to_owned() + &reading(1, "a")));
    let declared = declarations("dead_letter => 'letters', late => 'too_late'");
    declared.iter().filter(|sql| !sql.starts_with("CREATE QUERY")).for_each(|sql| _ = said(&engine, sql));
    let selection = engine.select("SELECT device FROM readings LIMIT 1").map_err(|error| error.message).unwrap();
    wait_until("the row is there", || selection.end.get().is_some());
    assert_eq!(selection.end.get().map(String::as_str), Some("ended"));
    drop(selection);
    stop(engine);
    for sink in ["letters", "too_late"] {
        let written = fs::read_dir(folder.path().join(sink)).map_or(0, Iterator::count);
        assert_eq!(written, 0, "{sink}");
    }
}

#[test]
fn the_next_version_of_a_query_finishes_the_files_that_it_does_not_write_to_and_no_others() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    append(folder.path(), &("no JSON\n".to_owned() + &reading(1, "a")));
    for sink in ["results", "letters"] {
        said(&engine, &format!("CREATE SINK {sink} TO 'file:{sink}.jsonl' FORMAT JSON"));
    }
    for (source, options) in [("plain", ""), ("careful", ", dead_letter => 'letters'")] {
        said(
            &engine,
            &format!(
                "CREATE SOURCE {source} (device TEXT) FROM 'file:in.jsonl' FORMAT JSON WITH (follow => true{options})"
            ),
        );
    }
    let (results, letters) = (folder.path().join("results.jsonl"), folder.path().join("letters.jsonl"));
    let rows_in = || engine.status().big_queries[0].rows_in;
    said(&engine, "CREATE QUERY q AS SELECT device FROM plain INTO results");
    wait_until("the first version has read", || rows_in() > 0 && refusals(&engine) == 1);
    let both = "SELECT device FROM plain UNION ALL SELECT device FROM careful INTO results";
    said(&engine, &format!("CREATE OR REPLACE QUERY q AS {both}"));
    assert!(!results.exists(), "the next version goes on with the file");
    wait_until("the second version has read", || rows_in() > 0 && refusals(&engine) == 1);
    said(&engine, "CREATE OR REPLACE QUERY q AS SELECT device FROM plain INTO results");
    assert!(!results.exists(), "the next version goes on with the file");
    let letters = fs::read_to_string(letters).expect("a file that nothing is written to any more is whole");
    assert!(letters.lines().count() == 1 && letters.contains("no JSON"), "{letters}");
    said(&engine, "DROP QUERY q");
    stop(engine);
}

#[test]
fn sinks_that_take_no_refused_rows_are_refused_in_their_place() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    declare(&engine, folder.path(), "dead_letter => 'letters'");
    let source =
        |options: &str| format!("CREATE SOURCE other (n BIGINT)\nFROM 'file:x.jsonl' FORMAT JSON WITH ({options})");
    let error = refused(&engine, &source("dead_letter => 'leters'"));
    assert_eq!((error.line, error.column), (Some(2), Some(54)), "{error:?}");
    assert!(error.message.contains("names no sink that is declared: 'leters'"), "{error:?}");
    assert!(error.hint.is_some_and(|hint| hint.contains("letters")));
    let error = refused(&engine, &source("late => 'home/late'"));
    assert!(error.hint.is_some_and(|hint| hint.contains("CREATE SINK letters TO 'mqtt:")), "a topic is no sink");
    said(&engine, &format!("CREATE SINK narrow (n BIGINT) TO 'file:{}/n/' FORMAT JSON", folder.path().display()));
    let error = refused(&engine, &source("late => 'narrow'"));
    assert!(error.hint.is_some_and(|hint| hint.contains("query, source, reason, detail, arrival_ms")));
    assert!(refused(&engine, &source("late => 7")).message.contains("takes the name of a sink"));
    let error = refused(&engine, "DROP SINK letters");
    assert!(error.message.contains("'readings' needs it"), "{error:?}");
    let error = refused(&engine, "CREATE QUERY both AS SELECT device FROM readings INTO letters");
    assert!(error.message.contains("takes the refused rows of the source 'readings'"), "{error:?}");
    said(&engine, "DROP QUERY per_device");
    said(&engine, "DROP SOURCE readings");
    said(&engine, "DROP SINK letters");
}
