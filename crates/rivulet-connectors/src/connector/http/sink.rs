//! Requests of rows.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Batch, Sink, SinkError, TransactionalSink};

use super::delivery::{Delivery, DeliveryOptions, Request};
use super::keys::Keys;
use crate::connector::Health;
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
    health: Arc<Health>,
    outgoing: Outgoing,
    batch_rows: usize,
    /// Whether several rows are an array, and not lines.
    is_array: bool,
    /// Where checkpoints are made, keys of requests that are the same when they come again.
    keys: Option<Arc<Keys>>,
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
        keys: Option<Arc<Keys>>,
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
        let (url, health) = (options.url.clone(), options.health.clone());
        let run = RandomState::new().build_hasher().finish();
        let delivery = Delivery::start(options);
        Ok(Self { url, delivery, health, outgoing, batch_rows, is_array, keys, run, requests: 0 })
    }

    fn failed(&self, problem: &str) -> SinkError {
        SinkError(format!("cannot post to {}: {problem}", self.url))
    }
}

impl Sink for HttpSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))?;
        let (is_array, batch_rows, run, requests) = (self.is_array, self.batch_rows, self.run, &mut self.requests);
        let keys = self.keys.as_deref();
        let encoded = self.outgoing.encode(batch)?;
        let starts = (0..encoded.rows()).step_by(batch_rows);
        self.health.hand(encoded.rows());
        self.delivery.push(starts.map(|start| {
            let rows = start..(start + batch_rows).min(encoded.rows());
            let mut body = Vec::new();
            for row in rows.clone() {
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
            let idempotency_key = keys.map_or_else(|| format!("{run:016x}{requests:016x}"), |keys| keys.key(&body));
            Request { body, rows: rows.len(), idempotency_key }
        }));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))
    }

    /// All that was written has been taken by the receiver.
    fn drain(&mut self) -> Result<bool, SinkError> {
        self.delivery.is_empty().map_err(|problem| self.failed(&problem))
    }

    fn has_room(&self) -> bool {
        self.delivery.has_room(ROOM_BYTES, ROOM_REQUESTS)
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        if self.keys.is_some() { Some(self) } else { None }
    }
}

/// Requests are final at once; what goes with checkpoints are their keys.
impl TransactionalSink for HttpSink {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        Ok(self.drain()?.then(|| self.keys.as_ref().map_or_else(String::new, |keys| keys.prepared())))
    }

    fn commit(&mut self, epoch: u64) -> Result<bool, SinkError> {
        self.keys.iter().for_each(|keys| keys.commit(epoch));
        Ok(true)
    }

    /// Keys behind a checkpoint are others.
    fn waits_for_commit(&self) -> bool {
        true
    }
}
