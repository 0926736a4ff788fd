//! Payloads on their way to rows: collected in an arena, decoded at once.

use arrow::array::RecordBatch;
use rivulet_dataflow::{Decoder, Events, Polled, Reason, Refusals, Refused};

/// How many payload bytes are decoded at once: what a batch of a few thousand usual rows has, and small enough for the
/// cache next to the processor. A single larger payload is taken as well.
pub(crate) const BYTES_AT_ONCE: usize = 1 << 20;

/// The largest payload that is taken, whatever an option says: an arena of events stays far below 4 GiB with it.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

/// Collects payloads and decodes them.
///
/// Where the decoder takes a payload of many lines, blocks of lines are payloads too, so that nobody looks for the ends
/// of lines beside it. Should a line of them be refused, all are decoded again line by line: what is said of a line is
/// the same either way.
pub(crate) struct Intake {
    events: Events,
    decoder: Box<dyn Decoder>,
    /// Rows that are to come of what waits, about.
    rows_expected: usize,
    /// Whether blocks of lines are taken.
    takes_blocks: bool,
    /// How long a line was on average in the last rows; nothing before the first ones.
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

    /// How large a block of lines may be in a poll for so many rows; `None` where lines are taken one by one, as always
    /// at first.
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
        let columns = self.decode_all(refusals);
        let bytes_of_lines = self.events.payload_bytes() + self.events.rows();
        self.line_bytes = bytes_of_lines.checked_div(columns.num_rows()).map(|bytes| bytes.max(1));
        self.has_blocks = false;
        self.rows_expected = 0;
        let (payloads, bytes) = (self.events.rows(), self.events.payload_bytes());
        self.events.clear();
        self.events.shrink_for(payloads, bytes);
        columns
    }

    fn decode_all(&mut self, refusals: &mut Refusals) -> RecordBatch {
        if self.has_blocks {
            let mut of_blocks = Refusals::new(0);
            let columns = self.decoder.decode(&self.events, &mut of_blocks).columns;
            if of_blocks.is_empty() {
                return columns;
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
        self.decoder.decode(&self.events, refusals).columns
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
