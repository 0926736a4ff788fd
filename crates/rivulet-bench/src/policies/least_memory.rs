//! The operator first that removes the most rows from queues in its time (Babcock et al., Chain, SIGMOD 2003; the
//! baseline "min-memory" of EdgeWise, ATC 2019). Each operator goes by its own figures, as measured so far; Chain also
//! puts one before others if what follows it removes many rows.

use std::sync::Arc;

use rivulet_runtime::scheduler::{Shared, Waiting};
use rivulet_runtime::{Belonging, Policy, Rank, Runnable};

use super::ready::Ready;

/// The task after whose run the fewest rows wait.
pub static LEAST_MEMORY: Policy = Policy {
    name: "least-memory",
    help: "the operator that removes the most rows from queues",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |setup| Box::new(Shared::<FewestLeft>::new(setup)),
};

/// Tasks by the rows of which they rid the queues in a nanosecond.
#[derive(Default)]
struct FewestLeft(Ready);

/// Below zero for a task that gives more rows than it takes.
fn rows_less_per_ns(rank: Rank) -> f64 {
    (1.0 - rank.selectivity) / rank.ns_per_row
}

impl Waiting for FewestLeft {
    fn enter(&mut self, task: Arc<dyn Runnable>, _pending: usize) {
        self.0.enter(task, rows_less_per_ns);
    }

    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        self.0.take_best()
    }

    fn waiting(&self) -> usize {
        self.0.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::order;
    use super::*;

    #[test]
    fn a_cheap_filter_is_before_a_dear_one_and_what_makes_rows_is_last() {
        let tasks = [
            ("unnest", 100.0, 8.0),
            ("slow unnest", 1_000.0, 8.0),
            ("project", 100.0, 1.0),
            ("new", 1.0, 1.0),
            ("dear filter", 1_000.0, 0.5),
            ("filter", 100.0, 0.5),
            ("count", 100.0, 0.0),
        ];
        let tasks = tasks.map(|(name, ns_per_row, selectivity)| (name, Rank { depth: 0, ns_per_row, selectivity }));
        let expected = ["count", "filter", "dear filter", "project", "new", "slow unnest", "unnest"];
        assert_eq!(order(FewestLeft::default(), &tasks), expected);
    }
}
