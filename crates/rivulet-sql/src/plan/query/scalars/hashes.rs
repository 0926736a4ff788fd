//! `md5(text)`, `sha224(text)`, `sha256(text)` and `sha384(text)`: the hash of a text, in hexadecimal.
//!
//! DataFusion's functions of these names give bytes, which is a type that columns do not have.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue, exec_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use md5::Md5;
use sha2::{Digest, Sha224, Sha256, Sha384};

/// Appends the hash of bytes in hexadecimal.
type Append = fn(&[u8], &mut StringBuilder);

const HASHES: [(&str, Append); 4] =
    [("md5", append::<Md5>), ("sha224", append::<Sha224>), ("sha256", append::<Sha256>), ("sha384", append::<Sha384>)];

/// All of them, for the catalog.
pub(super) fn hashes() -> impl Iterator<Item = Arc<ScalarUDF>> {
    (0..HASHES.len()).map(|place| {
        let signature = Signature::exact(vec![DataType::Utf8], Volatility::Immutable);
        Arc::new(ScalarUDF::from(HashFunction { place, signature }))
    })
}

fn append<D: Digest>(bytes: &[u8], out: &mut StringBuilder) {
    for byte in D::digest(bytes).as_slice() {
        // Writing to a builder does not fail.
        let _ = write!(out, "{byte:02x}");
    }
    out.append_value("");
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct HashFunction {
    /// Among [`HASHES`].
    place: usize,
    signature: Signature,
}

impl ScalarUDFImpl for HashFunction {
    fn name(&self) -> &str {
        HASHES[self.place].0
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [text] = arguments.args.as_slice() else { return exec_err!("{} has one argument", self.name()) };
        let is_constant = matches!(text, ColumnarValue::Scalar(_));
        let texts = text.to_array(if is_constant { 1 } else { arguments.number_rows })?;
        let mut hashes = StringBuilder::new();
        for text in texts.as_string::<i32>() {
            match text {
                Some(text) => HASHES[self.place].1(text.as_bytes(), &mut hashes),
                None => hashes.append_null(),
            }
        }
        let hashes: ArrayRef = Arc::new(hashes.finish());
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&hashes, 0)?),
            false => ColumnarValue::Array(hashes),
        })
    }
}
