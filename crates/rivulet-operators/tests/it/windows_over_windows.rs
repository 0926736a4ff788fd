//! Windows over the results of windows: against a naive model, and the same however rows are cut, whenever ticks come,
//! and whenever state is moved.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Row, aggregate, batch, column, hop, parameters, row, session, spec, table, tumble};
use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Int64Type, SchemaRef, TimestampMicrosecondType};
use datafusion_common::ScalarValue;
use datafusion_expr::Operator;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, Literal, binary, lit};
use proptest::prelude::*;
use rivulet_dataflow::{
    Batch, Chain, Control, Element, Line, OperatorFactory, Refusals, Slot, StateFrame, StateSelection, Surroundings,
};
use rivulet_operators::{AggregateFunction, Filter, NamedExpression, WindowAggregate, WindowAggregateSpec, WindowSpec};

/// Width and slide of each query's first windows.
const LENGTHS: [(i64, i64); 3] = [(4, 2), (3, 3), (6, 1)];
const LATENESS: i64 = 3;

#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The first windows: 0 for tumbling, 1 for hopping ones, 2 for sessions.
    pub(crate) first: u8,
    /// Slide and width of the second windows, and by how much they are shifted.
    pub(crate) second: (i64, i64, i64),
    pub(crate) keyed: bool,
    /// Results with a lower sum do not come to the second windows.
    pub(crate) least: i64,
    pub(crate) idle: i64,
    pub(crate) rows: Vec<Row>,
    pub(crate) end: i64,
}

/// A result: slot, key, start and end of the second window, the sum and the number of first windows.
type Emitted = (Slot, Option<i64>, i64, i64, Option<i64>, i64);

fn at(schema: &SchemaRef, name: &str) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new_with_schema(name, schema).unwrap())
}

fn first(case: &Case) -> WindowAggregateSpec {
    let window = match case.first {
        0 => tumble(),
        1 => hop(),
        _ => session(),
    };
    WindowAggregateSpec {
        parameters: vec![0, 1],
        lateness_us: LATENESS,
        idle_timeout_us: case.idle,
        tells_clocks: true,
        ..spec(window, case.keyed, vec![aggregate(AggregateFunction::Sum, vec![column(1)])])
    }
}

pub(crate) fn dataflow(case: &Case) -> Line {
    let first = WindowAggregate::new(first(case)).unwrap();
    let columns = first.output_schema().clone();
    let sum = || at(&columns, "sum");
    let condition = binary(sum(), Operator::GtEq, lit(case.least), &columns).unwrap();
    let filter = Filter::new(&columns, &parameters(), vec![], condition).unwrap();
    let length =
        |us: i64| -> Arc<dyn PhysicalExpr> { Arc::new(Literal::new(ScalarValue::new_interval_mdn(0, 0, us * 1000))) };
    let (slide, width, offset) = case.second;
    let window = Box::new(WindowSpec::Hop { slide: length(slide), width: length(width) });
    let second = WindowAggregate::new(WindowAggregateSpec {
        input: columns.clone(),
        parameter_schema: parameters(),
        parameters: vec![],
        window: WindowSpec::Shifted { window, offset: length(offset) },
        keys: if case.keyed { vec![NamedExpression::new("key", at(&columns, "key"))] } else { vec![] },
        aggregates: vec![
            aggregate(AggregateFunction::Sum, vec![sum()]),
            aggregate(AggregateFunction::Count, vec![sum()]),
        ],
        lateness_us: LATENESS,
        idle_timeout_us: case.idle,
        arrival_time: false,
        conditions: vec![],
        over_windows: true,
        tells_clocks: false,
    });
    let operators: Vec<Arc<dyn OperatorFactory>> = vec![Arc::new(first), Arc::new(filter), Arc::new(second.unwrap())];
    Line::new(operators)
}

struct Run {
    dataflow: Line,
    chain: Chain,
    keyed: bool,
    emitted: Vec<Emitted>,
}

impl Run {
    fn new(dataflow: Line, keyed: bool) -> Self {
        let mut run = Self { chain: dataflow.chain(), dataflow, keyed, emitted: Vec::new() };
        run.process(Element::Control(Control::AddSlots(vec![0, 1, 2])), 0);
        run
    }

    fn process(&mut self, element: Element, now_us: i64) {
        let (mut refusals, emitted, keyed) = (Refusals::new(8), &mut self.emitted, self.keyed);
        let slots = table(&LENGTHS);
        let with = Surroundings { now_us, slots: &slots, refusals: &mut refusals };
        self.chain.process(element, with, &mut |batch| read(&batch, keyed, emitted)).unwrap();
        assert!(refusals.is_empty(), "no row is late: {:?}", refusals.records());
    }

