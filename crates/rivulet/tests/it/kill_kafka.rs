//! A server reads from Kafka and writes to Kafka exactly once, under load. The server and the broker are killed at
//! random moments: a reader of committed messages sees the results of each row once.
//!
//! `RIVULET_KILLS` is the number of kills; a few by default.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use rivulet_connectors::connector::{ConnectorContext, Connectors, SinkSpec, SourceSpec};
use rivulet_dataflow::{Batch, Polled, Refusals};
use tempfile::TempDir;

use crate::kafka_broker::Broker;
use crate::kill::{kills, random};
use crate::server::{Server, free_port, wait};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// Every so many kills it is the broker's turn.
const BROKER_EVERY: u32 = 3;

/// Events are so far apart in their own time, and counted in windows of a second.
const STEP_MS: i64 = 10;
const BEGIN_MS: i64 = 1_700_006_400_000;
const DEVICES: i64 = 30;

const ROWS_AT_ONCE: i64 = 100;

fn schema(numbers: &[&str]) -> SchemaRef {
    let numbers = numbers.iter().map(|name| Field::new(*name, DataType::Int64, true));
    Arc::new(Schema::new([Field::new("device", DataType::Utf8, true)].into_iter().chain(numbers).collect::<Vec<_>>()))
}

fn events(range: std::ops::Range<i64>) -> Batch {
    let devices: Vec<String> = range.clone().map(|n| format!("device{}", n % DEVICES)).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(devices)),
        Arc::new(Int64Array::from_iter_values(range.clone())),
        Arc::new(Int64Array::from_iter_values(range.clone().map(|n| BEGIN_MS + n * STEP_MS))),
    ];
    let rows = usize::try_from(range.end - range.start).unwrap();
    let columns = RecordBatch::try_new(schema(&["n", "ts"]), columns).unwrap();
    Batch::new(vec![0; rows].into(), vec![0; rows].into(), vec![0; rows].into(), columns)
}

/// Begins to write events; returns when their topic is there, which the first of them makes, with what ends it.
fn start_load(broker: &str) -> (Arc<AtomicBool>, thread::JoinHandle<i64>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let loading = thread::spawn({
        let (broker, is_over) = (broker.to_owned(), is_over.clone());
        move || load(&broker, &is_over)
    });
    wait("the topic of the events", || Connectors::OWN.open_source(&source(broker, "in", &["n", "ts"]), 1).is_ok());
    (is_over, loading)
}

