//! Statements that are carried out while events come. What must hold: after a crash each query has exactly the events
//! that it had before the crash, though the log has further ones from just before its creation, or just behind its
//! pause.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;

use rivulet_connectors::mqtt::{Pending, Received};
use rivulet_dataflow::{LogPosition, Push};
use rivulet_runtime::Group;
use tempfile::TempDir;

use super::{copy, replay, run, run_tasks, start};
use crate::engine::Engine;
use crate::service::{
    Caller, ErrorKind, Parameter, ParameterValue, QueryChange, QueryRequest, SUBMIT_BATCH_MAX, Tenant,
};
use crate::trial::network::Results;

const APPLICATION: &str = "CREATE APPLICATION echoes (device TEXT, low BIGINT, name TEXT)
    INPUT t (n BIGINT) FROM 'mqtt:in/{device}' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:{name}' FORMAT JSON AS SELECT n FROM t WHERE n > $low; CHECKPOINT";

/// As many queries of one topic as share its decoding.
const CROWD: usize = 16;

/// A query: its device, its bound and its name.
type Query = (usize, i64, String);

/// Creates queries with one call.
fn create(engine: &Engine, queries: &[Query]) {
    let parameters: Vec<[Parameter<'_>; 3]> = queries
        .iter()
        .map(|(device, low, name)| {
            let device = ("device".into(), ParameterValue::Text(device.to_string().into()));
            [device, ("low".into(), ParameterValue::Int(*low)), ("name".into(), ParameterValue::Text(name.into()))]
        })
        .collect();
    let requests: Vec<QueryRequest<'_>> = queries
        .iter()
        .zip(&parameters)
        .map(|((.., name), parameters)| QueryRequest {
            name: Some(name),
            application: "echoes",
            parameters,
            label: None,
        })
        .collect();
    let answers = engine.session(Caller::local_operator()).submit(&requests);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// Sends an event to a device; false if there is no room for it now.
fn send(engine: &Engine, pending: &mut Pending, device: u16, n: u64) -> bool {
    let (topic, payload) = (format!("in/{device}"), format!("{{\"n\":{n}}}"));
    let (topic, payload) = (topic.as_bytes(), payload.as_bytes());
    let received = Received { client: b"c", packet_id: 1, topic, payload, ..Received::default() };
    engine.router().read().route(&received, pending) == Push::Taken
}

/// An engine to which one thread sends events, which another one processes.
struct Busy {
    engine: Arc<Engine>,
    results: Arc<Results>,
    /// How many devices send.
    devices: Arc<AtomicU16>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// The results that were taken at checkpoints, and how many there were of each query at the last one.
    taken: Vec<(String, Vec<u8>)>,
    saved: BTreeMap<String, usize>,
    folder: TempDir,
}

impl Busy {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("before")).expect("a folder");
        let (engine, results) = start(&folder.path().join("before"), folder.path());
        replay(&engine);
        run(&engine, APPLICATION);
        let (devices, is_over, threads) = (Arc::default(), Arc::default(), Vec::new());
        let (taken, saved) = (Vec::new(), BTreeMap::new());
        Self { engine, results, devices, is_over, threads, taken, saved, folder }
    }

    fn begin(&mut self, devices: u16) {
        self.devices.store(devices, Ordering::Relaxed);
        let (engine, devices, is_over) = (self.engine.clone(), self.devices.clone(), self.is_over.clone());
        self.threads.push(std::thread::spawn(move || {
            let (mut pending, mut n) = (Pending::default(), 1);
            while !is_over.load(Ordering::Relaxed) {
                let device = (n % u64::from(devices.load(Ordering::Relaxed))) as u16;
                while !send(&engine, &mut pending, device, n) && !is_over.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                n += 1;
                // A few thousand in a second, so that the statements are under way most of the time.
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        }));
        self.threads.push(worker(&self.engine, &self.is_over));
    }

    /// Ends the events, and compares what queries had with what they have after a crash.
    fn end(self) {
        let Self { engine, results, is_over, threads, mut taken, saved, folder, .. } = self;
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
        run_until_idle(&engine);
        taken.extend(results.take());
        compare(taken, &saved, folder.path());
    }

    fn checkpoint(&mut self) {
        run(&self.engine, "CHECKPOINT");
        self.taken.extend(self.results.take());
        self.saved = by_query(self.taken.clone()).into_iter().map(|(query, all)| (query, all.len())).collect();
    }

    /// Gives queries other bounds with one call, unless events that wait cannot be processed in time for it.
    fn try_to_alter(&self, lows: &[(&str, i64)]) {
        let parameters: Vec<[Parameter<'_>; 1]> =
            lows.iter().map(|(_, low)| [("low".into(), ParameterValue::Int(*low))]).collect();
        let changes = lows.iter().zip(&parameters);
        let changes: Vec<QueryChange<'_>> = changes
            .map(|((name, _), parameters)| QueryChange { name, parameters, label: None, whole_of: None })
            .collect();
        for answer in self.engine.session(Caller::local_operator()).alter(&changes) {
            let refused = answer.err().filter(|error| error.kind != ErrorKind::Unavailable);
            assert!(refused.is_none(), "{refused:?}");
        }
    }

    /// Carries out a statement, unless events that wait cannot be processed in time for it.
    fn try_to_run(&self, statement: &str) {
        for answer in self.engine.session(Caller::local_operator()).execute(statement) {
            let refused = answer.err().filter(|error| error.kind != ErrorKind::Unavailable);
            assert!(refused.is_none(), "{statement}: {refused:?}");
        }
    }
}

/// A thread that processes events until `is_over`.
fn worker(engine: &Arc<Engine>, is_over: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (engine, is_over) = (engine.clone(), is_over.clone());
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            run_tasks(&engine);
            engine.commit_log();
            // Tasks that found no room are tried again.
            engine.keep_time_once();
            std::thread::yield_now();
        }
    })
}

