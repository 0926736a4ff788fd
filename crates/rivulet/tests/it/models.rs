//! Models of big queries: the files that statements read, when they are read, and which are refused.

use std::fs;
use std::path::Path;

use rivulet::engine::Engine;
use rivulet::service::{ErrorKind, QueryState, ServiceError};
use tempfile::TempDir;

use super::engine::open;
use super::support::{AsOperator, wait_until};
use super::tables::said;

const QUERY: &str = "QUERY q AS SELECT x, predict('m.json', x) AS y FROM a INTO out";

fn write(folder: &Path, name: &str, slope: f64) {
    let model = format!(r#"{{"kind": "linear", "inputs": ["x"], "coefficients": [{slope}], "intercept": 0}}"#);
    fs::write(folder.join(name), model).expect("a file");
}

fn declare(engine: &Engine) {
    for statement in [
        "CREATE SOURCE a (x DOUBLE) FROM 'mqtt:a' FORMAT JSON",
        "CREATE SOURCE b (x DOUBLE) FROM 'mqtt:b' FORMAT JSON",
        "CREATE SINK out TO 'blackhole:'",
    ] {
        said(engine, statement);
    }
}

fn refused(engine: &Engine, statement: &str) -> ServiceError {
    let answer = engine.execute(statement).pop().expect("an answer");
    answer.map(|answer| answer.message).expect_err(statement)
}

/// The call of the model in the plan of the query, with the hash of its file.
fn version(engine: &Engine) -> String {
    let plan = engine.execute("EXPLAIN QUERY q").pop().expect("an answer").expect("a plan");
    let lines = plan.rows.iter().map(|row| row[0].as_str().unwrap_or_default().to_owned());
    lines.filter_map(|line| Some(line.split_once("predict 'm.json' ")?.1.to_owned())).next().expect("the model")
}

#[test]
fn a_model_is_read_by_each_statement_and_at_each_start() {
    let folder = TempDir::new().expect("a folder");
    write(folder.path(), "m.json", 2.0);
    let first = {
        let engine = open(folder.path());
        declare(&engine);
        said(&engine, &format!("CREATE {QUERY}"));
        let first = version(&engine);
        let replace = format!("CREATE OR REPLACE {QUERY}");
        let unchanged = said(&engine, &replace);
        write(folder.path(), "m.json", 3.0);
        assert_eq!(version(&engine), first, "what runs keeps its model");
        assert_ne!(said(&engine, &replace), unchanged);
        let second = version(&engine);
        assert_ne!(second, first);
        assert_eq!(said(&engine, &replace), unchanged, "the same text with the same model");
        write(folder.path(), "m.json", 2.0);
        engine.shutdown();
        first
    };
    let engine = open(folder.path());
    assert_eq!(version(&engine), first);
    engine.shutdown();
    drop(engine);
    fs::write(folder.path().join("m.json"), "{}").expect("a file");
    let engine = open(folder.path());
    let shown = engine.query("q").expect("a query");
    assert_eq!(shown.state, QueryState::NotRunning);
    write(folder.path(), "m.json", 2.0);
    let runs = || engine.query("q").is_ok_and(|query| query.state == QueryState::Running);
    wait_until("the query runs", runs);
    assert_eq!(version(&engine), first);
}

#[test]
fn a_view_with_a_model_needs_its_source_and_no_other() {
    let folder = TempDir::new().expect("a folder");
    write(folder.path(), "m.json", 2.0);
    let engine = open(folder.path());
    declare(&engine);
    said(&engine, "CREATE VIEW v AS SELECT predict('m.json', x) AS y FROM a");
    said(&engine, "CREATE QUERY q AS SELECT y FROM v INTO out");
    said(&engine, "CREATE QUERY r AS SELECT predict('m.json', y) AS z FROM v INTO out");
    assert!(refused(&engine, "DROP SOURCE a").message.contains("'v' needs it"));
    assert!(refused(&engine, "DROP VIEW v").message.contains("needs it"));
    said(&engine, "DROP SOURCE b");
    engine.shutdown();
    drop(engine);
    let engine = open(folder.path());
    for query in ["q", "r"] {
        assert_eq!(engine.query(query).expect("a query").state, QueryState::Running);
    }
}

#[test]
fn files_that_are_no_models_are_refused_where_they_are_named() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    declare(&engine);
    write(folder.path(), "m.json", 2.0);
    let circle =
        r#"{"kind": "tree", "inputs": ["x"], "nodes": [{"input": 0, "le": 1, "then": 1, "else": 0}, {"leaf": 1}]}"#;
    fs::write(folder.path().join("circle.json"), circle).expect("a file");
    let leaf = "{\"leaf\": 1},";
    let many = format!(r#"{{"kind": "tree", "inputs": ["x"], "nodes": [{}{{"leaf": 1}}]}}"#, leaf.repeat(400_000));
    fs::write(folder.path().join("many.json"), many).expect("a file");
    fs::write(folder.path().join("long.json"), " ".repeat(9 << 20)).expect("a file");
    for (call, message) in [
        ("predict('none.json', x)", "the model 'none.json' cannot be used: "),
        ("predict('/etc/passwd', x)", "it is outside of the folders that the server allows"),
        ("predict('data/catalog', x)", "it belongs to the server itself"),
        ("predict('circle.json', x)", "node 0 leads back to node 0: a tree has no circles"),
        ("predict('many.json', x)", "the tree has more than 65535 nodes"),
        ("predict('long.json', x)", "it has more than 8388608 bytes"),
        ("predict('m.json', x, x)", "the model 'm.json' has 1 inputs, and 2 are given"),
    ] {
        for statement in ["CREATE QUERY q AS", "CREATE VIEW v AS", "EXPLAIN"] {
            let sink = if statement.contains("QUERY") { " INTO out" } else { "" };
            let error = refused(&engine, &format!("{statement} SELECT {call} AS y FROM a{sink}"));
            assert!(error.message.contains(message) && error.line == Some(1), "{call}: {error:?}");
        }
    }
    let error = refused(
        &engine,
        "CREATE APPLICATION p () INPUT t (x DOUBLE) FROM 'mqtt:t' FORMAT JSON OUTPUT 'mqtt:o' FORMAT JSON \
         AS SELECT predict('m.json', x) AS y FROM t",
    );
    assert!(error.message.contains("which only a big query does"), "{error:?}");
    assert_eq!(error.kind, ErrorKind::Invalid);
}
