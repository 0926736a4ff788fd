//! A simulation: whatever is done to the queries of a group while it works, their results are those of an undisturbed
//! group.
//!
//! Real groups of random applications, with a clock that the test moves. In both runs the same queries come, pause,
//! resume and go, and get the same events. In one of them tasks are split and merged, silent queries are spilled and
//! woken, and everything is moved to a new group, at random moments in between, with events waiting; batches are cut
//! and timers served at other moments too. In a third run tasks are also divided into parts and joined again, and the
//! parts run in any order. A failure names its seed, and `RIVULET_SIMULATION_FIRST=seed RIVULET_SIMULATION_SEEDS=1`
//! runs it alone.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::{Cut, Reason};
use rivulet_runtime::Budget;
use rivulet_testing::TestGroup;
use rivulet_testing::group::Results;
use rivulet_testing::random::{RandomApplication, RandomEvent, RandomParameters, events};

const START_US: i64 = 1_766_275_200_000_000;
const HOUR_US: i64 = 3_600_000_000;
const EVENTS: usize = 400;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What happens to queries in both runs.
enum Step {
    Add(usize),
    Remove(usize),
    Event(RandomEvent),
}

struct Script {
    parameters: Vec<RandomParameters>,
    steps: Vec<Step>,
}

impl Script {
    fn new(random: &mut StdRng) -> Self {
        let queries = random.random_range(2..30);
        let parameters: Vec<_> = (0..queries).map(|_| RandomParameters::new(random)).collect();
        // A query is there, gets events, or neither.
        let (mut is_there, mut is_paused) = (vec![false; queries], vec![false; queries]);
        let mut steps = Vec::new();
        for event in events(random, queries, EVENTS, START_US) {
            let query = random.random_range(0..queries);
            match random.random_range(0..30) {
                0 if is_there[query] => {
                    is_there[query] = false;
                    steps.push(Step::Remove(query));
                }
                1..4 => is_paused[query] = !is_paused[query],
                _ => {}
            }
            let query = event.query;
            if !is_there[query] {
                is_there[query] = true;
                steps.push(Step::Add(query));
            }
            if !is_paused[query] {
                steps.push(Step::Event(event));
            }
        }
        Self { parameters, steps }
    }
}

/// What came out, and how many rows were refused, by [`Reason`].
struct Outcome {
    results: Results,
    refused: Vec<u64>,
}

/// Runs a script, with disturbances if there is randomness for them. Adds what was disturbed to `done`.
fn run(sql: &str, script: &Script, mut random: Option<StdRng>, done: &mut Done) -> Outcome {
    let mut group = TestGroup::new(sql, START_US).spilling();
    done.refused = vec![0; Reason::ALL.len()];
    let mut slots = vec![None; script.parameters.len()];
    // A query that comes again is another one.
    let mut lives = vec![0; script.parameters.len()];
    let mut now_us = START_US;
    for step in &script.steps {
        match step {
            Step::Add(query) => {
                let id = *query as u64 * 1_000 + lives[*query];
                lives[*query] += 1;
                slots[*query] = Some(script.parameters[*query].with(|values| group.add(id, values)));
            }
            Step::Remove(query) => {
                // Events of a removed query that still wait are refused; here none does.
                group.run_at(now_us);
                group.remove(slots[*query].take().expect("it is there"));
            }
            Step::Event(event) => {
                now_us = event.arrival_us;
                let slot = slots[event.query].expect("it is there");
                group.push_message(0, slot, now_us, event.topic, &event.payload);
            }
        }
        match &mut random {
            Some(random) => group = done.disturb(group, random),
            None => group.run(),
        }
    }
    group.run();
    group.run_at(now_us + HOUR_US);
    group.end();
    done.count(&group);
    Outcome { results: group.results(), refused: done.refused.clone() }
}

/// How often what was done, so that a simulation in which nothing happens is noticed.
#[derive(Debug, Default)]
struct Done {
    /// Whether tasks are cut in parts too.
    cuts_tasks: bool,
    cuts: u64,
    /// Steps of parts other than the first.
    steps_of_parts: u64,
    splits: u64,
    merges: u64,
    spilled: u64,
    woken: u64,
    moved: u64,
    /// Rows that were refused in the present run.
    refused: Vec<u64>,
}

impl Done {
    /// Adds what a group has counted, before it goes.
    fn count(&mut self, group: &TestGroup) {
        let spill = group.spill_status();
        assert_eq!((spill.lost, spill.failures), (0, 0));
        self.woken += spill.woken;
        self.refused.iter_mut().zip(group.metrics().refused).for_each(|(sum, refused)| *sum += refused);
    }

    /// Something is done to parts, and nothing or something to whole tasks afterwards.
    fn disturb_parts(&mut self, group: &TestGroup, random: &mut StdRng) {
        let tasks = group.tasks();
        let Some(task) = tasks.get(random.random_range(0..tasks.len().max(1))) else { return };
        if random.random_range(0..12) == 0 {
            let parts = random.random_range(1..5);
            self.cuts += u64::from(parts > 1 && task.parts() == 1);
            group.run_in_parts(task, parts);
        }
        for _ in 0..random.random_range(0..4) {
            let part = random.random_range(0..task.parts() + 1);
            self.steps_of_parts += u64::from(part > 0 && part < task.parts());
            task.step_part(part, Budget::of_time(Duration::ZERO));
        }
    }

