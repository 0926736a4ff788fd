//! Windows over rows that may be taken back: against a recomputation from the rows that are left.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Hand, Multiset, Outcome, Row, aggregate, batch, changes_in_time, input, left, positive, run, run_moved, steps,
};
use proptest::prelude::*;
use rivulet_dataflow::Element;
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::parallel::{KeyedWindow, KeyedWindowKind, KeyedWindowSpec, Phase};

const WIDTH_US: i64 = 10;

fn windows(keys: &[usize]) -> KeyedWindow {
    let aggregates = vec![
        aggregate(F::Count, None),
        aggregate(F::Sum, Some(2)),
        aggregate(F::Max, Some(2)),
        positive(aggregate(F::CountDistinct, Some(2))),
        aggregate(F::Min, Some(1)),
    ];
    let spec = KeyedWindowSpec {
        input: input(),
        keys: keys.to_vec(),
        window: KeyedWindowKind::Tumble { width_us: WIDTH_US, offset_us: 3 },
        aggregates,
        phase: Phase::Whole,
        input_retracts: true,
        state_ttl_us: None,
    };
    KeyedWindow::new(spec).unwrap()
}

fn show<T: ToString>(value: Option<T>) -> String {
    value.map_or("null".into(), |value| value.to_string())
}

fn shown_time(ts: i64) -> String {
    let times = arrow::array::TimestampMicrosecondArray::from(vec![ts]);
    arrow::util::display::array_value_to_string(&times, 0).unwrap()
}

fn model(keys: &[usize], rows: &[Row]) -> Multiset {
    let mut groups: BTreeMap<(Vec<String>, i64), Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let key = keys.iter().map(|_| show(row.key)).collect();
        groups.entry((key, (row.ts - 3).div_euclid(WIDTH_US) * WIDTH_US + 3)).or_default().push(row);
    }
    let mut results = Multiset::new();
    for ((mut shown, start), rows) in groups {
        let values = || rows.iter().filter_map(|row| row.v);
        shown.extend([shown_time(start), shown_time(start + WIDTH_US), rows.len().to_string()]);
        shown.push(show(values().next().map(|_| values().sum::<i64>())));
        shown.push(show(values().max()));
        shown.push(values().filter(|v| *v > 0).collect::<BTreeSet<_>>().len().to_string());
        shown.push(show(rows.iter().filter_map(|row| row.text).min()));
        *results.entry(shown).or_insert(0) += 1;
    }
    results
}

proptest! {
    #[test]
    fn a_window_is_of_the_rows_that_are_left_when_it_closes(
        rows in changes_in_time(true, 90),
        keys in prop_oneof![Just(vec![]), Just(vec![0])],
        cuts in prop::collection::vec(1..20usize, 1..4),
        watermarks in prop::collection::vec(any::<bool>(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let factory = windows(&keys);
        let steps = steps(&rows, &cuts, &watermarks);
        let expected = model(&keys, &left(&rows));
        let outcome = run(&factory, &steps);
        prop_assert_eq!(&outcome.rows, &expected);
        prop_assert_eq!((outcome.retractions, outcome.late), (0, 0), "results are final");
        if !keys.is_empty() {
            let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&keys, &keys]);
            prop_assert_eq!(&moved.rows, &expected);
        }
    }
}

#[test]
fn what_is_taken_back_after_its_window_has_closed_is_late() {
    let mut hand = Hand::new(&windows(&[0]));
    let row = |ts| Row { key: Some(1), text: None, v: Some(1), ts, retracts: false };
    let mut outcome = Outcome::default();
    outcome.add(hand.process(0, Element::Batch(batch(&[row(4), row(5)]))));
    outcome.add(hand.process(0, Element::Watermark(13)));
    outcome.add(hand.process(0, Element::Batch(batch(&[Row { retracts: true, ..row(4) }, row(14)]))));
    outcome.add(hand.process(0, Element::End));
    assert_eq!((hand.late(), outcome.retractions), (1, 0));
    let counts: Vec<&str> = outcome.rows.keys().map(|row| row[3].as_str()).collect();
    assert_eq!(counts, ["2", "1"]);
}
