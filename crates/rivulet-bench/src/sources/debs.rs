//! `debs:` readings of manufacturing equipment, as the DEBS 2012 challenge has them: rows of its data, read round and
//! round. Sensors and valves, which rest in these rows, change by a schedule ([`PAIRS`]).

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_connectors::connector::description::Opening;
use rivulet_connectors::connector::{
    ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, Options, SourceSpec,
};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{Source, SourceError};

use super::options::{COMMON_OPTIONS, StreamOptions, choose_columns, expect_one_stream, with_event_time};
use super::schedule::Schedule;
use super::source::Maker;
use super::walk::Pattern;
use crate::debs::{PAIRS, SAMPLE};

const NAME: &str = "debs";

/// The number of the first message of the data.
const FIRST_INDEX: i64 = 2_556_001;

/// Electrical power of the main phases, reading by reading.
static POWER: LazyLock<Vec<[i64; 3]>> = LazyLock::new(|| {
    let phases = |line: &str| {
        let mut cells = line.split(',').skip(1).filter_map(|cell| cell.parse().ok());
        std::array::from_fn(|_| cells.next().unwrap_or(0))
    };
    SAMPLE.lines().map(phases).collect()
});

/// The description of the connector.
pub(crate) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Replays readings of manufacturing equipment of the DEBS 2012 challenge.",
    address: "nothing",
    source: Some(DirectionDescription {
        help: "The columns need not be declared. The power of the main phases, `mf01` to `mf03`, is that of 2,000 readings, round and \
               round. The sensors `bm05` to `bm07` change every 500, 700 and 1,100 readings, and the valves `bm08` to `bm10` answer \
               them some readings later. With `event_rate => 100` readings are 10 ms apart, as in the challenge.",
        formats: &[],
        guarantees: &[("", Guarantee::ExactlyOnce)],
        options: &COMMON_OPTIONS,
    }),
    sink: None,
    example: "CREATE SOURCE readings FROM 'debs:' WITH (event_rate => 100);",
    open: Opening { source: Some(open), columns: Some(columns_of), bound_by: Some(&[]), ..Opening::NONE },
};

/// The time, the number of the message, power, sensors, and their valves.
const COLUMNS: [&str; 11] = ["ts", "index", "mf01", "mf02", "mf03", "bm05", "bm06", "bm07", "bm08", "bm09", "bm10"];

fn schema() -> Schema {
    let data_type = |place: usize| match place {
        0 => DataType::Timestamp(TimeUnit::Microsecond, None),
        1..=4 => DataType::Int64,
        _ => DataType::Boolean,
    };
    let field = |(place, name): (usize, &&str)| Field::new(*name, data_type(place), false);
    Schema::new(COLUMNS.iter().enumerate().map(field).collect::<Vec<_>>())
}

fn columns_of(address: &str, _files: &Files) -> Result<Option<Schema>, ConnectorError> {
    Ok(address.trim().is_empty().then(|| with_event_time(schema(), COLUMNS[0])))
}

fn open(spec: &SourceSpec, options: &Options, partitions: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    expect_one_stream(NAME, spec, "is no stream of the challenge")?;
    let common = StreamOptions::from(options)?;
    let maker = Readings {
        schedule: Schedule::new(common.event_rate, common.shape),
        base_us: common.base_us,
        columns: choose_columns(NAME, spec, &schema())?,
        schema: spec.read_schema(),
    };
    common.partitions(NAME, spec, Pattern::ALL, partitions, || maker.clone())
}

/// Makes the columns that are read.
#[derive(Clone)]
struct Readings {
    schedule: Schedule,
    base_us: i64,
    /// As indices of [`COLUMNS`].
    columns: Vec<usize>,
    schema: SchemaRef,
}

impl Maker for Readings {
    fn make(&mut self, numbers: &[u64]) -> Result<RecordBatch, SourceError> {
        let each = || numbers.iter().copied();
        let integers =
            |value: &dyn Fn(u64) -> i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(each().map(value))) };
        let column = |&place: &usize| -> ArrayRef {
            match place {
                0 => {
                    let time_us = |number| self.base_us + self.schedule.offset_us(number);
                    Arc::new(TimestampMicrosecondArray::from_iter_values(each().map(time_us)))
                }
                1 => integers(&|number| FIRST_INDEX + number as i64),
                2..=4 => integers(&|number| POWER[(number % POWER.len() as u64) as usize][place - 2]),
                _ => {
                    let (pair, is_valve) = (&PAIRS[(place - 5) % PAIRS.len()], place >= 8);
                    let is_on = |row: usize| pair.is_on(is_valve, numbers[row]);
                    Arc::new(BooleanArray::new(BooleanBuffer::collect_bool(numbers.len(), is_on), None))
                }
            }
        };
        let options = RecordBatchOptions::new().with_row_count(Some(numbers.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), self.columns.iter().map(column).collect(), &options)
            .map_err(|error| SourceError(format!("readings of equipment: {error}")))
    }
}
