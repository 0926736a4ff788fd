//! Keyed joins against all pairs of the rows that are left.

use std::sync::Arc;

use super::{Hand, Multiset, Outcome, Row, Step, batch, input, run, run_moved, steps};
use arrow::datatypes::Schema;
use datafusion_expr::Operator as Sql;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, binary};
use proptest::prelude::*;
use rivulet_dataflow::{
    CollectedState, Dataflow, EdgeKind, Element, OperatorFactory, Snapshot, StatePart, StateSelection, StateSink, Work,
};
use rivulet_operators::parallel::{Expiry, KeyedJoin, KeyedJoinKind, KeyedJoinSpec};

const TEXTS: [Option<&str>; 3] = [None, Some("a"), Some("a longer text, on the heap")];
const KINDS: [KeyedJoinKind; 6] = [
    KeyedJoinKind::Inner,
    KeyedJoinKind::Left,
    KeyedJoinKind::Right,
    KeyedJoinKind::Full,
    KeyedJoinKind::LeftSemi,
    KeyedJoinKind::LeftAnti,
];

/// Rows of two inputs, of which some take back one of the same input before them. Times go on, out of order.
fn changes(retracting: bool) -> impl Strategy<Value = Vec<(usize, Row)>> {
    let row = (
        0..2usize,
        0..4usize,
        0..3usize,
        prop::option::weighted(0.9, 0i64..3),
        0i64..20,
        any::<prop::sample::Index>(),
        0..3u8,
    );
    prop::collection::vec(row, 0..60).prop_map(move |rows| {
        let mut live: [Vec<Row>; 2] = [vec![], vec![]];
        let mut all = Vec::new();
        for (at, (input, key, text, v, ts, which, choice)) in rows.into_iter().enumerate() {
            let live = &mut live[input];
            let row = match retracting && choice == 0 && !live.is_empty() {
                true => Row { retracts: true, ..live.swap_remove(which.index(live.len())) },
                false => {
                    let key = (key > 0).then_some(key as i64);
                    live.push(Row { key, text: TEXTS[text], v, ts: ts + at as i64 * 2, retracts: false });
                    live[live.len() - 1].clone()
                }
            };
            all.push((input, row));
        }
        all
    })
}

