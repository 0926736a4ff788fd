//! Queries are altered while they run: nothing is lost or doubled, also after a crash.

use std::io::Cursor;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rivulet::api::types::{BulkOutcome, QueryAltered};
use rivulet::catalog::Catalog;
use rivulet::engine::Engine;
use rivulet::http_client::{Client, ClientError};
use rivulet::service::{ParameterValue, QueryChange, ServiceError};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checkpoints::on_demand;
use crate::server::{Publisher, Server, free_port, rivulet, wait};
use crate::support::AsOperator;

const SCRIPT: &str = "
    CREATE APPLICATION counts (home TEXT, low BIGINT, size BIGINT DEFAULT 3, output TEXT DEFAULT 'out')
    INPUT numbers (n BIGINT) FROM 'mqtt:in/{home}' FORMAT JSON
    OUTPUT 'mqtt:{output}/{home}' FORMAT JSON
    AS SELECT sum(n) AS total FROM numbers WHERE n > $low GROUP BY count_window($size)";

/// An engine that makes checkpoints only when it is asked to.
pub(crate) fn open(folder: &Path) -> Arc<Engine> {
    Engine::open(on_demand(folder)).expect("an engine")
}

/// What the last statement of a script has said.
pub(crate) fn run(engine: &Engine, script: &str) -> Result<String, ServiceError> {
    let answer = engine.execute(script).pop().expect("an answer");
    answer.map(|answer| answer.message.unwrap_or_default())
}

/// Who sends numbers, and reads what comes of them.
struct Numbers {
    listener: Publisher,
    publisher: Publisher,
}

impl Numbers {
    fn of(engine: &Engine) -> Self {
        let broker = engine.embedded_broker_address().expect("a broker");
        let mut listener = Publisher::connect(broker);
        listener.subscribe("out/#");
        listener.subscribe("other/#");
        Self { listener, publisher: Publisher::connect(broker) }
    }

    fn send(&mut self, home: &str, numbers: &[i64]) {
        numbers.iter().for_each(|n| self.publisher.publish(&format!("in/{home}"), &format!("{{\"n\": {n}}}")));
    }

    fn next(&mut self) -> (String, Value) {
        let (topic, result) = self.listener.next_json();
        (topic, result["total"].clone())
    }
}

/// Waits until all that was sent is processed.
fn settle(engine: &Engine, events: u64) {
    wait("the events to be processed", || engine.status().total.events >= events);
}

#[test]
fn a_threshold_keeps_state_and_a_length_begins_anew_and_the_answer_says_so() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        run(&engine, SCRIPT).expect("an application");
        run(&engine, "CREATE QUERY q FROM APPLICATION counts WITH (home => '1', low => 0)").expect("a query");
        let mut numbers = Numbers::of(&engine);
        numbers.send("1", &[1, 2]);
        settle(&engine, 2);
        let said = run(&engine, "ALTER QUERY q SET (low => 10)").expect("altered");
        assert_eq!(said, "query q altered; state is kept: low");
        numbers.send("1", &[3, 30]);
        assert_eq!(numbers.next(), ("out/1".into(), json!(33)), "1 and 2 from before, and 3 is too low");
        numbers.send("1", &[40]);
        settle(&engine, 5);
        let said = run(&engine, "ALTER QUERY q SET (size => 2, low => 0)").expect("altered");
        assert!(said.starts_with("query q altered; state is kept: low; state begins anew: size (window"), "{said}");
        numbers.send("1", &[1, 5]);
        assert_eq!(numbers.next().1, json!(6), "40 is forgotten with the window");
        let said = run(&engine, "ALTER QUERY q SET (size => 2)").expect("nothing");
        assert_eq!(said, "query q has these values already, nothing was done");
        numbers.send("1", &[7]);
        settle(&engine, 8);
        run(&engine, "ALTER QUERY q SET (output => 'other') LABEL 'home 1'").expect("altered");
        numbers.send("1", &[8]);
        assert_eq!(numbers.next(), ("other/1".into(), json!(15)));
        let info = engine.query("q").expect("it is there");
        assert_eq!(info.parameters["size"], json!(2));
        assert_eq!((info.label.as_deref(), info.output_topic.as_str()), (Some("home 1"), "other/1"));
        numbers.send("1", &[9]);
        settle(&engine, 10);
        engine.shutdown();
    }
    let engine = open(folder.path());
    let mut numbers = Numbers::of(&engine);
    numbers.send("1", &[10]);
    assert_eq!(numbers.next(), ("other/1".into(), json!(19)), "the same after a restart, with the state of before");
    run(&engine, "ALTER QUERY q SET (home => '2') LABEL NULL").expect("altered");
    numbers.send("1", &[100, 100]);
    numbers.send("2", &[1, 2]);
    assert_eq!(numbers.next(), ("other/2".into(), json!(3)), "another input topic");
    assert_eq!(engine.query("q").expect("it is there").label, None);
    run(&engine, "PAUSE QUERY q; ALTER QUERY q SET (home => '3')").expect("altered while it is paused");
    numbers.send("3", &[1]);
    numbers.publisher.wait_until_taken();
    run(&engine, "RESUME QUERY q").expect("it runs");
    numbers.send("3", &[20, 30]);
    assert_eq!(numbers.next(), ("other/3".into(), json!(50)));
}

