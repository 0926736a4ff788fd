//! Maps and rows in PROTOBUF against another implementation, in both directions; and AVRO by given schemas.

use std::fs;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MapKey, MessageDescriptor, Value as Proto};
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{EncodedRows, RowFormat};
use rivulet_dataflow::{Batch, Refusals, any_json, map_of, part_field};
use serde_json::{Map, Value, json};

use super::events;

const PROTO: &str = r#"
    syntax = "proto3";
    package test;
    enum Kind { COLD = 0; HOT = 1; }
    message Point { double x = 5; optional string label = 2; repeated sint32 n = 3; Kind kind = 1; }
    message Row {
        map<string, double> sensors = 1;
        map<string, Point> places = 2;
        repeated Point points = 3;
        Point last = 4;
        message Inner { map<string, string> tags = 1; }
        Inner inner = 6;
        map<int32, bool> numbers = 7;
        map<bool, Kind> kinds = 8;
    }
"#;

fn of(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn list(element: DataType) -> DataType {
    DataType::List(Arc::new(of("item", element)))
}

fn map(value: DataType) -> DataType {
    map_of(of("", value))
}

fn point() -> DataType {
    let fields = [
        of("x", DataType::Float64),
        of("label", DataType::Utf8),
        of("n", list(DataType::Int64)),
        of("kind", DataType::Utf8),
    ];
    DataType::Struct(fields.to_vec().into())
}

fn schema(columns: &[(&str, DataType)]) -> SchemaRef {
    let column = |(name, data_type): &(&str, DataType)| part_field(&of("", data_type.clone()), name);
    Arc::new(Schema::new(columns.iter().map(column).collect::<Vec<_>>()))
}

fn columns() -> SchemaRef {
    schema(&[
        ("sensors", map(DataType::Float64)),
        ("places", map(point())),
        ("points", list(point())),
        ("last", point()),
        ("inner.tags", map(DataType::Utf8)),
    ])
}

fn protobuf(message: &str) -> (RowFormat, MessageDescriptor) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.proto");
    fs::write(&path, PROTO).unwrap();
    let set = protox::compile([&path], [folder.path()]).unwrap();
    let pool = DescriptorPool::from_file_descriptor_set(set).unwrap();
    let descriptor = pool.get_message_by_name(&format!("test.{message}")).unwrap();
    let options = [("schema_file", path.to_str().unwrap()), ("message", message)];
    (RowFormat::parse("PROTOBUF", options, &Files::of_user()).unwrap(), descriptor)
}

fn batch(schema: &SchemaRef, rows: &[Vec<Value>]) -> Batch {
    let text = |value: &Value| (!value.is_null()).then(|| value.to_string());
    let column = |place: usize| -> arrow::array::ArrayRef {
        Arc::new(rows.iter().map(|row| text(&row[place])).collect::<StringArray>())
    };
    let columns = RecordBatch::try_new(schema.clone(), (0..schema.fields().len()).map(column).collect()).unwrap();
    Batch::new(vec![0; rows.len()].into(), vec![0; rows.len()].into(), vec![0; rows.len()].into(), columns)
}

fn encode(format: &RowFormat, schema: &SchemaRef, rows: &[Vec<Value>]) -> Vec<Vec<u8>> {
    let mut encoded = EncodedRows::default();
    format.encoder(schema.clone()).unwrap().encode(&batch(schema, rows), &mut encoded);
    encoded.iter().map(<[u8]>::to_vec).collect()
}

/// The columns of payloads as JSON, and why payloads were refused.
fn decode(format: &RowFormat, schema: &SchemaRef, payloads: &[Vec<u8>]) -> (Vec<Vec<Value>>, Vec<String>) {
    let mut refusals = Refusals::new(100);
    let read: Vec<usize> = (0..schema.fields().len()).collect();
    let decoded = format.decoder(schema, &read, None).unwrap().decode(&events(payloads), &mut refusals);
    let value = |column: &arrow::array::ArrayRef, row: usize| match column.is_null(row) {
        true => Value::Null,
        false => serde_json::from_str(column.as_string::<i32>().value(row)).unwrap(),
    };
    let row = |row: usize| decoded.columns.columns().iter().map(|column| value(column, row)).collect();
    ((0..decoded.rows()).map(row).collect(), refusals.records().iter().map(|one| one.detail.clone()).collect())
}

