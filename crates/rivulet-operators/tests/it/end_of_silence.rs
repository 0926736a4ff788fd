//! Every operator whose slots have a clock with an idle timeout, when a row comes just as the timeout ends, a moment
//! earlier or a moment later. What comes out, when, and which rows are late do not depend on whether the operator is
//! ticked at that instant before the row, after it, or not at all, nor on how rows are cut into batches.
//!
//! The model of windows says which of their rows are late. That of patterns knows no idle timeout, so their late rows
//! are counted here.

use std::sync::Arc;

use crate::common::{
    Row, aggregate, batch, cold, column, count, cumulate, hop, input, parameter, parameters, positive, session,
    shifted, spec, table, tumble,
};
use crate::{join_model, windows_over_windows};
use arrow::util::display::array_value_to_string;
use proptest::prelude::*;
use rivulet_dataflow::{Batch, Chain, Control, Element, Line, Reason, Refusals, SlotTable, Surroundings};
use rivulet_operators::{
    AggregateFunction, JoinKind, NamedExpression, Pattern, PatternAggregate, PatternMatch, PatternSpec,
    PatternVariable, Skip, Source, WindowAggregate, WindowAggregateSpec, WindowSpec,
};

const IDLE: i64 = 10;
const LATENESS: i64 = 3;
/// Width and slide of windows; the gap of sessions and `WITHIN` are as long as the width.
const LENGTHS: (i64, i64) = (6, 2);

/// An operator, or windows over windows, and how rows become its input.
struct Subject {
    name: String,
    line: Line,
    batch: fn(&[Row]) -> Batch,
}

fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    for keyed in [false, true] {
        let mut add = |name: &str, line, batch| subjects.push(Subject { name: format!("{name} {keyed}"), line, batch });
        let windows = [tumble(), hop(), cumulate(), shifted(tumble(), 1), session(), count(true), WindowSpec::State];
        for window in windows {
            add(&format!("{window}"), windows_line(window, keyed), batch);
        }
        for first in 0..3 {
            let (second, rows) = ((2, 5, 6), Vec::new());
            let case = windows_over_windows::Case { first, second, keyed, least: 0, idle: IDLE, rows, end: 0 };
            add(&format!("over {first}"), windows_over_windows::dataflow(&case), batch);
        }
        add("pattern", pattern(keyed), batch);
        let (low, high) = (None, join_model::offset(LENGTHS.0));
        let kind = JoinKind::Interval { low, high, lateness_us: LATENESS, idle_timeout_us: IDLE };
        add("left join", join_model::join(kind, keyed, true), of_two_inputs);
    }
    subjects
}

fn windows_line(window: WindowSpec, keyed: bool) -> Line {
    let conditions = if matches!(window, WindowSpec::State) { vec![positive(), cold()] } else { vec![] };
    let sum = aggregate(AggregateFunction::Sum, vec![column(1)]);
    let of = WindowAggregateSpec {
        lateness_us: LATENESS,
        idle_timeout_us: IDLE,
        conditions,
        ..spec(window, keyed, vec![sum])
    };
    Line::new(vec![Arc::new(WindowAggregate::new(of).unwrap())])
}

/// As many rows as possible within the time: only the clock ends a match.
fn pattern(keyed: bool) -> Line {
    let any = PatternVariable { name: "a".into(), row_condition: None, match_condition: None };
    let pattern = Pattern::Repeat { pattern: Box::new(Pattern::Variable(0)), min: 1, max: None, greedy: true };
    let of_all = |aggregate, value| Source::Aggregate { aggregate, value, variable: None };
    let spec = PatternSpec {
        input: input(),
        parameter_schema: parameters(),
        parameters: vec![],
        keys: if keyed { vec![NamedExpression::new("key", column(3))] } else { vec![] },
        values: vec![column(1)],
        variables: vec![any],
        pattern,
        results: vec![
            ("rows".into(), of_all(PatternAggregate::Count, None)),
            ("sum".into(), of_all(PatternAggregate::Sum, Some(0))),
        ],
        skip: Skip::PastLastRow,
        within: Some(parameter(0)),
        lateness_us: LATENESS,
        idle_timeout_us: IDLE,
        arrival_time: false,
    };
    Line::new(vec![Arc::new(PatternMatch::new(spec).unwrap())])
}