#[test]
fn wrong_values_are_refused_where_they_stand() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, SCRIPT).expect("an application");
    run(&engine, "CREATE QUERY q FROM APPLICATION counts WITH (home => '1', low => 0)").expect("a query");
    for (statement, column, message, hint) in [
        ("ALTER QUERY q SET (loww => 1)", 20, "unknown parameter 'loww'", "did you mean 'low'?"),
        ("ALTER QUERY q SET (low => 'x')", 20, "'low' is BIGINT", ""),
        ("ALTER QUERY q SET (low => 1, size => 0)", 30, "the number of rows of the window", "count_window(100)"),
        ("ALTER QUERY q SET (home => NULL)", 20, "cannot be NULL", ""),
        ("ALTER QUERY q SET (home => 'a/#')", 0, "", ""),
        ("ALTER QUERY r SET (low => 1)", 13, "there is no query 'r'", "SHOW QUERIES"),
    ] {
        let error = run(&engine, statement).expect_err(statement);
        assert!(column == 0 || error.column == Some(column), "{statement}: {error:?}");
        let said = error.hint.unwrap_or_default();
        assert!(error.message.contains(message) && said.contains(hint), "{statement}: {} {said}", error.message);
    }
    assert_eq!(
        engine.query("q").expect("it is there").parameters,
        json!({"home": "1", "low": 0}).as_object().cloned().unwrap()
    );
}

#[test]
fn equal_queries_part_when_one_of_them_is_altered() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, SCRIPT).expect("an application");
    for (query, output) in [("a", "out"), ("b", "other")] {
        let values = format!("home => '1', low => 0, output => '{output}'");
        run(&engine, &format!("CREATE QUERY {query} FROM APPLICATION counts WITH ({values})")).expect("a query");
    }
    let mut numbers = Numbers::of(&engine);
    numbers.send("1", &[1, 2]);
    settle(&engine, 4);
    run(&engine, "ALTER QUERY b SET (low => 5)").expect("altered");
    numbers.send("1", &[3]);
    assert_eq!(numbers.next(), ("out/1".into(), json!(6)));
    numbers.send("1", &[10]);
    assert_eq!(numbers.next(), ("other/1".into(), json!(13)), "with a copy of the state that they shared");
}

