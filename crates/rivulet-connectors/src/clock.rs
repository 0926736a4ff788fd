//! The machine's clock, for the engine, for connections of sources and sinks, and for load generators: time goes on
//! evenly, never back, and leaps forward where the machine's clock is set forward.
//!
//! What must hold: a reading is never earlier than one before it, for deadlines and windows by arrival would stand
//! still until the clock is there again; and time over which the clock has leapt counts as no silence.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rivulet_dataflow::{Clock, Leaps};

/// A smaller change of the clock is a correction and is ignored.
const LEAP_US_MIN: i64 = 1_000_000;

/// The machine's clock. All values share one.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

static EVEN: LazyLock<EvenClock> = LazyLock::new(|| EvenClock::new(wall_us(), steady_us()));

fn wall_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn steady_us() -> i64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    i64::try_from(BEGIN.elapsed().as_micros()).unwrap_or(i64::MAX)
}

impl Clock for SystemClock {
    fn now_us(&self) -> i64 {
        EVEN.now_us(wall_us(), steady_us())
    }

    fn steady_us(&self) -> i64 {
        steady_us()
    }

    fn leap_count(&self) -> usize {
        EVEN.leap_count.load(Ordering::Acquire)
    }

    fn leaps(&self) -> Leaps {
        EVEN.leaps.lock().clone()
    }
}

/// A clock that advances evenly, made from one that may be set at any time and one that is steady.
struct EvenClock {
    /// Its difference to the steady clock.
    offset_us: AtomicI64,
    leaps: Mutex<Leaps>,
    leap_count: AtomicUsize,
    /// Whether the machine's clock is behind it.
    is_ahead: AtomicBool,
}

impl EvenClock {
    fn new(wall_us: i64, steady_us: i64) -> Self {
        Self {
            offset_us: AtomicI64::new(wall_us - steady_us),
            leaps: Mutex::default(),
            leap_count: AtomicUsize::new(0),
            is_ahead: AtomicBool::new(false),
        }
    }

    #[inline]
    fn now_us(&self, wall_us: i64, steady_us: i64) -> i64 {
        let even_us = steady_us + self.offset_us.load(Ordering::Acquire);
        let differs_us = wall_us - even_us;
        let is_ahead = differs_us <= -LEAP_US_MIN;
        if differs_us < LEAP_US_MIN && is_ahead == self.is_ahead.load(Ordering::Relaxed) {
            return even_us;
        }
        self.now_us_of_set_clock(wall_us, steady_us)
    }

    #[cold]
    fn now_us_of_set_clock(&self, wall_us: i64, steady_us: i64) -> i64 {
        let mut leaps = self.leaps.lock();
        let even_us = steady_us + self.offset_us.load(Ordering::Acquire);
        let by = Duration::from_micros((wall_us - even_us).unsigned_abs());
        let is_ahead = wall_us - even_us <= -LEAP_US_MIN;
        if !self.is_ahead.swap(is_ahead, Ordering::Relaxed) && is_ahead {
            tracing::warn!(
                ?by,
                "the machine's clock was set back; arrival times go on from where they were\nhint: if the clock was wrong before, \
                 restart the server"
            );
        }
        if wall_us - even_us < LEAP_US_MIN {
            return even_us;
        }
        tracing::warn!(?by, "the machine's clock was set forward; nobody counts as silent for that");
        *leaps = leaps.with(even_us, wall_us);
        // The leap is stored first: a reader that sees a time after the leap sees the leap too.
        self.leap_count.store(leaps.count(), Ordering::Release);
        self.offset_us.store(wall_us - steady_us, Ordering::Release);
        wall_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_evenly_when_the_clock_is_set_back_and_leaps_when_it_is_set_forward() {
        const YEAR_US: i64 = 31_536_000_000_000;
        let clock = EvenClock::new(5 * YEAR_US, 100);
        let at = |wall_us, steady_us| clock.now_us(5 * YEAR_US + wall_us, steady_us) - 5 * YEAR_US;
        assert_eq!(at(10, 110), 10);
        // Corrected by less than a second, either way.
        assert_eq!((at(900_000, 120), at(-900_000, 130)), (20, 30));
        // Set back by a year, and forward to where it was.
        assert_eq!((at(-YEAR_US, 140), at(10 - YEAR_US, 150)), (40, 50));
        assert_eq!((at(60, 160), clock.leap_count.load(Ordering::Relaxed)), (60, 0));
        // Forward by a year, and back.
        assert_eq!((at(YEAR_US, 170), at(YEAR_US + 10, 180)), (YEAR_US, YEAR_US + 10));
        assert_eq!((at(90, 190), at(100, 200)), (YEAR_US + 20, YEAR_US + 30));
        let leaps = clock.leaps.lock().clone();
        assert_eq!((leaps.count(), leaps.passed_us(5 * YEAR_US + 60, 6 * YEAR_US + 30)), (1, 40));
    }
}
