//! Statements that are carried out while a message of inputs that are not durable waits for room in the router. What
//! must hold: it comes to each query that read its topic when it was received exactly once, whether others have it
//! already or not.

use std::collections::BTreeMap;
use std::sync::Arc;

use rivulet_connectors::mqtt::{Pending, Received};
use rivulet_dataflow::Push;
use rivulet_runtime::Group;
use tempfile::TempDir;

use super::{replay, run, run_tasks, start};
use crate::engine::Engine;
use crate::service::Tenant;
use crate::trial::network::Results;

/// As many queries of one topic as share its decoding.
const CROWD: usize = 16;

/// Three applications that read the same topics. A message may wait for any of them, when those before it have it.
const NAMES: [&str; 3] = ["first", "middle", "last"];

struct Waiting {
    engine: Arc<Engine>,
    results: Arc<Results>,
    pending: Pending,
    payload: String,
    _folder: TempDir,
}

impl Waiting {
    /// Equal queries `one` and `other` of the application in the middle, and a query of each other application.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (engine, results) = start(folder.path(), folder.path());
        replay(&engine);
        for name in NAMES {
            run(&engine, &application(name, "n >= $low"));
        }
        for (name, application) in [("a", "first"), ("one", "middle"), ("other", "middle"), ("z", "last")] {
            create(&engine, name, application, 0);
        }
        Self { engine, results, pending: Pending::default(), payload: String::new(), _folder: folder }
    }

    /// Sends an event that an application has no room for.
    fn send_to_full(&mut self, full: &str, n: u64) {
        self.payload = format!("{{\"n\":{n}}}");
        let group = self.group(full);
        group.close_intake();
        assert_eq!(self.push(), Push::Full);
        group.go_on();
        run_tasks(&self.engine);
    }

    fn group(&self, application: &str) -> Arc<Group> {
        let found = self.engine.queries.applications.find(&Tenant::default().named(application));
        found.expect("an application").group.clone()
    }

    fn push(&mut self) -> Push {
        let received =
            Received { client: b"c", topic: b"in/1", payload: self.payload.as_bytes(), ..Received::default() };
        self.engine.router().read().route(&received, &mut self.pending)
    }

    /// Lets the event that waits in, and a further one, 100. Returns what each query has got since the last call.
    fn got(&mut self) -> BTreeMap<String, Vec<String>> {
        assert_eq!(self.push(), Push::Taken);
        run_tasks(&self.engine);
        self.payload = "{\"n\":100}".into();
        assert_eq!(self.push(), Push::Taken);
        run_tasks(&self.engine);
        let mut got: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (topic, payload) in self.results.take() {
            got.entry(topic).or_default().push(String::from_utf8(payload).expect("text"));
        }
        got
    }
}

fn application(name: &str, condition: &str) -> String {
    format!(
        "CREATE OR REPLACE APPLICATION {name} (device TEXT, low BIGINT, name TEXT)
         INPUT t (n BIGINT) FROM 'mqtt:in/{{device}}' FORMAT JSON
         OUTPUT 'mqtt:{{name}}' FORMAT JSON AS SELECT n FROM t WHERE {condition}"
    )
}

fn create(engine: &Engine, name: &str, application: &str, low: usize) {
    let values = format!("device => '1', low => {low}, name => '{name}'");
    run(engine, &format!("CREATE QUERY {name} FROM APPLICATION {application} WITH ({values})"));
}

/// Events with these numbers.
fn events(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(|n| format!("{{\"n\":{n}}}")).collect()
}

/// What queries get of an event 5 that waits while a statement is carried out, and of 100 behind it, whichever
/// application it waits for.
fn check(statement: &str, expected: &[(&str, &[u64])]) {
    for full in NAMES {
        let mut waiting = Waiting::new();
        waiting.send_to_full(full, 5);
        run(&waiting.engine, statement);
        let got = waiting.got();
        let all = [("a", &[5, 100][..]), ("z", &[5, 100])];
        for (query, numbers) in all.iter().chain(expected) {
            let of_query = got.get(*query).cloned().unwrap_or_default();
            assert_eq!(of_query, events(numbers), "{query}, while '{full}' is full: {statement}");
        }
    }
}

#[test]
fn a_query_that_gets_other_values_has_the_event() {
    check("ALTER QUERY other SET (low => 1)", &[("one", &[5, 100]), ("other", &[5, 100])]);
    let statements = "ALTER QUERY other SET (low => 1); ALTER QUERY one SET (low => 2)";
    check(statements, &[("one", &[5, 100]), ("other", &[5, 100])]);
    let there_and_back = "ALTER QUERY other SET (low => 1); ALTER QUERY other SET (low => 0)";
    check(there_and_back, &[("one", &[5, 100]), ("other", &[5, 100])]);
}

#[test]
fn the_others_have_the_event_when_a_query_that_was_equal_goes() {
    check("DROP QUERY other", &[("one", &[5, 100])]);
    check("PAUSE QUERY other", &[("one", &[5, 100])]);
    check("ALTER QUERY other SET (low => 1); DROP QUERY one", &[("other", &[5, 100])]);
    check("ALTER QUERY other SET (low => 1); PAUSE QUERY one", &[("other", &[5, 100])]);
    check("ALTER QUERY other SET (device => '2')", &[("one", &[5, 100])]);
}

#[test]
fn queries_that_the_next_version_makes_unequal_have_the_event() {
    for full in NAMES.into_iter().chain(["next"]) {
        let mut waiting = Waiting::new();
        // Their values decide nothing at first, so the queries share a slot.
        run(&waiting.engine, &application("next", "n >= 0"));
        ["b", "c"].into_iter().zip(0..).for_each(|(name, low)| create(&waiting.engine, name, "next", low));
        assert_eq!(waiting.group("next").further_queries(), 1);
        waiting.send_to_full(full, 5);
        run(&waiting.engine, &application("next", "n >= $low"));
        assert_eq!(waiting.group("next").further_queries(), 0);
        let got = waiting.got();
        for query in ["a", "b", "c", "one", "other", "z"] {
            assert_eq!(got.get(query), Some(&events(&[5, 100])), "{query}, while '{full}' is full");
        }
    }
}

#[test]
fn queries_whose_topic_becomes_shared_meanwhile_have_the_event() {
    for full in NAMES {
        let mut waiting = Waiting::new();
        // One slot less than share a topic.
        for query in 1..CROWD - 3 {
            create(&waiting.engine, &format!("crowd{query}"), "middle", query);
        }
        create(&waiting.engine, "late", "middle", 0);
        assert_eq!(waiting.engine.queries.routing.shared_counts().0, 0);
        waiting.send_to_full(full, 50);
        run(&waiting.engine, "ALTER QUERY other SET (low => 30); ALTER QUERY late SET (low => 31)");
        assert_eq!(waiting.engine.queries.routing.shared_counts().0, 1);
        // Those that share it get another key.
        run(&waiting.engine, "ALTER QUERY one SET (low => 32); ALTER QUERY other SET (low => 33)");
        let got = waiting.got();
        let crowd = (1..CROWD - 3).map(|query| format!("crowd{query}"));
        for query in ["a", "one", "other", "late", "z"].map(str::to_owned).into_iter().chain(crowd) {
            assert_eq!(got.get(&query), Some(&events(&[50, 100])), "{query}, while '{full}' is full");
        }
    }
}
