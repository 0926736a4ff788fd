//! How fast generators make rows, by the columns that are read: `cargo run --release --example streams_throughput`.

use std::sync::Arc;
use std::time::Instant;

use rivulet_connectors::connector::{ConnectorContext, Connectors, SourceSpec};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{Polled, Refusals};

static GENERATORS: Connectors = Connectors::with(&rivulet_bench::sources::CONNECTORS);

fn main() {
    let cases: [(&str, &str, &[&str]); 7] = [
        ("nexmark", "bid", &["auction", "bidder", "price", "date_time"]),
        ("nexmark", "bid", &["auction", "bidder", "price", "date_time", "extra"]),
        ("nexmark", "bid", &[]),
        ("nexmark", "auction", &[]),
        ("nexmark", "person", &[]),
        ("hibench", "", &["ts", "ip"]),
        ("hibench", "", &["ts", "record"]),
    ];
    for (connector, address, names) in cases {
        let schema = GENERATORS.declared_schema(connector, address, &Files::of_user()).expect("it reads no file");
        let schema = schema.expect("generators bring their columns");
        let columns: Vec<usize> = match names {
            [] => (0..schema.fields().len()).collect(),
            _ => (0..schema.fields().len())
                .filter(|&place| names.contains(&schema.field(place).name().as_str()))
                .collect(),
        };
        let spec = SourceSpec {
            connector: connector.into(),
            address: address.into(),
            format: None,
            schema: Arc::new(schema),
            columns,
            event_time_column: None,
            has_computed_time: false,
            options: vec![("events".into(), "20000000".into())],
            host: ConnectorContext::of_user(),
            resume: None,
        };
        let mut source = GENERATORS.open_source(&spec, 1).expect("generators open").remove(0);
        let mut refusals = Refusals::new(0);
        let (mut rows, begun) = (0, Instant::now());
        while begun.elapsed().as_secs() < 2 {
            match source.poll(4_096, 0, &mut refusals).expect("generators do not fail") {
                Polled::Rows { columns, .. } => rows += std::hint::black_box(columns).num_rows(),
                _ => break,
            }
        }
        let ns = begun.elapsed().as_nanos() as f64 / rows as f64;
        let what = if names.is_empty() { "all columns".into() } else { names.join(", ") };
        println!("{connector}:{address:8} {ns:7.1} ns/row   {what}");
    }
}
