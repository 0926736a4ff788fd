//! Any element comes back as it was, and bytes that are none make an error.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray, ListBuilder, NullArray, RecordBatch,
    RecordBatchOptions, StringArray, StringBuilder, StructArray, TimestampMicrosecondArray, UInt8Array, UInt16Array,
    UInt32Array, UInt64Array,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, IntervalMonthDayNano, Schema, SchemaRef};
use proptest::prelude::*;
use rivulet_dataflow::{Batch, Control, Element, SlotClock};
use rivulet_wire::{Decoder, Encoder};

/// Columns of all types, made of these values.
fn columns(values: &[Option<u64>]) -> RecordBatch {
    let number = || values.iter().copied();
    let text = |value: u64| "é".repeat(value as usize % 7) + &value.to_string();
    let texts: StringArray = number().map(|value| value.map(text)).collect();
    let mut lists = ListBuilder::new(StringBuilder::new());
    for value in values {
        if let Some(value) = value {
            (0..value % 4).for_each(|n| lists.values().append_option((n != 2).then(|| text(*value + n))));
        }
        lists.append(value.is_some());
    }
    let nested: ArrayRef = Arc::new(number().collect::<UInt64Array>());
    let members = vec![
        (Arc::new(Field::new("text", DataType::Utf8, true)), Arc::new(texts.clone()) as ArrayRef),
        (Arc::new(Field::new("number", DataType::UInt64, true)), nested),
    ];
    let interval = |value: u64| IntervalMonthDayNano::new(value as i32, (value >> 8) as i32, value as i64);
    let bytes = number().map(|value| value.map(u64::to_le_bytes)).collect::<Vec<_>>();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(number().map(|value| value.map(|value| value % 2 == 0)).collect::<BooleanArray>()),
        Arc::new(number().map(|value| value.map(|value| value as i8)).collect::<Int8Array>()),
        Arc::new(number().map(|value| value.map(|value| value as i16)).collect::<Int16Array>()),
        Arc::new(number().map(|value| value.map(|value| value as i32)).collect::<Int32Array>()),
        Arc::new(number().map(|value| value.map(|value| value as i64)).collect::<Int64Array>()),
        Arc::new(number().map(|value| value.map(|value| value as u8)).collect::<UInt8Array>()),
        Arc::new(number().map(|value| value.map(|value| value as u16)).collect::<UInt16Array>()),
        Arc::new(number().map(|value| value.map(|value| value as u32)).collect::<UInt32Array>()),
        Arc::new(number().map(|value| value.map(|value| f32::from_bits(value as u32))).collect::<Float32Array>()),
        Arc::new(number().map(|value| value.map(f64::from_bits)).collect::<Float64Array>()),
        Arc::new(number().map(|value| value.map(|value| value as i32)).collect::<Date32Array>()),
        Arc::new(number().map(|value| value.map(|value| value as i64)).collect::<TimestampMicrosecondArray>()),
        Arc::new(number().map(|value| value.map(|value| i128::from(value) << 30)).collect::<Decimal128Array>()),
        Arc::new(number().map(|value| value.map(interval)).collect::<IntervalMonthDayNanoArray>()),
        Arc::new(bytes.iter().map(|value| value.as_ref().map(|value| &value[..])).collect::<BinaryArray>()),
        Arc::new(texts),
        Arc::new(lists.finish()),
        Arc::new(StructArray::from(members)),
        Arc::new(NullArray::new(values.len())),
    ];
    let names: Vec<String> = (0..columns.len()).map(|column| format!("c{column}")).collect();
    RecordBatch::try_from_iter(names.iter().zip(columns)).unwrap()
}

/// Batches, some of them parts of larger ones, some without columns.
fn batch() -> impl Strategy<Value = Batch> {
    let values = prop::collection::vec(prop::option::of(any::<u64>()), 0..70);
    (values, any::<(bool, bool, bool)>(), any::<prop::sample::Index>()).prop_map(
        |(values, (retracts, positions, is_bare), from)| {
            let rows = values.len();
            let each =
                |shift: i64| values.iter().map(move |value| value.unwrap_or(9).cast_signed().wrapping_add(shift));
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let columns = match is_bare {
                true => RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap(),
                false => columns(&values),
            };
            let slots = each(1).map(|value| value as u32).collect();
            let batch = Batch::new(slots, each(2).collect(), each(3).collect(), columns);
            let batch = batch.with_retracts(retracts.then(|| each(4).map(|value| value % 3 == 0).collect()));
            let batch = batch.with_positions(positions.then(|| each(5).map(i64::cast_unsigned).collect()));
            let from = if rows == 0 { 0 } else { from.index(rows) };
            batch.slice(from, (rows - from).min(40))
        },
    )
}