/// Processes everything that has come.
fn run_until_idle(engine: &Engine) {
    for _ in 0..100 {
        run_tasks(engine);
        engine.keep_time_once();
    }
    assert!(!engine.run_one(|_| 0, std::time::Duration::MAX), "everything is done");
    assert!(engine.commit_log());
}

/// Compares results with those after a crash. The results that were `saved`, at most so many, are not given again.
fn compare(before: Vec<(String, Vec<u8>)>, saved: &BTreeMap<String, usize>, folder: &Path) {
    let given = by_query(before);
    let (before, after) = (folder.join("before"), folder.join("after"));
    copy(&before, &after);
    let (engine, again) = start(&after, folder);
    // The end of the replay waits for events on their way to paused queries.
    let is_over = Arc::<AtomicBool>::default();
    let worker = worker(&engine, &is_over);
    replay(&engine);
    is_over.store(true, Ordering::Relaxed);
    worker.join().expect("a thread");
    run_until_idle(&engine);
    let (before, after) = (given, by_query(again.take()));
    assert!(!before.is_empty(), "there are results");
    let queries = before.keys().chain(after.keys());
    let is_same = |query: &String| {
        let [before, after] = [&before, &after].map(|all| all.get(query).map_or(&[][..], Vec::as_slice));
        before.ends_with(after) && before.len() - after.len() <= saved.get(query).copied().unwrap_or(0)
    };
    let differing = queries.filter(|query| !is_same(query));
    let shown = differing.map(|query| {
        let [before, after] = [&before, &after].map(|all| all.get(query).cloned().unwrap_or_default());
        let lost: Vec<_> = before.iter().filter(|one| !after.contains(one)).collect();
        let more: Vec<_> = after.iter().filter(|one| !before.contains(one)).collect();
        let ends = |all: &[&String]| (all.len(), all.first().copied().cloned(), all.last().copied().cloned());
        format!("{query} had {}, has lost {:?} and has {:?} besides", before.len(), ends(&lost), ends(&more))
    });
    let shown: Vec<String> = shown.take(40).collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
}

fn by_query(results: Vec<(String, Vec<u8>)>) -> BTreeMap<String, Vec<String>> {
    let mut by_query: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (topic, payload) in results {
        by_query.entry(topic).or_default().push(String::from_utf8(payload).expect("text"));
    }
    by_query
}

#[test]
fn each_of_many_queries_created_at_once_has_its_events() {
    let mut busy = Busy::new();
    busy.begin(SUBMIT_BATCH_MAX as u16);
    for round in 0..3 {
        let queries: Vec<Query> =
            (0..SUBMIT_BATCH_MAX).map(|device| (device, round, format!("q{round}_{device}"))).collect();
        // Most events are those of few devices.
        busy.devices.store([1, SUBMIT_BATCH_MAX as u16, 7][round as usize], Ordering::Relaxed);
        create(&busy.engine, &queries);
    }
    busy.end();
}

