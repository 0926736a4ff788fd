//! State that outlives the process: it continues after a stop and after `kill -9`. Checkpoints that are damaged or
//! cannot be made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rivulet::config::Config;
use rivulet::engine::Engine;
use rivulet::examine::{Level, examine};
use rivulet::service::{CheckpointStatus, StatementResult};
use rivulet_dataflow::StateFrame;
use rivulet_storage::Place;
use serde_json::Value;
use tempfile::TempDir;

use super::engine::configuration;
use super::server::{Publisher, Server};
use super::support::{AsOperator, wait_until};

pub(super) const STEPS: &str = "CREATE APPLICATION steps (id TEXT, output TEXT DEFAULT 'out') INPUT numbers (n BIGINT) \
                     FROM 'mqtt:in/{id}' FORMAT JSON OUTPUT 'mqtt:{output}/{id}' FORMAT JSON AS SELECT n - lag(n) AS step FROM numbers";

pub(super) fn run(engine: &Engine, script: &str) -> StatementResult {
    engine.execute(script).pop().expect("an answer").unwrap_or_else(|error| panic!("{script}: {error}"))
}

/// An engine that makes a checkpoint when asked and at the end, at no other time.
fn open(folder: &Path) -> Arc<Engine> {
    Engine::open(on_demand(folder)).expect("an engine")
}

pub(super) fn on_demand(folder: &Path) -> Config {
    let mut config = configuration(folder);
    config.checkpoint.as_mut().expect("checkpoints are on by default").interval = None;
    config
}

pub(super) fn checkpoints(engine: &Engine) -> CheckpointStatus {
    engine.status().checkpoints.expect("checkpoints are on by default")
}

/// Who sends numbers and reads the steps between them.
pub(super) struct Steps {
    listener: Publisher,
    publisher: Publisher,
}

impl Steps {
    fn new(broker: std::net::SocketAddr) -> Self {
        let mut listener = Publisher::connect(broker);
        listener.subscribe("out/#");
        Self { listener, publisher: Publisher::connect(broker) }
    }

    pub(super) fn of(engine: &Engine) -> Self {
        Self::new(engine.embedded_broker_address().expect("a broker"))
    }

    fn send(&mut self, id: &str, n: i64) {
        self.publisher.publish(&format!("in/{id}"), &format!("{{\"n\": {n}}}"));
    }

    pub(super) fn next(&mut self) -> Value {
        let (_, payload) = self.listener.next();
        serde_json::from_slice::<Value>(&payload).expect("JSON")["step"].clone()
    }

    pub(super) fn step(&mut self, id: &str, n: i64) -> Value {
        self.send(id, n);
        self.next()
    }
}

#[test]
fn state_goes_on_after_a_stop_for_each_query_as_it_was() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        run(&engine, STEPS);
        run(
            &engine,
            "CREATE QUERY one FROM APPLICATION steps WITH (id => 'a'); CREATE QUERY two FROM APPLICATION steps WITH (id => 'a')",
        );
        let mut steps = Steps::of(&engine);
        assert_eq!(steps.step("a", 1), Value::Null);
        assert_eq!(steps.next(), Value::Null, "two queries share a slot");
        // Equal to the others, but it has seen nothing.
        run(&engine, "CREATE QUERY three FROM APPLICATION steps WITH (id => 'a'); PAUSE QUERY two");
        assert_eq!((steps.step("a", 5), steps.next()), (4.into(), Value::Null));
        engine.shutdown();
        let status = checkpoints(&engine);
        assert_eq!((status.made, status.failed, status.last_error), (1, 0, None));
    }
    let engine = open(folder.path());
    let recovered = checkpoints(&engine).recovered.expect("something was found");
    assert_eq!((recovered.queries, recovered.lost, recovered.problems), (3, 0, Vec::new()));
    let mut steps = Steps::of(&engine);
    run(&engine, "RESUME QUERY two");
    steps.send("a", 10);
    let mut all = [steps.next(), steps.next(), steps.next()].map(|step| step.as_i64());
    all.sort_unstable();
    assert_eq!(all, [Some(5), Some(5), Some(9)], "the paused one goes on from where it was paused");
    let shown = run(&engine, "SHOW CHECKPOINTS");
    assert!(shown.rows.contains(&vec!["recovered_queries".into(), 3.into()]), "{:?}", shown.rows);
    assert!(engine.metrics().contains("rivulet_recovered_queries 3"), "{}", engine.metrics());
    assert!(engine.problems().is_empty() && engine.ready().is_ok());
}

