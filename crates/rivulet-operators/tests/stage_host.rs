//! A stage without the runtime: a windowed aggregate that two channels lead to, stepped by calls, with a snapshot between any
//! two elements and a restore into two hosts, each with half of the key groups.

#[path = "common/parallel.rs"]
mod parallel;

use std::sync::Arc;

use arrow::array::BooleanArray;
use arrow::datatypes::Schema;
use parallel::{Outcome, Row, aggregate, batch, input, run, steps};
use proptest::prelude::*;
use rivulet_dataflow::stage::StageHost;
use rivulet_dataflow::{
    Chain, Element, KeyGroups, KeyHash, OperatorFactory, Reason, Refusals, SlotTable, StageSnapshot, StateFrame,
    Surroundings,
};
use rivulet_operators::AggregateFunction as F;
use rivulet_operators::parallel::{KeyedWindow, KeyedWindowKind, KeyedWindowSpec, Phase, key_hashes};

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

/// A host and what its calls come with.
struct Driven {
    host: StageHost,
    slots: SlotTable,
    refusals: Refusals,
    watermarks: Vec<i64>,
    outcome: Outcome,
}

impl Driven {
    fn new(factory: &dyn OperatorFactory, key_groups: KeyGroups) -> Self {
        let chain = Chain::new(vec![factory.create()]).with_key_groups(key_groups);
        Self {
            host: StageHost::new(chain, vec![0, 0], 64),
            slots: SlotTable::new(Arc::new(Schema::empty())),
            refusals: Refusals::new(0),
            watermarks: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn give(&mut self, channel: usize, element: Element) {
        self.host.give(channel, element);
        while self.host.has_work() {
            let with = Surroundings { now_us: 0, slots: &self.slots, refusals: &mut self.refusals };
            let (watermarks, outcome) = (&mut self.watermarks, &mut self.outcome);
            let mut out = |element| match element {
                Element::Batch(batch) => outcome.add(vec![batch]),
                Element::Watermark(watermark_us) => watermarks.push(watermark_us),
                _ => {}
            };
            self.host.step(with, &mut out).unwrap();
        }
    }
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
            parallel::Step::Rows(channel, rows) => (channel, rows),
            parallel::Step::Watermark(_) => unreachable!("none was asked for"),
        }).collect();
        let factory = window(kind);
        let all: Vec<(usize, Row)> = rows.iter().map(|(_, row)| (0, row.clone())).collect();
        let expected = run(&factory, &steps(&all, &[8], &[false]));

        let cut = cut.index(given.len() + 1);
        let mut whole = Driven::new(&factory, KeyGroups::new(key_groups));
        for (at, (channel, rows)) in given[..cut].iter().enumerate() {
            whole.give(*channel, Element::Batch(batch(rows)));
            if let Some(least) = least(&given[at + 1..], *channel) {
                whole.give(*channel, Element::Watermark(least));
            }
        }
        whole.give(0, Element::Barrier(1));
        prop_assert_eq!(whole.host.barrier(), None);
        whole.give(1, Element::Barrier(1));
        prop_assert_eq!(whole.host.barrier(), Some(1));

        let key_groups = KeyGroups::new(key_groups);
        let mut halves = [Vec::new(), Vec::new()];
        whole.host.export_key_groups(&mut |operator, key_group, frame| {
            assert_eq!(operator, 0);
            halves[key_groups.instance(key_group, 2)].push(StateFrame::from_bytes(&frame.to_bytes()?)?);
            Ok(())
        }).unwrap();
        let reached_us = whole.host.reached_us();
        let mut halves: Vec<Driven> = halves.into_iter().map(|frames| {
            let mut half = Driven::new(&factory, key_groups);
            half.host.restore(&StageSnapshot {
                frames: vec![StateFrame::concat(&frames).unwrap()],
                reached_us,
                ..StageSnapshot::default()
            }).unwrap();
            half
        }).collect();
        for (at, (channel, rows)) in given.iter().enumerate().skip(cut) {
            let all = batch(rows);
            let hashes = key_hashes(&[all.column(0).clone()], all.rows()).unwrap();
            for (place, half) in halves.iter_mut().enumerate() {
                let own = |&bits| key_groups.instance(key_groups.of(KeyHash::from_bits(bits)), 2) == place;
                let keep: BooleanArray = hashes.iter().map(|bits| Some(own(bits))).collect();
                half.give(*channel, Element::Batch(all.filter(&keep).unwrap()));
                if let Some(least) = least(&given[at + 1..], *channel) {
                    half.give(*channel, Element::Watermark(least));
                }
            }
        }
        let mut outcome = whole.outcome;
        for half in &mut halves {
            half.give(0, Element::End);
            half.give(1, Element::End);
            prop_assert!(half.host.has_ended());
            prop_assert!(half.watermarks.is_sorted(), "{:?}", half.watermarks);
            prop_assert_eq!(half.watermarks.first().copied().min(reached_us), reached_us);
            prop_assert_eq!(half.refusals.counted(Reason::Late), 0);
            for (row, count) in std::mem::take(&mut half.outcome.rows) {
                *outcome.rows.entry(row).or_default() += count;
            }
        }
        prop_assert_eq!(outcome.rows, expected.rows);
    }
}
