//! Queries move between tasks; their results do not change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rivulet_dataflow::{Inbox, Picked, Push, Reason};
use rivulet_runtime::Runnable;
use rivulet_runtime::{Activation, Group, GroupParts, InboxLimits, WorkerSettings, Workers};

use crate::support::{Bench, homes};

#[test]
fn a_split_takes_state_and_waiting_events_along() {
    let bench = Bench::new();
    let group = bench.group();
    let names: Vec<String> = (0..3_000).map(|n| n.to_string()).collect();
    let queries: Vec<u64> = (0..3_000).collect();
    let slots = group.add(&queries, &homes(&names));
    let push_all = |value: &str| {
        for &slot in &slots {
            assert_eq!(group.push(slot, 0, value.as_bytes()), Push::Taken);
        }
    };
    push_all("1");
    group.run();
    push_all("2");
    push_all("3");
    let first = group.tasks().next().unwrap().clone();
    let second = group.split(&first).unwrap();
    assert_eq!((first.queries(), second.queries()), (1_500, 1_500));
    assert_eq!((first.pending(), second.pending()), (3_000, 3_000));
    push_all("4");
    assert_eq!(group.run(), Activation::Ran(9_000));
    group.remove(&slots[..10]);
    group.merge(&first, &second).unwrap();
    assert_eq!((first.queries(), second.queries()), (0, 2_990));
    for &slot in &slots[10..] {
        assert_eq!(group.push(slot, 0, b"5"), Push::Taken);
    }
    group.run();
    for query in 10..3_000 {
        assert_eq!(bench.sink.of(query), (vec![1, 2, 3, 4, 5], true), "query {query}");
    }
    // The task without queries serves the next split.
    assert!(Arc::ptr_eq(&group.split(&second).unwrap(), &first));
    assert_eq!(group.tasks().count(), 2);
}

#[test]
fn rows_that_are_decoded_already_find_their_queries_wherever_they_are() {
    let bench = Bench::new();
    let group = bench.group();
    let rows = bench.rows(&[10, 11, 12]);
    // Nobody is there yet.
    assert!(group.push_rows(Picked::new(&rows, vec![0], vec![0])).is_none());
    assert_eq!(group.metrics().refused[Reason::Removed as usize], 1);
    let slots = group.add(&(0..10).collect::<Vec<_>>(), &homes(&["x"; 10].map(str::to_owned)));
    let for_all = |value: u32| Picked::new(&rows, vec![value; 10], slots.clone());
    assert!(group.push_rows(for_all(0)).is_none());
    assert_eq!(group.push(slots[3], 0, b"7"), Push::Taken);
    let first = group.tasks().next().unwrap().clone();
    let second = group.split(&first).unwrap();
    assert_eq!((first.pending() + second.pending(), second.pending()), (11, 5));
    assert!(group.push_rows(for_all(1)).is_none());
    group.remove(&slots[9..]);
    assert!(group.push_rows(for_all(2)).is_none());
    assert_eq!(group.run(), Activation::Ran(30));
    for query in 0..9 {
        let expected = if query == 3 { vec![10, 7, 11, 12] } else { vec![10, 11, 12] };
        assert_eq!(bench.sink.of(query), (expected, true), "query {query}");
    }
    assert_eq!(group.metrics().refused[Reason::Removed as usize], 1 + 3);
}

