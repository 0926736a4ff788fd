//! A restart that cannot be seen in the results: queries that are saved, lost, restored and given the events behind the
//! snapshot again give exactly the results that they give alone and undisturbed, each under the same number.
//!
//! Random applications, parameters and events; equal queries that share slots, and that come, pause, part and leave;
//! tasks that are split and merged; silent queries that are spilled; snapshots of what changed or of everything.
//! Sometimes there is a crash: the group is dropped, a new one is made from the kept snapshots, and the events from the
//! last snapshot on are offered again, including those that its state already had. Or a new version of the application
//! takes over the queries with their state: up to there the results are those of one version, and from there on those
//! of the other, as each would give them alone.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::{Event, Line, StateMap};
use rivulet_runtime::GroupSnapshot;
use rivulet_sql::ParameterRows;
use rivulet_testing::TestGroup;
use rivulet_testing::random::{RandomApplication, RandomEvent, RandomParameters, events};

use crate::key_property::{EVENTS, RandomQuery, START_US, finish, input_of, run_alone};

/// Seeds that are run; `RIVULET_SEEDS=100000 cargo test capture_property` runs more.
fn seeds() -> u64 {
    std::env::var("RIVULET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(600)
}

/// A query that is there.
struct Member {
    id: u64,
    kind: usize,
    slot: u32,
    is_paused: bool,
    /// When it got events, in places of the list of events.
    gets: Range<usize>,
}

/// A group, what was captured of it, and what it takes to make it once more.
struct Run<'a> {
    application: &'a RandomApplication,
    kinds: &'a [RandomParameters],
    events: &'a [RandomEvent],
    group: TestGroup,
    members: Vec<Member>,
    captures: Vec<GroupSnapshot>,
    /// Events from this place on are not in the last capture, as far as anybody knows.
    replayed_from: usize,
    /// Events before this place have been processed.
    processed: usize,
    crashes: usize,
    /// Queries that were restored into a slot that others share.
    shared: usize,
    replaced: Option<Replaced>,
}

/// That a new version has taken over.
struct Replaced {
    /// How many results queries had given by then.
    results: BTreeMap<u64, usize>,
    /// Where the state goes that was captured last, if the version before was captured.
    map: Option<(Line, StateMap)>,
}

/// Another version of an application that can go on with its state: with a further parameter, and a further column
/// where that is no state.
fn next_version(sql: &str) -> String {
    let mut next = sql.replacen("(low DOUBLE", "(mark TEXT DEFAULT 'second', low DOUBLE", 1);
    if !sql.contains("EMIT ON CHANGE") && !sql.contains("SELECT *") {
        next = next.replacen(" FROM ", ", $mark AS version FROM ", if sql.contains("FROM 'mqtt:") { 3 } else { 1 });
        next = next.replace(", $mark AS version FROM 'mqtt:", " FROM 'mqtt:");
    }
    next
}

