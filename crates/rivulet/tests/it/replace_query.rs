//! A new version of a big query takes over from the earlier version: it writes the results of each row once, whatever
//! happens meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rivulet::engine::Engine;
use rivulet::service::{ErrorKind, QueryState, ServiceError, StatementResult};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::engine::configuration;
use super::kill::{kills, random};
use super::server::{Server, free_port};
use super::support::{AsOperator, wait_until};
use super::tables::said;

/// Of each 50 events of the generator 46 are bids.
const EVENTS: i64 = 60_000;
const BIDS: i64 = EVENTS / 50 * 46;
const RATE: i64 = 10_000;

/// How long a query may take to its end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Long enough that each version has open windows when it is replaced.
const WINDOW: &str = "TABLE(TUMBLE(TABLE bids, DESCRIPTOR(date_time), INTERVAL '500' MILLISECOND))";

/// An engine that makes checkpoints when asked and at the end, or none at all.
fn open(folder: &Path, checkpoints: bool) -> Arc<Engine> {
    let mut config = configuration(folder);
    match checkpoints {
        true => config.checkpoint.as_mut().expect("checkpoints are on by default").interval = None,
        false => config.checkpoint = None,
    }
    Engine::open(config).expect("an engine")
}

fn stop(engine: Arc<Engine>) {
    engine.shutdown();
    drop(engine);
}

fn run(engine: &Engine, script: &str) -> Result<StatementResult, ServiceError> {
    engine.execute(script).pop().expect("an answer")
}

fn refused(engine: &Engine, script: &str) -> ServiceError {
    run(engine, script).map(|answer| answer.message).expect_err(script)
}

fn state(engine: &Engine, query: &str) -> QueryState {
    engine.query(query).expect("a query").state
}

fn declare(engine: &Engine, folder: &Path) {
    said(engine, &format!("CREATE SOURCE bids FROM 'nexmark:bid' WITH (events => {EVENTS}, rate => {RATE})"));
    for sink in ["out", "other"] {
        said(engine, &format!("CREATE SINK {sink} TO 'file:{}/' FORMAT JSON", folder.join(sink).display()));
    }
    said(engine, &format!("CREATE SINK single TO 'file:{}' FORMAT JSON", folder.join("single.json").display()));
}

/// Counts bids by auction and window; `version` stands in each result.
fn counted(version: u32) -> String {
    format!(
        "QUERY q AS SELECT auction, window_end, count(*) AS n, {version} AS version FROM {WINDOW} \
         WHERE price >= {version} - {version} GROUP BY auction, window_start, window_end INTO out"
    )
}

