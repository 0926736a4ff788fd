//! Time, as a trait, so that the same engine runs on the machine's clock and in a simulation.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

/// A clock, in microseconds since the Unix epoch.
///
/// The host reads it once for each activation of a task and passes the time down in the [`Context`](crate::Context);
/// operators never see the clock itself.
pub trait Clock: Send + Sync {
    /// The present, in microseconds since the Unix epoch. It never goes back. It leaps when the machine's clock is set
    /// forward.
    fn now_us(&self) -> i64;

    /// Microseconds since some moment, for durations. It does not change its pace when the machine's clock is set. On a
    /// clock that is never set it equals [`Clock::now_us`].
    fn steady_us(&self) -> i64 {
        self.now_us()
    }

    /// How often the clock has leapt. A reader that has seen a time behind a leap sees the leap counted here.
    fn leap_count(&self) -> usize {
        0
    }

    /// The last leaps.
    fn leaps(&self) -> Leaps {
        Leaps::default()
    }
}

/// The leaps of a clock: stretches of time that it skipped when it was set forward. They did not pass, so they are not
/// part of a silence.
#[derive(Clone, Debug, Default)]
pub struct Leaps {
    /// Begin and end of each leap, in order; the oldest ones may be forgotten.
    last: Option<Arc<[(i64, i64)]>>,
    count: usize,
}

impl Leaps {
    /// How many leaps are kept. A silence with more leaps than this counts the forgotten ones as time that passed.
    const KEPT_MAX: usize = 16;

    /// These leaps and a later one, in microseconds since the Unix epoch.
    #[must_use]
    pub fn with(&self, from_us: i64, to_us: i64) -> Self {
        let known = self.all();
        let kept = &known[known.len().saturating_sub(Self::KEPT_MAX - 1)..];
        let last = kept.iter().copied().chain([(from_us, to_us)]).collect();
        Self { last: Some(last), count: self.count + 1 }
    }

    /// How many leaps there were.
    pub fn count(&self) -> usize {
        self.count
    }

    fn all(&self) -> &[(i64, i64)] {
        self.last.as_deref().unwrap_or_default()
    }

    /// How many microseconds passed between two times on the clock; negative if the second is earlier.
    pub fn passed_us(&self, from_us: i64, to_us: i64) -> i64 {
        let leapt =
            |&(leap_from_us, leap_to_us): &(i64, i64)| (to_us.min(leap_to_us) - from_us.max(leap_from_us)).max(0);
        to_us.saturating_sub(from_us).saturating_sub(self.all().iter().map(leapt).sum())
    }

    /// What the clock shows `by_us` microseconds after it showed `from_us`, given the leaps so far.
    pub fn after_us(&self, from_us: i64, by_us: i64) -> i64 {
        self.all().iter().fold(from_us.saturating_add(by_us), |at_us, &(leap_from_us, leap_to_us)| {
            match from_us < leap_to_us && at_us > leap_from_us {
                true => at_us.saturating_add(leap_to_us - leap_from_us.max(from_us)),
                false => at_us,
            }
        })
    }
}

/// A clock that moves only when told, for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_us: AtomicI64,
    leaps: Mutex<Leaps>,
}

impl ManualClock {
    /// A clock that shows `now_us`.
    pub fn new(now_us: i64) -> Self {
        Self { now_us: AtomicI64::new(now_us), leaps: Mutex::default() }
    }

    /// Sets the clock, as if the time up to then had passed.
    pub fn set_us(&self, now_us: i64) {
        self.now_us.store(now_us, Ordering::SeqCst);
    }

    /// Moves the clock forward by `by_us`.
    pub fn advance_us(&self, by_us: i64) {
        self.now_us.fetch_add(by_us, Ordering::SeqCst);
    }

    /// Sets the clock forward by `by_us` without time passing.
    pub fn leap_us(&self, by_us: i64) {
        let mut leaps = self.leaps.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let from_us = self.now_us.fetch_add(by_us, Ordering::SeqCst);
        *leaps = leaps.with(from_us, from_us + by_us);
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> i64 {
        self.now_us.load(Ordering::SeqCst)
    }

    fn steady_us(&self) -> i64 {
        self.leaps().passed_us(0, self.now_us())
    }

    fn leap_count(&self) -> usize {
        self.leaps().count()
    }

    fn leaps(&self) -> Leaps {
        self.leaps.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_clock_leaps_over_has_not_passed() {
        let leaps = Leaps::default().with(100, 1_100).with(1_200, 1_250);
        for (from_us, to_us, passed_us) in
            [(0, 100, 100), (0, 1_100, 100), (90, 1_110, 20), (1_100, 1_200, 100), (0, 1_300, 250), (1_260, 1_300, 40)]
        {
            assert_eq!(leaps.passed_us(from_us, to_us), passed_us, "{from_us} to {to_us}");
            // A time within a leap is never shown; the end of a leap is the moment at which it begins.
            let after_us = leaps.after_us(from_us, passed_us);
            assert!(after_us == to_us || leaps.passed_us(after_us, to_us) == 0, "{from_us} to {to_us}: {after_us}");
        }
        assert_eq!(leaps.passed_us(50, 20), -30);
        assert_eq!(leaps.after_us(0, i64::MAX), i64::MAX);
        let many = (0..100).fold(Leaps::default(), |leaps, number| leaps.with(10 * number, 10 * number + 5));
        assert_eq!((many.count(), many.all().len()), (100, Leaps::KEPT_MAX));
        let clock = ManualClock::new(50);
        clock.leap_us(1_000);
        clock.advance_us(7);
        assert_eq!((clock.now_us(), clock.steady_us(), clock.leap_count()), (1_057, 57, 1));
    }
}
