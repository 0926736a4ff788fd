//! Saved state of operators. Bytes that were changed are refused; frames whose rows were left out, come twice or in
//! another order, and frames of other operators, are refused or taken over, and then the operators go on and export
//! again. State that was not changed is taken over, and exported again as it was.

use std::sync::OnceLock;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use rivulet_dataflow::{
    Chain, Element, Events, OperatorError, Refusals, SlotTable, StateFrame, StateSelection, Surroundings,
};
use rivulet_sql::{Application, ParamValue, ParameterRows, parse_application, plan_application};

use super::payload::decoder_of;
use crate::Target;
use crate::edits::{self, Files};
use crate::input::Input;

/// See the module.
pub const TARGET: Target =
    Target { name: "state_frames", run, words: &["slot", "key_group", "rivulet.operator"], mutations: 2_000 };

/// SELECTs whose operators have state of every kind.
const SELECTS: &[&str] = &[
    "SELECT d, avg(v) AS a, count(DISTINCT d) AS n, median(v) AS m FROM t GROUP BY hop(ts, INTERVAL '1 second', $w), d EMIT ON CHANGE",
    "SELECT first_value(v) AS a, last_value(d) AS b, max(d) AS c, stddev(v) AS e FROM t GROUP BY session(ts, INTERVAL '2 seconds')",
    "SELECT sum(v) AS a, min(n) AS b FROM t GROUP BY count_window(3)",
    "SELECT d, sum(v) AS a, median(v) AS m FROM t GROUP BY state_window(v > $p, v < 1), d",
    "SELECT max(a) AS a FROM (SELECT sum(v) AS a, window_end FROM t GROUP BY tumble(ts, $w)) AS m GROUP BY hop(window_end, INTERVAL '2 seconds', INTERVAL '4 seconds')",
    "SELECT v, lag(d, 2) AS b FROM t QUALIFY changed(n) OVER (PARTITION BY d) OR hysteresis(v, 1, $p) EMIT ON CHANGE",
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY d MEASURES avg(A.v) AS x, LAST(B.d) AS y PATTERN (A+ B) WITHIN $w DEFINE A AS v > 1, B AS B.v < PREV(v))",
    "SELECT t.v, o.d FROM t JOIN LATEST(o) AS o ON o.d = t.d",
    "SELECT t.v, o.v AS w FROM t JOIN o ON o.d = t.d AND o.ts BETWEEN t.ts - $w AND t.ts + $w",
    "SELECT last_value(map(d, v)) AS m, first_value(named_struct('d', d, 'v', v)) AS r, max(map(d, n)) AS x FROM t GROUP BY hop(ts, INTERVAL '1 second', $w)",
    "SELECT lag(map(d, v), 2) AS m, lag(ROW(d, v)) AS r FROM t QUALIFY changed(map(d, n)) OVER (PARTITION BY d)",
];

/// The most rows that a changed frame has.
const ROWS_MAX: usize = 4_096;

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let subject = &subjects()[input.below(SELECTS.len())];
    match input.byte() % 2 {
        0 => change_bytes(subject, &mut input),
        _ => change_rows(subject, &mut input),
    }
}

/// Changes the bytes of frames: what can be read of them after that was not changed.
fn change_bytes(subject: &Subject, input: &mut Input<'_>) {
    let named = |(place, frame): (usize, &Option<Vec<u8>>)| Some((place.to_string(), frame.clone()?));
    let mut files: Files = subject.frames.iter().enumerate().filter_map(named).collect();
    let is_changed = edits::apply(&mut files, input);
    let mut frames = Vec::new();
    for place in 0..subject.frames.len() {
        let Some(bytes) = files.get(&place.to_string()) else {
            frames.push(None);
            continue;
        };
        match StateFrame::from_bytes(bytes) {
            Ok(frame) => {
                assert!(subject.frames.iter().flatten().any(|known| known == bytes), "changed bytes are no frame");
                frames.push(Some(frame));
            }
            Err(error) => return assert!(is_changed, "{error}"),
        }
    }
    let chain = take_over(subject, &frames);
    if !is_changed {
        assert_eq!(bytes_of(&chain.expect("state that was exported can be imported")), subject.frames);
    }
}

