//! Windows against a naive model, which keeps all rows and computes every window from them.
//!
//! The operator gets the rows cut into batches at random, with ticks and with export and import in between. Its output
//! must be that of the model, and bit by bit that of the same operator given all rows at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::*;
use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, ListArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use proptest::prelude::*;
use rivulet_dataflow::{Element, OperatorFactory, Reason, StateFrame, StateSelection};
use rivulet_operators::{AggregateFunction as F, AggregateSpec, WindowAggregateSpec, WindowSpec};

const TEXTS: [&str; 5] = ["", "b", "a long text that does not fit a word", "B", "z"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tumble,
    Hop,
    Cumulate,
    Session,
    Count,
    CountSlide,
    State,
}

#[derive(Clone, Debug)]
struct Case {
    kind: Kind,
    keyed: bool,
    arrival_time: bool,
    lateness: i64,
    idle: i64,
    /// By how much windows are shifted, where they can be.
    offset: i64,
    /// Width and slide of each slot.
    lengths: Vec<(i64, i64)>,
    rows: Vec<Row>,
    /// What happens between the batches: behind how many rows, what, and a choice.
    steps: Vec<(usize, Step)>,
}

#[derive(Clone, Debug)]
enum Step {
    Cut,
    /// A tick at this share of the time until the next row.
    Tick(f64),
    /// All state into a new operator.
    Move,
    /// The state of one slot out and in again, elsewhere.
    MoveSlot(u32),
}

fn cases() -> impl Strategy<Value = Case> {
    let kind = prop_oneof![
        Just(Kind::Tumble),
        Just(Kind::Hop),
        Just(Kind::Hop),
        Just(Kind::Cumulate),
        Just(Kind::Session),
        Just(Kind::Count),
        Just(Kind::CountSlide),
        Just(Kind::State)
    ];
    // Now and then windows of so many panes that they share what they have in common.
    let lengths = prop::collection::vec(prop_oneof![3 => (1..40i64, 1..16i64), 2 => (33..90i64, 1..3i64)], 3);
    let row = (
        0..3u32,
        0..8i64,
        prop_oneof![4 => -3..3i64, 2 => -60..12i64],
        prop::option::weighted(0.9, -50..50i32),
        prop::option::weighted(0.9, -5..5i64),
        prop::option::weighted(0.9, 0..TEXTS.len()),
        prop::option::weighted(0.9, 0..3i64),
    );
    let step = prop_oneof![
        4 => Just(Step::Cut),
        3 => (0.0..=1.0).prop_map(Step::Tick),
        1 => Just(Step::Move),
        1 => (0..3u32).prop_map(Step::MoveSlot),
    ];
    (
        kind,
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop_oneof![Just(0i64), 0..25i64],
        prop_oneof![Just(i64::MAX), 0..40i64],
        prop_oneof![3 => Just(0i64), 1 => -50..50i64],
        lengths,
        prop::collection::vec(row, 0..120),
        prop::collection::vec((0..120usize, step), 0..25),
    )
        .prop_map(|(kind, keyed, arrival_time, lateness, idle, offset, mut lengths, raw, mut steps)| {
            let mut arrival = 1_000;
            let rows = raw
                .into_iter()
                .map(|(slot, pause, offset, v, n, s, key)| {
                    // Now and then a long silence.
                    arrival += if pause == 7 { 60 } else { pause };
                    Row {
                        slot,
                        time: arrival + offset,
                        arrival,
                        v: v.map(|v| f64::from(v) / 7.0),
                        n,
                        s: s.map(|s| TEXTS[s]),
                        key: key.filter(|_| keyed),
                    }
                })
                .collect();
            steps.sort_by_key(|step| step.0);
            if kind == Kind::Cumulate {
                lengths.iter_mut().for_each(|(width, step)| *width = (*width / *step).max(1) * *step);
            }
            let offset = if matches!(kind, Kind::Tumble | Kind::Hop | Kind::Cumulate) { offset } else { 0 };
            Case { kind, keyed, arrival_time, lateness, idle, offset, lengths, rows, steps }
        })
}