fn number() -> impl Strategy<Value = f64> {
    any::<i16>().prop_map(|number| f64::from(number) / 8.0)
}

fn any_point() -> impl Strategy<Value = Value> {
    let label = prop::option::of("\\PC{0,6}");
    let n = prop::collection::vec(any::<i32>(), 0..4);
    (number(), label, n, any::<bool>()).prop_map(
        |(x, label, n, is_hot)| json!({"x": x, "label": label, "n": n, "kind": if is_hot { "HOT" } else { "COLD" }}),
    )
}

fn any_map<T: Strategy<Value = Value>>(value: T) -> impl Strategy<Value = Value> {
    let members = prop::collection::btree_map("\\PC{0,3}", value, 0..4);
    members.prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>()))
}

/// A row that a message can say.
fn any_row() -> impl Strategy<Value = Vec<Value>> {
    (
        any_map(number().prop_map(|number| json!(number))),
        any_map(any_point()),
        prop::collection::vec(any_point(), 0..4).prop_map(Value::Array),
        prop::option::of(any_point()).prop_map(|point| point.unwrap_or(Value::Null)),
        any_map("\\PC{0,4}".prop_map(|text| json!(text))),
    )
        .prop_map(|(sensors, places, points, last, tags)| vec![sensors, places, points, last, tags])
}

fn point_of(message: &MessageDescriptor, point: &Value) -> Proto {
    let mut written = DynamicMessage::new(message.clone());
    written.set_field_by_name("x", Proto::F64(point["x"].as_f64().unwrap()));
    if let Some(label) = point["label"].as_str() {
        written.set_field_by_name("label", Proto::String(label.into()));
    }
    let numbers = point["n"].as_array().unwrap().iter().map(|n| Proto::I32(n.as_i64().unwrap() as i32));
    written.set_field_by_name("n", Proto::List(numbers.collect()));
    written.set_field_by_name("kind", Proto::EnumNumber(i32::from(point["kind"] == "HOT")));
    Proto::Message(written)
}

