//! `md5(text)`, `sha224(text)`, `sha256(text)`, `sha384(text)`, `sha512(text)` and `digest(text, method)`: the hash of
//! a text, in hexadecimal; and `uuid(text)`: a UUID that is the same for the same text.
//!
//! DataFusion's functions of these names return bytes, and columns do not have this type. Its `uuid()` returns a new
//! value each time, so a row that is processed again after a crash would have another identity.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion_common::{Result, exec_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion_functions::utils::make_scalar_function;
use md5::Md5;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

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
pub(super) fn hashes() -> impl Iterator<Item = Arc<ScalarUDF>> {
    let whichs = (0..HASHES.len()).map(Which::Hash).chain([Which::Digest, Which::Uuid]);
    whichs.map(|which| {
        let arguments = if which == Which::Digest { 2 } else { 1 };
        let signature = Signature::exact(vec![DataType::Utf8; arguments], Volatility::Immutable);
        Arc::new(ScalarUDF::from(HashFunction { which, signature }))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Which {
    /// The hash with this index in [`HASHES`].
    Hash(usize),
    /// The hash that the second argument names.
    Digest,
    Uuid,
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

#[derive(Debug, PartialEq, Eq, Hash)]
struct HashFunction {
    which: Which,
    signature: Signature,
}

impl HashFunction {
    fn append(&self, method: Option<&str>) -> Result<Append> {
        match self.which {
            Which::Hash(place) => Ok(HASHES[place].1),
            Which::Uuid => Ok(append_uuid),
            Which::Digest => {
                let method = method.unwrap_or_default();
                match HASHES.iter().find(|(name, _)| name.eq_ignore_ascii_case(method)) {
                    Some((_, append)) => Ok(*append),
                    None => {
                        let known: Vec<&str> = HASHES.iter().map(|(name, _)| *name).collect();
                        exec_err!("digest knows {}, and not '{method}'", known.join(", "))
                    }
                }
            }
        }
    }
}

impl ScalarUDFImpl for HashFunction {
    fn name(&self) -> &str {
        match self.which {
            Which::Hash(place) => HASHES[place].0,
            Which::Digest => "digest",
            Which::Uuid => "uuid",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        make_scalar_function(|columns| self.hashes(columns), Vec::new())(&arguments.args)
    }
}

impl HashFunction {
    fn hashes(&self, columns: &[ArrayRef]) -> Result<ArrayRef> {
        let Some(texts) = columns.first() else { return exec_err!("{} has an argument", self.name()) };
        let methods = columns.get(1).map(|methods| methods.as_string::<i32>());
        let mut hashes = StringBuilder::new();
        for (row, text) in texts.as_string::<i32>().iter().enumerate() {
            let method = methods.map(|methods| methods.is_valid(row).then(|| methods.value(row)));
            match (text, method) {
                (Some(text), None) => self.append(None)?(text.as_bytes(), &mut hashes),
                (Some(text), Some(Some(method))) => self.append(Some(method))?(text.as_bytes(), &mut hashes),
                _ => hashes.append_null(),
            }
        }
        Ok(Arc::new(hashes.finish()))
    }
}
