//! The memory that clients hold: in total, for each of their tenants, and for each of their addresses.
//!
//! The total counts a message once, however many sessions it waits for; an address counts it for each of its sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tenants::{Held, Tenant, share_of};

/// The buffer that every connection may have for its CONNECT.
const LOGIN_BYTES_FREE: usize = 8 << 10;

/// This part of what clients may have is what connections without a login may have beside it.
const LOGIN_PART: usize = 16;

/// The bytes that all clients and the retained messages hold, and their bound.
#[derive(Debug)]
pub(super) struct Memory {
    bytes: AtomicUsize,
    bytes_max: AtomicUsize,
    /// The most that the clients of one address may hold.
    share_max: AtomicUsize,
    /// The most that one tenant may hold.
    tenant_max: AtomicUsize,
}

impl Memory {
    pub(super) fn new(bytes_max: usize, address_share_percent: usize, tenant_share_percent: usize) -> Arc<Self> {
        let [bytes, zero, share_max, tenant_max] = [(); 4].map(|()| AtomicUsize::new(0));
        let memory = Self { bytes, bytes_max: zero, share_max, tenant_max };
        memory.set_bounds(bytes_max, address_share_percent, tenant_share_percent);
        Arc::new(memory)
    }

    pub(super) fn set_bounds(&self, bytes_max: usize, address_share_percent: usize, tenant_share_percent: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.share_max.store(share_of(bytes_max, address_share_percent), Ordering::Relaxed);
        self.tenant_max.store(share_of(bytes_max, tenant_share_percent), Ordering::Relaxed);
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

    /// Whether a tenant may hold no more.
    #[inline]
    pub(super) fn is_full_for(&self, tenant: Option<&Arc<Tenant>>) -> bool {
        tenant.is_some_and(|tenant| tenant.held(Held::Memory) > self.tenant_max.load(Ordering::Relaxed))
    }

    /// The share of one address, whose clients are of this tenant and hold nothing yet.
    pub(super) fn share(self: &Arc<Self>, tenant: Option<Arc<Tenant>>) -> Arc<Share> {
        Arc::new(Share { memory: self.clone(), tenant, bytes: AtomicUsize::new(0) })
    }
}

/// What the buffers of connections without a login hold, beyond what each of them needs for an ordinary CONNECT. It has
/// a bound of its own, so that strangers take nothing from clients.
#[derive(Debug, Default)]
pub(super) struct LoginMemory {
    bytes: AtomicUsize,
    bytes_max: AtomicUsize,
}

/// The part of [`LoginMemory`] of one connection.
pub(super) struct LoginShare<'a> {
    all: &'a LoginMemory,
    bytes: usize,
}

impl LoginMemory {
    /// Takes its part of the memory that clients may have: so many bytes.
    pub(super) fn set_bound(&self, memory_bytes_max: usize) {
        self.bytes_max.store(memory_bytes_max / LOGIN_PART, Ordering::Relaxed);
    }

    /// The part of a connection that has nothing yet.
    pub(super) fn share(&self) -> LoginShare<'_> {
        LoginShare { all: self, bytes: 0 }
    }
}

impl LoginShare<'_> {
    /// Counts a buffer that has become so large. Returns whether all of them may hold so much.
    pub(super) fn grow(&mut self, buffer_bytes: usize) -> bool {
        let grown = buffer_bytes.saturating_sub(LOGIN_BYTES_FREE).saturating_sub(self.bytes);
        self.bytes += grown;
        let LoginMemory { bytes, bytes_max } = self.all;
        grown == 0 || bytes.fetch_add(grown, Ordering::Relaxed) + grown <= bytes_max.load(Ordering::Relaxed)
    }
}

impl Drop for LoginShare<'_> {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What the clients of one address hold, in bytes. They are of one tenant, if of any.
#[derive(Debug)]
pub(super) struct Share {
    memory: Arc<Memory>,
    tenant: Option<Arc<Tenant>>,
    bytes: AtomicUsize,
}

impl Share {
    /// Counts bytes for the address and the tenant only, because the total has them already.
    pub(super) fn hold(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tenant.iter().for_each(|tenant| tenant.add(Held::Memory, bytes));
    }

    /// Takes back [`Share::hold`].
    pub(super) fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tenant.iter().for_each(|tenant| tenant.subtract(Held::Memory, bytes));
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
        let memory = &self.memory;
        memory.is_full()
            || self.bytes.load(Ordering::Relaxed) > memory.share_max.load(Ordering::Relaxed)
            || memory.is_full_for(self.tenant.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_a_login_hold_little_together() {
        let all = LoginMemory::default();
        let (mut one, mut other) = (all.share(), all.share());
        assert!(one.grow(LOGIN_BYTES_FREE) && !one.grow(LOGIN_BYTES_FREE + 1));
        all.set_bound(LOGIN_PART * 1000);
        assert!(one.grow(LOGIN_BYTES_FREE + 600) && !other.grow(LOGIN_BYTES_FREE + 600));
        drop(one);
        assert!(other.grow(LOGIN_BYTES_FREE + 700));
        drop(other);
        assert_eq!(all.bytes.into_inner(), 0);
    }

    #[test]
    fn an_address_has_its_share_and_all_have_the_total() {
        let memory = Memory::new(1000, 50, 60);
        let (one, other) = (memory.share(None), memory.share(None));
        one.add(500);
        assert!(!one.is_full());
        one.hold(1);
        assert!(one.is_full() && !other.is_full() && memory.bytes() == 500);
        other.add(501);
        assert!(memory.is_full() && other.is_full());
        other.subtract(501);
        one.release(1);
        assert!(!one.is_full() && !other.is_full());
        let tenant = Arc::<Tenant>::default();
        let (third, fourth) = (memory.share(Some(tenant.clone())), memory.share(Some(tenant.clone())));
        third.add(400);
        fourth.hold(200);
        assert!(!third.is_full() && !fourth.is_full());
        fourth.hold(1);
        assert!(third.is_full() && fourth.is_full() && !one.is_full(), "a tenant has its share with all addresses");
        third.subtract(400);
        fourth.release(201);
        assert!(!third.is_full() && tenant.held(Held::Memory) == 0);
        assert_eq!([share_of(1, 50), share_of(150, 50), share_of(usize::MAX, 100)], [1, 75, usize::MAX]);
    }
}
