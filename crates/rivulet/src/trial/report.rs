//! The reports of a trial: results, refused rows, and why an event gave no result.

use std::collections::{BTreeMap, HashMap};

use rivulet_connectors::formats::json_escape;
use rivulet_dataflow::QueryId;
use rivulet_operators::application::Application;
use serde_json::Value;

use super::event::time_text;
use super::watch::{Passed, Seen, Turned};

/// A report of a trial. Times are microseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A result, a dead letter or a late row was published.
    Result {
        /// When it was published.
        time_us: i64,
        /// Its topic.
        topic: String,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// A row was refused.
    Refused {
        /// When it was refused.
        time_us: i64,
        /// The line of the event; `None` if a timer or the result of another query caused it.
        line: Option<usize>,
        /// The query.
        query: String,
        /// The reason, as in metrics.
        reason: &'static str,
        /// What was wrong.
        detail: String,
        /// The payload or the row, as text.
        content: String,
    },
    /// An event gave no result at once.
    Nothing {
        /// When the event was processed.
        time_us: i64,
        /// The line of the event.
        line: usize,
        /// Its topic.
        topic: String,
        /// The query; `None` if no query reads the topic.
        query: Option<String>,
        /// The reason.
        why: String,
    },
}

/// The counters of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events.
    pub events: u64,
    /// Messages that were published.
    pub results: u64,
    /// Rows that were refused.
    pub refused: u64,
    /// Events that gave no result at once; one that two queries read may count twice.
    pub nothing: u64,
}

impl Counts {
    pub(super) fn count(&mut self, report: &Report) {
        *match report {
            Report::Result { .. } => &mut self.results,
            Report::Refused { .. } => &mut self.refused,
            Report::Nothing { .. } => &mut self.nothing,
        } += 1;
    }
}

impl Report {
    /// The report as a JSON object with a field `kind`. A payload that is JSON stays as it is written.
    pub fn to_json(&self) -> String {
        let text = |text: &str| format!("\"{}\"", json_escape(text));
        match self {
            Self::Result { time_us, topic, payload } => {
                let shown = String::from_utf8_lossy(payload);
                let payload = match serde_json::from_str::<Value>(&shown) {
                    Ok(_) => shown.trim().replace(['\n', '\r'], " "),
                    Err(_) => text(&shown),
                };
                let (time, topic) = (time_text(*time_us), text(topic));
                format!(r#"{{"kind":"result","time":"{time}","topic":{topic},"payload":{payload}}}"#)
            }
            Self::Refused { time_us, line, query, reason, detail, content } => {
                let line = line.map_or("null".into(), |line| line.to_string());
                let (time, query, detail, content) = (time_text(*time_us), text(query), text(detail), text(content));
                format!(r#"{{"kind":"refused","time":"{time}","line":{line},"query":{query},"reason":"{reason}","#)
                    + &format!(r#""detail":{detail},"content":{content}}}"#)
            }
            Self::Nothing { time_us, line, topic, query, why } => {
                let query = query.as_deref().map_or("null".into(), text);
                let (time, topic, why) = (time_text(*time_us), text(topic), text(why));
                format!(
                    r#"{{"kind":"nothing","time":"{time}","line":{line},"topic":{topic},"query":{query},"why":{why}}}"#
                )
            }
        }
    }
}

/// The event that a report is about.
pub(super) struct OfEvent<'a> {
    pub(super) line: usize,
    pub(super) topic: &'a str,
    pub(super) time_us: i64,
}

/// Reports of refused rows whose event is unknown.
pub(super) fn refused(seen: &Seen, time_us: i64, names: &HashMap<QueryId, String>) -> Vec<Report> {
    seen.refused.iter().map(|one| refusal(one, None, time_us, names)).collect()
}

fn refusal(one: &Turned, line: Option<usize>, time_us: i64, names: &HashMap<QueryId, String>) -> Report {
    let Turned { query, reason, detail, content } = one.clone();
    let query = names.get(&query).cloned().unwrap_or_default();
    Report::Refused { time_us, line, query, reason: reason.name(), detail, content }
}

/// Reports about an event: for each query its refused rows, or why it gave no result.
pub(super) fn of_event(
    seen: &Seen,
    event: &OfEvent<'_>,
    applications: &[Application],
    names: &HashMap<QueryId, String>,
) -> Vec<Report> {
    let &OfEvent { line, topic, time_us } = event;
    let mut reports: Vec<Report> = seen.refused.iter().map(|one| refusal(one, Some(line), time_us, names)).collect();
    let mut queries: BTreeMap<QueryId, Vec<Passed>> = BTreeMap::new();
    for passed in &seen.passed {
        queries.entry(passed.query).or_default().push(*passed);
    }
    for (query, passed) in queries {
        let application = &applications[passed[0].application];
        let last = application.dataflow.operators().len() - 1;
        let has_results = passed.iter().any(|one| one.place == last && one.rows_out > 0);
        if has_results || seen.refused.iter().any(|one| one.query == query) {
            continue;
        }
        let query = names.get(&query).cloned();
        let why = why(&passed, application);
        reports.push(Report::Nothing { time_us, line, topic: topic.to_owned(), query, why });
    }
    reports
}

/// Why rows that entered an application did not leave it.
fn why(passed: &[Passed], application: &Application) -> String {
    let operators = application.dataflow.operators();
    let name = |place: usize| operators[place].describe().operator;
    let is_of_state =
        |place: usize| application.code.steps(place).first().is_some_and(|step| step.starts_with("state_window("));
    let window = passed.iter().rfind(|one| one.rows_in > 0 && name(one.place) == "window aggregate");
    let window = window.map(|one| match one.due_us {
        Some(due_us) => format!("it is in a window that a later event closes, or the clock at {}", time_text(due_us)),
        None if is_of_state(one.place) => "it is in no window, or in one that no row has closed yet".into(),
        None => "it is in a window that is not complete yet".into(),
    });
    let Some(end) = passed.iter().filter(|one| one.rows_in > 0).max_by_key(|one| one.place) else {
        return "nothing of it was read: its payload has no rows".into();
    };
    let steps = application.code.steps(end.place).join(", ");
    let ended = match name(end.place).as_str() {
        "window aggregate" => return window.unwrap_or_default(),
        "filter" => format!("this is not so: {steps}"),
        "emit on change" => "the result is the one before, and only changes are emitted".into(),
        "pattern" => "the pattern has no match that ends here".into(),
        "latest join" => {
            "it waits for rows of the other input that it goes with, or none of those that came does".into()
        }
        "interval join" => "no row of the other input goes with it yet".into(),
        "lookup" => "no row of the table goes with it".into(),
        "route" => "it goes to no output: no condition behind WHEN is true".into(),
        "unnest" => "its list has no parts".into(),
        "assign time" => "its time is not there yet".into(),
        other => format!("it ended in: {other}"),
    };
    match window {
        Some(window) => format!("{window}; of the windows that it has closed, {ended}"),
        None => ended,
    }
}