fn left(rows: &[(usize, Row)], input: usize) -> Vec<Row> {
    let mut live: Vec<Row> = Vec::new();
    for (_, row) in rows.iter().filter(|row| row.0 == input) {
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

fn both() -> Schema {
    Schema::new(input().fields().iter().chain(input().fields()).cloned().collect::<Vec<_>>())
}

fn column(index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(both().field(index).name(), index))
}

fn compare(left: usize, operator: Sql, right: usize) -> Arc<dyn PhysicalExpr> {
    binary(column(left), operator, column(right), &both()).unwrap()
}

fn show<T: ToString>(value: Option<T>) -> String {
    value.map_or("null".into(), |value| value.to_string())
}

fn shown(row: Option<&Row>) -> [String; 3] {
    [show(row.and_then(|row| row.key)), show(row.and_then(|row| row.text)), show(row.and_then(|row| row.v))]
}

/// All pairs, and rows without partner.
fn model(kind: KeyedJoinKind, lefts: &[Row], rights: &[Row], partners: impl Fn(&Row, &Row) -> bool) -> Multiset {
    model_of(kind, lefts, rights, |left, right| left.key.is_some() && left.key == right.key && partners(left, right))
}

fn model_of(kind: KeyedJoinKind, lefts: &[Row], rights: &[Row], meets: impl Fn(&Row, &Row) -> bool) -> Multiset {
    let mut results = Multiset::new();
    let mut add = |left: Option<&Row>, right: Option<&Row>| {
        let mut row = shown(left).to_vec();
        if !matches!(kind, KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti) {
            row.extend(shown(right));
        }
        *results.entry(row).or_insert(0) += 1;
    };
    for left in lefts {
        let count = rights.iter().filter(|right| meets(left, right)).count();
        match kind {
            KeyedJoinKind::LeftSemi if count > 0 => add(Some(left), None),
            KeyedJoinKind::LeftAnti if count == 0 => add(Some(left), None),
            KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti => {}
            _ => {
                rights.iter().filter(|right| meets(left, right)).for_each(|right| add(Some(left), Some(right)));
                if count == 0 && matches!(kind, KeyedJoinKind::Left | KeyedJoinKind::Full) {
                    add(Some(left), None);
                }
            }
        }
    }
    if matches!(kind, KeyedJoinKind::Right | KeyedJoinKind::Full) {
        let alone = |right: &&Row| !lefts.iter().any(|left| meets(left, right));
        rights.iter().filter(alone).for_each(|right| add(None, Some(right)));
    }
    results
}

fn join(kind: KeyedJoinKind, residual: Option<Arc<dyn PhysicalExpr>>, expiry: [Option<Expiry>; 2]) -> KeyedJoin {
    let output = match kind {
        KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti => vec![0, 1, 2],
        _ => vec![0, 1, 2, 4, 5, 6],
    };
    let keys = vec![(0, 0)];
    KeyedJoin::new(KeyedJoinSpec {
        left: input(),
        right: input(),
        keys,
        kind,
        residual,
        expiry,
        state_ttl_us: None,
        output,
    })
    .unwrap()
}

/// Of rows with `right.ts BETWEEN left.ts AND left.ts + 10`: a left row is needed for 10 more, a right one until the
/// watermark has passed it.
fn within_ten(kind: KeyedJoinKind) -> KeyedJoin {
    let ten: Arc<dyn PhysicalExpr> = Arc::new(datafusion_physical_expr::expressions::Literal::new(
        datafusion_common::ScalarValue::DurationMicrosecond(Some(10)),
    ));
    let until = binary(column(3), Sql::Plus, ten, &both()).unwrap();
    let not_after = binary(column(7), Sql::LtEq, until, &both()).unwrap();
    let residual = binary(compare(7, Sql::GtEq, 3), Sql::And, not_after, &both()).unwrap();
    join(kind, Some(residual), [Some(Expiry { column: 3, after_us: 10 }), Some(Expiry { column: 3, after_us: 0 })])
}

/// What that says of whom rows meet: none expires before their own time.
const REACH: [Option<Expiry>; 2] = [Some(Expiry { column: 3, after_us: 0 }); 2];

proptest! {
    #[test]
    fn pairs_are_those_of_the_rows_that_are_left(
        rows in any::<bool>().prop_flat_map(changes),
        kind in prop::sample::select(&KINDS[..]),
        with_residual in any::<bool>(),
        with_equal_nulls in any::<bool>(),
        cuts in prop::collection::vec(1..20usize, 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let factory = join(kind, with_residual.then(|| compare(2, Sql::Lt, 6)), [None, None]);
        let factory = if with_equal_nulls { factory.with_equal_nulls() } else { factory };
        let steps = steps(&rows, &cuts, &[false]);
        let partners = |left: &Row, right: &Row| {
            (with_equal_nulls || left.key.is_some())
                && left.key == right.key
                && (!with_residual || matches!((left.v, right.v), (Some(a), Some(b)) if a < b))
        };
        let expected = model_of(kind, &left(&rows, 0), &left(&rows, 1), partners);
        prop_assert_eq!(&run(&factory, &steps).rows, &expected);
        let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&[0], &[0]]);
        prop_assert_eq!(&moved.rows, &expected);
    }

    #[test]
    fn expiry_forgets_nothing_that_is_needed(
        rows in changes(false),
        kind in prop::sample::select(&KINDS[..]),
        cuts in prop::collection::vec(1..20usize, 1..4),
        watermarks in prop::collection::vec(any::<bool>(), 1..4),
        cut in any::<prop::sample::Index>(),
        reaches in any::<bool>(),
    ) {
        let factory = within_ten(kind);
        let factory = if reaches { factory.with_reach(REACH).unwrap() } else { factory };
        let steps = steps(&rows, &cuts, &watermarks);
        let partners = |left: &Row, right: &Row| (left.ts..=left.ts + 10).contains(&right.ts);
        let expected = model(kind, &left(&rows, 0), &left(&rows, 1), partners);
        let outcome = run(&factory, &steps);
        prop_assert_eq!(&outcome.rows, &expected);
        prop_assert_eq!(outcome.retractions, 0);
        let moved = run_moved(&factory, &steps, cut.index(steps.len() + 1), [&[0], &[0]]);
        prop_assert_eq!(&moved.rows, &expected);
    }
}

