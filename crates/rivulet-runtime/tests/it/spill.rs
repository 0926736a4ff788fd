//! Silent queries are spilled and come back; their results do not change.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use rivulet_dataflow::{Inbox, Push, Reason, StateSelection};
use rivulet_runtime::{Activation, Group, Spill, SpillStatus, WorkerSettings, Workers};

use crate::support::{Bench, homes, wait};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("rivulet-spill-{}-{number}", std::process::id())))
    }

    fn spill(&self, bytes_max: u64) -> Spill {
        Spill::new(&self.0, Duration::from_secs(3_600), bytes_max, || false).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It stays behind if somebody put a file into it.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A group of so many queries that spills into a folder.
fn group(bench: &Bench, folder: &Folder, queries: u64, bytes_max: u64) -> (Arc<Group>, Vec<u32>) {
    let group = bench.group();
    group.enable_spilling(folder.spill(bytes_max));
    let names: Vec<String> = (0..queries).map(|n| n.to_string()).collect();
    let slots = group.add(&(0..queries).collect::<Vec<_>>(), &homes(&names));
    (group, slots)
}

fn push(group: &Group, slots: &[u32], value: &str) {
    for &slot in slots {
        assert_eq!(group.push(slot, 0, value.as_bytes()), Push::Taken);
    }
}

#[test]
fn silent_queries_leave_memory_and_come_back_on_their_next_event() {
    let (bench, folder) = (Bench::new(), Folder::new());
    let (group, slots) = group(&bench, &folder, 3_000, 1 << 24);
    push(&group, &slots, "1");
    group.run();
    // A query that gets an event between sweeps stays.
    for _ in 0..3 {
        assert_eq!(group.spill_silent(4, 0).unwrap(), 0);
        push(&group, &slots[..100], "2");
        group.run();
    }
    assert_eq!(group.spill_silent(4, 0).unwrap(), 2_900);
    assert_eq!(group.spill_status(), SpillStatus { queries: 2_900, spilled: 2_900, ..SpillStatus::default() });
    assert_eq!(group.queries(), 3_000, "they are still there");
    assert_eq!(group.tasks().map(|task| task.queries()).collect::<Vec<_>>(), [0, 100], "in a task of their size");
    assert_eq!(group.query(slots[2_999]), Some(2_999));
    let frames = group.export_state(&StateSelection::Slots(vec![slots[5], slots[2_000]])).unwrap();
    assert_eq!(frames[0].as_ref().unwrap().slots(), [slots[5], slots[2_000]]);
    // Everybody wakes, those with two events in order.
    push(&group, &slots, "3");
    push(&group, &slots[..1_000], "4");
    assert_eq!(group.waiting().0, 4_000);
    assert_eq!(group.run(), Activation::Ran(4_000));
    assert_eq!(group.spill_status(), SpillStatus { spilled: 2_900, woken: 2_900, ..SpillStatus::default() });
    for query in 0..3_000 {
        let expected: &[i64] = match query {
            0..100 => &[1, 2, 2, 2, 3, 4],
            100..1_000 => &[1, 3, 4],
            _ => &[1, 3],
        };
        assert_eq!(bench.sink.of(query), (expected.to_vec(), true), "query {query}");
    }
}

#[test]
fn spilled_queries_are_removed_and_events_that_wait_for_them_are_counted() {
    let (bench, folder) = (Bench::new(), Folder::new());
    let (group, slots) = group(&bench, &folder, 10, 1 << 20);
    push(&group, &slots, "1");
    group.run();
    assert_eq!(group.spill_silent(0, 0).unwrap(), 10);
    push(&group, &slots[..4], "2");
    group.remove(&slots[2..6]);
    let mut added = group.add(&[100, 101], &homes(&["a", "b"]));
    push(&group, &added, "7");
    group.run();
    assert_eq!(group.metrics().refused[Reason::Removed as usize], 2);
    assert_eq!((group.queries(), group.waiting().0, group.spill_status().queries), (8, 0, 4));
    for (query, expected) in [(0, &[1, 2][..]), (2, &[1]), (6, &[1]), (100, &[7]), (101, &[7])] {
        assert_eq!(bench.sink.of(query), (expected.to_vec(), true), "query {query}");
    }
    // All at once: those that work, those in the spilled task, those that come.
    added.extend([slots[0], slots[1], slots[6], slots[7], slots[8], slots[9]]);
    group.remove(&added);
    assert_eq!((group.queries(), group.spill_status().queries), (0, 0));
    let slot = group.add(&[102], &homes(&["c"]))[0];
    push(&group, &[slot], "8");
    group.run();
    assert_eq!(bench.sink.of(102), (vec![8], true), "it starts clean");
}

#[test]
fn what_is_due_wakes_a_query_as_an_event_does() {
    let (bench, folder) = (Bench::new(), Folder::new());
    // More than come back at once.
    let (group, slots) = group(&bench, &folder, 1_500, 1 << 20);
    push(&group, &slots, "1");
    group.run();
    bench.deadline_us.store(5_000_000, Ordering::Relaxed);
    assert_eq!(group.spill_silent(0, 4_000_001).unwrap(), 0, "too soon to be worth it");
    assert_eq!(group.spill_silent(0, 4_000_000).unwrap(), 1_500);
    // Woken by an event, and spilled with a later deadline: the earlier one does not count.
    push(&group, &slots[..1], "2");
    group.run();
    bench.deadline_us.store(9_000_000, Ordering::Relaxed);
    assert_eq!(group.spill_silent(0, 0).unwrap(), 1);
    bench.clock.set_us(5_100_000);
    group.run();
    assert_eq!(group.spill_status().queries, 1);
    bench.clock.set_us(9_100_000);
    group.run();
    assert_eq!(group.spill_status().queries, 0);
    assert_eq!(bench.deadline_us.load(Ordering::Relaxed), i64::MAX, "and the operator was ticked");
}

#[test]
fn a_full_disk_costs_memory_and_nothing_else() {
    let (bench, folder) = (Bench::new(), Folder::new());
    let (group, slots) = group(&bench, &folder, 2_000, 16 << 10);
    push(&group, &slots, "1");
    group.run();
    let error = group.spill_silent(0, 0).unwrap_err().to_string();
    assert!(error.contains("has reached 16384 bytes\nhint: "), "{error}");
    let status = group.spill_status();
    assert!(status.queries < 2_000 && status.failures == 1, "{status:?}");
    push(&group, &slots, "2");
    group.run();
    assert!((0..2_000).all(|query| bench.sink.of(query) == (vec![1, 2], true)));
}

#[test]
fn state_that_cannot_be_read_back_is_lost_alone_and_counted() {
    let (bench, folder) = (Bench::new(), Folder::new());
    let (group, slots) = group(&bench, &folder, 300, 1 << 20);
    push(&group, &slots, "1");
    group.run();
    assert_eq!(group.spill_silent(0, 0).unwrap(), 300);
    spoil(&folder.0, 100);
    push(&group, &slots, "2");
    group.run();
    let status = group.spill_status();
    assert_eq!((status.queries, status.woken), (0, 300));
    assert_eq!(status.lost, 128, "those of one block");
    let whole = (0..300).filter(|&query| bench.sink.of(query) == (vec![1, 2], true)).count();
    assert_eq!(whole, 172);
    assert!((0..300).all(|query| bench.sink.of(query).0 == [1, 2]), "no event is lost");
}

/// Changes a byte of the file that was made in a folder and has no name.
fn spoil(folder: &Path, offset: u64) {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|target| target.starts_with(folder));
    let path = files.into_iter().find(is_ours).expect("the file is open");
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xa5], offset).unwrap();
}

