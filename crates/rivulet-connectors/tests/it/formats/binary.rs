//! AVRO and PROTOBUF against other implementations, in both directions, and against bytes that are nothing at all.

use std::fs;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{Schema, SchemaRef};
use arrow_avro::reader::ReaderBuilder;
use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm, FingerprintStrategy, SchemaStore};
use arrow_avro::writer::{WriterBuilder, format::AvroSoeFormat};
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{EncodedRows, RowFormat};
use rivulet_dataflow::{Batch, Reason, Refusals, canonical_floats};

use super::{columns, events};

const COLUMNS: &str = "flag BOOLEAN, n BIGINT, x DOUBLE, name TEXT, at TIMESTAMP";

/// One row of any content.
type Row = (Option<bool>, Option<i64>, Option<f64>, Option<String>, Option<i64>);

fn row() -> impl Strategy<Value = Row> {
    (
        any::<Option<bool>>(),
        any::<Option<i64>>(),
        prop::option::of(any::<f64>()),
        prop::option::of("\\PC{0,20}"),
        prop::option::of(-60_000_000_000_000_000_i64..250_000_000_000_000_000),
    )
}

fn batch(schema: SchemaRef, rows: &[Row]) -> Batch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(BooleanArray::from_iter(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.1))),
        Arc::new(Float64Array::from_iter(rows.iter().map(|row| row.2))),
        Arc::new(StringArray::from_iter(rows.iter().map(|row| row.3.as_deref()))),
        Arc::new(TimestampMicrosecondArray::from_iter(rows.iter().map(|row| row.4))),
    ];
    let columns = RecordBatch::try_new(schema, columns).unwrap();
    let count = rows.len();
    Batch::new(vec![0; count].into(), vec![0; count].into(), vec![0; count].into(), columns)
}

fn encode(format: &RowFormat, batch: &Batch) -> Vec<Vec<u8>> {
    let mut encoded = EncodedRows::default();
    format.encoder(batch.columns.schema()).unwrap().encode(batch, &mut encoded);
    encoded.iter().map(<[u8]>::to_vec).collect()
}

fn decode(format: &RowFormat, declared: &SchemaRef, read: &[usize], payloads: &[impl AsRef<[u8]>]) -> RecordBatch {
    let mut refusals = Refusals::new(1);
    let decoded = format.decoder(declared, read, None).unwrap().decode(&events(payloads), &mut refusals);
    assert!(refusals.is_empty(), "{:?}", refusals.records());
    decoded.columns
}

/// Equal, floats in the form in which the engine keeps them.
fn assert_equal(one: &RecordBatch, other: &RecordBatch) {
    let text = |batch: &RecordBatch| format!("{:?}", batch.columns().iter().map(canonical_floats).collect::<Vec<_>>());
    assert_eq!(text(one), text(other));
}

const AVRO: &str = r#"{"type": "record", "name": "Row", "namespace": "test", "fields": [
    {"name": "flag", "type": ["null", "boolean"]},
    {"name": "n", "type": ["null", "long"]},
    {"name": "x", "type": ["null", "double"]},
    {"name": "name", "type": ["null", "string"]},
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]}
]}"#;

fn avro(schema: &str) -> RowFormat {
    RowFormat::parse("AVRO", [("schema", schema), ("framing", "registry"), ("schema_id", "7")], &Files::of_user())
        .unwrap()
}

/// As arrow-avro writes rows of a schema.
pub(super) fn avro_oracle_writes(avro: &str, batch: &RecordBatch) -> Vec<Vec<u8>> {
    let mut schema = Schema::clone(&batch.schema());
    schema.metadata.insert("avro.schema".into(), avro.into());
    let mut encoder = WriterBuilder::new(schema)
        .with_fingerprint_strategy(FingerprintStrategy::Id(7))
        .build_encoder::<AvroSoeFormat>()
        .unwrap();
    encoder.encode(batch).unwrap();
    encoder.flush().iter().map(|row| row.to_vec()).collect()
}

