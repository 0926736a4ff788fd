//! TEXT: the whole payload is one value, for devices that publish a bare `21.5`, `on` or some text to a topic.

use rivulet_dataflow::Batch;

use super::bare::push_bare;
use super::cells::{Cell, Cells};
use super::csv::append_bare;
use super::decode::PayloadParser;
use super::encode::{EncodedRows, Encoder};
use super::exact::append_date;
use super::fault::{Fault, Problem};
use super::rows::Rows;
use super::times::TimeFormat;

/// Reads a payload into the only column.
pub(crate) struct TextParser;

impl PayloadParser for TextParser {
    fn parse(&mut self, payload: &[u8], _arrival_us: i64, rows: &mut Rows) -> Result<(), Fault> {
        push_bare(rows.open(0), payload).map_err(|problem| {
            let blank = payload.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let at = if problem == Problem::InvalidUtf8 { 0 } else { blank };
            Fault::new(problem, at).in_column(0)
        })?;
        rows.finish_row()
    }
}

/// Writes the only column bare; null becomes an empty payload, a timestamp epoch milliseconds.
pub(crate) struct TextEncoder {
    times: TimeFormat,
}

impl TextEncoder {
    /// An encoder of a column whose times are written so.
    pub(crate) fn new(times: TimeFormat) -> Self {
        Self { times }
    }
}

impl Encoder for TextEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        let cells = Cells::new(batch.column(0));
        for row in 0..batch.rows() {
            match cells.cell(row) {
                Cell::Timestamp(time_us) => self.times.append(time_us, out.bytes_mut()),
                Cell::Date(days) => append_date(days, &self.times, out.bytes_mut()),
                cell => append_bare(cell, out.bytes_mut()),
            }
            out.end_row();
        }
    }
}