#[test]
fn spilling_under_load_loses_doubles_and_reorders_nothing() {
    const QUERIES: u64 = 200;
    const ROUNDS: usize = 60;
    const ROUNDS_MAX: usize = 10_000;
    /// How many values come at least until a round, and at most: neither thread runs away on a busy machine.
    const VALUES_OF_ROUND: (i64, i64) = (50, 5_000);
    let (bench, folder) = (Bench::new(), Folder::new());
    let balance_period = Some(Duration::from_secs(3_600));
    let settings = WorkerSettings { threads: 2, balance_period, ..Default::default() };
    let workers = Workers::start(settings, bench.clock.clone()).unwrap();
    workers.enable_spilling(folder.spill(1 << 24));
    let group = workers.create_group(bench.parts());
    let names: Vec<String> = (0..QUERIES).map(|n| n.to_string()).collect();
    let slots = group.add(&(0..QUERIES).collect::<Vec<_>>(), &homes(&names));
    let is_over = AtomicBool::new(false);
    let (begun, pushed) = (AtomicI64::new(0), AtomicI64::new(0));
    let pushed = std::thread::scope(|scope| {
        let pusher = scope.spawn(|| {
            let mut value = 0_i64;
            while !is_over.load(Ordering::Acquire) {
                let may_push = || value < begun.load(Ordering::Acquire) * VALUES_OF_ROUND.1;
                if !may_push() {
                    wait("a further round", || may_push() || is_over.load(Ordering::Acquire));
                    continue;
                }
                // A few queries at a time: the others fall silent.
                let first = (value / 50) as usize * 7 % slots.len();
                for &slot in slots.iter().cycle().skip(first).take(10) {
                    while group.push(slot, 0, value.to_string().as_bytes()) == Push::Full {
                        std::thread::yield_now();
                    }
                }
                value += 1;
                pushed.store(value, Ordering::Release);
            }
            value
        });
        let is_enough = |round| round >= ROUNDS && group.spill_status().woken > QUERIES;
        for round in (0..ROUNDS_MAX).take_while(|&round| !is_enough(round)) {
            begun.store(round as i64 + 1, Ordering::Release);
            wait("events", || pushed.load(Ordering::Acquire) >= round as i64 * VALUES_OF_ROUND.0);
            group.spill_silent(0, 0).unwrap();
            let tasks: Vec<_> = group.tasks().filter(|task| task.queries() > 0).cloned().collect();
            // The balancer merges what is idle, and there is no time in which anything could be busy.
            workers.balance(Duration::from_millis(2));
            match (round % 5, &tasks[..]) {
                (1, [first, ..]) => drop(group.split(first).unwrap()),
                (3, [first, second, ..]) => group.merge(first, second).unwrap(),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        is_over.store(true, Ordering::Release);
        pusher.join().unwrap()
    });
    workers.stop();
    group.run();
    let status = group.spill_status();
    assert!(status.woken > QUERIES && status.lost == 0, "{status:?}");
    for (place, query) in (0..slots.len()).zip(0..) {
        let (values, is_numbered) = bench.sink.of(query);
        let expected = (0..pushed).filter(|value| {
            let first = (value / 50) as usize * 7 % slots.len();
            (place + slots.len() - first) % slots.len() < 10
        });
        assert!(values.into_iter().eq(expected) && is_numbered, "query {query}");
    }
}