fn aggregates() -> Vec<AggregateSpec> {
    let (v, n, s) = (|| column(0), || column(1), || column(2));
    let mut aggregates = vec![
        aggregate(F::Count, vec![]),
        aggregate(F::Count, vec![v()]),
        aggregate(F::Sum, vec![v()]),
        aggregate(F::Sum, vec![n()]),
        aggregate(F::Avg, vec![v()]),
        aggregate(F::Min, vec![v()]),
        aggregate(F::Max, vec![n()]),
        aggregate(F::StddevSamp, vec![v()]),
        aggregate(F::VarPop, vec![v()]),
        aggregate(F::RegrSlope, vec![v(), n()]),
        aggregate(F::Corr, vec![v(), n()]),
        aggregate(F::FirstValue, vec![v()]),
        aggregate(F::LastValue, vec![n()]),
        aggregate(F::Median, vec![v()]),
        aggregate(F::PercentileCont, vec![v(), fraction(0.3)]),
        aggregate(F::CountDistinct, vec![n()]),
        aggregate(F::CountDistinct, vec![s()]),
        aggregate(F::ApproxDistinct, vec![n()]),
        aggregate(F::Min, vec![s()]),
        aggregate(F::Max, vec![s()]),
        aggregate(F::FirstValue, vec![s()]),
        aggregate(F::LastValue, vec![s()]),
        aggregate(F::StringAgg, vec![s(), text("; ")]),
        aggregate(F::ArrayAgg, vec![s()]),
        aggregate(F::Sum, vec![v()]),
        aggregate(F::Count, vec![]),
    ];
    let filtered = aggregates.len() - 2;
    aggregates[filtered..].iter_mut().for_each(|aggregate| aggregate.filter = Some(positive()));
    aggregates
}

/// The results of [`aggregates`] over rows in order of arrival.
fn model_values(rows: &[&Row]) -> Vec<Value> {
    let float = |value: Option<f64>| value.map_or(Value::Null, Value::float);
    let integer = |value: Option<i64>| value.map_or(Value::Null, Value::Integer);
    let text = |value: Option<&str>| value.map_or(Value::Null, |text| Value::Text(text.to_owned()));
    let v: Vec<f64> = rows.iter().filter_map(|row| row.v).collect();
    let n: Vec<i64> = rows.iter().filter_map(|row| row.n).collect();
    let s: Vec<&str> = rows.iter().filter_map(|row| row.s).collect();
    let some = |values: &[f64], result: f64| (!values.is_empty()).then_some(result);
    let count = v.len() as f64;
    let mean = v.iter().sum::<f64>() / count;
    let squares: f64 = v.iter().map(|v| (v - mean).powi(2)).sum();
    let pairs: Vec<(f64, f64)> = rows.iter().filter_map(|row| Some((row.n? as f64, row.v?))).collect();
    let mean_x = pairs.iter().map(|pair| pair.0).sum::<f64>() / pairs.len() as f64;
    let mean_y = pairs.iter().map(|pair| pair.1).sum::<f64>() / pairs.len() as f64;
    let xx: f64 = pairs.iter().map(|pair| (pair.0 - mean_x).powi(2)).sum();
    let yy: f64 = pairs.iter().map(|pair| (pair.1 - mean_y).powi(2)).sum();
    let xy: f64 = pairs.iter().map(|pair| (pair.0 - mean_x) * (pair.1 - mean_y)).sum();
    // Whether a spread is zero must not hang on rounding.
    let differ = |values: Vec<f64>| values.iter().any(|value| *value != values[0]);
    let x_differs = differ(pairs.iter().map(|pair| pair.0).collect());
    let y_differs = differ(pairs.iter().map(|pair| pair.1).collect());
    let mut sorted = v.clone();
    sorted.sort_by(f64::total_cmp);
    let at = |fraction: f64| {
        (!sorted.is_empty()).then(|| {
            let rank = fraction * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
            low + (high - low) * (rank - rank.floor())
        })
    };
    fn distinct<T: Ord + Clone>(values: &[T]) -> Value {
        let mut values = values.to_vec();
        values.sort();
        values.dedup();
        Value::Integer(values.len() as i64)
    }
    // In event time order; rows of one time in order of arrival (the sort is stable).
    let mut by_time: Vec<&&Row> = rows.iter().collect();
    by_time.sort_by_key(|row| row.time);
    let listed: Vec<&str> = by_time.iter().filter_map(|row| row.s).collect();
    let list = |between: &str, [open, close]: [&str; 2]| {
        (!listed.is_empty()).then(|| format!("{open}{}{close}", listed.join(between)))
    };
    let filtered: Vec<&&Row> = rows.iter().filter(|row| row.n.is_some_and(|n| n > 0)).collect();
    let filtered_v: Vec<f64> = filtered.iter().filter_map(|row| row.v).collect();
    vec![
        Value::Integer(rows.len() as i64),
        Value::Integer(v.len() as i64),
        float(some(&v, v.iter().sum())),
        integer((!n.is_empty()).then(|| n.iter().sum())),
        float(some(&v, mean)),
        float(v.iter().copied().min_by(f64::total_cmp)),
        integer(n.iter().copied().max()),
        float((v.len() > 1).then(|| (squares / (count - 1.0)).sqrt())),
        float(some(&v, squares / count)),
        float(x_differs.then(|| xy / xx)),
        float((x_differs && y_differs).then(|| xy / xx.sqrt() / yy.sqrt())),
        float(by_time.iter().find_map(|row| row.v)),
        integer(by_time.iter().rev().find_map(|row| row.n)),
        float(at(0.5)),
        float(at(0.3)),
        distinct(&n),
        distinct(&s),
        distinct(&n),
        text(s.iter().copied().min()),
        text(s.iter().copied().max()),
        text(by_time.iter().find_map(|row| row.s)),
        text(by_time.iter().rev().find_map(|row| row.s)),
        text(list("; ", ["", ""]).as_deref()),
        text(list(",", ["[", "]"]).as_deref()),
        float(some(&filtered_v, filtered_v.iter().sum())),
        Value::Integer(filtered.len() as i64),
    ]
}

