//! Rows from messages.

use std::sync::Arc;
use std::time::Duration;

use rivulet_dataflow::{Decoder, Events, Polled, Refusals, Source, SourceError};

use super::block::Block;
use super::metadata::Layout;
use super::queue::{Next, Queue, Shared};
use super::start::Begin;
use crate::formats::RowFormat;

/// The wait when there is no message, and when another member reads the partition; so late is it noticed that the
/// partition has come to us.
const IDLE: Duration = Duration::from_millis(5);
const IDLE_ASIDE: Duration = Duration::from_millis(20);

/// How messages become rows; shared by all partitions.
pub(super) struct Rows {
    pub(super) topic: String,
    pub(super) layout: Layout,
    pub(super) format: RowFormat,
}

/// One partition of the topic.
pub(super) struct KafkaSource {
    rows: Arc<Rows>,
    /// Made when the first messages come: a group may have many partitions, few of which are ours.
    decoder: Option<Box<dyn Decoder>>,
    /// Payloads on their way into the decoder; empty between polls.
    events: Events,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    /// The block that is being taken, and the number of its messages that were taken.
    block: Block,
    taken: usize,
    /// The number of messages taken, and their total if reading is bounded.
    messages: u64,
    messages_all: Option<u64>,
    has_ended: bool,
    /// The offset of the next message, if it is known.
    offset: Option<i64>,
    /// The offset at which reading ends, if it does.
    end: Option<i64>,
}

impl KafkaSource {
    /// Takes the messages that wait in `queue`.
    pub(super) fn new(rows: &Arc<Rows>, queue: Arc<Queue>, shared: &Arc<Shared>, begin: &Begin) -> Self {
        shared.enter();
        Self {
            rows: rows.clone(),
            decoder: None,
            events: Events::default(),
            queue,
            shared: shared.clone(),
            block: Block::default(),
            taken: 0,
            messages: 0,
            messages_all: begin.messages,
            has_ended: false,
            offset: begin.begin,
            end: begin.end,
        }
    }

    fn failed(&self, problem: impl std::fmt::Display) -> SourceError {
        SourceError(format!("cannot read the topic '{}': {problem}", self.rows.topic))
    }

    /// The answer to a poll without messages.
    fn nothing(&self) -> Result<Polled, SourceError> {
        match self.shared.failure() {
            Some(problem) => Err(self.failed(problem)),
            // Before the group has decided, each partition may be ours; then its rows are to be waited for from the
            // first one on.
            None if self.queue.is_ours() || !self.shared.is_assigned() => Ok(Polled::Nothing(IDLE)),
            None => Ok(Polled::Aside(IDLE_ASIDE)),
        }
    }
}

impl Source for KafkaSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        if self.taken == self.block.messages() {
            match self.queue.take() {
                Next::Block(block) => (self.block, self.taken) = (block, 0),
                Next::Nothing => return self.nothing(),
                Next::End => {
                    self.has_ended = true;
                    return Ok(Polled::End);
                }
            }
        }
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            None => {
                let decoder = self.rows.layout.decoder(&self.rows.format).map_err(|error| self.failed(error))?;
                self.decoder.insert(decoder)
            }
        };
        let messages = self.taken..(self.taken + rows_max.max(1)).min(self.block.messages());
        let (layout, events) = (&self.rows.layout, &mut self.events);
        let batch = layout.rows(&self.block, messages.clone(), &mut **decoder, events, now_us, refusals);
        self.taken = messages.end;
        self.messages += messages.len() as u64;
        let behind = self.block.message(messages.end - 1).offset + 1;
        self.offset = Some(behind);
        self.shared.note_taken(self.queue.partition, behind, messages.len() as u64);
        if self.taken == self.block.messages() {
            // Messages that have been taken are not held any more.
            (self.block, self.taken) = (Block::default(), 0);
        }
        Ok(Polled::rows(batch, now_us))
    }

    fn found(&mut self) -> Vec<Box<dyn Source>> {
        let begins = |queue: &Queue| Begin { partition: queue.partition, begin: None, end: None, messages: None };
        let new = self.shared.take_new().into_iter();
        let source = |queue: Arc<Queue>| Self::new(&self.rows, queue.clone(), &self.shared, &begins(&queue));
        new.map(|queue| Box::new(source(queue)) as Box<dyn Source>).collect()
    }

    fn position(&mut self) -> Option<String> {
        serde_json::to_string(&(self.queue.partition, self.offset, self.end)).ok()
    }

    fn is_live(&self) -> bool {
        self.messages_all.is_none()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        // Offsets may have gaps, so the end may come before all are counted.
        let all = self.messages_all?;
        Some((if self.has_ended { all } else { self.messages.min(all) }, all))
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        // The thread ends by itself after the last source; closing a consumer may take long, and nothing waits for it.
        self.shared.leave();
    }
}
