//! Keeps the sources of a query near each other in event time.
//!
//! Where rows of two streams meet, the rows of the stream that is ahead are kept until the other stream has come as
//! far. Bounded sources read history as fast as they can, so a source with fewer rows in an hour would run hours ahead:
//! it waits. Unbounded sources follow the present and wait for nothing. Partitions of one source do not wait for each
//! other, because their files may be of different days.
//!
//! What must hold: the source that is furthest behind never waits, so one source can always go on.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// How many of its own batches a task may be ahead. With fewer, tasks would wait for each other's turn.
const BATCHES_AHEAD_MAX: i64 = 4;

/// The time that a task may always be ahead.
const AHEAD_US_MIN: i64 = 1_000_000;

/// The task waits for nothing, and nothing waits for it.
const ASIDE: i64 = i64::MAX;

/// How far each task that reads sources has come.
pub(super) struct Alignment {
    /// For each source the indices of its tasks.
    sources: Vec<Range<usize>>,
    /// The event time that each task has reached.
    times_us: Vec<AtomicI64>,
    /// Whether a task was told to wait since waiting tasks were last woken.
    is_waited: AtomicBool,
}

impl Alignment {
    /// An alignment of sources with this many tasks each. A task that has not read yet counts as furthest behind: only
    /// its first rows tell whether it has event times at all.
    pub(super) fn new(tasks: impl IntoIterator<Item = usize>) -> Self {
        let mut places = 0;
        let sources: Vec<Range<usize>> = tasks
            .into_iter()
            .map(|tasks| {
                let first = places;
                places += tasks;
                first..places
            })
            .collect();
        let times_us = (0..places).map(|_| AtomicI64::new(i64::MIN)).collect();
        Self { sources, times_us, is_waited: AtomicBool::new(false) }
    }

    /// A task has reached `time_us`; `None` if nothing waits for it: it has ended, is idle, or is unbounded. Returns
    /// whether waiting tasks should check again.
    #[must_use]
    pub(super) fn reached(&self, place: usize, time_us: Option<i64>) -> bool {
        let time_us = time_us.unwrap_or(ASIDE);
        let before_us = self.times_us[place].swap(time_us, Ordering::SeqCst);
        before_us != time_us && self.is_waited.swap(false, Ordering::SeqCst)
    }

    /// Whether a task whose last batch covered `batch_us` may read on. If not, [`Alignment::reached`] says when to ask
    /// again.
    pub(super) fn may_read(&self, place: usize, batch_us: i64) -> bool {
        if self.is_near(place, batch_us) {
            return true;
        }
        self.is_waited.store(true, Ordering::SeqCst);
        // The others may have come nearer before they could see that a task waits.
        self.is_near(place, batch_us)
    }

    fn is_near(&self, place: usize, batch_us: i64) -> bool {
        let time_us = |place: usize| self.times_us[place].load(Ordering::SeqCst);
        let others = self.sources.iter().filter(|places| !places.contains(&place));
        let reached_us =
            others.filter_map(|places| places.clone().map(time_us).filter(|&time_us| time_us != ASIDE).max());
        let (own_us, Some(behind_us)) = (time_us(place), reached_us.min()) else { return true };
        let ahead_us_max = batch_us.saturating_mul(BATCHES_AHEAD_MAX).max(AHEAD_US_MIN);
        own_us == ASIDE || own_us.saturating_sub(behind_us) <= ahead_us_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_far_ahead_waits_until_the_others_have_come_nearer() {
        let alignment = Alignment::new([1, 1, 1]);
        assert!((0..3).all(|place| alignment.may_read(place, 0)), "nothing is known yet");
        let _ = alignment.reached(0, Some(10_000_000));
        assert!(!alignment.may_read(0, 2_000_000), "the others have not read yet");
        let _ = alignment.reached(1, Some(3_000_000));
        assert!(!alignment.reached(2, None), "nobody was told to wait since");
        assert!(!alignment.may_read(0, 1_000_000) && alignment.may_read(0, 2_000_000));
        assert!(alignment.may_read(1, 0), "the one that is furthest behind never waits");
        assert!(alignment.reached(1, Some(6_000_000)), "the first one was told to wait");
        assert!(alignment.may_read(0, 1_000_000));
        let _ = alignment.reached(0, Some(20_000_000));
        assert!(!alignment.may_read(0, 1_000_000));
        let _ = alignment.reached(1, None);
        assert!(alignment.may_read(0, 0), "nobody waits for one that has ended");
    }

    #[test]
    fn tasks_of_one_source_do_not_wait_for_each_other() {
        let alignment = Alignment::new([2, 1]);
        let _ = alignment.reached(0, Some(0));
        let _ = alignment.reached(1, Some(90_000_000));
        let _ = alignment.reached(2, Some(90_000_000));
        assert!(alignment.may_read(1, 0));
        // The foremost task of a source counts.
        let _ = alignment.reached(2, Some(80_000_000));
        assert!(alignment.may_read(2, 0) && alignment.may_read(0, 0) && !alignment.may_read(1, 0));
    }

    #[test]
    fn the_first_time_may_be_the_earliest_there_is() {
        let alignment = Alignment::new([1, 1]);
        let _ = alignment.reached(0, Some(i64::MIN));
        let _ = alignment.reached(1, Some(i64::MAX - 1));
        assert!(alignment.may_read(0, i64::MAX) && !alignment.may_read(1, 0));
    }
}
