//! What of the SQL of other engines works: every statement in `features/list.txt` is run for its result, and
//! `docs/reference/sql-features.md` says what came of it. `cargo xtask docs` writes the page again.
//!
//! The list has sections (`#`), features with the engines that have them (`##`), and statements: the SELECT of an
//! application (`app`), a SELECT over sources (`big`), or a declaration (`declare`). Behind a statement, or several
//! with the same result, stand
//! - `<`: an input and the rows that it reads in place of those in `features/rows.txt`, or the payload of an event that
//!   a declared source reads;
//! - `=`: the columns of the result and its rows, or `!`: it is refused. A declaration without either is not read.
//!
//! Rows are arrays in the order of the columns. Those of applications, and of an ORDER BY, come in this order. A
//! feature works for applications or big queries if all its statements of that kind give the right rows.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use rivulet::run::{RunOptions, Runner};
use rivulet::script::{Script, Step};
use rivulet::service::ServiceError;
use rivulet::trial::{Event, Report, of_script};
use rivulet_connectors::formats::{EncodedRows, Format};
use rivulet_dataflow::Batch;
use rivulet_testing::page::{check, wrapped};
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::sql_clauses::Kept;

const PATIENCE: Duration = Duration::from_secs(300);

/// How long the clock of an application goes on behind the last event.
const DAY_US: i64 = 86_400_000_000;

/// The inputs of applications, and the columns of their rows. `a` and `b` are sources with the same rows as `r` and
/// `s`, and call `t` `k`.
const INPUTS: [(&str, &str, &str, &[&str]); 3] = [
    ("r", "a", "t TEXT, n BIGINT, v DOUBLE", &["ts", "t", "n", "v"]),
    ("s", "b", "t TEXT, w DOUBLE", &["ts", "t", "w"]),
    ("u", "", "t TEXT, z DOUBLE", &["ts", "t", "z"]),
];

/// What of a declaration all inputs have.
const LATENESS: &str = "WITH (lateness => INTERVAL '10 seconds')";

/// The table that applications and big queries look rows up in.
const TABLE: &str =
    "CREATE TABLE p (t TEXT NOT NULL, x DOUBLE) FROM 'data:,t,x\nx,10\nb,2\nq,4' FORMAT CSV (header => true);\n";

/// Statements that have the same result.
#[derive(Default)]
struct Case<'l> {
    /// Each with its kind.
    statements: Vec<(&'l str, &'l str)>,
    given: Vec<&'l str>,
    expected: Option<&'l str>,
    is_refused: bool,
}

/// The rows of a result.
struct Answer {
    rows: Vec<Map<String, Value>>,
    is_ordered: bool,
}

/// What came of a statement.
enum Outcome {
    Right,
    /// It was accepted, and nothing was read.
    Accepted,
    Refused(String),
    /// It failed while it ran, or gives other rows.
    Wrong(String),
}

impl Outcome {
    fn refused(error: ServiceError) -> Self {
        Self::Refused(said(&error))
    }

    fn failed(error: ServiceError) -> Self {
        Self::Wrong(said(&error))
    }

    fn is_worse_than(&self, other: &Self) -> bool {
        let badness = |one: &Self| match one {
            Self::Right => 0,
            Self::Accepted => 1,
            Self::Refused(_) => 2,
            Self::Wrong(_) => 3,
        };
        badness(self) > badness(other)
    }
}

/// An error and its hint on one line.
fn said(error: &ServiceError) -> String {
    let line = |text: &str| text.lines().collect::<Vec<_>>().join(" ");
    let hint = error.hint.as_deref().map_or_else(String::new, |hint| format!("; {}", line(hint)));
    format!("{}{hint}", line(&error.message))
}

/// The statements of a feature, with their rows.
fn cases(lines: &str) -> Vec<Case<'_>> {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        let is_over = |case: &Case<'_>| case.is_refused || case.expected.is_some();
        if !["<", "=", "!"].contains(&mark) && cases.last().is_none_or(is_over) {
            cases.push(Case::default());
        }
        let case = cases.last_mut().expect("a statement before its rows");
        match mark {
            "<" => case.given.push(rest),
            "=" => case.expected = Some(rest),
            "!" => case.is_refused = true,
            kind => case.statements.push((kind, rest)),
        }
    }
    cases
}

