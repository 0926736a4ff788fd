//! Big queries on a server: declared, run, shown, kept over restarts, dropped.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rivulet::api::types::{BigQueryCreated, BigQueryList, Query};
use rivulet::engine::Engine;
use rivulet::http_client::ClientError;
use rivulet::service::{ErrorKind, QueryFilter, QueryState, ServiceError, StatementResult};
use tempfile::TempDir;

use super::engine::{configuration, open};
use super::server::Publisher;
use super::support::{AsOperator, TestServer, wait_until};
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

/// How long a result waited for the end of its window is no time that the work took.
#[test]
fn the_wait_for_a_window_is_told_apart_from_latency() {
    const WAIT: Duration = Duration::from_millis(300);
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    let info = || engine.status().big_queries.remove(0);
    assert_eq!((info().window_wait.mean_us, info().latency.p50_us), (None, None));
    append(folder.path(), "{\"ts\":0,\"device\":\"a\",\"value\":30}\n");
    wait_until("the row is read", || info().rows_in == 1);
    std::thread::sleep(WAIT);
    append(folder.path(), "{\"ts\":20000,\"device\":\"a\",\"value\":30}\n");
    wait_until("a result is told of", || info().window_wait.results == 1 && info().latency.p50_us.is_some());
    let waited = info().window_wait;
    assert!(u128::from(waited.sum_us) >= WAIT.as_micros(), "{waited:?}");
    assert_eq!((waited.mean_us, waited.max_us), (Some(waited.sum_us), Some(waited.sum_us)));
    let told = property(&engine, "per_device", "wait for the end of a window, mean, us");
    assert_eq!(told, waited.sum_us.to_string());
    property(&engine, "per_device", "from arrival or end of window to sink, p50, us");
    let metrics = engine.metrics();
    assert!(metrics.contains("rivulet_big_query_window_results_total{query=\"per_device\"} 1"), "{metrics}");
    assert!(metrics.contains("rivulet_big_query_window_wait_seconds_total{query=\"per_device\"} "), "{metrics}");
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
        let described = run(&engine, &statement.replace("DROP", "DESCRIBE")).expect("described").rows;
        let value = |property: &str| described.iter().find(|row| row[0] == property).map(|row| row[1].to_string());
        let needed_by = value("needed by").expect("what needs it is said");
        assert!(needed_by.contains(word.trim_matches('\'')), "{needed_by}");
        assert!(value("sql").is_some_and(|sql| sql.contains("CREATE")), "{described:?}");
    }
    assert_eq!(refused(&engine, "DESCRIBE SINK nobody").hint.as_deref(), Some("SHOW SINKS lists them"));
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

/// A row of a device at a second.
fn reading(second: u64, device: &str) -> String {
    format!("{{\"ts\":{},\"device\":\"{device}\",\"value\":30}}\n", second * 1000)
}

#[test]
fn a_paused_query_asks_for_nothing_and_goes_on_with_what_it_had() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    let rows_read = |engine: &Engine| property(engine, "per_device", "rows read");
    append(folder.path(), &(reading(1, "a") + &reading(2, "a")));
    wait_until("both rows are read", || rows_read(&engine) == "2");
    assert_eq!(said(&engine, "PAUSE QUERY per_device"), "query per_device is paused");
    assert_eq!(said(&engine, "PAUSE QUERY per_device"), "query per_device is paused", "twice is once");
    append(folder.path(), &(reading(3, "a") + &reading(11, "b")));
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!((rows_read(&engine).as_str(), property(&engine, "per_device", "state").as_str()), ("2", "paused"));
    assert_eq!(said(&engine, "RESUME QUERY per_device"), "query per_device runs");
    wait_until("the rest is read", || rows_read(&engine) == "4");
    assert_eq!(property(&engine, "per_device", "state"), "running");
    wait_until("the window closes", || property(&engine, "per_device", "rows acknowledged by the sink") == "1");
    // With the end of the query the file is complete.
    said(&engine, "DROP QUERY per_device");
    let written = fs::read_to_string(folder.path().join("out.jsonl")).expect("the file");
    assert!(written.contains("\"readings\":3"), "what came before the pause counts: {written}");
}

