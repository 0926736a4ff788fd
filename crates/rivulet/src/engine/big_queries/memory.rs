//! What is done when the state of big queries has used up the allowed memory: the query with the most state is ended,
//! with the reason, before the operating system ends the process and everything in it. Its last checkpoint, if any are
//! made, is kept, so RESUME QUERY continues from there once there is more memory.
//!
//! What must hold: no query is ended for the memory of others. So only a query that uses a good part of the bound
//! itself is ended, and after that a minute passes, in which its memory is given back, before the next one is. A
//! SELECT, which only serves a reader, is ended before any query that is to stay.

use std::time::{Duration, Instant};

use super::{BigQueries, OneQuery, close};
use crate::service::{QueryState, Tenant};

/// A query with less than this part of the bound is not the cause.
const SHARE_MIN: u64 = 8;

/// A SELECT with less than this part of the bound is not worth ending.
const SELECT_SHARE_MIN: u64 = 64;

/// How long it may take until the memory of a SELECT is given back. It is short, for there may be several, and the
/// cause may be a query that keeps growing.
const SELECT_GIVEN_BACK_MAX: Duration = Duration::from_secs(5);

/// How long it may take until the operating system has the memory of an ended query back.
const GIVEN_BACK_MAX: Duration = Duration::from_secs(60);

/// How long a change of the query by other code may delay this check.
const CLAIM_MAX: Duration = Duration::from_millis(500);

/// Until when the memory of the query that was ended last is expected back.
#[derive(Debug, Default)]
pub(super) struct Ended(Option<Instant>);

impl Ended {
    fn wait(&mut self, given_back_max: Duration) {
        self.0 = Some(Instant::now() + given_back_max);
    }
}

impl OneQuery {
    /// The memory of its operators, if it runs or is paused.
    fn state_bytes(&self) -> u64 {
        let running =
            self.life.flow().filter(|_| matches!(self.life.state(), QueryState::Running | QueryState::Paused));
        running.map_or(0, |running| running.report().state_bytes as u64)
    }
}

impl BigQueries {
    /// The state of the big queries of some tenants, in bytes.
    pub(in crate::engine) fn state_bytes(&self, is_asked: impl Fn(&Tenant) -> bool) -> Vec<(Tenant, u64)> {
        let asked = self.that(|_| true).into_iter().filter(|(name, _)| is_asked(&name.tenant));
        asked.map(|(name, one)| (name.tenant, one.state_bytes())).collect()
    }

    /// Ends the big query with the most state if memory is used up and that query is the cause.
    pub(super) fn keep_memory(&self, ended: &mut Ended) {
        let Some(bytes_max) = self.memory.exceeded() else { return };
        if ended.0.is_some_and(|until| Instant::now() < until) {
            return;
        }
        if self.end_select(bytes_max) {
            return ended.wait(SELECT_GIVEN_BACK_MAX);
        }
        let queries = self.that(|one| one.life.flow().is_some());
        let largest = queries.into_iter().map(|(name, one)| (one.state_bytes(), name, one)).max_by_key(|one| one.0);
        let Some((bytes, name, one)) = largest.filter(|(bytes, ..)| *bytes >= bytes_max / SHARE_MIN) else { return };
        // The query may have been dropped or started anew meanwhile.
        let Some(_claim) = self.claim_within(&name, CLAIM_MAX) else { return };
        if !self.known.lock().query(&name).is_some_and(|now| now.life.has_flow_of(&one.life)) {
            return;
        }
        let mib = |bytes: u64| bytes >> 20;
        let goes_on = match one.life.flow().is_some_and(|running| running.has_checkpoints()) {
            true => "and resume it",
            false => "and resume it, which begins anew, for it has no checkpoint",
        };
        let reason = format!(
            "its state has {} MiB, and the memory that there may be (memory.bytes_max, {} MiB) is used up; raise that, or have it keep less (a window, or WITH (state_ttl => ...)), \
             {goes_on}",
            mib(bytes),
            mib(bytes_max)
        );
        tracing::error!(query = name.in_log(), "a query is ended: {reason}");
        if let Err(error) = self.catalog.set_statement_failure(one.number, Some(&reason)) {
            tracing::warn!(query = name.in_log(), "after a restart the query will run again: {error}");
        }
        self.known.lock().change(&name, |now| now.life.fail(reason));
        if let Some(running) = one.life.into_flow() {
            running.cancel();
            close(running);
        }
        ended.wait(GIVEN_BACK_MAX);
    }

    /// Ends the SELECT with the most state. Returns whether there is one that is worth it.
    fn end_select(&self, bytes_max: u64) -> bool {
        let selects = self.selects.lock();
        let largest = selects.iter().map(|one| (one.state_bytes(), one)).max_by_key(|one| one.0);
        let Some((bytes, one)) = largest.filter(|(bytes, _)| *bytes >= bytes_max / SELECT_SHARE_MIN) else {
            return false;
        };
        one.end(&format!(
            "its state has {} MiB, and the memory that there may be (memory.bytes_max, {} MiB) is used up; have it keep \
             less, for example by a window, or raise that",
            bytes >> 20,
            bytes_max >> 20
        ));
        true
    }
}
