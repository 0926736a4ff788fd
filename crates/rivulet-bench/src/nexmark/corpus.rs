//! The stream of the benchmark, and how it is written to files for engines that read files.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use rivulet_connectors::connector::{ConnectorContext, Connectors, SinkSpec, SourceSpec};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{Batch, Polled, Refusals};

/// The three streams.
pub const STREAMS: [&str; 3] = ["person", "auction", "bid"];

/// The settings of the generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The number of persons, auctions and bids together.
    pub events: u64,
    /// Events per second of event time.
    pub event_rate: u64,
    /// Events per second by the clock; 0 for as fast as they are taken.
    pub rate: u64,
    /// Another seed is another stream.
    pub seed: u64,
    /// The event time of the first event.
    pub base_time: String,
    /// The size of the groups in which events are out of order.
    pub disorder: u64,
}

impl Default for Stream {
    /// Ten million events in order, 10,000 for each second of event time.
    fn default() -> Self {
        Self {
            events: 10_000_000,
            event_rate: 10_000,
            rate: 0,
            seed: 1,
            base_time: "2015-07-15T00:00:00Z".into(),
            disorder: 1,
        }
    }
}

impl Stream {
    /// The options by name.
    fn pairs(&self) -> [(&'static str, String); 6] {
        [
            ("events", self.events.to_string()),
            ("event_rate", self.event_rate.to_string()),
            ("rate", self.rate.to_string()),
            ("seed", self.seed.to_string()),
            ("base_time", self.base_time.clone()),
            ("disorder", self.disorder.to_string()),
        ]
    }

    /// The options in the form behind WITH.
    pub fn options(&self) -> String {
        let option = |(name, value): (&str, String)| match value.parse::<u64>() {
            Ok(_) => format!("{name} => {value}"),
            Err(_) => format!("{name} => '{}'", value.replace('\'', "''")),
        };
        self.pairs().map(option).join(", ")
    }
}

/// The format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Comma-separated fields with a header; times are milliseconds since 1970.
    Csv,
    /// An object on each line; times are milliseconds since 1970.
    Json,
    /// Columns.
    Parquet,
}

impl FileFormat {
    /// The format by its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Csv => "CSV (header => true)",
            Self::Json => "JSON",
            Self::Parquet => "PARQUET",
        }
    }

    /// The extension of such files.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Parquet => "parquet",
        }
    }
}

/// Why a stream could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// Writing a file or folder failed.
    #[error("cannot write {path}: {error}")]
    Write {
        /// Its path.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The generator or the sink failed.
    #[error("{0}")]
    Connector(String),
}

/// Writes the streams `person`, `auction` and `bid` to files of these names in `folder`, which is made if it does not
/// exist. Returns the number of rows of each.
pub fn write_stream(stream: &Stream, folder: &Path, format: FileFormat) -> Result<[u64; 3], CorpusError> {
    fs::create_dir_all(folder).map_err(|error| CorpusError::Write { path: folder.display().to_string(), error })?;
    let mut rows = [0; 3];
    for (kind, rows) in STREAMS.iter().zip(&mut rows) {
        let path = folder.join(format!("{kind}.{}", format.ending()));
        *rows = write_kind(stream, kind, &path, format)?;
    }
    Ok(rows)
}

/// The connectors that the corpus is made with.
static GENERATORS: Connectors = Connectors::with(&crate::sources::CONNECTORS);

