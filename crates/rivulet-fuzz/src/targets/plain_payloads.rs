//! Payloads in SenML, as one bare value, and as they are. What is written is read again where a format can say all of a
//! row.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{Format, RowFormat};

use super::payload::{columns, decode, payloads, round_trip};
use crate::Target;
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target {
    name: "plain_payloads",
    run,
    words: &[
        "[{\"bn\":\"",
        "\"n\":\"v\"",
        "\"v\":1",
        "\"vs\":\"x\"",
        "\"vb\":true",
        "\"bt\":1e9",
        "\"t\":-5",
        "\"bu\":\"Cel\"",
        "\"bv\":2",
        "\"bver\":10",
        "},{",
        "}]",
        "2026-11-22T01:02:03Z",
        "true",
        "1.5",
        "null",
        "deadbeef",
        "aGVsbG8=",
    ],
    mutations: 6_000,
};

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (format, choice) = (input.below(4), input.byte());
    let payloads = payloads(input.rest());
    let time = || DataType::Timestamp(TimeUnit::Microsecond, None);
    match format {
        0 => {
            let fields = [
                ("name", DataType::Utf8),
                ("unit", DataType::Utf8),
                ("value", DataType::Float64),
                ("text", DataType::Utf8),
                ("flag", DataType::Boolean),
                ("time", time()),
            ];
            let schema = schema(fields.to_vec());
            let mut decoder = Format::SenMl.decoder(schema, None).expect("the columns suit the format");
            decode(&mut *decoder, &payloads);
        }
        1 => {
            let event_time = (choice & 1 != 0).then_some(0);
            let mut decoder =
                Format::SenMlPivot.decoder(columns(false), event_time).expect("the columns suit the format");
            decode(&mut *decoder, &payloads);
        }
        2 => {
            let types = [DataType::Utf8, DataType::Float64, DataType::Int64, DataType::Boolean, time()];
            let schema = schema(vec![("x", types[usize::from(choice) % types.len()].clone())]);
            let mut decoder = Format::Text.decoder(schema.clone(), None).expect("the column suits the format");
            let batch = decode(&mut *decoder, &payloads);
            // Null is an empty payload, which is refused.
            if batch.column(0).null_count() == 0 {
                round_trip(&batch, &mut *Format::Text.encoder(schema).expect("the column suits"), &mut *decoder);
            }
        }
        _ => {
            let schema = schema(vec![("x", DataType::Utf8)]);
            let encodings = ["utf8", "hex", "base64"];
            let options = [("encoding", encodings[usize::from(choice) % encodings.len()])];
            let Ok(format) = RowFormat::parse("RAW", options, &Files::default()) else { panic!("RAW has {options:?}") };
            let mut decoder = format.decoder(&schema, &[0], None).expect("the column suits the format");
            let batch = decode(&mut *decoder, &payloads);
            round_trip(&batch, &mut *format.encoder(schema).expect("the column suits"), &mut *decoder);
        }
    }
}

fn schema(fields: Vec<(&str, DataType)>) -> SchemaRef {
    Arc::new(Schema::new(
        fields.into_iter().map(|(name, data_type)| Field::new(name, data_type, true)).collect::<Vec<_>>(),
    ))
}
