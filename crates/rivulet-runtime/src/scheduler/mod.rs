//! Which task runs next, where, and for how long: one trait, several policies.
//!
//! A task is handed to [`Scheduler::ready`] when its inbox turns from empty to non-empty or one of its timers is due,
//! and again when its budget ended before its inbox was empty. From then until it has run, the task is *scheduled*; its
//! [`Standing`] says so. So what a scheduler keeps is bounded by the number of tasks. No scheduler locks an inbox or
//! scans all tasks: the caller reports how much waits.
//!
//! What a policy needs of the workers is in its [`Policy`], and what it knows of a task is its [`Rank`]; no other code
//! asks which policy is in use. A policy that can be configured is one file here and an entry in [`Policy::ALL`]. A
//! policy for comparison is made outside of the runtime.

mod standing;
mod runnable;
mod share;
mod lines;
mod consume;
mod policy;
mod shared;
mod owned;
mod congestion;
mod stepped;

use std::str::FromStr;

pub use consume::{Budgets, Consume};
pub use owned::Owned;
pub use policy::{Belonging, Closing, Policy, Scheduler, SchedulerSetup};
pub use runnable::{Activation, Budget, Rank, Runnable, level};
pub use share::{Share, WEIGHT, WEIGHT_MAX};
pub use shared::{Shared, Waiting};
pub use standing::Standing;
pub(crate) use stepped::{STEPPED, Stepped};

impl Policy {
    /// Every policy that can be configured.
    pub const ALL: [&'static Self; 3] = [&owned::GROUP, &owned::PINNED, &congestion::CONGESTION];

    /// The names of all policies that can be configured.
    pub fn names() -> String {
        Self::ALL.map(|policy| policy.name).join(", ")
    }
}

impl Default for &'static Policy {
    fn default() -> Self {
        &owned::GROUP
    }
}

impl FromStr for &'static Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name == name)
            .ok_or_else(|| format!("'{name}' is no scheduling policy; there are {}", Policy::names()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    /// A task that does nothing.
    #[derive(Default)]
    pub(super) struct Idler {
        pub(super) name: String,
        pub(super) standing: Standing,
        pub(super) pending: usize,
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
            self.pending
        }

        fn run(&self, _budget: Budget) -> Activation {
            Activation::Ran(0)
        }

        fn has_work(&self) -> bool {
            false
        }
    }

    fn schedulers(consume: Consume) -> impl Iterator<Item = (&'static Policy, Box<dyn Scheduler>)> {
        Policy::ALL.into_iter().chain([&STEPPED]).map(move |policy| {
            let scheduler = (policy.make)(SchedulerSetup {
                closing: Arc::default(),
                nodes: Vec::new(),
                budgets: Budgets { time_slice: Duration::from_millis(7), consume },
                run: Arc::new(|_, _| ()),
            });
            assert_eq!(scheduler.add_worker(), 0, "{policy:?}");
            (policy, scheduler)
        })
    }

    #[test]
    fn a_task_that_is_ready_twice_waits_once() {
        for (policy, scheduler) in schedulers(Consume::All) {
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
        for (policy, scheduler) in schedulers(Consume::All) {
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
    fn a_task_takes_as_much_as_is_configured_by_every_policy() {
        for (text, pending, expected) in [
            ("half", 100, 50),
            ("half", 101, 51),
            ("half", 1, 1),
            ("half", 0, usize::MAX),
            ("50", 1_000, 50),
            ("50", 0, 50),
            ("1", 7, 1),
        ] {
            let consume: Consume = text.parse().expect("how much");
            assert_eq!(consume.to_string(), text);
            for (policy, scheduler) in schedulers(consume).filter(|(policy, _)| **policy != STEPPED) {
                let idler = Arc::new(Idler { pending, ..Idler::default() });
                assert!(idler.standing.claim());
                scheduler.ready(idler.clone(), pending);
                let (_, budget) = scheduler.next(0).expect("a task");
                assert_eq!(budget.events, expected, "{policy:?}: {text} of {pending}");
            }
        }
        for wrong in ["", "0", "-1", "1.5", "some", "All", "quarter"] {
            assert!(wrong.parse::<Consume>().unwrap_err().contains("all, half, or a number"), "{wrong}");
        }
    }
}
