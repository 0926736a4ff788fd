//! Joins against a naive model: however rows are cut, whenever state is moved through bytes, and in slots that were
//! another query's before.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, Int64Type, IntervalMonthDayNano, Schema, SchemaRef};
use datafusion_common::ScalarValue;
use datafusion_physical_expr::expressions::{Column, Literal};
use proptest::prelude::*;
use rivulet_dataflow::{
    Batch, Chain, Control, Element, Line, Reason, Refusals, Slot, SlotTable, StateFrame, StateSelection, Surroundings,
};
use rivulet_operators::{JOIN_ROWS_MAX, Join, JoinKind, JoinSide, JoinSpec, Offset};

/// The input by which a row comes (0 or 1), its slot, its event time, its key and its value.
pub(crate) type Row = (usize, Slot, i64, Option<i64>, i64);
/// What comes out: the slot, the event time, and the values of both sides.
type Out = (Slot, i64, Option<i64>, Option<i64>);

/// Slot 0 is given to another query somewhere in the middle; for the model that one is slot 9.
const RECYCLED: Slot = 9;

fn input() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("input", DataType::UInt8, false),
        Field::new("key", DataType::Int64, true),
        Field::new("a.value", DataType::Int64, true),
        Field::new("b.value", DataType::Int64, true),
    ]))
}

pub(crate) fn offset(us: i64) -> Option<Offset> {
    let interval = IntervalMonthDayNano { months: 0, days: 0, nanoseconds: us.abs() * 1000 };
    let interval = Arc::new(Literal::new(ScalarValue::IntervalMonthDayNano(Some(interval))));
    (us != 0).then(|| Offset { interval, is_negative: us < 0 })
}

fn interval(low: i64, high: i64, lateness_us: i64) -> JoinKind {
    JoinKind::Interval { low: offset(low), high: offset(high), lateness_us, idle_timeout_us: i64::MAX }
}

pub(crate) fn join(kind: JoinKind, keyed: bool, keeps_unmatched: bool) -> Line {
    let spec = JoinSpec {
        input: input(),
        parameter_schema: Arc::new(Schema::empty()),
        parameters: vec![],
        sides: [JoinSide { input: 0, columns: vec![2] }, JoinSide { input: 1, columns: vec![3] }],
        keys: if keyed { vec![Arc::new(Column::new("key", 1))] } else { vec![] },
        kind,
        keeps_unmatched,
        append_arrival_column: false,
    };
    Line::new(vec![Arc::new(Join::new(spec).unwrap())])
}

pub(crate) fn batch(rows: &[Row]) -> Batch {
    let value = |input: usize| -> ArrayRef {
        Arc::new(rows.iter().map(|row| (row.0 == input).then_some(row.4)).collect::<Int64Array>())
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt8Array::from_iter_values(rows.iter().map(|row| row.0 as u8))),
        Arc::new(rows.iter().map(|row| row.3).collect::<Int64Array>()),
        value(0),
        value(1),
    ];
    let times: Vec<i64> = rows.iter().map(|row| row.2).collect();
    let slots: Vec<Slot> = rows.iter().map(|row| row.1).collect();
    Batch::new(slots.into(), times.clone().into(), times.into(), RecordBatch::try_new(input(), columns).unwrap())
}

fn queries() -> SlotTable {
    let mut table = SlotTable::new(Arc::new(Schema::empty()));
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(3));
    table.add(&[70, 71, 72], &RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap());
    table
}

/// Takes note of the rows that came out.
fn note(out: &mut Vec<Out>, batch: &Batch) {
    for row in 0..batch.rows() {
        let value = |index: usize| {
            let column = batch.column(index).as_primitive::<Int64Type>();
            column.is_valid(row).then(|| column.value(row))
        };
        out.push((batch.slots[row], batch.event_time_us[row], value(0), value(1)));
    }
}

struct Run {
    dataflow: Line,
    chain: Chain,
    table: SlotTable,
    out: Vec<Out>,
    refusals: Refusals,
}

impl Run {
    fn new(dataflow: Line) -> Self {
        Self { chain: dataflow.chain(), dataflow, table: queries(), out: Vec::new(), refusals: Refusals::new(0) }
    }

    fn process(&mut self, element: Element) {
        let mut emit = |batch: Batch| note(&mut self.out, &batch);
        self.chain
            .process(element, Surroundings { now_us: 0, slots: &self.table, refusals: &mut self.refusals }, &mut emit)
            .unwrap();
    }

    fn tick(&mut self, now_us: i64) {
        let mut emit = |batch: Batch| note(&mut self.out, &batch);
        let with = Surroundings { now_us, slots: &self.table, refusals: &mut self.refusals };
        self.chain.tick(with, &mut emit).unwrap();
    }

