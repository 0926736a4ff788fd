//! Outputs of applications to HTTP, Kafka and files: what arrives, what waits, and that a receiver that does not answer
//! blocks no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use parking_lot::Mutex;
use rivulet::config::Config;
use rivulet::engine::Engine;
use rivulet::service::{Parameter, ParameterValue, QueryRequest};
use rivulet_connectors::connector::{Condition, ConnectorContext, Connectors, SourceSpec};
use rivulet_connectors::reach::Reach;
use rivulet_dataflow::{Polled, Refusals};
use serde_json::Value;
use tempfile::TempDir;

use super::checkpoints::on_demand;
use super::engine::{configuration, open};
use super::kafka_broker::Broker;
use super::outputs::refused;
use super::server::{Publisher, Server, free_port, rivulet, wait, wait_for};
use super::support::AsOperator;
use super::tables::said;

/// A request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) key: String,
    pub(crate) body: String,
    pub(crate) authorization: String,
}

/// A receiver of webhooks.
pub(crate) struct Receiver {
    pub(crate) port: u16,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
    /// It answers 503 as long as this is set.
    pub(crate) refuses: Arc<AtomicBool>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (requests, refuses) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::<AtomicBool>::default());
        let of_thread = (requests.clone(), refuses.clone());
        // It ends with the program: nobody waits for it.
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (requests, refuses) = of_thread.clone();
                thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    while let Some(request) = read(&mut stream) {
                        let status = match refuses.load(Ordering::Acquire) {
                            true => "503 Service Unavailable",
                            false => {
                                requests.lock().push(request);
                                "200 OK"
                            }
                        };
                        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, requests, refuses }
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().len()
    }

    /// Path and body of what came, by path; what came for one path is in its order.
    pub(crate) fn sorted(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.requests.lock().iter().map(|one| (one.path.clone(), one.body.clone())).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut key, mut authorization, mut length) = (String::new(), String::new(), 0);
    loop {
        line.clear();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => key = value.to_owned(),
            "authorization" => authorization = value.to_owned(),
            "content-length" => length = value.parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request { path, key, body: String::from_utf8(body).unwrap(), authorization })
}

fn opened(config: Config) -> Arc<Engine> {
    Engine::open(config).expect("an engine")
}

fn publish(engine: &Engine, events: &[(&str, &str)]) {
    let mut publisher = Publisher::connect(engine.embedded_broker_address().unwrap());
    events.iter().for_each(|(topic, payload)| publisher.publish(topic, payload));
}

fn application(output: &str) -> String {
    format!(
        "CREATE APPLICATION hooks (room TEXT) INPUT readings (n BIGINT) FROM 'mqtt:in/{{room}}' FORMAT JSON
         OUTPUT {output} AS SELECT n FROM readings WHERE n > 0"
    )
}

