//! Rows into changes.

use rivulet_dataflow::Batch;

use super::super::cells::Cells;
use super::super::encode::{EncodedRows, Encoder};
use super::super::json::JsonEncoder;

/// Writes each row as a change: `c` for one that came, `d` for one that was taken back. A row that replaces another is
/// two changes.
pub(crate) struct DebeziumEncoder {
    row: JsonEncoder,
}

impl DebeziumEncoder {
    /// An encoder of changes of rows that are written as `row` does.
    pub(crate) fn new(row: JsonEncoder) -> Self {
        Self { row }
    }
}

impl Encoder for DebeziumEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        let columns: Vec<Cells> = batch.columns.columns().iter().map(Cells::new).collect();
        for row in 0..batch.rows() {
            let (before, after): (&[u8], &[u8]) = match batch.is_retraction(row) {
                false => (br#"{"before":null,"after":"#, br#","op":"c"}"#),
                true => (br#"{"before":"#, br#","after":null,"op":"d"}"#),
            };
            let bytes = out.bytes_mut();
            bytes.extend_from_slice(before);
            self.row.append(&columns, row, bytes);
            bytes.extend_from_slice(after);
            out.end_row();
        }
    }
}