impl Run<'_> {
    /// Offers the event at a place to the members that get it.
    fn push(&self, place: usize) {
        let event = &self.events[place];
        let gets = |member: &&Member| member.kind == event.query && member.gets.contains(&place);
        let mut slots: Vec<u32> = self.members.iter().filter(gets).map(|member| member.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            let input = input_of(self.application, event);
            self.group.push_logged(Event {
                input,
                slot,
                arrival_us: event.arrival_us,
                position: place as u64 + 1,
                topic: event.topic.as_bytes(),
                payload: event.payload.as_bytes(),
            });
        }
    }

    fn run(&mut self, place: usize) {
        self.group.run();
        self.processed = place;
    }

    /// Processes what came before `place`, and captures it.
    fn save_all(&mut self, place: usize) {
        self.run(place);
        self.captures = vec![self.group.snapshot(true)];
        self.replayed_from = place;
        if let Some(replaced) = &mut self.replaced {
            replaced.map = None;
        }
    }

    /// Lets a new version take over; `place` is the next event.
    fn replace(mut self, place: usize) -> Self {
        if self.crashes > 0 {
            // What had been sent before a crash is sent once more by the version that had sent it.
            self.run(place);
        }
        let of_query = |(query, results): (u64, Vec<String>)| (query, results.len());
        let results = self.group.numbered_results().into_iter().map(of_query).collect();
        let queries: Vec<u64> = self.members.iter().map(|member| member.id).collect();
        let sql = next_version(&self.application.sql);
        let (kinds, members) = (self.kinds, &self.members);
        let (group, captured, map) = self.group.replaced(&sql, &queries, |rows| bind_members(rows, kinds, members));
        (self.group, self.captures, self.replayed_from) = (group, vec![captured], self.processed);
        self.replaced = Some(Replaced { results, map: Some(map) });
        self
    }

    fn capture(&mut self, random: &mut StdRng) {
        // Whatever waits is not in it.
        let from = self.processed;
        let is_outdated = self.replaced.as_mut().is_some_and(|replaced| replaced.map.take().is_some());
        let everything = is_outdated || self.captures.is_empty() || random.random_range(0..4) == 0;
        let captured = self.group.snapshot(everything);
        assert!(captured.position <= from as u64, "{} and {from}", captured.position);
        if everything {
            self.captures.clear();
        }
        if random.random_range(0..5) == 0 {
            // It could not be kept, and a crash finds the state before. The next one must have everything.
            match everything {
                true => self.replayed_from = 0,
                false => drop(self.group.snapshot(true)),
            }
            self.captures.clear();
            let captured = self.group.snapshot(true);
            self.captures.push(captured);
        } else {
            self.captures.push(captured);
        }
        self.replayed_from = from;
    }

    /// Everything is lost but what was captured; `place` is the next event.
    fn crash(mut self, place: usize, random: &mut StdRng) -> Self {
        if self.members.is_empty() || self.captures.is_empty() {
            return self;
        }
        // In the order of their numbers, as a catalog has them.
        self.members.sort_unstable_by_key(|member| member.id);
        let queries: Vec<u64> = self.members.iter().map(|member| member.id).collect();
        let (kinds, members) = (self.kinds, &self.members);
        let map = self.replaced.as_ref().and_then(|replaced| replaced.map.as_ref());
        let bind = |rows: &mut ParameterRows| bind_members(rows, kinds, members);
        let (group, slots) = self.group.restarted(&self.captures, map, &queries, bind);
        self.group = group;
        self.members.iter_mut().zip(&slots).for_each(|(member, &slot)| member.slot = slot);
        // Who is paused shares its slot with nobody who is not, so nothing of it is shared here either.
        for index in 0..self.members.len() {
            let Member { id, slot, is_paused, .. } = self.members[index];
            if is_paused {
                self.members[index].slot = self.group.part(slot, id);
            }
        }
        self.shared = self.shared.max(self.group.further_queries());
        self.crashes += 1;
        let first = self.replayed_from.saturating_sub(random.random_range(0..20));
        for place in first..place {
            self.group.hold_timers_at(self.events[place].arrival_us);
            self.push(place);
            if random.random_range(0..10) == 0 {
                self.group.run();
            }
        }
        self.group.run();
        self.group.hold_timers_at(i64::MAX);
        self.processed = place;
        self
    }
}

fn bind_members(rows: &mut ParameterRows, kinds: &[RandomParameters], members: &[Member]) {
    for member in members {
        let (input, output) = (format!("in{}", member.kind), format!("out{}", member.id));
        kinds[member.kind].with_topics(&input, &output, |values| {
            rows.push(values.iter().copied()).expect("the parameters fit");
        });
    }
}