#[test]
fn a_pause_outlives_a_restart() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    said(&engine, "PAUSE QUERY per_device");
    drop(engine);
    append(folder.path(), &reading(1, "a"));
    let engine = open(folder.path());
    assert_eq!(property(&engine, "per_device", "state"), "paused");
    assert_eq!(property(&engine, "per_device", "tasks"), "0", "nothing is open");
    assert!(run(&engine, "EXPLAIN QUERY per_device").is_ok(), "it can be explained all the same");
    let answer = said(&engine, "RESUME QUERY per_device");
    assert!(answer.starts_with("query per_device runs again, from its checkpoint"), "{answer}");
    wait_until("the row is read", || property(&engine, "per_device", "rows read") == "1");
    drop(engine);
    let engine = open(folder.path());
    assert_eq!(property(&engine, "per_device", "state"), "running", "the pause is over for good");
}

#[test]
fn an_error_that_ends_a_query_is_shown_and_resuming_tries_again() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let input = folder.path().join("in.jsonl");
    fs::write(&input, "{\"device\":\"a/b\",\"value\":1}\n").expect("a file");
    said(
        &engine,
        &format!(
            "CREATE SOURCE readings (device TEXT, value DOUBLE) FROM 'file:{}' FORMAT JSON WITH (follow => true)",
            input.display()
        ),
    );
    said(&engine, "CREATE SINK topics TO 'mqtt:out/{device}' FORMAT JSON");
    said(&engine, "CREATE QUERY publish AS SELECT device, value FROM readings INTO topics");
    let state = || property(&engine, "publish", "state");
    wait_until("it fails", || state() == "failed");
    let reason = property(&engine, "publish", "reason");
    assert!(reason.contains("the value of 'device': it contains a '/'") && reason.contains("on_bad_topic"), "{reason}");
    let shown = run(&engine, "SHOW QUERIES").expect("shown").rows;
    assert_eq!((shown[0][0].as_str(), shown[0][2].as_str()), (Some("publish"), Some("failed")));
    let status = engine.status().big_queries.remove(0);
    assert_eq!((status.state, status.tasks, status.reason.as_deref()), (QueryState::Failed, 0, Some(reason.as_str())));
    let error = refused(&engine, "PAUSE QUERY publish");
    assert_eq!(error.kind, ErrorKind::Conflict, "{error}");

    // It stays ended, with the reason, also after a restart.
    drop(engine);
    let engine = open(folder.path());
    let state = || property(&engine, "publish", "state");
    assert_eq!((state().as_str(), property(&engine, "publish", "reason")), ("failed", reason));
    assert!(run(&engine, "EXPLAIN QUERY publish").is_ok(), "it can be explained all the same");

    // What was wrong is put right.
    fs::write(&input, "{\"device\":\"b\",\"value\":1}\n").expect("a file");
    let answer = said(&engine, "RESUME QUERY publish");
    assert_eq!(answer, "query publish runs again, from the start of its sources");
    wait_until("the row is published", || property(&engine, "publish", "rows acknowledged by the sink") == "1");
    assert_eq!(state(), "running");
    drop(engine);
    let engine = open(folder.path());
    assert_eq!(property(&engine, "publish", "state"), "running", "the failure is over for good");
}

