//! Applications that read the log behind the others. What must hold: each gets each event once and in order, while no
//! message waits for the disk or for another application, and what is lost or given up is told.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rivulet_connectors::mqtt::{Pending, Received};
use rivulet_dataflow::{Push, Reason};
use rivulet_storage::log::LogSettings;
use tempfile::TempDir;

use super::{replay, run, run_tasks, start_with};
use crate::engine::Engine;
use crate::engine::running::Running;
use crate::engine::standstill::Standstills;
use crate::service::{Caller, ErrorKind, Tenant};
use crate::trial::network::Results;

/// As many queries of one topic as share its decoding.
const CROWD: usize = 16;

/// What an inbox has room for.
const ROOM: usize = 65_536;

struct Behind {
    engine: Arc<Engine>,
    results: Arc<Results>,
    standstills: Arc<Standstills>,
    folder: TempDir,
}

impl Behind {
    /// Applications of these names, each with so many queries of one topic, which fall behind.
    fn new(names: &[&str], queries: usize, log: LogSettings) -> Self {
        let behind = Self::with(names, queries, log, "log");
        names.iter().for_each(|name| behind.fall_behind(name));
        behind
    }

    fn fall_behind(&self, name: &str) {
        let running = self.running(name);
        self.engine.routing.fall_behind(&running);
        self.standstills.known.lock().insert(running.number, running);
    }

    /// The files of the log, oldest first.
    fn log_files(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.folder.path().join("log")).expect("a log").map(|file| file.expect("a file").path());
        let mut files: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
        files.sort();
        files
    }

    /// Makes the oldest file of the log one that cannot be read, until the answer is called.
    fn block_oldest_file(&self) -> impl FnOnce() {
        let file = self.log_files().swap_remove(0);
        let kept = file.with_extension("kept");
        fs::rename(&file, &kept).expect("it is renamed");
        fs::create_dir(&file).expect("a folder in its place");
        move || {
            fs::remove_dir(&file).expect("it is removed");
            fs::rename(&kept, &file).expect("it is back");
        }
    }

    fn with(names: &[&str], queries: usize, log: LogSettings, durability: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (engine, results) = start_with(folder.path(), folder.path(), log);
        replay(&engine);
        let standstills = engine.standstills();
        let behind = Self { engine, results, standstills, folder };
        for name in names {
            let application = format!(
                "CREATE APPLICATION {name} (q BIGINT) INPUT t (n BIGINT) FROM 'mqtt:in' FORMAT JSON
                 WITH (durability => '{durability}') OUTPUT 'mqtt:{name}/{{q}}' FORMAT JSON
                 AS SELECT n FROM t WHERE n > $q - 1000"
            );
            run(&behind.engine, &application);
            for n in 0..queries {
                let query = format!("CREATE QUERY {name}{n} FROM APPLICATION {name} WITH (q => {n})");
                run(&behind.engine, &query);
            }
        }
        behind
    }

    fn running(&self, name: &str) -> Arc<Running> {
        self.engine.applications.find(&Tenant::default().named(name)).expect("an application")
    }

    fn send(&self, n: usize, text: &str) {
        let payload = format!("{{\"n\":{n},\"text\":\"{text}\"}}");
        let received = Received { client: b"c", topic: b"in", payload: payload.as_bytes(), ..Received::default() };
        assert_eq!(self.engine.router().read().route(&received, &mut Pending::default()), Push::Taken);
    }

    /// What came to the topic, since it was asked last.
    fn numbers(&self, topic: &str) -> Vec<usize> {
        let of_topic = self.results.take().into_iter().filter(|(found, _)| found == topic);
        let number = |payload: Vec<u8>| {
            let text = String::from_utf8(payload).expect("text");
            text.trim_matches(|one: char| !one.is_ascii_digit()).parse().expect("a number")
        };
        of_topic.map(|(_, payload)| number(payload)).collect()
    }

    fn given_up(&self, name: &str) -> u64 {
        self.running(name).group.metrics().refused[Reason::Overflow as usize]
    }
}

#[test]
fn the_last_events_are_handed_over_from_memory_and_the_disk_is_not_waited_for() {
    let behind = Behind::new(&["hook"], 1, LogSettings::default());
    let group = behind.running("hook").group.clone();
    behind.send(0, "");
    assert!(behind.engine.commit_log());
    (1..3).for_each(|n| behind.send(n, ""));
    let logged_to = behind.engine.logged_to();
    behind.standstills.catch_up();
    assert_eq!((group.is_behind(), behind.engine.logged_to()), (false, logged_to), "nobody has waited for the disk");
    behind.send(3, "");
    run_tasks(&behind.engine);
    assert_eq!(behind.numbers("hook/0"), [0, 1, 2, 3]);
}

