//! Every type that sources and sinks of big queries declare, in every format, both ways; and values that do not fit.

use std::fs;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Float32Array, Int8Array, Int16Array, Int32Array, RecordBatch,
    Time64NanosecondArray,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::util::display::array_value_to_string;
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{EncodedRows, RowFormat};
use rivulet_dataflow::{Batch, Refusals};

use super::events;

fn decimal(values: &[Option<i128>], precision: u8, scale: i8) -> ArrayRef {
    Arc::new(Decimal128Array::from(values.to_vec()).with_precision_and_scale(precision, scale).unwrap())
}

/// A row of the least and one of the greatest values, one of others and one of nulls.
fn rows() -> RecordBatch {
    const DAY_NS: i64 = 86_400_000_000_000;
    let most = 10_i128.pow(38) - 1;
    RecordBatch::try_from_iter_with_nullable(
        [
            ("tiny", Arc::new(Int8Array::from(vec![Some(i8::MIN), Some(i8::MAX), Some(1), None])) as ArrayRef),
            ("small", Arc::new(Int16Array::from(vec![Some(i16::MIN), Some(i16::MAX), Some(-1), None]))),
            ("n", Arc::new(Int32Array::from(vec![Some(i32::MIN), Some(i32::MAX), Some(7), None]))),
            ("x", Arc::new(Float32Array::from(vec![Some(-0.25), Some(1.5), Some(16_777_216.0), None]))),
            ("d", Arc::new(Date32Array::from(vec![Some(-719_162), Some(2_932_896), Some(20_778), None]))),
            (
                "t",
                Arc::new(Time64NanosecondArray::from(vec![
                    Some(0),
                    Some(DAY_NS - 1000),
                    Some(30_600_250_000_000),
                    None,
                ])),
            ),
            ("p", decimal(&[Some(-9_999_999_999), Some(9_999_999_999), Some(1250), None], 10, 2)),
            ("wide", decimal(&[Some(-most), Some(most), Some(5), None], 38, 10)),
        ]
        .map(|(name, column)| (name, column, true)),
    )
    .unwrap()
}

fn texts(rows: &RecordBatch) -> Vec<String> {
    let cell = |row: usize, column: &ArrayRef| array_value_to_string(column, row).unwrap();
    (0..rows.num_rows())
        .map(|row| rows.columns().iter().map(|column| cell(row, column)).collect::<Vec<_>>().join("|"))
        .collect()
}

fn batch(columns: RecordBatch) -> Batch {
    let rows = columns.num_rows();
    Batch::new(vec![0; rows].into(), vec![0; rows].into(), vec![0; rows].into(), columns)
}

fn encode(format: &RowFormat, rows: &RecordBatch) -> Vec<Vec<u8>> {
    let mut encoded = EncodedRows::default();
    format.encoder(rows.schema()).unwrap().encode(&batch(rows.clone()), &mut encoded);
    encoded.iter().map(<[u8]>::to_vec).collect()
}

/// The rows of payloads, and why some are none.
fn decode(format: &RowFormat, declared: &SchemaRef, payloads: &[impl AsRef<[u8]>]) -> (RecordBatch, Vec<String>) {
    let read: Vec<usize> = (0..declared.fields().len()).collect();
    let mut refusals = Refusals::new(100);
    let decoded = format.decoder(declared, &read, None).unwrap().decode(&events(payloads), &mut refusals);
    (decoded.columns, refusals.records().iter().map(|one| one.detail.clone()).collect())
}

const AVRO: &str = r#"{"type": "record", "name": "Row", "fields": [
    {"name": "tiny", "type": ["null", "int"]},
    {"name": "small", "type": ["null", "int"]},
    {"name": "n", "type": ["null", "int"]},
    {"name": "x", "type": ["null", "float"]},
    {"name": "d", "type": ["null", {"type": "int", "logicalType": "date"}]},
    {"name": "t", "type": ["null", {"type": "long", "logicalType": "time-micros"}]},
    {"name": "p", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}]},
    {"name": "wide", "type": ["null",
        {"type": "fixed", "name": "W", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 10}]}
]}"#;

