//! Every type that sources and sinks declare, through files of every kind.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Float32Array, Float64Array, Int16Array, Int32Array, Int64Array,
    StringArray, Time64NanosecondArray,
};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::support::{batch, drain, fill, format, sink, source, source_error, texts};

#[test]
fn files_of_every_kind_keep_every_type() {
    let folder = tempfile::tempdir().unwrap();
    let decimals = Decimal128Array::from(vec![Some(1250), Some(-5), None]).with_precision_and_scale(10, 2).unwrap();
    let rows = batch(vec![
        ("small", Arc::new(Int16Array::from(vec![Some(i16::MAX), Some(-1), None])) as ArrayRef),
        ("n", Arc::new(Int32Array::from(vec![Some(i32::MIN), Some(7), None]))),
        ("x", Arc::new(Float32Array::from(vec![Some(1.5), Some(-0.25), None]))),
        ("d", Arc::new(Date32Array::from(vec![Some(20_778), Some(-1), None]))),
        ("t", Arc::new(Time64NanosecondArray::from(vec![Some(30_600_250_000_000), Some(0), None]))),
        ("p", Arc::new(decimals)),
        ("name", Arc::new(StringArray::from(vec!["a", "b", "c"]))),
    ]);
    for (ending, written) in [("json", "JSON"), ("csv", "CSV header=true"), ("parquet", "PARQUET"), ("avro", "AVRO")] {
        let address = format!("file:{}", folder.path().join(format!("rows.{ending}")).display());
        let mut spec = sink(&address, rows.columns.schema());
        spec.format = Some(format(written));
        fill(&spec, std::slice::from_ref(&rows)).unwrap();
        let mut spec = source(&address, "name TEXT");
        spec.schema = rows.columns.schema();
        spec.columns = (0..7).collect();
        spec.format = Some(format(written));
        let drained = drain(&spec, 1).unwrap();
        assert_eq!((drained.rows, drained.refused), (texts(&rows.columns), 0), "{written}");
        // Columns of fewer bits refuse what does not fit them.
        let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
        spec.schema = Arc::new(Schema::new(vec![field("n", DataType::Int8), field("name", DataType::Utf8)]));
        spec.columns = vec![0, 1];
        let drained = drain(&spec, 1).unwrap();
        if written == "AVRO" {
            // In a block of Avro nobody knows where the next record begins.
            assert_eq!((drained.rows.len(), drained.refused), (0, 3), "{:?}", drained.details);
        } else {
            assert_eq!((drained.rows, drained.refused), (vec!["7|b".to_owned(), "|c".to_owned()], 1), "{written}");
        }
        assert!(drained.details[0].contains("'n'"), "{:?}", drained.details);
    }
}

#[test]
fn parquet_columns_become_exact_types_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("file:{}", folder.path().join("rows.parquet").display());
    let rows = batch(vec![
        ("f", Arc::new(Float64Array::from(vec![12.5])) as ArrayRef),
        ("i", Arc::new(Int64Array::from(vec![12]))),
        ("s", Arc::new(StringArray::from(vec!["2026-11-21"]))),
    ]);
    fill(&sink(&address, rows.columns.schema()), &[rows]).unwrap();
    let decimal = DataType::Decimal128(10, 2);
    let spec = |name: &str, data_type: &DataType| {
        let mut spec = source(&address, "f TEXT");
        spec.schema = Arc::new(Schema::new(vec![Field::new(name, data_type.clone(), true)]));
        spec
    };
    assert_eq!(drain(&spec("i", &decimal), 1).unwrap().rows, ["12.00"]);
    assert_eq!(drain(&spec("f", &DataType::Float32), 1).unwrap().rows, ["12.5"]);
    for (name, data_type) in
        [("f", &decimal), ("s", &decimal), ("s", &DataType::Date32), ("i", &DataType::Time64(TimeUnit::Nanosecond))]
    {
        let error = source_error(&spec(name, data_type));
        assert!(error.contains("cannot be read as"), "{error}");
    }
}