/// While numbers are sent to [`QUERIES`] queries of one topic, all that their WHERE lets through, gives them other
/// marks by `alter`, up to `marks`; one of the queries must have each number once, and the marks in order.
fn change_marks_while_events_come(marks: i64, alter: impl Fn(&Engine, i64)) {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let script = "CREATE APPLICATION marks (low BIGINT, mark BIGINT, name TEXT)
        INPUT numbers (n BIGINT) FROM 'mqtt:in/all' FORMAT JSON WITH (durability => 'log')
        OUTPUT 'mqtt:out/{name}' FORMAT JSON AS SELECT n, $mark AS mark FROM numbers WHERE n >= $low";
    run(&engine, script).expect("an application");
    for query in 0..QUERIES {
        let values = format!("low => 0, mark => 0, name => 'q{query}'");
        run(&engine, &format!("CREATE QUERY q{query} FROM APPLICATION marks WITH ({values})")).expect("a query");
    }
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(broker);
    listener.subscribe("out/q3");
    let is_done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut publisher = Publisher::connect(broker);
            let mut sent = 0;
            while !is_done.load(Ordering::Relaxed) {
                publisher.publish("in/all", &format!("{{\"n\": {sent}}}"));
                sent += 1;
                // No faster than the listener, which is sent nothing that it would not take.
                std::thread::sleep(Duration::from_micros(200));
            }
            // Behind the last change, by the same connection.
            publisher.publish("in/all", &format!("{{\"n\": {sent}}}"));
            sent
        });
        // Set also if an alteration fails: the scope waits for the sender.
        let altered = std::panic::catch_unwind(AssertUnwindSafe(|| (1..=marks).for_each(|mark| alter(&engine, mark))));
        is_done.store(true, Ordering::Relaxed);
        altered.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
        sender.join().expect("it sends")
    });
    let mut last = 0;
    for n in 0..=sent {
        let (_, payload) = listener.next();
        let result: Value = serde_json::from_slice(&payload).expect("JSON");
        let mark = result["mark"].as_i64().expect("a number");
        assert!(result["n"] == json!(n) && mark >= last, "{n} behind the mark {last}: {result}");
        last = mark;
    }
    assert_eq!(last, marks);
}

#[test]
fn each_event_counts_once_and_in_order_with_the_values_of_one_moment() {
    change_marks_while_events_come(40, |engine, mark| {
        // By which the query is found among those that read the topic, or not.
        let low = if mark % 3 == 0 { format!(", low => {}", -mark) } else { String::new() };
        run(engine, &format!("ALTER QUERY q3 SET (mark => {mark}{low})")).expect("altered");
    });
}

#[test]
fn no_event_is_lost_while_all_that_read_a_topic_are_found_by_other_keys() {
    let names: Vec<String> = (0..QUERIES).map(|query| format!("q{query}")).collect();
    change_marks_while_events_come(200, |engine, mark| {
        let parameters = [("mark".into(), ParameterValue::Int(mark)), ("low".into(), ParameterValue::Int(-mark))];
        let change = |name| QueryChange { name, parameters: &parameters, label: None, whole_of: None };
        let changes: Vec<QueryChange<'_>> = names.iter().map(|name| change(name)).collect();
        engine.operator().alter(&changes).into_iter().for_each(|answer| drop(answer.expect("altered")));
    });
}

#[test]
fn a_query_that_is_named_often_in_one_call_is_written_once() {
    const TIMES: i64 = 500;
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, SCRIPT).expect("an application");
    for query in ["a", "b"] {
        let values = format!("home => '{query}', low => 0");
        run(&engine, &format!("CREATE QUERY {query} FROM APPLICATION counts WITH ({values})")).expect("a query");
    }
    let values = |home: &str, low: i64, size: i64| {
        let text = |text: &str| ParameterValue::Text(text.to_owned().into());
        vec![
            ("home".into(), text(home)),
            ("low".into(), ParameterValue::Int(low)),
            ("size".into(), ParameterValue::Int(size)),
        ]
    };
    // The last that fit count: a window has no negative length.
    let mut all: Vec<_> = (1..=TIMES).map(|low| values("a", low, 3)).collect();
    all.push(values("a", TIMES + 1, -1));
    let of_b = values("b", 7, 3);
    let change = |name, parameters| QueryChange { name, parameters, label: Some(None), whole_of: Some("counts") };
    let mut changes: Vec<QueryChange<'_>> = all.iter().map(|values| change("a", values)).collect();
    changes.insert(3, change("b", &of_b));
    let answers = engine.operator().alter(&changes);
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1, "{:?}", answers.last());
    let effect = |place: usize| answers[place].as_ref().expect("altered").effect.clone().expect("a change");
    assert!([0, 3, 400].into_iter().all(|place| effect(place).state_kept == ["low"]), "each is answered");
    let mut numbers = Numbers::of(&engine);
    numbers.send("a", &[TIMES, TIMES + 1, TIMES + 2, TIMES + 3]);
    assert_eq!(numbers.next(), ("out/a".into(), json!(3 * TIMES + 6)));
    // One behind the other, what is not said of one stays as the one before has set it.
    let (low, size) = ([("low".into(), ParameterValue::Int(1))], [("size".into(), ParameterValue::Int(2))]);
    let part = |parameters| QueryChange { name: "a", parameters, label: None, whole_of: None };
    let answers = engine.operator().alter(&[part(&low), part(&size)]);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    numbers.send("a", &[1, 2, 3]);
    assert_eq!(numbers.next(), ("out/a".into(), json!(5)));
    drop(numbers);
    engine.shutdown();
    drop(engine);
    let catalog = Catalog::open(&folder.path().join("data")).expect("a catalog");
    // A restart has to know the values of before only where state begins anew: no events come again.
    assert_eq!(catalog.alterations().expect("they can be read").len(), 1);
}