/// One slot of the model. Every accepted row is kept, with the watermark at which it was accepted.
struct ModelSlot<'a> {
    case: &'a Case,
    slot: u32,
    width: i64,
    slide: i64,
    max_ts: Option<i64>,
    last_arrival: i64,
    watermark: i64,
    accepted: Vec<(Row, i64)>,
    windows: Vec<Window>,
    late: u64,
}

impl ModelSlot<'_> {
    fn watermark_at(&self, now: i64) -> i64 {
        let mut watermark = i64::MIN;
        if self.case.arrival_time {
            watermark = now;
        } else if let Some(max_ts) = self.max_ts {
            watermark = max_ts - self.case.lateness;
            if now - self.last_arrival >= self.case.idle {
                watermark += now - self.last_arrival;
            }
        }
        watermark.max(self.watermark)
    }

    fn process(&mut self, row: &Row) {
        let mut row = row.clone();
        if self.case.arrival_time {
            row.time = row.arrival;
        }
        if matches!(self.case.kind, Kind::Count | Kind::CountSlide) {
            return self.count(row);
        }
        if self.case.kind == Kind::State {
            return self.state(row);
        }
        self.close_until(self.watermark_at(row.arrival));
        if self.is_late(&row) {
            self.late += 1;
            return;
        }
        self.max_ts = Some(self.max_ts.map_or(row.time, |max_ts| max_ts.max(row.time)));
        self.last_arrival = row.arrival;
        self.accepted.push((row, self.watermark));
        if !self.case.arrival_time {
            let watermark = self.max_ts.unwrap_or(i64::MIN) - self.case.lateness;
            self.close_until(watermark.max(self.watermark));
        }
    }

    fn is_late(&self, row: &Row) -> bool {
        if self.case.kind == Kind::Session {
            // The session that the row would be in, with the open ones of its key.
            let mut with = self.open_rows();
            with.push(row.clone());
            return sessions(&with, row.key, self.width)
                .into_iter()
                .find(|session| session.iter().any(|other| std::ptr::eq(*other, with.last().unwrap())))
                .is_none_or(|session| {
                    session.iter().map(|row| row.time).max().unwrap() + self.width <= self.watermark
                });
        }
        // Of the windows that the row is in, the last one.
        let last =
            self.windows_over(row.time, row.time).into_iter().rfind(|(start, end)| (*start..*end).contains(&row.time));
        last.is_some_and(|(_, end)| end <= self.watermark)
    }

    /// Windows by time, among them all that hold a time from `oldest` to `newest`, by ascending start.
    fn windows_over(&self, oldest: i64, newest: i64) -> Vec<(i64, i64)> {
        let (width, offset) = (self.width, self.case.offset);
        let (distance, lengths) = match self.case.kind {
            Kind::Cumulate => (width, (1..=width / self.slide).map(|steps| steps * self.slide).collect()),
            _ => (self.slide, vec![width]),
        };
        let first = (oldest - offset - width).div_euclid(distance) * distance + offset;
        let starts = (0..).map(|window| first + window * distance).take_while(|start| *start <= newest);
        starts.flat_map(|start| lengths.iter().map(move |length| (start, start + length)).collect::<Vec<_>>()).collect()
    }

    /// Rows of sessions that are not closed; closing removes rows, so these are all.
    fn open_rows(&self) -> Vec<Row> {
        self.accepted.iter().map(|(row, _)| row.clone()).collect()
    }

    fn keys(&self) -> Vec<Option<i64>> {
        let mut keys: Vec<_> = self.accepted.iter().map(|(row, _)| row.key).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    fn close_until(&mut self, watermark: i64) {
        let mut closed: Vec<Window> = Vec::new();
        for key in self.keys() {
            if self.case.kind == Kind::Session {
                let open = self.open_rows();
                for session in sessions(&open, key, self.width) {
                    let first = session.iter().map(|row| row.time).min().unwrap();
                    let end = session.iter().map(|row| row.time).max().unwrap() + self.width;
                    if end <= watermark {
                        closed.push(self.window(key, first, end, &session));
                        self.accepted.retain(|(row, _)| row.key != key || row.time < first || row.time >= end);
                    }
                }
                continue;
            }
            let rows: Vec<&(Row, i64)> = self.accepted.iter().filter(|(row, _)| row.key == key).collect();
            let (Some(oldest), Some(newest)) =
                (rows.iter().map(|row| row.0.time).min(), rows.iter().map(|row| row.0.time).max())
            else {
                continue;
            };
            for (start, end) in self.windows_over(oldest, newest) {
                if self.watermark < end && end <= watermark {
                    let inside: Vec<&Row> = rows
                        .iter()
                        .filter(|(row, accepted_at)| (start..end).contains(&row.time) && *accepted_at < end)
                        .map(|(row, _)| row)
                        .collect();
                    if !inside.is_empty() {
                        closed.push(self.window(key, start, end, &inside));
                    }
                }
            }
        }
        closed.sort_by_key(|window| (window.end, window.key));
        self.windows.extend(closed);
        self.watermark = self.watermark.max(watermark);
    }

    fn window(&self, key: Option<i64>, start: i64, end: i64, rows: &[&Row]) -> Window {
        Window { slot: self.slot, key, start, end, values: model_values(rows) }
    }

    fn count(&mut self, row: Row) {
        let key = row.key;
        self.accepted.push((row, 0));
        let rows: Vec<&Row> = self.accepted.iter().map(|(row, _)| row).filter(|row| row.key == key).collect();
        let count = rows.len() as i64;
        if count >= self.width && (count - self.width) % self.slide == 0 {
            let inside = &rows[(count - self.width) as usize..];
            let window = self.window(key, inside[0].time, inside.last().unwrap().time, inside);
            self.windows.push(window);
        }
    }

    /// From a row with n > 0 to one with v < 0.
    fn state(&mut self, row: Row) {
        let (key, is_last) = (row.key, row.v.is_some_and(|v| v < 0.0));
        if row.n.is_some_and(|n| n > 0) || self.accepted.iter().any(|(other, _)| other.key == key) {
            self.accepted.push((row, 0));
        }
        if is_last {
            self.close_state(key);
        }
    }

    fn close_state(&mut self, key: Option<i64>) {
        let rows: Vec<&Row> = self.accepted.iter().map(|(row, _)| row).filter(|row| row.key == key).collect();
        if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
            let window = self.window(key, first.time, last.time, &rows);
            self.windows.push(window);
        }
        self.accepted.retain(|(row, _)| row.key != key);
    }

    fn end(&mut self) {
        if self.case.kind == Kind::State {
            return self.keys().into_iter().for_each(|key| self.close_state(key));
        }
        if !matches!(self.case.kind, Kind::Count | Kind::CountSlide) {
            return self.close_until(i64::MAX);
        }
        let mut closed = Vec::new();
        for key in self.keys() {
            let rows: Vec<&Row> = self.accepted.iter().map(|(row, _)| row).filter(|row| row.key == key).collect();
            let starts = (0..).map(|k| k * self.slide).take_while(|start| *start < rows.len() as i64);
            for start in starts.filter(|start| start + self.width > rows.len() as i64) {
                let inside = &rows[start as usize..];
                closed.push(self.window(key, inside[0].time, inside.last().unwrap().time, inside));
            }
        }
        self.windows.extend(closed);
    }
}