    fn disturb(&mut self, group: TestGroup, random: &mut StdRng) -> TestGroup {
        if self.cuts_tasks {
            self.disturb_parts(&group, random);
            // Blocks are to be under way when the next events come.
            if random.random_range(0..4) != 0 {
                return group;
            }
        }
        let mut tasks = group.tasks();
        match random.random_range(0..20) {
            0..5 => group.run(),
            5 | 6 if !tasks.is_empty() => {
                self.splits += 1;
                group.split(&tasks[random.random_range(0..tasks.len())]);
            }
            7 if tasks.len() > 1 => {
                self.merges += 1;
                let task = tasks.swap_remove(random.random_range(0..tasks.len()));
                group.merge(&task, &tasks[random.random_range(0..tasks.len())]);
            }
            8..10 => {
                let horizon_us = [0, 0, 2_000_000][random.random_range(0..3)];
                self.spilled += group.spill(random.random_range(0..3), horizon_us) as u64;
            }
            10 if random.random_range(0..8) == 0 => {
                self.moved += 1;
                group.run();
                self.count(&group);
                return group.moved();
            }
            _ => {}
        }
        group
    }
}

#[test]
#[ignore = "slow"]
fn results_are_those_of_a_group_left_in_peace() {
    let (first, seeds) = (variable("RIVULET_SIMULATION_FIRST", 0), variable("RIVULET_SIMULATION_SEEDS", 300));
    let mut done = Done::default();
    let mut results = 0;
    for seed in first..first + seeds {
        let application = RandomApplication::new(seed);
        let script = Script::new(&mut StdRng::seed_from_u64(seed ^ 0x51));
        let expected = run(&application.sql, &script, None, &mut Done::default());
        let disturbances = StdRng::seed_from_u64(seed ^ 0xd157);
        let found = run(&application.sql, &script, Some(disturbances), &mut done);
        for (query, expected) in &expected.results {
            assert_eq!(found.results.get(query), Some(expected), "seed {seed}, query {query}\n{}", application.sql);
        }
        assert_eq!(found.results.len(), expected.results.len(), "seed {seed}");
        assert_eq!(found.refused, expected.refused, "seed {seed}: refused rows\n{}", application.sql);
        results += expected.results.values().map(Vec::len).sum::<usize>();
    }
    eprintln!("{seeds} seeds, {results} results: {done:?}");
    if seeds >= 100 {
        let least = done.splits.min(done.merges).min(done.spilled).min(done.woken).min(done.moved);
        assert!(least > seeds / 2 && results as u64 > 10 * seeds, "it does what it should: {done:?}");
    }
}

/// The results of queries as far as their order is promised where they run in parts: those of a key, where they say
/// what it is.
fn by_key(results: &Results, cut: &Cut) -> BTreeMap<(u64, String), Vec<String>> {
    let mut by_key: BTreeMap<(u64, String), Vec<String>> = BTreeMap::new();
    for (&query, results) in results {
        for result in results {
            let row: serde_json::Value =
                serde_json::from_str(result.trim_start_matches(['0', '1', ' '])).expect("JSON");
            let key = match cut {
                Cut::ByKey(_) => row.get("device").map_or_else(String::new, ToString::to_string),
                _ => String::new(),
            };
            by_key.entry((query, key)).or_default().push(result.clone());
        }
    }
    if matches!(cut, Cut::ByKey(_)) {
        by_key.iter_mut().filter(|((_, key), _)| key.is_empty()).for_each(|(_, results)| results.sort());
    }
    by_key
}

#[test]
fn results_of_queries_in_parts_are_those_of_whole_ones() {
    let (first, seeds) = (variable("RIVULET_SIMULATION_FIRST", 0), variable("RIVULET_SIMULATION_SEEDS", 450));
    let mut done = Done { cuts_tasks: true, ..Done::default() };
    let (mut results, mut by_keys, mut anywhere) = (0, 0, 0);
    for seed in first..first + seeds {
        let application = RandomApplication::new(seed);
        let cut = TestGroup::new(&application.sql, START_US).cut().clone();
        match cut {
            Cut::ByKey(_) => by_keys += 1,
            Cut::Anywhere => anywhere += 1,
            Cut::Never(_) => continue,
        }
        let script = Script::new(&mut StdRng::seed_from_u64(seed ^ 0x51));
        let expected = run(&application.sql, &script, None, &mut Done::default());
        let disturbances = StdRng::seed_from_u64(seed ^ 0xc07);
        let found = run(&application.sql, &script, Some(disturbances), &mut done);
        let (expected_by_key, found_by_key) = (by_key(&expected.results, &cut), by_key(&found.results, &cut));
        for (of, expected) in &expected_by_key {
            assert_eq!(found_by_key.get(of), Some(expected), "seed {seed}, {of:?}\n{}", application.sql);
        }
        assert_eq!(found_by_key.len(), expected_by_key.len(), "seed {seed}\n{}", application.sql);
        assert_eq!(found.refused, expected.refused, "seed {seed}: refused rows\n{}", application.sql);
        results += expected.results.values().map(Vec::len).sum::<usize>();
    }
    eprintln!("{by_keys} by key, {anywhere} anywhere, {results} results: {done:?}");
    if seeds >= 100 {
        assert!(by_keys > seeds / 10 && anywhere > seeds / 100, "{by_keys} by key, {anywhere} anywhere");
        let least = done.cuts.min(done.steps_of_parts).min(done.splits).min(done.spilled);
        // A third of the applications have windows that keep a query whole.
        let whole = seeds / 3;
        assert!(least > seeds - whole && results as u64 > 10 * (seeds - whole), "it does what it should: {done:?}");
    }
}
