//! Arrays in AVRO and PROTOBUF against other implementations, in both directions.

use std::fs;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBuilder, Float64Builder, Int64Builder, ListArray, ListBuilder, RecordBatch,
    StringArray, StringBuilder,
};
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value as Proto};
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{EncodedRows, RowFormat};
use rivulet_dataflow::{Batch, Refusals};
use serde_json::{Value, json};

use super::binary::{avro_oracle_reads, avro_oracle_writes};
use super::{columns, events};

const COLUMNS: &str = "b BOOLEAN[], n BIGINT[], x DOUBLE[], s TEXT[]";

const AVRO: &str = r#"{"type": "record", "name": "Row", "namespace": "test", "fields": [
    {"name": "b", "type": ["null", {"type": "array", "items": ["null", "boolean"]}]},
    {"name": "n", "type": ["null", {"type": "array", "items": ["null", "long"]}]},
    {"name": "x", "type": ["null", {"type": "array", "items": ["null", "double"]}]},
    {"name": "s", "type": ["null", {"type": "array", "items": ["null", "string"]}]}
]}"#;

const PROTO: &str = r#"
    syntax = "proto3";
    package test;
    enum Kind { COLD = 0; HOT = 1; }
    message Row {
        repeated bool b = 1;
        repeated sint64 n = 2 [packed = false];
        repeated double x = 3;
        repeated string s = 4;
        repeated Kind k = 5;
        message Inner { repeated uint64 u = 1; }
        Inner inner = 6;
        Inner none = 7;
    }
"#;

/// The values of one row.
type Row = (Option<Vec<Option<bool>>>, Option<Vec<Option<i64>>>, Option<Vec<Option<f64>>>, Option<Vec<Option<String>>>);

fn list<T: std::fmt::Debug + Clone + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<Vec<Option<T>>>> {
    prop::option::of(prop::collection::vec(prop::option::of(value), 0..6))
}

fn row() -> impl Strategy<Value = Row> {
    // The parser of JSON here rounds the last of many digits wrongly.
    let x = any::<i32>().prop_map(|n| f64::from(n) / 8.0);
    (list(any::<bool>()), list(any::<i64>()), list(x), list("\\PC{0,9}"))
}

/// The arrays of a row in JSON.
fn values(row: &Row) -> [Value; 4] {
    [json!(row.0), json!(row.1), json!(row.2), json!(row.3)]
}

fn batch(rows: &[[Value; 4]]) -> Batch {
    let text = |value: &Value| (!value.is_null()).then(|| value.to_string());
    let column =
        |place: usize| -> ArrayRef { Arc::new(rows.iter().map(|row| text(&row[place])).collect::<StringArray>()) };
    let columns = RecordBatch::try_new(columns(COLUMNS), (0..4).map(column).collect()).unwrap();
    let zeros = || vec![0; rows.len()];
    Batch::new(vec![0; rows.len()].into(), zeros().into(), zeros().into(), columns)
}

fn encode(format: &RowFormat, batch: &Batch) -> Vec<Vec<u8>> {
    let mut encoded = EncodedRows::default();
    format.encoder(batch.columns.schema()).unwrap().encode(batch, &mut encoded);
    encoded.iter().map(<[u8]>::to_vec).collect()
}

/// The columns of payloads as JSON, and why payloads were refused.
fn decode(format: &RowFormat, declared: &str, payloads: &[Vec<u8>]) -> (Vec<Vec<Value>>, Vec<String>) {
    let mut refusals = Refusals::new(100);
    let declared = columns(declared);
    let read: Vec<usize> = (0..declared.fields().len()).collect();
    let decoded = format.decoder(&declared, &read, None).unwrap().decode(&events(payloads), &mut refusals);
    let value = |column: &ArrayRef, row: usize| match column.is_null(row) {
        true => Value::Null,
        false => serde_json::from_str(column.as_string::<i32>().value(row)).unwrap(),
    };
    let row = |row: usize| decoded.columns.columns().iter().map(|column| value(column, row)).collect();
    ((0..decoded.rows()).map(row).collect(), refusals.records().iter().map(|one| one.detail.clone()).collect())
}

/// The rows as arrow has lists.
fn lists(rows: &[Row]) -> Vec<ListArray> {
    macro_rules! list {
        ($builder:expr, $place:tt) => {{
            let mut builder = ListBuilder::new($builder);
            for row in rows {
                if let Some(values) = &row.$place {
                    values.iter().for_each(|value| builder.values().append_option(value.clone()));
                }
                builder.append(row.$place.is_some());
            }
            builder.finish()
        }};
    }
    vec![
        list!(BooleanBuilder::new(), 0),
        list!(Int64Builder::new(), 1),
        list!(Float64Builder::new(), 2),
        list!(StringBuilder::new(), 3),
    ]
}