#[test]
fn rows_without_room_come_back_whole() {
    let bench = Bench::new();
    let parts = bench.parts();
    let limits = InboxLimits { rows_max: 8, ..parts.limits };
    let group = Group::stepped(GroupParts { limits, ..parts }, bench.clock.clone());
    let slots = group.add(&[0, 1], &homes(&["x", "y"].map(str::to_owned)));
    let rows = bench.rows(&[1, 2, 3]);
    let picked = || Picked::new(&rows, vec![0, 0, 1, 1, 2, 2], [slots.clone(), slots.clone(), slots.clone()].concat());
    // The bound is looked at before rows are taken, and rows are not torn apart.
    assert!(group.push_rows(picked()).is_none() && group.push_rows(picked()).is_none());
    assert_eq!(group.push_rows(picked()).unwrap().len(), 6);
    assert_eq!(group.push(slots[0], 0, b"9"), Push::Full);
    assert_eq!(group.run(), Activation::Ran(12));
    assert!(group.push_rows(picked()).is_none());
    group.run();
    assert_eq!(bench.sink.of(1).0, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
}

#[test]
fn moving_under_load_loses_doubles_and_reorders_nothing() {
    const QUERIES: u64 = 60;
    const MOVES: usize = 30;
    const EVENTS_MAX: i64 = 900_000;
    let bench = Bench::new();
    let settings = WorkerSettings { threads: 2, balance_period: None, ..Default::default() };
    let workers = Workers::start(settings, bench.clock.clone()).unwrap();
    let group = workers.create_group(bench.parts());
    let names: Vec<String> = (0..QUERIES).map(|n| n.to_string()).collect();
    let slots = group.add(&(0..QUERIES).collect::<Vec<_>>(), &homes(&names));
    let are_moved = AtomicBool::new(false);
    // Both halves of the queries get events as long as queries move; each in turn, so that a gap would show.
    let pushed: Vec<i64> = std::thread::scope(|scope| {
        let pushers: Vec<_> = slots
            .chunks(QUERIES as usize / 2)
            .map(|slots| {
                let (group, are_moved) = (&group, &are_moved);
                scope.spawn(move || {
                    let mut value = 0;
                    while value < EVENTS_MAX && !(are_moved.load(Ordering::Acquire) && value % 7 == 0) {
                        for &slot in slots.iter().skip(value as usize % 7).step_by(7) {
                            while group.push(slot, 0, value.to_string().as_bytes()) == Push::Full {
                                std::thread::yield_now();
                            }
                        }
                        value += 1;
                    }
                    value
                })
            })
            .collect();
        for turn in 0..MOVES {
            let tasks: Vec<_> = group.tasks().cloned().collect();
            let largest = tasks.iter().max_by_key(|task| task.queries()).unwrap();
            let smallest = tasks.iter().filter(|task| task.queries() > 0).min_by_key(|task| task.queries()).unwrap();
            if turn % 3 == 2 && !Arc::ptr_eq(largest, smallest) {
                group.merge(smallest, largest).unwrap();
            } else {
                group.split(largest).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        are_moved.store(true, Ordering::Release);
        pushers.into_iter().map(|pusher| pusher.join().unwrap()).collect()
    });
    workers.stop();
    group.run();
    for (index, query) in (0..QUERIES as usize).zip(0..) {
        let (half, place) = (index / (QUERIES as usize / 2), index % (QUERIES as usize / 2));
        let (values, is_numbered) = bench.sink.of(query);
        let expected = (0..pushed[half]).filter(|value| *value as usize % 7 == place % 7);
        assert!(values.into_iter().eq(expected) && is_numbered, "query {query}");
    }
}

#[test]
fn the_balancer_splits_a_group_that_is_too_much_and_merges_it_when_it_is_not() {
    let bench = Bench::new();
    bench.event_us.store(100, Ordering::Relaxed);
    let workers = bench.stepped_workers();
    let group = workers.create_group(bench.parts());
    let names: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let slots = group.add(&(0..100).collect::<Vec<_>>(), &homes(&names));
    let round = |events_each: usize| {
        let before = group.metrics().events;
        for _ in 0..events_each {
            for &slot in &slots {
                assert_eq!(group.push(slot, 0, b"1"), Push::Taken);
            }
        }
        let expected = before + (events_each * slots.len()) as u64;
        for _ in 0..1_000 {
            if group.metrics().events == expected {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(group.metrics().events, expected);
        workers.balance(Duration::from_secs(1));
    };
    // 12,000 events of 100 us each in what counts as one second.
    round(120);
    let busy: Vec<_> = group.tasks().filter(|task| task.queries() > 0).cloned().collect();
    assert_eq!(busy.len(), 2);
    assert_ne!(busy[0].worker(), busy[1].worker());
    // The halves rest for some periods, then one goes back to the other.
    for _ in 0..6 {
        round(1);
    }
    assert_eq!(group.tasks().filter(|task| task.queries() > 0).count(), 1);
    assert!((0..100).all(|query| bench.sink.of(query).1));
}
