//! What a scheduler hands out, for how long, and what came of it.

use std::time::Duration;

use super::Standing;

/// A task that a scheduler hands out: of a group, or of a big query.
pub trait Runnable: Send + Sync {
    /// The name of the application or query, for messages.
    fn name(&self) -> &str;

    /// The worker that the task belongs to, where tasks belong to workers.
    fn worker(&self) -> usize;

    /// Whether the task waits for a worker or runs.
    fn standing(&self) -> &Standing;

    /// About how many events or rows wait for the task: a number that is read without a lock.
    fn pending(&self) -> usize;

    /// Works until nothing waits or the budget is spent. One worker at a time calls it; a second caller waits.
    fn run(&self, budget: Budget) -> Activation;

    /// Whether the task could do anything now. Asked after it has run; later work schedules the task.
    fn has_work(&self) -> bool;

    /// Where the task stands in its dataflow and what its rows cost, for policies that ask; takes no lock. Tasks of
    /// groups have all the same rank.
    fn rank(&self) -> Rank {
        Rank::default()
    }

    /// Whether it is noted when the task becomes due, which reads the clock for each activation. Tasks of groups have
    /// no figures that need it.
    fn is_timed(&self) -> bool {
        false
    }
}

/// Where a task stands in its dataflow, and what its rows have cost so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    /// The number of stages before it, on the longest way from a source.
    pub depth: usize,
    /// Time for each row that it took, in nanoseconds.
    pub ns_per_row: f64,
    /// How many rows it gave for each that it took.
    pub selectivity: f64,
}

impl Default for Rank {
    /// Of a task of which nothing is known: it changes no number of rows.
    fn default() -> Self {
        Self { depth: 0, ns_per_row: 1.0, selectivity: 1.0 }
    }
}

/// How much a task may do before it returns its worker. Of what waits for it, it takes no more events than these, but
/// at least one. Of a source it takes about so many rows: a source is asked for these and may answer with more, such as
/// a block of a file. The time is checked between two batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most events or rows. Of an event that gives several rows all are taken.
    pub events: usize,
    /// The most time.
    pub time: Duration,
}

impl Budget {
    /// Without any bound.
    pub const ENDLESS: Self = Self::of_time(Duration::MAX);

    /// Any number of events within a time slice.
    pub const fn of_time(time: Duration) -> Self {
        Self { events: usize::MAX, time }
    }

    /// How many more events a task may take that has taken so many.
    pub fn left(&self, events: usize) -> usize {
        self.events.saturating_sub(events).max(1)
    }

    /// Whether a task that has processed this many events in this many microseconds must return its worker.
    pub fn is_spent(&self, events: usize, elapsed_us: i64) -> bool {
        events >= self.events || Duration::from_micros(elapsed_us.max(0) as u64) >= self.time
    }
}

/// The outcome of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The task processed this many events, and no more waited.
    Ran(usize),
    /// The budget ended before the inbox was empty.
    Yielded(usize),
    /// The sink has no room: events stay in the inbox.
    Blocked,
}

/// The order of magnitude of a number of waiting events: 0 for none, and one more with each power of two. Schedulers
/// are told when the level rises, not of each event.
pub fn level(pending: usize) -> u32 {
    usize::BITS - pending.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_by_events_or_by_time() {
        let budget = Budget { events: 10, time: Duration::from_micros(5) };
        let spent = [(9, 4), (10, 4), (9, 5), (0, -3)].map(|(events, us)| budget.is_spent(events, us));
        assert_eq!(spent, [false, true, true, false]);
        assert!(!Budget::ENDLESS.is_spent(1 << 40, i64::MAX));
        assert!(Budget::of_time(Duration::ZERO).is_spent(0, 0), "one batch is processed all the same");
        assert_eq!([0, 7, 10, 99].map(|events| budget.left(events)), [10, 3, 1, 1]);
    }

    #[test]
    fn the_order_of_magnitude_rises_at_each_power_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 7, 8, usize::MAX].map(level), [0, 1, 2, 2, 3, 3, 4, usize::BITS]);
        let rises = (1..=65_536_usize).filter(|&pending| level(pending) > level(pending - 1));
        assert!(rises.eq((0..=16).map(|exponent| 1 << exponent)));
    }
}
