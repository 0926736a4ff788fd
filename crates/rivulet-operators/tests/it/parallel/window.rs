//! Keyed windows against a recomputation from all rows, whatever the batches, the watermarks and the moves of state.

use std::collections::{BTreeMap, BTreeSet};

use super::{Hand, Multiset, Outcome, Row, Step, aggregate, batch, input, positive, run, run_moved, steps};
use proptest::prelude::*;
use rivulet_dataflow::{Element, OperatorFactory};
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::AggregateSpec;
use rivulet_operators::parallel::{KeyedWindow, KeyedWindowKind, KeyedWindowSpec, Phase};

const TEXTS: [Option<&str>; 5] = [None, Some(""), Some("a"), Some("fifteen bytes.."), Some("more than fifteen bytes")];

fn row() -> impl Strategy<Value = Row> {
    (0..5usize, 0..5usize, prop::option::weighted(0.8, -3i64..6), 0i64..40).prop_map(|(key, text, v, ts)| Row {
        key: (key > 0).then_some(key as i64),
        text: TEXTS[text],
        v,
        ts,
        retracts: false,
    })
}

/// Rows whose times go on, out of order.
fn rows() -> impl Strategy<Value = Vec<(usize, Row)>> {
    prop::collection::vec(row(), 0..120).prop_map(|mut rows| {
        rows.iter_mut().enumerate().for_each(|(at, row)| row.ts += at as i64 * 3);
        rows.into_iter().map(|row| (0, row)).collect()
    })
}

fn kind() -> impl Strategy<Value = KeyedWindowKind> {
    prop_oneof![
        (1i64..40, 0i64..5).prop_map(|(width_us, offset_us)| KeyedWindowKind::Tumble { width_us, offset_us }),
        (1i64..20, 1i64..60, 0i64..5).prop_map(|(slide_us, width_us, offset_us)| KeyedWindowKind::Hop {
            slide_us,
            width_us,
            offset_us
        }),
        (1i64..10, 1i64..6, 0i64..5).prop_map(|(step_us, steps, offset_us)| KeyedWindowKind::Cumulate {
            step_us,
            width_us: step_us * steps,
            offset_us
        }),
        (1i64..15).prop_map(|gap_us| KeyedWindowKind::Session { gap_us }),
    ]
}

fn aggregates() -> Vec<AggregateSpec> {
    vec![
        aggregate(F::Count, None),
        aggregate(F::Sum, Some(2)),
        positive(aggregate(F::Max, Some(2))),
        aggregate(F::CountDistinct, Some(2)),
        positive(aggregate(F::CountDistinct, Some(2))),
        aggregate(F::CountDistinct, Some(1)),
        aggregate(F::Min, Some(1)),
        aggregate(F::FirstValue, Some(2)),
        aggregate(F::VarPop, Some(2)),
    ]
}

fn window(kind: KeyedWindowKind, keys: &[usize], aggregates: Vec<AggregateSpec>, phase: Phase) -> KeyedWindow {
    let keys = keys.to_vec();
    KeyedWindow::new(KeyedWindowSpec {
        input: input(),
        keys,
        window: kind,
        aggregates,
        phase,
        input_retracts: false,
        state_ttl_us: None,
    })
    .unwrap()
}

/// The windows of each row of one key, given the times of all its rows.
fn windows_of(kind: KeyedWindowKind, times: &BTreeSet<i64>, time: i64) -> Vec<(i64, i64)> {
    match kind {
        KeyedWindowKind::Tumble { width_us, offset_us } => {
            windows_of(KeyedWindowKind::Hop { slide_us: width_us, width_us, offset_us }, times, time)
        }
        KeyedWindowKind::Hop { slide_us, width_us, offset_us } => (-200..1000)
            .map(|n| offset_us + n * slide_us)
            .map(|start| (start, start + width_us))
            .filter(|(start, end)| (*start..*end).contains(&time))
            .collect(),
        KeyedWindowKind::Cumulate { step_us, width_us, offset_us } => (-200..1000)
            .map(|n| offset_us + n * width_us)
            .flat_map(|start| (1..=width_us / step_us).map(move |step| (start, start + step * step_us)))
            .filter(|(start, end)| (*start..*end).contains(&time))
            .collect(),
        KeyedWindowKind::Session { gap_us } => {
            let mut first = time;
            let mut last = time;
            for &other in times.range(..time).rev() {
                if other + gap_us <= first {
                    break;
                }
                first = other;
            }
            for &other in times.range(time..) {
                if other >= last + gap_us {
                    break;
                }
                last = other;
            }
            vec![(first, last + gap_us)]
        }
        _ => unreachable!(),
    }
}