/// The lines of all files in a folder, or of a file, that are not hidden.
fn lines(path: &Path) -> Vec<Value> {
    let files: Vec<_> = match path.is_dir() {
        true => fs::read_dir(path).expect("a folder").map(|entry| entry.expect("a file").path()).collect(),
        false => vec![path.to_owned()],
    };
    let whole = files.into_iter().filter(|file| !file.file_name().unwrap().to_string_lossy().starts_with('.'));
    let texts: Vec<String> = whole.filter_map(|file| fs::read_to_string(file).ok()).collect();
    texts.iter().flat_map(|text| text.lines()).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// That each bid was counted in one window, and each window came once; how many results each version has given.
fn check_counts(folder: &Path) -> BTreeMap<i64, usize> {
    let (mut windows, mut versions, mut bids) = (BTreeMap::<String, u32>::new(), BTreeMap::new(), 0);
    for line in lines(&folder.join("out")) {
        bids += line["n"].as_i64().unwrap();
        *windows.entry(format!("{} {}", line["auction"], line["window_end"])).or_default() += 1;
        *versions.entry(line["version"].as_i64().unwrap()).or_default() += 1;
    }
    assert_eq!(bids, BIDS, "each bid is counted once: {versions:?}");
    assert!(windows.values().all(|&times| times == 1), "each window came once: {versions:?}");
    versions
}

fn rows_in(engine: &Engine) -> u64 {
    engine.query("q").expect("a query").big.expect("a big one").rows_in
}

#[test]
fn a_new_version_goes_on_with_positions_and_state() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    declare(&engine, folder.path());
    assert_eq!(said(&engine, &format!("CREATE OR REPLACE {}", counted(1))), "query q created");
    assert!(said(&engine, &format!("create or replace  {}", counted(1))).contains("nothing was done"));
    for version in 2..=3 {
        let big = || engine.query("q").expect("a query").big.expect("a big one");
        wait_until("rows are written", || big().rows_out > 0);
        let answer = run(&engine, &format!("CREATE OR REPLACE {}", counted(version))).expect("it can go on");
        let said = answer.message.expect("a sentence");
        assert!(said.starts_with("query q replaced, goes on from its checkpoint "), "{said}");
        assert!(said.contains("state is taken over: window"), "{said}");
        assert!(answer.rows.iter().all(|row| row[0] == "state taken over"), "{:?}", answer.rows);
    }
    assert_eq!(engine.query("q").unwrap().big.unwrap().sql, format!("CREATE OR REPLACE {}", counted(3)));
    stop(engine);
    // It goes on behind a restart too.
    let engine = open(folder.path(), true);
    wait_until("the end", || state(&engine, "q") == QueryState::Ended);
    let ended = refused(&engine, &format!("CREATE OR REPLACE {}", counted(4)));
    assert!(ended.kind == ErrorKind::Conflict && ended.message.contains("end of its input"), "{ended:?}");
    stop(engine);
    let versions = check_counts(folder.path());
    assert_eq!(versions.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_query_goes_on_with_its_operators_one_by_one_and_fused_again() {
    let folder = TempDir::new().unwrap();
    let mut engine = open(folder.path(), true);
    declare(&engine, folder.path());
    let mut fused = u64::MAX;
    for version in 1..=3 {
        let fuse = if version % 2 == 0 { " WITH (fuse => 'none')" } else { "" };
        let answer = said(&engine, &format!("CREATE OR REPLACE {}{fuse}", counted(version)));
        assert!(version == 1 || answer.contains("state is taken over: window"), "{answer}");
        // It goes on as it is behind a restart too.
        for _ in 0..2 {
            wait_until("rows are read", || rows_in(&engine) > 0);
            let tasks = engine.query("q").unwrap().big.unwrap().tasks;
            fused = fused.min(tasks);
            assert_eq!(tasks > fused, version % 2 == 0, "{version}: {tasks}");
            stop(engine);
            engine = open(folder.path(), true);
        }
    }
    wait_until("the end", || state(&engine, "q") == QueryState::Ended);
    stop(engine);
    assert!(check_counts(folder.path()).contains_key(&3));
}

#[test]
fn state_that_would_be_lost_is_not_lost_without_a_word() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    declare(&engine, folder.path());
    said(&engine, &format!("CREATE {}", counted(1)));
    wait_until("rows are read", || rows_in(&engine) > 3_000);
    let longer = counted(2).replace("500", "700");
    let error = refused(&engine, &format!("CREATE OR REPLACE {longer}"));
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.message.contains("would lose state: window") && error.message.contains("has become"), "{error:?}");
    assert!(error.hint.as_deref().unwrap_or_default().contains("'discard'"), "{error:?}");
    assert_eq!(state(&engine, "q"), QueryState::Running);
    let longer = longer.replace("QUERY q AS", "QUERY q WITH (state => 'discard') AS");
    let said = said(&engine, &format!("CREATE OR REPLACE {longer}"));
    assert!(said.contains("state is forgotten: window") && said.contains("goes on from its checkpoint"), "{said}");
    wait_until("the end", || state(&engine, "q") == QueryState::Ended);
    stop(engine);
    let bids: i64 = lines(&folder.path().join("out")).iter().map(|line| line["n"].as_i64().unwrap()).sum();
    assert!(bids > BIDS / 2 && bids < BIDS, "the rows of open windows are lost, and no others: {bids} of {BIDS}");
}

