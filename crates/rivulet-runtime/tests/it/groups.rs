//! One group run by hand.

use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use rivulet_dataflow::{Chain, Clock, Context, Cut, Element, Inbox, Operator, OperatorError, Picked, Push, Reason};
use rivulet_runtime::Runnable;
use rivulet_runtime::{Activation, Budget, Group, GroupParts, Workers};

use crate::support::{Bench, Taken, homes};

#[test]
fn a_broken_event_harms_nobody_else() {
    let bench = Bench::new();
    let group = bench.group();
    let slots = group.add(&[70, 71], &homes(&["a", "b"]));
    for (slot, payload) in [(slots[0], "1"), (slots[1], "x"), (slots[1], "2")] {
        assert_eq!(group.push(slot, bench.clock.now_us() - 40, payload.as_bytes()), Push::Taken);
    }
    assert_eq!(group.run(), Activation::Ran(3));
    assert_eq!((bench.sink.of(70).0, bench.sink.of(71).0), (vec![1], vec![2]));
    let metrics = group.metrics();
    assert_eq!((metrics.events, metrics.batches, metrics.results), (3, 1, 2));
    assert_eq!(metrics.refused[Reason::Decode as usize], 1);
    assert_eq!(metrics.processing_latency_us.quantile_us(0.5), 40);
    assert_eq!(bench.sink.0.lock().refused, 1);
}

#[test]
fn a_panic_costs_one_batch_and_is_counted() {
    let bench = Bench::new();
    let group = bench.group();
    let slot = group.add(&[70], &homes(&["a"]))[0];
    assert_eq!(group.push(slot, 0, b"panic"), Push::Taken);
    group.run();
    assert_eq!(group.push(slot, 0, b"5"), Push::Taken);
    group.run();
    assert_eq!(bench.sink.of(70).0, [5]);
    assert_eq!(group.metrics().refused[Reason::Internal as usize], 1);
}

/// Code of users: 7 makes it panic, and its only timer fails for two queries.
struct Superstitious {
    deadline_us: Option<i64>,
}

impl Operator for Superstitious {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        if let Element::Batch(batch) = element {
            let values = batch.column(0).as_primitive::<Int64Type>().values();
            assert!(!values.contains(&7_000_000), "seven");
            context.emit(batch);
        }
        Ok(())
    }

    fn deadline_us(&self) -> Option<i64> {
        self.deadline_us
    }

    fn tick(&mut self, _: &mut Context<'_>) -> Result<(), OperatorError> {
        self.deadline_us = None;
        Err(OperatorError::about(vec![0, 1], "no timers on a Friday"))
    }

    fn runs_user_code(&self) -> bool {
        true
    }
}

#[test]
fn a_panic_of_user_code_costs_the_rows_of_its_query_and_is_no_defect() {
    let bench = Bench::new();
    let chain = || Chain::new(vec![Box::new(Superstitious { deadline_us: Some(0) })]);
    let group = Group::stepped(bench.parts_with(Cut::Anywhere, chain), bench.clock.clone());
    let slots = group.add(&[70, 71, 72], &homes(&["a", "b", "c"]));
    for (slot, payload) in [(0, "1000000"), (1, "7000000"), (2, "3000000"), (1, "2000000"), (0, "4000000")] {
        assert_eq!(group.push(slots[slot], 2_000_000, payload.as_bytes()), Push::Taken);
    }
    assert_eq!(group.run(), Activation::Ran(5));
    let of = |query| bench.sink.of(query).0;
    assert_eq!((of(70), of(71), of(72)), (vec![1, 4], vec![], vec![3]));
    assert_eq!(bench.sink.0.lock().refused, 2, "their content goes to the dead letters");
    let metrics = group.metrics();
    let refused = |reason| metrics.refused[reason as usize];
    assert_eq!(
        (refused(Reason::UserCode), refused(Reason::Internal)),
        (4, 0),
        "two rows, and the timers of two queries"
    );
}

#[test]
fn events_of_a_removed_query_never_reach_the_next_one_and_are_counted() {
    let bench = Bench::new();
    let group = bench.group();
    let slot = group.add(&[70], &homes(&["a"]))[0];
    assert_eq!(group.push(slot, 0, b"1"), Push::Taken);
    group.remove(&[slot]);
    assert_eq!(group.push(slot, 0, b"2"), Push::Taken);
    let next = group.add(&[71], &homes(&["b"]))[0];
    assert_ne!(next, slot);
    assert_eq!(group.push(next, 0, b"3"), Push::Taken);
    group.run();
    assert_eq!((bench.sink.of(70).0, bench.sink.of(71)), (vec![], (vec![3], true)));
    assert_eq!(group.metrics().refused[Reason::Removed as usize], 2);
    assert_eq!(group.with_queries(&[next, slot, 9], |table, row| table.query(row)), [Some(Some(71)), None, None]);
    // Now that none of its events can be under way the slot is free.
    assert_eq!(group.add(&[72], &homes(&["c"])), [slot]);
}

