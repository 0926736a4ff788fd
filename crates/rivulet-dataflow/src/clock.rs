//! Time, as a trait, so that the same engine runs on the machine's clock and in a simulation.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

/// Microseconds since the Unix epoch.
///
/// The host reads it once for each activation of a task and passes it down in the [`Context`](crate::Context);
/// operators never see the clock itself.
pub trait Clock: Send + Sync {
    /// The present, in microseconds since the Unix epoch. It never goes back; it leaps when the machine's clock is set
    /// forward.
    fn now_us(&self) -> i64;

    /// Microseconds since some moment, for durations: goes on evenly when the machine's clock is set. The same as
    /// [`Clock::now_us`] on a clock that nobody sets.
    fn steady_us(&self) -> i64 {
        self.now_us()
    }

    /// How often the clock has leapt. Whoever has seen a time from behind a leap sees it here.
    fn leap_count(&self) -> usize {
        0
    }

    /// Its last leaps.
    fn leaps(&self) -> Leaps {
        Leaps::default()
    }
}

/// The leaps of a clock: times that it has never shown, because it was set forward. They did not pass, so they are no
/// part of a silence.
#[derive(Clone, Debug, Default)]
pub struct Leaps {
    /// From where to where, in order; not all there were.
    last: Option<Arc<[(i64, i64)]>>,
    count: usize,
}

impl Leaps {
    /// How many leaps are kept: more of them within one silence are not told from time that passed.
    const KEPT_MAX: usize = 16;

    /// These and one more, later than all of them, in microseconds since the Unix epoch.
    #[must_use]
    pub fn with(&self, from_us: i64, to_us: i64) -> Self {
        let known = self.all();
        let kept = &known[known.len().saturating_sub(Self::KEPT_MAX - 1)..];
        let last = kept.iter().copied().chain([(from_us, to_us)]).collect();
        Self { last: Some(last), count: self.count + 1 }
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.count
    }

    fn all(&self) -> &[(i64, i64)] {
        self.last.as_deref().unwrap_or_default()
    }

    /// How many microseconds passed from one time on the clock to another; less than 0 if that is earlier.
    pub fn passed_us(&self, from_us: i64, to_us: i64) -> i64 {
        let leapt =
            |&(leap_from_us, leap_to_us): &(i64, i64)| (to_us.min(leap_to_us) - from_us.max(leap_from_us)).max(0);
        to_us.saturating_sub(from_us).saturating_sub(self.all().iter().map(leapt).sum())
    }

    /// What the clock shows when `by_us` microseconds have passed since it showed `from_us`, as far as it has leapt
    /// yet.
    pub fn after_us(&self, from_us: i64, by_us: i64) -> i64 {
        self.all().iter().fold(from_us.saturating_add(by_us), |at_us, &(leap_from_us, leap_to_us)| {
            match from_us < leap_to_us && at_us > leap_from_us {
                true => at_us.saturating_add(leap_to_us - leap_from_us.max(from_us)),
                false => at_us,
            }
        })
    }
}

/// A clock that stands still until it is told otherwise; for tests and simulation.
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

    /// Sets the clock, as if the time until then had passed.
    pub fn set_us(&self, now_us: i64) {
        self.now_us.store(now_us, Ordering::SeqCst);
    }

    /// Moves the clock forward by `by_us`.
    pub fn advance_us(&self, by_us: i64) {
        self.now_us.fetch_add(by_us, Ordering::SeqCst);
    }

    /// Sets the clock forward by `by_us`, in which no time passes.
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
            // A moment within a leap is never shown; the end of one is the moment in which it begins.
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
