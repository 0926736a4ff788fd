//! Payloads on their way to rows: collected in an arena, decoded at once.

use arrow::array::RecordBatch;
use rivulet_dataflow::{Decoder, Events, Polled, Reason, Refusals, Refused};

/// How many payload bytes are decoded at once: what a batch of a few thousand usual rows has, and small enough for the cache next
/// to the processor. A single larger payload is taken as well.
pub(crate) const BYTES_AT_ONCE: usize = 1 << 20;

/// The largest payload that is taken, whatever an option says: an arena of events stays far below 4 GiB with it.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

/// Collects payloads and decodes them.
pub(crate) struct Intake {
    events: Events,
    decoder: Box<dyn Decoder>,
}

impl Intake {
    pub(crate) fn new(decoder: Box<dyn Decoder>) -> Self {
        Self { events: Events::default(), decoder }
    }

    /// Takes one payload of at most [`PAYLOAD_BYTES_MAX`] bytes.
    #[inline]
    pub(crate) fn push(&mut self, arrival_us: i64, payload: &[u8]) {
        self.events.push(0, arrival_us, payload);
    }

    /// Whether there is room for another payload of a poll for so many rows.
    #[inline]
    pub(crate) fn has_room(&self, rows_max: usize) -> bool {
        self.events.rows() < rows_max.max(1) && self.events.payload_bytes() < BYTES_AT_ONCE
    }

    /// How many payloads wait.
    pub(crate) fn payloads(&self) -> usize {
        self.events.rows()
    }

    /// Reads the payloads that follow in another way. None may wait.
    pub(crate) fn set_decoder(&mut self, decoder: Box<dyn Decoder>) {
        debug_assert!(self.events.is_empty(), "payloads are decoded by the decoder they came for");
        self.decoder = decoder;
    }

    /// The rows of all payloads, which are gone then.
    pub(crate) fn decode(&mut self, refusals: &mut Refusals) -> RecordBatch {
        let columns = self.decoder.decode(&self.events, refusals).columns;
        let (payloads, bytes) = (self.events.rows(), self.events.payload_bytes());
        self.events.clear();
        self.events.shrink_for(payloads, bytes);
        columns
    }

    /// The same as the answer to a poll; `None` if nothing is left of them.
    pub(crate) fn decode_for(&mut self, arrival_us: i64, refusals: &mut Refusals) -> Option<Polled> {
        let columns = self.decode(refusals);
        (columns.num_rows() > 0).then_some(Polled::Rows { columns, arrival_us })
    }
}

/// Refuses what cannot be a payload; `excerpt` is the beginning of it.
pub(crate) fn refuse(refusals: &mut Refusals, arrival_us: i64, excerpt: &[u8], detail: impl FnOnce() -> String) {
    /// What is kept of something too large to be kept.
    const EXCERPT_BYTES: usize = 1024;
    let excerpt = &excerpt[..excerpt.len().min(EXCERPT_BYTES)];
    refusals.refuse(0, Reason::Decode, arrival_us, || (detail(), Refused::Payload(excerpt.into())));
}