/// The rows of a key by session, each in order of arrival.
fn sessions(rows: &[Row], key: Option<i64>, gap: i64) -> Vec<Vec<&Row>> {
    let mut sorted: Vec<(usize, &Row)> = rows.iter().enumerate().filter(|(_, row)| row.key == key).collect();
    sorted.sort_by_key(|(_, row)| row.time);
    let mut sessions: Vec<Vec<(usize, &Row)>> = Vec::new();
    for (index, row) in sorted {
        match sessions.last_mut() {
            Some(session) if row.time < session.last().unwrap().1.time + gap => session.push((index, row)),
            _ => sessions.push(vec![(index, row)]),
        }
    }
    for session in &mut sessions {
        session.sort_by_key(|(index, _)| *index);
    }
    sessions.into_iter().map(|session| session.into_iter().map(|(_, row)| row).collect()).collect()
}

fn model(case: &Case) -> (BTreeMap<u32, Vec<Window>>, u64) {
    let mut late = 0;
    let windows = (0..3u32)
        .map(|slot| {
            let (width, slide) = case.lengths[slot as usize];
            let slide = if matches!(case.kind, Kind::Hop | Kind::Cumulate | Kind::CountSlide) { slide } else { width };
            let mut model = ModelSlot {
                case,
                slot,
                width,
                slide,
                max_ts: None,
                last_arrival: 0,
                watermark: i64::MIN,
                accepted: Vec::new(),
                windows: Vec::new(),
                late: 0,
            };
            case.rows.iter().filter(|row| row.slot == slot).for_each(|row| model.process(row));
            model.end();
            late += model.late;
            (slot, model.windows)
        })
        .collect();
    (windows, late)
}

