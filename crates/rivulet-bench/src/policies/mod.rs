//! The policies that Rivulet's own are compared with: what other engines run next. No configuration names them, and a
//! program has them only if it was built with the feature `baselines` of the crate `rivulet`.
//!
//! Of tasks that are equally good to run, all take the one that came first. None has a bound of events: a task keeps
//! its worker for its time slice.
//!
//! - `random`: any task;
//! - `least_latency`: the last operator first;
//! - `least_memory`: the operator first that removes the most rows from queues in its time;
//! - `pool`: first in, first out;
//! - `thread_each`: a thread for each task, as many as [`thread_limit`] allows;
//! - `ready`: what the first three have in common.

mod ready;
mod random;
mod least_latency;
mod least_memory;
mod pool;
pub mod thread_limit;
mod thread_each;

use rivulet_runtime::Policy;

pub use least_latency::LEAST_LATENCY;
pub use least_memory::LEAST_MEMORY;
pub use pool::POOL;
pub use random::RANDOM;
pub use thread_each::THREAD_EACH;

/// Every baseline.
pub static ALL: [&Policy; 5] = [&RANDOM, &LEAST_LATENCY, &LEAST_MEMORY, &POOL, &THREAD_EACH];

/// Their names, for a program that has only these.
pub const NAMES: [&str; 5] = ["random", "least-latency", "least-memory", "pool", "thread-each"];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rivulet_runtime::scheduler::{Standing, Waiting};
    use rivulet_runtime::{Activation, Budget, Rank, Runnable};

    /// A task with a rank that does nothing.
    struct Ranked {
        name: &'static str,
        rank: Rank,
        standing: Standing,
    }

    impl Runnable for Ranked {
        fn name(&self) -> &str {
            self.name
        }

        fn worker(&self) -> usize {
            0
        }

        fn standing(&self) -> &Standing {
            &self.standing
        }

        fn pending(&self) -> usize {
            1
        }

        fn run(&self, _budget: Budget) -> Activation {
            Activation::Ran(0)
        }

        fn has_work(&self) -> bool {
            false
        }

        fn rank(&self) -> Rank {
            self.rank
        }
    }

    /// The order in which a policy takes tasks with these ranks that came in this order, each told twice.
    pub(super) fn order(mut waiting: impl Waiting, tasks: &[(&'static str, Rank)]) -> Vec<String> {
        for &(name, rank) in tasks {
            let task = Arc::new(Ranked { name, rank, standing: Standing::default() });
            // What is nobody's is not accepted.
            waiting.enter(task.clone(), 1);
            assert!(task.standing.claim());
            waiting.enter(task.clone(), 1);
            waiting.enter(task, 2);
        }
        assert_eq!(waiting.waiting(), tasks.len(), "each waits once");
        let taken = std::iter::from_fn(|| waiting.leave()).inspect(|(task, _)| assert!(!task.standing().is_waiting()));
        taken.map(|(task, _)| task.name().to_owned()).collect()
    }

    #[test]
    fn names_are_those_of_the_policies() {
        assert_eq!(super::NAMES, super::ALL.map(|policy| policy.name));
    }
}
