//! The values of fields that are not read.

use super::field::{DEPTH_MAX, WireType, length_delimited};
use crate::formats::binary::Bytes;
use crate::formats::fault::{Fault, Problem};

/// Skips a value.
pub(super) fn skip(bytes: &mut Bytes<'_>, wire_type: WireType, number: u32, depth: usize) -> Result<(), Fault> {
    match wire_type {
        WireType::Varint => _ = bytes.varint()?,
        WireType::Bits64 => _ = bytes.take(8)?,
        WireType::Bits32 => _ = bytes.take(4)?,
        WireType::Bytes => _ = length_delimited(bytes)?,
        WireType::GroupEnd => return Err(bytes.fault(Problem::BinaryWireType)),
        WireType::GroupStart => {
            if depth >= DEPTH_MAX {
                return Err(bytes.fault(Problem::BinaryDepth));
            }
            loop {
                let at = bytes.at();
                let tag = bytes.varint()?;
                let inner = u32::try_from(tag >> 3).map_err(|_| Fault::new(Problem::BinaryNumber, at))?;
                match WireType::of_tag(tag) {
                    Some(WireType::GroupEnd) if inner == number => return Ok(()),
                    Some(wire_type) => skip(bytes, wire_type, inner, depth + 1)?,
                    None => return Err(Fault::new(Problem::BinaryWireType, at)),
                }
            }
        }
    }
    Ok(())
}
