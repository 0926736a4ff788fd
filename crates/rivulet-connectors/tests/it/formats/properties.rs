//! Properties of the formats on random input: `serde_json` is the oracle for what is JSON, what was written is read
//! back, broken events harm nobody, and no bytes cause a panic.

use std::fmt;
use std::sync::Arc;

use super::*;
use arrow::array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use proptest::prelude::*;
use rivulet_connectors::formats::{EncodedRows, Format};
use rivulet_dataflow::{Batch, Reason, canonical_float};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

const DECLARED: &str = "ts TIMESTAMP, n BIGINT, x DOUBLE, s TEXT, b BOOLEAN";
const CSV: Format = Format::Csv { delimiter: b',' };

/// A value as it is written and what it is in its column.
type Written = (String, Cell);

fn whitespace() -> impl Strategy<Value = &'static str> {
    prop_oneof![8 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t ")]
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[a-z]{0,20}", 1 => any::<String>(), 1 => "[a-z\"\\\\/\u{1}\n\u{7f}é€😀]{0,12}"]
}

/// A JSON string of `text`, with some characters escaped that need not be.
fn json_string(text: &str, escape_all: bool) -> String {
    if !escape_all {
        return serde_json::to_string(text).unwrap();
    }
    let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
    format!("\"{}\"", units.collect::<String>())
}

/// The names of the columns.
const NAMES: [&str; 5] = ["ts", "n", "x", "s", "b"];

fn field() -> impl Strategy<Value = (&'static str, Written)> {
    let null = prop_oneof![Just("ts"), Just("n"), Just("x"), Just("s"), Just("b")]
        .prop_map(|key| (key, ("null".to_owned(), Cell::Null)));
    let ts = (-62_135_596_800_000i64..253_402_300_799_999)
        .prop_map(|ms| ("ts", (ms.to_string(), Cell::Timestamp(ms * 1000))));
    let n = any::<i64>().prop_map(|n| ("n", (n.to_string(), Cell::Int64(n))));
    let x = "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?".prop_map(|written| {
        let value = float(written.parse().unwrap());
        ("x", (written, value))
    });
    let s = (any_text(), any::<bool>()).prop_map(|(s, escape)| ("s", (json_string(&s, escape), text(&s))));
    let b = any::<bool>().prop_map(|b| ("b", (b.to_string(), Cell::Boolean(b))));
    prop_oneof![1 => null, 3 => ts, 3 => n, 4 => x, 3 => s, 2 => b]
}

/// Any JSON, for fields that nobody declared.
fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,9})(\\.[0-9]{1,4})?",
        any_text().prop_map(|text| json_string(&text, false)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" , "))),
            prop::collection::vec((any_text(), inner), 0..4).prop_map(|items| {
                let items: Vec<_> =
                    items.iter().map(|(key, value)| format!("{}:{value}", json_string(key, false))).collect();
                format!("{{{}}}", items.join(","))
            }),
        ]
    })
}

/// An object and the row it is.
fn object() -> impl Strategy<Value = (String, Vec<Cell>)> {
    let item = prop_oneof![
        4 => field().prop_map(|(key, (written, cell))| (key.to_owned(), written, Some(cell))),
        1 => ("u[a-z]{0,3}", any_json()).prop_map(|(key, written)| (key, written, None)),
    ];
    prop::collection::vec((item, whitespace(), whitespace(), any::<bool>()), 0..7).prop_map(|items| {
        let mut cells = vec![Cell::Null; 5];
        let mut json = String::from("{");
        for (index, ((key, written, cell), before, after, escape)) in items.into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            json += &format!(
                "{comma}{before}{}{after}:{before}{written}{after}",
                json_string(&key, escape && after.len() > 1)
            );
            if let Some(cell) = cell {
                let column = NAMES.iter().position(|name| *name == key).unwrap();
                cells[column] = cell;
            }
        }
        json.push('}');
        (json, cells)
    })
}

/// Slots and rows.
type Rows = Vec<(u32, Vec<Cell>)>;

/// What the decoder gives, and what it refuses for which reason.
fn json_rows(payloads: &[impl AsRef<[u8]>]) -> (Rows, Vec<(u32, String)>) {
    let mut decoder = Format::Json.decoder(columns(DECLARED), None).unwrap();
    let (batch, refusals) = decode_with(&mut *decoder, payloads);
    (rows(&batch), refusals.records().iter().map(|refusal| (refusal.slot, refusal.detail.clone())).collect())
}

