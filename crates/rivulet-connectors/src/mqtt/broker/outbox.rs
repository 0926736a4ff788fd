//! The packets that wait to be written to one connection.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::memory::Share;

/// The bytes that may wait for a connection while the clients of its address hold as much as they may.
pub(super) const SCARCE_BYTES_MAX: usize = 64 << 10;

/// The packets for a connection, end to end, bounded in bytes. Several tasks append to it; the connection's writer
/// empties it.
#[derive(Debug)]
pub(super) struct Outbox {
    state: Mutex<State>,
    bytes_max: usize,
    /// The share that counts its memory.
    share: Arc<Share>,
    /// Whether the session has messages for which there was no room here.
    pub(super) is_starved: AtomicBool,
    /// Wakes the writer.
    pub(super) filled: Notify,
    /// Wakes the reader if it waits for the writer.
    pub(super) emptied: Notify,
    /// Tells a writer that is stuck to end.
    pub(super) closed: Notify,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    is_closed: bool,
    /// The memory that was counted, including that of bytes which are being written.
    counted: usize,
}

impl Outbox {
    pub(super) fn new(bytes_max: usize, share: Arc<Share>) -> Self {
        Self {
            state: Mutex::default(),
            bytes_max,
            share,
            is_starved: AtomicBool::new(false),
            filled: Notify::new(),
            emptied: Notify::new(),
            closed: Notify::new(),
        }
    }

    /// Appends what `write` writes, whether there is room or not: answers to the client's packets. The reader stops
    /// before they grow without bound; see [`Outbox::is_overfull`].
    pub(super) fn answer<R>(&self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let mut state = self.state.lock();
        let (was_empty, capacity) = (state.bytes.is_empty(), state.bytes.capacity());
        let result = write(&mut state.bytes);
        self.count(&mut state, capacity);
        if was_empty && !state.bytes.is_empty() {
            self.filled.notify_one();
        }
        result
    }

    /// Appends a packet, with `packet_id` written at its offset, if there is room for it. A packet of any size has room
    /// behind fewer bytes than the bound, for it may be larger than that.
    #[inline]
    pub(super) fn offer(&self, packet: &[u8], packet_id: Option<(usize, u16)>) -> bool {
        let mut state = self.state.lock();
        let start = state.bytes.len();
        let is_scarce = || start + packet.len() > SCARCE_BYTES_MAX && self.share.is_full();
        if start > 0 && (start >= self.bytes_max || is_scarce()) {
            return false;
        }
        if state.is_closed {
            return false;
        }
        let capacity = state.bytes.capacity();
        state.bytes.extend_from_slice(packet);
        self.count(&mut state, capacity);
        if let Some((offset, packet_id)) = packet_id {
            state.bytes[start + offset..start + offset + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
        if start == 0 {
            self.filled.notify_one();
        }
        true
    }

    /// Counts how much the memory of the waiting packets has grown.
    #[inline]
    fn count(&self, state: &mut State, capacity: usize) {
        let grown = state.bytes.capacity() - capacity;
        if grown > 0 {
            state.counted += grown;
            self.share.add(grown);
        }
    }

    /// Notes that this much memory of what was [taken](Outbox::take) is free again.
    pub(super) fn freed(&self, bytes: usize) {
        if bytes > 0 {
            self.state.lock().counted -= bytes;
            self.share.subtract(bytes);
        }
    }

    /// Whether the client reads so slowly that nothing more should be read from it.
    pub(super) fn is_overfull(&self) -> bool {
        // Messages go little beyond the bound, unless one is large.
        self.state.lock().bytes.len() > 2 * self.bytes_max
    }

    /// Closes the outbox: nothing more is accepted, and the writer ends when it has written the rest.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.closed.notify_one();
        self.filled.notify_one();
    }

    /// Exchanges the waiting packets for the empty `bytes`. Returns whether the outbox is closed.
    pub(super) fn take(&self, bytes: &mut Vec<u8>) -> bool {
        debug_assert!(bytes.is_empty(), "what was taken before is written");
        let mut state = self.state.lock();
        mem::swap(&mut state.bytes, bytes);
        let is_closed = state.is_closed;
        drop(state);
        if !bytes.is_empty() {
            self.emptied.notify_one();
        }
        is_closed
    }

    /// Notes that the session has more messages.
    pub(super) fn set_starved(&self) {
        self.is_starved.store(true, Ordering::Release);
    }

    /// Notes that the session has more messages, and makes the writer ask for them now.
    pub(super) fn ask_for_more(&self) {
        self.set_starved();
        self.filled.notify_one();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.share.subtract(self.state.get_mut().counted);
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;

    #[test]
    fn messages_stop_at_the_bound_and_answers_do_not() {
        let outbox = Outbox::new(10, Memory::new(1 << 20, 100, 100).share(None));
        assert!(outbox.offer(&[1; 4], None));
        assert!(outbox.offer(&[1; 12], None), "one that is larger than the bound has room, too");
        assert!(!outbox.offer(&[2], None));
        outbox.answer(|out| out.extend_from_slice(&[3; 4]));
        assert!(!outbox.is_overfull());
        outbox.answer(|out| out.extend_from_slice(&[3; 4]));
        assert!(outbox.is_overfull());
        let mut bytes = Vec::new();
        assert!(!outbox.take(&mut bytes));
        assert_eq!(bytes.len(), 24);
        assert!(outbox.offer(&[0; 100], Some((98, 0x1234))), "an empty one takes anything");
        bytes.clear();
        outbox.close();
        assert!(!outbox.offer(&[1], None));
        assert!(outbox.take(&mut bytes));
        assert_eq!(bytes[97..], [0, 0x12, 0x34]);
    }

    #[test]
    fn memory_is_counted_until_it_is_free() {
        let memory = Memory::new(1 << 20, 100, 100);
        let outbox = Outbox::new(4 << 20, memory.share(None));
        assert!(outbox.offer(&[0; 1 << 20], None) && outbox.offer(&[0; 1000], None));
        assert!(memory.bytes() > 1 << 20, "and so it is full");
        assert!(!outbox.offer(&[0; 1000], None));
        let mut bytes = Vec::new();
        outbox.take(&mut bytes);
        let before = bytes.capacity();
        assert_eq!(memory.bytes(), before);
        bytes.clear();
        bytes.shrink_to(100);
        outbox.freed(before - bytes.capacity());
        assert_eq!(memory.bytes(), bytes.capacity());
        assert!(outbox.offer(&[0; 1000], None));
        drop(outbox);
        assert_eq!(memory.bytes(), 0);
    }
}
