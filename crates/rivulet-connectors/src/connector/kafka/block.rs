//! Messages of a topic, end to end.

use rdkafka::message::{BorrowedMessage, Message};

/// Messages end to end, as they are handed from the reading thread to the sources.
#[derive(Debug, Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    messages: Vec<Place>,
}

/// A message in a block.
#[derive(Clone, Copy, Debug)]
struct Place {
    key_end: u32,
    payload_end: u32,
    has_key: bool,
    has_payload: bool,
    partition: i32,
    offset: i64,
    /// Milliseconds since the epoch; `i64::MIN` if the message has no time.
    time_ms: i64,
}

/// A message, borrowed from its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received<'b> {
    pub(super) key: Option<&'b [u8]>,
    pub(super) payload: Option<&'b [u8]>,
    pub(super) partition: i32,
    pub(super) offset: i64,
    /// Milliseconds since the epoch.
    pub(super) time_ms: Option<i64>,
}

impl Block {
    pub(super) fn push(&mut self, message: &BorrowedMessage<'_>) {
        let key = message.key();
        self.bytes.extend_from_slice(key.unwrap_or_default());
        let key_end = self.bytes.len() as u32;
        let payload = message.payload();
        self.bytes.extend_from_slice(payload.unwrap_or_default());
        self.messages.push(Place {
            key_end,
            // A block is full long before this overflows: messages have at most 1 GB.
            payload_end: self.bytes.len() as u32,
            has_key: key.is_some(),
            has_payload: payload.is_some(),
            partition: message.partition(),
            offset: message.offset(),
            time_ms: message.timestamp().to_millis().unwrap_or(i64::MIN),
        });
    }

    /// Its memory in bytes.
    pub(super) fn weight(&self) -> usize {
        self.bytes.len() + self.messages.len() * size_of::<Place>()
    }

    /// The number of messages.
    pub(super) fn messages(&self) -> usize {
        self.messages.len()
    }

    /// The message at `index`.
    pub(super) fn message(&self, index: usize) -> Received<'_> {
        let start = if index == 0 { 0 } else { self.messages[index - 1].payload_end };
        let place = self.messages[index];
        let key = &self.bytes[start as usize..place.key_end as usize];
        let payload = &self.bytes[place.key_end as usize..place.payload_end as usize];
        Received {
            key: place.has_key.then_some(key),
            payload: place.has_payload.then_some(payload),
            partition: place.partition,
            offset: place.offset,
            time_ms: (place.time_ms != i64::MIN).then_some(place.time_ms),
        }
    }
}