/// As arrow-avro writes rows.
fn avro_oracle(rows: &[Row]) -> Vec<Vec<u8>> {
    let columns =
        ["b", "n", "x", "s"].into_iter().zip(lists(rows)).map(|(name, list)| (name, Arc::new(list) as ArrayRef, true));
    avro_oracle_writes(AVRO, &RecordBatch::try_from_iter_with_nullable(columns).unwrap())
}

fn protobuf() -> (RowFormat, MessageDescriptor) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.proto");
    fs::write(&path, PROTO).unwrap();
    let set = protox::compile([&path], [folder.path()]).unwrap();
    let descriptor = DescriptorPool::from_file_descriptor_set(set).unwrap().get_message_by_name("test.Row").unwrap();
    let options = [("schema_file", path.to_str().unwrap()), ("message", "Row")];
    (RowFormat::parse("PROTOBUF", options, &Files::of_user()).unwrap(), descriptor)
}

fn protobuf_oracle(descriptor: &MessageDescriptor, row: &Row) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    let mut set = |name: &str, values: Vec<Proto>| message.set_field_by_name(name, Proto::List(values));
    set("b", row.0.iter().flatten().flatten().map(|value| Proto::Bool(*value)).collect());
    set("n", row.1.iter().flatten().flatten().map(|value| Proto::I64(*value)).collect());
    set("x", row.2.iter().flatten().flatten().map(|value| Proto::F64(*value)).collect());
    set("s", row.3.iter().flatten().flatten().map(|value| Proto::String(value.clone())).collect());
    message
}

/// What a message can say of arrays: no null, neither in an array nor in its place.
fn without_nulls(values: &[Value; 4]) -> Vec<Value> {
    let kept = |value: &Value| value.as_array().into_iter().flatten().filter(|one| !one.is_null()).cloned().collect();
    values.iter().map(|value| Value::Array(kept(value))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn avro_agrees_with_another(rows in prop::collection::vec(row(), 1..10)) {
        let options = [("schema", AVRO), ("framing", "registry"), ("schema_id", "7")];
        let format = RowFormat::parse("AVRO", options, &Files::of_user()).unwrap();
        let expected: Vec<[Value; 4]> = rows.iter().map(values).collect();
        let (theirs, refused) = decode(&format, COLUMNS, &avro_oracle(&rows));
        prop_assert_eq!(refused, [""; 0]);
        prop_assert_eq!(&theirs, &expected);
        let ours = encode(&format, &batch(&expected));
        let read = avro_oracle_reads(AVRO, &ours);
        for (column, list) in read.columns().iter().zip(lists(&rows)) {
            let shown = |list: &ListArray| format!("{:?}", list.iter().collect::<Vec<_>>());
            prop_assert_eq!(shown(column.as_list()), shown(&list));
        }
        // The schema that columns suggest has arrays too.
        let own = RowFormat::parse("AVRO", [], &Files::of_user()).unwrap();
        prop_assert_eq!(encode(&own, &batch(&expected)), ours.iter().map(|row| row[5..].to_vec()).collect::<Vec<_>>());
    }

    #[test]
    fn protobuf_agrees_with_another(rows in prop::collection::vec(row(), 1..10)) {
        let (format, descriptor) = protobuf();
        let expected: Vec<[Value; 4]> = rows.iter().map(values).collect();
        let without: Vec<Vec<Value>> = expected.iter().map(without_nulls).collect();
        let theirs: Vec<Vec<u8>> = rows.iter().map(|row| protobuf_oracle(&descriptor, row).encode_to_vec()).collect();
        prop_assert_eq!(decode(&format, COLUMNS, &theirs), (without.clone(), Vec::new()));
        let ours = encode(&format, &batch(&expected));
        prop_assert_eq!(decode(&format, COLUMNS, &ours), (without, Vec::new()));
        for (payload, row) in ours.iter().zip(&rows) {
            let read = DynamicMessage::decode(descriptor.clone(), payload.as_slice()).unwrap();
            prop_assert_eq!(read.encode_to_vec(), protobuf_oracle(&descriptor, row).encode_to_vec());
        }
    }
}

#[test]
fn repeated_fields_may_be_packed_or_not_and_in_pieces() {
    let (format, _) = protobuf();
    let declared = "n BIGINT[], k TEXT[], inner.u DOUBLE[], none.u BIGINT[], s TEXT[]";
    // n: 1 alone, then -1 and 2 packed, another field between; k: names and a number without one; inner twice.
    let payload = [
        &[0x10, 2, 0x22, 1, b'a', 0x12, 2, 1, 4][..],
        &[0x2a, 2, 1, 9, 0x28, 0],
        &[0x32, 2, 0x08, 7, 0x32, 3, 0x0a, 1, 8, 0x22, 0],
    ];
    let expected =
        vec![json!([1, -1, 2]), json!(["HOT", "9", "COLD"]), json!([7.0, 8.0]), Value::Null, json!(["a", ""])];
    assert_eq!(decode(&format, declared, &[payload.concat()]), (vec![expected], Vec::new()));
    let numbers = decode(&format, "k BIGINT[]", &[vec![0x2a, 2, 1, 9], Vec::new()]).0;
    assert_eq!(numbers, [[json!([1, 9])], [json!([])]]);
}

#[test]
fn broken_arrays_are_refused_with_field_and_place() {
    let (format, _) = protobuf();
    let good = vec![0x10, 2];
    for (payload, expected) in [
        (
            vec![0x10, 2, 0x11, 0, 0, 0, 0, 0, 0, 0, 0],
            "field 'n' at byte 2: written in a way that the schema does not have",
        ),
        (vec![0x10, 2, 0x12, 1, 0x80], "field 'n' at byte 5: the payload ends too early"),
        (vec![0x22, 1, 0xff], "field 's' at byte 1: the text is not valid UTF-8"),
        (
            vec![0x32, 11, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            "field 'inner.u' at byte 3: a number that does not fit BIGINT",
        ),
    ] {
        let (rows, refused) =
            decode(&format, "n BIGINT[], s TEXT[], inner.u BIGINT[]", &[good.clone(), payload, good.clone()]);
        assert_eq!(rows, [[json!([1]), json!([]), Value::Null], [json!([1]), json!([]), Value::Null]]);
        assert_eq!(refused, [expected]);
    }
    let schema = r#"{"type": "record", "name": "A", "fields": [
        {"name": "b", "type": {"type": "array", "items": "boolean"}},
        {"name": "f", "type": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}},
        {"name": "k", "type": {"type": "array", "items": {"type": "enum", "name": "K", "symbols": ["cold", "hot"]}}}]}"#;
    let format = RowFormat::parse("AVRO", [("schema", schema)], &Files::of_user()).unwrap();
    // A block with its length, and one without.
    let good = vec![1, 2, 1, 2, 0, 0, 0, 4, 0, 2, 0];
    for (payload, expected) in [
        (vec![2, 7, 0, 0, 0], "field 'b' at byte 1: a choice that the schema does not have"),
        (vec![0, 2, 0, 0], "field 'f' at byte 2: malformed length"),
        (vec![0, 0, 2, 4, 0], "field 'k' at byte 3: a choice that the schema does not have"),
        (vec![0, 0, 2], "field 'k' at byte 3: the payload ends too early"),
    ] {
        let (rows, refused) = decode(&format, "b BOOLEAN[], f TEXT[], k TEXT[]", &[good.clone(), payload]);
        assert_eq!(rows, [[json!([true, false]), json!([]), json!(["cold", "hot"])]]);
        assert_eq!(refused, [expected]);
    }
}

