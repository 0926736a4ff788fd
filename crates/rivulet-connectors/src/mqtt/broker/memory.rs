//! The memory that clients hold: in total, and for each of their addresses.
//!
//! The total counts a message once, however many sessions it waits for; an address counts it for each of its sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that all clients and the retained messages hold, and their bound.
#[derive(Debug)]
pub(super) struct Memory {
    bytes: AtomicUsize,
    bytes_max: AtomicUsize,
    /// The most that the clients of one address may hold.
    share_max: AtomicUsize,
}

impl Memory {
    pub(super) fn new(bytes_max: usize, address_share_percent: usize) -> Arc<Self> {
        let memory =
            Self { bytes: AtomicUsize::new(0), bytes_max: AtomicUsize::new(0), share_max: AtomicUsize::new(0) };
        memory.set_bounds(bytes_max, address_share_percent);
        Arc::new(memory)
    }

    pub(super) fn set_bounds(&self, bytes_max: usize, address_share_percent: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.share_max.store(share_of(bytes_max, address_share_percent), Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes() > self.bytes_max.load(Ordering::Relaxed)
    }

    /// The share of one address, whose clients hold nothing yet.
    pub(super) fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share { memory: self.clone(), bytes: AtomicUsize::new(0) })
    }
}

/// The part of a bound that one address may have: `percent` of it, and at least one.
pub(super) fn share_of(bound: usize, percent: usize) -> usize {
    (bound / 100).saturating_mul(percent).saturating_add(bound % 100 * percent / 100).max(1)
}

/// What the clients of one address hold, in bytes.
#[derive(Debug)]
pub(super) struct Share {
    memory: Arc<Memory>,
    bytes: AtomicUsize,
}

impl Share {
    /// Counts bytes for the address only, because the total has them already.
    pub(super) fn hold(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back [`Share::hold`].
    pub(super) fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts bytes for the address and in the total.
    pub(super) fn add(&self, bytes: usize) {
        self.hold(bytes);
        self.memory.add(bytes);
    }

    /// Takes back [`Share::add`].
    pub(super) fn subtract(&self, bytes: usize) {
        self.release(bytes);
        self.memory.subtract(bytes);
    }

    /// Whether the clients of this address may hold no more.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.memory.is_full() || self.bytes.load(Ordering::Relaxed) > self.memory.share_max.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_all_have_the_total() {
        let memory = Memory::new(1000, 50);
        let (one, other) = (memory.share(), memory.share());
        one.add(500);
        assert!(!one.is_full());
        one.hold(1);
        assert!(one.is_full() && !other.is_full() && memory.bytes() == 500);
        other.add(501);
        assert!(memory.is_full() && other.is_full());
        other.subtract(501);
        one.release(1);
        assert!(!one.is_full() && !other.is_full());
        assert_eq!([share_of(1, 50), share_of(150, 50), share_of(usize::MAX, 100)], [1, 75, usize::MAX]);
    }
}