fn plan(case: &Case) -> WindowAggregateSpec {
    let window = match case.kind {
        Kind::Tumble => tumble(),
        Kind::Hop => hop(),
        Kind::Cumulate => cumulate(),
        Kind::Session => session(),
        Kind::Count => count(false),
        Kind::CountSlide => count(true),
        Kind::State => WindowSpec::State,
    };
    let window = if case.offset == 0 { window } else { shifted(window, case.offset) };
    WindowAggregateSpec {
        lateness_us: case.lateness,
        idle_timeout_us: case.idle,
        arrival_time: case.arrival_time,
        conditions: if case.kind == Kind::State { vec![positive(), cold()] } else { vec![] },
        over_windows: false,
        tells_clocks: false,
        ..spec(window, case.keyed, aggregates())
    }
}

/// All rows at once, or cut, ticked and moved as the case says.
fn run(case: &Case, in_steps: bool) -> Hand {
    let mut hand = Hand::new(plan(case), &case.lengths);
    let mut done = 0;
    for (at, step) in case.steps.iter().filter(|_| in_steps) {
        let at = (*at).min(case.rows.len());
        if at > done {
            hand.rows(&case.rows[done..at]);
            done = at;
        }
        match step {
            Step::Cut => {}
            Step::Tick(share) => {
                let before = done.checked_sub(1).map_or(0, |row| case.rows[row].arrival);
                let after = case.rows.get(done).map_or(before + 200, |row| row.arrival);
                hand.tick(before + ((after - before) as f64 * share) as i64);
            }
            Step::Move => {
                let frame = hand.operator.export_state(&StateSelection::All).unwrap().unwrap();
                hand.operator = hand.factory.create();
                hand.operator.import_state(&StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap()).unwrap();
                let again = hand.operator.export_state(&StateSelection::All).unwrap().unwrap();
                assert_eq!(again.to_bytes().unwrap(), frame.to_bytes().unwrap(), "restore equals what was saved");
            }
            Step::MoveSlot(slot) => {
                let frame = hand.operator.export_state(&StateSelection::Slots(vec![*slot])).unwrap().unwrap();
                let forget = Element::Control(rivulet_dataflow::Control::RemoveSlots(vec![*slot]));
                hand.element(forget);
                hand.operator.import_state(&frame).unwrap();
                hand.element(Element::Control(rivulet_dataflow::Control::AddSlots(vec![*slot])));
            }
        }
    }
    if done < case.rows.len() {
        hand.rows(&case.rows[done..]);
    }
    hand.element(Element::End);
    hand
}

fn by_slot(hand: &Hand) -> BTreeMap<u32, Vec<Window>> {
    (0..3).map(|slot| (slot, hand.windows.iter().filter(|window| window.slot == slot).cloned().collect())).collect()
}

