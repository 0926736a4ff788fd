//! State time-to-live: a key (of a join: a row) that nothing touches for so long is forgotten, and what touches it
//! later begins anew.
//!
//! Rows come in order, each behind a watermark of its own time, and times lie so that a key is clearly remembered or
//! clearly forgotten: what an operator says is then known exactly.

use std::collections::{BTreeMap, BTreeSet};

use super::{Hand, Multiset, Outcome, Row, Step, aggregate, batch, input, run, run_moved};
use proptest::prelude::*;
use rivulet_dataflow::{Element, OperatorFactory};
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::parallel::{
    KeyedAggregate, KeyedAggregateSpec, KeyedJoin, KeyedJoinKind, KeyedJoinSpec, KeyedOver, KeyedOverSpec, OverFrame,
    Ranking, SortKey, TopN, TopNSpec,
};

/// Times are multiples of this.
const UNIT_US: i64 = 10_000_000;
/// A key is remembered for nine units, and not for ten.
const TTL_US: i64 = 95_000_000;

/// Rows of an input, with times that do not go back.
fn rows(inputs: usize) -> impl Strategy<Value = Vec<(usize, Row)>> {
    let row = (0..inputs, 0..4i64, 0..6i64, prop_oneof![4 => 0..3i64, 1 => 5..14i64]);
    prop::collection::vec(row, 0..80).prop_map(|rows| {
        let mut ts = 0;
        let mut all = Vec::new();
        for (input, key, v, ahead) in rows {
            ts += ahead * UNIT_US;
            all.push((input, Row { key: Some(key), text: None, v: Some(v), ts, retracts: false }));
        }
        all
    })
}

fn steps(rows: &[(usize, Row)]) -> Vec<Step> {
    rows.iter().flat_map(|(input, row)| [Step::Watermark(row.ts), Step::Rows(*input, vec![row.clone()])]).collect()
}

/// The rows of each life of each key.
fn lives(rows: &[(usize, Row)]) -> Vec<Vec<Row>> {
    let mut lives: Vec<Vec<Row>> = Vec::new();
    let mut current: BTreeMap<Option<i64>, usize> = BTreeMap::new();
    for (_, row) in rows {
        let goes_on = |life: &&usize| row.ts - lives[**life].last().unwrap().ts <= TTL_US;
        let life = current.get(&row.key).filter(goes_on).copied().unwrap_or(lives.len());
        if life == lives.len() {
            lives.push(Vec::new());
        }
        current.insert(row.key, life);
        lives[life].push(row.clone());
    }
    lives
}

fn show<T: ToString>(value: Option<T>) -> String {
    value.map_or("null".into(), |value| value.to_string())
}

fn shown_time(ts: i64) -> String {
    let times = arrow::array::TimestampMicrosecondArray::from(vec![ts]);
    arrow::util::display::array_value_to_string(&times, 0).unwrap()
}

fn shown(row: &Row) -> Vec<String> {
    vec![show(row.key), show(row.text), show(row.v), shown_time(row.ts)]
}

fn check(
    factory: &dyn OperatorFactory,
    steps: &[Step],
    cut: usize,
    expected: &Multiset,
) -> Result<Outcome, TestCaseError> {
    let outcome = run(factory, steps);
    prop_assert_eq!(&outcome.rows, expected);
    let moved = run_moved(factory, steps, cut, [&[0], &[0]]);
    prop_assert_eq!(&moved.rows, expected);
    Ok(outcome)
}

#[test]
fn rows_of_a_window_that_has_closed_are_late() {
    let at = |v: i64, ts: i64| Row { key: Some(ts / 10), text: None, v: Some(v), ts, retracts: false };
    // Rows have the last microsecond of their window as event time; those that come late are of the first one, all but
    // the last.
    let steps = [
        Step::Rows(0, vec![at(9, 9), at(5, 19)]),
        Step::Watermark(9),
        Step::Rows(0, vec![at(3, 9)]),
        Step::Watermark(12),
        Step::Rows(0, vec![at(1, 9), at(7, 9), at(6, 19)]),
        Step::Watermark(20),
    ];
    let descending = vec![SortKey { column: 2, descending: true, nulls_first: false }];
    let top = TopN::new(TopNSpec {
        input: input(),
        partition: vec![0],
        order: descending.clone(),
        ranking: Ranking::RowNumber,
        limit: 1,
        with_rank: false,
        input_retracts: false,
        state_ttl_us: Some(0),
    });
    let over = KeyedOver::new(KeyedOverSpec {
        input: input(),
        partition: vec![0],
        order: descending,
        frame: OverFrame::Rows { preceding: None },
        aggregates: vec![aggregate(F::Sum, Some(2))],
        lags: vec![],
        input_retracts: false,
        state_ttl_us: Some(0),
    });
    let (top, over) = (top.unwrap(), over.unwrap());
    let of = |v: i64, ts: i64| shown(&at(v, ts));
    let top = run(&top, &steps);
    assert_eq!((top.rows, top.late), ([(of(9, 9), 1), (of(6, 19), 1)].into_iter().collect(), 2));
    assert_eq!(top.retractions, 0, "rows come out when their window closes");
    let summed = |v: i64, ts: i64, sum: i64| of(v, ts).into_iter().chain([sum.to_string()]).collect::<Vec<_>>();
    let expected = [(9, 9, 9), (3, 9, 12), (6, 19, 6), (5, 19, 11)].map(|(v, ts, sum)| (summed(v, ts, sum), 1));
    let over = run(&over, &steps);
    assert_eq!((over.rows, over.late), (expected.into_iter().collect(), 2));
}

