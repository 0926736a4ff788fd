//! Arrays, maps and rows in each other: what the decoder of JSON reads against serde_json and a model of the types.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use proptest::prelude::*;
use rivulet_connectors::formats::{EncodedRows, Format};
use rivulet_dataflow::{any_json, held_type, is_json, map_of, map_value, marked_as, part_field};
use serde_json::{Map, Value, json};

use super::decode_with;

/// A value as it is sent; an object may have a key twice.
#[derive(Clone, Debug)]
enum Sent {
    Plain(Value),
    Array(Vec<Sent>),
    Object(Vec<(String, Sent)>),
}

impl Sent {
    fn write(&self, blanks: &str, out: &mut String) {
        let begin = |out: &mut String, place: usize| out.push_str(if place == 0 { "" } else { "," });
        out.push_str(blanks);
        match self {
            Self::Plain(value) => out.push_str(&value.to_string()),
            Self::Array(elements) => {
                out.push('[');
                for (place, element) in elements.iter().enumerate() {
                    begin(out, place);
                    element.write(blanks, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (place, (key, value)) in members.iter().enumerate() {
                    begin(out, place);
                    out.push_str(&format!("{blanks}{}{blanks}:", json!(key)));
                    value.write(blanks, out);
                }
                out.push('}');
            }
        }
        out.push_str(blanks);
    }

    /// The same value, with the members of objects the other way around where no key is there twice.
    fn turned(&self) -> Self {
        match self {
            Self::Plain(_) => self.clone(),
            Self::Array(elements) => Self::Array(elements.iter().map(Self::turned).collect()),
            Self::Object(members) => {
                let is_twice =
                    |key: &String| members.iter().filter(|(other, _)| other.eq_ignore_ascii_case(key)).count() > 1;
                let mut turned: Vec<_> = members.iter().map(|(key, value)| (key.clone(), value.turned())).collect();
                if !members.iter().any(|(key, _)| is_twice(key)) {
                    turned.reverse();
                }
                Self::Object(turned)
            }
        }
    }

    fn text(&self, blanks: &str) -> String {
        let mut text = String::new();
        self.write(blanks, &mut text);
        text
    }
}

/// What a value is in a column of this type; `None` if it does not fit. Numbers that are elements of it stay as they
/// are sent: `[1]` does not become `[1.0]`.
fn held_as(column: &Field, sent: &Sent) -> Option<Value> {
    let mut held = read_as(column, sent)?;
    if let (DataType::List(element), Sent::Array(elements)) = (column.data_type(), sent)
        && !is_json(column)
        && *element.data_type() == DataType::Float64
    {
        let held = held.as_array_mut().expect("an array is held as one");
        for (held, sent) in held.iter_mut().zip(elements) {
            if let Sent::Plain(number @ Value::Number(_)) = sent {
                *held = number.clone();
            }
        }
    }
    Some(held)
}

/// What a value is in a part of this type, which is within another; `None` if it does not fit.
fn read_as(part: &Field, sent: &Sent) -> Option<Value> {
    if is_json(part) {
        return serde_json::from_str(&sent.text("")).ok();
    }
    if let Sent::Plain(Value::Null) = sent {
        return Some(Value::Null);
    }
    match (part.data_type(), sent) {
        (DataType::Utf8, Sent::Plain(value @ Value::String(_))) => Some(value.clone()),
        (DataType::Boolean, Sent::Plain(value @ Value::Bool(_))) => Some(value.clone()),
        (DataType::Float64, Sent::Plain(Value::Number(number))) => {
            // serde_json may read other digits than it writes, as of what is held.
            number.as_f64().and_then(|number| serde_json::from_str(&json!(number).to_string()).ok())
        }
        (DataType::Int64, Sent::Plain(Value::Number(number))) => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64);
            number.as_i64().or(whole).map(|number| json!(number))
        }
        (DataType::List(element), Sent::Array(elements)) => {
            elements.iter().map(|one| read_as(element, one)).collect::<Option<_>>().map(Value::Array)
        }
        (DataType::Map(entries, _), Sent::Object(members)) => {
            let value = map_value(entries).expect("a map has values");
            // The last value of a key remains, and each must fit.
            let members = members.iter().map(|(key, one)| Some((key.clone(), read_as(value, one)?)));
            members.collect::<Option<Map<_, _>>>().map(Value::Object)
        }
        (DataType::Struct(fields), Sent::Object(members)) => {
            let mut row: Map<_, _> = fields.iter().map(|field| (field.name().clone(), Value::Null)).collect();
            let mut written: Vec<&str> = Vec::new();
            for (key, one) in members {
                let exact = fields.iter().find(|field| field.name() == key);
                let variant = || fields.iter().find(|field| field.name().eq_ignore_ascii_case(key));
                let field = exact.or_else(|| variant().filter(|field| !written.contains(&field.name().as_str())));
                if let Some(field) = field {
                    written.push(field.name());
                    row.insert(field.name().clone(), read_as(field, one)?);
                }
            }
            Some(Value::Object(row))
        }
        _ => None,
    }
}

