//! Aggregates over preceding rows against a recomputation from all rows that are left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::{Multiset, Row, Step, aggregate, changes_in_time, input, left, run, run_moved, steps};
use proptest::prelude::*;
use rivulet_dataflow::{Batch, Context, Element, OperatorFactory, Refusals, SlotTable};
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::parallel::{KeyedOver, KeyedOverSpec, Lag, OverFrame, SortKey, Versions};

const TEXTS: [Option<&str>; 3] = [None, Some("a"), Some("a longer text, on the heap")];

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
    let spec = KeyedOverSpec {
        input: input(),
        partition: vec![0],
        order: vec![order],
        frame,
        aggregates,
        lags: vec![],
        input_retracts,
        state_ttl_us: None,
    };
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
        rows in changes_in_time(false, 70),
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
        rows in any::<bool>().prop_flat_map(|retracting| changes_in_time(retracting, 70)),
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

proptest! {
    #[test]
    fn values_of_other_rows_are_those_so_many_rows_away(
        rows in changes_in_time(false, 70),
        leads in any::<bool>(),
        reaches in prop::collection::vec((0..3usize, 1..4u32), 1..4),
        cuts in prop::collection::vec(1..20usize, 1..4),
        watermarks in prop::collection::vec(any::<bool>(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let other = |&(column, rows): &(usize, u32)| Lag { name: format!("{column} {rows}"), column, rows };
        let others: Vec<Lag> = reaches.iter().map(other).collect();
        let preceding = reaches.iter().map(|reach| u64::from(reach.1)).max().map(|most| most - u64::from(leads));
        let order = vec![SortKey { column: 3, descending: false, nulls_first: false }];
        let factory = KeyedOver::new(KeyedOverSpec {
            input: input(),
            partition: vec![0],
            order,
            frame: OverFrame::Rows { preceding },
            aggregates: vec![],
            lags: if leads { vec![] } else { others.clone() },
            input_retracts: false,
            state_ttl_us: None,
        });
        let mut factory = factory.unwrap();
        if leads {
            factory = factory.with_leads(others).unwrap();
        }
        let mut partitions: BTreeMap<Option<i64>, Vec<&Row>> = BTreeMap::new();
        rows.iter().for_each(|row| partitions.entry(row.1.key).or_default().push(&row.1));
        let mut expected = Multiset::new();
        for mut rows in partitions.into_values() {
            rows.sort_by_key(|row| (row.ts, row.text, row.v));
            for (at, row) in rows.iter().enumerate() {
                let ts = arrow::array::TimestampMicrosecondArray::from(vec![row.ts]);
                let ts = arrow::util::display::array_value_to_string(&ts, 0).unwrap();
                let mut shown = vec![show(row.key), show(row.text), show(row.v), ts];
                for &(column, away) in &reaches {
                    let at = if leads { Some(at + away as usize) } else { at.checked_sub(away as usize) };
                    let other = at.and_then(|at| rows.get(at));
                    shown.push(match column {
                        0 => show(other.and_then(|row| row.key)),
                        1 => show(other.and_then(|row| row.text)),
                        _ => show(other.and_then(|row| row.v)),
                    });
                }
                *expected.entry(shown).or_insert(0) += 1;
            }
        }
        let steps = steps(&rows, &cuts, &watermarks);
        prop_assert_eq!(&run(&factory, &steps).rows, &expected);
        let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&[0], &[0]]);
        prop_assert_eq!(&moved.rows, &expected);
    }
}

#[test]
fn values_of_rows_that_are_not_at_hand_are_refused() {
    for (column, rows, preceding) in [(3, 2, Some(1)), (3, 0, Some(1)), (2, 1, Some(1)), (3, 1, None)] {
        let spec = KeyedOverSpec {
            input: input(),
            partition: vec![0],
            order: vec![SortKey { column, descending: false, nulls_first: false }],
            frame: OverFrame::Rows { preceding },
            aggregates: vec![],
            lags: vec![Lag { name: "lag".into(), column: 2, rows }],
            input_retracts: false,
            state_ttl_us: None,
        };
        let error = KeyedOver::new(spec).err().unwrap().to_string();
        assert!(error.contains("not at hand") && error.contains("hint:"), "{error}");
    }
    // Rows wait for later ones, and nothing else is computed of them.
    let lead = Lag { name: "lead".into(), column: 2, rows: 2 };
    let error = over(true, OverFrame::Rows { preceding: Some(1) }, false).with_leads(vec![lead]).err().unwrap();
    assert!(error.to_string().contains("stand alone"), "{error}");
}

