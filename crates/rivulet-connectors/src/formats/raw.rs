//! RAW: the whole payload unchanged, in one text column. Bytes that are not text are written in hexadecimal or Base64.

use base64::alphabet;
use base64::engine::Engine;
use base64::engine::general_purpose::{self, GeneralPurpose};
use rivulet_dataflow::Batch;

use super::FormatError;
use super::cells::{Cell, Cells};
use super::decode::PayloadParser;
use super::encode::{EncodedRows, Encoder};
use super::fault::{Fault, Problem};
use super::rows::{Rows, Values};

/// How the bytes of a payload become text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RawEncoding {
    /// They are text: UTF-8.
    #[default]
    Utf8,
    /// Two hexadecimal digits a byte.
    Hex,
    /// Base64 with padding (RFC 4648, section 4).
    Base64,
}

impl RawEncoding {
    /// Reads the option `encoding` of the format.
    pub(crate) fn parse(value: &str) -> Result<Self, FormatError> {
        match value.trim().to_ascii_lowercase().as_str() {
            "utf8" | "utf-8" => Ok(Self::Utf8),
            "hex" => Ok(Self::Hex),
            "base64" => Ok(Self::Base64),
            _ => {
                let problem = format!("has an option 'encoding' that cannot be '{value}'");
                Err(FormatError::setting("RAW", problem, "it is one of utf8, hex, base64"))
            }
        }
    }
}

/// Puts payloads into the only column.
pub(crate) struct RawParser {
    encoding: RawEncoding,
}

impl RawParser {
    pub(crate) fn new(encoding: RawEncoding) -> Self {
        Self { encoding }
    }
}

impl PayloadParser for RawParser {
    fn parse(&mut self, payload: &[u8], _arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        if self.encoding == RawEncoding::Utf8 && std::str::from_utf8(payload).is_err() {
            return Err(Fault::new(Problem::InvalidUtf8, 0).in_column(0));
        }
        let Values::Text(values) = rows.open(0).values() else { unreachable!("the only column is text") };
        values.push_with(|bytes| {
            match self.encoding {
                RawEncoding::Utf8 => bytes.extend_from_slice(payload),
                RawEncoding::Hex => write_hex(payload, bytes),
                RawEncoding::Base64 => write_base64(payload, bytes),
            }
            Ok(())
        })?;
        rows.finish_row()
    }

    fn takes_empty(&self) -> bool {
        true
    }
}

/// Writes the only column; null becomes an empty payload, and so does text that is not in the encoding.
pub(crate) struct RawEncoder {
    encoding: RawEncoding,
}

impl RawEncoder {
    pub(crate) fn new(encoding: RawEncoding) -> Self {
        Self { encoding }
    }
}

impl Encoder for RawEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        let cells = Cells::new(batch.column(0));
        for row in 0..batch.rows() {
            if let Cell::Text(text) = cells.cell(row) {
                let bytes = out.bytes_mut();
                let start = bytes.len();
                let is_whole = match self.encoding {
                    RawEncoding::Utf8 => {
                        bytes.extend_from_slice(text.as_bytes());
                        true
                    }
                    RawEncoding::Hex => read_hex(text.as_bytes(), bytes),
                    RawEncoding::Base64 => read_base64(text.as_bytes(), bytes),
                };
                if !is_whole {
                    bytes.truncate(start);
                }
            }
            out.end_row();
        }
    }
}

/// Base64 as it is written; read, bits behind the last byte may be anything.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, general_purpose::PAD.with_decode_allow_trailing_bits(true));

/// Appends so many bytes to be written.
fn room(out: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    let start = out.len();
    out.resize(start + bytes, 0);
    &mut out[start..]
}

fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    hex::encode_to_slice(bytes, room(out, 2 * bytes.len())).expect("there is room for two digits a byte");
}

/// Appends the bytes that `text` stands for; false if it is not hexadecimal.
fn read_hex(text: &[u8], out: &mut Vec<u8>) -> bool {
    hex::decode_to_slice(text, room(out, text.len() / 2)).is_ok()
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    let length = 4 * bytes.len().div_ceil(3);
    BASE64.encode_slice(bytes, room(out, length)).expect("there is room for four letters for three bytes");
}

/// Appends the bytes that `text` stands for; false if it is not Base64 with padding.
fn read_base64(text: &[u8], out: &mut Vec<u8>) -> bool {
    BASE64.decode_vec(text, out).is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_of_bytes_gives_the_bytes_back(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let (mut text, mut back) = (Vec::new(), Vec::new());
            write_hex(&bytes, &mut text);
            prop_assert!(read_hex(&text, &mut back));
            prop_assert_eq!(&back, &bytes);
            text.clear();
            back.clear();
            write_base64(&bytes, &mut text);
            prop_assert!(read_base64(&text, &mut back));
            prop_assert_eq!(&back, &bytes);
        }

        #[test]
        fn nothing_panics(text in prop::collection::vec(any::<u8>(), 0..64)) {
            read_hex(&text, &mut Vec::new());
            read_base64(&text, &mut Vec::new());
        }
    }

    #[test]
    fn known_answers() {
        let mut text = Vec::new();
        // The test vectors of RFC 4648, section 10.
        for (bytes, expected) in [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            text.clear();
            write_base64(bytes.as_bytes(), &mut text);
            assert_eq!(text, expected.as_bytes());
        }
        assert!(!read_base64(b"Zg=a", &mut Vec::new()));
        assert!(!read_base64(b"Zg==Zg==", &mut Vec::new()));
        assert!(!read_base64(b"Zg", &mut Vec::new()), "padding is required");
        assert!(read_base64(b"Zh==", &mut text) && text.ends_with(b"f"), "bits behind the last byte");
        assert!(!read_hex(b"0g", &mut Vec::new()));
        text.clear();
        write_hex(b"\x00\xff", &mut text);
        assert_eq!(text, b"00ff");
    }
}