#[test]
fn queries_that_are_created_paused_and_resumed_have_their_events() {
    let mut busy = Busy::new();
    // The crowd is equal, so it has one slot. A topic is shared once enough of the queries below have slots of their
    // own.
    let crowd: Vec<Query> = (0..CROWD).map(|query| (0, 0, format!("crowd{query}"))).collect();
    create(&busy.engine, &crowd);
    busy.begin(3);
    for round in 0..40 {
        // Equal queries share a slot, and their topic if it is that of the crowd.
        let device = round % 3;
        let [one, other, alone] = ["one", "other", "alone"].map(|name| format!("{name}{round}"));
        let queries = [(device, 0, one.clone()), (device, 0, other.clone()), (device, 1, alone.clone())];
        create(&busy.engine, &queries);
        for query in [&one, &alone] {
            busy.try_to_run(&format!("PAUSE QUERY {query}"));
        }
        busy.try_to_run(&format!("RESUME QUERY {one}"));
        busy.try_to_run(&format!("PAUSE QUERY {other}"));
        busy.try_to_run(&format!("RESUME QUERY {alone}"));
    }
    busy.end();
}

#[test]
fn queries_that_are_altered_and_saved_have_their_events() {
    let mut busy = Busy::new();
    let crowd: Vec<Query> = (0..CROWD).map(|query| (0, 0, format!("crowd{query}"))).collect();
    create(&busy.engine, &crowd);
    busy.begin(3);
    for round in 0..20 {
        let [one, other, alone] = ["one", "other", "alone"].map(|name| format!("{name}{round}"));
        create(&busy.engine, &[(0, 0, one.clone()), (0, 0, other.clone()), (1, 1, alone.clone())]);
        busy.try_to_run(&format!("ALTER QUERY {one} SET (low => 1)"));
        busy.try_to_run(&format!("ALTER QUERY {alone} SET (device => '{}')", round % 3));
        if round % 5 == 4 {
            busy.checkpoint();
        }
        busy.try_to_run(&format!("PAUSE QUERY {other}"));
        busy.try_to_run(&format!("PAUSE QUERY {alone}"));
        busy.try_to_run(&format!("ALTER QUERY {other} SET (device => '2')"));
        busy.try_to_run(&format!("RESUME QUERY {other}"));
    }
    busy.end();
}

#[test]
fn queries_that_are_altered_in_bulk_have_their_events() {
    const SILENT: i64 = 1 << 40;
    let mut busy = Busy::new();
    // About as many slots at each topic as share its decoding: queries that are not silent are equal, and share one.
    let names: Vec<String> = (0..3 * (CROWD + 2)).map(|query| format!("q{query}")).collect();
    let queries = names.iter().enumerate().map(|(place, name)| (place % 3, SILENT + place as i64, name.clone()));
    create(&busy.engine, &queries.collect::<Vec<_>>());
    busy.begin(3);
    for round in 0..24_usize {
        // In no order; the first ones are equal at times, and silent at others.
        let places = (0..names.len()).map(|place| place * 7 % names.len()).filter(|place| place % 5 == round % 5);
        let lows = places.map(|place| match (place + round / 5).is_multiple_of(3) {
            true => (names[place].as_str(), SILENT + (round * names.len() + place) as i64),
            false => (names[place].as_str(), 0),
        });
        busy.try_to_alter(&lows.collect::<Vec<_>>());
        if round % 8 == 7 {
            busy.checkpoint();
        }
    }
    busy.end();
}

#[test]
fn a_query_that_makes_its_topic_shared_when_it_gets_a_slot_for_itself_is_found_by_its_new_key() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("before")).expect("a folder");
    let (engine, results) = start(&folder.path().join("before"), folder.path());
    replay(&engine);
    run(&engine, APPLICATION);
    // One slot less than share a topic; two equal queries are in the first.
    let crowd = (0..CROWD - 1).map(|query| (0, 100 + query as i64, format!("crowd{query}")));
    create(&engine, &crowd.chain([(0, 100, "equal".to_owned())]).collect::<Vec<_>>());
    assert_eq!(engine.queries.routing.shared_counts().0, 0);
    run(&engine, "ALTER QUERY equal SET (low => 0)");
    assert_eq!(engine.queries.routing.shared_counts(), (1, CROWD));
    for n in [50, 200] {
        assert!(send(&engine, &mut Pending::default(), 0, n));
        run_tasks(&engine);
    }
    let given = by_query(results.take());
    assert_eq!(given["equal"], ["{\"n\":50}", "{\"n\":200}"]);
    assert_eq!(given["crowd0"], ["{\"n\":200}"]);
    engine.commit_log();
    copy(&folder.path().join("before"), &folder.path().join("after"));
    let (engine, again) = start(&folder.path().join("after"), folder.path());
    replay(&engine);
    run_until_idle(&engine);
    assert_eq!(by_query(again.take()), given);
}