    fn move_state(&mut self) {
        // In two parts, as a split does.
        let parts = [vec![0, 2], vec![1]].map(|slots| {
            let frames = self.chain.export_state(&StateSelection::Slots(slots)).unwrap();
            let through = |frame: StateFrame| StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap();
            frames.into_iter().map(|frame| frame.map(through)).collect::<Vec<_>>()
        });
        self.chain = self.dataflow.chain();
        parts.iter().for_each(|frames| self.chain.import_state(frames).unwrap());
        // Taking it over twice changes nothing.
        self.chain.import_state(&parts[0]).unwrap();
    }

    fn recycle(&mut self) {
        self.process(Element::Control(Control::RemoveSlots(vec![0])));
        let parameters = self.table.parameters(&[0]);
        self.table.retire(&[0]);
        self.table.recycle();
        assert_eq!(self.table.add(&[77], &parameters), [0]);
    }
}

/// Runs the rows in the pieces that `cuts` say, moving the state at some; the rows of slot 0 from `recycled_at` on are
/// those of another query, and all from a place on those of the next version.
fn run(
    dataflow: Line,
    rows: &[Row],
    cuts: &[(usize, bool)],
    recycled_at: usize,
    mut next: Option<(usize, Line)>,
) -> (Vec<Out>, Refusals) {
    let mut run = Run::new(dataflow);
    let recycled_at = recycled_at.min(rows.len());
    let mut cuts: Vec<(usize, bool)> = cuts.iter().map(|&(at, moves)| (at.min(rows.len()), moves)).collect();
    cuts.extend([(recycled_at, false), (rows.len(), false)]);
    cuts.extend(next.iter().map(|(at, _)| ((*at).min(rows.len()), false)));
    cuts.sort_unstable();
    let (mut done, mut is_recycled) = (0, false);
    for (at, moves) in cuts {
        run.process(Element::Batch(batch(&rows[done..at])));
        done = at;
        if at == recycled_at && !is_recycled {
            is_recycled = true;
            run.recycle();
        }
        let is_replaced = next.take_if(|(from, _)| at >= *from).map(|(_, dataflow)| run.dataflow = dataflow).is_some();
        if moves || is_replaced {
            run.move_state();
        }
    }
    (run.out, run.refusals)
}

/// The rows as the model sees them.
fn renamed(rows: &[Row], recycled_at: usize) -> Vec<Row> {
    let mut rows = rows.to_vec();
    let from = recycled_at.min(rows.len());
    rows[from..].iter_mut().filter(|row| row.1 == 0).for_each(|row| row.1 = RECYCLED);
    rows
}

fn shown(mut out: Vec<Out>) -> Vec<Out> {
    out.iter_mut().filter(|row| row.0 == RECYCLED).for_each(|row| row.0 = 0);
    out
}

fn belong_together(one: &Row, other: &Row, keyed: bool) -> bool {
    one.0 != other.0 && one.1 == other.1 && (!keyed || (one.3.is_some() && one.3 == other.3))
}

fn latest_model(rows: &[Row], drives: [bool; 2], keyed: bool, keeps_unmatched: bool) -> Vec<Out> {
    let mut out = Vec::new();
    for (place, row) in rows.iter().enumerate() {
        let before = &rows[..place];
        let same_side = |other: &&Row| other.0 == row.0 && other.1 == row.1 && (!keyed || other.3 == row.3);
        let is_known = !keyed || row.3.is_some();
        let is_stale = drives[1 - row.0] && is_known && before.iter().filter(same_side).any(|other| other.2 > row.2);
        if !drives[row.0] || is_stale {
            continue;
        }
        // The latest, among equals the last that came.
        let partner = before.iter().filter(|other| belong_together(row, other, keyed)).max_by_key(|other| other.2);
        let values = match (row.0, partner) {
            (0, Some(partner)) => (Some(row.4), Some(partner.4)),
            (0, None) if keeps_unmatched => (Some(row.4), None),
            (_, Some(partner)) => (Some(partner.4), Some(row.4)),
            (_, None) => continue,
        };
        out.push((row.1, row.2, values.0, values.1));
    }
    out
}