#[test]
fn a_threshold_that_changed_since_the_last_checkpoint_goes_on_with_the_saved_state() {
    let folder = TempDir::new().expect("a folder");
    {
        let mut server = start(folder.path());
        server.sql_ok(SCRIPT);
        // Two that share a slot, two that do not, and will be equal.
        for (query, low) in [("a", 0), ("b", 0), ("c", 5), ("d", 6)] {
            server.sql_ok(&format!(
                "CREATE QUERY {query} FROM APPLICATION counts WITH (home => '1', low => {low}, output => '{query}')"
            ));
        }
        let mut publisher = Publisher::connect(server.mqtt);
        [1, 6].into_iter().for_each(|n| publisher.publish("in/1", &format!("{{\"n\":{n}}}")));
        wait("the events", || server.status()["total"]["events"].as_u64() >= Some(8));
        server.sql_ok("CHECKPOINT; ALTER QUERY b SET (low => 5); ALTER QUERY c SET (low => 6)");
        server.kill_9();
    }
    let server = start(folder.path());
    let mut listener = Publisher::connect(server.mqtt);
    ["a", "b", "c", "d"].into_iter().for_each(|query| listener.subscribe(&format!("{query}/1")));
    let mut publisher = Publisher::connect(server.mqtt);
    // As before the change, a has 1 and 6, b has them too, c has 6, and d has nothing.
    let mut totals = std::collections::BTreeMap::new();
    for n in [3, 10, 20, 30] {
        publisher.publish("in/1", &format!("{{\"n\":{n}}}"));
    }
    while totals.len() < 4 {
        let (topic, payload) = listener.next_json();
        totals.entry(topic).or_insert(payload["total"].clone());
    }
    let expected = [("a", 1 + 6 + 3), ("b", 1 + 6 + 10), ("c", 6 + 10 + 20), ("d", 10 + 20 + 30)];
    let expected = expected.map(|(query, total)| (format!("{query}/1"), json!(total)));
    assert_eq!(totals, expected.into_iter().collect());
}

#[test]
fn how_long_rows_are_waited_for_changes_and_open_windows_stay() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let script = "CREATE APPLICATION sums (home TEXT)
        INPUT numbers (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{home}' FORMAT JSON
        WITH (idle_timeout => INTERVAL '1 day')
        OUTPUT 'mqtt:out/{home}' FORMAT JSON
        AS SELECT sum(n) AS total FROM numbers GROUP BY tumble(ts, INTERVAL '10 seconds')";
    run(&engine, script).expect("an application");
    run(&engine, "CREATE QUERY q FROM APPLICATION sums WITH (home => '1')").expect("a query");
    let mut numbers = Numbers::of(&engine);
    let send = |numbers: &mut Numbers, rows: &[(i64, i64)]| {
        let publish = |(second, n): &(i64, i64)| {
            numbers.publisher.publish("in/1", &format!("{{\"ts\": {}, \"n\": {n}}}", second * 1000));
        };
        rows.iter().for_each(publish);
    };
    send(&mut numbers, &[(1, 1), (9, 2)]);
    settle(&engine, 2);
    let said = run(&engine, "ALTER APPLICATION sums SET (lateness => INTERVAL '5 seconds')").expect("altered");
    assert_eq!(said, "application sums replaced, 1 query goes on");
    send(&mut numbers, &[(12, 10), (5, 4), (16, 20)]);
    assert_eq!(numbers.next().1, json!(7), "what came before counts, and so does what is late by the former option");
    settle(&engine, 5);
    run(&engine, "ALTER APPLICATION sums SET (lateness => NULL, idle_timeout => INTERVAL '1 hour')").expect("altered");
    send(&mut numbers, &[(20, 0)]);
    assert_eq!(numbers.next().1, json!(30), "nothing is waited for any more");
}