/// Rows with an even `n` come by the left input, the others by the right one.
fn of_two_inputs(rows: &[Row]) -> Batch {
    let of_row = |row: &Row| {
        let n = row.n.unwrap();
        ((n % 2) as usize, row.slot, row.time, row.key, n)
    };
    let batch = join_model::batch(&rows.iter().map(of_row).collect::<Vec<_>>());
    let arrivals_us = rows.iter().map(|row| row.arrival).collect();
    Batch::new(batch.slots, batch.event_time_us, arrivals_us, batch.columns)
}

/// What the driver does at the arrival of each row.
#[derive(Clone, Copy, Debug)]
struct Feed {
    ticks_before: bool,
    ticks_after: bool,
    /// Whether rows that arrive at one instant are one batch.
    in_batches: bool,
}

/// What came out and when, and how many rows were late.
#[derive(Debug, PartialEq)]
struct Outcome {
    rows: Vec<(i64, String)>,
    late: u64,
}

struct Run {
    chain: Chain,
    table: SlotTable,
    refusals: Refusals,
    rows: Vec<(i64, String)>,
}

impl Run {
    fn new(subject: &Subject) -> Self {
        let (chain, table) = (subject.line.chain(), table(&[LENGTHS]));
        let mut run = Self { chain, table, refusals: Refusals::new(10), rows: Vec::new() };
        run.process(Element::Control(Control::AddSlots(vec![0])), 0);
        run
    }

    fn process(&mut self, element: Element, now_us: i64) {
        let Self { chain, table, refusals, rows } = self;
        let with = Surroundings { now_us, slots: table, refusals };
        chain.process(element, with, &mut |batch| note(rows, now_us, &batch)).unwrap();
    }

    fn tick(&mut self, now_us: i64) {
        let Self { chain, table, refusals, rows } = self;
        let with = Surroundings { now_us, slots: table, refusals };
        chain.tick(with, &mut |batch| note(rows, now_us, &batch)).unwrap();
        assert!(chain.deadline_us().is_none_or(|deadline_us| deadline_us > now_us), "a tick does all that is due");
    }

    /// Ticks around the end of the last silence, and the end of the input.
    fn end(mut self, last_us: i64) -> Outcome {
        for silence_us in [0, IDLE - 1, IDLE, IDLE + 1, 3 * IDLE] {
            self.tick(last_us + silence_us);
        }
        self.process(Element::End, last_us + 3 * IDLE);
        Outcome { rows: self.rows, late: self.refusals.counted(Reason::Late) }
    }
}

fn note(rows: &mut Vec<(i64, String)>, now_us: i64, batch: &Batch) {
    for row in 0..batch.rows() {
        let columns = batch.columns.columns().iter();
        let values: Vec<String> = columns.map(|column| array_value_to_string(column, row).unwrap()).collect();
        rows.push((now_us, format!("{} {}", batch.event_time_us[row], values.join(" "))));
    }
}

fn fed(subject: &Subject, rows: &[Row], feed: Feed) -> Outcome {
    let mut run = Run::new(subject);
    for rows in rows.chunk_by(|one, next| feed.in_batches && one.arrival == next.arrival) {
        let now_us = rows[0].arrival;
        if feed.ticks_before {
            run.tick(now_us);
        }
        run.process(Element::Batch((subject.batch)(rows)), now_us);
        if feed.ticks_after {
            run.tick(now_us);
        }
    }
    run.end(rows.last().map_or(0, |row| row.arrival))
}

/// All rows in one batch.
fn fed_at_once(subject: &Subject, rows: &[Row]) -> Outcome {
    let (mut run, last_us) = (Run::new(subject), rows.last().map_or(0, |row| row.arrival));
    run.process(Element::Batch((subject.batch)(rows)), last_us);
    run.end(last_us)
}

