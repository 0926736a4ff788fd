//! The key property: N queries run as one group give exactly what the same N give each run alone.
//!
//! Random applications, parameters and events; batches cut and timers served at different moments in both runs; and in the
//! group's run queries come, go, and have their state saved and restored on the way. The answers are compared byte by
//! byte.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_testing::random::{RandomApplication, RandomEvent, RandomParameters, events};
use rivulet_testing::{TestGroup, group::Results};

const START_US: i64 = 1_766_275_200_000_000;
const HOUR_US: i64 = 3_600_000_000;

/// Seeds that are run; `RIVULET_SEEDS=100000 cargo test key_property` runs more.
fn seeds() -> u64 {
    std::env::var("RIVULET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_500)
}

#[test]
fn queries_in_a_group_answer_as_each_does_alone() {
    let mut results = 0;
    for seed in 0..seeds() {
        let application = RandomApplication::new(seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
        let queries = random.random_range(1..12);
        let parameters: Vec<RandomParameters> = (0..queries).map(|_| RandomParameters::new(&mut random)).collect();
        let events = events(&mut random, queries, 250, START_US);
        let together = run_together(&application, &parameters, &events, &mut random);
        for query in 0..queries {
            let alone = run_alone(&application, &parameters, &events, query, &mut random);
            let expected = alone.get(&(query as u64)).cloned().unwrap_or_default();
            let found = together.get(&(query as u64)).cloned().unwrap_or_default();
            assert_eq!(found, expected, "seed {seed}, query {query} of {queries}\n{}", application.sql);
            results += expected.len();
        }
    }
    assert!(results > 10_000, "the random applications emit something: {results} results");
}

/// All queries in one group, among others that come and go; state is saved and restored on the way.
fn run_together(
    application: &RandomApplication,
    parameters: &[RandomParameters],
    events: &[RandomEvent],
    random: &mut StdRng,
) -> Results {
    let group = TestGroup::new(&application.sql, START_US);
    // A query that goes, and whose slot is used again, must leave nothing behind.
    let gone = parameters[0].with(|values| group.add(1_000, values));
    group.push(gone, START_US, &events[0].payload);
    group.run();
    group.remove(gone);
    group.run();
    let slots: Vec<_> =
        parameters.iter().enumerate().map(|(query, one)| one.with(|values| group.add(query as u64, values))).collect();
    for (index, event) in events.iter().enumerate() {
        group.push(slots[event.query], event.arrival_us, &event.payload);
        match random.random_range(0..30) {
            0..8 => group.run(),
            8 => {
                let other = parameters[0].with(|values| group.add(2_000 + index as u64, values));
                group.push(other, event.arrival_us, &event.payload);
            }
            9 => {
                group.run();
                let frames = group.export(None);
                group.import(&frames);
            }
            _ => {}
        }
    }
    finish(&group, events);
    group.results()
}

/// One query alone, with its own events only.
fn run_alone(
    application: &RandomApplication,
    parameters: &[RandomParameters],
    events: &[RandomEvent],
    query: usize,
    random: &mut StdRng,
) -> Results {
    let group = TestGroup::new(&application.sql, START_US);
    let slot = parameters[query].with(|values| group.add(query as u64, values));
    for event in events.iter().filter(|event| event.query == query) {
        group.push(slot, event.arrival_us, &event.payload);
        if random.random_range(0..3) == 0 {
            group.run();
        }
    }
    finish(&group, events);
    group.results()
}

/// Long silence, then the end: both runs close everything the same way.
fn finish(group: &TestGroup, events: &[RandomEvent]) {
    group.run();
    group.run_at(events.last().map_or(START_US, |event| event.arrival_us) + HOUR_US);
    group.end();
}
