//! How fast sources and formats of big queries are on one core:
//! `cargo run --release --package rivulet --package rivulet-connectors --example connectors_throughput`.
//!
//! Files are written once to a temporary folder and read from the page cache, so this is the price of reading,
//! splitting and decoding, not of the disk. What counts is the time of the processor, where the system tells it, so
//! that others on the machine matter less.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_connectors::connector::{ConnectorContext, Connectors, SinkSpec, SourceSpec};
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{EncodedRows, RowFormat};
use rivulet_dataflow::{Batch, Events, Polled, Refusals};

/// The time this thread has spent on a processor; the time of the clock where that is not told.
struct Stopwatch {
    started: Instant,
    on_processor: Option<Duration>,
}

impl Stopwatch {
    fn start() -> Self {
        Self { started: Instant::now(), on_processor: on_processor() }
    }

    fn seconds(&self) -> f64 {
        let spent = on_processor().zip(self.on_processor).map(|(now, then)| now - then);
        spent.unwrap_or_else(|| self.started.elapsed()).as_secs_f64()
    }
}

/// Linux tells it in nanoseconds, as the first number in this file.
fn on_processor() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

const ROWS: usize = 4_000_000;
const BATCH_ROWS: usize = 8192;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("auction", DataType::Int64, false),
        Field::new("bidder", DataType::Int64, false),
        Field::new("price", DataType::Float64, false),
        Field::new("channel", DataType::Utf8, false),
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, None), false),
    ]))
}

fn batch(start: usize) -> Batch {
    let rows = start..start + BATCH_ROWS;
    let number = |salt: u64| move |row: usize| (row as u64).wrapping_mul(salt) >> 20;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(
            rows.clone().map(|row| (number(0x9e37_79b9_7f4a_7c15)(row) % 100_000) as i64),
        )),
        Arc::new(Int64Array::from_iter_values(
            rows.clone().map(|row| (number(0xc2b2_ae3d_27d4_eb4f)(row) % 1_000_000) as i64),
        )),
        Arc::new(Float64Array::from_iter_values(rows.clone().map(|row| (row % 10_000) as f64 / 100.0))),
        Arc::new(StringArray::from_iter_values(rows.clone().map(|row| format!("channel-{}", row % 4)))),
        Arc::new(TimestampMicrosecondArray::from_iter_values(
            rows.map(|row| 1_700_000_000_000_000 + row as i64 * 1000),
        )),
    ];
    let columns = RecordBatch::try_new(schema(), columns).expect("columns of the schema");
    let zeros = || vec![0_i64; BATCH_ROWS].into();
    Batch::new(vec![0; BATCH_ROWS].into(), zeros(), zeros(), columns)
}

fn write(path: &Path) -> std::io::Result<()> {
    let spec = SinkSpec {
        connector: "file".into(),
        address: path.display().to_string(),
        format: None,
        schema: schema(),
        changes: false,
        key: None,
        options: Vec::new(),
        host: ConnectorContext::of_user(),
        checkpoints: None,
        output: None,
    };
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).map_err(std::io::Error::other)?;
    let started = Stopwatch::start();
    for start in (0..ROWS).step_by(BATCH_ROWS) {
        sink.write(&batch(start)).map_err(std::io::Error::other)?;
    }
    sink.finish().map_err(std::io::Error::other)?;
    report(&format!("write {}", name(path)), path, &started);
    Ok(())
}

fn name(path: &Path) -> String {
    path.extension().map(|ending| ending.to_string_lossy().into_owned()).unwrap_or_default()
}

fn report(what: &str, path: &Path, started: &Stopwatch) {
    let seconds = started.seconds();
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len()) as f64;
    let per_row = seconds * 1e9 / ROWS as f64;
    println!("{what:<28} {:>6.2} GB/s  {per_row:>7.1} ns/row", bytes / seconds / 1e9);
}

