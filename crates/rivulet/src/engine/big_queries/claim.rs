//! Code that changes a query claims its name, for as long as it takes to open a source. Other queries can be changed
//! meanwhile.

use std::time::{Duration, Instant};

use super::BigQueries;
use crate::service::{ErrorKind, FullName, ServiceError};

/// How long a statement waits for another one that changes the same query.
const CLAIM_MAX: Duration = Duration::from_secs(10);

/// The name of a query that no other code changes meanwhile.
pub(super) struct Claim<'a> {
    of: &'a BigQueries,
    name: FullName,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.of.claimed.lock().remove(&self.name);
        self.of.released.notify_all();
    }
}

impl BigQueries {
    /// Claims a name. Waits for other claims of it at most for `limit`.
    pub(super) fn claim_within(&self, name: &FullName, limit: Duration) -> Option<Claim<'_>> {
        let deadline = Instant::now() + limit;
        let mut claimed = self.claimed.lock();
        while claimed.contains(name) {
            if self.released.wait_until(&mut claimed, deadline).timed_out() && claimed.contains(name) {
                return None;
            }
        }
        claimed.insert(name.clone());
        Some(Claim { of: self, name: name.clone() })
    }

    /// The same for a statement.
    pub(super) fn claim(&self, name: &FullName) -> Result<Claim<'_>, ServiceError> {
        self.claim_within(name, CLAIM_MAX).ok_or_else(|| {
            let message = format!("the query '{name}' is being changed: by another statement, or its tasks move");
            ServiceError::new(ErrorKind::Conflict, message)
                .with_hint("that may wait for a file, a broker or a server that does not answer; try again in a minute")
        })
    }

    /// Waits until no query is being changed, at most for `limit`.
    pub(super) fn wait_unclaimed(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut claimed = self.claimed.lock();
        while !claimed.is_empty() && !self.released.wait_until(&mut claimed, deadline).timed_out() {}
    }
}