fn close(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Float(left), Value::Float(right)) => {
            let (left, right) = (f64::from_bits(*left), f64::from_bits(*right));
            // Sums near zero and correlations of nearly constant values: absolute at the size of the inputs.
            left == right || (left - right).abs() <= 1e-9 * left.abs().max(right.abs()).max(1.0)
        }
        _ => left == right,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn windows_are_those_of_the_model(case in cases()) {
        let hand = run(&case, true);
        let (expected, late) = model(&case);
        prop_assert_eq!(hand.refused(Reason::Late), late);
        for (slot, mut found) in by_slot(&hand) {
            if !matches!(case.kind, Kind::Count | Kind::CountSlide | Kind::State) {
                prop_assert!(found.is_sorted_by_key(|window| window.end), "ends ascend: {:?}", found);
                found.sort_by_key(|window| (window.end, window.key));
            } else {
                // Windows that End closes come key by key, in another order than the model's.
                found.sort_by_key(|window| window.key);
            }
            let mut expected = expected[&slot].clone();
            if matches!(case.kind, Kind::Count | Kind::CountSlide | Kind::State) {
                expected.sort_by_key(|window| window.key);
            }
            let bounds = |windows: &[Window]| {
                windows.iter().map(|window| (window.key, window.start, window.end)).collect::<Vec<_>>()
            };
            prop_assert_eq!(bounds(&found), bounds(&expected), "slot {}", slot);
            for (found, expected) in found.iter().zip(&expected) {
                for (index, (left, right)) in found.values.iter().zip(&expected.values).enumerate() {
                    prop_assert!(close(left, right), "aggregate {}: {:?} is not {:?} in {:?}", index, left, right, expected);
                }
            }
        }
    }

    #[test]
    fn cuts_ticks_and_moves_do_not_change_a_bit(case in cases()) {
        let (once, in_steps) = (run(&case, false), run(&case, true));
        prop_assert_eq!(by_slot(&once), by_slot(&in_steps));
        prop_assert_eq!(once.refused(Reason::Late), in_steps.refused(Reason::Late));
    }

    #[test]
    fn broken_state_is_an_error_and_never_a_panic(
        case in cases(),
        damage in prop::collection::vec((0..10usize, any::<prop::sample::Index>(), numbers()), 1..4),
    ) {
        let mut hand = Hand::new(plan(&case), &case.lengths);
        if !case.rows.is_empty() {
            hand.rows(&case.rows);
        }
        let mut frame = hand.operator.export_state(&StateSelection::All).unwrap().unwrap();
        for (column, place, number) in damage {
            frame.rows = break_value(&frame.rows, frame.rows.num_columns() - 1 - column, place, number);
        }
        let mut other = Hand::new(plan(&case), &case.lengths);
        if other.operator.import_state(&frame).is_ok() {
            // What is taken over must work, if with other numbers.
            if !case.rows.is_empty() {
                other.rows(&case.rows);
            }
            other.element(Element::End);
        }
    }
}

/// Numbers that state may hold if it is broken: wild ones, and ones just beside what is right.
fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..40u64, 990..1100u64, Just(0), Just(u64::MAX), Just(i64::MAX as u64), Just(1 << 63)]
}

/// The rows with one number of one column replaced (or one byte, of objects).
fn break_value(rows: &RecordBatch, column: usize, place: prop::sample::Index, number: u64) -> RecordBatch {
    let mut columns = rows.columns().to_vec();
    let old = &columns[column];
    if old.is_empty() {
        return rows.clone();
    }
    let new: ArrayRef = match old.data_type() {
        DataType::Int64 => {
            let mut values = old.as_primitive::<Int64Type>().values().to_vec();
            values[place.index(old.len())] = number as i64;
            Arc::new(Int64Array::from(values))
        }
        DataType::UInt64 => {
            let mut values = old.as_primitive::<UInt64Type>().values().to_vec();
            values[place.index(old.len())] = number;
            Arc::new(UInt64Array::from(values))
        }
        DataType::List(field) => {
            let list = old.as_list::<i32>();
            let mut words = list.values().as_primitive::<UInt64Type>().values().to_vec();
            if !words.is_empty() {
                let place = place.index(words.len());
                words[place] = number;
            }
            let words = Arc::new(UInt64Array::from(words));
            Arc::new(ListArray::new(field.clone(), list.offsets().clone(), words, None))
        }
        DataType::Binary => {
            let binary = old.as_binary::<i32>();
            let mut bytes = binary.value_data().to_vec();
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] = number as u8;
            }
            Arc::new(BinaryArray::new(binary.offsets().clone(), bytes.into(), binary.nulls().cloned()))
        }
        // Flags and keys cannot be wrong by themselves.
        _ => old.clone(),
    };
    columns[column] = new;
    RecordBatch::try_new(rows.schema(), columns).unwrap()
}