fn element() -> impl Strategy<Value = Element> {
    let clock = any::<(u32, i64, i64, i64)>().prop_map(|(slot, newest_us, arrival_us, watermark_us)| SlotClock {
        slot,
        newest_us,
        arrival_us,
        watermark_us,
    });
    let slots = || prop::collection::vec(any::<u32>(), 0..9);
    prop_oneof![
        6 => batch().prop_map(Element::Batch),
        1 => any::<i64>().prop_map(Element::Watermark),
        1 => any::<u64>().prop_map(Element::Barrier),
        1 => prop::collection::vec(clock, 0..5).prop_map(|clocks| Element::Clocks(clocks.into())),
        1 => slots().prop_map(|slots| Element::Control(Control::AddSlots(slots))),
        1 => slots().prop_map(|slots| Element::Control(Control::RemoveSlots(slots))),
        1 => Just(Element::End),
    ]
}

/// The schema of an element's rows.
fn schema_of(element: &Element) -> SchemaRef {
    match element {
        Element::Batch(batch) => batch.columns.schema(),
        _ => Arc::new(Schema::empty()),
    }
}

/// All of an element in words: floats are compared by their bits.
fn told(element: &Element) -> String {
    let Element::Batch(batch) = element else { return format!("{element:?}") };
    let Batch { slots, event_time_us, arrival_us, columns, retracts, positions } = batch;
    let data: Vec<_> = columns.columns().iter().map(|column| format!("{column:?}")).collect();
    let bits = |column: &ArrayRef| {
        let floats = column.as_any().downcast_ref::<Float64Array>()?;
        Some(floats.iter().map(|value| value.map(f64::to_bits)).collect::<Vec<_>>())
    };
    let bits: Vec<_> = columns.columns().iter().filter_map(bits).collect();
    let retracts: Option<Vec<bool>> = retracts.as_ref().map(|marks| marks.iter().collect());
    format!("{} {slots:?} {event_time_us:?} {arrival_us:?} {retracts:?} {positions:?} {data:?} {bits:?}", batch.rows())
}

proptest! {
    /// Several elements in one buffer, each with its own schema, so each is read by its own reader.
    #[test]
    fn elements_come_back_as_they_were(elements in prop::collection::vec(element(), 1..6)) {
        let mut encoder = Encoder::default();
        for element in &elements {
            let mut bytes = Vec::new();
            encoder.encode(element, &mut bytes).unwrap();
            encoder.encode(&Element::Watermark(7), &mut bytes).unwrap();
            let mut decoder = Decoder::new(Buffer::from(bytes), schema_of(element));
            prop_assert_eq!(told(&decoder.next_element().unwrap().unwrap()), told(element));
            prop_assert!(matches!(decoder.next_element(), Ok(Some(Element::Watermark(7)))));
            prop_assert!(matches!(decoder.next_element(), Ok(None)));
        }
    }

    /// No bytes are trusted, even if their checksum is right.
    #[test]
    fn changed_bytes_make_an_error_or_another_element(
        element in element(),
        cut in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = Vec::new();
        Encoder::default().encode(&element, &mut bytes).unwrap();
        for (place, byte) in &changes {
            let place = place.index(bytes.len());
            bytes[place] = *byte;
        }
        if changes.is_empty() {
            bytes.truncate(cut.index(bytes.len()));
        }
        let mut decoder = Decoder::new(Buffer::from(bytes), schema_of(&element));
        while let Ok(Some(element)) = decoder.next_element() {
            let _ = told(&element);
        }
    }
}

#[test]
fn another_schema_is_an_error() {
    let columns = columns(&[Some(1), None]);
    let batch = Batch::new(vec![0, 0].into(), vec![1, 2].into(), vec![1, 2].into(), columns);
    let mut bytes = Vec::new();
    Encoder::default().encode(&Element::Batch(batch), &mut bytes).unwrap();
    for fields in [vec![], vec![Field::new("c0", DataType::Utf8, true)], vec![Field::new("c0", DataType::Int64, false)]]
    {
        let mut decoder = Decoder::new(Buffer::from(bytes.clone()), Arc::new(Schema::new(fields)));
        let read = decoder.next_element();
        assert!(read.is_err() || matches!(&read, Ok(Some(Element::Batch(batch))) if batch.columns.num_columns() < 2));
    }
}
