//! `sensors:` simulated climate sensors, to try a query and for load tests.
//!
//! Sensors report in turn. Temperature follows the time of day as a triangle between night and afternoon. Each sensor
//! has its own mean, and there is noise. Humidity goes the opposite way.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_connectors::connector::description::Opening;
use rivulet_connectors::connector::{
    ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, OptionDescription, OptionKind, Options,
    SourceSpec,
};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{Source, SourceError};

use super::options::{COMMON_OPTIONS, StreamOptions, choose_columns, expect_one_stream, with_common, with_event_time};
use super::random::Seed;
use super::schedule::Schedule;
use super::source::Maker;
use super::text::TextColumn;
use super::walk::Pattern;

const NAME: &str = "sensors";

/// The column of the event time.
const EVENT_TIME: &str = "ts";

/// One of this number of reports says that the sensor has a fault.
const FAULTS: u64 = 200;

/// The description of the connector.
pub(crate) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Generates the readings of simulated climate sensors.",
    address: "nothing",
    source: Some(DirectionDescription {
        help: "The columns need not be declared. Sensors report in turn; a reading is a function of the seed and its number, whatever \
               the partitions.",
        formats: &[],
        guarantees: &[("", Guarantee::ExactlyOnce)],
        options: &OPTIONS,
    }),
    sink: None,
    example: "CREATE SOURCE readings FROM 'sensors:' WITH (devices => 100, rate => 100, base_time => 'now');",
    open: Opening { source: Some(open), columns: Some(columns_of), bound_by: Some(&[]), ..Opening::NONE },
};

static OPTIONS: [OptionDescription; COMMON_OPTIONS.len() + 1] = with_common([OptionDescription {
    name: "devices",
    kind: OptionKind::Integer { min: 1, max: 1_000_000_000 },
    default: Some("1000"),
    help: "How many sensors there are.",
}]);

/// The content of a column.
#[derive(Clone, Copy, Debug)]
enum Value {
    Time,
    Device,
    Name,
    Temperature,
    Humidity,
    Battery,
    IsFaulty,
}

const COLUMNS: [(&str, Value); 7] = [
    (EVENT_TIME, Value::Time),
    ("device", Value::Device),
    ("name", Value::Name),
    ("temperature", Value::Temperature),
    ("humidity", Value::Humidity),
    ("battery", Value::Battery),
    ("is_faulty", Value::IsFaulty),
];

fn schema() -> Schema {
    let field = |(name, value): (&str, Value)| {
        let data_type = match value {
            Value::Time => DataType::Timestamp(TimeUnit::Microsecond, None),
            Value::Device => DataType::Int64,
            Value::Name => DataType::Utf8,
            Value::IsFaulty => DataType::Boolean,
            Value::Temperature | Value::Humidity | Value::Battery => DataType::Float64,
        };
        Field::new(name, data_type, false)
    };
    Schema::new(COLUMNS.map(field).to_vec())
}

fn columns_of(address: &str, _files: &Files) -> Result<Option<Schema>, ConnectorError> {
    Ok(address.trim().is_empty().then(|| with_event_time(schema(), EVENT_TIME)))
}

fn open(spec: &SourceSpec, options: &Options, partitions: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    expect_one_stream(NAME, spec, "is no kind of sensor")?;
    let common = StreamOptions::from(options)?;
    let columns: Vec<Value> =
        choose_columns(NAME, spec, &schema())?.into_iter().map(|place| COLUMNS[place].1).collect();
    let maker = Readings {
        seed: Seed::new(common.seed),
        devices: options.count("devices").unwrap_or(1) as u64,
        schedule: Schedule::new(common.event_rate, common.shape),
        base_us: common.base_us,
        columns,
        schema: spec.read_schema(),
    };
    common.partitions(NAME, spec, Pattern::ALL, partitions, || maker.clone())
}

/// Makes the columns that are read.
#[derive(Clone)]
struct Readings {
    seed: Seed,
    devices: u64,
    schedule: Schedule,
    base_us: i64,
    columns: Vec<Value>,
    schema: SchemaRef,
}

impl Readings {
    fn time_us(&self, number: u64) -> i64 {
        self.base_us + self.schedule.offset_us(number)
    }

    /// Returns degrees Celsius, with two decimals as sensors have them.
    fn temperature(&self, number: u64) -> f64 {
        const DAY_US: i64 = 86_400_000_000;
        /// The warmest hour is 14, the coldest 2.
        const COLDEST_US: i64 = 7_200_000_000;
        let of_day = (self.time_us(number) - COLDEST_US).rem_euclid(DAY_US) as f64 / DAY_US as f64;
        let warmth = 1.0 - (2.0 * of_day - 1.0).abs();
        let of_device = self.seed.draws(number % self.devices, 0).normal() * 1.5;
        hundredths(17.0 + 8.0 * warmth + of_device + 0.2 * self.seed.draws(number, 1).normal())
    }

    /// Returns percent.
    fn humidity(&self, number: u64) -> f64 {
        let dryness = (self.temperature(number) - 10.0) * 1.8;
        hundredths((75.0 - dryness + self.seed.draws(number, 2).normal()).clamp(5.0, 100.0))
    }

    /// Returns volts: the voltage falls slowly with the number of reports, and the battery is changed from time to
    /// time.
    fn battery(&self, number: u64) -> f64 {
        let reports = number / self.devices + self.seed.draws(number % self.devices, 3).below(100_000);
        hundredths(3.0 - (reports % 100_000) as f64 / 100_000.0)
    }
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Maker for Readings {
    fn make(&mut self, numbers: &[u64]) -> Result<RecordBatch, SourceError> {
        let each = || numbers.iter().copied();
        let floats = |value: fn(&Self, u64) -> f64| -> ArrayRef {
            Arc::new(Float64Array::from_iter_values(each().map(|number| value(self, number))))
        };
        let column = |value: &Value| -> ArrayRef {
            match value {
                Value::Time => {
                    Arc::new(TimestampMicrosecondArray::from_iter_values(each().map(|number| self.time_us(number))))
                }
                Value::Device => {
                    Arc::new(Int64Array::from_iter_values(each().map(|number| (number % self.devices) as i64)))
                }
                Value::Name => {
                    let mut column = TextColumn::with_capacity(numbers.len(), 16);
                    for number in each() {
                        column.push("sensor-");
                        column.push_number(number % self.devices, 1);
                        column.end();
                    }
                    column.finish()
                }
                Value::Temperature => floats(Self::temperature),
                Value::Humidity => floats(Self::humidity),
                Value::Battery => floats(Self::battery),
                Value::IsFaulty => {
                    let is_faulty = |number| Some(self.seed.draws(number, 4).below(FAULTS) == 0);
                    Arc::new(each().map(is_faulty).collect::<BooleanArray>())
                }
            }
        };
        let options = RecordBatchOptions::new().with_row_count(Some(numbers.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), self.columns.iter().map(column).collect(), &options)
            .map_err(|error| SourceError(format!("sensor readings: {error}")))
    }
}
