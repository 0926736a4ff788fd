//! Rows into messages.

use arrow::datatypes::{DataType, Schema};
use prost_reflect::{Cardinality, Kind, MessageDescriptor};
use rivulet_dataflow::Batch;

use super::field::{DEPTH_MAX, Scalar, is_timestamp};
use super::format::ProtobufFormat;
use super::part_encoder::Plan;
use super::scalar_encoder::{append_bytes_field, append_scalar, append_varint_field, suits};
use crate::formats::array::{part_of, type_of};
use crate::formats::cells::{Cell, Cells, written_as};
use crate::formats::encode::{EncodedRows, Encoder};
use crate::formats::parts::Part;
use crate::formats::tape::Tape;

/// Writes each row as one message.
pub(super) struct ProtobufEncoder {
    frame: Vec<u8>,
    root: Vec<Field>,
    tape: Tape,
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
    /// Values with parts, which are read as this part.
    Parts {
        number: u32,
        column: usize,
        plan: Plan,
        part: Part,
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
            None => Ok(Self { frame: format.frame(), root, tape: Tape::default() }),
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
            let has_parts = field.is_list() || field.is_map() || Scalar::of(&field).is_none();
            fields.push(match (Scalar::of(&field), field.kind()) {
                _ if let Some(part) = part_of(columns.field(column)).filter(|_| has_parts) => {
                    let (plan, part) = Plan::new(&field, &part, &path).map_err(|problem| {
                        let shown = type_of(columns.field(column));
                        format!("cannot write the column '{path}' of type {shown} as its field: {problem}")
                    })?;
                    Field::Parts { number, column, plan, part }
                }
                _ if field.is_list() || field.is_map() => {
                    return Err(format!("cannot write the column '{path}' as a field that has several values"));
                }
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
        | Field::Parts { number, .. }
        | Field::Message { number, .. } => *number,
    });
    Ok(fields)
}

impl Encoder for ProtobufEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        let columns: Vec<Cells> = batch.columns.columns().iter().map(Cells::new).collect();
        for row in 0..batch.rows() {
            let bytes = out.bytes_mut();
            bytes.extend_from_slice(&self.frame);
            append_fields(&mut self.root, &columns, row, &mut self.tape, bytes);
            out.end_row();
        }
    }
}

fn append_fields(fields: &mut [Field], columns: &[Cells], row: usize, tape: &mut Tape, out: &mut Vec<u8>) {
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
            Field::Parts { number, column, plan, part } => {
                if let Cell::Text(text) = columns[*column].cell(row) {
                    plan.append(*number, tape.read(text, part), out);
                }
            }
            Field::Message { number, fields, scratch } => {
                scratch.clear();
                append_fields(fields, columns, row, tape, scratch);
                // An empty message need not be written.
                if !scratch.is_empty() {
                    append_bytes_field(*number, scratch, out);
                }
            }
        }
    }
}