/// As arrow-avro reads them.
pub(super) fn avro_oracle_reads(avro: &str, payloads: &[Vec<u8>]) -> RecordBatch {
    let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
    store.set(Fingerprint::Id(7), AvroSchema::new(avro.into())).unwrap();
    let mut decoder =
        ReaderBuilder::new().with_batch_size(1000).with_writer_schema_store(store).build_decoder().unwrap();
    for payload in payloads {
        assert_eq!(decoder.decode(payload).unwrap(), payload.len());
    }
    decoder.flush().unwrap().unwrap()
}

const PROTO: &str = r#"
    syntax = "proto3";
    package test;
    import "google/protobuf/timestamp.proto";
    enum Kind { UNKNOWN = 0; COLD = 1; HOT = 2; }
    message Inner { sint64 n = 1; optional string text = 2; }
    message Row {
        optional bool flag = 1;
        optional int64 n = 2;
        optional double x = 3;
        optional string name = 4;
        google.protobuf.Timestamp at = 5;
        repeated int32 many = 6;
    }
    message All {
        int32 a = 1; uint32 b = 2; uint64 c = 3; sint32 d = 4; fixed32 e = 5; fixed64 f = 6; sfixed32 g = 7; sfixed64 h = 8;
        float i = 9; bool j = 10; bytes k = 11; Kind l = 12; Inner inner = 70000; map<string, Inner> others = 14;
    }
"#;

/// The file of the types, in a folder that goes with it.
fn proto() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.proto");
    fs::write(&path, PROTO).unwrap();
    let path = path.display().to_string();
    (folder, path)
}

fn protobuf(path: &str, message: &str) -> RowFormat {
    RowFormat::parse("PROTOBUF", [("schema_file", path), ("message", message)], &Files::of_user()).unwrap()
}

fn descriptor(path: &str, message: &str) -> MessageDescriptor {
    let folder = std::path::Path::new(path).parent().unwrap();
    let set = protox::compile([path], [folder]).unwrap();
    DescriptorPool::from_file_descriptor_set(set).unwrap().get_message_by_name(message).unwrap()
}

