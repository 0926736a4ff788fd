//! The key property: N queries that run as one group give exactly the results that each of them gives alone.
//!
//! Random applications, parameters and events; queries that come, pause and go in the middle; batches cut and timers
//! served at different moments in both runs. In the group's run, slots are used again by queries that must start clean,
//! silent queries are spilled, and sometimes everything moves to a new group, which has only the imported state. The
//! results are compared byte by byte. The same is tested with *shared slots*: queries that differ only in their output
//! share a slot wherever possible, while they come, part and leave, and their tasks are split and merged.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::Slot;
use rivulet_testing::random::{RandomApplication, RandomEvent, RandomParameters, events};
use rivulet_testing::{TestGroup, group::Results};

pub(crate) const START_US: i64 = 1_766_275_200_000_000;
const HOUR_US: i64 = 3_600_000_000;
pub(crate) const EVENTS: usize = 250;

/// Seeds that are run; `RIVULET_SEEDS=100000 cargo test key_property` runs more.
fn seeds() -> u64 {
    std::env::var("RIVULET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_500)
}

/// A query: its parameters, and when it is there, in places of the list of events.
pub(crate) struct RandomQuery {
    pub(crate) parameters: RandomParameters,
    pub(crate) life: Range<usize>,
    pub(crate) paused: Range<usize>,
}

impl RandomQuery {
    pub(crate) fn new(random: &mut StdRng) -> Self {
        let mut range = |whole: bool| {
            let (one, other) = (random.random_range(0..=EVENTS), random.random_range(0..=EVENTS));
            if whole { 0..EVENTS } else { one.min(other)..one.max(other) }
        };
        let (life, paused) = (range(false), range(false));
        Self {
            life: if random.random_range(0..2) == 0 { 0..EVENTS } else { life },
            paused: if random.random_range(0..3) == 0 { paused } else { 0..0 },
            parameters: RandomParameters::new(random),
        }
    }

    /// Whether an event is routed to it: that is all that pausing changes.
    pub(crate) fn gets(&self, place: usize) -> bool {
        self.life.contains(&place) && !self.paused.contains(&place)
    }
}

#[test]
#[ignore = "slow"]
fn queries_in_a_group_answer_as_each_does_alone() {
    let mut results = 0;
    for seed in 0..seeds() {
        let application = RandomApplication::new(seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
        let queries: Vec<RandomQuery> =
            (0..random.random_range(1..12)).map(|_| RandomQuery::new(&mut random)).collect();
        let events = events(&mut random, queries.len(), EVENTS, START_US);
        let together = run_together(&application, &queries, &events, &mut random);
        for query in 0..queries.len() {
            let alone = run_alone(&application, &queries, &events, query, &mut random);
            let expected = alone.get(&(query as u64)).cloned().unwrap_or_default();
            let found = together.get(&(query as u64)).cloned().unwrap_or_default();
            assert_eq!(found, expected, "seed {seed}, query {query} of {}\n{}", queries.len(), application.sql);
            results += expected.len();
        }
    }
    assert!(results > 10_000, "the random applications emit something: {results} results");
}

/// All queries in one group, among others that come and go.
fn run_together(
    application: &RandomApplication,
    queries: &[RandomQuery],
    events: &[RandomEvent],
    random: &mut StdRng,
) -> Results {
    let mut group = TestGroup::new(&application.sql, START_US).spilling();
    let mut slots = vec![None; queries.len()];
    let mut others = Vec::new();
    for (place, event) in events.iter().enumerate() {
        for (number, query) in queries.iter().enumerate() {
            if query.life.end == place
                && let Some(slot) = slots[number].take()
            {
                group.run_at(event.arrival_us);
                group.remove(slot);
            }
            if query.life.start == place && !query.life.is_empty() {
                group.run_at(event.arrival_us);
                slots[number] = Some(query.parameters.with(|values| group.add(number as u64, values)));
            }
        }
        if queries[event.query].gets(place) {
            let slot = slots[event.query].expect("a query that is there");
            push(&group, application, event, slot);
        }
        match random.random_range(0..30) {
            0..8 => group.run(),
            8 | 9 => {
                let other = queries[0].parameters.with(|values| group.add(1_000 + place as u64, values));
                push(&group, application, event, other);
                others.push(other);
            }
            10 if !others.is_empty() => group.remove(others.swap_remove(random.random_range(0..others.len()))),
            11 => group = group.moved(),
            12 => drop(group.spill(random.random_range(0..3), 0)),
            _ => {}
        }
    }
    finish(&group, events);
    group.results()
}

/// One query alone, with its own events only.
pub(crate) fn run_alone(
    application: &RandomApplication,
    queries: &[RandomQuery],
    events: &[RandomEvent],
    number: usize,
    random: &mut StdRng,
) -> Results {
    let group = TestGroup::new(&application.sql, START_US);
    let query = &queries[number];
    let mut slot = None;
    for (place, event) in events.iter().enumerate() {
        if query.life.end == place
            && let Some(slot) = slot
        {
            group.run_at(event.arrival_us);
            group.remove(slot);
            return group.results();
        }
        if query.life.start == place && !query.life.is_empty() {
            group.run_at(event.arrival_us);
            slot = Some(query.parameters.with(|values| group.add(number as u64, values)));
        }
        if event.query == number && query.gets(place) {
            let slot = slot.expect("a query that is there");
            push(&group, application, event, slot);
            if random.random_range(0..3) == 0 {
                group.run();
            }
        }
    }
    finish(&group, events);
    group.results()
}

/// By which of the application's inputs an event comes.
/// Puts an event into the inbox of the query in a slot.
pub(crate) fn push(group: &TestGroup, application: &RandomApplication, event: &RandomEvent, slot: Slot) {
    group.push_message(input_of(application, event), slot, event.arrival_us, event.topic, &event.payload);
}

pub(crate) fn input_of(application: &RandomApplication, event: &RandomEvent) -> u8 {
    if application.inputs == 1 { 0 } else { event.input }
}

/// Long silence, then the end: both runs close everything the same way.
pub(crate) fn finish(group: &TestGroup, events: &[RandomEvent]) {
    group.run();
    group.run_at(events.last().map_or(START_US, |event| event.arrival_us) + HOUR_US);
    group.end();
}

/// Queries that are equal: same parameters, same events.
struct Kind {
    parameters: RandomParameters,
    input: String,
}

/// A query of some kind that is there.
struct Member {
    id: u64,
    kind: usize,
    slot: u32,
    /// It gets no events, and so shares its slot with nobody.
    is_paused: bool,
}

#[test]
#[ignore = "slow"]
fn equal_queries_answer_as_each_does_alone() {
    let (mut results, mut most_shared) = (0, 0);
    for seed in 0..seeds() {
        let application = RandomApplication::new(seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0x7317);
        let parameters = (0..random.random_range(1..4)).map(|_| RandomParameters::new(&mut random));
        let kinds: Vec<Kind> =
            parameters.enumerate().map(|(kind, parameters)| Kind { parameters, input: format!("in{kind}") }).collect();
        let queries: Vec<RandomQuery> = (0..random.random_range(2..12))
            .map(|number| RandomQuery {
                parameters: kinds[number % kinds.len()].parameters,
                ..RandomQuery::new(&mut random)
            })
            .collect();
        let events = events(&mut random, kinds.len(), EVENTS, START_US);
        let (together, shared) = run_equal_queries(&application, &kinds, &queries, &events, &mut random);
        most_shared = most_shared.max(shared);
        for query in 0..queries.len() {
            let of_kind: Vec<RandomEvent> = events
                .iter()
                .map(|event| RandomEvent {
                    query: if event.query == query % kinds.len() { query } else { queries.len() },
                    ..event.clone()
                })
                .collect();
            let alone = run_alone(&application, &queries, &of_kind, query, &mut random);
            let expected = alone.get(&(query as u64)).cloned().unwrap_or_default();
            let found = together.get(&(query as u64)).cloned().unwrap_or_default();
            assert_eq!(found, expected, "seed {seed}, query {query} of {}\n{}", queries.len(), application.sql);
            results += expected.len();
        }
    }
    assert!(results > 10_000 && most_shared > 5, "{results} results, at most {most_shared} queries shared a slot");
}

/// All queries in one group that lets equal ones share a slot; also returns how many did at most.
fn run_equal_queries(
    application: &RandomApplication,
    kinds: &[Kind],
    queries: &[RandomQuery],
    events: &[RandomEvent],
    random: &mut StdRng,
) -> (Results, usize) {
    let mut group = TestGroup::sharing(&application.sql, START_US).spilling();
    let mut members: Vec<Member> = Vec::new();
    let (mut shared, mut joined_slots) = (0, Vec::new());
    let join = |group: &TestGroup, id: u64, kind: usize| {
        let Kind { parameters, input } = &kinds[kind];
        let joined = parameters.with_topics(input, &format!("out{id}"), |values| group.join(id, values));
        Member { id, kind, slot: joined.slot, is_paused: false }
    };
    for (place, event) in events.iter().enumerate() {
        for (number, query) in queries.iter().enumerate() {
            let id = number as u64;
            if query.life.end == place
                && let Some(index) = members.iter().position(|member| member.id == id)
            {
                group.run_at(event.arrival_us);
                let gone = members.swap_remove(index);
                group.leave(gone.slot, gone.id);
            }
            if query.life.start == place && !query.life.is_empty() {
                members.push(join(&group, id, number % kinds.len()));
            }
            if let Some(member) = members.iter_mut().find(|member| member.id == id) {
                // Events that wait are not waited for: a paused query still gets them.
                if !query.gets(place) && !member.is_paused {
                    member.slot = group.part(member.slot, id);
                }
                member.is_paused = !query.gets(place);
            }
        }
        // One route leads to a slot, however many queries are in it.
        joined_slots.clear();
        joined_slots.extend(members.iter().filter(|one| one.kind == event.query && !one.is_paused).map(|one| one.slot));
        joined_slots.sort_unstable();
        joined_slots.dedup();
        for &slot in &joined_slots {
            assert!(members.iter().all(|one| one.slot != slot || (one.kind == event.query && !one.is_paused)));
            push(&group, application, event, slot);
        }
        let tasks = group.tasks();
        match random.random_range(0..30) {
            0..8 => group.run(),
            8 | 9 => members.push(join(&group, 1_000 + place as u64, random.random_range(0..kinds.len()))),
            10 => {
                if let Some(index) = members.iter().position(|member| member.id >= 1_000) {
                    let gone = members.swap_remove(index);
                    group.leave(gone.slot, gone.id);
                }
            }
            11 => group = group.moved(),
            12 => drop(group.spill(random.random_range(0..3), 0)),
            13 if !tasks.is_empty() => group.split(&tasks[random.random_range(0..tasks.len())]),
            14 if tasks.len() > 1 => group.merge(&tasks[0], &tasks[1]),
            _ => {}
        }
        shared = shared.max(group.further_queries());
    }
    finish(&group, events);
    (group.results(), shared)
}
