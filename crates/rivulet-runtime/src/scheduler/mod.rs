//! Which task runs next, where, and for how long: one trait, several policies.
//!
//! A task is handed to [`Scheduler::ready`] when its inbox turns from empty to non-empty or one of its timers is due,
//! and again when its budget ended before its inbox was empty. From then until it has run, the task is *scheduled*; its
//! [`Standing`] says so. So what a scheduler keeps is bounded by the number of tasks. No scheduler locks an inbox or
//! scans all tasks: the caller reports how much waits.
//!
//! What a policy needs of the workers is in its [`Policy`]; no other code asks which policy is in use. A policy that
//! can be configured is one file here and an entry in [`Policy::ALL`]. A policy for comparison is made where it is
//! used.

mod stepped;
mod congestion;
mod owned;
mod policy;
mod shared;
mod standing;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use owned::Owned;
pub use policy::{Belonging, Policy, Surroundings, ThreadLimit};
pub use shared::{Shared, Waiting};
pub use standing::Standing;
pub(crate) use stepped::{STEPPED, Stepped};

use crate::Activation;

/// How long tasks are still handed out while the process is stopping: under load a queue never becomes empty by itself.
const DRAIN_MAX: Duration = Duration::from_secs(5);

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
}

/// How much a task may do before it returns its worker. It is checked between two batches, so a task processes at least
/// one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most events or rows.
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

    /// Whether a task that has processed this many events in this many microseconds must return its worker.
    pub fn is_spent(&self, events: usize, elapsed_us: i64) -> bool {
        events >= self.events || Duration::from_micros(elapsed_us.max(0) as u64) >= self.time
    }
}

/// Gives a worker its next task.
pub trait Scheduler: Send + Sync {
    /// Reports that a task has work: about `pending` events wait for it. However often this is called, the task is
    /// handed out once; a further call updates the number of events. While the task runs, a call changes nothing.
    fn ready(&self, task: Arc<dyn Runnable>, pending: usize);

    /// The next task for a worker, and its budget; waits until there is one. `None` if there is none and the process is
    /// stopping, or this worker was removed.
    fn next(&self, worker: usize) -> Option<(Arc<dyn Runnable>, Budget)>;

    /// The number of tasks that wait for a worker.
    fn waiting(&self) -> usize;

    /// Adds a worker and returns its number. Workers are numbered from 0.
    fn add_worker(&self) -> usize;

    /// Removes a worker that is not needed any more: no task will become ready for it.
    fn remove_worker(&self, worker: usize);

    /// Wakes every worker, after [`Closing`] has begun.
    fn wake_all(&self);

    /// Drops every waiting task, once no worker is left.
    fn clear(&self);
}

/// The order of magnitude of a number of waiting events: 0 for none, and one more with each power of two. Schedulers
/// are told when the level rises, not of each event.
pub fn level(pending: usize) -> u32 {
    usize::BITS - pending.leading_zeros()
}

/// Whether the process is stopping, and since when.
#[derive(Debug, Default)]
pub struct Closing(OnceLock<Instant>);

impl Closing {
    pub(crate) fn begin(&self) {
        self.0.get_or_init(|| Instant::now() + DRAIN_MAX);
    }

    /// Whether the process is stopping: workers finish the ready tasks and then end.
    pub fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whether the time for that is over: no task is handed out any more, even if some are ready.
    pub fn is_over(&self) -> bool {
        self.0.get().is_some_and(|end| Instant::now() >= *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task that does nothing.
    #[derive(Default)]
    pub(super) struct Idler {
        pub(super) name: String,
        pub(super) standing: Standing,
    }

    impl Runnable for Idler {
        fn name(&self) -> &str {
            &self.name
        }

        fn worker(&self) -> usize {
            0
        }

        fn standing(&self) -> &Standing {
            &self.standing
        }

        fn pending(&self) -> usize {
            0
        }

        fn run(&self, _budget: Budget) -> Activation {
            Activation::Ran(0)
        }

        fn has_work(&self) -> bool {
            false
        }
    }

    fn schedulers() -> impl Iterator<Item = (&'static Policy, Box<dyn Scheduler>)> {
        Policy::ALL.into_iter().chain([&STEPPED]).map(|policy| {
            let time_slice = Duration::from_millis(7);
            let scheduler = (policy.make)(Surroundings { closing: Arc::default(), nodes: Vec::new(), time_slice });
            assert_eq!(scheduler.add_worker(), 0, "{policy:?}");
            (policy, scheduler)
        })
    }

    #[test]
    fn a_task_that_is_ready_twice_waits_once() {
        for (policy, scheduler) in schedulers() {
            let idler = Arc::<Idler>::default();
            scheduler.ready(idler.clone(), 1);
            assert_eq!(scheduler.waiting(), 0, "{policy:?}: nobody has claimed it");
            assert!(idler.standing.claim() && !idler.standing.claim());
            for pending in [1, 2, 4, 1] {
                scheduler.ready(idler.clone(), pending);
                assert_eq!(scheduler.waiting(), 1, "{policy:?}");
            }
            let (task, _) = scheduler.next(0).expect("a task");
            assert_eq!((task.name(), scheduler.waiting()), (idler.name(), 0), "{policy:?}");
            scheduler.ready(task.clone(), 8);
            assert!(!idler.standing.claim(), "{policy:?}: it runs");
            assert_eq!(scheduler.waiting(), 0, "{policy:?}: it runs");
            idler.standing.again();
            // A report that comes before the worker returns the task counts as if the worker had made it.
            scheduler.ready(task.clone(), 8);
            scheduler.ready(task, 9);
            assert_eq!(scheduler.waiting(), 1, "{policy:?}");
            scheduler.clear();
            assert_eq!(scheduler.waiting(), 0, "{policy:?}");
        }
    }

    #[test]
    fn a_task_gets_the_time_slice_and_at_least_the_events_that_wait() {
        for (policy, scheduler) in schedulers() {
            let idler = Arc::<Idler>::default();
            for pending in [0, 1, 2, 3, 4_096, 1 << 40, usize::MAX] {
                match idler.standing.is_idle() {
                    true => assert!(idler.standing.claim()),
                    false => idler.standing.again(),
                }
                scheduler.ready(idler.clone(), pending);
                let (_, budget) = scheduler.next(0).expect("a task");
                assert!(budget.events > pending || budget.events == usize::MAX, "{policy:?}: {budget:?} for {pending}");
                let time = if *policy == STEPPED { Duration::MAX } else { Duration::from_millis(7) };
                assert_eq!(budget.time, time, "{policy:?}");
            }
        }
    }

    #[test]
    fn a_budget_is_spent_by_events_or_by_time() {
        let budget = Budget { events: 10, time: Duration::from_micros(5) };
        let spent = [(9, 4), (10, 4), (9, 5), (0, -3)].map(|(events, us)| budget.is_spent(events, us));
        assert_eq!(spent, [false, true, true, false]);
        assert!(!Budget::ENDLESS.is_spent(1 << 40, i64::MAX));
        assert!(Budget::of_time(Duration::ZERO).is_spent(0, 0), "one batch is processed all the same");
    }

    #[test]
    fn the_order_of_magnitude_rises_at_each_power_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 7, 8, usize::MAX].map(level), [0, 1, 2, 2, 3, 3, 4, usize::BITS]);
        let rises = (1..=65_536_usize).filter(|&pending| level(pending) > level(pending - 1));
        assert!(rises.eq((0..=16).map(|exponent| 1 << exponent)));
    }
}