/// A row as prost-reflect has it.
fn protobuf_oracle(descriptor: &MessageDescriptor, row: &Row) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            message.set_field_by_name(name, value);
        }
    };
    set("flag", row.0.map(Value::Bool));
    set("n", row.1.map(Value::I64));
    set("x", row.2.map(Value::F64));
    set("name", row.3.clone().map(Value::String));
    if let Some(time_us) = row.4 {
        let field = descriptor.get_field_by_name("at").unwrap();
        let mut at = DynamicMessage::new(field.kind().as_message().unwrap().clone());
        at.set_field_by_name("seconds", Value::I64(time_us.div_euclid(1_000_000)));
        at.set_field_by_name("nanos", Value::I32((time_us.rem_euclid(1_000_000) * 1000) as i32));
        set("at", Some(Value::Message(at)));
    }
    // Passed by.
    set("many", Some(Value::List(vec![Value::I32(-1), Value::I32(2)])));
    message
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn avro_agrees_with_another(rows in prop::collection::vec(row(), 1..20), read in prop::sample::subsequence(vec![0, 1, 2, 3, 4], 0..=5)) {
        let batch = batch(columns(COLUMNS), &rows);
        let format = avro(AVRO);
        let ours = encode(&format, &batch);
        prop_assert_eq!(&ours, &avro_oracle_writes(AVRO, &batch.columns));
        assert_equal(&decode(&format, &columns(COLUMNS), &[0, 1, 2, 3, 4], &ours), &batch.columns);
        assert_equal(&decode(&format, &columns(COLUMNS), &read, &ours), &batch.columns.project(&read).unwrap());
        assert_equal(&avro_oracle_reads(AVRO, &ours), &batch.columns);
    }

    #[test]
    fn protobuf_agrees_with_another(rows in prop::collection::vec(row(), 1..20), read in prop::sample::subsequence(vec![0, 1, 2, 3, 4], 0..=5)) {
        let (_folder, path) = proto();
        let (format, descriptor) = (protobuf(&path, "Row"), descriptor(&path, "test.Row"));
        let batch = batch(columns(COLUMNS), &rows);
        let theirs: Vec<Vec<u8>> = rows.iter().map(|row| protobuf_oracle(&descriptor, row).encode_to_vec()).collect();
        assert_equal(&decode(&format, &columns(COLUMNS), &[0, 1, 2, 3, 4], &theirs), &batch.columns);
        assert_equal(&decode(&format, &columns(COLUMNS), &read, &theirs), &batch.columns.project(&read).unwrap());
        for (payload, row) in encode(&format, &batch).iter().zip(&rows) {
            let mut read = DynamicMessage::decode(descriptor.clone(), payload.as_slice()).unwrap();
            read.set_field_by_name("many", Value::List(vec![Value::I32(-1), Value::I32(2)]));
            // Compared as they are written: not-a-number is not equal to itself.
            prop_assert_eq!(read.encode_to_vec(), protobuf_oracle(&descriptor, row).encode_to_vec());
        }
    }

    #[test]
    fn no_bytes_do_any_harm(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..20),
        flips in prop::collection::vec((0_usize..200, any::<u8>()), 1..4),
    ) {
        let (_folder, path) = proto();
        let nested = r#"{"type": "record", "name": "N", "fields": [
            {"name": "next", "type": ["null", "N"]}, {"name": "list", "type": {"type": "array", "items": {"type": "map", "values": "N"}}},
            {"name": "n", "type": "long"}, {"name": "none", "type": {"type": "array", "items": "null"}}]}"#;
        let all = "a BIGINT, k TEXT, l TEXT, inner.n BIGINT, inner.text TEXT";
        let formats = [
            (avro(AVRO), columns(COLUMNS)),
            (RowFormat::parse("AVRO", [("schema", nested)], &Files::of_user()).unwrap(), columns("n BIGINT, next.n BIGINT")),
            (protobuf(&path, "Row"), columns(COLUMNS)),
            (protobuf(&path, "All"), columns(all)),
        ];
        for (format, declared) in formats {
            let read: Vec<usize> = (0..declared.fields().len()).collect();
            let mut payloads = payloads.clone();
            // Good ones that are bent as well.
            if declared.fields().len() == 5 && declared.field(0).name() == "flag" {
                let rows = [(Some(true), Some(-5), Some(0.5), Some("text".to_owned()), Some(1_000_000))];
                let mut good = encode(&format, &batch(declared.clone(), &rows)).remove(0);
                for (at, byte) in &flips {
                    let length = good.len();
                    good[at % length] = *byte;
                }
                payloads.push(good);
            }
            let mut refusals = Refusals::new(100);
            let batch = format.decoder(&declared, &read, None).unwrap().decode(&events(&payloads), &mut refusals);
            prop_assert_eq!(batch.rows() as u64 + refusals.counted(Reason::Decode), payloads.len() as u64);
        }
    }
}

#[test]
fn protobuf_types_and_defaults() {
    let (_folder, path) = proto();
    let declared = columns(
        "a BIGINT, b BIGINT, c DOUBLE, d BIGINT, e BIGINT, f BIGINT, g BIGINT, h TIMESTAMP, i DOUBLE, j BOOLEAN, k TEXT, l TEXT, \
         inner.n BIGINT, inner.text TEXT",
    );
    let format = protobuf(&path, "test.All");
    let read: Vec<usize> = (0..14).collect();
    let descriptor = descriptor(&path, "test.All");
    let mut message = DynamicMessage::new(descriptor.clone());
    let values = [
        ("a", Value::I32(-1)),
        ("b", Value::U32(u32::MAX)),
        ("c", Value::U64(1 << 63)),
        ("d", Value::I32(i32::MIN)),
        ("e", Value::U32(u32::MAX)),
        ("f", Value::U64(7)),
        ("g", Value::I32(-7)),
        ("h", Value::I64(1500)),
        ("i", Value::F32(0.5)),
        ("j", Value::Bool(true)),
        ("k", Value::Bytes(b"bytes".as_slice().into())),
        ("l", Value::EnumNumber(2)),
    ];
    for (name, value) in values {
        message.set_field_by_name(name, value);
    }
    let mut inner =
        DynamicMessage::new(descriptor.get_field_by_name("inner").unwrap().kind().as_message().unwrap().clone());
    inner.set_field_by_name("n", Value::I64(-9));
    message.set_field_by_name("inner", Value::Message(inner));
    let mut unknown = DynamicMessage::new(descriptor.clone());
    unknown.set_field_by_name("l", Value::EnumNumber(77));
    let rows = decode(&format, &declared, &read, &[message.encode_to_vec(), Vec::new(), unknown.encode_to_vec()]);
    let text = |row: usize| {
        let options = arrow::util::display::FormatOptions::new();
        let cells = rows.columns().iter().map(|column| {
            arrow::util::display::ArrayFormatter::try_new(column, &options).unwrap().value(row).to_string()
        });
        cells.collect::<Vec<_>>().join("|")
    };
    let first =
        "-1|4294967295|9.223372036854776e18|-2147483648|4294967295|7|-7|1970-01-01T00:00:01.500|0.5|true|bytes|HOT|-9|";
    assert_eq!(text(0), first);
    // What cannot say that it is not there has its default; a message can.
    assert_eq!(text(1), "0|0|0.0|0|0|0|0|1970-01-01T00:00:00|0.0|false||UNKNOWN||");
    assert!(text(2).contains("|77|"));
}