/// The keys of an object as they stand there, however they are written.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

/// Whether an object, or one of an array, has a key twice.
fn has_key_twice(text: &str) -> bool {
    let objects: Vec<Keys> = match serde_json::from_str(text) {
        Ok(keys) => vec![keys],
        Err(_) => serde_json::from_str(text).unwrap_or_default(),
    };
    objects.iter().any(|Keys(keys)| (1..keys.len()).any(|place| keys[..place].contains(&keys[place])))
}

/// What `serde_json` says about a payload: the rows it is, `None` if it does not fit the columns. `Err` where the two
/// cannot be compared: an object has a key twice (where every value must fit, and only the last is seen here), a key is
/// a column's name in another letter case, or a number needs more digits than a double has.
fn oracle(payload: &[u8]) -> Result<Option<Vec<Vec<Cell>>>, ()> {
    let value: Value = match serde_json::from_slice(payload) {
        Ok(value) => value,
        Err(error) if error.to_string().contains("number out of range") => return Err(()),
        Err(_) => return Ok(None),
    };
    let text = std::str::from_utf8(payload).map_err(|_| ())?;
    let objects = match value {
        Value::Array(items) if !items.is_empty() => items,
        object @ Value::Object(_) => vec![object],
        _ => return Ok(None),
    };
    if has_key_twice(text) {
        return Err(());
    }
    let mut rows = Vec::new();
    for object in &objects {
        let Value::Object(object) = object else { return Ok(None) };
        let is_variant = |key: &str| NAMES.iter().any(|name| *name != key && name.eq_ignore_ascii_case(key));
        if object.keys().any(|key| is_variant(key)) {
            return Err(());
        }
        let mut row = Vec::new();
        for (index, key) in NAMES.into_iter().enumerate() {
            let cell = match (index, object.get(key).unwrap_or(&Value::Null)) {
                (_, Value::Null) => Cell::Null,
                (0, Value::Number(number)) => match number.as_i64() {
                    Some(ms) if (-62_135_596_800_000..=253_402_300_799_999).contains(&ms) => Cell::Timestamp(ms * 1000),
                    Some(_) => return Ok(None),
                    None => return Err(()),
                },
                (0, Value::String(text)) => {
                    match json_rows(&[format!("{{\"ts\":{}}}", json_string(text, false))]).0.first() {
                        Some((_, cells)) => cells[0].clone(),
                        None => return Ok(None),
                    }
                }
                (1, Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
                    (Some(value), _) => Cell::Int64(value),
                    (None, Some(value)) if value.abs() < 1e15 && !number.to_string().contains('e') => {
                        if value.fract() != 0.0 {
                            return Ok(None);
                        }
                        return Err(());
                    }
                    _ => return Err(()),
                },
                (2, Value::Number(number)) => float(number.as_f64().ok_or(())?),
                (3, Value::String(value)) => text_cell(value),
                (4, Value::Bool(value)) => Cell::Boolean(*value),
                _ => return Ok(None),
            };
            row.push(cell);
        }
        rows.push(row);
    }
    Ok(Some(rows))
}

fn text_cell(value: &str) -> Cell {
    text(value)
}

/// Equal, but for the last bits of doubles, which `serde_json` does not round as exactly as we do.
fn nearly_equal(left: &[Cell], right: &[Cell]) -> bool {
    left.len() == right.len()
        && left.iter().zip(right).all(|(left, right)| match (left, right) {
            (Cell::Float64(left), Cell::Float64(right)) => {
                let (left, right) = (f64::from_bits(*left), f64::from_bits(*right));
                left == right || (left - right).abs() <= left.abs() * 1e-14
            }
            _ => left == right,
        })
}

/// A change to a payload: cut it, or put, replace or remove a byte.
#[derive(Clone, Debug)]
enum Mutation {
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, u8),
    Replace(prop::sample::Index, u8),
    Remove(prop::sample::Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let byte = prop_oneof![
        prop::sample::select(b"{}[]:,\"\\ 0123456789-+.eEtfnu\x00\x1f\x7f\xc3\xa9\xff".to_vec()),
        any::<u8>(),
    ];
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Mutation::Cut),
        (any::<prop::sample::Index>(), byte.clone()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        (any::<prop::sample::Index>(), byte).prop_map(|(at, byte)| Mutation::Replace(at, byte)),
        any::<prop::sample::Index>().prop_map(Mutation::Remove),
    ]
}