fn aggregation(aggregates: &[(F, Option<usize>)], input_retracts: bool) -> KeyedAggregate {
    let aggregates = aggregates.iter().map(|&(function, argument)| aggregate(function, argument)).collect();
    let state_ttl_us = Some(TTL_US);
    let spec = KeyedAggregateSpec { input: input(), keys: vec![0], aggregates, input_retracts, state_ttl_us };
    KeyedAggregate::new(spec).unwrap()
}

proptest! {
    #[test]
    fn an_aggregate_begins_anew(rows in rows(1), retracting in any::<bool>(), cut in any::<prop::sample::Index>()) {
        let functions = [(F::Count, None), (F::Sum, Some(2)), (F::Max, Some(2)), (F::CountDistinct, Some(2))];
        let mut expected = Multiset::new();
        for life in lives(&rows) {
            let values = || life.iter().filter_map(|row| row.v);
            let distinct = values().collect::<BTreeSet<_>>().len();
            let result = [life.len() as i64, values().sum(), values().max().unwrap(), distinct as i64];
            let row = [show(life[0].key)].into_iter().chain(result.iter().map(i64::to_string)).collect();
            *expected.entry(row).or_insert(0) += 1;
        }
        let steps = steps(&rows);
        check(&aggregation(&functions, retracting), &steps, cut.index(steps.len() + 1), &expected)?;
    }

    #[test]
    fn a_value_is_distinct_once_in_each_life(rows in rows(1), cut in any::<prop::sample::Index>()) {
        let mut expected = Multiset::new();
        lives(&rows).iter().for_each(|life| *expected.entry(vec![show(life[0].key)]).or_insert(0) += 1);
        let steps = steps(&rows);
        let outcome = check(&aggregation(&[], false), &steps, cut.index(steps.len() + 1), &expected)?;
        prop_assert_eq!(outcome.retractions, 0);
    }

    #[test]
    fn the_first_rows_are_those_of_a_life(
        rows in rows(1),
        input_retracts in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut expected = Multiset::new();
        for mut life in lives(&rows) {
            life.sort_by_key(|row| (row.v, row.ts));
            life.iter().take(2).for_each(|row| *expected.entry(shown(row)).or_insert(0) += 1);
        }
        let order = vec![SortKey { column: 2, descending: false, nulls_first: false }];
        let state_ttl_us = Some(TTL_US);
        let spec = TopNSpec {
            input: input(), partition: vec![0], order, ranking: Ranking::RowNumber, limit: 2, with_rank: false, input_retracts, state_ttl_us,
        };
        let steps = steps(&rows);
        check(&TopN::new(spec).unwrap(), &steps, cut.index(steps.len() + 1), &expected)?;
    }

    #[test]
    fn a_row_sees_those_of_its_life(
        rows in rows(1),
        preceding in prop::option::of(0..3u64),
        by_time in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut expected = Multiset::new();
        for mut life in lives(&rows) {
            life.sort_by_key(|row| if by_time { (row.ts, row.v) } else { (0, row.v) });
            if !by_time {
                life.sort_by_key(|row| (row.v, row.ts));
            }
            for (at, row) in life.iter().enumerate() {
                let first = preceding.map_or(0, |rows| at.saturating_sub(rows as usize));
                let sum: i64 = life[first..=at].iter().filter_map(|row| row.v).sum();
                let shown = shown(row).into_iter().chain([sum.to_string()]).collect();
                *expected.entry(shown).or_insert(0) += 1;
            }
        }
        let order = vec![SortKey { column: if by_time { 3 } else { 2 }, descending: false, nulls_first: false }];
        let over = KeyedOver::new(KeyedOverSpec {
            input: input(),
            partition: vec![0],
            order,
            frame: OverFrame::Rows { preceding },
            aggregates: vec![aggregate(F::Sum, Some(2))],
            lags: vec![], input_retracts: false,
            state_ttl_us: Some(TTL_US),
        });
        let over = over.unwrap();
        prop_assert_eq!(over.waits(), by_time);
        let steps = steps(&rows);
        check(&over, &steps, cut.index(steps.len() + 1), &expected)?;
    }

    #[test]
    fn a_row_of_a_join_meets_those_that_come_in_its_time(
        rows in rows(2),
        kind in prop::sample::select(vec![
            KeyedJoinKind::Inner, KeyedJoinKind::Left, KeyedJoinKind::Full, KeyedJoinKind::LeftSemi, KeyedJoinKind::LeftAnti,
        ]),
        cut in any::<prop::sample::Index>(),
    ) {
        let meets = |one: &Row, other: &Row| one.key == other.key && (one.ts - other.ts).abs() <= TTL_US;
        let side = |side: usize| rows.iter().filter(move |row| row.0 == side).map(|row| &row.1);
        let mut expected = Multiset::new();
        let is_half = matches!(kind, KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti);
        let mut add = |left: Option<&Row>, right: Option<&Row>| {
            let of = |row: Option<&Row>| row.map_or(vec!["null".to_owned(); 2], |row| vec![show(row.v), shown_time(row.ts)]);
            let row = of(left).into_iter().chain(if is_half { vec![] } else { of(right) }).collect();
            *expected.entry(row).or_insert(0) += 1;
        };
        for left in side(0) {
            let partners = || side(1).filter(|right| meets(left, right));
            let is_alone = partners().next().is_none();
            match kind {
                KeyedJoinKind::LeftSemi if !is_alone => add(Some(left), None),
                KeyedJoinKind::LeftSemi | KeyedJoinKind::Inner if is_alone => {}
                KeyedJoinKind::LeftAnti if !is_alone => {}
                _ if is_alone => add(Some(left), None),
                _ => partners().for_each(|right| add(Some(left), Some(right))),
            }
        }
        if kind == KeyedJoinKind::Full {
            side(1).filter(|right| !side(0).any(|left| meets(left, right))).for_each(|right| add(None, Some(right)));
        }
        let output = if is_half { vec![2, 3] } else { vec![2, 3, 6, 7] };
        let keys = vec![(0, 0)];
        let (expiry, state_ttl_us) = ([None, None], Some(TTL_US));
        let spec =
            KeyedJoinSpec { left: input(), right: input(), keys, kind, residual: None, expiry, state_ttl_us, output };
        let steps = steps(&rows);
        check(&KeyedJoin::new(spec).unwrap(), &steps, cut.index(steps.len() + 1), &expected)?;
    }
}

