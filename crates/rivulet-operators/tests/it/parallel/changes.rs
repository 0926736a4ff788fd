//! Aggregations without windows, and the first rows of partitions, over rows that are taken back: against a
//! recomputation from the rows that are left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{Hand, Multiset, Outcome, Row, Step, aggregate, batch, input, left, positive, run, run_moved, steps};
use proptest::prelude::*;
use rivulet_dataflow::Element;
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::parallel::{KeyedAggregate, KeyedAggregateSpec, Ranking, SortKey, TopN, TopNSpec};

const TEXTS: [Option<&str>; 4] = [None, Some("a"), Some("b"), Some("a longer text, on the heap")];

/// Rows, of which some take back one before them.
fn changes(retracting: bool) -> impl Strategy<Value = Vec<(usize, Row)>> {
    let row =
        (0..4usize, 0..4usize, prop::option::weighted(0.8, -3i64..6), 0i64..9, any::<prop::sample::Index>(), 0..3u8);
    prop::collection::vec(row, 0..100).prop_map(move |rows| {
        let mut live: Vec<Row> = Vec::new();
        let mut all = Vec::new();
        for (key, text, v, ts, which, choice) in rows {
            let row = match retracting && choice == 0 && !live.is_empty() {
                true => Row { retracts: true, ..live.swap_remove(which.index(live.len())) },
                false => {
                    let key = (key > 0).then_some(key as i64);
                    live.push(Row { key, text: TEXTS[text], v, ts, retracts: false });
                    live[live.len() - 1].clone()
                }
            };
            all.push((0, row));
        }
        all
    })
}

fn show<T: ToString>(value: Option<T>) -> String {
    value.map_or("null".into(), |value| value.to_string())
}

fn aggregated(keys: &[usize], rows: &[Row]) -> Multiset {
    let mut groups: BTreeMap<Vec<String>, Vec<&Row>> = BTreeMap::new();
    if keys.is_empty() {
        groups.insert(vec![], vec![]);
    }
    for row in rows {
        let key = keys.iter().map(|&key| if key == 0 { show(row.key) } else { show(row.text) }).collect();
        groups.entry(key).or_default().push(row);
    }
    let mut results = Multiset::new();
    for (mut key, rows) in groups {
        let values = || rows.iter().filter_map(|row| row.v);
        let above = || values().filter(|v| *v > 0);
        let any = values().next();
        let average = any.map(|_| format!("{:?}", values().sum::<i64>() as f64 / values().count() as f64));
        key.extend([rows.len().to_string(), show(any.map(|_| values().sum::<i64>())), show(average)]);
        key.extend([show(values().min()), show(above().max())]);
        key.push(values().collect::<BTreeSet<_>>().len().to_string());
        key.push(above().collect::<BTreeSet<_>>().len().to_string());
        key.push(show(rows.iter().filter_map(|row| row.text).max()));
        *results.entry(key).or_insert(0) += 1;
    }
    results
}

fn aggregation(keys: &[usize], input_retracts: bool) -> KeyedAggregate {
    let aggregates = vec![
        aggregate(F::Count, None),
        aggregate(F::Sum, Some(2)),
        aggregate(F::Avg, Some(2)),
        aggregate(F::Min, Some(2)),
        positive(aggregate(F::Max, Some(2))),
        aggregate(F::CountDistinct, Some(2)),
        positive(aggregate(F::CountDistinct, Some(2))),
        aggregate(F::Max, Some(1)),
    ];
    KeyedAggregate::new(KeyedAggregateSpec {
        input: input(),
        keys: keys.to_vec(),
        aggregates,
        input_retracts,
        state_ttl_us: None,
    })
    .unwrap()
}

/// Which rows of each partition come out.
#[derive(Clone, Copy, Debug)]
struct First {
    ranking: Ranking,
    limit: usize,
    with_rank: bool,
}

fn first() -> impl Strategy<Value = First> {
    let ranking = prop::sample::select(vec![Ranking::RowNumber, Ranking::Rank, Ranking::DenseRank]);
    (ranking, 1..4usize, any::<bool>()).prop_map(|(ranking, limit, with_rank)| First { ranking, limit, with_rank })
}

