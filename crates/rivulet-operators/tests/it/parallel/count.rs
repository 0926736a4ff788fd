//! Windows of so many rows against a recomputation from all rows of each key, in the order in which they came.

use std::collections::{BTreeMap, BTreeSet};

use super::{Multiset, Row, Step, aggregate, input, run, run_moved, steps};
use proptest::prelude::*;
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::parallel::{KeyedWindow, KeyedWindowKind, KeyedWindowSpec, Phase};

const TEXTS: [Option<&str>; 3] = [None, Some("a"), Some("a longer text, on the heap")];

fn rows() -> impl Strategy<Value = Vec<(usize, Row)>> {
    let row = (0..3i64, 0..3usize, prop::option::weighted(0.8, -3i64..6), 0i64..20);
    let row = row.prop_map(|(key, text, v, ts)| {
        (0, Row { key: (key > 0).then_some(key), text: TEXTS[text], v, ts, retracts: false })
    });
    prop::collection::vec(row, 0..90)
}

fn windows(keys: &[usize], rows: u32, slide_rows: u32, state_ttl_us: Option<i64>) -> KeyedWindow {
    let aggregates = vec![
        aggregate(F::Count, None),
        aggregate(F::Sum, Some(2)),
        aggregate(F::CountDistinct, Some(2)),
        aggregate(F::Min, Some(1)),
    ];
    let spec = KeyedWindowSpec {
        input: input(),
        keys: keys.to_vec(),
        window: KeyedWindowKind::Count { rows, slide_rows },
        aggregates,
        phase: Phase::Whole,
        input_retracts: false,
        state_ttl_us,
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

fn model(keys: &[usize], rows: &[(usize, Row)], width: usize, slide: usize) -> Multiset {
    let mut by_key: BTreeMap<Vec<String>, Vec<&Row>> = BTreeMap::new();
    for (_, row) in rows {
        by_key.entry(keys.iter().map(|_| show(row.key)).collect()).or_default().push(row);
    }
    let mut results = Multiset::new();
    for (key, rows) in by_key {
        for start in (0..rows.len()).step_by(slide) {
            let rows = &rows[start..(start + width).min(rows.len())];
            let values = || rows.iter().filter_map(|row| row.v);
            let mut shown = key.clone();
            shown.extend([shown_time(rows[0].ts), shown_time(rows[rows.len() - 1].ts), rows.len().to_string()]);
            shown.push(show(values().next().map(|_| values().sum::<i64>())));
            shown.push(values().collect::<BTreeSet<_>>().len().to_string());
            shown.push(show(rows.iter().filter_map(|row| row.text).min()));
            *results.entry(shown).or_insert(0) += 1;
        }
    }
    results
}

proptest! {
    #[test]
    fn windows_are_of_rows_in_order(
        rows in rows(),
        (width, slide) in (1..7u32).prop_flat_map(|width| (Just(width), 1..=width)),
        keys in prop_oneof![Just(vec![]), Just(vec![0])],
        has_ttl in any::<bool>(),
        cuts in prop::collection::vec(1..30usize, 1..4),
        watermarks in prop::collection::vec(any::<bool>(), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        // A time-to-live that nothing outlives changes nothing.
        let factory = windows(&keys, width, slide, has_ttl.then_some(1000));
        let steps = steps(&rows, &cuts, &watermarks);
        let expected = model(&keys, &rows, width as usize, slide as usize);
        let outcome = run(&factory, &steps);
        prop_assert_eq!(&outcome.rows, &expected);
        prop_assert_eq!((outcome.retractions, outcome.late), (0, 0));
        let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&keys, &keys]);
        prop_assert_eq!(&moved.rows, &expected);
    }
}

#[test]
fn a_key_that_is_forgotten_loses_the_rows_of_its_open_windows() {
    let row = |key, ts| Row { key: Some(key), text: None, v: Some(1), ts, retracts: false };
    for slide in [4, 2] {
        let steps = [
            Step::Rows(0, vec![row(1, 0), row(2, 0), row(1, 0), row(1, 0)]),
            Step::Watermark(1500),
            Step::Rows(0, (0..4).map(|_| row(1, 1500)).collect()),
        ];
        let rows = run(&windows(&[0], 4, slide, Some(1000)), &steps).rows;
        let counts: Vec<&str> = rows.keys().map(|row| row[3].as_str()).collect();
        assert_eq!(counts, if slide == 4 { vec!["4"] } else { vec!["2", "4"] }, "{rows:?}");
        assert!(rows.keys().all(|row| row[0] == "1"));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for (rows, slide_rows) in [(0, 0), (3, 0), (3, 4), (2_000_000, 1)] {
        let window = KeyedWindowKind::Count { rows, slide_rows };
        let spec = KeyedWindowSpec {
            input: input(),
            keys: vec![],
            window,
            aggregates: vec![],
            phase: Phase::Whole,
            input_retracts: false,
            state_ttl_us: None,
        };
        let error = KeyedWindow::new(spec.clone()).err().unwrap().to_string();
        assert!(error.contains("count_window(100, 10)"), "{error}");
        let window = KeyedWindowKind::Count { rows: 3, slide_rows: 1 };
        let error = KeyedWindow::new(KeyedWindowSpec { window, input_retracts: true, ..spec }).err().unwrap();
        assert!(error.to_string().contains("cannot take rows back"), "{error}");
    }
}
