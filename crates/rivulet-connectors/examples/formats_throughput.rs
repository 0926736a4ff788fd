//! What decoding costs, by message and batch size:
//! `cargo run --release -p rivulet-connectors --example formats_throughput`. With an argument, only the workloads whose
//! name contains it.
//!
//! Prints nanoseconds per row (the best and the median of several runs) and millions of rows per second, on one
//! thread, from payload bytes in an arena to a finished batch.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_connectors::formats::{EncodedRows, Format};
use rivulet_dataflow::{Events, Refusals};

/// Rows decoded in one run.
const ROWS_PER_RUN: usize = 262_144;
/// Runs for each line of the table.
const RUNS: usize = 15;

struct Workload {
    name: &'static str,
    format: Format,
    columns: SchemaRef,
    message: fn(usize) -> String,
}

fn columns(columns: &[(&str, DataType)]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|(name, t)| Field::new(*name, t.clone(), true)).collect::<Vec<_>>()))
}

fn workloads() -> Vec<Workload> {
    let time = || DataType::Timestamp(TimeUnit::Microsecond, None);
    let two = || columns(&[("ts", time()), ("value", DataType::Float64)]);
    let two_fields =
        |row: usize| format!(r#"{{"ts":{},"value":{}.{:02}}}"#, 1_766_275_200_123 + row, 20 + row % 7, row % 90 + 10);
    vec![
        Workload { name: "JSON, 2 fields", format: Format::Json, columns: two(), message: two_fields },
        Workload {
            name: "JSON, 6 fields",
            format: Format::Json,
            columns: columns(&[
                ("ts", time()),
                ("device", DataType::Utf8),
                ("seq", DataType::Int64),
                ("temp", DataType::Float64),
                ("hum", DataType::Float64),
                ("ok", DataType::Boolean),
            ]),
            message: |row| {
                format!(
                    r#"{{"ts":{},"device":"sensor-{:04}","seq":{},"temp":{}.{},"hum":{}.5,"ok":true}}"#,
                    1_766_275_200_123 + row,
                    row % 10_000,
                    1000 + row % 9000,
                    20 + row % 7,
                    row % 9 + 1,
                    40 + row % 20
                )
            },
        },
        Workload {
            name: "JSON, 2 of 6 fields",
            format: Format::Json,
            columns: columns(&[("ts", time()), ("temp", DataType::Float64)]),
            message: |row| {
                format!(
                    r#"{{"ts":{},"device":"sensor-{:04}","seq":{},"temp":{}.5,"hum":45.5,"ok":true}}"#,
                    1_766_275_200_123 + row,
                    row % 10_000,
                    1000 + row % 9000,
                    20 + row % 7
                )
            },
        },
        Workload {
            name: "JSON, 2 fields, spaces",
            format: Format::Json,
            columns: two(),
            message: |row| format!(r#"{{"ts": {}, "value": {}.25}}"#, 1_766_275_200_123 + row, 20 + row % 7),
        },
        Workload {
            name: "JSON, 2 fields, 16 digits",
            format: Format::Json,
            columns: two(),
            message: |row| format!(r#"{{"ts":{},"value":{:?}}}"#, 1_766_275_200_123 + row, (row as f64).sqrt()),
        },
        Workload {
            name: "JSON, order alternates",
            format: Format::Json,
            columns: two(),
            message: |row| match row % 2 {
                0 => format!(r#"{{"ts":{},"value":21.37}}"#, 1_766_275_200_123 + row),
                _ => format!(r#"{{"value":21.37,"ts":{}}}"#, 1_766_275_200_123 + row),
            },
        },
        Workload {
            name: "SENML_PIVOT, 7 records",
            format: Format::SenMlPivot,
            columns: columns(&[("ts", time()), ("source", DataType::Utf8), ("temperature", DataType::Float64)]),
            message: |row| {
                format!(
                    r#"{{"e":[{{"u":"string","n":"source","sv":"ci4lr75sl000802ypo4qrcjda23"}},{{"v":"6.1668213","u":"lon","n":"longitude"}},{{"v":"46.1927629","u":"lat","n":"latitude"}},{{"v":"8","u":"far","n":"temperature"}},{{"v":"53.7","u":"per","n":"humidity"}},{{"v":"0","u":"per","n":"light"}},{{"v":"411.02","u":"per","n":"dust"}}],"bt":{}}}"#,
                    1_422_748_800_000 + row
                )
            },
        },
        Workload {
            name: "CSV, 2 fields",
            format: Format::Csv { delimiter: b',' },
            columns: two(),
            message: |row| format!("{},{}.37", 1_766_275_200_123 + row, 20 + row % 7),
        },
        Workload {
            name: "CSV, 7 fields with texts",
            format: Format::Csv { delimiter: b',' },
            columns: columns(&[
                ("auction", DataType::Int64),
                ("bidder", DataType::Int64),
                ("price", DataType::Int64),
                ("channel", DataType::Utf8),
                ("url", DataType::Utf8),
                ("date_time", time()),
                ("extra", DataType::Utf8),
            ]),
            message: |row| {
                format!(
                    "{},{},{},channel-{},https://auctions.example.com/{:06}/item.htm?query=1&channel_id={},{},{}",
                    1000 + row / 46,
                    1000 + row % 977,
                    100 + row * 7919 % 1_000_000,
                    row % 10_000,
                    row % 999_983,
                    row * 31 % 1_000_000_000,
                    1_436_918_400_000 + row,
                    &"ukukzkjgjieqrjtqduygrehvzalxmlzcphcjywluvmqvbkxinihwlfgncr"[..40 + row % 18],
                )
            },
        },
        Workload {
            name: "TEXT, 1 number",
            format: Format::Text,
            columns: columns(&[("value", DataType::Float64)]),
            message: |row| format!("{}.37", 20 + row % 7),
        },
    ]
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    println!("{:<28}{:>8}{:>8}{:>12}{:>12}{:>10}", "workload", "bytes", "batch", "best ns", "median ns", "M rows/s");
    for workload in workloads().iter().filter(|workload| workload.name.contains(&wanted)) {
        for batch_rows in [1, 64, 1024] {
            decode(workload, batch_rows);
        }
    }
    for (name, format) in [("JSON, 6 fields", Format::Json), ("CSV, 6 fields", Format::Csv { delimiter: b',' })] {
        if format!("encode {name}").contains(&wanted) {
            encode(name, format);
        }
    }
}

fn arena(workload: &Workload, first: usize, rows: usize) -> Events {
    let mut events = Events::default();
    for row in first..first + rows {
        events.push(row as u32, row as i64, (workload.message)(row).as_bytes());
    }
    events
}

fn decode(workload: &Workload, batch_rows: usize) {
    let arenas: Vec<Events> =
        (0..(4096 / batch_rows)).map(|batch| arena(workload, batch * batch_rows, batch_rows)).collect();
    let payload_bytes = arenas.iter().map(Events::payload_bytes).sum::<usize>() / (arenas.len() * batch_rows);
    let mut decoder = workload.format.decoder(workload.columns.clone(), None).expect("the columns suit the format");
    let mut refusals = Refusals::new(1);
    let runs = (0..RUNS).map(|_| {
        let begin = Instant::now();
        for _ in 0..ROWS_PER_RUN / 4096 {
            for events in &arenas {
                black_box(decoder.decode(black_box(events), &mut refusals));
            }
        }
        begin.elapsed().as_nanos() as f64 / ROWS_PER_RUN as f64
    });
    let runs: Vec<f64> = runs.collect();
    assert!(refusals.is_empty(), "{:?}", refusals.records());
    report(workload.name, payload_bytes, batch_rows, runs);
}

fn encode(name: &str, format: Format) {
    let workload = &workloads()[1];
    let events = arena(workload, 0, 1024);
    let mut decoder = workload.format.decoder(workload.columns.clone(), None).expect("the columns suit the format");
    let batch = decoder.decode(&events, &mut Refusals::default());
    let mut encoder = format.encoder(workload.columns.clone()).expect("the columns suit the format");
    let mut out = EncodedRows::default();
    let mut payload_bytes = 0;
    let runs = (0..RUNS).map(|_| {
        let begin = Instant::now();
        for _ in 0..ROWS_PER_RUN / 1024 {
            out.clear();
            encoder.encode(black_box(&batch), &mut out);
            payload_bytes = black_box(&out).payload_bytes() / 1024;
        }
        begin.elapsed().as_nanos() as f64 / ROWS_PER_RUN as f64
    });
    let runs: Vec<f64> = runs.collect();
    report(&format!("encode {name}"), payload_bytes, 1024, runs);
}

fn report(name: &str, payload_bytes: usize, batch_rows: usize, mut runs: Vec<f64>) {
    runs.sort_by(f64::total_cmp);
    let (best, median) = (runs[0], runs[runs.len() / 2]);
    println!("{name:<28}{payload_bytes:>8}{batch_rows:>8}{best:>12.1}{median:>12.1}{:>10.1}", 1e3 / median);
}