#[test]
fn large_state_is_saved_in_pieces_and_changes_come_behind_them() {
    const QUERIES: usize = 3_000;
    let folder = TempDir::new().expect("a folder");
    let text = |query: usize, round: usize| format!("{query} in round {round} {}", "x".repeat(4_000));
    let broker = |engine: &Engine| engine.embedded_broker_address().expect("a broker");
    let send = |publisher: &mut Publisher, query: usize, round: usize| {
        publisher.publish(&format!("in/{query}"), &format!("{{\"t\":\"{}\"}}", text(query, round)));
    };
    {
        let engine = open(folder.path());
        run(
            &engine,
            "CREATE APPLICATION texts (id TEXT) INPUT texts (t TEXT) FROM 'mqtt:in/{id}' FORMAT JSON \
             OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT lag(t) AS before FROM texts",
        );
        let create = |query| format!("CREATE QUERY q{query} FROM APPLICATION texts WITH (id => '{query}');");
        run(&engine, &(0..QUERIES).map(create).collect::<String>());
        let mut publisher = Publisher::connect(broker(&engine));
        (0..QUERIES).for_each(|query| send(&mut publisher, query, 1));
        wait_until("all texts", || engine.status().total.events == QUERIES as u64);
        run(&engine, "CHECKPOINT");
        assert!(checkpoints(&engine).last.expect("it was made").written_bytes > 12_000_000);
        send(&mut publisher, 1, 2);
        wait_until("the change", || engine.status().total.events == QUERIES as u64 + 1);
        run(&engine, "CHECKPOINT");
        let last = checkpoints(&engine).last.expect("it was made");
        assert!(last.queries == 1 && last.written_bytes < 100_000, "{last:?}");
        engine.shutdown();
    }
    let store = rivulet_storage::Store::folder(&folder.path().join("data/checkpoints")).expect("a store");
    let settings = rivulet_storage::EpochSettings { retained: 3 };
    let epochs = rivulet_storage::Epochs::open(Arc::new(store), "applications", settings).expect("a line");
    let pieces = epochs.restore().expect("read").expect("saved").pieces;
    let sizes: Vec<usize> = pieces.values().flatten().map(|piece| piece.len()).collect();
    // Of two or more that have all state, and one with the change.
    assert!(sizes.len() >= 3 && sizes.iter().all(|bytes| *bytes < 9 << 20), "{sizes:?}");
    drop(epochs);
    let engine = open(folder.path());
    let recovered = checkpoints(&engine).recovered.expect("something was found");
    assert_eq!((recovered.queries, recovered.lost, recovered.problems), (QUERIES as u64, 0, Vec::new()));
    let (mut listener, mut publisher) = (Publisher::connect(broker(&engine)), Publisher::connect(broker(&engine)));
    listener.subscribe("out/#");
    for query in [0, 1, QUERIES / 2, QUERIES - 1] {
        send(&mut publisher, query, 3);
        let (topic, result) = listener.next_json();
        let expected = text(query, if query == 1 { 2 } else { 1 });
        assert_eq!((topic, result["before"].as_str()), (format!("out/{query}"), Some(expected.as_str())));
    }
    run(&engine, "CHECKPOINT");
    let last = checkpoints(&engine).last.expect("it was made");
    assert_eq!(last.queries, 4, "pieces of one capture are no changes: not all is written anew");
}

#[test]
fn state_without_its_catalog_is_not_taken_for_that_of_dropped_queries() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        run(&engine, STEPS);
        run(&engine, "CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')");
        assert_eq!(Steps::of(&engine).step("a", 1), Value::Null);
    }
    let data = on_demand(folder.path()).data_dir;
    let (catalog, away) = (data.join("catalog.redb"), data.join("away"));
    std::fs::rename(&catalog, &away).expect("it can be moved");
    for _ in 0..2 {
        let Err(error) = Engine::open(on_demand(folder.path())) else { panic!("it started") };
        assert!(error.message.contains("has no catalog"), "{error}");
        assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("catalog.redb")), "{error}");
    }
    std::fs::rename(&away, &catalog).expect("it can be moved back");
    let engine = open(folder.path());
    assert_eq!(Steps::of(&engine).step("a", 5), 4);
}