/// The row as prost-reflect has it.
fn oracle(descriptor: &MessageDescriptor, row: &[Value]) -> DynamicMessage {
    let inner = |name: &str| descriptor.get_field_by_name(name).unwrap().kind().as_message().unwrap().clone();
    let point = inner("last");
    let entries = |value: &Value, of: &dyn Fn(&Value) -> Proto| {
        let members = value.as_object().unwrap().iter();
        Proto::Map(members.map(|(key, value)| (MapKey::String(key.clone()), of(value))).collect())
    };
    let mut message = DynamicMessage::new(descriptor.clone());
    message.set_field_by_name("sensors", entries(&row[0], &|value| Proto::F64(value.as_f64().unwrap())));
    message.set_field_by_name("places", entries(&row[1], &|value| point_of(&point, value)));
    let points = row[2].as_array().unwrap().iter().map(|value| point_of(&point, value));
    message.set_field_by_name("points", Proto::List(points.collect()));
    if !row[3].is_null() {
        message.set_field_by_name("last", point_of(&point, &row[3]));
    }
    let mut tagged = DynamicMessage::new(inner("inner"));
    tagged.set_field_by_name("tags", entries(&row[4], &|value| Proto::String(value.as_str().unwrap().into())));
    message.set_field_by_name("inner", Proto::Message(tagged));
    message
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn protobuf_agrees_with_another(rows in prop::collection::vec(any_row(), 1..8)) {
        let ((format, descriptor), schema) = (protobuf("Row"), columns());
        let theirs: Vec<Vec<u8>> = rows.iter().map(|row| oracle(&descriptor, row).encode_to_vec()).collect();
        prop_assert_eq!(decode(&format, &schema, &theirs), (rows.clone(), Vec::new()));
        let ours = encode(&format, &schema, &rows);
        for (payload, row) in ours.iter().zip(&rows) {
            let read = DynamicMessage::decode(descriptor.clone(), payload.as_slice()).unwrap();
            let mut expected = oracle(&descriptor, row);
            // A message without content is not written where a column is a field of it.
            if row[4] == json!({}) {
                expected.clear_field_by_name("inner");
            }
            // A field that is set to nothing is not one that is not set.
            let expected = DynamicMessage::decode(descriptor.clone(), expected.encode_to_vec().as_slice()).unwrap();
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn no_bytes_do_any_harm(
        rows in prop::collection::vec(any_row(), 1..3),
        flips in prop::collection::vec((0_usize..400, any::<u8>()), 1..4),
        cut in 0_usize..400,
    ) {
        let ((format, _), schema) = (protobuf("Row"), columns());
        let mut payloads = encode(&format, &schema, &rows);
        let avro = RowFormat::parse("AVRO", [("schema", AVRO)], &Files::of_user()).unwrap();
        let read = avro_columns();
        let mut records = encode(&avro, &read, &[vec![json!({"a": [{"n": 1, "next": null}]}), json!([1.5]), json!({"k": "1"})]]);
        for payload in payloads.iter_mut().chain(&mut records) {
            for (at, byte) in &flips {
                let length = payload.len().max(1);
                payload.get_mut(at % length).into_iter().for_each(|old| *old = *byte);
            }
        }
        payloads.push(payloads[0][..cut.min(payloads[0].len())].to_vec());
        records.push(records[0][..cut.min(records[0].len())].to_vec());
        for (format, schema, payloads) in [(&format, &schema, &payloads), (&avro, &read, &records)] {
            let (rows, refused) = decode(format, schema, payloads);
            prop_assert_eq!(rows.len() + refused.len(), payloads.len());
        }
    }
}

#[test]
fn messages_may_come_in_pieces_and_keys_in_any_order() {
    let (format, _) = protobuf("Row");
    let schema = schema(&[
        ("sensors", map(DataType::Float64)),
        ("last", point()),
        ("numbers", map(DataType::Boolean)),
        ("kinds", map(DataType::Int64)),
        ("inner.tags", map(DataType::Utf8)),
    ]);
    let half = 0.5_f64.to_le_bytes();
    let entry =
        |key: &[u8]| [&[0x0a, 9 + 2 + key.len() as u8][..], &[0x0a, key.len() as u8], key, &[0x11], &half].concat();
    let payload = [
        entry(b"b"),
        // Two pieces of one message: the last value of each field, and all of a repeated one, packed and not.
        vec![0x22, 7, 0x12, 1, b'x', 0x1a, 2, 1, 2],
        entry(b"a"),
        vec![0x22, 5, 0x18, 3, 0x12, 1, b'y'],
        // No key and no value, then the value before the key.
        vec![0x3a, 0, 0x3a, 4, 0x10, 1, 0x08, 7],
        vec![0x42, 4, 0x08, 1, 0x10, 1],
        vec![0x32, 4, 0x0a, 2, 0x0a, 0],
    ];
    let expected = vec![
        json!({"a": 0.5, "b": 0.5}),
        json!({"x": 0.0, "label": "y", "n": [-1, 1, -2], "kind": "COLD"}),
        json!({"0": false, "7": true}),
        json!({"true": 1}),
        json!({"": ""}),
    ];
    assert_eq!(decode(&format, &schema, &[payload.concat()]), (vec![expected], Vec::new()));
    let empty = vec![json!({}), Value::Null, json!({}), json!({}), Value::Null];
    assert_eq!(decode(&format, &schema, &[Vec::new()]), (vec![empty], Vec::new()));
}

#[test]
fn broken_maps_are_refused_with_field_and_place() {
    let (format, _) = protobuf("Row");
    for (payload, expected) in [
        (vec![0x0a, 3, 0x0a, 1, 0xff], "field 'sensors' at byte 3: the text is not valid UTF-8"),
        (vec![0x0a, 2, 0x10, 1], "field 'sensors' at byte 2: written in a way that the schema does not have"),
        (vec![0x0a, 9, 0], "field 'sensors' at byte 2: the payload ends too early"),
        (vec![0x08, 1], "field 'sensors' at byte 0: written in a way that the schema does not have"),
        (vec![0x22, 2, 0x1d, 0], "field 'last' at byte 3: the payload ends too early"),
    ] {
        let (rows, refused) = decode(&format, &columns(), &[Vec::new(), payload, Vec::new()]);
        assert_eq!((rows.len(), refused), (2, vec![expected.to_owned()]));
    }
    let read = |declared: &[(&str, DataType)]| {
        format.decoder(&schema(declared), &[], None).map(|_| ()).unwrap_err().to_string()
    };
    let write = |declared: &[(&str, DataType)]| format.encoder(schema(declared)).map(|_| ()).unwrap_err().to_string();
    let row = |name: &str, part| DataType::Struct(vec![of(name, part)].into());
    assert!(read(&[("sensors", map(DataType::Boolean))]).contains("as a map: 'sensors['']' is no BOOLEAN"));
    assert!(read(&[("points", list(row("y", DataType::Utf8)))]).contains("'points[].y' is no field in the message"));
    assert!(read(&[("last", map(DataType::Utf8))]).contains("cannot read the field 'last' as a map"));
    assert!(read(&[("sensors", DataType::Float64)]).contains("'sensors', which has several values, as Float64"));
    assert!(write(&[("sensors", map(DataType::Boolean))]).contains("'sensors['']' is not BOOLEAN in the message"));
    assert!(write(&[("numbers", map(DataType::Boolean))]).contains("the keys of 'numbers' are no texts"));
    assert!(write(&[("last", row("y", DataType::Utf8))]).contains("there is no field 'last.y' in test.Point"));
}

const AVRO: &str = r#"{"type": "record", "name": "A", "fields": [
    {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": {"type": "record", "name": "B", "fields": [
        {"name": "n", "type": ["null", "int"]},
        {"name": "more", "type": ["null", "string"]},
        {"name": "next", "type": ["null", "B"]}]}}}},
    {"name": "x", "type": ["null", {"type": "array", "items": "float"}, "string"]},
    {"name": "any", "type": [{"type": "map", "values": ["string", "null"]}, "null"]}
]}"#;

