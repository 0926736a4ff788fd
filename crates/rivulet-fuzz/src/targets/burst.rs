//! What a server and its burst workers say to each other. Any text and any bytes are a message or are refused in words;
//! a message that was read is written as one that reads the same. A word of one kind of stream is none of the other.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use rivulet::burst::message::{Control, row_of, schema, word_of};
use rivulet_dataflow::{Batch, Element};

use crate::Target;
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target {
    name: "burst",
    run,
    words: &[
        "{\"Begin\":{\"parts\":1,\"snapshot\":{\"partitions\":[[\"7\",null]],\"reached_us\":null,\"has_ended\":false},",
        "\"rows_max\":4096}}",
        "{\"State\":{\"operator\":0,\"part\":0}}",
        "{\"Hello\":{\"version\":\"\",\"name\":\"\",\"threads\":1,\"limit_s\":null}}",
        "\"Begun\"",
        "{\"Barrier\":18446744073709551615}",
        "-9223372036854775808",
        "\\ud800",
    ],
    mutations: 10_000,
};

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (length, has_bytes, rows) = (input.short(), input.byte() % 2 == 1, usize::from(input.byte() % 8 != 7));
    let rest = input.rest();
    let (text, state) = rest.split_at(length.min(rest.len()));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![&*String::from_utf8_lossy(text); rows]));
    let states: ArrayRef = Arc::new(BinaryArray::from_opt_vec(vec![has_bytes.then_some(state); rows]));
    let columns = RecordBatch::try_new(schema(), vec![texts, states]).expect("they are the columns of messages");
    let row = Element::Batch(Batch::new(vec![0; rows].into(), vec![0; rows].into(), vec![0; rows].into(), columns));
    let (control, word) = (Control::read(&row), word_of(&row));
    assert!(rows == 1 || control.is_err() && word.is_err(), "it is one row");
    assert!(control.is_err() || word.is_err(), "{control:?} and {word:?}");
    if let Ok(control) = control {
        assert_eq!(Control::read(&control.row()), Ok(control));
    }
    if let Ok(word) = word {
        let again = row_of(&word).and_then(|row| word_of(&row)).expect("it was read");
        assert_eq!(format!("{again:?}"), format!("{word:?}"));
    }
}
