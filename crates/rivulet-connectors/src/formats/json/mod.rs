//! JSON: one object per payload, or an array of objects for several rows.
//!
//! The decoder is driven by the declared columns and writes values straight into typed column vectors. The whole
//! payload is checked, also where no column wants what is there: what it accepts is JSON. A key that occurs twice
//! counts with its last value, and every one of its values must fit the column.

mod decoder;
mod encoder;
mod keys;
mod reader;
mod values;

pub(crate) use decoder::JsonParser;
pub(crate) use encoder::{JsonEncoder, object_encoder, readable_encoder, row_to_json};
pub(crate) use reader::{Reader, Span};
pub use values::json_escape;
pub(crate) use values::{append_decimal, append_integer, append_json_float, append_json_string, append_json_timestamp};

/// How many objects and arrays may be open around a value. Bounds the work space of the decoder.
pub(crate) const DEPTH_MAX: usize = 64;