/// Time goes on with the rows alone: their times are also their arrivals, and there is no idle timeout. `lateness` is
/// that of the version to which the row at a place comes; what a version has forgotten, the next one does not know.
fn interval_model(
    rows: &[Row],
    (low, high): (i64, i64),
    lateness: impl Fn(usize) -> i64,
    keyed: bool,
    keeps_unmatched: bool,
) -> (Vec<Out>, u64) {
    let (mut out, mut late) = (Vec::new(), 0);
    let mut refused = vec![false; rows.len()];
    // Left rows that have found nothing yet.
    let mut waiting: Vec<&Row> = Vec::new();
    for (place, row) in rows.iter().enumerate() {
        let (mut clock, mut watermark) = (i64::MIN, i64::MIN);
        for (place, other) in rows[..=place].iter().enumerate().filter(|(_, other)| other.1 == row.1) {
            clock = clock.max(other.2);
            watermark = watermark.max(clock - lateness(place));
        }
        // A row is forgotten once no row as late as may be can match it.
        let forgotten = |side: usize, time: i64| match side {
            0 => time + high < watermark,
            _ => time - low < watermark,
        };
        let is_over = |other: &&Row| other.1 == row.1 && forgotten(0, other.2);
        let mut gone: Vec<&Row> = waiting.iter().copied().filter(is_over).collect();
        waiting.retain(|other| !is_over(other));
        gone.sort_by_key(|other| other.2);
        out.extend(gone.into_iter().map(|other| (other.1, other.2, Some(other.4), None)));
        let matches = |left: i64, right: i64| (left + low..=left + high).contains(&right);
        let (from, to) = if row.0 == 0 { (row.2 + low, row.2 + high) } else { (row.2 - high, row.2 - low) };
        if from <= to && forgotten(1 - row.0, to) {
            refused[place] = true;
            late += 1;
            continue;
        }
        let mut partners: Vec<&Row> = rows[..place]
            .iter()
            .zip(&refused)
            .filter(|(other, refused)| !**refused && belong_together(row, other, keyed))
            .map(|(other, _)| other)
            .filter(|other| if row.0 == 0 { matches(row.2, other.2) } else { matches(other.2, row.2) })
            .filter(|other| !forgotten(other.0, other.2))
            .collect();
        partners.sort_by_key(|other| other.2);
        waiting.retain(|other| !partners.contains(other));
        if keeps_unmatched && row.0 == 0 && partners.is_empty() {
            match forgotten(0, row.2) || (keyed && row.3.is_none()) {
                true => out.push((row.1, row.2, Some(row.4), None)),
                false => waiting.push(row),
            }
        }
        out.extend(partners.into_iter().map(|other| {
            let (left, right) = if row.0 == 0 { (row, other) } else { (other, row) };
            (row.1, row.2.max(other.2), Some(left.4), Some(right.4))
        }));
    }
    (out, late)
}

/// Rows in order of arrival, mostly in order of time.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    let one = (0..2usize, 0..3u32, 0..4i64, 0..12i64, prop::option::weighted(0.9, 0..3i64));
    prop::collection::vec(one, 0..120).prop_map(|rows| {
        let mut time = 100;
        let rows = rows.into_iter().enumerate().map(|(number, (input, slot, step, behind, key))| {
            time += step;
            (input, slot, if behind > 8 { time - behind } else { time }, key, number as i64)
        });
        rows.collect()
    })
}

fn cuts() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0..120usize, any::<bool>()), 0..10)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_latest_rows_are_those_of_the_model(
        rows in rows(),
        cuts in cuts(),
        recycled_at in 0..120usize,
        drives in prop::sample::select(vec![[true, false], [false, true], [true, true]]),
        keyed in any::<bool>(),
        keeps_unmatched in any::<bool>(),
    ) {
        let dataflow = join(JoinKind::Latest { drives }, keyed, keeps_unmatched);
        let (out, refusals) = run(dataflow, &rows, &cuts, recycled_at, None);
        let expected = latest_model(&renamed(&rows, recycled_at), drives, keyed, keeps_unmatched);
        prop_assert_eq!(out, shown(expected));
        prop_assert!(refusals.is_empty());
    }

    #[test]
    fn the_rows_within_an_interval_are_those_of_the_model(
        rows in rows(),
        cuts in cuts(),
        recycled_at in 0..120usize,
        low in -6..4i64,
        high in -4..6i64,
        lateness_us in 0..8i64,
        next in prop::option::of((0..120usize, 0..8i64)),
        keyed in any::<bool>(),
        keeps_unmatched in any::<bool>(),
    ) {
        let version = |lateness_us| join(interval(low, high, lateness_us), keyed, keeps_unmatched);
        let next_version = next.map(|(at, lateness_us)| (at, version(lateness_us)));
        let (out, refusals) = run(version(lateness_us), &rows, &cuts, recycled_at, next_version);
        let lateness = |place| next.filter(|(at, _)| place >= *at).map_or(lateness_us, |(_, then)| then);
        let rows = renamed(&rows, recycled_at);
        let (expected, late) = interval_model(&rows, (low, high), lateness, keyed, keeps_unmatched);
        prop_assert_eq!(out, shown(expected));
        prop_assert_eq!(refusals.counted(Reason::Late), late);
    }
}