fn show<T: ToString>(value: Option<T>) -> String {
    value.map_or("null".into(), |value| value.to_string())
}

fn time(us: i64) -> String {
    let array = arrow::array::TimestampMicrosecondArray::from(vec![us]);
    arrow::util::display::array_value_to_string(&array, 0).unwrap()
}

/// All results of all windows, computed from the rows of each.
fn model(kind: KeyedWindowKind, keys: &[usize], rows: &[(usize, Row)]) -> Multiset {
    let key_of = |row: &Row| -> Vec<String> {
        keys.iter().map(|&key| if key == 0 { show(row.key) } else { show(row.text) }).collect()
    };
    let mut by_key: BTreeMap<Vec<String>, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|(_, row)| by_key.entry(key_of(row)).or_default().push(row));
    let mut results = Multiset::new();
    for (key, rows) in by_key {
        let times: BTreeSet<i64> = rows.iter().map(|row| row.ts).collect();
        let mut windows: BTreeMap<(i64, i64), Vec<&Row>> = BTreeMap::new();
        for row in rows {
            windows_of(kind, &times, row.ts).into_iter().for_each(|at| windows.entry(at).or_default().push(row));
        }
        for ((start, end), rows) in windows {
            let values = || rows.iter().filter_map(|row| row.v);
            let above = || values().filter(|v| *v > 0);
            let first = rows.iter().filter(|row| row.v.is_some()).map(|row| (row.ts, row.v)).min();
            let count = values().count() as f64;
            let mean = values().sum::<i64>() as f64 / count;
            let variance = values().map(|v| (v as f64 - mean).powi(2)).sum::<f64>() / count;
            let mut result = key.clone();
            result.extend([time(start), time(end), rows.len().to_string()]);
            result.extend([show((count > 0.0).then(|| values().sum::<i64>())), show(above().max())]);
            result.push(values().collect::<BTreeSet<_>>().len().to_string());
            result.push(above().collect::<BTreeSet<_>>().len().to_string());
            result.push(rows.iter().filter_map(|row| row.text).collect::<BTreeSet<_>>().len().to_string());
            result.push(show(rows.iter().filter_map(|row| row.text).min()));
            result.push(show(first.and_then(|first| first.1)));
            result.push(show((count > 0.0).then(|| format!("{variance:.6}"))));
            *results.entry(result).or_insert(0) += 1;
        }
    }
    results
}

/// The variance rounded, which differs in its last digits with the order of rows.
fn rounded(rows: Multiset) -> Multiset {
    rows.into_iter()
        .map(|(mut row, count)| {
            if let Some(variance) = row.last_mut()
                && let Ok(value) = variance.parse::<f64>()
            {
                *variance = format!("{:.6}", value.abs());
            }
            (row, count)
        })
        .collect()
}

