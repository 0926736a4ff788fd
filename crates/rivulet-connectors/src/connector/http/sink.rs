//! Requests from rows.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Batch, Sink, SinkError, TransactionalSink};

use super::address::url_from;
use super::delivery::{Delivery, DeliveryOptions};
use super::keys::Keys;
use super::pending::Prepared;
use super::receivers::Request;
use crate::connector::outgoing::Outgoing;
use crate::connector::{Health, OutputRows};
use crate::formats::{Format, FormatError, RowFormat};

/// If more bytes or requests than this wait, there is no room; one batch may exceed it.
const ROOM_BYTES: usize = 4 << 20;
const ROOM_REQUESTS: usize = 1024;

/// The same if each row may have its own receiver: all receivers share it.
const SHARED_ROOM_BYTES: usize = 4 * ROOM_BYTES;
const SHARED_ROOM_REQUESTS: usize = 16 * ROOM_REQUESTS;

/// The content type of bodies in this format.
pub(super) fn content_type(format: &RowFormat) -> &'static str {
    match format {
        RowFormat::Plain { format: Format::Json | Format::NestedJson | Format::SenMl | Format::SenMlPivot, .. } => {
            "application/json"
        }
        RowFormat::Plain { format: Format::Csv { .. }, .. } => "text/csv",
        _ if format.is_text() => "text/plain",
        _ => "application/octet-stream",
    }
}

/// Makes a request for each row, or for several.
pub(super) struct HttpSink {
    connector: &'static str,
    /// The address of rows, or a template of it.
    url: Arc<str>,
    /// The additional columns of rows behind the sink's own, and the number of those.
    output: Option<OutputRows>,
    columns: usize,
    delivery: Delivery,
    health: Arc<Health>,
    outgoing: Outgoing,
    batch_rows: usize,
    /// Whether several rows are written as an array, instead of lines.
    is_array: bool,
    /// Whether checkpoints are made, which have the requests that wait.
    hands_over: bool,
    /// If checkpoints are made and sources are read again: keys of requests that are the same when they come again.
    keys: Option<Arc<Keys>>,
    /// A number that differs from those of all other runs and instances.
    run: u64,
    /// The number of requests so far.
    requests: u64,
}

impl HttpSink {
    /// With `keys` only if it `hands_over` the requests that wait to checkpoints.
    pub(super) fn new(
        options: DeliveryOptions,
        (connector, url): (&'static str, Arc<str>),
        format: &RowFormat,
        schema: &SchemaRef,
        batch_rows: usize,
        output: Option<OutputRows>,
        (hands_over, keys): (bool, Option<Arc<Keys>>),
    ) -> Result<Self, FormatError> {
        if batch_rows > 1 && !format.is_text() {
            let problem = "has no form for several rows in one body";
            return Err(FormatError::setting(format.name(), problem, "leave the option 'batch_rows' out"));
        }
        let outgoing = Outgoing::new(format, schema, false)?;
        let is_array = content_type(format) == "application/json";
        let health = options.health.clone();
        let run = RandomState::new().build_hasher().finish();
        let (delivery, columns) = (Delivery::new(options), schema.fields().len());
        let requests = 0;
        Ok(Self {
            connector,
            url,
            output,
            columns,
            delivery,
            health,
            outgoing,
            batch_rows,
            is_array,
            hands_over,
            keys,
            run,
            requests,
        })
    }

    /// Adds the requests again that a checkpoint has stored, with the keys that they had.
    pub(super) fn resume(&self, prepared: &Prepared) {
        self.health.hand(prepared.requests.iter().map(|request| request.rows).sum());
        self.delivery.push(prepared.requests.iter().cloned());
    }

    fn failed(&self, problem: &str) -> SinkError {
        SinkError(format!("cannot post to {}: {problem}", self.url))
    }

    fn has_many_receivers(&self) -> bool {
        self.output.is_some_and(|output| output.has_addresses)
    }
}

impl Sink for HttpSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))?;
        let split = self.output.map(|output| output.split(batch, self.columns)).transpose()?;
        let (batch, owners) = match &split {
            Some((batch, owners)) => (batch, Some(owners)),
            None => (batch, None),
        };
        let (is_array, batch_rows, run, requests) = (self.is_array, self.batch_rows, self.run, &mut self.requests);
        let (keys, connector) = (self.keys.as_deref(), self.connector);
        let encoded = self.outgoing.encode(batch)?;
        self.health.hand(encoded.rows());
        let address = |row: usize| owners.and_then(|owners| owners.address(row));
        // The last address is kept: rows of one query are adjacent.
        let (mut url, mut url_of) = (self.url.clone(), None);
        let mut start = 0;
        let made = std::iter::from_fn(|| {
            if start >= encoded.rows() {
                return None;
            }
            let to = address(start);
            let same = (start..encoded.rows()).take(batch_rows).take_while(|row| address(*row) == to);
            let rows = start..start + same.count();
            if let Some(to) = to.filter(|to| url_of != Some(*to)) {
                // The address was checked when the query was created.
                url = url_from(connector, to).map_or_else(|_| to.into(), |(_, url)| url.into());
                url_of = Some(to);
            }
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
            // The key is that of the delivery and not of its content: rows may be equal.
            *requests += 1;
            let idempotency_key = match owners.map(|owners| owners.id(start)).filter(|id| !id.is_empty()) {
                Some(id) if rows.len() == 1 => id.to_owned(),
                Some(id) => format!("{id}-{}", rows.len()),
                None => keys.map_or_else(|| format!("{run:016x}{requests:016x}"), |keys| keys.key(&body)),
            };
            let query = owners.filter(|_| to.is_some()).map(|owners| owners.query(start));
            start = rows.end;
            Some(Arc::new(Request { url: url.clone(), body, rows: rows.len(), idempotency_key, query }))
        });
        self.delivery.push(made);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))
    }

    /// Returns whether the receiver has accepted all rows that were written.
    fn drain(&mut self) -> Result<bool, SinkError> {
        self.delivery.is_empty().map_err(|problem| self.failed(&problem))
    }

    fn has_room(&self) -> bool {
        match self.has_many_receivers() {
            true => self.delivery.has_room(SHARED_ROOM_BYTES, SHARED_ROOM_REQUESTS),
            false => self.delivery.has_room(ROOM_BYTES, ROOM_REQUESTS),
        }
    }

    fn hands_over(&self) -> bool {
        self.hands_over
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        if self.hands_over { Some(self) } else { None }
    }
}

/// Requests are final at once. Checkpoints store the requests that wait, and their keys: a checkpoint waits for no
/// receiver.
impl TransactionalSink for HttpSink {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        self.delivery.check().map_err(|problem| self.failed(&problem))?;
        let keys = self.keys.as_ref().map(|keys| keys.noted());
        Ok(Some(Prepared { requests: self.delivery.undelivered(), keys }.text()))
    }

    fn commit(&mut self, epoch: u64) -> Result<bool, SinkError> {
        self.keys.iter().for_each(|keys| keys.commit(epoch));
        Ok(true)
    }

    /// Keys after a checkpoint are different.
    fn waits_for_commit(&self) -> bool {
        self.keys.is_some()
    }
}
