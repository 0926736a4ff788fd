//! The memory of what a connection has read and is no whole packet yet.
//!
//! What must hold: the address of a client pays for it, and one that holds as much as it may has small packets only.

use std::sync::Arc;

use super::super::buffer::IDLE_BYTES;
use super::super::intake::Intake;
use super::memory::Share;
use super::outbox::SCARCE_BYTES_MAX;
use super::packets::{Close, Reason};

/// What is counted of one connection.
pub(super) struct ReadMemory {
    share: Arc<Share>,
    counted: usize,
    /// Whether little is read at a time, because the clients of the address hold as much as they may.
    is_scarce: bool,
    read_bytes_max: usize,
}

impl ReadMemory {
    /// Nothing is read yet; later at most so much at a time.
    pub(super) fn new(share: Arc<Share>, read_bytes_max: usize) -> Self {
        Self { share, counted: 0, is_scarce: false, read_bytes_max }
    }

    /// Counts what was read, of which no packet is whole.
    ///
    /// # Errors
    /// The packet is large, and the clients of the address hold as much as they may.
    pub(super) fn count(&mut self, intake: &mut Intake<'_>) -> Result<(), Close> {
        let has_much = |bytes: usize| bytes > SCARCE_BYTES_MAX;
        self.take(intake.memory_bytes());
        let is_scarce = (self.is_scarce || has_much(intake.memory_bytes())) && self.share.is_full();
        if is_scarce || self.is_scarce {
            self.is_scarce = is_scarce;
            intake.limit_buffer(if is_scarce { SCARCE_BYTES_MAX } else { self.read_bytes_max });
            self.take(intake.memory_bytes());
        }
        if is_scarce && has_much(intake.read_bytes()) {
            let text = "its packet is large, and the clients of its address hold as much as they may: \
                        mqtt.embedded.memory_bytes_max, mqtt.embedded.address_share_percent";
            return Err(Close::new(Reason::QuotaExceeded, text));
        }
        Ok(())
    }

    fn take(&mut self, buffer_bytes: usize) {
        // What every connection has is bounded by their number.
        let bytes = buffer_bytes.saturating_sub(IDLE_BYTES);
        if bytes > self.counted {
            self.share.add(bytes - self.counted);
        } else if bytes < self.counted {
            self.share.subtract(self.counted - bytes);
        }
        self.counted = bytes;
    }
}

impl Drop for ReadMemory {
    fn drop(&mut self) {
        self.share.subtract(self.counted);
    }
}