#[test]
fn what_a_key_that_is_everywhere_gives_comes_in_parts() {
    const ROWS: i64 = 400;
    for kind in [KeyedJoinKind::Inner, KeyedJoinKind::Full] {
        let row = |v: i64| Row { key: Some(1), text: None, v: Some(v), ts: v, retracts: false };
        let rows: Vec<Row> = (0..ROWS).map(row).collect();
        let gone: Vec<Row> = rows.iter().map(|row| Row { retracts: true, ..row.clone() }).collect();
        for asks in [true, false] {
            let mut hand = Hand::new(&join(kind, None, [None, None]));
            let mut outcome = Outcome::default();
            outcome.add(hand.process(0, Element::Batch(batch(&rows))));
            for rows in [&rows, &gone] {
                let first = hand.process(1, Element::Batch(batch(rows)));
                let given: usize = first.iter().map(rivulet_dataflow::Batch::rows).sum();
                assert!(hand.operator.has_more() && given < 100_000, "{given} rows at once");
                outcome.add(first);
                while asks && hand.operator.has_more() {
                    outcome.add(hand.go_on());
                }
                // Who does not ask gets the rest before what comes next.
                outcome.add(hand.process(0, Element::Watermark(rows.len() as i64)));
                assert!(!hand.operator.has_more());
                let pairs: i64 = outcome.rows.iter().filter(|(row, _)| row[0] == row[3]).map(|(_, count)| count).sum();
                assert_eq!(pairs, if rows[0].retracts { 0 } else { ROWS * ROWS }, "{kind:?}");
            }
            let alone: i64 = outcome.rows.values().sum();
            assert_eq!(alone, if kind == KeyedJoinKind::Full { ROWS } else { 0 }, "all that is left has no partner");
        }
    }
}

#[test]
fn rows_of_long_ago_are_not_looked_at() {
    // More than are looked at in one go.
    const ROWS: i64 = 100_000;
    let at = |ts: i64| Row { key: Some(1), text: None, v: Some(ts), ts, retracts: false };
    let rows: Vec<Row> = (0..ROWS).map(at).collect();
    for reaches in [false, true] {
        let factory = within_ten(KeyedJoinKind::Inner);
        let factory = if reaches { factory.with_reach(REACH).unwrap() } else { factory };
        let mut hand = Hand::new(&factory);
        hand.process(0, Element::Batch(batch(&rows)));
        let mut outcome = Outcome::default();
        outcome.add(hand.process(1, Element::Batch(batch(&[at(ROWS)]))));
        assert_eq!(hand.operator.has_more(), !reaches);
        while hand.operator.has_more() {
            outcome.add(hand.go_on());
        }
        assert_eq!(outcome.rows.values().sum::<i64>(), 10);
    }
    assert!(within_ten(KeyedJoinKind::Inner).with_reach([Some(Expiry { column: 0, after_us: 0 }), None]).is_err());
}

#[test]
fn memory_of_expired_rows_is_given_back() {
    use super::{Hand, batch};
    use rivulet_dataflow::Element;
    for kind in KINDS {
        let expiry = [Some(Expiry { column: 3, after_us: 1000 }), Some(Expiry { column: 3, after_us: 1000 })];
        let mut hand = Hand::new(&join(kind, None, expiry));
        let mut most = [0, 0];
        for round in 0..200i64 {
            let now = round * 1_000_000;
            let rows: Vec<Row> = (0..300)
                .map(|n| Row {
                    key: Some(round * 300 + n),
                    text: Some("some text, or other"),
                    v: None,
                    ts: now,
                    retracts: false,
                })
                .collect();
            hand.process(0, Element::Batch(batch(&rows)));
            hand.process(1, Element::Batch(batch(&rows[..150])));
            hand.process(0, Element::Watermark(now));
            let half = usize::from(round >= 100);
            most[half] = most[half].max(hand.operator.memory_bytes());
        }
        assert!(most[1] <= most[0] * 5 / 4 && most[1] < 1_000_000, "{kind:?} {most:?}");
    }
}

#[test]
fn what_comes_late_to_a_join_that_forgets_is_refused() {
    use super::Step;
    let at = |ts| Row { key: Some(1), text: None, v: Some(ts), ts, retracts: false };
    let expiry = [Some(Expiry { column: 3, after_us: 10 }), Some(Expiry { column: 3, after_us: 0 })];
    let late = [Some(Expiry { column: 3, after_us: 0 }); 2];
    let rows = [
        Step::Rows(0, vec![at(20)]),
        Step::Watermark(15),
        // The first is late though no row of the other side is forgotten for it: others might be.
        Step::Rows(0, vec![at(14), at(15)]),
        Step::Rows(1, vec![at(3), at(16)]),
    ];
    for kind in KINDS {
        let forgetful = join(kind, None, expiry).with_lateness(late).unwrap();
        assert_eq!(run(&forgetful, &rows).late, 2, "{kind:?}");
        // Nothing is late where nothing is forgotten.
        let patient = join(kind, None, [None, None]).with_lateness(late).unwrap();
        assert_eq!(run(&patient, &rows).late, 0, "{kind:?}");
    }
    assert!(
        join(KeyedJoinKind::Inner, None, expiry)
            .with_lateness([Some(Expiry { column: 0, after_us: 0 }), None])
            .is_err()
    );
}

