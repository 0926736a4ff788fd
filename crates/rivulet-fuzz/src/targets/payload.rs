//! What holds for payloads in every format: no event vanishes, none harms another, and what is written is read again as
//! the same.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_connectors::formats::{EncodedRows, Encoder, Format, InputFormat, Times, several_inputs};
use rivulet_connectors::mqtt::TopicPart;
use rivulet_dataflow::{Batch, Decoder, Events, Reason, Refusals};
use rivulet_sql::Application;

/// The most payloads of one input.
const PAYLOADS_MAX: usize = 16;

/// The arrival time of all payloads.
const ARRIVAL_US: i64 = 1_763_772_123_000_000;

/// Refusals that are kept in words.
const RECORDS_MAX: usize = 64;

/// A column of each type. Only those named in `nested` have a dot in their name.
pub(crate) fn columns(nested: bool) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    let named = [
        ("t", time),
        ("v", DataType::Float64),
        ("n", DataType::Int64),
        ("s", DataType::Utf8),
        ("f", DataType::Boolean),
    ];
    let prefixes = ["", "a.", "a.b.", "", "a."];
    let fields = named.into_iter().zip(prefixes).map(|((name, data_type), prefix)| {
        Field::new(if nested { format!("{prefix}{name}") } else { name.to_owned() }, data_type, true)
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The same columns, each able to hold any text.
pub(crate) fn texts(count: usize) -> SchemaRef {
    let fields = (0..count).map(|number| Field::new(format!("c{number}"), DataType::Utf8, true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The payloads of an input: the bytes between zeros.
pub(crate) fn payloads(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split(|&byte| byte == 0).take(PAYLOADS_MAX).collect()
}

/// Decodes payloads together and each alone, and checks that the results are equal.
pub(crate) fn decode(decoder: &mut dyn Decoder, payloads: &[&[u8]]) -> Batch {
    let (together, refused) = decode_batch(decoder, payloads);
    let mut alone = Vec::new();
    let mut refused_alone = 0;
    for (place, payload) in payloads.iter().enumerate() {
        let (batch, refused) = decode_batch(decoder, &[payload]);
        let rows = together.slots.iter().filter(|&&slot| slot as usize == place).count();
        assert_eq!(batch.rows(), rows, "payload {place} gives as many rows in company as alone");
        assert_eq!(refused == 0, rows > 0, "payload {place} gives rows or is refused");
        refused_alone += refused;
        alone.push(batch.columns);
    }
    assert_eq!(refused, refused_alone);
    let alone = concat_batches(together.columns.schema_ref(), &alone).expect("the columns are the same");
    assert_same(&together.columns, &alone);
    together
}

fn decode_batch(decoder: &mut dyn Decoder, payloads: &[&[u8]]) -> (Batch, u64) {
    let mut events = Events::default();
    for (place, payload) in payloads.iter().enumerate() {
        events.push(place as u32, ARRIVAL_US, payload);
    }
    let mut refusals = Refusals::new(RECORDS_MAX);
    let batch = decoder.decode(&events, &mut refusals);
    assert!(batch.slots.is_sorted(), "rows are in the order of their events");
    assert!(refusals.records().iter().all(|refusal| !refusal.detail.is_empty()), "a refusal says why");
    (batch, refusals.counted(Reason::Decode))
}

/// Writes rows and reads them again.
pub(crate) fn round_trip(batch: &Batch, encoder: &mut dyn Encoder, decoder: &mut dyn Decoder) {
    let mut written = EncodedRows::default();
    encoder.encode(batch, &mut written);
    assert_eq!(written.rows(), batch.rows(), "a payload for each row");
    let payloads: Vec<&[u8]> = written.iter().collect();
    let mut refusals = Refusals::new(RECORDS_MAX);
    let mut events = Events::default();
    payloads.iter().for_each(|payload| events.push(0, 0, payload));
    let again = decoder.decode(&events, &mut refusals);
    assert!(refusals.is_empty(), "what was written can be read: {:?} of {:?}", refusals.records(), batch.columns);
    assert_same(&batch.columns, &again.columns);
    assert_eq!(batch.retracts, again.retracts);
}

pub(crate) fn assert_same(one: &RecordBatch, other: &RecordBatch) {
    assert_eq!(one.columns(), other.columns());
}

/// What reads the events of an application, all of its inputs as JSON.
pub(crate) fn decoder_of(application: &Application) -> Box<dyn Decoder> {
    let formats = application.inputs.iter().map(|input| InputFormat {
        format: Format::Json,
        times: Times::default(),
        schema: input.declared.clone(),
        event_time_column: input.event_time,
        topic_columns: input.topic.whole.map(|column| (column, TopicPart::Whole)).into_iter().collect(),
    });
    let mut formats: Vec<InputFormat> = formats.collect();
    match formats.len() {
        1 => formats.remove(0).decoder(),
        _ => several_inputs(formats, application.row_schema.clone()),
    }
    .expect("columns were checked when the application was planned")
}