#[test]
fn a_query_shares_no_slot_that_has_yet_to_get_earlier_events() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("before")).expect("a folder");
    let (engine, results) = start(&folder.path().join("before"), folder.path());
    replay(&engine);
    run(&engine, APPLICATION);
    let crowd: Vec<Query> = (0..CROWD).map(|query| (0, query as i64, format!("crowd{query}"))).collect();
    create(&engine, &crowd);
    // It waits to be decoded for all of them.
    assert!(send(&engine, &mut Pending::default(), 0, 100));
    create(&engine, &[(0, 0, "equal".into())]);
    run_tasks(&engine);
    assert!(send(&engine, &mut Pending::default(), 0, 200));
    run_tasks(&engine);
    engine.commit_log();
    let all = by_query(results.take());
    assert_eq!(all.get("equal").map(Vec::as_slice), Some(&["{\"n\":200}".to_owned()][..]), "it came behind the first");
    assert_eq!(all["crowd0"], ["{\"n\":100}", "{\"n\":200}"]);
}

/// An engine whose queries read shared topics: `one`, with all events of device 0, and others with few of them. A
/// second application, `others`, reads device 1.
fn start_shared(folder: &Path) -> (Arc<Engine>, Arc<Results>) {
    std::fs::create_dir(folder.join("before")).expect("a folder");
    let (engine, results) = start(&folder.join("before"), folder);
    replay(&engine);
    run(&engine, APPLICATION);
    run(&engine, &APPLICATION.replace("echoes", "others"));
    let crowd = (0..CROWD).map(|query| (0, 1_000 + query as i64, format!("crowd{query}")));
    create(&engine, &crowd.chain([(0, 0, "one".into())]).collect::<Vec<_>>());
    for low in 0..CROWD {
        let values = format!("device => '1', low => {low}, name => 'other{low}'");
        run(&engine, &format!("CREATE QUERY other{low} FROM APPLICATION others WITH ({values})"));
    }
    assert_eq!(engine.queries.routing.shared_counts().0, 2);
    (engine, results)
}

fn group(engine: &Engine, application: &str) -> Arc<Group> {
    let found = engine.queries.applications.find(&Tenant::default().named(application));
    found.expect("an application").group.clone()
}

#[test]
fn who_is_paused_keeps_what_it_had_while_an_earlier_event_of_another_topic_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, results) = start_shared(folder.path());
    let others = group(&engine, "others");
    others.quiesce();
    for (device, n) in [(1, 50), (0, 60)] {
        assert!(send(&engine, &mut Pending::default(), device, n));
    }
    run_tasks(&engine);
    let mut given = results.take();
    assert_eq!(by_query(given.clone())["one"], ["{\"n\":60}"]);
    assert!(!given.iter().any(|(topic, _)| topic.starts_with("other")), "they have yet to get the event before");
    run(&engine, "PAUSE QUERY one");
    others.go_on();
    run_until_idle(&engine);
    given.extend(results.take());
    compare(given, &BTreeMap::new(), folder.path());
}

#[test]
fn who_has_yet_to_get_an_event_of_before_is_not_paused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, results) = start_shared(folder.path());
    let others = group(&engine, "others");
    others.quiesce();
    assert!(send(&engine, &mut Pending::default(), 1, 50));
    run_tasks(&engine);
    // The others take none, and so it waits behind theirs.
    assert!(send(&engine, &mut Pending::default(), 0, 60));
    run_tasks(&engine);
    let refused = engine.session(Caller::local_operator()).pause("one").expect_err("an event waits");
    assert!(refused.kind == ErrorKind::Unavailable && refused.message.contains("yet to be decoded"), "{refused}");
    others.go_on();
    run_until_idle(&engine);
    let given = results.take();
    assert_eq!(by_query(given.clone())["one"], ["{\"n\":60}"]);
    run(&engine, "PAUSE QUERY one");
    compare(given, &BTreeMap::new(), folder.path());
}

#[test]
fn who_is_resumed_has_what_waited_when_it_was_paused_and_nothing_that_came_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, results) = start_shared(folder.path());
    let send = |n| assert!(send(&engine, &mut Pending::default(), 0, n));
    send(1);
    // It is decoded, and waits for the query.
    assert!(engine.run_one(|_| 0, std::time::Duration::MAX));
    run(&engine, "PAUSE QUERY one");
    // It waits to be decoded, for the others.
    send(2);
    run(&engine, "RESUME QUERY one");
    send(3);
    assert!(results.take().is_empty());
    run_until_idle(&engine);
    let given = results.take();
    assert_eq!(by_query(given.clone())["one"], ["{\"n\":1}", "{\"n\":3}"]);
    compare(given, &BTreeMap::new(), folder.path());
    run(&engine, "CHECKPOINT");
    let has_absences = group(&engine, "echoes").forget_absences(LogPosition::MAX);
    assert!(!has_absences, "a checkpoint forgets what it has no use for");
}
