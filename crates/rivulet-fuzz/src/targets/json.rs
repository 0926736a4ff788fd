//! JSON payloads. What is accepted is JSON by the standard (`serde_json` says so), each value is the one that stands
//! there, and what is written is read again.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema, SchemaRef};
use rivulet_connectors::formats::Format;
use rivulet_dataflow::{Batch, any_json, map_of, marked_as};
use serde_json::Value;

use super::payload::{columns, decode, payloads, round_trip};
use crate::Target;
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target {
    name: "json",
    run,
    words: &[
        "{\"t\":",
        "\"v\":",
        "\"n\":1",
        "\"s\":\"",
        "\"a\":{",
        "\"b\":{",
        "null",
        "true",
        "false",
        "1e5",
        "-0.0",
        "\\u00e9",
        "\\ud83d\\ude00",
        "[{",
        "}]",
        "},{",
        "2026-11-22T01:02:03Z",
        "9223372036854775807",
        "1e308",
        "  ",
        "\n",
    ],
    mutations: 8_000,
};

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let choice = input.byte();
    let is_nested = choice & 1 != 0;
    let schema = columns(is_nested);
    let event_time = (choice & 2 != 0).then_some(0);
    let mut decoder = Format::Json.decoder(schema.clone(), event_time).expect("the columns suit the format");
    let payloads = payloads(input.rest());
    let batch = decode(&mut *decoder, &payloads);
    for (place, payload) in payloads.iter().enumerate() {
        let rows: Vec<usize> = (0..batch.rows()).filter(|&row| batch.slots[row] as usize == place).collect();
        if rows.is_empty() {
            continue;
        }
        // Numbers beyond its range are refused by that library alone.
        let value = match serde_json::from_slice::<Value>(payload) {
            Ok(value) => value,
            Err(error) if error.to_string().contains("out of range") => continue,
            Err(error) => panic!("{error} in what was accepted: {}", String::from_utf8_lossy(payload)),
        };
        let records = if let Value::Array(records) = value { records } else { vec![value] };
        assert_eq!(records.len(), rows.len(), "a row for each object");
        if !is_nested && !has_twice(payload) {
            records.iter().zip(rows).for_each(|(record, row)| same_values(record, &batch, row));
        }
    }
    let mut encoder = Format::Json.encoder(schema).expect("the columns suit the format");
    round_trip(&batch, &mut *encoder, &mut *decoder);
    let schema = values_with_parts();
    let mut decoder = Format::Json.decoder(schema.clone(), None).expect("the columns suit the format");
    let batch = decode(&mut *decoder, &payloads);
    for column in batch.columns.columns() {
        for text in column.as_string::<i32>().iter().flatten() {
            if let Err(error) = serde_json::from_str::<Value>(text) {
                assert!(error.to_string().contains("out of range"), "what is held is JSON: {text}");
            }
        }
    }
    let mut encoder = Format::Json.encoder(schema).expect("the columns suit the format");
    round_trip(&batch, &mut *encoder, &mut *decoder);
}

/// A map, a row and an array of rows, with all kinds of parts.
fn values_with_parts() -> SchemaRef {
    let of = |name: &str, data_type| Field::new(name, data_type, true);
    let list = |part: Field| DataType::List(Arc::new(part.with_name("item")));
    let fields = vec![
        of("v", DataType::Float64),
        of("n", DataType::Int64),
        of("s", list(of("", DataType::Utf8))),
        of("f", map_of(of("", DataType::Boolean))),
        any_json().with_name("b"),
    ];
    let row = DataType::Struct(fields.into());
    let columns = [("a", map_of(of("", DataType::Float64))), ("b", row.clone()), ("t", list(of("", row)))];
    let columns = columns.map(|(name, held)| marked_as(of(name, DataType::Utf8), &held));
    Arc::new(Schema::new(columns.to_vec()))
}

/// Whether a key may be there more than once, by another spelling too: which of several counts is no question of the
/// standard.
fn has_twice(payload: &[u8]) -> bool {
    let keys = |key: u8| payload.iter().filter(|byte| byte.eq_ignore_ascii_case(&key)).count();
    payload.contains(&b'\\') || [b't', b'v', b'n', b's', b'f'].into_iter().any(|key| keys(key) > 1)
}

fn same_values(record: &Value, batch: &Batch, row: usize) {
    let is_null = |column: usize| batch.column(column).is_null(row);
    let find = |key: &str| {
        let fields = record.as_object().expect("a record is an object");
        fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map_or(&Value::Null, |(_, value)| value)
    };
    let named = find("v").as_str().and_then(|name| name.parse::<f64>().ok()).filter(|number| !number.is_finite());
    match find("v").as_f64() {
        // What is not finite has a name.
        None => assert!(is_null(1) || named.is_some()),
        Some(value) => {
            // There is one zero.
            let value = if value == 0.0 { 0.0 } else { value };
            let found = batch.column(1).as_primitive::<Float64Type>().value(row);
            // That library rounds the last digit wrongly now and then.
            assert!(found.to_bits().abs_diff(value.to_bits()) <= 1, "{found} {value}");
        }
    }
    match find("n") {
        Value::Null => assert!(is_null(2)),
        number => {
            let found = batch.column(2).as_primitive::<Int64Type>().value(row);
            if let Some(value) = number.as_i64() {
                assert_eq!(found, value);
            }
        }
    }
    match find("s").as_str() {
        None => assert!(is_null(3)),
        Some(text) => assert_eq!(batch.column(3).as_string::<i32>().value(row), text),
    }
    match find("f").as_bool() {
        None => assert!(is_null(4)),
        Some(flag) => assert_eq!(batch.column(4).as_boolean().value(row), flag),
    }
}