/// Rows of which those of input `everywhere` go to all instances and the others in turn. The instances change their
/// number at `cuts`. `before` is the join as it was up to the first of them, with all rows in one instance.
fn run_in_instances(
    join: &KeyedJoin,
    before: Option<&KeyedJoin>,
    everywhere: usize,
    steps: &[Step],
    cuts: &[(usize, usize)],
) -> Outcome {
    let mut dataflow = Dataflow::default();
    let sources = [0, 1].map(|source| dataflow.add(Work::Source(source), input()));
    let node = dataflow.add(Work::Operator(Arc::new(join.clone())), join.output_schema().clone());
    for (place, source) in sources.into_iter().enumerate() {
        let kind = if place == everywhere { EdgeKind::Broadcast } else { EdgeKind::RoundRobin };
        dataflow.connect(source, node, place, kind);
    }
    dataflow.divide(node, vec![0, 1, 2]);
    let made = |instances: usize| -> Vec<Hand> {
        let hand = |instance| Hand { operator: join.create_instance(instance), ..Hand::new(join) };
        (0..instances).map(hand).collect()
    };
    let mut hands = before.map_or_else(|| made(2), |before| vec![Hand::new(before)]);
    let mut outcome = Outcome::default();
    let mut turn = 0;
    for (at, step) in steps.iter().enumerate() {
        for &(_, instances) in cuts.iter().filter(|cut| cut.0 == at) {
            let state = CollectedState::default();
            for (instance, hand) in hands.iter().enumerate() {
                let frame = hand.operator.export_state(&StateSelection::All).unwrap().unwrap();
                let frame = frame.grouped(dataflow.key_groups()).unwrap();
                state.take(StatePart { node, instance, part: 0 }, frame).unwrap();
            }
            let snapshot = Snapshot { state: state.take_all(), ..Snapshot::default() };
            hands = made(instances);
            for (hand, part) in hands.iter_mut().zip(snapshot.divide(&dataflow, node, instances).unwrap()) {
                hand.operator.import_state(&part.unwrap()).unwrap();
            }
        }
        let Step::Rows(side, rows) = step else { unreachable!("nothing expires") };
        turn += 1;
        let of_turn = turn % hands.len();
        for (instance, hand) in hands.iter_mut().enumerate() {
            if *side == everywhere || instance == of_turn {
                outcome.add(hand.process(*side, Element::Batch(batch(rows))));
            }
        }
    }
    hands.iter_mut().for_each(|hand| outcome.add(hand.process(0, Element::End)));
    outcome
}

proptest! {
    #[test]
    fn a_side_may_be_in_all_instances(
        rows in changes(true),
        (kind, everywhere) in prop::sample::select(vec![
            (KeyedJoinKind::Inner, 0),
            (KeyedJoinKind::Inner, 1),
            (KeyedJoinKind::Left, 1),
            (KeyedJoinKind::LeftSemi, 1),
            (KeyedJoinKind::LeftAnti, 1),
            (KeyedJoinKind::Right, 0),
        ]),
        has_key in any::<bool>(),
        was_alone in any::<bool>(),
        cuts in prop::collection::vec(1..20usize, 1..4),
        restarts in prop::collection::vec((any::<prop::sample::Index>(), 1..4usize), 0..4),
    ) {
        // Where rows come in turn, none is taken back.
        let rows: Vec<_> = rows.into_iter().filter(|(side, row)| *side == everywhere || !row.retracts).collect();
        let spec = KeyedJoinSpec {
            left: input(),
            right: input(),
            keys: if has_key { vec![(0, 0)] } else { vec![] },
            kind,
            residual: Some(compare(2, Sql::Lt, 6)),
            expiry: [None; 2],
            state_ttl_us: None,
            output: if kind == KeyedJoinKind::Inner || kind == KeyedJoinKind::Left || kind == KeyedJoinKind::Right {
                vec![0, 1, 2, 4, 5, 6]
            } else {
                vec![0, 1, 2]
            },
        };
        let factory = KeyedJoin::new(spec.clone()).unwrap();
        let before = was_alone.then(|| KeyedJoin::new(spec).unwrap());
        let divided_by: Vec<usize> = factory.kept(1 - everywhere).to_vec();
        let factory = factory.with_everywhere(everywhere, divided_by);
        let steps = steps(&rows, &cuts, &[false]);
        let partners = |left: &Row, right: &Row| {
            (!has_key || (left.key.is_some() && left.key == right.key))
                && matches!((left.v, right.v), (Some(a), Some(b)) if a < b)
        };
        let expected = model_of(kind, &left(&rows, 0), &left(&rows, 1), partners);
        let restarts: Vec<_> = restarts.iter().map(|(at, to)| (at.index(steps.len() + 1), *to)).collect();
        let found = run_in_instances(&factory, before.as_ref(), everywhere, &steps, &restarts);
        prop_assert_eq!(&found.rows, &expected);
    }
}