    fn tick(&mut self, now_us: i64) {
        let (mut refusals, emitted, keyed) = (Refusals::new(8), &mut self.emitted, self.keyed);
        let slots = table(&LENGTHS);
        let with = Surroundings { now_us, slots: &slots, refusals: &mut refusals };
        self.chain.tick(with, &mut |batch| read(&batch, keyed, emitted)).unwrap();
        assert!(refusals.is_empty(), "no row is late: {:?}", refusals.records());
    }

    /// Goes on in a fresh chain, with the state of the old one. The second windows may begin anew.
    fn move_state(&mut self, keeps_second: bool) {
        let frames = self.chain.export_state(&StateSelection::All).unwrap();
        let through_bytes =
            |frame: Option<StateFrame>| Some(StateFrame::from_bytes(&frame?.to_bytes().unwrap()).unwrap());
        let mut frames: Vec<_> = frames.into_iter().map(through_bytes).collect();
        if !keeps_second {
            frames[2] = None;
        }
        self.chain = self.dataflow.chain();
        self.process(Element::Control(Control::AddSlots(vec![0, 1, 2])), 0);
        self.chain.import_state(&frames).unwrap();
    }
}

fn read(batch: &Batch, keyed: bool, emitted: &mut Vec<Emitted>) {
    let keys = usize::from(keyed);
    let number = |index: usize, row: usize| {
        let column = batch.column(index).as_primitive::<Int64Type>();
        column.is_valid(row).then(|| column.value(row))
    };
    let time = |index: usize, row: usize| batch.column(index).as_primitive::<TimestampMicrosecondType>().value(row);
    for row in 0..batch.rows() {
        let key = if keyed { number(0, row) } else { None };
        let count = arrow::compute::cast(batch.column(keys + 3), &DataType::Int64).unwrap();
        let count = count.as_primitive::<Int64Type>().value(row);
        emitted.push((batch.slots[row], key, time(keys, row), time(keys + 1, row), number(keys + 2, row), count));
        assert_eq!(batch.event_time_us[row], time(keys + 1, row) - 1);
    }
}

fn of_slot(emitted: &[Emitted], slot: Slot) -> Vec<Emitted> {
    emitted.iter().filter(|one| one.0 == slot).copied().collect()
}

/// The watermark of a slot at the end: a function of its rows and of the clock.
fn watermark(case: &Case, slot: Slot) -> i64 {
    let (mut newest, mut last, mut watermark) = (None::<i64>, 0, i64::MIN);
    let mut advance = |newest: Option<i64>, last: i64, now: i64| {
        if let Some(newest) = newest {
            let idle = if now - last >= case.idle { now - last } else { 0 };
            watermark = watermark.max(newest - LATENESS + idle);
        }
    };
    for row in case.rows.iter().filter(|row| row.slot == slot) {
        advance(newest, last, row.arrival);
        (newest, last) = (newest.max(Some(row.time)), row.arrival);
        advance(newest, last, row.arrival);
    }
    advance(newest, last, case.end);
    watermark
}

/// The starts of all windows that hold one of these times, and of some more.
fn starts(times: impl Iterator<Item = i64>, width: i64, slide: i64, offset: i64) -> Vec<i64> {
    let times: Vec<i64> = times.collect();
    let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) else { return Vec::new() };
    let from = (first - width).div_euclid(slide) - 1;
    (from..=last.div_euclid(slide) + 1).map(|number| number * slide + offset.rem_euclid(slide)).collect()
}

/// The first windows of a slot: key, end and sum of each that is closed by the watermark.
fn first_windows(case: &Case, slot: Slot, watermark: i64) -> Vec<(Option<i64>, i64, Option<i64>)> {
    let (width, slide) = LENGTHS[slot as usize];
    let mut rows: BTreeMap<Option<i64>, Vec<&Row>> = BTreeMap::new();
    for row in case.rows.iter().filter(|row| row.slot == slot) {
        rows.entry(row.key.filter(|_| case.keyed)).or_default().push(row);
    }
    let sum = |rows: &[&Row]| rows.iter().filter_map(|row| row.n).reduce(|one, other| one + other);
    let mut windows = Vec::new();
    for (key, mut rows) in rows {
        rows.sort_by_key(|row| row.time);
        if case.first == 2 {
            for session in rows.chunk_by(|one, next| next.time < one.time + width) {
                windows.push((key, session.last().unwrap().time + width, sum(session)));
            }
            continue;
        }
        let slide = if case.first == 0 { width } else { slide };
        for start in starts(rows.iter().map(|row| row.time), width, slide, 0) {
            let within: Vec<&Row> =
                rows.iter().copied().filter(|row| (start..start + width).contains(&row.time)).collect();
            if !within.is_empty() {
                windows.push((key, start + width, sum(&within)));
            }
        }
    }
    windows.retain(|(_, end, _)| *end <= watermark);
    windows
}