fn avro_columns() -> SchemaRef {
    let inner = DataType::Struct(
        vec![of("next", DataType::Struct(vec![of("n", DataType::Int64)].into())), of("n", DataType::Int64)].into(),
    );
    let any = map_of(any_json());
    let fields = vec![
        part_field(&of("", map(list(inner))), "m").with_nullable(false),
        part_field(&of("", list(DataType::Float64)), "x"),
        part_field(&of("", any), "any"),
    ];
    Arc::new(Schema::new(fields))
}

#[test]
fn avro_has_maps_and_records_of_given_schemas() {
    let format = RowFormat::parse("AVRO", [("schema", AVRO)], &Files::of_user()).unwrap();
    let declared = avro_columns();
    let rows = [
        vec![
            json!({"a": [{"next": {"n": 5}, "n": 7}, null, {"next": null, "n": null}], "b": null}),
            json!([1.5, null]),
            json!({"k": {"x": [1]}, "l": null}),
        ],
        vec![json!({}), Value::Null, Value::Null],
    ];
    let written = encode(&format, &declared, &rows);
    // Nulls are left out where values may not be null; any JSON is text.
    let expected = vec![
        vec![
            json!({"a": [{"next": {"n": 5}, "n": 7}, {"next": null, "n": null}]}),
            json!([1.5]),
            json!({"k": "{\"x\":[1]}", "l": null}),
        ],
        vec![json!({}), Value::Null, Value::Null],
    ];
    assert_eq!(decode(&format, &declared, &written), (expected, Vec::new()));
    // Any JSON takes records and numbers.
    let any = Arc::new(Schema::new(vec![part_field(&of("", map_of(any_json())), "m")]));
    let read = decode(&format, &any, &written).0;
    let as_any = json!({"a": [{"n": 7, "more": null, "next": {"n": 5, "more": null, "next": null}}, {"n": null, "more": null, "next": null}]});
    assert_eq!(read[0], [as_any]);
    let empty = vec![1_u8];
    let (_, refused) = decode(&format, &declared, &[empty, vec![2, 1, 2, b'a', 0, 0, 0, 2]]);
    assert_eq!(refused.len(), 2, "{refused:?}");
}