fn read(path: &Path, schema: SchemaRef, columns: Vec<usize>, format: Option<&str>, what: &str) -> std::io::Result<()> {
    let spec = SourceSpec {
        connector: "file".into(),
        address: path.display().to_string(),
        format: format.map(|name| (name.into(), Vec::new())),
        schema,
        columns,
        event_time_column: None,
        has_computed_time: false,
        options: Vec::new(),
        host: ConnectorContext::of_user(),
        resume: None,
    };
    let mut source = Connectors::OWN.open_source(&spec, 1).map_err(std::io::Error::other)?.remove(0);
    let mut refusals = Refusals::new(1);
    let (started, mut rows) = (Stopwatch::start(), 0);
    loop {
        match source.poll(BATCH_ROWS, 0, &mut refusals).map_err(std::io::Error::other)? {
            Polled::Rows { columns, .. } => rows += columns.num_rows(),
            Polled::Nothing(_) | Polled::Aside(_) => {}
            Polled::End => break,
        }
    }
    assert!(refusals.is_empty() && rows >= ROWS, "{rows} rows, refused: {:?}", refusals.records());
    report(what, path, &started);
    Ok(())
}

/// A format of payloads, decoded from memory.
fn decode(format: &RowFormat, what: &str) {
    let mut encoded = EncodedRows::default();
    let rows = batch(0);
    format.encoder(schema()).expect("columns that suit").encode(&rows, &mut encoded);
    let mut events = Events::default();
    encoded.iter().for_each(|payload| events.push(0, 0, payload));
    let mut decoder = format.decoder(&schema(), &[0, 1, 2, 3, 4], Some(4)).expect("columns that suit");
    let mut refusals = Refusals::new(1);
    const ROUNDS: usize = 200;
    let started = Stopwatch::start();
    for _ in 0..ROUNDS {
        assert_eq!(std::hint::black_box(decoder.decode(&events, &mut refusals)).rows(), BATCH_ROWS);
    }
    let decode_ns = started.seconds() * 1e9 / (ROUNDS * BATCH_ROWS) as f64;
    let mut encoder = format.encoder(schema()).expect("columns that suit");
    let started = Stopwatch::start();
    for _ in 0..ROUNDS {
        encoded.clear();
        encoder.encode(&rows, &mut encoded);
    }
    let encode_ns = started.seconds() * 1e9 / (ROUNDS * BATCH_ROWS) as f64;
    let bytes = encoded.payload_bytes() / encoded.rows();
    println!("{what:<28} decode {decode_ns:>6.1} ns/row  encode {encode_ns:>6.1} ns/row  {bytes:>4} bytes");
}

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    for ending in ["json", "csv", "parquet"] {
        let path = folder.path().join(format!("rows.{ending}"));
        write(&path)?;
        read(&path, schema(), vec![0, 1, 2, 3, 4], None, &format!("read {ending}, 5 columns"))?;
        read(&path, schema(), vec![0], None, &format!("read {ending}, 1 column"))?;
    }
    let line = Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8, false)]));
    let path = folder.path().join("rows.json");
    read(&path, line.clone(), vec![0], Some("RAW"), "read lines as they are")?;
    read(&path, line, vec![], Some("RAW"), "count lines")?;

    let proto = folder.path().join("row.proto");
    let mut file = BufWriter::new(File::create(&proto)?);
    writeln!(
        file,
        "syntax = \"proto3\";\nmessage Row {{ int64 auction = 1; int64 bidder = 2; double price = 3; string channel = 4; int64 at = 5; }}"
    )?;
    drop(file);
    let proto = proto.display().to_string();
    let avro = r#"{"type": "record", "name": "Row", "fields": [{"name": "auction", "type": "long"}, {"name": "bidder", "type": "long"},
        {"name": "price", "type": "double"}, {"name": "channel", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"#;
    let parse = |name: &str, options: &[(&str, &str)]| {
        RowFormat::parse(name, options.iter().copied(), &Files::of_user()).map_err(std::io::Error::other)
    };
    decode(&parse("JSON", &[])?, "JSON");
    decode(&parse("CSV", &[])?, "CSV");
    decode(&parse("AVRO", &[("schema", avro)])?, "AVRO");
    decode(&parse("PROTOBUF", &[("schema_file", &proto)])?, "PROTOBUF");
    Ok(())
}
