//! The operator first that removes the most rows from queues in its time (Babcock et al., Chain, SIGMOD 2003; the
//! baseline "min-memory" of EdgeWise, ATC 2019). Each operator goes by its own figures, as measured so far; Chain also
//! puts one before others if what follows it removes many rows.

use rivulet_runtime::scheduler::Shared;
use rivulet_runtime::{Belonging, Policy, Rank};

use super::ready::{BestFirst, Merit};

/// The task after whose run the fewest rows wait.
pub static LEAST_MEMORY: Policy = Policy {
    name: "least-memory",
    help: "the operator that removes the most rows from queues",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |setup| Box::new(Shared::<BestFirst<FewestLeft>>::new(setup)),
};

/// Tasks by the rows that they remove from queues in a nanosecond.
#[derive(Default)]
struct FewestLeft;

impl Merit for FewestLeft {
    /// Below zero for a task that gives more rows than it takes.
    fn of(rank: Rank) -> f64 {
        (1.0 - rank.selectivity) / rank.ns_per_row
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
        assert_eq!(order(BestFirst::<FewestLeft>::default(), &tasks), expected);
    }
}