#[test]
fn a_full_sink_leaves_events_in_the_inbox() {
    let bench = Bench::new();
    let group = bench.group();
    let slot = group.add(&[70], &homes(&["a"]))[0];
    assert_eq!(group.push(slot, 0, b"1"), Push::Taken);
    bench.sink.0.lock().is_full = true;
    assert_eq!(group.run(), Activation::Blocked);
    assert_eq!(group.waiting(), (1, 1));
    bench.sink.0.lock().is_full = false;
    assert_eq!(group.run(), Activation::Ran(1));
}

#[test]
fn a_group_that_rests_takes_in_what_it_may_and_goes_on_with_it() {
    let bench = Bench::new();
    let group = bench.group();
    let slot = group.add(&[70], &homes(&["a"]))[0];
    assert_eq!(group.push(slot, 0, b"1"), Push::Taken);
    group.close_intake();
    assert_eq!(group.push(slot, 0, b"2"), Push::Full);
    assert_eq!(group.run(), Activation::Ran(1), "what waits is processed");
    group.suspend();
    assert_eq!(group.push(slot, 0, b"3"), Push::Taken);
    assert!(group.has_room(slot, 1));
    assert_eq!((group.run(), group.waiting().0), (Activation::Blocked, 1));
    group.quiesce();
    assert_eq!(group.push(slot, 0, b"4"), Push::Full);
    assert_eq!((group.run(), group.has_room(slot, 1)), (Activation::Blocked, false));
    group.go_on();
    assert_eq!(group.run(), Activation::Ran(1));
    assert_eq!(bench.sink.of(70).0, [1, 3]);
}

#[test]
fn a_suspended_group_goes_on_at_once_when_nobody_holds_it_any_more() {
    let bench = Bench::new();
    let workers = Workers::stepped(bench.clock.clone());
    let group = workers.create_group(bench.parts());
    let slot = group.add(&[70], &homes(&["a"]))[0];
    let runs = || workers.run_one(|_| 0, Duration::MAX);
    let (one, other) = (group.suspended(), group.suspended());
    assert_eq!(group.push(slot, 0, b"1"), Push::Taken);
    assert!(runs() && !runs(), "it was tried and does nothing");
    // A change that brings it to rest begins and ends meanwhile.
    group.close_intake();
    drop(one);
    group.go_on();
    while runs() {}
    assert!(!group.rests() && bench.sink.of(70).0.is_empty());
    drop(other);
    assert!(runs());
    assert_eq!(bench.sink.of(70).0, [1]);
    // Room in a sink is noticed where somebody says so.
    bench.sink.0.lock().is_full = true;
    assert_eq!(group.push(slot, 0, b"2"), Push::Taken);
    assert!(runs() && !runs());
    bench.sink.0.lock().is_full = false;
    workers.retry_blocked();
    assert!(runs());
    assert_eq!(bench.sink.of(70).0, [1, 2]);
}

#[test]
fn a_group_that_retires_forgets_what_waits() {
    let bench = Bench::new();
    let group = bench.group();
    let slot = group.add(&[70], &homes(&["a"]))[0];
    group.suspend();
    assert_eq!(group.push(slot, 0, b"1"), Push::Taken);
    group.quiesce();
    group.retire();
    assert_eq!((group.waiting(), group.run()), ((0, 0), Activation::Ran(0)));
    assert!(bench.sink.of(70).0.is_empty());
}

#[test]
fn a_budget_of_events_also_ends_within_a_batch() {
    let bench = Bench::new();
    let group = Group::stepped(GroupParts { batch_rows_max: Some(100), ..bench.parts() }, bench.clock.clone());
    let slot = group.add(&[1], &homes(&["a"]))[0];
    for value in 0..450 {
        assert_eq!(group.push(slot, 0, value.to_string().as_bytes()), Push::Taken);
    }
    let task = group.tasks().next().unwrap().clone();
    let run = |events| task.run(Budget { events, ..Budget::ENDLESS });
    assert_eq!((task.pending(), run(101), task.pending()), (450, Activation::Yielded(101), 349));
    assert_eq!((run(0), task.pending()), (Activation::Yielded(1), 348), "one event at least");
    assert_eq!((run(1_000), task.pending()), (Activation::Ran(348), 0));
    assert!(bench.sink.of(1).0.into_iter().eq(0..450));
}