#[test]
fn what_was_saved_is_there_after_kill_9() {
    let folder = TempDir::new().expect("a folder");
    let start = || Server::start_at(folder.path(), super::server::free_port(), 0);
    {
        let server = start();
        server.sql_ok(&format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
        let mut steps = Steps::new(server.mqtt);
        assert_eq!((steps.step("a", 1), steps.step("a", 4)), (Value::Null, 3.into()));
        let made = server.sql_ok("CHECKPOINT");
        assert!(made["results"][0]["message"].as_str().is_some_and(|said| said.contains("1 query,")), "{made}");
        assert_eq!(steps.step("a", 100), 96);
        // Dropped is killed: without a word to it.
    }
    let server = start();
    let recovered = server.status()["checkpoints"]["recovered"].clone();
    assert_eq!((&recovered["queries"], &recovered["lost"]), (&1.into(), &0.into()), "{recovered}");
    assert_eq!(Steps::new(server.mqtt).step("a", 10), 6, "as it was when it was saved");
}

/// The newest file with an ending in the folder of the line.
fn newest(folder: &Path, ending: &str) -> PathBuf {
    let line = folder.join("data/checkpoints/applications");
    let files = std::fs::read_dir(line).expect("a line of epochs").map(|entry| entry.expect("an entry").path());
    files.filter(|path| path.extension().is_some_and(|found| found == ending)).max().expect("a file")
}

#[test]
fn a_damaged_checkpoint_gives_way_to_the_one_before_and_it_is_said() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
        let mut steps = Steps::of(&engine);
        steps.step("a", 1);
        run(&engine, "CHECKPOINT");
        steps.step("a", 7);
        engine.shutdown();
    }
    let pack = newest(folder.path(), "pack");
    let mut bytes = std::fs::read(&pack).expect("a pack");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&pack, bytes).expect("written");
    let engine = open(folder.path());
    let problems = engine.problems();
    assert!(problems.iter().any(|problem| problem.contains("cannot be used")), "{problems:?}");
    assert!(engine.ready().is_ok(), "it works all the same");
    assert_eq!(Steps::of(&engine).step("a", 10), 9, "of the checkpoint before");
}

#[test]
fn what_is_damaged_of_one_application_costs_the_others_nothing() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        for name in ["steps", "others"] {
            let application =
                STEPS.replace("steps (", &format!("{name} (")).replace("in/{id}", &format!("in/{name}/{{id}}"));
            run(&engine, &format!("{application}; CREATE QUERY {name} FROM APPLICATION {name} WITH (id => 'a')"));
        }
        let mut steps = Steps::of(&engine);
        for name in ["steps/a", "others/a"] {
            steps.send(name, 1);
            steps.next();
        }
        // Epochs behind it need what the first one has written.
        run(&engine, "CHECKPOINT");
        steps.send("others/a", 2);
        assert_eq!(steps.next(), 1);
        engine.shutdown();
    }
    let pack = folder.path().join("data/checkpoints/applications/000000000001.pack");
    let mut bytes = std::fs::read(&pack).expect("a pack");
    let first = bytes.windows(8).position(|window| window == b"RVAPPL01").expect("the piece of an application");
    bytes[first + 40] ^= 1;
    std::fs::write(&pack, bytes).expect("written");
    let engine = open(folder.path());
    let problems = engine.problems();
    assert!(problems.iter().any(|problem| problem.contains("'application-0'")), "{problems:?}");
    let mut steps = Steps::of(&engine);
    steps.send("others/a", 6);
    assert_eq!(steps.next(), 4, "it has lost nothing");
    steps.send("steps/a", 6);
    assert_eq!(steps.next(), Value::Null, "no epoch has it whole");
    // The next one is whole again.
    run(&engine, "CHECKPOINT");
    drop((steps, engine));
    let engine = open(folder.path());
    assert!(engine.problems().is_empty(), "{:?}", engine.problems());
    let mut steps = Steps::of(&engine);
    for (name, step) in [("others/a", 3), ("steps/a", 3)] {
        steps.send(name, 9);
        assert_eq!(steps.next(), step);
    }
}

#[test]
fn files_of_others_in_the_folder_are_not_taken_for_checkpoints() {
    let folder = TempDir::new().expect("a folder");
    let checkpoints = folder.path().join("data/checkpoints");
    for name in [
        "app.manifest",
        "applications/notes.manifest",
        "others/000000000001.manifest",
        "applications/000000000001.pack",
    ] {
        let path = checkpoints.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, "of no server").expect("written");
    }
    drop(open(folder.path()));
    std::fs::remove_file(folder.path().join("data/catalog.redb")).expect("removed");
    std::fs::remove_dir_all(folder.path().join("data/log")).expect("removed");
    std::fs::create_dir_all(checkpoints.join("queries/7")).expect("made");
    std::fs::write(checkpoints.join("queries/7/000000000003.manifest"), "of a big query").expect("written");
    let Err(error) = Engine::open(on_demand(folder.path())) else { panic!("it started") };
    assert!(error.message.contains("has no catalog"), "{error}");
}

