//! What the tests of keyed operators share: inputs by hand, operators run whole or in two halves with a move of state between, and their
//! results as multisets of rows.

mod changes;
mod count;
mod join;
mod over;
mod ttl;
mod window;
mod window_changes;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::util::display::array_value_to_string;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, binary, lit};
use proptest::prelude::*;
use rivulet_dataflow::{
    Batch, Context, Element, KEY_GROUPS, Operator, OperatorFactory, Reason, Refusals, SlotTable, StateFrame,
    StateSelection,
};
use rivulet_operators::parallel::key_groups;
use rivulet_operators::{AggregateFunction, AggregateSpec};

/// A row of the test input: `key BIGINT, text TEXT, v BIGINT, ts TIMESTAMP`, and whether it takes one back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) key: Option<i64>,
    pub(crate) text: Option<&'static str>,
    pub(crate) v: Option<i64>,
    pub(crate) ts: i64,
    pub(crate) retracts: bool,
}

/// Up to so many rows, later ones with later times, of which some take back one before them.
pub(crate) fn changes_in_time(retracting: bool, rows_max: usize) -> impl Strategy<Value = Vec<(usize, Row)>> {
    const TEXTS: [Option<&str>; 3] = [None, Some("a"), Some("a longer text, on the heap")];
    let row =
        (0..3usize, 0..3usize, prop::option::weighted(0.8, -3i64..6), 0i64..12, any::<prop::sample::Index>(), 0..3u8);
    prop::collection::vec(row, 0..rows_max).prop_map(move |rows| {
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

/// The rows that are left.
pub(crate) fn left(rows: &[(usize, Row)]) -> Vec<Row> {
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

pub(crate) fn input() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Int64, true),
        Field::new("text", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Microsecond, None), true),
    ]))
}

pub(crate) fn column(index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(input().field(index).name(), index))
}

pub(crate) fn aggregate(function: AggregateFunction, argument: Option<usize>) -> AggregateSpec {
    let name = format!("{function} {argument:?}");
    AggregateSpec { name, function, arguments: argument.map(column).into_iter().collect(), filter: None }
}

/// The aggregate over rows with v > 0.
pub(crate) fn positive(aggregate: AggregateSpec) -> AggregateSpec {
    let condition = binary(column(2), datafusion_expr::Operator::Gt, lit(0i64), &input()).unwrap();
    AggregateSpec { name: format!("positive {}", aggregate.name), filter: Some(condition), ..aggregate }
}

pub(crate) fn batch(rows: &[Row]) -> Batch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| row.key).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| row.text).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| row.v).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| Some(row.ts)).collect::<TimestampMicrosecondArray>()),
    ];
    let retracts: BooleanBuffer = rows.iter().map(|row| row.retracts).collect();
    Batch::new(
        vec![0; rows.len()].into(),
        rows.iter().map(|row| row.ts).collect(),
        rows.iter().map(|row| row.ts).collect(),
        RecordBatch::try_new(input(), columns).unwrap(),
    )
    .with_retracts(Some(retracts))
}

/// What an operator is given.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Rows of an input.
    Rows(usize, Vec<Row>),
    Watermark(i64),
}

/// The rows that came out and were not taken back, as text, and how often each is there.
pub(crate) type Multiset = BTreeMap<Vec<String>, i64>;

/// What came out.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) rows: Multiset,
    pub(crate) late: u64,
    pub(crate) retractions: usize,
}

impl Outcome {
    pub(crate) fn add(&mut self, batches: Vec<Batch>) {
        for batch in batches {
            assert!(batch.rows() <= 3 * 8192, "batches are bounded");
            for row in 0..batch.rows() {
                let texts: Vec<String> = (batch.columns.columns().iter())
                    .map(|column| match column.is_null(row) {
                        true => "null".into(),
                        false => array_value_to_string(column, row).unwrap(),
                    })
                    .collect();
                let retracts = batch.is_retraction(row);
                self.retractions += usize::from(retracts);
                let count = self.rows.entry(texts.clone()).or_insert(0);
                *count += if retracts { -1 } else { 1 };
                assert!(*count >= 0, "a row that is not there is taken back: {texts:?}");
                if *count == 0 {
                    self.rows.remove(&texts);
                }
            }
        }
    }
}

/// An operator stepped by hand.
pub(crate) struct Hand {
    pub(crate) operator: Box<dyn Operator>,
    slots: SlotTable,
    refusals: Refusals,
    pub(crate) now_us: i64,
}

impl Hand {
    pub(crate) fn new(factory: &dyn OperatorFactory) -> Self {
        let slots = SlotTable::new(Arc::new(Schema::empty()));
        Self { operator: factory.create(), slots, refusals: Refusals::new(0), now_us: 0 }
    }

