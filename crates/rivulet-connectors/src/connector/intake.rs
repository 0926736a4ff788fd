//! Turns payloads into rows: collects them in an arena and decodes them together.

use rivulet_dataflow::{Batch, Decoder, Events, Polled, Reason, Refusals, Refused};

/// The number of payload bytes that are decoded at once: about a few thousand usual rows, and small enough for the
/// cache nearest to the processor. A single larger payload is accepted as well.
pub(crate) const BYTES_AT_ONCE: usize = 1 << 20;

/// The largest payload that is accepted, whatever an option says: it keeps an arena of events far below 4 GiB.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

/// Collects payloads and decodes them.
///
/// If the decoder accepts a payload of many lines, blocks of lines are payloads too, so that the ends of lines are not
/// searched for separately. If a line of a block is refused, the block is decoded again line by line: so the refusal of
/// a line is the same either way.
pub(crate) struct Intake {
    events: Events,
    decoder: Box<dyn Decoder>,
    /// The expected number of rows of the waiting payloads, about.
    rows_expected: usize,
    /// Whether blocks of lines are accepted.
    takes_blocks: bool,
    /// The average length of a line in the last rows; `None` before the first rows.
    line_bytes: Option<usize>,
    /// Whether blocks wait.
    has_blocks: bool,
}

impl Intake {
    pub(crate) fn new(decoder: Box<dyn Decoder>) -> Self {
        let events = Events::default();
        Self { events, decoder, rows_expected: 0, takes_blocks: false, line_bytes: None, has_blocks: false }
    }

    /// Whether a payload may be a block of lines.
    pub(crate) fn set_takes_blocks(&mut self, takes_blocks: bool) {
        self.takes_blocks = takes_blocks;
    }

    /// The largest block of lines in a poll for this many rows; `None` if lines are taken one by one, as always at
    /// first.
    pub(crate) fn block_bytes_max(&self, rows_max: usize) -> Option<usize> {
        let line_bytes = self.line_bytes.filter(|_| self.takes_blocks)?;
        let of_rows = rows_max.saturating_sub(self.rows_expected).saturating_mul(line_bytes);
        Some(of_rows.min(BYTES_AT_ONCE.saturating_sub(self.events.payload_bytes())))
    }

    /// Takes a block of whole lines without quotes.
    pub(crate) fn push_block(&mut self, arrival_us: i64, lines: &[u8]) {
        self.rows_expected += lines.len().div_ceil(self.line_bytes.unwrap_or(1));
        self.has_blocks = true;
        self.events.push(0, arrival_us, lines);
    }

    /// Takes one payload of at most [`PAYLOAD_BYTES_MAX`] bytes.
    #[inline]
    pub(crate) fn push(&mut self, arrival_us: i64, payload: &[u8]) {
        self.rows_expected += 1;
        self.events.push(0, arrival_us, payload);
    }

    /// Whether there is room for another payload of a poll for so many rows.
    #[inline]
    pub(crate) fn has_room(&self, rows_max: usize) -> bool {
        self.rows_expected < rows_max.max(1) && self.events.payload_bytes() < BYTES_AT_ONCE
    }

    /// The number of payloads that wait.
    pub(crate) fn payloads(&self) -> usize {
        self.events.rows()
    }

    /// Decodes the following payloads with another decoder. No payload may be waiting.
    pub(crate) fn set_decoder(&mut self, decoder: Box<dyn Decoder>) {
        debug_assert!(self.events.is_empty(), "payloads are decoded by the decoder they came for");
        self.decoder = decoder;
    }

    /// Decodes all waiting payloads to rows, and removes them.
    pub(crate) fn decode(&mut self, refusals: &mut Refusals) -> Batch {
        let batch = self.decode_all(refusals);
        let bytes_of_lines = self.events.payload_bytes() + self.events.rows();
        self.line_bytes = bytes_of_lines.checked_div(batch.rows()).map(|bytes| bytes.max(1));
        self.has_blocks = false;
        self.rows_expected = 0;
        let (payloads, bytes) = (self.events.rows(), self.events.payload_bytes());
        self.events.clear();
        self.events.shrink_for(payloads, bytes);
        batch
    }

    fn decode_all(&mut self, refusals: &mut Refusals) -> Batch {
        if self.has_blocks {
            let mut of_blocks = Refusals::new(0);
            let batch = self.decoder.decode(&self.events, &mut of_blocks);
            if of_blocks.is_empty() {
                return batch;
            }
            let mut lines = Events::default();
            for (block, &arrival_us) in self.events.arrival_us().iter().enumerate() {
                for line in self.events.payload(block).split(|&byte| byte == b'\n') {
                    let line = line.strip_suffix(b"\r").unwrap_or(line);
                    if !line.trim_ascii_start().is_empty() {
                        lines.push(0, arrival_us, line);
                    }
                }
            }
            self.events = lines;
        }
        self.decoder.decode(&self.events, refusals)
    }

    /// The same as the answer to a poll; `None` if no payload is waiting.
    pub(crate) fn decode_for(&mut self, arrival_us: i64, refusals: &mut Refusals) -> Option<Polled> {
        let batch = self.decode(refusals);
        (!batch.is_empty()).then(|| Polled::rows(batch, arrival_us))
    }
}

/// Refuses bytes that cannot be a payload; `excerpt` is their beginning.
pub(crate) fn refuse(refusals: &mut Refusals, arrival_us: i64, excerpt: &[u8], detail: impl FnOnce() -> String) {
    /// The bytes that are kept of a payload that is too large.
    const EXCERPT_BYTES: usize = 1024;
    let excerpt = &excerpt[..excerpt.len().min(EXCERPT_BYTES)];
    refusals.refuse(0, Reason::Decode, arrival_us, || (detail(), Refused::Payload(excerpt.into())));
}