fn assert_is_the_same(subject: &Subject, rows: &[Row]) {
    let feeds = [(false, false), (true, false), (false, true), (true, true)].into_iter().flat_map(|ticks| {
        [false, true].map(|in_batches| Feed { ticks_before: ticks.0, ticks_after: ticks.1, in_batches })
    });
    let mut feeds = feeds.map(|feed| (feed, fed(subject, rows, feed)));
    let (_, expected) = feeds.next().unwrap();
    if subject.name.starts_with("pattern") {
        assert_eq!(expected.late, late(rows), "{}: {rows:?}", subject.name);
    }
    for (feed, outcome) in feeds {
        assert_eq!(outcome, expected, "{} with {feed:?}: {rows:?}", subject.name);
    }
    // The batch is processed as late as its last row. So all comes out then that comes out by then.
    let mut at_once = expected;
    let last_us = rows.last().map_or(0, |row| row.arrival);
    at_once.rows.iter_mut().for_each(|row| row.0 = row.0.max(last_us));
    assert_eq!(fed_at_once(subject, rows), at_once, "{} in one batch: {rows:?}", subject.name);
}

/// How many rows are behind the clock of their query, which never goes back.
fn late(rows: &[Row]) -> u64 {
    let (mut newest, mut last, mut watermark, mut late) = (None::<i64>, 0, i64::MIN, 0);
    for row in rows {
        let silence = row.arrival - last;
        if let Some(newest) = newest {
            watermark = watermark.max(newest - LATENESS + if silence >= IDLE { silence } else { 0 });
        }
        if row.time < watermark {
            late += 1;
            continue;
        }
        (newest, last) = (newest.max(Some(row.time)), row.arrival);
    }
    late
}

/// Rows by the pause before each one, by how much its event time is ahead of the row before, its key and its number.
fn rows(raw: &[(i64, i64, i64, i64)]) -> Vec<Row> {
    let (mut arrival, mut time) = (100, 100);
    let rows = raw.iter().map(|&(pause, ahead, key, n)| {
        (arrival, time) = (arrival + pause, time + ahead);
        // Every fourth number is below zero as v: the last row of a window of a state.
        let v = Some(if n % 4 == 3 { -1.0 } else { 1.0 });
        Row { slot: 0, time, arrival, v, n: Some(n), s: None, key: Some(key) }
    });
    rows.collect()
}

#[test]
fn rows_around_the_end_of_a_silence_give_the_same_however_ticks_come() {
    let pauses = [0, IDLE - 1, IDLE, IDLE + 1];
    let aheads = [-4, 0, 7, 9];
    for subject in subjects() {
        for (pause, ahead) in pauses.iter().flat_map(|&pause| aheads.map(|ahead| (pause, ahead))) {
            for (next_pause, next_ahead) in pauses.iter().flat_map(|&pause| aheads.map(|ahead| (pause, ahead))) {
                let rows = rows(&[(0, 0, 0, 2), (pause, ahead, 1, 3), (next_pause, next_ahead, 0, 4)]);
                assert_is_the_same(&subject, &rows);
            }
        }
    }
}

/// A row is late because the clock went on in a silence, or because of newer rows. Its refusal names what to change.
#[test]
fn a_late_row_says_which_option_would_have_kept_it() {
    let held_back = rows(&[(0, 0, 0, 2), (3 * IDLE, 1, 0, 4)]);
    let behind = rows(&[(0, 0, 0, 2), (1, 50, 0, 4), (1, -49, 0, 6)]);
    let mut refused = 0;
    for subject in subjects() {
        for (rows, hint) in [(&held_back, "raise idle_timeout"), (&behind, "hint: allow more lateness")] {
            let mut run = Run::new(&subject);
            run.process(Element::Batch((subject.batch)(rows)), rows.last().unwrap().arrival);
            for record in run.refusals.records().iter().filter(|record| record.reason == Reason::Late) {
                assert!(record.detail.contains(hint), "{}: {}", subject.name, record.detail);
                refused += 1;
            }
        }
    }
    assert!(refused >= 30, "{refused} late rows of windows, patterns and joins");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn many_rows_give_the_same_however_ticks_come(
        raw in prop::collection::vec(
            (prop_oneof![3 => 0..3i64, 2 => IDLE - 1..IDLE + 2], -6..14i64, 0..2i64, 0..8i64),
            0..20,
        ),
    ) {
        subjects().iter().for_each(|subject| assert_is_the_same(subject, &rows(&raw)));
    }
}