#[test]
fn a_checkpoint_that_fails_harms_nothing_and_the_next_takes_everything() {
    let folder = TempDir::new().expect("a folder");
    let line = folder.path().join("data/checkpoints/applications");
    {
        let engine = open(folder.path());
        run(
            &engine,
            &format!(
                "{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a'); CREATE QUERY b FROM APPLICATION steps WITH (id => 'b')"
            ),
        );
        let mut steps = Steps::of(&engine);
        steps.step("a", 1);
        run(&engine, "CHECKPOINT");
        steps.step("b", 1);
        // Where the line was there is something in which nothing can be written.
        let aside = folder.path().join("aside");
        std::fs::rename(&line, &aside).expect("moved");
        std::fs::write(&line, "in the way").expect("a file");
        let error = engine.checkpoint().expect_err("there is no place");
        assert!(error.message.contains("the checkpoint failed"), "{error}");
        let status = checkpoints(&engine);
        assert_eq!((status.made, status.failed), (1, 1));
        assert!(status.last_error.is_some() && engine.problems()[0].contains("checkpoints fail"));
        assert_eq!(steps.step("a", 3), 2, "events are processed");
        std::fs::remove_file(&line).expect("removed");
        std::fs::rename(&aside, &line).expect("moved back");
        let made = engine.checkpoint().expect("there is a place again");
        assert_eq!(made.queries, 2, "also what the failed one would have saved");
        assert!(checkpoints(&engine).last_error.is_none() && engine.problems().is_empty());
        assert_eq!(engine.checkpoint().expect("made").written_bytes, 0, "nothing has changed");
    }
    let engine = open(folder.path());
    let mut steps = Steps::of(&engine);
    assert_eq!((steps.step("a", 10), steps.step("b", 10)), (7.into(), 9.into()));
}

#[test]
fn dropped_queries_and_applications_leave_no_state() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
        Steps::of(&engine).step("a", 1);
        run(&engine, "CHECKPOINT; DROP QUERY a; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')");
        engine.shutdown();
    }
    {
        let engine = open(folder.path());
        assert_eq!(Steps::of(&engine).step("a", 5), Value::Null, "it is another query");
        run(
            &engine,
            &format!("DROP APPLICATION steps CASCADE; {STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"),
        );
        assert_eq!(Steps::of(&engine).step("a", 6), Value::Null);
        engine.shutdown();
    }
    let engine = open(folder.path());
    assert_eq!(Steps::of(&engine).step("a", 8), 2);
    assert_eq!(checkpoints(&engine).recovered.expect("found").queries, 1);
}

#[test]
fn a_server_that_saves_nothing_begins_anew() {
    let folder = TempDir::new().expect("a folder");
    let mut config = configuration(folder.path());
    config.checkpoint = None;
    for _ in 0..2 {
        let engine = Engine::open(config.clone()).expect("an engine");
        run(&engine, &format!("{STEPS}; CREATE QUERY IF NOT EXISTS a FROM APPLICATION steps WITH (id => 'a')"));
        assert_eq!(Steps::of(&engine).step("a", 5), Value::Null);
        assert!(engine.status().checkpoints.is_none());
        assert!(engine.checkpoint().expect_err("none are made").hint.expect("a hint").contains("checkpoint.enabled"));
        // A log that nothing is ever cut off from fills up.
        let logged = STEPS.replace("steps", "logged").replacen("JSON", "JSON WITH (durability => 'log')", 1);
        let error = engine.create_application(&logged).expect_err("it is not kept");
        assert!(error.message.contains("'numbers'") && error.hint.expect("a hint").contains("checkpoint.enabled"));
    }
    assert!(!folder.path().join("data/checkpoints").exists());
}

#[test]
fn a_folder_is_examined_backed_up_and_restored_by_the_command_line() {
    let folder = TempDir::new().expect("a folder");
    let program = |arguments: &[&str]| {
        let output = super::server::rivulet().current_dir(folder.path()).args(arguments).output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    {
        let engine = open(folder.path());
        run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
        Steps::of(&engine).step("a", 1);
        let (code, found, _) = program(&["doctor", "--data-dir", "data"]);
        assert!(code == Some(1) && found.contains("in use by another"), "{found}");
        let (code, _, said) = program(&["backup", "all", "--data-dir", "data"]);
        assert!(code == Some(1) && said.contains("hint: have the server make it, with --server"), "{said}");
        engine.shutdown();
    }
    let (code, found, _) = program(&["doctor", "--data-dir", "data"]);
    assert_eq!(code, Some(0), "{found}");
    assert!(found.contains("1 application, 1 query") && found.contains("1 query with state"), "{found}");
    assert_eq!(program(&["backup", "all", "--data-dir", "data"]).0, Some(0));
    let pack = newest(folder.path(), "pack");
    std::fs::write(pack, "nonsense").expect("written");
    let (code, found, _) = program(&["--json", "doctor", "--data-dir", "data"]);
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!((code, &found["problems"]), (Some(1), &1.into()), "{found}");
    let (code, _, said) = program(&["restore", "all", "--data-dir", "data"]);
    assert!(code == Some(1) && said.contains("is not empty"), "{said}");
    std::fs::remove_dir_all(folder.path().join("data")).expect("removed");
    assert_eq!(program(&["restore", "all", "--data-dir", "data"]).0, Some(0));
    let engine = open(folder.path());
    assert_eq!(Steps::of(&engine).step("a", 10), 9);
}

/// Where the checkpoint lies that a version of the form of state has written, with what each operator of small queries
/// keeps.
fn saved_by_version(version: u32) -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    Path::new(&own).join(format!("tests/data/checkpoints-{version}"))
}