#[test]
fn a_row_of_a_forgotten_key_is_not_taken_back_any_more() {
    let mut hand = Hand::new(&aggregation(&[(F::Count, None), (F::Sum, Some(2))], true));
    let at = |v: i64, ts: i64, retracts: bool| Row { key: Some(1), text: None, v: Some(v), ts, retracts };
    let mut outcome = Outcome::default();
    outcome.add(hand.process(0, Element::Batch(batch(&[at(5, 0, false), at(7, 0, false)]))));
    outcome.add(hand.process(0, Element::Watermark(UNIT_US)));
    outcome.add(hand.process(0, Element::Watermark(20 * UNIT_US)));
    let memory = hand.operator.memory_bytes();
    // An update of a row that is forgotten: its old value is ignored, its new one counts.
    outcome.add(hand.process(0, Element::Batch(batch(&[at(5, 0, true), at(6, 20 * UNIT_US, false)]))));
    outcome.add(hand.process(0, Element::Watermark(20 * UNIT_US + 1)));
    let row = |count: i64, sum: i64| vec!["1".to_owned(), count.to_string(), sum.to_string()];
    assert_eq!(outcome.rows, Multiset::from([(row(2, 12), 1), (row(1, 6), 1)]));
    outcome.add(hand.process(0, Element::Batch(batch(&[at(6, 20 * UNIT_US, true)]))));
    outcome.add(hand.process(0, Element::Watermark(20 * UNIT_US + 2)));
    assert_eq!(outcome.rows, Multiset::from([(row(2, 12), 1)]), "what came later is taken back as ever");
    assert!(hand.operator.memory_bytes() <= memory + 100);
}