#[test]
fn a_query_with_too_many_rows_is_told_and_takes_none_away_from_others() {
    let mut run = Run::new(join(interval(-9, 9, 0), true, false));
    let many: Vec<Row> = (0..JOIN_ROWS_MAX as i64 + 5).map(|number| (0, 0, 100, Some(number), number)).collect();
    run.process(Element::Batch(batch(&many)));
    assert_eq!(run.refusals.counted(Reason::Expression), 5);
    let bytes: usize = run.chain.memory_bytes();
    run.process(Element::Batch(batch(&[(1, 0, 100, Some(3), 7), (0, 1, 100, Some(1), 8), (1, 1, 100, Some(1), 9)])));
    assert_eq!(run.out, [(0, 100, Some(3), Some(7)), (1, 100, Some(8), Some(9))]);
    // Time frees what nothing can match any more.
    run.process(Element::Batch(batch(&[(0, 0, 200, Some(4), 5)])));
    assert_eq!(run.refusals.counted(Reason::Expression), 5);
    assert!(run.chain.memory_bytes() < bytes / 2, "{} of {bytes}", run.chain.memory_bytes());
}

#[test]
fn a_left_row_that_waits_in_vain_comes_out_by_the_clock() {
    let kind = JoinKind::Interval { low: None, high: offset(10), lateness_us: 2, idle_timeout_us: 5 };
    let mut run = Run::new(join(kind, true, true));
    run.process(Element::Batch(batch(&[(0, 0, 100, Some(1), 7), (0, 0, 101, Some(2), 8), (1, 0, 103, Some(2), 9)])));
    let joined = (0, 103, Some(8), Some(9));
    // No row that is at most 2 behind matches it behind 112.
    assert_eq!((run.out.as_slice(), run.chain.deadline_us()), ([joined].as_slice(), Some(113)));
    run.move_state();
    run.tick(112);
    assert_eq!((run.out.len(), run.chain.deadline_us()), (1, Some(113)));
    run.tick(113);
    assert_eq!(run.out, [joined, (0, 100, Some(7), None)]);
    // What matched the row that is gone comes too late; what found a partner goes in silence.
    run.process(Element::Batch(batch(&[(1, 0, 100, Some(1), 10)])));
    assert_eq!(run.refusals.counted(Reason::Late), 1);
    run.tick(120);
    assert_eq!((run.out.len(), run.chain.deadline_us()), (2, None));
    run.process(Element::Batch(batch(&[(0, 1, 200, Some(1), 11), (0, 1, 200, None, 12)])));
    run.process(Element::End);
    assert_eq!(run.out[2..], [(1, 200, Some(12), None), (1, 200, Some(11), None)]);
}

#[test]
fn state_of_version_1_is_read() {
    let line = join(interval(0, 10, 2), true, true);
    let mut run = Run::new(line.clone());
    run.process(Element::Batch(batch(&[(0, 0, 100, Some(1), 7), (0, 0, 105, Some(1), 8)])));
    let mut frames = run.chain.export_state(&StateSelection::All).unwrap();
    let frame = frames[0].as_mut().unwrap();
    // It had no time in the row of a query.
    let place = frame.rows.schema().index_of("time_us").unwrap();
    let mut columns = frame.rows.columns().to_vec();
    let times = columns[place].as_primitive::<Int64Type>();
    let sides = frame.rows.column_by_name("side").unwrap();
    let times: Int64Array = times.iter().enumerate().map(|(row, time)| time.filter(|_| sides.is_valid(row))).collect();
    assert_eq!(times.null_count(), 1);
    columns[place] = Arc::new(times);
    let rows = RecordBatch::try_new(frame.rows.schema(), columns).unwrap();
    frames[0] = Some(StateFrame::new("interval_join", 1, rows));
    let mut run = Run::new(line);
    run.chain.import_state(&frames).unwrap();
    run.process(Element::Batch(batch(&[(1, 0, 106, Some(1), 9)])));
    assert_eq!(run.out, [(0, 106, Some(7), Some(9)), (0, 106, Some(8), Some(9))]);
}

#[test]
fn state_of_other_rows_is_refused() {
    let state = |dataflow: &Line, rows: &[Row]| {
        let mut run = Run::new(dataflow.clone());
        run.process(Element::Batch(batch(rows)));
        run.chain.export_state(&StateSelection::All).unwrap()
    };
    let latest = join(JoinKind::Latest { drives: [true, true] }, true, false);
    let interval = join(interval(0, 5, 0), true, false);
    let frames = state(&latest, &[(0, 0, 1, Some(1), 1)]);
    assert!(latest.chain().import_state(&frames).is_ok());
    assert!(interval.chain().import_state(&frames).is_err());
    let keyless = join(JoinKind::Latest { drives: [true, true] }, false, false);
    assert!(keyless.chain().import_state(&frames).is_err());
}
