//! The turns of tenants: how many calls of the service each may have under way.
//!
//! What must hold: calls of one tenant that take long, however many, leave places to the others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::service::Tenant;

/// What each tenant has.
#[derive(Clone)]
pub(super) struct Turns {
    /// Calls of a tenant at a time; its others wait.
    each: usize,
    /// A tenant is here as long as a call of it is under way or waits.
    tenants: Arc<Mutex<HashMap<Tenant, Weak<Semaphore>>>>,
}

/// A call that is under way; it must be held to its end.
pub(super) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl Turns {
    /// Turns of which each tenant has so many.
    pub(super) fn new(each: usize) -> Self {
        Self { each, tenants: Arc::default() }
    }

    /// Waits until fewer calls of a tenant are under way than it may have.
    pub(super) async fn take(&self, tenant: &Tenant) -> Turn {
        let own = self.of(tenant);
        // It is never closed.
        let permit = own.acquire_owned().await.expect("turns are open");
        Turn { _permit: permit }
    }

    fn of(&self, tenant: &Tenant) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock();
        if let Some(own) = tenants.get(tenant).and_then(Weak::upgrade) {
            return own;
        }
        tenants.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(self.each));
        tenants.insert(tenant.clone(), Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_tenant_waits_for_its_own_calls_and_for_no_others() {
        let turns = Turns::new(2);
        let mut context = Context::from_waker(Waker::noop());
        let mut take = |tenant: &Tenant| {
            let mut waiting = Box::pin(turns.take(tenant));
            match waiting.as_mut().poll(&mut context) {
                Poll::Ready(turn) => Some(turn),
                Poll::Pending => None,
            }
        };
        let (acme, other) = (Tenant::new("acme"), Tenant::new("other"));
        let (first, second) = (take(&acme).expect("a turn"), take(&acme).expect("another"));
        assert!(take(&acme).is_none());
        let of_other = take(&other).expect("it has turns of its own");
        drop(first);
        let third = take(&acme).expect("one has ended");
        drop((second, third, of_other));
        drop(take(&Tenant::new("new")));
        assert_eq!(turns.tenants.lock().len(), 1, "who has nothing under way is forgotten");
    }
}
