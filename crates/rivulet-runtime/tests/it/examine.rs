//! What a group knows of a query that somebody asks about.

use rivulet_dataflow::{Came, Chain, Cut, Inbox, Push, Reason, Refused, Slot};
use rivulet_runtime::{Examined, Group};

use crate::cut::NumberingByKey;
use crate::support::{Bench, homes, wait};

const MINUTE_US: i64 = 60_000_000;

fn push(group: &Group, slot: Slot, payloads: &[&str]) {
    for payload in payloads {
        assert_eq!(group.push(slot, 7, payload.as_bytes()), Push::Taken);
    }
}

/// Events, rows at the operator, results and refused payloads.
fn counts(found: &Examined) -> (u64, u64, u64, u64) {
    let tally = &found.tally;
    let events = tally.inputs.first().map_or(0, |came| came.rows);
    (events, tally.reached(1).rows, tally.reached(0).rows, tally.refused[Reason::Decode as usize])
}

#[test]
fn of_a_few_queries_all_is_known_from_the_start_wherever_they_go() {
    let bench = Bench::new();
    let group = bench.group();
    let slots = group.add(&[70, 71], &homes(&["a", "b"]));
    push(&group, slots[1], &["1", "x", "2"]);
    push(&group, slots[0], &["3"]);
    group.run();
    push(&group, slots[1], &["4"]);
    let found = group.examine(slots[1], 71, MINUTE_US).unwrap();
    assert_eq!((counts(&found), found.waiting, found.tally.is_from_start), ((3, 2, 2, 1), 1, true));
    let came = found.tally.inputs[0];
    assert_eq!((came, found.timer_us), (Came { at_us: found.now_us, ..came }, Some(i64::MAX)));
    let last = found.tally.last_refusal.unwrap();
    assert!(last.detail == "not digits" && matches!(&last.content, Refused::Payload(payload) if **payload == *b"x"));
    assert!(group.examine(slots[1], 70, MINUTE_US).is_none(), "another query is in that slot");
    // Somebody asks: the last result is kept.
    group.run();
    let first = group.tasks().next().unwrap().clone();
    group.split(&first).unwrap();
    push(&group, slots[1], &["5"]);
    group.run();
    for (slot, query, expected) in [(slots[0], 70, (1, 1, 1, 0)), (slots[1], 71, (5, 4, 4, 1))] {
        let found = group.examine(slot, query, MINUTE_US).unwrap();
        assert_eq!((counts(&found), found.tally.is_from_start), (expected, true), "{query}");
        assert_eq!(found.tally.last_result.is_some(), query == 71);
    }
    // A query that comes into a slot has nothing of the one before.
    group.remove(&slots);
    group.run();
    let slot = group.add(&[72], &homes(&["c"]))[0];
    assert_eq!(counts(&group.examine(slot, 72, MINUTE_US).unwrap()), (0, 0, 0, 0));
}

#[test]
fn of_many_queries_those_are_counted_that_somebody_asks_about_and_for_a_while() {
    let bench = Bench::new();
    let group = bench.group();
    let few = group.add(&[1], &homes(&["first"]));
    let names: Vec<String> = (0..40).map(|name| name.to_string()).collect();
    let queries: Vec<u64> = (100..140).collect();
    let slots = group.add(&queries, &homes(&names));
    push(&group, few[0], &["1"]);
    push(&group, slots[5], &["1"]);
    group.run();
    let asked = |slot: Slot, query: u64| group.examine(slot, query, MINUTE_US).unwrap();
    for (slot, query) in [(few[0], 1), (slots[5], 105)] {
        let found = asked(slot, query);
        assert_eq!((counts(&found), found.tally.is_from_start), ((0, 0, 0, 0), false), "{query}");
    }
    push(&group, slots[5], &["2", "3"]);
    group.run();
    assert_eq!(counts(&asked(slots[5], 105)), (2, 2, 2, 0));
    bench.clock.set_us(asked(slots[5], 105).now_us + MINUTE_US / 2);
    assert_eq!(counts(&asked(slots[5], 105)), (2, 2, 2, 0), "each question makes it last longer");
    bench.clock.set_us(asked(slots[5], 105).now_us + MINUTE_US + 1);
    push(&group, slots[5], &["4"]);
    group.run();
    assert_eq!(counts(&asked(slots[5], 105)), (0, 0, 0, 0), "it was forgotten, and begins anew");
}

#[test]
fn what_the_parts_of_a_task_count_is_put_together() {
    let bench = Bench::new();
    let workers = bench.stepped_workers();
    let chain = || Chain::new(vec![Box::<NumberingByKey>::default() as _]);
    let group = workers.create_group(bench.parts_with(Cut::ByKey(0), chain));
    let slot = group.add(&[7], &homes(&["hot"]))[0];
    let task = group.tasks().next().unwrap().clone();
    group.cut_on(&task, &[1, 0]);
    let payloads: Vec<String> = (0..1_000).map(|value| value.to_string()).collect();
    push(&group, slot, &payloads.iter().map(String::as_str).collect::<Vec<_>>());
    wait("the events", || group.metrics().results == 1_000);
    group.cut_on(&task, &[]);
    wait("one piece", || task.parts() == 1);
    let found = group.examine(slot, 7, MINUTE_US).unwrap();
    assert_eq!(counts(&found), (1_000, 1_000, 1_000, 0));
}
