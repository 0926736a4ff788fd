//! Silences of big queries: what the time of an idle source releases is complete, in whichever order tasks run.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::{Dataflow, EdgeKind, ManualClock, Work};
use rivulet_runtime::{Flow, FlowParts, Partition, Workers};

use crate::flows::{Collected, CountByKey, Then, numbers, parts, schema};

/// A step of the clock that a silent source follows, and one in which it only becomes idle.
const FOLLOWED_US: i64 = 250_000;
const IDLE_US: i64 = 40_000;

/// The steps of the clock, and the most tasks that run in one.
const STEPS: usize = 4;
const RUNS_MAX: usize = 2_000;

/// Runs a flow through a silence, its tasks in an order of the seed, until nothing moves; then goes on with `then`.
fn run_in_silence(parts: FlowParts, (step_us, seed): (i64, u64), then: impl FnOnce(&Flow)) {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let workers = Workers::stepped(clock.clone());
    let flow = workers.start_flow(parts).unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..STEPS {
        let mut runs = 0..RUNS_MAX;
        assert!(
            runs.any(|_| !workers.run_one(|ready| random.random_range(0..ready), Duration::ZERO)),
            "seed {seed}: tasks run for ever"
        );
        if let Some(outcome) = flow.wait(Duration::ZERO) {
            panic!("seed {seed}: {outcome:?}");
        }
        clock.advance_us(step_us);
        workers.keep_time_once();
    }
    then(&flow);
}

/// The rows of the sink, sorted.
fn sorted(sink: &Collected) -> Vec<(i64, i64)> {
    let mut rows = sink.rows.lock().clone();
    rows.sort_unstable();
    rows
}

/// Counts of `counted` by key, and counts of these results by key.
fn counts_of_counts(dataflow: &mut Dataflow, counted: &[usize], emits_at_us: i64) {
    let count = |dataflow: &mut Dataflow, source| {
        dataflow.then(source, EdgeKind::Hash(vec![0]), Arc::new(CountByKey { emits_at_us }), schema())
    };
    let counts: Vec<usize> = counted.iter().map(|&source| count(dataflow, source)).collect();
    let over = dataflow.add(Work::Operator(Arc::new(CountByKey { emits_at_us })), schema());
    counts.into_iter().for_each(|count| dataflow.connect(count, over, 0, EdgeKind::Hash(vec![0])));
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(over, end, 0, EdgeKind::Forward);
}

/// Both steps count at the same time of the clock, so the second must have all results of the first before it.
#[test]
fn what_the_clock_releases_is_in_front_of_its_time() {
    for seed in 0..60 {
        for partitions in [1, 2, 3_i64] {
            let mut dataflow = Dataflow::default();
            let source = dataflow.add(Work::Source(0), schema());
            // Due at the second step of the clock: by then all tasks count as idle.
            counts_of_counts(&mut dataflow, &[source], 300_000);
            let partition = |number: i64| numbers(number * 100..number * 100 + 100, Then::Silence);
            let sources = vec![(0..partitions).map(partition).collect()];
            let sink = Collected::default();
            run_in_silence(parts(dataflow, sources, 3, &sink), (FOLLOWED_US, seed), |_| {});
            assert_eq!(sorted(&sink), (0..100).map(|key| (key, 1)).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}

/// One source is idle before the other reaches the time at which both are counted.
#[test]
fn what_is_open_behind_an_idle_source_is_released_by_the_others_it_meets() {
    let active = || Partition { idle_timeout_us: None, ..numbers(0..2_000, Then::Silence) };
    for seed in 0..60 {
        let mut dataflow = Dataflow::default();
        let sources = [0, 1].map(|number| dataflow.add(Work::Source(number), schema()));
        counts_of_counts(&mut dataflow, &sources, 1_500);
        let sink = Collected::default();
        let parts = parts(dataflow, vec![vec![numbers(0..500, Then::Silence)], vec![active()]], 3, &sink);
        run_in_silence(parts, (IDLE_US, seed), |_| {});
        assert_eq!(sorted(&sink), (0..100).map(|key| (key, 2)).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// The lateness of an idle source stays allowed while its time goes on with that of others.
#[test]
fn an_idle_source_keeps_its_lateness() {
    let active = Partition { idle_timeout_us: None, ..numbers(0..2_000, Then::Silence) };
    let idle = Partition { lateness_us: 600, ..numbers(0..500, Then::Silence) };
    let mut dataflow = Dataflow::default();
    let sources = [0, 1].map(|number| dataflow.add(Work::Source(number), schema()));
    counts_of_counts(&mut dataflow, &sources, 1_500);
    let sink = Collected::default();
    run_in_silence(parts(dataflow, vec![vec![idle], vec![active]], 2, &sink), (IDLE_US, 0), |flow| {
        assert_eq!(flow.report().tasks.iter().filter_map(|task| task.watermark_us).min(), Some(1_399));
    });
    assert!(sink.rows.lock().is_empty(), "a row of 1,400 may still come");
}

/// Where rows of two sources do not meet, an idle one keeps its own time.
#[test]
fn an_idle_source_does_not_follow_those_that_it_does_not_meet() {
    let active = Partition { idle_timeout_us: None, ..numbers(0..2_000, Then::Silence) };
    let mut dataflow = Dataflow::default();
    let sources = [0, 1].map(|number| dataflow.add(Work::Source(number), schema()));
    let counts = sources.map(|source| {
        let counts = Arc::new(CountByKey { emits_at_us: 1_500 });
        dataflow.then(source, EdgeKind::Hash(vec![0]), counts, schema())
    });
    let end = dataflow.add(Work::Sink(0), schema());
    counts.into_iter().for_each(|count| dataflow.connect(count, end, 0, EdgeKind::Forward));
    let sink = Collected::default();
    let sources = vec![vec![numbers(0..500, Then::Silence)], vec![active]];
    run_in_silence(parts(dataflow, sources, 2, &sink), (IDLE_US, 0), |_| {});
    assert_eq!(sorted(&sink), (0..100).map(|key| (key, 20)).collect::<Vec<_>>());
}
