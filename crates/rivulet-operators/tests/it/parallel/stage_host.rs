//! A stage without the runtime: a windowed aggregate that two channels lead to, stepped by calls, with a snapshot
//! between any two elements and a restore into two hosts, each with half of the key groups.

use super::{Outcome, Row, Stage, Step, aggregate, batch, input, run, steps};
use proptest::prelude::*;
use rivulet_dataflow::{Element, KeyGroups};
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::parallel::{KeyedWindow, KeyedWindowKind, KeyedWindowSpec, Phase};

/// The number of rows, their sum and a text, by key and window.
fn window(window: KeyedWindowKind) -> KeyedWindow {
    let aggregates = vec![aggregate(F::Count, None), aggregate(F::Sum, Some(2)), aggregate(F::Min, Some(1))];
    let spec = KeyedWindowSpec {
        input: input(),
        keys: vec![0],
        window,
        aggregates,
        phase: Phase::Whole,
        input_retracts: false,
        state_ttl_us: None,
    };
    KeyedWindow::new(spec).unwrap()
}

/// The time that no later row of a channel is behind.
fn least(later: &[(usize, Vec<Row>)], channel: usize) -> Option<i64> {
    later.iter().filter(|(of, _)| *of == channel).flat_map(|(_, rows)| rows).map(|row| row.ts).min()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_stage_is_snapshotted_between_two_elements_and_goes_on_in_two_halves(
        rows in prop::collection::vec((0..2usize, 0..6i64, prop::option::of(-3i64..6), 0i64..40), 0..120),
        kind in prop_oneof![
            (1i64..40).prop_map(|width_us| KeyedWindowKind::Tumble { width_us, offset_us: 0 }),
            (1i64..10).prop_map(|slide_us| KeyedWindowKind::Hop { slide_us, width_us: slide_us * 3, offset_us: 0 }),
            (1i64..15).prop_map(|gap_us| KeyedWindowKind::Session { gap_us }),
        ],
        cuts in prop::collection::vec(1..9usize, 1..5),
        cut in any::<prop::sample::Index>(),
        key_groups in prop::sample::select(vec![2u16, 128, 256, 32_768]),
    ) {
        let rows: Vec<(usize, Row)> = rows.into_iter().zip(0..).map(|((channel, key, v, ts), at)| {
            let text = [None, Some("a"), Some("more than fifteen bytes")][key as usize % 3];
            (channel, Row { key: (key > 0).then_some(key), text, v, ts: ts + at * 3, retracts: false })
        }).collect();
        let given: Vec<(usize, Vec<Row>)> = steps(&rows, &cuts, &[false]).into_iter().map(|step| match step {
            Step::Rows(channel, rows) => (channel, rows),
            Step::Watermark(_) => unreachable!("none was asked for"),
        }).collect();
        let factory = window(kind);
        let all: Vec<(usize, Row)> = rows.iter().map(|(_, row)| (0, row.clone())).collect();
        let expected = run(&factory, &steps(&all, &[8], &[false]));

        let cut = cut.index(given.len() + 1);
        let key_groups = KeyGroups::new(key_groups);
        let mut whole = Stage::new(&factory, &[0, 0], key_groups);
        let mut outcome = Outcome::default();
        for (at, (channel, rows)) in given[..cut].iter().enumerate() {
            outcome.add(whole.give(*channel, Element::Batch(batch(rows))));
            if let Some(least) = least(&given[at + 1..], *channel) {
                outcome.add(whole.give(*channel, Element::Watermark(least)));
            }
        }
        prop_assert!(whole.give(0, Element::Barrier(1)).is_empty() && whole.host.barrier().is_none());
        outcome.add(whole.give(1, Element::Barrier(1)));
        let reached_us = whole.host.reached_us();
        let mut halves = whole.halves(&factory, key_groups);
        for (at, (channel, rows)) in given.iter().enumerate().skip(cut) {
            outcome.add(Stage::give_halves(&mut halves, *channel, rows, &[0], key_groups));
            if let Some(least) = least(&given[at + 1..], *channel) {
                halves.iter_mut().for_each(|half| outcome.add(half.give(*channel, Element::Watermark(least))));
            }
        }
        for half in &mut halves {
            outcome.add(half.give_all(&Element::End));
            prop_assert!(half.host.has_ended());
            prop_assert!(half.watermarks.is_sorted(), "{:?}", half.watermarks);
            prop_assert_eq!(half.watermarks.first().copied().min(reached_us), reached_us);
            prop_assert_eq!(half.late(), 0);
        }
        prop_assert_eq!(outcome.rows, expected.rows);
    }
}