const AVRO_TEXTS: &str = r#"{"type": "record", "name": "Row", "fields": [
    {"name": "tiny", "type": ["null", "long"]},
    {"name": "small", "type": ["long", "null"]},
    {"name": "n", "type": ["null", "long"]},
    {"name": "x", "type": ["null", "double"]},
    {"name": "d", "type": ["null", "string"]},
    {"name": "t", "type": ["null", "string"]},
    {"name": "p", "type": ["null", "string"]},
    {"name": "wide", "type": ["null", "string"]}
]}"#;

const PROTO: &str = r#"
    syntax = "proto3";
    message Row {
        optional int32 tiny = 1;
        optional sint32 small = 2;
        optional int64 n = 3;
        optional float x = 4;
        optional string d = 5;
        optional string t = 6;
        optional string p = 7;
        optional string wide = 8;
    }
"#;

fn formats(folder: &tempfile::TempDir) -> Vec<RowFormat> {
    let proto = folder.path().join("row.proto");
    fs::write(&proto, PROTO).unwrap();
    let proto = proto.to_str().unwrap();
    let parse = |name: &str, options: &[(&str, &str)]| {
        RowFormat::parse(name, options.iter().copied(), &Files::of_user()).unwrap()
    };
    vec![
        parse("JSON", &[]),
        parse("JSON", &[("timestamp.d", "%d.%m.%Y")]),
        parse("CSV", &[]),
        parse("CSV", &[("delimiter", "-")]),
        parse("AVRO", &[("schema", AVRO)]),
        parse("AVRO", &[("schema", AVRO_TEXTS)]),
        parse("PROTOBUF", &[("schema_file", proto)]),
    ]
}

