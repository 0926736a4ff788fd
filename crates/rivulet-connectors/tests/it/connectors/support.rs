//! What the connector tests share: short ways to declare sources and sinks, to drain the one and to fill the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use rivulet_connectors::connector::{
    ConnectorContext, ConnectorError, Connectors, FormatText, Health, HealthReport, SinkSpec, SourceSpec,
};
use rivulet_dataflow::{Batch, Polled, Reason, Refusals, Sink, Source, SourceError};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Columns from `"name TYPE, name TYPE NOT NULL"`.
pub(crate) fn columns(declared: &str) -> SchemaRef {
    let fields = declared.split(',').map(|column| {
        let mut words = column.split_whitespace();
        let name = words.next().expect("a name");
        let data_type = match words.next().expect("a type") {
            "BOOLEAN" => DataType::Boolean,
            "BIGINT" => DataType::Int64,
            "DOUBLE" => DataType::Float64,
            "TEXT" => DataType::Utf8,
            "TIMESTAMP" => DataType::Timestamp(TimeUnit::Microsecond, None),
            other => panic!("no type {other}"),
        };
        Field::new(name, data_type, words.next().is_none())
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// `CSV` or `CSV header=true delimiter=;`
pub(crate) fn format(text: &str) -> FormatText {
    let mut words = text.split_whitespace();
    let name = words.next().expect("a name").to_owned();
    (name, words.map(|word| pair(word.split_once('=').expect("name=value"))).collect())
}

fn pair((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// A source with all its columns read.
pub(crate) fn source(address: &str, declared: &str) -> SourceSpec {
    let (connector, address) = address.split_once(':').expect("connector:address");
    let schema = columns(declared);
    SourceSpec {
        connector: connector.into(),
        address: address.into(),
        format: None,
        columns: (0..schema.fields().len()).collect(),
        schema,
        event_time_column: None,
        has_computed_time: false,
        options: Vec::new(),
        host: ConnectorContext::of_user(),
        resume: None,
    }
}

/// A sink of rows with these columns.
pub(crate) fn sink(address: &str, schema: SchemaRef) -> SinkSpec {
    let (connector, address) = address.split_once(':').expect("connector:address");
    SinkSpec {
        connector: connector.into(),
        address: address.into(),
        format: None,
        schema,
        changes: false,
        key: None,
        options: Vec::new(),
        host: ConnectorContext::of_user(),
        checkpoints: None,
        output: None,
    }
}

pub(crate) fn options(given: &[(&str, &str)]) -> Vec<(String, String)> {
    given.iter().copied().map(pair).collect()
}

/// Asks a sink to go on until it says of itself what is wanted.
pub(crate) fn flush_until(sink: &mut dyn Sink, health: &Health, is_so: impl Fn(&HealthReport) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so(&health.report()) {
        assert!(Instant::now() < deadline, "it says {:?}", health.report());
        sink.flush().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What is wrong with a source.
pub(crate) fn source_error(spec: &SourceSpec) -> String {
    Connectors::OWN.open_source(spec, 1).map(|_| ()).expect_err("it cannot be opened").to_string()
}

/// What is wrong with a sink.
pub(crate) fn sink_error(spec: &SinkSpec) -> String {
    Connectors::OWN.open_sink(spec, 0, 1).map(|_| ()).expect_err("it cannot be opened").to_string()
}

/// Rows as text, fields with `|` between, null as nothing.
pub(crate) fn texts(columns: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::new();
    let formatters: Vec<ArrayFormatter> =
        columns.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
    let row = |row: usize| formatters.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|");
    (0..columns.num_rows()).map(row).collect()
}

/// What came out of a source.
#[derive(Debug, Default)]
pub(crate) struct Drained {
    /// In the order in which they came, partition by partition; with `-` before those that retract another.
    pub(crate) rows: Vec<String>,
    pub(crate) refused: u64,
    /// Why the first was refused.
    pub(crate) details: Vec<String>,
}

impl Drained {
    /// The rows in order of their texts, where partitions interleave.
    pub(crate) fn sorted(mut self) -> Vec<String> {
        self.rows.sort();
        self.rows
    }
}

/// Polls one partition until `enough` says so, or it ends.
pub(crate) fn poll_until(
    source: &mut dyn Source,
    drained: &mut Drained,
    enough: impl Fn(&Drained) -> bool,
) -> Result<(), SourceError> {
    let deadline = Instant::now() + PATIENCE;
    while !enough(drained) {
        assert!(Instant::now() < deadline, "nothing more comes; so far: {drained:?}");
        let mut refusals = Refusals::new(8);
        let polled = source.poll(1000, 1_700_000_000_000_000, &mut refusals)?;
        drained.refused += refusals.counted(Reason::Decode);
        drained.details.extend(refusals.records().iter().map(|one| one.detail.clone()));
        match polled {
            Polled::Rows { columns, retracts, .. } => {
                let mark = |row| if retracts.as_ref().is_some_and(|marks| marks.value(row)) { "-" } else { "" };
                drained
                    .rows
                    .extend(texts(&columns).iter().enumerate().map(|(row, text)| format!("{}{text}", mark(row))));
            }
            Polled::Nothing(wait) | Polled::Aside(wait) => std::thread::sleep(wait),
            Polled::End => return Ok(()),
        }
    }
    Ok(())
}

/// Polls sources in turn, with those that they find, until `enough` says so.
pub(crate) fn poll_all_until(
    sources: &mut Vec<Box<dyn Source>>,
    drained: &mut Drained,
    enough: impl Fn(&Drained) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !enough(drained) {
        assert!(Instant::now() < deadline, "nothing more comes; so far: {drained:?}");
        let mut refusals = Refusals::new(0);
        let mut found = Vec::new();
        sources.retain_mut(|source| {
            let polled = source.poll(1000, 1_700_000_000_000_000, &mut refusals).unwrap();
            found.append(&mut source.found());
            match polled {
                Polled::Rows { columns, .. } => drained.rows.extend(texts(&columns)),
                Polled::Nothing(_) | Polled::Aside(_) => std::thread::sleep(Duration::from_millis(1)),
                Polled::End => return false,
            }
            true
        });
        sources.append(&mut found);
        drained.refused += refusals.counted(Reason::Decode);
    }
}

/// Everything a source has, to its end.
pub(crate) fn drain(spec: &SourceSpec, partitions: usize) -> Result<Drained, String> {
    let mut drained = Drained::default();
    let sources = Connectors::OWN.open_source(spec, partitions).map_err(|error: ConnectorError| error.to_string())?;
    for mut source in sources {
        poll_until(&mut *source, &mut drained, |_| false).map_err(|error| error.to_string())?;
        if let Some((done, all)) = source.progress() {
            assert_eq!(done, all, "progress is whole at the end");
        }
    }
    Ok(drained)
}

/// A batch of these columns.
pub(crate) fn batch(columns: Vec<(&str, ArrayRef)>) -> Batch {
    let columns =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .unwrap();
    let rows = columns.num_rows();
    Batch::new(vec![0; rows].into(), vec![0; rows].into(), vec![0; rows].into(), columns)
}

/// Writes batches to a sink and finishes it.
pub(crate) fn fill(spec: &SinkSpec, batches: &[Batch]) -> Result<(), String> {
    let mut sink: Box<dyn Sink> = Connectors::OWN.open_sink(spec, 0, 1).map_err(|error| error.to_string())?;
    for batch in batches {
        sink.write(batch).and_then(|()| sink.flush()).map_err(|error| error.to_string())?;
    }
    finish(&mut *sink)
}

/// Ends a sink.
pub(crate) fn finish(sink: &mut dyn Sink) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while !sink.finish().map_err(|error| error.to_string())? {
        assert!(Instant::now() < deadline, "the sink does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
