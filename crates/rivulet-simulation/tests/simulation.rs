//! Some thousand seeds; that the same seed is the same simulation; that defects are noticed.

use rivulet_simulation::bursts::{BurstDefect, BurstPlan};
use rivulet_simulation::flows::FlowPlan;
use rivulet_simulation::links::LinkPlan;
use rivulet_simulation::plan::Plan;
use rivulet_simulation::shrink::{Shrinks, shrink};
use rivulet_simulation::{Counts, Defect};

/// `RIVULET_SEEDS=100000 cargo test --release --package rivulet-simulation` runs more.
fn seeds_or(usual: u64) -> u64 {
    std::env::var("RIVULET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn seeds() -> u64 {
    seeds_or(2_000)
}

/// Runs many, and counts.
fn run_all<P: Shrinks>(seeds: u64, plan: impl Fn(u64) -> P) -> Counts {
    let mut sum = Counts::default();
    for seed in 0..seeds {
        let outcome = plan(seed).run();
        if let Some(failure) = outcome.failure {
            let least = shrink(&plan(seed)).map_or(outcome.history, |(_, least)| least.history);
            panic!("seed {seed}: {failure}\nthe least of it that fails:\n{least}");
        }
        sum += outcome.counts;
    }
    println!("{sum:#?}");
    sum
}

#[test]
#[ignore = "slow"]
fn of_small_queries_nothing_is_lost_and_nothing_comes_twice() {
    let sum = run_all(seeds(), |seed| (Plan::new(seed), None));
    assert!(sum.results > seeds() * 5 && sum.power_losses > seeds() && sum.kills > seeds() / 2, "{sum:#?}");
    assert!(sum.recognised > seeds() / 4 && sum.faults.torn > seeds() / 20 && sum.faults.sync > 0, "{sum:#?}");
}

#[test]
#[ignore = "slow"]
fn of_big_queries_nothing_is_lost_and_nothing_comes_twice() {
    let sum = run_all(seeds(), FlowPlan::new);
    assert!(sum.results > seeds() * 5 && sum.power_losses > seeds() / 2 && sum.checkpoints > seeds(), "{sum:#?}");
}

#[test]
fn over_links_nothing_is_lost_and_nothing_comes_twice_where_that_is_promised() {
    let seeds = seeds_or(100);
    let sum = run_all(seeds, LinkPlan::new);
    assert!(sum.results > seeds * 5 && sum.power_losses > seeds && sum.kills > seeds / 2, "{sum:#?}");
    assert!(sum.disconnects > seeds / 2 && sum.checkpoints > seeds, "{sum:#?}");
}

#[test]
fn in_bursts_nothing_is_lost_and_nothing_comes_twice() {
    let seeds = seeds_or(100);
    let sum = run_all(seeds, |seed| (BurstPlan::new(seed), None));
    assert!(sum.results > seeds * 5 && sum.kills > seeds / 2 && sum.checkpoints > seeds, "{sum:#?}");
    assert!(sum.changes > seeds * 3 && sum.stops > seeds && sum.disconnects > seeds, "{sum:#?}");
}

#[test]
fn the_same_seed_is_the_same_simulation() {
    fn check(plan: &impl Shrinks, seed: u64) {
        let (one, other) = (plan.run(), plan.run());
        assert_eq!(one.history, other.history, "seed {seed}");
        assert_eq!(one.counts, other.counts, "seed {seed}");
    }
    for seed in 0..20 {
        check(&(Plan::new(seed), None), seed);
        check(&FlowPlan::new(seed), seed);
        check(&LinkPlan::new(seed), seed);
        check(&(BurstPlan::new(seed), None), seed);
    }
}

#[test]
fn what_is_wrong_on_purpose_is_noticed() {
    for defect in Defect::ALL {
        let found = (0..300).find(|&seed| (Plan::new(seed), Some(defect)).run().failure.is_some());
        println!("{}: seed {found:?}", defect.name());
        assert!(found.is_some(), "{} is not noticed", defect.name());
    }
}

#[test]
fn what_is_wrong_with_bursts_on_purpose_is_noticed() {
    for defect in BurstDefect::ALL {
        let found = (0..300).find(|&seed| (BurstPlan::new(seed), Some(defect)).run().failure.is_some());
        println!("{}: seed {found:?}", defect.name());
        assert!(found.is_some(), "{} is not noticed", defect.name());
    }
}
