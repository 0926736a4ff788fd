//! Changes of rows, as Debezium writes them. A change gives the rows that its operation says, and what is written is
//! read again.

use rivulet_connectors::files::Files;
use rivulet_connectors::formats::RowFormat;
use serde_json::Value;

use super::payload::{columns, decode, payloads, round_trip};
use crate::Target;
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target {
    name: "debezium",
    run,
    words: &[
        "{\"before\":{",
        "\"after\":{",
        "\"op\":\"c\"",
        "\"op\":\"u\"",
        "\"op\":\"d\"",
        "\"op\":\"t\"",
        "{\"schema\":{},\"payload\":{",
        "\"n\":1",
        "\"s\":\"x\"",
        "null",
        "}",
        "},",
        "{",
        "\\u006f",
        "[",
    ],
    mutations: 6_000,
};

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let choice = input.byte();
    let schema = columns(choice & 1 != 0);
    let event_time = (choice & 2 != 0).then_some(0);
    let format = RowFormat::parse("DEBEZIUM", [], &Files::default()).expect("there is such a format");
    let mut decoder = format.decoder(&schema, &[0, 1, 2, 3, 4], event_time).expect("the columns suit the format");
    // A tombstone is neither a row nor refused.
    let payloads: Vec<&[u8]> = payloads(input.rest()).into_iter().filter(|payload| !is_tombstone(payload)).collect();
    let batch = decode(&mut *decoder, &payloads);
    for (place, payload) in payloads.iter().enumerate() {
        let rows = (0..batch.rows()).filter(|&row| batch.slots[row] as usize == place);
        let marks: Vec<bool> = rows.map(|row| batch.is_retraction(row)).collect();
        if marks.is_empty() {
            continue;
        }
        // Numbers beyond its range are refused by that library alone.
        let value = match serde_json::from_slice::<Value>(payload) {
            Ok(value) => value,
            Err(error) if error.to_string().contains("out of range") => continue,
            Err(error) => panic!("{error} in what was accepted: {}", String::from_utf8_lossy(payload)),
        };
        let change = if value.get("op").is_none() { &value["payload"] } else { &value };
        let expected: &[bool] = match change["op"].as_str() {
            Some("c" | "r") => &[false],
            Some("u") => &[true, false],
            Some("d") => &[true],
            other => panic!("the operation {other:?} was accepted"),
        };
        assert_eq!(marks, expected, "{}", String::from_utf8_lossy(payload));
    }
    let mut encoder = format.encoder(schema).expect("the columns suit the format");
    round_trip(&batch, &mut *encoder, &mut *decoder);
}

fn is_tombstone(payload: &[u8]) -> bool {
    let value = serde_json::from_slice::<Value>(payload);
    value.is_ok_and(|value| value.is_null() || value.get("op").is_none() && value.get("payload") == Some(&Value::Null))
}