proptest! {
    #[test]
    fn windows_are_what_their_rows_say(
        rows in rows(),
        kind in kind(),
        keys in prop_oneof![Just(vec![]), Just(vec![0]), Just(vec![1]), Just(vec![0, 1])],
        cuts in prop::collection::vec(1..30usize, 1..4),
        watermarks in prop::collection::vec(any::<bool>(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let factory = window(kind, &keys, aggregates(), Phase::Whole);
        let steps = steps(&rows, &cuts, &watermarks);
        let expected = model(kind, &keys, &rows);
        let outcome = run(&factory, &steps);
        prop_assert_eq!(outcome.late, 0);
        prop_assert_eq!(&rounded(outcome.rows), &expected);
        let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&keys, &keys]);
        prop_assert_eq!(&rounded(moved.rows), &expected);
        prop_assert_eq!(moved.late, 0);
    }

    #[test]
    fn two_phases_give_what_one_gives(
        rows in rows(),
        kind in kind().prop_filter("sessions are whole", |kind| !matches!(kind, KeyedWindowKind::Session { .. })),
        keys in prop_oneof![Just(vec![]), Just(vec![0]), Just(vec![0, 1])],
        cuts in prop::collection::vec(1..30usize, 1..4),
        watermarks in prop::collection::vec(any::<bool>(), 1..4),
    ) {
        let words = || vec![aggregate(F::Count, None), aggregate(F::Sum, Some(2)), aggregate(F::Max, Some(2)), aggregate(F::Avg, Some(2))];
        let steps = steps(&rows, &cuts, &watermarks);
        let whole = window(kind, &keys, words(), Phase::Whole);
        prop_assert!(whole.can_be_split());
        let expected = run(&whole, &steps);
        // Two partial instances that take turns, and one that merges.
        let partial = window(kind, &keys, words(), Phase::Partial);
        let last = window(kind, &keys, words(), Phase::Final);
        let mut partials = [Hand::new(&partial), Hand::new(&partial)];
        let mut merging = Hand::new(&last);
        let mut outcome = Outcome::default();
        for (turn, step) in steps.iter().enumerate() {
            match step {
                Step::Rows(_, rows) => {
                    let states = partials[turn % 2].process(0, Element::Batch(batch(rows)));
                    states.into_iter().for_each(|states| outcome.add(merging.process(0, Element::Batch(states))));
                }
                Step::Watermark(watermark) => {
                    for partial in &mut partials {
                        let states = partial.process(0, Element::Watermark(*watermark));
                        states.into_iter().for_each(|states| outcome.add(merging.process(0, Element::Batch(states))));
                    }
                    outcome.add(merging.process(0, Element::Watermark(*watermark)));
                }
            }
        }
        for partial in &mut partials {
            let states = partial.process(0, Element::End);
            for states in states {
                prop_assert_eq!(states.columns.schema(), last.partial_schema());
                outcome.add(merging.process(0, Element::Batch(states)));
            }
        }
        outcome.add(merging.process(0, Element::End));
        prop_assert_eq!(merging.late(), 0);
        prop_assert_eq!(outcome.rows, expected.rows);
    }
}

#[test]
fn a_partial_aggregation_that_does_not_reduce_passes_rows_through() {
    let words = || vec![aggregate(F::Count, None), aggregate(F::Sum, Some(2)), aggregate(F::Max, Some(2))];
    for kind in [
        KeyedWindowKind::Tumble { width_us: 20, offset_us: 0 },
        KeyedWindowKind::Hop { slide_us: 10, width_us: 20, offset_us: 1 },
        KeyedWindowKind::Hop { slide_us: 20, width_us: 15, offset_us: 0 },
    ] {
        let [whole, partial, last] =
            [Phase::Whole, Phase::Partial, Phase::Final].map(|phase| Hand::new(&window(kind, &[0, 1], words(), phase)));
        let [mut whole, mut partial, mut last] = [whole, partial, last];
        let (mut expected, mut outcome) = (Outcome::default(), Outcome::default());
        let mut passed = 0;
        for number in 0..32i64 {
            let row = |n: i64| Row {
                key: Some((number * 4096 + n) * 7 % 60_000),
                text: TEXTS[n as usize % 5],
                v: Some(n % 11),
                ts: number * 4 + n * 13 % 9,
                retracts: false,
            };
            let rows: Vec<Row> = (0..4096).map(row).collect();
            expected.add(whole.process(0, Element::Batch(batch(&rows))));
            let states = partial.process(0, Element::Batch(batch(&rows)));
            passed += states.iter().map(rivulet_dataflow::Batch::rows).sum::<usize>();
            states.into_iter().for_each(|states| outcome.add(last.process(0, Element::Batch(states))));
            let watermark = Element::Watermark(number * 4);
            expected.add(whole.process(0, watermark.clone()));
            partial.process(0, watermark.clone()).into_iter().for_each(|states| {
                outcome.add(last.process(0, Element::Batch(states)));
            });
            outcome.add(last.process(0, watermark));
        }
        expected.add(whole.process(0, Element::End));
        partial.process(0, Element::End).into_iter().for_each(|states| {
            outcome.add(last.process(0, Element::Batch(states)));
        });
        outcome.add(last.process(0, Element::End));
        assert!(passed > 10_000, "{kind:?}: {passed} rows came out with their batch");
        assert_eq!(outcome.rows, expected.rows, "{kind:?}");
        assert_eq!((last.late(), partial.late()), (0, whole.late()));
    }
}

