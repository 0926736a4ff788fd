//! Requests of rows.

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Batch, Refusals, Sink, SinkError, SlotTable};
use xxhash_rust::xxh3::Xxh3;

use super::delivery::{Delivery, DeliveryOptions, Request};
use crate::connector::outgoing::Outgoing;
use crate::formats::{Format, FormatError, RowFormat};

/// Above this many bytes or requests that wait there is no room; one batch may go beyond.
const ROOM_BYTES: usize = 4 << 20;
const ROOM_REQUESTS: usize = 1024;

/// What bodies in this format are called.
pub(super) fn content_type(format: &RowFormat) -> &'static str {
    match format {
        RowFormat::Plain { format: Format::Json | Format::SenMl | Format::SenMlPivot, .. } => "application/json",
        RowFormat::Plain { format: Format::Csv { .. }, .. } => "text/csv",
        _ if format.is_text() => "text/plain",
        _ => "application/octet-stream",
    }
}

/// A request for each row, or for several.
pub(super) struct HttpSink {
    url: String,
    delivery: Delivery,
    outgoing: Outgoing,
    batch_rows: usize,
    /// Whether several rows are an array, and not lines.
    is_array: bool,
}

impl HttpSink {
    pub(super) fn new(
        options: DeliveryOptions,
        format: &RowFormat,
        schema: &SchemaRef,
        batch_rows: usize,
    ) -> Result<Self, FormatError> {
        if batch_rows > 1 && !format.is_text() {
            return Err(FormatError::Setting {
                format: format.name(),
                problem: "has no form for several rows in one body".into(),
                hint: "leave the option 'batch_rows' out".into(),
            });
        }
        let outgoing = Outgoing::new(format, schema, false)?;
        let is_array = content_type(format) == "application/json";
        let url = options.url.clone();
        Ok(Self { url, delivery: Delivery::start(options), outgoing, batch_rows, is_array })
    }

    fn failed(&self, problem: &str) -> SinkError {
        SinkError(format!("cannot post to {}: {problem}", self.url))
    }
}

impl Sink for HttpSink {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))?;
        let (is_array, batch_rows) = (self.is_array, self.batch_rows);
        let encoded = self.outgoing.encode(batch)?;
        let starts = (0..encoded.rows()).step_by(batch_rows);
        self.delivery.push(starts.map(|start| {
            let rows = start..(start + batch_rows).min(encoded.rows());
            let mut hash = Xxh3::new();
            let mut body = Vec::new();
            for row in rows {
                hash.update(&batch.event_time_us[row].to_le_bytes());
                hash.update(encoded.row(row));
                match (batch_rows, is_array, body.is_empty()) {
                    (1, ..) => {}
                    (_, true, true) => body.push(b'['),
                    (_, true, false) => body.push(b','),
                    (_, false, true) => {}
                    (_, false, false) => body.push(b'\n'),
                }
                body.extend_from_slice(encoded.row(row));
            }
            if is_array && batch_rows > 1 {
                body.push(b']');
            }
            Request { body, idempotency_key: format!("{:032x}", hash.digest128()) }
        }));
        Ok(())
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.delivery.finish().map_err(|problem| self.failed(&problem))
    }

    fn has_room(&self) -> bool {
        self.delivery.has_room(ROOM_BYTES, ROOM_REQUESTS)
    }
}