#[test]
fn elements_that_do_not_go_together_are_said_and_nulls_left_out() {
    let (format, _) = protobuf();
    let read = |format: &RowFormat, declared: &str| {
        format.decoder(&columns(declared), &[], None).map(|_| ()).unwrap_err().to_string()
    };
    let write =
        |format: &RowFormat, declared: &str| format.encoder(columns(declared)).map(|_| ()).unwrap_err().to_string();
    assert!(read(&format, "s BIGINT[]").contains("cannot read the field 's' as an array of Int64"));
    assert!(read(&format, "n BIGINT").contains("cannot read the field 'n', which has several values, as Int64"));
    assert!(write(&format, "s BOOLEAN[]").contains("cannot write the column 's' of type an array of Boolean"));
    assert!(write(&format, "n TEXT").contains("cannot write the column 'n' as a field that has several values"));
    let schema = r#"{"type": "record", "name": "A", "fields": [
        {"name": "n", "type": {"type": "array", "items": "long"}},
        {"name": "d", "type": {"type": "array", "items": {"type": "array", "items": "long"}}}]}"#;
    let format = RowFormat::parse("AVRO", [("schema", schema)], &Files::of_user()).unwrap();
    assert!(read(&format, "n TEXT[]").contains("cannot read the field 'n' as an array of Utf8"));
    assert!(read(&format, "d BIGINT[]").contains("cannot read the field 'd' as an array of Int64"));
    assert!(read(&format, "n TEXT").contains("cannot read the field 'n' as Utf8"));
    let schema =
        r#"{"type": "record", "name": "A", "fields": [{"name": "n", "type": {"type": "array", "items": "double"}}]}"#;
    let format = RowFormat::parse("AVRO", [("schema", schema)], &Files::of_user()).unwrap();
    let declared = columns("n BIGINT[] NOT NULL");
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["[1,null,-2]", "[]", "{}"]));
    let rows = RecordBatch::try_new(declared.clone(), vec![texts]).unwrap();
    let rows = Batch::new(vec![0; 3].into(), vec![0; 3].into(), vec![0; 3].into(), rows);
    let written = encode(&format, &rows);
    assert_eq!(decode(&format, "n DOUBLE[]", &written).0, [[json!([1.0, -2.0])], [json!([])], [json!([])]]);
}