/// Writes all events of one kind with the connectors' own source and sink.
fn write_kind(stream: &Stream, kind: &str, path: &Path, format: FileFormat) -> Result<u64, CorpusError> {
    let failed = |error: &dyn std::fmt::Display| CorpusError::Connector(error.to_string());
    let (mut source, schema) = open_stream(stream, kind)?;
    let format = match format {
        FileFormat::Csv => ("CSV".to_owned(), vec![("header".to_owned(), "true".to_owned())]),
        FileFormat::Json => ("JSON".to_owned(), Vec::new()),
        FileFormat::Parquet => ("PARQUET".to_owned(), Vec::new()),
    };
    let spec = SinkSpec {
        connector: "file".into(),
        address: path.display().to_string(),
        format: Some(format),
        schema,
        changes: false,
        key: None,
        options: Vec::new(),
        host: ConnectorContext::of_user(),
        checkpoints: None,
        output: None,
    };
    let mut sink = GENERATORS.open_sink(&spec, 0, 1).map_err(|error| failed(&error))?;
    let mut refusals = Refusals::new(0);
    let mut rows = 0;
    loop {
        match source.poll(usize::MAX, 0, &mut refusals).map_err(|error| failed(&error))? {
            Polled::Rows { columns, .. } => {
                rows += columns.num_rows() as u64;
                sink.write(&batch_of(columns)).map_err(|error| failed(&error))?;
            }
            Polled::Nothing(pause) | Polled::Aside(pause) => std::thread::sleep(pause),
            Polled::End => break,
        }
    }
    // The file is final at once.
    sink.finish().map_err(|error| failed(&error))?;
    Ok(rows)
}

/// The rows of one kind of event, all columns.
fn open_stream(stream: &Stream, kind: &str) -> Result<(Box<dyn rivulet_dataflow::Source>, SchemaRef), CorpusError> {
    let schema = GENERATORS
        .declared_schema("nexmark", kind, &Files::of_user())
        .map_err(|error| CorpusError::Connector(error.to_string()))?
        .map(Arc::new)
        .ok_or_else(|| CorpusError::Connector(format!("'nexmark:{kind}' is no stream")))?;
    let spec = SourceSpec {
        connector: "nexmark".into(),
        address: kind.into(),
        format: None,
        columns: (0..schema.fields().len()).collect(),
        schema: schema.clone(),
        event_time_column: None,
        has_computed_time: false,
        options: stream.pairs().map(|(name, value)| (name.to_owned(), value)).to_vec(),
        host: ConnectorContext::of_user(),
        resume: None,
    };
    let mut sources = GENERATORS.open_source(&spec, 1).map_err(|error| CorpusError::Connector(error.to_string()))?;
    let source = sources.pop().ok_or_else(|| CorpusError::Connector("the generator has no partition".into()))?;
    Ok((source, schema))
}

/// Makes a batch of rows. Their times have no effect, because the rows are only written.
fn batch_of(columns: RecordBatch) -> Batch {
    let rows = columns.num_rows();
    Batch::new(vec![0; rows].into(), vec![0; rows].into(), vec![0; rows].into(), columns)
}

/// Writes the table in which q13 looks bids up: 10,000 keys, each with itself as value.
pub fn write_side_input(path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "key,value")?;
    (0..10_000).try_for_each(|key| writeln!(file, "{key},{key}"))?;
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let stream = Stream { events: 5_000, ..Stream::default() };
        let rows = write_stream(&stream, folder.path(), FileFormat::Csv).unwrap();
        assert_eq!(rows, [100, 300, 4_600]);
        let bids = fs::read_to_string(folder.path().join("bid.csv")).unwrap();
        let mut lines = bids.lines();
        assert_eq!(lines.next(), Some("auction,bidder,price,channel,url,date_time,extra"));
        assert!(lines.next().unwrap().starts_with("1000,"));
        assert_eq!(lines.count(), 4_599);
        write_side_input(&folder.path().join("side.csv")).unwrap();
        let side = fs::read_to_string(folder.path().join("side.csv")).unwrap();
        assert!(side.starts_with("key,value\n0,0\n") && side.ends_with("\n9999,9999\n"));
    }

    #[test]
    fn options_are_written_as_sql() {
        let options = Stream { base_time: "it's".into(), ..Stream::default() }.options();
        assert_eq!(
            options,
            "events => 10000000, event_rate => 10000, rate => 0, seed => 1, base_time => 'it''s', disorder => 1"
        );
    }
}
