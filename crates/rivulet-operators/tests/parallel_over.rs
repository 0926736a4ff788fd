//! Aggregates over preceding rows against a recomputation from all rows that are left.

#[path = "common/parallel.rs"]
mod parallel;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use parallel::{Multiset, Row, Step, aggregate, input, run, run_moved, steps};
use proptest::prelude::*;
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::parallel::{KeyedOver, KeyedOverSpec, OverFrame, SortKey};

const TEXTS: [Option<&str>; 3] = [None, Some("a"), Some("a longer text, on the heap")];

/// Rows, of which some take back one before them.
fn changes(retracting: bool) -> impl Strategy<Value = Vec<(usize, Row)>> {
    let row =
        (0..3usize, 0..3usize, prop::option::weighted(0.8, -3i64..6), 0i64..12, any::<prop::sample::Index>(), 0..3u8);
    prop::collection::vec(row, 0..70).prop_map(move |rows| {
        let mut live: Vec<Row> = Vec::new();
        let mut all = Vec::new();
        for (at, (key, text, v, ts, which, choice)) in rows.into_iter().enumerate() {
            let row = match retracting && choice == 0 && !live.is_empty() {
                true => Row { retracts: true, ..live.swap_remove(which.index(live.len())) },
                false => {
                    let key = (key > 0).then_some(key as i64);
                    live.push(Row { key, text: TEXTS[text], v, ts: ts + at as i64, retracts: false });
                    live[live.len() - 1].clone()
                }
            };
            all.push((0, row));
        }
        all
    })
}

fn left(rows: &[(usize, Row)]) -> Vec<Row> {
    let mut live: Vec<Row> = Vec::new();
    for (_, row) in rows {
        match row.retracts {
            false => live.push(row.clone()),
            true => {
                let same = Row { retracts: false, ..row.clone() };
                live.swap_remove(live.iter().position(|row| *row == same).unwrap());
            }
        }
    }
    live
}

fn show<T: ToString>(value: Option<T>) -> String {
    value.map_or("null".into(), |value| value.to_string())
}

fn frame() -> impl Strategy<Value = OverFrame> {
    prop_oneof![
        prop::option::of(0..4u64).prop_map(|preceding| OverFrame::Rows { preceding }),
        prop::option::of(0..10i64).prop_map(|preceding_us| OverFrame::Range { preceding_us }),
    ]
}

/// Ordered by time, or by value from the greatest down.
fn over(by_time: bool, frame: OverFrame, input_retracts: bool) -> KeyedOver {
    let order = match by_time {
        true => SortKey { column: 3, descending: false, nulls_first: false },
        false => SortKey { column: 2, descending: true, nulls_first: false },
    };
    let aggregates = vec![
        aggregate(F::Count, None),
        aggregate(F::Sum, Some(2)),
        aggregate(F::Max, Some(2)),
        aggregate(F::CountDistinct, Some(2)),
        aggregate(F::Min, Some(1)),
    ];
    let spec =
        KeyedOverSpec { input: input(), partition: vec![0], order: vec![order], frame, aggregates, input_retracts };
    KeyedOver::new(spec).unwrap()
}

fn model(by_time: bool, frame: OverFrame, rows: &[Row]) -> Multiset {
    let mut partitions: BTreeMap<Option<i64>, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|row| partitions.entry(row.key).or_default().push(row));
    let mut results = Multiset::new();
    for mut rows in partitions.into_values() {
        let order = |row: &Row| match by_time {
            true => (false, Reverse(Some(-row.ts))),
            false => (row.v.is_none(), Reverse(row.v)),
        };
        rows.sort_by_key(|row| (order(row), row.text, row.v, row.ts));
        for (at, row) in rows.iter().enumerate() {
            let is_peer = |other: &&&Row| order(other) == order(row);
            let seen: Vec<&Row> = match frame {
                OverFrame::Rows { preceding } => {
                    let first = preceding.map_or(0, |rows| at.saturating_sub(rows as usize));
                    rows[first..=at].to_vec()
                }
                OverFrame::Range { preceding_us } => {
                    let last = at + rows[at..].iter().take_while(is_peer).count();
                    let reaches = |other: &&Row| preceding_us.is_none_or(|reach| other.ts >= row.ts - reach);
                    rows[..last].iter().copied().filter(reaches).collect()
                }
            };
            let values = || seen.iter().filter_map(|row| row.v);
            let ts = arrow::array::TimestampMicrosecondArray::from(vec![row.ts]);
            let ts = arrow::util::display::array_value_to_string(&ts, 0).unwrap();
            let shown = vec![
                show(row.key),
                show(row.text),
                show(row.v),
                ts,
                seen.len().to_string(),
                show(values().next().map(|_| values().sum::<i64>())),
                show(values().max()),
                values().collect::<BTreeSet<_>>().len().to_string(),
                show(seen.iter().filter_map(|row| row.text).min()),
            ];
            *results.entry(shown).or_insert(0) += 1;
        }
    }
    results
}

proptest! {
    #[test]
    fn rows_in_order_of_time_come_out_once(
        rows in changes(false),
        frame in frame(),
        cuts in prop::collection::vec(1..20usize, 1..4),
        watermarks in prop::collection::vec(any::<bool>(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let factory = over(true, frame, false);
        prop_assert!(factory.waits());
        let steps = steps(&rows, &cuts, &watermarks);
        let expected = model(true, frame, &left(&rows));
        let outcome = run(&factory, &steps);
        prop_assert_eq!(&outcome.rows, &expected);
        prop_assert_eq!((outcome.retractions, outcome.late), (0, 0));
        let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&[0], &[0]]);
        prop_assert_eq!(&moved.rows, &expected);
    }

    #[test]
    fn rows_that_may_go_again_change_the_results_of_others(
        rows in any::<bool>().prop_flat_map(changes),
        (by_time, frame) in any::<bool>().prop_flat_map(|by_time| (Just(by_time), frame().prop_filter(
            "an interval needs times",
            move |frame| by_time || !matches!(frame, OverFrame::Range { preceding_us: Some(_) }),
        ))),
        cuts in prop::collection::vec(1..20usize, 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let factory = over(by_time, frame, true);
        let steps = steps(&rows, &cuts, &[false]);
        let expected = model(by_time, frame, &left(&rows));
        prop_assert_eq!(&run(&factory, &steps).rows, &expected);
        let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&[0], &[0]]);
        prop_assert_eq!(&moved.rows, &expected);
    }
}

#[test]
fn a_row_behind_the_watermark_is_late() {
    let at = |ts| Row { key: Some(1), text: None, v: Some(1), ts, retracts: false };
    let factory = over(true, OverFrame::Rows { preceding: Some(1) }, false);
    let outcome = run(&factory, &[Step::Rows(0, vec![at(9)]), Step::Watermark(8), Step::Rows(0, vec![at(7), at(8)])]);
    assert_eq!((outcome.late, outcome.rows.values().sum::<i64>()), (1, 2));
}