#[test]
fn a_row_behind_the_watermark_is_late() {
    let at = |ts| Row { key: Some(1), text: None, v: Some(1), ts, retracts: false };
    let factory = over(true, OverFrame::Rows { preceding: Some(1) }, false);
    let outcome = run(&factory, &[Step::Rows(0, vec![at(9)]), Step::Watermark(8), Step::Rows(0, vec![at(7), at(8)])]);
    assert_eq!((outcome.late, outcome.rows.values().sum::<i64>()), (1, 2));
}

#[test]
fn memory_of_silent_partitions_is_given_back() {
    use super::{Hand, batch};
    use rivulet_dataflow::Element;
    let mut hand = Hand::new(&over(true, OverFrame::Range { preceding_us: Some(2_000_000) }, false));
    let mut most = [0, 0];
    for round in 0..200i64 {
        let now = round * 1_000_000;
        let row = |n| Row { key: Some(round * 300 + n), text: TEXTS[2], v: Some(n), ts: now, retracts: false };
        hand.process(0, Element::Batch(batch(&(0..300).map(row).collect::<Vec<_>>())));
        hand.process(0, Element::Watermark(now));
        let half = usize::from(round >= 100);
        most[half] = most[half].max(hand.operator.memory_bytes());
    }
    assert!(most[1] <= most[0] * 5 / 4 && most[1] < 2_000_000, "{most:?}");
}

#[test]
fn rows_ahead_of_the_watermark_come_out_before_it_passes_them() {
    let at = |ts| Row { key: Some(1), text: None, v: Some(1), ts, retracts: false };
    let factory = over(true, OverFrame::Rows { preceding: Some(1) }, false).with_rows_ahead(1);
    let outcome =
        run(&factory, &[Step::Rows(0, vec![at(8), at(9)]), Step::Watermark(8), Step::Rows(0, vec![at(8), at(9)])]);
    assert_eq!(
        (outcome.late, outcome.rows.values().sum::<i64>()),
        (1, 3),
        "no row of time 8 comes behind a watermark of 8"
    );
}

/// Of the versions of a key the newest stays, and of a key without version nothing.
#[test]
fn versions_are_dropped_once_no_row_can_ask_for_them() {
    let times = DataType::Timestamp(TimeUnit::Microsecond, None);
    let fields = [("key", DataType::Int64), ("ts", times), ("is version", DataType::Boolean)];
    let fields = fields.map(|(name, data_type)| Field::new(name, data_type, true));
    let input = Arc::new(Schema::new(fields.to_vec()));
    let key = |column, descending| SortKey { column, descending, nulls_first: false };
    let spec = KeyedOverSpec {
        input: input.clone(),
        partition: vec![0],
        order: vec![key(1, false), key(2, true)],
        frame: OverFrame::Rows { preceding: Some(0) },
        aggregates: vec![],
        lags: vec![],
        input_retracts: false,
        state_ttl_us: None,
    };
    let versions = Versions { is_version: 2, columns: vec![0, 1], of_version: vec![1], keeps_unmatched: false };
    let mut operator = KeyedOver::new(spec).unwrap().with_versions(versions).unwrap().create();
    // Each round has a row for a key of its own, and a version and a row of key 0.
    let mut bytes = Vec::new();
    for round in 1..=3_000_i64 {
        let rows = [(round, round, false), (0, round, true), (0, round, false)];
        let columns: Vec<ArrayRef> = vec![
            Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|row| Some(row.1)).collect::<TimestampMicrosecondArray>()),
            Arc::new(rows.iter().map(|row| Some(row.2)).collect::<BooleanArray>()),
        ];
        let at: Arc<[i64]> = vec![round; 3].into();
        let columns = RecordBatch::try_new(input.clone(), columns).unwrap();
        let batch = Batch::new(vec![0; 3].into(), at.to_vec().into(), at.to_vec().into(), columns);
        let slots = SlotTable::new(Arc::new(Schema::empty()));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let context = &mut Context::new(0, &slots, &mut refusals, &mut output);
        operator.process(Element::Batch(batch), context).unwrap();
        operator.process(Element::Watermark(round + 1), context).unwrap();
        let came: usize = output.iter().map(Batch::rows).sum();
        assert_eq!(came, 1, "round {round}: the row of key 0");
        assert_eq!(operator.state_by_key().unwrap().unwrap().hashes().len(), 1, "round {round}: one version");
        bytes.push(operator.memory_bytes());
    }
    assert_eq!(bytes[100], bytes[2_999], "no round leaves anything");
}
