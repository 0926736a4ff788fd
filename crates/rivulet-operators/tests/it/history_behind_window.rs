//! History functions over what windows emit: however rows are cut, whenever state is moved, and in slots that were
//! another query's before.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Hand, Row, Value, Window, aggregate, batch, column, hop, parameters, row, spec, table};
use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, lit};
use proptest::prelude::*;
use rivulet_dataflow::{
    Batch, Chain, Control, Element, Line, OperatorFactory, Refusals, Slot, SlotTable, StateFrame, StateSelection,
};
use rivulet_operators::{
    AggregateFunction, History, HistoryColumn, HistoryFunction, NamedExpression, WindowAggregate, WindowAggregateSpec,
};

/// Width and slide of each query's windows.
const LENGTHS: [(i64, i64); 3] = [(4, 2), (3, 3), (6, 1)];

/// What comes out of a window: `lag(sum, 2)`, `changed(sum)`, `hysteresis(sum, 0, 4)`.
type Said = (Option<i64>, bool, bool);

/// Slot, key, end and sum of a window, and what is said about it.
type Emitted = (Slot, Option<i64>, i64, Option<i64>, Said);

fn windows(keyed: bool) -> WindowAggregateSpec {
    spec(hop(), keyed, vec![aggregate(AggregateFunction::Sum, vec![column(1)])])
}

fn dataflow(keyed: bool) -> Line {
    let mut spec = windows(keyed);
    spec.parameters = vec![0, 1];
    let window = WindowAggregate::new(spec).unwrap();
    let columns = window.output_schema().clone();
    let at = |index: usize| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(columns.field(index).name(), index)) };
    let sum = || at(columns.fields().len() - 1);
    let keys = if keyed { vec![NamedExpression::new("key", at(0))] } else { vec![] };
    let functions = [
        HistoryFunction::Lag { value: sum(), rows: 2 },
        HistoryFunction::Changed { value: sum() },
        HistoryFunction::Hysteresis { value: sum(), low: lit(0i64), high: lit(4i64) },
    ];
    let functions = functions.map(|function| HistoryColumn { name: function.to_string(), function });
    let history = History::new(&columns, &parameters(), vec![], keys, functions.into()).unwrap();
    Line::new(vec![Arc::new(window) as Arc<dyn OperatorFactory>, Arc::new(history)])
}

/// What is said about each of the windows of one slot and key, from all before it.
fn model(windows: &[Window]) -> Vec<Emitted> {
    let mut before: BTreeMap<(Slot, Option<i64>), Vec<Option<i64>>> = BTreeMap::new();
    let mut emitted = Vec::new();
    for window in windows {
        let sum = match window.values[0] {
            Value::Integer(sum) => Some(sum),
            _ => None,
        };
        let before = before.entry((window.slot, window.key)).or_default();
        let decisive = before.iter().chain([&sum]).rev().flatten().find(|sum| **sum >= 4 || **sum <= 0);
        let on = decisive.is_some_and(|sum| *sum >= 4);
        let said = (before.iter().rev().nth(1).copied().flatten(), before.last() != Some(&sum), on);
        before.push(sum);
        emitted.push((window.slot, window.key, window.end, sum, said));
    }
    emitted
}

struct Run {
    dataflow: Line,
    chain: Chain,
    table: SlotTable,
    keyed: bool,
    emitted: Vec<Emitted>,
}

impl Run {
    fn new(keyed: bool) -> Self {
        let dataflow = dataflow(keyed);
        let mut run = Self { chain: dataflow.chain(), dataflow, table: table(&LENGTHS), keyed, emitted: Vec::new() };
        run.process(Element::Control(Control::AddSlots(vec![0, 1, 2])));
        run
    }

    fn process(&mut self, element: Element) {
        let (mut refusals, emitted, keyed) = (Refusals::new(0), &mut self.emitted, self.keyed);
        let emit = &mut |batch: Batch| read(&batch, keyed, emitted);
        self.chain.process(element, 0, &self.table, &mut refusals, emit).unwrap();
        assert!(refusals.is_empty());
    }

