//! A query that is given other values goes on as if it were dropped and made anew at that point, with the state that
//! does not depend on what has changed.
//!
//! Random applications, parameters and events, and queries whose values and topics change in the middle, in one group
//! whose tasks are split, whose silent queries are spilled, and which now and then moves as a whole. Each query is
//! compared with itself alone, where the change is an export of its state, a new query, and an import.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_sql::ParamValue;
use rivulet_testing::TestGroup;
use rivulet_testing::random::{RandomApplication, RandomParameters, events};

use crate::key_property::{EVENTS, START_US, finish, input_of};

/// Seeds that are run; `RIVULET_SEEDS=100000 cargo test alter_property` runs more.
fn seeds() -> u64 {
    std::env::var("RIVULET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(600)
}

/// Values of a query from an event on.
#[derive(Clone)]
struct Values {
    from: usize,
    parameters: RandomParameters,
    input: String,
    output: String,
}

impl Values {
    fn new(from: usize, random: &mut StdRng) -> Self {
        let mut topic = |name: &str| format!("{name}{}", u8::from(random.random_range(0..4) == 0));
        let (input, output) = (topic("in"), topic("out"));
        Self { from, parameters: RandomParameters::new(random), input, output }
    }

    fn with<T>(&self, bind: impl FnOnce(&[(&str, ParamValue<'_>)]) -> T) -> T {
        self.parameters.with_topics(&self.input, &self.output, bind)
    }
}

#[test]
#[ignore = "slow"]
fn a_query_that_is_altered_answers_as_one_that_is_made_anew_with_its_state() {
    let (mut results, mut changes) = (0, 0);
    for seed in 0..seeds() {
        let application = RandomApplication::new(seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0xa17e);
        let queries: Vec<Vec<Values>> = (0..random.random_range(1..8))
            .map(|_| {
                let mut values = vec![Values::new(0, &mut random)];
                for _ in 0..random.random_range(0..3) {
                    let from = random.random_range(1..EVENTS);
                    // Often only one value is another.
                    let before = values.last().cloned().expect("the first");
                    let next = Values::new(from, &mut random);
                    values.push(match random.random_range(0..3) {
                        0 => next,
                        1 => Values { from, parameters: before.parameters.with_low(next.parameters), ..before },
                        _ => Values { from, output: next.output, ..before },
                    });
                }
                values.sort_by_key(|values| values.from);
                values
            })
            .collect();
        changes += queries.iter().map(|values| values.len() - 1).sum::<usize>();
        let events = events(&mut random, queries.len(), EVENTS, START_US);
        let mut group = TestGroup::sharing(&application.sql, START_US).spilling();
        let mut slots = Vec::new();
        for (query, values) in (0..).zip(&queries) {
            slots.push(values[0].with(|values| group.add(query, values)));
        }
        let mut number = 0;
        for (place, event) in events.iter().enumerate() {
            for (query, values) in queries.iter().enumerate() {
                for values in values.iter().filter(|values| place > 0 && values.from == place) {
                    group.run_at(event.arrival_us);
                    number += 1;
                    slots[query] = values.with(|values| group.alter(slots[query], query as u64, values, number));
                }
            }
            group.push_from(input_of(&application, event), slots[event.query], event.arrival_us, &event.payload);
            match random.random_range(0..30) {
                0..9 => group.run(),
                9 => group = group.moved(),
                10 => drop(group.spill(random.random_range(0..3), 0)),
                11 => {
                    if let Some(task) = group.tasks().last() {
                        group.split(task);
                    }
                }
                _ => {}
            }
        }
        finish(&group, &events);
        let together = group.results();
        for (query, values) in queries.iter().enumerate() {
            let mut alone = TestGroup::new(&application.sql, START_US);
            values[0].with(|values| alone.add(query as u64, values));
            for (place, event) in events.iter().enumerate() {
                for values in values.iter().filter(|values| place > 0 && values.from == place) {
                    alone.run_at(event.arrival_us);
                    alone = values.with(|values| alone.recreated(query as u64, values));
                }
                if event.query == query {
                    alone.push_from(input_of(&application, event), 0, event.arrival_us, &event.payload);
                }
            }
            finish(&alone, &events);
            let expected = alone.results().get(&(query as u64)).cloned().unwrap_or_default();
            let found = together.get(&(query as u64)).cloned().unwrap_or_default();
            assert_eq!(found, expected, "seed {seed}, query {query} of {}\n{}", queries.len(), application.sql);
            results += expected.len();
        }
    }
    assert!(results > 5_000 && changes > 500, "{results} results, {changes} changes");
}