fn first_rows(partition: &[usize], first: First, input_retracts: bool) -> TopN {
    let order = vec![SortKey { column: 2, descending: true, nulls_first: false }];
    let First { ranking, limit, with_rank } = first;
    let partition = partition.to_vec();
    let (input, state_ttl_us) = (input(), None);
    TopN::new(TopNSpec { input, partition, order, ranking, limit, with_rank, input_retracts, state_ttl_us }).unwrap()
}

fn ranked(partition: &[usize], first: First, rows: &[Row]) -> Multiset {
    let mut groups: BTreeMap<Vec<String>, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let key = partition.iter().map(|&key| if key == 0 { show(row.key) } else { show(row.text) }).collect();
        groups.entry(key).or_default().push(row);
    }
    let mut results = Multiset::new();
    for mut rows in groups.into_values() {
        let order = |row: &Row| (row.v.is_none(), Reverse(row.v));
        rows.sort_by_key(|row| (order(row), row.key, row.text, row.ts));
        for (at, row) in rows.iter().enumerate() {
            let before = || rows.iter().map(|other| order(other)).filter(|other| *other < order(row));
            let rank = 1 + match first.ranking {
                Ranking::RowNumber => at,
                Ranking::Rank => before().count(),
                Ranking::DenseRank => before().collect::<BTreeSet<_>>().len(),
            };
            if rank > first.limit {
                continue;
            }
            let ts = arrow::array::TimestampMicrosecondArray::from(vec![row.ts]);
            let ts = arrow::util::display::array_value_to_string(&ts, 0).unwrap();
            let mut shown = vec![show(row.key), show(row.text), show(row.v), ts];
            shown.extend(first.with_rank.then(|| rank.to_string()));
            *results.entry(shown).or_insert(0) += 1;
        }
    }
    results
}

proptest! {
    #[test]
    fn results_are_those_of_the_rows_that_are_left(
        (retracting, rows) in any::<bool>().prop_flat_map(|retracting| (Just(retracting), changes(retracting))),
        keys in prop_oneof![Just(vec![]), Just(vec![0]), Just(vec![1]), Just(vec![0, 1])],
        cuts in prop::collection::vec(1..30usize, 1..4),
        watermarks in prop::collection::vec(any::<bool>(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let factory = aggregation(&keys, retracting);
        let steps = steps(&rows, &cuts, &watermarks);
        let expected = aggregated(&keys, &left(&rows));
        prop_assert_eq!(&run(&factory, &steps).rows, &expected);
        if !keys.is_empty() {
            let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&keys, &keys]);
            prop_assert_eq!(&moved.rows, &expected);
        }
    }

    #[test]
    fn the_first_rows_are_those_of_the_rows_that_are_left(
        (retracting, rows) in any::<bool>().prop_flat_map(|retracting| (Just(retracting), changes(retracting))),
        partition in prop_oneof![Just(vec![]), Just(vec![0]), Just(vec![0, 1])],
        first in first(),
        cuts in prop::collection::vec(1..30usize, 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let factory = first_rows(&partition, first, retracting);
        let steps = steps(&rows, &cuts, &[false]);
        let expected = ranked(&partition, first, &left(&rows));
        prop_assert_eq!(&run(&factory, &steps).rows, &expected);
        let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&partition, &partition]);
        prop_assert_eq!(&moved.rows, &expected);
    }
}

/// More rows of one rank than lie in one piece.
#[test]
fn very_many_rows_may_have_one_rank() {
    let row =
        |n: i64| Row { key: Some(n * 7 % 3000), text: TEXTS[n as usize % 4], v: Some(n % 2), ts: 0, retracts: false };
    let mut rows: Vec<(usize, Row)> = (0..3000).map(|n| (0, row(n))).collect();
    for retracting in [false, true] {
        if retracting {
            rows.extend((0..2500).map(|n| (0, Row { retracts: true, ..row(n) })));
        }
        for ranking in [Ranking::Rank, Ranking::DenseRank] {
            for with_rank in [false, true] {
                let first = First { ranking, limit: 2, with_rank };
                let factory = first_rows(&[], first, retracting);
                let steps = steps(&rows, &[700, 1, 1500], &[false]);
                let expected = ranked(&[], first, &left(&rows));
                assert_eq!(run(&factory, &steps).rows, expected, "{first:?}");
                let moved = run_moved(&factory, &steps, steps.len() / 2, [&[], &[]]);
                assert_eq!(moved.rows, expected, "{first:?}");
            }
        }
    }
}

