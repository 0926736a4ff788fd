//! Equal queries share a slot; their results do not change.

use std::sync::Arc;

use rivulet_dataflow::{Inbox, Push, QueryId, Slot};
use rivulet_runtime::{Group, GroupParts, Joined};

use crate::support::{Bench, homes};

fn group(bench: &Bench) -> Arc<Group> {
    Group::stepped(GroupParts { equal_by: Some(vec![0]), ..bench.parts() }, bench.clock.clone())
}

fn join(group: &Group, query: QueryId, home: &str) -> Joined {
    group.join(&[query], &homes(&[home]))[0]
}

fn push(group: &Group, slot: Slot, payload: &str) {
    assert_eq!(group.push(slot, 1_000_000, payload.as_bytes()), Push::Taken);
}

/// What these queries have got; each without gap or doublet.
fn got(bench: &Bench, queries: &[QueryId]) -> Vec<Vec<i64>> {
    let of = |&query| {
        let (values, is_numbered) = bench.sink.of(query);
        assert!(is_numbered, "query {query}");
        values
    };
    queries.iter().map(of).collect()
}

#[test]
fn equal_queries_that_come_together_are_computed_once() {
    let bench = Bench::new();
    let group = group(&bench);
    let joined = group.join(&[1, 2, 3, 4], &homes(&["a", "b", "a", "a"]));
    let (slots, new): (Vec<Slot>, Vec<bool>) = joined.iter().map(|one| (one.slot, one.is_new)).unzip();
    assert_eq!((slots, new), (vec![0, 1, 0, 0], vec![true, true, false, false]));
    assert_eq!((group.queries(), group.further_queries()), (2, 2));
    push(&group, 0, "5");
    push(&group, 0, "x");
    push(&group, 1, "6");
    group.run();
    assert_eq!(got(&bench, &[1, 2, 3, 4]), [vec![5], vec![6], vec![5], vec![5]]);
    let metrics = group.metrics();
    assert_eq!((metrics.events, metrics.results, metrics.refused[0]), (7, 4, 3), "for each query");
}

#[test]
fn whoever_comes_later_shares_only_what_is_as_good_as_new() {
    let bench = Bench::new();
    let group = group(&bench);
    let first = join(&group, 1, "a");
    assert_eq!(join(&group, 2, "a"), Joined { slot: first.slot, is_new: false });
    push(&group, first.slot, "5");
    let third = join(&group, 3, "a");
    assert!(third.is_new, "an event waits that came before it");
    group.run();
    // The one that came last is still new, the first has counted.
    assert_eq!(join(&group, 4, "a"), Joined { slot: third.slot, is_new: false });
    push(&group, first.slot, "6");
    push(&group, third.slot, "6");
    group.run();
    assert_eq!(got(&bench, &[1, 2, 3, 4]), [vec![5, 6], vec![5, 6], vec![6], vec![6]]);
    let fifth = join(&group, 5, "a");
    assert!(fifth.is_new);
    assert_eq!(group.leave(&[(fifth.slot, 5)]), [fifth.slot]);
    group.remove(&[fifth.slot]);
    assert!(join(&group, 6, "a").is_new, "nobody joins a query that is gone");
}

#[test]
fn a_query_shares_one_slot_of_several_that_are_as_good_as_new() {
    let bench = Bench::new();
    let group = group(&bench);
    // They are equal, and did not share a slot when they were saved.
    let alone = group.join_restored(&[1, 2], &homes(&["a", "a"]), &|query| Some(query));
    assert!(alone.iter().all(|one| one.is_new) && alone[0].slot != alone[1].slot);
    let third = join(&group, 3, "a");
    assert!(!third.is_new && alone.iter().any(|one| one.slot == third.slot));
    alone.iter().for_each(|one| push(&group, one.slot, "5"));
    group.run();
    assert_eq!(got(&bench, &[1, 2, 3]), [[5], [5], [5]], "each result comes once");
    assert_eq!((group.queries(), group.further_queries()), (2, 1));
}

#[test]
fn a_slot_is_shared_by_so_many_and_no_more() {
    let bench = Bench::new();
    let group = group(&bench);
    let queries: Vec<QueryId> = (0..150).collect();
    let joined = group.join(&queries, &homes(&["a"; 150]));
    assert_eq!(joined.iter().map(|one| one.slot).max(), Some(2));
    assert_eq!(group.further_queries(), 147);
    let slots: Vec<Slot> = (200..240).map(|query| join(&group, query, "a").slot).collect();
    assert_eq!(slots, [2; 40], "22 are in the last one");
    assert!(join(&group, 300, "a").slot == 2 && join(&group, 301, "a").slot == 2);
    assert!(join(&group, 302, "a").is_new);
    for query in queries {
        let slot = joined[query as usize].slot;
        group.remove(&group.leave(&[(slot, query)]));
    }
    assert_eq!(group.queries(), 2);
}

#[test]
fn who_parts_takes_along_a_copy_of_everything() {
    let bench = Bench::new();
    let group = group(&bench);
    let slot = group.join(&[1, 2, 3], &homes(&["a"; 3]))[0].slot;
    push(&group, slot, "5");
    group.run();
    push(&group, slot, "6");
    // The one that stands in the row, and another.
    let own = [group.part(slot, 1).unwrap(), group.part(slot, 3).unwrap()];
    assert!(!own.contains(&slot));
    assert_eq!((group.queries(), group.further_queries(), group.waiting().0), (3, 0, 3));
    assert_eq!(group.part(slot, 2).unwrap(), slot);
    assert!(join(&group, 4, "a").is_new, "who has parted stays alone");
    group.run();
    push(&group, own[1], "7");
    group.run();
    assert_eq!(got(&bench, &[1, 2, 3, 4]), [vec![5, 6], vec![5, 6], vec![5, 6, 7], vec![]]);
}

#[test]
fn those_who_share_move_together() {
    let bench = Bench::new();
    let group = group(&bench);
    let homes: Vec<String> = (0..100).map(|home| home.to_string()).collect();
    let all: Vec<&String> = homes.iter().chain(&homes).collect();
    let slots: Vec<Slot> =
        group.join(&(0..200).collect::<Vec<_>>(), &crate::support::homes(&all)).iter().map(|one| one.slot).collect();
    slots[..100].iter().for_each(|&slot| push(&group, slot, "1"));
    let first = group.tasks().next().unwrap().clone();
    let second = group.split(&first).unwrap();
    assert_eq!((first.queries(), second.queries(), group.further_queries()), (50, 50, 100));
    // Of a split group too queries part, leave and come.
    let own = group.part(slots[0], 100).unwrap();
    assert_eq!(group.leave(&[(slots[0], 0), (slots[1], 1), (own, 100)]), [slots[0], own]);
    group.run();
    assert_eq!(got(&bench, &[1, 100, 101, 50, 150]), [vec![], vec![1], vec![1], vec![1], vec![1]]);
    group.merge(&second, &first).unwrap();
    slots[..100].iter().for_each(|&slot| push(&group, slot, "2"));
    group.run();
    assert_eq!(got(&bench, &[101, 50, 150]), [[1, 2], [1, 2], [1, 2]]);
}
