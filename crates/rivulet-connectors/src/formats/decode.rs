//! The frame around every decoder: events in, one batch out, broken events refused one by one.

use arrow::array::RecordBatch;
use arrow::buffer::ScalarBuffer;
use rivulet_dataflow::{Batch, Decoder, Events, InputIndex, LogPosition, Refusals, Slot};

use super::describe::describe_fault;
use super::fault::{Fault, Problem};
use super::rows::Rows;

/// Turns one payload into rows.
pub(crate) trait PayloadParser: Send {
    /// Appends the rows of `payload` to `rows`, each finished: at least one, unless the payload says that there is
    /// none. After a fault the caller takes back whatever was appended. `arrival_us` is when the event reached the
    /// engine, microseconds since the epoch.
    fn parse(&mut self, payload: &[u8], arrival_us: i64, rows: &mut Rows) -> Result<(), Fault>;

    /// Whether a payload without a byte can be a row.
    fn takes_empty(&self) -> bool {
        false
    }
}

/// A [`Decoder`] made of a parser of single payloads.
///
/// Every event either gives at least one row or is refused: none vanishes.
pub(crate) struct PayloadDecoder<P> {
    parser: P,
    rows: Rows,
    /// Payload bytes of a row in the last batch, if payloads had several rows there.
    row_bytes: Option<usize>,
}

impl<P: PayloadParser> PayloadDecoder<P> {
    /// A decoder whose rows have the columns of `rows`.
    pub(crate) fn new(parser: P, rows: Rows) -> Self {
        Self { parser, rows, row_bytes: None }
    }
}

/// Appends the rows of an event to `rows` and returns their number; none if the event is refused. `input` is the number
/// of the input that it came by.
pub(super) fn decode_event<P: PayloadParser + ?Sized>(
    parser: &mut P,
    rows: &mut Rows,
    events: &Events,
    event: usize,
    input: Option<InputIndex>,
    refusals: &mut Refusals,
) -> usize {
    let (payload, arrival_us) = (events.payload(event), events.arrival_us()[event]);
    let before = rows.begin_event();
    let outcome = match payload.is_empty() && !parser.takes_empty() {
        true => Err(Fault::new(Problem::Empty, 0)),
        false => parser.parse(payload, arrival_us, rows),
    };
    let outcome = outcome.and_then(|()| rows.end_event(before, events.topic(event)));
    if let Err(fault) = outcome {
        rows.truncate(before);
        refusals.refuse_event(input, events.event(event), || describe_fault(fault, payload, rows));
    }
    rows.rows() - before
}

/// The events that the rows came from, kept only when that is no longer simply one row for each event.
#[derive(Default)]
struct Origins {
    slots: Vec<Slot>,
    arrival_us: Vec<i64>,
    /// Empty if the events are in no log.
    positions: Vec<LogPosition>,
}

impl Origins {
    /// One row for each of the first `rows` events.
    fn of_first(events: &Events, rows: usize) -> Self {
        let mut slots = Vec::with_capacity(events.rows());
        slots.extend_from_slice(&events.slots()[..rows]);
        let mut arrival_us = Vec::with_capacity(events.rows());
        arrival_us.extend_from_slice(&events.arrival_us()[..rows]);
        let positions = events.positions();
        Self { slots, arrival_us, positions: positions[..rows.min(positions.len())].to_vec() }
    }

    fn push(&mut self, events: &Events, event: usize, rows: usize) {
        self.slots.extend(std::iter::repeat_n(events.slots()[event], rows));
        self.arrival_us.extend(std::iter::repeat_n(events.arrival_us()[event], rows));
        if !events.positions().is_empty() {
            self.positions.extend(std::iter::repeat_n(events.position(event), rows));
        }
    }

    fn into_batch(self, columns: RecordBatch) -> Batch {
        let arrival_us = ScalarBuffer::from(self.arrival_us);
        let positions = (!self.positions.is_empty()).then(|| ScalarBuffer::from(self.positions));
        Batch::new(ScalarBuffer::from(self.slots), arrival_us.clone(), arrival_us, columns).with_positions(positions)
    }
}

impl<P: PayloadParser> Decoder for PayloadDecoder<P> {
    fn decode(&mut self, events: &Events, refusals: &mut Refusals) -> Batch {
        let Self { parser, rows, row_bytes } = self;
        rows.reserve(events.rows().max(row_bytes.map_or(0, |row_bytes| events.payload_bytes() / row_bytes)));
        let mut origins: Option<Origins> = None;
        for event in 0..events.rows() {
            let added = decode_event(parser, rows, events, event, None, refusals);
            if added != 1 && origins.is_none() {
                origins = Some(Origins::of_first(events, event));
            }
            if let Some(origins) = &mut origins {
                origins.push(events, event, added);
            }
        }
        *row_bytes = (rows.rows() > events.rows()).then(|| (events.payload_bytes() / rows.rows()).max(1));
        let (origins, retracts) =
            (origins.unwrap_or_else(|| Origins::of_first(events, events.rows())), rows.take_retracts());
        origins.into_batch(rows.finish()).with_retracts(retracts)
    }
}
