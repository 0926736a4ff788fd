//! The last operator first: a row that has come far leaves before others come further (the baseline "min-latency" of
//! EdgeWise, ATC 2019).

use rivulet_runtime::scheduler::Shared;
use rivulet_runtime::{Belonging, Policy, Rank};

use super::ready::{BestFirst, Merit};

/// The task that is furthest from the sources.
pub static LEAST_LATENCY: Policy = Policy {
    name: "least-latency",
    help: "the last operator first",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |setup| Box::new(Shared::<BestFirst<LastFirst>>::new(setup)),
};

/// Tasks by their distance from the sources.
#[derive(Default)]
struct LastFirst;

impl Merit for LastFirst {
    fn of(rank: Rank) -> f64 {
        rank.depth as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::order;
    use super::*;

    #[test]
    fn the_last_operator_is_first_and_of_several_the_one_that_came_first() {
        let tasks = [("source", 0), ("c", 2), ("b", 1), ("d", 2), ("sink", 3)];
        let tasks = tasks.map(|(name, depth)| (name, Rank { depth, ..Rank::default() }));
        assert_eq!(order(BestFirst::<LastFirst>::default(), &tasks), ["sink", "c", "d", "b", "source"]);
    }
}
