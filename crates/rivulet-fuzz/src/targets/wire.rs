//! The wire: elements whose bytes were changed, and frames that are whole but mean anything. They make an error, or
//! another element; what a session keeps stays within its bounds.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Batch, Element};
use rivulet_wire::{Connection, Decoder, Encoder, Hello, Packed, ReceiveOptions, SendOptions, Session};
use xxhash_rust::xxh3::xxh3_64;

use crate::Target;
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target { name: "wire", run, words: &["stream", "name", "run"], mutations: 20_000 };

/// The mark of a receiver.
const HIGH_BYTES: u64 = 4_096;

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 2 {
        0 => change_elements(&mut input),
        _ => send_frames(&mut input),
    }
}

fn batch(rows: usize) -> Batch {
    let numbers = || 0..rows as i64;
    let text = |number: i64| (number % 3 > 0).then(|| "text ".repeat(number as usize % 5));
    let columns: [(&str, ArrayRef); 3] = [
        ("number", Arc::new(Int64Array::from_iter_values(numbers()))),
        ("text", Arc::new(numbers().map(text).collect::<StringArray>())),
        ("flag", Arc::new(numbers().map(|number| Some(number % 2 == 0)).collect::<BooleanArray>())),
    ];
    let columns = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)));
    let slots = numbers().map(|number| number as u32).collect();
    let batch = Batch::new(slots, numbers().collect(), numbers().collect(), columns.expect("they have one length"));
    batch.with_retracts(Some(numbers().map(|number| number % 4 == 0).collect()))
}

/// Changes some bytes of elements, whose checksum would say so, and reads them.
fn change_elements(input: &mut Input<'_>) {
    let (mut bytes, mut encoder) = (Vec::new(), Encoder::default());
    let batch = batch(input.below(40));
    let schema = batch.columns.schema();
    for element in [Element::Batch(batch), Element::Watermark(7), Element::End] {
        encoder.encode(&element, &mut bytes).expect("it can be written");
    }
    while !input.is_empty() {
        let place = input.below(bytes.len());
        bytes[place] = input.byte();
    }
    for element in read(&bytes, &schema) {
        let mut again = Vec::new();
        encoder.encode(&element, &mut again).expect("what was read can be written");
        let [back] = &read(&again, &schema)[..] else { panic!("one element comes back") };
        assert_eq!(told(back), told(&element));
    }
}

/// All of an element in words.
fn told(element: &Element) -> String {
    let Element::Batch(batch) = element else { return format!("{element:?}") };
    let Batch { slots, event_time_us, arrival_us, columns, retracts, positions } = batch;
    let retracts: Option<Vec<bool>> = retracts.as_ref().map(|marks| marks.iter().collect());
    let columns = columns.columns();
    format!("{slots:?} {event_time_us:?} {arrival_us:?} {columns:?} {retracts:?} {positions:?}")
}

fn read(bytes: &[u8], schema: &SchemaRef) -> Vec<Element> {
    let mut decoder = Decoder::new(Buffer::from(bytes), schema.clone());
    std::iter::from_fn(|| decoder.next_element().ok().flatten()).collect()
}

/// Sends frames with right checksums.
fn send_frames(input: &mut Input<'_>) {
    let hello = |name: &str, run| Hello { name: name.into(), run, token: None };
    let mut them = Connection::new(0);
    them.say_hello(&hello("them", 1));
    let mut connection = Connection::new(0);
    connection.say_hello(&hello("us", 1));
    connection.greet(&mut them.to_send(), 0).expect("it says who it is");
    let mut session = Session::default();
    session.attach(connection);
    let schema = batch(0).columns.schema();
    let ours = session.open("ours".into(), schema, SendOptions { buffer_bytes: 1_000, ..SendOptions::default() });
    session.open_stored("stored".into(), batch(0).columns.schema(), 7);
    let mut taken = Vec::new();
    for now_us in 0..200 {
        if input.is_empty() || session.receive(&frame(input), now_us).is_err() {
            return;
        }
        while session.event().is_some() {}
        for asked in session.asked() {
            let after = asked.store.map(|store| (store % 8, store));
            session.accept(asked.stream, after, ReceiveOptions { high_bytes: HIGH_BYTES, low_bytes: HIGH_BYTES / 2 });
            taken.push(asked.stream);
        }
        for (stream, number) in session.wants() {
            session.supply(stream, number.max(1), Packed::EMPTY);
        }
        if session.has_room(ours) {
            session.push(ours, &Element::Batch(batch(3)), now_us).expect("it can be written");
        }
        for stream in &taken {
            assert!(session.waiting_bytes(*stream) <= HIGH_BYTES + 70_000, "more waits than may");
            if input.byte().is_multiple_of(2)
                && let Some(mut elements) = session.take(*stream).and_then(|buffer| buffer.elements().ok())
            {
                while let Ok(Some(element)) = elements.next_element() {
                    let _ = told(&element);
                }
            }
        }
        if session.tick(now_us).is_err() {
            return;
        }
    }
}

/// A frame, as `rivulet-wire` writes them. It is written here once more, so that its form cannot change unnoticed.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let (kind, codec, stream) = (input.byte() % 13, input.byte() % 4, input.byte() % 4);
    // That of a store has the highest bit.
    let number = u64::from(input.byte() % 8) | u64::from(input.byte() % 2) << 63;
    let mut payload = match input.byte() % 4 {
        // The name and the columns of a stream.
        0 => {
            let (mut payload, mut them) = (Vec::new(), Session::default());
            let mut connection = Connection::new(0);
            let mut other = Connection::new(0);
            other.say_hello(&Hello { name: "other".into(), run: 0, token: None });
            connection.greet(&mut other.to_send(), 0).expect("it says who it is");
            them.attach(connection);
            them.open(format!("stream {number}"), batch(0).columns.schema(), SendOptions::default());
            // After the greeting, the frame that says that all are open, and the header.
            payload.extend_from_slice(&them.connection().expect("it is attached").to_send()[8 + 2 * 32..]);
            payload
        }
        1 => {
            let mut payload = Vec::new();
            let rows = input.below(20);
            Encoder::default().encode(&Element::Batch(batch(rows)), &mut payload).expect("it can be written");
            payload
        }
        2 => u64::from(input.byte()).wrapping_mul(1_000).to_le_bytes().to_vec(),
        _ => Vec::new(),
    };
    for byte in input.piece() {
        let place = usize::from(*byte) * 7;
        match payload.get_mut(place) {
            Some(changed) => *changed ^= byte,
            None => payload.push(*byte),
        }
    }
    let raw_bytes = (payload.len() + usize::from(input.byte() % 2)) as u32;
    let mut begin = (payload.len() as u32).to_le_bytes().to_vec();
    begin.extend_from_slice(&[kind, codec]);
    let mut rest = u32::from(stream).to_le_bytes().to_vec();
    rest.extend_from_slice(&raw_bytes.to_le_bytes());
    rest.extend_from_slice(&number.to_le_bytes());
    let guard = (xxh3_64(&begin) ^ xxh3_64(&rest)).to_le_bytes();
    let mut frame = [&begin[..], &guard[..2], &rest[..]].concat();
    let checksum = xxh3_64(&[&frame[..], &payload].concat());
    frame.extend_from_slice(&checksum.to_le_bytes());
    frame.extend_from_slice(&payload);
    frame
}
