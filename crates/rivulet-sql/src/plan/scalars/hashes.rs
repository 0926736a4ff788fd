//! `md5(text)`, `sha224(text)`, `sha256(text)`, `sha384(text)`, `sha512(text)` and `digest(text, method)`: the hash of
//! a text, in hexadecimal; and `uuid(text)`: a UUID that is the same for the same text.
//!
//! DataFusion's functions of these names return bytes, and columns do not have this type. Its `uuid()` returns a new
//! value each time, so a row that is processed again after a crash would have another identity.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion_common::{Result, exec_err};
use md5::Md5;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

use super::function::Function;

/// Appends the hash of bytes in hexadecimal.
type Append = fn(&[u8], &mut StringBuilder);

const HASHES: [(&str, Append); 5] = [
    ("md5", append::<Md5>),
    ("sha224", append::<Sha224>),
    ("sha256", append::<Sha256>),
    ("sha384", append::<Sha384>),
    ("sha512", append::<Sha512>),
];

/// All of them, for the catalog.
pub(super) fn hashes() -> impl Iterator<Item = Function> {
    let of_text = HASHES.into_iter().chain([("uuid", append_uuid as Append)]).map(|(name, append)| {
        let function = Function::new(name, [vec![DataType::Utf8]], DataType::Utf8);
        function.computed(move |columns| {
            let [texts] = columns else { return exec_err!("{name} takes a text") };
            let mut hashes = StringBuilder::new();
            for text in texts.as_string::<i32>() {
                match text {
                    Some(text) => append(text.as_bytes(), &mut hashes),
                    None => hashes.append_null(),
                }
            }
            Ok(Arc::new(hashes.finish()))
        })
    });
    let digest = Function::new("digest", [vec![DataType::Utf8; 2]], DataType::Utf8).computed(digest);
    of_text.chain([digest])
}

/// The hashes of texts, each by the method that is named.
fn digest(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [texts, methods] = columns else { return exec_err!("digest takes a text and a method") };
    let mut hashes = StringBuilder::new();
    for texts in texts.as_string::<i32>().iter().zip(methods.as_string::<i32>()) {
        let (Some(text), Some(method)) = texts else {
            hashes.append_null();
            continue;
        };
        let Some((_, append)) = HASHES.iter().find(|(name, _)| name.eq_ignore_ascii_case(method)) else {
            return exec_err!("digest knows {}, and not '{method}'", HASHES.map(|(name, _)| name).join(", "));
        };
        append(text.as_bytes(), &mut hashes);
    }
    Ok(Arc::new(hashes.finish()))
}

fn append<D: Digest>(bytes: &[u8], out: &mut StringBuilder) {
    for byte in D::digest(bytes).as_slice() {
        // Writing to a builder does not fail.
        let _ = write!(out, "{byte:02x}");
    }
    out.append_value("");
}

/// Appends a UUID made from bytes: the first half of their SHA-256, as version 8 of RFC 9562.
fn append_uuid(bytes: &[u8], out: &mut StringBuilder) {
    for (place, byte) in Sha256::digest(bytes).into_iter().take(16).enumerate() {
        let between = if matches!(place, 4 | 6 | 8 | 10) { "-" } else { "" };
        let byte = match place {
            6 => (byte & 0x0f) | 0x80,
            8 => (byte & 0x3f) | 0x80,
            _ => byte,
        };
        // Writing to a builder does not fail.
        let _ = write!(out, "{between}{byte:02x}");
    }
    out.append_value("");
}