/// The events of lines with an input and its rows: each with its input, as JSON.
fn events<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<(&'l str, String)> {
    let mut events = Vec::new();
    for line in lines {
        let (input, rows) = line.split_once(' ').expect("an input and its rows");
        let (.., names) = INPUTS.iter().find(|(name, ..)| *name == input).expect("an input");
        for row in arrays(rows) {
            assert_eq!(row.len(), names.len(), "{line}");
            let mut event: Map<String, Value> = names.iter().map(|name| (*name).to_owned()).zip(row).collect();
            event.insert("k".into(), event["t"].clone());
            events.push((input, Value::Object(event).to_string()));
        }
    }
    events
}

/// The arrays in a text.
fn arrays(text: &str) -> impl Iterator<Item = Vec<Value>> {
    serde_json::Deserializer::from_str(text)
        .into_iter()
        .map(move |row| row.unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// An object of JSON.
fn object(text: &[u8]) -> Map<String, Value> {
    serde_json::from_slice(text).expect("an object")
}

/// What an application with this SELECT gives. It declares the inputs that the SELECT reads.
fn of_application(select: &str, events: &[(&str, String)]) -> Result<Answer, Outcome> {
    let words: Vec<&str> = select.split(|c: char| !c.is_alphanumeric()).collect();
    let reads = |name: &str| {
        words.windows(2).any(|two| ["FROM", "JOIN", "LATEST", "TABLE"].contains(&two[0]) && two[1] == name)
    };
    let inputs = INPUTS.iter().filter(|(name, ..)| reads(name)).map(|(name, _, columns, _)| {
        format!(
            "INPUT {name} (ts TIMESTAMP EVENT TIME, {columns}) FROM 'mqtt:{name}/{{device}}' FORMAT JSON {LATENESS}\n"
        )
    });
    let inputs: String = inputs.collect();
    let script = format!(
        "{TABLE}CREATE APPLICATION feature (device TEXT)\n{inputs}OUTPUT 'mqtt:o/{{device}}' FORMAT JSON\nAS {select};
         CREATE QUERY one FROM APPLICATION feature WITH (device => '1');"
    );
    let mut trial = of_script(&script, Path::new("")).map_err(Outcome::refused)?;
    let mut rows = Vec::new();
    let mut tell = |report: Report| {
        if let Report::Result { payload, .. } = report {
            rows.push(object(&payload));
        }
    };
    for (place, (input, payload)) in events.iter().enumerate().filter(|(_, (input, _))| reads(input)) {
        let topic = Some(format!("{input}/1"));
        let event = Event { line: place + 1, topic, payload: payload.clone().into_bytes(), ..Event::default() };
        trial.feed(&event, &mut tell).map_err(Outcome::failed)?;
    }
    trial.finish(trial.now_us() + DAY_US, &mut tell).map_err(Outcome::failed)?;
    Ok(Answer { rows, is_ordered: true })
}

/// What a big query over files in this folder gives.
fn of_sources(runner: &Runner, folder: &Path, select: &str, events: &[(&str, String)]) -> Result<Answer, Outcome> {
    let mut sources = format!(
        "{TABLE}CREATE SOURCE c (k TEXT NOT NULL, x DOUBLE) FROM 'file:{}/c.csv' FORMAT CSV (header => true);\n",
        folder.display()
    );
    for (input, source, columns, _) in INPUTS.iter().filter(|(_, source, ..)| !source.is_empty()) {
        let columns = columns.replacen('t', "k", 1);
        let file = folder.join(source);
        let of_source = events.iter().filter(|(of, _)| of == input);
        let lines: String = of_source.map(|(_, payload)| format!("{payload}\n")).collect();
        std::fs::write(&file, lines).unwrap();
        let _ = writeln!(
            sources,
            "CREATE SOURCE {source} (ts TIMESTAMP EVENT TIME, {columns}) FROM 'file:{}' FORMAT JSON {LATENESS};",
            file.display()
        );
    }
    in_the_end(runner, &format!("{sources}{select};"))
}

/// What a source with this declaration reads of these payloads; nothing if there is none.
fn of_declaration(runner: &Runner, folder: &Path, declaration: &str, given: &[&str]) -> Result<Answer, Outcome> {
    let accepted = in_the_end(runner, &format!("{declaration};"))?;
    if given.is_empty() {
        return Ok(accepted);
    }
    let file = folder.join("feature");
    std::fs::write(&file, given.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let declaration = declaration.replace("'mqtt:feature'", &format!("'file:{}'", file.display()));
    in_the_end(runner, &format!("{declaration}; SELECT * FROM feature;"))
}

/// The rows that the last query of a script has given when its input has ended.
fn in_the_end(runner: &Runner, script: &str) -> Result<Answer, Outcome> {
    let mut script = Script::parse(script).map_err(Outcome::refused)?;
    let mut answer = Answer { rows: Vec::new(), is_ordered: false };
    while let Some(step) = script.next_step().map_err(Outcome::refused)? {
        let Step::Run(planned) = step else { panic!("only queries are run") };
        let output = &planned.plan.output;
        let kept = Kept::of(output);
        let results = Some(Box::new(kept.clone()) as _);
        let running = runner.start(&planned.host, &planned.plan, &planned.name, results).map_err(Outcome::failed)?;
        running.wait(PATIENCE).expect("it ends").map_err(Outcome::failed)?;
        let columns = kept.rows(output);
        let zeros = vec![0; columns.num_rows()];
        let slots: Vec<u32> = vec![0; columns.num_rows()];
        let mut encoder = Format::Json.encoder(columns.schema()).unwrap();
        let mut encoded = EncodedRows::default();
        encoder.encode(&Batch::new(slots.into(), zeros.clone().into(), zeros.into(), columns), &mut encoded);
        answer = Answer { rows: encoded.iter().map(object).collect(), is_ordered: !output.order.is_empty() };
    }
    Ok(answer)
}

/// The first difference between a result and what is expected of it.
fn difference(expected: &str, answer: &Answer) -> Option<String> {
    let (names, rows) = expected.split_once(':').expect("columns and rows");
    let names: Vec<&str> = names.split(' ').collect();
    let mut expected: Vec<String> = arrays(rows).map(|row| cells(row.iter())).collect();
    let of_row =
        |row: &Map<String, Value>| match row.len() == names.len() && names.iter().all(|name| row.contains_key(*name)) {
            true => cells(names.iter().map(|name| &row[*name])),
            false => Value::Object(row.clone()).to_string(),
        };
    let mut found: Vec<String> = answer.rows.iter().map(of_row).collect();
    if !answer.is_ordered {
        expected.sort_unstable();
        found.sort_unstable();
    }
    let row = |rows: &[String], place: usize| rows.get(place).cloned().unwrap_or_else(|| "no row".into());
    (0..expected.len().max(found.len()))
        .map(|place| (row(&expected, place), row(&found, place)))
        .find(|(one, other)| one != other)
        .map(|(one, other)| format!("{other} and not {one}"))
}

/// The cells of a row as text.
fn cells<'v>(values: impl Iterator<Item = &'v Value>) -> String {
    format!("[{}]", values.map(shown).collect::<Vec<_>>().join(","))
}

/// A value as text. Engines add in different orders, so numbers have six places behind the point.
fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => {
            let digits = format!("{:.6}", number.as_f64().expect("a number"));
            digits.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        Value::Array(values) => cells(values.iter()),
        Value::Object(fields) => {
            let mut fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}:{}", shown(value))).collect();
            fields.sort_unstable();
            format!("{{{}}}", fields.join(","))
        }
        other => other.to_string(),
    }
}