#[test]
fn many_queries_of_one_topic_get_no_more_at_once_than_there_is_room_for() {
    const QUERIES: usize = CROWD + 4;
    const EVENTS: usize = 4_000;
    let behind = Behind::new(&["hook"], QUERIES, LogSettings::default());
    let group = behind.running("hook").group.clone();
    (0..EVENTS).for_each(|n| behind.send(n, ""));
    let mut numbers = Vec::new();
    for _ in 0..100 {
        behind.standstills.catch_up();
        assert!(group.waiting().0 <= ROOM + QUERIES, "{:?}", group.waiting());
        run_tasks(&behind.engine);
        numbers.extend(behind.numbers("hook/7"));
        if !group.is_behind() {
            break;
        }
    }
    assert!(!group.is_behind() && numbers == (0..EVENTS).collect::<Vec<_>>());
}

#[test]
fn who_has_no_room_takes_no_time_from_others() {
    let behind = Behind::new(&["full", "other"], CROWD + 4, LogSettings::default());
    (0..ROOM / CROWD).for_each(|n| behind.send(n, ""));
    // Nobody runs, so the inboxes are full.
    behind.standstills.catch_up();
    let turn = || {
        let begun = Instant::now();
        behind.standstills.catch_up();
        begun.elapsed()
    };
    let shortest = (0..20).map(|_| turn()).min();
    assert!(shortest < Some(Duration::from_millis(400)), "{shortest:?}");
}

#[test]
fn what_is_damaged_in_the_log_is_told_and_counted() {
    let behind = Behind::new(&["hook", "other"], 1, LogSettings::default());
    for n in 0..3 {
        behind.send(n, &format!("number {n}"));
        assert!(behind.engine.commit_log());
    }
    let damaged = behind.log_files().into_iter().filter(|path| {
        let mut bytes = fs::read(path).expect("a file");
        let found = bytes.windows(8).position(|part| part == b"number 1");
        found.is_some_and(|at| {
            bytes[at] ^= 1;
            fs::write(path, bytes).is_ok()
        })
    });
    assert_eq!(damaged.count(), 1);
    assert_eq!(behind.engine.event_log.loss(), None);
    behind.standstills.catch_up();
    run_tasks(&behind.engine);
    let text = |(topic, payload)| format!("{topic} {}", String::from_utf8(payload).expect("text"));
    let mut given: Vec<String> = behind.results.take().into_iter().map(text).collect();
    given.sort();
    assert_eq!(given, ["hook/0 {\"n\":0}", "hook/0 {\"n\":2}", "other/0 {\"n\":0}", "other/0 {\"n\":2}"]);
    assert_eq!(
        behind.engine.event_log.loss().as_deref(),
        Some("1 event of the log could not be read: lost or damaged"),
        "that two were to read it makes it no two"
    );
    assert_eq!(["hook", "other"].map(|name| behind.given_up(name)), [1, 1]);
}

#[test]
fn a_file_of_the_log_that_cannot_be_read_holds_up_nobody_else_and_is_told() {
    let log = LogSettings { segment_bytes: 1 << 16, ..LogSettings::default() };
    let behind = Behind::with(&["hook", "other"], 1, log, "log");
    let send = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            behind.send(n, &format!("{:800}", ""));
            assert!(behind.engine.commit_log());
        }
    };
    behind.fall_behind("hook");
    send(0..200);
    run_tasks(&behind.engine);
    behind.fall_behind("other");
    send(200..210);
    behind.results.take();
    let unblock = behind.block_oldest_file();
    let begun = Instant::now();
    let pause = behind.standstills.catch_up();
    assert!(pause < Duration::from_secs(1), "{pause:?}: the next turn of the others is soon");
    run_tasks(&behind.engine);
    assert_eq!(behind.numbers("other/0"), (200..210).collect::<Vec<_>>());
    let told = behind.engine.event_log.loss();
    assert!(told.as_ref().is_some_and(|told| told.contains("'hook' cannot read on from the log: ")), "{told:?}");
    assert_eq!(behind.engine.event_log.problem(), None, "all else goes on");
    behind.standstills.catch_up();
    unblock();
    let hook = behind.running("hook").group.clone();
    let mut numbers = Vec::new();
    while hook.is_behind() {
        assert!(begun.elapsed() < Duration::from_secs(300), "it is tried again");
        behind.standstills.catch_up();
        run_tasks(&behind.engine);
        numbers.extend(behind.numbers("hook/0"));
    }
    run_tasks(&behind.engine);
    numbers.extend(behind.numbers("hook/0"));
    assert_eq!((numbers, behind.engine.event_log.loss()), ((0..210).collect(), None));
    assert_eq!(behind.given_up("hook"), 0);
}

#[test]
fn what_cannot_be_read_is_given_up_before_the_log_is_full() {
    let behind = nearly_full();
    let unblock = behind.block_oldest_file();
    let from = || behind.running("hook").group.behind_from().expect("it is behind").0;
    let before = from();
    behind.standstills.catch_up();
    assert_eq!((from(), behind.given_up("hook")), (before, 0), "once is no reason");
    for one in behind.standstills.failed.lock().values_mut() {
        (one.at, one.times) = (one.at - Duration::from_secs(9), 4);
    }
    behind.standstills.catch_up();
    let end = behind.engine.event_log.file_end(before);
    assert!((before + 1..before + 200).contains(&end), "{end}: a file has some of them");
    assert_eq!(from(), end, "the other files can be read");
    assert_eq!(["hook", "other"].map(|name| behind.given_up(name)), [end - before; 2], "it is counted");
    assert!(behind.engine.event_log.loss().is_some());
    unblock();
}