/// Many keys, each of which comes once: with a time-to-live memory does not grow.
fn stays_small(name: &str, factory: &dyn OperatorFactory, inputs: usize) {
    let mut hand = Hand::new(factory);
    let mut most = [0, 0];
    for round in 0..60i64 {
        let row = |n| Row {
            key: Some(round * 500 + n),
            text: Some("some text, or other"),
            v: Some(n),
            ts: round * UNIT_US,
            retracts: false,
        };
        let rows: Vec<Row> = (0..500).map(row).collect();
        (0..inputs).for_each(|input| drop(hand.process(input, Element::Batch(batch(&rows)))));
        hand.process(0, Element::Watermark(round * UNIT_US));
        let half = usize::from(round >= 30);
        most[half] = most[half].max(hand.operator.memory_bytes());
    }
    assert!(most[1] <= most[0] * 5 / 4, "{name}: {most:?} bytes");
}

#[test]
fn memory_of_what_is_forgotten_is_given_back() {
    stays_small("aggregate", &aggregation(&[(F::Count, None), (F::CountDistinct, Some(2))], false), 1);
    stays_small("aggregate over changes", &aggregation(&[(F::Max, Some(2))], true), 1);
    let order = |column: usize| vec![SortKey { column, descending: false, nulls_first: false }];
    let (partition, state_ttl_us) = (vec![0], Some(TTL_US));
    let top = TopN::new(TopNSpec {
        input: input(),
        partition: partition.clone(),
        order: order(2),
        ranking: Ranking::RowNumber,
        limit: 3,
        with_rank: true,
        input_retracts: true,
        state_ttl_us,
    });
    stays_small("top-n", &top.unwrap(), 1);
    for (column, frame) in [
        (3, OverFrame::Rows { preceding: Some(3) }),
        (3, OverFrame::Rows { preceding: None }),
        (3, OverFrame::Range { preceding_us: Some(TTL_US) }),
        (2, OverFrame::Rows { preceding: None }),
    ] {
        // A range of time is over by itself.
        let state_ttl_us = state_ttl_us.filter(|_| !matches!(frame, OverFrame::Range { .. }));
        let over = KeyedOver::new(KeyedOverSpec {
            input: input(),
            partition: partition.clone(),
            order: order(column),
            frame,
            aggregates: vec![aggregate(F::Sum, Some(2)), aggregate(F::Max, Some(1))],
            lags: vec![],
            input_retracts: false,
            state_ttl_us,
        });
        stays_small(&format!("over {column} {frame:?}"), &over.unwrap(), 1);
    }
    let join = KeyedJoin::new(KeyedJoinSpec {
        left: input(),
        right: input(),
        keys: vec![(0, 0)],
        kind: KeyedJoinKind::Left,
        residual: None,
        expiry: [None, None],
        state_ttl_us,
        output: vec![0, 1, 5],
    });
    stays_small("join", &join.unwrap(), 2);
}

#[test]
fn a_row_that_takes_back_a_forgotten_one_is_counted() {
    let at = |ts: i64, retracts: bool| Row { key: Some(1), text: None, v: Some(5), ts, retracts };
    let steps = [
        Step::Rows(0, vec![at(0, false)]),
        Step::Watermark(20 * UNIT_US),
        Step::Rows(0, vec![at(0, true), at(20 * UNIT_US, false), at(20 * UNIT_US, true)]),
    ];
    let order = vec![SortKey { column: 2, descending: false, nulls_first: false }];
    let (partition, state_ttl_us) = (vec![0], Some(TTL_US));
    let top = TopN::new(TopNSpec {
        input: input(),
        partition: partition.clone(),
        order: order.clone(),
        ranking: Ranking::RowNumber,
        limit: 3,
        with_rank: true,
        input_retracts: true,
        state_ttl_us,
    });
    let over = KeyedOver::new(KeyedOverSpec {
        input: input(),
        partition,
        order,
        frame: OverFrame::Rows { preceding: None },
        aggregates: vec![aggregate(F::Sum, Some(2))],
        lags: vec![],
        input_retracts: true,
        state_ttl_us,
    });
    let join = KeyedJoin::new(KeyedJoinSpec {
        left: input(),
        right: input(),
        keys: vec![(0, 0)],
        kind: KeyedJoinKind::Left,
        residual: None,
        expiry: [None, None],
        state_ttl_us,
        output: vec![0, 2, 3],
    });
    let aggregation = aggregation(&[(F::Count, None)], true);
    let (top, over, join) = (top.unwrap(), over.unwrap(), join.unwrap());
    let factories: [(&str, &dyn OperatorFactory); 4] =
        [("aggregate", &aggregation), ("top-n", &top), ("over", &over), ("join", &join)];
    for (name, factory) in factories {
        let outcome = run(factory, &steps);
        assert_eq!(outcome.late, 1, "{name}: one that is forgotten, and not the one that is there");
        assert_eq!(outcome.rows.values().sum::<i64>(), 1, "{name}: {:?}", outcome.rows);
    }
}