#[test]
fn a_result_that_takes_rows_back_goes_on_only_where_it_is_computed_as_it_was() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    declare(&engine, folder.path());
    let query = |columns: &str, sink: &str| {
        format!("CREATE OR REPLACE QUERY q AS SELECT {columns} FROM bids GROUP BY channel INTO {sink}")
    };
    said(&engine, &query("channel, count(*) AS n", "single"));
    wait_until("rows are written", || engine.query("q").unwrap().big.unwrap().rows_out > 0);
    let error = refused(&engine, &query("channel, 2 * count(*) AS n", "single"));
    assert!(error.message.contains("would take back rows that the text before has never given"), "{}", error.message);
    assert!(error.hint.unwrap().contains("another sink"));
    // With other words for the same, or to another place, it goes on.
    let answer = said(&engine, &query("channel, (count(*)) AS n", "single"));
    assert!(answer.contains("goes on from its checkpoint"), "{answer}");
    let answer = said(&engine, &query("channel, 2 * count(*) AS n", "out"));
    assert!(answer.contains("goes on from its checkpoint"), "{answer}");
    // Discarded: all of it begins anew, and takes back what it has given itself.
    said(&engine, "DROP QUERY q");
    said(&engine, &query("channel, count(*) AS n", "other"));
    wait_until("rows are written", || engine.query("q").unwrap().big.unwrap().rows_out > 0);
    let discard =
        query("channel, -count(*) AS n", "other").replace(" AS SELECT", " WITH (state => 'discard') AS SELECT");
    let answer = run(&engine, &discard).unwrap();
    assert!(answer.rows.iter().any(|row| row[0] == "state forgotten"), "{:?}", answer.rows);
    wait_until("the end", || state(&engine, "q") == QueryState::Ended);
    stop(engine);
    let mut left: BTreeMap<String, i64> = BTreeMap::new();
    for line in lines(&folder.path().join("other")).iter().filter(|line| line["n"].as_i64().unwrap() < 0) {
        let sign = if line["op"] == "-" { -1 } else { 1 };
        *left.entry(format!("{} {}", line["channel"], line["n"])).or_default() += sign;
    }
    assert!(!left.is_empty() && left.values().all(|count| *count >= 0), "what was never given is taken back: {left:?}");
}

#[test]
fn a_paused_query_is_replaced_and_stays_paused() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    declare(&engine, folder.path());
    said(&engine, &format!("CREATE {}", counted(1)));
    wait_until("rows are read", || rows_in(&engine) > 3_000);
    said(&engine, "PAUSE QUERY q");
    assert!(said(&engine, &format!("CREATE OR REPLACE {}", counted(2))).ends_with("it is paused"));
    assert_eq!(state(&engine, "q"), QueryState::Paused);
    stop(engine);
    // Paused with nothing open.
    let engine = open(folder.path(), true);
    assert!(said(&engine, &format!("CREATE OR REPLACE {}", counted(3))).ends_with("it is paused"));
    assert!(said(&engine, "RESUME QUERY q").contains("from its checkpoint"));
    wait_until("the end", || state(&engine, "q") == QueryState::Ended);
    stop(engine);
    assert!(!check_counts(folder.path()).contains_key(&2));
}

#[test]
fn a_version_that_cannot_start_leaves_the_one_before() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    declare(&engine, folder.path());
    fs::write(folder.path().join("no_folder"), "").unwrap();
    let inside = folder.path().join("no_folder/results.json");
    said(&engine, &format!("CREATE SINK nowhere TO 'file:{}' FORMAT JSON", inside.display()));
    said(&engine, &format!("CREATE {}", counted(1)));
    wait_until("rows are read", || rows_in(&engine) > 3_000);
    let error = refused(&engine, &format!("CREATE OR REPLACE {}", counted(2).replace("INTO out", "INTO nowhere")));
    assert!(error.message.starts_with("'q' stays as it was:"), "{error:?}");
    assert_eq!(state(&engine, "q"), QueryState::Running);
    assert_eq!(engine.query("q").unwrap().big.unwrap().sql, format!("CREATE {}", counted(1)));
    wait_until("the end", || state(&engine, "q") == QueryState::Ended);
    stop(engine);
    assert_eq!(check_counts(folder.path()).keys().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn sink_and_sources_may_change() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    declare(&engine, folder.path());
    said(&engine, "CREATE QUERY q AS SELECT auction FROM bids INTO single");
    wait_until("rows are read", || rows_in(&engine) > 1_000);
    said(&engine, "CREATE OR REPLACE QUERY q AS SELECT auction, price FROM bids INTO other");
    let of_first = lines(&folder.path().join("single.json")).len();
    assert!(of_first > 1_000, "a file that nothing is written to any more is whole");
    // Declared after the query, whose place among the statements stays.
    said(&engine, "CREATE SOURCE few FROM 'nexmark:bid' WITH (events => 1000)");
    let both = "CREATE OR REPLACE QUERY q AS SELECT auction FROM bids UNION ALL SELECT auction FROM few INTO other";
    assert!(said(&engine, both).contains("begins with: few"));
    stop(engine);
    let engine = open(folder.path(), true);
    let needed = refused(&engine, "DROP SOURCE few");
    assert!(needed.message.contains("'q' needs it"), "{needed:?}");
    wait_until("the end", || state(&engine, "q") == QueryState::Ended);
    stop(engine);
    let rest = lines(&folder.path().join("other")).len();
    assert_eq!(
        (of_first + rest) as i64,
        BIDS + 1000 / 50 * 46,
        "each row once, {of_first} of them by the first version"
    );
}