#[test]
fn options_of_an_application_change_without_a_new_text() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, SCRIPT).expect("an application");
    run(&engine, "CREATE QUERY q FROM APPLICATION counts WITH (home => '1', low => 0)").expect("a query");
    let mut numbers = Numbers::of(&engine);
    numbers.send("1", &[1, 2]);
    settle(&engine, 2);
    let statement = "ALTER APPLICATION counts SET (overflow => 'drop_oldest', idle_timeout => INTERVAL '2 seconds')";
    assert_eq!(run(&engine, statement).expect("altered"), "application counts replaced, 1 query goes on");
    let said = run(&engine, statement).expect("nothing");
    assert_eq!(said, "application counts has these options already, nothing was done");
    numbers.send("1", &[3]);
    assert_eq!(numbers.next().1, json!(6), "with its state");
    let error = run(&engine, "ALTER APPLICATION counts SET (latenes => '1 s')").expect_err("no such option");
    assert_eq!((error.column, error.hint.as_deref()), (Some(31), Some("did you mean 'lateness'?")), "{error:?}");
    let error =
        run(&engine, "ALTER APPLICATION counts SET (late => 'mqtt:late', lateness => 'soon')").expect_err("text");
    assert_eq!((error.column, error.message.contains("lateness")), (Some(52), true), "{error:?}");
    let error = run(&engine, "ALTER APPLICATION count SET (lateness => '1 s')").expect_err("no such application");
    assert_eq!((error.column, error.hint.as_deref()), (Some(19), Some("did you mean 'counts'?")), "{error:?}");
}

const DURABLE: &str = "
    CREATE APPLICATION totals (low BIGINT, name TEXT)
    INPUT readings (n BIGINT) FROM 'mqtt:in/all' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:out/{name}' FORMAT JSON
    AS SELECT sum(n) AS total FROM readings WHERE n > $low GROUP BY count_window(8);
    CREATE APPLICATION sized (home TEXT, size BIGINT, name TEXT)
    INPUT readings (n BIGINT) FROM 'mqtt:in/{home}' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:out/{name}' FORMAT JSON
    AS SELECT sum(n) AS total FROM readings GROUP BY count_window($size);";

fn start(folder: &Path) -> Server {
    let server = Server::start_at(folder, free_port(), 0);
    wait("the end of the replay", || server.status()["log"]["is_replaying"] != json!(true));
    server
}

/// Sends a number, and waits until it is on disk.
fn send(server: &Server, topic: &str, n: i64) {
    let durable = || server.status()["log"]["durable"].as_u64().unwrap_or(0);
    let before = durable();
    Publisher::connect(server.mqtt).publish(topic, &format!("{{\"n\":{n}}}"));
    wait("an event in the log", || durable() > before);
}

/// More than share the decoding of their topic.
const QUERIES: usize = 20;

#[test]
fn events_of_before_a_change_are_replayed_with_the_values_of_before() {
    let folder = TempDir::new().expect("a folder");
    {
        let mut server = start(folder.path());
        server.sql_ok(DURABLE);
        for query in 0..QUERIES {
            server
                .sql_ok(&format!("CREATE QUERY q{query} FROM APPLICATION totals WITH (low => 0, name => 'q{query}')"));
        }
        server.sql_ok("CREATE QUERY sized FROM APPLICATION sized WITH (home => 'a', size => 4, name => 'sized')");
        server.sql_ok("CREATE QUERY moved FROM APPLICATION sized WITH (home => 'a', size => 3, name => 'moved')");
        server.sql_ok("CHECKPOINT");
        send(&server, "in/all", 1);
        send(&server, "in/a", 1);
        server.sql_ok("ALTER QUERY q1 SET (low => 5); ALTER QUERY q2 SET (low => 5)");
        server.sql_ok("ALTER QUERY sized SET (size => 2); ALTER QUERY moved SET (home => 'b')");
        send(&server, "in/all", 2);
        send(&server, "in/all", 10);
        send(&server, "in/a", 10);
        send(&server, "in/b", 20);
        server.sql_ok("ALTER QUERY q1 SET (low => 0)");
        send(&server, "in/all", 3);
        server.kill_9();
    }
    // Killed twice: the first start replays and saves nothing either.
    let mut server = start(folder.path());
    server.kill_9();
    drop(server);
    let server = start(folder.path());
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("out/#");
    let mut totals = std::collections::BTreeMap::new();
    let mut take = |listener: &mut Publisher| {
        let (topic, payload) = listener.next();
        let total = serde_json::from_slice::<Value>(&payload).expect("JSON")["total"].as_i64().expect("a number");
        let name = topic.strip_prefix("out/").expect("a topic of a result").to_owned();
        assert_eq!(totals.insert(name.clone(), total), None, "{name} gives one result");
    };
    send(&server, "in/a", 100);
    take(&mut listener);
    send(&server, "in/b", 200);
    send(&server, "in/b", 400);
    take(&mut listener);
    for n in [101, 102, 103, 104, 105, 106] {
        send(&server, "in/all", n);
    }
    (0..QUERIES).for_each(|_| take(&mut listener));
    let (rest, all) = (101 + 102 + 103 + 104, 1 + 2 + 10 + 3);
    let mut expected: std::collections::BTreeMap<String, i64> =
        (0..QUERIES).map(|query| (format!("q{query}"), all + rest)).collect();
    expected.insert("q1".into(), 1 + 10 + 3 + rest + 105);
    expected.insert("q2".into(), 1 + 10 + rest + 105 + 106);
    expected.insert("sized".into(), 110);
    expected.insert("moved".into(), 620);
    assert_eq!(totals, expected);
}

