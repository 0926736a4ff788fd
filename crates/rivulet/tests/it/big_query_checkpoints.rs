//! Checkpoints of big queries: when they are made, what is told of them, and what becomes of them when queries end,
//! stop and are dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rivulet::engine::Engine;
use rivulet::service::{CheckpointStatus, ErrorKind};
use tempfile::TempDir;

use super::engine::configuration;
use super::server::{Server, free_port, rivulet, wait};
use super::support::{AsOperator, wait_until};
use super::tables::said;

/// An engine that makes checkpoints when asked and at the end, or none at all.
fn open(folder: &Path, checkpoints: bool) -> Arc<Engine> {
    let mut config = configuration(folder);
    match checkpoints {
        true => config.checkpoint.as_mut().expect("checkpoints are on by default").interval = None,
        false => config.checkpoint = None,
    }
    Engine::open(config).expect("an engine")
}

/// Stops an engine, whose folder is free then.
fn stop(engine: Arc<Engine>) {
    engine.shutdown();
    drop(engine);
}

fn status(engine: &Engine) -> CheckpointStatus {
    engine.status().checkpoints.expect("checkpoints are made")
}

fn state(engine: &Engine, query: &str) -> String {
    let shown = engine.execute(&format!("DESCRIBE QUERY {query}")).pop().expect("an answer").expect("described");
    shown.rows.into_iter().find(|row| row[0] == "state").expect("the state")[1].as_str().expect("a text").to_owned()
}

/// The names in a folder.
fn names(folder: PathBuf) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn lines(folder: PathBuf) -> usize {
    let whole = names(folder.clone()).into_iter().filter(|name| !name.starts_with('.'));
    whole.map(|name| fs::read_to_string(folder.join(name)).unwrap().lines().count()).sum()
}

#[test]
fn a_query_that_was_seen_to_end_has_ended_also_after_kill_9() {
    let folder = TempDir::new().unwrap();
    let start = || Server::start_at(folder.path(), free_port(), 3600);
    let has_ended = |server: &Server, query: &str| {
        server.sql_ok(&format!("DESCRIBE QUERY {query}")).to_string().contains("\"ended\"")
    };
    let server = start();
    server.sql_ok("CREATE SOURCE few FROM 'nexmark:bid' WITH (events => 1000)");
    server.sql_ok("CREATE SINK many TO 'file:many/' FORMAT JSON");
    server.sql_ok("CREATE SINK one TO 'file:one.json' FORMAT JSON");
    server.sql_ok("CREATE QUERY to_many AS SELECT auction FROM few INTO many");
    server.sql_ok("CREATE QUERY to_one AS SELECT auction FROM few INTO one");
    for query in ["to_many", "to_one"] {
        wait("the end", || has_ended(&server, query));
    }
    // Killed, an hour before the timer would have saved that.
    drop(server);
    let server = start();
    assert!(has_ended(&server, "to_many") && has_ended(&server, "to_one"));
    drop(server);
    assert_eq!(lines(folder.path().join("many")), 920, "its rows come once");
    assert_eq!(fs::read_to_string(folder.path().join("one.json")).unwrap().lines().count(), 920);
}

#[test]
fn the_doctor_lists_them_and_one_whose_result_is_elsewhere_says_what_to_do() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    run_for_ever(&engine, folder.path());
    said(&engine, "CREATE SOURCE few FROM 'nexmark:bid' WITH (events => 1000)");
    let result = folder.path().join("few.json");
    said(&engine, &format!("CREATE SINK one TO 'file:{}' FORMAT JSON", result.display()));
    said(&engine, "CREATE QUERY to_one AS SELECT auction FROM few INTO one");
    wait_until("the end", || state(&engine, "to_one") == "ended");
    said(&engine, "CHECKPOINT");
    stop(engine);
    let doctor = || {
        let output =
            rivulet().current_dir(folder.path()).args(["--json", "doctor", "--data-dir", "data"]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let found = doctor();
    assert_eq!(found["problems"], 0, "{found}");
    let of = |found: &serde_json::Value, query: &str| {
        let all = found["big_queries"].as_array().unwrap();
        all.iter().find(|one| one["query"] == query).unwrap_or_else(|| panic!("{found}")).clone()
    };
    let (writes, to_one) = (of(&found, "writes"), of(&found, "to_one"));
    assert!(writes["epoch"].as_u64() >= Some(2) && writes["bytes"].as_u64().is_some() && writes["damaged"] == false);
    assert!(writes["age_ms"].as_u64() < Some(60_000), "{writes}");
    assert_eq!((&to_one["has_ended"], &writes["has_ended"]), (&true.into(), &false.into()));
    // One checkpoint that is damaged leaves the one before, and is said.
    let line = folder.path().join("data/checkpoints/queries").join(writes["number"].to_string());
    let newest = names(line.clone()).into_iter().rfind(|name| name.ends_with(".manifest")).unwrap();
    fs::write(line.join(newest), "nonsense").unwrap();
    let found = doctor();
    let damaged = of(&found, "writes");
    assert_eq!((&found["problems"], &damaged["damaged"]), (&1.into(), &true.into()), "{found}");
    assert!(damaged["epoch"].as_u64() < writes["epoch"].as_u64(), "{damaged}");
    // As on another machine.
    fs::remove_file(&result).unwrap();
    let engine = open(folder.path(), true);
    let shown = engine.execute("DESCRIBE QUERY to_one").pop().unwrap().unwrap();
    assert_eq!(state(&engine, "to_one"), "ended");
    assert!(format!("{:?}", shown.rows).contains("drop the query and create it again"), "{:?}", shown.rows);
}

/// Rows for ever, into a folder.
fn run_for_ever(engine: &Engine, folder: &Path) {
    said(engine, "CREATE SOURCE endless FROM 'nexmark:bid' WITH (rate => 20000)");
    said(engine, &format!("CREATE SINK files TO 'file:{}/' FORMAT JSON", folder.join("out").display()));
    said(engine, "CREATE QUERY writes AS SELECT auction FROM endless INTO files");
}

#[test]
fn a_stop_leaves_nothing_hidden_and_a_start_goes_on_behind_it() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    run_for_ever(&engine, folder.path());
    wait_until("rows are written", || engine.status().big_queries[0].rows_out > 0);
    said(&engine, "CHECKPOINT");
    stop(engine);
    let of_first = names(folder.path().join("out"));
    assert!(!of_first.is_empty() && of_first.iter().all(|name| name.starts_with("part-")), "{of_first:?}");
    let before = lines(folder.path().join("out"));
    let engine = open(folder.path(), true);
    wait_until("rows are written", || engine.status().big_queries[0].rows_out > 0);
    stop(engine);
    assert!(names(folder.path().join("out")).iter().all(|name| name.starts_with("part-")));
    assert!(lines(folder.path().join("out")) > before);
}

