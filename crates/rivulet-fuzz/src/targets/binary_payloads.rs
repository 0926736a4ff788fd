//! Avro and Protobuf payloads. What is written is read again.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::RowFormat;
use rivulet_dataflow::{map_of, marked_as_array, part_field};

use super::payload::{columns, decode, round_trip};
use crate::input::Input;
use crate::{Target, scratch};

/// See the module.
pub const TARGET: Target =
    Target { name: "binary_payloads", run, words: &["\u{1}", "\u{0}", "text"], mutations: 8_000 };

const AVRO: &str = r#"{"type": "record", "name": "Row", "fields": [
    {"name": "other", "type": {"type": "array", "items": {"type": "map", "values": ["null", "string", "bytes"]}}},
    {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "v", "type": ["null", "double"]},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "n", "type": ["long", "null"]},
    {"name": "s", "type": ["null", "string"]},
    {"name": "f", "type": ["null", "boolean"]},
    {"name": "again", "type": ["null", "Row"]},
    {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 3}}
]}"#;

/// What can be written from the columns alone.
const AVRO_WRITTEN: &str = r#"{"type": "record", "name": "Row", "fields": [
    {"name": "t", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "v", "type": ["null", "double"]},
    {"name": "n", "type": ["null", "long"]},
    {"name": "s", "type": ["null", "string"]},
    {"name": "f", "type": ["null", "boolean"]}
]}"#;

const PROTO: &str = r#"
    syntax = "proto3";
    import "google/protobuf/timestamp.proto";
    message Row {
        optional google.protobuf.Timestamp t = 1;
        optional double v = 2;
        optional sint64 n = 3;
        optional string s = 4;
        optional bool f = 5;
        message Other { repeated int32 numbers = 1; map<string, Other> more = 2; }
        repeated Other others = 6;
    }
"#;

/// Arrays, and a map, an array and a row of rows.
const AVRO_PARTS: &str = r#"{"type": "record", "name": "Row", "fields": [
    {"name": "n", "type": {"type": "array", "items": ["null", "long"]}},
    {"name": "v", "type": ["null", {"type": "array", "items": ["double", "null"]}]},
    {"name": "f", "type": {"type": "array", "items": "boolean"}},
    {"name": "s", "type": ["null", {"type": "array", "items": "string"}]},
    {"name": "m", "type": {"type": "map", "values": ["null", {"type": "record", "name": "P", "fields": [
        {"name": "other", "type": ["null", {"type": "map", "values": "P"}]},
        {"name": "x", "type": ["double", "null"]},
        {"name": "tags", "type": ["null", {"type": "map", "values": ["null", "string"]}]}]}]}},
    {"name": "p", "type": {"type": "array", "items": ["null", "P"]}},
    {"name": "r", "type": ["null", "P"]}
]}"#;

const PROTO_PARTS: &str = r#"
    syntax = "proto3";
    message Row {
        repeated sint64 n = 1;
        repeated float v = 2;
        repeated bool f = 3;
        repeated string s = 4;
        message P { map<string, string> tags = 1; optional double x = 2; map<int32, P> other = 3; }
        map<string, P> m = 5;
        repeated P p = 6;
        P r = 7;
    }
"#;

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (format, choice) = (input.below(4), input.byte());
    let read: &[usize] = if choice & 1 == 0 { &[0, 1, 2, 3, 4] } else { &[2, 3] };
    let have_parts = choice & 2 != 0;
    let mut payloads = Vec::new();
    while !input.is_empty() && payloads.len() < 16 {
        payloads.push(input.piece());
    }
    if have_parts {
        let (format, schema) = (&formats_of_parts()[format % 2], parts());
        let mut decoder = format.decoder(&schema, &[0, 1, 2, 3, 4, 5, 6], None).expect("the columns suit the format");
        let batch = decode(&mut *decoder, &payloads);
        round_trip(&batch, &mut *format.encoder(schema).expect("the columns suit the format"), &mut *decoder);
        return;
    }
    let (format, schema) = (&formats()[format], columns(false));
    let mut decoder = format.0.decoder(&schema, read, None).expect("the columns suit the format");
    let batch = decode(&mut *decoder, &payloads);
    if format.1 && read.len() == schema.fields().len() {
        let mut encoder = format.0.encoder(schema).expect("the columns suit the format");
        round_trip(&batch, &mut *encoder, &mut *decoder);
    }
}

/// A column of arrays of each type, and columns of rows. Some may be null, as in the schema of Avro.
fn parts() -> SchemaRef {
    let named = [
        ("n", DataType::Int64, false),
        ("v", DataType::Float64, true),
        ("f", DataType::Boolean, false),
        ("s", DataType::Utf8, true),
    ];
    let field = |(name, element, is_nullable)| {
        marked_as_array(Field::new(name, DataType::Utf8, is_nullable), &Field::new("element", element, true))
    };
    let of = |name: &str, data_type| Field::new(name, data_type, true);
    let row = DataType::Struct(vec![of("x", DataType::Float64), of("tags", map_of(of("", DataType::Utf8)))].into());
    let rows = [
        part_field(&of("", map_of(of("", row.clone()))), "m").with_nullable(false),
        part_field(&of("", DataType::new_list(row.clone(), true)), "p").with_nullable(false),
        part_field(&of("", row), "r"),
    ];
    Arc::new(Schema::new(named.map(field).into_iter().chain(rows).collect::<Vec<_>>()))
}

/// The formats of values with parts.
fn formats_of_parts() -> &'static [RowFormat; 2] {
    static FORMATS: OnceLock<[RowFormat; 2]> = OnceLock::new();
    FORMATS.get_or_init(|| {
        let folder = scratch::folder();
        let path = folder.path().join("parts.proto");
        std::fs::write(&path, PROTO_PARTS).expect("the file can be written");
        let path = path.to_str().expect("the path is text");
        let parse = |name, options: &[(&str, &str)]| {
            RowFormat::parse(name, options.iter().copied(), &Files::of_user()).unwrap_or_else(|error| panic!("{error}"))
        };
        [parse("AVRO", &[("schema", AVRO_PARTS)]), parse("PROTOBUF", &[("schema_file", path), ("message", "Row")])]
    })
}

/// The formats, and whether rows of the columns can be written in them.
fn formats() -> &'static [(RowFormat, bool); 4] {
    static FORMATS: OnceLock<[(RowFormat, bool); 4]> = OnceLock::new();
    FORMATS.get_or_init(|| {
        let folder = scratch::folder();
        let path = folder.path().join("row.proto");
        std::fs::write(&path, PROTO).expect("the file can be written");
        let path = path.to_str().expect("the path is text");
        let parse = |name, options: &[(&str, &str)]| {
            RowFormat::parse(name, options.iter().copied(), &Files::of_user()).unwrap_or_else(|error| panic!("{error}"))
        };
        [
            (parse("AVRO", &[("schema", AVRO)]), false),
            (parse("AVRO", &[("schema", AVRO_WRITTEN), ("framing", "registry"), ("schema_id", "7")]), true),
            (parse("PROTOBUF", &[("schema_file", path), ("message", "Row")]), true),
            (
                parse(
                    "PROTOBUF",
                    &[("schema_file", path), ("message", "Row"), ("framing", "registry"), ("schema_id", "7")],
                ),
                true,
            ),
        ]
    })
}