#[test]
fn a_partial_aggregation_leaves_no_row_behind_a_barrier() {
    let words = || vec![aggregate(F::Max, Some(2)), aggregate(F::Count, None)];
    for kind in [
        KeyedWindowKind::Tumble { width_us: 10, offset_us: 0 },
        KeyedWindowKind::Hop { slide_us: 10, width_us: 20, offset_us: 0 },
    ] {
        for keys in [&[][..], &[0][..]] {
            let of = |phase| Hand::new(&window(kind, keys, words(), phase));
            let [mut whole, mut partial, mut last] = [Phase::Whole, Phase::Partial, Phase::Final].map(of);
            let (mut expected, mut outcome) = (Outcome::default(), Outcome::default());
            // Rows before the barrier, and rows behind it that come when others have gone on.
            for rows in [vec![at(1, 1), at(1, 2), at(2, 3), at(1, 12)], vec![at(1, 4), at(1, 5), at(2, 6), at(1, 13)]] {
                expected.add(whole.process(0, Element::Batch(batch(&rows))));
                assert!(partial.process(0, Element::Batch(batch(&rows))).is_empty(), "it holds back what it has");
                let states = partial.process(0, Element::Barrier(1));
                assert!(partial.process(0, Element::Barrier(2)).is_empty(), "it has nothing left");
                states.into_iter().for_each(|states| outcome.add(last.process(0, Element::Batch(states))));
                expected.add(whole.process(0, Element::Watermark(10)));
                outcome.add(last.process(0, Element::Watermark(10)));
            }
            expected.add(whole.process(0, Element::End));
            outcome.add(last.process(0, Element::End));
            assert_eq!(outcome.rows, expected.rows, "{kind:?} {keys:?}");
            assert_eq!((last.late(), whole.late()), (3, 3), "a state that is late is as many rows as it stands for");
        }
    }
}

#[test]
fn a_sum_that_overflows_takes_nothing_from_those_beside_it() {
    let great = |ts| Row { v: Some(i64::MAX), ..at(1, ts) };
    let steps = [Step::Rows(0, vec![great(1), great(2), at(2, 3)])];
    for kind in [
        KeyedWindowKind::Tumble { width_us: 10, offset_us: 0 },
        KeyedWindowKind::Hop { slide_us: 10, width_us: 10, offset_us: 0 },
        KeyedWindowKind::Session { gap_us: 5 },
    ] {
        let aggregates = vec![aggregate(F::Count, None), aggregate(F::Sum, Some(2))];
        let outcome = run(&window(kind, &[0], aggregates, Phase::Whole), &steps);
        let counted: Vec<[&str; 3]> = outcome.rows.keys().map(|row| [&*row[0], &*row[3], &*row[4]]).collect();
        assert_eq!(counted, [["1", "2", "null"], ["2", "1", "1"]], "{kind:?}");
    }
}

fn at(key: i64, ts: i64) -> Row {
    Row { key: Some(key), text: None, v: Some(1), ts, retracts: false }
}