fn model(case: &Case, slot: Slot) -> Vec<Emitted> {
    let watermark = watermark(case, slot);
    let first = first_windows(case, slot, watermark);
    let (slide, width, offset) = case.second;
    let mut emitted = Vec::new();
    for start in starts(first.iter().map(|(_, end, _)| *end), width, slide, offset) {
        let mut keys: BTreeMap<Option<i64>, Vec<i64>> = BTreeMap::new();
        for (key, end, sum) in &first {
            if let Some(sum) = sum.filter(|sum| *sum >= case.least && (start..start + width).contains(&(end - 1))) {
                keys.entry(*key).or_default().push(sum);
            }
        }
        for (key, sums) in keys.into_iter().filter(|_| start + width <= watermark) {
            emitted.push((slot, key, start, start + width, Some(sums.iter().sum()), sums.len() as i64));
        }
    }
    emitted.sort_unstable_by_key(|one| (one.3, one.1));
    emitted
}

fn cases() -> impl Strategy<Value = Case> {
    let raw = (0..3u32, prop_oneof![6 => 0..3i64, 1 => 10..40i64], 0..=LATENESS, -2..4i64, 0..2i64);
    let shape = (0..3u8, (1..9i64, 0..9i64, -9..9i64), any::<bool>(), -9..3i64);
    let silence = prop_oneof![Just(0), 0..60i64];
    (shape, prop_oneof![Just(i64::MAX), 4..20i64], prop::collection::vec(raw, 0..80), silence).prop_map(
        |((first, (slide, longer, offset), keyed, least), idle, raw, silence)| {
            let mut arrival = 0;
            let rows = raw.into_iter().map(|(slot, pause, behind, n, key)| {
                arrival += pause;
                Row { arrival, n: Some(n), key: Some(key), ..row(slot, arrival - behind, 0.0) }
            });
            let rows: Vec<Row> = rows.collect();
            let end = arrival + silence;
            Case { first, second: (slide, slide + longer, offset), keyed, least, idle, rows, end }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn windows_over_windows_are_those_of_the_model(
        case in cases(),
        steps in prop::collection::vec((0..80usize, 0..4u8), 0..12),
    ) {
        let mut whole = Run::new(dataflow(&case), case.keyed);
        whole.process(Element::Batch(batch(&case.rows)), case.rows.last().map_or(0, |row| row.arrival));
        whole.tick(case.end);
        for slot in 0..3 {
            let mut emitted = of_slot(&whole.emitted, slot);
            prop_assert!(emitted.is_sorted_by_key(|one| one.3), "windows come out by their ends");
            emitted.sort_by_key(|one| (one.3, one.1));
            prop_assert_eq!(emitted, model(&case, slot));
        }

        let mut run = Run::new(dataflow(&case), case.keyed);
        let (mut steps, mut done) = (steps, 0);
        steps.push((case.rows.len(), 0));
        steps.sort_unstable_by_key(|step| step.0);
        for (at, step) in steps {
            let at = at.min(case.rows.len()).max(done);
            let now = case.rows[..at].last().map_or(0, |row| row.arrival);
            run.process(Element::Batch(batch(&case.rows[done..at])), now);
            done = at;
            match step {
                0 => {}
                1 => run.move_state(true),
                _ => run.tick(case.rows.get(at).map_or(case.end, |row| row.arrival)),
            }
        }
        run.tick(case.end);
        for slot in 0..3 {
            prop_assert_eq!(of_slot(&run.emitted, slot), of_slot(&whole.emitted, slot));
        }
    }

    /// Second windows that begin anew have no clock of their own, and their state can be saved all the same.
    #[test]
    fn second_windows_that_begin_anew_go_on(case in cases(), anew in 0..80usize) {
        let mut run = Run::new(dataflow(&case), case.keyed);
        let anew = anew.min(case.rows.len());
        run.process(Element::Batch(batch(&case.rows[..anew])), 0);
        run.move_state(false);
        let next = case.rows.get(anew).map_or(case.end, |row| row.arrival);
        run.tick(next);
        run.move_state(true);
        run.process(Element::Batch(batch(&case.rows[anew..])), next);
        run.move_state(true);
        run.tick(case.end);
        run.process(Element::End, case.end);
    }
}

/// The watermark that a silence has reached stays that of the second windows, although the row that ends the silence is
/// behind it.
#[test]
fn a_row_at_the_end_of_the_idle_timeout_holds_up_no_second_window() {
    let rows = [(0, 0), (9, 10)].map(|(time, arrival)| Row { arrival, n: Some(0), key: Some(0), ..row(2, time, 0.0) });
    let second = (2, 5, 6);
    let case = Case { first: 1, second, keyed: false, least: 0, idle: 10, rows: rows.into(), end: 10 };
    let expected = model(&case, 2);
    assert_eq!(expected.last().map(|one| (one.2, one.3)), Some((2, 7)));
    let mut whole = Run::new(dataflow(&case), case.keyed);
    whole.process(Element::Batch(batch(&case.rows)), case.end);
    whole.tick(case.end);
    assert_eq!(whole.emitted, expected);
}