#[test]
fn what_was_saved_of_a_dropped_query_is_given_to_nobody_and_goes() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    said(&engine, "CREATE SOURCE few FROM 'nexmark:bid' WITH (events => 100)");
    said(&engine, "CREATE SINK nowhere TO 'blackhole:'");
    said(&engine, "CREATE QUERY ends AS SELECT auction FROM few INTO nowhere");
    wait_until("it ends", || state(&engine, "ends") == "ended");
    stop(engine);
    let queries = folder.path().join("data/checkpoints/queries");
    let saved = names(queries.clone());
    assert_eq!(saved.len(), 1);
    let engine = open(folder.path(), false);
    said(&engine, "DROP QUERY ends");
    said(&engine, "CREATE SOURCE endless FROM 'nexmark:bid' WITH (rate => 1000)");
    said(&engine, "CREATE QUERY goes_on AS SELECT auction FROM endless INTO nowhere");
    stop(engine);
    let engine = open(folder.path(), true);
    assert_eq!(state(&engine, "goes_on"), "running");
    assert!(fs::read_dir(queries.join(&saved[0])).map_or(0, Iterator::count) == 0, "nobody needs it any more");
    said(&engine, "CHECKPOINT");
    assert_eq!(status(&engine).big_queries[0].query, "goes_on");
}

#[test]
fn checkpoints_of_big_queries_are_told() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    run_for_ever(&engine, folder.path());
    wait_until("rows are written", || engine.status().big_queries[0].rows_out > 0);
    let made = engine.checkpoint().unwrap();
    assert_eq!((made.big_queries, made.queries), (1, 0));
    let again = engine.checkpoint().unwrap();
    assert_eq!(again.big_queries, 1);
    let [of_query] = &status(&engine).big_queries[..] else { panic!("one") };
    assert_eq!((of_query.query.as_str(), of_query.epoch, &of_query.last_error), ("writes", Some(2), &None));
    assert!(of_query.age_ms.is_some());
    let shown = engine.execute("SHOW CHECKPOINTS").pop().unwrap().unwrap();
    assert!(shown.rows.iter().any(|row| row[0] == "query writes" && row[1].as_str().unwrap().starts_with("epoch 2,")));
}

#[test]
fn a_checkpoint_that_a_big_query_is_not_in_is_no_success() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    // A receiver that takes connections and never answers: the end of the query waits for it.
    let receiver = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = receiver.local_addr().unwrap().port();
    said(&engine, "CREATE SOURCE few FROM 'nexmark:bid' WITH (events => 100)");
    said(&engine, &format!("CREATE SINK hook TO 'http:127.0.0.1:{port}/hook' WITH (timeout => '1 minute')"));
    said(&engine, "CREATE QUERY stuck AS SELECT auction FROM few INTO hook");
    wait_until("rows are read", || engine.status().big_queries[0].rows_in > 0);
    std::thread::sleep(Duration::from_millis(300));
    let error = engine.checkpoint().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("no checkpoint is made of the query 'stuck'"), "{error:?}");
    assert!(error.message.contains("did not come to rest"), "{error:?}");
    assert!(engine.problems().iter().any(|problem| problem.contains("the query 'stuck'")), "{:?}", engine.problems());
    assert!(status(&engine).big_queries[0].last_error.is_some());
    said(&engine, "DROP QUERY stuck");
    assert!(engine.checkpoint().is_ok());
    assert!(engine.problems().is_empty(), "{:?}", engine.problems());
}

#[test]
fn damage_that_makes_results_come_twice_is_told() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    run_for_ever(&engine, folder.path());
    said(&engine, "CHECKPOINT");
    wait_until("rows are written", || engine.status().big_queries[0].rows_out > 0);
    stop(engine);
    let lines = folder.path().join("data/checkpoints/queries");
    let line = lines.join(&names(lines.clone())[0]);
    let newest = names(line.clone()).into_iter().rfind(|name| name.ends_with(".manifest")).unwrap();
    fs::write(line.join(newest), "{").unwrap();
    let engine = open(folder.path(), true);
    let problems = engine.problems();
    assert!(
        problems.iter().any(|problem| problem.contains("what was written since then may come twice")),
        "{problems:?}"
    );
}
