//! Single values as fields of messages.

use arrow::datatypes::DataType;

use super::field::{Scalar, WireType};
use crate::formats::binary::append_varint;
use crate::formats::cells::{Cell, written_as};
use crate::formats::csv::append_bare;
use crate::formats::exact::nearest_float;

/// Whether cells of this type can be written as the type.
pub(super) fn suits(scalar: &Scalar, data_type: &DataType) -> bool {
    let is_number = matches!(written_as(data_type), Some(DataType::Int64 | DataType::UInt64));
    match (scalar, written_as(data_type)) {
        (Scalar::Boolean, Some(DataType::Boolean)) => true,
        (Scalar::Float | Scalar::Double, Some(DataType::Float64 | DataType::Float32 | DataType::Decimal128(..))) => {
            true
        }
        (Scalar::Text | Scalar::Enum(_), Some(DataType::Utf8)) => true,
        (Scalar::Text, Some(DataType::Date32 | DataType::Time64(_) | DataType::Decimal128(..))) => true,
        (Scalar::Signed | Scalar::ZigZag | Scalar::SignedFixed64, Some(DataType::Timestamp(..))) => true,
        (Scalar::Boolean | Scalar::Text, _) => false,
        _ => is_number,
    }
}

pub(super) fn append_tag(number: u32, wire_type: WireType, out: &mut Vec<u8>) {
    append_varint(u64::from(number) << 3 | wire_type as u64, out);
}

/// A number that is left out where it is 0.
pub(super) fn append_varint_field(number: u32, value: u64, out: &mut Vec<u8>) {
    if value != 0 {
        append_tag(number, WireType::Varint, out);
        append_varint(value, out);
    }
}

pub(super) fn append_bytes_field(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    append_tag(number, WireType::Bytes, out);
    append_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Writes a value, unless it is null or the default that a reader assumes for a missing value.
pub(super) fn append_scalar(number: u32, scalar: &Scalar, has_presence: bool, cell: Cell<'_>, out: &mut Vec<u8>) {
    let integer = match cell {
        Cell::Null => return,
        Cell::Text(text) => {
            match scalar {
                Scalar::Enum(names) => {
                    // A text that is no name of the enum cannot be written.
                    let Some(&value) = names.by_name.get(text) else { return };
                    if value != 0 || has_presence {
                        append_tag(number, WireType::Varint, out);
                        append_varint(i64::from(value) as u64, out);
                    }
                }
                _ if text.is_empty() && !has_presence => {}
                _ => append_bytes_field(number, text.as_bytes(), out),
            }
            return;
        }
        Cell::Float64(value) => return append_float(number, scalar, has_presence, value, out),
        Cell::Float32(value) => return append_float(number, scalar, has_presence, f64::from(value), out),
        Cell::Decimal(digits, scale) if !matches!(scalar, Scalar::Text) => {
            return append_float(number, scalar, has_presence, nearest_float(digits, scale), out);
        }
        Cell::Decimal(..) | Cell::Date(_) | Cell::Time(_) => {
            append_tag(number, WireType::Bytes, out);
            // Of far fewer than 128 characters, whose number is one byte.
            let length_at = out.len();
            out.push(0);
            append_bare(cell, out);
            out[length_at] = (out.len() - length_at - 1) as u8;
            return;
        }
        Cell::Boolean(value) => i64::from(value),
        Cell::Int64(value) => value,
        // A value beyond the field's range becomes the nearest one that it has.
        Cell::UInt64(value) if matches!(scalar, Scalar::Unsigned64 | Scalar::Fixed64) => value as i64,
        Cell::UInt64(value) => i64::try_from(value).unwrap_or(i64::MAX),
        Cell::Timestamp(time_us) => time_us.div_euclid(1000),
    };
    if integer == 0 && !has_presence {
        return;
    }
    append_tag(number, scalar.wire_type(), out);
    match scalar {
        Scalar::Boolean | Scalar::Signed | Scalar::Unsigned64 | Scalar::Enum(_) => append_varint(integer as u64, out),
        Scalar::Unsigned32 => append_varint(u64::from(saturated_u32(integer)), out),
        Scalar::ZigZag => append_varint(((integer << 1) ^ (integer >> 63)) as u64, out),
        Scalar::Fixed32 => out.extend_from_slice(&saturated_u32(integer).to_le_bytes()),
        Scalar::SignedFixed32 => {
            let value = integer.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
            out.extend_from_slice(&value.to_le_bytes());
        }
        Scalar::Fixed64 | Scalar::SignedFixed64 => out.extend_from_slice(&integer.to_le_bytes()),
        Scalar::Float => out.extend_from_slice(&(integer as f32).to_le_bytes()),
        Scalar::Double => out.extend_from_slice(&(integer as f64).to_le_bytes()),
        Scalar::Text => unreachable!("numbers are no text, which was checked"),
    }
}

/// Writes a floating point number; not if it is the default.
fn append_float(number: u32, scalar: &Scalar, has_presence: bool, value: f64, out: &mut Vec<u8>) {
    if value.to_bits() == 0 && !has_presence {
        return;
    }
    append_tag(number, scalar.wire_type(), out);
    match scalar {
        Scalar::Float => out.extend_from_slice(&(value as f32).to_le_bytes()),
        _ => out.extend_from_slice(&value.to_le_bytes()),
    }
}

fn saturated_u32(value: i64) -> u32 {
    value.clamp(0, i64::from(u32::MAX)) as u32
}