#[test]
fn a_row_of_a_closed_window_is_refused_and_counted() {
    for (kind, late) in [
        (KeyedWindowKind::Tumble { width_us: 10, offset_us: 0 }, 1),
        // All of a row's windows take it, or none: that of [-10, 10) is closed.
        (KeyedWindowKind::Hop { slide_us: 10, width_us: 20, offset_us: 0 }, 1),
        (KeyedWindowKind::Session { gap_us: 5 }, 1),
    ] {
        let factory = window(kind, &[0], vec![aggregate(F::Count, None)], Phase::Whole);
        let steps = [
            Step::Rows(0, vec![at(1, 3), at(1, 12)]),
            Step::Watermark(10),
            Step::Rows(0, vec![at(1, 4), at(1, 11), at(2, 14)]),
        ];
        assert_eq!(run(&factory, &steps).late, late, "{kind:?}");
    }
}

#[test]
fn memory_of_closed_windows_is_given_back() {
    for kind in [
        KeyedWindowKind::Tumble { width_us: 1000, offset_us: 0 },
        KeyedWindowKind::Hop { slide_us: 100, width_us: 1000, offset_us: 0 },
        KeyedWindowKind::Session { gap_us: 100 },
    ] {
        let factory = window(kind, &[0], vec![aggregate(F::Count, None)], Phase::Whole);
        let mut hand = Hand::new(&factory);
        let mut most = [0, 0];
        for round in 0..200i64 {
            let rows: Vec<Row> = (0..500).map(|n| at(round * 500 + n, round * 100 + n % 100)).collect();
            hand.process(0, Element::Batch(batch(&rows)));
            hand.process(0, Element::Watermark(round * 100 - 50));
            let memory = hand.operator.memory_bytes();
            let half = usize::from(round >= 100);
            most[half] = most[half].max(memory);
        }
        assert!(most[1] <= most[0] * 5 / 4, "{kind:?} {most:?}");
        hand.process(0, Element::End);
    }
}

#[test]
fn windows_by_the_clock_close_when_it_has_passed_them() {
    let kind = KeyedWindowKind::ProcessingTumble { width_us: 1000 };
    let factory = window(kind, &[0], vec![aggregate(F::Count, None)], Phase::Whole);
    assert_eq!(factory.describe().operator, "window");
    let mut hand = Hand::new(&factory);
    hand.now_us = 1500;
    assert!(hand.process(0, Element::Batch(batch(&[at(1, 7), at(1, 9_000_000)]))).is_empty());
    assert_eq!(hand.operator.deadline_us(), Some(2000));
    assert!(hand.process(0, Element::Watermark(1 << 40)).is_empty(), "event time does not matter");
    hand.now_us = 2100;
    let mut outcome = Outcome::default();
    outcome.add(hand.tick());
    assert_eq!(
        outcome.rows.into_keys().collect::<Vec<_>>(),
        [["1".to_owned(), time(1000), time(2000), "2".to_owned()]]
    );
    assert_eq!(hand.operator.deadline_us(), None);
}

