//! Rows of messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use rivulet_dataflow::{Decoder, Events, Polled, Refusals, Source, SourceError};

use super::fetch::{self, Block, Handed, Shared};
use super::metadata::Layout;
use super::start::Reading;
use crate::formats::{FormatError, RowFormat};

/// How long to wait when there is nothing.
const IDLE: Duration = Duration::from_millis(5);

/// One partition: what one consumer reads.
pub(super) struct KafkaSource {
    topic: String,
    layout: Layout,
    decoder: Box<dyn Decoder>,
    /// Payloads on their way into the decoder; empty between polls.
    events: Events,
    received: Receiver<Handed>,
    shared: Arc<Shared>,
    /// The block that is being taken, and how many of its messages have been.
    block: Block,
    taken: usize,
    is_bounded: bool,
    messages: u64,
}

impl KafkaSource {
    /// Begins to read.
    pub(super) fn start(reading: Reading, layout: Layout, format: &RowFormat) -> Result<Self, FormatError> {
        let decoder = layout.decoder(format)?;
        let (topic, is_bounded, messages) = (reading.topic.clone(), reading.ends.is_some(), reading.messages);
        let (received, shared) = fetch::start(reading);
        Ok(Self {
            topic,
            layout,
            decoder,
            events: Events::default(),
            received,
            shared,
            block: Block::default(),
            taken: 0,
            is_bounded,
            messages,
        })
    }

    /// Has a block with messages to take, if there is one; `false` if there will never be one.
    fn next_block(&mut self) -> Result<bool, SourceError> {
        if self.taken < self.block.messages() {
            return Ok(true);
        }
        let failed = |problem: String| SourceError(format!("cannot read the topic '{}': {problem}", self.topic));
        match self.received.try_recv() {
            Ok(block) => {
                self.block = block.map_err(failed)?;
                self.taken = 0;
                Ok(true)
            }
            Err(TryRecvError::Empty) => Ok(true),
            Err(TryRecvError::Disconnected) if self.is_bounded => Ok(false),
            Err(TryRecvError::Disconnected) => Err(failed("its consumer has stopped".into())),
        }
    }

    /// Notes that messages were taken, for the group's offsets.
    fn note_taken(&self, messages: std::ops::Range<usize>) {
        let mut taken = self.shared.taken.lock();
        // In one partition offsets ascend, so the last one of each counts.
        let mut last: Option<(i32, i64)> = None;
        for index in messages.clone() {
            let message = self.block.message(index);
            if let Some((partition, offset)) = last.filter(|(partition, _)| *partition != message.partition) {
                taken.insert(partition, offset);
            }
            last = Some((message.partition, message.offset + 1));
        }
        taken.extend(last);
        drop(taken);
        self.shared.messages.fetch_add(messages.len() as u64, Ordering::AcqRel);
    }
}

impl Source for KafkaSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        if !self.next_block()? {
            return Ok(Polled::End);
        }
        let messages = self.taken..(self.taken + rows_max.max(1)).min(self.block.messages());
        if messages.is_empty() {
            return Ok(Polled::Nothing(IDLE));
        }
        self.taken = messages.end;
        let columns =
            self.layout.rows(&self.block, messages.clone(), &mut *self.decoder, &mut self.events, now_us, refusals);
        self.note_taken(messages);
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(Duration::ZERO),
            _ => Polled::Rows { columns, arrival_us: now_us },
        })
    }

    fn progress(&self) -> Option<(u64, u64)> {
        // Offsets may have gaps, so the end may come before all are counted.
        let done = self.shared.messages.load(Ordering::Acquire);
        self.is_bounded.then_some((done.min(self.messages), self.messages))
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        // The thread leaves by itself; closing a consumer may take long, and nobody waits for it.
        self.shared.stop.store(true, Ordering::Release);
    }
}