fn mutate(payload: &mut Vec<u8>, mutation: &Mutation) {
    if payload.is_empty() {
        return;
    }
    match mutation {
        Mutation::Cut(at) => payload.truncate(at.index(payload.len())),
        Mutation::Insert(at, byte) => payload.insert(at.index(payload.len() + 1), *byte),
        Mutation::Replace(at, byte) => {
            let at = at.index(payload.len());
            payload[at] = *byte;
        }
        Mutation::Remove(at) => {
            payload.remove(at.index(payload.len()));
        }
    }
}

/// Rows of all five types.
fn batch(with_text: bool) -> impl Strategy<Value = Batch> {
    let time = prop::option::weighted(0.9, -62_135_596_800_000_000i64..=253_402_300_799_999_999);
    let number = prop::option::weighted(0.9, any::<f64>().prop_filter("finite", |value| value.is_finite()));
    let text = prop::option::weighted(0.9, any_text());
    let row = (time, prop::option::of(any::<i64>()), number, text, prop::option::of(any::<bool>()));
    prop::collection::vec(row, 1..20).prop_map(move |rows| {
        let count = rows.len();
        let texts = rows.iter().map(|row| row.3.clone().filter(|_| with_text));
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(rows.iter().map(|row| row.0).collect::<TimestampMicrosecondArray>()),
            Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|row| row.2.map(canonical_float)).collect::<Float64Array>()),
            Arc::new(texts.collect::<StringArray>()),
            Arc::new(rows.iter().map(|row| row.4).collect::<BooleanArray>()),
        ];
        let slots: Vec<u32> = (0..count as u32).collect();
        let times: Vec<i64> = (0..count as i64).map(|row| ARRIVAL_US + row).collect();
        let columns = RecordBatch::try_new(columns(DECLARED), arrays).unwrap();
        Batch::new(slots.into(), times.clone().into(), times.into(), columns)
    })
}