/// The version of the form of state.
const SAVED_VERSION: u32 = 3;

const AVERAGES: &str = "CREATE APPLICATION averages (id TEXT) INPUT t (ts TIMESTAMP EVENT TIME, device TEXT, v DOUBLE) \
     FROM 'mqtt:t/{id}' FORMAT JSON WITH (idle_timeout => INTERVAL '3000 days') OUTPUT 'mqtt:out/{id}' FORMAT JSON \
     AS SELECT device, avg(v) AS mean, stddev(v) AS spread FROM t \
     GROUP BY hop(ts, INTERVAL '10 seconds', INTERVAL '20 seconds'), device EMIT ON CHANGE";

const FALLS: &str = "CREATE APPLICATION falls (id TEXT) INPUT t (ts TIMESTAMP EVENT TIME, v DOUBLE) \
     FROM 'mqtt:f/{id}' FORMAT JSON WITH (idle_timeout => INTERVAL '3000 days') OUTPUT 'mqtt:out/{id}' FORMAT JSON \
     AS SELECT first_v, low FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES FIRST(A.v) AS first_v, LAST(B.v) AS low \
     PATTERN (A B B) DEFINE B AS B.v < PREV(B.v))";

/// Makes queries of all kinds in an order that gives them always the same numbers, and sends them the first half of
/// their events.
fn first_half(folder: &Path) {
    let engine = open(folder);
    for application in [STEPS, AVERAGES, FALLS] {
        run(&engine, application);
    }
    for (query, application) in [("s", "steps"), ("w", "averages"), ("f", "falls")] {
        run(&engine, &format!("CREATE QUERY {query} FROM APPLICATION {application} WITH (id => '{query}')"));
    }
    let mut publisher = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    for (topic, payload) in [
        ("in/s", r#"{"n": 20}"#),
        ("t/w", r#"{"ts": 1000, "device": "x", "v": 1.0}"#),
        ("t/w", r#"{"ts": 12000, "device": "x", "v": 4.0}"#),
        ("t/w", r#"{"ts": 13000, "device": "y", "v": 7.0}"#),
        ("f/f", r#"{"ts": 1000, "v": 5.0}"#),
        ("f/f", r#"{"ts": 2000, "v": 4.0}"#),
    ] {
        publisher.publish(topic, payload);
    }
    // The window before has closed, and the last one is in the state of what comes only on change.
    let deadline = std::time::Instant::now() + super::support::WAIT_MAX;
    while engine.status().total.events < 6 {
        assert!(std::time::Instant::now() < deadline, "{:?}", engine.status().total);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    engine.shutdown();
}

pub(super) fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_all(&from, &to);
        } else {
            std::fs::copy(&from, &to).expect("copied");
        }
    }
}

/// Every later version reads what the versions before saved. The files were written by this test, with
/// `RIVULET_WRITE_SAVED=1`; whoever changes the form of state adds files of another version, and leaves these.
#[test]
fn what_version_1_saved_is_read() {
    (1..=SAVED_VERSION).for_each(read_what_was_saved_by);
}

fn read_what_was_saved_by(version: u32) {
    let folder = TempDir::new().expect("a folder");
    first_half(folder.path());
    let saved = folder.path().join("data/checkpoints");
    if version == SAVED_VERSION && std::env::var_os("RIVULET_WRITE_SAVED").is_some() {
        copy_all(&saved, &saved_by_version(version));
    }
    // The same catalog, with the checkpoint of then.
    std::fs::remove_dir_all(&saved).expect("removed");
    copy_all(&saved_by_version(version), &saved);
    let engine = open(folder.path());
    let recovered = checkpoints(&engine).recovered.expect("something was found");
    assert_eq!((recovered.queries, recovered.lost, recovered.problems), (3, 0, Vec::new()));
    let mut steps = Steps::of(&engine);
    assert_eq!(steps.step("s", 23), 3);
    steps.publisher.publish("f/f", r#"{"ts": 3000, "v": 3.0}"#);
    let text = |message: (String, Vec<u8>)| String::from_utf8(message.1).expect("text");
    assert_eq!(text(steps.listener.next()), r#"{"first_v":5.0,"low":3.0}"#);
    steps.publisher.publish("t/w", r#"{"ts": 21000, "device": "x", "v": 1.0}"#);
    let results = [text(steps.listener.next()), text(steps.listener.next())];
    assert!(results[0].starts_with(r#"{"device":"x","mean":2.5,"spread":2.1"#), "{results:?}");
    assert_eq!(results[1], r#"{"device":"y","mean":7.0,"spread":null}"#);
}

/// The epochs of applications in the data folder of a server that does not run.
fn epochs_of_applications(folder: &Path) -> rivulet_storage::Epochs {
    let store = rivulet_storage::Store::folder(&folder.join("data/checkpoints")).expect("a store");
    let settings = rivulet_storage::EpochSettings { retained: 3 };
    rivulet_storage::Epochs::open(Arc::new(store), "applications", settings).expect("a line")
}

#[test]
fn what_cannot_be_read_is_replaced_by_the_next_checkpoint() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
    Steps::of(&engine).step("a", 1);
    engine.shutdown();
    drop(engine);
    // A piece that is whole and makes no sense, behind one that does.
    let mut epochs = epochs_of_applications(folder.path());
    let (name, bytes) = (epochs.restore().expect("read").expect("saved").pieces.into_keys().next(), "nonsense");
    let pieces = vec![rivulet_storage::Piece::delta(name.expect("an application"), bytes)];
    epochs
        .commit(rivulet_storage::Epoch { note: serde_json::json!({}), pieces, dropped: Vec::new() })
        .expect("written");
    let engine = open(folder.path());
    assert!(engine.problems().iter().any(|problem| problem.contains("is lost")), "{:?}", engine.problems());
    Steps::of(&engine).step("a", 5);
    engine.shutdown();
    drop(engine);
    let engine = open(folder.path());
    assert!(engine.problems().is_empty(), "{:?}", engine.problems());
    assert_eq!(Steps::of(&engine).step("a", 9), 4, "nothing was written behind what nobody can read");
}

/// Where a text is in bytes.
fn places(bytes: &[u8], text: &[u8]) -> Vec<usize> {
    bytes.windows(text.len()).enumerate().filter(|(_, found)| *found == text).map(|(place, _)| place).collect()
}

/// Writes the newest state of the one application once more, with a `change` to each piece. Returns its pieces before
/// and after.
fn rewrite(folder: &Path, change: &dyn Fn(&mut Vec<u8>)) -> [Vec<Vec<u8>>; 2] {
    let mut epochs = epochs_of_applications(folder);
    let restored = epochs.restore().expect("read").expect("saved");
    let (name, before) = restored.pieces.into_iter().next().expect("an application");
    let before: Vec<Vec<u8>> = before.iter().map(|piece| piece.to_vec()).collect();
    let mut after = before.clone();
    after.iter_mut().for_each(change);
    let piece = |(index, bytes): (usize, &Vec<u8>)| match index {
        0 => rivulet_storage::Piece::whole(name.clone(), bytes.clone()),
        _ => rivulet_storage::Piece::delta(name.clone(), bytes.clone()),
    };
    let pieces = after.iter().enumerate().map(piece).collect();
    epochs.commit(rivulet_storage::Epoch { note: restored.note, pieces, dropped: Vec::new() }).expect("written");
    [before, after]
}

/// The same with `to` instead of `from` in it, such as in addresses.
fn respell(folder: &Path, from: &str, to: &str) -> [Vec<Vec<u8>>; 2] {
    assert_eq!(from.len(), to.len(), "lengths stay");
    rewrite(folder, &|bytes| {
        for place in places(bytes, from.as_bytes()) {
            bytes[place..place + to.len()].copy_from_slice(to.as_bytes());
        }
        // Each frame has its length in front, and a checksum behind its mark.
        for mark in places(bytes, b"RVSTATE2") {
            let length = u64::from_le_bytes(bytes[mark - 8..mark].try_into().expect("8 bytes")) as usize;
            let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[mark + 16..mark + length]);
            bytes[mark + 8..mark + 16].copy_from_slice(&checksum.to_le_bytes());
        }
    })
}

/// The same with another version of the state of these operators.
fn raise(folder: &Path, operator: &str, by: i32) {
    rewrite(folder, &|bytes| {
        // From the last one on: a frame may change its length.
        for mark in places(bytes, b"RVSTATE2").into_iter().rev() {
            let length = u64::from_le_bytes(bytes[mark - 8..mark].try_into().expect("8 bytes")) as usize;
            let mut frame = StateFrame::from_bytes(&bytes[mark..mark + length]).expect("a frame");
            if frame.operator == operator {
                frame.version = frame.version.strict_add_signed(by);
                let frame = frame.to_bytes().expect("bytes");
                bytes.splice(mark - 8..mark + length, (frame.len() as u64).to_le_bytes().into_iter().chain(frame));
            }
        }
    });
}

/// The newest state of the one application.
fn saved_pieces(folder: &Path) -> Vec<bytes::Bytes> {
    let restored = epochs_of_applications(folder).restore().expect("read").expect("saved");
    restored.pieces.into_values().next().expect("an application")
}

/// Starts an engine several times, and makes checkpoints. The application never runs. Returns why.
fn never_runs(folder: &Path) -> String {
    let saved = saved_pieces(folder);
    let mut why = String::new();
    for _ in 0..2 {
        let engine = open(folder);
        let create = engine.execute("CREATE QUERY b FROM APPLICATION steps WITH (id => 'b')").pop().expect("an answer");
        why = create.map(|answer| answer.message).expect_err("it does not run").text();
        run(&engine, "CHECKPOINT");
        engine.shutdown();
    }
    assert!(saved_pieces(folder) == saved, "what was saved was replaced");
    why
}

/// A folder with state of the one query of an application, which has had the number 1.
fn with_steps() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
    Steps::of(&engine).step("a", 1);
    engine.shutdown();
    folder
}

#[test]
fn state_that_finds_no_place_is_never_replaced() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
    Steps::of(&engine).step("a", 1);
    engine.shutdown();
    drop(engine);
    // Another spelling of what the operator does: there is only one of its kind.
    let [before, after] = respell(folder.path(), "lag(", "LAG(");
    assert_ne!(before, after);
    let engine = open(folder.path());
    assert!(engine.problems().is_empty(), "{:?}", engine.problems());
    assert_eq!(Steps::of(&engine).step("a", 5), 4);
    engine.shutdown();
    drop(engine);
    // Another kind of operator.
    let [_, saved] = respell(folder.path(), r#""kind":"history""#, r#""kind":"mystery""#);
    for _ in 0..3 {
        let engine = open(folder.path());
        let create = engine.execute("CREATE QUERY b FROM APPLICATION steps WITH (id => 'b')").pop().expect("an answer");
        let error = create.map(|answer| answer.message).expect_err("it does not run").to_string();
        assert!(error.contains("no operator has the state of 'mystery"), "{error}");
        run(&engine, "CHECKPOINT");
        engine.shutdown();
    }
    let [found, _] = respell(folder.path(), "mystery", "history");
    assert_eq!(found, saved);
    let engine = open(folder.path());
    assert_eq!(Steps::of(&engine).step("a", 9), 4, "as with the program that saved it");
}

#[test]
fn state_of_a_later_version_is_never_replaced() {
    type Change<'a> = &'a dyn Fn(&Path, bool);
    let of_pieces = |folder: &Path, is_later: bool| {
        let (now, later) = ("RVAPPL01", "RVAPPL09");
        let (from, to) = if is_later { (now, later) } else { (later, now) };
        respell(folder, from, to);
    };
    let of_parts = |folder: &Path, is_later: bool| raise(folder, "queries", if is_later { 90 } else { -90 });
    let of_operators = |folder: &Path, is_later: bool| raise(folder, "history", if is_later { 90 } else { -90 });
    for (what, change) in [("pieces", &of_pieces as Change<'_>), ("parts", &of_parts), ("operators", &of_operators)] {
        let folder = with_steps();
        change(folder.path(), true);
        let why = never_runs(folder.path());
        assert!(why.contains("this program knows versions up to") && why.contains("or a later one"), "{what}: {why}");
        assert!(open(folder.path()).problems().is_empty(), "nothing is lost");
        change(folder.path(), false);
        let engine = open(folder.path());
        assert_eq!(Steps::of(&engine).step("a", 5), 4, "{what}: as with the program that saved it");
    }
}

/// The application with so many changes of its text, which leave its state as it is.
fn version(number: u32) -> String {
    let create = STEPS.replacen("CREATE", "CREATE OR REPLACE", 1);
    create.replacen("AS step", &format!("AS step, {number} AS version"), 1)
}

#[test]
fn state_of_a_version_that_the_catalog_lacks_is_kept() {
    let folder = with_steps();
    let (catalog, older) = (folder.path().join("data/catalog.redb"), folder.path().join("older"));
    std::fs::copy(&catalog, &older).expect("copied");
    let engine = open(folder.path());
    run(&engine, &version(1));
    assert_eq!(Steps::of(&engine).step("a", 5), 4);
    engine.shutdown();
    drop(engine);
    let newer = folder.path().join("newer");
    std::fs::rename(&catalog, &newer).expect("moved");
    std::fs::rename(&older, &catalog).expect("moved");
    let why = never_runs(folder.path());
    assert!(
        why.contains("the catalog is older than its saved state") && why.contains("hint: put the catalog"),
        "{why}"
    );
    std::fs::rename(&newer, &catalog).expect("moved");
    let engine = open(folder.path());
    assert_eq!(Steps::of(&engine).step("a", 9), 4);
}

#[test]
fn an_application_runs_whatever_version_its_state_is_of() {
    let folder = with_steps();
    let (saved, aside) = (folder.path().join("data/checkpoints"), folder.path().join("aside"));
    copy_all(&saved, &aside);
    let engine = open(folder.path());
    run(&engine, &version(1));
    engine.shutdown();
    drop(engine);
    // As if it had been killed before the checkpoint behind the upgrade.
    std::fs::remove_dir_all(&saved).expect("removed");
    copy_all(&aside, &saved);
    let engine = open(folder.path());
    assert!(engine.problems().is_empty(), "{:?}", engine.problems());
    assert_eq!(Steps::of(&engine).step("a", 5), 4);
    // Without queries nothing is saved, until the catalog has forgotten the version that has saved something.
    run(&engine, "DROP QUERY a");
    (2..9).for_each(|number| drop(run(&engine, &version(number))));
    engine.shutdown();
    drop(engine);
    let found = examine(&folder.path().join("data"), &Place::Folder(saved)).findings;
    let of_state = found.iter().find(|one| one.text.contains("was saved for another text")).expect("the state is left");
    assert_eq!(of_state.level, Level::Notice, "{found:?}");
    let engine = open(folder.path());
    run(&engine, "CREATE QUERY b FROM APPLICATION steps WITH (id => 'b')");
    assert_eq!(Steps::of(&engine).step("b", 1), Value::Null);
}

const NAMES: &str = "CREATE TABLE names (k BIGINT, name TEXT) FROM 'data:,1,one' FORMAT CSV";

fn with_names() -> String {
    let text = STEPS.replacen("AS step FROM numbers", "AS step, name FROM numbers LEFT JOIN names ON k = n", 1);
    assert_ne!(text, STEPS);
    text
}

#[test]
fn a_version_before_that_lacks_its_table_says_so() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, &format!("{NAMES}; {}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')", with_names()));
    Steps::of(&engine).step("a", 1);
    run(&engine, "CHECKPOINT");
    let (saved, aside) = (folder.path().join("data/checkpoints"), folder.path().join("aside"));
    copy_all(&saved, &aside);
    run(&engine, &format!("{}; DROP TABLE names", version(1)));
    engine.shutdown();
    drop(engine);
    // As if it had been killed before the checkpoint behind the upgrade.
    std::fs::remove_dir_all(&saved).expect("removed");
    copy_all(&aside, &saved);
    let why = never_runs(folder.path());
    assert!(why.contains("names") && !why.contains("has no place in it"), "{why}");
    assert!(!why.contains("start the version of the program"), "{why}");
    let engine = open(folder.path());
    run(&engine, NAMES);
    assert_eq!(Steps::of(&engine).step("a", 5), 4, "it has waited for the table");
}

#[test]
fn state_of_what_does_not_start_is_not_read_again_and_again() {
    let folder = TempDir::new().expect("a folder");
    let start = || Server::start_at(folder.path(), super::server::free_port(), 0);
    let rows = folder.path().join("names.csv");
    std::fs::write(&rows, "1,one\n").expect("written");
    {
        let server = start();
        let table = NAMES.replacen("data:,1,one", "file:names.csv", 1);
        server.sql_ok(&format!("{table}; {}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')", with_names()));
        Steps::new(server.mqtt).step("a", 1);
        server.sql_ok("CHECKPOINT");
    }
    rewrite(folder.path(), &|bytes| bytes.truncate(20));
    std::fs::remove_file(&rows).expect("removed");
    let server = start();
    let losses = || {
        let log = std::fs::read_to_string(folder.path().join("log")).expect("a log");
        log.matches("the state of application 0 is lost").count()
    };
    assert_eq!(losses(), 1);
    for number in 0..2 {
        server.sql_ok(&NAMES.replacen("names", &format!("others{number}"), 1));
        assert_eq!(losses(), 1, "that table has nothing to do with it");
    }
    std::fs::write(&rows, "1,one\n").expect("written");
    server.sql_ok("REFRESH TABLE names");
    assert_eq!(Steps::new(server.mqtt).step("a", 5), Value::Null);
}
