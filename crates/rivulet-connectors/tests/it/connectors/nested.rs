//! Arrays, maps and rows in files of Avro and Parquet, against the readers and writers of others.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema};
use arrow_avro::reader::ReaderBuilder;
use arrow_avro::writer::AvroWriter;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;
use rivulet_dataflow::{is_json, map_of, map_value, part_field};
use serde_json::{Map, Value, json};

use super::support::{batch, drain, fill, format, sink, sink_error, source, source_error};

/// Types with parts.
fn part() -> impl Strategy<Value = Field> {
    let of = |data_type| Field::new("", data_type, true);
    let plain = [DataType::Utf8, DataType::Int64, DataType::Float64, DataType::Boolean];
    prop::sample::select(plain.to_vec()).prop_map(of).prop_recursive(3, 12, 3, move |inner| {
        let fields = prop::collection::vec(inner.clone(), 1..4).prop_map(move |fields| {
            let named = |(place, field): (usize, Field)| field.with_name(format!("f{place}"));
            of(DataType::Struct(fields.into_iter().enumerate().map(named).collect::<Vec<_>>().into()))
        });
        prop_oneof![
            inner.clone().prop_map(move |element| of(DataType::List(Arc::new(element.with_name("item"))))),
            inner.prop_map(move |value| of(map_of(value))),
            fields,
        ]
    })
}

/// A value of the type, or null.
fn value(part: &Field) -> BoxedStrategy<Value> {
    let of_type = match part.data_type() {
        DataType::Utf8 => "\\PC{0,6}".prop_map(|text| json!(text)).boxed(),
        DataType::Int64 => any::<i64>().prop_map(|number| json!(number)).boxed(),
        DataType::Float64 => any::<i32>().prop_map(|number| json!(f64::from(number) / 8.0)).boxed(),
        DataType::Boolean => any::<bool>().prop_map(|value| json!(value)).boxed(),
        DataType::List(element) => prop::collection::vec(value(element), 0..4).prop_map(Value::Array).boxed(),
        DataType::Map(entries, _) => {
            let values = value(map_value(entries).expect("a map has values"));
            let members = prop::collection::btree_map("\\PC{0,3}", values, 0..4);
            members.prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())).boxed()
        }
        DataType::Struct(fields) => {
            let names: Vec<String> = fields.iter().map(|field| field.name().clone()).collect();
            let values: Vec<_> = fields.iter().map(|field| value(field)).collect();
            let row = move |values: Vec<Value>| Value::Object(names.iter().cloned().zip(values).collect());
            values.prop_map(row).boxed()
        }
        other => panic!("no part is of type {other}"),
    };
    prop_oneof![8 => of_type, 1 => Just(Value::Null)].boxed()
}

/// The values of a column of Arrow as JSON.
fn as_values(column: &ArrayRef) -> Vec<Value> {
    let of = |row: usize| match column.data_type() {
        _ if column.is_null(row) => Value::Null,
        DataType::Utf8 => json!(column.as_string::<i32>().value(row)),
        DataType::Int64 => json!(column.as_primitive::<Int64Type>().value(row)),
        DataType::Float64 => json!(column.as_primitive::<Float64Type>().value(row)),
        DataType::Boolean => json!(column.as_boolean().value(row)),
        DataType::List(_) => Value::Array(as_values(&column.as_list::<i32>().value(row))),
        DataType::Map(..) => {
            let entries = column.as_map().value(row);
            let keys = as_values(entries.column(0)).into_iter().map(|key| key.as_str().expect("a text").to_owned());
            Value::Object(keys.zip(as_values(entries.column(1))).collect())
        }
        DataType::Struct(fields) => {
            let columns = column.as_struct().columns();
            let member = |(field, column): (&Arc<Field>, &ArrayRef)| {
                (field.name().clone(), as_values(&column.slice(row, 1)).remove(0))
            };
            Value::Object(fields.iter().zip(columns).map(member).collect())
        }
        other => panic!("no part is of type {other}"),
    };
    (0..column.len()).map(of).collect()
}

