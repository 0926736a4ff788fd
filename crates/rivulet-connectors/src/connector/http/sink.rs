//! Requests of rows.

use std::hash::{BuildHasher, Hasher, RandomState};

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Batch, Refusals, Sink, SinkError, SlotTable};

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
    /// Unlike that of any other run or instance.
    run: u64,
    /// How many requests there were.
    requests: u64,
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
        let run = RandomState::new().build_hasher().finish();
        Ok(Self { url, delivery: Delivery::start(options), outgoing, batch_rows, is_array, run, requests: 0 })
    }

    fn failed(&self, problem: &str) -> SinkError {
        SinkError(format!("cannot post to {}: {problem}", self.url))
    }
}

impl Sink for HttpSink {
    fn write(&mut self, batch: &Batch, _slots: &SlotTable) -> Result<(), SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))?;
        let (is_array, batch_rows, run, requests) = (self.is_array, self.batch_rows, self.run, &mut self.requests);
        let encoded = self.outgoing.encode(batch)?;
        let starts = (0..encoded.rows()).step_by(batch_rows);
        self.delivery.push(starts.map(|start| {
            let rows = start..(start + batch_rows).min(encoded.rows());
            let mut body = Vec::new();
            for row in rows {
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
            // Of the delivery and not of its content: rows may be equal.
            *requests += 1;
            Request { body, idempotency_key: format!("{run:016x}{requests:016x}") }
        }));
        Ok(())
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))
    }

    /// All that was written has been taken by the receiver.
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        Ok(self.is_finished()?.then(String::new))
    }

    fn is_finished(&mut self) -> Result<bool, SinkError> {
        self.delivery.is_empty().map_err(|problem| self.failed(&problem))
    }

    fn has_room(&self) -> bool {
        self.delivery.has_room(ROOM_BYTES, ROOM_REQUESTS)
    }
}