#[test]
#[ignore = "slow"]
fn queries_answer_after_a_crash_as_if_there_had_been_none() {
    let (mut results, mut crashes, mut most_shared, mut of_both) = (0, 0, 0, 0);
    for seed in 0..seeds() {
        let application = RandomApplication::new(seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0xc4a5);
        let kinds: Vec<RandomParameters> =
            (0..random.random_range(1..4)).map(|_| RandomParameters::new(&mut random)).collect();
        let queries: Vec<RandomQuery> = (0..random.random_range(2..10))
            .map(|number| RandomQuery { parameters: kinds[number % kinds.len()], ..RandomQuery::new(&mut random) })
            .collect();
        let events = events(&mut random, kinds.len(), EVENTS, START_US);
        let run = run_with_crashes(&application, &kinds, &queries, &events, &mut random);
        crashes += run.crashes;
        most_shared = most_shared.max(run.shared);
        let found = run.group.numbered_results();
        for query in 0..queries.len() {
            let of_kind: Vec<RandomEvent> = events
                .iter()
                .map(|event| RandomEvent {
                    query: if event.query == query % kinds.len() { query } else { queries.len() },
                    ..event.clone()
                })
                .collect();
            let mut answers = |application: &RandomApplication| {
                let alone = run_alone(application, &queries, &of_kind, query, &mut random);
                alone.get(&(query as u64)).cloned().unwrap_or_default()
            };
            let mut expected = answers(&application);
            if let Some(replaced) = &run.replaced {
                let next = RandomApplication { sql: next_version(&application.sql), ..application };
                let by_next = answers(&next);
                assert_eq!(by_next.len(), expected.len(), "the versions differ in what they say alone: {}", next.sql);
                let first = replaced.results.get(&(query as u64)).copied().unwrap_or(0);
                of_both += usize::from(first > 0 && first < expected.len() && by_next != expected);
                expected.splice(first.min(by_next.len()).., by_next[first.min(by_next.len())..].iter().cloned());
            }
            let found = found.get(&(query as u64)).cloned().unwrap_or_default();
            assert_eq!(found, expected, "seed {seed}, query {query} of {}\n{}", queries.len(), application.sql);
            results += expected.len();
        }
    }
    assert!(
        results > 4_000 && crashes > 500 && most_shared > 3 && of_both > 50,
        "{results} results, {crashes} crashes, at most {most_shared} restored queries shared a slot, {of_both} queries \
         had results of both versions"
    );
}

fn run_with_crashes<'a>(
    application: &'a RandomApplication,
    kinds: &'a [RandomParameters],
    queries: &[RandomQuery],
    events: &'a [RandomEvent],
    random: &mut StdRng,
) -> Run<'a> {
    let mut run = Run {
        application,
        kinds,
        events,
        group: TestGroup::sharing(&application.sql, START_US).spilling(),
        members: Vec::new(),
        captures: Vec::new(),
        replayed_from: 0,
        processed: 0,
        crashes: 0,
        shared: 0,
        replaced: None,
    };
    for (place, event) in events.iter().enumerate() {
        for (number, query) in queries.iter().enumerate() {
            let id = number as u64;
            if query.life.end == place
                && let Some(index) = run.members.iter().position(|member| member.id == id)
            {
                run.group.run_at(event.arrival_us);
                run.processed = place;
                let gone = run.members.swap_remove(index);
                run.group.leave(gone.slot, gone.id);
            }
            if query.life.start == place && !query.life.is_empty() {
                // Nobody knows later which events came before it did, so all that was done is saved with its coming.
                run.save_all(place);
                let kind = number % kinds.len();
                let (input, output) = (format!("in{kind}"), format!("out{id}"));
                let joined = kinds[kind].with_topics(&input, &output, |values| run.group.join(id, values));
                run.members.push(Member { id, kind, slot: joined.slot, is_paused: false, gets: place..usize::MAX });
            }
            if let Some(index) = run.members.iter().position(|member| member.id == id)
                && run.members[index].is_paused == query.gets(place)
            {
                // The same, of which events it got.
                run.save_all(place);
                let member = &mut run.members[index];
                if query.gets(place) {
                    (member.is_paused, member.gets) = (false, place..usize::MAX);
                } else {
                    member.slot = run.group.part(member.slot, id);
                    (member.is_paused, member.gets) = (true, 0..0);
                }
                run.save_all(place);
            }
        }
        run.push(place);
        let tasks = run.group.tasks();
        match random.random_range(0..40) {
            0..8 => run.run(place + 1),
            8..14 => run.capture(random),
            14 | 15 => run = run.crash(place + 1, random),
            16 | 17 => {
                run.group.spill(random.random_range(0..3), 0);
            }
            18 if !tasks.is_empty() => run.group.split(&tasks[random.random_range(0..tasks.len())]),
            19 if tasks.len() > 1 => run.group.merge(&tasks[0], &tasks[1]),
            20 if run.replaced.is_none() => run = run.replace(place + 1),
            _ => {}
        }
    }
    finish(&run.group, events);
    run
}