fn others_read(path: &Path) -> RecordBatch {
    let file = File::open(path).unwrap();
    let batches: Vec<RecordBatch> = match path.extension().is_some_and(|ending| ending == "avro") {
        true => ReaderBuilder::new().build(BufReader::new(file)).unwrap().map(Result::unwrap).collect(),
        false => ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(Result::unwrap).collect(),
    };
    arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap()
}

fn others_write(path: &Path, rows: &RecordBatch) {
    let file = File::create(path).unwrap();
    match path.extension().is_some_and(|ending| ending == "avro") {
        true => {
            let mut writer = AvroWriter::new(file, rows.schema().as_ref().clone()).unwrap();
            writer.write(rows).unwrap();
            writer.finish().unwrap();
        }
        false => {
            let mut writer = ArrowWriter::try_new(file, rows.schema(), None).unwrap();
            writer.write(rows).unwrap();
            writer.close().unwrap();
        }
    }
}

/// What a source reads of a column `v`.
fn we_read(path: &Path, column: &Field) -> (Vec<Value>, Vec<String>) {
    let mut spec = source(&format!("file:{}", path.display()), "v TEXT");
    spec.schema = Arc::new(Schema::new(vec![column.clone()]));
    let drained = drain(&spec, 1).unwrap();
    let value = |text: &String| if text.is_empty() { Value::Null } else { serde_json::from_str(text).unwrap() };
    (drained.rows.iter().map(value).collect(), drained.details)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn files_are_those_of_others(
        (part, values) in part().prop_filter("it has parts", |part| part.data_type().is_nested())
            .prop_flat_map(|part| (Just(part.clone()), prop::collection::vec(value(&part), 1..8))),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let column = part_field(&part, "v");
        prop_assert!(is_json(&column));
        let text = |value: &Value| (!value.is_null()).then(|| value.to_string());
        let texts: ArrayRef = Arc::new(values.iter().map(text).collect::<StringArray>());
        for ending in ["avro", "parquet"] {
            let path = folder.path().join(format!("ours.{ending}"));
            let mut rows = batch(vec![("v", texts.clone())]);
            let schema = Arc::new(Schema::new(vec![column.clone()]));
            rows.columns = RecordBatch::try_new(schema.clone(), vec![texts.clone()]).unwrap();
            fill(&sink(&format!("file:{}", path.display()), schema), &[rows]).unwrap();
            let read = others_read(&path);
            prop_assert_eq!(&as_values(read.column(0)), &values, "{} by another", ending);
            prop_assert_eq!(&we_read(&path, &column), &(values.clone(), Vec::new()), "{} by us", ending);
            let path = folder.path().join(format!("theirs.{ending}"));
            others_write(&path, &read);
            prop_assert_eq!(&we_read(&path, &column), &(values.clone(), Vec::new()), "{} of another", ending);
        }
    }
}

fn column(name: &str, data_type: DataType) -> Field {
    part_field(&Field::new("", data_type, true), name)
}