/// Keys that come often enough to come twice, and any.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[abcA]", 1 => "\\PC{0,3}", 1 => Just("a\"\\\n\u{1}é".to_owned())]
}

fn part() -> impl Strategy<Value = Field> {
    let of = |data_type| Field::new("", data_type, true);
    let plain = prop_oneof![
        Just(of(DataType::Utf8)),
        Just(of(DataType::Int64)),
        Just(of(DataType::Float64)),
        Just(of(DataType::Boolean)),
        Just(any_json()),
    ];
    plain.prop_recursive(4, 16, 4, move |inner| {
        let fields = prop::collection::vec((key(), inner.clone()), 1..4).prop_map(move |fields| {
            let mut row: Vec<Field> = Vec::new();
            for (name, field) in fields {
                if row.iter().all(|other| *other.name() != name) {
                    row.push(field.with_name(name));
                }
            }
            of(DataType::Struct(row.into()))
        });
        prop_oneof![
            inner.clone().prop_map(move |element| of(DataType::List(Arc::new(element.with_name("item"))))),
            inner.prop_map(move |value| of(map_of(value))),
            fields,
        ]
    })
}

fn any_sent() -> impl Strategy<Value = Sent> {
    let plain = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(|value| json!(value)),
        any::<i64>().prop_map(|value| json!(value)),
        any::<i32>().prop_map(|value| json!(f64::from(value) / 8.0)),
        key().prop_map(|value| json!(value)),
    ];
    plain.prop_map(Sent::Plain).prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Sent::Array),
            prop::collection::vec((key(), inner), 0..4).prop_map(Sent::Object),
        ]
    })
}

/// A value that nearly always fits the part.
fn sent_as(part: &Field) -> BoxedStrategy<Sent> {
    let plain = |value: BoxedStrategy<Value>| value.prop_map(Sent::Plain).boxed();
    let whole = any::<i64>().prop_map(|value| json!(value));
    let with_point = any::<i32>().prop_map(|value| json!(f64::from(value)));
    let fraction = any::<i32>().prop_map(|value| json!(f64::from(value) / 8.0));
    let fits = match part.data_type() {
        _ if is_json(part) => any_sent().boxed(),
        DataType::Utf8 => plain(key().prop_map(|value| json!(value)).boxed()),
        DataType::Int64 => plain(prop_oneof![4 => whole, 1 => with_point].boxed()),
        DataType::Float64 => plain(prop_oneof![1 => whole, 2 => with_point, 2 => fraction].boxed()),
        DataType::Boolean => plain(any::<bool>().prop_map(|value| json!(value)).boxed()),
        DataType::List(element) => prop::collection::vec(sent_as(element), 0..4).prop_map(Sent::Array).boxed(),
        DataType::Map(entries, _) => {
            let value = sent_as(map_value(entries).expect("a map has values"));
            prop::collection::vec((key(), value), 0..5).prop_map(Sent::Object).boxed()
        }
        DataType::Struct(fields) => {
            let member = |field: &Arc<Field>| {
                let name = field.name().clone();
                sent_as(field).prop_map(move |value| (name.clone(), value)).boxed()
            };
            let known = prop::collection::vec(prop::strategy::Union::new(fields.iter().map(member)), 0..5);
            let other = prop::collection::vec((key(), any_sent()), 0..2);
            let both = (known, other).prop_map(|(known, other)| known.into_iter().chain(other).collect());
            both.prop_map(Sent::Object).boxed()
        }
        other => panic!("no part is of type {other}"),
    };
    prop_oneof![30 => fits, 1 => Just(Sent::Plain(Value::Null)), 1 => any_sent()].boxed()
}

fn schema(part: &Field) -> SchemaRef {
    Arc::new(Schema::new(vec![part_field(part, "v")]))
}