    /// Goes on in a fresh chain, with the state of the old one.
    fn move_state(&mut self) {
        let frames = self.chain.export_state(&StateSelection::All).unwrap();
        let through_bytes =
            |frame: Option<StateFrame>| Some(StateFrame::from_bytes(&frame?.to_bytes().unwrap()).unwrap());
        let frames: Vec<_> = frames.into_iter().map(through_bytes).collect();
        self.chain = self.dataflow.chain();
        self.process(Element::Control(Control::AddSlots(vec![0, 1, 2])));
        self.chain.import_state(&frames).unwrap();
    }

    /// Another query takes slot 0.
    fn recycle(&mut self) {
        self.process(Element::Control(Control::RemoveSlots(vec![0])));
        let parameters = self.table.parameters(&[0]);
        self.table.retire(&[0]);
        self.table.recycle();
        assert_eq!(self.table.add(&[77], &parameters), [0]);
        self.process(Element::Control(Control::AddSlots(vec![0])));
    }
}

fn read(batch: &Batch, keyed: bool, emitted: &mut Vec<Emitted>) {
    let keys = usize::from(keyed);
    let number = |index: usize, row: usize| {
        let column = batch.column(index).as_primitive::<Int64Type>();
        column.is_valid(row).then(|| column.value(row))
    };
    let flag = |index: usize, row: usize| batch.column(index).as_boolean().value(row);
    for row in 0..batch.rows() {
        let end = batch.column(keys + 1).as_primitive::<TimestampMicrosecondType>().value(row);
        let key = if keyed { number(0, row) } else { None };
        let said = (number(keys + 3, row), flag(keys + 4, row), flag(keys + 5, row));
        emitted.push((batch.slots[row], key, end, number(keys + 2, row), said));
    }
}

fn of_slot(emitted: &[Emitted], slot: Slot) -> Vec<Emitted> {
    emitted.iter().filter(|one| one.0 == slot).copied().collect()
}

/// Rows of three queries in order of time; now and then without a number.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    let one = (0..3u32, 0..3i64, prop::option::weighted(0.8, -2..4i64), 0..2i64);
    prop::collection::vec(one, 0..80).prop_map(|rows| {
        let mut time = 0;
        let rows = rows.into_iter().map(|(slot, step, n, key)| {
            time += step;
            Row { n, key: Some(key), ..row(slot, time, 0.0) }
        });
        rows.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_said_of_windows_is_that_of_the_model(
        rows in rows(),
        cuts in prop::collection::vec((0..80usize, any::<bool>()), 0..8),
        recycled_at in 0..80usize,
        keyed in any::<bool>(),
    ) {
        let recycled_at = recycled_at.min(rows.len());
        // The windows alone. What comes to slot 0 after it was given away is another query's: slot 3.
        let mut lengths = LENGTHS.to_vec();
        lengths.push(LENGTHS[0]);
        let mut spec = windows(keyed);
        spec.parameters = vec![0, 1];
        let mut hand = Hand::new(spec, &lengths);
        let mut renamed = rows.clone();
        renamed[recycled_at..].iter_mut().filter(|row| row.slot == 0).for_each(|row| row.slot = 3);
        hand.rows(&renamed);
        let expected = model(&hand.windows);

        let mut run = Run::new(keyed);
        let mut cuts = cuts;
        cuts.extend([(recycled_at, false), (rows.len(), false)]);
        cuts.sort_unstable();
        let (mut done, mut of_first) = (0, None);
        for (at, moves) in cuts {
            let at = at.min(rows.len());
            run.process(Element::Batch(batch(&rows[done..at])));
            done = at;
            if at == recycled_at && of_first.is_none() {
                of_first = Some(of_slot(&run.emitted, 0).len());
                run.recycle();
            }
            if moves {
                run.move_state();
            }
        }
        let mut of_slot_0 = of_slot(&run.emitted, 0);
        of_slot_0[of_first.unwrap()..].iter_mut().for_each(|emitted| emitted.0 = 3);
        prop_assert_eq!(of_slot_0, [of_slot(&expected, 0), of_slot(&expected, 3)].concat());
        for slot in [1, 2] {
            prop_assert_eq!(of_slot(&run.emitted, slot), of_slot(&expected, slot));
        }
    }
}
