//! Payloads with arrays, maps and rows, as JSON. What is held does not depend on the order of keys or on company, and
//! is written and read again as the same; as CSV too, where it is text.

use std::sync::OnceLock;

use arrow::datatypes::SchemaRef;
use rivulet_connectors::formats::Format;
use rivulet_sql::{Statement, parse_script};

use super::payload::{decode, payloads, round_trip};
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "nested_payloads",
    run,
    words: &[
        "{\"m\":{\"a\":1.5,\"b\":2}}",
        "\"r\":{\"x\":1,\"tags\":[\"p\",null]}",
        "\"p\":[{\"x\":1},{\"tags\":[]}]",
        "\"g\":{\"lat\":48.5,\"in\":{\"n\":7}}",
        "\"d\":1.25",
        "\"j\":[{}]",
        "\"a\":[1,2]",
        "null",
        "1e400",
        "9223372036854775808",
        "\\u0000",
        "\\ud83d",
        "[[[[",
        "{\"a\":{\"a\":{\"a\":",
        "}}}",
        ",",
    ],
    mutations: 8_000,
};

/// A column of each kind of parts.
const SOURCE: &str = "CREATE SOURCE s (m MAP<TEXT, DOUBLE>, n MAP<TEXT, BIGINT ARRAY>, j MAP<TEXT, JSON>,
    r ROW<x DOUBLE, tags TEXT ARRAY>, p ARRAY<ROW<x BIGINT, ok BOOLEAN>>, g ROW<lat DOUBLE, within ROW<n BIGINT>>,
    a BIGINT ARRAY, d DECIMAL(6, 2), s TEXT) FROM 'file:x'";

fn run(bytes: &[u8]) {
    let schema = schema();
    let mut decoder = Format::Json.decoder(schema.clone(), None).expect("the columns suit the format");
    let batch = decode(&mut *decoder, &payloads(bytes));
    let mut encoder = Format::Json.encoder(schema.clone()).expect("the columns suit the format");
    round_trip(&batch, &mut *encoder, &mut *decoder);
    let format = Format::Csv { delimiter: b',' };
    let (encoder, decoder) = (format.encoder(schema.clone()), format.decoder(schema.clone(), None));
    let (mut encoder, mut decoder) = (encoder.expect("texts"), decoder.expect("texts"));
    round_trip(&batch, &mut *encoder, &mut *decoder);
}

fn schema() -> &'static SchemaRef {
    static SCHEMA: OnceLock<SchemaRef> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let statements = parse_script(SOURCE).unwrap_or_else(|error| panic!("{}", error.render(SOURCE)));
        let Some((Statement::CreateSource(create), _)) = statements.first() else { panic!("a source") };
        create.declare(|_, _| None).unwrap_or_else(|error| panic!("{}", error.render(SOURCE))).schema
    })
}
