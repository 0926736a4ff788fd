//! What the tests of keyed operators share: inputs by hand, operators run whole or in two halves with a move of state
//! between, and their results as multisets of rows.

mod changes;
mod count;
mod join;
mod over;
mod stage_host;
mod ttl;
mod window;
mod window_changes;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::util::display::array_value_to_string;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, binary, lit};
use proptest::prelude::*;
use rivulet_dataflow::stage::StageHost;
use rivulet_dataflow::{
    Batch, Chain, Context, Element, KeyGroups, KeyHash, Operator, OperatorFactory, Reason, Refusals, SlotTable,
    StageSnapshot, StateFrame, Surroundings,
};
use rivulet_operators::parallel::key_hashes;
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

/// A stage of one operator without the runtime, and what has left it.
pub(crate) struct Stage {
    pub(crate) host: StageHost,
    /// For each channel the input that it leads to.
    inputs: Vec<usize>,
    slots: SlotTable,
    refusals: Refusals,
    pub(crate) watermarks: Vec<i64>,
}

impl Stage {
    pub(crate) fn new(factory: &dyn OperatorFactory, inputs: &[usize], key_groups: KeyGroups) -> Self {
        let chain = Chain::new(vec![factory.create()]).with_key_groups(key_groups);
        Self {
            host: StageHost::new(chain, inputs.to_vec(), 64),
            inputs: inputs.to_vec(),
            slots: SlotTable::new(Arc::new(Schema::empty())),
            refusals: Refusals::new(0),
            watermarks: Vec::new(),
        }
    }

    /// Gives an element and does all that it brings about.
    pub(crate) fn give(&mut self, channel: usize, element: Element) -> Vec<Batch> {
        self.host.give(channel, element);
        let Self { host, slots, refusals, watermarks, .. } = self;
        let mut output = Vec::new();
        let mut out = |element| match element {
            Element::Batch(batch) => output.push(batch),
            Element::Watermark(watermark_us) => watermarks.push(watermark_us),
            _ => {}
        };
        while host.has_work() {
            host.step(Surroundings { now_us: 0, slots, refusals }, &mut out).unwrap();
        }
        output
    }

    /// The same by all channels.
    pub(crate) fn give_all(&mut self, element: &Element) -> Vec<Batch> {
        (0..self.inputs.len()).flat_map(|channel| self.give(channel, element.clone())).collect()
    }

    /// At a barrier, two stages that go on from its snapshot, each with half of its key groups.
    pub(crate) fn halves(&self, factory: &dyn OperatorFactory, key_groups: KeyGroups) -> [Self; 2] {
        assert_eq!(self.host.barrier(), Some(1));
        let mut frames = [Vec::new(), Vec::new()];
        // What is encoded key group by key group is what is encoded at once and then divided.
        let mut whole = Vec::new();
        let into = &mut |_, _, frame: StateFrame| {
            whole.push(frame);
            Ok(())
        };
        self.host.snapshot(usize::MAX, into).unwrap();
        assert!(whole.len() <= 1, "all rows are in one part");
        let divide = |whole: &StateFrame| {
            let parts = whole.split(key_groups.count().into(), |key_group| key_group.index().into()).unwrap();
            parts.collect::<Result<Vec<_>, _>>().unwrap()
        };
        let mut parts: Vec<StateFrame> = whole.iter().flat_map(divide).collect();
        let into = &mut |_, key_group: usize, frame: StateFrame| {
            let part = &mut parts[key_group];
            assert_eq!(frame, *part);
            part.rows = part.rows.slice(0, 0);
            frames[key_group * 2 / usize::from(key_groups.count())].push(StateFrame::from_bytes(&frame.to_bytes()?)?);
            Ok(())
        };
        self.host.snapshot(0, into).unwrap();
        assert!(parts.iter().all(|part| part.rows.num_rows() == 0), "each key group was given");
        frames.map(|frames| {
            let mut half = Self::new(factory, &self.inputs, key_groups);
            let state = [StateFrame::concat(&frames).unwrap()];
            let reached_us = self.host.reached_us();
            half.host.restore(&StageSnapshot { reached_us, ..StageSnapshot::default() }, &state).unwrap();
            half
        })
    }

    /// Gives rows to the halves that have their keys, which are in these columns.
    pub(crate) fn give_halves(
        halves: &mut [Self; 2],
        channel: usize,
        rows: &[Row],
        keys: &[usize],
        key_groups: KeyGroups,
    ) -> Vec<Batch> {
        let all = batch(rows);
        let mut output = Vec::new();
        let columns: Vec<ArrayRef> = keys.iter().map(|&key| all.column(key).clone()).collect();
        let hashes = key_hashes(&columns, all.rows()).unwrap();
        for (at, half) in halves.iter_mut().enumerate() {
            let half_of = |&bits| key_groups.instance(key_groups.of(KeyHash::from_bits(bits)), 2);
            let keep: BooleanArray = hashes.iter().map(|bits| Some(half_of(bits) == at)).collect();
            output.extend(half.give(channel, Element::Batch(all.filter(&keep).unwrap())));
        }
        output
    }

    pub(crate) fn late(&self) -> u64 {
        self.refusals.counted(Reason::Late)
    }
}

/// Runs the steps before `cut` through one stage, moves its state to two, each with half of the key groups, and goes on
/// with them. `keys` are the key columns of each input.
pub(crate) fn run_moved(factory: &dyn OperatorFactory, steps: &[Step], cut: usize, keys: [&[usize]; 2]) -> Outcome {
    let key_groups = KeyGroups::default();
    let mut whole = Stage::new(factory, &[0, 1], key_groups);
    let mut outcome = Outcome::default();
    for step in &steps[..cut] {
        outcome.add(match step {
            Step::Rows(input, rows) => whole.give(*input, Element::Batch(batch(rows))),
            Step::Watermark(watermark_us) => whole.give_all(&Element::Watermark(*watermark_us)),
        });
    }
    // What waits for the next watermark belongs to a barrier.
    outcome.add(whole.give_all(&Element::Barrier(1)));
    let mut halves = whole.halves(factory, key_groups);
    for step in &steps[cut..] {
        match step {
            Step::Rows(input, rows) => {
                outcome.add(Stage::give_halves(&mut halves, *input, rows, keys[*input], key_groups));
            }
            Step::Watermark(watermark_us) => {
                let watermark = Element::Watermark(*watermark_us);
                halves.iter_mut().for_each(|half| outcome.add(half.give_all(&watermark)));
            }
        }
    }
    halves.iter_mut().for_each(|half| outcome.add(half.give_all(&Element::End)));
    outcome.late = whole.late() + halves.iter().map(Stage::late).sum::<u64>();
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