/// Writes numbered events until told to stop; they are all in the topic when it returns how many those are.
fn load(broker: &str, is_over: &AtomicBool) -> i64 {
    let spec = SinkSpec {
        connector: "kafka".into(),
        address: format!("{broker}/in"),
        format: None,
        schema: schema(&["n", "ts"]),
        changes: false,
        key: None,
        options: vec![("key".into(), "device".into())],
        host: ConnectorContext::of_user(),
        checkpoints: None,
        output: None,
    };
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    let mut next = 0;
    while !is_over.load(Ordering::Relaxed) {
        if sink.has_room() {
            sink.write(&events(next..next + ROWS_AT_ONCE)).unwrap();
            sink.flush().unwrap();
            next += ROWS_AT_ONCE;
        }
        thread::sleep(Duration::from_millis(20));
    }
    // Far behind: they close the windows of all partitions.
    let end = next + 1_000_000;
    sink.write(&events(end..end + DEVICES)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !sink.finish().unwrap() {
        assert!(Instant::now() < deadline, "the events are not written");
        thread::sleep(Duration::from_millis(20));
    }
    next
}

/// A topic, from its beginning to where it ends now.
fn source(broker: &str, topic: &str, numbers: &[&str]) -> SourceSpec {
    let schema = schema(numbers);
    SourceSpec {
        connector: "kafka".into(),
        address: format!("{broker}/{topic}"),
        format: None,
        columns: (0..schema.fields().len()).collect(),
        schema,
        event_time_column: None,
        has_computed_time: false,
        options: vec![("bounded".into(), "true".into())],
        host: ConnectorContext::of_user(),
        resume: None,
    }
}

/// What a reader of what was committed sees in a topic, from the beginning to where that ends now.
fn seen(broker: &str, topic: &str, numbers: &[&str]) -> Vec<(String, Vec<i64>)> {
    let spec = source(broker, topic, numbers);
    let mut rows = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    for mut source in Connectors::OWN.open_source(&spec, 1).unwrap() {
        loop {
            assert!(Instant::now() < deadline, "{topic} does not come to its end");
            match source.poll(8192, 0, &mut Refusals::new(0)).unwrap() {
                Polled::Rows { columns, .. } => {
                    let devices = columns.column(0).as_string::<i32>();
                    let value =
                        |column: usize, row: usize| columns.column(column).as_primitive::<Int64Type>().value(row);
                    rows.extend((0..columns.num_rows()).map(|row| {
                        let numbers = (1..columns.num_columns()).map(|column| value(column, row)).collect();
                        (devices.value(row).to_owned(), numbers)
                    }));
                }
                Polled::Nothing(wait) | Polled::Aside(wait) => thread::sleep(wait),
                Polled::End => break,
            }
        }
    }
    rows
}

#[test]
#[ignore = "slow"]
fn what_is_committed_is_what_came_of_each_row_once_however_often_server_and_broker_are_killed() {
    let Some(mut broker) = Broker::start_or_skip() else { return };
    let kills = kills(3);
    let address = broker.address.clone();
    let (is_over, loading) = start_load(&address);
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let start = || Server::start_at(folder.path(), mqtt, 1);
    let mut server = start();
    let declared = format!(
        "CREATE SOURCE events (device TEXT, n BIGINT, ts TIMESTAMP EVENT TIME) FROM 'kafka:{address}/in' FORMAT JSON;
         CREATE SINK copies TO 'kafka:{address}/copies' FORMAT JSON WITH (delivery => 'exactly_once', key => 'device');
         CREATE SINK counts TO 'kafka:{address}/counts' FORMAT JSON WITH (delivery => 'exactly_once');
         CREATE QUERY copied AS SELECT device, n * 2 AS doubled FROM events INTO copies;
         CREATE QUERY counted AS SELECT device, count(*) AS events, sum(n) AS total FROM events
           GROUP BY device, tumble(ts, INTERVAL '1 second') INTO counts;"
    );
    server.sql_ok(&declared);
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for kill in 1..=kills {
        thread::sleep(Duration::from_millis(500 + random(&mut state) % 2_500));
        if kill % BROKER_EVERY == 0 {
            broker.kill();
            thread::sleep(Duration::from_millis(random(&mut state) % 2_000));
            broker.start_again();
        } else {
            server.kill_9();
            server = start();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let events = loading.join().unwrap();
    let copies_expected = usize::try_from(events + DEVICES).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let copies = loop {
        let copies = seen(&address, "copies", &["doubled"]);
        if copies.len() >= copies_expected {
            break copies;
        }
        let shown = || server.sql_ok("DESCRIBE QUERY copied; DESCRIBE QUERY counted");
        assert!(Instant::now() < deadline, "{} of {copies_expected} rows came: {}", copies.len(), shown());
        thread::sleep(Duration::from_millis(500));
    };
    let mut numbers: Vec<i64> = copies.iter().map(|(_, numbers)| numbers[0] / 2).collect();
    numbers.sort_unstable();
    numbers.truncate(numbers.len() - usize::try_from(DEVICES).unwrap());
    assert!(numbers.into_iter().eq(0..events), "each of {events} rows once");

    let windows = check_windows(&address, events);
    println!("{events} rows, {windows} windows, {kills} kills");
    drop(server);
}

/// That each of so many events is in its window in the topic `counts`, and each window came once; how many there are.
fn check_windows(address: &str, events: i64) -> usize {
    let in_window = 1000 / STEP_MS;
    let mut expected: BTreeMap<(String, i64), (i64, i64)> = BTreeMap::new();
    for n in 0..events {
        let counted = expected.entry((format!("device{}", n % DEVICES), n / in_window)).or_default();
        *counted = (counted.0 + 1, counted.1 + n);
    }
    let mut expected: Vec<(String, Vec<i64>)> =
        expected.into_iter().map(|((device, _), (events, total))| (device, vec![events, total])).collect();
    expected.sort();
    let deadline = Instant::now() + PATIENCE;
    let mut counts = loop {
        let counts = seen(address, "counts", &["events", "total"]);
        if counts.len() >= expected.len() {
            break counts;
        }
        assert!(Instant::now() < deadline, "{} of {} windows came", counts.len(), expected.len());
        thread::sleep(Duration::from_millis(500));
    };
    counts.sort();
    assert_eq!(counts.len(), expected.len(), "each window once");
    assert!(counts == expected, "each row is in its window once");
    counts.len()
}

#[test]
#[ignore = "slow"]
fn what_is_committed_is_what_came_of_each_row_once_however_often_the_query_is_replaced() {
    let Some(broker) = Broker::start_or_skip() else { return };
    let kills = kills(3);
    let address = broker.address.clone();
    let (is_over, loading) = start_load(&address);
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let start = || Server::start_at(folder.path(), mqtt, 1);
    let version = |version: u32| {
        format!(
            "CREATE OR REPLACE QUERY counted AS SELECT device, count(*) AS events, sum(n) AS total FROM events
             WHERE n >= 0 - {version} GROUP BY device, tumble(ts, INTERVAL '1 second') INTO counts"
        )
    };
    let mut server = start();
    server.sql_ok(&format!(
        "CREATE SOURCE events (device TEXT, n BIGINT, ts TIMESTAMP EVENT TIME) FROM 'kafka:{address}/in' FORMAT JSON;
         CREATE SINK counts TO 'kafka:{address}/counts' FORMAT JSON WITH (delivery => 'exactly_once');"
    ));
    server.sql_ok(&version(0));
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for kill in 1..=kills {
        thread::sleep(Duration::from_millis(500 + random(&mut state) % 1_500));
        let said = server.sql_ok(&version(2 * kill)).to_string();
        assert!(said.contains("goes on from its checkpoint"), "{said}");
        thread::sleep(Duration::from_millis(random(&mut state) % 500));
        // In the middle of another one, of which no answer comes.
        let (url, text) = (server.url(), version(2 * kill + 1));
        let asked = thread::spawn(move || ureq::post(format!("{url}/api/v1/sql")).send(text).is_ok());
        thread::sleep(Duration::from_millis(random(&mut state) % 1_000));
        server.kill_9();
        asked.join().unwrap();
        server = start();
    }
    is_over.store(true, Ordering::Relaxed);
    let events = loading.join().unwrap();
    let windows = check_windows(&address, events);
    println!("{events} rows, {windows} windows, {kills} kills");
    drop(server);
}