#[test]
fn avro_nested_records_and_other_types() {
    let schema = r#"{"type": "record", "name": "A", "fields": [
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "B", "fields": [
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["cold", "hot"]}},
            {"name": "f", "type": "float"}]}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}
    ]}"#;
    let format = RowFormat::parse("AVRO", [("schema", schema)], &Files::of_user()).unwrap();
    let declared = columns("inner.kind TEXT, inner.f DOUBLE, day TIMESTAMP, price DOUBLE");
    // A map of one entry in a block with its length, one without; then null instead of the record.
    let one = [&[1, 8, 2, b'a', 2, b'b', 0][..], &[2, 2], &0.5_f32.to_le_bytes(), &[2, 4, 0x30, 0x39]].concat();
    let two = [&[2, 2, b'a', 2, b'b', 0][..], &[0], &[0, 2, 0xff]].concat();
    let rows = decode(&format, &declared, &[0, 1, 2, 3], &[one, two]);
    let expected = "[StringArray\n[\n  \"hot\",\n  null,\n], PrimitiveArray<Float64>\n[\n  0.5,\n  null,\n], \
                    PrimitiveArray<Timestamp(µs)>\n[\n  1970-01-02T00:00:00,\n  1970-01-01T00:00:00,\n], \
                    PrimitiveArray<Float64>\n[\n  123.45,\n  -0.01,\n]]";
    assert_eq!(format!("{:?}", rows.columns()), expected);
}

#[test]
fn what_does_not_go_together_is_said() {
    let (_folder, path) = proto();
    let problem = |format: &RowFormat, declared: &str| {
        format.decoder(&columns(declared), &[], None).map(|_| ()).unwrap_err().to_string()
    };
    assert!(problem(&avro(AVRO), "m BIGINT").contains("has no field 'm' in its schema; there are flag, n, x"));
    assert!(problem(&avro(AVRO), "n TEXT").contains("cannot read the field 'n' as Utf8"));
    let format = protobuf(&path, "Row");
    assert!(problem(&format, "many BIGINT").contains("'many', which has several values"));
    assert!(problem(&format, "n BOOLEAN").contains("cannot read the field 'n' as Boolean"));
    let parse = |options: &[(&str, &str)]| {
        RowFormat::parse("PROTOBUF", options.iter().copied(), &Files::of_user()).map(|_| ()).unwrap_err().to_string()
    };
    assert!(parse(&[("schema_file", &path)]).contains("hint: add message"));
    assert!(parse(&[("schema_file", &path), ("message", "Rows")]).contains("there are test.Inner, test.Row, test.All"));
    assert!(parse(&[("schema_file", "no.proto")]).contains("cannot use no.proto"));
    assert!(
        RowFormat::parse("AVRO", [], &Files::of_user()).unwrap().decoder(&columns("n BIGINT"), &[0], None).is_err()
    );
}
