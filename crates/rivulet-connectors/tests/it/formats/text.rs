//! What each format takes, refuses and writes.

use std::sync::Arc;

use super::*;
use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema};
use rivulet_connectors::formats::{EncodedRows, Format, FormatError, encode_row_as_json, json_escape};
use rivulet_dataflow::{Batch, Reason};

const CSV: Format = Format::Csv { delimiter: b',' };

fn json(declared: &str, payload: &str) -> Result<Vec<Cell>, String> {
    one(Format::Json, declared, payload)
}

#[test]
fn formats_are_found_by_name_and_errors_say_what_there_is() {
    let parse = |name, options: &[(&str, &str)]| Format::parse(name, options.iter().copied()).map(|(format, _)| format);
    assert_eq!(parse("json", &[]), Ok(Format::Json));
    assert_eq!(parse("SenML-Pivot", &[]), Ok(Format::SenMlPivot));
    assert_eq!(parse("CSV", &[("delimiter", ";")]), Ok(Format::Csv { delimiter: b';' }));
    assert_eq!(parse("csv", &[("DELIMITER", "tab")]), Ok(Format::Csv { delimiter: b'\t' }));
    for name in Format::NAMES {
        assert_eq!(parse(name, &[]).unwrap().to_string(), name);
    }
    let error = |name, options: &[(&str, &str)]| Format::parse(name, options.iter().copied()).unwrap_err().to_string();
    assert_eq!(
        error("AVRO", &[]),
        "unknown format 'AVRO'\nhint: the formats are JSON, SENML, SENML_PIVOT, CSV, TEXT, RAW"
    );
    assert_eq!(
        error("JSON", &[("delimiter", ";")]),
        "format JSON has no option 'delimiter'\nhint: its options are timestamp, nested"
    );
    assert!(error("CSV", &[("header", "true")]).ends_with("hint: its options are delimiter, timestamp"));
    for delimiter in ["", ",,", "\"", "\n", "é"] {
        assert!(error("CSV", &[("delimiter", delimiter)]).contains("cannot be a delimiter"));
    }
}

#[test]
fn columns_that_do_not_suit_a_format_are_refused_with_a_hint() {
    let refuse = |format: Format, schema, event_time| match format.decoder(schema, event_time) {
        Ok(_) => panic!("{format} took the columns"),
        Err(error) => {
            assert!(error.to_string().contains("\nhint: "), "{error}");
            error
        }
    };
    let odd = Arc::new(Schema::new(vec![Field::new("x", DataType::LargeBinary, true)]));
    assert!(matches!(refuse(Format::Json, odd, None), FormatError::Column { .. }));
    assert!(matches!(refuse(Format::Text, columns("a TEXT, b TEXT"), None), FormatError::Columns { count: 2, .. }));
    let event_time = refuse(Format::Text, columns("ts TIMESTAMP"), Some(0));
    assert!(event_time.to_string().contains("time of arrival"), "{event_time}");
    assert!(matches!(refuse(Format::Json, columns("ts TEXT"), Some(0)), FormatError::EventTime { .. }));
    assert!(matches!(refuse(CSV, Arc::new(Schema::empty()), None), FormatError::Columns { count: 0, .. }));
    for declared in ["name TEXT, temperature DOUBLE", "value BIGINT", "time TEXT"] {
        let error = refuse(Format::SenMl, columns(declared), None).to_string();
        assert!(error.contains("name TEXT, unit TEXT, value DOUBLE") && error.contains("SENML_PIVOT"), "{error}");
    }
    let deep = Arc::new(Schema::new(vec![Field::new("a.".repeat(100), DataType::Int64, true)]));
    assert!(matches!(refuse(Format::Json, deep, None), FormatError::Column { .. }));
    let wide: Vec<Field> = (0..5000).map(|index| Field::new(format!("c{index}"), DataType::Int64, true)).collect();
    assert!(matches!(refuse(Format::Json, Arc::new(Schema::new(wide)), None), FormatError::Columns { .. }));
    let unwritable = Arc::new(Schema::new(vec![Field::new("x", DataType::Binary, true)]));
    assert!(Format::Json.encoder(unwritable).is_ok(), "binary that is text is written as text");
    assert!(Format::Text.encoder(columns("a TEXT, b TEXT")).is_err());
}

