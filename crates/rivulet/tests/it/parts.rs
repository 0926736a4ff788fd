//! Each part of the engine has a lock of its own. Changing, reading and saving everything at once ends without a
//! deadlock.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rivulet::engine::Engine;
use rivulet::service::{ErrorKind, Parameter, ParameterValue, QueryFilter, QueryRequest, QueryState};
use tempfile::TempDir;

use super::engine::open;
use super::server::Publisher;
use super::support::AsOperator;

/// How often each thread does what it does.
const ROUNDS: usize = 40;

/// How many queries read one topic, so that it is shared and not shared any more.
const QUERIES: usize = 20;

/// How long all of it may take.
const WAIT_MAX: Duration = Duration::from_secs(240);

/// An application whose queries all read one topic; with `table` it needs that.
fn application(name: &str, factor: usize, table: &str) -> String {
    let (column, join) = match table {
        "" => (factor.to_string(), String::new()),
        table => ("f.factor".to_owned(), format!("JOIN {table} AS f ON f.home = numbers.home")),
    };
    format!(
        "CREATE OR REPLACE APPLICATION {name} (home TEXT) INPUT numbers (home TEXT, n BIGINT) FROM 'mqtt:in/{{home}}' \
         FORMAT JSON OUTPUT 'mqtt:out/{{home}}' FORMAT JSON AS SELECT numbers.n * {column} AS n FROM numbers {join}"
    )
}

/// Runs a script. Others change the same, so it may be refused for that, but not for a defect.
fn run(engine: &Engine, script: &str) {
    for answer in engine.execute(script) {
        if let Err(error) = answer {
            assert!(error.kind != ErrorKind::Internal, "{script}: {error}");
        }
    }
}

/// What the threads do, each again and again.
fn work(engine: &Engine, table: &str, what: usize, round: usize) {
    match what {
        0 => run(engine, &application("shared", round, "")),
        1 => {
            let parameters: [Parameter<'_>; 1] = [("home".into(), ParameterValue::Text("a".into()))];
            let request = QueryRequest { name: None, application: "shared", parameters: &parameters, label: None };
            let names = engine.submit(&vec![request; QUERIES]).into_iter().flatten().map(|id| format!("query_{id}"));
            let names: Vec<String> = names.collect();
            names.iter().step_by(2).for_each(|name| _ = engine.pause(name));
            names.iter().step_by(4).for_each(|name| _ = engine.resume(name));
            names.iter().for_each(|name| _ = engine.drop_query(name));
        }
        2 => {
            run(
                engine,
                &format!(
                    "{}; CREATE QUERY IF NOT EXISTS of_table FROM APPLICATION of_table WITH (home => 'a')",
                    application("of_table", 0, "factors")
                ),
            );
            run(engine, "REFRESH TABLE factors");
            run(engine, "DROP TABLE factors");
            run(engine, "DROP APPLICATION of_table CASCADE");
        }
        3 => run(engine, table),
        4 => {
            let all = engine.queries(&QueryFilter { limit: 100, ..QueryFilter::default() });
            all.iter().for_each(|one| _ = engine.query(&one.name));
            engine.tables();
            engine.applications();
            engine.status();
        }
        5 => {
            engine.metrics();
            engine.checkpoint().expect("a checkpoint");
        }
        _ => {
            run(engine, "DROP APPLICATION brief CASCADE");
            run(engine, &application("brief", round, ""));
        }
    }
}

#[test]
fn everything_is_changed_read_and_saved_at_once() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("factors.csv");
    std::fs::write(&file, "home,factor\na,7\n").expect("a file");
    let table = format!(
        "CREATE TABLE factors (home TEXT, factor BIGINT) FROM 'file:{}' FORMAT CSV (header => true)",
        file.display()
    );
    let engine = open(folder.path());
    run(&engine, &application("shared", 1, ""));
    let (done, ends) = channel();
    for what in 0..7 {
        let (engine, table, done) = (engine.clone(), table.clone(), done.clone());
        thread::spawn(move || {
            (0..ROUNDS).for_each(|round| work(&engine, &table, what, round));
            done.send(what).expect("a test that waits");
        });
    }
    drop(done);
    let mut left: Vec<usize> = (0..7).collect();
    while !left.is_empty() {
        let what = ends.recv_timeout(WAIT_MAX).unwrap_or_else(|_| panic!("no end of {left:?}"));
        left.retain(|other| *other != what);
    }

    // What is left works, also after a restart.
    run(&engine, &format!("{table}; DROP APPLICATION of_table CASCADE"));
    run(&engine, &application("of_table", 0, "factors"));
    run(&engine, "CREATE QUERY last FROM APPLICATION of_table WITH (home => 'a')");
    let filter = QueryFilter { limit: 100, ..QueryFilter::default() };
    assert_eq!(names(&engine, &filter), ["last"], "the others were dropped");
    engine.shutdown();
    drop(engine);
    let engine = open(folder.path());
    assert_eq!(names(&engine, &filter), ["last"]);
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(broker);
    listener.subscribe("out/a");
    Publisher::connect(broker).publish("in/a", "{\"home\": \"a\", \"n\": 6}");
    assert_eq!(String::from_utf8(listener.next().1).expect("text"), "{\"n\":42}");
}

/// The queries that run.
fn names(engine: &Arc<Engine>, filter: &QueryFilter) -> Vec<String> {
    let running = engine.queries(filter).into_iter().filter(|one| one.state == QueryState::Running);
    running.map(|one| one.name).collect()
}