#[test]
fn values_in_the_address_of_a_receiver_are_not_shown() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    said(&engine, "CREATE SOURCE numbers FROM 'sensors:' WITH (rate => 1)");
    said(&engine, "CREATE SINK hook TO 'http://127.0.0.1:1/in?token=rose' FORMAT JSON");
    said(&engine, "CREATE QUERY posts AS SELECT device FROM numbers INTO hook");
    said(
        &engine,
        "CREATE APPLICATION copy (home TEXT) INPUT t (v BIGINT) FROM 'mqtt:in/{home}' FORMAT JSON
         OUTPUT 'http://127.0.0.1:1/{home}?token=rose' FORMAT JSON AS SELECT v FROM t",
    );
    said(&engine, "CREATE QUERY small FROM APPLICATION copy WITH (home => 'a')");
    for statement in
        ["EXPLAIN QUERY posts", "DESCRIBE SINK hook", "EXPLAIN APPLICATION copy", "SHOW APPLICATIONS", "SHOW QUERIES"]
    {
        let shown = format!("{:?}", run(&engine, statement).expect(statement).rows);
        assert!(!shown.contains("rose"), "{statement}: {shown}");
    }
}

#[test]
fn a_query_whose_source_is_not_there_at_the_start_is_tried_again() {
    let folder = TempDir::new().expect("a folder");
    let (input, away) = (folder.path().join("in.jsonl"), folder.path().join("away.jsonl"));
    fs::write(&input, "{\"n\":1}\n").expect("a file");
    // With checkpoints it would be known that the query had come to its end.
    let open = |folder: &Path| {
        let mut config = configuration(folder);
        config.checkpoint = None;
        Engine::open(config).expect("an engine")
    };
    let engine = open(folder.path());
    said(&engine, &format!("CREATE SOURCE numbers (n BIGINT) FROM 'file:{}'", input.display()));
    said(&engine, "CREATE SINK nowhere TO 'blackhole:'");
    said(&engine, "CREATE QUERY all_numbers AS SELECT n FROM numbers INTO nowhere");
    drop(engine);
    fs::rename(&input, &away).expect("moved away");
    let engine = open(folder.path());
    assert_eq!(property(&engine, "all_numbers", "state"), "not running");
    let reason = property(&engine, "all_numbers", "reason");
    assert!(reason.contains("in.jsonl") && reason.ends_with("it is tried again until it starts"), "{reason}");
    fs::rename(&away, &input).expect("moved back");
    wait_until("it runs to its end", || property(&engine, "all_numbers", "state") == "ended");
    assert_eq!(property(&engine, "all_numbers", "rows read"), "1");
}

#[test]
fn a_big_query_is_in_status_metrics_and_lists() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    append(folder.path(), &(reading(1, "a") + "no JSON\n" + &reading(12, "a")));
    wait_until("a window is written", || engine.status().big_queries[0].rows_out == 1);
    let shown = engine.status().big_queries.remove(0);
    assert_eq!((shown.name.as_str(), shown.state, shown.rows_in), ("per_device", QueryState::Running, 2));
    assert_eq!((shown.sources.as_slice(), shown.sink.as_str()), (&["readings".to_owned()][..], "counts"));
    assert_eq!(shown.refused, [("decode".to_owned(), 1)].into());
    assert!(shown.refusal.expect("one in words").contains("no JSON"));
    assert!(shown.latency.p99_us.is_some() && shown.tasks > 0 && shown.state_bytes > 0);
    assert_eq!(shown.watermark_us, Some(12_000_000), "no row is late by default");
    assert!(shown.watermark_lag_us.expect("it runs") > 1_000_000_000);

    let metrics = engine.metrics();
    for line in [
        "rivulet_big_query_rows_in_total{query=\"per_device\"} 2",
        "rivulet_big_query_rows_out_total{query=\"per_device\"} 1",
        "rivulet_big_query_refused_total{query=\"per_device\",reason=\"decode\"} 1",
        "rivulet_big_query_state{query=\"per_device\",state=\"running\"} 1",
        "rivulet_big_query_state{query=\"per_device\",state=\"failed\"} 0",
        "rivulet_big_query_watermark_seconds{query=\"per_device\"} 12.0",
        "rivulet_big_query_latency_seconds_count{query=\"per_device\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    }

    engine.create_application(COPY).expect("an application");
    said(
        &engine,
        "CREATE QUERY a_copy FROM APPLICATION copy WITH (id => 'a'); CREATE QUERY z_copy FROM APPLICATION copy WITH (id => 'z')",
    );
    let names = |filter: QueryFilter| engine.queries(&filter).into_iter().map(|one| one.name).collect::<Vec<_>>();
    let filter =
        |after: Option<&str>, limit| QueryFilter { after: after.map(str::to_owned), limit, ..QueryFilter::default() };
    assert_eq!(names(filter(None, 10)), ["a_copy", "per_device", "z_copy"], "small and big ones by name");
    assert_eq!(names(filter(None, 2)), ["a_copy", "per_device"]);
    assert_eq!(names(filter(Some("per_device"), 2)), ["z_copy"]);
    assert_eq!(names(QueryFilter { application: Some("copy".into()), ..filter(None, 10) }), ["a_copy", "z_copy"]);
    assert_eq!(names(QueryFilter { like: Some("per%".into()), ..filter(None, 10) }), ["per_device"]);
    let one = engine.query("per_device").expect("it is there");
    assert_eq!((one.id, one.big.expect("it is big").rows_in), (None, 2));
    assert!(engine.results("per_device").is_ok(), "it can be watched as any other");
}