#[test]
fn fields_of_structs_of_parquet_are_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let field = |name: &str, data_type| Arc::new(Field::new(name, data_type, true));
    let gps: ArrayRef = Arc::new(StructArray::new(
        vec![field("lat", DataType::Int32)].into(),
        vec![Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4)]))],
        Some(NullBuffer::from(vec![true, true, false, true])),
    ));
    let radio = StructArray::new(
        vec![field("rssi", DataType::Int64), field("gps", gps.data_type().clone())].into(),
        vec![Arc::new(Int64Array::from(vec![-1, -2, -3, -4])), gps],
        Some(NullBuffer::from(vec![true, true, true, false])),
    );
    others_write(&path, &RecordBatch::try_from_iter([("radio", Arc::new(radio) as ArrayRef)]).unwrap());
    let address = format!("file:{}", path.display());
    let mut spec = source(&address, "radio.gps.lat DOUBLE, radio.rssi BIGINT");
    assert_eq!(drain(&spec, 1).unwrap().rows, ["1.0|-1", "|-2", "|-3", "|"]);
    let inner = DataType::Struct(vec![field("lat", DataType::Float64)].into());
    spec.schema =
        Arc::new(Schema::new(vec![column("radio.gps", inner), Field::new("RADIO.rssi", DataType::Utf8, true)]));
    assert_eq!(drain(&spec, 1).unwrap().rows, [r#"{"lat":1.0}|-1"#, r#"{"lat":null}|-2"#, "|-3", "|"]);
    assert!(source_error(&source(&address, "radio.snr BIGINT")).contains("there is no column 'radio.snr'"));
}

#[test]
fn parts_that_do_not_suit_are_said_by_their_paths() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, data_type| Field::new(name, data_type, true);
    let list = |element| DataType::List(Arc::new(Field::new("item", element, true)));
    let row = |fields: Vec<Field>| DataType::Struct(fields.into());
    let written = list(map_of(of("", row(vec![of("n", DataType::Int64)]))));
    for ending in ["avro", "parquet"] {
        let address = format!("file:{}", folder.path().join(format!("rows.{ending}")).display());
        let texts: ArrayRef = Arc::new(StringArray::from(vec![r#"[{"k":{"n":7}}]"#]));
        let mut rows = batch(vec![("v", texts.clone())]);
        rows.columns =
            RecordBatch::try_new(Arc::new(Schema::new(vec![column("v", written.clone())])), vec![texts]).unwrap();
        fill(&sink(&address, rows.columns.schema()), &[rows]).unwrap();
        let mut spec = source(&address, "v TEXT");
        for (declared, expected) in [
            (list(map_of(of("", row(vec![of("n", DataType::Float64)])))), None),
            (list(map_of(of("", row(vec![of("n", DataType::Utf8)])))), Some("'v[][''].n' is no TEXT")),
            (list(map_of(of("", row(vec![of("m", DataType::Int64)])))), Some("'v[][''].m' is no field")),
            (list(map_of(of("", DataType::Int64))), Some("'v[]['']' is no BIGINT")),
            (list(DataType::Int64), Some("'v[]' is no BIGINT")),
            (map_of(of("", DataType::Int64)), Some("as a map")),
        ] {
            spec.schema = Arc::new(Schema::new(vec![column("v", declared)]));
            match expected {
                None => assert_eq!(drain(&spec, 1).unwrap().rows, [r#"[{"k":{"n":7.0}}]"#]),
                Some(expected) => {
                    let error = source_error(&spec);
                    assert!(error.contains(expected) && error.contains("cannot"), "{error}");
                }
            }
        }
    }
    let schema = r#"{"type":"record","name":"A","fields":[{"name":"v","type":["null",{"type":"record","name":"B",
        "fields":[{"name":"n","type":"long"}]}]}]}"#;
    let mut spec = sink(&format!("file:{}", folder.path().join("a.avro").display()), Arc::new(Schema::empty()));
    spec.format = Some(format("AVRO"));
    spec.format.as_mut().expect("it was set").1.push(("schema".into(), schema.into()));
    for (data_type, expected) in [
        (row(vec![of("n", DataType::Int64)]), "'v.n' may be null, and its field may not"),
        (row(vec![of("m", DataType::Int64)]), "there is no field 'v.m' in the schema"),
        (map_of(of("", DataType::Int64)), "'v' is not a map in the schema"),
    ] {
        spec.schema = Arc::new(Schema::new(vec![column("v", data_type)]));
        let error = sink_error(&spec);
        assert!(error.contains("cannot write the column 'v' of type") && error.contains(expected), "{error}");
    }
}