#[test]
fn results_are_posted_to_the_address_of_their_query() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let engine = opened(configuration(folder.path()));
    let port = receiver.port;
    let output = format!(
        "'http://127.0.0.1:{port}/hook/{{room}}?a=b' FORMAT JSON WITH (headers.authorization => 'Bearer secret', timeout => '5 s')"
    );
    said(&engine, &application(&output));
    said(&engine, "CREATE QUERY one FROM APPLICATION hooks WITH (room => 'a')");
    said(&engine, "CREATE QUERY other FROM APPLICATION hooks WITH (room => 'b & \u{fc}')");
    publish(&engine, &[("in/a", r#"{"n": 1}"#), ("in/b & \u{fc}", r#"{"n": 2}"#), ("in/a", r#"{"n": 3}"#)]);
    wait("all results", || receiver.count() == 3);
    let expected =
        [("/hook/a?a=b", r#"{"n":1}"#), ("/hook/a?a=b", r#"{"n":3}"#), ("/hook/b%20%26%20%C3%BC?a=b", r#"{"n":2}"#)];
    assert_eq!(receiver.sorted(), expected.map(|(path, body)| (path.to_owned(), body.to_owned())));
    let query = engine.query("one").unwrap();
    assert_eq!(query.output_topic, format!("http://127.0.0.1:{port}/hook/a?a=***"));
    let shown = engine.application("hooks").unwrap();
    assert!(!shown.sql.contains("secret") && shown.sql.contains("headers.authorization => '***'"), "{}", shown.sql);
    wait("it is counted", || engine.status().applications[0].health[0].rows == 3);
    let health = engine.status().applications[0].health[0].clone();
    assert_eq!((health.name.as_str(), health.condition, health.waiting_rows), ("output", Condition::Ok, 0));
    let metrics = engine.metrics();
    let line = "rivulet_output_delivered_rows_total{application=\"hooks\",output=\"output\"} 3";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

#[test]
fn rows_may_be_posted_together_to_one_address() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let engine = opened(configuration(folder.path()));
    let output = format!("'http://127.0.0.1:{}/all' FORMAT JSON WITH (batch_rows => 100)", receiver.port);
    said(&engine, &application(&output));
    for room in ["a", "b"] {
        said(&engine, &format!("CREATE QUERY {room} FROM APPLICATION hooks WITH (room => '{room}')"));
    }
    let events: Vec<String> = (1..=500).map(|n| format!("{{\"n\": {n}}}")).collect();
    let of_room = |n: usize| if n.is_multiple_of(2) { "in/a" } else { "in/b" };
    let events: Vec<(&str, &str)> = events.iter().enumerate().map(|(n, event)| (of_room(n), event.as_str())).collect();
    publish(&engine, &events);
    let rows = || -> Vec<Value> {
        let bodies = receiver.sorted();
        bodies.iter().flat_map(|(_, body)| serde_json::from_str::<Vec<Value>>(body).expect("an array")).collect()
    };
    wait("all rows", || rows().len() == 500);
    let mut numbers: Vec<i64> = rows().iter().map(|row| row["n"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=500).collect::<Vec<_>>());
}

#[test]
fn a_server_posts_to_no_address_that_it_may_not_reach() {
    let folder = TempDir::new().unwrap();
    let engine = opened(Config { reach: Reach::default(), ..configuration(folder.path()) });
    for host in ["127.0.0.1:9", "localhost", "[::1]:9", "169.254.169.254", "0.0.0.0:9"] {
        let error = refused(&engine, &application(&format!("'http://{host}/x' FORMAT JSON")));
        assert!(error.message.contains("out of reach"), "{host}: {error}");
        assert!(error.hint.is_some_and(|hint| hint.contains("hosts.allow")), "{host}");
        assert_eq!(error.line, Some(2));
        let sink = refused(&engine, &format!("CREATE SINK s TO 'http://{host}/x'"));
        assert!(sink.message.contains("out of reach"), "{host}: {sink}");
    }
    said(&engine, &application("'http:{hook}' FORMAT JSON").replace("(room TEXT)", "(room TEXT, hook TEXT)"));
    let query = |hook: &str| format!("CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a', hook => '{hook}')");
    for hook in ["http://127.0.0.1/x", "//localhost/x", "http://169.254.169.254/latest/meta-data", "https://[::1]/"] {
        let error = refused(&engine, &query(hook));
        assert!(error.message.contains("out of reach"), "{hook}: {error}");
        assert!(!error.message.contains("http:http:"), "{hook}: {error}");
    }
    for hook in ["ftp://example.org", "http://user@example.org/", "http:///x", "no host/x"] {
        let error = refused(&engine, &query(hook));
        assert!(error.hint.is_some(), "{hook}: {error}");
    }
    said(&engine, &query("https://hooks.example.org/x?y"));
    // What is no part of an address is refused too.
    let other = application("'http://hooks.example.org/{room}' FORMAT JSON").replace("hooks (", "others (");
    said(&engine, &other);
    for room in [".", ".."] {
        let error = refused(&engine, &format!("CREATE QUERY r FROM APPLICATION others WITH (room => '{room}')"));
        assert!(error.message.contains("would lead to another path"), "{error}");
    }
    let elsewhere = refused(&engine, &application("'file:{room}/' FORMAT JSON").replace("hooks (", "files ("));
    assert!(elsewhere.message.contains("an address of 'file:' has no parameters"), "{elsewhere}");
    let unknown = refused(&engine, &application("'htp://x' FORMAT JSON").replace("hooks (", "files ("));
    assert_eq!(unknown.hint.as_deref(), Some("did you mean 'http:'?"), "{unknown}");
    let option = refused(&engine, &application("'http://example.org/' FORMAT JSON WITH (timout => '1 s')"));
    assert!(option.hint.is_some_and(|hint| hint.contains("timeout")) && option.line == Some(2));
}

/// One of many queries has a receiver that takes connections and never answers.
#[test]
fn a_receiver_that_never_answers_holds_up_no_other_query() {
    const QUERIES: usize = 10_000;
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    // Connections wait in the kernel: nobody accepts them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let engine = opened(configuration(folder.path()));
    let hook = "CREATE APPLICATION hooks (room TEXT, hook TEXT) INPUT readings (n BIGINT) FROM 'mqtt:in' FORMAT JSON
                OUTPUT alarms 'http:{hook}' FORMAT JSON WITH (timeout => '1 s', connections => 4)
                OUTPUT seen 'mqtt:seen/{room}' FORMAT JSON WHEN n < 0
                AS SELECT n, $room AS room FROM readings";
    said(&engine, hook);
    let names: Vec<String> = (0..QUERIES).map(|n| format!("q{n}")).collect();
    for chunk in names.chunks(1_000) {
        let parameters: Vec<Vec<Parameter<'_>>> = chunk
            .iter()
            .map(|name| {
                let port = if name == "q7" { silent.local_addr().unwrap().port() } else { receiver.port };
                let hook = format!("http://127.0.0.1:{port}/{name}");
                [("room", name.clone()), ("hook", hook)]
                    .map(|(name, value)| (name.into(), ParameterValue::Text(value.into())))
                    .into()
            })
            .collect();
        let requests: Vec<QueryRequest<'_>> = chunk
            .iter()
            .zip(&parameters)
            .map(|(name, parameters)| QueryRequest { name: Some(name), application: "hooks", parameters, label: None })
            .collect();
        let answers: Result<Vec<_>, _> = engine.submit(&requests).into_iter().collect();
        answers.expect("queries");
    }
    for n in 1..=3 {
        publish(&engine, &[("in", &format!("{{\"n\": {n}}}"))]);
        wait_for(Duration::from_secs(120), "the results of all others", || receiver.count() == n * (QUERIES - 1));
    }
    let mut paths: Vec<String> = receiver.requests.lock().iter().map(|request| request.path.clone()).collect();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), QUERIES - 1, "each has its own");
    let health = || engine.status().applications[0].health[0].clone();
    wait("its rows wait", || health().condition != Condition::Ok && health().waiting_rows == 3);
    let problems = engine.problems();
    let told = |problem: &String| {
        problem.starts_with("the application 'hooks' runs, and the sink 'alarms' is ")
            && problem.contains("3 rows wait")
            && problem.ends_with("it is the receiver of the query 'q7'")
    };
    assert!(problems.iter().any(told), "{problems:?}");
    assert!(engine.ready().is_ok());
    let why = engine.operator().describe_query("q7").unwrap().why;
    assert!(why[0].starts_with("its results wait for their receiver: http://127.0.0.1:"), "{why:?}");
    assert!(why[0].contains("does not take rows: no answer within 1s; "), "{why:?}");
    let described = super::tables::run(&engine, "DESCRIBE APPLICATION hooks").unwrap().rows;
    let sink = described.iter().find(|row| row[0] == "sink alarms").unwrap_or_else(|| panic!("{described:?}"));
    assert!(sink[1].as_str().unwrap().contains("3 rows wait"), "{sink:?}");
    assert!(engine.operator().describe_query("q8").unwrap().why.iter().all(|why| !why.contains("receiver")));
    let metrics = engine.metrics();
    for line in [
        "rivulet_output_state{application=\"hooks\",output=\"alarms\",state=\"ok\"} 0".to_owned(),
        format!("rivulet_output_delivered_rows_total{{application=\"hooks\",output=\"alarms\"}} {}", 3 * (QUERIES - 1)),
        "rivulet_output_waiting_rows{application=\"hooks\",output=\"alarms\"} 3".to_owned(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    }
    // Topics go on as well.
    let mut listener = Publisher::connect(engine.embedded_broker_address().unwrap());
    listener.subscribe("seen/q8");
    publish(&engine, &[("in", r#"{"n": -1}"#)]);
    assert_eq!(listener.next().0, "seen/q8");
}

fn logged(output: &str) -> String {
    application(output).replace("FORMAT JSON\n", "FORMAT JSON WITH (durability => 'log')\n")
}

#[test]
fn what_a_receiver_has_not_taken_waits_through_a_restart_and_keeps_its_key() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let output = format!("'http://127.0.0.1:{}/{{room}}' FORMAT JSON", receiver.port);
    {
        let engine = opened(on_demand(folder.path()));
        said(&engine, &logged(&output));
        said(&engine, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')");
        publish(&engine, &[("in/a", r#"{"n": 1}"#), ("in/a", r#"{"n": 2}"#)]);
        wait("they are refused", || {
            let health = engine.status().applications[0].health[0].clone();
            health.condition == Condition::Retrying && health.waiting_rows == 2
        });
        // Nobody waits for the receiver: the log may go.
        said(&engine, "CHECKPOINT");
        engine.shutdown();
    }
    assert_eq!(receiver.count(), 0);
    let engine = opened(on_demand(folder.path()));
    publish(&engine, &[("in/a", r#"{"n": 3}"#)]);
    receiver.refuses.store(false, Ordering::Release);
    wait("all three", || receiver.count() == 3);
    let bodies: Vec<_> = receiver.sorted().into_iter().map(|(_, body)| body).collect();
    assert_eq!(bodies, [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#]);
    let keys: Vec<String> = receiver.requests.lock().iter().map(|request| request.key.clone()).collect();
    let number = |key: &str| key.rsplit('-').next().unwrap().to_owned();
    assert_eq!(keys.iter().map(|key| number(key)).collect::<Vec<_>>(), ["1", "2", "3"], "{keys:?}");
    // What was taken does not come again.
    said(&engine, "CHECKPOINT");
    engine.shutdown();
    drop(engine);
    let engine = opened(on_demand(folder.path()));
    publish(&engine, &[("in/a", r#"{"n": 4}"#)]);
    wait("the fourth", || receiver.count() >= 4);
    assert_eq!(receiver.count(), 4);
}

#[test]
fn what_gives_way_is_told_of_its_query_and_of_its_application() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let engine = opened(on_demand(folder.path()));
    said(&engine, &logged(&format!("'http://127.0.0.1:{}/{{room}}' FORMAT JSON", receiver.port)));
    let warns = |part: &str| engine.status().applications[0].warnings.iter().any(|one| one.contains(part));
    assert!(warns("of one that takes nothing at most 1,024 requests or 1 MiB wait"), "what is to be expected");
    for room in ["a", "b"] {
        said(&engine, &format!("CREATE QUERY {room} FROM APPLICATION hooks WITH (room => '{room}')"));
    }
    publish(&engine, &[("in/a", r#"{"n": 1}"#)]);
    let health = || engine.status().applications[0].health[0].clone();
    wait("it is refused", || health().condition != Condition::Ok);
    publish(&engine, &[("in/a", r#"{"n": 1}"#); 1_100]);
    wait_for(Duration::from_secs(120), "what is too much", || health().rejected_rows == 77);
    let why = |query: &str| engine.operator().describe_query(query).unwrap().why;
    let (of_a, of_b) = (why("a"), why("b"));
    assert!(of_a[0].starts_with("its results wait for their receiver: http://127.0.0.1:"), "{of_a:?}");
    assert!(of_a[0].ends_with(" waited for it when it was tried last"), "{of_a:?}");
    let left_out = "77 of its results were left out since the server was started; the last because more than 1,024 \
                    requests or 1 MiB wait for a receiver that takes nothing";
    assert!(of_a[1].starts_with(left_out), "{of_a:?}");
    assert!(of_a.iter().all(|one| !one.starts_with("it works")), "{of_a:?}");
    assert!(of_b.iter().all(|one| !one.contains("receiver") && !one.contains("left out")), "{of_b:?}");
    assert!(warns("since the start 'output' has left out 77 rows; its last error was: "));
    receiver.refuses.store(false, Ordering::Release);
    wait_for(Duration::from_secs(120), "it takes the rest", || health().condition == Condition::Ok);
    let of_a = why("a");
    assert!(of_a[0].starts_with(left_out) && of_a[1].starts_with("the last result was made "), "{of_a:?}");
}

/// What came after a backup is lost with the server. Results of what comes then are others, with the same numbers: a
/// receiver that drops repeats must not take them for these.
#[test]
fn results_since_a_restored_backup_have_keys_of_their_own() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let backup = folder.path().join("backup");
    {
        let engine = opened(on_demand(folder.path()));
        said(&engine, &logged(&format!("'http://127.0.0.1:{}/{{room}}' FORMAT JSON", receiver.port)));
        said(&engine, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')");
        publish(&engine, &[("in/a", r#"{"n": 1}"#)]);
        wait("the first", || receiver.count() == 1);
        said(&engine, "CHECKPOINT");
        engine.back_up().unwrap().write(&mut fs::File::create(&backup).unwrap()).unwrap();
        publish(&engine, &[("in/a", r#"{"n": 2}"#)]);
        wait("what the backup lacks", || receiver.count() == 2);
        engine.shutdown();
    }
    let elsewhere = TempDir::new().unwrap();
    let config = on_demand(elsewhere.path());
    let place = rivulet_storage::Place::Folder(config.data_dir.join("checkpoints"));
    rivulet::data_folder::archive::restore(&backup, &config.data_dir, &place).unwrap();
    let mut keys = BTreeSet::new();
    for n in 3..=4 {
        // A restart is none.
        let engine = opened(on_demand(elsewhere.path()));
        publish(&engine, &[("in/a", &format!("{{\"n\": {n}}}"))]);
        wait("what comes then", || receiver.count() == n);
        said(&engine, "CHECKPOINT");
        engine.shutdown();
        keys.extend(receiver.requests.lock().iter().map(|request| request.key.clone()));
    }
    assert_eq!(keys.len(), 4, "{keys:?}");
}

#[test]
fn a_new_version_leaves_nothing_behind() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let engine = opened(on_demand(folder.path()));
    let output = format!("'http://127.0.0.1:{}/{{room}}' FORMAT JSON", receiver.port);
    said(&engine, &logged(&output));
    said(&engine, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')");
    publish(&engine, &[("in/a", r#"{"n": 1}"#)]);
    wait("it is refused", || engine.status().applications[0].health[0].condition == Condition::Retrying);
    let next = logged(&output).replace("CREATE", "CREATE OR REPLACE").replace("n > 0", "n > 10");
    said(&engine, &next);
    publish(&engine, &[("in/a", r#"{"n": 2}"#), ("in/a", r#"{"n": 11}"#)]);
    receiver.refuses.store(false, Ordering::Release);
    wait("what the version before had, and the new one", || receiver.count() == 2);
    let mut bodies: Vec<_> = receiver.sorted().into_iter().map(|(_, body)| body).collect();
    bodies.sort();
    assert_eq!(bodies, [r#"{"n":11}"#, r#"{"n":1}"#].map(str::to_owned));
}

#[test]
fn an_output_with_another_name_delivers_what_waited_through_a_restart() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    receiver.refuses.store(true, Ordering::Release);
    let output = |name: &str| format!("{name} 'http://127.0.0.1:{}/{{room}}' FORMAT JSON", receiver.port);
    {
        let engine = opened(on_demand(folder.path()));
        said(&engine, &logged(&output("hook")));
        said(&engine, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')");
        publish(&engine, &[("in/a", r#"{"n": 1}"#)]);
        wait("it is refused", || engine.status().applications[0].health[0].condition == Condition::Retrying);
        said(&engine, &logged(&output("webhook")).replace("CREATE", "CREATE OR REPLACE"));
        publish(&engine, &[("in/a", r#"{"n": 2}"#)]);
        wait("it waits too", || engine.status().applications[0].health[0].waiting_rows == 1);
        said(&engine, "CHECKPOINT");
        engine.shutdown();
    }
    assert_eq!(receiver.count(), 0);
    let _engine = opened(on_demand(folder.path()));
    receiver.refuses.store(false, Ordering::Release);
    wait("both", || receiver.count() == 2);
    let mut bodies: Vec<_> = receiver.sorted().into_iter().map(|(_, body)| body).collect();
    bodies.sort();
    assert_eq!(bodies, [r#"{"n":1}"#, r#"{"n":2}"#]);
}

/// The lines of all files in a folder that are whole.
pub(crate) fn lines(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let is_whole = |path: &std::path::PathBuf| !path.file_name().unwrap().to_str().unwrap().starts_with('.');
    let texts = files.filter(is_whole).map(|path| fs::read_to_string(path).unwrap());
    let mut lines: Vec<String> = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.sort();
    lines
}

#[test]
fn results_go_into_files() {
    let folder = TempDir::new().unwrap();
    let results = folder.path().join("results");
    let output = format!("'file:{}/' FORMAT JSON WITH (commit_interval => '50 ms')", results.display());
    let of_two = |from: i64| {
        let events = [from, from + 1].map(|n| format!("{{\"n\": {n}}}"));
        events.map(|event| ("in/a", event))
    };
    let engine = opened(on_demand(folder.path()));
    let refused = refused(&engine, &application("'file:one.json' FORMAT JSON"));
    assert!(refused.hint.is_some_and(|hint| hint.contains("append => true")));
    said(&engine, &logged(&output));
    said(&engine, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')");
    let publish_two = |engine: &Engine, from: i64| {
        let events = of_two(from);
        publish(engine, &events.each_ref().map(|(topic, event)| (*topic, event.as_str())));
    };
    let rows = |count: usize| (1..=count).map(|n| format!("{{\"n\":{n}}}")).collect::<Vec<_>>();
    publish_two(&engine, 1);
    wait("they are processed", || engine.status().applications[0].results == 2);
    assert_eq!(lines(&results), rows(0), "files get their names with a checkpoint");
    wait("the file has its name", || {
        said(&engine, "CHECKPOINT");
        lines(&results) == rows(2)
    });
    publish_two(&engine, 3);
    wait("they are processed", || engine.status().applications[0].results == 4);
    engine.shutdown();
    drop(engine);
    assert_eq!(lines(&results), rows(4), "the last checkpoint has them");
    let engine = opened(on_demand(folder.path()));
    publish_two(&engine, 5);
    wait("they are processed", || engine.status().applications[0].results == 2);
    said(&engine, "DROP APPLICATION hooks CASCADE");
    wait("what was written before the end is there", || lines(&results) == rows(6));
}

#[test]
fn what_a_checkpoint_has_of_a_file_arrives_though_its_sink_fails_afterwards() {
    let folder = TempDir::new().unwrap();
    let results = folder.path().join("results");
    let engine = opened(on_demand(folder.path()));
    let output = format!("'file:{}/' FORMAT JSON WITH (partition_by => 'room')", results.display());
    said(&engine, &logged(&output).replace("SELECT n", "SELECT n, $room AS room"));
    for room in ["a", "b"] {
        said(&engine, &format!("CREATE QUERY {room} FROM APPLICATION hooks WITH (room => '{room}')"));
    }
    let health = || engine.status().applications[0].health[0].clone();
    publish(&engine, &[("in/a", r#"{"n": 1}"#)]);
    wait("it is processed", || engine.status().applications[0].results == 1);
    said(&engine, "CHECKPOINT");
    publish(&engine, &[("in/a", r#"{"n": 2}"#)]);
    wait("it is written", || health().rows + health().waiting_rows == 2);
    // No folder can be made there.
    fs::write(results.join("room=b"), "").unwrap();
    publish(&engine, &[("in/b", r#"{"n": 3}"#)]);
    wait("the sink fails", || health().condition != Condition::Ok);
    said(&engine, "CHECKPOINT");
    assert_eq!(health().rejected_rows, 1, "what no checkpoint has is counted");
    fs::remove_file(results.join("room=b")).unwrap();
    wait("the sink works again", || health().condition == Condition::Ok);
    assert_eq!((health().rejected_rows, health().waiting_rows), (1, 0));
    let why = engine.operator().describe_query("a").unwrap().why;
    assert!(why.iter().any(|one| one.starts_with("since the start 'output' has left out 1 row;")), "{why:?}");
    assert!(why.iter().all(|one| !one.starts_with("it works")), "{why:?}");
    engine.shutdown();
    assert_eq!(lines(&results.join("room=a")), [r#"{"n":1}"#], "what the checkpoint has");
    assert_eq!(lines(&results.join("room=b")), [r#"{"n":3}"#], "what waited");
}

#[test]
fn results_are_appended_to_a_file() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let file = folder.path().join("all.jsonl");
    said(&engine, &application(&format!("'file:{}' FORMAT JSON WITH (append => true)", file.display())));
    said(&engine, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')");
    publish(&engine, &[("in/a", r#"{"n": 1}"#), ("in/a", r#"{"n": 2}"#)]);
    wait("the lines", || fs::read_to_string(&file).is_ok_and(|text| text == "{\"n\":1}\n{\"n\":2}\n"));
}

/// What the connector `kafka` finds in a topic from its beginning to its end: key and `n` of each message, sorted.
pub(crate) fn in_topic(broker: &str, topic: &str) -> Vec<(String, i64)> {
    let fields = [Field::new("n", DataType::Int64, true), Field::new("key", DataType::Utf8, true)];
    let spec = SourceSpec {
        connector: "kafka".into(),
        address: format!("{broker}/{topic}"),
        format: None,
        schema: Arc::new(Schema::new(fields.to_vec())),
        columns: vec![0, 1],
        event_time_column: None,
        has_computed_time: false,
        options: vec![("bounded".into(), "true".into()), ("key_column".into(), "key".into())],
        host: ConnectorContext::of_user(),
        resume: None,
    };
    let mut rows = Vec::new();
    // A topic that is not there yet has nothing.
    for mut source in Connectors::OWN.open_source(&spec, 1).unwrap_or_default() {
        loop {
            match source.poll(100, 0, &mut Refusals::new(0)).unwrap() {
                Polled::Rows { columns, .. } => {
                    let (n, keys) =
                        (columns.column(0).as_primitive::<Int64Type>(), columns.column(1).as_string::<i32>());
                    rows.extend((0..columns.num_rows()).map(|row| (keys.value(row).to_owned(), n.value(row))));
                }
                Polled::Nothing(wait) | Polled::Aside(wait) => thread::sleep(wait),
                Polled::End => break,
            }
        }
    }
    rows.sort();
    rows
}

#[test]
fn results_go_to_a_topic_of_kafka_for_each_query() {
    let Some(broker) = Broker::start_or_skip() else { return };
    let folder = TempDir::new().unwrap();
    let engine = opened(on_demand(folder.path()));
    let output = format!("'kafka:{}/alerts-{{room}}' FORMAT JSON WITH (key => 'room')", broker.address);
    let exactly = output.replace("key => 'room'", "delivery => 'exactly_once'");
    assert!(refused(&engine, &application(&exactly)).message.contains("is for sinks of big queries"));
    let brokers = refused(&engine, &application("'kafka:{room}:9092/x' FORMAT JSON"));
    assert!(brokers.message.contains("the same for all queries"), "{brokers}");
    said(&engine, &logged(&output).replace("SELECT n", "SELECT n, $room AS room"));
    for room in ["a", "b"] {
        said(&engine, &format!("CREATE QUERY {room} FROM APPLICATION hooks WITH (room => '{room}')"));
    }
    assert!(
        refused(&engine, "CREATE QUERY c FROM APPLICATION hooks WITH (room => 'c d')").message.contains("topics are")
    );
    publish(&engine, &[("in/a", r#"{"n": 1}"#), ("in/b", r#"{"n": 2}"#), ("in/a", r#"{"n": 3}"#)]);
    let of = |room: &str, numbers: &[i64]| numbers.iter().map(|n| (room.to_owned(), *n)).collect::<Vec<_>>();
    wait_for(Duration::from_secs(300), "the messages of one", || {
        in_topic(&broker.address, "alerts-a") == of("a", &[1, 3])
    });
    wait_for(Duration::from_secs(300), "the messages of the other", || {
        in_topic(&broker.address, "alerts-b") == of("b", &[2])
    });
    // All are acknowledged, so that a checkpoint covers them.
    said(&engine, "CHECKPOINT");
    assert_eq!(engine.status().applications[0].health[0].waiting_rows, 0);
    engine.shutdown();
    drop(engine);
    let engine = opened(on_demand(folder.path()));
    publish(&engine, &[("in/b", r#"{"n": 4}"#)]);
    wait_for(Duration::from_secs(300), "it goes on", || in_topic(&broker.address, "alerts-b") == of("b", &[2, 4]));
}

#[test]
fn a_kafka_that_is_away_is_told_and_what_waits_for_it_is_saved() {
    let folder = TempDir::new().unwrap();
    let port = rivulet_testing_ports::free_port();
    let health = |engine: &Engine| engine.status().applications[0].health[0].clone();
    {
        let engine = opened(on_demand(folder.path()));
        said(&engine, &logged(&format!("'kafka:127.0.0.1:{port}/x-{{room}}' FORMAT JSON")));
        said(&engine, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')");
        publish(&engine, &[("in/a", r#"{"n": 1}"#)]);
        wait("it is known that nobody is there", || health(&engine).condition == Condition::Retrying);
        assert_eq!((health(&engine).rows, health(&engine).waiting_rows), (0, 1));
        let why = engine.operator().describe_query("q").unwrap().why;
        assert!(why[0].starts_with("its results do not arrive: the sink 'output' is retrying (1 row wait"), "{why:?}");
        assert!(why.iter().all(|one| !one.starts_with("it works")), "{why:?}");
        let described = engine.execute("DESCRIBE APPLICATION hooks").pop().unwrap().unwrap().rows;
        let retries = |row: &Vec<Value>| row[0] == "sink output" && row[1].to_string().contains("is retrying (1 row");
        assert!(described.iter().any(retries), "{described:?}");
        // A dead receiver keeps no events in the log that others share.
        wait_for(Duration::from_secs(300), "a checkpoint has it", || engine.checkpoint().is_ok());
        engine.shutdown();
    }
    let engine = opened(on_demand(folder.path()));
    wait("it waits again", || health(&engine).waiting_rows == 1);
}

/// The program is killed while results wait and while they are posted: each is posted at least once, and what comes
/// again has the key that it had.
#[test]
fn after_a_kill_each_result_is_posted() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let mqtt = free_port();
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned()),
        ("RIVULET_SINK_HTTP_ALLOW", "127.0.0.1".to_owned()),
    ];
    let start = || {
        let server = Server::spawn(folder.path(), mqtt, &settings);
        server.wait_until_ready();
        server
    };
    let mut server = start();
    let output = format!("'http://127.0.0.1:{}/{{room}}' FORMAT JSON", receiver.port);
    server.sql_ok(&logged(&output));
    server.sql_ok("CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')");
    let mut sent = 0;
    for round in 0..3 {
        receiver.refuses.store(round % 2 == 0, Ordering::Release);
        for _ in 0..20 {
            sent += 1;
            acknowledged(mqtt, "in/a", &format!("{{\"n\": {sent}}}"));
        }
        // Sometimes with a checkpoint in between, and sometimes not.
        thread::sleep(Duration::from_millis(700 * round));
        server.kill_9();
        server = start();
    }
    receiver.refuses.store(false, Ordering::Release);
    let numbers = || -> BTreeMap<i64, BTreeSet<String>> {
        let mut found = BTreeMap::<i64, BTreeSet<String>>::new();
        for request in receiver.requests.lock().iter() {
            let body: Value = serde_json::from_str(&request.body).unwrap();
            found.entry(body["n"].as_i64().unwrap()).or_default().insert(request.key.clone());
        }
        found
    };
    wait_for(Duration::from_secs(300), "all results", || numbers().len() == sent as usize);
    let twice: Vec<_> = numbers().into_iter().filter(|(_, keys)| keys.len() > 1).collect();
    assert!(twice.is_empty(), "results with several keys: {twice:?}");
}

/// Publishes with QoS 1, and waits for the acknowledgement: the event is in the log.
pub(crate) fn acknowledged(broker: SocketAddr, topic: &str, payload: &str) {
    let mut socket = TcpStream::connect(broker).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    socket.write_all(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00").unwrap();
    let body = [&(topic.len() as u16).to_be_bytes()[..], topic.as_bytes(), &[0, 1], payload.as_bytes()].concat();
    socket.write_all(&[&[0x32, u8::try_from(body.len()).unwrap()], &body[..]].concat()).unwrap();
    let mut answers = [0; 8];
    socket.read_exact(&mut answers).unwrap();
    assert_eq!(answers, [0x20, 2, 0, 0, 0x40, 2, 0, 1]);
}

#[test]
fn a_trial_shows_the_rows_and_sends_nothing() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let script = format!(
        "CREATE APPLICATION hooks (room TEXT, hook TEXT) INPUT readings (n BIGINT) FROM 'mqtt:in/{{room}}' FORMAT JSON
         OUTPUT own 'http:{{hook}}' FORMAT JSON WITH (timeout => '1 s')
         OUTPUT all 'http://127.0.0.1:{}/{{room}}' FORMAT JSON WHEN n > 1
         OUTPUT topics 'kafka:127.0.0.1:9/x-{{room}}' FORMAT JSON WHEN n > 2
         AS SELECT n FROM readings",
        receiver.port
    );
    fs::write(folder.path().join("app.sql"), &script).unwrap();
    fs::write(folder.path().join("events"), "{\"n\": 1}\n{\"n\": 3}\n").unwrap();
    let parameters = r#"{"room": "a", "hook": "http://127.0.0.1:1/x?y"}"#;
    let arguments = ["--json", "app", "test", "app.sql", "--input", "events", "--parameters", parameters];
    let done = rivulet().current_dir(folder.path()).args(arguments).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let lines = String::from_utf8(done.stdout).unwrap();
    let results: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let results = results.iter().filter(|one| one["kind"] == "result");
    let mut shown: Vec<(String, i64)> =
        results.map(|one| (one["topic"].as_str().unwrap().to_owned(), one["payload"]["n"].as_i64().unwrap())).collect();
    shown.sort();
    let of_all = format!("http://127.0.0.1:{}/a", receiver.port);
    let own = "http://127.0.0.1:1/x?y".to_owned();
    let mut expected = [(own.clone(), 1), (own, 3), (of_all, 3), ("kafka:127.0.0.1:9/x-a".to_owned(), 3)];
    expected.sort();
    assert_eq!(shown, expected);
    assert_eq!(receiver.count(), 0);
    let wrong = script.replace("timeout", "timout");
    fs::write(folder.path().join("app.sql"), wrong).unwrap();
    let done = rivulet().current_dir(folder.path()).args(arguments).output().unwrap();
    assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains("'timeout'"), "{done:?}");
}