fn at(key: i64, v: i64) -> Row {
    Row { key: Some(key), text: None, v: Some(v), ts: 0, retracts: false }
}

#[test]
fn a_key_changes_once_for_each_output_and_not_at_all_if_nothing_has_changed() {
    let mut hand = Hand::new(&aggregation(&[0], true));
    let mut outcome = Outcome::default();
    let rows: Vec<Row> = (0..100).map(|v| at(1, v)).collect();
    outcome.add(hand.process(0, Element::Batch(batch(&rows))));
    assert!(outcome.rows.is_empty(), "small batches wait");
    assert!(hand.operator.deadline_us().is_some());
    outcome.add(hand.tick());
    assert_eq!((outcome.rows.len(), outcome.retractions), (1, 0));
    let undone: Vec<Row> = [at(1, 7), Row { retracts: true, ..at(1, 7) }].into();
    outcome.add(hand.process(0, Element::Batch(batch(&undone))));
    outcome.add(hand.process(0, Element::Watermark(5)));
    assert_eq!(outcome.retractions, 0, "nothing has changed");
    outcome.add(hand.process(0, Element::Batch(batch(&[at(1, 7)]))));
    outcome.add(hand.process(0, Element::Watermark(6)));
    assert_eq!((outcome.rows.len(), outcome.retractions), (1, 1));
}

#[test]
fn a_sum_that_overflows_is_null_and_comes_back() {
    let outcome = |rows: Vec<Row>| {
        let steps: Vec<Step> = rows.into_iter().map(|row| Step::Rows(0, vec![row])).collect();
        run(&sums(), &steps).rows
    };
    let taken_back = Row { retracts: true, ..at(1, i64::MAX) };
    let of = |row: [&str; 3]| [(row.map(String::from).to_vec(), 1)].into_iter().collect::<Multiset>();
    assert_eq!(outcome(vec![at(1, i64::MAX), at(1, 1)]), of(["1", "2", "null"]));
    assert_eq!(outcome(vec![at(1, i64::MAX), at(1, 1), taken_back]), of(["1", "1", "1"]));
}

fn sums() -> KeyedAggregate {
    let aggregates = vec![aggregate(F::Count, None), aggregate(F::Sum, Some(2))];
    KeyedAggregate::new(KeyedAggregateSpec {
        input: input(),
        keys: vec![0],
        aggregates,
        input_retracts: true,
        state_ttl_us: None,
    })
    .unwrap()
}

#[test]
fn distinct_over_rows_that_stay_takes_nothing_back() {
    let spec = KeyedAggregateSpec {
        input: input(),
        keys: vec![0, 2],
        aggregates: vec![],
        input_retracts: false,
        state_ttl_us: None,
    };
    let distinct = KeyedAggregate::new(spec).unwrap();
    assert!(!distinct.output_retracts());
    let outcome = run(&distinct, &[Step::Rows(0, vec![at(1, 1), at(1, 1), at(1, 2)]), Step::Rows(0, vec![at(1, 1)])]);
    assert_eq!((outcome.rows.len(), outcome.retractions), (2, 0));
}

#[test]
fn what_cannot_be_taken_back_is_refused() {
    let aggregates = vec![aggregate(F::ApproxDistinct, Some(2))];
    let spec =
        KeyedAggregateSpec { input: input(), keys: vec![0], aggregates, input_retracts: true, state_ttl_us: None };
    let error = KeyedAggregate::new(spec.clone()).err().unwrap().to_string();
    assert!(error.contains("approx_distinct cannot take back") && error.contains("hint:"), "{error}");
    assert!(KeyedAggregate::new(KeyedAggregateSpec { input_retracts: false, ..spec }).is_ok());
}

#[test]
fn no_rows_are_a_result_without_keys() {
    let rows = run(&aggregation(&[], false), &[]).rows;
    assert_eq!(rows.keys().next().unwrap()[0], "0");
    assert!(run(&aggregation(&[0], false), &[]).rows.is_empty());
}
