//! What tenants hold of the broker: their clients together, and the retained messages of their topics.
//!
//! What must hold: a tenant has at most its share of each bound, however many addresses its clients have. The rest is
//! kept for nobody: two tenants of a half each may have all of it. Clients and topics of no tenant, like those of the
//! operator, have no share of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::rights::ClientAuthorizer;

/// The part of a bound that one address or one tenant may have: `percent` of it, and at least one.
pub(super) fn share_of(bound: usize, percent: usize) -> usize {
    (bound / 100).saturating_mul(percent).saturating_add(bound % 100 * percent / 100).max(1)
}

/// What is counted of a tenant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Held {
    Connections,
    Sessions,
    Subscriptions,
    /// Bytes of clients, sessions and retained messages. A message counts for each session that it waits for.
    Memory,
    RetainedMessages,
    RetainedBytes,
}

/// How much a tenant holds.
#[derive(Debug, Default)]
pub(super) struct Tenant([AtomicUsize; 6]);

impl Tenant {
    #[inline]
    pub(super) fn add(&self, what: Held, count: usize) {
        self.0[what as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Takes back [`Tenant::add`].
    #[inline]
    pub(super) fn subtract(&self, what: Held, count: usize) {
        self.0[what as usize].fetch_sub(count, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn held(&self, what: Held) -> usize {
        self.0[what as usize].load(Ordering::Relaxed)
    }
}

/// All tenants that have held something.
#[derive(Debug)]
pub(super) struct Tenants {
    rows: HashMap<Box<str>, Arc<Tenant>>,
    /// Knows which tenants there are.
    authorizer: Option<Arc<dyn ClientAuthorizer>>,
    /// The part of each bound that a tenant may have.
    pub(super) share_percent: usize,
}

impl Tenants {
    pub(super) fn new(authorizer: Option<Arc<dyn ClientAuthorizer>>, share_percent: usize) -> Self {
        Self { rows: HashMap::new(), authorizer, share_percent }
    }

    /// Whether a tenant has its share of a bound, or has it with so much `more`.
    pub(super) fn has_share(&self, tenant: Option<&Arc<Tenant>>, what: Held, more: usize, bound: usize) -> bool {
        tenant.is_some_and(|tenant| tenant.held(what).saturating_add(more) > share_of(bound, self.share_percent))
    }

    /// The tenant of a client, by its id with the scope in front.
    pub(super) fn of_client(&mut self, client_id: &str) -> Option<Arc<Tenant>> {
        self.named(client_id.split_once('\0')?.0)
    }

    /// The tenant of a topic, by its first level.
    pub(super) fn of_topic(&mut self, topic: &[u8]) -> Option<Arc<Tenant>> {
        self.named(str::from_utf8(topic.split(|&byte| byte == b'/').next()?).ok()?)
    }

    fn named(&mut self, name: &str) -> Option<Arc<Tenant>> {
        if let Some(tenant) = self.rows.get(name) {
            return Some(tenant.clone());
        }
        self.authorizer.as_ref().filter(|authorizer| authorizer.is_tenant(name))?;
        Some(self.rows.entry(name.into()).or_default().clone())
    }
}