const COPY: &str = "CREATE APPLICATION copy (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON \
                    OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n FROM numbers";

#[test]
fn small_and_big_queries_do_not_share_names() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine, folder.path());
    engine.create_application(COPY).expect("an application");
    let small = |name: &str| format!("CREATE QUERY {name} FROM APPLICATION copy WITH (id => 'a')");
    let big = |name: &str| format!("CREATE QUERY {name} AS SELECT device, 1 AS readings, ts FROM readings INTO counts");
    let error = refused(&engine, &small("per_device"));
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::AlreadyExists, "a big query 'per_device' exists"));
    said(&engine, &small("taken"));
    let error = refused(&engine, &big("taken"));
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::AlreadyExists, "a query 'taken' exists"));
    assert_eq!(refused(&engine, &big("query_7")).kind, ErrorKind::Invalid, "a generated name stays free");
    // A name is free again with its query, and where one could not be created.
    assert!(run(&engine, "CREATE QUERY other AS SELECT nonsense FROM readings INTO counts").is_err());
    said(&engine, &small("other"));
    said(&engine, "DROP QUERY per_device");
    said(&engine, &small("per_device"));
    drop(engine);
    let engine = open(folder.path());
    assert_eq!(refused(&engine, &big("per_device")).kind, ErrorKind::AlreadyExists, "also after a restart");
}

#[test]
fn what_cannot_be_opened_as_it_is_declared_is_refused_where_that_stands() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    for (statement, column, words) in [
        ("CREATE SOURCE s (a BIGINT) FROM 'ftp:x'", 33, "no connector 'ftp'"),
        ("CREATE SOURCE s (a BIGINT) FROM 'http:nope'", 33, "names no port"),
        ("CREATE SOURCE s (a BIGINT) FROM 'mqtt:x/+' WITH (foo => 1)", 50, "no option 'foo'"),
        ("CREATE SOURCE s (a BIGINT) FROM 'mqtt:x/+' WITH (level_columns => 'dev')", 50, "dev"),
        ("CREATE SOURCE s (a BIGINT) FROM 'mqtt:x/#/y'", 33, "mqtt"),
        ("CREATE SOURCE s (a BIGINT) FROM 'stdin:' FORMAT JSON", 33, "a server has none"),
        ("CREATE SINK k TO 'nexmark:bid'", 18, "no sink"),
        ("CREATE SINK k TO 'mqtt:a/+'", 18, "mqtt:a/+"),
        ("CREATE SINK k TO 'file:x'", 18, "does not tell by its ending"),
        ("CREATE SINK k TO 'file:x' FORMAT SMOKE", 34, "smoke"),
        ("CREATE SINK k TO 'file:/x.json'", 18, "outside of the folders"),
    ] {
        let error = refused(&engine, statement);
        assert_eq!(error.kind, ErrorKind::Invalid, "{statement}: {error:?}");
        assert!(error.message.contains(words) && (column == 0 || error.hint.is_some()), "{statement}: {error:?}");
        assert!(column == 0 || error.column == Some(column), "{statement}: {error:?}");
    }
    // What comes later, or is not there now, is no mistake of the declaration.
    said(&engine, "CREATE SOURCE s (a BIGINT) FROM 'file:not/there.json'");
    said(&engine, "CREATE SINK k TO 'mqtt:out/{a}'");
    // Of what was declared in another script, the place is that of the query.
    let error = refused(&engine, "\n\nCREATE QUERY q AS SELECT a FROM s INTO k");
    assert_eq!((error.line, error.column), (Some(3), Some(14)), "{error:?}");
    assert!(error.message.contains("not/there.json"), "{error:?}");
}