#[test]
fn a_file_with_a_head_gets_no_rows_of_another_form() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    declare(&engine, folder.path());
    for ending in ["avro", "csv"] {
        let file = folder.path().join(format!("rows.{ending}"));
        said(&engine, &format!("CREATE SINK {ending} TO 'file:{}'", file.display()));
        let version = |rest: &str| format!("CREATE OR REPLACE QUERY of_{ending} AS SELECT {rest} INTO {ending}");
        said(&engine, &version("auction FROM bids"));
        for rest in ["auction, price FROM bids", "auction, max(price) AS most FROM bids GROUP BY auction"] {
            let error = refused(&engine, &version(rest));
            assert!(error.kind == ErrorKind::Conflict && error.message.contains("other columns"), "{error:?}");
        }
        assert!(said(&engine, &version("auction FROM bids WHERE price > 100")).contains("replaced"));
    }
    // Each line of JSON says what its columns are.
    said(&engine, "CREATE QUERY q AS SELECT auction FROM bids INTO single");
    assert!(said(&engine, "CREATE OR REPLACE QUERY q AS SELECT price FROM bids INTO single").contains("replaced"));
    stop(engine);
}

#[test]
fn what_has_made_a_query_fail_may_be_put_right_in_its_text() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    let input = folder.path().join("in.jsonl");
    fs::write(&input, "{\"device\":\"a\",\"value\":1}\n").unwrap();
    said(
        &engine,
        &format!(
            "CREATE SOURCE readings (device TEXT, value DOUBLE) FROM 'file:{}' FORMAT JSON WITH (follow => true)",
            input.display()
        ),
    );
    said(&engine, "CREATE SINK topics TO 'mqtt:out/{device}' FORMAT JSON");
    let version = |device: &str| format!("QUERY q AS SELECT {device} AS device, value FROM readings INTO topics");
    said(&engine, &format!("CREATE {}", version("device")));
    let rows_out = || engine.query("q").unwrap().big.unwrap().rows_out;
    wait_until("a row is written", || rows_out() == 1);
    said(&engine, "CHECKPOINT");
    let mut file = fs::OpenOptions::new().append(true).open(&input).unwrap();
    std::io::Write::write_all(&mut file, b"{\"device\":\"b/c\",\"value\":2}\n").unwrap();
    wait_until("it fails", || state(&engine, "q") == QueryState::Failed);
    let said = said(&engine, &format!("CREATE OR REPLACE {}", version("'topic'")));
    assert!(said.contains("goes on from its checkpoint 1"), "{said}");
    assert!(!said.contains("meanwhile"), "a file is read from where it was: {said}");
    wait_until("the row that it failed for is written", || rows_out() == 1);
    assert_eq!(state(&engine, "q"), QueryState::Running);
    stop(engine);
    let engine = open(folder.path(), true);
    assert_eq!(state(&engine, "q"), QueryState::Running, "the failure is over for good");
}

#[test]
fn of_a_source_that_has_come_to_its_end_nothing_is_missed() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), true);
    let [ended, live] = ["ended", "live"].map(|name| folder.path().join(format!("{name}.jsonl")));
    for (input, with) in [(&ended, ""), (&live, " WITH (follow => true)")] {
        fs::write(input, "{\"value\":1}\n").unwrap();
        let name = input.file_stem().unwrap().to_string_lossy();
        let file = input.display();
        said(&engine, &format!("CREATE SOURCE {name} (value DOUBLE) FROM 'file:{file}' FORMAT JSON{with}"));
    }
    said(&engine, &format!("CREATE SINK out TO 'file:{}/' FORMAT JSON", folder.path().join("out").display()));
    let version = |version: u32| {
        let values = |source: &str| format!("SELECT value + {version} AS value FROM {source}");
        format!("QUERY q AS {} UNION ALL {} INTO out", values("ended"), values("live"))
    };
    said(&engine, &format!("CREATE {}", version(1)));
    wait_until("all rows are read", || rows_in(&engine) == 2);
    for next in 2..=4 {
        let said = said(&engine, &format!("CREATE OR REPLACE {}", version(next)));
        assert!(said.contains("goes on from its checkpoint") && !said.contains("meanwhile"), "{said}");
    }
    stop(engine);
}