#[test]
fn a_slice_ends_between_two_batches() {
    let bench = Bench::new();
    bench.event_us.store(10, Ordering::Relaxed);
    let mut parts = bench.parts();
    parts.batch_rows_max = Some(100);
    let group = Group::stepped(parts, bench.clock.clone());
    let slot = group.add(&[1], &homes(&["a"]))[0];
    for value in 0..250 {
        assert_eq!(group.push(slot, 0, value.to_string().as_bytes()), Push::Taken);
    }
    let task = group.tasks().next().unwrap().clone();
    assert_eq!(task.run(Budget::of_time(Duration::from_millis(1))), Activation::Yielded(100));
    assert_eq!(task.run(Budget::of_time(Duration::from_millis(2))), Activation::Ran(150));
    let (values, is_numbered) = bench.sink.of(1);
    assert!(values.into_iter().eq(0..250) && is_numbered);
    assert_eq!(group.metrics().batch_events_max, 100);
}

#[test]
fn a_timer_does_not_overtake_events_that_wait() {
    let bench = Bench::new();
    bench.event_us.store(1_000, Ordering::Relaxed);
    let mut parts = bench.parts();
    parts.batch_rows_max = Some(100);
    let group = Group::stepped(parts, bench.clock.clone());
    let slot = group.add(&[1], &homes(&["a"]))[0];
    let now_us = bench.clock.now_us();
    for value in 0..200 {
        assert_eq!(group.push(slot, now_us + value, b"1"), Push::Taken);
    }
    let task = group.tasks().next().unwrap().clone();
    // The slice ends in the middle; the timer is due at a time between the events that wait.
    bench.clock.advance_us(50_000);
    bench.deadline_us.store(now_us + 150, Ordering::Relaxed);
    assert_eq!(task.run(Budget::of_time(Duration::from_millis(50))), Activation::Yielded(100));
    assert_eq!(task.run(Budget::of_time(Duration::from_millis(500))), Activation::Ran(100));
    assert_eq!(group.metrics().refused[Reason::Late as usize], 0);
    assert_eq!(bench.deadline_us.load(Ordering::Relaxed), i64::MAX, "it was served in the end");
}

#[test]
fn a_timer_does_not_overtake_events_that_a_group_has_yet_to_hand_on() {
    let (first, bench) = (Bench::new(), Bench::new());
    let upstream = Group::stepped(GroupParts { passes_on: true, ..first.parts() }, bench.clock.clone());
    let group = bench.group();
    group.follow(&upstream);
    let (slot, own) = (upstream.add(&[1], &homes(&["a"]))[0], group.add(&[1], &homes(&["a"]))[0]);
    let now_us = bench.clock.now_us();
    let is_ticked = || {
        group.run();
        bench.deadline_us.load(Ordering::Relaxed) == i64::MAX
    };
    bench.deadline_us.store(now_us + 150, Ordering::Relaxed);
    bench.clock.advance_us(50_000);
    assert_eq!(upstream.push(slot, now_us + 100, b"1"), Push::Taken);
    assert!(!is_ticked(), "it waits in the inbox of the other group");
    first.sink.0.lock().fills = true;
    assert_eq!(upstream.run(), Activation::Blocked);
    assert!(!is_ticked(), "it waits in the sink of the other group");
    // It is handed on.
    *first.sink.0.lock() = Taken::default();
    assert!(group.push_rows(Picked::new(&bench.rows(&[1]), vec![0], vec![own])).is_none());
    assert_eq!(upstream.run(), Activation::Ran(0));
    assert!(is_ticked());
    assert_eq!(bench.sink.of(1).0, [1]);
}

#[test]
fn queries_are_spread_over_tasks_where_asked_for() {
    let bench = Bench::new();
    let mut parts = bench.parts();
    parts.task_queries_max = Some(2);
    let group = Group::stepped(parts, bench.clock.clone());
    let slots = group.add(&[1, 2, 3, 4, 5], &homes(&["a", "b", "c", "d", "e"]));
    assert_eq!(group.tasks().map(|task| task.queries()).collect::<Vec<_>>(), [2, 2, 1]);
    for (n, slot) in slots.iter().enumerate() {
        assert_eq!(group.push(*slot, 0, n.to_string().as_bytes()), Push::Taken);
    }
    assert_eq!(group.run(), Activation::Ran(5));
    assert!((0..5).all(|n| bench.sink.of(n + 1) == (vec![n as i64], true)));
}

#[test]
fn a_turn_takes_no_more_events_than_its_budget() {
    let bench = Bench::new();
    let workers = Workers::stepped(bench.clock.clone());
    let group = workers.create_group(bench.parts());
    let slot = group.add(&[1], &homes(&["a"]))[0];
    for value in 0..100i64 {
        assert_eq!(group.push(slot, 0, value.to_string().as_bytes()), Push::Taken);
    }
    let mut taken = Vec::new();
    for events in [7, 50, 1, 30, 30] {
        let budget = Budget { events, time: Duration::MAX };
        assert!(workers.run_one_within(|_| 0, budget));
        taken.push(bench.sink.of(1).0.len());
    }
    assert_eq!(taken, [7, 57, 58, 88, 100]);
    assert!(bench.sink.of(1).0.into_iter().eq(0..100), "in order");
    assert!(!workers.run_one_within(|_| 0, Budget::ENDLESS), "nothing is left");
}
