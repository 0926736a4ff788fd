//! `riot:` readings of city sensors, as RIoTBench replays them: a trace in memory, read round and round.
//!
//! An event is a line of the trace as its sensor sent it, a SenML object, and is decoded anew each time. Event times
//! are those of the schedule, so that they never repeat.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_connectors::connector::description::Opening;
use rivulet_connectors::connector::{
    ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, Options, SourceSpec,
};
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::Format;
use rivulet_dataflow::{Decoder, Events, Refusals, Source, SourceError};

use super::options::{COMMON_OPTIONS, StreamOptions, choose_columns, expect_one_stream, with_event_time};
use super::schedule::Schedule;
use super::source::Maker;
use super::walk::Pattern;

const NAME: &str = "riot";

/// The column of the event time.
const EVENT_TIME: &str = "at";

/// The lines of the trace, without the time before the comma, which the object has too.
static LINES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let lines = include_str!("../../riot/sys.senml").lines();
    lines.map(|line| line.split_once(',').map_or(line, |(_, senml)| senml)).collect()
});

/// The description of the connector.
pub(crate) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Replays the readings of city sensors that RIoTBench has.",
    address: "nothing",
    source: Some(DirectionDescription {
        help: "The columns need not be declared. Event n is line n of the 1,000 of the trace, round and round, and is parsed each time. \
               `number` is n, `at` its event time, and `sent` the time that its sensor gave it.",
        formats: &[],
        guarantees: &[("", Guarantee::ExactlyOnce)],
        options: &COMMON_OPTIONS,
    }),
    sink: None,
    example: "CREATE SOURCE city FROM 'riot:' WITH (rate => 1000);",
    open: Opening { source: Some(open), columns: Some(columns_of), bound_by: Some(&[]), ..Opening::NONE },
};

/// The content of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Time,
    Number,
    /// What the line has.
    Decoded,
}

static COLUMNS: [(&str, Value, DataType); 11] = [
    (EVENT_TIME, Value::Time, DataType::Timestamp(TimeUnit::Microsecond, None)),
    ("number", Value::Number, DataType::Int64),
    (SENT, Value::Decoded, DataType::Timestamp(TimeUnit::Microsecond, None)),
    ("source", Value::Decoded, DataType::Utf8),
    ("longitude", Value::Decoded, DataType::Utf8),
    ("latitude", Value::Decoded, DataType::Utf8),
    ("temperature", Value::Decoded, DataType::Float32),
    ("humidity", Value::Decoded, DataType::Float32),
    ("light", Value::Decoded, DataType::Float32),
    ("dust", Value::Decoded, DataType::Float32),
    ("airquality_raw", Value::Decoded, DataType::Float32),
];

/// The column of the base time of a line.
const SENT: &str = "sent";

fn schema() -> Schema {
    // Every line has every value.
    let field = |(name, _, data_type): &(&str, Value, DataType)| Field::new(*name, data_type.clone(), false);
    Schema::new(COLUMNS.iter().map(field).collect::<Vec<_>>())
}

fn columns_of(address: &str, _files: &Files) -> Result<Option<Schema>, ConnectorError> {
    Ok(address.trim().is_empty().then(|| with_event_time(schema(), EVENT_TIME)))
}

fn open(spec: &SourceSpec, options: &Options, partitions: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    expect_one_stream(NAME, spec, "is no stream of the benchmark")?;
    let common = StreamOptions::from(options)?;
    let chosen = choose_columns(NAME, spec, &schema())?;
    let is_decoded = |place: &usize| COLUMNS[*place].1 == Value::Decoded;
    let decoded: Vec<usize> = chosen.iter().copied().filter(is_decoded).collect();
    let decoded = Arc::new(schema().project(&decoded).expect("the columns were chosen from these"));
    let decoder = || match decoded.fields().is_empty() {
        true => Ok(None),
        false => Format::SenMlPivot.decoder(decoded.clone(), decoded.index_of(SENT).ok()).map(Some),
    };
    decoder()?;
    common.partitions(NAME, spec, Pattern::ALL, partitions, || Readings {
        schedule: Schedule::new(common.event_rate, common.shape),
        base_us: common.base_us,
        columns: chosen.iter().map(|&place| COLUMNS[place].1).collect(),
        schema: spec.read_schema(),
        decoder: decoder().expect("one was made"),
        events: Events::default(),
        refusals: Refusals::new(1),
    })
}

/// Decodes the columns that are read.
struct Readings {
    schedule: Schedule,
    base_us: i64,
    columns: Vec<Value>,
    schema: SchemaRef,
    /// `None` if no column of the trace is read.
    decoder: Option<Box<dyn Decoder>>,
    events: Events,
    refusals: Refusals,
}

impl Maker for Readings {
    fn make(&mut self, numbers: &[u64]) -> Result<RecordBatch, SourceError> {
        let mut decoded = Vec::new().into_iter();
        if let Some(decoder) = &mut self.decoder {
            self.events.clear();
            for number in numbers {
                self.events.push(0, 0, LINES[(number % LINES.len() as u64) as usize].as_bytes());
            }
            let batch = decoder.decode(&self.events, &mut self.refusals);
            if let Some(refusal) = self.refusals.records().first() {
                return Err(SourceError(format!("a line of the trace: {}", refusal.detail)));
            }
            decoded = batch.columns.columns().to_vec().into_iter();
        }
        let each = || numbers.iter().copied();
        let time_us = |number| self.base_us + self.schedule.offset_us(number);
        let mut column = |value: &Value| -> ArrayRef {
            match value {
                Value::Time => Arc::new(TimestampMicrosecondArray::from_iter_values(each().map(time_us))),
                Value::Number => Arc::new(Int64Array::from_iter_values(each().map(|number| number as i64))),
                Value::Decoded => decoded.next().expect("the decoder has all that are read"),
            }
        };
        let options = RecordBatchOptions::new().with_row_count(Some(numbers.len()));
        let columns = self.columns.iter().map(&mut column).collect();
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| SourceError(format!("readings of the trace: {error}")))
    }
}