#[test]
fn attached_windows_are_those_of_the_rows() {
    use arrow::array::{Int64Array, RecordBatch, TimestampMicrosecondArray};
    use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
    use std::sync::Arc;
    let time_type = DataType::Timestamp(TimeUnit::Microsecond, None);
    let schema = Arc::new(Schema::new(vec![
        Field::new("from", time_type.clone(), true),
        Field::new("to", time_type, true),
        Field::new("n", DataType::Int64, true),
    ]));
    let largest = AggregateSpec {
        name: "largest".into(),
        function: F::Max,
        arguments: vec![Arc::new(datafusion_physical_expr::expressions::Column::new("n", 2))],
        filter: None,
    };
    let factory = KeyedWindow::new(KeyedWindowSpec {
        input: schema.clone(),
        keys: vec![],
        window: KeyedWindowKind::Attached { start: 0, end: 1 },
        aggregates: vec![largest],
        phase: Phase::Whole,
        input_retracts: false,
        state_ttl_us: None,
    })
    .unwrap();
    let rows = |ends: Vec<Option<i64>>, values: Vec<i64>| {
        let starts: Vec<Option<i64>> = ends.iter().map(|end| end.map(|end| end - 10)).collect();
        let times: Vec<i64> = ends.iter().map(|end| end.unwrap_or(1) - 1).collect();
        let columns = RecordBatch::try_new(
            schema.clone(),
            vec![
                Arc::new(TimestampMicrosecondArray::from(starts)),
                Arc::new(TimestampMicrosecondArray::from(ends)),
                Arc::new(Int64Array::from(values)),
            ],
        )
        .unwrap();
        let rows = times.len();
        rivulet_dataflow::Batch::new(vec![0; rows].into(), times.clone().into(), times.into(), columns)
    };
    let mut hand = Hand::new(&factory);
    let mut outcome = Outcome::default();
    outcome.add(hand.process(0, Element::Batch(rows(vec![Some(20), Some(25), None, Some(20)], vec![4, 5, 9, 7]))));
    outcome.add(hand.process(0, Element::Watermark(20)));
    assert_eq!(outcome.rows.keys().collect::<Vec<_>>(), [&vec![time(10), time(20), "7".to_owned()]]);
    outcome.add(hand.process(0, Element::Batch(rows(vec![Some(20)], vec![8]))));
    assert_eq!(hand.late(), 1);
    outcome.add(hand.process(0, Element::End));
    assert!(outcome.rows.contains_key(&vec![time(15), time(25), "5".to_owned()]));
}

#[test]
fn the_windows_of_few_rows_come_in_parts() {
    const WINDOWS: i64 = 100_000;
    let hop = KeyedWindowKind::Hop { slide_us: 1, width_us: WINDOWS, offset_us: 0 };
    let cumulate = KeyedWindowKind::Cumulate { step_us: 1, width_us: WINDOWS, offset_us: 0 };
    let row = |key: i64| Row { key: Some(key), text: None, v: Some(key), ts: 0, retracts: false };
    for kind in [hop, cumulate] {
        for last in [Element::Watermark(10 * WINDOWS), Element::End] {
            let mut hand = Hand::new(&window(kind, &[0], vec![aggregate(F::Count, None)], Phase::Whole));
            hand.process(0, Element::Batch(batch(&[row(1), row(2)])));
            let mut given = hand.process(0, last);
            let mut rows = 0;
            while !given.is_empty() {
                let part: usize = given.iter().map(rivulet_dataflow::Batch::rows).sum();
                assert!(part < 10_000, "{part} rows at once");
                rows += part;
                given = if hand.operator.has_more() { hand.go_on() } else { Vec::new() };
            }
            assert_eq!(rows as i64, 2 * WINDOWS, "{kind:?}");
        }
    }
}

#[test]
fn a_window_has_a_bounded_number_of_panes() {
    const HOUR_US: i64 = 3_600_000_000;
    let hop = |slide_us, width_us| KeyedWindowKind::Hop { slide_us, width_us, offset_us: 0 };
    let cumulate = |step_us, width_us| KeyedWindowKind::Cumulate { step_us, width_us, offset_us: 0 };
    for (kind, panes) in [
        (hop(1, HOUR_US), HOUR_US),
        (cumulate(1, HOUR_US), HOUR_US),
        (hop(7, HOUR_US), HOUR_US),
        (hop(HOUR_US, HOUR_US - 1), HOUR_US - 1),
        (hop(10, 1_000_010), 100_001),
        (cumulate(10, 1_000_010), 100_001),
    ] {
        let error = kind.check(&input()).unwrap_err().to_string();
        let expected = format!("a window would consist of {panes} panes, at most 100000 are allowed\nhint: ");
        assert!(error.starts_with(&expected), "{kind:?}: {error}");
    }
    for kind in [hop(10, 1_000_000), cumulate(10, 1_000_000), hop(HOUR_US, HOUR_US)] {
        kind.check(&input()).unwrap();
    }
}