#[test]
fn what_is_saved_behind_a_change_is_not_begun_anew_by_a_restart() {
    let folder = TempDir::new().expect("a folder");
    {
        let mut server = start(folder.path());
        server.sql_ok(SCRIPT);
        server.sql_ok("CREATE QUERY q FROM APPLICATION counts WITH (home => '1', low => 0)");
        let mut publisher = Publisher::connect(server.mqtt);
        let mut send = |n| {
            let events = || server.status()["total"]["events"].as_u64().unwrap_or(0);
            let before = events();
            publisher.publish("in/1", &format!("{{\"n\":{n}}}"));
            wait("an event", || events() > before);
        };
        send(1);
        server.sql_ok("CHECKPOINT; ALTER QUERY q SET (size => 2)");
        send(2);
        server.sql_ok("CHECKPOINT");
        server.kill_9();
    }
    let server = start(folder.path());
    let mut results = server.watch("q");
    Publisher::connect(server.mqtt).publish("in/1", "{\"n\":4}");
    assert_eq!(results.next().expect("a result")["total"], json!(6));
    // Where nothing was saved behind the change, what was saved before it is not taken for state of the new window.
    server.sql_ok("ALTER QUERY q SET (size => 3)");
    drop(results);
    drop(server);
    let server = start(folder.path());
    let mut results = server.watch("q");
    let mut publisher = Publisher::connect(server.mqtt);
    [10, 20, 30].into_iter().for_each(|n| publisher.publish("in/1", &format!("{{\"n\":{n}}}")));
    assert_eq!(results.next().expect("a result")["total"], json!(60));
}