/// A receiver that takes connections and never answers.
fn stuck_query(engine: &Engine, overflow: &str) -> std::net::TcpListener {
    let receiver = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = receiver.local_addr().expect("an address").port();
    said(
        engine,
        &format!(
            "CREATE SOURCE flood (n BIGINT) FROM 'mqtt:flood/+' FORMAT JSON \
             WITH (queue_bytes_max => '4 KiB', overflow => '{overflow}')"
        ),
    );
    said(engine, &format!("CREATE SINK hook TO 'http:127.0.0.1:{port}/hook' WITH (timeout => '1 minute')"));
    said(engine, "CREATE QUERY stuck AS SELECT n FROM flood INTO hook");
    receiver
}

/// Publishes until the test is over, or the broker reads no more and then is gone.
fn flood(engine: &Engine) -> std::sync::Arc<std::sync::atomic::AtomicU64> {
    let mut publisher = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    let sent = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
    let counted = sent.clone();
    std::thread::spawn(move || {
        for n in 0..20_000_u64 {
            if !publisher.try_publish("flood/a", &format!("{{\"n\":{n}}}")) {
                return;
            }
            counted.store(n + 1, std::sync::atomic::Ordering::Release);
        }
    });
    sent
}

#[test]
fn a_query_that_holds_up_its_connection_is_named() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let _receiver = stuck_query(&engine, "block");
    flood(&engine);
    let reason = || engine.status().big_queries[0].reason.clone().unwrap_or_default();
    wait_until("it is said", || reason().contains("the connection that it reads by waits"));
    said(&engine, "PAUSE QUERY stuck");
    assert_eq!(reason(), "", "a pause lets the others go on");
}

#[test]
fn a_query_may_drop_what_it_has_no_room_for() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let _receiver = stuck_query(&engine, "drop_oldest");
    let sent = flood(&engine);
    wait_until("nobody waits", || sent.load(std::sync::atomic::Ordering::Acquire) == 20_000);
    said(&engine, "DROP QUERY stuck");
}

#[test]
fn lists_say_how_much_more_there_is() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    for number in 0..3 {
        said(&engine, &format!("CREATE SINK sink_{number} TO 'blackhole:'"));
    }
    let shown = |statement: &str| {
        let shown = run(&engine, statement).expect(statement);
        (shown.rows.len(), shown.message.unwrap_or_default())
    };
    assert_eq!(shown("SHOW SINKS"), (3, String::new()));
    assert_eq!(shown("SHOW SINKS LIMIT 1"), (1, "and 2 more; LIMIT says how many are shown".into()));
    engine.create_application(COPY).expect("an application");
    for number in 0..5 {
        said(&engine, &format!("CREATE QUERY c{number} FROM APPLICATION copy WITH (id => 'a')"));
    }
    assert_eq!(shown("SHOW QUERIES LIMIT 5"), (5, String::new()));
    assert_eq!(shown("SHOW QUERIES LIMIT 2"), (2, "and 3 more; LIMIT says how many are shown".into()));
    let filtered = shown("SHOW QUERIES FROM APPLICATION copy LIKE 'c%' LIMIT 2");
    assert_eq!(filtered, (2, "and more; LIMIT says how many are shown".into()));
}