#[test]
fn what_is_written_is_read_in_every_type_and_format() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows();
    for format in formats(&folder) {
        let payloads = encode(&format, &rows);
        let (read, refused) = decode(&format, &rows.schema(), &payloads);
        assert_eq!(refused, [""; 0], "{format:?}");
        assert_eq!(texts(&read), texts(&rows), "{format:?}");
        let types: Vec<&DataType> = read.columns().iter().map(|column| column.data_type()).collect();
        assert_eq!(types[..4], [&DataType::Int64, &DataType::Int64, &DataType::Int64, &DataType::Float64]);
        assert_eq!(types[4..], rows.columns()[4..].iter().map(|column| column.data_type()).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_written_looks_as_people_expect_it() {
    let json = RowFormat::parse("JSON", [], &Files::default()).unwrap();
    let payloads = encode(&json, &rows().slice(2, 2));
    assert_eq!(
        String::from_utf8(payloads.join(&b'\n')).unwrap(),
        "{\"tiny\":1,\"small\":-1,\"n\":7,\"x\":16777216.0,\"d\":\"2026-11-21\",\"t\":\"08:30:00.250\",\
         \"p\":12.50,\"wide\":0.0000000005}\n\
         {\"tiny\":null,\"small\":null,\"n\":null,\"x\":null,\"d\":null,\"t\":null,\"p\":null,\"wide\":null}"
    );
    let csv = RowFormat::parse("CSV", [("timestamp.d", "%d.%m.%Y")], &Files::default()).unwrap();
    let payloads = encode(&csv, &rows().slice(2, 1));
    assert_eq!(payloads[0], b"1,-1,7,16777216.0,21.11.2026,08:30:00.250,12.50,0.0000000005");
}

#[test]
fn a_value_that_does_not_fit_is_refused_with_the_reason() {
    let declared = |data_type: DataType| Arc::new(Schema::new(vec![Field::new("v", data_type, true)]));
    let time = || DataType::Time64(TimeUnit::Nanosecond);
    let decimal = || DataType::Decimal128(5, 2);
    let json = RowFormat::parse("JSON", [], &Files::default()).unwrap();
    let csv = RowFormat::parse("CSV", [], &Files::default()).unwrap();
    let german = RowFormat::parse("JSON", [("timestamp.v", "%d.%m.%Y")], &Files::default()).unwrap();
    let refused = |format: &RowFormat, data_type: DataType, payload: &str| {
        let (rows, mut refused) = decode(format, &declared(data_type), &[payload]);
        assert_eq!((rows.num_rows(), refused.len()), (0, 1), "{payload}");
        refused.remove(0)
    };
    for (format, data_type, payload, expected) in [
        (&json, DataType::Int8, r#"{"v": 128}"#, "number 128 does not fit TINYINT"),
        (&json, DataType::Int16, r#"{"v": -32769}"#, "number -32769 does not fit SMALLINT"),
        (&json, DataType::Int32, r#"{"v": 3000000000}"#, "number 3000000000 does not fit INT"),
        (&json, DataType::Int32, r#"{"v": 1.5}"#, "expected a whole number, found 1.5"),
        (&json, DataType::Int32, r#"{"v": "7"}"#, "expected a number, found \"7\""),
        (&json, decimal(), r#"{"v": 1000}"#, "number 1000 has too many digits for DECIMAL(5, 2)"),
        (&json, decimal(), r#"{"v": 1.005}"#, "number 1.005 has more digits behind the point than DECIMAL(5, 2)"),
        (&json, decimal(), r#"{"v": "much"}"#, "expected a number, found \"much\""),
        (&json, decimal(), r#"{"v": true}"#, "expected a number, found a boolean"),
        (&json, DataType::Date32, r#"{"v": "21.11.2026"}"#, "expected a date (as 2026-11-21), found \"21.11.2026\""),
        (&json, DataType::Date32, r#"{"v": 20778}"#, "expected a date (as 2026-11-21), found 20778"),
        (&german, DataType::Date32, r#"{"v": "2026-11-21"}"#, "expected a date (as '%d.%m.%Y'), found \"2026-11-21\""),
        (&json, time(), r#"{"v": "8 o'clock"}"#, "expected a time of day (as 08:30:00), found \"8 o'clock\""),
        (&json, time(), r#"{"v": {}}"#, "expected a time of day (as 08:30:00), found an object"),
        (&json, time(), r#"{"v": "24:00:00"}"#, "expected a time of day (as 08:30:00), found \"24:00:00\""),
    ] {
        let refused = refused(format, data_type, payload);
        assert!(refused.starts_with(&format!("field 'v' at byte 6: {expected}")), "{refused}");
    }
    for (data_type, payload, expected) in [
        (DataType::Int16, "99999", "number 99999 does not fit SMALLINT"),
        (decimal(), "1e9", "number 1e9 has too many digits for DECIMAL(5, 2)"),
        (decimal(), "\"0.001\"", "number \"0.001\" has more digits behind the point than DECIMAL(5, 2)"),
        (DataType::Date32, "tomorrow", "expected a date (as 2026-11-21), found tomorrow"),
    ] {
        assert_eq!(refused(&csv, data_type, payload), format!("field 'v' at byte 0: {expected}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let proto = folder.path().join("row.proto");
    fs::write(&proto, PROTO).unwrap();
    let protobuf = RowFormat::parse("PROTOBUF", [("schema_file", proto.to_str().unwrap())], &Files::of_user()).unwrap();
    let wide = encode(&protobuf, &rows().project(&[2]).unwrap().slice(1, 1));
    let small = Arc::new(Schema::new(vec![Field::new("n", DataType::Int16, true)]));
    let (_, refused) = decode(&protobuf, &small, &wide);
    assert!(refused[0].contains("field 'n'") && refused[0].contains("does not fit SMALLINT"), "{refused:?}");
}

#[test]
fn a_field_that_cannot_hold_all_values_is_refused_before_any_row() {
    let schema = |logical: &str| {
        format!(r#"{{"type": "record", "name": "R", "fields": [{{"name": "p", "type": ["null", {logical}]}}]}}"#)
    };
    let rows = rows().project(&[6]).unwrap();
    for (logical, is_held) in [
        (r#"{"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}"#, true),
        (r#"{"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}"#, true),
        (r#"{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}"#, false),
        (r#"{"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 1}"#, false),
        (r#"{"type": "fixed", "name": "F", "size": 5, "logicalType": "decimal", "precision": 10, "scale": 2}"#, true),
        (r#"{"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 10, "scale": 2}"#, false),
    ] {
        let format = RowFormat::parse("AVRO", [("schema", schema(logical).as_str())], &Files::default()).unwrap();
        assert_eq!(format.encoder(rows.schema()).is_ok(), is_held, "{logical}");
        if is_held {
            let (read, refused) = decode(&format, &rows.schema(), &encode(&format, &rows));
            assert_eq!((texts(&read), refused), (texts(&rows), Vec::new()), "{logical}");
        }
    }
}