/// What the decoder holds of each payload; `None` where it refused.
fn decode(schema: &SchemaRef, payloads: &[String]) -> Vec<Option<Option<String>>> {
    let mut decoder = Format::Json.decoder(schema.clone(), None).expect("JSON has these columns");
    let (batch, refusals) = decode_with(&mut *decoder, payloads);
    let mut held: Vec<Option<Option<String>>> = vec![None; payloads.len()];
    let texts = batch.column(0).as_string::<i32>();
    for (row, slot) in batch.slots.iter().enumerate() {
        held[*slot as usize] = Some(texts.is_valid(row).then(|| texts.value(row).to_owned()));
    }
    assert_eq!(held.iter().filter(|held| held.is_none()).count(), refusals.records().len());
    held
}

proptest! {
    #[test]
    fn what_is_held_is_what_was_sent(
        (part, sent) in part().prop_filter("it has parts", |part| part.data_type().is_nested())
            .prop_flat_map(|part| (Just(part.clone()), prop::collection::vec(sent_as(&part), 1..8))),
    ) {
        let schema = schema(&part);
        prop_assert_eq!(held_type(schema.field(0)), Some(part.data_type().clone()));
        let payload = |value: &Sent, blanks| format!("{{\"v\":{}}}", value.text(blanks));
        let payloads: Vec<String> = sent.iter().map(|value| payload(value, "")).collect();
        let held = decode(&schema, &payloads);
        for (held, sent) in held.iter().zip(&sent) {
            let expected = held_as(&part, sent);
            let found = held.as_ref().map(|text| match text {
                Some(text) => serde_json::from_str(text).expect("what is held is JSON"),
                None => Value::Null,
            });
            prop_assert_eq!(found, expected, "{:?}", sent);
        }
        // Blanks count only in parts that are any JSON.
        let spaced: Vec<String> = sent.iter().map(|value| payload(value, " \n")).collect();
        let turned: Vec<String> = sent.iter().map(|value| payload(&value.turned(), "")).collect();
        let has_any = format!("{part:?}").contains("arrow.json");
        if !has_any {
            prop_assert_eq!(&decode(&schema, &spaced), &held);
            prop_assert_eq!(&decode(&schema, &turned), &held);
        }
        // What goes out comes in as the same.
        let texts: Vec<String> = held.iter().flatten().flatten().cloned().collect();
        let again: Vec<String> = texts.iter().map(|text| format!("{{\"v\":{text}}}")).collect();
        let texts: Vec<_> = texts.into_iter().map(|text| Some(Some(text))).collect();
        prop_assert_eq!(decode(&schema, &again), texts);
    }
}

#[test]
fn values_with_parts_go_out_as_they_are() {
    let of = |name: &str, data_type| Field::new(name, data_type, true);
    let row = DataType::Struct(vec![of("x", DataType::Float64), of("tag", DataType::Utf8)].into());
    let points = DataType::List(Arc::new(Field::new("item", row, true)));
    let fields = vec![
        marked_as(of("sensors", DataType::Utf8), &map_of(of("", DataType::Float64))),
        marked_as(of("points", DataType::Utf8), &points),
    ];
    let schema = Arc::new(Schema::new(fields));
    let payload = r#"{"points": [{"tag": "a"}, {"x": 1}], "sensors": {"b": 2, "a": 1.50}}"#;
    let mut decoder = Format::Json.decoder(schema.clone(), None).unwrap();
    let (batch, _) = decode_with(&mut *decoder, &[payload]);
    let mut encoder = Format::Json.encoder(schema.clone()).expect("JSON has these columns");
    let mut out = EncodedRows::default();
    encoder.encode(&batch, &mut out);
    let expected = r#"{"sensors":{"a":1.5,"b":2.0},"points":[{"x":null,"tag":"a"},{"x":1.0,"tag":null}]}"#;
    assert_eq!(out.iter().map(|row| String::from_utf8_lossy(row).into_owned()).collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_refusal_names_field_and_place() {
    let map = schema(&Field::new("", map_of(Field::new("", DataType::Float64, true)), true));
    let refused = |payload: &str| {
        let mut decoder = Format::Json.decoder(map.clone(), None).unwrap();
        let (_, refusals) = decode_with(&mut *decoder, &[payload]);
        refusals.records()[0].detail.clone()
    };
    for (payload, detail) in [
        (r#"{"v": [1]}"#, "field 'v' at byte 6: expected an object"),
        (r#"{"v": {"a": "x"}}"#, "field 'v' at byte 12: expected a number"),
        (r#"{"v": {"a": 1"#, "field 'v' at byte 13"),
    ] {
        let found = refused(payload);
        assert!(found.contains(detail), "{payload}: {found}");
    }
}
