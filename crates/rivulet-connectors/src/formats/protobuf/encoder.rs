//! Rows into messages.

use arrow::datatypes::{DataType, Field as ColumnField, Schema};
use prost_reflect::{Cardinality, Kind, MessageDescriptor};
use rivulet_dataflow::{Batch, element_type};

use super::field::{DEPTH_MAX, Scalar, WireType, is_timestamp};
use super::format::ProtobufFormat;
use crate::formats::array::{each_element, may_be_array, type_of};
use crate::formats::binary::append_varint;
use crate::formats::cells::{Cell, Cells, written_as};
use crate::formats::csv::append_bare;
use crate::formats::encode::{EncodedRows, Encoder};
use crate::formats::exact::nearest_float;

/// Writes each row as one message.
pub(super) struct ProtobufEncoder {
    frame: Vec<u8>,
    root: Vec<Field>,
}

/// How a field is written.
enum Field {
    Scalar {
        number: u32,
        column: usize,
        scalar: Scalar,
        has_presence: bool,
    },
    Timestamp {
        number: u32,
        column: usize,
    },
    /// A repeated field, with the type in which the elements of the column's arrays are read.
    List {
        number: u32,
        column: usize,
        scalar: Scalar,
        element: DataType,
    },
    Message {
        number: u32,
        fields: Vec<Field>,
        scratch: Vec<u8>,
    },
}

impl ProtobufEncoder {
    pub(super) fn new(format: &ProtobufFormat, columns: &Schema) -> Result<Self, String> {
        let mut used = vec![false; columns.fields().len()];
        let root = fields_of(&format.message, "", columns, &mut used, 0)?;
        match used.iter().position(|used| !used) {
            Some(column) => {
                let names: Vec<String> = format.message.fields().map(|field| field.name().to_owned()).collect();
                Err(format!("has no field '{}'; there are {}", columns.field(column).name(), names.join(", ")))
            }
            None => Ok(Self { frame: format.frame(), root }),
        }
    }
}

fn fields_of(
    message: &MessageDescriptor,
    prefix: &str,
    columns: &Schema,
    used: &mut [bool],
    depth: usize,
) -> Result<Vec<Field>, String> {
    let mut fields = Vec::new();
    for field in message.fields() {
        let (path, number) = (format!("{prefix}{}", field.name()), field.number());
        let below = format!("{path}.");
        if let Some(column) = columns.fields().iter().position(|column| *column.name() == path) {
            used[column] = true;
            let data_type = columns.field(column).data_type();
            let element = element_of(columns.field(column)).filter(|_| field.is_list());
            if (field.is_list() && element.is_none()) || field.is_map() {
                return Err(format!("cannot write the column '{path}' as a field that has several values"));
            }
            fields.push(match (Scalar::of(&field), field.kind()) {
                (Some(scalar), _) if let Some(element) = &element => match suits(&scalar, element) {
                    true => {
                        let element = read_as(&scalar, element);
                        Field::List { number, column, scalar, element }
                    }
                    false => {
                        let shown = type_of(columns.field(column));
                        return Err(format!("cannot write the column '{path}' of type {shown} as its field"));
                    }
                },
                (Some(scalar), _) if suits(&scalar, data_type) => {
                    Field::Scalar { number, column, scalar, has_presence: field.supports_presence() }
                }
                (None, Kind::Message(inner))
                    if is_timestamp(&inner) && matches!(written_as(data_type), Some(DataType::Timestamp(..))) =>
                {
                    Field::Timestamp { number, column }
                }
                _ => return Err(format!("cannot write the column '{path}' of type {data_type} as its field")),
            });
        } else if columns.fields().iter().any(|column| column.name().starts_with(&below)) && depth < DEPTH_MAX {
            let kind = field.kind();
            let Some(inner) = kind.as_message().filter(|_| !field.is_list() && !field.is_map()) else {
                return Err(format!("has no message in the field '{path}'"));
            };
            let inner = fields_of(inner, &below, columns, used, depth + 1)?;
            fields.push(Field::Message { number, fields: inner, scratch: Vec::new() });
        } else if field.cardinality() == Cardinality::Required {
            return Err(format!("has a required field '{path}' that is no column"));
        }
    }
    fields.sort_by_key(|field| match field {
        Field::Scalar { number, .. }
        | Field::Timestamp { number, .. }
        | Field::List { number, .. }
        | Field::Message { number, .. } => *number,
    });
    Ok(fields)
}

/// The type of the elements of a column of arrays. Those whose type is not known are texts.
fn element_of(column: &ColumnField) -> Option<DataType> {
    element_type(column).or_else(|| may_be_array(column).then_some(DataType::Utf8))
}

/// The type in which elements are read to be written as the type.
fn read_as(scalar: &Scalar, element: &DataType) -> DataType {
    match scalar {
        Scalar::Float | Scalar::Double => DataType::Float64,
        _ => element.clone(),
    }
}

/// Whether cells of this type can be written as the type.
fn suits(scalar: &Scalar, data_type: &DataType) -> bool {
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

impl Encoder for ProtobufEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        let columns: Vec<Cells> = batch.columns.columns().iter().map(Cells::new).collect();
        for row in 0..batch.rows() {
            let bytes = out.bytes_mut();
            bytes.extend_from_slice(&self.frame);
            append_fields(&mut self.root, &columns, row, bytes);
            out.end_row();
        }
    }
}

fn append_fields(fields: &mut [Field], columns: &[Cells], row: usize, out: &mut Vec<u8>) {
    for field in fields {
        match field {
            Field::Scalar { number, column, scalar, has_presence } => {
                append_scalar(*number, scalar, *has_presence, columns[*column].cell(row), out);
            }
            Field::Timestamp { number, column } => {
                let Cell::Timestamp(time_us) = columns[*column].cell(row) else { continue };
                let mut inner = Vec::with_capacity(20);
                append_varint_field(1, time_us.div_euclid(1_000_000) as u64, &mut inner);
                append_varint_field(2, time_us.rem_euclid(1_000_000) as u64 * 1000, &mut inner);
                append_bytes_field(*number, &inner, out);
            }
            Field::List { number, column, scalar, element } => {
                let Cell::Text(text) = columns[*column].cell(row) else { continue };
                let start = out.len();
                // Each by itself: readers take that where they expect packed values too. There is no null in a list.
                let written = each_element(text, element, |cell| append_scalar(*number, scalar, true, cell, out));
                if written.is_err() {
                    out.truncate(start);
                }
            }
            Field::Message { number, fields, scratch } => {
                scratch.clear();
                append_fields(fields, columns, row, scratch);
                // An empty message need not be written.
                if !scratch.is_empty() {
                    append_bytes_field(*number, scratch, out);
                }
            }
        }
    }
}

fn append_tag(number: u32, wire_type: WireType, out: &mut Vec<u8>) {
    append_varint(u64::from(number) << 3 | wire_type as u64, out);
}

/// A number that is left out where it is 0.
fn append_varint_field(number: u32, value: u64, out: &mut Vec<u8>) {
    if value != 0 {
        append_tag(number, WireType::Varint, out);
        append_varint(value, out);
    }
}

fn append_bytes_field(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    append_tag(number, WireType::Bytes, out);
    append_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Writes a value, unless it is null or the default that a reader assumes for a missing value.
fn append_scalar(number: u32, scalar: &Scalar, has_presence: bool, cell: Cell<'_>, out: &mut Vec<u8>) {
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