/// Changes which rows frames have, and to which operators they are given.
fn change_rows(subject: &Subject, input: &mut Input<'_>) {
    let read = |bytes: &Vec<u8>| StateFrame::from_bytes(bytes).expect("it was written as a frame");
    let mut frames: Vec<Option<StateFrame>> = subject.frames.iter().map(|bytes| bytes.as_ref().map(read)).collect();
    while !input.is_empty() {
        let (place, other) = (input.below(frames.len()), input.below(frames.len()));
        match input.byte() % 4 {
            0 => frames.swap(place, other),
            1 => frames[place] = None,
            2 => {
                if let Some(frame) = &mut frames[place] {
                    frame.version = frame.version.saturating_sub(u32::from(input.byte() % 3));
                }
            }
            _ => {
                let Some(frame) = &mut frames[place] else { continue };
                let rows = frame.rows.num_rows();
                let mut taken: Vec<u32> = (0..rows as u32).collect();
                for &byte in input.piece() {
                    let at = usize::from(byte >> 2) % taken.len().max(1);
                    match byte % 4 {
                        0 if !taken.is_empty() => drop(taken.remove(at)),
                        1 if !taken.is_empty() && taken.len() < ROWS_MAX => taken.push(taken[at]),
                        2 => taken.reverse(),
                        _ => taken.rotate_left(at),
                    }
                }
                frame.rows = take_record_batch(&frame.rows, &UInt32Array::from(taken)).expect("the rows are there");
            }
        }
    }
    drop(take_over(subject, &frames));
}

/// Operators that have taken over this state, if they take it; such go on with it, too.
fn take_over(subject: &Subject, frames: &[Option<StateFrame>]) -> Option<Chain> {
    let take = || {
        let mut chain = subject.application.dataflow.chain();
        chain.import_state(frames).map(|()| chain)
    };
    let mut goes_on = take().ok()?;
    let _ = fill(&subject.application, &mut goes_on);
    let _ = goes_on.export_state(&StateSelection::All);
    take().ok()
}

/// An application, and the state of each of its operators that has any, of some queries.
struct Subject {
    application: Application,
    frames: Vec<Option<Vec<u8>>>,
}

impl Subject {
    fn new(select: &str) -> Self {
        let sql = format!(
            "CREATE APPLICATION a (p DOUBLE DEFAULT 2, w INTERVAL DEFAULT INTERVAL '5 seconds')\n{}\nOUTPUT 'mqtt:o' FORMAT JSON AS {select}",
            ["t", "o"]
                .into_iter()
                .filter(|name| *name == "t" || select.contains(" o ON") || select.contains("LATEST(o)"))
                .map(|name| format!(
                    "INPUT {name} (ts TIMESTAMP EVENT TIME, d TEXT, v DOUBLE, n BIGINT) FROM 'mqtt:{name}' FORMAT JSON"
                ))
                .collect::<Vec<_>>()
                .join("\n")
        );
        let create = parse_application(&sql).unwrap_or_else(|error| panic!("{}", error.render(&sql)));
        let application = plan_application(&create).unwrap_or_else(|error| panic!("{}", error.render(&sql)));
        let mut chain = application.dataflow.chain();
        fill(&application, &mut chain).expect("the operators process it");
        Self { frames: bytes_of(&chain), application }
    }
}

fn subjects() -> &'static [Subject] {
    static SUBJECTS: OnceLock<Vec<Subject>> = OnceLock::new();
    SUBJECTS.get_or_init(|| SELECTS.iter().map(|select| Subject::new(select)).collect())
}

fn bytes_of(chain: &Chain) -> Vec<Option<Vec<u8>>> {
    let frames = chain.export_state(&StateSelection::All).expect("state can be exported");
    frames.into_iter().map(|frame| frame.map(|frame| frame.to_bytes().expect("it can be written"))).collect()
}

/// Has a chain process some events of two queries.
fn fill(application: &Application, chain: &mut Chain) -> Result<(), OperatorError> {
    let mut rows = ParameterRows::new(application);
    for width in ["3 seconds", "10 seconds"] {
        rows.push([("w", ParamValue::Text(width))]).expect("the value fits");
    }
    let parameters: RecordBatch = rows.finish();
    let mut slots = SlotTable::new(application.parameter_schema.clone());
    slots.add(&[1, 2], &parameters);
    let mut events = Events::default();
    for number in 0..40_u32 {
        let payload = format!(
            "{{\"ts\":{},\"d\":\"{}\",\"v\":{},\"n\":{number}}}",
            1_000_000 + 300 * number,
            ["a", "bb", "ccc"][number as usize % 3],
            f64::from(number * 7 % 11) / 2.0
        );
        let input = (number % application.inputs.len() as u32) as u8;
        events.push_from(input, number % 2, 1_000_000_000 + i64::from(number), payload.as_bytes());
    }
    let mut refusals = Refusals::new(8);
    let batch = decoder_of(application).decode(&events, &mut refusals);
    assert!(refusals.is_empty(), "{:?}", refusals.records());
    chain.process(
        Element::Batch(batch),
        Surroundings { now_us: 2_000_000_000, slots: &slots, refusals: &mut refusals },
        &mut |_| {},
    )
}