#[test]
fn without_checkpoints_a_query_begins_anew_if_that_is_wished() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path(), false);
    declare(&engine, folder.path());
    said(&engine, "CREATE QUERY q AS SELECT auction FROM bids INTO out");
    let again = "QUERY q AS SELECT auction, price FROM bids INTO other";
    let error = refused(&engine, &format!("CREATE OR REPLACE {again}"));
    assert!(error.message.contains("no checkpoints are made"), "{error:?}");
    let wished = again.replace("QUERY q AS", "QUERY q WITH (state => 'discard') AS");
    assert!(said(&engine, &format!("CREATE OR REPLACE {wished}")).contains("begins anew"));
    wait_until("the end", || state(&engine, "q") == QueryState::Ended);
    stop(engine);
    assert_eq!(lines(&folder.path().join("other")).len() as i64, BIDS);
}

/// `RIVULET_KILLS` says how often it is killed.
#[test]
fn either_version_goes_on_whenever_the_server_is_killed() {
    let kills = kills(4);
    let folder = TempDir::new().unwrap();
    let start = || Server::start_at(folder.path(), free_port(), 1);
    let shown = |server: &Server| server.sql_ok("DESCRIBE QUERY q").to_string();
    // As long as it takes to kill it so often.
    let events = RATE * i64::from(kills.max(4) + 2);
    let mut server = start();
    server.sql_ok(&format!("CREATE SOURCE bids FROM 'nexmark:bid' WITH (events => {events}, rate => {RATE})"));
    server.sql_ok("CREATE SINK out TO 'file:out/' FORMAT JSON WITH (commit_interval => '300 ms')");
    server.sql_ok(&format!("CREATE {}", counted(1)));
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut replaced = 0;
    for kill in 0..kills {
        let is_last_try = kill + 1 == kills && replaced == 0;
        thread::sleep(Duration::from_millis(200 + random(&mut state) % 300));
        let (url, text) = (server.url(), format!("CREATE OR REPLACE {}", counted(kill + 2)));
        // Its answer may never come.
        let asked = thread::spawn(move || ureq::post(format!("{url}/api/v1/sql")).send(text).is_ok());
        thread::sleep(Duration::from_millis(random(&mut state) % 600));
        // On a busy machine none may be done so soon, and one has to be.
        let (asked, answered) = if is_last_try { (None, asked.join().unwrap()) } else { (Some(asked), false) };
        server.kill_9();
        let was_answered = asked.map_or(answered, |asked| asked.join().unwrap());
        server = start();
        let shown = shown(&server);
        let has_new = shown.contains(&format!("{} AS version", kill + 2));
        assert!(has_new || !was_answered, "what was answered counts: {shown}");
        assert!(!shown.contains("not running") && !shown.contains("failed"), "{shown}");
        replaced += u32::from(has_new);
    }
    println!("{replaced} of {kills} replacements counted");
    assert!(replaced > 0, "none counted, so nothing was tested");
    let deadline = Instant::now() + PATIENCE;
    while !shown(&server).contains("\"ended\"") {
        assert!(Instant::now() < deadline, "the query does not come to its end: {}", shown(&server));
        thread::sleep(Duration::from_millis(50));
    }
    drop(server);
    let (mut windows, mut bids) = (BTreeMap::<String, u32>::new(), 0);
    for line in lines(&folder.path().join("out")) {
        bids += line["n"].as_i64().unwrap();
        *windows.entry(format!("{} {}", line["auction"], line["window_end"])).or_default() += 1;
    }
    assert_eq!(json!(bids), json!(events / 50 * 46), "each bid is counted once");
    assert!(windows.values().all(|&times| times == 1), "each window came once");
}
