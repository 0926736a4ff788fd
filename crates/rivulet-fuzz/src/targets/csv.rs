//! CSV payloads. Fields are those that a reference finds character by character; numbers and times are those that other
//! formats make of the same text; what is written is read again.

use arrow::array::{Array, AsArray};
use rivulet_connectors::formats::{Format, decode_table};

use super::payload::{columns, decode, payloads, round_trip, texts};
use crate::input::Input;
use crate::{Target, reference};

/// See the module.
pub const TARGET: Target = Target {
    name: "csv",
    run,
    words: &[
        ",",
        "\"\"",
        "\"",
        "\r\n",
        "\n",
        ";",
        "\t",
        "2026-11-22T01:02:03Z",
        "1e5",
        "-0.5",
        "true",
        ",,,,",
        "9223372036854775807",
    ],
    mutations: 8_000,
};

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let delimiter = input.pick(b",;\t 1.a");
    let fields = input.pick(&[1, 2, 5, 3]);
    let format = Format::Csv { delimiter };
    let payloads = payloads(input.rest());
    let schema = texts(fields);
    let mut decoder = format.decoder(schema.clone(), None).expect("the columns suit the format");
    let batch = decode(&mut *decoder, &payloads);
    let mut row = 0;
    for payload in &payloads {
        let Some(records) = reference::csv(payload, delimiter, fields) else { continue };
        for record in records {
            for (column, expected) in record.iter().enumerate() {
                let found = batch.column(column).as_string::<i32>();
                let found = found.is_valid(row).then(|| found.value(row).as_bytes());
                assert_eq!(found, expected.as_deref(), "row {row}, column {column}");
            }
            row += 1;
        }
    }
    assert_eq!(row, batch.rows(), "what the reference refuses is refused");
    // A row without any value, of one column, is an empty payload.
    if fields > 1 {
        let mut encoder = format.encoder(schema.clone()).expect("the columns suit the format");
        round_trip(&batch, &mut *encoder, &mut *decoder);
    }
    for payload in &payloads {
        // A table's file, with and without a header.
        let _ = decode_table(format, true, schema.clone(), payload);
        if let Ok(table) = decode_table(format, false, schema.clone(), payload) {
            assert_eq!(table.num_columns(), fields);
        }
    }
    if fields == 5 {
        let schema = columns(false);
        let mut decoder = format.decoder(schema.clone(), None).expect("the columns suit the format");
        let batch = decode(&mut *decoder, &payloads);
        let mut encoder = format.encoder(schema).expect("the columns suit the format");
        round_trip(&batch, &mut *encoder, &mut *decoder);
    }
}
