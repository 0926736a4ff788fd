//! `hibench:` visits of web pages, as the streaming workloads of HiBench read them.

mod visits;

use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_connectors::connector::description::Opening;
use rivulet_connectors::connector::{
    ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, OptionDescription, OptionKind, Options,
    SourceSpec,
};
use rivulet_connectors::files::Files;
use rivulet_dataflow::{Source, SourceError};

use super::options::{COMMON_OPTIONS, StreamOptions, choose_columns, expect_one_stream, with_common, with_event_time};
use super::schedule::Schedule;
use super::source::Maker;
use super::text::TextColumn;
use super::walk::Pattern;

use visits::{Text, Visits};

const NAME: &str = "hibench";

/// The column of the event time.
const EVENT_TIME: &str = "ts";

/// What it is.
pub(crate) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Generates the visits of web pages that HiBench's streaming workloads read.",
    address: "nothing",
    source: Some(DirectionDescription {
        help: "The columns need not be declared: `record` is the whole line of 187 bytes, the others are its parts. A visit is a \
               function of the seed and its number, whatever the partitions, and only columns that are read are made.",
        formats: &[],
        guarantees: &[("", Guarantee::ExactlyOnce)],
        options: &OPTIONS,
    }),
    sink: None,
    example: "CREATE SOURCE visits FROM 'hibench:' WITH (events => 1000000, ips => 1000);",
    open: Opening { source: Some(open), columns: Some(columns_of), bound_by: Some(&[]), ..Opening::NONE },
};

static OPTIONS: [OptionDescription; COMMON_OPTIONS.len() + 2] = with_common([
    OptionDescription {
        name: "rows",
        kind: OptionKind::Integer { min: 1, max: 1_000_000_000 },
        default: Some("1000000"),
        help: "How many different visits there are; they are read round and round.",
    },
    OptionDescription {
        name: "ips",
        kind: OptionKind::Integer { min: 1, max: 1_000_000_000 },
        default: Some("1000000"),
        help: "How many different addresses visitors have.",
    },
]);

/// What a column has.
#[derive(Clone, Copy, Debug)]
enum Value {
    Time,
    Revenue,
    Duration,
    Text(Text),
}

const COLUMNS: [(&str, Value); 11] = [
    (EVENT_TIME, Value::Time),
    ("record", Value::Text(Text::Record)),
    ("ip", Value::Text(Text::Ip)),
    ("url", Value::Text(Text::Url)),
    ("visit_date", Value::Text(Text::Date)),
    ("ad_revenue", Value::Revenue),
    ("user_agent", Value::Text(Text::UserAgent)),
    ("country_code", Value::Text(Text::CountryCode)),
    ("language_code", Value::Text(Text::LanguageCode)),
    ("search_word", Value::Text(Text::SearchWord)),
    ("duration_s", Value::Duration),
];

fn schema() -> Schema {
    let field = |(name, value): (&str, Value)| {
        let data_type = match value {
            Value::Time => DataType::Timestamp(TimeUnit::Microsecond, None),
            Value::Revenue => DataType::Float64,
            Value::Duration => DataType::Int64,
            Value::Text(_) => DataType::Utf8,
        };
        Field::new(name, data_type, false)
    };
    Schema::new(COLUMNS.map(field).to_vec())
}

fn columns_of(address: &str, _files: &Files) -> Result<Option<Schema>, ConnectorError> {
    Ok(address.trim().is_empty().then(|| with_event_time(schema(), EVENT_TIME)))
}

fn open(spec: &SourceSpec, options: &Options, partitions: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    expect_one_stream(NAME, spec, "is no stream of the benchmark")?;
    let common = StreamOptions::from(options)?;
    let columns: Vec<Value> =
        choose_columns(NAME, spec, &schema())?.into_iter().map(|place| COLUMNS[place].1).collect();
    let count = |name| options.count(name).unwrap_or(1) as u64;
    let maker = VisitColumns {
        visits: Visits::new(common.seed, count("rows"), count("ips")),
        schedule: Schedule::new(common.event_rate, common.shape),
        base_us: common.base_us,
        columns,
        schema: spec.read_schema(),
    };
    common.partitions(NAME, spec, Pattern::ALL, partitions, || maker.clone())
}

/// Makes the columns that are read.
#[derive(Clone)]
struct VisitColumns {
    visits: Visits,
    schedule: Schedule,
    base_us: i64,
    columns: Vec<Value>,
    schema: SchemaRef,
}

impl Maker for VisitColumns {
    fn make(&mut self, numbers: &[u64]) -> Result<RecordBatch, SourceError> {
        let visits = &self.visits;
        let each = || numbers.iter().copied();
        let column = |value: &Value| match *value {
            Value::Time => {
                let time_us = |number| self.base_us + self.schedule.offset_us(number) / 1_000 * 1_000;
                Arc::new(TimestampMicrosecondArray::from_iter_values(each().map(time_us))) as _
            }
            Value::Revenue => {
                Arc::new(Float64Array::from_iter_values(each().map(|number| visits.revenue(number)))) as _
            }
            Value::Duration => {
                Arc::new(Int64Array::from_iter_values(each().map(|number| visits.duration_s(number)))) as _
            }
            Value::Text(text) => {
                let mut column = TextColumn::with_capacity(numbers.len(), Visits::typical_length(text));
                for number in each() {
                    visits.push(text, number, &mut column);
                    column.end();
                }
                column.finish()
            }
        };
        let options = RecordBatchOptions::new().with_row_count(Some(numbers.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), self.columns.iter().map(column).collect(), &options)
            .map_err(|error| SourceError(format!("HiBench visits: {error}")))
    }
}