/// The words of SQL in the name of a feature that none of its statements has. What a name says works was tried.
fn untried_words<'n>(name: &'n str, statements: &str) -> Vec<&'n str> {
    let (tried, (of, _)) = (statements.to_lowercase(), name.rsplit_once(" (").unwrap_or((name, "")));
    let words = of.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    let is_of_sql = |word: &&str| word.len() > 2 && word.chars().all(|sign| sign.is_ascii_uppercase() || sign == '_');
    words.filter(is_of_sql).filter(|word| !tried.contains(&word.to_lowercase())).collect()
}

#[test]
fn the_reference_of_features_of_other_engines_is_current() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("c.csv"), "k,x\nx,1.5\nb,7\nq,0\n").unwrap();
    let runner = Runner::new(RunOptions::new(2)).unwrap();
    let common = events(include_str!("features/rows.txt").lines());
    let mut page = String::new();
    let (mut tried, mut outcomes_of_all, mut right) = (0, 0, 0);
    for section in include_str!("features/list.txt").split("\n# ").filter(|section| !section.trim().is_empty()) {
        let (title, features) = section.split_once('\n').unwrap();
        let _ = write!(page, "\n## {}\n\n", title.trim_start_matches("# "));
        for feature in features.split("## ").filter(|feature| !feature.trim().is_empty()) {
            let (name, lines) = feature.split_once('\n').unwrap();
            let mut texts = String::new();
            let mut outcomes: Vec<(&str, Outcome)> = Vec::new();
            for case in cases(lines) {
                for &(kind, statement) in &case.statements {
                    let _ = writeln!(texts, "{statement}");
                    let own = || events(case.given.iter().copied());
                    let answered = match kind {
                        "declare" => of_declaration(&runner, folder.path(), statement, &case.given),
                        "app" if case.given.is_empty() => of_application(statement, &common),
                        "app" => of_application(statement, &own()),
                        "big" if case.given.is_empty() => of_sources(&runner, folder.path(), statement, &common),
                        "big" => of_sources(&runner, folder.path(), statement, &own()),
                        other => panic!("'{other}' is no kind of statement"),
                    };
                    let outcome = match (answered, case.expected) {
                        (Ok(answer), Some(expected)) => {
                            difference(expected, &answer).map_or(Outcome::Right, Outcome::Wrong)
                        }
                        (Ok(_), None) => {
                            assert!(kind == "declare" && !case.is_refused, "the list has no rows of {statement}");
                            Outcome::Accepted
                        }
                        (Err(outcome), _) => outcome,
                    };
                    if let Outcome::Wrong(how) = &outcome {
                        eprintln!("{statement}\n    {how}");
                    }
                    tried += 1;
                    match outcomes.iter_mut().find(|(of, _)| *of == kind) {
                        Some((_, before)) if outcome.is_worse_than(before) => *before = outcome,
                        Some(_) => {}
                        None => outcomes.push((kind, outcome)),
                    }
                }
            }
            let untried = untried_words(name, &texts);
            assert!(untried.is_empty(), "no statement of '{name}' tries {untried:?}");
            let in_words = outcomes.iter().map(|(kind, outcome)| {
                let of = match *kind {
                    "app" => "applications",
                    "big" => "big queries",
                    _ => "declarations",
                };
                match outcome {
                    Outcome::Right => format!("{of}: works"),
                    Outcome::Accepted => format!("{of}: accepted"),
                    Outcome::Refused(error) => format!("{of}: **refused**, \"{}\"", error.replace('*', "\\*")),
                    Outcome::Wrong(how) => format!("{of}: **wrong**, \"{}\"", how.replace('*', "\\*")),
                }
            });
            let _ = writeln!(page, "- {name}. {}", in_words.collect::<Vec<_>>().join("; "));
            outcomes_of_all += outcomes.len();
            right += outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Right)).count();
        }
    }
    assert!(tried > 100, "the list was read: {tried} statements");
    let head = format!(
        "<!-- Generated by `cargo xtask docs`. -->\n\
         # Features of other engines\n\n\
         What users of Apache Flink SQL, Arroyo and eKuiper know, and what comes of it here, in applications and in \
         big queries. Each line was run for its result: {right} of {outcomes_of_all} give the right rows. Where a \
         statement is refused, the line has the words of the error.\n"
    );
    check("sql-features.md", &wrapped(&format!("{head}{page}")));
}