#[test]
fn json_values_by_type() {
    let all = "ts TIMESTAMP, n BIGINT, x DOUBLE, s TEXT, b BOOLEAN";
    assert_eq!(
        json(all, r#"{"ts":1766275200123,"n":5,"x":21.37,"s":"caf\u00e9 \ud83d\ude00","b":true}"#).unwrap(),
        [Cell::Timestamp(1_766_275_200_123_000), Cell::Int64(5), float(21.37), text("café 😀"), Cell::Boolean(true)]
    );
    assert_eq!(
        json(all, r#" { "b" : false , "extra" : {"a":[1,{"b":"]}"}]} , "n" : 5.0 , "s":null } "#).unwrap(),
        [Cell::Null, Cell::Int64(5), Cell::Null, Cell::Null, Cell::Boolean(false)]
    );
    assert_eq!(json("x DOUBLE", r#"{"x":1,"x":2}"#).unwrap(), [float(2.0)]);
    assert_eq!(json("x DOUBLE", r#"{"x":1,"x":null}"#).unwrap(), [Cell::Null]);
    assert_eq!(json("x DOUBLE", "{}").unwrap(), [Cell::Null]);
}

#[test]
fn json_timestamps() {
    let ts = |value: &str| json("ts TIMESTAMP", &format!("{{\"ts\":{value}}}")).map(|cells| cells[0].clone());
    assert_eq!(ts("0").unwrap(), Cell::Timestamp(0));
    assert_eq!(ts("1").unwrap(), Cell::Timestamp(1_000));
    assert_eq!(ts("-1.5").unwrap(), Cell::Timestamp(-1_500));
    assert_eq!(ts("1766275200123.456").unwrap(), Cell::Timestamp(1_766_275_200_123_456));
    assert_eq!(ts("1.766275200123e12").unwrap(), Cell::Timestamp(1_766_275_200_123_000));
    assert_eq!(ts("4102444800000").unwrap(), Cell::Timestamp(4_102_444_800_000_000));
    assert_eq!(ts("\"2100-01-01T00:00:00Z\"").unwrap(), Cell::Timestamp(4_102_444_800_000_000));
    assert_eq!(ts("\"1969-12-31 23:59:59.5\"").unwrap(), Cell::Timestamp(-500_000));
    assert_eq!(ts(r#""2026\u002d11-21""#).unwrap(), Cell::Timestamp(ARRIVAL_US));
    assert!(ts("1e300").unwrap_err().contains("out of range (years 0001 to 9999)"));
    assert!(ts("99999999999999999").unwrap_err().contains("out of range"));
    assert!(ts("9223372036854775807").unwrap_err().contains("out of range"));
    assert!(ts("\"0000-01-01\"").unwrap_err().contains("out of range"));
    assert_eq!(
        ts("\"yesterday\"").unwrap_err(),
        "field 'ts' at byte 6: expected a time (epoch milliseconds or ISO 8601), found \"yesterday\""
    );
    assert!(ts("true").unwrap_err().contains("expected a time"));
}

#[test]
fn json_faults_name_field_place_expected_and_found() {
    let declared = "value DOUBLE, n BIGINT, s TEXT, b BOOLEAN";
    for (payload, detail) in [
        ("", "the payload is empty"),
        ("  ", "at byte 2: expected an object or an array of objects, found the end"),
        ("21.5", "at byte 0: expected an object or an array of objects, found a number"),
        ("null", "at byte 0: expected an object or an array of objects, found null"),
        (
            r#"{"value":"21.5 °C"}"#,
            "field 'value' at byte 9: expected a number, found \"21.5 °C\" (a column of type TEXT takes it, and CAST \
             makes a number of it)",
        ),
        (r#"{"value": [1]}"#, "field 'value' at byte 10: expected a number, found an array"),
        (r#"{"value":true}"#, "field 'value' at byte 9: expected a number, found a boolean"),
        (r#"{"value":NaN}"#, "field 'value' at byte 9: expected a number, found 'N'"),
        (r#"{"value":-Infinity}"#, "field 'value' at byte 9: malformed number -Infinity"),
        (
            r#"{"value":"NaN"}"#,
            "field 'value' at byte 9: expected a finite number, found \"NaN\": to take it for null, write FORMAT TEXT and \
             a column value AS TRY_CAST(json_value(payload, '$.value') AS DECIMAL(30, 9))",
        ),
        (r#"{"value":1e400}"#, "field 'value' at byte 9: number 1e400 is out of range"),
        (r#"{"value":01}"#, "field 'value' at byte 9: malformed number 01"),
        (r#"{"value":1.}"#, "field 'value' at byte 9: malformed number 1."),
        (r#"{"n":5.5}"#, "field 'n' at byte 5: expected a whole number, found 5.5"),
        (r#"{"n":9223372036854775808}"#, "field 'n' at byte 5: number 9223372036854775808 is out of range"),
        (r#"{"s":5}"#, "field 's' at byte 5: expected a string, found a number"),
        (r#"{"s":"\ud83d"}"#, "field 's' at byte 6: a surrogate escape without its other half"),
        (r#"{"s":"a"#, "field 's' at byte 7: the string does not end"),
        ("{\"s\":\"a\nb\"}", "field 's' at byte 7: a line break must be escaped in a string"),
        (r#"{"b":1}"#, "field 'b' at byte 5: expected true or false, found a number"),
        (r#"{"b":"true"}"#, "field 'b' at byte 5: expected true or false, found a string"),
        (r#"{"b":True}"#, "field 'b' at byte 5: expected true or false, found 'T'"),
        (r#"{"value":1"#, "at byte 10: expected ',' or '}', found the end"),
        (r#"{"value":1 "n":2}"#, "at byte 11: expected ',' or '}', found a string"),
        (r#"{"value":1,}"#, "at byte 11: expected a quoted key, found '}'"),
        (r#"{value:1}"#, "at byte 1: expected a quoted key, found 'v'"),
        (r#"{"value" 1}"#, "at byte 9: expected ':' after the key, found a number"),
        (r#"{"value":1}x"#, "at byte 11: expected the end of the payload, found 'x'"),
        (r#"{"value":1}{"value":2}"#, "at byte 11: expected the end of the payload, found an object"),
        (r#"{"other":tru}"#, "at byte 9: expected a value, found 't'"),
        ("[]", "the payload holds no row"),
        ("[1]", "at byte 1: expected an object in the array, found a number"),
        ("[{}", "at byte 3: expected ',' or ']', found the end"),
    ] {
        assert_eq!(json(declared, payload).unwrap_err(), detail, "{payload}");
    }
    assert_eq!(json("ts TIMESTAMP NOT_NULL", "{}").unwrap_err(), "field 'ts' is missing");
    assert_eq!(
        json("ts TIMESTAMP NOT_NULL", r#"{"ts":null}"#).unwrap_err(),
        "field 'ts' at byte 6: expected a value, found null"
    );
    let event_time = several(Format::Json, "v DOUBLE, ts TIMESTAMP", Some(1), r#"{"v":1}"#);
    assert_eq!(event_time.unwrap_err(), "field 'ts' is missing", "the event time is never null");
    let invalid = one(Format::Json, "s TEXT", b"{\"s\":\"a\xff\"}");
    assert_eq!(invalid.unwrap_err(), "field 's' at byte 6: the text is not valid UTF-8");
}

#[test]
fn json_arrays_and_nested_columns() {
    assert_eq!(
        several(Format::Json, "v DOUBLE", None, r#"[{"v":1}, {"v":2}, {}]"#).unwrap(),
        [[float(1.0)], [float(2.0)], [Cell::Null]]
    );
    let nested = "a.b BIGINT, a.c.d TEXT, e BIGINT";
    assert_eq!(
        json(nested, r#"{"a":{"x":[{}],"b":1,"c":{"d":"deep"}},"e":2}"#).unwrap(),
        [Cell::Int64(1), text("deep"), Cell::Int64(2)]
    );
    assert_eq!(json(nested, r#"{"a.b":1,"e":2}"#).unwrap(), [Cell::Int64(1), Cell::Null, Cell::Int64(2)]);
    assert_eq!(json(nested, r#"{"a":null}"#).unwrap(), [Cell::Null, Cell::Null, Cell::Null]);
    assert_eq!(
        json(nested, r#"{"a":{"b":1},"a":{"c":{"d":"x"}}}"#).unwrap(),
        [Cell::Null, text("x"), Cell::Null],
        "the last of two objects counts, whole"
    );
    // The key that is written as the column is has it, wherever it stands; without one another case will do.
    for (message, value) in [
        (r#"{"deviceId":1}"#, 1),
        (r#"{"deviceid":1,"deviceId":2}"#, 1),
        (r#"{"deviceId":2,"deviceid":1}"#, 1),
        (r#"{"DEVICEID":3}"#, 3),
    ] {
        assert_eq!(json("deviceid BIGINT", message).unwrap(), [Cell::Int64(value)], "{message}");
    }
    assert_eq!(json("a.b BIGINT", r#"{"A":{"B":7}}"#).unwrap(), [Cell::Int64(7)]);
    assert_eq!(json(nested, r#"{"a":5}"#).unwrap_err(), "field 'a.b' at byte 5: expected an object, found a number");
    let deep = format!("{{\"x\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(json("v DOUBLE", &deep).unwrap_err(), "at byte 68: nested deeper than 64 levels");
    let many = format!("[{}{{}}]", "{},".repeat(70_000));
    assert_eq!(json("v DOUBLE", &many).unwrap_err(), "the payload holds more than 65536 rows");
}

#[test]
fn a_broken_event_leaves_the_others_unharmed() {
    let mut decoder = Format::Json.decoder(columns("ts TIMESTAMP, s TEXT, v DOUBLE"), Some(0)).unwrap();
    let payloads = [
        r#"{"ts":1,"s":"one","v":1.5}"#,
        r#"{"ts":2,"s":"half a row","v":"x"}"#,
        r#"[{"ts":3,"s":"three","v":3},{"ts":4,"s":"four"}]"#,
        r#"[{"ts":5,"s":"lost"},{"ts":6,"s":"lost too"},{"ts":7,"s":"#,
        "",
        r#"{"ts":8,"v":8}"#,
    ];
    let (batch, refusals) = decode_with(&mut *decoder, &payloads);
    assert_eq!(refusals.counted(Reason::Decode), 3);
    assert_eq!(
        rows(&batch),
        [
            (0, vec![Cell::Timestamp(1_000), text("one"), float(1.5)]),
            (2, vec![Cell::Timestamp(3_000), text("three"), float(3.0)]),
            (2, vec![Cell::Timestamp(4_000), text("four"), Cell::Null]),
            (5, vec![Cell::Timestamp(8_000), Cell::Null, float(8.0)]),
        ]
    );
    let (empty, _) = decode_with(&mut *decoder, &[] as &[&str]);
    assert_eq!(empty.rows(), 0);
}

#[test]
fn senml_gives_a_row_for_each_record() {
    let pack = r#"[
        {"bn":"urn:dev:1:","bt":1.276020076001e+09,"bu":"A","bver":5,"n":"voltage","u":"V","v":120.1},
        {"n":"current","t":-5,"v":1.2},
        {"n":"state","vs":"ok","u":""},
        {"bv":100,"n":"sum","v":1},
        {"n":"open","vb":true},
        {"n":"energy","s":5}]"#;
    let records = several(
        Format::SenMl,
        "time TIMESTAMP, name TEXT, value DOUBLE, unit TEXT, text TEXT, flag BOOLEAN",
        Some(0),
        pack,
    )
    .unwrap();
    let time = |offset_us: i64| Cell::Timestamp(1_276_020_076_001_000 + offset_us);
    let name = |name: &str| text(&format!("urn:dev:1:{name}"));
    assert_eq!(
        records,
        [
            vec![time(0), name("voltage"), float(120.1), text("V"), Cell::Null, Cell::Null],
            vec![time(-5_000_000), name("current"), float(1.2), text("A"), Cell::Null, Cell::Null],
            vec![time(0), name("state"), Cell::Null, text(""), text("ok"), Cell::Null],
            vec![time(0), name("sum"), float(101.0), text("A"), Cell::Null, Cell::Null],
            vec![time(0), name("open"), Cell::Null, text("A"), Cell::Null, Cell::Boolean(true)],
            vec![time(0), name("energy"), Cell::Null, text("A"), Cell::Null, Cell::Null],
        ]
    );
}

#[test]
fn senml_times_are_relative_below_2_to_the_28() {
    let time = |pack: &str| several(Format::SenMl, "time TIMESTAMP", Some(0), pack).map(|rows| rows[0][0].clone());
    assert_eq!(time(r#"[{"n":"a","v":1}]"#).unwrap(), Cell::Timestamp(ARRIVAL_US));
    assert_eq!(time(r#"[{"n":"a","v":1,"t":-10.5}]"#).unwrap(), Cell::Timestamp(ARRIVAL_US - 10_500_000));
    assert_eq!(time(r#"[{"n":"a","v":1,"t":268435455}]"#).unwrap(), Cell::Timestamp(ARRIVAL_US + 268_435_455_000_000));
    assert_eq!(time(r#"[{"n":"a","v":1,"t":268435456}]"#).unwrap(), Cell::Timestamp(268_435_456_000_000));
    assert_eq!(time(r#"[{"bt":1e9,"n":"a","v":1,"t":0.000001}]"#).unwrap(), Cell::Timestamp(1_000_000_000_000_001));
    assert!(time(r#"[{"n":"a","v":1,"t":1e15}]"#).unwrap_err().contains("out of range"));
    assert!(time(r#"[{"n":"a","v":1,"t":1e11,"bt":1422748800000}]"#).unwrap_err().contains("out of range"));
    assert_eq!(
        time(r#"{"e":[{"n":"a","v":1,"t":500}],"bt":1422748800000}"#).unwrap(),
        Cell::Timestamp(1_422_748_800_500_000),
        "milliseconds show by their size in the older form"
    );
    assert_eq!(
        time(r#"{"bt":1422748800,"e":[{"n":"a","v":1,"t":0.5}]}"#).unwrap(),
        Cell::Timestamp(1_422_748_800_500_000)
    );
}

#[test]
fn senml_packs_of_the_older_form_become_one_row() {
    let declared = "ts TIMESTAMP, source TEXT, longitude DOUBLE, temperature DOUBLE, dust BIGINT, light DOUBLE";
    let payload = r#"{"e":[{"u":"string","n":"source","sv":"ci4lr75sl000802ypo4qrcjda23"},{"v":"6.1668213","u":"lon","n":"longitude"},{"v":"-8","u":"far","n":"temperature"},{"u":"x","n":"other","v":"?"},{"sv":"140","u":"per","n":"dust"}],"bt":"1422748800000"}"#;
    assert_eq!(
        several(Format::SenMlPivot, declared, Some(0), payload).unwrap(),
        [[
            Cell::Timestamp(1_422_748_800_000_000),
            text("ci4lr75sl000802ypo4qrcjda23"),
            float(6.1668213),
            float(-8.0),
            Cell::Int64(140),
            Cell::Null
        ]]
    );
    let declared = "temperature DOUBLE, dev1:humidity BIGINT, open BOOLEAN, label TEXT, seen TIMESTAMP";
    let payload = r#"[{"bn":"dev1:","n":"temperature","v":21.5,"bv":1},{"n":"humidity","v":40},
        {"bn":"dev2:","bv":0,"n":"humidity","v":50},{"n":"open","vb":false},{"n":"l\u0061bel","vs":"\u0041"},
        {"n":"seen","v":1000},{"bn":"temperature","v":30}]"#;
    assert_eq!(
        several(Format::SenMlPivot, declared, None, payload).unwrap(),
        [[float(30.0), Cell::Int64(41), Cell::Boolean(false), text("A"), Cell::Timestamp(1_000_000)]],
        "full name or own name; the last of one name counts"
    );
}

#[test]
fn senml_faults() {
    let pivot = |payload: &str| several(Format::SenMlPivot, "t DOUBLE, n BIGINT, s TEXT, b BOOLEAN", None, payload);
    let long = format!(r#"[{{"bn":"{}","n":"t","v":1}}]"#, "x".repeat(600));
    for (payload, detail) in [
        ("1", "at byte 0: expected an array of SenML records (or an object with an array 'e'), found a number"),
        ("{}", "at byte 0: expected an array of SenML records (or an object with an array 'e'), found an object"),
        (
            r#"{"e":1}"#,
            "at byte 5: expected an array of SenML records (or an object with an array 'e'), found a number",
        ),
        ("[]", "the payload holds no row"),
        (r#"[{"bn":"a"}]"#, "the payload holds no row"),
        ("[1]", "at byte 1: expected an object in the array, found a number"),
        (r#"[{"v":1}]"#, "at byte 6: the SenML record has no name"),
        (r#"[{"n":"t"}]"#, "at byte 1: the SenML record has no value"),
        (r#"[{"n":"t","v":"warm"}]"#, "field 't' at byte 14: expected a number, found \"warm\""),
        (r#"[{"n":"t","vs":"warm"}]"#, "field 't' at byte 15: expected a number, found \"warm\""),
        (r#"[{"n":"t","vb":true}]"#, "field 't' at byte 15: expected a number, found a boolean"),
        (r#"[{"n":"n","v":1.5}]"#, "field 'n' at byte 14: expected a whole number, found 1.5"),
        (r#"[{"n":"n","v":1,"bv":0.5}]"#, "field 'n' at byte 14: expected a whole number, found 1"),
        (r#"[{"n":"n","v":1,"bv":1e300}]"#, "field 'n' at byte 14: number 1 is out of range"),
        (r#"[{"n":"s","v":1}]"#, "field 's' at byte 14: expected a string, found a number"),
        (r#"[{"n":"b","v":1}]"#, "field 'b' at byte 14: expected true or false, found a number"),
        (
            r#"[{"n":"t","v":1,"x_":1}]"#,
            "at byte 16: the SenML record has a field that must be understood and is not: \"x_\"",
        ),
        (r#"[{"n":"t","v":1,"t":"soon"}]"#, "at byte 20: expected a number, found \"soon\""),
        (r#"[{"n":"t","v":1}]x"#, "at byte 17: expected the end of the payload, found 'x'"),
        (r#"{"e":[{"n":"t","v":1}]}x"#, "at byte 23: expected the end of the payload, found 'x'"),
        (&long, "at byte 617: a SenML name or unit is longer than 512 bytes"),
    ] {
        let found = pivot(payload).unwrap_err();
        if payload != long {
            assert_eq!(found, detail, "{payload}");
        } else {
            assert!(found.ends_with("longer than 512 bytes"), "{found}");
        }
    }
    assert_eq!(
        one(Format::SenMl, "value DOUBLE", r#"[{"n":"t","v":"hot"}]"#).unwrap_err(),
        "field 'value' at byte 14: expected a number, found \"hot\""
    );
    assert!(one(Format::SenMl, "value DOUBLE NOT_NULL", r#"[{"n":"t","vs":"x"}]"#).unwrap_err().contains("found null"));
}

#[test]
fn csv_lines() {
    let declared = "ts TIMESTAMP, s TEXT, v DOUBLE, n BIGINT, b BOOLEAN";
    let rows = several(
        CSV,
        declared,
        None,
        "1766275200123,plain, 21.5 ,+7,true\r\n2026-11-21,\"a \"\"b\"\", c\nd\",,,\n,\"\",1e3,0,off",
    )
    .unwrap();
    assert_eq!(
        rows,
        [
            vec![
                Cell::Timestamp(1_766_275_200_123_000),
                text("plain"),
                float(21.5),
                Cell::Int64(7),
                Cell::Boolean(true)
            ],
            vec![Cell::Timestamp(ARRIVAL_US), text("a \"b\", c\nd"), Cell::Null, Cell::Null, Cell::Null],
            vec![Cell::Null, text(""), float(1000.0), Cell::Int64(0), Cell::Boolean(false)],
        ]
    );
    let (tabs, _) = Format::parse("csv", [("delimiter", "tab")]).unwrap();
    assert_eq!(one(tabs, "a TEXT, b TEXT", "x,y\tz\n\n").unwrap(), [text("x,y"), text("z")]);
    assert_eq!(several(CSV, "a BIGINT", None, "1\n\n3\n").unwrap(), [[Cell::Int64(1)], [Cell::Null], [Cell::Int64(3)]]);
    for (payload, detail) in [
        ("", "the payload is empty"),
        ("\n\n", "the payload holds no row"),
        ("1", "field 'v' at byte 1: the line ends before this field"),
        ("1,2\n3\n", "field 'v' at byte 5: the line ends before this field"),
        ("1,2,3", "at byte 3: the line has more fields than are declared"),
        ("a,2", "field 'n' at byte 0: expected a number, found a"),
        ("1.5,2", "field 'n' at byte 0: expected a whole number, found 1.5"),
        ("1,2 3", "field 'v' at byte 2: expected a number, found 2 3"),
        ("1,2\"3\"", "field 'v' at byte 3: a quote inside a field that does not begin with one"),
        ("\"1\"x,2", "field 'n' at byte 3: expected a delimiter after the closing quote, found 'x'"),
        ("\"1,2", "field 'n' at byte 0: the quoted field does not end"),
    ] {
        assert_eq!(several(CSV, "n BIGINT, v DOUBLE", None, payload).unwrap_err(), detail, "{payload:?}");
    }
    assert!(one(CSV, "n BIGINT NOT_NULL, v DOUBLE", ",1").unwrap_err().contains("expected a value"));
    assert!(one(CSV, "s TEXT", b"a\xffb").unwrap_err().contains("not valid UTF-8"));
}

#[test]
fn bare_values() {
    assert_eq!(one(Format::Text, "v DOUBLE", " 21.5\n").unwrap(), [float(21.5)]);
    assert_eq!(one(Format::Text, "v BIGINT", "42").unwrap(), [Cell::Int64(42)]);
    assert_eq!(one(Format::Text, "v BOOLEAN", "ON").unwrap(), [Cell::Boolean(true)]);
    assert_eq!(one(Format::Text, "v TEXT", "any text, really\n").unwrap(), [text("any text, really\n")]);
    assert_eq!(one(Format::Text, "v TIMESTAMP", "2026-11-21T00:00:00Z").unwrap(), [Cell::Timestamp(ARRIVAL_US)]);
    assert_eq!(one(Format::Text, "v DOUBLE", " hot").unwrap_err(), "field 'v' at byte 1: expected a number, found hot");
    assert_eq!(
        one(Format::Text, "v DOUBLE", "21.5 °C\n").unwrap_err(),
        "field 'v' at byte 0: expected a number, found 21.5 °C"
    );
    assert_eq!(one(Format::Text, "v DOUBLE", "").unwrap_err(), "the payload is empty");
    assert_eq!(
        one(Format::Text, "v DOUBLE", " ").unwrap_err(),
        "field 'v' at byte 1: expected a number, found the end"
    );
    assert!(one(Format::Text, "v TEXT", b"\xc3\x28").unwrap_err().contains("not valid UTF-8"));
}

#[test]
fn payloads_as_they_are() {
    let raw = |encoding: &str| Format::parse("raw", [("encoding", encoding)]).map(|(format, _)| format);
    assert_eq!(one(raw("utf8").unwrap(), "v TEXT", " any text\n").unwrap(), [text(" any text\n")]);
    assert!(one(raw("utf8").unwrap(), "v TEXT", b"\xc3\x28").unwrap_err().contains("not valid UTF-8"));
    assert_eq!(one(raw("hex").unwrap(), "v TEXT", b"\xc3\x28").unwrap(), [text("c328")]);
    assert_eq!(one(raw("BASE64").unwrap(), "v TEXT", "foo").unwrap(), [text("Zm9v")]);
    assert!(raw("rot13").unwrap_err().to_string().ends_with("hint: it is one of utf8, hex, base64"));
    let batch = sample();
    let texts = batch.with_columns(batch.columns.project(&[0]).unwrap());
    assert_eq!(encode(raw("utf8").unwrap(), &texts), ["heat, \"now\"\n", "", ""]);
    for declared in ["a TEXT, b TEXT", "a DOUBLE"] {
        let error = raw("hex").unwrap().decoder(columns(declared), None).map(|_| ()).unwrap_err().to_string();
        assert!(error.ends_with("hint: FORMAT RAW has exactly one column, TEXT"), "{error}");
    }
}

fn sample() -> Batch {
    let schema = Arc::new(Schema::new(vec![
        Field::new("action", DataType::Utf8, true),
        Field::new("mean", DataType::Float64, true),
        Field::new("count", DataType::UInt64, true),
        Field::new("at", timestamp(), true),
        Field::new("alarm", DataType::Boolean, true),
        Field::new("n \"x\"", DataType::Int64, true),
    ]));
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(vec![Some("heat, \"now\"\n"), None, Some("")])),
        Arc::new(Float64Array::from(vec![Some(21.5), Some(f64::NAN), None])),
        Arc::new(UInt64Array::from(vec![u64::MAX, 0, 7])),
        Arc::new(TimestampMicrosecondArray::from(vec![1_766_275_200_123_000, 1_500, -1])),
        Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])),
        Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(-1), None])),
    ];
    let columns = RecordBatch::try_new(schema, arrays).unwrap();
    let times = vec![1_766_275_200_123_000, ARRIVAL_US, 0];
    Batch::new(vec![1, 2, 3].into(), times.into(), vec![ARRIVAL_US; 3].into(), columns)
}

fn encode(format: Format, batch: &Batch) -> Vec<String> {
    let mut encoder = format.encoder(batch.columns.schema()).unwrap();
    let mut out = EncodedRows::default();
    encoder.encode(batch, &mut out);
    out.iter().map(|row| String::from_utf8(row.to_vec()).unwrap()).collect()
}

#[test]
fn rows_are_written_in_every_format() {
    let batch = sample();
    let json = [
        r#"{"action":"heat, \"now\"\n","mean":21.5,"count":18446744073709551615,"at":1766275200123,"alarm":true,"n \"x\"":-9223372036854775808}"#,
        r#"{"action":null,"mean":"NaN","count":0,"at":1.5,"alarm":false,"n \"x\"":-1}"#,
        r#"{"action":"","mean":null,"count":7,"at":-0.001,"alarm":null,"n \"x\"":null}"#,
    ];
    assert_eq!(encode(Format::Json, &batch), json);
    for (row, expected) in json.iter().enumerate() {
        assert_eq!(encode_row_as_json(&batch, row), *expected);
        serde_json::from_str::<serde_json::Value>(expected).unwrap();
    }
    assert_eq!(
        encode(CSV, &batch),
        [
            "\"heat, \"\"now\"\"\n\",21.5,18446744073709551615,1766275200123,true,-9223372036854775808",
            ",NaN,0,1.5,false,-1",
            "\"\",,7,-0.001,,"
        ]
    );
    assert_eq!(
        encode(Format::SenMl, &batch),
        [
            r#"[{"bt":1766275200.123,"n":"action","vs":"heat, \"now\"\n"},{"n":"mean","v":21.5},{"n":"count","v":18446744073709551615},{"n":"at","u":"ms","v":1766275200123},{"n":"alarm","vb":true},{"n":"n \"x\"","v":-9223372036854775808}]"#,
            r#"[{"bt":1795219200,"n":"count","v":0},{"n":"at","u":"ms","v":1.5},{"n":"alarm","vb":false},{"n":"n \"x\"","v":-1}]"#,
            r#"[{"n":"action","vs":""},{"n":"count","v":7},{"n":"at","u":"ms","v":-0.001}]"#
        ]
    );
    for (column, expected) in [(0, ["heat, \"now\"\n", "", ""]), (1, ["21.5", "NaN", ""]), (4, ["true", "false", ""])] {
        let one = batch.with_columns(batch.columns.project(&[column]).unwrap());
        assert_eq!(encode(Format::Text, &one), expected);
    }
    assert_eq!(json_escape("\u{1}\t\"\\é\u{7f}"), "\\u0001\\t\\\"\\\\é\u{7f}");
}
