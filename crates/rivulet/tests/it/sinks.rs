//! The health of the sinks of big queries, as users and monitoring systems see it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;

use rivulet::api::types::{BigQuery, Health, Query};
use rivulet::engine::Engine;
use rivulet::service::QueryState;
use rivulet_connectors::connector::{Condition, Direction};
use serde_json::Value;
use tempfile::TempDir;

use super::engine::open;
use super::kill_disk::Disk;
use super::outlets::Receiver;
use super::support::{AsOperator, TestServer, wait_until};
use super::tables::said;

/// Two rows, and more when they are appended.
fn declare(engine: &Engine, folder: &Path, sink: &str) {
    let input = folder.join("in.jsonl");
    fs::write(&input, "{\"n\":1}\n{\"n\":2}\n").unwrap();
    let input = input.display();
    said(engine, &format!("CREATE SOURCE numbers (n BIGINT) FROM 'file:{input}' FORMAT JSON WITH (follow => true)"));
    said(engine, &format!("CREATE SINK away {sink}"));
    said(engine, "CREATE QUERY q AS SELECT n FROM numbers INTO away");
}

fn properties(engine: &Engine, statement: &str) -> Vec<(String, Value)> {
    let rows = engine.execute(statement).pop().unwrap().unwrap().rows;
    rows.into_iter().map(|row| (row[0].as_str().unwrap().to_owned(), row[1].clone())).collect()
}

#[test]
fn a_kafka_at_a_dead_port_never_looks_as_if_rows_were_out() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let port = rivulet_testing_ports::free_port();
    declare(&engine, folder.path(), &format!("TO 'kafka:127.0.0.1:{port}/x' FORMAT JSON"));
    let shown = || engine.status().big_queries.remove(0);
    let sink = || shown().health.into_iter().find(|end| end.name == "away").expect("the sink");
    wait_until("it is known that nobody is there", || sink().condition == Condition::Retrying);
    let (query, away) = (shown(), sink());
    assert_eq!((query.state, query.rows_in, query.rows_out), (QueryState::Running, 2, 0));
    assert_eq!((away.rows, away.waiting_rows), (0, 2));
    assert!(away.failures > 0 && away.oldest_ms.is_some() && away.since_ms > 0, "{away:?}");
    let reason = query.reason.expect("it is said");
    assert!(reason.starts_with("the sink 'away' is retrying (2 rows wait, ") && reason.contains("refused"), "{reason}");
    let described = properties(&engine, "DESCRIBE SINK away");
    assert!(described.contains(&("state".to_owned(), "retrying".into())), "{described:?}");
    assert!(described.iter().any(|(name, text)| name == "query q" && text.to_string().contains("2 rows wait")));
    let of_query = properties(&engine, "DESCRIBE QUERY q");
    assert!(of_query.contains(&("sink away: rows waiting".to_owned(), 2.into())), "{of_query:?}");
    assert!(of_query.contains(&("rows acknowledged by the sink".to_owned(), 0.into())), "{of_query:?}");
    assert_eq!(engine.execute("SHOW SINKS").pop().unwrap().unwrap().rows[0][2], "retrying");
    let problems = engine.problems();
    assert!(problems.iter().any(|one| one.starts_with("the query 'q' runs, and the sink 'away'")), "{problems:?}");
    assert!(engine.ready().is_ok(), "to restart the server would not mend the broker");
    let metrics = engine.metrics();
    for line in [
        "rivulet_sink_rows_total{query=\"q\",sink=\"away\"} 0",
        "rivulet_sink_waiting_rows{query=\"q\",sink=\"away\"} 2",
        "rivulet_sink_state{query=\"q\",sink=\"away\",state=\"retrying\"} 1",
        "rivulet_sink_state{query=\"q\",sink=\"away\",state=\"ok\"} 0",
        "rivulet_source_state{query=\"q\",source=\"numbers\",state=\"ok\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    }
}

#[test]
fn a_receiver_that_recovers_is_well_again() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    let client = server.client();
    let receiver = Receiver::start();
    receiver.refuses.store(true, Ordering::Release);
    declare(&engine, folder.path(), &format!("TO 'http:127.0.0.1:{}/hook' FORMAT JSON", receiver.port));
    let shown = || -> BigQuery { client.get::<Query>("/api/v1/queries/q", &[]).unwrap().big.unwrap() };
    let sink = || shown().health.into_iter().find(|end| end.direction == Direction::Sink).unwrap();
    wait_until("it is refused", || sink().condition == Condition::Retrying);
    assert!(sink().last_error.unwrap().contains("503"));
    let health: Health = client.get("/health/ready", &[]).unwrap();
    assert_eq!(health.status, "degraded");
    assert!(health.problems.iter().any(|problem| problem.contains("the sink 'away' is retrying")), "{health:?}");
    assert_eq!(shown().rows_out, 0);
    receiver.refuses.store(false, Ordering::Release);
    wait_until("the rows are taken", || shown().rows_out == 2);
    let sink = sink();
    assert_eq!((sink.condition, sink.waiting_rows, sink.retries, sink.oldest_ms), (Condition::Ok, 0, 0, None));
    assert!(sink.failures > 0 && sink.bytes == 14 && shown().reason.is_none(), "{sink:?}");
    assert_eq!(client.get::<Health>("/health/ready", &[]).unwrap().status, "ok");
}

#[test]
fn a_disk_that_is_full_is_the_end_of_the_query_and_not_of_the_truth() {
    let folder = TempDir::new().unwrap();
    let Some(_disk) = Disk::mount(&folder.path().join("small"), "64k") else { return };
    let engine = open(folder.path());
    let result = folder.path().join("small/out.json");
    declare(&engine, folder.path(), &format!("TO 'file:{}' FORMAT JSON", result.display()));
    let shown = || engine.status().big_queries.remove(0);
    wait_until("there is room for two rows", || shown().rows_out == 2);
    let more = "{\"n\":1234567}\n".repeat(20_000);
    let mut input = fs::OpenOptions::new().append(true).open(folder.path().join("in.jsonl")).unwrap();
    input.write_all(more.as_bytes()).unwrap();
    wait_until("it fails", || shown().state == QueryState::Failed);
    let query = shown();
    let sink = query.health.iter().find(|end| end.name == "away").unwrap();
    assert_eq!((sink.condition, sink.rows), (Condition::Failing, query.rows_out));
    assert!(query.rows_out < 20_002 && sink.waiting_rows > 0, "{sink:?}");
    assert!(sink.last_error.as_ref().unwrap().contains("the disk is full"), "{sink:?}");
    let described = properties(&engine, "DESCRIBE SINK away");
    assert!(described.contains(&("state".to_owned(), "failing".into())), "{described:?}");
}