#[test]
fn values_change_over_http_one_by_one_and_in_bulk_and_from_the_command_line() {
    let folder = TempDir::new().expect("a folder");
    let server = start(folder.path());
    server.sql_ok(SCRIPT);
    server.sql_ok("CREATE QUERY q FROM APPLICATION counts WITH (home => '1', low => 0)");
    let client = Client::new(&server.url()).expect("a client");
    let altered: QueryAltered =
        client.patch_json("/api/v1/queries/q", &json!({"parameters": {"low": 4, "size": 2}})).expect("altered");
    assert_eq!((altered.name.as_str(), altered.changed), ("q", true));
    assert_eq!((altered.state_kept, altered.state_reset), (vec!["low".to_owned()], vec!["size".to_owned()]));
    assert_eq!(altered.begun_anew.len(), 1);
    let again: QueryAltered =
        client.patch_json("/api/v1/queries/q", &json!({"parameters": {"low": 4}})).expect("nothing");
    assert!(!again.changed);
    let error = client.patch_json::<QueryAltered>("/api/v1/queries/q", &json!({"parameters": {"lo": 4}}));
    let Err(ClientError::Refused(error)) = error else { panic!("{error:?}") };
    assert_eq!(error.hint.as_deref(), Some("did you mean 'low'?"));

    let line = |home: usize, low: i64| {
        format!(
            "{{\"name\":\"home_{home}\",\"application\":\"counts\",\"parameters\":{{\"home\":\"{home}\",\"low\":{low}}}}}\n"
        )
    };
    let bulk = |lines: String| {
        let mut counts = [0; 4];
        client
            .submit_bulk(Cursor::new(lines), true, |answer| {
                counts[match answer.outcome {
                    Some(BulkOutcome::Created) => 0,
                    Some(BulkOutcome::Changed) => 1,
                    Some(BulkOutcome::Unchanged) => 2,
                    None => 3,
                }] += 1;
                Ok::<_, ClientError>(())
            })
            .expect("answers");
        counts
    };
    assert_eq!(bulk((0..10_000).map(|home| line(home, 1)).collect()), [10_000, 0, 0, 0]);
    assert_eq!(bulk((0..12_000).map(|home| line(home, (home % 2) as i64)).collect()), [2_000, 5_000, 5_000, 0]);
    let wrong = line(7, 5).replace("low", "lwo") + &line(7, 6) + &line(7, 7) + &line(8, 0);
    assert_eq!(bulk(wrong), [0, 2, 1, 1], "a line that is wrong harms only itself");
    let shown: Value = client.get("/api/v1/queries/home_7", &[]).expect("a query");
    assert_eq!(shown["parameters"]["low"], json!(7));

    // Which of them begin anew, and why.
    let sized = |home: usize, low: i64| line(home, low).replace("\"low\"", "\"size\":5,\"low\"");
    let lines = sized(10, 1) + &sized(11, 1) + &line(12, 9) + &line(13, 1).replace("\"home\":\"13\"", "\"home\":\"x\"");
    let file = folder.path().join("lines.ndjson");
    std::fs::write(&file, lines + &line(14, 1).replace(":1}", ":null}")).expect("written");
    let bulk_of = |arguments: &[&str]| {
        let bulk = ["query", "bulk", "--replace-existing", "--server", &server.url(), &file.display().to_string()];
        let output = rivulet().args(bulk).args(arguments).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (answers, _) = bulk_of(&["--json"]);
    let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |field: &str| answers.iter().map(|answer| answer[field].clone()).collect::<Vec<Value>>();
    assert_eq!(of("state_reset"), [json!(["size"]), json!(["size"]), Value::Null, json!(["home"]), Value::Null]);
    assert!(answers[0]["begun_anew"][0].as_str().is_some_and(|what| what.starts_with("window")), "{}", answers[0]);
    assert!(answers[4]["warning"].as_str().is_some_and(|what| what.contains("NULL")), "{}", answers[4]);
    std::fs::write(&file, (10..14).map(|home| line(home, 3)).collect::<String>()).expect("written");
    let (_, said) = bulk_of(&[]);
    let told: Vec<&str> = said.lines().collect();
    assert!(told[0].starts_with("0 queries created, 4 changed, 0 unchanged, 0 refused"), "{said}");
    let why: Vec<&str> = told[1..].iter().map(|line| line.split(" (").next().expect("text")).collect();
    assert_eq!(why, ["state begins anew because of home, low", "state begins anew because of size"], "{said}");
    assert!(told[1].ends_with("): 1 query") && told[2].ends_with("): 2 queries"), "{said}");

    let set = |arguments: &[&str]| {
        let output = rivulet().args(["query", "set"]).args(arguments).args(["--server", &server.url()]).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (_, said) = set(&["home_8", "low=3", "size=5"]);
    assert!(
        said.contains("query home_8 is altered\nstate kept: low\nstate reset: size\nbegins anew: window"),
        "{said}"
    );
    let (json, _) = set(&["home_8", "low=3", "--label", "home 8", "--json"]);
    let answer: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((answer["changed"].clone(), answer["state_reset"].clone()), (json!(true), json!([])));
    let shown: Value = client.get("/api/v1/queries/home_8", &[]).expect("a query");
    assert_eq!((shown["parameters"]["size"].clone(), shown["label"].clone()), (json!(5), json!("home 8")));

    let names = |queries: &Value| -> Vec<String> {
        let names = queries.as_array().expect("a list").iter().filter_map(|query| query["name"].as_str());
        names.map(str::to_owned).collect()
    };
    set(&["home_9", "--label", "home 8"]);
    let page: Value = client.get("/api/v1/queries", &[("label", "home 8"), ("limit", "1")]).expect("a page");
    assert_eq!((names(&page["queries"]), page["next"].clone()), (vec!["home_8".into()], json!("home_8")));
    let next = [("label", "home 8"), ("limit", "1"), ("after", "home_8")];
    let page: Value = client.get("/api/v1/queries", &next).expect("a page");
    assert_eq!((names(&page["queries"]), page["next"].clone()), (vec!["home_9".into()], Value::Null));
    let list = ["query", "list", "--label", "home 8", "--json", "--server", &server.url()];
    let listed = rivulet().args(list).output().expect("it runs");
    assert_eq!(names(&serde_json::from_slice(&listed.stdout).expect("JSON")), ["home_8", "home_9"]);
}

/// The recipe, with two limits: what was told is not told again, and is over by the new limit.
#[test]
fn a_decision_stays_when_the_limit_by_which_it_was_made_changes() {
    let folder = TempDir::new().expect("a folder");
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    let root = Path::new(&package).join("../..");
    let recipe = std::fs::read_to_string(root.join("examples/recipes/over_limit.sql")).expect("the recipe");
    let ended = |listener: &mut Publisher| {
        let (topic, told) = listener.next_json();
        (topic, told["value"].as_f64().expect("a value"), told["alarm"].as_bool().expect("whether"))
    };
    let reading = |value: f64| format!("{{\"ts\": 1763712000000, \"value\": {value}}}");
    let topic = || "device/boiler/limit".to_owned();
    {
        let engine = open(folder.path());
        run(&engine, &recipe).expect("an application");
        // `lag` of a value and what `changed` remembers of one depend on a parameter that makes them.
        run(
            &engine,
            "CREATE APPLICATION steps (device TEXT, factor DOUBLE, most DOUBLE)
             INPUT readings (value DOUBLE) FROM 'mqtt:device/{device}/reading' FORMAT JSON
             OUTPUT 'mqtt:steps/{device}' FORMAT JSON
             AS SELECT value - lag(value) AS step, changed(value * $factor > $most) AS other FROM readings
                QUALIFY hysteresis(value, $most, $most) OR changed(round(value * $factor))",
        )
        .expect("an application");
        run(&engine, "CREATE QUERY boiler FROM APPLICATION over_limit WITH (device => 'boiler', most => 60)")
            .expect("a query");
        run(&engine, "CREATE QUERY step FROM APPLICATION steps WITH (device => 'b', factor => 2, most => 5)")
            .expect("a query");
        let said = run(&engine, "ALTER QUERY step SET (most => 7)").expect("altered");
        assert_eq!(said, "query step altered; state is kept: most");
        let said = run(&engine, "ALTER QUERY step SET (factor => 3)").expect("altered");
        assert!(said.starts_with("query step altered; state begins anew: factor (history"), "{said}");

        let broker = engine.embedded_broker_address().expect("a broker");
        let (mut listener, mut publisher) = (Publisher::connect(broker), Publisher::connect(broker));
        listener.subscribe("device/+/limit");
        let mut send = |value| publisher.publish("device/boiler/reading", &reading(value));
        send(50.0);
        send(65.0);
        assert_eq!(ended(&mut listener), (topic(), 65.0, true), "50 was not worth a word");
        let said = run(&engine, "ALTER QUERY boiler SET (most => 62)").expect("altered");
        assert_eq!(said, "query boiler altered; state is kept: most");
        send(66.0);
        send(61.0);
        assert_eq!(ended(&mut listener), (topic(), 61.0, false), "66 is over both limits, and was told");
        run(&engine, "ALTER QUERY boiler SET (most => 60)").expect("altered");
        send(61.5);
        assert_eq!(ended(&mut listener), (topic(), 61.5, true));
        engine.shutdown();
    }
    let engine = open(folder.path());
    run(&engine, "ALTER QUERY boiler SET (most => 62)").expect("altered");
    let broker = engine.embedded_broker_address().expect("a broker");
    let (mut listener, mut publisher) = (Publisher::connect(broker), Publisher::connect(broker));
    listener.subscribe("device/+/limit");
    publisher.publish("device/boiler/reading", &reading(61.5));
    assert_eq!(ended(&mut listener), (topic(), 61.5, false), "also behind a restart");
}
