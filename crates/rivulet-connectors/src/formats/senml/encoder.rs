//! Rows into packs.

use arrow::datatypes::Schema;
use rivulet_dataflow::Batch;

use super::super::cells::{Cell, Cells};
use super::super::csv::append_bare;
use super::super::encode::{EncodedRows, Encoder};
use super::super::json::{
    append_decimal, append_integer, append_json_float, append_json_string, append_json_timestamp,
};

/// Writes each row as one pack: the row's event time as base time, then a record for each column that is not null,
/// with the column's name. Timestamps are written in milliseconds, with the unit `ms` of RFC 8798.
pub(crate) struct SenMlEncoder {
    /// `"n":"name",` for each column.
    names: Vec<Vec<u8>>,
}

impl SenMlEncoder {
    /// An encoder for rows of `schema`.
    pub(crate) fn new(schema: &Schema) -> Self {
        let name = |name: &str| {
            let mut json = b"\"n\":".to_vec();
            append_json_string(name, &mut json);
            json.push(b',');
            json
        };
        Self { names: schema.fields().iter().map(|field| name(field.name())).collect() }
    }
}

impl Encoder for SenMlEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        /// Times below this are relative in SenML, so they cannot be written and are left out.
        const ABSOLUTE_FROM_US: i64 = (1 << 28) * 1_000_000;
        let columns: Vec<Cells> = batch.columns.columns().iter().map(Cells::new).collect();
        for row in 0..batch.rows() {
            let bytes = out.bytes_mut();
            bytes.extend_from_slice(b"[{");
            let mut inside = false;
            if batch.event_time_us[row] >= ABSOLUTE_FROM_US {
                bytes.extend_from_slice(b"\"bt\":");
                append_decimal(batch.event_time_us[row], 6, bytes);
                inside = true;
            }
            let mut first = true;
            for (name, cells) in self.names.iter().zip(&columns) {
                let cell = cells.cell(row);
                let is_number = match cell {
                    Cell::Float64(value) => value.is_finite(),
                    Cell::Float32(value) => value.is_finite(),
                    _ => true,
                };
                if matches!(cell, Cell::Null) || !is_number {
                    continue;
                }
                if !first {
                    bytes.extend_from_slice(b"},{");
                } else if inside {
                    bytes.push(b',');
                }
                first = false;
                bytes.extend_from_slice(name);
                append_value(cell, bytes);
            }
            bytes.extend_from_slice(b"}]");
            out.end_row();
        }
    }
}

fn append_value(cell: Cell<'_>, out: &mut Vec<u8>) {
    match cell {
        Cell::Null => {}
        Cell::Boolean(value) => out.extend_from_slice(if value { b"\"vb\":true" } else { b"\"vb\":false" }),
        Cell::Text(text) => {
            out.extend_from_slice(b"\"vs\":");
            append_json_string(text, out);
        }
        Cell::Int64(value) => {
            out.extend_from_slice(b"\"v\":");
            append_integer(value.unsigned_abs(), value < 0, out);
        }
        Cell::UInt64(value) => {
            out.extend_from_slice(b"\"v\":");
            append_integer(value, false, out);
        }
        Cell::Float64(value) => {
            out.extend_from_slice(b"\"v\":");
            append_json_float(value, out);
        }
        Cell::Float32(_) | Cell::Decimal(..) => {
            out.extend_from_slice(b"\"v\":");
            append_bare(cell, out);
        }
        Cell::Date(_) | Cell::Time(_) => {
            out.extend_from_slice(b"\"vs\":\"");
            append_bare(cell, out);
            out.push(b'"');
        }
        Cell::Timestamp(time_us) => {
            out.extend_from_slice(b"\"u\":\"ms\",\"v\":");
            append_json_timestamp(time_us, out);
        }
    }
}