    pub(crate) fn process(&mut self, input: usize, element: Element) -> Vec<Batch> {
        let mut output = Vec::new();
        let mut context = Context::new(self.now_us, &self.slots, &mut self.refusals, &mut output);
        self.operator.process_input(input, element, &mut context).unwrap();
        output
    }

    pub(crate) fn tick(&mut self) -> Vec<Batch> {
        let mut output = Vec::new();
        let mut context = Context::new(self.now_us, &self.slots, &mut self.refusals, &mut output);
        self.operator.tick(&mut context).unwrap();
        output
    }

    pub(crate) fn go_on(&mut self) -> Vec<Batch> {
        let mut output = Vec::new();
        let mut context = Context::new(self.now_us, &self.slots, &mut self.refusals, &mut output);
        self.operator.go_on(&mut context).unwrap();
        output
    }

    pub(crate) fn fall_silent(&mut self) -> Vec<Batch> {
        let mut output = Vec::new();
        let mut context = Context::new(self.now_us, &self.slots, &mut self.refusals, &mut output);
        self.operator.fall_silent(&mut context).unwrap();
        output
    }

    pub(crate) fn late(&self) -> u64 {
        self.refusals.counted(Reason::Late)
    }
}

/// Runs all steps and the end through one instance.
pub(crate) fn run(factory: &dyn OperatorFactory, steps: &[Step]) -> Outcome {
    let mut hand = Hand::new(factory);
    let mut outcome = Outcome::default();
    for step in steps {
        outcome.add(match step {
            Step::Rows(input, rows) => hand.process(*input, Element::Batch(batch(rows))),
            Step::Watermark(watermark_us) => hand.process(0, Element::Watermark(*watermark_us)),
        });
    }
    outcome.add(hand.process(0, Element::End));
    outcome.late = hand.late();
    outcome
}

/// Runs the steps before `cut` through one instance, moves its state to two, each with half of the key groups, and goes on with them. `keys` are
/// the key columns of each input.
pub(crate) fn run_moved(factory: &dyn OperatorFactory, steps: &[Step], cut: usize, keys: [&[usize]; 2]) -> Outcome {
    let mut hand = Hand::new(factory);
    let mut outcome = Outcome::default();
    for step in &steps[..cut] {
        outcome.add(match step {
            Step::Rows(input, rows) => hand.process(*input, Element::Batch(batch(rows))),
            Step::Watermark(watermark_us) => hand.process(0, Element::Watermark(*watermark_us)),
        });
    }
    // What waits for the next watermark belongs to a barrier.
    outcome.add(hand.process(0, Element::Barrier(1)));
    let middle = KEY_GROUPS / 2;
    let mut halves: Vec<Hand> = [0..middle, middle..KEY_GROUPS]
        .into_iter()
        .map(|range| {
            let frame = hand.operator.export_state(&StateSelection::KeyGroups(range)).unwrap().unwrap();
            let frame = StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap();
            let mut half = Hand::new(factory);
            half.operator.import_state(&frame).unwrap();
            half
        })
        .collect();
    for step in &steps[cut..] {
        match step {
            Step::Rows(input, rows) => {
                let all = batch(rows);
                let columns: Vec<ArrayRef> = keys[*input].iter().map(|&key| all.column(key).clone()).collect();
                let groups = key_groups(&columns, all.rows()).unwrap();
                for (at, half) in halves.iter_mut().enumerate() {
                    let keep: BooleanArray = groups.iter().map(|&group| Some((group >= middle) == (at == 1))).collect();
                    assert!(filter_record_batch(&all.columns, &keep).is_ok());
                    outcome.add(half.process(*input, Element::Batch(all.filter(&keep).unwrap())));
                }
            }
            Step::Watermark(watermark_us) => {
                halves.iter_mut().for_each(|half| outcome.add(half.process(0, Element::Watermark(*watermark_us))));
            }
        }
    }
    halves.iter_mut().for_each(|half| outcome.add(half.process(0, Element::End)));
    outcome.late = hand.late() + halves.iter().map(Hand::late).sum::<u64>();
    outcome
}

/// Rows with event times out of order, cut into batches, and between them watermarks that no later row is behind.
pub(crate) fn steps(rows: &[(usize, Row)], cuts: &[usize], watermarks: &[bool]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut at = 0;
    let mut turn = 0;
    while at < rows.len() {
        let input = rows[at].0;
        let most = cuts[turn % cuts.len()];
        let same = rows[at..].iter().take(most).take_while(|row| row.0 == input).count();
        steps.push(Step::Rows(input, rows[at..at + same].iter().map(|row| row.1.clone()).collect()));
        at += same;
        if watermarks[turn % watermarks.len()]
            && let Some(least) = rows[at..].iter().map(|row| row.1.ts).min()
        {
            steps.push(Step::Watermark(least));
        }
        turn += 1;
    }
    steps
}
