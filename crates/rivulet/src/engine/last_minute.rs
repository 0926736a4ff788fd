//! Latencies of the last minute: what is counted since the start, less what was counted a minute ago.
//!
//! What must hold: however often somebody asks, a tenant has a bounded number of counts from before; and a tenant of
//! which nobody has asked for long has none.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rivulet_runtime::Histogram;

use super::running::latency;
use crate::service::{LatencyStatus, Tenant};

/// What counts as the last minute.
const MINUTE: Duration = Duration::from_secs(60);

/// How far counts from before are apart at least.
const STEP: Duration = Duration::from_secs(5);

/// How long counts from before are kept if nobody asks.
const KEPT: Duration = Duration::from_secs(600);

/// Counts from before, by tenant, oldest first: one is a minute old or older, if there is such a one.
#[derive(Debug, Default)]
pub(super) struct LastMinutes(BTreeMap<Tenant, VecDeque<(Instant, Histogram)>>);

impl LastMinutes {
    /// The latencies of a tenant in the last minute, given those since the start.
    pub(super) fn of(&mut self, tenant: &Tenant, all: &Histogram) -> LatencyStatus {
        self.at(Instant::now(), tenant, all)
    }

    fn at(&mut self, now: Instant, tenant: &Tenant, all: &Histogram) -> LatencyStatus {
        let is_recent = |(at, _): &(Instant, Histogram)| now.duration_since(*at) < KEPT;
        self.0.retain(|_, before| before.back().is_some_and(is_recent));
        let before = self.0.entry(tenant.clone()).or_default();
        while before.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= MINUTE) {
            before.pop_front();
        }
        let recent = before.front().map_or_else(|| latency(all), |(_, earlier)| latency(&all.since(earlier)));
        if before.back().is_none_or(|(at, _)| now.duration_since(*at) >= STEP) {
            before.push_back((now, all.clone()));
        }
        recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slow_a_minute_ago_counts_no_more() {
        let (mut minutes, own, begin) = (LastMinutes::default(), Tenant::default(), Instant::now());
        let mut all = Histogram::default();
        all.record(1_000_000);
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert!(minutes.at(after(0), &own, &all).p99_us.is_some_and(|us| us >= 1_000_000));
        for second in 1..=300 {
            all.record(1_000);
            let p99_us = minutes.at(after(second), &own, &all).p99_us;
            assert!(p99_us.is_some_and(|us| us < 1_100), "{p99_us:?} after {second} s");
        }
        assert_eq!(minutes.0[&own].len(), 13, "those of a minute, and the one before");
        assert_eq!(minutes.at(after(400), &own, &all).p99_us, None, "nothing came since");
        assert_eq!(minutes.at(after(401), &own, &Histogram::default()).p99_us, None, "an application was dropped");
        minutes.at(after(2_000), &Tenant::new("acme"), &all);
        assert!(!minutes.0.contains_key(&own), "nobody has asked for long");
    }
}
