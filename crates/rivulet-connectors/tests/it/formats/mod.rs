//! What the format tests share: short ways to declare columns, decode payloads and look at rows.

mod arrays;
mod binary;
mod maps;
mod nested;
mod properties;
mod text;
mod types;

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    DataType, Field, Float64Type, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType,
};
use rivulet_connectors::formats::Format;
use rivulet_dataflow::{Batch, Decoder, Events, Reason, Refusals, Refused, canonical_float, marked_as_array};

/// When every event of these tests arrives, microseconds since the epoch (2026-11-21).
pub(crate) const ARRIVAL_US: i64 = 1_795_219_200_000_000;

pub(crate) fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

/// Columns from `"name TYPE, name TYPE NOT NULL, name TYPE[]"`.
pub(crate) fn columns(declared: &str) -> SchemaRef {
    let fields: Vec<Field> = declared
        .split(',')
        .map(|column| {
            let mut words = column.split_whitespace();
            let name = words.next().expect("a name");
            let data_type = |name: &str| match name {
                "BOOLEAN" => DataType::Boolean,
                "BIGINT" => DataType::Int64,
                "DOUBLE" => DataType::Float64,
                "TEXT" => DataType::Utf8,
                "TIMESTAMP" => timestamp(),
                other => panic!("no type {other}"),
            };
            let data_type_name = words.next().expect("a type");
            let is_nullable = words.next().is_none();
            match data_type_name.strip_suffix("[]") {
                Some(element) => {
                    let element = Field::new("element", data_type(element), true);
                    marked_as_array(Field::new(name, DataType::Utf8, is_nullable), &element)
                }
                None => Field::new(name, data_type(data_type_name), is_nullable),
            }
        })
        .collect();
    Arc::new(Schema::new(fields))
}

pub(crate) fn events(payloads: &[impl AsRef<[u8]>]) -> Events {
    let mut events = Events::default();
    for (slot, payload) in payloads.iter().enumerate() {
        events.push(slot as u32, ARRIVAL_US + slot as i64, payload.as_ref());
    }
    events
}

/// One cell, comparable: floats by their bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Boolean(bool),
    Int64(i64),
    Float64(u64),
    Text(String),
    Timestamp(i64),
}

/// A number as decoders give it.
pub(crate) fn float(value: f64) -> Cell {
    Cell::Float64(canonical_float(value).to_bits())
}

pub(crate) fn text(value: &str) -> Cell {
    Cell::Text(value.into())
}

pub(crate) fn cell(batch: &Batch, column: usize, row: usize) -> Cell {
    let array = batch.column(column);
    if array.is_null(row) {
        return Cell::Null;
    }
    match array.data_type() {
        DataType::Boolean => Cell::Boolean(array.as_boolean().value(row)),
        DataType::Int64 => Cell::Int64(array.as_primitive::<Int64Type>().value(row)),
        DataType::Float64 => Cell::Float64(array.as_primitive::<Float64Type>().value(row).to_bits()),
        DataType::Utf8 => text(array.as_string::<i32>().value(row)),
        _ => Cell::Timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row)),
    }
}

/// All rows with their slots.
pub(crate) fn rows(batch: &Batch) -> Vec<(u32, Vec<Cell>)> {
    let width = batch.columns.num_columns();
    (0..batch.rows())
        .map(|row| {
            // The slot of an event is its number, and its arrival follows from that.
            assert_eq!(batch.arrival_us[row], ARRIVAL_US + i64::from(batch.slots[row]));
            assert_eq!(batch.event_time_us[row], batch.arrival_us[row]);
            (batch.slots[row], (0..width).map(|column| cell(batch, column, row)).collect())
        })
        .collect()
}

pub(crate) fn decode_with(decoder: &mut dyn Decoder, payloads: &[impl AsRef<[u8]>]) -> (Batch, Refusals) {
    let mut refusals = Refusals::new(usize::MAX);
    let batch = decoder.decode(&events(payloads), &mut refusals);
    for refusal in refusals.records() {
        let Refused::Payload(payload) = &refusal.content else { panic!("a payload is kept") };
        assert_eq!(&payload[..], payloads[refusal.slot as usize].as_ref());
        assert_eq!((refusal.reason, refusal.arrival_us), (Reason::Decode, ARRIVAL_US + i64::from(refusal.slot)));
        assert!(!refusal.detail.is_empty() && !refusal.detail.contains('\n') && refusal.detail.len() < 400);
    }
    (batch, refusals)
}

/// The cells of the only row of one payload, or why it was refused.
pub(crate) fn one(format: Format, declared: &str, payload: impl AsRef<[u8]>) -> Result<Vec<Cell>, String> {
    let mut all = several(format, declared, None, payload)?;
    assert_eq!(all.len(), 1, "one row");
    Ok(all.remove(0))
}

/// The rows of one payload, or why it was refused.
pub(crate) fn several(
    format: Format,
    declared: &str,
    event_time_column: Option<usize>,
    payload: impl AsRef<[u8]>,
) -> Result<Vec<Vec<Cell>>, String> {
    let mut decoder = format.decoder(columns(declared), event_time_column).expect("the columns suit the format");
    let (batch, refusals) = decode_with(&mut *decoder, &[payload]);
    match refusals.records() {
        [] => Ok(rows(&batch).into_iter().map(|(_, cells)| cells).collect()),
        [refusal] => {
            assert_eq!(batch.rows(), 0, "a refused event leaves no row");
            Err(refusal.detail.clone())
        }
        _ => panic!("one event is refused once"),
    }
}
