//! Rows from other servers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{FieldRef, SchemaRef};
use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Element, Polled, Reason, Refusals, Source, SourceError};
use rivulet_wire::{Buffer, Received, WireError};

use crate::connector::convert::{Converted, is_readable};
use crate::connector::intake::refuse;
use crate::connector::{ConnectorError, Options, SourceSpec};
use crate::links::{Peer, Receive};

/// The name of the connector.
pub(super) const NAME: &str = "link";

/// The wait when there are no rows.
const IDLE: Duration = Duration::from_millis(2);

/// The streams that other servers send.
struct Incoming {
    /// The name of the streams.
    name: String,
    /// The columns that are read, as they are declared.
    declared: SchemaRef,
    streams: Mutex<Vec<Stream>>,
}

#[derive(Clone)]
struct Stream {
    peer: Arc<Peer>,
    id: Received,
    /// Where each column that is read stands in its rows.
    places: Arc<[usize]>,
}

impl Receive for Incoming {
    fn accept(&self, peer: &Arc<Peer>, stream: Received, schema: &SchemaRef) -> Result<(), String> {
        let place = |field: &FieldRef| {
            let found = schema.fields().iter().position(|one| one.name() == field.name())?;
            is_readable(schema.field(found).data_type(), field).then_some(found)
        };
        let places: Option<Arc<[usize]>> = self.declared.fields().iter().map(place).collect();
        let places = places.ok_or_else(|| {
            let told = |schema: &SchemaRef| {
                let column = |field: &FieldRef| format!("{} {}", field.name(), field.data_type());
                schema.fields().iter().map(column).collect::<Vec<_>>().join(", ")
            };
            format!("the stream has the columns ({}), and its source reads ({})", told(schema), told(&self.declared))
        })?;
        self.streams.lock().push(Stream { peer: peer.clone(), id: stream, places });
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let why = format!("no source reads the stream '{}'", self.name);
        self.streams.get_mut().iter().for_each(|stream| stream.peer.let_go(stream.id, &why));
    }
}

pub(super) fn open(
    spec: &SourceSpec,
    _options: &Options,
    _wanted: usize,
) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let failed = |problem: &str, hint: &str| ConnectorError::open(NAME, &spec.address, problem, hint);
    if spec.host.only_looks {
        let hint = "write a query that inserts into a sink, and look at what it writes";
        return Err(failed("cannot be looked at without taking its rows from the query that reads it", hint));
    }
    let Some((links, scope)) = &spec.host.links else {
        let hint = "start a server with link.address in its configuration, and create the source there";
        return Err(failed("is received by a server", hint));
    };
    let declared = spec.schema.project(&spec.columns).expect("columns that are read are declared");
    let (name, streams) = (spec.address.clone(), Mutex::default());
    let incoming = Arc::new(Incoming { name, declared: Arc::new(declared), streams });
    let receiver: Arc<dyn Receive> = incoming.clone();
    links.receive(scope, &spec.address, &receiver).map_err(|problem| failed(&problem, "drop the other query"))?;
    let (schema, taken) = (spec.read_schema(), VecDeque::new());
    Ok(vec![Box::new(LinkSource { incoming, schema, next: 0, taken })])
}

struct LinkSource {
    incoming: Arc<Incoming>,
    /// The schema of polled rows.
    schema: SchemaRef,
    /// The stream that is asked first.
    next: usize,
    /// The batches of the buffer that was taken last, and where the columns stand.
    taken: VecDeque<(Batch, Arc<[usize]>)>,
}

impl LinkSource {
    /// Takes the next buffer, if one waits.
    fn take(&mut self) {
        let streams = self.incoming.streams.lock().clone();
        for turn in 0..streams.len() {
            let Stream { peer, id, places } = &streams[(self.next + turn) % streams.len()];
            let Some(buffer) = peer.take(*id) else {
                if !peer.has(*id) {
                    self.incoming.streams.lock().retain(|stream| stream.peer.has(stream.id));
                }
                continue;
            };
            self.next = (self.next + turn + 1) % streams.len();
            match batches(buffer) {
                Ok(batches) => self.taken.extend(batches.into_iter().map(|batch| (batch, places.clone()))),
                Err(error) => peer.give_up(*id, &error),
            }
            return;
        }
    }

    /// The columns that are read, of a batch of a stream.
    fn rows(
        &self,
        batch: &Batch,
        places: &[usize],
        now_us: i64,
        refusals: &mut Refusals,
    ) -> Result<Polled, SourceError> {
        let mut converted = Converted::new(batch.rows());
        for (column, (field, place)) in self.incoming.declared.fields().iter().zip(places).enumerate() {
            converted.push(field, batch.column(*place)).map_err(SourceError)?;
            if !field.is_nullable() {
                converted.refuse_nulls(column, field.name());
            }
        }
        let columns = converted.finish(&self.schema, |detail, rows| {
            refuse(refusals, now_us, &[], || detail);
            refusals.count(Reason::Decode, rows - 1);
        });
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(Duration::ZERO),
            // The clock of the other server may be wrong.
            _ => Polled::Rows { columns, retracts: None, arrival_us: now_us },
        })
    }
}

/// The batches of a buffer. What else comes is for operators; a source gives rows.
fn batches(buffer: Buffer) -> Result<Vec<Batch>, WireError> {
    let (mut elements, mut batches) = (buffer.elements()?, Vec::new());
    while let Some(element) = elements.next_element()? {
        if let Element::Batch(batch) = element {
            batches.push(batch);
        }
    }
    Ok(batches)
}

impl Source for LinkSource {
    fn poll(&mut self, _rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        if self.taken.is_empty() {
            self.take();
        }
        match self.taken.pop_front() {
            Some((batch, places)) => self.rows(&batch, &places, now_us, refusals),
            None => Ok(Polled::Nothing(IDLE)),
        }
    }

    fn is_live(&self) -> bool {
        true
    }

    fn holds_rows(&self) -> bool {
        // Others are still with their sender.
        !self.taken.is_empty()
    }
}