fn round_trip(format: Format, batch: &Batch) -> Rows {
    let schema = batch.columns.schema();
    let mut encoded = EncodedRows::default();
    format.encoder(schema.clone()).unwrap().encode(batch, &mut encoded);
    assert_eq!(encoded.rows(), batch.rows());
    let payloads: Vec<&[u8]> = encoded.iter().collect();
    let (decoded, refusals) = decode_with(&mut *format.decoder(schema, None).unwrap(), &payloads);
    assert!(refusals.is_empty(), "{:?}", refusals.records());
    rows(&decoded)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn objects_become_the_rows_they_are(objects in prop::collection::vec(object(), 1..6)) {
        let payloads: Vec<_> = objects.iter().map(|(json, _)| json).collect();
        let (found, refused) = json_rows(&payloads);
        prop_assert_eq!(&refused, &[]);
        let expected: Vec<_> = objects.iter().enumerate().map(|(slot, (_, cells))| (slot as u32, cells.clone())).collect();
        prop_assert_eq!(found, expected);
        // The same as one array, with one decoder for all.
        let array = format!(" [ {} ] ", payloads.iter().map(|json| json.as_str()).collect::<Vec<_>>().join(" , "));
        let (found, _) = json_rows(&[array]);
        prop_assert_eq!(found, objects.iter().map(|(_, cells)| (0, cells.clone())).collect::<Vec<_>>());
    }

    #[test]
    fn what_serde_accepts_is_accepted_and_nothing_else(
        (json, _) in object(),
        wrap in any::<bool>(),
        mutations in prop::collection::vec(mutation(), 0..4),
    ) {
        let mut payload = if wrap { format!("[{json}]") } else { json }.into_bytes();
        mutations.iter().for_each(|mutation| mutate(&mut payload, mutation));
        let (found, refused) = json_rows(&[&payload]);
        match oracle(&payload) {
            Err(()) => {}
            Ok(None) => prop_assert!(found.is_empty() && refused.len() == 1, "{:?} gave {found:?}", String::from_utf8_lossy(&payload)),
            Ok(Some(expected)) => {
                prop_assert!(refused.is_empty(), "{refused:?}");
                prop_assert_eq!(found.len(), expected.len());
                for ((_, found), expected) in found.iter().zip(&expected) {
                    prop_assert!(nearly_equal(found, expected), "{found:?} {expected:?}");
                }
            }
        }
    }

    #[test]
    fn broken_events_change_nothing_for_the_others(
        objects in prop::collection::vec((object(), prop::option::weighted(0.4, prop::collection::vec(mutation(), 1..3))), 1..30),
    ) {
        let payloads: Vec<Vec<u8>> = objects
            .iter()
            .map(|((json, _), mutations)| {
                let mut payload = json.clone().into_bytes();
                mutations.iter().flatten().for_each(|mutation| mutate(&mut payload, mutation));
                payload
            })
            .collect();
        let (together, refused_together) = json_rows(&payloads);
        let (mut alone, mut refused_alone) = (Vec::new(), Vec::new());
        for (slot, payload) in payloads.iter().enumerate() {
            let (rows, refused) = json_rows(&[payload]);
            alone.extend(rows.into_iter().map(|(_, cells)| (slot as u32, cells)));
            refused_alone.extend(refused.into_iter().map(|(_, detail)| (slot as u32, detail)));
        }
        prop_assert_eq!(together, alone, "what was learned from other events must not show");
        prop_assert_eq!(refused_together, refused_alone);
    }

    #[test]
    fn no_bytes_cause_a_panic_and_every_event_is_accounted_for(
        payloads in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "[\\[\\]{}:,\"\\\\ue0-9.a\n-]{0,60}".prop_map(String::into_bytes),
            (Just(r#"[{"bn":"d:","bt":1e9,"n":"x","v":"1.5","u":"C"},{"n":"s","vs":"\u0041"}]"#), prop::collection::vec(mutation(), 0..5))
                .prop_map(|(json, mutations)| {
                    let mut payload = json.as_bytes().to_vec();
                    mutations.iter().for_each(|mutation| mutate(&mut payload, mutation));
                    payload
                }),
        ], 1..8),
    ) {
        for (format, declared) in [
            (Format::Json, DECLARED),
            (Format::SenMl, "name TEXT, unit TEXT, value DOUBLE, text TEXT, flag BOOLEAN, time TIMESTAMP"),
            (Format::SenMlPivot, DECLARED),
            (CSV, "s TEXT, x DOUBLE"),
            (CSV, "s TEXT"),
            (Format::Text, "s TEXT"),
            (Format::Text, "x DOUBLE"),
            (Format::Text, "ts TIMESTAMP"),
        ] {
            let mut decoder = format.decoder(columns(declared), None).unwrap();
            let (batch, refusals) = decode_with(&mut *decoder, &payloads);
            let mut given: Vec<u32> = batch.slots.to_vec();
            given.dedup();
            prop_assert_eq!(given.len() as u64 + refusals.counted(Reason::Decode), payloads.len() as u64);
        }
    }

    #[test]
    fn what_was_written_is_read_back(batch in batch(true)) {
        prop_assert_eq!(round_trip(Format::Json, &batch), rows(&batch));
        prop_assert_eq!(round_trip(CSV, &batch), rows(&batch));
        for column in 0..5 {
            let one = batch.with_columns(batch.columns.project(&[column]).unwrap());
            let kept: Vec<u32> = (0..one.rows() as u32).filter(|&row| !one.column(0).is_null(row as usize)).collect();
            // An empty payload is what null is written as, so empty text cannot be told from it.
            let kept: Vec<u32> = kept.into_iter().filter(|&row| cell(&one, 0, row as usize) != text("")).collect();
            let one = one.take(&kept).unwrap();
            let expected: Vec<_> = rows(&one).into_iter().map(|(_, cells)| cells).collect();
            let renumbered = Batch::new((0..kept.len() as u32).collect(), one.event_time_us.clone(), one.arrival_us.clone(), one.columns.clone());
            let found: Vec<_> = round_trip(Format::Text, &renumbered).into_iter().map(|(_, cells)| cells).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn senml_is_read_back_as_a_pivot(batch in batch(true)) {
        let expected: Vec<_> = rows(&batch).into_iter().filter(|(_, cells)| cells.iter().any(|cell| *cell != Cell::Null)).collect();
        let mut encoded = EncodedRows::default();
        Format::SenMlPivot.encoder(batch.columns.schema()).unwrap().encode(&batch, &mut encoded);
        let payloads: Vec<&[u8]> = encoded.iter().collect();
        let mut decoder = Format::SenMlPivot.decoder(batch.columns.schema(), None).unwrap();
        let (decoded, _) = decode_with(&mut *decoder, &payloads);
        prop_assert_eq!(rows(&decoded), expected);
    }
}