#[test]
fn who_does_not_stand_still_gives_up_only_what_cannot_be_read() {
    let behind = Behind::with(&["hook"], 1, small(), "log");
    let send = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            behind.send(n, &format!("{:800}", ""));
            assert!(behind.engine.commit_log());
        }
    };
    send(0..10);
    behind.fall_behind("hook");
    send(10..1_000);
    let stuck = [behind.running("hook")];
    let from = || stuck[0].group.behind_from().expect("it is behind").0;
    let (before, waiting) = (from(), stuck[0].group.waiting());
    behind.standstills.give_up_some(&stuck, |_| false);
    assert_eq!((from(), behind.given_up("hook")), (before, 0), "all can be read");
    let unblock = behind.block_oldest_file();
    behind.standstills.give_up_some(&stuck, |_| false);
    unblock();
    let end = behind.engine.event_log.file_end(before);
    assert_eq!((from(), behind.given_up("hook")), (end, end - before));
    assert_eq!(stuck[0].group.waiting(), waiting);
    run_tasks(&behind.engine);
    assert_eq!(behind.numbers("hook/0"), (0..10).collect::<Vec<_>>(), "what was in its inbox");
}

/// Equal queries, which a new version tells apart, can be parted only when all events have come to them.
#[test]
fn a_version_that_parts_queries_is_not_told_to_take_over_at_once() {
    let behind = Behind::with(&[], 0, LogSettings::default(), "log");
    let application = |condition: &str| {
        format!(
            "CREATE OR REPLACE APPLICATION next (low BIGINT, name TEXT) INPUT t (n BIGINT) FROM 'mqtt:in' FORMAT JSON
             WITH (durability => 'log') OUTPUT 'mqtt:{{name}}' FORMAT JSON AS SELECT n FROM t WHERE {condition}"
        )
    };
    run(&behind.engine, &application("n >= 0"));
    for (name, low) in [("one", 0), ("other", 1)] {
        run(
            &behind.engine,
            &format!("CREATE QUERY {name} FROM APPLICATION next WITH (low => {low}, name => '{name}')"),
        );
    }
    assert_eq!(behind.running("next").group.further_queries(), 1);
    behind.fall_behind("next");
    let session = behind.engine.session(Caller::local_operator());
    let error =
        session.execute(&application("n >= $low")).pop().expect("an answer").map(drop).expect_err("it is behind");
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("tells queries apart")), "{error:?}");
    // One that tells none apart takes over.
    run(&behind.engine, &application("n >= 1"));
}

fn small() -> LogSettings {
    LogSettings { bytes_max: 1 << 20, segment_bytes: 1 << 16, ..LogSettings::default() }
}

/// A log nearly full of what two applications have left there.
fn nearly_full() -> Behind {
    let behind = Behind::new(&["hook", "other"], 1, small());
    for n in 0..1_000 {
        behind.send(n, &format!("{:800}", ""));
        assert!(behind.engine.commit_log());
    }
    behind
}

#[test]
fn all_that_wait_for_outputs_give_up_what_a_full_log_must_lose() {
    let behind = nearly_full();
    let stuck = ["hook", "other"].map(|name| behind.running(name));
    let from = || stuck.iter().map(|one| one.group.behind_from().expect("it is behind").0).collect::<Vec<_>>();
    let before = from();
    for _ in 0..1_000 {
        behind.standstills.give_up_some(&stuck, |_| true);
    }
    let middle = before[0] + 500;
    assert_eq!(from(), [middle, middle]);
    assert_eq!(["hook", "other"].map(|name| behind.given_up(name)), [500, 500], "what is given up is counted");
}

#[test]
fn giving_up_ends_when_the_engine_stops() {
    let behind = nearly_full();
    let stuck = [behind.running("hook")];
    let before = stuck[0].group.behind_from().expect("it is behind").0;
    behind.standstills.is_stopped.store(true, Ordering::Release);
    behind.standstills.give_up_some(&stuck, |_| true);
    behind.standstills.is_stopped.store(false, Ordering::Release);
    assert_eq!(stuck[0].group.behind_from().map(|(from, _)| from), Some(before + 1), "at most one more");
}

#[test]
fn what_ends_with_the_process_is_said_to_be_of_an_application_only_where_it_is_of_one() {
    for (queries, of) in [(1, "the application 'hook'"), (CROWD + 4, "applications that read the same topics")] {
        let waiting = Behind::with(&["hook"], queries, LogSettings::default(), "checkpoint");
        waiting.send(0, "");
        let told = waiting.engine.stop().map_err(|error| error.message);
        assert_eq!(told, Err(format!("rows were lost when the server stopped: 1 event that wait for {of}")));
    }
}