#[test]
fn a_big_query_runs_by_every_policy_beside_applications() {
    for policy in rivulet_bench::policies::ALL.into_iter().chain(["congestion".parse().expect("a policy")]) {
        let folder = TempDir::new().expect("a folder");
        let mut config = configuration(folder.path());
        config.workers.policy = policy;
        let engine = Engine::open(config).expect("an engine");
        engine.create_application(COPY).expect("an application");
        said(&engine, "CREATE QUERY copied FROM APPLICATION copy WITH (id => 'a')");
        declare(&engine, folder.path());
        append(folder.path(), &(reading(1, "a") + &reading(2, "a") + &reading(11, "b")));
        wait_until("the rows are read", || property(&engine, "per_device", "rows read") == "3");
        said(&engine, "PAUSE QUERY per_device");
        append(folder.path(), &(reading(12, "b") + &reading(21, "a")));
        said(&engine, "RESUME QUERY per_device");
        wait_until("two windows close", || property(&engine, "per_device", "rows acknowledged by the sink") == "2");
        said(&engine, "DROP QUERY per_device");
        let written = fs::read_to_string(folder.path().join("out.jsonl")).expect("the file");
        assert_eq!(written.matches("\"readings\":2").count(), 2, "{policy:?}: {written}");
    }
}

#[test]
fn big_queries_have_routes_of_their_own_and_those_of_all_queries() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    said(&engine, "CREATE SOURCE numbers (n BIGINT) FROM 'mqtt:in/+' FORMAT JSON");
    said(&engine, "CREATE SINK nowhere TO 'blackhole:'");
    let server = TestServer::start(engine.clone());
    let client = server.client();
    let create = |sql: &str| client.post_text::<BigQueryCreated>("/api/v1/big-queries", sql);
    let list = || {
        let list: BigQueryList = client.get("/api/v1/big-queries", &[]).expect("a list");
        list.big_queries.into_iter().map(|one| (one.name, one.state)).collect::<Vec<_>>()
    };
    assert_eq!(list(), []);
    let created = create("CREATE QUERY big AS SELECT n FROM numbers INTO nowhere").expect("created");
    assert_eq!((created.message.as_str(), created.query.sink.as_str()), ("query big created", "nowhere"));
    assert_eq!(list(), [("big".to_owned(), QueryState::Running)]);
    let shown: Query = client.get("/api/v1/queries/big", &[]).expect("shown");
    assert_eq!(shown.big.expect("it is big").sources, ["numbers"]);
    client.post_empty("/api/v1/queries/big/pause").expect("paused");
    assert_eq!(list(), [("big".to_owned(), QueryState::Paused)]);
    client.post_empty("/api/v1/queries/big/resume").expect("resumed");
    assert_eq!(list(), [("big".to_owned(), QueryState::Running)]);
    let again = create("CREATE QUERY IF NOT EXISTS big AS SELECT n FROM numbers INTO nowhere").expect("there already");
    assert!(again.message.contains("exists"), "{}", again.message);
    let replaced = create("CREATE OR REPLACE QUERY big AS SELECT n + 1 AS n FROM numbers INTO nowhere");
    let replaced = replaced.expect("replaced");
    assert!(replaced.message.contains("replaced") && replaced.query.sql.contains("n + 1"), "{replaced:?}");
    for (wrong, kind) in [
        ("CREATE QUERY big AS SELECT n FROM numbers INTO nowhere", "already_exists"),
        ("CREATE QUERY q AS SELECT n FROM nobody INTO nowhere", "invalid"),
        ("CREATE SINK other TO 'blackhole:'", "invalid"),
        ("DROP QUERY big; DROP QUERY big", "invalid"),
        ("", "invalid"),
    ] {
        match create(wrong).expect_err(wrong) {
            ClientError::Refused(error) => assert_eq!(error.kind, kind, "{wrong}: {error:?}"),
            other => panic!("{other:?}"),
        }
    }
    client.delete("/api/v1/queries/big", &[]).expect("dropped");
    assert_eq!(list(), []);
    drop(server);
    engine.shutdown();
}
